/* SGD with momentum, dampening, weight decay and Nesterov momentum, as in torch.optim.SGD and apex's FusedSGD. */
#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"

#include <math.h>

static const struct cairn__group_field fields[] = {
    {"lr", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, schedule.base.lr), true, false},
    {"momentum", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, schedule.base.momentum), true, false},
    {"dampening", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, rule.sgd.dampening), false, false},
    {"weight_decay", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, rule.sgd.weight_decay), false, false},
    {"has_momentum", CAIRN__GROUP_FIXED, offsetof(struct cairn__param_group, rule.sgd.has_momentum), false, false},
    {"nesterov", CAIRN__GROUP_SWITCH, offsetof(struct cairn__param_group, rule.sgd.nesterov), false, false},
    {"maximize", CAIRN__GROUP_SWITCH, offsetof(struct cairn__param_group, rule.maximizes), false, true},
    {"decay_after_momentum", CAIRN__GROUP_SWITCH, offsetof(struct cairn__param_group, rule.sgd.decays_last), false,
     true},
    CAIRN__LARC_FIELDS,
    {.name = NULL},
};

static cairn_status check(const struct cairn_sgd_options *h) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_rate("SGD", "lr", h->lr));
    TRY(cairn__check_rate("SGD", "momentum", h->momentum));
    TRY(cairn__check_rate("SGD", "weight_decay", h->weight_decay));
    REQUIRE(isfinite(h->dampening), CAIRN_EINVAL, "SGD: dampening is %g; it must be a number", h->dampening);
    REQUIRE(h->nesterov != CAIRN_ON || (h->momentum > 0 && h->dampening == 0), CAIRN_EINVAL,
            "SGD: nesterov needs a momentum above 0 and no dampening, got momentum %g and dampening %g", h->momentum,
            h->dampening);
out:
    return st;
}

static cairn_status check_group(const struct cairn__optimizer_kind *k, const struct cairn__param_group *g) {
    (void)k;
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    h.lr = g->schedule.base.lr;
    h.momentum = g->schedule.base.momentum;
    h.dampening = g->rule.sgd.dampening;
    h.weight_decay = g->rule.sgd.weight_decay;
    h.nesterov = g->rule.sgd.nesterov ? CAIRN_ON : CAIRN_OFF;
    const cairn_status st = check(&h);
    return st == CAIRN_OK ? cairn__check_larc("SGD", &g->rule.larc) : st;
}

static cairn_status group_of(const struct cairn__optimizer_kind *k, const void *options,
                             struct cairn__param_group *out) {
    (void)k;
    cairn_status st = CAIRN_OK;
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    TRY(cairn__options_read(&h, sizeof(h), options, "cairn_sgd_options"));
    TRY(check(&h));
    *out = (struct cairn__param_group){.schedule.base = {.lr = h.lr, .momentum = h.momentum},
                                       .rule = {.kind = CAIRN__OPTIM_SGD,
                                                .maximizes = h.maximize == CAIRN_ON,
                                                .sgd = {.dampening = h.dampening,
                                                        .weight_decay = h.weight_decay,
                                                        .has_momentum = h.momentum != 0,
                                                        .nesterov = h.nesterov == CAIRN_ON,
                                                        .decays_last = h.decay_after_momentum == CAIRN_ON}}};
out:
    return st;
}

static const struct cairn__optimizer_kind kind = {.name = "SGD",
                                                  .has_momentum = true,
                                                  .takes_larc = true,
                                                  .options = offsetof(cairn_group_rule, sgd),
                                                  .group_of = group_of,
                                                  .check = check_group,
                                                  .saved_as = "sgd",
                                                  .state_names = {"momentum"},
                                                  .fields = fields};

cairn_status cairn_sgd_create(cairn_param_set *set, const struct cairn_sgd_options *options, cairn_optimizer **out) {
    return cairn__kind_create(&kind, set, options, out);
}

cairn_status cairn_sgd_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                   const struct cairn_sgd_options *options, cairn_optimizer **out) {
    return cairn__kind_create_over(&kind, set, indices, count, options, out);
}

cairn_status cairn_sgd_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices, size_t count,
                                 const struct cairn_sgd_options *options) {
    return cairn__kind_add_group(&kind, optimizer, set, indices, count, options);
}

cairn_status cairn_sgd_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set, const cairn_group_rule *rules,
                                            size_t count, cairn_optimizer **out) {
    return cairn__optimizer_create_grouped(&kind, rule_nbytes, set, rules, count, out);
}

cairn_status(cairn_sgd_create_grouped)(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                       cairn_optimizer **out) {
    return cairn_sgd_create_grouped_sized(CAIRN__GROUP_RULE_0_8, set, rules, count, out);
}
