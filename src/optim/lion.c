/* Lion: the step is the sign of a momentum (Chen et al., NeurIPS 2023). */
#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"

#define FIELD(member) offsetof(struct cairn__param_group, member)
static const struct cairn__group_field fields[] = {
    {"lr", CAIRN__GROUP_REAL, FIELD(schedule.base.lr), true, false},
    {"beta1", CAIRN__GROUP_REAL, FIELD(schedule.base.momentum), true, false},
    {"beta2", CAIRN__GROUP_REAL, FIELD(rule.lion.beta2), false, false},
    {"weight_decay", CAIRN__GROUP_REAL, FIELD(rule.lion.weight_decay), false, false},
    {"maximize", CAIRN__GROUP_SWITCH, FIELD(rule.maximizes), false, false},
    {.name = NULL},
};
#undef FIELD

static cairn_status check_group(const struct cairn__optimizer_kind *k, const struct cairn__param_group *g) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_rate(k->name, "lr", g->schedule.base.lr));
    TRY(cairn__check_beta(k->name, "beta1", g->schedule.base.momentum));
    TRY(cairn__check_beta(k->name, "beta2", g->rule.lion.beta2));
    TRY(cairn__check_rate(k->name, "weight_decay", g->rule.lion.weight_decay));
out:
    return st;
}

static cairn_status group_of(const struct cairn__optimizer_kind *k, const void *options,
                             struct cairn__param_group *out) {
    cairn_status st = CAIRN_OK;
    struct cairn_lion_options h = CAIRN_LION_OPTIONS_INIT;
    TRY(cairn__options_read(&h, sizeof(h), options, "cairn_lion_options"));
    *out = (struct cairn__param_group){.schedule.base = {.lr = h.lr, .momentum = h.beta1},
                                       .rule = {.kind = CAIRN__OPTIM_LION,
                                                .maximizes = h.maximize == CAIRN_ON,
                                                .lion = {.beta2 = h.beta2, .weight_decay = h.weight_decay}}};
    TRY(check_group(k, out));
out:
    return st;
}

static const struct cairn__optimizer_kind kind = {.name = "Lion",
                                                  .has_momentum = true,
                                                  .options = offsetof(cairn_group_rule, lion),
                                                  .group_of = group_of,
                                                  .check = check_group,
                                                  .saved_as = "lion",
                                                  .state_names = {"exp_avg"},
                                                  .fields = fields};

cairn_status cairn_lion_create(cairn_param_set *set, const struct cairn_lion_options *options, cairn_optimizer **out) {
    return cairn__kind_create(&kind, set, options, out);
}

cairn_status cairn_lion_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                    const struct cairn_lion_options *options, cairn_optimizer **out) {
    return cairn__kind_create_over(&kind, set, indices, count, options, out);
}

cairn_status cairn_lion_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices, size_t count,
                                  const struct cairn_lion_options *options) {
    return cairn__kind_add_group(&kind, optimizer, set, indices, count, options);
}

cairn_status cairn_lion_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set, const cairn_group_rule *rules,
                                             size_t count, cairn_optimizer **out) {
    return cairn__optimizer_create_grouped(&kind, rule_nbytes, set, rules, count, out);
}

cairn_status(cairn_lion_create_grouped)(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                        cairn_optimizer **out) {
    return cairn_lion_create_grouped_sized(CAIRN__GROUP_RULE_0_9, set, rules, count, out);
}
