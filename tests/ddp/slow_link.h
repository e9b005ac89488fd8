/* Simulates a link of a given bandwidth in front of a group's backend: a collective reaches the backend once the link
 * would have transferred its array. Transfers run one at a time, in the order posted, also while this rank computes;
 * only all-reduces take time. */
#ifndef TESTS_DDP_SLOW_LINK_H
#define TESTS_DDP_SLOW_LINK_H

#include "comm/group_backend.h"

enum { SLOW_LINK_WORKS = 64 };

struct slow_link {
    struct cairn__group_backend table; /* replaces the group's while the link is installed */
    const struct cairn__group_backend *real;
    double bytes_per_ns;
    uint64_t free_ns; /* when the link will have transferred everything posted */
    struct {
        cairn_work *work;
        uint64_t due_ns;
    } queue[SLOW_LINK_WORKS]; /* [first..next) modulo its size: not transferred yet */
    size_t first, next;
    uint64_t nbytes; /* posted so far */
};

/* Installs the link. Call slow_link_end with no work in flight, before the group is destroyed. */
void slow_link_begin(struct slow_link *link, cairn_group *group, double bytes_per_second);
void slow_link_end(struct slow_link *link, cairn_group *group);

#endif
