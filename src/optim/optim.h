/* Optimizers from inside: a kind is one pass over lists of parameters; the front makes the lists and ends the step. */
#ifndef CAIRN__OPTIM_H
#define CAIRN__OPTIM_H

#include "optim/hooks.h"
#include "param/param.h"

enum { CAIRN__MAX_STATES = 2 };

/* Parameters that one pass updates. */
struct cairn__update_list {
    const struct cairn__optim_item *items;
    size_t count;
    cairn_dtype grad;
    enum cairn__weight_mode mode;
    const uint32_t *skip; /* in device memory; NULL = never */
};

struct cairn__optimizer_kind {
    const char *name;
    int (*states)(const struct cairn_optimizer *o); /* f32 arrays per parameter */
    void (*update)(const struct cairn_optimizer *o, struct cairn_device *d, const struct cairn__update_list *list);
};

struct cairn_optimizer {
    const struct cairn__optimizer_kind *kind;
    struct cairn_param_set *set;
    double lr; /* as the host set it; the step reads state->lr */
    union {
        struct cairn__sgd_rule sgd;
        struct cairn__adam_rule adam;
    } rule;

    /* In device memory. */
    struct cairn__optim_state *state;
    int64_t *missed; /* [parameters] taken steps without a gradient */
    struct {
        float *array[CAIRN__MAX_STATES];
    } * moments; /* [parameters] of [n], zeroed; momentum, or m and v */

    /* What the device writes and the host reads. */
    struct cairn__step_report *reports;
    uint32_t *names;
    uint64_t told; /* number of the last report that was passed on */
    struct cairn__report_reader reader;

    struct cairn__optim_item *items, *list; /* [parameters] of the step being queued; a list gathered from them */
    int *groups;                            /* [parameters] which list a parameter goes to; -1 = no gradient */
    struct cairn__step_hook hook;
};

/* Makes the object and its state once kind, set, lr and rule are set in *like. */
cairn_status cairn__optimizer_create(const struct cairn_optimizer *like, cairn_optimizer **out);

/* What every kind is given. A set that is NULL because making its model failed brings that cause. */
cairn_status cairn__check_set(const char *kind, const cairn_param_set *set, cairn_optimizer **out);

/* lr and weight_decay, which every kind has. */
cairn_status cairn__check_rate(const char *kind, const char *name, double value);

#endif
