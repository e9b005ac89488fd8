/* The launchers of losses.cu. n, the rows that have a target, is loss->rows * loss->inner.
 *
 * Scores of a row are read once, with a running maximum. Where they lie side by side (inner = 1) a warp has the row, or
 * a block where there are more than 1024 classes, and a thread takes every 32nd or 256th pack, counted from the
 * tensor's beginning: e^(x - maximum) of four of its packs, or of one with smoothing or f64, is added in R in a tree of
 * halves, all else in f64, threads in trees. Else, and where classes are at most 16, a thread has the row and goes by
 * eight classes, or two of f64. |error of the sum| <= 6 u * sum and that of e^ (math_f32.h), u = 2^-24, or 2^-53 for
 * f64.
 *
 * Losses and weights are summed in f64: block b of at most 1024 takes tiles b, b + blocks, ... of 1024 rows, a thread
 * every 256th of them; then threads and blocks as in launch.h. */
#ifndef CAIRN__DEVICE_CUDA_LOSSES_H
#define CAIRN__DEVICE_CUDA_LOSSES_H

#include "device/cuda/launch.h"
#include "device/math_passes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *sum = the sum of loss->weight. */
int cairn__launch_sum_weights(struct CUstream_st *stream, const struct cairn__class_loss *loss, double *sum);

/* losses, R [n], or with `each` y: the loss of each row, 0 where it is ignored; and loss->lse. n > 0, classes > 0.
 * all_weights: as above, NULL where there are no weights or no smoothing. */
int cairn__launch_class_losses(struct CUstream_st *stream, const struct cairn__class_loss *loss, void *losses,
                               const double *all_weights);
/* y, unless `each`, and total from losses; raises bad_target. n = 0 too. */
int cairn__launch_sum_losses(struct CUstream_st *stream, struct cairn__partials *partials,
                             const struct cairn__class_loss *loss, const void *losses);

/* dx, of nll where it is not 0. n > 0, classes > 0. */
int cairn__launch_class_losses_backward(struct CUstream_st *stream, const struct cairn__class_loss *loss,
                                        const double *all_weights);

#ifdef __cplusplus
}
#endif

#endif
