/* The scalar reference: the definition of every kernel, written to be read.
 *
 * Each kernel stands here once, over elements that `get` widens to f32 and `put` rounds to their type; instances.h
 * makes the function of every combination of types. What is computed of one element stands in element.h, where a GPU
 * computes it too. Nothing here is clever, and nothing faster may differ from it: kcheck compares every other row with
 * these, bit by bit. It is also the generic path of processors without rows of their own. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/half.h"
#include "kernels/element.h"
#include "kernels/row_lists.h"

/* Types are constants wherever these are used, so every switch on them folds away. */
#define INLINE static inline __attribute__((always_inline))

enum { LANES = 16 };

/* Element i as f32. Widening is exact. */
INLINE float get(cairn_dtype type, const void *x, size_t i) {
    switch (type) {
    case CAIRN_F16:
        return cairn__f16_to_f32(((const uint16_t *)x)[i]);
    case CAIRN_BF16:
        return cairn__bf16_to_f32(((const uint16_t *)x)[i]);
    default:
        return ((const float *)x)[i];
    }
}

/* The one rounding, to nearest even. */
INLINE void put(cairn_dtype type, void *x, size_t i, float value) {
    switch (type) {
    case CAIRN_F16:
        ((uint16_t *)x)[i] = cairn__f32_to_f16(value);
        break;
    case CAIRN_BF16:
        ((uint16_t *)x)[i] = cairn__f32_to_bf16(value);
        break;
    default:
        ((float *)x)[i] = value;
        break;
    }
}

/* 1 where element i, as stored, is infinite or NaN: all exponent bits are set. */
INLINE uint32_t nonfinite(cairn_dtype type, const void *x, size_t i) {
    switch (type) {
    case CAIRN_F16:
        return (((const uint16_t *)x)[i] & 0x7c00u) == 0x7c00u;
    case CAIRN_BF16:
        return (((const uint16_t *)x)[i] & 0x7f80u) == 0x7f80u;
    default:
        return cairn__f32_nonfinite(((const float *)x)[i]);
    }
}

/* The fixed tree: halves of the lanes are added until one is left. */
static float tree(float lane[LANES]) {
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    }
    return lane[0];
}

static double tree_f64(double lane[LANES]) {
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    }
    return lane[0];
}

/* ---- casts, checks, sums of squares ---- */

/* Between the half types by way of f32, which holds every value of both: one rounding, not two. */
INLINE void cast(cairn_dtype from, cairn_dtype to, void *dst, const void *src, size_t n) {
    for (size_t i = 0; i < n; i++) put(to, dst, i, get(from, src, i));
}

/* The check sees the rounded value: 65520 is finite in f32 and infinite in f16. */
INLINE void scale(cairn_dtype from, cairn_dtype to, void *dst, const void *src, size_t n, float factor,
                  uint32_t *found) {
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        put(to, dst, i, get(from, src, i) * factor);
        any |= nonfinite(to, dst, i);
    }
    *found |= any;
}

INLINE void axpby(cairn_dtype from, cairn_dtype to, void *dst, const void *x, const float *y, size_t n, float a,
                  float b, uint32_t *found) {
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        put(to, dst, i, cairn__axpby(a, get(from, x, i), b, y[i]));
        any |= nonfinite(to, dst, i);
    }
    *found |= any;
}

/* Any element infinite or NaN, without arithmetic: a program's -Ofast must not change the result. */
INLINE void check(cairn_dtype type, const void *x, size_t n, uint32_t *found) {
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) any |= nonfinite(type, x, i);
    *found |= any;
}

/* The squares of one block of halves, in f32: eleven bits by eleven fit into its 24. Where they do not, for bf16 has
 * the exponents of f32 and their squares twice as many, in f64. */
INLINE void add_block_of_squares(cairn_dtype type, const uint16_t *x, size_t n, double sums[LANES]) {
    float lane[4 * LANES] = {0};
    uint32_t greatest = 0;
    for (size_t i = 0; i < n; i++) {
        const float value = get(type, x, i);
        const bool is_left_out = type == CAIRN_BF16 && (x[i] & 0x6000u) == 0; /* exponent under 64: below 2^-63 */
        if (!is_left_out) lane[i % (4 * LANES)] += value * value;
    }
    for (int half = 2 * LANES; half >= LANES; half /= 2) {
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    }
    for (int j = 0; j < LANES; j++) {
        const uint32_t bits = cairn__f32_bits(lane[j]);
        if (bits > greatest) greatest = bits;
    }
    if (type == CAIRN_F16 || (greatest >= CAIRN__LEAST_SQUARES && greatest < 0x7f800000u)) {
        for (int j = 0; j < LANES; j++) sums[j] += (double)lane[j];
    } else {
        for (size_t i = 0; i < n; i++) sums[i % LANES] += cairn__bf16_magnitude(x[i]) * cairn__bf16_magnitude(x[i]);
    }
}

/* The factor comes after the sum: no gradient overflows, or vanishes, on its way to being unscaled. */
INLINE void sumsq(cairn_dtype type, const void *x, size_t n, float factor, double *sum, uint32_t *found) {
    double lane[LANES] = {0};
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) any |= nonfinite(type, x, i);
    if (type == CAIRN_F32) {
        for (size_t i = 0; i < n; i++) lane[i % LANES] += (double)get(type, x, i) * (double)get(type, x, i);
    } else {
        for (size_t i = 0; i < n; i += CAIRN__SQUARES_BLOCK) {
            const size_t m = n - i < CAIRN__SQUARES_BLOCK ? n - i : CAIRN__SQUARES_BLOCK;
            add_block_of_squares(type, (const uint16_t *)x + i, m, lane);
        }
    }
    *sum += tree_f64(lane) * ((double)factor * (double)factor);
    *found |= any;
}

/* By bits alone: comparisons of floats take subnormals for zeros where the program flushes them. */
INLINE void census(cairn_dtype type, const void *x, size_t n, float least_normal, struct cairn__counts *counts) {
    const uint32_t infinity = 0x7f800000u, least = cairn__f32_bits(least_normal);
    uint32_t greatest = 0, smallest = infinity;
    for (size_t i = 0; i < n; i++) {
        const uint32_t magnitude = cairn__f32_bits(get(type, x, i)) & 0x7fffffffu;
        const bool counts_in = magnitude > 0 && magnitude < infinity;
        counts->zeros += magnitude == 0;
        counts->subnormals += counts_in && magnitude < least;
        counts->infs += magnitude == infinity;
        counts->nans += magnitude > infinity;
        if (counts_in && magnitude > greatest) greatest = magnitude;
        if (counts_in && magnitude < smallest) smallest = magnitude;
    }
    if (greatest == 0) return;
    const int32_t high = cairn__exponent_of(greatest), low = cairn__exponent_of(smallest);
    if (high > counts->max_exponent) counts->max_exponent = high;
    if (low < counts->min_exponent) counts->min_exponent = low;
    const double largest = cairn__value_of(greatest);
    if (largest > counts->largest) counts->largest = largest;
}

INLINE void count_exponents(cairn_dtype type, const void *x, size_t n, struct cairn__exponent_counts *counts) {
    const uint32_t infinity = 0x7f800000u;
    for (size_t i = 0; i < n; i++) {
        const uint32_t magnitude = cairn__f32_bits(get(type, x, i)) & 0x7fffffffu;
        counts->zeros += magnitude == 0;
        counts->infs += magnitude == infinity;
        counts->nans += magnitude > infinity;
        if (magnitude == 0 || magnitude >= infinity) continue;
        counts->binades[cairn__exponent_of(magnitude) - CAIRN__LEAST_BINADE]++;
    }
}

static void count_exponents_f64_ref(const void *x, size_t n, struct cairn__exponent_counts *counts) {
    for (size_t i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, (const double *)x + i, sizeof(bits));
        ++*cairn__count_of_field(counts, cairn__field_of_f64(bits & INT64_MAX));
    }
}

/* value is rounded as a cast would round it. */
INLINE void fill(cairn_dtype type, void *dst, size_t n, float value) {
    for (size_t i = 0; i < n; i++) put(type, dst, i, value);
}

/* What an f32 array holds after a trip through a half type. */
INLINE void round_to(cairn_dtype type, float *dst, const float *src, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        put(type, &half, 0, src[i]);
        dst[i] = get(type, &half, 0);
    }
}

static void round_stochastic_ref(uint16_t *dst, const float *x, size_t n, uint64_t seed, uint64_t stream,
                                 uint64_t first) {
    struct cairn__philox_block block = {{0}};
    for (size_t i = 0; i < n; i++) {
        if (i % 8 == 0) block = cairn__philox(seed, (first + i) / 8, stream);
        dst[i] = cairn__round_stochastic(x[i], cairn__random_16(&block, i));
    }
}

/* ---- reduction over ranks ---- */

/* The lesser, or the greater, of two: a NaN before anything else, and -0 below +0. */
INLINE double least_or_greatest(int op, double x, double y) {
    if (x != x || y != y) return x + y;
    const bool first_is_less = x < y || (x == y && signbit(x));
    return first_is_less == (op == CAIRN__REDUCE_MIN) ? x : y;
}

INLINE float combine_f32(int op, float x, float y) {
    if (op == CAIRN__REDUCE_SUM) return x + y;
    return op == CAIRN__REDUCE_PROD ? x * y : (float)least_or_greatest(op, (double)x, (double)y);
}

INLINE double combine_f64(int op, double x, double y) {
    if (op == CAIRN__REDUCE_SUM) return x + y;
    return op == CAIRN__REDUCE_PROD ? x * y : least_or_greatest(op, x, y);
}

/* Rank order makes the sum the same on every rank; dividing after it, and rounding after that, makes the average of
 * four times 40000 in f16 be 40000 and not infinity. All sources are read before a destination, which may be one of
 * them, is written. */
INLINE void reduce_f32(int op, cairn_dtype type, void *const *dsts, int num_dsts, const void *const *srcs, int p,
                       size_t n, float divisor, uint32_t *found) {
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        float x = get(type, srcs[0], i);
        for (int r = 1; r < p; r++) x = combine_f32(op, x, get(type, srcs[r], i));
        if (divisor != 1.0f) x = x / divisor;
        for (int j = 0; j < num_dsts; j++) put(type, dsts[j], i, x);
        any |= nonfinite(type, dsts[0], i);
    }
    *found |= any;
}

/* Types without faster rows go rank by rank over some elements at a time, of which a compiler makes vectors. */
enum { REDUCED_AT_ONCE = 256 };

INLINE void reduce_f64(int op, void *const *dsts, int num_dsts, const void *const *srcs, int p, size_t n, float divisor,
                       uint32_t *found) {
    double x[REDUCED_AT_ONCE];
    uint32_t any = 0;
    for (size_t i = 0; i < n; i += REDUCED_AT_ONCE) {
        const size_t m = n - i < REDUCED_AT_ONCE ? n - i : REDUCED_AT_ONCE;
        memcpy(x, (const double *)srcs[0] + i, m * sizeof(*x));
        for (int r = 1; r < p; r++) {
            for (size_t k = 0; k < m; k++) x[k] = combine_f64(op, x[k], ((const double *)srcs[r])[i + k]);
        }
        for (size_t k = 0; k < m && divisor != 1.0f; k++) x[k] = x[k] / (double)divisor;
        for (size_t k = 0; k < m; k++) any |= !(fabs(x[k]) <= DBL_MAX);
        for (int j = 0; j < num_dsts; j++) memcpy((double *)dsts[j] + i, x, m * sizeof(*x));
    }
    *found |= any;
}

INLINE int64_t get_integer(cairn_dtype type, const void *x, size_t i) {
    switch (type) {
    case CAIRN_I32:
        return ((const int32_t *)x)[i];
    case CAIRN_U8:
        return ((const uint8_t *)x)[i];
    default:
        return ((const int64_t *)x)[i];
    }
}

/* What an integer becomes in fewer bits. */
INLINE int64_t wrapped(cairn_dtype type, int64_t x) {
    return type == CAIRN_I32 ? (int32_t)(uint32_t)x : type == CAIRN_U8 ? (uint8_t)x : x;
}

INLINE void put_integer(cairn_dtype type, void *x, size_t i, int64_t value) {
    switch (type) {
    case CAIRN_I32:
        ((int32_t *)x)[i] = (int32_t)(uint32_t)value;
        break;
    case CAIRN_U8:
        ((uint8_t *)x)[i] = (uint8_t)value;
        break;
    default:
        ((int64_t *)x)[i] = value;
        break;
    }
}

/* Unsigned, and so wrapping around. */
INLINE int64_t combine_integers(int op, int64_t x, int64_t y) {
    if (op == CAIRN__REDUCE_SUM) return (int64_t)((uint64_t)x + (uint64_t)y);
    if (op == CAIRN__REDUCE_PROD) return (int64_t)((uint64_t)x * (uint64_t)y);
    return (x < y) == (op == CAIRN__REDUCE_MIN) ? x : y;
}

/* In 64 bits, the lower of which are those of narrower arithmetic. The divisor is a count of ranks, hence whole. */
INLINE void reduce_integers(int op, cairn_dtype type, void *const *dsts, int num_dsts, const void *const *srcs, int p,
                            size_t n, float divisor) {
    int64_t x[REDUCED_AT_ONCE];
    for (size_t i = 0; i < n; i += REDUCED_AT_ONCE) {
        const size_t m = n - i < REDUCED_AT_ONCE ? n - i : REDUCED_AT_ONCE;
        for (size_t k = 0; k < m; k++) x[k] = get_integer(type, srcs[0], i + k);
        for (int r = 1; r < p; r++) {
            for (size_t k = 0; k < m; k++) x[k] = combine_integers(op, x[k], get_integer(type, srcs[r], i + k));
        }
        for (size_t k = 0; k < m && divisor != 1.0f; k++) x[k] = wrapped(type, x[k]) / (int64_t)divisor;
        for (int j = 0; j < num_dsts; j++) {
            for (size_t k = 0; k < m; k++) put_integer(type, dsts[j], i + k, x[k]);
        }
    }
}

INLINE void reduce(int op, cairn_dtype type, void *const *dsts, int num_dsts, const void *const *srcs, int p, size_t n,
                   float divisor, uint32_t *found) {
    if (type == CAIRN_F64) reduce_f64(op, dsts, num_dsts, srcs, p, n, divisor, found);
    else if (type == CAIRN_F32 || cairn__is_half(type))
        reduce_f32(op, type, dsts, num_dsts, srcs, p, n, divisor, found);
    else reduce_integers(op, type, dsts, num_dsts, srcs, p, n, divisor);
}

/* ---- optimizers ---- */

/* How a weight mode stores its parameter, and which half array it writes besides: 0 = none. */
INLINE cairn_dtype param_type(int mode) {
    return mode == CAIRN__W_F16 ? CAIRN_F16 : mode == CAIRN__W_BF16 ? CAIRN_BF16 : CAIRN_F32;
}

INLINE int half_type(int mode) {
    return mode == CAIRN__W_F32_F16 ? (int)CAIRN_F16 : mode == CAIRN__W_F32_BF16 ? (int)CAIRN_BF16 : 0;
}

/* Without a master the half parameter itself is widened, updated in f32 and rounded back. */
INLINE void put_weight(int mode, void *param, void *half, size_t i, float w) {
    put(param_type(mode), param, i, w);
    if (half_type(mode)) put((cairn_dtype)half_type(mode), half, i, w);
}

INLINE void sgd(cairn_dtype grad_type, int mode, void *param, void *half, float *const *state, const void *grad,
                size_t n, const struct cairn__sgd *h) {
    for (size_t i = 0; i < n; i++) {
        float momentum = h->momentum_on && !h->first ? state[0][i] : 0;
        float w = cairn__sgd_element(h, get(param_type(mode), param, i), get(grad_type, grad, i), &momentum);
        if (h->momentum_on) state[0][i] = momentum;
        put_weight(mode, param, half, i, w);
    }
}

INLINE void adam(cairn_dtype grad_type, int mode, void *param, void *half, float *const *state, const void *grad,
                 size_t n, const struct cairn__adam *h) {
    float *const m = state[0], *const v = state[1];
    for (size_t i = 0; i < n; i++) {
        float greatest = h->amsgrad ? state[2][i] : 0;
        float w = get(param_type(mode), param, i);
        w = cairn__adam_element(h, w, get(grad_type, grad, i), &m[i], &v[i], &greatest);
        if (h->amsgrad) state[2][i] = greatest;
        put_weight(mode, param, half, i, w);
    }
}

INLINE void lamb(cairn_dtype grad_type, int mode, void *param, void *half, float *const *state, const void *grad,
                 size_t n, const struct cairn__adam *h) {
    (void)half;
    for (size_t i = 0; i < n; i++) {
        float w = get(param_type(mode), param, i), none = 0;
        state[2][i] = cairn__adam_direction(h, w, get(grad_type, grad, i), &state[0][i], &state[1][i], &none);
    }
}

INLINE void lion(cairn_dtype grad_type, int mode, void *param, void *half, float *const *state, const void *grad,
                 size_t n, const struct cairn__lion *h) {
    for (size_t i = 0; i < n; i++) {
        float w = get(param_type(mode), param, i);
        put_weight(mode, param, half, i, cairn__lion_element(h, w, get(grad_type, grad, i), &state[0][i]));
    }
}

INLINE void adagrad(cairn_dtype grad_type, int mode, void *param, void *half, float *const *state, const void *grad,
                    size_t n, const struct cairn__adagrad *h) {
    for (size_t i = 0; i < n; i++) {
        float w = get(param_type(mode), param, i);
        put_weight(mode, param, half, i, cairn__adagrad_element(h, w, get(grad_type, grad, i), &state[0][i]));
    }
}

/* ---- for nn ---- */

static void add_ref(float *dst, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = a[i] + b[i];
}

static void mul_scalar_ref(float *dst, const float *x, size_t n, float s) {
    for (size_t i = 0; i < n; i++) dst[i] = x[i] * s;
}

static void relu_ref(float *dst, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) dst[i] = cairn__relu(x[i]);
}

static void relu_backward_ref(float *dx, const float *dy, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) dx[i] = cairn__relu_backward(dy[i], x[i]);
}

/* Sixteen lanes are one register of AVX-512 and two of AVX2: a vector adds what this adds, in the same order. Sums of
 * blocks are added in f64, so that a long sum is as close as a short one. */
INLINE float sum_of_block(cairn_dtype type, const void *x, size_t begin, size_t end) {
    float lane[LANES] = {0};
    for (size_t i = begin; i < end; i++) lane[i % LANES] += get(type, x, i);
    return tree(lane);
}

static size_t block_end(size_t begin, size_t n) {
    return n - begin < CAIRN__SUM_BLOCK ? n : begin + CAIRN__SUM_BLOCK;
}

INLINE double sum(cairn_dtype type, const void *x, size_t n) {
    double all = 0;
    for (size_t i = 0; i < n; i += CAIRN__SUM_BLOCK) all += (double)sum_of_block(type, x, i, block_end(i, n));
    return all;
}

INLINE float squares_of_block(cairn_dtype type, const void *x, const void *y, size_t begin, size_t end) {
    float lane[LANES] = {0};
    for (size_t i = begin; i < end; i++) lane[i % LANES] += cairn__squared_difference(get(type, x, i), get(type, y, i));
    return tree(lane);
}

/* The sum alone; the mean and its division are nn's. */
INLINE double mse_sum(cairn_dtype type, const void *x, const void *y, size_t n) {
    double all = 0;
    for (size_t i = 0; i < n; i += CAIRN__SUM_BLOCK) all += (double)squares_of_block(type, x, y, i, block_end(i, n));
    return all;
}

/* The gradient of a bias: some columns at a time, a few rows of them in f32, and these in f64. */
INLINE void col_sum(cairn_dtype type, float *dst, const void *x, size_t rows, size_t cols) {
    for (size_t c = 0; c < cols; c += LANES) {
        const size_t n = cols - c < LANES ? cols - c : LANES;
        double all[LANES] = {0};
        for (size_t first = 0; first < rows; first += CAIRN__SUM_ROWS) {
            const size_t end = rows - first < CAIRN__SUM_ROWS ? rows : first + CAIRN__SUM_ROWS;
            float part[LANES] = {0};
            for (size_t r = first; r < end; r++) {
                for (size_t j = 0; j < n; j++) part[j] += get(type, x, r * cols + c + j);
            }
            for (size_t j = 0; j < n; j++) all[j] += (double)part[j];
        }
        for (size_t j = 0; j < n; j++) dst[c + j] = (float)all[j];
    }
}

/* What a fold takes of x[i], or of x[i] - centre[i]. */
INLINE float term(enum cairn__fold f, cairn_dtype type, const void *x, size_t i, const float *centre) {
    const float v = centre ? get(type, x, i) - centre[i] : get(type, x, i);
    return f == CAIRN__FOLD_SUM_SQUARES ? v * v : f == CAIRN__FOLD_SUM_ABS ? fabsf(v) : v;
}

INLINE void sum_rows(enum cairn__fold f, cairn_dtype type, double *sums, const void *const *x, size_t rows, size_t n,
                     const float *centre) {
    for (size_t i = 0; i < n; i++) {
        float part = 0;
        for (size_t r = 0; r < rows; r++) part += term(f, type, x[r], i, centre);
        sums[i] += (double)part;
    }
}

static void drain_ref(double *sums, float *part, size_t n) {
    for (size_t i = 0; i < n; i++) {
        sums[i] += (double)part[i];
        part[i] = 0;
    }
}

static void mse_backward_ref(float *dx, const float *x, const float *y, size_t n, float s) {
    for (size_t i = 0; i < n; i++) dx[i] = cairn__mse_backward(s, x[i], y[i]);
}

/* The same bias for every row of y, in place. */
static void bias_add_ref(float *y, const float *bias, size_t rows, size_t cols) {
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) y[r * cols + c] += bias[c];
    }
}

/* ---- copies: casts between equal types ---- */

static void copy(void *dst, const void *src, size_t nbytes) {
    if (nbytes && dst != src) memcpy(dst, src, nbytes);
}

static void cast_2_bytes_ref(void *dst, const void *src, size_t n) {
    copy(dst, src, n * 2);
}
static void cast_4_bytes_ref(void *dst, const void *src, size_t n) {
    copy(dst, src, n * 4);
}
static void cast_8_bytes_ref(void *dst, const void *src, size_t n) {
    copy(dst, src, n * 8);
}

#define ISA   ref
#define NEEDS 0
#define EXTRA_ROWS                                  \
    ROW(CAST, CAIRN_F32, CAIRN_F32, cast_4_bytes)   \
    ROW(CAST, CAIRN_F16, CAIRN_F16, cast_2_bytes)   \
    ROW(CAST, CAIRN_BF16, CAIRN_BF16, cast_2_bytes) \
    ROW(CAST, CAIRN_I32, CAIRN_I32, cast_4_bytes)   \
    ROW(CAST, CAIRN_I64, CAIRN_I64, cast_8_bytes)   \
    ROW(COUNT_EXPONENTS, CAIRN_F64, 0, count_exponents_f64)
#define MORE_REDUCTIONS(X) \
    EACH_REDUCTION(X, f64, F64) EACH_REDUCTION(X, i32, I32) EACH_REDUCTION(X, i64, I64) EACH_REDUCTION(X, u8, U8)
#include "kernels/instances.h"
