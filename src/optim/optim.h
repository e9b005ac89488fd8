/* Optimizers, internal interface. A kind is one pass over lists of parameters; the front builds the lists and ends the
 * step. */
#ifndef CAIRN__OPTIM_H
#define CAIRN__OPTIM_H

#include "cairn/param_groups.h"
#include "cairn/schedule.h"
#include "core/options.h"
#include "optim/hooks.h"
#include "param/param.h"

enum { CAIRN__CUSTOM_VALUES = 8 };

struct cairn__optimizer_kind;

/* Muon's hyperparameters (muon.c), besides those of SGD's rule. */
struct cairn__muon {
    double weight_decay, eps, a, b, c, steps;
    bool matches_rms;
};

/* Hyperparameters of one group, which has parameters [first, first + count) of the optimizer. */
struct cairn__param_group {
    struct cairn__optim_rule rule;
    double values[CAIRN__CUSTOM_VALUES]; /* for custom kinds */
    struct cairn__muon muon;
    const struct cairn__optimizer_kind *kind; /* the optimizer's kind or its `other`; NULL until the group is added */
    struct cairn__group_schedule schedule;    /* the host's copy, whose parts are in `parts` */
    void *parts, *device_parts;               /* parts of the schedule and what they point to; NULL = none */
    size_t first, count;
};

/* State of cairn_optimizer_set_plateau. */
struct cairn__plateau {
    bool is_on;
    struct cairn_plateau_options how;
    double best;
    int64_t bad, cooling; /* metrics */
};

enum cairn__group_field_type {
    CAIRN__GROUP_REAL,
    CAIRN__GROUP_SWITCH,
    CAIRN__GROUP_FIXED /* decides which moments exist */
};

/* A hyperparameter of a group, as saved (state.c). */
struct cairn__group_field {
    const char *name;
    enum cairn__group_field_type type; /* CAIRN__GROUP_REAL is a double, the others are bool */
    size_t offset;                     /* in struct cairn__param_group */
    bool is_in_memory;                 /* in device memory: recorded graphs read its current value */
    bool is_newer;                     /* older checkpoints of the kind lack it, so it is saved only if not 0 */
};

/* What defines a kind (kinds.c has the calls that all kinds share). A new kind needs a rule with its scalars
 * (kernels/step.h), one element's update (kernels/element.h) in the reference and vector loops, and a file in this
 * room. */
struct cairn__optimizer_kind {
    const char *name;
    bool is_user;      /* the user updates; of the fields below only saved_as is set */
    bool has_momentum; /* a schedule may change the momentum of groups with states */
    bool takes_larc;   /* its update applies LARC, and fields has CAIRN__LARC_FIELDS */
    size_t options;    /* offset in cairn_group_rule of the pointer to the kind's options */
    /* Reads options; NULL = those of the INIT macro. Errors: CAIRN_EINVAL. */
    cairn_status (*group_of)(const struct cairn__optimizer_kind *kind, const void *options,
                             struct cairn__param_group *out);
    /* (optional: accepts all) Checks hyperparameters of a group as create does. Errors: CAIRN_EINVAL. */
    cairn_status (*check)(const struct cairn__optimizer_kind *kind, const struct cairn__param_group *group);

    /* (optional: accepts all) Checks whether a parameter may be in a group. Errors: CAIRN_EINVAL. */
    cairn_status (*check_param)(const struct cairn__optimizer_kind *kind, const struct cairn__param *p);
    /* (optional: does nothing) Called before a step changes anything: allocates memory for `update`, and refuses
     * parameters that the kind cannot update in their current form. Errors: CAIRN_ENOMEM; CAIRN_ENOTSUP. */
    cairn_status (*prepare)(struct cairn_optimizer *o, const struct cairn__param_group *group);
    /* (optional: the device's fused update by `rule`) Queues the update of a group's parameters that have a gradient,
     * from items and keys. Errors: CAIRN_ENOMEM. */
    cairn_status (*update)(struct cairn_optimizer *o, const struct cairn__param_group *group);
    /* (optional: none) The kind that further groups may have: a group rule with its options creates one. */
    const struct cairn__optimizer_kind *other;
    /* (optional: no clipping) The norm that a step clips all gradients to, 0 = none. Equal in all groups. */
    double (*max_norm)(const struct cairn__param_group *group);

    /* Names in checkpoints, which never change. */
    const char *saved_as;
    const char *state_names[CAIRN__MAX_STATES];
    const struct cairn__group_field *fields; /* ends with a field without a name; NULL = none */
};

/* clang-format off */
#define CAIRN__LARC_FIELDS                                                                                           \
    {"larc", CAIRN__GROUP_SWITCH, offsetof(struct cairn__param_group, rule.larc.is_on), false, true},                 \
    {"larc_trust_coefficient", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, rule.larc.trust), false, true}, \
    {"larc_eps", CAIRN__GROUP_REAL, offsetof(struct cairn__param_group, rule.larc.eps), false, true},                 \
    {"larc_scales", CAIRN__GROUP_SWITCH, offsetof(struct cairn__param_group, rule.larc.scales), false, true}
/* clang-format on */

/* Whether a schedule may change the group's momentum. */
static inline bool cairn__momentum_cycles(const struct cairn__optimizer_kind *kind,
                                          const struct cairn__param_group *group) {
    return kind->has_momentum && cairn__rule_states(&group->rule) > 0;
}

/* Arrays of [parameters], reallocated as groups are added. */
struct cairn__optim_arrays {
    struct cairn__param **params;
    struct {
        float *array[CAIRN__MAX_STATES]; /* [n] each, zeroed, in device memory; LAMB's direction follows the states */
        bool waits;             /* frozen since it was added: arrays and `missed` are made with its first gradient */
        bool listed_as_waiting; /* by the last listing of its state */
    } * moments;

    /* In device memory. */
    int64_t *missed;                   /* steps taken while it had no gradient */
    struct cairn__squares *squares;    /* of the step being queued, if the rule uses norms */
    struct cairn__overflow *overflows; /* [parameters + 1]: the last is the losses' */

    /* [CAIRN__REPORTS][parameters + 1], for the skipped steps in `reports`. */
    struct cairn__overflow *report_overflows;

    /* For the step being queued. */
    struct cairn__optim_item *items, *list; /* list: gathered from items */
    /* Which list a parameter goes to; -1 = no gradient, < -1 = already listed. */
    int *keys;
    struct cairn__item *plain;
    struct cairn__taken *taken;
};

struct cairn_optimizer {
    const struct cairn__optimizer_kind *kind;
    void *own_kind; /* a kind made for this optimizer (custom.c), freed with it; NULL = kind is static */
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
    void *scratch; /* for kinds whose update takes several passes */
    size_t scratch_nbytes;
    double *norms; /* [count + 1]: norms of lists of gradients, then of all gradients */
    bool clipped;  /* state->clip may not be 1 */
    bool warned;   /* has logged that no guard checks for overflow */
    bool noted;    /* state->skip and overflows may be raised, by gradients that still exist */

    struct cairn__plateau plateau;
    struct cairn__step_report *reports; /* written by the device, read by the host */
    uint64_t last_read;                 /* number of the last report read */
    /* Number of the last step queued, whose report may not have arrived; for steps in graphs, equal to last_read. */
    uint64_t queued;
    struct cairn__report_reader reader;
    struct cairn__step_guard guard;

    const struct cairn__partners *partners; /* NULL = none */
    double *partner_norms;                  /* in device memory: norms of the lists of all partners, in their order */
    size_t partner_norms_room;
};

/* Creates an optimizer with one group over parameters of set: the count at indices, or all if indices is NULL. like has
 * the rule and base rates. */
cairn_status cairn__optimizer_create(const struct cairn__optimizer_kind *kind, struct cairn_param_set *set,
                                     const size_t *indices, size_t count, const struct cairn__param_group *like,
                                     cairn_optimizer **out);

/* Allocates moments and counts missed steps for parameters that were frozen when they were added and have a gradient
 * now. Errors: CAIRN_ENOMEM. */
cairn_status cairn__optimizer_make_waiting(cairn_optimizer *o);

/* Allocates zeroed moments of parameter i of group, if it has none yet. Errors: CAIRN_ENOMEM. */
cairn_status cairn__optimizer_make_moments(cairn_optimizer *o, size_t i, const struct cairn__param_group *group);

/* Drops the clipping coefficient and noted overflows if all gradients they came from have been forgotten. */
void cairn__optimizer_forget_stale(cairn_optimizer *o);

/* Reads gradients as stored: fills n, grad and factor of items, and keys with their types. Errors: CAIRN_ENOMEM. */
cairn_status cairn__optimizer_read_grads(cairn_optimizer *o);

/* Queues the norm of the gradients from `first` on that have its type and factor, and are sharded like it. done: how
 * many gradients earlier lists had. clip becomes their clipping coefficient. If clip is NULL, the norm of each gradient
 * is stored too, from norms[done] on, and key i becomes -2 - the index of gradient i in norms. Returns the new done. */
size_t cairn__optimizer_norm_list(cairn_optimizer *o, size_t first, size_t done, double *norm, const float *clip);

/* If other gradients have been added since clipping, multiplies the clipped ones by their coefficient. Errors:
 * CAIRN_ENOMEM. */
cairn_status cairn__optimizer_part_clip(cairn_optimizer *o);

/* Within a step: clips its gradients by the norm of all of them, as cairn_clip_grad_norm does. Errors: CAIRN_ENOMEM;
 * CAIRN_ESTATE there are partners, and a graph is being recorded; those of the partners' group. */
cairn_status cairn__optimizer_clip_step(cairn_optimizer *o, double max_norm);

/* Lowers skip and drops noted overflows: the next step is not skipped for overflows found so far. */
void cairn__optimizer_lower_skip(cairn_optimizer *o);

/* Adds a group over parameters of set: the count at indices, or all (indices NULL). kind: must be the optimizer's own.
 * like: rule and base rates. Errors, which add nothing: CAIRN_EINVAL, CAIRN_ESTATE, CAIRN_ENOMEM; those of unread
 * reports. */
cairn_status cairn__optimizer_add_group(cairn_optimizer *o, const struct cairn__optimizer_kind *kind,
                                        struct cairn_param_set *set, const size_t *indices, size_t count,
                                        const struct cairn__param_group *like);

/* Creates an optimizer with a group for each rule (cairn/param_groups.h). */
cairn_status cairn__optimizer_create_grouped(const struct cairn__optimizer_kind *kind, size_t rule_nbytes,
                                             struct cairn_param_set *set, const cairn_group_rule *rules, size_t count,
                                             cairn_optimizer **out);

/* sizeof(cairn_group_rule) of 0.8.0 and 0.9.0. */
#define CAIRN__GROUP_RULE_0_8 CAIRN__SIZE_THROUGH(cairn_group_rule, schedule)
#define CAIRN__GROUP_RULE_0_9 CAIRN__SIZE_THROUGH(cairn_group_rule, novograd)

/* The public calls of a kind: create an optimizer over all of set, over some of it, and add a group to an optimizer of
 * that kind. */
cairn_status cairn__kind_create(const struct cairn__optimizer_kind *kind, cairn_param_set *set, const void *options,
                                cairn_optimizer **out);
cairn_status cairn__kind_create_over(const struct cairn__optimizer_kind *kind, cairn_param_set *set,
                                     const size_t *indices, size_t count, const void *options, cairn_optimizer **out);
cairn_status cairn__kind_add_group(const struct cairn__optimizer_kind *kind, cairn_optimizer *optimizer,
                                   cairn_param_set *set, const size_t *indices, size_t count, const void *options);

extern const struct cairn__optimizer_kind cairn__adamw_kind;

/* Checks the arguments that all kinds have. For a NULL set the message repeats the last error, which may say why its
 * model was not created. */
cairn_status cairn__check_set(const char *kind, const cairn_param_set *set, const void *out);

/* Errors: CAIRN_EINVAL. */
cairn_status cairn__check_larc(const char *call, const struct cairn__larc *larc);

/* Check a number >= 0, such as lr and weight_decay, and a number in [0, 1). */
cairn_status cairn__check_rate(const char *kind, const char *name, double value);
cairn_status cairn__check_beta(const char *kind, const char *name, double value);

#endif
