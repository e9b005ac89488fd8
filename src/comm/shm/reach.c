/* Arrays of other ranks in the same process, which are read and written in place.
 *
 * A rank whose group dies may free its arrays while others run a call that it has posted. So a rank publishes that it
 * touches arrays of others, and then checks whether all are still there; a rank that leaves publishes that, and then
 * waits until no rank touches its arrays. Both orders are sequentially consistent, so one of the two sees the other. A
 * rank completes only what it has seen all ranks finish, so nothing of a rank that left in good order is still to be
 * touched. */
#include <sched.h>

#include "comm/shm/shm.h"

cairn_status cairn__shm_begin_touching(struct cairn__shm *s, int peer) {
    if (!s->by_address) return CAIRN_OK;
    atomic_store(&shm_lane(s, s->rank)->touching, 1);
    for (int r = 0; r < s->size; r++) {
        if (r == s->rank || (peer >= 0 && r != peer) || cairn__shm_gone(s, r) == SHM_HERE) continue;
        cairn__shm_end_touching(s);
        return cairn__shm_fail_gone(s, r, "was in a call with it");
    }
    return CAIRN_OK;
}

void cairn__shm_end_touching(struct cairn__shm *s) {
    if (s->by_address) atomic_store(&shm_lane(s, s->rank)->touching, 0);
}

void cairn__shm_wait_untouched(struct cairn__shm *s) {
    for (int r = 0; r < s->size && s->by_address; r++) {
        while (r != s->rank && atomic_load(&shm_lane(s, r)->touching)) sched_yield();
    }
}
