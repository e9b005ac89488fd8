/* Several models, losses and optimizers, as apex's test_multiple_models_optimizers_losses.py has them: an infinity in
 * any gradient of any loss at any step leaves out the steps that it must and no other, blames the scaler of that loss
 * and no other, and names the parameter; weights end bit for bit where plain SGD without these steps ends.
 *
 * With CAIRN_TEST_SHORT in the environment each place of an infinity has one way of zeroing gradients, by turns, and
 * chance has 8 trainings instead of 40. */
#include "core/philox.h"
#include "exact.h"

enum { STEPS = 4, GROWTH_INTERVAL = 2 };
static const double FIRST_SCALE = 64, MAX_SCALE = 1024;

struct arrangement {
    const char *name;
    int models, losses, optimizers;
    unsigned loss_models[LOSSES]; /* bit m: model m is part of the loss */
    unsigned parts[3];            /* bit p: the optimizer has part p (exact.h) */
};
static const struct arrangement arrangements[] = {
    {"2 models, 2 losses, 1 optimizer", 2, 2, 1, {1, 2}, {0xf}},
    {"2 models, 2 losses, 2 optimizers", 2, 2, 2, {1, 2}, {0x3, 0xc}},
    {"3 models, 2 losses with a model in common, 1 optimizer", 3, 2, 1, {5, 6}, {0x3f}},
    {"3 models, 2 losses with a model in common, whose parts have 2 optimizers", 3, 2, 2, {5, 6}, {0x13, 0x2c}},
    {"1 model, 3 losses, 2 optimizers of its parts", 1, 3, 2, {1, 1, 1}, {0x1, 0x2}},
    {"3 models, 3 losses, 3 optimizers, of which 2 share a loss", 3, 3, 3, {1, 3, 4}, {0x3, 0xc, 0x30}},
};
enum { ARRANGEMENTS = sizeof(arrangements) / sizeof(arrangements[0]), ZEROINGS = 4 };

enum { GOOD = -1 };

struct run {
    const struct arrangement *of;
    const struct exact_level *level;
    bool scaler_each;
    int zeroing;
    double momentum;
    int bad[STEPS][LOSSES]; /* the part that overflows in a step's loss, or GOOD */
    char where[256];

    cairn_env *env;
    cairn_module *models[MODELS];
    cairn_optimizer *optimizers[3];
    cairn_tensor *x[MODELS], *c;
    struct plant plants[MODELS];
    amp_context *amp;
    struct plain plain;
    double scale[LOSSES]; /* as they should be */
    int clean[LOSSES];
};

static int make_env(void **state) {
    cairn_env *env = NULL;
    cairn_set_log(NULL, NULL);
    OK(cairn_env_create(NULL, NULL, NULL, &env));
    *state = env;
    return 0;
}

static int end_env(void **state) {
    cairn_env *env = *state;
    cairn_env_destroy(&env);
    return 0;
}

static void quiet(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie, (void)level, (void)message;
}

static double rate_of_model(int m) {
    return ldexp(1, -2 - m);
}

/* ---- making a run ---- */

static struct cairn_sgd_options rule_of(const struct run *r, int m) {
    struct cairn_sgd_options options = CAIRN_SGD_OPTIONS_INIT;
    options.lr = rate_of_model(m);
    options.momentum = r->momentum;
    return options;
}

/* One group a model. */
static void make_optimizer(struct run *r, int o) {
    for (int m = 0; m < r->of->models; m++) {
        size_t indices[2], count = 0;
        const struct cairn_sgd_options options = rule_of(r, m);
        for (int k = 0; k < 2; k++) {
            if (r->of->parts[o] >> (2 * m + k) & 1) indices[count++] = (size_t)k;
        }
        cairn_param_set *set = cairn_module_params(r->models[m]);
        if (!count) continue;
        if (r->optimizers[o]) {
            OK(cairn_sgd_add_group(r->optimizers[o], set, count == 2 ? NULL : indices, count, &options));
        } else {
            OK(cairn_sgd_create_over(set, indices, count, &options, &r->optimizers[o]));
        }
    }
}

static void begin(struct run *r, cairn_env *env) {
    const struct arrangement *a = r->of;
    r->env = env;
    r->c = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(OUT));
    for (int m = 0; m < a->models; m++) {
        r->models[m] = exact_model(env, m);
        r->x[m] = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(BATCH, IN));
    }
    for (int o = 0; o < a->optimizers; o++) make_optimizer(r, o);
    OK(amp_initialize_all(env, a->models, r->models, a->optimizers, r->optimizers,
                          amp_options(.opt_level = r->level->level, .half_type = r->level->half, .verbosity = -1,
                                      .loss_scale = AMP_DYNAMIC, .num_losses = r->scaler_each ? a->losses : 1,
                                      .scaler = amp_scaler_options(.init_scale = FIRST_SCALE, .max_scale = MAX_SCALE,
                                                                   .growth_interval = GROWTH_INTERVAL)),
                          &r->amp));
    for (int m = 0; m < a->models; m++) plant_install(&r->plants[m], cairn_module_params(r->models[m]));
    plain_begin(&r->plain, r->level->weights, r->momentum);
    for (int part = 0; part < PARTS; part++) r->plain.lr[part] = rate_of_model(part / 2);
    for (int l = 0; l < LOSSES; l++) r->scale[l] = FIRST_SCALE, r->clean[l] = 0;
}

static void end(struct run *r) {
    amp_destroy(&r->amp);
    for (int o = 0; o < r->of->optimizers; o++) cairn_optimizer_destroy(&r->optimizers[o]);
    for (int m = 0; m < r->of->models; m++) {
        plant_remove(&r->plants[m]);
        cairn_module_destroy(&r->models[m]);
        cairn_tensor_destroy(&r->x[m]);
    }
    cairn_tensor_destroy(&r->c);
}

/* ---- a step of it ---- */

static void zero(struct run *r) {
    for (int m = 0; m < r->of->models && r->zeroing == 2; m++) cairn_module_zero_grad(r->models[m]);
    for (int m = 0; m < r->of->models && r->zeroing == 3; m++)
        cairn_param_set_zero_grad(cairn_module_params(r->models[m]));
    for (int o = 0; o < r->of->optimizers && r->zeroing == 1; o++) cairn_optimizer_clear_grads(r->optimizers[o]);
    for (int o = 0; o < r->of->optimizers && r->zeroing == 0; o++) cairn_zero_grad(r->optimizers[o]);
}

/* The optimizers whose parameters get gradients from a loss. */
static bool is_given(const struct arrangement *a, int loss, int o) {
    for (int part = 0; part < PARTS; part++) {
        if (a->parts[o] >> part & 1 && a->loss_models[loss] >> part / 2 & 1) return true;
    }
    return false;
}

static cairn_tensor *loss_of(struct run *r, int loss, int step) {
    cairn_tensor *sum = NULL;
    exact_write_outputs(r->c, loss);
    for (int m = 0; m < r->of->models; m++) {
        if (!(r->of->loss_models[loss] >> m & 1)) continue;
        exact_write_input(r->x[m], loss, m, step);
        cairn_tensor *term = exact_loss(r->models[m], r->x[m], r->c);
        sum = sum ? cairn_add(sum, term) : term;
    }
    return sum;
}

static void backward(struct run *r, int loss, int step) {
    cairn_optimizer *given[3];
    int count = 0;
    for (int o = 0; o < r->of->optimizers; o++) {
        if (is_given(r->of, loss, o)) given[count++] = r->optimizers[o];
    }
    for (int m = 0; m < r->of->models; m++) {
        const int bad = r->bad[step][loss];
        r->plants[m].target = bad != GOOD && bad / 2 == m ? bad % 2 : -1;
        r->plants[m].value = INFINITY;
    }
    OK(amp_backward_with(r->amp, loss_of(r, loss, step),
                         amp_loss_options(.loss_id = r->scaler_each ? loss : 0, .num_optimizers = count,
                                          .optimizers = given)));
}

static void follow_scaler(struct run *r, int id, bool found) {
    if (found) r->scale[id] /= 2;
    r->clean[id] = found ? 0 : r->clean[id] + 1;
    if (r->clean[id] < GROWTH_INTERVAL) return;
    r->scale[id] = fmin(2 * r->scale[id], MAX_SCALE);
    r->clean[id] = 0;
}

/* The scaled loss, counted for an optimizer from 1, in which its part overflowed first; 0: in none. */
static int first_overflow(const struct run *r, int o, int part, int step) {
    int micro_batch = 0;
    for (int l = 0; l < r->of->losses; l++) {
        if (!is_given(r->of, l, o)) continue;
        micro_batch++;
        if (r->bad[step][l] == part) return micro_batch;
    }
    return 0;
}

static void assert_overflow_is_told(struct run *r, int o, int step) {
    struct amp_overflow told[PARTS];
    size_t found = 99, k = 0;
    OK(amp_last_overflow(r->amp, r->optimizers[o], told, PARTS, &found));
    for (int part = 0; part < PARTS; part++) {
        const int micro_batch = r->of->parts[o] >> part & 1 ? first_overflow(r, o, part, step) : 0;
        if (!micro_batch) continue;
        assert_true(k < found);
        assert_string_equal(told[k].name, part % 2 ? "bias" : "weight");
        assert_int_equal(told[k].micro_batch, micro_batch);
        assert_true(told[k].infs == 1 && told[k].nans == 0 && told[k].rank == 0);
        k++;
    }
    assert_int_equal(found, k);
}

static bool is_skipped(const struct run *r, int o, int step) {
    for (int l = 0; l < r->of->losses; l++) {
        if (r->bad[step][l] != GOOD && is_given(r->of, l, o)) return true;
    }
    return false;
}

static bool is_blamed(const struct run *r, int id, int step) {
    for (int l = 0; l < r->of->losses; l++) {
        if (r->bad[step][l] != GOOD && (!r->scaler_each || l == id)) return true;
    }
    return false;
}

static void step_optimizer(struct run *r, int o, int step) {
    const bool skipped = is_skipped(r, o, step);
    OK(cairn_step(r->optimizers[o]));
    if (cairn_optimizer_step_skipped(r->optimizers[o]) != skipped)
        fail_msg("%s: step %d of optimizer %d was %s", r->where, step, o, skipped ? "taken" : "left out");
    if (skipped) assert_overflow_is_told(r, o, step);
    if (!skipped) plain_step(&r->plain, r->of->parts[o]);
}

static void step(struct run *r, int step) {
    const struct arrangement *a = r->of;
    zero(r);
    memset(r->plain.grad, 0, sizeof(r->plain.grad));
    for (int l = 0; l < a->losses; l++) {
        backward(r, l, step);
        plain_add(&r->plain, l, a->loss_models[l], step);
    }
    for (int o = 0; o < a->optimizers; o++) step_optimizer(r, o, step);
    for (int id = 0; id < (r->scaler_each ? a->losses : 1); id++) follow_scaler(r, id, is_blamed(r, id, step));
}

static void check(struct run *r) {
    for (int part = 0; part < 2 * r->of->models; part++)
        assert_exact_part(r->where, cairn_module_params(r->models[part / 2]), part % 2, r->plain.w[part]);
    for (int id = 0; id < (r->scaler_each ? r->of->losses : 1); id++) {
        struct amp_scaler_state state = AMP_SCALER_STATE_INIT;
        OK(amp_scaler_get_state(amp_scaler_of(r->amp, id), &state));
        if (state.scale != r->scale[id] || state.growth_tracker != r->clean[id] || state.updates != STEPS)
            fail_msg("%s: scaler %d is at %g, not %g, after %d updates", r->where, id, state.scale, r->scale[id],
                     (int)state.updates);
    }
}

static void describe(struct run *r) {
    int used = snprintf(r->where, sizeof(r->where), "%s, %s, %s, zeroing %d, momentum %g, bad parts", r->of->name,
                        r->level->name, r->scaler_each ? "a scaler each" : "one scaler", r->zeroing, r->momentum);
    for (int i = 0; i < STEPS * LOSSES; i++)
        used += snprintf(r->where + used, sizeof(r->where) - (size_t)used, " %d", r->bad[i / LOSSES][i % LOSSES]);
}

static void run(cairn_env *env, struct run r) {
    describe(&r);
    begin(&r, env);
    for (int s = 0; s < STEPS; s++) step(&r, s);
    check(&r);
    end(&r);
}

static bool may_overflow(const struct arrangement *a, int loss, int part) {
    return a->loss_models[loss] >> part / 2 & 1;
}

/* Every place that an infinity can come to, under every way of zeroing gradients. */
static void run_injections(struct run like, cairn_env *env) {
    const int parts = 2 * like.of->models;
    int turn = 0;
    for (int i = 0; i < like.of->losses * (STEPS - 1) * parts; i++) {
        const int part = i % parts, step = i / parts % (STEPS - 1), loss = i / parts / (STEPS - 1);
        if (!may_overflow(like.of, loss, part)) continue;
        like.bad[step][loss] = part;
        for (like.zeroing = 0; like.zeroing < ZEROINGS; like.zeroing++) {
            if (check_is_short() && like.zeroing != (i + i / parts) % ZEROINGS) continue;
            like.momentum = turn++ / 2 % 2 ? 0.5 : 0;
            run(env, like);
        }
        like.bad[step][loss] = GOOD;
    }
}

/* Several, as chance has it. */
static void run_chances(struct run like, cairn_env *env) {
    for (uint64_t seed = 0; seed < (check_is_short() ? 2 * ZEROINGS : 40); seed++) {
        for (int i = 0; i < STEPS * LOSSES; i++) {
            const uint32_t chance = cairn__philox(seed, (uint64_t)i, 0).word[0];
            const int loss = i % LOSSES, part = (int)(chance / 3 % PARTS);
            const bool is_bad = loss < like.of->losses && chance % 3 == 0 && may_overflow(like.of, loss, part);
            like.bad[i / LOSSES][loss] = is_bad ? part : GOOD;
        }
        like.zeroing = (int)(seed % ZEROINGS);
        like.momentum = seed / ZEROINGS % 2 ? 0.5 : 0;
        run(env, like);
    }
}

static void run_level(cairn_env *env, const struct exact_level *level) {
    cairn_set_log(quiet, NULL);
    for (int a = 0; a < 2 * ARRANGEMENTS; a++) {
        struct run like = {.of = &arrangements[a / 2], .level = level, .scaler_each = a % 2};
        for (int i = 0; i < STEPS * LOSSES; i++) like.bad[i / LOSSES][i % LOSSES] = GOOD;
        run(env, like);
        run_injections(like, env);
        run_chances(like, env);
    }
    cairn_set_log(NULL, NULL);
}

static void steps_without_the_overflow_are_plain_sgd_at_O0(void **state) {
    run_level(*state, &exact_levels[0]);
}
static void steps_without_the_overflow_are_plain_sgd_at_O1(void **state) {
    run_level(*state, &exact_levels[1]), run_level(*state, &exact_levels[2]);
}
static void steps_without_the_overflow_are_plain_sgd_at_O2(void **state) {
    run_level(*state, &exact_levels[3]), run_level(*state, &exact_levels[4]);
}
static void steps_without_the_overflow_are_plain_sgd_at_O3(void **state) {
    run_level(*state, &exact_levels[5]), run_level(*state, &exact_levels[6]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_without_the_overflow_are_plain_sgd_at_O0),
        cmocka_unit_test(steps_without_the_overflow_are_plain_sgd_at_O1),
        cmocka_unit_test(steps_without_the_overflow_are_plain_sgd_at_O2),
        cmocka_unit_test(steps_without_the_overflow_are_plain_sgd_at_O3),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
