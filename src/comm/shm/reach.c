/* Arrays of other ranks in one process, which are read and written where they stand.
 *
 * A rank whose group dies may free its arrays while others are at a call that it has posted. So ranks say when they
 * touch arrays of others, and look then whether all are still there; one that goes says so and waits until none
 * touches any. Both are sequentially consistent: of a rank that touches and one that goes, one sees the other. A rank
 * has completed what it has seen all ranks finish, so for one that left in good order nothing is left to be touched.
 */
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
