/* Process groups from inside: the front, and what env and ddp need beyond the public calls. */
#ifndef CAIRN__COMM_GROUP_H
#define CAIRN__COMM_GROUP_H

#include "cairn/dist.h"
#include "cairn/store.h"
#include "comm/nonfinite.h"
#include "device/device.h"

/* How the ranks of one group find each other. */
struct cairn__group_create_options {
    int rank, size;
    double timeout;         /* seconds in which nothing moves that this rank waits for; > 0 */
    double meeting_timeout; /* seconds for creation; 0 = timeout */
    cairn_store *store;     /* the caller's; NULL is fine where size is 1. See cairn__group_keeps_store */
    bool rank_0_serves;     /* the store, which goes when rank 0 does */
    const char *prefix;     /* of every key used, so that groups and restarts do not meet */
    const char *backend;    /* NULL or "auto"; "self", "shm", "mpi", "gloo", "nccl" */
    const char *interface;  /* network interface or address that gloo uses; NULL = the one that leads to the others */
    bool is_mpi;            /* an MPI launcher started this process */
    bool is_thread;         /* this process has several ranks */
    cairn_status (*check)(void); /* (optional) while ranks look for each other: a failure ends the search */
    struct cairn_device *device; /* whose memory is exchanged; NULL = the host's */
};

/* Collective over all ranks; returns when all have joined. Errors: CAIRN_EINVAL, also for ranks with different backends
 * in their options; CAIRN_ENOTBUILT; CAIRN_ENOTSUP a backend that cannot join these ranks, and why; CAIRN_EPEER a rank
 * died meanwhile; CAIRN_ETIMEOUT names the ranks that did not join; CAIRN_ESYSTEM; CAIRN_ENOMEM. */
cairn_status cairn__group_create(const struct cairn__group_create_options *options, cairn_group **out);

/* Ends the group of cairn__group_create; not collective. false, with an error logged, where groups made from it are
 * alive. */
bool cairn__group_destroy_root(cairn_group **group);

/* Whether the group, or groups that will be made from it, need the store of its options for as long as they live (mpi,
 * gloo, nccl: notes, ids); shm and self need it during creation only. */
bool cairn__group_keeps_store(const cairn_group *group);

/* Moves outstanding collectives of all groups of the environment on without waiting: cheap enough for every backward
 * node (an uncontended load or two when nothing can move). Returns the group's first cause once it is dead. */
cairn_status cairn__group_progress(cairn_group *group);

/* What the group is used for has failed on this rank, while others wait for its part: status, whose sentence is the
 * last error, ends the group here and on the other ranks, which fail with that sentence. A group that is dead keeps its
 * first cause.
 * Returns status. */
cairn_status cairn__group_kill(cairn_group *group, cairn_status status);

/* The same for all groups of the environment whose own the group is. */
void cairn__group_kill_family(cairn_group *root, cairn_status status);

/* Whose memory the group exchanges; NULL = the host's. */
struct cairn_device *cairn__group_device(const cairn_group *group);

/* Whether a graph is alive that has recorded collectives of the group. It cannot end then, nor can its memory. */
bool cairn__group_is_recorded(const cairn_group *group);

/* Whether ranks see each other's group memory, as in groups of shm and of threads. */
bool cairn__group_shares_memory(const cairn_group *group);

/* Whether a reduction checks its results for inf and NaN: that of shm does, those of the others do not. */
bool cairn__group_checks_results(const cairn_group *group);

/* cairn_work_wait that also sets *found to 1 where any stored result of an all-reduce of a float type was infinite or
 * NaN on any rank: every rank gets the same answer. Otherwise *found stays as it was; NULL = not wanted. */
cairn_status cairn__work_finish(cairn_work **work, uint32_t *found);

/* The same, with the time at which this rank noticed that the work was done (cairn__now_ns). */
cairn_status cairn__work_finish_timed(cairn_work **work, uint32_t *found, uint64_t *completed_ns);

/* The all-reduce of x [n] to the sum divided by divisor, from 1 to the group's size: the average of so many ranks where
 * the others bring zeros. Otherwise as cairn_allreduce to CAIRN_AVG, which is a divisor of the size, bit for bit; nccl
 * multiplies an f32 sum by 1/divisor. 0: the sum itself. f32, f16, bf16. The same divisor on every rank.
 *
 * nonfinite (NULL on every rank, or on none; must outlive the work) gets the ranks whose x had an infinity or a NaN, if
 * cairn__group_finds_nonfinite. Then the reduction takes longer. */
cairn_status cairn__group_average(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int divisor,
                                  struct cairn__nonfinite *nonfinite, cairn_work **work);

/* The same of x [size * n], of which this rank gets its slice alone, x + rank * n; the others are undefined then. The
 * bits are those of cairn__group_average, and so is *found of cairn__work_finish. */
cairn_status cairn__group_average_slice(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int divisor,
                                        struct cairn__nonfinite *nonfinite, cairn_work **work);

/* Whether the backend fills nonfinite: with cairn__group_checks_results alike on all ranks, else on each rank for the
 * elements that it reduced itself. nccl does not. */
bool cairn__group_finds_nonfinite(const cairn_group *group);

/* all [size * nbytes] gets every rank's mine [nbytes], memory of the host whatever the group's device. Collective;
 * waits. */
cairn_status cairn__group_exchange(cairn_group *group, void *all, const void *mine, size_t nbytes);

/* Seconds in which nothing moves that this rank waits for, after which calls fail. */
double cairn__group_timeout(const cairn_group *group);

/* values [n], memory of the host, become their sums over the ranks, added in rank order: the same bits everywhere. tag:
 * what must be equal on all ranks. *odd: the first rank whose tag is not rank 0's, and then nothing is added up; -1 =
 * none. Collective; waits. */
cairn_status cairn__group_sum(cairn_group *group, double *values, size_t n, uint64_t tag, int *odd);

/* Collective, after work that each rank did by itself: CAIRN_OK if every rank's status is; else this rank's own error,
 * or CAIRN_EPEER with the message of a rank that failed. (outcome.c) */
cairn_status cairn__group_agree_on_status(cairn_group *group, const char *call, cairn_status status);
/* The same of memory [size of group][nbytes], zeroed. */
cairn_status cairn__group_make_room(cairn_group *group, const char *call, size_t nbytes, void **out);

#endif
