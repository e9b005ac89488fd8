/* Views as kernels take them: the common axes of several views of one shape, merged where the strides of all of them
 * allow, so that dense operands are one axis, whatever their shape. Pure C, no CUDA calls. */
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

/* *out: the axes of `count` views, all of the first view's shape (the others' sizes are not read). */
void cairn__axes_of(const struct cairn__view *const *views, int count, struct cairn__axes *out);

/* The same over some axes of the shape alone: bit d of `which` is axis d. The others stay at their first element. */
void cairn__axes_of_some(const struct cairn__view *const *views, int count, uint32_t which, struct cairn__axes *out);

/* Whether an operand's elements are contiguous, in the order of the axes. */
static inline bool cairn__axes_dense(const struct cairn__axes *axes, int operand) {
    return axes->ndim == 0 || (axes->ndim == 1 && axes->stride[operand][0] == 1);
}

#endif
