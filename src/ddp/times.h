/* When things happened in an iteration of a context, and what iterations take on average: the numbers that users tune
 * by.
 *
 * The reducer says what happens, in this order; each call reads the clock (20 ns) and costs nothing else:
 *
 *   forward_begin, forward_end   around the model's forward; raw buffers have none
 *   ready                        the gradient of a slot's parameter is there
 *   launch                       a bucket goes out
 *   compute_end                  backward has computed its last gradient: the reducer settles
 *   complete                     a bucket's work has been waited for
 *   settled                      gradients may be read: the iteration counts
 *
 * A backward that does not reduce (no_sync) says nothing after ready. Buckets are numbered in launching order. Room
 * "ddp" gets these trace events: "forward", "backward" (what computes of it), "bucket_launch", "bucket" (launch to
 * completion), "bucket_wait" (what of a bucket's time nothing hid) and "iteration" (forward's begin to settled). index
 * is the iteration, or the bucket. */
#ifndef CAIRN__DDP_TIMES_H
#define CAIRN__DDP_TIMES_H

#include <stdbool.h>

#include "cairn/core.h"

/* Of one iteration, CLOCK_MONOTONIC; 0 = it has not happened. */
struct cairn__ddp_moments {
    uint64_t forward_begin, forward_end;
    uint64_t
        backward_begin; /* forward's end (torch's rule); the first gradient's readiness where nothing ran forward */
    uint64_t compute_end;
    uint64_t comm_begin, comm_end; /* first launch, last completion */
    uint64_t settled;
    uint64_t busy;    /* ns in which at least one bucket was on its way */
    uint64_t exposed; /* of these, the ns after compute_end */
    uint64_t outside; /* ns from the last iteration's end to forward_begin */
    uint64_t polled;  /* ns that reducing took of backward, where that is watched */
};

struct cairn__ddp_bucket_times {
    uint64_t filling; /* since its first gradient came; 0 = none has */
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
    uint64_t
        *ready; /* [num_slots] ns after backward's begin, without polls, in this iteration or the last one; 0 = it did
                            not come */
    size_t *ready_order; /* [num_ready] slots in the order they came in it */
    size_t num_slots, num_ready;
    bool arriving;           /* a gradient has come since the last iteration settled */
    uint64_t *ready_samples; /* [num_slots][CAIRN__DDP_SAMPLES] the same of the last iterations */
    bool watches_polls;
};

/* Makes room; again after buckets have been rebuilt, which keeps what was measured. watches_polls:
 * cairn__ddp_times_poll_end looks at the clock. Errors: CAIRN_ENOMEM; end it then, too. */
cairn_status cairn__ddp_times_make(struct cairn__ddp_times *t, size_t num_slots, size_t num_buckets,
                                   bool watches_polls);
void cairn__ddp_times_free(struct cairn__ddp_times *t);

/* Slots and buckets are those that from has been made for, and what was measured of the former ones is forgotten. from
 * is freed. */
void cairn__ddp_times_take_slots(struct cairn__ddp_times *t, struct cairn__ddp_times *from);

void cairn__ddp_times_forward_begin(struct cairn__ddp_times *t);
void cairn__ddp_times_forward_end(struct cairn__ddp_times *t);
void cairn__ddp_times_ready(struct cairn__ddp_times *t, size_t slot);
/* Around what moves collectives on between nodes of backward. */
uint64_t cairn__ddp_times_poll_begin(const struct cairn__ddp_times *t);
void cairn__ddp_times_poll_end(struct cairn__ddp_times *t, uint64_t begin_ns);
/* A gradient of the bucket has come. */
void cairn__ddp_times_fill(struct cairn__ddp_times *t, size_t bucket);
void cairn__ddp_times_launch(struct cairn__ddp_times *t, size_t bucket, size_t nbytes);
void cairn__ddp_times_compute_end(struct cairn__ddp_times *t);
/* completed_ns: when its work got through (cairn__work_finish_timed); 0 = now. Buckets in launching order. */
void cairn__ddp_times_complete(struct cairn__ddp_times *t, size_t bucket, uint64_t completed_ns);
void cairn__ddp_times_settled(struct cairn__ddp_times *t);

/* The parts of the last iteration. */
struct cairn__ddp_parts cairn__ddp_times_last(const struct cairn__ddp_times *t);
/* Medians of the last iterations; of a slot's readiness too, 0 = it did not come in most of them. */
struct cairn__ddp_sample cairn__ddp_times_median(const struct cairn__ddp_times *t);
uint64_t cairn__ddp_times_median_ready(const struct cairn__ddp_times *t, size_t slot);

#endif
