/* Data parallelism in one program: each batch is cut over replicas of a model, threads of this process on its
 * processors or its GPUs, and the program goes on with one loss and one step, as with torch.nn.DataParallel.
 *
 *     static cairn_module *make(void *ctx, cairn_env *env, int replica) {
 *         return make_net(env); // what made the model, for another environment
 *     }
 *     ...
 *     CAIRN_CHECK(amp_initialize(env, net, optimizer, &level, &amp));
 *     CAIRN_CHECK(cairn_data_parallel_create(net, cairn_data_parallel_options(.num_replicas = 2, .make = make,
 *                                                                             .amp = &level), &replicas));
 *     for (...) {
 *         cairn_zero_grad(optimizer);
 *         cairn_tensor *loss = cairn_mse_loss(cairn_data_parallel_forward(replicas, x), y);
 *         CAIRN_CHECK(amp_backward(amp, loss, optimizer));
 *         CAIRN_CHECK(cairn_step(optimizer));
 *     }
 *
 * This is for a program that is to stay one. With ddp over threads (cairn_spawn_threads) every rank has a loss and a
 * step of its own; that is for several processes too.
 *
 * Batches     Inputs are cut along dimension 0 as torch.chunk cuts: ceil(rows / replicas) rows each, fewer at the end.
 *             Replicas for which none are left do nothing. Outputs are put together along dimension 0.
 * Gradients   are those of the whole batch in one piece: each is the sum over the replicas, added up in f32 in their
 *             order and rounded once to the gradient's type; it comes to the model as from any operation, so that amp,
 *             clipping and accumulation over several backwards are as without replicas. Gradients of inputs come too.
 *             Parameters that no replica's output depends on have none.
 * GPUs        Where the model is on a GPU its replicas are on GPUs that this process sees (device_ids). Inputs,
 *             outputs and gradients are copied from GPU to GPU, directly where the machine can, and added up on the
 *             model's. Events order the GPUs; the host waits for threads, which queue work, and for no GPU. What a GPU
 *             finds late (an index outside of an embedding's table) a later call returns. The model's GPU has room for
 *             the gradients of each replica on another, and with half ones for their f32 sums.
 * Weights     are shared on the CPU, and on the model's GPU: replicas read the model's own memory. Another GPU has
 *             copies, sent by the first forward after they have changed (a step, cairn_param_changed), and by no other:
 *             accumulation and evaluation send nothing. torch sends all weights before every forward.
 * Buffers     are those of the model, copied to all replicas before a forward; what the first replica makes of its own
 *             (running statistics of the first rows) comes back to the model. As torch's.
 * Following   A forward finds what the program has changed in the model: weights (cairn_param_changed), training or
 *             evaluation of each module, frozen parameters, cairn_manual_seed. Not amp_autocast scopes and
 *             cairn_detect_anomaly, which are the environment's: they belong into the forward function.
 * Dropout     Replica i draws the numbers that rank i of ddp would. They go on from those of the model's environment,
 *             whose checkpoint so holds them.
 * batch_norm  normalises each replica's rows by their own statistics, as torch's does; SyncBatchNorm is ddp's.
 * Failures    What fails in a replica is returned by the forward or backward, with its number; the next one goes on.
 * Threads     The user's functions are called by several threads at once, a thread a replica. What they share (their
 *             ctx) they read, or guard. The program's thread waits meanwhile; it is the only one that may use the
 *             model's environment.
 * Source      torch/nn/parallel/data_parallel.py (PyTorch 1.13 to 2.x). */
#ifndef CAIRN_DATA_PARALLEL_H
#define CAIRN_DATA_PARALLEL_H

#include "amp.h"
#include "core.h"
#include "nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_data_parallel cairn_data_parallel;

/* Makes a replica of the model in env: a root with the same modules, parameters and buffers, in the same order. Called
 * once for each, by its thread. What its weights are does not matter. It is ended with the replica. NULL: it failed,
 * with the last error. */
typedef cairn_module *(*cairn_replica_make_fn)(void *ctx, cairn_env *env, int replica);

/* The forward of one replica, where it is more than cairn_module_forward_n(module, inputs, count): of several modules,
 * or with the loss. inputs [count] are the rows of this replica. NULL: it failed, with the last error. */
typedef cairn_tensor *(*cairn_replica_forward_fn)(void *ctx, cairn_module *module, cairn_tensor *const *inputs,
                                                  int count, int replica);

struct cairn_data_parallel_options {
    size_t struct_size;
    int num_replicas;                 /* 0 = one for each processor that this process may use; on GPUs, for each GPU */
    int num_threads;                  /* of each replica, as in cairn_spawn_threads_options */
    cairn_replica_make_fn make;       /* required */
    cairn_replica_forward_fn forward; /* NULL = cairn_module_forward_n */
    void *ctx;                        /* of both; the caller's */
    /* What amp_initialize was given for the model; NULL = it was not called. Read during the call. */
    const struct amp_options *amp;
    /* ON: forward returns a loss, one element, the mean over its rows; cairn_data_parallel_forward returns the mean
     * over the batch, to which each counts by its rows. So outputs need not come together, which balances memory and
     * work.
     * OFF: outputs are put together; those without dimensions become [replicas that had rows], as torch's. */
    cairn_switch forward_returns_loss;

    /* [num_replicas] The replicas' GPUs, by the numbers that this process sees; the first is the model's. NULL = the
     * model's, then the others in their order. One that stands there several times has as many replicas. On the CPU:
     * NULL. Read during the call. torch's device_ids. */
    const int *device_ids;
};
#define cairn_data_parallel_options(...) \
    (&(struct cairn_data_parallel_options){.struct_size = sizeof(struct cairn_data_parallel_options), __VA_ARGS__})

/* Starts the replicas of a model.
 *
 *   model    a root, after amp_initialize; it stays the caller's. Types and masters may not change from now on
 *   out      ends before model
 *
 * Errors: CAIRN_EINVAL, also GPUs that are not there and GPUs for a model on the CPU, and a replica that is unlike the
 * model, with the name of what differs; CAIRN_ENOTSUP an environment of several ranks, a model with an amp_sequential;
 * what make's calls and cairn_env_create (a replica's, on its device) returned; cairn_spawn_threads's. */
CAIRN_API cairn_status cairn_data_parallel_create(cairn_module *model,
                                                  const struct cairn_data_parallel_options *options,
                                                  cairn_data_parallel **out);

/* Ends replicas and threads. Results of the model's environment are gone then, as after cairn_zero_grad. NULL is
 * fine. */
CAIRN_API void cairn_data_parallel_destroy(cairn_data_parallel **dp);

/* Forward of x [rows, ...], or of several inputs of as many rows: a result, whose backward runs the replicas' at the
 * same time. Under no_grad nothing is recorded. Inputs stay unchanged until the backward, and are not copied. All but
 * the first may be NULL, which replicas get.
 * NULL on error: CAIRN_EINVAL; CAIRN_ESTATE a graph is being recorded; a replica's own, with its
 * number. */
CAIRN_API cairn_tensor *cairn_data_parallel_forward(cairn_data_parallel *dp, cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_data_parallel_forward_n(cairn_data_parallel *dp, cairn_tensor *const *inputs, int count);

CAIRN_API int cairn_data_parallel_num_replicas(const cairn_data_parallel *dp); /* 0 for NULL */

#ifdef __cplusplus
}
#endif

#endif
