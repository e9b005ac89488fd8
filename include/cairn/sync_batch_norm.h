/* Synchronised batch normalisation: the statistics are those of the whole batch, of which each rank has a share.
 * Compare torch.nn.SyncBatchNorm and apex.parallel.SyncBatchNorm.
 *
 *     y = (x - mean) / sqrt(var + eps) * weight + bias
 *
 * Shares    may have unequal sizes, including 0 rows: a rank's statistics are weighted by its number of values per
 *           channel. All sizes may differ except the number of channels. A rank that has run out of inputs continues
 *           with 0 rows.
 * Numbers   mean, variance and sums over all ranks are computed in f64 from each rank's own (in f32; f64 for f64
 *           inputs), in rank order, with the same bits on every rank. running_var uses the variance with n - 1, n
 *           counted over all ranks. Gradients of weight and bias are those of the rank's own share: ddp averages them
 *           like any other.
 * Messages  in training, one all-gather of 2 C + 1 f64 in forward and, where x requires a gradient, one all-reduce of
 *           as many in backward. Both are waited for, on GPUs by the GPU and not by the host. In evaluation none. A
 *           group of one rank sends nothing and gives the same bits as cairn_batch_norm.
 * Order     in training every rank must run the same synchronised layers in the same order, forward and backward. A
 *           checkpointed layer repeats its forward during backward, including messages.
 * Channel   layers use a channel of their own (cairn_group_new), separate from ddp's buckets. All layers over the same
 *           ranks share one, which ends with the last of them.
 * Failures  if a rank dies, or its input has another number of channels, the other ranks get an error from the forward
 *           (NULL) or the backward, within the times of dist.h. If all ranks together have one value per channel, every
 *           rank gets CAIRN_EINVAL; if they have none, there is no error and statistics do not change.
 * Devices   all. On a GPU, if this rank has at most one value per channel the host waits, since all ranks together may
 *           have too few; such a step cannot be recorded.
 * Not here  apex's fuse_relu and z (call cairn_relu and cairn_add after the layer), and channel_last: dimension 1 is
 *           the channel.
 * Threads   as groups: one caller at a time for all groups of an environment. */
#ifndef CAIRN_SYNC_BATCH_NORM_H
#define CAIRN_SYNC_BATCH_NORM_H

#include "core.h"
#include "dist.h"
#include "nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A layer for inputs [N, C, ...], with the parameters, buffers and names of a cairn_batch_norm.
 *
 *   eps, momentum   0 = 1e-5 and 0.1
 *   group           the ranks whose shares form the batch; NULL = the environment's. It may be destroyed before the
 *                   layer
 *
 * Collective over the group. Returns NULL on error: CAIRN_EINVAL, also for a group of another environment; CAIRN_EPEER
 * ranks that differ in channels, with both values, or a rank that failed or died; CAIRN_ETIMEOUT; CAIRN_ENOMEM. */
CAIRN_API cairn_module *ddp_sync_batch_norm(cairn_env *env, int64_t channels, double eps, double momentum,
                                            cairn_group *group);

/* Synchronises every batch normalisation layer of the tree, including model itself, over the group. Layers keep their
 * parameters, buffers, names, handles and training mode. Call it before or after amp_initialize and ddp_create. Layers
 * that are already synchronised over the same ranks are left unchanged. Calls of cairn_batch_norm_forward in a user's
 * own module are not layers: replace them by ddp_sync_batch_norm_forward.
 *
 *   group   as above
 *   found   out: the number of layers that are now synchronised, 0 is no error; may be NULL
 *
 * Collective over the group; on error no layer is converted. Errors: as above; CAIRN_ESTATE a layer is already
 * synchronised over other ranks; CAIRN_EPEER also if ranks differ in the number of layers.
 * torch.nn.SyncBatchNorm.convert_sync_batchnorm, apex.parallel.convert_syncbn_model */
CAIRN_API cairn_status ddp_convert_sync_batchnorm(cairn_module *model, cairn_group *group, int *found);

/* cairn_batch_norm_forward with statistics over all ranks of a channel.
 *
 *   channel   a group that is used for nothing else between forward and backward, such as one from
 *             cairn_group_new(group, NULL, 0, NULL, &channel); it must outlive the backward
 *
 * Errors: as cairn_batch_norm_forward; CAIRN_EINVAL the channel is NULL, or all ranks together have one value per
 * channel; CAIRN_EPEER; CAIRN_ETIMEOUT. */
CAIRN_API cairn_tensor *ddp_sync_batch_norm_forward(cairn_tensor *x, cairn_tensor *running_mean,
                                                    cairn_tensor *running_var, cairn_tensor *weight, cairn_tensor *bias,
                                                    int training, double momentum, double eps, cairn_group *channel);

/* Divides a group into blocks of group_size neighbouring ranks and returns this rank's block, for statistics over a few
 * ranks, such as the GPUs of one machine.
 *
 *   group_size   must divide the group's size; 0 = all ranks
 *   out          destroy it with cairn_group_destroy at any time after the layers over it have been made
 *
 * Collective over the group. Errors: CAIRN_EINVAL; CAIRN_EPEER also if ranks pass different sizes; CAIRN_ETIMEOUT;
 * CAIRN_ENOMEM; CAIRN_ESYSTEM. apex.parallel.create_syncbn_process_group */
CAIRN_API cairn_status ddp_create_syncbn_process_group(cairn_group *group, int group_size, cairn_group **out);

#ifdef __cplusplus
}
#endif

#endif
