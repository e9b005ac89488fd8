/* Times of a context's iterations, and what iterations take on average: the numbers that users tune by.
 *
 * The reducer reports what happens, in this order; each call reads the clock (20 ns) and costs nothing else:
 *
 *   forward_begin, forward_end   around the model's forward; raw buffers have none
 *   ready                        the gradient of a slot's parameter is there
 *   launch                       a bucket is launched
 *   compute_end                  backward has computed its last gradient: the reducer settles
 *   complete                     a bucket's work has been waited for
 *   settled                      gradients may be read: the iteration counts
 *
 * A backward that does not reduce (no_sync) reports nothing after ready. Buckets are numbered in launching order. Room
 * "ddp" gets these trace events: "forward", "backward" (its computation), "bucket_launch", "bucket" (launch to
 * completion), "bucket_wait" (the part of a bucket's time that nothing hid) and "iteration" (forward's begin to
 * settled). index is the iteration, or the bucket. */
#ifndef CAIRN__DDP_TIMES_H
#define CAIRN__DDP_TIMES_H

#include <stdbool.h>

#include "cairn/core.h"

/* The moments of one iteration, CLOCK_MONOTONIC; 0 = it has not happened. */
struct cairn__ddp_moments {
    uint64_t forward_begin, forward_end;
    uint64_t backward_begin; /* forward's end (torch's rule); without a forward, when the first gradient was ready */
    uint64_t compute_end;
    uint64_t comm_begin, comm_end; /* first launch, last completion */
    uint64_t settled;
    uint64_t busy;    /* ns in which at least one bucket was in flight */
    uint64_t exposed; /* of these, the ns after compute_end */
    uint64_t outside; /* ns from the last iteration's end to forward_begin */
    uint64_t polled;  /* ns of backward that reducing took, if that is watched */
};

struct cairn__ddp_bucket_times {
    uint64_t filling; /* when its first gradient came; 0 = none has */
    uint64_t launched, completed;
    int64_t nbytes; /* on the wire */
};

/* Parts of an iteration, ns. */
struct cairn__ddp_parts {
    uint64_t forward, backward, comm, overlap, busy, exposed;
    uint64_t outside; /* from the last iteration's end to this one's forward */
};

enum { CAIRN__DDP_SAMPLES = 32 }; /* of the last iterations are kept, for medians */

struct cairn__ddp_sample {
    uint64_t forward, backward, outside; /* backward without polls */
};

struct cairn__ddp_times {
    int64_t iteration; /* settled so far */
    struct cairn__ddp_moments now, last;
    struct cairn__ddp_parts sum;
    struct cairn__ddp_sample samples[CAIRN__DDP_SAMPLES];
    struct cairn__ddp_bucket_times *buckets; /* [num_buckets] of the iteration now running, or of the last one */
    size_t num_buckets;
    /* [num_slots] When gradients were ready in this iteration or the last one: ns after backward's begin, without
     * polls; 0 = it did not come. */
    uint64_t *ready;
    size_t *ready_order; /* [num_ready] slots in the order in which they were ready */
    size_t num_slots, num_ready;
    bool arriving;           /* a gradient has come since the last iteration settled */
    uint64_t *ready_samples; /* [num_slots][CAIRN__DDP_SAMPLES] `ready` of the last iterations */
    bool watches_polls;
};

/* Allocates memory; called again after buckets have been rebuilt, it keeps what was measured. watches_polls:
 * cairn__ddp_times_poll_end reads the clock. Errors: CAIRN_ENOMEM; cairn__ddp_times_free is needed then, too. */
cairn_status cairn__ddp_times_make(struct cairn__ddp_times *t, size_t num_slots, size_t num_buckets,
                                   bool watches_polls);
void cairn__ddp_times_free(struct cairn__ddp_times *t);

/* Takes the slots and buckets that from was made for; what was measured of the former ones is forgotten. Frees from. */
void cairn__ddp_times_take_slots(struct cairn__ddp_times *t, struct cairn__ddp_times *from);

void cairn__ddp_times_forward_begin(struct cairn__ddp_times *t);
void cairn__ddp_times_forward_end(struct cairn__ddp_times *t);
void cairn__ddp_times_ready(struct cairn__ddp_times *t, size_t slot);
/* Before and after making progress with collectives between nodes of backward. */
uint64_t cairn__ddp_times_poll_begin(const struct cairn__ddp_times *t);
void cairn__ddp_times_poll_end(struct cairn__ddp_times *t, uint64_t begin_ns);
/* A gradient of the bucket has come. */
void cairn__ddp_times_fill(struct cairn__ddp_times *t, size_t bucket);
void cairn__ddp_times_launch(struct cairn__ddp_times *t, size_t bucket, size_t nbytes);
void cairn__ddp_times_compute_end(struct cairn__ddp_times *t);
/* completed_ns: when its work was done (cairn__work_finish_timed); 0 = now. Buckets in launching order. */
void cairn__ddp_times_complete(struct cairn__ddp_times *t, size_t bucket, uint64_t completed_ns);
void cairn__ddp_times_settled(struct cairn__ddp_times *t);

/* The parts of the last iteration. */
struct cairn__ddp_parts cairn__ddp_times_last(const struct cairn__ddp_times *t);
/* Medians of the last iterations, also of when a slot was ready; 0 = it did not come in most of them. */
struct cairn__ddp_sample cairn__ddp_times_median(const struct cairn__ddp_times *t);
uint64_t cairn__ddp_times_median_ready(const struct cairn__ddp_times *t, size_t slot);

#endif
