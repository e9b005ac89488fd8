/* A handle to an object's checkpoint state, for cairn_state_add (state.h).
 *
 * Made by cairn_module_stateful, cairn_param_set_stateful, cairn_optimizer_stateful, amp_stateful, amp_scaler_stateful,
 * cairn_sampler_stateful, ddp_stateful and others. It is a pair of pointers and owns nothing: the object must outlive
 * it. For NULL they return a handle that cairn_state_add refuses, with the cause of the NULL. */
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
