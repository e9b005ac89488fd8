/* Batch normalisation over ranks: statistics of the whole batch, of which each rank has a share. What
 * torch.nn.SyncBatchNorm and apex.parallel.SyncBatchNorm offer.
 *
 *     y = (x - mean) / sqrt(var + eps) * weight + bias
 *
 * Shares    may have unequal sizes, 0 rows among them: ranks are merged by how many values a channel has on each. All
 *           sizes may differ but the channels. A rank whose input has run out goes on with 0 rows.
 * Numbers   mean, variance and sums over all ranks are formed in f64 from each rank's in R (f32; f64 for f64 inputs),
 *           in rank order, and every rank has the same bits. running_var goes towards the variance over n - 1, n of all
 *           ranks. Gradients of weight and bias are of the rank's own share: ddp averages them like any other.
 * Messages  in training one all-gather of 2 C + 1 f64 in forward, and one all-reduce of as many in backward, where x
 *           requires a gradient; both are waited for, on GPUs by the GPU and not the host. In evaluation none. A group
 *           of one rank sends nothing and is cairn_batch_norm to the bit.
 * Order     in training every rank runs the same synchronised layers in the same order, forward and backward. A
 *           checkpoint runs its forward once more in backward, messages included.
 * Channel   layers have a channel of their own of the group (cairn_group_new), so that they keep clear of ddp's
 *           buckets; all layers over the same ranks share one, which ends with the last of them.
 * Failures  a rank that dies, or whose input has other channels, is an error of the forward (NULL) or the backward on
 *           the others, when dist.h says. One value a channel on all ranks together is CAIRN_EINVAL on every rank; none
 *           is no error and changes no statistics.
 * Devices   all. On a GPU a share of at most one value a channel makes the host wait, since all together may have too
 *           few, and such a step cannot be recorded.
 * Not here  apex's fuse_relu and z, which are cairn_relu and cairn_add after it, and channel_last: dimension 1 is the
 *           channel.
 * Threads   as groups: one caller at a time for all groups of an environment. */
#ifndef CAIRN_SYNC_BATCH_NORM_H
#define CAIRN_SYNC_BATCH_NORM_H

#include "core.h"
#include "dist.h"
#include "nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A layer [N, C, ...] as cairn_batch_norm makes it: the same parameters, buffers and their names.
 *
 *   eps, momentum   0 = 1e-5 and 0.1
 *   group           the ranks whose shares are one batch; NULL = the environment's. It may end before the layer
 *
 * Collective over the group. NULL on error: CAIRN_EINVAL, also for a group of another environment; CAIRN_EPEER ranks
 * that differ in channels, with both values, or a rank that failed or died; CAIRN_ETIMEOUT; CAIRN_ENOMEM. */
CAIRN_API cairn_module *ddp_sync_batch_norm(cairn_env *env, int64_t channels, double eps, double momentum,
                                            cairn_group *group);

/* Every batch normalisation of the tree, the model itself included, is synchronised over the group from here on, and
 * keeps its parameters, buffers, names, handles and training state. It can come before or after amp_initialize and
 * ddp_create. Layers that are synchronised over the same ranks already stay as they are. What a user's own module
 * computes by cairn_batch_norm_forward is no layer: see ddp_sync_batch_norm_forward.
 *
 *   group   as above
 *   found   out: how many layers are synchronised now; may be NULL. 0 is no error
 *
 * Collective over the group; nothing is converted where it fails. Errors: as above; CAIRN_ESTATE a layer is
 * synchronised over other ranks already; CAIRN_EPEER also where ranks have another number of layers.
 * torch.nn.SyncBatchNorm.convert_sync_batchnorm, apex.parallel.convert_syncbn_model */
CAIRN_API cairn_status ddp_convert_sync_batchnorm(cairn_module *model, cairn_group *group, int *found);

/* cairn_batch_norm_forward over the ranks of a channel.
 *
 *   channel   a group that is used for nothing else while graphs are made and walked, as from
 *             cairn_group_new(group, NULL, 0, NULL, &channel); it outlives the backward
 *
 * Errors: as cairn_batch_norm_forward; CAIRN_EINVAL the channel is NULL, or all ranks have one value a channel
 * together; CAIRN_EPEER; CAIRN_ETIMEOUT. */
CAIRN_API cairn_tensor *ddp_sync_batch_norm_forward(cairn_tensor *x, cairn_tensor *running_mean,
                                                    cairn_tensor *running_var, cairn_tensor *weight, cairn_tensor *bias,
                                                    int training, double momentum, double eps, cairn_group *channel);

/* Cuts a group into blocks of group_size neighbouring ranks, and gives each rank its own: statistics over a few ranks,
 * as over the GPUs of one machine.
 *
 *   group_size   divides the group's size; 0 = all ranks
 *   out          ended by cairn_group_destroy, when layers have been made over it or later
 *
 * Collective over the group. Errors: CAIRN_EINVAL; CAIRN_EPEER also where ranks ask for different sizes;
 * CAIRN_ETIMEOUT; CAIRN_ENOMEM; CAIRN_ESYSTEM. apex.parallel.create_syncbn_process_group */
CAIRN_API cairn_status ddp_create_syncbn_process_group(cairn_group *group, int group_size, cairn_group **out);

#ifdef __cplusplus
}
#endif

#endif
