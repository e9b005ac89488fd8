/* One suite that checks the promises of include/cairn/dist.h bit by bit on every backend. Every rank of a group runs it
 * at the same time; ranks may be threads, processes, or processes of mpirun. */
#ifndef TESTS_DIST_COLLECTIVES_H
#define TESTS_DIST_COLLECTIVES_H

#include "group_fn.h"

/* A case is collective, leaves the group alive, and takes no context. CAIRN_TEST_SEEDS in the environment, as
 * sanitizers have it, asks for less of everything. */
struct collectives_case {
    const char *name;
    group_fn check;
};
extern const struct collectives_case collectives_cases[]; /* the last has no name */

/* All cases; word, if not NULL, is what the names of those wanted contain. A failure begins with the case's name. */
char *collectives_check(cairn_group *group, void *word);

/* A way in which rank 1 differs from the others, in a group of 2 ranks or more that has not been used yet. It dies.
 * Backends other than shm notice with CAIRN_CHECK=1 alone. */
struct collectives_mismatch {
    const char *name;
    cairn_status (*issue)(cairn_group *group);
    const char *ours, *theirs; /* what the error says of rank 1 and of the others */
    int parties;               /* ranks from 0 on that are to notice; 0 = all */
};
extern struct collectives_mismatch collectives_mismatches[]; /* the last has no name */
char *collectives_check_mismatch(cairn_group *group, void *mismatch);

/* Collectives of every kind, messages, group memory and groups that come and go, on two channels, until something
 * fails: the status, and in text what cairn_last_error said. CAIRN_EINTERNAL: a result was wrong. The same seed on
 * every rank. */
cairn_status collectives_loop(cairn_group *group, unsigned seed, char *text, size_t nbytes);

#endif
