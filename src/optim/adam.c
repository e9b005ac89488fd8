/* Adam and AdamW: one kind; they differ in where weight decay goes. */
#include <string.h>

#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"

static int adam_states(const struct cairn__param_group *g) {
    (void)g;
    return 2;
}

static void adam_update(struct cairn_device *d, const struct cairn__update_list *l) {
    d->passes->adam(d, l->items, l->count, l->grad, l->mode, &l->group->rule.adam, l->rates, l->state);
}

static bool beta1_cycles(const struct cairn__param_group *g) {
    (void)g;
    return true;
}

static const struct cairn__group_field fields[] = {
    {"lr", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, schedule.base.lr), true},
    {"beta1", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, schedule.base.momentum), true},
    {"beta2", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, rule.adam.beta2), false},
    {"eps", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, rule.adam.eps), false},
    {"weight_decay", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, rule.adam.weight_decay), false},
    {.name = NULL},
};

static cairn_status check(const struct cairn__optimizer_kind *k, const struct cairn_adam_options *h) {
    const char *kind = k->name;
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_rate(kind, "lr", h->lr));
    TRY(cairn__check_rate(kind, "eps", h->eps));
    TRY(cairn__check_rate(kind, "weight_decay", h->weight_decay));
    REQUIRE(h->beta1 >= 0 && h->beta1 < 1, CAIRN_EINVAL, "%s: beta1 is %g; it must be in [0, 1)", kind, h->beta1);
    REQUIRE(h->beta2 >= 0 && h->beta2 < 1, CAIRN_EINVAL, "%s: beta2 is %g; it must be in [0, 1)", kind, h->beta2);
    REQUIRE(h->eps > 0 || h->beta2 > 0, CAIRN_EINVAL,
            "%s: eps and beta2 are both 0, so a gradient of 0 would give NaN; start from CAIRN_%s_OPTIONS_INIT and "
            "change single fields",
            kind, strcmp(kind, "AdamW") == 0 ? "ADAMW" : "ADAM");
out:
    return st;
}

static cairn_status check_group(const struct cairn__optimizer_kind *kind, const struct cairn__param_group *g) {
    struct cairn_adam_options h = CAIRN_ADAM_OPTIONS_INIT;
    h.lr = g->schedule.base.lr;
    h.beta1 = g->schedule.base.momentum;
    h.beta2 = g->rule.adam.beta2;
    h.eps = g->rule.adam.eps;
    h.weight_decay = g->rule.adam.weight_decay;
    return check(kind, &h);
}

#define KIND(name_, saved)                                                                                  \
    {                                                                                                       \
        .name = name_, .states = adam_states, .update = adam_update, .momentum_cycles = beta1_cycles,       \
        .check = check_group, .saved_as = saved, .state_names = {"exp_avg", "exp_avg_sq"}, .fields = fields \
    }
static const struct cairn__optimizer_kind adam_kind = KIND("Adam", "adam"), adamw_kind = KIND("AdamW", "adamw");
#undef KIND

static cairn_status group_of(const struct cairn__optimizer_kind *kind, const void *options,
                             struct cairn__param_group *out) {
    const bool decoupled = kind == &adamw_kind;
    const struct cairn_adam_options l2 = CAIRN_ADAM_OPTIONS_INIT, decay = CAIRN_ADAMW_OPTIONS_INIT;
    struct cairn_adam_options h = decoupled ? decay : l2;
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&h, sizeof(h), options, "cairn_adam_options"));
    TRY(check(kind, &h));
    *out = (struct cairn__param_group){
        .schedule.base = {.lr = h.lr, .momentum = h.beta1},
        .rule.adam = {.beta2 = h.beta2, .eps = h.eps, .weight_decay = h.weight_decay, .decoupled = decoupled}};
out:
    return st;
}

static cairn_status create(const struct cairn__optimizer_kind *kind, cairn_param_set *set, const size_t *indices,
                           size_t count, const struct cairn_adam_options *options, cairn_optimizer **out) {
    struct cairn__param_group group;
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_set(kind->name, set, out));
    TRY(group_of(kind, options, &group));
    TRY(cairn__optimizer_create(kind, set, indices, count, &group, out));
out:
    return st;
}

static cairn_status create_over(const struct cairn__optimizer_kind *kind, cairn_param_set *set, const size_t *indices,
                                size_t count, const struct cairn_adam_options *options, cairn_optimizer **out) {
    REQUIRE(indices, CAIRN_EINVAL, "%s: indices is NULL; the call without _over takes all parameters of a set",
            kind->name);
    return create(kind, set, indices, count, options, out);
}

cairn_status cairn_adam_create(cairn_param_set *set, const struct cairn_adam_options *options, cairn_optimizer **out) {
    return create(&adam_kind, set, NULL, 0, options, out);
}

cairn_status cairn_adamw_create(cairn_param_set *set, const struct cairn_adam_options *options, cairn_optimizer **out) {
    return create(&adamw_kind, set, NULL, 0, options, out);
}

cairn_status cairn_adam_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                    const struct cairn_adam_options *options, cairn_optimizer **out) {
    return create_over(&adam_kind, set, indices, count, options, out);
}

cairn_status cairn_adamw_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                     const struct cairn_adam_options *options, cairn_optimizer **out) {
    return create_over(&adamw_kind, set, indices, count, options, out);
}

/* The group is of the optimizer's own kind. */
cairn_status cairn_adam_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices, size_t count,
                                  const struct cairn_adam_options *options) {
    struct cairn__param_group group;
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_set("Adam", set, optimizer));
    const struct cairn__optimizer_kind *kind = optimizer->kind == &adamw_kind ? &adamw_kind : &adam_kind;
    TRY(group_of(kind, options, &group));
    TRY(cairn__optimizer_add_group(optimizer, kind, set, indices, count, &group));
out:
    return st;
}

/* ---- by rule ---- */

static const struct cairn__grouping adam_groups = {&adam_kind, group_of, false};
static const struct cairn__grouping adamw_groups = {&adamw_kind, group_of, false};

cairn_status cairn_adam_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set, const cairn_group_rule *rules,
                                             size_t count, cairn_optimizer **out) {
    return cairn__optimizer_create_grouped(&adam_groups, rule_nbytes, set, rules, count, out);
}

cairn_status cairn_adamw_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set, const cairn_group_rule *rules,
                                              size_t count, cairn_optimizer **out) {
    return cairn__optimizer_create_grouped(&adamw_groups, rule_nbytes, set, rules, count, out);
}

cairn_status(cairn_adam_create_grouped)(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                        cairn_optimizer **out) {
    return cairn_adam_create_grouped_sized(CAIRN__GROUP_RULE_0_8, set, rules, count, out);
}

cairn_status(cairn_adamw_create_grouped)(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                         cairn_optimizer **out) {
    return cairn_adamw_create_grouped_sized(CAIRN__GROUP_RULE_0_8, set, rules, count, out);
}
