/* fp8, internal interface: passes over arrays in host memory. */
#ifndef CAIRN__AMP_FP8_H
#define CAIRN__AMP_FP8_H

#include "cairn/core.h"
#include "kernels/kernels.h"

/* dst = x rounded through format, as the kernel fp8_round does. Types are f32, f16 or bf16, and at least one of them is
 * f32. dst may be x if the types are equal. */
void cairn__fp8_round(int format, void *dst, cairn_dtype to, const void *x, cairn_dtype from, size_t n,
                      const struct cairn__fp8 *how);

/* cairn_fp8_amax without its checks. */
float cairn__fp8_amax(const void *x, cairn_dtype dtype, size_t n);

#endif
