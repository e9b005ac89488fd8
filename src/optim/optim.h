/* Optimizers from inside: a kind is one pass over lists of parameters; the front makes the lists and ends the step. */
#ifndef CAIRN__OPTIM_H
#define CAIRN__OPTIM_H

#include "cairn/param_groups.h"
#include "cairn/schedule.h"
#include "core/options.h"
#include "optim/hooks.h"
#include "param/param.h"

enum { CAIRN__CUSTOM_VALUES = 8 };

struct cairn__optimizer_kind;

/* Of Muon (muon.c), whose other hyperparameters are those of SGD's rule. */
struct cairn__muon {
    double weight_decay, eps, a, b, c, steps;
    bool matches_rms;
};

/* Hyperparameters of one group, and where it lies: parameters [first, first + count) of the optimizer. */
struct cairn__param_group {
    struct cairn__optim_rule rule;
    double values[CAIRN__CUSTOM_VALUES]; /* of a custom kind */
    struct cairn__muon muon;
    const struct cairn__optimizer_kind *kind; /* the optimizer's, or that one's `other`; NULL until it is added */
    struct cairn__group_schedule schedule;    /* the host's: parts are in `parts` */
    void *parts, *device_parts;               /* of the schedule, and what they point to; NULL = none */
    size_t first, count;
};

/* Of cairn_optimizer_set_plateau. */
struct cairn__plateau {
    bool is_on;
    struct cairn_plateau_options how;
    double best;
    int64_t bad, cooling; /* metrics */
};

enum cairn__group_field_type { CAIRN__GROUP_REAL, CAIRN__GROUP_SWITCH, CAIRN__GROUP_FIXED /* decides the moments */ };

/* A hyperparameter of a group, for its state (state.c). */
struct cairn__group_field {
    const char *name;
    enum cairn__group_field_type type; /* double; else bool */
    size_t offset;                     /* in struct cairn__param_group */
    bool is_in_memory;                 /* the device's: a graph that was recorded reads it anew */
    bool is_newer;                     /* than checkpoints of its kind, which lack it: saved where it is not 0 */
};

/* What a kind is made of (kinds.c has what all share). A new one is a rule with its scalars (kernels/step.h), one
 * element's update (kernels/element.h) in loops of the reference and of vectors, and a file of this room. */
struct cairn__optimizer_kind {
    const char *name;
    bool is_user;      /* who updates; nothing below but saved_as is there */
    bool has_momentum; /* a schedule may move it, in groups with states */
    bool takes_larc;   /* update_of applies it, and fields has CAIRN__LARC_FIELDS */
    size_t options;    /* offset in cairn_group_rule of the pointer to its options */
    /* options: NULL = the INIT macro's. Errors: CAIRN_EINVAL. */
    cairn_status (*group_of)(const struct cairn__optimizer_kind *kind, const void *options,
                             struct cairn__param_group *out);
    /* (optional: any are) Whether a group's hyperparameters are those that create takes. Errors: CAIRN_EINVAL. */
    cairn_status (*check)(const struct cairn__optimizer_kind *kind, const struct cairn__param_group *group);

    /* (optional: any may) Whether a parameter may be in a group. Errors: CAIRN_EINVAL. */
    cairn_status (*check_param)(const struct cairn__optimizer_kind *kind, const struct cairn__param *p);
    /* (optional: nothing) Before anything of a step is changed: memory for `update`, and refusals that depend on how
     * parameters are by now. Errors: CAIRN_ENOMEM; CAIRN_ENOTSUP. */
    cairn_status (*prepare)(struct cairn_optimizer *o, const struct cairn__param_group *group);
    /* (optional: the device's fused update by `rule`) Queues the update of a group's parameters that have a gradient,
     * of items and keys. Errors: CAIRN_ENOMEM. */
    cairn_status (*update)(struct cairn_optimizer *o, const struct cairn__param_group *group);
    /* (optional: none) What further groups may be of: a rule with its options makes one. */
    const struct cairn__optimizer_kind *other;
    /* (optional: it does not) The norm that a step clips all gradients to, 0 = none. The same in all groups. */
    double (*max_norm)(const struct cairn__param_group *group);

    /* In checkpoints, where names stay what they are. */
    const char *saved_as;
    const char *state_names[CAIRN__MAX_STATES];
    const struct cairn__group_field *fields; /* the last has no name; NULL = none */
};

/* clang-format off */
#define CAIRN__LARC_FIELDS                                                                                           \
    {"larc", CAIRN__GROUP_SWITCH, offsetof(struct cairn__param_group, rule.larc.is_on), false, true},                 \
    {"larc_trust_coefficient", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, rule.larc.trust), false, true}, \
    {"larc_eps", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, rule.larc.eps), false, true},                 \
    {"larc_scales", CAIRN__GROUP_SWITCH, offsetof(struct cairn__param_group, rule.larc.scales), false, true}
/* clang-format on */

/* A schedule may move the group's momentum. */
static inline bool cairn__momentum_cycles(const struct cairn__optimizer_kind *kind,
                                          const struct cairn__param_group *group) {
    return kind->has_momentum && cairn__rule_states(&group->rule) > 0;
}

/* [parameters] each; remade as groups are added. */
struct cairn__optim_arrays {
    struct cairn__param **params;
    struct {
        float *array[CAIRN__MAX_STATES]; /* of [n], zeroed, in device memory; behind the states LAMB's direction */
        bool waits;             /* frozen since it was added: these and `missed` are made with its first gradient */
        bool listed_as_waiting; /* by the last list of its state */
    } * moments;

    /* In device memory. */
    int64_t *missed;                   /* taken steps without a gradient */
    struct cairn__squares *squares;    /* of the step that is being queued, where the rule measures */
    struct cairn__overflow *overflows; /* [parameters + 1]: the last is of the losses themselves */

    struct cairn__overflow *report_overflows; /* [CAIRN__REPORTS][parameters + 1], of the skipped steps in `reports` */

    /* Of the step that is being queued. */
    struct cairn__optim_item *items, *list; /* a list gathered from items */
    int *keys;                              /* which list a parameter goes to; -1 = no gradient, below: was listed */
    struct cairn__item *plain;
    struct cairn__taken *taken;
};

struct cairn_optimizer {
    const struct cairn__optimizer_kind *kind;
    void *own_kind; /* freed with it: a kind that was made for it (custom.c); NULL = kind is static */
    struct cairn_env *env;
    struct cairn_param_set *set; /* given at creation */
    struct cairn_param_set **sets;
    size_t num_sets, sets_capacity;

    struct cairn__param_group *groups;
    size_t num_groups, groups_capacity;
    struct cairn__optim_arrays arrays;
    size_t count; /* of parameters */

    /* In device memory. */
    struct cairn__optim_state *state;
    struct cairn__rate_table table;
    void *scratch; /* of a kind whose update is several passes */
    size_t scratch_nbytes;
    double *norms; /* [count + 1]: of lists of gradients, then of all of them */
    bool clipped;  /* state->clip may not be 1 */
    bool warned;   /* that no guard checks for overflow */
    bool noted;    /* state->skip and overflows may be raised, because of gradients that are seen */

    struct cairn__plateau plateau;
    struct cairn__step_report *reports; /* what the device writes and the host reads */
    uint64_t last_read;                 /* the number of the last report that was read */
    uint64_t queued;                    /* the number of the last step, whose report may be still to come; of a graph's
                                           steps as last_read */
    struct cairn__report_reader reader;
    struct cairn__step_guard guard;

    const struct cairn__partners *partners; /* NULL = none */
    double *partner_norms;                  /* in device memory: of the lists of all partners, in their order */
    size_t partner_norms_room;
};

/* An optimizer with one group over parameters of set: the count at indices, or all. like: rule and base rates. */
cairn_status cairn__optimizer_create(const struct cairn__optimizer_kind *kind, struct cairn_param_set *set,
                                     const size_t *indices, size_t count, const struct cairn__param_group *like,
                                     cairn_optimizer **out);

/* Moments, and what was missed, of parameters that were frozen when they were added and have a gradient now. Errors:
 * CAIRN_ENOMEM. */
cairn_status cairn__optimizer_make_waiting(cairn_optimizer *o);

/* Moments of parameter i, zeroed, which is of group, where there are none yet. Errors: CAIRN_ENOMEM. */
cairn_status cairn__optimizer_make_moments(cairn_optimizer *o, size_t i, const struct cairn__param_group *group);

/* Clipping and overflow whose gradients have all been forgotten are forgotten too. */
void cairn__optimizer_forget_stale(cairn_optimizer *o);

/* Gradients as they are stored: n, grad and factor of items, and keys, which are their types. Errors: CAIRN_ENOMEM. */
cairn_status cairn__optimizer_read_grads(cairn_optimizer *o);

/* Queues the norm of those with the type and factor of gradient `first`, sharded or not as it is, from it on, of `done`
 * that have been before. clip: their clipping coefficient from now on; NULL: each one's norm too, in order, to
 * norms[done] and on, and key i becomes -2 - the place of gradient i in norms. Returns how many are done. */
size_t cairn__optimizer_norm_list(cairn_optimizer *o, size_t first, size_t done, double *norm, const float *clip);

/* Where other gradients have come since clipping, multiplies those that it was computed from by its coefficient.
 * Errors: CAIRN_ENOMEM. */
cairn_status cairn__optimizer_part_clip(cairn_optimizer *o);

/* In a step: its gradients are clipped by the norm of all of them, as cairn_clip_grad_norm clips. Errors: CAIRN_ENOMEM;
 * CAIRN_ESTATE there are partners, and a graph is being recorded; those of the partners' group. */
cairn_status cairn__optimizer_clip_step(cairn_optimizer *o, double max_norm);

/* The next step is not skipped for overflows found so far. */
void cairn__optimizer_lower_skip(cairn_optimizer *o);

/* Adds a group over parameters of set: the count at indices, or all (indices NULL). kind: must be the optimizer's own.
 * like: rule and base rates. Errors, which add nothing: CAIRN_EINVAL, CAIRN_ESTATE, CAIRN_ENOMEM; those of unread
 * reports. */
cairn_status cairn__optimizer_add_group(cairn_optimizer *o, const struct cairn__optimizer_kind *kind,
                                        struct cairn_param_set *set, const size_t *indices, size_t count,
                                        const struct cairn__param_group *like);

/* An optimizer with a group for each rule (cairn/param_groups.h). */
cairn_status cairn__optimizer_create_grouped(const struct cairn__optimizer_kind *kind, size_t rule_nbytes,
                                             struct cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                             cairn_optimizer **out);

/* sizeof(cairn_group_rule) of 0.8.0 and 0.9.0. */
#define CAIRN__GROUP_RULE_0_8 CAIRN__SIZE_THROUGH(cairn_group_rule, schedule)
#define CAIRN__GROUP_RULE_0_9 CAIRN__SIZE_THROUGH(cairn_group_rule, novograd)

/* What the public calls of a kind are: over all of set, over some, and a further group of an optimizer of that kind. */
cairn_status cairn__kind_create(const struct cairn__optimizer_kind *kind, cairn_param_set *set, const void *options,
                                cairn_optimizer **out);
cairn_status cairn__kind_create_over(const struct cairn__optimizer_kind *kind, cairn_param_set *set,
                                     const size_t *indices, size_t count, const void *options, cairn_optimizer **out);
cairn_status cairn__kind_add_group(const struct cairn__optimizer_kind *kind, cairn_optimizer *optimizer,
                                   cairn_param_set *set, const size_t *indices, size_t count, const void *options);

extern const struct cairn__optimizer_kind cairn__adamw_kind;

/* Checks the arguments that every kind has. For a NULL set the message repeats the last error, which may be why its
 * model was not made. */
cairn_status cairn__check_set(const char *kind, const cairn_param_set *set, const void *out);

/* Errors: CAIRN_EINVAL. */
cairn_status cairn__check_larc(const char *call, const struct cairn__larc *larc);

/* A number >= 0, as lr and weight_decay; one in [0, 1). */
cairn_status cairn__check_rate(const char *kind, const char *name, double value);
cairn_status cairn__check_beta(const char *kind, const char *name, double value);

#endif
