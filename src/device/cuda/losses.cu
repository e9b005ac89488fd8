/* Losses over rows of scores with a class a row: cross entropy from scores, and nll from logarithms; the formulas are
 * those of cpu/loss.c. Row i of the result is one of the tensor's rows and a place along `inner`. */
#include "device/cuda/losses.h"
#include "device/cuda/row_kernel.cuh"

enum {
    FEW_CLASSES = 16,    /* up to so many a thread has a row */
    LONG_ROW = 1024,     /* classes from which on a block has a row */
    PACKS_UNDER_WAY = 4, /* of a row */
    CLASSES_AT_ONCE = 8, /* of a thread that has a row; fewer of f64 */
    TILE = 1024,         /* losses that a block adds up at once */
    SUM_BLOCKS = 1024,
};

/* ---- what a row has ---- */

template <class T> using r_of = typename cairn__r_of<T>::type;

static CAIRN__DEVICE int64_t target_of(const cairn__class_loss &loss, size_t i) {
    return loss.target_dtype == CAIRN_I64 ? ((const long long *)loss.target)[i] : ((const int *)loss.target)[i];
}

/* The class of row i, or -1: ignored, or none. */
static CAIRN__DEVICE int64_t class_of(const cairn__class_loss &loss, int64_t target) {
    return target != loss.ignore_index && target >= 0 && target < loss.classes ? target : -1;
}

template <class T> CAIRN__DEVICE r_of<T> weight_of(const cairn__class_loss &loss, int64_t c) {
    return loss.weight ? cairn__load((const T *)loss.weight + c) : 1;
}

/* Where row i begins; its classes are `inner` elements apart. */
static CAIRN__DEVICE size_t first_score(const cairn__class_loss &loss, size_t i) {
    const size_t inner = (size_t)loss.inner;
    return inner == 1 ? i * (size_t)loss.classes : i / inner * (size_t)loss.classes * inner + i % inner;
}

/* What smoothing adds: `each` = smoothing / classes. */
struct smoothing {
    double each;
    const double *all_weights; /* NULL: all are 1 */
    CAIRN__DEVICE double sum_of_weights(const cairn__class_loss &loss) const {
        return all_weights ? *all_weights : (double)loss.classes;
    }
};

static smoothing smoothing_of(const cairn__class_loss *loss, const double *all_weights) {
    return {loss->smoothing / (double)loss->classes, all_weights};
}

/* ---- forward ---- */

/* The sum over classes of w (x - centre), where the centre rises while they are read. Until it is above -inf all x were
 * -inf, and the sum is, whatever the centre. */
template <class R> struct centred_sum {
    R centre = -(R)INFINITY;
    double all = 0, weights = 0;

    CAIRN__DEVICE void rise_to(R above) {
        if (centre > -(R)INFINITY && !(above == centre)) all -= ((double)above - (double)centre) * weights;
        centre = above;
    }
    CAIRN__DEVICE void add(R x, R weight) {
        all += (double)(weight * (centre > -(R)INFINITY ? x - centre : x));
        weights += (double)weight;
    }
};

/* What is read of a row: exponents, and where the loss is smoothed the weighted sum. */
template <class T> struct row_scores {
    cairn__exponents<r_of<T>> exponents;
    centred_sum<r_of<T>> centred;

    /* Classes first, first + 1, ... that are in [0, classes). */
    template <int N> CAIRN__DEVICE void add_centred(const cairn__class_loss &loss, const r_of<T> *x, int64_t first) {
        centred.rise_to(exponents.greatest);
#pragma unroll
        for (int k = 0; k < N; k++) {
            if (first + k >= 0 && first + k < loss.classes) centred.add(x[k], weight_of<T>(loss, first + k));
        }
    }
};

/* Row i is done: loss = (1 - e) w[t] (ln s - (x[t] - g)) + e / C * (W ln s - sum over c of w[c] (x[c] - g)). */
template <class T>
CAIRN__DEVICE void keep_loss(const cairn__class_loss &loss, r_of<T> *losses, const smoothing &smooth, size_t i,
                             int64_t c, r_of<T> greatest, double sum, double centred) {
    typedef r_of<T> R;
    R *lse = (R *)loss.lse + 2 * i, value = 0;
    lse[0] = c < 0 ? 0 : greatest;
    lse[1] = c < 0 ? 1 : (R)sum;
    if (c >= 0) {
        const R x = cairn__load((const T *)loss.x + first_score(loss, i) + (size_t)c * (size_t)loss.inner);
        const double e = loss.smoothing, of_sum = log(sum);
        const double hard = (double)weight_of<T>(loss, c) * (of_sum - ((double)x - (double)greatest));
        const double soft = e > 0 ? smooth.each * (smooth.sum_of_weights(loss) * of_sum - centred) : 0;
        value = (R)(e > 0 ? (1 - e) * hard + soft : hard);
    }
    if (loss.each) cairn__store((T *)loss.y + i, value);
    else losses[i] = value;
}

/* inner = 1, by a warp or the block. The weighted sum, and f64, leave registers for one pack under way. */
template <class T, int THREADS, bool SMOOTHED>
static CAIRN__KERNEL class_rows(const cairn__class_loss loss, r_of<T> *losses, const smoothing smooth) {
    constexpr int V = cairn__pack_of<T>, U = SMOOTHED || V < 4 ? 1 : PACKS_UNDER_WAY;
    const size_t i = cairn__own_row<THREADS>();
    if (i >= (size_t)loss.rows) return;
    const int64_t c = class_of(loss, target_of(loss, i));
    const cairn__row row = cairn__row_at(i, (size_t)loss.classes);
    row_scores<T> scores;
    double centred = 0;
    if (c >= 0) { /* for all threads of the row */
        cairn__walk_row<THREADS, U>((const T *)loss.x, row, [&](const auto &x, size_t pack) {
            scores.exponents.add(x);
            if (SMOOTHED) scores.template add_centred<V>(loss, x, (int64_t)(pack * V) - (int64_t)row.from);
        });
        scores.exponents.template join<THREADS>();
        if (SMOOTHED) {
            scores.centred.rise_to(scores.exponents.greatest);
            centred = cairn__sum_of_row<THREADS>(scores.centred.all);
        }
    }
    if (threadIdx.x % THREADS != 0) return;
    keep_loss<T>(loss, losses, smooth, i, c, scores.exponents.greatest, scores.exponents.sum, centred);
}

/* A thread has a row. */
template <class T, bool SMOOTHED>
static CAIRN__KERNEL class_columns(const cairn__class_loss loss, r_of<T> *losses, const smoothing smooth) {
    typedef r_of<T> R;
    constexpr int N = sizeof(R) > 4 ? 2 : CLASSES_AT_ONCE;
    const size_t i = blockIdx.x * (size_t)CAIRN__CUDA_THREADS + threadIdx.x, inner = (size_t)loss.inner;
    if (i >= (size_t)loss.rows * inner) return;
    const int64_t c = class_of(loss, target_of(loss, i));
    const T *x = (const T *)loss.x + first_score(loss, i);
    row_scores<T> scores;
    for (int64_t first = 0; c >= 0 && first < loss.classes; first += N) {
        R some[N];
#pragma unroll
        for (int k = 0; k < N; k++)
            some[k] = first + k < loss.classes ? cairn__load(x + (size_t)(first + k) * inner) : -(R)INFINITY;
        scores.exponents.add(some);
        if (SMOOTHED) scores.template add_centred<N>(loss, some, first);
    }
    keep_loss<T>(loss, losses, smooth, i, c, scores.exponents.greatest, scores.exponents.sum, scores.centred.all);
}

/* nll. */
template <class T> static CAIRN__KERNEL picked_scores(const cairn__class_loss loss, r_of<T> *losses) {
    const size_t i = blockIdx.x * (size_t)CAIRN__CUDA_THREADS + threadIdx.x;
    if (i >= (size_t)loss.rows * (size_t)loss.inner) return;
    const int64_t c = class_of(loss, target_of(loss, i));
    r_of<T> value = 0;
    if (c >= 0) {
        const T *x = (const T *)loss.x + first_score(loss, i) + (size_t)c * (size_t)loss.inner;
        value = (r_of<T>)(-(double)weight_of<T>(loss, c) * (double)cairn__load(x));
    }
    if (loss.each) cairn__store((T *)loss.y + i, value);
    else losses[i] = value;
}

static size_t blocks_of_threads(const cairn__class_loss *loss) {
    return cairn__tensor_blocks<1, 1>((size_t)loss->rows * (size_t)loss->inner);
}

static bool is_by_thread(const cairn__class_loss *loss) {
    return loss->inner != 1 || loss->classes <= FEW_CLASSES;
}

template <class T, bool SMOOTHED>
static int launch_scores(struct CUstream_st *stream, const cairn__class_loss *loss, r_of<T> *losses,
                         const smoothing &smooth) {
    constexpr int WARP = CAIRN__CUDA_WARP, BLOCK = CAIRN__CUDA_THREADS;
    const size_t rows = (size_t)loss->rows;
    if (is_by_thread(loss))
        return cairn__launch(class_columns<T, SMOOTHED>, blocks_of_threads(loss), BLOCK, stream, *loss, losses, smooth);
    if (loss->classes <= LONG_ROW)
        return cairn__launch(class_rows<T, WARP, SMOOTHED>, cairn__blocks_of_rows<WARP>(rows), BLOCK, stream, *loss,
                             losses, smooth);
    return cairn__launch(class_rows<T, BLOCK, SMOOTHED>, rows, BLOCK, stream, *loss, losses, smooth);
}

int cairn__launch_class_losses(struct CUstream_st *stream, const struct cairn__class_loss *loss, void *losses,
                               const double *all_weights) {
    const smoothing smooth = smoothing_of(loss, all_weights);
    return cairn__with_math(loss->dtype, [&](auto e) {
        typedef decltype(e) T;
        r_of<T> *to = (r_of<T> *)losses;
        if (!loss->from_logits)
            return (int)cairn__launch(picked_scores<T>, blocks_of_threads(loss), CAIRN__CUDA_THREADS, stream, *loss,
                                      to);
        return loss->smoothing > 0 ? launch_scores<T, true>(stream, loss, to, smooth)
                                   : launch_scores<T, false>(stream, loss, to, smooth);
    });
}

/* ---- sums ---- */

/* One block. */
template <class T> static CAIRN__KERNEL sum_weights(const T *weight, size_t classes, double *sum) {
    double all = 0;
#pragma unroll 4
    for (size_t c = threadIdx.x; c < classes; c += CAIRN__CUDA_THREADS) all += (double)cairn__load(weight + c);
    all = cairn__sum_of_block(all);
    if (threadIdx.x == 0) *sum = all;
}

int cairn__launch_sum_weights(struct CUstream_st *stream, const struct cairn__class_loss *loss, double *sum) {
    return cairn__with_math(loss->dtype, [&](auto e) {
        typedef decltype(e) T;
        return cairn__launch(sum_weights<T>, 1, CAIRN__CUDA_THREADS, stream, (const T *)loss->weight,
                             (size_t)loss->classes, sum);
    });
}

/* The last block adds up all partial sums: of losses, and behind them of weights. */
template <class T>
static CAIRN__KERNEL sum_losses(cairn__partials *partials, const cairn__class_loss loss, const r_of<T> *losses,
                                size_t n) {
    double sum = 0, weights = 0;
    bool bad = false;
    for (size_t tile = blockIdx.x * (size_t)TILE; tile < n; tile += gridDim.x * (size_t)TILE) {
#pragma unroll
        for (int k = 0; k < TILE; k += CAIRN__CUDA_THREADS) {
            const size_t i = tile + k + threadIdx.x;
            if (i >= n) continue;
            const int64_t target = target_of(loss, i), c = class_of(loss, target);
            bad |= c < 0 && target != loss.ignore_index;
            if (c >= 0) weights += (double)weight_of<T>(loss, c);
            if (losses) sum += (double)losses[i];
        }
    }
    if (__syncthreads_or(bad) && threadIdx.x == 0 && loss.bad_target) *loss.bad_target = 1;
    sum = cairn__sum_of_block(sum);
    weights = cairn__sum_of_block(weights);
    if (threadIdx.x == 0) partials->sums[blockIdx.x] = sum, partials->sums[gridDim.x + blockIdx.x] = weights;
    if (!cairn__last_of(&partials->arrived[0], gridDim.x)) return;
    sum = cairn__sum_of_left(partials->sums, 0, gridDim.x, CAIRN__CUDA_THREADS);
    weights = cairn__sum_of_left(partials->sums, gridDim.x, 2 * (size_t)gridDim.x, CAIRN__CUDA_THREADS);
    if (threadIdx.x != 0) return;
    if (loss.total) *(r_of<T> *)loss.total = (r_of<T>)weights;
    if (!loss.each) cairn__store((T *)loss.y, (r_of<T>)(loss.mean ? sum / weights : sum));
}

int cairn__launch_sum_losses(struct CUstream_st *stream, struct cairn__partials *partials,
                             const struct cairn__class_loss *loss, const void *losses) {
    const size_t n = (size_t)loss->rows * (size_t)loss->inner, tiles = (n + TILE - 1) / TILE;
    const size_t blocks = tiles < 1 ? 1 : tiles < SUM_BLOCKS ? tiles : (size_t)SUM_BLOCKS;
    return cairn__with_math(loss->dtype, [&](auto e) {
        typedef decltype(e) T;
        return cairn__launch(sum_losses<T>, blocks, CAIRN__CUDA_THREADS, stream, partials, *loss,
                             (const r_of<T> *)losses, n);
    });
}

/* ---- backward ---- */

/* The gradient of row i's loss. */
template <class T> CAIRN__DEVICE double dy_of(const cairn__class_loss &loss, size_t i) {
    const double dy = (double)cairn__load((const T *)loss.dy + (loss.each ? i : 0));
    return loss.mean ? dy / (double)*(const r_of<T> *)loss.total : dy;
}

/* What p[c], w[c] (with smoothing) and the target are multiplied by, for a class that is one. */
template <class T> struct row_slopes {
    typedef r_of<T> R;
    R greatest, p, w;
    double target;

    CAIRN__DEVICE void take(const cairn__class_loss &loss, const smoothing &smooth, size_t i, int64_t c) {
        const double dy = dy_of<T>(loss, i), each = smooth.each;
        const R *lse = (const R *)loss.lse + 2 * i;
        greatest = lse[0];
        target = -dy * (1 - loss.smoothing) * (double)weight_of<T>(loss, c);
        w = (R)(-dy * each);
        p = (R)((-target + dy * each * smooth.sum_of_weights(loss)) / (double)lse[1]);
    }
    CAIRN__DEVICE R of(const cairn__class_loss &loss, R x, int64_t c, int64_t at) const {
        const R slope = cairn__exp(x - greatest) * p + (loss.weight && w != 0 ? weight_of<T>(loss, c) * w : w);
        return c == at ? (R)((double)slope + target) : slope;
    }
};

/* inner = 1, by a warp or the block. */
template <class T, int THREADS>
static CAIRN__KERNEL class_rows_backward(const cairn__class_loss loss, const smoothing smooth) {
    typedef r_of<T> R;
    constexpr int V = cairn__pack_of<T>, U = PACKS_UNDER_WAY;
    T *dx = (T *)loss.dx;
    const size_t i = cairn__own_row<THREADS>();
    if (i >= (size_t)loss.rows) return;
    const int64_t c = class_of(loss, target_of(loss, i));
    const cairn__row row = cairn__row_at(i, (size_t)loss.classes);
    const bool aligned = cairn__aligned<V>(dx);
    if (c < 0) {
        T zeros[V] = {};
        for (size_t pack = cairn__first_pack<THREADS, V>(row); pack < cairn__end_pack<V>(row); pack += THREADS)
            cairn__write_of_row<V>(dx, zeros, pack, row, aligned);
        return;
    }
    row_slopes<T> slopes;
    slopes.take(loss, smooth, i, c);
    cairn__walk_row<THREADS, U>((const T *)loss.x, row, [&](const auto &x, size_t first) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            const size_t pack = first + u * THREADS;
            T out[V];
            R made[V];
#pragma unroll
            for (int k = 0; k < V; k++) {
                const int64_t at = (int64_t)(pack * V + k) - (int64_t)row.from;
                made[k] = at >= 0 && at < loss.classes ? slopes.of(loss, x[u * V + k], at, c) : 0;
            }
            cairn__narrow<V>(made, out);
            cairn__write_of_row<V>(dx, out, pack, row, aligned);
        }
    });
}

/* A thread has a row. */
template <class T> static CAIRN__KERNEL class_columns_backward(const cairn__class_loss loss, const smoothing smooth) {
    const size_t i = blockIdx.x * (size_t)CAIRN__CUDA_THREADS + threadIdx.x, inner = (size_t)loss.inner;
    if (i >= (size_t)loss.rows * inner) return;
    const int64_t c = class_of(loss, target_of(loss, i));
    const size_t first = first_score(loss, i);
    const T *x = (const T *)loss.x + first;
    T *dx = (T *)loss.dx + first;
    row_slopes<T> slopes;
    if (c >= 0) slopes.take(loss, smooth, i, c);
#pragma unroll 4
    for (int64_t at = 0; at < loss.classes; at++) {
        const r_of<T> made = c < 0 ? 0 : slopes.of(loss, cairn__load(x + (size_t)at * inner), at, c);
        cairn__store(dx + (size_t)at * inner, made);
    }
}

/* nll; dx is zero. */
template <class T> static CAIRN__KERNEL picked_scores_backward(const cairn__class_loss loss) {
    const size_t i = blockIdx.x * (size_t)CAIRN__CUDA_THREADS + threadIdx.x;
    if (i >= (size_t)loss.rows * (size_t)loss.inner) return;
    const int64_t c = class_of(loss, target_of(loss, i));
    if (c < 0) return;
    cairn__store((T *)loss.dx + first_score(loss, i) + (size_t)c * (size_t)loss.inner,
                 (r_of<T>)(-dy_of<T>(loss, i) * (double)weight_of<T>(loss, c)));
}

int cairn__launch_class_losses_backward(struct CUstream_st *stream, const struct cairn__class_loss *loss,
                                        const double *all_weights) {
    const smoothing smooth = smoothing_of(loss, all_weights);
    return cairn__with_math(loss->dtype, [&](auto e) {
        typedef decltype(e) T;
        const size_t rows = (size_t)loss->rows;
        if (!loss->from_logits)
            return (int)cairn__launch(picked_scores_backward<T>, blocks_of_threads(loss), CAIRN__CUDA_THREADS, stream,
                                      *loss);
        if (is_by_thread(loss))
            return (int)cairn__launch(class_columns_backward<T>, blocks_of_threads(loss), CAIRN__CUDA_THREADS, stream,
                                      *loss, smooth);
        if (loss->classes <= LONG_ROW)
            return (int)cairn__launch(class_rows_backward<T, CAIRN__CUDA_WARP>,
                                      cairn__blocks_of_rows<CAIRN__CUDA_WARP>(rows), CAIRN__CUDA_THREADS, stream, *loss,
                                      smooth);
        return (int)cairn__launch(class_rows_backward<T, CAIRN__CUDA_THREADS>, rows, CAIRN__CUDA_THREADS, stream, *loss,
                                  smooth);
    });
}
