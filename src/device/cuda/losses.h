/* The launchers of losses.cu. n, the rows that have a target, is loss->rows * loss->inner.
 *
 * Scores of a row are read once, with a running maximum. If they are contiguous (inner = 1) and there are more than 16
 * classes, a warp works on a row, or a block if there are more than 1024 classes. A thread takes every 32nd or 256th
 * pack, counted from the tensor's beginning: e^(x - maximum) of four of its packs, or of one with smoothing or f64, is
 * added in R in a tree of halves, everything else in f64, threads in trees. Otherwise one thread works on a row, eight
 * classes at a time, or two of f64. |error of the sum| <= 6 u * sum and that of e^ (math_f32.h), u = 2^-24, or 2^-53
 * for f64.
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

/* Writes the loss of each row, 0 if the row is ignored, to losses, R [n], or with `each` to y; also writes loss->lse.
 * n > 0, classes > 0. all_weights: the sum of launch_sum_weights; NULL if there are no weights or no smoothing. */
int cairn__launch_class_losses(struct CUstream_st *stream, const struct cairn__class_loss *loss, void *losses,
                               const double *all_weights);
/* Computes y, unless `each`, and total from losses; raises bad_target. n may be 0. */
int cairn__launch_sum_losses(struct CUstream_st *stream, struct cairn__partials *partials,
                             const struct cairn__class_loss *loss, const void *losses);

/* dx, of nll where it is not 0. n > 0, classes > 0. */
int cairn__launch_class_losses_backward(struct CUstream_st *stream, const struct cairn__class_loss *loss,
                                        const double *all_weights);

#ifdef __cplusplus
}
#endif

#endif
