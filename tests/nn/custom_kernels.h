/* Kernels of a user's program, for custom_cuda_test.c; each returns a cudaError_t. */
#ifndef CUSTOM_KERNELS_H
#define CUSTOM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y[i] = a[i] * b[i] */
int launch_multiply(float *y, const float *a, const float *b, size_t n, void *stream);

/* y[i] = -x[i], of either half type. */
int launch_negate_half(uint16_t *y, const uint16_t *x, size_t n, void *stream);

/* An invalid launch: a block has at most 1024 threads. */
int launch_too_many_threads(float *y, void *stream);

int wait_for_stream(void *stream);
int current_gpu(void);
int set_gpu(int ordinal);

#ifdef __cplusplus
}
#endif

#endif
