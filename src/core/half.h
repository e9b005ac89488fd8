/* The definition of f16 and bf16: every faster row and every device is compared with these scalar conversions.
 *
 * Narrowing rounds to nearest, ties to even, keeps subnormals, and overflows to infinity from the midpoint between the
 * largest finite value and the next power of two. A NaN stays a NaN: it is made quiet and keeps its sign and the upper
 * bits of its payload (what F16C's VCVTPS2PH and VCVTPH2PS do; bf16 to f32 is a plain shift and keeps even signalling).
 * Source: IEEE 754-2019 sections 3.4 and 5.4.2.
 *
 * Compiled for C and for CUDA alike, hence no library calls and no unions. */
#ifndef CAIRN__CORE_HALF_H
#define CAIRN__CORE_HALF_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define CAIRN__HOST_DEVICE __host__ __device__
#else
#define CAIRN__HOST_DEVICE
#endif

CAIRN__HOST_DEVICE static inline uint32_t cairn__f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

CAIRN__HOST_DEVICE static inline float cairn__f32_from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

CAIRN__HOST_DEVICE static inline float cairn__f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t fraction = h & 0x3ffu;
    if (exponent == 0x1f) { /* infinity, or a NaN made quiet */
        return cairn__f32_from_bits(sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0));
    }
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24, exact in f32 */
        float magnitude = (float)fraction * 0x1p-24f;
        return cairn__f32_from_bits(sign | cairn__f32_bits(magnitude));
    }
    return cairn__f32_from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
}

CAIRN__HOST_DEVICE static inline uint16_t cairn__f32_to_f16(float x) {
    uint32_t u = cairn__f32_bits(x);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520, the midpoint, and above */
    if (magnitude < 0x33000000u) return (uint16_t)sign;              /* below 2^-25, half the least subnormal */
    if (magnitude < 0x38800000u) {                                   /* below 2^-14: subnormal in f16 */
        uint32_t shift = 126 - (magnitude >> 23);                    /* 14..24 bits of the significand fall away */
        uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
        uint32_t kept = significand >> shift;
        uint32_t rest = significand & ((1u << shift) - 1);
        uint32_t halfway = 1u << (shift - 1);
        kept += rest > halfway || (rest == halfway && (kept & 1));
        return (uint16_t)(sign | kept);
    }
    uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1); /* exponent rebased by 112 */
    return (uint16_t)(sign | (rounded >> 13));
}

CAIRN__HOST_DEVICE static inline float cairn__bf16_to_f32(uint16_t b) {
    return cairn__f32_from_bits((uint32_t)b << 16);
}

CAIRN__HOST_DEVICE static inline uint16_t cairn__f32_to_bf16(float x) {
    uint32_t u = cairn__f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

/* Non-zero if x is an infinity or a NaN. Tests the exponent bits, which works under -Ofast and flush-to-zero too. */
CAIRN__HOST_DEVICE static inline uint32_t cairn__f32_nonfinite(float x) {
    return (cairn__f32_bits(x) & 0x7f800000u) == 0x7f800000u;
}

#endif
