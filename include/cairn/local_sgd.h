/* Post-local SGD: after some steps with averaged gradients, every rank (or every machine) trains on its own, and the
 * ranks average their weights periodically. torch's post_localSGD_hook, PeriodicModelAverager and
 * PostLocalSGDOptimizer:
 *
 *     CHECK(ddp_post_local_sgd_register(net, ddp_post_local_sgd_options(.start_localSGD_iter = 500)));
 *     for (int64_t step = 0; step < total; step++) {
 *         ...
 *         CHECK(cairn_step(opt));
 *         CHECK(ddp_weights_average(net, step, ddp_weights_average_options(.period = 8, .warmup_steps = 500)));
 *     }
 *
 * Moments stay local to each rank, as in torch. Once training is local, so do loss scales and skipped steps: a rank
 * skips a step if the gradient that it applies, its own or its subgroup's average, overflows, and the default log shows
 * only the skips of rank 0. If the loss of any rank is not finite, all ranks skip. Weights are averaged regardless,
 * since they are unscaled. From the first local backward on, the set's state counts as each rank's own, as under
 * ddp_no_sync (ddp.h).
 * Source: Lin, Stich, Patel, Jaggi, Don't Use Large Mini-Batches, Use Local SGD (arXiv 1808.07217);
 * torch/distributed/algorithms/ddp_comm_hooks/post_localSGD_hook.py, model_averaging/averagers.py. */
#ifndef CAIRN_LOCAL_SGD_H
#define CAIRN_LOCAL_SGD_H

#include "ddp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each comment describes the field below it. */
struct ddp_post_local_sgd_options {
    size_t struct_size;
    /* The number of backwards whose gradients all ranks average, at least 1. 0 = 100 */
    int64_t start_localSGD_iter;
    /* This rank's group of cairn_group_split, such as the ranks of its machine: later gradients are averaged over it.
     * The context makes its own channel of these ranks. NULL = later gradients are not averaged (torch:
     * post_local_gradient_allreduce=False) */
    cairn_group *subgroup;
};
#define ddp_post_local_sgd_options(...) \
    (&(struct ddp_post_local_sgd_options){.struct_size = sizeof(struct ddp_post_local_sgd_options), __VA_ARGS__})

/* Makes post-local SGD the context's communication hook (ddp_register_comm_hook: once, before the first backward).
 * ddp_stateful includes the number of backwards, so a training loaded from a checkpoint continues where it was. With a
 * subgroup, gradients are averaged over its ranks, whatever the options of ddp_join; without one, each rank keeps its
 * own gradients.
 *
 *   options  NULL = all defaults; the same on every rank, except that each passes its own subgroup
 *
 * Collective. Errors: as ddp_register_comm_hook; CAIRN_EINVAL an option, with its value; CAIRN_EPEER options differ. */
CAIRN_API cairn_status ddp_post_local_sgd_register(ddp_context *ddp, const struct ddp_post_local_sgd_options *options);

/* Each comment describes the field below it. */
struct ddp_weights_average_options {
    size_t struct_size;
    /* Weights are averaged in steps warmup_steps, warmup_steps + period, ...; 0 = 1 */
    int64_t period;
    int64_t warmup_steps;
    /* The ranks to average over; every rank of the group must call. NULL = all ranks of the context. Two calls, one
     * over the ranks of a machine with a short period and one over all ranks with a long one, are torch's
     * HierarchicalModelAverager. */
    cairn_group *group;
};
#define ddp_weights_average_options(...) \
    (&(struct ddp_weights_average_options){.struct_size = sizeof(struct ddp_weights_average_options), __VA_ARGS__})

/* Call it after each step. It sets the context's parameters that require a gradient to their average over the group:
 * masters and f32 weights in f32, from which half weights are rounded; half weights without masters are summed in f32
 * and rounded once. Sums are in rank order and divided once, so all ranks get the same bits. Ignored parameters,
 * moments and buffers are left unchanged.
 *
 *   step     counted by the caller, from 0; the same on every rank of the group
 *
 * Collective in steps that average, and when step or options are invalid. Errors: CAIRN_ESTATE while a graph is being
 * recorded. An error that only one rank has changes nothing; in a step that averages, the other ranks return
 * CAIRN_EPEER with that rank's message; in any other step, that rank waits in vain for the others (CAIRN_ETIMEOUT).
 * These errors are: CAIRN_EINVAL; CAIRN_ESTATE within a backward, while the model has its averages applied
 * (averages.h), or with shard_optimizer, where weights are equal anyway; CAIRN_ENOMEM. Any later failure ends the group
 * on every rank and leaves the weights undefined: CAIRN_ENOMEM, CAIRN_EPEER, CAIRN_ETIMEOUT.
 * Cost: an all-reduce of each parameter. */
CAIRN_API cairn_status ddp_weights_average(ddp_context *ddp, int64_t step,
                                           const struct ddp_weights_average_options *options);

#ifdef __cplusplus
}
#endif

#endif
