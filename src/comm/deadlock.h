/* Detects two ranks that wait for each other in different groups of a family, or in messages.
 *
 * A rank calls all groups of a family from one thread. While it waits in one call it posts no other. So if rank A waits
 * for a call that rank B has not posted, and B waits for a call that A has not posted, both wait forever. Both fail
 * soon instead of after the timeout. Groups with a shorter timeout than the environment's are exempt: the program
 * expects that timeout. */
#ifndef CAIRN__COMM_DEADLOCK_H
#define CAIRN__COMM_DEADLOCK_H

#include "comm/group_backend.h"

/* The call that another rank waits in. */
struct cairn__stuck {
    int rank;      /* of the environment */
    bool is_dead;  /* it has detected a deadlock there: the group may be dead here too, because of that */
    int64_t group; /* index */
    struct cairn__call call;
};

/* False: the group has a shorter timeout than the environment's. */
bool cairn__group_detects_deadlock(const cairn_group *group);

/* This rank waits in `call` of mine, which theirs->rank has not posted. CAIRN_EPEER if that rank waits in *other for a
 * call that this one has not posted: both groups are to die here, *other by cairn__group_kill, which ends that wait. */
cairn_status cairn__check_deadlock(cairn_group *mine, const struct cairn__call *call, const struct cairn__stuck *theirs,
                                   cairn_group **other);

/* Detection for backends without shared memory, through the family's store. Does not detect two messages.
 *
 * Called while this rank waits in `call` of group and nothing moves. Publishes that in the store and reads what the
 * other ranks of the group published. Cost: one request, and one or two for each rank. Errors: CAIRN_EPEER as above.
 * If the store fails, detection stops without an error. */
cairn_status cairn__find_deadlock(cairn_group *group, const struct cairn__call *call);
/* The wait in group is over: publishes that, if the wait was published. The key stays: another rank may be about to
 * read it. */
void cairn__clear_stuck(const cairn_group *group);
/* The family ends: deletes the key. */
void cairn__forget_stuck(const cairn_group *root);

#endif
