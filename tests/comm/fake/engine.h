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
    bool late_sends;   /* a sent array is read only when the message is received */
    int failing_rank;  /* rank in the environment's group whose starts fail, from failing_start on */
    int failing_start; /* counted from 1; 0 = none fails */
    int silent_rank;   /* rank whose messages are lost, from silent_start on */
    int silent_start;  /* 0 = none are lost */
    bool clings;       /* transfers in flight are not cancelled when an engine is closed */
};

struct fake_control {
    size_t size;
    void (*set)(const struct fake_faults *faults); /* for groups that are created from now on */
    int (*engines)(void);                          /* number of open engines */
    size_t (*most_nbytes)(void);                   /* size of the largest transfer since set */
};

#endif
