/* Schedules: the rates of a group of parameters as a function of the number of steps. Written once and compiled for the
 * host and for CUDA, with arithmetic that IEEE 754 defines to the last bit and without libm's functions, which differ
 * between libraries: every rank gets the same rates, on any device.
 *
 * include/cairn/schedule.h defines the kinds; src/optim/schedule.c checks options and fills these structs. */
#ifndef CAIRN__KERNELS_SCHEDULE_H
#define CAIRN__KERNELS_SCHEDULE_H

#include <math.h>

#include "core/half.h"
#include "kernels/kernels.h"

/* What a step of one group reads besides the group's fixed hyperparameters. */
struct cairn__rates {
    double lr;
    double momentum; /* SGD's momentum, Adam's beta1 */
};

/* The values are those of cairn_schedule_kind. */
enum cairn__schedule_kind {
    CAIRN__SCHEDULE_CONSTANT = 1,
    CAIRN__SCHEDULE_LINEAR,
    CAIRN__SCHEDULE_COSINE,
    CAIRN__SCHEDULE_COSINE_RESTARTS,
    CAIRN__SCHEDULE_POLYNOMIAL,
    CAIRN__SCHEDULE_STEP,
    CAIRN__SCHEDULE_MULTI_STEP,
    CAIRN__SCHEDULE_EXPONENTIAL,
    CAIRN__SCHEDULE_ONE_CYCLE,
    CAIRN__SCHEDULE_INVERSE_SQRT,
    CAIRN__SCHEDULE_WARMUP_STABLE_DECAY,
};

/* The values are those of cairn_schedule_curve. */
enum cairn__schedule_curve { CAIRN__CURVE_LINEAR = 1, CAIRN__CURVE_COSINE, CAIRN__CURVE_ONE_MINUS_SQRT };

/* One schedule, with all defaults filled in. Counts are in steps. */
struct cairn__schedule {
    int32_t kind; /* enum cairn__schedule_kind */
    int32_t warmup_curve, curve;
    int32_t three_phase, moves_momentum;
    int64_t from; /* the step of the sequence at which this schedule begins */
    int64_t warmup, length, decay;
    int64_t step_size, growth, timescale;
    double warmup_start, start_factor, end_factor, end_lr;
    double cycles, power, gamma;
    double pct_start, div_factor, final_div_factor, base_momentum, max_momentum;
    const int64_t *milestones; /* [num_milestones], ascending */
    int64_t num_milestones;
};

/* The schedules that set the rates of one group. */
struct cairn__group_schedule {
    struct cairn__rates base;
    const struct cairn__schedule *parts; /* [count]; with none, the rates are the base rates */
    int64_t count;
    int64_t origin; /* steps made before it began, which do not count */
    int32_t is_product;
    int32_t counts_skipped;
};

/* ---- functions ---- */

/* base^exponent for exponent >= 0, by squaring. */
CAIRN__HOST_DEVICE static inline double cairn__power(double base, int64_t exponent) {
    double result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result = result * base;
        base = base * base;
    }
    return result;
}

/* c[0] + c[1] x + ... */
CAIRN__HOST_DEVICE static inline double cairn__polynomial(const double *c, int count, double x) {
    double y = c[count - 1];
    for (int i = count - 2; i >= 0; i--) y = y * x + c[i];
    return y;
}

/* cos(pi x) within 2e-16: the argument is reduced to [0, 1/4] without rounding, then Taylor's series, of which the
 * first omitted term is below 1e-18. */
CAIRN__HOST_DEVICE static inline double cairn__cos_pi(double x) {
    const double cosine[] = {1.0,
                             -1.0 / 2,
                             1.0 / 24,
                             -1.0 / 720,
                             1.0 / 40320,
                             -1.0 / 3628800,
                             1.0 / 479001600,
                             -1.0 / 87178291200.0,
                             1.0 / 20922789888000.0};
    const double sine[] = {1.0,
                           -1.0 / 6,
                           1.0 / 120,
                           -1.0 / 5040,
                           1.0 / 362880,
                           -1.0 / 39916800,
                           1.0 / 6227020800.0,
                           -1.0 / 1307674368000.0,
                           1.0 / 355687428096000.0};
    const double pi = 3.14159265358979323846;
    x = fabs(x);
    x = x - 2 * floor(x / 2);
    if (x > 1) x = 2 - x;
    const bool is_negative = x > 0.5;
    if (is_negative) x = 1 - x;
    const bool is_near = x <= 0.25;
    const double a = is_near ? pi * x : pi * (0.5 - x);
    const double y = is_near ? cairn__polynomial(cosine, 9, a * a) : a * cairn__polynomial(sine, 9, a * a);
    return is_negative ? -y : y;
}

CAIRN__HOST_DEVICE static inline uint64_t cairn__f64_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}
CAIRN__HOST_DEVICE static inline double cairn__f64_of_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* ln 2 in two parts; the first has 33 bits, so its product with an exponent is exact. Source: fdlibm, e_log.c */
#define CAIRN__LN2_HIGH 6.93147180369123816490e-01
#define CAIRN__LN2_LOW  1.90821492927058770002e-10
#define CAIRN__LOG2_E   1.44269504088896340736

/* ln x of a positive normal x: x = m 2^e with m in [sqrt(1/2), sqrt 2), ln m = 2 artanh((m - 1) / (m + 1)). The
 * argument is below 0.1716, so the first omitted term is below 1e-17 of the first term. */
CAIRN__HOST_DEVICE static inline double cairn__log_f64(double x) {
    const double series[] = {1.0, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19};
    const uint64_t bits = cairn__f64_bits(x), fraction = bits & (((uint64_t)1 << 52) - 1);
    double m = cairn__f64_of_bits((uint64_t)1023 << 52 | fraction);
    double e = (double)((int64_t)(bits >> 52) - 1023);
    if (m > 1.41421356237309504880) {
        m = m / 2;
        e = e + 1;
    }
    const double s = (m - 1) / (m + 1);
    return e * CAIRN__LN2_HIGH + (e * CAIRN__LN2_LOW + 2 * s * cairn__polynomial(series, 10, s * s));
}

/* e^x for x <= 0; 0 below 2^-1022. Taylor's series over [-ln 2 / 2, ln 2 / 2], of which the first omitted term is below
 * 1e-17. */
CAIRN__HOST_DEVICE static inline double cairn__exp_f64(double x) {
    const double series[] = {
        1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
        1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
    const double k = floor(x * CAIRN__LOG2_E + 0.5);
    if (k < -1021) return 0;
    const double r = x - k * CAIRN__LN2_HIGH - k * CAIRN__LN2_LOW;
    return cairn__polynomial(series, 14, r) * cairn__f64_of_bits((uint64_t)((int64_t)k + 1023) << 52);
}

/* log2 x of a positive normal x; exact if x is a power of two. */
CAIRN__HOST_DEVICE static inline double cairn__log2_f64(double x) {
    const uint64_t bits = cairn__f64_bits(x), fraction = bits & (((uint64_t)1 << 52) - 1);
    const double e = (double)((int64_t)(bits >> 52) - 1023);
    return e + CAIRN__LOG2_E * cairn__log_f64(cairn__f64_of_bits((uint64_t)1023 << 52 | fraction));
}

/* 2^x for x in [-1022, 1023]; exact if x is an integer. */
CAIRN__HOST_DEVICE static inline double cairn__exp2_f64(double x) {
    const double k = floor(x);
    const double y = x > k ? 2 * cairn__exp_f64((x - k - 1) * (CAIRN__LN2_HIGH + CAIRN__LN2_LOW)) : 1;
    return y * cairn__f64_of_bits((uint64_t)((int64_t)k + 1023) << 52);
}

/* x^y for x in [0, 1] and y > 0. */
CAIRN__HOST_DEVICE static inline double cairn__pow_f64(double x, double y) {
    if (y == floor(y) && y <= 64) return cairn__power(x, (int64_t)y);
    return x > 0 ? cairn__exp_f64(y * cairn__log_f64(x)) : 0;
}

/* Rises from 0 to 1 along the curve as x does. */
CAIRN__HOST_DEVICE static inline double cairn__rise(int32_t curve, double x) {
    if (curve == CAIRN__CURVE_COSINE) return 0.5 * (1 - cairn__cos_pi(x));
    if (curve == CAIRN__CURVE_ONE_MINUS_SQRT) return 1 - sqrt(1 - x);
    return x;
}

/* ---- the kinds: the rate t steps after the warm-up, t >= 0 ---- */

CAIRN__HOST_DEVICE static inline double cairn__schedule_end(const struct cairn__schedule *s, double base) {
    return s->end_lr + s->end_factor * base;
}

CAIRN__HOST_DEVICE static inline double cairn__linear_rate(const struct cairn__schedule *s, double base, int64_t t) {
    const double from = s->start_factor * base, to = cairn__schedule_end(s, base);
    return t >= s->length ? to : from + (to - from) * ((double)t / (double)s->length);
}

/* Beyond its end the rate rises again, as in torch and Hugging Face. */
CAIRN__HOST_DEVICE static inline double cairn__cosine_rate(const struct cairn__schedule *s, double base, int64_t t) {
    const double to = cairn__schedule_end(s, base), x = 2 * s->cycles * ((double)t / (double)s->length);
    return to + (base - to) * (0.5 * (1 + cairn__cos_pi(x)));
}

/* Counts steps, so that restarts come exactly where they belong: as
 * torch.optim.lr_scheduler.CosineAnnealingWarmRestarts.step without an epoch. With an epoch torch finds the cycle by a
 * logarithm, which may fall short. */
CAIRN__HOST_DEVICE static inline double cairn__restarts_progress(const struct cairn__schedule *s, int64_t t) {
    int64_t length = s->step_size;
    if (s->growth == 1) return (double)(t % length) / (double)length;
    while (t >= length) {
        t -= length;
        if (length > INT64_MAX / s->growth) break;
        length *= s->growth;
    }
    return (double)t / (double)length;
}

CAIRN__HOST_DEVICE static inline double cairn__restarts_rate(const struct cairn__schedule *s, double base, int64_t t) {
    const double to = cairn__schedule_end(s, base);
    double x;
    if (s->step_size > 0) {
        x = cairn__restarts_progress(s, t);
    } else {
        if (t >= s->length) return to;
        x = s->cycles * ((double)t / (double)s->length);
        x = x - floor(x);
    }
    return to + (base - to) * (0.5 * (1 + cairn__cos_pi(x)));
}

CAIRN__HOST_DEVICE static inline double cairn__polynomial_rate(const struct cairn__schedule *s, double base,
                                                               int64_t t) {
    const double to = cairn__schedule_end(s, base);
    if (t >= s->length) return to;
    return to + (base - to) * cairn__pow_f64(1 - (double)t / (double)s->length, s->power);
}

CAIRN__HOST_DEVICE static inline double cairn__multi_step_rate(const struct cairn__schedule *s, double base,
                                                               int64_t t) {
    int64_t passed = 0;
    while (passed < s->num_milestones && s->milestones[passed] <= t) passed++;
    return base * cairn__power(s->gamma, passed);
}

CAIRN__HOST_DEVICE static inline double cairn__anneal(const struct cairn__schedule *s, double from, double to,
                                                      double x) {
    if (s->curve == CAIRN__CURVE_LINEAR) return from + (to - from) * x;
    return to + (from - to) / 2 * (1 + cairn__cos_pi(x));
}

/* The base rate is the peak. torch.optim.lr_scheduler.OneCycleLR.get_lr, which fails beyond its end. */
CAIRN__HOST_DEVICE static inline struct cairn__rates cairn__one_cycle_rates(const struct cairn__schedule *s,
                                                                            struct cairn__rates base, int64_t t) {
    const double first = base.lr / s->div_factor, last = first / s->final_div_factor, whole = (double)s->length;
    const double now = t < s->length ? (double)t : whole - 1;
    double begin = 0, end = s->pct_start * whole - 1;
    struct cairn__rates from, to;
    from.lr = first, from.momentum = s->max_momentum;
    to.lr = base.lr, to.momentum = s->base_momentum;
    if (now > end) {
        begin = end;
        end = s->three_phase ? 2 * s->pct_start * whole - 2 : whole - 1;
        from = to;
        to.lr = s->three_phase ? first : last, to.momentum = s->max_momentum;
    }
    if (s->three_phase && now > end) {
        begin = end;
        end = whole - 1;
        from = to;
        to.lr = last;
    }
    const double x = end > begin ? (now - begin) / (end - begin) : 1;
    base.lr = cairn__anneal(s, from.lr, to.lr, x);
    if (s->moves_momentum) base.momentum = cairn__anneal(s, from.momentum, to.momentum, x);
    return base;
}

CAIRN__HOST_DEVICE static inline double cairn__inverse_sqrt_rate(const struct cairn__schedule *s, double base,
                                                                 int64_t t) {
    return base / sqrt((double)(t + s->timescale) / (double)s->timescale);
}

/* transformers.optimization._get_wsd_scheduler_lambda */
CAIRN__HOST_DEVICE static inline double cairn__stable_decay_rate(const struct cairn__schedule *s, double base,
                                                                 int64_t t) {
    const double to = cairn__schedule_end(s, base);
    const int64_t stable = s->length - s->decay;
    if (t < stable) return base;
    if (t >= s->length) return to;
    const double x = (double)(t - stable) / (double)s->decay;
    double left = 1 - x;
    if (s->curve == CAIRN__CURVE_COSINE) left = 0.5 * (1 + cairn__cos_pi(2 * s->cycles * x));
    if (s->curve == CAIRN__CURVE_ONE_MINUS_SQRT) left = 1 - sqrt(x);
    return to + (base - to) * left;
}

CAIRN__HOST_DEVICE static inline struct cairn__rates cairn__schedule_body(const struct cairn__schedule *s,
                                                                          struct cairn__rates base, int64_t t) {
    switch ((enum cairn__schedule_kind)s->kind) {
    case CAIRN__SCHEDULE_CONSTANT:
        if (t < s->length) base.lr = base.lr * s->start_factor;
        break;
    case CAIRN__SCHEDULE_LINEAR:
        base.lr = cairn__linear_rate(s, base.lr, t);
        break;
    case CAIRN__SCHEDULE_COSINE:
        base.lr = cairn__cosine_rate(s, base.lr, t);
        break;
    case CAIRN__SCHEDULE_COSINE_RESTARTS:
        base.lr = cairn__restarts_rate(s, base.lr, t);
        break;
    case CAIRN__SCHEDULE_POLYNOMIAL:
        base.lr = cairn__polynomial_rate(s, base.lr, t);
        break;
    case CAIRN__SCHEDULE_STEP:
        base.lr = base.lr * cairn__power(s->gamma, t / s->step_size);
        break;
    case CAIRN__SCHEDULE_MULTI_STEP:
        base.lr = cairn__multi_step_rate(s, base.lr, t);
        break;
    case CAIRN__SCHEDULE_EXPONENTIAL:
        base.lr = base.lr * cairn__power(s->gamma, t);
        break;
    case CAIRN__SCHEDULE_ONE_CYCLE:
        return cairn__one_cycle_rates(s, base, t);
    case CAIRN__SCHEDULE_INVERSE_SQRT:
        base.lr = cairn__inverse_sqrt_rate(s, base.lr, t);
        break;
    case CAIRN__SCHEDULE_WARMUP_STABLE_DECAY:
        base.lr = cairn__stable_decay_rate(s, base.lr, t);
        break;
    }
    return base;
}

/* The rates after t >= 0 steps. */
CAIRN__HOST_DEVICE static inline struct cairn__rates cairn__schedule_rates(const struct cairn__schedule *s,
                                                                           struct cairn__rates base, int64_t t) {
    if (t >= s->warmup) return cairn__schedule_body(s, base, t - s->warmup);
    struct cairn__rates rates = cairn__schedule_body(s, base, 0);
    const double risen = cairn__rise(s->warmup_curve, (double)t / (double)s->warmup);
    rates.lr = rates.lr * (s->warmup_start + (1 - s->warmup_start) * risen);
    return rates;
}

/* The rates of the step after `steps` taken and `skipped` skipped ones. */
CAIRN__HOST_DEVICE static inline struct cairn__rates cairn__group_rates(const struct cairn__group_schedule *g,
                                                                        int64_t steps, int64_t skipped) {
    const int64_t made = steps + (g->counts_skipped ? skipped : 0) - g->origin, t = made > 0 ? made : 0;
    struct cairn__rates rates = g->base;
    if (g->is_product) {
        for (int64_t i = 0; i < g->count; i++) {
            const struct cairn__rates of = cairn__schedule_rates(&g->parts[i], g->base, t);
            rates.lr = g->base.lr > 0 ? rates.lr * (of.lr / g->base.lr) : 0;
            if (g->parts[i].moves_momentum) rates.momentum = of.momentum;
        }
        return rates;
    }
    int64_t i = g->count - 1;
    while (i > 0 && g->parts[i].from > t) i--;
    return i < 0 ? rates : cairn__schedule_rates(&g->parts[i], g->base, t - g->parts[i].from);
}

/* ---- in a step ---- */

/* The rates of all groups of an optimizer, in device memory except `used`. */
struct cairn__rate_table {
    struct cairn__rates *rates;                    /* [groups]: those of the next step */
    const struct cairn__group_schedule *schedules; /* [groups] */
    struct cairn__rates *used; /* [CAIRN__REPORTS][groups]: those of reported steps; the host reads it */
    size_t groups;
};

#endif
