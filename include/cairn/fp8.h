/* 8-bit floats, to study: E4M3 and E5M2 of the OCP specification, exact, on the CPU.
 *
 *          bits: sign, exponent, fraction   greatest   least normal   least   beyond the greatest
 *   E4M3   1, 4, 3                          448        2^-6           2^-9    no infinity; NaN is 0x7f and 0xff
 *   E5M2   1, 5, 2                          57344      2^-14          2^-16   infinity, and NaN
 *
 * Arrays are in the host's memory; casts need no environment.
 * Threads: any. Source: OCP 8-bit Floating Point Specification (OFP8) 1.0; Micikevicius et
 * al., "FP8 Formats for Deep Learning", 2022. Compare ml_dtypes' float8_e4m3fn and float8_e5m2, which do not
 * saturate. */
#ifndef CAIRN_FP8_H
#define CAIRN_FP8_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cairn_fp8_format {
    CAIRN_FP8_E4M3 = 1,
    CAIRN_FP8_E5M2 = 2,
} cairn_fp8_format;

/* The greatest finite value, 448 or 57344; NaN for what is no format. */
CAIRN_API float cairn_fp8_max(cairn_fp8_format format);

struct cairn_fp8_options {
    size_t struct_size;
    cairn_fp8_format format; /* E4M3 */
    float scale;             /* 0 = 1. A value is multiplied by it in f32 and then rounded; coming back it is multiplied
                                by 1 / scale, which is rounded to f32 once */
    cairn_switch saturate;   /* ON: what is beyond the greatest, infinity too, becomes the greatest. OFF: E4M3: NaN,
                                E5M2: infinity; from the middle between the greatest and what would be next, that is
                                above 464, and from 61440 on */
    /* ON: up or down at random, up with the probability of the distance from below; values of the format stay. What is
     * beyond the greatest is limited after that. OFF: to nearest, ties to even. */
    cairn_switch stochastic_rounding;
    uint64_t seed, stream; /* of its numbers: element i takes word i % 4 of Philox4x32-10 with key seed and counter
                              (i / 4, stream), and goes up where that is below the distance in units of 2^-32 */
};
#define cairn_fp8_options(...) \
    (&(struct cairn_fp8_options){.struct_size = sizeof(struct cairn_fp8_options), __VA_ARGS__})

/* codes[i] = that of x[i]. NaN becomes 0x7f or 0xff, by its sign; zeros keep theirs.
 *
 *   codes    [n] written
 *   x        [n] of dtype, which is f32, f16 or bf16
 *   options  NULL = all defaults
 *
 * Errors: CAIRN_EINVAL NULL where n > 0, a dtype, an option; nothing was written. */
CAIRN_API cairn_status cairn_fp8_encode(uint8_t *codes, const void *x, cairn_dtype dtype, size_t n,
                                        const struct cairn_fp8_options *options);

/* x[i] = the value of codes[i], divided by the scale; rounded to dtype once, which loses nothing where the scale is a
 * power of two and the result in dtype's range. Of options only format and scale matter. Otherwise as encode. */
CAIRN_API cairn_status cairn_fp8_decode(void *x, cairn_dtype dtype, const uint8_t *codes, size_t n,
                                        const struct cairn_fp8_options *options);

/* dst = decode(encode(x)), in one pass; dst may be x. Errors: as encode. */
CAIRN_API cairn_status cairn_fp8_round(void *dst, const void *x, cairn_dtype dtype, size_t n,
                                       const struct cairn_fp8_options *options);

/* *amax = the greatest |x[i]|: infinity where one is infinite; a NaN counts as nothing, as in CUDA's fmaxf, by which
 * Transformer Engine has it. 0 of nothing. Errors: as encode. */
CAIRN_API cairn_status cairn_fp8_amax(const void *x, cairn_dtype dtype, size_t n, float *amax);

#ifdef __cplusplus
}
#endif

#endif
