/* The GPU's passes of math_passes.h, and what their host files share. Each host file has a file of kernels: maps.c
 * checks arguments, divides the work and queues the kernels of maps.cu through the launchers of maps.h. */
#ifndef CAIRN__DEVICE_CUDA_MATH_TABLE_H
#define CAIRN__DEVICE_CUDA_MATH_TABLE_H

#include "device/cuda/cuda.h"

/* Every pass. */
extern const struct cairn__math cairn__cuda_math;

/* ---- products of batches; batch.c ---- */

/* c[i] = op(a[i]) op(b[i]), i < batch, row-major: a is [m, k] with lda elements from row to row, or [k, m] where
 * trans_a; b is [k, n], or [n, k] where trans_b; c is [m, n]. The matrices of each are `step` elements apart; 0 = all
 * share one. Sums are f32 (f64 for f64), multiplied by alpha and rounded once. Sizes are > 0, except k. */
struct cairn__batch {
    int64_t batch, m, n, k;
    bool trans_a, trans_b;
    cairn_dtype in_type, out_type; /* of a and b; of c: the same, or R */
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    int64_t step_a, step_b, step_c;
    bool accumulate; /* adds to c, which is R */
    double alpha;    /* usually 1 */
};
cairn_status cairn__cuda_multiply(struct cairn_device *d, const struct cairn__batch *b);
/* One call of cuBLASLt; k > 0 and a batch that cuBLASLt supports. In product.c. */
cairn_status cairn__products_batch(struct cairn_device *d, const struct cairn__batch *b);

/* ---- random streams ---- */

static inline struct cairn__random_stream cairn__cuda_random(const struct cairn_device *d, uint64_t seed,
                                                             uint64_t stream) {
    if (!d->random_base) return (struct cairn__random_stream){seed, stream, NULL};
    return (struct cairn__random_stream){seed, stream - d->first_stream, d->random_base};
}

/* ---- the passes, by file ---- */

/* maps.c */
void cairn__cuda_map(struct cairn_device *d, enum cairn__map_fn f, const struct cairn__view *dst,
                     const struct cairn__view *x, const double *numbers);
void cairn__cuda_map_sum(struct cairn_device *d, enum cairn__map_fn f, const struct cairn__view *dst,
                         const struct cairn__view *x, const double *numbers, double divisor);
/* folds.c */
void cairn__cuda_fold(struct cairn_device *d, enum cairn__fold f, const struct cairn__view *dst,
                      const struct cairn__view *x, double divisor, bool root);
void cairn__cuda_variance(struct cairn_device *d, const struct cairn__view *dst, void *mean,
                          const struct cairn__view *x, double divisor, bool root);
void cairn__cuda_arg_max(struct cairn_device *d, const struct cairn__view *index, const struct cairn__view *value,
                         const struct cairn__view *x, int axis, bool least);
void cairn__cuda_cumulate(struct cairn_device *d, const struct cairn__view *dst, const struct cairn__view *x, int axis,
                          bool product, bool reverse);
/* batch.c */
void cairn__cuda_product(struct cairn_device *d, const struct cairn__view *c, const struct cairn__view *a,
                         const struct cairn__view *b);
/* rows.c */
void cairn__cuda_softmax(struct cairn_device *d, cairn_dtype t, void *y, const void *x, size_t rows, size_t n,
                         bool log);
void cairn__cuda_softmax_backward(struct cairn_device *d, cairn_dtype t, void *dx, const void *dy, const void *y,
                                  size_t rows, size_t n, bool log);
void cairn__cuda_gather_rows(struct cairn_device *d, cairn_dtype t, void *y, const void *table, const void *index,
                             cairn_dtype index_dtype, size_t count, size_t table_rows, size_t n, uint32_t *bad_index);
void cairn__cuda_scatter_rows(struct cairn_device *d, cairn_dtype t, void *dtable, const void *dy, const void *index,
                              cairn_dtype index_dtype, size_t count, size_t table_rows, size_t n, int64_t skip);
void cairn__cuda_dropout(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n, double p,
                         uint64_t seed, uint64_t stream);
/* losses.c */
void cairn__cuda_class_loss(struct cairn_device *d, const struct cairn__class_loss *loss);
void cairn__cuda_class_loss_backward(struct cairn_device *d, const struct cairn__class_loss *loss);
/* norms.c */
void cairn__cuda_norm(struct cairn_device *d, const struct cairn__norm *norm);
void cairn__cuda_norm_backward(struct cairn_device *d, const struct cairn__norm *norm);
void cairn__cuda_batch_stats(struct cairn_device *d, cairn_dtype running_dtype, void *running_mean, void *running_var,
                             const struct cairn__norm *norm, double momentum);
void cairn__cuda_merge_moments(struct cairn_device *d, double *shared, const double *all, size_t shares,
                               size_t channels);
/* conv.c */
void cairn__cuda_conv(struct cairn_device *d, const struct cairn__conv *conv);
void cairn__cuda_conv_backward(struct cairn_device *d, const struct cairn__conv *conv);
/* pool.c */
void cairn__cuda_pool(struct cairn_device *d, const struct cairn__pool *pool);
void cairn__cuda_pool_backward(struct cairn_device *d, const struct cairn__pool *pool);
/* attention.c */
void cairn__cuda_attention(struct cairn_device *d, const struct cairn__attention *attention);
void cairn__cuda_attention_backward(struct cairn_device *d, const struct cairn__attention *attention);

#endif
