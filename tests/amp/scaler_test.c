/* The scaler against a straightforward model of apex's, over every short sequence and over a long random one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/philox.h"
#include "scaler.h"

struct model {
    double scale, min, max;
    int unskipped, window;
};

/* apex/amp/scaler.py, LossScaler.update_scale, line by line, with a floor that is always there. */
static void model_update(struct model *m, bool found) {
    if (found) {
        m->scale = m->scale / 2 > m->min ? m->scale / 2 : m->min;
        m->unskipped = 0;
    } else {
        m->unskipped += 1;
    }
    if (m->unskipped == m->window) {
        m->scale = m->scale * 2 < m->max ? m->scale * 2 : m->max;
        m->unskipped = 0;
    }
}

static void step_both(struct cairn__scaler_state *s, struct model *m, bool found) {
    double before = m->scale;
    model_update(m, found);
    enum cairn__scaler_verdict verdict = cairn__scaler_update(s, found);
    assert_true(s->scale == m->scale);
    assert_int_equal(s->unskipped, m->unskipped);
    enum cairn__scaler_verdict want = m->scale > before                         ? CAIRN__SCALER_GREW
                                      : found && before == m->min               ? CAIRN__SCALER_AT_FLOOR
                                      : m->scale < before && m->scale == m->min ? CAIRN__SCALER_REACHED_FLOOR
                                      : m->scale < before                       ? CAIRN__SCALER_SHRANK
                                                                                : CAIRN__SCALER_KEPT;
    assert_int_equal(verdict, want);
}

static struct cairn__scaler_state scaler_like(const struct model *m) {
    return (struct cairn__scaler_state){
        .rule = CAIRN__SCALER_APEX, .scale = m->scale, .min = m->min, .max = m->max, .window = m->window};
}

static void scaler_follows_its_model_over_every_sequence_of_twelve(void **state) {
    (void)state;
    for (int window = 1; window <= 3; window++) {
        for (int sequence = 0; sequence < 1 << 12; sequence++) {
            struct model m = {.scale = 8, .min = 1, .max = 64, .window = window};
            struct cairn__scaler_state s = scaler_like(&m);
            for (int i = 0; i < 12; i++) step_both(&s, &m, sequence >> i & 1);
        }
    }
}

static void scaler_follows_its_model_over_a_million_random_steps(void **state) {
    (void)state;
    struct model m = {.scale = 65536, .min = 1, .max = 16777216, .window = 2000};
    struct cairn__scaler_state s = scaler_like(&m);
    for (uint64_t i = 0; i < 250000; i++) {
        struct cairn__philox_block block = cairn__philox(42, i, 0);
        for (int w = 0; w < 4; w++) step_both(&s, &m, block.word[w] < UINT32_C(2000000));
    }
}

static void scaler_doubles_after_2000_clean_steps(void **state) {
    (void)state;
    struct model m = {.scale = 65536, .min = 1, .max = 16777216, .window = 2000};
    struct cairn__scaler_state s = scaler_like(&m);
    for (int i = 0; i < 1999; i++) cairn__scaler_update(&s, false);
    assert_true(s.scale == 65536);
    cairn__scaler_update(&s, false);
    assert_true(s.scale == 131072);
    assert_int_equal(s.unskipped, 0);
}

static void static_scale_never_changes(void **state) {
    (void)state;
    struct cairn__scaler_state s = {.rule = CAIRN__SCALER_STATIC, .scale = 128};
    assert_int_equal(cairn__scaler_update(&s, true), CAIRN__SCALER_KEPT);
    assert_int_equal(cairn__scaler_update(&s, false), CAIRN__SCALER_KEPT);
    assert_true(s.scale == 128);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scaler_follows_its_model_over_every_sequence_of_twelve),
        cmocka_unit_test(scaler_follows_its_model_over_a_million_random_steps),
        cmocka_unit_test(scaler_doubles_after_2000_clean_steps),
        cmocka_unit_test(static_scale_never_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
