/* Gradients against central differences. Every loss here is at most quadratic in each single element and the data are
 * small multiples of powers of two, so the difference quotient is the derivative, exactly, and compared as such. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nn/tensor.h"
#include "test_env.h"

enum { MAX_ELEMENTS = 64 };

struct input {
    int ndim;
    int64_t shape[2];
    float data[MAX_ELEMENTS];
};

typedef cairn_tensor *(*build_fn)(cairn_tensor **inputs, cairn_tensor *target);

struct gradient_case {
    enum cairn__op op;
    build_fn build; /* the op on inputs, then mse_loss with a target, so that dy differs by element */
    int count;
    struct input inputs[3];
    size_t target; /* elements of the op's result, 0 = one, without dimensions */
    int target_ndim;
    int64_t target_shape[2];
};

static cairn_tensor *build_linear(cairn_tensor **in, cairn_tensor *target) {
    return cairn_mse_loss(cairn_linear_forward(in[0], in[1], in[2]), target);
}
static cairn_tensor *build_add(cairn_tensor **in, cairn_tensor *target) {
    return cairn_mse_loss(cairn_add(in[0], in[1]), target);
}
static cairn_tensor *build_mul_scalar(cairn_tensor **in, cairn_tensor *target) {
    return cairn_mse_loss(cairn_mul_scalar(in[0], -0.5), target);
}
static cairn_tensor *build_relu(cairn_tensor **in, cairn_tensor *target) {
    return cairn_mse_loss(cairn_relu(in[0]), target);
}
static cairn_tensor *build_sum(cairn_tensor **in, cairn_tensor *target) {
    return cairn_mse_loss(cairn_sum(in[0]), target);
}
static cairn_tensor *build_mean(cairn_tensor **in, cairn_tensor *target) {
    return cairn_mse_loss(cairn_mean(in[0]), target);
}
static cairn_tensor *build_mse_loss(cairn_tensor **in, cairn_tensor *target) {
    (void)target;
    return cairn_mse_loss(in[0], in[1]);
}
static cairn_tensor *build_scale_loss(cairn_tensor **in, cairn_tensor *target) {
    return cairn_mse_loss(test_scale_loss(in[0], 4), target);
}
static cairn_tensor *build_cast(cairn_tensor **in, cairn_tensor *target) {
    return cairn_mse_loss(cairn_cast(cairn_cast(in[0], CAIRN_BF16), CAIRN_F32), target);
}

#define VECTOR                                                                \
    {                                                                         \
        .ndim = 1, .shape = {8}, .data = { 1, -2, 3, -4, 2, -1, 0.5f, -0.5f } \
    }
#define OTHER                                                         \
    {                                                                 \
        .ndim = 1, .shape = {8}, .data = { 2, 2, -1, 0, 3, -3, 1, 4 } \
    }
#define VECTOR_RESULT .target = 8, .target_ndim = 1, .target_shape = {8}
static const struct gradient_case cases[] = {
    {.op = CAIRN__OP_LINEAR,
     .build = build_linear,
     .count = 3,
     .inputs = {{.ndim = 2, .shape = {4, 3}, .data = {1, 2, -1, 0, 1, 3, -2, 1, 1, 2, -1, 0}},
                {.ndim = 2, .shape = {2, 3}, .data = {1, -1, 2, 3, 0, -2}},
                {.ndim = 1, .shape = {2}, .data = {1, -3}}},
     .target = 8,
     .target_ndim = 2,
     .target_shape = {4, 2}},
    {.op = CAIRN__OP_ADD, .build = build_add, .count = 2, .inputs = {VECTOR, OTHER}, VECTOR_RESULT},
    {.op = CAIRN__OP_MUL_SCALAR, .build = build_mul_scalar, .count = 1, .inputs = {VECTOR}, VECTOR_RESULT},
    {.op = CAIRN__OP_RELU, .build = build_relu, .count = 1, .inputs = {VECTOR}, VECTOR_RESULT},
    {.op = CAIRN__OP_SUM, .build = build_sum, .count = 1, .inputs = {VECTOR}},
    {.op = CAIRN__OP_MEAN, .build = build_mean, .count = 1, .inputs = {VECTOR}},
    {.op = CAIRN__OP_MSE_LOSS, .build = build_mse_loss, .count = 2, .inputs = {VECTOR, OTHER}},
    {.op = CAIRN__OP_CAST, .build = build_cast, .count = 1, .inputs = {VECTOR}, VECTOR_RESULT},
    {.op = CAIRN__OP_SCALE_LOSS, .build = build_scale_loss, .count = 1, .inputs = {{.ndim = 0, .data = {3}}}},
};
enum { NUM_CASES = sizeof(cases) / sizeof(cases[0]) };

static cairn_tensor *run(cairn_env *env, const struct gradient_case *c, const struct input *inputs,
                         cairn_tensor **leaves) {
    float target[MAX_ELEMENTS];
    for (int i = 0; i < MAX_ELEMENTS; i++) target[i] = (float)(i % 5 - 2);
    cairn_tensor *t = cairn_tensor_from(env, CAIRN_F32, c->target_ndim, c->target_shape, target);
    for (int i = 0; i < c->count; i++) {
        leaves[i] = cairn_tensor_from(env, CAIRN_F32, inputs[i].ndim, inputs[i].shape, inputs[i].data);
        assert_int_equal(cairn_tensor_require_grad(leaves[i]), CAIRN_OK);
    }
    cairn_tensor *loss = c->build(leaves, t);
    if (!loss) fail_msg("%s", cairn_last_error());
    return loss;
}

static float value_at(cairn_env *env, const struct gradient_case *c, int input, size_t element, float step) {
    struct input moved[3];
    cairn_tensor *leaves[3];
    memcpy(moved, c->inputs, sizeof(moved));
    moved[input].data[element] += step;
    return cairn_tensor_item(run(env, c, moved, leaves));
}

static void gradients_equal_central_differences(void **state) {
    cairn_env *env = test_env_of(state);
    const float h = 0.25f;
    for (int k = 0; k < NUM_CASES; k++) {
        const struct gradient_case *c = &cases[k];
        cairn_tensor *leaves[3];
        assert_int_equal(cairn_backward(run(env, c, c->inputs, leaves)), CAIRN_OK);
        for (int i = 0; i < c->count; i++) {
            const float *grad = cairn_tensor_grad(leaves[i]);
            assert_non_null(grad);
            for (size_t j = 0; j < cairn_tensor_numel(leaves[i]); j++) {
                float want = (value_at(env, c, i, j, h) - value_at(env, c, i, j, -h)) / (2 * h);
                if (grad[j] != want) {
                    fail_msg("%s, input %d, element %zu: %g, want %g", cairn__op_name(c->op), i, j, (double)grad[j],
                             (double)want);
                }
            }
        }
    }
}

static void every_operation_has_a_gradient_case(void **state) {
    (void)state;
    char missing[256] = "";
    for (int op = 0; op < CAIRN__NUM_OPS; op++) {
        int found = 0;
        for (int k = 0; k < NUM_CASES; k++) found |= cases[k].op == (enum cairn__op)op;
        if (!found) snprintf(missing + strlen(missing), sizeof(missing) - strlen(missing), " %s", cairn__op_name(op));
    }
    if (missing[0]) fail_msg("no gradient case for:%s", missing);
}

/* ---- what differences cannot show ---- */

static void relu_has_no_gradient_at_zero_nor_at_nan(void **state) {
    cairn_env *env = test_env_of(state);
    const float data[] = {0.0f, -0.0f, NAN, 2};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(4), data);
    cairn_tensor_require_grad(x);
    assert_int_equal(cairn_backward(cairn_sum(cairn_relu(x))), CAIRN_OK);
    const float want[] = {0, 0, 0, 1};
    assert_memory_equal(cairn_tensor_grad(x), want, sizeof(want));
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
    return cairn_module_params(m)->params[i]->grad;
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
    assert_false(cairn_module_params(m)->params[0]->has_acc);
    cairn_module_destroy(&m);
}

static void two_backwards_accumulate_in_parameters(void **state) {
    cairn_env *env = test_env_of(state);
    const float ones[] = {1, 1, 1, 1};
    cairn_module *m = cairn_linear(env, 2, 2);
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 2), ones);
    for (int i = 0; i < 2; i++) assert_int_equal(cairn_backward(cairn_sum(cairn_module_forward(m, x))), CAIRN_OK);
    const void *grad = NULL;
    cairn_dtype dtype;
    const float *factor;
    assert_int_equal(cairn__param_grad_final(cairn_module_params(m)->params[0], &grad, &dtype, &factor), CAIRN_OK);
    for (int i = 0; i < 4; i++) assert_true(((const float *)grad)[i] * (factor ? *factor : 1) == 4.0f);
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

/* Beyond 2048 f16 has even numbers only. The second use's gradient of 2048.5 is rounded to the parameter's type, 2048; the
 * f32 sum 1025 + 2048 = 3073 is a tie that goes to 3072. (Unrounded contributions would have made 3073.5, so 3074.) */
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

static void gradients_have_their_tensors_type(void **state) {
    cairn_env *env = test_env_of(state);
    const uint16_t ones[] = {0x3c00, 0x3c00};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F16, CAIRN_SHAPE(2), ones);
    cairn_tensor_require_grad(x);
    cairn_tensor *y = cairn_mul_scalar(x, 3), *wide = cairn_cast(y, CAIRN_F32);
    assert_int_equal(cairn_backward(cairn_sum(cairn_mul_scalar(wide, 0.5))), CAIRN_OK);
    assert_int_equal(((const uint16_t *)y->sum)[0], 0x3800);
    assert_true(((const float *)wide->sum)[0] == 0.5f);
    assert_true(cairn_tensor_grad(x)[0] == 1.5f); /* a leaf's is f32 */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(gradients_equal_central_differences),
        ENV_TEST(every_operation_has_a_gradient_case),
        ENV_TEST(relu_has_no_gradient_at_zero_nor_at_nan),
        ENV_TEST(tensor_used_twice_gets_the_sum),
        ENV_TEST(leaf_adds_up_over_backwards_until_cleared),
        ENV_TEST(parameter_used_twice_is_written_once_with_the_sum),
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
