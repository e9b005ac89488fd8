/* A whole training step recorded once and replayed: on a GPU as a CUDA graph, one launch for everything in it;
 * elsewhere the step is simply run. Either way a replay is one step, so that a program is written once.
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

/* One training step, or any other work on one environment that does the same whenever it is called. */
typedef cairn_status (*cairn_graph_step)(void *user);

/* The first replays call the step, so that all its memory is allocated and its algorithms are chosen; the next records
 * it. Only those that return CAIRN_OK count. */
enum { CAIRN_GRAPH_WARMUP = 3 };

/* Makes a graph of step. Nothing is run yet.
 *
 *   env    everything that step uses was made in it; one graph at a time is recorded
 *   step   begins with cairn_zero_grad and may call whatever queues work: forward, backward, cairn_step; with a scaled
 *          loss it must contain amp_scale_loss and cairn_step. It may not read from the device (cairn_tensor_item,
 *          cairn_tensor_read), write to it from the host (cairn_tensor_write, cairn_optimizer_set_lr), allocate there
 *          (leaf tensors, modules, optimizers), nor call cairn_manual_seed: while it is recorded those fail with
 *          CAIRN_ESTATE and a message, and so does the replay, even if the step ignores it. Kernels of the user's own
 *          belong to the recording if they are launched on cairn_cuda_stream(env)
 *   out    ends before env, and before what step uses, which must stay where it is: modules, optimizers, contexts, leaf
 *          tensors, groups
 *
 * What is recorded are addresses and the numbers given to operations (cairn_mul_scalar's) and to clipping. What changes
 * from replay to replay stands behind an address: inputs (cairn_tensor_write between replays), the learning rate
 * (cairn_optimizer_set_lr between replays), scale, counters and weights by themselves. A scale that is a static 1 is
 * recorded as that: amp_load_state_dict with another one comes before the graph. Own buffers' step takes its scale by
 * amp_next_scale_device. Dropout draws in every replay what the called step would have drawn, and random numbers that
 * are drawn or saved after the replay go on from there.
 *
 * Results   The step's have memory of their own: they stay readable until the next replay (the loss, say, by
 *           cairn_tensor_item), and end with the graph. Operations beside the graph cannot take them; cairn_tensor_keep
 *           makes a copy that they can. A replay begins a step for what runs beside it too: results of an evaluation
 *           between two replays end with the second, as if it had called cairn_zero_grad.
 * Memory    that of one step's results more.
 * Errors    CAIRN_EINVAL; CAIRN_ENOMEM. Threads: as the environment. Source: compare torch.cuda.CUDAGraph. */
CAIRN_API cairn_status cairn_graph_capture(cairn_env *env, cairn_graph_step step, void *user, cairn_graph **out);

/* One step. Errors: what step returns; CAIRN_ESTATE step did something that cannot be recorded: that step was not
 * taken, the training is unharmed, and further replays run the step as it is; CAIRN_EDEVICE; CAIRN_ENUMERIC the loss
 * scale of an earlier step is at its floor; the cause of a group that has failed and whose collectives are recorded:
 * nothing was launched. */
CAIRN_API cairn_status cairn_graph_replay(cairn_graph *graph);

/* 1 once replays are launches of a recording; 0 while (or where) they call the step. */
CAIRN_API int cairn_graph_is_recorded(const cairn_graph *graph);

CAIRN_API void cairn_graph_destroy(cairn_graph **graph);

#ifdef __cplusplus
}
#endif

#endif
