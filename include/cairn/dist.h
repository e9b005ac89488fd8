/* Process groups: ranks that add their numbers up.
 *
 * A group is made with the environment (cairn_env_group) and has one backend, today "shm": all ranks on one machine, in
 * shared memory, whoever launched them; or "self": one rank alone, on any device: then arrays are memory
 * of that device, and collectives are done in the order of its stream. Every rank issues a group's collectives in the same order with the same type,
 * count, operation and root; a difference fails on every rank with CAIRN_EPEER and both ranks' values.
 *
 * Progress: there is no thread. Posting is a store; cairn_work_wait, cairn_work_test, every other call on the group and
 * (through ddp) every backward node move the outstanding collectives on. A wait spins briefly and then sleeps.
 * After CAIRN_EPEER or CAIRN_ETIMEOUT the group allows cairn_env_destroy only; every call repeats the first cause.
 * Timeout: CAIRN_TIMEOUT seconds (300) in which nothing of what this rank waits for moved. A rank that dies is noticed
 * within tens of milliseconds, its number and process named. Works end with the group.
 * Threads: one caller per group at a time. */
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
} cairn_redop;

/* This process's place in the group and the group's size. Any thread. */
CAIRN_API int cairn_group_rank(const cairn_group *group);
CAIRN_API int cairn_group_size(const cairn_group *group);

/* "shm" or "self". Owned by Cairn. Any thread. */
CAIRN_API const char *cairn_group_backend(const cairn_group *group);

/* Memory that the group reduces without copying it, zeroed, 64-byte aligned; on shm a memory segment that every rank
 * maps. Collective: every rank calls it with the same nbytes. Freed by cairn_group_free, also collective, in the same
 * order on every rank; what is left is freed with the group.
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM and CAIRN_ESYSTEM where a rank got none: then no rank has any, and the group lives
 * on; CAIRN_EPEER; CAIRN_ETIMEOUT. */
CAIRN_API cairn_status cairn_group_alloc(cairn_group *group, size_t nbytes, void **out);
CAIRN_API cairn_status cairn_group_free(cairn_group *group, void **memory);

/* Combines x over all ranks; every rank ends with the same bits in x.
 *
 *   x        [n] contiguous elements of dtype, overwritten in place. Memory from cairn_group_alloc is reduced where it
 *            is; other memory is copied through the group's own in blocks.
 *   n        elements, equal on every rank; 0 is a valid no-op
 *   dtype    f32, f16, bf16, i32, i64
 *   work     out: completes when x may be read; end it with cairn_work_wait. NULL = wait here.
 *
 * Numerics   f16, bf16 and f32 are summed in f32 in rank order, divided once for CAIRN_AVG, and rounded once; integers
 *            wrap around, and CAIRN_AVG truncates. A run repeats exactly for the same number of ranks.
 * Ordering   returns once posted. x stays alive and untouched until the work completes.
 * Errors     CAIRN_EINVAL nothing was posted; CAIRN_ENOMEM; CAIRN_EPEER and CAIRN_ETIMEOUT: the group is dead.
 * Cost       shm: each rank reads p*n/p and writes p*n/p elements, once. */
CAIRN_API cairn_status cairn_allreduce(cairn_group *group, void *x, size_t n, cairn_dtype dtype, cairn_redop op,
                                       cairn_work **work);

/* Every rank's x becomes a copy of root's. Otherwise as cairn_allreduce. */
CAIRN_API cairn_status cairn_broadcast(cairn_group *group, void *x, size_t n, cairn_dtype dtype, int root,
                                       cairn_work **work);

/* dst [p * n] gets every rank's src [n], in rank order. src may be dst + rank * n; otherwise they do not overlap.
 * Otherwise as cairn_allreduce. */
CAIRN_API cairn_status cairn_allgather(cairn_group *group, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                       cairn_work **work);

/* Returns once every rank has called it. */
CAIRN_API cairn_status cairn_barrier(cairn_group *group);

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
