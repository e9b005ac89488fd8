/* How compressed communication affects learning: a three-layer net learns a rule on four ranks with the plain
 * all-reduce and with comm hooks that send less. Prints the table of docs/ddp.md. */
#include <math.h>

#include "../ranks.h"
#include "core/philox.h"
#include "param/param.h"

enum { RANKS = 4, IN = 48, HIDDEN = 96, CLASSES = 10, BATCH = 16, STEPS = 400, LAST = 40, TESTS = 1000 };

/* Plain, or by one of the hooks. */
struct way {
    const char *name;
    int rank;              /* of PowerSGD's matrices; 0 = it is not used */
    cairn_switch feedback; /* PowerSGD's */
    int64_t period;        /* of local SGD; 0 = it is not used */
    const struct ddp_comm_hook *(*hook)(void);
    double worst; /* test loss, as a part of the plain one */
};

static const struct way ways[] = {
    {"all-reduce", 0, CAIRN_ON, 0, NULL, 1},
    {"bf16_compress", 0, CAIRN_ON, 0, ddp_bf16_compress_hook, 1.1},
    {"PowerSGD, rank 1", 1, CAIRN_ON, 0, NULL, 1.5},
    {"PowerSGD, rank 2", 2, CAIRN_ON, 0, NULL, 1.5},
    {"PowerSGD, rank 4", 4, CAIRN_ON, 0, NULL, 1.5},
    {"PowerSGD, rank 1, no feedback", 1, CAIRN_OFF, 0, NULL, 1.7},
    {"local SGD, period 4", 0, CAIRN_ON, 4, NULL, 1.5},
    {"local SGD, period 16", 0, CAIRN_ON, 16, NULL, 1.5},
    {"alone, averaged at the end", 0, CAIRN_ON, STEPS, NULL, 1.7},
};
enum { NUM_WAYS = sizeof(ways) / sizeof(ways[0]), WITH_FEEDBACK = 2, WITHOUT_FEEDBACK = 5 };

static double uniform(uint64_t stream, uint64_t i) {
    return cairn__philox(21, i, stream).word[0] * 0x1p-32 - 0.5;
}

/* Example i: numbers, and the class that the rule gives it, which looks at products of two of them. */
static int64_t example(uint64_t i, float *x) {
    double best = -1e9;
    int64_t class = 0;
    for (int j = 0; j < IN; j++) x[j] = (float)(2 * uniform(1000 + i, (uint64_t)j));
    for (int c = 0; c < CLASSES; c++) {
        double score = 0;
        for (int j = 0; j < IN; j++) {
            score += uniform(1, (uint64_t)(c * IN + j)) * x[j];
            if (j % 4 == 0) score += 2 * uniform(2, (uint64_t)(c * IN + j)) * x[j] * x[(j + c + 1) % IN];
        }
        if (score > best) {
            best = score;
            class = c;
        }
    }
    return class;
}

struct outcome {
    double training_loss, test_loss, accuracy, nbytes; /* nbytes: that a rank gives to a step's reductions */
};

struct batch {
    float x[TESTS * IN];
    int64_t classes[TESTS];
};

static char *loss_of(cairn_env *env, cairn_module *model, ddp_context *net, const struct batch *b, int64_t n,
                     cairn_tensor **loss, double *right) {
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(n, IN), b->x);
    cairn_tensor *y = cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(n), b->classes);
    EXPECT(x && y);
    cairn_tensor *scores = net ? ddp_forward(net, x) : cairn_module_forward(model, x);
    *loss = cairn_cross_entropy(scores, y, NULL);
    EXPECT(*loss);
    if (right) {
        static _Thread_local float all[TESTS * CLASSES];
        EXPECT_OK(cairn_tensor_read(scores, all, n * CLASSES));
        *right = 0;
        for (int64_t i = 0; i < n; i++) {
            int best = 0;
            for (int c = 1; c < CLASSES; c++) {
                if (all[i * CLASSES + c] > all[i * CLASSES + best]) best = c;
            }
            *right += best == b->classes[i];
        }
    }
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&y);
    return NULL;
}

static double bytes_of(const struct way *w, const struct cairn_param_set *set) {
    double n = 0;
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        const double rows = (double)p->shape[0], cols = (double)p->n / rows, thin = (rows + cols) * w->rank;
        n += w->rank && 2 * thin < rows * cols ? thin : rows * cols;
    }
    return n * (w->hook ? 2 : 4) / (double)(w->period ? w->period : 1);
}

struct run {
    const struct way *way;
    struct outcome outcome;
};

static char *test_model(cairn_env *env, cairn_module *model, struct batch *b, struct outcome *out) {
    cairn_tensor *loss = NULL;
    float value = 0;
    for (int i = 0; i < TESTS; i++) b->classes[i] = example(1000000 + (uint64_t)i, b->x + (size_t)i * IN);
    cairn_no_grad_begin(env);
    PASS(loss_of(env, model, NULL, b, TESTS, &loss, &out->accuracy));
    value = cairn_tensor_item(loss);
    EXPECT_OK(cairn_no_grad_end(env));
    out->test_loss = value;
    out->accuracy /= TESTS;
    return NULL;
}

static char *train(cairn_env *env, void *ctx) {
    struct run *run = ctx;
    const struct way *w = run->way;
    const int rank = cairn_env_rank(env);
    struct cairn_sgd_options options = CAIRN_SGD_OPTIONS_INIT;
    struct outcome out = {0, 0, 0, 0};
    struct batch *b = calloc(1, sizeof(*b));
    cairn_optimizer *sgd = NULL;
    ddp_context *net = NULL;
    options.lr = 0.1;
    options.momentum = 0.9;
    cairn_module *model =
        cairn_sequential(env, 5,
                         (cairn_module *[]){cairn_linear(env, IN, HIDDEN), cairn_activation(env, cairn_relu),
                                            cairn_linear(env, HIDDEN, HIDDEN), cairn_activation(env, cairn_relu),
                                            cairn_linear(env, HIDDEN, CLASSES)});
    EXPECT(model);
    EXPECT_OK(cairn_sgd_create(cairn_module_params(model), &options, &sgd));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    out.nbytes = bytes_of(w, cairn_module_params(model));
    if (w->hook) EXPECT_OK(ddp_register_comm_hook(net, w->hook()));
    if (w->rank)
        EXPECT_OK(ddp_powersgd_register(net, ddp_powersgd_options(.matrix_approximation_rank = w->rank,
                                                                  .use_error_feedback = w->feedback,
                                                                  .start_powerSGD_iter = 10)));
    if (w->period) EXPECT_OK(ddp_post_local_sgd_register(net, ddp_post_local_sgd_options(.start_localSGD_iter = 10)));
    for (int step = 0; step < STEPS; step++) {
        cairn_tensor *loss = NULL;
        float value = 0;
        for (int i = 0; i < BATCH; i++) {
            const uint64_t at = (uint64_t)((step * RANKS + rank) * BATCH + i) % 6000;
            b->classes[i] = example(at, b->x + (size_t)i * IN);
        }
        cairn_zero_grad(sgd);
        PASS(loss_of(env, model, net, b, BATCH, &loss, NULL));
        value = cairn_tensor_item(loss);
        if (step >= STEPS - LAST) out.training_loss += (double)value / (LAST * RANKS);
        EXPECT_OK(cairn_backward(loss));
        EXPECT_OK(cairn_step(sgd));
        if (w->period) EXPECT_OK(ddp_weights_average(net, step + 1, ddp_weights_average_options(.period = w->period)));
    }
    EXPECT_OK(env->sum(env, &out.training_loss, 1));
    PASS(test_model(env, model, b, &out));
    if (rank == 0) run->outcome = out;
    free(b);
    ddp_destroy(&net);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    return NULL;
}

static void trainings_that_send_less_learn_the_same_rule(void **state) {
    (void)state;
    struct run runs[NUM_WAYS];
    printf("%-30s %10s %14s %10s %9s\n", "", "KiB a step", "training loss", "test loss", "accuracy");
    for (int i = 0; i < NUM_WAYS; i++) {
        runs[i].way = &ways[i];
        run_ranks(RANKS, train, &runs[i]);
        const struct outcome *o = &runs[i].outcome;
        printf("%-30s %10.1f %14.4f %10.4f %9.3f\n", ways[i].name, o->nbytes / 1024, o->training_loss, o->test_loss,
               o->accuracy);
    }
    const struct outcome *with = &runs[WITH_FEEDBACK].outcome, *without = &runs[WITHOUT_FEEDBACK].outcome;
    for (int i = 0; i < NUM_WAYS; i++) {
        assert_true(runs[i].outcome.test_loss <= ways[i].worst * runs[0].outcome.test_loss);
        assert_true(runs[i].outcome.test_loss < log(CLASSES)); /* of guesses */
    }
    assert_true(with->training_loss < without->training_loss);
    assert_true(with->test_loss < without->test_loss);
    assert_true(with->accuracy > without->accuracy);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(trainings_that_send_less_learn_the_same_rule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
