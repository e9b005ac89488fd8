/* Products of batches and of views, by cuBLASLt. */
#include <cuda_runtime_api.h>

#include "core/dtype.h"
#include "core/status.h"
#include "device/cuda/axes.h"
#include "device/cuda/math_table.h"

enum { MAX_BATCH = 1 << 15 }; /* of one call: kernels may have the batch in a grid's z, which ends at 65535 */

static int64_t step_nbytes(const struct cairn__batch *b) {
    return b->step_c * (int64_t)cairn_dtype_nbytes(b->out_type);
}

/* Called if k = 0: C becomes zeros. */
static cairn_status clear(struct cairn_device *d, const struct cairn__batch *b) {
    const struct cairn__cuda *c = cairn__cuda_enter(d);
    const size_t nbytes = cairn_dtype_nbytes(b->out_type), row = (size_t)b->n * nbytes;
    const bool is_one = b->batch == 1 || b->step_c == b->m * b->ldc; /* all rows are equally far apart */
    const int64_t matrices = is_one ? 1 : b->batch, rows = is_one ? b->batch * b->m : b->m;
    cairn_status st = CAIRN_OK;
    for (int64_t i = 0; i < matrices; i++) {
        TRY_CUDA(c, "clearing a product",
                 cudaMemset2DAsync((char *)b->c + i * step_nbytes(b), (size_t)b->ldc * nbytes, 0, row, (size_t)rows,
                                   c->stream));
    }
out:
    return st;
}

cairn_status cairn__cuda_multiply(struct cairn_device *d, const struct cairn__batch *b) {
    const size_t nbytes = cairn_dtype_nbytes(b->in_type);
    cairn_status st = CAIRN_OK;
    if (b->k == 0) return b->accumulate ? CAIRN_OK : clear(d, b);
    for (int64_t i = 0; i < b->batch; i += MAX_BATCH) {
        struct cairn__batch part = *b;
        part.batch = b->batch - i < MAX_BATCH ? b->batch - i : MAX_BATCH;
        part.a = (const char *)b->a + (size_t)(i * b->step_a) * nbytes;
        part.b = (const char *)b->b + (size_t)(i * b->step_b) * nbytes;
        part.c = (char *)b->c + i * step_nbytes(b);
        TRY(cairn__products_batch(d, &part));
    }
out:
    return st;
}

/* ---- the plan of a product of views: one product, and the loops around it ---- */

enum { A, B, C, OPERANDS };

struct matrix {
    cairn_dtype type;
    void *data;
    int64_t rows, cols, row, col; /* strides */
};

struct axis {
    int64_t size, stride[OPERANDS];
};

struct plan {
    int64_t m, n, k;
    struct matrix x[OPERANDS];
    int count;
    struct axis axes[CAIRN_MAX_DIMS]; /* of the batch, outermost first; axes with a stride of 0 in C are summed */
};

enum {
    MAX_TERMS = 4,          /* of a sum, added one after another; sums with more are copied into one product */
    MAX_COPIED = 256 << 20, /* bytes of those copies, at most */
};

static struct matrix matrix_of(const struct cairn__view *v) {
    const int d = v->ndim;
    return (struct matrix){v->dtype, v->data, v->size[d - 2], v->size[d - 1], v->stride[d - 2], v->stride[d - 1]};
}

static bool is_rows(const struct matrix *x) {
    return (x->cols == 1 || x->col == 1) && (x->rows == 1 || x->row >= x->cols);
}

static bool is_columns(const struct matrix *x) {
    return (x->rows == 1 || x->row == 1) && (x->cols == 1 || x->col >= x->rows);
}

/* Whether elements of rows or of columns are adjacent, as cuBLASLt requires. */
static bool is_legal(const struct matrix *x) {
    return is_rows(x) || is_columns(x);
}

/* Whether steps of `step` continue `size` steps of *stride. A single step may have any stride. */
static bool continues(int64_t step, int64_t *stride, int64_t size) {
    if (size == 1) *stride = step;
    return step == *stride * size;
}

/* Makes the axis part of the rows of A and C, which share B, or of the sum over k. Returns false if it cannot be. */
static bool extend(struct plan *p, const struct axis *axis) {
    struct plan wider = *p;
    struct matrix *a = &wider.x[A], *b = &wider.x[B], *c = &wider.x[C];
    const int64_t *step = axis->stride;
    if (step[C] == 0) {
        if (!continues(step[A], &a->col, p->k) || !continues(step[B], &b->row, p->k)) return false;
        wider.k = a->cols = b->rows = p->k * axis->size;
    } else {
        if (step[B] != 0 || !continues(step[A], &a->row, p->m) || !continues(step[C], &c->row, p->m)) return false;
        wider.m = a->rows = c->rows = p->m * axis->size;
    }
    for (int o = A; o < OPERANDS; o++) {
        if (is_legal(&p->x[o]) && !is_legal(&wider.x[o])) return false;
    }
    *p = wider;
    return true;
}

static void extend_by_all(struct plan *p) {
    for (int i = p->count - 1; i >= 0; i--) {
        const struct axis axis = p->axes[i];
        if (!extend(p, &axis)) continue;
        p->count--;
        for (int j = i; j < p->count; j++) p->axes[j] = p->axes[j + 1];
    }
}

static struct plan make_plan(const struct cairn__view *c, const struct cairn__view *a, const struct cairn__view *b) {
    const struct cairn__view *views[OPERANDS] = {[A] = a, [B] = b, [C] = c};
    struct plan p = {.x = {matrix_of(a), matrix_of(b), matrix_of(c)}};
    struct cairn__axes axes;
    p.m = p.x[C].rows, p.n = p.x[C].cols, p.k = p.x[A].cols;
    cairn__axes_of_some((const struct cairn__view *const *)views, OPERANDS, (1u << (c->ndim - 2)) - 1, &axes);
    p.count = axes.ndim;
    for (int i = 0; i < axes.ndim; i++) {
        p.axes[i].size = axes.size[i];
        for (int o = A; o < OPERANDS; o++) p.axes[i].stride[o] = axes.stride[o][i];
    }
    extend_by_all(&p);
    return p;
}

static int64_t terms_of(const struct plan *p) {
    int64_t terms = 1;
    for (int i = 0; i < p->count; i++) terms *= p->axes[i].stride[C] == 0 ? p->axes[i].size : 1;
    return terms;
}

/* ---- copies ---- */

/* The axes of a dense copy, in its order. */
struct copy {
    struct cairn__view from;
    int axis[CAIRN_MAX_DIMS]; /* of the plan; -1 = the matrix's rows, -2 = its columns */
};

static void add_axis(struct copy *copy, int axis, int64_t size, int64_t stride) {
    copy->axis[copy->from.ndim] = axis;
    copy->from.size[copy->from.ndim] = size;
    copy->from.stride[copy->from.ndim++] = stride;
}

/* sums: the summed axes are placed next to k, outside it, so that they continue it. */
static struct copy copy_of(const struct plan *p, int o, bool sums) {
    const struct matrix *x = &p->x[o];
    const bool by_rows = sums ? o != A : x->col <= x->row;
    struct copy copy = {.from = {.data = x->data, .dtype = x->type}};
    for (int summed = 0; summed < 2; summed++) {
        for (int i = 0; i < p->count; i++) {
            const struct axis *axis = &p->axes[i];
            if ((axis->stride[C] == 0) != (summed == 1) || (axis->stride[o] == 0 && !(summed && sums))) continue;
            add_axis(&copy, i, axis->size, axis->stride[o]);
        }
    }
    if (!by_rows) add_axis(&copy, -2, x->cols, x->col);
    add_axis(&copy, -1, x->rows, x->row);
    if (by_rows) add_axis(&copy, -2, x->cols, x->col);
    return copy;
}

/* Replaces an operand by its copy. Returns false if there is no memory for it. */
static bool copy_operand(struct cairn_device *d, struct plan *p, int o, bool sums) {
    const struct copy copy = copy_of(p, o, sums);
    struct cairn__view to = cairn__view_dense(NULL, copy.from.dtype, copy.from.ndim, copy.from.size);
    to.data = cairn__cuda_room(d, o == A ? CAIRN__ROOM_A : CAIRN__ROOM_B,
                               cairn__view_numel(&to) * cairn_dtype_nbytes(to.dtype));
    if (!to.data) return false;
    cairn__cuda_map(d, CAIRN__MAP_COPY, &to, &copy.from, NULL);
    p->x[o].data = to.data;
    for (int i = 0; i < to.ndim; i++) {
        *(copy.axis[i] == -1   ? &p->x[o].row
          : copy.axis[i] == -2 ? &p->x[o].col
                               : &p->axes[copy.axis[i]].stride[o]) = to.stride[i];
    }
    return true;
}

static bool continues_k(const struct plan *p, int o) {
    int64_t stride = o == A ? p->x[A].col : p->x[B].row, size = p->k;
    for (int i = p->count - 1; i >= 0; i--) {
        if (p->axes[i].stride[C] != 0) continue;
        if (!continues(p->axes[i].stride[o], &stride, size)) return false;
        size *= p->axes[i].size;
    }
    return is_legal(&p->x[o]);
}

/* Makes sums of many terms part of k, by copying the operands that do not have these axes next to k. */
static bool fold_sums(struct cairn_device *d, struct plan *p) {
    size_t nbytes = 0;
    if (terms_of(p) <= MAX_TERMS) return true;
    for (int o = A; o <= B; o++) {
        const struct copy copy = copy_of(p, o, true);
        if (!continues_k(p, o)) nbytes += cairn__view_numel(&copy.from) * cairn_dtype_nbytes(copy.from.dtype);
    }
    if (nbytes > MAX_COPIED) return true;
    for (int o = A; o <= B; o++) {
        if (!continues_k(p, o) && !copy_operand(d, p, o, true)) return false;
    }
    return true;
}

static bool make_legal(struct cairn_device *d, struct plan *p) {
    for (int o = A; o <= B; o++) {
        if (!is_legal(&p->x[o]) && !copy_operand(d, p, o, false)) return false;
    }
    extend_by_all(p);
    return true;
}

/* ---- running it ---- */

static int64_t leading(const struct matrix *x, bool by_rows) {
    if (by_rows) return x->rows == 1 ? x->cols : x->row;
    return x->cols == 1 ? x->rows : x->col;
}

/* The longest axis that is not summed, over which cuBLASLt loops; -1 = none. */
static int batch_axis(const struct plan *p) {
    int best = -1;
    for (int i = 0; i < p->count; i++) {
        if (p->axes[i].stride[C] != 0 && (best < 0 || p->axes[i].size > p->axes[best].size)) best = i;
    }
    return best;
}

static struct cairn__batch first_batch(const struct plan *p, int axis) {
    const struct matrix *a = &p->x[A], *b = &p->x[B], *c = &p->x[C];
    const struct axis none = {.size = 1}, *walked = axis < 0 ? &none : &p->axes[axis];
    return (struct cairn__batch){
        .batch = walked->size,
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .trans_a = !is_rows(a),
        .trans_b = !is_rows(b),
        .in_type = a->type,
        .out_type = c->type,
        .a = a->data,
        .b = b->data,
        .c = c->data,
        .lda = leading(a, is_rows(a)),
        .ldb = leading(b, is_rows(b)),
        .ldc = leading(c, true),
        .step_a = walked->stride[A],
        .step_b = walked->stride[B],
        .step_c = walked->stride[C],
        .alpha = 1,
    };
}

/* Offset of operand o, in bytes, at step i of all loops except that over `axis`; *is_first: it is the first term of its
 * sum. */
static size_t offset_at(const struct plan *p, int axis, int o, int64_t i, bool *is_first) {
    int64_t offset = 0;
    *is_first = true;
    for (int d = p->count - 1; d >= 0; d--) {
        if (d == axis) continue;
        const int64_t index = i % p->axes[d].size;
        i /= p->axes[d].size;
        offset += index * p->axes[d].stride[o];
        if (p->axes[d].stride[C] == 0 && index > 0) *is_first = false;
    }
    return (size_t)offset * cairn_dtype_nbytes(p->x[o].type);
}

/* The terms of each result are added in order, wherever the summed axes are among the others. */
static cairn_status run(struct cairn_device *d, const struct plan *p) {
    const int axis = batch_axis(p);
    const struct cairn__batch first = first_batch(p, axis);
    cairn_status st = CAIRN_OK;
    int64_t steps = 1;
    for (int i = 0; i < p->count; i++) steps *= i == axis ? 1 : p->axes[i].size;
    for (int64_t i = 0; i < steps; i++) {
        struct cairn__batch b = first;
        bool is_first = true;
        b.a = (const char *)first.a + offset_at(p, axis, A, i, &is_first);
        b.b = (const char *)first.b + offset_at(p, axis, B, i, &is_first);
        b.c = (char *)first.c + offset_at(p, axis, C, i, &is_first);
        b.accumulate = !is_first;
        TRY(cairn__cuda_multiply(d, &b));
    }
out:
    return st;
}

/* Sums of several terms of halves are added up in f32 in scratch, and rounded at the end. */
static void run_wide(struct cairn_device *d, struct plan *p) {
    struct copy copy = copy_of(p, C, false);
    struct cairn__view wide = cairn__view_dense(NULL, CAIRN_F32, copy.from.ndim, copy.from.size);
    wide.data = cairn__cuda_room(d, CAIRN__ROOM_C, cairn__view_numel(&wide) * sizeof(float));
    if (!wide.data) return;
    p->x[C].data = wide.data;
    p->x[C].type = CAIRN_F32;
    p->x[C].row = p->n;
    p->x[C].col = 1;
    for (int i = 0; i < wide.ndim - 2; i++) p->axes[copy.axis[i]].stride[C] = wide.stride[i];
    cairn__cuda_kept(d, run(d, p));
    cairn__cuda_map(d, CAIRN__MAP_COPY, &copy.from, &wide, NULL);
}

/* ---- the pass ---- */

/* A sum of nothing: every element of C, whose batch may be empty where it is summed. */
static cairn_status clear_view(struct cairn_device *d, const struct cairn__view *c) {
    struct cairn__view own = *c;
    for (int i = 0; i < own.ndim - 2; i++) {
        if (own.stride[i] == 0) own.size[i] = 1;
    }
    struct plan p = make_plan(&own, &own, &own);
    p.k = 0;
    return run(d, &p);
}

static bool is_empty(const struct cairn__view *c) {
    bool empty = c->size[c->ndim - 1] == 0 || c->size[c->ndim - 2] == 0;
    for (int d = 0; d < c->ndim - 2; d++) empty |= c->size[d] == 0 && c->stride[d] != 0;
    return empty;
}

void cairn__cuda_product(struct cairn_device *d, const struct cairn__view *c, const struct cairn__view *a,
                         const struct cairn__view *b) {
    if (is_empty(c)) return;
    if (cairn__view_numel(c) == 0 || a->size[a->ndim - 1] == 0) {
        cairn__cuda_kept(d, clear_view(d, c));
        return;
    }
    struct plan p = make_plan(c, a, b);
    if (cairn__cuda_refused(d, "product", is_rows(&p.x[C]) ? NULL : "the result's rows are not of neighbours")) return;
    if (!fold_sums(d, &p) || !make_legal(d, &p)) return;
    if (terms_of(&p) > 1 && cairn__is_half(p.x[C].type)) {
        run_wide(d, &p);
    } else {
        cairn__cuda_kept(d, run(d, &p));
    }
}
