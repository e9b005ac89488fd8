/* Folds of f32 a register of lanes at a time, in GCC's vector extension, which clang has too: what maps_avx2.c and
 * maps_avx512.c put in for map_loops.h's loop over whole blocks of 16, and for its sums. Vectors are passed by address
 * where they are not inlined, for their ABI changes with the instruction set. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
enum { WIDTH = 16 };
#else
enum { WIDTH = 8 };
#endif
enum { PARTS = 16 / WIDTH }; /* registers that hold 16 lanes */

typedef float lanes __attribute__((vector_size(4 * WIDTH)));
typedef int32_t lane_bits __attribute__((vector_size(4 * WIDTH)));

/* x[0..n-1], n <= WIDTH, and +0 behind it. */
INLINE lanes first_of(const float *x, size_t n) {
#if defined(__AVX512F__)
    return (lanes)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), x);
#else
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (lanes)_mm256_maskload_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), index));
#endif
}

INLINE lanes keep_first_of(lanes x, size_t n) {
#if defined(__AVX512F__)
    return (lanes)_mm512_maskz_mov_ps((__mmask16)((1u << n) - 1), (__m512)x);
#else
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (lanes)((__m256i)x & _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), index));
#endif
}

/* What a sum takes of x. */
INLINE lanes term_of(enum cairn__fold f, lanes x, float p0) {
    if (f == CAIRN__FOLD_SUM_SQUARES) return (x - p0) * (x - p0);
    if (f == CAIRN__FOLD_SUM_ABS) return (lanes)((lane_bits)x & 0x7fffffff);
    return x;
}

/* Each lane of *so_far takes one more: as take_f32 has it. */
INLINE void take_lanes(enum cairn__fold f, lanes *so_far, const float *p) {
    lanes x;
    memcpy(&x, p, sizeof(x));
    if (f == CAIRN__FOLD_PRODUCT) *so_far *= x;
    if (f == CAIRN__FOLD_MAX || f == CAIRN__FOLD_MIN) {
        const lane_bits stays = (f == CAIRN__FOLD_MAX ? *so_far > x : *so_far < x) | (*so_far != *so_far);
        *so_far = (lanes)(((lane_bits)*so_far & stays) | ((lane_bits)x & ~stays));
    }
}

/* The sum of all lanes, by the fixed tree. */
INLINE double sum_of_lanes(const lanes so_far[PARTS]) {
#if defined(__AVX512F__)
    const __m512 both = (__m512)so_far[0];
    const __m256 of_8 = _mm256_add_ps(_mm512_castps512_ps256(both), _mm512_extractf32x8_ps(both, 1));
#else
    const __m256 of_8 = _mm256_add_ps((__m256)so_far[0], (__m256)so_far[1]);
#endif
    const __m128 of_4 = _mm_add_ps(_mm256_castps256_ps128(of_8), _mm256_extractf128_ps(of_8, 1));
    const __m128 of_2 = _mm_add_ps(of_4, _mm_movehl_ps(of_4, of_4));
    return (double)_mm_cvtss_f32(_mm_add_ss(of_2, _mm_movehdup_ps(of_2)));
}

/* Elements of x that a register at x[i], i < n, takes. */
INLINE size_t count_at(size_t i, size_t n) {
    return n - i < WIDTH ? n - i : WIDTH;
}

/* Of one block; a sum over x, or of products with y. */
INLINE double sum_of_block(enum cairn__fold f, const float *x, const float *y, size_t n, float p0) {
    lanes so_far[PARTS] = {{0}}, a, b;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (size_t part = 0; part < PARTS; part++) {
            memcpy(&a, x + i + part * WIDTH, sizeof(a));
            if (y) memcpy(&b, y + i + part * WIDTH, sizeof(b));
            so_far[part] += y ? a * b : term_of(f, a, p0);
        }
    }
    for (size_t part = 0; i < n; part++) {
        const size_t count = count_at(i, n);
        a = first_of(x + i, count);
        so_far[part] += keep_first_of(y ? a * first_of(y + i, count) : term_of(f, a, p0), count);
        i += count;
    }
    return sum_of_lanes(so_far);
}

/* The number of blocks' elements is a constant to the compiler. */
INLINE double sum_blocks(enum cairn__fold f, const float *x, const float *y, size_t n, float p0) {
    double sum = 0;
    size_t i = 0;
    for (; i + CAIRN__SUM_BLOCK <= n; i += CAIRN__SUM_BLOCK)
        sum += sum_of_block(f, x + i, y ? y + i : NULL, CAIRN__SUM_BLOCK, p0);
    return i < n ? sum + sum_of_block(f, x + i, y ? y + i : NULL, n - i, p0) : sum;
}

/* How many elements it took. */
INLINE size_t fold_whole(enum cairn__fold f, float *lane, const float *x, size_t n) {
    const size_t whole = n / 16 * 16;
    lanes so_far[PARTS];
    memcpy(so_far, lane, sizeof(so_far));
    for (size_t i = 0; i < whole; i += 16) {
        for (size_t part = 0; part < PARTS; part++) take_lanes(f, &so_far[part], x + i + part * WIDTH);
    }
    memcpy(lane, so_far, sizeof(so_far));
    return whole;
}

#undef INLINE
#define FOLD_WHOLE fold_whole
#define SUM_BLOCKS sum_blocks
