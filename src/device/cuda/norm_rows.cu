/* Layer and RMS norm: a row is a group, and has a weight for each of its elements. */
#include "device/cuda/norm_kernel.cuh"

/* I: the type of places in a row. */
template <class T, class I> struct rows_of {
    typedef typename cairn__r_of<T>::type R;
    const T *x, *dy;
    T *y, *dx;
    cairn__affine<T> weight, bias;
    R *mean, *rstd, *variance;
    size_t rows;
    I n;
    double share, eps; /* 1 / n */
    bool centred, given, packed;
};

template <class T, class I> static rows_of<T, I> rows_from(const struct cairn__norm *norm) {
    typedef typename rows_of<T, I>::R R;
    const I n = (I)norm->channels;
    rows_of<T, I> rows = {(const T *)norm->x, (const T *)norm->dy, (T *)norm->y, (T *)norm->dx};
    rows.weight = cairn__affine_of<T>(norm, norm->weight), rows.bias = cairn__affine_of<T>(norm, norm->bias);
    rows.mean = (R *)norm->mean, rows.rstd = (R *)norm->rstd, rows.variance = (R *)norm->variance;
    rows.rows = (size_t)norm->outer, rows.n = n;
    rows.share = 1 / (double)n, rows.eps = norm->eps;
    rows.centred = norm->kind != CAIRN__NORM_RMS, rows.given = norm->given_stats;
    rows.packed = n % cairn__pack_of<T> == 0 && cairn__is_packed(norm->x) && cairn__is_packed(norm->dy) &&
                  cairn__is_packed(norm->y) && cairn__is_packed(norm->dx) && cairn__is_packed(norm->weight) &&
                  cairn__is_packed(norm->bias);
    return rows;
}

/* ---- statistics of a row ---- */

/* Over a warp or the block, for all of its threads. */
template <int TEAM> static CAIRN__DEVICE double sum_of_team(double sum) {
    if constexpr (TEAM == CAIRN__CUDA_WARP) return cairn__sum_of_warp(sum);
    else return cairn__sum_of_block(sum);
}

template <class R> struct stats { R mean, rstd; };

/* first: sum of x, or of its square where not centred. In the second pass d and its square, of x - mean as R. */
template <int TEAM, class T, class I, class Again>
static CAIRN__DEVICE stats<typename rows_of<T, I>::R> stats_of(const rows_of<T, I> &rows, size_t row, double first,
                                                               Again again) {
    typedef typename rows_of<T, I>::R R;
    double mean = 0, variance = sum_of_team<TEAM>(first) * rows.share;
    if (rows.centred) {
        const R guess = (R)variance;
        double d = 0, squares = 0;
        again(guess, &d, &squares);
        d = sum_of_team<TEAM>(d), squares = sum_of_team<TEAM>(squares);
        mean = (double)guess + d * rows.share;
        variance = squares - d * d * rows.share;
        variance = variance < 0 ? 0 : variance * rows.share;
    }
    const stats<R> found = {(R)mean, (R)(1 / sqrt(variance + rows.eps))};
    if (threadIdx.x % TEAM == 0) {
        if (rows.centred) rows.mean[row] = found.mean;
        if (rows.variance) rows.variance[row] = (R)variance;
        rows.rstd[row] = found.rstd;
    }
    return found;
}

template <class T, class I>
static CAIRN__DEVICE stats<typename rows_of<T, I>::R> kept_stats(const rows_of<T, I> &rows, size_t row) {
    stats<typename rows_of<T, I>::R> kept = {0, rows.rstd[row]};
    if (rows.centred) kept.mean = rows.mean[row];
    return kept;
}

/* What a pack adds to the first sum, and to those of the second pass. */
template <int V, class R> static CAIRN__DEVICE double first_sum(const R (&x)[V], bool centred) {
    R lane[V];
#pragma unroll
    for (int k = 0; k < V; k++) lane[k] = centred ? x[k] : x[k] * x[k];
    return (double)cairn__sum_of(lane);
}

template <int V, class R> static CAIRN__DEVICE void add_second(const R (&x)[V], R guess, double *d, double *squares) {
    R lane[V], square[V];
#pragma unroll
    for (int k = 0; k < V; k++) {
        lane[k] = x[k] - guess;
        square[k] = lane[k] * lane[k];
    }
    *d += (double)cairn__sum_of(lane);
    *squares += (double)cairn__sum_of(square);
}

/* ---- forward ---- */

/* Elements i.. of a row, normalised. */
template <int V, class T, class I, class R>
static CAIRN__DEVICE void write_normed(const rows_of<T, I> &rows, size_t row, I i, const R (&x)[V], stats<R> s) {
    R y[V], factor[V];
    T result[V];
#pragma unroll
    for (int k = 0; k < V; k++) y[k] = (x[k] - s.mean) * s.rstd;
    if (rows.weight) {
        rows.weight.template read<V>(rows.packed, i, rows.n, factor);
#pragma unroll
        for (int k = 0; k < V; k++) y[k] = y[k] * factor[k];
    }
    if (rows.bias) {
        rows.bias.template read<V>(rows.packed, i, rows.n, factor);
#pragma unroll
        for (int k = 0; k < V; k++) y[k] = y[k] + factor[k];
    }
    cairn__narrow_any<V>(y, result);
    cairn__write_part<V>(rows.packed, rows.y + row * rows.n, i, rows.n, result);
}

/* Elements past the end must not differ from the mean. */
template <int V, class I, class R> static CAIRN__DEVICE void set_past_end(I i, I n, R value, R (&x)[V]) {
    if (i + V <= n) return;
#pragma unroll
    for (int k = 0; k < V; k++) {
        if (i + k >= n) x[k] = value;
    }
}

/* A team, a warp or the block, has a row in registers, PACKS packs a thread. */
template <class T, int TEAM, int PACKS> static CAIRN__KERNEL norm_kept_rows(rows_of<T, uint32_t> rows) {
    typedef typename rows_of<T, uint32_t>::R R;
    constexpr int V = cairn__pack_of<T>;
    const size_t row = (size_t)blockIdx.x * (CAIRN__CUDA_THREADS / TEAM) + threadIdx.x / TEAM;
    const uint32_t n = rows.n, begin = threadIdx.x % TEAM * V;
    if (row >= rows.rows) return;
    T in[PACKS][V];
    R x[PACKS][V];
#pragma unroll
    for (int p = 0; p < PACKS; p++) cairn__read_part<V>(rows.packed, rows.x + row * n, begin + p * TEAM * V, n, in[p]);
#pragma unroll
    for (int p = 0; p < PACKS; p++) cairn__widen_any<V>(in[p], x[p]);
    stats<R> s;
    if (rows.given) {
        s = kept_stats(rows, row);
    } else {
        double first = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++) first += first_sum<V>(x[p], rows.centred);
        s = stats_of<TEAM>(rows, row, first, [&](R guess, double *d, double *squares) {
#pragma unroll
            for (int p = 0; p < PACKS; p++) {
                set_past_end<V>(begin + p * TEAM * V, n, guess, x[p]);
                add_second<V>(x[p], guess, d, squares);
            }
        });
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const uint32_t i = begin + p * TEAM * V;
        if (i < n) write_normed<V>(rows, row, i, x[p], s);
    }
}

/* Any row, a block each, which reads it three times. */
template <class T> static CAIRN__KERNEL norm_wide_rows(rows_of<T, size_t> rows) {
    typedef typename rows_of<T, size_t>::R R;
    constexpr int V = cairn__pack_of<T>;
    const size_t row = blockIdx.x, n = rows.n;
    const auto each = [&](auto use) {
#pragma unroll 4
        for (size_t i = (size_t)threadIdx.x * V; i < n; i += (size_t)CAIRN__CUDA_THREADS * V) {
            T in[V];
            R x[V];
            cairn__read_part<V>(rows.packed, rows.x + row * n, i, n, in);
            cairn__widen_any<V>(in, x);
            use(i, x);
        }
    };
    stats<R> s;
    if (rows.given) {
        s = kept_stats(rows, row);
    } else {
        double first = 0;
        each([&](size_t, R(&x)[V]) { first += first_sum<V>(x, rows.centred); });
        s = stats_of<CAIRN__CUDA_THREADS>(rows, row, first, [&](R guess, double *d, double *squares) {
            each([&](size_t i, R(&x)[V]) {
                set_past_end<V>(i, n, guess, x);
                add_second<V>(x, guess, d, squares);
            });
        });
    }
    each([&](size_t i, R(&x)[V]) { write_normed<V>(rows, row, i, x, s); });
}

/* ---- how rows are kept ---- */

template <int TEAM, int ELEMENTS> struct kept_in {
    static constexpr int team = TEAM, elements = ELEMENTS; /* of a thread */
};

/* Calls use with the smallest team and number of elements that hold a row. */
template <class Use> static int with_kept(size_t n, Use use) {
    constexpr int WARP = CAIRN__CUDA_WARP, BLOCK = CAIRN__CUDA_THREADS;
    if (n <= WARP * 8) return use(kept_in<WARP, 8>());
    if (n <= WARP * 16) return use(kept_in<WARP, 16>());
    if (n <= WARP * 24) return use(kept_in<WARP, 24>());
    if (n <= CAIRN__NORM_WARP_ROW) return use(kept_in<WARP, 32>());
    if (n <= BLOCK * 8) return use(kept_in<BLOCK, 8>());
    if (n <= BLOCK * 16) return use(kept_in<BLOCK, 16>());
    return use(kept_in<BLOCK, 32>());
}

int cairn__launch_norm_rows(struct CUstream_st *stream, const struct cairn__norm *norm) {
    const size_t count = (size_t)norm->outer, n = (size_t)norm->channels;
    if (norm->dtype == CAIRN_F64 || n > CAIRN__NORM_BLOCK_ROW) {
        return cairn__with_math(norm->dtype, [&](auto e) {
            typedef decltype(e) T;
            return cairn__launch(norm_wide_rows<T>, count, CAIRN__CUDA_THREADS, stream, rows_from<T, size_t>(norm));
        });
    }
    return cairn__with_float(norm->dtype, [&](auto e) {
        typedef decltype(e) T;
        return with_kept(n, [&](auto kept) {
            constexpr int TEAM = decltype(kept)::team, PACKS = decltype(kept)::elements / cairn__pack_of<T>;
            constexpr size_t TEAMS = CAIRN__CUDA_THREADS / TEAM;
            return cairn__launch(norm_kept_rows<T, TEAM, PACKS>, (count + TEAMS - 1) / TEAMS, CAIRN__CUDA_THREADS,
                                 stream, rows_from<T, uint32_t>(norm));
        });
    });
}

/* ---- backward ---- */

/* h = (x - mean) * rstd and g = dy * weight of elements i.. of a row; 0 past the end. */
template <class T, class I, int V> struct row_part {
    typedef typename rows_of<T, I>::R R;
    R dy[V], h[V], g[V];

    CAIRN__DEVICE row_part(const rows_of<T, I> &rows, I i, const T (&x)[V], const T (&dy_in)[V], stats<R> s) {
        R wide[V];
        cairn__widen_any<V>(dy_in, dy);
        cairn__widen_any<V>(x, wide);
        if (rows.weight) rows.weight.template read<V>(rows.packed, i, rows.n, g);
#pragma unroll
        for (int k = 0; k < V; k++) {
            h[k] = (wide[k] - s.mean) * s.rstd;
            g[k] = rows.weight ? dy[k] * g[k] : dy[k];
        }
    }
    CAIRN__DEVICE void add_sums(double *sum, double *product) const {
        R lane[V], second[V];
#pragma unroll
        for (int k = 0; k < V; k++) {
            lane[k] = g[k];
            second[k] = g[k] * h[k];
        }
        *sum += (double)cairn__sum_of(lane);
        *product += (double)cairn__sum_of(second);
    }
    CAIRN__DEVICE void write_dx(const rows_of<T, I> &rows, size_t row, I i, R sum, R product, R rstd) const {
        R dx[V];
        T result[V];
#pragma unroll
        for (int k = 0; k < V; k++) dx[k] = ((g[k] - sum) - h[k] * product) * rstd;
        cairn__narrow_any<V>(dx, result);
        cairn__write_part<V>(rows.packed, rows.dx + row * rows.n, i, rows.n, result);
    }
};

/* A thread's sums of columns, over its rows. */
template <int PACKS, int V> struct column_sums { float dweight[PACKS][V], dbias[PACKS][V]; };

/* Over the block's teams, to its row of `sums`. */
template <int TEAM, int PACKS, int V>
static CAIRN__DEVICE void leave_columns(const float (&sum)[PACKS][V], float *sums, uint32_t n) {
    constexpr int TEAMS = CAIRN__CUDA_THREADS / TEAM;
    const uint32_t thread = threadIdx.x % TEAM;
    if constexpr (TEAMS == 1) {
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
#pragma unroll
            for (int k = 0; k < V; k++) {
                const uint32_t i = (p * TEAM + thread) * V + k;
                if (i < n) sums[i] = sum[p][k];
            }
        }
    } else {
        __shared__ float teams[TEAMS][TEAM * V];
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            __syncthreads();
#pragma unroll
            for (int k = 0; k < V; k++) teams[threadIdx.x / TEAM][thread * V + k] = sum[p][k];
            __syncthreads();
            const uint32_t i = p * TEAM * V + threadIdx.x;
            if (threadIdx.x >= TEAM * V || i >= n) continue;
            double lane[TEAMS];
#pragma unroll
            for (int t = 0; t < TEAMS; t++) lane[t] = (double)teams[t][threadIdx.x];
            sums[i] = (float)cairn__sum_of(lane);
        }
    }
}

/* Blocks that a multiprocessor has room for, without registers that spill: the compiler keeps more of f16, which is
 * widened at a cost. */
template <class T, int PACKS> constexpr int blocks_at_once = PACKS *cairn__pack_of<T> <= 24 ? 2 : 1;
template <> constexpr int blocks_at_once<cairn__f16, 3> = 1;

/* Rows of a block go to its teams in turn. */
template <class T, int TEAM, int PACKS>
static __global__ void CAIRN__BOUNDS((blocks_at_once<T, PACKS>))
    norm_kept_rows_backward(rows_of<T, uint32_t> rows, size_t rows_a_team, float *sums) {
    constexpr int V = cairn__pack_of<T>, TEAMS = CAIRN__CUDA_THREADS / TEAM;
    const uint32_t n = rows.n, begin = threadIdx.x % TEAM * V;
    column_sums<PACKS, V> columns = {};
    for (size_t r = 0; r < rows_a_team; r++) {
        const size_t row = (blockIdx.x * rows_a_team + r) * TEAMS + threadIdx.x / TEAM;
        if (row >= rows.rows) break;
        T x[PACKS][V], dy[PACKS][V];
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            cairn__read_part<V>(rows.packed, rows.x + row * n, begin + p * TEAM * V, n, x[p]);
            cairn__read_part<V>(rows.packed, rows.dy + row * n, begin + p * TEAM * V, n, dy[p]);
        }
        const stats<float> s = kept_stats(rows, row);
        double sum = 0, product = 0;
#pragma unroll
        for (int p = 0; p < PACKS; p++)
            row_part<T, uint32_t, V>(rows, begin + p * TEAM * V, x[p], dy[p], s).add_sums(&sum, &product);
        const float of_g = rows.centred ? (float)(sum_of_team<TEAM>(sum) * rows.share) : 0;
        const float of_product = (float)(sum_of_team<TEAM>(product) * rows.share);
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const uint32_t i = begin + p * TEAM * V;
            if (i >= n) continue;
            const row_part<T, uint32_t, V> part(rows, i, x[p], dy[p], s);
            if (rows.dx) part.write_dx(rows, row, i, of_g, of_product, s.rstd);
#pragma unroll
            for (int k = 0; k < V; k++) {
                columns.dweight[p][k] += part.dy[k] * part.h[k];
                columns.dbias[p][k] += part.dy[k];
            }
        }
    }
    if (!sums) return;
    leave_columns<TEAM>(columns.dweight, sums + blockIdx.x * n, n);
    leave_columns<TEAM>(columns.dbias, sums + ((size_t)gridDim.x + blockIdx.x) * n, n);
}

int cairn__launch_norm_rows_backward(struct CUstream_st *stream, const struct cairn__norm *norm,
                                     const struct cairn__norm_teams *teams, void *sums) {
    return cairn__with_float(norm->dtype, [&](auto e) {
        typedef decltype(e) T;
        return with_kept((size_t)norm->channels, [&](auto kept) {
            constexpr int TEAM = decltype(kept)::team, PACKS = decltype(kept)::elements / cairn__pack_of<T>;
            return cairn__launch(norm_kept_rows_backward<T, TEAM, PACKS>, teams->blocks, CAIRN__CUDA_THREADS, stream,
                                 rows_from<T, uint32_t>(norm), teams->rows, (float *)sums);
        });
    });
}

template <class T> static CAIRN__KERNEL norm_wide_rows_backward(rows_of<T, size_t> rows) {
    typedef typename rows_of<T, size_t>::R R;
    constexpr int V = cairn__pack_of<T>;
    const size_t row = blockIdx.x, n = rows.n;
    const stats<R> s = kept_stats(rows, row);
    const auto each = [&](auto use) {
#pragma unroll 2
        for (size_t i = (size_t)threadIdx.x * V; i < n; i += (size_t)CAIRN__CUDA_THREADS * V) {
            T x[V], dy[V];
            cairn__read_part<V>(rows.packed, rows.x + row * n, i, n, x);
            cairn__read_part<V>(rows.packed, rows.dy + row * n, i, n, dy);
            use(i, row_part<T, size_t, V>(rows, i, x, dy, s));
        }
    };
    double sum = 0, product = 0;
    each([&](size_t, const row_part<T, size_t, V> &part) { part.add_sums(&sum, &product); });
    const R of_g = rows.centred ? (R)(cairn__sum_of_block(sum) * rows.share) : 0;
    const R of_product = (R)(cairn__sum_of_block(product) * rows.share);
    each([&](size_t i, const row_part<T, size_t, V> &part) { part.write_dx(rows, row, i, of_g, of_product, s.rstd); });
}

int cairn__launch_norm_wide_rows_backward(struct CUstream_st *stream, const struct cairn__norm *norm) {
    return cairn__with_math(norm->dtype, [&](auto e) {
        typedef decltype(e) T;
        return cairn__launch(norm_wide_rows_backward<T>, (size_t)norm->outer, CAIRN__CUDA_THREADS, stream,
                             rows_from<T, size_t>(norm));
    });
}

/* ---- dweight and dbias ---- */

template <class R, class S>
static CAIRN__KERNEL finish_affine(void *dweight, void *dbias, cairn_dtype type, const S *sums, size_t parts,
                                   size_t columns) {
    const size_t column = (size_t)blockIdx.x * CAIRN__NORM_COLUMNS + threadIdx.x;
    const bool mine = threadIdx.x < CAIRN__NORM_COLUMNS && column < columns;
    if (dweight) {
        const double sum = cairn__sum_of_parts(sums, parts, columns);
        if (mine) cairn__store_any<double>(dweight, type, column, sum);
    }
    if (dbias) {
        const double sum = cairn__sum_of_parts(sums + parts * columns, parts, columns);
        if (mine) cairn__store_any<double>(dbias, type, column, sum);
    }
}

template <class R, class S>
static int launch_affine(struct CUstream_st *stream, const struct cairn__norm *norm, const void *sums, size_t parts) {
    const size_t columns = (size_t)norm->channels;
    return cairn__launch(finish_affine<R, S>, cairn__column_blocks(columns), CAIRN__CUDA_THREADS, stream, norm->dweight,
                         norm->dbias, norm->affine_dtype, (const S *)sums, parts, columns);
}

int cairn__launch_norm_affine(struct CUstream_st *stream, const struct cairn__norm *norm, const void *sums,
                              cairn_dtype sums_dtype, size_t parts) {
    if (sums_dtype == CAIRN_F32) return launch_affine<float, float>(stream, norm, sums, parts);
    return norm->dtype == CAIRN_F64 ? launch_affine<double, double>(stream, norm, sums, parts)
                                    : launch_affine<float, double>(stream, norm, sums, parts);
}
