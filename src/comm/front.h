/* Internals of the front: failure.c and work.c, which backends use too, and above them group.c, collective.c and
 * subgroup.c. */
#ifndef CAIRN__COMM_FRONT_H
#define CAIRN__COMM_FRONT_H

#include "comm/group_backend.h"
#include "kernels/kernels.h"

/* Makes a group of the family, without the backend's part; the caller adds it to the family's list. cairn__group_end
 * frees it and removes it from the family. */
cairn_status cairn__group_make(struct cairn__family *family, int size, cairn_group **out);
void cairn__group_end(cairn_group **group);

/* Makes a family and its first group, without the backend's part. */
cairn_status cairn__family_make(const struct cairn__group_create_options *options, cairn_group **out);
/* Frees a family with its first group, which must be the last one left. */
void cairn__family_end(cairn_group **group);

/* The pool of works: grows it by a chunk; frees it. */
cairn_status cairn__group_add_works(cairn_group *group);
void cairn__group_free_works(cairn_group *group);

/* A rank's part in making a group from this one, exchanged by all ranks; subgroup.c. */
struct cairn__proposal {
    int64_t made; /* family->made, as this rank knows it */
    int32_t kind, status;
    int32_t color, key; /* of a split */
    int32_t n;          /* of ranks */
    union {
        uint8_t ranks[CAIRN__MAX_RANKS];
        char reason[400]; /* if status is not CAIRN_OK */
    };
};

/* The timeout, or the longest that fits in 64 bits of ns. */
double cairn__group_clamp_timeout(double timeout);

/* Whether this process was forked from the rank's; it may then only free its copy. False for a group of one rank. */
bool cairn__group_was_forked(const cairn_group *group);

/* Errors: CAIRN_ESTATE in a process forked from the rank's; the first cause, once the group is dead or was aborted. */
cairn_status cairn__group_check_alive(cairn_group *group);

/* Returns status, whose message is the last error. CAIRN_EPEER, CAIRN_ETIMEOUT and this rank's abort kill the group: it
 * keeps the first cause and reports it to the peers. call is the call that this rank was in. */
cairn_status cairn__group_kill_if_deadly(cairn_group *group, const struct cairn__call *call, cairn_status status);

/* The same for calls that a failure leaves half-done: any failure kills the group. */
cairn_status cairn__group_kill_if_failed(cairn_group *group, const struct cairn__call *call, cairn_status status);

/* Numbers the request and posts it; waits if out is NULL. */
cairn_status cairn__group_post(cairn_group *group, const struct cairn__request *request, cairn_work **out);

#endif
