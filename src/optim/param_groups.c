/* Parameter groups by rule. All rules are read and every parameter is assigned to one before the optimizer is created,
 * group by group, so that a refused call changes nothing. */
#include "cairn/param_groups.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "optim/rates.h"

/* ---- assigning parameters to rules ---- */

static bool is_one_of(cairn_params_are are, const cairn_param *p) {
    const bool is_norm = p->is_norm == CAIRN_ON, is_matrix = p->ndim >= 2 && !is_norm;
    switch (are) {
    case CAIRN_PARAMS_MATRICES:
        return is_matrix;
    case CAIRN_PARAMS_BIASES_AND_NORMS:
        return !is_matrix;
    case CAIRN_PARAMS_NORMS:
        return is_norm;
    }
    return true;
}

static bool takes(const cairn_group_rule *rule, const struct cairn__param *param, const cairn_param *p) {
    if (!is_one_of(rule->are, p)) return false;
    if (rule->names && !cairn__param_matches(param, rule->names)) return false;
    return !rule->takes || rule->takes(rule->user, p) != 0;
}

/* Parameters in the order of rules, and within a rule in the set's order. */
struct sorting {
    size_t *indices; /* [set->count] */
    size_t *ends;    /* [count]: rule i has indices [ends[i - 1], ends[i]) */
};

static cairn_status sort(const char *kind, const struct cairn_param_set *set, const cairn_group_rule *rules,
                         size_t count, struct sorting *s) {
    cairn_status st = CAIRN_OK;
    size_t *rule_of = NULL, sorted = 0;
    TRY(cairn__calloc(set->count, sizeof(rule_of[0]), (void **)&rule_of));
    TRY(cairn__calloc(set->count, sizeof(s->indices[0]), (void **)&s->indices));
    TRY(cairn__calloc(count, sizeof(s->ends[0]), (void **)&s->ends));
    for (size_t i = 0; i < set->count; i++) {
        cairn_param p;
        cairn__param_describe(set->params[i], &p);
        while (rule_of[i] < count && !takes(&rules[rule_of[i]], set->params[i], &p)) rule_of[i]++;
        if (rule_of[i] < count) continue;
        st = cairn__fail(CAIRN_EINVAL, "%s: none of the %zu rules takes parameter '%s'; end with a rule that takes all",
                         kind, count, p.name);
        goto out;
    }
    for (size_t r = 0; r < count; r++) {
        for (size_t i = 0; i < set->count; i++) {
            if (rule_of[i] == r) s->indices[sorted++] = i;
        }
        s->ends[r] = sorted;
        const bool is_empty = sorted == (r ? s->ends[r - 1] : 0);
        if (is_empty) cairn__log(CAIRN_LOG_INFO, "%s: rule %zu takes no parameter, so its group is empty", kind, r);
    }
out:
    cairn__free(rule_of);
    return st;
}

/* ---- rules ---- */

/* A rule's options for the kind at this offset. */
static const void *options_of(const cairn_group_rule *rule, size_t offset) {
    const void *options;
    memcpy(&options, (const char *)rule + offset, sizeof(options));
    return options;
}

static const struct {
    size_t offset;
    const char *kind;
} options[] = {{offsetof(cairn_group_rule, sgd), "SGD"},
               {offsetof(cairn_group_rule, adam), "Adam"},
               {offsetof(cairn_group_rule, lion), "Lion"},
               {offsetof(cairn_group_rule, adagrad), "Adagrad"},
               {offsetof(cairn_group_rule, custom), "an optimizer of the user's"},
               {offsetof(cairn_group_rule, muon), "Muon"},
               {offsetof(cairn_group_rule, lamb), "LAMB"},
               {offsetof(cairn_group_rule, novograd), "NovoGrad"}};

/* The kind of a rule's group: the optimizer's kind or its `other`, whichever the rule has options for. */
static const struct cairn__optimizer_kind *kind_of(const struct cairn__optimizer_kind *k,
                                                   const cairn_group_rule *rule) {
    return k->other && options_of(rule, k->other->options) ? k->other : k;
}

static cairn_status group_of(const struct cairn__optimizer_kind *k, const cairn_group_rule *rule,
                             struct cairn__param_group *out) {
    const struct cairn__optimizer_kind *of = kind_of(k, rule);
    cairn_status st = CAIRN_OK;
    TRY(of->group_of(of, options_of(rule, of->options), out));
    if (of != k) out->kind = of;
out:
    return st;
}

static cairn_status check_rule(const struct cairn__optimizer_kind *k, const cairn_group_rule *rule, size_t r) {
    cairn_status st = CAIRN_OK;
    REQUIRE(rule->are >= 0 && rule->are <= CAIRN_PARAMS_NORMS, CAIRN_EINVAL,
            "%s: rule %zu: are is %d; it must be from 0 to 3 (cairn_params_are)", k->name, r, (int)rule->are);
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        REQUIRE(options[i].offset == kind_of(k, rule)->options || !options_of(rule, options[i].offset), CAIRN_EINVAL,
                "%s: rule %zu has options of %s; leave them out", k->name, r, options[i].kind);
    struct cairn__param_group group;
    char why[512];
    TRY(group_of(k, rule, &group));
    TRY(cairn__schedule_check(rule->schedule, cairn__momentum_cycles(k, &group)));
    return CAIRN_OK;
out:
    snprintf(why, sizeof(why), "%s", cairn_last_error());
    return cairn__fail(st, "rule %zu: %s", r, why);
}

static cairn_status read_rules(const struct cairn__optimizer_kind *k, size_t nbytes, const cairn_group_rule *given,
                               size_t count, cairn_group_rule **out) {
    cairn_status st = CAIRN_OK;
    cairn_group_rule *rules = NULL;
    REQUIRE(given && count > 0, CAIRN_EINVAL, "%s: rules is NULL or count is 0; at least one rule must be given",
            k->name);
    TRY(cairn__element_check(nbytes, "cairn_group_rule"));
    TRY(cairn__calloc(count, sizeof(rules[0]), (void **)&rules));
    for (size_t r = 0; r < count; r++) {
        TRY(cairn__element_read(&rules[r], sizeof(rules[0]), given, nbytes, r, "cairn_group_rule"));
        TRY(check_rule(k, &rules[r], r));
    }
    *out = rules;
    return CAIRN_OK;
out:
    cairn__free(rules);
    return st;
}

static cairn_status make_group(const struct cairn__optimizer_kind *k, struct cairn_param_set *set,
                               const cairn_group_rule *rule, const size_t *indices, size_t count,
                               cairn_optimizer **optimizer) {
    cairn_status st = CAIRN_OK;
    struct cairn__param_group group;
    TRY(group_of(k, rule, &group));
    if (!*optimizer) {
        TRY(cairn__optimizer_create(k, set, indices, count, &group, optimizer));
    } else {
        TRY(cairn__optimizer_add_group(*optimizer, k, set, indices, count, &group));
    }
    if (rule->schedule)
        TRY(cairn_optimizer_set_group_schedule(*optimizer, cairn_optimizer_num_groups(*optimizer) - 1, rule->schedule));
out:
    return st;
}

cairn_status cairn__optimizer_create_grouped(const struct cairn__optimizer_kind *k, size_t rule_nbytes,
                                             struct cairn_param_set *set, const cairn_group_rule *given, size_t count,
                                             cairn_optimizer **out) {
    cairn_status st = CAIRN_OK;
    cairn_group_rule *rules = NULL;
    struct sorting s = {0};
    cairn_optimizer *optimizer = NULL;
    TRY(cairn__check_set(k->name, set, out));
    TRY(read_rules(k, rule_nbytes, given, count, &rules));
    TRY(sort(k->name, set, rules, count, &s));
    for (size_t r = 0; r < count; r++) {
        const size_t first = r ? s.ends[r - 1] : 0;
        TRY(make_group(k, set, &rules[r], s.indices + first, s.ends[r] - first, &optimizer));
    }
    *out = optimizer;
    optimizer = NULL;
out:
    cairn_optimizer_destroy(&optimizer);
    cairn__free(s.indices);
    cairn__free(s.ends);
    cairn__free(rules);
    return st;
}

int cairn_optimizer_group_of(const cairn_optimizer *optimizer, const cairn_param_set *set, size_t i) {
    if (!optimizer || !set || i >= set->count) return -1;
    for (size_t g = 0; g < optimizer->num_groups; g++) {
        const struct cairn__param_group *group = &optimizer->groups[g];
        for (size_t k = group->first; k < group->first + group->count; k++) {
            if (optimizer->arrays.params[k] == set->params[i]) return (int)g;
        }
    }
    return -1;
}
