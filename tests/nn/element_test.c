/* Elementwise operations and reductions beyond their cases: edge values, result types, errors, a device that only has
 * the passes of passes.h, and steps that allocate nothing. */
#include <math.h>
#include <string.h>

#include "nn/tensor.h"
#include "test_env.h"

static cairn_tensor *row(cairn_env *env, int n, const float *values) {
    const int64_t shape[] = {n};
    return cairn_tensor_from(env, CAIRN_F32, 1, shape, values);
}

#define ROW(...) row(env, (int)(sizeof((float[]){__VA_ARGS__}) / sizeof(float)), (const float[]){__VA_ARGS__})

/* Bits, but that any NaN is NaN. */
static void assert_row(const cairn_tensor *t, int n, const float *want) {
    float got[16];
    if (!t) fail_msg("%s", cairn_last_error());
    assert_int_equal(cairn_tensor_read(t, got, (size_t)n), CAIRN_OK);
    for (int i = 0; i < n; i++) {
        if (isnan(want[i]) ? isnan(got[i]) : memcmp(&got[i], &want[i], sizeof(float)) == 0) continue;
        fail_msg("element %d: %g, want %g", i, (double)got[i], (double)want[i]);
    }
}

#define ASSERT_ROW(t, ...) \
    assert_row(t, (int)(sizeof((float[]){__VA_ARGS__}) / sizeof(float)), (const float[]){__VA_ARGS__})

/* ---- edge values ---- */

static void nan_stays_where_torch_keeps_it(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ROW(NAN, 1, -1), *y = ROW(0, NAN, NAN);
    ASSERT_ROW(cairn_relu(x), NAN, 1, 0);
    ASSERT_ROW(cairn_clamp(x, -0.5, 0.5), NAN, 0.5f, -0.5f);
    ASSERT_ROW(cairn_maximum(x, y), NAN, NAN, NAN);
    ASSERT_ROW(cairn_minimum(x, y), NAN, NAN, NAN);
    ASSERT_ROW(cairn_max(x), NAN);
    ASSERT_ROW(cairn_amin(x, CAIRN_DIMS(0), 0), NAN);
    ASSERT_ROW(cairn_argmax(ROW(3, NAN, 9, NAN), 0, 0), 1);
    ASSERT_ROW(cairn_argmin(ROW(3, NAN, 9, NAN), 0, 0), 1);
    ASSERT_ROW(cairn_norm(x, (double)INFINITY, 0, NULL, 0), NAN);
    ASSERT_ROW(cairn_cast(cairn_eq(x, x), CAIRN_F32), 0, 1, 1);
    ASSERT_ROW(cairn_cast(cairn_ne(x, x), CAIRN_F32), 1, 0, 0);
}

static void infinities_and_zeros_keep_their_signs(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ROW(-0.0f, 0.0f, -INFINITY, INFINITY);
    ASSERT_ROW(cairn_neg(x), 0.0f, -0.0f, INFINITY, -INFINITY);
    ASSERT_ROW(cairn_abs(x), 0.0f, 0.0f, INFINITY, INFINITY);
    ASSERT_ROW(cairn_reciprocal(x), -INFINITY, INFINITY, -0.0f, 0.0f);
    ASSERT_ROW(cairn_mul_scalar(x, 2), -0.0f, 0.0f, -INFINITY, INFINITY);
    ASSERT_ROW(cairn_mul_scalar(cairn_slice(x, 0, 0, 4, 2), 2), -0.0f, -INFINITY);
    ASSERT_ROW(cairn_exp(x), 1, 1, 0, INFINITY);
    ASSERT_ROW(cairn_tanh(x), -0.0f, 0.0f, -1, 1);
    ASSERT_ROW(cairn_sigmoid(x), 0.5f, 0.5f, 0, 1);
    ASSERT_ROW(cairn_log(ROW(0, -1, INFINITY)), -INFINITY, NAN, INFINITY);
    ASSERT_ROW(cairn_div(ROW(1, -1, 0), ROW(0, 0, 0)), INFINITY, -INFINITY, NAN);
    ASSERT_ROW(cairn_pow(ROW(0, 0, 2, -8), ROW(0, -1, -INFINITY, 3)), 1, INFINITY, 0, -512);
}

/* The gradient of the sum of y. */
static const float *slope(cairn_tensor *x, cairn_tensor *y) {
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    return cairn_tensor_grad(x);
}

static cairn_tensor *wanted(cairn_tensor *x) {
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    return x;
}

static void assert_slope(cairn_tensor *x, cairn_tensor *y, int n, const float *want) {
    const float *got = slope(x, y);
    for (int i = 0; i < n; i++) {
        if (got[i] != want[i]) fail_msg("slope %d: %g, want %g", i, (double)got[i], (double)want[i]);
    }
    cairn_tensor_clear_grad(x);
}

#define ASSERT_SLOPE(x, y, ...) \
    assert_slope(x, y, (int)(sizeof((float[]){__VA_ARGS__}) / sizeof(float)), (const float[]){__VA_ARGS__})

static void slopes_at_kinks_are_torchs(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = wanted(ROW(0, -1, 1));
    ASSERT_SLOPE(x, cairn_relu(x), 0, 0, 1);
    ASSERT_SLOPE(x, cairn_abs(x), 0, -1, 1);
    ASSERT_SLOPE(x, cairn_clamp(x, -1, 1), 1, 1, 1);
    ASSERT_SLOPE(x, cairn_clamp(x, -0.5, 0.5), 1, 0, 0);
    ASSERT_SLOPE(x, cairn_maximum(x, ROW(0, 0, 0)), 0.5f, 0, 1);
    ASSERT_SLOPE(x, cairn_minimum(x, ROW(0, 0, 0)), 0.5f, 1, 0);
    ASSERT_SLOPE(x, cairn_max(cairn_mul(x, x)), 0, -1, 1);
    ASSERT_SLOPE(x, cairn_pow_scalar(x, 0), 0, 0, 0);
    ASSERT_SLOPE(x, cairn_scalar_pow(0, x), 0, -INFINITY, 0);
    ASSERT_SLOPE(x, cairn_scalar_pow(1, x), 0, 0, 0);
    ASSERT_SLOPE(x, cairn_pow(ROW(0, 0, 0), x), 0, -INFINITY, 0);
    ASSERT_SLOPE(x, cairn_norm(cairn_mul_scalar(x, 0), 2, 0, NULL, 0), 0, 0, 0);
    ASSERT_SLOPE(x, cairn_prod(x, 0, 0), -1, 0, 0);
    ASSERT_SLOPE(x, cairn_where(cairn_gt(x, ROW(0, 0, 0)), x, cairn_log(ROW(1, 1, 1))), 0, 0, 1);
}

/* ---- types ---- */

static cairn_tensor *of_type(cairn_env *env, cairn_dtype dtype) {
    return cairn_full(env, dtype, CAIRN_SHAPE(2), 3);
}

static void types_of_results_follow_torch(void **state) {
    static const struct {
        cairn_dtype a, b, sum, quotient;
    } rules[] = {
        {CAIRN_F16, CAIRN_BF16, CAIRN_F32, CAIRN_F32}, {CAIRN_F16, CAIRN_F32, CAIRN_F32, CAIRN_F32},
        {CAIRN_F64, CAIRN_F16, CAIRN_F64, CAIRN_F64},  {CAIRN_BF16, CAIRN_BF16, CAIRN_BF16, CAIRN_BF16},
        {CAIRN_I64, CAIRN_F16, CAIRN_F16, CAIRN_F16},  {CAIRN_I64, CAIRN_I32, CAIRN_I64, CAIRN_F32},
        {CAIRN_I32, CAIRN_BOOL, CAIRN_I32, CAIRN_F32}, {CAIRN_BOOL, CAIRN_BOOL, CAIRN_BOOL, CAIRN_F32},
    };
    cairn_env *env = test_env_of(state);
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        cairn_tensor *a = of_type(env, rules[i].a), *b = of_type(env, rules[i].b);
        assert_int_equal(cairn_tensor_dtype(cairn_add(a, b)), rules[i].sum);
        assert_int_equal(cairn_tensor_dtype(cairn_add(b, a)), rules[i].sum);
        assert_int_equal(cairn_tensor_dtype(cairn_div(a, b)), rules[i].quotient);
        assert_int_equal(cairn_tensor_dtype(cairn_where(cairn_lt(a, b), a, b)), rules[i].sum);
        assert_int_equal(cairn_tensor_dtype(cairn_lt(a, b)), CAIRN_BOOL);
    }
}

static void integers_stay_integers_where_they_can(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = of_type(env, CAIRN_I32), *mask = of_type(env, CAIRN_BOOL);
    assert_int_equal(cairn_tensor_dtype(cairn_mul_scalar(x, 2)), CAIRN_I32);
    assert_int_equal(cairn_tensor_dtype(cairn_mul_scalar(x, 2.5)), CAIRN_F32);
    ASSERT_ROW(cairn_mul_scalar(x, 2.5), 7.5f, 7.5f);
    assert_int_equal(cairn_tensor_dtype(cairn_clamp(x, 0, (double)INFINITY)), CAIRN_I32);
    assert_int_equal(cairn_tensor_dtype(cairn_exp(x)), CAIRN_F32);
    assert_int_equal(cairn_tensor_dtype(cairn_sum(x)), CAIRN_I64);
    assert_int_equal(cairn_tensor_dtype(cairn_sum(mask)), CAIRN_I64);
    ASSERT_ROW(cairn_sum_dims(mask, CAIRN_DIMS(0), 0), 2);
    assert_int_equal(cairn_tensor_dtype(cairn_amax(x, 0, NULL, 0)), CAIRN_I32);
    assert_int_equal(cairn_tensor_dtype(cairn_argmax(x, 0, 0)), CAIRN_I64);
    const int64_t big[] = {INT64_C(9007199254740991), -7};
    cairn_tensor *exact = cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(2), big);
    int64_t got[2];
    assert_int_equal(cairn_tensor_read_as(cairn_mul_scalar(exact, -1), CAIRN_I64, got, 2), CAIRN_OK);
    assert_true(got[0] == -big[0] && got[1] == 7);
}

static void only_float_results_require_gradients(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = wanted(ROW(1, 2));
    assert_false(cairn_lt(x, ROW(1, 3))->wants_grad);
    assert_false(cairn_cast(x, CAIRN_I64)->wants_grad);
    assert_false(cairn_argmax(x, 0, 0)->wants_grad);
    assert_true(cairn_cast(x, CAIRN_F64)->wants_grad);
}

static void a_half_gradient_of_a_broadcast_is_summed_in_f32(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = wanted(cairn_full(env, CAIRN_F16, CAIRN_SHAPE(1), 1));
    cairn_tensor *ones = cairn_full(env, CAIRN_F16, CAIRN_SHAPE(4096), 1);
    ASSERT_SLOPE(x, cairn_mul(x, ones), 4096); /* a f16 sum of ones ends at 2048 */
    ASSERT_SLOPE(x, cairn_add(x, ones), 4096);
}

/* ---- what is refused ---- */

static void wrong_shapes_and_dimensions_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2, 3)), *y = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(4)),
                 *empty = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(3, 0));
    NO_TENSOR(cairn_mul(x, y), "mul: [2, 3] and [4] do not broadcast: sizes 3 and 4 in dimension -1");
    NO_TENSOR(cairn_addcmul(x, x, y, 1), "addcmul: [2, 3] and [4] do not broadcast: sizes 3 and 4 in dimension -1");
    NO_TENSOR(
        cairn_prelu(x, y),
        "prelu: x is [2, 3], but weight is [4]; weight must have one element, or one for each index of dimension 1");
    NO_TENSOR(cairn_sum_dims(x, CAIRN_DIMS(2), 0), "sum_dims: dimension 2 of a tensor with 2 dimensions");
    NO_TENSOR(cairn_var(x, CAIRN_DIMS(1, -1), 1, 0), "var: dimension 1 is named twice");
    NO_TENSOR(cairn_amax(x, -1, NULL, 0), "amax: num_dims is -1; it must be from 0 (all) to 8");
    NO_TENSOR(cairn_mean_dims(x, 1, NULL, 0), "mean_dims: dims is NULL");
    NO_TENSOR(cairn_cumsum(x, -3), "cumsum: dimension -3 of a tensor with 2 dimensions");
    NO_TENSOR(cairn_max(empty), "amax: [3, 0]: a reduced dimension has size 0");
    NO_TENSOR(cairn_argmin(empty, 1, 0), "argmin: [3, 0]: a reduced dimension has size 0");
    NO_TENSOR(cairn_norm(empty, (double)INFINITY, CAIRN_DIMS(1), 0), "norm: [3, 0]: a reduced dimension has size 0");
    assert_non_null(cairn_argmax(empty, 0, 0));
}

static void bound_that_is_nan_makes_all_nan(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1), 3);
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    assert_true(isnan(cairn_tensor_item(cairn_clamp(x, 0, (double)NAN))));
    assert_int_equal(cairn_backward(cairn_clamp(x, (double)NAN, 9)), CAIRN_OK);
    assert_true(cairn_tensor_grad(x)[0] == 0);
}

static void wrong_types_and_numbers_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ROW(1, 2), *n = of_type(env, CAIRN_I64), *mask = of_type(env, CAIRN_BOOL);
    NO_TENSOR(cairn_neg(mask), "neg: the input is bool; cast it to a number first");
    NO_TENSOR(cairn_sub(mask, mask), "sub: the input is bool; cast it to a number first");
    NO_TENSOR(cairn_pow_scalar(n, -2), "pow_scalar: the exponent is -2, but x has integers; cast x to a float first");
    assert_int_equal(cairn_tensor_dtype(cairn_pow_scalar(n, -1.5)), CAIRN_F32);
    NO_TENSOR(cairn_where(x, x, x), "where: the condition is f32; it must be bool");
    NO_TENSOR(cairn_mean(n), "mean: the input is i64; cast it to a float first");
    NO_TENSOR(cairn_std(mask, 0, NULL, 1, 0), "std: the input is bool; cast it to a float first");
    NO_TENSOR(cairn_norm(x, 3, 0, NULL, 0), "norm: p is 3; it must be 1, 2 or INFINITY");
    NO_TENSOR(cairn_norm(x, (double)NAN, 0, NULL, 0), "norm: p is nan; it must be 1, 2 or INFINITY");
    NO_TENSOR(cairn_cast(x, (cairn_dtype)-1), "cast: dtype is -1; it must be an element type");
}

/* x86 has the smallest value for all of them. */
static void integers_take_the_nearest_value_they_have(void **state) {
    cairn_env *env = test_env_of(state);
    static const float most = 0x1p31f - 128, beyond = 0x1p31f;
    cairn_tensor *x = ROW(3e9f, -3e9f, NAN, INFINITY, -INFINITY, -1.9f, 1e30f, -1e30f, most);
    ASSERT_ROW(cairn_cast(x, CAIRN_I32), beyond, -beyond, 0, beyond, -beyond, -1, beyond, -beyond, most);
    ASSERT_ROW(cairn_cast(x, CAIRN_I64), 3e9f, -3e9f, 0, 0x1p63f, -0x1p63f, -1, 0x1p63f, -0x1p63f, most);
    ASSERT_ROW(cairn_cast(cairn_cast(x, CAIRN_F64), CAIRN_I32), beyond, -beyond, 0, beyond, -beyond, -1, beyond,
               -beyond, most);
    cairn_tensor *large = cairn_full(env, CAIRN_I64, CAIRN_SHAPE(2), 0x1p62);
    ASSERT_ROW(cairn_add(large, large), 0x1p63f, 0x1p63f);
    ASSERT_ROW(cairn_mul(large, cairn_neg(large)), -0x1p63f, -0x1p63f);
    ASSERT_ROW(cairn_sum(large), 0x1p63f);
    ASSERT_ROW(cairn_cumsum(large, 0), 0x1p62f, 0x1p63f);
    ASSERT_ROW(cairn_cast(large, CAIRN_I32), beyond, beyond);
}

/* A tensor without dimensions has one to name: 0, or -1. */
static void scalars_are_reduced_along_their_last_dimension(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_full(env, CAIRN_F32, 0, NULL, 3);
    ASSERT_ROW(cairn_sum_dims(x, CAIRN_DIMS(-1), 0), 3);
    ASSERT_ROW(cairn_var(x, CAIRN_DIMS(-1), 0, 1), 0);
    ASSERT_ROW(cairn_prod(x, -1, 0), 3);
    ASSERT_ROW(cairn_amax(x, CAIRN_DIMS(-1), 0), 3);
    ASSERT_ROW(cairn_argmax(x, -1, 1), 0);
    NO_TENSOR(cairn_sum_dims(x, CAIRN_DIMS(0, -1), 0), "sum_dims: dimension 0 is named twice");
    NO_TENSOR(cairn_sum_dims(x, CAIRN_DIMS(-2), 0), "sum_dims: dimension -2 of a tensor with 1 dimensions");
    NO_TENSOR(cairn_sum_dims(cairn_sum_dims(x, CAIRN_DIMS(1), 0), -1, NULL, 0),
              "sum_dims: dimension 1 of a tensor with 1 dimensions"); /* the first cause */
}

static void shapes_beyond_memory_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *one = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(1));
    const int64_t huge = INT64_C(1) << 40;
    cairn_tensor *column = cairn_expand(one, CAIRN_SHAPE(huge, 1)), *wide = cairn_expand(one, CAIRN_SHAPE(1, huge));
    assert_non_null(column);
    NO_TENSOR(cairn_add(column, wide),
              "add: the result [1099511627776, 1099511627776] has more elements than memory can hold");
    cairn_tensor *none = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(0, 1, 1));
    NO_TENSOR(cairn_add(cairn_add(none, column), wide), /* its strides could not be counted */
              "add: the result [0, 1099511627776, 1099511627776] has more elements than memory can hold");
}

/* ---- a device that has passes.h alone ---- */

static void a_device_without_math_computes_what_passes_can(void **state) {
    cairn_env *env = test_env_of(state);
    const struct cairn__math *math = env->device->math;
    cairn_tensor *x = wanted(ROW(1, -2, 3, 4)), *y = ROW(4, 3, 2, 1);
    cairn_tensor *every_second = cairn_slice(y, 0, 0, 4, 2);
    env->device->math = NULL;
    ASSERT_SLOPE(x, cairn_relu(cairn_mul_scalar(cairn_add(x, y), 2)), 2, 2, 2, 2);
    ASSERT_SLOPE(x, cairn_mean(cairn_cast(cairn_cast(x, CAIRN_F16), CAIRN_F32)), 0.25f, 0.25f, 0.25f, 0.25f);
    NO_TENSOR(cairn_exp(x), "exp: 'cpu' does not compute it yet; use device \"cpu\"");
    NO_TENSOR(cairn_add(x, ROW(1)), "add: 'cpu' does not compute it yet; use device \"cpu\"");
    NO_TENSOR(cairn_relu(every_second), "relu: 'cpu' does not compute it yet; use device \"cpu\"");
    NO_TENSOR(cairn_sum(every_second), "sum: 'cpu' does not compute it yet; use device \"cpu\"");
    NO_TENSOR(cairn_cast(x, CAIRN_F64), "cast: 'cpu' does not compute it yet; use device \"cpu\"");
    env->device->math = math;
}

/* ---- steps ---- */

static cairn_tensor *one_of_everything(cairn_tensor *x, cairn_tensor *bias) {
    cairn_tensor *y = cairn_gelu(cairn_add(cairn_mul(x, bias), bias));
    cairn_tensor *z = cairn_div(y, cairn_add_scalar(cairn_norm(y, 2, CAIRN_DIMS(1), 1), 1));
    z = cairn_add(z, cairn_std(y, CAIRN_DIMS(1), 1, 1));
    z = cairn_sub(z, cairn_amax(y, CAIRN_DIMS(0), 0));
    z = cairn_mul(cairn_cumsum(z, 1), cairn_mean_dims(cairn_cumprod(z, 0), CAIRN_DIMS(0), 0));
    return cairn_mean(cairn_mul(z, cairn_where(cairn_gt(z, bias), z, y)));
}

static void steps_allocate_nothing_once_they_have_run(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_randn(env, CAIRN_BF16, CAIRN_SHAPE(9, 33)),
                 *bias = wanted(cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(33)));
    uint64_t calls = 0;
    for (int step = 0; step < 12; step++) {
        if (step == 6) calls = cairn__alloc_counters().allocations;
        assert_int_equal(cairn_backward(one_of_everything(x, bias)), CAIRN_OK);
        env->begin_step(env);
    }
    assert_int_equal(cairn__alloc_counters().allocations, calls);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(nan_stays_where_torch_keeps_it),
        ENV_TEST(infinities_and_zeros_keep_their_signs),
        ENV_TEST(slopes_at_kinks_are_torchs),
        ENV_TEST(types_of_results_follow_torch),
        ENV_TEST(integers_stay_integers_where_they_can),
        ENV_TEST(only_float_results_require_gradients),
        ENV_TEST(a_half_gradient_of_a_broadcast_is_summed_in_f32),
        ENV_TEST(wrong_shapes_and_dimensions_are_refused),
        ENV_TEST(bound_that_is_nan_makes_all_nan),
        ENV_TEST(wrong_types_and_numbers_are_refused),
        ENV_TEST(integers_take_the_nearest_value_they_have),
        ENV_TEST(scalars_are_reduced_along_their_last_dimension),
        ENV_TEST(shapes_beyond_memory_are_refused),
        ENV_TEST(a_device_without_math_computes_what_passes_can),
        ENV_TEST(steps_allocate_nothing_once_they_have_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
