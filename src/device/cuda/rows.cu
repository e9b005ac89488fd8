/* Passes over rows: softmax, dropout, rows by index. */
#include "device/cuda/row_kernel.cuh"
#include "device/cuda/rows.h"

/* ---- softmax ---- */

enum { LONG_PACKS = 4 }; /* that a thread of a long row has under way */

/* What of a row a thread makes in registers. */
template <class R> struct row_result {
    R greatest, less, share; /* y = x - greatest - less, or e^(x - greatest) * share */
    CAIRN__DEVICE void take_sum(double sum, bool log) {
        less = log ? (R)::log(sum) : 0;
        share = log ? 0 : (R)(1 / sum);
    }
};

/* A row stays in registers: HELD packs a thread, of which e^(x - greatest) takes the place of x. */
template <class T, int THREADS, int HELD>
static CAIRN__KERNEL softmax_held(T *y, const T *x, size_t rows, size_t n, bool log) {
    typedef typename cairn__r_of<T>::type R;
    constexpr int V = cairn__pack_of<T>;
    const bool aligned = cairn__aligned<V>(x) && cairn__aligned<V>(y);
    if (cairn__own_row<THREADS>() >= rows) return;
    const cairn__row row = cairn__row_at(cairn__own_row<THREADS>(), n);
    const size_t first = cairn__first_pack<THREADS, V>(row), end = cairn__end_pack<V>(row);
    row_result<R> result = {-(R)INFINITY, 0, 0};
    R held[HELD][V];
    T in[HELD][V];
#pragma unroll
    for (int h = 0; h < HELD; h++) cairn__read_of_row<V>(in[h], x, first + h * THREADS, row, aligned);
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        cairn__widen<V>(in[h], held[h]);
#pragma unroll
        for (int k = 0; k < V; k++) result.greatest = cairn__greater_of(result.greatest, held[h][k]);
    }
    result.greatest = cairn__greatest_of_row<THREADS>(result.greatest);
    double sum = 0;
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        if (first + h * THREADS >= end) break;
        R e[V];
#pragma unroll
        for (int k = 0; k < V; k++) {
            const R over = held[h][k] - result.greatest;
            e[k] = cairn__exp(over);
            held[h][k] = log ? over : e[k];
        }
        sum += (double)cairn__sum_in_tree<V>(e);
    }
    result.take_sum(cairn__sum_of_row<THREADS>(sum), log);
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        if (first + h * THREADS >= end) break;
#pragma unroll
        for (int k = 0; k < V; k++) held[h][k] = log ? held[h][k] - result.less : held[h][k] * result.share;
        cairn__narrow<V>(held[h], in[h]);
        cairn__write_of_row<V>(y, in[h], first + h * THREADS, row, aligned);
    }
}

/* A block has a row, and reads it twice. */
template <class T> static CAIRN__KERNEL softmax_long(T *y, const T *x, size_t n, bool log) {
    typedef typename cairn__r_of<T>::type R;
    constexpr int V = cairn__pack_of<T>;
    const bool aligned = cairn__aligned<V>(y);
    const cairn__row row = cairn__row_at(blockIdx.x, n);
    cairn__exponents<R> all;
    cairn__walk_row<CAIRN__CUDA_THREADS, LONG_PACKS>(x, row, [&](const auto &wide, size_t) { all.add(wide); });
    all.template join<CAIRN__CUDA_THREADS>();
    row_result<R> result = {all.greatest, 0, 0};
    result.take_sum(all.sum, log);
    cairn__walk_row<CAIRN__CUDA_THREADS, 1>(x, row, [&](auto &wide, size_t pack) {
        T out[V];
#pragma unroll
        for (int k = 0; k < V; k++) {
            const R over = wide[k] - result.greatest;
            wide[k] = log ? over - result.less : cairn__exp(over) * result.share;
        }
        cairn__narrow<V>(wide, out);
        cairn__write_of_row<V>(y, out, pack, row, aligned);
    });
}

/* dx = y * (dy - sum(dy y)); of the logarithm dx = dy - e^y * sum(dy). */
template <class R> CAIRN__DEVICE R slope_of(R dy, R y, R sum, bool log) {
    return log ? dy - sum * cairn__exp(y) : y * (dy - sum);
}

/* The terms of a pack's sum; what is not the row's adds nothing. */
template <int V, class R>
CAIRN__DEVICE R terms_of_pack(const R *dy, const R *y, size_t pack, const cairn__row &row, bool log) {
    R term[V];
#pragma unroll
    for (int k = 0; k < V; k++) {
        const size_t i = pack * V + k;
        term[k] = i < row.from || i >= row.to ? 0 : log ? dy[k] : dy[k] * y[k];
    }
    return cairn__sum_in_tree<V>(term);
}

template <class T, int THREADS, int HELD>
static CAIRN__KERNEL softmax_backward_held(T *dx, const T *dy, const T *y, size_t rows, size_t n, bool log) {
    typedef typename cairn__r_of<T>::type R;
    constexpr int V = cairn__pack_of<T>;
    const bool aligned = cairn__aligned<V>(dx) && cairn__aligned<V>(dy) && cairn__aligned<V>(y);
    if (cairn__own_row<THREADS>() >= rows) return;
    const cairn__row row = cairn__row_at(cairn__own_row<THREADS>(), n);
    const size_t first = cairn__first_pack<THREADS, V>(row), end = cairn__end_pack<V>(row);
    T in_dy[HELD][V], in_y[HELD][V];
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        cairn__read_of_row<V>(in_dy[h], dy, first + h * THREADS, row, aligned);
        cairn__read_of_row<V>(in_y[h], y, first + h * THREADS, row, aligned);
    }
    double terms = 0;
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        R g[V], p[V];
        cairn__widen<V>(in_dy[h], g);
        cairn__widen<V>(in_y[h], p);
        terms += (double)terms_of_pack<V>(g, p, first + h * THREADS, row, log);
    }
    const R sum = (R)cairn__sum_of_row<THREADS>(terms);
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        if (first + h * THREADS >= end) break;
        R g[V], p[V];
        cairn__widen<V>(in_dy[h], g);
        cairn__widen<V>(in_y[h], p);
#pragma unroll
        for (int k = 0; k < V; k++) g[k] = slope_of(g[k], p[k], sum, log);
        cairn__narrow<V>(g, in_dy[h]);
        cairn__write_of_row<V>(dx, in_dy[h], first + h * THREADS, row, aligned);
    }
}

template <class T> static CAIRN__KERNEL softmax_backward_long(T *dx, const T *dy, const T *y, size_t n, bool log) {
    typedef typename cairn__r_of<T>::type R;
    constexpr int V = cairn__pack_of<T>, U = LONG_PACKS / 2;
    const bool aligned = cairn__aligned<V>(dx) && cairn__aligned<V>(y);
    const cairn__row row = cairn__row_at(blockIdx.x, n);
    double terms = 0;
    cairn__walk_row<CAIRN__CUDA_THREADS, U>(dy, row, [&](const auto &g, size_t pack) {
        T in[U * V] = {}; /* not read where it is not needed */
        R p[U * V];
#pragma unroll
        for (int u = 0; u < U && !log; u++)
            cairn__read_of_row<V>(in + u * V, y, pack + u * CAIRN__CUDA_THREADS, row, aligned);
        cairn__widen<U * V>(in, p);
#pragma unroll
        for (int u = 0; u < U; u++)
            terms += (double)terms_of_pack<V>(g + u * V, p + u * V, pack + u * CAIRN__CUDA_THREADS, row, log);
    });
    const R sum = (R)cairn__sum_of_row<CAIRN__CUDA_THREADS>(terms);
    cairn__walk_row<CAIRN__CUDA_THREADS, 1>(dy, row, [&](auto &g, size_t pack) {
        T in[V];
        R p[V];
        cairn__read_of_row<V>(in, y, pack, row, aligned);
        cairn__widen<V>(in, p);
#pragma unroll
        for (int k = 0; k < V; k++) g[k] = slope_of(g[k], p[k], sum, log);
        cairn__narrow<V>(g, in);
        cairn__write_of_row<V>(dx, in, pack, row, aligned);
    });
}

/* What works on rows of n elements of T: calls held(shape) or is_long(). A thread holds 128 bytes of all operands in R.
 * f64 is always read twice: the functions that it calls leave too few registers to hold a row in. */
template <int THREADS_, int HELD_> struct shape {
    enum { THREADS = THREADS_, HELD = HELD_ };
};

template <class T, int OPERANDS, class Held, class Long> static int with_shape(size_t n, Held held, Long is_long) {
    constexpr int V = cairn__pack_of<T>;
    if constexpr (V >= 4) {
        constexpr int MOST = 32 / V / OPERANDS, WARP = CAIRN__CUDA_WARP, BLOCK = CAIRN__CUDA_THREADS;
        const size_t packs = cairn__packs_of_row<V>(n);
        if (packs <= WARP) return held(shape<WARP, 1>());
        if (packs <= WARP * MOST / 2) return held(shape<WARP, MOST / 2>());
        if (packs <= WARP * MOST) return held(shape<WARP, MOST>());
        if (packs <= BLOCK * MOST / 2) return held(shape<BLOCK, MOST / 2>());
        if (packs <= BLOCK * MOST) return held(shape<BLOCK, MOST>());
    }
    return is_long();
}

int cairn__launch_softmax(struct CUstream_st *stream, cairn_dtype t, void *y, const void *x, size_t rows, size_t n,
                          bool log) {
    return cairn__with_math(t, [&](auto e) {
        typedef decltype(e) T;
        return with_shape<T, 1>(
            n,
            [&](auto s) {
                typedef decltype(s) S;
                return (int)cairn__launch(softmax_held<T, S::THREADS, S::HELD>, cairn__blocks_of_rows<S::THREADS>(rows),
                                          CAIRN__CUDA_THREADS, stream, (T *)y, (const T *)x, rows, n, log);
            },
            [&] {
                return (int)cairn__launch(softmax_long<T>, rows, CAIRN__CUDA_THREADS, stream, (T *)y, (const T *)x, n,
                                          log);
            });
    });
}

int cairn__launch_softmax_backward(struct CUstream_st *stream, cairn_dtype t, void *dx, const void *dy, const void *y,
                                   size_t rows, size_t n, bool log) {
    return cairn__with_math(t, [&](auto e) {
        typedef decltype(e) T;
        return with_shape<T, 2>(
            n,
            [&](auto s) {
                typedef decltype(s) S;
                return (int)cairn__launch(softmax_backward_held<T, S::THREADS, S::HELD>,
                                          cairn__blocks_of_rows<S::THREADS>(rows), CAIRN__CUDA_THREADS, stream, (T *)dx,
                                          (const T *)dy, (const T *)y, rows, n, log);
            },
            [&] {
                return (int)cairn__launch(softmax_backward_long<T>, rows, CAIRN__CUDA_THREADS, stream, (T *)dx,
                                          (const T *)dy, (const T *)y, n, log);
            });
    });
}

/* ---- dropout ---- */

enum { WORDS = 4, DROP_PACKS = 2 }; /* of a block of Philox; of a thread */

/* At a place that the compiler does not know, without a detour through memory. */
static CAIRN__DEVICE uint32_t word_of(const cairn__philox_block &block, size_t i) {
    const uint32_t low = i % 2 ? block.word[1] : block.word[0], high = i % 2 ? block.word[3] : block.word[2];
    return i % WORDS < 2 ? low : high;
}

template <class T> struct drop_op {
    typedef typename cairn__r_of<T>::type R;
    T *dst;
    const T *x;
    cairn__random_stream random; /* without a base where it is used */
    uint32_t least;
    R scale;
    template <int V> struct in { T x[V]; };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const { cairn__read<V>(a->x, x + i); }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &a) const {
        constexpr int AT_ONCE = V < WORDS ? V : WORDS;
        R wide[V];
        T y[V];
        cairn__widen<V>(a.x, wide);
#pragma unroll
        for (int k = 0; k < V; k += AT_ONCE) {
            const cairn__philox_block block = cairn__philox(random.seed, (i + k) / WORDS, random.number);
#pragma unroll
            for (int w = 0; w < AT_ONCE; w++) {
                const uint32_t word = AT_ONCE == WORDS ? block.word[w] : word_of(block, i + k + w);
                wide[k + w] = word >> 8 >= least ? wide[k + w] * scale : 0;
            }
        }
        cairn__narrow<V>(wide, y);
        cairn__write<V>(dst + i, y);
    }
};

template <class T> static CAIRN__KERNEL drop(const drop_op<T> given, size_t n) {
    constexpr int V = cairn__pack_of<T>;
    drop_op<T> op = given;
    op.random = cairn__drawn_now(given.random);
    cairn__walk_tensor<V, DROP_PACKS>(cairn__aligned<V>(op.dst) && cairn__aligned<V>(op.x), n, op);
}

int cairn__launch_dropout(struct CUstream_st *stream, cairn_dtype t, void *dst, const void *x, size_t n, uint32_t least,
                          double scale, const struct cairn__random_stream *random) {
    return cairn__with_math(t, [&](auto e) {
        typedef decltype(e) T;
        const drop_op<T> op = {(T *)dst, (const T *)x, *random, least, (typename cairn__r_of<T>::type)scale};
        return cairn__launch(drop<T>, cairn__tensor_blocks<cairn__pack_of<T>, DROP_PACKS>(n), CAIRN__CUDA_THREADS,
                             stream, op, n);
    });
}

/* ---- rows by index ---- */

enum { WORDS_UNDER_WAY = 4 };

static CAIRN__DEVICE int64_t index_at(const void *index, bool wide, size_t i) {
    return wide ? ((const long long *)index)[i] : ((const int *)index)[i];
}

/* W: words that rows consist of. 2^shift threads have a row, at most the block. */
template <class W>
static CAIRN__KERNEL gather(W *y, const W *table, const void *index, bool wide, size_t count, size_t table_rows,
                            size_t words, int shift, uint32_t *bad) {
    const size_t i = (blockIdx.x * (size_t)CAIRN__CUDA_THREADS + threadIdx.x) >> shift, step = (size_t)1 << shift;
    if (i >= count) return;
    const int64_t row = index_at(index, wide, i);
    const bool is_row = row >= 0 && (uint64_t)row < table_rows;
    const W *from = table + (is_row ? (size_t)row : 0) * words;
    for (size_t word = threadIdx.x & (step - 1); word < words; word += WORDS_UNDER_WAY * step) {
        W value[WORDS_UNDER_WAY] = {};
#pragma unroll
        for (int u = 0; u < WORDS_UNDER_WAY; u++) {
            if (is_row && word + u * step < words) value[u] = from[word + u * step];
        }
#pragma unroll
        for (int u = 0; u < WORDS_UNDER_WAY; u++) {
            if (word + u * step < words) y[i * words + word + u * step] = value[u];
        }
    }
    if (!is_row && bad && (threadIdx.x & (step - 1)) == 0) *bad = 1;
}

template <class W>
static int launch_gather(struct CUstream_st *stream, void *y, const void *table, const void *index, bool wide,
                         size_t count, size_t table_rows, size_t nbytes, uint32_t *bad) {
    const size_t words = nbytes / sizeof(W);
    int shift = 0;
    while (((size_t)WORDS_UNDER_WAY << shift) < words && 1 << shift < CAIRN__CUDA_THREADS) shift++;
    return cairn__launch(gather<W>, cairn__tensor_blocks<1, 1>(count << shift), CAIRN__CUDA_THREADS, stream, (W *)y,
                         (const W *)table, index, wide, count, table_rows, words, shift, bad);
}

int cairn__launch_gather_rows(struct CUstream_st *stream, void *y, const void *table, const void *index, bool wide,
                              size_t count, size_t table_rows, size_t nbytes, uint32_t *bad) {
    const size_t common = (size_t)y | (size_t)table | nbytes;
    const auto launch = common % 16 == 0  ? launch_gather<uint4>
                        : common % 8 == 0 ? launch_gather<uint2>
                        : common % 4 == 0 ? launch_gather<uint32_t>
                                          : launch_gather<uint16_t>;
    return launch(stream, y, table, index, wide, count, table_rows, nbytes, bad);
}

/* ---- a stable sort of keys, eight bits a pass ---- */

static CAIRN__KERNEL make_keys(uint32_t *keys, uint32_t *order, const void *index, bool wide, size_t count,
                               size_t table_rows, int64_t skip) {
    const size_t i = blockIdx.x * (size_t)CAIRN__CUDA_THREADS + threadIdx.x;
    if (i >= count) return;
    const int64_t row = index_at(index, wide, i);
    keys[i] = row >= 0 && (uint64_t)row < table_rows && row != skip ? (uint32_t)row : (uint32_t)table_rows;
    order[i] = (uint32_t)i;
}

int cairn__launch_keys(struct CUstream_st *stream, uint32_t *keys, uint32_t *order, const void *index, bool wide,
                       size_t count, size_t table_rows, int64_t skip) {
    return cairn__launch(make_keys, cairn__tensor_blocks<1, 1>(count), CAIRN__CUDA_THREADS, stream, keys, order, index,
                         wide, count, table_rows, skip);
}

static_assert((int)CAIRN__SORT_DIGITS == (int)CAIRN__CUDA_THREADS, "a digit is a thread's");

/* counts[digit * tiles + tile]: how many of the tile's keys have the digit. */
static CAIRN__KERNEL count_digits(uint32_t *counts, const uint32_t *keys, size_t count, size_t tile, int shift) {
    __shared__ uint32_t of_digit[CAIRN__SORT_DIGITS];
    of_digit[threadIdx.x] = 0;
    __syncthreads();
    for (size_t k = threadIdx.x; k < tile; k += CAIRN__CUDA_THREADS) {
        const size_t i = blockIdx.x * tile + k;
        if (i < count) atomicAdd(&of_digit[keys[i] >> shift & (CAIRN__SORT_DIGITS - 1)], 1u);
    }
    __syncthreads();
    counts[threadIdx.x * (size_t)gridDim.x + blockIdx.x] = of_digit[threadIdx.x];
}

/* Each count becomes the sum of those before it. One block: thread t has an equal part of all. */
static CAIRN__KERNEL sum_counts(uint32_t *counts, size_t n) {
    __shared__ uint32_t parts[CAIRN__CUDA_THREADS];
    const size_t part = (n + CAIRN__CUDA_THREADS - 1) / CAIRN__CUDA_THREADS, from = threadIdx.x * part;
    const size_t to = from + part < n ? from + part : n;
    uint32_t sum = 0, before = 0;
    for (size_t i = from; i < to; i++) sum += counts[i];
    parts[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned t = 0; t < threadIdx.x; t++) before += parts[t];
    for (size_t i = from; i < to; i++) {
        const uint32_t here = counts[i];
        counts[i] = before;
        before += here;
    }
}

/* A key goes behind those with its digit in earlier tiles, in earlier rounds of its tile, and of earlier threads. */
static CAIRN__KERNEL move_keys(uint32_t *to_keys, uint32_t *to_order, const uint32_t *keys, const uint32_t *order,
                               size_t count, size_t tile, const uint32_t *counts, int shift) {
    __shared__ uint32_t next[CAIRN__SORT_DIGITS], digits[CAIRN__CUDA_THREADS];
    __shared__ uint32_t of_warp[CAIRN__CUDA_WARPS][CAIRN__SORT_DIGITS];
    const unsigned warp = threadIdx.x / CAIRN__CUDA_WARP;
    next[threadIdx.x] = counts[threadIdx.x * (size_t)gridDim.x + blockIdx.x];
    for (size_t k = 0; k < tile; k += CAIRN__CUDA_THREADS) {
        const size_t i = blockIdx.x * tile + k + threadIdx.x;
        const bool is_key = i < count;
        const uint32_t key = is_key ? keys[i] : 0, digit = key >> shift & (CAIRN__SORT_DIGITS - 1);
#pragma unroll
        for (int w = 0; w < CAIRN__CUDA_WARPS; w++) of_warp[w][threadIdx.x] = 0;
        digits[threadIdx.x] = is_key ? digit : CAIRN__SORT_DIGITS;
        __syncthreads();
        if (is_key) atomicAdd(&of_warp[warp][digit], 1u);
        __syncthreads();
        if (is_key) {
            uint32_t at = next[digit];
            for (unsigned w = 0; w < warp; w++) at += of_warp[w][digit];
            for (unsigned t = warp * CAIRN__CUDA_WARP; t < threadIdx.x; t++) at += digits[t] == digit;
            to_keys[at] = key;
            to_order[at] = order[i];
        }
        __syncthreads();
#pragma unroll
        for (int w = 0; w < CAIRN__CUDA_WARPS; w++) next[threadIdx.x] += of_warp[w][threadIdx.x];
        __syncthreads();
    }
}

int cairn__launch_sort_pass(struct CUstream_st *stream, uint32_t *to_keys, uint32_t *to_order, const uint32_t *keys,
                            const uint32_t *order, size_t count, size_t tile, uint32_t *counts, int shift) {
    const size_t tiles = (count + tile - 1) / tile;
    cudaError_t error =
        cairn__launch(count_digits, tiles, CAIRN__CUDA_THREADS, stream, counts, keys, count, tile, shift);
    if (error == cudaSuccess)
        error = cairn__launch(sum_counts, 1, CAIRN__CUDA_THREADS, stream, counts, CAIRN__SORT_DIGITS * tiles);
    if (error == cudaSuccess)
        error = cairn__launch(move_keys, tiles, CAIRN__CUDA_THREADS, stream, to_keys, to_order, keys, order, count,
                              tile, counts, shift);
    return error;
}

/* ---- sums of sorted uses ----
 *
 * A run is the uses of one table row. One that lies within a segment is finished there; others leave the sum of their
 * part in each segment: at place 0 the part of the run that the segment begins in the middle of, at place 1 of the one
 * that goes on behind it (place 0 where that is the same). */

enum { USES_UNDER_WAY = 4 };
static_assert((int)CAIRN__SCATTER_SEGMENT % (int)USES_UNDER_WAY == 0, "a segment is read in whole steps");

/* A thread has V columns of a segment. */
template <class T, int V>
static CAIRN__KERNEL add_segments(T *dtable, const T *dy, const uint32_t *keys, const uint32_t *order, size_t count,
                                  size_t table_rows, size_t n, double *left) {
    typedef typename cairn__r_of<T>::type R;
    const size_t at = blockIdx.x * (size_t)CAIRN__CUDA_THREADS + threadIdx.x, strips = n / V, segment = at / strips;
    const size_t column = at % strips * V, from = segment * CAIRN__SCATTER_SEGMENT, to = from + CAIRN__SCATTER_SEGMENT;
    if (from >= count) return;
    bool begun_before = from > 0 && keys[from - 1] == keys[from];
    double sum[V] = {0};
    for (size_t i = from; i < to; i += USES_UNDER_WAY) {
        T in[USES_UNDER_WAY][V];
        uint32_t row[USES_UNDER_WAY + 1];
#pragma unroll
        for (int u = 0; u <= USES_UNDER_WAY; u++) row[u] = i + u < count ? keys[i + u] : (uint32_t)table_rows;
#pragma unroll
        for (int u = 0; u < USES_UNDER_WAY; u++) {
            if (row[u] < table_rows) cairn__read<V>(in[u], dy + (size_t)order[i + u] * n + column);
        }
#pragma unroll
        for (int u = 0; u < USES_UNDER_WAY; u++) {
            if (row[u] >= table_rows) return; /* as all that follow */
            R wide[V];
            cairn__widen<V>(in[u], wide);
#pragma unroll
            for (int k = 0; k < V; k++) sum[k] += (double)wide[k];
            const bool goes_on = row[u + 1] == row[u];
            if (goes_on && i + u + 1 < to) continue;
            if (goes_on || begun_before) {
#pragma unroll
                for (int k = 0; k < V; k++) left[(2 * segment + !begun_before) * n + column + k] = sum[k];
            } else {
#pragma unroll
                for (int k = 0; k < V; k++) wide[k] = (R)sum[k];
                cairn__narrow<V>(wide, in[u]);
                cairn__write<V>(dtable + (size_t)row[u] * n + column, in[u]);
            }
#pragma unroll
            for (int k = 0; k < V; k++) sum[k] = 0;
            begun_before = false;
        }
    }
}

/* The segment behind the last that has uses of `row`, which begins with one; all between do too. */
static CAIRN__DEVICE size_t end_of_run(const uint32_t *keys, size_t count, uint32_t row, size_t segment) {
    size_t low = segment + 1, high = (count + CAIRN__SCATTER_SEGMENT - 1) / CAIRN__SCATTER_SEGMENT;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (keys[middle * CAIRN__SCATTER_SEGMENT] == row) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The runs that begin in a segment and go on behind it. A block has a segment and 32 columns, and each of its warps
 * every eighth of the run's other segments. */
template <class T>
static CAIRN__KERNEL add_left(T *dtable, const uint32_t *keys, size_t count, size_t table_rows, size_t n,
                              const double *left) {
    __shared__ double sums[CAIRN__CUDA_WARPS][CAIRN__CUDA_WARP];
    const size_t strips = (n + CAIRN__CUDA_WARP - 1) / CAIRN__CUDA_WARP, segment = blockIdx.x / strips;
    const unsigned lane = threadIdx.x % CAIRN__CUDA_WARP, warp = threadIdx.x / CAIRN__CUDA_WARP;
    const size_t column = blockIdx.x % strips * CAIRN__CUDA_WARP + lane;
    const size_t from = segment * CAIRN__SCATTER_SEGMENT, last = from + CAIRN__SCATTER_SEGMENT - 1;
    if (last + 1 >= count) return;
    const uint32_t row = keys[last];
    if (row >= table_rows || keys[last + 1] != row || (from > 0 && keys[from - 1] == row)) return;
    const size_t end = end_of_run(keys, count, row, segment);
    double sum = 0;
    if (column < n) {
#pragma unroll 4
        for (size_t s = segment + 1 + warp; s < end; s += CAIRN__CUDA_WARPS) sum += left[2 * s * n + column];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= n) return;
    sum = left[(2 * segment + 1) * n + column];
#pragma unroll
    for (int w = 0; w < CAIRN__CUDA_WARPS; w++) sum += sums[w][lane];
    cairn__store(dtable + (size_t)row * n + column, (typename cairn__r_of<T>::type)sum);
}

template <class T, int V>
static cudaError_t launch_segments(struct CUstream_st *stream, void *dtable, const void *dy, const uint32_t *keys,
                                   const uint32_t *order, size_t count, size_t table_rows, size_t n, double *left) {
    const size_t segments = (count + CAIRN__SCATTER_SEGMENT - 1) / CAIRN__SCATTER_SEGMENT;
    return cairn__launch(add_segments<T, V>, cairn__tensor_blocks<1, 1>(segments * (n / V)), CAIRN__CUDA_THREADS,
                         stream, (T *)dtable, (const T *)dy, keys, order, count, table_rows, n, left);
}

int cairn__launch_add_sorted(struct CUstream_st *stream, cairn_dtype t, void *dtable, const void *dy,
                             const uint32_t *keys, const uint32_t *order, size_t count, size_t table_rows, size_t n,
                             double *left) {
    const size_t segments = (count + CAIRN__SCATTER_SEGMENT - 1) / CAIRN__SCATTER_SEGMENT;
    const size_t strips = (n + CAIRN__CUDA_WARP - 1) / CAIRN__CUDA_WARP;
    return cairn__with_math(t, [&](auto e) {
        typedef decltype(e) T;
        constexpr int V = cairn__pack_of<T>;
        const bool packs = ((size_t)dtable | (size_t)dy) % CAIRN__CUDA_PACK_NBYTES == 0 && n % V == 0;
        const cudaError_t error =
            (packs ? launch_segments<T, V> : launch_segments<T, 1>)(stream, dtable, dy, keys, order, count, table_rows,
                                                                    n, left);
        if (error != cudaSuccess || segments == 1) return (int)error;
        return (int)cairn__launch(add_left<T>, segments * strips, CAIRN__CUDA_THREADS, stream, (T *)dtable, keys, count,
                                  table_rows, n, (const double *)left);
    });
}
