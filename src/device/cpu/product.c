/* Products of views: batches, strides, shared operands, sums over a batch.
 *
 * Batch dimensions that are contiguous in memory are merged into one large product: as more rows of A that share B, or,
 * if they are summed, as a continuation of the sum over k. The rest of the batch is a loop around the engine, which
 * takes leading dimensions. A matrix whose type or strides the engine does not take is copied first, once for
 * consecutive products that share it. Summed dimensions are innermost, so that a sum is finished before the next one
 * begins. A sum of more than CAIRN__SUM_ROWS products is accumulated in f64, as sums down columns are. */
#include <string.h>

#include "core/status.h"
#include "device/cpu/cpu_math.h"
#include "device/cpu/pack.h"

/* ---- the plan: a product and the loops around it ---- */

enum { A, B, C, OPERANDS };

struct axis {
    int64_t size;
    int64_t stride[OPERANDS];
};

struct plan {
    int64_t m, n, k;
    struct cairn__matrix x[OPERANDS];
    int count;
    struct axis axes[CAIRN_MAX_DIMS]; /* of the batch; those that are summed come last */
    int64_t products, terms;          /* in all; of one sum */
};

static struct cairn__matrix matrix_of(const struct cairn__view *v) {
    const int d = v->ndim;
    return (
        struct cairn__matrix){v->dtype, v->size[d - 2], v->size[d - 1], {v->data, v->stride[d - 2], v->stride[d - 1]}};
}

/* Steps of `step` follow `size` steps of *stride; a single one may have any. */
static bool continues(int64_t step, int64_t *stride, int64_t size) {
    if (size == 1) *stride = step;
    return step == *stride * size;
}

static bool extends_m(struct plan *p, const int64_t step[OPERANDS]) {
    struct cairn__operand a = p->x[A].at, c = p->x[C].at;
    if (p->count > 0 || step[B] != 0 || step[C] == 0) return false;
    if (!continues(step[A], &a.row, p->m) || !continues(step[C], &c.row, p->m)) return false;
    p->x[A].at = a, p->x[C].at = c;
    return true;
}

static bool extends_k(struct plan *p, const int64_t step[OPERANDS]) {
    struct cairn__operand a = p->x[A].at, b = p->x[B].at;
    if (p->count > 0 || step[C] != 0) return false;
    if (!continues(step[A], &a.col, p->k) || !continues(step[B], &b.row, p->k)) return false;
    p->x[A].at = a, p->x[B].at = b;
    return true;
}

/* Sums innermost, the order otherwise kept. */
static void order_axes(struct plan *p) {
    struct axis sorted[CAIRN_MAX_DIMS];
    int count = 0;
    p->products = p->terms = 1;
    for (int summed = 0; summed < 2; summed++) {
        for (int i = p->count - 1; i >= 0; i--) { /* they were added from the innermost out */
            if ((p->axes[i].stride[C] == 0) != (summed == 1)) continue;
            p->products *= p->axes[i].size;
            if (summed) p->terms *= p->axes[i].size;
            sorted[count++] = p->axes[i];
        }
    }
    memcpy(p->axes, sorted, sizeof(sorted));
}

static struct plan make_plan(const struct cairn__view *c, const struct cairn__view *a, const struct cairn__view *b) {
    struct plan p = {.x = {matrix_of(a), matrix_of(b), matrix_of(c)}};
    p.m = p.x[C].rows, p.n = p.x[C].cols, p.k = p.x[A].cols;
    for (int d = c->ndim - 3; d >= 0; d--) { /* from the innermost out: into m, into k, or a loop */
        const struct axis axis = {c->size[d], {a->stride[d], b->stride[d], c->stride[d]}};
        if (axis.size == 1) continue;
        if (extends_m(&p, axis.stride)) {
            p.m *= axis.size;
        } else if (extends_k(&p, axis.stride)) {
            p.k *= axis.size;
        } else {
            p.axes[p.count++] = axis;
        }
    }
    p.x[A].rows = p.x[C].rows = p.m;
    p.x[A].cols = p.x[B].rows = p.k;
    (void)cairn__operand_settle(&p.x[C].at, p.m, p.n); /* rows of neighbours, as nn makes them */
    order_axes(&p);
    return p;
}

/* The i-th product's matrices. */
static void matrices_at(const struct plan *p, int64_t i, struct cairn__matrix out[OPERANDS]) {
    memcpy(out, p->x, sizeof(p->x));
    for (int d = p->count - 1; d >= 0; d--) {
        const int64_t index = i % p->axes[d].size;
        i /= p->axes[d].size;
        for (int o = 0; o < OPERANDS; o++) {
            out[o].at.data = (const char *)out[o].at.data +
                             (size_t)(index * p->axes[d].stride[o]) * cairn_dtype_nbytes(out[o].dtype);
        }
    }
}

/* ---- f32 and halves: the engine ---- */

struct operands {
    cairn_dtype type;    /* the engine's */
    float *room[2];      /* where copies go */
    const void *from[2]; /* what the copies are of */
    struct cairn__operand at[2];
};

/* The matrices of a product as the engine takes them. */
static void take(const struct cairn__cpu *cpu, const struct cairn__matrix x[OPERANDS], struct operands *o) {
    for (int i = A; i <= B; i++) {
        if (o->from[i] == x[i].at.data) continue;
        o->at[i] = cairn__pack(cpu, &x[i], o->type, o->room[i]);
        o->from[i] = x[i].at.data;
    }
}

static void *writable(const struct cairn__matrix *c) {
    return (void *)(uintptr_t)c->at.data;
}

/* Computes one term of a sum of many products, which are added up in part, CAIRN__SUM_ROWS at a time. */
static cairn_status one_term(struct cairn__cpu *cpu, const struct plan *p, struct operands *o, int64_t i) {
    const size_t n = (size_t)(p->m * p->n), floats = sizeof(double) / sizeof(float);
    const int64_t term = i % p->terms;
    cairn_status st = CAIRN_OK;
    struct cairn__matrix x[OPERANDS];
    float *room = NULL;
    matrices_at(p, i, x);
    take(cpu, x, o);
    TRY(cairn__scratch_room(&cpu->c, (floats + 1) * n, &room));
    double *total = (double *)(void *)room;
    float *part = room + floats * n;
    const struct cairn__product product = {.m = p->m,
                                           .n = p->n,
                                           .k = p->k,
                                           .a = o->at[A],
                                           .b = o->at[B],
                                           .in_type = o->type,
                                           .out_type = CAIRN_F32,
                                           .add = term % CAIRN__SUM_ROWS != 0,
                                           .c = part,
                                           .c_row = p->n};
    TRY(cairn__engine_product(cpu->engine, &product));
    const bool is_last = term == p->terms - 1;
    if (term == 0) memset(total, 0, n * sizeof(*total));
    if (is_last || term % CAIRN__SUM_ROWS == CAIRN__SUM_ROWS - 1) cpu->kernels->drain(total, part, n);
    if (!is_last) return CAIRN_OK;
    for (size_t k = 0; k < n; k++) part[k] = (float)total[k];
    cairn__unpack(cpu, writable(&x[C]), x[C].dtype, x[C].at.row, part, p->m, p->n);
out:
    return st;
}

/* Product i of the plan. C is written by the engine, or rounded after the last term of its sum. */
static cairn_status one_product(struct cairn__cpu *cpu, const struct plan *p, struct operands *o, int64_t i) {
    cairn_status st = CAIRN_OK;
    struct cairn__matrix x[OPERANDS];
    float *wide = NULL;
    matrices_at(p, i, x);
    take(cpu, x, o);
    struct cairn__product product = {.m = p->m, .n = p->n, .k = p->k, .a = o->at[A], .b = o->at[B]};
    product.in_type = o->type, product.out_type = CAIRN_F32;
    product.add = i % p->terms != 0;
    product.c = writable(&x[C]), product.c_row = x[C].at.row;
    if (p->terms == 1 && x[C].dtype == o->type && cairn__engine_finishes(cpu->engine, &product)) {
        product.out_type = o->type;
    } else if (x[C].dtype != CAIRN_F32) {
        TRY(cairn__scratch_room(&cpu->c, (size_t)(p->m * p->n), &wide));
        product.c = wide, product.c_row = p->n;
    }
    TRY(cairn__engine_product(cpu->engine, &product));
    if (wide && i % p->terms == p->terms - 1)
        cairn__unpack(cpu, writable(&x[C]), x[C].dtype, x[C].at.row, wide, p->m, p->n);
out:
    return st;
}

static cairn_status by_engine(struct cairn__cpu *cpu, const struct plan *p) {
    struct cairn__scratch *const scratch[] = {&cpu->a, &cpu->b};
    const bool native = cairn__engine_takes(cpu->engine, p->x[A].dtype), is_long = p->terms > CAIRN__SUM_ROWS;
    struct operands o = {.type = native ? p->x[A].dtype : CAIRN_F32};
    cairn_status st = CAIRN_OK;
    for (int i = A; i <= B; i++) {
        struct cairn__operand at = p->x[i].at;
        if (p->x[i].dtype == o.type && cairn__operand_settle(&at, p->x[i].rows, p->x[i].cols)) continue;
        TRY(cairn__scratch_room(scratch[i], (size_t)(p->x[i].rows * p->x[i].cols), &o.room[i]));
    }
    for (int64_t i = 0; i < p->products; i++) TRY((is_long ? one_term : one_product)(cpu, p, &o, i));
out:
    return st;
}

/* ---- the pass ---- */

/* A sum of nothing: every element of C, whose batch may be empty where it is summed. */
static void clear(const struct cairn__view *c) {
    struct cairn__view own = *c;
    for (int d = 0; d < own.ndim - 2; d++) {
        if (own.stride[d] == 0) own.size[d] = 1;
    }
    const size_t rows = cairn__view_numel(&own) / (size_t)own.size[own.ndim - 1], nbytes = cairn_dtype_nbytes(c->dtype);
    for (size_t r = 0; r < rows; r++) {
        size_t rest = r, offset = 0;
        for (int d = own.ndim - 2; d >= 0; d--) {
            offset += rest % (size_t)own.size[d] * (size_t)own.stride[d];
            rest /= (size_t)own.size[d];
        }
        memset((char *)own.data + offset * nbytes, 0, (size_t)own.size[own.ndim - 1] * nbytes);
    }
}

static bool is_empty(const struct cairn__view *c) {
    bool empty = c->size[c->ndim - 1] == 0 || c->size[c->ndim - 2] == 0;
    for (int d = 0; d < c->ndim - 2; d++) empty |= c->size[d] == 0 && c->stride[d] != 0;
    return empty;
}

void cairn__cpu_product(struct cairn_device *d, const struct cairn__view *c, const struct cairn__view *a,
                        const struct cairn__view *b) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    if (is_empty(c)) return;
    if (cairn__view_numel(c) == 0 || a->size[a->ndim - 1] == 0) {
        clear(c);
        return;
    }
    const struct plan p = make_plan(c, a, b);
    if (c->dtype != CAIRN_F64) {
        (void)cairn__cpu_is_ok(cpu, by_engine(cpu, &p));
        return;
    }
    for (int64_t i = 0; i < p.products; i++) { /* plain loops, k in order */
        struct cairn__matrix x[OPERANDS];
        matrices_at(&p, i, x);
        cairn__product_f64(p.m, p.n, p.k, x[A].at, x[B].at, writable(&x[C]), x[C].at.row, i % p.terms != 0);
    }
}
