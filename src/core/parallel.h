/* Threads inside a rank.
 *
 * One pool a process, made on the first use of more than one thread; a rank has one thread unless OMP_NUM_THREADS or
 * cairn_set_num_threads sets another number. The caller decides how work is divided, never the number of threads, so
 * that results do not depend on it. A call that finds the pool busy (a second environment in another thread), or is
 * made within a body, does all of its work itself. */
#ifndef CAIRN__CORE_PARALLEL_H
#define CAIRN__CORE_PARALLEL_H

#include "cairn/core.h"

/* Does the items begin..end-1. May run on any thread of the pool, several at once. */
typedef void (*cairn__parallel_body)(void *ctx, size_t begin, size_t end);

/* body over [0, n) in pieces of at most `grain` items, whose borders are multiples of it; returns when all are done.
 * Choose the grain so that a piece takes some 10 us. n = 0 is valid. Any thread. */
void cairn__parallel_for(size_t n, size_t grain, cairn__parallel_body body, void *ctx);

/* At least 1. */
int cairn__num_threads(void);

#endif
