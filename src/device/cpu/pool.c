/* Pooling on the CPU: one row of outputs at a time, and one tap of the window after the other, so that inner loops run
 * along rows. Planes are independent. Halves are widened as a whole into kept scratch, and results are rounded from
 * there.
 *
 * An average adds its window up tap by tap in row-major order, then divides once; its gradient divides first. In f32,
 * after FEW taps the sums of a piece of a row are drained into f64, so that kernels.h's bound holds; where more than
 * FEW gradients may meet in one input, each row of inputs gathers them like that. Gradients of maxima and of adaptive
 * averages are scattered: MANY terms in f32, in order, are within 24 roundings, 1.43e-6 of their absolute values' sum
 * (3.3e-7 over the data of tests/nn/sums_test.c); where more may meet, they go to planes of f64. */
#include <math.h>
#include <string.h>

#include "core/parallel.h"
#include "core/status.h"
#include "device/cpu/blocks.h"
#include "device/cpu/cpu_math.h"
#include "device/cpu/reach.h"
#include "device/math_passes.h"

enum { KEPT_TAPS = 16, FEW = CAIRN__SUM_ROWS, MANY = 25 };
enum { WORTH = 16 << 10, ROUNDED = 512 }; /* inputs of a piece; number of inputs that are rounded at once */

/* The inputs of one output: `count` runs of `n`, a row of the plane apart. */
struct window {
    int64_t at, n, count;
    int32_t width, height;
};

/* Functions over n outputs, for adjacent taps. The input of the first tap and output is x[0] or dx[0]; the inputs of
 * neighbouring outputs are `stride` apart. */
struct rows {
    /* index: position of x[0] in its plane. at < 0: no maximum yet. Of equal inputs the first stays; a NaN replaces
     * whatever is there, also an earlier NaN. */
    void (*max)(void *y, int32_t *at, const void *x, int32_t index, int64_t n, int64_t stride, int64_t taps);
    void (*add)(void *y, const void *x, int64_t n, int64_t stride, int64_t taps);
    void (*add_back)(void *dx, const void *dy, int64_t n, int64_t stride, int64_t taps);
    void (*scatter)(void *dx, const void *dy, const int32_t *at, int64_t n); /* skips outputs with at < 0 */
    void (*fill)(void *y, double value, int64_t n);
    void (*divide)(void *y, const void *x, const int32_t *widths, int64_t height, int64_t n); /* by width * height */
    /* For adaptive averages: y[i] = sum of x / area, of n windows that lie one after the other; dx = dy[i] / area; for
     * one row of a window, dx += dy[0] / area. */
    void (*means)(void *y, const void *x, int64_t n, const struct window *w);
    void (*shares)(void *dx, const void *dy, int64_t n, const struct window *w);
    void (*add_share)(void *dx, const void *dy, int64_t n, const struct window *w);
};

#define R        float
#define BITS     uint32_t
#define NAMED(x) x##_f32
#include "device/cpu/pool_rows.h"
#undef R
#undef BITS
#undef NAMED
#define R        double
#define BITS     uint64_t
#define NAMED(x) x##_f64
#include "device/cpu/pool_rows.h"

struct job {
    struct cairn__pool pool; /* x, y, dy and dx are R here; dx NULL = forward */
    const struct rows *rows;
    const struct cairn__kernels *kernels;
    size_t nbytes; /* of R */
    struct cairn__reach taps[KEPT_TAPS];
    int64_t first_tap;        /* the first tap that reaches into the plane anywhere in a row */
    int64_t whole, whole_end; /* outputs whose taps are all inside and computed at once; may be empty */
    int32_t *widths;          /* [q]: columns that an average divides by */
    char *parts;              /* of an average's gradient: dy, divided */
    double *sums;             /* f32 gradients added in f64: the sums of all slots; in a slot's job its own */
    size_t slots;
    uint32_t mask; /* a slot's number of places, a power of two, less 1: input i has sums[i & mask] */
    void (*row)(const struct job *j, size_t plane, int64_t p);
};

static const char *x_plane(const struct job *j, size_t plane) {
    return (const char *)j->pool.x + plane * (size_t)(j->pool.h * j->pool.w) * j->nbytes;
}

static char *dx_plane(const struct job *j, size_t plane) {
    return (char *)j->pool.dx + plane * (size_t)(j->pool.h * j->pool.w) * j->nbytes;
}

static size_t row_of(const struct job *j, size_t plane, int64_t p) {
    return (plane * (size_t)j->pool.p + (size_t)p) * (size_t)j->pool.q;
}

/* ---- windows ---- */

static struct cairn__reach reach_of(const struct cairn__pool *v, int64_t tap) {
    return cairn__reach(tap * v->dilation[1] - v->padding[1], v->w, v->q, v->stride[1]);
}

static struct cairn__reach tap_of(const struct job *j, int64_t s) {
    return s < KEPT_TAPS ? j->taps[s] : reach_of(&j->pool, s);
}

/* The divisor of an average along an axis: without padding the inputs inside the plane; with padding those inside the
 * padded plane, beyond which windows of ceil_mode reach. */
static int64_t extent(const struct cairn__pool *v, int axis, int64_t out) {
    const int64_t size = axis ? v->w : v->h, begin = out * v->stride[axis] - v->padding[axis];
    const int64_t limit = v->count_padding ? size + v->padding[axis] : size;
    const int64_t end = begin + v->kernel[axis] < limit ? begin + v->kernel[axis] : limit;
    const int64_t from = v->count_padding || begin > 0 ? begin : 0;
    return end > from ? end - from : 1; /* nothing inside: 0 / 1 */
}

/* The outputs out..end-1 of a row that begins at `row`, for `taps` adjacent taps. At output `out` the first of these
 * taps has the input `in` of its plane. */
struct piece {
    size_t plane, row;
    int64_t out, end, in, taps;
};
typedef void (*piece_fn)(const struct job *j, const struct piece *piece);

/* The first tap that is `below` inputs or more from the window's first. */
static int64_t least_tap(int64_t below, int64_t dilation) {
    return below > 0 ? (below + dilation - 1) / dilation : 0;
}

/* Applies f to one tap, except for the outputs that are computed at once. */
static void do_tap(const struct job *j, struct piece piece, struct cairn__reach at, piece_fn f) {
    const int64_t start = piece.in;
    for (int side = 0; side < 2; side++) {
        piece.out = side == 0 || at.begin > j->whole_end ? at.begin : j->whole_end;
        piece.end = side == 1 || at.end < j->whole ? at.end : j->whole;
        piece.in = start + at.at + (piece.out - at.begin) * j->pool.stride[1];
        if (piece.out < piece.end) f(j, &piece);
    }
}

/* Applies f to a row of outputs, for the taps that lie inside: a window may be far larger than the plane and its
 * padding. */
static void each_tap(const struct job *j, size_t plane, int64_t p, piece_fn f) {
    const struct cairn__pool *v = &j->pool;
    const int64_t top = p * v->stride[0] - v->padding[0];
    struct piece piece = {.plane = plane, .row = row_of(j, plane, p)};
    for (int64_t r = least_tap(-top, v->dilation[0]); r < v->kernel[0]; r++) {
        const int64_t y = top + r * v->dilation[0];
        if (y >= v->h) break;
        if (j->whole < j->whole_end) {
            piece.taps = v->kernel[1], piece.out = j->whole, piece.end = j->whole_end;
            piece.in = y * v->w + j->whole * v->stride[1] - v->padding[1];
            f(j, &piece);
        }
        piece.taps = 1;
        for (int64_t s = j->first_tap; s < v->kernel[1]; s++) {
            if (s * v->dilation[1] - v->padding[1] >= v->w) break;
            piece.in = y * v->w;
            do_tap(j, piece, tap_of(j, s), f);
        }
    }
}

/* ---- maximum ---- */

static void max_piece(const struct job *j, const struct piece *piece) {
    const size_t at = piece->row + (size_t)piece->out;
    j->rows->max((char *)j->pool.y + at * j->nbytes, j->pool.index + at,
                 x_plane(j, piece->plane) + (size_t)piece->in * j->nbytes, (int32_t)piece->in, piece->end - piece->out,
                 j->pool.stride[1], piece->taps);
}

static void max_row(const struct job *j, size_t plane, int64_t p) {
    const size_t row = row_of(j, plane, p), n = (size_t)j->pool.q;
    j->rows->fill((char *)j->pool.y + row * j->nbytes, -INFINITY, (int64_t)n);
    memset(j->pool.index + row, 0xff, n * sizeof(int32_t)); /* -1 */
    each_tap(j, plane, p, max_piece);
}

static void max_row_back(const struct job *j, size_t plane, int64_t p) {
    const size_t row = row_of(j, plane, p);
    j->rows->scatter(dx_plane(j, plane), (const char *)j->pool.dy + row * j->nbytes, j->pool.index + row, j->pool.q);
}

static void long_max_row_back(const struct job *j, size_t plane, int64_t p) {
    const size_t row = row_of(j, plane, p);
    const float *dy = (const float *)j->pool.dy + row;
    const int32_t *at = j->pool.index + row;
    double *sums = j->sums;
    const uint32_t mask = j->mask;
    const int64_t n = j->pool.q;
    for (int64_t q = 0; q < n; q++) {
        if (at[q] >= 0) sums[(uint32_t)at[q] & mask] += (double)dy[q];
    }
}

/* ---- average ---- */

static void add_piece(const struct job *j, const struct piece *piece) {
    j->rows->add((char *)j->pool.y + (piece->row + (size_t)piece->out) * j->nbytes,
                 x_plane(j, piece->plane) + (size_t)piece->in * j->nbytes, piece->end - piece->out, j->pool.stride[1],
                 piece->taps);
}

static void average_row(const struct job *j, size_t plane, int64_t p) {
    char *y = (char *)j->pool.y + row_of(j, plane, p) * j->nbytes;
    j->rows->fill(y, 0, j->pool.q);
    each_tap(j, plane, p, add_piece);
    j->rows->divide(y, y, j->widths, extent(&j->pool, 0, p), j->pool.q);
}

static double sum_of_run(const struct job *j, const char *x, int64_t n) {
    if (j->nbytes == sizeof(double)) return j->kernels->fold[CAIRN__FOLD_SUM][CAIRN_F64](x, (size_t)n, 0);
    return j->kernels->sum[CAIRN_F32](x, (size_t)n);
}

/* y = sum of a window / area; the window's rows begin at x. */
static void put_average(const struct job *j, char *y, const char *x, int64_t n, int64_t count, double area) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++, x += (size_t)j->pool.w * j->nbytes) sum += sum_of_run(j, x, n);
    j->rows->fill(y, sum / area, 1);
}

static int64_t within(int64_t at, int64_t size) {
    return at < 0 ? 0 : at < size ? at : size;
}

/* Computes each window by itself: for few windows of many values each. */
static void wide_average_row(const struct job *j, size_t plane, int64_t p) {
    const struct cairn__pool *v = &j->pool;
    char *y = (char *)v->y + row_of(j, plane, p) * j->nbytes;
    const int64_t top = p * v->stride[0] - v->padding[0];
    const int64_t begin = within(top, v->h), end = within(top + v->kernel[0], v->h);
    for (int64_t q = 0; q < v->q; q++, y += j->nbytes) {
        const int64_t left = q * v->stride[1] - v->padding[1];
        const int64_t from = within(left, v->w), to = within(left + v->kernel[1], v->w);
        put_average(j, y, x_plane(j, plane) + (size_t)(begin * v->w + from) * j->nbytes, to - from, end - begin,
                    (double)j->widths[q] * (double)extent(v, 0, p));
    }
}

/* Sums of the columns begin..begin+n-1 of a row, n <= CAIRN__BLOCK: in `part` those of `taps` taps since the last
 * drain, in `total` all before. */
struct sums {
    int64_t begin, n, taps;
    float part[CAIRN__BLOCK];
    double total[CAIRN__BLOCK];
};

static void begin_sums(struct sums *sums, int64_t begin, int64_t size) {
    sums->begin = begin;
    sums->n = size - begin < CAIRN__BLOCK ? size - begin : CAIRN__BLOCK;
    sums->taps = 0;
    memset(sums->part, 0, (size_t)sums->n * sizeof(float));
    memset(sums->total, 0, (size_t)sums->n * sizeof(double));
}

static void drain(const struct job *j, struct sums *sums) {
    j->kernels->drain(sums->total, sums->part, (size_t)sums->n);
    sums->taps = 0;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t greatest(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Adds a row of inputs to the sums of outputs. */
static void add_row_of_taps(const struct job *j, struct sums *sums, const float *x) {
    const int64_t stride = j->pool.stride[1];
    for (int64_t s = j->first_tap; s < j->pool.kernel[1]; s++) {
        const struct cairn__reach at = tap_of(j, s);
        const int64_t from = greatest(at.begin, sums->begin), to = least(at.end, sums->begin + sums->n);
        if (from >= to) continue;
        j->rows->add(sums->part + (from - sums->begin), x + at.at + (from - at.begin) * stride, to - from, stride, 1);
        if (++sums->taps == FEW) drain(j, sums);
    }
}

/* f32, tap by tap. */
static void long_average_row(const struct job *j, size_t plane, int64_t p) {
    const struct cairn__pool *v = &j->pool;
    const int64_t top = p * v->stride[0] - v->padding[0];
    const int64_t begin = within(top, v->h), end = within(top + v->kernel[0], v->h), height = extent(v, 0, p);
    struct sums sums;
    for (int64_t q = 0; q < v->q; q += sums.n) {
        float *to = (float *)v->y + row_of(j, plane, p) + q;
        begin_sums(&sums, q, v->q);
        for (int64_t y = begin; y < end; y++)
            add_row_of_taps(j, &sums, (const float *)(const void *)x_plane(j, plane) + y * v->w);
        drain(j, &sums);
        for (int64_t i = 0; i < sums.n; i++)
            to[i] = (float)(sums.total[i] / ((double)j->widths[q + i] * (double)height));
    }
}

static void add_piece_back(const struct job *j, const struct piece *piece) {
    j->rows->add_back(dx_plane(j, piece->plane) + (size_t)piece->in * j->nbytes,
                      j->parts + (piece->row + (size_t)piece->out) * j->nbytes, piece->end - piece->out,
                      j->pool.stride[1], piece->taps);
}

static void divide_row(const struct job *j, size_t plane, int64_t p) {
    const size_t at = row_of(j, plane, p) * j->nbytes;
    j->rows->divide(j->parts + at, (const char *)j->pool.dy + at, j->widths, extent(&j->pool, 0, p), j->pool.q);
}

static void average_row_back(const struct job *j, size_t plane, int64_t p) {
    divide_row(j, plane, p);
    each_tap(j, plane, p, add_piece_back);
}

/* The outputs of a tap whose inputs are among the columns of the sums. Does not divide if all are. */
static struct cairn__reach within_sums(struct cairn__reach at, const struct sums *sums, int64_t stride) {
    const int64_t before = sums->begin - at.at, end = sums->begin + sums->n;
    const int64_t skipped = before > 0 ? (before + stride - 1) / stride : 0;
    at.begin += skipped;
    at.at += skipped * stride;
    if (at.at + (at.end - at.begin - 1) * stride >= end) at.end = at.begin + (end - at.at + stride - 1) / stride;
    return at;
}

/* Adds a row of outputs to the sums of inputs. */
static void add_row_of_shares(const struct job *j, struct sums *sums, const float *parts) {
    const int64_t stride = j->pool.stride[1];
    for (int64_t s = j->first_tap; s < j->pool.kernel[1]; s++) {
        const struct cairn__reach at = within_sums(tap_of(j, s), sums, stride);
        if (at.begin >= at.end) continue;
        j->rows->add_back(sums->part + (at.at - sums->begin), parts + at.begin, at.end - at.begin, stride, 1);
        if (++sums->taps == FEW) drain(j, sums);
    }
}

/* f32: computes row y of dx from the rows of outputs whose windows contain it. */
static void long_average_row_back(const struct job *j, size_t plane, int64_t y) {
    const struct cairn__pool *v = &j->pool;
    const int64_t last = y + v->padding[0], first = last - v->kernel[0] + 1;
    const int64_t begin = first > 0 ? (first + v->stride[0] - 1) / v->stride[0] : 0;
    const int64_t end = least(last / v->stride[0] + 1, v->p);
    struct sums sums;
    for (int64_t x = 0; x < v->w; x += sums.n) {
        float *dx = (float *)(void *)dx_plane(j, plane) + y * v->w + x;
        begin_sums(&sums, x, v->w);
        for (int64_t p = begin; p < end; p++)
            add_row_of_shares(j, &sums, (const float *)(const void *)j->parts + row_of(j, plane, p));
        drain(j, &sums);
        for (int64_t i = 0; i < sums.n; i++) dx[i] = (float)sums.total[i];
    }
}

/* ---- adaptive average, whose windows have several sizes ---- */

static struct window window_of(const struct cairn__pool *v, int64_t p, int64_t q) {
    if (v->p == 1 && v->q == 1) return (struct window){0, v->h * v->w, 1, (int32_t)v->w, (int32_t)v->h};
    const int64_t y = p * v->h / v->p, y_end = ((p + 1) * v->h + v->p - 1) / v->p;
    const int64_t x = q * v->w / v->q, x_end = ((q + 1) * v->w + v->q - 1) / v->q;
    struct window window = {y * v->w + x, x_end - x, y_end - y, (int32_t)(x_end - x), (int32_t)(y_end - y)};
    if (window.n == v->w) window.n *= window.count, window.count = 1; /* whole rows lie together */
    return window;
}

static void adaptive_row(const struct job *j, size_t plane, int64_t p) {
    char *y = (char *)j->pool.y + row_of(j, plane, p) * j->nbytes;
    for (int64_t q = 0; q < j->pool.q; q++, y += j->nbytes) {
        const struct window window = window_of(&j->pool, p, q);
        const char *x = x_plane(j, plane) + (size_t)window.at * j->nbytes;
        if (window.count == 1 && window.n < FEW) {
            j->rows->means(y, x, 1, &window);
        } else {
            put_average(j, y, x, window.n, window.count, (double)window.width * (double)window.height);
        }
    }
}

static void adaptive_row_back(const struct job *j, size_t plane, int64_t p) {
    const char *dy = (const char *)j->pool.dy + row_of(j, plane, p) * j->nbytes;
    for (int64_t q = 0; q < j->pool.q; q++, dy += j->nbytes) {
        const struct window window = window_of(&j->pool, p, q);
        char *dx = dx_plane(j, plane) + (size_t)window.at * j->nbytes;
        for (int64_t i = 0; i < window.count; i++, dx += (size_t)j->pool.w * j->nbytes)
            j->rows->add_share(dx, dy, window.n, &window);
    }
}

static void long_adaptive_row_back(const struct job *j, size_t plane, int64_t p) {
    const float *dy = (const float *)j->pool.dy + row_of(j, plane, p);
    for (int64_t q = 0; q < j->pool.q; q++) {
        const struct window window = window_of(&j->pool, p, q);
        const double share = (double)dy[q];
        for (int64_t i = 0; i < window.count; i++)
            rows_f64.add_share(j->sums + window.at + i * j->pool.w, &share, window.n, &window);
    }
}

/* Small windows of equal size are computed like those of an average. */
static struct cairn__pool as_average(struct cairn__pool v) {
    if (v.kind != CAIRN__POOL_ADAPTIVE_AVERAGE || v.q == 1 || v.h % v.p != 0 || v.w % v.q != 0) return v;
    if (v.h / v.p * (v.w / v.q) > FEW) return v;
    v.kind = CAIRN__POOL_AVERAGE;
    v.kernel[0] = v.stride[0] = v.h / v.p;
    v.kernel[1] = v.stride[1] = v.w / v.q;
    v.padding[0] = v.padding[1] = 0;
    v.dilation[0] = v.dilation[1] = 1;
    return v;
}

/* ---- all planes ---- */

/* The first input that row p of outputs, or a later row, may reach. */
static size_t first_of_row(const struct cairn__pool *v, int64_t p) {
    const int64_t top = v->kind == CAIRN__POOL_MAX ? p * v->stride[0] - v->padding[0] : p * v->h / v->p;
    return (size_t)((p < v->p ? within(top, v->h) : v->h) * v->w);
}

static void do_planes(void *ctx, size_t begin, size_t end) {
    const struct job *j = ctx;
    for (size_t plane = begin; plane < end; plane++) {
        if (j->pool.dx) memset(dx_plane(j, plane), 0, (size_t)(j->pool.h * j->pool.w) * j->nbytes);
        for (int64_t p = 0; p < j->pool.p; p++) j->row(j, plane, p);
    }
}

/* Backward, if every row of dx is computed by itself. */
static void do_rows_of_planes(void *ctx, size_t begin, size_t end) {
    const struct job *j = ctx;
    for (size_t plane = begin; plane < end; plane++) {
        for (int64_t p = 0; p < j->pool.p; p++) divide_row(j, plane, p);
        for (int64_t y = 0; y < j->pool.h; y++) j->row(j, plane, y);
    }
}

/* Writes the rounded sums of the inputs begin..end-1 of a plane to dx, and resets them. */
static void close_sums(const struct job *j, size_t plane, size_t begin, size_t end) {
    float *dx = (float *)(void *)dx_plane(j, plane);
    while (begin < end) {
        const size_t at = begin & j->mask, left = j->mask + (size_t)1 - at, n = left < end - begin ? left : end - begin;
        for (size_t i = 0; i < n; i++) {
            dx[begin + i] = (float)j->sums[at + i];
            j->sums[at + i] = 0;
        }
        begin += n;
    }
}

/* Backward through sums: each slot has several adjacent planes. */
static void do_slots(void *ctx, size_t begin, size_t end) {
    struct job j = *(const struct job *)ctx;
    double *const slots = j.sums;
    const size_t planes = (size_t)j.pool.planes;
    for (size_t slot = begin; slot < end; slot++) {
        const size_t last = (slot + 1) * planes / j.slots;
        j.sums = slots + slot * ((size_t)j.mask + 1);
        memset(j.sums, 0, ((size_t)j.mask + 1) * sizeof(double));
        for (size_t plane = slot * planes / j.slots; plane < last; plane++) {
            size_t closed = 0;
            for (int64_t p = 0; p < j.pool.p; p++) {
                j.row(&j, plane, p);
                const size_t done = first_of_row(&j.pool, p + 1);
                if (done < closed + ROUNDED && p + 1 < j.pool.p) continue;
                close_sums(&j, plane, closed, done);
                closed = done;
            }
        }
    }
}

/* Small planes of one window each, for which the calls would cost more than the work. */
static bool is_whole_planes(const struct job *j) {
    const struct cairn__pool *v = &j->pool;
    return v->kind == CAIRN__POOL_ADAPTIVE_AVERAGE && v->p == 1 && v->q == 1 && v->h * v->w < FEW;
}

static void do_whole_planes(void *ctx, size_t begin, size_t end) {
    const struct job *j = ctx;
    const struct window window = window_of(&j->pool, 0, 0);
    const int64_t n = (int64_t)(end - begin);
    if (j->pool.dx) {
        j->rows->shares(dx_plane(j, begin), (const char *)j->pool.dy + begin * j->nbytes, n, &window);
    } else {
        j->rows->means((char *)j->pool.y + begin * j->nbytes, x_plane(j, begin), n, &window);
    }
}

static void run(struct job *j, cairn__parallel_body body) {
    const size_t plane = (size_t)(j->pool.h * j->pool.w);
    cairn__parallel_for((size_t)j->pool.planes, plane < WORTH ? WORTH / plane : 1, body, j);
}

/* For narrow windows over adjacent inputs, with a stride that pool_rows.h supports. */
static void choose_whole(struct job *j) {
    const struct cairn__pool *v = &j->pool;
    const bool narrow = v->kernel[1] == 2 || v->kernel[1] == 3;
    j->whole = j->whole_end = v->q; /* none */
    if (!narrow || v->dilation[1] != 1 || v->stride[1] != 2) return;
    const struct cairn__reach first = tap_of(j, 0), last = tap_of(j, v->kernel[1] - 1);
    if (first.begin >= last.end) return;
    j->whole = first.begin;
    j->whole_end = last.end;
}

static cairn_status prepare(struct cairn_device *d, struct job *j, bool back) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const struct cairn__pool *v = &j->pool;
    const size_t outs = (size_t)(v->planes * v->p * v->q);
    cairn_status st = CAIRN_OK;
    float *room = NULL;
    j->first_tap = least_tap(v->padding[1] - (v->q - 1) * v->stride[1], v->dilation[1]);
    for (int s = 0; s < KEPT_TAPS && s < v->kernel[1]; s++) j->taps[s] = reach_of(v, s);
    choose_whole(j);
    if (v->kind != CAIRN__POOL_AVERAGE) return CAIRN_OK;
    TRY(cairn__scratch_room(&cpu->row, (size_t)v->q, &room));
    j->widths = (int32_t *)room;
    for (int64_t q = 0; q < v->q; q++) j->widths[q] = (int32_t)extent(v, 1, q);
    if (back) {
        TRY(cairn__scratch_room(&cpu->b, outs * j->nbytes / sizeof(float), &room));
        j->parts = (char *)room;
    }
out:
    return st;
}

/* The greatest number of outputs along an axis that one input is part of. */
static int64_t most_meeting(const struct cairn__pool *v, int axis) {
    const int64_t in = axis ? v->w : v->h, out = axis ? v->q : v->p;
    if (v->kind == CAIRN__POOL_ADAPTIVE_AVERAGE) return (out + in - 1) / in + 1;
    const int64_t stride = v->dilation[axis] == 1 ? v->stride[axis] : 1;
    return least((v->kernel[axis] + stride - 1) / stride, out);
}

/* Whether more gradients may meet in one input than f32 adds up accurately. */
static bool is_long(const struct cairn__pool *v) {
    const int64_t most = most_meeting(v, 0) * most_meeting(v, 1);
    return v->dtype != CAIRN_F64 && most > (v->kind == CAIRN__POOL_AVERAGE ? FEW : MANY);
}

/* Number of sums of a slot, a power of two: for a maximum those of the rows that a window reaches, and of inputs that
 * are not rounded yet. */
static size_t places_of(const struct cairn__pool *v) {
    const size_t plane = (size_t)(v->h * v->w);
    const size_t rows = (size_t)least((v->kernel[0] - 1) * v->dilation[0] + 1, v->h);
    const size_t open = v->kind == CAIRN__POOL_MAX ? rows * (size_t)v->w + ROUNDED : plane;
    size_t places = 1;
    while (places < open && places < plane) places *= 2;
    return places;
}

/* Chooses the functions that add up in f64, and takes memory for their sums; one thread at a time uses a slot. */
static cairn_status prepare_long(struct cairn_device *d, struct job *j) {
    enum { SLOTS = 64 };
    static void (*const rows[])(const struct job *, size_t,
                                int64_t) = {[CAIRN__POOL_MAX] = long_max_row_back,
                                            [CAIRN__POOL_AVERAGE] = long_average_row_back,
                                            [CAIRN__POOL_ADAPTIVE_AVERAGE] = long_adaptive_row_back};
    const struct cairn__pool *v = &j->pool;
    const size_t plane = (size_t)(v->h * v->w), planes = (size_t)v->planes;
    cairn_status st = CAIRN_OK;
    float *room = NULL;
    j->row = rows[v->kind];
    if (v->kind == CAIRN__POOL_AVERAGE) return CAIRN_OK;
    const size_t pieces = (planes * plane + WORTH - 1) / WORTH, most = planes < SLOTS ? planes : SLOTS;
    j->slots = pieces < most ? pieces : most;
    const size_t places = places_of(v);
    j->mask = (uint32_t)(places - 1);
    TRY(cairn__scratch_room(&cairn__cpu_of(d)->b, 2 * j->slots * places, &room));
    j->sums = (double *)(void *)room;
out:
    return st;
}

static struct job job_of(const struct cairn_device *d, const struct cairn__pool *pool) {
    const bool wide = pool->dtype == CAIRN_F64;
    return (struct job){.pool = as_average(*pool),
                        .rows = wide ? &rows_f64 : &rows_f32,
                        .kernels = cairn__cpu_of(d)->kernels,
                        .nbytes = wide ? sizeof(double) : sizeof(float)};
}

static bool is_half(cairn_dtype t) {
    return t != CAIRN_F32 && t != CAIRN_F64;
}

static cairn_status forward(struct cairn_device *d, const struct cairn__pool *v) {
    static void (*const rows[])(const struct job *, size_t, int64_t) = {[CAIRN__POOL_MAX] = max_row,
                                                                        [CAIRN__POOL_AVERAGE] = average_row,
                                                                        [CAIRN__POOL_ADAPTIVE_AVERAGE] = adaptive_row};
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const size_t ins = (size_t)(v->planes * v->h * v->w), outs = (size_t)(v->planes * v->p * v->q);
    struct job j = job_of(d, v);
    cairn_status st = CAIRN_OK;
    j.pool.dx = NULL;
    if (is_half(v->dtype)) {
        const float *x = NULL;
        float *y = NULL;
        TRY(cairn__cpu_widen(d, &cpu->a, v->dtype, v->x, ins, &x));
        TRY(cairn__scratch_room(&cpu->c, outs, &y));
        j.pool.x = x, j.pool.y = y;
    }
    TRY(prepare(d, &j, false));
    j.row = rows[j.pool.kind];
    if (j.pool.kind == CAIRN__POOL_AVERAGE && j.pool.kernel[0] * j.pool.kernel[1] > FEW) {
        /* By windows if runs of taps along the row would be short, or the stride is not one that pool_rows.h
         * supports. */
        if (j.pool.kernel[1] >= j.pool.q || j.pool.stride[1] > 2) {
            j.row = wide_average_row;
        } else if (v->dtype != CAIRN_F64) {
            j.row = long_average_row;
        }
    }
    run(&j, is_whole_planes(&j) ? do_whole_planes : do_planes);
    if (is_half(v->dtype)) cpu->kernels->cast[CAIRN_F32][v->dtype](v->y, j.pool.y, outs);
out:
    return st;
}

static cairn_status backward(struct cairn_device *d, const struct cairn__pool *v) {
    static void (*const rows[])(const struct job *, size_t,
                                int64_t) = {[CAIRN__POOL_MAX] = max_row_back,
                                            [CAIRN__POOL_AVERAGE] = average_row_back,
                                            [CAIRN__POOL_ADAPTIVE_AVERAGE] = adaptive_row_back};
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const size_t ins = (size_t)(v->planes * v->h * v->w), outs = (size_t)(v->planes * v->p * v->q);
    struct job j = job_of(d, v);
    cairn_status st = CAIRN_OK;
    if (is_half(v->dtype)) {
        const float *dy = NULL;
        float *dx = NULL;
        TRY(cairn__cpu_widen(d, &cpu->a, v->dtype, v->dy, outs, &dy));
        TRY(cairn__scratch_room(&cpu->c, ins, &dx));
        j.pool.dy = dy, j.pool.dx = dx;
    }
    TRY(prepare(d, &j, true));
    j.row = rows[j.pool.kind];
    if (is_long(&j.pool)) TRY(prepare_long(d, &j));
    if (j.slots > 0) {
        cairn__parallel_for(j.slots, 1, do_slots, &j);
    } else if (j.row == long_average_row_back) {
        run(&j, do_rows_of_planes);
    } else {
        run(&j, is_whole_planes(&j) ? do_whole_planes : do_planes);
    }
    if (is_half(v->dtype)) cpu->kernels->cast[CAIRN_F32][v->dtype](v->dx, j.pool.dx, ins);
out:
    return st;
}

static bool is_empty(const struct cairn__pool *v) {
    return v->planes == 0 || v->h == 0 || v->w == 0 || v->p == 0 || v->q == 0;
}

void cairn__cpu_pool(struct cairn_device *d, const struct cairn__pool *pool) {
    if (!is_empty(pool)) cairn__cpu_is_ok(cairn__cpu_of(d), forward(d, pool));
}

void cairn__cpu_pool_backward(struct cairn_device *d, const struct cairn__pool *pool) {
    const size_t ins = (size_t)(pool->planes * pool->h * pool->w);
    if (!is_empty(pool)) {
        cairn__cpu_is_ok(cairn__cpu_of(d), backward(d, pool));
    } else if (ins > 0) {
        memset(pool->dx, 0, ins * cairn_dtype_nbytes(pool->dtype));
    }
}
