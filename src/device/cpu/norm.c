/* Layer, RMS, group and batch normalisation.
 *
 * Statistics are R, in two passes (kernels/rows.h); an element is widened, normalised and rounded in one step. Norms
 * over rows (layer, RMS) have weights along the row; norms over planes have one weight per plane. Batch normalisation
 * of a matrix is neither: its groups are columns, which are folded row by row. */
#include <math.h>
#include <string.h>

#include "core/parallel.h"
#include "core/status.h"
#include "device/cpu/rows.h"
#include "kernels/moments.h"

struct norming {
    struct cairn__norm norm;
    struct cairn__cpu *cpu;
    const struct cairn__kernels *k;
    cairn_dtype t, r;
    size_t outer, channels, inner;
    const void *weight, *bias; /* R */
    size_t rows_a_piece;
    char *partial;  /* R: sums of the last few rows of each piece, dweight [channels] and dbias [channels] */
    double *pieces; /* the sums of each piece, in the same order */
    double *sums;   /* of planes: [outer, channels, 2] */
};

static double get(cairn_dtype t, const void *x, size_t i) {
    return cairn__block_get(t, cairn__element(t, x, i));
}

static void put(cairn_dtype t, void *x, size_t i, double value) {
    cairn__block_put(t, cairn__element_of(t, x, i), value);
}

static double mean_of(const struct norming *o, size_t group) {
    return o->norm.kind == CAIRN__NORM_RMS ? 0 : get(o->r, o->norm.mean, group);
}

static double rstd_of(const struct norming *o, size_t group) {
    return get(o->r, o->norm.rstd, group);
}

static double weight_of(const struct norming *o, size_t channel) {
    return o->weight ? get(o->r, o->weight, channel) : 1;
}

static double bias_of(const struct norming *o, size_t channel) {
    return o->bias ? get(o->r, o->bias, channel) : 0;
}

static double rounded(cairn_dtype r, double value) {
    return r == CAIRN_F64 ? value : (float)value;
}

static cairn_status begin(struct cairn_device *d, const struct cairn__norm *norm, struct norming *o) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const cairn_dtype r = cairn__r_of(norm->dtype);
    cairn_status st = CAIRN_OK;
    *o = (struct norming){.norm = *norm,
                          .cpu = cpu,
                          .k = cpu->kernels,
                          .t = norm->dtype,
                          .r = r,
                          .outer = (size_t)norm->outer,
                          .channels = (size_t)norm->channels,
                          .inner = (size_t)norm->inner};
    TRY(cairn__cpu_as_r(cpu, &cpu->b, norm->affine_dtype, norm->weight, o->channels, &o->weight));
    TRY(cairn__cpu_as_r(cpu, &cpu->c, norm->affine_dtype, norm->bias, o->channels, &o->bias));
out:
    return st;
}

static void keep_stats(const struct norming *o, size_t group, double mean, double variance) {
    if (o->norm.kind != CAIRN__NORM_RMS) put(o->r, o->norm.mean, group, mean);
    if (o->norm.variance) put(o->r, o->norm.variance, group, variance);
    put(o->r, o->norm.rstd, group, 1 / sqrt(variance + o->norm.eps));
}

/* The two numbers of a channel that are added up over the shares of a batch. */
static double *shared_of(const struct norming *o, size_t channel) {
    return &o->norm.shared[1 + 2 * channel];
}

static double count_of(const struct cairn__norm *norm) {
    return norm->share == CAIRN__NORM_TAKES ? norm->shared[0] : (double)norm->outer * (double)norm->inner;
}

static void keep_or_tell(const struct norming *o, size_t group, double mean, double variance) {
    if (o->norm.share == CAIRN__NORM_TELLS) {
        shared_of(o, group)[0] = mean;
        shared_of(o, group)[1] = variance;
    } else {
        keep_stats(o, group, mean, variance);
    }
}

static void keep_shared(const struct norming *o, size_t first, size_t end) {
    for (size_t c = first; c < end; c++) keep_stats(o, c, shared_of(o, c)[0], shared_of(o, c)[1]);
}

static void find_stats(const struct norming *o, size_t group, const void *x, const struct cairn__runs *runs) {
    double mean, variance;
    if (o->norm.given_stats) return;
    if (o->norm.share == CAIRN__NORM_TAKES) {
        keep_shared(o, group, group + 1);
        return;
    }
    o->k->moments[o->t](x, runs, o->norm.kind != CAIRN__NORM_RMS, &mean, &variance);
    keep_or_tell(o, group, mean, variance);
}

/* ---- rows ---- */

static void rows_forward(void *ctx, size_t first, size_t end) {
    const struct norming *o = ctx;
    const size_t n = o->channels;
    const struct cairn__runs runs = {1, n, n};
    for (size_t row = first; row < end; row++) {
        const void *x = cairn__element(o->t, o->norm.x, row * n);
        find_stats(o, row, x, &runs);
        o->k->norm_row[o->t](cairn__element_of(o->t, o->norm.y, row * n), x, o->weight, o->bias, n, mean_of(o, row),
                             rstd_of(o, row));
    }
}

static void *partial_of(const struct norming *o, size_t piece, bool is_bias) {
    return cairn__element_of(o->r, o->partial, (2 * piece + is_bias) * o->channels);
}

static double *piece_of(const struct norming *o, size_t piece, bool is_bias) {
    return o->pieces + (2 * piece + is_bias) * o->channels;
}

/* Adds n sums in R to those in f64, and resets those in R. */
static void close_rows(const struct norming *o, double *sums, void *part, size_t n) {
    if (o->r == CAIRN_F32) {
        o->k->drain(sums, part, n);
    } else {
        o->k->fold_into[CAIRN__FOLD_SUM][CAIRN_F64](sums, part, n, 0);
        memset(part, 0, n * sizeof(double));
    }
}

static void rows_backward(void *ctx, size_t first, size_t end) {
    const struct norming *o = ctx;
    const size_t piece = first / o->rows_a_piece;
    if (o->pieces) { /* cleared by the thread that adds to them, so they are in its cache */
        memset(piece_of(o, piece, false), 0, 2 * o->channels * sizeof(double));
        memset(partial_of(o, piece, false), 0, 2 * o->channels * cairn_dtype_nbytes(o->r));
    }
    for (size_t next; first < end; first = next) {
        next = end - first < CAIRN__SUM_ROWS ? end : first + CAIRN__SUM_ROWS;
        const size_t at = first * o->channels;
        const struct cairn__norm_rows rows = {
            .dy = cairn__element(o->t, o->norm.dy, at),
            .x = cairn__element(o->t, o->norm.x, at),
            .weight = o->weight,
            .dx = o->norm.dx ? cairn__element_of(o->t, o->norm.dx, at) : NULL,
            .dweight = o->norm.dweight ? partial_of(o, piece, false) : NULL,
            .dbias = o->norm.dbias ? partial_of(o, piece, true) : NULL,
            .rows = next - first,
            .n = o->channels,
            .mean = o->norm.kind == CAIRN__NORM_RMS ? NULL : cairn__element(o->r, o->norm.mean, first),
            .rstd = cairn__element(o->r, o->norm.rstd, first),
        };
        o->k->norm_rows_backward[o->t](&rows);
        if (o->pieces) close_rows(o, piece_of(o, piece, false), partial_of(o, piece, false), 2 * o->channels);
    }
}

/* Adds up the sums of all pieces, in order, and rounds them to R and then to their own type. */
static void add_pieces(const struct norming *o, size_t pieces, bool is_bias, void *dst) {
    if (!dst) return;
    double *sum = piece_of(o, 0, is_bias);
    void *rounded_sum = partial_of(o, 0, is_bias);
    for (size_t p = 1; p < pieces; p++)
        o->k->fold_into[CAIRN__FOLD_SUM][CAIRN_F64](sum, piece_of(o, p, is_bias), o->channels, 0);
    for (size_t c = 0; c < o->channels; c++) {
        if (o->r == CAIRN_F32) ((float *)rounded_sum)[c] = (float)sum[c];
        else ((double *)rounded_sum)[c] = sum[c];
    }
    cairn__block_store(o->cpu, o->r, o->norm.affine_dtype, dst, rounded_sum, o->channels);
}

/* Rows are divided into at most 16 pieces, independent of the number of threads, each with sums of its own. */
static cairn_status all_rows_backward(struct norming *o) {
    const size_t most = 16, least = 16;
    void *room = NULL;
    o->rows_a_piece = (o->outer + most - 1) / most;
    if (o->rows_a_piece < least) o->rows_a_piece = least;
    const size_t pieces = o->outer ? (o->outer + o->rows_a_piece - 1) / o->rows_a_piece : 1;
    const size_t sums = pieces * 2 * o->channels;
    if (o->norm.dweight || o->norm.dbias) {
        const size_t width = sizeof(double) + cairn_dtype_nbytes(o->r); /* of a sum and its part in R */
        cairn_status st = cairn__cpu_room(&o->cpu->a, CAIRN_F32, sums * width / sizeof(float), &room);
        if (st != CAIRN_OK) return st;
        o->pieces = room;
        o->partial = (char *)(o->pieces + sums);
    }
    cairn__parallel_for(o->outer, o->rows_a_piece, rows_backward, o);
    add_pieces(o, pieces, false, o->norm.dweight);
    add_pieces(o, pieces, true, o->norm.dbias);
    return CAIRN_OK;
}

/* ---- planes: a channel is a group, its planes are `channels * inner` apart ---- */

static struct cairn__runs runs_of_channel(const struct norming *o) {
    return (struct cairn__runs){o->outer, o->inner, o->channels * o->inner};
}

static void channels_forward(void *ctx, size_t first, size_t end) {
    const struct norming *o = ctx;
    const struct cairn__runs runs = runs_of_channel(o);
    for (size_t c = first; c < end; c++) {
        const void *x = cairn__element(o->t, o->norm.x, c * o->inner);
        find_stats(o, c, x, &runs);
        if (o->norm.share == CAIRN__NORM_TELLS) continue;
        o->k->norm_runs[o->t](cairn__element_of(o->t, o->norm.y, c * o->inner), x, &runs, mean_of(o, c),
                              rounded(o->r, rstd_of(o, c) * weight_of(o, c)), bias_of(o, c));
    }
}

static void write_affine(const struct norming *o, size_t c, double dweight, double dbias) {
    if (o->norm.dweight) put(o->norm.affine_dtype, o->norm.dweight, c, dweight);
    if (o->norm.dbias) put(o->norm.affine_dtype, o->norm.dbias, c, dbias);
}

/* sums: a channel's sum(dy) and sum(dy * (x - mean)) over x. With CAIRN__NORM_TAKES they are replaced by those
 * of the whole batch. */
static void use_sums(const struct norming *o, size_t c, double sums[2]) {
    if (o->norm.share == CAIRN__NORM_TAKES) {
        memcpy(sums, shared_of(o, c), 2 * sizeof(sums[0]));
        return;
    }
    if (o->norm.share == CAIRN__NORM_TELLS) memcpy(shared_of(o, c), sums, 2 * sizeof(sums[0]));
    write_affine(o, c, sums[1] * rstd_of(o, c), sums[0]);
}

static void channels_backward(void *ctx, size_t first, size_t end) {
    const struct norming *o = ctx;
    const struct cairn__runs runs = runs_of_channel(o);
    const double n = count_of(&o->norm);
    for (size_t c = first; c < end; c++) {
        const void *x = cairn__element(o->t, o->norm.x, c * o->inner);
        const void *dy = cairn__element(o->t, o->norm.dy, c * o->inner);
        const double mean = mean_of(o, c), rstd = rstd_of(o, c), a = rstd * weight_of(o, c);
        double sums[2] = {0, 0};
        if (o->norm.share != CAIRN__NORM_TAKES) o->k->norm_runs_sums[o->t](dy, x, &runs, mean, sums);
        use_sums(o, c, sums);
        if (!o->norm.dx) continue;
        const double b = o->norm.given_stats ? 0 : -a * rstd * rstd * sums[1] / n;
        const double shift = o->norm.given_stats ? 0 : -a * sums[0] / n;
        o->k->norm_runs_backward[o->t](cairn__element_of(o->t, o->norm.dx, c * o->inner), dy, x, &runs, mean, a, b,
                                       shift);
    }
}

/* ---- groups: neighbouring channels of one outer index ---- */

static void groups_forward(void *ctx, size_t first, size_t end) {
    const struct norming *o = ctx;
    const size_t per = (size_t)o->norm.per, channels = o->channels / per, n = channels * o->inner;
    const struct cairn__runs whole = {1, n, n}, plane = {1, o->inner, o->inner};
    for (size_t g = first; g < end; g++) {
        find_stats(o, g, cairn__element(o->t, o->norm.x, g * n), &whole);
        for (size_t j = 0; j < channels; j++) {
            const size_t c = g % per * channels + j, at = g * n + j * o->inner;
            o->k->norm_runs[o->t](cairn__element_of(o->t, o->norm.y, at), cairn__element(o->t, o->norm.x, at), &plane,
                                  mean_of(o, g), rounded(o->r, rstd_of(o, g) * weight_of(o, c)), bias_of(o, c));
        }
    }
}

static void groups_backward(void *ctx, size_t first, size_t end) {
    const struct norming *o = ctx;
    const size_t per = (size_t)o->norm.per, channels = o->channels / per, n = channels * o->inner;
    const struct cairn__runs plane = {1, o->inner, o->inner};
    for (size_t g = first; g < end; g++) {
        const double mean = mean_of(o, g), rstd = rstd_of(o, g);
        double *sums = o->sums + 2 * g * channels, s1 = 0, s2 = 0;
        for (size_t j = 0; j < channels; j++) {
            const size_t at = g * n + j * o->inner;
            o->k->norm_runs_sums[o->t](cairn__element(o->t, o->norm.dy, at), cairn__element(o->t, o->norm.x, at),
                                       &plane, mean, &sums[2 * j]);
            s1 += weight_of(o, g % per * channels + j) * sums[2 * j];
            s2 += weight_of(o, g % per * channels + j) * sums[2 * j + 1];
        }
        for (size_t j = 0; o->norm.dx && j < channels; j++) {
            const size_t at = g * n + j * o->inner;
            o->k->norm_runs_backward[o->t](cairn__element_of(o->t, o->norm.dx, at),
                                           cairn__element(o->t, o->norm.dy, at), cairn__element(o->t, o->norm.x, at),
                                           &plane, mean, rstd * weight_of(o, g % per * channels + j),
                                           -rstd * rstd * rstd * s2 / (double)n, -rstd * s1 / (double)n);
        }
    }
}

static void add_outer(void *ctx, size_t first, size_t end) {
    const struct norming *o = ctx;
    const size_t per = (size_t)o->norm.per, channels = o->channels / per;
    for (size_t c = first; c < end; c++) {
        double dweight = 0, dbias = 0;
        for (size_t i = 0; i < o->outer; i++) {
            const double *sums = o->sums + 2 * (i * o->channels + c);
            dbias += sums[0];
            dweight += sums[1] * rstd_of(o, i * per + c / channels);
        }
        write_affine(o, c, dweight, dbias);
    }
}

static cairn_status all_groups_backward(struct norming *o) {
    void *sums = NULL;
    cairn_status st = cairn__cpu_room(&o->cpu->a, CAIRN_F64, 2 * o->outer * o->channels, &sums);
    if (st != CAIRN_OK) return st;
    o->sums = sums;
    const size_t per = (size_t)o->norm.per;
    cairn__parallel_for(o->outer * per, cairn__rows_grain(o->channels / per * o->inner), groups_backward, o);
    cairn__parallel_for(o->channels, cairn__rows_grain(o->outer), add_outer, o);
    return CAIRN_OK;
}

/* ---- columns: channels with inner = 1, some of them at a time, row by row ---- */

enum { COLUMNS = 256 };

struct columns {
    _Alignas(64) double room[COLUMNS];
};

struct strip {
    const struct norming *o;
    size_t first, n; /* columns */
    struct columns mean, rstd;
    struct cairn__block wide_x, wide_dy, made;
};

/* Row i of x or dy as R. */
static const void *strip_row(const struct strip *s, const void *x, size_t i, struct cairn__block *wide) {
    const struct norming *o = s->o;
    return cairn__block_load(o->cpu, o->r, o->t, cairn__element(o->t, x, i * o->channels + s->first), s->n, wide);
}

/* x - mean of row i, in `made`. */
static const void *strip_centred(struct strip *s, size_t i) {
    const struct norming *o = s->o;
    cairn__map2(o->k, CAIRN__MAP_ADD, o->r, s->made.room, strip_row(s, o->norm.x, i, &s->wide_x), s->mean.room, s->n,
                -1);
    return s->made.room;
}

/* Sums of each column: of a few rows in R, and of all rows in f64. Parts are adjacent, so that no two that are used in
 * turn are a page apart. */
enum { STRIP_SUMS = 3 };

struct sums {
    struct columns part[STRIP_SUMS], all[STRIP_SUMS];
};

static void close_parts(const struct norming *o, struct sums *sums, int first, int end, size_t n) {
    for (int i = first; i < end; i++) close_rows(o, sums->all[i].room, sums->part[i].room, n);
}

/* Whether parts are added to the f64 sums after row i of the columns. */
static bool closes(const struct norming *o, size_t i) {
    return (i + 1) % CAIRN__SUM_ROWS == 0 || i + 1 == o->outer;
}

/* Computes the statistics like the kernel `moments`, column by column. */
static void strip_stats(struct strip *s) {
    const struct norming *o = s->o;
    const double n = (double)o->outer;
    enum { D, SQUARES, MEAN };
    struct sums sums;
    memset(&sums, 0, sizeof(sums));
    for (size_t i = 0; i < o->outer; i++) {
        o->k->fold_into[CAIRN__FOLD_SUM][o->r](sums.part[MEAN].room, strip_row(s, o->norm.x, i, &s->wide_x), s->n, 0);
        if (closes(o, i)) close_parts(o, &sums, MEAN, MEAN + 1, s->n);
    }
    for (size_t c = 0; c < s->n; c++) put(o->r, s->mean.room, c, sums.all[MEAN].room[c] / n);
    for (size_t i = 0; i < o->outer; i++) {
        const void *d = strip_centred(s, i);
        o->k->fold_into[CAIRN__FOLD_SUM][o->r](sums.part[D].room, d, s->n, 0);
        o->k->fold_into[CAIRN__FOLD_SUM_SQUARES][o->r](sums.part[SQUARES].room, d, s->n, 0);
        if (closes(o, i)) close_parts(o, &sums, D, SQUARES + 1, s->n);
    }
    for (size_t c = 0; c < s->n; c++) {
        const double d = sums.all[D].room[c], q = sums.all[SQUARES].room[c] - d * d / n;
        keep_or_tell(o, s->first + c, get(o->r, s->mean.room, c) + d / n, q < 0 ? 0 : q / n);
    }
}

static void strip_begin(struct strip *s, const struct norming *o, size_t first, size_t end) {
    const bool is_forward = o->norm.y != NULL;
    s->o = o;
    s->first = first;
    s->n = end - first;
    if (is_forward && o->norm.share == CAIRN__NORM_TAKES) keep_shared(o, first, end);
    if (is_forward && o->norm.share != CAIRN__NORM_TAKES && !o->norm.given_stats) strip_stats(s);
    const size_t nbytes = s->n * cairn_dtype_nbytes(o->r);
    memcpy(s->mean.room, cairn__element(o->r, o->norm.mean, first), nbytes);
    memcpy(s->rstd.room, cairn__element(o->r, o->norm.rstd, first), nbytes);
}

static void columns_forward(void *ctx, size_t first, size_t end) {
    const struct norming *o = ctx;
    struct strip s;
    struct columns scale, shift;
    strip_begin(&s, o, first, end);
    if (o->norm.share == CAIRN__NORM_TELLS) return;
    for (size_t c = 0; c < s.n; c++) {
        put(o->r, scale.room, c, rstd_of(o, first + c) * weight_of(o, first + c));
        put(o->r, shift.room, c, bias_of(o, first + c));
    }
    for (size_t i = 0; i < o->outer; i++) {
        const void *d = strip_centred(&s, i);
        void *dst = cairn__element_of(o->t, o->norm.y, i * o->channels + first);
        void *y = cairn__block_for(o->r, o->t, dst, &s.wide_x);
        o->k->map[CAIRN__MAP_ADDCMUL][o->r](y, (const void *[]){shift.room, d, scale.room}, s.n, (double[]){1, 0});
        cairn__block_store(o->cpu, o->r, o->t, dst, y, s.n);
    }
}

/* dx = dy * a + ((x - mean) * b + c), as for planes. */
static void strip_dx(struct strip *s, const struct columns *a, const struct columns *b, const struct columns *c) {
    const struct norming *o = s->o;
    for (size_t i = 0; i < o->outer; i++) {
        const void *d = strip_centred(s, i), *dy = strip_row(s, o->norm.dy, i, &s->wide_dy);
        void *dst = cairn__element_of(o->t, o->norm.dx, i * o->channels + s->first);
        void *dx = cairn__block_for(o->r, o->t, dst, &s->wide_x);
        o->k->map[CAIRN__MAP_ADDCMUL][o->r](s->made.room, (const void *[]){c->room, d, b->room}, s->n,
                                            (double[]){1, 0});
        o->k->map[CAIRN__MAP_ADDCMUL][o->r](dx, (const void *[]){s->made.room, dy, a->room}, s->n, (double[]){1, 0});
        cairn__block_store(o->cpu, o->r, o->t, dst, dx, s->n);
    }
}

/* Sums of the columns of dy, and of dy * (x - mean). */
static void strip_sums(struct strip *s, struct sums *sums) {
    const struct norming *o = s->o;
    void *sum = sums->part[0].room, *product = sums->part[1].room;
    for (size_t i = 0; i < o->outer; i++) {
        const void *d = strip_centred(s, i), *dy = strip_row(s, o->norm.dy, i, &s->wide_dy);
        o->k->fold_into[CAIRN__FOLD_SUM][o->r](sum, dy, s->n, 0);
        o->k->map[CAIRN__MAP_ADDCMUL][o->r](product, (const void *[]){product, dy, d}, s->n, (double[]){1, 0});
        if (closes(o, i)) close_parts(o, sums, 0, 2, s->n);
    }
}

static void columns_backward(void *ctx, size_t first, size_t end) {
    const struct norming *o = ctx;
    const double n = count_of(&o->norm);
    struct strip s;
    struct sums all;
    struct columns a, b, shift;
    memset(&all, 0, sizeof(all));
    strip_begin(&s, o, first, end);
    if (o->norm.share != CAIRN__NORM_TAKES) strip_sums(&s, &all);
    for (size_t c = 0; c < s.n; c++) {
        const double rstd = rstd_of(o, first + c), scale = rstd * weight_of(o, first + c);
        double sums[] = {all.all[0].room[c], all.all[1].room[c]};
        use_sums(o, first + c, sums);
        put(o->r, a.room, c, scale);
        put(o->r, b.room, c, o->norm.given_stats ? 0 : -scale * rstd * rstd * sums[1] / n);
        put(o->r, shift.room, c, o->norm.given_stats ? 0 : -scale * sums[0] / n);
    }
    if (o->norm.dx) strip_dx(&s, &a, &b, &shift);
}

/* ---- the passes ---- */

static bool is_empty(const struct cairn__norm *norm) {
    return norm->outer * norm->channels * norm->inner == 0;
}

/* A share of a batch may have no values: it reports that, and takes the statistics of the others. */
static void tell_count(const struct cairn__norm *norm) {
    if (norm->share != CAIRN__NORM_TELLS) return;
    if (is_empty(norm)) memset(norm->shared, 0, (1 + 2 * (size_t)norm->channels) * sizeof(norm->shared[0]));
    norm->shared[0] = count_of(norm);
}

void cairn__cpu_norm(struct cairn_device *d, const struct cairn__norm *norm) {
    struct norming o;
    tell_count(norm);
    if (is_empty(norm) && norm->share != CAIRN__NORM_TAKES) return;
    if (!cairn__cpu_is_ok(cairn__cpu_of(d), begin(d, norm, &o))) return;
    if (is_empty(norm)) {
        keep_shared(&o, 0, o.channels);
        return;
    }
    switch (norm->kind) {
    case CAIRN__NORM_ROWS:
    case CAIRN__NORM_RMS:
        cairn__parallel_for(o.outer, cairn__rows_grain(o.channels), rows_forward, &o);
        break;
    case CAIRN__NORM_CHANNELS:
        if (o.inner == 1) {
            cairn__parallel_for(o.channels, COLUMNS, columns_forward, &o);
        } else {
            cairn__parallel_for(o.channels, cairn__rows_grain(o.outer * o.inner), channels_forward, &o);
        }
        break;
    case CAIRN__NORM_GROUPS: {
        const size_t per = (size_t)norm->per;
        cairn__parallel_for(o.outer * per, cairn__rows_grain(o.channels / per * o.inner), groups_forward, &o);
        break;
    }
    }
}

void cairn__cpu_norm_backward(struct cairn_device *d, const struct cairn__norm *norm) {
    struct norming o;
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    tell_count(norm);
    if (is_empty(norm)) {
        const size_t nbytes = (size_t)norm->channels * cairn_dtype_nbytes(norm->affine_dtype);
        if (norm->dweight) memset(norm->dweight, 0, nbytes);
        if (norm->dbias) memset(norm->dbias, 0, nbytes);
        return;
    }
    if (!cairn__cpu_is_ok(cpu, begin(d, norm, &o))) return;
    o.norm.y = NULL;
    switch (norm->kind) {
    case CAIRN__NORM_ROWS:
    case CAIRN__NORM_RMS:
        (void)cairn__cpu_is_ok(cpu, all_rows_backward(&o));
        break;
    case CAIRN__NORM_CHANNELS:
        if (o.inner == 1) {
            cairn__parallel_for(o.channels, COLUMNS, columns_backward, &o);
        } else {
            cairn__parallel_for(o.channels, cairn__rows_grain(o.outer * o.inner), channels_backward, &o);
        }
        break;
    case CAIRN__NORM_GROUPS:
        (void)cairn__cpu_is_ok(cpu, all_groups_backward(&o));
        break;
    }
}

void cairn__cpu_batch_stats(struct cairn_device *d, cairn_dtype running_dtype, void *running_mean, void *running_var,
                            const struct cairn__norm *norm, double momentum) {
    const cairn_dtype r = cairn__r_of(norm->dtype), t = running_dtype;
    const double n = count_of(norm);
    (void)d;
    if (n == 0) return;
    for (size_t c = 0; c < (size_t)norm->channels; c++) {
        const double mean = get(r, norm->mean, c), variance = get(r, norm->variance, c) * n / (n - 1);
        put(t, running_mean, c, (1 - momentum) * get(t, running_mean, c) + momentum * mean);
        put(t, running_var, c, (1 - momentum) * get(t, running_var, c) + momentum * variance);
    }
}

void cairn__cpu_merge_moments(struct cairn_device *d, double *shared, const double *all, size_t shares,
                              size_t channels) {
    const size_t stride = 1 + 2 * channels;
    const double total = cairn__total_count(all, shares, stride);
    (void)d;
    shared[0] = total;
    for (size_t c = 0; c < channels && total > 0; c++) {
        const size_t at = 1 + 2 * c;
        cairn__merge_pair(&shared[at], all, shares, stride, at, total);
    }
}
