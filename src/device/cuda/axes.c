#include "device/cuda/axes.h"

/* Axis `size` with these strides lies outside what is there: it merges with the axis before it where, in every operand,
 * one step along that is `size` steps along this. */
static bool merges(const struct cairn__axes *axes, int count, int64_t size, const int64_t *stride) {
    if (axes->ndim == 0) return false;
    for (int k = 0; k < count; k++) {
        if (axes->stride[k][axes->ndim - 1] != size * stride[k]) return false;
    }
    return true;
}

void cairn__axes_of_some(const struct cairn__view *const *views, int count, uint32_t which, struct cairn__axes *out) {
    *out = (struct cairn__axes){.n = 1};
    for (int d = 0; d < views[0]->ndim; d++) {
        const int64_t size = views[0]->size[d];
        int64_t stride[CAIRN__AXES_OPERANDS];
        if (!(which >> d & 1)) continue;
        out->n *= (size_t)size;
        if (size == 1) continue;
        for (int k = 0; k < count; k++) stride[k] = views[k]->stride[d];
        const bool merged = merges(out, count, size, stride);
        if (!merged) out->size[out->ndim++] = 1;
        out->size[out->ndim - 1] *= size;
        for (int k = 0; k < count; k++) out->stride[k][out->ndim - 1] = stride[k];
    }
}

void cairn__axes_of(const struct cairn__view *const *views, int count, struct cairn__axes *out) {
    cairn__axes_of_some(views, count, UINT32_MAX, out);
}
