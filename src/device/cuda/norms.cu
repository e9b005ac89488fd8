/* Batch and group norm: sums over groups, what is made of them, and the walk over all elements. */
#include "device/cuda/norm_kernel.cuh"
#include "kernels/moments.h"

/* ---- pairs of sums: what an element adds ----
 *
 * centre(group, first): what is taken off the x of a group, whose first element is `first`. */

template <class T> struct moments {
    typedef typename cairn__r_of<T>::type R;
    static constexpr bool reads_dy = false;
    const T *x;
    CAIRN__DEVICE double centre(size_t, size_t first) const { return (double)cairn__load(x + first); }
    CAIRN__DEVICE void row(size_t) {}
    CAIRN__DEVICE void add(double (&sum)[2], R value, R, double pivot) const {
        const double d = (double)value - pivot;
        sum[0] += d;
        sum[1] = fma(d, d, sum[1]);
    }
};

template <class T> struct slopes {
    typedef typename cairn__r_of<T>::type R;
    static constexpr bool reads_dy = true;
    const R *mean;
    size_t per_mean; /* groups */
    CAIRN__DEVICE R centre(size_t group, size_t) const { return mean[group / per_mean]; }
    CAIRN__DEVICE void row(size_t) {}
    CAIRN__DEVICE void add(double (&sum)[2], R value, R dy, R centre) const {
        const R d = value - centre;
        sum[0] += (double)dy;
        sum[1] += (double)(dy * d);
    }
};

/* Of columns, normalised by rows. */
template <class T> struct row_slopes {
    typedef typename cairn__r_of<T>::type R;
    static constexpr bool reads_dy = true;
    const R *means, *rstds; /* means NULL: 0 */
    R mean, rstd;
    CAIRN__DEVICE R centre(size_t, size_t) const { return 0; }
    CAIRN__DEVICE void row(size_t r) { mean = means ? means[r] : 0, rstd = rstds[r]; }
    CAIRN__DEVICE void add(double (&sum)[2], R value, R dy, R) const {
        sum[0] += (double)(dy * ((value - mean) * rstd));
        sum[1] += (double)dy;
    }
};

/* ---- sums over runs ---- */

struct runs {
    size_t groups, count, n, stride, parts, chunk;
};

static runs runs_from(const struct cairn__norm_parts *p) {
    return {p->groups, p->count, p->n, p->stride, p->parts, p->chunk};
}

/* Packs of a group, one after the other, each `step` packs on. */
struct pack_walk {
    size_t run, pack, packs, runs_on, packs_on; /* packs: of a run */
    CAIRN__DEVICE pack_walk(size_t at, size_t packs_of_run, size_t step)
        : run(at / packs_of_run), pack(at % packs_of_run), packs(packs_of_run), runs_on(step / packs_of_run),
          packs_on(step % packs_of_run) {}
    CAIRN__DEVICE void advance() {
        run += runs_on, pack += packs_on;
        if (pack >= packs) pack -= packs, run++;
    }
};

enum { PACKS_UNDER_WAY = 4 };

/* A team, a warp or the block, has a part. V divides the length of a run. */
template <class Op, class T, int V, int TEAM>
static CAIRN__KERNEL sum_runs(Op op, const T *x, const T *dy, runs r, bool packed, double *sums) {
    typedef typename Op::R R;
    const size_t job = (size_t)blockIdx.x * (CAIRN__CUDA_THREADS / TEAM) + threadIdx.x / TEAM;
    const size_t group = job / r.parts, part = job % r.parts, first = group * r.n;
    if (group >= r.groups) return;
    const size_t begin = part * r.chunk / V, all = r.count * r.n / V, length = r.chunk / V;
    const size_t end = all - begin < length ? all : begin + length;
    const auto centre = op.centre(group, first);
    double sum[2] = {0, 0};
    size_t at = begin + threadIdx.x % TEAM;
    for (pack_walk walk(at, r.n / V, TEAM); at < end; at += PACKS_UNDER_WAY * TEAM) {
        T in[PACKS_UNDER_WAY][V], dy_in[PACKS_UNDER_WAY][V];
#pragma unroll
        for (int u = 0; u < PACKS_UNDER_WAY; u++) {
            const size_t place = first + walk.run * r.stride + walk.pack * V;
            if (at + u * TEAM < end) {
                cairn__read_part<V>(packed, x + place, (size_t)0, (size_t)V, in[u]);
                if (Op::reads_dy) cairn__read_part<V>(packed, dy + place, (size_t)0, (size_t)V, dy_in[u]);
            }
            walk.advance();
        }
#pragma unroll
        for (int u = 0; u < PACKS_UNDER_WAY; u++) {
            if (at + u * TEAM >= end) continue;
            R wide[V], wide_dy[V];
            cairn__widen_any<V>(in[u], wide);
            if (Op::reads_dy) cairn__widen_any<V>(dy_in[u], wide_dy);
#pragma unroll
            for (int k = 0; k < V; k++) op.add(sum, wide[k], Op::reads_dy ? wide_dy[k] : 0, centre);
        }
    }
#pragma unroll
    for (int s = 0; s < 2; s++) {
        double total;
        if constexpr (TEAM == CAIRN__CUDA_WARP) total = cairn__sum_of_warp(sum[s]);
        else total = cairn__sum_of_block(sum[s]);
        if (threadIdx.x % TEAM == 0) sums[(s * r.parts + part) * r.groups + group] = total;
    }
}

/* ---- sums over columns: a block has a strip of 32 * V, and a part of the rows, eight at once ---- */

enum { ROWS_AT_ONCE = CAIRN__CUDA_WARPS, ROWS_UNDER_WAY = 4 };

template <class Op, class T, int V>
static CAIRN__KERNEL sum_strips(Op op, const T *x, const T *dy, runs r, bool packed, double *sums) {
    typedef typename Op::R R;
    __shared__ double room[ROWS_AT_ONCE][CAIRN__CUDA_WARP * V];
    const size_t strips = gridDim.x / r.parts, strip = blockIdx.x % strips, part = blockIdx.x / strips;
    const uint32_t in_strip = threadIdx.x % CAIRN__CUDA_WARP * V, row = threadIdx.x / CAIRN__CUDA_WARP;
    const size_t cols = r.groups, column = strip * CAIRN__CUDA_WARP * V + in_strip;
    const size_t end = r.count - part * r.chunk < r.chunk ? r.count : (part + 1) * r.chunk;
    double sum[V][2] = {};
    decltype(op.centre(0, 0)) centre[V];
#pragma unroll
    for (int k = 0; k < V; k++) centre[k] = column + k < cols ? op.centre(column + k, column + k) : 0;
    for (size_t at = part * r.chunk + row; column < cols && at < end; at += ROWS_AT_ONCE * ROWS_UNDER_WAY) {
        T in[ROWS_UNDER_WAY][V], dy_in[ROWS_UNDER_WAY][V];
#pragma unroll
        for (int u = 0; u < ROWS_UNDER_WAY; u++) {
            const size_t i = at + u * ROWS_AT_ONCE;
            if (i >= end) continue;
            cairn__read_part<V>(packed, x + i * cols, column, cols, in[u]);
            if (Op::reads_dy) cairn__read_part<V>(packed, dy + i * cols, column, cols, dy_in[u]);
        }
#pragma unroll
        for (int u = 0; u < ROWS_UNDER_WAY; u++) {
            if (at + u * ROWS_AT_ONCE >= end) continue;
            R wide[V], wide_dy[V];
            cairn__widen_any<V>(in[u], wide);
            if (Op::reads_dy) cairn__widen_any<V>(dy_in[u], wide_dy);
            op.row(at + u * ROWS_AT_ONCE);
#pragma unroll
            for (int k = 0; k < V; k++) op.add(sum[k], wide[k], Op::reads_dy ? wide_dy[k] : 0, centre[k]);
        }
    }
    const size_t mine = strip * CAIRN__CUDA_WARP * V + threadIdx.x;
#pragma unroll
    for (int s = 0; s < 2; s++) {
        __syncthreads();
#pragma unroll
        for (int k = 0; k < V; k++) room[row][in_strip + k] = sum[k][s];
        __syncthreads();
        if (threadIdx.x >= CAIRN__CUDA_WARP * V || mine >= cols) continue;
        double lane[ROWS_AT_ONCE];
#pragma unroll
        for (int w = 0; w < ROWS_AT_ONCE; w++) lane[w] = room[w][threadIdx.x];
        sums[(s * r.parts + part) * cols + mine] = cairn__sum_of(lane);
    }
}

/* ---- their launches ---- */

/* What a launch of sums reads and writes. */
template <class T> struct sums_job {
    struct CUstream_st *stream;
    const T *x, *dy;
    const struct cairn__norm_parts *parts;
    double *sums;
};

template <int V, class Op, class T> static int launch_sums_in(const sums_job<T> &job, Op op) {
    const struct cairn__norm_parts *p = job.parts;
    const bool packed = V > 1 && cairn__is_packed(job.x) && (!Op::reads_dy || cairn__is_packed(job.dy));
    const runs r = runs_from(p);
    if (p->columns) {
        const size_t in_strip = (size_t)CAIRN__CUDA_WARP * V, strips = (p->groups + in_strip - 1) / in_strip;
        return cairn__launch(sum_strips<Op, T, V>, strips * p->parts, CAIRN__CUDA_THREADS, job.stream, op, job.x,
                             job.dy, r, packed, job.sums);
    }
    if (!p->by_warp) {
        return cairn__launch(sum_runs<Op, T, V, CAIRN__CUDA_THREADS>, p->groups * p->parts, CAIRN__CUDA_THREADS,
                             job.stream, op, job.x, job.dy, r, packed, job.sums);
    }
    return cairn__launch(sum_runs<Op, T, V, CAIRN__CUDA_WARP>, (p->groups + CAIRN__CUDA_WARPS - 1) / CAIRN__CUDA_WARPS,
                         CAIRN__CUDA_THREADS, job.stream, op, job.x, job.dy, r, packed, job.sums);
}

/* In packs where every run, or every row of columns, is a whole number of them. */
template <class Op, class T> static int launch_sums(const sums_job<T> &job, Op op) {
    constexpr int V = cairn__pack_of<T>;
    const struct cairn__norm_parts *p = job.parts;
    const bool in_packs = p->columns ? p->groups % V == 0 && p->groups >= (size_t)CAIRN__CUDA_WARP * V : p->n % V == 0;
    return in_packs ? launch_sums_in<V>(job, op) : launch_sums_in<1>(job, op);
}

int cairn__launch_norm_sums(struct CUstream_st *stream, const struct cairn__norm *norm, enum cairn__norm_sums which,
                            const struct cairn__norm_parts *parts, size_t per_mean, double *sums) {
    return cairn__with_math(norm->dtype, [&](auto e) {
        typedef decltype(e) T;
        typedef typename cairn__r_of<T>::type R;
        const R *mean = (const R *)norm->mean, *rstd = (const R *)norm->rstd;
        const sums_job<T> job = {stream, (const T *)norm->x, (const T *)norm->dy, parts, sums};
        switch (which) {
        case CAIRN__NORM_MOMENTS:
            return launch_sums(job, moments<T>{job.x});
        case CAIRN__NORM_ROW_SLOPES:
            return launch_sums(job, row_slopes<T>{norm->kind == CAIRN__NORM_RMS ? NULL : mean, rstd, 0, 0});
        default:
            return launch_sums(job, slopes<T>{mean, per_mean});
        }
    });
}

/* ---- what statistics are made of: one group a thread of the first warp ---- */

/* Of a norm over channels or groups; group g has `per_group` channels, of `per` groups that are one outer index. */
template <class T> struct grouped {
    typedef typename cairn__r_of<T>::type R;
    const T *x;
    cairn__affine<T> weight, bias;
    R *mean, *rstd, *variance;
    double *shared;
    size_t groups, per_group, channels, inner;
    double count, eps; /* values of a group */
    bool given, takes, tells;
    void *dweight, *dbias;
    cairn_dtype affine_dtype;

    CAIRN__DEVICE size_t first_of(size_t group) const { return group * per_group * inner; }
    CAIRN__DEVICE double values() const { return takes ? shared[0] : count; }
    CAIRN__DEVICE double *shared_of(size_t channel) const { return &shared[1 + 2 * channel]; }
};

template <class T> static grouped<T> grouped_from(const struct cairn__norm *norm, size_t groups) {
    typedef typename grouped<T>::R R;
    const bool by_channel = norm->kind == CAIRN__NORM_CHANNELS;
    grouped<T> g = {(const T *)norm->x};
    g.weight = cairn__affine_of<T>(norm, norm->weight), g.bias = cairn__affine_of<T>(norm, norm->bias);
    g.mean = (R *)norm->mean, g.rstd = (R *)norm->rstd, g.variance = (R *)norm->variance;
    g.shared = norm->shared;
    g.groups = groups;
    g.per_group = by_channel ? 1 : (size_t)(norm->channels / norm->per);
    g.channels = (size_t)norm->channels, g.inner = (size_t)norm->inner;
    g.count = (double)(by_channel ? norm->outer : (int64_t)g.per_group) * (double)norm->inner;
    g.eps = norm->eps;
    g.given = norm->given_stats;
    g.takes = norm->share == CAIRN__NORM_TAKES, g.tells = norm->share == CAIRN__NORM_TELLS;
    g.dweight = norm->dweight, g.dbias = norm->dbias, g.affine_dtype = norm->affine_dtype;
    return g;
}

/* A mean is NaN where a value is infinite, as that of two passes is. */
template <class T>
static CAIRN__DEVICE void find_moments(const grouped<T> &g, size_t group, double d, double squares, double *mean,
                                       double *variance) {
    if (g.takes) {
        *mean = g.shared_of(group)[0], *variance = g.shared_of(group)[1];
        return;
    }
    const double m = (double)cairn__load(g.x + g.first_of(group)) + d / g.count, q = squares - d * d / g.count;
    *mean = m + (m - m);
    *variance = q < 0 ? 0 : q / g.count;
}

template <class T>
static CAIRN__DEVICE void keep_moments(const grouped<T> &g, size_t group, double mean, double variance) {
    typedef typename grouped<T>::R R;
    if (g.tells) {
        g.shared_of(group)[0] = mean, g.shared_of(group)[1] = variance;
        if (group == 0) g.shared[0] = g.count;
        return;
    }
    g.mean[group] = (R)mean, g.rstd[group] = (R)(1 / sqrt(variance + g.eps));
    if (g.variance) g.variance[group] = (R)variance;
}

/* Factors of the planes of a block's groups, which lie one after the other, by all of its threads. */
template <class T>
static CAIRN__KERNEL norm_stats(grouped<T> g, size_t parts, const double *sums, typename grouped<T>::R *factors) {
    const size_t begin = (size_t)blockIdx.x * CAIRN__NORM_COLUMNS, group = begin + threadIdx.x;
    const bool mine = threadIdx.x < CAIRN__NORM_COLUMNS && group < g.groups;
    if (!g.given) {
        double d = 0, squares = 0, mean, variance;
        if (!g.takes) {
            d = cairn__sum_of_parts(sums, parts, g.groups);
            squares = cairn__sum_of_parts(sums + parts * g.groups, parts, g.groups);
        }
        if (mine) {
            find_moments(g, group, d, squares, &mean, &variance);
            keep_moments(g, group, mean, variance);
        }
        __syncthreads();
    }
    if (!factors) return;
    const size_t rest = g.groups - begin, groups = rest < CAIRN__NORM_COLUMNS ? rest : CAIRN__NORM_COLUMNS;
    const size_t period = g.groups * g.per_group;
    for (size_t i = threadIdx.x; i < groups * g.per_group; i += CAIRN__CUDA_THREADS) {
        const size_t plane = begin * g.per_group + i, of = begin + i / g.per_group, channel = plane % g.channels;
        factors[plane] = g.mean[of];
        factors[period + plane] = g.rstd[of] * g.weight.at(channel, 1);
        factors[2 * period + plane] = g.bias.at(channel, 0);
    }
}

int cairn__launch_norm_stats(struct CUstream_st *stream, const struct cairn__norm *norm, size_t groups, size_t parts,
                             const double *sums, void *factors) {
    return cairn__with_math(norm->dtype, [&](auto e) {
        typedef decltype(e) T;
        return cairn__launch(norm_stats<T>, cairn__column_blocks(groups), CAIRN__CUDA_THREADS, stream,
                             grouped_from<T>(norm, groups), parts, sums, (typename grouped<T>::R *)factors);
    });
}

/* ---- backward ---- */

/* dx = dy * a + ((x - mean) * b + c) of a plane. sum: of dy, product: of dy * (x - mean), of the group. */
template <class R>
static CAIRN__DEVICE void put_slope_factors(R *factors, size_t period, size_t plane, R mean, double a, double b,
                                            double c) {
    factors[plane] = mean, factors[period + plane] = (R)a;
    factors[2 * period + plane] = (R)b, factors[3 * period + plane] = (R)c;
}

template <class T>
static CAIRN__KERNEL channel_slopes(grouped<T> g, size_t parts, const double *sums, typename grouped<T>::R *factors) {
    typedef typename grouped<T>::R R;
    const size_t c = (size_t)blockIdx.x * CAIRN__NORM_COLUMNS + threadIdx.x;
    double sum = 0, product = 0;
    if (!g.takes) {
        sum = cairn__sum_of_parts(sums, parts, g.groups);
        product = cairn__sum_of_parts(sums + parts * g.groups, parts, g.groups);
    }
    if (threadIdx.x >= CAIRN__NORM_COLUMNS || c >= g.groups) return;
    const double rstd = (double)g.rstd[c], a = rstd * (double)g.weight.at(c, 1), n = g.values();
    if (g.takes) {
        sum = g.shared_of(c)[0], product = g.shared_of(c)[1];
    } else {
        if (g.dweight) cairn__store_any<double>(g.dweight, g.affine_dtype, c, product * rstd);
        if (g.dbias) cairn__store_any<double>(g.dbias, g.affine_dtype, c, sum);
    }
    if (g.tells) {
        g.shared_of(c)[0] = sum, g.shared_of(c)[1] = product;
        if (c == 0) g.shared[0] = g.count;
    }
    if (!factors) return;
    put_slope_factors(factors, g.groups, c, g.mean[c], a, g.given ? 0 : -a * rstd * rstd * product / n,
                      g.given ? 0 : -a * sum / n);
}

int cairn__launch_norm_channel_slopes(struct CUstream_st *stream, const struct cairn__norm *norm, size_t parts,
                                      const double *sums, void *factors) {
    return cairn__with_math(norm->dtype, [&](auto e) {
        typedef decltype(e) T;
        const size_t channels = (size_t)norm->channels;
        return cairn__launch(channel_slopes<T>, cairn__column_blocks(channels), CAIRN__CUDA_THREADS, stream,
                             grouped_from<T>(norm, channels), parts, sums, (typename grouped<T>::R *)factors);
    });
}

/* A warp has a group, lane l its planes l, l + 32, .... whole may be sums: a lane reads its planes before it writes. */
template <class T>
static CAIRN__KERNEL group_slopes(grouped<T> g, size_t parts, const double *sums, double *whole,
                                  typename grouped<T>::R *factors) {
    typedef typename grouped<T>::R R;
    const size_t group = (size_t)blockIdx.x * CAIRN__CUDA_WARPS + threadIdx.x / CAIRN__CUDA_WARP;
    const size_t planes = g.groups * g.per_group, first = group * g.per_group;
    if (group >= g.groups) return;
    const R mean = g.mean[group];
    const double rstd = (double)g.rstd[group];
    double sum = 0, product = 0;
    for (size_t j = threadIdx.x % CAIRN__CUDA_WARP; j < g.per_group; j += CAIRN__CUDA_WARP) {
        const size_t plane = first + j;
        const double weight = (double)g.weight.at(plane % g.channels, 1);
        double of_plane[2] = {0, 0};
        for (size_t p = 0; p < parts; p++) {
            of_plane[0] += sums[p * planes + plane];
            of_plane[1] += sums[(parts + p) * planes + plane];
        }
        sum += weight * of_plane[0], product += weight * of_plane[1];
        whole[plane] = of_plane[1] * rstd, whole[planes + plane] = of_plane[0];
    }
    sum = cairn__sum_of_warp(sum), product = cairn__sum_of_warp(product);
    if (!factors) return;
    for (size_t j = threadIdx.x % CAIRN__CUDA_WARP; j < g.per_group; j += CAIRN__CUDA_WARP)
        put_slope_factors(factors, planes, first + j, mean, rstd * (double)g.weight.at((first + j) % g.channels, 1),
                          -rstd * rstd * rstd * product / g.count, -rstd * sum / g.count);
}

int cairn__launch_norm_group_slopes(struct CUstream_st *stream, const struct cairn__norm *norm, size_t parts,
                                    const double *sums, double *whole, void *factors) {
    return cairn__with_math(norm->dtype, [&](auto e) {
        typedef decltype(e) T;
        const size_t groups = (size_t)(norm->outer * norm->per);
        return cairn__launch(group_slopes<T>, (groups + CAIRN__CUDA_WARPS - 1) / CAIRN__CUDA_WARPS, CAIRN__CUDA_THREADS,
                             stream, grouped_from<T>(norm, groups), parts, sums, whole,
                             (typename grouped<T>::R *)factors);
    });
}

/* ---- the walk over all elements, with the factors of their planes ---- */

template <class R, int FACTORS> struct planes_of {
    const R *factors;
    size_t inner, period;
    bool packed; /* planes of one element: factors can be read in packs */

    static CAIRN__DEVICE size_t quotient(size_t a, size_t b) {
        return (a | b) >> 32 ? a / b : (uint32_t)a / (uint32_t)b;
    }
    /* Those of elements i, ... i + V - 1. */
    template <int V> CAIRN__DEVICE void read(size_t i, R (&to)[FACTORS][V]) const {
        size_t plane = quotient(i, inner), at = i - plane * inner;
        plane -= quotient(plane, period) * period;
        if (inner == 1 && packed) {
#pragma unroll
            for (int f = 0; f < FACTORS; f++) cairn__read_numbers<V>(V > 1, factors + f * period + plane, to[f]);
            return;
        }
        R now[FACTORS];
#pragma unroll
        for (int f = 0; f < FACTORS; f++) now[f] = factors[f * period + plane];
        const bool crosses = at + V > inner;
#pragma unroll
        for (int k = 0; k < V; k++) {
            if (k > 0 && crosses && ++at == inner) {
                at = 0;
                if (++plane == period) plane = 0;
#pragma unroll
                for (int f = 0; f < FACTORS; f++) now[f] = factors[f * period + plane];
            }
#pragma unroll
            for (int f = 0; f < FACTORS; f++) to[f][k] = now[f];
        }
    }
};

template <class T> struct apply_op {
    typedef typename cairn__r_of<T>::type R;
    T *y;
    const T *x;
    planes_of<R, CAIRN__NORM_FACTORS> planes;
    template <int V> struct in { T x[V]; };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const { cairn__read<V>(a->x, x + i); }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &a) const {
        R value[V], factor[CAIRN__NORM_FACTORS][V];
        T result[V];
        cairn__widen_any<V>(a.x, value);
        planes.template read<V>(i, factor);
#pragma unroll
        for (int k = 0; k < V; k++) value[k] = (value[k] - factor[0][k]) * factor[1][k] + factor[2][k];
        cairn__narrow_any<V>(value, result);
        cairn__write<V>(y + i, result);
    }
};

template <class T> struct apply_slopes_op {
    typedef typename cairn__r_of<T>::type R;
    T *dx;
    const T *x, *dy;
    planes_of<R, CAIRN__NORM_SLOPE_FACTORS> planes;
    template <int V> struct in { T x[V], dy[V]; };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const {
        cairn__read<V>(a->x, x + i);
        cairn__read<V>(a->dy, dy + i);
    }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &a) const {
        R value[V], dy_value[V], factor[CAIRN__NORM_SLOPE_FACTORS][V];
        T result[V];
        cairn__widen_any<V>(a.x, value);
        cairn__widen_any<V>(a.dy, dy_value);
        planes.template read<V>(i, factor);
#pragma unroll
        for (int k = 0; k < V; k++)
            value[k] = dy_value[k] * factor[1][k] + ((value[k] - factor[0][k]) * factor[2][k] + factor[3][k]);
        cairn__narrow_any<V>(value, result);
        cairn__write<V>(dx + i, result);
    }
};

enum { APPLY_PACKS = 2 }; /* a thread has under way */

template <class T, class Op> static CAIRN__KERNEL apply_tensor(Op op, size_t n, bool packed) {
    cairn__walk_tensor<cairn__pack_of<T>, APPLY_PACKS>(packed, n, op);
}

template <int FACTORS, class T>
static planes_of<typename cairn__r_of<T>::type, FACTORS> planes_from(const struct cairn__norm *norm,
                                                                     const void *factors, size_t period) {
    typedef typename cairn__r_of<T>::type R;
    return {(const R *)factors, (size_t)norm->inner, period, period % cairn__pack_of<T> == 0};
}

template <class T, class Op>
static int launch_apply(struct CUstream_st *stream, const struct cairn__norm *norm, Op op, bool packed) {
    const size_t n = (size_t)(norm->outer * norm->channels * norm->inner);
    return cairn__launch(apply_tensor<T, Op>, cairn__tensor_blocks<cairn__pack_of<T>, APPLY_PACKS>(n),
                         CAIRN__CUDA_THREADS, stream, op, n, packed);
}

int cairn__launch_norm_apply(struct CUstream_st *stream, const struct cairn__norm *norm, const void *factors,
                             size_t period) {
    return cairn__with_math(norm->dtype, [&](auto e) {
        typedef decltype(e) T;
        const apply_op<T> op = {(T *)norm->y, (const T *)norm->x,
                                planes_from<CAIRN__NORM_FACTORS, T>(norm, factors, period)};
        return launch_apply<T>(stream, norm, op, cairn__is_packed(op.y) && cairn__is_packed(op.x));
    });
}

int cairn__launch_norm_apply_slopes(struct CUstream_st *stream, const struct cairn__norm *norm, const void *factors,
                                    size_t period) {
    return cairn__with_math(norm->dtype, [&](auto e) {
        typedef decltype(e) T;
        const apply_slopes_op<T> op = {(T *)norm->dx, (const T *)norm->x, (const T *)norm->dy,
                                       planes_from<CAIRN__NORM_SLOPE_FACTORS, T>(norm, factors, period)};
        return launch_apply<T>(stream, norm, op,
                               cairn__is_packed(op.dx) && cairn__is_packed(op.x) && cairn__is_packed(op.dy));
    });
}

/* ---- running statistics ---- */

template <class R, class T>
static CAIRN__KERNEL batch_stats(T *running_mean, T *running_var, const R *mean, const R *variance, size_t channels,
                                 double count, const double *shared, double momentum) {
    const size_t c = (size_t)blockIdx.x * CAIRN__CUDA_THREADS + threadIdx.x;
    const double n = shared ? shared[0] : count;
    if (c >= channels || n == 0) return;
    const double unbiased = (double)variance[c] * n / (n - 1);
    running_mean[c] = (T)((1 - momentum) * (double)running_mean[c] + momentum * (double)mean[c]);
    running_var[c] = (T)((1 - momentum) * (double)running_var[c] + momentum * unbiased);
}

template <class R, class T>
static int launch_batch_stats(struct CUstream_st *stream, void *running_mean, void *running_var,
                              const struct cairn__norm *norm, double momentum) {
    const size_t channels = (size_t)norm->channels;
    return cairn__launch(batch_stats<R, T>, (channels + CAIRN__CUDA_THREADS - 1) / CAIRN__CUDA_THREADS,
                         CAIRN__CUDA_THREADS, stream, (T *)running_mean, (T *)running_var, (const R *)norm->mean,
                         (const R *)norm->variance, channels, (double)norm->outer * (double)norm->inner,
                         norm->share == CAIRN__NORM_TAKES ? norm->shared : NULL, momentum);
}

int cairn__launch_batch_stats(struct CUstream_st *stream, cairn_dtype running_dtype, void *running_mean,
                              void *running_var, const struct cairn__norm *norm, double momentum) {
    if (norm->dtype == CAIRN_F64) {
        return running_dtype == CAIRN_F64
                   ? launch_batch_stats<double, double>(stream, running_mean, running_var, norm, momentum)
                   : launch_batch_stats<double, float>(stream, running_mean, running_var, norm, momentum);
    }
    return running_dtype == CAIRN_F64
               ? launch_batch_stats<float, double>(stream, running_mean, running_var, norm, momentum)
               : launch_batch_stats<float, float>(stream, running_mean, running_var, norm, momentum);
}

/* ---- shares of a batch ---- */

static CAIRN__KERNEL merge_moments(double *shared, const double *all, size_t shares, size_t channels) {
    const size_t c = (size_t)blockIdx.x * CAIRN__CUDA_THREADS + threadIdx.x, stride = 1 + 2 * channels;
    const double total = cairn__total_count(all, shares, stride);
    if (c == 0) shared[0] = total;
    if (c < channels && total > 0) cairn__merge_pair(&shared[1 + 2 * c], all, shares, stride, 1 + 2 * c, total);
}

int cairn__launch_merge_moments(struct CUstream_st *stream, double *shared, const double *all, size_t shares,
                                size_t channels) {
    const size_t blocks = channels / CAIRN__CUDA_THREADS + 1; /* one of no channels has the count */
    return cairn__launch(merge_moments, blocks, CAIRN__CUDA_THREADS, stream, shared, all, shares, channels);
}
