/* The timed collectives, and data with known results.
 *
 * Elements are pseudo-random integers up to 4 that differ by rank, round and part of an all-to-all, and repeat after
 * 1021 elements. Sums over 64 ranks, up to 256, are therefore exact in f16 and bf16, and misplaced blocks are detected
 * because 1021 is prime. Destinations are filled with NaNs first, so that unwritten elements are detected. In-place
 * sums grow from call to call: a caller that requests several in a row must keep them exact. */
#ifndef BENCH_CALLS_H
#define BENCH_CALLS_H

#include <stdbool.h>
#include <stddef.h>

#include "cairn/core.h"

enum { BENCH_MOST_RANKS = 64 };

enum bench_collective {
    BENCH_ALLREDUCE,
    BENCH_REDUCE,
    BENCH_BROADCAST,
    BENCH_ALLGATHER,
    BENCH_REDUCE_SCATTER,
    BENCH_ALLTOALL,
    BENCH_SENDRECV, /* every rank sends to the next and receives from the one before */
    BENCH_BARRIER,
    BENCH_COLLECTIVES
};

/* One collective as one rank calls it. Reductions are sums; the root is rank 0. */
struct bench_call {
    enum bench_collective collective;
    cairn_dtype dtype;
    size_t n; /* elements, as the call's own argument counts them */
    bool in_place;
    int rank, size;
    unsigned calls; /* number of consecutive calls on the same arrays */
};

/* "allreduce", ... */
const char *bench_name(enum bench_collective collective);
/* Returns BENCH_COLLECTIVES for an unknown name. */
enum bench_collective bench_find(const char *name);

/* Whether the collective can run in place or out of place: broadcast only in place; all-to-all and those after it only
 * out of place. */
bool bench_has_place(enum bench_collective collective, bool in_place);

/* Number of elements of source and destination. In place the larger array holds both. */
size_t bench_source_elements(const struct bench_call *call);
size_t bench_destination_elements(const struct bench_call *call);

/* Sets the call's arrays within two blocks of memory; in place the first block holds both. */
void bench_place(const struct bench_call *call, void *first, void *second, void **source, void **destination);

/* Writes this rank's data for a round. */
void bench_prepare(const struct bench_call *call, unsigned round, void *source, void *destination);

/* Returns the number of wrong elements after the calls, including changed elements of a source that must not change. */
size_t bench_count_wrong(const struct bench_call *call, unsigned round, const void *source, const void *destination);

#endif
