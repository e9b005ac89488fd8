/* The rules of loss scalers against models that follow the original sources line by line, plus a floor and a ceiling:
 * over every short sequence, and over long random ones. With CAIRN_TEST_SHORT in the environment sequences have half of
 * the floors and ceilings, and 320 000 random steps instead of a million. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <math.h>

#include "../check.h"
#include "core/philox.h"
#include "scaler.h"

/* ---- models ---- */

struct model {
    amp_scaler_kind kind;
    double scale, min, max, growth, backoff;
    int64_t window, tracker;
    int64_t iter, last_overflow_iter;
    int delayed_shift, hysteresis;
    bool consecutive;
    bool shrank; /* the source's way went through "lower the scale" */
};

static double larger(double a, double b) {
    return a > b ? a : b;
}

static double smaller(double a, double b) {
    return a < b ? a : b;
}

static void model_static(struct model *m, bool found) {
    m->tracker = found ? 0 : m->tracker + 1;
}

/* apex/amp/scaler.py, LossScaler.update_scale */
static void model_apex(struct model *m, bool found) {
    if (found) {
        m->shrank = true;
        m->scale = larger(m->min, m->scale * m->backoff);
        m->tracker = 0;
    } else {
        m->tracker += 1;
    }
    if (m->tracker == m->window) {
        m->scale = smaller(m->max, m->scale * m->growth);
        m->tracker = 0;
    }
}

/* aten/src/ATen/native/cuda/AmpKernels.cu, amp_update_scale_cuda_kernel: the scale is a float, factors are doubles. */
static void model_torch(struct model *m, bool found) {
    if (found) {
        m->shrank = true;
        m->scale = larger((float)((float)m->scale * m->backoff), m->min);
        m->tracker = 0;
        return;
    }
    const int64_t successful = m->tracker + 1;
    m->tracker = successful;
    if (successful != m->window) return;
    const float new_scale = (float)((float)m->scale * m->growth);
    if (isfinite(new_scale)) m->scale = smaller(new_scale, m->max);
    m->tracker = 0;
}

/* deepspeed/runtime/fp16/loss_scaler.py, DynamicLossScaler.update_scale */
static void model_deepspeed(struct model *m, bool overflow) {
    if (overflow) {
        if (m->delayed_shift == 1 || m->hysteresis == 1) {
            m->shrank = true;
            m->scale = larger(m->scale * m->backoff, m->min);
        } else {
            m->hysteresis -= 1;
        }
        m->last_overflow_iter = m->iter;
    } else {
        if (m->consecutive) m->hysteresis = m->delayed_shift;
        const int64_t stable_interval = (m->iter - m->last_overflow_iter) - 1;
        if (stable_interval > 0 && stable_interval % m->window == 0) {
            if (!m->consecutive) m->hysteresis = m->delayed_shift;
            m->scale = smaller(m->scale * m->growth, m->max);
            m->tracker = -1;
        }
    }
    m->tracker = overflow ? 0 : m->tracker + 1; /* ours alone: the source counts by iter */
    m->iter += 1;
}

/* megatron/core/optimizer/grad_scaler.py, DynamicGradScaler.update: the scale is a float tensor, factors become
 * floats. */
static void model_megatron(struct model *m, bool found_inf) {
    if (found_inf) {
        m->tracker = 0;
        m->hysteresis -= 1;
        if (m->hysteresis <= 0) {
            m->shrank = true;
            m->scale = larger((float)m->scale * (float)m->backoff, m->min);
        }
        return;
    }
    m->tracker += 1;
    if (m->tracker != m->window) return;
    m->tracker = 0;
    m->hysteresis = m->delayed_shift;
    m->scale = smaller((float)m->scale * (float)m->growth, m->max);
}

static void (*const models[])(struct model *m, bool found) = {
    [AMP_SCALER_STATIC] = model_static,       [AMP_SCALER_APEX] = model_apex,         [AMP_SCALER_TORCH] = model_torch,
    [AMP_SCALER_DEEPSPEED] = model_deepspeed, [AMP_SCALER_MEGATRON] = model_megatron,
};

/* With what its source begins: deepspeed/runtime/precision_config.py, megatron/core/optimizer/optimizer_config.py. */
static struct model model_of(amp_scaler_kind kind) {
    static const double scales[] = {0, 1, 0x1p16, 0x1p16, 0x1p16, 0x1p32};
    const bool hysteretic = kind == AMP_SCALER_DEEPSPEED || kind == AMP_SCALER_MEGATRON;
    return (struct model){.kind = kind,
                          .scale = scales[kind],
                          .min = 1,
                          .max = kind == AMP_SCALER_APEX ? 0x1p24 : 0x1p126,
                          .growth = 2,
                          .backoff = 0.5,
                          .window = hysteretic ? 1000 : 2000,
                          .last_overflow_iter = -1,
                          .delayed_shift = hysteretic ? 2 : 1,
                          .hysteresis = hysteretic ? 2 : 1};
}

/* ---- the library's side ---- */

static struct cairn__scaler_report reports[CAIRN__REPORTS];

static struct cairn__scaler_state scaler_like(const struct model *m) {
    return (struct cairn__scaler_state){.rule = (int32_t)m->kind,
                                        .scale = m->scale,
                                        .min = m->min,
                                        .max = m->max,
                                        .growth = m->growth,
                                        .backoff = m->backoff,
                                        .window = m->window,
                                        .hysteresis = m->delayed_shift,
                                        .hysteresis_left = m->hysteresis,
                                        .consecutive = m->consecutive,
                                        .last_overflow = -1};
}

static int update(struct cairn__scaler_state *s, bool found) {
    s->found = found;
    cairn__scaler_update_scalars(s, reports);
    return s->verdict;
}

static struct cairn__scaler_state with_defaults(amp_scaler_kind kind) {
    struct cairn__scaler_state s;
    assert_int_equal(cairn__scaler_resolve(amp_scaler_options(.kind = kind), 0, &s), CAIRN_OK);
    return s;
}

/* ---- both ---- */

static int verdict_of(const struct model *m, double before) {
    if (m->scale > before) return CAIRN__SCALER_MOVED;
    if (!m->shrank) return CAIRN__SCALER_KEPT;
    if (before == m->min) return CAIRN__SCALER_AT_FLOOR;
    return m->scale == m->min ? CAIRN__SCALER_REACHED_FLOOR : CAIRN__SCALER_SHRANK;
}

static void step_both(struct cairn__scaler_state *s, struct model *m, bool found) {
    const double before = m->scale;
    const int64_t number = s->updates;
    m->shrank = false;
    models[m->kind](m, found);
    const int verdict = update(s, found);
    const struct cairn__scaler_report *r = &reports[(uint64_t)s->updates % CAIRN__REPORTS];
    const int left = m->hysteresis < 0 ? 0 : m->hysteresis;
    if (s->scale != m->scale || s->unskipped != m->tracker || s->hysteresis_left != left ||
        verdict != verdict_of(m, before)) {
        fail_msg(
            "kind %d, update %d: scale %.17g, tracker %d, hysteresis %d, verdict %d; the model has %.17g, %d, %d, %d",
            (int)m->kind, (int)number, s->scale, (int)s->unskipped, s->hysteresis_left, verdict, m->scale,
            (int)m->tracker, left, verdict_of(m, before));
    }
    assert_true(s->scale >= m->min && s->scale <= m->max);
    assert_true(s->updates == number + 1 && !s->found && s->last_found == found);
    assert_true(!found || s->last_overflow == number);
    assert_true(r->scale == s->scale && r->unskipped == s->unskipped && r->found == found && r->verdict == verdict);
}

static void follow_every_sequence(const struct model *fresh) {
    for (int sequence = 0; sequence < 1 << 12; sequence++) {
        struct model m = *fresh;
        struct cairn__scaler_state s = scaler_like(&m);
        for (int i = 0; i < 12; i++) step_both(&s, &m, sequence >> i & 1);
    }
}

/* All over hysteresis, and what is in reach. */
static void follow_with_window(struct model fresh, int window) {
    static const double reach[][3] = {/* floor, scale, ceiling */ {2, 8, 32},
                                      {8, 8, 8},
                                      {3, 8, 100},
                                      {0x1p-20, 8, 0x1p20}};
    fresh.window = window;
    for (int hysteresis = 1; hysteresis <= 3; hysteresis++) {
        for (int r = check_is_short() ? hysteresis % 2 : 0; r < 4; r += check_is_short() ? 2 : 1) {
            fresh.min = reach[r][0], fresh.scale = reach[r][1], fresh.max = reach[r][2];
            fresh.delayed_shift = fresh.hysteresis = hysteresis;
            follow_every_sequence(&fresh);
        }
    }
}

static void follow_every_window(amp_scaler_kind kind, bool consecutive) {
    struct model fresh = model_of(kind);
    fresh.consecutive = consecutive;
    for (int window = 1; window <= 3; window++) follow_with_window(fresh, window);
}

static void every_kind_follows_its_source_over_every_sequence_of_twelve(void **state) {
    (void)state;
    for (int kind = AMP_SCALER_STATIC; kind <= AMP_SCALER_MEGATRON; kind++) {
        follow_every_window((amp_scaler_kind)kind, false);
    }
    follow_every_window(AMP_SCALER_DEEPSPEED, true);
}

/* Calm and stormy weather in turn, so that floor and ceiling are reached. Of 2^32. */
static bool overflows(uint64_t seed, uint64_t step) {
    static const uint32_t chance[] = {1u << 20, 1u << 31, 0, 1u << 24, 0, 1u << 22, UINT32_MAX, 1u << 20};
    const struct cairn__philox_block block = cairn__philox(seed, step / 4, 0);
    return block.word[step % 4] < chance[step / 20000 % 8];
}

/* Two rounds of the weather in short. */
static void follow_many_steps(struct model m, struct cairn__scaler_state s) {
    int64_t met[CAIRN__SCALER_AT_FLOOR + 1] = {0};
    const int steps = check_is_short() ? 320000 : 1000000;
    for (uint64_t i = 0; i < (uint64_t)steps; i++) {
        step_both(&s, &m, overflows(42 + (uint64_t)m.kind, i));
        met[s.verdict]++;
    }
    for (int v = 0; m.kind != AMP_SCALER_STATIC && v <= CAIRN__SCALER_AT_FLOOR; v++) assert_true(met[v] > 0);
    assert_int_equal(s.updates, steps);
}

static void every_kind_follows_its_source_with_defaults_over_many_random_steps(void **state) {
    (void)state;
    for (int kind = AMP_SCALER_STATIC; kind <= AMP_SCALER_MEGATRON; kind++) {
        struct model m = model_of((amp_scaler_kind)kind);
        if (kind == AMP_SCALER_STATIC) m.min = 0x1p-126;
        follow_many_steps(m, with_defaults((amp_scaler_kind)kind));
    }
}

/* Roundings of f32 and of f64 differ here. */
static void every_kind_follows_its_source_with_factors_that_are_no_powers_of_two(void **state) {
    (void)state;
    for (int kind = AMP_SCALER_APEX; kind <= AMP_SCALER_MEGATRON; kind++) {
        struct model m = model_of((amp_scaler_kind)kind);
        m.growth = 1.1, m.backoff = 0.3, m.window = 7, m.consecutive = true, m.delayed_shift = m.hysteresis = 3;
        if (kind == AMP_SCALER_MEGATRON) m.consecutive = false;
        follow_many_steps(m, scaler_like(&m));
    }
}

static void every_kind_continues_alike_from_a_saved_state(void **state) {
    (void)state;
    for (int kind = AMP_SCALER_STATIC; kind <= AMP_SCALER_MEGATRON; kind++) {
        struct model m = model_of((amp_scaler_kind)kind);
        m.window = 5, m.delayed_shift = m.hysteresis = 3, m.min = 0x1p-3, m.max = 0x1p40;
        struct cairn__scaler_state s = scaler_like(&m);
        for (uint64_t i = 0; i < 200000; i++) {
            struct amp_scaler_state saved;
            step_both(&s, &m, overflows(7, i));
            if (i % 3) continue;
            cairn__scaler_state_show(&s, &saved);
            assert_int_equal(cairn__scaler_state_take(&saved, "", &s), CAIRN_OK);
        }
    }
}

/* ---- numbers ---- */

static void run_updates(struct cairn__scaler_state *s, int count, bool found) {
    for (int i = 0; i < count; i++) update(s, found);
}

static void apex_doubles_every_2000_clean_steps_up_to_2_to_the_24(void **state) {
    (void)state;
    struct cairn__scaler_state s = with_defaults(AMP_SCALER_APEX);
    run_updates(&s, 1999, false);
    assert_true(s.scale == 65536 && s.unskipped == 1999);
    assert_int_equal(update(&s, false), CAIRN__SCALER_MOVED);
    assert_true(s.scale == 131072 && s.unskipped == 0);
    run_updates(&s, 14000, false);
    assert_true(s.scale == 0x1p24 && s.unskipped == 0);
    run_updates(&s, 1999, false);
    assert_int_equal(update(&s, false), CAIRN__SCALER_KEPT);
    assert_true(s.scale == 0x1p24 && s.unskipped == 0);
}

static void apex_stops_at_its_floor_and_begins_within_floor_and_ceiling(void **state) {
    (void)state;
    struct cairn__scaler_state s;
    assert_int_equal(cairn__scaler_resolve(amp_scaler_options(.min_scale = 0x1p15), 3, &s), CAIRN_OK);
    assert_int_equal(s.id, 3);
    assert_int_equal(update(&s, true), CAIRN__SCALER_REACHED_FLOOR);
    assert_int_equal(update(&s, true), CAIRN__SCALER_AT_FLOOR);
    assert_int_equal(update(&s, true), CAIRN__SCALER_AT_FLOOR);
    assert_true(s.scale == 32768);
    assert_int_equal(cairn__scaler_resolve(amp_scaler_options(.max_scale = 0x1p10), 0, &s), CAIRN_OK);
    assert_true(s.scale == 1024);
    assert_int_equal(cairn__scaler_resolve(amp_scaler_options(.min_scale = 0x1p17), 0, &s), CAIRN_OK);
    assert_true(s.scale == 131072);
}

/* apex's own goes from 65536 up to 131072 here. */
static void an_overflow_never_raises_the_scale(void **state) {
    (void)state;
    for (int kind = AMP_SCALER_APEX; kind <= AMP_SCALER_MEGATRON; kind++) {
        struct cairn__scaler_state s = with_defaults((amp_scaler_kind)kind);
        s.scale = 0x1p16, s.min = 0x1p17, s.hysteresis_left = 1;
        assert_int_equal(update(&s, true), CAIRN__SCALER_AT_FLOOR);
        assert_true(s.scale == 0x1p16);
    }
}

static void deepspeed_grows_first_at_1001_clean_steps_and_gives_up_at_the_18th_overflow(void **state) {
    (void)state;
    struct cairn__scaler_state s = with_defaults(AMP_SCALER_DEEPSPEED);
    run_updates(&s, 1000, false);
    assert_true(s.scale == 0x1p16);
    assert_int_equal(update(&s, false), CAIRN__SCALER_MOVED);
    assert_true(s.scale == 0x1p17);
    s = with_defaults(AMP_SCALER_DEEPSPEED);
    assert_int_equal(update(&s, true), CAIRN__SCALER_KEPT);
    run_updates(&s, 15, true);
    assert_true(s.scale == 2);
    assert_int_equal(update(&s, true), CAIRN__SCALER_REACHED_FLOOR);
    assert_int_equal(update(&s, true), CAIRN__SCALER_AT_FLOOR);
}

static void an_overflow_absorbed_by_hysteresis_is_no_error_at_the_floor(void **state) {
    (void)state;
    for (int kind = AMP_SCALER_DEEPSPEED; kind <= AMP_SCALER_MEGATRON; kind++) {
        struct cairn__scaler_state s = with_defaults((amp_scaler_kind)kind);
        s.scale = s.min;
        assert_int_equal(update(&s, true), CAIRN__SCALER_KEPT);
        assert_int_equal(update(&s, true), CAIRN__SCALER_AT_FLOOR);
    }
}

static void torch_keeps_a_scale_that_would_be_infinite_and_others_take_the_ceiling(void **state) {
    (void)state;
    for (int kind = AMP_SCALER_APEX; kind <= AMP_SCALER_MEGATRON; kind++) {
        const bool is_torch = kind == AMP_SCALER_TORCH;
        struct cairn__scaler_state s = with_defaults((amp_scaler_kind)kind);
        s.scale = 0x1p110, s.max = 0x1p126, s.growth = 0x1p20, s.window = 1;
        run_updates(&s, 1, false);
        assert_int_equal(update(&s, false), is_torch                       ? CAIRN__SCALER_KEPT
                                            : kind == AMP_SCALER_DEEPSPEED ? CAIRN__SCALER_MOVED
                                                                           : CAIRN__SCALER_KEPT);
        assert_true(s.scale == (is_torch ? 0x1p110 : 0x1p126));
        s.growth = 2, s.scale = 0x1p126; /* grows to what is a finite f32, above the ceiling */
        assert_int_equal(update(&s, false), CAIRN__SCALER_KEPT);
        assert_true(s.scale == 0x1p126);
        assert_true(cairn__loss_scale_of(&s).factor == 0x1p-126f);
    }
}

static void static_and_user_set_scales_are_not_changed(void **state) {
    (void)state;
    struct cairn__scaler_state s = with_defaults(AMP_SCALER_STATIC);
    run_updates(&s, 3000, false);
    assert_true(s.scale == 1 && s.unskipped == 3000);
    assert_int_equal(update(&s, true), CAIRN__SCALER_KEPT);
    assert_true(s.scale == 1 && s.unskipped == 0);
    s.rule = CAIRN__SCALER_USER, s.scale = 7, s.unskipped = 5, s.hysteresis_left = 4;
    assert_int_equal(update(&s, true), CAIRN__SCALER_KEPT);
    assert_true(s.scale == 7 && s.unskipped == 5 && s.hysteresis_left == 4);
    assert_int_equal(s.updates, 3002);
    assert_int_equal(s.last_overflow, 3001);
}

/* ---- states that no source would come to ---- */

static void a_tracker_beyond_a_window_that_was_lowered_grows_at_once(void **state) {
    (void)state;
    static const amp_scaler_kind trackers[] = {AMP_SCALER_APEX, AMP_SCALER_TORCH, AMP_SCALER_MEGATRON};
    for (int i = 0; i < 3; i++) {
        struct cairn__scaler_state s = with_defaults(trackers[i]);
        run_updates(&s, 900, false);
        s.window = 10;
        assert_int_equal(update(&s, false), CAIRN__SCALER_MOVED);
        run_updates(&s, 9, false);
        assert_int_equal(update(&s, false), CAIRN__SCALER_MOVED);
    }
}

/* By multiples of the window, whatever it is. */
static void deepspeed_grows_within_a_window_after_it_was_lowered(void **state) {
    (void)state;
    struct cairn__scaler_state s = with_defaults(AMP_SCALER_DEEPSPEED);
    run_updates(&s, 905, false);
    s.window = 10;
    run_updates(&s, 10, false);
    assert_true(s.scale == 0x1p17);
}

static void odd_hysteresis_is_used_up_too(void **state) {
    (void)state;
    for (int kind = AMP_SCALER_DEEPSPEED; kind <= AMP_SCALER_MEGATRON; kind++) {
        for (int left = -3; left <= 9; left++) {
            struct cairn__scaler_state s = with_defaults((amp_scaler_kind)kind);
            s.hysteresis_left = left;
            const double before = s.scale;
            run_updates(&s, left < 1 ? 1 : left, true);
            assert_true(s.scale == before / 2);
        }
    }
}

static void deepspeed_without_delayed_shift_lowers_at_once(void **state) {
    (void)state;
    struct cairn__scaler_state s = with_defaults(AMP_SCALER_DEEPSPEED);
    s.hysteresis = 1, s.hysteresis_left = 5;
    assert_int_equal(update(&s, true), CAIRN__SCALER_SHRANK);
}

static void torchs_and_megatrons_scales_are_f32_at_their_floor_too(void **state) {
    static const amp_scaler_kind kinds[] = {AMP_SCALER_TORCH, AMP_SCALER_MEGATRON};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct cairn__scaler_state s;
        const struct amp_scaler_options o = {
            .struct_size = sizeof(o), .kind = kinds[i], .init_scale = 4, .min_scale = 1.1, .max_scale = 5.3};
        assert_int_equal(cairn__scaler_resolve(&o, 0, &s), CAIRN_OK);
        run_updates(&s, 20, true);
        assert_true(s.scale == (double)1.1f);
        run_updates(&s, 3000, false);
        run_updates(&s, 3000, false);
        assert_true(s.scale == (double)5.3f);
    }
}

static void a_growth_interval_of_int64_max_never_grows(void **state) {
    (void)state;
    struct cairn__scaler_state s;
    const struct amp_scaler_options o = {.struct_size = sizeof(o),
                                         .kind = AMP_SCALER_TORCH,
                                         .growth_interval = INT64_MAX};
    assert_int_equal(cairn__scaler_resolve(&o, 0, &s), CAIRN_OK);
    run_updates(&s, 5000, false);
    assert_true(s.scale == 65536);
}

static void a_state_that_was_edited_by_hand_comes_into_its_bounds(void **state) {
    (void)state;
    struct cairn__scaler_state s = with_defaults(AMP_SCALER_MEGATRON);
    struct amp_scaler_state edited;
    cairn__scaler_state_show(&s, &edited);
    edited.scale = 0x1p100, edited.max_scale = 0x1p20, edited.hysteresis_left = 9, edited.growth_tracker = 5000;
    assert_int_equal(cairn__scaler_state_take(&edited, "", &s), CAIRN_OK);
    assert_true(s.scale == 0x1p20 && s.hysteresis_left == 2);
    edited.scale = 0.1, edited.min_scale = 0x1p-10, edited.hysteresis_left = -9;
    assert_int_equal(cairn__scaler_state_take(&edited, "", &s), CAIRN_OK);
    assert_true(s.scale == 0.1f && s.hysteresis_left == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_follows_its_source_over_every_sequence_of_twelve),
        cmocka_unit_test(every_kind_follows_its_source_with_defaults_over_many_random_steps),
        cmocka_unit_test(every_kind_follows_its_source_with_factors_that_are_no_powers_of_two),
        cmocka_unit_test(every_kind_continues_alike_from_a_saved_state),
        cmocka_unit_test(apex_doubles_every_2000_clean_steps_up_to_2_to_the_24),
        cmocka_unit_test(apex_stops_at_its_floor_and_begins_within_floor_and_ceiling),
        cmocka_unit_test(an_overflow_never_raises_the_scale),
        cmocka_unit_test(deepspeed_grows_first_at_1001_clean_steps_and_gives_up_at_the_18th_overflow),
        cmocka_unit_test(an_overflow_absorbed_by_hysteresis_is_no_error_at_the_floor),
        cmocka_unit_test(torch_keeps_a_scale_that_would_be_infinite_and_others_take_the_ceiling),
        cmocka_unit_test(static_and_user_set_scales_are_not_changed),
        cmocka_unit_test(a_tracker_beyond_a_window_that_was_lowered_grows_at_once),
        cmocka_unit_test(deepspeed_grows_within_a_window_after_it_was_lowered),
        cmocka_unit_test(odd_hysteresis_is_used_up_too),
        cmocka_unit_test(deepspeed_without_delayed_shift_lowers_at_once),
        cmocka_unit_test(torchs_and_megatrons_scales_are_f32_at_their_floor_too),
        cmocka_unit_test(a_growth_interval_of_int64_max_never_grows),
        cmocka_unit_test(a_state_that_was_edited_by_hand_comes_into_its_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
