/* What a device computes for the operations of nn, beyond the passes of a training step (passes.h). Optional: a device
 * without it has d->math NULL, and nn's operations that need it fail. The CPU has it.
 *
 * Rules that hold for all, besides those of passes.h:
 *   - Operands are views of type f32, f16, bf16 or f64, with equal types among what one call computes with unless it
 *     says otherwise. Arithmetic is R: f32, or f64 where the operands are. Halves are widened on the way in and rounded
 *     once on the way out.
 *   - nn has checked shapes and types. It cannot check the values of indices and masks; the pass does. Empty views are
 *     valid everywhere.
 *   - "dense" views are row-major without gaps; others may have any strides.
 *   - Results are deterministic, whatever the number of threads.
 *   - Statistics (means, logarithms of sums) that a forward saves for its backward are R, dense. */
#ifndef CAIRN__DEVICE_MATH_PASSES_H
#define CAIRN__DEVICE_MATH_PASSES_H

#include "cairn/device.h"
#include "device/view.h"
#include "kernels/maps.h"

/* Layer, RMS, group and batch normalisation, over a dense x seen as [outer, channels, inner]:
 *     y = (x - mean) * rstd * weight + bias,  rstd = 1 / sqrt(variance + eps)
 * Statistics are over a *group*, and there are `groups` of them:
 *     rows      (layer, RMS)  outer = rows, channels = columns, inner = 1; a group is a row
 *     channels  (batch)       a group is a channel, over outer and inner
 *     groups    (group)       a group is an outer index and channels / per of its channels, with inner
 * The variance is biased (over n). RMS has mean 0 and does not write `mean`.
 *
 * If x is only a share of a batch (kind channels only), normalising takes two calls, and the caller combines the
 * shares' numbers in between. `shared`, f64 [1 + 2 channels], holds the number of values per channel, then two numbers
 * of each channel: mean and variance in forward, sum(dy) and sum(dy * (x - mean)) in backward.
 *     tells   writes this share's `shared`, in backward also dweight and dbias, but not y or dx
 *     takes   reads the whole batch's `shared` and writes the rest */
enum cairn__norm_kind { CAIRN__NORM_ROWS = 1, CAIRN__NORM_RMS, CAIRN__NORM_CHANNELS, CAIRN__NORM_GROUPS };
enum cairn__norm_share { CAIRN__NORM_ALONE, CAIRN__NORM_TELLS, CAIRN__NORM_TAKES };
struct cairn__norm {
    enum cairn__norm_kind kind;
    cairn_dtype dtype, affine_dtype; /* of x, y, dy, dx; of weight, bias and their gradients, f32 where x is half or the
                                        same. R is f64 where dtype is, else f32 */
    int64_t outer, channels, inner;
    int64_t per; /* NORM_GROUPS: groups of one outer index */
    double eps;
    const void *x, *weight, *bias; /* weight and bias [channels], each may be NULL */
    void *y;
    void *mean, *rstd; /* R [number of groups]: written by forward, or read if given_stats; read by backward */
    void *variance;    /* R [number of groups]: written by forward too; NULL = not wanted */
    bool given_stats;  /* evaluation: mean and rstd are inputs, and constants in backward */
    enum cairn__norm_share share;
    double *shared; /* if x is a share: see above */
    const void *dy;
    void *dx, *dweight, *dbias; /* each may be NULL: not wanted */
};

/* 1-D and 2-D convolution, torch's cross-correlation: x [N, C, H, W], w [K, C / groups, R, S], y [N, K, P, Q], dense.
 * 1-D has H = R = 1. With transposed, y is computed as the gradient of a convolution's input: w is
 * [C, K / groups, R, S], and output_padding is included in P and Q. */
struct cairn__conv {
    cairn_dtype dtype; /* of all */
    int64_t n, c, h, w, k, r, s, p, q, groups;
    int64_t stride[2], padding[2], dilation[2]; /* of rows and columns */
    bool transposed;
    const void *x, *weight, *bias; /* bias [K], may be NULL */
    void *y;
    const void *dy;
    void *dx, *dweight, *dbias; /* each may be NULL: not wanted; dweight and dbias are written first */
};

/* Pooling of x [N * C, H, W] to y [N * C, P, Q], dense. Max keeps the index of each maximum within its H x W plane, the
 * first of equals; a NaN wins. Adaptive average: window p is [floor(p H / P), ceil((p + 1) H / P)). */
enum cairn__pool_kind { CAIRN__POOL_MAX = 1, CAIRN__POOL_AVERAGE, CAIRN__POOL_ADAPTIVE_AVERAGE };
struct cairn__pool {
    enum cairn__pool_kind kind;
    cairn_dtype dtype;
    int64_t planes, h, w, p, q;
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    bool count_padding; /* average: divide by the whole window */
    const void *x;
    void *y;
    int32_t *index; /* max: [planes, P, Q], written by forward, read by backward */
    const void *dy;
    void *dx;
};

/* Scaled dot-product attention, softmax(scale * Q K^T + mask) V, over blocks: no T x S matrix in memory.
 * q [B, H, T, D], k [B, H, S, D], v [B, H, S, E], y [B, H, T, E], views of any strides whose last is 1, as are
 * gradients. mask: [B, H, T, S] with strides 0 where it is shared, of the type of q (added) or bool (1 = may attend);
 * data NULL = none. causal: row t attends to columns up to t. A row that attends to nothing gives zeros. lse:
 * R [B, H, T], the logarithm of the sum of e^scores, for backward. Dropout applies to the probabilities: element
 * [b, h, t, s] by number ((b H + h) T + t) S + s of the random stream, as in the pass `dropout`. */
struct cairn__attention {
    struct cairn__view q, k, v, y, mask;
    void *lse;
    double scale;
    bool causal;
    double dropout; /* 0 = none */
    uint64_t seed, stream;
    struct cairn__view dy, dq, dk, dv; /* backward; data of dq, dk, dv NULL = not wanted */
};

/* Losses over rows of scores, with one class per row. x is dense [rows, classes, inner], target dense [rows, inner],
 * i64 or i32.
 *     cross entropy   lse - x[target], smoothed:  (1 - s) * that + s / classes * sum over c of w[c] (lse - x[c])
 *     nll             -x[target], where x holds logarithms of probabilities
 * lse - x[target] and -x[target] are multiplied by weight[target]; a mean divides by the sum of weight[target] over the
 * rows that are not ignored. A target that is neither a class nor ignore_index raises *bad_target. */
struct cairn__class_loss {
    bool from_logits; /* cross entropy */
    cairn_dtype dtype;
    int64_t rows, classes, inner;
    const void *x;
    const void *target;
    cairn_dtype target_dtype;
    const void *weight; /* [classes] of dtype; NULL = ones */
    int64_t ignore_index;
    double smoothing;
    bool each, mean; /* each: one loss per row; mean: the sum of all, divided; neither: the sum */
    void *y;         /* of dtype: one element, or [rows, inner] for each */
    void *lse;       /* R [rows, inner, 2], with from_logits, for backward: the greatest x, and the sum of e^(x - it) */
    void *total;     /* R, one element: the divisor of a mean, for backward */
    uint32_t *bad_target;
    const void *dy;
    void *dx;
};

struct cairn__math {
    /* ---- element-wise, over dst's shape; x are views of that shape, with stride 0 where broadcast. Types may differ:
     * each operand is converted to R, which is f64 if any operand is f64, i32 or i64 ---- */
    void (*map)(struct cairn_device *d, enum cairn__map_fn f, const struct cairn__view *dst,
                const struct cairn__view *x,
                const double *numbers); /* numbers: [CAIRN__MAP_NUMBERS], may be NULL where f takes none */
    /* dst (one element) = round(sum of f(x...) over the shape of x[0] / divisor); each term is rounded to R, and
     * they are added in row-major order. The sum of f32 is that of kernels.h; f64 is added in f64, in an order of the
     * device's own (the CPU's: CAIRN__SUM_BLOCK terms over 16 lanes and the tree, then these block sums in order). */
    void (*map_sum)(struct cairn_device *d, enum cairn__map_fn f, const struct cairn__view *dst,
                    const struct cairn__view *x, const double *numbers, double divisor);

    /* ---- folds: dst has x's shape, with stride 0 along the folded axes ---- */

    /* dst = round(post(fold of x / divisor)), post = sqrt if `root`. Sums of f32 and of halves are computed by blocks
     * that are added in f64, within the bounds of kernels.h; only the folded axes' sizes determine the blocks
     * (cpu/reduce.c). */
    void (*fold)(struct cairn_device *d, enum cairn__fold f, const struct cairn__view *dst, const struct cairn__view *x,
                 double divisor, bool root);
    /* dst = round(sum of (x - mean)^2 / divisor), mean of dst's shape in R (written): variance, or with root the
     * deviation. */
    void (*variance)(struct cairn_device *d, const struct cairn__view *dst, void *mean, const struct cairn__view *x,
                     double divisor, bool root);
    /* index (i64) of the first maximum, NaN above all, along `axis`; index has x's shape with size 1 there. value may
     * be NULL: the maximum itself. least: minimum. */
    void (*arg_max)(struct cairn_device *d, const struct cairn__view *index, const struct cairn__view *value,
                    const struct cairn__view *x, int axis, bool least);
    /* dst[..., i, ...] = sum (or product) of x[..., 0..i, ...] along the axis; reverse: of i..end. */
    void (*cumulate)(struct cairn_device *d, const struct cairn__view *dst, const struct cairn__view *x, int axis,
                     bool product, bool reverse);

    /* ---- products: c [..., m, n] = a [..., m, k] b [..., k, n], views of one batch shape with any strides, 0 where
     * shared. c's last stride is 1, and its type the operands' or R. If c's stride along a batch dimension is 0, the
     * products are summed over it, in R, and rounded once. An empty sum is 0 ---- */
    void (*product)(struct cairn_device *d, const struct cairn__view *c, const struct cairn__view *a,
                    const struct cairn__view *b);

    /* ---- rows: dense [rows, n] ---- */
    void (*softmax)(struct cairn_device *d, cairn_dtype t, void *y, const void *x, size_t rows, size_t n, bool log);
    void (*softmax_backward)(struct cairn_device *d, cairn_dtype t, void *dx, const void *dy, const void *y,
                             size_t rows, size_t n, bool log);
    void (*norm)(struct cairn_device *d, const struct cairn__norm *norm);
    void (*norm_backward)(struct cairn_device *d, const struct cairn__norm *norm);
    /* running = (1 - momentum) * running + momentum * (mean, and variance with the correction n / (n - 1)), f32 or f64
     * [n channels], from what norm left in mean and variance. Of a batch without values: nothing. */
    void (*batch_stats)(struct cairn_device *d, cairn_dtype running_dtype, void *running_mean, void *running_var,
                        const struct cairn__norm *norm, double momentum);
    /* shared = the whole batch's statistics in forward, merged from all [shares][1 + 2 channels] (kernels/moments.h,
     * f64 on every device). If no share has values, writes only the count, 0. */
    void (*merge_moments)(struct cairn_device *d, double *shared, const double *all, size_t shares, size_t channels);

    /* ---- rows by index: y[i] = table[index[i]], rows of n elements. An index outside the table raises *bad_index and
     * gives a zero row. Backward: dtable = 0, then += dy[i] in order of i, summed as columns in kernels.h (except that
     * the first group of rows, not the last, may be short), rounded once; indices equal to skip add nothing ---- */
    void (*gather_rows)(struct cairn_device *d, cairn_dtype t, void *y, const void *table, const void *index,
                        cairn_dtype index_dtype, size_t count, size_t table_rows, size_t n, uint32_t *bad_index);
    void (*scatter_rows)(struct cairn_device *d, cairn_dtype t, void *dtable, const void *dy, const void *index,
                         cairn_dtype index_dtype, size_t count, size_t table_rows, size_t n, int64_t skip);

    /* dst[i] = uniform i of the random stream (device/env.h) < p ? 0 : x[i] / (1 - p); dense. Its own backward. */
    void (*dropout)(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n, double p, uint64_t seed,
                    uint64_t stream);

    void (*class_loss)(struct cairn_device *d, const struct cairn__class_loss *loss);
    void (*class_loss_backward)(struct cairn_device *d, const struct cairn__class_loss *loss);

    void (*conv)(struct cairn_device *d, const struct cairn__conv *conv);
    void (*conv_backward)(struct cairn_device *d, const struct cairn__conv *conv);
    void (*pool)(struct cairn_device *d, const struct cairn__pool *pool);
    void (*pool_backward)(struct cairn_device *d, const struct cairn__pool *pool);

    void (*attention)(struct cairn_device *d, const struct cairn__attention *attention);
    void (*attention_backward)(struct cairn_device *d, const struct cairn__attention *attention);
};

#endif
