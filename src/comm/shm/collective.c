/* The collectives, one after the other, in steps that all ranks make together.
 *
 * A collective whose memory is the group's is one step. Other memory goes through the ranks' bounces in blocks: in step
 * j each rank stages block j, works on block j - 1, and fetches what others made of block j - 2. So three blocks are in
 * use at a time, and each rank has three bounces, used in turn by one collective after the other.
 *
 * A bounce is free when it is staged again: all ranks have made the previous step, so they have fetched the block three
 * back. The last block of a collective has been fetched when the collective completes; the next one that needs bounces
 * begins after that, and its first block uses another bounce than that last block.
 *
 * This rank's part of a later collective may run ahead of the others' part of an earlier one, unless both need the
 * bounces. */
#include "comm/shm/shm.h"
#include "core/dtype.h"
#include "core/status.h"

/* ---- posting ---- */

static struct shm_place locate(const struct cairn__shm *s, const void *memory, const struct cairn__call *call,
                               bool parts) {
    const size_t n = (size_t)call->n * (parts ? (size_t)s->size : 1);
    return cairn__shm_locate(s, memory, n * cairn_dtype_nbytes((cairn_dtype)call->dtype));
}

/* If ranks are crowded this wakes no rank: plan() does, once all ranks have posted. */
static void publish(struct cairn__shm *s, cairn_work *work) {
    const struct cairn__request *r = &work->request;
    struct shm_op *op = shm_op(s, s->posted);
    struct shm_slot *slot = shm_slot(s, s->rank, s->posted);
    *op = (struct shm_op){.work = work, .slot = slot};
    slot->call = r->call;
    slot->src = slot->dst = (struct shm_place){0};
    if (r->call.kind <= CAIRN__ALLTOALL) slot->src = locate(s, r->src, &r->call, cairn__shm_has_parts(&r->call));
    if (r->call.kind == CAIRN__ALLREDUCE || r->call.kind == CAIRN__REDUCE)
        slot->dst = r->dst == r->src ? slot->src : locate(s, r->dst, &r->call, false);
    if (r->nonfinite) *shm_nonfinite_ranks(s, s->rank, s->posted) = (struct cairn__ranks){{0}};
    s->posted++;
    s->clock.since = 0;
    atomic_store(&slot->ticket, s->posted);
    if (!s->crowded) cairn__shm_notify(s);
}

static bool has_room(const struct cairn__shm *s) {
    return s->posted - s->complete < SHM_OUTSTANDING;
}

void cairn__shm_post_collective(struct cairn__shm *s, cairn_work *work) {
    if (s->queued.first || !has_room(s)) {
        shm_enqueue(&s->queued, work);
    } else {
        publish(s, work);
    }
}

/* ---- the plan ---- */

/* A block is as many whole cache lines as a bounce holds, of each part where there are parts. */
static void plan(struct cairn__shm *s, struct shm_op *op, uint64_t number) {
    const struct cairn__call *call = &op->work->request.call;
    bool moves_data = call->kind <= CAIRN__ALLTOALL && call->n > 0;
    op->single = !moves_data || cairn__shm_all_placed(s, call, number);
    const size_t parts = cairn__shm_has_parts(call) ? (size_t)s->size : 1;
    op->block = op->single ? (size_t)call->n
                           : SHM_BOUNCE_NBYTES / parts / 64 * 64 / cairn_dtype_nbytes((cairn_dtype)call->dtype);
    op->blocks = moves_data ? (call->n + op->block - 1) / op->block : 0;
    op->first = s->steps;
    op->shared = op->single && moves_data && cairn__shm_shares(s, call);
    op->nsteps = op->shared ? 0 : op->single ? moves_data || call->kind == CAIRN__AGREE : op->blocks + 1;
    op->first_block = s->blocks;
    if (!op->single) s->blocks += op->blocks;
    op->planned = true;
    if (s->crowded && cairn__shm_wants_help(op)) cairn__shm_notify(s);
}

/* ---- steps ---- */

static struct shm_block block_of(const struct shm_op *op, uint64_t index, uint64_t number) {
    const struct cairn__call *call = &op->work->request.call;
    struct shm_block b = {.first = (size_t)index * op->block,
                          .nbytes = cairn_dtype_nbytes((cairn_dtype)call->dtype),
                          .number = number,
                          .bounce = (op->first_block + index) % SHM_BOUNCES};
    b.n = call->n - b.first < op->block ? call->n - b.first : op->block;
    return b;
}

static bool all_made(const struct cairn__shm *s, uint64_t steps) {
    for (int p = 0; p < s->size; p++) {
        if (atomic_load(&shm_lane(s, p)->steps) < steps) return false;
    }
    return true;
}

static void make_step(struct cairn__shm *s, struct shm_op *op, uint64_t number) {
    struct shm_block b = block_of(op, op->step, number);
    if (op->single) {
        cairn__shm_work_on(s, op, &b);
        return;
    }
    if (op->step < op->blocks) cairn__shm_stage(s, op, &b);
    if (op->step >= 1) {
        b = block_of(op, op->step - 1, number);
        cairn__shm_work_on(s, op, &b);
    }
    if (op->step >= 2) {
        b = block_of(op, op->step - 2, number);
        cairn__shm_copy_out(s, op, &b);
    }
}

/* Called before the step that lets others read the bit. A rank that posts number + SHM_OUTSTANDING has read it. */
static void publish_found(struct cairn__shm *s, const struct shm_op *op, uint64_t number) {
    uint64_t bit = UINT64_C(1) << (number % SHM_OUTSTANDING);
    struct shm_lane *mine = shm_lane(s, s->rank);
    uint64_t found = atomic_load(&mine->found);
    uint64_t updated = op->found ? found | bit : found & ~bit;
    if (updated != found) atomic_store(&mine->found, updated);
}

/* A rank that left in good order has seen all pieces computed, so the collective is complete then. */
static cairn_status share(struct cairn__shm *s, struct shm_op *op, uint64_t number) {
    const struct shm_block all = block_of(op, 0, number);
    uint32_t found = 0;
    cairn_status st = cairn__shm_begin_touching(s, -1);
    if (st != CAIRN_OK) return cairn__shm_shared(s, op, number, &found) ? CAIRN_OK : st;
    cairn__shm_share(s, op, &all);
    cairn__shm_end_touching(s);
    return CAIRN_OK;
}

/* Does this rank's part of one collective, as far as possible now. */
static cairn_status advance(struct cairn__shm *s, struct shm_op *op, uint64_t number, bool *finished) {
    cairn_status st = CAIRN_OK;
    *finished = false;
    for (; op->matched < s->size; op->matched++) { /* compares with the ranks that have posted, in rank order */
        const struct shm_slot *theirs = shm_slot(s, op->matched, number);
        if (atomic_load(&theirs->ticket) != number + 1) return CAIRN_OK;
        if (!cairn__calls_agree(&op->slot->call, &theirs->call))
            return cairn__fail_mismatch(s->group, s->rank, &op->slot->call, op->matched, &theirs->call);
        shm_move(s, &s->clock);
    }
    if (!op->planned) plan(s, op, number);
    if (!op->single && s->complete != number) return CAIRN_OK;
    if (op->shared) TRY(share(s, op, number));
    for (; op->step < op->nsteps; op->step++) {
        if (op->step > 0 && !all_made(s, op->first + op->step)) return CAIRN_OK;
        if (op->blocks) TRY(cairn__shm_begin_touching(s, -1));
        make_step(s, op, number);
        if (op->blocks) cairn__shm_end_touching(s);
        if (op->step + 1 == op->nsteps) publish_found(s, op, number);
        atomic_store(&shm_lane(s, s->rank)->steps, ++s->steps);
        cairn__shm_notify(s);
        shm_move(s, &s->clock);
    }
    *finished = true;
out:
    return st;
}

static bool finish(struct cairn__shm *s, struct shm_op *op, uint64_t number) {
    uint32_t found = 0;
    if (op->shared ? !cairn__shm_shared(s, op, number, &found) : !all_made(s, op->first + op->nsteps)) return false;
    if (!op->single) {
        struct shm_block last = block_of(op, op->blocks - 1, number);
        cairn__shm_copy_out(s, op, &last);
    }
    for (int p = 0; p < s->size && op->nsteps > 0; p++)
        found |= atomic_load(&shm_lane(s, p)->found) >> (number % SHM_OUTSTANDING) & 1;
    struct cairn__nonfinite *nonfinite = op->work->request.nonfinite;
    if (nonfinite) nonfinite->found |= found;
    for (int p = 0; p < s->size && nonfinite && found; p++)
        cairn__ranks_unite(&nonfinite->ranks, shm_nonfinite_ranks(s, p, number));
    cairn__work_complete(op->work, found);
    shm_move(s, &s->clock);
    return true;
}

/* Completes what it can, in order. True: something completed, and a later collective may go on. */
static bool complete(struct cairn__shm *s) {
    bool any = false;
    while (s->complete < s->done && finish(s, shm_op(s, s->complete), s->complete)) {
        s->complete++;
        any = true;
    }
    while (s->queued.first && has_room(s)) publish(s, shm_dequeue(&s->queued));
    return any && s->done < s->posted;
}

/* A collective with bounces starts when all before it are complete, so advancing and completing alternate. */
cairn_status cairn__shm_step_collectives(struct cairn__shm *s) {
    cairn_status st = CAIRN_OK;
    bool again = s->complete < s->posted;
    while (again) {
        while (s->done < s->posted) {
            bool finished = false;
            TRY(advance(s, shm_op(s, s->done), s->done, &finished));
            if (!finished) break;
            s->done++;
        }
        again = complete(s);
    }
out:
    return st;
}

/* ---- for messages of failures ---- */

bool cairn__shm_lags(struct cairn__shm *s, int rank) {
    if (rank == s->rank || s->complete == s->posted) return false;
    const struct shm_op *op = shm_op(s, s->complete);
    if (!op->planned) return atomic_load(&shm_slot(s, rank, s->complete)->ticket) != s->complete + 1;
    if (op->shared) return atomic_load(&shm_lane(s, rank)->sharing) == s->complete + 1;
    return atomic_load(&shm_lane(s, rank)->steps) < op->first + op->step;
}
