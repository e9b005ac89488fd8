/* Rank 0's buffers are broadcast, in one collective, before a forward that follows a synchronised training forward. */
#include "parts.h"

enum { N = 5, BUFFERS = 4 };

/* A module whose forward notes what it finds in its buffers. */
struct model {
    cairn_tensor *weight, *buffer[BUFFERS];
    double seen[BUFFERS];
};

static const struct {
    const char *name;
    cairn_dtype dtype;
} buffers[BUFFERS] = {{"mean", CAIRN_F32}, {"count", CAIRN_I64}, {"shift", CAIRN_BF16}, {"mine", CAIRN_F32}};

static double read_first(cairn_tensor *b) {
    const void *at = cairn__tensor_memory(b);
    if (cairn_tensor_dtype(b) == CAIRN_I64) return (double)*(const int64_t *)at;
    return (double)cairn__dtype(cairn_tensor_dtype(b))->to_f32(at);
}

static void write_all(cairn_tensor *b, double value) {
    for (size_t i = 0; i < (size_t)cairn_tensor_numel(b); i++) {
        void *at = (char *)cairn__tensor_memory(b) + i * cairn_dtype_nbytes(cairn_tensor_dtype(b));
        if (cairn_tensor_dtype(b) == CAIRN_I64) {
            *(int64_t *)at = (int64_t)value;
        } else {
            cairn__dtype(cairn_tensor_dtype(b))->from_f32(at, (float)value);
        }
    }
}

static cairn_tensor *note_buffers(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    struct model *m = context;
    (void)module, (void)count;
    for (int k = 0; k < BUFFERS; k++) m->seen[k] = read_first(m->buffer[k]);
    return cairn_sum(cairn_mul(inputs[0], m->weight));
}

static cairn_module *make_model(cairn_env *env, struct model *m) {
    static const struct cairn_module_ops ops = {.struct_size = sizeof(ops), .name = "Notes", .forward = note_buffers};
    cairn_module *module = cairn_module_create(env, &ops, m);
    m->weight = cairn_module_add_param(module, "weight", 1, (int64_t[]){N}, 0);
    for (int k = 0; k < BUFFERS; k++)
        m->buffer[k] = cairn_module_add_buffer(module, buffers[k].name, buffers[k].dtype, 1, (int64_t[]){N + k});
    return cairn_init_constant(m->weight, 1) == CAIRN_OK ? module : NULL;
}

struct job {
    cairn_switch broadcast, init_sync;
    int ranks;
};

/* What every rank writes between two forwards. */
static double written(int rank, int forward) {
    return 10 * forward + rank + 1; /* few bits: bf16 */
}

static void write_buffers(struct model *m, int rank, int forward) {
    for (int k = 0; k < BUFFERS; k++) write_all(m->buffer[k], written(rank, forward) + k);
}

enum way { TRAIN, HOLD, LOOK };

/* torch's rule, by the training forward before; but a forward under no_grad exchanges nothing, and counts as none. The
 * first is as after a training forward. */
static const enum way ways[] = {TRAIN, TRAIN, HOLD, HOLD, TRAIN, TRAIN, LOOK, TRAIN, HOLD, TRAIN, TRAIN};
enum { FORWARDS = sizeof(ways) / sizeof(ways[0]) };

static char *forward(cairn_env *env, ddp_context *net, cairn_tensor *x, enum way way) {
    EXPECT_OK(ddp_no_sync(net, way == HOLD));
    if (way == LOOK) cairn_no_grad_begin(env);
    cairn_tensor *loss = ddp_forward(net, x);
    EXPECT(loss);
    if (way == LOOK) {
        EXPECT_OK(cairn_no_grad_end(env));
    } else {
        EXPECT_OK(cairn_backward(loss));
    }
    return NULL;
}

static char *go_forward(cairn_env *env, void *ctx) {
    const struct job *j = ctx;
    const int rank = cairn_env_rank(env);
    static const char *const ignored[] = {"mine"};
    struct model m = {0};
    ddp_context *net = NULL;
    cairn_module *model = make_model(env, &m);
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(N));
    EXPECT(model);
    write_buffers(&m, rank, 0);
    EXPECT_OK(ddp_create(model, cairn_env_group(env),
                         ddp_options(.broadcast_buffers = j->broadcast, .init_sync = j->init_sync, .ignored = ignored,
                                     .num_ignored = 1),
                         &net));
    const bool at_first = j->init_sync != CAIRN_OFF;
    for (int k = 0; k < BUFFERS; k++)
        EXPECT(read_first(m.buffer[k]) == written(at_first && k + 1 < BUFFERS ? 0 : rank, 0) + k);
    enum way last = TRAIN;
    for (int f = 0; f < FORWARDS; f++) {
        write_buffers(&m, rank, f);
        cairn_module_zero_grad(model);
        const uint64_t before = ddp_group(net)->next_number;
        PASS(forward(env, net, x, ways[f]));
        const bool due = j->broadcast != CAIRN_OFF && ways[f] != LOOK && last == TRAIN;
        if (ways[f] != LOOK) last = ways[f];
        for (int k = 0; k < BUFFERS; k++) EXPECT(m.seen[k] == written(due && k + 1 < BUFFERS ? 0 : rank, f) + k);
        if (f > 1 && ways[f] != TRAIN) EXPECT(ddp_group(net)->next_number - before <= 1);
        if (f > 1 && ways[f] != TRAIN && !due) EXPECT(ddp_group(net)->next_number == before);
    }
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
    return NULL;
}

static void buffers_are_rank_0s_after_a_training_forward_that_was_synchronised(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 3; ranks++) {
        struct job j = {.ranks = ranks};
        run_ranks(ranks, go_forward, &j);
        j.init_sync = CAIRN_OFF;
        run_ranks(ranks, go_forward, &j);
    }
}

/* Rank r evaluates r batches: rank 0 none. */
static char *evaluate(cairn_env *env, void *ctx) {
    const int rank = cairn_env_rank(env);
    struct model m = {0};
    ddp_context *net = NULL;
    cairn_module *model = make_model(env, &m);
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(N));
    (void)ctx;
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    for (int epoch = 0; epoch < 2; epoch++) {
        write_buffers(&m, rank, epoch);
        PASS(forward(env, net, x, TRAIN));
        write_buffers(&m, rank, epoch);
        EXPECT_OK(ddp_broadcast_buffers(net));
        cairn_no_grad_begin(env);
        for (int b = 0; b < rank; b++) {
            EXPECT(ddp_forward(net, x));
            for (int k = 0; k < BUFFERS; k++) EXPECT(m.seen[k] == written(0, epoch) + k);
        }
        EXPECT_OK(cairn_no_grad_end(env));
        double sum = rank;
        EXPECT_OK(ddp_sum(&sum, 1, cairn_env_group(env)));
        EXPECT(sum == 3);
    }
    EXPECT_REFUSED(ddp_broadcast_buffers(NULL), CAIRN_EINVAL, "ddp is NULL");
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
    return NULL;
}

static void ranks_evaluate_unequal_numbers_of_batches_without_join(void **state) {
    (void)state;
    run_ranks(3, evaluate, NULL);
}

static void buffers_stay_each_ranks_own_with_broadcast_buffers_off(void **state) {
    (void)state;
    struct job j = {.broadcast = CAIRN_OFF, .ranks = 2};
    run_ranks(2, go_forward, &j);
    j.init_sync = CAIRN_OFF;
    run_ranks(2, go_forward, &j);
}

/* ---- statistics of a layer, at the levels where buffers are half, and under a root of another rank's ---- */

static char *normalise(cairn_env *env, void *ctx) {
    const int rank = cairn_env_rank(env);
    struct trained t = {.model = cairn_batch_norm(env, 3, 1e-5, 0.1)};
    const struct amp_options *level = ctx;
    t.set = cairn_module_params(t.model);
    float mean[3];
    EXPECT_OK(parts_optimizer(&t, BY_SGD));
    EXPECT_OK(amp_initialize(env, t.model, t.optimizer, level, &t.amp));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), NULL, &t.net));
    memset(mean, 0, sizeof(mean));
    cairn_tensor *running = cairn_module_get(t.model, "running_mean");
    for (int s = 0; s < 3; s++) {
        cairn_zero_grad(t.optimizer);
        /* rank r's inputs are all r + 1: its mean is 0.9 * rank 0's + 0.1 * (r + 1) */
        cairn_tensor *y = ddp_forward(t.net, cairn_full(env, CAIRN_F32, CAIRN_SHAPE(4, 3), rank + 1));
        EXPECT_OK(amp_backward(t.amp, cairn_sum(y), t.optimizer));
        EXPECT_OK(cairn_step(t.optimizer));
        for (int c = 0; c < 3; c++) {
            const float *now = cairn__tensor_memory(running);
            const float want = 0.9f * mean[c] + 0.1f * (float)(rank + 1), root = 0.9f * mean[c] + 0.1f;
            EXPECT(now[c] > want - 1e-6f && now[c] < want + 1e-6f);
            mean[c] = root;
        }
    }
    parts_end(&t);
    return NULL;
}

static void running_statistics_begin_each_forward_as_rank_0s(void **state) {
    (void)state;
    for (int l = 0; l < PARTS_LEVELS; l += 3) run_ranks(2, normalise, (void *)(uintptr_t)&parts_levels[l]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_rank_0s_after_a_training_forward_that_was_synchronised),
        cmocka_unit_test(ranks_evaluate_unequal_numbers_of_batches_without_join),
        cmocka_unit_test(buffers_stay_each_ranks_own_with_broadcast_buffers_off),
        cmocka_unit_test(running_statistics_begin_each_forward_as_rank_0s),
    };
    return cmocka_run_group_tests(tests, parts_be_quiet, NULL);
}
