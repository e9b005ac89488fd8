/* Plants an overflow at a layer, a rank and a step; checks which step every rank skips and what it reports. */
#include <string.h>

#include "core/hash.h"
#include "core/status.h"
#include "../experiment.h"
#include "../trainer.h"

enum { LAYERS = 4, MOST_RANKS = 8, MOST_STEPS = 64, MOST_NAMED = 32 };

static const struct lab_option options[] = {
    {"ranks", "2", "threads that train together", .kind = LAB_WHOLE, .least = 1, .most = MOST_RANKS},
    {"steps", "6", "of each training", .kind = LAB_WHOLE, .least = 1, .most = MOST_STEPS},
    {"step", "3", "in which it overflows", .kind = LAB_WHOLE, .least = 1, .most = MOST_STEPS},
    {0}};

/* The place at which the gradient of a layer's result can be changed (models.c). */
static const char *const result_of[LAYERS] = {"gelu 0", "gelu 1", "gelu 2", "scores"};

static const double first_scale = 0x1p10; /* only the planted gradient overflows at it */

struct plant {
    const char *place;
    bool armed;
};

/* What one rank observed. */
struct seen {
    uint64_t skipped; /* bit i: step i, from 1 */
    uint64_t layers;  /* bit l: amp_last_overflow names both parameters of layer l */
    size_t named;     /* how many parameters it names */
    int rank;         /* the rank that the first parameter's report names */
    double scale;     /* at the end */
    uint64_t weights; /* a hash of them at the end */
};

struct job {
    int layer, rank, step, steps;
    uint64_t seed;
    struct seen seen[MOST_RANKS];
};

/* Replaces one number by an f16 infinity. */
static void plant_infinity(void *ctx, const char *place, bool is_param, cairn_dtype dtype, void *dx, size_t n) {
    const struct plant *p = ctx;
    if (p->armed && !is_param && dtype == CAIRN_F16 && n > 0 && strcmp(place, p->place) == 0) *(uint16_t *)dx = 0x7c00;
}

static cairn_status read_overflow(struct lab_trainer *t, struct seen *seen) {
    struct amp_overflow all[MOST_NAMED];
    int of_layer[LAYERS] = {0};
    cairn_status st = CAIRN_OK;
    TRY(amp_last_overflow(t->amp, NULL, all, MOST_NAMED, &seen->named));
    for (size_t i = 0; i < seen->named && i < MOST_NAMED; i++) {
        const int layer = all[i].name[strlen("linear")] - '0'; /* "linear2.bias" */
        if (layer >= 0 && layer < LAYERS) of_layer[layer]++;
    }
    for (int l = 0; l < LAYERS; l++) seen->layers |= (uint64_t)(of_layer[l] == 2) << l;
    seen->rank = seen->named ? all[0].rank : -1;
out:
    return st;
}

static cairn_status hash_weights(struct lab_trainer *t, uint64_t *hash) {
    const cairn_param_set *set = cairn_module_params(t->model);
    cairn_status st = CAIRN_OK;
    *hash = CAIRN__HASH_START;
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        TRY(cairn_param_set_get(set, i, &p));
        size_t n = cairn_dtype_nbytes(p.dtype);
        for (int d = 0; d < p.ndim; d++) n *= (size_t)p.shape[d];
        *hash = cairn__hash_bytes(*hash, p.data, n);
    }
out:
    return st;
}

static cairn_status train(struct job *job, int rank) {
    const struct amp_scaler_options scaler = {.struct_size = sizeof(scaler), .init_scale = first_scale};
    const struct amp_options amp = {.struct_size = sizeof(amp),
                                    .opt_level = AMP_O2,
                                    .half_type = CAIRN_F16,
                                    .loss_scale = AMP_DYNAMIC,
                                    .scaler = &scaler};
    const struct lab_training how = {
        .model = LAB_MLP, .seed = job->seed, .watched = true, .averaged = true, .amp = &amp};
    struct plant plant = {.place = result_of[job->layer]};
    struct seen *seen = &job->seen[rank];
    struct lab_trainer t;
    cairn_status st = CAIRN_OK;
    TRY(lab_trainer_begin(&how, &t));
    t.watch.look = plant_infinity;
    t.watch.ctx = &plant;
    for (int step = 1; step <= job->steps; step++) {
        plant.armed = step == job->step && rank == job->rank;
        TRY(lab_trainer_take_batch(&t, (uint64_t)step));
        TRY(lab_trainer_step(&t, 1));
        seen->skipped |= (uint64_t)t.skipped << (step - 1);
    }
    seen->scale = lab_trainer_scale(&t);
    TRY(read_overflow(&t, seen));
    TRY(hash_weights(&t, &seen->weights));
out:
    lab_trainer_end(&t);
    return st;
}

static int rank_main(int rank, void *job) {
    return train(job, rank) != CAIRN_OK;
}

static void put(struct lab_table *table, const struct job *job, int ranks) {
    for (int r = 0; r < ranks; r++) {
        const struct seen *s = &job->seen[r];
        lab_put(table, job->layer);
        lab_put(table, job->rank);
        lab_put(table, job->step);
        lab_put(table, r);
        lab_put(table, s->skipped ? (double)__builtin_ctzll(s->skipped) + 1 : 0);
        lab_put(table, (double)__builtin_popcountll(s->skipped));
        lab_put(table, (double)s->named);
        lab_put(table, s->rank);
        lab_put(table, s->scale);
    }
}

/* On every rank: only that step is skipped, the report names the parameters from the first layer to the planted one and
 * the rank, the scale is halved once, and the weights are equal. */
static bool is_as_expected(const struct job *job, int ranks) {
    const bool happens = job->step <= job->steps;
    bool holds = true;
    for (int r = 0; r < ranks; r++) {
        const struct seen *s = &job->seen[r];
        holds = holds && s->skipped == (happens ? UINT64_C(1) << (job->step - 1) : 0);
        holds = holds && s->named == (happens ? 2 * ((size_t)job->layer + 1) : 0);
        holds = holds && s->layers == (happens ? (UINT64_C(2) << job->layer) - 1 : 0);
        holds = holds && s->scale == (happens ? first_scale / 2 : first_scale);
        holds = holds && s->rank == (happens ? job->rank : -1) && s->weights == job->seen[0].weights;
    }
    return holds;
}

static cairn_status run(struct lab_run *run) {
    const int ranks = (int)lab_whole(run, "ranks");
    struct lab_table *seen = lab_table(run, "seen", "What each rank sees of an overflow",
                                       (struct lab_column[]){{"planted at layer", ""},
                                                             {"planted at rank", ""},
                                                             {"planted in step", ""},
                                                             {"seen by rank", ""},
                                                             {"skipped step", ""},
                                                             {"skipped steps", ""},
                                                             {"parameters named", ""},
                                                             {"rank named", ""},
                                                             {"scale after", ""}},
                                       9);
    int held = 0;
    cairn_status st = CAIRN_OK;
    lab_hide_warnings();
    for (int i = 0; i < LAYERS * ranks; i++) {
        struct job job = {.layer = i / ranks,
                          .rank = i % ranks,
                          .step = (int)lab_whole(run, "step"),
                          .steps = (int)lab_whole(run, "steps"),
                          .seed = lab_seed(run)};
        lab_progress(run, (double)i / (LAYERS * ranks), "layer %d, rank %d", job.layer, job.rank);
        TRY(cairn_spawn_threads(rank_main, &job, ranks, NULL));
        put(seen, &job, ranks);
        held += is_as_expected(&job, ranks);
    }
    lab_picture(run, &(struct lab_picture){.name = "named",
                                           .title = "Parameters named after an overflow at a layer",
                                           .table = "seen",
                                           .form = LAB_BARS,
                                           .x = "planted at layer",
                                           .y = "parameters named",
                                           .by = "seen by rank",
                                           .panel = "planted at rank"});
    lab_check(
        run, held == LAYERS * ranks,
        "in %d of %d trainings on %d ranks every rank skips the planted step and no other, halves the scale once, "
        "names the rank and the parameters from layer 0 to the planted one, and ends with the same weights",
        held, LAYERS * ranks, ranks);
out:
    return st;
}

const struct lab_experiment lab_overflow = {
    .name = "overflow",
    .question = "What happens to a training when one gradient on one rank overflows?",
    .method =
        "Perceptrons of four layers train at O2 in f16 on ranks that are threads, and ddp averages their "
        "gradients. In one step on one rank an infinity takes the place of a gradient of one layer's result; once "
        "for every layer and rank.",
    .expected = "Every rank skips this step and no other, and the scale is halved once. amp_last_overflow names the "
                "weights and biases of that layer and of those before it, which backward reaches later, and the rank, "
                "on every rank; "
                "replicas stay equal.",
    .source = "Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2; amp_last_overflow in "
              "include/cairn/amp.h",
    .options = options,
    .run = run,
};
