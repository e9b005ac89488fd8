/* Attention: products of batches, and between them one kernel over rows of scores.
 *
 * Scratch holds one block of scores at a time: of as many heads as fit, or of some rows of one head. A block has all
 * columns, or with `causal` those that its rows attend to, so that every row is complete. Backward walks a head's
 * blocks from last to first: the last block has all columns, so it begins the sums of dk and dv that the others add to.
 *
 * cuBLASLt requires heads that are equally far apart. Others, such as those of a permuted [B, T, H, D], are copied. */
#include "device/cuda/attention.h"

#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "device/cuda/math_table.h"

enum {
    MAX_SCRATCH = 128 << 20, /* bytes of a block of scores, and of what is computed from them */
    ROWS = 128,              /* blocks with more rows have a multiple of this: whole tiles of products */
    ALIGN = 512,
};

/* An operand in the form that products require: heads, one per pair (b, h), `step` elements apart. */
struct heads {
    const struct cairn__view *view;
    bool copied; /* dense, in scratch */
    char *data;  /* NULL: not wanted */
    size_t nbytes;
    int64_t row, step;
};

enum { Q, K, V, DY, INPUTS, Y = INPUTS, DQ, DK, DV, OPERANDS };

struct work {
    struct cairn_device *d;
    const char *pass;
    const struct cairn__attention *p;
    bool backward;
    cairn_dtype type, r;
    size_t nbytes, r_nbytes; /* of their elements */
    int64_t heads, h, t, s, d_qk, d_v;
    int64_t block_heads, block_rows, stride; /* at most, of a block; stride: of a row of scores */
    bool slopes;                             /* dq or dk is wanted */
    struct heads x[OPERANDS];
    char *scores, *probabilities, *score_gradients, *score_slopes, *dk, *dv; /* scratch */
};

/* The scores that are processed at once. */
struct block {
    int64_t head, heads, row, rows, cols;
};

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t quotient_up(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

/* ---- operands ---- */

/* Whether cuBLASLt takes all heads in one call. Rows of one head of a result must not lie between those of another. */
static bool is_batch(const struct cairn__view *v, bool result) {
    const bool rows = v->size[2] <= 1 || v->stride[2] >= v->size[3], columns = v->size[3] <= 1 || v->stride[3] == 1;
    const int outer = v->size[1] > 1 ? 1 : 0;
    if (result && v->size[outer] > 1 && v->stride[outer] < v->size[2] * v->stride[2]) return false;
    return rows && columns && (v->size[0] <= 1 || v->size[1] <= 1 || v->stride[0] == v->size[1] * v->stride[1]);
}

static struct heads heads_of(const struct cairn__view *v, bool result) {
    struct heads x = {.view = v, .data = v->data, .nbytes = cairn_dtype_nbytes(v->dtype)};
    if (!v->data) return x;
    x.copied = !is_batch(v, result);
    x.row = x.copied || v->size[2] <= 1 ? v->size[3] : v->stride[2];
    x.step = x.copied ? v->size[2] * v->size[3] : v->size[1] > 1 ? v->stride[1] : v->size[0] > 1 ? v->stride[0] : 0;
    return x;
}

static char *at(const struct heads *x, int64_t head, int64_t row) {
    return x->data + (size_t)(head * x->step + row * x->row) * x->nbytes;
}

/* ---- scratch ---- */

static void divide(struct work *w) {
    const int64_t r = (int64_t)w->r_nbytes, own = w->type == w->r ? 0 : (int64_t)w->nbytes;
    /* Of a score, and of what is computed from it. */
    const int64_t score_nbytes = w->backward ? r + (int64_t)w->nbytes + (w->slopes ? r + own : 0) : r + own;
    const int64_t fit = most(MAX_SCRATCH / (w->stride * score_nbytes), 1); /* rows of scores */
    if (fit < w->t) {
        const int64_t whole = fit < ROWS ? fit : fit / ROWS * ROWS;
        w->block_heads = 1;
        w->block_rows = whole;
    } else {
        const int64_t blocks = quotient_up(w->heads, most(fit / most(w->t, 1), 1));
        w->block_heads = quotient_up(w->heads, blocks);
        w->block_rows = w->t;
    }
}

/* dk and dv of halves are added up in R over the blocks of a head. */
static bool needs_sums(const struct work *w) {
    return w->block_rows < w->t && w->type != w->r;
}

/* The next bytes of room. */
static char *cut(char *room, size_t *used, int64_t count, size_t nbytes) {
    char *p = room ? room + *used : NULL;
    *used += ((size_t)count * nbytes + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

/* Points all buffers into room; returns the bytes that they take. With room NULL it only counts. */
static size_t share_out(struct work *w, char *room) {
    const int64_t scores = w->block_heads * w->block_rows * w->stride;
    size_t used = 0;
    for (int i = 0; i < OPERANDS; i++) {
        struct heads *x = &w->x[i];
        if (x->data && x->copied) {
            char *copy = cut(room, &used, (int64_t)cairn__view_numel(x->view), x->nbytes);
            if (copy) x->data = copy;
        }
    }
    w->scores = cut(room, &used, scores, w->r_nbytes);
    w->probabilities = w->backward || w->type != w->r ? cut(room, &used, scores, w->nbytes) : w->scores;
    if (w->slopes) {
        w->score_gradients = cut(room, &used, scores, w->r_nbytes);
        w->score_slopes = w->type != w->r ? cut(room, &used, scores, w->nbytes) : w->score_gradients;
    }
    if (w->backward && needs_sums(w)) {
        w->dk = cut(room, &used, w->s * w->d_qk, w->r_nbytes);
        w->dv = cut(room, &used, w->s * w->d_v, w->r_nbytes);
    }
    return used;
}

/* ---- what is queued ---- */

/* Everything except m, n and k, and whether operands are transposed. */
static struct cairn__batch batch_of(const struct work *w, const struct block *b) {
    return (struct cairn__batch){.batch = b->heads,
                                 .in_type = w->type,
                                 .out_type = w->type,
                                 .alpha = 1,
                                 .step_a = b->rows * w->stride,
                                 .lda = w->stride};
}

/* Whether x[count] can be copied together with those before it: it has the same shape, and source and copy are as far
 * from the last operand's as those are from the one before. q, k and v that are adjacent can. */
static bool goes_on(const struct heads *x, int count) {
    const struct heads *last = &x[count - 1], *next = &x[count];
    const struct cairn__view *a = last->view, *b = next->view;
    if (!next->copied || memcmp(a->size, b->size, sizeof(a->size)) != 0 ||
        memcmp(a->stride, b->stride, sizeof(a->stride)) != 0 || (char *)b->data < (char *)a->data)
        return false;
    return count == 1 || ((char *)b->data - (char *)a->data == (char *)x[1].view->data - (char *)x[0].view->data &&
                          next->data - last->data == x[1].data - x[0].data);
}

/* One view of `count` operands: the first is `first`, the others follow at distances of nbytes. */
static struct cairn__view joined(const struct cairn__view *first, int count, ptrdiff_t nbytes) {
    struct cairn__view all = *first;
    if (count == 1) return all;
    memmove(all.size + 1, all.size, (size_t)all.ndim * sizeof(all.size[0]));
    memmove(all.stride + 1, all.stride, (size_t)all.ndim * sizeof(all.stride[0]));
    all.size[0] = count;
    all.stride[0] = nbytes / (ptrdiff_t)cairn_dtype_nbytes(all.dtype);
    all.ndim++;
    return all;
}

/* Copies those of the operands [from, to) that have a copy into it, or back. */
static void copy_heads(const struct work *w, int from, int to, bool into) {
    for (int i = from, count = 1; i < to; i += count, count = 1) {
        const struct heads *x = &w->x[i];
        if (!x->copied) continue;
        while (i + count < to && goes_on(x, count)) count++;
        const struct cairn__view dense = cairn__view_dense(x->data, x->view->dtype, x->view->ndim, x->view->size);
        const struct cairn__view copy = joined(&dense, count, count > 1 ? x[1].data - x[0].data : 0);
        const struct cairn__view view =
            joined(x->view, count, count > 1 ? (char *)x[1].view->data - (char *)x[0].view->data : 0);
        cairn__cuda_map(w->d, CAIRN__MAP_COPY, into ? &copy : &view, into ? &view : &copy, NULL);
    }
}

static void multiply(const struct work *w, const struct cairn__batch *b) {
    if (b->batch == 0 || b->m == 0 || b->n == 0) return;
    cairn__cuda_kept(w->d, cairn__cuda_multiply(w->d, b));
}

static void set_b(struct cairn__batch *batch, const struct heads *x, int64_t head, int64_t row) {
    batch->b = at(x, head, row);
    batch->ldb = x->row;
    batch->step_b = x->step;
}

static void set_c(struct cairn__batch *batch, const struct heads *x, int64_t head, int64_t row) {
    batch->c = at(x, head, row);
    batch->ldc = x->row;
    batch->step_c = x->step;
}

/* to = rows of operand a times those of operand b: the products of every row of the block with every column. */
static void multiply_rows(const struct work *w, const struct block *b, char *to, int rows, int columns) {
    struct cairn__batch batch = batch_of(w, b);
    const struct heads *x = &w->x[rows];
    batch.m = b->rows, batch.n = b->cols, batch.k = x->view->size[3];
    batch.trans_b = true;
    batch.out_type = w->r;
    batch.a = at(x, b->head, b->row), batch.lda = x->row, batch.step_a = x->step;
    set_b(&batch, &w->x[columns], b->head, 0);
    batch.c = to, batch.ldc = w->stride, batch.step_c = b->rows * w->stride;
    multiply(w, &batch);
}

/* Computes rows of a result: weights [rows, cols] of the block times columns of an input. */
static void multiply_weights(const struct work *w, const struct block *b, int to, const char *weights, int from) {
    struct cairn__batch batch = batch_of(w, b);
    batch.m = b->rows, batch.n = w->x[to].view->size[3], batch.k = b->cols;
    batch.a = weights;
    set_b(&batch, &w->x[from], b->head, 0);
    set_c(&batch, &w->x[to], b->head, b->row);
    multiply(w, &batch);
}

/* Adds the contributions of the block's rows to columns of a gradient. sum: the gradient's sum in R, or NULL. */
static void add_columns(const struct work *w, const struct block *b, int to, char *sum, const char *weights, int from) {
    struct cairn__batch batch = batch_of(w, b);
    batch.m = b->cols, batch.n = w->x[to].view->size[3], batch.k = b->rows;
    batch.trans_a = true;
    batch.a = weights;
    batch.accumulate = b->row + b->rows < w->t;
    set_b(&batch, &w->x[from], b->head, b->row);
    set_c(&batch, &w->x[to], b->head, 0);
    if (sum) batch.c = sum, batch.ldc = batch.n, batch.out_type = w->r;
    multiply(w, &batch);
}

static struct cairn__attention_rows rows_of(const struct work *w, const struct block *b) {
    const struct cairn__attention *p = w->p;
    struct cairn__attention_rows rows = {.first_head = b->head,
                                         .heads = b->heads,
                                         .first_row = b->row,
                                         .head_rows = b->rows,
                                         .n = b->cols,
                                         .stride = w->stride,
                                         .h = w->h,
                                         .t = w->t,
                                         .s = w->s,
                                         .mask = p->mask,
                                         .lse = p->lse,
                                         .scale = p->scale,
                                         .causal = p->causal,
                                         .kept = 1,
                                         .random = cairn__cuda_random(w->d, p->seed, p->stream),
                                         .scores = w->scores,
                                         .probabilities = w->probabilities};
    if (p->dropout > 0) {
        rows.dropped = (uint32_t)ceil(ldexp(p->dropout, 24));
        rows.kept = 1 / (1 - p->dropout);
    }
    return rows;
}

/* ---- the passes ---- */

static void forward_block(const struct work *w, const struct block *b) {
    const struct cairn__attention_rows rows = rows_of(w, b);
    multiply_rows(w, b, w->scores, Q, K);
    if (b->rows > 0)
        cairn__cuda_queued(w->d, w->pass, cairn__launch_attention(cairn__cuda_enter(w->d)->stream, w->type, &rows));
    multiply_weights(w, b, Y, w->probabilities, V);
}

static void backward_block(const struct work *w, const struct block *b) {
    struct cairn__attention_rows rows = rows_of(w, b);
    if (!w->x[DV].data) rows.probabilities = NULL;
    if (w->slopes) rows.slopes = w->score_gradients, rows.score_slopes = w->score_slopes;
    multiply_rows(w, b, w->scores, Q, K);
    if (w->slopes) multiply_rows(w, b, w->score_gradients, DY, V);
    if (b->rows > 0 && b->cols > 0)
        cairn__cuda_queued(w->d, w->pass,
                           cairn__launch_attention_backward(cairn__cuda_enter(w->d)->stream, w->type, &rows));
    if (w->x[DV].data) add_columns(w, b, DV, w->dv, w->probabilities, DY);
    if (w->x[DK].data) add_columns(w, b, DK, w->dk, w->score_slopes, Q);
    if (w->x[DQ].data) multiply_weights(w, b, DQ, w->score_slopes, K);
}

/* Rounds a head's gradient from its sum over the blocks. */
static void round_sum(const struct work *w, int64_t head, int to, char *sum) {
    const struct heads *x = &w->x[to];
    if (!x->data) return;
    const int64_t size[] = {w->s, x->view->size[3]};
    struct cairn__view from = cairn__view_dense(sum, w->r, 2, size);
    struct cairn__view rounded = cairn__view_dense(at(x, head, 0), w->type, 2, size);
    rounded.stride[0] = x->row;
    cairn__cuda_map(w->d, CAIRN__MAP_COPY, &rounded, &from, NULL);
}

static void run_heads(const struct work *w, int64_t head, int64_t heads) {
    int64_t end = w->t;
    do {
        const int64_t rows = end == 0 ? 0 : (end - 1) % most(w->block_rows, 1) + 1;
        struct block b = {.head = head, .heads = heads, .row = end - rows, .rows = rows, .cols = w->s};
        if (w->p->causal && end < w->t) b.cols = least(w->s, end);
        if (w->backward) {
            backward_block(w, &b);
        } else {
            forward_block(w, &b);
        }
        end = b.row;
    } while (end > 0);
    if (w->backward && needs_sums(w)) {
        round_sum(w, head, DK, w->dk);
        round_sum(w, head, DV, w->dv);
    }
}

static const char *complaint_about(const struct work *w) {
    const cairn_dtype t = w->type, mask = w->p->mask.dtype;
    if (t != CAIRN_F32 && t != CAIRN_F16 && t != CAIRN_BF16 && t != CAIRN_F64) return "the type is not a float";
    if (w->p->mask.data && mask != t && mask != CAIRN_BOOL) return "the mask is neither bool nor of the type of q";
    if (w->heads > INT32_MAX || w->t > INT32_MAX || w->s > INT32_MAX - CAIRN__ATTENTION_PACK)
        return "there are 2^31 heads, rows or columns, or more";
    return NULL;
}

static struct work work_of(struct cairn_device *d, const char *pass, const struct cairn__attention *p, bool backward) {
    const cairn_dtype type = p->q.dtype, r = type == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32;
    struct work w = {.d = d, .pass = pass, .p = p, .backward = backward, .type = type, .r = r};
    w.nbytes = cairn_dtype_nbytes(type), w.r_nbytes = cairn_dtype_nbytes(r);
    w.h = p->q.size[1], w.heads = p->q.size[0] * w.h;
    w.t = p->q.size[2], w.s = p->k.size[2], w.d_qk = p->q.size[3], w.d_v = p->v.size[3];
    w.stride = most(quotient_up(w.s, CAIRN__ATTENTION_PACK), 1) * CAIRN__ATTENTION_PACK;
    w.slopes = backward && (p->dq.data || p->dk.data);
    w.x[Q] = heads_of(&p->q, false), w.x[K] = heads_of(&p->k, false), w.x[V] = heads_of(&p->v, false);
    if (!backward) {
        w.x[Y] = heads_of(&p->y, true);
    } else {
        w.x[DY] = heads_of(&p->dy, false);
        w.x[DQ] = heads_of(&p->dq, true), w.x[DK] = heads_of(&p->dk, true), w.x[DV] = heads_of(&p->dv, true);
    }
    return w;
}

static void run(struct cairn_device *d, const char *pass, const struct cairn__attention *p, bool backward) {
    struct work w = work_of(d, pass, p, backward);
    if (cairn__cuda_refused(d, pass, complaint_about(&w)) || w.heads == 0) return;
    divide(&w);
    char *room = cairn__cuda_room(d, CAIRN__ROOM_A, share_out(&w, NULL));
    if (!room) return;
    (void)share_out(&w, room);
    copy_heads(&w, 0, INPUTS, true);
    for (int64_t head = 0; head < w.heads; head += w.block_heads)
        run_heads(&w, head, least(w.block_heads, w.heads - head));
    copy_heads(&w, INPUTS, OPERANDS, false);
}

void cairn__cuda_attention(struct cairn_device *d, const struct cairn__attention *attention) {
    run(d, "attention", attention, false);
}

void cairn__cuda_attention_backward(struct cairn_device *d, const struct cairn__attention *attention) {
    run(d, "attention_backward", attention, true);
}
