/* Makes the functions and the rows of one kernel file.
 *
 * A kernel file writes each kernel once, as an inline function whose first arguments are its types: scale(from, to,
 * dst, ...). Including this file at its end, with ISA (the suffix: ref, avx2, avx512) and NEEDS (CPU features) defined,
 * makes one function with the contract's signature for every combination of types, in which those arguments are
 * constants, and the array of rows that names them. EXTRA_ROWS may hold further rows, MORE_REDUCTIONS further types to
 * reduce. */
#include "kernels/row_lists.h"

/* clang-format off */
#define EACH_FLOAT(X)  X(f32, F32) X(f16, F16) X(bf16, BF16)
#define EACH_HALF(X)   X(f16, F16) X(bf16, BF16)
#define EACH_NARROWING_OR_WIDENING(X)                                           \
    X(f32, F32, f16, F16)   X(f32, F32, bf16, BF16)   X(f16, F16, bf16, BF16)   \
    X(f16, F16, f32, F32)   X(bf16, BF16, f32, F32)   X(bf16, BF16, f16, F16)
#define EACH_PAIR(X)                                                            \
    EACH_NARROWING_OR_WIDENING(X)                                               \
    X(f32, F32, f32, F32)   X(f16, F16, f16, F16)     X(bf16, BF16, bf16, BF16)
#define EACH_MODE(X, g, G)                                                      \
    X(g, G, w32, W_F32)  X(g, G, w32_f16, W_F32_F16)  X(g, G, w32_bf16, W_F32_BF16)  X(g, G, w16, W_F16) \
    X(g, G, wb16, W_BF16)
#define EACH_READ_MODE(X, g, G)  X(g, G, w32, W_F32)  X(g, G, w16, W_F16)  X(g, G, wb16, W_BF16)
#define EACH_REDUCTION(X, t, T)  X(sum, SUM, t, T) X(min, MIN, t, T) X(max, MAX, t, T) X(prod, PROD, t, T)
#ifndef MORE_REDUCTIONS
#define MORE_REDUCTIONS(X)
#endif
#define EACH_REDUCTION_AND_TYPE(X)                                              \
    EACH_REDUCTION(X, f32, F32) EACH_REDUCTION(X, f16, F16) EACH_REDUCTION(X, bf16, BF16) MORE_REDUCTIONS(X)
#define EACH_SUM(X, t, T)      X(sum, SUM, t, T) X(sum_squares, SUM_SQUARES, t, T) X(sum_abs, SUM_ABS, t, T)
#define EACH_SUM_AND_TYPE(X)   EACH_SUM(X, f32, F32) EACH_SUM(X, f16, F16) EACH_SUM(X, bf16, BF16)
#define EACH_GRAD_AND_MODE(X)  EACH_MODE(X, f32, F32) EACH_MODE(X, f16, F16) EACH_MODE(X, bf16, BF16)
#define EACH_GRAD_AND_READ_MODE(X)                                              \
    EACH_READ_MODE(X, f32, F32) EACH_READ_MODE(X, f16, F16) EACH_READ_MODE(X, bf16, BF16)
/* clang-format on */

#define MAKE_CAST(f, F, t, T)                                                 \
    static void NAMED(cast_##f##_##t)(void *dst, const void *src, size_t n) { \
        cast(CAIRN_##F, CAIRN_##T, dst, src, n);                              \
    }
#define MAKE_SCALE(f, F, t, T)                                                                                \
    static void NAMED(scale_##f##_##t)(void *dst, const void *src, size_t n, float factor, uint32_t *found) { \
        scale(CAIRN_##F, CAIRN_##T, dst, src, n, factor, found);                                              \
    }
#define MAKE_AXPBY(f, F, t, T)                                                                               \
    static void NAMED(axpby_##f##_##t)(void *dst, const void *x, const float *y, size_t n, float a, float b, \
                                       uint32_t *found) {                                                    \
        axpby(CAIRN_##F, CAIRN_##T, dst, x, y, n, a, b, found);                                              \
    }
#define MAKE_PER_TYPE(t, T)                                                                                    \
    static void NAMED(check_##t)(const void *x, size_t n, uint32_t *found) {                                   \
        check(CAIRN_##T, x, n, found);                                                                         \
    }                                                                                                          \
    static void NAMED(sumsq_##t)(const void *x, size_t n, float factor, double *sum, uint32_t *found) {        \
        sumsq(CAIRN_##T, x, n, factor, sum, found);                                                            \
    }                                                                                                          \
    static void NAMED(census_##t)(const void *x, size_t n, float least_normal, struct cairn__counts *counts) { \
        census(CAIRN_##T, x, n, least_normal, counts);                                                         \
    }                                                                                                          \
    static void NAMED(count_exponents_##t)(const void *x, size_t n, struct cairn__exponent_counts *counts) {   \
        count_exponents(CAIRN_##T, x, n, counts);                                                              \
    }                                                                                                          \
    static void NAMED(fill_##t)(void *dst, size_t n, float value) {                                            \
        fill(CAIRN_##T, dst, n, value);                                                                        \
    }                                                                                                          \
    static double NAMED(sum_##t)(const void *x, size_t n) {                                                    \
        return sum(CAIRN_##T, x, n);                                                                           \
    }                                                                                                          \
    static double NAMED(mse_sum_##t)(const void *x, const void *y, size_t n) {                                 \
        return mse_sum(CAIRN_##T, x, y, n);                                                                    \
    }                                                                                                          \
    static void NAMED(col_sum_##t)(float *dst, const void *x, size_t rows, size_t cols) {                      \
        col_sum(CAIRN_##T, dst, x, rows, cols);                                                                \
    }
#define MAKE_SUM_ROWS(f, F, t, T)                                                                                     \
    static void NAMED(f##_rows_##t)(double *sums, const void *const *x, size_t rows, size_t n, const float *centre) { \
        sum_rows(CAIRN__FOLD_##F, CAIRN_##T, sums, x, rows, n, centre);                                               \
    }
#define MAKE_REDUCE(op, OP, t, T)                                                                                   \
    static void NAMED(reduce_##op##_##t)(void *const *dsts, int num_dsts, const void *const *srcs, int p, size_t n, \
                                         float divisor, uint32_t *found) {                                          \
        reduce(CAIRN__REDUCE_##OP, CAIRN_##T, dsts, num_dsts, srcs, p, n, divisor, found);                          \
    }
#define MAKE_ROUND(t, T)                                                   \
    static void NAMED(round_##t)(float *dst, const float *src, size_t n) { \
        round_to(CAIRN_##T, dst, src, n);                                  \
    }
#define MAKE_OPTIMIZER(kind, g, G, w, W)                                                                          \
    static void NAMED(kind##_##g##_##w)(void *param, void *half, float *const *state, const void *grad, size_t n, \
                                        const union cairn__update *h) {                                           \
        kind(CAIRN_##G, CAIRN__##W, param, half, state, grad, n, &h->kind);                                       \
    }
#define MAKE_OPTIMIZERS(g, G, w, W)  \
    MAKE_OPTIMIZER(sgd, g, G, w, W)  \
    MAKE_OPTIMIZER(adam, g, G, w, W) \
    MAKE_OPTIMIZER(lion, g, G, w, W) \
    MAKE_OPTIMIZER(adagrad, g, G, w, W)
#define MAKE_LAMB(g, G, w, W) MAKE_OPTIMIZER(lamb, g, G, w, W)

EACH_NARROWING_OR_WIDENING(MAKE_CAST)
EACH_PAIR(MAKE_SCALE)
EACH_PAIR(MAKE_AXPBY)
EACH_FLOAT(MAKE_PER_TYPE)
EACH_SUM_AND_TYPE(MAKE_SUM_ROWS)
EACH_REDUCTION_AND_TYPE(MAKE_REDUCE)
EACH_HALF(MAKE_ROUND)
EACH_GRAD_AND_MODE(MAKE_OPTIMIZERS)
EACH_GRAD_AND_READ_MODE(MAKE_LAMB)

#define ROW(kind, a, b, name) \
    {CAIRN__K_##kind, a, b, NEEDS, CAIRN__BITEXACT, TEXT(NAMED(name)), (void (*)(void))NAMED(name)},
#define ROW_CAST(f, F, t, T)      ROW(CAST, CAIRN_##F, CAIRN_##T, cast_##f##_##t)
#define ROW_SCALE(f, F, t, T)     ROW(SCALE, CAIRN_##F, CAIRN_##T, scale_##f##_##t)
#define ROW_AXPBY(f, F, t, T)     ROW(AXPBY, CAIRN_##F, CAIRN_##T, axpby_##f##_##t)
#define ROW_CHECK(t, T)           ROW(CHECK, CAIRN_##T, 0, check_##t)
#define ROW_SUMSQ(t, T)           ROW(SUMSQ, CAIRN_##T, 0, sumsq_##t)
#define ROW_CENSUS(t, T)          ROW(CENSUS, CAIRN_##T, 0, census_##t)
#define ROW_COUNT_EXPONENTS(t, T) ROW(COUNT_EXPONENTS, CAIRN_##T, 0, count_exponents_##t)
#define ROW_FILL(t, T)            ROW(FILL, CAIRN_##T, 0, fill_##t)
#define ROW_SUM(t, T)             ROW(SUM, CAIRN_##T, 0, sum_##t)
#define ROW_MSE_SUM(t, T)         ROW(MSE_SUM, CAIRN_##T, 0, mse_sum_##t)
#define ROW_COL_SUM(t, T)         ROW(COL_SUM, CAIRN_##T, 0, col_sum_##t)
#define ROW_SUM_ROWS(f, F, t, T)  ROW(SUM_ROWS, CAIRN__FOLD_##F, CAIRN_##T, f##_rows_##t)
#define ROW_REDUCE(op, OP, t, T)  ROW(REDUCE, CAIRN__REDUCE_##OP, CAIRN_##T, reduce_##op##_##t)
#define ROW_ROUND(t, T)           ROW(ROUND, CAIRN_##T, 0, round_##t)
#define ROW_SGD(g, G, w, W)       ROW(SGD, CAIRN_##G, CAIRN__##W, sgd_##g##_##w)
#define ROW_ADAM(g, G, w, W)      ROW(ADAM, CAIRN_##G, CAIRN__##W, adam_##g##_##w)
#define ROW_LION(g, G, w, W)      ROW(LION, CAIRN_##G, CAIRN__##W, lion_##g##_##w)
#define ROW_ADAGRAD(g, G, w, W)   ROW(ADAGRAD, CAIRN_##G, CAIRN__##W, adagrad_##g##_##w)
#define ROW_LAMB(g, G, w, W)      ROW(LAMB, CAIRN_##G, CAIRN__##W, lamb_##g##_##w)
#ifndef EXTRA_ROWS
#define EXTRA_ROWS
#endif

/* clang-format off */
static const struct cairn__kernel_row rows[] = {
    EACH_NARROWING_OR_WIDENING(ROW_CAST)
    EACH_PAIR(ROW_SCALE)
    EACH_PAIR(ROW_AXPBY)
    EACH_FLOAT(ROW_CHECK)
    EACH_FLOAT(ROW_SUMSQ)
    EACH_FLOAT(ROW_CENSUS)
    EACH_FLOAT(ROW_COUNT_EXPONENTS)
    EACH_FLOAT(ROW_FILL)
    EACH_FLOAT(ROW_SUM)
    EACH_FLOAT(ROW_MSE_SUM)
    EACH_FLOAT(ROW_COL_SUM)
    EACH_SUM_AND_TYPE(ROW_SUM_ROWS)
    EACH_REDUCTION_AND_TYPE(ROW_REDUCE)
    EACH_GRAD_AND_MODE(ROW_SGD)
    EACH_GRAD_AND_MODE(ROW_ADAM)
    EACH_GRAD_AND_MODE(ROW_LION)
    EACH_GRAD_AND_MODE(ROW_ADAGRAD)
    EACH_GRAD_AND_READ_MODE(ROW_LAMB)
    EACH_HALF(ROW_ROUND)
    ROW(ROUND_STOCHASTIC, 0, 0, round_stochastic)
    ROW(ADD, 0, 0, add)
    ROW(MUL_SCALAR, 0, 0, mul_scalar)
    ROW(RELU, 0, 0, relu)
    ROW(RELU_BACKWARD, 0, 0, relu_backward)
    ROW(DRAIN, 0, 0, drain)
    ROW(MSE_BACKWARD, 0, 0, mse_backward)
    ROW(BIAS_ADD, 0, 0, bias_add)
    EXTRA_ROWS
};
/* clang-format on */

const struct cairn__row_list CONCAT(cairn__kernel_rows, ISA) = {rows, sizeof(rows) / sizeof(rows[0])};
