/* Adagrad: a learning rate for each element, from the sum of its squared gradients (Duchi, Hazan and Singer, JMLR
 * 2011). */
#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"

#define FIELD(member) offsetof(struct cairn__param_group, member)
static const struct cairn__group_field fields[] = {
    {"lr", CAIRN__GROUP_REAL, FIELD(schedule.base.lr), true, false},
    {"lr_decay", CAIRN__GROUP_REAL, FIELD(rule.adagrad.lr_decay), false, false},
    {"eps", CAIRN__GROUP_REAL, FIELD(rule.adagrad.eps), false, false},
    {"weight_decay", CAIRN__GROUP_REAL, FIELD(rule.adagrad.weight_decay), false, false},
    {"initial_accumulator", CAIRN__GROUP_REAL, FIELD(rule.adagrad.initial), false, false},
    {"decoupled", CAIRN__GROUP_SWITCH, FIELD(rule.adagrad.decoupled), false, false},
    {"maximize", CAIRN__GROUP_SWITCH, FIELD(rule.maximizes), false, false},
    CAIRN__LARC_FIELDS,
    {.name = NULL},
};
#undef FIELD

static cairn_status check_group(const struct cairn__optimizer_kind *k, const struct cairn__param_group *g) {
    const struct cairn__adagrad_rule *rule = &g->rule.adagrad;
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_rate(k->name, "lr", g->schedule.base.lr));
    TRY(cairn__check_rate(k->name, "lr_decay", rule->lr_decay));
    TRY(cairn__check_rate(k->name, "eps", rule->eps));
    TRY(cairn__check_rate(k->name, "weight_decay", rule->weight_decay));
    TRY(cairn__check_rate(k->name, "initial_accumulator", rule->initial));
    REQUIRE((float)rule->eps > 0 || (float)rule->initial > 0, CAIRN_EINVAL,
            "%s: eps and initial_accumulator are both 0, so a gradient of 0 would give NaN; start from "
            "CAIRN_ADAGRAD_OPTIONS_INIT and change single fields",
            k->name);
    TRY(cairn__check_larc(k->name, &g->rule.larc));
out:
    return st;
}

static cairn_status group_of(const struct cairn__optimizer_kind *k, const void *options,
                             struct cairn__param_group *out) {
    cairn_status st = CAIRN_OK;
    struct cairn_adagrad_options h = CAIRN_ADAGRAD_OPTIONS_INIT;
    TRY(cairn__options_read(&h, sizeof(h), options, "cairn_adagrad_options"));
    *out = (struct cairn__param_group){.schedule.base = {.lr = h.lr},
                                       .rule = {.kind = CAIRN__OPTIM_ADAGRAD,
                                                .maximizes = h.maximize == CAIRN_ON,
                                                .adagrad = {.lr_decay = h.lr_decay,
                                                            .eps = h.eps,
                                                            .weight_decay = h.weight_decay,
                                                            .initial = h.initial_accumulator,
                                                            .decoupled = h.decoupled == CAIRN_ON}}};
    TRY(check_group(k, out));
out:
    return st;
}

static const struct cairn__optimizer_kind kind = {.name = "Adagrad",
                                                  .takes_larc = true,
                                                  .options = offsetof(cairn_group_rule, adagrad),
                                                  .group_of = group_of,
                                                  .check = check_group,
                                                  .saved_as = "adagrad",
                                                  .state_names = {"sum"},
                                                  .fields = fields};

cairn_status cairn_adagrad_create(cairn_param_set *set, const struct cairn_adagrad_options *options,
                                  cairn_optimizer **out) {
    return cairn__kind_create(&kind, set, options, out);
}

cairn_status cairn_adagrad_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                       const struct cairn_adagrad_options *options, cairn_optimizer **out) {
    return cairn__kind_create_over(&kind, set, indices, count, options, out);
}

cairn_status cairn_adagrad_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices,
                                     size_t count, const struct cairn_adagrad_options *options) {
    return cairn__kind_add_group(&kind, optimizer, set, indices, count, options);
}

cairn_status cairn_adagrad_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set, const cairn_group_rule *rules,
                                                size_t count, cairn_optimizer **out) {
    return cairn__optimizer_create_grouped(&kind, rule_nbytes, set, rules, count, out);
}

cairn_status(cairn_adagrad_create_grouped)(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                           cairn_optimizer **out) {
    return cairn_adagrad_create_grouped_sized(CAIRN__GROUP_RULE_0_9, set, rules, count, out);
}
