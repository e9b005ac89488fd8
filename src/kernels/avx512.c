/* AVX-512 (F, BW, DQ, VL): a vec is one register, and the lanes past a tail's end are masked. */
#include <immintrin.h>
#include <math.h>

#include "kernels/kernels.h"

#define ISA    avx512
#define NEEDS  (CAIRN__CPU_AVX2 | CAIRN__CPU_AVX512)
#define INLINE static inline __attribute__((always_inline))

#include "core/cpu.h"

typedef __m512 vec;
typedef __m512i bits;
typedef struct {
    __m512d low, high;
} vecd;

INLINE __mmask16 lanes_to(size_t count) {
    return (__mmask16)((1u << count) - 1);
}

INLINE vec splat(float x) {
    return _mm512_set1_ps(x);
}
INLINE vec add(vec a, vec b) {
    return _mm512_add_ps(a, b);
}
INLINE vec sub(vec a, vec b) {
    return _mm512_sub_ps(a, b);
}
INLINE vec mul(vec a, vec b) {
    return _mm512_mul_ps(a, b);
}
INLINE vec divide(vec a, vec b) {
    return _mm512_div_ps(a, b);
}
INLINE vec root(vec a) {
    return _mm512_sqrt_ps(a);
}
INLINE vec opposite(vec a) {
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
INLINE vec magnitude(vec a) {
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a);
}
/* VMINPS gives its second operand where one is NaN or both are zeros: of the two ways round, one is NaN, or -0. */
INLINE vec lesser(vec a, vec b) {
    return _mm512_or_ps(_mm512_min_ps(a, b), _mm512_min_ps(b, a));
}
INLINE vec where_positive_or_nan(vec x, vec v) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLE_UQ), v);
}

INLINE vec maximum(vec a, vec b) {
    return _mm512_max_ps(a, b);
}
INLINE vec with_sign_of(vec x, vec v) {
    const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f));
    return _mm512_mask_or_ps(x, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_OQ), v, sign);
}

/* Shifts, not VCVTNEPS2BF16: that one flushes subnormals. */
INLINE __m256i to_bf16(vec v) {
    const __m512i u = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
}
INLINE vec from_bf16(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
INLINE __m256i to_f16(vec v) {
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vec from_f16(__m256i h) {
    return _mm512_cvtph_ps(h);
}
INLINE vec rounded(int type, vec v) {
    return type == CAIRN_F16 ? from_f16(to_f16(v)) : from_bf16(to_bf16(v));
}

INLINE vec load_f32(const float *p) {
    return _mm512_loadu_ps(p);
}
INLINE vec load_part_f32(const float *p, size_t count) {
    return _mm512_maskz_loadu_ps(lanes_to(count), p);
}
INLINE void store_f32(float *p, vec v) {
    _mm512_storeu_ps(p, v);
}
INLINE void store_part_f32(float *p, vec v, size_t count) {
    _mm512_mask_storeu_ps(p, lanes_to(count), v);
}
INLINE void stream_f32(float *p, vec v) {
    _mm512_stream_ps(p, v);
}

#define HALF_MEMORY(type)                                                 \
    INLINE vec load_##type(const uint16_t *p) {                           \
        return from_##type(_mm256_loadu_si256((const __m256i *)p));       \
    }                                                                     \
    INLINE vec load_part_##type(const uint16_t *p, size_t count) {        \
        return from_##type(_mm256_maskz_loadu_epi16(lanes_to(count), p)); \
    }                                                                     \
    INLINE void store_##type(uint16_t *p, vec v) {                        \
        _mm256_storeu_si256((__m256i *)p, to_##type(v));                  \
    }                                                                     \
    INLINE void store_part_##type(uint16_t *p, vec v, size_t count) {     \
        _mm256_mask_storeu_epi16(p, lanes_to(count), to_##type(v));       \
    }                                                                     \
    INLINE void stream_##type(uint16_t *p, vec v) {                       \
        _mm256_stream_si256((__m256i *)p, to_##type(v));                  \
    }
HALF_MEMORY(f16)
HALF_MEMORY(bf16)

INLINE bits nothing_seen(void) {
    return _mm512_setzero_si512();
}
INLINE bits see(bits seen, vec v) {
    return _mm512_max_epu32(seen, _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)));
}
INLINE bits see_halves(bits seen, const uint16_t *p) {
    return _mm512_max_epu16(seen, _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi16(0x7fff)));
}

INLINE vecd zeros_f64(void) {
    return (vecd){_mm512_setzero_pd(), _mm512_setzero_pd()};
}
INLINE vecd add_squares(vecd sum, vec v) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
    sum.low = _mm512_fmadd_pd(low, low, sum.low);
    sum.high = _mm512_fmadd_pd(high, high, sum.high);
    return sum;
}

INLINE vecd add_wide(vecd sum, vec v) {
    sum.low = _mm512_add_pd(sum.low, _mm512_cvtps_pd(_mm512_castps512_ps256(v)));
    sum.high = _mm512_add_pd(sum.high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)));
    return sum;
}
INLINE vec narrowed(vecd v) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(v.low)), _mm512_cvtpd_ps(v.high), 1);
}
INLINE vecd load_f64(const double *p) {
    return (vecd){_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)};
}
INLINE void store_f64(double *p, vecd v) {
    _mm512_storeu_pd(p, v.low);
    _mm512_storeu_pd(p + 8, v.high);
}
INLINE float tree(vec v) {
    const __m256 of_8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
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
INLINE struct pair pair_of_bf16(const uint16_t *p) {
    const __m512i h = _mm512_loadu_si512(p);
    const __mmask16 even = _mm512_test_epi32_mask(h, _mm512_set1_epi32(0x6000));
    const __mmask16 odd = _mm512_test_epi32_mask(h, _mm512_set1_epi32(0x60000000));
    return (struct pair){
        _mm512_castsi512_ps(_mm512_maskz_slli_epi32(even, h, 16)),
        _mm512_castsi512_ps(_mm512_maskz_and_epi32(odd, h, _mm512_set1_epi32((int)0xffff0000u))),
    };
}
INLINE struct pair in_order(struct pair v) {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    return (struct pair){_mm512_permutex2var_ps(v.a, first, v.b), _mm512_permutex2var_ps(v.a, last, v.b)};
}
INLINE __m512d add_squared_difference(__m512d sum, __m256 a, __m256 b) {
    const __m512d d = _mm512_sub_pd(_mm512_cvtps_pd(a), _mm512_cvtps_pd(b));
    return _mm512_fmadd_pd(d, d, sum);
}
INLINE vecd add_normal_squares(vecd sum, const uint16_t *p) {
    const __m512i least = _mm512_set1_epi32(0x00800000), h = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    const __m512i m = _mm512_and_si512(_mm512_slli_epi32(h, 16), _mm512_set1_epi32(0x7fffffff));
    const __m512i more = _mm512_maskz_mov_epi32(_mm512_cmplt_epu32_mask(m, least), least);
    const __m512 a = _mm512_castsi512_ps(_mm512_or_si512(m, more)), b = _mm512_castsi512_ps(more);
    sum.low = add_squared_difference(sum.low, _mm512_castps512_ps256(a), _mm512_castps512_ps256(b));
    sum.high = add_squared_difference(sum.high, _mm512_extractf32x8_ps(a, 1), _mm512_extractf32x8_ps(b, 1));
    return sum;
}
INLINE vec fused(vec a, vec b, vec c) {
    return _mm512_fmadd_ps(a, b, c);
}
INLINE bool any_reaches(vec v, uint32_t least) {
    return _mm512_cmpge_epu32_mask(_mm512_castps_si512(v), _mm512_set1_epi32((int)least)) != 0;
}

INLINE vec keep_first(vec v, size_t count) {
    return _mm512_maskz_mov_ps(lanes_to(count), v);
}

typedef __m512i words;

INLINE words words_of(uint32_t x) {
    return _mm512_set1_epi32((int)x);
}
INLINE words words_from(const uint32_t *p) {
    return _mm512_loadu_si512(p);
}
INLINE words words_xor(words a, words b) {
    return _mm512_xor_si512(a, b);
}
INLINE void multiply_words(words a, uint32_t m, words *high, words *low) {
    const __m512i even = _mm512_mul_epu32(a, words_of(m)),
                  odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), words_of(m));
    *high = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
    *low = _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32));
}
INLINE void transpose_words(words c[4]) {
    const __m512i a = _mm512_unpacklo_epi32(c[0], c[1]), b = _mm512_unpackhi_epi32(c[0], c[1]);
    const __m512i d = _mm512_unpacklo_epi32(c[2], c[3]), e = _mm512_unpackhi_epi32(c[2], c[3]);
    c[0] = _mm512_unpacklo_epi64(a, d);
    c[1] = _mm512_unpackhi_epi64(a, d);
    c[2] = _mm512_unpacklo_epi64(b, e);
    c[3] = _mm512_unpackhi_epi64(b, e);
}
INLINE vec keep_from(words w, uint32_t least, vec v) {
    return _mm512_maskz_mov_ps(_mm512_cmpge_epu32_mask(_mm512_srli_epi32(w, 8), words_of(least)), v);
}

/* The bits of x with a random number added, of a NaN made quiet instead. */
INLINE __m512i with_carry(__m512 x, __m512i random) {
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i u = _mm512_castps_si512(x);
    return _mm512_mask_or_epi32(_mm512_add_epi32(u, random), nan, u, words_of(0x400000));
}
INLINE void round_32(uint16_t *dst, const float *x, words random) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, words_of(1));
    const __m512 first = _mm512_loadu_ps(x), last = _mm512_loadu_ps(x + 16);
    const __m512i low =
        with_carry(_mm512_permutex2var_ps(first, even, last), _mm512_and_si512(random, words_of(0xffff)));
    const __m512i high = with_carry(_mm512_permutex2var_ps(first, odd, last), _mm512_srli_epi32(random, 16));
    _mm512_storeu_si512(dst,
                        _mm512_or_si512(_mm512_srli_epi32(low, 16), _mm512_and_si512(high, words_of(0xffff0000u))));
}

#include "kernels/simd.h"
