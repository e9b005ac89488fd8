/* The ways in which ddp reduces gradients: options, comm hooks, splitting, rebuilt buckets, and what happens when a
 * rank fails. */
#include <stdatomic.h>
#include <math.h>

#include "../mlp.h"
#include "../on_gpu.h"
#include "../plant.h"
#include "../ranks.h"
#include "core/dtype.h"
#include "core/status.h"
#include "device/env.h"

enum { IN = 3, HIDDEN = 4, OUT = 2, ROWS = 2, NUM_PARAMS = 4 };

/* The gradient of "sum of y * t" on this rank is that on rank 0 times rank + 1: it is linear in t. */
static cairn_tensor *loss_of(cairn_env *env, cairn_tensor *y) {
    static const float t[ROWS * OUT] = {1, -1, 2, 1};
    float mine[ROWS * OUT];
    for (int i = 0; i < ROWS * OUT; i++) mine[i] = t[i] * (float)(cairn_env_rank(env) + 1);
    cairn_tensor *ts = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ROWS, OUT), mine);
    cairn_tensor *loss = cairn_sum(cairn_mul(y, ts));
    cairn_tensor_destroy(&ts);
    return loss;
}

static cairn_tensor *input_of(cairn_env *env) {
    static const float x[ROWS * IN] = {1, 0, -1, 2, 1, 1};
    return cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN), x);
}

/* Small whole numbers, so that everything stays exact. */
static cairn_module *make_exact_mlp(cairn_env *env) {
    cairn_module *model = make_mlp(env, IN, HIDDEN, OUT);
    struct cairn_param_set *set = cairn_module_params(model);
    for (size_t i = 0; i < set->count; i++) {
        for (size_t e = 0; e < set->params[i]->n; e++)
            ((float *)set->params[i]->data)[e] = (float)((i + 2 * e) % 5) - 1.0f;
    }
    return model;
}

enum { MOST = IN * HIDDEN };

struct gradients {
    float of[NUM_PARAMS][MOST];
};

/* Those of this rank alone, without ddp. */
static char *own_gradients(cairn_env *env, struct gradients *g) {
    cairn_module *model = make_exact_mlp(env);
    cairn_tensor *x = input_of(env);
    EXPECT_OK(cairn_backward(loss_of(env, cairn_module_forward(model, x))));
    struct cairn_param_set *set = cairn_module_params(model);
    for (size_t i = 0; i < NUM_PARAMS; i++)
        memcpy(g->of[i], cairn__grad_memory(set->params[i]->gradient), set->params[i]->n * sizeof(float));
    cairn_tensor_destroy(&x);
    cairn_module_destroy(&model);
    return NULL;
}

static char *expect_times(const struct cairn_param_set *set, const struct gradients *own, float k) {
    for (size_t i = 0; i < NUM_PARAMS; i++) {
        const float *got = cairn__grad_memory(set->params[i]->gradient);
        for (size_t e = 0; e < set->params[i]->n; e++) EXPECT(got[e] == k * own->of[i][e]);
    }
    return NULL;
}

static cairn_status backward(cairn_env *env, ddp_context *net, struct cairn_param_set *set) {
    cairn_tensor *x = input_of(env);
    cairn_param_set_zero_grad(set);
    cairn_status st = cairn_backward(loss_of(env, ddp_forward(net, x)));
    cairn_tensor_destroy(&x);
    return st;
}

/* ---- what travels ---- */

struct mode {
    struct ddp_options options;
    const struct ddp_comm_hook *(*hook)(void);
    int op;            /* of the result: */
    cairn_dtype dtype; /* of the first bucket */
};

enum { AVERAGE, SUM, QUARTER_OF_SUM, OWN };

/* By how much the result is larger than this rank's own gradient. */
static float times_own(int op, int rank, int p) {
    const float sum = (float)(p * (p + 1)) / 2, own = (float)(rank + 1);
    switch (op) {
    case AVERAGE:
        return sum / (float)p / own;
    case SUM:
        return sum / own;
    case QUARTER_OF_SUM:
        return sum / 4 / own;
    default:
        return 1;
    }
}

#define OPTIONS(...) \
    { .struct_size = sizeof(struct ddp_options), __VA_ARGS__ }

static const struct mode modes[] = {
    {OPTIONS(.bucket_nbytes = 1), NULL, AVERAGE, CAIRN_F32},
    {OPTIONS(.wire = CAIRN_F16), NULL, AVERAGE, CAIRN_F16},
    {OPTIONS(.wire = CAIRN_F16, .allreduce_always_fp32 = CAIRN_OFF), NULL, AVERAGE, CAIRN_F16},
    {OPTIONS(.allreduce_always_fp32 = CAIRN_ON), NULL, AVERAGE, CAIRN_F32},
    {OPTIONS(.gradient_as_bucket_view = CAIRN_OFF), NULL, AVERAGE, CAIRN_F32},
    {OPTIONS(.gradient_average = CAIRN_OFF), NULL, SUM, CAIRN_F32},
    {OPTIONS(.gradient_average = CAIRN_OFF, .gradient_predivide_factor = 4), NULL, QUARTER_OF_SUM, CAIRN_F32},
    {OPTIONS(.gradient_average = CAIRN_OFF, .gradient_predivide_factor = 4, .gradient_as_bucket_view = CAIRN_OFF), NULL,
     QUARTER_OF_SUM, CAIRN_F32},
    {OPTIONS(.gradient_predivide_factor = 4), NULL, AVERAGE, CAIRN_F32},
    {OPTIONS(.message_size = 5), NULL, AVERAGE, CAIRN_F32},
    {OPTIONS(.delay_allreduce = CAIRN_ON), NULL, AVERAGE, CAIRN_F32},
    {OPTIONS(.retain_allreduce_buffers = CAIRN_ON), NULL, AVERAGE, CAIRN_F32},
    {OPTIONS(.retain_allreduce_buffers = CAIRN_OFF), NULL, AVERAGE, CAIRN_F32},
    {OPTIONS(.num_allreduce_streams = 1, .prof = CAIRN_OFF), NULL, AVERAGE, CAIRN_F32},
    {OPTIONS(.bucket_nbytes = 20), ddp_allreduce_hook, AVERAGE, CAIRN_F32},
    {OPTIONS(.bucket_nbytes = 20), ddp_fp16_compress_hook, AVERAGE, CAIRN_F16},
    {OPTIONS(.bucket_nbytes = 20), ddp_bf16_compress_hook, AVERAGE, CAIRN_BF16},
    {OPTIONS(.gradient_average = CAIRN_OFF), ddp_bf16_compress_hook, SUM, CAIRN_BF16},
    {OPTIONS(.bucket_nbytes = 20), ddp_noop_hook, OWN, CAIRN_F32},
};
enum { NUM_MODES = sizeof(modes) / sizeof(modes[0]) };

static char *train_in_mode(cairn_env *env, const struct mode *m, const struct gradients *own) {
    const float k = times_own(m->op, cairn_env_rank(env), cairn_env_size(env));
    cairn_module *model = make_exact_mlp(env);
    struct cairn_param_set *set = cairn_module_params(model);
    struct ddp_bucket bucket = DDP_BUCKET_INIT;
    ddp_context *net = NULL;
    EXPECT_OK(ddp_create(model, cairn_env_group(env), &m->options, &net));
    if (m->hook) EXPECT_OK(ddp_register_comm_hook(net, m->hook()));
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(backward(env, net, set));
        PASS(expect_times(set, own, k));
        EXPECT_OK(ddp_bucket_get(net, 0, &bucket));
        EXPECT(bucket.dtype == m->dtype);
    }
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    return NULL;
}

static char *train_in_every_mode(cairn_env *env, void *ctx) {
    struct gradients own;
    (void)ctx;
    PASS(own_gradients(env, &own));
    for (int i = 0; i < NUM_MODES; i++) PASS(train_in_mode(env, &modes[i], &own));
    return NULL;
}

static void every_mode_averages_as_documented(void **state) {
    (void)state;
    run_ranks(1, train_in_every_mode, NULL);
    run_ranks(3, train_in_every_mode, NULL);
}

/* ---- looking at buckets ---- */

static char *look_at_buckets(cairn_env *env, void *ctx) {
    cairn_module *model = make_exact_mlp(env);
    struct cairn_param_set *set = cairn_module_params(model);
    struct ddp_bucket bucket = DDP_BUCKET_INIT;
    ddp_context *net = NULL;
    (void)ctx;
    EXPECT_OK(ddp_create(model, cairn_env_group(env), ddp_options(.bucket_nbytes = 1), &net));
    EXPECT(ddp_bucket_count(net) == NUM_PARAMS && ddp_bucket_count(NULL) == 0);
    EXPECT(ddp_group(net) && ddp_group(net) != cairn_env_group(env) && ddp_group(NULL) == NULL);
    for (int i = 0; i < NUM_PARAMS; i++) {
        EXPECT_OK(ddp_bucket_get(net, i, &bucket));
        EXPECT(bucket.index == i && bucket.is_last == (i + 1 == NUM_PARAMS) && bucket.group == ddp_group(net));
        EXPECT(bucket.num_params == 1 && bucket.params[0] == (size_t)(NUM_PARAMS - 1 - i));
        EXPECT(bucket.buffer == cairn__grad_memory(set->params[bucket.params[0]]->gradient)); /* a view of the bucket */
        EXPECT(bucket.n >= set->params[bucket.params[0]]->n);
    }
    EXPECT(ddp_bucket_get(net, NUM_PARAMS, &bucket) == CAIRN_EINVAL && ddp_bucket_get(net, -1, &bucket) != CAIRN_OK);
    EXPECT(ddp_bucket_get(net, 0, &(struct ddp_bucket){.index = 1}) == CAIRN_EINVAL);
    EXPECT(strstr(cairn_last_error(), "begin with DDP_BUCKET_INIT"));
    EXPECT(ddp_bucket_get(NULL, 0, &bucket) == CAIRN_EINVAL && ddp_bucket_get(net, 0, NULL) == CAIRN_EINVAL);
    EXPECT(ddp_forward(NULL, NULL) == NULL && ddp_forward_n(NULL, NULL, 0) == NULL);
    ddp_destroy(&net);
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    return NULL;
}

static void buckets_can_be_read(void **state) {
    (void)state;
    run_ranks(2, look_at_buckets, NULL);
}

/* retain_allreduce_buffers decides whether a gradient is a view of its bucket, as gradient_as_bucket_view does. */
static char *look_at_retained_buckets(cairn_env *env, void *ctx) {
    static const struct {
        struct ddp_options options;
        bool is_view;
    } cases[] = {
        {OPTIONS(.retain_allreduce_buffers = CAIRN_ON), true},
        {OPTIONS(.retain_allreduce_buffers = CAIRN_OFF), false},
        {OPTIONS(.retain_allreduce_buffers = CAIRN_OFF, .gradient_as_bucket_view = CAIRN_OFF), false},
        {OPTIONS(.gradient_as_bucket_view = CAIRN_OFF), false},
        {OPTIONS(.wire = 0), true},
    };
    (void)ctx;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cairn_module *model = make_exact_mlp(env);
        struct cairn_param_set *set = cairn_module_params(model);
        struct ddp_bucket bucket = DDP_BUCKET_INIT;
        ddp_context *net = NULL;
        EXPECT_OK(ddp_create(model, cairn_env_group(env), &cases[i].options, &net));
        EXPECT_OK(backward(env, net, set));
        EXPECT_OK(ddp_bucket_get(net, 0, &bucket));
        const char *const grad = cairn__grad_memory(set->params[bucket.params[0]]->gradient), *const begin =
                                                                                                  bucket.buffer;
        const bool is_view = grad >= begin && grad < begin + bucket.n * sizeof(float);
        EXPECT(is_view == cases[i].is_view);
        ddp_destroy(&net);
        cairn_module_destroy(&model);
    }
    return NULL;
}

static void gradients_are_views_of_buckets_that_are_retained(void **state) {
    (void)state;
    run_ranks(2, look_at_retained_buckets, NULL);
}

static char *refuse_to_retain_users_memory(cairn_env *env, void *ctx) {
    float w[1] = {0}, grad[1];
    const cairn_param param = {.name = "w", .data = w, .grad = grad, .dtype = CAIRN_F32};
    cairn_param_set *set = NULL;
    ddp_context *net = NULL;
    (void)ctx;
    EXPECT_OK(cairn_param_set_create(env, &param, 1, &set));
    EXPECT(ddp_create_params(set, cairn_env_group(env), ddp_options(.retain_allreduce_buffers = CAIRN_ON), &net) ==
           CAIRN_EINVAL);
    EXPECT(strstr(cairn_last_error(),
                  "retain_allreduce_buffers, but parameters are in your own memory, which stays where it is"));
    EXPECT_OK(ddp_create_params(set, cairn_env_group(env), ddp_options(.retain_allreduce_buffers = CAIRN_OFF), &net));
    ddp_destroy(&net);
    cairn_param_set_destroy(&set);
    return NULL;
}

static void gradients_in_the_users_memory_are_no_views(void **state) {
    (void)state;
    NOT_ON_A_GPU("these buffers are the host's");
    run_ranks(1, refuse_to_retain_users_memory, NULL);
    run_ranks(2, refuse_to_retain_users_memory, NULL);
}

static char *close_buckets_by_triggers(cairn_env *env, void *ctx) {
    cairn_module *model = make_exact_mlp(env);
    ddp_context *net = NULL;
    static const char *const names[] = {"2.weight", "0.bias"};
    struct ddp_bucket bucket = DDP_BUCKET_INIT;
    (void)ctx;
    EXPECT_OK(ddp_create(model, cairn_env_group(env),
                         ddp_options(.bucket_nbytes = 1, .allreduce_trigger_params = names, .num_trigger_params = 2),
                         &net));
    EXPECT(ddp_bucket_count(net) == 3);
    EXPECT_OK(ddp_bucket_get(net, 0, &bucket));
    EXPECT(bucket.num_params == 2 && bucket.params[0] == 3 && bucket.params[1] == 2);
    EXPECT_OK(backward(env, net, cairn_module_params(model)));
    EXPECT_OK(backward(env, net, cairn_module_params(model)));
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    return NULL;
}

static void named_parameters_close_buckets(void **state) {
    (void)state;
    run_ranks(2, close_buckets_by_triggers, NULL);
}

/* ---- splitting ---- */

enum { WIDE = 9000 };

static const struct ddp_options splits[] = {OPTIONS(.bucket_nbytes = 1),
                                            OPTIONS(.bucket_nbytes = 1, .gradient_as_bucket_view = CAIRN_OFF),
                                            OPTIONS(.bucket_nbytes = 70 << 10, .wire = CAIRN_F32)};

/* x is 1 in one column of eight, so that the gradient tells columns apart. */
static char *reduce_wide(cairn_env *env, const struct ddp_options *options, amp_opt_level level) {
    static _Thread_local float x[WIDE];
    cairn_module *model = cairn_linear(env, WIDE, 4);
    struct cairn_param_set *set = cairn_module_params(model);
    amp_context *amp = NULL;
    ddp_context *net = NULL;
    for (int i = 0; i < WIDE; i++) x[i] = (float)(i % 8 == 0) * (float)(cairn_env_rank(env) + 1);
    cairn_tensor *xs = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, WIDE), x);
    EXPECT_OK(
        amp_initialize(env, model, NULL, amp_options(.opt_level = level, .loss_scale = 1, .verbosity = -1), &amp));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), options, &net));
    EXPECT(ddp_bucket_count(net) >= 3);
    for (int i = 0; i < 3; i++) {
        cairn_param_set_zero_grad(set);
        EXPECT_OK(cairn_backward(cairn_sum(ddp_forward(net, xs))));
        const struct cairn__param *p = set->params[0];
        for (size_t e = 0; e < p->n; e++) {
            const float got = cairn__dtype(p->dtype)->to_f32((char *)cairn__grad_memory(p->gradient) +
                                                             e * cairn_dtype_nbytes(p->dtype));
            EXPECT(got == (e % WIDE % 8 == 0 ? 2.0f : 0.0f)); /* the average of 1, 2 and 3 */
        }
    }
    cairn_tensor_destroy(&xs);
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_module_destroy(&model);
    return NULL;
}

static char *reduce_wide_in_all_ways(cairn_env *env, void *ctx) {
    (void)ctx;
    for (int i = 0; i < 3; i++) {
        PASS(reduce_wide(env, &splits[i], AMP_O0));
        PASS(reduce_wide(env, &splits[i], AMP_O2));
    }
    return NULL;
}

static void gradients_larger_than_a_bucket_travel_in_pieces(void **state) {
    (void)state;
    run_ranks(3, reduce_wide_in_all_ways, NULL);
}

/* ---- planning anew ---- */

/* Registered the other way round than used; on odd ranks they are used as registered. */
static cairn_tensor *forward_other_way(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct mlp *m = context;
    (void)count;
    const bool odd = cairn_env_rank(cairn__module_env(module)) % 2 == 1;
    cairn_tensor *first = odd ? cairn_linear_forward(inputs[0], m->w1, m->b1) : NULL;
    cairn_tensor *second = cairn_linear_forward(inputs[0], m->w2, m->b2);
    return cairn_add(second, odd ? first : cairn_linear_forward(inputs[0], m->w1, m->b1));
}

static const struct cairn__module_kind other_way_kind = {.name = "OtherWay", .forward = forward_other_way};

static cairn_module *make_other_way(cairn_env *env) {
    cairn_module *module = NULL;
    if (cairn__module_create(env, &other_way_kind, sizeof(struct mlp), &module) != CAIRN_OK) return NULL;
    struct mlp *m = cairn__module_context(module);
    const int64_t w[] = {OUT, IN}, b = OUT;
    if (cairn__module_add_param(module, "a.weight", 2, w, false, &m->w1) != CAIRN_OK ||
        cairn__module_add_param(module, "a.bias", 1, &b, false, &m->b1) != CAIRN_OK ||
        cairn__module_add_param(module, "b.weight", 2, w, false, &m->w2) != CAIRN_OK ||
        cairn__module_add_param(module, "b.bias", 1, &b, false, &m->b2) != CAIRN_OK)
        cairn_module_destroy(&module);
    struct cairn_param_set *set = cairn_module_params(module);
    for (size_t i = 0; i < set->count; i++) cairn__param_init_uniform(set->params[i], 0.5f);
    return module;
}

static char *expect_order(const ddp_context *net, const size_t *params) {
    struct ddp_bucket bucket = DDP_BUCKET_INIT;
    for (int i = 0; i < NUM_PARAMS; i++) {
        EXPECT_OK(ddp_bucket_get(net, i, &bucket));
        EXPECT(bucket.num_params == 1 && bucket.params[0] == params[i]);
    }
    return NULL;
}

struct arrivals {
    const struct cairn__grad_listener *behind;
    size_t order[NUM_PARAMS];
    int count;
};

static cairn_status see_begin(void *ctx) {
    const struct arrivals *a = ctx;
    return a->behind->begin(a->behind->ctx);
}

static void see_ready(void *ctx, size_t index) {
    struct arrivals *a = ctx;
    if (a->count < NUM_PARAMS) a->order[a->count++] = index;
    a->behind->ready(a->behind->ctx, index);
}

static cairn_status see_progress(void *ctx) {
    const struct arrivals *a = ctx;
    return a->behind->progress(a->behind->ctx);
}

static cairn_status see_settle(void *ctx) {
    const struct arrivals *a = ctx;
    return a->behind->settle(a->behind->ctx);
}

static void see_failed(void *ctx) {
    const struct arrivals *a = ctx;
    a->behind->failed(a->behind->ctx);
}

/* The group's memory, by which the barrier below waits, is mapped once a rank: the thread sanitizer does not see it. */
static atomic_bool is_told;

/* Two backwards without zero_grad in between: what stands in the buckets when they are planned anew is not lost. */
static char *plan_anew(cairn_env *env, void *ctx) {
    static const size_t reversed[NUM_PARAMS] = {3, 2, 1, 0};
    size_t *orders = ctx;
    cairn_module *model = make_other_way(env);
    struct cairn_param_set *set = cairn_module_params(model);
    cairn_tensor *x = input_of(env);
    ddp_context *net = NULL;
    float first[OUT * IN];
    EXPECT_OK(ddp_create(model, cairn_env_group(env), ddp_options(.bucket_nbytes = 1), &net));
    struct arrivals arrivals = {.behind = set->listener};
    const struct cairn__grad_listener see = {.ctx = &arrivals,
                                             .begin = see_begin,
                                             .ready = see_ready,
                                             .progress = see_progress,
                                             .settle = see_settle,
                                             .failed = see_failed};
    set->listener = &see;
    EXPECT_OK(cairn_backward(loss_of(env, ddp_forward(net, x))));
    PASS(expect_order(net, reversed));
    memcpy(first, cairn__grad_memory(set->params[2]->gradient), sizeof(first));
    EXPECT_OK(cairn_backward(loss_of(env, ddp_forward(net, x))));
    if (cairn_env_rank(env) == 0) {
        memcpy(orders, arrivals.order, sizeof(arrivals.order));
        atomic_store(&is_told, true);
    }
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    EXPECT(atomic_load(&is_told));
    PASS(expect_order(net, orders));
    EXPECT(memcmp(cairn__grad_memory(set->params[2]->gradient), first, sizeof(first)) == 0 &&
           cairn__grad_is_accumulated(set->params[2]->gradient));
    EXPECT(memcmp(cairn__grad_unscaled_memory(set->params[2]->gradient), first, sizeof(first)) == 0);
    EXPECT_OK(cairn_backward(loss_of(env, ddp_forward(net, x))));
    PASS(expect_order(net, orders));
    set->listener = arrivals.behind;
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    cairn_tensor_destroy(&x);
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    return NULL;
}

static void second_forward_plans_buckets_by_rank_0s_order(void **state) {
    (void)state;
    static const size_t reversed[NUM_PARAMS] = {3, 2, 1, 0};
    for (int p = 1; p <= 3; p++) {
        size_t orders[NUM_PARAMS] = {0};
        atomic_store(&is_told, false);
        run_ranks(p, plan_anew, orders);
        assert_memory_not_equal(orders, reversed, sizeof(orders));
    }
}

/* Rank 0 looks at its model by itself, after the first backward and before the second; a graph may have been
 * recorded. */
static char *look_before_the_second(cairn_env *env, void *ctx) {
    const bool is_recorded = *(const bool *)ctx;
    cairn_module *model = make_other_way(env);
    cairn_tensor *x = input_of(env);
    ddp_context *net = NULL;
    struct ddp_bucket before = DDP_BUCKET_INIT, after = DDP_BUCKET_INIT;
    EXPECT_OK(ddp_create(model, cairn_env_group(env), ddp_options(.bucket_nbytes = 1), &net));
    EXPECT_OK(cairn_backward(loss_of(env, ddp_forward(net, x))));
    EXPECT_OK(ddp_bucket_get(net, 0, &before));
    const size_t was = before.params[0];
    if (cairn_env_rank(env) == 0) {
        cairn_no_grad_begin(env);
        EXPECT(ddp_forward(net, x));
        EXPECT_OK(cairn_no_grad_end(env));
    }
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    env->replays += is_recorded;
    EXPECT_OK(cairn_backward(loss_of(env, ddp_forward(net, x))));
    EXPECT_OK(ddp_bucket_get(net, 0, &after));
    EXPECT((after.params[0] == was) == is_recorded);
    cairn_tensor_destroy(&x);
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    return NULL;
}

static void buckets_are_rebuilt_neither_in_evaluation_nor_under_a_graph(void **state) {
    (void)state;
    for (int is_recorded = 0; is_recorded < 2; is_recorded++)
        run_ranks(2, look_before_the_second, &(bool){is_recorded != 0});
}

/* ---- ignored parameters ---- */

static const char *const ignored_names[] = {"0.bias", "mean"};

static char *ignore_some(cairn_env *env, void *ctx) {
    const int rank = cairn_env_rank(env);
    struct gradients own;
    cairn_module *model = make_exact_mlp(env);
    struct cairn_param_set *set = cairn_module_params(model);
    cairn_tensor *mean = cairn_module_add_buffer(model, "mean", CAIRN_F32, CAIRN_SHAPE(1));
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    cairn_optimizer *sgd = NULL;
    ddp_context *net = NULL;
    amp_context *amp = NULL;
    float value = 0;
    (void)ctx;
    PASS(own_gradients(env, &own));
    EXPECT_OK(cairn_init_constant(mean, (float)rank));
    ((float *)set->params[1]->data)[0] += (float)rank;
    EXPECT_OK(cairn_sgd_create(set, &hyper, &sgd));
    EXPECT_OK(
        amp_initialize(env, model, sgd, amp_options(.opt_level = AMP_O0, .loss_scale = 2, .verbosity = -1), &amp));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), ddp_options(.ignored = ignored_names, .num_ignored = 2), &net));
    EXPECT_OK(cairn_tensor_read(mean, &value, 1));
    EXPECT(value == (float)rank && ((float *)set->params[1]->data)[0] == (float)rank); /* 0.bias[0] is 0 */
    struct plant plant;
    plant_install(&plant, set);
    for (int i = 0; i < 4; i++) {
        plant.target = i == 2 && rank == 1 ? 1 : -1; /* infinite in 0.bias of rank 1 */
        plant.value = INFINITY;
        cairn_zero_grad(sgd);
        cairn_tensor *x = input_of(env);
        EXPECT_OK(amp_backward(amp, loss_of(env, ddp_forward(net, x)), sgd));
        cairn_tensor_destroy(&x);
        EXPECT_OK(cairn_step(sgd));
        EXPECT(cairn_optimizer_step_skipped(sgd) == (i == 2));
    }
    plant_remove(&plant);
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    return NULL;
}

static void ignored_parameters_stay_each_ranks_own_but_for_overflow(void **state) {
    (void)state;
    run_ranks(3, ignore_some, NULL);
}

/* ---- options that are wrong, or differ ---- */

static const char *const nobody[] = {"nobody"};
static const char *const everybody[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
static const char *const nothing[] = {NULL};

static const struct refusal {
    struct ddp_options options;
    const char *want;
} refusals[] = {
    {OPTIONS(.wire = CAIRN_I32), "wire is i32"},
    {OPTIONS(.broadcast_buffers = (cairn_switch)3), "broadcast_buffers is 3"},
    {OPTIONS(.prof = (cairn_switch)-1), "prof is -1"},
    {OPTIONS(.message_size = -1), "message_size is -1"},
    {OPTIONS(.message_size = 5, .bucket_nbytes = 20), "message_size = 5 elements and bucket_nbytes = 20 bytes"},
    {OPTIONS(.message_size = 5, .first_bucket_nbytes = 9), "first_bucket_nbytes = 9 bytes"},
    {OPTIONS(.gradient_predivide_factor = -2), "gradient_predivide_factor is -2"},
    {OPTIONS(.gradient_predivide_factor = NAN), "gradient_predivide_factor is nan"},
    {OPTIONS(.gradient_predivide_factor = 1e-300), "gradient_predivide_factor is 1e-300"},
    {OPTIONS(.prof = CAIRN_ON), "prof is on, but there are no profiler ranges; leave it out"},
    {OPTIONS(.num_allreduce_streams = -1), "num_allreduce_streams is -1"},
    {OPTIONS(.num_allreduce_streams = 2), "num_allreduce_streams is 2; buckets are sent in one order over one channel"},
    {OPTIONS(.allreduce_always_fp32 = CAIRN_ON, .wire = CAIRN_F16), "allreduce_always_fp32 and wire = f16"},
    {OPTIONS(.retain_allreduce_buffers = CAIRN_ON, .gradient_as_bucket_view = CAIRN_OFF),
     "retain_allreduce_buffers on and gradient_as_bucket_view off, which are two names of one option"},
    {OPTIONS(.retain_allreduce_buffers = CAIRN_OFF, .gradient_as_bucket_view = CAIRN_ON),
     "retain_allreduce_buffers off and gradient_as_bucket_view on"},
    {OPTIONS(.retain_allreduce_buffers = (cairn_switch)3), "retain_allreduce_buffers is 3"},
    {OPTIONS(.skip_all_reduce_unused_params = CAIRN_ON), "without find_unused_parameters"},
    {OPTIONS(.num_ignored = 1), "ignored is NULL, but its count is 1"},
    {OPTIONS(.ignored = nothing, .num_ignored = 1), "ignored[0] is NULL"},
    {OPTIONS(.ignored = nobody, .num_ignored = 1), "ignored names 'nobody', but no parameter or buffer has that name"},
    {OPTIONS(.ignored = everybody, .num_ignored = 4), "ignored names every parameter"},
    {OPTIONS(.num_trigger_params = 1), "allreduce_trigger_params is NULL"},
    {OPTIONS(.allreduce_trigger_params = nobody, .num_trigger_params = 1), "no parameter has that name"},
    {OPTIONS(.allreduce_trigger_params = everybody, .num_trigger_params = 1, .ignored = everybody, .num_ignored = 1),
     "an ignored parameter cannot close a bucket"},
    {OPTIONS(.allreduce_trigger_params = everybody, .num_trigger_params = 1, .delay_allreduce = CAIRN_ON),
     "delay_allreduce and allreduce_trigger_params"},
};
enum { NUM_REFUSALS = sizeof(refusals) / sizeof(refusals[0]) };

/* Wrong on one rank is an error on all, with its message. */
static char *be_refused(cairn_env *env, void *ctx) {
    cairn_module *model = make_exact_mlp(env);
    const bool wrong = cairn_env_rank(env) == cairn_env_size(env) - 1;
    (void)ctx;
    for (int i = 0; i < NUM_REFUSALS; i++) {
        ddp_context *net = NULL;
        const cairn_status st = ddp_create(model, cairn_env_group(env), wrong ? &refusals[i].options : NULL, &net);
        EXPECT(st == (wrong ? CAIRN_EINVAL : CAIRN_EPEER) && net == NULL);
        EXPECT(strstr(cairn_last_error(), refusals[i].want) != NULL);
        EXPECT(wrong || strstr(cairn_last_error(), "it failed on rank 1") != NULL);
    }
    cairn_module_destroy(&model);
    return NULL;
}

static void wrong_options_are_refused_on_every_rank(void **state) {
    (void)state;
    run_ranks(1, be_refused, NULL);
    run_ranks(2, be_refused, NULL);
}

static const struct difference {
    struct ddp_options first, other;
    const char *want;
} differences[] = {
    {OPTIONS(.bucket_nbytes = 1), OPTIONS(.bucket_nbytes = 2), "bucket_nbytes is 1 on rank 0 but 2 on rank 1"},
    {OPTIONS(.message_size = 0), OPTIONS(.message_size = 9), "message_size is 0 on rank 0 but 9 on rank 1"},
    {OPTIONS(.static_graph = CAIRN_ON), OPTIONS(.static_graph = CAIRN_OFF), "static_graph is 1 on rank 0 but 2 on"},
    {OPTIONS(.gradient_average = CAIRN_OFF), OPTIONS(.prof = 0), "gradient_average is 2 on rank 0 but 1 on rank 1"},
    {OPTIONS(.init_sync = CAIRN_OFF), OPTIONS(.prof = 0), "init_sync is 2 on rank 0 but 1 on rank 1"},
    {OPTIONS(.ignored = everybody, .num_ignored = 1), OPTIONS(.ignored = everybody + 1, .num_ignored = 1),
     "ignored is 0.weight on rank 0 but 0.bias on rank 1"},
};
enum { NUM_DIFFERENCES = sizeof(differences) / sizeof(differences[0]) };

static char *differ(cairn_env *env, void *ctx) {
    cairn_module *model = make_exact_mlp(env);
    (void)ctx;
    for (int i = 0; i < NUM_DIFFERENCES; i++) {
        const struct difference *d = &differences[i];
        ddp_context *net = NULL;
        const struct ddp_options *mine = cairn_env_rank(env) == 1 ? &d->other : &d->first;
        EXPECT(ddp_create(model, cairn_env_group(env), mine, &net) == CAIRN_EPEER && net == NULL);
        EXPECT(strstr(cairn_last_error(), d->want) != NULL);
    }
    cairn_module_destroy(&model);
    return NULL;
}

static void options_that_differ_fail_on_every_rank_with_both_values(void **state) {
    (void)state;
    run_ranks(3, differ, NULL);
}

/* What is different stays so. */
static char *train_without_sync(cairn_env *env, void *ctx) {
    cairn_module *model = make_exact_mlp(env);
    struct cairn_param_set *set = cairn_module_params(model);
    ddp_context *net = NULL;
    (void)ctx;
    ((float *)set->params[0]->data)[0] = (float)cairn_env_rank(env);
    EXPECT_OK(ddp_create(model, cairn_env_group(env), ddp_options(.init_sync = CAIRN_OFF), &net));
    EXPECT(((float *)set->params[0]->data)[0] == (float)cairn_env_rank(env));
    EXPECT_OK(backward(env, net, set));
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    return NULL;
}

static void without_init_sync_nothing_is_made_equal(void **state) {
    (void)state;
    run_ranks(2, train_without_sync, NULL);
}

/* ---- hooks ---- */

struct calls {
    int begun, finished;
    bool in_order, fails;
};

static cairn_status add_up(void *ctx, const struct ddp_bucket *bucket, cairn_work **work) {
    struct calls *c = ctx;
    c->in_order &= bucket->index == c->begun++ % NUM_PARAMS && bucket->is_last == (bucket->index == NUM_PARAMS - 1);
    if (c->fails) return cairn__fail(CAIRN_ESYSTEM, "the hook's own sentence");
    return cairn_allreduce(bucket->group, bucket->buffer, bucket->n, bucket->dtype, CAIRN_SUM, work);
}

static cairn_status halve(void *ctx, const struct ddp_bucket *bucket) {
    struct calls *c = ctx;
    uint16_t *half = bucket->buffer;
    c->in_order &= bucket->index == c->finished++ % NUM_PARAMS && bucket->dtype == CAIRN_F16;
    for (size_t i = 0; i < bucket->n; i++) {
        const float value = cairn__dtype(CAIRN_F16)->to_f32(&half[i]) / 2;
        cairn__dtype(CAIRN_F16)->from_f32(&half[i], value);
    }
    return CAIRN_OK;
}

static char *reduce_by_a_hook_of_the_users(cairn_env *env, void *ctx) {
    struct gradients own;
    struct calls calls = {.in_order = true};
    const struct ddp_comm_hook hook = {.struct_size = sizeof(hook),
                                       .name = "halves",
                                       .ctx = &calls,
                                       .wire = CAIRN_F16,
                                       .begin = add_up,
                                       .finish = halve};
    cairn_module *model = make_exact_mlp(env);
    struct cairn_param_set *set = cairn_module_params(model);
    ddp_context *net = NULL;
    (void)ctx;
    PASS(own_gradients(env, &own));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), ddp_options(.bucket_nbytes = 1), &net));
    EXPECT_OK(ddp_register_comm_hook(net, &hook));
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(backward(env, net, set));
        PASS(expect_times(set, &own, times_own(SUM, cairn_env_rank(env), cairn_env_size(env)) / 2));
    }
    EXPECT(calls.in_order && calls.begun == 3 * NUM_PARAMS && calls.finished == 3 * NUM_PARAMS);
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    return NULL;
}

static void hook_of_the_users_decides_what_gradients_become(void **state) {
    (void)state;
    for (int p = 1; p <= 3; p++) run_ranks(p, reduce_by_a_hook_of_the_users, NULL);
}

static char *misuse_hooks(cairn_env *env, void *ctx) {
    cairn_module *model = make_exact_mlp(env);
    struct cairn_param_set *set = cairn_module_params(model);
    const struct ddp_comm_hook wrong = {.struct_size = sizeof(wrong), .wire = CAIRN_I64};
    ddp_context *net = NULL;
    (void)ctx;
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    EXPECT(ddp_register_comm_hook(NULL, ddp_noop_hook()) == CAIRN_EINVAL);
    EXPECT(ddp_register_comm_hook(net, NULL) == CAIRN_EINVAL && strstr(cairn_last_error(), "hook is NULL"));
    EXPECT(ddp_register_comm_hook(net, &wrong) == CAIRN_EINVAL && strstr(cairn_last_error(), "wire is i64"));
    EXPECT_OK(ddp_no_sync(net, 1));
    EXPECT_OK(backward(env, net, set));
    EXPECT_OK(ddp_no_sync(net, 0));
    EXPECT(ddp_register_comm_hook(net, ddp_noop_hook()) == CAIRN_ESTATE); /* what is held would be lost */
    EXPECT_OK(backward(env, net, set));
    EXPECT(ddp_register_comm_hook(net, ddp_noop_hook()) == CAIRN_ESTATE);
    EXPECT(strstr(cairn_last_error(), "before the first one"));
    ddp_destroy(&net);
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    EXPECT_OK(ddp_register_comm_hook(net, ddp_allreduce_hook()));
    EXPECT(ddp_register_comm_hook(net, ddp_noop_hook()) == CAIRN_ESTATE);
    EXPECT(strstr(cairn_last_error(), "the context has a hook already ('allreduce')"));
    ddp_destroy(&net);
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    const struct ddp_comm_hook *mine = cairn_env_rank(env) ? ddp_noop_hook() : ddp_bf16_compress_hook();
    EXPECT(ddp_register_comm_hook(net, mine) == (cairn_env_size(env) > 1 ? CAIRN_EPEER : CAIRN_OK));
    EXPECT(cairn_env_size(env) == 1 || strstr(cairn_last_error(), "'bf16_compress' but rank 1 'noop'"));
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    return NULL;
}

static void misused_hooks_are_refused(void **state) {
    (void)state;
    run_ranks(1, misuse_hooks, NULL);
    run_ranks(2, misuse_hooks, NULL);
}

/* ---- failures ---- */

/* The second backward fails in rank 1's hook: every rank's message has the cause and the bucket. */
static char *fail_in_a_hook(cairn_env *env, void *ctx) {
    struct calls calls = {.in_order = true};
    const struct ddp_comm_hook hook = {.struct_size = sizeof(hook), .ctx = &calls, .begin = add_up};
    cairn_module *model = make_exact_mlp(env);
    struct cairn_param_set *set = cairn_module_params(model);
    ddp_context *net = NULL;
    (void)ctx;
    EXPECT_OK(ddp_create(model, cairn_env_group(env), ddp_options(.bucket_nbytes = 1), &net));
    EXPECT_OK(ddp_register_comm_hook(net, &hook));
    EXPECT_OK(backward(env, net, set));
    calls.fails = cairn_env_rank(env) == 1;
    EXPECT(backward(env, net, set) == (calls.fails ? CAIRN_ESYSTEM : CAIRN_EPEER));
    EXPECT(strstr(cairn_last_error(), "ddp: bucket 0 ('2.bias' to '2.bias') of backward 2: "));
    EXPECT(strstr(cairn_last_error(), "the hook's own sentence"));
    EXPECT(backward(env, net, set) != CAIRN_OK); /* the context is dead, the group is not */
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    return NULL;
}

static void failure_of_one_rank_fails_all_and_names_the_bucket(void **state) {
    (void)state;
    NOT_ON_A_GPU("on nccl other ranks learn of it by their timeout");
    run_ranks(3, fail_in_a_hook, NULL);
}

static char *fail_alone(cairn_env *env, void *ctx) {
    struct gradients own;
    struct calls calls = {.in_order = true, .fails = true};
    const struct ddp_comm_hook hook = {.struct_size = sizeof(hook), .ctx = &calls, .begin = add_up};
    cairn_module *model = make_exact_mlp(env);
    struct cairn_param_set *set = cairn_module_params(model);
    ddp_context *net = NULL;
    (void)ctx;
    PASS(own_gradients(env, &own));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), ddp_options(.bucket_nbytes = 1), &net));
    EXPECT_OK(ddp_register_comm_hook(net, &hook));
    EXPECT(backward(env, net, set) == CAIRN_ESYSTEM);
    calls.fails = false;
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(backward(env, net, set));
        PASS(expect_times(set, &own, 1));
    }
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    return NULL;
}

static void single_rank_goes_on_after_a_failure(void **state) {
    (void)state;
    run_ranks(1, fail_alone, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode_averages_as_documented),
        cmocka_unit_test(buckets_can_be_read),
        cmocka_unit_test(gradients_are_views_of_buckets_that_are_retained),
        cmocka_unit_test(gradients_in_the_users_memory_are_no_views),
        cmocka_unit_test(named_parameters_close_buckets),
        cmocka_unit_test(gradients_larger_than_a_bucket_travel_in_pieces),
        cmocka_unit_test(second_forward_plans_buckets_by_rank_0s_order),
        cmocka_unit_test(buckets_are_rebuilt_neither_in_evaluation_nor_under_a_graph),
        cmocka_unit_test(ignored_parameters_stay_each_ranks_own_but_for_overflow),
        cmocka_unit_test(wrong_options_are_refused_on_every_rank),
        cmocka_unit_test(options_that_differ_fail_on_every_rank_with_both_values),
        cmocka_unit_test(without_init_sync_nothing_is_made_equal),
        cmocka_unit_test(hook_of_the_users_decides_what_gradients_become),
        cmocka_unit_test(misused_hooks_are_refused),
        cmocka_unit_test(failure_of_one_rank_fails_all_and_names_the_bucket),
        cmocka_unit_test(single_rank_goes_on_after_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
