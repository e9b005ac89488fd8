/* Contiguous rows that a warp or a block works on. Shared by rows.cu, losses.cu and attention.cu.
 *
 * A row is elements [from, to) of a tensor. Its threads take the packs of V elements that contain it, counted from the
 * tensor's beginning: so packs can be read at once if the tensor is aligned, whatever the length of rows. The terms
 * that a thread adds depend only on the row's place and length, not on the alignment. */
#ifndef CAIRN__DEVICE_CUDA_ROW_KERNEL_CUH
#define CAIRN__DEVICE_CUDA_ROW_KERNEL_CUH

#include "device/cuda/math_kernel.cuh"
#include "kernels/math_f32.h"

/* ---- the threads of a row: THREADS is a warp or the block ---- */

/* Rows of a warp each may end before the block does. */
template <int THREADS> CAIRN__DEVICE size_t cairn__own_row() {
    return blockIdx.x * (size_t)(CAIRN__CUDA_THREADS / THREADS) + threadIdx.x / THREADS;
}

template <int THREADS> size_t cairn__blocks_of_rows(size_t rows) {
    const size_t at_once = CAIRN__CUDA_THREADS / THREADS;
    return rows / at_once + (rows % at_once != 0);
}

template <int THREADS, class S> CAIRN__DEVICE S cairn__sum_of_row(S value) {
    if constexpr (THREADS == CAIRN__CUDA_WARP) return cairn__sum_of_warp(value);
    else return cairn__sum_of_block(value);
}

/* NaN where one is. */
template <class R> CAIRN__DEVICE R cairn__greater_of(R a, R b) {
    return a > b || a != a ? a : b;
}

template <int THREADS, class R> CAIRN__DEVICE R cairn__greatest_of_row(R value) {
#pragma unroll
    for (int half = CAIRN__CUDA_WARP / 2; half > 0; half /= 2)
        value = cairn__greater_of(value, __shfl_xor_sync(0xffffffffu, value, half));
    if (THREADS == CAIRN__CUDA_WARP) return value;
    __shared__ R warps[CAIRN__CUDA_WARPS];
    if (threadIdx.x % CAIRN__CUDA_WARP == 0) warps[threadIdx.x / CAIRN__CUDA_WARP] = value;
    __syncthreads();
    value = warps[0];
#pragma unroll
    for (int w = 1; w < CAIRN__CUDA_WARPS; w++) value = cairn__greater_of(value, warps[w]);
    __syncthreads();
    return value;
}

/* ---- packs of a row ---- */

struct cairn__row {
    size_t from, to;
};

CAIRN__DEVICE cairn__row cairn__row_at(size_t row, size_t n) {
    return {row * n, (row + 1) * n};
}

/* The first pack of a thread of the row, and the one behind the row's last. */
template <int THREADS, int V> CAIRN__DEVICE size_t cairn__first_pack(const cairn__row &row) {
    return row.from / V + threadIdx.x % THREADS;
}
template <int V> CAIRN__DEVICE size_t cairn__end_pack(const cairn__row &row) {
    return (row.to + V - 1) / V;
}

/* Packs that a row of n elements lies in, at most. */
template <int V> size_t cairn__packs_of_row(size_t n) {
    return n % V == 0 ? n / V : n / V + 2;
}

template <int V> CAIRN__DEVICE bool cairn__within(const cairn__row &row, size_t pack) {
    return pack * V >= row.from && (pack + 1) * V <= row.to;
}

/* -inf where an element is not the row's. */
template <int V, class T>
CAIRN__DEVICE void cairn__read_of_row(T *in, const T *x, size_t pack, const cairn__row &row, bool aligned) {
    if (aligned && cairn__within<V>(row, pack)) {
        cairn__read<V>(in, x + pack * V);
        return;
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
        const size_t i = pack * V + k;
        if (i >= row.from && i < row.to) in[k] = x[i];
        else cairn__store(&in[k], -(typename cairn__r_of<T>::type)INFINITY);
    }
}

template <int V, class T>
CAIRN__DEVICE void cairn__write_of_row(T *y, const T *out, size_t pack, const cairn__row &row, bool aligned) {
    if (aligned && cairn__within<V>(row, pack)) {
        cairn__write<V>(y + pack * V, out);
        return;
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
        const size_t i = pack * V + k;
        if (i >= row.from && i < row.to) y[i] = out[k];
    }
}

/* ---- exponents ---- */

CAIRN__DEVICE float cairn__exp(float x) {
    return exp_f32(x);
}
CAIRN__DEVICE double cairn__exp(double x) {
    return exp(x); /* written out: a call would take registers from whoever makes it */
}

/* In a tree of halves; without loops, which compilers leave as they are where N is large, and x in memory with them. */
template <int N, class R> CAIRN__DEVICE R cairn__sum_in_tree(const R *x) {
    if constexpr (N == 1) return x[0];
    else return cairn__sum_in_tree<N / 2>(x) + cairn__sum_in_tree<N / 2>(x + N / 2);
}

/* The greatest of the elements seen and the sum of e^(x - greatest), in one reading. Elements come by N, whose terms
 * are added in R in a tree; all else is f64. Of nothing but -inf the sum is 0; a NaN makes both NaN. */
template <class R> struct cairn__exponents {
    R greatest = -(R)INFINITY;
    double sum = 0;

    CAIRN__DEVICE void rise_to(R above) {
        if (above <= greatest) return;
        if (sum > 0) sum *= cairn__exp((double)greatest - (double)above);
        greatest = above;
    }

    template <int N> CAIRN__DEVICE void add(const R (&x)[N]) {
        R here = x[0], e[N];
#pragma unroll
        for (int k = 1; k < N; k++) here = cairn__greater_of(here, x[k]);
        if (here == -(R)INFINITY) return;
        rise_to(here);
#pragma unroll
        for (int k = 0; k < N; k++) e[k] = cairn__exp(x[k] - greatest);
        sum += (double)cairn__sum_in_tree<N>(e);
    }

    /* Of all threads of a row, for all of them. */
    template <int THREADS> CAIRN__DEVICE void join() {
        rise_to(cairn__greatest_of_row<THREADS>(greatest));
        sum = cairn__sum_of_row<THREADS>(sum);
    }
};

/* Calls use(x, pack) with U packs' elements of R, the first of which is `pack` and the next THREADS packs on. */
template <int THREADS, int U, class T, class Use>
CAIRN__DEVICE void cairn__walk_row(const T *x, const cairn__row &row, Use use) {
    constexpr int V = cairn__pack_of<T>;
    const bool aligned = cairn__aligned<V>(x);
    const size_t end = cairn__end_pack<V>(row);
    for (size_t pack = cairn__first_pack<THREADS, V>(row); pack < end; pack += U * THREADS) {
        T in[U * V];
        typename cairn__r_of<T>::type wide[U * V];
#pragma unroll
        for (int u = 0; u < U; u++) cairn__read_of_row<V>(in + u * V, x, pack + u * THREADS, row, aligned);
        cairn__widen<U * V>(in, wide);
        use(wide, pack);
    }
}

#endif
