/* What a backend of process groups fills. The front (group.c, collective.c) has checked every argument, counts the
 * calls and remembers the cause once the group is dead; a backend trusts what it gets and asserts at most.
 *
 * An environment's group and all that are made from it are a family: one thread at a time calls any of them, and a wait
 * in one group makes progress in the others too, or two ranks that wait in different groups would wait for each
 * other. */
#ifndef CAIRN__COMM_GROUP_BACKEND_H
#define CAIRN__COMM_GROUP_BACKEND_H

#include <stdatomic.h>
#include <stdbool.h>

#include "comm/call.h"
#include "comm/group.h"
#include "rendezvous/peers.h"

struct cairn__request {
    struct cairn__call call;
    void *dst;       /* where results go; equal to src for what is done in place; NULL where this rank gets nothing */
    const void *src; /* NULL where this rank gives nothing */
    uint32_t found;  /* this rank's own, for CAIRN__AGREE */
    struct cairn__nonfinite *nonfinite; /* gets the ranks with infinite or NaN sources; NULL = not wanted */
};

struct cairn_work {
    cairn_group *group;
    struct cairn__request request;
    uint64_t begin_ns, done_ns; /* begin: 0 unless events are traced */
    bool done;
    uint32_t found; /* valid once done */
    void *state;    /* the backend's own, NULL when posted */
    struct cairn_work *next_free;
};

/* Every function is required but for those marked. A status of CAIRN_EPEER or CAIRN_ETIMEOUT kills the group. */
struct cairn__group_backend {
    const char *name;     /* in options, logs and cairn_group_backend */
    bool checks_results;  /* an all-reduce checks its results for inf and NaN */
    bool finds_nonfinite; /* fills request.nonfinite: all ranks alike if checks_results, else of what each reduced */
    bool shares_memory;   /* ranks see each other's group memory */
    bool keeps_store;     /* family->store is used after creation */
    int files;            /* (optional: a group opens none) beside one for each of its ranks */
    /* (optional: without it the backend always can) Whether it can be used in this process, before ranks meet; the
     * reason as the last error, CAIRN_ENOTBUILT with the meson option where it is not in this build. */
    cairn_status (*probe)(const struct cairn__group_create_options *options);
    /* Fills group->impl; rank, size, timeout, device and family are set; the ranks know each other (peers). Once it
     * returns CAIRN_OK no rank reads anything more of the meeting. On an error destroy follows. */
    cairn_status (*create)(cairn_group *group, const struct cairn__group_create_options *options,
                           struct cairn__peers *peers);
    /* The same for a group made from parent: called on its members only, at the same time on all. group->parent_ranks
     * lists them, group->index identifies it in the family. */
    cairn_status (*derive)(cairn_group *group, cairn_group *parent);
    void (*destroy)(cairn_group *group); /* copes with half-built; never fails */
    /* Collective: cairn_group_alloc and _free. What is left goes with the group. */
    cairn_status (*alloc)(cairn_group *group, size_t nbytes, void **out);
    cairn_status (*free)(cairn_group *group, void *memory);
    /* Queues the work, which stays where it is until it is done or the group ends. */
    cairn_status (*post)(cairn_group *group, cairn_work *work);
    /* Makes what progress it can without waiting; calls cairn__work_complete for each work that is done.
     * CAIRN_ETIMEOUT: nothing moved for group->timeout seconds while a work was under way. */
    cairn_status (*progress)(cairn_group *group);
    /* Returns when the work is done, or as progress does. While it polls it calls cairn__family_progress_others, and
     * cairn__group_was_aborted now and then. */
    cairn_status (*wait)(cairn_group *group, cairn_work *work);
    /* Tells peers that still wait that the group is dead on this rank, and why. Called once at most: by the rank's
     * thread, or by cairn_group_abort from any thread. */
    void (*give_up)(cairn_group *group, const char *cause);
    /* (optional: without it an all-gather of u8) cairn__group_exchange where arrays are not the host's */
    cairn_status (*exchange)(cairn_group *group, void *all, const void *mine, size_t nbytes);
};

/* ---- backends.c, choose.c ---- */

enum {
    CAIRN__BACKEND_SELF = 0,
    CAIRN__BACKEND_SHM,
    CAIRN__BACKEND_MPI,
    CAIRN__BACKEND_GLOO,
    CAIRN__BACKEND_NCCL,
    CAIRN__NUM_BACKENDS,
};

/* The probe of a backend that is not in this build fails, and nothing else of it is called. */
extern const struct cairn__group_backend *const cairn__backends[CAIRN__NUM_BACKENDS];
extern const struct cairn__group_backend cairn__group_self, cairn__group_shm, cairn__group_mpi, cairn__group_gloo,
    cairn__group_nccl;

/* *row of the table; -1 for NULL and "auto". Errors: CAIRN_EINVAL there is no such backend. */
cairn_status cairn__backend_find(const char *name, int *row);

/* The row's probe. */
cairn_status cairn__backend_probe(int row, const struct cairn__group_create_options *options);

/* cairn__peers_meet with what each rank publishes of itself taken from its options. */
cairn_status cairn__backend_meet(const struct cairn__group_create_options *options, struct cairn__peers *out);

/* What the group is made of: the same on all ranks, which know each other. peers->all is NULL where size is 1. Errors:
 * CAIRN_EINVAL ranks with different wishes or kinds of device, or a backend that does not exchange such memory;
 * CAIRN_ENOTSUP shm for several machines; the error of a rank's probe, with the rank. */
cairn_status cairn__backend_choose(const struct cairn__group_create_options *options, struct cairn__peers *peers,
                                   const struct cairn__group_backend **out);

/* ---- groups ---- */

/* What the groups of one environment share. */
struct cairn__family {
    cairn_group *groups; /* alive, the root last */
    cairn_store *store;  /* NULL once the backend needs it no more */
    bool rank_0_serves;  /* the store, in the environment */
    char prefix[200];
    int64_t
        made; /* groups, as far as this rank knows; the ranks of a parent agree on the highest before they make one */
    int outstanding;             /* works that were posted and are not done */
    bool published, store_fails; /* deadlock.c: this rank's wait stands in the store; a request to it has failed */
    bool has_record;             /* deadlock.c's key of this rank is in the store */
    bool deadlocked;             /* groups die of that: its message needs no notes */
    char failure[448];           /* the cause of the first of its groups that died on this rank; "" = none did */
};

struct cairn_group {
    const struct cairn__group_backend *backend;
    void *impl;
    struct cairn__family *family;
    cairn_group *next; /* in the family */
    int64_t index;     /* unique in the environment, the same on all members; 0 = the environment's own */
    int rank, size;
    int *env_ranks;    /* [size] the members' numbers in the environment's group */
    bool is_of_all;    /* every rank of the environment has the number that it has there */
    int *parent_ranks; /* [size] likewise in the parent; during derive only */
    double timeout;
    const char *timeout_name; /* what sets it, for messages: CAIRN_TIMEOUT, unless the group has its own */
    unsigned forks;           /* cairn__forks() of the process that made it */
    struct cairn_device *device;
    struct cairn__recorded recorded; /* by graphs, with the group's collectives */
    uint64_t next_number;
    uint64_t *next_sent, *next_received; /* [size] messages to and from each rank; made when first needed */
    int outstanding;                     /* of the family's, this group's */
    struct cairn__call last;             /* posted here */
    atomic_bool aborted, gave_up;        /* gave_up: the backend's give_up was called */
    atomic_int aborting;                 /* threads in cairn_group_abort, for which the end waits */
    cairn_status dead;                   /* CAIRN_OK while alive */
    char cause[900];                     /* with the notes of other ranks */
    struct cairn_work *free_works;
    struct cairn__work_chunk *chunks;
    struct cairn__proposal *proposals; /* [size] of each rank, while they make a group from this one */
};

/* For backends: the work is done. */
void cairn__work_complete(cairn_work *work, uint32_t found);

/* For backends: a call of their own, posted and waited for; found may be NULL. */
cairn_status cairn__group_run(cairn_group *group, const struct cairn__request *request, uint32_t *found);

/* For waits: makes progress in the other groups of the family that have works; their failures stay with them. */
void cairn__family_progress_others(cairn_group *group);

/* For waits: CAIRN_ESTATE if cairn_group_abort was called. */
cairn_status cairn__group_was_aborted(const cairn_group *group);

#endif
