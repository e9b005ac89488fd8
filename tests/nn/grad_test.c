/* Gradients that finite differences (op_cases.h) cannot check: at kinks, of several uses, over several backwards, of
 * parameters, rounded. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "ddp/context.h"
#include "nn/tensor.h"
#include "test_env.h"

static void relu_has_no_gradient_at_zero(void **state) {
    cairn_env *env = test_env_of(state);
    const float data[] = {0.0f, -0.0f, -1, 2};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(4), data);
    cairn_tensor_require_grad(x);
    assert_int_equal(cairn_backward(cairn_sum(cairn_relu(x))), CAIRN_OK);
    const float want[] = {0, 0, 0, 1};
    assert_memory_equal(cairn_tensor_grad(x), want, sizeof(want));
}

/* ---- a NaN passes the gradient on ---- */

static cairn_tensor *relu_of(cairn_tensor *x, cairn_tensor *one) {
    (void)one;
    return cairn_relu(x);
}
static cairn_tensor *maximum_of(cairn_tensor *x, cairn_tensor *one) {
    return cairn_maximum(x, one);
}
static cairn_tensor *maximum_with(cairn_tensor *x, cairn_tensor *one) {
    return cairn_maximum(one, x);
}
static cairn_tensor *minimum_of(cairn_tensor *x, cairn_tensor *one) {
    return cairn_minimum(x, one);
}
static cairn_tensor *minimum_with(cairn_tensor *x, cairn_tensor *one) {
    return cairn_minimum(one, x);
}
static cairn_tensor *max_of(cairn_tensor *x, cairn_tensor *one) {
    (void)one;
    return cairn_max(x);
}
static cairn_tensor *min_of(cairn_tensor *x, cairn_tensor *one) {
    (void)one;
    return cairn_min(x);
}
static cairn_tensor *amax_of(cairn_tensor *x, cairn_tensor *one) {
    (void)one;
    return cairn_amax(x, CAIRN_DIMS(3), 0);
}
static cairn_tensor *amin_of(cairn_tensor *x, cairn_tensor *one) {
    (void)one;
    return cairn_amin(x, CAIRN_DIMS(3), 0);
}
static cairn_tensor *max_pool_of(cairn_tensor *x, cairn_tensor *one) {
    (void)one;
    return cairn_max_pool2d(x, 1, 4, NULL);
}
static cairn_tensor *clamp_of(cairn_tensor *x, cairn_tensor *one) {
    (void)one;
    return cairn_clamp(x, -1, 1);
}

/* x is -3, -2, -1, 0, 1, NaN, 3, 4, as two rows. Each row is what PyTorch gives, but that of max, min, amax and amin:
 * there the result's NaN belongs to the NaN alone, where PyTorch divides by the number of elements equal to it, 0, and
 * makes every gradient NaN. */
static const struct nan_row {
    const char *name;
    cairn_tensor *(*f)(cairn_tensor *x, cairn_tensor *one);
    float want[8];
} nan_rows[] = {
    {"relu", relu_of, {0, 0, 0, 0, 1, 1, 1, 1}},
    {"maximum(x, 1)", maximum_of, {0, 0, 0, 0, 0.5f, 1, 1, 1}},
    {"maximum(1, x)", maximum_with, {0, 0, 0, 0, 0.5f, 1, 1, 1}},
    {"minimum(x, 1)", minimum_of, {1, 1, 1, 1, 0.5f, 1, 0, 0}},
    {"minimum(1, x)", minimum_with, {1, 1, 1, 1, 0.5f, 1, 0, 0}},
    {"max", max_of, {0, 0, 0, 0, 0, 1, 0, 0}},
    {"min", min_of, {0, 0, 0, 0, 0, 1, 0, 0}},
    {"amax of rows", amax_of, {0, 0, 0, 1, 0, 1, 0, 0}},
    {"amin of rows", amin_of, {1, 0, 0, 0, 0, 1, 0, 0}},
    {"max_pool2d of rows", max_pool_of, {0, 0, 0, 1, 0, 1, 0, 0}},
    {"clamp", clamp_of, {0, 0, 1, 1, 1, 0, 0, 0}},
};

static void check_nan_row(cairn_env *env, const struct nan_row *row, cairn_dtype dtype) {
    const float values[8] = {-3, -2, -1, 0, 1, NAN, 3, 4};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 1, 2, 4), values);
    cairn_tensor *one = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1, 1, 2, 4), 1);
    double got[8];
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    assert_int_equal(cairn_backward(cairn_sum(row->f(cairn_cast(x, dtype), cairn_cast(one, dtype)))), CAIRN_OK);
    assert_int_equal(cairn_tensor_read_grad(x, got, 8), CAIRN_OK);
    for (int i = 0; i < 8; i++) {
        if (got[i] == (double)row->want[i]) continue;
        fail_msg("%s, %s: element %d has the gradient %g, not %g", row->name, cairn_dtype_name(dtype), i, got[i],
                 (double)row->want[i]);
    }
}

static void nan_inputs_pass_the_gradient_on(void **state) {
    for (size_t r = 0; r < sizeof(nan_rows) / sizeof(nan_rows[0]); r++) {
        for (cairn_dtype dtype = CAIRN_F32; dtype <= CAIRN_BF16; dtype++)
            check_nan_row(test_env_of(state), &nan_rows[r], dtype);
    }
}

/* scale_loss has no case of its own: its scale stands in device memory. */
static void scaled_loss_has_scaled_gradients(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_full(env, CAIRN_F32, 0, NULL, 3), *zero = cairn_zeros(env, CAIRN_F32, 0, NULL);
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    assert_int_equal(cairn_backward(test_scale_loss(x, 4)), CAIRN_OK);
    assert_true(cairn_tensor_grad(x)[0] == 4.0f);
    cairn_tensor_clear_grad(x);
    assert_int_equal(cairn_backward(test_scale_loss(cairn_mse_loss(x, zero), 4)), CAIRN_OK);
    assert_true(cairn_tensor_grad(x)[0] == 24.0f);
}

static void tensor_used_twice_gets_the_sum(void **state) {
    cairn_env *env = test_env_of(state);
    const float data[] = {1, 2};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2), data);
    cairn_tensor_require_grad(x);
    cairn_tensor *y = cairn_mul_scalar(x, 3);
    assert_int_equal(cairn_backward(cairn_sum(cairn_add(cairn_add(y, y), x))), CAIRN_OK);
    const float want[] = {7, 7};
    assert_memory_equal(cairn_tensor_grad(x), want, sizeof(want));
}

static void leaf_adds_up_over_backwards_until_cleared(void **state) {
    cairn_env *env = test_env_of(state);
    const float data[] = {1, 2};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2), data);
    cairn_tensor_require_grad(x);
    assert_null(cairn_tensor_grad(x));
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(cairn_backward(cairn_sum(x)), CAIRN_OK);
        assert_true(cairn_tensor_grad(x)[1] == (float)i);
    }
    cairn_tensor_clear_grad(x);
    assert_null(cairn_tensor_grad(x));
    assert_int_equal(cairn_backward(cairn_sum(x)), CAIRN_OK);
    assert_true(cairn_tensor_grad(x)[0] == 1.0f);
}

static const float *slot_of(cairn_module *m, size_t i) {
    return cairn__grad_memory(cairn_module_params(m)->params[i]->gradient);
}

static void parameter_used_twice_is_written_once_with_the_sum(void **state) {
    cairn_env *env = test_env_of(state);
    const float ones[] = {1, 1, 1, 1}, twos[] = {2, 2, 2, 2};
    cairn_module *m = cairn_linear(env, 2, 2);
    cairn_tensor *a = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 2), ones);
    cairn_tensor *b = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 2), twos);
    cairn_tensor *loss = cairn_add(cairn_sum(cairn_module_forward(m, a)), cairn_sum(cairn_module_forward(m, b)));
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    for (int i = 0; i < 4; i++) assert_true(slot_of(m, 0)[i] == 6.0f);
    for (int i = 0; i < 2; i++) assert_true(slot_of(m, 1)[i] == 4.0f);
    assert_false(cairn__grad_is_accumulated(cairn_module_params(m)->params[0]->gradient));
    cairn_module_destroy(&m);
}

/* ---- what a backward says before it begins ---- */

struct beginning {
    struct cairn__grad_listener listener;
    const cairn_param_set *set;
    unsigned reached, ready; /* a bit a parameter */
    int begins, failures;
    bool refuses;
};

static cairn_status note_reached(void *ctx) {
    struct beginning *b = ctx;
    b->begins++;
    b->reached = b->ready = 0;
    for (size_t i = 0; i < b->set->count; i++) b->reached |= (unsigned)cairn__param_is_reached(b->set->params[i]) << i;
    return b->refuses ? cairn__fail(CAIRN_ESTATE, "not this one") : CAIRN_OK;
}
static void note_written(void *ctx, size_t index) {
    ((struct beginning *)ctx)->ready |= 1u << index;
}
static cairn_status never_stop(void *ctx) {
    (void)ctx;
    return CAIRN_OK;
}
static void note_failure(void *ctx) {
    ((struct beginning *)ctx)->failures++;
}

static void listen_to(struct beginning *b, cairn_module *m) {
    *b = (struct beginning){.set = cairn_module_params(m),
                            .listener = {.ctx = b,
                                         .begin = note_reached,
                                         .ready = note_written,
                                         .progress = never_stop,
                                         .settle = never_stop,
                                         .failed = note_failure}};
    cairn_module_params(m)->listener = &b->listener;
}

/* Of two modules, weights (bit 0) and biases (bit 1). */
static void backward_announces_the_gradients_it_will_write(void **state) {
    static const unsigned cases[][2] = {{3, 3}, {1, 2}, {2, 0}, {0, 1}, {3, 1}, {1, 0}};
    cairn_env *env = test_env_of(state);
    cairn_module *m[2];
    struct beginning b[2];
    for (int k = 0; k < 2; k++) {
        m[k] = cairn_linear(env, 2, 2);
        listen_to(&b[k], m[k]);
    }
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        cairn_tensor *loss = cairn_zeros(env, CAIRN_F32, 0, NULL);
        b[0].begins = b[1].begins = 0;
        for (int bit = 0; bit < 4; bit++) {
            cairn_tensor *t = cairn_module_get(m[bit / 2], bit % 2 ? "bias" : "weight");
            if (cases[c][bit / 2] >> bit % 2 & 1) loss = cairn_add(loss, cairn_sum(cairn_mul(t, t)));
        }
        assert_int_equal(cairn_backward(loss), CAIRN_OK);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(b[k].begins, cases[c][k] != 0);
            if (cases[c][k]) assert_true(b[k].reached == cases[c][k] && b[k].ready == cases[c][k]);
        }
    }
    for (int k = 0; k < 2; k++) cairn_module_destroy(&m[k]);
}

static void backward_that_is_refused_writes_nothing(void **state) {
    cairn_env *env = test_env_of(state);
    struct beginning b;
    cairn_module *m = cairn_linear(env, 2, 2);
    listen_to(&b, m);
    b.refuses = true;
    cairn_tensor *loss = cairn_sum(cairn_module_forward(m, cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2, 2))));
    assert_int_equal(cairn_backward(loss), CAIRN_ESTATE);
    assert_string_equal(cairn_last_error(), "not this one");
    assert_true(b.ready == 0 && b.failures == 1 && !b.set->in_backward);
    for (size_t i = 0; i < 2; i++) assert_false(cairn__grad_is_written(b.set->params[i]->gradient));
    cairn_module_destroy(&m);
}

static void two_backwards_accumulate_in_parameters(void **state) {
    cairn_env *env = test_env_of(state);
    const float ones[] = {1, 1, 1, 1};
    cairn_module *m = cairn_linear(env, 2, 2);
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 2), ones);
    for (int i = 0; i < 2; i++) assert_int_equal(cairn_backward(cairn_sum(cairn_module_forward(m, x))), CAIRN_OK);
    struct cairn__grad_view grad;
    assert_int_equal(cairn__grad_prepare_read(cairn_module_params(m)->params[0]->gradient, &grad), CAIRN_OK);
    for (int i = 0; i < 4; i++) assert_true(((const float *)grad.x)[i] * (grad.factor ? *grad.factor : 1) == 4.0f);
    cairn_module_destroy(&m);
}

/* loss = sum(y) in f32 of an f16 y, scaled by 2^17: torch's f16 gradient of y is inf, so everything before it is. */
static void half_gradient_beyond_its_range_is_infinite(void **state) {
    cairn_env *env = test_env_of(state);
    const float ones[] = {1, 1, 1, 1};
    for (int i = 0; i < 2; i++) {
        const cairn_dtype half = i ? CAIRN_BF16 : CAIRN_F16;
        cairn_module *m = cairn_linear(env, 2, 2);
        cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 2), ones);
        cairn_tensor *y = cairn_cast(cairn_module_forward(m, x), half);
        cairn_tensor *loss = test_scale_loss(cairn_sum(cairn_cast(y, CAIRN_F32)), 131072);
        assert_int_equal(cairn_backward(loss), CAIRN_OK);
        if (half == CAIRN_F16) {
            assert_true(isinf(slot_of(m, 0)[0]));
        } else {
            assert_true(slot_of(m, 0)[0] == 262144.0f); /* bf16 has f32's range */
        }
        cairn_module_destroy(&m);
    }
}

/* A graph of half values: each gradient is rounded to the type of what it belongs to. 1 + 2^-11 is no f16 number. */
static void half_leaf_gradient_is_rounded_to_its_type(void **state) {
    cairn_env *env = test_env_of(state);
    const uint16_t one = 0x3c00;
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F16, 0, NULL, &one);
    cairn_tensor_require_grad(x);
    cairn_tensor *y = cairn_mul_scalar(cairn_cast(x, CAIRN_F32), 1 + 0x1p-11 + 0x1p-20);
    assert_int_equal(cairn_backward(y), CAIRN_OK);
    assert_true(cairn_tensor_grad(x)[0] == 1 + 0x1p-10f);
}

static void half_parameter_gets_a_half_gradient(void **state) {
    cairn_env *env = test_env_of(state);
    const uint16_t ones[] = {0x3c00, 0x3c00, 0x3c00, 0x3c00};
    cairn_module *m = cairn_linear(env, 2, 2);
    assert_int_equal(cairn__param_set_to_half(cairn_module_params(m), CAIRN_F16, true, false), CAIRN_OK);
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F16, CAIRN_SHAPE(2, 2), ones);
    cairn_tensor *y = cairn_module_forward(m, x);
    assert_int_equal(cairn_tensor_dtype(y), CAIRN_F16);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    const uint16_t *dw = (const uint16_t *)slot_of(m, 0);
    for (int i = 0; i < 4; i++) assert_int_equal(dw[i], 0x4000); /* 2 */
    cairn_module_destroy(&m);
}

/* Beyond 2048 f16 has even numbers only. The second use's gradient of 2048.5 is rounded to the parameter's type, 2048;
 * the f32 sum 1025 + 2048 = 3073 is a tie that goes to 3072. (Unrounded contributions would have made 3073.5, so
 * 3074.) */
static void half_parameter_used_twice_sums_rounded_contributions_in_f32(void **state) {
    cairn_env *env = test_env_of(state);
    enum { ROWS = 3 };
    const float a[ROWS] = {1024, 1, 0}, b[ROWS] = {1024, 1024, 0.5f};
    cairn_module *m = cairn_linear(env, 1, 1);
    assert_int_equal(cairn__param_set_to_half(cairn_module_params(m), CAIRN_F16, true, false), CAIRN_OK);
    cairn__module_set_io_types(m, CAIRN_F16, CAIRN_F32);
    cairn_tensor *xa = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ROWS, 1), a);
    cairn_tensor *xb = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ROWS, 1), b);
    for (int again = 0; again < 2; again++) {
        cairn__param_set_zero_grad(cairn_module_params(m));
        cairn_tensor *one = cairn_sum(cairn_module_forward(m, xa)), *two = cairn_sum(cairn_module_forward(m, xb));
        assert_int_equal(cairn_backward(cairn_add(one, two)), CAIRN_OK);
        assert_int_equal(*(const uint16_t *)(const void *)slot_of(m, 0), 0x6a00); /* 3072 */
    }
    cairn_module_destroy(&m);
}

/* 1 + 2^-11 is no f16: the gradient of the half result is 1, that of the f32 one is not rounded. */
static void gradients_have_their_tensors_type(void **state) {
    cairn_env *env = test_env_of(state);
    const float ones[] = {1, 1}, s = 1 + 0x1p-11f;
    for (int i = 0; i < 2; i++) {
        cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2), ones);
        cairn_tensor_require_grad(x);
        cairn_tensor *y = cairn_mul_scalar(cairn_cast(cairn_cast(x, i ? CAIRN_F16 : CAIRN_F32), CAIRN_F32), s);
        assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
        assert_true(cairn_tensor_grad(x)[0] == (i ? 1 : s));
        cairn_tensor_destroy(&x);
    }
}

static cairn_tensor *by_hand(cairn_tensor *x, cairn_tensor *w, cairn_tensor *bias) {
    return cairn_sum(cairn_linear_forward(x, w, bias));
}

/* The bias gradient comes with the product for the weight, or alone. */
static void bias_gradient_does_not_depend_on_the_weights(void **state) {
    cairn_env *env = test_env_of(state);
    enum { IN = 3, OUT = 2, ROWS = 5 };
    const float data[ROWS * IN] = {1, 2, 3, 4, 5, 6};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN), data);
    cairn_tensor *w = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(OUT, IN), data);
    cairn_tensor *bias = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(OUT), data);
    cairn_tensor *nothing = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ROWS, 0), data);
    cairn_tensor *no_weight = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(OUT, 0), data);
    const float want[OUT] = {ROWS, ROWS};
    cairn_tensor_require_grad(bias);
    for (int i = 0; i < 3; i++) {
        if (i == 1) cairn_tensor_require_grad(w), cairn_tensor_require_grad(no_weight);
        cairn_tensor_clear_grad(bias);
        assert_int_equal(cairn_backward(i < 2 ? by_hand(x, w, bias) : by_hand(nothing, no_weight, bias)), CAIRN_OK);
        assert_memory_equal(cairn_tensor_grad(bias), want, sizeof(want));
    }
}

/* ---- zero_loss ---- */

struct arrivals {
    struct cairn__grad_listener listener;
    size_t order[16], count;
    int settled;
};

static void note_ready(void *ctx, size_t index) {
    struct arrivals *a = ctx;
    a->order[a->count++] = index;
}
static cairn_status note_nothing(void *ctx) {
    (void)ctx;
    return CAIRN_OK;
}
static cairn_status note_settled(void *ctx) {
    ((struct arrivals *)ctx)->settled++;
    return CAIRN_OK;
}
static void note_failed(void *ctx) {
    (void)ctx;
}

static cairn_module *deep(cairn_env *env) {
    cairn_module *inner = cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, 4, 3), cairn_linear(env, 3, 3)));
    cairn_module *norm = cairn_layer_norm(env, CAIRN_SHAPE(3), 0);
    return cairn_sequential(env, CAIRN_MODULES(inner, norm, cairn_linear(env, 3, 2)));
}

static void expect_zeros(const struct cairn_param_set *set) {
    const char zeros[64] = {0};
    for (size_t i = 0; i < set->count; i++) {
        assert_true(cairn__grad_is_written(set->params[i]->gradient));
        assert_memory_equal(cairn__grad_memory(set->params[i]->gradient), zeros,
                            set->params[i]->n * cairn_dtype_nbytes(set->params[i]->dtype));
    }
}

/* Halves beside f32 norms, and gradients of an earlier step in the slots; a scale of inf makes no NaNs. */
static void zero_loss_gives_every_parameter_a_gradient_of_zero(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = deep(env);
    struct cairn_param_set *set = cairn_module_params(m);
    assert_int_equal(cairn__param_set_to_half(set, CAIRN_F16, true, true), CAIRN_OK);
    cairn_tensor *x = cairn_randn(env, CAIRN_F16, CAIRN_SHAPE(5, 4));
    assert_int_equal(cairn_backward(cairn_sum(cairn_module_forward(m, x))), CAIRN_OK);
    assert_true(*(const uint16_t *)cairn__grad_memory(set->params[set->count - 1]->gradient) == 0x4500); /* 5 rows */
    for (int i = 0; i < 2; i++) {
        cairn__param_set_zero_grad(set);
        cairn_tensor *loss = cairn__ddp_zero_loss(m);
        assert_int_equal(cairn_backward(test_scale_loss(loss, i ? INFINITY : 1024)), CAIRN_OK);
        assert_true(cairn_tensor_item(loss) == 0);
        expect_zeros(set);
    }
    cairn_module_destroy(&m);
}

static void zero_loss_reaches_parameters_from_the_last_to_the_first(void **state) {
    cairn_env *env = test_env_of(state);
    struct arrivals a = {
        .listener = {
            .ctx = &a, .ready = note_ready, .progress = note_nothing, .settle = note_settled, .failed = note_failed}};
    cairn_module *m = deep(env);
    struct cairn_param_set *set = cairn_module_params(m);
    set->listener = &a.listener;
    assert_int_equal(cairn_backward(cairn__ddp_zero_loss(m)), CAIRN_OK);
    assert_int_equal(a.count, set->count);
    for (size_t i = 0; i < a.count; i++) assert_int_equal(a.order[i], a.count - 1 - i);
    assert_int_equal(a.settled, 1);
    set->listener = NULL;
    cairn_module_destroy(&m);
}

static void zero_loss_of_no_parameters_is_refused(void **state) {
    cairn_module *m = cairn_dropout(test_env_of(state), 0.5);
    assert_null(cairn__ddp_zero_loss(m));
    assert_string_equal(cairn_last_error(), "zero_loss: no input is given");
    cairn_module_destroy(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(relu_has_no_gradient_at_zero),
        ENV_TEST(nan_inputs_pass_the_gradient_on),
        ENV_TEST(scaled_loss_has_scaled_gradients),
        ENV_TEST(tensor_used_twice_gets_the_sum),
        ENV_TEST(zero_loss_gives_every_parameter_a_gradient_of_zero),
        ENV_TEST(zero_loss_reaches_parameters_from_the_last_to_the_first),
        ENV_TEST(zero_loss_of_no_parameters_is_refused),
        ENV_TEST(leaf_adds_up_over_backwards_until_cleared),
        ENV_TEST(parameter_used_twice_is_written_once_with_the_sum),
        ENV_TEST(backward_announces_the_gradients_it_will_write),
        ENV_TEST(backward_that_is_refused_writes_nothing),
        ENV_TEST(two_backwards_accumulate_in_parameters),
        ENV_TEST(half_gradient_beyond_its_range_is_infinite),
        ENV_TEST(half_leaf_gradient_is_rounded_to_its_type),
        ENV_TEST(half_parameter_gets_a_half_gradient),
        ENV_TEST(half_parameter_used_twice_sums_rounded_contributions_in_f32),
        ENV_TEST(gradients_have_their_tensors_type),
        ENV_TEST(bias_gradient_does_not_depend_on_the_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
