/* The kernels of custom_kernels.h, written as in a user's program. */
#include "custom_kernels.h"

static const int THREADS = 128;

static unsigned blocks_for(size_t n) {
    return (unsigned)((n + THREADS - 1) / THREADS);
}

__global__ void multiply(float *y, const float *a, const float *b, size_t n) {
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) y[i] = a[i] * b[i];
}

__global__ void negate_half(uint16_t *y, const uint16_t *x, size_t n) {
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) y[i] = (uint16_t)(x[i] ^ 0x8000u);
}

int launch_multiply(float *y, const float *a, const float *b, size_t n, void *stream) {
    multiply<<<blocks_for(n), THREADS, 0, (cudaStream_t)stream>>>(y, a, b, n);
    return cudaGetLastError();
}

int launch_negate_half(uint16_t *y, const uint16_t *x, size_t n, void *stream) {
    negate_half<<<blocks_for(n), THREADS, 0, (cudaStream_t)stream>>>(y, x, n);
    return cudaGetLastError();
}

int launch_too_many_threads(float *y, void *stream) {
    multiply<<<1, 100000, 0, (cudaStream_t)stream>>>(y, y, y, 0);
    return cudaGetLastError();
}

int wait_for_stream(void *stream) {
    return cudaStreamSynchronize((cudaStream_t)stream);
}

int current_gpu(void) {
    int ordinal = -1;
    return cudaGetDevice(&ordinal) == cudaSuccess ? ordinal : -1;
}

int set_gpu(int ordinal) {
    return cudaSetDevice(ordinal);
}
