/* Replicas of a model in threads of their own, from inside.
 *
 *   data_parallel.c   making and ending
 *   team.c            the replicas' threads: work for all, and waiting for it
 *   replica.c         a replica's thread: its environment and module, and what it does for a forward and a backward
 *   scatter.c         one forward as an operation of the model's environment
 *   sum.c             the sums of the replicas' gradients
 *
 * Memory of GPUs: a replica on the model's GPU uses the model's memory where it is, as on the CPU; one on another GPU
 * is remote and has copies. All copies between the two are queued on the replica's stream, so that memory of a replica
 * is used by one stream alone. That of the model is used by several: before a job replicas' streams wait for the
 * model's (cairn__team_go), and after it that waits for theirs (cairn__team_come_back). The host waits for threads,
 * which queue work, and for no GPU. */
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
    size_t mark; /* of cairn__inside_begin, which is to be ended where */
    bool is_inside, in_no_grad;
    bool *reached; /* [parameters] its output depends on it */
    /* Of the last backward, where the model's device reads them; NULL = there is none. */
    const void **grads;       /* [parameters] of their types */
    const void **input_grads; /* [count] f32, or f64 of inputs that are */
};

/* Memory of the model's device, at least as large as was ever needed. */
struct cairn__replica_room {
    void *data;
    size_t nbytes;
};

struct cairn__replica {
    struct cairn_data_parallel *dp;
    int index;
    int ordinal;    /* of its GPU */
    bool is_remote; /* that is not the model's */
    cairn_env *env;
    cairn_module *module;
    amp_context *amp;
    double *loss;                       /* in its device's memory; remote, where forward returns losses */
    struct cairn__replica_room arrived; /* gradients of a remote one */

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

    double *losses; /* [num_replicas + 1] in device memory, where forward returns them: each times its rows; the mean */
    struct cairn__replica_slot *slots; /* [parameters] of sum.c */
    struct cairn__item *items;         /* [parameters] */
    struct cairn__replica_room sums;

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

/* Around a job on GPUs: what the first `used` replicas queue comes after what the model's GPU has been given; and what
 * that is given next comes after it. */
cairn_status cairn__team_go(const struct cairn_data_parallel *dp, int used);
cairn_status cairn__team_come_back(const struct cairn_data_parallel *dp, int used);

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

/* Of modules that are alike, by d. */
cairn_status cairn__copy_buffers(struct cairn_device *d, const cairn_module *from, const cairn_module *to);

/* How much of `arrived` the gradients of a backward take. */
size_t cairn__replica_grad_nbytes(const struct cairn__replica *r, const struct cairn__scattered *f);

/* The forward has been put together, and its values are read no more; its backward will not come. By the program's
 * thread, while replicas wait. */
void cairn__replica_leave(struct cairn__replica *r, struct cairn__scattered_part *part);
void cairn__replica_forget(const struct cairn__scattered *f, struct cairn__scattered_part *part);

/* ---- scatter.c ---- */

/* Ends all forwards of dp. */
void cairn__scattered_end(struct cairn_data_parallel *dp);

/* ---- sum.c ---- */

/* What a parameter's gradients are summed in. */
struct cairn__replica_slot {
    void *to;   /* NULL = it is not wanted */
    float *sum; /* to itself, where that is f32 */
};

/* dp->slots[i].to = the sum of parameter i's gradients over the replicas of a forward, in their order, in f32, rounded
 * once; zeros where none has any. */
cairn_status cairn__replicas_sum(struct cairn_data_parallel *dp, const struct cairn__scattered *f);

cairn_status cairn__replica_room(struct cairn_device *d, struct cairn__replica_room *room, size_t nbytes);

#endif
