/* Why half weights need f32 master weights: small updates are lost, depending on learning rate and type. */
#include <math.h>

#include "core/status.h"
#include "../experiment.h"
#include "../trainer.h"

static const struct lab_option options[] = {{"steps", "300", "of each training", .kind = LAB_WHOLE, .least = 100,
                                             .most = 1 << 20},
                                            {"rates", "8", "learning rates: 2^-14, 2^-13, ...", .kind = LAB_WHOLE,
                                             .least = 6, .most = 14},
                                            {0}};

enum { FIRST_RATE = -14 /* exponent of two */, MOST_RATES = 14 };

static const struct cairn_fp8_recipe recipe = {.struct_size = sizeof(recipe)};

/* How weights are stored between steps: as amp does, or in fp8 without master weights. */
enum keep { AS_AMP_DOES, IN_E4M3, IN_E4M3_STOCHASTIC };

/* The trainings to compare with f32. Without master weights each update is rounded to the weight's type. */
static const struct form {
    const char *name;
    enum keep keep;
    struct amp_options amp;
} forms[] = {
    {"f32", AS_AMP_DOES, {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O0}},
    {"f16, masters",
     AS_AMP_DOES,
     {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_F16}},
    {"f16",
     AS_AMP_DOES,
     {.struct_size = sizeof(struct amp_options),
      .opt_level = AMP_O2,
      .half_type = CAIRN_F16,
      .master_weights = CAIRN_OFF}},
    {"bf16, masters",
     AS_AMP_DOES,
     {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_BF16}},
    {"bf16",
     AS_AMP_DOES,
     {.struct_size = sizeof(struct amp_options),
      .opt_level = AMP_O2,
      .half_type = CAIRN_BF16,
      .master_weights = CAIRN_OFF}},
    {"bf16, stochastic",
     AS_AMP_DOES,
     {.struct_size = sizeof(struct amp_options),
      .opt_level = AMP_O3,
      .half_type = CAIRN_BF16,
      .stochastic_rounding = CAIRN_ON}},
    {"fp8, masters",
     AS_AMP_DOES,
     {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1, .half_type = CAIRN_BF16, .fp8 = &recipe}},
    {"fp8",
     IN_E4M3,
     {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1, .half_type = CAIRN_BF16, .fp8 = &recipe}},
    {"fp8, stochastic",
     IN_E4M3_STOCHASTIC,
     {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1, .half_type = CAIRN_BF16, .fp8 = &recipe}},
};
enum {
    F32,
    F16_MASTERS,
    F16_ALONE,
    BF16_MASTERS,
    BF16_ALONE,
    BF16_STOCHASTIC,
    FP8_MASTERS,
    FP8_ALONE,
    FP8_STOCHASTIC,
    FORMS
};

/* Rounds every weight to E4M3, times a power of two per tensor. */
static cairn_status round_weights(struct lab_trainer *t, enum keep keep, int64_t step) {
    cairn_param_set *set = cairn_module_params(t->model);
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; keep != AS_AMP_DOES && i < cairn_param_set_count(set); i++) {
        cairn_param p;
        float amax;
        size_t n = 1;
        TRY(cairn_param_set_get(set, i, &p));
        for (int d = 0; d < p.ndim; d++) n *= (size_t)p.shape[d];
        TRY(cairn_fp8_amax(p.data, p.dtype, n, &amax));
        if (amax == 0) continue;
        const float scale = ldexpf(1, (int)floorf(log2f(cairn_fp8_max(CAIRN_FP8_E4M3) / amax)));
        TRY(cairn_fp8_round(p.data, p.data, p.dtype, n,
                            cairn_fp8_options(.format = CAIRN_FP8_E4M3, .scale = scale, .saturate = CAIRN_ON,
                                              .stochastic_rounding = keep == IN_E4M3_STOCHASTIC ? CAIRN_ON : CAIRN_OFF,
                                              .seed = t->seed, .stream = (uint64_t)step * 64 + i)));
        TRY(cairn_param_changed(set, i, 0));
    }
out:
    return st;
}

static cairn_status train(struct lab_run *run, const struct form *form, double rate, double *loss) {
    struct amp_options amp = form->amp;
    const struct lab_training how = {.model = LAB_MLP, .seed = lab_seed(run), .lr = rate, .amp = &amp};
    struct lab_trainer t;
    double right;
    cairn_status st = CAIRN_OK;
    amp.rounding_seed = lab_seed(run);
    TRY(lab_trainer_begin(&how, &t));
    TRY(round_weights(&t, form->keep, 0));
    for (int64_t i = 0; i < lab_whole(run, "steps"); i++) {
        TRY(lab_trainer_take_batch(&t, (uint64_t)i));
        TRY(lab_trainer_step(&t, 1));
        TRY(round_weights(&t, form->keep, i + 1));
    }
    TRY(lab_trainer_test(&t, loss, &right));
out:
    lab_trainer_end(&t);
    return st;
}

/* The loss before training. */
static cairn_status first_loss(struct lab_run *run, double *loss) {
    const struct lab_training how = {.model = LAB_MLP, .seed = lab_seed(run), .amp = &forms[F32].amp};
    struct lab_trainer t;
    double right;
    cairn_status st = CAIRN_OK;
    TRY(lab_trainer_begin(&how, &t));
    TRY(lab_trainer_test(&t, loss, &right));
out:
    lab_trainer_end(&t);
    return st;
}

/* The progress of a form relative to that of f32 at the same rate. */
static double progress(double loss[FORMS][MOST_RATES], double first, int form, int rate) {
    return (first - loss[form][rate]) / (first - loss[F32][rate]);
}

/* Checks the middle one of the rates. */
static void check(struct lab_run *run, double loss[FORMS][MOST_RATES], double first, int rates) {
    const int middle = rates / 2, rate = FIRST_RATE + middle;
    double of[FORMS];
    for (int f = 0; f < FORMS; f++) of[f] = progress(loss, first, f, middle);
    lab_check(run, fabs(of[F16_MASTERS] - 1) < 0.05 && fabs(of[BF16_MASTERS] - 1) < 0.05,
              "at a rate of 2^%d f16 with masters goes %.1f %% of f32's way, and bf16 with masters %.1f %%", rate,
              100 * of[F16_MASTERS], 100 * of[BF16_MASTERS]);
    lab_check(run, of[BF16_ALONE] < 0.5,
              "without masters bf16 goes %.1f %% of it: most updates are less than half a unit in the last place of a "
              "weight",
              100 * of[BF16_ALONE]);
    lab_check(run, fabs(of[BF16_STOCHASTIC] - 1) < 0.05,
              "with stochastic rounding, which needs no masters, it goes %.1f %%", 100 * of[BF16_STOCHASTIC]);
    lab_check(run, of[F16_ALONE] > of[BF16_ALONE],
              "f16, whose fraction has three bits more, goes %.1f %% without masters", 100 * of[F16_ALONE]);
    lab_check(run, fabs(of[FP8_MASTERS] - 1) < 0.1 && fabs(of[FP8_STOCHASTIC] - 1) < 0.25 && of[FP8_ALONE] < 0.5,
              "products of fp8 with f32 masters go %.1f %%; weights that are kept in E4M3 go %.1f %%, and %.1f %% with "
              "stochastic rounding",
              100 * of[FP8_MASTERS], 100 * of[FP8_ALONE], 100 * of[FP8_STOCHASTIC]);
    lab_finding(run, "at a rate of 2^%d bf16 without masters goes %.1f %% of f32's way, and f16 %.1f %%",
                FIRST_RATE + rates - 1, 100 * progress(loss, first, BF16_ALONE, rates - 1),
                100 * progress(loss, first, F16_ALONE, rates - 1));
}

static cairn_status run(struct lab_run *run) {
    const int rates = (int)lab_whole(run, "rates");
    double loss[FORMS][MOST_RATES], first;
    struct lab_table *losses = lab_table(
        run, "losses", "Loss after training, by learning rate and form of the weights",
        (struct lab_column[]){{"learning rate", ""}, {"weights", NULL}, {"test loss", ""}, {"of f32's way", "%"}}, 4);
    cairn_status st = CAIRN_OK;
    lab_hide_warnings();
    TRY(first_loss(run, &first));
    for (int f = 0; f < FORMS; f++) {
        for (int r = 0; r < rates; r++) {
            lab_progress(run, (double)(f * rates + r) / (FORMS * rates), "%s at 2^%d", forms[f].name, FIRST_RATE + r);
            TRY(train(run, &forms[f], ldexp(1, FIRST_RATE + r), &loss[f][r]));
            lab_put(losses, FIRST_RATE + r);
            lab_put_text(losses, forms[f].name);
            lab_put(losses, loss[f][r]);
            lab_put(losses, 100 * progress(loss, first, f, r));
        }
    }
    lab_picture(run, &(struct lab_picture){.name = "way",
                                           .title = "How far a training goes, of the way that f32 goes",
                                           .table = "losses",
                                           .form = LAB_LINES,
                                           .x = "learning rate",
                                           .y = "of f32's way",
                                           .by = "weights",
                                           .x_power = true});
    lab_picture(run, &(struct lab_picture){.name = "losses",
                                           .title = "Loss by learning rate and weights",
                                           .table = "losses",
                                           .form = LAB_LINES,
                                           .x = "learning rate",
                                           .y = "test loss",
                                           .by = "weights",
                                           .x_power = true});
    lab_finding(run, "before training the loss is %.4f", first);
    check(run, loss, first, rates);
out:
    return st;
}

const struct lab_experiment lab_masters = {
    .name = "masters",
    .question = "When does a training need f32 masters of its half weights?",
    .method =
        "Trains a perceptron by SGD with momentum at learning rates from 2^-14 on, in f32; in f16 and bf16 with "
        "masters (O2) and without; in bf16 without masters but with stochastic rounding of the updates (O3); with "
        "operands of products in fp8 (O1, E4M3 and E5M2 with delayed scaling), and with weights that are kept in "
        "E4M3 between steps, to nearest and at random.",
    .expected =
        "With masters the loss is f32's at every rate. Without, updates below half a unit in the last place of "
        "a weight are lost: at small rates bf16, of 8 bits, stands still, f16, of 11, goes on for longer, and "
        "stochastic rounding, which keeps updates in the mean, stays with f32. fp8 needs masters most: E4M3 has 4 "
        "bits.",
    .source = "Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.1; Zamirai et al., Revisiting "
              "BFloat16 Training, 2021, section 3; Micikevicius et al., FP8 Formats for Deep Learning, 2022",
    .options = options,
    .run = run,
};
