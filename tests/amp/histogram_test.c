/* The rule that bounds the share of saturating gradients, against a model that is given the gradients themselves: it
 * sorts a step's elements and asks how many are too large: over 1000 random sequences, 250 with CAIRN_TEST_SHORT in
 * the environment. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../check.h"
#include "core/philox.h"
#include "scaler_fields.h"

enum { ELEMENTS = 200, STEPS = 60 };

/* ---- the model ---- */

struct model {
    double scale, min, max, growth, backoff, share, top;
    int interval, good;
};

static int descending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* g: magnitudes, the largest first. Whether more than the share of those above 0 is at or above the top at scale. */
static bool is_too_many(const struct model *m, const double *g, double scale) {
    int above_0 = 0, too_large = 0;
    while (above_0 < ELEMENTS && g[above_0] > 0) above_0++;
    while (too_large < above_0 && g[too_large] * scale >= m->top) too_large++;
    return too_large > m->share * above_0;
}

static void model_step(struct model *m, bool found, double *g) {
    qsort(g, ELEMENTS, sizeof(g[0]), descending);
    if (found || is_too_many(m, g, m->scale)) {
        m->good = 0;
        if (m->scale > m->min) m->scale = fmax(m->min, m->scale * m->backoff);
    } else if (g[0] > 0) {
        m->good = is_too_many(m, g, m->scale * m->growth) ? 0 : m->good + 1;
        if (m->good < m->interval) return;
        m->good = 0;
        m->scale = fmin(m->max, m->scale * m->growth);
    }
}

/* ---- the library's side ---- */

static struct cairn__scaler_report reports[CAIRN__REPORTS];

static double share_from(const double *g, double least) {
    int above_0 = 0, too_large = 0;
    for (int i = 0; i < ELEMENTS; i++) above_0 += g[i] > 0, too_large += g[i] >= least;
    return above_0 ? (double)too_large / above_0 : -1;
}

static int update(struct cairn__scaler_state *s, bool found, double share, double share_if_grown) {
    s->found = found;
    s->saturating = share;
    s->saturating_if_grown = share_if_grown;
    cairn__scaler_update_scalars(s, reports);
    assert_true(s->saturating == -1 && s->saturating_if_grown == -1);
    return s->verdict;
}

static struct cairn__scaler_state made(const struct amp_scaler_options *options) {
    struct cairn__scaler_state s;
    struct amp_scaler_options o = *options;
    o.struct_size = sizeof(o);
    o.kind = AMP_SCALER_HISTOGRAM;
    assert_int_equal(cairn__scaler_resolve(&o, 0, &s), CAIRN_OK);
    return s;
}

/* ---- both ---- */

struct dice {
    uint64_t seed, drawn;
};

static double draw(struct dice *d) {
    const struct cairn__philox_block block = cairn__philox(d->seed, d->drawn / 4, 3);
    return block.word[d->drawn++ % 4] * 0x1p-32;
}

/* Magnitudes over many binades, some of them 0, some infinite; now and then all 0. */
static void draw_gradients(struct dice *d, double size, double *g) {
    const bool empty = draw(d) < 0.04;
    for (int i = 0; i < ELEMENTS; i++) {
        const double what = draw(d);
        g[i] = empty || what < 0.2 ? 0
               : what < 0.201      ? INFINITY
                                   : ldexp(1 + draw(d), (int)(size - 24 * draw(d) * draw(d)));
    }
}

static void follow(uint64_t seed) {
    struct dice d = {.seed = seed};
    struct model m = {.scale = 0x1p16,
                      .min = 1,
                      .max = 0x1p24,
                      .growth = 2,
                      .backoff = 0.5,
                      .share = 1e-4,
                      .top = 0x1p15,
                      .interval = 100};
    struct amp_scaler_options o = {.growth_interval = 0};
    double size = draw(&d) * 20 - 12, g[ELEMENTS];
    if (draw(&d) < 0.9) {
        o.saturation_share = m.share = 0.001 + 0.1 * draw(&d);
        o.saturation_log = floor(draw(&d) * 20) - 4;
        if (o.saturation_log == 0) o.saturation_log = 1;
        m.top = exp2(o.saturation_log);
        o.growth_interval = m.interval = 1 + (int)(draw(&d) * 6);
        o.growth_factor = m.growth = draw(&d) < 0.5 ? 4 : 1.5;
        o.backoff_factor = m.backoff = draw(&d) < 0.5 ? 0.25 : 0.7;
        o.min_scale = m.min = 0x1p-10;
    }
    struct cairn__scaler_state s = made(&o);
    for (int i = 0; i < STEPS; i++) {
        const bool found = draw(&d) < 0.03;
        size += draw(&d) - 0.5;
        draw_gradients(&d, size, g);
        update(&s, found, share_from(g, m.top / s.scale), share_from(g, m.top / (s.scale * s.growth)));
        model_step(&m, found, g);
        if (s.scale != m.scale || s.unskipped != m.good)
            fail_msg("sequence %d, step %d: scale %.17g, %d clean steps; the model has %.17g, %d", (int)seed, i,
                     s.scale, (int)s.unskipped, m.scale, m.good);
    }
}

static void histogram_follows_its_model_over_random_sequences(void **state) {
    (void)state;
    const uint64_t sequences = check_is_short() ? 250 : 1000;
    for (uint64_t seed = 0; seed < sequences; seed++) follow(seed);
}

/* ---- numbers ---- */

static void saturation_lowers_the_scale_without_an_overflow(void **state) {
    (void)state;
    struct cairn__scaler_state s = made(amp_scaler_options(.growth_interval = 2));
    assert_int_equal(update(&s, false, 2e-4, 1), CAIRN__SCALER_MOVED);
    assert_true(s.scale == 0x1p15 && s.last_overflow == -1);
    assert_int_equal(update(&s, false, 1e-4, 2e-4), CAIRN__SCALER_KEPT); /* the bound itself is kept */
    assert_int_equal(update(&s, true, 0, 0), CAIRN__SCALER_SHRANK);
    assert_true(s.scale == 0x1p14 && s.last_overflow == 2);
}

static void the_scale_grows_only_where_the_bound_would_hold_at_the_grown_one(void **state) {
    (void)state;
    struct cairn__scaler_state s = made(amp_scaler_options(.growth_interval = 2));
    update(&s, false, 0, 0);
    assert_int_equal(update(&s, false, 0, 2e-4), CAIRN__SCALER_KEPT); /* begins anew */
    update(&s, false, 0, 1e-4);
    assert_true(s.scale == 0x1p16 && s.unskipped == 1);
    assert_int_equal(update(&s, false, -1, -1), CAIRN__SCALER_KEPT); /* nothing but 0: counts in neither */
    assert_int_equal(update(&s, false, 0, 0), CAIRN__SCALER_MOVED);
    assert_true(s.scale == 0x1p17);
}

static void saturation_at_the_floor_is_no_error_and_an_overflow_is(void **state) {
    (void)state;
    struct cairn__scaler_state s = made(amp_scaler_options(.init_scale = 1));
    assert_int_equal(update(&s, false, 1, 1), CAIRN__SCALER_KEPT);
    assert_true(s.scale == 1);
    assert_int_equal(update(&s, true, 1, 1), CAIRN__SCALER_AT_FLOOR);
}

static void a_state_taken_after_every_step_goes_on_to_the_bit(void **state) {
    (void)state;
    struct dice d = {.seed = 5};
    struct cairn__scaler_state s = made(amp_scaler_options(.growth_interval = 3, .saturation_share = 0.3)), other = s;
    for (int i = 0; i < 2000; i++) {
        struct amp_scaler_state saved;
        const double share = draw(&d), grown = share + draw(&d) * (1 - share);
        const bool found = draw(&d) < 0.1;
        update(&s, found, share, grown), update(&other, found, share, grown);
        assert_same_scaler(&s, &other);
        cairn__scaler_state_show(&other, &saved);
        assert_int_equal(cairn__scaler_state_take(&saved, "", &other), CAIRN_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(histogram_follows_its_model_over_random_sequences),
        cmocka_unit_test(saturation_lowers_the_scale_without_an_overflow),
        cmocka_unit_test(the_scale_grows_only_where_the_bound_would_hold_at_the_grown_one),
        cmocka_unit_test(saturation_at_the_floor_is_no_error_and_an_overflow_is),
        cmocka_unit_test(a_state_taken_after_every_step_goes_on_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
