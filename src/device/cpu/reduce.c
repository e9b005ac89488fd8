/* Folds: sums, products and extremes along axes.
 *
 * A fold's order depends only on shapes, never on strides or threads. Axes of size 1 aside,
 *     rows      where the last axis is folded: the elements that belong to one result, in row-major order, are folded
 *               by CAIRN__BLOCK at a time (the kernel `fold`), and those results in order;
 *     columns   where the last axis stays: as many rows as fill a block lie side by side; each place is folded down
 *               (`fold_into`), with a fresh part every CAIRN__SUM_ROWS times, and at the end those beside each other.
 * Sums of f32 add such results and parts up in f64, and are rounded once, after division and root: the bounds of
 * kernels.h hold, however long they are. */
#include <math.h>
#include <string.h>

#include "core/parallel.h"
#include "device/cpu/cpu_math.h"
#include "device/cpu/sequence.h"
#include "kernels/kernels.h"

enum { PIECE = 32 * 1024 }; /* elements a thread takes at once */

struct job {
    const struct cairn__cpu *cpu;
    enum cairn__fold fold;
    cairn_dtype r;
    double divisor;
    bool root;
    void *mean; /* variance: R, one a result */

    struct cairn__seq folded;  /* of x: what belongs to one result */
    struct cairn__seq outer;   /* of x: where each result, or each row of results, begins */
    struct cairn__seq all;     /* x */
    struct cairn__seq both;    /* columns: of x, the folded axes and the columns behind them */
    struct cairn__seq results; /* of dst, in order */
    size_t columns;            /* 0 = the fold is by rows */
    bool in_order;             /* rows are consecutive in x, since only its last axes are folded */
};

static size_t at_most(size_t n, size_t limit) {
    return n < limit ? n : limit;
}

static size_t grain_of(size_t item) {
    return item >= PIECE ? 1 : PIECE / (item ? item : 1);
}

static void *r_at(cairn_dtype r, void *values, size_t i) {
    return (char *)values + i * cairn_dtype_nbytes(r);
}

static void fill_r(cairn_dtype r, void *values, double value, size_t n) {
    if (value == 0) {
        memset(values, 0, n * cairn_dtype_nbytes(r));
        return;
    }
    for (size_t i = 0; i < n; i++) cairn__put_r(r, values, i, value);
}

static double start_of(enum cairn__fold f) {
    return f == CAIRN__FOLD_PRODUCT ? 1 : f == CAIRN__FOLD_MAX ? -INFINITY : f == CAIRN__FOLD_MIN ? INFINITY : 0;
}

/* What joins results of folds. */
static enum cairn__fold joining(enum cairn__fold f) {
    return f == CAIRN__FOLD_SUM_SQUARES || f == CAIRN__FOLD_SUM_ABS ? CAIRN__FOLD_SUM : f;
}

static bool is_sum(enum cairn__fold f) {
    return joining(f) == CAIRN__FOLD_SUM;
}

/* In f64, and of R. */
static double finished(const struct job *job, double value) {
    const double quotient = value / job->divisor, y = job->root ? sqrt(quotient) : quotient;
    return job->r == CAIRN_F64 ? y : (double)(float)y;
}

static void finish(const struct job *job, void *values, size_t n) {
    if (job->divisor == 1 && !job->root) return;
    for (size_t i = 0; i < n; i++) cairn__put_r(job->r, values, i, finished(job, cairn__get_r(job->r, values, i)));
}

/* ---- which axes are what ---- */

struct axes {
    uint32_t folded, outer, columns;
};

/* Columns are the kept axes behind the last folded one. */
static struct axes axes_of(const struct cairn__view *x, uint32_t folded) {
    struct axes a = {.folded = folded};
    int d = x->ndim - 1;
    for (; d >= 0 && !(folded >> d & 1); d--) {
        if (x->size[d] != 1) a.columns |= 1u << d;
    }
    for (; d >= 0; d--) a.outer |= ~folded & 1u << d;
    return a;
}

static void take_axes(struct job *job, const struct cairn__view *x, const struct axes *a) {
    job->folded = cairn__seq_of_axes(x, a->folded);
    job->outer = cairn__seq_of_axes(x, a->outer);
    job->all = cairn__seq_of(x);
    job->both = cairn__seq_of_axes(x, a->folded | a->columns);
    job->in_order = a->outer < (a->folded & -a->folded);
    job->columns = a->columns ? cairn__seq_of_axes(x, a->columns).n : 0;
}

static bool job_of(struct job *job, struct cairn_device *d, const struct cairn__view *dst,
                   const struct cairn__view *x) {
    bool any;
    const uint32_t folded = cairn__view_folded(dst, &any);
    if (!any) return false;
    const struct axes axes = axes_of(x, folded);
    job->cpu = cairn__cpu_of(d);
    job->r = cairn__needs_f64(x->dtype) || cairn__needs_f64(dst->dtype) ? CAIRN_F64 : CAIRN_F32;
    take_axes(job, x, &axes);
    job->results = cairn__seq_of_axes(dst, axes.outer | axes.columns);
    return true;
}

/* ---- rows ---- */

/* What results of the blocks of a row come to. */
static double joined(const struct job *job, enum cairn__fold f, double so_far, double part) {
    if (is_sum(f)) return so_far + part;
    double both = 0, more = 0;
    cairn__put_r(job->r, &both, 0, so_far);
    cairn__put_r(job->r, &more, 0, part);
    job->cpu->kernels->fold_into[f][job->r](&both, &more, 1, 0);
    return cairn__get_r(job->r, &both, 0);
}

/* The kernel that sums halves as they are stored, where it gives what `fold` does of them widened; else NULL. */
static cairn__sum_fn sum_of_halves(const struct job *job, enum cairn__fold f, const struct cairn__seq *x) {
    const bool halves = x->dtype == CAIRN_F16 || x->dtype == CAIRN_BF16;
    return f == CAIRN__FOLD_SUM && job->r == CAIRN_F32 && halves ? job->cpu->kernels->sum[x->dtype] : NULL;
}

static double fold_sequence(const struct job *job, enum cairn__fold f, const struct cairn__seq *x, double p0,
                            struct cairn__seq_room *room) {
    const cairn__fold_kernel fold = job->cpu->kernels->fold[f][job->r];
    const cairn__sum_fn sum = sum_of_halves(job, f, x);
    double so_far = start_of(f);
    for (size_t at = 0; at < x->n; at += CAIRN__BLOCK) {
        const size_t n = at_most(x->n - at, CAIRN__BLOCK);
        const void *stored = sum ? cairn__seq_dense(x, at, n) : NULL;
        const double part = stored ? sum(stored, n) : fold(cairn__seq_load(job->cpu, job->r, x, at, n, room), n, p0);
        if (n == x->n) return part;
        so_far = joined(job, f, so_far, part);
    }
    return so_far;
}

static void fold_rows(void *ctx, size_t begin, size_t end) {
    const struct job *job = ctx;
    struct cairn__seq x = job->folded;
    struct cairn__seq_room room;
    room.filled = NULL;
    for (size_t i = begin; i < end; i++) {
        x.data = cairn__seq_at(&job->outer, i);
        double p0 = 0;
        if (job->mean) {
            cairn__put_r(job->r, job->mean, i, fold_sequence(job, CAIRN__FOLD_SUM, &x, 0, &room) / (double)x.n);
            p0 = cairn__get_r(job->r, job->mean, i);
        }
        const double value = fold_sequence(job, job->fold, &x, p0, &room);
        cairn__block_put(job->results.dtype, cairn__seq_at(&job->results, i), finished(job, value));
    }
}

/* ---- short rows: SIDE of them beside each other, each lane of the kernel `fold` a line of its own ---- */

enum { SHORT_ROW = 16, SIDE = CAIRN__BLOCK / SHORT_ROW };

struct short_rooms {
    struct cairn__seq_room x, y;
    struct cairn__block lanes, column;
};

/* As `fold` has it: no lane gets more than one of so few elements, and joining a lane that got none changes nothing. */
static void fold_lanes(const struct job *job, const void *x, size_t rows, struct short_rooms *rooms) {
    const struct cairn__kernels *k = job->cpu->kernels;
    const size_t n = job->folded.n, width = cairn_dtype_nbytes(job->r);
    void *lanes = rooms->lanes.room, *column = rooms->column.room;
    fill_r(job->r, lanes, start_of(job->fold), n * rows);
    for (size_t i = 0; i < n; i++) {
        cairn__move(column, 1, (const char *)x + i * width, (int64_t)n, rows, width);
        k->fold_into[job->fold][job->r](r_at(job->r, lanes, i * rows), column, rows, 0);
    }
    for (size_t half = SHORT_ROW / 2; half > 0; half /= 2) {
        const size_t both = n > half ? at_most(n - half, half) : 0;
        if (both > 0) k->fold_into[joining(job->fold)][job->r](lanes, r_at(job->r, lanes, half * rows), both * rows, 0);
    }
}

static void fold_short_rows(void *ctx, size_t begin, size_t end) {
    const struct job *job = ctx;
    struct short_rooms rooms;
    rooms.x.filled = NULL;
    for (size_t at = begin, rows; at < end; at += rows) {
        rows = at_most(end - at, SIDE);
        const size_t n = job->folded.n;
        void *y = rooms.lanes.room;
        fold_lanes(job, cairn__seq_load(job->cpu, job->r, &job->all, at * n, rows * n, &rooms.x), rows, &rooms);
        finish(job, y, rows);
        cairn__seq_store(job->cpu, job->r, &job->results, at, y, rows, &rooms.y);
    }
}

/* ---- columns ---- */

/* part: of R; total: of R too, but of sums f64. */
struct column_rooms {
    struct cairn__seq_room x, y;
    struct cairn__block part, total, mean, difference;
};

/* Columns first..first+n-1 of one row of results; `side` rows lie beside each other, which is more than one only where
 * n is all columns. */
struct columns {
    struct cairn__seq x;
    size_t first, n, side;
};

/* The type of a total. */
static cairn_dtype total_type(const struct job *job, enum cairn__fold f) {
    return is_sum(f) ? CAIRN_F64 : job->r;
}

/* Adds the part to the total, and resets it. */
static void close_part(const struct job *job, enum cairn__fold f, struct column_rooms *rooms, size_t width) {
    const struct cairn__kernels *k = job->cpu->kernels;
    if (is_sum(f) && job->r == CAIRN_F32) {
        k->drain(rooms->total.room, (float *)rooms->part.room, width);
        return;
    }
    k->fold_into[joining(f)][job->r](rooms->total.room, rooms->part.room, width, 0);
    fill_r(job->r, rooms->part.room, start_of(f), width);
}

/* CAIRN__SUM_ROWS times `side` rows from `row` on, or those that are left: one row of sums gets side of them at once,
 * the last of which may be fewer. */
static void fold_rows_into(const struct job *job, enum cairn__fold f, const struct columns *c, size_t row,
                           const void *centre, struct column_rooms *rooms) {
    static const double minus[CAIRN__MAP_NUMBERS] = {-1, 0};
    const struct cairn__kernels *k = job->cpu->kernels;
    for (int i = 0; i < CAIRN__SUM_ROWS && row < job->folded.n; i++, row += c->side) {
        const size_t n = at_most(job->folded.n - row, c->side) * c->n;
        const void *x = cairn__seq_load(job->cpu, job->r, &c->x, row * job->columns + c->first, n, &rooms->x);
        if (centre) {
            k->map[CAIRN__MAP_ADD][job->r](rooms->difference.room, (const void *const[]){x, centre}, n, minus);
            x = rooms->difference.room;
        }
        k->fold_into[f][job->r](rooms->part.room, x, n, 0);
    }
}

/* The same to the totals by one kernel, where it can be: of sums in f32 over rows that lie dense. */
static bool sum_dense_rows(const struct job *job, enum cairn__fold f, const struct columns *c, size_t row,
                           const void *centre, struct column_rooms *rooms) {
    const cairn__sum_rows_fn sum = job->r == CAIRN_F32 ? job->cpu->kernels->sum_rows[f][c->x.dtype] : NULL;
    const void *x[CAIRN__SUM_ROWS];
    size_t count = 0, n = 0;
    if (!sum) return false;
    for (; count < CAIRN__SUM_ROWS && row < job->folded.n; row += c->side) {
        n = at_most(job->folded.n - row, c->side) * c->n;
        x[count] = cairn__seq_dense(&c->x, row * job->columns + c->first, n);
        if (!x[count++]) return false;
    }
    const size_t width = c->side * c->n;
    sum(rooms->total.room, x, count, n, centre);
    if (n == width) return true;
    for (size_t i = 0; i + 1 < count; i++) x[i] = (const char *)x[i] + n * c->x.width;
    sum(rooms->total.room + n, x, count - 1, width - n, centre ? (const float *)centre + n : NULL);
    return true;
}

/* Rows one behind the other that are more than the last cache holds: the processor fetches them ahead while they are
 * read in turn, and not where several go on together. */
static bool is_streamed(const struct job *job, const struct columns *c) {
    enum { CACHED_NBYTES = 16 << 20 };
    return c->n == job->columns && c->x.ndim == 1 && job->folded.n * job->columns * c->x.width > CACHED_NBYTES;
}

/* f64 rows beside each other, in order: some places at a time, so that their sums stay in registers. */
static void add_sides_f64(double *total, size_t n, size_t side) {
    enum { AT_ONCE = 8 };
    size_t j = 0;
    for (; j + AT_ONCE <= n; j += AT_ONCE) {
        double sum[AT_ONCE];
        memcpy(sum, total + j, sizeof(sum));
        for (size_t i = 1; i < side; i++) {
            for (size_t k = 0; k < AT_ONCE; k++) sum[k] += total[i * n + j + k];
        }
        memcpy(total + j, sum, sizeof(sum));
    }
    for (; j < n; j++) {
        double sum = total[j];
        for (size_t i = 1; i < side; i++) sum += total[i * n + j];
        total[j] = sum;
    }
}

/* Rows beside each other, in order. */
static void add_sides(const struct job *job, enum cairn__fold f, const struct columns *c, double *total) {
    const cairn_dtype type = total_type(job, f);
    if (is_sum(f)) {
        add_sides_f64(total, c->n, c->side);
        return;
    }
    for (size_t i = 1; i < c->side; i++)
        job->cpu->kernels->fold_into[f][type](total, r_at(type, total, i * c->n), c->n, 0);
}

/* total = fold down the columns, of x - centre where there is one. */
static void fold_down(const struct job *job, enum cairn__fold f, const struct columns *c, const void *centre,
                      struct column_rooms *rooms) {
    const size_t width = c->side * c->n;
    const bool streamed = is_streamed(job, c);
    bool has_part = false;
    fill_r(total_type(job, f), rooms->total.room, start_of(f), width);
    for (size_t row = 0; row < job->folded.n; row += CAIRN__SUM_ROWS * c->side) {
        if (!streamed && sum_dense_rows(job, f, c, row, centre, rooms)) continue;
        if (!has_part) fill_r(job->r, rooms->part.room, start_of(f), width);
        has_part = true;
        fold_rows_into(job, f, c, row, centre, rooms);
        close_part(job, f, rooms, width);
    }
    add_sides(job, f, c, rooms->total.room);
}

/* The mean of each column, `side` times over, for fold_down. */
static void find_means(const struct job *job, const struct columns *c, size_t result, struct column_rooms *rooms) {
    fold_down(job, CAIRN__FOLD_SUM, c, NULL, rooms);
    for (size_t i = 0; i < c->n; i++) {
        cairn__put_r(job->r, job->mean, result + i, rooms->total.room[i] / (double)job->folded.n);
        const double mean = cairn__get_r(job->r, job->mean, result + i);
        for (size_t s = 0; s < c->side; s++) cairn__put_r(job->r, rooms->mean.room, s * c->n + i, mean);
    }
}

static size_t blocks_of(const struct job *job) {
    return (job->columns + CAIRN__BLOCK - 1) / CAIRN__BLOCK;
}

/* The item-th block of columns: of row of results item / blocks. */
static struct columns columns_of(const struct job *job, size_t item, size_t *result) {
    const size_t outer = item / blocks_of(job);
    struct columns c = {.x = job->both, .first = item % blocks_of(job) * CAIRN__BLOCK};
    c.n = at_most(job->columns - c.first, CAIRN__BLOCK);
    const size_t fit = job->columns < CAIRN__BLOCK ? CAIRN__BLOCK / job->columns : 1;
    c.side = job->folded.n > 0 ? at_most(fit, job->folded.n) : 1;
    c.x.data = cairn__seq_at(&job->outer, outer);
    *result = outer * job->columns + c.first;
    return c;
}

/* n results of R. */
static const void *finish_totals(const struct job *job, struct column_rooms *rooms, size_t n) {
    if (total_type(job, job->fold) == job->r) {
        finish(job, rooms->total.room, n);
        return rooms->total.room;
    }
    const double *total = rooms->total.room;
    float *y = (float *)rooms->part.room;
    for (size_t i = 0; i < n; i++) y[i] = (float)total[i];
    if (job->divisor == 1 && !job->root) return y;
    for (size_t i = 0; i < n; i++) y[i] = (float)finished(job, total[i]);
    return y;
}

static void fold_columns(void *ctx, size_t begin, size_t end) {
    const struct job *job = ctx;
    struct column_rooms rooms;
    rooms.x.filled = NULL;
    for (size_t item = begin; item < end; item++) {
        size_t result;
        const struct columns c = columns_of(job, item, &result);
        if (job->mean) find_means(job, &c, result, &rooms);
        fold_down(job, job->fold, &c, job->mean ? rooms.mean.room : NULL, &rooms);
        const void *y = finish_totals(job, &rooms, c.n);
        cairn__seq_store(job->cpu, job->r, &job->results, result, y, c.n, &rooms.y);
    }
}

static void run(const struct job *job) {
    if (job->columns > 0) {
        const size_t item = job->folded.n * at_most(job->columns, CAIRN__BLOCK);
        cairn__parallel_for(job->outer.n * blocks_of(job), grain_of(item), fold_columns, (void *)(uintptr_t)job);
    } else {
        const bool is_short = job->in_order && job->folded.n <= SHORT_ROW && job->folded.n > 0 && !job->mean;
        cairn__parallel_for(job->outer.n, grain_of(job->folded.n), is_short ? fold_short_rows : fold_rows,
                            (void *)(uintptr_t)job);
    }
}

void cairn__cpu_fold(struct cairn_device *d, enum cairn__fold f, const struct cairn__view *dst,
                     const struct cairn__view *x, double divisor, bool root) {
    struct job job = {.fold = f, .divisor = divisor, .root = root};
    struct cairn__view dense = *x;
    cairn__cpu_densify(cairn__cpu_of(d), 0, &dense);
    if (job_of(&job, d, dst, &dense)) run(&job);
}

void cairn__cpu_variance(struct cairn_device *d, const struct cairn__view *dst, void *mean, const struct cairn__view *x,
                         double divisor, bool root) {
    struct job job = {.fold = CAIRN__FOLD_SUM_SQUARES, .divisor = divisor, .root = root, .mean = mean};
    struct cairn__view dense = *x;
    cairn__cpu_densify(cairn__cpu_of(d), 0, &dense);
    if (job_of(&job, d, dst, &dense)) run(&job);
}

/* ---- where the maximum is ---- */

struct arg_job {
    struct job base; /* its results are the indices */
    struct cairn__seq values;
    bool least, with_values;
};

static bool is_better(double value, double best, bool least) {
    if (value != value) return best == best;
    return least ? value < best : value > best;
}

static void put_best(const struct arg_job *job, size_t result, size_t index, double value) {
    *(int64_t *)cairn__seq_at(&job->base.results, result) = (int64_t)index;
    if (job->with_values) cairn__block_put(job->values.dtype, cairn__seq_at(&job->values, result), value);
}

/* Searches a block for the index only if its best element is better than those before. */
static void arg_rows(void *ctx, size_t begin, size_t end) {
    const struct arg_job *job = ctx;
    const cairn_dtype r = job->base.r;
    const cairn__fold_kernel fold = job->base.cpu->kernels->fold[job->base.fold][r];
    struct cairn__seq x = job->base.folded;
    struct cairn__seq_room room;
    room.filled = NULL;
    for (size_t i = begin; i < end; i++) {
        size_t index = 0;
        double best = 0;
        x.data = cairn__seq_at(&job->base.outer, i);
        for (size_t at = 0; at < x.n; at += CAIRN__BLOCK) {
            const size_t n = at_most(x.n - at, CAIRN__BLOCK);
            const void *values = cairn__seq_load(job->base.cpu, r, &x, at, n, &room);
            const double candidate = fold(values, n, 0);
            if (at > 0 && !is_better(candidate, best, job->least)) continue;
            best = candidate;
            for (size_t j = 0; j < n; j++) {
                const double value = cairn__get_r(r, values, j);
                index = at + j;
                if (value == best || (best != best && value != value)) break;
            }
        }
        put_best(job, i, index, best);
    }
}

static void arg_columns(void *ctx, size_t begin, size_t end) {
    const struct arg_job *job = ctx;
    const cairn_dtype r = job->base.r;
    struct cairn__seq_room room;
    double best[CAIRN__BLOCK];
    size_t index[CAIRN__BLOCK];
    room.filled = NULL;
    for (size_t item = begin; item < end; item++) {
        size_t result;
        const struct columns c = columns_of(&job->base, item, &result);
        for (size_t row = 0; row < job->base.folded.n; row++) {
            const void *x = cairn__seq_load(job->base.cpu, r, &c.x, row * job->base.columns + c.first, c.n, &room);
            for (size_t i = 0; i < c.n; i++) {
                const double value = cairn__get_r(r, x, i);
                if (row == 0 || is_better(value, best[i], job->least)) best[i] = value, index[i] = row;
            }
        }
        for (size_t i = 0; i < c.n; i++) put_best(job, result + i, index[i], best[i]);
    }
}

void cairn__cpu_arg_max(struct cairn_device *d, const struct cairn__view *index, const struct cairn__view *value,
                        const struct cairn__view *x, int axis, bool least) {
    struct arg_job job = {.least = least, .with_values = value != NULL};
    const struct axes axes = axes_of(x, 1u << axis);
    if (cairn__view_numel(x) == 0) return;
    job.base.cpu = cairn__cpu_of(d);
    job.base.fold = least ? CAIRN__FOLD_MIN : CAIRN__FOLD_MAX;
    job.base.r = cairn__needs_f64(x->dtype) ? CAIRN_F64 : CAIRN_F32;
    take_axes(&job.base, x, &axes);
    job.base.results = cairn__seq_of(index);
    if (value) job.values = cairn__seq_of(value);
    if (job.base.columns > 0) {
        const size_t item = job.base.folded.n * at_most(job.base.columns, CAIRN__BLOCK);
        cairn__parallel_for(job.base.outer.n * blocks_of(&job.base), grain_of(item), arg_columns, &job);
    } else {
        cairn__parallel_for(job.base.outer.n, grain_of(job.base.folded.n), arg_rows, &job);
    }
}

/* ---- running sums and products: in f64 whatever is stored, as torch has them on the CPU ---- */

struct cumulate_job {
    struct job base;
    struct cairn__seq to, to_outer; /* of dst, as both and outer of x */
    bool product, reverse;
};

static void cumulate_columns(void *ctx, size_t begin, size_t end) {
    const struct cumulate_job *job = ctx;
    const size_t rows = job->base.folded.n;
    struct column_rooms rooms;
    double *sum = rooms.total.room;
    rooms.x.filled = NULL;
    for (size_t item = begin; item < end; item++) {
        size_t result;
        const struct columns c = columns_of(&job->base, item, &result);
        struct cairn__seq to = job->to;
        to.data = cairn__seq_at(&job->to_outer, item / blocks_of(&job->base));
        for (size_t i = 0; i < c.n; i++) sum[i] = job->product;
        for (size_t step = 0; step < rows; step++) {
            const size_t row = job->reverse ? rows - 1 - step : step;
            const size_t at = row * job->base.columns + c.first;
            const double *x = cairn__seq_load(job->base.cpu, CAIRN_F64, &c.x, at, c.n, &rooms.x);
            for (size_t i = 0; i < c.n; i++) sum[i] = job->product ? sum[i] * x[i] : sum[i] + x[i];
            cairn__seq_store(job->base.cpu, CAIRN_F64, &to, at, sum, c.n, &rooms.y);
        }
    }
}

static void cumulate_rows(void *ctx, size_t begin, size_t end) {
    const struct cumulate_job *job = ctx;
    struct cairn__seq x = job->base.folded, to = job->to;
    struct column_rooms rooms;
    double *y = rooms.total.room;
    rooms.x.filled = NULL;
    for (size_t i = begin; i < end; i++) {
        x.data = cairn__seq_at(&job->base.outer, i);
        to.data = cairn__seq_at(&job->to_outer, i);
        double sum = job->product;
        for (size_t done = 0, n; done < x.n; done += n) { /* a block at a time */
            n = at_most(x.n - done, CAIRN__BLOCK);
            const size_t at = job->reverse ? x.n - done - n : done;
            const double *values = cairn__seq_load(job->base.cpu, CAIRN_F64, &x, at, n, &rooms.x);
            for (size_t step = 0; step < n; step++) {
                const size_t k = job->reverse ? n - 1 - step : step;
                y[k] = sum = job->product ? sum * values[k] : sum + values[k];
            }
            cairn__seq_store(job->base.cpu, CAIRN_F64, &to, at, y, n, &rooms.y);
        }
    }
}

void cairn__cpu_cumulate(struct cairn_device *d, const struct cairn__view *dst, const struct cairn__view *x, int axis,
                         bool product, bool reverse) {
    struct cumulate_job job = {.product = product, .reverse = reverse};
    const struct axes axes = axes_of(x, 1u << axis);
    if (cairn__view_numel(x) == 0) return;
    job.base.cpu = cairn__cpu_of(d);
    take_axes(&job.base, x, &axes);
    job.to = cairn__seq_of_axes(dst, axes.folded | axes.columns);
    job.to_outer = cairn__seq_of_axes(dst, axes.outer);
    if (job.base.columns > 0) {
        const size_t item = job.base.folded.n * at_most(job.base.columns, CAIRN__BLOCK);
        cairn__parallel_for(job.base.outer.n * blocks_of(&job.base), grain_of(item), cumulate_columns, &job);
    } else {
        cairn__parallel_for(job.base.outer.n, grain_of(job.base.folded.n), cumulate_rows, &job);
    }
}
