/* The events that a recorder sends for a training, against counts of the values themselves; on the device of
 * CAIRN_DEVICE. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"

enum { MOST = 256, N = 8, ROWS = 4 };

struct heard {
    int count;
    struct one {
        char name[64];
        int64_t step;
        double scale;
        cairn_dtype dtype;
        struct cairn_exponents counts;
    } events[MOST];
};

static void hear(void *ctx, const struct cairn_event *e) {
    struct heard *h = ctx;
    if (e->kind != CAIRN_EVENT_HISTOGRAM || strcmp(e->room, "observe") != 0) return;
    assert_true(h->count < MOST && e->histogram->exponents);
    struct one *one = &h->events[h->count++];
    snprintf(one->name, sizeof(one->name), "%s", e->name);
    one->step = e->index, one->scale = e->histogram->scale, one->dtype = e->histogram->dtype;
    one->counts = *e->histogram->exponents;
}

/* The last of this name; NULL = there is none. */
static const struct one *find(const struct heard *h, const char *name) {
    for (int i = h->count - 1; i >= 0; i--)
        if (strcmp(h->events[i].name, name) == 0) return &h->events[i];
    return NULL;
}

static int times(const struct heard *h, const char *name) {
    int count = 0;
    for (int i = 0; i < h->count; i++) count += strcmp(h->events[i].name, name) == 0;
    return count;
}

struct training {
    cairn_env *env;
    cairn_module *model;
    cairn_optimizer *optimizer;
    amp_context *amp;
    cairn_tensor *x, *dy;
    cairn_writer *writer;
    struct heard *heard;
};

static struct training begin(cairn_env *env, const struct amp_options *level) {
    struct training t = {.env = env, .heard = calloc(1, sizeof(struct heard))};
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    sgd.lr = 0.01;
    assert_non_null(t.heard);
    t.model = cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, N, N), cairn_activation(env, cairn_relu),
                                                  cairn_linear(env, N, 2)));
    assert_non_null(t.model);
    OK(cairn_sgd_create(cairn_module_params(t.model), &sgd, &t.optimizer));
    if (level) OK(amp_initialize(env, t.model, t.optimizer, level, &t.amp));
    t.x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, N));
    t.dy = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, 2));
    OK(cairn_writer_create(hear, t.heard, &t.writer));
    return t;
}

static void end(struct training *t) {
    cairn_writer_destroy(&t->writer);
    cairn_tensor_destroy(&t->x);
    cairn_tensor_destroy(&t->dy);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
    free(t->heard);
}

/* The loss is sum(y * dy), so that dy is the gradient of y. */
static cairn_tensor *loss_of(struct training *t, cairn_tensor **y) {
    *y = cairn_module_forward(t->model, t->x);
    return cairn_sum(cairn_mul(*y, t->dy));
}

static void backward(struct training *t) {
    cairn_tensor *y, *loss = loss_of(t, &y);
    OK(t->amp ? amp_backward(t->amp, loss, t->optimizer) : cairn_backward(loss));
}

static void step(struct training *t) {
    cairn_zero_grad(t->optimizer);
    backward(t);
    OK(cairn_step(t->optimizer));
}

static cairn_env *host; /* counts what was copied to the host */

static void assert_counts(const struct one *one, cairn_env *env, const void *x, size_t n, cairn_dtype dtype) {
    struct cairn_exponents want = CAIRN_EXPONENTS_INIT;
    assert_non_null(one);
    OK(cairn_exponents_count(env, x, n, dtype, NULL, &want));
    if (memcmp(&one->counts, &want, sizeof(want)) != 0) fail_msg("%s is not what was computed", one->name);
}

static void gradients_results_and_their_gradients_are_what_was_computed(void **state) {
    struct training t = begin(*state, NULL);
    cairn_recorder *recorder = NULL;
    cairn_tensor *y;
    float values[ROWS * 2], dy[ROWS * 2];
    OK(cairn_recorder_create(*state, cairn_recorder_options(.every = 2), &recorder));
    cairn_zero_grad(t.optimizer);
    cairn_tensor *loss = loss_of(&t, &y);
    OK(cairn_backward(loss));
    OK(cairn_tensor_read(y, values, ROWS * 2));
    OK(cairn_tensor_read(t.dy, dy, ROWS * 2));
    assert_counts(find(t.heard, "activation/2"), host, values, ROWS * 2, CAIRN_F32);
    assert_counts(find(t.heard, "activation_grad/2"), host, dy, ROWS * 2, CAIRN_F32);
    cairn_param_set *params = cairn_module_params(t.model);
    for (size_t i = 0; i < cairn_param_set_count(params); i++) {
        cairn_param p;
        char name[80];
        OK(cairn_param_set_get(params, i, &p));
        snprintf(name, sizeof(name), "grad/%s", p.name);
        const size_t n = (size_t)p.shape[0] * (size_t)(p.ndim == 2 ? p.shape[1] : 1);
        assert_counts(find(t.heard, name), *state, p.grad, n, CAIRN_F32);
        assert_true(find(t.heard, name)->step == 1 && find(t.heard, name)->scale == 1);
    }
    /* relu's zeros and its gradient's; nothing is reduced; what the root returns is its last child's */
    assert_true(find(t.heard, "activation/1")->counts.zeros > 0 && find(t.heard, "activation_grad/1"));
    assert_null(find(t.heard, "grad_before/0.weight"));
    assert_null(find(t.heard, "activation/Sequential"));
    assert_int_equal(t.heard->count, 4 + 3 + 3);
    cairn_recorder_destroy(&recorder);
    assert_null(recorder);
    end(&t);
}

static void steps_between_are_not_recorded(void **state) {
    struct training t = begin(*state, NULL);
    cairn_recorder *recorder = NULL;
    OK(cairn_recorder_create(*state, cairn_recorder_options(.every = 3), &recorder));
    for (int i = 0; i < 7; i++) step(&t);
    assert_int_equal(t.heard->count, 3 * 10); /* of 1, 4 and 7 */
    for (int i = 0; i < t.heard->count; i++) assert_int_equal(t.heard->events[i].step, 1 + i / 10 * 3);
    cairn_recorder_destroy(&recorder);
    step(&t), step(&t), step(&t);
    assert_int_equal(t.heard->count, 3 * 10);
    end(&t);
}

static void each_micro_batch_and_each_choice_counts(void **state) {
    struct training t = begin(*state, NULL);
    cairn_recorder *recorder = NULL;
    OK(cairn_recorder_create(*state, cairn_recorder_options(.every = 1, .results = CAIRN_OFF), &recorder));
    cairn_zero_grad(t.optimizer);
    backward(&t), backward(&t);
    assert_int_equal(times(t.heard, "grad/0.weight"), 2);
    assert_int_equal(t.heard->count, 8);
    OK(cairn_step(t.optimizer));
    cairn_recorder_destroy(&recorder);
    OK(cairn_recorder_create(*state, cairn_recorder_options(.every = 1, .gradients = CAIRN_OFF), &recorder));
    step(&t);
    assert_int_equal(t.heard->count, 8 + 6);
    assert_int_equal(t.heard->events[8].step, 2);
    cairn_recorder_destroy(&recorder);
    end(&t);
}

static void evaluation_and_no_grad_are_not_recorded(void **state) {
    struct training t = begin(*state, NULL);
    cairn_recorder *recorder = NULL;
    OK(cairn_recorder_create(*state, cairn_recorder_options(.every = 1), &recorder));
    cairn_no_grad_begin(*state);
    assert_non_null(cairn_module_forward(t.model, t.x));
    cairn_no_grad_end(*state);
    cairn_module_train(t.model, 0);
    assert_non_null(cairn_module_forward(t.model, t.x));
    assert_int_equal(t.heard->count, 0);
    cairn_recorder_destroy(&recorder);
    end(&t);
}

/* Types and the scale are those of the level; true magnitudes are those of f32 but for rounding. */
static void half_gradients_come_with_their_type_and_scale(void **state) {
    static const struct {
        amp_opt_level level;
        cairn_dtype half, grad;
        double scale;
    } cases[] = {{AMP_O1, CAIRN_F16, CAIRN_F32, 65536},
                 {AMP_O1, CAIRN_BF16, CAIRN_F32, 1024},
                 {AMP_O2, CAIRN_F16, CAIRN_F16, 4096},
                 {AMP_O2, CAIRN_BF16, CAIRN_BF16, 2}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct training t = begin(*state, amp_options(.opt_level = cases[i].level, .half_type = cases[i].half,
                                                      .loss_scale = cases[i].scale));
        cairn_recorder *recorder = NULL;
        cairn_param p;
        OK(cairn_recorder_create(*state, cairn_recorder_options(.every = 1), &recorder));
        cairn_zero_grad(t.optimizer);
        backward(&t);
        OK(cairn_param_set_get(cairn_module_params(t.model), 0, &p));
        const struct one *grad = find(t.heard, "grad/0.weight");
        assert_counts(grad, *state, p.grad, N * N, cases[i].grad);
        assert_true(grad->dtype == cases[i].grad && grad->scale == cases[i].scale);
        assert_int_equal(find(t.heard, "activation/0")->dtype, cases[i].half);
        assert_true(find(t.heard, "activation/0")->scale == 1);
        assert_int_equal(find(t.heard, "activation_grad/0")->dtype, cases[i].half);
        assert_true(find(t.heard, "activation_grad/0")->scale == cases[i].scale);
        OK(cairn_step(t.optimizer));
        cairn_recorder_destroy(&recorder);
        end(&t);
    }
}

/* The names of a second model, and of buffers of the program's own. */
static void sets_have_names_of_their_own(void **state) {
    struct training t = begin(*state, NULL), u = begin(*state, NULL);
    float w[3] = {0}, g[3] = {1, 0, 2};
    const cairn_param own = {"w", w, g, CAIRN_F32, 1, {3}, CAIRN_OFF};
    cairn_param_set *set = NULL;
    cairn_recorder *recorder = NULL;
    const bool reaches = cairn_param_set_create(*state, &own, 1, &set) == CAIRN_OK; /* not on a GPU */
    OK(cairn_recorder_create(*state, cairn_recorder_options(.every = 1), &recorder));
    step(&t), step(&u);
    if (reaches) OK(cairn_grads_ready(set, 0, 1));
    assert_int_equal(times(t.heard, "grad/0.weight"), 1);
    assert_int_equal(times(t.heard, "grad@1/0.weight"), 1);
    assert_int_equal(times(t.heard, "activation_grad@1/2"), 1);
    if (reaches) assert_counts(find(t.heard, "grad@2/w"), *state, g, 3, CAIRN_F32);
    cairn_recorder_destroy(&recorder);
    cairn_param_set_destroy(&set);
    end(&u), end(&t);
}

/* A module that returns a transposed view, and one that only hands on its input. */
static cairn_tensor *transposed(cairn_tensor *x) {
    return cairn_transpose(x, 0, 1);
}

static void views_are_counted_and_leaves_are_not(void **state) {
    struct training t = begin(*state, NULL);
    cairn_recorder *recorder = NULL;
    cairn_module *view = cairn_activation(*state, transposed);
    OK(cairn_recorder_create(*state, cairn_recorder_options(.every = 1), &recorder));
    cairn_tensor *x = cairn_mul(t.x, t.x);
    const int before = t.heard->count;
    assert_non_null(cairn_module_forward(view, x));
    float values[ROWS * N];
    OK(cairn_tensor_read(x, values, ROWS * N));
    assert_int_equal(t.heard->count, before + 1);
    assert_counts(&t.heard->events[before], host, values, ROWS * N, CAIRN_F32);
    cairn_recorder_destroy(&recorder);
    cairn_module_destroy(&view);
    end(&t);
}

static cairn_tensor *through(void *ctx, cairn_tensor *const *inputs, int count) {
    (void)count;
    return cairn_module_forward(ctx, inputs[0]);
}

static void a_checkpoint_counts_once(void **state) {
    struct training t = begin(*state, NULL);
    cairn_recorder *recorder = NULL;
    OK(cairn_recorder_create(*state, cairn_recorder_options(.every = 1), &recorder));
    cairn_zero_grad(t.optimizer);
    cairn_tensor *y = cairn_checkpoint(through, t.model, &t.x, 1);
    OK(cairn_backward(cairn_sum(cairn_mul(y, t.dy))));
    assert_int_equal(times(t.heard, "activation/0"), 1);
    assert_int_equal(times(t.heard, "activation_grad/0"), 1);
    assert_int_equal(t.heard->count, 4 + 3 + 3);
    cairn_recorder_destroy(&recorder);
    end(&t);
}

static void an_environment_has_one_recorder_which_may_outlive_it(void **state) {
    (void)state;
    cairn_env *env = NULL;
    cairn_recorder *first = NULL, *second = NULL;
    OK(cairn_env_create(NULL, NULL, NULL, &env));
    REFUSED(cairn_recorder_create(env, cairn_recorder_options(.every = -1), &first), CAIRN_EINVAL, "at least 1");
    REFUSED(cairn_recorder_create(NULL, NULL, &first), CAIRN_EINVAL, "env and out");
    OK(cairn_recorder_create(env, NULL, &first));
    REFUSED(cairn_recorder_create(env, NULL, &second), CAIRN_ESTATE, "has a recorder already");
    cairn_recorder_destroy(&first);
    OK(cairn_recorder_create(env, NULL, &second));
    cairn_env_destroy(&env);
    cairn_recorder_destroy(&second);
    cairn_recorder_destroy(&second); /* NULL */
    cairn_recorder_destroy(NULL);
}

static int make_envs(void **state) {
    OK(cairn_env_create(NULL, NULL, cairn_env_options(.device = "cpu"), &host));
    return make_env(state);
}

static int end_envs(void **state) {
    cairn_env_destroy(&host);
    return end_env(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_results_and_their_gradients_are_what_was_computed),
        cmocka_unit_test(steps_between_are_not_recorded),
        cmocka_unit_test(each_micro_batch_and_each_choice_counts),
        cmocka_unit_test(evaluation_and_no_grad_are_not_recorded),
        cmocka_unit_test(half_gradients_come_with_their_type_and_scale),
        cmocka_unit_test(sets_have_names_of_their_own),
        cmocka_unit_test(views_are_counted_and_leaves_are_not),
        cmocka_unit_test(a_checkpoint_counts_once),
        cmocka_unit_test(an_environment_has_one_recorder_which_may_outlive_it),
    };
    return cmocka_run_group_tests(tests, make_envs, end_envs);
}
