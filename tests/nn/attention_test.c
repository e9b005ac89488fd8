/* Attention beyond its values, which the op cases test: bounded memory, dropout, fully masked rows, errors. */
#include "test_env.h"

#include <malloc.h>
#include <math.h>
#include <string.h>

#include "cairn/ops.h"

enum { B = 1, H = 2, T = 5, S = 7, D = 4 };

static cairn_tensor *normal(cairn_env *env, int64_t h, int64_t t, int64_t d) {
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(B, h, t, d));
    assert_non_null(x);
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    return x;
}

static void read(const cairn_tensor *x, float *values) {
    if (!x) fail_msg("%s", cairn_last_error());
    assert_int_equal(cairn_tensor_read(x, values, cairn_tensor_numel(x)), CAIRN_OK);
}

static void backward(cairn_tensor *y, cairn_tensor *dy) {
    if (!y) fail_msg("%s", cairn_last_error());
    assert_int_equal(cairn_backward_with(y, cairn_backward_options(.grad = dy)), CAIRN_OK);
}

/* ---- memory ---- */

/* What attention keeps stays allocated when it is done. (The C library may not tell; then there is nothing to
 * compare.) */
static size_t allocated_nbytes(void) {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* A score matrix alone would be 16 MiB in f32. */
static void scores_of_long_sequences_are_never_in_memory(void **state) {
    cairn_env *env = test_env_of(state);
    enum { LONG = 2048 };
    cairn_tensor *q = normal(env, 1, LONG, D), *k = normal(env, 1, LONG, D), *v = normal(env, 1, LONG, D);
    cairn_tensor *dy = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(B, 1, LONG, D));
    const size_t before = allocated_nbytes();
    backward(cairn_scaled_dot_product_attention(q, k, v, NULL), dy);
    assert_true(allocated_nbytes() - before < 2u << 20);
}

static void repeated_attention_allocates_nothing(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *q = normal(env, H, T, D), *k = normal(env, H, S, D), *v = normal(env, H, S, D);
    cairn_tensor *dy = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(B, H, T, D));
    uint64_t allocations = 0;
    for (int step = 0; step < 12; step++) {
        if (step == 8) allocations = cairn__alloc_counters().allocations;
        backward(cairn_scaled_dot_product_attention(q, k, v, cairn_attention_options(.dropout = 0.5)), dy);
        env->begin_step(env);
    }
    assert_int_equal(cairn__alloc_counters().allocations, allocations);
}

/* ---- several blocks against the sum written down ---- */

static double score(const float *q, const float *k, int64_t t, int64_t s) {
    double sum = 0;
    for (int64_t d = 0; d < D; d++) sum += (double)q[t * D + d] * (double)k[s * D + d];
    return sum / 2;
}

static void maxima_that_rise_from_block_to_block_are_followed(void **state) {
    cairn_env *env = test_env_of(state);
    enum { ROWS = 130, COLS = 400 };
    static float q[ROWS * D], k[COLS * D], v[COLS * D], got[ROWS * D];
    cairn_tensor *tq = normal(env, 1, ROWS, D), *tk = normal(env, 1, COLS, D), *tv = normal(env, 1, COLS, D);
    read(tk, k);
    for (int64_t i = 0; i < COLS * D; i++) k[i] *= 1 + (float)(i / D) / 20; /* later scores are larger */
    assert_int_equal(cairn_tensor_write(tk, k, COLS * D), CAIRN_OK);
    read(tq, q), read(tv, v);
    read(cairn_scaled_dot_product_attention(tq, tk, tv, NULL), got);
    for (int64_t t = 0; t < ROWS; t++) {
        double highest = -INFINITY, total = 0, want[D] = {0};
        for (int64_t s = 0; s < COLS; s++) highest = fmax(highest, score(q, k, t, s));
        for (int64_t s = 0; s < COLS; s++) {
            const double p = exp(score(q, k, t, s) - highest);
            total += p;
            for (int64_t d = 0; d < D; d++) want[d] += p * (double)v[s * D + d];
        }
        for (int64_t d = 0; d < D; d++) assert_true(fabs((double)got[t * D + d] - want[d] / total) <= 2e-5);
    }
}

/* ---- dropout ---- */

static void dropout_is_the_same_for_the_same_seed(void **state) {
    (void)state;
    static float y[3][H * T * D];
    for (int run = 0; run < 3; run++) {
        cairn_env *env = test_env_create(run < 2 ? 5 : 6, 0);
        cairn_tensor *q = normal(env, H, T, D), *k = normal(env, H, S, D), *v = normal(env, H, S, D);
        read(cairn_scaled_dot_product_attention(q, k, v, cairn_attention_options(.dropout = 0.5)), y[run]);
        test_env_destroy(env);
    }
    assert_memory_equal(y[0], y[1], sizeof(y[0]));
    assert_memory_not_equal(y[0], y[2], sizeof(y[0]));
}

/* With values of 1 a row of the result is the sum of what is left of its probabilities. */
static void dropout_keeps_the_mean(void **state) {
    cairn_env *env = test_env_of(state);
    enum { LONG = 300 };
    static float y[LONG];
    cairn_tensor *q = normal(env, 1, LONG, D), *k = normal(env, 1, LONG, D);
    cairn_tensor *v = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(B, 1, LONG, 1), 1);
    double sum = 0;
    read(cairn_scaled_dot_product_attention(q, k, v, cairn_attention_options(.dropout = 0.25)), y);
    for (int i = 0; i < LONG; i++) sum += (double)y[i];
    assert_true(fabs(sum / LONG - 1) <= 0.02); /* about 4 standard deviations */
}

/* The result is linear in v, so that <y, dy> = <v, dv>; with another mask in backward it is not. */
static void backward_draws_the_mask_of_forward(void **state) {
    cairn_env *env = test_env_of(state);
    enum { LONG = 150 };
    static float y[LONG * D], dy[LONG * D], v[LONG * D];
    double forth = 0, back = 0;
    cairn_tensor *tq = normal(env, 1, LONG, D), *tk = normal(env, 1, LONG, D), *tv = normal(env, 1, LONG, D);
    cairn_tensor *tdy = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(B, 1, LONG, D));
    cairn_tensor *ty = cairn_scaled_dot_product_attention(tq, tk, tv, cairn_attention_options(.dropout = 0.5));
    read(ty, y), read(tdy, dy), read(tv, v);
    backward(ty, tdy);
    const float *dv = cairn_tensor_grad(tv);
    for (int i = 0; i < LONG * D; i++) {
        forth += (double)y[i] * (double)dy[i];
        back += (double)v[i] * (double)dv[i];
    }
    assert_true(fabs(forth - back) <= 1e-4);
}

/* ---- threads ---- */

static void number_of_threads_changes_no_bit(void **state) {
    (void)state;
    enum { ROWS = 140, HEADS = 5 };
    static float y[3][HEADS * ROWS * D], dk[3][HEADS * ROWS * D];
    for (int run = 0; run < 3; run++) {
        assert_int_equal(cairn_set_num_threads(run + 1), CAIRN_OK);
        cairn_env *env = test_env_create(5, 0);
        cairn_tensor *q = normal(env, HEADS, ROWS, D), *k = normal(env, HEADS, ROWS, D),
                     *v = normal(env, HEADS, ROWS, D);
        cairn_tensor *ty = cairn_scaled_dot_product_attention(q, k, v, cairn_attention_options(.dropout = 0.5));
        read(ty, y[run]);
        backward(ty, cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(B, HEADS, ROWS, D)));
        memcpy(dk[run], cairn_tensor_grad(k), sizeof(dk[run]));
        test_env_destroy(env);
    }
    assert_int_equal(cairn_set_num_threads(1), CAIRN_OK);
    for (int run = 1; run < 3; run++) {
        assert_memory_equal(y[run], y[0], sizeof(y[0]));
        assert_memory_equal(dk[run], dk[0], sizeof(dk[0]));
    }
}

/* ---- rows that see nothing ---- */

static void rows_that_see_nothing_are_zero_and_so_are_their_gradients(void **state) {
    cairn_env *env = test_env_of(state);
    static const uint8_t seen[T * S] = {[0] = 1, [2 * S + 3] = 1, [4 * S] = 1}; /* rows 1 and 3 see nothing */
    float y[H * T * D];
    cairn_tensor *q = normal(env, H, T, D), *k = normal(env, H, S, D), *v = normal(env, H, S, D);
    cairn_tensor *mask = cairn_tensor_from(env, CAIRN_BOOL, CAIRN_SHAPE(T, S), seen);
    cairn_tensor *ty = cairn_scaled_dot_product_attention(q, k, v, cairn_attention_options(.mask = mask));
    read(ty, y);
    backward(ty, cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(B, H, T, D)));
    const float *dq = cairn_tensor_grad(q), *dk = cairn_tensor_grad(k), *dv = cairn_tensor_grad(v);
    for (int i = 0; i < H * T * D; i++) {
        const int t = i / D % T;
        if (t == 1 || t == 3) assert_true(y[i] == 0 && dq[i] == 0);
        if (t == 0 || t == 2) assert_true(y[i] != 0);
    }
    for (int i = 0; i < H * S * D; i++) assert_true(isfinite(dk[i]) && isfinite(dv[i]));
}

/* All scores are sums over nothing, 0. */
static void heads_without_a_size_average_the_values(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *q = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(1, 1, 2, 0));
    cairn_tensor *k = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(1, 1, 2, 0));
    cairn_tensor *v = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 1, 2, 1), (const float[]){1, 5});
    float y[2];
    read(cairn_scaled_dot_product_attention(q, k, v, NULL), y);
    assert_true(y[0] == 3 && y[1] == 3);
}

static void mask_that_requires_a_gradient_gets_none(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *q = normal(env, H, T, D), *k = normal(env, H, S, D), *v = normal(env, H, S, D);
    cairn_tensor *mask = normal(env, H, T, S);
    cairn_tensor *y = cairn_scaled_dot_product_attention(q, k, v, cairn_attention_options(.mask = cairn_neg(mask)));
    backward(y, cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(B, H, T, D)));
    assert_non_null(cairn_tensor_grad(q));
    assert_null(cairn_tensor_grad(mask));
}

static void mask_of_another_float_type_leaves_the_product_in_its_own(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *q = cairn_cast(normal(env, H, T, D), CAIRN_BF16), *k = cairn_cast(normal(env, H, S, D), CAIRN_BF16);
    cairn_tensor *mask = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(T, S), 0);
    cairn_tensor *y = cairn_scaled_dot_product_attention(q, k, k, cairn_attention_options(.mask = mask));
    assert_int_equal(cairn_tensor_dtype(y), CAIRN_BF16);
}

/* ---- errors ---- */

static void refused(const cairn_tensor *y, const char *sentence) {
    assert_null(y);
    assert_string_equal(cairn_last_error(), sentence);
}

static void wrong_shapes_and_options_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *q = normal(env, H, T, D), *k = normal(env, H, S, D), *v = normal(env, H, S, D);
    cairn_tensor *narrow = normal(env, H, S, 3), *few = normal(env, H, 6, D), *single = normal(env, 1, S, D);
    cairn_tensor *flat = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(T, D));
    cairn_tensor *half = cairn_zeros(env, CAIRN_I32, CAIRN_SHAPE(T, S));
    refused(cairn_scaled_dot_product_attention(q, narrow, v, NULL),
            "scaled_dot_product_attention: q [1, 2, 5, 4] x k [1, 2, 7, 3]: inner sizes 4 and 3 differ");
    refused(cairn_scaled_dot_product_attention(q, k, few, NULL),
            "scaled_dot_product_attention: k [1, 2, 7, 4], v [1, 2, 6, 4]: 7 keys but 6 values");
    refused(
        cairn_scaled_dot_product_attention(q, single, v, NULL),
        "scaled_dot_product_attention: q [1, 2, 5, 4], k [1, 1, 7, 4], v [1, 2, 7, 4]: sizes in dimension 1 differ");
    refused(cairn_scaled_dot_product_attention(flat, k, v, NULL),
            "scaled_dot_product_attention: q [5, 4], k [1, 2, 7, 4], v [1, 2, 7, 4]; expected [B, H, T, D], [B, H, S, "
            "D], [B, H, S, E]");
    refused(cairn_scaled_dot_product_attention(q, k, v, cairn_attention_options(.mask = flat)),
            "scaled_dot_product_attention: mask [5, 4] does not broadcast to the scores [1, 2, 5, 7]");
    refused(cairn_scaled_dot_product_attention(q, k, v, cairn_attention_options(.mask = half)),
            "scaled_dot_product_attention: mask is i32; it must be bool or f32, the type of q");
    refused(
        cairn_scaled_dot_product_attention(q, k, v, cairn_attention_options(.dropout = 1)),
        "scaled_dot_product_attention: dropout is 1 and scale 0; dropout must be from 0 to below 1, and scale finite");
    assert_null(cairn_scaled_dot_product_attention(q, k, NULL, NULL));
}

static void wrong_products_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *a = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(64, 1024));
    cairn_tensor *b = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(512, 16));
    cairn_tensor *one = cairn_zeros(env, CAIRN_F32, 0, NULL), *whole = cairn_zeros(env, CAIRN_I64, CAIRN_SHAPE(64, 64));
    cairn_tensor *two = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2, 3, 4));
    cairn_tensor *five = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(5, 4, 6));
    cairn_tensor *fits = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2, 4, 6));
    refused(cairn_matmul(a, b), "matmul: [64, 1024] x [512, 16]: inner sizes 1024 and 512 differ");
    refused(cairn_matmul(one, b), "matmul: [] x [512, 16]: both must have at least one dimension");
    refused(cairn_matmul(two, five), "matmul: [2, 3, 4] x [5, 4, 6]: batch sizes 2 and 5 in dimension -3 differ");
    refused(cairn_matmul(whole, a), "matmul: input 0 is i64; it must be a float type");
    refused(cairn_bmm(a, b), "bmm: [64, 1024] x [512, 16]: both must have three dimensions");
    refused(cairn_addmm(one, two, five, 1, 1),
            "addmm: [2, 3, 4] x [5, 4, 6]; expected two matrices, a matrix and a vector, or two vectors");
    refused(cairn_baddbmm(five, two, fits, 1, 1),
            "baddbmm: [5, 4, 6] does not broadcast to [2, 3, 6], the shape of the product");
    assert_null(cairn_matmul(NULL, b));
}

/* Sizes whose product does not fit: repeated rows and columns without memory behind them. */
static void products_that_cannot_be_counted_are_refused(void **state) {
    cairn_env *env = test_env_of(state);
    const int64_t many = (int64_t)1 << 30;
    cairn_tensor *one = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(1, 1));
    cairn_tensor *tall = cairn_expand(one, CAIRN_SHAPE(many, 1)), *wide = cairn_expand(one, CAIRN_SHAPE(1, many));
    refused(cairn_matmul(tall, wide),
            "matmul: [1073741824, 1] x [1, 1073741824]: the result would have more elements than can be counted");
}

/* beta dy is beyond f16; what addmm repeated sums it in f32. */
static void gradient_of_what_addmm_adds_is_rounded_once(void **state) {
    cairn_env *env = test_env_of(state);
    double dx;
    cairn_tensor *x = cairn_zeros(env, CAIRN_F16, CAIRN_SHAPE(1));
    cairn_tensor *a = cairn_zeros(env, CAIRN_F16, CAIRN_SHAPE(2, 1)),
                 *b = cairn_zeros(env, CAIRN_F16, CAIRN_SHAPE(1, 1));
    cairn_tensor *dy =
        cairn_cast(cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 1), (const float[]){60000, -59968}), CAIRN_F16);
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    backward(cairn_addmm(x, a, b, 2, 1), dy);
    assert_int_equal(cairn_tensor_read_grad(x, &dx, 1), CAIRN_OK);
    assert_true(dx == 64);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(scores_of_long_sequences_are_never_in_memory),
        ENV_TEST(repeated_attention_allocates_nothing),
        ENV_TEST(maxima_that_rise_from_block_to_block_are_followed),
        ENV_TEST(dropout_is_the_same_for_the_same_seed),
        ENV_TEST(dropout_keeps_the_mean),
        ENV_TEST(backward_draws_the_mask_of_forward),
        ENV_TEST(number_of_threads_changes_no_bit),
        ENV_TEST(rows_that_see_nothing_are_zero_and_so_are_their_gradients),
        ENV_TEST(heads_without_a_size_average_the_values),
        ENV_TEST(mask_that_requires_a_gradient_gets_none),
        ENV_TEST(mask_of_another_float_type_leaves_the_product_in_its_own),
        ENV_TEST(wrong_shapes_and_options_are_refused),
        ENV_TEST(wrong_products_are_refused),
        ENV_TEST(products_that_cannot_be_counted_are_refused),
        ENV_TEST(gradient_of_what_addmm_adds_is_rounded_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
