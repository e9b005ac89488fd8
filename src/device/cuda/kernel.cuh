/* The basis of all kernels: elements and packs of them, the walk of a block over its part of a tensor, sums of a block,
 * the launch. Uses of CUDA beyond the plain language are wrapped here, so that a stand-in can replace them. */
#ifndef CAIRN__DEVICE_CUDA_KERNEL_CUH
#define CAIRN__DEVICE_CUDA_KERNEL_CUH

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include "standin/kernel.h"
#endif

#include "device/cuda/launch.h"
#include "kernels/element.h"

#define CAIRN__DEVICE __device__ __forceinline__

/* Of a kernel with so many blocks in a multiprocessor. sm_100's ptxas spills to make them more, where it is not told
 * that one will do. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define CAIRN__BOUNDS(blocks) __launch_bounds__(CAIRN__CUDA_THREADS, 1)
#define CAIRN__KERNEL         __global__ void CAIRN__BOUNDS(1)
#else
#define CAIRN__BOUNDS(blocks) __launch_bounds__(CAIRN__CUDA_THREADS, blocks)
#define CAIRN__KERNEL         __global__ void __launch_bounds__(CAIRN__CUDA_THREADS)
#endif

enum {
    CAIRN__CUDA_WARP = 32,
    CAIRN__CUDA_WARPS = CAIRN__CUDA_THREADS / CAIRN__CUDA_WARP,
    CAIRN__CUDA_PACK_NBYTES = 16, /* of the widest operand */
};

/* ---- the launch ---- */

#ifdef __CUDACC__
template <class... P>
cudaError_t cairn__launch_converted(void (*kernel)(P...), size_t blocks, int threads, cudaStream_t stream, P... args) {
    void *pointers[] = {(void *)&args..., NULL};
    return cudaLaunchKernel((const void *)kernel, dim3((unsigned)blocks), dim3((unsigned)threads), pointers, 0, stream);
}

/* Arguments are converted to the kernel's own types. */
template <class... P, class... A>
cudaError_t cairn__launch(void (*kernel)(P...), size_t blocks, int threads, cudaStream_t stream, const A &...args) {
    return cairn__launch_converted<P...>(kernel, blocks, threads, stream, static_cast<P>(args)...);
}
#endif

/* ---- random streams ---- */

/* The stream without a base. */
static CAIRN__DEVICE cairn__random_stream cairn__drawn_now(const cairn__random_stream &random) {
    if (!random.base) return random;
    return {random.base->seed, random.base->stream + random.number, NULL};
}

/* ---- elements ---- */

struct cairn__f16 {
    uint16_t bits;
};
struct cairn__bf16 {
    uint16_t bits;
};

/* Calls use with a value of the element type: a type for a template. */
template <class Use> int cairn__with_float(cairn_dtype type, Use use) {
    switch (type) {
    case CAIRN_F16:
        return use(cairn__f16());
    case CAIRN_BF16:
        return use(cairn__bf16());
    default:
        return use(float());
    }
}
template <class Use> int cairn__with_half(cairn_dtype type, Use use) {
    return type == CAIRN_F16 ? use(cairn__f16()) : use(cairn__bf16());
}

/* The conversions of half.h, bit for bit. The GPU's own make every NaN the same: the one that half.h makes is selected
 * in its place, which costs a few operations on integers and no branch. */
#ifdef __CUDACC__
CAIRN__DEVICE float cairn__widened(cairn__f16 x) {
    const uint32_t sign = (uint32_t)(x.bits & 0x8000u) << 16, fraction = x.bits & 0x3ffu;
    const float nan = cairn__f32_from_bits(sign | 0x7fc00000u | fraction << 13);
    return (x.bits & 0x7fffu) > 0x7c00u ? nan : __half2float(__ushort_as_half(x.bits));
}
CAIRN__DEVICE uint16_t cairn__narrowed(float x, cairn__f16) {
    const uint32_t u = cairn__f32_bits(x), nan = (u >> 16 & 0x8000u) | 0x7e00u | (u >> 13 & 0x3ffu);
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : __half_as_ushort(__float2half_rn(x)));
}
CAIRN__DEVICE uint16_t cairn__narrowed(float x, cairn__bf16) {
    const uint32_t u = cairn__f32_bits(x);
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : __bfloat16_as_ushort(__float2bfloat16_rn(x)));
}
#else
CAIRN__DEVICE float cairn__widened(cairn__f16 x) {
    return cairn__f16_to_f32(x.bits);
}
CAIRN__DEVICE uint16_t cairn__narrowed(float x, cairn__f16) {
    return cairn__f32_to_f16(x);
}
CAIRN__DEVICE uint16_t cairn__narrowed(float x, cairn__bf16) {
    return cairn__f32_to_bf16(x);
}
#endif

/* Of V elements. */
template <int V> CAIRN__DEVICE void cairn__widen(const float *x, float *y) {
#pragma unroll
    for (int k = 0; k < V; k++) y[k] = x[k];
}
template <int V> CAIRN__DEVICE void cairn__widen(const cairn__bf16 *x, float *y) {
#pragma unroll
    for (int k = 0; k < V; k++) y[k] = cairn__bf16_to_f32(x[k].bits); /* a shift */
}
template <int V> CAIRN__DEVICE void cairn__widen(const cairn__f16 *x, float *y) {
#pragma unroll
    for (int k = 0; k < V; k++) y[k] = cairn__widened(x[k]);
}

/* The same, but a NaN may become any NaN: a sum does not keep its bits. */
template <int V, class T> CAIRN__DEVICE void cairn__widen_for_sum(const T *x, float *y) {
    cairn__widen<V>(x, y);
}
#ifdef __CUDACC__
template <int V> CAIRN__DEVICE void cairn__widen_for_sum(const cairn__f16 *x, float *y) {
#pragma unroll
    for (int k = 0; k < V; k++) y[k] = __half2float(__ushort_as_half(x[k].bits));
}
#endif

/* The one rounding. */
template <int V> CAIRN__DEVICE void cairn__narrow(const float *x, float *y) {
#pragma unroll
    for (int k = 0; k < V; k++) y[k] = x[k];
}
template <int V, class H> CAIRN__DEVICE void cairn__narrow(const float *x, H *y) {
#pragma unroll
    for (int k = 0; k < V; k++) y[k].bits = cairn__narrowed(x[k], y[k]);
}

/* One element. */
template <class T> CAIRN__DEVICE float cairn__widen(T x) {
    float y;
    cairn__widen<1>(&x, &y);
    return y;
}

CAIRN__DEVICE bool cairn__nonfinite(float x) {
    return cairn__f32_nonfinite(x);
}
CAIRN__DEVICE bool cairn__nonfinite(cairn__f16 x) {
    return (x.bits & 0x7c00u) == 0x7c00u;
}
CAIRN__DEVICE bool cairn__nonfinite(cairn__bf16 x) {
    return (x.bits & 0x7f80u) == 0x7f80u;
}

/* ---- packs: V elements read or written at once; kept as T x[V] ---- */

template <int NBYTES> struct cairn__raw;
template <> struct cairn__raw<16> { typedef uint4 type; };
template <> struct cairn__raw<8> { typedef uint2 type; };
template <> struct cairn__raw<4> { typedef unsigned int type; };
template <> struct cairn__raw<2> { typedef unsigned short type; };
template <> struct cairn__raw<1> { typedef unsigned char type; };

/* Once: data that this kernel touches once and the next will not want, so that it leaves the cache first. */
enum cairn__hint { CAIRN__KEEP, CAIRN__ONCE };

template <int V, cairn__hint HINT = CAIRN__KEEP, class T> CAIRN__DEVICE void cairn__read(T *to, const T *from) {
#ifdef __CUDACC__
    typedef typename cairn__raw<V * sizeof(T)>::type raw;
    const raw bits = HINT == CAIRN__ONCE ? __ldcs((const raw *)from) : *(const raw *)from;
    memcpy(to, &bits, sizeof(bits));
#else
    memcpy(to, from, V * sizeof(T));
#endif
}

template <int V, cairn__hint HINT = CAIRN__KEEP, class T> CAIRN__DEVICE void cairn__write(T *to, const T *from) {
#ifdef __CUDACC__
    typedef typename cairn__raw<V * sizeof(T)>::type raw;
    raw bits;
    memcpy(&bits, from, sizeof(bits));
    if (HINT == CAIRN__ONCE) {
        __stcs((raw *)to, bits);
    } else {
        *(raw *)to = bits;
    }
#else
    memcpy(to, from, V * sizeof(T));
#endif
}

/* The elements in a pack where one of these types is the widest operand's. */
template <class T, class U = T>
constexpr int cairn__pack_of = CAIRN__CUDA_PACK_NBYTES / (int)(sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U));

/* Whether packs of V elements of p can be read at once. NULL, which is not read, can. */
template <int V, class T> CAIRN__DEVICE bool cairn__aligned(const T *p) {
    return (size_t)p % (V * sizeof(T)) == 0;
}

/* ---- the walk of a block over elements [from, to), from a multiple of V ----
 *
 * Op has a type in<V>, what it reads of V elements; read<V>(i, &in), which reads it; and use<V>(i, in), which computes
 * and writes. Reads of U packs are under way before the first is used. */

template <int V, int U, class Op> CAIRN__DEVICE void cairn__walk_packs(size_t from, size_t to, Op &op) {
    const size_t step = (size_t)CAIRN__CUDA_THREADS * V;
    for (size_t i = from + (size_t)threadIdx.x * V; i < to; i += U * step) {
        typename Op::template in<V> in[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (i + u * step < to) op.template read<V>(i + u * step, &in[u]);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (i + u * step < to) op.template use<V>(i + u * step, in[u]);
        }
    }
}

/* aligned: every operand can be read in packs of V. */
template <int V, int U, class Op> CAIRN__DEVICE void cairn__walk(bool aligned, size_t from, size_t to, Op &op) {
    const size_t packed = aligned ? to - (to - from) % V : from;
    cairn__walk_packs<V, U>(from, packed, op);
    cairn__walk_packs<1, 4>(packed, to, op);
}

/* The same, where prepare() leaves in shared memory what op uses, and *skipped, which says that nothing is to be done.
 * The first reads are under way by then, so that a block waits for both at once; they do not know what is prepared. */
template <int V, int U, class Op, class Prepare>
CAIRN__DEVICE void cairn__walk_prepared(bool aligned, size_t from, size_t to, Op &op, const bool *skipped,
                                        Prepare prepare) {
    const size_t step = (size_t)CAIRN__CUDA_THREADS * V, packed = aligned ? to - (to - from) % V : from;
    typename Op::template in<V> in[U];
    size_t i = from + (size_t)threadIdx.x * V;
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (i + u * step < packed) op.template read<V>(i + u * step, &in[u]);
    }
    prepare();
    __syncthreads();
    if (*skipped) return;
    while (i < packed) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (i + u * step < packed) op.template use<V>(i + u * step, in[u]);
        }
        i += U * step;
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (i + u * step < packed) op.template read<V>(i + u * step, &in[u]);
        }
    }
    cairn__walk_packs<1, 4>(packed, to, op);
}

/* The same over a whole tensor: each block has a few packs a thread. */
template <int V, int U, class Op> CAIRN__DEVICE void cairn__walk_tensor(bool aligned, size_t n, Op &op) {
    const size_t part = (size_t)CAIRN__CUDA_THREADS * V * U, from = blockIdx.x * part;
    cairn__walk<V, U>(aligned, from, n - from < part ? n : from + part, op);
}

/* Its blocks: no memory holds a tensor for which there are not enough of them. */
template <int V, int U> size_t cairn__tensor_blocks(size_t n) {
    const size_t part = (size_t)CAIRN__CUDA_THREADS * V * U;
    return n / part + (n % part != 0);
}

/* ---- the walk of a sum over elements [from, to), from a multiple of V ----
 *
 * Element i is added to place i % V of the thread that has its pack, whether packs can be read at once or not. Op has
 * types in, what it reads of a pack, and wide, the same as f32; read<N>(i, k, &in), which reads N elements from i to
 * place k; widen(in, &wide); and add(wide, k). Tiles of U packs a thread that are all there are looked at no further:
 * these are what a sum's speed is made of. */

template <int V, class Op>
CAIRN__DEVICE void cairn__read_for_sum(bool aligned, size_t i, size_t to, Op &op, typename Op::in *in) {
    if (aligned && i < to && to - i >= V) {
        op.template read<V>(i, 0, in);
        return;
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
        if (i + k < to) op.template read<1>(i + k, k, in);
    }
}

/* Of a pack, `count` elements; all of them where the compiler knows so. */
template <int V, class Op> CAIRN__DEVICE void cairn__add_to_sum(const typename Op::in &in, size_t count, Op &op) {
    typename Op::wide wide;
    op.widen(in, &wide);
#pragma unroll
    for (int k = 0; k < V; k++) {
        if (k < count) op.add(wide, k);
    }
}

template <int V, int U, class Op> CAIRN__DEVICE void cairn__walk_sum(bool aligned, size_t from, size_t to, Op &op) {
    const size_t step = (size_t)CAIRN__CUDA_THREADS * V, tile = U * step;
    for (; aligned && to - from >= tile; from += tile) {
        const size_t i = from + (size_t)threadIdx.x * V;
        typename Op::in in[U];
#pragma unroll
        for (int u = 0; u < U; u++) op.template read<V>(i + u * step, 0, &in[u]);
#pragma unroll
        for (int u = 0; u < U; u++) cairn__add_to_sum<V>(in[u], V, op);
    }
    for (size_t i = from + (size_t)threadIdx.x * V; i < to; i += tile) {
        typename Op::in in[U];
#pragma unroll
        for (int u = 0; u < U; u++) cairn__read_for_sum<V>(aligned, i + u * step, to, op, &in[u]);
#pragma unroll
        for (int u = 0; u < U; u++) cairn__add_to_sum<V>(in[u], i + u * step < to ? to - i - u * step : 0, op);
    }
}

/* ---- lists of tensors ---- */

/* Where this block works: elements [from, to) of a tensor. */
struct cairn__where {
    uint32_t tensor;
    size_t from, to;
};

/* A launch carries its list as parameters, which are written anew each time: launches of few tensors have short ones,
 * of types of their own with the members of those in launch.h. */
enum { CAIRN__CUDA_FEW = 8 };

struct cairn__few_span {
    uint32_t count, blocks;
    size_t chunk, done;
    uint32_t ends[CAIRN__CUDA_FEW];
};

/* What all lists have. */
template <class Few, class List> void cairn__shorten(Few *few, const List &list) {
    few->span.count = list.span.count, few->span.blocks = list.span.blocks;
    few->span.chunk = list.span.chunk, few->span.done = list.span.done;
    for (uint32_t t = 0; t < list.span.count; t++) {
        few->span.ends[t] = list.span.ends[t];
        few->items[t] = list.items[t];
    }
}

/* The first tensor t with blockIdx.x < ends[t]. Where all are empty, or there is none, a block finds no element. */
template <class Span, class Item> CAIRN__DEVICE cairn__where cairn__find(const Span &span, const Item *items) {
    uint32_t low = 0, high = span.count ? span.count - 1 : 0;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (blockIdx.x < span.ends[middle]) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    const size_t chunk = blockIdx.x - (low ? span.ends[low - 1] : 0) + (low ? 0 : span.done);
    const size_t from = chunk * span.chunk, n = items[low].n;
    cairn__where where;
    where.tensor = low;
    where.from = from < n ? from : n;
    where.to = n - where.from < span.chunk ? n : where.from + span.chunk;
    return where;
}

/* Raises the flags that are not NULL if any thread of the block has found something. All of its threads call it. */
CAIRN__DEVICE void cairn__raise(bool found, uint32_t *flag, uint32_t *own_flag) {
    if (!__syncthreads_or(found) || threadIdx.x != 0) return;
    if (flag) atomicOr(flag, 1u);
    if (own_flag) atomicOr(own_flag, 1u);
}

/* ---- sums of a block ---- */

/* Over the V sums of a thread: halves of them are added until one is left. */
template <int V, class T> CAIRN__DEVICE T cairn__sum_of(T (&lane)[V]) {
#pragma unroll
    for (int half = V / 2; half > 0; half /= 2) {
#pragma unroll
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    }
    return lane[0];
}

template <class T> CAIRN__DEVICE T cairn__sum_of_warp(T value) {
#pragma unroll
    for (int half = CAIRN__CUDA_WARP / 2; half > 0; half /= 2) value += __shfl_xor_sync(0xffffffffu, value, half);
    return value;
}

/* Over the block's threads, for all of them. Uses shared memory, which the next call may overwrite at once. */
template <class T> CAIRN__DEVICE T cairn__sum_of_block(T value) {
    __shared__ T warps[CAIRN__CUDA_WARPS];
    value = cairn__sum_of_warp(value);
    if (threadIdx.x % CAIRN__CUDA_WARP == 0) warps[threadIdx.x / CAIRN__CUDA_WARP] = value;
    __syncthreads();
    T lane[CAIRN__CUDA_WARPS];
#pragma unroll
    for (int w = 0; w < CAIRN__CUDA_WARPS; w++) lane[w] = warps[w];
    __syncthreads();
    return cairn__sum_of(lane);
}

/* Over what blocks have left in sums[begin] to sums[end - 1]: thread t of `threads`, a warp or the block, adds up
 * places begin + t, begin + t + threads, ... in order. All threads of them have the result. Many reads are under way at
 * once: a single block waits for them, and all others are done. */
CAIRN__DEVICE double cairn__sum_of_left(const volatile double *sums, size_t begin, size_t end, uint32_t threads) {
    enum { UNDER_WAY = 16 };
    double sum = 0;
    for (size_t i = begin + threadIdx.x % threads; i < end; i += (size_t)UNDER_WAY * threads) {
        double left[UNDER_WAY];
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++) left[u] = i + (size_t)u * threads < end ? sums[i + (size_t)u * threads] : 0;
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++) sum += left[u];
    }
    return threads == CAIRN__CUDA_WARP ? cairn__sum_of_warp(sum) : cairn__sum_of_block(sum);
}

/* Says that this block has written its part, and whether it is the last of `blocks` to say so: then it may read,
 * through volatile pointers, what all of them wrote, and the counter is back at 0. Every thread of the block comes
 * here. */
CAIRN__DEVICE bool cairn__last_of(uint32_t *arrived, uint32_t blocks) {
    __shared__ bool last;
    if (blocks == 1) {
        __syncthreads();
        return true;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence(); /* for the whole block, whose writes the barrier has ordered before it */
        last = atomicAdd(arrived, 1u) == blocks - 1;
        if (last) *arrived = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

#endif
