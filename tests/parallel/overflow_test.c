/* amp_last_overflow reports an overflow of one stage on all stages. */
#include "../comm/group_processes.h"

#include "chain.h"
#include "optim/hooks.h"

enum { MOST = 4 * LAYERS + 1 };

struct found {
    struct amp_overflow at[MOST];
    char names[MOST][48];
    size_t count;
};

struct job {
    struct chain c;
    struct found found[4]; /* by rank; of ranks that are processes each fills its own copy */
};

static void quiet(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie, (void)level, (void)message;
}

static char *ask(const struct chain_rank *r, struct found *out) {
    memset(out, 0, sizeof(*out));
    EXPECT_OK(amp_last_overflow(r->amp, r->optimizer, out->at, MOST, &out->count));
    EXPECT(out->count <= MOST);
    for (size_t i = 0; i < out->count; i++) {
        snprintf(out->names[i], sizeof(out->names[i]), "%s", out->at[i].name);
        out->at[i].name = NULL;
    }
    return NULL;
}

static char *step(struct chain_rank *r) {
    double mean = 0;
    cairn_zero_grad(r->optimizer);
    PASS(chain_batch(r, r->step, &mean));
    EXPECT_OK(cairn_step(r->optimizer));
    EXPECT(cairn_optimizer_step_skipped(r->optimizer) == (r->step == 1));
    return NULL;
}

/* Three steps, of which the second one is skipped. */
static char *train(struct chain_rank *r, struct job *job) {
    struct chain c = job->c;
    struct found *mine = &job->found[cairn_env_rank(r->env)], again;
    PASS(chain_begin(r, r->env, &job->c));
    r->c = &c;
    r->plant.listener.is_alone = true; /* of a planted overflow */
    for (r->step = 0; r->step < 3; r->step++) {
        if (c.replicas > 1) c.loss_factor = r->step == 1 && r->replica == 1 ? 1e6f : 0;
        else c.loss_factor = r->step == 1 ? job->c.loss_factor : 0;
        PASS(step(r));
        PASS(ask(r, r->step == 1 ? mine : &again));
        EXPECT(r->step > 0 || again.count == 0);
    }
    EXPECT(memcmp(mine, &again, sizeof(again)) == 0); /* steps taken since change nothing */
    return NULL;
}

static char *train_and_end(cairn_env *env, void *ctx) {
    struct chain_rank r = {.env = env};
    char *failure = train(&r, ctx);
    chain_end(&r);
    return failure;
}

static struct job new_job(int ranks, int chunks, cairn_pipeline_schedule schedule, cairn_dtype half) {
    return (struct job){.c = {.ranks = ranks,
                              .chunks = chunks,
                              .schedule = schedule,
                              .n_microbatches = 4,
                              .rows = 16,
                              .level = AMP_O2,
                              .half = half,
                              .loss_scale = AMP_DYNAMIC,
                              .bad_step = 1}};
}

/* ---- one parameter ---- */

static int stage_of(const struct chain *c, int layer) {
    int stage = 0;
    while (chain_first_layer(c, stage + 1) <= layer) stage++;
    return stage;
}

static char *check_one(const struct chain *c, const struct found *f) {
    const int layer = c->bad_layer - 1, stage = stage_of(c, layer);
    char name[32];
    snprintf(name, sizeof(name), "%d.0.weight", layer - chain_first_layer(c, stage));
    EXPECT(f->count == 1);
    EXPECT(strcmp(f->names[0], name) == 0);
    EXPECT(f->at[0].infs == 1 && f->at[0].nans == 0);
    EXPECT(f->at[0].micro_batch == c->bad_micro_batch + 1);
    EXPECT(f->at[0].stage == stage && f->at[0].rank == stage % c->ranks);
    return NULL;
}

static char *train_with_one(cairn_env *env, void *ctx) {
    struct job *job = ctx;
    PASS(train_and_end(env, job));
    return check_one(&job->c, &job->found[cairn_env_rank(env)]);
}

static const struct {
    int ranks, chunks;
    cairn_pipeline_schedule schedule;
    cairn_dtype half;
} shapes[] = {
    {4, 1, CAIRN_PIPELINE_GPIPE, CAIRN_F16},
    {4, 1, CAIRN_PIPELINE_1F1B, CAIRN_BF16},
    {2, 1, CAIRN_PIPELINE_GPIPE, CAIRN_BF16},
    {2, 1, CAIRN_PIPELINE_1F1B, CAIRN_F16},
    {2, 2, CAIRN_PIPELINE_INTERLEAVED_1F1B, CAIRN_F16},
};

static struct job planted(size_t shape, int layer) {
    struct job job = new_job(shapes[shape].ranks, shapes[shape].chunks, shapes[shape].schedule, shapes[shape].half);
    job.c.bad_layer = layer;
    job.c.bad_micro_batch = (layer + (int)shape) % 4;
    return job;
}

static void every_stage_reports_an_overflow_of_one_stage(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (int layer = 1; layer <= LAYERS; layer++) {
            struct job job = planted(i, layer);
            run_ranks(job.c.ranks, train_with_one, &job);
        }
    }
}

static int train_in(cairn_env *env, struct job *job) {
    char *failure = train_with_one(env, job);
    const int status = failure != NULL;
    if (failure) fprintf(stderr, "%s\n", failure);
    free(failure);
    cairn_env_destroy(&env);
    return status;
}

static const struct cairn_env_options env_options = {.struct_size = sizeof(env_options), .seed = 7, .timeout = 60};

static int train_thread(int rank, void *argument) {
    cairn_env *env = NULL;
    (void)rank;
    return cairn_env_create(NULL, NULL, &env_options, &env) == CAIRN_OK ? train_in(env, argument) : 1;
}

static struct job *forked;

static int train_process(int rank, int size, int port) {
    const struct cairn__launch launch = launch_at(rank, size, port);
    cairn_env *env = NULL;
    return cairn__env_create_at(&launch, &env_options, &env) == CAIRN_OK ? train_in(env, forked) : 1;
}

static void run_processes(struct job *job) {
    struct processes p;
    forked = job;
    start_ranks(&p, job->c.ranks, -1, train_process);
    for (int r = 0; r < job->c.ranks; r++) assert_int_equal(end_of(&p, r), 0);
    cairn__store_stop(&p.server);
}

static void processes_and_threads_know_it_alike(void **state) {
    (void)state;
    if (check_ranks_have_gpus()) SKIP("ranks of the stand-in for NCCL are threads of one process");
    for (int threads = 0; threads < 2; threads++) { /* processes first: what has threads does not fork */
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            struct job job = planted(i, 3 + (int)i);
            if (threads) OK(cairn_spawn_threads(train_thread, &job, job.c.ranks, NULL));
            else run_processes(&job);
        }
    }
}

/* ---- losses, and much at once ---- */

static void same_on_all(const struct job *job, int ranks) {
    for (int r = 1; r < ranks; r++) {
        if (memcmp(&job->found[r], &job->found[0], sizeof(job->found[0])) != 0)
            fail_msg("ranks 0 and %d know of other overflows: %zu and %zu", r, job->found[0].count,
                     job->found[r].count);
    }
}

static void every_stage_reports_an_infinite_loss(void **state) {
    (void)state;
    for (int m = 0; m < 4; m++) {
        struct job job = new_job(4, 1, m % 2 ? CAIRN_PIPELINE_1F1B : CAIRN_PIPELINE_GPIPE, CAIRN_F16);
        job.c.bad_layer = LAYERS + 1;
        job.c.bad_micro_batch = m;
        run_ranks(4, train_and_end, &job);
        same_on_all(&job, 4);
        const struct found *f = &job.found[0];
        if (f->count < 1 || strcmp(f->names[0], "(loss)") != 0) fail_msg("%zu, %s", f->count, f->names[0]);
        assert_true(f->at[0].infs == 0 && f->at[0].micro_batch == m + 1);
        assert_true(f->at[0].rank == 3 && f->at[0].stage == 3);
    }
}

static void every_stage_reports_the_overflows_of_all_stages(void **state) {
    (void)state;
    struct job job = new_job(4, 1, CAIRN_PIPELINE_1F1B, CAIRN_F16);
    int of_stage[4] = {0};
    job.c.loss_factor = 1e6f;
    run_ranks(4, train_and_end, &job);
    same_on_all(&job, 4);
    for (size_t i = 0; i < job.found[0].count; i++) {
        const struct amp_overflow *o = &job.found[0].at[i];
        assert_true(o->rank == o->stage && o->infs + o->nans > 0 && strstr(job.found[0].names[i], ".0."));
        assert_true(i == 0 || o->stage >= o[-1].stage);
        of_stage[o->stage]++;
    }
    for (int s = 0; s < 4; s++) assert_int_equal(of_stage[s], 2 * LAYERS / 4);
}

/* A replica alone knows its ranks, too. */
static void every_stage_of_one_replica_is_known(void **state) {
    (void)state;
    struct job job = new_job(2, 1, CAIRN_PIPELINE_1F1B, CAIRN_BF16);
    job.c.replicas = 1;
    job.c.bad_layer = LAYERS + 1;
    run_ranks(2, train_and_end, &job);
    same_on_all(&job, 2);
    assert_true(job.found[0].count > 0 && job.found[0].at[0].rank == 1 && job.found[0].at[0].stage == 1);
    job = new_job(2, 1, CAIRN_PIPELINE_GPIPE, CAIRN_F16);
    job.c.replicas = 1;
    job.c.loss_factor = 1e6f;
    run_ranks(2, train_and_end, &job);
    same_on_all(&job, 2);
    assert_true(job.found[0].count > 0);
    for (size_t k = 0; k < job.found[0].count; k++) assert_int_equal(job.found[0].at[k].rank, job.found[0].at[k].stage);
}

/* Of two replicas the second one overflows: its stages are ranks 2 and 3. Of a sum over GPUs no rank is known. */
static void every_rank_of_a_grid_names_the_overflowing_replica(void **state) {
    (void)state;
    const bool knows = !check_ranks_have_gpus();
    for (int i = 0; i < 2; i++) {
        struct job job = new_job(2, 1, i ? CAIRN_PIPELINE_GPIPE : CAIRN_PIPELINE_1F1B, CAIRN_F16);
        job.c.replicas = 2;
        job.c.n_microbatches = i ? 1 : 4;
        run_ranks(4, train_and_end, &job);
        same_on_all(&job, 4);
        assert_true(job.found[0].count > 0);
        for (size_t k = 0; k < job.found[0].count; k++)
            assert_int_equal(job.found[0].at[k].rank, knows ? 2 + job.found[0].at[k].stage : -1);
    }
}

/* ---- room ---- */

static char *ask_with_little_room(cairn_env *env, void *ctx) {
    struct job *job = ctx;
    struct chain_rank r = {.env = env};
    struct {
        struct amp_overflow one;
        int64_t beyond[8];
    } room;
    size_t count = 0;
    PASS(train(&r, job));
    memset(&room, 0x55, sizeof(room));
    EXPECT_OK((amp_last_overflow)(r.amp, NULL, &room.one, 1, &count)); /* of programs of 0.8.0 */
    EXPECT(count == 2 * LAYERS && room.one.rank == 0 && room.one.stage == INT64_C(0x5555555555555555));
    EXPECT_OK(amp_last_overflow(r.amp, NULL, &room.one, 1, &count));
    EXPECT(count == 2 * LAYERS && room.one.stage == 0 && room.beyond[0] == INT64_C(0x5555555555555555));
    EXPECT_OK(amp_last_overflow(r.amp, NULL, NULL, 0, &count));
    EXPECT(count == 2 * LAYERS);
    cairn_pipeline_destroy(&r.pipeline); /* what was found stays known */
    EXPECT_OK(amp_last_overflow(r.amp, NULL, &room.one, 1, &count));
    EXPECT(count == 2 * LAYERS && strcmp(room.one.name, "0.0.weight") == 0);
    chain_end(&r);
    return NULL;
}

static void what_has_no_room_is_counted(void **state) {
    (void)state;
    struct job job = new_job(2, 1, CAIRN_PIPELINE_1F1B, CAIRN_F16);
    job.c.loss_factor = 1e6f;
    run_ranks(2, ask_with_little_room, &job);
}

/* ---- what scalers see that look at gradients ---- */

struct watched {
    struct job job;
    struct amp_scaler_statistics seen[4][3]; /* by rank and step */
    int64_t own[4];                          /* elements of the rank's parameters */
};

struct watcher {
    struct amp_scaler_statistics *seen;
    int count;
};

static void watch(void *ctx, struct amp_scaler_state *state, int found,
                  const struct amp_scaler_statistics *statistics) {
    struct watcher *w = ctx;
    if (found) state->scale /= 2;
    if (w->count < 3) w->seen[w->count++] = *statistics;
}

static char *train_watched(cairn_env *env, void *ctx) {
    struct watched *all = ctx;
    const int rank = cairn_env_rank(env);
    struct watcher watcher = {all->seen[rank], 0};
    const struct amp_scaler_options scaler = {.struct_size = sizeof(scaler),
                                              .kind = AMP_SCALER_USER,
                                              .update_by_statistics = watch,
                                              .ctx = &watcher};
    struct job job = all->job;
    struct chain_rank r = {.env = env};
    job.c.scaler = &scaler;
    char *failure = train(&r, &job);
    for (size_t i = 0; !failure && i < cairn_optimizer_num_params(r.optimizer); i++)
        all->own[rank] += (int64_t)cairn__optimizer_param_list(r.optimizer)[i]->n;
    chain_end(&r);
    PASS(failure);
    EXPECT(watcher.count == 3);
    return NULL;
}

/* Of the whole model, and in the skipped step with the one infinite element of one stage. */
static void every_stage_sees_the_gradients_of_all(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        static struct watched all;
        int64_t elements = 0;
        memset(&all, 0, sizeof(all));
        all.job = planted(i, 2);
        run_ranks(all.job.c.ranks, train_watched, &all);
        for (int r = 0; r < all.job.c.ranks; r++) elements += all.own[r];
        for (int r = 0; r < all.job.c.ranks; r++) {
            assert_memory_equal(all.seen[r], all.seen[0], sizeof(all.seen[0]));
            for (int s = 0; s < 3; s++) {
                assert_int_equal(all.seen[r][s].elements, elements);
                assert_int_equal(all.seen[r][s].infs, s == 1);
                assert_true(all.seen[r][s].largest > 0);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_and_threads_know_it_alike),
        cmocka_unit_test(every_stage_reports_an_overflow_of_one_stage),
        cmocka_unit_test(every_stage_reports_an_infinite_loss),
        cmocka_unit_test(every_stage_reports_the_overflows_of_all_stages),
        cmocka_unit_test(every_stage_of_one_replica_is_known),
        cmocka_unit_test(every_rank_of_a_grid_names_the_overflowing_replica),
        cmocka_unit_test(what_has_no_room_is_counted),
        cmocka_unit_test(every_stage_sees_the_gradients_of_all),
    };
    cairn_set_log(quiet, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
