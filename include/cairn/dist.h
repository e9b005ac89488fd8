/* Process groups: ranks that communicate, with collectives and messages.
 *
 * An environment has one group over all its ranks (cairn_env_group); cairn_group_new and cairn_group_split make more
 * from it. A group has one backend:
 *
 *   shm    ranks on one machine, through shared memory, with any launcher
 *   mpi    Open MPI, for programs started by mpirun or srun; also if the program called MPI_Init itself
 *   gloo   the gloo library, over TCP, for CPU ranks on several machines
 *   nccl   NVIDIA's NCCL, for GPU memory, one GPU per rank
 *   self   a single rank, on any device
 *
 * "auto" chooses self for one rank; nccl for GPU memory; shm if all ranks share a machine and a network namespace;
 * otherwise mpi under an MPI launcher and gloo without one. cairn_env_options.backend or CAIRN_BACKEND set one.
 *
 * Order     every rank issues a group's collectives in the same order, with the same kind, type, count, operation and
 *           root. Groups are independent: each has an order of its own, as have messages from one rank to another. If
 *           ranks differ, every rank gets CAIRN_EPEER with both ranks' values: always on shm, elsewhere with
 *           CAIRN_CHECK=1 (one more small message per collective). Without CAIRN_CHECK ranks may time out instead, and
 *           the error names each rank's call.
 * Numbers   Reductions combine values in rank order: f16, bf16 and f32 in f32, for CAIRN_AVG divided once, and rounded
 *           once; f64 in f64; integers wrap around, and CAIRN_AVG truncates. CAIRN_MIN and CAIRN_MAX give NaN if any
 *           value is NaN. shm, mpi and gloo give the same bits (but see Machines) on every rank, wherever an element is
 *           in the array; a run with the same ranks on the same machines repeats exactly. nccl is the exception: equal
 *           bits on all ranks, at most p - 1 roundings; averages of f16 and bf16 are divided by a power of two
 *           before the sum and by the rest after it; NaNs of CAIRN_MIN and CAIRN_MAX as in NCCL; it has not yet been
 *           run on GPUs.
 * Machines  if mpi or gloo connects ranks of several machines, and one of them has several ranks, sums and averages of
 *           f16, bf16 and f32 have two levels: over the ranks of each machine in rank order, then over the machines in
 *           the order of their first ranks. All is in f32, still divided and rounded once, with the same bits on every
 *           rank and in every reduction, whatever its length. If roundings occur the bits may differ from those of
 *           one level, which CAIRN_HIERARCHY=flat on any rank restores. An all-reduce of more than 4 KiB is first
 *           summed in shared memory, so each byte crosses a machine's link once each way, however many ranks the
 *           machine has, rather than once per rank (f32 sums are sent, and results of the array's type come back: for
 *           halves three bytes instead of two). On every machine the same number of ranks sends, as many as the machine
 *           with fewest has, each for a slice.
 * Progress  shm and mpi have no thread: posting is a store to memory, and cairn_work_wait, cairn_work_test, any other
 *           call on any group of the environment and (through ddp) every backward node advance all outstanding
 *           operations. gloo has one thread per group ("cairn-gloo"), one more for each rank that messages go to or
 *           come from, and gloo's own. A long wait sleeps: on shm after spinning for about 50 us and yielding for some
 *           ms, or earlier if there are more ranks than processors. nccl runs on a stream of its own, and one thread
 *           per group ("cairn-nccl") watches for failures and the timeout between calls.
 * Failures  after CAIRN_EPEER or CAIRN_ETIMEOUT only abort and destroy are allowed; every other call repeats the first
 *           cause. Timeout: seconds without progress in anything that this rank waits for (CAIRN_TIMEOUT, 300); on shm
 *           not counting time in which this rank itself was stopped, so a suspended job can continue. On shm a dead
 *           rank is noticed within tens of milliseconds, and its number and process are named. If two ranks wait for
 *           each other in different groups, both groups end with CAIRN_EPEER and both calls in the message (not on
 *           nccl, nor in groups with a shorter timeout than the environment's). docs/failures.md. Works end with their
 *           group.
 * Memory    arrays are in memory of the group's device: host memory, or for nccl (and self on a GPU) memory of that
 *           GPU. On a GPU collectives follow work queued on the device's stream, and a wait makes that stream wait, not
 *           the host.
 * Threads   one caller at a time for all groups of an environment; cairn_group_abort and the getters: any thread. */
#ifndef CAIRN_DIST_H
#define CAIRN_DIST_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_group cairn_group;
typedef struct cairn_work cairn_work;

typedef enum cairn_redop {
    CAIRN_SUM = 1,
    CAIRN_AVG = 2, /* one division by the number of ranks after the sum, in the accumulation type */
    CAIRN_MIN = 3,
    CAIRN_MAX = 4,
    CAIRN_PROD = 5,
} cairn_redop;

/* ---- properties ---- */

/* This process's rank in the group and the group's size; 0 and 1 for NULL. */
CAIRN_API int cairn_group_rank(const cairn_group *group);
CAIRN_API int cairn_group_size(const cairn_group *group);

/* "shm", "threads" (shm within one process), "mpi", "gloo", "nccl" or "self". Owned by Cairn. */
CAIRN_API const char *cairn_group_backend(const cairn_group *group);

/* The rank in the environment's group of a rank of this group; -1 if there is no such rank.
 * torch.distributed.get_global_rank */
CAIRN_API int cairn_group_env_rank(const cairn_group *group, int rank);

/* ---- more groups ---- */

struct cairn_group_options {
    size_t struct_size;
    double timeout; /* seconds; 0 = the parent's */
};
#define cairn_group_options(...) \
    (&(struct cairn_group_options){.struct_size = sizeof(struct cairn_group_options), __VA_ARGS__})

/* Makes a group of some of the parent's ranks, with the parent's backend and an order of its own.
 *
 *   ranks    [n] the parent's ranks, each at most once; rank i of the new group is ranks[i]. The same on every rank.
 *            NULL with n = 0 is all of them: a second channel between the same ranks.
 *   options  NULL = all defaults
 *   out      set to NULL on ranks that are not members
 *
 * Collective over the parent: every rank of it calls, member or not; succeeds on every rank or fails on every rank.
 * Errors: CAIRN_EINVAL, CAIRN_ENOMEM, CAIRN_ESYSTEM: no rank has the group, and the parent stays usable, unless there
 * is no memory for what the parent itself exchanges; CAIRN_EPEER, also if ranks pass different lists; CAIRN_ETIMEOUT:
 * the call waits for a stopped rank only once, whichever step it stopped in. Cost: some small collectives of the
 * parent, and on gloo a TCP connection between every two members.
 * torch.distributed.new_group */
CAIRN_API cairn_status cairn_group_new(cairn_group *parent, const int *ranks, int n,
                                       const struct cairn_group_options *options, cairn_group **out);

/* Every rank of the parent passes a color and gets the group of all ranks with that color, ordered by key, then by
 * rank. A negative color: *out is NULL. Otherwise as cairn_group_new. MPI_Comm_split */
CAIRN_API cairn_status cairn_group_split(cairn_group *parent, int color, int key,
                                         const struct cairn_group_options *options, cairn_group **out);

/* Destroys a group made by cairn_group_new or _split. Not collective: it returns at once, and ranks that wait for this
 * one get CAIRN_EPEER "rank 2 left the group". On nccl, if the group has memory or graphs have recorded it, it waits
 * for the work queued on the GPU, and after 5 s aborts the group's part of it. Outstanding operations are abandoned;
 * works and group memory are freed. Groups must be destroyed before their environment, and graphs before the groups
 * that they have recorded. If a graph that has recorded collectives of the group is alive, or if it is the
 * environment's own group, which ends with the environment, an error is logged and nothing happens. */
CAIRN_API void cairn_group_destroy(cairn_group **group);

/* Aborts the group on this rank: waits in it, in other threads and on other ranks, fail soon (CAIRN_ESTATE here,
 * CAIRN_EPEER "rank 2 aborted the group" there). Posted operations may still write to their arrays until the group is
 * destroyed. May be called from any thread and returns at once, even while graphs are alive that have recorded the
 * group's collectives; their replays fail from then on. ncclCommAbort */
CAIRN_API void cairn_group_abort(cairn_group *group);

/* ---- memory ---- */

/* Memory that the group reduces without copying it, zeroed, 64-byte aligned: on shm, and where sums have two levels, a
 * memory segment that every rank of the machine maps; on nccl registered with the communicator; elsewhere plain memory.
 * Collective: every rank calls it with the same nbytes. Free it with cairn_group_free, also collective, in the same
 * order on every rank; the rest is freed with the group.
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM and CAIRN_ESYSTEM if a rank got no memory: then no rank has any, and the group
 * stays usable; CAIRN_ESTATE from free: a graph is alive that has recorded collectives of the group; CAIRN_EPEER;
 * CAIRN_ETIMEOUT. */
CAIRN_API cairn_status cairn_group_alloc(cairn_group *group, size_t nbytes, void **out);
CAIRN_API cairn_status cairn_group_free(cairn_group *group, void **memory);

/* ---- collectives ----
 *
 * Common to all:
 *   n        elements, the same on every rank; 0 is a valid no-op. p: the number of ranks
 *   dtype    f64, f32, f16, bf16, i64, i32, u8; arrays are contiguous and aligned for it. Memory from cairn_group_alloc
 *            is used in place; other memory is copied in blocks if the backend requires it
 *   work     out: completes when destinations may be read and sources written; end it with cairn_work_wait. NULL = wait
 *            here. Until it completes arrays must stay allocated, destinations untouched and sources unchanged
 * Errors     CAIRN_EINVAL nothing was posted; CAIRN_ENOMEM; CAIRN_EPEER and CAIRN_ETIMEOUT: the group is dead;
 *            CAIRN_ESTATE it was aborted. */

/* Reduces x [n] over all ranks, in place; every rank gets the result.
 * Cost: shm: each rank reads n and writes n elements, n/p of every rank's; mpi, gloo: sends and receives 2(p-1)/p *
 * n; in two levels over m machines of equally many ranks: a machine sends and receives 2(m-1)/m * n. */
CAIRN_API cairn_status cairn_allreduce(cairn_group *group, void *x, size_t n, cairn_dtype dtype, cairn_redop op,
                                       cairn_work **work);

/* The same, from src to dst: src may equal dst; otherwise they must not overlap, and src is unchanged. */
CAIRN_API cairn_status cairn_allreduce_into(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                            cairn_redop op, cairn_work **work);

/* Reduces every rank's src [n] to root's dst [n]; dst is used on root only and may be NULL elsewhere. src may equal
 * dst; otherwise they must not overlap, and src is unchanged. Cost: half of an all-reduce. */
CAIRN_API cairn_status cairn_reduce(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                    cairn_redop op, int root, cairn_work **work);

/* Copies root's x [n] to every rank's x. */
CAIRN_API cairn_status cairn_broadcast(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int root,
                                       cairn_work **work);

/* Gathers every rank's src [n] into dst [p * n], in rank order. src may be dst + rank * n; otherwise they must not
 * overlap. */
CAIRN_API cairn_status cairn_allgather(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                       cairn_work **work);

/* Reduces every rank's src [p * n]; rank r gets the r-th part of the result in its dst [n]. dst may be src + rank * n
 * (then only that part of src changes); otherwise they must not overlap. */
CAIRN_API cairn_status cairn_reduce_scatter(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                            cairn_redop op, cairn_work **work);

/* Sends part r of src [p * n] to rank r, which stores it as part `rank of the sender` of its dst [p * n]. The arrays
 * must not overlap. */
CAIRN_API cairn_status cairn_alltoall(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                      cairn_work **work);

/* Sends x [n] to rank `to`, which receives it with the same count and type. Messages between two ranks are received in
 * the order in which they are sent, independently of collectives and other ranks' messages. A send may complete before
 * it is received. If count or type differ from the sender's, both ranks get CAIRN_EPEER with both values (on shm;
 * elsewhere with CAIRN_CHECK=1; never on nccl). A rank cannot send to itself.
 * On nccl messages are ordered with the group's collectives: both ranks must send and receive between the same two
 * collectives. Operations that a rank posts without waiting in between are launched as one, so ranks may send to each
 * other and then receive. */
CAIRN_API cairn_status cairn_send(cairn_group *group, const void *x, size_t n, cairn_dtype dtype, int to,
                                  cairn_work **work);
CAIRN_API cairn_status cairn_recv(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int from,
                                  cairn_work **work);

/* Returns once every rank has called it; on nccl, once the device has reached it. */
CAIRN_API cairn_status cairn_barrier(cairn_group *group);

/* ---- works ---- */

/* Advances outstanding collectives without waiting; *done tells whether this one has completed. The work stays valid.
 * Errors: as the collective's. */
CAIRN_API cairn_status cairn_work_test(cairn_work *work, int *done);

/* Waits until the collective has completed, then frees *work and sets it to NULL, whatever the status. A *work of NULL
 * has already completed. */
CAIRN_API cairn_status cairn_work_wait(cairn_work **work);

#ifdef __cplusplus
}
#endif

#endif
