/* One training step over time: forward, backward with the buckets that are sent during it, optimizer.
 *
 * A bucket is sent when all its gradients are ready and its predecessors have arrived: one link carries them one after
 * the other. A reduction of time T takes share * T of the rank's own processor from backward. So backward goes on at a
 * rate of 1 - share while a bucket is under way: over a link with an engine of its own (share 0: NCCL, a network card)
 * backward hides it; if ranks add up themselves (share 1: shm) nothing is hidden, and a step costs the same for any
 * buckets, apart from the fixed cost of each. The optimizer begins when backward has ended and every bucket has
 * arrived. All ranks are assumed to be equally fast: waiting for another rank is not included. */
#ifndef PLAN_SIMULATE_H
#define PLAN_SIMULATE_H

#include "link.h"
#include "profile.h"

struct span {
    double ready, begin, end; /* ns from the begin of forward; ready: its last gradient */
    double exposed;           /* ns by which it makes the step longer */
    double nbytes;            /* padding included */
    size_t width;             /* of an element */
    size_t items;             /* gradients of which it holds anything */
    double share;             /* of the processor */
};

struct step {
    double forward_end, backward_end, settled, end; /* ns; settled: backward has ended and the buckets have arrived */
    double communication;                           /* ns, the sum of the buckets' */
    double exposed;                                 /* ns by which the step is longer than without any */
    struct span *buckets;                           /* [count] as they are sent */
    size_t count;
    size_t cap, first_cap; /* bytes */
    int ranks;
};

/* Buckets as ddp_create's after it has planned them anew (the same code does it), for caps in bytes; first_cap 0: as
 * ddp_options has it, 1 MiB or cap. */
void simulate(const struct profile *profile, const struct network *net, int ranks, size_t cap, size_t first_cap,
              struct step *out);
void step_free(struct step *s);

/* The part of a step in which one rank alone would have done the same. */
double step_efficiency(const struct step *s, const struct profile *profile);

/* Whether two steps have the same buckets. */
bool same_buckets(const struct step *a, const struct step *b);

enum { MAX_PIECES = 65536 };

/* How many pieces all bytes are cut into, about; more than MAX_PIECES are not simulated. */
double pieces_of(const struct profile *profile, size_t cap);

/* Steps for caps from 64 KiB, below which nothing is split (a 4096th of all bytes, where that is more), up to all
 * bytes: 2^k and 3 * 2^k, of caps that give the same buckets the least. *steps is the caller's, as the steps are. */
size_t search_caps(const struct profile *profile, const struct network *net, int ranks, size_t first_cap,
                   struct step **steps);

/* The index of the shortest, of equal ones that with the fewest buckets. */
size_t best_step(const struct step *steps, size_t count);

#endif
