/* amp for trainers with their own buffers: the loss scale as a number or on the device, and a step that the user makes.
 *
 * There is no amp_scale_loss here. A loss counts once gradients are declared ready after amp_next_scale or
 * amp_next_scale_device has returned its scale. The gradients are checked by the next call of either function, by a
 * step, or by a call that forgets them. */
#include <math.h>
#include <stdio.h>

#include "context.h"
#include "core/options.h"
#include "core/status.h"

cairn_status amp_initialize_params(cairn_env *env, cairn_param_set *set, cairn_optimizer *optimizer,
                                   const struct amp_options *options, amp_context **out) {
    REQUIRE(set, CAIRN_EINVAL, "amp_initialize_params: set is NULL");
    REQUIRE(set->env == env, CAIRN_EINVAL, "amp_initialize_params: the set was made in another environment");
    REQUIRE(set->is_users, CAIRN_EINVAL,
            "amp_initialize_params: the set belongs to a module; give the module to amp_initialize");
    const struct cairn__amp_parts parts = {.call = "amp_initialize_params",
                                           .env = env,
                                           .set = set,
                                           .optimizers = &optimizer,
                                           .num_optimizers = optimizer ? 1 : 0};
    return cairn__amp_create(&parts, options, out);
}

/* ---- losses ---- */

/* Counts the loss whose scale amp_next_scale returned last, if it is not counted yet. Also counts it for gradients of a
 * later step that were declared without another amp_next_scale. */
static void count_shown_loss(amp_context *amp, bool is_unsynced) {
    struct cairn__amp_guard *g = amp->guards[0];
    if (amp->shown.counted && g->micro_batch > 0) return;
    amp->shown.counted = true;
    amp->ended.id = amp->shown.id;
    amp->ended.guards[0] = 1;
    cairn__guard_add_loss(g, amp->shown.id, is_unsynced, 0);
    cairn__scaler_add_pending(amp->scalers[amp->shown.id]);
}

cairn_status cairn__amp_resolve_declared(struct cairn__unresolved *unresolved) {
    amp_context *amp = (amp_context *)unresolved;
    bool is_unsynced = false;
    if (cairn__param_set_take_declared(amp->sets[0], &is_unsynced)) count_shown_loss(amp, is_unsynced);
    return cairn__amp_checks(amp) ? cairn__amp_resolve(unresolved) : CAIRN_OK;
}

/* Ranks must multiply by the same scale, but may have read reports of different steps, so this waits for the device's
 * reports. A scale on the device already includes all earlier steps, unless the host computes it from reports
 * (AMP_SCALER_USER). */
static cairn_status synchronize_scaler(const amp_context *amp, const char *call, amp_scaler *scaler, bool on_device) {
    const int rule = scaler->known.rule;
    const bool may_change = on_device ? rule == CAIRN__SCALER_USER : rule != CAIRN__SCALER_STATIC;
    char where[40];
    cairn_status st = CAIRN_OK;
    if (!amp->sets[0]->listener || !may_change || scaler->pending) return CAIRN_OK;
    if (on_device)
        TRY(cairn__device_refuse_recording(
            amp->env->device, "replays would come upon the scale of the program's own update at another step on each "
                              "rank; use another kind of scaler"));
    if (amp->env->device->capturing) return CAIRN_OK; /* a scale as a number is refused next */
    snprintf(where, sizeof(where), "%s: ", call);
    TRY(cairn__scaler_synchronize(scaler, where));
out:
    return st;
}

/* Returns the scale as a number, or on the device if number is NULL. */
static cairn_status show_scale(amp_context *amp, const char *call, int loss_id, double *number, const float **shown) {
    amp_scaler *scaler = amp->scalers[loss_id];
    struct cairn_param_set *set = amp->sets[0];
    const struct cairn__loss_scale *cell = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__params_check_settled(call, set->params, set->count));
    TRY(cairn__env_resolve(amp->env)); /* checks the previous loss */
    TRY(synchronize_scaler(amp, call, scaler, !number));
    TRY(number ? cairn__scaler_show_scale(scaler, number, &cell) : cairn__scaler_show_on_device(scaler, shown, &cell));
    cairn__param_set_use_scale(set, cell);
    amp->shown.id = loss_id;
    amp->shown.counted = false;
out:
    return st;
}

cairn_status cairn__amp_take_scale(struct cairn__unresolved *unresolved) {
    amp_context *amp = (amp_context *)unresolved;
    const float *shown = NULL;
    return amp->policy.enabled ? show_scale(amp, "amp_next_scale", amp->shown.id, NULL, &shown) : CAIRN_OK;
}

double amp_next_scale_of(amp_context *amp, int loss_id) {
    const amp_scaler *scaler = amp_scaler_of(amp, loss_id);
    double scale = 0;
    if (!scaler) return (double)NAN;
    if (!amp->policy.enabled) return 1;
    if (amp->num_models > 0) return amp_scaler_get_scale(scaler);
    return show_scale(amp, "amp_next_scale", loss_id, &scale, NULL) == CAIRN_OK ? scale : (double)NAN;
}

double amp_next_scale(amp_context *amp) {
    return amp_next_scale_of(amp, 0);
}

static cairn_status show_on_device(amp_context *amp, int loss_id, const float **shown) {
    static const char call[] = "amp_next_scale_device";
    amp_scaler *scaler = amp_scaler_of(amp, loss_id);
    REQUIRE(amp, CAIRN_EINVAL, "%s: amp is NULL", call);
    REQUIRE(scaler, CAIRN_EINVAL, "%s: loss_id is %d; it must be from 0 to %d (amp_options.num_losses - 1)", call,
            loss_id, amp->policy.num_losses - 1);
    REQUIRE(amp->num_models == 0, CAIRN_ESTATE,
            "%s: this context has models, whose losses amp_scale_loss multiplies; it is for amp_initialize_params",
            call);
    if (!amp->policy.enabled) return cairn__scaler_show_1(scaler, shown);
    return show_scale(amp, call, loss_id, NULL, shown);
}

const float *amp_next_scale_device_of(amp_context *amp, int loss_id) {
    const float *shown = NULL;
    return show_on_device(amp, loss_id, &shown) == CAIRN_OK ? shown : NULL;
}

const float *amp_next_scale_device(amp_context *amp) {
    return amp_next_scale_device_of(amp, 0);
}

/* ---- the user's step ---- */

cairn_status amp_begin_step(amp_context *amp, int *skip) {
    cairn_status st = CAIRN_OK;
    uint32_t raised = 0;
    REQUIRE(amp && skip, CAIRN_EINVAL, "amp_begin_step: amp and skip must be set");
    REQUIRE(amp->own, CAIRN_ESTATE,
            "amp_begin_step: this context has an optimizer; call cairn_step. amp_begin_step is for "
            "amp_initialize_params without an optimizer");
    REQUIRE(!amp->in_step, CAIRN_ESTATE, "amp_begin_step: the last step was not ended; call amp_end_step first");
    TRY(cairn__device_refuse_recording(
        amp->env->device,
        "amp_begin_step waits for the overflow check; call it between replays, or give amp an optimizer"));
    TRY(cairn__step_begin(amp->own, &amp->end));
    cairn__step_update_scalers(amp->own, &amp->end);
    if (cairn__amp_checks(amp))
        TRY(cairn__device_download(amp->env->device, &raised, cairn__optimizer_skip(amp->own), sizeof(raised)));
    if (!raised) TRY(cairn__optimizer_unscale(amp->own));
    amp->in_step = true; /* set last: a begin that failed may be tried again */
    *skip = raised != 0;
out:
    return st;
}

cairn_status amp_end_step(amp_context *amp) {
    REQUIRE(amp, CAIRN_EINVAL, "amp_end_step: amp is NULL");
    REQUIRE(amp->in_step, CAIRN_ESTATE, "amp_end_step: call amp_begin_step first");
    amp->in_step = false;
    return cairn__step_finish(amp->own, &amp->end);
}

static cairn_status check_in_step(const char *call, const amp_context *amp) {
    REQUIRE(amp, CAIRN_EINVAL, "%s: amp is NULL", call);
    REQUIRE(amp->in_step, CAIRN_ESTATE, "%s: call it between amp_begin_step and amp_end_step", call);
    return CAIRN_OK;
}

/* The user reads the gradients, so clipping must be applied to them at once. */
cairn_status amp_clip_grad_norm(amp_context *amp, double max_norm, double *norm) {
    cairn_status st = CAIRN_OK;
    TRY(check_in_step("amp_clip_grad_norm", amp));
    TRY(cairn_clip_grad_norm(amp->own, max_norm, norm));
    TRY(cairn__optimizer_unscale(amp->own));
out:
    return st;
}

cairn_status amp_clip_grad_value(amp_context *amp, double limit) {
    const cairn_status st = check_in_step("amp_clip_grad_value", amp);
    return st == CAIRN_OK ? cairn_clip_grad_value(amp->own, limit) : st;
}

cairn_status amp_grad_norms(amp_context *amp, double *norms, size_t count, double *total) {
    const cairn_status st = check_in_step("amp_grad_norms", amp);
    return st == CAIRN_OK ? cairn_grad_norms(amp->own, norms, count, total) : st;
}

cairn_status amp_master_params_sized(size_t param_nbytes, amp_context *amp, cairn_optimizer *optimizer,
                                     cairn_param *out, size_t count) {
    size_t index = 0;
    REQUIRE(amp, CAIRN_EINVAL, "amp_master_params: amp is NULL");
    if (!optimizer) optimizer = amp->own;
    if (!optimizer && amp->num_guards == 1) optimizer = amp->guards[0]->optimizer;
    REQUIRE(optimizer, CAIRN_EINVAL,
            "amp_master_params: optimizer is NULL, but the context has %zu optimizers; pass the one that is meant",
            amp->num_guards);
    REQUIRE(!amp->policy.enabled || cairn__amp_guard_of(amp, optimizer, &index), CAIRN_EINVAL,
            "amp_master_params: the optimizer was not given to amp_initialize");
    return cairn_optimizer_masters_sized(param_nbytes, optimizer, out, count);
}

cairn_status(amp_master_params)(amp_context *amp, cairn_optimizer *optimizer, cairn_param *out, size_t count) {
    return amp_master_params_sized(CAIRN__PARAM_0_8, amp, optimizer, out, count);
}
