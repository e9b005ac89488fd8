/* Calls that read or change gradients between backward and step: clipping, and the unscaled f32 gradients. */
#include <math.h>

#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"

static struct cairn_device *device_of(const struct cairn_optimizer *o) {
    return o->env->device;
}

/* ---- by norm ---- */

static void end_clip(struct cairn_optimizer *o) {
    const float one = 1.0f;
    if (o->clipped) device_of(o)->passes->store(device_of(o), &o->state->clip, &one, sizeof(one));
    o->clipped = false;
}

void cairn__optimizer_forget_stale(cairn_optimizer *o) {
    if (!o->clipped && !o->noted) return;
    for (size_t i = 0; i < o->count; i++) {
        if (cairn__grad_is_noted(o->arrays.params[i]->gradient)) return;
    }
    end_clip(o);
    if (o->noted) cairn__optimizer_lower_skip(o);
}

static bool has_unclipped(const struct cairn_optimizer *o) {
    for (size_t i = 0; i < o->count; i++) {
        const struct cairn__grad *g = o->arrays.params[i]->gradient;
        if (cairn__grad_exists(g) && !cairn__grad_is_clipped(g)) return true;
    }
    return false;
}

/* state->clip is every gradient's. */
cairn_status cairn__optimizer_part_clip(cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    if (!o->clipped || !has_unclipped(o)) return CAIRN_OK;
    for (size_t i = 0; i < o->count; i++) {
        struct cairn__grad *g = o->arrays.params[i]->gradient;
        if (cairn__grad_is_clipped(g)) TRY(cairn__grad_unscale(g));
    }
    end_clip(o);
out:
    return st;
}

static bool accumulates(const struct cairn_optimizer *o) {
    for (size_t i = 0; i < o->count; i++) {
        if (cairn__grad_is_accumulated(o->arrays.params[i]->gradient)) return true;
    }
    return false;
}

/* A norm of gradients that are in part each rank's own (ddp_options.ignored) is each rank's own, and so is what the
 * coefficient makes of the others. */
static void note_own_norm(const struct cairn_optimizer *o) {
    if (cairn__params_entry_owner(o->arrays.params, o->count) == CAIRN__ENTRY_SHARED) return;
    for (size_t i = 0; i < o->num_sets; i++) o->sets[i]->ranks_differ |= o->sets[i]->listener != NULL;
}

/* The norm comes before the gradients are resolved, so that what it finds is the look for overflow. Not so the norm of
 * sums: it would not say which backward overflowed. */
cairn_status cairn_clip_grad_norm(cairn_optimizer *optimizer, double max_norm, double *norm) {
    REQUIRE(optimizer, CAIRN_EINVAL, "cairn_clip_grad_norm: optimizer is NULL");
    REQUIRE(max_norm > 0, CAIRN_EINVAL, "cairn_clip_grad_norm: max_norm is %g; it must be above 0", max_norm);
    cairn_status st = CAIRN_OK;
    struct cairn_optimizer *o = optimizer;
    struct cairn_device *d = device_of(o);
    size_t lists = 0;
    if (norm) TRY(cairn__device_refuse_recording(d, "the norm is not known yet; pass NULL for norm"));
    TRY(cairn__params_check_settled("cairn_clip_grad_norm", o->arrays.params, o->count));
    TRY(cairn__params_use_unsynced(o->arrays.params, o->count));
    cairn__optimizer_forget_stale(o);
    TRY(cairn__optimizer_part_clip(o));
    if (accumulates(o)) TRY(cairn__env_resolve(o->env));
    TRY(cairn__optimizer_read_grads(o));
    for (size_t i = 0; i < o->count; i++) {
        if (o->arrays.keys[i] >= 0) (void)cairn__optimizer_norm_list(o, i, 0, &o->norms[lists++], &o->state->clip);
    }
    TRY(cairn__env_resolve(o->env));
    d->passes->clip(d, o->norms, lists, max_norm, o->state, &o->norms[o->count]);
    o->clipped = true;
    note_own_norm(o);
    if (norm) TRY(cairn__device_download(d, norm, &o->norms[o->count], sizeof(*norm)));
out:
    return st;
}

/* ---- unscaled gradients ---- */

cairn_status cairn__optimizer_unscale(cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__params_check_settled("unscaling", o->arrays.params, o->count));
    TRY(cairn__params_use_unsynced(o->arrays.params, o->count));
    TRY(cairn__env_resolve(o->env));
    cairn__optimizer_forget_stale(o);
    if (o->guard.before) cairn__optimizer_check(o); /* of no scaled loss: before it is changed */
    for (size_t i = 0; i < o->count; i++) TRY(cairn__grad_unscale(o->arrays.params[i]->gradient));
    end_clip(o);
out:
    return st;
}

cairn_status cairn_clip_grad_value(cairn_optimizer *optimizer, double limit) {
    REQUIRE(optimizer, CAIRN_EINVAL, "cairn_clip_grad_value: optimizer is NULL");
    REQUIRE(limit > 0, CAIRN_EINVAL, "cairn_clip_grad_value: limit is %g; it must be above 0", limit);
    cairn_status st = CAIRN_OK;
    struct cairn_optimizer *o = optimizer;
    size_t listed = 0;
    TRY(cairn__optimizer_unscale(o));
    for (size_t i = 0; i < o->count; i++) {
        float *grad = cairn__grad_unscaled_memory(o->arrays.params[i]->gradient);
        if (grad) o->arrays.plain[listed++] = (struct cairn__item){.n = o->arrays.params[i]->n, .dst = grad, .x = grad};
    }
    if (listed) device_of(o)->passes->clamp(device_of(o), o->arrays.plain, listed, (float)limit);
out:
    return st;
}

cairn_status cairn_optimizer_masters_sized(size_t param_nbytes, cairn_optimizer *optimizer, cairn_param *out,
                                           size_t count) {
    REQUIRE(optimizer && (out || count == 0), CAIRN_EINVAL, "cairn_optimizer_masters: optimizer and out must be set");
    REQUIRE(count == optimizer->count, CAIRN_EINVAL,
            "cairn_optimizer_masters: count is %zu, but the optimizer has %zu parameters "
            "(cairn_optimizer_num_params)",
            count, optimizer->count);
    cairn_status st = CAIRN_OK;
    TRY(cairn__element_check(param_nbytes, "cairn_param"));
    TRY(cairn__optimizer_unscale(optimizer));
    for (size_t i = 0; i < count; i++) {
        const struct cairn__param *p = optimizer->arrays.params[i];
        cairn_param entry;
        cairn__param_describe(p, &entry);
        if (p->master) {
            entry.data = p->master;
            entry.dtype = CAIRN_F32;
        }
        entry.grad = cairn__grad_unscaled_memory(p->gradient);
        cairn__element_write(out, param_nbytes, i, &entry, sizeof(entry));
    }
out:
    return st;
}

cairn_status(cairn_optimizer_masters)(cairn_optimizer *optimizer, cairn_param *out, size_t count) {
    return cairn_optimizer_masters_sized(CAIRN__PARAM_0_8, optimizer, out, count);
}
