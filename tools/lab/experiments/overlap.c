/* Times all-reduces in several forms, and steps whose reductions overlap with backward; compares with cairn-plan. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/trace.h"
#include "core/status.h"
#include "../../plan/simulate.h"
#include "../allreduce_forms.h"
#include "../experiment.h"
#include "../trainer.h"

static const struct lab_option options[] = {
    {"ranks", "2", "threads that reduce together", .kind = LAB_WHOLE, .least = 2, .most = 16},
    {"repeats", "15", "of each measurement, of which the median is taken", .kind = LAB_WHOLE, .least = 3, .most = 1000},
    {"width", "512", "of the six linear layers that are trained", .kind = LAB_WHOLE, .least = 8, .most = 8192},
    {0}};

enum { SIZES = 6, LAYERS = 6, ROWS = 64, WARM = 4, MOST_REPEATS = 1000 };

/* Sizes of the all-reduces: 16 KiB, 64 KiB, ... 16 MiB. */
static size_t size_at(int i) {
    return (size_t)16384 << 2 * i;
}

/* How a step reduces: during backward in buckets of at most `cap` bytes, or all at once after it. */
static const struct way {
    const char *name;
    size_t cap;
    cairn_switch after;
} ways[] = {{"after backward", 0, CAIRN_ON},           {"64 KiB", (size_t)64 << 10, CAIRN_OFF},
            {"256 KiB", (size_t)256 << 10, CAIRN_OFF}, {"1 MiB", (size_t)1 << 20, CAIRN_OFF},
            {"4 MiB", (size_t)4 << 20, CAIRN_OFF},     {"25 MiB", (size_t)25 << 20, CAIRN_OFF}};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

struct job {
    int repeats;
    int64_t width;
    uint64_t seed;
    const char *profile; /* file for ddp's profile; NULL = none: measure all forms and ways instead */
    double forms[LAB_FORMS][SIZES], steps[WAYS]; /* ns, medians of the slowest rank */
    bool right[LAB_FORMS];
};

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over the repeats of the slowest rank's time. */
static cairn_status median(cairn_group *group, double *ns, int n, double *out) {
    cairn_status st = CAIRN_OK;
    TRY(cairn_allreduce(group, ns, (size_t)n, CAIRN_F64, CAIRN_MAX, NULL));
    qsort(ns, (size_t)n, sizeof(*ns), compare);
    *out = ns[n / 2];
out:
    return st;
}

/* ---- forms ---- */

/* Whole numbers, whose sums are exact in any order. */
static void fill(float *x, size_t n, int rank) {
    for (size_t i = 0; i < n; i++) x[i] = (float)(i % 1021) * (float)(rank + 1);
}

static bool is_sum(const float *x, size_t n, int p) {
    for (size_t i = 0; i < n; i++) {
        if (x[i] != (float)(i % 1021) * (float)(p * (p + 1) / 2)) return false;
    }
    return true;
}

static cairn_status time_form(struct job *job, cairn_group *group, enum lab_form_of_allreduce form, int size, float *x,
                              float *room, double *ns) {
    const size_t p = (size_t)cairn_group_size(group), n = size_at(size) / sizeof(float) / p * p;
    const int rank = cairn_group_rank(group);
    double result;
    bool right = true;
    cairn_status st = CAIRN_OK;
    for (int i = -1; i < job->repeats; i++) { /* the first warms up */
        fill(x, n, rank);
        TRY(cairn_barrier(group));
        const uint64_t begin = cairn__now_ns();
        TRY(lab_allreduce_by(form, group, x, room, n));
        if (i >= 0) ns[i] = (double)(cairn__now_ns() - begin);
        right = right && is_sum(x, n, (int)p);
    }
    TRY(median(group, ns, job->repeats, &result));
    double wrong = !right;
    TRY(cairn_allreduce(group, &wrong, 1, CAIRN_F64, CAIRN_MAX, NULL));
    if (rank == 0) {
        job->forms[form][size] = result;
        job->right[form] = job->right[form] && wrong == 0;
    }
out:
    return st;
}

static cairn_status time_forms(struct job *job, cairn_env *env) {
    cairn_group *group = cairn_env_group(env);
    float *x = NULL, *room = NULL;
    double ns[MOST_REPEATS];
    cairn_status st = CAIRN_OK;
    TRY(cairn__alloc(size_at(SIZES - 1), (void **)&x));
    TRY(cairn__alloc(size_at(SIZES - 1), (void **)&room));
    for (int form = 0; form < LAB_FORMS; form++) {
        for (int size = 0; size < SIZES; size++)
            TRY(time_form(job, group, (enum lab_form_of_allreduce)form, size, x, room, ns));
    }
out:
    cairn__free(room);
    cairn__free(x);
    return st;
}

/* ---- steps ---- */

static cairn_module *make_model(cairn_env *env, int64_t width) {
    cairn_module *layers[2 * LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layers[2 * i] = cairn_linear(env, width, width);
        layers[2 * i + 1] = cairn_activation(env, cairn_relu);
    }
    return cairn_sequential(env, 2 * LAYERS, layers);
}

static cairn_status step(ddp_context *ddp, cairn_optimizer *sgd, cairn_tensor *x) {
    cairn_status st = CAIRN_OK;
    cairn_zero_grad(sgd);
    TRY(cairn_backward(cairn_mse_loss(ddp_forward(ddp, x), x)));
    TRY(cairn_step(sgd));
out:
    return st;
}

static cairn_status time_way(struct job *job, cairn_env *env, const struct way *way, double *out) {
    cairn_group *group = cairn_env_group(env);
    double ns[MOST_REPEATS];
    cairn_module *model = NULL;
    cairn_optimizer *sgd = NULL;
    ddp_context *ddp = NULL;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, job->width));
    cairn_status st = CAIRN_OK;
    model = make_model(env, job->width);
    if (!model || !x) TRY(cairn__last_status());
    TRY(cairn_sgd_create(cairn_module_params(model), NULL, &sgd));
    TRY(ddp_create(model, group, ddp_options(.bucket_nbytes = way->cap, .delay_allreduce = way->after), &ddp));
    for (int i = -WARM; i < job->repeats; i++) {
        TRY(cairn_barrier(group));
        const uint64_t begin = cairn__now_ns();
        TRY(step(ddp, sgd, x));
        if (i >= 0) ns[i] = (double)(cairn__now_ns() - begin);
    }
    TRY(median(group, ns, job->repeats, out));
    if (job->profile) TRY(ddp_write_logging_data(ddp, job->profile));
out:
    ddp_destroy(&ddp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
    return st;
}

static cairn_status work(struct job *job, int rank) {
    cairn_env *env = NULL;
    double ns;
    cairn_status st = CAIRN_OK;
    TRY(cairn_env_create(NULL, NULL, cairn_env_options(.seed = job->seed, .device = "cpu"), &env));
    if (!job->profile) TRY(time_forms(job, env));
    for (int w = 0; w < (job->profile ? 1 : WAYS); w++) {
        TRY(time_way(job, env, &ways[w], &ns));
        if (rank == 0) job->steps[w] = ns;
    }
out:
    cairn_env_destroy(&env);
    return st;
}

static int rank_main(int rank, void *job) {
    return work(job, rank) != CAIRN_OK;
}

/* ---- prediction ---- */

/* The profile of one rank alone, as ddp writes it. It is written into a pipe, which is large enough and, unlike a file,
 * disappears when this process ends in any way. */
static cairn_status measure_profile(const struct job *of, struct profile *out, double *step_ns) {
    char to[32], from[32];
    int ends[2] = {-1, -1};
    struct job job = *of;
    cairn_status st = CAIRN_OK;
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0, CAIRN_ESYSTEM, "no pipe can be made for a profile: %s", strerror(errno));
    snprintf(from, sizeof(from), "/proc/self/fd/%d", ends[0]);
    snprintf(to, sizeof(to), "/proc/self/fd/%d", ends[1]);
    job.profile = to;
    TRY(cairn_spawn_threads(rank_main, &job, 1, cairn_spawn_threads_options(.num_threads = 1)));
    *step_ns = job.steps[0];
    close(ends[1]);
    ends[1] = -1;
    if (!profile_read(from, out)) st = cairn__fail(CAIRN_EINTERNAL, "the profile that ddp wrote cannot be read");
out:
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0) close(ends[i]);
    }
    return st;
}

/* Predicts as cairn-plan does, from the measured all-reduces. overlap_cost is 1: the ranks' threads compute the sums
 * themselves, so backward hides none of their time. */
static void predict(const struct job *job, const struct profile *profile, int ranks, double ns[WAYS]) {
    struct point points[SIZES];
    double most = 0;
    for (int i = 0; i < SIZES; i++) {
        most = job->forms[LAB_FORM_ALLREDUCE][i] > most ? job->forms[LAB_FORM_ALLREDUCE][i] : most;
        points[i] = (struct point){(double)size_at(i), most};
    }
    const struct network net = {
        .link = {.name = "threads", .share = 1, .points = points, .count = SIZES, .ranks = ranks, .overlap_cost = 1},
        .algorithm = ALL_TO_ALL,
        .node_ranks = 1};
    for (int w = 0; w < WAYS; w++) {
        const size_t all = (size_t)profile_nbytes(profile), cap = ways[w].cap ? ways[w].cap : all;
        struct step s;
        simulate(profile, &net, ranks, cap, ways[w].cap ? 0 : all, &s);
        ns[w] = s.end;
        step_free(&s);
    }
}

/* ---- the experiment ---- */

static void put(struct lab_run *run, const struct job *job, const double predicted[WAYS]) {
    struct lab_table *forms =
        lab_table(run, "forms", "Time of an all-reduce by form",
                  (struct lab_column[]){{"size", "KiB"}, {"form", NULL}, {"time", "us"}, {"rate", "GB/s"}}, 4);
    struct lab_table *steps = lab_table(run, "steps", "Time of a step by when gradients are reduced",
                                        (struct lab_column[]){{"buckets", NULL}, {"of", NULL}, {"step", "ms"}}, 3);
    for (int f = 0; f < LAB_FORMS; f++) {
        for (int i = 0; i < SIZES; i++) {
            lab_put(forms, (double)size_at(i) / 1024);
            lab_put_text(forms, lab_form_name((enum lab_form_of_allreduce)f));
            lab_put(forms, job->forms[f][i] / 1e3);
            lab_put(forms, (double)size_at(i) / job->forms[f][i]);
        }
    }
    for (int w = 0; w < WAYS; w++) {
        for (int of = 0; of < 2; of++) {
            lab_put_text(steps, ways[w].name);
            lab_put_text(steps, of == 0 ? "measured" : "cairn-plan");
            lab_put(steps, (of == 0 ? job->steps[w] : predicted[w]) / 1e6);
        }
    }
    lab_picture(run, &(struct lab_picture){.name = "forms",
                                           .title = "All-reduce by form",
                                           .table = "forms",
                                           .form = LAB_LINES,
                                           .x = "size",
                                           .y = "time",
                                           .by = "form",
                                           .x_log = 2,
                                           .y_log = 10});
    lab_picture(run, &(struct lab_picture){.name = "steps",
                                           .title = "Step by bucket cap",
                                           .table = "steps",
                                           .form = LAB_BARS,
                                           .x = "buckets",
                                           .y = "step",
                                           .by = "of"});
}

static void say(struct lab_run *run, const struct job *job, const double predicted[WAYS], double alone, int ranks) {
    const int large = SIZES - 1;
    int best = 1;
    for (int f = 0; f < LAB_FORMS; f++)
        lab_check(run, job->right[f], "%s over %d ranks gives the exact sum on each",
                  lab_form_name((enum lab_form_of_allreduce)f), ranks);
    for (int w = 2; w < WAYS; w++) best = job->steps[w] < job->steps[best] ? w : best;
    lab_finding(run, "%zu MiB over %d ranks: all-reduce %.2f ms, reduce + broadcast %.2f, all-to-all %.2f, ring %.2f",
                size_at(large) >> 20, ranks, job->forms[LAB_FORM_ALLREDUCE][large] / 1e6,
                job->forms[LAB_FORM_REDUCE_BROADCAST][large] / 1e6, job->forms[LAB_FORM_ALLTOALL][large] / 1e6,
                job->forms[LAB_FORM_RING][large] / 1e6);
    lab_finding(run,
                "a step takes %.2f ms alone, %.2f on %d ranks with one reduction after backward, %.2f with the "
                "best buckets, %s; cairn-plan says %.2f and %.2f",
                alone / 1e6, job->steps[0] / 1e6, ranks, job->steps[best] / 1e6, ways[best].name, predicted[0] / 1e6,
                predicted[best] / 1e6);
}

static cairn_status run(struct lab_run *run) {
    const int ranks = (int)lab_whole(run, "ranks");
    struct job job = {.repeats = (int)lab_whole(run, "repeats"),
                      .width = lab_whole(run, "width"),
                      .seed = lab_seed(run)};
    struct profile profile = {.model = NULL};
    double predicted[WAYS], alone = 0;
    cairn_status st = CAIRN_OK;
    for (int f = 0; f < LAB_FORMS; f++) job.right[f] = true;
    lab_progress(run, 0, "one rank alone");
    TRY(measure_profile(&job, &profile, &alone));
    lab_progress(run, 0.2, "%d ranks", ranks);
    TRY(cairn_spawn_threads(rank_main, &job, ranks, cairn_spawn_threads_options(.num_threads = 1)));
    predict(&job, &profile, ranks, predicted);
    put(run, &job, predicted);
    say(run, &job, predicted, alone, ranks);
out:
    profile_free(&profile);
    return st;
}

const struct lab_experiment lab_overlap = {
    .name = "overlap",
    .question = "How long do all-reduces take by form, and what do buckets that overlap with backward save?",
    .method =
        "Ranks that are threads of this machine sum arrays by Cairn's all-reduce, by a reduction and a broadcast, "
        "by an all-to-all of parts, and by a ring of messages. Then they train six linear layers under ddp, with "
        "one reduction after backward and with buckets of 64 KiB to 25 MiB during it. cairn-plan's model predicts "
        "the steps from a profile of one rank and the measured all-reduces. Times are medians of the slowest "
        "rank's.",
    .expected = "All forms give the exact sum. Ranks of one machine add up themselves, so overlap hides little: the "
                "fixed cost of a reduction speaks for large buckets, and caches for those that fit into them.",
    .source = "Li et al., PyTorch Distributed, VLDB 2020, section 3.2; Patarasuk and Yuan, 2009; tools/plan/link.h",
    .options = options,
    .has_times = true,
    .run = run,
};
