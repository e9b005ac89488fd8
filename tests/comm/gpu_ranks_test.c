/* Ranks with one GPU each, on NCCL or on the stand-in: two ranks if the machine has two GPUs, otherwise one.
 *
 * usage: gpu_ranks_test [required | fails | hangs]    (without a word: exits with 77 if there is no GPU;
 *        fails, hangs: CAIRN_STANDIN_NCCL_FAIL or _HANG makes rank 1's collective do that) */
#include <math.h>

#include "../mlp.h"
#include "../ranks.h"
#include "../trainer.h"
#include "../waits.h"
#include "comm/group.h"
#include "core/dtype.h"

static int num_ranks;
static const char *told = "";

static bool has_gpu(int ordinal) {
    struct cairn_device *device = NULL;
    const bool has = cairn__device_open("cuda", ordinal, &device) == CAIRN_OK;
    cairn__device_close(&device);
    return has;
}

/* ---- collectives ---- */

enum { N = 1000 };

static char *put(cairn_env *env, void *x, const void *host, size_t nbytes) {
    EXPECT_OK(cairn__device_upload(env->device, x, host, nbytes));
    return NULL;
}

/* Every element of x, f32, is value. */
static char *expect_f32(cairn_env *env, const void *x, size_t n, float value) {
    float host[8 * N];
    EXPECT_OK(cairn__device_download(env->device, host, x, n * sizeof(float)));
    for (size_t i = 0; i < n; i++) EXPECT(host[i] == value);
    return NULL;
}

static char *put_f32(cairn_env *env, void *x, size_t n, float value) {
    float host[8 * N];
    for (size_t i = 0; i < n; i++) host[i] = value;
    return put(env, x, host, n * sizeof(float));
}

static char *reduce_all(cairn_env *env, float *x) {
    cairn_group *group = cairn_env_group(env);
    const int p = cairn_env_size(env), rank = cairn_env_rank(env);
    static const float one[] = {[CAIRN_SUM] = 1, [CAIRN_AVG] = 1, [CAIRN_MIN] = 1, [CAIRN_MAX] = 1, [CAIRN_PROD] = 1};
    static const float two[] = {
        [CAIRN_SUM] = 3, [CAIRN_AVG] = 1.5f, [CAIRN_MIN] = 1, [CAIRN_MAX] = 2, [CAIRN_PROD] = 2};
    for (int op = CAIRN_SUM; op <= CAIRN_PROD; op++) {
        PASS(put_f32(env, x, N, (float)(rank + 1)));
        EXPECT_OK(cairn_allreduce(group, x, N, CAIRN_F32, (cairn_redop)op, NULL));
        PASS(expect_f32(env, x, N, p == 2 ? two[op] : one[op]));
    }
    return NULL;
}

static char *move_all(cairn_env *env, float *x, float *y) {
    cairn_group *group = cairn_env_group(env);
    const int p = cairn_env_size(env), rank = cairn_env_rank(env);
    const float sum = (float)(p * (p + 1) / 2);
    PASS(put_f32(env, x, N, (float)(rank + 1)));
    EXPECT_OK(cairn_allgather(group, y, x, N, CAIRN_F32, NULL));
    for (int r = 0; r < p; r++) PASS(expect_f32(env, y + r * N, N, (float)(r + 1)));
    EXPECT_OK(cairn_reduce(group, y, x, N, CAIRN_F32, CAIRN_SUM, p - 1, NULL));
    PASS(expect_f32(env, y, N, rank == p - 1 ? sum : 1));
    EXPECT_OK(cairn_broadcast(group, y, N, CAIRN_F32, p - 1, NULL));
    PASS(expect_f32(env, y, N, sum));
    for (int r = 0; r < p; r++) PASS(put_f32(env, y + r * N, N, (float)(10 * rank + r)));
    EXPECT_OK(cairn_alltoall(group, x, y, N / 2, CAIRN_F32, NULL));
    PASS(expect_f32(env, x, N / 2, 0));
    EXPECT_OK(cairn_reduce_scatter(group, x, y, N, CAIRN_F32, CAIRN_SUM, NULL));
    PASS(expect_f32(env, x, N, p == 1 ? 0 : 10 + 2 * (float)rank));
    return NULL;
}

static char *average_halves(cairn_env *env, void *x) {
    const uint16_t large = 0x78e2; /* 40000 in f16 */
    uint16_t got = 0;
    PASS(put(env, x, &large, sizeof(large)));
    EXPECT_OK(cairn_allreduce(cairn_env_group(env), x, 1, CAIRN_F16, CAIRN_AVG, NULL));
    EXPECT_OK(cairn__device_download(env->device, &got, x, sizeof(got)));
    EXPECT(got == large);
    return NULL;
}

static char *send_and_receive(cairn_env *env, float *x, float *y) {
    cairn_group *group = cairn_env_group(env);
    const int rank = cairn_env_rank(env);
    cairn_work *works[2] = {NULL, NULL};
    if (cairn_env_size(env) == 1) return NULL;
    PASS(put_f32(env, x, N, (float)rank));
    EXPECT_OK(cairn_send(group, x, N, CAIRN_F32, !rank, &works[0]));
    EXPECT_OK(cairn_recv(group, y, N, CAIRN_F32, !rank, &works[1]));
    EXPECT_OK(cairn_work_wait(&works[1]));
    EXPECT_OK(cairn_work_wait(&works[0]));
    PASS(expect_f32(env, y, N, (float)!rank));
    return NULL;
}

static char *use_everything(cairn_env *env, void *ctx) {
    cairn_group *group = cairn_env_group(env), *made = NULL;
    const int p = cairn_env_size(env), rank = cairn_env_rank(env);
    void *x = NULL, *y = NULL;
    int32_t words[8], mine = 7 * rank;
    (void)ctx;
    EXPECT(strcmp(cairn_group_backend(group), "nccl") == 0);
    EXPECT_OK(cairn_group_alloc(group, 8 * N * sizeof(float), &x));
    PASS(expect_f32(env, x, 8 * N, 0));
    EXPECT_OK(cairn__device_alloc(env->device, CAIRN__HOLDS_SCRATCH, 8 * N * sizeof(float), &y));
    PASS(reduce_all(env, x));
    PASS(reduce_all(env, y));
    PASS(move_all(env, x, y));
    PASS(average_halves(env, x));
    PASS(send_and_receive(env, x, y));
    EXPECT_OK(cairn_barrier(group));
    EXPECT_OK(cairn__group_exchange(group, words, &mine, sizeof(mine)));
    for (int r = 0; r < p; r++) EXPECT(words[r] == 7 * r);
    EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &made));
    PASS(put_f32(env, y, N, 1));
    EXPECT_OK(cairn_allreduce(made, y, N, CAIRN_F32, CAIRN_SUM, NULL));
    PASS(expect_f32(env, y, N, (float)p));
    cairn_group_destroy(&made);
    EXPECT_OK(cairn_group_free(group, &x));
    cairn__device_free(env->device, y);
    return NULL;
}

static void with_ranks(rank_fn fn, void *ctx) {
    setenv("CAIRN_DEVICE", "cuda", 1);
    setenv("CAIRN_BACKEND", num_ranks == 1 ? "nccl" : "auto", 1);
    run_ranks(num_ranks, fn, ctx);
}

static void collectives_move_memory_of_gpus(void **state) {
    (void)state;
    with_ranks(use_everything, NULL);
}

/* ---- training ---- */

static char *expect_equal_weights(cairn_env *env, cairn_module *model) {
    struct cairn_param_set *set = cairn_module_params(model);
    char mine[8192], all[2 * sizeof(mine)];
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        const size_t nbytes = p->n * cairn_dtype_nbytes(p->dtype);
        EXPECT(nbytes <= sizeof(mine));
        EXPECT_OK(cairn__device_download(env->device, mine, p->data, nbytes));
        EXPECT_OK(cairn__group_exchange(cairn_env_group(env), all, mine, nbytes));
        EXPECT(num_ranks == 1 || memcmp(all, all + nbytes, nbytes) == 0);
    }
    return NULL;
}

struct plan {
    bool recorded;
    struct ddp_options options;
};

static char *train(cairn_env *env, void *ctx) {
    const struct plan *plan = ctx;
    struct trainer t = {.model = make_mlp(env, 24, 16, 5)};
    cairn_graph *graph = NULL;
    float first = 0, last = 0;
    EXPECT(t.model != NULL);
    EXPECT_OK(cairn_sgd_create(cairn_module_params(t.model), NULL, &t.optimizer));
    EXPECT_OK(amp_initialize(env, t.model, t.optimizer, amp_options(.opt_level = AMP_O2, .verbosity = -1), &t.amp));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), &plan->options, &t.net));
    t.x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 24));
    t.y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    if (plan->recorded) EXPECT_OK(cairn_graph_capture(env, trainer_step, &t, &graph));
    for (int i = 0; i < CAIRN_GRAPH_WARMUP + 3; i++) {
        EXPECT_OK(graph ? cairn_graph_replay(graph) : trainer_step(&t));
        last = (float)cairn_tensor_item(t.loss);
        if (i == 0) first = last;
    }
    EXPECT(!graph || cairn_graph_is_recorded(graph));
    EXPECT(last < first);
    PASS(expect_equal_weights(env, t.model));
    cairn_graph_destroy(&graph);
    trainer_destroy(&t);
    return NULL;
}

#define OPTIONS(...) \
    { .struct_size = sizeof(struct ddp_options), __VA_ARGS__ }
static const struct ddp_options ways[] = {
    OPTIONS(.bucket_nbytes = 0),
    OPTIONS(.bucket_nbytes = 1),
    OPTIONS(.bucket_nbytes = 100, .gradient_as_bucket_view = CAIRN_OFF),
    OPTIONS(.wire = CAIRN_F32, .gradient_average = CAIRN_OFF, .gradient_predivide_factor = 2),
    OPTIONS(.delay_allreduce = CAIRN_ON),
};
enum { NUM_WAYS = sizeof(ways) / sizeof(ways[0]) };

static void ranks_train_to_equal_weights(void **state) {
    (void)state;
    for (int i = 0; i < NUM_WAYS; i += 3) with_ranks(train, &(struct plan){false, ways[i]});
}

static void ranks_record_a_step_and_replay_it(void **state) {
    (void)state;
    for (int i = 1; i < NUM_WAYS; i += 1 + (i == 2)) with_ranks(train, &(struct plan){true, ways[i]});
}

/* ---- updates that ranks share ---- */

enum shared_kind {
    SHARED_MOMENTUM,
    SHARED_ADAM,
    SHARED_LION,
    SHARED_ADAGRAD,
    SHARED_LAMB,
    SHARED_NOVOGRAD,
    NUM_SHARED
};
enum { SHARED_STEPS = CAIRN_GRAPH_WARMUP + 5, SHARED_OVERFLOW = CAIRN_GRAPH_WARMUP + 2, MOST_VALUES = 4096 };

struct shared_run {
    bool records;
    float values[MOST_VALUES]; /* weights, and this rank's masters */
    size_t n;
    double scale;
    int64_t skipped;
};

static cairn_status make_shared(enum shared_kind kind, cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_sgd_options momentum = CAIRN_SGD_OPTIONS_INIT;
    momentum.momentum = 0.9;
    switch (kind) {
    case SHARED_MOMENTUM:
        return cairn_sgd_create(set, &momentum, out);
    case SHARED_ADAM:
        return cairn_adam_create(set, NULL, out);
    case SHARED_LION:
        return cairn_lion_create(set, NULL, out);
    case SHARED_ADAGRAD:
        return cairn_adagrad_create(set, NULL, out);
    case SHARED_LAMB:
        return cairn_lamb_create(set, NULL, out);
    default:
        return cairn_novograd_create(set, NULL, out);
    }
}

static char *take_values(struct trainer *t, cairn_env *env, struct shared_run *run) {
    const struct cairn_param_set *set = cairn_module_params(t->model);
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        const size_t mine = cairn__param_shard(p).n;
        uint16_t halves[512];
        EXPECT(p->dtype == CAIRN_F16 && p->n <= 512 && run->n + p->n + mine <= MOST_VALUES);
        EXPECT_OK(cairn__device_download(env->device, halves, p->data, p->n * sizeof(halves[0])));
        for (size_t k = 0; k < p->n; k++) run->values[run->n++] = (float)halves[k];
        EXPECT_OK(cairn__device_download(env->device, run->values + run->n, p->master, mine * sizeof(float)));
        run->n += mine;
    }
    return NULL;
}

static char *step_shared(struct trainer *t, cairn_graph *graph, enum shared_kind kind, int step) {
    float x[8 * 24];
    for (int i = 0; i < 8 * 24; i++) x[i] = (float)((i * 29 + step) % 97 - 48) / 32;
    if (step == SHARED_OVERFLOW) x[5] = INFINITY;
    EXPECT_OK(cairn_tensor_write(t->x, x, 8 * 24));
    if (!graph) {
        EXPECT_OK(trainer_step(t));
    } else if (kind >= SHARED_LAMB && num_ranks > 1 && step == CAIRN_GRAPH_WARMUP) { /* and the step is called then */
        EXPECT_REFUSED(cairn_graph_replay(graph), CAIRN_ESTATE, "call the step instead of recording it");
        EXPECT_OK(cairn_graph_replay(graph));
    } else {
        EXPECT_OK(cairn_graph_replay(graph));
    }
    return NULL;
}

static char *run_shared(cairn_env *env, enum shared_kind kind, struct shared_run *run) {
    struct trainer t = {.model = NULL};
    cairn_graph *graph = NULL;
    cairn_manual_seed(env, 11);
    t.model = make_mlp(env, 24, 16, 5);
    EXPECT(t.model != NULL);
    EXPECT_OK(make_shared(kind, cairn_module_params(t.model), &t.optimizer));
    EXPECT_OK(amp_initialize(env, t.model, t.optimizer, amp_options(.opt_level = AMP_O2, .verbosity = -1), &t.amp));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), ddp_options(.shard_optimizer = CAIRN_ON, .bucket_nbytes = 300),
                         &t.net));
    t.x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 24));
    t.y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    if (run->records) EXPECT_OK(cairn_graph_capture(env, trainer_step, &t, &graph));
    for (int step = 0; step < SHARED_STEPS; step++) PASS(step_shared(&t, graph, kind, step));
    EXPECT_OK(cairn_env_synchronize(env));
    EXPECT(!graph || cairn_graph_is_recorded(graph) == (kind < SHARED_LAMB || num_ranks == 1));
    PASS(take_values(&t, env, run));
    PASS(expect_equal_weights(env, t.model));
    run->scale = amp_next_scale(t.amp);
    run->skipped = cairn_optimizer_skipped(t.optimizer);
    cairn_graph_destroy(&graph);
    trainer_destroy(&t);
    return NULL;
}

static char *replay_shared(cairn_env *env, void *ctx) {
    struct shared_run *runs = calloc(2, sizeof(runs[0]));
    EXPECT(runs != NULL);
    (void)ctx;
    for (int kind = 0; kind < NUM_SHARED; kind++) {
        memset(runs, 0, 2 * sizeof(runs[0]));
        runs[1].records = true;
        for (int k = 0; k < 2; k++) PASS(run_shared(env, (enum shared_kind)kind, &runs[k]));
        EXPECT(runs[0].n == runs[1].n && memcmp(runs[0].values, runs[1].values, runs[0].n * sizeof(float)) == 0);
        EXPECT(runs[0].scale == runs[1].scale && runs[0].skipped == runs[1].skipped && runs[0].skipped > 0);
    }
    free(runs);
    return NULL;
}

static void shared_updates_are_recorded_or_refused(void **state) {
    (void)state;
    with_ranks(replay_shared, NULL);
}

/* ---- buffers of the trainer's own ---- */

enum { OWN_N = 4, OWN_STEPS = 30 };

struct own {
    cairn_env *env;
    void *w, *g, *x;
    cairn_param_set *set;
    cairn_optimizer *sgd;
    amp_context *amp;
    ddp_context *net;
};

/* The gradient is x, by the scale that the device has. */
static cairn_status own_step(void *user) {
    struct own *o = user;
    struct cairn_device *d = o->env->device;
    const struct cairn__item item = {.n = OWN_N, .dst = o->g, .x = o->x};
    const float *scale = amp_next_scale_device(o->amp);
    cairn_status st = CAIRN_OK;
    if (!scale) return cairn__last_status();
    d->passes->scale(d, &item, 1, CAIRN_F32, CAIRN_F32, scale, NULL);
    TRY(ddp_grads_ready(o->net, 0, 1));
    TRY(ddp_wait(o->net));
    TRY(cairn_step(o->sgd));
out:
    return st;
}

static char *make_own(cairn_env *env, struct own *o) {
    const struct amp_scaler_options scaler = {.struct_size = sizeof(scaler),
                                              .init_scale = 256,
                                              .growth_interval = 3,
                                              .max_scale = 2048};
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    void **const memory[] = {&o->w, &o->g, &o->x};
    *o = (struct own){.env = env};
    hyper.lr = 0.25;
    for (int i = 0; i < 3; i++)
        EXPECT_OK(cairn__device_alloc(env->device, CAIRN__HOLDS_TENSORS, OWN_N * sizeof(float), memory[i]));
    PASS(put_f32(env, o->w, OWN_N, 64));
    const cairn_param p = {.name = "w", .data = o->w, .grad = o->g, .dtype = CAIRN_F32, .ndim = 1, .shape = {OWN_N}};
    EXPECT_OK(cairn_param_set_create(env, &p, 1, &o->set));
    EXPECT_OK(cairn_sgd_create(o->set, &hyper, &o->sgd));
    EXPECT_OK(amp_initialize_params(env, o->set, o->sgd,
                                    amp_options(.opt_level = AMP_O2, .loss_scale = AMP_DYNAMIC, .scaler = &scaler,
                                                .verbosity = -1),
                                    &o->amp));
    EXPECT_OK(ddp_create_params(o->set, cairn_env_group(env), NULL, &o->net));
    return NULL;
}

static void end_own(struct own *o) {
    ddp_destroy(&o->net);
    amp_destroy(&o->amp);
    cairn_optimizer_destroy(&o->sgd);
    cairn_param_set_destroy(&o->set);
    void *const memory[] = {o->w, o->g, o->x};
    for (int i = 0; i < 3; i++) cairn__device_free(o->env->device, memory[i]);
}

/* Of all ranks, none of which goes on before it is counted. */
static char *count_waits(cairn_env *env, unsigned long long *count) {
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    *count = waits();
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    return NULL;
}

/* Every tenth step one rank's gradient overflows, and the scale moves in between: no rank need know it, or waits. */
static char *train_own(cairn_env *env, void *ctx) {
    const bool records = *(const bool *)ctx;
    const float mine = 1 + 2 * (float)cairn_env_rank(env), average = (float)num_ranks;
    cairn_graph *graph = NULL;
    unsigned long long before = 0, after = 0;
    struct own o;
    PASS(make_own(env, &o));
    if (records) EXPECT_OK(cairn_graph_capture(env, own_step, &o, &graph));
    for (int s = 0; s < OWN_STEPS; s++) {
        const bool overflows = s % 10 == 9 && cairn_env_rank(env) == num_ranks - 1;
        if (s == OWN_STEPS / 2) PASS(count_waits(env, &before));
        env->device->passes->store(env->device, o.x, (float[OWN_N]){mine, overflows ? 1e30f : mine, mine, mine},
                                   OWN_N * sizeof(float));
        EXPECT_OK(graph ? cairn_graph_replay(graph) : own_step(&o));
    }
    PASS(count_waits(env, &after));
    EXPECT(after == before);
    EXPECT_OK(cairn_env_synchronize(env));
    EXPECT(!graph || cairn_graph_is_recorded(graph));
    EXPECT(cairn_optimizer_skipped(o.sgd) == OWN_STEPS / 10);
    PASS(expect_f32(env, o.w, OWN_N, 64 - 0.25f * average * (OWN_STEPS - OWN_STEPS / 10)));
    EXPECT(amp_next_scale(o.amp) == 1024);
    cairn_graph_destroy(&graph);
    end_own(&o);
    return NULL;
}

static void ranks_with_own_buffers_leave_the_scale_on_the_device(void **state) {
    (void)state;
    for (int records = 0; records < 2; records++) with_ranks(train_own, &(bool){records == 1});
}

/* ---- groups and the graphs that have recorded them ---- */

struct recorded {
    cairn_group *group;
    void *x; /* [N] f32, memory of the group */
    cairn_graph *graph;
};

static cairn_status add_up(void *user) {
    struct recorded *r = user;
    return cairn_allreduce(r->group, r->x, N, CAIRN_F32, CAIRN_SUM, NULL);
}

static char *record(cairn_env *env, struct recorded *r) {
    EXPECT_OK(cairn_group_new(cairn_env_group(env), NULL, 0, NULL, &r->group));
    EXPECT_OK(cairn_group_alloc(r->group, N * sizeof(float), &r->x));
    EXPECT_OK(cairn_graph_capture(env, add_up, r, &r->graph));
    PASS(put_f32(env, r->x, N, 1));
    for (int i = 0; i < CAIRN_GRAPH_WARMUP + 2; i++) EXPECT_OK(cairn_graph_replay(r->graph));
    EXPECT(cairn_graph_is_recorded(r->graph));
    PASS(expect_f32(env, r->x, N, num_ranks == 2 ? 32 : 1));
    return NULL;
}

static char *keep_what_a_graph_needs(cairn_env *env, void *ctx) {
    struct recorded r = {NULL, NULL, NULL};
    (void)ctx;
    PASS(record(env, &r));
    cairn_group_destroy(&r.group);
    EXPECT(r.group && strstr(cairn_last_error(), "cairn_group_destroy: 1 graph is alive in which collectives of the "));
    EXPECT(cairn_group_free(r.group, &r.x) == CAIRN_ESTATE && r.x);
    EXPECT(strstr(cairn_last_error(), "cairn_group_free: 1 graph is alive in which collectives of the group are rec"));
    EXPECT_OK(cairn_graph_replay(r.graph));
    PASS(expect_f32(env, r.x, N, num_ranks == 2 ? 64 : 1));
    cairn_graph_destroy(&r.graph);
    cairn_group_destroy(&r.group); /* with its memory, which is registered */
    EXPECT(!r.group);
    return NULL;
}

static void group_outlives_the_graphs_that_have_recorded_it(void **state) {
    (void)state;
    with_ranks(keep_what_a_graph_needs, NULL);
}

/* The abort ends only with the graph, and neither call nor replay waits for it. */
static char *replay_without_group(cairn_env *env, void *ctx) {
    struct recorded r = {NULL, NULL, NULL};
    (void)ctx;
    PASS(record(env, &r));
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    cairn_group_abort(r.group);
    EXPECT(cairn_graph_replay(r.graph) == CAIRN_ESTATE);
    EXPECT(strstr(cairn_last_error(), "the group was aborted by cairn_group_abort and can only be destroyed"));
    EXPECT(cairn_barrier(r.group) == CAIRN_ESTATE);
    PASS(expect_f32(env, r.x, N, num_ranks == 2 ? 32 : 1));
    cairn_graph_destroy(&r.graph);
    cairn_group_destroy(&r.group);
    EXPECT(!r.group);
    return NULL;
}

static void replay_fails_once_its_group_has(void **state) {
    (void)state;
    with_ranks(replay_without_group, NULL);
}

static char *keep_ddp(cairn_env *env, void *ctx) {
    struct trainer t = {.model = make_mlp(env, 24, 16, 5)};
    cairn_graph *graph = NULL;
    (void)ctx;
    EXPECT_OK(cairn_sgd_create(cairn_module_params(t.model), NULL, &t.optimizer));
    EXPECT_OK(amp_initialize(env, t.model, t.optimizer, amp_options(.opt_level = AMP_O2, .verbosity = -1), &t.amp));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), NULL, &t.net));
    t.x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 24));
    t.y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    EXPECT_OK(cairn_graph_capture(env, trainer_step, &t, &graph));
    for (int i = 0; i < CAIRN_GRAPH_WARMUP + 1; i++) EXPECT_OK(cairn_graph_replay(graph));
    EXPECT(cairn_graph_is_recorded(graph));
    ddp_destroy(&t.net);
    EXPECT(t.net);
    EXPECT_OK(cairn_graph_replay(graph));
    cairn_graph_destroy(&graph);
    trainer_destroy(&t);
    return NULL;
}

static void ddp_outlives_the_graphs_that_have_recorded_it(void **state) {
    (void)state;
    with_ranks(keep_ddp, NULL);
}

/* ---- what goes wrong ---- */

static char *end_with_status(cairn_env *env, void *ctx) {
    cairn_group *group = NULL;
    const bool fails = strcmp(told, "fails") == 0 && cairn_env_rank(env) == 1;
    cairn_status st = CAIRN_OK;
    (void)ctx;
    EXPECT_OK(cairn_group_new(cairn_env_group(env), NULL, 0, cairn_group_options(.timeout = 1), &group));
    for (int i = 0; i < 10 && st == CAIRN_OK; i++) st = cairn_barrier(group);
    EXPECT(st == (fails ? CAIRN_EPEER : CAIRN_ETIMEOUT));
    if (fails)
        EXPECT(strstr(cairn_last_error(), "NCCL says ncclRemoteError (remote process exited or there was a network "
                                          "error): the stand-in's last words; another rank ended or failed"));
    if (!fails) EXPECT(strstr(cairn_last_error(), "s in barrier number "));
    EXPECT_OK(cairn_env_synchronize(env)); /* what was queued has ended */
    cairn_group_destroy(&group);
    return NULL;
}

static void collective_that_does_not_end_is_aborted(void **state) {
    (void)state;
    with_ranks(end_with_status, NULL);
}

int main(int argc, char **argv) {
    const struct CMUnitTest good[] = {
        cmocka_unit_test(collectives_move_memory_of_gpus),
        cmocka_unit_test(ranks_train_to_equal_weights),
        cmocka_unit_test(ranks_record_a_step_and_replay_it),
        cmocka_unit_test(shared_updates_are_recorded_or_refused),
        cmocka_unit_test(ranks_with_own_buffers_leave_the_scale_on_the_device),
        cmocka_unit_test(group_outlives_the_graphs_that_have_recorded_it),
        cmocka_unit_test(replay_fails_once_its_group_has),
        cmocka_unit_test(ddp_outlives_the_graphs_that_have_recorded_it),
    };
    const struct CMUnitTest bad[] = {cmocka_unit_test(collective_that_does_not_end_is_aborted)};
    if (argc > 1) told = argv[1];
    if (!has_gpu(0)) {
        print_message("there is no GPU here: %s\n", cairn_last_error());
        return told[0] ? 1 : 77;
    }
    num_ranks = has_gpu(1) ? 2 : 1;
    print_message("%d ranks\n", num_ranks);
    if (waits() == 0) print_message("nobody counts the calls that wait: is sync_shim in LD_PRELOAD?\n");
    if (strcmp(told, "fails") == 0 || strcmp(told, "hangs") == 0) return cmocka_run_group_tests(bad, NULL, NULL);
    return cmocka_run_group_tests(good, NULL, NULL);
}
