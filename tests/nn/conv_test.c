/* Convolutions and pooling: error messages, and values that the op cases cannot express. */
#include <math.h>
#include <string.h>

#include "cairn/ops.h"
#include "test_env.h"

enum { MOST = 0x7fffffff };

static cairn_tensor *zeros(cairn_env *env, int ndim, const int64_t *shape) {
    return cairn_zeros(env, CAIRN_F32, ndim, shape);
}
#define ZEROS(...) zeros(env, CAIRN_SHAPE(__VA_ARGS__))

/* ---- errors ---- */

static void conv_error_names_shapes_that_do_not_fit(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ZEROS(8, 3, 64, 64), *w = ZEROS(64, 4, 3, 3);
    NO_TENSOR(cairn_conv2d_forward(x, w, NULL, NULL),
              "conv2d: x [8, 3, 64, 64], weight [64, 4, 3, 3]: 3 input channels, but weight expects 4 x 1 groups");
    NO_TENSOR(cairn_conv2d_forward(ZEROS(8, 3), w, NULL, NULL),
              "conv2d: x is [8, 3]; expected [N, C, H, W] or [C, H, W]");
    NO_TENSOR(cairn_conv1d_forward(x, w, NULL, NULL), "conv1d: x is [8, 3, 64, 64]; expected [N, C, L] or [C, L]");
    NO_TENSOR(cairn_conv2d_forward(x, ZEROS(64, 3, 3), NULL, NULL),
              "conv2d: weight is [64, 3, 3]; expected 4 dimensions");
    NO_TENSOR(cairn_conv2d_forward(x, ZEROS(64, 3, 0, 3), NULL, NULL),
              "conv2d: weight is [64, 3, 0, 3]: sizes must be 1 to 2147483647");
    NO_TENSOR(cairn_conv2d_forward(x, ZEROS(64, 3, 3, 3), ZEROS(3), NULL),
              "conv2d: bias is [3], but weight is [64, 3, 3, 3]; expected [64]");
    NO_TENSOR(cairn_conv2d_forward(x, ZEROS(64, 1, 3, 3), NULL, cairn_conv_options(.groups = 3)),
              "conv2d: x [8, 3, 64, 64], weight [64, 1, 3, 3]: 3 groups do not divide 64 channels");
    NO_TENSOR(cairn_conv_transpose2d_forward(x, w, NULL, NULL),
              "conv_transpose2d: x [8, 3, 64, 64], weight [64, 4, 3, 3]: 3 input channels, but weight expects 64");
    NO_TENSOR(
        cairn_conv2d_forward(ZEROS(1, 1, 2, 4), ZEROS(1, 1, 3, 3), NULL, NULL),
        "conv2d: x [1, 1, 2, 4], weight [1, 1, 3, 3]: the kernel spans 3, but the padded input has 2 in dimension "
        "-2");
    NO_TENSOR(cairn_conv2d_forward(ZEROS(1, 1, 0, 4), ZEROS(1, 1, 3, 3), NULL, cairn_conv_options(.padding = {4, 4})),
              "conv2d: x [1, 1, 0, 4]: sizes of planes must be 1 to 2147483647");
}

static void conv_refuses_options_out_of_range(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ZEROS(1, 1, 4, 4), *w = ZEROS(1, 1, 3, 3);
    static const struct {
        struct cairn_conv_options options;
        const char *sentence;
    } all[] = {
        {{.stride = {-1}}, "conv2d: stride is -1; it must be from 1 to 2147483647"},
        {{.stride = {0, 2}}, "conv2d: stride is 0; it must be from 1 to 2147483647"},
        {{.stride = {1, INT64_MAX}}, "conv2d: stride is 9223372036854775807; it must be from 1 to 2147483647"},
        {{.padding = {0, -2}}, "conv2d: padding is -2; it must be from 0 to 2147483647"},
        {{.dilation = {-2}}, "conv2d: dilation is -2; it must be from 1 to 2147483647"},
        {{.groups = -1}, "conv2d: groups is -1; it must be from 1 to 2147483647"},
        {{.output_padding = {1}}, "conv2d: output_padding is for transposed convolutions"},
        {{.padding = {MOST, MOST}},
         "conv2d: x [1, 1, 4, 4], weight [1, 1, 3, 3]: the result's dimension -2 would be "
         "4294967296"},
        {{.padding = {MOST / 4, MOST}, .stride = {1, 2}},
         "conv2d: x [1, 1, 4, 4], weight [1, 1, 3, 3]: the result's "
         "dimension -1 would be 2147483648"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct cairn_conv_options o = all[i].options;
        o.struct_size = sizeof(o);
        NO_TENSOR(cairn_conv2d_forward(x, w, NULL, &o), all[i].sentence);
    }
    NO_TENSOR(cairn_conv_transpose2d_forward(x, w, NULL, cairn_conv_options(.output_padding = {1, 1})),
              "conv_transpose2d: output_padding 1 must be smaller than stride 1 or dilation 1");
    NO_TENSOR(cairn_conv_transpose2d_forward(ZEROS(1, 1, 1, 1), ZEROS(1, 1, 2, 2), NULL,
                                             cairn_conv_options(.padding = {1, 1})),
              "conv_transpose2d: x [1, 1, 1, 1], weight [1, 1, 2, 2]: the result's dimension -2 would be 0");
}

static void results_beyond_memory_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ZEROS(1, 1, 1, 1), *w = ZEROS(1, 1, 1, 1);
    assert_null(cairn_conv2d_forward(x, w, NULL, cairn_conv_options(.padding = {1 << 30, 1 << 30}, .stride = {1})));
    assert_null(cairn_conv2d_forward(x, w, NULL, cairn_conv_options(.padding = {1 << 29, 1 << 29})));
    assert_null(cairn_adaptive_avg_pool2d(x, MOST, MOST));
}

static void conv_refuses_types_that_differ(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ZEROS(1, 1, 4, 4), *half = cairn_cast(ZEROS(1, 1, 3, 3), CAIRN_F16);
    NO_TENSOR(cairn_conv2d_forward(x, half, NULL, NULL),
              "conv2d: x is f32 but weight is f16; cast one of them or let amp do it");
    NO_TENSOR(cairn_conv2d_forward(cairn_zeros(env, CAIRN_I32, CAIRN_SHAPE(1, 1, 4, 4)), half, NULL, NULL),
              "conv2d: x is i32; expected a float type");
}

static void pool_refuses_windows_that_do_not_fit(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ZEROS(2, 3, 5, 4);
    NO_TENSOR(cairn_max_pool2d(ZEROS(5, 4), 2, 2, NULL), "max_pool2d: x is [5, 4]; expected [N, C, H, W] or [C, H, W]");
    NO_TENSOR(cairn_max_pool2d(x, 0, 2, NULL), "max_pool2d: kernel is 0; it must be from 1 to 2147483647");
    NO_TENSOR(cairn_max_pool2d(x, 2, 2, cairn_pool_options(.stride = {-1})),
              "max_pool2d: stride is -1; it must be from 1 to 2147483647");
    NO_TENSOR(cairn_max_pool2d(x, 2, 3, cairn_pool_options(.padding = {1, 2})),
              "max_pool2d: padding 2 is more than half of the kernel, 3");
    NO_TENSOR(cairn_max_pool2d(x, 2, 5, NULL),
              "max_pool2d: x [2, 3, 5, 4]: the window spans 5, but the padded input has 4 in dimension -1");
    NO_TENSOR(cairn_avg_pool2d(x, 6, 2, NULL),
              "avg_pool2d: x [2, 3, 5, 4]: the window spans 6, but the padded input has 5 in dimension -2");
    NO_TENSOR(cairn_avg_pool2d(x, 2, 2, cairn_pool_options(.dilation = {2})), "avg_pool2d: dilation is for max_pool2d");
    NO_TENSOR(cairn_max_pool2d(ZEROS(2, 3, 0, 4), 2, 2, NULL),
              "max_pool2d: x is [2, 3, 0, 4]: a plane must have 1 to 2147483647 pixels");
    NO_TENSOR(cairn_adaptive_avg_pool2d(x, -1, 2),
              "adaptive_avg_pool2d: output size is -1; it must be from 0 to 2147483647");
    assert_null(cairn_max_pool2d(NULL, 2, 2, NULL));
}

/* ---- values ---- */

static void assert_values(cairn_tensor *t, const float *want, size_t n) {
    assert_non_null(t);
    assert_int_equal(cairn_tensor_numel(t), n);
    float got[64];
    assert_int_equal(cairn_tensor_read(t, got, n), CAIRN_OK);
    for (size_t i = 0; i < n; i++) {
        if (isnan(want[i]) ? !isnan(got[i]) : got[i] != want[i])
            fail_msg("element %zu is %g, want %g", i, (double)got[i], (double)want[i]);
    }
}

static void max_pool_hands_on_nan_and_infinities(void **state) {
    cairn_env *env = test_env_of(state);
    const float data[] = {1, NAN, -INFINITY, -INFINITY, 2, 3, -INFINITY, -INFINITY};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 2, 4), data);
    cairn_tensor_require_grad(x);
    cairn_tensor *y = cairn_max_pool2d(x, 2, 2, NULL);
    assert_values(y, (const float[]){NAN, -INFINITY}, 2);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    assert_memory_equal(cairn_tensor_grad(x), ((const float[]){0, 1, 1, 0, 0, 0, 0, 0}), 8 * sizeof(float));
}

static void one_padding_is_of_rows_and_columns(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(1, 4, 4)),
                 *w = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(1, 1, 3, 3));
    static const struct {
        int64_t padding[2], h, w;
    } cases[] = {{{1}, 4, 4},
                 {{1, CAIRN_NO_PADDING}, 4, 2},
                 {{0, 1}, 2, 4},
                 {{CAIRN_NO_PADDING, 1}, 2, 4},
                 {{CAIRN_NO_PADDING}, 2, 2}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const int64_t *p = cases[i].padding;
        const cairn_tensor *y = cairn_conv2d_forward(x, w, NULL, cairn_conv_options(.padding = {p[0], p[1]}));
        const cairn_tensor *z = cairn_max_pool2d(x, 3, 3, cairn_pool_options(.stride = {1}, .padding = {p[0], p[1]}));
        assert_int_equal(cairn_tensor_size(y, 1), cases[i].h);
        assert_int_equal(cairn_tensor_size(y, 2), cases[i].w);
        assert_int_equal(cairn_tensor_size(z, 1), cases[i].h);
        assert_int_equal(cairn_tensor_size(z, 2), cases[i].w);
    }
    const cairn_tensor *up =
        cairn_conv_transpose2d_forward(x, w, NULL, cairn_conv_options(.stride = {2}, .output_padding = {1}));
    assert_int_equal(cairn_tensor_size(up, 1), cairn_tensor_size(up, 2));
}

static void first_of_equal_maxima_gets_the_gradient(void **state) {
    cairn_env *env = test_env_of(state);
    const float data[] = {5, 5, 5, 5};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 2, 2), data);
    cairn_tensor_require_grad(x);
    assert_int_equal(cairn_backward(cairn_sum(cairn_max_pool2d(x, 2, 2, NULL))), CAIRN_OK);
    assert_memory_equal(cairn_tensor_grad(x), ((const float[]){1, 0, 0, 0}), sizeof(data));
}

/* Both taps of the only window lie beside the plane. */
static void window_over_nothing_has_no_maximum_and_no_gradient(void **state) {
    cairn_env *env = test_env_of(state);
    const float data[] = {1, 2, 3};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 1, 3), data);
    cairn_tensor_require_grad(x);
    cairn_tensor *y =
        cairn_max_pool2d(x, 1, 2, cairn_pool_options(.stride = {1}, .padding = {0, 1}, .dilation = {1, 4}));
    assert_values(y, (const float[]){-INFINITY}, 1);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    assert_memory_equal(cairn_tensor_grad(x), ((const float[]){0, 0, 0}), sizeof(data));
}

static void windows_far_larger_than_the_plane_are_quick(void **state) {
    cairn_env *env = test_env_of(state);
    const float data[] = {1, 4, 2, 3};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 2, 2), data);
    const struct cairn_pool_options *wide = cairn_pool_options(.stride = {1}, .padding = {MOST / 2, MOST / 2});
    assert_values(cairn_max_pool2d(x, MOST - 1, MOST - 1, wide), (const float[]){4, 4, 4, 4, 4, 4, 4, 4, 4}, 9);
}

static void conv_hands_on_nan_and_infinities(void **state) {
    cairn_env *env = test_env_of(state);
    const float data[] = {1, NAN, 2, INFINITY}, one[] = {1};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 2, 2), data);
    cairn_tensor *w = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 1, 1, 1), one);
    assert_values(cairn_conv2d_forward(x, w, NULL, NULL), data, 4);
}

static void adaptive_pool_to_nothing_is_empty(void **state) {
    cairn_env *env = test_env_of(state);
    assert_int_equal(cairn_tensor_numel(cairn_adaptive_avg_pool2d(ZEROS(2, 3, 4), 0, 2)), 0);
}

/* ---- steps ---- */

static void steady_step_allocates_nothing(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = ZEROS(2, 3, 9, 9), *w = ZEROS(4, 3, 3, 3), *b = ZEROS(4);
    cairn_tensor_require_grad(w), cairn_tensor_require_grad(b), cairn_tensor_require_grad(x);
    uint64_t before = 0;
    for (int step = 0; step < 12; step++) {
        if (step == 8) before = cairn__alloc_counters().allocations;
        env->begin_step(env);
        cairn_tensor *y = cairn_conv2d_forward(cairn_cast(x, CAIRN_BF16), cairn_cast(w, CAIRN_BF16),
                                               cairn_cast(b, CAIRN_BF16), cairn_conv_options(.padding = {1, 1}));
        y = cairn_adaptive_avg_pool2d(cairn_avg_pool2d(cairn_max_pool2d(y, 2, 2, NULL), 2, 2, NULL), 1, 1);
        assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    }
    assert_int_equal(cairn__alloc_counters().allocations, before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(conv_error_names_shapes_that_do_not_fit),
        ENV_TEST(conv_refuses_options_out_of_range),
        ENV_TEST(results_beyond_memory_are_refused),
        ENV_TEST(conv_refuses_types_that_differ),
        ENV_TEST(pool_refuses_windows_that_do_not_fit),
        ENV_TEST(max_pool_hands_on_nan_and_infinities),
        ENV_TEST(one_padding_is_of_rows_and_columns),
        ENV_TEST(first_of_equal_maxima_gets_the_gradient),
        ENV_TEST(window_over_nothing_has_no_maximum_and_no_gradient),
        ENV_TEST(windows_far_larger_than_the_plane_are_quick),
        ENV_TEST(conv_hands_on_nan_and_infinities),
        ENV_TEST(adaptive_pool_to_nothing_is_empty),
        ENV_TEST(steady_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
