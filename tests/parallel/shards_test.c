/* Replicated pipelines with sharded optimizers (ddp_options.shard_optimizer): the same bits as the grid without
 * sharding; an overflow in any stage and shard skips the step everywhere; norms cover all stages and shards. Also
 * optimizers that use parameter norms, over stages. */
#include "chain.h"

#include "../kept_log.h"

static struct outcome apart[2], shared[2], whole;

static void same_masters(const char *name, const struct outcome *a, const struct outcome *b, bool are_there) {
    bool any = false;
    for (int k = 0; k < LAYERS * WIDTH * WIDTH; k++) {
        const float x = a->masters[k / (WIDTH * WIDTH)][k % (WIDTH * WIDTH)];
        const float y = b->masters[k / (WIDTH * WIDTH)][k % (WIDTH * WIDTH)];
        any = any || x != 0;
        if (memcmp(&x, &y, sizeof(x)) != 0) fail_msg("%s: master %d is %a, not %a", name, k, (double)x, (double)y);
    }
    assert_int_equal(any, are_there);
}

static void run_both(const struct chain *c) {
    struct chain with = *c;
    with.shards = true;
    chain_run(c, apart);
    chain_run(&with, shared);
}

static void same_with_shards(const struct chain *c) {
    run_both(c);
    for (int r = 0; r < 2; r++) chain_same(c->name, &shared[r], &apart[r]);
    same_masters(c->name, &shared[0], &apart[0], c->level == AMP_O2);
}

static const struct chain grids[] = {
    {"without amp", 2, 1, CAIRN_PIPELINE_1F1B, .n_microbatches = 4},
    {"O0", 2, 1, CAIRN_PIPELINE_1F1B, .level = AMP_O0, .loss_scale = AMP_DYNAMIC},
    {"O2 f16", 2, 1, CAIRN_PIPELINE_GPIPE, .level = AMP_O2, .half = CAIRN_F16, .loss_scale = AMP_DYNAMIC},
    {"O2 bf16 of 2", 2, 2, CAIRN_PIPELINE_INTERLEAVED_1F1B, .level = AMP_O2, .half = CAIRN_BF16, .loss_scale = 128},
};
enum { GRIDS = sizeof(grids) / sizeof(grids[0]) };

static struct chain grid(size_t i, enum chain_kind kind) {
    struct chain c = grids[i];
    c.kind = kind;
    c.replicas = 2;
    c.rows = 16;
    c.n_microbatches = 4;
    c.steps = 4;
    return c;
}

static void bits_are_those_of_the_grid_without_shards(void **state) {
    (void)state;
    for (size_t i = 0; i < GRIDS; i++) {
        for (int kind = CHAIN_SGD; kind <= CHAIN_ADAM; kind++) {
            struct chain c = grid(i, (enum chain_kind)kind);
            same_with_shards(&c);
            c.accumulates = true;
            c.n_microbatches = i % 2 ? 1 : 2;
            if (c.chunks == 1) same_with_shards(&c);
        }
    }
}

/* Nothing has to be rounded: one rank that has all layers and rows is the oracle. */
static void bits_are_those_of_the_whole_batch(void **state) {
    (void)state;
    for (size_t i = 0; i < GRIDS; i++) {
        struct chain c = grid(i, CHAIN_SGD);
        c.exact = c.shards = true;
        c.steps = 1;
        c.loss_scale = c.level ? 1 : 0; /* f16 has no room for more */
        struct chain alone = c;
        alone.ranks = alone.replicas = 0;
        alone.n_microbatches = 1;
        chain_run(&alone, &whole);
        chain_run(&c, shared);
        for (int r = 0; r < 2; r++) {
            memcpy(shared[r].losses, whole.losses, sizeof(whole.losses)); /* each of its own rows */
            chain_same(c.name, &shared[r], &whole);
        }
        same_masters(c.name, &shared[0], &whole, c.level == AMP_O2);
    }
}

/* The first element of a weight is in the shard of the first replica; chain_step expects that all ranks skip. */
static void an_overflow_in_any_stage_skips_the_step_of_all(void **state) {
    (void)state;
    cairn_set_log(keep_log, NULL);
    for (size_t i = 1; i < GRIDS; i++) {
        for (int layer = 1; layer <= LAYERS; layer += 2) {
            struct chain c = grid(i, layer % 4 == 1 ? CHAIN_ADAM : CHAIN_SGD);
            const int stage = (layer - 1) * c.ranks * c.chunks / LAYERS % c.ranks;
            char words[64];
            c.steps = 3;
            c.bad_layer = layer;
            c.bad_step = 1;
            c.bad_replica = layer / 2 % 2;
            log_text[0] = '\0';
            same_with_shards(&c);
            assert_int_equal(shared[0].skipped[1], 1);
            if (c.loss_scale != 128) assert_true(shared[0].scales[1] == 32768);
            snprintf(words, sizeof(words), ", on stage%s %d", c.chunks > 1 ? "s" : "", stage);
            if (!strstr(log_text, words) || !strstr(log_text, "weight (1 inf of 64)"))
                fail_msg("%s, layer %d: '%s'", c.name, layer, log_text);
        }
    }
    cairn_set_log(NULL, NULL);
}

static void near(const struct chain *c, const struct outcome *a, const struct outcome *b, float bound) {
    for (int s = 0; s < c->steps && c->max_norm > 0; s++) {
        if (!(b->norms[s] > c->max_norm)) fail_msg("%s: %g is not clipped", c->name, b->norms[s]);
        if (fabs(a->norms[s] - b->norms[s]) > 1e-6 * b->norms[s])
            fail_msg("%s: the norm of step %d is %.9g, not %.9g", c->name, s, a->norms[s], b->norms[s]);
    }
    for (int k = 0; k < LAYERS * WIDTH * WIDTH; k++) {
        const bool has_masters = c->level == AMP_O2;
        const int layer = k / (WIDTH * WIDTH), at = k % (WIDTH * WIDTH);
        const float x = has_masters ? a->masters[layer][at] : a->weights[layer][at];
        const float y = has_masters ? b->masters[layer][at] : b->weights[layer][at];
        if (!(fabsf(x - y) <= bound)) fail_msg("%s: weight %d is %.9g, not %.9g", c->name, k, (double)x, (double)y);
    }
}

/* Squares of a shard are added up in other blocks: the norms agree to 1e-6, and so do what follows from them. */
static void clipping_is_by_the_norm_of_all_stages_and_shards(void **state) {
    (void)state;
    for (size_t i = 0; i < GRIDS; i++) {
        for (int kind = CHAIN_SGD; kind <= CHAIN_NOVOGRAD; kind++) {
            struct chain c = grid(i, (enum chain_kind)kind);
            c.max_norm = 0.01;
            c.accumulates = i == 0;
            run_both(&c);
            near(&c, &shared[0], &apart[0], 1e-6f);
            assert_memory_equal(shared[0].weights, shared[1].weights, sizeof(shared[0].weights));
        }
    }
}

/* LAMB clips by itself, too. */
static void rates_by_norms_are_those_of_one_rank(void **state) {
    (void)state;
    for (int kind = CHAIN_LAMB; kind <= CHAIN_NOVOGRAD; kind++) {
        for (size_t i = 0; i < 2 * GRIDS; i++) {
            struct chain c = grid(i % GRIDS, (enum chain_kind)kind);
            c.replicas = 0;
            c.max_norm = i < GRIDS ? 0.01 : 0;
            struct chain alone = c;
            alone.ranks = 0;
            chain_run(&alone, &whole);
            chain_run(&c, shared);
            near(&c, &shared[0], &whole, 1e-6f);
        }
    }
}

static char *create_with_other_norms(cairn_env *env, void *ctx) {
    struct chain c = *(const struct chain *)ctx;
    struct chain_rank r = {.env = env};
    if (cairn_env_rank(env) == 1) c.kind = CHAIN_NOVOGRAD;
    char *failure = chain_begin(&r, env, &c);
    EXPECT(failure && !r.pipeline);
    free(failure);
    EXPECT_SAYS("the step of rank 0's optimizer clips by a norm of 0.05, and that of rank 1's by 0 (max_grad_norm");
    chain_end(&r);
    return NULL;
}

static void stages_that_clip_by_other_norms_are_refused(void **state) {
    struct chain c = grid(0, CHAIN_LAMB);
    (void)state;
    c.replicas = 0;
    run_ranks(2, create_with_other_norms, &c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_the_grid_without_shards),
        cmocka_unit_test(bits_are_those_of_the_whole_batch),
        cmocka_unit_test(an_overflow_in_any_stage_skips_the_step_of_all),
        cmocka_unit_test(clipping_is_by_the_norm_of_all_stages_and_shards),
        cmocka_unit_test(rates_by_norms_are_those_of_one_rank),
        cmocka_unit_test(stages_that_clip_by_other_norms_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
