/* Maps: kernels/map_functions.h, compiled for the GPU. A formula that training is full of has kernels of its own, for
 * operands of one type that can be read in packs; all else goes through one kernel for each R, which chooses the
 * formula as it runs. A formula is written out as rarely as can be: it is compilation that takes the time. */
#include "device/cuda/maps.h"
#include "device/cuda/math_kernel.cuh"
#include "kernels/math_f32.h"
#include "kernels/math_f64.h"

#define T f32
#define R float
#include "kernels/map_functions.h"
#undef T
#undef R
#define T f64
#define R double
#include "kernels/map_functions.h"
#undef T
#undef R

enum { INPUTS = CAIRN__MAP_INPUTS };

/* ---- the formulas as types ---- */

template <class R> struct values { R x[INPUTS], p0, p1; };

template <enum cairn__map_fn F> struct formula;

/* The circle's functions ask whether their argument, the last input, is far out (math_f32.h). */
#define CAIRN__X(name, num_inputs, what)                                                        \
    template <> struct formula<CAIRN__MAP_##name> {                                             \
        enum { inputs = num_inputs };                                                           \
        static CAIRN__DEVICE float of(const values<float> &v) {                                 \
            const int far = !(fabs_f32(v.x[num_inputs - 1]) <= TURN_NEAR_F32);                  \
            return name##_f32(v.x[0], v.x[num_inputs > 1 ? 1 : 0], v.x[num_inputs > 2 ? 2 : 0], \
                              v.x[num_inputs > 3 ? 3 : 0], v.p0, v.p1, far);                    \
        }                                                                                       \
        static CAIRN__DEVICE double of(const values<double> &v) {                               \
            return name##_f64(v.x[0], v.x[num_inputs > 1 ? 1 : 0], v.x[num_inputs > 2 ? 2 : 0], \
                              v.x[num_inputs > 3 ? 3 : 0], v.p0, v.p1, 0);                      \
        }                                                                                       \
    };
CAIRN__MAP_LIST(CAIRN__X)
#undef CAIRN__X

template <class R> CAIRN__DEVICE R chosen(enum cairn__map_fn f, const values<R> &v) {
    switch (f) {
#define CAIRN__X(name, num_inputs, what) \
    case CAIRN__MAP_##name:              \
        return formula<CAIRN__MAP_##name>::of(v);
        CAIRN__MAP_LIST(CAIRN__X)
#undef CAIRN__X
    default:
        return v.x[0];
    }
}

/* All formulas in f64 are a lot of code: they are there once, and called. */
static CAIRN__CALLED double value_of(enum cairn__map_fn f, const values<double> &v) {
    return chosen(f, v);
}
CAIRN__DEVICE float value_of(enum cairn__map_fn f, const values<float> &v) {
    return chosen(f, v);
}

/* ---- packs ---- */

/* The formulas with kernels of their own. */
/* clang-format off */
#define COMMON(X)                                                                                                 \
    X(AFFINE) X(NEG) X(ABS) X(SQUARE) X(SQRT) X(RSQRT) X(EXP) X(LOG) X(TANH) X(SIGMOID) X(RELU) X(GELU)           \
    X(GELU_TANH) X(SILU) X(CLAMP) X(ADD) X(MUL) X(DIV) X(MAXIMUM) X(MUL_SCALED) X(WHERE) X(ADDCMUL)               \
    X(SQRT_BACKWARD) X(RSQRT_BACKWARD) X(TANH_BACKWARD) X(SIGMOID_BACKWARD) X(RELU_BACKWARD) X(GELU_BACKWARD)     \
    X(GELU_TANH_BACKWARD) X(SILU_BACKWARD) X(CLAMP_BACKWARD) X(DIV_BACKWARD_B) X(MASKED) X(UNMASKED)              \
    X(SQUARED_DIFFERENCE_BACKWARD)
/* clang-format on */

enum { PACKS = 2 }; /* that a thread has under way */

/* V elements of an input from place `at` on: one after another, or one of them V times. */
template <int V, class T> CAIRN__DEVICE void read_pack(T *to, const T *x, int64_t at, bool repeats) {
    if (!repeats) {
        cairn__read<V>(to, x + at);
        return;
    }
    const T one = x[at];
#pragma unroll
    for (int k = 0; k < V; k++) to[k] = one;
}

CAIRN__DEVICE bool repeats(const cairn__axes &axes, int operand) {
    return axes.ndim == 0 || axes.stride[operand][axes.ndim - 1] == 0;
}

template <int N, int V, class T> struct pack { T x[N][V]; };

template <int N, int V, class T> CAIRN__DEVICE void read_packs(const cairn__map_job &job, size_t i, pack<N, V, T> *to) {
#pragma unroll
    for (int k = 0; k < N; k++)
        read_pack<V>(to->x[k], (const T *)job.x[k], cairn__place(job.axes, k + 1, i), repeats(job.axes, k + 1));
}

template <enum cairn__map_fn F, int N, int V, class T>
CAIRN__DEVICE void use_packs(const cairn__map_job &job, size_t i, const pack<N, V, T> &in) {
    float wide[N][V], y[V];
    T rounded[V];
#pragma unroll
    for (int k = 0; k < N; k++) cairn__widen<V>(in.x[k], wide[k]);
#pragma unroll
    for (int v = 0; v < V; v++) {
        values<float> one = {{0}, (float)job.numbers[0], (float)job.numbers[1]};
#pragma unroll
        for (int k = 0; k < N; k++) one.x[k] = wide[k][v];
        y[v] = formula<F>::of(one);
    }
    cairn__narrow<V>(y, rounded);
    cairn__write<V>((T *)job.dst + cairn__place(job.axes, 0, i), rounded);
}

/* The elements behind the last whole pack, of which there are some where all is one axis, are the last block's. */
template <enum cairn__map_fn F, class T> static CAIRN__KERNEL map_packs(const cairn__map_job job) {
    constexpr int V = cairn__pack_of<T>, N = formula<F>::inputs;
    const size_t step = (size_t)CAIRN__CUDA_THREADS * V, packed = job.axes.n - job.axes.n % V;
    const size_t begin = blockIdx.x * (PACKS * step) + (size_t)threadIdx.x * V;
    pack<N, V, T> in[PACKS];
#pragma unroll
    for (int u = 0; u < PACKS; u++) {
        if (begin + u * step < packed) read_packs(job, begin + u * step, &in[u]);
    }
#pragma unroll 1
    for (int u = 0; u < PACKS; u++) {
        if (begin + u * step < packed) use_packs<F>(job, begin + u * step, in[0]);
        in[0] = in[PACKS - 1];
    }
    const size_t rest = packed + threadIdx.x;
    if (blockIdx.x + 1 < gridDim.x || rest >= job.axes.n) return;
    pack<N, 1, T> last;
    read_packs(job, rest, &last);
    use_packs<F>(job, rest, last);
}

template <class T>
static int launch_packs(struct CUstream_st *stream, enum cairn__map_fn f, const struct cairn__map_job *job) {
    void (*kernel)(cairn__map_job) = NULL;
    switch (f) {
#define KERNEL(name)                              \
    case CAIRN__MAP_##name:                       \
        kernel = map_packs<CAIRN__MAP_##name, T>; \
        break;
        COMMON(KERNEL)
#undef KERNEL
    default:
        return cudaErrorInvalidValue;
    }
    return cairn__launch(kernel, cairn__tensor_blocks<cairn__pack_of<T>, PACKS>(job->axes.n), CAIRN__CUDA_THREADS,
                         stream, *job);
}

bool cairn__map_has_packs(enum cairn__map_fn f) {
    switch (f) {
#define CASE(name) case CAIRN__MAP_##name:
        COMMON(CASE)
#undef CASE
        return true;
    default:
        return false;
    }
}

int cairn__map_pack(cairn_dtype t) {
    return cairn__with_float(t, [&](auto e) { return cairn__pack_of<decltype(e)>; });
}

int cairn__launch_map_packs(struct CUstream_st *stream, enum cairn__map_fn f, cairn_dtype t,
                            const struct cairn__map_job *job) {
    return cairn__with_float(t, [&](auto e) { return launch_packs<decltype(e)>(stream, f, job); });
}

/* ---- any types and strides ---- */

template <class R, int STEPS = 1> CAIRN__DEVICE values<R> values_at(const cairn__map_job &job, int inputs, size_t i) {
    values<R> v = {{0}, (R)job.numbers[0], (R)job.numbers[1]};
#pragma unroll
    for (int k = 0; k < INPUTS; k++) {
        if (k < inputs) v.x[k] = cairn__load_any<R>(job.x[k], job.x_type[k], cairn__place<STEPS>(job.axes, k + 1, i));
    }
    return v;
}

enum { ELEMENTS = 4 }; /* of a thread */

template <class R> static CAIRN__KERNEL map_any(const cairn__map_job job, enum cairn__map_fn f, int inputs) {
    const size_t begin = blockIdx.x * (size_t)CAIRN__CUDA_THREADS * ELEMENTS + threadIdx.x;
    values<R> v[ELEMENTS];
#pragma unroll
    for (int u = 0; u < ELEMENTS; u++) {
        const size_t i = begin + u * (size_t)CAIRN__CUDA_THREADS;
        if (i < job.axes.n) v[u] = values_at<R>(job, inputs, i);
    }
#pragma unroll 1
    for (int u = 0; u < ELEMENTS; u++) {
        const size_t i = begin + u * (size_t)CAIRN__CUDA_THREADS;
        if (i < job.axes.n) {
            cairn__store_any<R>(job.dst, job.dst_type, cairn__place(job.axes, 0, i), value_of(f, v[0]));
        }
#pragma unroll
        for (int k = 1; k < ELEMENTS; k++) v[k - 1] = v[k]; /* the formulas are there once, not ELEMENTS times */
    }
}

int cairn__launch_map_any(struct CUstream_st *stream, enum cairn__map_fn f, bool wide,
                          const struct cairn__map_job *job) {
    return cairn__launch(wide ? map_any<double> : map_any<float>, cairn__tensor_blocks<1, ELEMENTS>(job->axes.n),
                         CAIRN__CUDA_THREADS, stream, *job, f, cairn__map_inputs(f));
}

/* ---- sums of maps ---- */

enum { SUM_PACKS = 4, SUM_TILES = 4 }; /* as of sum (nn.cu), whose order this is */

/* The sums of a thread by place in the pack, of which the next one is lane[0]: so they stay in registers although the
 * formulas are there once. */
template <int V, class R> CAIRN__DEVICE void add_next(R (&lane)[V], R term) {
    const R sum = lane[0] + term;
#pragma unroll
    for (int k = 1; k < V; k++) lane[k - 1] = lane[k];
    lane[V - 1] = sum;
}

template <int V, class R> CAIRN__DEVICE double close_lanes(R (&lane)[V]) {
    const double sum = (double)cairn__sum_of(lane);
#pragma unroll
    for (int k = 0; k < V; k++) lane[k] = 0;
    return sum;
}

template <class R, int V>
static CAIRN__KERNEL map_sum(cairn__partials *partials, const cairn__map_job job, enum cairn__map_fn f, int inputs,
                             double divisor) {
    const size_t step = (size_t)CAIRN__CUDA_THREADS * V, tile = SUM_PACKS * step;
    R lane[V] = {0};
    double of_thread = 0;
    int tiles = 0;
    for (size_t from = blockIdx.x * tile; from < job.axes.n; from += gridDim.x * tile) {
#pragma unroll 1
        for (int e = 0; e < SUM_PACKS * V; e++) {
            const size_t i = from + e / V * step + (size_t)threadIdx.x * V + e % V;
            add_next(lane, i < job.axes.n ? value_of(f, values_at<R, 4>(job, inputs, i)) : 0);
        }
        if (++tiles < SUM_TILES) continue;
        of_thread += close_lanes(lane);
        tiles = 0;
    }
    const double of_block = cairn__sum_of_block(of_thread + close_lanes(lane));
    if (threadIdx.x == 0) partials->sums[blockIdx.x] = of_block;
    if (!cairn__last_of(&partials->arrived[0], gridDim.x)) return;
    const double sum = cairn__sum_of_left(partials->sums, 0, gridDim.x, CAIRN__CUDA_THREADS);
    if (threadIdx.x == 0) cairn__store_any<double>(job.dst, job.dst_type, 0, sum / divisor);
}

template <class R, int V>
static int launch_map_sum(struct CUstream_st *stream, struct cairn__partials *partials, enum cairn__map_fn f,
                          const struct cairn__map_job *job, double divisor) {
    const size_t blocks = cairn__tensor_blocks<V, SUM_PACKS>(job->axes.n), most = CAIRN__CUDA_SUM_BLOCKS;
    return cairn__launch(map_sum<R, V>,
                         blocks == 0     ? 1
                         : blocks < most ? blocks
                                         : most,
                         CAIRN__CUDA_THREADS, stream, partials, *job, f, cairn__map_inputs(f), divisor);
}

int cairn__launch_map_sum(struct CUstream_st *stream, struct cairn__partials *partials, enum cairn__map_fn f, bool wide,
                          const struct cairn__map_job *job, double divisor) {
    const bool half = job->x_type[0] == CAIRN_F16 || job->x_type[0] == CAIRN_BF16;
    return wide   ? launch_map_sum<double, 4>(stream, partials, f, job, divisor)
           : half ? launch_map_sum<float, 8>(stream, partials, f, job, divisor)
                  : launch_map_sum<float, 4>(stream, partials, f, job, divisor);
}

/* ---- copies ---- */

/* Calls use with an integer of that many bytes. */
template <class Use> static int with_width(size_t width, Use use) {
    return width == 1   ? use(uint8_t())
           : width == 2 ? use(uint16_t())
           : width == 4 ? use(uint32_t())
                        : use((unsigned long long)0);
}

template <class W> struct copy_pack_op {
    const cairn__map_job *job;
    template <int V> struct in { W x[V]; };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const {
        read_pack<V>(a->x, (const W *)job->x[0], cairn__place(job->axes, 1, i), repeats(job->axes, 1));
    }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &a) const {
        cairn__write<V>((W *)job->dst + cairn__place(job->axes, 0, i), a.x);
    }
};

template <class W> static CAIRN__KERNEL copy_packs(const cairn__map_job job) {
    copy_pack_op<W> op = {&job};
    cairn__walk_tensor<cairn__pack_of<W>, PACKS>(true, job.axes.n, op);
}

int cairn__launch_copy_packs(struct CUstream_st *stream, const struct cairn__map_job *job, size_t width) {
    return with_width(width, [&](auto w) {
        typedef decltype(w) W;
        return cairn__launch(copy_packs<W>, cairn__tensor_blocks<cairn__pack_of<W>, PACKS>(job->axes.n),
                             CAIRN__CUDA_THREADS, stream, *job);
    });
}

template <class W> static CAIRN__KERNEL copy_any(const cairn__map_job job) {
    const size_t begin = blockIdx.x * (size_t)CAIRN__CUDA_THREADS * ELEMENTS + threadIdx.x;
    W x[ELEMENTS];
#pragma unroll
    for (int u = 0; u < ELEMENTS; u++) {
        const size_t i = begin + u * (size_t)CAIRN__CUDA_THREADS;
        if (i < job.axes.n) x[u] = ((const W *)job.x[0])[cairn__place(job.axes, 1, i)];
    }
#pragma unroll
    for (int u = 0; u < ELEMENTS; u++) {
        const size_t i = begin + u * (size_t)CAIRN__CUDA_THREADS;
        if (i < job.axes.n) ((W *)job.dst)[cairn__place(job.axes, 0, i)] = x[u];
    }
}

int cairn__launch_copy_any(struct CUstream_st *stream, const struct cairn__map_job *job, size_t width) {
    return with_width(width, [&](auto w) {
        return cairn__launch(copy_any<decltype(w)>, cairn__tensor_blocks<1, ELEMENTS>(job->axes.n), CAIRN__CUDA_THREADS,
                             stream, *job);
    });
}

enum { TILE = 32, TILE_ROWS = CAIRN__CUDA_THREADS / TILE };

/* Where plane p lies. */
CAIRN__DEVICE int64_t plane_at(const cairn__axes &axes, int operand, size_t p) {
    int64_t at = 0;
#pragma unroll 1
    for (int d = axes.ndim - 3; d >= 0; d--) {
        at += (int64_t)(p % (size_t)axes.size[d]) * axes.stride[operand][d];
        p /= (size_t)axes.size[d];
    }
    return at;
}

/* A tile is read along the source's rows and written along the result's, through shared memory, whose rows are one
 * element longer so that both ways go through all of its banks. */
template <class W> static CAIRN__KERNEL copy_transposed(const cairn__map_job job, size_t down, size_t across) {
    __shared__ W tile[TILE][TILE + 1];
    const cairn__axes &axes = job.axes;
    const int row = axes.ndim - 2, col = axes.ndim - 1;
    const size_t plane = blockIdx.x / (down * across), in_plane = blockIdx.x % (down * across);
    const size_t r0 = in_plane / across * TILE, c0 = in_plane % across * TILE;
    const size_t rows = (size_t)axes.size[row], cols = (size_t)axes.size[col];
    const int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    const W *from = (const W *)job.x[0] + plane_at(axes, 1, plane);
    W *to = (W *)job.dst + plane_at(axes, 0, plane);
#pragma unroll
    for (int k = y; k < TILE; k += TILE_ROWS) {
        if (r0 + x < rows && c0 + k < cols)
            tile[k][x] = from[(int64_t)(r0 + x) + (int64_t)(c0 + k) * axes.stride[1][col]];
    }
    __syncthreads();
#pragma unroll
    for (int k = y; k < TILE; k += TILE_ROWS) {
        if (r0 + k < rows && c0 + x < cols)
            to[(int64_t)(r0 + k) * axes.stride[0][row] + (int64_t)(c0 + x)] = tile[x][k];
    }
}

int cairn__launch_copy_transposed(struct CUstream_st *stream, const struct cairn__map_job *job, size_t width) {
    const size_t rows = (size_t)job->axes.size[job->axes.ndim - 2], cols = (size_t)job->axes.size[job->axes.ndim - 1];
    const size_t down = (rows + TILE - 1) / TILE, across = (cols + TILE - 1) / TILE;
    return with_width(width, [&](auto w) {
        return cairn__launch(copy_transposed<decltype(w)>, job->axes.n / (rows * cols) * down * across,
                             CAIRN__CUDA_THREADS, stream, *job, down, across);
    });
}
