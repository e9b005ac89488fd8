/* NovoGrad: momentum of gradients divided by a running mean of their norm, one number for each parameter (Ginsburg et
 * al., 2019). */
#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"

#define FIELD(member) offsetof(struct cairn__param_group, member)
static const struct cairn__group_field fields[] = {
    {"lr", CAIRN__GROUP_REAL, FIELD(schedule.base.lr), true, false},
    {"beta1", CAIRN__GROUP_REAL, FIELD(schedule.base.momentum), true, false},
    {"beta2", CAIRN__GROUP_REAL, FIELD(rule.novograd.beta2), false, false},
    {"eps", CAIRN__GROUP_REAL, FIELD(rule.novograd.eps), false, false},
    {"weight_decay", CAIRN__GROUP_REAL, FIELD(rule.novograd.weight_decay), false, false},
    {"reg_inside_moment", CAIRN__GROUP_SWITCH, FIELD(rule.novograd.decays_inside), false, false},
    {"unaveraged", CAIRN__GROUP_SWITCH, FIELD(rule.novograd.unaveraged), false, false},
    {"uncorrected", CAIRN__GROUP_SWITCH, FIELD(rule.novograd.uncorrected), false, false},
    {"init_zero", CAIRN__GROUP_SWITCH, FIELD(rule.novograd.begins_at_0), false, false},
    {"max_norm", CAIRN__GROUP_SWITCH, FIELD(rule.novograd.by_greatest), false, false},
    {"maximize", CAIRN__GROUP_SWITCH, FIELD(rule.maximizes), false, false},
    {.name = NULL},
};
#undef FIELD

static cairn_status check_group(const struct cairn__optimizer_kind *k, const struct cairn__param_group *g) {
    const struct cairn__novograd_rule *rule = &g->rule.novograd;
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_rate(k->name, "lr", g->schedule.base.lr));
    TRY(cairn__check_beta(k->name, "beta1", g->schedule.base.momentum));
    TRY(cairn__check_beta(k->name, "beta2", rule->beta2));
    TRY(cairn__check_rate(k->name, "eps", rule->eps));
    TRY(cairn__check_rate(k->name, "weight_decay", rule->weight_decay));
    REQUIRE((float)rule->eps > 0, CAIRN_EINVAL,
            "%s: eps is %g; it must be above 0, or a gradient of 0 would give NaN; start from "
            "CAIRN_NOVOGRAD_OPTIONS_INIT and change single fields",
            k->name, rule->eps);
out:
    return st;
}

static cairn_status group_of(const struct cairn__optimizer_kind *k, const void *options,
                             struct cairn__param_group *out) {
    cairn_status st = CAIRN_OK;
    struct cairn_novograd_options h = CAIRN_NOVOGRAD_OPTIONS_INIT;
    TRY(cairn__options_read(&h, sizeof(h), options, "cairn_novograd_options"));
    *out = (struct cairn__param_group){.schedule.base = {.lr = h.lr, .momentum = h.beta1},
                                       .rule = {.kind = CAIRN__OPTIM_NOVOGRAD,
                                                .maximizes = h.maximize == CAIRN_ON,
                                                .novograd = {.beta2 = h.beta2,
                                                             .eps = h.eps,
                                                             .weight_decay = h.weight_decay,
                                                             .decays_inside = h.reg_inside_moment == CAIRN_ON,
                                                             .unaveraged = h.grad_averaging == CAIRN_OFF,
                                                             .uncorrected = h.bias_correction == CAIRN_OFF,
                                                             .begins_at_0 = h.init_zero == CAIRN_ON,
                                                             .by_greatest = h.max_norm == CAIRN_ON}}};
    TRY(check_group(k, out));
out:
    return st;
}

static const struct cairn__optimizer_kind kind = {.name = "NovoGrad",
                                                  .has_momentum = true,
                                                  .options = offsetof(cairn_group_rule, novograd),
                                                  .group_of = group_of,
                                                  .check = check_group,
                                                  .saved_as = "novograd",
                                                  .state_names = {"exp_avg", "exp_avg_norm"},
                                                  .fields = fields};

cairn_status cairn_novograd_create(cairn_param_set *set, const struct cairn_novograd_options *options,
                                   cairn_optimizer **out) {
    return cairn__kind_create(&kind, set, options, out);
}

cairn_status cairn_novograd_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                        const struct cairn_novograd_options *options, cairn_optimizer **out) {
    return cairn__kind_create_over(&kind, set, indices, count, options, out);
}

cairn_status cairn_novograd_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices,
                                      size_t count, const struct cairn_novograd_options *options) {
    return cairn__kind_add_group(&kind, optimizer, set, indices, count, options);
}

cairn_status cairn_novograd_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set,
                                                 const cairn_group_rule *rules, size_t count, cairn_optimizer **out) {
    return cairn__optimizer_create_grouped(&kind, rule_nbytes, set, rules, count, out);
}

cairn_status(cairn_novograd_create_grouped)(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                            cairn_optimizer **out) {
    return cairn_novograd_create_grouped_sized(CAIRN__GROUP_RULE_0_9, set, rules, count, out);
}
