/* 8-bit floats for experiments: exact emulation on the CPU of the OCP formats E4M3 and E5M2.
 *
 *          bits: sign, exponent, fraction   greatest   least normal   least   beyond the greatest
 *   E4M3   1, 4, 3                          448        2^-6           2^-9    no infinity; NaN is 0x7f and 0xff
 *   E5M2   1, 5, 2                          57344      2^-14          2^-16   infinity, and NaN
 *
 * Arrays are in host memory; casts need no environment. docs/fp8.md describes training with fp8 casts.
 * Threads: any, unless stated otherwise. Source: OCP 8-bit Floating Point Specification (OFP8) 1.0; Micikevicius et
 * al., "FP8 Formats for Deep Learning", 2022. Compare ml_dtypes' float8_e4m3fn and float8_e5m2, which do not
 * saturate. */
#ifndef CAIRN_FP8_H
#define CAIRN_FP8_H

#include "core.h"
#include "env.h"
#include "stateful.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cairn_fp8_format {
    CAIRN_FP8_E4M3 = 1,
    CAIRN_FP8_E5M2 = 2,
} cairn_fp8_format;

/* The greatest finite value, 448 or 57344; NaN for an invalid format. */
CAIRN_API float cairn_fp8_max(cairn_fp8_format format);

struct cairn_fp8_options {
    size_t struct_size;
    cairn_fp8_format format; /* E4M3 */
    float scale;             /* 0 = 1. Encoding multiplies by it in f32, then rounds; decoding multiplies by 1 / scale,
                                which is rounded to f32 once */
    cairn_switch saturate;   /* ON: values beyond the greatest, infinity too, become the greatest. OFF: they become NaN
                                (E4M3) or infinity (E5M2), from midway between the greatest value and the one that
                                would follow it: E4M3 above 464, E5M2 from 61440 on */
    /* ON: rounds up or down at random, up with a probability equal to the distance from the value below; values of the
     * format are unchanged. Values beyond the greatest are handled after that. OFF: rounds to nearest, ties to even. */
    cairn_switch stochastic_rounding;
    uint64_t seed, stream; /* of its random numbers: element i takes word i % 4 of Philox4x32-10 with key seed and
                              counter (i / 4, stream), and rounds up if it is below the distance in units of 2^-32 */
};
#define cairn_fp8_options(...) \
    (&(struct cairn_fp8_options){.struct_size = sizeof(struct cairn_fp8_options), __VA_ARGS__})

/* codes[i] = the code of x[i]. NaN becomes 0x7f or 0xff, by its sign; zeros keep their sign.
 *
 *   codes    [n] written
 *   x        [n] of dtype, which is f32, f16 or bf16
 *   options  NULL = all defaults
 *
 * Errors: CAIRN_EINVAL NULL where n > 0, a dtype, an option; nothing was written. */
CAIRN_API cairn_status cairn_fp8_encode(uint8_t *codes, const void *x, cairn_dtype dtype, size_t n,
                                        const struct cairn_fp8_options *options);

/* x[i] = the value of codes[i] times 1 / scale, in f32, then rounded to dtype; exact where the scale is a power of two
 * and the result in dtype's range. Only format and scale of the options are used. Otherwise as encode. */
CAIRN_API cairn_status cairn_fp8_decode(void *x, cairn_dtype dtype, const uint8_t *codes, size_t n,
                                        const struct cairn_fp8_options *options);

/* dst = decode(encode(x)), in one pass; dst may be x. Errors: as encode. */
CAIRN_API cairn_status cairn_fp8_round(void *dst, const void *x, cairn_dtype dtype, size_t n,
                                       const struct cairn_fp8_options *options);

/* *amax = the greatest |x[i]|: infinity if one is infinite; NaNs are ignored, as by CUDA's fmaxf, which Transformer
 * Engine uses. 0 if n is 0. Errors: as encode. */
CAIRN_API cairn_status cairn_fp8_amax(const void *x, cairn_dtype dtype, size_t n, float *amax);

/* ---- scales ---- */

typedef enum cairn_fp8_scaling {
    CAIRN_FP8_DELAYED = 1,  /* by the amax of earlier steps */
    CAIRN_FP8_CURRENT = 2,  /* by the amax of the tensor itself */
    CAIRN_FP8_UNSCALED = 3, /* 1, always */
} cairn_fp8_scaling;

typedef enum cairn_fp8_amax_algo {
    CAIRN_FP8_AMAX_MAX = 1,         /* the greatest of the history */
    CAIRN_FP8_AMAX_MOST_RECENT = 2, /* the last */
} cairn_fp8_amax_algo;

typedef enum cairn_fp8_formats {
    CAIRN_FP8_HYBRID = 1,   /* E4M3 in forward, E5M2 for gradients */
    CAIRN_FP8_ALL_E4M3 = 2, /* E4M3 for both */
} cairn_fp8_formats;

/* How tensors are scaled and rounded; all fields 0 is Transformer Engine's DelayedScaling with its defaults.
 *
 * An update computes a tensor's next scale from a, the amax of its history, and max, the format's greatest value:
 *     a is 0, infinite or NaN   DELAYED: the scale stays. CURRENT: it is 1
 *     else                      max * 2^-margin / a, in f32; an overflow becomes the greatest f32
 * An amax of 0 does not enter the history. With CAIRN_FP8_AMAX_MAX an infinite amax keeps the scale unchanged as long
 * as it is in the history, as in Transformer Engine.
 * Source: NVIDIA Transformer Engine 2, transformer_engine/common/recipe/__init__.py (DelayedScaling,
 * Float8CurrentScaling), delayed_scaling.cu (amax_and_scale_update_after_reduction), recipe_common.cuh
 * (compute_scale_from_amax). */
struct cairn_fp8_recipe {
    size_t struct_size;
    cairn_fp8_formats formats;             /* HYBRID. Used only for casts in a training (amp_options.fp8) */
    cairn_fp8_scaling scaling;             /* DELAYED */
    int amax_history_len;                  /* 1024; at most 65536. This and the next two are for DELAYED only */
    cairn_fp8_amax_algo amax_compute_algo; /* MAX */
    int margin;                            /* 0; in [-8, 8] */
    cairn_switch reduce_amax;              /* ON: an update first takes the greatest amax over the ranks */
    cairn_switch power_of_two_scales;      /* OFF. ON: a scale is rounded down to a power of two, at least 2^-126.
                                              Transformer Engine has this for CURRENT only */
    cairn_switch saturate;                 /* ON. This and the next two are only for casts in a training */
    cairn_switch stochastic_inputs;        /* OFF. ON: operands of forward are rounded stochastically; */
    cairn_switch stochastic_gradients;     /* OFF. ON: gradients are; each cast draws a stream of the environment */
};
#define cairn_fp8_recipe(...) (&(struct cairn_fp8_recipe){.struct_size = sizeof(struct cairn_fp8_recipe), __VA_ARGS__})

/* Scales of tensors that the program casts itself; amp keeps its own (amp_options.fp8). */
typedef struct cairn_fp8_scales cairn_fp8_scales;

/* Makes scales for `count` tensors, each 1 at first and with an empty history.
 *
 *   formats  [count] the format that each tensor is cast to; NULL = E4M3 for all
 *   recipe   NULL = all defaults
 *   out      must be destroyed before the environment
 *
 * Errors: CAIRN_EINVAL a format, or a field of the recipe, by name; CAIRN_ENOMEM. Memory: 4 bytes per amax of a
 * history.
 * Threads: as the environment. */
CAIRN_API cairn_status cairn_fp8_scales_create(cairn_env *env, size_t count, const cairn_fp8_format *formats,
                                               const struct cairn_fp8_recipe *recipe, cairn_fp8_scales **out);
CAIRN_API void cairn_fp8_scales_destroy(cairn_fp8_scales **scales);

/* The scale to cast tensor i with; NaN if there is no tensor i. */
CAIRN_API float cairn_fp8_scales_get(const cairn_fp8_scales *scales, size_t i);

/* Records an amax of tensor i: the greatest one since the last update counts; NaN is ignored. A step may record
 * several, one per micro-batch. Errors: CAIRN_EINVAL i, an amax below 0. */
CAIRN_API cairn_status cairn_fp8_scales_note(cairn_fp8_scales *scales, size_t i, float amax);

/* The greatest amax recorded for tensor i since the last update; 0 = none. To reduce it over a group other than the
 * environment's (recipe.reduce_amax OFF): cairn_allreduce with CAIRN_MAX, then cairn_fp8_scales_note the result. */
CAIRN_API float cairn_fp8_scales_amax(const cairn_fp8_scales *scales, size_t i);

/* Computes every tensor's next scale from the recorded amaxes. With reduce_amax and DELAYED it is a blocking collective
 * of all ranks, which must have the same number of tensors. Errors: those of the group. */
CAIRN_API cairn_status cairn_fp8_scales_update(cairn_fp8_scales *scales);

/* Scales and histories, for cairn_state_add: equal on all ranks where updates reduce them, otherwise each rank's own.
 * They load only into scales with the same count and history length. */
CAIRN_API cairn_stateful cairn_fp8_scales_stateful(cairn_fp8_scales *scales);

#ifdef __cplusplus
}
#endif

#endif
