/* Groups of parameters by rule: which of a set go where, with which hyperparameters, in one call.
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

/* What a parameter is, by its shape and is_norm. */
typedef enum cairn_params_are {
    CAIRN_PARAMS_MATRICES = 1,         /* two dimensions or more, of no normalisation: what weight decay is for */
    CAIRN_PARAMS_BIASES_AND_NORMS = 2, /* all others: fewer dimensions, or of a normalisation */
    CAIRN_PARAMS_NORMS = 3             /* of a normalisation */
} cairn_params_are;

struct cairn_custom_options; /* custom_optimizer.h */
struct cairn_muon_options;   /* muon.h */

/* Which parameters a group takes: those that everything set here holds for; a rule with nothing set takes all. It has
 * no struct_size: the calls hand its size over (core.h). */
typedef struct cairn_group_rule {
    cairn_params_are are; /* 0 = whatever they are */
    const char *names;    /* a pattern for the whole name: "encoder.*.weight", "h.[0-3].*", as POSIX fnmatch without
                             flags, so * takes dots too. NULL = any */
    int (*takes)(void *user, const cairn_param *param); /* 0 = not this one. param is as from cairn_param_set_get,
                             grad NULL where there is none yet; read it only. NULL = any */
    void *user;                                         /* handed to takes */
    const struct cairn_sgd_options *sgd;   /* hyperparameters; NULL = the INIT macro's, as with any create */
    const struct cairn_adam_options *adam; /* of Adam and AdamW. That of another kind than the call's must be NULL */
    const struct cairn_schedule_options *schedule; /* NULL = none */
    const struct cairn_lion_options *lion;
    const struct cairn_adagrad_options *adagrad;
    const struct cairn_custom_options *custom;
    const struct cairn_muon_options *muon;
    const struct cairn_lamb_options *lamb;
    const struct cairn_novograd_options *novograd;
} cairn_group_rule;

/* An optimizer with a group for each rule, in their order: group i is rules[i]'s. A parameter goes to the first rule
 * that takes it. A rule that takes none has an empty group, which is logged (info).
 *
 *   rules   [count]; they, names and options are read during the call
 *
 * Errors: CAIRN_EINVAL no rule takes a parameter, which is named; an option, with the rule's number; as
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

/* Of a parameter in an optimizer: the group that updates it; -1 = none of this optimizer's. i: its number in set. */
CAIRN_API int cairn_optimizer_group_of(const cairn_optimizer *optimizer, const cairn_param_set *set, size_t i);

#ifdef __cplusplus
}
#endif

#endif
