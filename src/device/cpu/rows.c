/* Passes over rows: softmax, rows by index, dropout.
 *
 * Short rows are widened, turned into probabilities and rounded together, several in a block. A long row is read twice,
 * block by block: once for its maximum and sum, once to compute the result from them. */
#include "device/cpu/rows.h"

#include <math.h>
#include <string.h>

#include "core/parallel.h"
#include "core/status.h"

/* ---- shared ---- */

cairn_status cairn__cpu_room(struct cairn__scratch *s, cairn_dtype r, size_t n, void **out) {
    float *room = NULL;
    cairn_status st = cairn__scratch_room(s, r == CAIRN_F64 ? 2 * n : n, &room);
    if (st == CAIRN_OK) *out = room;
    return st;
}

cairn_status cairn__cpu_as_r(struct cairn__cpu *cpu, struct cairn__scratch *s, cairn_dtype t, const void *x, size_t n,
                             const void **out) {
    const cairn_dtype r = cairn__r_of(t);
    void *room = NULL;
    *out = x;
    if (!x || t == r) return CAIRN_OK;
    cairn_status st = cairn__cpu_room(s, r, n, &room);
    if (st != CAIRN_OK) return st;
    cpu->kernels->cast[t][r](room, x, n);
    *out = room;
    return CAIRN_OK;
}

static size_t block_at(size_t i, size_t n) {
    return n - i < CAIRN__BLOCK ? n - i : CAIRN__BLOCK;
}

void cairn__row_exponents(const struct cairn__cpu *cpu, cairn_dtype t, const void *x, size_t n, double *greatest,
                          double *sum) {
    const struct cairn__kernels *k = cpu->kernels;
    const cairn_dtype r = cairn__r_of(t);
    struct cairn__block wide, e;
    double m = -INFINITY, s = 0;
    for (size_t i = 0; i < n; i += CAIRN__BLOCK) {
        const size_t count = block_at(i, n);
        const void *v = cairn__block_load(cpu, r, t, cairn__element(t, x, i), count, &wide);
        const double here = k->greatest[r](v, count);
        if (here == -INFINITY) continue;
        if (!(here <= m)) { /* a NaN goes in and stays */
            s = s > 0 ? s * exp(m - here) : s;
            m = here;
        }
        cairn__map1(k, CAIRN__MAP_SUB_EXP, r, e.room, v, count, m, 0);
        s += k->fold[CAIRN__FOLD_SUM][r](e.room, count, 0);
        if (m != m) break;
    }
    *greatest = m;
    *sum = m != m ? m : s;
}

/* ---- softmax ---- */

struct softmax {
    const struct cairn__cpu *cpu;
    cairn_dtype t, r;
    void *y;
    const void *x, *dy;
    size_t n;
    bool log;
};

/* dst, in its stored type, = exponents * (1 / sum). */
static void probabilities(const struct softmax *o, void *dst, const void *exponents, size_t n, double sum) {
    const struct cairn__kernels *k = o->cpu->kernels;
    uint32_t unused = 0;
    if (o->t == CAIRN_F64) {
        cairn__map1(k, CAIRN__MAP_AFFINE, CAIRN_F64, dst, exponents, n, 1 / sum, 0);
    } else {
        k->scale[CAIRN_F32][o->t](dst, exponents, n, (float)(1 / sum), &unused);
    }
}

/* n <= CAIRN__BLOCK elements x of R to dst, as it is stored. */
static void finish(const struct softmax *o, void *dst, const void *x, size_t n, double greatest, double sum) {
    struct cairn__block made;
    if (o->log) {
        void *y = cairn__block_for(o->r, o->t, dst, &made);
        /* x - greatest - ln(sum): the greatest goes first, which is exact near it. */
        cairn__map1(o->cpu->kernels, CAIRN__MAP_AFFINE, o->r, y, x, n, 1, -greatest);
        cairn__map1(o->cpu->kernels, CAIRN__MAP_AFFINE, o->r, y, y, n, 1, -log(sum));
        cairn__block_store(o->cpu, o->r, o->t, dst, y, n);
    } else {
        cairn__map1(o->cpu->kernels, CAIRN__MAP_SUB_EXP, o->r, made.room, x, n, greatest, 0);
        probabilities(o, dst, made.room, n, sum);
    }
}

/* Some rows x of R that fill a block. Each step is done for all rows before the next: the steps of one row depend on
 * each other, those of different rows do not. */
static void some_rows(const struct softmax *o, size_t first, size_t rows, const void *x) {
    const struct cairn__kernels *k = o->cpu->kernels;
    const size_t n = o->n;
    struct cairn__block e;
    double greatest[CAIRN__BLOCK], sum[CAIRN__BLOCK];
    for (size_t j = 0; j < rows; j++) greatest[j] = k->greatest[o->r](cairn__element(o->r, x, j * n), n);
    for (size_t j = 0; j < rows; j++) {
        cairn__map1(k, CAIRN__MAP_SUB_EXP, o->r, cairn__element_of(o->r, e.room, j * n), cairn__element(o->r, x, j * n),
                    n, greatest[j], 0);
    }
    for (size_t j = 0; j < rows; j++)
        sum[j] = k->fold[CAIRN__FOLD_SUM][o->r](cairn__element(o->r, e.room, j * n), n, 0);
    for (size_t j = 0; j < rows; j++) {
        void *dst = cairn__element_of(o->t, o->y, (first + j) * n);
        if (o->log) {
            finish(o, dst, cairn__element(o->r, x, j * n), n, greatest[j], sum[j]);
        } else {
            probabilities(o, dst, cairn__element(o->r, e.room, j * n), n, sum[j]);
        }
    }
}

static void short_rows(void *ctx, size_t begin, size_t end) {
    const struct softmax *o = ctx;
    const size_t at_once = CAIRN__BLOCK / o->n;
    struct cairn__block wide;
    for (size_t row = begin; row < end; row += at_once) {
        const size_t rows = end - row < at_once ? end - row : at_once;
        const void *x = cairn__element(o->t, o->x, row * o->n);
        some_rows(o, row, rows, cairn__block_load(o->cpu, o->r, o->t, x, rows * o->n, &wide));
    }
}

static void long_rows(void *ctx, size_t begin, size_t end) {
    const struct softmax *o = ctx;
    struct cairn__block wide;
    for (size_t row = begin; row < end; row++) {
        const void *x = cairn__element(o->t, o->x, row * o->n);
        double greatest, sum;
        cairn__row_exponents(o->cpu, o->t, x, o->n, &greatest, &sum);
        for (size_t i = 0; i < o->n; i += CAIRN__BLOCK) {
            const size_t at = row * o->n + i, count = block_at(i, o->n);
            const void *v = cairn__block_load(o->cpu, o->r, o->t, cairn__element(o->t, x, i), count, &wide);
            finish(o, cairn__element_of(o->t, o->y, at), v, count, greatest, sum);
        }
    }
}

void cairn__cpu_softmax(struct cairn_device *d, cairn_dtype t, void *y, const void *x, size_t rows, size_t n,
                        bool log) {
    struct softmax o = {.cpu = cairn__cpu_of(d), .t = t, .r = cairn__r_of(t), .y = y, .x = x, .n = n, .log = log};
    if (n == 0) return;
    cairn__parallel_for(rows, cairn__rows_grain(n), n <= CAIRN__BLOCK ? short_rows : long_rows, &o);
}

/* Of the logarithm: dx = dy - e^y * sum(dy). */
static void log_row_backward(const struct softmax *o, void *dx, const void *dy, const void *y) {
    const struct cairn__kernels *k = o->cpu->kernels;
    struct cairn__block wide_dy, wide_y, made;
    double sum = 0;
    for (size_t i = 0; i < o->n; i += CAIRN__BLOCK) {
        const void *g = cairn__block_load(o->cpu, o->r, o->t, cairn__element(o->t, dy, i), block_at(i, o->n), &wide_dy);
        sum += k->fold[CAIRN__FOLD_SUM][o->r](g, block_at(i, o->n), 0);
    }
    for (size_t i = 0; i < o->n; i += CAIRN__BLOCK) {
        const size_t count = block_at(i, o->n);
        const void *g = cairn__block_load(o->cpu, o->r, o->t, cairn__element(o->t, dy, i), count, &wide_dy);
        const void *v = cairn__block_load(o->cpu, o->r, o->t, cairn__element(o->t, y, i), count, &wide_y);
        void *dst = cairn__element_of(o->t, dx, i), *room = cairn__block_for(o->r, o->t, dst, &made);
        cairn__map1(k, CAIRN__MAP_EXP, o->r, made.room, v, count, 0, 0);
        cairn__map2(k, CAIRN__MAP_ADD, o->r, room, g, made.room, count, -sum);
        cairn__block_store(o->cpu, o->r, o->t, dst, room, count);
    }
}

static void rows_backward(void *ctx, size_t begin, size_t end) {
    const struct softmax *o = ctx;
    for (size_t row = begin; row < end; row++) {
        void *dx = cairn__element_of(o->t, o->y, row * o->n);
        const void *dy = cairn__element(o->t, o->dy, row * o->n), *y = cairn__element(o->t, o->x, row * o->n);
        if (o->log) {
            log_row_backward(o, dx, dy, y);
        } else {
            o->cpu->kernels->softmax_backward[o->t](dx, dy, y, o->n);
        }
    }
}

void cairn__cpu_softmax_backward(struct cairn_device *d, cairn_dtype t, void *dx, const void *dy, const void *y,
                                 size_t rows, size_t n, bool log) {
    struct softmax o = {
        .cpu = cairn__cpu_of(d), .t = t, .r = cairn__r_of(t), .y = dx, .x = y, .dy = dy, .n = n, .log = log};
    cairn__parallel_for(rows, cairn__rows_grain(n), rows_backward, &o);
}

/* ---- rows by index ---- */

struct by_index {
    const struct cairn__cpu *cpu;
    cairn_dtype t, r, index_dtype;
    void *y; /* or dtable */
    const void *x, *index;
    size_t count, table_rows, n;
    int64_t skip;
    const int32_t *slot; /* of each row of the table, -1 = none: where in `sums` it is added up */
    char *sums;          /* R */
    double *totals;      /* of the slots below `many` */
    const void **late;   /* for each of these, the last uses, CAIRN__SUM_ROWS at most, which its total lacks */
    int32_t many;
    uint8_t *uses; /* of each row: those in `late` */
};

static bool is_row(const struct by_index *o, int64_t index) {
    return index >= 0 && (uint64_t)index < o->table_rows;
}

static void gather(void *ctx, size_t begin, size_t end) {
    const struct by_index *o = ctx;
    const size_t nbytes = o->n * cairn_dtype_nbytes(o->t);
    for (size_t i = begin; i < end; i++) {
        const int64_t index = cairn__index_at(o->index_dtype, o->index, i);
        char *y = (char *)o->y + i * nbytes;
        if (is_row(o, index)) {
            memcpy(y, (const char *)o->x + (size_t)index * nbytes, nbytes);
        } else {
            memset(y, 0, nbytes);
        }
    }
}

void cairn__cpu_gather_rows(struct cairn_device *d, cairn_dtype t, void *y, const void *table, const void *index,
                            cairn_dtype index_dtype, size_t count, size_t table_rows, size_t n, uint32_t *bad_index) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    struct by_index o = {
        .t = t, .index_dtype = index_dtype, .y = y, .x = table, .index = index, .table_rows = table_rows, .n = n};
    for (size_t i = 0; i < count; i++) {
        const int64_t row = cairn__index_at(index_dtype, index, i);
        if (is_row(&o, row)) continue;
        if (bad_index) *bad_index |= 1;
        (void)cairn__cpu_is_ok(cpu,
                               cairn__fail(CAIRN_EINVAL, "embedding: index %zu is %lld, and the table has %zu rows", i,
                                           (long long)row, table_rows));
        break;
    }
    cairn__parallel_for(count, cairn__rows_grain(n), gather, &o);
}

/* into[0..n) += dy, both may be parts of rows. */
static void add_row(const struct by_index *o, void *into, const void *dy) {
    struct cairn__block wide;
    for (size_t i = 0; i < o->n; i += CAIRN__BLOCK) {
        const size_t count = block_at(i, o->n);
        const void *g = cairn__block_load(o->cpu, o->r, o->t, cairn__element(o->t, dy, i), count, &wide);
        void *sum = cairn__element_of(o->r, into, i);
        cairn__map2(o->cpu->kernels, CAIRN__MAP_ADD, o->r, sum, sum, g, count, 1);
    }
}

/* Adds a row's late uses to the total of its slot. */
static void add_late(const struct by_index *o, size_t row) {
    const size_t slot = (size_t)o->slot[row];
    o->cpu->kernels->sum_rows[CAIRN__FOLD_SUM][o->t](o->totals + slot * o->n, o->late + slot * CAIRN__SUM_ROWS,
                                                     o->uses[row], o->n, NULL);
    o->uses[row] = 0;
}

/* Adds a use to a row whose slot has a total. */
static void keep_use(const struct by_index *o, size_t row, const void *dy) {
    o->late[(size_t)o->slot[row] * CAIRN__SUM_ROWS + o->uses[row]++] = dy;
    if (o->uses[row] == CAIRN__SUM_ROWS) add_late(o, row);
}

/* A row of the table, from its slot. */
static void finish_row(const struct by_index *o, size_t row) {
    float *sum = cairn__element_of(o->r, o->sums, (size_t)o->slot[row] * o->n);
    if (o->slot[row] < o->many) {
        const double *total = o->totals + (size_t)o->slot[row] * o->n;
        if (o->uses[row] > 0) add_late(o, row);
        for (size_t i = 0; i < o->n; i++) sum[i] = (float)total[i];
    }
    o->cpu->kernels->cast[o->r][o->t](cairn__element_of(o->t, o->y, row * o->n), sum, o->n);
}

/* Rows begin..end-1 of the table, each by one thread: zeros, plus the rows of dy in the order of their indices. */
static void scatter(void *ctx, size_t begin, size_t end) {
    const struct by_index *o = ctx;
    memset(cairn__element_of(o->t, o->y, begin * o->n), 0, (end - begin) * o->n * cairn_dtype_nbytes(o->t));
    for (size_t i = 0; i < o->count; i++) {
        const int64_t row = cairn__index_at(o->index_dtype, o->index, i);
        if (row < (int64_t)begin || row >= (int64_t)end || row == o->skip) continue;
        const int32_t slot = o->slot[row];
        const void *dy = cairn__element(o->t, o->x, i * o->n);
        if (slot >= 0 && slot < o->many) keep_use(o, (size_t)row, dy);
        else if (slot >= 0) add_row(o, cairn__element_of(o->r, o->sums, (size_t)slot * o->n), dy);
        else add_row(o, cairn__element_of(o->t, o->y, (size_t)row * o->n), dy);
    }
    for (size_t row = begin; row < end; row++) {
        if (o->slot[row] >= 0) finish_row(o, row);
    }
}

/* f32 rows with few uses are summed in place; rows with many uses get a slot and a total; half rows with few uses get
 * only a slot. Counting stops once a row has many. */
static cairn_status make_slots(struct cairn__cpu *cpu, struct by_index *o) {
    cairn_status st = CAIRN_OK;
    void *room = NULL;
    int32_t used = 0;
    const size_t rows = o->table_rows;
    TRY(cairn__cpu_room(&cpu->row, CAIRN_F32, rows + rows / sizeof(float) + 1, &room));
    int32_t *slot = room;
    uint8_t *uses = (uint8_t *)(slot + rows);
    memset(uses, 0, rows);
    for (size_t i = 0; i < o->count; i++) {
        const int64_t row = cairn__index_at(o->index_dtype, o->index, i);
        if (is_row(o, row) && row != o->skip && uses[row] <= CAIRN__SUM_ROWS) uses[row]++;
    }
    for (size_t row = 0; row < rows; row++) slot[row] = o->r != CAIRN_F64 && uses[row] > CAIRN__SUM_ROWS ? used++ : -1;
    o->many = used;
    for (size_t row = 0; row < rows; row++) {
        if (o->t != o->r && slot[row] < 0 && uses[row] > 0) slot[row] = used++;
    }
    memset(uses, 0, rows);
    o->slot = slot;
    o->uses = uses;
    const size_t totals = (size_t)o->many * o->n, sums = (size_t)used * o->n;
    const size_t late = (size_t)o->many * CAIRN__SUM_ROWS * sizeof(o->late[0]) / sizeof(float);
    TRY(cairn__cpu_room(&cpu->a, CAIRN_F32, 2 * totals + late + sums, &room));
    o->totals = room;
    o->late = (const void **)(o->totals + totals);
    o->sums = (char *)o->late + late * sizeof(float);
    memset(o->totals, 0, totals * sizeof(double));
    memset(o->sums, 0, sums * sizeof(float));
out:
    return st;
}

void cairn__cpu_scatter_rows(struct cairn_device *d, cairn_dtype t, void *dtable, const void *dy, const void *index,
                             cairn_dtype index_dtype, size_t count, size_t table_rows, size_t n, int64_t skip) {
    enum { PIECES = 16 }; /* each looks at all indices */
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    struct by_index o = {.cpu = cpu,
                         .t = t,
                         .r = cairn__r_of(t),
                         .index_dtype = index_dtype,
                         .y = dtable,
                         .x = dy,
                         .index = index,
                         .count = count,
                         .table_rows = table_rows,
                         .n = n,
                         .skip = skip};
    if (n == 0) return;
    if (!cairn__cpu_is_ok(cpu, make_slots(cpu, &o))) return;
    cairn__parallel_for(table_rows, table_rows / PIECES + 1, scatter, &o);
}

/* ---- dropout ---- */

struct dropping {
    const struct cairn__cpu *cpu;
    cairn_dtype t;
    void *dst;
    const void *x;
    struct cairn__dropout how;
};

static void drop(void *ctx, size_t begin, size_t end) {
    const struct dropping *o = ctx;
    struct cairn__dropout how = o->how;
    how.first = begin;
    o->cpu->kernels->dropout[o->t](cairn__element_of(o->t, o->dst, begin), cairn__element(o->t, o->x, begin),
                                   end - begin, &how);
}

/* A uniform is a multiple of 2^-24, so that it is below p where its integer is below p * 2^24, rounded up. */
void cairn__cpu_dropout(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n, double p,
                        uint64_t seed, uint64_t stream) {
    struct dropping o = {.cpu = cairn__cpu_of(d), .t = t, .dst = dst, .x = x};
    o.how = (struct cairn__dropout){.seed = seed, .stream = stream, .least = (uint32_t)ceil(p * 0x1p24)};
    o.how.scale = p < 1 ? 1 / (1 - p) : 0;
    if (t != CAIRN_F64) o.how.scale = (float)o.how.scale;
    cairn__parallel_for(n, (size_t)16 << 10, drop, &o);
}
