/* What the files of bench-plan share. */
#ifndef BENCH_PLAN_PARTS_H
#define BENCH_PLAN_PARTS_H

#include <stddef.h>

#include "cairn/cairn.h"

#define CHECK(call) \
    if ((call) != CAIRN_OK) die(cairn_last_error())

_Noreturn void die(const char *why);

/* Of every stride-th of values; at least one. */
double median(const double *values, size_t stride, size_t count);

/* Each becomes the ranks' largest. */
void take_slowest(cairn_env *env, double *values, size_t n);

/* Measures by how much an all-reduce makes a step longer, for sizes up to most_nbytes, and writes a link for
 * cairn-plan. A step is, for this: work on a megabyte of the rank's own, writing the gradient, and reading it. So the
 * calls find caches as they find them in a training, and that half the results lie in other processors' caches counts;
 * back to back, as in tools/cairn-bench allreduce, shm needs a half or a third of it. */
void measure_link(cairn_env *env, double seconds, size_t most_nbytes, const char *file);

#endif
