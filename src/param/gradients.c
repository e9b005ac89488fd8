/* Lists of gradients: checking for overflow, forgetting, and consuming in a step. */
#include "core/status.h"
#include "param/param.h"

/* ---- flags ---- */

static void check_slots(struct cairn_device *d, struct cairn__param *const *params, size_t count,
                        struct cairn__item *items) {
    for (cairn_dtype dtype = CAIRN_F32; dtype <= CAIRN_BF16; dtype++) {
        size_t listed = 0;
        for (size_t i = 0; i < count; i++) listed += cairn__grad_list_slot(params[i]->gradient, dtype, &items[listed]);
        if (listed) d->passes->check(d, items, listed, dtype, NULL);
    }
}

void cairn__params_check(struct cairn_device *d, struct cairn__param *const *params, size_t count,
                         struct cairn__item *items) {
    size_t listed = 0;
    check_slots(d, params, count, items);
    for (size_t i = 0; i < count; i++) listed += cairn__grad_list_accumulated(params[i]->gradient, &items[listed]);
    if (listed) d->passes->check(d, items, listed, CAIRN_F32, NULL);
}

cairn_status cairn__param_set_check(struct cairn_param_set *set) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__param_set_make_flags(set));
    cairn__params_check(set->env->device, set->params, set->count, set->items);
out:
    return st;
}

/* Skips gradients of the user's that an earlier backward wrote: this reduction did not include them. */
cairn_status cairn__param_set_on_reduced(struct cairn_param_set *set, uint32_t found) {
    cairn_status st = CAIRN_OK;
    if (found) TRY(cairn__param_set_make_flags(set));
    if (found) check_slots(set->env->device, set->params, set->count, set->items);
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        if (!set->is_users || p->reached == set->backward) cairn__grad_set_checked(p->gradient);
    }
out:
    return st;
}

/* One pass for a whole set. While a graph is recorded all flags are lowered, even if none is raised now: they may be
 * raised in a replay. */
static void lower_flags(struct cairn__param *const *params, size_t count) {
    const struct cairn_param_set *set = params[0]->set;
    struct cairn_device *d = set->env->device;
    bool touched = d->capturing, whole = count == set->count;
    for (size_t i = 0; i < count; i++) {
        touched |= cairn__grad_has_touched_flags(params[i]->gradient);
        whole &= params[i]->set == set;
    }
    if (!touched) return;
    if (whole && set->flags) d->passes->clear_flags(d, set->flags, 2 * set->flags_count);
    for (size_t i = 0; i < count && !whole; i++) cairn__grad_lower_flags(params[i]->gradient);
}

/* ---- forgetting ---- */

/* Lowers the words of bad losses if no gradient is unsynced. An optimizer has taken note of losses whose gradients were
 * reduced, unless their backward failed. */
static void forget_losses(struct cairn_param_set *set) {
    if (set->loss_comes) return;
    for (size_t i = 0; i < set->count; i++) {
        if (cairn__grad_is_unsynced(set->params[i]->gradient)) return;
    }
    cairn__param_set_forget_losses(set);
}

void cairn__params_forget(struct cairn__param *const *params, size_t count) {
    if (count) lower_flags(params, count);
    for (size_t i = 0; i < count; i++) cairn__grad_forget(params[i]->gradient);
    for (size_t i = 0; i < count; i++) {
        const bool is_new = i == 0 || params[i]->set != params[i - 1]->set;
        if (is_new && params[i]->set->losses_touched) forget_losses(params[i]->set);
    }
}

void cairn__param_set_zero_grad(struct cairn_param_set *set) {
    if (set->env->begin_step && !set->env->begin_step(set->env)) return;
    (void)cairn__env_resolve(set->env);
    cairn__params_forget(set->params, set->count);
}

void cairn_param_set_zero_grad(cairn_param_set *set) {
    if (!set || cairn__params_log_if_in_flight("cairn_param_set_zero_grad", set->params, set->count)) return;
    (void)cairn__env_resolve(set->env);
    cairn__params_forget(set->params, set->count);
}

/* ---- a step ---- */

bool cairn__params_incomplete(struct cairn__param *const *params, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (cairn__grad_is_incomplete(params[i]->gradient)) return true;
    }
    return false;
}

cairn_status cairn__params_use_unsynced(struct cairn__param *const *params, size_t count) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < count; i++) TRY(cairn__grad_use_unsynced(params[i]->gradient));
out:
    return st;
}

void cairn__params_consume(struct cairn__param *const *params, size_t count) {
    size_t run = 1;
    for (size_t i = 0; i < count; i++) params[i]->set->ranks_differ |= params[i]->set->used_unsynced;
    for (size_t i = 0; i < count; i += run) {
        const bool is_users = params[i]->set->is_users;
        for (run = 1; i + run < count && params[i + run]->set->is_users == is_users; run++) continue;
        if (is_users) cairn__params_forget(params + i, run);
        for (size_t k = i; k < i + run; k++) cairn__grad_consume(params[k]->gradient);
    }
}
