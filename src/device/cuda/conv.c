/* Convolution and its gradients: columns of patches ("im2col"), multiplied by cuBLASLt. As on the CPU (cpu/conv.h) each
 * is one of three products between src [n, c, h, w], weights [k, c / groups, r, s] and dst [n, k, p, q], and a
 * transposed convolution is the same three with their roles exchanged:
 *     dst = weights columns     columns of src's gradient = weights^T dst     weights' gradient = dst columns^T
 *
 * Images lie one of two ways in the matrices. Apart: dst's planes stay where they are, and a batch of products, one an
 * image, shares the weights; 1 x 1 kernels then need no columns. Together: images follow one another along the rows,
 * dst is copied to or from that order, and the batch is the groups. That is for groups, for planes that are not whole
 * packs of 16 bytes, which cuBLASLt multiplies slowly, and for gradients of weights, whose sum is over all images: a
 * product for each costs more than the copy where weights are large.
 *
 * cuDNN comes first, where there is one and it takes the convolution (convs.h).
 *
 * Images go in chunks whose matrices fit in MAX_SCRATCH. Columns of gradients are R, so that each result is rounded
 * once. */
#include "device/cuda/conv.h"

#include <cuda_runtime_api.h>

#include "core/dtype.h"
#include "core/status.h"
#include "device/cuda/convs.h"
#include "device/cuda/math_table.h"

enum {
    MAX_SCRATCH = 256 << 20, /* bytes of a matrix of a chunk, unless the chunk is one image */
    PACK_NBYTES = 16,
    PACK = 8, /* elements: of any type at least PACK_NBYTES */
};

enum part { X, WEIGHT, Y };

struct job {
    struct cairn_device *d;
    const struct cairn__conv *conv;
    const char *name;            /* of the pass */
    struct cairn__columns shape; /* of all images */
    int64_t n, k, groups;
    int64_t k_of, taps, pixels; /* a group's dst channels and rows of columns; pixels of a dst plane */
    cairn_dtype type, wide;     /* the operands' type; R */
    bool together, with_columns;
    int64_t most; /* images in a chunk */
    const char *src, *weights, *dst;
    int64_t weights_row; /* from row to row of weights */
};

/* Some images and their matrices; steps are those of the batch of products. */
struct chunk {
    int64_t first, images;
    int64_t batch, cols, row; /* a product's columns; from row to row */
    int64_t columns_step, dst_step, weights_step;
    void *columns, *room; /* ROOM_A; ROOM_B for dst if it is not in place */
};

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t nbytes_of(cairn_dtype t) {
    return (int64_t)cairn_dtype_nbytes(t);
}

static int64_t whole_packs(int64_t n) {
    return (n + PACK - 1) / PACK * PACK;
}

static struct cairn__columns shape_of(const struct cairn__conv *v) {
    const bool t = v->transposed;
    return (struct cairn__columns){
        .images = v->n,
        .c = t ? v->k : v->c,
        .h = t ? v->p : v->h,
        .w = t ? v->q : v->w,
        .r = v->r,
        .s = v->s,
        .p = t ? v->h : v->p,
        .q = t ? v->w : v->q,
        .stride = {v->stride[0], v->stride[1]},
        .padding = {v->padding[0], v->padding[1]},
        .dilation = {v->dilation[0], v->dilation[1]},
    };
}

static struct job job_of(struct cairn_device *d, const struct cairn__conv *v, const char *name) {
    struct job j = {.d = d, .conv = v, .name = name, .shape = shape_of(v), .n = v->n, .groups = v->groups};
    j.k = v->transposed ? v->c : v->k;
    j.k_of = j.k / j.groups;
    j.taps = j.shape.c / j.groups * j.shape.r * j.shape.s;
    j.pixels = j.shape.p * j.shape.q;
    j.type = v->dtype;
    j.wide = v->dtype == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32;
    return j;
}

/* ---- how ---- */

static bool is_pointwise(const struct cairn__columns *g) {
    return g->r == 1 && g->s == 1 && g->p == g->h && g->q == g->w && g->stride[0] == 1 && g->stride[1] == 1 &&
           g->padding[0] == 0 && g->padding[1] == 0;
}

static void choose(struct job *j, enum cairn__conv_part written) {
    const bool packed = j->pixels * nbytes_of(j->type) % PACK_NBYTES == 0;
    /* A gradient of weights for each image, written and read, against copies of dst, and of src where in place. */
    const int64_t weights = j->k * j->taps * nbytes_of(j->wide), in_place = is_pointwise(&j->shape) ? j->taps : 0;
    const bool copies_cost_less = weights > (j->k + in_place) * j->pixels * nbytes_of(j->type);
    j->together = j->groups > 1 || !packed || (written == CAIRN__CONV_WEIGHTS && copies_cost_less);
    j->with_columns = j->together || !is_pointwise(&j->shape);
    /* in bytes of R, whatever the types are */
    const int64_t columns = j->with_columns ? j->taps * j->groups : 0;
    const int64_t largest = (columns > j->k ? columns : j->k) * j->pixels * nbytes_of(j->wide);
    j->most = least(j->n, MAX_SCRATCH / largest > 0 ? MAX_SCRATCH / largest : 1);
}

static struct chunk chunk_at(const struct job *j, int64_t first) {
    struct chunk c = {.first = first, .images = least(j->most, j->n - first)};
    if (j->together) {
        c.batch = j->groups;
        c.cols = c.images * j->pixels;
        c.row = whole_packs(c.cols);
        c.weights_step = j->k_of * j->weights_row;
    } else {
        c.batch = c.images;
        c.cols = c.row = j->pixels;
    }
    c.columns_step = j->taps * c.row;
    c.dst_step = j->k_of * c.row;
    return c;
}

/* ---- matrices ---- */

static int64_t src_image(const struct job *j) {
    return j->shape.c * j->shape.h * j->shape.w;
}

/* An image of src or dst, whose elements are of the pass's type. */
static void *src_at(const struct job *j, const void *src, int64_t image) {
    return (char *)(uintptr_t)src + image * src_image(j) * nbytes_of(j->type);
}

static void *dst_at(const struct job *j, const void *dst, int64_t image) {
    return (char *)(uintptr_t)dst + image * j->k * j->pixels * nbytes_of(j->type);
}

/* Room for a chunk's columns, or for its dst, of elements of type t. */
static bool take_columns(const struct job *j, struct chunk *c, cairn_dtype t) {
    const int64_t n = c->batch * c->columns_step;
    c->columns = cairn__cuda_room(j->d, CAIRN__ROOM_A, (size_t)(n * nbytes_of(t)));
    return c->columns != NULL;
}

static bool take_dst(const struct job *j, struct chunk *c, cairn_dtype t) {
    c->room = cairn__cuda_room(j->d, CAIRN__ROOM_B, (size_t)(c->batch * c->dst_step * nbytes_of(t)));
    return c->room != NULL;
}

static struct cairn__columns columns_of(const struct job *j, const struct chunk *c) {
    struct cairn__columns g = j->shape;
    g.images = c->images;
    g.row_step = c->row;
    g.image_step = j->together ? j->pixels : c->columns_step;
    return g;
}

static void queued(const struct job *j, int error) {
    cairn__cuda_queued(j->d, j->name, error);
}

/* Columns of src: in place, or a copy of patches. NULL if there is no memory. */
static const void *read_columns(const struct job *j, struct chunk *c) {
    const struct cairn__columns g = columns_of(j, c);
    const void *src = src_at(j, j->src, c->first);
    if (!j->with_columns) return src;
    if (!take_columns(j, c, j->type)) return NULL;
    queued(j, cairn__launch_columns(cairn__cuda_enter(j->d)->stream, j->type, c->columns, src, &g));
    return c->columns;
}

/* Planes [images, k, pixels] as rows, each image after the one before: the columns of a 1 x 1 kernel. */
static void copy_planes(const struct job *j, void *to, const void *planes, int64_t images, int64_t pixels,
                        int64_t row) {
    const struct cairn__columns g = {.images = images,
                                     .c = j->k,
                                     .h = 1,
                                     .w = pixels,
                                     .r = 1,
                                     .s = 1,
                                     .p = 1,
                                     .q = pixels,
                                     .stride = {1, 1},
                                     .dilation = {1, 1},
                                     .row_step = row,
                                     .image_step = pixels};
    queued(j, cairn__launch_columns(cairn__cuda_enter(j->d)->stream, j->type, to, planes, &g));
}

static const void *read_dst(const struct job *j, struct chunk *c) {
    const void *dst = dst_at(j, j->dst, c->first);
    if (!j->together) return dst;
    if (!take_dst(j, c, j->type)) return NULL;
    copy_planes(j, c->room, dst, c->images, j->pixels, c->row);
    return c->room;
}

/* Copies rows of weights that are not whole packs, such as 3 x 7 x 7, to rows that are. */
static bool read_weights(struct job *j) {
    j->weights = j->conv->weight;
    j->weights_row = j->taps;
    if (j->taps * nbytes_of(j->type) % PACK_NBYTES == 0) return true;
    j->weights_row = whole_packs(j->taps);
    void *room = cairn__cuda_room(j->d, CAIRN__ROOM_D, (size_t)(j->k * j->weights_row * nbytes_of(j->type)));
    if (!room) return false;
    copy_planes(j, room, j->conv->weight, 1, j->taps, j->weights_row);
    j->weights = room;
    return true;
}

static bool multiply(const struct job *j, const struct chunk *c, struct cairn__batch b) {
    b.batch = c->batch;
    b.in_type = j->type;
    b.alpha = 1;
    const cairn_status st = cairn__cuda_multiply(j->d, &b);
    cairn__cuda_kept(j->d, st);
    return st == CAIRN_OK;
}

/* ---- the three products, of a chunk ---- */

static void write_dst(const struct job *j, struct chunk *c, void *result, const void *bias) {
    const struct cairn__planes planes = {c->images, j->k, j->pixels, c->row, j->together ? j->pixels : c->dst_step};
    const cairn_dtype t = bias ? j->wide : j->type; /* before the bias */
    void *y = dst_at(j, result, c->first);
    const void *columns = read_columns(j, c);
    if (!columns) return;
    const bool in_place = !j->together && t == j->type;
    if (!in_place && !take_dst(j, c, t)) return;
    void *to = in_place ? y : c->room;
    const struct cairn__batch b = {.m = j->k_of,
                                   .n = c->cols,
                                   .k = j->taps,
                                   .out_type = t,
                                   .a = j->weights,
                                   .b = columns,
                                   .c = to,
                                   .lda = j->weights_row,
                                   .ldb = c->row,
                                   .ldc = c->row,
                                   .step_a = c->weights_step,
                                   .step_b = c->columns_step,
                                   .step_c = c->dst_step};
    if (!multiply(j, c, b) || (in_place && !bias)) return;
    queued(j, cairn__launch_planes(cairn__cuda_enter(j->d)->stream, j->type, y, t, to, bias, &planes));
}

static void write_src(const struct job *j, struct chunk *c, void *result, const void *bias) {
    const struct cairn__columns g = columns_of(j, c);
    const cairn_dtype t = j->with_columns || bias ? j->wide : j->type;
    void *src = src_at(j, result, c->first);
    const void *dst = read_dst(j, c);
    if (!dst) return;
    const bool in_place = !j->with_columns && t == j->type;
    if (!in_place && !take_columns(j, c, t)) return;
    const struct cairn__batch b = {.m = j->taps,
                                   .n = c->cols,
                                   .k = j->k_of,
                                   .trans_a = true,
                                   .out_type = t,
                                   .a = j->weights,
                                   .b = dst,
                                   .c = in_place ? src : c->columns,
                                   .lda = j->weights_row,
                                   .ldb = c->row,
                                   .ldc = c->row,
                                   .step_a = c->weights_step,
                                   .step_b = c->dst_step,
                                   .step_c = c->columns_step};
    if (!multiply(j, c, b)) return;
    struct CUstream_st *stream = cairn__cuda_enter(j->d)->stream;
    if (j->with_columns) {
        queued(j, cairn__launch_fold_columns(stream, j->type, src, c->columns, bias, &g));
    } else if (bias) { /* the columns are src itself, as planes */
        const struct cairn__planes planes = {c->images, j->shape.c, j->pixels, j->pixels, src_image(j)};
        const void *from = in_place ? src : c->columns;
        queued(j, cairn__launch_planes(stream, j->type, src, t, from, bias, &planes));
    }
}

/* Images together are added by the product, and chunks by the next product; gradients of images apart are slices, which
 * are added at the end. */
static void write_weights(const struct job *j, struct chunk *c, void *result, const void *bias) {
    const int64_t n = j->k * j->taps, slices = j->together ? 1 : j->n;
    const bool in_place = j->together && (j->most == j->n || j->type == j->wide),
               is_last = c->first + c->images == j->n;
    const cairn_dtype t = in_place ? j->type : j->wide;
    (void)bias;
    const void *columns = read_columns(j, c), *dst = columns ? read_dst(j, c) : NULL;
    char *to = !dst       ? NULL
               : in_place ? result
                          : cairn__cuda_room(j->d, CAIRN__ROOM_C, (size_t)(slices * n * nbytes_of(t)));
    if (!to) return;
    const struct cairn__batch b = {.m = j->k_of,
                                   .n = j->taps,
                                   .k = c->cols,
                                   .trans_b = true,
                                   .out_type = t,
                                   .a = dst,
                                   .b = columns,
                                   .c = j->together ? to : to + c->first * n * nbytes_of(t),
                                   .lda = c->row,
                                   .ldb = c->row,
                                   .ldc = j->taps,
                                   .step_a = c->dst_step,
                                   .step_b = c->columns_step,
                                   .step_c = j->k_of * j->taps,
                                   .accumulate = j->together && c->first > 0};
    if (!multiply(j, c, b) || in_place || !is_last) return;
    struct CUstream_st *stream = cairn__cuda_enter(j->d)->stream;
    queued(j, cairn__launch_sum_slices(stream, j->type, result, to, (size_t)slices, (size_t)n));
}

/* ---- a part of the convolution ---- */

static size_t count_of(const struct cairn__conv *v, enum part part) {
    switch (part) {
    case X:
        return (size_t)(v->n * v->c * v->h * v->w);
    case WEIGHT:
        return (size_t)(v->k * v->c / v->groups * v->r * v->s);
    default:
        return (size_t)(v->n * v->k * v->p * v->q);
    }
}

/* The result of a sum over nothing: zeros, and the bias. */
static void write_nothing(const struct job *j, enum part written, void *result) {
    const struct cairn__conv *v = j->conv;
    struct CUstream_st *stream = cairn__cuda_enter(j->d)->stream;
    if (written == Y && v->bias) {
        const struct cairn__planes planes = {v->n, v->k, v->p * v->q, 0, 0};
        queued(j, cairn__launch_planes(stream, j->type, result, j->type, NULL, v->bias, &planes));
    } else {
        queued(j, (int)cudaMemsetAsync(result, 0, count_of(v, written) * (size_t)nbytes_of(j->type), stream));
    }
}

static cairn_status write_by_library(const struct job *j, enum cairn__conv_part part, void *result, const void *bias) {
    const struct cairn__columns *g = &j->shape;
    const struct cairn__conv_key key = {.n = j->n,
                                        .c = g->c,
                                        .h = g->h,
                                        .w = g->w,
                                        .k = j->k,
                                        .r = g->r,
                                        .s = g->s,
                                        .p = g->p,
                                        .q = g->q,
                                        .groups = j->groups,
                                        .stride = {g->stride[0], g->stride[1]},
                                        .padding = {g->padding[0], g->padding[1]},
                                        .dilation = {g->dilation[0], g->dilation[1]},
                                        .part = (uint8_t)part,
                                        .type = (uint8_t)j->type,
                                        .tf32 = j->d->tf32 && j->type == CAIRN_F32,
                                        .bias = bias != NULL};
    const struct cairn__conv_arrays arrays = {.src = part == CAIRN__CONV_SRC ? result : src_at(j, j->src, 0),
                                              .weights = part == CAIRN__CONV_WEIGHTS
                                                             ? result
                                                             : (void *)(uintptr_t)j->conv->weight,
                                              .dst = part == CAIRN__CONV_DST ? result : dst_at(j, j->dst, 0),
                                              .bias = bias};
    return cairn__convs_write(j->d, &key, &arrays);
}

static void write_by_columns(struct job *j, enum cairn__conv_part part, void *result, const void *bias) {
    void (*const write)(const struct job *, struct chunk *, void *, const void *) =
        part == CAIRN__CONV_WEIGHTS ? write_weights
        : part == CAIRN__CONV_SRC   ? write_src
                                    : write_dst;
    if (part != CAIRN__CONV_WEIGHTS && !read_weights(j)) return;
    choose(j, part);
    for (int64_t first = 0; first < j->n; first += j->most) {
        struct chunk c = chunk_at(j, first);
        write(j, &c, result, bias);
    }
}

/* Writes one part of the convolution, computed from the two others. */
static void write_part(struct job *j, enum part written, void *result) {
    const struct cairn__conv *v = j->conv;
    const void *x = v->x, *y = v->dy, *bias = written == Y ? v->bias : NULL;
    const enum cairn__conv_part part = written == WEIGHT                 ? CAIRN__CONV_WEIGHTS
                                       : (written == X) != v->transposed ? CAIRN__CONV_SRC
                                                                         : CAIRN__CONV_DST;
    if (!result || count_of(v, written) == 0) return;
    if (count_of(v, X) == 0 || count_of(v, WEIGHT) == 0 || count_of(v, Y) == 0) {
        write_nothing(j, written, result);
        return;
    }
    j->src = v->transposed ? y : x;
    j->dst = v->transposed ? x : y;
    /* f64 serves as the reference for other types: one way is enough */
    const cairn_status st = j->type == CAIRN_F64 ? CAIRN_ENOTSUP : write_by_library(j, part, result, bias);
    if (st == CAIRN_ENOTSUP) write_by_columns(j, part, result, bias);
    else cairn__cuda_kept(j->d, st);
}

static void write_bias_gradient(const struct job *j) {
    const struct cairn__conv *v = j->conv;
    double *planes = cairn__cuda_room(j->d, CAIRN__ROOM_A, (size_t)(v->n * v->k) * sizeof(double));
    if (!planes || v->k == 0) return;
    queued(j, cairn__launch_channel_sums(cairn__cuda_enter(j->d)->stream, j->type, v->dbias, v->dy, planes, v->n, v->k,
                                         v->p * v->q));
}

/* ---- the table's two ---- */

void cairn__cuda_conv(struct cairn_device *d, const struct cairn__conv *conv) {
    struct job j = job_of(d, conv, "conv");
    write_part(&j, Y, conv->y);
}

void cairn__cuda_conv_backward(struct cairn_device *d, const struct cairn__conv *conv) {
    struct job j = job_of(d, conv, "conv_backward");
    if (conv->dbias) write_bias_gradient(&j);
    write_part(&j, WEIGHT, conv->dweight);
    write_part(&j, X, conv->dx);
}
