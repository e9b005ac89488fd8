/* Internals of cairn_data_parallel: replicas of a model, each in a thread.
 *
 *   data_parallel.c   create and destroy
 *   team.c            the replicas' threads: gives them jobs, and waits for the jobs
 *   replica.c         a replica's thread: its environment and module, its forward and backward
 *   scatter.c         one forward over all replicas, as an operation of the model's environment
 *   sum.c             sums the replicas' gradients
 *
 * GPU memory: a replica on the model's GPU uses the model's memory in place, as on the CPU. A replica on another GPU is
 * remote and has copies. All copies between a remote replica and the model are queued on the replica's stream, so only
 * that stream uses the replica's memory. Several streams use the model's memory: before a job the replicas' streams
 * wait for the model's (cairn__team_go), and after the job the model's stream waits for theirs
 * (cairn__team_come_back). The host waits for the threads, which queue work, and never for a GPU. */
#ifndef CAIRN__PARALLEL_DATA_PARALLEL_H
#define CAIRN__PARALLEL_DATA_PARALLEL_H

#include <pthread.h>
#include <stdatomic.h>

#include "cairn/data_parallel.h"
#include "device/env.h"
#include "nn/hooks.h"
#include "param/param.h"

enum { CAIRN__REPLICA_WHY = 1100 };

/* One forward. Kept while a backward may follow, until the model's environment begins another step. */
struct cairn__scattered {
    int count;                           /* number of inputs */
    int given;                           /* inputs that are not NULL */
    cairn_tensor *const *inputs;         /* [count] the program's, dense; set during the forward only */
    int64_t rows, each;                  /* of the batch; of a replica, except that the last used one may have fewer */
    int used;                            /* the first `used` replicas have rows */
    bool records;                        /* the program's environment records operations */
    bool is_consumed;                    /* a backward has consumed the graph */
    struct cairn__scattered_part *parts; /* [used] */
    bool *reached;                       /* [parameters] an output depends on it */
};

static inline int64_t cairn__scattered_rows(const struct cairn__scattered *f, int replica) {
    const int64_t left = f->rows - replica * f->each;
    return left < f->each ? left : f->each;
}

/* One replica's part of a forward. */
struct cairn__scattered_part {
    cairn_tensor **inputs; /* [count] leaves with the replica's rows; NULL = none, or destroyed */
    cairn_tensor *output;  /* dense; once the forward is over, only its backward uses it. So kept here: */
    cairn_dtype dtype;
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    size_t numel;
    bool wants_grad;
    size_t mark; /* of cairn__inside_begin, which still has to be ended if is_inside */
    bool is_inside, in_no_grad;
    bool *reached; /* [parameters] the output depends on it */
    /* Gradients of the last backward, in memory that the model's device reads; NULL = no gradient. */
    const void **grads;       /* [parameters] in the parameter's type */
    const void **input_grads; /* [count] f32, or f64 for f64 inputs */
};

/* Memory of the model's device, as large as the largest need so far. */
struct cairn__replica_room {
    void *data;
    size_t nbytes;
};

struct cairn__replica {
    struct cairn_data_parallel *dp;
    int index;
    int ordinal;    /* of its GPU */
    bool is_remote; /* its GPU is not the model's */
    cairn_env *env;
    cairn_module *module;
    amp_context *amp;
    double *loss;                       /* memory of its device; only if remote and forward returns losses */
    struct cairn__replica_room arrived; /* a remote replica's gradients */

    /* The job. The program's thread writes work before `posted`, the replica's thread status and why before `done`. */
    atomic_uint posted, done;
    atomic_bool is_gone;                            /* its thread has ended or is ending by itself; status says why */
    cairn_status (*work)(struct cairn__replica *r); /* NULL = end the thread */
    cairn_status status;
    char why[CAIRN__REPLICA_WHY];
};

struct cairn_data_parallel {
    cairn_module *model;
    cairn_env *env;
    cairn_param_set *set;
    struct cairn_data_parallel_options options; /* amp and device_ids are NULL */
    const struct amp_options *amp;              /* of the options; during create only */
    int num_replicas;
    struct cairn__replica *replicas; /* [num_replicas] */

    pthread_t spawner; /* runs cairn_spawn_threads */
    bool has_spawner;
    atomic_bool has_ended;        /* cairn_spawn_threads has returned, */
    char why[CAIRN__REPLICA_WHY]; /* with this error; "" = none */

    pthread_mutex_t lock; /* of threads that sleep */
    pthread_cond_t changed;

    /* Forwards whose backward may still come, all of one step (number: cairn__results_number). */
    struct cairn__scattered **forwards;
    size_t num_forwards, capacity;
    uint64_t number;

    double *losses; /* [num_replicas + 1] on the device, if forward returns losses: each times its rows; the mean */
    struct cairn__replica_slot *slots; /* [parameters] sum.c's */
    struct cairn__item *items;         /* [parameters] */
    struct cairn__replica_room sums;

    /* The arguments of the running job. */
    struct cairn__scattered *forward;
    const char *dy; /* the gradient of the forward's result */
    bool retains;
    const struct cairn__loss_scale *scale;
};

static inline bool cairn__replicas_return_losses(const struct cairn_data_parallel *dp) {
    return dp->options.forward_returns_loss == CAIRN_ON;
}

/* ---- team.c ---- */

/* start: starts the replicas' threads; returns when all replicas are ready. stop: ends and joins the threads. */
cairn_status cairn__team_start(struct cairn_data_parallel *dp);
void cairn__team_stop(struct cairn_data_parallel *dp);

/* Runs work on each of the first `used` replicas concurrently, and returns when all have finished. Returns the status
 * of the first replica that failed, with its sentence. */
cairn_status cairn__team_run(struct cairn_data_parallel *dp, int used, cairn_status (*work)(struct cairn__replica *r));

/* Before and after a job on GPUs. go: work that the first `used` replicas queue runs after all work queued on the
 * model's GPU so far. come_back: work queued on the model's GPU from now on runs after the replicas' work. */
cairn_status cairn__team_go(const struct cairn_data_parallel *dp, int used);
cairn_status cairn__team_come_back(const struct cairn_data_parallel *dp, int used);

/* Wakes the threads in cairn__team_await, which test their condition again. */
void cairn__team_tell(struct cairn_data_parallel *dp);

/* Returns once is(what) holds: polls for a while, then sleeps. */
void cairn__team_await(struct cairn_data_parallel *dp, bool (*is)(const void *what), const void *what);

/* ---- replica.c ---- */

/* The main function of a replica's thread, for cairn_spawn_threads. */
int cairn__replica_run(int rank, void *dp);

/* Destroys the replica's objects, also those left by a thread that ended early. */
void cairn__replica_end(struct cairn__replica *r);

/* Jobs for cairn__team_run: a forward, and its backward. */
cairn_status cairn__replica_forward(struct cairn__replica *r);
cairn_status cairn__replica_backward(struct cairn__replica *r);

/* Copies all buffers between modules of the same structure; d does the copies. */
cairn_status cairn__copy_buffers(struct cairn_device *d, const cairn_module *from, const cairn_module *to);

/* Bytes of `arrived` that the gradients of a backward need. */
size_t cairn__replica_grad_nbytes(const struct cairn__replica *r, const struct cairn__scattered *f);

/* leave: the outputs have been gathered, and their values are not read again. forget: no backward will come. The
 * program's thread calls both, while the replicas wait. */
void cairn__replica_leave(struct cairn__replica *r, struct cairn__scattered_part *part);
void cairn__replica_forget(const struct cairn__scattered *f, struct cairn__scattered_part *part);

/* ---- scatter.c ---- */

/* Ends all forwards of dp. */
void cairn__scattered_end(struct cairn_data_parallel *dp);

/* ---- sum.c ---- */

/* Where a parameter's gradients are summed. */
struct cairn__replica_slot {
    void *to;   /* the gradient, in the parameter's type; NULL = not wanted */
    float *sum; /* the sum in f32; `to` itself if that is f32 */
};

/* Writes the sum of parameter i's gradients over the replicas of a forward to dp->slots[i].to: accumulated in f32 in
 * replica order, rounded once; zeros if no replica has a gradient. */
cairn_status cairn__replicas_sum(struct cairn_data_parallel *dp, const struct cairn__scattered *f);

/* Makes room at least nbytes large; a larger one replaces it, without its contents. */
cairn_status cairn__replica_room(struct cairn_device *d, struct cairn__replica_room *room, size_t nbytes);

#endif
