/* Custom optimizers: a kind created at run time from names and a function over flat pieces. The optimizer owns its
 * kind. */
#include "cairn/custom_optimizer.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"

enum { NAME = 32, FIELDS = CAIRN_CUSTOM_VALUES + 3 /* lr, momentum, the end */ };

struct custom_kind {
    struct cairn__optimizer_kind base; /* first member: the front has its address */
    struct cairn_custom_optimizer of;
    const struct cairn_optimizer *optimizer;
    int num_states, num_values;
    struct cairn__group_field fields[FIELDS];
    char name[NAME], momentum[NAME], states[CAIRN_CUSTOM_STATES][NAME], values[CAIRN_CUSTOM_VALUES][NAME];
};

static_assert((int)CAIRN_CUSTOM_STATES <= (int)CAIRN__MAX_STATES, "a parameter has room for its states");
static_assert((int)CAIRN_CUSTOM_VALUES == (int)CAIRN__CUSTOM_VALUES, "a group has room for its values");
static_assert(offsetof(struct cairn_custom_scalars, update) == offsetof(struct cairn__flat_scalars, update) &&
                  offsetof(struct cairn_custom_scalars, skipped) == offsetof(struct cairn__flat_scalars, skipped) &&
                  sizeof(struct cairn_custom_scalars) == sizeof(struct cairn__flat_scalars),
              "the user reads what the device writes");

/* ---- an update ---- */

/* The rule is a member of its group, and an item's missed count is an element of the array for all parameters. */
static void call(const struct cairn__optim_rule *rule, const struct cairn__flat *piece) {
    const struct custom_kind *k = rule->custom.ctx;
    const struct cairn_optimizer *o = k->optimizer;
    const struct cairn__param_group *group =
        (const void *)((const char *)rule - offsetof(struct cairn__param_group, rule));
    const size_t parameter = (size_t)(piece->missed - o->arrays.missed);
    const struct cairn__param *p = o->arrays.params[parameter];
    struct cairn_custom_update u = {.n = piece->n,
                                    .weights = piece->weights,
                                    .grad = piece->grad,
                                    .scalars = (const void *)piece->scalars,
                                    .values = group->values,
                                    .group = (int)(group - o->groups),
                                    .parameter = parameter,
                                    .name = p->name,
                                    .offset = cairn__param_shard(p).first + piece->first,
                                    .size = p->n,
                                    .stream = piece->stream};
    for (int s = 0; s < k->num_states; s++) u.states[s] = piece->state[s];
    (cairn__is_on_host(o->env->device) ? k->of.update : k->of.update_cuda)(k->of.ctx, &u);
}

/* ---- groups ---- */

static cairn_status check_group(const struct cairn__optimizer_kind *kind, const struct cairn__param_group *g) {
    const struct custom_kind *k = (const struct custom_kind *)kind;
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_rate(k->name, "lr", g->schedule.base.lr));
    REQUIRE(isfinite(g->schedule.base.momentum), CAIRN_EINVAL, "%s: momentum is %g; it must be a number", k->name,
            g->schedule.base.momentum);
    REQUIRE(k->base.has_momentum || g->schedule.base.momentum == 0, CAIRN_EINVAL,
            "%s: momentum is %g, but the kind has none (cairn_custom_optimizer.momentum)", k->name,
            g->schedule.base.momentum);
    for (int i = 0; i < CAIRN_CUSTOM_VALUES; i++) {
        REQUIRE(i < k->num_values || g->values[i] == 0, CAIRN_EINVAL,
                "%s: value %d is %g, but the kind names %d values", k->name, i, g->values[i], k->num_values);
        REQUIRE(isfinite(g->values[i]), CAIRN_EINVAL, "%s: %s is %g; it must be a number", k->name, k->values[i],
                g->values[i]);
    }
out:
    return st;
}

static cairn_status group_of(const struct cairn__optimizer_kind *kind, const void *options,
                             struct cairn__param_group *out) {
    const struct custom_kind *k = (const struct custom_kind *)kind;
    cairn_status st = CAIRN_OK;
    struct cairn_custom_options h = CAIRN_CUSTOM_OPTIONS_INIT;
    TRY(cairn__options_read(&h, sizeof(h), options, "cairn_custom_options"));
    *out = (struct cairn__param_group){.schedule.base = {.lr = h.lr, .momentum = h.momentum},
                                       .rule = {.kind = CAIRN__OPTIM_CUSTOM,
                                                .custom = {.num_states = k->num_states, .flat = call, .ctx = k}}};
    memcpy(out->values, h.values, sizeof(h.values));
    TRY(check_group(kind, out));
out:
    return st;
}

/* ---- the kind ---- */

static cairn_status take_name(const char *what, const char *name, char to[NAME]) {
    const size_t length = name ? strlen(name) : 0;
    bool is_plain = true;
    REQUIRE(length > 0 && length < NAME, CAIRN_EINVAL,
            "custom optimizer: the name of %s is '%s'; it must have 1 to %d characters", what, name ? name : "NULL",
            NAME - 1);
    for (size_t i = 0; i < length; i++)
        is_plain = is_plain && (isalnum((unsigned char)name[i]) || name[i] == '_' || name[i] == '-');
    REQUIRE(is_plain, CAIRN_EINVAL,
            "custom optimizer: the name of %s is '%s'; it must be of letters, digits, '_' and '-'", what, name);
    snprintf(to, NAME, "%s", name);
    return CAIRN_OK;
}

/* Names that the front saves itself: those of groups, and prefixes of parameters' names. */
static const char *const taken_of_groups[] = {"lr", "params", "used_lr", "used_momentum", "schedule_origin", NULL};
static const char *const taken_of_params[] = {"missed", "waits", "last", "skip", "plateau", "groups", NULL};

static cairn_status check_free(const char *what, const char *name, const char *const *taken, char (*names)[NAME],
                               int count) {
    bool is_free = true;
    for (; *taken; taken++) is_free = is_free && strcmp(*taken, name) != 0;
    for (int i = 0; i < count; i++) is_free = is_free && strcmp(names[i], name) != 0;
    REQUIRE(is_free, CAIRN_EINVAL, "custom optimizer: the name of %s, '%s', is in use already", what, name);
    return CAIRN_OK;
}

static cairn_status take_states(struct custom_kind *k) {
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < CAIRN_CUSTOM_STATES && k->of.states[i]; i++) {
        TRY(take_name("a state", k->of.states[i], k->states[i]));
        TRY(check_free("a state", k->states[i], taken_of_params, k->states, i));
        k->base.state_names[k->num_states++] = k->states[i];
    }
out:
    return st;
}

static cairn_status take_values(struct custom_kind *k) {
    cairn_status st = CAIRN_OK;
    struct cairn__group_field *f = k->fields;
    *f++ = (struct cairn__group_field){"lr", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, schedule.base.lr),
                                       true, false};
    if (k->of.momentum) {
        TRY(take_name("the momentum", k->of.momentum, k->momentum));
        TRY(check_free("the momentum", k->momentum, taken_of_groups, NULL, 0));
        *f++ = (struct cairn__group_field){k->momentum, CAIRN__GROUP_REAL,
                                           offsetof(struct cairn__param_group, schedule.base.momentum), true, false};
    }
    for (int i = 0; i < CAIRN_CUSTOM_VALUES && k->of.values[i]; i++) {
        TRY(take_name("a value", k->of.values[i], k->values[i]));
        TRY(check_free("a value", k->values[i], taken_of_groups, k->values, i));
        TRY(check_free("a value", k->values[i], taken_of_groups, &k->momentum, 1));
        *f++ = (struct cairn__group_field){k->values[i], CAIRN__GROUP_REAL,
                                           offsetof(struct cairn__param_group, values) + (size_t)i * sizeof(double),
                                           false, false};
        k->num_values++;
    }
out:
    return st;
}

static cairn_status check_updates(const struct custom_kind *k, bool on_host) {
    REQUIRE(k->of.update || k->of.update_cuda, CAIRN_EINVAL, "%s: update and update_cuda are both NULL", k->name);
    REQUIRE(on_host ? k->of.update != NULL : k->of.update_cuda != NULL, CAIRN_ENOTSUP,
            "%s: it has no update for the environment's device (%s); set cairn_custom_optimizer.%s", k->name,
            on_host ? "the CPU" : "a GPU", on_host ? "update" : "update_cuda");
    return CAIRN_OK;
}

static cairn_status make_kind(const cairn_param_set *set, const struct cairn_custom_optimizer *given, const void *out,
                              struct custom_kind **kind) {
    cairn_status st = CAIRN_OK;
    struct custom_kind *k = NULL;
    REQUIRE(given, CAIRN_EINVAL, "custom optimizer: kind is NULL");
    TRY(cairn__check_set("custom optimizer", set, out));
    TRY(cairn__calloc(1, sizeof(*k), (void **)&k));
    TRY(cairn__options_read(&k->of, sizeof(k->of), given, "cairn_custom_optimizer"));
    TRY(take_name("the kind", k->of.name, k->name));
    TRY(check_updates(k, cairn__is_on_host(set->env->device)));
    TRY(take_states(k));
    TRY(take_values(k));
    k->base.name = k->base.saved_as = k->name;
    k->base.has_momentum = k->of.momentum != NULL;
    k->base.options = offsetof(cairn_group_rule, custom);
    k->base.group_of = group_of;
    k->base.check = check_group;
    k->base.fields = k->fields;
    *kind = k;
    return CAIRN_OK;
out:
    cairn__free(k);
    return st;
}

/* Transfers ownership of the kind to the optimizer that was created. */
static cairn_status give(struct custom_kind *k, cairn_status st, cairn_optimizer *const *made) {
    if (st == CAIRN_OK) {
        k->optimizer = *made;
        (*made)->own_kind = k;
    } else {
        cairn__free(k);
    }
    return st;
}

cairn_status cairn_custom_optimizer_create(cairn_param_set *set, const struct cairn_custom_optimizer *kind,
                                           const struct cairn_custom_options *options, cairn_optimizer **out) {
    struct custom_kind *k = NULL;
    cairn_status st = make_kind(set, kind, out, &k);
    if (st == CAIRN_OK) st = cairn__kind_create(&k->base, set, options, out);
    return give(k, st, out);
}

cairn_status cairn_custom_optimizer_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                                const struct cairn_custom_optimizer *kind,
                                                const struct cairn_custom_options *options, cairn_optimizer **out) {
    struct custom_kind *k = NULL;
    cairn_status st = make_kind(set, kind, out, &k);
    if (st == CAIRN_OK) st = cairn__kind_create_over(&k->base, set, indices, count, options, out);
    return give(k, st, out);
}

cairn_status cairn_custom_optimizer_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set,
                                                         const struct cairn_custom_optimizer *kind,
                                                         const cairn_group_rule *rules, size_t count,
                                                         cairn_optimizer **out) {
    struct custom_kind *k = NULL;
    cairn_status st = make_kind(set, kind, out, &k);
    if (st == CAIRN_OK) st = cairn__optimizer_create_grouped(&k->base, rule_nbytes, set, rules, count, out);
    return give(k, st, out);
}

cairn_status(cairn_custom_optimizer_create_grouped)(cairn_param_set *set, const struct cairn_custom_optimizer *kind,
                                                    const cairn_group_rule *rules, size_t count,
                                                    cairn_optimizer **out) {
    return cairn_custom_optimizer_create_grouped_sized(CAIRN__GROUP_RULE_0_9, set, kind, rules, count, out);
}

cairn_status cairn_custom_optimizer_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices,
                                              size_t count, const struct cairn_custom_options *options) {
    REQUIRE(optimizer, CAIRN_EINVAL, "custom optimizer: optimizer is NULL");
    REQUIRE(optimizer->own_kind, CAIRN_EINVAL,
            "custom optimizer: a group of a custom kind cannot be added to an optimizer of %s", optimizer->kind->name);
    return cairn__kind_add_group(optimizer->kind, optimizer, set, indices, count, options);
}
