/* Shared by rows.c, norm.c and loss.c: rows of elements; and the passes of these files. */
#ifndef CAIRN__CPU_ROWS_H
#define CAIRN__CPU_ROWS_H

#include "device/cpu/blocks.h"
#include "device/cpu/cpu_math.h"
#include "kernels/kernels.h"

/* Element i of an array of type t. */
static inline const void *cairn__element(cairn_dtype t, const void *x, size_t i) {
    return (const char *)x + i * cairn_dtype_nbytes(t);
}
static inline void *cairn__element_of(cairn_dtype t, void *x, size_t i) {
    return (char *)x + i * cairn_dtype_nbytes(t);
}

/* R of a storage type. */
static inline cairn_dtype cairn__r_of(cairn_dtype t) {
    return t == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32;
}

static inline int64_t cairn__index_at(cairn_dtype t, const void *index, size_t i) {
    return t == CAIRN_I32 ? ((const int32_t *)index)[i] : ((const int64_t *)index)[i];
}

/* The number of rows of n elements in a piece of parallel work: about 16k elements. */
static inline size_t cairn__rows_grain(size_t n) {
    const size_t rows = ((size_t)16 << 10) / (n + 1);
    return rows ? rows : 1;
}

/* dst = f(x...) with numbers p0 and p1, all of type r. */
static inline void cairn__map1(const struct cairn__kernels *k, enum cairn__map_fn f, cairn_dtype r, void *dst,
                               const void *x, size_t n, double p0, double p1) {
    k->map[f][r](dst, (const void *[]){x}, n, (double[CAIRN__MAP_NUMBERS]){p0, p1});
}
static inline void cairn__map2(const struct cairn__kernels *k, enum cairn__map_fn f, cairn_dtype r, void *dst,
                               const void *a, const void *b, size_t n, double p0) {
    k->map[f][r](dst, (const void *[]){a, b}, n, (double[CAIRN__MAP_NUMBERS]){p0, 0});
}

/* The greatest element of a row and the sum of e^(x - greatest), computed by blocks with a running maximum. A NaN makes
 * both NaN. n > 0. */
void cairn__row_exponents(const struct cairn__cpu *cpu, cairn_dtype t, const void *x, size_t n, double *greatest,
                          double *sum);

/* n values of x as r: x itself, or converted into s. NULL for NULL. */
cairn_status cairn__cpu_as_r(struct cairn__cpu *cpu, struct cairn__scratch *s, cairn_dtype t, const void *x, size_t n,
                             const void **out);

/* *out: room in s for n values of r, undefined. */
cairn_status cairn__cpu_room(struct cairn__scratch *s, cairn_dtype r, size_t n, void **out);

/* rows.c */
void cairn__cpu_softmax(struct cairn_device *d, cairn_dtype t, void *y, const void *x, size_t rows, size_t n, bool log);
void cairn__cpu_softmax_backward(struct cairn_device *d, cairn_dtype t, void *dx, const void *dy, const void *y,
                                 size_t rows, size_t n, bool log);
void cairn__cpu_gather_rows(struct cairn_device *d, cairn_dtype t, void *y, const void *table, const void *index,
                            cairn_dtype index_dtype, size_t count, size_t table_rows, size_t n, uint32_t *bad_index);
void cairn__cpu_scatter_rows(struct cairn_device *d, cairn_dtype t, void *dtable, const void *dy, const void *index,
                             cairn_dtype index_dtype, size_t count, size_t table_rows, size_t n, int64_t skip);
void cairn__cpu_dropout(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n, double p,
                        uint64_t seed, uint64_t stream);

/* norm.c */
void cairn__cpu_norm(struct cairn_device *d, const struct cairn__norm *norm);
void cairn__cpu_norm_backward(struct cairn_device *d, const struct cairn__norm *norm);
void cairn__cpu_batch_stats(struct cairn_device *d, cairn_dtype running_dtype, void *running_mean, void *running_var,
                            const struct cairn__norm *norm, double momentum);
void cairn__cpu_merge_moments(struct cairn_device *d, double *shared, const double *all, size_t shares,
                              size_t channels);

/* loss.c */
void cairn__cpu_class_loss(struct cairn_device *d, const struct cairn__class_loss *loss);
void cairn__cpu_class_loss_backward(struct cairn_device *d, const struct cairn__class_loss *loss);

#endif
