/* Groups of parameters by rules: one call divides a set into groups and sets the hyperparameters of each.
 *
 *     struct cairn_adam_options decays = CAIRN_ADAMW_OPTIONS_INIT, plain = decays;
 *     plain.weight_decay = 0;
 *     const cairn_group_rule rules[] = {{.are = CAIRN_PARAMS_MATRICES, .adam = &decays}, {.adam = &plain}};
 *     CAIRN_CHECK(cairn_adamw_create_grouped(cairn_module_params(bert), rules, 2, &adamw));
 */
#ifndef CAIRN_PARAM_GROUPS_H
#define CAIRN_PARAM_GROUPS_H

#include "optim.h"
#include "param.h"
#include "schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of parameters, by shape and is_norm. */
typedef enum cairn_params_are {
    CAIRN_PARAMS_MATRICES = 1,         /* two dimensions or more, not of a normalisation: usually those to decay */
    CAIRN_PARAMS_BIASES_AND_NORMS = 2, /* all others: fewer dimensions, or of a normalisation */
    CAIRN_PARAMS_NORMS = 3             /* of a normalisation */
} cairn_params_are;

struct cairn_custom_options; /* custom_optimizer.h */
struct cairn_muon_options;   /* muon.h */

/* A rule: selects the parameters of a group, and sets the group's options. A parameter is selected if it meets every
 * condition that is set; a rule without conditions selects all. It has no struct_size: the calls pass its size
 * (core.h). */
typedef struct cairn_group_rule {
    cairn_params_are are; /* 0 = any kind */
    const char *names;    /* a pattern for the whole name: "encoder.*.weight", "h.[0-3].*", as POSIX fnmatch without
                             flags, so * matches dots too. NULL = any */
    int (*takes)(void *user, const cairn_param *param); /* returns 0 to reject. param is as from
                             cairn_param_set_get, read-only; grad is NULL if there is none yet. NULL = any */
    void *user;                                         /* passed to takes */
    const struct cairn_sgd_options *sgd;   /* hyperparameters; NULL = the INIT macro's, as with any create */
    const struct cairn_adam_options *adam; /* for Adam and AdamW. Options for another kind of optimizer must be NULL */
    const struct cairn_schedule_options *schedule; /* NULL = none */
    const struct cairn_lion_options *lion;
    const struct cairn_adagrad_options *adagrad;
    const struct cairn_custom_options *custom;
    const struct cairn_muon_options *muon;
    const struct cairn_lamb_options *lamb;
    const struct cairn_novograd_options *novograd;
} cairn_group_rule;

/* Make an optimizer with a group for each rule: group i is that of rules[i]. A parameter goes to the first rule that
 * selects it. A rule that selects none gets an empty group, which is logged (info).
 *
 *   rules   [count]; rules, names and options are read during the call
 *
 * Errors: CAIRN_EINVAL a parameter that no rule selects, by name; an option, with the rule's number; as
 * cairn_sgd_create; CAIRN_ENOMEM. torch: a list of dicts given to an optimizer */
CAIRN_API cairn_status cairn_sgd_create_grouped(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                                cairn_optimizer **out);
CAIRN_API cairn_status cairn_adam_create_grouped(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                                 cairn_optimizer **out);
CAIRN_API cairn_status cairn_adamw_create_grouped(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                                  cairn_optimizer **out);
CAIRN_API cairn_status cairn_lion_create_grouped(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                                 cairn_optimizer **out);
CAIRN_API cairn_status cairn_adagrad_create_grouped(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                                    cairn_optimizer **out);
CAIRN_API cairn_status cairn_lamb_create_grouped(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                                 cairn_optimizer **out);
CAIRN_API cairn_status cairn_novograd_create_grouped(cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                                     cairn_optimizer **out);
CAIRN_API cairn_status cairn_sgd_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set,
                                                      const cairn_group_rule *rules, size_t count,
                                                      cairn_optimizer **out);
CAIRN_API cairn_status cairn_adam_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set,
                                                       const cairn_group_rule *rules, size_t count,
                                                       cairn_optimizer **out);
CAIRN_API cairn_status cairn_adamw_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set,
                                                        const cairn_group_rule *rules, size_t count,
                                                        cairn_optimizer **out);
CAIRN_API cairn_status cairn_lion_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set,
                                                       const cairn_group_rule *rules, size_t count,
                                                       cairn_optimizer **out);
CAIRN_API cairn_status cairn_adagrad_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set,
                                                          const cairn_group_rule *rules, size_t count,
                                                          cairn_optimizer **out);
CAIRN_API cairn_status cairn_lamb_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set,
                                                       const cairn_group_rule *rules, size_t count,
                                                       cairn_optimizer **out);
CAIRN_API cairn_status cairn_novograd_create_grouped_sized(size_t rule_nbytes, cairn_param_set *set,
                                                           const cairn_group_rule *rules, size_t count,
                                                           cairn_optimizer **out);
#define cairn_sgd_create_grouped(...)      cairn_sgd_create_grouped_sized(sizeof(cairn_group_rule), __VA_ARGS__)
#define cairn_adam_create_grouped(...)     cairn_adam_create_grouped_sized(sizeof(cairn_group_rule), __VA_ARGS__)
#define cairn_adamw_create_grouped(...)    cairn_adamw_create_grouped_sized(sizeof(cairn_group_rule), __VA_ARGS__)
#define cairn_lion_create_grouped(...)     cairn_lion_create_grouped_sized(sizeof(cairn_group_rule), __VA_ARGS__)
#define cairn_adagrad_create_grouped(...)  cairn_adagrad_create_grouped_sized(sizeof(cairn_group_rule), __VA_ARGS__)
#define cairn_lamb_create_grouped(...)     cairn_lamb_create_grouped_sized(sizeof(cairn_group_rule), __VA_ARGS__)
#define cairn_novograd_create_grouped(...) cairn_novograd_create_grouped_sized(sizeof(cairn_group_rule), __VA_ARGS__)

/* The group of this optimizer that updates parameter i of set; -1 = none. */
CAIRN_API int cairn_optimizer_group_of(const cairn_optimizer *optimizer, const cairn_param_set *set, size_t i);

#ifdef __cplusplus
}
#endif

#endif
