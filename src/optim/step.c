/* A step of an optimizer. It is queued and not waited for: parameters of a group with equal types go through one fused
 * pass each, which reads learning rate, step number, loss-scale factor, clipping and the skip flag where the device
 * keeps them; a last small pass counts the step, resets what holds for one step, and leaves a report. */
#include <assert.h>
#include <string.h>

#include "core/log.h"
#include "core/status.h"
#include "core/trace.h"
#include "optim/optim.h"
#include "optim/report.h"

static struct cairn_device *device_of(const struct cairn_optimizer *o) {
    return o->env->device;
}

/* ---- updates ---- */

static enum cairn__weight_mode mode_of(const struct cairn__param *p) {
    if (p->dtype == CAIRN_F32) return CAIRN__W_F32;
    if (p->master) return p->dtype == CAIRN_F16 ? CAIRN__W_F32_F16 : CAIRN__W_F32_BF16;
    if (p->stochastic) return CAIRN__W_BF16_STOCHASTIC;
    return p->dtype == CAIRN_F16 ? CAIRN__W_F16 : CAIRN__W_BF16;
}

/* Fills items[i] and keys[i] = gradient type * modes + weight mode, or -1. */
static cairn_status describe(struct cairn_optimizer *o, size_t i) {
    struct cairn__param *p = o->arrays.params[i];
    struct cairn__optim_item *item = &o->arrays.items[i];
    const enum cairn__weight_mode mode = mode_of(p);
    struct cairn__grad_view grad;
    const struct cairn__shard shard = cairn__param_shard(p);
    char *const weights = (char *)p->data + shard.first * cairn_dtype_nbytes(p->dtype);
    *item = (struct cairn__optim_item){.n = shard.n,
                                       .weights = p->master ? (void *)p->master : weights,
                                       .missed = &o->arrays.missed[i]};
    memcpy(item->state, o->arrays.moments[i].array, sizeof(item->state));
    if (mode == CAIRN__W_BF16_STOCHASTIC) {
        item->parameter = (uint32_t)i;
        item->eighth = (uint32_t)(shard.first / 8);
    } else {
        item->half = p->master && p->dtype != CAIRN_F32 ? weights : NULL;
    }
    cairn_status st = CAIRN_OK;
    TRY(cairn__grad_prepare_read(p->gradient, &grad));
    item->grad = grad.x;
    item->factor = grad.factor;
    o->arrays.keys[i] = grad.x ? (int)grad.dtype * CAIRN__NUM_STORAGE_MODES + (int)mode : -1;
out:
    return st;
}

static void update_list(struct cairn_optimizer *o, const struct cairn__param_group *group, int key) {
    size_t count = 0;
    for (size_t i = group->first; i < group->first + group->count; i++) {
        if (o->arrays.keys[i] == key) o->arrays.list[count++] = o->arrays.items[i];
    }
    if (count == 0) return;
    device_of(o)->passes->update(device_of(o), o->arrays.list, count, (cairn_dtype)(key / CAIRN__NUM_STORAGE_MODES),
                                 (enum cairn__weight_mode)(key % CAIRN__NUM_STORAGE_MODES), &group->rule,
                                 &o->table.rates[group - o->groups], o->state);
}

static cairn_status update_group(struct cairn_optimizer *o, const struct cairn__param_group *group) {
    cairn_status st = CAIRN_OK;
    enum { KEYS = 32 };
    static_assert(((int)CAIRN_BF16 + 1) * CAIRN__NUM_STORAGE_MODES <= KEYS, "a bit a key");
    struct cairn_device *d = device_of(o);
    uint32_t present = 0;
    for (size_t i = group->first; i < group->first + group->count; i++) {
        TRY(describe(o, i));
        if (o->arrays.keys[i] >= 0) present |= 1u << o->arrays.keys[i];
    }
    if (group->kind->update) TRY(group->kind->update(o, group));
    for (int key = 0; key < KEYS && !group->kind->update; key++) {
        if (present >> key & 1) update_list(o, group, key);
    }
    for (size_t i = group->first; i < group->first + group->count; i++) {
        if (o->arrays.keys[i] >= 0 || o->arrays.moments[i].waits) continue;
        d->passes->count_up(d, &o->arrays.missed[i], o->state);
    }
out:
    return st;
}

/* ---- shards: what other ranks have updated ---- */

static cairn_status check_shards(const struct cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < o->count; i++) {
        const struct cairn__param *p = o->arrays.params[i];
        if (!p->is_sharded) continue;
        REQUIRE(cairn__param_set_sharers(p->set), CAIRN_ESTATE,
                "cairn_step: ranks shared the update of '%s', and the ddp context that gathered its weights has ended "
                "without its f32 values; make the model and its optimizer anew, and load a checkpoint",
                p->name);
        if (o->kind->is_user) TRY(cairn__param_check_whole("an update of the user's", p));
    }
out:
    return st;
}

/* A group that has died since has not shared what decides on the step. */
static cairn_status check_sharers(const struct cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < o->num_sets; i++) {
        const struct cairn__grad_listener *l = o->sets[i]->listener;
        if (l && l->sharers) TRY(l->progress(l->ctx));
    }
out:
    return st;
}

static cairn_status gather_weights(const struct cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < o->num_sets; i++) {
        const struct cairn__sharers *sharers = cairn__param_set_sharers(o->sets[i]);
        if (sharers) TRY(sharers->updated(sharers->ctx, o->arrays.params, o->count));
    }
out:
    return st;
}

/* ---- the step ---- */

/* It is unscaled all the same, but an infinity goes into the weights. */
static void warn_unguarded(struct cairn_optimizer *o) {
    for (size_t i = 0; i < o->count && !o->warned; i++) {
        const struct cairn__param *p = o->arrays.params[i];
        if (!cairn__grad_is_scaled(p->gradient)) continue;
        cairn__log(CAIRN_LOG_WARNING,
                   "cairn_step: the gradient of '%s' was multiplied by a loss scale, but its optimizer was given to no "
                   "amp_initialize, so an overflow does not skip the step; give it to amp_initialize, or step with "
                   "amp_scaler_step",
                   p->name);
        o->warned = true;
    }
}

cairn_status cairn__step_begin(cairn_optimizer *o, struct cairn__step_end *end) {
    cairn_status st = CAIRN_OK;
    *end = (struct cairn__step_end){.optim = o->state,
                                    .overflows = o->arrays.overflows,
                                    .count = o->count + 1,
                                    .reports = o->reports,
                                    .names = o->arrays.report_overflows,
                                    .table = o->table};
    TRY(cairn__params_check_settled("cairn_step", o->arrays.params, o->count));
    REQUIRE(!cairn__params_incomplete(o->arrays.params, o->count), CAIRN_ESTATE,
            "cairn_step: the last backward failed, so the gradients are incomplete; no weight was changed");
    TRY(check_shards(o));
    if (!o->guard.before) warn_unguarded(o);
    TRY(o->guard.before ? o->guard.before(o->guard.ctx, end) : cairn__optimizer_prepare(o));
    TRY(check_sharers(o));
out:
    return st;
}

cairn_status cairn__step_finish(cairn_optimizer *o, const struct cairn__step_end *end) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < o->count; i++) {
        struct cairn__param *p = o->arrays.params[i];
        if (!cairn__param_requires_grad(p)) continue;
        if (p->value_type || o->kind->is_user) cairn__param_round_from_master(p);
        p->version++;
    }
    device_of(o)->passes->step_end(device_of(o), end);
    cairn__params_consume(o->arrays.params, o->count);
    o->clipped = o->noted = false;
    TRY(gather_weights(o));
    TRY(cairn__device_check(device_of(o)));
    if (device_of(o)->capturing) return CAIRN_OK; /* what was before is no recording's failure */
    o->queued++;
    if (o->guard.waits) TRY(cairn__device_synchronize(device_of(o)));
    TRY(cairn__optimizer_read_reports(o));
out:
    return st;
}

cairn_status cairn_step(cairn_optimizer *optimizer) {
    REQUIRE(optimizer, CAIRN_EINVAL, "optimizer is NULL");
    cairn_status st = CAIRN_OK;
    struct cairn__step_end end;
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    TRY(cairn__step_begin(optimizer, &end));
    TRY(cairn__optimizer_make_waiting(optimizer));
    for (size_t g = 0; g < optimizer->num_groups; g++) TRY(update_group(optimizer, &optimizer->groups[g]));
    TRY(cairn__step_finish(optimizer, &end));
out:
    if (begin_ns) cairn__trace("optim", "optimizer_step", (int64_t)optimizer->last_read, 0, begin_ns);
    return st;
}

/* ---- forgetting ---- */

static bool refuses(const char *call, const cairn_optimizer *o) {
    return !o || cairn__params_log_if_in_flight(call, o->arrays.params, o->count);
}

void cairn_optimizer_clear_grads(cairn_optimizer *optimizer) {
    if (refuses("cairn_optimizer_clear_grads", optimizer)) return;
    (void)cairn__env_resolve(optimizer->env);
    cairn__params_forget(optimizer->arrays.params, optimizer->count);
}

void cairn_zero_grad(cairn_optimizer *optimizer) {
    if (refuses("cairn_zero_grad", optimizer)) return;
    if (optimizer->env->begin_step && !optimizer->env->begin_step(optimizer->env)) return;
    (void)cairn__env_resolve(optimizer->env); /* not within a backward, whose gradients are half there */
    cairn__params_forget(optimizer->arrays.params, optimizer->count);
}
