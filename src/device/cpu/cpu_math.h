/* The CPU's passes of math_passes.h, file by file. */
#ifndef CAIRN__CPU_MATH_H
#define CAIRN__CPU_MATH_H

#include "device/cpu/cpu.h"
#include "device/cpu/state.h"

/* element.c */
void cairn__cpu_map(struct cairn_device *d, enum cairn__map_fn f, const struct cairn__view *dst,
                    const struct cairn__view *x, const double *numbers);
void cairn__cpu_map_sum(struct cairn_device *d, enum cairn__map_fn f, const struct cairn__view *dst,
                        const struct cairn__view *x, const double *numbers, double divisor);
/* Replaces v by a dense copy in scratch (slot < CAIRN__MAP_INPUTS) if reading v in order would jump through memory. The
 * copy lasts until the slot's next copy. */
void cairn__cpu_densify(struct cairn__cpu *cpu, int slot, struct cairn__view *v);

/* reduce.c */
void cairn__cpu_fold(struct cairn_device *d, enum cairn__fold f, const struct cairn__view *dst,
                     const struct cairn__view *x, double divisor, bool root);
void cairn__cpu_variance(struct cairn_device *d, const struct cairn__view *dst, void *mean, const struct cairn__view *x,
                         double divisor, bool root);
void cairn__cpu_arg_max(struct cairn_device *d, const struct cairn__view *index, const struct cairn__view *value,
                        const struct cairn__view *x, int axis, bool least);
void cairn__cpu_cumulate(struct cairn_device *d, const struct cairn__view *dst, const struct cairn__view *x, int axis,
                         bool product, bool reverse);

/* conv.c, pool.c */
void cairn__cpu_conv(struct cairn_device *d, const struct cairn__conv *conv);
void cairn__cpu_conv_backward(struct cairn_device *d, const struct cairn__conv *conv);
void cairn__cpu_pool(struct cairn_device *d, const struct cairn__pool *pool);
void cairn__cpu_pool_backward(struct cairn_device *d, const struct cairn__pool *pool);

/* product.c */
void cairn__cpu_product(struct cairn_device *d, const struct cairn__view *c, const struct cairn__view *a,
                        const struct cairn__view *b);
/* attention.c */
void cairn__cpu_attention(struct cairn_device *d, const struct cairn__attention *attention);
void cairn__cpu_attention_backward(struct cairn_device *d, const struct cairn__attention *attention);

#endif
