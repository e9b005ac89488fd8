/* Before the first step: do all ranks have the same parameters, and then the same values. */
#ifndef CAIRN__DDP_AGREE_H
#define CAIRN__DDP_AGREE_H

#include "cairn/dist.h"
#include "nn/hooks.h"
#include "param/param.h"

/* Collective. Compares name, dtype and shape of each parameter and buffer, their count, and what amp was told, over all
 * ranks. Errors: CAIRN_EPEER on every rank, with the parameter and both ranks' values. */
cairn_status cairn__ddp_agree(const cairn_module *model, const struct cairn_param_set *set, cairn_group *group);

/* Collective. Rank 0's f32 values (masters, or the weights themselves) go to all; half weights are rounded from them. */
cairn_status cairn__ddp_broadcast_params(struct cairn_param_set *set, cairn_group *group);

/* Collective. So do its buffers. */
cairn_status cairn__ddp_broadcast_buffers(const cairn_module *model, cairn_group *group);

#endif
