/* Views of memory as arrays: the operands of the passes of math_passes.h. */
#ifndef CAIRN__DEVICE_VIEW_H
#define CAIRN__DEVICE_VIEW_H

#include <stdbool.h>

#include "cairn/core.h"

/* Element [i0, i1, ...] is at data + sum of i * stride, strides in elements. A stride is never negative; 0 repeats one
 * element (broadcasting). A view that is written has strides of 0 only along axes of size 1 and along axes that the
 * pass folds. */
struct cairn__view {
    void *data;
    cairn_dtype dtype;
    int ndim;
    int64_t size[CAIRN_MAX_DIMS];
    int64_t stride[CAIRN_MAX_DIMS];
};

static inline size_t cairn__view_numel(const struct cairn__view *v) {
    size_t n = 1;
    for (int d = 0; d < v->ndim; d++) n *= (size_t)v->size[d];
    return n;
}

/* Row-major without gaps. Strides of axes of size 1 do not matter; a view without elements is dense. */
static inline bool cairn__view_is_dense(const struct cairn__view *v) {
    int64_t want = 1;
    bool dense = true;
    for (int d = v->ndim - 1; d >= 0; d--) {
        if (v->size[d] == 0) return true;
        if (v->size[d] != 1 && v->stride[d] != want) dense = false;
        want *= v->size[d];
    }
    return dense;
}

/* The dense view of a shape. */
static inline struct cairn__view cairn__view_dense(void *data, cairn_dtype dtype, int ndim, const int64_t *size) {
    struct cairn__view v = {.data = data, .dtype = dtype, .ndim = ndim};
    int64_t stride = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        v.size[d] = size[d];
        v.stride[d] = stride;
        stride *= size[d];
    }
    return v;
}

/* The axes that a pass folds (math_passes.h): bit d is set if axis d has stride 0 in the result and a size other than
 * 1, since folding a single element changes nothing. *any: whether there is a result to write (a dense view without
 * elements has strides of 0 too). */
static inline uint32_t cairn__view_folded(const struct cairn__view *dst, bool *any) {
    uint32_t folded = 0;
    *any = true;
    for (int d = 0; d < dst->ndim; d++) {
        if (dst->size[d] == 0 && dst->stride[d] != 0) *any = false;
        if (dst->size[d] != 1 && dst->stride[d] == 0) folded |= 1u << d;
    }
    return folded;
}

/* Whether a pass computes in f64 with values stored as t; otherwise it computes in f32. */
static inline bool cairn__needs_f64(cairn_dtype t) {
    return t == CAIRN_F64 || t == CAIRN_I32 || t == CAIRN_I64;
}

#endif
