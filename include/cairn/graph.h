/* Records a whole training step once and replays it: on a GPU as a CUDA graph, with one launch for everything in it;
 * elsewhere a replay simply calls the step. Either way a replay is one step, so one program serves both.
 *
 *     static cairn_status step(void *user) {
 *         struct trainer *t = user;
 *         cairn_zero_grad(t->opt);
 *         t->loss = cairn_mse_loss(cairn_module_forward(t->model, t->x), t->y);
 *         cairn_status st = amp_backward(t->amp, t->loss, t->opt);
 *         return st == CAIRN_OK ? cairn_step(t->opt) : st;
 *     }
 *     ...
 *     CHECK(cairn_graph_capture(env, step, &trainer, &graph));
 *     for (...) {
 *         CHECK(cairn_tensor_write(trainer.x, batch, n));
 *         CHECK(cairn_graph_replay(graph));
 *     }
 */
#ifndef CAIRN_GRAPH_H
#define CAIRN_GRAPH_H

#include "core.h"
#include "env.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_graph cairn_graph;

/* One training step, or any other work in one environment that is the same on every call. */
typedef cairn_status (*cairn_graph_step)(void *user);

/* The first replays call the step, so that all its memory is allocated and its algorithms are chosen; the next one
 * records it. Only calls that return CAIRN_OK count. */
enum { CAIRN_GRAPH_WARMUP = 3 };

/* Makes a graph of step. Nothing runs yet.
 *
 *   env    the environment in which everything that step uses was made; it records one graph at a time
 *   step   begins with cairn_zero_grad and may call anything that queues work: forward, backward, cairn_step; with a
 *          scaled loss it must contain both amp_scale_loss and cairn_step. It may not read from the device
 *          (cairn_tensor_item, cairn_tensor_read), write to the device from the host (cairn_tensor_write,
 *          cairn_optimizer_set_lr), allocate device memory (leaf tensors, modules, optimizers) or call
 *          cairn_manual_seed: during recording these return CAIRN_ESTATE with a message, and the replay fails too, even
 *          if the step ignores the error. The user's own kernels are recorded if they are launched on
 *          cairn_cuda_stream(env)
 *   out    must be destroyed before env and before the modules, optimizers, contexts, leaf tensors and groups that step
 *          uses; these must keep their addresses
 *
 * A recording contains addresses, and the values of numbers passed to operations (as to cairn_mul_scalar) and to
 * clipping. Whatever changes between replays is read through an address: inputs (cairn_tensor_write between replays)
 * and the learning rate (cairn_optimizer_set_lr between replays); loss scale, counters and weights change by
 * themselves. A static scale of 1 is recorded as a value: call amp_load_state_dict with another one before making the
 * graph. A step over the user's own buffers gets its scale from amp_next_scale_device. Dropout draws in every replay
 * what a call of the step would have drawn, and random numbers drawn or saved after the replay continue from there.
 *
 * Results   of the step have memory of their own: they stay readable until the next replay (the loss, say, by
 *           cairn_tensor_item) and end with the graph. Operations outside the graph cannot use them; cairn_tensor_keep
 *           makes a copy that they can use. A replay counts as a cairn_zero_grad for results made outside the graph:
 *           results of an evaluation between two replays end with the second one.
 * Memory    an additional copy of one step's results.
 * Errors    CAIRN_EINVAL; CAIRN_ENOMEM. Threads: as the environment. Source: compare torch.cuda.CUDAGraph. */
CAIRN_API cairn_status cairn_graph_capture(cairn_env *env, cairn_graph_step step, void *user, cairn_graph **out);

/* Runs one step. Errors: what step returns; CAIRN_ESTATE step did something that cannot be recorded: this step was not
 * applied, the training state is intact, and further replays call the step without recording; CAIRN_EDEVICE;
 * CAIRN_ENUMERIC the loss scale of an earlier step is at its floor; if a group whose collectives are recorded has
 * failed, the cause of its failure: nothing was launched. */
CAIRN_API cairn_status cairn_graph_replay(cairn_graph *graph);

/* 1 once replays launch a recording; 0 while (or where) they call the step. */
CAIRN_API int cairn_graph_is_recorded(const cairn_graph *graph);

CAIRN_API void cairn_graph_destroy(cairn_graph **graph);

#ifdef __cplusplus
}
#endif

#endif
