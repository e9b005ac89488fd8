/* What has state that a training needs to go on: a handle that cairn_state_add takes (state.h).
 *
 * cairn_module_stateful, cairn_param_set_stateful, cairn_optimizer_stateful, amp_stateful, amp_scaler_stateful,
 * cairn_sampler_stateful and ddp_stateful make one. It is a pair of pointers and owns nothing: the object must outlive
 * its use. NULL gives a handle that cairn_state_add refuses, with the cause of the NULL. */
#ifndef CAIRN_STATEFUL_H
#define CAIRN_STATEFUL_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cairn__stateful_ops; /* Cairn's own */

typedef struct cairn_stateful {
    const struct cairn__stateful_ops *ops;
    void *object;
} cairn_stateful;

#ifdef __cplusplus
}
#endif

#endif
