/* Folds of f32 a register of lanes at a time, in GCC's vector extension, which clang has too: what maps_avx2.c and
 * maps_avx512.c put in for map_loops.h's loop over whole blocks of 16. Vectors are passed by address, for their ABI
 * changes with the instruction set. */
#include <stdint.h>
#include <string.h>

#include "kernels/maps.h"

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
enum { WIDTH = 16 };
#else
enum { WIDTH = 8 };
#endif
enum { PARTS = 16 / WIDTH }; /* registers that hold 16 lanes */

typedef float lanes __attribute__((vector_size(4 * WIDTH)));
typedef int32_t lane_bits __attribute__((vector_size(4 * WIDTH)));

/* Each lane of *so_far takes one more: as take_f32 has it. */
INLINE void take_lanes(enum cairn__fold f, lanes *so_far, const float *p, float p0) {
    lanes x;
    memcpy(&x, p, sizeof(x));
    if (f == CAIRN__FOLD_SUM) *so_far += x;
    if (f == CAIRN__FOLD_SUM_SQUARES) *so_far += (x - p0) * (x - p0);
    if (f == CAIRN__FOLD_SUM_ABS) *so_far += (lanes)((lane_bits)x & 0x7fffffff);
    if (f == CAIRN__FOLD_PRODUCT) *so_far *= x;
    if (f == CAIRN__FOLD_MAX || f == CAIRN__FOLD_MIN) {
        const lane_bits stays = (f == CAIRN__FOLD_MAX ? *so_far > x : *so_far < x) | (*so_far != *so_far);
        *so_far = (lanes)(((lane_bits)*so_far & stays) | ((lane_bits)x & ~stays));
    }
}

/* How many elements it took. */
INLINE size_t fold_whole(enum cairn__fold f, float *lane, const float *x, size_t n, float p0) {
    const size_t whole = n / 16 * 16;
    lanes so_far[PARTS];
    memcpy(so_far, lane, sizeof(so_far));
    for (size_t i = 0; i < whole; i += 16) {
        for (size_t part = 0; part < PARTS; part++) take_lanes(f, &so_far[part], x + i + part * WIDTH, p0);
    }
    memcpy(lane, so_far, sizeof(so_far));
    return whole;
}

INLINE size_t dot_whole(float *lane, const float *a, const float *b, size_t n) {
    const size_t whole = n / 16 * 16;
    lanes so_far[PARTS];
    memcpy(so_far, lane, sizeof(so_far));
    for (size_t i = 0; i < whole; i += 16) {
        for (size_t part = 0; part < PARTS; part++) {
            lanes x, y;
            memcpy(&x, a + i + part * WIDTH, sizeof(x));
            memcpy(&y, b + i + part * WIDTH, sizeof(y));
            so_far[part] += x * y;
        }
    }
    memcpy(lane, so_far, sizeof(so_far));
    return whole;
}

#undef INLINE
#define FOLD_WHOLE fold_whole
#define DOT_WHOLE  dot_whole
