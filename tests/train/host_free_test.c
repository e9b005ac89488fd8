/* host_free_test DEVICE [required]
 *
 * Steps without host synchronisation: overflows are detected, skipped and reported without a call that waits, and a
 * captured step gives the same bits as the step itself, at every level. tests/device/sync_shim.c in front of libcudart,
 * or the stand-in, counts the calls that wait. Exits with 77 if the device does not exist. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "context.h"
#include "plant.h"
#include "state_in_memory.h"
#include "trainer.h"
#include "waits.h"

enum { WARM_UP = 5, STEADY = 20, REPLAYED = 12 };

static const char *device_name = "cpu";
static char log_text[8192];

static void keep_log(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    if (level > CAIRN_LOG_NOTICE) return;
    const size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof(log_text) - used, "%s\n", message);
}

/* ---- trainings ---- */

static const struct {
    const char *name;
    amp_opt_level level;
    cairn_dtype half;
} levels[] = {
    {"O0", AMP_O0, CAIRN_F16},       {"O1 f16", AMP_O1, CAIRN_F16},   {"O1 bf16", AMP_O1, CAIRN_BF16},
    {"O2 f16", AMP_O2, CAIRN_F16},   {"O2 bf16", AMP_O2, CAIRN_BF16}, {"O3 f16", AMP_O3, CAIRN_F16},
    {"O3 bf16", AMP_O3, CAIRN_BF16},
};
enum { LEVELS = sizeof(levels) / sizeof(levels[0]) };

static struct trainer create(size_t level, bool mlp) {
    const struct amp_options *amp =
        amp_options(.opt_level = levels[level].level, .half_type = levels[level].half, .verbosity = -1);
    struct trainer t = {.env = NULL};
    if (mlp) OK(trainer_create_mlp(&t, device_name, 3, 32, 16, amp));
    else OK(trainer_create_quick_start(&t, device_name, amp));
    return t;
}

static void assert_same_weights(const struct trainer *a, const struct trainer *b, const char *what) {
    const struct cairn_param_set *p = cairn_module_params(a->model), *q = cairn_module_params(b->model);
    for (size_t i = 0; i < p->count; i++) {
        const struct cairn__param *x = p->params[i], *y = q->params[i];
        const size_t nbytes = x->n * (x->master ? sizeof(float) : cairn_dtype_nbytes(x->dtype));
        void *first = malloc(nbytes), *second = malloc(nbytes);
        OK(cairn__device_download(a->env->device, first, x->master ? x->master : x->data, nbytes));
        OK(cairn__device_download(b->env->device, second, y->master ? y->master : y->data, nbytes));
        if (memcmp(first, second, nbytes) != 0) fail_msg("%s: %s differs", what, x->name);
        free(first), free(second);
    }
}

/* ---- steps without a wait ---- */

static void steady_steps_wait_for_nothing(void **state) {
    (void)state;
    for (size_t l = 0; l < LEVELS; l++) {
        struct trainer t = create(l, l % 2);
        for (int i = 0; i < WARM_UP; i++) OK(trainer_step(&t));
        const unsigned long long before = waits();
        for (int i = 0; i < STEADY; i++) OK(trainer_step(&t));
        if (waits() != before) fail_msg("%s: %llu calls that wait", levels[l].name, waits() - before);
        OK(cairn_env_synchronize(t.env));
        assert_int_equal(cairn_optimizer_steps(t.optimizer), WARM_UP + STEADY);
        trainer_destroy(&t);
    }
}

/* The scale halves where it is dynamic; bf16 and O0 have none that moves. */
static void overflow_is_skipped_and_reported_without_waiting(void **state) {
    (void)state;
    for (size_t l = 0; l < LEVELS; l++) {
        struct trainer t = create(l, false);
        struct plant plant;
        plant_install(&plant, cairn_module_params(t.model));
        for (int i = 0; i < WARM_UP; i++) OK(trainer_step(&t));
        OK(cairn_env_synchronize(t.env));
        const double scale = amp_next_scale(t.amp);
        const bool skips = t.amp->policy.skip_nonfinite;
        const unsigned long long before = waits();
        plant.target = 0, plant.value = HUGE_VALF;
        OK(trainer_step(&t));
        plant.target = -1;
        assert_int_equal(waits(), before);
        OK(cairn_env_synchronize(t.env));
        assert_int_equal(cairn_optimizer_skipped(t.optimizer), skips);
        assert_int_equal(cairn_optimizer_steps(t.optimizer), WARM_UP + !skips);
        assert_true(amp_next_scale(t.amp) == (scale > 1 ? scale / 2 : scale));
        plant_remove(&plant);
        trainer_destroy(&t);
    }
}

static void overflow_is_reported_at_most_one_step_late(void **state) {
    (void)state;
    struct trainer t = create(3, false);
    struct plant plant;
    plant_install(&plant, cairn_module_params(t.model));
    OK(trainer_step(&t));
    log_text[0] = '\0';
    plant.target = 0, plant.value = HUGE_VALF;
    OK(trainer_step(&t));
    plant.target = -1;
    OK(cairn__device_synchronize(t.env->device)); /* the GPU has done it; no report was read */
    OK(trainer_step(&t));
    if (!strstr(log_text, "Skipping step, loss scaler 0 reducing loss scale to 32768: non-finite gradient in weight"))
        fail_msg("the log says: %s", log_text);
    plant_remove(&plant);
    trainer_destroy(&t);
}

/* ---- recorded steps ---- */

/* What a caller asks for is brought from where the device keeps it. */
static void norms_and_reports_are_read_from_the_device(void **state) {
    (void)state;
    for (size_t l = 0; l < LEVELS; l++) {
        struct trainer t = create(l, false);
        struct amp_gradient_report told[2];
        double norm = 0, clipped = 0;
        cairn_zero_grad(t.optimizer);
        OK(amp_backward(t.amp, cairn_mse_loss(cairn_module_forward(t.model, t.x), t.y), t.optimizer));
        OK(amp_gradient_reports(t.amp, t.optimizer, told, 2));
        for (int i = 0; i < 2; i++) {
            assert_true(told[i].n > 0 && told[i].infs + told[i].nans == 0 && told[i].zeros < told[i].n);
            assert_true(told[i].scale == amp_next_scale(t.amp));
        }
        OK(cairn_clip_grad_norm(t.optimizer, 0.25, &norm));
        assert_true(norm > 0.25 && norm < 100);
        OK(cairn_clip_grad_norm(t.optimizer, 100, &clipped));
        assert_true(fabs(clipped - 0.25) < 1e-5);
        OK(cairn_step(t.optimizer));
        trainer_destroy(&t);
    }
}

/* What happens between two steps: a learning rate that changes, an input that overflows, one that is new. */
static void change(struct trainer *t, int step) {
    static float values[QUICK_START_BATCH * QUICK_START_IN];
    const size_t n = cairn_tensor_numel(t->x);
    if (step == 5) OK(cairn_optimizer_set_lr(t->optimizer, 3e-3));
    if (step < 6 || step > 8) return;
    for (size_t i = 0; i < n; i++) values[i] = sinf((float)(i * (size_t)step));
    if (step == 7) values[0] = HUGE_VALF;
    OK(cairn_tensor_write(t->x, values, n));
}

static void assert_same_loss(const struct trainer *a, const struct trainer *b, const char *what, int step) {
    const float x = cairn_tensor_item(a->loss), y = cairn_tensor_item(b->loss);
    if (memcmp(&x, &y, sizeof(x)) != 0 && !(isnan(x) && isnan(y))) {
        fail_msg("%s, step %d: the loss is %a where it is replayed, and %a where it is run", what, step, y, x);
    }
}

static void check_replays(size_t level, bool mlp) {
    struct trainer run = create(level, mlp), replayed = create(level, mlp);
    cairn_graph *graph = NULL;
    OK(cairn_graph_capture(replayed.env, trainer_step, &replayed, &graph));
    for (int step = 0; step < REPLAYED; step++) {
        change(&run, step), change(&replayed, step);
        OK(trainer_step(&run));
        OK(cairn_graph_replay(graph));
        assert_same_loss(&run, &replayed, levels[level].name, step);
    }
    assert_int_equal(cairn_graph_is_recorded(graph), run.env->device->ops->capture_begin != NULL);
    OK(cairn_env_synchronize(run.env));
    OK(cairn_env_synchronize(replayed.env));
    assert_int_equal(cairn_optimizer_skipped(run.optimizer), cairn_optimizer_skipped(replayed.optimizer));
    assert_int_equal(cairn_optimizer_steps(run.optimizer), cairn_optimizer_steps(replayed.optimizer));
    assert_true(amp_next_scale(run.amp) == amp_next_scale(replayed.amp));
    if (run.amp->policy.skip_nonfinite) assert_same_weights(&run, &replayed, levels[level].name);
    cairn_graph_destroy(&graph);
    trainer_destroy(&run), trainer_destroy(&replayed);
}

static void replayed_steps_equal_steps_that_are_run(void **state) {
    (void)state;
    for (size_t l = 0; l < LEVELS; l++) {
        check_replays(l, false);
        check_replays(l, true);
    }
}

/* Two losses a step, and clipping. */
static cairn_status clipped_step(void *user) {
    struct trainer *t = user;
    cairn_status st = CAIRN_OK;
    cairn_zero_grad(t->optimizer);
    for (int micro_batch = 0; micro_batch < 2; micro_batch++) {
        t->loss = cairn_mse_loss(cairn_module_forward(t->model, t->x), t->y);
        TRY(amp_backward(t->amp, t->loss, t->optimizer));
    }
    TRY(cairn_clip_grad_norm(t->optimizer, 0.25, NULL));
    TRY(cairn_step(t->optimizer));
out:
    return st;
}

enum { MICRO_BATCHES = 3 };

static cairn_status accumulate(struct trainer *t, bool releases) {
    cairn_status st = CAIRN_OK;
    cairn_zero_grad(t->optimizer);
    for (int m = 0; m < MICRO_BATCHES; m++) {
        if (m > 0 && releases) TRY(cairn_release_results(t->env));
        t->loss = cairn_mul_scalar(cairn_mse_loss(cairn_module_forward(t->model, t->x), t->y), 1.0 / MICRO_BATCHES);
        TRY(amp_backward(t->amp, t->loss, t->optimizer));
    }
    TRY(cairn_step(t->optimizer));
out:
    return st;
}

static cairn_status release_between(void *user) {
    return accumulate(user, true);
}

static cairn_status release_all(void *user) {
    struct trainer *t = user;
    const cairn_status st = accumulate(t, true);
    return st == CAIRN_OK ? cairn_release_results(t->env) : st;
}

/* The graph's results are its own: they stay where the program ends those that it has beside the graph. */
static void check_released_replays(size_t level) {
    struct trainer run = create(level, true), replayed = create(level, true);
    cairn_graph *graph = NULL;
    OK(cairn_graph_capture(replayed.env, release_between, &replayed, &graph));
    for (int step = 0; step < REPLAYED; step++) {
        change(&run, step), change(&replayed, step);
        OK(accumulate(&run, false));
        OK(cairn_graph_replay(graph));
        OK(cairn_release_results(replayed.env));
        assert_same_loss(&run, &replayed, levels[level].name, step);
    }
    assert_int_equal(cairn_graph_is_recorded(graph), run.env->device->ops->capture_begin != NULL);
    if (run.amp->policy.skip_nonfinite) assert_same_weights(&run, &replayed, levels[level].name);
    cairn_graph_destroy(&graph);
    OK(cairn_graph_capture(replayed.env, release_all, &replayed, &graph));
    for (int step = 0; step < 2 * CAIRN_GRAPH_WARMUP; step++) {
        OK(accumulate(&run, false));
        OK(cairn_graph_replay(graph));
        assert_true(isnan(cairn_tensor_item(replayed.loss)));
        SAYS("was released (cairn_release_results)");
    }
    if (run.amp->policy.skip_nonfinite) assert_same_weights(&run, &replayed, levels[level].name);
    cairn_graph_destroy(&graph);
    trainer_destroy(&run), trainer_destroy(&replayed);
}

static void replays_release_the_results_of_micro_batches(void **state) {
    (void)state;
    for (size_t l = 0; l < LEVELS; l++) check_released_replays(l);
}

/* The user's rule: a third less, or one and a half times as much. */
static void moves(void *ctx, struct amp_scaler_state *scaler, int found) {
    ++*(int *)ctx;
    scaler->scale *= found ? 0.625 : 1.5;
}

static void check_clipped_replays(const char *what, const struct amp_options *options) {
    struct trainer run = {.env = NULL}, replayed = {.env = NULL};
    cairn_graph *graph = NULL;
    OK(trainer_create_mlp(&run, device_name, 3, 32, 16, options));
    OK(trainer_create_mlp(&replayed, device_name, 3, 32, 16, options));
    OK(cairn_graph_capture(replayed.env, clipped_step, &replayed, &graph));
    for (int step = 0; step < REPLAYED; step++) {
        change(&run, step), change(&replayed, step);
        OK(clipped_step(&run));
        OK(cairn_graph_replay(graph));
        assert_same_loss(&run, &replayed, what, step);
        OK(cairn_env_synchronize(run.env)); /* what the host decides on has come */
        OK(cairn_env_synchronize(replayed.env));
        assert_true(amp_next_scale(run.amp) == amp_next_scale(replayed.amp));
    }
    assert_int_equal(cairn_graph_is_recorded(graph), run.env->device->ops->capture_begin != NULL);
    assert_int_equal(cairn_optimizer_skipped(run.optimizer), 1);
    assert_int_equal(cairn_optimizer_skipped(replayed.optimizer), 1);
    assert_int_equal(cairn_optimizer_steps(replayed.optimizer), REPLAYED - 1);
    assert_same_weights(&run, &replayed, what);
    cairn_graph_destroy(&graph);
    trainer_destroy(&run), trainer_destroy(&replayed);
}

static void replays_accumulate_clip_and_scale_by_every_rule(void **state) {
    (void)state;
    for (int kind = AMP_SCALER_STATIC; kind <= AMP_SCALER_USER; kind++) {
        char what[32];
        int asked = 0;
        snprintf(what, sizeof(what), "scaler of kind %d", kind);
        struct amp_scaler_options *scaler = amp_scaler_options(.kind = (amp_scaler_kind)kind, .init_scale = 1024);
        if (kind != AMP_SCALER_STATIC) scaler->growth_interval = 3;
        if (kind == AMP_SCALER_USER) scaler->update = moves, scaler->ctx = &asked;
        check_clipped_replays(what, amp_options(.opt_level = AMP_O2, .verbosity = -1, .scaler = scaler));
        assert_int_equal(asked, kind == AMP_SCALER_USER ? 2 * REPLAYED : 0);
    }
}

/* Explicit scaling, all of its calls. */
static cairn_status explicit_step(void *user) {
    struct trainer *t = user;
    amp_scaler *scaler = amp_scaler_of(t->amp, 0);
    cairn_status st = CAIRN_OK;
    cairn_zero_grad(t->optimizer);
    t->loss = cairn_mse_loss(cairn_module_forward(t->model, t->x), t->y);
    TRY(cairn_backward(amp_scaler_scale(scaler, t->loss)));
    TRY(amp_scaler_unscale(scaler, t->optimizer));
    TRY(cairn_clip_grad_norm(t->optimizer, 0.25, NULL));
    TRY(amp_scaler_step(scaler, t->optimizer, NULL));
    TRY(amp_scaler_update(scaler));
out:
    return st;
}

static void explicit_steps_wait_for_nothing_and_can_be_replayed(void **state) {
    (void)state;
    for (size_t l = 0; l < LEVELS; l++) {
        const struct amp_options *options =
            amp_options(.opt_level = levels[l].level, .half_type = levels[l].half, .verbosity = -1,
                        .loss_scale = AMP_DYNAMIC, .scaler = amp_scaler_options(.kind = AMP_SCALER_TORCH));
        struct trainer run = {.env = NULL}, replayed = {.env = NULL};
        cairn_graph *graph = NULL;
        OK(trainer_create_mlp(&run, device_name, 3, 32, 16, options));
        OK(trainer_create_mlp(&replayed, device_name, 3, 32, 16, options));
        for (int i = 0; i < 2 * WARM_UP; i++) OK(explicit_step(i % 2 ? &run : &replayed));
        OK(cairn_graph_capture(replayed.env, explicit_step, &replayed, &graph));
        for (int step = 0; step < REPLAYED; step++) {
            change(&run, step), change(&replayed, step);
            const unsigned long long before = waits();
            OK(explicit_step(&run));
            assert_int_equal(waits(), before);
            OK(cairn_graph_replay(graph));
            assert_same_loss(&run, &replayed, levels[l].name, step);
        }
        OK(cairn_env_synchronize(run.env));
        OK(cairn_env_synchronize(replayed.env));
        assert_int_equal(cairn_optimizer_skipped(run.optimizer), 1);
        assert_int_equal(cairn_optimizer_skipped(replayed.optimizer), 1);
        assert_true(amp_next_scale(run.amp) == amp_next_scale(replayed.amp));
        assert_same_weights(&run, &replayed, levels[l].name);
        cairn_graph_destroy(&graph);
        trainer_destroy(&run), trainer_destroy(&replayed);
    }
}

/* Two models, each with an optimizer and a loss of its own; the second loss goes through both, and the first model has
 * stepped by then. */
struct pair {
    cairn_env *env;
    cairn_module *first, *second;
    cairn_optimizer *optimizers[2];
    amp_context *amp;
    cairn_tensor *x, *y, *losses[2];
};

static struct pair create_pair(size_t level) {
    const struct amp_options *options = amp_options(.opt_level = levels[level].level, .half_type = levels[level].half,
                                                    .num_losses = 2, .verbosity = -1);
    struct pair p = {.env = NULL};
    OK(cairn_env_create(NULL, NULL, cairn_env_options(.device = device_name), &p.env));
    p.x = cairn_randn(p.env, CAIRN_F32, CAIRN_SHAPE(16, 32));
    p.y = cairn_randn(p.env, CAIRN_F32, CAIRN_SHAPE(16, 32));
    p.first = make_deep_mlp(p.env, 2, 32), p.second = make_deep_mlp(p.env, 2, 32);
    assert_true(p.first && p.second);
    OK(cairn_adamw_create(cairn_module_params(p.first), NULL, &p.optimizers[0]));
    OK(cairn_sgd_create(cairn_module_params(p.second), NULL, &p.optimizers[1]));
    OK(amp_initialize_all(p.env, CAIRN_MODULES(p.first, p.second), 2, p.optimizers, options, &p.amp));
    return p;
}

static void drop_pair(struct pair *p) {
    amp_destroy(&p->amp);
    for (int i = 0; i < 2; i++) cairn_optimizer_destroy(&p->optimizers[i]);
    cairn_module_destroy(&p->first), cairn_module_destroy(&p->second);
    cairn_env_destroy(&p->env);
}

static cairn_status pair_step(void *user) {
    struct pair *p = user;
    cairn_status st = CAIRN_OK;
    cairn_zero_grad(p->optimizers[0]);
    cairn_optimizer_clear_grads(p->optimizers[1]);
    p->losses[0] = cairn_mse_loss(cairn_module_forward(p->first, p->x), p->y);
    TRY(amp_backward(p->amp, p->losses[0], p->optimizers[0]));
    TRY(cairn_step(p->optimizers[0]));
    cairn_tensor *hidden = cairn_module_forward(p->second, p->x);
    p->losses[1] = cairn_mse_loss(cairn_module_forward(p->first, hidden), p->y);
    TRY(amp_backward_with(p->amp, p->losses[1],
                          amp_loss_options(.loss_id = 1, .num_optimizers = 1, .optimizers = &p->optimizers[1])));
    TRY(cairn_step(p->optimizers[1]));
out:
    return st;
}

static void assert_same_pair(const struct pair *a, const struct pair *b, const char *what, int step) {
    for (int i = 0; i < 2; i++) {
        const struct trainer x = {.loss = a->losses[i]}, y = {.loss = b->losses[i]};
        assert_same_loss(&x, &y, what, step);
    }
    OK(cairn_env_synchronize(a->env));
    OK(cairn_env_synchronize(b->env));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cairn_optimizer_skipped(a->optimizers[i]), cairn_optimizer_skipped(b->optimizers[i]));
        assert_true(amp_scaler_get_scale(amp_scaler_of(a->amp, i)) == amp_scaler_get_scale(amp_scaler_of(b->amp, i)));
    }
}

static void check_pair(size_t level) {
    struct pair run = create_pair(level), replayed = create_pair(level);
    cairn_graph *graph = NULL;
    OK(cairn_graph_capture(replayed.env, pair_step, &replayed, &graph));
    for (int step = 0; step < REPLAYED; step++) {
        struct trainer a = {.x = run.x, .optimizer = run.optimizers[1]};
        struct trainer b = {.x = replayed.x, .optimizer = replayed.optimizers[1]};
        change(&a, step), change(&b, step);
        OK(pair_step(&run));
        OK(cairn_graph_replay(graph));
        assert_same_pair(&run, &replayed, levels[level].name, step);
    }
    assert_int_equal(cairn_graph_is_recorded(graph), run.env->device->ops->capture_begin != NULL);
    assert_int_equal(cairn_optimizer_skipped(run.optimizers[1]), run.amp->policy.skip_nonfinite);
    cairn_graph_destroy(&graph);
    drop_pair(&run), drop_pair(&replayed);
}

static void replays_hold_several_losses_and_optimizers(void **state) {
    (void)state;
    for (size_t l = 1; l < LEVELS; l += 2) check_pair(l); /* f16 at O1, O2 and O3 */
}

static void replays_round_at_random_as_steps_do(void **state) {
    (void)state;
    check_clipped_replays("stochastic rounding",
                          amp_options(.opt_level = AMP_O3, .half_type = CAIRN_BF16, .skip_nonfinite = CAIRN_ON,
                                      .verbosity = -1, .stochastic_rounding = CAIRN_ON, .rounding_seed = 5));
}

static void replays_wait_for_nothing(void **state) {
    (void)state;
    struct trainer t = create(3, false);
    cairn_graph *graph = NULL;
    OK(cairn_graph_capture(t.env, trainer_step, &t, &graph));
    for (int i = 0; i < WARM_UP; i++) OK(cairn_graph_replay(graph));
    const unsigned long long before = waits();
    for (int i = 0; i < STEADY; i++) OK(cairn_graph_replay(graph));
    assert_int_equal(waits(), before);
    OK(cairn_env_synchronize(t.env));
    assert_int_equal(cairn_optimizer_steps(t.optimizer), WARM_UP + STEADY);
    cairn_graph_destroy(&graph);
    trainer_destroy(&t);
}

/* ---- recorded steps that draw random numbers ---- */

enum { DRAWN = 20 };

static struct trainer create_encoder(size_t level) {
    const struct amp_options *amp =
        amp_options(.opt_level = levels[level].level, .half_type = levels[level].half, .verbosity = -1);
    struct trainer t = {.env = NULL};
    OK(trainer_create_encoder(&t, device_name, 1, 16, 2, 2, 6, 0.25, amp)); /* three dropouts, and attention's */
    OK(cairn_optimizer_set_schedule(t.optimizer, cairn_cosine_schedule(.total_steps = DRAWN, .warmup_steps = 6)));
    return t;
}

static cairn_tensor *layers(void *ctx, cairn_tensor *const *inputs, int count) {
    (void)count;
    return cairn_module_forward(ctx, inputs[0]);
}

/* Twice the layers, each run again in backward; a dropout beside them. */
static cairn_status checkpointed_step(void *user) {
    struct trainer *t = user;
    cairn_zero_grad(t->optimizer);
    cairn_tensor *x = cairn_dropout_forward(t->x, 0.5, 1);
    for (int i = 0; i < 2; i++) x = cairn_checkpoint(layers, t->model, &x, 1);
    t->loss = cairn_mse_loss(x, t->y);
    const cairn_status st = amp_backward(t->amp, t->loss, t->optimizer);
    return st == CAIRN_OK ? cairn_step(t->optimizer) : st;
}

static cairn_status step_that_seeds(void *user) {
    struct trainer *t = user;
    cairn_manual_seed(t->env, 3);
    return trainer_step(user);
}

/* What the program draws beside its steps. */
static float drawn_beside(const struct trainer *t) {
    float y[4] = {0};
    cairn_tensor *x = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(4));
    assert_non_null(x);
    OK(cairn_tensor_read(cairn_dropout_forward(x, 0.5, 1), y, 4));
    cairn_tensor_destroy(&x);
    return y[0] + 3 * y[1] + 5 * y[2] + 7 * y[3];
}

/* Steps in turn, of which each has a graph, and what may come between: numbers that are drawn, a new seed. */
static void check_drawn_replays(size_t level, const cairn_graph_step *steps, int count) {
    struct trainer run = create_encoder(level), replayed = create_encoder(level);
    cairn_graph *graphs[2] = {NULL, NULL};
    cairn_tensor *losses[2] = {NULL, NULL};
    const char *what = levels[level].name;
    for (int g = 0; g < count; g++) OK(cairn_graph_capture(replayed.env, steps[g], &replayed, &graphs[g]));
    for (int i = 0; i < DRAWN; i++) {
        if (i == 11) cairn_manual_seed(run.env, 77), cairn_manual_seed(replayed.env, 77);
        const int g = i % count;
        replayed.loss = losses[g];
        OK(steps[g](&run));
        const cairn_status st = cairn_graph_replay(graphs[g]);
        if (st == CAIRN_ESTATE) OK(cairn_graph_replay(graphs[g])); /* that one was not taken */
        losses[g] = replayed.loss;
        assert_int_equal(run.env->next_stream, replayed.env->next_stream);
        assert_same_loss(&run, &replayed, what, i);
        if (i % 4 == 3) assert_true(drawn_beside(&run) == drawn_beside(&replayed));
    }
    assert_same_weights(&run, &replayed, what);
    for (int g = 0; g < count; g++) {
        const bool records = run.env->device->ops->capture_begin && steps[g] != step_that_seeds;
        assert_int_equal(cairn_graph_is_recorded(graphs[g]), records);
        cairn_graph_destroy(&graphs[g]);
    }
    trainer_destroy(&run), trainer_destroy(&replayed);
}

static void replays_draw_the_numbers_of_steps_that_are_run(void **state) {
    (void)state;
    static const size_t tried[] = {0, 1, 3, 6}; /* f32, f16 at O1 and O2, bf16 */
    for (int i = 0; i < 4; i++) check_drawn_replays(tried[i], (const cairn_graph_step[]){trainer_step}, 1);
    check_drawn_replays(3, (const cairn_graph_step[]){checkpointed_step}, 1);
}

static void two_graphs_in_turn_draw_what_their_steps_do(void **state) {
    (void)state;
    check_drawn_replays(0, (const cairn_graph_step[]){trainer_step, checkpointed_step}, 2);
    check_drawn_replays(1, (const cairn_graph_step[]){checkpointed_step, trainer_step}, 2);
}

static void replays_of_a_step_that_seeds_call_it(void **state) {
    (void)state;
    check_drawn_replays(0, (const cairn_graph_step[]){step_that_seeds, trainer_step}, 2);
}

static void replays_that_draw_wait_for_nothing(void **state) {
    (void)state;
    struct trainer t = create_encoder(3);
    cairn_graph *graph = NULL;
    OK(cairn_graph_capture(t.env, trainer_step, &t, &graph));
    for (int i = 0; i < WARM_UP; i++) OK(cairn_graph_replay(graph));
    const unsigned long long before = waits();
    for (int i = 0; i < STEADY; i++) OK(cairn_graph_replay(graph));
    assert_int_equal(waits(), before);
    assert_int_equal(cairn_graph_is_recorded(graph), t.env->device->ops->capture_begin != NULL);
    cairn_graph_destroy(&graph);
    trainer_destroy(&t);
}

/* ---- batch normalisation, whose buffers change in every step ---- */

static struct trainer create_normalised(size_t level) {
    const struct amp_options *amp =
        amp_options(.opt_level = levels[level].level, .half_type = levels[level].half, .verbosity = -1);
    struct trainer t = {.env = NULL};
    OK(cairn_env_create(NULL, NULL, cairn_env_options(.device = device_name), &t.env));
    t.x = cairn_randn(t.env, CAIRN_F32, CAIRN_SHAPE(8, 2, 6, 6));
    t.y = cairn_randn(t.env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    t.model =
        cairn_sequential(t.env, CAIRN_MODULES(cairn_conv2d(t.env, 2, 4, 3, NULL), cairn_batch_norm(t.env, 4, 0, 0),
                                              cairn_activation(t.env, cairn_relu), cairn_flatten_from(t.env, 1),
                                              cairn_linear(t.env, 64, 5), cairn_batch_norm(t.env, 5, 0, 0.5)));
    assert_non_null(t.model);
    OK(cairn_adamw_create(cairn_module_params(t.model), NULL, &t.optimizer));
    OK(amp_initialize(t.env, t.model, t.optimizer, amp, &t.amp));
    return t;
}

static void assert_batches_counted(const struct trainer *t, int64_t expected) {
    static const char *const names[] = {"1.num_batches_tracked", "5.num_batches_tracked"};
    for (int i = 0; i < 2; i++) {
        int64_t batches = -1;
        OK(cairn_tensor_read_as(cairn_module_get(t->model, names[i]), CAIRN_I64, &batches, 1));
        assert_int_equal(batches, expected);
    }
}

static void batches_are_counted_without_waiting(void **state) {
    (void)state;
    for (size_t l = 0; l < LEVELS; l++) {
        struct trainer t = create_normalised(l);
        for (int i = 0; i < WARM_UP; i++) OK(trainer_step(&t));
        const unsigned long long before = waits();
        for (int i = 0; i < STEADY; i++) OK(trainer_step(&t));
        if (waits() != before) fail_msg("%s: %llu calls that wait", levels[l].name, waits() - before);
        assert_batches_counted(&t, WARM_UP + STEADY);
        cairn_module_train(t.model, 0);
        assert_non_null(cairn_module_forward(t.model, t.x));
        assert_batches_counted(&t, WARM_UP + STEADY);
        trainer_destroy(&t);
    }
}

/* All that a checkpoint would hold: weights, running statistics, counts, moments, scales. */
static void assert_same_saved_state(const struct trainer *a, const struct trainer *b, const char *what) {
    struct kept_state kept[2] = {{.count = 0}};
    const struct trainer *const both[] = {a, b};
    check_as(what);
    for (int i = 0; i < 2; i++) {
        const cairn_stateful parts[] = {cairn_module_stateful(both[i]->model),
                                        cairn_optimizer_stateful(both[i]->optimizer), amp_stateful(both[i]->amp),
                                        cairn__env_stateful(both[i]->env)};
        CALM(keep_state(&kept[i], parts, sizeof(parts) / sizeof(parts[0])));
    }
    CALM(same_states(&kept[0], &kept[1]));
    drop_state(&kept[0]);
    drop_state(&kept[1]);
}

static void check_normalised_replays(size_t level) {
    struct trainer run = create_normalised(level), replayed = create_normalised(level);
    cairn_graph *graph = NULL;
    OK(cairn_graph_capture(replayed.env, trainer_step, &replayed, &graph));
    for (int step = 0; step < REPLAYED; step++) {
        change(&run, step), change(&replayed, step);
        OK(trainer_step(&run));
        OK(cairn_graph_replay(graph));
        assert_same_loss(&run, &replayed, levels[level].name, step);
        if (step % 3 == 2) assert_same_saved_state(&run, &replayed, levels[level].name);
        if (step % 3 == 2) assert_batches_counted(&replayed, step + 1);
    }
    assert_int_equal(cairn_graph_is_recorded(graph), run.env->device->ops->capture_begin != NULL);
    cairn_graph_destroy(&graph);
    trainer_destroy(&run), trainer_destroy(&replayed);
}

static void replays_count_batches_and_keep_statistics_to_the_bit(void **state) {
    (void)state;
    for (size_t l = 0; l < LEVELS; l++) check_normalised_replays(l);
}

/* ---- what cannot be recorded ---- */

static cairn_status step_that_sets_its_rate(void *user) {
    struct trainer *t = user;
    (void)cairn_optimizer_set_lr(t->optimizer, 1e-2);
    return trainer_step(user);
}

static cairn_status step_that_reads_its_loss(void *user) {
    const cairn_status st = trainer_step(user);
    (void)cairn_tensor_item(((struct trainer *)user)->loss);
    return st;
}

static cairn_status step_without_its_end(void *user) {
    struct trainer *t = user;
    cairn_zero_grad(t->optimizer);
    return amp_backward(t->amp, cairn_mse_loss(cairn_module_forward(t->model, t->x), t->y), t->optimizer);
}

static cairn_status step_that_looks_for_anomalies(void *user) {
    struct trainer *t = user;
    cairn_detect_anomaly(t->env, 1);
    const cairn_status st = trainer_step(user);
    cairn_detect_anomaly(t->env, 0);
    return st;
}

static cairn_status step_that_makes_a_tensor(void *user) {
    struct trainer *t = user;
    cairn_tensor *extra = cairn_randn(t->env, CAIRN_F32, 0, NULL);
    cairn_tensor_destroy(&extra);
    return trainer_step(user);
}

/* Whatever the step makes of the status: the replay that would record says what is wrong, later ones run the step. */
static void replay_returns_why_the_step_was_not_recorded(void **state) {
    (void)state;
    static const struct {
        cairn_graph_step step;
        const char *sentence;
    } cases[] = {{step_that_sets_its_rate, "the learning rate cannot be set in a graph; set it between replays"},
                 {step_that_reads_its_loss, "read it between replays"},
                 {step_without_its_end, "both a scaled loss and its cairn_step, or neither"},
                 {step_that_makes_a_tensor, "make tensors, modules and optimizers before it"},
                 {step_that_looks_for_anomalies, "anomaly mode looks at every value; turn it off"},
                 {step_that_seeds, "seed the random numbers between replays"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct trainer t = create(3, false);
        cairn_graph *graph = NULL;
        OK(cairn_graph_capture(t.env, cases[i].step, &t, &graph));
        for (int warm = 0; warm < CAIRN_GRAPH_WARMUP; warm++) OK(cairn_graph_replay(graph));
        if (t.env->device->ops->capture_begin) {
            assert_int_equal(cairn_graph_replay(graph), CAIRN_ESTATE);
            if (!strstr(cairn_last_error(), cases[i].sentence)) fail_msg("it says: %s", cairn_last_error());
        }
        OK(cairn_graph_replay(graph));
        assert_int_equal(cairn_graph_is_recorded(graph), 0);
        cairn_graph_destroy(&graph);
        trainer_destroy(&t);
    }
}

/* ---- the user's own memory ---- */

static void host_memory_is_refused_on_a_gpu(void **state) {
    (void)state;
    static float w[4] = {1, 2, 3, 4};
    cairn_env *env = NULL;
    cairn_param_set *set = NULL;
    cairn_param p = {.name = "wte", .data = w, .dtype = CAIRN_F32, .ndim = 1, .shape = {4}}, got;
    OK(cairn_env_create(NULL, NULL, cairn_env_options(.device = device_name), &env));
    const bool own_memory = env->device->ops->reaches != NULL;
    const cairn_status st = cairn_param_set_create(env, &p, 1, &set);
    assert_int_equal(st, own_memory ? CAIRN_EINVAL : CAIRN_OK);
    if (own_memory) {
        assert_non_null(strstr(cairn_last_error(), "parameter 'wte': data is host memory"));
        OK(cairn__device_alloc(env->device, CAIRN__HOLDS_TENSORS, sizeof(w), &p.data));
        OK(cairn_param_set_create(env, &p, 1, &set));
    }
    OK(cairn_param_set_get(set, 0, &got));
    assert_non_null(got.grad); /* of Cairn's */
    OK(cairn_grads_ready(set, 0, 1));
    cairn_param_set_destroy(&set);
    if (own_memory) cairn__device_free(env->device, p.data);
    p.data = (char *)p.data + 1;
    assert_int_equal(cairn_param_set_create(env, &p, 1, &set), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "is not aligned for f32"));
    cairn_env_destroy(&env);
}

/* Weights and gradients of a trainer with its own buffers; gradients of 1 are written at the scale that was
 * returned. */
struct own {
    cairn_env *env;
    float *w, *g;
    cairn_param_set *set;
    cairn_optimizer *sgd;
    amp_context *amp;
};

enum { OWN_N = 4, OWN_STEPS = 60 };

static struct own own_create_from(bool fused, double loss_scale, const struct amp_scaler_options *scaler) {
    const float first[OWN_N] = {16, 16, 16, 16};
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    struct own o = {.env = NULL};
    hyper.lr = 0.25;
    OK(cairn_env_create(NULL, NULL, cairn_env_options(.device = device_name), &o.env));
    OK(cairn__device_alloc(o.env->device, CAIRN__HOLDS_TENSORS, sizeof(first), (void **)&o.w));
    OK(cairn__device_alloc(o.env->device, CAIRN__HOLDS_TENSORS, sizeof(first), (void **)&o.g));
    OK(cairn__device_upload(o.env->device, o.w, first, sizeof(first)));
    const cairn_param p = {.name = "w", .data = o.w, .grad = o.g, .dtype = CAIRN_F32, .ndim = 1, .shape = {OWN_N}};
    OK(cairn_param_set_create(o.env, &p, 1, &o.set));
    if (fused) OK(cairn_sgd_create(o.set, &hyper, &o.sgd));
    OK(amp_initialize_params(o.env, o.set, o.sgd,
                             amp_options(.opt_level = AMP_O2, .loss_scale = loss_scale,
                                         .scaler = isinf(loss_scale) ? scaler : NULL, .verbosity = -1),
                             &o.amp));
    return o;
}

static struct own own_create(bool fused, double loss_scale) {
    const struct amp_scaler_options scaler = {.struct_size = sizeof(scaler),
                                              .init_scale = 256,
                                              .growth_interval = 3,
                                              .max_scale = 2048};
    return own_create_from(fused, loss_scale, &scaler);
}

static void own_upload(struct own *o, double scale, bool overflows) {
    float g[OWN_N];
    for (int i = 0; i < OWN_N; i++) g[i] = (float)scale;
    if (overflows) g[2] = 65520; /* infinite once it is rounded */
    OK(cairn__device_upload(o->env->device, o->g, g, sizeof(g)));
}

static void own_write(struct own *o, double scale, bool overflows) {
    own_upload(o, scale, overflows);
    OK(cairn_grads_ready(o->set, 0, 1));
}

static void own_end(struct own *o, float expected) {
    float w[OWN_N];
    OK(cairn__device_download(o->env->device, w, o->w, sizeof(w)));
    for (int i = 0; i < OWN_N; i++) assert_true(w[i] == expected);
    amp_destroy(&o->amp);
    cairn_optimizer_destroy(&o->sgd);
    cairn_param_set_destroy(&o->set);
    cairn__device_free(o->env->device, o->w);
    cairn__device_free(o->env->device, o->g);
    cairn_env_destroy(&o->env);
}

/* The scale changes often, and a device that is late tells of it late: gradients keep the one that the user knew, and
 * so does a micro-batch that is added to them, whatever becomes known in between. */
static void gradients_are_unscaled_by_the_scale_returned_for_them(void **state) {
    (void)state;
    struct own o = own_create(true, AMP_DYNAMIC);
    double least = HUGE_VAL, most = 0;
    int taken = 0;
    for (int s = 0; s < OWN_STEPS; s++) {
        const double scale = amp_next_scale(o.amp);
        least = fmin(least, scale), most = fmax(most, scale);
        own_write(&o, scale, s % 20 == 19);
        taken += s % 20 == 19 ? 0 : 1;
        if (s % 4 == 1) {
            OK(cairn_env_synchronize(o.env));
            assert_true(amp_next_scale(o.amp) == scale);
            own_write(&o, 2 * scale, false);
            taken++;
        }
        OK(cairn_step(o.sgd));
        if (s % 7 == 0) OK(cairn_env_synchronize(o.env));
    }
    OK(cairn_env_synchronize(o.env));
    assert_int_equal(cairn_optimizer_skipped(o.sgd), OWN_STEPS / 20);
    assert_true(least < most);
    own_end(&o, 16 - 0.25f * (float)taken);
}

/* Where ranks average, each must multiply by the same scale, whatever its device has told by then: the one that follows
 * from all steps. So there the host waits. */
static void all_ranks_get_the_same_scale_as_a_number(void **state) {
    (void)state;
    struct own o = own_create(true, AMP_DYNAMIC);
    ddp_context *net = NULL;
    double scale = 256;
    OK(ddp_create_params(o.set, cairn_env_group(o.env), NULL, &net));
    for (int s = 0, good = 0; s < OWN_STEPS; s++) {
        const bool overflows = s % 20 == 19;
        assert_true(amp_next_scale(o.amp) == scale);
        own_upload(&o, scale, overflows);
        OK(ddp_grads_ready(net, 0, 1));
        OK(ddp_wait(net));
        OK(cairn_step(o.sgd));
        good = overflows ? 0 : good + 1;
        if (overflows) scale /= 2;
        if (good > 0 && good % 3 == 0) scale = fmin(2 * scale, 2048);
    }
    ddp_destroy(&net);
    own_end(&o, 16 - 0.25f * (OWN_STEPS - OWN_STEPS / 20));
}

static void the_users_own_step_learns_whether_to_skip(void **state) {
    (void)state;
    struct own o = own_create(false, AMP_DYNAMIC);
    for (int s = 0; s < OWN_STEPS; s++) {
        cairn_param master;
        float w[OWN_N], g[OWN_N];
        int skip = 7;
        own_write(&o, amp_next_scale(o.amp), s % 20 == 19);
        OK(amp_begin_step(o.amp, &skip));
        assert_int_equal(skip, s % 20 == 19);
        OK(amp_master_params(o.amp, NULL, &master, 1));
        OK(cairn__device_download(o.env->device, w, master.data, sizeof(w)));
        OK(cairn__device_download(o.env->device, g, master.grad, sizeof(g)));
        for (int i = 0; i < OWN_N; i++) w[i] -= 0.25f * g[i];
        if (!skip) OK(cairn__device_upload(o.env->device, master.data, w, sizeof(w)));
        OK(amp_end_step(o.amp));
    }
    own_end(&o, 16 - 0.25f * (OWN_STEPS - OWN_STEPS / 20));
}

static cairn_status own_step(void *user) {
    struct own *o = user;
    if (isnan(amp_next_scale(o->amp))) return CAIRN_ESTATE;
    cairn_status st = cairn_grads_ready(o->set, 0, 1);
    return st == CAIRN_OK ? cairn_step(o->sgd) : st;
}

/* A number that is recorded stands still, as a static scale does; one that may change is refused. */
static void a_recorded_step_has_a_static_scale_or_is_not_recorded(void **state) {
    (void)state;
    for (int dynamic = 0; dynamic < 2; dynamic++) {
        struct own o = own_create(true, dynamic ? AMP_DYNAMIC : 128);
        cairn_graph *graph = NULL;
        int taken = 0;
        own_write(&o, 128, false);
        cairn_param_set_zero_grad(o.set);
        OK(cairn_graph_capture(o.env, own_step, &o, &graph));
        for (int s = 0; s < 12; s++) {
            if (dynamic) own_write(&o, amp_next_scale(o.amp), false);
            if (dynamic) cairn_param_set_zero_grad(o.set);
            if (cairn_graph_replay(graph) == CAIRN_OK) taken++;
            else assert_non_null(strstr(cairn_last_error(), "a dynamic loss scale as a number would stay the same"));
        }
        OK(cairn_env_synchronize(o.env));
        assert_true(taken == 12 || (dynamic && taken == 11));
        assert_false(dynamic && cairn_graph_is_recorded(graph));
        cairn_graph_destroy(&graph);
        own_end(&o, 16 - 0.25f * (float)taken);
    }
}

/* The user's kernels: gradients of x, by the scale that stands on the device. */
struct own_device {
    struct own own;
    ddp_context *net; /* NULL = none */
    float *x;
};

static cairn_status own_write_gradients(struct own_device *o, const float *scale) {
    struct cairn_device *d = o->own.env->device;
    const struct cairn__item item = {.n = OWN_N, .dst = o->own.g, .x = o->x};
    if (!scale) return cairn__last_status();
    d->passes->scale(d, &item, 1, CAIRN_F32, CAIRN_F32, scale, NULL);
    return CAIRN_OK;
}

static cairn_status own_backward(struct own_device *o, const float *scale) {
    cairn_status st = CAIRN_OK;
    TRY(own_write_gradients(o, scale));
    TRY(o->net ? ddp_grads_ready(o->net, 0, 1) : cairn_grads_ready(o->own.set, 0, 1));
    if (o->net) TRY(ddp_wait(o->net));
out:
    return st;
}

static cairn_status own_device_step(void *user) {
    struct own_device *o = user;
    const cairn_status st = own_backward(o, amp_next_scale_device(o->own.amp));
    return st == CAIRN_OK ? cairn_step(o->own.sgd) : st;
}

static void own_device_create(struct own_device *o, double loss_scale, bool averages) {
    *o = (struct own_device){.own = own_create(true, loss_scale)};
    OK(cairn__device_alloc(o->own.env->device, CAIRN__HOLDS_TENSORS, OWN_N * sizeof(float), (void **)&o->x));
    if (averages) OK(ddp_create_params(o->own.set, cairn_env_group(o->own.env), NULL, &o->net));
}

static void own_device_end(struct own_device *o, float expected) {
    ddp_destroy(&o->net);
    cairn__device_free(o->own.env->device, o->x);
    own_end(&o->own, expected);
}

static void own_put_x(struct own_device *o, bool overflows) {
    struct cairn_device *d = o->own.env->device;
    d->passes->store(d, o->x, (float[OWN_N]){1, 1, overflows ? 65520 : 1, 1}, OWN_N * sizeof(float));
}

static cairn_status no_step(void *user) {
    own_put_x(user, false);
    return CAIRN_OK;
}

/* Of all steps so far, as apex's rule has it, from 256 to 2048 by 3 clean steps. */
static double scale_after(int steps) {
    double scale = 256;
    for (int s = 0, good = 0; s < steps; s++) {
        good = s % 20 == 19 ? 0 : good + 1;
        if (good == 0) scale /= 2;
        if (good > 0 && good % 3 == 0) scale = fmin(2 * scale, 2048);
    }
    return scale;
}

static void check_device_scale(bool averages, bool records) {
    struct own_device o;
    cairn_graph *graph = NULL;
    unsigned long long before = 0;
    own_device_create(&o, AMP_DYNAMIC, averages);
    if (records) OK(cairn_graph_capture(o.own.env, own_device_step, &o, &graph));
    for (int s = 0; s < OWN_STEPS; s++) {
        if (s == WARM_UP) before = waits();
        own_put_x(&o, s % 20 == 19);
        OK(graph ? cairn_graph_replay(graph) : own_device_step(&o));
    }
    if (waits() != before) fail_msg("%llu calls that wait", waits() - before);
    OK(cairn_env_synchronize(o.own.env));
    assert_true(!graph || !o.own.env->device->ops->capture_begin || cairn_graph_is_recorded(graph));
    assert_int_equal(cairn_optimizer_skipped(o.own.sgd), OWN_STEPS / 20);
    assert_true(amp_next_scale(o.own.amp) == scale_after(OWN_STEPS));
    cairn_graph_destroy(&graph);
    own_device_end(&o, 16 - 0.25f * (OWN_STEPS - OWN_STEPS / 20));
}

static void steps_with_the_scale_on_the_device_wait_for_nothing_and_can_be_recorded(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) check_device_scale(i / 2 == 1, i % 2 == 1);
}

/* The user's rule: three quarters, or four times as much, which the host learns when reports come. */
static void moves_far(void *ctx, struct amp_scaler_state *scaler, int found) {
    (void)ctx;
    scaler->scale *= found ? 0.75 : 4;
}

/* Ranks read reports at different times. */
static void a_scale_of_the_programs_own_waits_where_ranks_average_and_is_not_recorded(void **state) {
    (void)state;
    const struct amp_scaler_options scaler = {.struct_size = sizeof(scaler),
                                              .kind = AMP_SCALER_USER,
                                              .init_scale = 4,
                                              .update = moves_far};
    struct own_device o = {.own = own_create_from(true, AMP_DYNAMIC, &scaler)};
    cairn_graph *graph = NULL;
    OK(cairn__device_alloc(o.own.env->device, CAIRN__HOLDS_TENSORS, OWN_N * sizeof(float), (void **)&o.x));
    OK(ddp_create_params(o.own.set, cairn_env_group(o.own.env), NULL, &o.net));
    own_put_x(&o, false);
    OK(cairn_graph_capture(o.own.env, own_device_step, &o, &graph));
    for (int s = 0, scale = 4; s < CAIRN_GRAPH_WARMUP; s++, scale *= 4) {
        float value = 0;
        OK(cairn__device_download(o.own.env->device, &value, amp_next_scale_device(o.own.amp), sizeof(value)));
        assert_true(value == (float)scale);
        OK(cairn_graph_replay(graph));
    }
    const bool records = o.own.env->device->ops->capture_begin != NULL;
    assert_int_equal(cairn_graph_replay(graph), records ? CAIRN_ESTATE : CAIRN_OK);
    if (records) SAYS("the scale of the program's own update at another step on each rank; use another kind");
    cairn_graph_destroy(&graph);
    own_device_end(&o, 16 - 0.25f * (float)(CAIRN_GRAPH_WARMUP + !records));
}

static float on_device(const struct own_device *o, const float *scale) {
    float value = 0;
    assert_non_null(scale);
    OK(cairn__device_download(o->own.env->device, &value, scale, sizeof(value)));
    return value;
}

/* From gradients that count to their step it is one scale, as a number too. */
static void the_scale_stays_on_the_device_until_the_step(void **state) {
    (void)state;
    struct own_device o;
    own_device_create(&o, AMP_DYNAMIC, false);
    for (int s = 0; s < OWN_STEPS; s++) {
        const float expected = (float)scale_after(s);
        const bool overflows = s % 20 == 19;
        if (s % 3 == 0) assert_true(on_device(&o, amp_next_scale_device(o.own.amp)) == expected); /* counts nothing */
        const float *scale = amp_next_scale_device(o.own.amp);
        own_put_x(&o, overflows);
        OK(own_backward(&o, scale));
        if (s % 4 == 1) {
            OK(cairn_env_synchronize(o.own.env));
            assert_ptr_equal(amp_next_scale_device(o.own.amp), scale);
            assert_true(amp_next_scale(o.own.amp) == (double)expected);
            OK(own_backward(&o, scale));
        }
        OK(cairn_step(o.own.sgd));
        if (s % 5 == 2) {
            OK(cairn_env_synchronize(o.own.env));
            assert_true(amp_next_scale(o.own.amp) == scale_after(s + 1));
        }
    }
    own_device_end(&o, 16 - 0.25f * (OWN_STEPS - OWN_STEPS / 20));
}

/* A number asked for between the user's kernels and the declaration, which the host learns of late; the same behind a
 * replay that is no step. */
static void reading_the_scale_on_the_host_changes_nothing(void **state) {
    (void)state;
    struct own_device o;
    cairn_graph *graph = NULL;
    own_device_create(&o, AMP_DYNAMIC, false);
    OK(cairn_graph_capture(o.own.env, no_step, &o, &graph));
    for (int s = 0; s < OWN_STEPS; s++) {
        own_put_x(&o, s % 20 == 19);
        OK(own_write_gradients(&o, amp_next_scale_device(o.own.amp)));
        if (s % 4 == 3) OK(cairn_graph_replay(graph));
        for (int i = 0; i < 2; i++) assert_true(amp_next_scale(o.own.amp) == scale_after(s));
        OK(cairn_grads_ready(o.own.set, 0, 1));
        OK(cairn_step(o.own.sgd));
    }
    cairn_graph_destroy(&graph);
    own_device_end(&o, 16 - 0.25f * (OWN_STEPS - OWN_STEPS / 20));
}

/* What a call has shown beside the replays is no longer the scale once they have moved it. */
static void host_scale_read_after_replays_includes_their_steps(void **state) {
    (void)state;
    struct own_device o;
    cairn_graph *graph = NULL;
    own_device_create(&o, AMP_DYNAMIC, false);
    OK(cairn_graph_capture(o.own.env, own_device_step, &o, &graph));
    for (int s = 0; s < OWN_STEPS; s++) {
        own_put_x(&o, s % 20 == 19);
        assert_non_null(amp_next_scale_device(o.own.amp));
        OK(cairn_graph_replay(graph));
        OK(cairn_env_synchronize(o.own.env));
        assert_true(amp_next_scale(o.own.amp) == scale_after(s + 1));
    }
    cairn_graph_destroy(&graph);
    own_device_end(&o, 16 - 0.25f * (OWN_STEPS - OWN_STEPS / 20));
}

/* A number that was asked for first is what stands on the device, too. */
static void a_scale_that_never_changes_is_on_the_device_too(void **state) {
    (void)state;
    for (int scaled = 0; scaled < 2; scaled++) {
        struct own_device o;
        own_device_create(&o, scaled ? 128 : 1, false);
        for (int s = 0; s < 3; s++) {
            const float *scale = amp_next_scale_device(o.own.amp);
            assert_true(on_device(&o, scale) == (scaled ? 128 : 1));
            own_put_x(&o, false);
            if (s > 0) own_write(&o.own, amp_next_scale(o.own.amp), false); /* a micro-batch before */
            OK(own_backward(&o, amp_next_scale_device(o.own.amp)));
            OK(cairn_step(o.own.sgd));
        }
        own_device_end(&o, 16 - 0.25f * 3);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steady_steps_wait_for_nothing),
        cmocka_unit_test(overflow_is_skipped_and_reported_without_waiting),
        cmocka_unit_test(overflow_is_reported_at_most_one_step_late),
        cmocka_unit_test(norms_and_reports_are_read_from_the_device),
        cmocka_unit_test(replayed_steps_equal_steps_that_are_run),
        cmocka_unit_test(explicit_steps_wait_for_nothing_and_can_be_replayed),
        cmocka_unit_test(replays_release_the_results_of_micro_batches),
        cmocka_unit_test(replays_accumulate_clip_and_scale_by_every_rule),
        cmocka_unit_test(replays_hold_several_losses_and_optimizers),
        cmocka_unit_test(replays_round_at_random_as_steps_do),
        cmocka_unit_test(replays_wait_for_nothing),
        cmocka_unit_test(replays_draw_the_numbers_of_steps_that_are_run),
        cmocka_unit_test(two_graphs_in_turn_draw_what_their_steps_do),
        cmocka_unit_test(replays_of_a_step_that_seeds_call_it),
        cmocka_unit_test(replays_that_draw_wait_for_nothing),
        cmocka_unit_test(batches_are_counted_without_waiting),
        cmocka_unit_test(replays_count_batches_and_keep_statistics_to_the_bit),
        cmocka_unit_test(replay_returns_why_the_step_was_not_recorded),
        cmocka_unit_test(host_memory_is_refused_on_a_gpu),
        cmocka_unit_test(gradients_are_unscaled_by_the_scale_returned_for_them),
        cmocka_unit_test(all_ranks_get_the_same_scale_as_a_number),
        cmocka_unit_test(the_users_own_step_learns_whether_to_skip),
        cmocka_unit_test(a_recorded_step_has_a_static_scale_or_is_not_recorded),
        cmocka_unit_test(steps_with_the_scale_on_the_device_wait_for_nothing_and_can_be_recorded),
        cmocka_unit_test(a_scale_of_the_programs_own_waits_where_ranks_average_and_is_not_recorded),
        cmocka_unit_test(the_scale_stays_on_the_device_until_the_step),
        cmocka_unit_test(reading_the_scale_on_the_host_changes_nothing),
        cmocka_unit_test(host_scale_read_after_replays_includes_their_steps),
        cmocka_unit_test(a_scale_that_never_changes_is_on_the_device_too),
    };
    cairn_env *probe = NULL;
    if (argc > 1) device_name = argv[1];
    if (cairn_env_create(NULL, NULL, cairn_env_options(.device = device_name), &probe) != CAIRN_OK) {
        printf("there is no %s here: %s\n", device_name, cairn_last_error());
        return argc > 2 && strcmp(argv[2], "required") == 0 ? 1 : 77;
    }
    printf("%s: %llu calls have waited so far\n", cairn_device_describe(cairn_env_device(probe)), waits());
    cairn_env_destroy(&probe);
    if (waits() == 0 && strcmp(device_name, "cpu") != 0) {
        puts("nobody counts the calls that wait: is sync_shim in LD_PRELOAD?");
        return 1;
    }
    cairn_set_log(keep_log, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
