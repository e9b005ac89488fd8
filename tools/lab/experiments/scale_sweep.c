/* Static loss scales from 2^-16 to 2^24: gradients lost at small scales, and the cliff at large ones, predicted from
 * one backward. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "../experiment.h"
#include "../trainer.h"

static const struct lab_option options[] = {{"model", "all", "which is trained", .kind = LAB_TEXT,
                                             .choices = "all mlp conv encoder"},
                                            {"steps", "40", "of each training", .kind = LAB_WHOLE, .least = 2,
                                             .most = 1 << 20},
                                            {0}};

/* Exponents of the scales. Small models have large gradients: scales below 1 show here what a model whose gradients are
 * 2^16 times smaller shows at scales from 1 on. */
enum { FIRST = -16, LAST = 24, SCALES = LAST - FIRST + 1 };

struct sweep {
    struct lab_run *run;
    enum lab_model model;
    int steps;
    int predicted;                 /* the cliff: the largest exponent that does not overflow in the first step */
    bool clean[SCALES];            /* [k - FIRST] the first step, as measured */
    int64_t skips, skips_foreseen; /* skipped steps over all trainings, and those predicted */
    int64_t surprises;             /* steps skipped but not predicted, or the reverse */
};

static cairn_status begin(const struct sweep *s, const struct amp_scaler_options *scaler, struct lab_trainer *t) {
    const struct amp_options amp = {.struct_size = sizeof(amp),
                                    .opt_level = AMP_O2,
                                    .half_type = CAIRN_F16,
                                    .scaler = scaler};
    const struct lab_training how = {
        .model = s->model, .seed = lab_seed(s->run), .lr = 0.05, .watched = true, .amp = &amp};
    return lab_trainer_begin(&how, t);
}

static cairn_status begin_twin(const struct sweep *s, struct lab_trainer *t) {
    const struct amp_options amp = {.struct_size = sizeof(amp), .opt_level = AMP_O0};
    const struct lab_training how = {.model = s->model, .seed = lab_seed(s->run), .amp = &amp};
    return lab_trainer_begin(&how, t);
}

/* Predicts the cliff from the first batch's gradients: first at a scale far below the cliff, then at one near it, where
 * small terms of sums are not lost in f16. */
static cairn_status predict(struct sweep *s) {
    const struct amp_scaler_options one = lab_static_scale(1);
    struct lab_trainer t;
    double greatest;
    cairn_status st = CAIRN_OK;
    TRY(begin(s, &one, &t));
    TRY(lab_trainer_take_batch(&t, 0));
    TRY(lab_trainer_greatest(&t, 1, 0x1p8, &greatest));
    TRY(lab_trainer_greatest(&t, 1, ldexp(1, lab_cliff(greatest) - 2), &greatest));
    s->predicted = lab_cliff(greatest);
out:
    lab_trainer_end(&t);
    return st;
}

/* Predicts whether a step overflows, then takes it. */
static cairn_status step(struct sweep *s, struct lab_trainer *t, uint64_t batch, bool *foreseen) {
    const double scale = lab_trainer_scale(t);
    double greatest;
    cairn_status st = CAIRN_OK;
    TRY(lab_trainer_take_batch(t, batch));
    TRY(lab_trainer_greatest(t, 1, ldexp(1, s->predicted - 4), &greatest));
    *foreseen = scale * greatest >= 65520;
    TRY(lab_trainer_step(t, 1));
    s->skips += t->skipped;
    s->skips_foreseen += *foreseen;
    s->surprises += t->skipped != *foreseen;
out:
    return st;
}

static void put(struct lab_table *trainings, struct lab_table *shares, int k, double loss, double right,
                const struct lab_lost *lost, int64_t skipped, int steps) {
    const double lost_share = lost->of ? 100.0 * (double)lost->lost / (double)lost->of : 0;
    const double skipped_share = 100.0 * (double)skipped / steps;
    lab_put(trainings, k);
    lab_put(trainings, loss);
    lab_put(trainings, 100 * right);
    lab_put(trainings, lost_share);
    lab_put(trainings, (double)skipped);
    lab_put(shares, k);
    lab_put(shares, lost_share);
    lab_put_text(shares, "gradients that became 0");
    lab_put(shares, k);
    lab_put(shares, skipped_share);
    lab_put_text(shares, "skipped steps");
}

static cairn_status train(struct sweep *s, int k, struct lab_trainer *twin, struct lab_table *trainings,
                          struct lab_table *shares) {
    const struct amp_scaler_options scale = lab_static_scale(ldexp(1, k));
    struct lab_trainer t;
    struct lab_lost lost;
    double loss, right;
    bool foreseen;
    cairn_status st = CAIRN_OK;
    TRY(begin(s, &scale, &t));
    for (int i = 0; i < s->steps; i++) {
        TRY(step(s, &t, (uint64_t)i, &foreseen));
        if (i == 0) s->clean[k - FIRST] = !t.skipped;
    }
    const int64_t skipped = cairn_optimizer_skipped(t.optimizer);
    TRY(lab_trainer_lost(&t, twin, (uint64_t)s->steps, 1, &lost));
    TRY(lab_trainer_test(&t, &loss, &right));
    put(trainings, shares, k, loss, right, &lost, skipped, s->steps);
out:
    lab_trainer_end(&t);
    return st;
}

/* A dynamic scale that starts at 2^24, on one batch: it is halved until it reaches the cliff, and no weight changes
 * meanwhile. */
static cairn_status fall(struct sweep *s) {
    const struct amp_scaler_options from_above = {.struct_size = sizeof(from_above),
                                                  .kind = AMP_SCALER_APEX,
                                                  .init_scale = 0x1p24};
    struct lab_trainer t;
    const int above = LAST > s->predicted ? LAST - s->predicted : 0, expected = above < s->steps ? above : s->steps;
    int first = 0;
    bool foreseen;
    int64_t surprises = 0;
    cairn_status st = CAIRN_OK;
    TRY(begin(s, &from_above, &t));
    for (int i = 0; i < s->steps; i++) {
        TRY(step(s, &t, 0, &foreseen));
        if (t.skipped && first == i) first++;
        surprises += t.skipped != foreseen;
    }
    lab_check(s->run, first == expected,
              "%s: a dynamic scale that begins at 2^24 skips its first %d steps; 24 - %d = %d were predicted",
              lab_model_name(s->model), first, s->predicted, above);
    lab_check(s->run, surprises == 0, "%s: it skips %lld of %d steps, and %lld of them not as predicted",
              lab_model_name(s->model), (long long)cairn_optimizer_skipped(t.optimizer), s->steps,
              (long long)surprises);
out:
    lab_trainer_end(&t);
    return st;
}

static int measured_cliff(const struct sweep *s) {
    int k = LAST;
    while (k >= FIRST && !s->clean[k - FIRST]) k--;
    return k;
}

static void draw(const struct sweep *s, const char *trainings, const char *shares) {
    char loss[48], share[48], loss_title[96], share_title[96], label[32];
    const char *model = lab_model_name(s->model);
    snprintf(loss, sizeof(loss), "loss-%s", model);
    snprintf(share, sizeof(share), "shares-%s", model);
    snprintf(loss_title, sizeof(loss_title), "Loss by static scale: %s", model);
    snprintf(share_title, sizeof(share_title), "Lost gradients and skipped steps by static scale: %s", model);
    snprintf(label, sizeof(label), "cliff 2^%d", s->predicted);
    lab_picture(s->run, &(struct lab_picture){.name = loss,
                                              .title = loss_title,
                                              .table = trainings,
                                              .form = LAB_LINES,
                                              .x = "scale",
                                              .y = "test loss",
                                              .x_power = true,
                                              .marks = {{label, s->predicted, false}}});
    lab_picture(s->run, &(struct lab_picture){.name = share,
                                              .title = share_title,
                                              .table = shares,
                                              .form = LAB_LINES,
                                              .x = "scale",
                                              .y = "share",
                                              .by = "of",
                                              .x_power = true,
                                              .marks = {{label, s->predicted, false}}});
}

static cairn_status sweep(struct lab_run *run, enum lab_model model, double done, double part) {
    struct sweep s = {.run = run, .model = model, .steps = (int)lab_whole(run, "steps")};
    char trainings_name[48], shares_name[48], title[96];
    struct lab_trainer twin;
    cairn_status st = CAIRN_OK;
    snprintf(trainings_name, sizeof(trainings_name), "trainings-%s", lab_model_name(model));
    snprintf(shares_name, sizeof(shares_name), "shares-%s", lab_model_name(model));
    snprintf(title, sizeof(title), "Trainings by static scale: %s", lab_model_name(model));
    struct lab_table *trainings = lab_table(run, trainings_name, title,
                                            (struct lab_column[]){{"scale", ""},
                                                                  {"test loss", ""},
                                                                  {"right", "%"},
                                                                  {"gradients that became 0", "%"},
                                                                  {"skipped steps", ""}},
                                            5);
    struct lab_table *shares =
        lab_table(run, shares_name, title, (struct lab_column[]){{"scale", ""}, {"share", "%"}, {"of", NULL}}, 3);
    TRY(begin_twin(&s, &twin));
    TRY(predict(&s));
    for (int k = FIRST; k <= LAST; k++) {
        lab_progress(run, done + part * (k - FIRST) / (SCALES + 1), "%s at 2^%d", lab_model_name(model), k);
        TRY(train(&s, k, &twin, trainings, shares));
    }
    const int measured = measured_cliff(&s);
    lab_check(run, measured == s.predicted,
              "%s: the largest scale that the first step does not overflow with is 2^%d; 2^%d was predicted",
              lab_model_name(model), measured, s.predicted);
    lab_check(run, s.surprises == 0,
              "%s: %lld of %d steps were skipped over all scales, %lld were predicted, and %lld were not as predicted",
              lab_model_name(model), (long long)s.skips, SCALES * s.steps, (long long)s.skips_foreseen,
              (long long)s.surprises);
    TRY(fall(&s));
    draw(&s, trainings_name, shares_name);
out:
    lab_trainer_end(&twin);
    return st;
}

static cairn_status run(struct lab_run *run) {
    static const enum lab_model models[] = {LAB_MLP, LAB_CONV, LAB_ENCODER};
    const char *which = lab_text(run, "model");
    const bool all = strcmp(which, "all") == 0;
    cairn_status st = CAIRN_OK;
    lab_hide_warnings();
    for (int i = 0; i < 3; i++) {
        if (all || strcmp(which, lab_model_name(models[i])) == 0)
            TRY(sweep(run, models[i], all ? i / 3.0 : 0, all ? 1 / 3.0 : 1));
    }
out:
    return st;
}

const struct lab_experiment lab_scale_sweep = {
    .name = "scale-sweep",
    .question = "Which static loss scales does a training in f16 work with?",
    .method =
        "Trains small models at O2 in f16 with static scales from 2^-16 to 2^24 and reports the loss, the share of "
        "gradients that are 0 where those of an f32 twin of the same weights and batch are not, and the skipped "
        "steps. Before each step a backward at a low scale finds the largest magnitude g among all f16 gradients, of "
        "parameters and of "
        "activations; the step is predicted to be skipped if scale x g >= 65520, from where on f16 rounds to "
        "infinity.",
    .expected = "Up to the cliff, the largest k with 2^k g < 65520, steps are taken and ever fewer gradients are lost; "
                "above it every step with such gradients is skipped. The measured cliff and every skipped step are as "
                "predicted, and a dynamic scale that begins at 2^24 skips its first 24 - k steps.",
    .source = "Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2; IEEE 754-2019, section 4.3.1 for "
              "65520",
    .options = options,
    .run = run,
};
