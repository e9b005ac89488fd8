/* All kernels with 16 lanes: the code that avx2.c and avx512.c share.
 *
 * This is a template, not a header: a kernel file first defines the 16-lane types and operations of its instruction
 * set, all static, and then includes this file. Nothing here is visible outside that file, so no instruction leaks into
 * generic code.
 *
 *   vec      16 f32;   bits  16 u32, or 32 u16;   vecd  16 f64
 *   load_T, load_part_T(p, count), store_T, store_part_T(p, v, count), stream_T    for T in f32, f16, bf16
 *   splat add sub mul divide root opposite magnitude, lesser(a, b) NaN where one is and -0 below +0, rounded(type, v)
 *   where_positive_or_nan(x, v)  v, else +0; maximum(a, b)  a > b ? a : b; with_sign_of(x, v)  v with the
 *            sign of x, or x where that is 0 or NaN; v is positive
 *   nothing_seen see(bits, vec) see_halves(bits, p): running maximum of magnitudes, taken as integers
 *   zeros_f64 add_squares(vecd, vec) add_wide(vecd, vec); narrowed(vecd) to vec
 *   load_f64(p) store_f64(p, vecd), 16 of them; tree(vec), the sum of the lanes as kernels.h has it
 *   struct pair of vec, of 32 halves: pair_of_f16(p), first 16 and last 16; pair_of_bf16(p), even and odd ones, less
 *            than 2^-63 as 0; in_order(pair of even and odd) to first and last
 *   fused(a, b, c) a * b + c; any_reaches(vec, u32 bits)
 *   add_normal_squares(vecd, p)  of 16 bf16. A subnormal is 2^-126 more than itself, which is normal, less 2^-126 in
 *            f64
 *   words    16 u32: words_of(x), words_from(pointer), words_xor; multiply_words(a, m, &high, &low), 32 x 32 bits ->
 *            64; transpose_words(c), of each group of four lanes and four registers
 *   round_32(dst, x, words)  32 f32 to bf16, with the low halves of words for even ones, the high halves for odd ones
 *
 * Why the bits agree with ref.c: lanes are independent, every operation is one IEEE operation, and sums keep element i
 * in lane i % 16. A part load fills the lanes after the end with +0, which changes no sum and no maximum: such a lane
 * gives a non-finite result only if a factor is not finite, and then no element's result is finite either. */
#include <string.h>

#include "kernels/element.h"
#include "kernels/row_lists.h"

enum { LANES = 16, STREAM_FROM_NBYTES = 4 << 20 };

/* One block of up to 16 elements at i. WHOLE and STREAM blocks have all 16. STREAM stores bypass the caches. */
enum how { WHOLE, STREAM, PART };
struct at {
    size_t i;
    enum how how;
    size_t count;
};

/* Runs the statement over all blocks of [0, n); `at` describes each block. If `streamed` is not NULL, whole blocks from
 * its first 64-byte boundary on are streamed; it is an array of elements of `width` bytes. */
#define OVER(n, streamed, width, ...)                                                             \
    do {                                                                                          \
        size_t i_ = 0, end_ = (n);                                                                \
        if (streamed) {                                                                           \
            size_t head_ = (64 - (uintptr_t)(streamed) % 64) % 64 / (width);                      \
            for (; i_ < head_; i_ += LANES) ONE(i_, PART, least(head_ - i_, LANES), __VA_ARGS__); \
            for (i_ = head_; i_ + 4 * LANES <= end_; i_ += 4 * LANES) {                           \
                ONE(i_, STREAM, LANES, __VA_ARGS__);                                              \
                ONE(i_ + LANES, STREAM, LANES, __VA_ARGS__);                                      \
                ONE(i_ + 2 * LANES, STREAM, LANES, __VA_ARGS__);                                  \
                ONE(i_ + 3 * LANES, STREAM, LANES, __VA_ARGS__);                                  \
            }                                                                                     \
            _mm_sfence();                                                                         \
        }                                                                                         \
        for (; i_ + 2 * LANES <= end_; i_ += 2 * LANES) {                                         \
            ONE(i_, WHOLE, LANES, __VA_ARGS__);                                                   \
            ONE(i_ + LANES, WHOLE, LANES, __VA_ARGS__);                                           \
        }                                                                                         \
        for (; i_ + LANES <= end_; i_ += LANES) ONE(i_, WHOLE, LANES, __VA_ARGS__);               \
        if (i_ < end_) ONE(i_, PART, end_ - i_, __VA_ARGS__);                                     \
    } while (0)
#define ONE(index, kind, number, ...)                     \
    do {                                                  \
        const struct at at = {(index), (kind), (number)}; \
        __VA_ARGS__;                                      \
    } while (0)

/* The same over [begin, end), without streaming. */
#define OVER_SOME(begin, end, ...)                                                  \
    do {                                                                            \
        size_t i_ = (begin), end_ = (end);                                          \
        for (; i_ + 2 * LANES <= end_; i_ += 2 * LANES) {                           \
            ONE(i_, WHOLE, LANES, __VA_ARGS__);                                     \
            ONE(i_ + LANES, WHOLE, LANES, __VA_ARGS__);                             \
        }                                                                           \
        for (; i_ + LANES <= end_; i_ += LANES) ONE(i_, WHOLE, LANES, __VA_ARGS__); \
        if (i_ < end_) ONE(i_, PART, end_ - i_, __VA_ARGS__);                       \
    } while (0)

/* Over [0, n), one vector at a time. */
#define OVER_VECTORS(n, ...)                                                        \
    do {                                                                            \
        size_t i_ = 0, end_ = (n);                                                  \
        for (; i_ + LANES <= end_; i_ += LANES) ONE(i_, WHOLE, LANES, __VA_ARGS__); \
        if (i_ < end_) ONE(i_, PART, end_ - i_, __VA_ARGS__);                       \
    } while (0)

/* Computes a sum: the statement adds the elements at `at` to lanes; after each block of a sum, `close` adds the lanes
 * up, in f64, and resets them to +0. Blocks do not depend on each other, so the processor runs several at once;
 * unrolling a whole block would take more registers than AVX2 has. */
#if defined(__clang__)
#define ROLLED _Pragma("clang loop unroll(disable)")
#else
#define ROLLED _Pragma("GCC unroll 1")
#endif
#define SUM_OVER(n, close, ...)                                                        \
    do {                                                                               \
        size_t b_ = 0;                                                                 \
        for (; b_ + CAIRN__SUM_BLOCK <= (n); b_ += CAIRN__SUM_BLOCK) {                 \
            ROLLED for (size_t w_ = b_; w_ < b_ + CAIRN__SUM_BLOCK; w_ += 4 * LANES) { \
                ONE(w_, WHOLE, LANES, __VA_ARGS__);                                    \
                ONE(w_ + LANES, WHOLE, LANES, __VA_ARGS__);                            \
                ONE(w_ + 2 * LANES, WHOLE, LANES, __VA_ARGS__);                        \
                ONE(w_ + 3 * LANES, WHOLE, LANES, __VA_ARGS__);                        \
            }                                                                          \
            close;                                                                     \
        }                                                                              \
        if (b_ < (n)) {                                                                \
            OVER_SOME(b_, n, __VA_ARGS__);                                             \
            close;                                                                     \
        }                                                                              \
    } while (0)

/* Like OVER, but with up to four whole blocks at a time: `vectors` is how many begin at `at`. */
#define OVER_4(n, streamed, width, ...)                                                                        \
    do {                                                                                                       \
        size_t i_ = 0, end_ = (n);                                                                             \
        if (streamed) {                                                                                        \
            size_t head_ = (64 - (uintptr_t)(streamed) % 64) % 64 / (width);                                   \
            for (; i_ < head_; i_ += LANES) SOME(1, i_, PART, least(head_ - i_, LANES), __VA_ARGS__);          \
            for (i_ = head_; i_ + 4 * LANES <= end_; i_ += 4 * LANES) SOME(4, i_, STREAM, LANES, __VA_ARGS__); \
            _mm_sfence();                                                                                      \
        }                                                                                                      \
        for (; i_ + 4 * LANES <= end_; i_ += 4 * LANES) SOME(4, i_, WHOLE, LANES, __VA_ARGS__);                \
        for (; i_ + LANES <= end_; i_ += LANES) SOME(1, i_, WHOLE, LANES, __VA_ARGS__);                        \
        if (i_ < end_) SOME(1, i_, PART, end_ - i_, __VA_ARGS__);                                              \
    } while (0)
#define SOME(many, index, kind, number, ...)   \
    do {                                       \
        const int vectors = (many);            \
        ONE(index, kind, number, __VA_ARGS__); \
    } while (0)

INLINE size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

INLINE size_t width_of(int type) {
    return type == CAIRN_F32 ? 4 : 2;
}

/* Returns dst if its stores should be streamed: a large array whose lines have not just been read into the cache. */
INLINE const void *streamed(const void *dst, int type, size_t n, bool in_place) {
    return !in_place && n >= STREAM_FROM_NBYTES / width_of(type) ? dst : NULL;
}

INLINE vec get(int type, const void *x, struct at at) {
    if (type == CAIRN_F32) {
        const float *p = (const float *)x + at.i;
        return at.how == PART ? load_part_f32(p, at.count) : load_f32(p);
    }
    const uint16_t *p = (const uint16_t *)x + at.i;
    if (type == CAIRN_F16) return at.how == PART ? load_part_f16(p, at.count) : load_f16(p);
    return at.how == PART ? load_part_bf16(p, at.count) : load_bf16(p);
}

INLINE void put(int type, void *x, struct at at, vec v) {
    float *f = (float *)x + at.i;
    uint16_t *h = (uint16_t *)x + at.i;
    switch (type) {
    case CAIRN_F32:
        if (at.how == PART) store_part_f32(f, v, at.count);
        else if (at.how == STREAM) stream_f32(f, v);
        else store_f32(f, v);
        break;
    case CAIRN_F16:
        if (at.how == PART) store_part_f16(h, v, at.count);
        else if (at.how == STREAM) stream_f16(h, v);
        else store_f16(h, v);
        break;
    default:
        if (at.how == PART) store_part_bf16(h, v, at.count);
        else if (at.how == STREAM) stream_bf16(h, v);
        else store_bf16(h, v);
        break;
    }
}

/* For an array that is written in place beside a streamed array: its stores are not streamed. */
INLINE struct at kept(struct at at) {
    return (struct at){at.i, at.how == STREAM ? WHOLE : at.how, at.count};
}

/* The smallest magnitude, as bits of an f32, that rounds to infinity in `type`: the midpoint above its largest
 * number. */
INLINE uint32_t overflow_bits(int type) {
    return type == CAIRN_F16 ? 0x477ff000u : type == CAIRN_BF16 ? 0x7f7f8000u : 0x7f800000u;
}

INLINE uint32_t any_from(bits seen, uint32_t bound) {
    uint32_t lane[LANES];
    uint32_t any = 0;
    memcpy(lane, &seen, sizeof(lane));
    for (int j = 0; j < LANES; j++) any |= lane[j] >= bound;
    return any;
}

INLINE double tree_f64(vecd v) {
    double lane[LANES];
    memcpy(lane, &v, sizeof(lane));
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    }
    return lane[0];
}

INLINE uint32_t any_nonfinite(vecd v) {
    uint64_t lane[LANES];
    uint32_t any = 0;
    memcpy(lane, &v, sizeof(lane));
    for (int j = 0; j < LANES; j++) any |= lane[j] << 1 >= (uint64_t)0x7ff << 53;
    return any;
}

/* ---- casts, checks, sums of squares ---- */

INLINE void cast(int from, int to, void *dst, const void *src, size_t n) {
    const void *stream = streamed(dst, to, n, dst == src);
    OVER(n, stream, width_of(to), put(to, dst, at, get(from, src, at)));
}

INLINE void scale(int from, int to, void *dst, const void *src, size_t n, float factor, uint32_t *found) {
    const void *stream = streamed(dst, to, n, dst == src);
    const vec f = splat(factor);
    bits seen = nothing_seen();
    OVER(n, stream, width_of(to), {
        vec v = mul(get(from, src, at), f);
        put(to, dst, at, v);
        seen = see(seen, v);
    });
    *found |= any_from(seen, overflow_bits(to));
}

INLINE void axpby(int from, int to, void *dst, const void *x, const float *y, size_t n, float a, float b,
                  uint32_t *found) {
    const void *stream = streamed(dst, to, n, dst == x || dst == (const void *)y);
    const vec va = splat(a), vb = splat(b);
    bits seen = nothing_seen();
    OVER(n, stream, width_of(to), {
        vec v = add(mul(va, get(from, x, at)), mul(vb, get(CAIRN_F32, y, at)));
        put(to, dst, at, v);
        seen = see(seen, v);
    });
    *found |= any_from(seen, overflow_bits(to));
}

/* Reads halves as they are, 32 at a time, without widening them. */
INLINE void check_halves(int type, const uint16_t *x, size_t n, uint32_t *found) {
    const uint16_t exponent = type == CAIRN_F16 ? 0x7c00u : 0x7f80u;
    bits seen = nothing_seen(), seen_too = seen;
    size_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        seen = see_halves(seen, x + i);
        seen_too = see_halves(seen_too, x + i + 2 * LANES);
    }
    uint16_t lane[4 * LANES];
    memcpy(lane, &seen, sizeof(seen));
    memcpy(lane + 2 * LANES, &seen_too, sizeof(seen_too));
    uint32_t any = 0;
    for (int j = 0; j < 4 * LANES; j++) any |= lane[j] >= exponent;
    for (; i < n; i++) any |= (x[i] & exponent) == exponent;
    *found |= any;
}

INLINE void check(int type, const void *x, size_t n, uint32_t *found) {
    if (type != CAIRN_F32) {
        check_halves(type, x, n, found);
        return;
    }
    bits seen = nothing_seen();
    OVER(n, NULL, 4, seen = see(seen, get(CAIRN_F32, x, at)));
    *found |= any_from(seen, overflow_bits(CAIRN_F32));
}

/* Squares of halves are exact in f32, so a fused addition rounds like a separate one. */
INLINE void add_pair(int type, vec sum[2], const uint16_t *x) {
    const struct pair v = type == CAIRN_F16 ? pair_of_f16(x) : pair_of_bf16(x);
    sum[0] = fused(v.a, v.a, sum[0]);
    sum[1] = fused(v.b, v.b, sum[1]);
}

/* Returns the 16 lanes' sums of a block's squares. */
INLINE vec block_of_squares(int type, const uint16_t *x, size_t n) {
    vec sum[4] = {splat(0), splat(0), splat(0), splat(0)};
    size_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        add_pair(type, sum, x + i);
        add_pair(type, sum + 2, x + i + 2 * LANES);
    }
    if (i < n) {
        uint16_t rest[4 * LANES] = {0};
        memcpy(rest, x + i, (n - i) * sizeof(*x));
        add_pair(type, sum, rest);
        add_pair(type, sum + 2, rest + 2 * LANES);
    }
    struct pair both = {add(sum[0], sum[2]), add(sum[1], sum[3])};
    if (type == CAIRN_BF16) both = in_order(both);
    return add(both.a, both.b);
}

INLINE vecd add_squares_of_bf16(vecd lanes, const uint16_t *x, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) lanes = add_normal_squares(lanes, x + i);
    if (i == n) return lanes;
    uint16_t rest[LANES] = {0};
    memcpy(rest, x + i, (n - i) * sizeof(*x));
    return add_normal_squares(lanes, rest);
}

/* Most blocks of an embedding's gradient are zeros. */
INLINE bool are_zeros(const uint16_t *x, size_t n) {
    bits seen = nothing_seen();
    uint32_t rest = 0;
    size_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) seen = see_halves(seen, x + i);
    for (; i < n; i++) rest |= x[i] & 0x7fffu;
    return !any_from(seen, 1) && rest == 0;
}

INLINE vecd squares_of_halves(int type, const uint16_t *x, size_t n) {
    vecd lanes = zeros_f64();
    for (size_t i = 0; i < n; i += CAIRN__SQUARES_BLOCK) {
        const size_t m = least(n - i, CAIRN__SQUARES_BLOCK);
        const vec sums = block_of_squares(type, x + i, m);
        const bool fits =
            type == CAIRN_F16 || (any_reaches(sums, CAIRN__LEAST_SQUARES) && !any_reaches(sums, 0x7f800000u));
        if (fits) lanes = add_wide(lanes, sums);
        else if (!are_zeros(x + i, m)) lanes = add_squares_of_bf16(lanes, x + i, m);
    }
    return lanes;
}

/* No sum of squares of finite f32 overflows an f64, and an infinity or a NaN never leaves a lane again: the lanes show
 * at the end whether there was one, at no cost per element. */
INLINE void sumsq(int type, const void *x, size_t n, float factor, double *sum, uint32_t *found) {
    vecd lanes = zeros_f64();
    if (type == CAIRN_F32) {
        OVER(n, NULL, 4, lanes = add_squares(lanes, get(CAIRN_F32, x, at)));
    } else {
        lanes = squares_of_halves(type, x, n);
    }
    *sum += tree_f64(lanes) * ((double)factor * (double)factor);
    *found |= any_nonfinite(lanes);
}

/* ---- counts ---- */

/* Magnitudes of finite elements, as bits: the greatest, and the smallest except 0. */
struct ends {
    uint32_t greatest, smallest;
};

enum { TALLY_NBYTES = 32, TALLIES = 1 << 14 };

/* Counts of at most TALLIES vectors, which fit in 16 bits, in GCC's vector extension, which clang has, too. Without the
 * sign, bits compare like signed numbers. A true comparison gives -1, while AVX-512 compares into masks: hence vectors
 * of 32 bytes. Elements after the end are zeros, and are subtracted again. */
#define MAKE_TALLY(name, word)                                                                                      \
    static void name(const word *x, size_t n, word infinity, word least, struct cairn__counts *c, struct ends *e) { \
        typedef word lanes __attribute__((vector_size(TALLY_NBYTES)));                                              \
        enum { WIDTH = TALLY_NBYTES / sizeof(word) };                                                               \
        const word all = (word)(sizeof(word) == 2 ? 0x7fff : 0x7fffffff);                                           \
        lanes zeros = {0}, small = {0}, infs = {0}, nans = {0}, greatest = {0}, smallest = greatest + all;          \
        size_t behind = 0;                                                                                          \
        for (size_t i = 0; i < n; i += WIDTH) {                                                                     \
            lanes m = {0};                                                                                          \
            if (i + WIDTH <= n) memcpy(&m, x + i, sizeof(m));                                                       \
            else memcpy(&m, x + i, (n - i) * sizeof(word)), behind = i + WIDTH - n;                                 \
            m &= all;                                                                                               \
            zeros -= (lanes)(m == 0), small -= (lanes)(m < least);                                                  \
            infs -= (lanes)(m == infinity), nans -= (lanes)(m > infinity);                                          \
            const lanes finite = m & (lanes)(m < infinity), not_0 = m | ((lanes)(m == 0) & all);                    \
            const lanes rises = (lanes)(finite > greatest), falls = (lanes)(not_0 < smallest);                      \
            greatest = (finite & rises) | (greatest & ~rises);                                                      \
            smallest = (not_0 & falls) | (smallest & ~falls);                                                       \
        }                                                                                                           \
        c->zeros -= behind;                                                                                         \
        for (int j = 0; j < WIDTH; j++) {                                                                           \
            c->zeros += (uint64_t)zeros[j], c->infs += (uint64_t)infs[j], c->nans += (uint64_t)nans[j];             \
            c->subnormals += (uint64_t)(small[j] - (least ? zeros[j] : 0));                                         \
            if ((uint32_t)greatest[j] > e->greatest) e->greatest = (uint32_t)greatest[j];                           \
            if ((uint32_t)smallest[j] < e->smallest) e->smallest = (uint32_t)smallest[j];                           \
        }                                                                                                           \
    }
MAKE_TALLY(tally_16, int16_t)
MAKE_TALLY(tally_32, int32_t)

/* Widens a number of `type`, given by its bits, to f32, and returns the bits of that. */
INLINE uint32_t widened_bits(int type, uint32_t m) {
    if (type == CAIRN_F32) return m;
    return cairn__f32_bits(type == CAIRN_F16 ? cairn__f16_to_f32((uint16_t)m) : cairn__bf16_to_f32((uint16_t)m));
}

/* The smallest magnitude, as bits of `type`, that is at least `least` in f32; infinity if there is no smaller one. */
INLINE uint32_t least_of_type(int type, uint32_t infinity, uint32_t least) {
    uint32_t low = 0, high = infinity;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (widened_bits(type, middle) >= least) high = middle;
        else low = middle + 1;
    }
    return low;
}

INLINE void census(int type, const void *x, size_t n, float least_normal, struct cairn__counts *counts) {
    const uint32_t infinity = type == CAIRN_F32 ? 0x7f800000u : type == CAIRN_F16 ? 0x7c00u : 0x7f80u;
    const uint32_t bound = least_of_type(type, infinity, cairn__f32_bits(least_normal));
    struct ends e = {0, infinity};
    const size_t at_once = (size_t)TALLIES * TALLY_NBYTES / width_of(type);
    for (size_t i = 0; i < n; i += at_once) {
        const size_t m = least(n - i, at_once);
        if (type == CAIRN_F32) tally_32((const int32_t *)x + i, m, (int32_t)infinity, (int32_t)bound, counts, &e);
        else tally_16((const int16_t *)x + i, m, (int16_t)infinity, (int16_t)bound, counts, &e);
    }
    if (e.greatest == 0) return;
    const int32_t most = cairn__exponent_of(widened_bits(type, e.greatest));
    const int32_t fewest = cairn__exponent_of(widened_bits(type, e.smallest));
    if (most > counts->max_exponent) counts->max_exponent = most;
    if (fewest < counts->min_exponent) counts->min_exponent = fewest;
    const double largest = cairn__value_of(widened_bits(type, e.greatest));
    if (largest > counts->largest) counts->largest = largest;
}

#include "kernels/count_exponents.h"

INLINE void fill(int type, void *dst, size_t n, float value) {
    const void *stream = streamed(dst, type, n, false);
    const vec v = splat(value);
    OVER(n, stream, width_of(type), put(type, dst, at, v));
}

INLINE void round_to(int type, float *dst, const float *src, size_t n) {
    const void *stream = streamed(dst, CAIRN_F32, n, dst == src);
    OVER(n, stream, 4, put(CAIRN_F32, dst, at, rounded(type, get(CAIRN_F32, src, at))));
}

/* ---- random numbers ---- */

enum { BLOCKS = LANES, WORDS = 4 * LANES }; /* Philox blocks made at once, one per lane, and their words */

/* The keys of Philox's ten rounds, in memory, from where a round reads them at no cost. */
struct keys {
    uint32_t round[10][2];
};

INLINE struct keys keys_of(uint64_t seed) {
    struct keys keys;
    for (uint32_t r = 0; r < 10; r++) {
        keys.round[r][0] = (uint32_t)seed + r * 0x9E3779B9u;
        keys.round[r][1] = (uint32_t)(seed >> 32) + r * 0xBB67AE85u;
    }
    return keys;
}

/* Computes the words of 16 blocks from `counter`, a multiple of 16, in the order of their elements. Lane 4 g + j starts
 * as block 4 j + g, so that transposing within groups of four lanes puts the words in order. */
INLINE void draw(const struct keys *keys, uint64_t counter, uint64_t stream, words c[4]) {
    static const uint32_t order[LANES] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    c[0] = words_xor(words_from(order), words_of((uint32_t)counter));
    c[1] = words_of((uint32_t)(counter >> 32));
    c[2] = words_of((uint32_t)stream);
    c[3] = words_of((uint32_t)(stream >> 32));
    for (int round = 0; round < 10; round++) {
        words high0, low0, high1, low1;
        multiply_words(c[0], 0xD2511F53u, &high0, &low0);
        multiply_words(c[2], 0xCD9E8D57u, &high1, &low1);
        c[0] = words_xor(words_xor(high1, c[1]), words_of(keys->round[round][0]));
        c[1] = low1;
        c[2] = words_xor(words_xor(high0, c[3]), words_of(keys->round[round][1]));
        c[3] = low0;
    }
    transpose_words(c);
}

/* Rounds n elements by some of the 128 numbers of one draw: those from `skipped` on. */
static void round_some(uint16_t *dst, const float *x, size_t n, const words c[4], size_t skipped) {
    uint32_t word[WORDS + LANES] = {0};
    memcpy(word, c, WORDS * sizeof(word[0]));
    for (size_t i = 0; i < n; i += 2 * LANES) {
        const size_t count = least(n - i, 2 * LANES);
        float in[2 * LANES] = {0};
        uint16_t out[2 * LANES];
        memcpy(in, x + i, count * sizeof(in[0]));
        round_32(out, in, words_from(word + (skipped + i) / 2));
        memcpy(dst + i, out, count * sizeof(out[0]));
    }
}

static void NAMED(round_stochastic)(uint16_t *dst, const float *x, size_t n, uint64_t seed, uint64_t stream,
                                    uint64_t first) {
    const struct keys keys = keys_of(seed);
    for (size_t i = 0, end; i < n; i = end) {
        const size_t skipped = (first + i) % (2 * WORDS);
        words c[4];
        draw(&keys, (first + i) / (2 * WORDS) * BLOCKS, stream, c);
        end = least(n, i + 2 * WORDS - skipped);
        if (end - i == 2 * WORDS) {
            for (size_t j = 0; j < 4; j++) round_32(dst + i + 2 * LANES * j, x + i + 2 * LANES * j, c[j]);
        } else {
            round_some(dst + i, x + i, end - i, c, skipped);
        }
    }
}

/* ---- reduction over ranks ---- */

/* A power of two has an exact inverse, so multiplying by it gives the same bits as dividing. */
INLINE bool has_exact_inverse(float divisor) {
    int exponent;
    return frexpf(divisor, &exponent) == 0.5f && exponent > -100 && exponent < 100;
}

/* The greater of two numbers is the opposite of the lesser of their opposites. */
INLINE vec combined(int op, vec x, vec y) {
    switch (op) {
    case CAIRN__REDUCE_MIN:
        return lesser(x, y);
    case CAIRN__REDUCE_MAX:
        return opposite(lesser(opposite(x), opposite(y)));
    case CAIRN__REDUCE_PROD:
        return mul(x, y);
    default:
        return add(x, y);
    }
}

/* Applied after all ranks' elements are combined: a sum is divided. */
struct finish {
    bool by_inverse;
    vec divisor, inverse;
};

INLINE struct at vector_of(struct at at, int v) {
    return (struct at){at.i + (size_t)v * LANES, at.how, at.count};
}

/* Handles at most 4 vectors of an array before the next array, so that its lines are requested together. num_dsts and p
 * are constants in the common cases. */
INLINE bits reduce_at(int op, int type, void *const *dsts, int num_dsts, const void *const *srcs, int p, struct at at,
                      int vectors, const struct finish *f, bits seen) {
    vec x[4];
    for (int v = 0; v < vectors; v++) x[v] = get(type, srcs[0], vector_of(at, v));
    for (int r = 1; r < p; r++) {
        for (int v = 0; v < vectors; v++) x[v] = combined(op, x[v], get(type, srcs[r], vector_of(at, v)));
    }
    for (int v = 0; v < vectors; v++) {
        if (op == CAIRN__REDUCE_SUM) x[v] = f->by_inverse ? mul(x[v], f->inverse) : divide(x[v], f->divisor);
        seen = see(seen, x[v]);
    }
    for (int j = 0; j < num_dsts; j++) {
        for (int v = 0; v < vectors; v++) put(type, dsts[j], vector_of(at, v), x[v]);
    }
    return seen;
}

INLINE bool is_one_of(const void *x, const void *const *of, int count) {
    for (int i = 0; i < count; i++) {
        if (of[i] == x) return true;
    }
    return false;
}

INLINE void reduce_p(int op, int type, void *const *dsts, int num_dsts, const void *const *srcs, int p, size_t n,
                     float divisor, uint32_t *found) {
    const struct finish f = {has_exact_inverse(divisor), splat(divisor), splat(1.0f / divisor)};
    const void *stream = num_dsts == 1 ? streamed(dsts[0], type, n, is_one_of(dsts[0], srcs, p)) : NULL;
    bits seen = nothing_seen();
    if (p == 2) {
        OVER(n, stream, width_of(type), seen = reduce_at(op, type, dsts, num_dsts, srcs, p, at, 1, &f, seen));
    } else {
        OVER_4(n, stream, width_of(type), seen = reduce_at(op, type, dsts, num_dsts, srcs, p, at, vectors, &f, seen));
    }
    *found |= any_from(seen, overflow_bits(type));
}

INLINE bool are_same(void *const *x, const void *const *y, int count) {
    int i = 0;
    while (i < count && x[i] == y[i]) i++;
    return i == count;
}

INLINE void reduce(int op, int type, void *const *dsts, int num_dsts, const void *const *srcs, int p, size_t n,
                   float divisor, uint32_t *found) {
    if (p == 2 && num_dsts == 2) {
        reduce_p(op, type, (void *const[2]){dsts[0], dsts[1]}, 2, (const void *const[2]){srcs[0], srcs[1]}, 2, n,
                 divisor, found);
    } else if (p == 2) {
        reduce_p(op, type, (void *const[1]){dsts[0]}, 1, (const void *const[2]){srcs[0], srcs[1]}, 2, n, divisor,
                 found);
    } else if (op == CAIRN__REDUCE_SUM && p == 8 && num_dsts == 8 && are_same(dsts, srcs, 8)) {
        void *const x[8] = {dsts[0], dsts[1], dsts[2], dsts[3], dsts[4], dsts[5], dsts[6], dsts[7]}; /* in registers */
        reduce_p(op, type, x, 8, (const void *const *)x, 8, n, divisor, found);
    } else {
        reduce_p(op, type, dsts, num_dsts, srcs, p, n, divisor, found);
    }
}

/* ---- optimizers ---- */

INLINE int param_type(int mode) {
    return mode == CAIRN__W_F16 ? CAIRN_F16 : mode == CAIRN__W_BF16 ? CAIRN_BF16 : CAIRN_F32;
}

INLINE int half_type(int mode) {
    return mode == CAIRN__W_F32_F16 ? (int)CAIRN_F16 : mode == CAIRN__W_F32_BF16 ? (int)CAIRN_BF16 : 0;
}

/* Of an optimizer's arrays only the half copy of a master is never read, so only its stores are streamed. */
INLINE const void *streamed_half(int mode, const void *half, size_t n) {
    return half_type(mode) ? streamed(half, half_type(mode), n, false) : NULL;
}

INLINE void put_weight(int mode, void *param, void *half, struct at at, vec w) {
    put(param_type(mode), param, kept(at), w);
    if (half_type(mode)) put(half_type(mode), half, at, w);
}

INLINE void sgd(int grad_type, int mode, void *param, void *half, float *const *state, const void *grad, size_t n,
                const struct cairn__sgd *h) {
    float *const buf = state[0];
    const struct cairn__sgd o = *h;
    const vec factor = splat(o.factor), lr = splat(o.lr), decay = splat(o.weight_decay);
    const vec momentum = splat(o.momentum), undamped = splat(o.undamped);
    const void *stream = streamed_half(mode, half, n);
    OVER(n, stream, 2, {
        vec w = get(param_type(mode), param, at);
        vec g = mul(get(grad_type, grad, at), factor);
        if (o.weight_decay != 0 && !o.decays_last) g = add(g, mul(decay, w));
        if (o.momentum_on) {
            vec b = o.first ? g : add(mul(momentum, get(CAIRN_F32, buf, at)), mul(undamped, g));
            put(CAIRN_F32, buf, kept(at), b);
            g = o.nesterov ? add(g, mul(momentum, b)) : b;
        }
        if (o.weight_decay != 0 && o.decays_last) g = add(g, mul(decay, w));
        put_weight(mode, param, half, at, sub(w, mul(lr, g)));
    });
}

/* Adam's update, or LAMB's direction, which is written to state[2]. */
INLINE void adam_or_lamb(bool is_lamb, int grad_type, int mode, void *param, void *half, float *const *state,
                         const void *grad, size_t n, const struct cairn__adam *h) {
    const struct cairn__adam o = *h;
    float *const m = state[0], *const v = state[1], *const third = state[2];
    const vec factor = splat(o.factor), decay = splat(o.decoupled ? o.lr_decay : o.weight_decay);
    const vec beta1 = splat(o.beta1), rest1 = splat(o.one_minus_beta1);
    const vec beta2 = splat(o.beta2), rest2 = splat(o.one_minus_beta2);
    const vec eps = splat(o.eps), step = splat(o.step_size), inv_c2 = splat(o.inv_sqrt_c2);
    const bool l2 = !o.decoupled && o.weight_decay != 0;
    const void *stream = is_lamb ? NULL : streamed_half(mode, half, n);
    OVER(n, stream, 2, {
        vec w = get(param_type(mode), param, at);
        vec g = mul(get(grad_type, grad, at), factor);
        if (l2) g = add(g, mul(decay, w));
        vec m1 = add(mul(beta1, get(CAIRN_F32, m, at)), mul(rest1, g));
        vec v1 = add(mul(beta2, get(CAIRN_F32, v, at)), mul(rest2, mul(g, g)));
        put(CAIRN_F32, m, kept(at), m1);
        put(CAIRN_F32, v, kept(at), v1);
        if (!is_lamb && o.amsgrad) {
            v1 = maximum(get(CAIRN_F32, third, at), v1);
            put(CAIRN_F32, third, kept(at), v1);
        }
        vec denominator = add(mul(root(v1), inv_c2), eps);
        vec update = mul(step, divide(m1, denominator));
        if (o.decoupled) update = add(update, mul(decay, w));
        if (is_lamb) put(CAIRN_F32, third, kept(at), update);
        else put_weight(mode, param, half, at, sub(w, update));
    });
}

INLINE void adam(int grad_type, int mode, void *param, void *half, float *const *state, const void *grad, size_t n,
                 const struct cairn__adam *h) {
    adam_or_lamb(false, grad_type, mode, param, half, state, grad, n, h);
}

INLINE void lamb(int grad_type, int mode, void *param, void *half, float *const *state, const void *grad, size_t n,
                 const struct cairn__adam *h) {
    adam_or_lamb(true, grad_type, mode, param, half, state, grad, n, h);
}

INLINE void lion(int grad_type, int mode, void *param, void *half, float *const *state, const void *grad, size_t n,
                 const struct cairn__lion *h) {
    const struct cairn__lion o = *h;
    float *const m = state[0];
    const vec factor = splat(o.factor), lr = splat(o.lr), decay = splat(o.lr_decay);
    const vec beta1 = splat(o.beta1), rest1 = splat(o.one_minus_beta1);
    const vec beta2 = splat(o.beta2), rest2 = splat(o.one_minus_beta2);
    const void *stream = streamed_half(mode, half, n);
    OVER(n, stream, 2, {
        vec w = get(param_type(mode), param, at), m0 = get(CAIRN_F32, m, at);
        vec g = mul(get(grad_type, grad, at), factor);
        vec c = add(mul(beta1, m0), mul(rest1, g));
        put(CAIRN_F32, m, kept(at), add(mul(beta2, m0), mul(rest2, g)));
        put_weight(mode, param, half, at, sub(w, add(with_sign_of(c, lr), mul(decay, w))));
    });
}

INLINE void adagrad(int grad_type, int mode, void *param, void *half, float *const *state, const void *grad, size_t n,
                    const struct cairn__adagrad *h) {
    const struct cairn__adagrad o = *h;
    float *const sum = state[0];
    const vec factor = splat(o.factor), lr = splat(o.lr), eps = splat(o.eps), initial = splat(o.initial);
    const vec decay = splat(o.decoupled ? o.lr_decay : o.weight_decay);
    const bool l2 = !o.decoupled && o.weight_decay != 0;
    const void *stream = streamed_half(mode, half, n);
    OVER(n, stream, 2, {
        vec w = get(param_type(mode), param, at);
        vec g = mul(get(grad_type, grad, at), factor);
        if (l2) g = add(g, mul(decay, w));
        vec s = add(o.first ? initial : get(CAIRN_F32, sum, at), mul(g, g));
        put(CAIRN_F32, sum, kept(at), s);
        vec update = mul(lr, divide(g, add(root(s), eps)));
        if (o.decoupled) update = add(update, mul(decay, w));
        put_weight(mode, param, half, at, sub(w, update));
    });
}

/* ---- for nn ---- */

static void NAMED(add)(float *dst, const float *a, const float *b, size_t n) {
    const void *stream = streamed(dst, CAIRN_F32, n, dst == a || dst == b);
    OVER(n, stream, 4, put(CAIRN_F32, dst, at, add(get(CAIRN_F32, a, at), get(CAIRN_F32, b, at))));
}

static void NAMED(mul_scalar)(float *dst, const float *x, size_t n, float s) {
    const void *stream = streamed(dst, CAIRN_F32, n, dst == x);
    const vec factor = splat(s);
    OVER(n, stream, 4, put(CAIRN_F32, dst, at, mul(get(CAIRN_F32, x, at), factor)));
}

static void NAMED(relu)(float *dst, const float *x, size_t n) {
    const void *stream = streamed(dst, CAIRN_F32, n, dst == x);
    OVER(n, stream, 4, {
        vec v = get(CAIRN_F32, x, at);
        put(CAIRN_F32, dst, at, where_positive_or_nan(v, v));
    });
}

static void NAMED(relu_backward)(float *dx, const float *dy, const float *x, size_t n) {
    const void *stream = streamed(dx, CAIRN_F32, n, dx == dy || dx == x);
    OVER(n, stream, 4, put(CAIRN_F32, dx, at, where_positive_or_nan(get(CAIRN_F32, x, at), get(CAIRN_F32, dy, at))));
}

/* Adds the lanes to *sum and resets them. */
INLINE void close_block(double *sum, vec *lanes) {
    *sum += (double)tree(*lanes);
    *lanes = splat(0);
}

INLINE double sum(int type, const void *x, size_t n) {
    vec lanes = splat(0);
    double all = 0;
    SUM_OVER(n, close_block(&all, &lanes), lanes = add(lanes, get(type, x, at)));
    return all;
}

INLINE double mse_sum(int type, const void *x, const void *y, size_t n) {
    vec lanes = splat(0);
    double all = 0;
    SUM_OVER(n, close_block(&all, &lanes), {
        vec d = sub(get(type, x, at), get(type, y, at));
        lanes = add(lanes, mul(d, d));
    });
    return all;
}

static void NAMED(mse_backward)(float *dx, const float *x, const float *y, size_t n, float s) {
    const void *stream = streamed(dx, CAIRN_F32, n, dx == x || dx == y);
    const vec factor = splat(s);
    OVER(n, stream, 4, put(CAIRN_F32, dx, at, mul(factor, sub(get(CAIRN_F32, x, at), get(CAIRN_F32, y, at)))));
}

static void NAMED(bias_add)(float *y, const float *bias, size_t rows, size_t cols) {
    for (size_t r = 0; r < rows; r++) {
        float *row = y + r * cols;
        OVER(cols, NULL, 4, put(CAIRN_F32, row, at, add(get(CAIRN_F32, row, at), get(CAIRN_F32, bias, at))));
    }
}

INLINE const void *element(int type, const void *x, size_t i) {
    return (const char *)x + i * width_of(type);
}

static void NAMED(drain)(double *sums, float *part, size_t n) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        store_f64(sums + i, add_wide(load_f64(sums + i), load_f32(part + i)));
        store_f32(part + i, splat(0));
    }
    for (; i < n; i++) {
        sums[i] += (double)part[i];
        part[i] = 0;
    }
}

/* For few columns or rows: the sums of one vector of columns stay in registers. */
INLINE void sum_columns(int type, float *dst, const void *x, size_t rows, size_t cols, size_t n) {
    OVER(n, NULL, 4, {
        vecd all = zeros_f64();
        for (size_t r = 0; r < rows;) {
            vec lanes = splat(0);
            for (size_t end = r + least(rows - r, CAIRN__SUM_ROWS); r < end; r++)
                lanes = add(lanes, get(type, element(type, x, r * cols), at));
            all = add_wide(all, lanes);
        }
        put(CAIRN_F32, dst, at, narrowed(all));
    });
}

/* The term that a fold adds for the elements at `at` of row x. */
INLINE vec term(int f, int type, const void *x, const float *centre, struct at at) {
    vec v = get(type, x, at);
    if (centre) v = sub(v, get(CAIRN_F32, centre, at));
    return f == CAIRN__FOLD_SUM_SQUARES ? mul(v, v) : f == CAIRN__FOLD_SUM_ABS ? magnitude(v) : v;
}

/* Adds terms of `rows` rows to the lanes of `part`, or to +0 if these rows are the first. */
INLINE vec add_terms(int f, int type, const void *const *x, size_t rows, const float *centre, const float *part,
                     bool first, struct at at) {
    vec lanes = first ? splat(0) : get(CAIRN_F32, part, at);
    for (size_t r = 0; r < rows; r++) lanes = add(lanes, term(f, type, x[r], centre, at));
    return lanes;
}

/* Adds the lanes at `at` to sums; if `fresh`, sums are overwritten, not read, as if they were +0. */
INLINE void add_to_f64(double *sums, struct at at, vec lanes, bool fresh) {
    double *to = sums + at.i;
    if (at.how != PART) {
        store_f64(to, add_wide(fresh ? zeros_f64() : load_f64(to), lanes));
        return;
    }
    float lane[LANES];
    store_f32(lane, lanes);
    for (size_t j = 0; j < at.count; j++) to[j] = (fresh ? 0 : to[j]) + (double)lane[j];
}

/* Columns of a panel; their sums stay in the first-level cache. */
enum { PANEL = 1024, LEAST_PANEL = 64 };

INLINE void add_some_rows(int f, int type, double *sums, float *part, const void *const *x, size_t rows, size_t n,
                          const float *centre, bool first, bool last, bool fresh) {
    OVER_VECTORS(n, {
        const vec lanes = add_terms(f, type, x, rows, centre, part, first, at);
        if (last) add_to_f64(sums, at, lanes, fresh);
        else put(CAIRN_F32, part, at, lanes);
    });
}

/* Whether rows are a multiple of half a page apart, give or take half a cache line: elements that are read of them at
 * the same time then lie in few sets of the first-level cache. */
INLINE bool are_in_few_sets(const void *const *x) {
    return ((uintptr_t)x[1] - (uintptr_t)x[0] + 31) % 2048 < 63;
}

/* n <= PANEL. Several rows are read side by side, so that their sums stay in registers and each row is read in order:
 * all rows, or few at a time if their lines fall into the same few sets of the cache and would evict each other. */
INLINE void add_rows(int f, int type, double *sums, const void *const *x, size_t rows, size_t n, const float *centre,
                     bool fresh) {
    enum { FEW = CAIRN__SUM_ROWS / 4 };
    float part[PANEL];
    if (rows != CAIRN__SUM_ROWS) {
        add_some_rows(f, type, sums, part, x, rows, n, centre, true, true, fresh);
    } else if (!are_in_few_sets(x)) {
        add_some_rows(f, type, sums, part, x, CAIRN__SUM_ROWS, n, centre, true, true, fresh);
    } else {
        add_some_rows(f, type, sums, part, x, FEW, n, centre, true, false, fresh);
        for (size_t r = FEW; r < CAIRN__SUM_ROWS - FEW; r += FEW)
            add_some_rows(f, type, sums, part, x + r, FEW, n, centre, false, false, fresh);
        add_some_rows(f, type, sums, part, x + CAIRN__SUM_ROWS - FEW, FEW, n, centre, false, true, fresh);
    }
}

INLINE void sum_rows(int f, int type, double *sums, const void *const *x, size_t rows, size_t n, const float *centre) {
    const void *at[CAIRN__SUM_ROWS];
    for (size_t i = 0; i < n; i += PANEL) {
        const size_t m = least(n - i, PANEL);
        for (size_t r = 0; r < rows; r++) at[r] = element(type, x[r], i);
        if (centre) add_rows(f, type, sums + i, at, rows, m, centre + i, false);
        else add_rows(f, type, sums + i, at, rows, m, NULL, false);
    }
}

INLINE void sum_panel(int type, float *dst, const void *x, size_t rows, size_t cols, size_t n) {
    double all[PANEL];
    const void *row[CAIRN__SUM_ROWS];
    const char *next = x;
    for (size_t r = 0; r < rows; r += CAIRN__SUM_ROWS) {
        const size_t count = least(rows - r, CAIRN__SUM_ROWS);
        for (size_t j = 0; j < count; j++, next += cols * width_of(type)) row[j] = next;
        if (r == 0) add_rows(CAIRN__FOLD_SUM, type, all, row, count, n, NULL, true);
        else add_rows(CAIRN__FOLD_SUM, type, all, row, count, n, NULL, false);
    }
    size_t c = 0;
    for (; c + LANES <= n; c += LANES) store_f32(dst + c, narrowed(load_f64(all + c)));
    for (; c < n; c++) dst[c] = (float)all[c];
}

INLINE void col_sum(int type, float *dst, const void *x, size_t rows, size_t cols) {
    for (size_t c = 0; c < cols; c += PANEL) {
        const size_t n = least(cols - c, PANEL);
        if (n < LEAST_PANEL || rows <= CAIRN__SUM_ROWS) sum_columns(type, dst + c, element(type, x, c), rows, cols, n);
        else sum_panel(type, dst + c, element(type, x, c), rows, cols, n);
    }
}

#include "kernels/instances.h"
#include "kernels/simd_rows.h"
