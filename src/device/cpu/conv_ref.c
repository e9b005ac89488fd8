/* Convolutions in plain loops: the definition, for f64 and for builds without oneDNN. Sums are in the type of the
 * operands; for one weight and one row of dst at a time, so that the inner loop runs along rows. */
#include <string.h>

#include "device/cpu/conv.h"

/* What one weight does with n elements of a row of src, `stride` apart, and one of dst. */
typedef void (*row_fn)(void *src, void *weight, void *dst, int64_t n, int64_t stride);

#define ROWS(T)                                                                             \
    static void dst_##T(void *src, void *weight, void *dst, int64_t n, int64_t stride) {    \
        const T *x = src, w = *(const T *)weight;                                           \
        T *y = dst;                                                                         \
        for (int64_t i = 0; i < n; i++) y[i] += w * x[i * stride];                          \
    }                                                                                       \
    static void src_##T(void *src, void *weight, void *dst, int64_t n, int64_t stride) {    \
        const T *dy = dst, w = *(const T *)weight;                                          \
        T *dx = src;                                                                        \
        for (int64_t i = 0; i < n; i++) dx[i * stride] += w * dy[i];                        \
    }                                                                                       \
    static void weight_##T(void *src, void *weight, void *dst, int64_t n, int64_t stride) { \
        const T *dy = dst, *x = src;                                                        \
        T sum = 0;                                                                          \
        for (int64_t i = 0; i < n; i++) sum += dy[i] * x[i * stride];                       \
        *(T *)weight += sum;                                                                \
    }
ROWS(float)
ROWS(double)

static const row_fn rows[2][4] = {
    {NULL, dst_float, src_float, weight_float},
    {NULL, dst_double, src_double, weight_double},
};

struct loops {
    struct cairn__conv_shape g;
    row_fn row;
    size_t nbytes; /* of an element */
};

/* One plane of src, one kernel, one plane of dst. */
static void planes(const struct loops *l, char *src, char *weights, char *dst) {
    const struct cairn__conv_shape *g = &l->g;
    for (int64_t r = 0; r < g->r; r++) {
        const struct cairn__reach rows_at = cairn__conv_reach(g, 0, r);
        for (int64_t p = rows_at.begin, y = rows_at.at; p < rows_at.end; p++, y += g->stride[0]) {
            for (int64_t s = 0; s < g->s; s++) {
                const struct cairn__reach at = cairn__conv_reach(g, 1, s);
                if (at.begin < at.end)
                    l->row(src + (size_t)(y * g->w + at.at) * l->nbytes, weights + (size_t)(r * g->s + s) * l->nbytes,
                           dst + (size_t)(p * g->q + at.begin) * l->nbytes, at.end - at.begin, g->stride[1]);
            }
        }
    }
}

static size_t start_at_zero(const struct cairn__conv_pass *pass, size_t nbytes) {
    const struct cairn__conv_shape *g = &pass->shape;
    switch (pass->what) {
    case CAIRN__CONV_DST:
        memset(pass->dst, 0, (size_t)(g->n * g->k * g->p * g->q) * nbytes);
        break;
    case CAIRN__CONV_SRC:
        memset(pass->src, 0, (size_t)(g->n * g->c * g->h * g->w) * nbytes);
        break;
    case CAIRN__CONV_WEIGHTS:
        memset(pass->weights, 0, (size_t)(g->k * (g->c / g->groups) * g->r * g->s) * nbytes);
    }
    return nbytes;
}

void cairn__conv_loops(const struct cairn__conv_pass *pass) {
    const struct cairn__conv_shape *g = &pass->shape;
    const size_t nbytes = start_at_zero(pass, cairn_dtype_nbytes(pass->in_type));
    const struct loops l = {*g, rows[pass->in_type == CAIRN_F64][pass->what], nbytes};
    const int64_t cg = g->c / g->groups, kg = g->k / g->groups;
    for (int64_t n = 0; n < g->n; n++) {
        for (int64_t k = 0; k < g->k; k++) {
            for (int64_t c = 0; c < cg; c++) {
                const int64_t from = n * g->c + k / kg * cg + c;
                planes(&l, (char *)pass->src + (size_t)(from * g->h * g->w) * nbytes,
                       (char *)pass->weights + (size_t)((k * cg + c) * g->r * g->s) * nbytes,
                       (char *)pass->dst + (size_t)((n * g->k + k) * g->p * g->q) * nbytes);
            }
        }
    }
}
