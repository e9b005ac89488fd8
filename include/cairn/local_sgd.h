/* Post-local SGD: after some steps with averaged gradients every rank, or every machine, goes its own way, and weights
 * are averaged now and then. torch's post_localSGD_hook, PeriodicModelAverager and PostLocalSGDOptimizer:
 *
 *     CHECK(ddp_post_local_sgd_register(net, ddp_post_local_sgd_options(.start_localSGD_iter = 500)));
 *     for (int64_t step = 0; step < total; step++) {
 *         ...
 *         CHECK(cairn_step(opt));
 *         CHECK(ddp_weights_average(net, step, ddp_weights_average_options(.period = 8, .warmup_steps = 500)));
 *     }
 *
 * Moments stay each rank's own, as in torch. So do loss scales and skipped steps from then on: a rank skips a step for
 * an overflow in what it has averaged, alone or with its subgroup, and logs it itself only on rank 0; all ranks skip
 * for a loss of any rank that is not finite. Weights average all the same, since they are unscaled. The set's state
 * counts as each rank's own from the first local backward on, as under ddp_no_sync (ddp.h).
 * Source: Lin, Stich, Patel, Jaggi, Don't Use Large Mini-Batches, Use Local SGD (arXiv 1808.07217);
 * torch/distributed/algorithms/ddp_comm_hooks/post_localSGD_hook.py, model_averaging/averagers.py. */
#ifndef CAIRN_LOCAL_SGD_H
#define CAIRN_LOCAL_SGD_H

#include "ddp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A comment is of the field below it. */
struct ddp_post_local_sgd_options {
    size_t struct_size;
    /* Backwards that all ranks average, at least 1. 0 = 100 */
    int64_t start_localSGD_iter;
    /* Of the ranks among which later ones are averaged, such as those of a machine: this rank's of cairn_group_split.
     * The context makes a channel of its own of it. NULL = none are averaged (torch:
     * post_local_gradient_allreduce=False) */
    cairn_group *subgroup;
};
#define ddp_post_local_sgd_options(...) \
    (&(struct ddp_post_local_sgd_options){.struct_size = sizeof(struct ddp_post_local_sgd_options), __VA_ARGS__})

/* The communication hook of the context from now on (ddp_register_comm_hook: once, before the first backward).
 * ddp_stateful has the number of backwards, so that a training that is loaded goes on where it was.
 * With a subgroup averages are over its ranks, whatever the options of ddp_join; without, a gradient is what this rank
 * has.
 *
 *   options  NULL = all defaults; the same on every rank, but that each has its own subgroup
 *
 * Collective. Errors: as ddp_register_comm_hook; CAIRN_EINVAL an option, with its value; CAIRN_EPEER options differ. */
CAIRN_API cairn_status ddp_post_local_sgd_register(ddp_context *ddp, const struct ddp_post_local_sgd_options *options);

/* A comment is of the field below it. */
struct ddp_weights_average_options {
    size_t struct_size;
    /* Weights are averaged in steps warmup_steps, warmup_steps + period, ...; 0 = 1 */
    int64_t period;
    int64_t warmup_steps;
    /* The ranks among which; every rank of it calls. NULL = all of the context. Two calls, of a machine's ranks with a
     * short period and of all with a long one, are torch's HierarchicalModelAverager. */
    cairn_group *group;
};
#define ddp_weights_average_options(...) \
    (&(struct ddp_weights_average_options){.struct_size = sizeof(struct ddp_weights_average_options), __VA_ARGS__})

/* Behind a step: the parameters of the context that require a gradient get the average of the group's: masters and
 * f32 weights in f32, from which half weights are rounded; half weights without masters are averaged in f32 and rounded
 * once. A sum in rank order, divided once: the same bits on all ranks. Ignored parameters, moments and buffers stay as
 * they are.
 *
 *   step     counted by the caller, from 0; the same on every rank of the group
 *
 * Collective in the steps in which it averages, and where step or options are refused. Errors: CAIRN_ESTATE while a
 * graph is being recorded. What one rank is refused alone in a step that averages fails with its sentence (CAIRN_EPEER)
 * on the others, and changes nothing; in other steps it waits for them in vain (CAIRN_ETIMEOUT). These are:
 * CAIRN_EINVAL; CAIRN_ESTATE within a backward, while averages stand in the weights' place, or with shard_optimizer,
 * where weights are equal anyway; CAIRN_ENOMEM. Whatever fails later ends the group on every rank, with weights
 * undefined: CAIRN_ENOMEM, CAIRN_EPEER, CAIRN_ETIMEOUT.
 * Cost: an all-reduce of each parameter. */
CAIRN_API cairn_status ddp_weights_average(ddp_context *ddp, int64_t step,
                                           const struct ddp_weights_average_options *options);

#ifdef __cplusplus
}
#endif

#endif
