/* The launchers of rows.cu.
 *
 * Sums of a row. A warp works on a row, or a block on a longer one; a thread takes every 32nd or 256th pack (16 bytes
 * of elements). Rows of up to 1024 and 8192 elements are kept in registers (half as many with two operands, none of
 * f64). Terms of a pack are added in R in a tree of halves, everything else in f64: packs in order, then threads in
 * trees. Longer rows are read twice; softmax's first reading adds four packs in one tree, with a running maximum. Only
 * the type and n decide. |error| <= 6 u * sum |terms|, u = 2^-24, or 2^-53 for f64.
 *
 * scatter_rows sorts indices stably and adds gradients in the order of their indices, in f64. First it adds, within
 * each segment of 32 neighbours in the sorted order, those that belong to one row. If a row has several such sums, the
 * k-th of them but the first goes to part k % 8 in order; then the first and the parts are added in order. The total is
 * rounded once. */
#ifndef CAIRN__DEVICE_CUDA_ROWS_H
#define CAIRN__DEVICE_CUDA_ROWS_H

#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

int cairn__launch_softmax(struct CUstream_st *stream, cairn_dtype t, void *y, const void *x, size_t rows, size_t n,
                          bool log);
int cairn__launch_softmax_backward(struct CUstream_st *stream, cairn_dtype t, void *dx, const void *dy, const void *y,
                                   size_t rows, size_t n, bool log);

/* least: p * 2^24, rounded up. */
int cairn__launch_dropout(struct CUstream_st *stream, cairn_dtype t, void *dst, const void *x, size_t n, uint32_t least,
                          double scale, const struct cairn__random_stream *random);

/* Rows have `nbytes` bytes, an even number. wide: indices are i64, otherwise i32. bad may be NULL. */
int cairn__launch_gather_rows(struct CUstream_st *stream, void *y, const void *table, const void *index, bool wide,
                              size_t count, size_t table_rows, size_t nbytes, uint32_t *bad);

/* ---- rows by index, backward ---- */

enum {
    CAIRN__SORT_LEAST_TILE = 1024, /* least number of keys per block: more if there would be more than MOST_TILES */
    CAIRN__SORT_MOST_TILES = 256,
    CAIRN__SORT_DIGITS = 256,
    CAIRN__SCATTER_SEGMENT = 32, /* sorted uses that one thread adds up */
};

/* keys[i] = index[i], or table_rows if the index is outside the table or equal to skip; order[i] = i. */
int cairn__launch_keys(struct CUstream_st *stream, uint32_t *keys, uint32_t *order, const void *index, bool wide,
                       size_t count, size_t table_rows, int64_t skip);
/* One pass of a stable sort, by the digit of 8 bits at `shift`. tile: a multiple of CAIRN__CUDA_THREADS. counts:
 * [SORT_DIGITS * number of tiles]. */
int cairn__launch_sort_pass(struct CUstream_st *stream, uint32_t *to_keys, uint32_t *to_order, const uint32_t *keys,
                            const uint32_t *order, size_t count, size_t tile, uint32_t *counts, int shift);
/* Adds the sorted gradients to the rows of dtable, which must be zero. left: f64 [segments, 2, n]. */
int cairn__launch_add_sorted(struct CUstream_st *stream, cairn_dtype t, void *dtable, const void *dy,
                             const uint32_t *keys, const uint32_t *order, size_t count, size_t table_rows, size_t n,
                             double *left);

#ifdef __cplusplus
}
#endif

#endif
