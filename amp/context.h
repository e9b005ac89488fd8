/* The amp context from inside. */
#ifndef CAIRN__AMP_CONTEXT_H
#define CAIRN__AMP_CONTEXT_H

#include "param/param.h"
#include "policy.h"
#include "scaler.h"

struct amp_context {
    struct cairn_env *env;
    cairn_module *model;
    cairn_optimizer *optimizer;
    struct cairn_param_set *set;
    struct cairn__amp_policy policy;
    struct cairn__amp_scaler scaler;
    bool open;    /* an amp_scale_loss waits for its end */
    bool pending; /* losses have ended that no step has followed */
    bool found;   /* one of them overflowed */
};

/* The optimizer's hook: the scaler updates once, at the first step after its losses. */
cairn_status cairn__amp_before_step(void *ctx, cairn_optimizer *optimizer);
cairn_status cairn__amp_after_step(void *ctx, cairn_optimizer *optimizer, bool stepped);

#endif
