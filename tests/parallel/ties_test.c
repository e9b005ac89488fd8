/* Tied weights: one matrix in the first and in the last stage, against one module that uses it twice. */
#include "../ranks.h"

#include <math.h>
#include <stdbool.h>

#include "device/env.h"
#include "nn/hooks.h"

enum { WIDTH = 8, ROWS = 16, STEPS = 4 };

struct tied {
    int ranks; /* 0 = one rank with one matrix */
    amp_opt_level level;
    cairn_dtype half;
    int batches;  /* a step */
    int replicas; /* 0 = 1 */
    double max_norm;
    float w[2][WIDTH * WIDTH], middle[WIDTH * WIDTH]; /* what comes out: the first stage's and the last one's matrix */
    double norms[STEPS];
};

/* What a stage does: y = tanh(x w^T), y = x middle^T, y = x w^T; alone all three. */
struct parts {
    cairn_tensor *first, *last; /* the same one where it is alone */
    cairn_module *middle;
};

static cairn_tensor *forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct parts *p = context;
    cairn_tensor *x = inputs[0];
    (void)module, (void)count;
    if (p->first) x = cairn_tanh(cairn_linear_forward(x, p->first, NULL));
    if (p->middle) x = cairn_module_forward(p->middle, x);
    if (p->last) x = cairn_linear_forward(x, p->last, NULL);
    return x;
}

static float number(int i, int salt) {
    return (float)((i * 37 + salt * 11) % 17 - 8) / 16;
}

static char *fill(cairn_tensor *t, int salt) {
    float values[WIDTH * WIDTH];
    for (int i = 0; i < WIDTH * WIDTH; i++) values[i] = number(i, salt);
    EXPECT_OK(cairn_init_constant(t, 0));
    EXPECT_OK(cairn__device_upload(cairn__tensor_env(t)->device, cairn__tensor_values(t), values, sizeof(values)));
    return NULL;
}

/* The last stage's matrix begins with other numbers, which the tie replaces. */
static char *make(cairn_env *env, struct parts *p, bool first, bool middle, bool last, cairn_module **out) {
    static const struct cairn_module_ops ops = {.struct_size = sizeof(ops), .name = "Part", .forward = forward};
    const int64_t shape[] = {WIDTH, WIDTH};
    *out = cairn_module_create(env, &ops, p);
    if (first) p->first = cairn_module_add_param(*out, "w", 2, shape, 0);
    if (middle) p->middle = cairn_module_add_child(*out, "middle", cairn_linear_without_bias(env, WIDTH, WIDTH));
    if (middle) PASS(fill(cairn_module_get(p->middle, "weight"), 3));
    if (last) p->last = first ? p->first : cairn_module_add_param(*out, "w", 2, shape, 0);
    if (last) PASS(fill(p->last, 9));
    if (first) PASS(fill(p->first, 1));
    EXPECT(*out);
    return NULL;
}

static cairn_tensor *mean_square(void *ctx, cairn_tensor *output, cairn_tensor *target, int micro_batch) {
    (void)ctx, (void)micro_batch;
    return cairn_mse_loss(output, target);
}

static char *batch(cairn_env *env, cairn_pipeline *pipeline, cairn_module *module, cairn_optimizer *optimizer,
                   amp_context *amp, int seed, int replica, int replicas) {
    const int rows = ROWS / replicas;
    float x[ROWS * WIDTH], y[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++) {
        x[i] = number(i, seed + 20);
        y[i] = number(i, seed + 50);
    }
    cairn_tensor *input = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, WIDTH), x + replica * rows * WIDTH);
    cairn_tensor *target = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, WIDTH), y + replica * rows * WIDTH);
    if (pipeline) EXPECT_OK(cairn_pipeline_step(pipeline, input, target, NULL));
    for (int m = 0; !pipeline && m < 4; m++) {
        cairn_tensor *output = cairn_module_forward(module, cairn_slice(input, 0, 4 * m, 4 * m + 4, 1));
        cairn_tensor *loss =
            cairn_mul_scalar(cairn_mse_loss(output, cairn_slice(target, 0, 4 * m, 4 * m + 4, 1)), 0.25);
        EXPECT_OK(amp ? amp_backward(amp, loss, optimizer) : cairn_backward(loss));
    }
    cairn_tensor_destroy(&input);
    cairn_tensor_destroy(&target);
    return NULL;
}

static char *train(cairn_env *env, void *ctx) {
    struct tied *t = ctx;
    struct parts parts = {.first = NULL};
    struct cairn_adam_options hyper = CAIRN_ADAM_OPTIONS_INIT;
    cairn_module *module = NULL;
    cairn_optimizer *optimizer = NULL;
    amp_context *amp = NULL;
    cairn_pipeline *pipeline = NULL;
    cairn_grid *grid = NULL;
    ddp_context *ddp = NULL;
    EXPECT_OK(cairn_grid_create(env, t->replicas ? t->replicas : 1, 0, &grid));
    const int rank = cairn_grid_stage(grid), last = t->ranks - 1, replica = cairn_grid_replica(grid);
    hyper.lr = 0.01;
    PASS(make(env, &parts, rank == 0, !t->ranks || (rank > 0 && rank < last), !t->ranks || rank == last, &module));
    EXPECT_OK(cairn_adam_create(cairn_module_params(module), &hyper, &optimizer));
    if (t->level)
        EXPECT_OK(amp_initialize(env, module, optimizer,
                                 amp_options(.opt_level = t->level, .half_type = t->half, .verbosity = -1), &amp));
    if (t->replicas) EXPECT_OK(ddp_create(module, cairn_grid_replicas(grid), NULL, &ddp));
    if (t->ranks) {
        EXPECT_OK(cairn_pipeline_create(&module, 1, cairn_grid_stages(grid),
                                        cairn_pipeline_options(.n_microbatches = 4, .loss = mean_square, .amp = amp,
                                                               .optimizer = optimizer, .ddp = ddp ? &ddp : NULL),
                                        &pipeline));
        EXPECT(cairn_pipeline_tie(pipeline, 0, rank == 0 ? "w" : NULL) != CAIRN_OK); /* one is none */
        EXPECT(cairn_pipeline_tie(pipeline, 0, rank == 1 ? "v" : NULL) != CAIRN_OK);
        EXPECT_OK(cairn_pipeline_tie(pipeline, 0, rank == 0 || rank == last ? "w" : NULL));
    }
    for (int s = 0; s < STEPS; s++) {
        cairn_zero_grad(optimizer);
        for (int b = 0; b < t->batches; b++)
            PASS(batch(env, pipeline, module, optimizer, amp, s * 2 + b, replica, t->replicas ? t->replicas : 1));
        if (t->max_norm > 0)
            EXPECT_OK(cairn_clip_grad_norm(optimizer, t->max_norm, rank || replica ? NULL : &t->norms[s]));
        EXPECT_OK(cairn_step(optimizer));
    }
    if (ddp) { /* a sum over stages would come before that over replicas */
        EXPECT_OK(ddp_no_sync(ddp, 1));
        EXPECT(cairn_pipeline_step(pipeline, rank ? NULL : cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(4, WIDTH)),
                                   rank < last ? NULL : cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(4, WIDTH)),
                                   NULL) != CAIRN_OK);
        EXPECT_SAYS("parameters are tied, and ddp_no_sync is on");
    }
    cairn_pipeline_destroy(&pipeline); /* the last step may be on its way on a GPU, and is not lost */
    if (replica == 0 && parts.first) EXPECT_OK(cairn_tensor_read(parts.first, t->w[0], WIDTH * WIDTH));
    if (replica == 0 && parts.last) EXPECT_OK(cairn_tensor_read(parts.last, t->w[1], WIDTH * WIDTH));
    if (replica == 0 && parts.middle)
        EXPECT_OK(cairn_tensor_read(cairn_module_get(parts.middle, "weight"), t->middle, WIDTH * WIDTH));
    ddp_destroy(&ddp);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&optimizer);
    cairn_module_destroy(&module);
    cairn_grid_destroy(&grid);
    return NULL;
}

static void near(const char *what, const float *a, const float *b, float bound) {
    for (int i = 0; i < WIDTH * WIDTH; i++) {
        if (!(fabsf(a[i] - b[i]) <= bound)) fail_msg("%s %d is %.9g, not %.9g", what, i, (double)a[i], (double)b[i]);
    }
}

static void both_stay_equal_and_are_those_of_one_matrix(void **state) {
    static const struct tied cases[] = {
        {.batches = 1},
        {.batches = 2},
        {.batches = 1, .max_norm = 0.05},
        {.batches = 2, .max_norm = 0.05},
        {.batches = 2, .max_norm = 0.05, .replicas = 2},
        {.batches = 1, .level = AMP_O1, .half = CAIRN_BF16},
        {.batches = 2, .level = AMP_O2, .half = CAIRN_F16, .max_norm = 0.05},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static struct tied alone, tied;
        alone = tied = cases[i];
        tied.ranks = 3;
        alone.replicas = 0;
        run_ranks(1, train, &alone);
        run_ranks(3 * (tied.replicas ? tied.replicas : 1), train, &tied);
        const float bound = cases[i].level ? 2e-3f : 1e-6f; /* halves are rounded at other places */
        assert_memory_equal(tied.w[0], tied.w[1], sizeof(tied.w[0]));
        near("the first matrix", tied.w[0], alone.w[0], bound);
        near("the middle", tied.middle, alone.middle, bound);
        for (int s = 0; s < STEPS && cases[i].max_norm > 0; s++) {
            assert_true(alone.norms[s] > cases[i].max_norm);
            assert_true(fabs(tied.norms[s] - alone.norms[s]) < (cases[i].level ? 1e-2 : 1e-6) * alone.norms[s]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_stay_equal_and_are_those_of_one_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
