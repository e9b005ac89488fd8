/* Attention by blocks: the T x S matrix of scores is never in memory, only ROWS x COLS of it at a time.
 *
 * Forward keeps, for each row, the maximum m of the scores so far and the sum l of e^(score - m), and rescales its sums
 * by e^(m old - m new) when the maximum rises. Backward recomputes the probabilities from the logarithm of the sum, and
 * uses that the sum over s of P dP is dy . y, one number a row.
 * Source: Dao et al., "FlashAttention", 2022, algorithms 1, 2 and 4.
 *
 * The engine computes the products. It multiplies bf16 directly if it can, with P and dS rounded to bf16; otherwise
 * halves are widened, block by block. Kernels process the rows: scores, probabilities and sums are R.
 *
 * Every (batch, head) is computed independently. With several threads each has a lane: its own engine and buffers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/cpu.h"
#include "core/parallel.h"
#include "core/status.h"
#include "device/cpu/blocks.h"
#include "device/cpu/cpu_math.h"
#include "device/cpu/pack.h"

enum { ROWS = 128, COLS = 128 }; /* scores of a block: 64 KiB in f32 */

/* A thread's own engine and buffers. */
struct lane {
    struct cairn__engine *engine;
    cairn_status status;           /* the first failure */
    char failure[128];             /* its message: the last error is the lane's thread's */
    char *scores, *slopes;         /* R [ROWS, COLS] */
    char *low_scores, *low_slopes; /* the same in bf16, if the engine multiplies bf16 */
    char *q, *k, *v, *dy;          /* blocks that had to be copied */
    char *y, *dq, *dk, *dv;        /* sums, where results are halves: R [ROWS, E], [T, D], [COLS, D], [COLS, E] */
    char *highest, *delta;         /* R [ROWS], [T] */
    double *total;                 /* [ROWS] */
    char *mask, *keep, *ones;      /* R [COLS] */
};

struct work {
    const struct cairn__attention *p;
    struct cairn__cpu *cpu;
    cairn_dtype r, type; /* R; what products are of */
    size_t r_nbytes;
    int64_t heads, t, s, d, e;
    struct lane *lanes;
    size_t grain; /* (batch, head)s of a lane */
};

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- views ---- */

static char *at(const struct cairn__view *v, int64_t b, int64_t h, int64_t row) {
    const int64_t offset = b * v->stride[0] + h * v->stride[1] + row * v->stride[2];
    return (char *)v->data + (size_t)offset * cairn_dtype_nbytes(v->dtype);
}

/* Rows of v as the engine takes them. */
static struct cairn__operand block(const struct work *w, const struct cairn__view *v, int64_t b, int64_t h, int64_t row,
                                   int64_t rows, void *room) {
    const struct cairn__matrix x = {v->dtype, rows, v->size[3], {at(v, b, h, row), v->stride[2], v->stride[3]}};
    return cairn__pack(w->cpu, &x, w->type, room);
}

static struct cairn__operand transposed(struct cairn__operand x) {
    return (struct cairn__operand){x.data, x.col, x.row};
}

/* Scores as an operand: of R, or rounded to what the engine multiplies. */
static struct cairn__operand as_operand(const struct work *w, const char *x, char *low, int64_t rows, int64_t cols) {
    if (w->type == w->r) return (struct cairn__operand){x, cols, 1};
    w->cpu->kernels->cast[w->r][w->type](low, x, (size_t)(rows * cols));
    return (struct cairn__operand){low, cols, 1};
}

/* A block of a result in R: where it is, and where its rows go. */
struct sum {
    char *data;
    int64_t row;
};

static struct sum sum_at(const struct work *w, const struct cairn__view *v, int64_t b, int64_t h, int64_t row,
                         char *room) {
    if (v->dtype == w->r) return (struct sum){at(v, b, h, row), v->stride[2]};
    return (struct sum){room, v->size[3]};
}

static void round_sum(const struct work *w, const struct cairn__view *v, int64_t b, int64_t h, int64_t row,
                      const struct sum *sum, int64_t rows) {
    char *to = at(v, b, h, row);
    if (to != sum->data)
        cairn__unpack(w->cpu, to, v->dtype, v->stride[2], (const float *)(void *)sum->data, rows, v->size[3]);
}

static void clear_rows(const struct cairn__view *v, int64_t b, int64_t h, int64_t row, int64_t rows) {
    for (int64_t i = 0; i < rows; i++)
        memset(at(v, b, h, row + i), 0, (size_t)v->size[3] * cairn_dtype_nbytes(v->dtype));
}

/* c[m, n] (+)= a b. The lane keeps its first failure and computes no further products. */
static void multiply(const struct work *w, struct lane *lane, int64_t m, int64_t n, int64_t k, struct cairn__operand a,
                     struct cairn__operand b, struct sum c, bool add) {
    if (m == 0 || n == 0 || lane->status != CAIRN_OK) return;
    if (k == 0) {
        for (int64_t i = 0; i < m && !add; i++)
            memset(c.data + (size_t)(i * c.row) * w->r_nbytes, 0, (size_t)n * w->r_nbytes);
        return;
    }
    if (w->r == CAIRN_F64) {
        cairn__product_f64(m, n, k, a, b, (double *)(void *)c.data, c.row, add);
        return;
    }
    struct cairn__product p = {.m = m, .n = n, .k = k, .a = a, .b = b, .in_type = w->type, .out_type = CAIRN_F32};
    p.add = add, p.c = c.data, p.c_row = c.row;
    (void)cairn__operand_settle(&p.a, m, k);
    (void)cairn__operand_settle(&p.b, k, n);
    lane->status = cairn__engine_product(lane->engine, &p);
    if (lane->status != CAIRN_OK) snprintf(lane->failure, sizeof(lane->failure), "%s", cairn_last_error());
}

/* ---- rows of scores; n of them are seen ---- */

static double get(const struct work *w, const char *x, int64_t i) {
    return w->r == CAIRN_F64 ? ((const double *)(const void *)x)[i] : (double)((const float *)(const void *)x)[i];
}

static void put(const struct work *w, char *x, int64_t i, double value) {
    if (w->r == CAIRN_F64) {
        ((double *)(void *)x)[i] = value;
    } else {
        ((float *)(void *)x)[i] = (float)value;
    }
}

static void map1(const struct work *w, enum cairn__map_fn f, char *x, size_t n, double p0, double p1) {
    const double numbers[CAIRN__MAP_NUMBERS] = {p0, p1};
    w->cpu->kernels->map[f][w->r](x, (const void *const[]){x}, n, numbers);
}

static void map2(const struct work *w, enum cairn__map_fn f, char *dst, const char *a, const char *b, size_t n,
                 double p0) {
    const double numbers[CAIRN__MAP_NUMBERS] = {p0, 0};
    w->cpu->kernels->map[f][w->r](dst, (const void *const[]){a, b}, n, numbers);
}

static const char *added_mask(const struct work *w, const struct lane *lane, const char *x, int64_t n) {
    const struct cairn__view *mask = &w->p->mask;
    const size_t nbytes = cairn_dtype_nbytes(mask->dtype);
    if (mask->stride[3] == 1 && mask->dtype == w->r) return x;
    if (mask->stride[3] == 1) {
        w->cpu->kernels->cast[mask->dtype][w->r](lane->mask, x, (size_t)n);
        return lane->mask;
    }
    for (int64_t j = 0; j < n; j++)
        put(w, lane->mask, j, cairn__block_get(mask->dtype, x + (size_t)(j * mask->stride[3]) * nbytes));
    return lane->mask;
}

/* row = scale * row + mask, from column s of row t on. */
static void finish_scores(const struct work *w, const struct lane *lane, char *row, int64_t b, int64_t h, int64_t t,
                          int64_t s, int64_t n) {
    const struct cairn__view *mask = &w->p->mask;
    const double scale = w->p->scale;
    const size_t offset = (size_t)(s * mask->stride[3]) * cairn_dtype_nbytes(mask->dtype);
    if (mask->data && mask->dtype != CAIRN_BOOL) {
        map2(w, CAIRN__MAP_ADD, row, added_mask(w, lane, at(mask, b, h, t) + offset, n), row, (size_t)n, scale);
        return;
    }
    map1(w, CAIRN__MAP_AFFINE, row, (size_t)n, scale, 0);
    const char *kept = mask->data ? at(mask, b, h, t) + offset : NULL;
    for (int64_t j = 0; j < n && kept; j++) {
        if (!kept[j * mask->stride[3]]) put(w, row, j, -INFINITY);
    }
}

/* The columns of a block that row t sees. */
static int64_t seen(const struct work *w, int64_t t, int64_t s, int64_t cols) {
    if (!w->p->causal) return cols;
    return t < s ? 0 : least(t - s + 1, cols);
}

/* x, n elements of row t from column s on, where they are kept, times 1 / (1 - p), and 0 elsewhere. */
static void drop(const struct work *w, char *dst, const char *x, int64_t b, int64_t h, int64_t t, int64_t s,
                 int64_t n) {
    const struct cairn__attention *p = w->p;
    const struct cairn__dropout how = {.seed = p->seed,
                                       .stream = p->stream,
                                       .first = (uint64_t)(((b * w->heads + h) * w->t + t) * w->s + s),
                                       .least = (uint32_t)ceil(ldexp(p->dropout, 24)),
                                       .scale = 1 / (1 - p->dropout)};
    w->cpu->kernels->dropout[w->r](dst, x, (size_t)n, &how);
}

/* ---- forward ---- */

/* One row of a block becomes probabilities, up to the sum, which is not known yet; y: what the row has summed so
 * far. */
static void forward_row(const struct work *w, const struct lane *lane, int64_t b, int64_t h, int64_t t, int64_t s,
                        int64_t cols, int64_t i, char *y) {
    char *row = lane->scores + (size_t)(i * cols) * w->r_nbytes;
    const int64_t n = seen(w, t, s, cols);
    const double before = s == 0 ? -INFINITY : get(w, lane->highest, i);
    memset(row + (size_t)n * w->r_nbytes, 0, (size_t)(cols - n) * w->r_nbytes);
    finish_scores(w, lane, row, b, h, t, s, n);
    double highest = w->cpu->kernels->greatest[w->r](row, (size_t)n);
    if (highest < before) highest = before;
    if (highest == -INFINITY) { /* nothing is seen yet */
        memset(row, 0, (size_t)n * w->r_nbytes);
    } else {
        map1(w, CAIRN__MAP_SUB_EXP, row, (size_t)n, highest, 0);
    }
    double total = w->cpu->kernels->fold[CAIRN__FOLD_SUM][w->r](row, (size_t)n, 0);
    if (s > 0) {
        const double down = highest == before ? 1 : exp(before - highest);
        total += down * lane->total[i];
        if (down != 1) map1(w, CAIRN__MAP_AFFINE, y, (size_t)w->e, down, 0);
    }
    put(w, lane->highest, i, highest);
    lane->total[i] = total;
    if (w->p->dropout > 0) drop(w, row, row, b, h, t, s, n);
}

static void forward_rows(const struct work *w, struct lane *lane, int64_t b, int64_t h, int64_t t0) {
    const struct cairn__attention *p = w->p;
    const int64_t rows = least(ROWS, w->t - t0);
    const struct cairn__operand q = block(w, &p->q, b, h, t0, rows, lane->q);
    const struct sum y = sum_at(w, &p->y, b, h, t0, lane->y);
    for (int64_t s0 = 0; s0 < w->s && !(p->causal && s0 >= t0 + rows); s0 += COLS) {
        const int64_t cols = least(COLS, w->s - s0);
        const struct cairn__operand k = block(w, &p->k, b, h, s0, cols, lane->k);
        const struct cairn__operand v = block(w, &p->v, b, h, s0, cols, lane->v);
        multiply(w, lane, rows, cols, w->d, q, transposed(k), (struct sum){lane->scores, cols}, false);
        for (int64_t i = 0; i < rows; i++)
            forward_row(w, lane, b, h, t0 + i, s0, cols, i, y.data + (size_t)(i * y.row) * w->r_nbytes);
        multiply(w, lane, rows, w->e, cols, as_operand(w, lane->scores, lane->low_scores, rows, cols), v, y, s0 > 0);
    }
    char *lse = (char *)p->lse;
    for (int64_t i = 0; i < rows; i++) {
        const double total = lane->total[i], highest = get(w, lane->highest, i);
        char *row = y.data + (size_t)(i * y.row) * w->r_nbytes;
        if (highest == -INFINITY) {
            memset(row, 0, (size_t)w->e * w->r_nbytes);
        } else {
            map1(w, CAIRN__MAP_AFFINE, row, (size_t)w->e, 1 / total, 0);
        }
        if (lse) put(w, lse, (b * w->heads + h) * w->t + t0 + i, highest == -INFINITY ? highest : highest + log(total));
    }
    round_sum(w, &p->y, b, h, t0, &y, rows);
}

static void forward_head(const struct work *w, struct lane *lane, int64_t b, int64_t h) {
    for (int64_t t0 = 0; t0 < w->t; t0 += ROWS) forward_rows(w, lane, b, h, t0);
}

static void forward_empty(const struct work *w, int64_t b, int64_t h) {
    clear_rows(&w->p->y, b, h, 0, w->t);
    for (int64_t t = 0; t < w->t && w->p->lse; t++) put(w, (char *)w->p->lse, (b * w->heads + h) * w->t + t, -INFINITY);
}

/* ---- backward ---- */

/* delta = dy . y of every row. */
static void make_delta(const struct work *w, const struct lane *lane, int64_t b, int64_t h) {
    const struct cairn__attention *p = w->p;
    const size_t nbytes = cairn_dtype_nbytes(p->y.dtype);
    struct cairn__block room_y, room_dy;
    for (int64_t t = 0; t < w->t; t++) {
        const char *y = at(&p->y, b, h, t), *dy = at(&p->dy, b, h, t);
        double sum = 0;
        for (int64_t i = 0; i < w->e; i += CAIRN__BLOCK) {
            const size_t n = (size_t)least(CAIRN__BLOCK, w->e - i), offset = (size_t)i * nbytes;
            sum +=
                w->cpu->kernels->dot[w->r](cairn__block_load(w->cpu, w->r, p->y.dtype, y + offset, n, &room_y),
                                           cairn__block_load(w->cpu, w->r, p->dy.dtype, dy + offset, n, &room_dy), n);
        }
        put(w, lane->delta, t, sum);
    }
}

/* Turns scores into the probabilities that forward multiplied with V, and slopes from dP into dS. */
static void backward_row(const struct work *w, const struct lane *lane, int64_t b, int64_t h, int64_t t, int64_t s,
                         int64_t cols, int64_t i) {
    char *row = lane->scores + (size_t)(i * cols) * w->r_nbytes;
    char *slope = lane->slopes + (size_t)(i * cols) * w->r_nbytes;
    const double lse = get(w, w->p->lse, (b * w->heads + h) * w->t + t), scale = w->p->scale;
    const int64_t n = lse == -INFINITY ? 0 : seen(w, t, s, cols);
    memset(row + (size_t)n * w->r_nbytes, 0, (size_t)(cols - n) * w->r_nbytes);
    memset(slope + (size_t)n * w->r_nbytes, 0, (size_t)(cols - n) * w->r_nbytes);
    if (n == 0) return;
    finish_scores(w, lane, row, b, h, t, s, n);
    map1(w, CAIRN__MAP_SUB_EXP, row, (size_t)n, lse, 0);
    if (w->p->dropout > 0) {
        drop(w, lane->keep, lane->ones, b, h, t, s, n);
        map2(w, CAIRN__MAP_MUL, slope, slope, lane->keep, (size_t)n, 0);
    }
    map1(w, CAIRN__MAP_AFFINE, slope, (size_t)n, scale, -scale * get(w, lane->delta, t));
    map2(w, CAIRN__MAP_MUL, slope, slope, row, (size_t)n, 0);
    if (w->p->dropout > 0) map2(w, CAIRN__MAP_MUL, row, row, lane->keep, (size_t)n, 0);
}

/* One block of scores: what it adds to dk, dv and to rows t0... of dq. */
static void backward_block(const struct work *w, struct lane *lane, int64_t b, int64_t h, int64_t t0, int64_t s0,
                           struct cairn__operand k, struct cairn__operand v, bool first) {
    const struct cairn__attention *p = w->p;
    const int64_t rows = least(ROWS, w->t - t0), cols = least(COLS, w->s - s0);
    const struct cairn__operand q = block(w, &p->q, b, h, t0, rows, lane->q);
    const struct cairn__operand dy = block(w, &p->dy, b, h, t0, rows, lane->dy);
    multiply(w, lane, rows, cols, w->d, q, transposed(k), (struct sum){lane->scores, cols}, false);
    multiply(w, lane, rows, cols, w->e, dy, transposed(v), (struct sum){lane->slopes, cols}, false);
    for (int64_t i = 0; i < rows; i++) backward_row(w, lane, b, h, t0 + i, s0, cols, i);
    if (p->dv.data) {
        const struct cairn__operand probabilities = as_operand(w, lane->scores, lane->low_scores, rows, cols);
        multiply(w, lane, cols, w->e, rows, transposed(probabilities), dy, sum_at(w, &p->dv, b, h, s0, lane->dv),
                 !first);
    }
    if (!p->dk.data && !p->dq.data) return;
    const struct cairn__operand slopes = as_operand(w, lane->slopes, lane->low_slopes, rows, cols);
    if (p->dk.data)
        multiply(w, lane, cols, w->d, rows, transposed(slopes), q, sum_at(w, &p->dk, b, h, s0, lane->dk), !first);
    if (p->dq.data) {
        char *room = lane->dq + (size_t)(t0 * w->d) * w->r_nbytes;
        multiply(w, lane, rows, w->d, cols, slopes, k, sum_at(w, &p->dq, b, h, t0, room), s0 > 0);
    }
}

/* A block of columns, with all the rows that see it. */
static void backward_columns(const struct work *w, struct lane *lane, int64_t b, int64_t h, int64_t s0) {
    const struct cairn__attention *p = w->p;
    const int64_t cols = least(COLS, w->s - s0), start = p->causal ? s0 / ROWS * ROWS : 0;
    const struct cairn__operand k = block(w, &p->k, b, h, s0, cols, lane->k);
    const struct cairn__operand v = block(w, &p->v, b, h, s0, cols, lane->v);
    for (int64_t t0 = start; t0 < w->t; t0 += ROWS) backward_block(w, lane, b, h, t0, s0, k, v, t0 == start);
    const struct cairn__view *views[] = {&p->dk, &p->dv};
    char *const rooms[] = {lane->dk, lane->dv};
    for (int i = 0; i < 2; i++) {
        if (!views[i]->data) continue;
        if (start >= w->t) {
            clear_rows(views[i], b, h, s0, cols);
        } else {
            const struct sum sum = sum_at(w, views[i], b, h, s0, rooms[i]);
            round_sum(w, views[i], b, h, s0, &sum, cols);
        }
    }
}

static void backward_head(const struct work *w, struct lane *lane, int64_t b, int64_t h) {
    const struct cairn__view *dq = &w->p->dq;
    make_delta(w, lane, b, h);
    for (int64_t s0 = 0; s0 < w->s; s0 += COLS) backward_columns(w, lane, b, h, s0);
    if (!dq->data) return;
    const struct sum sum = sum_at(w, dq, b, h, 0, lane->dq);
    round_sum(w, dq, b, h, 0, &sum, w->t);
}

static void backward_empty(const struct work *w, int64_t b, int64_t h) {
    const struct cairn__attention *p = w->p;
    if (p->dq.data) clear_rows(&p->dq, b, h, 0, w->t);
    if (p->dk.data) clear_rows(&p->dk, b, h, 0, w->s);
    if (p->dv.data) clear_rows(&p->dv, b, h, 0, w->s);
}

/* ---- lanes ---- */

/* The next n * nbytes of room, 64-byte aligned. */
static char *cut(char *room, size_t *used, int64_t n, size_t nbytes) {
    char *p = room ? room + *used : NULL;
    *used += ((size_t)n * nbytes + 63) / 64 * 64;
    return p;
}

/* Points the lane's buffers into room; returns the bytes they take. With room NULL it only counts. */
static size_t share_out(const struct work *w, struct lane *lane, char *room) {
    const size_t r = w->r_nbytes, type = cairn_dtype_nbytes(w->type);
    const int64_t rows = least(ROWS, w->t), cols = least(COLS, w->s);
    size_t used = 0;
    lane->scores = cut(room, &used, rows * cols, r);
    lane->slopes = cut(room, &used, rows * cols, r);
    lane->low_scores = cut(room, &used, rows * cols, type);
    lane->low_slopes = cut(room, &used, rows * cols, type);
    lane->q = cut(room, &used, rows * w->d, type);
    lane->k = cut(room, &used, cols * w->d, type);
    lane->v = cut(room, &used, cols * w->e, type);
    lane->dy = cut(room, &used, rows * w->e, type);
    lane->y = cut(room, &used, rows * w->e, r);
    lane->dk = cut(room, &used, cols * w->d, r);
    lane->dv = cut(room, &used, cols * w->e, r);
    lane->highest = cut(room, &used, rows, r);
    lane->total = (double *)(void *)cut(room, &used, rows, sizeof(double));
    lane->mask = cut(room, &used, cols, r);
    lane->keep = cut(room, &used, cols, r);
    lane->ones = cut(room, &used, cols, r);
    if (w->p->dy.data) { /* all rows of one head */
        lane->delta = cut(room, &used, w->t, r);
        lane->dq = cut(room, &used, w->t * w->d, r);
    }
    return used;
}

typedef void (*head_fn)(const struct work *w, struct lane *lane, int64_t b, int64_t h);

struct run {
    const struct work *work;
    head_fn head;
};

static void run_lane(void *ctx, size_t begin, size_t end) {
    const struct run *run = ctx;
    const struct work *w = run->work;
    struct lane *lane = &w->lanes[begin / w->grain];
    for (size_t i = begin; i < end; i++) run->head(w, lane, (int64_t)i / w->heads, (int64_t)i % w->heads);
}

/* Engines and room for `count` lanes. */
static cairn_status make_lanes(const struct work *w, struct lane *lanes, int count) {
    struct cairn__cpu *cpu = w->cpu;
    float *room = NULL;
    cairn_status st = CAIRN_OK;
    const size_t nbytes = share_out(w, &lanes[0], NULL);
    TRY(cairn__scratch_room(&cpu->attention, nbytes / sizeof(float) * (size_t)count, &room));
    for (int i = 0; i < count; i++) {
        if (i > 0 && !cpu->lanes[i]) TRY(cairn__engine_open(cairn__cpu_features(), &cpu->lanes[i]));
        lanes[i].engine = i > 0 ? cpu->lanes[i] : cpu->engine;
        lanes[i].status = CAIRN_OK;
        share_out(w, &lanes[i], (char *)room + (size_t)i * nbytes);
        for (int64_t j = 0; j < least(COLS, w->s); j++) put(w, lanes[i].ones, j, 1);
    }
out:
    return st;
}

/* Every head is computed as if it were alone, so the number of lanes does not change results. */
static cairn_status run_all(struct work *w, size_t heads, head_fn head) {
    struct lane lanes[CAIRN__LANES];
    cairn_status st = CAIRN_OK;
    const int count = (int)least(least(cairn__num_threads(), CAIRN__LANES), (int64_t)heads);
    TRY(make_lanes(w, lanes, count));
    w->lanes = lanes;
    w->grain = (heads + (size_t)count - 1) / (size_t)count;
    struct run run = {w, head};
    cairn__parallel_for(heads, w->grain, run_lane, &run);
    for (int i = 0; i < count; i++) {
        if (lanes[i].status != CAIRN_OK) return cairn__fail(lanes[i].status, "%s", lanes[i].failure);
    }
out:
    return st;
}

static void run(struct cairn_device *d, const struct cairn__attention *p, head_fn head,
                void (*empty)(const struct work *w, int64_t b, int64_t h)) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const cairn_dtype r = p->q.dtype == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32;
    const bool native = r == CAIRN_F64 || cairn__engine_takes(cpu->engine, p->q.dtype);
    struct work w = {.p = p,
                     .cpu = cpu,
                     .r = r,
                     .type = native ? p->q.dtype : CAIRN_F32,
                     .r_nbytes = cairn_dtype_nbytes(r),
                     .heads = p->q.size[1],
                     .t = p->q.size[2],
                     .s = p->k.size[2],
                     .d = p->q.size[3],
                     .e = p->v.size[3]};
    const size_t heads = (size_t)(p->q.size[0] * p->q.size[1]);
    if (heads == 0) return;
    if (w.t > 0 && w.s > 0) {
        (void)cairn__cpu_is_ok(w.cpu, run_all(&w, heads, head));
        return;
    }
    for (size_t i = 0; i < heads; i++) empty(&w, (int64_t)i / w.heads, (int64_t)i % w.heads);
}

void cairn__cpu_attention(struct cairn_device *d, const struct cairn__attention *p) {
    run(d, p, forward_head, forward_empty);
}

void cairn__cpu_attention_backward(struct cairn_device *d, const struct cairn__attention *p) {
    run(d, p, backward_head, backward_empty);
}
