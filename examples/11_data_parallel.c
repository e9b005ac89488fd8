/* One process that splits each batch over threads, as torch.nn.DataParallel does: a small network learns a function of
 * its input. The number of replicas changes the time, not what the network learns.
 *
 *     ./11_data_parallel --replicas 2 --opt-level O2 --half bf16 --loss inside */
#include <cairn/cairn.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64, IN = 10, HIDDEN = 256, OUT = 5 };

static void die(const char *why) {
    fprintf(stderr, "11_data_parallel: %s\n", why);
    exit(1);
}

static bool is_inside(const char *value) {
    if (strcmp(value, "inside") != 0 && strcmp(value, "outside") != 0) die("--loss is inside or outside");
    return strcmp(value, "inside") == 0;
}

static void parse(int argc, char **argv, struct amp_options *amp, struct cairn_data_parallel_options *dp, long *steps) {
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--opt-level") == 0) {
            CAIRN_CHECK(amp_opt_level_parse(value, &amp->opt_level));
        } else if (strcmp(name, "--half") == 0) {
            CAIRN_CHECK(amp_half_type_parse(value, &amp->half_type));
        } else if (strcmp(name, "--replicas") == 0) {
            dp->num_replicas = atoi(value);
        } else if (strcmp(name, "--loss") == 0) {
            dp->forward_returns_loss = is_inside(value) ? CAIRN_ON : CAIRN_OFF;
        } else if (strcmp(name, "--steps") == 0) {
            *steps = atol(value);
        } else {
            die("the options are --opt-level O0..O3, --half f16|bf16, --replicas, --loss inside|outside, --steps");
        }
    }
}

static cairn_module *make_net(cairn_env *env) {
    cairn_module *layers[] = {cairn_linear(env, IN, HIDDEN), cairn_activation(env, cairn_tanh),
                              cairn_linear(env, HIDDEN, OUT)};
    return cairn_sequential(env, 3, layers);
}

static cairn_module *make_replica(void *ctx, cairn_env *env, int replica) {
    (void)ctx, (void)replica;
    return make_net(env);
}

/* The loss of a replica's rows, computed on the replica's thread. */
static cairn_tensor *loss_inside(void *ctx, cairn_module *net, cairn_tensor *const *inputs, int count, int replica) {
    (void)ctx, (void)count, (void)replica;
    return cairn_mse_loss(cairn_module_forward(net, inputs[0]), inputs[1]);
}

static void make_batch(cairn_env *env, cairn_tensor **x, cairn_tensor **y) {
    float in[ROWS][IN], out[ROWS][OUT];
    unsigned state = 12345;
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < IN; k++) {
            state = state * 1664525u + 1013904223u;
            in[i][k] = (float)(state >> 8) / (1 << 23) - 1;
        }
        for (int k = 0; k < OUT; k++) out[i][k] = in[i][k] + in[i][k + OUT] * in[i][k];
    }
    *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN), in);
    *y = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ROWS, OUT), out);
}

int main(int argc, char **argv) {
    cairn_env *env;
    CAIRN_CHECK(cairn_env_create(&argc, &argv, cairn_env_options(.seed = 1), &env));
    struct amp_options level = *amp_options(.opt_level = AMP_O0);
    struct cairn_data_parallel_options how = *cairn_data_parallel_options(.make = make_replica, .amp = &level);
    long steps = 100;
    parse(argc, argv, &level, &how, &steps);
    const bool inside = how.forward_returns_loss == CAIRN_ON;
    if (inside) how.forward = loss_inside;

    cairn_module *net = make_net(env);
    struct cairn_adam_options hyper = CAIRN_ADAM_OPTIONS_INIT;
    hyper.lr = 0.01;
    cairn_optimizer *adam;
    CAIRN_CHECK(cairn_adam_create(cairn_module_params(net), &hyper, &adam));
    amp_context *amp;
    CAIRN_CHECK(amp_initialize(env, net, adam, &level, &amp));
    cairn_data_parallel *replicas;
    CAIRN_CHECK(cairn_data_parallel_create(net, &how, &replicas));

    cairn_tensor *batch[2]; /* inputs and targets */
    make_batch(env, &batch[0], &batch[1]);
    for (long s = 1; s <= steps; s++) {
        cairn_zero_grad(adam);
        cairn_tensor *loss = inside ? cairn_data_parallel_forward_n(replicas, batch, 2)
                                    : cairn_mse_loss(cairn_data_parallel_forward(replicas, batch[0]), batch[1]);
        CAIRN_CHECK(amp_backward(amp, loss, adam));
        CAIRN_CHECK(cairn_step(adam));
        if (s == 1 || s % 20 == 0) printf("step %3ld   loss %.4f\n", s, (double)cairn_tensor_item(loss));
    }
    printf("%d replicas\n", cairn_data_parallel_num_replicas(replicas));
    cairn_data_parallel_destroy(&replicas);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&adam);
    cairn_module_destroy(&net);
    cairn_tensor_destroy(&batch[0]);
    cairn_tensor_destroy(&batch[1]);
    cairn_env_destroy(&env);
    return 0;
}
