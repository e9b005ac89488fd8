/* Pooling: windows forward, and backward the windows that an input is in. */
#include "device/cuda/pool.h"

#include <math.h>

#include "device/cuda/math_kernel.cuh"

/* ---- places: I is uint32_t where every number is below 2^31, else uint64_t ---- */

/* Division by a number that is known at the launch. For uint32_t and numerators below 2^31 a product: with
 * 2^(shift - 1) < by <= 2^shift, factor = floor(2^32 (2^shift - by) / by) + 1 and the quotient is
 * (floor(x factor / 2^32) + x) / 2^shift. Source: Granlund, Montgomery, "Division by Invariant Integers using
 * Multiplication", PLDI 1994, figure 4.1. */
template <class I> struct divisor {
    I by;
    CAIRN__DEVICE I quotient(I x) const { return x / by; }
};
template <> struct divisor<uint32_t> {
    uint32_t by, factor, shift;
    CAIRN__DEVICE uint32_t quotient(uint32_t x) const { return ((uint32_t)((uint64_t)x * factor >> 32) + x) >> shift; }
};

static void set_divisor(divisor<uint64_t> *d, int64_t by) {
    d->by = (uint64_t)by;
}

static void set_divisor(divisor<uint32_t> *d, int64_t by) {
    d->by = (uint32_t)by, d->shift = 0;
    while ((int64_t)1 << d->shift < by) d->shift++;
    d->factor = (uint32_t)(((uint64_t)1 << 32) * (((uint64_t)1 << d->shift) - (uint64_t)by) / (uint64_t)by + 1);
}

/* Inputs or windows from..end-1 along an axis. */
template <class I> struct span_of { I from, end; };

/* One axis of the planes. */
template <class I> struct axis {
    divisor<I> in, out, stride; /* sizes of inputs and outputs */
    I kernel, padding, dilation;

    static CAIRN__DEVICE I least(I a, I b) { return a < b ? a : b; }
    /* What lies inside of the window of output o, from - padding < end. Without dilation. */
    CAIRN__DEVICE span_of<I> window(I o, bool adaptive) const {
        if (adaptive) return {out.quotient(o * in.by), out.quotient((o + 1) * in.by + out.by - 1)};
        const I begin = o * stride.by, end = begin + kernel;
        return {begin > padding ? least(begin - padding, in.by) : 0, end > padding ? least(end - padding, in.by) : 0};
    }
    /* The taps of the window of output o that lie inside. */
    CAIRN__DEVICE span_of<I> taps(I o) const {
        const I begin = o * stride.by, reach = in.by + padding;
        return {begin < padding ? (padding - begin + dilation - 1) / dilation : 0,
                begin < reach ? least((reach - begin + dilation - 1) / dilation, kernel) : 0};
    }
    /* What an average divides by. */
    CAIRN__DEVICE I extent(I o, bool adaptive, bool count_padding) const {
        const span_of<I> inside = window(o, adaptive);
        if (adaptive) return inside.end - inside.from;
        if (!count_padding) return inside.end > inside.from ? inside.end - inside.from : 1;
        const I begin = o * stride.by, end = least(begin + kernel, in.by + 2 * padding);
        return end > begin ? end - begin : 1;
    }
    /* The windows that input i may be in: all that it is in without dilation. */
    CAIRN__DEVICE span_of<I> windows(I i, bool adaptive) const {
        if (adaptive) {
            if (out.by == 1) return {0, 1};
            return {in.quotient(i * out.by), in.quotient((i + 1) * out.by + in.by - 1)};
        }
        const I at = i + padding, reach = (kernel - 1) * dilation;
        return {at > reach ? stride.quotient(at - reach + stride.by - 1) : 0, least(stride.quotient(at) + 1, out.by)};
    }
};

template <class I> struct geometry {
    axis<I> rows, columns;
    I planes;
    bool count_padding;
};

template <class I> static void set_axis(axis<I> *a, const struct cairn__pool *pool, int which) {
    const bool adaptive = pool->kind == CAIRN__POOL_ADAPTIVE_AVERAGE;
    const int64_t out = which ? pool->q : pool->p;
    set_divisor(&a->in, which ? pool->w : pool->h);
    set_divisor(&a->out, out ? out : 1); /* no output: nothing is asked */
    set_divisor(&a->stride, adaptive ? 1 : pool->stride[which]);
    a->kernel = (I)(adaptive ? 1 : pool->kernel[which]), a->padding = (I)(adaptive ? 0 : pool->padding[which]);
    a->dilation = (I)(pool->kind == CAIRN__POOL_MAX ? pool->dilation[which] : 1);
}

template <class I> static geometry<I> geometry_of(const struct cairn__pool *pool) {
    geometry<I> g = {};
    set_axis(&g.rows, pool, 0);
    set_axis(&g.columns, pool, 1);
    g.planes = (I)pool->planes, g.count_padding = pool->count_padding;
    return g;
}

/* Whether all that is made of an axis is below 2^31. */
static bool is_short(const struct cairn__pool *pool, int which) {
    const double most = 2147483648.0, in = which ? (double)pool->w : (double)pool->h;
    const double out = which ? (double)pool->q : (double)pool->p;
    if (pool->kind == CAIRN__POOL_ADAPTIVE_AVERAGE) return (in + 1) * (out + 1) < most;
    const double reach = (double)pool->kernel[which] * (double)pool->dilation[which];
    return out * (double)pool->stride[which] + reach + in + 2 * (double)pool->padding[which] +
               (double)pool->stride[which] <
           most;
}

template <class Use> static int with_places(const struct cairn__pool *pool, Use use) {
    const double planes = (double)pool->planes, most = 2147483648.0;
    const bool few =
        planes * (double)pool->h * (double)pool->w < most && planes * (double)pool->p * (double)pool->q < most;
    return few && is_short(pool, 0) && is_short(pool, 1) ? use(uint32_t()) : use(uint64_t());
}

/* Element i of planes of rows * columns, each of a size that divides. */
template <class I> struct place {
    I plane, row, column;
    CAIRN__DEVICE place(I i, const divisor<I> &rows, const divisor<I> &columns) {
        const I above = columns.quotient(i);
        column = i - above * columns.by;
        plane = rows.quotient(above);
        row = above - plane * rows.by;
    }
};

/* This team's number; sizes of up to 2^31 blocks. */
template <class I, int TEAM> static CAIRN__DEVICE I team_number() {
    return (I)blockIdx.x * (CAIRN__CUDA_THREADS / TEAM) + threadIdx.x / TEAM;
}

/* ---- sums of a thread: 16 terms in R, these in f64 ---- */

template <class R> struct long_sum {
    double all = 0;
    R part = 0;
    int terms = 0;
    CAIRN__DEVICE void add(R x) {
        part += x;
        if (++terms < 16) return;
        all += (double)part;
        part = 0, terms = 0;
    }
    CAIRN__DEVICE double total() const { return all + (double)part; }
};

/* ---- maximum ---- */

/* The first of equals stays; a NaN beats whatever there is. TAPS: of each axis, where both have as many; 0 = any. */
template <class T, class I, int TAPS> static CAIRN__KERNEL max_pool(T *y, int32_t *index, const T *x, geometry<I> g) {
    typedef typename cairn__r_of<T>::type R;
    const I i = team_number<I, 1>(), width = g.columns.in.by;
    if (i >= g.planes * g.rows.out.by * g.columns.out.by) return;
    const place<I> at(i, g.rows.out, g.columns.out);
    const T *plane = x + (size_t)at.plane * g.rows.in.by * width;
    const I top = at.row * g.rows.stride.by, left = at.column * g.columns.stride.by;
    const span_of<I> rows = TAPS ? span_of<I>{0, TAPS} : g.rows.taps(at.row);
    const span_of<I> columns = TAPS ? span_of<I>{0, TAPS} : g.columns.taps(at.column);
    R best = (R)-INFINITY;
    int32_t where = -1;
#pragma unroll(TAPS ? TAPS : 1)
    for (I r = rows.from; r < rows.end; r++) {
        const I row = top + r * g.rows.dilation - g.rows.padding; /* above the plane: more than any size */
        if (row >= g.rows.in.by) continue;
#pragma unroll(TAPS ? TAPS : 4)
        for (I s = columns.from; s < columns.end; s++) {
            const I column = left + s * g.columns.dilation - g.columns.padding;
            if (column >= width) continue;
            const R value = cairn__load(plane + (row * width + column));
            if (value > best || value != value || where < 0) best = value, where = (int32_t)(row * width + column);
        }
    }
    cairn__store(y + i, best);
    index[i] = where;
}

template <class T, class I> static int launch_max(struct CUstream_st *stream, const struct cairn__pool *pool) {
    const size_t n = (size_t)(pool->planes * pool->p * pool->q), blocks = cairn__tensor_blocks<1, 1>(n);
    const geometry<I> g = geometry_of<I>(pool);
    const auto launch = [&](auto kernel) {
        return cairn__launch(kernel, blocks, CAIRN__CUDA_THREADS, stream, (T *)pool->y, pool->index, (const T *)pool->x,
                             g);
    };
    const bool square = pool->kernel[0] == pool->kernel[1];
    if (square && pool->kernel[0] == 3) return launch(max_pool<T, I, 3>);
    if (square && pool->kernel[0] == 2) return launch(max_pool<T, I, 2>);
    return launch(max_pool<T, I, 0>);
}

/* ---- averages ---- */

template <class T, class I, bool ADAPTIVE, int TEAM>
static CAIRN__KERNEL average_pool(T *y, const T *x, geometry<I> g) {
    typedef typename cairn__r_of<T>::type R;
    const I i = team_number<I, TEAM>(), outputs = g.planes * g.rows.out.by * g.columns.out.by;
    const place<I> at(i < outputs ? i : 0, g.rows.out, g.columns.out);
    const span_of<I> rows = g.rows.window(at.row, ADAPTIVE), columns = g.columns.window(at.column, ADAPTIVE);
    const T *plane = x + (size_t)at.plane * g.rows.in.by * g.columns.in.by;
    const I width = columns.end > columns.from ? columns.end - columns.from : 0;
    long_sum<R> sum;
    if constexpr (TEAM == 1) {
        for (I row = rows.from; row < rows.end; row++) {
#pragma unroll 4
            for (I column = columns.from; column < columns.end; column++)
                sum.add(cairn__load(plane + (row * g.columns.in.by + column)));
        }
    } else if (width > 0) {
        const I first = threadIdx.x % TEAM, rows_on = TEAM / width, columns_on = TEAM % width;
        I row = rows.from + first / width, column = first % width;
#pragma unroll 4
        while (row < rows.end) {
            sum.add(cairn__load(plane + (row * g.columns.in.by + columns.from + column)));
            row += rows_on, column += columns_on;
            if (column >= width) column -= width, row++;
        }
    }
    double total = sum.total();
    if constexpr (TEAM == CAIRN__CUDA_THREADS) {
        total = cairn__sum_of_block(total);
    } else {
#pragma unroll
        for (int half = TEAM / 2; half > 0; half /= 2) total += __shfl_xor_sync(0xffffffffu, total, half);
    }
    if (i >= outputs || threadIdx.x % TEAM != 0) return;
    const double height = (double)g.rows.extent(at.row, ADAPTIVE, g.count_padding);
    cairn__store_sum(y + i, total / (height * (double)g.columns.extent(at.column, ADAPTIVE, g.count_padding)));
}

/* The largest window's elements, more or less: they decide about the team. */
static double window_of(const struct cairn__pool *pool) {
    const double h = (double)pool->h, w = (double)pool->w;
    if (pool->kind == CAIRN__POOL_ADAPTIVE_AVERAGE) return ceil(h / (double)pool->p) * ceil(w / (double)pool->q);
    return fmin(h, (double)pool->kernel[0]) * fmin(w, (double)pool->kernel[1]);
}

template <class T, class I, bool ADAPTIVE>
static int launch_average(struct CUstream_st *stream, const struct cairn__pool *pool) {
    const size_t n = (size_t)(pool->planes * pool->p * pool->q);
    const geometry<I> g = geometry_of<I>(pool);
    const auto launch = [&](auto kernel, size_t teams) {
        return cairn__launch(kernel, n / teams + (n % teams != 0), CAIRN__CUDA_THREADS, stream, (T *)pool->y,
                             (const T *)pool->x, g);
    };
    const double window = window_of(pool);
    if (window <= 16) return launch(average_pool<T, I, ADAPTIVE, 1>, CAIRN__CUDA_THREADS);
    if (window <= 256) return launch(average_pool<T, I, ADAPTIVE, 8>, CAIRN__CUDA_THREADS / 8);
    if (window <= 4096) return launch(average_pool<T, I, ADAPTIVE, CAIRN__CUDA_WARP>, CAIRN__CUDA_WARPS);
    return launch(average_pool<T, I, ADAPTIVE, CAIRN__CUDA_THREADS>, 1);
}

int cairn__launch_pool(struct CUstream_st *stream, const struct cairn__pool *pool) {
    return cairn__with_math(pool->dtype, [&](auto e) {
        return with_places(pool, [&](auto p) {
            typedef decltype(e) T;
            typedef decltype(p) I;
            if (pool->kind == CAIRN__POOL_MAX) return launch_max<T, I>(stream, pool);
            return pool->kind == CAIRN__POOL_AVERAGE ? launch_average<T, I, false>(stream, pool)
                                                     : launch_average<T, I, true>(stream, pool);
        });
    });
}

/* ---- backward ---- */

template <class T, class I, cairn__pool_kind KIND>
static CAIRN__KERNEL pool_back(T *dx, const T *dy, const int32_t *index, geometry<I> g, bool no_outputs) {
    typedef typename cairn__r_of<T>::type R;
    constexpr bool ADAPTIVE = KIND == CAIRN__POOL_ADAPTIVE_AVERAGE;
    const I i = team_number<I, 1>();
    if (i >= g.planes * g.rows.in.by * g.columns.in.by) return;
    const place<I> at(i, g.rows.in, g.columns.in);
    span_of<I> rows = g.rows.windows(at.row, ADAPTIVE);
    const span_of<I> columns = g.columns.windows(at.column, ADAPTIVE);
    const size_t plane = (size_t)at.plane * g.rows.out.by * g.columns.out.by;
    const int32_t me = (int32_t)(at.row * g.columns.in.by + at.column);
    long_sum<R> sum;
    if (no_outputs) rows.end = rows.from;
    for (I p = rows.from; p < rows.end; p++) {
        const size_t row = plane + (size_t)p * g.columns.out.by;
        const R height = KIND == CAIRN__POOL_MAX ? 0 : (R)g.rows.extent(p, ADAPTIVE, g.count_padding);
#pragma unroll 2
        for (I q = columns.from; q < columns.end; q++) {
            if (KIND == CAIRN__POOL_MAX) {
                if (index[row + q] == me) sum.add(cairn__load(dy + row + q));
            } else {
                const R area = height * (R)g.columns.extent(q, ADAPTIVE, g.count_padding);
                sum.add(cairn__load(dy + row + q) / area);
            }
        }
    }
    cairn__store_sum(dx + i, sum.total());
}

int cairn__launch_pool_backward(struct CUstream_st *stream, const struct cairn__pool *pool) {
    const size_t blocks = cairn__tensor_blocks<1, 1>((size_t)(pool->planes * pool->h * pool->w));
    return cairn__with_math(pool->dtype, [&](auto e) {
        return with_places(pool, [&](auto p) {
            typedef decltype(e) T;
            typedef decltype(p) I;
            const auto launch = [&](auto kernel) {
                return cairn__launch(kernel, blocks, CAIRN__CUDA_THREADS, stream, (T *)pool->dx, (const T *)pool->dy,
                                     pool->index, geometry_of<I>(pool), pool->p == 0 || pool->q == 0);
            };
            if (pool->kind == CAIRN__POOL_MAX) return launch(pool_back<T, I, CAIRN__POOL_MAX>);
            return pool->kind == CAIRN__POOL_AVERAGE ? launch(pool_back<T, I, CAIRN__POOL_AVERAGE>)
                                                     : launch(pool_back<T, I, CAIRN__POOL_ADAPTIVE_AVERAGE>);
        });
    });
}
