/* The part of CUDA's device language that Cairn's kernels use, for g++: the same .cu files, compiled for the CPU.
 *
 * A launch is a closure on a stream (runtime.cc) that runs its blocks one after the other. The threads of a block run
 * one after the other, too; a thread that has to wait for others, at a barrier or a shuffle, is suspended with its
 * stack while the next one runs (kernel.cc). The order of blocks and of threads is that of CAIRN_STANDIN_ORDER: forward
 * (the default), backward, or a number, which seeds a shuffle that differs from launch to launch. Kernels that lack a
 * barrier give different results in different orders.
 *
 * A barrier that not every thread of the block reaches, a shuffle that not every lane of the mask reaches, and an
 * access outside device memory abort the process with a message. Shared memory is filled with NaNs at the start of a
 * block. */
#ifndef STANDIN_KERNEL_H
#define STANDIN_KERNEL_H

#include <cuda_runtime_api.h>

#include <functional>
#include <string.h>
#include <tuple>
#include <utility>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __shared__   static thread_local /* of the one thread that runs kernels, so that it can be found and poisoned */
#define __constant__ static const
#define __launch_bounds__(...)

constexpr int warpSize = 32;
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* ---- vectors ---- */

static inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}

static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}

static inline float2 make_float2(float x, float y) {
    return {x, y};
}

static inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

/* ---- synchronisation of threads ---- */

/* The source location at which a thread waits: threads at different locations do not meet. */
struct standin_place {
    const char *function;
    int line;
};
#define STANDIN_HERE \
    { __builtin_FUNCTION(), __builtin_LINE() }

/* Returns the OR of all threads' votes. */
int standin_barrier(int vote, standin_place place);
/* Returns the value of lane `source` of the warp, or all ones if the mask does not include it. */
unsigned long long standin_shuffle(unsigned mask, unsigned long long given, unsigned source, standin_place place);

static inline void __syncthreads(standin_place place = STANDIN_HERE) {
    standin_barrier(0, place);
}

static inline int __syncthreads_or(int vote, standin_place place = STANDIN_HERE) {
    return standin_barrier(vote, place);
}

template <class T> T standin_shuffled(unsigned mask, T value, unsigned source, standin_place place) {
    static_assert(sizeof(T) <= sizeof(unsigned long long), "shuffles exchange at most 8 bytes");
    unsigned long long word = 0;
    memcpy(&word, &value, sizeof(T));
    word = standin_shuffle(mask, word, source, place);
    memcpy(&value, &word, sizeof(T));
    return value;
}

/* A lane whose source would be outside its group of `width` lanes keeps its value. */
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, standin_place place = STANDIN_HERE) {
    const unsigned lane = threadIdx.x % warpSize;
    const bool inside = lane % (unsigned)width + delta < (unsigned)width;
    return standin_shuffled(mask, value, inside ? lane + delta : lane, place);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, standin_place place = STANDIN_HERE) {
    const unsigned lane = threadIdx.x % warpSize, first = lane / (unsigned)width * (unsigned)width;
    return standin_shuffled(mask, value, first + (unsigned)source % (unsigned)width, place);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize, standin_place place = STANDIN_HERE) {
    const unsigned lane = threadIdx.x % warpSize, source = lane ^ (unsigned)lanes;
    return standin_shuffled(mask, value, source / (unsigned)width <= lane / (unsigned)width ? source : lane, place);
}

/* ---- atomics: plain operations, since threads never run at the same time ---- */

static inline unsigned atomicAdd(unsigned *p, unsigned value) {
    const unsigned before = *p;
    *p = before + value;
    return before;
}

static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long value) {
    const unsigned long long before = *p;
    *p = before + value;
    return before;
}

static inline int atomicMax(int *p, int value) {
    const int before = *p;
    *p = before > value ? before : value;
    return before;
}

static inline unsigned long long atomicMax(unsigned long long *p, unsigned long long value) {
    const unsigned long long before = *p;
    *p = before > value ? before : value;
    return before;
}

static inline int atomicMin(int *p, int value) {
    const int before = *p;
    *p = before < value ? before : value;
    return before;
}

static inline unsigned atomicOr(unsigned *p, unsigned value) {
    const unsigned before = *p;
    *p = before | value;
    return before;
}

static inline void __threadfence() {}
static inline void __threadfence_system() {}

/* ---- launches ---- */

/* Queues a launch in which every thread runs `thread`. kernel: the function's address, for its name. */
cudaError_t standin_launch(const void *kernel, size_t blocks, int threads, cudaStream_t stream,
                           std::function<void()> thread);

template <class... P, class... A>
cudaError_t cairn__launch(void (*kernel)(P...), size_t blocks, int threads, cudaStream_t stream, A... args) {
    std::tuple<P...> given(static_cast<P>(args)...);
    return standin_launch(reinterpret_cast<const void *>(kernel), blocks, threads, stream,
                          [kernel, given] { std::apply(kernel, given); });
}

#endif
