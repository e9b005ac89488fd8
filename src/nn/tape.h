/* The tape of an environment: memory for results, and the record of the operations that made them.
 *
 * A generation is one step. Results of a generation die when the next begins (env->begin_step, which zero_grad calls);
 * nothing is freed then, the memory is handed out again.
 *
 * A graph's step runs on a tape of its own, which cairn__tape_of gives while it runs: addresses that were recorded are
 * not handed out to anybody else, and the results of the step stay until its next run. What belongs to the environment
 * and not to a step is kept by the first tape, `main`. */
#ifndef CAIRN__NN_TAPE_H
#define CAIRN__NN_TAPE_H

#include "nn/grad_pool.h"
#include "nn/hooks.h"
#include "param/param.h"

/* The tape of results now: the environment's, or a graph's while its step runs, or a checkpoint's. */
static inline struct cairn__tape *cairn__tape_of(const struct cairn_env *env) {
    return (struct cairn__tape *)env->places[CAIRN__PLACE_OF_NN].at;
}

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
    size_t chunk, used;  /* the next byte to hand out */
    size_t handed, peak; /* bytes that are out, and the most that ever were */
};

struct cairn__arena_mark {
    size_t chunk, used, handed;
};

/* 64-byte aligned, undefined. */
cairn_status cairn__arena_alloc(struct cairn__arena *arena, size_t nbytes, void **out);

/* Everything handed out since the mark is taken back: scratch of one operation. */
struct cairn__arena_mark cairn__arena_mark(const struct cairn__arena *arena);
void cairn__arena_release(struct cairn__arena *arena, struct cairn__arena_mark mark);

/* Takes everything back, and where it lay in several chunks makes one of them, as large as was ever needed. */
void cairn__arena_restart(struct cairn__arena *arena);

/* ---- the record ---- */

enum {
    /* A header is overwritten this many steps after its result's death; until then its use is an error. */
    CAIRN__GENERATIONS = 4,
};

struct cairn__gap {
    char *data;
    size_t nbytes;
};

/* A tensor, and the number of contributions that its gradient gets. */
struct cairn__uses {
    cairn_tensor *tensor;
    int count;
};

/* One operation. Nodes whose result wants a gradient are on the tape, in the order of their making. */
struct cairn__node {
    enum cairn__op op;
    const struct cairn__op_row *row; /* nn/ops.h */
    int count;                       /* of inputs */
    cairn_tensor **inputs;           /* [count], with the node; NULL where an optional one was left out */
    cairn_tensor *result;
    const void *attrs; /* arguments beside its inputs: a struct of the op's own, stored with the node; NULL = none */
    void *saved;       /* for backward: device memory of the op's own, of this generation (cairn__save) */
    size_t saved_nbytes;
    size_t index;     /* on the tape */
    uint64_t reached; /* the backward that last reached it */
    bool consumed;    /* a backward has walked it and did not retain the graph; never of what saves nothing */
    const struct cairn__uses *outside; /* of a checkpoint: what its gradient reaches, in place of its inputs */
    size_t num_outside;
};

/* A failure of a step that the device reported. */
struct cairn__failure {
    cairn_status status;
    bool is_returned;
    char message[1024];
};

/* Results made without a graph. They live in the memory of the step, and their headers in a ring of their own. */
struct cairn__no_grad {
    int depth;
    uint64_t scopes;                                 /* begun */
    uint64_t generation;                             /* of what is made now; 0 = nothing is */
    struct cairn__arena headers[CAIRN__GENERATIONS]; /* by scope */
    struct cairn__arena_mark values;                 /* where the scope began */
    size_t num_gaps, num_passing;                    /* likewise: the scope neither takes nor leaves any */
    struct cairn__failure failure;                   /* of the scope */
};

struct cairn__tape {
    cairn_env *env;
    struct cairn__tape *main;                        /* the environment's first: itself, but for a graph's */
    struct cairn__tape *root;                        /* itself, but for a checkpoint's: the one it is walked within */
    struct cairn__tape *outer, *inner;               /* of a checkpoint: NULL, and NULL as long as there was none */
    uint64_t steps;                                  /* begun on this tape */
    uint64_t generation;                             /* the number of the last one among the steps of all tapes */
    struct cairn__arena headers[CAIRN__GENERATIONS]; /* results and nodes */
    struct cairn__arena values;                      /* data of results */
    struct cairn__gap *gaps;                         /* in it: of results that were forgotten */
    size_t num_gaps, gaps_capacity;
    struct cairn__arena scratch;          /* of one forward or backward of an operation */
    struct cairn__tensor_grad_pool grads; /* of one backward; a root's alone */
    struct cairn__no_grad no_grad;
    struct cairn__failure failure; /* of the step; a root's alone */
    bool in_place;                 /* the operation that is applied next writes over its first input */

    int inside;             /* modules whose forward runs (forget.c), and */
    cairn_tensor **passing; /* what they have made that no graph holds */
    size_t num_passing, passing_capacity;

    struct cairn__node **nodes;
    size_t count, capacity;

    uint64_t backward;                     /* number of the backward now running or last run */
    bool walking, retain;                  /* it is running; it leaves the graph as it is */
    const struct cairn__node *walked;      /* last */
    const struct cairn__loss_scale *scale; /* of the loss it began with; NULL = none */
    bool lets_infinities;                  /* anomaly mode: one came from outside, and sums may show it */
    struct cairn_param_set **sets;         /* that it reached */
    size_t num_sets, sets_capacity;

    struct cairn__uses *outside; /* of a checkpoint's: tensors outside that its graph reaches */
    size_t num_outside, outside_capacity;

    struct cairn__tape *next; /* ended tape */

    uint64_t trail;    /* a checkpoint's: a hash of what has been recorded, */
    bool refused_step; /* and the function tried to begin a step */

    /* Of the main tape alone. */
    struct cairn__op_hook hook;              /* compute_type NULL = none */
    cairn_tensor *leaves;                    /* owned, a list */
    cairn_tensor *ending;                    /* ended by their owners while a step used them; another (lifetime.c) */
    void *ones;                              /* a 1 of every float type, in device memory: where backward starts */
    uint64_t last_generation, last_backward; /* handed out, over all tapes */
    struct cairn__tape *ended;               /* of graphs: their headers still detect a use that comes too late */
    bool finds_anomalies;                    /* cairn_detect_anomaly */
    char *anomaly;     /* [CAIRN__ANOMALY_TEXT] the first since it was forgotten; NULL = not noted */
    int anomaly_users; /* who want it noted */
};

/* Device memory for values, undefined, until the step or its no_grad is over; or until it is given back before. */
cairn_status cairn__tape_take(struct cairn__tape *tape, size_t nbytes, void **out);
void cairn__tape_give(struct cairn__tape *tape, void *data, size_t nbytes);

/* What env->begin_step does, for any tape. */
void cairn__tape_begin_step(struct cairn__tape *tape);

/* The tape for checkpoints on this one, which follow one another: empty, a new step of it. Results of the one before
 * are dead. */
cairn_status cairn__tape_enter(struct cairn__tape *tape, struct cairn__tape **inner);
void cairn__tape_leave(struct cairn__tape *inner); /* its results are dead */

/* A constant 1 of a float type, in device memory. */
void *cairn__tape_one(const struct cairn__tape *tape, cairn_dtype dtype);

/* Whether results of a generation may be used on tape. */
static inline bool cairn__tape_lives(const struct cairn__tape *tape, uint64_t generation) {
    return generation != 0 && (generation == tape->generation || generation == tape->no_grad.generation);
}

/* Where the memory of a step is. */
struct cairn__tape_memory {
    struct cairn__memory_use values, gradients, scratch, headers;
};
struct cairn__tape_memory cairn__tape_memory(const cairn_env *env);

/* Zeroed host memory of this generation, as long-lived as headers. */
cairn_status cairn__tape_room(struct cairn__tape *tape, size_t nbytes, void **out);

/* A header for a result of this generation, zeroed; owned by the tape. */
cairn_status cairn__tape_new_result(struct cairn__tape *tape, cairn_tensor **out);

/* A zeroed node with room for its inputs and a copy of its attrs, not yet on the tape. */
cairn_status cairn__tape_new_node(struct cairn__tape *tape, int count, const void *attrs, size_t attrs_nbytes,
                                  struct cairn__node **out);

/* Appends a node whose result wants a gradient. */
cairn_status cairn__tape_record(struct cairn__tape *tape, struct cairn__node *node);

#endif
