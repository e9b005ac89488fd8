/* Process groups: ranks that exchange numbers and add them up.
 *
 * An environment has one (cairn_env_group), over all its ranks; cairn_group_new and cairn_group_split make more of it.
 * A group has one backend:
 *
 *   shm    ranks of one machine, in shared memory, whatever launched them
 *   mpi    Open MPI, for programs that mpirun or srun started; also if the program called MPI_Init itself
 *   gloo   the gloo library, over TCP, for CPU ranks on several machines
 *   nccl   NVIDIA's, for the memory of GPUs, a GPU a rank
 *   self   one rank alone, on any device
 *
 * "auto" takes self for one rank; nccl for GPU memory; shm where all ranks share a machine and a network namespace;
 * else mpi under an MPI launcher and gloo otherwise. cairn_env_options.backend or CAIRN_BACKEND name one.
 *
 * Order     every rank issues a group's collectives in the same order with the same kind, type, count, operation and
 *           root. Groups are independent of each other: each is a channel with an order of its own. So are sends from
 *           one rank to another. A difference fails on every rank with CAIRN_EPEER and both ranks' values: on shm
 *           always, elsewhere with CAIRN_CHECK=1 (one small message more a collective); without it ranks may time out,
 *           and the error then names each rank's call.
 * Numbers   Reductions are sums (products, ...) in rank order: f16, bf16 and f32 in f32, divided once for CAIRN_AVG,
 *           rounded once; f64 in f64; integers wrap around, and CAIRN_AVG truncates. CAIRN_MIN and CAIRN_MAX give NaN
 *           if any value is NaN. shm, mpi and gloo give the same bits (but see Machines), every rank the same, whatever
 *           an element's position; a run repeats exactly for the same ranks on the same machines. nccl is the
 *           exception: equal bits on all ranks, at most p - 1 roundings, halves averaged by an exact power of two
 *           before and the rest after, NaNs of CAIRN_MIN and CAIRN_MAX as in NCCL; no GPU has run it yet.
 * Machines  where mpi or gloo joins ranks of several machines, and one of them has several, sums and averages of f16,
 *           bf16 and f32 are made in two levels: over the ranks of each machine in rank order, then over the machines
 *           in the order of their first ranks; all in f32, still divided and rounded once, the same bits on every rank
 *           and in every reduction whatever its length. Where roundings show they are not the bits of one level, which
 *           CAIRN_HIERARCHY=flat on any rank gives back. An all-reduce of more than 4 KiB then adds up in shared memory
 *           first, and a byte of it passes a machine's link once each way however many ranks the machine has, rather
 *           than once for each (f32 sums travel out, results of the array's type back: of halves three bytes for two).
 *           The same ranks of every machine do so, as many as the machine with fewest has, each for a slice.
 * Progress  shm and mpi have no thread: posting is a store, and cairn_work_wait, cairn_work_test, every other call on
 *           any group of the environment and (through ddp) every backward node move all of them on. gloo has a thread a
 *           group ("cairn-gloo"), one more for each rank that messages go to or come from, and gloo's own. A long wait
 *           sleeps: on shm after spinning for about 50 us and yielding for some ms, or soon if the ranks outnumber the
 *           processors. nccl runs on a stream of its own, and a thread a group ("cairn-nccl") watches for failures and
 *           the timeout between calls.
 * Failures  after CAIRN_EPEER or CAIRN_ETIMEOUT a group allows abort and destroy only; every call repeats the first
 *           cause. Timeout: seconds in which nothing of what this rank waits for moved (CAIRN_TIMEOUT, 300), on shm
 *           without those in which it was stopped itself, so that a suspended job goes on. A rank that dies is noticed
 *           within tens of milliseconds on shm, its number and process named. Two ranks that wait for each other in
 *           different groups end both with CAIRN_EPEER and both calls (not on nccl, nor in groups with a shorter
 *           timeout than the environment's). docs/failures.md. Works end with their group.
 * Memory    arrays are memory of the group's device: the host's, or for nccl (and self on a GPU) that GPU's; then
 *           collectives follow what is queued on the device's stream, and a wait makes that stream wait, not the host.
 * Threads   one caller at a time for all groups of an environment; but cairn_group_abort and facts: any thread. */
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

/* ---- facts ---- */

/* This process's place in the group and the group's size; 0 and 1 for NULL. */
CAIRN_API int cairn_group_rank(const cairn_group *group);
CAIRN_API int cairn_group_size(const cairn_group *group);

/* "shm", "threads" (shm within one process), "mpi", "gloo", "nccl" or "self". Owned by Cairn. */
CAIRN_API const char *cairn_group_backend(const cairn_group *group);

/* The number that the group's rank has in the environment's group; -1 if there is no such rank.
 * torch.distributed.get_global_rank */
CAIRN_API int cairn_group_env_rank(const cairn_group *group, int rank);

/* ---- more groups ---- */

struct cairn_group_options {
    size_t struct_size;
    double timeout; /* seconds; 0 = the parent's */
};
#define cairn_group_options(...) \
    (&(struct cairn_group_options){.struct_size = sizeof(struct cairn_group_options), __VA_ARGS__})

/* A group of some ranks of another, with its backend and an order of its own.
 *
 *   ranks    [n] the parent's ranks, each at most once; rank i of the new group is ranks[i]. The same on every rank.
 *            NULL with n = 0 is all of them: a second channel between the same ranks.
 *   options  NULL = all defaults
 *   out      NULL is written on ranks that are not in it
 *
 * Collective over the parent: every rank of it calls, members or not; returns on every rank or fails on every rank.
 * Errors: CAIRN_EINVAL, CAIRN_ENOMEM, CAIRN_ESYSTEM: no rank has the group, the parent lives on, unless memory lacks
 * for what the parent itself exchanges; CAIRN_EPEER, also where the ranks name different lists; CAIRN_ETIMEOUT: a rank
 * that stops is waited for once, however far the group is made. Cost: some small collectives of the parent, and on gloo
 * a TCP connection between every two members.
 * torch.distributed.new_group */
CAIRN_API cairn_status cairn_group_new(cairn_group *parent, const int *ranks, int n,
                                       const struct cairn_group_options *options, cairn_group **out);

/* Every rank of the parent gives a color and gets the group of all ranks with that color, ordered by key and then by
 * rank. A negative color: *out is NULL. Otherwise as cairn_group_new. MPI_Comm_split */
CAIRN_API cairn_status cairn_group_split(cairn_group *parent, int color, int key,
                                         const struct cairn_group_options *options, cairn_group **out);

/* Ends a group that cairn_group_new or _split made; not collective: leaves at once, and ranks that wait for this one
 * get CAIRN_EPEER "rank 2 left the group". On nccl, where the group has memory or graphs have recorded it, it waits for
 * what the GPU has queued, and after 5 s aborts what is left of the group in that. Outstanding work is abandoned; works
 * and group memory are gone. The environment's own group ends with it, its groups end before it, and a group's graphs
 * before the group: where one is alive that has recorded collectives of it, as for the environment's own group, an
 * error is logged and nothing happens. */
CAIRN_API void cairn_group_destroy(cairn_group **group);

/* Aborts the group on this rank: waits in it, in other threads and on other ranks, fail soon (CAIRN_ESTATE here,
 * CAIRN_EPEER "rank 2 aborted the group" there). Posted work may still write to its arrays until the group is
 * destroyed. Any thread; returns at once, also while graphs live that have recorded the group's collectives, whose
 * replays fail from then on. ncclCommAbort */
CAIRN_API void cairn_group_abort(cairn_group *group);

/* ---- memory ---- */

/* Memory that the group reduces without copying it, zeroed, 64-byte aligned: on shm, and where sums are in two levels,
 * a memory segment that every rank of the machine maps, on nccl registered with the communicator, elsewhere plain
 * memory. Collective: every rank calls it with the same nbytes. Freed by cairn_group_free, also collective, in the same
 * order on every rank; what is left is freed with the group.
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM and CAIRN_ESYSTEM where a rank got none: then no rank has any, and the group lives
 * on; CAIRN_ESTATE from free: a graph is alive that has recorded collectives of the group; CAIRN_EPEER;
 * CAIRN_ETIMEOUT. */
CAIRN_API cairn_status cairn_group_alloc(cairn_group *group, size_t nbytes, void **out);
CAIRN_API cairn_status cairn_group_free(cairn_group *group, void **memory);

/* ---- collectives ----
 *
 * Common to all:
 *   n        elements, equal on every rank; 0 is a valid no-op. p: the number of ranks
 *   dtype    f64, f32, f16, bf16, i64, i32, u8; arrays are contiguous and aligned for it. Memory from cairn_group_alloc
 *            is used where it is; other memory is copied in blocks where the backend must
 *   work     out: completes when destinations may be read and sources written; end it with cairn_work_wait. NULL = wait
 *            here. Until then arrays stay alive, destinations untouched, sources unchanged
 * Errors     CAIRN_EINVAL nothing was posted; CAIRN_ENOMEM; CAIRN_EPEER and CAIRN_ETIMEOUT: the group is dead;
 *            CAIRN_ESTATE it was aborted. */

/* x [n] becomes the combination of every rank's x.
 * Cost: shm: each rank reads n and writes n elements, n/p of every rank's; mpi, gloo: sends and receives 2(p-1)/p *
 * n; in two levels over m machines of equally many ranks: a machine sends and receives 2(m-1)/m * n. */
CAIRN_API cairn_status cairn_allreduce(cairn_group *group, void *x, size_t n, cairn_dtype dtype, cairn_redop op,
                                       cairn_work **work);

/* The same, from src to dst: src may be dst; otherwise they do not overlap, and src stays as it is. */
CAIRN_API cairn_status cairn_allreduce_into(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                            cairn_redop op, cairn_work **work);

/* The combination of every rank's src [n] goes to root's dst [n]; dst counts on root only, NULL is fine elsewhere. src
 * may be dst; otherwise they do not overlap, and src stays as it is. Cost: as half an all-reduce. */
CAIRN_API cairn_status cairn_reduce(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                    cairn_redop op, int root, cairn_work **work);

/* Every rank's x [n] becomes a copy of root's. */
CAIRN_API cairn_status cairn_broadcast(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int root,
                                       cairn_work **work);

/* dst [p * n] gets every rank's src [n], in rank order. src may be dst + rank * n; otherwise they do not overlap. */
CAIRN_API cairn_status cairn_allgather(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                       cairn_work **work);

/* Of the combination of every rank's src [p * n], rank r gets the r-th part in its dst [n]. dst may be src + rank * n
 * (then only that part of src changes); otherwise they do not overlap. */
CAIRN_API cairn_status cairn_reduce_scatter(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                            cairn_redop op, cairn_work **work);

/* Part r of src [p * n] goes to rank r, where it becomes part `rank of the sender` of dst [p * n]. They do not
 * overlap. */
CAIRN_API cairn_status cairn_alltoall(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                      cairn_work **work);

/* x [n] goes from this rank to rank `to`, which receives it with the same count and type. Messages between two ranks
 * are received in the order in which they are sent, and go past collectives and other ranks' messages. A send may
 * complete before it is received. A count or type that is not the sender's is CAIRN_EPEER on both, with both values (on
 * shm; elsewhere with CAIRN_CHECK=1; on nccl never). A rank cannot send to itself.
 * On nccl messages keep their place among the group's collectives: both ranks send and receive between the same two.
 * What a rank posts without waiting in between is launched as one, so that ranks may send to each other and then
 * receive. */
CAIRN_API cairn_status cairn_send(cairn_group *group, const void *x, size_t n, cairn_dtype dtype, int to,
                                  cairn_work **work);
CAIRN_API cairn_status cairn_recv(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int from,
                                  cairn_work **work);

/* Returns once every rank has called it. On nccl once the device has got there. */
CAIRN_API cairn_status cairn_barrier(cairn_group *group);

/* ---- works ---- */

/* Moves outstanding collectives on without waiting; *done tells whether this one has completed. The work stays alive.
 * Errors: as the collective's. */
CAIRN_API cairn_status cairn_work_test(cairn_work *work, int *done);

/* Waits until the collective has completed, then ends *work and writes NULL back, whatever the status. NULL in *work is
 * a work that has completed. */
CAIRN_API cairn_status cairn_work_wait(cairn_work **work);

#ifdef __cplusplus
}
#endif

#endif
