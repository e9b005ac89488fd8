/* Explicit scaling, as with torch's GradScaler: scale, backward, unscale, step, update.
 *
 * A gradient keeps the scale of its own backward, and every reader multiplies by the inverse. This file checks the
 * order of the calls, and passes an overflow to the gradient's optimizer (through a guard) and to the scaler, which
 * amp_scaler_update updates once. The first call that names an optimizer creates its guard; an optimizer of a context
 * has the context's guard. */
#include "core/alloc.h"
#include "core/status.h"
#include "guard.h"

enum stage { READY, UNSCALED, STEPPED };

struct user {
    cairn_optimizer *optimizer;
    struct cairn__amp_guard *guard;
    bool is_guard_ours;
    enum stage stage; /* since the last update */
    bool recorded;    /* its gradients were checked since the last update */
};

struct cairn__users {
    amp_scaler *scaler; /* the scaler of the guards made here */
    struct user *list;
    size_t count, capacity;
    bool recorded;   /* for any optimizer, even a destroyed one */
    bool has_scaled; /* a loss was scaled, ever */
};

/* ---- optimizers come and go ---- */

static cairn_status make_users(amp_scaler *s) {
    if (s->users) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*s->users), (void **)&s->users));
    s->users->scaler = s;
out:
    return st;
}

static bool has_scaler(const struct cairn__amp_guard *g, const amp_scaler *s) {
    for (int id = 0; id < g->num_scalers; id++) {
        if (g->scalers[id] == s) return true;
    }
    return false;
}

static void optimizer_ends(struct cairn__amp_guard *guard) {
    struct cairn__users *users = guard->scalers[0]->users;
    for (size_t i = 0; i < users->count; i++) {
        if (users->list[i].guard == guard) users->list[i--] = users->list[--users->count];
    }
    cairn__guard_destroy(&guard);
}

static cairn_status find_guard(amp_scaler *s, cairn_optimizer *o, const char *call, struct user *u) {
    cairn_status st = CAIRN_OK;
    u->guard = cairn__step_guard_of(o);
    if (u->guard) {
        REQUIRE(has_scaler(u->guard, s), CAIRN_ESTATE, "%s: the optimizer belongs to %s", call,
                u->guard->owner ? "an amp context; use the scaler that amp_scaler_of returns for it"
                                : "another amp_scaler; step with that one, or destroy it first");
        return CAIRN_OK;
    }
    REQUIRE(s->is_own, CAIRN_EINVAL,
            "%s: the scaler belongs to an amp context, and the optimizer was not given to its amp_initialize", call);
    TRY(cairn__guard_create(o, NULL, &s->users->scaler, 1, true, false, &u->guard));
    u->guard->ending = optimizer_ends;
    u->is_guard_ours = true;
out:
    return st;
}

/* The entry of an optimizer; the pointer is valid until the next call. */
static cairn_status find_user(amp_scaler *s, cairn_optimizer *o, const char *call, struct user **out) {
    cairn_status st = CAIRN_OK;
    struct cairn__users *users = s->users;
    for (size_t i = 0; i < users->count; i++) {
        *out = &users->list[i];
        if ((*out)->optimizer == o) return CAIRN_OK;
    }
    struct user fresh = {.optimizer = o};
    TRY(cairn__grow((void **)&users->list, &users->capacity, users->count + 1, sizeof(users->list[0])));
    TRY(find_guard(s, o, call, &fresh));
    *out = &users->list[users->count++];
    **out = fresh;
out:
    return st;
}

/* Prepares for the next step. If unscale found an overflow and no step followed, the next step is not skipped for it,
 * unless losses of a context are pending for that optimizer. */
static void begin_again(amp_scaler *s) {
    for (size_t i = 0; s->users && i < s->users->count; i++) {
        struct user *u = &s->users->list[i];
        if (u->stage == UNSCALED && !u->guard->losses) cairn__optimizer_forget_found(u->optimizer);
        u->stage = READY;
        u->recorded = false;
    }
    if (s->users) s->users->recorded = false;
    s->is_explicit = s->is_own;
}

void cairn__scaler_end(amp_scaler **scaler) {
    if (!scaler || !*scaler) return;
    amp_scaler *s = *scaler;
    cairn__scaler_read_last_reports(s); /* completes the records */
    struct cairn__users *users = s->users;
    if (users) {
        if (s->is_own) begin_again(s); /* a context's guards have ended before */
        for (size_t i = 0; i < users->count; i++) {
            if (users->list[i].is_guard_ours) cairn__guard_destroy(&users->list[i].guard);
        }
        cairn__free(users->list);
        cairn__free(users);
        s->users = NULL;
    }
    cairn__scaler_free(scaler);
}

cairn_status amp_scaler_create(cairn_env *env, const struct amp_scaler_options *options, amp_scaler **out) {
    REQUIRE(out, CAIRN_EINVAL, "amp_scaler_create: out is NULL");
    REQUIRE(env, CAIRN_EINVAL, "amp_scaler_create: env is NULL");
    cairn_status st = CAIRN_OK;
    struct cairn__scaler_state fresh;
    const struct amp_scaler_options torch = {.struct_size = sizeof(torch), .kind = AMP_SCALER_TORCH};
    if (!options) options = &torch;
    TRY(cairn__scaler_resolve(options, 0, &fresh));
    TRY(cairn__scaler_create(env, &fresh, options, out));
    (*out)->is_own = (*out)->is_explicit = true;
    env->places[CAIRN__PLACE_OF_AMP].alive++;
out:
    return st;
}

void amp_scaler_destroy(amp_scaler **scaler) {
    if (!scaler || !*scaler) return;
    if ((*scaler)->is_own) cairn__scaler_end(scaler);
    *scaler = NULL;
}

/* ---- checking ---- */

static cairn_status check_call(amp_scaler *s, cairn_optimizer *o, const char *call) {
    REQUIRE(s && o, CAIRN_EINVAL, "%s: scaler and optimizer must be set", call);
    REQUIRE(cairn__optimizer_env(o) == s->env, CAIRN_EINVAL, "%s: the optimizer belongs to another environment", call);
    return make_users(s);
}

static bool has_gradients(const cairn_optimizer *o) {
    struct cairn__param *const *params = cairn__optimizer_param_list(o);
    for (size_t i = 0; i < cairn_optimizer_num_params(o); i++) {
        if (cairn__grad_exists(params[i]->gradient)) return true;
    }
    return false;
}

static cairn_status check_gradients(amp_scaler *s, struct user *u, const char *call) {
    cairn_status st = CAIRN_OK;
    uint32_t *const raises[] = {&s->state->found, cairn__optimizer_skip(u->optimizer)};
    TRY(cairn__params_check_settled(call, cairn__optimizer_param_list(u->optimizer),
                                    cairn_optimizer_num_params(u->optimizer)));
    TRY(cairn__params_use_unsynced(cairn__optimizer_param_list(u->optimizer),
                                   cairn_optimizer_num_params(u->optimizer)));
    TRY(cairn__env_resolve(s->env));
    REQUIRE(s->users->has_scaled || s->pending || s->known.updates, CAIRN_ESTATE,
            "%s: this scaler has scaled no loss yet; call cairn_backward(amp_scaler_scale(scaler, loss)) first", call);
    REQUIRE(
        !cairn__params_incomplete(cairn__optimizer_param_list(u->optimizer), cairn_optimizer_num_params(u->optimizer)),
        CAIRN_ESTATE,
        "%s: the last backward failed, so the gradients are incomplete; call cairn_zero_grad and run the next backward",
        call);
    s->is_explicit = true;
    if (has_gradients(u->optimizer)) u->recorded = s->users->recorded = true;
    if (u->guard->skips) cairn__guard_check_all(u->guard, raises, 2);
    if (u->stage == READY && cairn__scaler_looks(s)) {
        struct amp_scaler_statistics counted;
        TRY(cairn__optimizer_prepare(u->optimizer)); /* merges accumulated sums and slots, as the step does */
        TRY(cairn__guard_statistics(u->guard, s, &counted));
        cairn__statistics_add(&s->next, &counted);
    }
out:
    return st;
}

/* ---- the calls ---- */

cairn_tensor *amp_scaler_scale(amp_scaler *scaler, cairn_tensor *loss) {
    if (!scaler) {
        (void)cairn__fail(CAIRN_EINVAL, "amp_scaler_scale: scaler is NULL");
        return NULL;
    }
    if (!loss || scaler->is_disabled) return loss;
    if (make_users(scaler) != CAIRN_OK) return NULL;
    if (cairn__env_resolve(scaler->env) != CAIRN_OK) return NULL; /* backward adds to gradients */
    cairn_tensor *scaled = cairn__scaler_scale(scaler, loss, NULL);
    if (!scaled) return NULL;
    scaler->is_explicit = scaler->users->has_scaled = true;
    cairn__scaler_add_pending(scaler);
    return scaled;
}

cairn_status amp_scaler_unscale(amp_scaler *scaler, cairn_optimizer *optimizer) {
    static const char call[] = "amp_scaler_unscale";
    cairn_status st = CAIRN_OK;
    struct user *u = NULL;
    TRY(check_call(scaler, optimizer, call));
    if (scaler->is_disabled) return CAIRN_OK;
    TRY(find_user(scaler, optimizer, call, &u));
    REQUIRE(u->stage != UNSCALED, CAIRN_ESTATE,
            "%s: unscale has already been called on this optimizer since the last update", call);
    REQUIRE(u->stage != STEPPED, CAIRN_ESTATE, "%s: unscale is being called after step; amp_scaler_update comes first",
            call);
    TRY(check_gradients(scaler, u, call));
    TRY(cairn__optimizer_unscale(optimizer));
    u->stage = UNSCALED;
out:
    return optimizer ? cairn__optimizer_end_sharers(optimizer, st) : st;
}

static cairn_status step(amp_scaler *s, cairn_optimizer *o) {
    static const char call[] = "amp_scaler_step";
    cairn_status st = CAIRN_OK;
    struct user *u = NULL;
    TRY(find_user(s, o, call, &u));
    REQUIRE(u->stage != STEPPED, CAIRN_ESTATE,
            "%s: step has already been called since the last update; amp_scaler_update comes after all optimizers",
            call);
    TRY(check_gradients(s, u, call));
    REQUIRE(u->recorded, CAIRN_ESTATE,
            "%s: no inf checks were recorded for this optimizer; none of its parameters has a gradient", call);
    u->guard->is_step_explicit = true;
    st = cairn_step(o);
    u->guard->is_step_explicit = false;
    if (st == CAIRN_OK || st == CAIRN_ENUMERIC) u->stage = STEPPED;
out:
    return cairn__optimizer_end_sharers(o, st);
}

cairn_status amp_scaler_step(amp_scaler *scaler, cairn_optimizer *optimizer, int *stepped) {
    cairn_status st = CAIRN_OK;
    TRY(check_call(scaler, optimizer, "amp_scaler_step"));
    if (stepped)
        TRY(cairn__device_refuse_recording(scaler->env->device,
                                           "whether the step was skipped is not known yet; pass NULL for stepped"));
    TRY(scaler->is_disabled ? cairn_step(optimizer) : step(scaler, optimizer));
    if (!stepped) return CAIRN_OK;
    TRY(cairn_env_synchronize(scaler->env));
    *stepped = !cairn_optimizer_step_skipped(optimizer);
out:
    return st;
}

cairn_status amp_scaler_update(amp_scaler *scaler) {
    REQUIRE(scaler, CAIRN_EINVAL, "amp_scaler_update: scaler is NULL");
    if (scaler->is_disabled) return CAIRN_OK;
    REQUIRE(scaler->users && scaler->users->recorded, CAIRN_ESTATE,
            "amp_scaler_update: no inf checks were recorded prior to update; amp_scaler_step comes first");
    cairn_status st = CAIRN_OK;
    cairn__scaler_queue_update(scaler);
    scaler->logs_updates = true;
    begin_again(scaler);
    TRY(cairn__device_check(scaler->env->device));
    TRY(cairn__scaler_read_reports(scaler));
out:
    return st;
}

cairn_status amp_scaler_set_scale(amp_scaler *scaler, double scale) {
    static const char call[] = "amp_scaler_set_scale";
    REQUIRE(scaler, CAIRN_EINVAL, "%s: scaler is NULL", call);
    const struct cairn__scaler_state *k = &scaler->known;
    REQUIRE(scale >= k->min && scale <= k->max, CAIRN_EINVAL,
            "%s: %.10g is outside the scaler's range, from its floor of %.10g to its ceiling of %.10g", call, scale,
            k->min, k->max);
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_refuse_recording(scaler->env->device,
                                       "the scale cannot be set in a graph; set it between replays"));
    TRY(cairn__scaler_read_reports(scaler)); /* reports of the old scale */
    cairn__scaler_put_scale(scaler, scale);
    if (!scaler->is_explicit) return CAIRN_OK;
    cairn__scaler_drop_found(scaler);
    begin_again(scaler);
out:
    return st;
}
