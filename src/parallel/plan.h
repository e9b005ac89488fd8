/* Schedules: what each rank of a pipeline runs, in which order. Pure functions of a few numbers. */
#ifndef CAIRN__PARALLEL_PLAN_H
#define CAIRN__PARALLEL_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/pipeline.h"

struct cairn__action {
    bool is_backward;
    int chunk; /* which of the rank's modules */
    int micro_batch;
};

/* Writes the actions of one rank to out [2 * chunks * micro_batches]: a forward and a backward of every chunk and
 * micro-batch. Within a chunk, forwards and backwards are in micro-batch order. */
void cairn__pipeline_plan(cairn_pipeline_schedule schedule, int rank, int ranks, int chunks, int micro_batches,
                          struct cairn__action *out);

/* The largest number of micro-batches between forward and backward at a time; a micro-batch counts once per chunk. */
int cairn__pipeline_plan_in_flight(const struct cairn__action *actions, size_t count);

/* How many messages a rank may have in flight to each neighbour before it waits for the oldest to be received. With
 * fewer, interleaved schedules of some sizes would deadlock (tests/parallel/plan_test.c). */
int cairn__pipeline_slots(cairn_pipeline_schedule schedule, int ranks);

#endif
