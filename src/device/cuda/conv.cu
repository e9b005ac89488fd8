/* Convolutions: columns of patches, and planes of results. */
#include "device/cuda/conv.h"

#include "device/cuda/math_kernel.cuh"

/* Positions are 32 bits wide where everything padded is below 2^30, as it nearly always is. */
static bool is_small(const struct cairn__columns *g) {
    const int64_t most = (int64_t)1 << 30;
    const int64_t rows = g->h + 2 * g->padding[0] + g->r * g->dilation[0];
    const int64_t cols = g->w + 2 * g->padding[1] + g->s * g->dilation[1];
    return rows < most && cols < most && g->p * g->q < most && g->stride[0] < most && g->stride[1] < most;
}

static size_t blocks_of(size_t n) {
    return n / CAIRN__CUDA_THREADS + (n % CAIRN__CUDA_THREADS != 0);
}

/* ---- columns ----
 *
 * A thread has a pack of pixels, whose places it works out once, and walks the taps of some channels. */

template <int V, class I> struct places {
    I y[V], x[V];  /* of the first tap; far outside where there is no pixel */
    int64_t at[V]; /* in src */
};

/* The pack that begins with pixel j of all images. */
template <int V, class I> CAIRN__DEVICE places<V, I> places_of(const cairn__columns &g, int64_t j) {
    places<V, I> a;
    int64_t image = j / (g.p * g.q);
    const int64_t pixel = j - image * (g.p * g.q);
    I p = (I)(pixel / g.q), q = (I)(pixel - p * g.q);
#pragma unroll
    for (int v = 0; v < V; v++) {
        a.y[v] = (I)(p * (I)g.stride[0] - (I)g.padding[0]);
        a.x[v] = (I)(q * (I)g.stride[1] - (I)g.padding[1]);
        a.at[v] = image * g.c * g.h * g.w + (int64_t)a.y[v] * g.w + a.x[v];
        if (image >= g.images) a.x[v] = -((I)1 << (sizeof(I) * 8 - 2));
        if (++q < (I)g.q) continue;
        q = 0;
        if (++p < (I)g.p) continue;
        p = 0;
        image++;
    }
    return a;
}

template <class I> CAIRN__DEVICE bool is_inside(I at, int64_t size) {
    return at >= 0 && at < (I)size;
}

enum { BLOCKS = 2 }; /* of a multiprocessor: not told so, ptxas spills to make them more */

template <class T, class I>
static __global__ void CAIRN__BOUNDS(BLOCKS)
    make_columns(T *columns, const T *src, cairn__columns g, size_t strips, int channels) {
    constexpr int V = cairn__pack_of<T>;
    const int64_t pixels = g.p * g.q, j = ((int64_t)(blockIdx.x % strips) * CAIRN__CUDA_THREADS + threadIdx.x) * V;
    if (j >= g.images * pixels) return;
    const int64_t first = (int64_t)(blockIdx.x / strips) * channels,
                  end = first + channels < g.c ? first + channels : g.c;
    const places<V, I> a = places_of<V, I>(g, j);
    T *to = columns + first * g.r * g.s * g.row_step + j / pixels * g.image_step + j % pixels;
    for (int64_t c = first; c < end; c++) {
        for (int64_t r = 0; r < g.r; r++) {
            const I down = (I)(r * g.dilation[0]);
            for (int64_t s = 0; s < g.s; s++, to += g.row_step) {
                const I right = (I)(s * g.dilation[1]);
                const T *from = src + (c * g.h + down) * g.w + right;
                T x[V];
#pragma unroll
                for (int v = 0; v < V; v++) {
                    const bool inside = is_inside<I>(a.y[v] + down, g.h) && is_inside<I>(a.x[v] + right, g.w);
                    x[v] = inside ? from[a.at[v]] : T();
                }
                cairn__write<V>(to, x);
            }
        }
    }
}

int cairn__launch_columns(struct CUstream_st *stream, cairn_dtype t, void *columns, const void *src,
                          const struct cairn__columns *shape) {
    return cairn__with_math(t, [&](auto e) {
        typedef decltype(e) T;
        constexpr int V = cairn__pack_of<T>;
        const int64_t taps = shape->r * shape->s, channels = taps < 8 ? 8 / taps : 1;
        const size_t strips = blocks_of((size_t)(shape->images * shape->p * shape->q + V - 1) / V);
        return cairn__launch(is_small(shape) ? make_columns<T, int> : make_columns<T, int64_t>,
                             strips * (size_t)((shape->c + channels - 1) / channels), CAIRN__CUDA_THREADS, stream,
                             (T *)columns, (const T *)src, *shape, strips, (int)channels);
    });
}

/* ---- and back ---- */

/* Which place along dst's axis, of `size`, has its tap over `at` in the padded src; -1 = none. `at` is below 2^32:
 * nn's sizes and paddings are below 2^31. */
CAIRN__DEVICE int64_t place_over(int64_t at, int64_t stride, int64_t size) {
    if (at < 0) return -1;
    const uint32_t place = stride == 1 ? (uint32_t)at : (uint32_t)at / (uint32_t)stride;
    return place < size && place * stride == at ? (int64_t)place : -1;
}

template <class T, class R, class I>
static CAIRN__KERNEL fold_columns(T *src, const R *columns, const T *bias, cairn__columns g, size_t n) {
    const size_t i = (size_t)blockIdx.x * CAIRN__CUDA_THREADS + threadIdx.x;
    if (i >= n) return;
    const I row = (I)i / (I)g.w, x = (I)i - row * (I)g.w, plane = row / (I)g.h, y = row - plane * (I)g.h;
    const I image = plane / (I)g.c, c = plane - image * (I)g.c;
    const R *from = columns + (size_t)c * g.r * g.s * g.row_step + (size_t)image * g.image_step;
    R sum = 0;
    for (int64_t r = 0; r < g.r; r++) {
        const int64_t p = place_over((int64_t)y + g.padding[0] - r * g.dilation[0], g.stride[0], g.p);
        if (p < 0) continue;
        for (int64_t s = 0; s < g.s; s++) {
            const int64_t q = place_over((int64_t)x + g.padding[1] - s * g.dilation[1], g.stride[1], g.q);
            if (q >= 0) sum += from[(r * g.s + s) * g.row_step + p * g.q + q];
        }
    }
    if (bias) sum += cairn__load(bias + c);
    cairn__store(src + i, sum);
}

int cairn__launch_fold_columns(struct CUstream_st *stream, cairn_dtype t, void *src, const void *columns,
                               const void *bias, const struct cairn__columns *shape) {
    const size_t n = (size_t)(shape->images * shape->c * shape->h * shape->w);
    return cairn__with_math(t, [&](auto e) {
        typedef decltype(e) T;
        typedef typename cairn__r_of<T>::type R;
        return cairn__launch(n >> 32 ? fold_columns<T, R, uint64_t> : fold_columns<T, R, uint32_t>, blocks_of(n),
                             CAIRN__CUDA_THREADS, stream, (T *)src, (const R *)columns, (const T *)bias, *shape, n);
    });
}

/* ---- planes ---- */

template <class T, class F, class I>
static CAIRN__KERNEL write_planes(T *y, const F *x, const T *bias, cairn__planes g, size_t n) {
    typedef typename cairn__r_of<T>::type R;
    const size_t i = (size_t)blockIdx.x * CAIRN__CUDA_THREADS + threadIdx.x;
    if (i >= n) return;
    const I plane = (I)((I)i / (I)g.pixels), pixel = (I)i - plane * (I)g.pixels;
    const I image = plane / (I)g.channels, channel = plane - image * (I)g.channels;
    R value = 0;
    if (x) value = cairn__load(x + (size_t)channel * g.row_step + (size_t)image * g.image_step + pixel);
    if (bias) value += cairn__load(bias + channel);
    cairn__store(y + i, value);
}

int cairn__launch_planes(struct CUstream_st *stream, cairn_dtype t, void *y, cairn_dtype from, const void *x,
                         const void *bias, const struct cairn__planes *shape) {
    const size_t n = (size_t)(shape->images * shape->channels * shape->pixels);
    return cairn__with_math(t, [&](auto e) {
        typedef decltype(e) T;
        typedef typename cairn__r_of<T>::type R;
        const bool small = n >> 32 == 0;
        if (from == t)
            return cairn__launch(small ? write_planes<T, T, uint32_t> : write_planes<T, T, uint64_t>, blocks_of(n),
                                 CAIRN__CUDA_THREADS, stream, (T *)y, (const T *)x, (const T *)bias, *shape, n);
        return cairn__launch(small ? write_planes<T, R, uint32_t> : write_planes<T, R, uint64_t>, blocks_of(n),
                             CAIRN__CUDA_THREADS, stream, (T *)y, (const R *)x, (const T *)bias, *shape, n);
    });
}

/* ---- sums ---- */

template <class T, class R> static CAIRN__KERNEL sum_slices(T *dst, const R *x, size_t slices, size_t n) {
    const size_t i = (size_t)blockIdx.x * CAIRN__CUDA_THREADS + threadIdx.x;
    double sum = 0;
    if (i >= n) return;
#pragma unroll 4
    for (size_t s = 0; s < slices; s++) sum += (double)x[s * n + i];
    cairn__store_sum(dst + i, sum);
}

int cairn__launch_sum_slices(struct CUstream_st *stream, cairn_dtype t, void *dst, const void *x, size_t slices,
                             size_t n) {
    return cairn__with_math(t, [&](auto e) {
        typedef decltype(e) T;
        typedef typename cairn__r_of<T>::type R;
        return cairn__launch(sum_slices<T, R>, blocks_of(n), CAIRN__CUDA_THREADS, stream, (T *)dst, (const R *)x,
                             slices, n);
    });
}

/* Lane l of a warp adds pixels l, l + 32, ... */
template <class T> static CAIRN__KERNEL sum_planes(double *sums, const T *x, size_t planes, int64_t pixels) {
    const size_t plane = (size_t)blockIdx.x * CAIRN__CUDA_WARPS + threadIdx.x / CAIRN__CUDA_WARP;
    const int lane = threadIdx.x % CAIRN__CUDA_WARP;
    if (plane >= planes) return; /* a whole warp */
    const T *from = x + plane * (size_t)pixels;
    double sum = 0;
#pragma unroll 4
    for (int64_t i = lane; i < pixels; i += CAIRN__CUDA_WARP) sum += (double)cairn__load(from + i);
    sum = cairn__sum_of_warp(sum);
    if (lane == 0) sums[plane] = sum;
}

int cairn__launch_channel_sums(struct CUstream_st *stream, cairn_dtype t, void *dbias, const void *dy, double *planes,
                               int64_t images, int64_t channels, int64_t pixels) {
    return cairn__with_math(t, [&](auto e) {
        typedef decltype(e) T;
        const size_t n = (size_t)(images * channels), blocks = (n + CAIRN__CUDA_WARPS - 1) / CAIRN__CUDA_WARPS;
        const int error = n == 0 ? 0
                                 : cairn__launch(sum_planes<T>, blocks, CAIRN__CUDA_THREADS, stream, planes,
                                                 (const T *)dy, n, pixels);
        if (error) return error;
        return (int)cairn__launch(sum_slices<T, double>, blocks_of((size_t)channels), CAIRN__CUDA_THREADS, stream,
                                  (T *)dbias, (const double *)planes, (size_t)images, (size_t)channels);
    });
}
