/* The launchers of pooling, in plain C as in launch.h. Planes, inputs and outputs are not empty.
 *
 * Forward: a team of threads computes a window: one thread, or 8, 32 or a block for larger windows; a maximum is
 * computed by one thread. Thread t of the team takes elements t, t + threads, ... of the window in row-major order. It
 * adds 16 at a time in R, and these sums in f64; the team adds in f64, in a tree. |error of the sum| <= 15 u * sum |x|,
 * u = 2^-24. A window of up to 16 elements has the CPU's bits.
 *
 * Backward: a thread computes an input's gradient. It adds the shares of the windows that contain the input, in
 * row-major order of the windows: 16 at a time in R, and these sums in f64; up to 16 give the CPU's bits. The cost of a
 * pass is proportional to the total number of elements of all windows. */
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
