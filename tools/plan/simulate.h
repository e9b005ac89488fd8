/* Simulates one training step over time: forward, backward with its buckets, optimizer.
 *
 * A bucket is sent when all its gradients are ready and the previous bucket has arrived: one link transfers them one
 * after the other. A reduction of time T takes share * T of the rank's processor from backward, so backward runs at the
 * rate 1 - share while a bucket is in flight. A link with its own engine (share 0: NCCL, a network card) is hidden
 * behind backward; if the ranks add themselves (share 1: shm) nothing is hidden, and the time of a step does not depend
 * on the buckets, apart from the fixed cost of each. The optimizer begins when backward has ended and every bucket has
 * arrived. All ranks are assumed to be equally fast: waiting for another rank is not included. */
#ifndef PLAN_SIMULATE_H
#define PLAN_SIMULATE_H

#include "link.h"
#include "profile.h"

struct span {
    double ready, begin, end; /* ns from the begin of forward; ready: its last gradient */
    double exposed;           /* ns by which the bucket lengthens the step */
    double nbytes;            /* padding included */
    size_t width;             /* of an element */
    size_t items;             /* number of gradients with a part in it */
    double share;             /* of the processor */
};

struct step {
    double forward_end, backward_end, settled, end; /* ns; settled: backward has ended and the buckets have arrived */
    double communication;                           /* ns, the sum of the buckets' */
    double exposed;                                 /* ns by which communication lengthens the step */
    struct span *buckets;                           /* [count] as they are sent */
    size_t count;
    size_t cap, first_cap; /* bytes */
    int ranks;
};

/* Uses ddp's buckets after they were rebuilt (by the same code), for caps in bytes; first_cap 0: the default of
 * ddp_options, 1 MiB or cap. */
void simulate(const struct profile *profile, const struct network *net, int ranks, size_t cap, size_t first_cap,
              struct step *out);
void step_free(struct step *s);

/* The fraction of a step that a single rank needs for the same work. */
double step_efficiency(const struct step *s, const struct profile *profile);

/* Whether two steps have the same buckets. */
bool same_buckets(const struct step *a, const struct step *b);

enum { MAX_PIECES = 65536 };

/* Approximate number of buckets; more than MAX_PIECES are not simulated. */
double pieces_of(const struct profile *profile, size_t cap);

/* Simulates steps for caps from 64 KiB, below which nothing is split (or a 4096th of all bytes, if that is more), up to
 * all bytes: 2^k and 3 * 2^k, and of caps that give the same buckets the smallest. The caller owns *steps and the
 * steps. */
size_t search_caps(const struct profile *profile, const struct network *net, int ranks, size_t first_cap,
                   struct step **steps);

/* Returns the index of the shortest step; among equal ones the one with the fewest buckets. */
size_t best_step(const struct step *steps, size_t count);

#endif
