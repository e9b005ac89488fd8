/* The tape of an environment: memory for results, and the record of the operations that made them.
 *
 * A generation is one step. The results of a generation end when the next one begins (env->begin_step, which zero_grad
 * calls). Their memory is not freed but handed out again.
 *
 * A graph's step runs on a tape of its own, which cairn__tape_of returns while the step runs: so recorded addresses are
 * never handed out to other results, and the step's results live until its next run. State of the environment rather
 * than of a step is in the first tape, `main`. */
#ifndef CAIRN__NN_TAPE_H
#define CAIRN__NN_TAPE_H

#include "nn/grad_pool.h"
#include "nn/hooks.h"
#include "param/param.h"

/* The current tape: the environment's; a graph's while its step runs; a checkpoint's while its function runs. */
static inline struct cairn__tape *cairn__tape_of(const struct cairn_env *env) {
    return (struct cairn__tape *)env->places[CAIRN__PLACE_OF_NN].at;
}

/* Gives env its tape and its begin_step. Errors: CAIRN_ENOMEM. */
cairn_status cairn__tape_create(cairn_env *env);

/* Destroys the tape with all results and leaf tensors. Does nothing if env has no tape. */
void cairn__tape_destroy(cairn_env *env);

/* ---- arenas: memory handed out front to back and released all at once ---- */

struct cairn__chunk {
    char *data;
    size_t nbytes;
};

struct cairn__arena {
    struct cairn_device *device; /* NULL = host memory */
    struct cairn__chunk *chunks;
    size_t count, capacity;
    size_t chunk, used;  /* the next byte to hand out */
    size_t handed, peak; /* bytes in use, and the most that ever were */
};

struct cairn__arena_mark {
    size_t chunk, used, handed;
};

/* 64-byte aligned, undefined. */
cairn_status cairn__arena_alloc(struct cairn__arena *arena, size_t nbytes, void **out);

/* release takes back everything handed out since the mark, such as one operation's scratch. */
struct cairn__arena_mark cairn__arena_mark(const struct cairn__arena *arena);
void cairn__arena_release(struct cairn__arena *arena, struct cairn__arena_mark mark);

/* Takes everything back. Replaces several chunks by one, as large as the most that was ever in use. */
void cairn__arena_restart(struct cairn__arena *arena);

/* ---- the record ---- */

enum {
    /* Headers are kept for this many generations: using a result whose step is over is an error until its header is
     * overwritten. */
    CAIRN__GENERATIONS = 4,
};

/* The memory of a forgotten result, free for the next ones. */
struct cairn__gap {
    char *data;
    size_t nbytes;
};

/* A tensor and the number of contributions that its gradient gets. */
struct cairn__uses {
    cairn_tensor *tensor;
    int count;
};

/* One application of an operation. Nodes whose result wants a gradient are on the tape, in the order of creation. */
struct cairn__node {
    enum cairn__op op;
    const struct cairn__op_row *row; /* nn/ops.h */
    int count;                       /* of inputs */
    cairn_tensor **inputs;           /* [count], allocated with the node; an omitted optional input is NULL */
    cairn_tensor *result;
    const void *attrs; /* arguments beside the inputs: a struct of the op's own, stored with the node; NULL = none */
    void *saved;       /* what forward keeps for backward: device memory of this generation (cairn__save) */
    size_t saved_nbytes;
    size_t index;     /* on the tape */
    uint64_t reached; /* the last backward that reached it */
    bool consumed;    /* walked by a backward that did not retain the graph; never set for casts and views */
    const struct cairn__uses *outside; /* a checkpoint's: the tensors its gradient reaches, in place of its inputs */
    size_t num_outside;
};

/* The first failure of a step that the device has reported. */
struct cairn__failure {
    cairn_status status;
    bool is_returned;
    char message[1024];
};

/* The no_grad scope, for results made without a graph. Their values are in the step's memory, their headers in a ring
 * of their own. */
struct cairn__no_grad {
    int depth;
    uint64_t scopes;                                 /* number of scopes begun */
    uint64_t generation;                             /* of the scope's results; 0 = no scope is open */
    struct cairn__arena headers[CAIRN__GENERATIONS]; /* by scope */
    struct cairn__arena_mark values;                 /* tape->values when the scope began */
    size_t num_gaps, num_passing;  /* likewise; the scope uses none of those before it and leaves none behind */
    struct cairn__failure failure; /* the scope's */
};

struct cairn__tape {
    cairn_env *env;
    struct cairn__tape *main;          /* the environment's first tape, possibly this one */
    struct cairn__tape *root;          /* this tape; a checkpoint's: the outermost tape around it */
    struct cairn__tape *outer, *inner; /* the tape around a checkpoint's; the one for checkpoints on this; or NULL */
    uint64_t steps;                    /* number of steps begun on this tape */
    uint64_t generation;               /* the current step's number, unique among all tapes */
    struct cairn__arena headers[CAIRN__GENERATIONS]; /* results and nodes */
    struct cairn__arena values;                      /* data of results */
    struct cairn__gap *gaps;                         /* in values: memory of forgotten results */
    size_t num_gaps, gaps_capacity;
    struct cairn__arena scratch;          /* of one forward or backward of an operation */
    struct cairn__tensor_grad_pool grads; /* of one backward; used in a root only */
    struct cairn__no_grad no_grad;
    struct cairn__failure failure; /* the step's; used in a root only */
    bool in_place;                 /* the next operation applied writes over its first input */

    int inside;             /* nesting depth of running module forwards (forget.c) */
    cairn_tensor **passing; /* results they have made that no graph holds */
    size_t num_passing, passing_capacity;

    struct cairn__node **nodes;
    size_t count, capacity;

    uint64_t backward;                     /* number of the backward now running or last run */
    bool walking, retain;                  /* that backward is running; it retains the graph */
    const struct cairn__node *walked;      /* the node it reached last */
    const struct cairn__loss_scale *scale; /* the scale of the loss it began with; NULL = none */
    bool lets_infinities;                  /* anomaly mode: it met a given infinity, so infinite sums are no anomaly */
    struct cairn_param_set **sets;         /* the parameter sets it reached */
    size_t num_sets, sets_capacity;

    struct cairn__uses *outside; /* a checkpoint's: the tensors outside it that its graph reaches */
    size_t num_outside, outside_capacity;

    struct cairn__tape *next; /* in main's list of ended tapes */

    uint64_t trail;    /* a checkpoint's: a hash of the operations recorded */
    bool refused_step; /* a checkpoint's: its function tried to begin a step */

    /* Used in the main tape only. */
    struct cairn__op_hook hook;              /* compute_type NULL = no hook */
    cairn_tensor *leaves;                    /* list, owned */
    cairn_tensor *ending;                    /* list: ended by their owners while a step used them (lifetime.c) */
    void *ones;                              /* a 1 of every float type, in device memory: backward's first gradient */
    uint64_t last_generation, last_backward; /* the last numbers given, over all tapes */
    struct cairn__tape *ended;               /* tapes of destroyed graphs: their headers detect a use of dead results */
    bool finds_anomalies;                    /* cairn_detect_anomaly */
    char *anomaly;     /* [CAIRN__ANOMALY_TEXT] message about the first anomaly, "" = none yet; NULL = not noted */
    int anomaly_users; /* number of cairn__note_anomalies without their end */
};

/* take allocates device memory for values, undefined; it lasts until the step or its no_grad scope ends, or give
 * returns it earlier. */
cairn_status cairn__tape_take(struct cairn__tape *tape, size_t nbytes, void **out);
void cairn__tape_give(struct cairn__tape *tape, void *data, size_t nbytes);

/* env->begin_step for any tape. */
void cairn__tape_begin_step(struct cairn__tape *tape);

/* Begins a step on the tape that all checkpoints on `tape` share, one after another. The results of the checkpoint
 * before are dead from then on. */
cairn_status cairn__tape_enter(struct cairn__tape *tape, struct cairn__tape **inner);
void cairn__tape_leave(struct cairn__tape *inner); /* ends the results on it */

/* A constant 1 of a float type, in device memory. */
void *cairn__tape_one(const struct cairn__tape *tape, cairn_dtype dtype);

/* Whether results of a generation may be used on tape. */
static inline bool cairn__tape_lives(const struct cairn__tape *tape, uint64_t generation) {
    return generation != 0 && (generation == tape->generation || generation == tape->no_grad.generation);
}

/* The memory of a step, by use. */
struct cairn__tape_memory {
    struct cairn__memory_use values, gradients, scratch, headers;
};
struct cairn__tape_memory cairn__tape_memory(const cairn_env *env);

/* Zeroed host memory that lives as long as the headers of this generation. */
cairn_status cairn__tape_room(struct cairn__tape *tape, size_t nbytes, void **out);

/* A header for a result of this generation, zeroed; owned by the tape. */
cairn_status cairn__tape_new_result(struct cairn__tape *tape, cairn_tensor **out);

/* A zeroed node with room for its inputs and a copy of its attrs, not yet on the tape. */
cairn_status cairn__tape_new_node(struct cairn__tape *tape, int count, const void *attrs, size_t attrs_nbytes,
                                  struct cairn__node **out);

/* Appends a node whose result wants a gradient. */
cairn_status cairn__tape_record(struct cairn__tape *tape, struct cairn__node *node);

#endif
