/* Folds, variance, arg-max and running sums: the roles of axes, and the number of threads per result. */
#include "device/cuda/folds.h"

#include "device/cuda/math_table.h"

static size_t at_most(size_t n, size_t limit) {
    return n < limit ? n : limit;
}

static size_t pieces(size_t n, size_t piece) {
    return n / piece + (n % piece != 0);
}

/* ---- which axes are what ---- */

/* Whether the last axis is kept, not counting kept axes of size 1. */
static bool ends_in_columns(const struct cairn__view *x, uint32_t folded) {
    int d = x->ndim - 1;
    while (d >= 0 && x->size[d] == 1 && !(folded >> d & 1)) d--;
    return d >= 0 && !(folded >> d & 1);
}

static bool all_multiples(const struct cairn__axes *axes, int count, size_t of) {
    for (int d = 0; d < count; d++) {
        if ((size_t)axes->stride[0][d] % of != 0) return false;
    }
    return true;
}

/* Whether all packs begin on their width and have V adjacent elements: along the last axis, with the exception that the
 * end of a single axis of terms may be cut off. */
static bool has_packs(const struct cairn__folding *r, size_t v) {
    const struct cairn__axes *last = r->columns ? &r->kept : &r->folded, *other = r->columns ? &r->folded : &r->kept;
    const int inner = last->ndim - 1;
    if (v == 1) return true;
    if (inner < 0 || last->stride[0][inner] != 1 || (size_t)r->x % CAIRN__FOLD_PACK_NBYTES != 0) return false;
    const bool whole = (size_t)last->size[inner] % v == 0 || (!r->columns && inner == 0);
    return whole && all_multiples(last, inner, v) && all_multiples(other, other->ndim, v);
}

/* ---- division of the work, by sizes alone ---- */

enum { WARP = 32, MANY_BLOCKS = 1024, WARP_PACKS = 1024, FEW_ROWS = 1024, PACKS_AT_ONCE = 4 };

/* A row has a warp or fewer threads, each with two packs or more; a long row has a block, or several blocks with 8
 * packs a thread or more. Parts end with a round of a block. */
static void plan_rows(struct cairn__folding *r, size_t v) {
    const size_t n = r->folded.n, rows = r->kept.n, packs = pieces(n, v);
    r->threads = 1;
    while (r->threads < WARP && 2 * r->threads < packs) r->threads *= 2;
    if (packs >= WARP_PACKS || (packs >= CAIRN__CUDA_THREADS && rows <= FEW_ROWS)) r->threads = CAIRN__CUDA_THREADS;
    const size_t round = CAIRN__CUDA_THREADS * v * PACKS_AT_ONCE, most = at_most(MANY_BLOCKS / rows, n / (2 * round));
    r->parts = 1, r->part = n;
    if (r->threads < CAIRN__CUDA_THREADS || most <= 1) return;
    r->part = pieces(pieces(n, most), round) * round;
    r->parts = (uint32_t)pieces(n, r->part);
}

/* A block has a warp of columns and eight rows; more rows and fewer columns if there are fewer columns, fewer
 * rows and more columns if there are few rows. room: for partial results. */
static void plan_columns(struct cairn__folding *r, size_t v, size_t room) {
    enum { ROWS_WORTH_A_THREAD = 4, ROWS_WORTH_A_GROUP = 8 };
    const size_t n = r->folded.n, columns = r->kept.n;
    size_t height = 8;
    while (height < CAIRN__CUDA_THREADS && columns <= CAIRN__CUDA_THREADS / (2 * height)) height *= 2;
    while (height > 1 && n < ROWS_WORTH_A_THREAD * height) height /= 2;
    r->threads = (uint32_t)(CAIRN__CUDA_THREADS / height);
    const size_t strips = pieces(columns, r->threads * v);
    const size_t most = at_most(at_most(MANY_BLOCKS / strips, n / (ROWS_WORTH_A_GROUP * height)), room / columns);
    r->part = most > 1 ? pieces(n, most) : n;
    r->parts = most > 1 ? (uint32_t)pieces(n, r->part) : 1;
}

/* results: a view of each result, of x's shape, or of size 1 along folded axes. doubles: size of a partial result. */
static struct cairn__folding reduction_of(struct cairn_device *d, const struct cairn__view *x, uint32_t folded,
                                          cairn_dtype r_type, const struct cairn__view *const *results, int count,
                                          size_t doubles) {
    const struct cairn__view *views[3] = {x};
    struct cairn__folding r = {.x = x->data, .type = x->dtype, .r = r_type, .columns = ends_in_columns(x, folded)};
    const size_t v = cairn__folds_packs(x->dtype, r_type) ? CAIRN__FOLD_PACK_NBYTES / cairn_dtype_nbytes(x->dtype) : 1;
    for (int i = 0; i < count; i++) views[1 + i] = results[i];
    cairn__axes_of_some(views, 1 + count, ~folded, &r.kept);
    cairn__axes_of_some(views, 1, folded, &r.folded);
    r.packs = has_packs(&r, v);
    r.partials = cairn__cuda_of(d)->partials;
    if (r.columns) {
        plan_columns(&r, v, CAIRN__CUDA_PARTIAL_SUMS / doubles);
        r.packs &= r.kept.n >= r.threads * v; /* or there are threads without any */
    } else {
        plan_rows(&r, v);
    }
    return r;
}

/* ---- folds ---- */

static void fold(struct cairn_device *d, const char *pass, enum cairn__fold f, const struct cairn__view *x,
                 uint32_t folded, const struct cairn__view *dst, cairn_dtype r_type,
                 const struct cairn__fold_end *how) {
    const struct cairn__folding r = reduction_of(d, x, folded, r_type, &dst, 1, 1);
    struct cairn__fold_end end = *how;
    end.dst = dst->data;
    end.type = dst->dtype;
    cairn__cuda_queued(d, pass, cairn__launch_fold(cairn__cuda_enter(d)->stream, f, &r, &end));
}

static cairn_dtype r_of(const struct cairn__view *x, const struct cairn__view *dst) {
    return cairn__needs_f64(x->dtype) || cairn__needs_f64(dst->dtype) ? CAIRN_F64 : CAIRN_F32;
}

void cairn__cuda_fold(struct cairn_device *d, enum cairn__fold f, const struct cairn__view *dst,
                      const struct cairn__view *x, double divisor, bool root) {
    const struct cairn__fold_end end = {.divisor = divisor, .root = root};
    bool any;
    const uint32_t folded = cairn__view_folded(dst, &any);
    if (any) fold(d, "fold", f, x, folded, dst, r_of(x, dst), &end);
}

/* Computes the mean first, then the squares of the differences to it: if x is no longer in the cache, it is read
 * twice. */
void cairn__cuda_variance(struct cairn_device *d, const struct cairn__view *dst, void *mean,
                          const struct cairn__view *x, double divisor, bool root) {
    bool any;
    const uint32_t folded = cairn__view_folded(dst, &any);
    if (!any) return;
    const cairn_dtype r = r_of(x, dst);
    int64_t kept[CAIRN_MAX_DIMS];
    double n = 1;
    for (int i = 0; i < x->ndim; i++) {
        kept[i] = folded >> i & 1 ? 1 : x->size[i];
        n *= folded >> i & 1 ? (double)x->size[i] : 1;
    }
    const struct cairn__view means = cairn__view_dense(mean, r, x->ndim, kept);
    const struct cairn__fold_end averaged = {.divisor = n};
    const struct cairn__fold_end centred = {.divisor = divisor, .root = root, .centre = mean};
    fold(d, "variance", CAIRN__FOLD_SUM, x, folded, &means, r, &averaged);
    fold(d, "variance", CAIRN__FOLD_SUM_SQUARES, x, folded, dst, r, &centred);
}

void cairn__cuda_arg_max(struct cairn_device *d, const struct cairn__view *index, const struct cairn__view *value,
                         const struct cairn__view *x, int axis, bool least) {
    const struct cairn__view *results[] = {index, value};
    struct cairn__arg_end end = {.index = index->data, .least = least};
    if (cairn__view_numel(x) == 0) return;
    if (value) end.value = value->data, end.type = value->dtype;
    const struct cairn__folding r =
        reduction_of(d, x, 1u << axis, cairn__needs_f64(x->dtype) ? CAIRN_F64 : CAIRN_F32, results, value ? 2 : 1, 2);
    cairn__cuda_queued(d, "arg_max", cairn__launch_arg(cairn__cuda_enter(d)->stream, &r, &end));
}

/* ---- running sums ---- */

/* Sums of few and long lines are divided into segments, so that there is work for many threads or warps. A product is
 * computed in order: once it is 0 it stays 0, though later parts of it may be infinite. */
static void plan_running(struct cairn__running *c, bool has_columns, struct cairn__partials *partials) {
    enum { SHORT_LINE = 64, SCANNED_SEGMENT = 1024, SEGMENT = 64, WARPS = 4096, THREADS = 32768, MOST = 128 };
    const size_t lines = c->lines.n;
    c->scanned = !c->product && !has_columns && c->n >= SHORT_LINE;
    size_t segments = c->scanned ? at_most(c->n / SCANNED_SEGMENT, WARPS / lines)
                                 : at_most(at_most(c->n / SEGMENT, THREADS / lines), MOST);
    if (c->product || segments < 1) segments = 1;
    c->segment = pieces(c->n, segments);
    c->segments = (uint32_t)pieces(c->n, c->segment);
    c->sums = c->segments > 1 ? partials->sums : NULL;
}

void cairn__cuda_cumulate(struct cairn_device *d, const struct cairn__view *dst, const struct cairn__view *x, int axis,
                          bool product, bool reverse) {
    const struct cairn__view *views[] = {x, dst};
    struct cairn__running c = {.x = x->data, .dst = dst->data, .product = product, .reverse = reverse};
    if (cairn__view_numel(x) == 0) return;
    c.x_type = x->dtype, c.type = dst->dtype;
    c.n = (size_t)x->size[axis];
    c.x_stride = x->stride[axis], c.stride = dst->stride[axis];
    cairn__axes_of_some(views, 2, ~(1u << axis), &c.lines);
    plan_running(&c, ends_in_columns(x, 1u << axis), cairn__cuda_of(d)->partials);
    cairn__cuda_queued(d, "cumulate", cairn__launch_cumulate(cairn__cuda_enter(d)->stream, &c));
}
