/* Parameters added to an optimizer under amp later, as in apex's test_add_param_group.py; and amp contexts that are
 * destroyed and created again in one process. */
#include "probe.h"
#include "logged_env.h"

enum { STEPS = 6, LATE = 2 };

/* ---- parameters that come late ---- */

struct late {
    cairn_module *models[2];
    cairn_tensor *x[2], *c;
    cairn_optimizer *sgd;
    amp_context *amp;
    struct plain plain;
    struct plant plant; /* of the second model */
};

static const struct cairn_sgd_options momentum_of_half = {.struct_size = sizeof(struct cairn_sgd_options),
                                                          .lr = 0.125,
                                                          .momentum = 0.5};

/* At first without the first model's bias and the second model. */
static void begin_late(struct late *t, cairn_env *env, const struct exact_level *level) {
    static const size_t weight_only[] = {0};
    memset(t, 0, sizeof(*t));
    for (int m = 0; m < 2; m++) {
        t->models[m] = exact_model(env, m);
        t->x[m] = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(BATCH, IN));
    }
    t->c = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(OUT));
    exact_write_outputs(t->c, 0);
    OK(cairn_sgd_create_over(cairn_module_params(t->models[0]), weight_only, 1, &momentum_of_half, &t->sgd));
    OK(amp_initialize_all(env, 2, t->models, 1, &t->sgd,
                          amp_options(.opt_level = level->level, .half_type = level->half, .verbosity = -1,
                                      .loss_scale = AMP_DYNAMIC, .scaler = amp_scaler_options(.init_scale = 64)),
                          &t->amp));
    plant_install(&t->plant, cairn_module_params(t->models[1]));
    plain_begin(&t->plain, level->weights, 0.5);
}

static void end_late(struct late *t) {
    plant_remove(&t->plant);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->sgd);
    for (int m = 0; m < 2; m++) {
        cairn_module_destroy(&t->models[m]);
        cairn_tensor_destroy(&t->x[m]);
    }
    cairn_tensor_destroy(&t->c);
}

static void add_the_rest(struct late *t) {
    static const size_t bias_only[] = {1};
    OK(cairn_sgd_add_group(t->sgd, cairn_module_params(t->models[0]), bias_only, 1, &momentum_of_half));
    struct cairn_sgd_options slower = momentum_of_half;
    slower.lr = 0.0625;
    OK(cairn_sgd_add_group(t->sgd, cairn_module_params(t->models[1]), NULL, 0, &slower));
    t->plain.lr[2] = t->plain.lr[3] = 0.0625;
}

static cairn_tensor *loss_of_both(struct late *t, int step) {
    cairn_tensor *terms[2];
    for (int m = 0; m < 2; m++) {
        exact_write_input(t->x[m], 0, m, step);
        terms[m] = exact_loss(t->models[m], t->x[m], t->c);
    }
    return cairn_add(terms[0], terms[1]);
}

static void step_late(struct late *t, int step, bool overflows) {
    cairn_zero_grad(t->sgd);
    for (int m = 0; m < 2; m++) cairn_module_zero_grad(t->models[m]);
    memset(t->plain.grad, 0, sizeof(t->plain.grad));
    t->plant.target = overflows ? 1 : -1;
    t->plant.value = INFINITY;
    OK(amp_backward(t->amp, loss_of_both(t, step), t->sgd));
    OK(cairn_step(t->sgd));
    plain_add(&t->plain, 0, 3, step);
    if (!overflows) plain_step(&t->plain, step < LATE ? 0x1 : 0xf);
    assert_int_equal(cairn_optimizer_step_skipped(t->sgd), overflows);
}

static void parameters_added_under_amp_follow_plain_sgd(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        for (int bad = LATE - 1; bad < STEPS - 1; bad++) { /* LATE - 1: none is */
            struct late t;
            begin_late(&t, *state, &exact_levels[l]);
            for (int s = 0; s < STEPS; s++) {
                if (s == LATE) add_the_rest(&t);
                step_late(&t, s, s == bad && s >= LATE);
                if (s != bad || s < LATE) continue;
                struct amp_overflow told;
                size_t found = 0;
                OK(amp_last_overflow(t.amp, t.sgd, &told, 1, &found));
                assert_int_equal(found, 1);
                assert_string_equal(told.name, "bias");
            }
            for (int part = 0; part < 4; part++)
                assert_exact_part(exact_levels[l].name, cairn_module_params(t.models[part / 2]), part % 2,
                                  t.plain.w[part]);
            end_late(&t);
        }
    }
}

static void parameters_that_amp_has_not_prepared_are_refused(void **state) {
    struct late t;
    cairn_module *stranger = exact_model(*state, 2);
    begin_late(&t, *state, &exact_levels[3]);
    assert_int_equal(cairn_sgd_add_group(t.sgd, cairn_module_params(stranger), NULL, 0, &momentum_of_half),
                     CAIRN_ESTATE);
    assert_non_null(strstr(cairn_last_error(), "give their model to the same amp_initialize"));
    assert_int_equal(cairn_optimizer_num_groups(t.sgd), 1);
    add_the_rest(&t);
    step_late(&t, LATE, false);
    end_late(&t);
    cairn_module_destroy(&stranger);
}

/* ---- again in one process ---- */

static const float gradient[PROBE] = {1, -2, 3, 4, -1, 2};

static void train_a_step(struct probe *p) {
    cairn_zero_grad(p->sgd);
    probe_backward(p, gradient, NULL);
    OK(cairn_step(p->sgd));
}

static const struct amp_options *scale_64(void) {
    static struct amp_options options;
    options = *amp_options(.loss_scale = 64);
    return &options;
}

static void contexts_are_made_again_20_times_without_a_leak(void **state) {
    uint64_t alive = 0;
    for (int again = 0; again < 20; again++) {
        for (int l = 0; l < EXACT_LEVELS; l++) {
            struct probe p;
            probe_begin(&p, *state, &exact_levels[l], scale_64());
            train_a_step(&p);
            assert_probe_stepped_by(&p, gradient);
            probe_end(&p);
        }
        if (again == 1) alive = cairn__alloc_counters().alive;
        if (again > 1) assert_int_equal(cairn__alloc_counters().alive, alive);
    }
}

static void initialise(struct probe *p, cairn_env *env, amp_opt_level level, cairn_dtype half) {
    OK(amp_initialize(env, p->model, p->sgd,
                      amp_options(.opt_level = level, .half_type = half, .loss_scale = 64, .verbosity = -1), &p->amp));
}

/* Of one model and optimizer, whose momentum goes on: f32 levels in any order, then a half one, which is the last. */
static void model_goes_from_level_to_level_while_it_is_f32(void **state) {
    static const amp_opt_level order[] = {AMP_O1, AMP_O0, AMP_O1, AMP_O1, AMP_O2};
    struct probe p, alone;
    const struct cairn_sgd_options hyper = momentum_of_half;
    probe_begin_sgd(&alone, *state, &exact_levels[0], hyper, scale_64());
    for (int i = 0; i < 5; i++) train_a_step(&alone);
    probe_begin_sgd(&p, *state, &exact_levels[0], hyper, scale_64());
    for (int i = 0; i < 5; i++) {
        amp_destroy(&p.amp);
        initialise(&p, *state, order[i], i % 2 ? CAIRN_BF16 : CAIRN_F16);
        train_a_step(&p);
    }
    for (size_t k = 0; k < 2; k++) {
        const struct cairn__param *param = cairn_module_params(p.model)->params[k];
        assert_memory_equal(cairn_param_master(cairn_module_params(p.model), k),
                            cairn_param_master(cairn_module_params(alone.model), k), param->n * sizeof(float));
    }
    amp_destroy(&p.amp);
    assert_int_equal(amp_initialize(*state, p.model, p.sgd, amp_options(.opt_level = AMP_O1), &p.amp), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "give amp an f32 model"));
    probe_end(&p);
    probe_end(&alone);
}

static void new_models_go_from_O1_to_O2_to_O1(void **state) {
    static const int order[] = {1, 3, 1, 4, 2, 5, 1};
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        struct probe p;
        probe_begin(&p, *state, &exact_levels[order[i]], scale_64());
        for (int s = 0; s < 2; s++) train_a_step(&p);
        assert_int_equal(cairn_optimizer_steps(p.sgd), 2);
        amp_destroy(&p.amp);
        assert_int_equal(amp_autocast_type(*state), 0);
        probe_end(&p);
    }
}

/* ---- steady state ---- */

struct pair {
    cairn_env *env;
    cairn_module *models[2];
    cairn_optimizer *sgd[2];
    cairn_tensor *x, *c;
    amp_context *amp;
    struct plant plant;
};

static void step_of_pair(struct pair *t, bool overflows) {
    cairn_param seen[2];
    cairn_zero_grad(t->sgd[0]);
    cairn_optimizer_clear_grads(t->sgd[1]);
    for (int b = 0; b < 4; b++) { /* two micro-batches of two losses, which have one model in common */
        cairn_tensor *loss = exact_loss(t->models[0], t->x, t->c);
        if (b % 2) loss = cairn_add(loss, exact_loss(t->models[1], t->x, t->c));
        t->plant.target = overflows && b == 1 ? 0 : -1;
        OK(amp_backward_with(t->amp, loss,
                             amp_loss_options(.loss_id = b % 2, .num_optimizers = b % 2 ? 2 : 1,
                                              .optimizers = t->sgd)));
    }
    OK(cairn_clip_grad_norm(t->sgd[0], 2, NULL));
    OK(cairn_clip_grad_value(t->sgd[1], 1));
    OK(amp_master_params(t->amp, t->sgd[1], seen, 2));
    for (int o = 0; o < 2; o++) OK(cairn_step(t->sgd[o]));
    assert_int_equal(cairn_optimizer_step_skipped(t->sgd[0]), overflows);
}

static void begin_pair(struct pair *t, cairn_env *env, const struct exact_level *level) {
    *t = (struct pair){.env = env};
    for (int m = 0; m < 2; m++) {
        t->models[m] = exact_model(env, m);
        OK(cairn_sgd_create(cairn_module_params(t->models[m]), &momentum_of_half, &t->sgd[m]));
    }
    t->x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(BATCH, IN));
    t->c = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(OUT));
    exact_write_input(t->x, 0, 0, 0);
    exact_write_outputs(t->c, 0);
    OK(amp_initialize_all(env, 2, t->models, 2, t->sgd,
                          amp_options(.opt_level = level->level, .half_type = level->half, .loss_scale = AMP_DYNAMIC,
                                      .num_losses = 2, .verbosity = -1, .scaler = amp_scaler_options(.init_scale = 64)),
                          &t->amp));
    plant_install(&t->plant, cairn_module_params(t->models[0]));
    t->plant.value = INFINITY;
}

static void end_pair(struct pair *t) {
    plant_remove(&t->plant);
    amp_destroy(&t->amp);
    for (int m = 0; m < 2; m++) cairn_optimizer_destroy(&t->sgd[m]), cairn_module_destroy(&t->models[m]);
    cairn_tensor_destroy(&t->x), cairn_tensor_destroy(&t->c);
}

static void steady_steps_of_two_of_everything_allocate_nothing(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct pair t;
        begin_pair(&t, *state, &exact_levels[l]);
        for (int s = 0; s < 6; s++) step_of_pair(&t, s == 4);
        const uint64_t before = cairn__alloc_counters().allocations;
        for (int s = 0; s < 8; s++) step_of_pair(&t, s == 5);
        assert_int_equal(cairn__alloc_counters().allocations, before);
        end_pair(&t);
    }
}

/* A generator's loss goes through the discriminator, whose gradients of it are not used: loss 0 is over both models and
 * given the second's optimizer alone, and overflows in the first. */
static void overflow_in_another_models_gradients_skips_only_that_models_step(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        for (int forgotten = 0; forgotten < 2; forgotten++) {
            struct pair t;
            begin_pair(&t, *state, &exact_levels[l]);
            t.plant.target = 0;
            cairn_tensor *loss = cairn_add(exact_loss(t.models[0], t.x, t.c), exact_loss(t.models[1], t.x, t.c));
            OK(amp_backward(t.amp, loss, t.sgd[1]));
            t.plant.target = -1;
            OK(cairn_step(t.sgd[1]));
            assert_int_equal(cairn_optimizer_step_skipped(t.sgd[1]), 0);
            assert_true(amp_next_scale_of(t.amp, 0) == 64);
            if (forgotten) cairn_module_zero_grad(t.models[0]);
            OK(amp_backward_with(t.amp, exact_loss(t.models[0], t.x, t.c),
                                 amp_loss_options(.loss_id = 1, .num_optimizers = 1,
                                                  .optimizers = (cairn_optimizer *[]){t.sgd[0]})));
            OK(cairn_step(t.sgd[0]));
            assert_int_equal(cairn_optimizer_step_skipped(t.sgd[0]), !forgotten);
            if (forgotten) assert_true(amp_next_scale_of(t.amp, 1) == 64);
            end_pair(&t);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_added_under_amp_follow_plain_sgd),
        cmocka_unit_test(parameters_that_amp_has_not_prepared_are_refused),
        cmocka_unit_test(contexts_are_made_again_20_times_without_a_leak),
        cmocka_unit_test(model_goes_from_level_to_level_while_it_is_f32),
        cmocka_unit_test(new_models_go_from_O1_to_O2_to_O1),
        cmocka_unit_test(steady_steps_of_two_of_everything_allocate_nothing),
        cmocka_unit_test(overflow_in_another_models_gradients_skips_only_that_models_step),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
