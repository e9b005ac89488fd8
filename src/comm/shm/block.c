/* One block of a collective: what this rank stages, computes and copies.
 *
 * The rank that computes an element reads every rank's value where it is (its own array, group memory, or the others'
 * bounces) and writes the result to its own array and to every array in group memory. For arrays elsewhere it leaves
 * the result in its own bounce, once, and their ranks copy it. So a rank stages all but the slice that it computes, and
 * copies out all but that slice. */
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "comm/shm/shm.h"
#include "core/dtype.h"

enum { SLICE_ALIGN = 64 };

static const struct cairn__call *call_of(const struct shm_op *op) {
    return &op->work->request.call;
}

/* ---- places ---- */

bool cairn__shm_has_parts(const struct cairn__call *call) {
    return call->kind == CAIRN__REDUCE_SCATTER || call->kind == CAIRN__ALLTOALL;
}

/* Whether the result has one slice per rank, which that rank also computes for others. */
static bool has_slices(const struct cairn__call *call) {
    return call->kind == CAIRN__ALLREDUCE || call->kind == CAIRN__REDUCE;
}

static bool gives(const struct cairn__call *call, int rank) {
    return call->kind != CAIRN__BROADCAST || call->root == rank;
}

static bool gets_slices(const struct cairn__call *call, int rank) {
    return call->kind == CAIRN__ALLREDUCE || (call->kind == CAIRN__REDUCE && call->root == rank);
}

bool cairn__shm_all_placed(const struct cairn__shm *s, const struct cairn__call *call, uint64_t number) {
    for (int r = 0; r < s->size && s->size > 1; r++) {
        const struct shm_slot *slot = shm_slot(s, r, number);
        if (gives(call, r) && !slot->src.segment) return false;
        if (gets_slices(call, r) && !slot->dst.segment) return false;
    }
    return true;
}

static char *bounce(const struct cairn__shm *s, int rank, const struct shm_block *b) {
    return (char *)s->bounces + ((size_t)rank * SHM_BOUNCES + b->bounce) * SHM_BOUNCE_NBYTES;
}

/* Where this process finds rank's elements of this block that go to the given part. */
static const char *source(const struct cairn__shm *s, const struct shm_op *op, const struct shm_block *b, int rank,
                          int part) {
    const struct shm_slot *slot = shm_slot(s, rank, b->number);
    const size_t at = cairn__shm_has_parts(call_of(op)) ? (size_t)part * call_of(op)->n + b->first : b->first;
    if (rank == s->rank) return (const char *)op->work->request.src + at * b->nbytes;
    if (slot->src.segment) return (const char *)shm_at(s, rank, &slot->src) + at * b->nbytes;
    return bounce(s, rank, b) + (cairn__shm_has_parts(call_of(op)) ? (size_t)part * op->block * b->nbytes : 0);
}

/* ---- slices ---- */

struct slice {
    size_t begin, n;
};

static size_t slice_begin(size_t n, size_t nbytes, uintptr_t base, size_t index, size_t slices) {
    size_t head = (SLICE_ALIGN - base % SLICE_ALIGN) % SLICE_ALIGN / nbytes;
    size_t line = SLICE_ALIGN / nbytes;
    size_t share = (n + slices - 1) / slices;
    share = (share + line - 1) / line * line;
    size_t begin = index ? head + index * share : 0;
    return index == slices || begin > n ? n : begin;
}

/* Slice `index` of `slices` of a block. Slices meet at cache lines of the destination, if all ranks know it, or of
 * bounces. */
static struct slice cut(const struct cairn__shm *s, const struct shm_op *op, const struct shm_block *b, size_t index,
                        size_t slices) {
    const int first = call_of(op)->kind == CAIRN__REDUCE ? call_of(op)->root : 0;
    const uintptr_t base = op->single ? shm_slot(s, first, b->number)->dst.offset : 0;
    const size_t begin = slice_begin(b->n, b->nbytes, base, index, slices);
    return (struct slice){begin, slice_begin(b->n, b->nbytes, base, index + 1, slices) - begin};
}

static struct slice slice_of(const struct cairn__shm *s, const struct shm_op *op, const struct shm_block *b, int rank) {
    return cut(s, op, b, (size_t)rank, (size_t)s->size);
}

/* ---- staging ---- */

/* Cache lines that another core holds are fetched one after the other, so stores bypass the caches: 23 GB/s instead of
 * 2.3, measured between two cores of a Zen. */
#ifdef __SSE2__
static size_t stream(char *dst, const char *src, size_t nbytes) {
    const size_t whole = nbytes / SLICE_ALIGN * SLICE_ALIGN;
    for (size_t i = 0; i < whole; i += sizeof(__m128i))
        _mm_stream_si128((__m128i *)(dst + i), _mm_loadu_si128((const __m128i *)(src + i)));
    _mm_sfence();
    return whole;
}
#else
static size_t stream(char *dst, const char *src, size_t nbytes) {
    (void)dst, (void)src, (void)nbytes;
    return 0;
}
#endif

void cairn__shm_copy_across(void *dst, const void *src, size_t nbytes) {
    const size_t head = (size_t) - (uintptr_t)dst % SLICE_ALIGN;
    size_t done = 0;
    if (nbytes > head) {
        memcpy(dst, src, head);
        done = head + stream((char *)dst + head, (const char *)src + head, nbytes - head);
    }
    memcpy((char *)dst + done, (const char *)src + done, nbytes - done);
}

void cairn__shm_stage(struct cairn__shm *s, const struct shm_op *op, const struct shm_block *b) {
    const struct cairn__call *call = call_of(op);
    if (op->slot->src.segment || !gives(call, s->rank)) return;
    char *to = bounce(s, s->rank, b);
    if (cairn__shm_has_parts(call)) {
        for (int r = 0; r < s->size; r++) {
            if (r == s->rank) continue;
            cairn__shm_copy_across(to + (size_t)r * op->block * b->nbytes, source(s, op, b, s->rank, r),
                                   b->n * b->nbytes);
        }
    } else { /* all but the slice that this rank computes */
        const struct slice own = has_slices(call) ? slice_of(s, op, b, s->rank) : (struct slice){0};
        const char *src = source(s, op, b, s->rank, 0);
        const size_t begin = own.begin * b->nbytes, end = begin + own.n * b->nbytes;
        cairn__shm_copy_across(to, src, begin);
        cairn__shm_copy_across(to + end, src + end, b->n * b->nbytes - end);
    }
}

/* ---- reductions ---- */

static void combine(struct cairn__shm *s, struct shm_op *op, size_t n, int num_dsts) {
    static const enum cairn__reduction reductions[] = {[CAIRN_SUM] = CAIRN__REDUCE_SUM,
                                                       [CAIRN_AVG] = CAIRN__REDUCE_SUM,
                                                       [CAIRN_MIN] = CAIRN__REDUCE_MIN,
                                                       [CAIRN_MAX] = CAIRN__REDUCE_MAX,
                                                       [CAIRN_PROD] = CAIRN__REDUCE_PROD};
    const struct cairn__call *call = call_of(op);
    const float divisor = (float)cairn__call_divisor(call, s->size);
    const cairn__reduce_fn reduce = s->kernels->reduce[reductions[call->redop]][call->dtype];
    if (n > 0 && op->work->request.nonfinite) {
        struct cairn__nonfinite nonfinite = {.found = 0};
        cairn__reduce_and_find_nonfinite(s->kernels, reductions[call->redop], (cairn_dtype)call->dtype, s->dsts,
                                         num_dsts, s->srcs, s->size, n, divisor, &nonfinite);
        op->found |= nonfinite.found;
        cairn__ranks_unite(shm_nonfinite_ranks(s, s->rank, call->number), &nonfinite.ranks);
    } else if (n > 0) {
        reduce(s->dsts, num_dsts, s->srcs, s->size, n, divisor, &op->found);
    }
}

/* Where a slice goes; *by_bounce: others copy it from the bounce. Returns the number of places. */
static int list_dsts(struct cairn__shm *s, const struct shm_op *op, const struct shm_block *b, size_t begin,
                     bool *by_bounce) {
    const size_t at = (b->first + begin) * b->nbytes;
    int count = 0;
    for (int r = 0; r < s->size; r++) {
        const struct shm_slot *slot = shm_slot(s, r, b->number);
        if (!gets_slices(call_of(op), r)) continue;
        if (r == s->rank) {
            s->dsts[count++] = (char *)op->work->request.dst + at;
        } else if (slot->dst.segment) {
            s->dsts[count++] = (char *)shm_at(s, r, &slot->dst) + at;
        } else {
            *by_bounce = true;
        }
    }
    return count;
}

static void reduce_slice(struct cairn__shm *s, struct shm_op *op, const struct shm_block *b, struct slice slice) {
    const size_t begin = slice.begin * b->nbytes;
    char *left = bounce(s, s->rank, b) + begin;
    bool by_bounce = false;
    int count = list_dsts(s, op, b, slice.begin, &by_bounce);
    if (count == 0) s->dsts[count++] = left;
    for (int r = 0; r < s->size; r++) s->srcs[r] = source(s, op, b, r, 0) + begin;
    combine(s, op, slice.n, count);
    if (by_bounce && s->dsts[0] != left) cairn__shm_copy_across(left, s->dsts[0], slice.n * b->nbytes);
}

void cairn__shm_reduce_piece(struct cairn__shm *s, struct shm_op *op, const struct shm_block *b, size_t index,
                             size_t pieces) {
    reduce_slice(s, op, b, cut(s, op, b, index, pieces));
}

static void reduce_part(struct cairn__shm *s, struct shm_op *op, const struct shm_block *b) {
    for (int r = 0; r < s->size; r++) s->srcs[r] = source(s, op, b, r, s->rank);
    s->dsts[0] = (char *)op->work->request.dst + b->first * b->nbytes;
    combine(s, op, b->n, 1);
}

void cairn__shm_copy_out(struct cairn__shm *s, const struct shm_op *op, const struct shm_block *b) {
    const struct cairn__call *call = call_of(op);
    if (!gets_slices(call, s->rank) || op->slot->dst.segment) return;
    char *dst = (char *)op->work->request.dst + b->first * b->nbytes;
    for (int r = 0; r < s->size; r++) {
        if (r == s->rank) continue;
        const struct slice slice = slice_of(s, op, b, r);
        memcpy(dst + slice.begin * b->nbytes, bounce(s, r, b) + slice.begin * b->nbytes, slice.n * b->nbytes);
    }
}

/* ---- copies ---- */

static void fetch_root(struct cairn__shm *s, struct shm_op *op, const struct shm_block *b) {
    const int root = call_of(op)->root;
    if (root == s->rank) return;
    memcpy((char *)op->work->request.dst + b->first * b->nbytes, source(s, op, b, root, 0), b->n * b->nbytes);
}

/* Begins with this rank's own part, so that ranks read from different memory at one time. */
static void fetch_all(struct cairn__shm *s, struct shm_op *op, const struct shm_block *b) {
    for (int i = 0; i < s->size; i++) {
        const int r = (s->rank + i) % s->size;
        char *dst = (char *)op->work->request.dst + ((size_t)r * call_of(op)->n + b->first) * b->nbytes;
        const char *src = source(s, op, b, r, s->rank);
        if (dst != src) memcpy(dst, src, b->n * b->nbytes);
    }
}

void cairn__shm_work_on(struct cairn__shm *s, struct shm_op *op, const struct shm_block *b) {
    switch ((enum cairn__call_kind)call_of(op)->kind) {
    case CAIRN__ALLREDUCE:
    case CAIRN__REDUCE:
        reduce_slice(s, op, b, slice_of(s, op, b, s->rank));
        break;
    case CAIRN__REDUCE_SCATTER:
        reduce_part(s, op, b);
        break;
    case CAIRN__BROADCAST:
        fetch_root(s, op, b);
        break;
    case CAIRN__ALLGATHER:
    case CAIRN__ALLTOALL:
        fetch_all(s, op, b);
        break;
    default:
        op->found |= op->work->request.found;
    }
}
