/* Attention: rows of scores become probabilities, and slopes of probabilities those of scores. */
#include "device/cuda/attention.h"

#include "core/philox.h"
#include "device/cuda/norm_kernel.cuh"
#include "device/cuda/row_kernel.cuh"
#include "kernels/math_f64.h"

enum {
    V = 4, /* elements of a pack: as many as a Philox block has numbers */
    WARP = CAIRN__CUDA_WARP,
    BLOCK = CAIRN__CUDA_THREADS,
};

static CAIRN__DEVICE float log_of(float x) {
    return log_f32(x);
}
static CAIRN__DEVICE double log_of(double x) {
    return log_f64(x);
}

/* ---- packs ---- */

template <class U> constexpr int access_of = CAIRN__CUDA_PACK_NBYTES / (int)sizeof(U) < V ? 2 : V;

template <class U> static CAIRN__DEVICE void read_pack(U (&to)[V], const U *from) {
#pragma unroll
    for (int k = 0; k < V; k += access_of<U>) cairn__read<access_of<U>>(to + k, from + k);
}

template <class U> static CAIRN__DEVICE void write_pack(U *to, const U (&from)[V]) {
#pragma unroll
    for (int k = 0; k < V; k += access_of<U>) cairn__write<access_of<U>>(to + k, from + k);
}

/* A pack of numbers, rounded once. */
template <class T, class R> static CAIRN__DEVICE void write_rounded(void *to, size_t i, const R (&x)[V]) {
    T y[V];
    cairn__narrow_any<V>(x, y);
    write_pack((T *)to + i, y);
}

/* ---- a row's packs ----
 *
 * A team, a warp or the block, has a row: PACKS packs a thread in registers, or with PACKS = 0 any number of them,
 * which stay in scratch. */

template <int TEAM, int PACKS, class F> static CAIRN__DEVICE void each_pack(uint32_t n, F f) {
    const uint32_t first = threadIdx.x % TEAM * V;
    if constexpr (PACKS > 0) {
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            if (first + p * TEAM * V < n) f(p, first + p * TEAM * V);
        }
    } else {
        for (uint32_t j = first; j < n; j += TEAM * V) f(0, j);
    }
}

template <class R, int PACKS> struct row_of {
    typedef R sum; /* what sums over packs are in */
    R *scratch;
    R x[PACKS][V];
    CAIRN__DEVICE void begin(int p, uint32_t j) { read_pack(x[p], scratch + j); }
    CAIRN__DEVICE void get(int p, uint32_t, R (&to)[V]) const {
#pragma unroll
        for (int k = 0; k < V; k++) to[k] = x[p][k];
    }
    CAIRN__DEVICE void set(int p, uint32_t, const R (&from)[V]) {
#pragma unroll
        for (int k = 0; k < V; k++) x[p][k] = from[k];
    }
};

template <class R> struct row_of<R, 0> {
    typedef double sum;
    R *scratch;
    CAIRN__DEVICE void begin(int, uint32_t) {}
    CAIRN__DEVICE void get(int, uint32_t j, R (&to)[V]) const { read_pack(to, scratch + j); }
    CAIRN__DEVICE void set(int, uint32_t j, const R (&from)[V]) { write_pack(scratch + j, from); }
};

/* ---- where a row is, and what it sees ---- */

struct place {
    size_t start; /* in scratch */
    size_t row;   /* of all heads' */
    int64_t mask;
    uint32_t seen; /* columns before the first that the row does not see */
};

static CAIRN__DEVICE place place_of(const cairn__attention_rows &rows, uint32_t i, uint32_t first_b, uint32_t first_h) {
    const uint32_t head = i / (uint32_t)rows.head_rows, t = (uint32_t)rows.first_row + i % (uint32_t)rows.head_rows;
    const uint32_t h = first_h + head, b = h / (uint32_t)rows.h;
    place at;
    at.start = (size_t)i * rows.stride;
    at.row = (size_t)(rows.first_head + head) * rows.t + t;
    at.mask = (first_b + b) * rows.mask.stride[0] + (h - b * (uint32_t)rows.h) * rows.mask.stride[1] +
              t * rows.mask.stride[2];
    at.seen = rows.causal && t < rows.n ? t + 1 : (uint32_t)rows.n;
    return at;
}

/* V elements of the mask from column j on. packs: all of it can be read in packs; else those before `seen` are read. */
template <class U>
static CAIRN__DEVICE void read_mask(const cairn__attention_rows &rows, const place &at, bool packs, uint32_t j,
                                    U (&to)[V]) {
    const U *from = (const U *)rows.mask.data + at.mask;
    if (packs) {
        read_pack(to, from + j);
        return;
    }
#pragma unroll
    for (int k = 0; k < V; k++) {
        if (j + k < at.seen) to[k] = from[(j + k) * rows.mask.stride[3]];
        else to[k] = U();
    }
}

/* x = scale * x + mask; -inf where the row does not see. */
template <class T, class R>
static CAIRN__DEVICE void finish_scores(const cairn__attention_rows &rows, const place &at, bool packs, uint32_t j,
                                        R (&x)[V]) {
    const R scale = (R)rows.scale;
#pragma unroll
    for (int k = 0; k < V; k++) x[k] = x[k] * scale;
    if (rows.mask.data && rows.mask.dtype == CAIRN_BOOL) {
        unsigned char sees[V];
        read_mask(rows, at, packs, j, sees);
#pragma unroll
        for (int k = 0; k < V; k++) x[k] = sees[k] ? x[k] : -INFINITY;
    } else if (rows.mask.data) {
        T mask[V];
        R added[V];
        read_mask(rows, at, packs, j, mask);
        cairn__widen_any<V>(mask, added);
#pragma unroll
        for (int k = 0; k < V; k++) x[k] = x[k] + added[k];
    }
#pragma unroll
    for (int k = 0; k < V; k++) x[k] = j + k < at.seen ? x[k] : -INFINITY;
}

/* What V probabilities from number `first` of the stream on are multiplied by. Numbers that straddle two Philox blocks
 * are moved to their places by steps of two and of one. */
template <class R>
static CAIRN__DEVICE void keep_factors(const cairn__attention_rows &rows, const cairn__random_stream &random,
                                       uint64_t first, R (&factor)[V]) {
    const cairn__philox_block block = cairn__philox(random.seed, first / V, random.number);
    uint32_t word[2 * V - 1] = {block.word[0], block.word[1], block.word[2], block.word[3]};
    if (first % V != 0) {
        const cairn__philox_block next = cairn__philox(random.seed, first / V + 1, random.number);
#pragma unroll
        for (int k = 0; k < V - 1; k++) word[V + k] = next.word[k];
#pragma unroll
        for (int k = 0; k < V + 1; k++) word[k] = first & 2 ? word[k + 2] : word[k];
#pragma unroll
        for (int k = 0; k < V; k++) word[k] = first & 1 ? word[k + 1] : word[k];
    }
#pragma unroll
    for (int k = 0; k < V; k++) factor[k] = word[k] >> 8 >= rows.dropped ? (R)rows.kept : 0;
}

template <class R> static CAIRN__DEVICE void multiply_pack(R (&x)[V], const R (&factor)[V]) {
#pragma unroll
    for (int k = 0; k < V; k++) x[k] = x[k] * factor[k];
}

/* ---- forward ---- */

/* first_b, first_h: what first_head is the pair of. */
template <class T, int TEAM, int PACKS>
static CAIRN__KERNEL attend(cairn__attention_rows rows, uint32_t first_b, uint32_t first_h, bool packs) {
    typedef typename cairn__r_of<T>::type R;
    typedef row_of<R, PACKS> row;
    const uint32_t i = blockIdx.x * (BLOCK / TEAM) + threadIdx.x / TEAM, n = (uint32_t)rows.n;
    if (i >= (uint32_t)(rows.heads * rows.head_rows)) return;
    const place at = place_of(rows, i, first_b, first_h);
    row scores;
    scores.scratch = (R *)rows.scores + at.start;
    each_pack<TEAM, PACKS>(n, [&](int p, uint32_t j) { scores.begin(p, j); });
    R greatest = -INFINITY;
    each_pack<TEAM, PACKS>(at.seen, [&](int p, uint32_t j) {
        R x[V];
        scores.get(p, j, x);
        finish_scores<T>(rows, at, packs, j, x);
        scores.set(p, j, x);
#pragma unroll
        for (int k = 0; k < V; k++) greatest = cairn__greater_of(greatest, x[k]);
    });
    greatest = cairn__greatest_of_row<TEAM>(greatest);
    const bool sees = greatest != -INFINITY;
    typename row::sum total = 0;
    each_pack<TEAM, PACKS>(at.seen, [&](int p, uint32_t j) {
        R x[V];
        scores.get(p, j, x);
#pragma unroll
        for (int k = 0; k < V; k++) x[k] = sees ? cairn__exp(x[k] - greatest) : 0;
        scores.set(p, j, x);
        total += cairn__sum_of(x);
    });
    const R sum = (R)cairn__sum_of_row<TEAM>(total), share = sees ? 1 / sum : 0;
    if (rows.lse && threadIdx.x % TEAM == 0) ((R *)rows.lse)[at.row] = sees ? greatest + log_of(sum) : greatest;
    /* Once a row, or for each pack where it would take registers that are not there. */
    const cairn__random_stream random = PACKS ? cairn__drawn_now(rows.random) : rows.random;
    each_pack<TEAM, PACKS>(n, [&](int p, uint32_t j) {
        R x[V], factor[V];
        scores.get(p, j, x);
#pragma unroll
        for (int k = 0; k < V; k++) x[k] = j + k < at.seen ? x[k] * share : 0;
        if (rows.dropped) {
            keep_factors(rows, PACKS ? random : cairn__drawn_now(random), at.row * (uint64_t)rows.s + j, factor);
            multiply_pack(x, factor);
        }
        write_rounded<T>(rows.probabilities, at.start + j, x);
    });
}

/* ---- backward ---- */

/* One pack of what a row sees: x becomes probabilities, and slope that of probabilities before dropout. Returns its
 * part of the sum of P dP. */
template <class T, class R>
static CAIRN__DEVICE R recompute(const cairn__attention_rows &rows, const place &at, bool packs, uint32_t j, R lse,
                                 R (&x)[V], R (&slope)[V]) {
    R product[V];
    finish_scores<T>(rows, at, packs, j, x);
#pragma unroll
    for (int k = 0; k < V; k++) {
        x[k] = j + k < at.seen ? cairn__exp(x[k] - lse) : 0;
        slope[k] = j + k < at.seen ? slope[k] : 0;
        product[k] = x[k];
    }
    if (rows.dropped) {
        R factor[V];
        keep_factors(rows, cairn__drawn_now(rows.random), at.row * (uint64_t)rows.s + j, factor);
        multiply_pack(slope, factor);
        multiply_pack(product, factor);
    }
    if (rows.probabilities) write_rounded<T>(rows.probabilities, at.start + j, product);
#pragma unroll
    for (int k = 0; k < V; k++) product[k] = x[k] * slope[k];
    return cairn__sum_of(product);
}

/* dS = P (dP - sum of P dP) scale. The sum is dy . y, but not of a y that has been rounded: slopes of a row add up to
 * zero as well as they can. */
template <class T, int TEAM, int PACKS>
static CAIRN__KERNEL attend_backward(cairn__attention_rows rows, uint32_t first_b, uint32_t first_h, bool packs) {
    typedef typename cairn__r_of<T>::type R;
    typedef row_of<R, PACKS> row;
    const uint32_t i = blockIdx.x * (BLOCK / TEAM) + threadIdx.x / TEAM, n = (uint32_t)rows.n;
    if (i >= (uint32_t)(rows.heads * rows.head_rows)) return;
    place at = place_of(rows, i, first_b, first_h);
    row scores, slopes;
    scores.scratch = (R *)rows.scores + at.start;
    slopes.scratch = (R *)(rows.slopes ? rows.slopes : rows.scores) + at.start; /* not wanted: any numbers */
    each_pack<TEAM, PACKS>(n, [&](int p, uint32_t j) {
        scores.begin(p, j);
        slopes.begin(p, j);
    });
    const R lse = ((const R *)rows.lse)[at.row], scale = (R)rows.scale;
    if (lse == -INFINITY) at.seen = 0;
    typename row::sum total = 0;
    each_pack<TEAM, PACKS>(n, [&](int p, uint32_t j) {
        R x[V] = {0}, slope[V] = {0};
        if (j < at.seen) {
            scores.get(p, j, x);
            slopes.get(p, j, slope);
            total += recompute<T>(rows, at, packs, j, lse, x, slope);
            if (!rows.slopes) return;
            scores.set(p, j, x);
            slopes.set(p, j, slope);
        } else if (rows.probabilities) {
            write_rounded<T>(rows.probabilities, at.start + j, x);
        }
    });
    if (!rows.slopes) return;
    const R taken = scale * (R)cairn__sum_of_row<TEAM>(total);
    each_pack<TEAM, PACKS>(n, [&](int p, uint32_t j) {
        R x[V], slope[V];
        scores.get(p, j, x);
        slopes.get(p, j, slope);
#pragma unroll
        for (int k = 0; k < V; k++) x[k] = j + k < at.seen ? x[k] * (slope[k] * scale - taken) : 0;
        write_rounded<T>(rows.score_slopes, at.start + j, x);
    });
}

/* ---- launching ---- */

template <int TEAM, int PACKS> struct team {};

/* Calls use with the team that has a row of n columns. Of f64 there are two alone, for it need not be fast. */
template <class T, class Use> static int with_team(int64_t n, Use use) {
    if (n <= WARP * V) return use(team<WARP, 1>());
    if constexpr (sizeof(T) < sizeof(double)) {
        if (n <= 2 * WARP * V) return use(team<WARP, 2>());
        if (n <= 4 * WARP * V) return use(team<WARP, 4>());
        if (n <= BLOCK * V) return use(team<BLOCK, 1>());
        if (n <= 2 * BLOCK * V) return use(team<BLOCK, 2>());
        if (n <= 4 * BLOCK * V) return use(team<BLOCK, 4>());
    }
    return use(team<BLOCK, 0>());
}

/* Whether every pack of every row of the mask can be read at once. */
static bool mask_has_packs(const cairn__attention_rows *rows) {
    const struct cairn__view *mask = &rows->mask;
    bool whole = mask->stride[3] == 1 && rows->s % V == 0;
    for (int d = 0; d < 3; d++) whole &= mask->stride[d] % V == 0 || mask->size[d] == 1;
    return whole &&
           (size_t)mask->data % (size_t)(mask->dtype == CAIRN_BOOL ? (int)V : (int)CAIRN__CUDA_PACK_NBYTES) == 0;
}

template <int TEAM> static size_t blocks_of(const cairn__attention_rows *rows) {
    const size_t count = (size_t)(rows->heads * rows->head_rows), in_block = BLOCK / TEAM;
    return (count + in_block - 1) / in_block;
}

template <class T, int TEAM, int PACKS>
static int launch(struct CUstream_st *stream, const cairn__attention_rows *rows, bool backward, team<TEAM, PACKS>) {
    return cairn__launch(backward ? attend_backward<T, TEAM, PACKS> : attend<T, TEAM, PACKS>, blocks_of<TEAM>(rows),
                         BLOCK, stream, *rows, rows->first_head / rows->h, rows->first_head % rows->h,
                         mask_has_packs(rows));
}

static int launch_any(struct CUstream_st *stream, cairn_dtype t, const cairn__attention_rows *rows, bool backward) {
    return cairn__with_math(t, [&](auto e) {
        typedef decltype(e) T;
        return with_team<T>(rows->n, [&](auto team) { return launch<T>(stream, rows, backward, team); });
    });
}

int cairn__launch_attention(struct CUstream_st *stream, cairn_dtype t, const struct cairn__attention_rows *rows) {
    return launch_any(stream, t, rows, false);
}

int cairn__launch_attention_backward(struct CUstream_st *stream, cairn_dtype t,
                                     const struct cairn__attention_rows *rows) {
    return launch_any(stream, t, rows, true);
}
