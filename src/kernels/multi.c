/* Lists of tensors through one kernel. Kernels take n = 0, so empty tensors need no care here. */
#include <math.h>

#include "kernels/kernels.h"

void cairn__multi_cast(const struct cairn__kernels *k, size_t count, void *const *dst, cairn_dtype to,
                       const void *const *src, cairn_dtype from, const size_t *n) {
    cairn__cast_fn cast = k->cast[from][to];
    for (size_t t = 0; t < count; t++) cast(dst[t], src[t], n[t]);
}

void cairn__multi_scale(const struct cairn__kernels *k, size_t count, void *const *dst, cairn_dtype to,
                        const void *const *src, cairn_dtype from, const size_t *n, float factor, uint32_t *found) {
    cairn__scale_fn scale = k->scale[from][to];
    for (size_t t = 0; t < count; t++) scale(dst[t], src[t], n[t], factor, found);
}

void cairn__multi_axpby(const struct cairn__kernels *k, size_t count, void *const *dst, cairn_dtype to,
                        const void *const *x, cairn_dtype from, const float *const *y, const size_t *n, float a,
                        float b, uint32_t *found) {
    cairn__axpby_fn axpby = k->axpby[from][to];
    for (size_t t = 0; t < count; t++) axpby(dst[t], x[t], y[t], n[t], a, b, found);
}

double cairn__multi_l2norm(const struct cairn__kernels *k, size_t count, const void *const *x, cairn_dtype dtype,
                           const size_t *n, float factor, double *per_tensor, uint32_t *found) {
    cairn__sumsq_fn sumsq = k->sumsq[dtype];
    double total = 0;
    for (size_t t = 0; t < count; t++) {
        double sum = 0;
        sumsq(x[t], n[t], factor, &sum, found);
        if (per_tensor) per_tensor[t] = sqrt(sum);
        total += sum;
    }
    return sqrt(total);
}
