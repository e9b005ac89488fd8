/* Pooling on the CPU: a row of outputs at a time, one tap of the window after the other, so that inner loops run along
 * rows. Planes are independent. Halves are widened whole into kept scratch, and results rounded from there.
 *
 * An average of few values adds its window up tap by tap in row-major order, then divides once; its gradient divides
 * first. A window of more than FEW has the sums of its rows, as kernels.h has sums, added in f64; and gradients of
 * which more than FEW may meet in one input are computed in f64 whole. */
#include <math.h>
#include <string.h>

#include "core/parallel.h"
#include "core/status.h"
#include "device/cpu/blocks.h"
#include "device/cpu/cpu_math.h"
#include "device/cpu/reach.h"
#include "device/math_passes.h"

enum { KEPT_TAPS = 16, FEW = 16 };

/* The inputs of one output: `count` runs of `n`, a row of the plane apart. */
struct window {
    int64_t at, n, count;
    int32_t width, height;
};

/* On n outputs, for taps that lie side by side, whose input of the first output is x[0] or dx[0]; inputs are `stride`
 * apart. */
struct rows {
    /* index: of x[0] in its plane. at < 0: nothing yet. The first of equals stays; a NaN beats whatever there is. */
    void (*max)(void *y, int32_t *at, const void *x, int32_t index, int64_t n, int64_t stride, int64_t taps);
    void (*add)(void *y, const void *x, int64_t n, int64_t stride, int64_t taps);
    void (*add_back)(void *dx, const void *dy, int64_t n, int64_t stride, int64_t taps);
    void (*scatter)(void *dx, const void *dy, const int32_t *at, int64_t n); /* not where at < 0 */
    void (*fill)(void *y, double value, int64_t n);
    void (*divide)(void *y, const void *x, const int32_t *widths, int64_t height, int64_t n); /* by width * height */
    /* of an adaptive average: y[i] = sum of x / area, of n windows that lie one after the other; dx = dy[i] / area;
     * of one row of a window, dx += dy[0] / area */
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
    int64_t first_tap;        /* that reaches into the plane anywhere in a row */
    int64_t whole, whole_end; /* outputs whose taps are all inside and done at once; perhaps none */
    int32_t *widths;          /* [q]: columns that an average divides by */
    char *parts;              /* of its gradient: dy, divided */
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

/* What an average divides by, along an axis: without padding what lies inside; with it what lies inside the padded
 * plane, which windows of ceil_mode leave. */
static int64_t extent(const struct cairn__pool *v, int axis, int64_t out) {
    const int64_t size = axis ? v->w : v->h, begin = out * v->stride[axis] - v->padding[axis];
    const int64_t limit = v->count_padding ? size + v->padding[axis] : size;
    const int64_t end = begin + v->kernel[axis] < limit ? begin + v->kernel[axis] : limit;
    const int64_t from = v->count_padding || begin > 0 ? begin : 0;
    return end > from ? end - from : 1; /* nothing inside: 0 / 1 */
}

/* The outputs out..end-1 of a row that begins at `row`, for `taps` side by side, of which the first one has the input
 * `in` of its plane at output `out`. */
struct piece {
    size_t plane, row;
    int64_t out, end, in, taps;
};
typedef void (*piece_fn)(const struct job *j, const struct piece *piece);

/* The first tap at or past `below` inputs. */
static int64_t least_tap(int64_t below, int64_t dilation) {
    return below > 0 ? (below + dilation - 1) / dilation : 0;
}

/* One tap, but for the outputs that were done whole. */
static void do_tap(const struct job *j, struct piece piece, struct cairn__reach at, piece_fn f) {
    const int64_t start = piece.in;
    for (int side = 0; side < 2; side++) {
        piece.out = side == 0 || at.begin > j->whole_end ? at.begin : j->whole_end;
        piece.end = side == 1 || at.end < j->whole ? at.end : j->whole;
        piece.in = start + at.at + (piece.out - at.begin) * j->pool.stride[1];
        if (piece.out < piece.end) f(j, &piece);
    }
}

/* A row of outputs. Only taps that lie inside: a window may be far larger than the plane and its padding. */
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

/* y = sum of a window / area, of rows that begin at x. */
static void put_average(const struct job *j, char *y, const char *x, int64_t n, int64_t count, double area) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++, x += (size_t)j->pool.w * j->nbytes) sum += sum_of_run(j, x, n);
    j->rows->fill(y, sum / area, 1);
}

static int64_t within(int64_t at, int64_t size) {
    return at < 0 ? 0 : at < size ? at : size;
}

/* Each window by itself. */
static void long_average_row(const struct job *j, size_t plane, int64_t p) {
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

static void add_piece_back(const struct job *j, const struct piece *piece) {
    j->rows->add_back(dx_plane(j, piece->plane) + (size_t)piece->in * j->nbytes,
                      j->parts + (piece->row + (size_t)piece->out) * j->nbytes, piece->end - piece->out,
                      j->pool.stride[1], piece->taps);
}

static void average_row_back(const struct job *j, size_t plane, int64_t p) {
    const size_t at = row_of(j, plane, p) * j->nbytes;
    j->rows->divide(j->parts + at, (const char *)j->pool.dy + at, j->widths, extent(&j->pool, 0, p), j->pool.q);
    each_tap(j, plane, p, add_piece_back);
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

/* Small windows of one size are those of an average. */
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

static void do_planes(void *ctx, size_t begin, size_t end) {
    const struct job *j = ctx;
    for (size_t plane = begin; plane < end; plane++) {
        if (j->pool.dx) memset(dx_plane(j, plane), 0, (size_t)(j->pool.h * j->pool.w) * j->nbytes);
        for (int64_t p = 0; p < j->pool.p; p++) j->row(j, plane, p);
    }
}

/* Small planes that are one window each: the calls would cost more than the work. */
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

static void run(struct job *j) {
    enum { WORTH = 16 << 10 }; /* inputs of a piece */
    const size_t plane = (size_t)(j->pool.h * j->pool.w);
    cairn__parallel_for((size_t)j->pool.planes, plane < WORTH ? WORTH / plane : 1,
                        is_whole_planes(j) ? do_whole_planes : do_planes, j);
}

/* Narrow windows over neighbours, by strides that pool_rows.h knows. */
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

/* How many outputs an input is in, at most along an axis. */
static int64_t most_meeting(const struct cairn__pool *v, int axis) {
    if (v->kind != CAIRN__POOL_ADAPTIVE_AVERAGE) return (v->kernel[axis] + v->stride[axis] - 1) / v->stride[axis];
    const int64_t in = axis ? v->w : v->h, out = axis ? v->q : v->p;
    return (out + in - 1) / in + 1;
}

static cairn_dtype r_of(const struct cairn__pool *v, bool back) {
    const bool many = back && most_meeting(v, 0) * most_meeting(v, 1) > FEW;
    return many || v->dtype == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32;
}

static struct job job_of(const struct cairn_device *d, const struct cairn__pool *pool, cairn_dtype r) {
    return (struct job){.pool = as_average(*pool),
                        .rows = r == CAIRN_F64 ? &rows_f64 : &rows_f32,
                        .kernels = cairn__cpu_of(d)->kernels,
                        .nbytes = cairn_dtype_nbytes(r)};
}

/* n elements of x as R in s. */
static cairn_status widen(struct cairn_device *d, struct cairn__scratch *s, cairn_dtype r, cairn_dtype t, const void *x,
                          size_t n, const void **out) {
    const float *narrow = NULL;
    float *room = NULL;
    cairn_status st = CAIRN_OK;
    if (r == CAIRN_F32) {
        TRY(cairn__cpu_widen(d, s, t, x, n, &narrow));
        *out = narrow;
        return CAIRN_OK;
    }
    TRY(cairn__scratch_room(s, 2 * n, &room));
    double *wide = (double *)(void *)room;
    struct cairn__block block;
    for (size_t i = 0; i < n; i += CAIRN__BLOCK) {
        const size_t m = n - i < CAIRN__BLOCK ? n - i : CAIRN__BLOCK;
        const char *from = (const char *)x + i * cairn_dtype_nbytes(t);
        const float *f32 = cairn__block_load(cairn__cpu_of(d), CAIRN_F32, t, from, m, &block);
        for (size_t j = 0; j < m; j++) wide[i + j] = (double)f32[j];
    }
    *out = wide;
out:
    return st;
}

/* And back, through f32. */
static void narrow(struct cairn_device *d, cairn_dtype t, void *dst, cairn_dtype r, const void *x, size_t n) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    struct cairn__block block;
    float *f32 = (float *)block.room;
    if (r == CAIRN_F32) {
        cpu->kernels->cast[CAIRN_F32][t](dst, x, n);
        return;
    }
    for (size_t i = 0; i < n; i += CAIRN__BLOCK) {
        const size_t m = n - i < CAIRN__BLOCK ? n - i : CAIRN__BLOCK;
        for (size_t j = 0; j < m; j++) f32[j] = (float)((const double *)x)[i + j];
        cairn__block_store(cpu, CAIRN_F32, t, (char *)dst + i * cairn_dtype_nbytes(t), f32, m);
    }
}

static cairn_status forward(struct cairn_device *d, const struct cairn__pool *v) {
    static void (*const rows[])(const struct job *, size_t, int64_t) = {[CAIRN__POOL_MAX] = max_row,
                                                                        [CAIRN__POOL_AVERAGE] = average_row,
                                                                        [CAIRN__POOL_ADAPTIVE_AVERAGE] = adaptive_row};
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const size_t ins = (size_t)(v->planes * v->h * v->w), outs = (size_t)(v->planes * v->p * v->q);
    const cairn_dtype r = r_of(v, false);
    struct job j = job_of(d, v, r);
    cairn_status st = CAIRN_OK;
    j.pool.dx = NULL;
    if (r != v->dtype) {
        float *y = NULL;
        TRY(widen(d, &cpu->a, r, v->dtype, v->x, ins, &j.pool.x));
        TRY(cairn__scratch_room(&cpu->c, outs, &y));
        j.pool.y = y;
    }
    TRY(prepare(d, &j, false));
    j.row = rows[j.pool.kind];
    if (j.pool.kind == CAIRN__POOL_AVERAGE && j.pool.kernel[0] * j.pool.kernel[1] > FEW) j.row = long_average_row;
    run(&j);
    if (r != v->dtype) narrow(d, v->dtype, v->y, r, j.pool.y, outs);
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
    const cairn_dtype r = r_of(v, true);
    struct job j = job_of(d, v, r);
    cairn_status st = CAIRN_OK;
    if (r != v->dtype) {
        float *dx = NULL;
        TRY(widen(d, &cpu->a, r, v->dtype, v->dy, outs, &j.pool.dy));
        TRY(cairn__scratch_room(&cpu->c, ins * j.nbytes / sizeof(float), &dx));
        j.pool.dx = dx;
    }
    TRY(prepare(d, &j, true));
    j.row = rows[j.pool.kind];
    run(&j);
    if (r != v->dtype) narrow(d, v->dtype, v->dx, r, j.pool.dx, ins);
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
