/* Two stages on two ranks: the cost of sending activations, and the gain from micro-batches.
 *
 *     cairn-run --nproc_per_node 2 build/tests/parallel/pipeline-bench [layers width rows]
 *     cairn-run --nproc_per_node 2 build/tests/parallel/pipeline-bench resnet [size batch blocks-of-the-first-half]
 *     build/tests/parallel/pipeline-bench threads ...       the same on two threads of one process
 *
 * 1. Micro-batches of 1 MiB through stages that compute nothing, beside memcpy of as much between as many buffers.
 * 2. A deep MLP, or ResNet-50, half of it on each rank: forward and backward of a batch in one piece, and in M
 *    micro-batches, beside the halves alone, both ranks at once and without messages: a step cannot take less than
 *    (M + 1) / M of the slower one, if micro-batches cost no more than their part of the batch.
 *
 * Prints medians over rounds that measure all variants one after the other; the first round checks the results. */
#include <math.h>
#include <string.h>

#include "../bench.h"
#include "../../examples/resnet/resnet.h"
#include "cairn/cairn.h"
#include "core/trace.h"

enum { MIB = 1 << 20, ACTIVATIONS = 64, FLOATS = MIB / (int)sizeof(float), MOST_LAYERS = 64 };

static double now(void) {
    return 1e-9 * (double)cairn__now_ns();
}

/* ---- 1. an activation ---- */

static _Thread_local int wrong;

static cairn_tensor *hand_on(void *ctx, cairn_module *module, cairn_tensor *input, int micro_batch) {
    const bool *const looks = ctx;
    float first = 0;
    (void)module;
    if (*looks) {
        done(cairn_tensor_read(cairn_slice(cairn_reshape(input, CAIRN_SHAPE(FLOATS)), 0, 7, 8, 1), &first, 1));
        wrong += first != (float)(micro_batch * FLOATS + 7);
    }
    return input;
}

static double time_memcpy(void) {
    enum { BUFFERS = 8 };
    static char *from, *to;
    if (!from) {
        from = malloc((size_t)BUFFERS * MIB);
        to = malloc((size_t)BUFFERS * MIB);
        require(from && to, "out of memory");
        memset(from, 1, (size_t)BUFFERS * MIB);
        memset(to, 2, (size_t)BUFFERS * MIB);
    }
    const double begin = now();
    for (int i = 0; i < ACTIVATIONS; i++) memcpy(to + i % BUFFERS * MIB, from + (i + 3) % BUFFERS * MIB, MIB);
    require(to[5] == 1, "memcpy");
    return (now() - begin) / ACTIVATIONS;
}

static void measure_activations(cairn_env *env) {
    double copies[ROUNDS], activations[ROUNDS];
    bool looks = true;
    cairn_module *none = cairn_activation(env, cairn_relu);
    cairn_pipeline *pipeline = NULL;
    const int64_t row = FLOATS;
    float *values = malloc((size_t)ACTIVATIONS * MIB);
    require(none && values, "out of memory");
    for (int i = 0; i < ACTIVATIONS * FLOATS; i++) values[i] = (float)i;
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ACTIVATIONS, row), values);
    free(values);
    done(cairn_pipeline_create(&none, 1, cairn_env_group(env),
                               cairn_pipeline_options(.n_microbatches = ACTIVATIONS, .forward = hand_on, .ctx = &looks),
                               &pipeline));
    if (cairn_env_rank(env) == 1) (void)time_memcpy();
    for (int i = 0; i < 2; i++) done(cairn_pipeline_eval(pipeline, x, NULL, NULL, NULL)); /* makes group memory */
    require(!wrong, "an activation did not arrive as it was sent");
    looks = false;
    for (int i = 0; i < ROUNDS; i++) {
        done(cairn_barrier(cairn_env_group(env)));
        copies[i] = cairn_env_rank(env) == 1 ? time_memcpy() : 0;
        done(cairn_barrier(cairn_env_group(env)));
        const double begin = now();
        done(cairn_pipeline_eval(pipeline, x, NULL, NULL, NULL));
        activations[i] = (now() - begin) / ACTIVATIONS;
    }
    const double copy = median(copies), activation = median(activations);
    if (cairn_env_rank(env) == 1)
        printf("an activation of 1 MiB %.1f us, memcpy of 1 MiB %.1f us: %.2f times\n", 1e6 * activation, 1e6 * copy,
               activation / copy);
    cairn_pipeline_destroy(&pipeline);
    cairn_module_destroy(&none);
    cairn_tensor_destroy(&x);
}

/* ---- 2. micro-batches ---- */

/* A rank's half of a model. */
struct half {
    cairn_env *env;
    const char *name;
    cairn_module *module;
    cairn_optimizer *optimizer;
    cairn_tensor *x, *y; /* of the whole model */
    cairn_tensor *alone; /* what the half gets where it runs without the other */
    double loss;         /* of the first pipeline that was run */
};

static cairn_tensor *mean_square(void *ctx, cairn_tensor *output, cairn_tensor *target, int micro_batch) {
    (void)ctx, (void)micro_batch;
    return cairn_mse_loss(output, target);
}

static cairn_tensor *cross_entropy(void *ctx, cairn_tensor *output, cairn_tensor *target, int micro_batch) {
    (void)ctx, (void)micro_batch;
    return cairn_cross_entropy(output, target, NULL);
}

/* Learns what the half gets. */
static cairn_tensor *forward(void *ctx, cairn_module *module, cairn_tensor *input, int micro_batch) {
    struct half *h = ctx;
    (void)micro_batch;
    if (!h->alone) {
        h->alone = cairn_tensor_keep(input);
        if (cairn_env_rank(h->env) == 1) done(cairn_tensor_require_grad(h->alone));
    }
    return cairn_module_forward(module, input);
}

static double time_alone(const struct half *h) {
    done(cairn_barrier(cairn_env_group(h->env)));
    const double begin = now();
    cairn_zero_grad(h->optimizer);
    cairn_tensor *y = cairn_module_forward(h->module, h->alone);
    done(cairn_backward(cairn_mean(cairn_mul(y, y))));
    return now() - begin;
}

static double time_pipeline(struct half *h, cairn_pipeline *pipeline) {
    double loss = 0;
    done(cairn_barrier(cairn_env_group(h->env)));
    const double begin = now();
    cairn_zero_grad(h->optimizer);
    done(cairn_pipeline_step(pipeline, h->x, h->y, &loss));
    done(cairn_barrier(cairn_env_group(h->env)));
    const double time = now() - begin;
    if (!(h->loss > 0)) h->loss = loss;
    /* Statistics of norms are each micro-batch's. */
    require(cairn_env_rank(h->env) == 0 || fabs(loss - h->loss) < 0.25 * h->loss, "the losses differ");
    return time;
}

static void make_mlp_half(struct half *h, int layers, int64_t width, int64_t rows) {
    cairn_module *list[2 * MOST_LAYERS];
    static char name[80];
    for (int i = 0; i < layers / 2; i++) {
        list[2 * i] = cairn_linear(h->env, width, width);
        list[2 * i + 1] = cairn_activation(h->env, cairn_relu);
    }
    h->module = cairn_sequential(h->env, layers / 2 * 2, list);
    h->x = cairn_randn(h->env, CAIRN_F32, CAIRN_SHAPE(rows, width));
    h->y = cairn_randn(h->env, CAIRN_F32, CAIRN_SHAPE(rows, width));
    snprintf(name, sizeof(name), "MLP %dx%lld^2, %lld rows", layers, (long long)width, (long long)rows);
    h->name = name;
}

/* cut: blocks of the first half. */
static void make_resnet_half(struct half *h, int64_t size, int64_t batch, int cut) {
    enum { CLASSES = 1000 };
    static char name[80];
    const bool is_first = cairn_env_rank(h->env) == 0;
    struct resnet_options options = {.depth = 50, .classes = CLASSES};
    *(is_first ? &options.end_block : &options.first_block) = cut;
    h->module = resnet_create(h->env, &options);
    h->x = cairn_randn(h->env, CAIRN_F32, CAIRN_SHAPE(batch, 3, size, size));
    h->y = cairn_arange(h->env, CAIRN_I64, 0, (double)batch, 1);
    snprintf(name, sizeof(name), "ResNet-50 cut after block %d, %lld pictures of %lldx%lld", cut, (long long)batch,
             (long long)size, (long long)size);
    h->name = name;
}

enum { COUNTS = 5, SCHEDULES = 2 };
static const int counts[COUNTS] = {1, 2, 4, 8, 16};

static void print_times(const struct half *h, double *alone, double times[COUNTS][SCHEDULES][ROUNDS]) {
    const double half = median(alone), plain = median(times[0][0]);
    printf("%s: the slower half alone %.2f ms, two stages in one piece %.2f ms\n", h->name, 1e3 * half, 1e3 * plain);
    for (int c = 1; c < COUNTS; c++) {
        const int m = counts[c];
        const double bound = half * (m + 1) / m, gpipe = median(times[c][0]), one = median(times[c][1]);
        printf("%2d micro-batches: GPipe %.2f ms, %.2f times; 1F1B %.2f ms, %.2f times; bound %.2f ms, %.2f times\n", m,
               1e3 * gpipe, plain / gpipe, 1e3 * one, plain / one, 1e3 * bound, plain / bound);
    }
}

static void measure_micro_batches(struct half *h, cairn_pipeline_loss_fn loss) {
    double alone[ROUNDS], times[COUNTS][SCHEDULES][ROUNDS];
    cairn_pipeline *pipelines[COUNTS][SCHEDULES];
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    require(h->module && h->x && h->y, cairn_last_error());
    done(cairn_sgd_create(cairn_module_params(h->module), &hyper, &h->optimizer));
    for (int c = 0; c < COUNTS; c++) {
        for (int s = 0; s < SCHEDULES; s++)
            done(cairn_pipeline_create(&h->module, 1, cairn_env_group(h->env),
                                       cairn_pipeline_options(.schedule = (cairn_pipeline_schedule)(s + 1),
                                                              .n_microbatches = counts[c], .loss = loss,
                                                              .forward = forward, .ctx = h),
                                       &pipelines[c][s]));
    }
    (void)time_pipeline(h, pipelines[0][0]); /* in one piece: forward learns what the half gets */
    for (int i = -2; i < ROUNDS; i++) {      /* the first two make memory */
        const int round = i < 0 ? 0 : i;
        double slower = time_alone(h);
        done(cairn_allreduce(cairn_env_group(h->env), &slower, 1, CAIRN_F64, CAIRN_MAX, NULL));
        alone[round] = slower;
        for (int c = 0; c < COUNTS; c++) {
            for (int s = 0; s < SCHEDULES; s++) times[c][s][round] = time_pipeline(h, pipelines[c][s]);
        }
    }
    if (cairn_env_rank(h->env) == 1) print_times(h, alone, times);
    for (int c = 0; c < COUNTS; c++) {
        for (int s = 0; s < SCHEDULES; s++) cairn_pipeline_destroy(&pipelines[c][s]);
    }
    cairn_optimizer_destroy(&h->optimizer);
    cairn_module_destroy(&h->module);
    cairn_tensor_destroy(&h->x);
    cairn_tensor_destroy(&h->y);
    cairn_tensor_destroy(&h->alone);
}

static int number(int argc, char **argv, int i, int otherwise) {
    return i < argc ? atoi(argv[i]) : otherwise;
}

struct arguments {
    int argc;
    char **argv;
};

static int run(int rank, void *argument) {
    const struct arguments *a = argument;
    const int argc = a->argc;
    char **argv = a->argv;
    cairn_env *env = NULL;
    (void)rank;
    done(cairn_env_create(NULL, NULL, NULL, &env));
    require(cairn_env_size(env) == 2, "start it with two ranks: cairn-run --nproc_per_node 2, or say threads");
    if (cairn_env_rank(env) == 1) printf("%s\n", cairn_env_describe(env));
    struct half h = {.env = env};
    if (argc > 1 && strcmp(argv[1], "resnet") == 0) {
        make_resnet_half(&h, number(argc, argv, 2, 64), number(argc, argv, 3, 32), number(argc, argv, 4, 8));
        measure_micro_batches(&h, cross_entropy);
    } else {
        const int layers = number(argc, argv, 1, 12);
        require(layers > 1 && layers <= MOST_LAYERS, "there are 2 to 64 layers");
        measure_activations(env);
        make_mlp_half(&h, layers, number(argc, argv, 2, 256), number(argc, argv, 3, 4096));
        measure_micro_batches(&h, mean_square);
    }
    cairn_env_destroy(&env);
    return 0;
}

int main(int argc, char **argv) {
    struct arguments a = {argc, argv};
    if (argc < 2 || strcmp(argv[1], "threads") != 0) return run(0, &a);
    a.argc--, a.argv++;
    done(cairn_spawn_threads(run, &a, 2, NULL));
    return 0;
}
