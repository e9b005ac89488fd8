/* Distributed mixed-precision training on one page: linear regression, as in apex's examples/simple/distributed. Each
 * rank trains on its own batch.
 *
 *     cairn-run --nproc_per_node 2 ./01_linear_regression --opt-level O2 */
#include <cairn/cairn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint.h"

enum { N = 64, D_IN = 1024, D_OUT = 16 };

static void die(const char *why) {
    fprintf(stderr, "01_linear_regression: %s\n", why);
    exit(1);
}

static void parse(int argc, char **argv, struct amp_options *amp, long *steps, unsigned long long *seed,
                  struct checkpoint *checkpoint) {
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        char *end = "";
        if (strcmp(name, "--opt-level") == 0) {
            CAIRN_CHECK(amp_opt_level_parse(value, &amp->opt_level));
        } else if (strcmp(name, "--half") == 0) {
            CAIRN_CHECK(amp_half_type_parse(value, &amp->half_type));
        } else if (strcmp(name, "--loss-scale") == 0) {
            CAIRN_CHECK(amp_loss_scale_parse(value, &amp->loss_scale));
        } else if (strcmp(name, "--steps") == 0) {
            *steps = strtol(value, &end, 10);
        } else if (strcmp(name, "--seed") == 0) {
            *seed = strtoull(value, &end, 10);
        } else if (!checkpoint_option(checkpoint, name, value)) {
            die("the options are --opt-level O0..O3, --half f16|bf16, --loss-scale dynamic|<number>, --steps, --seed, "
                "--checkpoint FOLDER, --save-every STEPS");
        }
        if (*value == '\0' || *end != '\0' || *steps < 1) die("--steps and --seed take whole numbers, --steps from 1");
    }
}

static double microseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    cairn_env *env; /* started by torchrun, torch.distributed.launch or cairn-run, or a single process */
    CAIRN_CHECK(cairn_env_create(&argc, &argv, NULL, &env));
    struct amp_options amp_choice = *amp_options(.opt_level = AMP_O1);
    long steps = 500;
    unsigned long long seed = 0;
    struct checkpoint checkpoint = {.folder = NULL};
    parse(argc, argv, &amp_choice, &steps, &seed, &checkpoint);
    cairn_manual_seed(env, seed);

    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(N, D_IN));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(N, D_OUT));
    cairn_module *model = cairn_linear(env, D_IN, D_OUT);

    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 1e-3;
    cairn_optimizer *sgd;
    CAIRN_CHECK(cairn_sgd_create(cairn_module_params(model), &hyper, &sgd));

    amp_context *amp;
    CAIRN_CHECK(amp_initialize(env, model, sgd, &amp_choice, &amp));
    ddp_context *net;
    CAIRN_CHECK(ddp_create(model, cairn_env_group(env), NULL, &net));

    const int speaks = cairn_env_rank(env) == 0, in_place = isatty(STDOUT_FILENO);
    double first = 0, last = 0;
    checkpoint_begin(&checkpoint, env, model, sgd, amp, net, NULL);
    if (checkpoint.state) CAIRN_CHECK(cairn_state_add_f64(checkpoint.state, "first loss", &first));
    if (checkpoint.state) CAIRN_CHECK(cairn_state_add_f64(checkpoint.state, "last loss", &last));
    checkpoint_resume(&checkpoint);
    const long before = (long)checkpoint.steps; /* greater than 0 after a restart */
    double begin = 0; /* after the first step, which allocates what later steps reuse and is not timed */
    for (long t = before + 1; t <= steps; t++) {
        cairn_zero_grad(sgd);
        cairn_tensor *loss = cairn_mse_loss(ddp_forward(net, x), y);
        CAIRN_CHECK(amp_backward(amp, loss, sgd));
        CAIRN_CHECK(cairn_step(sgd));
        const int shows = t % 50 == 0;
        if (t == before + 1 || shows || t == steps) last = cairn_tensor_item(loss); /* waits for the device */
        if (t == 1) first = last;
        if (t == before + 1) begin = microseconds();
        if (speaks && shows) printf(in_place ? "\rstep %ld  loss %.6f" : "step %ld  loss %.6f\n", t, last);
        if (speaks && shows) fflush(stdout);
        checkpoint_step(&checkpoint);
    }
    double each = steps > before + 1 ? (microseconds() - begin) / (double)(steps - before - 1) : 0;
    if (speaks) {
        printf("%sfirst loss = %.6f\nskipped steps = %lld\nus per step = %.1f\nfinal loss = %.6f\n",
               in_place ? "\n" : "", first, (long long)cairn_optimizer_skipped(sgd), each, last);
    }
    checkpoint_end(&checkpoint);
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    cairn_env_destroy(&env);
    return 0;
}
