/* fp8 from inside: passes over arrays in the host's memory. */
#ifndef CAIRN__AMP_FP8_H
#define CAIRN__AMP_FP8_H

#include "cairn/core.h"
#include "kernels/kernels.h"

/* dst = x through format, as the kernel fp8_round does; types are f32, f16 or bf16, and f32 is dst's or x's. dst may be
 * x where types are equal. */
void cairn__fp8_round(int format, void *dst, cairn_dtype to, const void *x, cairn_dtype from, size_t n,
                      const struct cairn__fp8 *how);

/* cairn_fp8_amax without its checks. */
float cairn__fp8_amax(const void *x, cairn_dtype dtype, size_t n);

#endif
