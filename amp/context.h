/* The amp context from inside. */
#ifndef CAIRN__AMP_CONTEXT_H
#define CAIRN__AMP_CONTEXT_H

#include "param/param.h"
#include "policy.h"
#include "scaler.h"

/* Losses whose scale is remembered at a time: gradients of one that is older are folded before its place is used. */
enum { CAIRN__AMP_CELLS = 64 };

struct amp_context {
    struct cairn_env *env;
    cairn_module *model;
    cairn_optimizer *optimizer;
    struct cairn_param_set *set;
    struct cairn__amp_policy policy;
    struct cairn__scaler_state *scaler; /* in device memory, as are */
    struct cairn__loss_scale *cells;    /* the scales of the last losses; [CAIRN__AMP_CELLS] */
    uint64_t next_cell;
    uint64_t before; /* reports of the optimizer up to this one speak of no scaler, or of another */
    bool open;       /* an amp_scale_loss waits for its end */
    int pending;     /* losses that have ended and that no step has followed */
};

/* The optimizer's hook: the scaler updates once, at the first step after its losses. */
cairn_status cairn__amp_before_step(void *ctx, bool *update);
void cairn__amp_step_queued(void *ctx);
cairn_status cairn__amp_told(void *ctx, const struct cairn__step_report *report, const uint32_t *found);

#endif
