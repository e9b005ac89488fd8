/* Reports for the user: which parameters overflowed, and how gradients fit half types. */
#include <math.h>

#include "context.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "core/options.h"
#include "core/status.h"

/* The guard of optimizer; NULL = the only optimizer. */
static cairn_status find_guard(const amp_context *amp, const cairn_optimizer *optimizer, const char *call,
                               struct cairn__amp_guard **out) {
    size_t index = 0;
    REQUIRE(amp, CAIRN_EINVAL, "%s: amp is NULL", call);
    REQUIRE(amp->policy.enabled, CAIRN_ESTATE, "%s: amp is not enabled and checks no gradients", call);
    REQUIRE(optimizer || amp->num_guards == 1, CAIRN_EINVAL,
            "%s: optimizer is NULL, but the context has %zu optimizers; pass the one that is meant", call,
            amp->num_guards);
    *out = optimizer ? cairn__amp_guard_of(amp, optimizer, &index) : amp->guards[0];
    REQUIRE(*out, CAIRN_EINVAL, "%s: the optimizer was not given to amp_initialize", call);
    return CAIRN_OK;
}

/* ---- overflow ---- */

cairn_status amp_last_overflow_sized(size_t overflow_nbytes, amp_context *amp, cairn_optimizer *optimizer,
                                     struct amp_overflow *out, size_t count, size_t *found) {
    struct cairn__amp_guard *g = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__element_check(overflow_nbytes, "amp_overflow"));
    TRY(find_guard(amp, optimizer, "amp_last_overflow", &g));
    REQUIRE(found && (out || count == 0), CAIRN_EINVAL, "amp_last_overflow: out and found must be set");
    *found = g->last_found.count;
    for (size_t k = 0; k < g->last_found.count && k < count; k++)
        cairn__element_write(out, overflow_nbytes, k, &g->last_found.list[k], sizeof(g->last_found.list[k]));
    if (g->last_found.count > 0) goto out;
    struct cairn__param *const *params = cairn__optimizer_param_list(g->optimizer);
    size_t listed = 0;
    for (size_t k = 0; g->has_last && k < g->num_last; k++) {
        const size_t i = k == 0 ? g->num_last - 1 : k - 1; /* the loss comes first */
        const struct cairn__overflow *o = &g->last[i];
        if (!o->micro_batch) continue;
        const struct amp_overflow entry = {.name = k == 0 ? "(loss)" : params[i]->name,
                                           .infs = o->infs,
                                           .nans = o->nans,
                                           .micro_batch = (int)o->micro_batch,
                                           .rank = o->rank,
                                           .stage = -1};
        if (listed < count) cairn__element_write(out, overflow_nbytes, listed, &entry, sizeof(entry));
        listed++;
    }
    *found = listed;
out:
    return st;
}

cairn_status(amp_last_overflow)(amp_context *amp, cairn_optimizer *optimizer, struct amp_overflow *out, size_t count,
                                size_t *found) {
    return amp_last_overflow_sized(CAIRN__SIZE_THROUGH(struct amp_overflow, rank), amp, optimizer, out, count, found);
}

/* ---- underflow ---- */

static cairn_status make_report(struct cairn_device *d, const struct cairn__param *p, const struct cairn__census *c,
                                struct amp_gradient_report *out) {
    const struct cairn__grad_view grad = cairn__grad_peek(p->gradient);
    *out = (struct amp_gradient_report){.name = p->name, .dtype = grad.values, .scale = 1};
    if (!grad.x) return CAIRN_OK;
    out->n = grad.n;
    out->zeros = c->zeros;
    out->subnormals = c->subnormals;
    out->infs = c->infs;
    out->nans = c->nans;
    out->max_exponent = c->max_exponent;
    out->min_exponent = c->min_exponent;
    cairn_status st = CAIRN_OK;
    float factor = 1.0f;
    if (grad.factor) TRY(cairn__device_download(d, &factor, grad.factor, sizeof(factor)));
    out->scale = 1.0 / (double)factor;
out:
    return st;
}

cairn_status amp_gradient_reports_sized(size_t report_nbytes, amp_context *amp, cairn_optimizer *optimizer,
                                        struct amp_gradient_report *out, size_t count) {
    cairn_status st = CAIRN_OK;
    struct cairn__amp_guard *g = NULL;
    struct cairn__census *census = NULL, *host = NULL;
    TRY(cairn__element_check(report_nbytes, "amp_gradient_report"));
    TRY(find_guard(amp, optimizer, "amp_gradient_reports", &g));
    struct cairn_device *d = amp->env->device;
    struct cairn__param *const *params = cairn__optimizer_param_list(g->optimizer);
    REQUIRE(out || count == 0, CAIRN_EINVAL, "amp_gradient_reports: out is NULL");
    REQUIRE(count == cairn_optimizer_num_params(g->optimizer), CAIRN_EINVAL,
            "amp_gradient_reports: count is %zu, but the optimizer has %zu parameters (cairn_optimizer_num_params)",
            count, cairn_optimizer_num_params(g->optimizer));
    TRY(cairn__device_refuse_recording(d, "gradients have no values yet; call amp_gradient_reports between replays"));
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, count * sizeof(census[0]), (void **)&census));
    TRY(cairn__calloc(count, sizeof(host[0]), (void **)&host));
    for (size_t i = 0; i < count; i++) {
        const struct cairn__grad_view grad = cairn__grad_peek(params[i]->gradient);
        const struct cairn__item item = {.n = grad.n, .x = grad.x};
        const float least_normal =
            grad.values == CAIRN_F16 ? 0x1p-14f : 0x1p-126f; /* of the types in which gradients are stored */
        if (item.x) d->passes->census(d, &item, 1, grad.dtype, least_normal, &census[i]);
    }
    TRY(cairn__device_download(d, host, census, count * sizeof(host[0])));
    for (size_t i = 0; i < count; i++) {
        struct amp_gradient_report entry;
        TRY(make_report(d, params[i], &host[i], &entry));
        cairn__element_write(out, report_nbytes, i, &entry, sizeof(entry));
    }
out:
    if (amp) cairn__device_free(amp->env->device, census);
    cairn__free(host);
    return st;
}

cairn_status(amp_gradient_reports)(amp_context *amp, cairn_optimizer *optimizer, struct amp_gradient_report *out,
                                   size_t count) {
    return amp_gradient_reports_sized(CAIRN__SIZE_THROUGH(struct amp_gradient_report, scale), amp, optimizer, out,
                                      count);
}

float amp_fp8_scale(const amp_context *amp, const char *param, amp_fp8_tensor tensor) {
    const bool is_tensor = tensor >= AMP_FP8_INPUT && tensor <= AMP_FP8_GRADIENT;
    return amp && amp->fp8 && param && is_tensor ? cairn__fp8_casts_scale(amp->fp8, param, tensor) : NAN;
}
