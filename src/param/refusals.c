/* Calls that are refused because a backward runs. Other ranks may make the same call after that backward, and would
 * then wait for this rank. So this rank reports the refusal when its backward has ended, in order after the exchanges
 * of that backward. */
#include "core/status.h"
#include "param/param.h"

/* Why the call is refused now; NULL = it is not. The parameters may be in a graph that the backward of another module's
 * set walks. */
static const char *refusal_now(const struct cairn_param_set *set) {
    if (set->in_backward && set->is_users) return "gradients of the set are being averaged: call ddp_wait first";
    for (const struct cairn_param_set *s = cairn__last_set(set->env); s; s = s->next)
        if (s->in_backward && !s->is_users) return "called within a backward";
    return NULL;
}

cairn_status cairn__param_set_check_between(const char *call, struct cairn_param_set *set) {
    const char *const why = refusal_now(set);
    if (!why) return CAIRN_OK;
    if (set->listener && set->listener->agree_on_frozen)
        set->refusals = (struct cairn__refusals){set->refusals.count + 1, call, why};
    return cairn__fail(CAIRN_ESTATE, "%s: %s", call, why);
}

static void report_refusals(struct cairn_param_set *set) {
    const struct cairn__grad_listener *listener = set->listener;
    const struct cairn__refusals was = set->refusals;
    set->refusals.count = 0;
    for (int i = 0; i < was.count; i++) {
        const cairn_status st = cairn__fail(CAIRN_ESTATE, "%s: %s", was.call, was.why);
        (void)listener->agree_on_frozen(listener->ctx, was.call, NULL, 0, false, st);
    }
}

void cairn__params_report_refusals(struct cairn_env *env) {
    for (struct cairn_param_set *set = cairn__last_set(env); set; set = set->next) {
        if (set->refusals.count && !refusal_now(set)) report_refusals(set);
    }
}
