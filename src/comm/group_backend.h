/* The interface that a backend of process groups implements. The front (group.c, collective.c) checks every argument,
 * counts the calls and keeps the cause once a group is dead; a backend trusts its arguments, and asserts at most.
 *
 * An environment's group and all groups made from it are a family. One thread at a time calls any group of a family. A
 * wait in one group also makes progress in the others; otherwise two ranks that wait in different groups would wait for
 * each other. */
#ifndef CAIRN__COMM_GROUP_BACKEND_H
#define CAIRN__COMM_GROUP_BACKEND_H

#include <stdatomic.h>
#include <stdbool.h>

#include "comm/call.h"
#include "comm/group.h"
#include "rendezvous/peers.h"

struct cairn__request {
    struct cairn__call call;
    void *dst;                          /* where results go; equal to src if in place; NULL = this rank gets nothing */
    const void *src;                    /* NULL = this rank contributes nothing */
    uint32_t found;                     /* this rank's, for CAIRN__AGREE */
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

/* Every function is required unless marked optional. A status of CAIRN_EPEER or CAIRN_ETIMEOUT kills the group. */
struct cairn__group_backend {
    const char *name;     /* in options, logs and cairn_group_backend */
    bool checks_results;  /* an all-reduce checks its results for inf and NaN */
    bool finds_nonfinite; /* fills request.nonfinite: equally on all ranks if checks_results, else what each reduced */
    bool shares_memory;   /* ranks see each other's group memory */
    bool keeps_store;     /* family->store is used after creation */
    int files;            /* descriptors besides one for each rank; (optional) 0 = opens none at all */
    /* (optional: always CAIRN_OK) Whether the backend can be used in this process; called before ranks meet. If not,
     * the last error has the reason: CAIRN_ENOTBUILT with the meson option if it is not in this build. */
    cairn_status (*probe)(const struct cairn__group_create_options *options);
    /* Fills group->impl; rank, size, timeout, device and family are set, and the ranks know each other (peers). Once it
     * has returned CAIRN_OK, no rank reads keys of the meeting any more. After an error, destroy is called. */
    cairn_status (*create)(cairn_group *group, const struct cairn__group_create_options *options,
                           struct cairn__peers *peers);
    /* The same for a group made from parent: called on its members only, at the same time on all. group->parent_ranks
     * lists them, group->index identifies it in the family. */
    cairn_status (*derive)(cairn_group *group, cairn_group *parent);
    void (*destroy)(cairn_group *group); /* copes with half-built; never fails */
    /* Collective: cairn_group_alloc and _free. Destroying the group frees the rest. */
    cairn_status (*alloc)(cairn_group *group, size_t nbytes, void **out);
    cairn_status (*free)(cairn_group *group, void *memory);
    /* Queues the work, whose address stays valid until it is done or the group ends. */
    cairn_status (*post)(cairn_group *group, cairn_work *work);
    /* Makes what progress it can without waiting; calls cairn__work_complete for each work that is done. Errors:
     * CAIRN_ETIMEOUT no progress for group->timeout seconds while a work was outstanding. */
    cairn_status (*progress)(cairn_group *group);
    /* Returns when the work is done, or with an error of progress. While polling it calls
     * cairn__family_progress_others, and now and then cairn__group_was_aborted. */
    cairn_status (*wait)(cairn_group *group, cairn_work *work);
    /* Tells waiting peers that the group is dead on this rank, and why. Called at most once: by the rank's thread, or
     * by cairn_group_abort from any thread. */
    void (*give_up)(cairn_group *group, const char *cause);
    /* (optional: an all-gather of u8) cairn__group_exchange for groups whose arrays are not the host's */
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

/* The probe of a backend that is not in this build fails; its other functions are not called. */
extern const struct cairn__group_backend *const cairn__backends[CAIRN__NUM_BACKENDS];
extern const struct cairn__group_backend cairn__group_self, cairn__group_shm, cairn__group_mpi, cairn__group_gloo,
    cairn__group_nccl;

/* Sets *row to the backend's row of the table; -1 for NULL and "auto". Errors: CAIRN_EINVAL no such backend. */
cairn_status cairn__backend_find(const char *name, int *row);

/* The row's probe. */
cairn_status cairn__backend_probe(int row, const struct cairn__group_create_options *options);

/* cairn__peers_meet, with the facts that each rank publishes taken from its options. */
cairn_status cairn__backend_meet(const struct cairn__group_create_options *options, struct cairn__peers *out);

/* Chooses the group's backend, the same on all ranks, which have met. peers->all is NULL if size is 1. Errors:
 * CAIRN_EINVAL ranks request different backends or have different kinds of devices, or the backend does not exchange
 * such memory; CAIRN_ENOTSUP shm for several machines; the error of a rank's probe, with the rank. */
cairn_status cairn__backend_choose(const struct cairn__group_create_options *options, struct cairn__peers *peers,
                                   const struct cairn__group_backend **out);

/* ---- groups ---- */

/* What the groups of one environment share. */
struct cairn__family {
    cairn_group *groups; /* alive, the root last */
    cairn_store *store;  /* NULL once the backend no longer needs it */
    bool rank_0_serves;  /* the store, in the environment */
    char prefix[200];
    int64_t
        made; /* groups, as far as this rank knows; the ranks of a parent agree on the highest before they make one */
    int outstanding; /* works that were posted and are not done */
    bool published,
        store_fails;   /* deadlock.c: this rank's wait is published in the store; a request to the store failed */
    bool has_record;   /* deadlock.c's key of this rank is in the store */
    bool deadlocked;   /* groups die of a deadlock: its message needs no notes */
    char failure[448]; /* the cause of the first group that died on this rank; "" = none */
};

struct cairn_group {
    const struct cairn__group_backend *backend;
    void *impl;
    struct cairn__family *family;
    cairn_group *next; /* in the family */
    int64_t index;     /* unique in the environment, the same on all members; 0 = the environment's own */
    int rank, size;
    int *env_ranks;    /* [size] the members' numbers in the environment's group */
    bool is_of_all;    /* all ranks of the environment, with the same numbers */
    int *parent_ranks; /* [size] the members' numbers in the parent; during derive only */
    double timeout;
    const char *timeout_name; /* what sets the timeout, for messages: CAIRN_TIMEOUT, unless the group has its own */
    unsigned forks;           /* cairn__forks() of the process that made it */
    struct cairn_device *device;
    struct cairn__recorded recorded; /* by graphs, with the group's collectives */
    uint64_t next_number;
    uint64_t *next_sent, *next_received; /* [size] messages to and from each rank; made when first needed */
    int outstanding;                     /* works of this group among the family's */
    struct cairn__call last;             /* the last call posted */
    atomic_bool aborted, gave_up;        /* gave_up: the backend's give_up was called */
    atomic_int aborting;                 /* threads in cairn_group_abort; destroying waits for them */
    cairn_status dead;                   /* CAIRN_OK while alive */
    char cause[900];                     /* with the notes of other ranks */
    struct cairn_work *free_works;
    struct cairn__work_chunk *chunks;
    struct cairn__proposal *proposals; /* [size] one per rank, while a group is made from this one */
};

/* For backends: marks the work as done. */
void cairn__work_complete(cairn_work *work, uint32_t found);

/* For backends: posts a call of their own and waits for it; found may be NULL. */
cairn_status cairn__group_run(cairn_group *group, const struct cairn__request *request, uint32_t *found);

/* For waits: makes progress in the other groups of the family that have works. Their failures are not returned. */
void cairn__family_progress_others(cairn_group *group);

/* For waits: CAIRN_ESTATE if cairn_group_abort was called. */
cairn_status cairn__group_was_aborted(const cairn_group *group);

#endif
