/* A step of an optimizer, which is queued without waiting. The parameters of a group with equal types are updated by
 * one fused pass (two if the update uses norms), which reads learning rate, step number, loss-scale factor, clipping
 * coefficient and skip flag from device memory. A last small pass counts the step, resets values that apply to one
 * step, and writes a report. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
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
    void *const weights = cairn__param_weights_at(p, shard.first);
    *item = (struct cairn__optim_item){.n = shard.n,
                                       .weights = p->master ? p->master : weights,
                                       .missed = &o->arrays.missed[i],
                                       .squares = &o->arrays.squares[i]};
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

typedef void (*list_pass)(struct cairn_device *d, const struct cairn__optim_item *items, size_t count, cairn_dtype grad,
                          enum cairn__weight_mode mode, const struct cairn__optim_rule *rule,
                          const struct cairn__rates *rates, const struct cairn__optim_state *state);

static void run_lists(struct cairn_optimizer *o, const struct cairn__param_group *group, list_pass pass) {
    enum { KEYS = 32 };
    static_assert(((int)CAIRN_BF16 + 1) * CAIRN__NUM_STORAGE_MODES <= KEYS, "a bit a key");
    uint32_t present = 0;
    for (size_t i = group->first; i < group->first + group->count; i++) {
        if (o->arrays.keys[i] >= 0) present |= 1u << o->arrays.keys[i];
    }
    for (int key = 0; key < KEYS; key++) {
        size_t count = 0;
        if (!(present >> key & 1)) continue;
        for (size_t i = group->first; i < group->first + group->count; i++) {
            if (o->arrays.keys[i] == key) o->arrays.list[count++] = o->arrays.items[i];
        }
        pass(device_of(o), o->arrays.list, count, (cairn_dtype)(key / CAIRN__NUM_STORAGE_MODES),
             (enum cairn__weight_mode)(key % CAIRN__NUM_STORAGE_MODES), &group->rule,
             &o->table.rates[group - o->groups], o->state);
    }
}

static void measure_group(struct cairn_optimizer *o, const struct cairn__param_group *group) {
    if (!cairn__rule_measures(&group->rule)) return;
    run_lists(o, group, device_of(o)->passes->measure);
    if (group->rule.kind != CAIRN__OPTIM_LAMB) return;
    /* From here on LAMB's direction takes the gradient's place. */
    for (size_t i = group->first; i < group->first + group->count; i++) {
        struct cairn__optim_item *item = &o->arrays.items[i];
        if (o->arrays.keys[i] < 0) continue;
        item->grad = item->state[2];
        item->factor = NULL;
        o->arrays.keys[i] = (int)CAIRN_F32 * CAIRN__NUM_STORAGE_MODES + o->arrays.keys[i] % CAIRN__NUM_STORAGE_MODES;
    }
}

/* Combines the squares of each parameter over ranks; all is [ranks][o->count]. */
static void unite_squares(const struct cairn_optimizer *o, const struct cairn__optim_rule *rule,
                          const struct cairn__squares *all, size_t ranks, size_t i, struct cairn__squares *out) {
    const bool by_greatest = rule->kind == CAIRN__OPTIM_NOVOGRAD && rule->novograd.by_greatest;
    *out = (struct cairn__squares){0};
    for (size_t r = 0; r < ranks; r++) {
        const struct cairn__squares *of = &all[r * o->count + i];
        out->weights += of->weights;
        if (!by_greatest) out->grad += of->grad;
        else if (!isnan(out->grad) && !(of->grad <= out->grad)) out->grad = of->grad; /* keeps NaN */
    }
}

static bool measures_shards(const struct cairn_optimizer *o) {
    for (const struct cairn__param_group *g = o->groups; g < o->groups + o->num_groups; g++) {
        for (size_t i = g->first; cairn__rule_measures(&g->rule) && i < g->first + g->count; i++) {
            if (o->arrays.params[i]->is_sharded) return true;
        }
    }
    return false;
}

/* For parameters that ranks share, each rank has the squares of its shard; adds them up in rank order. */
static cairn_status share_squares(struct cairn_optimizer *o) {
    const struct cairn__sharers *sharers = cairn__optimizer_sharers(o);
    const size_t nbytes = o->count * sizeof(o->arrays.squares[0]);
    struct cairn__squares *own = NULL, *all = NULL;
    cairn_status st = CAIRN_OK;
    if (!sharers || !measures_shards(o)) return CAIRN_OK;
    TRY(cairn__device_refuse_recording(device_of(o),
                                       "the update goes by norms that ranks which share it form together on the host; "
                                       "call the step instead of recording it"));
    TRY(cairn__calloc(o->count, sizeof(own[0]), (void **)&own));
    TRY(cairn__calloc((size_t)sharers->size * o->count, sizeof(all[0]), (void **)&all));
    TRY(cairn__device_download(device_of(o), own, o->arrays.squares, nbytes));
    TRY(sharers->gather(sharers->ctx, all, own, nbytes));
    for (const struct cairn__param_group *g = o->groups; g < o->groups + o->num_groups; g++) {
        for (size_t i = g->first; i < g->first + g->count; i++) {
            if (o->arrays.params[i]->is_sharded) unite_squares(o, &g->rule, all, (size_t)sharers->size, i, &own[i]);
        }
    }
    TRY(cairn__device_upload(device_of(o), o->arrays.squares, own, nbytes));
out:
    cairn__free(own);
    cairn__free(all);
    return st;
}

static cairn_status update_group(struct cairn_optimizer *o, const struct cairn__param_group *group) {
    struct cairn_device *d = device_of(o);
    cairn_status st = CAIRN_OK;
    if (group->kind->update) TRY(group->kind->update(o, group));
    else run_lists(o, group, d->passes->update);
    for (size_t i = group->first; i < group->first + group->count; i++) {
        if (o->arrays.keys[i] >= 0 || o->arrays.moments[i].waits) continue;
        d->passes->count_up(d, &o->arrays.missed[i], o->state);
    }
out:
    return st;
}

static cairn_status update(struct cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    const double max_norm = cairn__optimizer_max_norm(o);
    TRY(cairn__optimizer_make_waiting(o));
    if (max_norm > 0) TRY(cairn__optimizer_clip_step(o, max_norm));
    for (size_t i = 0; i < o->count; i++) TRY(describe(o, i));
    for (size_t g = 0; g < o->num_groups; g++) measure_group(o, &o->groups[g]);
    TRY(share_squares(o));
    for (size_t g = 0; g < o->num_groups; g++) TRY(update_group(o, &o->groups[g]));
out:
    return st;
}

/* ---- shards that other ranks have updated ---- */

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

/* If a group has failed since, its ranks have not shared what decides on the step. */
static cairn_status check_sharers(const struct cairn_optimizer *o) {
    char cause[900];
    for (size_t i = 0; i < o->num_sets; i++) {
        const struct cairn__sharers *sharers = cairn__param_set_sharers(o->sets[i]);
        const cairn_status st = sharers ? sharers->progress(sharers->ctx) : CAIRN_OK;
        if (st == CAIRN_OK) continue;
        snprintf(cause, sizeof(cause), "%s", cairn_last_error());
        return cairn__fail(st, "cairn_step: %s", cause);
    }
    return CAIRN_OK;
}

/* ---- the step ---- */

/* Without a guard gradients are unscaled too, but an infinity reaches the weights. */
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

/* Checks that this rank makes by itself. */
static cairn_status check(struct cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < o->num_sets; i++) TRY(cairn__param_set_check_own_weights("cairn_step", o->sets[i]));
    TRY(cairn__params_check_settled("cairn_step", o->arrays.params, o->count));
    REQUIRE(!cairn__params_incomplete(o->arrays.params, o->count), CAIRN_ESTATE,
            "cairn_step: the last backward failed, so the gradients are incomplete; no weight was changed");
    TRY(check_shards(o));
    TRY(check_sharers(o));
    /* Prepares all groups before any is updated, so that a step that fails here has changed no weight and no state. */
    for (const struct cairn__param_group *g = o->groups; g < o->groups + o->num_groups; g++) {
        if (g->kind->prepare) TRY(g->kind->prepare(o, g));
    }
    if (o->guard.before) return CAIRN_OK;
    warn_unguarded(o);
    TRY(cairn__optimizer_prepare(o));
out:
    return st;
}

void cairn__step_update_scalers(cairn_optimizer *o, struct cairn__step_end *end) {
    for (int i = 0; i < end->num_scalers; i++) {
        if (end->scaler_reports[i])
            device_of(o)->passes->scaler_update(device_of(o), end->scalers[i], end->scaler_reports[i]);
        end->scaler_reports[i] = NULL;
    }
}

/* *may: all ranks that share the update may step. While it is false, an error is one that all of them return. */
static cairn_status begin(struct cairn_optimizer *o, struct cairn__step_end *end, bool *may) {
    cairn_status st = CAIRN_OK;
    *end = (struct cairn__step_end){.optim = o->state,
                                    .overflows = o->arrays.overflows,
                                    .count = o->count + 1,
                                    .reports = o->reports,
                                    .names = o->arrays.report_overflows,
                                    .table = o->table};
    *may = false;
    TRY(cairn__optimizer_check_sharers(o, "cairn_step"));
    st = check(o);
    if (st != CAIRN_OK || !o->guard.before) {
        TRY(cairn__optimizer_agree(o, "cairn_step", st));
        *may = true;
    } else {
        TRY(o->guard.before(o->guard.ctx, end, may));
    }
    TRY(check_sharers(o));
out:
    if (st != CAIRN_OK) cairn__step_update_scalers(o, end);
    return st;
}

cairn_status cairn__step_begin(cairn_optimizer *o, struct cairn__step_end *end) {
    bool may = false;
    return begin(o, end, &may);
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
    for (size_t i = 0; i < o->num_sets; i++) {
        const struct cairn__sharers *sharers = cairn__param_set_sharers(o->sets[i]);
        if (sharers) TRY(sharers->updated(sharers->ctx, o->arrays.params, o->count));
    }
    TRY(cairn__device_check(device_of(o)));
    if (device_of(o)->capturing) return CAIRN_OK; /* earlier failures are not the recording's */
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
    bool may = false;
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    TRY(begin(optimizer, &end, &may));
    st = update(optimizer);
    if (st != CAIRN_OK) cairn__step_update_scalers(optimizer, &end);
    TRY(st);
    TRY(cairn__step_finish(optimizer, &end));
out:
    if (begin_ns) cairn__trace("optim", "optimizer_step", (int64_t)optimizer->last_read, 0, begin_ns);
    return may ? cairn__optimizer_end_sharers(optimizer, st) : st;
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
    (void)cairn__env_resolve(
        optimizer->env); /* after begin_step, which refuses calls within a backward: its gradients are incomplete */
    cairn__params_forget(optimizer->arrays.params, optimizer->count);
}
