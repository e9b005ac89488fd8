/* One tensor: element by element, sums, and what goes with a product. */
#include "device/cuda/math_kernel.cuh"

/* ---- element by element: dst[i] = round(f(x[i], y[i])) ----
 *
 * A function says how many operands it reads; begin() fetches the scalars that stand in device memory, once a thread.
 * */

template <class To, class T, class F> struct map_op {
    To *dst;
    const T *x, *y;
    F f;
    template <int V> struct in { T x[V], y[V]; };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const {
        if (F::operands > 0) cairn__read<V>(a->x, x + i);
        if (F::operands > 1) cairn__read<V>(a->y, y + i);
    }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &a) {
        float first[V] = {0}, second[V] = {0};
        To result[V];
        if (F::operands > 0) cairn__widen<V>(a.x, first);
        if (F::operands > 1) cairn__widen<V>(a.y, second);
#pragma unroll
        for (int k = 0; k < V; k++) first[k] = f(first[k], second[k]);
        cairn__narrow<V>(first, result);
        cairn__write<V>(dst + i, result);
    }
};

enum { MAP_PACKS = 4 }; /* a thread has under way */

template <class To, class T, class F> static CAIRN__KERNEL map_tensor(To *dst, const T *x, const T *y, size_t n, F f) {
    constexpr int V = cairn__pack_of<T>; /* To is no wider */
    map_op<To, T, F> op = {dst, x, y, f};
    op.f.begin();
    cairn__walk_tensor<V, MAP_PACKS>(cairn__aligned<V>(dst) && cairn__aligned<V>(x) && cairn__aligned<V>(y), n, op);
}

template <class T, class F, class To = T>
static int map(struct CUstream_st *stream, void *dst, const void *x, const void *y, size_t n, F f) {
    return cairn__launch(map_tensor<To, T, F>, cairn__tensor_blocks<cairn__pack_of<T>, MAP_PACKS>(n),
                         CAIRN__CUDA_THREADS, stream, (To *)dst, (const T *)x, (const T *)y, n, f);
}

struct fill_with {
    enum { operands = 0 };
    float value;
    CAIRN__DEVICE void begin() {}
    CAIRN__DEVICE float operator()(float, float) const { return value; }
};

int cairn__launch_fill(struct CUstream_st *stream, cairn_dtype t, void *dst, size_t n, float value) {
    return cairn__with_float(t, [&](auto e) { return map<decltype(e)>(stream, dst, NULL, NULL, n, fill_with{value}); });
}

struct add_both {
    enum { operands = 2 };
    CAIRN__DEVICE void begin() {}
    CAIRN__DEVICE float operator()(float a, float b) const { return a + b; }
};

int cairn__launch_add(struct CUstream_st *stream, cairn_dtype t, void *dst, const void *a, const void *b, size_t n) {
    return cairn__with_float(t, [&](auto e) { return map<decltype(e)>(stream, dst, a, b, n, add_both{}); });
}

struct times {
    enum { operands = 1 };
    float s;
    CAIRN__DEVICE void begin() {}
    CAIRN__DEVICE float operator()(float x, float) const { return x * s; }
};

int cairn__launch_mul_scalar(struct CUstream_st *stream, cairn_dtype t, void *dst, const void *x, size_t n, float s) {
    return cairn__with_float(t, [&](auto e) { return map<decltype(e)>(stream, dst, x, NULL, n, times{s}); });
}

struct relu_of {
    enum { operands = 1 };
    CAIRN__DEVICE void begin() {}
    CAIRN__DEVICE float operator()(float x, float) const { return cairn__relu(x); }
};

int cairn__launch_relu(struct CUstream_st *stream, cairn_dtype t, void *dst, const void *x, size_t n) {
    return cairn__with_float(t, [&](auto e) { return map<decltype(e)>(stream, dst, x, NULL, n, relu_of{}); });
}

struct relu_slope {
    enum { operands = 2 };
    CAIRN__DEVICE void begin() {}
    CAIRN__DEVICE float operator()(float dy, float x) const { return cairn__relu_backward(dy, x); }
};

int cairn__launch_relu_backward(struct CUstream_st *stream, cairn_dtype t, void *dx, const void *dy, const void *x,
                                size_t n) {
    return cairn__with_float(t, [&](auto e) { return map<decltype(e)>(stream, dx, dy, x, n, relu_slope{}); });
}

template <class T> struct share_of {
    enum { operands = 0 };
    const T *dy;
    float divisor, value;
    CAIRN__DEVICE void begin() { value = cairn__widen(*dy) / divisor; }
    CAIRN__DEVICE float operator()(float, float) const { return value; }
};

int cairn__launch_spread(struct CUstream_st *stream, cairn_dtype t, void *dx, size_t n, const void *dy, float divisor) {
    return cairn__with_float(t, [&](auto e) {
        typedef decltype(e) T;
        return map<T>(stream, dx, NULL, NULL, n, share_of<T>{(const T *)dy, divisor, 0});
    });
}

template <class T> struct mse_slope {
    enum { operands = 2 };
    const T *dy;
    float s;
    CAIRN__DEVICE void begin() { s = s * cairn__widen(*dy); }
    CAIRN__DEVICE float operator()(float x, float y) const { return cairn__mse_backward(s, x, y); }
};

int cairn__launch_mse_backward(struct CUstream_st *stream, cairn_dtype t, cairn_dtype to, void *dx, const void *x,
                               const void *y, size_t n, float s, const void *dy) {
    if (t != to)
        return cairn__with_half(to, [&](auto h) {
            return map<float, mse_slope<float>, decltype(h)>(stream, dx, x, y, n, {(const float *)dy, s});
        });
    return cairn__with_float(t, [&](auto e) {
        typedef decltype(e) T;
        return map<T>(stream, dx, x, y, n, mse_slope<T>{(const T *)dy, s});
    });
}

template <class H> struct round_to {
    enum { operands = 1 };
    CAIRN__DEVICE void begin() {}
    CAIRN__DEVICE float operator()(float x, float) const {
        H half;
        cairn__narrow<1>(&x, &half);
        return cairn__widen(half);
    }
};

int cairn__launch_round(struct CUstream_st *stream, cairn_dtype half, float *dst, const float *x, size_t n) {
    return cairn__with_half(half, [&](auto h) { return map<float>(stream, dst, x, NULL, n, round_to<decltype(h)>{}); });
}

/* ---- sum and mse ---- */

template <class T> struct sum_op {
    static constexpr int V = cairn__pack_of<T>;
    const T *x, *y; /* y is not read */
    float lane[V];
    struct in {
        T x[V];
    };
    struct wide {
        float x[V];
    };
    CAIRN__DEVICE bool aligned() const { return cairn__aligned<V>(x); }
    template <int N> CAIRN__DEVICE void read(size_t i, int k, in *a) const { cairn__read<N>(a->x + k, x + i); }
    CAIRN__DEVICE void widen(const in &a, wide *w) const { cairn__widen_for_sum<V>(a.x, w->x); }
    CAIRN__DEVICE void add(const wide &w, int k) { lane[k] += w.x[k]; }
};

template <class T> struct mse_op {
    static constexpr int V = cairn__pack_of<T>;
    const T *x, *y;
    float lane[V];
    struct in {
        T x[V], y[V];
    };
    struct wide {
        float x[V], y[V];
    };
    CAIRN__DEVICE bool aligned() const { return cairn__aligned<V>(x) && cairn__aligned<V>(y); }
    template <int N> CAIRN__DEVICE void read(size_t i, int k, in *a) const {
        cairn__read<N>(a->x + k, x + i);
        cairn__read<N>(a->y + k, y + i);
    }
    CAIRN__DEVICE void widen(const in &a, wide *w) const {
        cairn__widen_for_sum<V>(a.x, w->x);
        cairn__widen_for_sum<V>(a.y, w->y);
    }
    CAIRN__DEVICE void add(const wide &w, int k) { lane[k] += cairn__squared_difference(w.x[k], w.y[k]); }
};

enum { SUM_PACKS = 4, SUM_TILES = 4 }; /* packs of a tile; tiles whose f32 sums go to f64 */

/* Adds a thread's f32 sums to its f64 sum and clears them. */
template <int V> static CAIRN__DEVICE double close_sums(float (&lane)[V]) {
    const double sum = (double)cairn__sum_of(lane);
#pragma unroll
    for (int k = 0; k < V; k++) lane[k] = 0;
    return sum;
}

/* The last block adds up all partial sums. */
template <class Op, class T>
static CAIRN__KERNEL sum_tensor(cairn__partials *partials, T *dst, const T *x, const T *y, size_t n, float divisor) {
    const size_t tile = (size_t)CAIRN__CUDA_THREADS * Op::V * SUM_PACKS;
    Op op = {x, y, {0}};
    const bool aligned = op.aligned();
    double of_thread = 0;
    int tiles = 0;
    for (size_t from = blockIdx.x * tile; from < n; from += gridDim.x * tile) {
        cairn__walk_sum<Op::V, SUM_PACKS>(aligned, from, n - from < tile ? n : from + tile, op);
        if (++tiles < SUM_TILES) continue;
        of_thread += close_sums(op.lane);
        tiles = 0;
    }
    const double of_block = cairn__sum_of_block(of_thread + close_sums(op.lane));
    if (threadIdx.x == 0) partials->sums[blockIdx.x] = of_block;
    if (!cairn__last_of(&partials->arrived[0], gridDim.x)) return;
    const double sum = cairn__sum_of_left(partials->sums, 0, gridDim.x, CAIRN__CUDA_THREADS);
    if (threadIdx.x != 0) return;
    cairn__store_sum(dst, sum / (double)divisor);
}

template <class Op, class T>
static int sum_of_tensor(struct CUstream_st *stream, struct cairn__partials *partials, void *dst, const void *x,
                         const void *y, size_t n, float divisor) {
    const size_t blocks = cairn__tensor_blocks<Op::V, SUM_PACKS>(n), most = CAIRN__CUDA_SUM_BLOCKS;
    return cairn__launch(sum_tensor<Op, T>,
                         !blocks         ? 1
                         : blocks < most ? blocks
                                         : most,
                         CAIRN__CUDA_THREADS, stream, partials, (T *)dst, (const T *)x, (const T *)y, n, divisor);
}

int cairn__launch_sum(struct CUstream_st *stream, struct cairn__partials *partials, cairn_dtype t, void *dst,
                      const void *x, size_t n, float divisor) {
    return cairn__with_float(t, [&](auto e) {
        typedef decltype(e) T;
        return sum_of_tensor<sum_op<T>, T>(stream, partials, dst, x, NULL, n, divisor);
    });
}

int cairn__launch_mse(struct CUstream_st *stream, struct cairn__partials *partials, cairn_dtype t, void *dst,
                      const void *x, const void *y, size_t n) {
    return cairn__with_float(t, [&](auto e) {
        typedef decltype(e) T;
        return sum_of_tensor<mse_op<T>, T>(stream, partials, dst, x, y, n, (float)n);
    });
}

/* ---- sums of columns ----
 *
 * A block has a strip of 32 * V columns and a group of rows: 32 threads side by side, eight below one another. */

enum { ROWS_AT_ONCE = CAIRN__CUDA_THREADS / CAIRN__CUDA_WARP, ROWS_UNDER_WAY = 4, ROUNDS = 4 };

/* Adds a thread's f32 sums of V columns to those in f64 and clears them. */
template <int V> static CAIRN__DEVICE void close_rows(double (&all)[V], float (&sum)[V]) {
#pragma unroll
    for (int k = 0; k < V; k++) {
        all[k] += (double)sum[k];
        sum[k] = 0;
    }
}

/* Of one column, the groups in order. Many reads are under way at once, as in cairn__sum_of_left. */
static CAIRN__DEVICE double sum_of_groups(const volatile float *left, size_t groups, size_t cols) {
    enum { UNDER_WAY = 16 };
    double total = 0;
    for (size_t g = 0; g < groups; g += UNDER_WAY) {
        float sums[UNDER_WAY];
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++) sums[u] = g + u < groups ? left[(g + u) * cols] : 0;
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++) total += (double)sums[u];
    }
    return total;
}

template <class T, int V>
static CAIRN__KERNEL sum_columns(cairn__partials *partials, T *dst, const T *x, size_t rows, size_t cols, size_t strips,
                                 size_t rows_in_group) {
    __shared__ double sums[ROWS_AT_ONCE][CAIRN__CUDA_WARP * V];
    const size_t strip = blockIdx.x % strips, group = blockIdx.x / strips, groups = gridDim.x / strips;
    const size_t in_strip = threadIdx.x % CAIRN__CUDA_WARP * V, row = threadIdx.x / CAIRN__CUDA_WARP;
    const size_t column = strip * CAIRN__CUDA_WARP * V + in_strip;
    const size_t end = rows - group * rows_in_group < rows_in_group ? rows : (group + 1) * rows_in_group;
    double all[V] = {0};
    float sum[V] = {0};
    int rounds = 0;
    for (size_t r = group * rows_in_group + row; column < cols && r < end; r += ROWS_AT_ONCE * ROWS_UNDER_WAY) {
        T in[ROWS_UNDER_WAY][V];
#pragma unroll
        for (int u = 0; u < ROWS_UNDER_WAY; u++) {
            if (r + u * ROWS_AT_ONCE < end) cairn__read<V>(in[u], x + (r + u * ROWS_AT_ONCE) * cols + column);
        }
#pragma unroll
        for (int u = 0; u < ROWS_UNDER_WAY; u++) {
            if (r + u * ROWS_AT_ONCE >= end) continue;
            float wide[V];
            cairn__widen<V>(in[u], wide);
#pragma unroll
            for (int k = 0; k < V; k++) sum[k] += wide[k];
        }
        if (++rounds < ROUNDS) continue;
        close_rows(all, sum);
        rounds = 0;
    }
    close_rows(all, sum);
#pragma unroll
    for (int k = 0; k < V; k++) sums[row][in_strip + k] = all[k];
    __syncthreads();

    /* From here on a thread has a column. */
    const size_t mine = strip * CAIRN__CUDA_WARP * V + threadIdx.x;
    const bool has_column = threadIdx.x < CAIRN__CUDA_WARP * V && mine < cols;
    double total = 0;
    if (has_column) {
        double lane[ROWS_AT_ONCE];
#pragma unroll
        for (int r = 0; r < ROWS_AT_ONCE; r++) lane[r] = sums[r][threadIdx.x];
        total = cairn__sum_of(lane);
    }
    if (groups > 1) {
        volatile float *left = (volatile float *)partials->sums;
        if (has_column) left[group * cols + mine] = (float)total;
        if (!cairn__last_of(&partials->arrived[strip], (uint32_t)groups)) return;
        total = has_column ? sum_of_groups(left + mine, groups, cols) : 0;
    }
    if (has_column) cairn__store_sum(&dst[mine], total);
}

enum { ROWS_WORTH_A_GROUP = 64, GROUPS_AND_STRIPS = 1024, WIDE_STRIP = 128 };

/* As many groups as keep a large GPU busy and have room for their partial sums; rows and cols alone decide. */
static size_t rows_in_one_group(size_t rows, size_t cols) {
    const size_t strips = (cols + WIDE_STRIP - 1) / WIDE_STRIP, room = 2 * (size_t)CAIRN__CUDA_PARTIAL_SUMS / cols;
    size_t groups = rows / ROWS_WORTH_A_GROUP;
    if (groups > GROUPS_AND_STRIPS / strips) groups = GROUPS_AND_STRIPS / strips;
    if (groups > room) groups = room;
    return groups > 1 ? (rows + groups - 1) / groups : rows;
}

template <class T, int V>
static int launch_columns(struct CUstream_st *stream, struct cairn__partials *partials, void *dst, const void *x,
                          size_t rows, size_t cols) {
    const size_t in_group = rows_in_one_group(rows, cols), groups = rows ? (rows + in_group - 1) / in_group : 1;
    const size_t in_strip = (size_t)CAIRN__CUDA_WARP * V, strips = (cols + in_strip - 1) / in_strip;
    return cairn__launch(sum_columns<T, V>, strips * groups, CAIRN__CUDA_THREADS, stream, partials, (T *)dst,
                         (const T *)x, rows, cols, strips, in_group);
}

/* Packs where every row begins on one and there are columns for all threads; the sums are the same either way. */
int cairn__launch_col_sum(struct CUstream_st *stream, struct cairn__partials *partials, cairn_dtype t, void *dst,
                          const void *x, size_t rows, size_t cols) {
    return cairn__with_float(t, [&](auto e) {
        typedef decltype(e) T;
        constexpr int V = cairn__pack_of<T>;
        const bool packs = (size_t)x % CAIRN__CUDA_PACK_NBYTES == 0 && cols % V == 0;
        return packs && cols >= (size_t)CAIRN__CUDA_WARP * V
                   ? launch_columns<T, V>(stream, partials, dst, x, rows, cols)
                   : launch_columns<T, 1>(stream, partials, dst, x, rows, cols);
    });
}

/* ---- bias and relu of a product ---- */

template <class To, class From> struct bias_op {
    To *dst;
    const From *x;
    const To *bias;
    size_t cols;
    bool relu;
    template <int V> struct in {
        From x[V];
        To bias[V];
    };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const {
        const size_t column = (i | cols) >> 32 ? i % cols : (uint32_t)i % (uint32_t)cols;
        cairn__read<V>(a->x, x + i);
        if (bias) cairn__read<V>(a->bias, bias + column);
    }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &a) {
        float value[V], added[V];
        To y[V];
        cairn__widen<V>(a.x, value);
        if (bias) cairn__widen<V>(a.bias, added);
#pragma unroll
        for (int k = 0; k < V; k++) {
            if (bias) value[k] = value[k] + added[k];
            if (relu) value[k] = cairn__relu(value[k]);
        }
        cairn__narrow<V>(value, y);
        cairn__write<V>(dst + i, y);
    }
};

/* A pack lies in one row where the rows are whole packs. */
template <class To, class From>
static CAIRN__KERNEL add_bias(To *dst, const From *x, const To *bias, size_t n, size_t cols, bool relu) {
    constexpr int V = cairn__pack_of<To, From>;
    bias_op<To, From> op = {dst, x, bias, cols, relu};
    const bool aligned = cols % V == 0 && cairn__aligned<V>(dst) && cairn__aligned<V>(x) && cairn__aligned<V>(bias);
    cairn__walk_tensor<V, 2>(aligned, n, op);
}

template <class To, class From>
static int launch_bias(struct CUstream_st *stream, void *dst, const void *x, const void *bias, size_t rows, size_t cols,
                       bool relu) {
    const size_t n = rows * cols;
    return cairn__launch(add_bias<To, From>, cairn__tensor_blocks<cairn__pack_of<To, From>, 2>(n), CAIRN__CUDA_THREADS,
                         stream, (To *)dst, (const From *)x, (const To *)bias, n, cols, relu);
}

int cairn__launch_bias_add(struct CUstream_st *stream, cairn_dtype to, void *dst, cairn_dtype from, const void *x,
                           const void *bias, size_t rows, size_t cols, bool relu) {
    return cairn__with_float(to, [&](auto t) {
        typedef decltype(t) To;
        return from == CAIRN_F32 ? launch_bias<To, float>(stream, dst, x, bias, rows, cols, relu)
                                 : launch_bias<To, To>(stream, dst, x, bias, rows, cols, relu);
    });
}
