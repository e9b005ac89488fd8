/* Sums in pieces, which the ranks that are awake compute for all ranks, if the ranks outnumber the processors.
 *
 * A rank that has seen all ranks post takes one piece after the other, adds up every rank's elements and writes the sum
 * to every rank's array. When no piece is left it adds the number of pieces that it computed to the job's count. Once
 * that covers all pieces, the collective is complete for every rank, even for ranks that did not run meanwhile. An
 * element has the same sum whichever rank computes it.
 *
 * The pieces are in as many regions as there are processors, and a rank begins with its processor's: the next call
 * finds those elements in that processor's caches.
 *
 * A job's words carry the turn of their place among the slots, so they are never cleared: a word of an earlier turn
 * counts as 0, and no rank can be in a later one while another reads it (shm.h). Nor is there a lock: a rank that takes
 * pieces has published that before (`sharing`), so that its death with one in hand kills the group. */
#include "comm/shm/shm.h"
#include "core/dtype.h"

enum {
    LEAST_NBYTES = 16 << 10,   /* of a piece of a rank's array, except the last */
    MAX_PIECES = 16,           /* of a region */
    HELPED_NBYTES = 256 << 10, /* of a rank's array: from this size on waking other ranks pays off */
    TURN_SHIFT = 32,
};

static const uint64_t FOUND = UINT64_C(1) << 31, COUNT = (UINT64_C(1) << 31) - 1;

static struct shm_job *job_of(const struct cairn__shm *s, uint64_t number) {
    return &s->control->jobs[number % SHM_SLOTS];
}

static uint64_t turn_of(uint64_t number) {
    return (number / SHM_SLOTS + 1) << TURN_SHIFT;
}

static uint64_t in_turn(uint64_t word, uint64_t turn) {
    return word >> TURN_SHIFT == turn >> TURN_SHIFT ? word : turn;
}

static uint64_t nbytes_of(const struct cairn__call *call) {
    return call->n * cairn_dtype_nbytes((cairn_dtype)call->dtype);
}

/* The number of pieces of each region. */
static uint64_t pieces_of(const struct cairn__shm *s, const struct cairn__call *call) {
    const uint64_t pieces = nbytes_of(call) / (uint64_t)s->regions / LEAST_NBYTES;
    return pieces < 1 ? 1 : pieces > MAX_PIECES ? MAX_PIECES : pieces;
}

bool cairn__shm_shares(const struct cairn__shm *s, const struct cairn__call *call) {
    return s->crowded && (call->kind == CAIRN__ALLREDUCE || call->kind == CAIRN__REDUCE);
}

bool cairn__shm_wants_help(const struct shm_op *op) {
    return !op->shared || nbytes_of(&op->work->request.call) >= HELPED_NBYTES;
}

/* False: the region has none left. */
static bool take(atomic_uint_fast64_t *taken, uint64_t turn, uint64_t pieces, uint64_t *index) {
    uint64_t word = atomic_load(taken);
    do {
        *index = in_turn(word, turn) & COUNT;
        if (*index == pieces) return false;
    } while (!atomic_compare_exchange_weak(taken, &word, turn + *index + 1));
    return true;
}

void cairn__shm_share(struct cairn__shm *s, struct shm_op *op, const struct shm_block *b) {
    struct shm_lane *mine = shm_lane(s, s->rank);
    struct shm_job *job = job_of(s, b->number);
    const uint64_t turn = turn_of(b->number), pieces = pieces_of(s, &op->work->request.call);
    const uint64_t regions = (uint64_t)s->regions;
    uint64_t made = 0, index;
    uint32_t found;
    atomic_store(&mine->sharing, b->number + 1);
    const int processor = sched_getcpu();
    for (uint64_t i = 0; i < regions; i++) {
        const uint64_t region = ((processor < 0 ? 0 : (uint64_t)processor) + i) % regions;
        for (; take(&job->taken[region], turn, pieces, &index); made++)
            cairn__shm_reduce_piece(s, op, b, (size_t)(region * pieces + index), (size_t)(regions * pieces));
    }
    if (made) {
        const uint64_t flag = op->found ? FOUND : 0;
        uint64_t word = atomic_load(&job->made);
        while (!atomic_compare_exchange_weak(&job->made, &word, (in_turn(word, turn) + made) | flag)) {}
    }
    atomic_store(&mine->sharing, 0);
    if (made && cairn__shm_shared(s, op, b->number, &found)) cairn__shm_notify(s);
    shm_move(s, &s->clock);
}

bool cairn__shm_shared(const struct cairn__shm *s, const struct shm_op *op, uint64_t number, uint32_t *found) {
    const uint64_t word = in_turn(atomic_load(&job_of(s, number)->made), turn_of(number));
    *found = (word & FOUND) != 0;
    return (word & COUNT) == pieces_of(s, &op->work->request.call) * (uint64_t)s->regions;
}
