/* The state that amp saves: its scalers, and for each optimizer's guard the losses that wait for its step. */
#include <limits.h>
#include <stdio.h>

#include "cairn/amp.h"
#include "context.h"
#include "core/status.h"
#include "optim/hooks.h"
#include "param/stateful.h"

/* ---- one scaler; names begin with prefix ---- */

/* A checkpoint has the fields of the kind that was saved. After the state from which the next update starts come the
 * other results of the last update. */
static cairn_status list_scaler(const amp_scaler *s, const char *prefix, enum cairn__entry_owner owner,
                                struct cairn__entries *entries) {
    struct amp_scaler_state state = AMP_SCALER_STATE_INIT;
    struct cairn__scaler_state all;
    cairn_status st = CAIRN_OK;
    TRY(amp_scaler_get_state(s, &state));
    TRY(cairn__device_download(s->env->device, &all, s->state, sizeof(all)));
    TRY(cairn__entries_add_i64(entries, owner, (int64_t)state.kind, "%skind", prefix));
    for (int i = 0; i < CAIRN__SCALER_FIELDS; i++) {
        const struct cairn__scaler_field *f = &cairn__scaler_fields[i];
        const void *at = (const char *)&state + f->offset;
        const bool is_listed = f->only && cairn__entries_is_load(entries)
                                   ? cairn__entries_has(entries, "%s%s", prefix, f->name)
                                   : cairn__scaler_has_field(state.kind, f);
        if (!is_listed) continue;
        if (f->type == CAIRN__FIELD_DOUBLE)
            TRY(cairn__entries_add_f64(entries, owner, *(const double *)at, "%s%s", prefix, f->name));
        else
            TRY(cairn__entries_add_i64(entries, owner,
                                       f->type == CAIRN__FIELD_INT64 ? *(const int64_t *)at : *(const int *)at, "%s%s",
                                       prefix, f->name));
    }
    TRY(cairn__entries_add_i64(entries, owner, all.last_found, "%slast_found", prefix));
    TRY(cairn__entries_add_i64(entries, owner, all.verdict, "%sverdict", prefix));
out:
    return st;
}

static cairn_status read_field(const struct cairn__scaler_field *f, const char *prefix,
                               const struct cairn__entries *entries, struct amp_scaler_state *state) {
    void *const at = (char *)state + f->offset;
    if (f->type == CAIRN__FIELD_DOUBLE) {
        *(double *)at = cairn__entries_f64(entries, "%s%s", prefix, f->name);
        return CAIRN_OK;
    }
    const int64_t value = cairn__entries_i64(entries, "%s%s", prefix, f->name);
    REQUIRE(f->type == CAIRN__FIELD_INT64 || (value >= INT_MIN && value <= INT_MAX), CAIRN_EINVAL,
            "loss scaler: %s%s is %lld, which is too large", prefix, f->name, (long long)value);
    if (f->type == CAIRN__FIELD_INT64) {
        *(int64_t *)at = value;
    } else {
        *(int *)at = (int)value;
    }
    return CAIRN_OK;
}

/* Changes nothing yet: the caller gives *next to cairn__scaler_put. */
static cairn_status read_scaler(amp_scaler *s, const char *prefix, const struct cairn__entries *entries,
                                struct cairn__scaler_state *next) {
    struct amp_scaler_state state = AMP_SCALER_STATE_INIT;
    char where[64];
    cairn_status st = CAIRN_OK;
    snprintf(where, sizeof(where), "loss scaler: %s", prefix);
    const int64_t kind = cairn__entries_i64(entries, "%skind", prefix);
    state.kind = (amp_scaler_kind)(kind == (int)kind ? kind : 0);
    for (int i = 0; i < CAIRN__SCALER_FIELDS; i++) {
        const struct cairn__scaler_field *f = &cairn__scaler_fields[i];
        if (cairn__scaler_has_field(state.kind, f)) TRY(read_field(f, prefix, entries, &state));
    }
    TRY(cairn__scaler_state_take(&state, where, next));
    TRY(cairn__scaler_check_kind(s, state.kind, where));
    TRY(cairn__scaler_synchronize(s, where));
    next->last_found = cairn__entries_i64(entries, "%slast_found", prefix) != 0;
    next->verdict = (int32_t)cairn__entries_i64(entries, "%sverdict", prefix);
    REQUIRE(next->verdict >= CAIRN__SCALER_KEPT && next->verdict <= CAIRN__SCALER_AT_FLOOR, CAIRN_EINVAL,
            "%sverdict is %d, which is none", where, (int)next->verdict);
out:
    return st;
}

/* ---- a scaler by itself ---- */

static struct cairn_env *env_of_scaler(const void *object) {
    return ((const amp_scaler *)object)->env;
}

/* A scaler by itself may scale losses of any parameters. */
static cairn_status list_own(void *object, struct cairn__entries *entries) {
    const amp_scaler *s = object;
    enum cairn__entry_owner owner = CAIRN__ENTRY_SHARED;
    cairn_status st = CAIRN_OK;
    TRY(cairn__env_check_between_steps(s->env));
    for (const struct cairn_param_set *set = cairn__last_set(s->env); set; set = set->next) {
        if (cairn__params_entry_owner(set->params, set->count) != CAIRN__ENTRY_SHARED) owner = CAIRN__ENTRY_RANK;
    }
    TRY(list_scaler(s, "", owner, entries));
out:
    return st;
}

static cairn_status check_own(const void *object, const struct cairn__entries *entries) {
    struct cairn__scaler_state next;
    return read_scaler((amp_scaler *)object, "", entries, &next);
}

static cairn_status own_loaded(void *object, const struct cairn__entries *entries) {
    struct cairn__scaler_state next;
    const cairn_status st = read_scaler(object, "", entries, &next);
    if (st == CAIRN_OK) cairn__scaler_put(object, &next);
    return st;
}

static const struct cairn__stateful_ops scaler_ops = {
    .kind = "loss scaler", .env = env_of_scaler, .list = list_own, .check = check_own, .loaded = own_loaded};

cairn_stateful amp_scaler_stateful(amp_scaler *scaler) {
    return (cairn_stateful){&scaler_ops, scaler};
}

/* ---- a context ---- */

static const char OWN[] = "step.";

static struct cairn_env *env_of(const void *object) {
    return ((const amp_context *)object)->env;
}

static enum cairn__entry_owner owner_of(const amp_context *amp) {
    for (size_t i = 0; i < amp->num_sets; i++) {
        if (cairn__params_entry_owner(amp->sets[i]->params, amp->sets[i]->count) != CAIRN__ENTRY_SHARED)
            return CAIRN__ENTRY_RANK;
    }
    return CAIRN__ENTRY_SHARED;
}

static void scaler_name(int id, char prefix[32]) {
    snprintf(prefix, 32, "loss_scaler%d.", id);
}

static cairn_status list(void *object, struct cairn__entries *entries) {
    const amp_context *amp = object;
    const enum cairn__entry_owner owner = owner_of(amp);
    char prefix[32];
    cairn_status st = CAIRN_OK;
    REQUIRE(!amp->in_step, CAIRN_ESTATE, "amp_begin_step waits for its amp_end_step: call it first");
    for (size_t i = 0; i < amp->num_sets; i++)
        TRY(cairn__params_check_between_steps(amp->env, amp->sets[i]->params, amp->sets[i]->count));
    TRY(cairn__env_check_between_steps(amp->env));
    TRY(cairn__entries_add_i64(entries, owner, amp->policy.num_losses, "num_losses"));
    TRY(cairn__entries_add_i64(entries, owner, amp->shown.id, "shown_loss"));
    for (int id = 0; id < amp->policy.num_losses; id++) {
        scaler_name(id, prefix);
        TRY(list_scaler(amp->scalers[id], prefix, owner, entries));
    }
    for (size_t i = 0; i < amp->num_guards; i++) {
        const struct cairn__amp_guard *g = amp->guards[i];
        TRY(cairn__entries_add_i64(entries, owner, (int64_t)g->losses, "optimizers.%zu.losses", i));
        TRY(cairn__entries_add_i64(entries, owner, g->micro_batch, "optimizers.%zu.micro_batch", i));
        TRY(cairn__entries_add_i64(entries, owner, g->checks_late, "optimizers.%zu.checks_late", i));
        TRY(cairn__entries_add_i64(entries, owner, g->checked_late, "optimizers.%zu.checked_late", i));
    }
    if (amp->own) TRY(cairn__optimizer_list_state(amp->own, OWN, entries));
    if (amp->fp8) TRY(cairn__fp8_casts_list(amp->fp8, entries));
out:
    return st;
}

static cairn_status read_scalers(const amp_context *amp, const struct cairn__entries *entries,
                                 struct cairn__scaler_state next[AMP_MAX_LOSSES]) {
    const int64_t losses = cairn__entries_i64(entries, "num_losses"), shown = cairn__entries_i64(entries, "shown_loss");
    char prefix[32];
    cairn_status st = CAIRN_OK;
    REQUIRE(losses == amp->policy.num_losses && shown >= 0 && shown < losses, CAIRN_EINVAL,
            "amp: it was saved with %lld loss scalers, the last one used being %lld, and has %d", (long long)losses,
            (long long)shown, amp->policy.num_losses);
    for (size_t i = 0; i < amp->num_guards; i++) {
        const int64_t micro_batch = cairn__entries_i64(entries, "optimizers.%zu.micro_batch", i);
        REQUIRE(micro_batch >= 0 && micro_batch <= INT_MAX, CAIRN_EINVAL, "amp: optimizers.%zu.micro_batch is %lld", i,
                (long long)micro_batch);
    }
    for (int id = 0; id < amp->policy.num_losses; id++) {
        scaler_name(id, prefix);
        TRY(read_scaler(amp->scalers[id], prefix, entries, &next[id]));
    }
out:
    return st;
}

static cairn_status check(const void *object, const struct cairn__entries *entries) {
    const amp_context *amp = object;
    struct cairn__scaler_state next[AMP_MAX_LOSSES];
    cairn_status st = CAIRN_OK;
    TRY(read_scalers(amp, entries, next));
    if (amp->own) TRY(cairn__optimizer_check_state(amp->own, OWN, entries));
    if (amp->fp8) TRY(cairn__fp8_casts_check(amp->fp8, entries));
out:
    return st;
}

static cairn_status loaded(void *object, const struct cairn__entries *entries) {
    amp_context *amp = object;
    struct cairn__scaler_state next[AMP_MAX_LOSSES];
    cairn_status st = CAIRN_OK;
    TRY(read_scalers(amp, entries, next));
    TRY(cairn__env_read_reports(amp->env));
    if (amp->own) TRY(cairn__optimizer_state_loaded(amp->own, OWN, entries));
    if (amp->fp8) cairn__fp8_casts_loaded(amp->fp8, entries);
    for (int id = 0; id < amp->policy.num_losses; id++) cairn__scaler_put(amp->scalers[id], &next[id]);
    for (size_t i = 0; i < amp->num_guards; i++) {
        struct cairn__amp_guard *g = amp->guards[i];
        g->losses = (uint64_t)cairn__entries_i64(entries, "optimizers.%zu.losses", i);
        g->micro_batch = (int)cairn__entries_i64(entries, "optimizers.%zu.micro_batch", i);
        g->checks_late = cairn__entries_i64(entries, "optimizers.%zu.checks_late", i) != 0;
        g->checked_late = cairn__entries_i64(entries, "optimizers.%zu.checked_late", i) != 0;
        g->last_before = 0; /* all later reports are of steps after the load, whatever their number */
    }
    amp->shown.id = (int)cairn__entries_i64(entries, "shown_loss");
    amp->shown.counted = false;
out:
    return st;
}

static const struct cairn__stateful_ops ops = {
    .kind = "amp context", .env = env_of, .list = list, .check = check, .loaded = loaded};

cairn_stateful amp_stateful(amp_context *amp) {
    return (cairn_stateful){&ops, amp};
}
