/* The rule for the scales of a chain of layers, against a model that only computes exponents. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/philox.h"
#include "layer_rule.h"

enum { MOST = 12 };

static const struct cairn__layer_rule defaults = {.q = 0.0012533145,
                                                  .headroom = 16,
                                                  .max_layer_scale = 16,
                                                  .max_scale = 1024};

/* ---- the model: exponents of two, counted down from a bound until it is kept ---- */

static int exponent_of(double x) {
    return ilogb(x);
}

static bool fits(const struct cairn__layer_rule *rule, const struct cairn__layer_gradient *g, long double unscaled,
                 int above, int mine) {
    return unscaled * ldexpl(1, above + mine) * rule->headroom <= g->most;
}

/* Whether at 2^k less than the bound of a normal gradient underflows, were it one more. */
static bool is_enough(const struct cairn__layer_rule *rule, const struct cairn__layer_gradient *g,
                      long double deviation, int above, int mine) {
    return rule->q * deviation * ldexpl(1, above + mine + 1) > g->least;
}

static int clamp(int least, int x, int most) {
    return x < least ? least : x > most ? most : x;
}

static void model_next(const struct cairn__layer_rule *rule, const struct cairn__layer_gradient *g, int *k, int count) {
    const int layer = exponent_of(rule->max_layer_scale), all = exponent_of(rule->max_scale);
    int was = 0, above = 0, nonfinite_above = 0;
    for (int i = count - 1; i >= 1; i--) {
        int mine = k[i];
        was += k[i];
        const bool is_sized = !g[i].nonfinite && g[i].count;
        if (g[i].nonfinite && !nonfinite_above++) mine--;
        if (!g[i].nonfinite && !g[i].count && g[i].least > 0) mine++;
        if (is_sized) {
            const long double down = ldexpl(1, -was);
            const long double deviation = sqrtl((long double)g[i].squares / g[i].count) * down;
            mine = 0;
            while (mine < 2 * layer && !is_enough(rule, &g[i], deviation, above, mine)) mine++;
            while (mine > -2 * layer - 40 && !fits(rule, &g[i], g[i].largest * down, above, mine)) mine--;
        }
        mine = clamp(-layer, mine, layer);
        mine = clamp(-all - above, mine, all - above);
        above += k[i] = mine;
    }
    k[0] = 0;
}

/* ---- both ---- */

struct dice {
    uint64_t seed, drawn;
};

static double draw(struct dice *d) {
    const struct cairn__philox_block block = cairn__philox(d->seed, d->drawn / 4, 9);
    return block.word[d->drawn++ % 4] * 0x1p-32;
}

static struct cairn__layer_gradient random_gradient(struct dice *d, cairn_dtype type) {
    struct cairn__layer_gradient g = {.count = 1 + (int64_t)(draw(d) * 1000)};
    const double what = draw(d), deviation = ldexp(1 + draw(d), (int)(draw(d) * 44) - 30);
    cairn__layer_range(type, &g.least, &g.most);
    g.squares = deviation * deviation * (double)g.count;
    g.largest = deviation * (1 + draw(d) * 20);
    if (what < 0.06) g.nonfinite = 3, g.squares = 0;
    if (what >= 0.06 && what < 0.12) g.count = 0, g.squares = g.largest = 0;
    if (what >= 0.12 && what < 0.16) g = (struct cairn__layer_gradient){.count = 0};
    return g;
}

static void follow(uint64_t seed) {
    struct dice d = {.seed = seed};
    struct cairn__layer_rule rule = defaults;
    struct cairn__layer_gradient g[MOST];
    const int count = 1 + (int)(draw(&d) * MOST);
    double a[MOST];
    int k[MOST] = {0};
    if (draw(&d) < 0.5) {
        rule.q = cairn__normal_quantile(0.0001 + 0.3 * draw(&d));
        rule.headroom = 1 + 100 * draw(&d);
        rule.max_layer_scale = ldexp(1, (int)(draw(&d) * 12));
        rule.max_scale = ldexp(1, (int)(draw(&d) * 20));
    }
    for (int i = 0; i < count; i++) a[i] = 1;
    for (int step = 0; step < 40; step++) {
        for (int i = 0; i < count; i++) g[i] = random_gradient(&d, CAIRN_F16);
        model_next(&rule, g, k, count);
        cairn__layer_scales_next(&rule, g, a, (size_t)count);
        for (int i = 0; i < count; i++) {
            if (a[i] != ldexp(1, k[i]))
                fail_msg("sequence %d, step %d, child %d of %d: %g, the model has 2^%d", (int)seed, step, i, count,
                         a[i], k[i]);
        }
    }
}

static void the_rule_follows_its_model_over_1000_random_sequences(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 1000; seed++) follow(seed);
}

/* ---- numbers ---- */

static void a_range_goes_from_the_smallest_subnormal_to_the_largest(void **state) {
    (void)state;
    static const struct {
        cairn_dtype type;
        double least, most;
    } ranges[] = {{CAIRN_F32, 0x1p-149, 0x1.fffffep127},
                  {CAIRN_F16, 0x1p-24, 65504},
                  {CAIRN_BF16, 0x1p-133, 0x1.fep127}};
    for (int i = 0; i < 3; i++) {
        double least, most;
        cairn__layer_range(ranges[i].type, &least, &most);
        assert_true(least == ranges[i].least && most == ranges[i].most);
    }
}

static struct cairn__layer_gradient gradient(cairn_dtype type, double deviation, double largest) {
    struct cairn__layer_gradient g = {.squares = deviation * deviation * 100, .largest = largest, .count = 100};
    cairn__layer_range(type, &g.least, &g.most);
    return g;
}

/* Of a normal z the share 0.001 is below 0.00125331 in magnitude: the density at 0 is 1 / sqrt(2 pi). */
static void the_quantile_is_that_of_a_normal_magnitude(void **state) {
    (void)state;
    assert_true(fabs(cairn__normal_quantile(1e-3) - 0.00125331) < 1e-8);
    assert_true(fabs(cairn__normal_quantile(0.6826894921370859) - 1) < 1e-12);
    assert_true(fabs(cairn__normal_quantile(0.9973002039367398) - 3) < 1e-12);
}

/* 2^-24 / (q 2^-20) is 49.8: 16 and then 2 are the powers of two of the two scales below. */
static void a_small_gradient_is_raised_until_its_share_underflows(void **state) {
    (void)state;
    double a[] = {1, 1, 1};
    const struct cairn__layer_gradient g[] = {{.count = 0},
                                              gradient(CAIRN_F16, 0x1p-20, 0x1p-18),
                                              gradient(CAIRN_F16, 0x1p-20, 0x1p-18)};
    cairn__layer_scales_next(&defaults, g, a, 3);
    assert_true(a[2] == 16 && a[1] == 2 && a[0] == 1);
}

static void a_scale_that_is_in_the_gradient_is_taken_out_of_it(void **state) {
    (void)state;
    double a[] = {1, 16};
    const struct cairn__layer_gradient g[] = {{.count = 0}, gradient(CAIRN_F16, 0x1p-16, 0x1p-14)};
    cairn__layer_scales_next(&defaults, g, a, 2);
    assert_true(a[1] == 16);
}

static void a_large_gradient_keeps_its_headroom(void **state) {
    (void)state;
    double a[] = {1, 1};
    struct cairn__layer_gradient g[] = {{.count = 0}, gradient(CAIRN_F16, 0x1p-20, 1024)};
    cairn__layer_scales_next(&defaults, g, a, 2); /* 65504 / 16 / 1024 is just below 4 */
    assert_true(a[1] == 2);
    a[1] = 1;
    g[1].largest = 32768;
    cairn__layer_scales_next(&defaults, g, a, 2);
    assert_true(a[1] == 0.0625);
}

static void wide_types_need_no_scale(void **state) {
    (void)state;
    const cairn_dtype wide[] = {CAIRN_F32, CAIRN_BF16};
    for (int t = 0; t < 2; t++) {
        double a[] = {1, 4};
        const struct cairn__layer_gradient g[] = {{.count = 0}, gradient(wide[t], 1e-25, 1e-20)};
        cairn__layer_scales_next(&defaults, g, a, 2);
        assert_true(a[1] == 1);
    }
}

static void the_child_nearest_to_the_loss_is_blamed_for_an_overflow(void **state) {
    (void)state;
    double a[] = {1, 4, 8, 2};
    struct cairn__layer_gradient g[4];
    for (int i = 0; i < 4; i++) g[i] = gradient(CAIRN_F16, 0x1p-9, 1);
    g[1].nonfinite = g[2].nonfinite = 1;
    cairn__layer_scales_next(&defaults, g, a, 4);
    assert_true(a[3] == 1 && a[2] == 4 && a[1] == 4);
}

static void all_zero_gradients_double_the_scale_up_to_its_bounds(void **state) {
    (void)state;
    double a[] = {1, 1, 1, 1};
    struct cairn__layer_gradient g[4];
    for (int i = 0; i < 4; i++) g[i] = gradient(CAIRN_F16, 0, 0), g[i].count = 0;
    for (int i = 0; i < 20; i++) cairn__layer_scales_next(&defaults, g, a, 4);
    assert_true(a[3] == 16 && a[2] == 16 && a[1] == 4);
}

static void nothing_is_known_before_a_backward(void **state) {
    (void)state;
    double a[] = {1, 2, 4};
    const struct cairn__layer_gradient none[3] = {{.count = 0}};
    cairn__layer_scales_next(&defaults, none, a, 3);
    assert_true(a[1] == 2 && a[2] == 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_range_goes_from_the_smallest_subnormal_to_the_largest),
        cmocka_unit_test(the_rule_follows_its_model_over_1000_random_sequences),
        cmocka_unit_test(the_quantile_is_that_of_a_normal_magnitude),
        cmocka_unit_test(a_small_gradient_is_raised_until_its_share_underflows),
        cmocka_unit_test(a_scale_that_is_in_the_gradient_is_taken_out_of_it),
        cmocka_unit_test(a_large_gradient_keeps_its_headroom),
        cmocka_unit_test(wide_types_need_no_scale),
        cmocka_unit_test(the_child_nearest_to_the_loss_is_blamed_for_an_overflow),
        cmocka_unit_test(all_zero_gradients_double_the_scale_up_to_its_bounds),
        cmocka_unit_test(nothing_is_known_before_a_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
