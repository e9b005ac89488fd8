/* The CPU's passes against its kernels, bit for bit: passes add types, lists of tensors and steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/cpu.h"
#include "core/half.h"
#include "device/device.h"

enum { MOST = 4097 };

static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
static const size_t sizes[] = {0, 1, 15, 1023, 1024, 1025, MOST};
enum { NUM_TYPES = 3, NUM_SIZES = sizeof(sizes) / sizeof(sizes[0]) };

static struct cairn_device *d;
static const struct cairn__kernels *k;

static int open_device(void **state) {
    (void)state;
    k = cairn__kernels_cpu(cairn__cpu_features());
    return cairn__device_open("cpu", 0, &d) == CAIRN_OK ? 0 : -1;
}

static int close_device(void **state) {
    (void)state;
    cairn__device_close(&d);
    return cairn__alloc_counters().alive == 0 ? 0 : -1;
}

/* n values as stored, and what they are in f32; the same numbers with the same seed. */
static void fill(void *stored, float *wide, cairn_dtype t, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        wide[i] = ldexpf((float)((int)(seed >> 16) % 4001 - 2000), (int)(seed >> 8) % 8 - 12);
    }
    k->cast[CAIRN_F32][t](stored, wide, n);
    k->cast[t][CAIRN_F32](wide, stored, n);
}

static void assert_rounded(const void *got, const float *want, cairn_dtype t, size_t n) {
    static uint32_t rounded[MOST];
    k->cast[CAIRN_F32][t](rounded, want, n);
    assert_memory_equal(got, rounded, n * cairn_dtype_nbytes(t));
}

/* ---- nn's ---- */

static uint32_t a[MOST], b[MOST], got[MOST]; /* of any type */
static float x[MOST], y[MOST], want[MOST];

static void check_elementwise(cairn_dtype t, size_t n) {
    fill(a, x, t, n, 1), fill(b, y, t, n, 2);
    d->passes->add(d, t, got, a, b, n);
    k->add(want, x, y, n);
    assert_rounded(got, want, t, n);
    d->passes->mul_scalar(d, t, got, a, n, 1.0f / 3);
    k->mul_scalar(want, x, n, 1.0f / 3);
    assert_rounded(got, want, t, n);
    d->passes->relu(d, t, got, a, n);
    k->relu(want, x, n);
    assert_rounded(got, want, t, n);
    d->passes->relu_backward(d, t, got, a, b, n);
    k->relu_backward(want, x, y, n);
    assert_rounded(got, want, t, n);
    d->passes->add(d, t, b, a, b, n); /* in place */
    k->add(want, x, y, n);
    assert_rounded(b, want, t, n);
    d->passes->relu(d, t, a, a, n);
    k->relu(want, x, n);
    assert_rounded(a, want, t, n);
}

static void elementwise_passes_round_the_f32_result(void **state) {
    (void)state;
    for (int t = 0; t < NUM_TYPES; t++) {
        for (int i = 0; i < NUM_SIZES; i++) check_elementwise(types[t], sizes[i]);
    }
}

static void check_sums(cairn_dtype t, size_t n) {
    const float divisor = 3, s = 2.0f / 7;
    float value, dy;
    fill(a, x, t, n, 3), fill(b, y, t, n, 4);
    d->passes->sum(d, t, got, a, n, divisor);
    value = (float)(k->sum[CAIRN_F32](x, n) / (double)divisor);
    assert_rounded(got, &value, t, 1);
    d->passes->mse(d, t, got, a, b, n);
    value = (float)(k->mse_sum[CAIRN_F32](x, y, n) / (double)n);
    if (n > 0) assert_rounded(got, &value, t, 1);

    uint32_t stored_dy;
    fill(&stored_dy, &dy, t, 1, 5);
    d->passes->spread(d, t, got, n, &stored_dy, divisor);
    k->fill[CAIRN_F32](want, n, dy / divisor);
    assert_rounded(got, want, t, n);
    k->mse_backward(want, x, y, n, s * dy);
    for (int to = 0; to < NUM_TYPES; to++) {
        if (t != CAIRN_F32 && types[to] != t) continue;
        d->passes->mse_backward(d, t, types[to], got, a, b, n, s, &stored_dy);
        assert_rounded(got, want, types[to], n);
    }
}

static void sums_keep_their_order_in_every_type(void **state) {
    (void)state;
    for (int t = 0; t < NUM_TYPES; t++) {
        for (int i = 0; i < NUM_SIZES; i++) check_sums(types[t], sizes[i]);
        static const size_t shapes[][2] = {{64, 16}, {1, 1}, {0, 5}, {17, 241}};
        for (int i = 0; i < 4; i++) {
            const size_t rows = shapes[i][0], cols = shapes[i][1];
            fill(a, x, types[t], rows * cols, 6);
            d->passes->col_sum(d, types[t], got, a, rows, cols);
            k->col_sum[CAIRN_F32](want, x, rows, cols);
            assert_rounded(got, want, types[t], cols);
        }
    }
}

static void random_halves_are_the_f32_ones_rounded(void **state) {
    (void)state;
    enum { N = 1003 };
    for (int t = 0; t < NUM_TYPES; t++) {
        d->passes->normal(d, CAIRN_F32, want, N, 7, 9 << 16);
        d->passes->normal(d, types[t], got, N, 7, 9 << 16);
        assert_rounded(got, want, types[t], N);
        d->passes->uniform(d, CAIRN_F32, want, N, 0.125f, 7, 9 << 16);
        d->passes->uniform(d, types[t], got, N, 0.125f, 7, 9 << 16);
        assert_rounded(got, want, types[t], N);
    }
}

/* Nothing is read: the scratch for so many cannot be. */
static void out_of_memory_is_reported_by_check_once(void **state) {
    (void)state;
    d->passes->col_sum(d, CAIRN_F16, got, a, 0, SIZE_MAX / 4);
    assert_int_equal(cairn__device_check(d), CAIRN_ENOMEM);
    assert_non_null(strstr(cairn_last_error(), "memory"));
    assert_int_equal(cairn__device_check(d), CAIRN_OK);
}

/* ---- lists ---- */

static void flags_are_raised_for_each_tensor_and_for_all(void **state) {
    (void)state;
    const float fine[] = {1, 2}, big[] = {1e30f, 3}, factor = 1e10f;
    float out[4];
    uint32_t found = 0, each[3] = {0};
    const struct cairn__item items[] = {{.n = 2, .dst = out, .x = fine, .y = fine, .found = &each[0]},
                                        {.n = 0, .found = &each[1]},
                                        {.n = 2, .dst = out + 2, .x = big, .y = fine, .found = &each[2]}};
    d->passes->scale(d, items, 3, CAIRN_F32, CAIRN_F32, NULL, &found);
    assert_memory_equal(out + 2, big, sizeof(big));
    d->passes->check(d, items, 3, CAIRN_F32, &found);
    assert_int_equal(found | each[0] | each[1] | each[2], 0);
    d->passes->scale(d, items, 3, CAIRN_F32, CAIRN_F32, &factor, &found);
    assert_true(found == 1 && each[0] == 0 && each[1] == 0 && each[2] == 1);
    found = each[2] = 0;
    d->passes->axpby(d, items, 3, CAIRN_F32, CAIRN_F32, &factor, 2.0f, &found);
    assert_true(out[1] == 2e10f + 4 && found == 1 && each[0] == 0 && each[2] == 1);
    d->passes->axpby(d, items, 3, CAIRN_F32, CAIRN_F32, NULL, 1.0f, NULL);
    assert_true(out[0] == 2 && out[3] == 5 && each[0] == 0);
}

static void norm_is_over_the_whole_list(void **state) {
    (void)state;
    const float one[] = {1, 2}, two[] = {2, 4}, factor = 2;
    const struct cairn__item items[] = {{.n = 2, .x = one}, {.n = 0}, {.n = 2, .x = two}};
    double norm = 0, each[3];
    d->passes->l2norm(d, items, 3, CAIRN_F32, &factor, &norm, each, NULL);
    assert_true(norm == 10 && each[0] == sqrt(20) && each[1] == 0 && each[2] == sqrt(80));
    d->passes->l2norm(d, items, 3, CAIRN_F32, NULL, &norm, NULL, NULL);
    assert_true(norm == 5);
}

static void clamp_and_census_take_lists(void **state) {
    (void)state;
    const float values[] = {-3, NAN, 2, 0x1p-130f, 0, INFINITY}, clamped[] = {-2, 0, 2, 0x1p-130f, 0, 2};
    float out[6];
    const struct cairn__item items[] = {{.n = 5, .dst = out, .x = values},
                                        {.n = 0},
                                        {.n = 1, .dst = out + 5, .x = values + 5}};
    d->passes->clamp(d, items, 3, 2);
    for (int i = 0; i < 6; i++) assert_true(i == 1 ? isnan(out[i]) : out[i] == clamped[i]);
    struct cairn__census c[3];
    d->passes->census(d, items, 3, CAIRN_F32, 0x1p-14f, c);
    assert_true(c[0].zeros == 1 && c[0].subnormals == 1 && c[0].nans == 1 && c[0].infs == 0);
    assert_true(c[0].max_exponent == 1 && c[0].min_exponent == -130 && c[0].largest == 3);
    assert_true(c[1].zeros == 0 && c[1].max_exponent == 0 && c[1].min_exponent == 0 && c[1].largest == 0);
    assert_true(c[2].infs == 1 && c[2].max_exponent == 0 && c[2].largest == 0);
}

static void exponents_are_counted_for_each_item(void **state) {
    (void)state;
    const float values[] = {-3, NAN, 2, 0x1p-149f, 0, INFINITY};
    const double wide[] = {0x1p-150, -0x1p128, 0x1p-1074, INFINITY};
    const struct cairn__item items[] = {{.n = 5, .x = values}, {.n = 0}, {.n = 1, .x = values + 5}};
    const struct cairn__item of_f64 = {.n = 4, .x = wide};
    struct cairn__exponent_counts c[3];
    memset(c, 0xff, sizeof(c)); /* overwritten, not added to */
    d->passes->count_exponents(d, items, 3, CAIRN_F32, c);
    struct cairn__exponent_counts counted = {.zeros = 1, .nans = 1, .binades = {[0] = 1, [1 + 149] = 2}};
    assert_memory_equal(&c[0], &counted, sizeof(counted));
    counted = (struct cairn__exponent_counts){0};
    assert_memory_equal(&c[1], &counted, sizeof(counted));
    counted.infs = 1;
    assert_memory_equal(&c[2], &counted, sizeof(counted));
    d->passes->count_exponents(d, &of_f64, 1, CAIRN_F64, c);
    counted.below = 2, counted.above = 1;
    assert_memory_equal(&c[0], &counted, sizeof(counted));
}

/* ---- a step ---- */

static void updates_are_the_kernels_with_the_steps_scalars(void **state) {
    (void)state;
    const struct cairn__optim_rule sgd = {.kind = CAIRN__OPTIM_SGD,
                                          .sgd = {.has_momentum = true, .weight_decay = 0.01}};
    const struct cairn__optim_rule adam = {.kind = CAIRN__OPTIM_ADAM,
                                           .maximizes = true,
                                           .adam = {.beta2 = 0.999, .eps = 1e-8, .decoupled = true}};
    const struct cairn__optim_state s = {.clip = 0.75f, .steps = 5}, skipping = {.clip = 1, .steps = 5, .skip = 1};
    const struct cairn__rates rates = {.lr = 0.1, .momentum = 0.9};
    const int64_t missed = 2;
    const float grad[] = {8, -16, 3}, factor = 0.125f;
    float w[3] = {1, 2, 3}, m[3] = {4, 5, 6}, v[3] = {7, 8, 9}, w2[3], m2[3], v2[3];
    const struct cairn__optim_item item = {
        .n = 3, .weights = w, .state = {m, v}, .grad = grad, .factor = &factor, .missed = &missed};
    memcpy(w2, w, sizeof(w)), memcpy(m2, m, sizeof(m)), memcpy(v2, v, sizeof(v));
    d->passes->update(d, &item, 1, CAIRN_F32, CAIRN__W_F32, &sgd, &rates, &skipping);
    d->passes->update(d, &item, 1, CAIRN_F32, CAIRN__W_F32, &adam, &rates, &skipping);
    assert_memory_equal(w, w2, sizeof(w)); /* left out */

    d->passes->update(d, &item, 1, CAIRN_F32, CAIRN__W_F32, &sgd, &rates, &s);
    float *const state2[CAIRN__MAX_STATES] = {m2, v2};
    const union cairn__update of_sgd = {.sgd = cairn__sgd_scalars(&sgd.sgd, &rates, 4, factor * 0.75f)};
    k->update[CAIRN__OPTIM_SGD][CAIRN_F32][CAIRN__W_F32](w2, NULL, state2, grad, 3, &of_sgd);
    d->passes->update(d, &item, 1, CAIRN_F32, CAIRN__W_F32, &adam, &rates, &s);
    const union cairn__update of_adam = {.adam = cairn__adam_scalars(&adam.adam, &rates, 4, factor * -0.75f)};
    k->update[CAIRN__OPTIM_ADAM][CAIRN_F32][CAIRN__W_F32](w2, NULL, state2, grad, 3, &of_adam);
    assert_memory_equal(w, w2, sizeof(w));
    assert_memory_equal(m, m2, sizeof(m));
    assert_memory_equal(v, v2, sizeof(v));
}

/* An update of MOST weights of bf16 from w, by the pass; and by the kernels it is made of, in one piece. */
struct rounded_update {
    uint16_t weights[MOST], expected[MOST];
    float momentum[MOST], second[MOST], expected_momentum[MOST], expected_second[MOST];
};

static void begin_update(struct rounded_update *u, struct cairn__optim_item *item, const void *grad,
                         const int64_t *missed) {
    fill(u->weights, x, CAIRN_BF16, MOST, 8); /* x: widened */
    fill(u->momentum, u->expected_momentum, CAIRN_F32, MOST, 9);
    for (size_t i = 0; i < MOST; i++) u->second[i] = u->expected_second[i] = (float)i;
    *item = (struct cairn__optim_item){.n = MOST,
                                       .weights = u->weights,
                                       .parameter = 5,
                                       .state = {u->momentum, u->second},
                                       .grad = grad,
                                       .missed = missed};
}

static void end_update(struct rounded_update *u, uint64_t seed, int64_t update) {
    k->round_stochastic(u->expected, x, MOST, seed, cairn__rounding_stream(5, update), 0);
    assert_memory_equal(u->weights, u->expected, sizeof(u->weights));
    assert_memory_equal(u->momentum, u->expected_momentum, sizeof(u->momentum));
    assert_memory_equal(u->second, u->expected_second, sizeof(u->second));
}

static void randomly_rounded_weights_are_those_of_f32_rounded(void **state) {
    (void)state;
    static struct rounded_update u;
    const struct cairn__optim_rule sgd = {.kind = CAIRN__OPTIM_SGD,
                                          .sgd = {.has_momentum = true, .weight_decay = 0.01}};
    const struct cairn__optim_rule adam = {.kind = CAIRN__OPTIM_ADAM,
                                           .adam = {.beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1}};
    const struct cairn__optim_state s = {.clip = 0.5f, .steps = 5, .rounding_seed = 99};
    const struct cairn__rates rates = {.lr = 0.1, .momentum = 0.9};
    const int64_t missed = 2;
    float *const expected[CAIRN__MAX_STATES] = {u.expected_momentum, u.expected_second};
    struct cairn__optim_item item;
    for (int t = 0; t < NUM_TYPES; t++) {
        fill(a, y, types[t], MOST, 7);
        begin_update(&u, &item, a, &missed);
        d->passes->update(d, &item, 1, types[t], CAIRN__W_BF16_STOCHASTIC, &sgd, &rates, &s);
        const union cairn__update of_sgd = cairn__update_of(&sgd, &rates, 4, 0.5f, NULL, NULL);
        k->update[CAIRN__OPTIM_SGD][types[t]][CAIRN__W_F32](x, NULL, expected, a, MOST, &of_sgd);
        end_update(&u, 99, 4);
        begin_update(&u, &item, a, &missed);
        d->passes->update(d, &item, 1, types[t], CAIRN__W_BF16_STOCHASTIC, &adam, &rates, &s);
        const union cairn__update of_adam = cairn__update_of(&adam, &rates, 4, 0.5f, NULL, NULL);
        k->update[CAIRN__OPTIM_ADAM][types[t]][CAIRN__W_F32](x, NULL, expected, a, MOST, &of_adam);
        end_update(&u, 99, 4);
    }
}

/* A thousand updates of 2^-10, an eighth of the unit in the last place of weights that begin at 1. To nearest none of
 * them moves a weight. At random each moves the mean by 2^-10: of 4096 weights it strays by less than six times
 * sqrt(1000) * 2^-9 / sqrt(4096), since a rounding's deviation is at most half a unit, 2^-9 below 1. */
static void small_updates_move_randomly_rounded_weights_in_the_mean(void **state) {
    (void)state;
    enum { N = 4096, UPDATES = 1000 };
    static uint16_t random[N], nearest[N];
    const struct cairn__optim_rule rule = {.kind = CAIRN__OPTIM_SGD};
    struct cairn__optim_state s = {.clip = 1, .rounding_seed = 12345};
    const struct cairn__rates rates = {.lr = 0x1p-10};
    const int64_t missed = 0;
    struct cairn__optim_item items[2] = {{.n = N, .weights = random, .parameter = 1, .grad = want, .missed = &missed},
                                         {.n = N, .weights = nearest, .grad = want, .missed = &missed}};
    k->fill[CAIRN_BF16](random, N, 1), k->fill[CAIRN_BF16](nearest, N, 1), k->fill[CAIRN_F32](want, N, 1);
    for (s.steps = 0; s.steps < UPDATES; s.steps++) {
        d->passes->update(d, &items[0], 1, CAIRN_F32, CAIRN__W_BF16_STOCHASTIC, &rule, &rates, &s);
        d->passes->update(d, &items[1], 1, CAIRN_F32, CAIRN__W_BF16, &rule, &rates, &s);
    }
    double mean = 0;
    for (int i = 0; i < N; i++) {
        mean += (double)cairn__bf16_to_f32(random[i]) / N;
        assert_int_equal(nearest[i], 0x3f80);
    }
    assert_true(fabs(mean - (1 - UPDATES * 0x1p-10)) < 6 * sqrt(UPDATES) * 0x1p-9 / sqrt(N));
}

/* Norms beside which the 1e-6 of the definition vanishes. */
static void clipping_scales_the_steps_factor(void **state) {
    (void)state;
    const double norms[] = {0x1.8p40, 0, 0x1p41};
    struct cairn__optim_state s = {.clip = 1};
    double total = 0;
    d->passes->clip(d, norms, 3, 0x1.4p30, &s, &total);
    assert_true(total == 0x1.4p41 && s.clip == 0x1p-11f);
    d->passes->clip(d, norms, 3, 0x1.4p29, &s, &total);
    assert_true(total == 0x1.4p30 && s.clip == 0x1p-12f); /* once more, what is clipped already */
    d->passes->clip(d, norms, 3, 0x1p50, &s, &total);
    assert_true(total == 0x1.4p29 && s.clip == 0x1p-12f); /* nothing to clip */
    const double small[] = {8};
    s.clip = 1;
    d->passes->clip(d, small, 1, 1, &s, &total);
    assert_true(total == 8 && s.clip == (float)(1 / (8 + 1e-6)));
}

static void clipping_leaves_overflows_to_the_step(void **state) {
    (void)state;
    const double wrong[][2] = {{INFINITY, 1}, {1, NAN}};
    for (int i = 0; i < 2; i++) {
        struct cairn__optim_state s = {.clip = 0.25f};
        double total = 0;
        d->passes->clip(d, wrong[i], 2, 1, &s, &total);
        assert_true(total == (double)INFINITY && s.clip == 0.25f && s.skip == 0);
    }
}

static void flags_are_taken_with_the_first_micro_batch_of_an_overflow(void **state) {
    (void)state;
    const uint16_t halves[] = {0x7c00, 0x7e00, 0x3c00, 0xfc00};
    const float wide[] = {1, NAN};
    uint32_t flags[3] = {1, 0, 1}, any = 0;
    struct cairn__overflow to[3] = {{0}};
    const struct cairn__taken items[] = {
        {.n = 4, .x = halves, .dtype = CAIRN_F16, .rank = 1, .flag = &flags[0], .to = &to[0]},
        {.n = 2, .x = wide, .dtype = CAIRN_F32, .rank = 1, .flag = &flags[1], .to = &to[1]},
        {.n = 9, .x = NULL, .dtype = CAIRN_F32, .rank = -1, .flag = &flags[2], .to = &to[2]}};
    d->passes->take_flags(d, items, 3, 2, (uint32_t *[]){&any}, 1);
    assert_true(any == 1 && flags[0] == 0 && flags[2] == 0);
    assert_true(to[0].micro_batch == 2 && to[0].infs == 2 && to[0].nans == 1 && to[0].rank == 1);
    assert_true(to[1].micro_batch == 0 && to[1].nans == 0);
    assert_true(to[2].micro_batch == 2 && to[2].infs == 0 && to[2].rank == -1);
    any = 0;
    d->passes->take_flags(d, items, 3, 3, (uint32_t *[]){&any}, 1);
    assert_int_equal(any, 0);
    flags[0] = flags[1] = 1;
    d->passes->take_flags(d, items, 3, 4, (uint32_t *[]){&any}, 1);
    assert_true(any == 1 && to[0].micro_batch == 2 && to[0].infs == 2 && to[1].micro_batch == 4 && to[1].nans == 1);

    uint32_t skips[2] = {0};
    d->passes->share_flag(d, &any, (uint32_t *[]){&skips[0], &skips[1]}, 2);
    assert_true(skips[0] == 1 && skips[1] == 1 && any == 0);
    d->passes->share_flag(d, &any, (uint32_t *[]){&skips[0], &skips[1]}, 2);
    assert_true(skips[0] == 1 && skips[1] == 1);
}

static void scaler_reports_each_update(void **state) {
    (void)state;
    struct cairn__scaler_state scaler = {.rule = CAIRN__SCALER_STATIC, .scale = 8, .last_overflow = -1, .found = 1};
    struct cairn__scaler_report reports[CAIRN__REPORTS] = {{0}};
    d->passes->scaler_update(d, &scaler, reports);
    assert_true(reports[1].number == 1 && reports[1].found == 1 && reports[1].scale == 8);
    assert_true(scaler.found == 0 && scaler.last_found == 1 && scaler.last_overflow == 0);
    d->passes->scaler_update(d, &scaler, reports);
    assert_true(reports[2].number == 2 && reports[2].found == 0 && scaler.last_found == 0);
}

static void step_leaves_a_report_with_its_names(void **state) {
    (void)state;
    enum { COUNT = 2 };
    struct cairn__optim_state s = {.clip = 0.5f};
    struct cairn__step_report reports[CAIRN__REPORTS] = {{0}};
    struct cairn__overflow names[CAIRN__REPORTS * COUNT] = {{0}}, overflows[COUNT] = {{0}};
    const struct cairn__step_end end = {
        .optim = &s, .overflows = overflows, .count = COUNT, .reports = reports, .names = names};
    d->passes->step_end(d, &end);
    assert_true(reports[1].number == 1 && reports[1].stepped == 1 && reports[1].steps == 1 && s.clip == 1);
    s.skip = 1;
    overflows[1] = (struct cairn__overflow){.micro_batch = 3, .infs = 5, .nans = 7, .rank = 1};
    int64_t missed = 0;
    d->passes->count_up(d, &missed, &s);
    assert_int_equal(missed, 0);
    d->passes->step_end(d, &end);
    assert_true(reports[2].number == 2 && reports[2].stepped == 0 && reports[2].skipped == 1 && s.skip == 0);
    const struct cairn__overflow *noted = &names[2 * COUNT];
    assert_true(noted[0].micro_batch == 0 && noted[1].micro_batch == 3 && noted[1].infs == 5 && noted[1].nans == 7);
    assert_true(overflows[1].micro_batch == 0 && overflows[1].infs == 0);
    d->passes->count_up(d, &missed, &s);
    assert_int_equal(missed, 1);
}

static void scaled_loss_leaves_scale_and_factor(void **state) {
    (void)state;
    const struct cairn__scaler_state scaler = {.scale = 3, .rule = CAIRN__SCALER_STATIC};
    struct cairn__loss_scale cell;
    float loss = 5;
    d->passes->scale_loss(d, &loss, &loss, &scaler, &cell, NULL);
    assert_true(loss == 15 && cell.scale == 3 && cell.factor == (float)(1.0 / 3));
    const float value = 4;
    d->passes->store(d, &loss, &value, sizeof(value));
    assert_true(loss == 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementwise_passes_round_the_f32_result),
        cmocka_unit_test(sums_keep_their_order_in_every_type),
        cmocka_unit_test(random_halves_are_the_f32_ones_rounded),
        cmocka_unit_test(out_of_memory_is_reported_by_check_once),
        cmocka_unit_test(flags_are_raised_for_each_tensor_and_for_all),
        cmocka_unit_test(norm_is_over_the_whole_list),
        cmocka_unit_test(clamp_and_census_take_lists),
        cmocka_unit_test(exponents_are_counted_for_each_item),
        cmocka_unit_test(updates_are_the_kernels_with_the_steps_scalars),
        cmocka_unit_test(randomly_rounded_weights_are_those_of_f32_rounded),
        cmocka_unit_test(small_updates_move_randomly_rounded_weights_in_the_mean),
        cmocka_unit_test(clipping_scales_the_steps_factor),
        cmocka_unit_test(clipping_leaves_overflows_to_the_step),
        cmocka_unit_test(flags_are_taken_with_the_first_micro_batch_of_an_overflow),
        cmocka_unit_test(scaler_reports_each_update),
        cmocka_unit_test(step_leaves_a_report_with_its_names),
        cmocka_unit_test(scaled_loss_leaves_scale_and_factor),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
