/* The launchers of normalisation, in plain C as in launch.h. norms.c checks, plans and takes scratch memory;
 * norm_rows.cu has layer and RMS norm, norms.cu batch and group norm. R, dweight and the rest are math_passes.h's.
 *
 * The order of every sum depends only on sizes. u is 2^-24, S the sum of the terms' absolute values, V the elements of
 * a pack of 16 bytes. For f64 everything is f64.
 *
 *   rows        a warp has a row of up to 1024 elements of f32 or a half type, a block a longer one: thread t packs t,
 *               t + threads, .... A pack is added in f32, by halves, all else in f64: |error| <= log2(V) u S for the
 *               sums of x, x - mean, dy * weight and their products. Mean and variance are kernels/rows.h's: two
 *               passes, the second of which corrects the first. A row of up to 8192 elements is read once.
 *   dweight     of rows that were kept: at most 16 rows in f32, one after the other, and the 8 warps of a block in f64,
 *               rounded to f32; then the blocks, block b going to sum b % 8 of f64, in order, and the 8 by halves.
 *               |error| <= 17 u S. Of other rows: f64 throughout.
 *   channels,   the terms of a group are added in f64 throughout, part by part, then the parts as the blocks above.
 *   groups      A variance is that of x - p, p the group's first element: Q - D * D / n with D the sum of x - p and Q
 *               that of its square. As p is one of them, n * variance >= (p - mean)^2, and so Q <= (n + 1) * n *
 *               variance: what cancels is a factor of n + 1 at most, of errors of some 2^-50. In backward x - mean and
 *               dy * (x - mean) are rounded to f32: 2 u S. */
#ifndef CAIRN__DEVICE_CUDA_NORMS_H
#define CAIRN__DEVICE_CUDA_NORMS_H

#include "device/cuda/launch.h"
#include "device/math_passes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- rows ---- */

enum {
    CAIRN__NORM_WARP_ROW = 1024,  /* the longest row that a warp keeps */
    CAIRN__NORM_BLOCK_ROW = 8192, /* the longest row that a block keeps; both for f32 and halves */
};

int cairn__launch_norm_rows(struct CUstream_st *stream, const struct cairn__norm *norm);

/* Backward of rows that are kept: a team, which is a warp or a block, works on `rows` of them one after the other. */
struct cairn__norm_teams {
    size_t teams_a_block, rows, blocks;
};
/* sums: R [2, blocks, channels], for dweight and dbias; NULL if neither is wanted. */
int cairn__launch_norm_rows_backward(struct CUstream_st *stream, const struct cairn__norm *norm,
                                     const struct cairn__norm_teams *teams, void *sums);
/* For longer rows: dx only. */
int cairn__launch_norm_wide_rows_backward(struct CUstream_st *stream, const struct cairn__norm *norm);
/* dweight and dbias from sums [2, parts, channels], R or f64. */
int cairn__launch_norm_affine(struct CUstream_st *stream, const struct cairn__norm *norm, const void *sums,
                              cairn_dtype sums_dtype, size_t parts);

/* ---- pairs of sums over groups ----
 *
 * Group g has `count` runs of n elements, which begin `stride` apart, the first one at g * n. It is cut into parts of
 * `chunk` elements; sums are f64 [2, parts, groups]. Columns are runs of one element: cut into parts of `chunk` rows,
 * and worked on side by side. */
struct cairn__norm_parts {
    size_t groups, count, n, stride, parts, chunk;
    bool columns;
    bool by_warp; /* one part, of few elements */
};
enum cairn__norm_sums {
    CAIRN__NORM_MOMENTS,    /* of x - p, and of its square */
    CAIRN__NORM_SLOPES,     /* of dy, and of dy * (x - mean); `per_mean` neighbouring groups share a mean */
    CAIRN__NORM_ROW_SLOPES, /* of columns: of dy * (x - mean) * rstd of the row, and of dy */
};
int cairn__launch_norm_sums(struct CUstream_st *stream, const struct cairn__norm *norm, enum cairn__norm_sums which,
                            const struct cairn__norm_parts *parts, size_t per_mean, double *sums);

/* ---- channels and groups ----
 *
 * `factors` of the planes of a period (all channels of a batch norm, all planes of a group norm), R [.., period]:
 *     forward   mean, scale, shift     y = (x - mean) * scale + shift
 *     backward  mean, a, b, c          dx = dy * a + ((x - mean) * b + c) */
enum { CAIRN__NORM_FACTORS = 3, CAIRN__NORM_SLOPE_FACTORS = 4 };

/* Statistics, from sums or from what is given or shared, to where norm wants them. factors NULL: not wanted. */
int cairn__launch_norm_stats(struct CUstream_st *stream, const struct cairn__norm *norm, size_t groups, size_t parts,
                             const double *sums, void *factors);
/* Of channels: dweight and dbias, or what is shared, and factors, which may be NULL. */
int cairn__launch_norm_channel_slopes(struct CUstream_st *stream, const struct cairn__norm *norm, size_t parts,
                                      const double *sums, void *factors);
/* Of groups, whose planes are the groups of `sums`: factors, which may be NULL; whole: [2, outer, channels], of what
 * dweight and dbias are sums over outer of. whole may be sums where there is one part. */
int cairn__launch_norm_group_slopes(struct CUstream_st *stream, const struct cairn__norm *norm, size_t parts,
                                    const double *sums, double *whole, void *factors);
int cairn__launch_norm_apply(struct CUstream_st *stream, const struct cairn__norm *norm, const void *factors,
                             size_t period);
int cairn__launch_norm_apply_slopes(struct CUstream_st *stream, const struct cairn__norm *norm, const void *factors,
                                    size_t period);

/* ---- running statistics ---- */

int cairn__launch_batch_stats(struct CUstream_st *stream, cairn_dtype running_dtype, void *running_mean,
                              void *running_var, const struct cairn__norm *norm, double momentum);

/* ---- shares of a batch ---- */

/* kernels/moments.h, a channel a thread. */
int cairn__launch_merge_moments(struct CUstream_st *stream, double *shared, const double *all, size_t shares,
                                size_t channels);

#ifdef __cplusplus
}
#endif

#endif
