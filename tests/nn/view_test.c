/* Views, joining and splitting: values, shared memory, gradients, and errors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/philox.h"
#include "nn/tensor.h"
#include "test_env.h"

static void assert_shows(const cairn_tensor *t, int ndim, const int64_t *shape, const double *want) {
    double got[256];
    size_t n = 1;
    if (!t) fail_msg("%s", cairn_last_error());
    assert_int_equal(cairn_tensor_ndim(t), ndim);
    for (int d = 0; d < ndim; d++) {
        assert_int_equal(cairn_tensor_size(t, d), shape[d]);
        n *= (size_t)shape[d];
    }
    assert_int_equal(cairn_tensor_read_as(t, CAIRN_F64, got, n), CAIRN_OK);
    for (size_t i = 0; i < n; i++) {
        if (got[i] != want[i]) fail_msg("element %zu: %g, want %g", i, got[i], want[i]);
    }
}

#define VALUES(...)    \
    (const double[]) { \
        __VA_ARGS__    \
    }

/* 0, 1, 2, ... */
static cairn_tensor *ramp(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape) {
    double n = 1;
    for (int d = 0; d < ndim; d++) n *= (double)shape[d];
    return cairn_reshape(cairn_arange(env, dtype, 0, n, 1), ndim, shape);
}

static void views_show_the_memory_of_their_input(void **state) {
    cairn_env *env = test_env_of(state);
    float data[6] = {0, 1, 2, 3, 4, 5};
    cairn_tensor *x = cairn_tensor_over(env, CAIRN_F32, CAIRN_SHAPE(2, 3), NULL, data);
    cairn_tensor *views[] = {cairn_reshape(x, CAIRN_SHAPE(3, -1)),
                             cairn_transpose(x, 0, 1),
                             cairn_slice(x, 1, 0, 2, 1),
                             cairn_select(x, 0, 0),
                             cairn_expand(x, CAIRN_SHAPE(2, 2, 3)),
                             cairn_flatten(x, 0, -1),
                             cairn_unsqueeze(x, 0),
                             cairn_contiguous(x)};
    data[0] = 7;
    for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++) {
        assert_non_null(views[i]);
        assert_ptr_equal(views[i]->data, data);
    }
    assert_shows(cairn_contiguous(views[1]), CAIRN_SHAPE(3, 2), VALUES(7, 3, 1, 4, 2, 5));
    assert_ptr_not_equal(cairn_contiguous(views[1])->data, data);
}

static void every_type_is_viewed_and_joined(void **state) {
    cairn_env *env = test_env_of(state);
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_F64, CAIRN_I32, CAIRN_I64, CAIRN_BOOL};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        cairn_tensor *zeros = cairn_zeros(env, types[i], CAIRN_SHAPE(2)),
                     *ones = cairn_full(env, types[i], CAIRN_SHAPE(2), 1);
        cairn_tensor *both = cairn_stack(2, (cairn_tensor *[]){zeros, ones}, 1);
        assert_int_equal(cairn_tensor_dtype(both), types[i]);
        assert_shows(both, CAIRN_SHAPE(2, 2), VALUES(0, 1, 0, 1));
        assert_shows(cairn_contiguous(cairn_transpose(both, 0, 1)), CAIRN_SHAPE(2, 2), VALUES(0, 0, 1, 1));
        assert_shows(cairn_cat(2, (cairn_tensor *[]){both, both}, 0), CAIRN_SHAPE(4, 2),
                     VALUES(0, 1, 0, 1, 0, 1, 0, 1));
    }
}

static void reshape_views_where_strides_allow_and_copies_where_not(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ramp(env, CAIRN_F32, CAIRN_SHAPE(4, 6)), *t = cairn_transpose(x, 0, 1);
    cairn_tensor *split_rows = cairn_reshape(t, CAIRN_SHAPE(2, 3, 4));
    assert_ptr_equal(split_rows->data, x->data);
    assert_int_equal(cairn_tensor_stride(split_rows, 0), 3);
    assert_int_equal(cairn_tensor_stride(split_rows, 2), 6);
    assert_false(split_rows->is_dense);
    cairn_tensor *copied = cairn_reshape(t, CAIRN_SHAPE(8, 3));
    assert_ptr_not_equal(copied->data, x->data);
    assert_true(copied->is_dense);
    assert_shows(cairn_slice(copied, 0, 0, 2, 1), CAIRN_SHAPE(2, 3), VALUES(0, 6, 12, 18, 1, 7));
    cairn_tensor *every_second = cairn_slice(cairn_reshape(x, CAIRN_SHAPE(24)), 0, 0, 24, 2);
    cairn_tensor *rows = cairn_reshape(every_second, CAIRN_SHAPE(3, 1, 4));
    assert_ptr_equal(rows->data, x->data);
    assert_int_equal(cairn_tensor_stride(rows, 0), 8);
    assert_shows(rows, CAIRN_SHAPE(3, 1, 4), VALUES(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22));
    assert_shows(cairn_reshape(cairn_expand(cairn_slice(x, 1, 1, 2, 1), CAIRN_SHAPE(4, 2)), CAIRN_SHAPE(8)),
                 CAIRN_SHAPE(8), VALUES(1, 1, 7, 7, 13, 13, 19, 19));
}

static void reshape_takes_scalars_and_empty_tensors(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *one = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1, 1), 3),
                 *none = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(0, 4));
    assert_shows(cairn_reshape(one, 0, NULL), 0, NULL, VALUES(3));
    assert_shows(cairn_reshape(cairn_reshape(one, 0, NULL), CAIRN_SHAPE(1, -1, 1)), CAIRN_SHAPE(1, 1, 1), VALUES(3));
    assert_int_equal(cairn_tensor_size(cairn_reshape(none, CAIRN_SHAPE(2, 0, 3)), 2), 3);
    assert_int_equal(cairn_tensor_size(cairn_reshape(none, CAIRN_SHAPE(-1, 4)), 0), 0);
    assert_true(cairn_reshape(cairn_transpose(none, 0, 1), CAIRN_SHAPE(0))->is_dense);
}

static void dimensions_come_and_go(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ramp(env, CAIRN_F32, CAIRN_SHAPE(2, 1, 3)), *scalar = cairn_full(env, CAIRN_F32, 0, NULL, 5);
    const double *want = VALUES(0, 1, 2, 3, 4, 5);
    assert_shows(cairn_squeeze(x, 1), CAIRN_SHAPE(2, 3), want);
    assert_shows(cairn_squeeze(x, -2), CAIRN_SHAPE(2, 3), want);
    assert_shows(cairn_squeeze(x, 0), CAIRN_SHAPE(2, 1, 3), want);
    assert_shows(cairn_unsqueeze(x, -1), CAIRN_SHAPE(2, 1, 3, 1), want);
    assert_shows(cairn_unsqueeze(x, 0), CAIRN_SHAPE(1, 2, 1, 3), want);
    assert_shows(cairn_unsqueeze(scalar, 0), CAIRN_SHAPE(1), VALUES(5));
    assert_shows(cairn_squeeze(scalar, 0), 0, NULL, VALUES(5));
    assert_shows(cairn_flatten(x, 0, 1), CAIRN_SHAPE(2, 3), want);
    assert_shows(cairn_flatten(x, 1, -1), CAIRN_SHAPE(2, 3), want);
    assert_shows(cairn_flatten(x, -1, 2), CAIRN_SHAPE(2, 1, 3), want);
    assert_shows(cairn_flatten(scalar, 0, -1), CAIRN_SHAPE(1), VALUES(5));
    assert_shows(cairn_transpose(scalar, 0, -1), 0, NULL, VALUES(5));
    assert_shows(cairn_permute(scalar, 0, NULL), 0, NULL, VALUES(5));
}

static void permute_moves_dimensions(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ramp(env, CAIRN_F32, CAIRN_SHAPE(2, 3, 2));
    const double *want = VALUES(0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11);
    assert_shows(cairn_permute(x, CAIRN_DIMS(2, 1, 0)), CAIRN_SHAPE(2, 3, 2), want);
    assert_shows(cairn_permute(x, CAIRN_DIMS(-1, -2, 0)), CAIRN_SHAPE(2, 3, 2), want);
    assert_shows(cairn_transpose(x, -1, 0), CAIRN_SHAPE(2, 3, 2), want);
    assert_true(cairn_permute(cairn_permute(x, CAIRN_DIMS(2, 0, 1)), CAIRN_DIMS(1, 2, 0))->is_dense);
    assert_true(cairn_transpose(x, 1, 1)->is_dense);
    /* A dimension of size 1 may stand anywhere. */
    assert_true(cairn_transpose(ramp(env, CAIRN_F32, CAIRN_SHAPE(3, 1, 2)), 0, 1)->is_dense);
}

static void slices_count_as_python_does(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_arange(env, CAIRN_F32, 0, 7, 1);
    assert_shows(cairn_slice(x, 0, 2, 5, 1), CAIRN_SHAPE(3), VALUES(2, 3, 4));
    assert_shows(cairn_slice(x, 0, -3, INT64_MAX, 1), CAIRN_SHAPE(3), VALUES(4, 5, 6));
    assert_shows(cairn_slice(x, -1, 1, -1, 2), CAIRN_SHAPE(3), VALUES(1, 3, 5));
    assert_shows(cairn_slice(x, 0, INT64_MIN, INT64_MAX, 3), CAIRN_SHAPE(3), VALUES(0, 3, 6));
    assert_shows(cairn_slice(x, 0, 6, 7, INT64_MAX), CAIRN_SHAPE(1), VALUES(6));
    assert_shows(cairn_slice(x, 0, 5, 2, 1), CAIRN_SHAPE(0), NULL);
    assert_shows(cairn_slice(x, 0, 100, 200, 1), CAIRN_SHAPE(0), NULL);
    assert_shows(cairn_slice(cairn_slice(x, 0, 1, 7, 2), 0, 1, 3, 1), CAIRN_SHAPE(2), VALUES(3, 5));
    assert_shows(cairn_select(x, 0, -1), 0, NULL, VALUES(6));
    cairn_tensor *square = ramp(env, CAIRN_F32, CAIRN_SHAPE(3, 3));
    assert_shows(cairn_select(square, 1, 1), CAIRN_SHAPE(3), VALUES(1, 4, 7));
    assert_shows(cairn_slice(square, 1, 0, 3, 2), CAIRN_SHAPE(3, 2), VALUES(0, 2, 3, 5, 6, 8));
    assert_shows(cairn_slice(cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(0)), 0, 0, 4, 1), CAIRN_SHAPE(0), NULL);
}

static void expand_repeats_without_memory(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ramp(env, CAIRN_F32, CAIRN_SHAPE(2, 1));
    cairn_tensor *wide = cairn_expand(x, CAIRN_SHAPE(2, -1, 3));
    assert_shows(wide, CAIRN_SHAPE(2, 2, 3), VALUES(0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1));
    assert_int_equal(cairn_tensor_stride(wide, 0), 0);
    assert_int_equal(cairn_tensor_stride(wide, 2), 0);
    assert_shows(cairn_sum(wide), 0, NULL, VALUES(6));
    assert_shows(cairn_expand(x, CAIRN_SHAPE(2, 0)), CAIRN_SHAPE(2, 0), NULL);
    assert_true(cairn_expand(x, CAIRN_SHAPE(2, 1))->is_dense);
    assert_int_equal(cairn_tensor_numel(cairn_expand(x, CAIRN_SHAPE(INT64_C(1) << 40, 2, 1))), (size_t)1 << 41);
}

static void split_gives_views_that_cat_joins_again(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ramp(env, CAIRN_F32, CAIRN_SHAPE(2, 5)), *parts[3];
    assert_int_equal(cairn_split(x, 2, -1, parts, 3), CAIRN_OK);
    assert_shows(parts[0], CAIRN_SHAPE(2, 2), VALUES(0, 1, 5, 6));
    assert_shows(parts[2], CAIRN_SHAPE(2, 1), VALUES(4, 9));
    assert_ptr_equal(parts[1]->data, (float *)x->data + 2);
    assert_shows(cairn_cat(3, parts, 1), CAIRN_SHAPE(2, 5), VALUES(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
    assert_int_equal(cairn_split(x, 7, 0, parts, 1), CAIRN_OK);
    assert_shows(parts[0], CAIRN_SHAPE(2, 5), VALUES(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
    assert_int_equal(cairn_split(x, 2, 1, parts, 2), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "split: size 5 in parts of 2 gives 3 parts, not 2");
    assert_int_equal(cairn_split(x, 0, 1, parts, 2), CAIRN_EINVAL);
    assert_int_equal(cairn_split(x, 2, 2, parts, 2), CAIRN_EINVAL);
    assert_int_equal(cairn_split(x, 2, 1, NULL, 3), CAIRN_EINVAL);
}

static void joined_types_meet_in_the_widest(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *h = cairn_full(env, CAIRN_F16, CAIRN_SHAPE(1), 1),
                 *b = cairn_full(env, CAIRN_BF16, CAIRN_SHAPE(1), 2);
    cairn_tensor *i = cairn_full(env, CAIRN_I64, CAIRN_SHAPE(1), 2), *one[] = {h, h}, *both[] = {h, b},
                 *mixed[] = {h, i};
    assert_int_equal(cairn_tensor_dtype(cairn_cat(2, one, 0)), CAIRN_F16);
    assert_int_equal(cairn_tensor_dtype(cairn_stack(2, both, 0)), CAIRN_F32);
    NO_TENSOR(cairn_cat(2, mixed, 0), "cat: input 0 is f16 but input 1 is i64; cast one of them");
}

/* The gradient of sum(w * view of x): w where it stands. */
static void gradients_come_back_to_their_places(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(2, 3));
    cairn_tensor *target = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2));
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    const float values[] = {1, 2, 3, 4, 5, 6};
    assert_int_equal(cairn_tensor_write(x, values, 6), CAIRN_OK);
    /* mean of squares over column 1: its gradient is the column */
    assert_int_equal(cairn_backward(cairn_mse_loss(cairn_select(x, 1, 1), target)), CAIRN_OK);
    const float column[] = {0, 2, 0, 0, 5, 0};
    assert_memory_equal(cairn_tensor_grad(x), column, sizeof(column));
    cairn_tensor_clear_grad(x);
    assert_int_equal(cairn_backward(cairn_sum(cairn_expand(x, CAIRN_SHAPE(4, 2, 3)))), CAIRN_OK);
    const float fours[] = {4, 4, 4, 4, 4, 4};
    assert_memory_equal(cairn_tensor_grad(x), fours, sizeof(fours));
    cairn_tensor_clear_grad(x);
    cairn_tensor *twice[] = {x, cairn_mul_scalar(x, 2), x};
    assert_int_equal(cairn_backward(cairn_sum(cairn_cat(3, twice, 0))), CAIRN_OK);
    assert_memory_equal(cairn_tensor_grad(x), fours, sizeof(fours));
    cairn_tensor_clear_grad(x);
    assert_int_equal(cairn_backward(cairn_sum(cairn_expand(x, CAIRN_SHAPE(0, 2, 3)))), CAIRN_OK);
    const float zeros[6] = {0};
    assert_memory_equal(cairn_tensor_grad(x), zeros, sizeof(zeros));
}

/* A reshape hands its gradient on without a copy; the constant that backward starts from must not be added to. */
static void handed_on_gradients_are_not_shared(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1), 2);
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    for (int i = 0; i < 2; i++) {
        cairn_tensor *y = cairn_mul_scalar(x, 3);
        assert_int_equal(cairn_backward(cairn_reshape(cairn_add(cairn_reshape(y, 0, NULL), cairn_reshape(y, 0, NULL)),
                                                      CAIRN_SHAPE(1, 1))),
                         CAIRN_OK);
        assert_true(cairn_tensor_grad(x)[0] == 6.0f * (float)(i + 1));
        assert_int_equal(cairn_backward(cairn_reshape(x, 0, NULL)), CAIRN_OK);
        cairn_tensor_clear_grad(x);
        assert_int_equal(cairn_backward(cairn_reshape(y, 0, NULL)), CAIRN_ESTATE);
        assert_int_equal(cairn_backward(cairn_reshape(cairn_mul_scalar(x, 3), 0, NULL)), CAIRN_OK);
        assert_true(cairn_tensor_grad(x)[0] == 3.0f);
        cairn_tensor_clear_grad(x);
        assert_int_equal(cairn_backward(cairn_mul_scalar(x, 6)), CAIRN_OK);
    }
}

static void parameters_are_viewed(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 2, 3);
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(3, 1), 1), *w = NULL;
    assert_int_equal(cairn__tensor_of_param(cairn_module_params(m)->params[0], &w), CAIRN_OK);
    assert_int_equal(cairn_backward(
                         cairn_sum(cairn_linear_forward(cairn_transpose(x, 0, 1), cairn_transpose(w, 0, 1), NULL))),
                     CAIRN_OK);
    const float *grad = cairn__grad_memory(cairn_module_params(m)->params[0]->gradient);
    for (int i = 0; i < 6; i++) assert_true(grad[i] == 1.0f);
    cairn__tensor_of_param_destroy(&w);
    cairn_module_destroy(&m);
}

/* What they show is freed, or becomes the master. */
static void views_of_parameters_end_where_these_become_half(void **state) {
    cairn_env *env = test_env_of(state);
    for (int keep_master = 0; keep_master < 2; keep_master++) {
        cairn_module *m = cairn_linear(env, 2, 3);
        cairn_tensor *w = cairn_module_get(m, "weight"), *view = cairn_transpose(w, 0, 1), *value = cairn_detach(w);
        cairn_tensor *loss = cairn_sum(cairn_square(w));
        assert_int_equal(cairn__param_set_to_half(cairn_module_params(m), CAIRN_F16, keep_master, false), CAIRN_OK);
        NO_TENSOR(cairn_contiguous(view),
                  "contiguous: the tensor is the result of an earlier step (cairn_zero_grad begins one, "
                  "cairn_optimizer_clear_grads does not) or was released (cairn_release_results); use "
                  "cairn_tensor_keep to hold it");
        assert_int_equal(cairn_tensor_numel(value), 0);
        assert_int_equal(cairn_backward(loss), CAIRN_ESTATE);
        assert_int_equal(cairn_tensor_dtype(cairn_transpose(w, 0, 1)), CAIRN_F16);
        cairn_module_destroy(&m);
    }
}

static void wrong_views_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2, 3)),
                 *deep = cairn_zeros(env, CAIRN_F32, 8, (const int64_t[]){1, 1, 1, 1, 1, 1, 1, 1});
    cairn_tensor *none = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(0));
    NO_TENSOR(cairn_reshape(x, CAIRN_SHAPE(4, 2)), "reshape: [2, 3] to [4, 2]: 6 elements are not 8");
    NO_TENSOR(cairn_reshape(x, CAIRN_SHAPE(4, -1)), "reshape: [2, 3] to [4, -1]: 6 elements leave no size for -1");
    NO_TENSOR(cairn_reshape(none, CAIRN_SHAPE(0, -1)), "reshape: [0] to [0, -1]: 0 elements leave no size for -1");
    NO_TENSOR(cairn_reshape(x, CAIRN_SHAPE(-1, -1)), "reshape: dimensions 0 and 1 are both -1; only one may be");
    NO_TENSOR(cairn_reshape(x, CAIRN_SHAPE(-2, 3)), "reshape: size -2 in dimension 0");
    NO_TENSOR(cairn_reshape(cairn_transpose(x, 0, 1), CAIRN_SHAPE(5)), "reshape: [3, 2] to [5]: 6 elements are not 5");
    NO_TENSOR(cairn_reshape(x, CAIRN_SHAPE(INT64_MAX, INT64_MAX, 16)),
              "reshape: size 9223372036854775807 in dimension 1");
    NO_TENSOR(cairn_reshape(x, 9, NULL), "reshape: 9 dimensions; 0 to 8 are allowed");
    NO_TENSOR(cairn_reshape(x, 2, NULL), "reshape: shape is NULL");
    NO_TENSOR(cairn_flatten(x, 1, 0), "flatten: the first dimension, 1, is after the last, 0");
    NO_TENSOR(cairn_flatten(x, 0, 2), "flatten: dimension 2 of a tensor with 2 dimensions");
    NO_TENSOR(cairn_squeeze(x, INT32_MIN), "squeeze: dimension -2147483648 of a tensor with 2 dimensions");
    NO_TENSOR(cairn_unsqueeze(deep, 0), "unsqueeze: the tensor has 8 dimensions, and no more are allowed");
    NO_TENSOR(cairn_unsqueeze(x, -4), "unsqueeze: dimension -4 of a tensor with 2 dimensions");
    NO_TENSOR(cairn_transpose(x, 0, 2), "transpose: dimension 2 of a tensor with 2 dimensions");
    NO_TENSOR(cairn_permute(x, CAIRN_DIMS(0, 0)), "permute: dimension 0 is named twice");
    NO_TENSOR(cairn_permute(x, CAIRN_DIMS(0, 2)), "permute: dimension 2 of a tensor with 2 dimensions");
    NO_TENSOR(cairn_permute(x, CAIRN_DIMS(0)), "permute: an order of 1 dimensions for a tensor with 2");
    NO_TENSOR(cairn_permute(x, 2, NULL), "permute: dims is NULL");
    NO_TENSOR(cairn_slice(x, 0, 0, 1, 0), "slice: a step of 0; it must be positive");
    NO_TENSOR(cairn_slice(x, 2, 0, 1, 1), "slice: dimension 2 of a tensor with 2 dimensions");
    NO_TENSOR(cairn_select(x, 1, 3), "select: [2, 3]: index 3 in dimension 1 of size 3");
    NO_TENSOR(cairn_select(none, 0, 0), "select: [0]: index 0 in dimension 0 of size 0");
    NO_TENSOR(cairn_expand(x, CAIRN_SHAPE(3)), "expand: [2, 3] to [3]: dimensions can only be added");
    NO_TENSOR(cairn_expand(x, CAIRN_SHAPE(2, 4)),
              "expand: [2, 3] to [2, 4]: size 3 in dimension 1 becomes 4, but only 1 can be repeated");
    NO_TENSOR(cairn_expand(x, CAIRN_SHAPE(-1, 2, 3)),
              "expand: [2, 3] to [-1, 2, 3]: -1 keeps a size, and the new dimension 0 has none to keep");
    NO_TENSOR(cairn_expand(x, CAIRN_SHAPE(INT64_MAX, 2, 3)),
              "expand: [9223372036854775807, 2, 3] has more elements than memory can hold: at most 2^59");
}

static void wrong_joins_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2, 3)),
                 *y = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2, 4));
    cairn_tensor *v = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(3)), *s = cairn_zeros(env, CAIRN_F32, 0, NULL);
    NO_TENSOR(cairn_cat(2, (cairn_tensor *[]){x, y}, 0),
              "cat: [2, 3] and [2, 4] along dimension 0: sizes 3 and 4 differ in dimension 1");
    NO_TENSOR(cairn_cat(2, (cairn_tensor *[]){x, v}, 0), "cat: [2, 3] and [3] differ in their number of dimensions");
    NO_TENSOR(cairn_cat(1, (cairn_tensor *[]){s}, 0), "cat: dimension 0 of a tensor with 0 dimensions");
    NO_TENSOR(cairn_cat(0, &x, 0), "cat: 0 tensors; there must be at least one");
    NO_TENSOR(cairn_cat(1, NULL, 0), "cat: 1 tensors; there must be at least one");
    NO_TENSOR(cairn_stack(2, (cairn_tensor *[]){x, y}, 0), "stack: shapes [2, 3] and [2, 4] differ");
    NO_TENSOR(cairn_stack(1, &x, 3), "stack: dimension 3 of a tensor with 3 dimensions");
    cairn_tensor *huge = cairn_expand(s, CAIRN_SHAPE(INT64_MAX / 16)), *many[] = {huge, huge};
    NO_TENSOR(cairn_cat(2, many, 0), "cat: [1152921504606846974] has more elements than memory can hold: at most 2^59");
    assert_null(cairn_contiguous(huge)); /* 2^60 elements */
}

static void null_inputs_give_null(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2, 3)), *bad = cairn_reshape(x, CAIRN_SHAPE(7));
    cairn_tensor *parts[2] = {x, bad};
    assert_null(cairn_reshape(bad, CAIRN_SHAPE(2)));
    assert_null(cairn_flatten(bad, 0, 1));
    assert_null(cairn_squeeze(bad, 0));
    assert_null(cairn_unsqueeze(bad, 0));
    assert_null(cairn_transpose(bad, 0, 1));
    assert_null(cairn_permute(bad, CAIRN_DIMS(0, 1)));
    assert_null(cairn_slice(bad, 0, 0, 1, 1));
    assert_null(cairn_select(bad, 0, 0));
    assert_null(cairn_expand(bad, CAIRN_SHAPE(2)));
    assert_null(cairn_contiguous(bad));
    assert_null(cairn_cat(2, parts, 0));
    assert_null(cairn_stack(2, parts, 0));
    assert_int_equal(cairn_split(bad, 1, 0, parts, 2), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "reshape: [2, 3] to [7]: 6 elements are not 7");
}

/* ---- chains of views, against a list of which element each shows ---- */

enum { ROOM = 4096, CHAINS = 300, LINKS = 6, MAX_SHOWN = 400 };

struct model {
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    size_t n;
    int64_t element[ROOM]; /* of x, that each element of the view shows */
};

static uint64_t next_random(uint64_t *state) {
    return cairn__philox(5, (*state)++, 0).word[0];
}

/* What m shows becomes a part of it: by strides over its dense elements. */
static void model_take(struct model *m, int ndim, const int64_t *shape, const int64_t *stride, int64_t offset) {
    static struct model from;
    from = *m;
    m->ndim = ndim;
    m->n = 1;
    for (int d = 0; d < ndim; d++) m->n *= (size_t)(m->shape[d] = shape[d]);
    for (size_t i = 0; i < m->n; i++) {
        int64_t at = offset;
        size_t left = i;
        for (int d = ndim - 1; d >= 0; d--) {
            at += (int64_t)(left % (size_t)shape[d]) * stride[d];
            left /= (size_t)shape[d];
        }
        m->element[i] = from.element[at];
    }
}

static void dense_strides(const struct model *m, int64_t *stride) {
    int64_t next = 1;
    for (int d = m->ndim - 1; d >= 0; d--) {
        stride[d] = next;
        next *= m->shape[d];
    }
}

static cairn_tensor *random_permute(cairn_tensor *t, struct model *m, uint64_t *random) {
    int dims[CAIRN_MAX_DIMS];
    int64_t stride[CAIRN_MAX_DIMS], own[CAIRN_MAX_DIMS], shape[CAIRN_MAX_DIMS];
    dense_strides(m, own);
    for (int d = 0; d < m->ndim; d++) dims[d] = d;
    for (int d = m->ndim; d > 1; d--) {
        const int other = (int)(next_random(random) % (uint64_t)d), moved = dims[d - 1];
        dims[d - 1] = dims[other];
        dims[other] = moved;
    }
    for (int d = 0; d < m->ndim; d++) stride[d] = own[dims[d]], shape[d] = m->shape[dims[d]];
    cairn_tensor *y = cairn_permute(t, m->ndim, dims);
    model_take(m, m->ndim, shape, stride, 0);
    return y;
}

static cairn_tensor *random_slice(cairn_tensor *t, struct model *m, uint64_t *random) {
    int64_t stride[CAIRN_MAX_DIMS], shape[CAIRN_MAX_DIMS];
    if (m->ndim == 0) return t;
    const int d = (int)(next_random(random) % (uint64_t)m->ndim);
    const int64_t size = m->shape[d], start = (int64_t)(next_random(random) % (uint64_t)size);
    const int64_t end = start + 1 + (int64_t)(next_random(random) % (uint64_t)(size - start));
    const int64_t step = 1 + (int64_t)(next_random(random) % 3);
    dense_strides(m, stride);
    memcpy(shape, m->shape, sizeof(shape));
    const int64_t offset = start * stride[d];
    shape[d] = (end - start + step - 1) / step;
    stride[d] *= step;
    cairn_tensor *y = cairn_slice(t, d, start, end, step);
    model_take(m, m->ndim, shape, stride, offset);
    return y;
}

static cairn_tensor *random_expand(cairn_tensor *t, struct model *m, uint64_t *random) {
    int64_t stride[CAIRN_MAX_DIMS], shape[CAIRN_MAX_DIMS];
    const int64_t times = 1 + (int64_t)(next_random(random) % 3);
    if (m->ndim == CAIRN_MAX_DIMS || m->n > MAX_SHOWN) return t;
    dense_strides(m, stride + 1);
    memcpy(shape + 1, m->shape, (size_t)m->ndim * sizeof(shape[0]));
    shape[0] = times;
    stride[0] = 0;
    cairn_tensor *y = cairn_expand(t, m->ndim + 1, shape);
    model_take(m, m->ndim + 1, shape, stride, 0);
    return y;
}

/* Two dimensions become one, or one becomes two. */
static cairn_tensor *random_reshape(cairn_tensor *t, struct model *m, uint64_t *random) {
    int64_t stride[CAIRN_MAX_DIMS], shape[CAIRN_MAX_DIMS];
    struct model to = {.ndim = m->ndim};
    memcpy(shape, m->shape, sizeof(shape));
    if (m->ndim >= 2 && next_random(random) % 2) {
        const int d = (int)(next_random(random) % (uint64_t)(m->ndim - 1));
        shape[d] *= shape[d + 1];
        memmove(shape + d + 1, shape + d + 2, (size_t)(m->ndim - d - 2) * sizeof(shape[0]));
        to.ndim--;
    } else if (m->ndim < CAIRN_MAX_DIMS && m->ndim > 0) {
        const int d = (int)(next_random(random) % (uint64_t)m->ndim);
        const int64_t part = shape[d] % 3 == 0 ? 3 : shape[d] % 2 == 0 ? 2 : 1;
        memmove(shape + d + 1, shape + d, (size_t)(m->ndim - d) * sizeof(shape[0]));
        shape[d] = part;
        shape[d + 1] /= part;
        to.ndim++;
    }
    memcpy(to.shape, shape, sizeof(shape));
    dense_strides(&to, stride);
    cairn_tensor *y = cairn_reshape(t, to.ndim, shape);
    model_take(m, to.ndim, shape, stride, 0);
    return y;
}

static cairn_tensor *random_link(cairn_tensor *t, struct model *m, uint64_t *random) {
    switch (next_random(random) % 4) {
    case 0:
        return random_permute(t, m, random);
    case 1:
        return random_slice(t, m, random);
    case 2:
        return random_expand(t, m, random);
    default:
        return random_reshape(t, m, random);
    }
}

/* The values are their places; dy is 1, 2, ..., so that every sum of it is exact. */
static void chain_shows_and_collects_what_the_list_says(cairn_env *env, uint64_t *random) {
    static struct model m;
    static double got[ROOM], want[ROOM];
    const int64_t shape[] = {4, 1, 6, 5};
    cairn_tensor *x = cairn_arange(env, CAIRN_F64, 0, 120, 1);
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    m.ndim = 1;
    m.shape[0] = 120;
    for (int i = 0; i < 120; i++) m.element[i] = i;
    cairn_tensor *y = cairn_reshape(x, 4, shape);
    model_take(&m, 4, shape, (const int64_t[]){30, 30, 5, 1}, 0);
    for (int i = 0; i < LINKS; i++) y = random_link(y, &m, random);
    assert_non_null(y);
    assert_int_equal(cairn_tensor_read_as(y, CAIRN_F64, got, m.n), CAIRN_OK);
    for (size_t i = 0; i < m.n; i++) assert_true(got[i] == (double)m.element[i]);
    memset(want, 0, sizeof(want));
    for (size_t i = 0; i < m.n; i++) want[m.element[i]] += (double)(i + 1);
    cairn_tensor *dy = cairn_arange(env, CAIRN_F64, 1, (double)m.n + 1, 1);
    cairn_tensor *shaped = cairn_reshape(dy, m.ndim, m.shape);
    assert_int_equal(cairn_backward_with(y, cairn_backward_options(.grad = shaped)), CAIRN_OK);
    assert_int_equal(cairn_tensor_read_grad(x, got, 120), CAIRN_OK);
    assert_memory_equal(got, want, 120 * sizeof(double));
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&dy);
    env->begin_step(env);
}

static void chains_of_views_have_the_right_values_and_gradients(void **state) {
    cairn_env *env = test_env_of(state);
    uint64_t random = 0;
    for (int i = 0; i < CHAINS; i++) chain_shows_and_collects_what_the_list_says(env, &random);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(views_show_the_memory_of_their_input),
        ENV_TEST(every_type_is_viewed_and_joined),
        ENV_TEST(reshape_views_where_strides_allow_and_copies_where_not),
        ENV_TEST(reshape_takes_scalars_and_empty_tensors),
        ENV_TEST(dimensions_come_and_go),
        ENV_TEST(permute_moves_dimensions),
        ENV_TEST(slices_count_as_python_does),
        ENV_TEST(expand_repeats_without_memory),
        ENV_TEST(split_gives_views_that_cat_joins_again),
        ENV_TEST(joined_types_meet_in_the_widest),
        ENV_TEST(gradients_come_back_to_their_places),
        ENV_TEST(handed_on_gradients_are_not_shared),
        ENV_TEST(parameters_are_viewed),
        ENV_TEST(views_of_parameters_end_where_these_become_half),
        ENV_TEST(chains_of_views_have_the_right_values_and_gradients),
        ENV_TEST(wrong_views_are_refused),
        ENV_TEST(wrong_joins_are_refused),
        ENV_TEST(null_inputs_give_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
