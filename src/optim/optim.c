/* The front of optimizers: one walk over the set a step, and what every kind shares. */
#include "optim/optim.h"

#include <math.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "core/trace.h"

cairn_status cairn__check_set(const char *kind, const cairn_param_set *set, cairn_optimizer **out) {
    REQUIRE(out, CAIRN_EINVAL, "%s: out is NULL", kind);
    REQUIRE(set, CAIRN_EINVAL, "%s: the parameter set is NULL; was its model made? (last error: %s)", kind,
            cairn_last_error()[0] ? cairn_last_error() : "none");
    return CAIRN_OK;
}

cairn_status cairn__check_rate(const char *kind, const char *name, double value) {
    REQUIRE(isfinite(value) && value >= 0, CAIRN_EINVAL, "%s: %s is %g; it must be a number >= 0", kind, name, value);
    return CAIRN_OK;
}

static cairn_status make_states(struct cairn_optimizer *o) {
    int count = o->kind->states(o);
    for (size_t i = 0; i < o->set->count; i++) {
        for (int s = 0; s < count; s++) {
            size_t n = o->set->params[i]->n;
            struct cairn_device *device = o->set->env->device;
            cairn_status st = cairn__device_alloc(device, n * sizeof(float), (void **)&o->states[i].state[s]);
            if (st != CAIRN_OK) return st;
            device->kernels->fill[CAIRN_F32](o->states[i].state[s], n, 0.0f);
        }
    }
    return CAIRN_OK;
}

cairn_status cairn__optimizer_create(const struct cairn_optimizer *like, cairn_optimizer **out) {
    cairn_status st = CAIRN_OK;
    struct cairn_optimizer *o = NULL;
    TRY(cairn__calloc(1, sizeof(*o), (void **)&o));
    *o = *like;
    o->set->users++;
    TRY(cairn__calloc(o->set->count, sizeof(o->states[0]), (void **)&o->states));
    TRY(make_states(o));
    *out = o;
    return CAIRN_OK;
out:
    cairn_optimizer_destroy(&o);
    return st;
}

void cairn_optimizer_destroy(cairn_optimizer **optimizer) {
    if (!optimizer || !*optimizer) return;
    struct cairn_optimizer *o = *optimizer;
    if (o->hook.ctx) {
        cairn__log(CAIRN_LOG_ERROR,
                   "cairn_optimizer_destroy: its amp context is alive, so it is kept; amp_destroy first");
        return;
    }
    o->set->users--;
    for (size_t i = 0; o->states && i < o->set->count; i++) {
        for (int s = 0; s < CAIRN__MAX_STATES; s++) cairn__device_free(o->set->env->device, o->states[i].state[s]);
    }
    cairn__free(o->states);
    cairn__free(o);
    *optimizer = NULL;
}

void cairn__set_step_hook(cairn_optimizer *optimizer, const struct cairn__step_hook *hook) {
    optimizer->hook = hook ? *hook : (struct cairn__step_hook){0};
}

void cairn_zero_grad(cairn_optimizer *optimizer) {
    if (optimizer) cairn__param_set_zero_grad(optimizer->set);
}

static struct cairn__update update_of(struct cairn__param *p) {
    struct cairn__update u = {.weights = p->data, .n = p->n};
    if (p->dtype == CAIRN_F32) {
        u.mode = CAIRN__W_F32;
    } else if (p->master) {
        u.mode = p->dtype == CAIRN_F16 ? CAIRN__W_F32_F16 : CAIRN__W_F32_BF16;
        u.weights = p->master;
        u.half = p->data;
    } else {
        u.mode = p->dtype == CAIRN_F16 ? CAIRN__W_F16 : CAIRN__W_BF16;
    }
    return u;
}

static cairn_status update_param(struct cairn_optimizer *o, size_t i) {
    struct cairn__param *p = o->set->params[i];
    struct cairn__update u = update_of(p);
    cairn_status st = cairn__param_grad_final(p, &u.grad, &u.grad_dtype, &u.factor);
    if (st != CAIRN_OK || !u.grad) return st;
    o->states[i].steps++;
    o->kind->update(o, o->set->env->device->kernels, &o->states[i], &u);
    return CAIRN_OK;
}

static cairn_status update_all(struct cairn_optimizer *o) {
    for (size_t i = 0; i < o->set->count; i++) {
        cairn_status st = update_param(o, i);
        if (st != CAIRN_OK) return st;
    }
    cairn__param_set_weights_changed(o->set);
    return CAIRN_OK;
}

cairn_status cairn_step(cairn_optimizer *optimizer) {
    REQUIRE(optimizer, CAIRN_EINVAL, "optimizer is NULL");
    struct cairn_optimizer *o = optimizer;
    REQUIRE(!o->set->incomplete, CAIRN_ESTATE,
            "cairn_step: the backward before it failed, so its gradients are incomplete; nothing was written");
    cairn_status st = CAIRN_OK;
    uint64_t begin = cairn__trace_on() ? cairn__now_ns() : 0;
    if (o->hook.before) st = o->hook.before(o->hook.ctx, o);
    if (st != CAIRN_OK) return st;

    o->last_skipped = o->set->found && o->set->skip_nonfinite;
    if (!o->last_skipped) st = update_all(o);
    if (st != CAIRN_OK) return st;
    *(o->last_skipped ? &o->skipped : &o->steps) += 1;
    cairn__trace("optim", o->last_skipped ? "step_skipped" : "step", o->steps + o->skipped, 0, begin);

    if (o->hook.after) st = o->hook.after(o->hook.ctx, o, !o->last_skipped);
    o->set->found = 0; /* consumed; a further step over the same gradients looks at them again */
    o->set->checked = false;
    return st;
}

int cairn_step_skipped(const cairn_optimizer *optimizer) {
    return optimizer && optimizer->last_skipped;
}

int64_t cairn_optimizer_steps(const cairn_optimizer *optimizer) {
    return optimizer ? optimizer->steps : 0;
}

int64_t cairn_optimizer_skipped(const cairn_optimizer *optimizer) {
    return optimizer ? optimizer->skipped : 0;
}

cairn_status cairn_optimizer_set_lr(cairn_optimizer *optimizer, double lr) {
    REQUIRE(optimizer, CAIRN_EINVAL, "optimizer is NULL");
    cairn_status st = cairn__check_rate(optimizer->kind->name, "lr", lr);
    if (st == CAIRN_OK) optimizer->lr = lr;
    return st;
}

double cairn_optimizer_lr(const cairn_optimizer *optimizer) {
    return optimizer ? optimizer->lr : 0;
}

cairn_param_set *cairn_optimizer_params(cairn_optimizer *optimizer) {
    return optimizer ? optimizer->set : NULL;
}
