/* Optimizers from inside: a kind is a table of functions over one parameter; the front walks the set. */
#ifndef CAIRN__OPTIM_H
#define CAIRN__OPTIM_H

#include "optim/hooks.h"
#include "param/param.h"

enum { CAIRN__MAX_STATES = 2 };

struct cairn__param_state {
    float *state[CAIRN__MAX_STATES]; /* [n] zeroed; momentum, or m and v */
    int64_t steps;                   /* updates of this parameter so far */
};

/* Where one parameter's pass reads and writes. */
struct cairn__update {
    enum cairn__weight_mode mode;
    void *weights; /* master, f32 weights, or half weights without master */
    void *half;    /* rounded copy, or NULL */
    const void *grad;
    cairn_dtype grad_dtype;
    float factor;
    size_t n;
};

struct cairn__optimizer_kind {
    const char *name;
    int (*states)(const struct cairn_optimizer *o); /* f32 arrays per parameter */
    void (*update)(const struct cairn_optimizer *o, const struct cairn__kernels *k, struct cairn__param_state *s,
                   const struct cairn__update *u); /* s->steps already counts this update */
};

struct cairn_optimizer {
    const struct cairn__optimizer_kind *kind;
    struct cairn_param_set *set;
    double lr;
    union {
        struct cairn_sgd_options sgd;
        struct cairn_adam_options adam;
    } options;
    bool decoupled; /* Adam's weight decay */
    struct cairn__param_state *states;
    struct cairn__step_hook hook;
    int64_t steps, skipped;
    bool last_skipped;
};

/* Makes the object and its state once kind and options are set in *like. */
cairn_status cairn__optimizer_create(const struct cairn_optimizer *like, cairn_optimizer **out);

/* What every kind is given. A set that is NULL because making its model failed brings that cause. */
cairn_status cairn__check_set(const char *kind, const cairn_param_set *set, cairn_optimizer **out);

/* lr and weight_decay, which every kind has. */
cairn_status cairn__check_rate(const char *kind, const char *name, double value);

#endif
