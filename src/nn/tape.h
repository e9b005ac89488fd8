/* The tape of an environment: memory for results, and the record of the operations that made them.
 *
 * A generation is one step. Results of a generation die when the next begins (env->begin_step, which zero_grad calls);
 * nothing is freed then, the memory is handed out again.
 *
 * A graph's step runs on a tape of its own, which stands in env->tape while it runs: addresses that were recorded are not
 * handed out to anybody else, and the results of the step stay until its next run. What belongs to the environment and
 * not to a step is kept by the first tape, `main`. */
#ifndef CAIRN__NN_TAPE_H
#define CAIRN__NN_TAPE_H

#include "nn/hooks.h"
#include "param/param.h"

/* Gives env its tape and its begin_step. Errors: CAIRN_ENOMEM. */
cairn_status cairn__tape_create(cairn_env *env);

/* Ends the tape with all results and leaf tensors; an env without one is fine. */
void cairn__tape_destroy(cairn_env *env);

/* ---- memory that is handed out front to back and taken back all at once ---- */

struct cairn__chunk {
    char *data;
    size_t nbytes;
};

struct cairn__arena {
    struct cairn_device *device; /* NULL = host memory */
    struct cairn__chunk *chunks;
    size_t count, capacity;
    size_t chunk, used; /* the next byte to hand out */
};

struct cairn__arena_mark {
    size_t chunk, used;
};

/* 64-byte aligned, undefined. */
cairn_status cairn__arena_alloc(struct cairn__arena *arena, size_t nbytes, void **out);

/* Everything handed out since the mark is taken back: scratch of one operation. */
struct cairn__arena_mark cairn__arena_mark(const struct cairn__arena *arena);
void cairn__arena_release(struct cairn__arena *arena, struct cairn__arena_mark mark);

/* ---- the record ---- */

enum { CAIRN__MAX_INPUTS = 3 };

/* One operation. Nodes whose result wants a gradient are on the tape, in the order of their making. */
struct cairn__node {
    enum cairn__op op;
    int count; /* of inputs */
    cairn_tensor *inputs[CAIRN__MAX_INPUTS];
    cairn_tensor *result;
    float scalar;                             /* mul_scalar's factor */
    const struct cairn__scaler_state *scaler; /* scale_loss's, in device memory */
    struct cairn__loss_scale *cell;           /* likewise */
    size_t index;                             /* on the tape */
    uint64_t reached;                         /* the backward that last reached it */
    bool consumed;                            /* a backward has walked it; never a cast */
};

enum {
    /* A header is overwritten this many steps after its result's death; until then its use is told as an error. */
    CAIRN__GENERATIONS = 4,
};

struct cairn__tape {
    cairn_env *env;
    struct cairn__tape *main;                        /* the environment's first: itself, but for a graph's */
    uint64_t steps;                                  /* begun on this tape */
    uint64_t generation;                             /* the number of the last one among the steps of all tapes */
    struct cairn__arena headers[CAIRN__GENERATIONS]; /* results and nodes */
    struct cairn__arena values;                      /* data of results */
    struct cairn__arena grads;                       /* of one backward */

    struct cairn__node **nodes;
    size_t count, capacity;

    uint64_t backward;             /* number of the backward now running or last run */
    struct cairn_param_set **sets; /* that it reached */
    size_t num_sets, sets_capacity;

    struct cairn__tape *next; /* ended tape */

    /* Of the main tape alone. */
    struct cairn__op_hook hook;              /* compute_type NULL = none */
    cairn_tensor *leaves;                    /* owned, a list */
    void *ones;                              /* a 1 of every float type, in device memory: where backward starts */
    uint64_t last_generation, last_backward; /* handed out, over all tapes */
    struct cairn__tape *ended;               /* of graphs: their headers still tell who uses a result too late */
};

/* A constant 1 of a float type, in device memory. */
void *cairn__tape_one(const struct cairn__tape *tape, cairn_dtype dtype);

/* A header for a result of this generation, zeroed; owned by the tape. */
cairn_status cairn__tape_new_result(struct cairn__tape *tape, cairn_tensor **out);

/* A zeroed node, not yet on the tape. */
cairn_status cairn__tape_new_node(struct cairn__tape *tape, struct cairn__node **out);

/* Appends a node whose result wants a gradient. */
cairn_status cairn__tape_record(struct cairn__tape *tape, struct cairn__node *node);

#endif
