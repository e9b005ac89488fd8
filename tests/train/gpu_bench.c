/* Whole training steps on a GPU, called and as a graph: the quick start, a deep MLP in bf16, and BERT-base's encoder in
 * bf16 (12 layers of 768, 12 heads, batch 64, 128 tokens). The losses are compared with the CPU's, or with a run of the
 * same steps, before a figure is printed.
 *
 *     gpu-bench [device [width [batch]]]          cuda; six layers of 4096, batch 4096
 *
 * Where a width is given the encoder is small, too: a try.
 *
 * Prints "name = value unit", medians of ROUNDS rounds. The MLP's TFLOP/s count its products alone: forward, weight
 * gradients, and input gradients of every layer but the first, 2 * batch * width^2 each. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cairn/graph.h>

#include "bench.h"
#include "core/trace.h"
#include "device/device.h"
#include "device/env.h"
#include "trainer.h"

enum { LAYERS = 6, COMPARED = 100 };

static const double LONG_ENOUGH = 0.1; /* seconds of one round */

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

static void create_mlp(struct way *w, const char *device, int64_t width, int64_t batch, bool recorded) {
    const struct amp_options *level = amp_options(.opt_level = AMP_O2, .half_type = CAIRN_BF16, .verbosity = -1);
    done(trainer_create_mlp(&w->trainer, device, LAYERS, width, batch, level));
    if (recorded) record(w);
}

static void bench_mlp(const char *device, int64_t width, int64_t batch) {
    static const char *names[] = {"mlp eager", "mlp graph"};
    const double flops = 2.0 * (3 * LAYERS - 1) * (double)batch * (double)width * (double)width;
    float first = 0, last[2] = {0};
    for (int i = 0; i < 2; i++) { /* one after the other: two would need the memory twice */
        struct way w = {.graph = NULL};
        create_mlp(&w, device, width, batch, i == 1);
        step(&w);
        first = loss_of(&w);
        steps(&w, 2 * CAIRN_GRAPH_WARMUP);
        last[i] = loss_of(&w);
        require(first > 0.5f && first < 2 && last[i] < first, "the MLP's loss does not fall");
        if (i == 0 || cairn_graph_is_recorded(w.graph)) {
            const double each = seconds(&w);
            printf("%s = %.1f us\n%s rate = %.2f TFLOP/s\n", names[i], each * 1e6, names[i], flops / each * 1e-12);
            if (i == 1) print_nodes(names[i], &w);
        }
        destroy(&w);
    }
    require(last[0] == last[1], "a replayed MLP is another MLP");
}

static void create_encoder(struct way *w, const char *device, bool small, double dropout) {
    const struct amp_options *level = amp_options(.opt_level = AMP_O2, .half_type = CAIRN_BF16, .verbosity = -1);
    done(small ? trainer_create_encoder(&w->trainer, device, 2, 32, 2, 2, 8, dropout, level)
               : trainer_create_encoder(&w->trainer, device, 12, 768, 12, 64, 128, dropout, level));
}

/* With dropout, as BERT trains, and without; called, then replayed. */
static void bench_encoder(const char *device, bool small) {
    static const char *names[] = {"encoder eager", "encoder graph", "encoder without dropout eager",
                                  "encoder without dropout graph"};
    float last[4] = {0};
    for (int i = 0; i < 4; i++) {
        struct way w = {.graph = NULL};
        create_encoder(&w, device, small, i < 2 ? 0.1 : 0);
        if (i % 2 == 1) record(&w);
        steps(&w, 2 * CAIRN_GRAPH_WARMUP);
        last[i] = loss_of(&w);
        require(last[i] > 0.1f && last[i] < 10, "the encoder's loss is no loss");
        if (i % 2 == 0 || cairn_graph_is_recorded(w.graph)) printf("%s = %.1f us\n", names[i], 1e6 * seconds(&w));
        if (i % 2 == 1 && cairn_graph_is_recorded(w.graph)) print_nodes(names[i], &w);
        destroy(&w);
    }
    require(last[0] == last[1] && last[2] == last[3], "a replayed encoder is another encoder");
}

int main(int argc, char **argv) {
    const char *device = argc > 1 ? argv[1] : "cuda";
    const int64_t width = argc > 2 ? strtoll(argv[2], NULL, 10) : 4096,
                  batch = argc > 3 ? strtoll(argv[3], NULL, 10) : width;
    struct way probe = {.graph = NULL};
    require(width > 0 && batch > 0, "gpu-bench [device [width [batch]]]");
    if (trainer_create_quick_start(&probe.trainer, device, quick_start_level()) != CAIRN_OK) {
        printf("no %s: %s\n", device, cairn_last_error());
        return SKIP;
    }
    printf("%s\nmedians of %d rounds\n", cairn_device_describe(cairn_env_device(probe.trainer.env)), ROUNDS);
    destroy(&probe);
    bench_quick_start(device);
    bench_mlp(device, width, batch);
    bench_encoder(device, argc > 2);
    return 0;
}
