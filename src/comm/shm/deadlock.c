/* Deadlock detection in shared memory (comm/deadlock.h).
 *
 * A rank that has waited for a while publishes the call that it waits in, and how many collectives of each group it has
 * posted. Neither changes while it waits. The rank that reads this waits, too, so its own counts do not change either:
 * a deadlock, once found, remains. */
#include <string.h>

#include "comm/deadlock.h"
#include "comm/group.h"
#include "comm/shm/shm.h"
#include "core/status.h"

_Static_assert(sizeof(struct cairn__call) % sizeof(uint64_t) == 0, "whole words");

static struct shm_stuck *stuck_of(const struct cairn__shm *s, int rank) {
    return &shm_lane(s->root, s->group->env_ranks[rank])->stuck;
}

/* ---- publishing ---- */

void cairn__shm_go_on(struct cairn__shm *s) {
    if (s->root->stuck_in) atomic_fetch_add(&stuck_of(s, s->rank)->turns, 1);
    s->root->stuck_in = NULL;
}

static void publish_stuck(struct cairn__shm *s, const struct cairn__call *call) {
    struct shm_stuck *mine = stuck_of(s, s->rank);
    uint64_t words[SHM_CALL_WORDS];
    if (s->root->stuck_in == s->group && s->root->stuck_at == call->number) return;
    if (atomic_load(&mine->turns) % 2 == 1) atomic_fetch_add(&mine->turns, 1);
    for (const cairn_group *g = s->group->family->groups; g; g = g->next)
        atomic_store(&shm_lane(g->impl, g->rank)->calls, g->next_number);
    memcpy(words, call, sizeof(*call));
    for (int i = 0; i < SHM_CALL_WORDS; i++) atomic_store(&mine->call[i], words[i]);
    atomic_store(&mine->group, s->group->index);
    atomic_fetch_add(&mine->turns, 1);
    s->root->stuck_in = s->group;
    s->root->stuck_at = call->number;
}

/* ---- checking the others ---- */

/* Whether rank, which is stuck, has posted `call`. */
static bool has_posted(const struct cairn__shm *s, const struct shm_route *route, int rank,
                       const struct cairn__call *call) {
    if (!route) return atomic_load(&shm_lane(s, rank)->calls) >= call->number;
    return atomic_load(&route->theirs->slots[(call->number - 1) % SHM_PAIR_SLOTS].ticket) >= call->number;
}

/* Whether rank still takes part. A rank that is gone is reported as gone, unless it left because it detected this
 * deadlock. */
static bool is_there(const struct cairn__shm *s, int rank, const struct shm_stuck *theirs, uint64_t turns) {
    if (atomic_load(&theirs->dead) == turns) return true;
    return !s->peers[rank].dead && atomic_load(&shm_lane(s, rank)->gone) == SHM_HERE;
}

/* Returns false if rank is not stuck, or has posted the call that this rank waits for. */
static bool read_stuck(const struct cairn__shm *s, const struct shm_route *route, int rank,
                       const struct cairn__call *call, struct cairn__stuck *out) {
    const struct shm_stuck *theirs = stuck_of(s, rank);
    const uint64_t turns = atomic_load(&theirs->turns);
    uint64_t words[SHM_CALL_WORDS];
    for (int i = 0; i < SHM_CALL_WORDS; i++) words[i] = atomic_load(&theirs->call[i]);
    memcpy(&out->call, words, sizeof(out->call));
    out->group = atomic_load(&theirs->group);
    out->rank = s->group->env_ranks[rank];
    out->is_dead = atomic_load(&theirs->dead) == turns;
    const bool blocks = is_there(s, rank, theirs, turns) && !has_posted(s, route, rank, call);
    return blocks && turns % 2 == 1 && atomic_load(&theirs->turns) == turns;
}

cairn_status cairn__shm_find_deadlock(struct cairn__shm *s, const struct shm_route *route,
                                      const struct cairn__call *call) {
    struct cairn__stuck theirs;
    cairn_group *other = NULL;
    cairn_status st = CAIRN_OK;
    if (!cairn__group_detects_deadlock(s->group)) return CAIRN_OK;
    publish_stuck(s, call);
    for (int r = 0; r < s->size && st == CAIRN_OK; r++) {
        if (r == s->rank || (route && r != route->peer)) continue;
        if (read_stuck(s, route, r, call, &theirs)) st = cairn__check_deadlock(s->group, call, &theirs, &other);
    }
    if (st == CAIRN_OK) return st;
    struct shm_stuck *mine = stuck_of(s, s->rank);
    atomic_store(&mine->dead, atomic_load(&mine->turns)); /* the record stays, so that the other rank finds the same */
    s->root->stuck_in = NULL;
    return other == s->group ? st : cairn__group_kill(other, st);
}
