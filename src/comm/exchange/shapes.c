/* How each collective is composed of transfers. */
#include <assert.h>
#include <string.h>

#include "comm/exchange/machine.h"
#include "comm/exchange/parts.h"
#include "core/dtype.h"

enum {
    BLOCK_NBYTES = 4 << 20, /* two of them, with their results, stay in a cache of the last level */
    SLICE_NBYTES = 64,      /* slices begin at multiples of this */
    WHOLE_NBYTES = 4096,    /* all-reduces up to this size are sent whole: one transfer instead of two */
};

static size_t type_nbytes(const struct flow *f) {
    return cairn_dtype_nbytes((cairn_dtype)f->work->request.call.dtype);
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Offset from the beginning of the array (or part), and length, in bytes. */
struct range {
    size_t at, nbytes;
};

static struct range block_range(const struct flow *f, size_t block) {
    const size_t n = f->work->request.call.n, begin = block * f->per_block;
    return (struct range){begin * type_nbytes(f), smaller(f->per_block, n - begin) * type_nbytes(f)};
}

/* The slice of a block that the rank combines. It has whole elements, because these have 1, 2, 4 or 8 bytes. */
static struct range slice_range(const struct exchange *x, const struct flow *f, size_t block, int rank) {
    const struct range whole = block_range(f, block);
    const size_t p = (size_t)x->group->size;
    const size_t each = (whole.nbytes + p * SLICE_NBYTES - 1) / (p * SLICE_NBYTES) * SLICE_NBYTES;
    const size_t begin = smaller((size_t)rank * each, whole.nbytes);
    return (struct range){whole.at + begin, smaller(each, whole.nbytes - begin)};
}

static size_t part_nbytes(const struct flow *f) {
    return f->work->request.call.n * type_nbytes(f);
}

static bool is_other(const struct exchange *x, int rank) {
    return rank != x->group->rank;
}

static char *slot(const struct flow *f, size_t block) {
    return f->staging + block % EXCHANGE_AHEAD * f->stride;
}

/* Offset of a rank's contribution in a slot if every rank brings at most nbytes. */
static size_t staged_at(int rank, size_t nbytes) {
    return (size_t)rank * ((nbytes + SLICE_NBYTES - 1) / SLICE_NBYTES * SLICE_NBYTES);
}

static void sends(struct exchange *x, int rank, struct range r) {
    x->at[2][rank] = r.at;
    x->at[3][rank] = r.nbytes;
}

static void receives(struct exchange *x, int rank, struct range r) {
    x->at[0][rank] = r.at;
    x->at[1][rank] = r.nbytes;
}

static void combine(struct exchange *x, const struct flow *f, void *dst, struct range own, size_t staged,
                    const char *staging) {
    static const enum cairn__reduction reductions[] = {
        [CAIRN_SUM] = CAIRN__REDUCE_SUM, [CAIRN_AVG] = CAIRN__REDUCE_SUM,   [CAIRN_MIN] = CAIRN__REDUCE_MIN,
        [CAIRN_MAX] = CAIRN__REDUCE_MAX, [CAIRN_PROD] = CAIRN__REDUCE_PROD,
    };
    const struct cairn__request *q = &f->work->request;
    const int p = x->group->size;
    uint32_t found = 0;
    assert(staged_at(p, staged) <= f->stride);
    for (int r = 0; r < p; r++) x->srcs[r] = staging + staged_at(r, staged);
    x->srcs[x->group->rank] = (const char *)q->src + own.at;
    const enum cairn__reduction reduction = reductions[q->call.redop];
    const float divisor = (float)cairn__call_divisor(&q->call, p);
    const size_t n = own.nbytes / type_nbytes(f);
    if (cairn__adds_in_levels(x, &q->call)) {
        cairn__sum_in_levels(x->kernels, &x->layout, (cairn_dtype)q->call.dtype, dst, x->srcs, n, divisor,
                             q->nonfinite);
    } else if (q->nonfinite) {
        cairn__reduce_and_find_nonfinite(x->kernels, reduction, (cairn_dtype)q->call.dtype, &dst, 1, x->srcs, p, n,
                                         divisor, q->nonfinite);
    } else {
        x->kernels->reduce[reduction][q->call.dtype](&dst, 1, x->srcs, p, n, divisor, &found);
    }
}

/* ---- slices: all-reduce and reduce ---- */

/* The offsets in a slot follow from this length for every block, also for the shorter last one: data of an earlier
 * block in its slot may still be in flight. */
static size_t longest_slice(const struct exchange *x, const struct flow *f) {
    return slice_range(x, f, 0, 0).nbytes;
}

static void scatter_slices(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t) {
    const struct range own = slice_range(x, f, block, x->group->rank);
    const size_t staged = longest_slice(x, f);
    t->kind = CAIRN__MOVE_ALLTOALL;
    t->src = f->work->request.src;
    t->dst = slot(f, block);
    for (int r = 0; r < x->group->size; r++) {
        if (!is_other(x, r)) continue;
        sends(x, r, slice_range(x, f, block, r));
        receives(x, r, (struct range){staged_at(r, staged), own.nbytes});
    }
}

static void combine_slice(struct exchange *x, const struct flow *f, size_t block) {
    const struct range own = slice_range(x, f, block, x->group->rank);
    combine(x, f, (char *)f->work->request.dst + own.at, own, longest_slice(x, f), slot(f, block));
}

static void gather_slices(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t) {
    t->kind = CAIRN__MOVE_ALLGATHER;
    t->dst = f->work->request.dst;
    for (int r = 0; r < x->group->size; r++) receives(x, r, slice_range(x, f, block, r));
}

/* Ranks other than root combine into their own part of the slot. */
static void combine_slice_for_root(struct exchange *x, const struct flow *f, size_t block) {
    const struct range own = slice_range(x, f, block, x->group->rank);
    const size_t staged = longest_slice(x, f);
    char *dst = is_other(x, f->work->request.call.root) ? slot(f, block) + staged_at(x->group->rank, staged)
                                                        : (char *)f->work->request.dst + own.at;
    combine(x, f, dst, own, staged, slot(f, block));
}

static void collect_slices(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t) {
    const int root = f->work->request.call.root, rank = x->group->rank;
    const size_t staged = longest_slice(x, f);
    t->kind = CAIRN__MOVE_ALLTOALL;
    t->src = slot(f, block);
    t->dst = f->work->request.dst;
    if (is_other(x, root)) {
        sends(x, root, (struct range){staged_at(rank, staged), slice_range(x, f, block, rank).nbytes});
        return;
    }
    for (int r = 0; r < x->group->size; r++) {
        if (is_other(x, r)) receives(x, r, slice_range(x, f, block, r));
    }
}

/* ---- short all-reduces ---- */

static void gather_whole(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t) {
    const size_t nbytes = part_nbytes(f);
    t->kind = CAIRN__MOVE_ALLGATHER;
    t->dst = slot(f, block);
    for (int r = 0; r < x->group->size; r++) receives(x, r, (struct range){staged_at(r, nbytes), nbytes});
    memcpy(slot(f, block) + staged_at(x->group->rank, nbytes), f->work->request.src, nbytes);
}

static void combine_whole(struct exchange *x, const struct flow *f, size_t block) {
    const size_t nbytes = part_nbytes(f);
    combine(x, f, f->work->request.dst, (struct range){0, nbytes}, nbytes, slot(f, block));
}

/* ---- parts ---- */

/* The range of the rank's part. */
static struct range part_range(const struct flow *f, size_t block, int rank) {
    const struct range r = block_range(f, block);
    return (struct range){(size_t)rank * part_nbytes(f) + r.at, r.nbytes};
}

static void scatter_parts(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t) {
    const size_t staged = block_range(f, block).nbytes;
    t->kind = CAIRN__MOVE_ALLTOALL;
    t->src = f->work->request.src;
    t->dst = slot(f, block);
    for (int r = 0; r < x->group->size; r++) {
        if (!is_other(x, r)) continue;
        sends(x, r, part_range(f, block, r));
        receives(x, r, (struct range){staged_at(r, staged), staged});
    }
}

static void combine_part(struct exchange *x, const struct flow *f, size_t block) {
    const struct range r = block_range(f, block);
    combine(x, f, (char *)f->work->request.dst + r.at, part_range(f, block, x->group->rank), r.nbytes, slot(f, block));
}

/* src may already be its place in dst. */
static void bring_own_part(struct exchange *x, const struct flow *f) {
    const struct cairn__request *q = &f->work->request;
    if (q->call.n == 0) return; /* with no elements the addresses may be NULL */
    char *own = (char *)q->dst + (size_t)x->group->rank * part_nbytes(f);
    if (own != q->src) memcpy(own, q->src, part_nbytes(f));
}

static void gather_parts(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t) {
    t->kind = CAIRN__MOVE_ALLGATHER;
    t->dst = f->work->request.dst;
    for (int r = 0; r < x->group->size; r++) receives(x, r, part_range(f, block, r));
}

static void keep_own_part(struct exchange *x, const struct flow *f) {
    const struct cairn__request *q = &f->work->request;
    const size_t at = (size_t)x->group->rank * part_nbytes(f);
    if (q->call.n > 0) memcpy((char *)q->dst + at, (const char *)q->src + at, part_nbytes(f));
}

static void swap_parts(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t) {
    t->kind = CAIRN__MOVE_ALLTOALL;
    t->src = f->work->request.src;
    t->dst = f->work->request.dst;
    for (int r = 0; r < x->group->size; r++) {
        if (!is_other(x, r)) continue;
        sends(x, r, part_range(f, block, r));
        receives(x, r, part_range(f, block, r));
    }
}

/* ---- from one rank ---- */

static void move_block(const struct flow *f, size_t block, enum cairn__transfer_kind kind, struct cairn__transfer *t) {
    const struct range r = block_range(f, block);
    const struct cairn__request *q = &f->work->request;
    t->kind = kind;
    t->dst = q->dst ? (char *)q->dst + r.at : NULL;
    t->src = q->src ? (const char *)q->src + r.at : NULL;
    t->nbytes = r.nbytes;
    t->peer = q->call.root;
}

static void broadcast_block(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t) {
    (void)x;
    move_block(f, block, CAIRN__MOVE_BROADCAST, t);
}

static void send_block(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t) {
    (void)x;
    move_block(f, block, CAIRN__MOVE_SEND, t);
}

static void receive_block(struct exchange *x, const struct flow *f, size_t block, struct cairn__transfer *t) {
    (void)x;
    move_block(f, block, CAIRN__MOVE_RECV, t);
}

/* ---- the table ---- */

static const struct exchange_shape shapes[] = {
    [CAIRN__ALLREDUCE] = {.first = scatter_slices, .combine = combine_slice, .second = gather_slices, .stages = true},
    [CAIRN__REDUCE] = {.first = scatter_slices,
                       .combine = combine_slice_for_root,
                       .second = collect_slices,
                       .stages = true},
    [CAIRN__BROADCAST] = {.first = broadcast_block},
    [CAIRN__ALLGATHER] = {.begin = bring_own_part, .first = gather_parts, .parts = true},
    [CAIRN__REDUCE_SCATTER] = {.first = scatter_parts, .combine = combine_part, .parts = true, .stages = true},
    [CAIRN__ALLTOALL] = {.begin = keep_own_part, .first = swap_parts, .parts = true},
    [CAIRN__SEND] = {.first = send_block},
    [CAIRN__RECV] = {.first = receive_block},
};
static const struct exchange_shape whole_allreduce = {.first = gather_whole, .combine = combine_whole, .stages = true};

bool cairn__adds_in_levels(const struct exchange *x, const struct cairn__call *call) {
    const bool is_sum = call->redop == CAIRN_SUM || call->redop == CAIRN_AVG;
    return x->in_levels && is_sum && (call->dtype == CAIRN_F32 || cairn__is_half((cairn_dtype)call->dtype));
}

const struct exchange_shape *cairn__exchange_shape(const struct exchange *x, const struct cairn__call *call) {
    if (call->kind >= CAIRN__BARRIER) return NULL;
    if (call->kind != CAIRN__ALLREDUCE) return &shapes[call->kind];
    if (call->n * cairn_dtype_nbytes((cairn_dtype)call->dtype) <= WHOLE_NBYTES) return &whole_allreduce;
    return cairn__adds_in_levels(x, call) ? &cairn__machine_allreduce : &shapes[CAIRN__ALLREDUCE];
}

size_t cairn__exchange_per_block(const struct exchange *x, const struct exchange_shape *shape,
                                 const struct cairn__call *call) {
    if (shape->per_block) return shape->per_block;
    const size_t parts = shape->parts ? (size_t)x->group->size : 1;
    const size_t slices = BLOCK_NBYTES / parts / SLICE_NBYTES;
    return (slices ? slices : 1) * SLICE_NBYTES / cairn_dtype_nbytes((cairn_dtype)call->dtype);
}

size_t cairn__exchange_stride(int size) {
    const size_t rounding = (size_t)size * SLICE_NBYTES;
    const size_t whole = (size_t)size * WHOLE_NBYTES;
    return (BLOCK_NBYTES > whole ? BLOCK_NBYTES : whole) + rounding;
}

size_t cairn__exchange_staged_nbytes(const struct exchange *x, const struct exchange_shape *shape,
                                     const struct cairn__call *call, size_t n) {
    const size_t p = (size_t)x->group->size, nbytes = n * cairn_dtype_nbytes((cairn_dtype)call->dtype);
    const bool is_of_each = shape->parts || shape == &whole_allreduce;
    if (shape == &cairn__machine_allreduce) return cairn__machine_staged_nbytes(n, x->group->size);
    return (is_of_each ? p : 1) * nbytes + p * SLICE_NBYTES;
}
