/* What a parameter set saves, and when: weights, and which of them are frozen. Also the environment's numbers, which
 * belong to no object of the program. */
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "param/param.h"
#include "param/stateful.h"

/* ---- when ---- */

cairn_status cairn__env_check_between_steps(struct cairn_env *env) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_refuse_recording(env->device, "save and load between replays"));
    for (const struct cairn_param_set *s = cairn__last_set(env); s; s = s->next)
        REQUIRE(!s->in_backward, CAIRN_ESTATE, "%s",
                s->is_users ? "gradients are being averaged: call ddp_wait, and then cairn_step"
                            : "a backward is running: save and load after the step that follows it");
    REQUIRE(env->open_losses == 0, CAIRN_ESTATE, "a scaled loss is open: call amp_scale_loss_end, and then cairn_step");
    REQUIRE(env->unstepped == 0, CAIRN_ESTATE,
            "scaled losses wait for their step, %d of them: call cairn_step, or amp_scaler_step and amp_scaler_update, "
            "first",
            env->unstepped);
out:
    return st;
}

static cairn_status check_used(const struct cairn__param *p) {
    if (!cairn__grad_is_pending(p->gradient)) return CAIRN_OK;
    REQUIRE(!cairn__grad_is_unsynced(p->gradient), CAIRN_ESTATE,
            "parameter '%s' has a gradient of ddp_no_sync that is unsynced: save and load after the step that follows "
            "a synchronised backward, or call cairn_zero_grad",
            p->name);
    REQUIRE(p->owner || p->set->amp, CAIRN_ESTATE,
            "parameter '%s' has a gradient, and no optimizer that uses it: freeze the parameter, or call "
            "cairn_param_set_zero_grad",
            p->name);
    return cairn__fail(CAIRN_ESTATE,
                       "parameter '%s' has a gradient that no step has used: call cairn_step or cairn_zero_grad first",
                       p->name);
}

cairn_status cairn__params_check_between_steps(struct cairn_env *env, struct cairn__param *const *params,
                                               size_t count) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__env_check_between_steps(env));
    for (size_t i = 0; i < count; i++) TRY(check_used(params[i]));
out:
    return st;
}

/* ---- owners ---- */

enum cairn__entry_owner cairn__param_entry_owner(const struct cairn__param *p) {
    const struct cairn__grad_listener *l = p->set->listener;
    if (p->set->env->size == 1) return CAIRN__ENTRY_SHARED;
    return l && !p->set->ranks_differ && (!l->shares_param || l->shares_param(l->ctx, p->index)) ? CAIRN__ENTRY_SHARED
                                                                                                 : CAIRN__ENTRY_RANK;
}

enum cairn__entry_owner cairn__params_entry_owner(struct cairn__param *const *params, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (cairn__param_entry_owner(params[i]) != CAIRN__ENTRY_SHARED) return CAIRN__ENTRY_RANK;
    }
    return CAIRN__ENTRY_SHARED;
}

enum cairn__entry_owner cairn__buffer_entry_owner(const struct cairn_param_set *set, const char *path) {
    const struct cairn__grad_listener *l = set->listener;
    if (set->env->size == 1) return CAIRN__ENTRY_SHARED;
    if (!l) return CAIRN__ENTRY_RANK;
    if (set->keeps_buffers) return CAIRN__ENTRY_RANK_OR_FIRST;
    return !l->shares_buffer || l->shares_buffer(l->ctx, path) ? CAIRN__ENTRY_SHARED : CAIRN__ENTRY_RANK_OR_FIRST;
}

/* ---- weights ---- */

static cairn_status check_name_is_free(const struct cairn_param_set *set, const char *name) {
    REQUIRE(!cairn__param_set_find(set, name), CAIRN_EINVAL,
            "a parameter is called '%s', which is the name of what else is saved of its set", name);
    return CAIRN_OK;
}

/* For a part, one entry by name for each parameter. Otherwise one array, which belongs to the set and stays there,
 * since a state may list the set twice. */
static cairn_status list_frozen(struct cairn_param_set *set, struct cairn__entries *entries) {
    cairn_status st = CAIRN_OK;
    const int64_t shape[] = {(int64_t)set->count};
    TRY(check_name_is_free(set, CAIRN__ENTRY_REQUIRES_GRAD));
    TRY(cairn__grow((void **)&set->listed, &set->listed_capacity, set->count + 1, sizeof(set->listed[0])));
    for (size_t i = 0; i < set->count; i++) set->listed[i] = cairn__param_requires_grad(set->params[i]);
    if (!entries->is_part) {
        TRY(cairn__entries_add_host_array(entries, cairn__params_entry_owner(set->params, set->count), CAIRN_U8, 1,
                                          shape, set->listed, CAIRN__ENTRY_REQUIRES_GRAD));
        return CAIRN_OK;
    }
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        TRY(cairn__entries_add_i64(entries, cairn__param_entry_owner(p), cairn__param_requires_grad(p), "%s.%s",
                                   CAIRN__ENTRY_REQUIRES_GRAD, p->name));
    }
out:
    return st;
}

/* Listed if on. Loaded as on if the checkpoint has it. */
static cairn_status list_switch(struct cairn_param_set *set, struct cairn__entries *entries, bool on, const char *name,
                                enum cairn__entry_owner owner) {
    cairn_status st = CAIRN_OK;
    if (entries->is_part) return CAIRN_OK; /* all replicas then have the first one's buffers */
    on = cairn__entries_is_load(entries) ? cairn__entries_has(entries, "%s", name)
                                         : on && set->listener && set->env->size > 1;
    if (!on) return CAIRN_OK;
    TRY(check_name_is_free(set, name));
    TRY(cairn__entries_add_i64(entries, owner, 1, "%s", name));
out:
    return st;
}

cairn_status cairn__param_set_list_state(struct cairn_param_set *set, struct cairn__entries *entries) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__params_check_between_steps(set->env, set->params, set->count));
    TRY(cairn__device_synchronize(set->env->device));
    REQUIRE(
        !entries->is_part || !set->ranks_differ || cairn__entries_is_load(entries), CAIRN_ESTATE,
        "'%s' is a part, and its weights are each rank's own since a step under ddp_no_sync; save before such a step",
        entries->object);
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        TRY(cairn__entries_add_array(entries, cairn__param_entry_owner(p), p->master ? CAIRN_F32 : p->dtype, p->ndim,
                                     p->shape, p->master ? (void *)p->master : p->data, "%s", p->name));
        if (p->master && p->is_sharded) cairn__entries_cut_last(entries, p->shard.first, p->shard.n);
    }
    TRY(list_frozen(set, entries));
    TRY(list_switch(set, entries, set->ranks_differ, CAIRN__ENTRY_RANKS_DIFFER, CAIRN__ENTRY_RANK));
    TRY(list_switch(set, entries, set->keeps_buffers, CAIRN__ENTRY_KEEPS_BUFFERS, CAIRN__ENTRY_RANK_OR_FIRST));
out:
    return st;
}

/* If ranks agree on what is frozen, all make the call, even those with nothing to change. */
static cairn_status require_grad(struct cairn_param_set *set, bool on) {
    static const char call[] = "loading requires_grad";
    struct cairn__param **changed = NULL;
    size_t count = 0;
    const bool is_collective = set->listener && set->listener->agree_on_frozen;
    cairn_status st = cairn__calloc(set->count, sizeof(changed[0]), (void **)&changed);
    for (size_t i = 0; st == CAIRN_OK && i < set->count; i++) {
        struct cairn__param *p = set->params[i];
        if (cairn__param_requires_grad(p) != on && (set->listed[i] != 0) == on) changed[count++] = p;
    }
    if (is_collective || count > 0) st = cairn__params_require_grad(call, set, changed, count, on, st);
    cairn__free(changed);
    return st;
}

cairn_status cairn__param_set_state_loaded(struct cairn_param_set *set, const struct cairn__entries *entries) {
    cairn_status st = CAIRN_OK;
    set->ranks_differ = cairn__entries_find(entries, CAIRN__ENTRY_RANKS_DIFFER) != NULL;
    set->keeps_buffers = cairn__entries_find(entries, CAIRN__ENTRY_KEEPS_BUFFERS) != NULL;
    for (size_t i = 0; i < set->count; i++) {
        cairn__param_round_from_master(set->params[i]);
        set->params[i]->version++;
    }
    const struct cairn__sharers *sharers = cairn__param_set_sharers(set);
    if (sharers) TRY(sharers->updated(sharers->ctx, set->params, set->count));
    cairn__params_forget(set->params, set->count);
    for (size_t i = 0; entries->is_part && i < set->count; i++)
        set->listed[i] = cairn__entries_i64(entries, "%s.%s", CAIRN__ENTRY_REQUIRES_GRAD, set->params[i]->name) != 0;
    TRY(require_grad(set, false));
    TRY(require_grad(set, true));
out:
    return st;
}

static struct cairn_env *env_of(const void *object) {
    return ((const struct cairn_param_set *)object)->env;
}

static cairn_status list(void *object, struct cairn__entries *entries) {
    return cairn__param_set_list_state(object, entries);
}

static cairn_status loaded(void *object, const struct cairn__entries *entries) {
    return cairn__param_set_state_loaded(object, entries);
}

static cairn_status weights(void *object, struct cairn_param_set **set, struct cairn__entries *buffers) {
    (void)buffers;
    *set = object;
    return CAIRN_OK;
}

static const struct cairn__stateful_ops set_ops = {
    .kind = "parameter set", .env = env_of, .list = list, .loaded = loaded, .weights = weights};

cairn_stateful cairn_param_set_stateful(cairn_param_set *set) {
    return (cairn_stateful){&set_ops, set};
}

/* ---- the environment ---- */

static struct cairn_env *itself(const void *object) {
    return (struct cairn_env *)(uintptr_t)object;
}

static cairn_status list_env(void *object, struct cairn__entries *entries) {
    const struct cairn_env *env = object;
    cairn_status st = CAIRN_OK;
    TRY(cairn__entries_add_i64(entries, CAIRN__ENTRY_RANK_OR_FIRST, (int64_t)env->seed, "seed"));
    TRY(cairn__entries_add_i64(entries, CAIRN__ENTRY_RANK_OR_FIRST, (int64_t)env->next_stream, "next_stream"));
out:
    return st;
}

static cairn_status check_env(const void *object, const struct cairn__entries *entries) {
    const int64_t next = cairn__entries_i64(entries, "next_stream");
    (void)object;
    REQUIRE(next >= 0 && next < (int64_t)1 << 48, CAIRN_EINVAL,
            "next_stream is %lld; the numbers of random streams are from 0 to 2^48", (long long)next);
    return CAIRN_OK;
}

static cairn_status env_loaded(void *object, const struct cairn__entries *entries) {
    struct cairn_env *env = object;
    env->seed = (uint64_t)cairn__entries_i64(entries, "seed");
    env->next_stream = (uint64_t)cairn__entries_i64(entries, "next_stream");
    return CAIRN_OK;
}

static const struct cairn__stateful_ops env_ops = {
    .kind = "environment", .env = itself, .list = list_env, .check = check_env, .loaded = env_loaded};

cairn_stateful cairn__env_stateful(struct cairn_env *env) {
    return (cairn_stateful){&env_ops, env};
}
