/* Before the first step: do all ranks have the same parameters, and then the same values. */
#ifndef CAIRN__DDP_AGREE_H
#define CAIRN__DDP_AGREE_H

#include "cairn/dist.h"
#include "param/param.h"

/* Collective. Compares each parameter's name, dtype and shape, their count, and what amp was told, over all ranks.
 * Errors: CAIRN_EPEER on every rank, with the parameter and both ranks' values. */
cairn_status cairn__ddp_agree_on_params(const struct cairn_param_set *set, cairn_group *group);

/* Collective. Rank 0's f32 values (masters, or the weights themselves) go to all; half weights are rounded from them. */
cairn_status cairn__ddp_broadcast_params(struct cairn_param_set *set, cairn_group *group);

#endif
