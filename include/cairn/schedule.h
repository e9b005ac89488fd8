/* Learning-rate schedules, as defined by torch.optim.lr_scheduler and transformers.get_scheduler.
 *
 *     CAIRN_CHECK(cairn_optimizer_set_schedule(sgd, cairn_linear_schedule(.warmup_steps = 500, .total_steps = 9000)));
 *
 * The training loop needs no further call: at the end of each step the device computes the rates of the next one, from
 * the optimizer's own count of steps. So a step that amp skips does not advance the schedule, a recorded step (graph.h)
 * uses the right rate, and nothing waits for the device. Schedules start from the base rate: the learning rate of the
 * optimizer's options, or of cairn_optimizer_set_lr.
 *
 * Numerics  f64, using only operations that IEEE 754 rounds correctly and no libm functions: the same bits on every
 *           rank and device, within 1e-12 of the base rate of the exact definition for up to 10^4 steps.
 * Threads   as the optimizer. In C++ zero the struct, then set struct_size and kind. */
#ifndef CAIRN_SCHEDULE_H
#define CAIRN_SCHEDULE_H

#include "core.h"
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The learning rate after warm-up. base is the base rate, t counts the steps since the end of warm-up, n is total_steps
 * - warmup_steps, end is end_lr + end_factor * base. */
typedef enum cairn_schedule_kind {
    /* start_factor * base while t < n, then base. Hugging Face's constant, constant_with_warmup; torch's ConstantLR */
    CAIRN_SCHEDULE_CONSTANT = 1,
    /* From start_factor * base to end, in n steps. Hugging Face's linear; torch's LinearLR */
    CAIRN_SCHEDULE_LINEAR = 2,
    /* end + (base - end) * (1 + cos(2 pi cycles t / n)) / 2, which rises again after n, as theirs do. Hugging Face's
     * cosine, cosine_with_min_lr; torch's CosineAnnealingLR (T_max is total_steps, eta_min is end_lr) */
    CAIRN_SCHEDULE_COSINE = 3,
    /* Repeated half waves from base to end. With cycles: this many in n steps, then end; Hugging Face's
     * cosine_with_restarts. With cycle_steps: the first is this long, each later one cycle_growth times the one before;
     * torch's CosineAnnealingWarmRestarts (T_0, T_mult) */
    CAIRN_SCHEDULE_COSINE_RESTARTS = 4,
    /* end + (base - end) * (1 - t / n)^power, then end. Hugging Face's polynomial (its lr_end is 1e-7 unless given);
     * torch's PolynomialLR */
    CAIRN_SCHEDULE_POLYNOMIAL = 5,
    /* base * gamma^floor(t / step_size). torch's StepLR */
    CAIRN_SCHEDULE_STEP = 6,
    /* base * gamma^(the number of milestones <= t). torch's MultiStepLR */
    CAIRN_SCHEDULE_MULTI_STEP = 7,
    /* base * gamma^t. torch's ExponentialLR */
    CAIRN_SCHEDULE_EXPONENTIAL = 8,
    /* From base / div_factor up to base, then down to base / div_factor / final_div_factor, where it stays; momentum
     * (Adam: beta1) moves the opposite way. base is torch's max_lr. torch's OneCycleLR */
    CAIRN_SCHEDULE_ONE_CYCLE = 9,
    /* base / sqrt((t + timescale) / timescale). Hugging Face's inverse_sqrt */
    CAIRN_SCHEDULE_INVERSE_SQRT = 10,
    /* base, then to end over the last decay_steps of n, along decay_curve. Hugging Face's warmup_stable_decay, whose
     * min_lr_ratio is end_factor and warmup_start */
    CAIRN_SCHEDULE_WARMUP_STABLE_DECAY = 11,
    /* One part after the other: part i + 1 starts with its own step 0 at step milestones[i]. torch's SequentialLR */
    CAIRN_SCHEDULE_SEQUENCE = 12,
    /* base times the product of all parts' factors (rate / base). torch's ChainedScheduler */
    CAIRN_SCHEDULE_PRODUCT = 13
} cairn_schedule_kind;

/* The path of the rate between two values, while x goes from 0 to 1. Comments give the way up; the way down. */
typedef enum cairn_schedule_curve {
    CAIRN_CURVE_LINEAR = 1,        /* x; 1 - x */
    CAIRN_CURVE_COSINE = 2,        /* (1 - cos(pi x)) / 2; (1 + cos(2 pi cycles x)) / 2 */
    CAIRN_CURVE_ONE_MINUS_SQRT = 3 /* 1 - sqrt(1 - x); 1 - sqrt(x) */
} cairn_schedule_curve;

/* A field that is 0 takes the default given last in its comment. Without a default, 0 is a value if the field's range
 * includes it, and otherwise the field is required. Fields that the kind does not use must be 0; CAIRN_EINVAL names the
 * field. Lengths are numbers of steps. */
struct cairn_schedule_options {
    size_t struct_size;
    cairn_schedule_kind kind;
    cairn_switch count_skipped; /* ON: skipped steps advance the schedule too. OFF */
    int64_t first_step;         /* steps already made by an earlier run, to continue it; >= 0. torch's last_epoch */

    /* For all kinds but one-cycle, sequence and product: before the schedule's own steps, the rate rises to the value
     * that the kind starts from. */
    int64_t warmup_steps;              /* in [0, total_steps], if the kind has a total */
    double warmup_start;               /* the first rate, as a fraction of the rate that warm-up leads to; in [0, 1] */
    cairn_schedule_curve warmup_curve; /* linear */

    int64_t total_steps; /* including warm-up. Constant: 0; linear, cosine, polynomial, one-cycle (at least 2),
                            warmup-stable-decay and restarts by `cycles`: above 0 */
    double start_factor; /* constant and linear; > 0. 1 */
    double end_factor;   /* a fraction of the base rate; >= 0. linear, cosine, restarts, polynomial, */
    double end_lr;       /* ... and warmup-stable-decay; or as a rate, the same for all groups; >= 0 */

    double cycles;        /* > 0. cosine and decay_curve cosine: 0.5, half a wave; restarts: 1, unless cycle_steps */
    int64_t cycle_steps;  /* restarts: length of the first cycle */
    int64_t cycle_growth; /* restarts by cycle_steps; >= 1. 1 */

    double power; /* polynomial; > 0. 1 */

    double gamma;      /* step, multi-step: 0.1. exponential. > 0 */
    int64_t step_size; /* step; >= 1 */
    const int64_t
        *milestones; /* [num_milestones] multi-step, sequence: ascending, >= 0, copied. A sequence has one milestone
                                  fewer than parts */
    size_t num_milestones;

    int64_t decay_steps;              /* warmup-stable-decay; in [1, total_steps - warmup_steps] */
    cairn_schedule_curve decay_curve; /* warmup-stable-decay; one-cycle, but not ONE_MINUS_SQRT. cosine */
    int64_t timescale;                /* inverse square root; >= 1. warmup_steps, or 10000 without */

    double pct_start;            /* one-cycle: the fraction of total_steps in which the rate rises; in (0, 1]. 0.3 */
    double div_factor;           /* one-cycle; > 0. 25 */
    double final_div_factor;     /* one-cycle; > 0. 10000 */
    cairn_switch three_phase;    /* one-cycle: ON: first down to base / div_factor, mirroring the rise, then on. OFF */
    cairn_switch cycle_momentum; /* one-cycle: ON, for SGD with momentum and for Adam; elsewhere CAIRN_EINVAL */
    double base_momentum;        /* one-cycle: at the highest rate; in (0, max_momentum]. 0.85 */
    double max_momentum;         /* one-cycle; in (0, 1). 0.95 */

    /* For sequence and product: [num_parts] schedules of other kinds, without first_step and count_skipped. Read during
     * the call. */
    const struct cairn_schedule_options *const *parts;
    size_t num_parts;
};

#define cairn_schedule_options(...) \
    (&(struct cairn_schedule_options){.struct_size = sizeof(struct cairn_schedule_options), __VA_ARGS__})

/* Options with their kind set: cairn_cosine_schedule(.total_steps = 1000, .end_lr = 1e-6). */
#define cairn_constant_schedule(...)        cairn_schedule_options(.kind = CAIRN_SCHEDULE_CONSTANT, __VA_ARGS__)
#define cairn_linear_schedule(...)          cairn_schedule_options(.kind = CAIRN_SCHEDULE_LINEAR, __VA_ARGS__)
#define cairn_cosine_schedule(...)          cairn_schedule_options(.kind = CAIRN_SCHEDULE_COSINE, __VA_ARGS__)
#define cairn_cosine_restarts_schedule(...) cairn_schedule_options(.kind = CAIRN_SCHEDULE_COSINE_RESTARTS, __VA_ARGS__)
#define cairn_polynomial_schedule(...)      cairn_schedule_options(.kind = CAIRN_SCHEDULE_POLYNOMIAL, __VA_ARGS__)
#define cairn_step_schedule(...)            cairn_schedule_options(.kind = CAIRN_SCHEDULE_STEP, __VA_ARGS__)
#define cairn_multi_step_schedule(...)      cairn_schedule_options(.kind = CAIRN_SCHEDULE_MULTI_STEP, __VA_ARGS__)
#define cairn_exponential_schedule(...)     cairn_schedule_options(.kind = CAIRN_SCHEDULE_EXPONENTIAL, __VA_ARGS__)
#define cairn_one_cycle_schedule(...)       cairn_schedule_options(.kind = CAIRN_SCHEDULE_ONE_CYCLE, __VA_ARGS__)
#define cairn_inverse_sqrt_schedule(...)    cairn_schedule_options(.kind = CAIRN_SCHEDULE_INVERSE_SQRT, __VA_ARGS__)
#define cairn_warmup_stable_decay_schedule(...) \
    cairn_schedule_options(.kind = CAIRN_SCHEDULE_WARMUP_STABLE_DECAY, __VA_ARGS__)
#define cairn_sequence_schedule(...) cairn_schedule_options(.kind = CAIRN_SCHEDULE_SEQUENCE, __VA_ARGS__)
#define cairn_product_schedule(...)  cairn_schedule_options(.kind = CAIRN_SCHEDULE_PRODUCT, __VA_ARGS__)

/* Sets the schedule of all groups, or of one. The next step is the schedule's step first_step. Replaces an earlier
 * schedule and undoes its effect on momentum. Groups that are added later have no schedule.
 *
 *   schedule   copied. NULL = no schedule: the rate is the base rate
 *
 * Call it between steps; replays of a graph may come before and after. Waits for the device once.
 * Errors, which change nothing: CAIRN_EINVAL no such group, or an invalid field, by its name; CAIRN_ESTATE within a
 * step that is being recorded; CAIRN_ENOMEM; late errors of an earlier step. */
CAIRN_API cairn_status cairn_optimizer_set_schedule(cairn_optimizer *optimizer,
                                                    const struct cairn_schedule_options *schedule);
CAIRN_API cairn_status cairn_optimizer_set_group_schedule(cairn_optimizer *optimizer, int group,
                                                          const struct cairn_schedule_options *schedule);

/* The base rate of a group, from which its schedule starts; cairn_optimizer_set_lr changes it at any step.
 * cairn_optimizer_group_lr is the rate of the next step. NaN: no such group. */
CAIRN_API double cairn_optimizer_base_lr(const cairn_optimizer *optimizer, int group);

/* The learning rate, and SGD's momentum or Adam's beta1, of the last reported step (cairn_optimizer_step_skipped); for
 * a skipped step, those it would have used. NaN: no step yet, or the group did not exist then. */
CAIRN_API double cairn_optimizer_step_lr(const cairn_optimizer *optimizer, int group);
CAIRN_API double cairn_optimizer_step_momentum(const cairn_optimizer *optimizer, int group);

/* Evaluates schedule after `step` steps, for a trainer that updates its weights itself, or for a plot.
 *
 *   base_lr      >= 0
 *   step         >= 0; first_step is added
 *   lr           out
 *   momentum     in: the base momentum; out: the scheduled one, which differs only for one-cycle. NULL = not wanted
 *
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM. Any thread. */
CAIRN_API cairn_status cairn_schedule_at(const struct cairn_schedule_options *schedule, double base_lr, int64_t step,
                                         double *lr, double *momentum);

/* ---- reduction on a plateau ---- */

/* The arguments of torch.optim.lr_scheduler.ReduceLROnPlateau. */
struct cairn_plateau_options {
    size_t struct_size;
    double factor;            /* base rates are multiplied by it; in (0, 1) */
    double threshold;         /* the least improvement that makes a metric better; >= 0 */
    double min_lr;            /* lower bound of base rates; >= 0 */
    double eps;               /* a reduction by at most this is not made; >= 0 */
    int64_t patience;         /* how many metrics in a row may be no better; >= 0 */
    int64_t cooldown;         /* metrics after a reduction that do not count as no better; >= 0 */
    cairn_switch maximize;    /* ON: a larger metric is better. OFF */
    cairn_switch is_absolute; /* ON: threshold is a difference. OFF: a fraction of the best metric */
};
#define CAIRN_PLATEAU_OPTIONS_INIT \
    { sizeof(struct cairn_plateau_options), 0.1, 1e-4, 0, 1e-8, 10, 0, CAIRN_DEFAULT, CAIRN_DEFAULT }

/* Starts to reduce base rates on a plateau, with no metric seen yet; NULL stops it and keeps reduced rates. Schedules
 * continue from the current base rates. Errors: CAIRN_EINVAL names the field. */
CAIRN_API cairn_status cairn_optimizer_set_plateau(cairn_optimizer *optimizer,
                                                   const struct cairn_plateau_options *options);

/* Reports the metric of an epoch or another period: if more than `patience` metrics in a row are no better than the
 * best one, all base rates are multiplied by factor. Collective over the environment's ranks: the metric is the mean
 * over them, so either all ranks reduce or none does. A NaN is no better.
 *
 *   reduced   out: 1 = at least one base rate was reduced. NULL = not wanted
 *
 * Call it between steps. Errors, which change nothing: CAIRN_EINVAL NULL; CAIRN_ESTATE cairn_optimizer_set_plateau was
 * not called, or a step is being recorded; CAIRN_EPEER, CAIRN_ETIMEOUT. */
CAIRN_API cairn_status cairn_optimizer_report_metric(cairn_optimizer *optimizer, double metric, int *reduced);

#ifdef __cplusplus
}
#endif

#endif
