/* Whole training steps on a GPU, called and as a graph: the quick start, a deep MLP in bf16, alone and under ddp on one
 * rank of NCCL, BERT-base's encoder in bf16 (12 layers of 768, 12 heads, batch 64, 128 tokens) and one layer of it, and
 * ResNet-50 in bf16 (batch 64, 224 x 224). The losses are compared with the CPU's, or with a run of the same steps,
 * before a figure is printed.
 *
 *     gpu-bench [device [width [batch]]]          cuda; six layers of 4096, batch 4096
 *
 * With a width, encoder and ResNet are small, too, and a step is timed only once: a smoke test.
 *
 * Prints "name = value unit", medians of ROUNDS rounds. The MLP's TFLOP/s count its products alone: forward, weight
 * gradients, and input gradients of every layer but the first, 2 * batch * width^2 each. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cairn/graph.h>

#include "../../examples/resnet/resnet.h"
#include "bench.h"
#include "core/trace.h"
#include "device/device.h"
#include "device/env.h"
#include "trainer.h"

enum { LAYERS = 6, COMPARED = 100 };

static const double LONG_ENOUGH = 0.1; /* seconds of one round */
static bool is_try;                    /* what is printed is no figure */

/* A step, called or replayed. */
struct way {
    struct trainer trainer;
    cairn_graph *graph; /* NULL = the step is called */
};

static void step(struct way *w) {
    done(w->graph ? cairn_graph_replay(w->graph) : trainer_step(&w->trainer));
}

static void steps(struct way *w, int times) {
    for (int i = 0; i < times; i++) step(w);
}

static void record(struct way *w) {
    done(cairn_graph_capture(w->trainer.env, trainer_step, &w->trainer, &w->graph));
}

static void destroy(struct way *w) {
    cairn_graph_destroy(&w->graph);
    trainer_destroy(&w->trainer);
}

static double timed(struct way *w, int times) {
    done(cairn_env_synchronize(w->trainer.env));
    const uint64_t begin = cairn__now_ns();
    steps(w, times);
    done(cairn_env_synchronize(w->trainer.env));
    return (double)(cairn__now_ns() - begin) * 1e-9 / times;
}

/* Seconds of a step, the median of rounds that follow a warm-up. */
static double seconds(struct way *w) {
    double took[ROUNDS];
    if (is_try) return timed(w, 1);
    timed(w, 2 * CAIRN_GRAPH_WARMUP);
    const double fits = LONG_ENOUGH / timed(w, 4);
    for (int i = 0; i < ROUNDS; i++) took[i] = timed(w, fits < 1 ? 1 : fits > 10000 ? 10000 : (int)fits);
    return median(took);
}

/* Kernels, copies and clears of a recorded step. */
static void print_nodes(const char *name, const struct way *w) {
    printf("%s queues = %zu nodes\n", name, w->trainer.env->device->recorded_nodes);
}

static float loss_of(const struct way *w) {
    return cairn_tensor_item(w->trainer.loss);
}

static const char *NAMES[] = {"quick start eager", "quick start graph"};

static const struct amp_options *quick_start_level(void) {
    static struct amp_options level;
    level = *amp_options(.opt_level = AMP_O2, .half_type = CAIRN_F16, .verbosity = -1);
    return &level;
}

static void create_quick_start(struct way *w, const char *device, bool recorded) {
    done(trainer_create_quick_start(&w->trainer, device, quick_start_level()));
    if (recorded) record(w);
}

/* f16 rounds to 2^-11, and masters keep what that loses: after COMPARED steps two devices, which add up in different
 * orders, are within 1 in 1000 (tests/train/devices_agree.c has the bounds of every level). */
static void bench_quick_start(const char *device) {
    struct way cpu = {.graph = NULL}, way[2] = {{.graph = NULL}, {.graph = NULL}};
    create_quick_start(&cpu, "cpu", false);
    steps(&cpu, COMPARED);
    for (int i = 0; i < 2; i++) {
        create_quick_start(&way[i], device, i == 1);
        steps(&way[i], COMPARED);
        require(fabsf(loss_of(&way[i]) - loss_of(&cpu)) <= 1e-3f * loss_of(&cpu), "the quick start ends elsewhere");
    }
    require(loss_of(&way[0]) == loss_of(&way[1]), "a replayed step is another step");
    for (int i = 0; i < 2; i++) {
        if (i == 1 && !cairn_graph_is_recorded(way[i].graph)) {
            printf("%s calls the step: no figure of a graph\n", device);
            continue;
        }
        printf("%s = %.2f us\n", NAMES[i], 1e6 * seconds(&way[i]));
        if (i == 1) print_nodes(NAMES[i], &way[i]);
    }
    destroy(&way[1]), destroy(&way[0]), destroy(&cpu);
}

static const struct amp_options *bf16_level(void) {
    static struct amp_options level;
    level = *amp_options(.opt_level = AMP_O2, .half_type = CAIRN_BF16, .verbosity = -1);
    return &level;
}

/* What is trained, in bf16 at O2, and what its losses must be. */
struct net {
    const char *name, *device;
    void (*create)(struct trainer *t, const struct net *net);
    int64_t size, batch;
    double dropout;
    float above, below; /* the first loss */
    bool falls;         /* the last loss is below the first; else between the same two */
    double flops;       /* of a step's products; 0 = no rate is printed */
};

static void create_mlp(struct trainer *t, const struct net *net) {
    done(trainer_create_mlp(t, net->device, LAYERS, net->size, net->batch, bf16_level()));
}

/* size: layers. */
static void create_encoder(struct trainer *t, const struct net *net) {
    const int layers = (int)net->size;
    done(net->batch < 64
             ? trainer_create_encoder(t, net->device, layers, 32, 2, net->batch, 8, net->dropout, bf16_level())
             : trainer_create_encoder(t, net->device, layers, 768, 12, net->batch, 128, net->dropout, bf16_level()));
}

/* size: of its pictures. One batch again and again, whose classes any net learns by heart. */
static void create_resnet(struct trainer *t, const struct net *net) {
    const bool is_small = net->batch < 64;
    const int64_t classes = is_small ? 10 : 1000;
    int64_t labels[64];
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    sgd.lr = 0.01, sgd.momentum = 0.9, sgd.weight_decay = 1e-4;
    for (int64_t i = 0; i < net->batch; i++) labels[i] = 7 * i % classes;
    done(cairn_env_create(NULL, NULL, cairn_env_options(.device = net->device), &t->env));
    t->x = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(net->batch, 3, net->size, net->size));
    t->y = cairn_tensor_from(t->env, CAIRN_I64, CAIRN_SHAPE(net->batch), labels);
    t->model = resnet_create(t->env, &(struct resnet_options){.depth = is_small ? 18 : 50,
                                                              .classes = classes,
                                                              .width = is_small ? 8 : 0});
    require(t->model != NULL, cairn_last_error());
    done(cairn_sgd_create(cairn_module_params(t->model), &sgd, &t->optimizer));
    done(amp_initialize(t->env, t->model, t->optimizer, bf16_level(), &t->amp));
}

/* NCCL's group of one rank on a GPU: every gradient goes through a bucket and a collective of NCCL's. */
static cairn_status create_env_of_ranks(const char *device, cairn_env **env) {
    const char *backend = strncmp(device, "cpu", 3) == 0 ? NULL : "nccl";
    return cairn_env_create(NULL, NULL, cairn_env_options(.device = device, .backend = backend), env);
}

static void create_ddp_mlp(struct trainer *t, const struct net *net) {
    done(create_env_of_ranks(net->device, &t->env));
    create_mlp(t, net);
    done(ddp_create(t->model, cairn_env_group(t->env), NULL, &t->net));
}

static void expect(bool holds, const char *name, const char *what) {
    char text[128];
    snprintf(text, sizeof(text), "%s %s", name, what);
    require(holds, text);
}

/* The loss after a few steps, and prints what each takes. */
static float bench_way(const struct net *net, bool recorded) {
    struct way w = {.graph = NULL};
    char name[64];
    snprintf(name, sizeof(name), "%s %s", net->name, recorded ? "graph" : "eager");
    net->create(&w.trainer, net);
    if (recorded) record(&w);
    step(&w);
    const float first = loss_of(&w);
    steps(&w, 2 * CAIRN_GRAPH_WARMUP);
    const float last = loss_of(&w);
    expect(first > net->above && first < net->below, name, "begins with another loss");
    expect(net->falls ? last < first : last > net->above && last < net->below, name, "ends with a loss that is none");
    if (!recorded || cairn_graph_is_recorded(w.graph)) {
        const double each = seconds(&w);
        printf("%s = %.1f us\n", name, 1e6 * each);
        if (net->flops > 0) printf("%s rate = %.2f TFLOP/s\n", name, net->flops / each * 1e-12);
        if (recorded) print_nodes(name, &w);
        fflush(stdout);
    }
    destroy(&w);
    return last;
}

/* Called, then replayed: one after the other, since two would need the memory twice. */
static float bench(const struct net *net) {
    const float called = bench_way(net, false);
    expect(called == bench_way(net, true), net->name, "has other losses replayed");
    return called;
}

static bool has_ranks(const char *device) {
    cairn_env *env = NULL;
    const cairn_status st = create_env_of_ranks(device, &env);
    if (st == CAIRN_ENOTBUILT) printf("no figure of ddp: %s\n", cairn_last_error());
    else done(st);
    cairn_env_destroy(&env);
    return st == CAIRN_OK;
}

static void bench_nets(const char *device, int64_t width, int64_t batch) {
    const int64_t sequences = is_try ? 2 : 64, layers = is_try ? 2 : 12;
    const struct net mlp = {.name = "mlp",
                            .device = device,
                            .create = create_mlp,
                            .size = width,
                            .batch = batch,
                            .above = 0.5f,
                            .below = 2,
                            .falls = true,
                            .flops = 2.0 * (3 * LAYERS - 1) * (double)batch * (double)width * (double)width};
    struct net ddp = mlp;
    struct net encoder = {.device = device, .create = create_encoder, .batch = sequences, .above = 0.1f, .below = 10};
    const struct net resnet = {.name = "resnet",
                               .device = device,
                               .create = create_resnet,
                               .size = is_try ? 16 : 224,
                               .batch = is_try ? 4 : 64,
                               .above = 0.5f,
                               .below = 20,
                               .falls = true};
    const float alone = bench(&mlp);
    if (has_ranks(device)) {
        ddp.name = "mlp ddp", ddp.create = create_ddp_mlp;
        require(bench(&ddp) == alone, "the MLP is another MLP under ddp");
    }
    encoder.name = "encoder layer", encoder.size = 1, encoder.dropout = 0.1;
    bench(&encoder);
    encoder.name = "encoder", encoder.size = layers;
    bench(&encoder);
    encoder.name = "encoder without dropout", encoder.dropout = 0;
    bench(&encoder);
    bench(&resnet);
}

int main(int argc, char **argv) {
    const char *device = argc > 1 ? argv[1] : "cuda";
    const int64_t width = argc > 2 ? strtoll(argv[2], NULL, 10) : 4096,
                  batch = argc > 3 ? strtoll(argv[3], NULL, 10) : width;
    struct way probe = {.graph = NULL};
    require(width > 0 && batch > 0, "gpu-bench [device [width [batch]]]");
    is_try = argc > 2;
    if (trainer_create_quick_start(&probe.trainer, device, quick_start_level()) != CAIRN_OK) {
        printf("no %s: %s\n", device, cairn_last_error());
        return SKIP;
    }
    printf("%s\n", cairn_device_describe(cairn_env_device(probe.trainer.env)));
    if (is_try) printf("a try: each number is of one step\n");
    else printf("medians of %d rounds\n", ROUNDS);
    destroy(&probe);
    bench_quick_start(device);
    bench_nets(device, width, batch);
    return 0;
}
