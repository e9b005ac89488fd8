/* Shared by the files of bench-plan. */
#ifndef BENCH_PLAN_PARTS_H
#define BENCH_PLAN_PARTS_H

#include <stddef.h>

#include "cairn/cairn.h"

#define CHECK(call) \
    if ((call) != CAIRN_OK) die(cairn_last_error())

_Noreturn void die(const char *why);

/* Median of every stride-th value; needs at least one. */
double median(const double *values, size_t stride, size_t count);

/* Replaces each value by the largest over all ranks. */
void take_slowest(cairn_env *env, double *values, size_t n);

/* Measures by how much an all-reduce makes a step longer, for sizes up to most_nbytes, and writes a link file for
 * cairn-plan. The step here works on one megabyte of the rank's own data, writes the gradient, and reads it. Calls thus
 * find caches in the same state as in a training, and the cost of results in other processors' caches is included; back
 * to back, as in tools/cairn-bench allreduce, shm takes only a half or a third of that time. */
void measure_link(cairn_env *env, double seconds, size_t most_nbytes, const char *file);

#endif
