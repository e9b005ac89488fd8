/* The contract of every kernel, and the table that a device provides.
 *
 * A kernel is one pass over memory. The scalar reference (ref.c) is its definition; every faster row must give the same
 * bits (BITEXACT) or state what it gives instead, and kcheck verifies that for every row. Kernels do not check
 * arguments: the rooms above do.
 *
 * Rules that hold for all:
 *   - Arithmetic is f32, one IEEE operation at a time in the order written here (no contraction); a half is widened on
 *     load and rounded once, to nearest even, on store (core/half.h).
 *   - dst may be src if the types have the same size; otherwise ranges do not overlap. Pointers need only their
 *     element's alignment. n = 0 is valid and touches nothing.
 *   - If arithmetic gives a NaN, it may be any NaN: the processor chooses which operand's payload survives. Casts,
 *     round, fill, relu and relu_backward compute nothing and keep NaNs bit for bit, as core/half.h defines them.
 *   - *found is ORed with 1 if a *stored result* is infinite or NaN (tested by its exponent bits), and never cleared.
 *   - A sum of f32 is computed in blocks of CAIRN__SUM_BLOCK elements, the last of which may be short. A block
 *     is summed in 16 interleaved lanes of f32 from +0 (its element i goes to lane i % 16, in order); then the lanes
 *     are added by the fixed tree: lane[j] += lane[j + 8] for j < 8, then + 4, + 2, + 1. Blocks are added in f64, in
 *     order, from +0. The sum is that f64, which the caller rounds once; the sum of a single block is an f32 value.
 *   - A sum of f32 down columns is computed in groups of CAIRN__SUM_ROWS rows, the last of which may be short.
 *     A group's rows are added in f32, in order, from +0; the groups' sums in f64, in order, from +0. The total is
 *     rounded to f32 once, at the end.
 *   - The result depends neither on alignment nor on the layout of the caller's memory.
 *   - rates and factors arrive rounded to f32 from double, once, by the caller.
 *
 * Bounds, with u = 2^-24 and S the sum of the terms' absolute values (terms as rounded to f32, where they are products
 * or differences): a term of a block goes through at most 15 additions in its lane and 4 between lanes, one of 16 rows
 * through at most 15, each within u of its result. A block is within ((1 + u)^19 - 1) S < 1.14e-6 S of its true sum, 16
 * rows within 9e-7 S. f64 adds 2^-53 S for each block: n 2^-61 S, which is below 2^-26 S for n to 2^35; down columns,
 * where 16 terms are a block, n 2^-57 S, which is that for n to 2^31. That is for the worst of all data: roundings of a
 * block do not all go one way, and those of many blocks do not either. What tests hold sums to, over constant, uniform,
 * normal and mixed-sign data to 3 10^7 terms, is 4e-7 S with the rounding of the result.
 * f32 overflows where a lane or a block's sum is beyond FLT_MAX: the sum is infinite then, or NaN, though one in f64 of
 * what follows might not be. A NaN or infinity among the terms makes the sum NaN or infinite.
 */
#ifndef CAIRN__KERNELS_H
#define CAIRN__KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/core.h"
#include "core/dtype.h"
#include "core/fp8.h"
#include "kernels/exponents.h"
#include "kernels/maps.h"
#include "kernels/rows.h"

enum { CAIRN__SUM_BLOCK = 256, CAIRN__SUM_ROWS = 16 };

/* dst[i] = src[i], converted. Same types: a copy of the bits. f16<->bf16 goes through f32. */
typedef void (*cairn__cast_fn)(void *dst, const void *src, size_t n);

/* dst[i] = round(src[i] * factor): unscale with check (factor = 1/S), scale, average. */
typedef void (*cairn__scale_fn)(void *dst, const void *src, size_t n, float factor, uint32_t *found);

/* dst[i] = round(a * x[i] + b * y[i]); y is f32. dst may be x or y if it has the same type. */
typedef void (*cairn__axpby_fn)(void *dst, const void *x, const float *y, size_t n, float a, float b, uint32_t *found);

/* *found |= any x[i] infinite or NaN. One read. */
typedef void (*cairn__check_fn)(const void *x, size_t n, uint32_t *found);

/* *sum += factor^2 * (sum of x[i]^2), formed as (f64 sum) * ((double)factor * (double)factor). The L2 norm of x *
 * factor is its root. *found |= any x[i] infinite or NaN, which is where the sum is not finite. One read.
 *
 * The sum is over 16 lanes of f64 and the tree above. f32: element i, widened and squared without an error, goes to
 * lane i % 16. Halves go there in blocks of CAIRN__SQUARES_BLOCK, counted from x[0]; the last may be short:
 *   - 64 lanes of f32 from +0: element i of the block, squared without an error, goes to lane i % 64, in order. Of bf16
 *     what is below 2^-63 is left out here, whose squares are subnormal.
 *   - lane[j] += lane[j + 32] for j < 32; lane[j] += lane[j + 16] for j < 16. These 16 are added to the lanes of f64.
 *   - A block of bf16 where none of the 16 reaches 2^-70, or one is infinite or NaN, adds its squares to the lanes of
 *     f64 itself: element i to lane i % 16, exact, subnormals too.
 * So nothing is subnormal on the way from halves to *sum, and flushing changes nothing.
 *
 * Bound: a term of a block goes through at most 15 additions in its lane and 2 between lanes, each within 2^-24 of its
 * result, and all terms are positive: a block is within (1 + 2^-24)^17 - 1 < 1.02e-6 of its true sum. What bf16 leaves
 * out is at most 1024 * 2^-126 beside 2^-70 or more, 2^-46 of it; f64 adds (n / 1024 + 4) * 2^-53. For n below 2^40 the
 * sum of halves is within 1.2e-6 and their norm within 6e-7; that of f32 within (n / 16 + 5) * 2^-53 and half of it. */
enum { CAIRN__SQUARES_BLOCK = 1024 };
typedef void (*cairn__sumsq_fn)(const void *x, size_t n, float factor, double *sum, uint32_t *found);

/* dst[i] = bf16 of x[i], rounded stochastically: a random number of 16 bits is added to the 16 bits below a bf16, and
 * the carry rounds up. A bf16 value stays, and the mean of the result is x. Element first + i uses half (first + i)
 * % 2 of word (first + i) % 8 / 2 of cairn__philox(seed, (first + i) / 8, stream), the low half first; first % 8 == 0.
 * Infinities stay; a NaN is rounded as half.h does. */
typedef void (*cairn__round_stochastic_fn)(uint16_t *dst, const float *x, size_t n, uint64_t seed, uint64_t stream,
                                           uint64_t first);

/* Conversion to fp8 and back (core/fp8.h); a row's a is the format. t = x[i] * scale, scale > 0 and finite, is rounded
 * to nearest even, or stochastically: element first + i uses word (first + i) % 4 of cairn__philox(seed, (first + i) /
 * 4, stream), as in all random streams. Signs are those of x.
 *     round    dst[i] = (the value of t) * inverse
 *     encode   dst[i] = the code of t
 *     decode   dst[i] = (the value of code x[i]) * inverse */
struct cairn__fp8 {
    float scale, inverse;
    bool saturates, at_random;
    uint64_t seed, stream, first;
};
typedef void (*cairn__fp8_round_fn)(float *dst, const float *x, size_t n, const struct cairn__fp8 *how);
typedef void (*cairn__fp8_encode_fn)(uint8_t *dst, const float *x, size_t n, const struct cairn__fp8 *how);
typedef void (*cairn__fp8_decode_fn)(float *dst, const uint8_t *x, size_t n, float inverse);

/* The greatest |x[i]|, which may be infinite. A NaN counts as 0; with n = 0 the result is 0. */
typedef float (*cairn__amax_fn)(const float *x, size_t n);

/* Adds the elements of x to counts: infs, nans, zeros and subnormals count elements; max_exponent and min_exponent are
 * updated with the exponents of finite elements other than 0, largest with |x| of finite elements, exactly. subnormal:
 * not 0, |x| < least_normal. */
struct cairn__counts {
    uint64_t zeros, subnormals, infs, nans;
    int32_t max_exponent, min_exponent; /* INT32_MIN, INT32_MAX if there was none */
    double largest;
};
typedef void (*cairn__census_fn)(const void *x, size_t n, float least_normal, struct cairn__counts *counts);

/* *counts += the exponents of the elements (exponents.h). Also for f64, which has only the reference. */
typedef void (*cairn__count_exponents_fn)(const void *x, size_t n, struct cairn__exponent_counts *counts);

/* dst[i] = value, converted. */
typedef void (*cairn__fill_fn)(void *dst, size_t n, float value);

/* How the elements of all ranks are combined. */
enum cairn__reduction {
    CAIRN__REDUCE_SUM, /* also for the average, a sum that is divided */
    CAIRN__REDUCE_MIN,
    CAIRN__REDUCE_MAX,
    CAIRN__REDUCE_PROD,
    CAIRN__NUM_REDUCTIONS,
};

/* Every dsts[j][i], j < num_dsts, gets round((((x0 o x1) o x2) o ...) / divisor), where xr is srcs[r][i], r < p. In
 * place over all ranks is dsts = srcs. A destination may be one of the sources, at the very same address; otherwise
 * ranges do not overlap. 1 <= num_dsts <= p <= CAIRN__MAX_RANKS. divisor is 1 (no division) except for sums.
 *
 * f32, f16, bf16: in f32, in rank order, one rounding at the end. f64: the same in f64. A minimum or maximum is NaN if
 * an operand is, and -0 is less than +0.
 * i32, i64, u8: sums and products wrap around; the wrapped sum is divided as in C, truncating, by a divisor that is a
 * whole number. *found is not changed. */
typedef void (*cairn__reduce_fn)(void *const *dsts, int num_dsts, const void *const *srcs, int p, size_t n,
                                 float divisor, uint32_t *found);
enum { CAIRN__MAX_RANKS = 256 };

/* A set of ranks. */
struct cairn__ranks {
    uint64_t bits[CAIRN__MAX_RANKS / 64];
};

static inline void cairn__ranks_add(struct cairn__ranks *ranks, int rank) {
    ranks->bits[rank / 64] |= UINT64_C(1) << rank % 64;
}

static inline int cairn__ranks_has(const struct cairn__ranks *ranks, int rank) {
    return ranks->bits[rank / 64] >> rank % 64 & 1;
}

static inline void cairn__ranks_unite(struct cairn__ranks *ranks, const struct cairn__ranks *others) {
    for (int i = 0; i < CAIRN__MAX_RANKS / 64; i++) ranks->bits[i] |= others->bits[i];
}

/* How an optimizer's parameter is stored. */
enum cairn__weight_mode {
    CAIRN__W_F32 = 0,  /* param is f32 and is the weight */
    CAIRN__W_F32_F16,  /* param is the f32 master; the rounded weight goes to the f16 array `half` */
    CAIRN__W_F32_BF16, /* the same with bf16 */
    CAIRN__W_F16,      /* param is f16 itself: widened, updated in f32, rounded back; no master */
    CAIRN__W_BF16,
    CAIRN__NUM_WEIGHT_MODES,
    /* bf16 itself, rounded stochastically: has no kernel of its own; uses f32's and round_stochastic, block by block */
    CAIRN__W_BF16_STOCHASTIC = CAIRN__NUM_WEIGHT_MODES,
    CAIRN__NUM_STORAGE_MODES,
};

/* The type of a mode's weights, and that of their copy; 0 = no copy. */
static inline cairn_dtype cairn__weights_type(enum cairn__weight_mode mode) {
    if (mode == CAIRN__W_F16) return CAIRN_F16;
    return mode == CAIRN__W_BF16 || mode == CAIRN__W_BF16_STOCHASTIC ? CAIRN_BF16 : CAIRN_F32;
}
static inline cairn_dtype cairn__copy_type(enum cairn__weight_mode mode) {
    return mode == CAIRN__W_F32_F16 ? CAIRN_F16 : mode == CAIRN__W_F32_BF16 ? CAIRN_BF16 : (cairn_dtype)0;
}

/* ---- optimizers: one tensor of a fused pass. factor is 1/S, negative if the loss is maximized ---- */

enum { CAIRN__MAX_STATES = 3 }; /* f32 arrays per parameter, at most */

/* SGD; state: the momentum, if momentum_on.
 *     g = grad * factor;  if (weight_decay != 0 && !decays_last) g = g + weight_decay * w;
 *     if (momentum_on) { b = first ? g : momentum * b + undamped * g;  buf = b;  g = nesterov ? g + momentum * b : b; }
 *     if (weight_decay != 0 && decays_last) g = g + weight_decay * w;
 *     w = w - lr * g
 * Source: torch.optim.SGD (PyTorch 2.x documentation), whose first momentum is the gradient itself; decays_last is
 * wd_after_momentum of apex/csrc/multi_tensor_sgd_kernel.cu. */
struct cairn__sgd {
    float lr, momentum, undamped /* 1 - dampening */, weight_decay, factor;
    bool momentum_on, nesterov, first, decays_last;
};

/* Adam or AdamW; state: m, v, and, with amsgrad, the greatest v so far.
 *     g = grad * factor;  if (!decoupled && weight_decay != 0) g = g + weight_decay * w;
 *     m = beta1 * m + one_minus_beta1 * g
 *     v = beta2 * v + one_minus_beta2 * (g * g)
 *     r = v;  if (amsgrad) r = greatest = greatest > v ? greatest : v;
 *     u = step_size * (m / (sqrt(r) * inv_sqrt_c2 + eps));  if (decoupled) u = u + lr_decay * w;
 *     w = w - u
 *         lr_decay = lr * weight_decay (a factor 1 - lr_decay would be rounded the same way at every step),
 *         step_size = lr / (1 - beta1^t),  inv_sqrt_c2 = 1 / sqrt(1 - beta2^t)
 * Source: Kingma and Ba, "Adam", ICLR 2015, algorithm 1 (with eps outside, as torch); Loshchilov and Hutter, "Decoupled
 * Weight Decay Regularization", ICLR 2019, algorithm 2 as torch.optim.AdamW applies it; Reddi, Kale and Kumar, "On the
 * Convergence of Adam and Beyond", ICLR 2018, algorithm 2, with v corrected as in torch.optim.Adam. */
struct cairn__adam {
    float beta1, one_minus_beta1, beta2, one_minus_beta2, eps, weight_decay, lr_decay, step_size, inv_sqrt_c2, factor;
    bool decoupled, amsgrad;
};

/* LAMB's direction, with the scalars of AdamW; state: m, v, and u, which is written. The weight is only read, so the
 * only modes with rows are W_F32, W_F16 and W_BF16.
 *     as Adam up to the last line; step_size = 1 / (1 - beta1^t), lr_decay = weight_decay, and u is not subtracted
 * Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020, algorithm
 * 2; LAMBStage1Functor of apex/csrc/multi_tensor_lamb.cu. What follows are norms and an update of SGD (step.h). */

/* Lion; state: m. The step is lr against the sign of c; if c is 0 or NaN, it is c itself.
 *     g = grad * factor;  c = beta1 * m + one_minus_beta1 * g;  m = beta2 * m + one_minus_beta2 * g
 *     w = w - ((c > 0 ? lr : c < 0 ? -lr : c) + lr_decay * w)
 * Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023, algorithm 2. */
struct cairn__lion {
    float beta1, one_minus_beta1, beta2, one_minus_beta2, lr, lr_decay /* lr * weight_decay */, factor;
};

/* Adagrad; state: the sum of squares, which begins at `initial`.
 *     g = grad * factor;  if (!decoupled && weight_decay != 0) g = g + weight_decay * w;
 *     sum = (first ? initial : sum) + g * g
 *     u = lr * (g / (sqrt(sum) + eps));  if (decoupled) u = u + lr_decay * w;
 *     w = w - u
 * Source: Duchi, Hazan and Singer, "Adaptive Subgradient Methods", JMLR 12, 2011, as torch.optim.Adagrad; decoupled is
 * adagrad_w_mode of apex/csrc/multi_tensor_adagrad.cu. */
struct cairn__adagrad {
    float lr, eps, weight_decay, lr_decay /* lr * weight_decay */, initial, factor;
    bool decoupled, first;
};

/* First the kinds with kernels of their own, in the order of CAIRN__K_SGD and those after it. */
enum cairn__optim_kind {
    CAIRN__OPTIM_SGD,
    CAIRN__OPTIM_ADAM,
    CAIRN__OPTIM_LION,
    CAIRN__OPTIM_ADAGRAD,
    CAIRN__OPTIM_LAMB, /* its kernel computes the direction; its update is SGD's */
    CAIRN__NUM_OPTIMS,
    /* a host function over flat pieces, without a kernel (step.h: struct cairn__flat) */
    CAIRN__OPTIM_CUSTOM = CAIRN__NUM_OPTIMS,
    CAIRN__OPTIM_NOVOGRAD, /* uses SGD's kernel, with scalars that depend on a norm */
};

union cairn__update {
    struct cairn__sgd sgd;
    struct cairn__adam adam;
    struct cairn__lion lion;
    struct cairn__adagrad adagrad;
    struct cairn__adam lamb;
};

/* state: the kind's arrays, [n] each. h: the member for the kind. */
typedef void (*cairn__update_fn)(void *param, void *half, float *const *state, const void *grad, size_t n,
                                 const union cairn__update *h);

/* For nn, all f32. */
typedef void (*cairn__add_fn)(float *dst, const float *a, const float *b, size_t n); /* a + b */
typedef void (*cairn__mul_scalar_fn)(float *dst, const float *x, size_t n, float s); /* x * s */
typedef void (*cairn__relu_fn)(float *dst, const float *x, size_t n);                /* x > 0 ? x : (x != x ? x : 0) */
typedef void (*cairn__relu_backward_fn)(float *dx, const float *dy, const float *x, size_t n); /* x <= 0 ? 0 : dy */
typedef void (*cairn__mse_backward_fn)(float *dx, const float *x, const float *y, size_t n, float s); /* s * (x-y) */
typedef void (*cairn__bias_add_fn)(float *y, const float *bias, size_t rows, size_t cols); /* y[r][c] += bias[c] */
typedef void (*cairn__round_fn)(float *dst, const float *src, size_t n);                   /* f32 -> half -> f32 */

/* Sums, as defined above, of f32 and of halves, which are widened. */
typedef double (*cairn__sum_fn)(const void *x, size_t n);
typedef double (*cairn__mse_sum_fn)(const void *x, const void *y, size_t n); /* of (x-y)*(x-y) */
/* dst[c] = sum of x[r][c] over the rows */
typedef void (*cairn__col_sum_fn)(float *dst, const void *x, size_t rows, size_t cols);

/* sums[i] += the sum over r < rows <= CAIRN__SUM_ROWS of the fold's term of x[r][i], or of x[r][i] - centre[i] if
 * centre is not NULL: in f32, in order, from +0; then added in f64. The fold is SUM, SUM_SQUARES or SUM_ABS; squares
 * are rounded first. x is f32 or of a half type, which is widened. */
typedef void (*cairn__sum_rows_fn)(double *sums, const void *const *x, size_t rows, size_t n, const float *centre);

/* sums[i] += part[i]; part[i] = +0. Closes a group of CAIRN__SUM_ROWS rows, for callers that sum columns themselves. */
typedef void (*cairn__drain_fn)(double *sums, float *part, size_t n);

/* ---- for the operations of nn; of type R, which is f32 or f64 ---- */

/* dst[i] = f(x[0][i], x[1][i], ...), where f is in the list of maps.h. All arrays are dense, of type R, and either do
 * not overlap dst or are dst itself. p: f's numbers, rounded to R. Rows of f32 have the bits of the reference;
 * functions beyond the four operations and the root have the bounds stated in math_f32.h. f64 exists to check f32: it
 * uses libm's functions and has only one row, the reference. */
typedef void (*cairn__map_kernel)(void *dst, const void *const *x, size_t n, const double *p);

/* The fold of x[0..n-1]: sums of f32 as above, each term rounded to f32 first; sums of f64 over 16 lanes and the tree;
 * products likewise, in R from lanes of 1. The maximum of nothing is -inf. */
typedef double (*cairn__fold_kernel)(const void *x, size_t n, double p0);

/* into[i] = fold of into[i] and x[i], in R: a fold down columns, row by row. In sums, drain closes each group of
 * CAIRN__SUM_ROWS rows. */
typedef void (*cairn__fold_into_kernel)(void *into, const void *x, size_t n, double p0);

/* sum of a[i] * b[i], as a fold; products are rounded first. */
typedef double (*cairn__dot_kernel)(const void *a, const void *b, size_t n);

/* The kernels that a device can run, one entry per kind, indexed by dtype (entry 0 unused) or weight mode. Every slot
 * that the rooms use is filled: f32, f16, bf16 in every float kind, f64 where stated; i32 and i64 in cast (copies
 * only); every type but bool in reduce. */
struct cairn__kernels {
    cairn__cast_fn cast[CAIRN__DTYPE_END][CAIRN__DTYPE_END];   /* [from][to] */
    cairn__scale_fn scale[CAIRN__DTYPE_END][CAIRN__DTYPE_END]; /* [src][dst] */
    cairn__axpby_fn axpby[CAIRN__DTYPE_END][CAIRN__DTYPE_END]; /* [x][dst] */
    cairn__check_fn check[CAIRN__DTYPE_END];
    cairn__sumsq_fn sumsq[CAIRN__DTYPE_END];
    cairn__fill_fn fill[CAIRN__DTYPE_END];
    cairn__round_stochastic_fn round_stochastic;
    cairn__census_fn census[CAIRN__DTYPE_END];
    cairn__count_exponents_fn count_exponents[CAIRN__DTYPE_END];
    cairn__reduce_fn reduce[CAIRN__NUM_REDUCTIONS][CAIRN__DTYPE_END];
    cairn__update_fn update[CAIRN__NUM_OPTIMS][CAIRN__DTYPE_END][CAIRN__NUM_WEIGHT_MODES]; /* [kind][grad][mode] */
    cairn__add_fn add;
    cairn__mul_scalar_fn mul_scalar;
    cairn__relu_fn relu;
    cairn__relu_backward_fn relu_backward;
    cairn__sum_fn sum[CAIRN__DTYPE_END];
    cairn__mse_sum_fn mse_sum[CAIRN__DTYPE_END];
    cairn__col_sum_fn col_sum[CAIRN__DTYPE_END];
    cairn__sum_rows_fn sum_rows[CAIRN__NUM_FOLDS][CAIRN__DTYPE_END]; /* [sum][type] */
    cairn__drain_fn drain;
    cairn__mse_backward_fn mse_backward;
    cairn__bias_add_fn bias_add;
    cairn__round_fn round[CAIRN__DTYPE_END];                  /* [half type] */
    cairn__map_kernel map[CAIRN__NUM_MAPS][CAIRN__DTYPE_END]; /* [f][f32 or f64], as all that follow */
    cairn__fold_kernel fold[CAIRN__NUM_FOLDS][CAIRN__DTYPE_END];
    cairn__fold_into_kernel fold_into[CAIRN__NUM_FOLDS][CAIRN__DTYPE_END];
    cairn__dot_kernel dot[CAIRN__DTYPE_END];
    cairn__greatest_kernel greatest[CAIRN__DTYPE_END]; /* rows.h: [f32, f16, bf16, f64] */
    cairn__softmax_backward_kernel softmax_backward[CAIRN__DTYPE_END];
    cairn__moments_kernel moments[CAIRN__DTYPE_END];
    cairn__norm_row_kernel norm_row[CAIRN__DTYPE_END];
    cairn__norm_rows_backward_kernel norm_rows_backward[CAIRN__DTYPE_END];
    cairn__norm_runs_kernel norm_runs[CAIRN__DTYPE_END];
    cairn__norm_runs_sums_kernel norm_runs_sums[CAIRN__DTYPE_END];
    cairn__norm_runs_backward_kernel norm_runs_backward[CAIRN__DTYPE_END];
    cairn__dropout_kernel dropout[CAIRN__DTYPE_END];
    cairn__fp8_round_fn fp8_round[CAIRN__FP8_END]; /* [format], as the next two */
    cairn__fp8_encode_fn fp8_encode[CAIRN__FP8_END];
    cairn__fp8_decode_fn fp8_decode[CAIRN__FP8_END];
    cairn__amax_fn amax;
};

/* The CPU's table for a set of features (cairn__cpu_features()); built once per set, never freed. Any thread. */
const struct cairn__kernels *cairn__kernels_cpu(unsigned features);

/* ---- rows: the table is chosen from them, and kcheck tests them ---- */

enum cairn__kernel_kind {
    CAIRN__K_CAST = 1,
    CAIRN__K_SCALE,
    CAIRN__K_AXPBY,
    CAIRN__K_CHECK,
    CAIRN__K_SUMSQ,
    CAIRN__K_FILL,
    CAIRN__K_ROUND_STOCHASTIC,
    CAIRN__K_CENSUS,          /* a: type */
    CAIRN__K_COUNT_EXPONENTS, /* likewise */
    CAIRN__K_REDUCE,          /* a: reduction, b: type */
    CAIRN__K_SGD,             /* a: gradient, b: weight mode, as of all optimizers */
    CAIRN__K_ADAM,
    CAIRN__K_LION,
    CAIRN__K_ADAGRAD,
    CAIRN__K_LAMB, /* b: W_F32, W_F16 or W_BF16 */
    CAIRN__K_ADD,
    CAIRN__K_MUL_SCALAR,
    CAIRN__K_RELU,
    CAIRN__K_RELU_BACKWARD,
    CAIRN__K_SUM, /* a: type, as of the next two */
    CAIRN__K_MSE_SUM,
    CAIRN__K_COL_SUM,
    CAIRN__K_SUM_ROWS, /* a: fold, b: type */
    CAIRN__K_DRAIN,
    CAIRN__K_MSE_BACKWARD,
    CAIRN__K_BIAS_ADD,
    CAIRN__K_ROUND,
    CAIRN__K_MAP,       /* a: function, b: type */
    CAIRN__K_FOLD,      /* a: fold, b: type */
    CAIRN__K_FOLD_INTO, /* likewise */
    CAIRN__K_DOT,       /* a: type */
    CAIRN__K_GREATEST,  /* a: type of storage, as of all that follow (rows.h) */
    CAIRN__K_SOFTMAX_BACKWARD,
    CAIRN__K_MOMENTS,
    CAIRN__K_NORM_ROW,
    CAIRN__K_NORM_ROWS_BACKWARD,
    CAIRN__K_NORM_RUNS,
    CAIRN__K_NORM_RUNS_SUMS,
    CAIRN__K_NORM_RUNS_BACKWARD,
    CAIRN__K_DROPOUT,
    CAIRN__K_FP8_ROUND, /* a: format, as of the next two */
    CAIRN__K_FP8_ENCODE,
    CAIRN__K_FP8_DECODE,
    CAIRN__K_AMAX,
};

enum cairn__promise {
    CAIRN__BITEXACT = 1,           /* the reference's bits, whatever the input */
    CAIRN__FLUSHES_SUBNORMALS = 2, /* f32 subnormals become zeros; opt-in, never chosen by cairn__kernels_cpu */
};

struct cairn__kernel_row {
    enum cairn__kernel_kind kind;
    int a, b;       /* dtypes, fp8 formats or weight mode, as the table's indices; 0 where a kind has fewer */
    unsigned needs; /* enum cairn__cpu_feature bits */
    enum cairn__promise promise;
    const char *name; /* of the function: "cast_f32_f16_avx512" */
    void (*fn)(void); /* cast back to its kind's type */
};

/* Every row built into this library, best first; for equal (kind, a, b) the first whose needs are met and whose promise
 * is BITEXACT wins; the reference rows, which need nothing, come last. */
const struct cairn__kernel_row *cairn__kernel_rows(size_t *count);

/* The row that cairn__kernels_cpu chose, for logs, tests and benchmarks. NULL where there is none. */
const struct cairn__kernel_row *cairn__kernel_pick(enum cairn__kernel_kind kind, int a, int b, unsigned features);

#endif
