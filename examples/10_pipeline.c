/* A pipeline of two stages: the toy model of PyTorch's tutorial on model parallelism (linear 10 to 10 and relu on the
 * first rank, linear 10 to 5 on the last), with its input split into micro-batches. A single rank holds the whole
 * model.
 *
 *     cairn-run --nproc_per_node 2 ./10_pipeline --opt-level O2 --schedule gpipe --micro-batches 8
 *     cairn-run --nproc_per_node 4 ./10_pipeline --replicas 2
 *     cairn-run --nproc_per_node 2 ./10_pipeline --replicas 2 --threads 2
 *
 * The last command is ToyMpModel of the tutorial on DistributedDataParallel: two processes, each with a replica on two
 * devices. Its ranks are threads, so the data that they share is written before they start. */
#include <cairn/cairn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64, IN = 10, OUT = 5 };

static void die(const char *why) {
    fprintf(stderr, "10_pipeline: %s\n", why);
    exit(1);
}

static cairn_pipeline_schedule schedule_of(const char *name) {
    if (strcmp(name, "gpipe") == 0) return CAIRN_PIPELINE_GPIPE;
    if (strcmp(name, "1f1b") == 0) return CAIRN_PIPELINE_1F1B;
    die("--schedule is gpipe or 1f1b");
    return CAIRN_PIPELINE_1F1B;
}

/* The command line: the same on every rank. */
struct settings {
    struct amp_options level;
    cairn_pipeline_schedule schedule; /* 0 = the pipeline's default */
    int micro_batches, replicas, threads;
    long steps;
};

static void parse(int argc, char **argv, struct settings *s) {
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--opt-level") == 0) {
            CAIRN_CHECK(amp_opt_level_parse(value, &s->level.opt_level));
        } else if (strcmp(name, "--half") == 0) {
            CAIRN_CHECK(amp_half_type_parse(value, &s->level.half_type));
        } else if (strcmp(name, "--schedule") == 0) {
            s->schedule = schedule_of(value);
        } else if (strcmp(name, "--micro-batches") == 0) {
            s->micro_batches = atoi(value);
        } else if (strcmp(name, "--steps") == 0) {
            s->steps = atol(value);
        } else if (strcmp(name, "--replicas") == 0) {
            s->replicas = atoi(value);
        } else if (strcmp(name, "--threads") == 0) {
            s->threads = atoi(value);
        } else {
            die("the options are --opt-level O0..O3, --half f16|bf16, --schedule gpipe|1f1b, --micro-batches, --steps, "
                "--replicas, --threads");
        }
    }
}

/* Uniform in [-1, 1) and the same on every rank; Cairn's own generator gives each rank different numbers. */
static float next_number(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (1 << 23) - 1;
}

/* Uniform within torch's bounds, 1 / sqrt(10). On a GPU the parameters are in device memory. */
static cairn_module *make_linear(cairn_env *env, int64_t in, int64_t out, unsigned seed) {
    cairn_module *layer = cairn_linear(env, in, out);
    float weight[IN * IN], bias[IN];
    for (int64_t k = 0; k < in * out; k++) weight[k] = 0.316f * next_number(&seed);
    for (int64_t k = 0; k < out; k++) bias[k] = 0.316f * next_number(&seed);
    cairn_tensor *values[] = {cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(out, in), weight),
                              cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(out), bias)};
    cairn_no_grad_begin(env);
    if (!cairn_copy_(cairn_module_get(layer, "weight"), values[0]) ||
        !cairn_copy_(cairn_module_get(layer, "bias"), values[1]))
        die(cairn_last_error());
    CAIRN_CHECK(cairn_no_grad_end(env));
    for (int i = 0; i < 2; i++) cairn_tensor_destroy(&values[i]);
    return layer;
}

static cairn_module *make_stage(cairn_env *env, int stage, int stages) {
    cairn_module *layers[3];
    int count = 0;
    if (stage == 0) {
        layers[count++] = make_linear(env, IN, 10, 1);
        layers[count++] = cairn_activation(env, cairn_relu);
    }
    if (stage == stages - 1) layers[count++] = make_linear(env, 10, OUT, 2);
    return cairn_sequential(env, count, layers);
}

static cairn_tensor *mean_square(void *ctx, cairn_tensor *output, cairn_tensor *target, int micro_batch) {
    (void)ctx, (void)micro_batch;
    return cairn_mse_loss(output, target);
}

/* This replica's rows of the batch: random inputs, and targets computed from pairs of input columns. */
static void make_batch(cairn_env *env, int replica, int replicas, cairn_tensor **x, cairn_tensor **y) {
    float in[ROWS][IN], out[ROWS][OUT];
    unsigned state = 12345;
    const int rows = ROWS / replicas;
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < IN; k++) in[i][k] = next_number(&state);
        for (int k = 0; k < OUT; k++) out[i][k] = in[i][k] + in[i][k + OUT] * in[i][k];
    }
    *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, IN), in[replica * rows]);
    *y = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, OUT), out[replica * rows]);
}

/* Runs one rank: a process, or a thread of a process. */
static int run(int rank, void *argument) {
    const struct settings *given = argument;
    struct amp_options level = given->level;
    struct cairn_pipeline_options how =
        *cairn_pipeline_options(.schedule = given->schedule, .n_microbatches = given->micro_batches,
                                .loss = mean_square);
    cairn_env *env;
    (void)rank;
    CAIRN_CHECK(cairn_env_create(NULL, NULL, NULL, &env));
    cairn_grid *grid;
    CAIRN_CHECK(cairn_grid_create(env, given->replicas, 0, &grid));
    const int place = cairn_grid_stage(grid), stages = cairn_group_size(cairn_grid_stages(grid));
    if (stages > 2) die("there are two stages: start it with one or two ranks a replica");

    cairn_module *stage = make_stage(env, place, stages);
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 0.1;
    hyper.momentum = 0.9;
    CAIRN_CHECK(cairn_sgd_create(cairn_module_params(stage), &hyper, &how.optimizer));
    CAIRN_CHECK(amp_initialize(env, stage, how.optimizer, &level, &how.amp));
    ddp_context *net;
    CAIRN_CHECK(ddp_create(stage, cairn_grid_replicas(grid), NULL, &net));
    how.ddp = &net;
    cairn_pipeline *pipeline;
    CAIRN_CHECK(cairn_pipeline_create(&stage, 1, cairn_grid_stages(grid), &how, &pipeline));

    cairn_tensor *x, *y;
    make_batch(env, cairn_grid_replica(grid), given->replicas, &x, &y);
    for (long s = 1; s <= given->steps; s++) {
        double loss = 0, norm = 0;
        cairn_zero_grad(how.optimizer);
        CAIRN_CHECK(cairn_pipeline_step(pipeline, x, y, &loss));
        CAIRN_CHECK(cairn_clip_grad_norm(how.optimizer, 1.0, &norm));
        CAIRN_CHECK(cairn_step(how.optimizer));
        if (place < stages - 1 || (s > 1 && s % 10 != 0)) continue;
        CAIRN_CHECK(ddp_mean(&loss, 1, cairn_grid_replicas(grid)));
        if (cairn_grid_replica(grid) == 0) printf("step %3ld   loss %.6f   norm of both stages %.4f\n", s, loss, norm);
    }
    cairn_pipeline_destroy(&pipeline);
    ddp_destroy(&net);
    amp_destroy(&how.amp);
    cairn_optimizer_destroy(&how.optimizer);
    cairn_module_destroy(&stage);
    cairn_grid_destroy(&grid);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&y);
    cairn_env_destroy(&env);
    return 0;
}

int main(int argc, char **argv) {
    struct settings settings = {.level = *amp_options(.opt_level = AMP_O0),
                                .micro_batches = 4,
                                .replicas = 1,
                                .steps = 50};
    parse(argc, argv, &settings);
    if (settings.threads < 1) return run(0, &settings);
    CAIRN_CHECK(cairn_spawn_threads(run, &settings, settings.threads, NULL));
    return 0;
}
