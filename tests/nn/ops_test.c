/* Values of operations on exact data, in every type; and the error messages for wrong shapes and types. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/half.h"
#include "nn/hooks.h"
#include "test_env.h"

static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};

static cairn_tensor *tensor(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape, const float *values) {
    cairn_tensor *t = cairn_tensor_from(env, CAIRN_F32, ndim, shape, values);
    return dtype == CAIRN_F32 ? t : cairn_cast(t, dtype);
}

static void assert_values(const cairn_tensor *t, cairn_dtype dtype, const float *want, size_t n) {
    float got[64];
    if (!t) fail_msg("%s", cairn_last_error());
    assert_int_equal(cairn_tensor_dtype(t), dtype);
    assert_int_equal(cairn_tensor_read(t, got, n), CAIRN_OK);
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], sizeof(float)) != 0) {
            fail_msg("%s, element %zu: %g, want %g", cairn_dtype_name(dtype), i, (double)got[i], (double)want[i]);
        }
    }
}

static void operations_compute_their_definition(void **state) {
    cairn_env *env = test_env_of(state);
    const float a[] = {1, -2, 0, 4}, b[] = {3, 2, -1, 0.5f};
    const float sums[] = {4, 0, -1, 4.5f}, scaled[] = {-1.5f, 3, -0.0f, -6}, positive[] = {1, 0, 0, 4};
    for (int i = 0; i < 3; i++) {
        cairn_tensor *x = tensor(env, types[i], CAIRN_SHAPE(4), a), *y = tensor(env, types[i], CAIRN_SHAPE(4), b);
        assert_values(cairn_add(x, y), types[i], sums, 4);
        assert_values(cairn_mul_scalar(x, -1.5), types[i], scaled, 4);
        assert_values(cairn_relu(x), types[i], positive, 4);
        assert_values(cairn_sum(x), types[i], (const float[]){3}, 1);
        assert_values(cairn_mean(x), types[i], (const float[]){0.75f}, 1);
        assert_values(cairn_mse_loss(x, y), types[i], (const float[]){(4 + 16 + 1 + 12.25f) / 4}, 1);
        assert_int_equal(cairn_tensor_ndim(cairn_sum(x)), 0);
    }
}

static void relu_keeps_nan(void **state) {
    cairn_env *env = test_env_of(state);
    const float x[] = {NAN, -INFINITY, INFINITY};
    for (int i = 0; i < 3; i++) {
        float y[3];
        assert_int_equal(cairn_tensor_read(cairn_relu(tensor(env, types[i], CAIRN_SHAPE(3), x)), y, 3), CAIRN_OK);
        assert_true(isnan(y[0]) && y[1] == 0 && isinf(y[2]));
    }
}

static void linear_multiplies_and_adds_the_bias(void **state) {
    cairn_env *env = test_env_of(state);
    const float x[] = {1, 2, 3, 4, 5, 6}, w[] = {1, 0, -1, 2, 2, 2}, bias[] = {10, -10};
    const float with[] = {8, 2, 8, 20}, without[] = {-2, 12, -2, 30};
    for (int i = 0; i < 3; i++) {
        cairn_tensor *tx = tensor(env, types[i], CAIRN_SHAPE(2, 3), x),
                     *tw = tensor(env, types[i], CAIRN_SHAPE(2, 3), w);
        cairn_tensor *tb = tensor(env, types[i], CAIRN_SHAPE(2), bias);
        assert_values(cairn_linear_forward(tx, tw, tb), types[i], with, 4);
        assert_values(cairn_linear_forward(tx, tw, NULL), types[i], without, 4);
    }
}

/* 2048 + 1 = 2049 lies between two f16 values, + 1 of bias gives 2050, which is one: only a sum that was not rounded
 * before the bias gets there (2049 ties to 2048, and 2048 + 1 would tie to 2048 again). */
static void half_linear_rounds_once_after_the_bias(void **state) {
    cairn_env *env = test_env_of(state);
    const float x[] = {2048, 1}, w[] = {1, 1}, bias[] = {1};
    cairn_tensor *y =
        cairn_linear_forward(tensor(env, CAIRN_F16, CAIRN_SHAPE(1, 2), x), tensor(env, CAIRN_F16, CAIRN_SHAPE(1, 2), w),
                             tensor(env, CAIRN_F16, CAIRN_SHAPE(1), bias));
    assert_values(y, CAIRN_F16, (const float[]){2050}, 1);
}

static void half_sum_is_added_in_f32(void **state) {
    cairn_env *env = test_env_of(state);
    float ones[64];
    for (int i = 0; i < 64; i++) ones[i] = 1024 + 1;
    cairn_tensor *x = tensor(env, CAIRN_F16, CAIRN_SHAPE(64), ones);
    assert_values(cairn_mean(x), CAIRN_F16, (const float[]){1025}, 1);
    assert_true(isinf(cairn_tensor_item(cairn_sum(x)))); /* 65600 is beyond f16 */
}

static void empty_tensors_are_fine(void **state) {
    cairn_env *env = test_env_of(state);
    const float nothing[] = {0}, w[] = {1, 2}, bias[] = {3};
    cairn_tensor *x = tensor(env, CAIRN_F32, CAIRN_SHAPE(0, 2), nothing);
    cairn_tensor *tw = tensor(env, CAIRN_F32, CAIRN_SHAPE(1, 2), w), *tb = tensor(env, CAIRN_F32, CAIRN_SHAPE(1), bias);
    cairn_tensor_require_grad(tw);
    cairn_tensor *y = cairn_linear_forward(x, tw, tb);
    assert_int_equal(cairn_tensor_numel(y), 0);
    assert_values(cairn_sum(y), CAIRN_F32, (const float[]){0}, 1);
    assert_true(isnan(cairn_tensor_item(cairn_mean(y))));
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    assert_true(cairn_tensor_grad(tw)[0] == 0 && cairn_tensor_grad(tw)[1] == 0);
    cairn_tensor *none = tensor(env, CAIRN_F32, CAIRN_SHAPE(3, 0), nothing);
    cairn_tensor *w0 = tensor(env, CAIRN_F32, CAIRN_SHAPE(1, 0), nothing);
    assert_values(cairn_linear_forward(none, w0, tb), CAIRN_F32, (const float[]){3, 3, 3}, 3);
}

static void mixed_types_meet_in_f32(void **state) {
    cairn_env *env = test_env_of(state);
    const float v[] = {1, 2};
    cairn_tensor *f = tensor(env, CAIRN_F32, CAIRN_SHAPE(2), v), *h = tensor(env, CAIRN_F16, CAIRN_SHAPE(2), v);
    cairn_tensor *b = tensor(env, CAIRN_BF16, CAIRN_SHAPE(2), v);
    assert_values(cairn_add(f, h), CAIRN_F32, (const float[]){2, 4}, 2);
    assert_values(cairn_add(h, b), CAIRN_F32, (const float[]){2, 4}, 2);
    assert_values(cairn_mse_loss(b, h), CAIRN_F32, (const float[]){0}, 1);
    assert_int_equal(cairn_tensor_dtype(cairn_mse_loss(h, f)), CAIRN_F32);
}

static void linear_refuses_mixed_types(void **state) {
    cairn_env *env = test_env_of(state);
    const float v[] = {1, 2};
    cairn_tensor *f = tensor(env, CAIRN_F32, CAIRN_SHAPE(1, 2), v), *h = tensor(env, CAIRN_F16, CAIRN_SHAPE(1, 2), v);
    assert_null(cairn_linear_forward(f, h, NULL));
    assert_string_equal(cairn_last_error(),
                        "linear: input is f32 but weight is f16; cast one of them or let amp do it");
    cairn_tensor *bias = tensor(env, CAIRN_BF16, CAIRN_SHAPE(1), v);
    assert_null(cairn_linear_forward(h, h, bias));
    assert_string_equal(cairn_last_error(), "linear: input is f16 but bias is bf16; cast one of them or let amp do it");
}

static void wrong_shapes_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    static const float data[64 * 1024];
    cairn_tensor *x = tensor(env, CAIRN_F32, CAIRN_SHAPE(64, 1024), data);
    cairn_tensor *w = tensor(env, CAIRN_F32, CAIRN_SHAPE(16, 512), data),
                 *v = tensor(env, CAIRN_F32, CAIRN_SHAPE(8), data);
    cairn_tensor *fits = tensor(env, CAIRN_F32, CAIRN_SHAPE(16, 1024), data);
    assert_null(cairn_linear_forward(x, w, NULL));
    assert_string_equal(cairn_last_error(), "linear: [64, 1024] x [16, 512]: inner sizes 1024 and 512 differ");
    assert_null(cairn_linear_forward(w, v, NULL));
    assert_string_equal(cairn_last_error(),
                        "linear: [16, 512] x [8]: weight must have two dimensions, and input at least one");
    assert_null(cairn_linear_forward(x, fits, v));
    assert_string_equal(cairn_last_error(), "linear: bias is [8], but weight is [16, 1024]; expected [16]");
    assert_null(cairn_mse_loss(x, w));
    assert_string_equal(cairn_last_error(),
                        "mse_loss: [64, 1024] and [16, 512] do not broadcast: sizes 1024 and 512 in dimension -1");
    assert_null(cairn_add(x, v));
    assert_string_equal(cairn_last_error(),
                        "add: [64, 1024] and [8] do not broadcast: sizes 1024 and 8 in dimension -1");
}

static void wrong_arguments_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    const float data[] = {1};
    assert_null(cairn_tensor_from(env, (cairn_dtype)99, CAIRN_SHAPE(1), data));
    assert_string_equal(cairn_last_error(), "tensor_from: dtype is 99; it must be an element type");
    assert_null(cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1), NULL));
    assert_null(cairn_tensor_from(NULL, CAIRN_F32, CAIRN_SHAPE(1), data));
    assert_null(cairn_tensor_from(env, CAIRN_F32, 9, NULL, data));
    assert_string_equal(cairn_last_error(), "tensor_from: 9 dimensions; 0 to 8 are allowed");
    assert_null(cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(2, -1)));
    assert_string_equal(cairn_last_error(), "randn: size -1 in dimension 1");
    assert_null(cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(INT64_MAX, INT64_MAX)));
    cairn_tensor *x = tensor(env, CAIRN_F32, CAIRN_SHAPE(1), data);
    assert_null(cairn_cast(x, (cairn_dtype)99));
    assert_string_equal(cairn_last_error(), "cast: dtype is 99; it must be an element type");
    float out[2];
    assert_int_equal(cairn_tensor_read(x, out, 2), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "read: room for 2 values, but the tensor has 1");
    assert_null(cairn_linear(env, 0, 4));
    assert_string_equal(cairn_last_error(), "linear: 0 inputs and 4 outputs; both must be positive");
    assert_null(cairn_linear(NULL, 4, 4));
}

static void module_casts_what_goes_in_and_comes_out(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 2, 2);
    assert_int_equal(cairn__param_set_to_half(cairn_module_params(m), CAIRN_BF16, true, false), CAIRN_OK);
    cairn_tensor *x = tensor(env, CAIRN_F32, CAIRN_SHAPE(1, 2), (const float[]){1, 2});
    assert_null(cairn_module_forward(m, x));
    cairn__module_set_io_types(m, CAIRN_BF16, CAIRN_F32);
    assert_int_equal(cairn_tensor_dtype(cairn_module_forward(m, x)), CAIRN_F32);
    cairn__module_set_io_types(m, CAIRN_BF16, (cairn_dtype)0);
    assert_int_equal(cairn_tensor_dtype(cairn_module_forward(m, x)), CAIRN_BF16);
    cairn_module_destroy(&m);
}

/* OpenMP's threads, too, stay with the parent. */
static void child_of_a_fork_multiplies(void **state) {
    enum { N = 512 };
    static float here[N * N], there[N * N];
    cairn_env *env = test_env_of(state);
    int status = -1;
#if defined(__SANITIZE_THREAD__)
    print_message("ThreadSanitizer lets the child of a process with threads start none\n");
    skip();
#endif
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(N, N));
    cairn_set_num_threads(3);
    assert_int_equal(cairn_tensor_read(cairn_matmul(x, x), here, N * N), CAIRN_OK);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        cairn_tensor_read(cairn_matmul(x, x), there, N * N);
        _exit(memcmp(here, there, sizeof(here)) == 0 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    cairn_set_num_threads(1);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(operations_compute_their_definition),
        ENV_TEST(relu_keeps_nan),
        ENV_TEST(linear_multiplies_and_adds_the_bias),
        ENV_TEST(half_linear_rounds_once_after_the_bias),
        ENV_TEST(half_sum_is_added_in_f32),
        ENV_TEST(empty_tensors_are_fine),
        ENV_TEST(mixed_types_meet_in_f32),
        ENV_TEST(linear_refuses_mixed_types),
        ENV_TEST(wrong_shapes_are_refused),
        ENV_TEST(wrong_arguments_are_refused),
        ENV_TEST(module_casts_what_goes_in_and_comes_out),
        ENV_TEST(child_of_a_fork_multiplies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
