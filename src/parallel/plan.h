/* What each rank of a pipeline does, in which order: a function of numbers alone. */
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

/* The actions of one rank: a forward and a backward of every chunk and micro-batch, of each chunk's in the order of the
 * micro-batches. out [2 * chunks * micro_batches]. */
void cairn__pipeline_plan(cairn_pipeline_schedule schedule, int rank, int ranks, int chunks, int micro_batches,
                          struct cairn__action *out);

/* The most micro-batches, counted once a chunk, between forward and backward. */
int cairn__pipeline_plan_in_flight(const struct cairn__action *actions, size_t count);

/* How many messages a rank may have on the way to each neighbour before it waits for the oldest to be received. With
 * fewer, interleaved schedules of some sizes would wait for ever (tests/parallel/plan_test.c). */
int cairn__pipeline_slots(cairn_pipeline_schedule schedule, int ranks);

#endif
