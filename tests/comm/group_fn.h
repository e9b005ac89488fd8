/* The function that a rank of a group runs, as a thread or as a process. */
#ifndef TESTS_DIST_GROUP_FN_H
#define TESTS_DIST_GROUP_FN_H

#include "../check.h"
#include "cairn/dist.h"

/* Returns NULL on success, otherwise a failure message allocated with malloc. */
typedef char *(*group_fn)(cairn_group *group, void *ctx);

#endif
