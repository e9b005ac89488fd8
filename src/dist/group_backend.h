/* What a backend of process groups fills. The front (group.c) has checked every argument, counts the collectives and
 * remembers the cause once the group is dead; a backend trusts what it gets and asserts at most. */
#ifndef CAIRN__DIST_GROUP_BACKEND_H
#define CAIRN__DIST_GROUP_BACKEND_H

#include <stdbool.h>

#include "dist/group.h"

enum cairn__collective {
    CAIRN__ALLREDUCE = 1,
    CAIRN__BROADCAST,
    CAIRN__ALLGATHER,
    CAIRN__BARRIER,
    CAIRN__ALLOC, /* n bytes of group memory are wanted; completes when all ranks want them */
    CAIRN__FREE,  /* the same for giving back, n tells which */
    CAIRN__AGREE, /* a barrier whose found is the OR of every rank's found */
};

struct cairn__request {
    enum cairn__collective kind;
    void *x;         /* all-reduce and broadcast in place; all-gather's destination */
    const void *src; /* all-gather's source */
    size_t n;
    cairn_dtype dtype;
    cairn_redop redop;
    int root;
    uint32_t found; /* this rank's own, for CAIRN__AGREE */
};

struct cairn_work {
    cairn_group *group;
    struct cairn__request request;
    uint64_t number; /* of the collective in its group, from 1; messages name it */
    uint64_t begin_ns;
    bool done;
    uint32_t found; /* valid once done */
    struct cairn_work *next_free;
};

/* Every function is required. A status of CAIRN_EPEER or CAIRN_ETIMEOUT kills the group. */
struct cairn__group_backend {
    const char *name; /* what options, logs and cairn_group_backend say */
    bool looks;       /* an all-reduce notices infinite and NaN results */
    /* Fills group->impl; rank, size, timeout and device are set. On an error destroy follows. */
    cairn_status (*create)(cairn_group *group, const struct cairn__group_options *options);
    void (*destroy)(cairn_group *group); /* copes with half-built; never fails */
    cairn_status (*alloc)(cairn_group *group, size_t nbytes, void **out);
    cairn_status (*free)(cairn_group *group, void *memory);
    /* Queues the work, which stays where it is until it is done or the group ends. */
    cairn_status (*post)(cairn_group *group, cairn_work *work);
    /* Moves what can move without waiting; calls cairn__work_complete for each work that got through. */
    cairn_status (*progress)(cairn_group *group);
    cairn_status (*wait)(cairn_group *group, cairn_work *work);
    /* The group died here of this cause; peers that still wait should learn it. */
    void (*give_up)(cairn_group *group, const char *cause);
};

struct cairn_group {
    const struct cairn__group_backend *backend;
    void *impl;
    int rank, size;
    double timeout;
    struct cairn_device *device;
    uint64_t next_number;
    cairn_status dead; /* CAIRN_OK while alive */
    char cause[512];
    struct cairn_work *free_works;
    struct cairn__work_chunk *chunks;
};

extern const struct cairn__group_backend cairn__group_self, cairn__group_shm;

/* "all-reduce", "broadcast", ... */
const char *cairn__collective_name(enum cairn__collective kind);

/* For backends: the work got through. */
void cairn__work_complete(cairn_work *work, uint32_t found);

/* For backends: a collective of their own, posted and waited for; found may be NULL. */
cairn_status cairn__group_run(cairn_group *group, const struct cairn__request *request, uint32_t *found);

#endif
