/* Schedules against their formulas, and in an optimizer: skipped steps, several groups, groups added later, captured
 * steps, ranks that agree on a metric, and every wrong argument. Runs on the device of CAIRN_DEVICE. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../failing_alloc.h"
#include "../one_env.h"
#include "../ranks.h"
#include "core/alloc.h"
#include "scheduled.h"

enum { STEPS = 2000 };
static const double PI = 3.14159265358979323846;

/* ---- formulas, by libm ---- */

static const double BASE = 0.3;

typedef double formula(double t);

static double warmed(double t, double over, formula *then) {
    return t < over ? BASE * t / over : then(t - over);
}
static double half_wave(double x) {
    return 0.5 * (1 + cos(PI * x));
}
static double constant(double t) {
    return t < 70 ? 0.4 * BASE : BASE;
}
static double linear_body(double t) {
    return BASE * fmax(0, 1 - t / 1400);
}
static double linear(double t) {
    return warmed(t, 100, linear_body);
}
static double cosine_body(double t) {
    return 0.01 + (BASE - 0.01) * half_wave(t / 900);
}
static double cosine(double t) {
    return warmed(t, 100, cosine_body);
}
static double restarts_by_count(double t) {
    return t >= 1900 ? 0 : BASE * half_wave(fmod(4 * t / 1900, 1));
}
static double restarts_by_length(double t) {
    double length = 7;
    for (; t >= length; length *= 3) t -= length;
    return 1e-5 + (BASE - 1e-5) * half_wave(t / length);
}
static double polynomial(double t) {
    return t >= 1999 ? 0.02 : 0.02 + (BASE - 0.02) * pow(1 - t / 1999, 1.37);
}
static double stepwise(double t) {
    return BASE * pow(0.9, floor(t / 30));
}
static double multi_step(double t) {
    return BASE * pow(0.5, (t >= 3) + 2 * (t >= 800));
}
static double exponential(double t) {
    return BASE * pow(0.999, t);
}
static double one_cycle(double t) {
    const double top = 0.3 * 2000 - 1, last = BASE / 25 / 1e4;
    if (t <= top) return BASE + (BASE / 25 - BASE) * half_wave(t / top);
    return last + (BASE - last) * half_wave(fmin(1, (t - top) / (1999 - top)));
}
static double one_cycle_momentum(double t) {
    const double top = 0.3 * 2000 - 1;
    if (t <= top) return 0.85 + (0.95 - 0.85) * half_wave(t / top);
    return 0.95 + (0.85 - 0.95) * half_wave(fmin(1, (t - top) / (1999 - top)));
}
static double three_phases(double t) {
    const double top = 0.2 * 2000 - 1, down = 2 * 0.2 * 2000 - 2, first = BASE / 10, last = first / 100;
    if (t <= top) return first + (BASE - first) * t / top;
    if (t <= down) return BASE + (first - BASE) * (t - top) / (down - top);
    return first + (last - first) * fmin(1, (t - down) / (1999 - down));
}
static double inverse_sqrt(double t) {
    return t < 400 ? BASE * t / 400 : BASE / sqrt(t / 400);
}
static double stable_decay(double t) {
    if (t < 200) return BASE * (0.1 + 0.9 * 0.5 * (1 - cos(PI * t / 200)));
    if (t < 1000) return BASE;
    return t >= 1900 ? 0.1 * BASE : BASE * (0.1 + 0.9 * (1 - sqrt((t - 1000) / 900)));
}
static double sequence(double t) {
    return t < 100 ? BASE * (0.01 + 0.99 * t / 100) : t < 1000 ? stepwise(t - 100) : exponential(t - 1000);
}
static double product(double t) {
    return constant(t) * exponential(t) / BASE;
}
static double continued(double t) {
    return exponential(t + 500);
}

static const int64_t late_milestones[] = {3, 800, 800}, changes[] = {100, 1000};

/* The caller's, since compound literals end with their block. */
#define EACH_CASE(X)                                                                                                   \
    X("constant", constant, cairn_constant_schedule(.total_steps = 70, .start_factor = 0.4))                           \
    X("linear", linear, cairn_linear_schedule(.warmup_steps = 100, .total_steps = 1500))                               \
    X("cosine", cosine, cairn_cosine_schedule(.warmup_steps = 100, .total_steps = 1000, .end_lr = 0.01))               \
    X("restarts by count", restarts_by_count, cairn_cosine_restarts_schedule(.total_steps = 1900, .cycles = 4))        \
    X("restarts by length", restarts_by_length,                                                                        \
      cairn_cosine_restarts_schedule(.cycle_steps = 7, .cycle_growth = 3, .end_lr = 1e-5))                             \
    X("polynomial", polynomial, cairn_polynomial_schedule(.total_steps = 1999, .power = 1.37, .end_lr = 0.02))         \
    X("step", stepwise, cairn_step_schedule(.step_size = 30, .gamma = 0.9))                                            \
    X("multi-step", multi_step,                                                                                        \
      cairn_multi_step_schedule(.milestones = late_milestones, .num_milestones = 3, .gamma = 0.5))                     \
    X("exponential", exponential, cairn_exponential_schedule(.gamma = 0.999))                                          \
    X("one-cycle", one_cycle, cairn_one_cycle_schedule(.total_steps = 2000))                                           \
    X("one-cycle in three phases", three_phases,                                                                       \
      cairn_one_cycle_schedule(.total_steps = 2000, .three_phase = CAIRN_ON, .pct_start = 0.2, .div_factor = 10,       \
                               .final_div_factor = 100, .decay_curve = CAIRN_CURVE_LINEAR))                            \
    X("inverse square root", inverse_sqrt, cairn_inverse_sqrt_schedule(.warmup_steps = 400))                           \
    X("warmup-stable-decay", stable_decay,                                                                             \
      cairn_warmup_stable_decay_schedule(.warmup_steps = 200, .warmup_start = 0.1, .warmup_curve = CAIRN_CURVE_COSINE, \
                                         .total_steps = 1900, .decay_steps = 900,                                      \
                                         .decay_curve = CAIRN_CURVE_ONE_MINUS_SQRT, .end_factor = 0.1))                \
    X("sequence", sequence,                                                                                            \
      cairn_sequence_schedule(.milestones = changes, .num_milestones = 2, .num_parts = 3,                              \
                              .parts = (const struct cairn_schedule_options *[]){                                      \
                                  cairn_linear_schedule(.total_steps = 100, .start_factor = 0.01, .end_factor = 1),    \
                                  cairn_step_schedule(.step_size = 30, .gamma = 0.9),                                  \
                                  cairn_exponential_schedule(.gamma = 0.999)}))                                        \
    X("product", product,                                                                                              \
      cairn_product_schedule(.num_parts = 2, .parts = (const struct cairn_schedule_options *[]){                       \
                                                 cairn_constant_schedule(.total_steps = 70, .start_factor = 0.4),      \
                                                 cairn_exponential_schedule(.gamma = 0.999)}))                         \
    X("continued", continued, cairn_exponential_schedule(.gamma = 0.999, .first_step = 500))

static double rate_at(const struct cairn_schedule_options *schedule, int64_t t) {
    double lr = NAN;
    OK(cairn_schedule_at(schedule, BASE, t, &lr, NULL));
    return lr;
}

static void assert_follows(const char *name, formula *f, const struct cairn_schedule_options *schedule) {
    for (int64_t t = 0; t < STEPS; t++) {
        const double got = rate_at(schedule, t), want = f((double)t);
        if (!(fabs(got - want) <= 1e-12 * BASE)) fail_msg("%s: %.17g at %d, want %.17g", name, got, (int)t, want);
    }
}

static void every_schedule_is_its_formula(void **state) {
    (void)state;
#define FOLLOWS(name, f, schedule) assert_follows(name, f, schedule);
    EACH_CASE(FOLLOWS)
    for (int64_t t = 0; t < STEPS; t++) {
        double lr, momentum = 0.7;
        OK(cairn_schedule_at(cairn_one_cycle_schedule(.total_steps = 2000), BASE, t, &lr, &momentum));
        if (!(fabs(momentum - one_cycle_momentum((double)t)) <= 1e-12))
            fail_msg("momentum %.17g at %d", momentum, (int)t);
        momentum = 0.7;
        OK(cairn_schedule_at(cairn_step_schedule(.step_size = 10), BASE, t, &lr, &momentum));
        assert_true(momentum == 0.7);
    }
}

/* ---- in an optimizer ---- */

static void make_sgd(struct scheduled *s, cairn_env *env, double momentum, bool recorded) {
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    h.lr = BASE;
    h.momentum = momentum;
    OK(scheduled_make_set(s, env));
    OK(cairn_sgd_create(s->set, &h, &s->optimizer));
    if (recorded) OK(cairn_graph_capture(env, scheduled_step_of, s, &s->graph));
}

static float weight_of(struct scheduled *s, int i) {
    float w = NAN;
    OK(cairn__device_download(s->env->device, &w, s->memory + i, sizeof(w)));
    return w;
}

/* counted: what moves the schedule, steps taken or all. */
static void assert_unmoved_by_skips(cairn_env *env, const struct cairn_schedule_options *schedule, bool recorded,
                                    bool all_count) {
    struct scheduled s;
    int64_t taken = 0, skipped = 0;
    make_sgd(&s, env, 0.9, recorded);
    OK(cairn_optimizer_set_schedule(s.optimizer, schedule));
    while (taken < 300) {
        const double want = rate_at(schedule, all_count ? taken + skipped : taken);
        assert_true(cairn_optimizer_lr(s.optimizer) == want);
        OK(scheduled_step(&s, scheduled_draws_skip(&s)));
        assert_true(cairn_optimizer_step_lr(s.optimizer, 0) == want);
        *(cairn_optimizer_step_skipped(s.optimizer) ? &skipped : &taken) += 1;
        assert_int_equal(cairn_optimizer_steps(s.optimizer), taken);
        assert_int_equal(cairn_optimizer_skipped(s.optimizer), skipped);
        assert_true(cairn_optimizer_base_lr(s.optimizer, 0) == BASE);
    }
    assert_true(skipped > 20);
    const bool on_gpu = strcmp(env->device->ops->name, "cpu") != 0;
    assert_int_equal(cairn_graph_is_recorded(s.graph), recorded && on_gpu);
    scheduled_end(&s);
}

static void skipped_steps_do_not_move_a_schedule(void **state) {
#define UNMOVED(name, f, schedule) assert_unmoved_by_skips(*state, schedule, false, false);
    EACH_CASE(UNMOVED)
}

static void recorded_steps_have_the_rate_of_their_number(void **state) {
#define RECORDED(name, f, schedule) assert_unmoved_by_skips(*state, schedule, true, false);
    EACH_CASE(RECORDED)
}

static void skipped_steps_move_a_schedule_that_counts_them(void **state) {
    const struct cairn_schedule_options *s = cairn_exponential_schedule(.gamma = 0.99, .count_skipped = CAIRN_ON);
    for (int recorded = 0; recorded <= 1; recorded++) assert_unmoved_by_skips(*state, s, recorded, true);
}

/* The rate that is returned is the one that moved the weights: their gradient is 1. */
static void weights_move_by_the_rate_that_is_reported(void **state) {
    for (int recorded = 0; recorded <= 1; recorded++) {
        struct scheduled s;
        float w = 0;
        make_sgd(&s, *state, 0, recorded);
        OK(cairn_optimizer_set_schedule(s.optimizer, cairn_cosine_schedule(.warmup_steps = 9, .total_steps = 70)));
        for (int t = 0; t < 60; t++) {
            OK(scheduled_step(&s, t % 5 == 3));
            if (!cairn_optimizer_step_skipped(s.optimizer)) w -= (float)cairn_optimizer_step_lr(s.optimizer, 0);
            assert_true(weight_of(&s, 0) == w);
        }
        assert_true(w < -5);
        scheduled_end(&s);
    }
}

/* Adam's moments are m = v = 1 with gradients of 1 and a correction that undoes their start, so that beta1 only shows
 * in rounding; with SGD the buffer tells which momentum it was multiplied by. */
static void one_cycle_moves_momentum_of_sgd_and_beta1_of_adam(void **state) {
    struct scheduled s;
    double buffer = 0, w = 0;
    const struct cairn_schedule_options *schedule = cairn_one_cycle_schedule(.total_steps = 50);
    make_sgd(&s, *state, 0.9, false);
    OK(cairn_optimizer_set_schedule(s.optimizer, schedule));
    for (int t = 0; t < 50; t++) {
        double lr, momentum = 0.9;
        OK(cairn_schedule_at(schedule, BASE, t, &lr, &momentum));
        OK(scheduled_step(&s, false));
        assert_true(cairn_optimizer_step_momentum(s.optimizer, 0) == momentum);
        buffer = t == 0 ? 1 : momentum * buffer + 1;
        w -= lr * buffer;
        assert_true(fabs(weight_of(&s, 1) - w) <= 1e-5 * (1 + fabs(w)));
    }
    OK(cairn_optimizer_set_schedule(s.optimizer, NULL));
    OK(scheduled_step(&s, false));
    assert_true(cairn_optimizer_step_momentum(s.optimizer, 0) == 0.9 &&
                cairn_optimizer_step_lr(s.optimizer, 0) == BASE);
    scheduled_end(&s);

    struct cairn_adam_options h = CAIRN_ADAM_OPTIONS_INIT;
    double m = 0, v = 0, g[] = {1, 0.25};
    h.lr = 0.01;
    OK(scheduled_make_set(&s, *state));
    OK(cairn_adam_create(s.set, &h, &s.optimizer));
    OK(cairn_optimizer_set_schedule(s.optimizer, schedule));
    w = 0;
    for (int t = 0; t < 50; t++) {
        double lr, beta1 = 0.9;
        const float gradient = (float)g[t % 2];
        OK(cairn_schedule_at(schedule, h.lr, t, &lr, &beta1));
        OK(cairn__device_upload(s.env->device, s.memory + MAX_GROUPS, &gradient, sizeof(gradient)));
        OK(scheduled_step(&s, false));
        m = beta1 * m + (1 - beta1) * g[t % 2];
        v = h.beta2 * v + (1 - h.beta2) * g[t % 2] * g[t % 2];
        w -= lr * (m / (1 - pow(beta1, t + 1))) / (sqrt(v / (1 - pow(h.beta2, t + 1))) + h.eps);
        assert_true(fabs(weight_of(&s, 0) - w) <= 1e-5 * (1e-2 + fabs(w)));
    }
    scheduled_end(&s);
}

/* ---- groups ---- */

static void add_group(struct scheduled *s, size_t i, double lr) {
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    h.lr = lr;
    OK(cairn_sgd_add_group(s->optimizer, s->set, &i, 1, &h));
}

/* Group 1 comes after 10 steps and 2 skipped ones, with a schedule that begins then; group 2 has none. */
static void each_group_has_its_schedule_and_a_late_one_begins_at_its_start(void **state) {
    static const size_t first = 0;
    struct scheduled s;
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    const struct cairn_schedule_options *slow = cairn_exponential_schedule(.gamma = 0.99),
                                        *late = cairn_linear_schedule(.warmup_steps = 4, .total_steps = 20),
                                        *counting = cairn_step_schedule(.step_size = 3, .count_skipped = CAIRN_ON);
    h.lr = BASE;
    OK(scheduled_make_set(&s, *state));
    OK(cairn_sgd_create_over(s.set, &first, 1, &h, &s.optimizer));
    assert_true(isnan(cairn_optimizer_step_lr(s.optimizer, 0)));
    OK(cairn_optimizer_set_schedule(s.optimizer, slow));
    for (int t = 0; t < 12; t++) OK(scheduled_step(&s, t == 3 || t == 8));
    add_group(&s, 1, BASE);
    assert_true(cairn_optimizer_step_lr(s.optimizer, 0) == rate_at(slow, 9)); /* known before the group was added */
    assert_true(isnan(cairn_optimizer_step_lr(s.optimizer, 1)));
    add_group(&s, 2, 0.5);
    OK(cairn_optimizer_set_group_schedule(s.optimizer, 1, late));
    int taken = 0;
    for (int t = 0; t < 30; t++) {
        if (t == 20) OK(cairn_optimizer_set_group_schedule(s.optimizer, 2, counting));
        OK(scheduled_step(&s, t % 4 == 1));
        assert_true(cairn_optimizer_step_lr(s.optimizer, 0) == rate_at(slow, 10 + taken));
        assert_true(cairn_optimizer_step_lr(s.optimizer, 1) == rate_at(late, taken));
        assert_true(fabs(cairn_optimizer_step_lr(s.optimizer, 2) -
                         (t < 20 ? 0.5 : rate_at(counting, t - 20) * 0.5 / BASE)) < 1e-15);
        taken += !cairn_optimizer_step_skipped(s.optimizer);
    }
    assert_true(isnan(cairn_optimizer_step_lr(s.optimizer, 3)) && isnan(cairn_optimizer_step_lr(NULL, 0)));
    assert_true(isnan(cairn_optimizer_base_lr(s.optimizer, -1)) &&
                isnan(cairn_optimizer_step_momentum(s.optimizer, 3)));
    scheduled_end(&s);
}

/* Rates are linear in the base rate here, so the schedule goes on where it was. */
static void base_rate_can_change_between_steps_and_replays(void **state) {
    for (int recorded = 0; recorded <= 1; recorded++) {
        struct scheduled s;
        const struct cairn_schedule_options *schedule = cairn_step_schedule(.step_size = 4, .gamma = 0.5);
        make_sgd(&s, *state, 0.9, recorded);
        OK(cairn_optimizer_set_schedule(s.optimizer, schedule));
        for (int t = 0; t < 24; t++) {
            if (t == 6) OK(cairn_optimizer_set_lr(s.optimizer, 4 * BASE));
            if (t == 13) OK(cairn_optimizer_set_group_lr(s.optimizer, 0, 2 * BASE));
            const double want = rate_at(schedule, t) * (t < 6 ? 1 : t < 13 ? 4 : 2);
            assert_true(cairn_optimizer_group_lr(s.optimizer, 0) == want);
            OK(scheduled_step(&s, false));
            assert_true(cairn_optimizer_step_lr(s.optimizer, 0) == want);
        }
        if (recorded) { /* the recording reads where a new schedule stands */
            OK(cairn_optimizer_set_schedule(s.optimizer, cairn_exponential_schedule(.gamma = 0.5)));
            OK(scheduled_step(&s, false));
            OK(scheduled_step(&s, false));
            assert_true(cairn_optimizer_step_lr(s.optimizer, 0) == BASE);
        }
        scheduled_end(&s);
    }
}

/* first_step has the steps of an earlier run. */
static void resumed_training_has_the_rates_of_one_that_never_stopped(void **state) {
    struct scheduled whole, rest;
    const struct cairn_schedule_options schedule = *cairn_cosine_schedule(.warmup_steps = 5, .total_steps = 40);
    struct cairn_schedule_options from = schedule;
    make_sgd(&whole, *state, 0, false);
    make_sgd(&rest, *state, 0, false);
    OK(cairn_optimizer_set_schedule(whole.optimizer, &schedule));
    for (int t = 0; t < 20; t++) OK(scheduled_step(&whole, false));
    from.first_step = cairn_optimizer_steps(whole.optimizer);
    OK(cairn_optimizer_set_schedule(rest.optimizer, &from));
    for (int t = 20; t < 40; t++) {
        OK(scheduled_step(&whole, t == 30));
        OK(scheduled_step(&rest, t == 30));
        assert_true(cairn_optimizer_step_lr(whole.optimizer, 0) == cairn_optimizer_step_lr(rest.optimizer, 0));
    }
    scheduled_end(&whole), scheduled_end(&rest);
}

/* ---- what is refused ---- */

static void wrong_schedules_are_refused_by_the_name_of_the_field(void **state) {
    static const int64_t descending[] = {5, 4};
    const struct cairn_schedule_options *no_parts[] = {NULL}, *simple[] = {cairn_step_schedule(.step_size = 1)},
                                        *nested[] = {cairn_product_schedule(.parts = simple, .num_parts = 1)},
                                        *counting[] = {cairn_step_schedule(.step_size = 1, .first_step = 2)};
    const struct {
        const struct cairn_schedule_options *schedule;
        const char *says;
    } wrong[] = {
        {cairn_schedule_options(.kind = (cairn_schedule_kind)0), "kind is 0"},
        {cairn_schedule_options(.kind = (cairn_schedule_kind)14), "kind is 14"},
        {cairn_linear_schedule(.warmup_steps = 3), "linear schedule: total_steps must be set"},
        {cairn_cosine_schedule(.total_steps = -1), "total_steps is -1"},
        {cairn_linear_schedule(.total_steps = 10, .warmup_steps = 11),
         "warmup_steps is 11; it must be at most total_steps, which is 10"},
        {cairn_linear_schedule(.total_steps = 10, .power = 2), "power is set, but a linear schedule does not use it"},
        {cairn_cosine_schedule(.total_steps = 10, .end_lr = NAN), "end_lr is nan"},
        {cairn_cosine_schedule(.total_steps = 10, .end_lr = INFINITY), "end_lr is inf"},
        {cairn_cosine_schedule(.total_steps = 10, .end_lr = 1, .end_factor = 1), "end_lr and end_factor are both set"},
        {cairn_inverse_sqrt_schedule(.timescale = INT64_MAX), "timescale is 9.22337e+18; it must be at most 2^53"},
        {cairn_cosine_schedule(.total_steps = 10, .warmup_start = 1.5), "warmup_start is 1.5; it must be at most 1"},
        {cairn_cosine_schedule(.total_steps = 10, .warmup_curve = (cairn_schedule_curve)4), "warmup_curve is 4"},
        {cairn_cosine_restarts_schedule(.cycle_growth = 2), "total_steps must be set"},
        {cairn_cosine_restarts_schedule(.cycle_steps = 2, .total_steps = 9),
         "cycle_steps is set, so total_steps and cycles must not be"},
        {cairn_cosine_restarts_schedule(.cycle_growth = 2, .total_steps = 9),
         "cycle_growth is set without cycle_steps; set both"},
        {cairn_step_schedule(.gamma = 0.5), "step_size must be set"},
        {cairn_step_schedule(.step_size = 1, .gamma = -1), "gamma is -1"},
        {cairn_exponential_schedule(.warmup_steps = 1), "gamma must be set"},
        {cairn_multi_step_schedule(.num_milestones = 2), "num_milestones is set, but milestones is NULL"},
        {cairn_multi_step_schedule(.milestones = descending, .num_milestones = 2),
         "milestone 1 is 4, below the one before, 5"},
        {cairn_one_cycle_schedule(.total_steps = 1), "it must be at least 2"},
        {cairn_one_cycle_schedule(.total_steps = 9, .warmup_steps = 1), "warmup_steps is set, but a one-cycle"},
        {cairn_one_cycle_schedule(.total_steps = 9, .base_momentum = 0.99), "base_momentum is 0.99"},
        {cairn_one_cycle_schedule(.total_steps = 9), "the group has no momentum to cycle"},
        {cairn_one_cycle_schedule(.total_steps = 9, .decay_curve = CAIRN_CURVE_ONE_MINUS_SQRT), "cosine or linear"},
        {cairn_warmup_stable_decay_schedule(.total_steps = 9), "decay_steps is 0; it must be in [1, 9]"},
        {cairn_sequence_schedule(.num_parts = 1), "parts is NULL or num_parts is 0"},
        {cairn_sequence_schedule(.parts = simple), "parts is NULL or num_parts is 0"},
        {cairn_product_schedule(.parts = no_parts, .num_parts = 1), "part 0 is NULL"},
        {cairn_product_schedule(.parts = nested, .num_parts = 1),
         "part 0 is a product schedule; a part cannot have parts"},
        {cairn_product_schedule(.parts = counting, .num_parts = 1), "part 0 sets first_step or count_skipped"},
        {cairn_sequence_schedule(.parts = simple, .num_parts = 1, .milestones = descending, .num_milestones = 1),
         "1 milestones for 1 parts"},
        {&(struct cairn_schedule_options){.kind = CAIRN_SCHEDULE_STEP}, "struct_size is 0"},
    };
    struct scheduled s;
    make_sgd(&s, *state, 0, false);
    OK(cairn_optimizer_set_schedule(s.optimizer, cairn_exponential_schedule(.gamma = 0.5)));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        REFUSED(cairn_optimizer_set_schedule(s.optimizer, wrong[i].schedule), CAIRN_EINVAL, wrong[i].says);
    }
    double lr;
    REFUSED(cairn_optimizer_set_schedule(NULL, simple[0]), CAIRN_EINVAL, "optimizer is NULL");
    REFUSED(cairn_optimizer_set_group_schedule(s.optimizer, 1, simple[0]), CAIRN_EINVAL,
            "group is 1, but the optimizer has 1 groups");
    REFUSED(cairn_schedule_at(simple[0], -1, 0, &lr, NULL), CAIRN_EINVAL, "base_lr is -1");
    REFUSED(cairn_schedule_at(simple[0], 1, -1, &lr, NULL), CAIRN_EINVAL, "step is -1");
    REFUSED(cairn_schedule_at(NULL, 1, 0, &lr, NULL), CAIRN_EINVAL, "must be set");
    OK(scheduled_step(&s, false));
    OK(scheduled_step(&s, false));
    assert_true(cairn_optimizer_step_lr(s.optimizer, 0) == BASE / 2); /* the one before has stayed */
    scheduled_end(&s);
}

static void caller_with_an_older_header_gets_defaults_for_new_fields(void **state) {
    (void)state;
    struct cairn_schedule_options o = *cairn_linear_schedule(.total_steps = 10);
    o.struct_size = offsetof(struct cairn_schedule_options, cycles);
    o.power = 7; /* not the caller's */
    assert_true(rate_at(&o, 5) == BASE / 2);
}

static void running_out_of_memory_leaves_the_schedule_as_it_was(void **state) {
    struct scheduled s;
    const struct cairn_schedule_options *parts[] = {cairn_multi_step_schedule(.milestones = late_milestones,
                                                                              .num_milestones = 3),
                                                    cairn_step_schedule(.step_size = 5)};
    make_sgd(&s, *state, 0, false);
    OK(cairn_optimizer_set_schedule(s.optimizer, cairn_exponential_schedule(.gamma = 0.5)));
    const uint64_t alive = cairn__alloc_counters().alive;
    int failures = 0;
    for (cairn_status st = CAIRN_ENOMEM; st == CAIRN_ENOMEM; failures++) {
        fail_in = failures + 1;
        st = cairn_optimizer_set_schedule(s.optimizer, cairn_product_schedule(.parts = parts, .num_parts = 2));
        fail_in = 0;
        assert_int_equal(cairn__alloc_counters().alive, alive);
        if (st == CAIRN_OK) break;
        assert_int_equal(st, CAIRN_ENOMEM);
        OK(scheduled_step(&s, false));
        assert_true(cairn_optimizer_step_lr(s.optimizer, 0) == ldexp(BASE, -failures));
    }
    assert_in_range(failures, 3, 20);
    OK(scheduled_step(&s, false));
    assert_true(cairn_optimizer_step_lr(s.optimizer, 0) == BASE);
    scheduled_end(&s);
}

/* ---- on a plateau ---- */

static void plateau_reduces_base_rates_and_the_schedule_goes_on(void **state) {
    struct scheduled s;
    struct cairn_plateau_options h = CAIRN_PLATEAU_OPTIONS_INIT;
    const struct cairn_schedule_options *schedule = cairn_step_schedule(.step_size = 2, .gamma = 0.5);
    const double metrics[] = {5, 4, 4, 4, 3, 3, NAN, 3, 3, 3};
    const int want[] = {0, 0, 0, 1, 0, 0, 1, 0, 1, 0};
    double times = 1;
    int reduced = 7;
    make_sgd(&s, *state, 0, false);
    OK(cairn_optimizer_set_schedule(s.optimizer, schedule));
    REFUSED(cairn_optimizer_report_metric(s.optimizer, 1, NULL), CAIRN_ESTATE, "cairn_optimizer_set_plateau");
    h.factor = 0.5, h.patience = 1;
    OK(cairn_optimizer_set_plateau(s.optimizer, &h));
    for (int t = 0; t < 10; t++) {
        OK(cairn_optimizer_report_metric(s.optimizer, metrics[t], &reduced));
        assert_int_equal(reduced, want[t]);
        times *= reduced ? 0.5 : 1;
        OK(scheduled_step(&s, false));
        assert_true(cairn_optimizer_step_lr(s.optimizer, 0) == rate_at(schedule, t) * times);
    }
    h.factor = 1;
    REFUSED(cairn_optimizer_set_plateau(s.optimizer, &h), CAIRN_EINVAL, "factor is 1");
    h.factor = 0.5, h.patience = -1;
    REFUSED(cairn_optimizer_set_plateau(s.optimizer, &h), CAIRN_EINVAL, "patience is -1");
    OK(cairn_optimizer_set_plateau(s.optimizer, NULL));
    REFUSED(cairn_optimizer_report_metric(s.optimizer, 1, NULL), CAIRN_ESTATE, "cairn_optimizer_set_plateau");
    scheduled_end(&s);
}

/* Rank 0's own metric falls for ever and rank 1's rises; their mean is better once and then stands still. */
static char *report_as_a_rank(cairn_env *env, void *ctx) {
    struct scheduled s;
    struct cairn_plateau_options h = CAIRN_PLATEAU_OPTIONS_INIT;
    (void)ctx;
    EXPECT_OK(scheduled_make_set(&s, env));
    EXPECT_OK(cairn_sgd_create(s.set, NULL, &s.optimizer));
    h.patience = 3;
    EXPECT_OK(cairn_optimizer_set_plateau(s.optimizer, &h));
    for (int t = 0; t < 9; t++) {
        int reduced = 0;
        const double far = t < 2 ? 2.0 - t : 0, mine = cairn_env_rank(env) == 0 ? far - t : far + t;
        EXPECT_OK(cairn_optimizer_report_metric(s.optimizer, mine, &reduced));
        EXPECT(reduced == (t == 6));
        EXPECT(cairn_optimizer_group_lr(s.optimizer, 0) == (t < 6 ? 1e-3 : 1e-4));
    }
    scheduled_end(&s);
    return NULL;
}

static void ranks_agree_on_the_metric(void **state) {
    (void)state;
    if (getenv("CAIRN_DEVICE")) SKIP("ranks on GPUs need NCCL");
    for (int p = 2; p <= 4; p += 2) run_ranks(p, report_as_a_rank, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_is_its_formula),
        cmocka_unit_test(skipped_steps_do_not_move_a_schedule),
        cmocka_unit_test(recorded_steps_have_the_rate_of_their_number),
        cmocka_unit_test(skipped_steps_move_a_schedule_that_counts_them),
        cmocka_unit_test(weights_move_by_the_rate_that_is_reported),
        cmocka_unit_test(one_cycle_moves_momentum_of_sgd_and_beta1_of_adam),
        cmocka_unit_test(each_group_has_its_schedule_and_a_late_one_begins_at_its_start),
        cmocka_unit_test(base_rate_can_change_between_steps_and_replays),
        cmocka_unit_test(resumed_training_has_the_rates_of_one_that_never_stopped),
        cmocka_unit_test(wrong_schedules_are_refused_by_the_name_of_the_field),
        cmocka_unit_test(caller_with_an_older_header_gets_defaults_for_new_fields),
        cmocka_unit_test(running_out_of_memory_leaves_the_schedule_as_it_was),
        cmocka_unit_test(plateau_reduces_base_rates_and_the_schedule_goes_on),
        cmocka_unit_test(ranks_agree_on_the_metric),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
