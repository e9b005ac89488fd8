/* The log-normal rule against a model that keeps every step and forms each mean anew from all of them, in long double
 * and with libm's logarithms, over 1000 random sequences (250 with CAIRN_TEST_SHORT in the environment); and states
 * that it is saved in. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../check.h"
#include "core/philox.h"
#include "scaler_fields.h"

enum { STEPS = 160 };

/* ---- the model ---- */

struct model {
    double log_max, beta1, beta2, deviations, min, max;
    bool feeds_power;
    long double x[STEPS];
    int count;
    double scale;
    double slack; /* of the logarithm of the scale, below */
};

/* What f64 may lose of deviation, the root of a difference of two means near x^2 that each lost a few of their last
 * places to 1 - beta2^n: where the difference is small, the root of that. */
static double slack_of(const struct model *m, long double deviation) {
    long double greatest = 1;
    for (int i = 0; i < m->count; i++) greatest = fmaxl(greatest, fabsl(m->x[i]));
    const long double lost = 0x1p-48L * greatest * greatest / (1 - (long double)m->beta2);
    const long double of_root = deviation > sqrtl(lost) ? lost / deviation : sqrtl(lost);
    return (double)(m->deviations * of_root + 0x1p-44L * greatest / (1 - (long double)m->beta1));
}

/* Of values at equal weights but for beta to the power of how long ago they were: what the running sums stand for. */
static long double mean_of(const struct model *m, double beta, int power) {
    long double sum = 0, weights = 0, weight = 1;
    for (int i = m->count - 1; i >= 0; i--, weight *= beta) {
        sum += weight * powl(m->x[i], power);
        weights += weight;
    }
    return sum / weights;
}

static void model_step(struct model *m, bool found, double largest) {
    if (!found && largest == 0) return;
    const long double full = m->feeds_power ? powl(2, m->log_max) : (long double)m->log_max;
    m->x[m->count++] = found || isinf(largest) ? full : log2l(largest);
    const long double slow = mean_of(m, m->beta2, 1), variance = mean_of(m, m->beta2, 2) - slow * slow;
    const long double deviation = sqrtl(variance > 0 ? variance : 0);
    const long double cutoff = mean_of(m, m->beta1, 1) + m->deviations * deviation;
    m->slack = slack_of(m, deviation);
    m->scale = (double)fminl(m->max, fmaxl(m->min, exp2l(m->log_max - cutoff)));
}

/* ---- the library's side ---- */

static struct cairn__scaler_report reports[CAIRN__REPORTS];

static int update(struct cairn__scaler_state *s, bool found, double largest) {
    s->found = found;
    s->largest = largest;
    cairn__scaler_update_scalars(s, reports);
    assert_true(s->largest == 0);
    return s->verdict;
}

static struct cairn__scaler_state made(const struct amp_scaler_options *options) {
    struct cairn__scaler_state s;
    struct amp_scaler_options o = *options;
    o.struct_size = sizeof(o);
    o.kind = AMP_SCALER_LOGMAX;
    assert_int_equal(cairn__scaler_resolve(&o, 0, &s), CAIRN_OK);
    return s;
}

static struct cairn__scaler_state with_defaults(void) {
    return made(amp_scaler_options(.log_max = 0));
}

/* ---- both ---- */

struct dice {
    uint64_t seed, drawn;
};

/* In [0, 1). */
static double draw(struct dice *d) {
    const struct cairn__philox_block block = cairn__philox(d->seed, d->drawn / 4, 5);
    return block.word[d->drawn++ % 4] * 0x1p-32;
}

static double pick(struct dice *d, double low, double high) {
    return low + (high - low) * draw(d);
}

/* A random walk of its logarithm, with zeros, infinities and overflows between. */
static double next_largest(struct dice *d, double *log, bool *found) {
    const double what = draw(d);
    *log += pick(d, -1.5, 1.5);
    *found = what < 0.03;
    if (what < 0.06) return INFINITY;
    if (what < 0.09) return 0;
    return ldexp(pick(d, 1, 2), (int)*log);
}

static void follow(uint64_t seed, int *tight) {
    struct dice d = {.seed = seed};
    struct model m = {
        .log_max = 16, .beta1 = 0.99, .beta2 = 0.999, .deviations = 3.09, .min = 1, .max = 0x1p24, .scale = 1};
    struct amp_scaler_options o = {.log_max = 0};
    m.feeds_power = draw(&d) < 0.2;
    if (m.feeds_power) o.overflow_feeds_power = CAIRN_ON;
    if (draw(&d) < 0.7) {
        o.log_max = m.log_max = m.feeds_power ? pick(&d, -8, 8) : pick(&d, -100, 100);
        o.beta1 = m.beta1 = pick(&d, 0.01, 0.999);
        o.beta2 = m.beta2 = pick(&d, 0.01, 0.9999);
        o.overflow_std_dev = m.deviations = pick(&d, 0.1, 6);
        o.min_scale = m.min = exp2(pick(&d, -126, 0));
        o.max_scale = m.max = exp2(pick(&d, 0, 126));
        o.init_scale = m.scale = 1;
    }
    struct cairn__scaler_state s = made(&o);
    double log = pick(&d, -60, 10);
    for (int i = 0; i < STEPS; i++) {
        bool found;
        const double largest = next_largest(&d, &log, &found);
        model_step(&m, found, largest);
        update(&s, found, largest);
        if (!(fabs(log2(s.scale) - log2(m.scale)) <= m.slack + 1e-13))
            fail_msg("sequence %d, step %d: scale %.17g, the model has %.17g", (int)seed, i, s.scale, m.scale);
        *tight += m.slack < 1e-6;
        assert_true(s.scale >= m.min && s.scale <= m.max);
        assert_int_equal(s.updates, i + 1);
    }
}

static void logmax_follows_its_model_over_random_sequences(void **state) {
    (void)state;
    int tight = 0;
    const int sequences = check_is_short() ? 250 : 1000;
    for (int seed = 0; seed < sequences; seed++) follow((uint64_t)seed, &tight);
    assert_true(tight > 0.75 * sequences * STEPS);
}

/* ---- numbers ---- */

static bool is_near(double x, double want) {
    return fabs(x - want) <= 1e-12 * want;
}

/* Without variation the largest gradient comes to 2^log_max. */
static void steady_gradients_are_scaled_to_the_largest_that_fits(void **state) {
    (void)state;
    struct cairn__scaler_state s = with_defaults();
    assert_true(s.scale == 1 && s.min == 1 && s.max == 0x1p24);
    for (int i = 0; i < 50; i++) {
        update(&s, false, 0x1p-3);
        assert_true(fabs(s.scale - 0x1p19) < 1e-5 * 0x1p19);
    }
    assert_true(s.unskipped == 50 && s.last_overflow == -1);
}

/* Half of log2 g at -2, half at 2: mean 0 and deviation 2 at equal weights. */
static void the_scale_keeps_its_distance_in_deviations(void **state) {
    (void)state;
    struct cairn__scaler_state s = made(amp_scaler_options(.beta1 = 1 - 0x1p-40, .beta2 = 1 - 0x1p-40));
    for (int i = 0; i < 4000; i++) update(&s, false, i % 2 ? 4 : 0.25);
    assert_true(fabs(log2(s.scale) - (16 - 3.09 * 2)) < 1e-3);
}

static void an_overflow_lowers_the_scale_by_what_log_max_adds_to_the_means(void **state) {
    (void)state;
    struct cairn__scaler_state s = made(amp_scaler_options(.beta1 = 0.5, .beta2 = 0.5));
    update(&s, false, 1);
    assert_true(is_near(s.scale, 0x1p16));
    assert_int_equal(update(&s, true, 1), CAIRN__SCALER_REACHED_FLOOR); /* 1 is not looked at */
    assert_true(s.scale == 1 && s.unskipped == 0 && s.last_overflow == 1);
    /* x = 0 then 16 of weights 1/3 and 2/3: mean 32/3, deviation 16 sqrt(2)/3. */
    assert_true(is_near(s.x_hat / (1 - s.b1_correction), 32.0 / 3));
    s = made(amp_scaler_options(.beta1 = 0.5, .beta2 = 0.5, .overflow_std_dev = 0.5));
    update(&s, false, 1);
    assert_int_equal(update(&s, true, 1), CAIRN__SCALER_SHRANK);
    assert_true(is_near(s.scale, exp2(16 - 32.0 / 3 - 0.5 * 16 * sqrt(2) / 3)));
}

/* What the source's code does, and what it means: 65536 is so far from 16 that one overflow outlasts the means. */
static void an_overflow_as_the_source_feeds_it_keeps_the_floor_for_hundreds_of_steps(void **state) {
    (void)state;
    int at_floor[2] = {0};
    for (int power = 0; power < 2; power++) {
        struct cairn__scaler_state s = made(amp_scaler_options(.overflow_feeds_power = power ? CAIRN_ON : CAIRN_OFF));
        for (int i = 0; i < 100; i++) update(&s, false, 0x1p-3);
        update(&s, true, 0);
        for (int i = 0; i < 2000; i++) {
            update(&s, false, 0x1p-3);
            at_floor[power] += s.scale == 1;
        }
    }
    assert_int_equal(at_floor[0], 0);
    assert_true(at_floor[1] > 500);
}

static void gradients_of_zeros_leave_the_model_alone(void **state) {
    (void)state;
    struct cairn__scaler_state s = with_defaults();
    update(&s, false, 3);
    const struct cairn__scaler_state before = s;
    assert_int_equal(update(&s, false, 0), CAIRN__SCALER_KEPT);
    assert_true(s.scale == before.scale && s.x_hat == before.x_hat && s.b2_correction == before.b2_correction);
    assert_true(s.unskipped == 2 && s.updates == 2);
    assert_int_equal(update(&s, true, 0), CAIRN__SCALER_REACHED_FLOOR);
}

/* Of an overflow that this scaler's losses did not have: the step goes on, and the model knows. */
static void a_nonfinite_gradient_counts_as_log_max(void **state) {
    (void)state;
    struct cairn__scaler_state s = with_defaults(), found = with_defaults();
    update(&s, false, 1), update(&found, false, 1);
    assert_int_equal(update(&s, false, INFINITY), CAIRN__SCALER_MOVED);
    assert_int_equal(update(&found, true, 0x1p-100), CAIRN__SCALER_REACHED_FLOOR);
    assert_true(s.scale == found.scale && s.unskipped == 2 && found.unskipped == 0);
}

/* At the floor of 1 the scale cannot be the reason. */
static void an_overflow_at_the_floor_that_would_lower_the_scale_is_reported(void **state) {
    (void)state;
    struct cairn__scaler_state s = with_defaults();
    assert_int_equal(update(&s, true, 0), CAIRN__SCALER_KEPT); /* 2^(16 - 16): the floor itself */
    assert_true(s.scale == 1);
    s = made(amp_scaler_options(.overflow_feeds_power = CAIRN_ON));
    assert_int_equal(update(&s, true, 0), CAIRN__SCALER_AT_FLOOR);
    s = with_defaults();
    update(&s, false, 0x1p17);
    assert_true(s.scale == 1);
    assert_int_equal(update(&s, true, 0), CAIRN__SCALER_AT_FLOOR);
}

static void extreme_gradients_come_to_floor_and_ceiling(void **state) {
    (void)state;
    struct cairn__scaler_state s =
        made(amp_scaler_options(.min_scale = 0x1p-126, .max_scale = 0x1p126, .beta1 = 0x1p-60, .beta2 = 0x1p-60));
    update(&s, false, 0x1p-275); /* the smallest of f32 at the largest scale */
    assert_true(s.scale == 0x1p126);
    update(&s, false, 0x1p254);
    assert_true(s.scale == 0x1p-126);
}

/* ---- states ---- */

static void a_state_taken_after_every_step_goes_on_to_the_bit(void **state) {
    (void)state;
    struct dice d = {.seed = 77};
    struct cairn__scaler_state s = made(amp_scaler_options(.log_max = 15.5, .overflow_feeds_power = CAIRN_ON)),
                               other = s;
    double log = -10;
    for (int i = 0; i < 5000; i++) {
        bool found;
        struct amp_scaler_state saved;
        const double largest = next_largest(&d, &log, &found);
        if (log < -40 || log > 10) log = -10;
        update(&s, found, largest), update(&other, found, largest);
        assert_same_scaler(&s, &other);
        cairn__scaler_state_show(&other, &saved);
        assert_int_equal(cairn__scaler_state_take(&saved, "", &other), CAIRN_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logmax_follows_its_model_over_random_sequences),
        cmocka_unit_test(steady_gradients_are_scaled_to_the_largest_that_fits),
        cmocka_unit_test(the_scale_keeps_its_distance_in_deviations),
        cmocka_unit_test(an_overflow_lowers_the_scale_by_what_log_max_adds_to_the_means),
        cmocka_unit_test(an_overflow_as_the_source_feeds_it_keeps_the_floor_for_hundreds_of_steps),
        cmocka_unit_test(gradients_of_zeros_leave_the_model_alone),
        cmocka_unit_test(a_nonfinite_gradient_counts_as_log_max),
        cmocka_unit_test(an_overflow_at_the_floor_that_would_lower_the_scale_is_reported),
        cmocka_unit_test(extreme_gradients_come_to_floor_and_ceiling),
        cmocka_unit_test(a_state_taken_after_every_step_goes_on_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
