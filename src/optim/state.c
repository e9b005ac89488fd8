/* What an optimizer saves: moments under their parameters' names, and as numbers its counters, its groups'
 * hyperparameters and base rates, the steps at which their schedules began, and the plateau's state. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "optim/optim.h"
#include "optim/rates.h"
#include "optim/report.h"
#include "param/stateful.h"

struct part {
    cairn_optimizer *o;
    struct cairn__entries *entries;
    const char *prefix;
    enum cairn__entry_owner owner; /* of entries that belong to no parameter */
};

static struct cairn_device *device_of(const struct cairn_optimizer *o) {
    return o->env->device;
}

/* ---- names ---- */

/* Parameters of different sets may have equal names, so the number of the set precedes the name. */
static void name_set(const struct cairn_optimizer *o, const struct cairn__param *p, char *text, size_t nbytes) {
    size_t number = 0, found = 0;
    for (size_t i = 0; i < o->num_sets; i++) {
        if (o->sets[i] == p->set) number = i;
        found += cairn__param_set_find(o->sets[i], p->name) != NULL;
    }
    text[0] = '\0';
    if (found > 1) snprintf(text, nbytes, "%zu:", number);
}

/* ---- parameters ---- */

static cairn_status list_moments(const struct part *part, const struct cairn__param_group *group, size_t i) {
    cairn_optimizer *const o = part->o;
    const struct cairn__param *p = o->arrays.params[i];
    const enum cairn__entry_owner owner = cairn__param_entry_owner(p);
    cairn_status st = CAIRN_OK;
    TRY(cairn__optimizer_make_moments(o, i, group));
    char set[24];
    name_set(o, p, set, sizeof(set));
    for (int s = 0; s < cairn__rule_states(&group->rule); s++) {
        const bool is_number = cairn__rule_elements(&group->rule, s, 0) == 1;
        TRY(cairn__entries_add_array(part->entries, owner, CAIRN_F32, is_number ? 0 : p->ndim,
                                     is_number ? NULL : p->shape, o->arrays.moments[i].array[s], "%s%s.%s%s",
                                     part->prefix, group->kind->state_names[s], set, p->name));
        if (p->is_sharded && !is_number) cairn__entries_cut_last(part->entries, p->shard.first, p->shard.n);
    }
out:
    return st;
}

/* On a load, the checkpoint decides which parameters wait. If it lacks a parameter entirely, its moments are reported
 * as missing. */
static cairn_status list_param(const struct part *part, const struct cairn__param_group *group, size_t i) {
    const struct cairn__param *p = part->o->arrays.params[i];
    bool waits = part->o->arrays.moments[i].waits;
    char set[24];
    name_set(part->o, p, set, sizeof(set));
    if (cairn__entries_is_load(part->entries))
        waits = cairn__entries_has(part->entries, "%swaits.%s%s", part->prefix, set, p->name);
    part->o->arrays.moments[i].listed_as_waiting = waits;
    if (!waits) return list_moments(part, group, i);
    return cairn__entries_add_i64(part->entries, cairn__param_entry_owner(p), 1, "%swaits.%s%s", part->prefix, set,
                                  p->name);
}

static cairn_status list_params(const struct part *part) {
    cairn_status st = CAIRN_OK;
    cairn_optimizer *const o = part->o;
    const int64_t shape[] = {(int64_t)o->count};
    if (o->kind->is_user) return CAIRN_OK; /* the user saves its own */
    for (const struct cairn__param_group *g = o->groups; g < o->groups + o->num_groups; g++) {
        for (size_t i = g->first; i < g->first + g->count; i++) TRY(list_param(part, g, i));
    }
    if (!part->entries->is_part) {
        TRY(cairn__entries_add_array(part->entries, part->owner, CAIRN_I64, 1, shape, o->arrays.missed, "%smissed",
                                     part->prefix));
        return CAIRN_OK;
    }
    for (size_t i = 0; i < o->count; i++) { /* under the names of their parameters */
        const struct cairn__param *p = o->arrays.params[i];
        char set[24];
        name_set(o, p, set, sizeof(set));
        TRY(cairn__entries_add_array(part->entries, cairn__param_entry_owner(p), CAIRN_I64, 0, NULL,
                                     &o->arrays.missed[i], "%smissed.%s%s", part->prefix, set, p->name));
    }
out:
    return st;
}

/* ---- numbers ---- */

static cairn_status add_i64(const struct part *part, int64_t value, const char *name) {
    return cairn__entries_add_i64(part->entries, part->owner, value, "%s%s", part->prefix, name);
}

static cairn_status add_f64(const struct part *part, double value, const char *name) {
    return cairn__entries_add_f64(part->entries, part->owner, value, "%s%s", part->prefix, name);
}

/* Whether to list an optional entry: saving, if the program has it; loading, if the checkpoint has it, in which case it
 * is read even if the program ignores it. */
static bool is_listed(const struct part *part, const char *name, bool has) {
    return cairn__entries_is_load(part->entries) ? cairn__entries_has(part->entries, "%s%s", part->prefix, name) : has;
}

static cairn_status list_counters(const struct part *part) {
    const cairn_optimizer *o = part->o;
    struct cairn__optim_state now;
    struct cairn__overflow loss;
    const struct cairn__step_report last = cairn__optimizer_last_report(o);
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_download(device_of(o), &now, o->state, sizeof(now)));
    TRY(add_i64(part, now.steps, "steps"));
    TRY(add_i64(part, now.skipped, "skipped"));
    TRY(add_i64(part, (int64_t)now.ends, "ends"));
    TRY(add_i64(part, (int64_t)now.rounding_seed, "rounding_seed"));
    TRY(add_i64(part, last.stepped, "last.stepped"));
    TRY(add_f64(part, last.scale, "last.scale"));
    TRY(add_i64(part, last.scaler, "last.scaler"));
    TRY(add_i64(part, last.verdict, "last.verdict"));
    /* Listed only if the next step will be skipped because a loss of this optimizer overflowed, either itself or in
     * another optimizer's gradients. Not listed if noted for gradients that still exist: a step has used them, so they
     * are not saved, and the note will be forgotten with them. */
    if (is_listed(part, "skip.micro_batch", now.skip && !o->noted)) {
        TRY(cairn__device_download(device_of(o), &loss, &o->arrays.overflows[o->count], sizeof(loss)));
        TRY(add_i64(part, loss.micro_batch, "skip.micro_batch"));
        TRY(add_i64(part, loss.rank, "skip.rank"));
    }
out:
    return st;
}

static double value_of(const struct cairn__param_group *group, const struct cairn__group_field *f) {
    const void *at = (const char *)group + f->offset;
    return f->type == CAIRN__GROUP_REAL ? *(const double *)at : *(const bool *)at;
}

static void group_name(size_t g, const char *field, char name[64]) {
    snprintf(name, 64, "groups.%zu.%s", g, field);
}

static cairn_status list_group(const struct part *part, size_t g) {
    const struct cairn__param_group *group = &part->o->groups[g];
    cairn_status st = CAIRN_OK;
    char name[64];
    group_name(g, "params", name);
    if (!part->entries->is_part) TRY(add_i64(part, (int64_t)group->count, name));
    for (const struct cairn__group_field *f = group->kind->fields; f && f->name; f++) {
        group_name(g, f->name, name);
        if (!f->is_newer || is_listed(part, name, value_of(group, f) != 0))
            TRY(add_f64(part, value_of(group, f), name));
    }
    group_name(g, "used_lr", name);
    TRY(add_f64(part, cairn_optimizer_step_lr(part->o, (int)g), name));
    group_name(g, "used_momentum", name);
    TRY(add_f64(part, cairn_optimizer_step_momentum(part->o, (int)g), name));
    group_name(g, "schedule_origin", name);
    if (is_listed(part, name, group->parts != NULL)) TRY(add_i64(part, group->schedule.origin, name));
out:
    return st;
}

cairn_status cairn__optimizer_list_state(cairn_optimizer *o, const char *prefix, struct cairn__entries *entries) {
    const struct part part = {o, entries, prefix, cairn__params_entry_owner(o->arrays.params, o->count)};
    char groups[64];
    cairn_status st = CAIRN_OK;
    TRY(cairn__params_check_between_steps(o->env, o->arrays.params, o->count));
    cairn__optimizer_forget_stale(o);
    REQUIRE(!o->clipped, CAIRN_ESTATE,
            "the optimizer has clipped gradients that no step has used: call cairn_step or cairn_zero_grad first");
    TRY(cairn__device_synchronize(device_of(o)));
    TRY(cairn__optimizer_read_reports(o));
    /* So that a checkpoint of another kind lacks the entry. */
    snprintf(groups, sizeof(groups), "groups.%s", o->kind->saved_as);
    TRY(add_i64(&part, (int64_t)o->num_groups, groups));
    TRY(list_params(&part));
    TRY(list_counters(&part));
    for (size_t g = 0; g < o->num_groups; g++) TRY(list_group(&part, g));
    if (is_listed(&part, "plateau.best", o->plateau.is_on)) {
        TRY(add_f64(&part, o->plateau.best, "plateau.best"));
        TRY(add_i64(&part, o->plateau.bad, "plateau.bad"));
        TRY(add_i64(&part, o->plateau.cooling, "plateau.cooling"));
    }
out:
    return st;
}

/* ---- loaded: all numbers are checked before any is used ---- */

struct loaded {
    cairn_optimizer *o;
    const struct cairn__entries *entries;
    const char *prefix;
};

static int64_t i64_of(const struct loaded *l, const char *name) {
    return cairn__entries_i64(l->entries, "%s%s", l->prefix, name);
}

static double f64_of(const struct loaded *l, const char *name) {
    return cairn__entries_f64(l->entries, "%s%s", l->prefix, name);
}

static int64_t group_i64(const struct loaded *l, size_t g, const char *field) {
    char name[64];
    group_name(g, field, name);
    return i64_of(l, name);
}

static double group_f64(const struct loaded *l, size_t g, const char *field) {
    char name[64];
    group_name(g, field, name);
    return f64_of(l, name);
}

/* Keeps sums and differences of counters from overflowing. */
#define MAX_STEPS ((int64_t)1 << 60)

static cairn_status check_counters(const struct loaded *l) {
    const int64_t steps = i64_of(l, "steps"), skipped = i64_of(l, "skipped"), ends = i64_of(l, "ends");
    REQUIRE(steps >= 0 && skipped >= 0 && ends >= 0 && steps < MAX_STEPS && skipped < MAX_STEPS && ends < MAX_STEPS,
            CAIRN_EINVAL, "%s: steps %lld, skipped %lld and ends %lld must be from 0 to 2^60", l->o->kind->name,
            (long long)steps, (long long)skipped, (long long)ends);
    const int64_t micro_batch = i64_of(l, "skip.micro_batch"), rank = i64_of(l, "skip.rank");
    REQUIRE(micro_batch >= 0 && micro_batch <= UINT32_MAX && rank >= -1 && rank <= INT32_MAX, CAIRN_EINVAL,
            "%s: the step that is skipped next is so for micro-batch %lld of rank %lld, which there is not",
            l->o->kind->name, (long long)micro_batch, (long long)rank);
    return CAIRN_OK;
}

static cairn_status check_field(const struct loaded *l, size_t g, const struct cairn__group_field *f) {
    const double value = group_f64(l, g, f->name), own = value_of(&l->o->groups[g], f);
    const char *kind = l->o->groups[g].kind->name;
    REQUIRE(isfinite(value) && (f->type == CAIRN__GROUP_REAL || value == 0 || value == 1), CAIRN_EINVAL,
            "%s: %s of group %zu is %g", kind, f->name, g, value);
    REQUIRE(f->type != CAIRN__GROUP_FIXED || value == own, CAIRN_EINVAL,
            "%s: group %zu was saved %s %s, and is made %s it; make it as it was", kind, g,
            value != 0 ? "with" : "without", f->name, own != 0 ? "with" : "without");
    REQUIRE(l->o->env->graphs == 0 || f->is_in_memory || value == own, CAIRN_ESTATE,
            "%s: a captured graph holds %s of group %zu, %g, and %g was saved; destroy the graph first", kind, f->name,
            g, own, value);
    return CAIRN_OK;
}

static void take_fields(const struct loaded *l, size_t g, struct cairn__param_group *group) {
    for (const struct cairn__group_field *f = group->kind->fields; f && f->name; f++) {
        void *const at = (char *)group + f->offset;
        if (f->type == CAIRN__GROUP_REAL) {
            *(double *)at = group_f64(l, g, f->name);
        } else {
            *(bool *)at = group_f64(l, g, f->name) != 0;
        }
    }
}

static cairn_status check_groups(const struct loaded *l) {
    const struct cairn_optimizer *o = l->o;
    char groups[64];
    cairn_status st = CAIRN_OK;
    snprintf(groups, sizeof(groups), "groups.%s", o->kind->saved_as);
    REQUIRE(i64_of(l, groups) == (int64_t)o->num_groups, CAIRN_EINVAL,
            "%s: it was saved with %lld groups of parameters, and has %zu", o->kind->name, (long long)i64_of(l, groups),
            o->num_groups);
    for (size_t g = 0; g < o->num_groups; g++) {
        struct cairn__param_group loaded = o->groups[g];
        const struct cairn__optimizer_kind *kind = loaded.kind;
        const int64_t count = group_i64(l, g, "params");
        REQUIRE(l->entries->is_part || count == (int64_t)o->groups[g].count, CAIRN_EINVAL,
                "%s: group %zu was saved with %lld parameters, and has %zu", o->kind->name, g, (long long)count,
                o->groups[g].count);
        /* Each field by itself, then all as create checks them. */
        for (const struct cairn__group_field *f = kind->fields; f && f->name; f++) TRY(check_field(l, g, f));
        take_fields(l, g, &loaded);
        if (kind->check) TRY(kind->check(kind, &loaded));
        const int64_t origin = group_i64(l, g, "schedule_origin");
        REQUIRE(origin >= -MAX_STEPS && origin <= MAX_STEPS, CAIRN_EINVAL, /* may be negative: options.first_step */
                "%s: the schedule of group %zu began at step %lld", o->kind->name, g, (long long)origin);
    }
out:
    return st;
}

static cairn_status check_plateau(const struct loaded *l) {
    const double best = f64_of(l, "plateau.best");
    const int64_t bad = i64_of(l, "plateau.bad"), cooling = i64_of(l, "plateau.cooling");
    REQUIRE(!isnan(best) && bad >= 0 && bad <= MAX_STEPS && cooling >= 0 && cooling <= MAX_STEPS, CAIRN_EINVAL,
            "%s: the plateau's best is %g, with %lld bad metrics and %lld of cooldown; these must be from 0 to 2^60",
            l->o->kind->name, best, (long long)bad, (long long)cooling);
    return CAIRN_OK;
}

/* As the listing has found. */
static bool waits(const struct loaded *l, size_t i) {
    return l->o->arrays.moments[i].listed_as_waiting;
}

/* Parameters without moments are not checked. `missed` is an array, so it cannot be checked before arrays are read; a
 * checkpoint with a wrong one and a valid checksum was written by hand. */
static cairn_status check_missed(const struct loaded *l) {
    const struct cairn_optimizer *o = l->o;
    const int64_t steps = i64_of(l, "steps");
    int64_t *missed = NULL;
    cairn_status st = CAIRN_OK;
    if (o->kind->is_user) return CAIRN_OK;
    TRY(cairn__alloc(o->count * sizeof(missed[0]), (void **)&missed));
    TRY(cairn__device_download(device_of(o), missed, o->arrays.missed, o->count * sizeof(missed[0])));
    for (size_t i = 0; st == CAIRN_OK && i < o->count; i++) {
        if (!waits(l, i) && (missed[i] < 0 || missed[i] > steps))
            st = cairn__fail(CAIRN_EINVAL, "%s: parameter '%s' has missed %lld steps of %lld", o->kind->name,
                             o->arrays.params[i]->name, (long long)missed[i], (long long)steps);
    }
out:
    cairn__free(missed);
    return st;
}

/* A graph has recorded which parameters are updated, so this must not change. */
static cairn_status check_waiting(const struct loaded *l) {
    for (size_t i = 0; !l->o->kind->is_user && i < l->o->count; i++) {
        REQUIRE(
            l->o->env->graphs == 0 || waits(l, i) == l->o->arrays.moments[i].waits, CAIRN_ESTATE,
            "%s: parameter '%s' has moments where a captured graph was made or where it was saved, and not in both; "
            "destroy the graph first",
            l->o->kind->name, l->o->arrays.params[i]->name);
    }
    return CAIRN_OK;
}

/* Zeroes moments of parameters that wait, since these start at 0 with the first gradient. */
static void take_waiting(const struct loaded *l) {
    struct cairn_optimizer *o = l->o;
    struct cairn_device *d = device_of(o);
    const struct cairn__optim_arrays *of = &o->arrays;
    for (const struct cairn__param_group *group = o->groups; group < o->groups + o->num_groups; group++) {
        for (size_t i = group->first; i < group->first + group->count; i++) {
            of->moments[i].waits = waits(l, i);
            for (int s = 0; of->moments[i].waits && s < CAIRN__MAX_STATES; s++) {
                const size_t n = cairn__rule_elements(&group->rule, s, cairn__param_shard(of->params[i]).n);
                float *const array = of->moments[i].array[s];
                if (array) d->passes->fill(d, CAIRN_F32, array, n, 0.0f);
            }
        }
    }
}

static bool has(const struct loaded *l, const char *name) {
    char whole[128];
    snprintf(whole, sizeof(whole), "%s%s", l->prefix, name);
    return cairn__entries_find(l->entries, whole) != NULL;
}

/* Writes the last report again, so that getters describe the last step. The ring continues after it. */
static void take_reports(const struct loaded *l, uint64_t ends) {
    struct cairn_optimizer *o = l->o;
    memset(o->reports, 0, CAIRN__REPORTS * sizeof(o->reports[0]));
    o->last_read = o->queued = ends;
    if (ends == 0) return;
    o->reports[ends % CAIRN__REPORTS] = (struct cairn__step_report){.number = ends,
                                                                    .steps = i64_of(l, "steps"),
                                                                    .skipped = i64_of(l, "skipped"),
                                                                    .scale = f64_of(l, "last.scale"),
                                                                    .scaler = (int32_t)i64_of(l, "last.scaler"),
                                                                    .verdict = (int32_t)i64_of(l, "last.verdict"),
                                                                    .stepped = i64_of(l, "last.stepped") != 0};
    for (size_t g = 0; g < o->num_groups; g++)
        o->table.used[ends % CAIRN__REPORTS * o->table.groups + g] =
            (struct cairn__rates){group_f64(l, g, "used_lr"), group_f64(l, g, "used_momentum")};
}

static void take_counters(const struct loaded *l) {
    struct cairn_optimizer *o = l->o;
    const struct cairn__overflow loss = {.micro_batch = (uint32_t)i64_of(l, "skip.micro_batch"),
                                         .rank = (int32_t)i64_of(l, "skip.rank")};
    const struct cairn__optim_state now = {.steps = i64_of(l, "steps"),
                                           .skipped = i64_of(l, "skipped"),
                                           .ends = (uint64_t)i64_of(l, "ends"),
                                           .rounding_seed = (uint64_t)i64_of(l, "rounding_seed"),
                                           .clip = 1,
                                           .skip = has(l, "skip.micro_batch")};
    cairn__optimizer_lower_skip(o);
    device_of(o)->passes->store(device_of(o), o->state, &now, sizeof(now));
    device_of(o)->passes->store(device_of(o), &o->arrays.overflows[o->count], &loss, sizeof(loss));
    take_reports(l, now.ends);
}

cairn_status cairn__optimizer_check_state(const cairn_optimizer *o, const char *prefix,
                                          const struct cairn__entries *entries) {
    const struct loaded l = {(cairn_optimizer *)o, entries, prefix};
    cairn_status st = CAIRN_OK;
    TRY(check_counters(&l));
    TRY(check_groups(&l));
    TRY(check_plateau(&l));
    TRY(check_waiting(&l));
out:
    return st;
}

cairn_status cairn__optimizer_state_loaded(cairn_optimizer *o, const char *prefix,
                                           const struct cairn__entries *entries) {
    const struct loaded l = {o, entries, prefix};
    cairn_status st = CAIRN_OK;
    TRY(cairn__optimizer_check_state(o, prefix, entries));
    TRY(check_missed(&l));
    if (!o->kind->is_user) take_waiting(&l);
    take_counters(&l);
    for (size_t g = 0; g < o->num_groups; g++) {
        struct cairn__param_group *group = &o->groups[g];
        char name[64];
        take_fields(&l, g, group);
        group_name(g, "schedule_origin", name);
        if (group->parts && has(&l, name)) group->schedule.origin = i64_of(&l, name);
        cairn__rates_store(o, g);
    }
    if (o->plateau.is_on && has(&l, "plateau.best")) {
        o->plateau.best = f64_of(&l, "plateau.best");
        o->plateau.bad = i64_of(&l, "plateau.bad");
        o->plateau.cooling = i64_of(&l, "plateau.cooling");
    }
    cairn__params_forget(o->arrays.params, o->count);
out:
    return st;
}

/* ---- the handle ---- */

static struct cairn_env *env_of(const void *object) {
    return cairn__optimizer_env(object);
}

static cairn_status list(void *object, struct cairn__entries *entries) {
    return cairn__optimizer_list_state(object, "", entries);
}

static cairn_status check(const void *object, const struct cairn__entries *entries) {
    return cairn__optimizer_check_state(object, "", entries);
}

static cairn_status loaded(void *object, const struct cairn__entries *entries) {
    return cairn__optimizer_state_loaded(object, "", entries);
}

static const struct cairn__stateful_ops ops = {
    .kind = "optimizer", .env = env_of, .list = list, .check = check, .loaded = loaded};

cairn_stateful cairn_optimizer_stateful(cairn_optimizer *optimizer) {
    return (cairn_stateful){&ops, optimizer};
}
