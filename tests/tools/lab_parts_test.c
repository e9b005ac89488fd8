/* The building blocks of cairn-lab's experiments: sums against closed forms, reductions of exact numbers, planted and
 * bounded gradients, and repeatability. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../check.h"
#include "core/half.h"
#include "tools/lab/allreduce_forms.h"
#include "tools/lab/reduce_error.h"
#include "tools/lab/rounded_sum.h"
#include "tools/lab/trainer.h"
#include "tools/lab/waves.h"

/* ---- sums ---- */

static const struct lab_sum f16 = {.dtype = CAIRN_F16, .rounding = LAB_NEAREST};
static const struct lab_sum bf16 = {.dtype = CAIRN_BF16, .rounding = LAB_NEAREST};

static void half_sums_stop_where_a_term_is_below_half_a_unit(void **state) {
    (void)state;
    assert_true(lab_sum_equal(f16, 0, 1, 2047) == 2047);
    assert_true(lab_sum_equal(f16, 0, 1, 5000) == 2048);
    assert_true(lab_sum_equal(f16, 0, 0.1f, 20000) == 256);
    assert_true(lab_sum_equal(bf16, 1, 0.001f, 1000) == 1);
    assert_true(lab_sum_equal((struct lab_sum){.dtype = CAIRN_F32}, 0, 1, 5000) == 5000);
}

static void stochastic_rounding_keeps_the_mean_and_repeats(void **state) {
    (void)state;
    const struct lab_sum at_random = {.dtype = CAIRN_BF16, .rounding = LAB_STOCHASTIC, .seed = 3};
    const size_t runs = 1024;
    const struct lab_moments m = lab_sum_moments(at_random, 1, 0.001f, 1000, runs);
    assert_true(fabs(m.mean - 2) < 4 * 0.084 / sqrt((double)runs));
    assert_true(m.deviation > 0.07 && m.deviation < 0.1); /* 0.084, of 1024 runs */
    const struct lab_moments again = lab_sum_moments(at_random, 1, 0.001f, 1000, runs);
    assert_true(m.mean == again.mean && m.deviation == again.deviation);
}

/* ---- reductions ---- */

static void one_rank_has_no_error(void **state) {
    (void)state;
    struct lab_reduce_error e[LAB_REDUCTIONS];
    OK(lab_reduce_errors(CAIRN_F16, 1, 64, 1, e));
    for (int k = 0; k < LAB_REDUCTIONS; k++) assert_true(e[k].relative == 0 && e[k].wrong == 0);
}

static void two_ranks_round_once_in_any_order(void **state) {
    (void)state;
    struct lab_reduce_error e[LAB_REDUCTIONS];
    OK(lab_reduce_errors(CAIRN_BF16, 2, 256, 1, e));
    assert_true(e[LAB_RANK_ORDER].relative > 0);
    for (int k = 0; k < LAB_REDUCTIONS; k++) {
        assert_true(e[k].relative == e[LAB_RANK_ORDER].relative);
        assert_true(e[k].wrong == 0); /* a sum of two in f32, rounded once, is the nearest */
    }
}

static void rank_order_in_f32_is_f32s_chain_and_halves_round_once(void **state) {
    (void)state;
    struct lab_reduce_error e[LAB_REDUCTIONS];
    OK(lab_reduce_errors(CAIRN_F32, 37, 256, 1, e));
    assert_true(e[LAB_RANK_ORDER].relative == e[LAB_REDUCE_BROADCAST].relative);
    OK(lab_reduce_errors(CAIRN_F16, 37, 256, 1, e));
    assert_true(e[LAB_RANK_ORDER].relative <= 0x1p-11); /* half a unit in the last place, relatively */
    assert_true(e[LAB_TREE].relative > e[LAB_RANK_ORDER].relative);
    assert_true(e[LAB_RING].relative > e[LAB_TREE].relative);
}

static void growth_is_that_of_the_partial_sums_variances(void **state) {
    (void)state;
    assert_true(lab_reduce_growth(LAB_RING, CAIRN_F16, 4) == (2 + 3 + 4) / 4.0);
    assert_true(lab_reduce_growth(LAB_TREE, CAIRN_F16, 8) == 3);
    assert_true(lab_reduce_growth(LAB_TREE, CAIRN_F16, 3) == (2 + 3) / 3.0);
    assert_true(lab_reduce_growth(LAB_RANK_ORDER, CAIRN_F16, 8) == 1);
    assert_true(lab_reduce_growth(LAB_RANK_ORDER, CAIRN_F32, 4) == (2 + 3 + 4) / 4.0);
}

static void ranks_out_of_range_are_refused(void **state) {
    (void)state;
    struct lab_reduce_error e[LAB_REDUCTIONS];
    REFUSED(lab_reduce_errors(CAIRN_F16, 0, 4, 1, e), CAIRN_EINVAL, "0 simulated ranks; there are 1 to 1024");
    REFUSED(lab_reduce_errors(CAIRN_F16, 1025, 4, 1, e), CAIRN_EINVAL, "1025 simulated ranks");
}

/* ---- forms of an all-reduce, over threads ---- */

enum { MOST = 12 };

/* Element i of rank r is i + 100 r. */
static cairn_status sum_by_all(cairn_env *env, size_t n, bool *right) {
    cairn_group *group = cairn_env_group(env);
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    cairn_status st = CAIRN_OK;
    for (int form = 0; form < LAB_FORMS && st == CAIRN_OK; form++) {
        float x[MOST], room[MOST];
        for (size_t i = 0; i < MOST; i++) x[i] = (float)i + 100 * (float)rank;
        st = lab_allreduce_by((enum lab_form_of_allreduce)form, group, x, room, n);
        for (size_t i = 0; i < MOST; i++) {
            const float sum = (float)p * (float)i + 50 * (float)(p * (p - 1));
            *right = *right && x[i] == (i < n ? sum : (float)i + 100 * (float)rank);
        }
    }
    return st;
}

struct sums {
    size_t n;
    cairn_status status[3];
    bool right[3];
};

static int sum_on(int rank, void *ctx) {
    struct sums *sums = ctx;
    cairn_env *env = NULL;
    if (cairn_env_create(NULL, NULL, NULL, &env) != CAIRN_OK) return 1;
    sums->right[rank] = true;
    sums->status[rank] = sum_by_all(env, sums->n, &sums->right[rank]);
    cairn_env_destroy(&env);
    return 0;
}

static void every_form_sums_exactly_and_writes_nothing_past_the_end(void **state) {
    (void)state;
    for (int p = 1; p <= 3; p++) {
        for (size_t n = 0; n <= 6; n += 6) {
            struct sums sums = {.n = n};
            OK(cairn_spawn_threads(sum_on, &sums, p, NULL));
            for (int r = 0; r < p; r++) assert_true(sums.status[r] == CAIRN_OK && sums.right[r]);
        }
    }
}

static void form_refuses_elements_that_ranks_do_not_divide(void **state) {
    (void)state;
    struct sums sums = {.n = 5};
    OK(cairn_spawn_threads(sum_on, &sums, 2, NULL));
    for (int r = 0; r < 2; r++) assert_int_equal(sums.status[r], CAIRN_EINVAL);
}

/* ---- pictures ---- */

static void waves_repeat_by_seed_and_have_all_classes(void **state) {
    (void)state;
    float a[LAB_PIXELS], b[LAB_PIXELS];
    int64_t class, again;
    unsigned seen = 0;
    for (uint64_t i = 0; i < 200; i++) {
        lab_wave(5, i, a, &class);
        lab_wave(5, i, b, &again);
        assert_int_equal(class, again);
        assert_memory_equal(a, b, sizeof(a));
        assert_in_range(class, 0, LAB_CLASSES - 1);
        seen |= 1u << class;
    }
    assert_int_equal(seen, (1u << LAB_CLASSES) - 1);
    lab_wave(6, 199, b, &again);
    assert_memory_not_equal(a, b, sizeof(a));
}

/* ---- trainings ---- */

static cairn_status begin(enum lab_model model, const struct amp_scaler_options *scaler, uint64_t seed,
                          struct lab_trainer *t) {
    const struct amp_options amp = {.struct_size = sizeof(amp),
                                    .opt_level = AMP_O2,
                                    .half_type = CAIRN_F16,
                                    .scaler = scaler};
    return lab_trainer_begin(&(struct lab_training){.model = model, .seed = seed, .watched = true, .amp = &amp}, t);
}

static void cliff_is_the_largest_scale_below_65520(void **state) {
    (void)state;
    assert_int_equal(lab_cliff(65519), 0);
    assert_int_equal(lab_cliff(65520), -1);
    assert_int_equal(lab_cliff(65520.0 / 8), 2); /* 8 times it is 65520 itself */
    assert_int_equal(lab_cliff(1), 15);
    assert_int_equal(lab_cliff(0x1p-10), 25);
}

static void greatest_is_of_f16_alone_and_sees_infinities(void **state) {
    (void)state;
    struct lab_greatest g = {0};
    float wide[] = {1e9f};
    uint16_t half[] = {cairn__f32_to_f16(-3), cairn__f32_to_f16(2), 0x8001}, infinite[] = {0, 0xfc00};
    lab_look_for_greatest(&g, "x", true, CAIRN_F32, wide, 1);
    lab_look_for_greatest(&g, "x", true, CAIRN_BF16, half, 3);
    assert_true(g.f16 == 0);
    lab_look_for_greatest(&g, "x", false, CAIRN_F16, half, 3);
    assert_true(g.f16 == 3);
    lab_look_for_greatest(&g, "x", false, CAIRN_F16, infinite, 2);
    assert_true(isinf(g.f16));
}

/* Of every model that has watched places: at the cliff the step is taken, one above it is not. */
static void first_step_overflows_exactly_above_the_predicted_cliff(void **state) {
    (void)state;
    static const enum lab_model models[] = {LAB_MLP, LAB_CONV, LAB_ENCODER};
    for (int m = 0; m < 3; m++) {
        double greatest;
        struct lab_trainer t;
        struct amp_scaler_options scale = lab_static_scale(1);
        check_as(lab_model_name(models[m]));
        OK(begin(models[m], &scale, 2, &t));
        OK(lab_trainer_take_batch(&t, 0));
        OK(lab_trainer_greatest(&t, 1, 256, &greatest));
        lab_trainer_end(&t);
        for (int above = 0; above < 2; above++) {
            scale = lab_static_scale(ldexp(1, lab_cliff(greatest) + above));
            OK(begin(models[m], &scale, 2, &t));
            OK(lab_trainer_take_batch(&t, 0));
            OK(lab_trainer_step(&t, 1));
            if (t.skipped != (above == 1)) fail_msg("%s%d above the cliff", check_who, above);
            lab_trainer_end(&t);
        }
    }
    check_as("");
}

/* A look at gradients on the way changes nothing of the training: bits of the loss. */
static void trainings_repeat_by_seed_also_when_looked_at(void **state) {
    (void)state;
    double loss[3];
    for (int i = 0; i < 3; i++) {
        struct lab_trainer t;
        double greatest;
        OK(begin(LAB_ENCODER, NULL, i == 2 ? 8 : 7, &t));
        for (uint64_t step = 0; step < 5; step++) {
            OK(lab_trainer_take_batch(&t, step));
            if (i == 1) OK(lab_trainer_greatest(&t, 1, 64, &greatest));
            OK(lab_trainer_step(&t, 1));
        }
        loss[i] = t.loss;
        lab_trainer_end(&t);
    }
    assert_true(loss[0] == loss[1]);
    assert_true(loss[0] != loss[2]);
}

/* Under a scale of 2^-20 next to all is below f16; under one near the cliff next to nothing. */
static void lost_gradients_are_those_that_a_scale_would_have_kept(void **state) {
    (void)state;
    const struct amp_options o0 = {.struct_size = sizeof(o0), .opt_level = AMP_O0};
    struct lab_trainer twin;
    double share[2];
    OK(lab_trainer_begin(&(struct lab_training){.model = LAB_MLP, .seed = 4, .amp = &o0}, &twin));
    for (int i = 0; i < 2; i++) {
        const struct amp_scaler_options scale = lab_static_scale(i ? 0x1p12 : 0x1p-20);
        struct lab_trainer t;
        struct lab_lost lost;
        OK(begin(LAB_MLP, &scale, 4, &t));
        OK(lab_trainer_lost(&t, &twin, 0, 1, &lost));
        assert_true(lost.of > 1000);
        share[i] = (double)lost.lost / (double)lost.of;
        lab_trainer_end(&t);
    }
    lab_trainer_end(&twin);
    assert_true(share[0] > 0.95);
    assert_true(share[1] < 0.01);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_sums_stop_where_a_term_is_below_half_a_unit),
        cmocka_unit_test(stochastic_rounding_keeps_the_mean_and_repeats),
        cmocka_unit_test(one_rank_has_no_error),
        cmocka_unit_test(two_ranks_round_once_in_any_order),
        cmocka_unit_test(rank_order_in_f32_is_f32s_chain_and_halves_round_once),
        cmocka_unit_test(growth_is_that_of_the_partial_sums_variances),
        cmocka_unit_test(ranks_out_of_range_are_refused),
        cmocka_unit_test(every_form_sums_exactly_and_writes_nothing_past_the_end),
        cmocka_unit_test(form_refuses_elements_that_ranks_do_not_divide),
        cmocka_unit_test(waves_repeat_by_seed_and_have_all_classes),
        cmocka_unit_test(cliff_is_the_largest_scale_below_65520),
        cmocka_unit_test(greatest_is_of_f16_alone_and_sees_infinities),
        cmocka_unit_test(first_step_overflows_exactly_above_the_predicted_cliff),
        cmocka_unit_test(trainings_repeat_by_seed_also_when_looked_at),
        cmocka_unit_test(lost_gradients_are_those_that_a_scale_would_have_kept),
    };
    lab_hide_warnings();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
