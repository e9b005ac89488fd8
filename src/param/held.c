/* Gradients that stay this rank's own for a while.
 *
 * They are true f32 sums of what several backwards left, so that scales may differ, and nobody has looked at them: what
 * is infinite in them stays infinite, and is found once they have been added to a gradient that all ranks reduce. Who
 * steps or clips before that finds it then, by the flag of the last backward, so that its scaler hears of it. */
#include <stddef.h>

#include "core/log.h"
#include "core/status.h"
#include "param/param.h"

static struct cairn_device *device_of(const struct cairn__param *p) {
    return p->set->env->device;
}

static cairn_status make_local(struct cairn__param *p) {
    if (p->local) return CAIRN_OK;
    cairn_status st = cairn__device_alloc(device_of(p), CAIRN__HOLDS_GRADS, p->n * sizeof(float), (void **)&p->local);
    if (st != CAIRN_OK) return st;
    cairn__log(CAIRN_LOG_INFO, "'%s' accumulates without synchronising: %zu bytes more", p->name, p->n * sizeof(float));
    return CAIRN_OK;
}

/* dst = factor * x + y, all f32. */
static void add(const struct cairn__param *p, float *dst, const void *x, cairn_dtype from, const float *factor,
                const float *y, uint32_t *found) {
    struct cairn_device *d = device_of(p);
    const struct cairn__item item = {.n = p->n, .dst = dst, .x = x, .y = y, .found = found};
    d->passes->axpby(d, &item, 1, CAIRN_F32, from, factor, 1.0f, NULL);
}

cairn_status cairn__param_keep(struct cairn__param *p) {
    cairn_status st = CAIRN_OK;
    TRY(make_local(p));
    struct cairn_device *d = device_of(p);
    const struct cairn__item item = {.n = p->n, .dst = p->local, .x = p->grad};
    if (p->has_local) {
        add(p, p->local, p->grad, p->dtype, p->factor, p->local, NULL);
    } else {
        d->passes->scale(d, &item, 1, CAIRN_F32, p->dtype, p->factor, NULL);
    }
    p->has_local = true;
    p->written = p->held = false;
out:
    return st;
}

/* ---- with a gradient that is not held ---- */

static void swap_accumulators(struct cairn__param *p) {
    float *acc = p->acc;
    p->acc = p->local;
    p->local = acc;
}

/* What a step or clipping took is in acc, now that the slot has been written again. */
static void take_back(struct cairn__param *p) {
    if (p->own && p->has_acc && p->has_local) add(p, p->local, p->acc, CAIRN_F32, NULL, p->local, NULL);
    if (p->own && p->has_acc && !p->has_local) swap_accumulators(p);
    p->has_local |= p->own && p->has_acc;
    p->has_acc &= !p->own;
    p->own = false;
}

static const float *scale_at(const float *factor) {
    const size_t offset = offsetof(struct cairn__loss_scale, factor) - offsetof(struct cairn__loss_scale, scale);
    return factor ? factor - offset / sizeof(*factor) : NULL;
}

/* axpby adds f32 to any type: a half slot is the x of it, so local is scaled where it stands, which rounds as axpby
 * does. */
void cairn__param_add_held(struct cairn__param *p) {
    struct cairn_device *d = device_of(p);
    const float *scale = scale_at(p->factor);
    take_back(p);
    if (!p->has_local) return;
    if (p->dtype == CAIRN_F32) {
        add(p, p->grad, p->local, CAIRN_F32, scale, p->grad, NULL);
    } else {
        const struct cairn__item scaled = {.n = p->n, .dst = p->local, .x = p->local};
        const struct cairn__item sum = {.n = p->n, .dst = p->grad, .x = p->grad, .y = p->local};
        if (scale) d->passes->scale(d, &scaled, 1, CAIRN_F32, CAIRN_F32, scale, NULL);
        d->passes->axpby(d, &sum, 1, p->dtype, p->dtype, NULL, 1.0f, NULL);
    }
    if (p->value_type) d->passes->round(d, p->value_type, p->grad, p->grad, p->n);
    p->has_local = false;
}

/* The slot holds what is to be in it. */
static bool is_there(const struct cairn__param *p) {
    return p->held && p->written && !p->has_local && !p->own && p->factor == p->set->factor;
}

cairn_status cairn__param_grad_absent(struct cairn__param *p) {
    cairn_status st = CAIRN_OK;
    void *slot = NULL;
    if (is_there(p)) {
        p->held = p->checked = false;
        return CAIRN_OK;
    }
    TRY(cairn__param_grad_slot(p, &slot));
    device_of(p)->passes->fill(device_of(p), p->dtype, slot, p->n, 0.0f);
    p->written = true;
    p->factor = p->set->factor;
    p->checked = p->held = false;
    cairn__param_add_held(p);
out:
    return st;
}

/* ---- without one ---- */

static cairn_status take_held(struct cairn__param *p) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = device_of(p);
    p->own |= (p->held && p->written) || p->has_local;
    p->held = false;
    if (!p->has_local) return CAIRN_OK;
    TRY(cairn__param_set_make_flags(p->set));
    if (p->has_acc) {
        add(p, p->acc, p->local, CAIRN_F32, NULL, p->acc, cairn__param_flag(p));
    } else {
        const struct cairn__item item = {.n = p->n, .x = p->local, .found = cairn__param_flag(p)};
        d->passes->check(d, &item, 1, CAIRN_F32, NULL);
        swap_accumulators(p);
    }
    p->has_acc = p->acc_checked = p->flag_touched = true;
    p->has_local = false;
out:
    return st;
}

cairn_status cairn__params_take_held(struct cairn__param *const *params, size_t count) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; st == CAIRN_OK && i < count; i++) {
        params[i]->set->alone = false;
        st = take_held(params[i]);
    }
    return st;
}

/* ---- a set ---- */

cairn_status cairn__param_set_hold(struct cairn_param_set *set, bool on) {
    set->held = on;
    for (size_t i = 0; i < set->count && set->is_users; i++) {
        struct cairn__param *p = set->params[i];
        cairn_status st = p->written && p->held ? cairn__param_keep(p) : CAIRN_OK;
        if (st != CAIRN_OK) return st;
    }
    return CAIRN_OK;
}

void cairn__param_set_drop_held(struct cairn_param_set *set) {
    set->held = set->walking = set->spares_held = set->alone = false;
    cairn__param_set_forget_losses(set);
    for (size_t i = 0; i < set->count; i++) {
        struct cairn__param *p = set->params[i];
        p->written &= !p->held;
        p->held = p->has_local = p->own = false;
    }
}
