/* Two ranks that wait for each other in different groups of a family, or in messages. A rank calls all groups of a
 * family from one thread, so a rank that waits in one calls no other before that is over: where it waits for a call of
 * a rank that waits for one of its own, neither is ever made. That is told soon, and not after the timeout. But a group
 * with a shorter timeout than the environment's is one whose timeout the program means to outlive. */
#ifndef CAIRN__DIST_DEADLOCK_H
#define CAIRN__DIST_DEADLOCK_H

#include "dist/group_backend.h"

/* What another rank waits in. */
struct cairn__stuck {
    int rank;      /* of the environment */
    int64_t group; /* index */
    struct cairn__call call;
};

/* Whether a wait in the group counts as one that ends with the others' calls alone. */
bool cairn__waits_for_good(const cairn_group *group);

/* For a rank that waits in `call` of mine for theirs->rank, which has not made it. CAIRN_EPEER where that rank waits
 * for a call that this one has not made: the group that it waits in dies here too, so that it hears of it. */
cairn_status cairn__check_deadlock(cairn_group *mine, const struct cairn__call *call,
                                   const struct cairn__stuck *theirs);

/* For backends whose ranks do not see each other, by what they leave in the family's store. Of two messages that wait
 * for each other it knows nothing.
 *
 * For a wait in `call` of group in which nothing has moved for a while: leaves word of it, and looks for such a rank
 * among those of the group: two short requests a rank, so seldom. Errors: CAIRN_EPEER as above; what goes wrong with
 * the store is no error, but ends the looking. */
cairn_status cairn__find_deadlock(cairn_group *group, const struct cairn__call *call);
/* The wait in group is over: if it left word, that holds no more. */
void cairn__take_word_back(const cairn_group *group);

#endif
