/* O0 to O3 in f16 and bf16 on three models: loss, right answers, time and memory. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/trace.h"
#include "core/status.h"
#include "../experiment.h"
#include "../trainer.h"

static const struct lab_option options[] = {{"model", "all", "which is trained", .kind = LAB_TEXT,
                                             .choices = "all mlp encoder resnet"},
                                            {"steps", "300", "of each training", .kind = LAB_WHOLE, .least = 100,
                                             .most = 1 << 20},
                                            {0}};

static const struct level {
    const char *name;
    struct amp_options amp;
} levels[] = {
    {"O0", {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O0}},
    {"O1 f16", {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1, .half_type = CAIRN_F16}},
    {"O1 bf16", {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1, .half_type = CAIRN_BF16}},
    {"O2 f16", {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_F16}},
    {"O2 bf16", {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_BF16}},
    {"O3 f16", {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O3, .half_type = CAIRN_F16}},
    {"O3 bf16", {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O3, .half_type = CAIRN_BF16}},
};
enum { O0, O1_F16, O1_BF16, O2_F16, O2_BF16, O3_F16, O3_BF16, LEVELS };

struct result {
    double loss, right;
    double ms;  /* median time of a step */
    double kib; /* memory that the training holds */
    int64_t skipped;
};

/* Bytes that the program has allocated with malloc. */
static double held(void) {
    const struct mallinfo2 m = mallinfo2();
    return (double)m.uordblks + (double)m.hblkhd;
}

static int compare(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static const double first_rate = 4e-3; /* decreases linearly to 0 */

static cairn_status train(struct lab_run *run, enum lab_model model, const struct level *level, size_t steps,
                          struct result *out) {
    const struct lab_training how = {
        .model = model, .seed = lab_seed(run), .lr = first_rate, .adamw = true, .amp = &level->amp};
    const double before = held();
    struct lab_trainer t = {.env = NULL};
    uint64_t *ns = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(steps, sizeof(*ns), (void **)&ns));
    TRY(lab_trainer_begin(&how, &t));
    for (size_t i = 0; i < steps; i++) {
        TRY(lab_trainer_take_batch(&t, i));
        TRY(cairn_optimizer_set_lr(t.optimizer, first_rate * (double)(steps - i) / (double)steps));
        const uint64_t begin = cairn__now_ns();
        TRY(lab_trainer_step(&t, 1));
        ns[i] = cairn__now_ns() - begin;
    }
    out->kib = (held() - before - (double)(steps * sizeof(*ns))) / 1024;
    qsort(ns, steps, sizeof(*ns), compare);
    out->ms = (double)ns[steps / 2] / 1e6;
    out->skipped = cairn_optimizer_skipped(t.optimizer);
    TRY(lab_trainer_test(&t, &out->loss, &out->right));
out:
    lab_trainer_end(&t);
    cairn__free(ns);
    return st;
}

static void put(struct lab_table *table, enum lab_model model, const struct level *level, const struct result *r) {
    lab_put_text(table, lab_model_name(model));
    lab_put_text(table, level->name);
    lab_put(table, r->loss);
    lab_put(table, 100 * r->right);
    lab_put(table, r->ms);
    lab_put(table, r->kib);
    lab_put(table, (double)r->skipped);
}

static void check(struct lab_run *run, enum lab_model model, const struct result r[LEVELS]) {
    static const int with_masters[] = {O1_F16, O1_BF16, O2_F16, O2_BF16};
    double worst = 1;
    for (int i = 0; i < 4; i++) worst = r[with_masters[i]].right < worst ? r[with_masters[i]].right : worst;
    lab_check(run, worst > r[O0].right - 0.05,
              "%s: O1 and O2 answer %.1f %% right or more, O0 %.1f %%: less than 5 points apart", lab_model_name(model),
              100 * worst, 100 * r[O0].right);
    lab_finding(run,
                "%s: a step takes %.2f ms at O0, %.2f at O1, %.2f at O2, %.2f at O3 in f16; small models on a CPU "
                "pay for casts and gain nothing",
                lab_model_name(model), r[O0].ms, r[O1_F16].ms, r[O2_F16].ms, r[O3_F16].ms);
}

static void draw(struct lab_run *run) {
    static const char *const columns[][3] = {{"loss", "test loss", "Loss by level"},
                                             {"right", "right", "Right answers by level"},
                                             {"step", "step", "Time of a step by level"},
                                             {"memory", "memory", "Memory of a training by level"}};
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++)
        lab_picture(run, &(struct lab_picture){.name = columns[i][0],
                                               .title = columns[i][2],
                                               .table = "levels",
                                               .form = LAB_BARS,
                                               .x = "model",
                                               .y = columns[i][1],
                                               .by = "level"});
}

static cairn_status run(struct lab_run *run) {
    static const enum lab_model models[] = {LAB_MLP, LAB_ENCODER, LAB_RESNET};
    const char *which = lab_text(run, "model");
    struct lab_table *table = lab_table(run, "levels", "Trainings by level",
                                        (struct lab_column[]){{"model", NULL},
                                                              {"level", NULL},
                                                              {"test loss", ""},
                                                              {"right", "%"},
                                                              {"step", "ms"},
                                                              {"memory", "KiB"},
                                                              {"skipped steps", ""}},
                                        7);
    struct result r[LEVELS];
    cairn_status st = CAIRN_OK;
    lab_hide_warnings();
    for (int m = 0; m < 3; m++) {
        if (strcmp(which, "all") != 0 && strcmp(which, lab_model_name(models[m])) != 0) continue;
        TRY(train(run, models[m], &levels[O0], 1, &r[O0])); /* allocates what a process keeps from then on */
        for (int l = 0; l < LEVELS; l++) {
            lab_progress(run, (m * LEVELS + l) / (3.0 * LEVELS), "%s at %s", lab_model_name(models[m]), levels[l].name);
            TRY(train(run, models[m], &levels[l], (size_t)lab_whole(run, "steps"), &r[l]));
            put(table, models[m], &levels[l], &r[l]);
        }
        check(run, models[m], r);
    }
    draw(run);
out:
    return st;
}

const struct lab_experiment lab_levels = {
    .name = "levels",
    .question = "What do the opt levels cost and keep, in f16 and in bf16?",
    .method = "Trains a perceptron, a transformer encoder and a small ResNet by AdamW at every level and half type, on "
              "the same batches. Time is the median of a step, memory what the training holds of malloc at its end.",
    .expected = "O1 and O2 answer as many pictures right as O0; O3, without masters and with half normalisation, may "
                "not. These models are too small for a CPU to gain time.",
    .source = "NVIDIA/apex apex/amp/frontend.py, O0 to O3; Micikevicius et al., Mixed Precision Training, ICLR 2018, "
              "section 4",
    .options = options,
    .has_times = true,
    .run = run,
};
