/* One suite that checks the promises of include/cairn/dist.h bit by bit on every backend. Every rank of a group runs it
 * at the same time; ranks may be threads, processes, or processes of mpirun. */
#ifndef TESTS_DIST_COLLECTIVES_H
#define TESTS_DIST_COLLECTIVES_H

#include "group_fn.h"

/* A case is collective, leaves the group usable, and takes no context. CAIRN_TEST_SEEDS in the environment, as
 * sanitizer runs set it, reduces the work of all cases. */
struct collectives_case {
    const char *name;
    group_fn check;
};
extern const struct collectives_case collectives_cases[]; /* the last has no name */

/* Runs all cases, or those whose names contain word, if not NULL. A failure message begins with the case's name. */
char *collectives_check(cairn_group *group, void *word);

/* A call in which rank 1 differs from the others, in an unused group of 2 ranks or more. The group dies. Backends other
 * than shm only detect it with CAIRN_CHECK=1. */
struct collectives_mismatch {
    const char *name;
    cairn_status (*issue)(cairn_group *group);
    const char *ours, *theirs; /* the error's words about rank 1 and about the others */
    int parties;               /* number of ranks, from 0 on, that must detect it; 0 = all */
};
extern struct collectives_mismatch collectives_mismatches[]; /* the last has no name */
char *collectives_check_mismatch(cairn_group *group, void *mismatch);

/* Runs collectives of every kind, messages, group memory, and creation and destruction of groups, on two channels,
 * until something fails. Returns the status, and in text the error message; CAIRN_EINTERNAL = a result was wrong. seed
 * must be equal on every rank. */
cairn_status collectives_loop(cairn_group *group, unsigned seed, char *text, size_t nbytes);

#endif
