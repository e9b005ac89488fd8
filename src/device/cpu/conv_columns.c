/* Convolution as a matrix product ("im2col"): columns [c / groups * r * s, images * p * q] hold, for every output, the
 * inputs under the kernel, and the stored weights are a matrix:
 *     dst = weights columns     d(columns) = weights^T d(dst), added back into src     d(weights) = d(dst) columns^T
 * Images are processed in blocks whose columns fit in the L2 cache if possible. A block has several images, since a
 * product with few columns is slow. */
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "device/cpu/conv.h"
#include "device/cpu/pack.h"

enum {
    MAX_COLUMNS = 512 << 10, /* elements of a block, but for one image */
    SHORT_ROW = 16,          /* pixels: up to here a table of places is faster than a copy of rows */
    MAX_PLACES = 64 << 10,
};

struct block {
    const struct cairn__conv_pass *pass;
    struct cairn__engine *engine;
    int64_t c, k;          /* of a group */
    int64_t taps;          /* rows of the columns */
    int64_t pixels;        /* of dst */
    int64_t image, images; /* the first, and how many */
    size_t nbytes;         /* of an element that is read */
    const int32_t *places; /* [r * s, pixels]: indices in a plane of src, -1 = outside; NULL = no table is used */
    void *columns, *dst;   /* room; dst [k, images * pixels] */
    float *weights;        /* with several blocks: room for the product of one block */
    double *sums;          /* with several blocks: the sums of their products, for every group */
};

/* ---- copies ---- */

/* n of `stride` apart. */
#define PICK(T)                                                                   \
    static void pick_##T(void *to, const void *from, int64_t n, int64_t stride) { \
        const T *x = from;                                                        \
        for (int64_t i = 0; i < n; i++) ((T *)to)[i] = x[i * stride];             \
    }
PICK(uint16_t)
PICK(uint32_t)

static void pick(void *to, const void *from, int64_t n, int64_t stride, size_t nbytes) {
    if (stride == 1) {
        memcpy(to, from, (size_t)n * nbytes);
    } else if (nbytes == sizeof(uint16_t)) {
        pick_uint16_t(to, from, n, stride);
    } else {
        pick_uint32_t(to, from, n, stride);
    }
}

#define PICK_PLACES(T)                                                                                        \
    static void pick_places_##T(void *to, const void *from, const int32_t *places, int64_t n) {               \
        for (int64_t i = 0; i < n; i++) ((T *)to)[i] = (T)(places[i] < 0 ? 0 : ((const T *)from)[places[i]]); \
    }
PICK_PLACES(uint16_t)
PICK_PLACES(uint32_t)

/* One row of the columns, for one image: what tap (r, s) of a plane lies over. */
static void fill_row(const struct block *b, char *to, const char *plane, int64_t r, int64_t s) {
    const struct cairn__conv_shape *g = &b->pass->shape;
    const size_t e = b->nbytes;
    if (b->places) {
        const int32_t *places = b->places + (r * g->s + s) * b->pixels;
        (e == sizeof(uint16_t) ? pick_places_uint16_t : pick_places_uint32_t)(to, plane, places, b->pixels);
        return;
    }
    const struct cairn__reach rows = cairn__conv_reach(g, 0, r), cols = cairn__conv_reach(g, 1, s);
    const int64_t n = cols.end - cols.begin;
    memset(to, 0, (size_t)(rows.begin * g->q) * e);
    memset(to + (size_t)(rows.end * g->q) * e, 0, (size_t)((g->p - rows.end) * g->q) * e);
    for (int64_t p = rows.begin, y = rows.at; p < rows.end; p++, y += g->stride[0]) {
        char *row = to + (size_t)(p * g->q) * e;
        memset(row, 0, (size_t)cols.begin * e);
        if (n > 0) pick(row + (size_t)cols.begin * e, plane + (size_t)(y * g->w + cols.at) * e, n, g->stride[1], e);
        memset(row + (size_t)cols.end * e, 0, (size_t)(g->q - cols.end) * e);
    }
}

static void add_row(const struct block *b, const float *from, float *plane, int64_t r, int64_t s) {
    const struct cairn__conv_shape *g = &b->pass->shape;
    if (b->places) {
        const int32_t *places = b->places + (r * g->s + s) * b->pixels;
        for (int64_t i = 0; i < b->pixels; i++) {
            if (places[i] >= 0) plane[places[i]] += from[i];
        }
        return;
    }
    const struct cairn__reach rows = cairn__conv_reach(g, 0, r), cols = cairn__conv_reach(g, 1, s);
    const int64_t n = cols.end - cols.begin, stride = g->stride[1];
    for (int64_t p = rows.begin, y = rows.at; p < rows.end; p++, y += g->stride[0]) {
        const float *row = from + p * g->q + cols.begin;
        float *to = plane + y * g->w + cols.at;
        if (stride == 1) {
            for (int64_t i = 0; i < n; i++) to[i] += row[i];
        } else {
            for (int64_t i = 0; i < n; i++) to[i * stride] += row[i];
        }
    }
}

static char *plane_of(const struct block *b, int64_t image, int64_t group, int64_t c, size_t nbytes) {
    const struct cairn__conv_shape *g = &b->pass->shape;
    return (char *)b->pass->src + (size_t)((((b->image + image) * g->c) + group * b->c + c) * g->h * g->w) * nbytes;
}

/* Fills every row of the columns from its plane of src, or adds it back. */
static void walk_columns(const struct block *b, int64_t group, bool back) {
    const struct cairn__conv_shape *g = &b->pass->shape;
    for (int64_t tap = 0; tap < b->taps; tap++) {
        const int64_t c = tap / (g->r * g->s), r = tap / g->s % g->r, s = tap % g->s;
        for (int64_t image = 0; image < b->images; image++) {
            const size_t at = (size_t)((tap * b->images + image) * b->pixels);
            if (back) {
                add_row(b, (float *)b->columns + at, (float *)plane_of(b, image, group, c, sizeof(float)), r, s);
            } else {
                fill_row(b, (char *)b->columns + at * b->nbytes, plane_of(b, image, group, c, b->nbytes), r, s);
            }
        }
    }
}

/* Copies dst from the images to a matrix [k, images * pixels], or back. */
static void walk_dst(const struct block *b, int64_t group, bool back) {
    const size_t nbytes = back ? sizeof(float) : b->nbytes, run = (size_t)b->pixels * nbytes;
    for (int64_t image = 0; image < b->images; image++) {
        for (int64_t k = 0; k < b->k; k++) {
            const int64_t plane = (b->image + image) * b->pass->shape.k + group * b->k + k;
            char *there = (char *)b->pass->dst + (size_t)plane * run;
            char *here = (char *)b->dst + (size_t)(k * b->images + image) * run;
            memcpy(back ? there : here, back ? here : there, run);
        }
    }
}

/* ---- products ---- */

static bool is_pointwise(const struct cairn__conv_shape *g) {
    return g->r == 1 && g->s == 1 && g->p == g->h && g->q == g->w && g->stride[0] == 1 && g->stride[1] == 1 &&
           g->padding[0] == 0 && g->padding[1] == 0;
}

/* The matrices of one group of a block: in place where they lie so already, which they do for one image. */
static void *dst_matrix(const struct block *b, int64_t group, size_t nbytes) {
    if (b->images > 1) return b->dst;
    return (char *)b->pass->dst + (size_t)((b->image * b->pass->shape.k + group * b->k) * b->pixels) * nbytes;
}

static bool is_in_place(const struct block *b) {
    return b->images == 1 && is_pointwise(&b->pass->shape);
}

static void *columns_matrix(const struct block *b, int64_t group, size_t nbytes) {
    return is_in_place(b) ? plane_of(b, 0, group, 0, nbytes) : b->columns;
}

static cairn_status multiply(const struct block *b, struct cairn__matmul m) {
    m.in_type = b->pass->in_type;
    m.out_type = CAIRN_F32;
    const struct cairn__product product = cairn__dense_product(&m);
    return cairn__engine_product(b->engine, &product);
}

static cairn_status dst_of_group(const struct block *b, int64_t group) {
    const struct cairn__matmul m = {.m = b->k,
                                    .n = b->images * b->pixels,
                                    .k = b->taps,
                                    .a = (char *)b->pass->weights + (size_t)(group * b->k * b->taps) * b->nbytes,
                                    .b = columns_matrix(b, group, b->nbytes),
                                    .c = dst_matrix(b, group, sizeof(float))};
    cairn_status st = CAIRN_OK;
    if (!is_in_place(b)) walk_columns(b, group, false);
    TRY(multiply(b, m));
    if (b->images > 1) walk_dst(b, group, true);
out:
    return st;
}

static cairn_status src_of_group(const struct block *b, int64_t group) {
    const struct cairn__matmul m = {.m = b->taps,
                                    .n = b->images * b->pixels,
                                    .k = b->k,
                                    .trans_a = true,
                                    .a = (char *)b->pass->weights + (size_t)(group * b->k * b->taps) * b->nbytes,
                                    .b = dst_matrix(b, group, b->nbytes),
                                    .c = columns_matrix(b, group, sizeof(float))};
    cairn_status st = CAIRN_OK;
    if (b->images > 1) walk_dst(b, group, false);
    TRY(multiply(b, m));
    if (!is_in_place(b)) walk_columns(b, group, true);
out:
    return st;
}

/* The products of several blocks are added in their order, in f64, and rounded after the last. */
static cairn_status weights_of_group(const struct block *b, int64_t group) {
    const int64_t n = b->k * b->taps;
    float *weights = (float *)b->pass->weights + group * n;
    cairn_status st = CAIRN_OK;
    const struct cairn__matmul m = {.m = b->k,
                                    .n = b->taps,
                                    .k = b->images * b->pixels,
                                    .trans_b = true,
                                    .a = dst_matrix(b, group, b->nbytes),
                                    .b = columns_matrix(b, group, b->nbytes),
                                    .c = b->weights ? b->weights : weights};
    if (b->images > 1) walk_dst(b, group, false);
    if (!is_in_place(b)) walk_columns(b, group, false);
    TRY(multiply(b, m));
    if (b->weights) {
        double *sums = b->sums + group * n;
        for (int64_t i = 0; i < n; i++) sums[i] = (b->image > 0 ? sums[i] : 0) + (double)b->weights[i];
        if (b->image + b->images < b->pass->shape.n) return CAIRN_OK;
        for (int64_t i = 0; i < n; i++) weights[i] = (float)sums[i];
    }
out:
    return st;
}

/* ---- all of it ---- */

static void fill_places(const struct cairn__conv_shape *g, int32_t *places) {
    for (int64_t tap = 0; tap < g->r * g->s; tap++) {
        for (int64_t pixel = 0; pixel < g->p * g->q; pixel++) {
            const int64_t y = pixel / g->q * g->stride[0] - g->padding[0] + tap / g->s * g->dilation[0];
            const int64_t x = pixel % g->q * g->stride[1] - g->padding[1] + tap % g->s * g->dilation[1];
            const bool inside = y >= 0 && y < g->h && x >= 0 && x < g->w;
            places[tap * g->p * g->q + pixel] = inside ? (int32_t)(y * g->w + x) : -1;
        }
    }
}

static cairn_status make_room(struct block *b, struct cairn__conv_columns *kept, int64_t most) {
    cairn_status st = CAIRN_OK;
    const struct cairn__conv_shape *g = &b->pass->shape;
    float *columns = NULL, *dst = NULL, *places = NULL, *weights = NULL;
    const size_t n = (size_t)(b->k * b->taps), sums = (size_t)g->groups * n;
    REQUIRE(b->taps <= INT64_MAX / 8 / most / b->pixels, CAIRN_ENOMEM, "out of memory: a matrix of %lld x %lld",
            (long long)b->taps, (long long)b->pixels);
    TRY(cairn__scratch_room(&kept->columns, (size_t)(b->taps * most * b->pixels), &columns));
    TRY(cairn__scratch_room(&kept->dst, (size_t)(b->k * most * b->pixels), &dst));
    if (b->pass->what == CAIRN__CONV_WEIGHTS && most < g->n) {
        TRY(cairn__scratch_room(&kept->weights, 2 * sums + n, &weights));
        b->sums = (double *)(void *)weights;
        b->weights = weights + 2 * sums;
    }
    if (g->q <= SHORT_ROW && b->pixels <= MAX_PLACES / (g->r * g->s) && g->h * g->w <= INT32_MAX) {
        TRY(cairn__scratch_room(&kept->places, (size_t)(g->r * g->s * b->pixels), &places));
        fill_places(g, (int32_t *)places);
        b->places = (const int32_t *)places;
    }
    b->columns = columns;
    b->dst = dst;
out:
    return st;
}

cairn_status cairn__conv_by_columns(struct cairn__engine *engine, struct cairn__conv_columns *kept,
                                    const struct cairn__conv_pass *pass) {
    static cairn_status (*const of_group[])(const struct block *, int64_t) = {
        [CAIRN__CONV_DST] = dst_of_group,
        [CAIRN__CONV_SRC] = src_of_group,
        [CAIRN__CONV_WEIGHTS] = weights_of_group,
    };
    const struct cairn__conv_shape *g = &pass->shape;
    struct block b = {.pass = pass,
                      .engine = engine,
                      .c = g->c / g->groups,
                      .k = g->k / g->groups,
                      .taps = g->c / g->groups * g->r * g->s,
                      .pixels = g->p * g->q,
                      .nbytes = cairn_dtype_nbytes(pass->in_type)};
    const bool without_copies = is_pointwise(g) && b.pixels >= 64;
    const int64_t fit = without_copies ? 1 : MAX_COLUMNS / b.taps / b.pixels;
    const int64_t most = fit < 1 ? 1 : fit > g->n ? g->n : fit; /* images of a block */
    cairn_status st = CAIRN_OK;
    TRY(make_room(&b, kept, most));
    if (pass->what == CAIRN__CONV_SRC) memset(pass->src, 0, (size_t)(g->n * g->c * g->h * g->w) * sizeof(float));
    for (; b.image < g->n; b.image += most) {
        b.images = g->n - b.image < most ? g->n - b.image : most;
        for (int64_t group = 0; group < g->groups; group++) TRY(of_group[pass->what](&b, group));
    }
out:
    return st;
}

void cairn__conv_columns_end(struct cairn__conv_columns *kept) {
    struct cairn__scratch *const all[] = {&kept->columns, &kept->dst, &kept->weights, &kept->places};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        cairn__free(all[i]->data);
        *all[i] = (struct cairn__scratch){NULL, 0};
    }
}
