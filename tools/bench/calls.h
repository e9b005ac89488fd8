/* The collectives that are timed, and data whose results are known in full.
 *
 * Elements are pseudo-random whole numbers up to 4, other ones for every rank, round and part of an all-to-all, and
 * repeat after 1021. So sums over 64 ranks, up to 256, are exact in f16 and bf16, and blocks that are out of place
 * show, since 1021 is a prime. Destinations hold NaNs before, so that what was not written shows too. Sums in place add
 * up from call to call: whoever asks for several in a row takes care that they stay exact. */
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

/* One collective as one rank calls it. Sums; the root is rank 0. */
struct bench_call {
    enum bench_collective collective;
    cairn_dtype dtype;
    size_t n; /* elements, as the call's own argument counts them */
    bool in_place;
    int rank, size;
    unsigned calls; /* in a row, on the same arrays */
};

/* "allreduce", ... */
const char *bench_name(enum bench_collective collective);
/* BENCH_COLLECTIVES where there is none. */
enum bench_collective bench_find(const char *name);

/* Whether it can be asked for: a broadcast has no way out of place, an all-to-all and what follows it none in place. */
bool bench_has_place(enum bench_collective collective, bool in_place);

/* Elements of the source and of the destination. In place the larger one holds both. */
size_t bench_source_elements(const struct bench_call *call);
size_t bench_destination_elements(const struct bench_call *call);

/* Where the call's arrays begin, given two blocks of memory; in place the first holds both. */
void bench_place(const struct bench_call *call, void *first, void *second, void **source, void **destination);

/* Writes this rank's data of a round. */
void bench_prepare(const struct bench_call *call, unsigned round, void *source, void *destination);

/* How many elements are not what the calls must have left there, sources that must not change among them. */
size_t bench_count_wrong(const struct bench_call *call, unsigned round, const void *source, const void *destination);

#endif
