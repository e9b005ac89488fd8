/* Data parallelism inside one process, as torch.nn.DataParallel: each batch is split over replicas of the model, which
 * run in threads on the process's processors or GPUs. The program keeps one training loop, with one loss and one step.
 *
 *     static cairn_module *make(void *ctx, cairn_env *env, int replica) {
 *         return make_net(env); // the function that made the model, in the replica's environment
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
 * Use this to keep a single-process program. With ddp over threads (cairn_spawn_threads) each rank has a loss and a
 * step of its own; that also scales to several processes.
 *
 * Batches     Inputs are split along dimension 0 as by torch.chunk: ceil(rows / replicas) rows each, fewer at the end.
 *             Replicas that get no rows are idle. Outputs are concatenated along dimension 0.
 * Gradients   are those of the whole batch: each is the sum over the replicas, accumulated in f32 in replica order and
 *             rounded once to the gradient's type. The model receives it as from any operation, so amp, clipping and
 *             accumulation over several backwards work as without replicas. Inputs get gradients too. A parameter that
 *             no replica's output depends on gets none.
 * GPUs        If the model is on a GPU, replicas run on the GPUs that this process sees (device_ids). Inputs, outputs
 *             and gradients are copied from GPU to GPU, peer to peer where the machine supports it, and gradients are
 *             summed on the model's GPU. Events order the GPUs: the host waits only until the threads have queued their
 *             work, never for a GPU. An error that a GPU detects late (an index outside an embedding's table) is
 *             returned by a later call. The model's GPU holds a buffer for the gradients of each replica on another
 *             GPU, and for half gradients one for their f32 sums.
 * Weights     are shared on the CPU and on the model's GPU: replicas there read the model's own memory. Every other GPU
 *             has a copy, which only the first forward after a change (a step, cairn_param_changed) refreshes:
 *             accumulation and evaluation transfer no weights. torch sends all weights before every forward.
 * Buffers     are copied from the model to all replicas before each forward. The first replica's buffers (running
 *             statistics of the first rows) are copied back to the model, as in torch.
 * Following   Each forward picks up changes to the model: weights (cairn_param_changed), the training or evaluation
 *             mode of each module, frozen parameters, cairn_manual_seed. amp_autocast scopes and cairn_detect_anomaly
 *             belong to an environment and are not picked up: use them inside the forward function.
 * Dropout     Replica i draws the random numbers that rank i under ddp would draw. They continue the stream of the
 *             model's environment, so its checkpoint covers them.
 * batch_norm  normalises each replica's rows by their own statistics, as in torch; SyncBatchNorm needs ddp.
 * Failures    A failure in a replica is returned by the forward or backward, with the replica's number; the next call
 *             may succeed again.
 * Threads     Each replica has a thread, and all of them call the user's functions concurrently: state shared through
 *             ctx must be read-only or locked. The program's thread waits meanwhile; only that thread may use the
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
 * once by each replica's thread. The values of its weights do not matter. The replica is destroyed with the
 * cairn_data_parallel. Returns NULL on failure, with the last error set. */
typedef cairn_module *(*cairn_replica_make_fn)(void *ctx, cairn_env *env, int replica);

/* The forward of one replica, for programs that need more than cairn_module_forward_n(module, inputs, count): several
 * modules, or the loss. inputs [count] are this replica's rows. Returns NULL on failure, with the last error set. */
typedef cairn_tensor *(*cairn_replica_forward_fn)(void *ctx, cairn_module *module, cairn_tensor *const *inputs,
                                                  int count, int replica);

struct cairn_data_parallel_options {
    size_t struct_size;
    int num_replicas;                 /* 0 = one per processor that this process may use; on GPUs, one per GPU */
    int num_threads;                  /* per replica, as in cairn_spawn_threads_options */
    cairn_replica_make_fn make;       /* required */
    cairn_replica_forward_fn forward; /* NULL = cairn_module_forward_n */
    void *ctx;                        /* passed to make and forward; the caller's */
    /* The options passed to amp_initialize for the model; NULL = it was not called. Read during the call. */
    const struct amp_options *amp;
    /* ON: forward returns a loss, one element, the mean over its rows; cairn_data_parallel_forward returns the mean
     * over the batch, in which each replica's loss is weighted by its rows. Outputs are then not gathered, which
     * balances memory and work.
     * OFF: outputs are concatenated; those without dimensions become [replicas that had rows], as in torch. */
    cairn_switch forward_returns_loss;

    /* [num_replicas] The GPU of each replica, numbered as this process sees them; the first must be the model's. A GPU
     * that is listed k times runs k replicas. NULL = the model's GPU, then the others in order. Must be NULL on the
     * CPU. Read during the call. torch's device_ids. */
    const int *device_ids;
};
#define cairn_data_parallel_options(...) \
    (&(struct cairn_data_parallel_options){.struct_size = sizeof(struct cairn_data_parallel_options), __VA_ARGS__})

/* Starts the replicas of a model.
 *
 *   model    a root, after amp_initialize; stays the caller's. Its types and masters may not change from now on
 *   out      must be destroyed before model
 *
 * Errors: CAIRN_EINVAL, also for GPUs that do not exist, for GPUs with a model on the CPU, and for a replica that
 * differs from the model, with the name of what differs; CAIRN_ENOTSUP an environment of several ranks, a model with an
 * amp_sequential; the errors of make, of cairn_env_create (for a replica, on its device) and of cairn_spawn_threads. */
CAIRN_API cairn_status cairn_data_parallel_create(cairn_module *model,
                                                  const struct cairn_data_parallel_options *options,
                                                  cairn_data_parallel **out);

/* Ends the replicas and their threads, and the results of the model's environment, as cairn_zero_grad does. NULL is
 * fine. */
CAIRN_API void cairn_data_parallel_destroy(cairn_data_parallel **dp);

/* Forward of x [rows, ...], or of several inputs with equal numbers of rows. The backward of the result runs the
 * replicas' backwards concurrently. Under no_grad nothing is recorded. Inputs are not copied and must stay unchanged
 * until the backward. All inputs but the first may be NULL; replicas then get NULL.
 * Returns NULL on error: CAIRN_EINVAL; CAIRN_ESTATE a graph is being recorded; an error of a replica, with its
 * number. */
CAIRN_API cairn_tensor *cairn_data_parallel_forward(cairn_data_parallel *dp, cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_data_parallel_forward_n(cairn_data_parallel *dp, cairn_tensor *const *inputs, int count);

CAIRN_API int cairn_data_parallel_num_replicas(const cairn_data_parallel *dp); /* 0 for NULL */

#ifdef __cplusplus
}
#endif

#endif
