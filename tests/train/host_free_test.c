/* host_free_test DEVICE [required]
 *
 * Steps that the host does not wait for: overflows are found, skipped and told without a call that waits, and a recorded
 * step does what the step does, bit by bit, at every level. Calls that wait are counted by tests/device/sync_shim.c in
 * front of libcudart, or by the stand-in. Ends with 77 where there is no such device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plant.h"
#include "trainer.h"

enum { WARM_UP = 5, STEADY = 20, REPLAYED = 12 };

static const char *device_name = "cpu";
static char log_text[8192];

#define OK(call)                                                                                  \
    do {                                                                                          \
        if ((call) != CAIRN_OK) fail_msg("line %d: %s: %s", __LINE__, #call, cairn_last_error()); \
    } while (0)

static void keep_log(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    if (level > CAIRN_LOG_NOTICE) return;
    const size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof(log_text) - used, "%s\n", message);
}

static unsigned long long waits(void) {
    void *found = dlsym(RTLD_DEFAULT, "sync_waits");
    void *standin = found ? NULL : dlopen("libcairn_standin.so", RTLD_NOW | RTLD_NOLOAD);
    unsigned long long (*count)(void) = NULL;
    if (standin) found = dlsym(standin, "standin_waits");
    if (!found) return 0;
    memcpy(&count, &found, sizeof(found));
    return count();
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

/* ---- nobody waits ---- */

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
static void overflow_is_skipped_and_told_without_waiting(void **state) {
    (void)state;
    for (size_t l = 0; l < LEVELS; l++) {
        struct trainer t = create(l, false);
        struct plant plant;
        plant_install(&plant, cairn_module_params(t.model));
        for (int i = 0; i < WARM_UP; i++) OK(trainer_step(&t));
        OK(cairn_env_synchronize(t.env));
        const double scale = amp_loss_scale(t.amp);
        const bool skips = t.model && cairn_module_params(t.model)->skip_nonfinite;
        const unsigned long long before = waits();
        plant.target = 0, plant.value = HUGE_VALF;
        OK(trainer_step(&t));
        plant.target = -1;
        assert_int_equal(waits(), before);
        OK(cairn_env_synchronize(t.env));
        assert_int_equal(cairn_optimizer_skipped(t.optimizer), skips);
        assert_int_equal(cairn_optimizer_steps(t.optimizer), WARM_UP + !skips);
        assert_true(amp_loss_scale(t.amp) == (scale > 1 ? scale / 2 : scale));
        plant_remove(&plant);
        trainer_destroy(&t);
    }
}

static void overflow_is_told_one_step_late_at_most(void **state) {
    (void)state;
    struct trainer t = create(3, false);
    struct plant plant;
    plant_install(&plant, cairn_module_params(t.model));
    OK(trainer_step(&t));
    log_text[0] = '\0';
    plant.target = 0, plant.value = HUGE_VALF;
    OK(trainer_step(&t));
    plant.target = -1;
    OK(cairn__device_synchronize(t.env->device)); /* the GPU has done it; nobody has looked */
    OK(trainer_step(&t));
    if (!strstr(log_text, "Skipping step, loss scaler 0 reducing loss scale to 32768: non-finite gradient in weight"))
        fail_msg("the log says: %s", log_text);
    plant_remove(&plant);
    trainer_destroy(&t);
}

/* ---- recorded steps ---- */

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
    assert_true(amp_loss_scale(run.amp) == amp_loss_scale(replayed.amp));
    if (cairn_module_params(run.model)->skip_nonfinite) assert_same_weights(&run, &replayed, levels[level].name);
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

static cairn_status step_that_makes_a_tensor(void *user) {
    struct trainer *t = user;
    cairn_tensor *extra = cairn_randn(t->env, CAIRN_F32, 0, NULL);
    cairn_tensor_destroy(&extra);
    return trainer_step(user);
}

/* Whatever the step makes of the status: the replay that would record says what is wrong, later ones run the step. */
static void what_cannot_be_recorded_is_told_by_the_replay(void **state) {
    (void)state;
    static const struct {
        cairn_graph_step step;
        const char *sentence;
    } cases[] = {{step_that_sets_its_rate, "the learning rate would stand still; set it between replays"},
                 {step_that_reads_its_loss, "read it between replays"},
                 {step_without_its_end, "everything from a scaled loss to its cairn_step"},
                 {step_that_makes_a_tensor, "make tensors, modules and optimizers before it"}};
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

static void memory_of_the_host_is_no_memory_of_a_gpu(void **state) {
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
        assert_non_null(strstr(cairn_last_error(), "parameter 'wte': data is memory of the host"));
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

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steady_steps_wait_for_nothing),
        cmocka_unit_test(overflow_is_skipped_and_told_without_waiting),
        cmocka_unit_test(overflow_is_told_one_step_late_at_most),
        cmocka_unit_test(replayed_steps_equal_steps_that_are_run),
        cmocka_unit_test(replays_wait_for_nothing),
        cmocka_unit_test(what_cannot_be_recorded_is_told_by_the_replay),
        cmocka_unit_test(memory_of_the_host_is_no_memory_of_a_gpu),
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
