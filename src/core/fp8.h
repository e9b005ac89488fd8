/* The definition of the two 8-bit floats: rounding to their values, and their codes.
 *
 *          sign, exponent, fraction   bias   greatest   least normal   least   beyond the greatest
 *   E4M3   1, 4, 3                    7      448        2^-6           2^-9    no infinity; NaN is S.1111.111 alone
 *   E5M2   1, 5, 2                    15     57344      2^-14          2^-16   infinity, NaN as in IEEE 754
 *
 * A value is rounded to nearest, ties to even, or stochastically, as if exponents were unbounded. A result beyond the
 * greatest value then becomes the greatest value (saturating), or NaN (E4M3) or infinity (E5M2). A NaN becomes
 * S.11..1; -0 stays -0.
 * Source: OCP 8-bit Floating Point Specification (OFP8) 1.0, sections 5.1 to 5.3.
 *
 * The code avoids branches where it matters, so that compilers can vectorise loops over it. */
#ifndef CAIRN__CORE_FP8_H
#define CAIRN__CORE_FP8_H

#include <stdbool.h>

#include "core/half.h"

/* The numbers of cairn_fp8_format. */
enum { CAIRN__E4M3 = 1, CAIRN__E5M2 = 2, CAIRN__FP8_END };

enum { CAIRN__FP8_NAN = 0x7f, CAIRN__E5M2_INFINITY = 0x7c };

CAIRN__HOST_DEVICE static inline int cairn__fp8_fraction_bits(int format) {
    return format == CAIRN__E4M3 ? 3 : 2;
}

/* The exponent field of the least normal value in f32. */
CAIRN__HOST_DEVICE static inline uint32_t cairn__fp8_least_exponent(int format) {
    return format == CAIRN__E4M3 ? 127 - 6 : 127 - 14;
}

CAIRN__HOST_DEVICE static inline float cairn__fp8_max(int format) {
    return format == CAIRN__E4M3 ? 448.0f : 57344.0f;
}

/* The power of two above the greatest value: it is rounded as anything larger would be. */
CAIRN__HOST_DEVICE static inline float cairn__fp8_beyond(int format) {
    return format == CAIRN__E4M3 ? 512.0f : 65536.0f;
}

/* Rounds magnitude, at most cairn__fp8_beyond, to nearest even: adds a power of two whose last place in f32 is the
 * spacing of the format's values there, so that f32's own rounding does it. Below the least normal the spacing is
 * constant. */
CAIRN__HOST_DEVICE static inline float cairn__fp8_nearest(int format, float magnitude) {
    const uint32_t own = cairn__f32_bits(magnitude) & 0x7f800000u, least = cairn__fp8_least_exponent(format) << 23;
    const uint32_t exponent = own < least ? least : own;
    const float power = cairn__f32_from_bits(exponent + ((uint32_t)(23 - cairn__fp8_fraction_bits(format)) << 23));
    return (magnitude + power) - power;
}

/* Rounds magnitude, at most cairn__fp8_beyond, stochastically: up if random, of 32 bits, is below the fraction that is
 * cut off, which is measured in 2^-32 of the last place and rounded down. A value of the format never changes. */
CAIRN__HOST_DEVICE static inline float cairn__fp8_at_random(int format, float magnitude, uint32_t random) {
    const uint32_t bits = cairn__f32_bits(magnitude), least = cairn__fp8_least_exponent(format);
    const uint32_t fraction_bits = (uint32_t)cairn__fp8_fraction_bits(format);
    const uint32_t own = bits >> 23 ? bits >> 23 : 1, exponent = own < least ? least : own;
    const uint32_t significand = (bits & 0x7fffffu) | (bits >> 23 ? 0x800000u : 0);
    const uint32_t cut = 23 - fraction_bits + (exponent - own);                 /* bits below the last place */
    const uint64_t whole = cut < 56 ? ((uint64_t)significand << 32) >> cut : 0; /* in units of 2^-32 */
    const uint32_t kept = (uint32_t)(whole >> 32) + (random < (uint32_t)whole);
    return (float)kept * cairn__f32_from_bits((exponent - fraction_bits) << 23);
}

/* x rounded to the format. random: 32 random bits, used if at_random. */
CAIRN__HOST_DEVICE static inline float cairn__fp8_value(int format, bool saturates, bool at_random, float x,
                                                        uint32_t random) {
    const uint32_t bits = cairn__f32_bits(x), magnitude = bits & 0x7fffffffu;
    const float beyond = cairn__fp8_beyond(format), max = cairn__fp8_max(format);
    const float all = cairn__f32_from_bits(magnitude), m = all > beyond ? beyond : all;
    const float rounded = at_random ? cairn__fp8_at_random(format, m, random) : cairn__fp8_nearest(format, m);
    const uint32_t over = saturates ? cairn__f32_bits(max) : format == CAIRN__E4M3 ? 0x7fc00000u : 0x7f800000u;
    const uint32_t limited = rounded > max ? over : cairn__f32_bits(rounded);
    const uint32_t result = magnitude > 0x7f800000u ? 0x7fc00000u : limited;
    return cairn__f32_from_bits(result | (bits & 0x80000000u));
}

/* The code of a value that cairn__fp8_value returned. */
CAIRN__HOST_DEVICE static inline uint8_t cairn__fp8_code(int format, float value) {
    const uint32_t bits = cairn__f32_bits(value), magnitude = bits & 0x7fffffffu;
    const uint32_t fraction_bits = (uint32_t)cairn__fp8_fraction_bits(format),
                   least = cairn__fp8_least_exponent(format);
    const bool is_normal = magnitude >= least << 23;
    const float below = is_normal ? 0 : cairn__f32_from_bits(magnitude);
    const uint32_t subnormal = /* in units of the least value */
        (uint32_t)(int32_t)(below * (format == CAIRN__E4M3 ? 0x1p9f : 0x1p16f));
    const uint32_t normal = (magnitude >> (23 - fraction_bits)) - ((least - 1) << fraction_bits);
    const uint32_t finite = is_normal ? normal : subnormal;
    const uint32_t code = magnitude > 0x7f800000u    ? (uint32_t)CAIRN__FP8_NAN
                          : magnitude == 0x7f800000u ? (uint32_t)CAIRN__E5M2_INFINITY
                                                     : finite;
    return (uint8_t)(code | (bits >> 24 & 0x80u));
}

/* The value of a code. E5M2 is the upper byte of an f16; E4M3 is decoded as an f16 too, scaled by the difference of the
 * biases. */
CAIRN__HOST_DEVICE static inline float cairn__fp8_decode(int format, uint8_t code) {
    const uint32_t magnitude = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    const bool is_nan = format == CAIRN__E4M3 ? magnitude == CAIRN__FP8_NAN : magnitude > CAIRN__E5M2_INFINITY;
    const uint32_t as_f16 = format == CAIRN__E4M3 ? magnitude << 7 : magnitude << 8;
    const float value = cairn__f16_to_f32((uint16_t)as_f16) * (format == CAIRN__E4M3 ? 256.0f : 1.0f);
    return cairn__f32_from_bits((is_nan ? 0x7fc00000u : cairn__f32_bits(value)) | sign);
}

#endif
