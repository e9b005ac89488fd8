/* All loss scalers on the same trainings, in which gradients are stationary, have spikes, or grow. */
#include <math.h>
#include <string.h>

#include "core/philox.h"
#include "core/status.h"
#include "../experiment.h"
#include "../trainer.h"

static const struct lab_option options[] = {
    {"steps", "400", "of each training", .kind = LAB_WHOLE, .least = 64, .most = 1 << 20},
    {"interval", "40", "clean steps before a scale grows", .kind = LAB_WHOLE, .least = 1, .most = 1 << 20},
    {"spikes", "40", "steps from one spike to the next, in the mean", .kind = LAB_WHOLE, .least = 1, .most = 1 << 20},
    {0}};

static const struct kind {
    const char *name;
    amp_scaler_kind kind;
    bool waits; /* its scale grows only after some steps */
} kinds[] = {{"static", AMP_SCALER_STATIC, false},     {"apex", AMP_SCALER_APEX, true},
             {"torch", AMP_SCALER_TORCH, true},        {"deepspeed", AMP_SCALER_DEEPSPEED, true},
             {"megatron", AMP_SCALER_MEGATRON, true},  {"logmax", AMP_SCALER_LOGMAX, false},
             {"histogram", AMP_SCALER_HISTOGRAM, true}};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]), COURSES = 3, LOOKS = 8 /* measurements per training */ };

static const char *const courses[COURSES] = {"stationary", "spiky", "growing"};

/* The factor by which a step's loss is multiplied: 1; 1, or 2^10 at a spike; or growing from 1 to 2^12 at the end. */
static double factor_at(const struct lab_run *run, int course, int step) {
    const struct cairn__philox_block draw = cairn__philox(lab_seed(run), (uint64_t)step, UINT64_C(1) << 50);
    if (course == 1) return (double)cairn__uniform(draw.word[0]) * (double)lab_whole(run, "spikes") < 1 ? 0x1p10 : 1;
    if (course == 2) return exp2(floor(12.0 * step / (double)lab_whole(run, "steps")));
    return 1;
}

struct outcome {
    int64_t skipped, shrinks, surprises;
    double lost;     /* % of gradients, mean of the measurements */
    double headroom; /* log2 of limit over scale, mean of the steps taken */
    double loss;
};

struct tables {
    struct lab_table *traces, *outcomes;
};

/* The limit is the scale at which the step's gradients overflow. */
static void put_trace(const struct tables *to, int course, const char *scaler, int step, double scale, double limit,
                      bool skipped) {
    lab_put_text(to->traces, courses[course]);
    lab_put_text(to->traces, scaler);
    lab_put(to->traces, step);
    lab_put(to->traces, log2(scale));
    lab_put(to->traces, log2(limit));
    lab_put(to->traces, skipped);
}

static void put_outcome(const struct tables *to, int course, const char *scaler, const struct outcome *o) {
    lab_put_text(to->outcomes, courses[course]);
    lab_put_text(to->outcomes, scaler);
    lab_put(to->outcomes, (double)o->skipped);
    lab_put(to->outcomes, o->lost);
    lab_put(to->outcomes, o->headroom);
    lab_put(to->outcomes, o->loss);
}

/* At a scale that is a power of two, gradients have the same bits as when the limit was found. At other scales they are
 * rounded differently, by up to 2^-11 of their values, and a step this near the limit is no surprise. */
static bool is_surprise(double scale, double greatest, bool skipped) {
    int k;
    const bool near = fabs(scale * greatest / 65520 - 1) < 0x1p-10;
    if (near && frexp(scale, &k) != 0.5) return false;
    return skipped != (scale * greatest >= 65520);
}

static cairn_status train(struct lab_run *run, const struct tables *to, int course, const struct kind *kind,
                          struct lab_trainer *twin, struct outcome *o) {
    const struct amp_scaler_options scaler = {.struct_size = sizeof(scaler),
                                              .kind = kind->kind,
                                              .init_scale = 0x1p16,
                                              .growth_interval = kind->waits ? lab_whole(run, "interval") : 0};
    const struct amp_options amp = {.struct_size = sizeof(amp),
                                    .opt_level = AMP_O2,
                                    .half_type = CAIRN_F16,
                                    .scaler = &scaler};
    const struct lab_training how = {
        .model = LAB_MLP, .seed = lab_seed(run), .adamw = true, .watched = true, .amp = &amp};
    const int steps = (int)lab_whole(run, "steps");
    struct lab_trainer t;
    struct lab_lost lost;
    double right, looks = 0;
    cairn_status st = CAIRN_OK;
    *o = (struct outcome){0};
    TRY(lab_trainer_begin(&how, &t));
    for (int i = 0; i < steps; i++) {
        const double factor = factor_at(run, course, i), scale = lab_trainer_scale(&t);
        double greatest;
        TRY(lab_trainer_take_batch(&t, (uint64_t)i));
        TRY(lab_trainer_greatest(&t, factor, 8, &greatest));
        TRY(lab_trainer_step(&t, factor));
        put_trace(to, course, kind->name, i, scale, 65520 / greatest, t.skipped);
        o->skipped += t.skipped;
        o->shrinks += lab_trainer_scale(&t) < scale;
        o->surprises += is_surprise(scale, greatest, t.skipped);
        if (!t.skipped) o->headroom += log2(65520 / greatest) - log2(scale);
        if ((i + 1) % (steps / LOOKS) != 0) continue;
        TRY(lab_trainer_lost(&t, twin, (uint64_t)i, factor, &lost));
        o->lost += lost.of ? 100.0 * (double)lost.lost / (double)lost.of : 0;
        looks++;
    }
    if (o->skipped < steps) o->headroom /= (double)(steps - o->skipped);
    o->lost /= looks;
    TRY(lab_trainer_test(&t, &o->loss, &right));
    put_outcome(to, course, kind->name, o);
out:
    lab_trainer_end(&t);
    return st;
}

static cairn_status begin_twin(const struct lab_run *run, struct lab_trainer *twin) {
    const struct amp_options amp = {.struct_size = sizeof(amp), .opt_level = AMP_O0};
    const struct lab_training how = {.model = LAB_MLP, .seed = lab_seed(run), .amp = &amp};
    return lab_trainer_begin(&how, twin);
}

static struct tables make_tables(struct lab_run *run) {
    return (struct tables){.traces = lab_table(run, "traces", "The scale of every step",
                                               (struct lab_column[]){{"gradients", NULL},
                                                                     {"scaler", NULL},
                                                                     {"step", ""},
                                                                     {"scale", ""},
                                                                     {"limit", ""},
                                                                     {"skipped", ""}},
                                               6),
                           .outcomes = lab_table(run, "outcomes", "What came of each scaler",
                                                 (struct lab_column[]){{"gradients", NULL},
                                                                       {"scaler", NULL},
                                                                       {"skipped steps", ""},
                                                                       {"gradients that became 0", "%"},
                                                                       {"headroom", "binades"},
                                                                       {"test loss", ""}},
                                                 6)};
}

static void draw(struct lab_run *run) {
    lab_picture(run, &(struct lab_picture){.name = "traces",
                                           .title = "The loss scale, by scaler",
                                           .table = "traces",
                                           .form = LAB_LINES,
                                           .x = "step",
                                           .y = "scale",
                                           .by = "scaler",
                                           .panel = "gradients",
                                           .y_power = true});
    lab_picture(run, &(struct lab_picture){.name = "skipped",
                                           .title = "Skipped steps, by scaler",
                                           .table = "outcomes",
                                           .form = LAB_BARS,
                                           .x = "gradients",
                                           .y = "skipped steps",
                                           .by = "scaler"});
    lab_picture(run, &(struct lab_picture){.name = "headroom",
                                           .title = "How far the scale is below its limit, by scaler",
                                           .table = "outcomes",
                                           .form = LAB_BARS,
                                           .x = "gradients",
                                           .y = "headroom",
                                           .by = "scaler"});
}

static const struct outcome *of(const struct outcome *row, const char *name) {
    size_t k = 0;
    while (strcmp(kinds[k].name, name) != 0) k++;
    return &row[k];
}

static void check(struct lab_run *run, struct outcome all[COURSES][KINDS]) {
    int64_t surprises = 0, skipped = 0;
    for (int c = 0; c < COURSES; c++) {
        for (size_t k = 0; k < KINDS; k++) {
            surprises += all[c][k].surprises;
            skipped += all[c][k].skipped;
        }
    }
    lab_check(run, surprises == 0,
              "%lld steps were skipped in all, and %lld of them not as the gradients' largest "
              "magnitude predicted",
              (long long)skipped, (long long)surprises);
    const struct outcome *apex = of(all[1], "apex"), *torch = of(all[1], "torch"), *hyst = of(all[1], "deepspeed");
    lab_check(run, apex->skipped == torch->skipped && apex->headroom == torch->headroom,
              "apex's rule and torch's are the same but for its f32: both skip %lld spiky steps",
              (long long)apex->skipped);
    if (apex->skipped > 0 && hyst->skipped > 1) { /* there were spikes */
        lab_check(
            run, apex->shrinks == apex->skipped && hyst->shrinks < hyst->skipped,
            "spiky: apex's scale halves %lld times in %lld skipped steps, DeepSpeed's, whose hysteresis is 2, %lld "
            "times in %lld: %.2f and %.2f binades of headroom in the mean",
            (long long)apex->shrinks, (long long)apex->skipped, (long long)hyst->shrinks, (long long)hyst->skipped,
            apex->headroom, hyst->headroom);
    }
    const struct outcome *logmax = of(all[2], "logmax"), *histogram = of(all[2], "histogram");
    lab_check(run, logmax->skipped < of(all[2], "apex")->skipped && histogram->skipped < of(all[2], "apex")->skipped,
              "growing: logmax skips %lld steps, with %.2f binades of headroom in the mean, and the histogram-driven "
              "scaler %lld, with %.2f; apex's %lld, with %.2f",
              (long long)logmax->skipped, logmax->headroom, (long long)histogram->skipped, histogram->headroom,
              (long long)of(all[2], "apex")->skipped, of(all[2], "apex")->headroom);
    lab_check(run, all[2][0].skipped > of(all[2], "apex")->skipped,
              "growing: a static scale skips %lld steps, apex's %lld", (long long)all[2][0].skipped,
              (long long)of(all[2], "apex")->skipped);
}

static cairn_status run(struct lab_run *run) {
    struct outcome all[COURSES][KINDS];
    const struct tables to = make_tables(run);
    struct lab_trainer twin;
    cairn_status st = CAIRN_OK;
    lab_hide_warnings();
    TRY(begin_twin(run, &twin));
    for (int c = 0; c < COURSES; c++) {
        for (size_t k = 0; k < KINDS; k++) {
            lab_progress(run, (double)(c * (int)KINDS + (int)k) / (COURSES * KINDS), "%s gradients, %s", courses[c],
                         kinds[k].name);
            TRY(train(run, &to, c, &kinds[k], &twin, &all[c][k]));
        }
    }
    draw(run);
    check(run, all);
out:
    lab_trainer_end(&twin);
    return st;
}

const struct lab_experiment lab_scalers = {
    .name = "scalers",
    .question = "Which loss scaler keeps the scale high, and how many steps does it pay for that?",
    .method = "Trains the same perceptron at O2 in f16 by AdamW with every scaler, from 2^16, on the same batches. The "
              "loss is multiplied by 1; by 2^10 in some steps; or by a factor that grows to 2^12. The limit of a step "
              "is the scale at which its gradients overflow, found by a backward at a low scale; lost gradients are "
              "those that are 0 where an f32 twin's are not.",
    .expected = "A step is skipped exactly where the scale is at its limit or above. With stationary gradients a "
                "dynamic scale climbs to the limit and skips one step each time it tries again. A spike halves apex's "
                "and torch's scale, which are the same rule; hysteresis of 2 lets the first pass. A static scale skips "
                "every step once gradients have grown beyond it. LogMax and the histogram-driven scaler look at the "
                "gradients and lower the scale before steps are lost.",
    .source = "NVIDIA/apex apex/amp/scaler.py; torch/amp/grad_scaler.py; DeepSpeed runtime/fp16/loss_scaler.py; "
              "Megatron-LM core/optimizer/grad_scaler.py; OpenSeq2Seq optimizers/automatic_loss_scaler.py; see "
              "include/cairn/scaler.h",
    .options = options,
    .run = run,
};
