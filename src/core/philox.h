/* Random numbers that are the same on every device: Philox4x32-10, uniforms and normals.
 *
 * A number is a function of (key, counter): there is no state, and any element can be computed by itself and in any
 * order. Integers and uniforms are exact. Normals use only +, *, / and sqrt of IEEE 754 in a fixed order, so they have
 * the same bits everywhere too, provided that products and sums are not contracted (every C file is built with
 * -ffp-contract=off).
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC11, section 3.3 and table 2. */
#ifndef CAIRN__CORE_PHILOX_H
#define CAIRN__CORE_PHILOX_H

#include <math.h>
#include <stdint.h>

#include "core/half.h"

struct cairn__philox_block {
    uint32_t word[4];
};

/* Ten rounds over the 128-bit counter under the 64-bit key. */
CAIRN__HOST_DEVICE static inline struct cairn__philox_block cairn__philox(uint64_t key, uint64_t counter_low,
                                                                          uint64_t counter_high) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    struct cairn__philox_block block = {{c0, c1, c2, c3}};
    return block;
}

/* Uniform in [0, 1): 24 bits, exact. */
CAIRN__HOST_DEVICE static inline float cairn__uniform(uint32_t word) {
    return (float)(word >> 8) * 0x1p-24f;
}

/* ln x for x in [2^-24, 1]. x = m * 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh(s), s = (m-1)/(m+1), |s| <
 * 0.172, by its series up to s^11: what is left is under 2^-34 of the result, and with the roundings of f32 the whole
 * is within 2^-22.5 of ln x, relatively (worst over all 2^24 uniforms: 2^-22.65). */
CAIRN__HOST_DEVICE static inline float cairn__log_unit(float x) {
    uint32_t u = cairn__f32_bits(x);
    uint32_t lowered = u - 0x3f3504f3u; /* bits of sqrt(1/2) */
    int e = (int32_t)lowered >> 23;
    float m = cairn__f32_from_bits(u - ((uint32_t)e << 23));
    float s = (m - 1.0f) / (m + 1.0f);
    float s2 = s * s;
    float series = 0x1.745d18p-4f;         /* 1/11 */
    series = series * s2 + 0x1.c71c72p-4f; /* 1/9 */
    series = series * s2 + 0x1.24924ap-3f; /* 1/7 */
    series = series * s2 + 0x1.99999ap-3f; /* 1/5 */
    series = series * s2 + 0x1.555556p-2f; /* 1/3 */
    float tail = 2.0f * s * s2 * series;
    return (float)e * 0x1.62e430p-1f + (2.0f * s + tail); /* ln 2 */
}

/* cos and sin of 2*pi*word/2^32. The two top bits are the quadrant; within it the angle is taken from the middle, so
 * that |a| <= pi/4, and turned back by pi/4 at the end. Taylor to a^9 and a^8: what is left is under 2^-25, and with
 * the 26 bits of the angle that are used and the roundings of f32 each is within 2^-22 absolutely (found: 2^-22.35). */
CAIRN__HOST_DEVICE static inline void cairn__cos_sin_turn(uint32_t word, float *cosine, float *sine) {
    uint32_t quadrant = word >> 30;
    float t = (float)((int32_t)((word << 2) >> 8) - (1 << 23)) * 0x1p-24f; /* in [-1/2, 1/2) */
    float a = t * 0x1.921fb6p0f;                                           /* pi/2 */
    float a2 = a * a;
    float s = 0x1.71de3ap-19f; /* 1/9! */
    s = s * a2 - 0x1.a01a02p-13f;
    s = s * a2 + 0x1.111112p-7f;
    s = s * a2 - 0x1.555556p-3f;
    s = s * a2 * a + a;
    float c = 0x1.a01a02p-16f; /* 1/8! */
    c = c * a2 - 0x1.6c16c2p-10f;
    c = c * a2 + 0x1.555556p-5f;
    c = c * a2 - 0.5f;
    c = c * a2 + 1.0f;
    float c0 = (c - s) * 0x1.6a09e6p-1f, s0 = (c + s) * 0x1.6a09e6p-1f; /* sqrt(1/2) */
    *cosine = quadrant == 0 ? c0 : quadrant == 1 ? -s0 : quadrant == 2 ? -c0 : s0;
    *sine = quadrant == 0 ? s0 : quadrant == 1 ? c0 : quadrant == 2 ? -s0 : -c0;
}

/* Four standard normals from one block. Source: Box and Muller, "A Note on the Generation of Random Normal Deviates",
 * Ann. Math. Statist. 29 (1958). */
CAIRN__HOST_DEVICE static inline void cairn__normal4(struct cairn__philox_block block, float normals[4]) {
    for (int pair = 0; pair < 2; pair++) {
        float u = (float)((block.word[2 * pair] >> 8) + 1) * 0x1p-24f; /* (0, 1] */
        float radius = sqrtf(-2.0f * cairn__log_unit(u));
        float cosine, sine;
        cairn__cos_sin_turn(block.word[2 * pair + 1], &cosine, &sine);
        normals[2 * pair] = radius * cosine;
        normals[2 * pair + 1] = radius * sine;
    }
}

#endif
