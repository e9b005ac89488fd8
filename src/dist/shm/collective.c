/* The collectives, one after the other, as steps that all ranks make together.
 *
 * A collective whose memory is the group's is one step: each rank reduces its slice of all buffers, or copies from them.
 * Other memory goes through the ranks' bounces in blocks, two steps a block: everyone has staged, everyone has worked.
 * Staging the next block first copies the last one out, which no rank but the bounce's owner waits for.
 *
 * This rank's part of a later collective may run ahead of the others' part of an earlier one, unless both need the
 * bounces. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/dtype.h"
#include "core/status.h"
#include "dist/shm/shm.h"

enum { SLICE_ALIGN = 64 };

/* ---- posting ---- */

static void locate(const struct cairn__shm *s, const void *memory, size_t nbytes, struct shm_slot *slot) {
    slot->direct = 0;
    for (size_t i = 0; i < s->num_segments; i++) {
        const struct shm_segment *g = &s->segments[i];
        uintptr_t begin = g->nbytes ? (uintptr_t)g->parts[s->rank] : 0, at = (uintptr_t)memory;
        if (!begin || at < begin || at - begin > g->nbytes || nbytes > g->nbytes - (at - begin)) continue;
        slot->direct = 1;
        slot->segment = (uint32_t)i;
        slot->offset = at - begin;
        return;
    }
}

static void fill_slot(const struct cairn__shm *s, const struct cairn__request *r, struct shm_slot *slot) {
    slot->n = r->n;
    slot->root = r->root;
    slot->kind = (uint8_t)r->kind;
    slot->dtype = (uint8_t)r->dtype;
    slot->redop = (uint8_t)r->redop;
    locate(s, r->src, r->n * cairn_dtype_nbytes(r->dtype), slot);
}

cairn_status cairn__shm_post(struct cairn__shm *s, cairn_work *work) {
    if (s->posted - s->complete == SHM_OUTSTANDING) {
        cairn_status st = cairn__shm_wait(s, shm_op(s, s->complete)->work);
        if (st != CAIRN_OK) return st;
    }
    struct shm_op *op = shm_op(s, s->posted);
    *op = (struct shm_op){.work = work, .slot = shm_slot(s, s->rank, s->posted)};
    fill_slot(s, &work->request, op->slot);
    s->posted++;
    s->stalled_since = 0;
    atomic_store(&op->slot->ticket, s->posted);
    cairn__shm_notify(s);
    return cairn__shm_step(s);
}

/* ---- agreement ---- */

static void describe_slot(const struct shm_slot *slot, bool with_kind, char *text, size_t nbytes) {
    const char *kind = with_kind ? cairn__collective_name((enum cairn__collective)slot->kind) : "";
    const char *of = with_kind ? " of " : "";
    const char *type = cairn_dtype_name((cairn_dtype)slot->dtype);
    unsigned long long n = slot->n;
    switch ((enum cairn__collective)slot->kind) {
    case CAIRN__ALLREDUCE:
        snprintf(text, nbytes, "%s%s%llu %s to %s", kind, of, n, type, slot->redop == CAIRN_AVG ? "average" : "sum");
        break;
    case CAIRN__BROADCAST:
        snprintf(text, nbytes, "%s%s%llu %s from rank %d", kind, of, n, type, slot->root);
        break;
    case CAIRN__ALLGATHER:
        snprintf(text, nbytes, "%s%s%llu %s", kind, of, n, type);
        break;
    case CAIRN__ALLOC:
        snprintf(text, nbytes, "%s%s%llu bytes", kind, of, n);
        break;
    case CAIRN__FREE:
        snprintf(text, nbytes, "%s%sallocation %llu", kind, of, n);
        break;
    default:
        snprintf(text, nbytes, "%s", cairn__collective_name((enum cairn__collective)slot->kind));
    }
}

static bool agree(const struct shm_slot *a, const struct shm_slot *b) {
    return a->kind == b->kind && a->n == b->n && a->dtype == b->dtype && a->redop == b->redop && a->root == b->root;
}

static cairn_status fail_mismatch(struct cairn__shm *s, const struct shm_op *op, int rank) {
    int low = rank < s->rank ? rank : s->rank, high = rank < s->rank ? s->rank : rank;
    uint64_t number = atomic_load(&op->slot->ticket) - 1;
    const struct shm_slot *a = shm_slot(s, low, number), *b = shm_slot(s, high, number);
    bool same_kind = a->kind == b->kind;
    char of_low[96], of_high[96];
    describe_slot(a, !same_kind, of_low, sizeof(of_low));
    describe_slot(b, !same_kind, of_high, sizeof(of_high));
    return cairn__fail(CAIRN_EPEER,
                       "%s number %" PRIu64 ": rank %d brings %s, rank %d brings %s; every rank must issue the same "
                       "collectives in the same order",
                       same_kind ? cairn__collective_name((enum cairn__collective)a->kind) : "collective", number, low,
                       of_low, high, of_high);
}

/* Compares with the ranks that have posted, in rank order. */
static cairn_status match(struct cairn__shm *s, struct shm_op *op, uint64_t number) {
    for (; op->matched < s->size; op->matched++) {
        const struct shm_slot *theirs = shm_slot(s, op->matched, number);
        if (atomic_load(&theirs->ticket) != number + 1) return CAIRN_OK;
        if (!agree(theirs, op->slot)) return fail_mismatch(s, op, op->matched);
        s->moved = true;
    }
    return CAIRN_OK;
}

/* ---- the plan ---- */

/* Of whom the memory matters: a broadcast only reads the root's. */
static bool all_direct(const struct cairn__shm *s, const struct cairn__request *r, uint64_t number) {
    if (s->size == 1) return true;
    if (r->kind == CAIRN__BROADCAST) return shm_slot(s, r->root, number)->direct;
    for (int p = 0; p < s->size; p++) {
        if (!shm_slot(s, p, number)->direct) return false;
    }
    return true;
}

static void plan(struct cairn__shm *s, struct shm_op *op, uint64_t number) {
    const struct cairn__request *r = &op->work->request;
    bool moves_data = r->kind <= CAIRN__ALLGATHER;
    op->single = !moves_data || all_direct(s, r, number);
    op->first = s->steps;
    op->nsteps = r->kind == CAIRN__AGREE || (moves_data && r->n > 0);
    if (!op->single) {
        op->block = SHM_BOUNCE_NBYTES / cairn_dtype_nbytes(r->dtype);
        op->nsteps = 2 * ((r->n + op->block - 1) / op->block);
    } else {
        op->block = r->n;
    }
    op->planned = true;
}

/* ---- one block ---- */

struct block {
    size_t first, n; /* elements of the request */
    size_t nbytes;   /* of one element */
    uint64_t number;
};

static struct block block_of(const struct shm_op *op, uint64_t index, uint64_t number) {
    const struct cairn__request *r = &op->work->request;
    struct block b = {.first = (size_t)index * op->block, .nbytes = cairn_dtype_nbytes(r->dtype), .number = number};
    b.n = r->n - b.first < op->block ? r->n - b.first : op->block;
    return b;
}

static void *bounce(const struct cairn__shm *s, int rank) {
    return s->bounces + (size_t)rank * SHM_BOUNCE_NBYTES;
}

/* Where rank's elements of this block are, as this process sees them. */
static void *source(const struct cairn__shm *s, int rank, const struct block *b) {
    const struct shm_slot *slot = shm_slot(s, rank, b->number);
    if (!slot->direct) return bounce(s, rank);
    return (char *)s->segments[slot->segment].parts[rank] + slot->offset + b->first * b->nbytes;
}

static bool uses_bounce(const struct cairn__shm *s, const struct shm_op *op) {
    const struct cairn__request *r = &op->work->request;
    return !op->single && !op->slot->direct && (r->kind != CAIRN__BROADCAST || r->root == s->rank);
}

static void stage(struct cairn__shm *s, struct shm_op *op, const struct block *b) {
    if (!uses_bounce(s, op)) return;
    const char *src = op->work->request.src;
    memcpy(bounce(s, s->rank), src + b->first * b->nbytes, b->n * b->nbytes);
}

static void copy_out(struct cairn__shm *s, struct shm_op *op, const struct block *b) {
    if (!uses_bounce(s, op) || op->work->request.kind != CAIRN__ALLREDUCE) return;
    char *x = op->work->request.x;
    memcpy(x + b->first * b->nbytes, bounce(s, s->rank), b->n * b->nbytes);
}

/* The slices of a block, one a rank, meet at cache lines of rank 0's buffer. */
static size_t slice_begin(size_t n, size_t nbytes, uintptr_t base, int rank, int size) {
    size_t head = (SLICE_ALIGN - base % SLICE_ALIGN) % SLICE_ALIGN / nbytes;
    size_t line = SLICE_ALIGN / nbytes;
    size_t share = (n + (size_t)size - 1) / (size_t)size;
    share = (share + line - 1) / line * line;
    size_t begin = rank ? head + (size_t)rank * share : 0;
    return rank == size || begin > n ? n : begin;
}

static void reduce(struct cairn__shm *s, struct shm_op *op, const struct block *b) {
    const struct cairn__request *r = &op->work->request;
    const struct cairn__kernels *k = s->kernels;
    if (s->size == 1) {
        if (cairn__dtype(r->dtype)->is_float) k->check[r->dtype](r->x, b->n, &op->found);
        return;
    }
    uintptr_t base = (uintptr_t)source(s, 0, b);
    size_t begin = slice_begin(b->n, b->nbytes, base, s->rank, s->size);
    size_t end = slice_begin(b->n, b->nbytes, base, s->rank + 1, s->size);
    for (int p = 0; p < s->size; p++) s->bufs[p] = (char *)source(s, p, b) + begin * b->nbytes;
    float divisor = r->redop == CAIRN_AVG ? (float)s->size : 1.0f;
    if (end > begin) {
        k->reduce[CAIRN__REDUCE_SUM][r->dtype](s->bufs, s->size, (const void *const *)s->bufs, s->size, end - begin,
                                               divisor, &op->found);
    }
}

static void fetch_root(struct cairn__shm *s, struct shm_op *op, const struct block *b) {
    const struct cairn__request *r = &op->work->request;
    if (r->root == s->rank) return;
    memcpy((char *)r->x + b->first * b->nbytes, source(s, r->root, b), b->n * b->nbytes);
}

static void fetch_all(struct cairn__shm *s, struct shm_op *op, const struct block *b) {
    const struct cairn__request *r = &op->work->request;
    for (int p = 0; p < s->size; p++) {
        char *dst = (char *)r->x + ((size_t)p * r->n + b->first) * b->nbytes;
        const void *src = p == s->rank ? (const char *)r->src + b->first * b->nbytes : source(s, p, b);
        if (dst != src) memcpy(dst, src, b->n * b->nbytes);
    }
}

static void work_on(struct cairn__shm *s, struct shm_op *op, const struct block *b) {
    switch (op->work->request.kind) {
    case CAIRN__ALLREDUCE:
        reduce(s, op, b);
        break;
    case CAIRN__BROADCAST:
        fetch_root(s, op, b);
        break;
    case CAIRN__ALLGATHER:
        fetch_all(s, op, b);
        break;
    default:
        op->found |= op->work->request.found;
    }
}

/* ---- steps ---- */

static bool all_made(const struct cairn__shm *s, uint64_t steps) {
    for (int p = 0; p < s->size; p++) {
        if (atomic_load(&shm_lane(s, p)->steps) < steps) return false;
    }
    return true;
}

static void make_step(struct cairn__shm *s, struct shm_op *op, uint64_t number) {
    uint64_t index = op->single ? op->step : op->step / 2;
    struct block b = block_of(op, index, number);
    bool staging = !op->single && op->step % 2 == 0;
    if (staging && index > 0) {
        struct block last = block_of(op, index - 1, number);
        copy_out(s, op, &last);
    }
    if (staging) {
        stage(s, op, &b);
    } else {
        work_on(s, op, &b);
    }
}

/* Before the step that lets others read it. A rank that posts number + SHM_OUTSTANDING has read this bit. */
static void publish_found(struct cairn__shm *s, const struct shm_op *op, uint64_t number) {
    uint64_t bit = UINT64_C(1) << (number % SHM_OUTSTANDING);
    struct shm_lane *mine = shm_lane(s, s->rank);
    uint64_t found = atomic_load(&mine->found);
    uint64_t updated = op->found ? found | bit : found & ~bit;
    if (updated != found) atomic_store(&mine->found, updated);
}

/* This rank's part of one collective, as far as it goes now. */
static cairn_status advance(struct cairn__shm *s, struct shm_op *op, uint64_t number, bool *finished) {
    *finished = false;
    cairn_status st = match(s, op, number);
    if (st != CAIRN_OK || op->matched < s->size) return st;
    if (!op->planned) plan(s, op, number);
    if (!op->single && s->complete != number) return CAIRN_OK;
    for (; op->step < op->nsteps; op->step++) {
        if (op->step > 0 && !all_made(s, op->first + op->step)) return CAIRN_OK;
        make_step(s, op, number);
        if (op->step + 1 == op->nsteps) publish_found(s, op, number);
        atomic_store(&shm_lane(s, s->rank)->steps, ++s->steps);
        cairn__shm_notify(s);
        s->moved = true;
    }
    *finished = true;
    return CAIRN_OK;
}

static uint32_t found_anywhere(const struct cairn__shm *s, uint64_t number) {
    uint64_t found = 0;
    for (int p = 0; p < s->size; p++) found |= atomic_load(&shm_lane(s, p)->found);
    return found >> (number % SHM_OUTSTANDING) & 1;
}

static bool finish(struct cairn__shm *s, struct shm_op *op, uint64_t number) {
    if (!all_made(s, op->first + op->nsteps)) return false;
    if (!op->single && op->nsteps > 0) {
        struct block last = block_of(op, op->nsteps / 2 - 1, number);
        copy_out(s, op, &last);
    }
    cairn__work_complete(op->work, op->nsteps > 0 ? found_anywhere(s, number) : 0);
    s->moved = true;
    return true;
}

/* A bounced collective waits for the ones before it to be complete, hence the turns between the two. */
cairn_status cairn__shm_step(struct cairn__shm *s) {
    bool again = true;
    while (again && s->complete < s->posted) {
        again = false;
        while (s->done < s->posted) {
            bool finished = false;
            cairn_status st = advance(s, shm_op(s, s->done), s->done, &finished);
            if (st != CAIRN_OK) return st;
            if (!finished) break;
            s->done++;
        }
        while (s->complete < s->done && finish(s, shm_op(s, s->complete), s->complete)) {
            s->complete++;
            again = s->done < s->posted;
        }
    }
    return CAIRN_OK;
}

/* ---- for messages ---- */

bool cairn__shm_lags(struct cairn__shm *s, int rank) {
    if (rank == s->rank || s->complete == s->posted) return false;
    const struct shm_op *op = shm_op(s, s->complete);
    if (!op->planned) return atomic_load(&shm_slot(s, rank, s->complete)->ticket) != s->complete + 1;
    return atomic_load(&shm_lane(s, rank)->steps) < op->first + op->step;
}

void cairn__shm_describe(const cairn_work *work, char *text, size_t nbytes) {
    const struct cairn__request *r = &work->request;
    const char *kind = cairn__collective_name(r->kind);
    if (work->number == 0) {
        snprintf(text, nbytes, "the group's creation");
    } else if (r->kind <= CAIRN__ALLGATHER) {
        snprintf(text, nbytes, "%s number %" PRIu64 " of %zu %s", kind, work->number, r->n, cairn_dtype_name(r->dtype));
    } else {
        snprintf(text, nbytes, "%s number %" PRIu64, kind, work->number);
    }
}
