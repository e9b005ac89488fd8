/* Runs one collective, or one message, on exactly predictable numbers and compares the result with its definition bit
 * by bit.
 *
 * Inputs are integers that every type holds exactly, and so are their combinations over 8 ranks: sums of [-5, 5] stay
 * within [-40, 40], products of 1, -1, 2, -2 within [-256, 256]; an average is one division and one rounding and is
 * expected to be exactly that. Inputs repeat with a prime period, so that long arrays are filled and compared by memcpy
 * and memcmp. */
#ifndef TESTS_DIST_TRIAL_H
#define TESTS_DIST_TRIAL_H

#include <stdbool.h>
#include <stddef.h>

#include "group_fn.h"

enum trial_kind {
    ALLREDUCE,
    ALLREDUCE_INTO,
    REDUCE,
    BROADCAST,
    ALLGATHER,
    REDUCE_SCATTER,
    ALLTOALL,
    MESSAGE,
    NUM_KINDS
};

enum { NUM_TYPES = 7, NUM_OPS = 5, NUM_PLACEMENTS = 4 };
extern const cairn_dtype trial_types[NUM_TYPES];
extern const cairn_redop trial_ops[NUM_OPS];

/* Group memory and ordinary memory; a trial's placement chooses between them. */
struct room {
    void *registered;
    char *ordinary;
    size_t nbytes; /* of each */
};

struct array {
    char *x;
    size_t nbytes;
};

struct trial {
    enum trial_kind kind;
    cairn_dtype dtype;
    cairn_redop op; /* for kinds that reduce */
    size_t n;
    int root, to;  /* a message goes from root to another rank, `to` */
    unsigned salt; /* varies the input values */
    bool in_place; /* if the kind allows both */
    int placement; /* in [0, NUM_PLACEMENTS): kind of memory, which may differ by rank, and offset from a cache line */
    struct array arrays[2]; /* from here on set by trial_begin */
    char *dst, *src;
    cairn_work *work;
};

bool trial_combines(enum trial_kind kind);
bool trial_has_choice(enum trial_kind kind);
/* Draws a trial. n, root, placement and so on are equal on every rank if random is. */
struct trial trial_random(unsigned *random, int p, size_t most);
unsigned random_below(unsigned *random, unsigned end);

/* Upper bound for the size of a trial's array with its canaries, for n bytes of elements. */
size_t room_for(size_t nbytes);
/* Collective. Allocates memory for `desks` trials at a time, whose two arrays have at most nbytes of elements each. */
char *room_open(cairn_group *group, struct room *room, int desks, size_t nbytes);
char *room_close(cairn_group *group, struct room *room);

/* Fills sources and canaries at a desk of the room. */
void trial_begin(cairn_group *group, struct trial *t, const struct room *room, int desk, int desks);
/* Issues the trial on the channel (a group of the same ranks) if this rank takes part in it. */
cairn_status trial_post(cairn_group *channel, struct trial *t, cairn_work **work);
/* Compares every byte of both arrays with the expected one. */
char *trial_check(cairn_group *group, const struct trial *t);

/* Runs a whole trial with a call that waits itself. */
char *trial_run(cairn_group *group, struct trial t, const struct room *room);

/* Sets x[i] to value, rounded to the type. */
void put_value(void *x, size_t i, cairn_dtype dtype, double value);
bool is_value(const void *x, size_t i, cairn_dtype dtype, double value);

#endif
