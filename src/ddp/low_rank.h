/* Matrices as products of two thin ones: the arithmetic of PowerSGD, by passes of the device. All f32, dense, in device
 * memory. Thin matrices are kept by their columns: P is [rank][rows], Q [rank][cols]. */
#ifndef CAIRN__DDP_LOW_RANK_H
#define CAIRN__DDP_LOW_RANK_H

#include "device/device.h"

struct cairn__low_rank {
    int64_t rows, cols, rank; /* rank <= rows, cols */
};

/* Scratch memory for orthonormalizing columns. */
struct cairn__low_rank_room {
    float *column; /* [rows or cols, whichever is more] */
    float *dots;   /* [rank] */
    double *norms; /* [2] */
};

/* Makes the rank columns x of n numbers orthonormal, in order, by Gram-Schmidt. Each column is projected twice, because
 * the first projection of a column that nearly depends on the earlier ones leaves a remainder that is not orthogonal to
 * them. Divisors are norm + epsilon. A column that is 0 or depends on earlier ones becomes 0; NaN and inf give NaN. */
void cairn__low_rank_orthonormalize(struct cairn_device *d, float *x, int64_t rank, int64_t n, double epsilon,
                                    const struct cairn__low_rank_room *room);

void cairn__low_rank_project(struct cairn_device *d, const struct cairn__low_rank *s, float *p, const float *m,
                             const float *q); /* P = M Q */
void cairn__low_rank_back(struct cairn_device *d, const struct cairn__low_rank *s, float *q, const float *m,
                          const float *p); /* Q = M^T P */
void cairn__low_rank_expand(struct cairn_device *d, const struct cairn__low_rank *s, float *m, const float *p,
                            const float *q); /* M = P Q^T */

/* kept [rank][n] = x, except for columns of x that are 0: those of kept stay as they are. */
void cairn__low_rank_keep(struct cairn_device *d, float *kept, const float *x, int64_t rank, int64_t n,
                          const struct cairn__low_rank_room *room);

#endif
