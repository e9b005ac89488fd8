/* Replicated pipelines give the bits of one rank on the whole batch; the data is exact. */
#include "chain.h"

#include "../kept_log.h"

static struct outcome whole, out[4];

static void means_over_replicas(const struct chain *c) {
    for (int s = 0; s < c->steps; s++) {
        double mean = 0;
        for (int r = 0; r < c->replicas; r++) mean += out[r].losses[s] / c->replicas;
        if (fabs(mean - whole.losses[s]) > 1e-6 * fabs(whole.losses[s]))
            fail_msg("%s: the losses of step %d have the mean %.9g, not %.9g", c->name, s, mean, whole.losses[s]);
        for (int r = 0; r < c->replicas; r++) out[r].losses[s] = whole.losses[s];
    }
}

static void every_shape_gives_the_bits_of_the_whole_batch(void **state) {
    static const struct chain cases[] = {
        {"1x2", 2, 1, CAIRN_PIPELINE_1F1B, .replicas = 1},
        {"2x1", 1, 1, CAIRN_PIPELINE_1F1B, .replicas = 2},
        {"2x2", 2, 1, CAIRN_PIPELINE_1F1B, .replicas = 2},
        {"2x2 GPipe", 2, 1, CAIRN_PIPELINE_GPIPE, .replicas = 2},
        {"2x3", 3, 1, CAIRN_PIPELINE_1F1B, .replicas = 2},
        {"1x4", 4, 1, CAIRN_PIPELINE_1F1B, .replicas = 1},
        {"4x1", 1, 1, CAIRN_PIPELINE_GPIPE, .replicas = 4},
        {"2x2 of 2", 2, 2, CAIRN_PIPELINE_INTERLEAVED_1F1B, .replicas = 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct chain c = cases[i];
        c.exact = true;
        c.rows = 16;
        c.n_microbatches = 4;
        c.steps = 1;
        struct chain alone = c;
        alone.ranks = alone.replicas = 0;
        alone.n_microbatches = 1;
        chain_run(&alone, &whole);
        chain_run(&c, out);
        means_over_replicas(&c);
        for (int r = 0; r < c.replicas; r++) {
            out[r].skipped[0] = whole.skipped[0];
            chain_same(c.name, &out[r], &whole);
        }
    }
}

/* Steps follow one another: buckets are planned anew, buffers go to all, gradients of two batches come together. */
static void replicas_stay_equal_and_near_the_whole_batch(void **state) {
    static const struct chain cases[] = {
        {"2x2", 2, 1, CAIRN_PIPELINE_1F1B, .replicas = 2},
        {"2x2 of 2", 2, 2, CAIRN_PIPELINE_INTERLEAVED_1F1B, .replicas = 2},
        {"2x2 clipped", 2, 1, CAIRN_PIPELINE_GPIPE, .replicas = 2, .max_norm = 0.05},
        {"2x2 two batches", 2, 1, CAIRN_PIPELINE_1F1B, .replicas = 2, .accumulates = true},
        {"2x2 one micro-batch", 2, 1, CAIRN_PIPELINE_1F1B, .replicas = 2, .n_microbatches = 1},
        {"2x2 O1 bf16", 2, 1, CAIRN_PIPELINE_1F1B, .replicas = 2, .level = AMP_O1, .half = CAIRN_BF16},
        {"2x2 O2 f16", 2, 1, CAIRN_PIPELINE_1F1B, .replicas = 2, .level = AMP_O2, .half = CAIRN_F16, .max_norm = 0.05},
        {"2x2 O3 bf16", 2, 1, CAIRN_PIPELINE_1F1B, .replicas = 2, .level = AMP_O3, .half = CAIRN_BF16},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct chain c = cases[i];
        c.rows = 16;
        if (!c.n_microbatches) c.n_microbatches = 4;
        c.steps = 4;
        struct chain alone = c;
        alone.ranks = alone.replicas = 0;
        alone.n_microbatches = 1;
        chain_run(&alone, &whole);
        chain_run(&c, out);
        assert_memory_equal(out[0].weights, out[1].weights, sizeof(out[0].weights));
        assert_memory_equal(out[0].biases, out[1].biases, sizeof(out[0].biases));
        const float bound = c.level == AMP_O3 ? 0.05f : c.level ? 5e-3f : 2e-6f;
        for (int k = 0; k < LAYERS * WIDTH * WIDTH; k++) {
            const float x = out[0].weights[k / (WIDTH * WIDTH)][k % (WIDTH * WIDTH)];
            const float y = whole.weights[k / (WIDTH * WIDTH)][k % (WIDTH * WIDTH)];
            if (!(fabsf(x - y) <= bound)) fail_msg("%s: weight %d is %g, not %g", c.name, k, (double)x, (double)y);
        }
    }
}

/* Two replicas of two stages in f16; what they say is in log_text. */
static void log_of_grid(const char *name, char *(*fn)(cairn_env *env, void *ctx), int n_microbatches) {
    struct chain c = {name,
                      2,
                      1,
                      CAIRN_PIPELINE_1F1B,
                      .replicas = 2,
                      .rows = 16,
                      .n_microbatches = n_microbatches,
                      .level = AMP_O2,
                      .half = CAIRN_F16,
                      .loss_scale = AMP_DYNAMIC};
    log_text[0] = '\0';
    cairn_set_log(keep_log, NULL);
    run_ranks(4, fn, &c);
    cairn_set_log(NULL, NULL);
}

/* An infinite loss of the last replica's: all of the grid skip. */
static char *skip_together(cairn_env *env, void *ctx) {
    const struct chain *c = ctx;
    struct chain_rank r = {.env = env};
    double mean = 0;
    PASS(chain_begin(&r, env, c));
    for (r.step = 0; r.step < 3; r.step++) {
        const bool is_bad = r.step == 1;
        struct chain here = *c;
        if (is_bad && r.replica == 1) here.bad_layer = LAYERS + 1;
        here.bad_step = 1;
        here.bad_micro_batch = 2;
        r.c = &here;
        cairn_zero_grad(r.optimizer);
        PASS(chain_batch(&r, r.step, &mean));
        EXPECT_OK(cairn_step(r.optimizer));
        EXPECT(cairn_optimizer_step_skipped(r.optimizer) == is_bad);
        EXPECT(amp_scaler_get_scale(amp_scaler_of(r.amp, 0)) == (r.step < 1 ? 65536 : 32768));
        r.c = c;
    }
    chain_end(&r);
    return NULL;
}

static void an_infinite_loss_of_one_replica_skips_the_step_of_all(void **state) {
    (void)state;
    log_of_grid("skip", skip_together, 4);
    if (!strstr(log_text, "is inf or nan on rank 3")) fail_msg("'%s'", log_text);
}

/* A loss of the last replica that is too large, whose stages are ranks 2 and 3. */
static char *overflow_one_replica(cairn_env *env, void *ctx) {
    struct chain c = *(const struct chain *)ctx;
    struct chain_rank r = {.env = env};
    double mean = 0;
    PASS(chain_begin(&r, env, &c));
    for (r.step = 0; r.step < 2; r.step++) {
        c.loss_factor = r.step == 1 && r.replica == 1 ? 1e6f : 0;
        cairn_zero_grad(r.optimizer);
        PASS(chain_batch(&r, r.step, &mean));
        EXPECT_OK(cairn_step(r.optimizer));
        EXPECT(cairn_optimizer_step_skipped(r.optimizer) == (r.step == 1));
    }
    chain_end(&r);
    return NULL;
}

static void the_message_names_the_stage_and_the_ranks(void **state) {
    (void)state;
    log_of_grid("overflow", overflow_one_replica, 1);
    const bool knows = !check_ranks_have_gpus(); /* a sum over GPUs does not say whose it was: the message's own rank */
    if (!strstr(log_text, knows ? "on stage 0, on rank 2; " : "on stage 0 (rank 0); ") ||
        !strstr(log_text, knows ? "on stage 1, on rank 3" : "on stage 1 (rank 1)"))
        fail_msg("'%s'", log_text);
}

static char *ask_for_shapes(cairn_env *env, void *ctx) {
    cairn_grid *grid = NULL;
    const int rank = cairn_env_rank(env);
    (void)ctx;
    EXPECT_REFUSED(cairn_grid_create(env, 3, 1, &grid), CAIRN_EINVAL, "3 replicas of 1 stages are not the 4 ranks");
    EXPECT_REFUSED(cairn_grid_create(env, 0, 0, &grid), CAIRN_EINVAL, "one of them must be above 0");
    EXPECT_OK(cairn_grid_create(env, 0, 2, &grid));
    EXPECT(cairn_grid_stage(grid) == rank % 2 && cairn_grid_replica(grid) == rank / 2);
    EXPECT(cairn_group_size(cairn_grid_stages(grid)) == 2 && cairn_group_rank(cairn_grid_stages(grid)) == rank % 2);
    EXPECT(cairn_group_size(cairn_grid_replicas(grid)) == 2 && cairn_group_rank(cairn_grid_replicas(grid)) == rank / 2);
    EXPECT(cairn_group_env_rank(cairn_grid_replicas(grid), 1) == 2 + rank % 2);
    cairn_grid_destroy(&grid);
    EXPECT(!grid && !cairn_grid_stages(NULL));
    return NULL;
}

static void a_grid_has_replicas_in_rows(void **state) {
    (void)state;
    run_ranks(4, ask_for_shapes, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grid_has_replicas_in_rows),
        cmocka_unit_test(every_shape_gives_the_bits_of_the_whole_batch),
        cmocka_unit_test(replicas_stay_equal_and_near_the_whole_batch),
        cmocka_unit_test(an_infinite_loss_of_one_replica_skips_the_step_of_all),
        cmocka_unit_test(the_message_names_the_stage_and_the_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
