/* Views on their way into a kernel: the axes that several views of one shape share, merged where all their strides
 * allow, so that dense operands are one axis whatever their shape. Pure C: no CUDA here. */
#ifndef CAIRN__DEVICE_CUDA_AXES_H
#define CAIRN__DEVICE_CUDA_AXES_H

#include "device/view.h"

enum { CAIRN__AXES_OPERANDS = 5 }; /* a map's result and its four inputs */

struct cairn__axes {
    size_t n; /* elements */
    int ndim; /* axes that did not merge, none of size 1; 0 = one element, or none */
    int64_t size[CAIRN_MAX_DIMS];
    int64_t stride[CAIRN__AXES_OPERANDS][CAIRN_MAX_DIMS];
};

/* Of `count` views, each of the shape of the first (their own sizes are not read). */
void cairn__axes_of(const struct cairn__view *const *views, int count, struct cairn__axes *out);

/* The same over some axes of the shape alone: bit d of `which` is axis d. The others stay at their first element. */
void cairn__axes_of_some(const struct cairn__view *const *views, int count, uint32_t which, struct cairn__axes *out);

/* Whether an operand's elements lie one after another, in the order of the axes. */
static inline bool cairn__axes_dense(const struct cairn__axes *axes, int operand) {
    return axes->ndim == 0 || (axes->ndim == 1 && axes->stride[operand][0] == 1);
}

#endif
