/* Folds, variance, arg-max and running sums; the order of terms is in folds.h. */
#include <type_traits>

#include "device/cuda/folds.h"
#include "device/cuda/math_kernel.cuh"

static_assert((int)CAIRN__FOLD_PACK_NBYTES == (int)CAIRN__CUDA_PACK_NBYTES, "V of folds.h");

/* ---- what is read: elements of one float type by packs, or of a type told at run time one by one ---- */

template <class T> struct plain {
    typedef T element;
    typedef typename cairn__r_of<T>::type R;
    static constexpr int V = cairn__pack_of<T>;
    const T *x;
    explicit plain(const cairn__folding &r) : x((const T *)r.x) {}
    CAIRN__DEVICE void move(int64_t by) { x += by; }
    template <int N> CAIRN__DEVICE void read(T *to, int64_t at) const { cairn__read<N>(to, x + at); }
    template <int N> static CAIRN__DEVICE void widen(const T *x, R *wide) {
        if constexpr (sizeof(R) == sizeof(double)) {
            cairn__widen<N>(x, wide);
        } else {
            cairn__widen_for_sum<N>(x, wide);
        }
    }
};

template <class Wide> struct converted {
    typedef Wide element, R;
    static constexpr int V = 1;
    const void *x;
    cairn_dtype type;
    int64_t from;
    explicit converted(const cairn__folding &r) : x(r.x), type(r.type), from(0) {}
    CAIRN__DEVICE void move(int64_t by) { from += by; }
    template <int N> CAIRN__DEVICE void read(R *to, int64_t at) const { *to = cairn__load_any<R>(x, type, from + at); }
    template <int N> static CAIRN__DEVICE void widen(const R *x, R *wide) { *wide = *x; }
};

/* Calls use with what reads the elements. */
template <class Use> static int with_elements(const cairn__folding &r, Use use) {
    if (!cairn__folds_packs(r.type, r.r))
        return r.r == CAIRN_F64 ? use(converted<double>(r)) : use(converted<float>(r));
    return cairn__with_math(r.type, [&](auto e) { return use(plain<decltype(e)>(r)); });
}

/* ---- kinds of folds: where a run begins, what it does with a term, and what joins runs. p is a number of the kind's
 * own. `wide`: worth kernels that read packs of columns ---- */

struct sum {
    static constexpr bool wide = true;
    template <class R> static CAIRN__DEVICE R first() { return 0; }
    template <class R> static CAIRN__DEVICE R take(R so_far, R x, R) { return so_far + x; }
    static CAIRN__DEVICE double join(double a, double b) { return a + b; }
};
struct sum_squares : sum { /* about p */
    template <class R> static CAIRN__DEVICE R take(R so_far, R x, R p) { return so_far + (x - p) * (x - p); }
};
struct sum_abs : sum {
    static constexpr bool wide = false;
    template <class R> static CAIRN__DEVICE R take(R so_far, R x, R) { return so_far + (x < 0 ? -x : x); }
};
struct product {
    static constexpr bool wide = false;
    template <class R> static CAIRN__DEVICE R first() { return 1; }
    template <class R> static CAIRN__DEVICE R take(R so_far, R x, R) { return so_far * x; }
    static CAIRN__DEVICE double join(double a, double b) { return a * b; }
};
struct greatest { /* of p * x, where p is 1, or -1 for the least */
    static constexpr bool wide = false;
    template <class R> static CAIRN__DEVICE R first() { return -(R)INFINITY; }
    template <class R> static CAIRN__DEVICE R greater(R a, R b) { return a > b || a != a ? a : b; }
    template <class R> static CAIRN__DEVICE R take(R so_far, R x, R p) { return greater(so_far, p * x); }
    static CAIRN__DEVICE double join(double a, double b) { return greater(a, b); }
};

/* ---- places: what takes terms, until it is done and leaves a state, which others can be joined to ---- */

static CAIRN__DEVICE double of_other_lane(double state, int lanes) {
    return __shfl_xor_sync(0xffffffffu, state, lanes);
}
static CAIRN__DEVICE void leave(volatile double *left, size_t i, double state) {
    left[i] = state;
}
static CAIRN__DEVICE void find_left(const volatile double *left, size_t i, double *state) {
    *state = left[i];
}

template <class F, class Wide> struct fold_place {
    typedef double state;
    static constexpr bool wide = F::wide;
    Wide run, p;
    double all;
    CAIRN__DEVICE void begin(Wide number) {
        run = F::template first<Wide>(), all = F::template first<double>();
        p = number;
    }
    CAIRN__DEVICE void take(Wide x, size_t) { run = F::take(run, x, p); }
    CAIRN__DEVICE void close() {
        all = F::join(all, (double)run);
        run = F::template first<Wide>();
    }
    CAIRN__DEVICE state done() {
        close();
        return all;
    }
    static CAIRN__DEVICE state nothing() { return F::template first<double>(); }
    static CAIRN__DEVICE state join(state a, state b) { return F::join(a, b); }
};

/* A double holds any index below 2^53, which partial sums' room is made for. */
struct found {
    double value;
    long long index; /* < 0: nothing yet */
};
static CAIRN__DEVICE found of_other_lane(found state, int lanes) {
    return {__shfl_xor_sync(0xffffffffu, state.value, lanes), __shfl_xor_sync(0xffffffffu, state.index, lanes)};
}
static CAIRN__DEVICE void leave(volatile double *left, size_t i, found state) {
    left[2 * i] = state.value;
    left[2 * i + 1] = (double)state.index;
}
static CAIRN__DEVICE void find_left(const volatile double *left, size_t i, found *state) {
    state->value = left[2 * i];
    state->index = (long long)left[2 * i + 1];
}

/* Of sign * x. */
template <class Wide> struct arg_place {
    typedef found state;
    static constexpr bool wide = false;
    Wide best, sign;
    long long index;
    template <class R> static CAIRN__DEVICE bool better(R x, R than) { return x != x ? than == than : x > than; }
    CAIRN__DEVICE void begin(Wide number) { best = 0, index = -1, sign = number; }
    CAIRN__DEVICE void take(Wide x, size_t i) {
        if (index >= 0 && !better(sign * x, best)) return;
        best = sign * x, index = (long long)i;
    }
    CAIRN__DEVICE void close() {}
    CAIRN__DEVICE state done() { return {(double)best, index}; }
    static CAIRN__DEVICE state nothing() { return {0, -1}; }
    static CAIRN__DEVICE state join(state a, state b) {
        if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
        if (better(a.value, b.value) || better(b.value, a.value)) return better(a.value, b.value) ? a : b;
        return a.index < b.index ? a : b;
    }
};

/* ---- ends: the number that a result's places begin with, and what becomes of its state ---- */

struct fold_end {
    cairn__fold_end end;
    bool in_f64;
    double p, sign; /* sign: greatest's p, 1 for others */
    template <class R> CAIRN__DEVICE R number(size_t result) const {
        return end.centre ? ((const R *)end.centre)[result] : (R)p;
    }
    CAIRN__DEVICE void put(const cairn__axes &kept, size_t result, double state) const {
        const double quotient = sign * state / end.divisor, y = end.root ? sqrt(quotient) : quotient;
        cairn__store_any(end.dst, end.type, cairn__place(kept, 1, result), in_f64 ? y : (double)(float)y);
    }
};

struct arg_end {
    cairn__arg_end end;
    template <class R> CAIRN__DEVICE R number(size_t) const { return end.least ? -1 : 1; }
    CAIRN__DEVICE void put(const cairn__axes &kept, size_t result, found state) const {
        end.index[cairn__place(kept, 1, result)] = state.index;
        const double value = end.least ? -state.value : state.value;
        if (end.value) cairn__store_any(end.value, end.type, cairn__place(kept, 2, result), value);
    }
};

/* ---- states of several threads ---- */

/* Over the V places of a thread. */
template <class Place, int V> static CAIRN__DEVICE typename Place::state join_places(Place (&place)[V]) {
    typename Place::state state[V];
#pragma unroll
    for (int k = 0; k < V; k++) state[k] = place[k].done();
#pragma unroll
    for (int half = V / 2; half > 0; half /= 2) {
#pragma unroll
        for (int k = 0; k < half; k++) state[k] = Place::join(state[k], state[k + half]);
    }
    return state[0];
}

/* Over each `threads` adjacent threads, a power of 2, or the whole block, for the first of them. */
template <class Place>
static CAIRN__DEVICE typename Place::state join_threads(typename Place::state state, uint32_t threads) {
    __shared__ typename Place::state warps[CAIRN__CUDA_WARPS];
    const uint32_t of_warp = threads < CAIRN__CUDA_WARP ? threads : CAIRN__CUDA_WARP;
    for (int half = (int)of_warp / 2; half > 0; half /= 2) state = Place::join(state, of_other_lane(state, half));
    if (threads <= CAIRN__CUDA_WARP) return state;
    if (threadIdx.x % CAIRN__CUDA_WARP == 0) warps[threadIdx.x / CAIRN__CUDA_WARP] = state;
    __syncthreads();
    state = threadIdx.x < CAIRN__CUDA_WARPS ? warps[threadIdx.x] : Place::nothing();
    __syncthreads();
    for (int half = CAIRN__CUDA_WARPS / 2; half > 0; half /= 2) state = Place::join(state, of_other_lane(state, half));
    return state;
}

/* ---- rows ---- */

/* Packs that a thread reads at once; terms of a run; blocks that a multiprocessor has at least, which tells the
 * compiler that it need not save registers. */
enum { UNDER_WAY = 4, RUN = 16, BLOCKS = 2 };

/* U packs of a thread. FULL: all are there and can be read at once. */
template <int U, bool FULL, class X, class Place>
static CAIRN__DEVICE void take_packs(const X &x, const cairn__folding &r, size_t i, size_t to, Place (&place)[X::V]) {
    const uint32_t step = r.threads * X::V;
    typename X::element in[U][X::V];
#pragma unroll
    for (int u = 0; u < U; u++) {
        if (FULL || (r.packs && to - i >= X::V)) {
            x.template read<X::V>(in[u], cairn__place(r.folded, 0, i + u * step));
        } else {
#pragma unroll
            for (int k = 0; k < X::V; k++) {
                if (i + k < to) x.template read<1>(&in[u][k], cairn__place(r.folded, 0, i + k));
            }
        }
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        typename X::R wide[X::V];
        X::template widen<X::V>(in[u], wide);
#pragma unroll
        for (int k = 0; k < X::V; k++) {
            if (FULL || i + k < to) place[k].take(wide[k], i + u * step + k);
        }
    }
}

template <class X, class Place>
static CAIRN__DEVICE void take_row(const X &x, const cairn__folding &r, size_t from, size_t to, Place (&place)[X::V]) {
    const uint32_t step = r.threads * X::V;
    int terms = 0;
    for (size_t i = from + threadIdx.x % r.threads * X::V; i < to;) {
        const uint32_t packs = r.packs && to - i >= (UNDER_WAY - 1) * step + X::V ? UNDER_WAY : 1;
        if (packs == UNDER_WAY) {
            take_packs<UNDER_WAY, true>(x, r, i, to, place);
        } else {
            take_packs<1, false>(x, r, i, to, place);
        }
        i += packs * step;
        terms += (int)packs;
        if (terms < RUN) continue;
        terms = 0;
#pragma unroll
        for (int k = 0; k < X::V; k++) place[k].close();
    }
}

/* A block has the rows of its threads, or a part of one row; of the parts the last block makes the whole. */
template <class Place, class X, class End>
static __global__ void CAIRN__BOUNDS(BLOCKS) reduce_rows(X x, const cairn__folding r, const End end) {
    const uint32_t part = blockIdx.x % r.parts;
    const size_t row = (size_t)(blockIdx.x / r.parts) * (CAIRN__CUDA_THREADS / r.threads) + threadIdx.x / r.threads;
    const bool has_row = row < r.kept.n;
    const typename X::R number = has_row ? end.template number<typename X::R>(row) : 0;
    Place place[X::V];
#pragma unroll
    for (int k = 0; k < X::V; k++) place[k].begin(number);
    if (has_row) {
        const size_t from = part * r.part, to = r.folded.n - from < r.part ? r.folded.n : from + r.part;
        x.move(cairn__place(r.kept, 0, row));
        take_row(x, r, from, to, place);
    }
    typename Place::state state = join_threads<Place>(join_places(place), r.threads);
    if (r.parts > 1) {
        volatile double *left = r.partials->sums;
        if (threadIdx.x == 0) leave(left, row * r.parts + part, state);
        if (!cairn__last_of(&r.partials->arrived[row], r.parts)) return;
        state = Place::nothing();
        for (uint32_t p = threadIdx.x; p < r.parts; p += CAIRN__CUDA_THREADS) {
            typename Place::state more;
            find_left(left, row * r.parts + p, &more);
            state = Place::join(state, more);
        }
        state = join_threads<Place>(state, CAIRN__CUDA_THREADS);
    }
    if (has_row && threadIdx.x % r.threads == 0) end.put(r.kept, row, state);
}

/* ---- columns: a thread has V adjacent ones, `threads` lie beside one another, and height = THREADS / threads below
 * them, each at a row of its own ---- */

/* Over the threads below one another, for the first of them. */
template <class Place, int V> static CAIRN__DEVICE void join_down(typename Place::state (&state)[V], uint32_t threads) {
    __shared__ typename Place::state below[V][CAIRN__CUDA_THREADS / 2];
    for (uint32_t half = CAIRN__CUDA_THREADS / 2; half >= threads; half /= 2) {
        if (threadIdx.x >= half && threadIdx.x < 2 * half) {
#pragma unroll
            for (int k = 0; k < V; k++) below[k][threadIdx.x - half] = state[k];
        }
        __syncthreads();
        if (threadIdx.x < half) {
#pragma unroll
            for (int k = 0; k < V; k++) state[k] = Place::join(state[k], below[k][threadIdx.x]);
        }
        __syncthreads();
    }
}

/* Terms from..to-1 of V columns. */
template <int V, class X, class Place>
static CAIRN__DEVICE void take_columns(const X &x, const cairn__folding &r, size_t from, size_t to, Place (&place)[V]) {
    const uint32_t height = CAIRN__CUDA_THREADS / r.threads;
    int terms = 0;
    for (size_t i = from + threadIdx.x / r.threads; i < to; i += UNDER_WAY * height) {
        typename X::element in[UNDER_WAY][V];
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++) {
            const size_t row = i + u * height;
            if (row < to) x.template read<V>(in[u], cairn__place(r.folded, 0, row));
        }
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++) {
            if (i + u * height >= to) continue;
            typename X::R wide[V];
            X::template widen<V>(in[u], wide);
#pragma unroll
            for (int k = 0; k < V; k++) place[k].take(wide[k], i + u * height);
        }
        terms += UNDER_WAY;
        if (terms < RUN) continue;
        terms = 0;
#pragma unroll
        for (int k = 0; k < V; k++) place[k].close();
    }
}

/* Over what groups have left of the columns from `column` on, for the first of the threads below one another. Some
 * reads are under way at once, as many as keep few registers. */
template <class Place, int V>
static CAIRN__DEVICE void join_groups(const cairn__folding &r, size_t column, bool has_column,
                                      typename Place::state (&state)[V]) {
    constexpr uint32_t at_once = V > 4 ? 1 : 8 / V;
    const uint32_t height = CAIRN__CUDA_THREADS / r.threads;
    const volatile double *left = r.partials->sums;
#pragma unroll
    for (int k = 0; k < V; k++) state[k] = Place::nothing();
    for (uint32_t g = threadIdx.x / r.threads; has_column && g < r.parts; g += at_once * height) {
        typename Place::state more[at_once][V];
#pragma unroll
        for (uint32_t u = 0; u < at_once; u++) {
#pragma unroll
            for (int k = 0; k < V; k++) {
                more[u][k] = Place::nothing();
                if (g + u * height < r.parts) find_left(left, (g + u * height) * r.kept.n + column + k, &more[u][k]);
            }
        }
#pragma unroll
        for (uint32_t u = 0; u < at_once; u++) {
#pragma unroll
            for (int k = 0; k < V; k++) state[k] = Place::join(state[k], more[u][k]);
        }
    }
    join_down<Place, V>(state, r.threads);
}

/* A block has a strip of columns and a group of terms; of the groups the last block makes the whole. */
template <class Place, int V, class X, class End>
static __global__ void CAIRN__BOUNDS(BLOCKS) reduce_columns(X x, const cairn__folding r, const End end, size_t strips) {
    const size_t strip = blockIdx.x % strips, group = blockIdx.x / strips;
    const size_t column = (strip * r.threads + threadIdx.x % r.threads) * V;
    const bool has_column = column < r.kept.n;
    Place place[V];
    typename Place::state state[V];
#pragma unroll
    for (int k = 0; k < V; k++) place[k].begin(has_column ? end.template number<typename X::R>(column + k) : 0);
    if (has_column) {
        const size_t from = group * r.part, to = r.folded.n - from < r.part ? r.folded.n : from + r.part;
        x.move(cairn__place(r.kept, 0, column));
        take_columns<V>(x, r, from, to, place);
    }
#pragma unroll
    for (int k = 0; k < V; k++) state[k] = place[k].done();
    join_down<Place, V>(state, r.threads);
    const bool is_first = has_column && threadIdx.x < r.threads;
    if (r.parts > 1) {
#pragma unroll
        for (int k = 0; k < V; k++) {
            if (is_first) leave(r.partials->sums, group * r.kept.n + column + k, state[k]);
        }
        if (!cairn__last_of(&r.partials->arrived[strip], r.parts)) return;
        join_groups<Place, V>(r, column, has_column, state);
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
        if (is_first) end.put(r.kept, column + k, state[k]);
    }
}

/* ---- launches ---- */

template <class Place, int V, class X, class End>
static int launch_columns(struct CUstream_st *stream, const X &x, const cairn__folding &r, const End &end) {
    const size_t strip = (size_t)r.threads * V, strips = (r.kept.n + strip - 1) / strip;
    return cairn__launch(reduce_columns<Place, V, X, End>, strips * r.parts, CAIRN__CUDA_THREADS, stream, x, r, end,
                         strips);
}

template <class Place, class X, class End>
static int launch(struct CUstream_st *stream, const X &x, const cairn__folding &r, const End &end) {
    if (r.columns) {
        constexpr int V = Place::wide ? X::V : 1;
        return r.packs ? launch_columns<Place, V>(stream, x, r, end) : launch_columns<Place, 1>(stream, x, r, end);
    }
    const size_t rows = CAIRN__CUDA_THREADS / r.threads, blocks = (r.kept.n + rows - 1) / rows * r.parts;
    return cairn__launch(reduce_rows<Place, X, End>, blocks, CAIRN__CUDA_THREADS, stream, x, r, end);
}

/* Calls use with a value of the kind's type. */
template <class Use> static int with_fold(enum cairn__fold f, Use use) {
    switch (f) {
    case CAIRN__FOLD_SUM_SQUARES:
        return use(sum_squares());
    case CAIRN__FOLD_SUM_ABS:
        return use(sum_abs());
    case CAIRN__FOLD_PRODUCT:
        return use(product());
    case CAIRN__FOLD_MAX:
    case CAIRN__FOLD_MIN:
        return use(greatest());
    default:
        return use(sum());
    }
}

int cairn__launch_fold(struct CUstream_st *stream, enum cairn__fold f, const struct cairn__folding *of,
                       const struct cairn__fold_end *end) {
    const double sign = f == CAIRN__FOLD_MIN ? -1 : 1;
    const fold_end last = {*end, of->r == CAIRN_F64,
                           f == CAIRN__FOLD_MAX   ? 1.0
                           : f == CAIRN__FOLD_MIN ? -1.0
                                                  : 0.0,
                           sign};
    return with_fold(f, [&](auto kind) {
        return with_elements(*of, [&](const auto &x) {
            typedef typename std::decay<decltype(x)>::type X;
            return launch<fold_place<decltype(kind), typename X::R>>(stream, x, *of, last);
        });
    });
}

int cairn__launch_arg(struct CUstream_st *stream, const struct cairn__folding *of, const struct cairn__arg_end *end) {
    const arg_end last = {*end};
    return with_elements(*of, [&](const auto &x) {
        typedef typename std::decay<decltype(x)>::type X;
        return launch<arg_place<typename X::R>>(stream, x, *of, last);
    });
}

/* ---- running sums and products ---- */

/* A segment of a line: step i of the line is its element i, or counted from the end where it goes in reverse. */
struct segment {
    const cairn__running &c;
    int64_t from_x, from;
    size_t begin, end;
    CAIRN__DEVICE segment(const cairn__running &running, size_t line, size_t number)
        : c(running), from_x(cairn__place(running.lines, 0, line)), from(cairn__place(running.lines, 1, line)),
          begin(number * running.segment), end(c.n - begin < c.segment ? c.n : begin + c.segment) {}
    CAIRN__DEVICE int64_t element(size_t step) const { return (int64_t)(c.reverse ? c.n - 1 - step : step); }
    CAIRN__DEVICE double read(size_t step) const {
        return cairn__load_any<double>(c.x, c.x_type, from_x + element(step) * c.x_stride);
    }
    CAIRN__DEVICE void write(size_t step, double y) const {
        cairn__store_any(c.dst, c.type, from + element(step) * c.stride, y);
    }
};

/* A thread has a segment, and its neighbour that of the next line. `told`: the segment's sum is all that is wanted. */
static CAIRN__KERNEL run_in_order(const cairn__running c, bool told) {
    enum { AT_ONCE = 8 };
    const size_t lines = c.lines.n, i = (size_t)blockIdx.x * CAIRN__CUDA_THREADS + threadIdx.x;
    if (i >= lines * c.segments) return;
    const size_t line = i % lines, number = i / lines;
    const segment s(c, line, number);
    double sum = c.product;
    for (size_t before = 0; !told && before < number; before++) sum += c.sums[before * lines + line];
    for (size_t step = s.begin; step < s.end; step += AT_ONCE) {
        double x[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (step + u < s.end) x[u] = s.read(step + u);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (step + u >= s.end) continue;
            sum = c.product ? sum * x[u] : sum + x[u];
            if (!told) s.write(step + u, sum);
        }
    }
    if (told) c.sums[i] = sum;
}

/* x of this lane and of all before it, of which lane 31 is the first. */
static CAIRN__DEVICE double scan_of_warp(double x) {
    const uint32_t before = CAIRN__CUDA_WARP - 1 - threadIdx.x % CAIRN__CUDA_WARP;
#pragma unroll
    for (uint32_t distance = 1; distance < CAIRN__CUDA_WARP; distance *= 2) {
        const double other = __shfl_down_sync(0xffffffffu, x, distance);
        if (before >= distance) x = other + x;
    }
    return x;
}

/* A warp has a segment. */
static __global__ void CAIRN__BOUNDS(BLOCKS) run_by_scans(const cairn__running c, bool told) {
    const uint32_t lane = CAIRN__CUDA_WARP - 1 - threadIdx.x % CAIRN__CUDA_WARP; /* the first is the last thread */
    const size_t lines = c.lines.n, i = (size_t)blockIdx.x * CAIRN__CUDA_WARPS + threadIdx.x / CAIRN__CUDA_WARP;
    if (i >= lines * c.segments) return;
    const size_t line = i % lines, number = i / lines;
    const segment s(c, line, number);
    double sum = 0;
    for (size_t before = lane; !told && before < number; before += CAIRN__CUDA_WARP) {
        sum += c.sums[before * lines + line];
    }
    if (number > 0 && !told) sum = cairn__sum_of_warp(sum);
    for (size_t step = s.begin; step < s.end; step += UNDER_WAY * CAIRN__CUDA_WARP) {
        double x[UNDER_WAY];
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++) {
            const size_t at = step + u * CAIRN__CUDA_WARP + lane;
            x[u] = at < s.end ? s.read(at) : 0;
        }
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++) x[u] = scan_of_warp(x[u]);
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++) {
            const size_t at = step + u * CAIRN__CUDA_WARP + lane;
            if (!told && at < s.end) s.write(at, sum + x[u]);
            sum += __shfl_sync(0xffffffffu, x[u], 0);
        }
    }
    if (told && lane == 0) c.sums[number * lines + line] = sum;
}

int cairn__launch_cumulate(struct CUstream_st *stream, const struct cairn__running *running) {
    const size_t in_block = running->scanned ? (size_t)CAIRN__CUDA_WARPS : (size_t)CAIRN__CUDA_THREADS;
    const size_t blocks = (running->lines.n * running->segments + in_block - 1) / in_block;
    const auto kernel = running->scanned ? run_by_scans : run_in_order;
    if (running->segments > 1) {
        const int error = cairn__launch(kernel, blocks, CAIRN__CUDA_THREADS, stream, *running, true);
        if (error) return error;
    }
    return cairn__launch(kernel, blocks, CAIRN__CUDA_THREADS, stream, *running, false);
}
