/* A training that saves its raw gradients, so that lab.py can compare its own counts with those that the library writes
 * under CAIRN_LAB.
 *
 *     recorded --ranks 3 --steps 4 --level O2 --half f16 --folder DIR [--threads 1]
 *
 * DIR/raw/rank0/ gets a file for each gradient of each step: before-1-f16-0.weight is the gradient before ddp reduces
 * it, grad-1-f16-0.weight the gradient for the optimizer; activation-1-f32-PATH is the model's output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cairn/cairn.h"

struct choice {
    int ranks, steps, threads;
    const char *folder;
    amp_opt_level level;
    cairn_dtype half;
};

struct training {
    const struct choice *choice;
    cairn_param_set *params;
    int rank, step;
};

static void take(cairn_status st, const char *what) {
    if (st == CAIRN_OK) return;
    fprintf(stderr, "%s: %s\n", what, cairn_last_error());
    exit(1);
}

static void save(const struct training *t, const char *what, const char *name, cairn_dtype dtype, const void *x,
                 size_t n) {
    char path[600];
    snprintf(path, sizeof(path), "%s/raw/rank%d/%s-%d-%s-%s", t->choice->folder, t->rank, what, t->step,
             cairn_dtype_name(dtype), name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(x, cairn_dtype_nbytes(dtype), n, f) != n || fclose(f) != 0) {
        fprintf(stderr, "cannot write %s\n", path);
        exit(1);
    }
}

static void save_gradient(const struct training *t, const char *what, size_t i) {
    cairn_param p;
    size_t n = 1;
    take(cairn_param_set_get(t->params, i, &p), "cairn_param_set_get");
    for (int d = 0; d < p.ndim; d++) n *= (size_t)p.shape[d];
    save(t, what, p.name, p.dtype, p.grad, n);
}

/* Gradients are views of the bucket, which nothing has reduced yet. */
static cairn_status save_bucket(void *ctx, const struct ddp_bucket *bucket, cairn_work **work) {
    for (size_t i = 0; i < bucket->num_params; i++) save_gradient(ctx, "before", bucket->params[i]);
    return cairn_allreduce(bucket->group, bucket->buffer, bucket->n, bucket->dtype, CAIRN_AVG, work);
}

static void step(cairn_env *env, struct training *t, ddp_context *net, cairn_optimizer *optimizer, amp_context *amp) {
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 64));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 64));
    float values[8 * 64];
    t->step++;
    cairn_zero_grad(optimizer);
    cairn_tensor *result = ddp_forward(net, x), *loss = cairn_mse_loss(result, y);
    take(amp_backward(amp, loss, optimizer), "amp_backward");
    take(cairn_tensor_read(result, values, 8 * 64), "cairn_tensor_read");
    if (cairn_tensor_dtype(result) == CAIRN_F32) save(t, "activation", "Sequential", CAIRN_F32, values, 8 * 64);
    for (size_t i = 0; i < cairn_param_set_count(t->params); i++) save_gradient(t, "grad", i);
    take(cairn_step(optimizer), "cairn_step");
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&y);
}

static int train(int rank, void *argument) {
    struct training t = {.choice = argument, .rank = rank};
    const struct choice *c = argument;
    cairn_env *env = NULL;
    cairn_optimizer *optimizer = NULL;
    amp_context *amp = NULL;
    ddp_context *net = NULL;
    char path[600];
    snprintf(path, sizeof(path), "%s/raw/rank%d", c->folder, rank);
    (void)mkdir(path, 0777);
    take(cairn_env_create(NULL, NULL, cairn_env_options(.seed = 3, .timeout = 30), &env), "cairn_env_create");
    cairn_module *model =
        cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, 64, 64), cairn_activation(env, cairn_relu),
                                            cairn_linear(env, 64, 64)));
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    sgd.lr = 0.01;
    t.params = cairn_module_params(model);
    take(cairn_sgd_create(t.params, &sgd, &optimizer), "cairn_sgd_create");
    take(amp_initialize(env, model, optimizer, amp_options(.opt_level = c->level, .half_type = c->half), &amp),
         "amp_initialize");
    take(ddp_create(model, cairn_env_group(env), NULL, &net), "ddp_create");
    struct ddp_comm_hook hook = {.struct_size = sizeof(hook), .name = "save", .ctx = &t, .begin = save_bucket};
    take(ddp_register_comm_hook(net, &hook), "ddp_register_comm_hook");
    for (int i = 0; i < c->steps; i++) step(env, &t, net, optimizer, amp);
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&optimizer);
    cairn_module_destroy(&model);
    cairn_env_destroy(&env);
    return 0;
}

int main(int argc, char **argv) {
    struct choice c = {.ranks = 1, .steps = 1, .folder = ".", .level = AMP_O2, .half = CAIRN_F16};
    char raw[600];
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--ranks") == 0) c.ranks = atoi(value);
        if (strcmp(name, "--steps") == 0) c.steps = atoi(value);
        if (strcmp(name, "--threads") == 0) c.threads = atoi(value);
        if (strcmp(name, "--folder") == 0) c.folder = value;
        if (strcmp(name, "--level") == 0) take(amp_opt_level_parse(value, &c.level), "--level");
        if (strcmp(name, "--half") == 0) c.half = strcmp(value, "bf16") == 0 ? CAIRN_BF16 : CAIRN_F16;
    }
    snprintf(raw, sizeof(raw), "%s/raw", c.folder);
    (void)mkdir(raw, 0777);
    const cairn_status st =
        c.threads ? cairn_spawn_threads(train, &c, c.ranks, NULL) : cairn_spawn(train, &c, c.ranks, NULL);
    take(st, "ranks");
    return 0;
}
