/* Leaf tensors: creation in every type, over own or the user's memory; reading and printing them. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/modules.h"
#include "core/dtype.h"
#include "core/half.h"
#include "nn/tensor.h"
#include "test_env.h"

static const cairn_dtype all_types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_F64, CAIRN_I32, CAIRN_I64, CAIRN_BOOL};
enum { NUM_TYPES = sizeof(all_types) / sizeof(all_types[0]) };

static void assert_reads(const cairn_tensor *t, const double *want, size_t n) {
    double got[64];
    if (!t) fail_msg("%s", cairn_last_error());
    assert_int_equal(cairn_tensor_read_as(t, CAIRN_F64, got, n), CAIRN_OK);
    for (size_t i = 0; i < n; i++) {
        if (!(got[i] == want[i])) fail_msg("element %zu: %g, want %g", i, got[i], want[i]);
    }
}

static void assert_format(const cairn_tensor *t, const char *want) {
    char text[4096];
    if (!t) fail_msg("%s", cairn_last_error());
    const int length = cairn_tensor_format(t, text, sizeof(text));
    assert_int_equal(length, strlen(text));
    assert_string_equal(text, want);
}

static void every_type_is_made_and_read(void **state) {
    cairn_env *env = test_env_of(state);
    const double zeros[] = {0, 0, 0, 0}, ones[] = {1, 1, 1, 1}, ramp[] = {0, 1, 2, 3};
    for (int i = 0; i < NUM_TYPES; i++) {
        const cairn_dtype t = all_types[i];
        assert_reads(cairn_zeros(env, t, CAIRN_SHAPE(2, 2)), zeros, 4);
        assert_reads(cairn_full(env, t, CAIRN_SHAPE(4), 1), ones, 4);
        if (t != CAIRN_BOOL) assert_reads(cairn_arange(env, t, 0, 4, 1), ramp, 4);
        assert_int_equal(cairn_tensor_dtype(cairn_zeros(env, t, CAIRN_SHAPE(2))), t);
        assert_int_equal(cairn_tensor_numel(cairn_zeros(env, t, CAIRN_SHAPE(0, 5))), 0);
    }
}

static void full_converts_its_value(void **state) {
    cairn_env *env = test_env_of(state);
    assert_reads(cairn_full(env, CAIRN_I32, 0, NULL, -2.7), (const double[]){-2}, 1);
    assert_reads(cairn_full(env, CAIRN_I64, 0, NULL, 1e30), (const double[]){0x1p63}, 1);
    assert_reads(cairn_full(env, CAIRN_BOOL, 0, NULL, 0.5), (const double[]){1}, 1);
    assert_reads(cairn_full(env, CAIRN_F64, 0, NULL, 0.1), (const double[]){0.1}, 1);
    assert_reads(cairn_full(env, CAIRN_F16, 0, NULL, 1 + 0x1p-12), (const double[]){1}, 1);
}

static void arange_counts_as_torch_does(void **state) {
    cairn_env *env = test_env_of(state);
    assert_reads(cairn_arange(env, CAIRN_F32, 1, 2, 0.25), (const double[]){1, 1.25, 1.5, 1.75}, 4);
    assert_reads(cairn_arange(env, CAIRN_I64, 5, 0, -2), (const double[]){5, 3, 1}, 3);
    assert_int_equal(cairn_tensor_numel(cairn_arange(env, CAIRN_I64, 3, 3, 1)), 0);
    assert_int_equal(cairn_tensor_numel(cairn_arange(env, CAIRN_I64, 0, 1300, 1)), 1300);
    NO_TENSOR(cairn_arange(env, CAIRN_I64, 0, 3, -1), "arange: from 0 to 3 by -1: the step has the wrong sign");
    NO_TENSOR(cairn_arange(env, CAIRN_I64, 0, 3, 0),
              "arange: from 0 to 3 by 0; all must be finite, and the step must not be 0");
    NO_TENSOR(cairn_arange(env, CAIRN_I64, 0, NAN, 1),
              "arange: from 0 to nan by 1; all must be finite, and the step must not be 0");
    NO_TENSOR(cairn_arange(env, CAIRN_I64, 0, 1e30, 1), "arange: from 0 to 1e+30 by 1: too many elements");
    assert_null(cairn_arange(NULL, CAIRN_I64, 0, 3, 1));
}

static void normals_of_f64_are_those_of_f32(void **state) {
    (void)state;
    enum { N = 601 };
    cairn_env *one = test_env_create(7, 0), *two = test_env_create(7, 0);
    static double a[N], b[N];
    assert_int_equal(cairn_tensor_read_as(cairn_randn(one, CAIRN_F32, CAIRN_SHAPE(N)), CAIRN_F64, a, N), CAIRN_OK);
    assert_int_equal(cairn_tensor_read_as(cairn_randn(two, CAIRN_F64, CAIRN_SHAPE(N)), CAIRN_F64, b, N), CAIRN_OK);
    assert_memory_equal(a, b, sizeof(a));
    NO_TENSOR(cairn_randn(one, CAIRN_I64, CAIRN_SHAPE(2)), "randn: dtype is i64; it must be a float type");
    test_env_destroy(one);
    test_env_destroy(two);
}

static void reading_converts_between_all_types(void **state) {
    cairn_env *env = test_env_of(state);
    const double values[] = {1, 1, 1};
    for (int i = 0; i < NUM_TYPES; i++) {
        uint64_t data[4];
        for (int k = 0; k < NUM_TYPES; k++) {
            cairn_tensor *ones = cairn_full(env, all_types[i], CAIRN_SHAPE(3), 1);
            assert_int_equal(cairn_tensor_read_as(ones, all_types[k], data, 3), CAIRN_OK);
            assert_reads(cairn_tensor_from(env, all_types[k], CAIRN_SHAPE(3), data), values, 3);
        }
        assert_true(cairn_tensor_item(cairn_full(env, all_types[i], 0, NULL, 1)) == 1.0f);
    }
    float out[1];
    assert_int_equal(cairn_tensor_read_as(cairn_zeros(env, CAIRN_F32, 0, NULL), (cairn_dtype)0, out, 1), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "read: dtype is 0; it must be an element type");
    assert_true(isnan(cairn_tensor_item(cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2)))));
}

static void large_integers_are_read_with_all_their_digits(void **state) {
    cairn_env *env = test_env_of(state);
    const int64_t x[] = {INT64_MAX, INT64_MIN + 1};
    int64_t got[2];
    assert_int_equal(cairn_tensor_read_as(cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(2), x), CAIRN_I64, got, 2),
                     CAIRN_OK);
    assert_memory_equal(got, x, sizeof(x));
}

static void tensor_of_no_elements_needs_no_memory(void **state) {
    cairn_env *env = test_env_of(state);
    for (int i = 0; i < NUM_TYPES; i++) {
        cairn_tensor *t = cairn_tensor_from(env, all_types[i], CAIRN_SHAPE(0, 3), NULL);
        if (!t) fail_msg("%s", cairn_last_error());
        assert_int_equal(cairn_tensor_numel(t), 0);
        assert_int_equal(cairn_tensor_write(t, NULL, 0), CAIRN_OK);
        assert_int_equal(cairn_tensor_read(t, NULL, 0), CAIRN_OK);
    }
    NO_TENSOR(cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 3), NULL),
              "tensor_from: data is NULL, but [2, 3] has 6 elements");
    NO_TENSOR(cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(-1), NULL), "tensor_from: size -1 in dimension 0");
}

static void leaf_over_memory_shows_what_is_written_there(void **state) {
    cairn_env *env = test_env_of(state);
    float data[6] = {1, 2, 3, 4, 5, 6};
    cairn_tensor *t = cairn_tensor_over(env, CAIRN_F32, CAIRN_SHAPE(2, 3), NULL, data);
    assert_reads(t, (const double[]){1, 2, 3, 4, 5, 6}, 6);
    data[4] = -1;
    assert_reads(t, (const double[]){1, 2, 3, 4, -1, 6}, 6);
    assert_int_equal(cairn_tensor_write(t, (const float[]){6, 5, 4, 3, 2, 1}, 6), CAIRN_OK);
    assert_true(data[0] == 6 && data[5] == 1);
    assert_reads(cairn_sum(t), (const double[]){21}, 1);
    cairn_tensor_destroy(&t);
    assert_true(data[0] == 6);
}

static void leaf_over_strided_memory_is_read_in_order(void **state) {
    cairn_env *env = test_env_of(state);
    double data[6] = {1, 2, 3, 4, 5, 6};
    cairn_tensor *t = cairn_tensor_over(env, CAIRN_F64, CAIRN_SHAPE(3, 2), (const int64_t[]){1, 3}, data);
    assert_int_equal(cairn_tensor_stride(t, 0), 1);
    assert_int_equal(cairn_tensor_stride(t, -1), 3);
    assert_reads(t, (const double[]){1, 4, 2, 5, 3, 6}, 6);
    assert_reads(cairn_tensor_keep(t), (const double[]){1, 4, 2, 5, 3, 6}, 6);
    assert_int_equal(cairn_tensor_write(t, data, 6), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(),
                        "write: the leaf is over memory that is not dense; write to that memory directly");
    cairn_tensor *rows = cairn_tensor_over(env, CAIRN_F64, CAIRN_SHAPE(2, 2), (const int64_t[]){0, 2}, data);
    assert_reads(rows, (const double[]){1, 3, 1, 3}, 4);
    /* The strides of dimensions with one element say nothing. */
    cairn_tensor *dense = cairn_tensor_over(env, CAIRN_F64, CAIRN_SHAPE(1, 3), (const int64_t[]){7, 1}, data);
    assert_true(dense->is_dense);
    assert_int_equal(cairn_tensor_write(dense, data + 3, 3), CAIRN_OK);
    assert_reads(dense, (const double[]){4, 5, 6}, 3);
}

static void memory_that_does_not_fit_is_refused(void **state) {
    cairn_env *env = test_env_of(state);
    float data[4] = {0};
    NO_TENSOR(cairn_tensor_over(env, CAIRN_F32, CAIRN_SHAPE(2), NULL, NULL), "tensor_over: data is NULL");
    assert_non_null(cairn_tensor_over(env, CAIRN_F32, CAIRN_SHAPE(0), NULL, NULL));
    assert_null(cairn_tensor_over(env, CAIRN_F32, CAIRN_SHAPE(1), NULL, (char *)data + 1));
    assert_non_null(strstr(cairn_last_error(), "is not aligned for f32"));
    NO_TENSOR(cairn_tensor_over(env, CAIRN_F32, CAIRN_SHAPE(2), (const int64_t[]){-1}, data),
              "tensor_over: stride -1 in dimension 0 of size 2");
    NO_TENSOR(cairn_tensor_over(env, CAIRN_F32, CAIRN_SHAPE(1 << 20, 3), (const int64_t[]){INT64_MAX >> 20, 1}, data),
              "tensor_over: stride 8796093022207 in dimension 0 of size 1048576");
    assert_null(cairn_tensor_over(NULL, CAIRN_F32, CAIRN_SHAPE(1), NULL, data));
    NO_TENSOR(cairn_tensor_over(env, (cairn_dtype)0, CAIRN_SHAPE(1), NULL, data),
              "tensor_over: dtype is 0; it must be an element type");
}

static cairn_status no_forward(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)ctx, (void)y, (void)x, (void)count;
    return CAIRN_EINTERNAL;
}

#define ASSERT_NO_BYTES(what, call)                                                                               \
    NO_TENSOR(call, what ": dtype is u8, which is for process groups only; use i32 for small integers, bool for " \
                         "flags")

static void bytes_are_no_tensor_elements(void **state) {
    cairn_env *env = test_env_of(state);
    const uint8_t data[4] = {0};
    uint8_t out[4];
    const struct cairn_custom_op op = {.struct_size = sizeof(op), .name = "bytes", .forward = no_forward};
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(4));
    cairn_module *m = cairn_linear(env, 1, 1);
    ASSERT_NO_BYTES("zeros", cairn_zeros(env, CAIRN_U8, CAIRN_SHAPE(4)));
    ASSERT_NO_BYTES("full", cairn_full(env, CAIRN_U8, CAIRN_SHAPE(4), 1));
    ASSERT_NO_BYTES("arange", cairn_arange(env, CAIRN_U8, 0, 4, 1));
    ASSERT_NO_BYTES("tensor_from", cairn_tensor_from(env, CAIRN_U8, CAIRN_SHAPE(4), data));
    ASSERT_NO_BYTES("tensor_over", cairn_tensor_over(env, CAIRN_U8, CAIRN_SHAPE(4), NULL, out));
    ASSERT_NO_BYTES("cast", cairn_cast(x, CAIRN_U8));
    ASSERT_NO_BYTES("bytes", cairn_custom(&op, NULL, CAIRN_U8, CAIRN_SHAPE(4), &x, 1));
    ASSERT_NO_BYTES("zeros", cairn_module_add_buffer(m, "bytes", CAIRN_U8, CAIRN_SHAPE(4)));
    NO_TENSOR(cairn_randn(env, CAIRN_U8, CAIRN_SHAPE(4)), "randn: dtype is u8; it must be a float type");
    assert_int_equal(cairn_tensor_read_as(x, CAIRN_U8, out, 4), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "read: dtype is u8, which is for process groups only"));
    cairn_module_destroy(&m);
}

static void sizes_that_cannot_be_counted_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    NO_TENSOR(cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(INT64_MAX, INT64_MAX)),
              "zeros: [9223372036854775807, 9223372036854775807] has more elements than memory can hold: at most "
              "2^59");
    NO_TENSOR(cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(0, INT64_MAX / 2, 3)),
              "zeros: [0, 4611686018427387903, 3] has more elements than memory can hold: at most 2^59");
    NO_TENSOR(cairn_full(env, CAIRN_F64, CAIRN_SHAPE(3, -1), 0), "full: size -1 in dimension 1");
    NO_TENSOR(cairn_zeros(env, CAIRN_F64, -1, NULL), "zeros: -1 dimensions; 0 to 8 are allowed");
    NO_TENSOR(cairn_zeros(env, CAIRN_F64, 2, NULL), "zeros: shape is NULL");
    assert_null(cairn_zeros(env, CAIRN_F64, CAIRN_SHAPE(1 << 30, 1 << 20))); /* 2^53 bytes: none has them */
}

static void dimensions_count_from_the_end_too(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *t = cairn_zeros(env, CAIRN_BOOL, CAIRN_SHAPE(2, 3, 5));
    assert_int_equal(cairn_tensor_size(t, -1), 5);
    assert_int_equal(cairn_tensor_size(t, -3), 2);
    assert_int_equal(cairn_tensor_size(t, -4), -1);
    assert_int_equal(cairn_tensor_size(t, 3), -1);
    assert_int_equal(cairn_tensor_size(NULL, 0), -1);
    assert_int_equal(cairn_tensor_stride(t, -3), 15);
    assert_int_equal(cairn_tensor_stride(t, 2), 1);
    assert_int_equal(cairn_tensor_stride(t, 3), -1);
    assert_int_equal(cairn_tensor_stride(NULL, 0), -1);
}

static void only_floats_have_gradients(void **state) {
    cairn_env *env = test_env_of(state);
    double grad[2] = {5, 5};
    cairn_tensor *i = cairn_zeros(env, CAIRN_I64, CAIRN_SHAPE(2)), *x = cairn_full(env, CAIRN_F16, CAIRN_SHAPE(2), 3);
    assert_int_equal(cairn_tensor_require_grad(i), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "require_grad: i64 values have no gradient");
    assert_int_equal(cairn_tensor_read_grad(x, grad, 2), CAIRN_ESTATE);
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    assert_int_equal(cairn_tensor_read_grad(x, grad, 1), CAIRN_EINVAL);
    assert_int_equal(cairn_tensor_read_grad(x, grad, 2), CAIRN_OK);
    assert_true(grad[0] == 0 && grad[1] == 0);
    assert_int_equal(cairn_backward(cairn_sum(x)), CAIRN_OK);
    assert_int_equal(cairn_tensor_read_grad(x, grad, 2), CAIRN_OK);
    assert_true(grad[0] == 1 && grad[1] == 1);
    assert_int_equal(cairn_tensor_read_grad(cairn_sum(x), grad, 1), CAIRN_ESTATE);
    assert_int_equal(cairn_tensor_read_grad(NULL, grad, 1), CAIRN_EINVAL);
}

/* ---- for people; texts of floats are torch 1.13's but for what follows the values ---- */

static void small_tensors_are_printed_whole(void **state) {
    cairn_env *env = test_env_of(state);
    const float whole[] = {1, 2, -3, 40}, parts[] = {1, 2.5f, -3, 40}, wide[] = {1, 20000.5f, 0, NAN, INFINITY};
    assert_format(cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 2), whole),
                  "tensor([[ 1.,  2.],\n        [-3., 40.]], shape=[2, 2], dtype=f32)");
    assert_format(cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(4), parts),
                  "tensor([ 1.0000,  2.5000, -3.0000, 40.0000], shape=[4], dtype=f32)");
    assert_format(cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(5), wide),
                  "tensor([1.0000e+00, 2.0000e+04, 0.0000e+00,        nan,        inf], shape=[5],\n       dtype=f32)");
    assert_format(cairn_full(env, CAIRN_BF16, 0, NULL, 3), "tensor(3., shape=[], dtype=bf16)");
    assert_format(cairn_zeros(env, CAIRN_F64, CAIRN_SHAPE(2, 0)), "tensor([], shape=[2, 0], dtype=f64)");
    assert_format(cairn_zeros(env, CAIRN_F16, CAIRN_SHAPE(1, 2)), "tensor([[0., 0.]], shape=[1, 2], dtype=f16)");
}

static void integers_and_masks_are_printed_without_points(void **state) {
    cairn_env *env = test_env_of(state);
    assert_format(cairn_arange(env, CAIRN_I64, -1, 10, 5), "tensor([-1,  4,  9], shape=[3], dtype=i64)");
    assert_format(cairn_tensor_from(env, CAIRN_BOOL, CAIRN_SHAPE(2), (const char[]){1, 0}),
                  "tensor([ True, False], shape=[2], dtype=bool)");
}

static void blocks_are_set_apart_and_long_rows_broken(void **state) {
    cairn_env *env = test_env_of(state);
    assert_format(cairn_zeros(env, CAIRN_I32, CAIRN_SHAPE(2, 1, 2)),
                  "tensor([[[0, 0]],\n\n        [[0, 0]]], shape=[2, 1, 2], dtype=i32)");
    assert_format(cairn_arange(env, CAIRN_I32, 100, 120, 1),
                  "tensor([100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113,\n"
                  "        114, 115, 116, 117, 118, 119], shape=[20], dtype=i32)");
}

static void large_tensors_are_summarized(void **state) {
    cairn_env *env = test_env_of(state);
    assert_format(cairn_arange(env, CAIRN_I64, 0, 1001, 1),
                  "tensor([   0,    1,    2,  ...,  998,  999, 1000], shape=[1001], dtype=i64)");
    assert_format(cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(500, 3)),
                  "tensor([[0., 0., 0.],\n        [0., 0., 0.],\n        [0., 0., 0.],\n        ...,\n"
                  "        [0., 0., 0.],\n        [0., 0., 0.],\n        [0., 0., 0.]], shape=[500, 3], dtype=f32)");
}

static void text_is_cut_where_there_is_no_room(void **state) {
    cairn_env *env = test_env_of(state);
    char text[11] = "";
    cairn_tensor *t = cairn_zeros(env, CAIRN_I32, CAIRN_SHAPE(2));
    assert_int_equal(cairn_tensor_format(t, NULL, 0), 36);
    assert_int_equal(cairn_tensor_format(t, text, sizeof(text)), 36);
    assert_string_equal(text, "tensor([0,");
    assert_int_equal(cairn_tensor_format(NULL, text, sizeof(text)), -1);
    assert_int_equal(cairn_tensor_format(t, NULL, 5), -1);
}

/* A thread that has seen no failure yet. */
static void *ask_null(void *unused) {
    (void)unused;
    const bool is_reported =
        isnan(cairn_tensor_item(NULL)) && strcmp(cairn_last_error(), "item: the tensor is NULL") == 0;
    return is_reported ? (void *)1 : NULL;
}

static void *keep_null(void *unused) {
    (void)unused;
    const bool is_reported = !cairn_tensor_keep(NULL) && strcmp(cairn_last_error(), "keep: the tensor is NULL") == 0;
    return is_reported ? (void *)1 : NULL;
}

static void null_without_an_earlier_error_is_an_error(void **state) {
    void *(*const calls[])(void *) = {ask_null, keep_null};
    (void)state;
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        void *is_reported = NULL;
        assert_int_equal(pthread_create(&thread, NULL, calls[i], NULL), 0);
        assert_int_equal(pthread_join(thread, &is_reported), 0);
        assert_non_null(is_reported);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(every_type_is_made_and_read),
        ENV_TEST(full_converts_its_value),
        ENV_TEST(arange_counts_as_torch_does),
        ENV_TEST(normals_of_f64_are_those_of_f32),
        ENV_TEST(reading_converts_between_all_types),
        ENV_TEST(bytes_are_no_tensor_elements),
        ENV_TEST(large_integers_are_read_with_all_their_digits),
        ENV_TEST(tensor_of_no_elements_needs_no_memory),
        ENV_TEST(leaf_over_memory_shows_what_is_written_there),
        ENV_TEST(leaf_over_strided_memory_is_read_in_order),
        ENV_TEST(memory_that_does_not_fit_is_refused),
        ENV_TEST(sizes_that_cannot_be_counted_are_refused),
        ENV_TEST(dimensions_count_from_the_end_too),
        ENV_TEST(only_floats_have_gradients),
        ENV_TEST(small_tensors_are_printed_whole),
        ENV_TEST(integers_and_masks_are_printed_without_points),
        ENV_TEST(blocks_are_set_apart_and_long_rows_broken),
        ENV_TEST(large_tensors_are_summarized),
        ENV_TEST(text_is_cut_where_there_is_no_room),
        ENV_TEST(null_without_an_earlier_error_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
