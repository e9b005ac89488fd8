/* Stochastic rounding of bf16 weights without masters: its benefit, and that runs are reproducible. */
#include "../ranks.h"

enum { IN = 1024, OUT = 16, BATCH = 64 };

struct run {
    struct amp_options options;
    uint64_t seed; /* of the data and the weights */
    int steps;
    float loss;
    uint16_t weights[OUT][IN];
};

static struct amp_options bf16(cairn_switch stochastic, uint64_t rounding_seed) {
    return *amp_options(.opt_level = AMP_O3, .half_type = CAIRN_BF16, .stochastic_rounding = stochastic,
                        .rounding_seed = rounding_seed, .verbosity = -1);
}

/* The quick start. */
static char *train(cairn_env *env, void *ctx) {
    struct run *run = (struct run *)ctx + cairn_env_rank(env);
    cairn_manual_seed(env, run->seed);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, IN));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, OUT));
    cairn_module *model = cairn_linear(env, IN, OUT);
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    ddp_context *net = NULL;
    cairn_param weight;
    EXPECT_OK(cairn_sgd_create(cairn_module_params(model), NULL, &sgd));
    EXPECT_OK(amp_initialize(env, model, sgd, &run->options, &amp));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    for (int t = 0; t < run->steps; t++) {
        cairn_zero_grad(sgd);
        cairn_tensor *loss = cairn_mse_loss(ddp_forward(net, x), y);
        EXPECT_OK(amp_backward(amp, loss, sgd));
        EXPECT_OK(cairn_step(sgd));
        run->loss = cairn_tensor_item(loss);
    }
    EXPECT_OK(cairn_param_set_get(cairn_module_params(model), 0, &weight));
    if (weight.dtype == CAIRN_BF16) memcpy(run->weights, weight.data, sizeof(run->weights));
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&y);
    return NULL;
}

/* Most updates are smaller than half a unit in the last place of a bf16 weight. */
static void training_goes_on_where_rounding_to_nearest_stalls(void **state) {
    (void)state;
    static struct run f32, nearest, stochastic;
    f32 = (struct run){.options = *amp_options(.opt_level = AMP_O0, .verbosity = -1), .steps = 500};
    nearest = (struct run){.options = bf16(CAIRN_OFF, 0), .steps = 500};
    stochastic = (struct run){.options = bf16(CAIRN_ON, 0), .steps = 500};
    run_ranks(1, train, &f32);
    run_ranks(1, train, &nearest);
    run_ranks(1, train, &stochastic);
    print_message("loss after 500 steps: %.4f in f32, %.4f rounded to nearest, %.4f at random\n", f32.loss,
                  nearest.loss, stochastic.loss);
    assert_true(nearest.loss > 4 * f32.loss);
    assert_true(stochastic.loss < 1.25f * f32.loss);
}

static void run_repeats_and_another_seed_rounds_differently(void **state) {
    (void)state;
    static struct run a, b, c;
    a = (struct run){.options = bf16(CAIRN_ON, 5), .steps = 20};
    b = a;
    c = a;
    c.options.rounding_seed = 6;
    run_ranks(1, train, &a);
    run_ranks(1, train, &b);
    run_ranks(1, train, &c);
    assert_memory_equal(a.weights, b.weights, sizeof(a.weights));
    assert_memory_not_equal(a.weights, c.weights, sizeof(a.weights));
}

/* Whatever the ranks' environments are seeded with: they round alike. */
static void ranks_keep_equal_weights(void **state) {
    (void)state;
    static struct run ranks[3];
    for (int r = 0; r < 3; r++) ranks[r] = (struct run){.options = bf16(CAIRN_ON, 0), .seed = (uint64_t)r, .steps = 20};
    run_ranks(3, train, ranks);
    for (int r = 1; r < 3; r++) assert_memory_equal(ranks[0].weights, ranks[r].weights, sizeof(ranks[0].weights));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_goes_on_where_rounding_to_nearest_stalls),
        cmocka_unit_test(run_repeats_and_another_seed_rounds_differently),
        cmocka_unit_test(ranks_keep_equal_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
