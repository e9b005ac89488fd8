/* Threads inside a rank.
 *
 * One pool a process, and one for each rank that is a thread, made on the first use of more than one thread. A rank
 * that is a process has one thread unless OMP_NUM_THREADS or cairn_set_num_threads sets another number. The caller
 * decides how work is divided, never the number of threads, so that results do not depend on it. A call that finds the
 * pool busy (a second environment in another thread that is no rank), or is made within a body, does all of its work
 * itself.
 */
#ifndef CAIRN__CORE_PARALLEL_H
#define CAIRN__CORE_PARALLEL_H

#include "cairn/core.h"

/* Does the items begin..end-1. May run on any thread of the pool, several at once. */
typedef void (*cairn__parallel_body)(void *ctx, size_t begin, size_t end);

/* body over [0, n) in pieces of at most `grain` items, whose borders are multiples of it; returns when all are done.
 * Choose the grain so that a piece takes some 10 us. n = 0 is valid. Any thread. */
void cairn__parallel_for(size_t n, size_t grain, cairn__parallel_body body, void *ctx);

/* Of the calling thread's pool; at least 1. */
int cairn__num_threads(void);
/* What OMP_NUM_THREADS says; 1 where it says nothing. */
int cairn__num_threads_of_environment(void);

/* The calling thread, which is a rank, gets a pool of its own of so many threads, itself among them, until it leaves.
 * Errors: CAIRN_ENOMEM. */
cairn_status cairn__parallel_enter(int threads);
/* Ends the pool's threads, within no body. Nothing where the thread has no pool of its own. */
void cairn__parallel_leave(void);

#endif
