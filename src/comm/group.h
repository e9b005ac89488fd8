/* Internals of process groups: what env, ddp and other rooms need beyond the public calls. */
#ifndef CAIRN__COMM_GROUP_H
#define CAIRN__COMM_GROUP_H

#include "cairn/dist.h"
#include "cairn/store.h"
#include "comm/nonfinite.h"
#include "device/device.h"

/* How the ranks of one group find each other. */
struct cairn__group_create_options {
    int rank, size;
    double timeout;         /* seconds without progress in what this rank waits for; > 0 */
    double meeting_timeout; /* seconds for creation; 0 = timeout */
    cairn_store *store;     /* the caller's; may be NULL if size is 1. See cairn__group_keeps_store */
    bool rank_0_serves;     /* the store, which ends with rank 0 */
    const char *prefix;     /* of every key used, so that groups and restarts do not mix */
    const char *backend;    /* NULL or "auto"; "self", "shm", "mpi", "gloo", "nccl" */
    const char *interface;  /* network interface or address that gloo uses; NULL = the one that reaches the others */
    bool is_mpi;            /* an MPI launcher started this process */
    bool is_thread;         /* this process has several ranks */
    cairn_status (*check)(void); /* (optional) called while ranks look for each other: a failure ends the search */
    struct cairn_device *device; /* whose memory is exchanged; NULL = the host's */
};

/* Creates an environment's group. Collective over all ranks; returns when all have joined. Errors: CAIRN_EINVAL, also
 * if ranks name different backends; CAIRN_ENOTBUILT; CAIRN_ENOTSUP the backend cannot join these ranks, and why;
 * CAIRN_EPEER a rank died meanwhile; CAIRN_ETIMEOUT names the ranks that did not join; CAIRN_ESYSTEM; CAIRN_ENOMEM. */
cairn_status cairn__group_create(const struct cairn__group_create_options *options, cairn_group **out);

/* Destroys a group of cairn__group_create; not collective. Returns false, and logs an error, if groups made from it are
 * alive. */
bool cairn__group_destroy_root(cairn_group **group);

/* Whether the group, or groups that will be made from it, need the store of its options for as long as they live (mpi,
 * gloo, nccl: notes, ids); shm and self need it during creation only. */
bool cairn__group_keeps_store(const cairn_group *group);

/* Makes progress in the outstanding collectives of all groups of the environment, without waiting. Cheap enough for
 * every backward node: an uncontended load or two if nothing can move. Returns the group's first cause once it is dead.
 */
cairn_status cairn__group_progress(cairn_group *group);

/* Kills the group because what it is used for has failed on this rank, while other ranks wait for its part. status,
 * whose sentence is the last error, ends the group here and on the other ranks, which fail with that sentence. A dead
 * group keeps its first cause. Returns status. */
cairn_status cairn__group_kill(cairn_group *group, cairn_status status);

/* The same for all groups of the environment; root is the environment's own group. */
void cairn__group_kill_family(cairn_group *root, cairn_status status);

/* The device whose memory the group exchanges; NULL = the host's. */
struct cairn_device *cairn__group_device(const cairn_group *group);

/* Whether a live graph has recorded collectives of the group. Neither the group nor its memory may be freed then. */
bool cairn__group_is_recorded(const cairn_group *group);

/* Whether ranks see each other's group memory, as in groups of shm and of threads. */
bool cairn__group_shares_memory(const cairn_group *group);

/* Whether reductions check their results for inf and NaN: only those of shm do. */
bool cairn__group_checks_results(const cairn_group *group);

/* cairn_work_wait that also sets *found to 1 if a stored result of an all-reduce of a float type was infinite or NaN on
 * any rank; every rank gets the same answer. Otherwise *found is unchanged. found NULL = not wanted. */
cairn_status cairn__work_finish(cairn_work **work, uint32_t *found);

/* The same, with the time at which this rank noticed that the work was done (cairn__now_ns). */
cairn_status cairn__work_finish_timed(cairn_work **work, uint32_t *found, uint64_t *completed_ns);

/* All-reduces x [n] to the sum divided by divisor, which is 1 to the group's size and the same on every rank: the
 * average of that many ranks if the others contribute zeros. divisor = size gives the bits of cairn_allreduce with
 * CAIRN_AVG; nccl multiplies an f32 sum by 1/divisor. 0 = the sum itself. f32, f16, bf16.
 *
 * nonfinite (NULL on every rank, or on none; must outlive the work) gets the ranks whose x had an infinity or a NaN, if
 * cairn__group_finds_nonfinite. The reduction then takes longer. */
cairn_status cairn__group_average(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int divisor,
                                  struct cairn__nonfinite *nonfinite, cairn_work **work);

/* The same for x [size * n], of which this rank gets only its slice, x + rank * n; the other slices are undefined
 * afterwards. The bits, and *found of cairn__work_finish, are those of cairn__group_average. */
cairn_status cairn__group_average_slice(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int divisor,
                                        struct cairn__nonfinite *nonfinite, cairn_work **work);

/* Whether the backend fills nonfinite: with cairn__group_checks_results, equally on all ranks; otherwise each rank does
 * for the elements that it reduced itself. nccl does not. */
bool cairn__group_finds_nonfinite(const cairn_group *group);

/* Gathers every rank's mine [nbytes] in all [size * nbytes]. Both are host memory, whatever the group's device.
 * Collective; waits. */
cairn_status cairn__group_exchange(cairn_group *group, void *all, const void *mine, size_t nbytes);

/* Calls fail after this many seconds without progress in what this rank waits for. */
double cairn__group_timeout(const cairn_group *group);

/* Replaces values [n], host memory, by their sums over the ranks, added in rank order: the same bits on every rank. tag
 * must be equal on all ranks. *odd is the first rank whose tag differs from rank 0's, and then nothing is added; -1 =
 * none. Collective; waits. */
cairn_status cairn__group_sum(cairn_group *group, double *values, size_t n, uint64_t tag, int *odd);

/* Collective, after work that each rank did by itself. Returns CAIRN_OK if every rank's status is; otherwise this
 * rank's own error, or CAIRN_EPEER with the message of a rank that failed. (outcome.c) */
cairn_status cairn__group_agree_on_status(cairn_group *group, const char *call, cairn_status status);
/* The same for the allocation of zeroed memory [size of group][nbytes]: all ranks get it, or none. */
cairn_status cairn__group_make_room(cairn_group *group, const char *call, size_t nbytes, void **out);

#endif
