/* The launchers of pooling, in plain C as those of launch.h. They have planes, inputs and outputs.
 *
 * Forward a team of threads has a window: one thread, or 8, 32 or a block where it has more elements; a maximum is one
 * thread's. Thread t of the team takes elements t, t + threads, ... of the window in row-major order, 16 at a time in
 * R, these in f64; the team adds in f64, in a tree. |error of the sum| <= 15 u * sum |x|, u = 2^-24; a window of up to
 * 16 elements has the CPU's bits.
 *
 * Backward a thread has an input, and adds what it gets of the windows that it is in, in their row-major order, as
 * above: 16 in R, these in f64, the CPU's bits where they are no more. A pass costs as much as all windows together
 * have elements. */
#ifndef CAIRN__DEVICE_CUDA_POOL_H
#define CAIRN__DEVICE_CUDA_POOL_H

#include "device/cuda/launch.h"
#include "device/math_passes.h"

#ifdef __cplusplus
extern "C" {
#endif

int cairn__launch_pool(struct CUstream_st *stream, const struct cairn__pool *pool);
int cairn__launch_pool_backward(struct CUstream_st *stream, const struct cairn__pool *pool);

#ifdef __cplusplus
}
#endif

#endif
