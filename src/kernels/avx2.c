/* AVX2 with F16C and FMA: a vec is two registers, and a tail of halves goes through a buffer on the stack. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "core/cpu.h"
#include "kernels/kernels.h"

#define ISA    avx2
#define NEEDS  CAIRN__CPU_AVX2
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    __m256 low, high;
} vec;
typedef struct {
    __m256i low, high;
} bits;
typedef struct {
    __m256d quarter[4];
} vecd;

#define BOTH(f, a, b) ((vec){f((a).low, (b).low), f((a).high, (b).high)})

INLINE vec splat(float x) {
    return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
INLINE vec add(vec a, vec b) {
    return BOTH(_mm256_add_ps, a, b);
}
INLINE vec sub(vec a, vec b) {
    return BOTH(_mm256_sub_ps, a, b);
}
INLINE vec mul(vec a, vec b) {
    return BOTH(_mm256_mul_ps, a, b);
}
INLINE vec divide(vec a, vec b) {
    return BOTH(_mm256_div_ps, a, b);
}
INLINE vec root(vec a) {
    return (vec){_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)};
}
INLINE vec opposite(vec a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (vec){_mm256_xor_ps(a.low, sign), _mm256_xor_ps(a.high, sign)};
}
INLINE vec magnitude(vec a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (vec){_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
/* VMINPS gives its second operand where one is NaN or both are zeros: of the two ways round, one is NaN, or -0. */
#define LESSER(a, b) _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a))
INLINE vec lesser(vec a, vec b) {
    return BOTH(LESSER, a, b);
}
#define POSITIVE_OR_NAN(x) _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NLE_UQ)
INLINE vec where_positive_or_nan(vec x, vec v) {
    return (vec){_mm256_and_ps(POSITIVE_OR_NAN(x.low), v.low), _mm256_and_ps(POSITIVE_OR_NAN(x.high), v.high)};
}

INLINE vec maximum(vec a, vec b) {
    return BOTH(_mm256_max_ps, a, b);
}
#define WITH_SIGN_OF(x, v)                                                        \
    _mm256_blendv_ps(x, _mm256_or_ps(v, _mm256_and_ps(x, _mm256_set1_ps(-0.0f))), \
                     _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_OQ))
INLINE vec with_sign_of(vec x, vec v) {
    return BOTH(WITH_SIGN_OF, x, v);
}

INLINE __m256i bf16_in_32(__m256 v) {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(r, quiet, nan), 16);
}
INLINE __m256i to_bf16(vec v) {
    const __m256i packed = _mm256_packus_epi32(bf16_in_32(v.low), bf16_in_32(v.high)); /* quarters 0 2 1 3 */
    return _mm256_permute4x64_epi64(packed, 0xd8);
}
INLINE __m256 widened_bf16(__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
INLINE vec from_bf16(__m256i h) {
    return (vec){widened_bf16(_mm256_castsi256_si128(h)), widened_bf16(_mm256_extracti128_si256(h, 1))};
}
INLINE __m256i to_f16(vec v) {
    return _mm256_set_m128i(_mm256_cvtps_ph(v.high, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(v.low, _MM_FROUND_TO_NEAREST_INT));
}
INLINE vec from_f16(__m256i h) {
    return (vec){_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
INLINE vec rounded(int type, vec v) {
    return type == CAIRN_F16 ? from_f16(to_f16(v)) : from_bf16(to_bf16(v));
}

INLINE vec load_f32(const float *p) {
    return (vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
INLINE void store_f32(float *p, vec v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
}
INLINE void stream_f32(float *p, vec v) {
    _mm256_stream_ps(p, v.low);
    _mm256_stream_ps(p + 8, v.high);
}
/* Of the first `count` lanes of eight, all bits; count may be below 0 and above 8. */
INLINE __m256i lanes_to(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vec load_part_f32(const float *p, size_t count) {
    const __m256 low = _mm256_maskload_ps(p, lanes_to((int)count));
    return (vec){low, count > 8 ? _mm256_maskload_ps(p + 8, lanes_to((int)count - 8)) : _mm256_setzero_ps()};
}
INLINE void store_part_f32(float *p, vec v, size_t count) {
    float lane[16];
    store_f32(lane, v);
    memcpy(p, lane, count * sizeof(*p));
}

#define HALF_MEMORY(type)                                             \
    INLINE vec load_##type(const uint16_t *p) {                       \
        return from_##type(_mm256_loadu_si256((const __m256i *)p));   \
    }                                                                 \
    INLINE void store_##type(uint16_t *p, vec v) {                    \
        _mm256_storeu_si256((__m256i *)p, to_##type(v));              \
    }                                                                 \
    INLINE void stream_##type(uint16_t *p, vec v) {                   \
        _mm256_stream_si256((__m256i *)p, to_##type(v));              \
    }                                                                 \
    INLINE vec load_part_##type(const uint16_t *p, size_t count) {    \
        uint16_t lane[16] = {0};                                      \
        memcpy(lane, p, count * sizeof(*p));                          \
        return load_##type(lane);                                     \
    }                                                                 \
    INLINE void store_part_##type(uint16_t *p, vec v, size_t count) { \
        uint16_t lane[16];                                            \
        store_##type(lane, v);                                        \
        memcpy(p, lane, count * sizeof(*p));                          \
    }
HALF_MEMORY(f16)
HALF_MEMORY(bf16)

INLINE bits nothing_seen(void) {
    return (bits){_mm256_setzero_si256(), _mm256_setzero_si256()};
}
INLINE __m256i greater(__m256i seen, __m256 v) {
    return _mm256_max_epu32(seen, _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff)));
}
INLINE bits see(bits seen, vec v) {
    return (bits){greater(seen.low, v.low), greater(seen.high, v.high)};
}
INLINE __m256i greater_halves(__m256i seen, const uint16_t *p) {
    const __m256i h = _mm256_loadu_si256((const __m256i *)p);
    return _mm256_max_epu16(seen, _mm256_and_si256(h, _mm256_set1_epi16(0x7fff)));
}
INLINE bits see_halves(bits seen, const uint16_t *p) {
    return (bits){greater_halves(seen.low, p), greater_halves(seen.high, p + 16)};
}

INLINE vecd zeros_f64(void) {
    const __m256d zero = _mm256_setzero_pd();
    return (vecd){{zero, zero, zero, zero}};
}
INLINE __m256d add_square(__m256d sum, __m128 v) {
    const __m256d wide = _mm256_cvtps_pd(v);
    return _mm256_fmadd_pd(wide, wide, sum);
}
INLINE vecd add_squares(vecd sum, vec v) {
    return (vecd){{add_square(sum.quarter[0], _mm256_castps256_ps128(v.low)),
                   add_square(sum.quarter[1], _mm256_extractf128_ps(v.low, 1)),
                   add_square(sum.quarter[2], _mm256_castps256_ps128(v.high)),
                   add_square(sum.quarter[3], _mm256_extractf128_ps(v.high, 1))}};
}

INLINE __m256d add_quarter(__m256d sum, __m128 v) {
    return _mm256_add_pd(sum, _mm256_cvtps_pd(v));
}
INLINE vecd add_wide(vecd sum, vec v) {
    return (vecd){{add_quarter(sum.quarter[0], _mm256_castps256_ps128(v.low)),
                   add_quarter(sum.quarter[1], _mm256_extractf128_ps(v.low, 1)),
                   add_quarter(sum.quarter[2], _mm256_castps256_ps128(v.high)),
                   add_quarter(sum.quarter[3], _mm256_extractf128_ps(v.high, 1))}};
}
INLINE vec narrowed(vecd v) {
    return (vec){_mm256_set_m128(_mm256_cvtpd_ps(v.quarter[1]), _mm256_cvtpd_ps(v.quarter[0])),
                 _mm256_set_m128(_mm256_cvtpd_ps(v.quarter[3]), _mm256_cvtpd_ps(v.quarter[2]))};
}
INLINE vecd load_f64(const double *p) {
    return (vecd){{_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4), _mm256_loadu_pd(p + 8), _mm256_loadu_pd(p + 12)}};
}
INLINE void store_f64(double *p, vecd v) {
    for (int j = 0; j < 4; j++) _mm256_storeu_pd(p + 4 * j, v.quarter[j]);
}
INLINE float tree(vec v) {
    const __m256 of_8 = _mm256_add_ps(v.low, v.high);
    const __m128 of_4 = _mm_add_ps(_mm256_castps256_ps128(of_8), _mm256_extractf128_ps(of_8, 1));
    const __m128 of_2 = _mm_add_ps(of_4, _mm_movehl_ps(of_4, of_4));
    return _mm_cvtss_f32(_mm_add_ss(of_2, _mm_movehdup_ps(of_2)));
}

struct pair {
    vec a, b;
};

INLINE struct pair pair_of_f16(const uint16_t *p) {
    return (struct pair){load_f16(p), load_f16(p + 16)};
}
INLINE __m256i great_bf16(const uint16_t *p) {
    const __m256i h = _mm256_loadu_si256((const __m256i *)p);
    const __m256i small = _mm256_cmpeq_epi16(_mm256_and_si256(h, _mm256_set1_epi16(0x6000)), _mm256_setzero_si256());
    return _mm256_andnot_si256(small, h);
}
INLINE __m256 even_bf16(__m256i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));
}
INLINE __m256 odd_bf16(__m256i h) {
    return _mm256_castsi256_ps(_mm256_and_si256(h, _mm256_set1_epi32((int)0xffff0000u)));
}
INLINE struct pair pair_of_bf16(const uint16_t *p) {
    const __m256i low = great_bf16(p), high = great_bf16(p + 16);
    return (struct pair){{even_bf16(low), even_bf16(high)}, {odd_bf16(low), odd_bf16(high)}};
}
INLINE vec interleaved(__m256 even, __m256 odd) {
    const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    return (vec){_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
INLINE struct pair in_order(struct pair v) {
    return (struct pair){interleaved(v.a.low, v.b.low), interleaved(v.a.high, v.b.high)};
}
INLINE __m256d add_squared_difference(__m256d sum, __m128 a, __m128 b) {
    const __m256d d = _mm256_sub_pd(_mm256_cvtps_pd(a), _mm256_cvtps_pd(b));
    return _mm256_fmadd_pd(d, d, sum);
}
INLINE void add_normal_squares_8(__m256d sum[2], const uint16_t *p) {
    const __m256i least = _mm256_set1_epi32(0x00800000), h = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    const __m256i m = _mm256_and_si256(_mm256_slli_epi32(h, 16), _mm256_set1_epi32(0x7fffffff));
    const __m256i more = _mm256_and_si256(_mm256_cmpgt_epi32(least, m), least);
    const __m256 a = _mm256_castsi256_ps(_mm256_or_si256(m, more)), b = _mm256_castsi256_ps(more);
    sum[0] = add_squared_difference(sum[0], _mm256_castps256_ps128(a), _mm256_castps256_ps128(b));
    sum[1] = add_squared_difference(sum[1], _mm256_extractf128_ps(a, 1), _mm256_extractf128_ps(b, 1));
}
INLINE vecd add_normal_squares(vecd sum, const uint16_t *p) {
    add_normal_squares_8(sum.quarter, p);
    add_normal_squares_8(sum.quarter + 2, p + 8);
    return sum;
}
INLINE vec fused(vec a, vec b, vec c) {
    return (vec){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
INLINE bool any_reaches(vec v, uint32_t least) {
    const __m256i bound = _mm256_set1_epi32((int)least);
    const __m256i low = _mm256_castps_si256(v.low), high = _mm256_castps_si256(v.high);
    return _mm256_movemask_epi8(_mm256_or_si256(_mm256_cmpeq_epi32(_mm256_max_epu32(low, bound), low),
                                                _mm256_cmpeq_epi32(_mm256_max_epu32(high, bound), high))) != 0;
}

INLINE vec keep_first(vec v, size_t count) {
    return (vec){_mm256_and_ps(v.low, _mm256_castsi256_ps(lanes_to((int)count))),
                 _mm256_and_ps(v.high, _mm256_castsi256_ps(lanes_to((int)count - 8)))};
}

typedef struct {
    __m256i low, high;
} words;

INLINE words words_of(uint32_t x) {
    return (words){_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)};
}
INLINE words words_from(const uint32_t *p) {
    return (words){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 8))};
}
INLINE words words_xor(words a, words b) {
    return (words){_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}
INLINE void multiply_8(__m256i a, uint32_t m, __m256i *high, __m256i *low) {
    const __m256i wide = _mm256_set1_epi32((int)m);
    const __m256i even = _mm256_mul_epu32(a, wide), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), wide);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
INLINE void multiply_words(words a, uint32_t m, words *high, words *low) {
    multiply_8(a.low, m, &high->low, &low->low);
    multiply_8(a.high, m, &high->high, &low->high);
}
INLINE void transpose_8(__m256i *c0, __m256i *c1, __m256i *c2, __m256i *c3) {
    const __m256i a = _mm256_unpacklo_epi32(*c0, *c1), b = _mm256_unpackhi_epi32(*c0, *c1);
    const __m256i d = _mm256_unpacklo_epi32(*c2, *c3), e = _mm256_unpackhi_epi32(*c2, *c3);
    *c0 = _mm256_unpacklo_epi64(a, d);
    *c1 = _mm256_unpackhi_epi64(a, d);
    *c2 = _mm256_unpacklo_epi64(b, e);
    *c3 = _mm256_unpackhi_epi64(b, e);
}
INLINE void transpose_words(words c[4]) {
    transpose_8(&c[0].low, &c[1].low, &c[2].low, &c[3].low);
    transpose_8(&c[0].high, &c[1].high, &c[2].high, &c[3].high);
}
INLINE __m256 keep_8_from(__m256i w, uint32_t least, __m256 v) {
    const __m256i dropped = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)least), _mm256_srli_epi32(w, 8));
    return _mm256_andnot_ps(_mm256_castsi256_ps(dropped), v);
}
INLINE vec keep_from(words w, uint32_t least, vec v) {
    return (vec){keep_8_from(w.low, least, v.low), keep_8_from(w.high, least, v.high)};
}

/* The bits of x with a random number added, of a NaN made quiet instead. */
INLINE __m256i with_carry(__m256 x, __m256i random) {
    const __m256i u = _mm256_castps_si256(x), nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    return _mm256_blendv_epi8(_mm256_add_epi32(u, random), quiet, nan);
}
INLINE __m256 every_other(__m256 a, __m256 b, int odd) {
    const __m256 mixed = odd ? _mm256_shuffle_ps(a, b, 0xdd) : _mm256_shuffle_ps(a, b, 0x88); /* quarters 0 2 1 3 */
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
}
INLINE void round_16(uint16_t *dst, const float *x, __m256i random) {
    const __m256 first = _mm256_loadu_ps(x), last = _mm256_loadu_ps(x + 8);
    const __m256i low = with_carry(every_other(first, last, 0), _mm256_and_si256(random, _mm256_set1_epi32(0xffff)));
    const __m256i high = with_carry(every_other(first, last, 1), _mm256_srli_epi32(random, 16));
    _mm256_storeu_si256((__m256i *)dst, _mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, 0xaa));
}
INLINE void round_32(uint16_t *dst, const float *x, words random) {
    round_16(dst, x, random.low);
    round_16(dst + 16, x + 16, random.high);
}

#include "kernels/simd.h"
