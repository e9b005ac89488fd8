/* Replicas of a model in threads of their own, from inside.
 *
 *   data_parallel.c   making and ending
 *   team.c            the replicas' threads: work for all, and waiting for it
 *   replica.c         a replica's thread: its environment and module, and what it does for a forward and a backward
 *   scatter.c         one forward as an operation of the model's environment */
#ifndef CAIRN__PARALLEL_DATA_PARALLEL_H
#define CAIRN__PARALLEL_DATA_PARALLEL_H

#include <pthread.h>
#include <stdatomic.h>

#include "cairn/data_parallel.h"
#include "device/env.h"
#include "nn/hooks.h"
#include "param/param.h"

enum { CAIRN__REPLICA_WHY = 1100 };

/* One forward, as long as its backward may come: until the model's environment begins another step. */
struct cairn__scattered {
    int count;                           /* of inputs */
    int given;                           /* of them: the others are NULL */
    cairn_tensor *const *inputs;         /* [count] of the program; dense. During the forward alone */
    int64_t rows, each;                  /* in all; of a replica, but for the last that has some */
    int used;                            /* replicas that have rows, the first ones */
    bool records;                        /* the program's environment does */
    bool is_consumed;                    /* by a backward */
    struct cairn__scattered_part *parts; /* [used] */
    bool *reached;                       /* [parameters] some output depends on it */
};

static inline int64_t cairn__scattered_rows(const struct cairn__scattered *f, int replica) {
    const int64_t left = f->rows - replica * f->each;
    return left < f->each ? left : f->each;
}

/* What of it is one replica's. */
struct cairn__scattered_part {
    cairn_tensor **inputs; /* [count] leaves over the program's rows; NULL = ended */
    cairn_tensor *output;  /* dense; what its backward begins with, and from the forward's end nothing else: */
    cairn_dtype dtype;
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    size_t numel;
    bool wants_grad;
    double loss; /* its value, where forward returns one */
    size_t mark; /* of cairn__inside_begin, which is to be ended where */
    bool is_inside, in_no_grad;
    bool *reached; /* [parameters] its output depends on it */
};

struct cairn__replica {
    struct cairn_data_parallel *dp;
    int index;
    cairn_env *env;
    cairn_module *module;
    amp_context *amp;

    /* The job: written by the program's thread before `posted`, its end by the replica's before `done`. */
    atomic_uint posted, done;
    atomic_bool is_gone; /* its thread has ended, or is about to, without being told; status says why */
    cairn_status (*work)(struct cairn__replica *r); /* NULL = end */
    cairn_status status;
    char why[CAIRN__REPLICA_WHY];
};

struct cairn_data_parallel {
    cairn_module *model;
    cairn_env *env;
    cairn_param_set *set;
    struct cairn_data_parallel_options options; /* without amp: */
    const struct amp_options *amp;              /* during create */
    int num_replicas;
    struct cairn__replica *replicas; /* [num_replicas] */

    pthread_t spawner; /* in cairn_spawn_threads */
    bool has_spawner;
    atomic_bool has_ended;        /* cairn_spawn_threads has returned, */
    char why[CAIRN__REPLICA_WHY]; /* with this error; "" = none */

    pthread_mutex_t lock; /* of those who sleep */
    pthread_cond_t changed;

    /* Forwards whose backward may come, of results `number`. */
    struct cairn__scattered **forwards;
    size_t num_forwards, capacity;
    uint64_t number;

    /* Of the job that runs. */
    struct cairn__scattered *forward;
    const char *dy; /* the gradient of its result */
    bool retains;
    const struct cairn__loss_scale *scale;
};

static inline bool cairn__replicas_return_losses(const struct cairn_data_parallel *dp) {
    return dp->options.forward_returns_loss == CAIRN_ON;
}

/* ---- team.c ---- */

/* Starts the replicas' threads, and returns when all replicas are ready. stop ends and joins them. */
cairn_status cairn__team_start(struct cairn_data_parallel *dp);
void cairn__team_stop(struct cairn_data_parallel *dp);

/* Every one of the first `used` replicas does work, at the same time; returns when all have. The status of the first
 * that failed, with its sentence. */
cairn_status cairn__team_run(struct cairn_data_parallel *dp, int used, cairn_status (*work)(struct cairn__replica *r));

/* Wakes who sleeps until something has changed. */
void cairn__team_tell(struct cairn_data_parallel *dp);

/* Until is(what) holds: polls for a while, then sleeps. */
void cairn__team_await(struct cairn_data_parallel *dp, bool (*is)(const void *what), const void *what);

/* ---- replica.c ---- */

/* What the thread of a replica does, from its beginning to its end. Of cairn_spawn_threads. */
int cairn__replica_run(int rank, void *dp);

/* Ends what a thread that is gone has left. */
void cairn__replica_end(struct cairn__replica *r);

/* Work: of a forward, and of its backward. */
cairn_status cairn__replica_forward(struct cairn__replica *r);
cairn_status cairn__replica_backward(struct cairn__replica *r);

/* Of modules that are alike. */
void cairn__copy_buffers(const cairn_module *from, const cairn_module *to);

/* The forward has been put together, and its values are read no more; its backward will not come. By the program's
 * thread, while replicas wait. */
void cairn__replica_leave(struct cairn__replica *r, struct cairn__scattered_part *part);
void cairn__replica_forget(const struct cairn__scattered *f, struct cairn__scattered_part *part);

/* ---- scatter.c ---- */

/* Ends all forwards of dp. */
void cairn__scattered_end(struct cairn_data_parallel *dp);

#endif
