/* See low_rank.h. */
#include "ddp/low_rank.h"

#include <math.h>

static struct cairn__view dense(const float *x, int64_t rows, int64_t cols) {
    return cairn__view_dense((float *)(uintptr_t)x, CAIRN_F32, 2, (int64_t[]){rows, cols});
}

/* The transposed of a dense [rows, cols]. */
static struct cairn__view transposed(const float *x, int64_t rows, int64_t cols) {
    struct cairn__view v = dense(x, rows, cols);
    v.size[0] = cols, v.size[1] = rows;
    v.stride[0] = 1, v.stride[1] = cols;
    return v;
}

static void product(struct cairn_device *d, struct cairn__view c, struct cairn__view a, struct cairn__view b) {
    d->math->product(d, &c, &a, &b);
}

/* column -= its projection on the `count` columns before it. */
static void subtract_projections(struct cairn_device *d, const float *before, int64_t count, float *column, int64_t n,
                                 const struct cairn__low_rank_room *room) {
    const struct cairn__item item = {.n = (size_t)n, .dst = column, .x = room->column, .y = column};
    product(d, dense(room->dots, 1, count), dense(column, 1, n), transposed(before, count, n));
    d->passes->mul_scalar(d, CAIRN_F32, room->dots, room->dots, (size_t)count, -1.0f);
    product(d, dense(room->column, 1, n), dense(room->dots, 1, count), dense(before, count, n));
    d->passes->axpby(d, &item, 1, CAIRN_F32, CAIRN_F32, NULL, 1.0f, NULL);
}

static void take_norm(struct cairn_device *d, const float *column, int64_t n, double *norm) {
    const struct cairn__item item = {.n = (size_t)n, .x = column};
    d->passes->l2norm(d, &item, 1, CAIRN_F32, NULL, norm, NULL, NULL);
}

/* *x, n times. */
static struct cairn__view repeated(double *x, int64_t n) {
    struct cairn__view v = cairn__view_dense(x, CAIRN_F64, 1, &n);
    v.stride[0] = 0;
    return v;
}

/* before: the column's norm before projections were subtracted. A column becomes 0 if no more than rounding errors are
 * left of it, since these have no direction of their own. 0 / least is 0, and NaN stays. */
static void normalize(struct cairn_device *d, float *column, int64_t n, double epsilon, double *before, double *after) {
    const double rounding = 0x1p-20, least = 1e-300;
    const struct cairn__view x = cairn__view_dense(column, CAIRN_F32, 1, &n);
    const struct cairn__view was = repeated(before, 1), is = repeated(after, 1);
    take_norm(d, column, n, after);
    d->math->map(d, CAIRN__MAP_AFFINE, &was, &was, (double[]){rounding, 0});
    d->math->map(d, CAIRN__MAP_GT, &was, (struct cairn__view[]){is, was}, NULL);
    d->math->map(d, CAIRN__MAP_AFFINE, &is, &is, (double[]){1, epsilon});
    d->math->map(d, CAIRN__MAP_CLAMP, &is, &is, (double[]){least, INFINITY});
    d->math->map(d, CAIRN__MAP_DIV, &is, (struct cairn__view[]){was, is}, NULL);
    d->math->map(d, CAIRN__MAP_MUL, &x, (struct cairn__view[]){x, repeated(after, n)}, NULL);
}

void cairn__low_rank_orthonormalize(struct cairn_device *d, float *x, int64_t rank, int64_t n, double epsilon,
                                    const struct cairn__low_rank_room *room) {
    for (int64_t i = 0; i < rank; i++) {
        float *const column = x + i * n;
        take_norm(d, column, n, &room->norms[0]);
        for (int time = 0; i > 0 && time < 2; time++) subtract_projections(d, x, i, column, n, room);
        normalize(d, column, n, epsilon, &room->norms[0], &room->norms[1]);
    }
}

void cairn__low_rank_project(struct cairn_device *d, const struct cairn__low_rank *s, float *p, const float *m,
                             const float *q) {
    product(d, dense(p, s->rank, s->rows), dense(q, s->rank, s->cols), transposed(m, s->rows, s->cols));
}

void cairn__low_rank_back(struct cairn_device *d, const struct cairn__low_rank *s, float *q, const float *m,
                          const float *p) {
    product(d, dense(q, s->rank, s->cols), dense(p, s->rank, s->rows), dense(m, s->rows, s->cols));
}

void cairn__low_rank_expand(struct cairn_device *d, const struct cairn__low_rank *s, float *m, const float *p,
                            const float *q) {
    product(d, dense(m, s->rows, s->cols), transposed(p, s->rank, s->rows), dense(q, s->rank, s->cols));
}

void cairn__low_rank_keep(struct cairn_device *d, float *kept, const float *x, int64_t rank, int64_t n,
                          const struct cairn__low_rank_room *room) {
    for (int64_t i = 0; i < rank; i++) {
        const struct cairn__view to = cairn__view_dense(kept + i * n, CAIRN_F32, 1, &n);
        const struct cairn__view column = cairn__view_dense((float *)(uintptr_t)(x + i * n), CAIRN_F32, 1, &n);
        take_norm(d, x + i * n, n, room->norms);
        d->math->map(d, CAIRN__MAP_WHERE, &to, (struct cairn__view[]){repeated(room->norms, n), column, to}, NULL);
    }
}
