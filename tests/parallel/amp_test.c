/* amp over pipeline stages: one loss scale, one skip decision, one gradient norm. */
#include "chain.h"

#include "../kept_log.h"

struct level {
    const char *name;
    amp_opt_level level;
    cairn_dtype half;
};
static const struct level levels[] = {
    {"O0", AMP_O0, CAIRN_F16},       {"O1 f16", AMP_O1, CAIRN_F16},   {"O1 bf16", AMP_O1, CAIRN_BF16},
    {"O2 f16", AMP_O2, CAIRN_F16},   {"O2 bf16", AMP_O2, CAIRN_BF16}, {"O3 f16", AMP_O3, CAIRN_F16},
    {"O3 bf16", AMP_O3, CAIRN_BF16},
};

static struct outcome alone_out, out;

static void same_as_alone(const struct chain *c) {
    struct chain alone = *c;
    alone.ranks = 0;
    chain_run(&alone, &alone_out);
    chain_run(c, &out);
    chain_same(c->name, &out, &alone_out);
}

static void every_level_gives_the_bits_of_one_rank(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        for (int s = 0; s < 3; s++) {
            const struct chain c = {levels[i].name,
                                    2,
                                    s == 2 ? 2 : 1,
                                    (cairn_pipeline_schedule)(s + 1),
                                    .split_size = 6,
                                    .rows = 16,
                                    .steps = 3,
                                    .level = levels[i].level,
                                    .half = levels[i].half,
                                    .norms = s == 1,
                                    .loss_scale = s == 0 ? 128 : 0};
            same_as_alone(&c);
        }
    }
}

static void a_dynamic_scale_moves_as_that_of_one_rank(void **state) {
    (void)state;
    for (size_t i = 1; i < sizeof(levels) / sizeof(levels[0]); i++) {
        const struct chain c = {levels[i].name,
                                4,
                                1,
                                CAIRN_PIPELINE_1F1B,
                                .n_microbatches = 4,
                                .rows = 16,
                                .steps = 4,
                                .level = levels[i].level,
                                .half = levels[i].half,
                                .loss_scale = AMP_DYNAMIC};
        same_as_alone(&c);
    }
}

/* ---- overflow ---- */

static void expect_log(const char *words, const char *where) {
    if (!strstr(log_text, words)) fail_msg("%s: '%s' is not in '%s'", where, words, log_text);
}

/* Of every layer and micro-batch in turn: all ranks skip (chain_step checks that), the scale goes down on all, and rank
 * 0 says where it was. */
static void an_overflow_anywhere_skips_the_step_everywhere(void **state) {
    (void)state;
    for (int layer = 1; layer <= LAYERS; layer++) {
        for (int m = 0; m < 4; m++) {
            const struct level *l = &levels[1 + (layer + m) % 4];
            const int ranks = m % 2 ? 2 : 4, chunks = m % 2 ? 2 : 1, stage = (layer - 1) / (LAYERS / (ranks * chunks));
            const struct chain c = {l->name,
                                    ranks,
                                    chunks,
                                    chunks > 1  ? CAIRN_PIPELINE_INTERLEAVED_1F1B
                                    : layer % 2 ? CAIRN_PIPELINE_1F1B
                                                : CAIRN_PIPELINE_GPIPE,
                                    .n_microbatches = 4,
                                    .rows = 16,
                                    .steps = 3,
                                    .level = l->level,
                                    .half = l->half,
                                    .loss_scale = AMP_DYNAMIC,
                                    .bad_layer = layer,
                                    .bad_micro_batch = m,
                                    .bad_step = 1};
            char words[128], where[128], which[40] = "";
            log_text[0] = '\0';
            cairn_set_log(keep_log, NULL);
            same_as_alone(&c);
            snprintf(where, sizeof(where), "layer %d, micro-batch %d, %d ranks of %d", layer, m, ranks, chunks);
            if (m > 0) snprintf(which, sizeof(which), ", first in micro-batch %d", m + 1);
            snprintf(words, sizeof(words), "%s, on stage%s %d", which, chunks > 1 ? "s" : "", stage % ranks);
            expect_log(words, where);
            snprintf(words, sizeof(words), "(rank %d)", stage % ranks);
            expect_log(words, where);
            expect_log("weight (1 inf of 64)", where);
            expect_log("reducing loss scale to 32768", where);
            assert_int_equal(out.skipped[1], 1);
            assert_true(out.scales[1] == 32768);
            cairn_set_log(NULL, NULL);
        }
    }
}

static void a_loss_that_is_infinite_skips_the_step_everywhere(void **state) {
    (void)state;
    for (int m = 0; m < 4; m++) {
        const struct chain c = {"loss",
                                4,
                                1,
                                m % 2 ? CAIRN_PIPELINE_1F1B : CAIRN_PIPELINE_GPIPE,
                                .n_microbatches = 4,
                                .rows = 16,
                                .steps = 3,
                                .level = AMP_O1,
                                .half = CAIRN_F16,
                                .loss_scale = AMP_DYNAMIC,
                                .bad_layer = LAYERS + 1,
                                .bad_micro_batch = m,
                                .bad_step = 1};
        log_text[0] = '\0';
        cairn_set_log(keep_log, NULL);
        chain_run(&c, &out);
        cairn_set_log(NULL, NULL);
        expect_log(m > 0 ? "the loss of micro-batch" : "the loss is inf or nan on rank 3", "infinite loss");
        assert_int_equal(out.skipped[1], 1);
        assert_int_equal(out.skipped[2], 0);
        assert_true(out.scales[1] == 32768);
    }
}

/* ---- clipping ---- */

static void the_norm_is_that_of_all_stages(void **state) {
    (void)state;
    for (size_t i = 0; i <= sizeof(levels) / sizeof(levels[0]); i++) { /* the first without amp */
        const struct level none = {"without amp", (amp_opt_level)0, (cairn_dtype)0}, *l = i ? &levels[i - 1] : &none;
        const struct chain c = {l->name,
                                4,
                                1,
                                CAIRN_PIPELINE_1F1B,
                                .n_microbatches = 4,
                                .rows = 16,
                                .steps = 3,
                                .level = l->level,
                                .half = l->half,
                                .max_norm = 0.05,
                                .accumulates = i % 2 == 1};
        struct chain alone = c;
        alone.ranks = 0;
        chain_run(&alone, &alone_out);
        chain_run(&c, &out);
        for (int s = 0; s < c.steps; s++) {
            if (!(alone_out.norms[s] > c.max_norm)) fail_msg("%s: %g is not clipped", c.name, alone_out.norms[s]);
            if (fabs(out.norms[s] - alone_out.norms[s]) > 1e-6 * alone_out.norms[s])
                fail_msg("%s: the norm of step %d is %.9g, not %.9g", c.name, s, out.norms[s], alone_out.norms[s]);
        }
        for (int k = 0; k < LAYERS * WIDTH * WIDTH; k++) {
            const float x = out.weights[k / (WIDTH * WIDTH)][k % (WIDTH * WIDTH)];
            const float y = alone_out.weights[k / (WIDTH * WIDTH)][k % (WIDTH * WIDTH)];
            if (fabsf(x - y) > (l->level == AMP_O3 ? 1e-2f : 1e-6f))
                fail_msg("%s: weight %d is %g, not %g", c.name, k, (double)x, (double)y);
        }
    }
}

/* ---- contexts that differ ---- */

static char *create_apart(cairn_env *env, void *ctx) {
    struct chain c = *(const struct chain *)ctx;
    struct chain_rank r = {.env = env};
    const int rank = cairn_env_rank(env);
    if (rank == 1 && c.bad_step == 0) c.loss_scale = 64;
    if (rank == 1 && c.bad_step == 1) c.level = AMP_O2;
    if (rank == 1 && c.bad_step == 2) c.level = (amp_opt_level)0;
    c.ranks = 2;
    char *failure = chain_begin(&r, env, &c);
    EXPECT(failure && !r.pipeline);
    free(failure);
    EXPECT_SAYS(c.bad_step == 2 ? "rank 1 has no amp context" : "rank 1's amp context differs from rank 0's");
    chain_end(&r);
    return NULL;
}

static void contexts_that_differ_are_refused(void **state) {
    (void)state;
    for (int what = 0; what < 3; what++) {
        struct chain c = {"differs",
                          2,
                          1,
                          CAIRN_PIPELINE_1F1B,
                          .n_microbatches = 4,
                          .rows = 16,
                          .level = AMP_O1,
                          .half = CAIRN_F16,
                          .loss_scale = 128,
                          .bad_step = what};
        run_ranks(2, create_apart, &c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_level_gives_the_bits_of_one_rank),
        cmocka_unit_test(a_dynamic_scale_moves_as_that_of_one_rank),
        cmocka_unit_test(an_overflow_anywhere_skips_the_step_everywhere),
        cmocka_unit_test(a_loss_that_is_infinite_skips_the_step_everywhere),
        cmocka_unit_test(the_norm_is_that_of_all_stages),
        cmocka_unit_test(contexts_that_differ_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
