/* A custom optimizer, AdaMax, whose state is sharded over ranks (ZeRO stage 1), and an exponential moving average of
 * the weights. The model learns waves from noisy batches; each rank has its own batches.
 *
 *     cairn-run --nproc_per_node 2 ./12_own_optimizer --shard on */
#include <cairn/cairn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 32, D_IN = 8, HIDDEN = 64, D_OUT = 8, STEPS = 600, SHOW_EVERY = 100 };

static const float label_noise = 1;

/* Kingma and Ba, ICLR 2015, algorithm 2, with decoupled weight decay. */
static void adamax(void *ctx, const struct cairn_custom_update *u) {
    (void)ctx;
    const double beta1 = u->scalars->momentum, lr = u->scalars->lr;
    const float step = (float)(lr / (1 - pow(beta1, (double)u->scalars->update)));
    const float beta2 = (float)u->values[0], decay = (float)(lr * u->values[1]);
    float *m = u->states[0], *greatest = u->states[1], *w = u->weights;
    for (size_t i = 0; i < u->n; i++) {
        m[i] += (float)(1 - beta1) * (u->grad[i] - m[i]);
        greatest[i] = fmaxf(beta2 * greatest[i], fabsf(u->grad[i]) + 1e-8f);
        w[i] -= step * m[i] / greatest[i] + decay * w[i];
    }
}

static const struct cairn_custom_optimizer adamax_kind = {
    .struct_size = sizeof(adamax_kind),
    .name = "adamax",
    .update = adamax,
    .states = {"exp_avg", "exp_inf"},
    .momentum = "beta1",
    .values = {"beta2", "weight_decay"},
};

static void die(const char *why) {
    fprintf(stderr, "12_own_optimizer: %s\n", why);
    exit(1);
}

static void parse(int argc, char **argv, struct amp_options *amp, cairn_switch *shard) {
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--opt-level") == 0) {
            CAIRN_CHECK(amp_opt_level_parse(value, &amp->opt_level));
        } else if (strcmp(name, "--half") == 0) {
            CAIRN_CHECK(amp_half_type_parse(value, &amp->half_type));
        } else if (strcmp(name, "--shard") == 0 && (strcmp(value, "on") == 0 || strcmp(value, "off") == 0)) {
            *shard = strcmp(value, "on") == 0 ? CAIRN_ON : CAIRN_OFF;
        } else {
            die("the options are --opt-level O0..O3, --half f16|bf16, --shard on|off");
        }
    }
}

/* Uniform in -1 to 1. */
static float draw(void) {
    return 2 * ((float)rand() / (float)RAND_MAX) - 1;
}

/* Fills a batch. Each output is a wave along its own direction, which is the same on every rank. */
static void fill(float waves[D_OUT][D_IN], float x[N][D_IN], float y[N][D_OUT], float noise) {
    for (int n = 0; n < N; n++) {
        for (int i = 0; i < D_IN; i++) x[n][i] = draw();
        for (int o = 0; o < D_OUT; o++) {
            float along = 0;
            for (int i = 0; i < D_IN; i++) along += waves[o][i] * x[n][i];
            y[n][o] = sinf(along) + noise * draw();
        }
    }
}

static float waves[D_OUT][D_IN], x_now[N][D_IN], y_now[N][D_OUT], x_test[N][D_IN], y_test[N][D_OUT];

static double test(cairn_env *env, cairn_module *model, cairn_tensor *x, cairn_tensor *y) {
    cairn_no_grad_begin(env);
    cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(model, x), y);
    if (!loss) die(cairn_last_error());
    const double value = cairn_tensor_item(loss);
    CAIRN_CHECK(cairn_no_grad_end(env));
    return value;
}

int main(int argc, char **argv) {
    cairn_env *env;
    CAIRN_CHECK(cairn_env_create(&argc, &argv, NULL, &env));
    struct amp_options amp_choice = *amp_options(.opt_level = AMP_O1);
    cairn_switch shard = CAIRN_OFF;
    parse(argc, argv, &amp_choice, &shard);

    cairn_module *model =
        cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, D_IN, HIDDEN), /**/
                                            cairn_activation(env, cairn_tanh), cairn_linear(env, HIDDEN, D_OUT)));
    if (!model) die(cairn_last_error());
    struct cairn_custom_options hyper = CAIRN_CUSTOM_OPTIONS_INIT;
    hyper.lr = 2e-2;
    hyper.momentum = 0.9;
    hyper.values[0] = 0.999;
    cairn_optimizer *optimizer;
    CAIRN_CHECK(cairn_custom_optimizer_create(cairn_module_params(model), &adamax_kind, &hyper, &optimizer));
    amp_context *amp;
    CAIRN_CHECK(amp_initialize(env, model, optimizer, &amp_choice, &amp));
    ddp_context *net;
    CAIRN_CHECK(ddp_create(model, cairn_env_group(env), ddp_options(.shard_optimizer = shard), &net));
    struct cairn_averages_options how = CAIRN_EMA_OPTIONS_INIT;
    how.decay = 0.99;
    cairn_averages *averages; /* needs f32 weights: with sharded updates of half weights no rank has all masters */
    CAIRN_CHECK(cairn_averages_create(cairn_module_stateful(model), &how, &averages));

    srand(1);
    for (int o = 0; o < D_OUT; o++) {
        for (int i = 0; i < D_IN; i++) waves[o][i] = draw();
    }
    fill(waves, x_test, y_test, 0);
    srand(2 + (unsigned)cairn_env_rank(env));
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N, D_IN), x_now);
    cairn_tensor *y = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N, D_OUT), y_now);
    cairn_tensor *seen = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N, D_IN), x_test);
    cairn_tensor *wanted = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N, D_OUT), y_test);
    if (!x || !y || !seen || !wanted) die(cairn_last_error());

    for (int step = 1; step <= STEPS; step++) {
        fill(waves, x_now, y_now, label_noise);
        CAIRN_CHECK(cairn_tensor_write(x, x_now, N * D_IN));
        CAIRN_CHECK(cairn_tensor_write(y, y_now, N * D_OUT));
        cairn_zero_grad(optimizer);
        CAIRN_CHECK(amp_backward(amp, cairn_mse_loss(ddp_forward(net, x), y), optimizer));
        CAIRN_CHECK(cairn_step(optimizer));
        CAIRN_CHECK(cairn_averages_update(averages, optimizer));
        if (step % SHOW_EVERY) continue;
        const double own = test(env, model, seen, wanted);
        CAIRN_CHECK(cairn_averages_apply(averages));
        const double averaged = test(env, model, seen, wanted);
        CAIRN_CHECK(cairn_averages_restore(averages));
        if (cairn_env_rank(env) == 0) printf("step %d  test loss %.6f, of averages %.6f\n", step, own, averaged);
    }
    cairn_averages_destroy(&averages);
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&optimizer);
    cairn_module_destroy(&model);
    cairn_env_destroy(&env);
    return 0;
}
