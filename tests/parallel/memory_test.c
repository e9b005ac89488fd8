/* With 1F1B a stage needs the memory of the micro-batches in flight, independent of the number of micro-batches. */
#include "chain.h"

#include "nn/tape.h"

enum { DEPTH = 12, WIDE = 64, MICRO_ROWS = 32, STEPS = 3 };

struct measured {
    cairn_pipeline_schedule schedule;
    int micro_batches, split; /* split 0: as many micro-batches of MICRO_ROWS rows */
    size_t peak[2];           /* bytes of results of the step, by rank */
};

static cairn_tensor *mean_square(void *ctx, cairn_tensor *output, cairn_tensor *target, int micro_batch) {
    (void)ctx, (void)micro_batch;
    return cairn_mse_loss(output, target);
}

/* Its output, that of a linear layer, is read by no backward here. */
static cairn_module *make_stage(cairn_env *env) {
    cairn_module *layers[2 * DEPTH];
    for (int i = 0; i < DEPTH; i++) {
        layers[2 * i] = cairn_linear(env, WIDE, WIDE);
        layers[2 * i + 1] = i + 1 < DEPTH ? cairn_activation(env, cairn_tanh) : NULL;
    }
    return cairn_sequential(env, 2 * DEPTH - 1, layers);
}

static char *measure(cairn_env *env, void *ctx) {
    struct measured *m = ctx;
    const int64_t rows = (int64_t)m->micro_batches * MICRO_ROWS;
    cairn_module *stage = make_stage(env);
    cairn_optimizer *optimizer = NULL;
    cairn_pipeline *pipeline = NULL;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(rows, WIDE)),
                 *y = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(rows, WIDE));
    EXPECT(stage && x && y);
    EXPECT_OK(cairn_sgd_create(cairn_module_params(stage), NULL, &optimizer));
    EXPECT_OK(cairn_pipeline_create(&stage, 1, cairn_env_group(env),
                                    cairn_pipeline_options(.schedule = m->schedule, .split_size = MICRO_ROWS,
                                                           .loss = mean_square, .optimizer = optimizer),
                                    &pipeline));
    for (int i = 0; i < STEPS; i++) {
        cairn_zero_grad(optimizer);
        EXPECT_OK(cairn_pipeline_step(pipeline, x, y, NULL));
        EXPECT_OK(cairn_step(optimizer));
    }
    m->peak[cairn_env_rank(env)] = cairn__tape_memory(env).values.peak;
    cairn_pipeline_destroy(&pipeline);
    cairn_optimizer_destroy(&optimizer);
    cairn_module_destroy(&stage);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&y);
    return NULL;
}

static struct measured measure_with(cairn_pipeline_schedule schedule, int micro_batches) {
    struct measured m = {.schedule = schedule, .micro_batches = micro_batches};
    run_ranks(2, measure, &m);
    printf("%-5s %2d micro-batches: stage 0 %zu bytes, stage 1 %zu\n",
           schedule == CAIRN_PIPELINE_GPIPE ? "GPipe" : "1F1B", micro_batches, m.peak[0], m.peak[1]);
    return m;
}

/* Results live until their backward, but for what was sent. Beside them a step holds scalars. */
static void one_forward_one_backward_holds_two_micro_batches_at_most(void **state) {
    const size_t activation = (size_t)MICRO_ROWS * WIDE * sizeof(float), some = activation / 2;
    const size_t held = (2 * DEPTH - 2) * activation; /* of one micro-batch in the first stage, once it has been sent */
    (void)state;
    const struct measured one = measure_with(CAIRN_PIPELINE_1F1B, 1), two = measure_with(CAIRN_PIPELINE_1F1B, 2);
    const struct measured many = measure_with(CAIRN_PIPELINE_1F1B, 16), all = measure_with(CAIRN_PIPELINE_GPIPE, 16);
    assert_in_range(one.peak[0], held, held + activation + some);
    assert_in_range(two.peak[0], 2 * held, 2 * held + activation + some);
    assert_in_range(many.peak[0], 2 * held, 2 * held + activation + some);  /* 16 in all, 2 in flight */
    assert_in_range(many.peak[1], one.peak[1], one.peak[1] + some);         /* 1 in flight */
    assert_in_range(all.peak[0], 16 * held, 16 * held + activation + some); /* which the measure sees */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_forward_one_backward_holds_two_micro_batches_at_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
