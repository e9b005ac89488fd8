/* Long sums: those along dimensions, means, variances, mse and l1 losses, gradients of biases, of embeddings and of
 * norms' weights, statistics of batch norm, the sums inside log softmax and cross entropy, and average pooling. Each is
 * within 4e-7 of the sum of its terms' absolute values (what more some are allowed stands with them), and has the same
 * bits with any number of threads and every instruction set.
 *
 * sums_test [--long]: 10^6 terms, or 3 10^7; with CAIRN_TEST_SHORT in the environment 250 000, and one other number of
 * threads and one other instruction set. sums_test --bits: prints a digest of all results, which the test of
 * instruction sets has other processes do. sums_test --products: prints how far the sums inside products are off, which
 * are the engine's and have no bound here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/convert.h"
#include "core/cpu.h"
#include "core/dtype.h"
#include "core/hash.h"
#include "nn/tensor.h"
#include "test_env.h"

static const double TOLERANCE = 4e-7;
static const char *program;
enum { FEWER_TERMS = 250048 }; /* both are multiples of 1024 / 16 */
static int64_t num_terms = 1000192;

/* ---- data ---- */

enum data { TENTH, UNIFORM, NORMAL, MIXED, NUM_DATA };
static const char *const data_names[] = {"0.1", "uniform", "normal", "mixed-sign"};

static double uniform_of(uint64_t i, uint64_t salt) {
    uint64_t x = (i + 1) * 0x9E3779B97F4A7C15u + salt * 0xD1B54A32D192ED03u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (double)((x ^ x >> 31) >> 40) * 0x1p-24 + 0x1p-25;
}

static float term_of(enum data data, uint64_t i, uint64_t salt) {
    const double u = uniform_of(i, salt);
    switch (data) {
    case TENTH:
        return 0.1f;
    case UNIFORM:
        return (float)u;
    case NORMAL:
        return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * uniform_of(i, salt + 1)));
    default:
        return (float)(i % 2 ? -1000 * u : 1000 * u);
    }
}

/* What a case works on: n terms of x and of y. */
struct given {
    cairn_env *env;
    enum data data;
    int64_t n;
    const float *x, *y; /* y: normal, whatever x is */
};

enum operand { GIVEN_X, GIVEN_Y, NUM_OPERANDS };

/* The first n terms. They are computed once, and kept until another n is given with the same data and operand. */
static const float *terms_of(enum data data, enum operand operand, int64_t n) {
    static const uint64_t salts[NUM_OPERANDS] = {[GIVEN_X] = 1, [GIVEN_Y] = 7};
    static struct terms {
        int64_t n;
        float *x;
    } kept[NUM_DATA][NUM_OPERANDS];
    struct terms *t = &kept[data][operand];
    if (t->n == n) return t->x;
    free(t->x);
    *t = (struct terms){n, malloc((size_t)n * sizeof(float))};
    if (!t->x) abort();
    for (int64_t i = 0; i < n; i++) t->x[i] = term_of(data, (uint64_t)i, salts[operand]);
    return t->x;
}

static struct given give(cairn_env *env, enum data data, int64_t n) {
    return (struct given){env, data, n, terms_of(data, GIVEN_X, n), terms_of(NORMAL, GIVEN_Y, n)};
}

/* ---- results, and what they should be ---- */

/* The sum of what is put in, and of its absolute value, in extended precision. */
struct exact {
    long double sum, absolute;
};

static void put_in(struct exact *e, long double term) {
    e->sum += term;
    e->absolute += fabsl(term);
}

static struct exact over(struct exact e, long double n) {
    return (struct exact){e.sum / n, e.absolute / n};
}

enum { MAX_RESULTS = 8 };

struct results {
    int count;
    double got[MAX_RESULTS];
    struct exact want[MAX_RESULTS];
    cairn_dtype type; /* of what is stored; 0 = f32 */
};

static void result(struct results *r, double got, struct exact want) {
    r->got[r->count] = got;
    r->want[r->count++] = want;
}

static double stored(cairn_dtype type, double value) {
    unsigned char room[8];
    const float f32 = (float)value;
    double back;
    cairn__convert(room, type, &f32, CAIRN_F32, 1);
    cairn__convert(&back, CAIRN_F64, room, type, 1);
    return back;
}

/* Halves: what numbers as close as that are rounded to. */
static bool is_close(const struct results *r, int i) {
    const double want = (double)r->want[i].sum, error = TOLERANCE * (double)r->want[i].absolute;
    if (!r->type || r->type == CAIRN_F32) return fabs(r->got[i] - want) <= error;
    return r->got[i] >= stored(r->type, want - error) && r->got[i] <= stored(r->type, want + error);
}

/* ---- the tensors of a case ---- */

static cairn_tensor *tensor_of(cairn_env *env, const float *values, int ndim, const int64_t *shape) {
    cairn_tensor *t = cairn_tensor_from(env, CAIRN_F32, ndim, shape, values);
    if (!t) fail_msg("%s", cairn_last_error());
    return t;
}

static cairn_tensor *full(cairn_env *env, float value, int ndim, const int64_t *shape) {
    cairn_tensor *t = cairn_full(env, CAIRN_F32, ndim, shape, value);
    if (!t) fail_msg("%s", cairn_last_error());
    return t;
}

static cairn_tensor *wanting(cairn_tensor *leaf) {
    assert_int_equal(cairn_tensor_require_grad(leaf), CAIRN_OK);
    return leaf;
}

static void backward(cairn_tensor *y, cairn_tensor *dy) {
    if (!y || cairn_backward_with(y, cairn_backward_options(.grad = dy)) != CAIRN_OK)
        fail_msg("%s", cairn_last_error());
}

static void read_into(const cairn_tensor *t, float *got, int64_t n) {
    if (!t || cairn_tensor_read(t, got, (size_t)n) != CAIRN_OK) fail_msg("%s", cairn_last_error());
}

/* ---- sums, means and losses of everything ---- */

static void sum_and_mean(const struct given *g, struct results *r) {
    struct exact e = {0, 0};
    float got[2];
    cairn_tensor *x = tensor_of(g->env, g->x, CAIRN_SHAPE(g->n));
    for (int64_t i = 0; i < g->n; i++) put_in(&e, g->x[i]);
    read_into(cairn_sum(x), &got[0], 1);
    read_into(cairn_mean(x), &got[1], 1);
    result(r, (double)got[0], e);
    result(r, (double)got[1], over(e, (long double)g->n));
}

static void means_of(cairn_dtype type, const struct given *g, struct results *r) {
    struct exact e = {0, 0};
    float got;
    cairn_tensor *x = cairn_cast(tensor_of(g->env, g->x, CAIRN_SHAPE(g->n)), type);
    for (int64_t i = 0; i < g->n; i++) put_in(&e, stored(type, (double)g->x[i]));
    read_into(cairn_cast(cairn_mean(x), CAIRN_F32), &got, 1);
    result(r, (double)got, over(e, (long double)g->n));
    r->type = type;
}
static void mean_of_f16(const struct given *g, struct results *r) {
    means_of(CAIRN_F16, g, r);
}
static void mean_of_bf16(const struct given *g, struct results *r) {
    means_of(CAIRN_BF16, g, r);
}

static void losses(const struct given *g, struct results *r) {
    struct exact squares = {0, 0}, magnitudes = {0, 0};
    float got[2];
    cairn_tensor *x = tensor_of(g->env, g->x, CAIRN_SHAPE(g->n)), *y = full(g->env, -0.25f, CAIRN_SHAPE(g->n));
    for (int64_t i = 0; i < g->n; i++) {
        const long double d = (long double)g->x[i] + 0.25L;
        put_in(&squares, d * d);
        put_in(&magnitudes, fabsl(d));
    }
    read_into(cairn_mse_loss(x, y), &got[0], 1);
    read_into(cairn_l1_loss(x, y, NULL), &got[1], 1);
    result(r, (double)got[0], over(squares, (long double)g->n));
    result(r, (double)got[1], over(magnitudes, (long double)g->n));
}

/* ---- along dimensions ---- */

enum { FOUR = 4 };

static void folded(const struct given *g, struct results *r, cairn_tensor *y, struct exact want[FOUR]) {
    float got[FOUR];
    (void)g;
    read_into(y, got, FOUR);
    for (int c = 0; c < FOUR; c++) result(r, (double)got[c], want[c]);
}

static void sums_of_rows(const struct given *g, struct results *r) {
    const int64_t n = g->n / FOUR;
    struct exact e[FOUR] = {{0, 0}};
    for (int64_t i = 0; i < FOUR * n; i++) put_in(&e[i / n], g->x[i]);
    folded(g, r, cairn_sum_dims(tensor_of(g->env, g->x, CAIRN_SHAPE(FOUR, n)), 1, (const int[]){1}, 0), e);
}

static void sums_of_columns(const struct given *g, struct results *r) {
    struct exact e[FOUR] = {{0, 0}};
    for (int64_t i = 0; i < g->n; i++) put_in(&e[i % FOUR], g->x[i]);
    cairn_tensor *x = tensor_of(g->env, g->x, CAIRN_SHAPE(g->n / FOUR, FOUR));
    folded(g, r, cairn_sum_dims(x, 1, (const int[]){0}, 0), e);
}

static void sums_around_columns(const struct given *g, struct results *r) {
    const int64_t inner = 8;
    struct exact e[FOUR] = {{0, 0}};
    for (int64_t i = 0; i < g->n; i++) put_in(&e[i / inner % FOUR], g->x[i]);
    cairn_tensor *x = tensor_of(g->env, g->x, CAIRN_SHAPE(g->n / FOUR / inner, FOUR, inner));
    folded(g, r, cairn_sum_dims(x, 2, (const int[]){0, 2}, 0), e);
}

static void variances_of_columns(const struct given *g, struct results *r) {
    const int64_t n = g->n / FOUR;
    struct exact sum[FOUR] = {{0, 0}}, e[FOUR] = {{0, 0}};
    for (int64_t i = 0; i < g->n; i++) put_in(&sum[i % FOUR], g->x[i]);
    for (int64_t i = 0; i < g->n; i++) put_in(&e[i % FOUR], powl(g->x[i] - sum[i % FOUR].sum / n, 2));
    for (int c = 0; c < FOUR; c++) {
        e[c] = over(e[c], (long double)n);
        e[c].absolute += powl(sum[c].absolute / n, 2) * TOLERANCE; /* for the mean's error, squared */
    }
    cairn_tensor *x = tensor_of(g->env, g->x, CAIRN_SHAPE(n, FOUR));
    folded(g, r, cairn_var(x, 1, (const int[]){0}, 0, 0), e);
}

/* ---- gradients that are sums over rows ---- */

static void bias_of_linear(const struct given *g, struct results *r) {
    const int64_t rows = g->n / FOUR;
    struct exact e[FOUR] = {{0, 0}};
    for (int64_t i = 0; i < g->n; i++) put_in(&e[i % FOUR], g->x[i]);
    cairn_tensor *b = wanting(full(g->env, 0, CAIRN_SHAPE(FOUR))), *w = full(g->env, 1, CAIRN_SHAPE(FOUR, 1));
    cairn_tensor *y = cairn_linear_forward(full(g->env, 1, CAIRN_SHAPE(rows, 1)), w, b);
    backward(y, tensor_of(g->env, g->x, CAIRN_SHAPE(rows, FOUR)));
    for (int c = 0; c < FOUR; c++) result(r, (double)cairn_tensor_grad(b)[c], e[c]);
}

/* A matrix that all batches of a product share: its gradient is a sum of products, x as dy of two columns times 1. */
static void shared_matrix(const struct given *g, struct results *r) {
    const int64_t batches = g->n / FOUR;
    struct exact e[2] = {{0, 0}};
    for (int64_t i = 0; i < g->n; i++) put_in(&e[i / 2 % 2], g->x[i]);
    cairn_tensor *w = wanting(full(g->env, 1, CAIRN_SHAPE(2, 3))), *x = full(g->env, 1, CAIRN_SHAPE(batches, 3, 2));
    backward(cairn_matmul(w, x), tensor_of(g->env, g->x, CAIRN_SHAPE(batches, 2, 2)));
    for (int row = 0; row < 2; row++) result(r, (double)cairn_tensor_grad(w)[3 * row], e[row]);
}

static void bias_of_conv(const struct given *g, struct results *r) {
    const int64_t plane = 8, images = g->n / FOUR / plane;
    struct exact e[FOUR] = {{0, 0}};
    for (int64_t i = 0; i < g->n; i++) put_in(&e[i / plane % FOUR], g->x[i]);
    cairn_tensor *b = wanting(full(g->env, 0, CAIRN_SHAPE(FOUR))), *w = full(g->env, 1, CAIRN_SHAPE(FOUR, 1, 1));
    cairn_tensor *y = cairn_conv1d_forward(full(g->env, 1, CAIRN_SHAPE(images, 1, plane)), w, b, NULL);
    backward(y, tensor_of(g->env, g->x, CAIRN_SHAPE(images, FOUR, plane)));
    for (int c = 0; c < FOUR; c++) result(r, (double)cairn_tensor_grad(b)[c], e[c]);
}

/* Half of the indices are 2; row 0 gets a dozen. */
static void embedding_of(cairn_dtype type, const struct given *g, struct results *r) {
    const int64_t rows = g->n / 2;
    struct exact e[6] = {{0, 0}};
    int32_t *index = malloc((size_t)rows * sizeof(*index));
    if (!index) abort();
    for (int64_t i = 0; i < rows; i++) {
        index[i] = i % (rows / 12) == 0 ? 0 : uniform_of((uint64_t)i, 3) < 0.5 ? 2 : 1;
        for (int c = 0; c < 2; c++) put_in(&e[2 * index[i] + c], stored(type, (double)g->x[2 * i + c]));
    }
    cairn_tensor *table = wanting(full(g->env, 0, CAIRN_SHAPE(3, 2)));
    cairn_tensor *i32 = cairn_tensor_from(g->env, CAIRN_I32, CAIRN_SHAPE(rows), index);
    cairn_tensor *y = cairn_embedding_forward(i32, cairn_cast(table, type), -1);
    backward(y, cairn_cast(tensor_of(g->env, g->x, CAIRN_SHAPE(rows, 2)), type));
    for (int c = 0; c < 6; c++) result(r, (double)cairn_tensor_grad(table)[c], e[c]);
    r->type = type;
    free(index);
}
static void embedding_f32(const struct given *g, struct results *r) {
    embedding_of(CAIRN_F32, g, r);
}
static void embedding_bf16(const struct given *g, struct results *r) {
    embedding_of(CAIRN_BF16, g, r);
}

/* dweight and dbias of norms over x = y, whose h is computed from f32 statistics: its error goes with the gradient. */
static void affine(struct results *r, const cairn_tensor *w, const cairn_tensor *b, const struct exact dw[FOUR],
                   const struct exact db[FOUR]) {
    for (int c = 0; c < FOUR; c++) {
        result(r, (double)cairn_tensor_grad(w)[c], (struct exact){dw[c].sum, 1.5L * dw[c].absolute});
        if (b) result(r, (double)cairn_tensor_grad(b)[c], db[c]);
    }
}

static void layer_norm_affine(const struct given *g, struct results *r) {
    const int64_t rows = g->n / FOUR;
    struct exact dw[FOUR] = {{0, 0}}, db[FOUR] = {{0, 0}};
    for (int64_t i = 0; i < rows; i++) {
        long double mean = 0, variance = 0;
        for (int c = 0; c < FOUR; c++) mean += g->y[FOUR * i + c] / (long double)FOUR;
        for (int c = 0; c < FOUR; c++) variance += powl(g->y[FOUR * i + c] - mean, 2) / FOUR;
        for (int c = 0; c < FOUR; c++) {
            put_in(&dw[c], g->x[FOUR * i + c] * ((g->y[FOUR * i + c] - mean) / sqrtl(variance + 1e-5L)));
            put_in(&db[c], g->x[FOUR * i + c]);
        }
    }
    cairn_tensor *w = wanting(full(g->env, 1, CAIRN_SHAPE(FOUR))), *b = wanting(full(g->env, 0, CAIRN_SHAPE(FOUR)));
    cairn_tensor *x = tensor_of(g->env, g->y, CAIRN_SHAPE(rows, FOUR));
    backward(cairn_layer_norm_forward(x, w, b, 1, 1e-5), tensor_of(g->env, g->x, CAIRN_SHAPE(rows, FOUR)));
    affine(r, w, b, dw, db);
}

static void rms_norm_affine(const struct given *g, struct results *r) {
    const int64_t rows = g->n / FOUR;
    struct exact dw[FOUR] = {{0, 0}};
    for (int64_t i = 0; i < rows; i++) {
        long double power = 0;
        for (int c = 0; c < FOUR; c++) power += powl(g->y[FOUR * i + c], 2) / FOUR;
        for (int c = 0; c < FOUR; c++) put_in(&dw[c], g->x[FOUR * i + c] * (g->y[FOUR * i + c] / sqrtl(power + 1e-5L)));
    }
    cairn_tensor *w = wanting(full(g->env, 1, CAIRN_SHAPE(FOUR)));
    cairn_tensor *x = tensor_of(g->env, g->y, CAIRN_SHAPE(rows, FOUR));
    backward(cairn_rms_norm_forward(x, w, 1, 1e-5), tensor_of(g->env, g->x, CAIRN_SHAPE(rows, FOUR)));
    affine(r, w, NULL, dw, dw);
}

/* One group of all channels an image: [images, 4, 16]. */
static void group_norm_affine(const struct given *g, struct results *r) {
    const int64_t inner = 16, group = FOUR * inner, images = g->n / group;
    struct exact dw[FOUR] = {{0, 0}}, db[FOUR] = {{0, 0}};
    for (int64_t i = 0; i < images; i++) {
        long double mean = 0, variance = 0;
        for (int64_t j = 0; j < group; j++) mean += g->y[group * i + j] / (long double)group;
        for (int64_t j = 0; j < group; j++) variance += powl(g->y[group * i + j] - mean, 2) / (long double)group;
        for (int64_t j = 0; j < group; j++) {
            put_in(&dw[j / inner], g->x[group * i + j] * ((g->y[group * i + j] - mean) / sqrtl(variance + 1e-5L)));
            put_in(&db[j / inner], g->x[group * i + j]);
        }
    }
    cairn_tensor *w = wanting(full(g->env, 1, CAIRN_SHAPE(FOUR))), *b = wanting(full(g->env, 0, CAIRN_SHAPE(FOUR)));
    cairn_tensor *x = tensor_of(g->env, g->y, CAIRN_SHAPE(images, FOUR, inner));
    backward(cairn_group_norm_forward(x, 1, w, b, 1e-5), tensor_of(g->env, g->x, CAIRN_SHAPE(images, FOUR, inner)));
    affine(r, w, b, dw, db);
}

/* ---- batch norm: mean, variance, and the gradients; inner 1 goes by columns, else by planes ---- */

static void batch_statistics(const struct given *g, struct results *r, int64_t inner) {
    const int64_t n = g->n / FOUR, images = n / inner;
    struct exact sum[FOUR] = {{0, 0}}, e[FOUR] = {{0, 0}};
    float mean[FOUR], variance[FOUR];
    for (int64_t i = 0; i < g->n; i++) put_in(&sum[i / inner % FOUR], g->x[i]);
    for (int64_t i = 0; i < g->n; i++) put_in(&e[i / inner % FOUR], powl(g->x[i] - sum[i / inner % FOUR].sum / n, 2));
    cairn_tensor *m = full(g->env, 0, CAIRN_SHAPE(FOUR)), *v = full(g->env, 0, CAIRN_SHAPE(FOUR));
    cairn_tensor *x = tensor_of(g->env, g->x, CAIRN_SHAPE(images, FOUR, inner));
    assert_non_null(cairn_batch_norm_forward(x, m, v, NULL, NULL, 1, 1, 1e-5));
    read_into(m, mean, FOUR);
    read_into(v, variance, FOUR);
    for (int c = 0; c < FOUR; c++) {
        e[c].absolute += (n - 1) * powl(sum[c].absolute / n, 2) * TOLERANCE;
        result(r, (double)mean[c], over(sum[c], (long double)n));
        result(r, (double)variance[c], over(e[c], (long double)(n - 1)));
    }
}
static void batch_statistics_of_columns(const struct given *g, struct results *r) {
    batch_statistics(g, r, 1);
}
static void batch_statistics_of_planes(const struct given *g, struct results *r) {
    batch_statistics(g, r, 16);
}

/* x is y here, as above, so that dweight has an h; dy is x. */
static void batch_affine(const struct given *g, struct results *r, int64_t inner) {
    const int64_t n = g->n / FOUR, images = n / inner;
    struct exact sum[FOUR] = {{0, 0}}, square[FOUR] = {{0, 0}}, dw[FOUR] = {{0, 0}}, db[FOUR] = {{0, 0}};
    for (int64_t i = 0; i < g->n; i++) put_in(&sum[i / inner % FOUR], g->y[i]);
    for (int64_t i = 0; i < g->n; i++)
        put_in(&square[i / inner % FOUR], powl(g->y[i] - sum[i / inner % FOUR].sum / n, 2));
    for (int64_t i = 0; i < g->n; i++) {
        const int64_t c = i / inner % FOUR;
        put_in(&dw[c], g->x[i] * ((g->y[i] - sum[c].sum / n) / sqrtl(square[c].sum / n + 1e-5L)));
        put_in(&db[c], g->x[i]);
    }
    cairn_tensor *w = wanting(full(g->env, 1, CAIRN_SHAPE(FOUR))), *b = wanting(full(g->env, 0, CAIRN_SHAPE(FOUR)));
    cairn_tensor *x = tensor_of(g->env, g->y, CAIRN_SHAPE(images, FOUR, inner));
    backward(cairn_batch_norm_forward(x, NULL, NULL, w, b, 1, 0.1, 1e-5),
             tensor_of(g->env, g->x, CAIRN_SHAPE(images, FOUR, inner)));
    affine(r, w, b, dw, db);
}
static void batch_affine_of_columns(const struct given *g, struct results *r) {
    batch_affine(g, r, 1);
}
static void batch_affine_of_planes(const struct given *g, struct results *r) {
    batch_affine(g, r, 16);
}

/* ---- sums of exponents ---- */

/* As they are in f32: e^x is within 1.25 units of the last place, so the sum of exact ones says 1.5e-7 more. Through
 * the logarithm a relative error is an absolute one. x is small, or e^x of normal data has few great terms. */
static void log_of_exponents(const struct given *g, struct results *r) {
    enum { CLASSES = 1 << 18 };
    const int64_t n = g->n < CLASSES * FOUR ? g->n / FOUR : CLASSES;
    const float least = 0x1p-12f;
    struct exact rows = {0, 0}, columns = {0, 0};
    float got[2];
    float *x = malloc((size_t)(FOUR * n) * sizeof(float));
    if (!x) abort();
    for (int64_t i = 0; i < FOUR * n; i++) x[i] = least * g->x[i];
    for (int64_t i = 0; i < n; i++) put_in(&rows, expl(x[i]));
    for (int64_t i = 0; i < n; i++) put_in(&columns, expl(x[FOUR * i]));
    const int64_t zeros[FOUR] = {0};
    cairn_tensor *t = tensor_of(g->env, x, CAIRN_SHAPE(FOUR, n)), *c = tensor_of(g->env, x, CAIRN_SHAPE(1, n, FOUR));
    cairn_tensor *target = cairn_tensor_from(g->env, CAIRN_I64, CAIRN_SHAPE(1, FOUR), zeros);
    cairn_tensor *each = cairn_cross_entropy(c, target, cairn_loss_options(.reduction = CAIRN_NONE));
    read_into(cairn_slice(cairn_slice(cairn_log_softmax(t, 1), 0, 0, 1, 1), 1, 0, 1, 1), &got[0], 1);
    read_into(cairn_slice(each, 1, 0, 1, 1), &got[1], 1);
    result(r, (double)got[0], (struct exact){x[0] - logl(rows.sum), 1 + logl(rows.sum)});
    result(r, (double)got[1], (struct exact){logl(columns.sum) - x[0], 1 + logl(columns.sum)});
    free(x);
}

/* ---- planes ---- */

static void averages_of_planes(const struct given *g, struct results *r) {
    const int64_t side = 500;
    struct exact all = {0, 0}, half = {0, 0}, window = {0, 0}, back = {0, 0};
    float got[3];
    for (int64_t i = 0; i < side * side; i++) {
        put_in(&all, g->x[i]);
        if (i % side < side / 2) put_in(&half, g->x[i]);
        if (i % side < 499 && i / side < 499) put_in(&window, g->x[i]);
    }
    cairn_tensor *x = wanting(tensor_of(g->env, g->x, CAIRN_SHAPE(1, 1, side, side)));
    read_into(cairn_adaptive_avg_pool2d(x, 1, 1), &got[0], 1);
    read_into(cairn_slice(cairn_adaptive_avg_pool2d(x, 1, 2), 3, 0, 1, 1), &got[1], 1);
    const struct cairn_pool_options *by_1 = cairn_pool_options(.stride = {1, 1});
    read_into(cairn_slice(cairn_slice(cairn_avg_pool2d(x, 499, 499, by_1), 2, 0, 1, 1), 3, 0, 1, 1), &got[2], 1);
    result(r, (double)got[0], over(all, (long double)(side * side)));
    result(r, (double)got[1], over(half, (long double)(side * side / 2)));
    result(r, (double)got[2], over(window, 499.0L * 499.0L));
    /* 101 x 101 windows over every place: an input in the middle is in all of those */
    cairn_tensor *p = wanting(tensor_of(g->env, g->x, CAIRN_SHAPE(1, 1, 301, 301)));
    backward(cairn_avg_pool2d(p, 101, 101, by_1), tensor_of(g->env, g->x, CAIRN_SHAPE(1, 1, 201, 201)));
    for (int64_t i = 50; i <= 150; i++) {
        for (int64_t j = 50; j <= 150; j++) put_in(&back, g->x[i * 201 + j] / (101.0L * 101.0L));
    }
    result(r, (double)cairn_tensor_grad(p)[150 * 301 + 150], back);
}

/* Small windows where a piece of a long row begins, and a large one whose taps are added along the row. */
static void averages_of_wide_rows(const struct given *g, struct results *r) {
    const int64_t rows = 9, width = 3000, outs = width - 4, at = 1024;
    struct exact window = {0, 0}, back = {0, 0}, of_all = {0, 0};
    float got[2];
    for (int64_t i = 0; i < 25; i++) put_in(&window, g->x[i / 5 * width + at + i % 5]);
    for (int64_t i = 0; i < 25; i++) put_in(&back, g->x[i / 5 * outs + at - 4 + i % 5] / 25.0L);
    for (int64_t i = 0; i < 101 * 101; i++) put_in(&of_all, g->x[i / 101 * 301 + i % 101]);
    cairn_tensor *x = wanting(tensor_of(g->env, g->x, CAIRN_SHAPE(1, 1, rows, width)));
    const struct cairn_pool_options *by_1 = cairn_pool_options(.stride = {1, 1});
    cairn_tensor *y = cairn_avg_pool2d(x, 5, 5, by_1), *square = tensor_of(g->env, g->x, CAIRN_SHAPE(1, 1, 301, 301));
    read_into(cairn_slice(cairn_slice(y, 2, 0, 1, 1), 3, at, at + 1, 1), &got[0], 1);
    backward(y, tensor_of(g->env, g->x, CAIRN_SHAPE(1, 1, rows - 4, outs)));
    square = cairn_avg_pool2d(square, 101, 101, by_1);
    read_into(cairn_slice(cairn_slice(square, 2, 0, 1, 1), 3, 0, 1, 1), &got[1], 1);
    result(r, (double)got[0], over(window, 25));
    result(r, (double)got[1], over(of_all, 101.0L * 101.0L));
    result(r, (double)cairn_tensor_grad(x)[4 * width + at], back);
}

/* 100 x 100 windows around one peak, and as many adaptive ones of one input. */
static void gradients_of_scattering_pools(const struct given *g, struct results *r) {
    enum { SIDE = 199, WINDOW = 100 };
    struct exact all = {0, 0};
    static float x[SIDE * SIDE];
    x[SIDE / 2 * SIDE + SIDE / 2] = 1;
    for (int64_t i = 0; i < WINDOW * WINDOW; i++) put_in(&all, g->x[i]);
    cairn_tensor *dy = tensor_of(g->env, g->x, CAIRN_SHAPE(1, 1, WINDOW, WINDOW));
    cairn_tensor *peak = wanting(tensor_of(g->env, x, CAIRN_SHAPE(1, 1, SIDE, SIDE)));
    cairn_tensor *one = wanting(full(g->env, 1, CAIRN_SHAPE(1, 1, 1, 1)));
    backward(cairn_max_pool2d(peak, WINDOW, WINDOW, cairn_pool_options(.stride = {1, 1})), dy);
    backward(cairn_adaptive_avg_pool2d(one, WINDOW, WINDOW), dy);
    result(r, (double)cairn_tensor_grad(peak)[SIDE / 2 * SIDE + SIDE / 2], all);
    result(r, (double)cairn_tensor_grad(one)[0], all);
}

/* ---- the tests ---- */

static const struct {
    const char *name;
    void (*run)(const struct given *, struct results *);
} cases[] = {
    {"sum and mean", sum_and_mean},
    {"mean of f16", mean_of_f16},
    {"mean of bf16", mean_of_bf16},
    {"mse and l1 loss", losses},
    {"sums of rows", sums_of_rows},
    {"sums of columns", sums_of_columns},
    {"sums around columns", sums_around_columns},
    {"variances of columns", variances_of_columns},
    {"linear's bias", bias_of_linear},
    {"a matrix that batches share", shared_matrix},
    {"conv's bias", bias_of_conv},
    {"embedding", embedding_f32},
    {"embedding of bf16", embedding_bf16},
    {"layer norm's weight and bias", layer_norm_affine},
    {"rms norm's weight", rms_norm_affine},
    {"group norm's weight and bias", group_norm_affine},
    {"batch norm's statistics of columns", batch_statistics_of_columns},
    {"batch norm's statistics of planes", batch_statistics_of_planes},
    {"batch norm's weight and bias of columns", batch_affine_of_columns},
    {"batch norm's weight and bias of planes", batch_affine_of_planes},
    {"log softmax and cross entropy", log_of_exponents},
    {"averages of planes", averages_of_planes},
    {"averages of wide rows", averages_of_wide_rows},
    {"gradients of scattering pools", gradients_of_scattering_pools},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

static struct results run_case(int c, enum data data, int64_t n) {
    cairn_env *env = test_env_create(1, 0);
    struct given g = give(env, data, n);
    struct results r = {0};
    cases[c].run(&g, &r);
    test_env_destroy(env);
    return r;
}

static void every_long_sum_is_close(void **state) {
    bool all = true;
    (void)state;
    for (int c = 0; c < CASES; c++) {
        for (int data = 0; data < NUM_DATA; data++) {
            const struct results r = run_case(c, (enum data)data, num_terms);
            for (int i = 0; i < r.count; i++) {
                if (is_close(&r, i)) continue;
                all = false;
                print_error("%s of %s, number %d: %.9g, want %.9Lg: off by %.2Le of the absolute values\n",
                            cases[c].name, data_names[data], i, r.got[i], r.want[i].sum,
                            fabsl(r.got[i] - r.want[i].sum) / r.want[i].absolute);
            }
        }
    }
    assert_true(all);
}

static uint64_t digest(void) {
    uint64_t hash = CAIRN__HASH_START;
    for (int c = 0; c < CASES; c++) {
        const struct results r = run_case(c, MIXED, FEWER_TERMS);
        hash = cairn__hash_bytes(hash, r.got, (size_t)r.count * sizeof(r.got[0]));
    }
    return hash;
}

static void threads_do_not_change_a_bit_of_a_sum(void **state) {
    (void)state;
    const uint64_t one = digest();
    for (int threads = check_is_short() ? 4 : 2; threads <= 4; threads *= 2) {
        assert_int_equal(cairn_set_num_threads(threads), CAIRN_OK);
        assert_true(digest() == one);
    }
    assert_int_equal(cairn_set_num_threads(1), CAIRN_OK);
}

/* Dense rows of halves are summed as they are stored, others are widened first. */
static void halves_sum_to_the_same_bits_however_their_rows_lie(void **state) {
    enum { ROWS = 7, WIDTH = 2611 }; /* blocks of a sum, and a rest */
    const cairn_dtype types[] = {CAIRN_F16, CAIRN_BF16};
    (void)state;
    for (int data = 0; data < NUM_DATA; data++) {
        for (int t = 0; t < 2; t++) {
            cairn_env *env = test_env_create(1, 0);
            const struct given g = give(env, (enum data)data, (int64_t)ROWS * WIDTH * 2);
            cairn_tensor *all = cairn_cast(tensor_of(env, g.x, CAIRN_SHAPE(ROWS, WIDTH * 2)), types[t]);
            cairn_tensor *gaps = cairn_slice(all, 1, 0, WIDTH * 2, 2), *dense = cairn_contiguous(gaps);
            uint16_t of_gaps[ROWS], of_dense[ROWS];
            assert_false(gaps->is_dense);
            cairn_tensor *const sums[] = {cairn_mean_dims(gaps, CAIRN_DIMS(1), 0),
                                          cairn_mean_dims(dense, CAIRN_DIMS(1), 0)};
            assert_true(sums[0] && sums[1]);
            memcpy(of_gaps, cairn__tensor_data(sums[0]), sizeof(of_gaps));
            memcpy(of_dense, cairn__tensor_data(sums[1]), sizeof(of_dense));
            assert_memory_equal(of_gaps, of_dense, sizeof(of_gaps));
            test_env_destroy(env);
        }
    }
}

static uint64_t digest_at(const char *level) {
    char command[4096], line[64] = "";
    snprintf(command, sizeof(command), "CAIRN_CPU=%s '%s' --bits", level, program);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    if (!fgets(line, sizeof(line), f)) line[0] = 0;
    assert_int_equal(pclose(f), 0);
    return strtoull(line, NULL, 16);
}

static void instruction_sets_do_not_change_a_bit_of_a_sum(void **state) {
    static const char *const levels[] = {"ref", "avx2", "avx512", "avx512_bf16"};
    const uint64_t here = digest();
    (void)state;
    for (int l = 0; l < (check_is_short() ? 1 : 4); l++) {
        if (digest_at(levels[l]) != here) fail_msg("other bits at CAIRN_CPU=%s", levels[l]);
    }
}

/* A linear layer's weight gradient, of x = 1. */
static void print_products(void) {
    enum { ROWS = 1000000, INPUTS = 8 };
    for (int data = 0; data < NUM_DATA; data++) {
        cairn_env *env = test_env_create(1, 0);
        const struct given g = give(env, (enum data)data, (int64_t)ROWS * FOUR);
        struct exact e = {0, 0};
        for (int64_t i = 0; i < ROWS; i++) put_in(&e, g.x[FOUR * i]);
        cairn_tensor *w = wanting(full(env, 1, CAIRN_SHAPE(FOUR, INPUTS)));
        cairn_tensor *y = cairn_linear_forward(full(env, 1, CAIRN_SHAPE(ROWS, INPUTS)), w, NULL);
        backward(y, tensor_of(env, g.x, CAIRN_SHAPE(ROWS, FOUR)));
        printf("weight gradient of %d rows, %s: %.1Le of the absolute values\n", ROWS, data_names[data],
               fabsl(cairn_tensor_grad(w)[0] - e.sum) / e.absolute);
        test_env_destroy(env);
    }
}

int main(int argc, char **argv) {
    program = argv[0];
    if (argc > 1 && strcmp(argv[1], "--products") == 0) {
        print_products();
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--bits") == 0) {
        printf("%016llx\n", (unsigned long long)digest());
        return 0;
    }
    if (check_is_short()) num_terms = FEWER_TERMS;
    if (argc > 1 && strcmp(argv[1], "--long") == 0) num_terms = 30000128;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_long_sum_is_close),
        cmocka_unit_test(threads_do_not_change_a_bit_of_a_sum),
        cmocka_unit_test(halves_sum_to_the_same_bits_however_their_rows_lie),
        cmocka_unit_test(instruction_sets_do_not_change_a_bit_of_a_sum),
    };
    return cmocka_run_group_tests_name("sums", tests, NULL, NULL);
}
