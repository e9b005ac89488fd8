/* Threads inside a rank.
 *
 * A process has one pool, and each rank that is a thread has one, created on the first use of more than one thread. A
 * rank that is a process has one thread unless OMP_NUM_THREADS or cairn_set_num_threads sets another number. The caller
 * decides how work is divided, regardless of the number of threads, so results do not depend on that number. A call
 * that finds the pool busy (a second environment in a thread that is not a rank), or that is made within a body, does
 * all of its work itself.
 */
#ifndef CAIRN__CORE_PARALLEL_H
#define CAIRN__CORE_PARALLEL_H

#include "cairn/core.h"

/* Processes items begin..end-1. Runs on any thread of the pool, and on several at once. */
typedef void (*cairn__parallel_body)(void *ctx, size_t begin, size_t end);

/* Runs body over [0, n) in pieces of at most `grain` items whose borders are multiples of grain; returns when all are
 * done. Choose the grain so that a piece takes some 10 us. n = 0 is valid. Any thread. */
void cairn__parallel_for(size_t n, size_t grain, cairn__parallel_body body, void *ctx);

/* The number of threads of the calling thread's pool; at least 1. */
int cairn__num_threads(void);
/* The number in OMP_NUM_THREADS; 1 if it is not set. */
int cairn__num_threads_of_environment(void);

/* Gives the calling thread, which is a rank, a pool of its own until it calls leave. threads includes the calling
 * thread. Errors: CAIRN_ENOMEM. */
cairn_status cairn__parallel_enter(int threads);
/* Ends the pool's threads. Must not be called within a body. Does nothing if the thread has no pool of its own. */
void cairn__parallel_leave(void);

#endif
