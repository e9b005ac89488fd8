/* Histograms of gradients during a training: the part that f16 can represent, and the scale that would help. */
#include <math.h>

#include "core/half.h"
#include "core/status.h"
#include "../experiment.h"
#include "../trainer.h"

static const struct lab_option options[] = {
    {"model", "encoder", "which is trained", .kind = LAB_TEXT, .choices = "mlp conv encoder"},
    {"steps", "200", "of the training", .kind = LAB_WHOLE, .least = 4, .most = 1 << 20},
    {"factor", "-10", "the loss is multiplied by 2^factor", .kind = LAB_WHOLE, .least = -20, .most = 10},
    {0}};

enum { LOOKS = 5, WEIGHTS = 0, ACTIVATIONS, KINDS };
static const char *const kinds[KINDS] = {"weights", "activations"};

/* Scales at which the lost gradients are both predicted from the histogram and counted. */
static const int scales[] = {0, 8, 16};
static const char *const scale_names[] = {"1", "2^8", "2^16"};
enum { SCALES = sizeof(scales) / sizeof(scales[0]) };

struct look {
    cairn_env *env;
    cairn_status status;
    struct counted {
        struct cairn_exponents exponents;
        uint64_t nonzero;
        /* Rounded to f16, at each scale. ties: those halfway between 0 and the least f16, at the edge of a binade. */
        uint64_t become_zero[SCALES], ties[SCALES];
    } of[KINDS];
};

static void count(void *ctx, const char *place, bool is_param, cairn_dtype dtype, void *dx, size_t n) {
    struct look *look = ctx;
    struct counted *c = &look->of[is_param ? WEIGHTS : ACTIVATIONS];
    const float *x = dx;
    (void)place;
    if (look->status != CAIRN_OK || dtype != CAIRN_F32) return;
    look->status = cairn_exponents_count(look->env, x, n, dtype, NULL, &c->exponents);
    for (size_t i = 0; i < n; i++) {
        c->nonzero += x[i] != 0;
        for (int s = 0; s < SCALES; s++) {
            const float scaled = ldexpf(x[i], scales[s]);
            c->become_zero[s] += x[i] != 0 && (cairn__f32_to_f16(scaled) & 0x7fffu) == 0;
            c->ties[s] += fabsf(scaled) == 0x1p-25f;
        }
    }
}

static double percent(uint64_t part, uint64_t of) {
    return of ? 100.0 * (double)part / (double)of : 0;
}

static void put_histogram(struct lab_table *table, int64_t step, int kind, const struct counted *c) {
    const uint64_t all = cairn_exponents_total(&c->exponents);
    for (int i = 0; i < CAIRN_NUM_BINADES; i++) {
        if (c->exponents.binades[i] == 0) continue;
        lab_put(table, (double)step);
        lab_put_text(table, kinds[kind]);
        lab_put(table, i + CAIRN_LEAST_BINADE);
        lab_put(table, percent(c->exponents.binades[i], all));
    }
}

/* Adds the predicted and the counted share at each scale; *holds: both count the same number of elements. */
static cairn_status put_lost(struct lab_table *table, int64_t step, int kind, const struct counted *c, bool *holds) {
    cairn_status st = CAIRN_OK;
    for (int s = 0; s < SCALES; s++) {
        struct cairn_exponents_loss predicted;
        TRY(cairn_exponents_lose(&c->exponents, ldexp(1, scales[s]), CAIRN_RANGE_F16, &predicted));
        const double elements = round(predicted.to_zero * (double)c->nonzero);
        *holds = *holds && (double)(c->become_zero[s] - c->ties[s]) == elements;
        lab_put(table, (double)step);
        lab_put_text(table, kinds[kind]);
        lab_put_text(table, scale_names[s]);
        lab_put(table, 100 * predicted.to_zero);
        lab_put(table, percent(c->become_zero[s], c->nonzero));
    }
out:
    return st;
}

static void say(struct lab_run *run, int64_t step, int kind, const struct counted *c) {
    int greatest = 0;
    cairn_exponents_greatest(&c->exponents, &greatest);
    lab_finding(run,
                "step %lld, gradients of %s: %.1f %% are 0; of the others %.1f %% are below f16's range without a "
                "scale, %.1f %% at 2^8, %.1f %% at 2^16; the largest is below 2^%d, so that a scale of 2^%d fits",
                (long long)step, kinds[kind], percent(c->exponents.zeros, cairn_exponents_total(&c->exponents)),
                percent(c->become_zero[0], c->nonzero), percent(c->become_zero[1], c->nonzero),
                percent(c->become_zero[2], c->nonzero), greatest + 1, 15 - greatest - 1);
}

static enum lab_model model_of(struct lab_run *run) {
    const char first = lab_text(run, "model")[0];
    return first == 'm' ? LAB_MLP : first == 'c' ? LAB_CONV : LAB_ENCODER;
}

static cairn_status look_at(struct lab_run *run, struct lab_trainer *t, int64_t step, struct lab_table *histograms,
                            struct lab_table *lost, bool last, bool *holds) {
    struct look look = {.env = t->env,
                        .of = {{.exponents = CAIRN_EXPONENTS_INIT}, {.exponents = CAIRN_EXPONENTS_INIT}}};
    cairn_status st = CAIRN_OK;
    TRY(lab_trainer_look(t, ldexp(1, (int)lab_whole(run, "factor")), count, &look));
    TRY(look.status);
    for (int k = 0; k < KINDS; k++) {
        put_histogram(histograms, step, k, &look.of[k]);
        TRY(put_lost(lost, step, k, &look.of[k], holds));
        if (step == 0 || last) say(run, step, k, &look.of[k]);
    }
out:
    return st;
}

static cairn_status run(struct lab_run *run) {
    const struct amp_options amp = {.struct_size = sizeof(amp), .opt_level = AMP_O0};
    const struct lab_training how = {
        .model = model_of(run), .seed = lab_seed(run), .adamw = true, .watched = true, .amp = &amp};
    const int64_t steps = lab_whole(run, "steps"), every = steps / (LOOKS - 1);
    struct lab_table *histograms =
        lab_table(run, "histograms", "Gradients by their exponents",
                  (struct lab_column[]){{"step", ""}, {"gradients of", NULL}, {"magnitude", "2^k"}, {"share", "%"}}, 4);
    struct lab_table *lost =
        lab_table(run, "lost", "Gradients that become 0 in f16",
                  (struct lab_column[]){
                      {"step", ""}, {"gradients of", NULL}, {"scale", NULL}, {"predicted", "%"}, {"become 0", "%"}},
                  5);
    struct lab_trainer t;
    bool holds = true;
    cairn_status st = CAIRN_OK;
    lab_hide_warnings();
    TRY(lab_trainer_begin(&how, &t));
    for (int64_t i = 0; i <= steps; i++) {
        TRY(lab_trainer_take_batch(&t, (uint64_t)i));
        if (i % every == 0) TRY(look_at(run, &t, i, histograms, lost, i + every > steps, &holds));
        if (i < steps) TRY(lab_trainer_step(&t, 1));
        lab_progress(run, (double)i / (double)steps, "step %lld", (long long)i);
    }
    lab_check(run, holds, "at scales of 1, 2^8 and 2^16 as many gradients become 0 in f16 as their histograms say");
    lab_picture(run, &(struct lab_picture){.name = "histograms",
                                           .title = "Gradients over a training",
                                           .table = "histograms",
                                           .form = LAB_LINES,
                                           .x = "magnitude",
                                           .y = "share",
                                           .by = "step",
                                           .panel = "gradients of",
                                           .x_power = true,
                                           .marks = {{"f16's least", -24, false}, {"f16's least normal", -14, false}}});
    lab_picture(run, &(struct lab_picture){.name = "lost",
                                           .title = "Gradients that become 0 in f16",
                                           .table = "lost",
                                           .form = LAB_LINES,
                                           .x = "step",
                                           .y = "become 0",
                                           .by = "scale",
                                           .panel = "gradients of"});
out:
    lab_trainer_end(&t);
    return st;
}

const struct lab_experiment lab_gradients = {
    .name = "gradients",
    .question = "How large are gradients over a training, and what of them can f16 hold?",
    .method = "Trains a small model in f32 and counts, at the beginning and each quarter, the exponents of all "
              "gradients of weights and "
              "of activations, of a loss that is multiplied by a small number as that of a larger model would be. Each "
              "gradient is also rounded to f16 at three scales.",
    .expected =
        "Gradients spread over tens of binades. Some are below 2^-24, the least that f16 has, while the binades "
        "at its upper end are empty; multiplied by a power of two they move there. The histogram says exactly "
        "how many become 0 at which scale.",
    .source = "Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2, figures 2 and 3",
    .options = options,
    .run = run,
};
