/* Autograd graphs: no graph, several backwards, initial gradients for many elements, detached values, custom
 * operations; and which memory a step uses. */
#include <math.h>
#include <string.h>

#include "nn/tensor.h"
#include "test_env.h"

static const float four[] = {1, -2, 3, -4};

static cairn_tensor *leaf(cairn_env *env) {
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(4), four);
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    return x;
}

static void assert_values(const cairn_tensor *t, const float *want, size_t n) {
    float got[16];
    assert_int_equal(cairn_tensor_read(t, got, n), CAIRN_OK);
    for (size_t i = 0; i < n; i++) {
        if (got[i] != want[i]) fail_msg("element %zu: %g, want %g", i, (double)got[i], (double)want[i]);
    }
}

static void assert_grad(const cairn_tensor *t, const float *want, size_t n) {
    const float *got = cairn_tensor_grad(t);
    assert_non_null(got);
    for (size_t i = 0; i < n; i++) {
        if (got[i] != want[i]) fail_msg("gradient %zu: %g, want %g", i, (double)got[i], (double)want[i]);
    }
}

#define FLOATS(...)   \
    (const float[]) { \
        __VA_ARGS__   \
    }

/* ---- no_grad ---- */

static const char STALE[] =
    "read: the tensor is the result of an earlier step (cairn_zero_grad begins one, "
    "cairn_optimizer_clear_grads does not) or was released (cairn_release_results); use cairn_tensor_keep to hold it";

static void results_without_a_graph_die_with_the_outermost_scope(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *before = cairn_mul_scalar(x, 2);
    cairn_no_grad_begin(env);
    cairn_no_grad_begin(env);
    cairn_tensor *y = cairn_add(before, x);
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    assert_values(y, FLOATS(3, -6, 9, -12), 4);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_EINVAL);
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    assert_true(isnan(cairn_tensor_item(y)));
    assert_string_equal(cairn_last_error(), STALE);
    assert_values(before, FLOATS(2, -4, 6, -8), 4);
    assert_int_equal(cairn_backward(cairn_sum(before)), CAIRN_OK);
    assert_grad(x, FLOATS(2, 2, 2, 2), 4);
    assert_int_equal(cairn_no_grad_end(env), CAIRN_ESTATE);
    assert_string_equal(cairn_last_error(), "no_grad_end: call cairn_no_grad_begin first");
    assert_int_equal(cairn_no_grad_end(NULL), CAIRN_EINVAL);
    cairn_no_grad_begin(NULL);
}

static void stale_use_is_refused_for_three_scopes(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env);
    cairn_no_grad_begin(env);
    cairn_tensor *old = cairn_relu(x);
    cairn_no_grad_end(env);
    for (int i = 0; i < 3; i++) {
        cairn_no_grad_begin(env);
        for (int j = 0; j < 10; j++) assert_non_null(cairn_relu(x));
        assert_null(cairn_relu(old));
        cairn_no_grad_end(env);
        assert_null(cairn_relu(old));
    }
}

static void scopes_use_the_same_memory_again(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(10000));
    struct cairn__tape_memory first = {.values.used = 0};
    for (int i = 0; i < 20; i++) {
        cairn_no_grad_begin(env);
        for (int j = 0; j < 10; j++) assert_non_null(cairn_relu(x));
        cairn_no_grad_end(env);
        if (i == 4) first = cairn__tape_memory(env);
    }
    const struct cairn__tape_memory last = cairn__tape_memory(env);
    assert_memory_equal(&last, &first, sizeof(last));
    assert_int_equal(last.values.used, 0);
}

static void step_may_begin_within_a_scope(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env);
    assert_non_null(cairn_relu(x));
    cairn_no_grad_begin(env);
    cairn_tensor *old = cairn_mul_scalar(x, 3);
    env->begin_step(env);
    assert_null(cairn_relu(old));
    cairn_tensor *y = cairn_mul_scalar(x, 2);
    assert_values(y, FLOATS(2, -4, 6, -8), 4);
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    assert_null(cairn_relu(y));
    assert_int_equal(cairn__tape_memory(env).values.used, 0);
}

static cairn_status linear_in_half(void *ctx, const struct cairn__op_question *q, cairn_dtype *out) {
    (void)ctx;
    if (q->op == CAIRN__OP_LINEAR) *out = CAIRN_F16;
    return CAIRN_OK;
}
static const struct cairn__op_hook half_hook = {.compute_type = linear_in_half};

enum { ROWS = 4, IN = 8, OUT = 3 };

/* The gradient of the weight after a forward, an evaluation with other weights where requested, and a backward. */
static void weight_gradient(cairn_env *env, bool evaluate_before, bool evaluate_between, float *dw) {
    cairn_manual_seed(env, 3);
    cairn_module *m = cairn_linear(env, IN, OUT);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN));
    struct cairn__param *w = cairn_module_params(m)->params[0];
    cairn_tensor_require_grad(x);
    if (evaluate_before) {
        cairn_no_grad_begin(env);
        assert_non_null(cairn_module_forward(m, x));
        cairn_no_grad_end(env);
    }
    cairn_tensor *loss = cairn_mean(cairn_module_forward(m, x));
    if (evaluate_between) {
        static float kept[OUT * IN];
        memcpy(kept, w->data, sizeof(kept));
        memset(w->data, 0, sizeof(kept));
        cairn_param_changed(cairn_module_params(m), 0, 0);
        cairn_no_grad_begin(env);
        assert_true(cairn_tensor_item(cairn_sum(cairn_module_forward(m, cairn_mul_scalar(x, 0)))) < 100);
        cairn_no_grad_end(env);
        memcpy(w->data, kept, sizeof(kept));
        cairn_param_changed(cairn_module_params(m), 0, 0);
    }
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    memcpy(dw, cairn__grad_memory(w->gradient), OUT * IN * sizeof(float));
    memcpy(dw + OUT * IN, cairn_tensor_grad(x), ROWS * IN * sizeof(float));
    env->begin_step(env);
    cairn_module_destroy(&m);
    cairn_tensor_destroy(&x);
}

/* The casts of its parameters live in headers that the scope takes back, and in memory that a graph may wait for. */
static void evaluation_under_a_hook_leaves_graphs_intact(void **state) {
    cairn_env *env = test_env_of(state);
    enum { N = OUT * IN + ROWS * IN };
    float want[N], got[N];
    cairn__set_op_hook(env, &half_hook);
    weight_gradient(env, false, false, want);
    for (int i = 1; i < 4; i++) {
        weight_gradient(env, (i & 1) != 0, (i & 2) != 0, got);
        assert_memory_equal(got, want, sizeof(want));
    }
}

/* ---- detach ---- */

static void detached_value_shares_memory_and_stops_gradients(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *y = cairn_mul_scalar(x, 2), *d = cairn_detach(y);
    assert_ptr_equal(d->data, y->data);
    assert_false(d->wants_grad);
    assert_int_equal(cairn_backward(cairn_sum(cairn_add(y, cairn_mul_scalar(d, 100)))), CAIRN_OK);
    assert_grad(x, FLOATS(2, 2, 2, 2), 4);
    cairn_tensor *t = cairn_detach(cairn_transpose(cairn_reshape(x, CAIRN_SHAPE(2, 2)), 0, 1));
    assert_values(t, FLOATS(1, 3, -2, -4), 4);
    assert_ptr_equal(t->data, x->data);
    assert_null(cairn_detach(NULL));
}

/* ---- several backwards ---- */

static cairn_status again(cairn_tensor *loss) {
    return cairn_backward_with(loss, cairn_backward_options(.retain_graph = CAIRN_ON));
}

static void retained_graph_can_be_walked_again(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *y = cairn_relu(x), *loss = cairn_sum(cairn_add(y, y));
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(again(loss), CAIRN_OK);
        const float g = 2 * (float)i;
        assert_grad(x, FLOATS(g, 0, g, 0), 4);
    }
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    assert_int_equal(again(loss), CAIRN_ESTATE);
    assert_string_equal(cairn_last_error(),
                        "backward: an earlier backward has consumed this graph (its sum); compute the loss again, or "
                        "give retain_graph to cairn_backward_with before");
}

static void losses_of_one_graph_add_up_and_equal_their_sum(void **state) {
    cairn_env *env = test_env_of(state);
    float apart[4], together[4];
    cairn_tensor *x = leaf(env), *shared = cairn_mul_scalar(x, 3);
    assert_int_equal(again(cairn_sum(cairn_relu(shared))), CAIRN_OK);
    assert_int_equal(cairn_backward(cairn_mean(shared)), CAIRN_OK);
    memcpy(apart, cairn_tensor_grad(x), sizeof(apart));
    cairn_tensor_clear_grad(x);
    shared = cairn_mul_scalar(x, 3);
    assert_int_equal(cairn_backward(cairn_add(cairn_sum(cairn_relu(shared)), cairn_mean(shared))), CAIRN_OK);
    memcpy(together, cairn_tensor_grad(x), sizeof(together));
    assert_memory_equal(apart, together, sizeof(apart));
    assert_memory_equal(apart, FLOATS(3.75f, 0.75f, 3.75f, 0.75f), sizeof(apart));
}

static void second_backward_accumulates_gradients_of_parameters(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 4, 1);
    struct cairn__param *bias = cairn_module_params(m)->params[1];
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 4), four);
    cairn_tensor *loss = cairn_sum(cairn_add(cairn_module_forward(m, x), cairn_module_forward(m, x)));
    assert_int_equal(again(loss), CAIRN_OK);
    assert_int_equal(again(loss), CAIRN_OK);
    assert_int_equal(cairn_backward(cairn_mul_scalar(loss, 5)), CAIRN_OK);
    struct cairn__grad_view grad;
    assert_int_equal(cairn__grad_prepare_read(bias->gradient, &grad), CAIRN_OK);
    assert_int_equal(grad.dtype, CAIRN_F32);
    assert_true(*(const float *)grad.x == 2 + 2 + 10);
    cairn_module_destroy(&m);
}

static void backward_of_many_elements_begins_with_the_users_gradient(void **state) {
    cairn_env *env = test_env_of(state);
    const uint16_t halves[] = {0x3c00, 0x4000, 0, 0xbc00}; /* 1, 2, 0, -1 */
    cairn_tensor *x = leaf(env), *y = cairn_mul_scalar(x, 2);
    cairn_tensor *g = cairn_tensor_from(env, CAIRN_F16, CAIRN_SHAPE(4), halves);
    assert_int_equal(cairn_backward_with(y, cairn_backward_options(.grad = g, .retain_graph = CAIRN_ON)), CAIRN_OK);
    assert_grad(x, FLOATS(2, 4, 0, -2), 4);
    assert_int_equal(cairn_backward_with(cairn_add(y, x), cairn_backward_options(.grad = x)), CAIRN_OK);
    assert_grad(x, FLOATS(5, -2, 9, -14), 4);
    assert_values(x, four, 4); /* what was given is only read */
    cairn_tensor *square = cairn_reshape(leaf(env), CAIRN_SHAPE(2, 2)), *of = cairn_mul_scalar(square, 1);
    assert_int_equal(cairn_backward_with(of, cairn_backward_options(.grad = cairn_transpose(square, 0, 1))), CAIRN_OK);
    assert_int_equal(cairn_backward_with(x, cairn_backward_options(.grad = g)), CAIRN_OK); /* a leaf, too */
    assert_grad(x, FLOATS(6, 0, 9, -15), 4);
}

/* Of a part of a model whose loss is elsewhere: parameters learn the scale that is in the gradient. */
static void a_given_gradient_brings_its_scale(void **state) {
    cairn_env *env = test_env_of(state);
    struct cairn__loss_scale *cell = NULL;
    const struct cairn__loss_scale four_times = {4, 0.25f};
    cairn_module *layer = cairn_linear(env, 4, 2);
    struct cairn__param *bias = cairn_module_params(layer)->params[1];
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 4), four);
    cairn_tensor *g = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 2), FLOATS(8, -12));
    assert_int_equal(cairn__device_alloc(env->device, CAIRN__HOLDS_STATE, sizeof(*cell), (void **)&cell), CAIRN_OK);
    env->device->passes->store(env->device, cell, &four_times, sizeof(four_times));
    cairn_tensor *y = cairn_module_forward(layer, x);
    assert_int_equal(cairn__backward_scaled(y, g, false, cell), CAIRN_OK);
    const struct cairn__grad_view grad = cairn__grad_peek(bias->gradient);
    assert_memory_equal(grad.x, FLOATS(8, -12), 2 * sizeof(float));
    assert_ptr_equal(grad.factor, &cell->factor);
    assert_int_equal(cairn__backward_scaled(y, g, false, cell), CAIRN_ESTATE); /* consumed */
    assert_int_equal(cairn__backward_scaled(y, NULL, false, cell), CAIRN_EINVAL);
    cairn_module_zero_grad(layer);
    cairn_module_params(layer)->scale = NULL;
    cairn__device_free(env->device, cell);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&g);
    cairn_module_destroy(&layer);
}

/* A result that was copied: its memory goes to the next one at once, and a backward begins with it all the same. */
static void a_spared_result_gives_its_memory_back(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *g = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(4), FLOATS(1, 1, 2, 2));
    cairn_tensor *own = cairn_mul_scalar(x, 2); /* the program's, as nothing within a module is */
    const size_t mark = cairn__inside_begin(env);
    cairn_tensor *y = cairn_mul_scalar(x, 3), *z = cairn_exp(x);
    const void *memory = cairn__tensor_data(y), *kept = cairn__tensor_data(z), *programs = cairn__tensor_data(own);
    cairn__tensor_spare(own);
    cairn__tensor_spare(y);
    cairn__tensor_spare(z); /* which its own backward reads */
    cairn_tensor *next = cairn_mul_scalar(x, 5), *further = cairn_mul_scalar(x, 7);
    assert_ptr_equal(cairn__tensor_data(next), memory);
    assert_ptr_not_equal(cairn__tensor_data(further), kept);
    assert_ptr_not_equal(cairn__tensor_data(further), programs);
    (void)cairn__inside_end(env, mark, NULL);
    assert_int_equal(cairn__backward_scaled(y, g, false, NULL), CAIRN_OK);
    assert_grad(x, FLOATS(3, 3, 6, 6), 4);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&g);
}

static void users_gradient_must_fit(void **state) {
    cairn_env *env = test_env_of(state), *other = test_env_create(1, 0);
    cairn_tensor *x = leaf(env), *y = cairn_relu(x);
    const struct {
        cairn_tensor *grad;
        const char *sentence;
    } cases[] = {
        {NULL, "backward: the loss must be one element, not [4]"},
        {cairn_sum(x), "backward: the gradient is [], but the tensor is [4]"},
        {cairn_arange(env, CAIRN_I64, 0, 4, 1), "backward: the gradient is i64; it must be a float"},
        {leaf(other), "backward: the tensors belong to different environments"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(cairn_backward_with(y, cairn_backward_options(.grad = cases[i].grad)), CAIRN_EINVAL);
        assert_string_equal(cairn_last_error(), cases[i].sentence);
    }
    struct cairn_backward_options no_size = {.retain_graph = CAIRN_ON};
    assert_int_equal(cairn_backward_with(cairn_sum(y), &no_size), CAIRN_EINVAL);
    assert_null(cairn_tensor_grad(x));
    test_env_destroy(other);
}

static void double_leaf_has_a_double_gradient(void **state) {
    cairn_env *env = test_env_of(state);
    const double values[] = {1, 1e-30}, want[] = {3 + 0x1p-40, 3 + 0x1p-40};
    double got[2];
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F64, CAIRN_SHAPE(2), values);
    cairn_tensor *g = cairn_tensor_from(env, CAIRN_F64, CAIRN_SHAPE(2), want);
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    cairn_tensor *y = cairn_reshape(x, CAIRN_SHAPE(2));
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(cairn_backward_with(y, cairn_backward_options(.grad = g, .retain_graph = CAIRN_ON)), CAIRN_OK);
        assert_int_equal(cairn_tensor_read_grad(x, got, 2), CAIRN_OK);
        assert_true(got[0] == i * want[0] && got[1] == i * want[1]);
    }
}

/* ---- memory ---- */

/* The gradient of a sum's result goes to both operands as it is: adding to one must not change the other. */
static void shared_gradients_are_not_written(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env);
    cairn_tensor *a = cairn_mul_scalar(x, 1), *b = cairn_mul_scalar(x, 1), *c = cairn_mul_scalar(x, 10);
    cairn_tensor *ab = cairn_add(a, b), *bc = cairn_add(b, c), *ca = cairn_add(c, a);
    cairn_tensor *all = cairn_add(cairn_add(ab, bc), cairn_add(ca, cairn_add(ab, ab)));
    assert_int_equal(cairn_backward(cairn_sum(all)), CAIRN_OK); /* 4 a + 4 b + 2 c */
    assert_grad(x, FLOATS(28, 28, 28, 28), 4);
    assert_int_equal(cairn__tape_memory(env).gradients.used, 0);
}

static void chain(cairn_env *env, cairn_tensor *x, int length) {
    env->begin_step(env);
    cairn_tensor *y = x;
    for (int i = 0; i < length; i++) y = cairn_mul_scalar(y, 1.5);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
}

static void gradients_take_what_lives_and_not_the_sum(void **state) {
    cairn_env *env = test_env_of(state);
    enum { N = 1 << 16 };
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(N));
    cairn_tensor_require_grad(x);
    chain(env, x, 40);
    chain(env, x, 40);
    const struct cairn__tape_memory m = cairn__tape_memory(env);
    assert_int_equal(m.gradients.used, 0);
    assert_int_equal(m.gradients.peak, 2 * N * sizeof(float));
    assert_int_equal(m.gradients.held, 2 * N * sizeof(float));
}

/* Skips over several layers, of several sizes: gaps of every kind. */
static void mixed_step(cairn_env *env, cairn_module *wide, cairn_module *narrow, cairn_tensor *x) {
    cairn__param_set_zero_grad(cairn_module_params(wide));
    cairn__param_set_zero_grad(cairn_module_params(narrow));
    cairn_tensor *y = x, *skip = cairn_relu(x), *loss = cairn_sum(skip);
    for (int i = 0; i < 6; i++) {
        cairn_tensor *inner = cairn_relu(cairn_module_forward(wide, y));
        y = cairn_add(cairn_module_forward(narrow, inner), i % 2 ? skip : y);
        if (i % 3 == 1) skip = cairn_mul_scalar(y, 0.5);
        loss = cairn_add(loss, cairn_mean(inner));
    }
    assert_int_equal(again(loss), CAIRN_OK);
    assert_int_equal(cairn_backward(cairn_add(loss, cairn_sum(y))), CAIRN_OK);
    (void)env;
}

static void steady_step_allocates_nothing_and_grows_no_more(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *wide = cairn_linear(env, 48, 160), *narrow = cairn_linear(env, 160, 48);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(96, 48));
    cairn_tensor_require_grad(x);
    for (int i = 0; i < 3; i++) mixed_step(env, wide, narrow, x);
    const uint64_t before = cairn__alloc_counters().allocations;
    const struct cairn__tape_memory first = cairn__tape_memory(env);
    for (int i = 0; i < 20; i++) mixed_step(env, wide, narrow, x);
    const struct cairn__tape_memory last = cairn__tape_memory(env);
    assert_int_equal(cairn__alloc_counters().allocations, before);
    assert_int_equal(last.gradients.held, first.gradients.held);
    assert_int_equal(last.values.held, first.values.held);
    assert_int_equal(last.values.held, last.values.peak); /* no more than a step uses */
    assert_true(last.gradients.held <= last.gradients.peak + last.gradients.peak / 4);
    cairn_module_destroy(&wide);
    cairn_module_destroy(&narrow);
}

/* ---- the order of gradients ---- */

static cairn_status go_on(void *ctx) {
    (void)ctx;
    return CAIRN_OK;
}
static void never_mind(void *ctx) {
    (void)ctx;
}

static cairn_status copy_forward(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x,
                                 int count) {
    (void)ctx, (void)count;
    memcpy(y->data, x->data, y->n * sizeof(float));
    return CAIRN_OK;
}

static cairn_status copy_backward(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                  const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)ctx, (void)y, (void)x, (void)count;
    memcpy(dx->data, dy->data, dy->n * sizeof(float));
    return CAIRN_OK;
}

static const struct cairn_custom_op copy_op = {.struct_size = sizeof(copy_op),
                                               .name = "copy",
                                               .forward = copy_forward,
                                               .backward = copy_backward};

/* ---- custom operations ---- */

/* y = a * b, of any two equal inputs, f64 or f32. */
static cairn_status times_forward(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x,
                                  int count) {
    if (count != 2 || ctx) return CAIRN_EINVAL;
    for (size_t i = 0; i < y->n; i++) {
        if (y->dtype == CAIRN_F64) {
            ((double *)y->data)[i] = ((double *)x[0].data)[i] * ((double *)x[1].data)[i];
        } else {
            ((float *)y->data)[i] = ((float *)x[0].data)[i] * ((float *)x[1].data)[i];
        }
    }
    return CAIRN_OK;
}

static cairn_status times_backward(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                   const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)ctx;
    for (int k = 0; k < count; k++) {
        const void *other = x[1 - k].data;
        for (size_t i = 0; dx[k].data && i < y->n; i++) {
            if (y->dtype == CAIRN_F64) {
                ((double *)dx[k].data)[i] = ((const double *)dy->data)[i] * ((const double *)other)[i];
            } else {
                ((float *)dx[k].data)[i] = ((const float *)dy->data)[i] * ((const float *)other)[i];
            }
        }
    }
    return CAIRN_OK;
}

static const struct cairn_custom_op times = {.struct_size = sizeof(times),
                                             .name = "times",
                                             .forward = times_forward,
                                             .backward = times_backward};

/* Where gradients leave early: nothing of the input's may be there yet. */
struct ordering {
    struct cairn__grad_listener listener;
    const cairn_tensor *x;
    int ready, late;
};

static void look_at_input(void *ctx, size_t index) {
    struct ordering *o = ctx;
    (void)index;
    o->ready++;
    o->late += o->x->has_grad;
}

static cairn_tensor *apply_linear(cairn_tensor *x, cairn_tensor **w) {
    return cairn_linear_forward(x, w[0], w[1]);
}
static cairn_tensor *apply_conv2d(cairn_tensor *x, cairn_tensor **w) {
    return cairn_conv2d_forward(x, w[0], w[1], NULL);
}
static cairn_tensor *apply_layer_norm(cairn_tensor *x, cairn_tensor **w) {
    return cairn_layer_norm_forward(x, w[0], w[1], 1, 1e-5);
}
static cairn_tensor *apply_group_norm(cairn_tensor *x, cairn_tensor **w) {
    return cairn_group_norm_forward(x, 2, w[0], w[1], 1e-5);
}
static cairn_tensor *apply_batch_norm(cairn_tensor *x, cairn_tensor **w) {
    return cairn_batch_norm_forward(x, NULL, NULL, w[0], w[1], 1, 0.1, 1e-5);
}
static cairn_tensor *apply_mul(cairn_tensor *x, cairn_tensor **w) {
    return cairn_add(cairn_mul(x, w[0]), w[1]);
}
static cairn_tensor *apply_prelu(cairn_tensor *x, cairn_tensor **w) {
    return cairn_add(cairn_prelu(x, w[0]), w[1]);
}
static cairn_tensor *apply_custom(cairn_tensor *x, cairn_tensor **w) {
    x = cairn_custom(&times, NULL, CAIRN_F32, 1, (const int64_t[]){4}, (cairn_tensor *[]){x, w[0]}, 2);
    return cairn_add(x, w[1]);
}

static const struct {
    cairn_tensor *(*apply)(cairn_tensor *x, cairn_tensor **w);
    int ndims[3];
    int64_t shapes[3][4]; /* x, weight, bias */
} weighted[] = {
    {apply_linear, {2, 2, 1}, {{3, 4}, {2, 4}, {2}}},  {apply_conv2d, {4, 4, 1}, {{1, 2, 5, 5}, {3, 2, 3, 3}, {3}}},
    {apply_layer_norm, {2, 1, 1}, {{3, 4}, {4}, {4}}}, {apply_group_norm, {2, 1, 1}, {{3, 4}, {4}, {4}}},
    {apply_batch_norm, {2, 1, 1}, {{3, 4}, {4}, {4}}}, {apply_mul, {2, 1, 1}, {{3, 4}, {4}, {4}}},
    {apply_prelu, {2, 1, 1}, {{3, 4}, {4}, {4}}},      {apply_custom, {1, 1, 1}, {{4}, {4}, {4}}},
};

static void weights_gradients_come_before_inputs_gradients(void **state) {
    cairn_env *env = test_env_of(state);
    for (size_t i = 0; i < sizeof(weighted) / sizeof(weighted[0]); i++) {
        struct ordering o = {
            .listener = {.ready = look_at_input, .progress = go_on, .settle = go_on, .failed = never_mind}};
        cairn_tensor *x = cairn_randn(env, CAIRN_F32, weighted[i].ndims[0], weighted[i].shapes[0]), *w[2];
        struct cairn_param_set *set = NULL;
        assert_int_equal(cairn__param_set_new(env, &set), CAIRN_OK);
        for (int k = 0; k < 2; k++) {
            struct cairn__param *p = NULL;
            const char *name = k ? "bias" : "weight";
            assert_int_equal(cairn__param_set_add(set, name, weighted[i].ndims[1 + k], weighted[i].shapes[1 + k], false,
                                                  &p),
                             CAIRN_OK);
            for (size_t n = 0; n < p->n; n++) ((float *)p->data)[n] = (float)n;
            assert_int_equal(cairn__tensor_of_param(p, &w[k]), CAIRN_OK);
        }
        o.listener.ctx = &o;
        o.x = x;
        set->listener = &o.listener;
        assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
        if (cairn_backward(cairn_sum(weighted[i].apply(x, w))) != CAIRN_OK) fail_msg("%s", cairn_last_error());
        assert_int_equal(o.ready, 2);
        assert_int_equal(o.late, 0);
        assert_true(x->has_grad);
        env->begin_step(env);
        for (int k = 0; k < 2; k++) cairn__tensor_of_param_destroy(&w[k]);
        set->listener = NULL;
        cairn_param_set_destroy(&set);
        cairn_tensor_destroy(&x);
    }
}

static cairn_tensor *apply_times(cairn_tensor *a, cairn_tensor *b) {
    return cairn_custom(&times, NULL, cairn_tensor_dtype(a), 1, (const int64_t[]){4}, (cairn_tensor *[]){a, b}, 2);
}

static void custom_operation_has_the_users_gradient(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *plain = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(4), FLOATS(2, 3, 4, 5));
    assert_int_equal(cairn_backward(cairn_sum(apply_times(x, plain))), CAIRN_OK);
    assert_grad(x, FLOATS(2, 3, 4, 5), 4);
    assert_null(cairn_tensor_grad(plain));
    cairn_tensor_clear_grad(x);
    assert_int_equal(cairn_backward(cairn_sum(apply_times(x, x))), CAIRN_OK); /* one leaf, two gradients */
    assert_grad(x, FLOATS(2, -4, 6, -8), 4);
    cairn_tensor *square = cairn_reshape(x, CAIRN_SHAPE(2, 2));
    cairn_tensor *strided = cairn_reshape(cairn_transpose(square, 0, 1), CAIRN_SHAPE(4));
    assert_values(apply_times(strided, plain), FLOATS(2, 9, -8, -20), 4); /* comes dense */
}

static cairn_status refuse_forward(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x,
                                   int count) {
    (void)ctx, (void)y, (void)x, (void)count;
    return CAIRN_ENOTSUP;
}
static cairn_status refuse_backward(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                    const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)ctx, (void)dx, (void)dy, (void)y, (void)x, (void)count;
    return CAIRN_ENUMERIC;
}

static void failure_of_a_custom_operation_names_it(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *both[] = {x, x};
    struct cairn_custom_op op = times;
    op.forward = refuse_forward;
    assert_null(cairn_custom(&op, NULL, CAIRN_F32, CAIRN_SHAPE(4), both, 2));
    assert_string_equal(cairn_last_error(), "times: its forward returned ENOTSUP");
    assert_int_equal(cairn_backward(NULL), CAIRN_ENOTSUP);
    op = times, op.backward = refuse_backward;
    assert_int_equal(cairn_backward(cairn_sum(cairn_custom(&op, NULL, CAIRN_F32, CAIRN_SHAPE(4), both, 2))),
                     CAIRN_ENUMERIC);
    assert_string_equal(cairn_last_error(), "times: its backward returned ENUMERIC");
    cairn_tensor *y = cairn_custom(&times, NULL, CAIRN_F32, CAIRN_SHAPE(4), both, 2);
    const struct cairn_backward_options from = {.struct_size = sizeof(from), .grad = cairn_detach(x)};
    assert_int_equal(cairn_backward_with(y, &from), CAIRN_OK);
    assert_int_equal(cairn_backward_with(y, &from), CAIRN_ESTATE);
    assert_non_null(strstr(cairn_last_error(), "consumed this graph (its times)"));
    op = times, op.backward = NULL;
    assert_false(cairn_custom(&op, NULL, CAIRN_F32, CAIRN_SHAPE(4), both, 2)->wants_grad);
    assert_false(cairn_custom(&copy_op, NULL, CAIRN_I32, CAIRN_SHAPE(4), &x, 1)->wants_grad);
}

static void custom_operations_arguments_are_checked(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env);
    const struct cairn_custom_op nameless = {.struct_size = sizeof(nameless), .forward = times_forward};
    static const char missing[] = "custom: name, forward and at least one input must be set";
    assert_null(cairn_custom(&nameless, NULL, CAIRN_F32, CAIRN_SHAPE(4), &x, 1));
    assert_string_equal(cairn_last_error(), missing);
    assert_null(cairn_custom(NULL, NULL, CAIRN_F32, CAIRN_SHAPE(4), &x, 1));
    assert_null(cairn_custom(&times, NULL, CAIRN_F32, CAIRN_SHAPE(4), NULL, 1));
    assert_null(cairn_custom(&times, NULL, CAIRN_F32, CAIRN_SHAPE(4), &x, 0));
    assert_string_equal(cairn_last_error(), missing);
    assert_null(cairn_custom(&times, NULL, (cairn_dtype)99, CAIRN_SHAPE(4), &x, 1));
    assert_string_equal(cairn_last_error(), "times: dtype is 99; it must be an element type");
    assert_null(cairn_custom(&times, NULL, CAIRN_F32, CAIRN_SHAPE(-1), &x, 1));
    assert_string_equal(cairn_last_error(), "times: size -1 in dimension 0");
    assert_null(cairn_custom(&times, NULL, CAIRN_F32, CAIRN_SHAPE(INT64_MAX, INT64_MAX), &x, 1));
    assert_null(cairn_custom(&times, NULL, CAIRN_F32, CAIRN_SHAPE(0, INT64_MAX, INT64_MAX), &x, 1));
    assert_string_equal(
        cairn_last_error(),
        "times: [0, 9223372036854775807, 9223372036854775807] has more elements than memory can hold: at most 2^59");
    assert_null(cairn_custom(&times, NULL, CAIRN_F32, 9, (const int64_t[9]){0}, &x, 1));
    assert_string_equal(cairn_last_error(), "times: 9 dimensions; 0 to 8 are allowed");
    x = NULL;
    assert_null(cairn_custom(&times, NULL, CAIRN_F32, CAIRN_SHAPE(4), &x, 1));
}

/* What they do on a GPU: custom_cuda_test.c. */
static cairn_status queue_forward(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x,
                                  int count, void *stream) {
    (void)ctx, (void)y, (void)x, (void)count, (void)stream;
    return CAIRN_EINTERNAL;
}
static cairn_status queue_backward(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                   const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count,
                                   void *stream) {
    (void)ctx, (void)dx, (void)dy, (void)y, (void)x, (void)count, (void)stream;
    return CAIRN_EINTERNAL;
}

static void functions_for_a_gpu_are_not_called_on_the_cpu(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *both[] = {x, x};
    struct cairn_custom_op op = times;
    op.forward_cuda = queue_forward, op.backward_cuda = queue_backward;
    assert_int_equal(cairn_backward(cairn_sum(cairn_custom(&op, NULL, CAIRN_F32, CAIRN_SHAPE(4), both, 2))), CAIRN_OK);
    op.backward = NULL;
    NO_TENSOR(cairn_custom(&op, NULL, CAIRN_F32, CAIRN_SHAPE(4), both, 2),
              "times: an input requires a gradient, and there is no backward for 'cpu'; set backward");
    both[0] = both[1] = cairn_detach(x);
    assert_non_null(cairn_custom(&op, NULL, CAIRN_F32, CAIRN_SHAPE(4), both, 2));
    op.forward = NULL;
    NO_TENSOR(cairn_custom(&op, NULL, CAIRN_F32, CAIRN_SHAPE(4), both, 2),
              "times: its functions are given memory of a GPU, and 'cpu' has none; set forward too");
    assert_int_equal(cairn_backward(NULL), CAIRN_ENOTSUP);
    op = times;
    op.struct_size = offsetof(struct cairn_custom_op, forward_cuda); /* a program of 0.8.0 */
    op.backward = NULL, op.backward_cuda = queue_backward;
    assert_false(cairn_custom(&op, NULL, CAIRN_F32, CAIRN_SHAPE(4), (cairn_tensor *[]){x, x}, 2)->wants_grad);
}

static void failed_backward_gives_its_memory_back(void **state) {
    cairn_env *env = test_env_of(state);
    struct cairn_custom_op op = times;
    op.backward = refuse_backward;
    cairn_tensor *x = leaf(env), *y = cairn_relu(x), *both[] = {y, y};
    cairn_tensor *loss = cairn_sum(cairn_custom(&op, NULL, CAIRN_F32, CAIRN_SHAPE(4), both, 2));
    for (int i = 0; i < 3; i++) assert_int_equal(again(loss), CAIRN_ENUMERIC);
    assert_int_equal(cairn_backward(cairn_sum(cairn_relu(y))), CAIRN_OK);
    assert_int_equal(cairn__tape_memory(env).gradients.used, 0);
}

/* A user's backward that begins a backward or a step of its own. */
static cairn_status meddle(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                           const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    cairn_tensor *loss = ctx;
    loss->env->begin_step(loss->env);
    const cairn_status st = cairn_backward(loss);
    if (st != CAIRN_ESTATE || strstr(cairn_last_error(), "within a checkpoint or another backward") == NULL)
        return CAIRN_EINTERNAL;
    return times_backward(NULL, dx, dy, y, x, count);
}

static void backward_is_not_disturbed_by_what_it_calls(void **state) {
    cairn_env *env = test_env_of(state);
    struct cairn_custom_op op = copy_op;
    op.backward = meddle;
    cairn_tensor *x = leaf(env), *y = cairn_relu(x), *other = cairn_sum(cairn_relu(leaf(env)));
    cairn_tensor *made = cairn_custom(&op, other, CAIRN_F32, CAIRN_SHAPE(4), (cairn_tensor *[]){y, y}, 2);
    assert_int_equal(cairn_backward(cairn_sum(made)), CAIRN_OK);
    assert_grad(x, FLOATS(2, 0, 6, 0), 4);
    assert_int_equal(cairn_backward(other), CAIRN_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(results_without_a_graph_die_with_the_outermost_scope),
        ENV_TEST(stale_use_is_refused_for_three_scopes),
        ENV_TEST(scopes_use_the_same_memory_again),
        ENV_TEST(step_may_begin_within_a_scope),
        ENV_TEST(evaluation_under_a_hook_leaves_graphs_intact),
        ENV_TEST(detached_value_shares_memory_and_stops_gradients),
        ENV_TEST(retained_graph_can_be_walked_again),
        ENV_TEST(losses_of_one_graph_add_up_and_equal_their_sum),
        ENV_TEST(second_backward_accumulates_gradients_of_parameters),
        ENV_TEST(backward_of_many_elements_begins_with_the_users_gradient),
        ENV_TEST(a_given_gradient_brings_its_scale),
        ENV_TEST(a_spared_result_gives_its_memory_back),
        ENV_TEST(users_gradient_must_fit),
        ENV_TEST(double_leaf_has_a_double_gradient),
        ENV_TEST(shared_gradients_are_not_written),
        ENV_TEST(gradients_take_what_lives_and_not_the_sum),
        ENV_TEST(steady_step_allocates_nothing_and_grows_no_more),
        ENV_TEST(failed_backward_gives_its_memory_back),
        ENV_TEST(weights_gradients_come_before_inputs_gradients),
        ENV_TEST(custom_operation_has_the_users_gradient),
        ENV_TEST(failure_of_a_custom_operation_names_it),
        ENV_TEST(custom_operations_arguments_are_checked),
        ENV_TEST(functions_for_a_gpu_are_not_called_on_the_cpu),
        ENV_TEST(backward_is_not_disturbed_by_what_it_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
