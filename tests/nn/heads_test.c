/* Attention on heads that are adjacent in each row, as one product writes them, gives the same bits as on separate
 * heads: in every type, with a mask, causal, and with dropout. */
#include "test_env.h"

#include <math.h>
#include <string.h>

#include "cairn/ops.h"
#include "nn/ops.h"

enum { B = 2, T = 5, H = 3, D = 8, ALL = 3 * H * D };

static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_F64};

struct outcome {
    double y[B * T * H * D], dx[B * T * ALL];
};

/* Views of the parts, as [B, H, T, D]. */
static cairn_tensor *attend_apart(cairn_tensor *x, const struct cairn_attention_options *options) {
    cairn_tensor *parts[3];
    assert_int_equal(cairn_split(x, (int64_t)H * D, 2, parts, 3), CAIRN_OK);
    for (int i = 0; i < 3; i++) parts[i] = cairn_transpose(cairn_reshape(parts[i], CAIRN_SHAPE(B, T, H, D)), 1, 2);
    cairn_tensor *y = cairn_scaled_dot_product_attention(parts[0], parts[1], parts[2], options);
    return cairn_reshape(cairn_transpose(y, 1, 2), CAIRN_SHAPE(B, T, H * D));
}

static struct outcome attend(cairn_env *env, cairn_dtype type, bool apart,
                             const struct cairn_attention_options *options) {
    struct outcome o;
    cairn_manual_seed(env, 5);
    cairn_tensor *x = cairn_randn(env, type, CAIRN_SHAPE(B, T, ALL));
    cairn_tensor *dy = cairn_randn(env, type, CAIRN_SHAPE(B, T, H * D));
    OK(cairn_tensor_require_grad(x));
    cairn_tensor *y = apart ? attend_apart(x, options) : cairn__attention_of_heads(x, H, options);
    if (!y) fail_msg("%s", cairn_last_error());
    OK(cairn_backward_with(y, cairn_backward_options(.grad = dy)));
    OK(cairn_tensor_read_as(y, CAIRN_F64, o.y, cairn_tensor_numel(y)));
    OK(cairn_tensor_read_grad(x, o.dx, cairn_tensor_numel(x)));
    return o;
}

/* As numbers: a gradient of -0 that is added to zeros is 0. */
static void assert_same(const double *a, const double *b, size_t n, cairn_dtype type, const char *what) {
    for (size_t i = 0; i < n; i++) {
        if (a[i] != b[i]) fail_msg("%s: %s %zu is %a, and %a apart", cairn_dtype_name(type), what, i, a[i], b[i]);
    }
}

static void compare(cairn_env *env, const struct cairn_attention_options *options) {
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        const struct outcome side = attend(env, types[t], false, options), apart = attend(env, types[t], true, options);
        assert_same(side.y, apart.y, B * T * H * D, types[t], "y");
        assert_same(side.dx, apart.dx, B * T * ALL, types[t], "dx");
    }
}

static void heads_side_by_side_attend_as_heads_apart(void **state) {
    compare(test_env_of(state), NULL);
}

static void heads_side_by_side_see_what_a_mask_shows(void **state) {
    cairn_env *env = test_env_of(state);
    static const float shown[T] = {1, 1, 0, 1, 1};
    cairn_tensor *mask = cairn_cast(cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(T), shown), CAIRN_BOOL);
    compare(env, cairn_attention_options(.mask = mask));
    compare(env, cairn_attention_options(.causal = CAIRN_ON, .scale = 0.5));
}

static void heads_side_by_side_drop_the_same_probabilities(void **state) {
    compare(test_env_of(state), cairn_attention_options(.dropout = 0.3));
}

static void widths_that_are_not_three_times_the_heads_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(B, T, 32)),
                 *flat = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(9));
    NO_TENSOR(cairn__attention_of_heads(x, 3, NULL),
              "scaled_dot_product_attention: x is [2, 5, 32]; expected [B, T, 3 * 3 * D]");
    NO_TENSOR(cairn__attention_of_heads(flat, 3, NULL),
              "scaled_dot_product_attention: x is [9]; expected [B, T, 3 * 3 * D]");
    assert_null(cairn__attention_of_heads(NULL, 3, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(heads_side_by_side_attend_as_heads_apart),
        ENV_TEST(heads_side_by_side_see_what_a_mask_shows),
        ENV_TEST(heads_side_by_side_drop_the_same_probabilities),
        ENV_TEST(widths_that_are_not_three_times_the_heads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
