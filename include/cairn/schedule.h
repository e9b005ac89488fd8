/* Schedules of learning rates, in the definitions of torch.optim.lr_scheduler and of transformers.get_scheduler.
 *
 *     CAIRN_CHECK(cairn_optimizer_set_schedule(sgd, cairn_linear_schedule(.warmup_steps = 500, .total_steps = 9000)));
 *
 * and nothing in the loop: the device forms the rates of the next step when it ends one, from the optimizer's own count
 * of steps. So a step that amp skips does not move the schedule, a recorded step (graph.h) has the right rate, and
 * nothing waits for the device. The learning rate in the optimizer's options, or that of cairn_optimizer_set_lr, is the
 * base rate that schedules start from.
 *
 * Numerics  f64, with operations that are rounded as IEEE 754 says and no function of libm: equal bits on every rank
 *           and device, within 1e-12 of the base rate of the definition in exact arithmetic for up to 10^4 steps.
 * Threads   as the optimizer. In C++ make the struct, zeroed, and set struct_size and kind. */
#ifndef CAIRN_SCHEDULE_H
#define CAIRN_SCHEDULE_H

#include "core.h"
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the rate is once warm-up is over: base is the base rate, t counts the steps made since warm-up, n is total_steps
 * - warmup_steps, end is end_lr + end_factor * base. */
typedef enum cairn_schedule_kind {
    /* base; while t < n, start_factor * base. Hugging Face's constant, constant_with_warmup; torch's ConstantLR */
    CAIRN_SCHEDULE_CONSTANT = 1,
    /* From start_factor * base to end, n steps long. Hugging Face's linear; torch's LinearLR */
    CAIRN_SCHEDULE_LINEAR = 2,
    /* end + (base - end) * (1 + cos(2 pi cycles t / n)) / 2, which rises again past n, as theirs do. Hugging Face's
     * cosine, cosine_with_min_lr; torch's CosineAnnealingLR (T_max is total_steps, eta_min is end_lr) */
    CAIRN_SCHEDULE_COSINE = 3,
    /* Half a wave from base to end, again and again. With cycles: so many in n steps, then end; Hugging Face's
     * cosine_with_restarts. With cycle_steps: of that length, each cycle_growth times the one before; torch's
     * CosineAnnealingWarmRestarts (T_0, T_mult) */
    CAIRN_SCHEDULE_COSINE_RESTARTS = 4,
    /* end + (base - end) * (1 - t / n)^power, then end. Hugging Face's polynomial (its lr_end is 1e-7 unless given);
     * torch's PolynomialLR */
    CAIRN_SCHEDULE_POLYNOMIAL = 5,
    /* base * gamma^(t / step_size, rounded down). torch's StepLR */
    CAIRN_SCHEDULE_STEP = 6,
    /* base * gamma^(how many milestones are <= t). torch's MultiStepLR */
    CAIRN_SCHEDULE_MULTI_STEP = 7,
    /* base * gamma^t. torch's ExponentialLR */
    CAIRN_SCHEDULE_EXPONENTIAL = 8,
    /* From base / div_factor up to base, and down to base / div_factor / final_div_factor, which it keeps; momentum
     * (Adam: beta1) goes the other way. base is torch's max_lr. torch's OneCycleLR */
    CAIRN_SCHEDULE_ONE_CYCLE = 9,
    /* base / sqrt((t + timescale) / timescale). Hugging Face's inverse_sqrt */
    CAIRN_SCHEDULE_INVERSE_SQRT = 10,
    /* base; to end over the last decay_steps of n, along decay_curve. Hugging Face's warmup_stable_decay, whose
     * min_lr_ratio is end_factor and warmup_start */
    CAIRN_SCHEDULE_WARMUP_STABLE_DECAY = 11,
    /* One part after another: part i + 1 begins, at its own step 0, with step milestones[i]. torch's SequentialLR */
    CAIRN_SCHEDULE_SEQUENCE = 12,
    /* base times the product of what each part makes of base, divided by base. torch's ChainedScheduler */
    CAIRN_SCHEDULE_PRODUCT = 13
} cairn_schedule_kind;

/* How a rate goes from one value to another; x rises from 0 to 1 on the way. */
typedef enum cairn_schedule_curve {
    CAIRN_CURVE_LINEAR = 1,        /* up: x; down: 1 - x */
    CAIRN_CURVE_COSINE = 2,        /* (1 - cos(pi x)) / 2; (1 + cos(2 pi cycles x)) / 2 */
    CAIRN_CURVE_ONE_MINUS_SQRT = 3 /* 1 - sqrt(1 - x); 1 - sqrt(x) */
} cairn_schedule_curve;

/* Zeros take the default beside them; what has none there is needed. A field that the kind does not use must be 0,
 * which CAIRN_EINVAL names. Lengths are counts of steps. */
struct cairn_schedule_options {
    size_t struct_size;
    cairn_schedule_kind kind;
    cairn_switch count_skipped; /* ON: skipped steps move the schedule too. OFF */
    int64_t first_step;         /* made by an earlier run that this one goes on with; torch's last_epoch. >= 0 */

    /* All kinds but one-cycle, sequence and product: before them, and not counted by them, the rate rises to what the
     * kind begins with. */
    int64_t warmup_steps;              /* in [0, total_steps], where there is a total */
    double warmup_start;               /* what the rate begins at, as a part of what it rises to; in [0, 1] */
    cairn_schedule_curve warmup_curve; /* linear */

    int64_t total_steps; /* with warm-up. Constant: 0; linear, cosine, polynomial, one-cycle (at least 2),
                            warmup-stable-decay and restarts by `cycles`: above 0 */
    double start_factor; /* constant and linear; > 0. 1 */
    double end_factor;   /* in parts of the base rate; >= 0. linear, cosine, restarts, polynomial, */
    double end_lr;       /* ... and warmup-stable-decay; or as a rate, for all groups alike; >= 0 */

    double cycles;        /* > 0. cosine and decay_curve cosine: 0.5, half a wave; restarts: 1, unless cycle_steps */
    int64_t cycle_steps;  /* restarts: the first cycle's */
    int64_t cycle_growth; /* restarts by cycle_steps; >= 1. 1 */

    double power; /* polynomial; > 0. 1 */

    double gamma;      /* step, multi-step: 0.1. exponential. > 0 */
    int64_t step_size; /* step; >= 1 */
    const int64_t
        *milestones; /* [num_milestones] multi-step, sequence: ascending, >= 0, copied. A sequence has one less
                                  than parts */
    size_t num_milestones;

    int64_t decay_steps;              /* warmup-stable-decay; in [1, total_steps - warmup_steps] */
    cairn_schedule_curve decay_curve; /* warmup-stable-decay; one-cycle, where it is not 1 - sqrt. cosine */
    int64_t timescale;                /* inverse square root; >= 1. warmup_steps, or 10000 without */

    double pct_start;            /* one-cycle: the part of total_steps in which the rate rises; in (0, 1]. 0.3 */
    double div_factor;           /* one-cycle; > 0. 25 */
    double final_div_factor;     /* one-cycle; > 0. 10000 */
    cairn_switch three_phase;    /* one-cycle: ON: down to base / div_factor as it came, and then on. OFF */
    cairn_switch cycle_momentum; /* one-cycle: ON, for SGD with momentum and for Adam; elsewhere CAIRN_EINVAL */
    double base_momentum;        /* one-cycle: while the rate is highest; in (0, max_momentum]. 0.85 */
    double max_momentum;         /* one-cycle; in (0, 1). 0.95 */

    /* Sequence and product: [num_parts], which are neither, and have neither first_step nor count_skipped. Read during
     * the call. */
    const struct cairn_schedule_options *const *parts;
    size_t num_parts;
};

#define cairn_schedule_options(...) \
    (&(struct cairn_schedule_options){.struct_size = sizeof(struct cairn_schedule_options), __VA_ARGS__})

/* The same with a kind: cairn_cosine_schedule(.total_steps = 1000, .end_lr = 1e-6). */
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

/* From the next step on, which is the schedule's step first_step, the rates of all groups, or of one, follow schedule.
 * One that was set before ends; so does what it did to momentum. A group that is added later has none.
 *
 *   schedule   copied. NULL: none, the rate is the base rate
 *
 * Between steps; replays of a graph may come before and after. Waits for the device once.
 * Errors, which change nothing: CAIRN_EINVAL no such group, and what is wrong with a field, by its name; CAIRN_ESTATE
 * within a step that is being recorded; CAIRN_ENOMEM; those that a step before reports late. */
CAIRN_API cairn_status cairn_optimizer_set_schedule(cairn_optimizer *optimizer,
                                                    const struct cairn_schedule_options *schedule);
CAIRN_API cairn_status cairn_optimizer_set_group_schedule(cairn_optimizer *optimizer, int group,
                                                          const struct cairn_schedule_options *schedule);

/* The base rate of a group, which its schedule starts from: cairn_optimizer_set_lr changes it, whatever the step.
 * cairn_optimizer_group_lr is the rate of the next step. NaN: no such group. */
CAIRN_API double cairn_optimizer_base_lr(const cairn_optimizer *optimizer, int group);

/* What the last step that is known of (cairn_optimizer_step_skipped) was made with, or would have been if it had not
 * been skipped: the learning rate, and SGD's momentum or Adam's beta1. NaN: no such group then, or no step. */
CAIRN_API double cairn_optimizer_step_lr(const cairn_optimizer *optimizer, int group);
CAIRN_API double cairn_optimizer_step_momentum(const cairn_optimizer *optimizer, int group);

/* What schedule gives after `step` steps: for a trainer that updates its weights itself, for a plot.
 *
 *   base_lr      >= 0
 *   step         >= 0; first_step is added
 *   lr           out
 *   momentum     in: the base momentum, which all but one-cycle keep; out. NULL: not wanted
 *
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM. Any thread. */
CAIRN_API cairn_status cairn_schedule_at(const struct cairn_schedule_options *schedule, double base_lr, int64_t step,
                                         double *lr, double *momentum);

/* ---- by a metric ---- */

/* torch.optim.lr_scheduler.ReduceLROnPlateau's arguments. */
struct cairn_plateau_options {
    size_t struct_size;
    double factor;            /* of a reduction; in (0, 1) */
    double threshold;         /* by how much a better metric is better; >= 0 */
    double min_lr;            /* no base rate goes below; >= 0 */
    double eps;               /* a reduction by no more than this is left out; >= 0 */
    int64_t patience;         /* how many metrics in a row may be no better; >= 0 */
    int64_t cooldown;         /* metrics after a reduction that do not count as no better; >= 0 */
    cairn_switch maximize;    /* ON: a larger metric is better. OFF */
    cairn_switch is_absolute; /* ON: threshold is a difference. OFF: a part of the best metric */
};
#define CAIRN_PLATEAU_OPTIONS_INIT \
    { sizeof(struct cairn_plateau_options), 0.1, 1e-4, 0, 1e-8, 10, 0, CAIRN_DEFAULT, CAIRN_DEFAULT }

/* Begins to reduce base rates on a plateau, with no metric seen; NULL ends it. What was reduced stays so. Schedules go
 * on, from the base rates as they are. Errors: CAIRN_EINVAL names the field. */
CAIRN_API cairn_status cairn_optimizer_set_plateau(cairn_optimizer *optimizer,
                                                   const struct cairn_plateau_options *options);

/* The metric of an epoch, or of another period: where the best one is `patience` metrics back, all base
 * rates are multiplied by factor. Collective over the environment's ranks: what counts is the mean of their metrics, so
 * that all reduce or none does. A NaN is no better.
 *
 *   reduced   out: 1 = some base rate was reduced. NULL = not wanted
 *
 * Between steps. Errors, which change nothing: CAIRN_EINVAL NULL; CAIRN_ESTATE there is no cairn_optimizer_set_plateau,
 * or a step is being recorded; CAIRN_EPEER, CAIRN_ETIMEOUT. */
CAIRN_API cairn_status cairn_optimizer_report_metric(cairn_optimizer *optimizer, double metric, int *reduced);

#ifdef __cplusplus
}
#endif

#endif
