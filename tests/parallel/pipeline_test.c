/* Pipelines give the same bits as one rank, in every schedule and for micro-batches of any size. */
#include "chain.h"

#include "kernels/kernels.h"

static struct chain alone(const struct chain *c) {
    struct chain a = *c;
    a.ranks = 0;
    return a;
}

static void same_as_alone(const struct chain *c) {
    static struct outcome alone_out, out;
    const struct chain a = alone(c);
    chain_run(&a, &alone_out);
    chain_run(c, &out);
    chain_same(c->name, &out, &alone_out);
    /* ... which is a training: something has changed, and is finite */
    assert_true(isfinite(out.losses[c->steps - 1]) && out.losses[c->steps - 1] != out.losses[0]);
}

#define BASE .n_microbatches = 4, .rows = 16, .steps = 3

static void stages_give_the_bits_of_one_rank(void **state) {
    static const struct chain cases[] = {
        {"GPipe, 2 stages", 2, 1, CAIRN_PIPELINE_GPIPE, BASE},
        {"GPipe, 4 stages", 4, 1, CAIRN_PIPELINE_GPIPE, BASE},
        {"GPipe, 1 stage", 1, 1, CAIRN_PIPELINE_GPIPE, BASE},
        {"1F1B, 2 stages", 2, 1, CAIRN_PIPELINE_1F1B, BASE},
        {"1F1B, 4 stages", 4, 1, CAIRN_PIPELINE_1F1B, BASE},
        {"1F1B, 1 stage", 1, 1, CAIRN_PIPELINE_1F1B, BASE},
        {"interleaved, 2 ranks of 2", 2, 2, CAIRN_PIPELINE_INTERLEAVED_1F1B, BASE},
        {"interleaved, 2 ranks of 4", 2, 4, CAIRN_PIPELINE_INTERLEAVED_1F1B, BASE},
        {"interleaved, 1 rank of 4", 1, 4, CAIRN_PIPELINE_INTERLEAVED_1F1B, BASE},
        {"interleaved, 4 ranks of 2", 4, 2, CAIRN_PIPELINE_INTERLEAVED_1F1B, BASE, .kind = CHAIN_ADAM},
        {"interleaved, 4 ranks of 1", 4, 1, CAIRN_PIPELINE_INTERLEAVED_1F1B, BASE},
        {"fewer micro-batches than stages", 4, 1, CAIRN_PIPELINE_1F1B, .n_microbatches = 2, .rows = 16, .steps = 3},
        {"one micro-batch", 2, 1, CAIRN_PIPELINE_1F1B, .n_microbatches = 1, .rows = 16, .steps = 3},
        {"Adam", 2, 1, CAIRN_PIPELINE_1F1B, BASE, .kind = CHAIN_ADAM},
        {"two batches a step", 2, 1, CAIRN_PIPELINE_1F1B, BASE, .accumulates = true},
        {"a frozen stage", 4, 1, CAIRN_PIPELINE_1F1B, BASE, .frozen = 2},
        {"a stage and a half frozen", 4, 1, CAIRN_PIPELINE_GPIPE, BASE, .frozen = 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) same_as_alone(&cases[i]);
}

static void a_last_micro_batch_may_be_smaller(void **state) {
    static const struct chain cases[] = {
        {"13 rows by 4", 2, 1, CAIRN_PIPELINE_GPIPE, .split_size = 4, .rows = 13, .steps = 3},
        {"13 rows by 4", 4, 1, CAIRN_PIPELINE_1F1B, .split_size = 4, .rows = 13, .steps = 3},
        {"9 rows in at most 4", 2, 2, CAIRN_PIPELINE_INTERLEAVED_1F1B, .n_microbatches = 4, .rows = 9, .steps = 3},
        {"14 rows by 2, interleaved", 4, 2, CAIRN_PIPELINE_INTERLEAVED_1F1B, .split_size = 2, .rows = 14, .steps = 3},
        {"3 rows by 5", 2, 1, CAIRN_PIPELINE_1F1B, .split_size = 5, .rows = 3, .steps = 3},
        {"as many as rows", 2, 1, CAIRN_PIPELINE_1F1B, .split_size = 1, .rows = 7, .steps = 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) same_as_alone(&cases[i]);
}

/* Where nothing is rounded, micro-batches and the whole batch are the same numbers. */
static void exact_numbers_give_the_bits_of_the_whole_batch(void **state) {
    static struct outcome whole, out;
    (void)state;
    for (int s = 0; s < 3; s++) {
        struct chain c = {"exact",    2,          s == 2 ? 2 : 1, (cairn_pipeline_schedule)(s + 1), .n_microbatches = 4,
                          .rows = 16, .steps = 1, .exact = true};
        struct chain w = alone(&c);
        w.n_microbatches = 1;
        chain_run(&w, &whole);
        chain_run(&c, &out);
        chain_same(c.name, &out, &whole);
        c.n_microbatches = 16;
        chain_run(&c, &out);
        chain_same(c.name, &out, &whole);
    }
}

static void other_numbers_come_close_to_the_whole_batch(void **state) {
    static struct outcome whole, out;
    const struct chain c = {"uneven", 2, 1, CAIRN_PIPELINE_1F1B, .split_size = 5, .rows = 16, .steps = 3};
    struct chain w = alone(&c);
    (void)state;
    w.split_size = 16;
    chain_run(&w, &whole);
    chain_run(&c, &out);
    for (int i = 0; i < LAYERS; i++) {
        for (int k = 0; k < WIDTH * WIDTH; k++) assert_true(fabsf(out.weights[i][k] - whole.weights[i][k]) < 1e-6f);
    }
    for (int s = 0; s < c.steps; s++) assert_true(fabs(out.losses[s] - whole.losses[s]) < 1e-6);
}

/* Each micro-batch by its own statistics, which count once each: so one rank does with the same micro-batches. */
static void batch_norm_counts_every_micro_batch(void **state) {
    static const struct chain cases[] = {
        {"GPipe", 2, 1, CAIRN_PIPELINE_GPIPE, BASE, .norms = true},
        {"1F1B", 4, 1, CAIRN_PIPELINE_1F1B, BASE, .norms = true},
        {"interleaved", 2, 2, CAIRN_PIPELINE_INTERLEAVED_1F1B, BASE, .norms = true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) same_as_alone(&cases[i]);
}

/* Random numbers go by rank and by the order of forwards, which schedules of one module a rank share. */
static void dropout_is_the_same_in_every_schedule(void **state) {
    static struct outcome gpipe, other, again, none;
    struct chain c = {"dropout", 2, 1, CAIRN_PIPELINE_GPIPE, BASE, .dropout = true};
    (void)state;
    chain_run(&c, &gpipe);
    chain_run(&c, &again);
    chain_same("again", &again, &gpipe);
    c.schedule = CAIRN_PIPELINE_1F1B;
    chain_run(&c, &other);
    chain_same("1F1B", &other, &gpipe);
    c.dropout = false;
    chain_run(&c, &none);
    assert_memory_not_equal(none.weights, gpipe.weights, sizeof(none.weights));
    /* One stage is rank 0, as one rank alone is: the same masks. */
    c = (struct chain){"dropout, one stage", 1, 1, CAIRN_PIPELINE_1F1B, BASE, .dropout = true};
    same_as_alone(&c);
}

static void few_are_in_flight(void **state) {
    static struct outcome out;
    const struct chain c = {"1F1B", 4, 1, CAIRN_PIPELINE_1F1B, .split_size = 1, .rows = 16, .steps = 1};
    const struct chain all = {"GPipe", 4, 1, CAIRN_PIPELINE_GPIPE, .split_size = 1, .rows = 16, .steps = 1};
    (void)state;
    chain_run(&c, &out);
    for (int r = 0; r < 4; r++) assert_int_equal(out.in_flight[r], 4 - r);
    chain_run(&all, &out);
    for (int r = 0; r < 4; r++) assert_int_equal(out.in_flight[r], 16);
}

/* ---- evaluation ---- */

static char *evaluate(cairn_env *env, void *ctx) {
    struct chain c = *(const struct chain *)ctx;
    struct chain_rank r = {.env = env};
    float x[MAX_ROWS * WIDTH], y[MAX_ROWS * WIDTH], got[MAX_ROWS * WIDTH], want[MAX_ROWS * WIDTH];
    PASS(chain_begin(&r, env, &c));
    const bool is_last = cairn_env_rank(env) == c.ranks - 1;
    for (int i = 0; i < c.rows * WIDTH; i++) {
        x[i] = chain_input(&c, 0, i, false);
        y[i] = chain_input(&c, 0, i, true);
    }
    cairn_tensor *input = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(c.rows, WIDTH), x);
    cairn_tensor *target = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(c.rows, WIDTH), y), *output = NULL;
    /* The whole model on this rank, to compare with; made last, so that it changes nothing of the stages. */
    struct chain_layers layers;
    cairn_module *whole = NULL;
    memset(&layers, 0, sizeof(layers));
    PASS(chain_make_stage(env, &c, 0, LAYERS, &layers, &whole));
    for (int times = 0; times < 3; times++) { /* the second one with group memory, the third with larger batches */
        double mean = -1;
        for (int i = 0; i < r.num_stages; i++) cairn_module_train(r.stages[i], 0);
        EXPECT_OK(cairn_pipeline_eval(r.pipeline, input, target, &mean, &output));
        EXPECT((output != NULL) == is_last && (mean >= 0) == is_last);
        if (is_last) {
            EXPECT(cairn_tensor_size(output, 0) == c.rows && cairn_tensor_size(output, 1) == WIDTH);
            EXPECT_OK(cairn_tensor_read(output, got, (size_t)c.rows * WIDTH));
            cairn_no_grad_begin(env);
            double sum = 0;
            EXPECT_OK(cairn_tensor_read(cairn_module_forward(whole, input), want, (size_t)c.rows * WIDTH));
            EXPECT_OK(cairn_no_grad_end(env));
            for (int i = 0; i < c.rows * WIDTH; i++) {
                EXPECT(fabsf(got[i] - want[i]) < 1e-6f);
                sum += (double)(want[i] - y[i]) * (double)(want[i] - y[i]);
            }
            EXPECT(fabs(mean - sum / (c.rows * WIDTH)) < 1e-6);
        }
        cairn_tensor_destroy(&output);
        EXPECT_OK(cairn_pipeline_eval(r.pipeline, input, NULL, NULL, NULL)); /* neither loss nor output */
        for (int i = 0; i < r.num_stages; i++)
            EXPECT(!cairn__param_set_has_gradients(cairn_module_params(r.stages[i])));
    }
    /* Outside of evaluation there is a step again. */
    PASS(chain_batch(&r, 0, &(double){0}));
    EXPECT_OK(cairn_step(r.optimizer));
    cairn_module_destroy(&whole);
    cairn_tensor_destroy(&input);
    cairn_tensor_destroy(&target);
    chain_end(&r);
    return NULL;
}

static void evaluation_gives_outputs_and_the_mean_loss(void **state) {
    struct chain cases[] = {
        {"GPipe", 2, 1, CAIRN_PIPELINE_GPIPE, .split_size = 5, .rows = 16},
        {"1F1B", 4, 1, CAIRN_PIPELINE_1F1B, .n_microbatches = 4, .rows = 16},
        {"interleaved", 2, 2, CAIRN_PIPELINE_INTERLEAVED_1F1B, .split_size = 3, .rows = 16},
        {"one rank", 1, 1, CAIRN_PIPELINE_1F1B, .split_size = 3, .rows = 16},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) run_ranks(cases[i].ranks, evaluate, &cases[i]);
}

/* ---- batches that differ ---- */

/* Numbers of rows that grow and shrink: shapes go ahead, and group memory is made anew. */
static char *change_sizes(cairn_env *env, void *ctx) {
    struct chain c = *(const struct chain *)ctx;
    static const int rows[] = {4, 32, 7, 64, 1, 64};
    struct chain_rank r = {.env = env};
    double mean = 0;
    PASS(chain_begin(&r, env, &c));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        c.rows = rows[i];
        cairn_zero_grad(r.optimizer);
        PASS(chain_batch(&r, (int)i, &mean));
        EXPECT_OK(cairn_step(r.optimizer));
    }
    EXPECT(cairn_env_rank(env) != c.ranks - 1 || (mean > 0 && isfinite(mean)));
    chain_end(&r);
    return NULL;
}

static void batches_may_differ_from_step_to_step(void **state) {
    struct chain c = {"sizes", 2, 1, CAIRN_PIPELINE_1F1B, .n_microbatches = 4, .rows = 4};
    (void)state;
    run_ranks(c.ranks, change_sizes, &c);
    c.split_size = 2;
    c.n_microbatches = 0;
    run_ranks(c.ranks, change_sizes, &c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_give_the_bits_of_one_rank),
        cmocka_unit_test(a_last_micro_batch_may_be_smaller),
        cmocka_unit_test(exact_numbers_give_the_bits_of_the_whole_batch),
        cmocka_unit_test(other_numbers_come_close_to_the_whole_batch),
        cmocka_unit_test(batch_norm_counts_every_micro_batch),
        cmocka_unit_test(dropout_is_the_same_in_every_schedule),
        cmocka_unit_test(few_are_in_flight),
        cmocka_unit_test(evaluation_gives_outputs_and_the_mean_loss),
        cmocka_unit_test(batches_may_differ_from_step_to_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
