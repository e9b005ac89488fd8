/* Another device trains like the CPU: at every level and in both half types, on the quick start, a six-layer MLP and
 * layers of BERT's encoder with dropout, compared loss by loss. Devices sum in different orders, so losses differ by
 * the resulting rounding errors.
 *
 *     devices_agree DEVICE [quick]                quick: narrow layers
 *
 * Exits with 77 if the device does not exist. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

enum { SKIP = 77, LAYERS = 6, TOKENS = 12, MAX_STEPS = 30 };

/* How far two losses may be apart, relative to the CPU's.
 *   quick start  f32: a sum of k = 1024 terms errs by up to k * 2^-24 = 6e-5 of its magnitude. Halves: each may fall to
 *                the other side of a tie, which is 2^-11 of it in f16 and 2^-8 in bf16, and the loss is a mean of many
 *   MLP          AdamW divides each gradient by its own size, so that one which is nothing but rounding moves its
 *                weight by the learning rate this way or that. Already the CPU's instruction sets part by 8e-5 at O0,
 *                7e-4 in f16, 1.2e-3 in bf16 and 2.3e-3 without masters; a device may by five times as much
 *   encoder      the same; dropout drops the same elements on every device */
struct level {
    const char *name;
    amp_opt_level level;
    cairn_dtype half;
    double quick_start, mlp;
};

static const struct level LEVELS[] = {
    {"O0", AMP_O0, CAIRN_F16, 6e-5, 4e-4},         {"O1 f16", AMP_O1, CAIRN_F16, 5e-4, 3.5e-3},
    {"O1 bf16", AMP_O1, CAIRN_BF16, 4e-3, 6e-3},   {"O2 f16", AMP_O2, CAIRN_F16, 5e-4, 3.5e-3},
    {"O2 bf16", AMP_O2, CAIRN_BF16, 4e-3, 6e-3},   {"O3 f16", AMP_O3, CAIRN_F16, 5e-4, 9e-3},
    {"O3 bf16", AMP_O3, CAIRN_BF16, 4e-3, 1.2e-2},
};

struct model {
    const char *name;
    int64_t width, batch; /* 0 = the quick start */
    int64_t heads;        /* of an encoder; 0 = none */
    int steps;
};

struct run {
    float losses[MAX_STEPS];
    int64_t skipped;
};

static void done(cairn_status status) {
    if (status == CAIRN_OK) return;
    fprintf(stderr, "devices_agree: %s\n", cairn_last_error());
    exit(1);
}

static cairn_status create(struct trainer *t, const char *device, const struct model *m, const struct level *l) {
    const struct amp_options *amp = amp_options(.opt_level = l->level, .half_type = l->half, .verbosity = -1);
    if (!m->width) return trainer_create_quick_start(t, device, amp);
    if (m->heads) return trainer_create_encoder(t, device, 2, m->width, m->heads, m->batch, TOKENS, 0.1, amp);
    return trainer_create_mlp(t, device, LAYERS, m->width, m->batch, amp);
}

static void train(const char *device, const struct model *m, const struct level *l, struct run *run) {
    struct trainer t = {.env = NULL};
    done(create(&t, device, m, l));
    for (int i = 0; i < m->steps; i++) {
        done(trainer_step(&t));
        run->losses[i] = cairn_tensor_item(t.loss);
    }
    done(cairn_env_synchronize(t.env));
    run->skipped = cairn_optimizer_skipped(t.optimizer);
    trainer_destroy(&t);
}

/* The greatest distance of two losses of one step, relative to the first run's. NaN is infinitely far. */
static double distance(const struct run *a, const struct run *b, int steps) {
    double most = 0;
    for (int i = 0; i < steps; i++) {
        const double apart = fabs((double)a->losses[i] - (double)b->losses[i]) / fabs((double)a->losses[i]);
        most = !(apart <= most) ? apart : most;
        if (isnan(apart)) return HUGE_VAL;
    }
    return most;
}

static bool agree(const char *device, const struct model *m, const struct level *l) {
    static struct run cpu, other;
    train("cpu", m, l, &cpu);
    train(device, m, l, &other);
    const double apart = distance(&cpu, &other, m->steps);
    const double bound = m->width ? l->mlp : l->quick_start;
    const bool well = apart <= bound && cpu.skipped == other.skipped;
    printf("%-14s %-8s %9.6f -> %9.6f  apart %.1e, bound %.1e; skipped %lld, on the CPU %lld%s\n", m->name, l->name,
           cpu.losses[0], cpu.losses[m->steps - 1], apart, bound, (long long)other.skipped, (long long)cpu.skipped,
           well ? "" : "  WRONG");
    return well;
}

int main(int argc, char **argv) {
    const char *device = argc > 1 ? argv[1] : "cuda";
    const bool quick = argc > 2 && strcmp(argv[2], "quick") == 0;
    const struct model models[] = {
        {.name = "quick start", .steps = MAX_STEPS},
        {.name = quick ? "MLP 6x64^2" : "MLP 6x1024^2", .width = quick ? 64 : 1024, .batch = 64, .steps = 10},
        {.name = "encoder", .width = quick ? 32 : 256, .batch = 4, .heads = 4, .steps = 10},
    };
    cairn_env *probe = NULL;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.device = device), &probe) != CAIRN_OK) {
        printf("no %s: %s\n", device, cairn_last_error());
        return SKIP;
    }
    cairn_env_destroy(&probe);
    int wrong = 0;
    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        for (size_t l = 0; l < sizeof(LEVELS) / sizeof(LEVELS[0]); l++) wrong += !agree(device, &models[m], &LEVELS[l]);
    }
    printf("%d of the trainings differ\n", wrong);
    return wrong ? 1 : 0;
}
