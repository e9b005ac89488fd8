/* What f32 masters are for: small updates of half weights, by learning rate and type. */
#include <math.h>

#include "core/status.h"
#include "../experiment.h"
#include "../trainer.h"

static const struct lab_option options[] = {{"steps", "300", "of each training", .kind = LAB_WHOLE, .least = 1,
                                             .most = 1 << 20},
                                            {"rates", "8", "learning rates: 2^-14, 2^-13, ...", .kind = LAB_WHOLE,
                                             .least = 2, .most = 14},
                                            {0}};

enum { FIRST_RATE = -14 /* exponent of two */, MOST_RATES = 14 };

/* What is trained, beside f32. Without masters an update is rounded to the weight's type at once. */
static const struct form {
    const char *name;
    struct amp_options amp;
} forms[] = {
    {"f32", {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O0}},
    {"f16, masters", {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_F16}},
    {"f16",
     {.struct_size = sizeof(struct amp_options),
      .opt_level = AMP_O2,
      .half_type = CAIRN_F16,
      .master_weights = CAIRN_OFF}},
    {"bf16, masters", {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_BF16}},
    {"bf16",
     {.struct_size = sizeof(struct amp_options),
      .opt_level = AMP_O2,
      .half_type = CAIRN_BF16,
      .master_weights = CAIRN_OFF}},
    {"bf16, stochastic",
     {.struct_size = sizeof(struct amp_options),
      .opt_level = AMP_O3,
      .half_type = CAIRN_BF16,
      .stochastic_rounding = CAIRN_ON}},
};
enum { F32, F16_MASTERS, F16_ALONE, BF16_MASTERS, BF16_ALONE, BF16_STOCHASTIC, FORMS };

static cairn_status train(struct lab_run *run, const struct form *form, double rate, double *loss) {
    struct amp_options amp = form->amp;
    const struct lab_training how = {.model = LAB_MLP, .seed = lab_seed(run), .lr = rate, .amp = &amp};
    struct lab_trainer t;
    double right;
    cairn_status st = CAIRN_OK;
    amp.rounding_seed = lab_seed(run);
    TRY(lab_trainer_begin(&how, &t));
    for (int64_t i = 0; i < lab_whole(run, "steps"); i++) {
        TRY(lab_trainer_take_batch(&t, (uint64_t)i));
        TRY(lab_trainer_step(&t, 1));
    }
    TRY(lab_trainer_test(&t, loss, &right));
out:
    lab_trainer_end(&t);
    return st;
}

/* Before any training. */
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

/* The part of f32's progress at a rate that a form makes. */
static double progress(double loss[FORMS][MOST_RATES], double first, int form, int rate) {
    return (first - loss[form][rate]) / (first - loss[F32][rate]);
}

/* In the middle of the rates. */
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
    .method = "Trains a perceptron by SGD with momentum at learning rates from 2^-14 on, in f32; in f16 and bf16 with "
              "masters (O2) and without; and in bf16 without masters but with stochastic rounding of the updates (O3).",
    .expected = "With masters the loss is f32's at every rate. Without, updates below half a unit in the last place of "
                "a weight are lost: at small rates bf16, of 8 bits, stands still, f16, of 11, goes on for longer, and "
                "stochastic rounding, which keeps updates in the mean, stays with f32.",
    .source = "Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.1; Zamirai et al., Revisiting "
              "BFloat16 Training, 2021, section 3",
    .options = options,
    .run = run,
};
