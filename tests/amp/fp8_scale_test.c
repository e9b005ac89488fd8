/* Scales of tensors that are cast to fp8: the rules by hand, against a model over random sequences, on several ranks,
 * saved and loaded. */
#include <float.h>
#include <math.h>

#include "../ranks.h"
#include "../nn/test_env.h"
#include "../state_in_memory.h"

static cairn_fp8_scales *scales_of(cairn_env *env, size_t count, const cairn_fp8_format *formats,
                                   const struct cairn_fp8_recipe *recipe) {
    cairn_fp8_scales *scales = NULL;
    OK(cairn_fp8_scales_create(env, count, formats, recipe, &scales));
    return scales;
}

static float scale_after(cairn_fp8_scales *scales, size_t i, float amax) {
    OK(cairn_fp8_scales_note(scales, i, amax));
    OK(cairn_fp8_scales_update(scales));
    return cairn_fp8_scales_get(scales, i);
}

/* ---- the rules ---- */

static void delayed_scales_follow_the_greatest_of_the_history(void **state) {
    const cairn_fp8_format formats[] = {CAIRN_FP8_E4M3, CAIRN_FP8_E5M2};
    cairn_fp8_scales *s = scales_of(test_env_of(state), 2, formats, cairn_fp8_recipe(.amax_history_len = 3));
    assert_true(cairn_fp8_scales_get(s, 0) == 1 && cairn_fp8_scales_get(s, 1) == 1);
    assert_true(scale_after(s, 0, 2) == 224);
    assert_true(cairn_fp8_scales_get(s, 1) == 1); /* nothing was noted */
    assert_true(scale_after(s, 0, 1) == 224);
    assert_true(scale_after(s, 0, 0.5f) == 224);
    assert_true(scale_after(s, 0, 0.25f) == 448); /* the 2 has left the history */
    assert_true(scale_after(s, 0, 0) == 448);     /* 0 does not enter it: */
    assert_true(scale_after(s, 0, 0.25f) == 896); /* now 1 has left, and 0.5 is the greatest */
    assert_true(scale_after(s, 1, 57344) == 1);
    assert_true(scale_after(s, 1, 7) == 1);
    cairn_fp8_scales_destroy(&s);
    assert_null(s);
}

static void several_amaxes_of_a_step_count_as_their_greatest(void **state) {
    cairn_fp8_scales *s = scales_of(test_env_of(state), 1, NULL, NULL);
    OK(cairn_fp8_scales_note(s, 0, 1));
    OK(cairn_fp8_scales_note(s, 0, 7));
    OK(cairn_fp8_scales_note(s, 0, NAN));
    OK(cairn_fp8_scales_note(s, 0, 3));
    assert_true(cairn_fp8_scales_amax(s, 0) == 7);
    OK(cairn_fp8_scales_update(s));
    assert_true(cairn_fp8_scales_get(s, 0) == 64);
    assert_true(cairn_fp8_scales_amax(s, 0) == 0);
    cairn_fp8_scales_destroy(&s);
}

static void an_infinite_amax_keeps_the_scale_while_it_is_in_the_history(void **state) {
    cairn_fp8_scales *s = scales_of(test_env_of(state), 1, NULL, cairn_fp8_recipe(.amax_history_len = 2));
    assert_true(scale_after(s, 0, 7) == 64);
    assert_true(scale_after(s, 0, INFINITY) == 64);
    assert_true(scale_after(s, 0, 14) == 64);
    assert_true(scale_after(s, 0, 14) == 32);
    cairn_fp8_scales_destroy(&s);
}

static void margin_recency_and_extremes(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_fp8_scales *s = scales_of(env, 1, NULL, cairn_fp8_recipe(.margin = 2));
    assert_true(scale_after(s, 0, 7) == 16);
    cairn_fp8_scales_destroy(&s);
    s = scales_of(env, 1, NULL, cairn_fp8_recipe(.amax_compute_algo = CAIRN_FP8_AMAX_MOST_RECENT));
    assert_true(scale_after(s, 0, 7) == 64);
    assert_true(scale_after(s, 0, 1) == 448);
    assert_true(scale_after(s, 0, INFINITY) == 448);
    assert_true(scale_after(s, 0, 1e-44f) == FLT_MAX); /* 448 / amax overflows */
    cairn_fp8_scales_destroy(&s);
    s = scales_of(env, 1, NULL, cairn_fp8_recipe(.power_of_two_scales = CAIRN_ON));
    assert_true(scale_after(s, 0, 1) == 256);
    cairn_fp8_scales_destroy(&s);
    s = scales_of(env, 1, NULL, cairn_fp8_recipe(.power_of_two_scales = CAIRN_ON, .margin = 8));
    assert_true(scale_after(s, 0, 0x1p127f) == FLT_MIN); /* 1.75 / amax is below it, and 1 / scale has to be finite */
    cairn_fp8_scales_destroy(&s);
}

static void current_scales_know_no_past(void **state) {
    cairn_fp8_scales *s = scales_of(test_env_of(state), 1, NULL, cairn_fp8_recipe(.scaling = CAIRN_FP8_CURRENT));
    assert_true(scale_after(s, 0, 7) == 64);
    assert_true(scale_after(s, 0, INFINITY) == 1);
    assert_true(scale_after(s, 0, 0.25f) == 1792);
    assert_true(scale_after(s, 0, 0) == 1);
    assert_true(scale_after(s, 0, 1e-44f) == FLT_MAX);
    cairn_fp8_scales_destroy(&s);
    s = scales_of(test_env_of(state), 1, NULL, cairn_fp8_recipe(.scaling = CAIRN_FP8_UNSCALED));
    assert_true(scale_after(s, 0, 7) == 1);
    cairn_fp8_scales_destroy(&s);
}

/* ---- a model ---- */

/* As the recipe is told: a list of what was seen, whose newest `length` entries count. */
struct model {
    float seen[400];
    int count, length;
    bool most_recent;
    double max;
    float scale;
};

static void model_update(struct model *m, float amax) {
    if (amax == 0) return;
    m->seen[m->count++] = amax;
    float most = 0;
    for (int back = 1; back <= (m->most_recent ? 1 : m->length) && back <= m->count; back++) {
        if (m->seen[m->count - back] > most) most = m->seen[m->count - back];
    }
    if (most == INFINITY) return;
    const double exact = m->max / (double)most; /* rounding a quotient of floats twice is rounding it once */
    m->scale = exact > (double)FLT_MAX ? FLT_MAX : (float)exact;
}

static uint32_t draw(uint32_t *at) {
    *at = *at * 1664525u + 1013904223u; /* Numerical Recipes' */
    return *at >> 8;
}

static float draw_amax(uint32_t *at) {
    const uint32_t kind = draw(at) % 40;
    if (kind == 0) return 0;
    if (kind == 1) return INFINITY;
    if (kind == 2) return 1e-45f * (float)(1 + draw(at) % 9);
    return ldexpf(1 + (float)(draw(at) % 4096) / 4096, (int)(draw(at) % 60) - 40);
}

static void random_sequences_are_scaled_as_the_model_says(void **state) {
    cairn_env *env = test_env_of(state);
    uint32_t at = 26;
    int kept = 0, changed = 0;
    for (int sequence = 0; sequence < 1000; sequence++) {
        const int length = sequence % 4 == 0 ? 1024 : 1 + (int)(draw(&at) % 30), margin = (int)(draw(&at) % 5) - 2;
        const cairn_fp8_format format = sequence % 2 ? CAIRN_FP8_E4M3 : CAIRN_FP8_E5M2;
        struct model m = {.length = length,
                          .most_recent = draw(&at) % 3 == 0,
                          .max = ldexp(sequence % 2 ? 448 : 57344, -margin),
                          .scale = 1};
        cairn_fp8_scales *s = scales_of(env, 1, &format,
                                        cairn_fp8_recipe(.amax_history_len = length, .margin = margin,
                                                         .amax_compute_algo = m.most_recent ? CAIRN_FP8_AMAX_MOST_RECENT
                                                                                            : CAIRN_FP8_AMAX_MAX));
        for (int step = 0; step < 100; step++) {
            const float amax = draw_amax(&at), before = m.scale;
            model_update(&m, amax);
            if (scale_after(s, 0, amax) != m.scale)
                fail_msg("sequence %d, step %d: %a, want %a", sequence, step, (double)cairn_fp8_scales_get(s, 0),
                         (double)m.scale);
            if (m.scale == before) kept++;
            else changed++;
        }
        cairn_fp8_scales_destroy(&s);
    }
    assert_true(kept > 10000 && changed > 10000);
}

/* ---- ranks ---- */

static char *reduce(cairn_env *env, void *ctx) {
    const bool reduces = *(const bool *)ctx;
    const int rank = cairn_env_rank(env);
    cairn_fp8_scales *s = NULL;
    EXPECT_OK(
        cairn_fp8_scales_create(env, 2, NULL, cairn_fp8_recipe(.reduce_amax = reduces ? CAIRN_ON : CAIRN_OFF), &s));
    EXPECT_OK(cairn_fp8_scales_note(s, 0, ldexpf(7, rank)));
    if (rank == 1) EXPECT_OK(cairn_fp8_scales_note(s, 1, 14));
    EXPECT_OK(cairn_fp8_scales_update(s));
    const int greatest = reduces ? cairn_env_size(env) - 1 : rank;
    EXPECT(cairn_fp8_scales_get(s, 0) == ldexpf(64, -greatest));
    EXPECT(cairn_fp8_scales_get(s, 1) == (reduces || rank == 1 ? 32.0f : 1.0f));
    cairn_fp8_scales_destroy(&s);
    return NULL;
}

/* Over any group: what fp8.h says. */
static char *reduce_over_a_group(cairn_env *env, void *ctx) {
    const int rank = cairn_env_rank(env);
    cairn_fp8_scales *s = NULL;
    cairn_group *pair = NULL;
    (void)ctx;
    EXPECT_OK(cairn_group_new(cairn_env_group(env), (const int[]){0, 2}, 2, NULL, &pair));
    EXPECT_OK(cairn_fp8_scales_create(env, 1, NULL, cairn_fp8_recipe(.reduce_amax = CAIRN_OFF), &s));
    EXPECT_OK(cairn_fp8_scales_note(s, 0, ldexpf(7, rank)));
    if (pair) {
        float amax = cairn_fp8_scales_amax(s, 0);
        EXPECT_OK(cairn_allreduce(pair, &amax, 1, CAIRN_F32, CAIRN_MAX, NULL));
        EXPECT_OK(cairn_fp8_scales_note(s, 0, amax));
    }
    EXPECT_OK(cairn_fp8_scales_update(s));
    EXPECT(cairn_fp8_scales_get(s, 0) == (rank == 1 ? 32.0f : 16.0f));
    cairn_fp8_scales_destroy(&s);
    cairn_group_destroy(&pair);
    return NULL;
}

static void amax_is_the_greatest_over_the_ranks(void **state) {
    (void)state;
    bool reduces = true;
    run_ranks(2, reduce, &reduces);
    run_ranks(3, reduce, &reduces);
    reduces = false;
    run_ranks(2, reduce, &reduces);
    run_ranks(3, reduce_over_a_group, NULL);
}

/* ---- saved ---- */

static void scales_go_on_to_the_bit(void **state) {
    cairn_env *env = test_env_of(state);
    const struct cairn_fp8_recipe *recipe = cairn_fp8_recipe(.amax_history_len = 5);
    cairn_fp8_scales *whole = scales_of(env, 2, NULL, recipe), *rest = scales_of(env, 2, NULL, recipe);
    const cairn_stateful from = cairn_fp8_scales_stateful(whole), to = cairn_fp8_scales_stateful(rest);
    struct kept_state at = {.count = 0}, want = {.count = 0}, got = {.count = 0};
    uint32_t random = 3;
    for (int step = 0; step < 7; step++) (void)scale_after(whole, 0, draw_amax(&random));
    (void)scale_after(rest, 1, 5);
    CALM(keep_state(&at, &from, 1));
    CALM(bring_back(&at, &to, 1));
    assert_true(cairn_fp8_scales_get(rest, 1) == 1);
    for (int step = 0; step < 20; step++) {
        const float amax = draw_amax(&random);
        assert_true(scale_after(whole, 0, amax) == scale_after(rest, 0, amax));
    }
    CALM(keep_state(&want, &from, 1));
    CALM(keep_state(&got, &to, 1));
    CALM(same_states(&want, &got));
    OK(cairn_fp8_scales_note(whole, 1, 1));
    struct cairn__entries entries = {.env = env, .object = "scales"};
    REFUSED(from.ops->list(from.object, &entries), CAIRN_ESTATE, "call cairn_fp8_scales_update first");
    cairn__entries_clear(&entries);
    drop_state(&at);
    drop_state(&want);
    drop_state(&got);
    cairn_fp8_scales_destroy(&whole);
    cairn_fp8_scales_destroy(&rest);
}

static void nonsense_is_refused(void **state) {
    cairn_env *env = test_env_of(state);
    const cairn_fp8_format wrong[] = {CAIRN_FP8_E4M3, (cairn_fp8_format)7};
    cairn_fp8_scales *s = NULL;
#define WRONG(words, ...) \
    REFUSED(cairn_fp8_scales_create(env, 1, NULL, cairn_fp8_recipe(__VA_ARGS__), &s), CAIRN_EINVAL, words)
    WRONG("formats is 3", .formats = (cairn_fp8_formats)3);
    WRONG("scaling is -1", .scaling = (cairn_fp8_scaling)-1);
    WRONG("amax_compute_algo is 9", .amax_compute_algo = (cairn_fp8_amax_algo)9);
    WRONG("amax_history_len is 65537", .amax_history_len = 65537);
    WRONG("margin is 9", .margin = 9);
    WRONG("reduce_amax is 5", .reduce_amax = (cairn_switch)5);
    WRONG("belong to CAIRN_FP8_DELAYED", .scaling = CAIRN_FP8_CURRENT, .margin = 1);
    REFUSED(cairn_fp8_scales_create(env, 2, wrong, NULL, &s), CAIRN_EINVAL, "formats[1] is 7");
    REFUSED(cairn_fp8_scales_create(NULL, 2, NULL, NULL, &s), CAIRN_EINVAL, "env and out");
    assert_null(s);
    s = scales_of(env, 0, NULL, NULL);
    OK(cairn_fp8_scales_update(s));
    REFUSED(cairn_fp8_scales_note(s, 0, 1), CAIRN_EINVAL, "tensor 0 of 0");
    assert_true(isnan(cairn_fp8_scales_get(s, 0)) && isnan(cairn_fp8_scales_amax(NULL, 0)));
    cairn_fp8_scales_destroy(&s);
    cairn_fp8_scales_destroy(&s);
    cairn_fp8_scales_destroy(NULL);
    s = scales_of(env, 1, NULL, NULL);
    REFUSED(cairn_fp8_scales_note(s, 0, -1), CAIRN_EINVAL, "amax is -1");
    REFUSED(cairn_fp8_scales_note(NULL, 0, 1), CAIRN_EINVAL, "scales is NULL");
    REFUSED(cairn_fp8_scales_update(NULL), CAIRN_EINVAL, "scales is NULL");
    cairn_fp8_scales_destroy(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(delayed_scales_follow_the_greatest_of_the_history),
        ENV_TEST(several_amaxes_of_a_step_count_as_their_greatest),
        ENV_TEST(an_infinite_amax_keeps_the_scale_while_it_is_in_the_history),
        ENV_TEST(margin_recency_and_extremes),
        ENV_TEST(current_scales_know_no_past),
        ENV_TEST(random_sequences_are_scaled_as_the_model_says),
        ENV_TEST(scales_go_on_to_the_bit),
        ENV_TEST(nonsense_is_refused),
        cmocka_unit_test(amax_is_the_greatest_over_the_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
