/* An observed training on ranks of cairn_spawn, 3 by default.
 *
 *     observed --ranks 3 --steps 20 [--threads 1] [--kill RANK] [--align FILE] [--csv FILE] [--pause MS]
 *     observed --merge FILE
 *
 * --threads 1: ranks are threads. --kill: this rank is killed half-way. --align: each rank creates its own timeline, as
 * on a separate machine, and aligns it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cairn/cairn.h"

struct choice {
    int ranks, steps, threads, kill, pause_ms;
    const char *align, *merge;
};

static void take(cairn_status st, const char *what) {
    if (st == CAIRN_OK) return;
    fprintf(stderr, "%s: %s\n", what, cairn_last_error());
    exit(1);
}

static void align(cairn_env *env, const char *path, cairn_writer **timeline) {
    char host[32];
    double within = -1;
    snprintf(host, sizeof(host), "machine%d", cairn_env_rank(env));
    setenv("CAIRN_HOST_ID", host, 1);
    take(cairn_timeline_create(env, path, timeline), "cairn_timeline_create");
    take(cairn_timeline_align(env, *timeline, &within), "cairn_timeline_align");
    fprintf(stderr, "rank %d: within %.9f s\n", cairn_env_rank(env), within);
    take(cairn_writer_flush(*timeline), "cairn_writer_flush");
}

static void step(cairn_env *env, const struct choice *c, int i, cairn_module *model, ddp_context *net,
                 cairn_optimizer *optimizer, amp_context *amp) {
    double norm = 0;
    const uint64_t begin = cairn_span_begin();
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 64)),
                 *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 64));
    cairn_span_end("make \"batch\"\n", i, begin);
    (void)model;
    cairn_zero_grad(optimizer);
    cairn_tensor *loss = cairn_mse_loss(ddp_forward(net, x), y);
    take(amp_backward(amp, loss, optimizer), "amp_backward");
    take(cairn_clip_grad_norm(optimizer, 1, &norm), "cairn_clip_grad_norm");
    take(cairn_step(optimizer), "cairn_step");
    cairn_scalar_record("loss", i + 1, cairn_tensor_item(loss));
    cairn_counter_set("queue", i % 3);
    take(cairn_histogram_record("norms", i + 1,
                                cairn_histogram(.num_buckets = 2, .limits = (double[]){0.5, 1e300},
                                                .counts = (double[]){norm <= 0.5, norm > 0.5}, .min = norm, .max = norm,
                                                .count = 1, .sum = norm, .sum_squares = norm * norm)),
         "cairn_histogram_record");
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&y);
    if (c->pause_ms) nanosleep(&(struct timespec){.tv_nsec = c->pause_ms * 1000000L}, NULL);
    if (c->kill == cairn_env_rank(env) && i == c->steps / 2) kill(getpid(), SIGKILL);
}

static int train(int rank, void *argument) {
    const struct choice *c = argument;
    cairn_env *env = NULL;
    cairn_writer *timeline = NULL;
    (void)rank;
    take(cairn_env_create(NULL, NULL, cairn_env_options(.seed = 3, .timeout = 30), &env), "cairn_env_create");
    if (c->align) align(env, c->align, &timeline);
    cairn_module *model =
        cairn_sequential(env, 4,
                         (cairn_module *[]){cairn_linear(env, 64, 64), cairn_activation(env, cairn_relu),
                                            cairn_linear(env, 64, 64), cairn_linear(env, 64, 64)});
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    sgd.lr = 0.01;
    cairn_optimizer *optimizer = NULL;
    amp_context *amp = NULL;
    ddp_context *net = NULL;
    take(cairn_sgd_create(cairn_module_params(model), &sgd, &optimizer), "cairn_sgd_create");
    take(amp_initialize(env, model, optimizer, amp_options(.opt_level = AMP_O2), &amp), "amp_initialize");
    take(ddp_create(model, cairn_env_group(env), ddp_options(.bucket_nbytes = 8192), &net), "ddp_create");
    for (int i = 0; i < c->steps; i++) step(env, c, i, model, net, optimizer, amp);
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&optimizer);
    cairn_module_destroy(&model);
    cairn_writer_destroy(&timeline);
    cairn_env_destroy(&env);
    return 0;
}

int main(int argc, char **argv) {
    struct choice c = {.ranks = 3, .steps = 20, .kill = -1};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--ranks") == 0) c.ranks = atoi(value);
        if (strcmp(name, "--steps") == 0) c.steps = atoi(value);
        if (strcmp(name, "--threads") == 0) c.threads = atoi(value);
        if (strcmp(name, "--kill") == 0) c.kill = atoi(value);
        if (strcmp(name, "--pause") == 0) c.pause_ms = atoi(value);
        if (strcmp(name, "--align") == 0) c.align = value;
        if (strcmp(name, "--merge") == 0) c.merge = value;
    }
    if (c.merge) {
        take(cairn_timeline_merge(c.merge), "cairn_timeline_merge");
        return 0;
    }
    const cairn_status st =
        c.threads ? cairn_spawn_threads(train, &c, c.ranks, NULL) : cairn_spawn(train, &c, c.ranks, NULL);
    take(st, "ranks");
    return 0;
}
