/* The scaled loss and what follows it: scale before backward, look after it, decide at the step.
 *
 * The scale goes with the loss: backward leaves the factor 1/S in every parameter set it reaches, where the optimizer's
 * pass reads it.
 * Whether any gradient overflowed is known when backward has settled: from the reduction that added the ranks up, or from
 * one read of the gradients here. All ranks then hold equal gradients, so all decide alike without asking. */
#include "context.h"

#include "core/log.h"
#include "core/status.h"
#include "core/trace.h"
#include "nn/hooks.h"

/* With a scale of 1 that never changes and nothing to skip there is nothing to look for. */
static bool looks(const struct amp_context *amp) {
    return amp->policy.enabled && amp->policy.skip_nonfinite;
}

cairn_status amp_scale_loss(amp_context *amp, cairn_tensor *loss, cairn_optimizer *optimizer, cairn_tensor **scaled) {
    REQUIRE(amp && scaled, CAIRN_EINVAL, "amp_scale_loss: amp and scaled must be set");
    REQUIRE(optimizer == amp->optimizer, CAIRN_EINVAL,
            "amp_scale_loss: this optimizer was not given to amp_initialize together with the model");
    REQUIRE(!amp->open, CAIRN_ESTATE,
            "amp_scale_loss: the last scaled loss was not ended; call amp_scale_loss_end "
            "after its cairn_backward");
    if (!loss) return cairn_backward(NULL); /* the cause */
    bool as_is = amp->scaler.scale == 1.0 && cairn_tensor_dtype(loss) == CAIRN_F32;
    cairn_tensor *result = as_is ? loss : cairn__scale_loss(loss, amp->scaler.scale);
    if (!result) return cairn_backward(NULL);
    amp->open = true;
    *scaled = result;
    return CAIRN_OK;
}

cairn_status amp_scale_loss_end(amp_context *amp) {
    REQUIRE(amp, CAIRN_EINVAL, "amp_scale_loss_end: amp is NULL");
    REQUIRE(amp->open, CAIRN_ESTATE, "amp_scale_loss_end without amp_scale_loss");
    amp->open = false;
    amp->pending = true;
    if (!looks(amp)) return CAIRN_OK;
    cairn__param_set_check(amp->set);
    amp->found |= amp->set->found != 0;
    return CAIRN_OK;
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

cairn_status cairn__amp_before_step(void *ctx, cairn_optimizer *optimizer) {
    struct amp_context *amp = ctx;
    (void)optimizer;
    REQUIRE(!amp->open, CAIRN_ESTATE,
            "cairn_step between amp_scale_loss and amp_scale_loss_end; end the scaled loss first");
    if (looks(amp)) cairn__param_set_check(amp->set);
    return CAIRN_OK;
}

static cairn_status tell_skip(const struct amp_context *amp, enum cairn__amp_verdict verdict) {
    char names[512];
    cairn__param_set_found_names(amp->set, names, sizeof(names));
    double scale = amp->scaler.scale;
    switch (verdict) {
    case CAIRN__AMP_AT_FLOOR:
        return cairn__fail(CAIRN_ENUMERIC,
                           "gradient overflow with the loss scale at its floor of %g: non-finite gradient in %s; the "
                           "step was skipped and the scale cannot be lowered. Look for a division by zero, a learning "
                           "rate that is too high, or lower min_loss_scale",
                           scale, names);
    case CAIRN__AMP_REACHED_FLOOR:
        cairn__log(
            CAIRN_LOG_WARNING,
            "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to its floor of %g: non-finite "
            "gradient in %s",
            scale, names);
        return CAIRN_OK;
    case CAIRN__AMP_SHRANK:
        cairn__log(CAIRN_LOG_NOTICE,
                   "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to %g: non-finite gradient in "
                   "%s",
                   scale, names);
        return CAIRN_OK;
    case CAIRN__AMP_KEPT:
    case CAIRN__AMP_GREW:
        break;
    }
    cairn__log(CAIRN_LOG_NOTICE, "Gradient overflow.  Skipping step, loss scale stays %g: non-finite gradient in %s",
               scale, names);
    return CAIRN_OK;
}

cairn_status cairn__amp_after_step(void *ctx, cairn_optimizer *optimizer, bool stepped) {
    struct amp_context *amp = ctx;
    (void)optimizer;
    enum cairn__amp_verdict verdict = CAIRN__AMP_KEPT;
    if (amp->pending) verdict = amp->scaler.kind->update(&amp->scaler, amp->found || !stepped);
    amp->pending = amp->found = false;
    if (verdict != CAIRN__AMP_KEPT) cairn__trace("amp", "loss_scale", (int64_t)amp->scaler.scale, 0, 0);
    return stepped ? CAIRN_OK : tell_skip(amp, verdict);
}

double amp_loss_scale(const amp_context *amp) {
    return amp ? amp->scaler.scale : 1.0;
}

int64_t amp_unskipped_steps(const amp_context *amp) {
    return amp ? amp->scaler.unskipped : 0;
}
