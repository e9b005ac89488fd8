/* Communication overlaps backward: over a link of 1 GB/s most of the communication of a six-layer MLP happens while
 * backward computes.
 *
 * The test reads trace events: "bucket" spans launch to completion, "bucket_wait" the part that backward did not hide.
 * Ranks are threads, possibly on a busy machine, and a rank that is ahead waits for the other rank's gradients. That
 * wait is not communication, so an iteration counts with the figure of the rank that waited less, and the result is the
 * median over iterations. */
#include <math.h>

#include "../ranks.h"
#include "../trainer.h"
#include "core/trace.h"
#include "slow_link.h"

enum { RANKS = 2, LAYERS = 6, WIDTH = 1024, BATCH = 128, ITERATIONS = 3, TRIES = 5, CAP = 4 << 20 };

/* ---- what events tell ---- */

static _Thread_local int this_rank;

/* ns of an iteration */
struct figures {
    double total, exposed; /* in which a bucket was on its way; of these, after backward */
    double backward;
    uint64_t until; /* total counts what came before */
};

/* Of each rank by itself: no lock is needed. */
static struct figures seen[RANKS];

/* Buckets come in the order in which they arrived, and may have been on their way together. */
static void add_travel(struct figures *f, const struct cairn__event *e) {
    const uint64_t begin = e->begin_ns > f->until ? e->begin_ns : f->until;
    if (e->end_ns > begin) f->total += (double)(e->end_ns - begin);
    f->until = e->end_ns;
}

static void add_event(void *cookie, const struct cairn__event *e) {
    (void)cookie;
    const double ns = (double)(e->end_ns - e->begin_ns);
    if (strcmp(e->room, "ddp") != 0) return;
    if (strcmp(e->what, "bucket_wait") == 0) seen[this_rank].exposed += ns;
    if (strcmp(e->what, "backward") == 0) seen[this_rank].backward = ns;
    if (strcmp(e->what, "bucket") == 0) add_travel(&seen[this_rank], e);
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof(*x), compare);
    return x[n / 2];
}

/* ---- training ---- */

struct run {
    double bytes_per_second;                        /* 0 = no link */
    bool delays;                                    /* nothing is sent before backward has ended */
    int iterations;                                 /* after the one in which buckets are planned anew */
    double share[RANKS][ITERATIONS];                /* of communication that was exposed */
    double total[ITERATIONS], backward[ITERATIONS]; /* rank 0's */
    double carried;                                 /* bytes, in all */
    float *weights[2 * LAYERS];                     /* copies of rank 0's; the caller's to free */
};

static char *begin(struct trainer *t, cairn_env *env, bool delays) {
    *t = (struct trainer){.env = NULL};
    cairn_module *layers[2 * LAYERS - 1];
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 0x1p-6;
    for (int i = 0; i < 2 * LAYERS - 1; i++)
        layers[i] = i % 2 ? cairn_activation(env, cairn_relu) : cairn_linear(env, WIDTH, WIDTH);
    t->model = cairn_sequential(env, 2 * LAYERS - 1, layers);
    t->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, WIDTH));
    t->y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, WIDTH));
    EXPECT(t->model && t->x && t->y);
    EXPECT_OK(cairn_sgd_create(cairn_module_params(t->model), &hyper, &t->optimizer));
    EXPECT_OK(ddp_create(t->model, cairn_env_group(env),
                         ddp_options(.bucket_nbytes = CAP, .delay_allreduce = delays ? CAIRN_ON : CAIRN_OFF), &t->net));
    return NULL;
}

static char *keep_weights(struct trainer *t, cairn_env *env, struct run *run) {
    cairn_param_set *set = cairn_module_params(t->model);
    for (size_t i = 0; i < cairn_param_set_count(set) && cairn_env_rank(env) == 0; i++) {
        cairn_param p;
        EXPECT_OK(cairn_param_set_get(set, i, &p));
        const size_t nbytes = sizeof(float) * (p.ndim == 2 ? (size_t)WIDTH * WIDTH : WIDTH);
        run->weights[i] = malloc(nbytes);
        EXPECT(run->weights[i]);
        memcpy(run->weights[i], p.data, nbytes);
    }
    return NULL;
}

static char *train(cairn_env *env, void *ctx) {
    struct run *run = ctx;
    struct trainer t;
    struct slow_link link;
    this_rank = cairn_env_rank(env);
    PASS(begin(&t, env, run->delays));
    if (run->bytes_per_second > 0) slow_link_begin(&link, ddp_group(t.net), run->bytes_per_second);
    EXPECT_OK(trainer_step(&t)); /* buckets are planned anew before the second one */
    for (int i = 0; i < run->iterations; i++) {
        seen[this_rank] = (struct figures){.until = 0};
        EXPECT_OK(trainer_step(&t));
        run->share[this_rank][i] = seen[this_rank].exposed / seen[this_rank].total;
        if (this_rank != 0) continue;
        run->total[i] = seen[0].total;
        run->backward[i] = seen[0].backward;
    }
    if (run->bytes_per_second > 0) {
        slow_link_end(&link, ddp_group(t.net));
        if (this_rank == 0) run->carried = (double)link.nbytes;
    }
    PASS(keep_weights(&t, env, run));
    trainer_destroy(&t);
    return NULL;
}

static void run_it(struct run *run) {
    cairn__trace_set_sink(add_event, NULL);
    run_ranks(RANKS, train, run);
    cairn__trace_set_sink(NULL, NULL);
}

static void free_weights(struct run *run) {
    for (int i = 0; i < 2 * LAYERS; i++) free(run->weights[i]);
}

/* Of the rank that waited less. */
static double exposed_share(const struct run *run) {
    double least[ITERATIONS];
    for (int i = 0; i < run->iterations; i++) least[i] = fmin(run->share[0][i], run->share[1][i]);
    return median(least, run->iterations);
}

/* ---- tests ---- */

static const double NBYTES = (double)LAYERS * (WIDTH * WIDTH + WIDTH) * sizeof(float); /* that travel in an iteration */

/* 1 GB/s; more where backward is so fast that the whole could not be hidden. */
static double link_speed(struct run *plain) {
    const double needed = NBYTES / (0.9e-9 * median(plain->backward, plain->iterations));
    return needed > 1e9 ? needed : 1e9;
}

static void most_communication_of_an_mlp_is_hidden_on_a_slow_link(void **state) {
    (void)state;
    static struct run plain, slow, late;
    plain = (struct run){.iterations = ITERATIONS};
    run_it(&plain);
    const double speed = link_speed(&plain), travel_ns = NBYTES / speed * 1e9;
    double share = 1;
    for (int i = 0; i < TRIES && share >= 0.25; i++) {
        free_weights(&slow);
        slow = (struct run){.iterations = ITERATIONS, .bytes_per_second = speed};
        run_it(&slow);
        share = exposed_share(&slow);
        print_message(
            "%.2f GB/s, backward %.1f ms (without the link %.1f): %.1f ms of communication, %.1f %% exposed\n",
            speed * 1e-9, median(slow.backward, ITERATIONS) * 1e-6, median(plain.backward, ITERATIONS) * 1e-6,
            median(slow.total, ITERATIONS) * 1e-6, 100 * share);
    }
    assert_true(share < 0.25);
    assert_true(slow.carried >= (ITERATIONS + 1) * NBYTES); /* padding, perhaps */
    for (int i = 0; i < ITERATIONS; i++) assert_true(slow.total[i] >= 0.99 * travel_ns);
    for (int i = 0; i < 2 * LAYERS; i++)
        assert_memory_equal(slow.weights[i], plain.weights[i], sizeof(float) * (i % 2 ? WIDTH : WIDTH * WIDTH));
    free_weights(&plain);
    free_weights(&slow);

    late = (struct run){.iterations = 1, .bytes_per_second = speed, .delays = true};
    run_it(&late);
    assert_true(exposed_share(&late) > 0.95); /* what is measured can be bad */
    free_weights(&late);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(most_communication_of_an_mlp_is_hidden_on_a_slow_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
