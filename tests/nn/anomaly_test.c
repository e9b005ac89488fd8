/* Anomaly mode, which reports the first operation with a NaN or infinity; on any device. */
#include <math.h>
#include <string.h>

#include "test_env.h"

#include "cairn/cairn.h"

static cairn_tensor *leaf_of(cairn_env *env, cairn_dtype dtype, const void *values) {
    cairn_tensor *x = cairn_tensor_from(env, dtype, CAIRN_SHAPE(4), values);
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    return x;
}

static void anomaly_error_names_the_operation_of_the_first_bad_result(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf_of(env, CAIRN_F32, (const float[]){1, 1e30f, -1e30f, 2});
    cairn_detect_anomaly(env, 1);
    cairn_tensor *y = cairn_mul_scalar(cairn_mul_scalar(x, 10), 1e20);
    assert_null(cairn_sum(cairn_relu(y)));
    assert_string_equal(
        cairn_last_error(),
        "anomaly: the result of mul_scalar([4]) has 2 inf and 0 NaN among 4 values, the first at index 1");
    assert_int_equal(cairn_backward(NULL), CAIRN_ENUMERIC);
    cairn_detect_anomaly(env, 0);
    assert_non_null(cairn_sum(cairn_mul_scalar(x, 1e30)));
    cairn_detect_anomaly(env, CAIRN_ON);
    assert_null(cairn_mul_scalar(x, 1e30));
    cairn_detect_anomaly(env, CAIRN_OFF);
    assert_non_null(cairn_mul_scalar(x, 1e30));
    cairn_detect_anomaly(NULL, 1);
}

static void anomaly_error_names_an_input_that_had_inf_or_nan(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf_of(env, CAIRN_F32, (const float[]){1, 2, 3, 4});
    cairn_tensor *bad = leaf_of(env, CAIRN_F32, (const float[]){1, 2, 3, NAN});
    cairn_detect_anomaly(env, 1);
    assert_null(cairn_add(cairn_relu(x), bad));
    assert_string_equal(
        cairn_last_error(),
        "anomaly: the result of add([4], [4]) has 0 inf and 1 NaN among 4 values, the first at index 3; "
        "its input 1 had 0 inf and 1 NaN among 4 values, the first at index 3");
}

static void infinities_of_masks_are_no_anomalies(void **state) {
    cairn_env *env = test_env_of(state);
    const float low = -INFINITY;
    cairn_tensor *x = leaf_of(env, CAIRN_F32, (const float[]){1, 2, 3, 4});
    cairn_tensor *mask = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(4), (const float[]){0, low, 0, low});
    cairn_tensor *one = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1), &low);
    cairn_detect_anomaly(env, 1);
    cairn_tensor *y = cairn_add(cairn_mul_scalar(x, 2), mask);
    assert_non_null(y);
    y = cairn_where(cairn_gt(x, cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1), 2)), y, one);
    assert_int_equal(cairn_backward(cairn_sum(cairn_square(cairn_softmax(y, 0)))), CAIRN_OK);
    assert_int_equal(cairn_backward_with(cairn_relu(cairn_mul(cairn_relu(x), mask)),
                                         cairn_backward_options(.grad = mask)),
                     CAIRN_ENUMERIC); /* 0 of relu times inf */
    assert_null(cairn_mul(cairn_sub(x, x), mask));
    assert_non_null(strstr(cairn_last_error(), "2 NaN"));
    assert_null(cairn_exp(cairn_mul_scalar(x, 1000)));
}

static void anomaly_error_says_that_the_loss_is_scaled(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf_of(env, CAIRN_F16, (const uint16_t[]){0x3c00, 0x3c00, 0x3c00, 0x3c00});
    cairn_detect_anomaly(env, 1);
    cairn_tensor *loss = cairn_sum(cairn_mul_scalar(cairn_cast(cairn_relu(x), CAIRN_F32), 8));
    assert_int_equal(cairn_backward(test_scale_loss(loss, 65536)), CAIRN_ENUMERIC);
    assert_non_null(strstr(cairn_last_error(), "; note that the loss is scaled"));
}

static void anomaly_error_names_the_operation_of_the_first_bad_gradient(void **state) {
    cairn_env *env = test_env_of(state);
    const uint16_t halves[] = {0x3c00, 0x3c00, 0x3c00, 0x3c00};
    cairn_tensor *x = leaf_of(env, CAIRN_F16, halves);
    cairn_detect_anomaly(env, 1);
    cairn_tensor *y = cairn_cast(cairn_mul_scalar(x, 2), CAIRN_F32);
    assert_int_equal(cairn_backward(cairn_sum(cairn_mul_scalar(y, 1e5))), CAIRN_ENUMERIC);
    assert_string_equal(
        cairn_last_error(),
        "anomaly: backward of cast([4], f16 to f32) gave its input 0 a gradient with 4 inf and 0 NaN among 4 values, "
        "the first at index 0");
    cairn_tensor *z = cairn_mul_scalar(x, 1);
    cairn_tensor *sum = cairn_add(cairn_mul_scalar(z, 60000), cairn_mul_scalar(z, 60000));
    assert_int_equal(cairn_backward_with(sum, cairn_backward_options(.grad = x)), CAIRN_ENUMERIC);
}

static void anomaly_mode_checks_sums_of_gradients(void **state) {
    cairn_env *env = test_env_of(state);
    const uint16_t halves[] = {0, 0, 0x3c00, 0};
    cairn_tensor *x = leaf_of(env, CAIRN_F16, halves), *z = cairn_relu(x);
    cairn_tensor *sum = cairn_add(cairn_mul_scalar(z, 40000), cairn_mul_scalar(z, -0.5));
    sum = cairn_add(sum, cairn_mul_scalar(z, 40000));
    assert_non_null(sum); /* 79999.5 is beyond f16, but nothing checks it yet */
    cairn_detect_anomaly(env, 1);
    assert_int_equal(cairn_backward_with(sum, cairn_backward_options(.grad = x)), CAIRN_ENUMERIC);
    assert_string_equal(cairn_last_error(), "anomaly: the gradient of the result of relu([4]), when backward reaches "
                                            "it, has 1 inf and 0 NaN among 4 values, the first at index 2");
}

/* Each contribution is finite. */
static void anomaly_mode_checks_accumulated_sums(void **state) {
    cairn_env *env = test_env_of(state);
    const float values[] = {1e-3f, 0, 0, 0};
    cairn_tensor *x = leaf_of(env, CAIRN_F32, values), *large = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(4), 3e38);
    cairn_module *m = cairn_linear_without_bias(env, 4, 1);
    cairn_tensor *w = cairn_module_get(m, "weight");
    assert_int_equal(cairn_init_constant(w, 1e-3), CAIRN_OK);
    cairn_detect_anomaly(env, 1);
    assert_int_equal(cairn_backward(cairn_sum(cairn_add(cairn_mul(x, large), cairn_mul(x, large)))), CAIRN_ENUMERIC);
    assert_string_equal(cairn_last_error(),
                        "anomaly: the gradients of a [4] leaf, with that from mul([4], [4]), add up "
                        "to 4 inf and 0 NaN among 4 values, the first at index 0");
    assert_int_equal(cairn_backward(cairn_sum(cairn_add(cairn_mul(w, large), cairn_mul(w, large)))), CAIRN_ENUMERIC);
    assert_string_equal(cairn_last_error(), "anomaly: the gradients of a [1, 4] parameter, with that from mul([1, 4], "
                                            "[4]), add up to 4 inf and 0 NaN among 4 values, the first at index 0");
    cairn_module_destroy(&m);
}

/* Of what is not dense, and of f64, which devices count no bad values of. */
static void values_of_any_stride_and_type_are_looked_at(void **state) {
    cairn_env *env = test_env_of(state);
    const float narrow[] = {1, 2, 3, 4, INFINITY, 6};
    const double wide[] = {1, 2, 3, 4, NAN, 6};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 3), narrow);
    cairn_tensor *y = cairn_tensor_from(env, CAIRN_F64, CAIRN_SHAPE(2, 3), wide);
    cairn_detect_anomaly(env, 1);
    cairn_tensor *t = cairn_transpose(x, 0, 1);
    assert_null(cairn_sub(t, t));
    assert_string_equal(
        cairn_last_error(),
        "anomaly: the result of sub([3, 2], [3, 2]) has 0 inf and 1 NaN among 6 values, the first at index 3; "
        "its input 0 had 1 inf and 0 NaN among 6 values, the first at index 3");
    env->begin_step(env);
    assert_null(cairn_mul_scalar(y, 2));
    assert_non_null(
        strstr(cairn_last_error(), "has 0 inf and 1 NaN among 6 values, the first at index 4; its input 0"));
    env->begin_step(env);
    cairn_tensor *none = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(0, 3));
    assert_non_null(cairn_mul_scalar(none, 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(anomaly_error_names_the_operation_of_the_first_bad_result),
        ENV_TEST(anomaly_error_names_an_input_that_had_inf_or_nan),
        ENV_TEST(infinities_of_masks_are_no_anomalies),
        ENV_TEST(anomaly_error_says_that_the_loss_is_scaled),
        ENV_TEST(anomaly_error_names_the_operation_of_the_first_bad_gradient),
        ENV_TEST(anomaly_mode_checks_sums_of_gradients),
        ENV_TEST(anomaly_mode_checks_accumulated_sums),
        ENV_TEST(values_of_any_stride_and_type_are_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
