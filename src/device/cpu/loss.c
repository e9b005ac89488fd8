/* Losses with one class per row: cross entropy from scores, and nll from logarithms.
 *
 * Cross entropy never stores probabilities: forward stores the greatest score g of each row and the sum s of e^(x - g),
 * from which backward computes them again:
 *     loss   = (1 - e) w[t] (ln s - (x[t] - g)) + e / C * (W ln s - sum over c of w[c] (x[c] - g)),  W = sum of w
 *     dx[c]  = dy (p[c] ((1 - e) w[t] + e W / C) - e / C w[c] - [c = t] (1 - e) w[t]),  p[c] = e^(x[c] - g) / s
 * with e the smoothing. Rows that lie along `inner` are taken some columns at a time, class by class. */
#include <math.h>
#include <string.h>

#include "core/parallel.h"
#include "core/status.h"
#include "device/cpu/rows.h"

enum { COLUMNS = 256 };

struct columns {
    _Alignas(64) double room[COLUMNS];
};

struct loss_job {
    struct cairn__class_loss loss;
    const struct cairn__cpu *cpu;
    const struct cairn__kernels *k;
    cairn_dtype t, r;
    size_t rows, classes, inner, tiles; /* tiles of columns of one row */
    const void *weight;                 /* R, or NULL */
    double total_weight;                /* W */
    void *losses;                       /* R [rows, inner] */
};

static double get(cairn_dtype t, const void *x, size_t i) {
    return cairn__block_get(t, cairn__element(t, x, i));
}

static void put(cairn_dtype t, void *x, size_t i, double value) {
    cairn__block_put(t, cairn__element_of(t, x, i), value);
}

static double weight_of(const struct loss_job *o, size_t c) {
    return o->weight ? get(o->r, o->weight, c) : 1;
}

/* The class of row i; -1 if the row is ignored or its target is no class. */
static int64_t class_of(const struct loss_job *o, size_t i) {
    const int64_t c = cairn__index_at(o->loss.target_dtype, o->loss.target, i);
    return c != o->loss.ignore_index && c >= 0 && (uint64_t)c < o->classes ? c : -1;
}

static cairn_status begin(struct cairn_device *d, const struct cairn__class_loss *loss, struct loss_job *o) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    *o = (struct loss_job){.loss = *loss,
                           .cpu = cpu,
                           .k = cpu->kernels,
                           .t = loss->dtype,
                           .r = cairn__r_of(loss->dtype),
                           .rows = (size_t)loss->rows,
                           .classes = (size_t)loss->classes,
                           .inner = (size_t)loss->inner};
    o->tiles = (o->inner + COLUMNS - 1) / COLUMNS;
    cairn_status st = CAIRN_OK;
    TRY(cairn__cpu_as_r(cpu, &cpu->b, o->t, loss->weight, o->classes, &o->weight));
    for (size_t c = 0; c < o->classes; c++) o->total_weight += weight_of(o, c);
out:
    return st;
}

/* ---- lse: for each row its greatest score, and the sum of exponentials ---- */

static void keep(const struct loss_job *o, size_t i, double greatest, double sum) {
    put(o->r, o->loss.lse, 2 * i, greatest);
    put(o->r, o->loss.lse, 2 * i + 1, sum);
}

static double greatest_of(const struct loss_job *o, size_t i) {
    return get(o->r, o->loss.lse, 2 * i);
}

/* The loss of row i from its target's x - greatest, and, if smoothed, the weighted sum of x - greatest. */
static double loss_of(const struct loss_job *o, double weight, double sum, double at_target, double all) {
    const double e = o->loss.smoothing, hard = weight * (log(sum) - at_target);
    return e > 0 ? (1 - e) * hard + e / (double)o->classes * (o->total_weight * log(sum) - all) : hard;
}

/* ---- rows of their own: inner = 1 ---- */

/* Sum over the classes of w[c] (x[c] - greatest). */
static double weighted_sum(const struct loss_job *o, const void *x, double greatest) {
    struct cairn__block wide, centred;
    double sum = 0;
    for (size_t i = 0; i < o->classes; i += CAIRN__BLOCK) {
        const size_t n = o->classes - i < CAIRN__BLOCK ? o->classes - i : CAIRN__BLOCK;
        const void *v = cairn__block_load(o->cpu, o->r, o->t, cairn__element(o->t, x, i), n, &wide);
        cairn__map1(o->k, CAIRN__MAP_AFFINE, o->r, centred.room, v, n, 1, -greatest);
        sum += o->weight ? o->k->dot[o->r](centred.room, cairn__element(o->r, o->weight, i), n)
                         : o->k->fold[CAIRN__FOLD_SUM][o->r](centred.room, n, 0);
    }
    return sum;
}

static void rows_forward(void *ctx, size_t first, size_t end) {
    const struct loss_job *o = ctx;
    for (size_t i = first; i < end; i++) {
        const void *x = cairn__element(o->t, o->loss.x, i * o->classes);
        const int64_t c = class_of(o, i);
        double greatest = 0, sum = 1, all = 0;
        if (c >= 0) {
            cairn__row_exponents(o->cpu, o->t, x, o->classes, &greatest, &sum);
            if (o->loss.smoothing > 0) all = weighted_sum(o, x, greatest);
        }
        keep(o, i, greatest, sum);
        put(o->r, o->losses, i,
            c < 0 ? 0 : loss_of(o, weight_of(o, (size_t)c), sum, get(o->t, x, (size_t)c) - greatest, all));
    }
}

/* ---- rows along inner: a tile is some columns of one row; its column j is row `at + j` of the result ---- */

struct tile {
    const struct loss_job *o;
    size_t row, first, n, at;
    struct columns greatest, sum, all; /* sum and all: f64 */
    struct cairn__block wide, made;
};

static void tile_begin(struct tile *tile, const struct loss_job *o, size_t index) {
    tile->o = o;
    tile->row = index / o->tiles;
    tile->first = index % o->tiles * COLUMNS;
    tile->n = o->inner - tile->first < COLUMNS ? o->inner - tile->first : COLUMNS;
    tile->at = tile->row * o->inner + tile->first;
}

static size_t tile_offset(const struct tile *tile, size_t c) {
    return (tile->row * tile->o->classes + c) * tile->o->inner + tile->first;
}

static const void *tile_scores(struct tile *tile, size_t c) {
    const struct loss_job *o = tile->o;
    return cairn__block_load(o->cpu, o->r, o->t, cairn__element(o->t, o->loss.x, tile_offset(tile, c)), tile->n,
                             &tile->wide);
}

/* x - greatest of class c, in `made`. */
static void tile_centred(struct tile *tile, size_t c) {
    const cairn_dtype r = tile->o->r;
    cairn__map2(tile->o->k, CAIRN__MAP_ADD, r, tile->made.room, tile_scores(tile, c), tile->greatest.room, tile->n, -1);
}

/* Adds the sums of a few classes, in R, to those in f64, and clears them. */
static void close_classes(const struct tile *tile, struct columns *sum, struct columns *part) {
    const struct loss_job *o = tile->o;
    if (o->r == CAIRN_F32) {
        o->k->drain(sum->room, (float *)part->room, tile->n);
    } else {
        o->k->fold_into[CAIRN__FOLD_SUM][CAIRN_F64](sum->room, part->room, tile->n, 0);
        memset(part, 0, sizeof(*part));
    }
}

static void tile_exponents(struct tile *tile) {
    const struct loss_job *o = tile->o;
    struct columns sum = {{0}}, all = {{0}};
    memset(&tile->sum, 0, sizeof(tile->sum));
    memset(&tile->all, 0, sizeof(tile->all));
    for (size_t j = 0; j < tile->n; j++) put(o->r, tile->greatest.room, j, -INFINITY);
    for (size_t c = 0; c < o->classes; c++)
        o->k->fold_into[CAIRN__FOLD_MAX][o->r](tile->greatest.room, tile_scores(tile, c), tile->n, 0);
    for (size_t c = 0; c < o->classes; c++) {
        void *made = tile->made.room;
        tile_centred(tile, c);
        if (o->loss.smoothing > 0)
            cairn__map2(o->k, CAIRN__MAP_ADD, o->r, all.room, all.room, made, tile->n, weight_of(o, c));
        cairn__map1(o->k, CAIRN__MAP_EXP, o->r, made, made, tile->n, 0, 0);
        o->k->fold_into[CAIRN__FOLD_SUM][o->r](sum.room, made, tile->n, 0);
        if ((c + 1) % CAIRN__SUM_ROWS != 0 && c + 1 < o->classes) continue;
        close_classes(tile, &tile->sum, &sum);
        if (o->loss.smoothing > 0) close_classes(tile, &tile->all, &all);
    }
}

static void tiles_forward(void *ctx, size_t first, size_t end) {
    const struct loss_job *o = ctx;
    for (size_t index = first; index < end; index++) {
        struct tile tile;
        tile_begin(&tile, o, index);
        tile_exponents(&tile);
        for (size_t j = 0; j < tile.n; j++) {
            const int64_t c = class_of(o, tile.at + j);
            const double greatest = get(o->r, tile.greatest.room, j), sum = tile.sum.room[j];
            keep(o, tile.at + j, greatest, sum);
            double loss = 0;
            if (c >= 0) {
                const double x = get(o->t, o->loss.x, tile_offset(&tile, (size_t)c) + j);
                loss = loss_of(o, weight_of(o, (size_t)c), sum, x - greatest, tile.all.room[j]);
            }
            put(o->r, o->losses, tile.at + j, loss);
        }
    }
}

/* ---- nll ---- */

static size_t element_of_target(const struct loss_job *o, size_t i, int64_t c) {
    return (i / o->inner * o->classes + (size_t)c) * o->inner + i % o->inner;
}

static void nll_forward(void *ctx, size_t first, size_t end) {
    const struct loss_job *o = ctx;
    for (size_t i = first; i < end; i++) {
        const int64_t c = class_of(o, i);
        put(o->r, o->losses, i,
            c < 0 ? 0 : -weight_of(o, (size_t)c) * get(o->t, o->loss.x, element_of_target(o, i, c)));
    }
}

/* ---- forward ---- */

/* The sum of the weights of all targets. Reports the first target that is no class. */
static double sum_target_weights(struct cairn__cpu *cpu, const struct loss_job *o) {
    double total = 0;
    bool reported = false;
    for (size_t i = 0; i < o->rows * o->inner; i++) {
        const int64_t c = class_of(o, i), target = cairn__index_at(o->loss.target_dtype, o->loss.target, i);
        if (c >= 0) total += weight_of(o, (size_t)c);
        if (c >= 0 || target == o->loss.ignore_index || reported) continue;
        reported = true;
        if (o->loss.bad_target) *o->loss.bad_target |= 1;
        (void)cairn__cpu_is_ok(cpu,
                               cairn__fail(CAIRN_EINVAL,
                                           "%s: target %zu is %lld: neither one of %zu classes nor ignore_index %lld",
                                           o->loss.from_logits ? "cross_entropy" : "nll_loss", i, (long long)target,
                                           o->classes, (long long)o->loss.ignore_index));
    }
    return total;
}

static void reduce(const struct loss_job *o, double total) {
    const size_t n = o->rows * o->inner;
    if (o->loss.total) put(o->r, o->loss.total, 0, total);
    if (o->loss.each) {
        cairn__block_store(o->cpu, o->r, o->t, o->loss.y, o->losses, n);
        return;
    }
    double sum = 0;
    for (size_t i = 0; i < n; i += CAIRN__BLOCK) {
        const size_t count = n - i < CAIRN__BLOCK ? n - i : CAIRN__BLOCK;
        sum += o->k->fold[CAIRN__FOLD_SUM][o->r](cairn__element(o->r, o->losses, i), count, 0);
    }
    put(o->t, o->loss.y, 0, o->loss.mean ? sum / total : sum);
}

void cairn__cpu_class_loss(struct cairn_device *d, const struct cairn__class_loss *loss) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    struct loss_job o;
    if (!cairn__cpu_is_ok(cpu, begin(d, loss, &o))) return;
    const size_t n = o.rows * o.inner;
    if (!cairn__cpu_is_ok(cpu, cairn__cpu_room(&cpu->a, o.r, n, &o.losses))) return;
    const double total = sum_target_weights(cpu, &o);
    if (!loss->from_logits) {
        cairn__parallel_for(n, 4096, nll_forward, &o);
    } else if (o.inner == 1) {
        cairn__parallel_for(o.rows, cairn__rows_grain(o.classes), rows_forward, &o);
    } else {
        cairn__parallel_for(o.rows * o.tiles, cairn__rows_grain(o.classes * COLUMNS), tiles_forward, &o);
    }
    reduce(&o, total);
}

/* ---- backward ---- */

/* The gradient of row i's loss. */
static double dy_of(const struct loss_job *o, size_t i) {
    const double dy = get(o->t, o->loss.dy, o->loss.each ? i : 0);
    return o->loss.mean ? dy / get(o->r, o->loss.total, 0) : dy;
}

/* The factors of p[c], of w[c] (with smoothing), and of the target. */
struct slopes {
    double p, w, target;
};

static struct slopes slopes_of(const struct loss_job *o, size_t i, int64_t c) {
    struct slopes s = {0, 0, 0};
    if (c < 0) return s;
    const double dy = dy_of(o, i), each = o->loss.smoothing / (double)o->classes;
    s.target = -dy * (1 - o->loss.smoothing) * weight_of(o, (size_t)c);
    s.w = -dy * each;
    s.p = (-s.target + dy * each * o->total_weight) / get(o->r, o->loss.lse, 2 * i + 1);
    return s;
}

static void add_at(cairn_dtype r, void *values, size_t i, double more) {
    put(r, values, i, get(r, values, i) + more);
}

static void rows_backward(void *ctx, size_t first, size_t end) {
    const struct loss_job *o = ctx;
    struct cairn__block wide, e, made;
    for (size_t row = first; row < end; row++) {
        const int64_t target = class_of(o, row);
        if (target < 0) {
            memset(cairn__element_of(o->t, o->loss.dx, row * o->classes), 0, o->classes * cairn_dtype_nbytes(o->t));
            continue;
        }
        const struct slopes s = slopes_of(o, row, target);
        const double greatest = greatest_of(o, row);
        for (size_t i = 0; i < o->classes; i += CAIRN__BLOCK) {
            const size_t n = o->classes - i < CAIRN__BLOCK ? o->classes - i : CAIRN__BLOCK, at = row * o->classes + i;
            const void *v = cairn__block_load(o->cpu, o->r, o->t, cairn__element(o->t, o->loss.x, at), n, &wide);
            void *dst = cairn__element_of(o->t, o->loss.dx, at), *dx = cairn__block_for(o->r, o->t, dst, &made);
            cairn__map1(o->k, CAIRN__MAP_SUB_EXP, o->r, e.room, v, n, greatest, 0);
            cairn__map1(o->k, CAIRN__MAP_AFFINE, o->r, dx, e.room, n, s.p, o->weight ? 0 : s.w);
            if (o->weight && s.w != 0)
                cairn__map2(o->k, CAIRN__MAP_ADD, o->r, dx, dx, cairn__element(o->r, o->weight, i), n, s.w);
            if ((size_t)target - i < n) add_at(o->r, dx, (size_t)target - i, s.target);
            cairn__block_store(o->cpu, o->r, o->t, dst, dx, n);
        }
    }
}

/* Ignored columns have slopes of 0 and a greatest of +inf, so that e^(x - inf) = 0. */
static void tile_backward(struct tile *tile) {
    const struct loss_job *o = tile->o;
    struct columns p, w;
    struct slopes s[COLUMNS];
    int64_t target[COLUMNS];
    for (size_t j = 0; j < tile->n; j++) {
        target[j] = class_of(o, tile->at + j);
        s[j] = slopes_of(o, tile->at + j, target[j]);
        put(o->r, tile->greatest.room, j, target[j] < 0 ? INFINITY : greatest_of(o, tile->at + j));
        put(o->r, p.room, j, s[j].p);
        put(o->r, w.room, j, s[j].w);
    }
    for (size_t c = 0; c < o->classes; c++) {
        void *e = tile->made.room, *dst = cairn__element_of(o->t, o->loss.dx, tile_offset(tile, c));
        tile_centred(tile, c);
        cairn__map1(o->k, CAIRN__MAP_EXP, o->r, e, e, tile->n, 0, 0);
        cairn__map2(o->k, CAIRN__MAP_MUL, o->r, e, e, p.room, tile->n, 0);
        if (o->loss.smoothing > 0) cairn__map2(o->k, CAIRN__MAP_ADD, o->r, e, e, w.room, tile->n, weight_of(o, c));
        for (size_t j = 0; j < tile->n; j++) {
            if (target[j] == (int64_t)c) add_at(o->r, e, j, s[j].target);
        }
        cairn__block_store(o->cpu, o->r, o->t, dst, e, tile->n);
    }
}

static void tiles_backward(void *ctx, size_t first, size_t end) {
    for (size_t index = first; index < end; index++) {
        struct tile tile;
        tile_begin(&tile, ctx, index);
        tile_backward(&tile);
    }
}

static void nll_backward(const struct loss_job *o) {
    memset(o->loss.dx, 0, o->rows * o->classes * o->inner * cairn_dtype_nbytes(o->t));
    for (size_t i = 0; i < o->rows * o->inner; i++) {
        const int64_t c = class_of(o, i);
        if (c >= 0) put(o->t, o->loss.dx, element_of_target(o, i, c), -dy_of(o, i) * weight_of(o, (size_t)c));
    }
}

void cairn__cpu_class_loss_backward(struct cairn_device *d, const struct cairn__class_loss *loss) {
    struct loss_job o;
    if (!cairn__cpu_is_ok(cairn__cpu_of(d), begin(d, loss, &o))) return;
    if (!loss->from_logits) {
        nll_backward(&o);
    } else if (o.inner == 1) {
        cairn__parallel_for(o.rows, cairn__rows_grain(o.classes), rows_backward, &o);
    } else {
        cairn__parallel_for(o.rows * o.tiles, cairn__rows_grain(o.classes * COLUMNS), tiles_backward, &o);
    }
}
