/* The scaled loss and what follows it: scale before backward, look after it, decide at the step.
 *
 * The scale lives on the device and goes with the loss: scaling copies it into a cell together with its inverse, and
 * backward points every parameter set it reaches at that cell, where the optimizer's pass reads it.
 * Whether any gradient overflowed is known there when backward has settled: from the reduction that added the ranks up,
 * or from one read of the gradients here. All ranks then hold equal gradients, so all decide alike without asking. */
#include "context.h"

#include "core/log.h"
#include "core/status.h"
#include "core/trace.h"
#include "nn/hooks.h"
#include "optim/hooks.h"

/* With a scale of 1 that never changes and nothing to skip there is nothing to look for. */
static bool looks(const struct amp_context *amp) {
    return amp->policy.enabled && amp->policy.skip_nonfinite;
}

/* A scale that stays 1 leaves an f32 loss as it is. */
static bool scales(const struct amp_context *amp, const cairn_tensor *loss) {
    return amp->policy.dynamic || amp->policy.loss_scale != 1.0 || cairn_tensor_dtype(loss) != CAIRN_F32;
}

cairn_status amp_scale_loss(amp_context *amp, cairn_tensor *loss, cairn_optimizer *optimizer, cairn_tensor **scaled) {
    REQUIRE(amp && scaled, CAIRN_EINVAL, "amp_scale_loss: amp and scaled must be set");
    REQUIRE(optimizer == amp->optimizer, CAIRN_EINVAL,
            "amp_scale_loss: this optimizer was not given to amp_initialize together with the model");
    REQUIRE(!amp->open, CAIRN_ESTATE,
            "amp_scale_loss: the last scaled loss was not ended; call amp_scale_loss_end "
            "after its cairn_backward");
    if (!loss) return cairn_backward(NULL); /* the cause */
    cairn_tensor *result = loss;
    if (scales(amp, loss)) {
        struct cairn__loss_scale *cell = &amp->cells[amp->next_cell++ % CAIRN__AMP_CELLS];
        cairn_status st = cairn__params_fold_at(amp->env, &cell->factor);
        if (st != CAIRN_OK) return st;
        result = cairn__scale_loss(loss, amp->scaler, cell);
    }
    if (!result) return cairn_backward(NULL);
    amp->open = true;
    *scaled = result;
    return CAIRN_OK;
}

/* Losses wait for a step: a flag that zero_grad discards meanwhile is theirs. */
static void set_pending(struct amp_context *amp, int pending) {
    amp->env->unstepped += pending - amp->pending;
    amp->pending = pending;
    amp->set->found_into = pending ? &amp->scaler->found : NULL;
}

cairn_status amp_scale_loss_end(amp_context *amp) {
    REQUIRE(amp, CAIRN_EINVAL, "amp_scale_loss_end: amp is NULL");
    REQUIRE(amp->open, CAIRN_ESTATE, "amp_scale_loss_end without amp_scale_loss");
    amp->open = false;
    set_pending(amp, amp->pending + 1);
    return looks(amp) ? cairn__param_set_check(amp->set) : CAIRN_OK;
}

cairn_status amp_backward(amp_context *amp, cairn_tensor *loss, cairn_optimizer *optimizer) {
    cairn_tensor *scaled = NULL;
    cairn_status st = amp_scale_loss(amp, loss, optimizer, &scaled);
    if (st != CAIRN_OK) return st;
    st = cairn_backward(scaled);
    if (st == CAIRN_OK) return amp_scale_loss_end(amp);
    amp->open = false; /* its cause is what the caller needs, not a complaint at the next begin */
    return st;
}

cairn_status cairn__amp_before_step(void *ctx, bool *update) {
    struct amp_context *amp = ctx;
    REQUIRE(!amp->open, CAIRN_ESTATE,
            "cairn_step between amp_scale_loss and amp_scale_loss_end; end the scaled loss first");
    cairn_status st = looks(amp) ? cairn__param_set_check(amp->set) : CAIRN_OK;
    if (st != CAIRN_OK) return st;
    *update = amp->pending > 0;
    return CAIRN_OK;
}

void cairn__amp_step_queued(void *ctx) {
    set_pending(ctx, 0);
}

static cairn_status tell_skip(const struct amp_context *amp, const struct cairn__step_report *r,
                              const uint32_t *found) {
    char names[512];
    cairn__param_set_names(amp->set, found, names, sizeof(names));
    const double scale = r->scale;
    switch ((enum cairn__scaler_verdict)r->verdict) {
    case CAIRN__SCALER_AT_FLOOR:
        return cairn__fail(CAIRN_ENUMERIC,
                           "gradient overflow with the loss scale at its floor of %g: non-finite gradient in %s; the "
                           "step was skipped and the scale cannot be lowered. Look for a division by zero, a learning "
                           "rate that is too high, or lower min_loss_scale",
                           scale, names);
    case CAIRN__SCALER_REACHED_FLOOR:
        cairn__log(
            CAIRN_LOG_WARNING,
            "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to its floor of %g: non-finite "
            "gradient in %s",
            scale, names);
        return CAIRN_OK;
    case CAIRN__SCALER_SHRANK:
        cairn__log(CAIRN_LOG_NOTICE,
                   "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to %g: non-finite gradient in "
                   "%s",
                   scale, names);
        return CAIRN_OK;
    case CAIRN__SCALER_KEPT:
    case CAIRN__SCALER_GREW:
        break;
    }
    cairn__log(CAIRN_LOG_NOTICE, "Gradient overflow.  Skipping step, loss scale stays %g: non-finite gradient in %s",
               scale, names);
    return CAIRN_OK;
}

cairn_status cairn__amp_told(void *ctx, const struct cairn__step_report *r, const uint32_t *found) {
    const struct amp_context *amp = ctx;
    if (r->verdict != CAIRN__SCALER_KEPT) cairn__trace("amp", "loss_scale", (int64_t)r->scale, 0, 0);
    return r->stepped ? CAIRN_OK : tell_skip(amp, r, found);
}

/* The last that is known of the scaler. */
static bool last_report(const struct amp_context *amp, struct cairn__step_report *out) {
    if (!amp->policy.enabled) return false; /* its optimizer's steps do not pass by here */
    *out = cairn__optimizer_last_report(amp->optimizer);
    return out->number > amp->before;
}

double amp_loss_scale(const amp_context *amp) {
    struct cairn__step_report r;
    if (!amp) return 1.0;
    return last_report(amp, &r) ? r.scale : amp->policy.loss_scale;
}

int64_t amp_unskipped_steps(const amp_context *amp) {
    struct cairn__step_report r;
    return amp && last_report(amp, &r) ? r.unskipped : 0;
}
