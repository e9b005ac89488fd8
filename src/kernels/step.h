/* What every device computes around an optimizer's pass: the loss scale's state machine, the scalars of an update, and
 * the end of a step. Written once and compiled for the host and for CUDA.
 *
 * The structs are in device memory, and the host never waits for them: on the device a step reads scale, factor,
 * learning rate and counters, decides whether to skip, and writes a report that the host reads later. */
#ifndef CAIRN__KERNELS_STEP_H
#define CAIRN__KERNELS_STEP_H

#include <float.h>
#include <math.h>

#include "core/half.h"
#include "kernels/kernels.h"
#include "kernels/schedule.h"

/* ---- random streams ---- */

/* What the passes of a recorded step draw from: the seed, and the stream with which the replay begins. The host writes
 * it before each launch. */
struct cairn__random_base {
    uint64_t seed, stream;
};

/* ---- loss scaling ---- */

/* The values are those of amp_scaler_kind (cairn/scaler.h), which documents each rule. */
enum cairn__scaler_rule {
    CAIRN__SCALER_STATIC = 1,
    CAIRN__SCALER_APEX,
    CAIRN__SCALER_TORCH,
    CAIRN__SCALER_DEEPSPEED,
    CAIRN__SCALER_MEGATRON,
    CAIRN__SCALER_USER, /* the host sets the scale; the device only counts updates */
    CAIRN__SCALER_LOGMAX,
    CAIRN__SCALER_HISTOGRAM,
};

/* What an update did to the scale. */
enum cairn__scaler_verdict {
    CAIRN__SCALER_KEPT,
    CAIRN__SCALER_MOVED,         /* it grew, or was set without an overflow */
    CAIRN__SCALER_SHRANK,        /* because of an overflow */
    CAIRN__SCALER_REACHED_FLOOR, /* it shrank to the floor, and can shrink no more */
    CAIRN__SCALER_AT_FLOOR,      /* it should have shrunk, and could not */
};

struct cairn__scaler_state {
    /* For CAIRN__SCALER_USER the host writes the fields up to hysteresis_left, and the device only reads them. */
    double scale;
    int64_t unskipped; /* growth_tracker: clean updates since the scale last changed */
    double user[4];
    int32_t hysteresis_left;
    int32_t hysteresis, consecutive;
    int32_t rule; /* enum cairn__scaler_rule */
    double min, max, growth, backoff;
    int64_t window;        /* growth_interval */
    int64_t updates;       /* number of all updates */
    int64_t last_overflow; /* number, from 0, of the last update with an overflow; -1 = none */
    int32_t id;            /* loss_id, for messages */
    uint32_t found;        /* nonzero = an overflow, for the next update */
    uint32_t last_found;   /* `found` of the last update */
    int32_t verdict;       /* verdict of the last update */

    /* For CAIRN__SCALER_LOGMAX: options, then its model. The names are the source's. */
    double log_max, beta1, beta2, overflow_std_dev;
    double x_hat, slow_x_hat, xsquared_hat, b1_correction, b2_correction;
    double largest; /* greatest unscaled |gradient|, for the next update; infinite if one is not finite; 0 = none */
    int64_t overflow_feeds_power;

    /* For CAIRN__SCALER_HISTOGRAM: its bound, and for the next update the shares that saturate at the scale and at the
     * grown scale; -1: all elements are 0. saturation_log is the host's. */
    double saturation_share, saturation_log, saturating, saturating_if_grown;
};

/* The report of an update, in memory that the host reads without waiting; a ring like that of step reports. */
struct cairn__scaler_report {
    uint64_t number; /* number of the update, from 1; written last */
    double scale;    /* after the update, as are all fields */
    int64_t unskipped;
    uint32_t found;
    int32_t verdict;
};

/* The scale that one loss was multiplied by, and the factor that unscales its gradients. */
struct cairn__loss_scale {
    float scale, factor; /* factor = 1 / scale, computed in double, rounded once */
};

CAIRN__HOST_DEVICE static inline struct cairn__loss_scale cairn__loss_scale_of(const struct cairn__scaler_state *s) {
    struct cairn__loss_scale result;
    result.scale = (float)s->scale;
    result.factor = (float)(1.0 / s->scale);
    return result;
}

/* torch and Megatron keep the scale in f32, and Megatron also multiplies in f32. */
CAIRN__HOST_DEVICE static inline double cairn__scaler_times(const struct cairn__scaler_state *s, double factor) {
    if (s->rule == CAIRN__SCALER_TORCH) return (float)(s->scale * factor);
    if (s->rule == CAIRN__SCALER_MEGATRON) return (float)s->scale * (float)factor;
    return s->scale * factor;
}

/* Unlike apex's, a floor above the scale never raises the scale. */
CAIRN__HOST_DEVICE static inline enum cairn__scaler_verdict cairn__scaler_shrink(struct cairn__scaler_state *s) {
    const double less = cairn__scaler_times(s, s->backoff);
    if (s->scale <= s->min) return CAIRN__SCALER_AT_FLOOR;
    s->scale = less < s->min ? s->min : less;
    return s->scale == s->min ? CAIRN__SCALER_REACHED_FLOOR : CAIRN__SCALER_SHRANK;
}

CAIRN__HOST_DEVICE static inline enum cairn__scaler_verdict cairn__scaler_grow(struct cairn__scaler_state *s) {
    const double before = s->scale, more = cairn__scaler_times(s, s->growth);
    s->unskipped = 0;
    if (s->rule == CAIRN__SCALER_TORCH && more > (double)FLT_MAX) return CAIRN__SCALER_KEPT;
    s->scale = more > s->max ? s->max : more;
    return s->scale > before ? CAIRN__SCALER_MOVED : CAIRN__SCALER_KEPT;
}

/* The rules compare the tracker with the window by >=, where their sources use ==: a window that was lowered below the
 * tracker would never be met. */

/* The counter does not affect a static scale; it is there for the user to read. */
CAIRN__HOST_DEVICE static inline enum cairn__scaler_verdict cairn__scaler_static(struct cairn__scaler_state *s,
                                                                                 uint32_t found) {
    s->unskipped = found ? 0 : s->unskipped + 1;
    return CAIRN__SCALER_KEPT;
}

/* apex/amp/scaler.py, LossScaler.update_scale; torch's _amp_update_scale_ differs only by its f32. */
CAIRN__HOST_DEVICE static inline enum cairn__scaler_verdict cairn__scaler_apex(struct cairn__scaler_state *s,
                                                                               uint32_t found) {
    s->unskipped = found ? 0 : s->unskipped + 1;
    if (found) return cairn__scaler_shrink(s);
    return s->unskipped < s->window ? CAIRN__SCALER_KEPT : cairn__scaler_grow(s);
}

/* deepspeed/runtime/fp16/loss_scaler.py, DynamicLossScaler.update_scale: iter is updates, last_overflow_iter is
 * last_overflow. hysteresis_left stays at 1 once it is used up; below 1 the source would count down forever. */
CAIRN__HOST_DEVICE static inline enum cairn__scaler_verdict cairn__scaler_deepspeed(struct cairn__scaler_state *s,
                                                                                    uint32_t found) {
    const int64_t stable = s->updates - s->last_overflow - 1;
    const bool absorbs = s->hysteresis > 1 && s->hysteresis_left > 1;
    const bool grows = !found && stable > 0 && stable % s->window == 0;
    s->unskipped = found ? 0 : s->unskipped + 1;
    if (found && !absorbs) return cairn__scaler_shrink(s);
    if (found) s->hysteresis_left--;
    if (grows || (!found && s->consecutive)) s->hysteresis_left = s->hysteresis;
    return grows ? cairn__scaler_grow(s) : CAIRN__SCALER_KEPT;
}

/* megatron/core/optimizer/grad_scaler.py, DynamicGradScaler.update; hysteresis_left stays at 0, where the source
 * continues to count down. */
CAIRN__HOST_DEVICE static inline enum cairn__scaler_verdict cairn__scaler_megatron(struct cairn__scaler_state *s,
                                                                                   uint32_t found) {
    s->unskipped = found ? 0 : s->unskipped + 1;
    if (found && s->hysteresis_left > 0) s->hysteresis_left--;
    if (found) return s->hysteresis_left > 0 ? CAIRN__SCALER_KEPT : cairn__scaler_shrink(s);
    if (s->unskipped < s->window) return CAIRN__SCALER_KEPT;
    s->hysteresis_left = s->hysteresis;
    return cairn__scaler_grow(s);
}

/* x is one more log2 of a greatest |gradient|. Updates the two running means of x and that of x^2, whose weights decay
 * by beta, and returns the value that is overflow_std_dev deviations above the mean: mean + overflow_std_dev *
 * deviation. */
CAIRN__HOST_DEVICE static inline double cairn__logmax_cutoff(struct cairn__scaler_state *s, double x) {
    s->x_hat = s->beta1 * s->x_hat + (1 - s->beta1) * x;
    s->slow_x_hat = s->beta2 * s->slow_x_hat + (1 - s->beta2) * x;
    s->xsquared_hat = s->beta2 * s->xsquared_hat + (1 - s->beta2) * (x * x);
    s->b1_correction = s->b1_correction * s->beta1;
    s->b2_correction = s->b2_correction * s->beta2;
    const double slow_mean = s->slow_x_hat / (1 - s->b2_correction);
    const double variance = s->xsquared_hat / (1 - s->b2_correction) - slow_mean * slow_mean;
    const double deviation = variance > 0 ? sqrt(variance) : 0;
    return s->x_hat / (1 - s->b1_correction) + s->overflow_std_dev * deviation;
}

/* open_seq2seq/optimizers/automatic_loss_scaler.py, LogMaxScaler.update_op, in f64. Gradients that are all 0 have no
 * logarithm: there the source's means become infinite, and here the scale stays. */
CAIRN__HOST_DEVICE static inline enum cairn__scaler_verdict cairn__scaler_logmax(struct cairn__scaler_state *s,
                                                                                 uint32_t found) {
    const bool overflowed = found || s->largest > DBL_MAX;
    const double before = s->scale, far = 256; /* 2^far is beyond every floor and ceiling */
    double x = s->overflow_feeds_power ? cairn__exp2_f64(s->log_max) : s->log_max;
    s->unskipped = found ? 0 : s->unskipped + 1;
    if (!overflowed && s->largest == 0) return CAIRN__SCALER_KEPT;
    if (!overflowed) x = cairn__log2_f64(s->largest);
    const double room = s->log_max - cairn__logmax_cutoff(s, x);
    const double proposed = cairn__exp2_f64(room < -far ? -far : room > far ? far : room);
    s->scale = proposed < s->min ? s->min : proposed > s->max ? s->max : proposed;
    if (found && before <= s->min && proposed < s->min) return CAIRN__SCALER_AT_FLOOR;
    if (found && s->scale < before) return s->scale == s->min ? CAIRN__SCALER_REACHED_FLOOR : CAIRN__SCALER_SHRANK;
    return s->scale != before ? CAIRN__SCALER_MOVED : CAIRN__SCALER_KEPT;
}

/* Cairn's own: apex's rule, but saturation counts as an overflow, and a step as clean only if it would be clean at the
 * grown scale. */
CAIRN__HOST_DEVICE static inline enum cairn__scaler_verdict cairn__scaler_histogram(struct cairn__scaler_state *s,
                                                                                    uint32_t found) {
    const double before = s->scale;
    if (found || s->saturating > s->saturation_share) {
        const enum cairn__scaler_verdict verdict = cairn__scaler_shrink(s);
        s->unskipped = 0;
        return found ? verdict : s->scale < before ? CAIRN__SCALER_MOVED : CAIRN__SCALER_KEPT;
    }
    if (s->saturating < 0) return CAIRN__SCALER_KEPT;
    s->unskipped = s->saturating_if_grown > s->saturation_share ? 0 : s->unskipped + 1;
    return s->unskipped < s->window ? CAIRN__SCALER_KEPT : cairn__scaler_grow(s);
}

/* Updates the scaler after one optimizer step; found = a gradient was infinite or NaN. */
CAIRN__HOST_DEVICE static inline enum cairn__scaler_verdict cairn__scaler_update(struct cairn__scaler_state *s,
                                                                                 uint32_t found) {
    switch ((enum cairn__scaler_rule)s->rule) {
    case CAIRN__SCALER_APEX:
    case CAIRN__SCALER_TORCH:
        return cairn__scaler_apex(s, found);
    case CAIRN__SCALER_DEEPSPEED:
        return cairn__scaler_deepspeed(s, found);
    case CAIRN__SCALER_MEGATRON:
        return cairn__scaler_megatron(s, found);
    case CAIRN__SCALER_STATIC:
        return cairn__scaler_static(s, found);
    case CAIRN__SCALER_LOGMAX:
        return cairn__scaler_logmax(s, found);
    case CAIRN__SCALER_HISTOGRAM:
        return cairn__scaler_histogram(s, found);
    case CAIRN__SCALER_USER:
        break;
    }
    return CAIRN__SCALER_KEPT;
}

/* ---- optimizers ---- */

/* An optimizer's state that belongs to no parameter and no group. */
struct cairn__optim_state {
    int64_t steps, skipped;
    uint64_t ends;          /* number of ended steps, taken or skipped; also that of the last report */
    uint64_t rounding_seed; /* of stochastic rounding */
    float clip;             /* the clipping coefficient, a factor of every gradient; the end of a step resets it to 1 */
    uint32_t skip;          /* the next step is skipped */
};

/* Clips to max_norm. `squares` is the sum of the squared norms of all gradients, before any clipping. A norm that is
 * not finite clips nothing: the step will be skipped, or was never checked. Source: torch.nn.utils.clip_grad_norm_,
 * including the 1e-6. */
CAIRN__HOST_DEVICE static inline double cairn__clip_to(struct cairn__optim_state *s, double squares, double max_norm) {
    const double total = sqrt(squares) * (double)s->clip, by = max_norm / (total + 1e-6);
    uint64_t bits;
    memcpy(&bits, &total, sizeof(bits));
    if (bits << 1 >= (uint64_t)0x7ff << 53) {
        bits = (uint64_t)0x7ff << 52;
        double infinity;
        memcpy(&infinity, &bits, sizeof(infinity));
        return infinity;
    }
    if (by < 1) s->clip = (float)((double)s->clip * by);
    return total;
}

/* The overflow of one parameter's gradient, or of a loss itself, since the last step. */
struct cairn__overflow {
    uint32_t micro_batch; /* the first micro-batch with an overflow, from 1; 0 = none */
    uint32_t infs, nans;  /* of the gradient in which they were counted first; at most UINT32_MAX */
    int32_t rank;         /* whose gradient it is; -1 = unknown */
};

/* Notes that a flag was raised in a gradient of that rank with this many infinite elements and NaNs. */
CAIRN__HOST_DEVICE static inline void cairn__note_overflow(struct cairn__overflow *o, uint32_t micro_batch,
                                                           int32_t rank, uint64_t infs, uint64_t nans) {
    if (!o->micro_batch) {
        o->micro_batch = micro_batch;
        o->rank = rank;
    }
    if (o->infs || o->nans) return; /* later gradients include the counted one, and would count its elements again */
    o->infs = infs < UINT32_MAX ? (uint32_t)infs : UINT32_MAX;
    o->nans = nans < UINT32_MAX ? (uint32_t)nans : UINT32_MAX;
}

/* The random stream of a parameter's stochastic rounding in an update: the third argument of cairn__philox. */
CAIRN__HOST_DEVICE static inline uint64_t cairn__rounding_stream(uint32_t parameter, int64_t update) {
    return (uint64_t)parameter << 40 ^ (uint64_t)update;
}

/* Hyperparameters as the user set them; those that a schedule changes are in struct cairn__rates. */
struct cairn__sgd_rule {
    double dampening, weight_decay;
    bool has_momentum; /* the parameter has an array of it */
    bool nesterov, decays_last;
};

struct cairn__adam_rule {
    double beta2, eps, weight_decay;
    bool decoupled; /* AdamW */
    bool amsgrad;   /* the parameter has an array of it */
    bool uncorrected;
};

struct cairn__lion_rule {
    double beta2, weight_decay;
};

struct cairn__adagrad_rule {
    double lr_decay, eps, weight_decay, initial;
    bool decoupled;
};

/* The scalars that a function over flat pieces reads, in device memory; the public layout
 * (cairn/custom_optimizer.h). */
struct __attribute__((may_alias)) cairn__flat_scalars {
    double lr, momentum;
    int64_t update;
    int32_t skipped;
    float factor; /* of the gradient, applied before the function gets it */
};

/* A piece of a parameter, for a rule that is a function over pieces: all arrays are f32 and in device memory; the
 * gradient is unscaled and clipped. */
struct cairn__flat {
    const int64_t *missed; /* the parameter's; the front finds the parameter by it */
    size_t first, n;       /* which elements of the parameter */
    float *weights;
    const float *grad;
    float *state[CAIRN__MAX_STATES];
    const struct cairn__flat_scalars *scalars;
    void *stream; /* NULL = the CPU */
};

struct cairn__optim_rule;

/* In host memory. flat computes a piece's update, or queues it. */
struct cairn__custom_rule {
    int num_states;
    void (*flat)(const struct cairn__optim_rule *rule, const struct cairn__flat *piece);
    const void *ctx; /* of flat */
};

struct cairn__lamb_rule {
    double beta2, eps, weight_decay;
    double max_grad_norm; /* read by the host only; 0 = none */
    bool l2;              /* weight decay is added to the gradient, not to the direction */
    bool unaveraged, uncorrected;
    bool is_nvlamb; /* uses the trust ratio without weight decay, too */
};

struct cairn__novograd_rule {
    double beta2, eps, weight_decay;
    bool decays_inside; /* weight decay enters the moment */
    bool unaveraged, uncorrected;
    bool begins_at_0; /* the second moment begins at 0; else at the first norm */
    bool by_greatest; /* norms are the greatest element's */
};

struct cairn__larc {
    double trust, eps;
    bool is_on;
    bool scales; /* may also raise the rate; else only lowers it */
};

struct cairn__optim_rule {
    enum cairn__optim_kind kind;
    bool maximizes;
    struct cairn__larc larc;
    union {
        struct cairn__sgd_rule sgd;
        struct cairn__adam_rule adam;
        struct cairn__lion_rule lion;
        struct cairn__adagrad_rule adagrad;
        struct cairn__custom_rule custom;
        struct cairn__lamb_rule lamb;
        struct cairn__novograd_rule novograd;
    };
};

/* Written by the pass `measure` for the update of a tensor: the sums of the squares of its weights, and of its
 * gradient, or for LAMB of its direction. If ranks hold parts of a tensor, their sums are added up before the
 * update. */
struct cairn__squares {
    double weights, grad;
};

/* Whether the update needs norms, which `measure` computes before it. */
CAIRN__HOST_DEVICE static inline bool cairn__rule_measures(const struct cairn__optim_rule *rule) {
    return rule->kind == CAIRN__OPTIM_LAMB || rule->kind == CAIRN__OPTIM_NOVOGRAD || rule->larc.is_on;
}

/* How many f32 arrays of a parameter are its state. */
CAIRN__HOST_DEVICE static inline int cairn__rule_states(const struct cairn__optim_rule *rule) {
    switch (rule->kind) {
    case CAIRN__OPTIM_SGD:
        return rule->sgd.has_momentum ? 1 : 0;
    case CAIRN__OPTIM_ADAM:
        return rule->adam.amsgrad ? 3 : 2;
    case CAIRN__OPTIM_CUSTOM:
        return rule->custom.num_states;
    case CAIRN__OPTIM_LAMB:
    case CAIRN__OPTIM_NOVOGRAD:
        return 2;
    default:
        return 1;
    }
}

/* Number of elements of state array s for a parameter of n elements: NovoGrad's second moment is one number. */
CAIRN__HOST_DEVICE static inline size_t cairn__rule_elements(const struct cairn__optim_rule *rule, int s, size_t n) {
    return rule->kind == CAIRN__OPTIM_NOVOGRAD && s == 1 ? 1 : n;
}

/* Number of a parameter's arrays during a step: LAMB also has its direction between two passes. */
CAIRN__HOST_DEVICE static inline int cairn__rule_arrays(const struct cairn__optim_rule *rule) {
    return rule->kind == CAIRN__OPTIM_LAMB ? 3 : cairn__rule_states(rule);
}

/* Number of arrays that the update's kernel reads and writes. */
CAIRN__HOST_DEVICE static inline int cairn__update_arrays(const struct cairn__optim_rule *rule) {
    if (rule->kind == CAIRN__OPTIM_NOVOGRAD) return 1;
    return rule->kind == CAIRN__OPTIM_LAMB ? 0 : cairn__rule_states(rule);
}

/* The optimizer whose kernel computes the update. */
CAIRN__HOST_DEVICE static inline enum cairn__optim_kind cairn__update_kernel(const struct cairn__optim_rule *rule) {
    return rule->kind == CAIRN__OPTIM_LAMB || rule->kind == CAIRN__OPTIM_NOVOGRAD ? CAIRN__OPTIM_SGD : rule->kind;
}

/* The number, from 1, of a parameter's next update. missed: taken steps in which the parameter had no gradient. */
CAIRN__HOST_DEVICE static inline int64_t cairn__update_number(const struct cairn__optim_state *s,
                                                              const int64_t *missed) {
    return s->steps - *missed + 1;
}

CAIRN__HOST_DEVICE static inline struct cairn__sgd
cairn__sgd_scalars(const struct cairn__sgd_rule *rule, const struct cairn__rates *rates, int64_t update, float factor) {
    struct cairn__sgd s;
    s.lr = (float)rates->lr;
    s.momentum = (float)rates->momentum;
    s.undamped = (float)(1.0 - rule->dampening);
    s.weight_decay = (float)rule->weight_decay;
    s.factor = factor;
    s.momentum_on = rule->has_momentum;
    s.nesterov = rule->nesterov;
    s.first = update == 1;
    s.decays_last = rule->decays_last;
    return s;
}

CAIRN__HOST_DEVICE static inline struct cairn__adam cairn__adam_scalars(const struct cairn__adam_rule *rule,
                                                                        const struct cairn__rates *rates,
                                                                        int64_t update, float factor) {
    const double lr = rates->lr, beta1 = rates->momentum;
    const double c1 = rule->uncorrected ? 1.0 : 1.0 - cairn__power(beta1, update);
    const double c2 = rule->uncorrected ? 1.0 : 1.0 - cairn__power(rule->beta2, update);
    struct cairn__adam a;
    a.beta1 = (float)beta1;
    a.one_minus_beta1 = (float)(1.0 - beta1);
    a.beta2 = (float)rule->beta2;
    a.one_minus_beta2 = (float)(1.0 - rule->beta2);
    a.eps = (float)rule->eps;
    a.weight_decay = (float)rule->weight_decay;
    a.lr_decay = (float)(lr * rule->weight_decay);
    a.step_size = (float)(lr / c1);
    a.inv_sqrt_c2 = (float)(1.0 / sqrt(c2));
    a.factor = factor;
    a.decoupled = rule->decoupled;
    a.amsgrad = rule->amsgrad;
    return a;
}

CAIRN__HOST_DEVICE static inline struct cairn__lion
cairn__lion_scalars(const struct cairn__lion_rule *rule, const struct cairn__rates *rates, float factor) {
    struct cairn__lion l;
    l.beta1 = (float)rates->momentum;
    l.one_minus_beta1 = (float)(1.0 - rates->momentum);
    l.beta2 = (float)rule->beta2;
    l.one_minus_beta2 = (float)(1.0 - rule->beta2);
    l.lr = (float)rates->lr;
    l.lr_decay = (float)(rates->lr * rule->weight_decay);
    l.factor = factor;
    return l;
}

CAIRN__HOST_DEVICE static inline struct cairn__adagrad cairn__adagrad_scalars(const struct cairn__adagrad_rule *rule,
                                                                              const struct cairn__rates *rates,
                                                                              int64_t update, float factor) {
    const double lr = rates->lr / (1.0 + (double)(update - 1) * rule->lr_decay);
    struct cairn__adagrad a;
    a.lr = (float)lr;
    a.eps = (float)rule->eps;
    a.weight_decay = (float)rule->weight_decay;
    a.lr_decay = (float)(lr * rule->weight_decay);
    a.initial = (float)rule->initial;
    a.factor = factor;
    a.decoupled = rule->decoupled;
    a.first = update == 1;
    return a;
}

CAIRN__HOST_DEVICE static inline struct cairn__flat_scalars cairn__flat_scalars_of(const struct cairn__rates *rates,
                                                                                   const struct cairn__optim_state *s,
                                                                                   const int64_t *missed,
                                                                                   const float *factor) {
    struct cairn__flat_scalars f;
    f.lr = rates->lr;
    f.momentum = rates->momentum;
    f.update = cairn__update_number(s, missed);
    f.skipped = s->skip != 0;
    f.factor = (factor ? *factor : 1.0f) * s->clip;
    return f;
}

/* The scalars for LAMB's direction. */
CAIRN__HOST_DEVICE static inline union cairn__update cairn__direction_of(const struct cairn__optim_rule *rule,
                                                                         const struct cairn__rates *rates,
                                                                         int64_t update, float factor) {
    const struct cairn__lamb_rule *l = &rule->lamb;
    struct cairn__adam_rule of_adam;
    struct cairn__rates unit = *rates;
    union cairn__update u;
    of_adam.beta2 = l->beta2;
    of_adam.eps = l->eps;
    of_adam.weight_decay = l->weight_decay;
    of_adam.decoupled = !l->l2;
    of_adam.amsgrad = false;
    of_adam.uncorrected = l->uncorrected;
    unit.lr = 1;
    u.lamb = cairn__adam_scalars(&of_adam, &unit, update, rule->maximizes ? -factor : factor);
    if (l->unaveraged) u.lamb.one_minus_beta1 = 1;
    return u;
}

/* w = w - lr * |w| / |direction| * direction, by SGD's kernel. The product of a great ratio and small directions would
 * overflow on the way, so a power of two is moved to the other factor. */
CAIRN__HOST_DEVICE static inline struct cairn__sgd cairn__lamb_scalars(const struct cairn__lamb_rule *rule,
                                                                       const struct cairn__rates *rates,
                                                                       const struct cairn__squares *squares) {
    const bool trusts = rule->is_nvlamb || rule->weight_decay != 0;
    const bool has_norms = squares->weights != 0 && squares->grad != 0;
    const double lr = trusts && has_norms ? rates->lr * (sqrt(squares->weights) / sqrt(squares->grad)) : rates->lr;
    const double great = lr > 0x1p64 ? 0x1p64 : 1;
    struct cairn__sgd s;
    s.lr = (float)(lr / great);
    s.momentum = s.undamped = s.weight_decay = 0;
    s.factor = (float)great;
    s.momentum_on = s.nesterov = s.first = s.decays_last = false;
    return s;
}

/* Returns NovoGrad's second moment after an update: a running mean of the gradient's norm, or rather of its square.
 * Source: FusedNovoGrad.step of apex/optimizers/fused_novograd.py; multi_tensor_norm_out_cuda of
 * apex/csrc/multi_tensor_l2norm_kernel.cu, which averages greatest elements themselves. */
CAIRN__HOST_DEVICE static inline float cairn__novograd_second(const struct cairn__novograd_rule *rule, int64_t update,
                                                              float factor, const struct cairn__squares *squares,
                                                              float second) {
    const double norm = sqrt(squares->grad) * fabs((double)factor), rest = 1.0 - rule->beta2;
    const double before = update > 1 ? (double)second : rule->begins_at_0 ? 0 : norm;
    if (rule->by_greatest) return (float)(rule->beta2 * before + rest * norm);
    return (float)sqrt(rule->beta2 * (before * before) + rest * (norm * norm));
}

/* NovoGrad, where t is the update's number and d = second / sqrt(1 - beta2^t) + eps:
 *     decays inside     g = g / d + weight_decay * w;  m = beta1 * m + (1 - beta1) * g;  w = w - lr * m / (1 - beta1^t)
 *     outside           m = beta1 * m + (1 - beta1) * g
 *                       w = w - lr * (m / (1 - beta1^t) / d + weight_decay * w)
 * These are momentum with weight decay before it, or after it: SGD's kernel. Source: Ginsburg et al., "Stochastic
 * Gradient Methods with Layer-wise Adaptive Moments for Training of Deep Networks", 2019, algorithm 1 (inside);
 * apex/csrc/multi_tensor_novograd.cu. */
CAIRN__HOST_DEVICE static inline struct cairn__sgd cairn__novograd_scalars(const struct cairn__novograd_rule *rule,
                                                                           const struct cairn__rates *rates,
                                                                           int64_t update, float factor,
                                                                           const float *second) {
    const double lr = rates->lr, beta1 = rates->momentum;
    const double c1 = rule->uncorrected ? 1.0 : 1.0 - cairn__power(beta1, update);
    const double c2 = rule->uncorrected ? 1.0 : 1.0 - cairn__power(rule->beta2, update);
    const double d = (double)*second / sqrt(c2) + rule->eps;
    struct cairn__sgd s;
    s.lr = (float)(rule->decays_inside ? lr / c1 : lr / (c1 * d));
    s.momentum = (float)beta1;
    s.undamped = rule->unaveraged ? 1.0f : (float)(1.0 - beta1);
    s.weight_decay = (float)(rule->decays_inside ? rule->weight_decay : rule->weight_decay * (c1 * d));
    s.factor = rule->decays_inside ? (float)((double)factor / d) : factor;
    s.momentum_on = true;
    s.nesterov = s.first = false;
    s.decays_last = !rule->decays_inside;
    return s;
}

/* LARC: g = (g + decay * w) * by, where by = trust * |w| / (|g| + decay * |w| + eps), and without `scales` min(by / lr,
 * 1): factor and decay of such an update. Where a norm is 0 the gradient stays, without decay. Source: You, Gitman and
 * Ginsburg, "Large Batch Training of Convolutional Networks", 2017, algorithm 1; LARC.step of apex/parallel/LARC.py. */
CAIRN__HOST_DEVICE static inline void cairn__larc_apply(const struct cairn__larc *larc, double lr,
                                                        const struct cairn__squares *squares, float *factor,
                                                        double *decay) {
    if (!larc->is_on) return;
    const double w = sqrt(squares->weights), g = sqrt(squares->grad) * fabs((double)*factor);
    double by = 0;
    if (w != 0 && g != 0) {
        by = larc->trust * w / (g + *decay * w + larc->eps);
        if (!larc->scales) by = by < lr ? by / lr : 1;
        *factor = (float)((double)*factor * by);
    }
    *decay = *decay * by;
}

/* The scalars of an update. squares is read if the rule measures. second is NovoGrad's second moment after this
 * update. */
CAIRN__HOST_DEVICE static inline union cairn__update
cairn__update_of(const struct cairn__optim_rule *rule, const struct cairn__rates *rates, int64_t update, float factor,
                 const struct cairn__squares *squares, const float *second) {
    union cairn__update u;
    float by = rule->maximizes ? -factor : factor;
    struct cairn__optim_rule own = *rule;
    switch (rule->kind) {
    case CAIRN__OPTIM_ADAM:
        cairn__larc_apply(&rule->larc, rates->lr, squares, &by, &own.adam.weight_decay);
        if (rule->larc.is_on) own.adam.decoupled = false;
        u.adam = cairn__adam_scalars(&own.adam, rates, update, by);
        break;
    case CAIRN__OPTIM_LION:
        u.lion = cairn__lion_scalars(&rule->lion, rates, by);
        break;
    case CAIRN__OPTIM_ADAGRAD:
        cairn__larc_apply(&rule->larc, rates->lr, squares, &by, &own.adagrad.weight_decay);
        if (rule->larc.is_on) own.adagrad.decoupled = false;
        u.adagrad = cairn__adagrad_scalars(&own.adagrad, rates, update, by);
        break;
    case CAIRN__OPTIM_LAMB:
        u.sgd = cairn__lamb_scalars(&rule->lamb, rates, squares);
        break;
    case CAIRN__OPTIM_NOVOGRAD:
        u.sgd = cairn__novograd_scalars(&rule->novograd, rates, update, by, second);
        break;
    default:
        cairn__larc_apply(&rule->larc, rates->lr, squares, &by, &own.sgd.weight_decay);
        if (rule->larc.is_on) own.sgd.decays_last = false;
        u.sgd = cairn__sgd_scalars(&own.sgd, rates, update, by);
        break;
    }
    return u;
}

/* ---- averages of weights ---- */

/* The state of averaged weights, in device memory. */
struct cairn__average {
    int64_t seen;         /* taken steps of the optimizer at the last call */
    int64_t averaged;     /* how often weights have entered the averages */
    int64_t start, every; /* weights enter after steps start + every, start + 2 every, ... */
    double decay;
    uint32_t is_equal; /* all weights count equally (SWA); else older ones count less, by decay (EMA) */
    uint32_t is_due;   /* weights enter now */
    float share;       /* weight of the entering weights */
    uint32_t unused;
};

/* Called after a step of an optimizer, which may be another one than before. If s is NULL, every call counts as a taken
 * step. */
CAIRN__HOST_DEVICE static inline void cairn__average_begin(struct cairn__average *a,
                                                           const struct cairn__optim_state *s) {
    const int64_t steps = s ? s->steps : a->seen + 1;
    a->is_due = steps != a->seen && steps > a->start && (steps - a->start) % a->every == 0;
    a->seen = steps;
    if (!a->is_due) return;
    if (a->averaged == 0) {
        a->share = 1;
    } else {
        a->share = (float)(a->is_equal ? 1.0 / (double)(a->averaged + 1) : 1.0 - a->decay);
    }
    a->averaged++;
}

/* ---- the end of a step ---- */

/* The report of a step, in memory that the host reads without waiting. */
struct cairn__step_report {
    uint64_t number; /* number of the step's end, from 1; written last */
    int64_t steps, skipped;
    double scale;     /* of the first scaler with an overflow, or else of the first scaler; 0 without scalers */
    int32_t scaler;   /* its id (loss_id) */
    int32_t verdict;  /* of its last update: enum cairn__scaler_verdict */
    uint32_t stepped; /* 0 = the step was skipped */
    uint32_t unused;
};

/* The size of the ring. A host that falls further behind misses reports, never totals. */
enum { CAIRN__REPORTS = 16, CAIRN__STEP_SCALERS = 64 };

/* Everything is in device memory except reports, names and used rates. */
struct cairn__step_end {
    struct cairn__optim_state *optim;                                 /* the step's end resets skip and clip */
    struct cairn__scaler_state *scalers[CAIRN__STEP_SCALERS];         /* of the step's losses */
    struct cairn__scaler_report *scaler_reports[CAIRN__STEP_SCALERS]; /* rings for scaler_update; NULL = the scaler has
                                                                         been updated */
    int num_scalers;
    struct cairn__overflow *overflows; /* [count]: of the parameters, then of the losses; the step's end clears them */
    size_t count;
    struct cairn__step_report *reports; /* [CAIRN__REPORTS] */
    struct cairn__overflow *names;  /* [CAIRN__REPORTS][count]: the overflows that belong to a report; written only for
                                       skipped steps, and meaningless for taken ones */
    struct cairn__rate_table table; /* of the optimizer's groups */
};

/* The part of parameter i, to be called before cairn__step_end_scalars. Names may be slow to reach, in host memory. */
CAIRN__HOST_DEVICE static inline void cairn__step_end_overflow(const struct cairn__step_end *e, size_t i) {
    const struct cairn__overflow none = {0, 0, 0, 0};
    if (e->optim->skip) e->names[(e->optim->ends + 1) % CAIRN__REPORTS * e->count + i] = e->overflows[i];
    e->overflows[i] = none;
}

/* The part of group g, to be called before cairn__step_end_scalars: stores the rates that the step used, and computes
 * those of the next step. */
CAIRN__HOST_DEVICE static inline void cairn__step_end_rates(const struct cairn__step_end *e, size_t g) {
    const struct cairn__optim_state *o = e->optim;
    const struct cairn__rate_table *t = &e->table;
    t->used[(o->ends + 1) % CAIRN__REPORTS * t->groups + g] = t->rates[g];
    t->rates[g] = cairn__group_rates(&t->schedules[g], o->steps + (o->skip ? 0 : 1), o->skipped + (o->skip ? 1 : 0));
}

/* To be called once the scalers are updated. Writes everything except the report's number, which the caller writes once
 * the host can see the rest. */
CAIRN__HOST_DEVICE static inline struct cairn__step_report *cairn__step_end_scalars(const struct cairn__step_end *e) {
    struct cairn__optim_state *o = e->optim;
    struct cairn__step_report *r = &e->reports[++o->ends % CAIRN__REPORTS];
    const struct cairn__scaler_state *named = e->num_scalers ? e->scalers[0] : 0;
    if (e->num_scalers > 1) {
        for (int i = CAIRN__STEP_SCALERS - 1; i >= 0; i--) { /* constant count: a GPU's compiler knows every index */
            if (i < e->num_scalers && e->scalers[i]->last_found) named = e->scalers[i];
        }
    }
    r->stepped = !o->skip;
    *(r->stepped ? &o->steps : &o->skipped) += 1;
    r->steps = o->steps;
    r->skipped = o->skipped;
    r->scale = named ? named->scale : 0;
    r->scaler = named ? named->id : 0;
    r->verdict = named && o->skip ? named->verdict : CAIRN__SCALER_KEPT;
    r->unused = 0;
    o->skip = 0;
    o->clip = 1;
    return r;
}

/* ---- scalers, whose reports form a ring like that of steps ---- */

CAIRN__HOST_DEVICE static inline struct cairn__scaler_report *
cairn__scaler_update_scalars(struct cairn__scaler_state *s, struct cairn__scaler_report *reports) {
    struct cairn__scaler_report *r = &reports[(uint64_t)(s->updates + 1) % CAIRN__REPORTS];
    const uint32_t found = s->found;
    s->verdict = cairn__scaler_update(s, found);
    if (found) s->last_overflow = s->updates;
    s->updates++;
    s->last_found = found;
    s->found = 0;
    s->largest = 0;
    s->saturating = s->saturating_if_grown = -1;
    r->scale = s->scale;
    r->unskipped = s->unskipped;
    r->found = found;
    r->verdict = s->verdict;
    return r;
}

#endif
