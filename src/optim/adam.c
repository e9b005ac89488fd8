/* Adam and AdamW: one kind, with weight decay applied to the gradient or to the weights. */
#include <string.h>

#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"

static const struct cairn__group_field fields[] = {
    {"lr", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, schedule.base.lr), true, false},
    {"beta1", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, schedule.base.momentum), true, false},
    {"beta2", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, rule.adam.beta2), false, false},
    {"eps", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, rule.adam.eps), false, false},
    {"weight_decay", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, rule.adam.weight_decay), false, false},
    {"amsgrad", CAIRN__GROUP_FIXED, offsetof(struct cairn__param_group, rule.adam.amsgrad), false, true},
    {"maximize", CAIRN__GROUP_SWITCH, offsetof(struct cairn__param_group, rule.maximizes), false, true},
    {"uncorrected", CAIRN__GROUP_SWITCH, offsetof(struct cairn__param_group, rule.adam.uncorrected), false, true},
    CAIRN__LARC_FIELDS,
    {.name = NULL},
};

static cairn_status check(const struct cairn__optimizer_kind *k, const struct cairn_adam_options *h) {
    const char *kind = k->name;
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_rate(kind, "lr", h->lr));
    TRY(cairn__check_rate(kind, "eps", h->eps));
    TRY(cairn__check_rate(kind, "weight_decay", h->weight_decay));
    TRY(cairn__check_beta(kind, "beta1", h->beta1));
    TRY(cairn__check_beta(kind, "beta2", h->beta2));
    REQUIRE((float)h->eps > 0 || h->beta2 > 0, CAIRN_EINVAL,
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
    const cairn_status st = check(kind, &h);
    return st == CAIRN_OK ? cairn__check_larc(kind->name, &g->rule.larc) : st;
}

static cairn_status group_of(const struct cairn__optimizer_kind *kind, const void *options,
                             struct cairn__param_group *out) {
    const bool decoupled = strcmp(kind->name, "AdamW") == 0;
    const struct cairn_adam_options l2 = CAIRN_ADAM_OPTIONS_INIT, decay = CAIRN_ADAMW_OPTIONS_INIT;
    struct cairn_adam_options h = decoupled ? decay : l2;
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&h, sizeof(h), options, "cairn_adam_options"));
    TRY(check(kind, &h));
    *out = (struct cairn__param_group){.schedule.base = {.lr = h.lr, .momentum = h.beta1},
                                       .rule = {.kind = CAIRN__OPTIM_ADAM,
                                                .maximizes = h.maximize == CAIRN_ON,
                                                .adam = {.beta2 = h.beta2,
                                                         .eps = h.eps,
                                                         .weight_decay = h.weight_decay,
                                                         .decoupled = decoupled,
                                                         .amsgrad = h.amsgrad == CAIRN_ON,
                                                         .uncorrected = h.bias_correction == CAIRN_OFF}}};
out:
    return st;
}

#define KIND(name_, saved)                                                                                    \
    {                                                                                                         \
        .name = name_, .has_momentum = true, .takes_larc = true, .options = offsetof(cairn_group_rule, adam), \
        .group_of = group_of, .check = check_group, .saved_as = saved,                                        \
        .state_names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, .fields = fields                          \
    }
static const struct cairn__optimizer_kind adam_kind = KIND("Adam", "adam");
const struct cairn__optimizer_kind cairn__adamw_kind = KIND("AdamW", "adamw");
#undef KIND

cairn_status cairn_adam_create(cairn_param_set *set, const struct cairn_adam_options *options, cairn_optimizer **out) {
    return cairn__kind_create(&adam_kind, set, options, out);
}

cairn_status cairn_adam_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                    const struct cairn_adam_options *options, cairn_optimizer **out) {
    return cairn__kind_create_over(&adam_kind, set, indices, count, options, out);
}

cairn_status cairn_adam_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set, const cairn_group_rule *rules,
                                             size_t count, cairn_optimizer **out) {
    return cairn__optimizer_create_grouped(&adam_kind, rule_nbytes, set, rules, count, out);
}

cairn_status cairn_adamw_create(cairn_param_set *set, const struct cairn_adam_options *options, cairn_optimizer **out) {
    return cairn__kind_create(&cairn__adamw_kind, set, options, out);
}

cairn_status cairn_adamw_create_over(cairn_param_set *set, const size_t *indices, size_t count,
                                     const struct cairn_adam_options *options, cairn_optimizer **out) {
    return cairn__kind_create_over(&cairn__adamw_kind, set, indices, count, options, out);
}

cairn_status cairn_adamw_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set, const cairn_group_rule *rules,
                                              size_t count, cairn_optimizer **out) {
    return cairn__optimizer_create_grouped(&cairn__adamw_kind, rule_nbytes, set, rules, count, out);
}

/* The group has the optimizer's kind, or AdamW if the optimizer accepts groups of AdamW besides its own kind. */
cairn_status cairn_adam_add_group(cairn_optimizer *optimizer, cairn_param_set *set, const size_t *indices, size_t count,
                                  const struct cairn_adam_options *options) {
    const struct cairn__optimizer_kind *own = optimizer ? optimizer->kind : NULL;
    const bool is_adamw = own && (own == &cairn__adamw_kind || own->other == &cairn__adamw_kind);
    return cairn__kind_add_group(is_adamw ? &cairn__adamw_kind : &adam_kind, optimizer, set, indices, count, options);
}

cairn_status(cairn_adam_create_grouped)(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                        cairn_optimizer **out) {
    return cairn_adam_create_grouped_sized(CAIRN__GROUP_RULE_0_8, set, rules, count, out);
}

cairn_status(cairn_adamw_create_grouped)(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                         cairn_optimizer **out) {
    return cairn_adamw_create_grouped_sized(CAIRN__GROUP_RULE_0_8, set, rules, count, out);
}
