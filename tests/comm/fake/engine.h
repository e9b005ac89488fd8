/* A fake engine whose ranks are threads of one process, in a module that claims to be gloo's. It does exactly what the
 * exchange requires of an engine, in the most awkward way allowed. A test injects faults through the module's second
 * table, of kind "fake engine"; without that, FAKE_ENGINE_SEED in the environment is the seed, and sends are late if it
 * is odd. */
#ifndef TESTS_DIST_FAKE_ENGINE_H
#define TESTS_DIST_FAKE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>

struct fake_faults {
    unsigned seed;     /* of delays; 0 = everything arrives at once */
    bool late_sends;   /* what is sent is read from its array when it is received, and not before */
    int failing_rank;  /* of the environment's group; its starts fail from the one of this number on, */
    int failing_start; /* counted from 1; 0 = none does */
    int silent_rank;   /* nothing that this rank sends arrives any more, from this start on */
    int silent_start;  /* 0 = all arrives */
    bool clings;       /* what is under way is not taken back when an engine is closed */
};

struct fake_control {
    size_t size;
    void (*set)(const struct fake_faults *faults); /* for groups that are made from now on */
    int (*engines)(void);                          /* open ones */
    size_t (*most_nbytes)(void);                   /* of the largest transfer since set */
};

#endif
