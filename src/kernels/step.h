/* What every device computes alike around an optimizer's pass: the loss scale's state machine, the scalars of an update,
 * the end of a step. Written once and compiled for the host and for CUDA.
 *
 * The structs stand in the device's memory and the host never waits for them: a step reads scale, factor, learning rate
 * and counters where they are, decides there whether it is left out, and leaves a report that the host finds later. */
#ifndef CAIRN__KERNELS_STEP_H
#define CAIRN__KERNELS_STEP_H

#include <math.h>

#include "core/half.h"
#include "kernels/kernels.h"

/* ---- loss scaling ---- */

enum cairn__scaler_rule {
    CAIRN__SCALER_STATIC = 1, /* the scale never changes */
    /* Halves on overflow, down to min; doubles after `window` clean updates, up to max.
     * Source: apex/amp/scaler.py at 25.04, LossScaler.update_scale; the floor is ours. */
    CAIRN__SCALER_APEX,
};

/* What became of the scale. */
enum cairn__scaler_verdict {
    CAIRN__SCALER_KEPT,
    CAIRN__SCALER_GREW,
    CAIRN__SCALER_SHRANK,
    CAIRN__SCALER_REACHED_FLOOR, /* shrank, and can shrink no more */
    CAIRN__SCALER_AT_FLOOR,      /* wanted to shrink and could not */
};

struct cairn__scaler_state {
    double scale, min, max;
    int64_t unskipped; /* clean updates since the scale last changed */
    int64_t window;    /* grow after that many */
    int32_t rule;      /* enum cairn__scaler_rule */
    uint32_t found;    /* gradients that were forgotten before their step had overflowed */
};

/* The scale that one loss was multiplied by, and what its gradients are multiplied by to be true. */
struct cairn__loss_scale {
    float scale, factor; /* factor = 1 / scale, formed in double, rounded once */
};

CAIRN__HOST_DEVICE static inline struct cairn__loss_scale cairn__loss_scale_of(const struct cairn__scaler_state *s) {
    struct cairn__loss_scale result;
    result.scale = (float)s->scale;
    result.factor = (float)(1.0 / s->scale);
    return result;
}

CAIRN__HOST_DEVICE static inline enum cairn__scaler_verdict cairn__scaler_shrink(struct cairn__scaler_state *s) {
    const double half = s->scale / 2;
    s->unskipped = 0;
    if (s->scale <= s->min) return CAIRN__SCALER_AT_FLOOR;
    s->scale = half < s->min ? s->min : half;
    return s->scale == s->min ? CAIRN__SCALER_REACHED_FLOOR : CAIRN__SCALER_SHRANK;
}

/* One optimizer step's verdict: found = a gradient was infinite or NaN. */
CAIRN__HOST_DEVICE static inline enum cairn__scaler_verdict cairn__scaler_update(struct cairn__scaler_state *s,
                                                                                 uint32_t found) {
    if (s->rule == CAIRN__SCALER_STATIC) {
        s->unskipped = found ? 0 : s->unskipped + 1;
        return CAIRN__SCALER_KEPT;
    }
    if (found) return cairn__scaler_shrink(s);
    if (++s->unskipped < s->window) return CAIRN__SCALER_KEPT;
    s->unskipped = 0;
    const double before = s->scale, doubled = before * 2;
    s->scale = doubled > s->max ? s->max : doubled;
    return s->scale > before ? CAIRN__SCALER_GREW : CAIRN__SCALER_KEPT;
}

/* ---- optimizers ---- */

/* An optimizer's state that is not a parameter's. */
struct cairn__optim_state {
    double lr;
    int64_t steps, skipped;
    uint64_t ends; /* of steps, taken or skipped: the number of the last report */
};

/* Hyperparameters, as the user gave them. */
struct cairn__sgd_rule {
    double momentum, dampening, weight_decay;
    bool nesterov;
};

struct cairn__adam_rule {
    double beta1, beta2, eps, weight_decay;
    bool decoupled; /* AdamW */
};

/* base^exponent for exponent >= 0, by squaring: pow() differs from one library to the next. */
CAIRN__HOST_DEVICE static inline double cairn__power(double base, int64_t exponent) {
    double result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result = result * base;
        base = base * base;
    }
    return result;
}

/* The number of the update that a parameter is about to get, from 1. missed: taken steps in which it had no gradient. */
CAIRN__HOST_DEVICE static inline int64_t cairn__update_number(const struct cairn__optim_state *s,
                                                              const int64_t *missed) {
    return s->steps - *missed + 1;
}

CAIRN__HOST_DEVICE static inline struct cairn__sgd cairn__sgd_scalars(const struct cairn__sgd_rule *rule, double lr,
                                                                      int64_t update, float factor) {
    struct cairn__sgd s;
    s.lr = (float)lr;
    s.momentum = (float)rule->momentum;
    s.undamped = (float)(1.0 - rule->dampening);
    s.weight_decay = (float)rule->weight_decay;
    s.factor = factor;
    s.momentum_on = rule->momentum != 0;
    s.nesterov = rule->nesterov;
    s.first = update == 1;
    return s;
}

CAIRN__HOST_DEVICE static inline struct cairn__adam cairn__adam_scalars(const struct cairn__adam_rule *rule, double lr,
                                                                        int64_t update, float factor) {
    const double c1 = 1.0 - cairn__power(rule->beta1, update), c2 = 1.0 - cairn__power(rule->beta2, update);
    struct cairn__adam a;
    a.beta1 = (float)rule->beta1;
    a.one_minus_beta1 = (float)(1.0 - rule->beta1);
    a.beta2 = (float)rule->beta2;
    a.one_minus_beta2 = (float)(1.0 - rule->beta2);
    a.eps = (float)rule->eps;
    a.weight_decay = (float)rule->weight_decay;
    a.lr_decay = (float)(lr * rule->weight_decay);
    a.step_size = (float)(lr / c1);
    a.inv_sqrt_c2 = (float)(1.0 / sqrt(c2));
    a.factor = factor;
    a.decoupled = rule->decoupled;
    return a;
}

/* ---- the end of a step ---- */

/* What the host learns of a step, in memory that it reads without waiting. */
struct cairn__step_report {
    uint64_t number; /* of the end, from 1; written last */
    int64_t steps, skipped;
    double scale; /* after the step; 0 where there is no scaler */
    int64_t unskipped;
    int32_t verdict;  /* enum cairn__scaler_verdict */
    uint32_t stepped; /* 0 = the step was left out */
};

/* The last ones; a host that lags further behind misses reports, never totals. */
enum { CAIRN__REPORTS = 16 };

/* Everything but reports and names is in device memory. */
struct cairn__step_end {
    struct cairn__optim_state *optim;
    struct cairn__scaler_state *scaler; /* NULL = none */
    bool update_scaler;                 /* losses have ended that no step has followed */
    uint32_t *flags;                    /* [1 + count]: any gradient non-finite, then one a parameter */
    size_t count;
    bool skips;                         /* a raised flag has left the step out */
    bool clear;                         /* the flags of the parameters are cleared too, not only the first */
    struct cairn__step_report *reports; /* [CAIRN__REPORTS] */
    uint32_t *names;                    /* [CAIRN__REPORTS][count]: the parameters' flags that go with a report; written
                                         * only where one is raised, so that they mean nothing where a step was taken */
};

/* Parameter i's part, before cairn__step_end_scalars. Names may be far away, in the host's memory. */
CAIRN__HOST_DEVICE static inline void cairn__step_end_flag(const struct cairn__step_end *e, size_t i) {
    if (e->flags[0]) e->names[(e->optim->ends + 1) % CAIRN__REPORTS * e->count + i] = e->flags[1 + i];
    e->flags[1 + i] = 0;
}

/* Everything but the report's number, which the caller writes once the rest can be seen by the host. */
CAIRN__HOST_DEVICE static inline struct cairn__step_report *cairn__step_end_scalars(const struct cairn__step_end *e) {
    struct cairn__optim_state *o = e->optim;
    struct cairn__step_report *r = &e->reports[++o->ends % CAIRN__REPORTS];
    const uint32_t left_out = e->skips ? e->flags[0] : 0;
    r->stepped = !left_out;
    *(r->stepped ? &o->steps : &o->skipped) += 1;
    r->steps = o->steps;
    r->skipped = o->skipped;
    r->scale = 0;
    r->unskipped = 0;
    r->verdict = CAIRN__SCALER_KEPT;
    if (e->update_scaler) {
        r->verdict = cairn__scaler_update(e->scaler, left_out | e->scaler->found);
        e->scaler->found = 0;
    }
    if (e->scaler) {
        r->scale = e->scaler->scale;
        r->unskipped = e->scaler->unskipped;
    }
    e->flags[0] = 0;
    return r;
}

#endif
