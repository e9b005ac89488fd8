/* A backward as a parameter set sees it: it begins, writes gradients, and settles or fails. It calls its listener
 * (ddp), unless its gradients stay unsynced. */
#include "core/status.h"
#include "param/param.h"
#include "param/watcher.h"

/* The listener to call; NULL = none, or gradients stay unsynced. */
static const struct cairn__grad_listener *listener_of(const struct cairn_param_set *set) {
    return set->unsynced ? NULL : set->listener;
}

cairn_status cairn__param_set_begin_backward(struct cairn_param_set *set, uint64_t backward,
                                             const struct cairn__loss_scale *scale) {
    const struct cairn__grad_listener *listener = listener_of(set);
    set->backward = backward;
    set->scale = scale;
    set->loss_comes = false;
    set->only_unsynced |= set->unsynced;
    set->in_backward = listener || !set->is_users;
    return listener && listener->begin ? listener->begin(listener->ctx) : CAIRN_OK;
}

void cairn__param_grad_ready(struct cairn__param *p) {
    const struct cairn__grad_listener *listener = listener_of(p->set);
    const struct cairn__watcher *watcher = cairn__watcher_now(p->set->env);
    if (p->grad_factor) {
        struct cairn_device *d = p->set->env->device;
        void *const slot = cairn__grad_memory(p->gradient);
        const struct cairn__item item = {.n = p->n, .dst = slot, .x = slot};
        d->passes->scale(d, &item, 1, p->dtype, p->dtype, p->grad_factor, NULL);
    }
    cairn__grad_mark_written(p->gradient);
    if (watcher) watcher->grad_ready(watcher->ctx, p);
    if (listener) listener->ready(listener->ctx, p->index);
}

cairn_status cairn__param_set_progress(struct cairn_param_set *set) {
    const struct cairn__grad_listener *listener = listener_of(set);
    return listener ? listener->progress(listener->ctx) : CAIRN_OK;
}

/* If ddp reduces the gradients, settle calls this after the reduction. */
void cairn__param_set_note_declared(struct cairn_param_set *set) {
    *(set->unsynced ? &set->declared_unsynced : &set->declared) = true;
    if (set->losses) cairn__env_list_unresolved(set->env, set->losses);
}

bool cairn__param_set_take_declared(struct cairn_param_set *set, bool *only_unsynced) {
    const bool any = set->declared || set->declared_unsynced;
    *only_unsynced = !set->declared;
    set->declared = set->declared_unsynced = false;
    return any;
}

cairn_status cairn__param_set_settle(struct cairn_param_set *set) {
    const struct cairn__grad_listener *listener = listener_of(set);
    const bool were_declared = set->in_backward && set->is_users;
    set->in_backward = false;
    set->only_unsynced = set->unsynced;
    if (!set->unsynced) set->used_unsynced = false;
    if (set->unsynced && set->is_users) return cairn__param_set_keep_unsynced(set, true);
    const struct cairn__watcher *watcher = cairn__watcher_now(set->env);
    const cairn_status st = listener ? listener->settle(listener->ctx) : CAIRN_OK;
    if (st == CAIRN_OK && listener && watcher) watcher->grads_settled(watcher->ctx, set);
    if (st == CAIRN_OK && were_declared) cairn__param_set_note_declared(set);
    if (st == CAIRN_OK) cairn__params_report_refusals(set->env);
    return st;
}

void cairn__param_set_make_incomplete(struct cairn_param_set *set) {
    for (size_t i = 0; i < set->count; i++) cairn__grad_fail(set->params[i]->gradient);
}

void cairn__param_set_abort(struct cairn_param_set *set) {
    const struct cairn__grad_listener *listener = listener_of(set);
    set->in_backward = false;
    cairn__param_set_make_incomplete(set);
    if (listener) listener->failed(listener->ctx);
}

cairn_status cairn__param_set_no_gradient(struct cairn_param_set *set) {
    const struct cairn__grad_listener *listener = listener_of(set);
    const cairn_status st = listener && listener->no_gradient ? listener->no_gradient(listener->ctx) : CAIRN_OK;
    if (st != CAIRN_OK) cairn__param_set_abort(set);
    return st;
}

/* ---- unsynced ---- */

cairn_status cairn__param_set_keep_unsynced(struct cairn_param_set *set, bool on) {
    cairn_status st = CAIRN_OK;
    set->unsynced = on;
    for (size_t i = 0; i < set->count && set->is_users; i++) {
        struct cairn__grad *g = set->params[i]->gradient;
        const bool is_unsynced = cairn__grad_states(g).slot == CAIRN__SLOT_UNSYNCED;
        if (is_unsynced) TRY(cairn__grad_accumulate(g));
    }
out:
    return st;
}

void cairn__param_set_drop_unsynced(struct cairn_param_set *set) {
    set->unsynced = set->in_backward = set->spares_unsynced = set->only_unsynced = false;
    cairn__param_set_forget_losses(set);
    for (size_t i = 0; i < set->count; i++) cairn__grad_forget_unsynced(set->params[i]->gradient);
}

/* ---- scales whose memory is reused ---- */

cairn_status cairn__params_accumulate_at(struct cairn_env *env, const struct cairn__loss_scale *scale) {
    cairn_status st = CAIRN_OK;
    for (struct cairn_param_set *set = cairn__last_set(env); set; set = set->next) {
        for (size_t i = 0; i < set->count; i++) TRY(cairn__grad_accumulate_at(set->params[i]->gradient, scale));
        if (set->scale == scale) set->scale = NULL; /* the next backward sets its own */
    }
out:
    return st;
}
