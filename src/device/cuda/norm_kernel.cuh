/* Shared by the kernels of normalisation: parts of rows as R, weights of either type, sums of parts. */
#ifndef CAIRN__DEVICE_CUDA_NORM_KERNEL_CUH
#define CAIRN__DEVICE_CUDA_NORM_KERNEL_CUH

#include "device/cuda/math_kernel.cuh"
#include "device/cuda/norms.h"

/* ---- packs of a row of n elements ----
 *
 * packed: every row begins on a pack and every operand can be read in packs. Otherwise elements are read one by one to
 * the same places, and those past the end are 0: sums do not depend on it. I: the type of places in a row. */

template <int V, class T, class I>
CAIRN__DEVICE void cairn__read_part(bool packed, const T *row, I i, I n, T (&to)[V]) {
    if (packed && i < n) {
        cairn__read<V>(to, row + i);
        return;
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
        if (i + k < n) to[k] = row[i + k];
        else to[k] = T();
    }
}

template <int V, class T, class I>
CAIRN__DEVICE void cairn__write_part(bool packed, T *row, I i, I n, const T (&from)[V]) {
    if (packed && i < n) {
        cairn__write<V>(row + i, from);
        return;
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
        if (i + k < n) row[i + k] = from[k];
    }
}

/* As R, and back. A NaN may become any NaN: what has been normalised does not keep its bits. */
template <int V, class T> CAIRN__DEVICE void cairn__widen_any(const T (&x)[V], float (&y)[V]) {
    cairn__widen_for_sum<V>(x, y);
}
template <int V> CAIRN__DEVICE void cairn__widen_any(const double (&x)[V], double (&y)[V]) {
    cairn__widen<V>(x, y);
}

template <int V, class R, class T> CAIRN__DEVICE void cairn__narrow_any(const R (&x)[V], T (&y)[V]) {
    cairn__narrow<V>(x, y);
}
#ifdef __CUDACC__
template <int V> CAIRN__DEVICE void cairn__narrow_any(const float (&x)[V], cairn__f16 (&y)[V]) {
#pragma unroll
    for (int k = 0; k < V; k++) y[k].bits = __half_as_ushort(__float2half_rn(x[k]));
}
template <int V> CAIRN__DEVICE void cairn__narrow_any(const float (&x)[V], cairn__bf16 (&y)[V]) {
#pragma unroll
    for (int k = 0; k < V; k++) y[k].bits = __bfloat16_as_ushort(__float2bfloat16_rn(x[k]));
}
#endif

/* ---- R of numbers kept for each channel ---- */

/* V neighbours at once, where all begins on 16 bytes. */
template <int V, class R> CAIRN__DEVICE void cairn__read_numbers(bool packed, const R *from, R (&to)[V]) {
    constexpr int W = CAIRN__CUDA_PACK_NBYTES / (int)sizeof(R) < V ? CAIRN__CUDA_PACK_NBYTES / (int)sizeof(R) : V;
    if (packed && W * sizeof(R) == CAIRN__CUDA_PACK_NBYTES) {
#pragma unroll
        for (int k = 0; k < V; k += W) cairn__read<W>(to + k, from + k);
        return;
    }
#pragma unroll
    for (int k = 0; k < V; k++) to[k] = from[k];
}

/* weight or bias, of T or of R. */
template <class T> struct cairn__affine {
    typedef typename cairn__r_of<T>::type R;
    const void *values;
    bool is_r;

    CAIRN__DEVICE explicit operator bool() const { return values != NULL; }
    CAIRN__DEVICE R at(size_t i, R otherwise) const {
        if (!values) return otherwise;
        return is_r ? ((const R *)values)[i] : cairn__load((const T *)values + i);
    }
    /* Those of a part of a row; 0 past the end. */
    template <int V, class I> CAIRN__DEVICE void read(bool packed, I i, I n, R (&to)[V]) const {
        if (packed && i < n && is_r) {
            cairn__read_numbers<V>(true, (const R *)values + i, to);
        } else if (packed && i < n) {
            T x[V];
            cairn__read<V>(x, (const T *)values + i);
            cairn__widen_any<V>(x, to);
        } else {
#pragma unroll
            for (int k = 0; k < V; k++) to[k] = i + k < n ? at(i + k, 1) : 0;
        }
    }
};

template <class T> cairn__affine<T> cairn__affine_of(const struct cairn__norm *norm, const void *values) {
    const bool is_r = norm->affine_dtype != norm->dtype || sizeof(T) == sizeof(typename cairn__r_of<T>::type);
    return {values, is_r};
}

static inline bool cairn__is_packed(const void *p) {
    return (size_t)p % CAIRN__CUDA_PACK_NBYTES == 0;
}

/* ---- sums of parts: left is [parts, columns] ----
 *
 * A block has 32 columns, eight threads each. Thread t < 32 gets the sum of column 32 * block + t, others nothing of
 * meaning. */
enum { CAIRN__NORM_COLUMNS = CAIRN__CUDA_WARP };

static inline size_t cairn__column_blocks(size_t columns) {
    return (columns + CAIRN__NORM_COLUMNS - 1) / CAIRN__NORM_COLUMNS;
}

template <class S> CAIRN__DEVICE double cairn__sum_of_parts(const S *left, size_t parts, size_t columns) {
    enum { UNDER_WAY = 8 };
    __shared__ double sums[CAIRN__CUDA_WARPS][CAIRN__NORM_COLUMNS];
    const size_t in_block = threadIdx.x % CAIRN__CUDA_WARP,
                 column = (size_t)blockIdx.x * CAIRN__NORM_COLUMNS + in_block;
    double sum = 0;
    for (size_t p = threadIdx.x / CAIRN__CUDA_WARP; column < columns && p < parts; p += UNDER_WAY * CAIRN__CUDA_WARPS) {
        S in[UNDER_WAY];
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++)
            in[u] = p + u * CAIRN__CUDA_WARPS < parts ? left[(p + u * CAIRN__CUDA_WARPS) * columns + column] : (S)0;
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++) sum += (double)in[u];
    }
    sums[threadIdx.x / CAIRN__CUDA_WARP][in_block] = sum;
    __syncthreads();
    double lane[CAIRN__CUDA_WARPS];
#pragma unroll
    for (int w = 0; w < CAIRN__CUDA_WARPS; w++) lane[w] = sums[w][in_block];
    __syncthreads();
    return cairn__sum_of(lane);
}

#endif
