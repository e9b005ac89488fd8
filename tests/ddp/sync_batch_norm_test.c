/* SyncBatchNorm against one big batch: outputs, gradients and running statistics, for shards of all kinds of sizes;
 * converted layers, trained at every level; and errors. */
#include <math.h>

#include "../failing_alloc.h"
#include "../on_gpu.h"
#include "../ranks.h"
#include "comm/group.h"
#include "core/dtype.h"
#include "core/philox.h"
#include "device/env.h"
#include "nn/hooks.h"
#include "param/param.h"

/* ---- a batch and its shares ---- */

enum { CHANNELS = 5, MANY_CHANNELS = 260, INNER = 9, MOST = 8 * MANY_CHANNELS };
static const double EPS = 1e-3, MOMENTUM = 0.25;

/* Which rows of the batch a rank has, and over which ranks the batch is. */
struct shares {
    int p, rows[4];
    int block; /* 0: one batch over all; else a batch for each `block` ranks */
};

struct batch {
    const struct shares *shares;
    cairn_dtype dtype, affine;
    int channels, inner;
    bool exact; /* small integers, and shares and batch of powers of two: every sum is exact, and every mean */
};

static int first_rank(const struct batch *b, int rank) {
    return b->shares->block ? rank / b->shares->block * b->shares->block : 0;
}

static int rows_before(const struct batch *b, int rank, int end) {
    int n = 0;
    for (int r = first_rank(b, rank); r < end; r++) n += b->shares->rows[r];
    return n;
}

static int all_rows(const struct batch *b, int rank) {
    return rows_before(b, rank, b->shares->block ? first_rank(b, rank) + b->shares->block : b->shares->p);
}

static double number(const struct batch *b, int stream, int i) {
    float z[4];
    const struct cairn__philox_block bits = cairn__philox(3, (uint64_t)i, (uint64_t)stream);
    if (b->exact) return (double)(bits.word[0] % 5) - 2;
    cairn__normal4(bits, z);
    return (double)z[0] + (stream == 1 ? 4 : 0); /* a mean that is not small */
}

/* Elements [first, first + n) of a stream of numbers, as a leaf. */
static cairn_tensor *leaf(cairn_env *env, const struct batch *b, cairn_dtype dtype, int stream, int first, int ndim,
                          const int64_t *shape) {
    static _Thread_local union {
        double f64[MOST];
        float f32[MOST];
        uint16_t half[MOST];
    } values;
    cairn_tensor *t = cairn_zeros(env, dtype, ndim, shape);
    const size_t n = cairn_tensor_numel(t);
    for (size_t i = 0; i < n; i++) {
        const double x = number(b, stream, first + (int)i);
        const float narrow = (float)x;
        if (dtype == CAIRN_F64) values.f64[i] = x;
        if (dtype == CAIRN_F32) values.f32[i] = narrow;
        if (cairn__is_half(dtype)) cairn__dtype(dtype)->from_f32(&values.half[i], narrow);
    }
    return cairn_tensor_write(t, &values, n) == CAIRN_OK ? t : NULL;
}

struct result {
    double y[MOST], dx[MOST], mean[MANY_CHANNELS], variance[MANY_CHANNELS];
    double affine[2 * MANY_CHANNELS]; /* gradients of weight and bias */
};

/* Rows [first, first + rows) of a batch; channel NULL: as a batch of their own. */
static char *normalise(cairn_env *env, const struct batch *b, int first, int rows, cairn_group *channel,
                       struct result *out) {
    const int64_t shape[] = {rows, b->channels, b->inner}, channels = b->channels;
    const int ndim = b->inner == 1 ? 2 : 3, n = rows * b->channels * b->inner, at = first * b->channels * b->inner;
    const cairn_dtype running = b->dtype == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32;
    cairn_tensor *x = leaf(env, b, b->dtype, 1, at, ndim, shape), *dy = leaf(env, b, b->dtype, 2, at, ndim, shape);
    cairn_tensor *w = leaf(env, b, b->affine, 3, 0, 1, &channels), *bias = leaf(env, b, b->affine, 4, 0, 1, &channels);
    cairn_tensor *mean = cairn_full(env, running, 1, &channels, 0.5);
    cairn_tensor *var = cairn_full(env, running, 1, &channels, 2);
    cairn_tensor *const wanting[] = {x, w, bias};
    for (int i = 0; i < 3; i++) EXPECT_OK(cairn_tensor_require_grad(wanting[i]));
    cairn_tensor *y = channel ? ddp_sync_batch_norm_forward(x, mean, var, w, bias, 1, MOMENTUM, EPS, channel)
                              : cairn_batch_norm_forward(x, mean, var, w, bias, 1, MOMENTUM, EPS);
    EXPECT(y != NULL);
    EXPECT_OK(cairn_backward_with(y, cairn_backward_options(.grad = dy)));
    EXPECT_OK(cairn_tensor_read_as(y, CAIRN_F64, out->y, (size_t)n));
    EXPECT_OK(cairn_tensor_read_grad(x, out->dx, (size_t)n));
    EXPECT_OK(cairn_tensor_read_grad(w, out->affine, (size_t)channels));
    EXPECT_OK(cairn_tensor_read_grad(bias, out->affine + channels, (size_t)channels));
    EXPECT_OK(cairn_tensor_read_as(mean, CAIRN_F64, out->mean, (size_t)channels));
    EXPECT_OK(cairn_tensor_read_as(var, CAIRN_F64, out->variance, (size_t)channels));
    return NULL;
}

static char *expect_near(const char *what, const double *got, const double *want, int n, double bound) {
    for (int i = 0; i < n; i++) {
        const double off = fabs(got[i] - want[i]), scale = fabs(want[i]) > 1 ? fabs(want[i]) : 1;
        if (off <= bound * scale) continue;
        char text[160];
        snprintf(text, sizeof(text), "%s[%d] is %.17g, want %.17g within %g", what, i, got[i], want[i], bound);
        return FAILURE(text);
    }
    return NULL;
}

/* x, of the host, becomes the sum over the ranks, in their order. */
static char *add_over_ranks(cairn_group *group, double *x, size_t n) {
    static _Thread_local double all[4 * 2 * MANY_CHANNELS];
    EXPECT(n <= 2 * MANY_CHANNELS && cairn_group_size(group) <= 4);
    EXPECT_OK(cairn__group_exchange(group, all, x, n * sizeof(x[0])));
    for (size_t i = 0; i < n; i++) {
        x[i] = 0;
        for (int r = 0; r < cairn_group_size(group); r++) x[i] += all[(size_t)r * n + i];
    }
    return NULL;
}

/* bound 0: equal bits. But for gradients of weights, of which each rank rounds its part. */
static char *compare_with_whole(cairn_env *env, const struct batch *b, cairn_group *channel, double bound) {
    static _Thread_local struct result share, whole;
    const int rank = cairn_env_rank(env), channels = b->channels, size = channels * b->inner;
    const int first = rows_before(b, rank, rank), rows = b->shares->rows[rank];
    PASS(normalise(env, b, first, rows, channel, &share));
    PASS(normalise(env, b, 0, all_rows(b, rank), NULL, &whole));
    PASS(add_over_ranks(channel, share.affine, 2 * (size_t)channels));
    PASS(expect_near("y", share.y, whole.y + first * size, rows * size, bound));
    PASS(expect_near("dx", share.dx, whole.dx + first * size, rows * size, bound));
    PASS(expect_near("dweight, dbias", share.affine, whole.affine, 2 * channels, bound ? 4 * bound : 1e-6));
    PASS(expect_near("running_mean", share.mean, whole.mean, channels, cairn__is_half(b->dtype) ? 1e-5 : bound));
    return expect_near("running_var", share.variance, whole.variance, channels,
                       cairn__is_half(b->dtype) ? 1e-5 : bound);
}

static const struct {
    cairn_dtype dtype, affine;
    double bound;
} types[] = {{CAIRN_F64, CAIRN_F64, 1e-8},
             {CAIRN_F32, CAIRN_F32, 1e-5},
             {CAIRN_F16, CAIRN_F32, 0x1p-10},
             {CAIRN_BF16, CAIRN_BF16, 0x1p-7}};

static char *compare_shares(cairn_env *env, void *ctx) {
    const struct shares *shares = ctx;
    cairn_group *channel = NULL;
    EXPECT_OK(ddp_create_syncbn_process_group(cairn_env_group(env), shares->block, &channel));
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        for (int inner = 1; inner <= INNER; inner += INNER - 1) {
            const struct batch b = {shares, types[t].dtype, types[t].affine, CHANNELS, inner, false};
            PASS(compare_with_whole(env, &b, channel, types[t].bound));
        }
    }
    cairn_group_destroy(&channel);
    return NULL;
}

static void shares_of_any_size_equal_one_big_batch(void **state) {
    (void)state;
    static const struct shares cases[] = {
        {.p = 2, .rows = {1, 7}},       {.p = 2, .rows = {0, 2}},       {.p = 3, .rows = {5, 0, 3}},
        {.p = 4, .rows = {1, 2, 3, 4}}, {.p = 4, .rows = {1, 1, 1, 1}},
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
        run_ranks(cases[c].p, compare_shares, (void *)&cases[c]);
}

static void groups_of_two_normalise_independently(void **state) {
    (void)state;
    struct shares shares = {.p = 4, .rows = {3, 1, 2, 6}, .block = 2};
    run_ranks(4, compare_shares, &shares);
}

/* More than the pass takes at a time. */
static char *compare_wide_shares(cairn_env *env, void *ctx) {
    cairn_group *channel = NULL;
    EXPECT_OK(cairn_group_new(cairn_env_group(env), NULL, 0, NULL, &channel));
    for (size_t t = 0; t < 2; t++) {
        const struct batch b = {ctx, types[t].dtype, types[t].affine, MANY_CHANNELS, 1, false};
        PASS(compare_with_whole(env, &b, channel, types[t].bound));
    }
    cairn_group_destroy(&channel);
    return NULL;
}

static void shares_of_many_channels_equal_one_big_batch(void **state) {
    (void)state;
    struct shares shares = {.p = 2, .rows = {5, 3}};
    run_ranks(2, compare_wide_shares, &shares);
}

static char *compare_exact_shares(cairn_env *env, void *ctx) {
    cairn_group *channel = NULL;
    EXPECT_OK(cairn_group_new(cairn_env_group(env), NULL, 0, NULL, &channel));
    for (int inner = 1; inner <= 8; inner *= 8) {
        for (size_t t = 0; t < 2; t++) {
            const struct batch b = {ctx, types[t].dtype, types[t].affine, CHANNELS, inner, true};
            PASS(compare_with_whole(env, &b, channel, 0));
        }
    }
    cairn_group_destroy(&channel);
    return NULL;
}

static void exact_shares_give_the_bits_of_one_big_batch(void **state) {
    (void)state;
    static const struct shares cases[] = {{.p = 2, .rows = {8, 8}},
                                          {.p = 3, .rows = {8, 0, 8}},
                                          {.p = 3, .rows = {8, 4, 4}},
                                          {.p = 4, .rows = {1, 1, 2, 4}}};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
        run_ranks(cases[c].p, compare_exact_shares, (void *)&cases[c]);
}

static char *expect_all_equal(cairn_env *env, const void *x, size_t nbytes) {
    static _Thread_local uint8_t all[4 * sizeof(struct result)];
    EXPECT(nbytes <= sizeof(struct result) && cairn_env_size(env) <= 4);
    EXPECT_OK(cairn__group_exchange(cairn_env_group(env), all, x, nbytes));
    for (int r = 0; r < cairn_env_size(env); r++) EXPECT(memcmp(all + (size_t)r * nbytes, x, nbytes) == 0);
    return NULL;
}

static char *keep_equal_statistics(cairn_env *env, void *ctx) {
    static _Thread_local struct result share;
    const struct batch b = {ctx, CAIRN_F32, CAIRN_F32, CHANNELS, 3, false};
    const int rank = cairn_env_rank(env);
    cairn_group *channel = NULL;
    EXPECT_OK(cairn_group_new(cairn_env_group(env), NULL, 0, NULL, &channel));
    PASS(normalise(env, &b, rows_before(&b, rank, rank), b.shares->rows[rank], channel, &share));
    PASS(expect_all_equal(env, share.mean, sizeof(share.mean)));
    PASS(expect_all_equal(env, share.variance, sizeof(share.variance)));
    cairn_group_destroy(&channel);
    return NULL;
}

static void running_statistics_have_the_same_bits_on_every_rank(void **state) {
    (void)state;
    struct shares shares = {.p = 4, .rows = {3, 0, 7, 1}};
    run_ranks(4, keep_equal_statistics, &shares);
}

/* ---- what sends, and what does not ---- */

static char *normalise_alone(cairn_env *env, void *ctx) {
    static _Thread_local struct result one, plain;
    static const struct shares shares = {.p = 1, .rows = {6}};
    (void)ctx;
    const struct batch b = {&shares, CAIRN_F32, CAIRN_F32, CHANNELS, 7, false};
    memset(&one, 0, sizeof(one));
    memset(&plain, 0, sizeof(plain));
    PASS(normalise(env, &b, 0, 6, cairn_env_group(env), &one));
    PASS(normalise(env, &b, 0, 6, NULL, &plain));
    EXPECT(memcmp(&one, &plain, sizeof(one)) == 0);
    cairn_module *layer = ddp_sync_batch_norm(env, 3, 0, 0, NULL);
    EXPECT(layer != NULL && env->places[CAIRN__PLACE_OF_DDP].at == NULL);
    cairn_module_destroy(&layer);
    return NULL;
}

static void a_group_of_one_rank_is_plain_batch_norm_to_the_bit(void **state) {
    (void)state;
    run_ranks(1, normalise_alone, NULL);
}

/* Rank 0 does what the others do not: it would wait for them in vain if anything were sent. */
static char *evaluate_on_one_rank(cairn_env *env, void *ctx) {
    (void)ctx;
    cairn_module *layer = ddp_sync_batch_norm(env, 3, 0, 0, NULL);
    EXPECT(layer != NULL);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(1, 3));
    cairn_module_train(layer, 0);
    if (cairn_env_rank(env) == 0) EXPECT(cairn_module_forward(layer, x) != NULL);
    cairn_module_train(layer, 1);
    cairn_tensor *y = cairn_module_forward(layer, x); /* whose x wants no gradient */
    if (cairn_env_rank(env) == 0) EXPECT_OK(cairn_backward(cairn_sum(y)));
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    cairn_no_grad_begin(env);
    EXPECT(cairn_module_forward(layer, x) != NULL);
    EXPECT_OK(cairn_no_grad_end(env));
    cairn_module_destroy(&layer);
    return NULL;
}

static void evaluation_and_gradients_of_weights_only_send_nothing(void **state) {
    (void)state;
    run_ranks(2, evaluate_on_one_rank, NULL);
}

/* ---- layers ---- */

enum { SIDE = 6, CLASSES = 3 };

/* Two batch norms, one of them nested. NULL on error. */
static cairn_module *make_conv_net(cairn_env *env) {
    cairn_module *block =
        cairn_sequential(env, CAIRN_MODULES(cairn_conv2d(env, 4, 6, 3, NULL), cairn_batch_norm(env, 6, 0, 0),
                                            cairn_activation(env, cairn_relu)));
    return cairn_sequential(env, CAIRN_MODULES(cairn_conv2d(env, 1, 4, 3, NULL), cairn_batch_norm(env, 4, 0, 0), block,
                                               cairn_flatten_from(env, 1),
                                               cairn_linear(env, 6 * (SIDE - 4) * (SIDE - 4), CLASSES)));
}

static char *convert_a_tree(cairn_env *env, void *ctx) {
    (void)ctx;
    cairn_module *model = make_conv_net(env);
    cairn_tensor *weight = cairn_module_get(model, "2.1.weight"), *mean = cairn_module_get(model, "2.1.running_mean");
    char before[2048], after[2048];
    int found = -1;
    cairn_module_train(model, 0);
    EXPECT(cairn_module_format(model, before, sizeof(before)) > 0);
    EXPECT_OK(ddp_convert_sync_batchnorm(model, NULL, &found));
    EXPECT(found == 2 && env->places[CAIRN__PLACE_OF_DDP].number == 1);
    EXPECT(cairn_module_get(model, "2.1.weight") == weight && cairn_module_get(model, "2.1.running_mean") == mean);
    EXPECT(!cairn_module_is_training(model));
    EXPECT(cairn_module_format(model, after, sizeof(after)) > 0);
    EXPECT(strstr(before, "  (1): BatchNorm(4, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)\n"));
    EXPECT(strstr(after, "  (1): SyncBatchNorm(4, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)\n"));
    EXPECT(strstr(after, "    (1): SyncBatchNorm(6, eps=1e-05"));
    found = -1;
    EXPECT_OK(ddp_convert_sync_batchnorm(model, cairn_env_group(env), &found)); /* once more changes nothing */
    EXPECT(found == 2 && env->places[CAIRN__PLACE_OF_DDP].number == 1);
    cairn_module *layer = cairn_batch_norm(env, 5, 0, 0), *none = cairn_linear(env, 2, 2);
    EXPECT_OK(ddp_convert_sync_batchnorm(layer, NULL, NULL)); /* the module itself; over the channel there is */
    EXPECT(env->places[CAIRN__PLACE_OF_DDP].number == 1);
    EXPECT_OK(ddp_convert_sync_batchnorm(none, NULL, &found));
    EXPECT(found == 0);
    cairn_module_destroy(&model);
    EXPECT(env->places[CAIRN__PLACE_OF_DDP].at != NULL);
    cairn_module_destroy(&layer);
    EXPECT(env->places[CAIRN__PLACE_OF_DDP].at == NULL);
    cairn_module_destroy(&none);
    return NULL;
}

static void converting_keeps_all_but_the_name_and_shares_one_channel(void **state) {
    (void)state;
    run_ranks(3, convert_a_tree, NULL);
}

static const struct amp_options *const levels[] = {
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O0, .verbosity = -1},
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1, .verbosity = -1},
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .verbosity = -1},
    &(struct amp_options){
        .struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_BF16, .verbosity = -1},
    &(struct amp_options){
        .struct_size = sizeof(struct amp_options), .opt_level = AMP_O3, .loss_scale = 16, .verbosity = -1},
};
enum { NUM_LEVELS = sizeof(levels) / sizeof(levels[0]), STEPS = 4, IMAGES = 12 };

static cairn_tensor *images(cairn_env *env, int first, int rows, int stream, int numbers) {
    static _Thread_local float values[IMAGES * SIDE * SIDE];
    float z[4];
    for (int i = 0; i < rows * numbers; i++) {
        cairn__normal4(cairn__philox(11, (uint64_t)(first * numbers + i), (uint64_t)stream), z);
        values[i] = z[0] + (float)(first + i / numbers) / 4; /* the shares' means differ */
    }
    const int64_t shape[] = {rows, 1, SIDE, SIDE}, flat[] = {rows, numbers};
    return stream == 1 ? cairn_tensor_from(env, CAIRN_F32, 4, shape, values)
                       : cairn_tensor_from(env, CAIRN_F32, 2, flat, values);
}

static char *append(cairn_env *env, struct result *all, size_t *used, const void *x, size_t nbytes) {
    if (!x || *used + nbytes > sizeof(*all)) return NULL;
    EXPECT_OK(cairn__device_download(env->device, (char *)all + *used, x, nbytes));
    *used += nbytes;
    return NULL;
}

static char *expect_equal_weights_and_statistics(cairn_env *env, cairn_module *model) {
    static _Thread_local struct result bytes;
    struct cairn_param_set *set = cairn_module_params(model);
    size_t used = 0;
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        PASS(append(env, &bytes, &used, p->data, p->n * cairn_dtype_nbytes(p->dtype)));
        PASS(append(env, &bytes, &used, p->master, p->n * sizeof(float)));
    }
    for (size_t i = 0; i < cairn_module_num_buffers(model); i++) {
        cairn_tensor *b = cairn_module_buffer(model, i, NULL);
        const size_t nbytes = cairn_tensor_numel(b) * cairn_dtype_nbytes(cairn_tensor_dtype(b));
        PASS(append(env, &bytes, &used, cairn__tensor_memory(b), nbytes));
    }
    EXPECT(used > 512);
    return expect_all_equal(env, &bytes, used);
}

struct training {
    const struct amp_options *amp;
    bool equal_shares, is_whole;
    bool last_is_idle;   /* it has no input */
    float weights[4096]; /* out: of rank 0 */
};

/* One parameter a bucket, so that buckets are on their way while layers exchange their sums. */
static char *train_conv_net(cairn_env *env, void *ctx) {
    struct training *t = ctx;
    const int p = cairn_env_size(env), rank = cairn_env_rank(env), half = IMAGES / 2;
    const int some = t->is_whole ? IMAGES : t->equal_shares ? IMAGES / p : rank == 0 ? half : half / (p - 1);
    const int first = t->equal_shares ? rank * some : rank == 0 ? 0 : half + (rank - 1) * some;
    const int rows = t->last_is_idle && rank == p - 1 ? 0 : some;
    cairn_module *model = make_conv_net(env);
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    ddp_context *net = NULL;
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 0.05;
    EXPECT_OK(ddp_convert_sync_batchnorm(model, NULL, NULL));
    EXPECT_OK(cairn_sgd_create(cairn_module_params(model), &hyper, &sgd));
    EXPECT_OK(amp_initialize(env, model, sgd, t->amp, &amp));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), ddp_options(.bucket_nbytes = 1), &net));
    cairn_tensor *x = images(env, first, rows, 1, SIDE * SIDE), *y = images(env, first, rows, 2, CLASSES);
    for (int i = 0; i < STEPS; i++) {
        cairn_zero_grad(sgd);
        EXPECT_OK(amp_backward(amp, cairn_mse_loss(ddp_forward(net, x), y), sgd));
        EXPECT_OK(cairn_step(sgd));
    }
    if (p > 1) PASS(expect_equal_weights_and_statistics(env, model));
    size_t n = 0;
    for (size_t i = 0; rank == 0 && t->amp->opt_level == AMP_O0 && i < cairn_module_params(model)->count; i++) {
        const struct cairn__param *param = cairn_module_params(model)->params[i];
        EXPECT(n + param->n <= sizeof(t->weights) / sizeof(t->weights[0]));
        EXPECT_OK(cairn__device_download(env->device, t->weights + n, param->data, param->n * sizeof(float)));
        n += param->n;
    }
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    return NULL;
}

static void ranks_stay_equal_in_training_at_every_level(void **state) {
    (void)state;
    static struct training t;
    for (int l = 0; l < NUM_LEVELS; l++) {
        t = (struct training){.amp = levels[l], .last_is_idle = l % 2 != 0};
        run_ranks(2 + l % 2, train_conv_net, &t);
    }
}

static void shares_train_as_the_whole_batch_does(void **state) {
    (void)state;
    static struct training whole, shares;
    whole = (struct training){.amp = levels[0], .equal_shares = true, .is_whole = true};
    run_ranks(1, train_conv_net, &whole);
    for (int p = 2; p <= 4; p++) {
        shares = (struct training){.amp = levels[0], .equal_shares = true};
        run_ranks(p, train_conv_net, &shares);
        for (size_t i = 0; i < sizeof(whole.weights) / sizeof(whole.weights[0]); i++) {
            if (!(fabsf(whole.weights[i] - shares.weights[i]) <= 1e-5f))
                fail_msg("%d ranks: weight %zu is %.9g, want %.9g", p, i, (double)shares.weights[i],
                         (double)whole.weights[i]);
        }
    }
}

/* ---- checkpoints ---- */

static cairn_tensor *run_layer(void *ctx, cairn_tensor *const *inputs, int count) {
    (void)count;
    return cairn_module_forward(ctx, inputs[0]);
}

static char *checkpoint_a_layer(cairn_env *env, void *ctx) {
    (void)ctx;
    enum { N = 4 * CHANNELS };
    double plain[N], again[N];
    cairn_module *layer = ddp_sync_batch_norm(env, CHANNELS, 0, 0, NULL);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(4, CHANNELS));
    cairn_tensor *dy = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(4, CHANNELS));
    EXPECT_OK(cairn_tensor_require_grad(x));
    EXPECT_OK(cairn_backward_with(cairn_module_forward(layer, x), cairn_backward_options(.grad = dy)));
    EXPECT_OK(cairn_tensor_read_grad(x, plain, N));
    cairn_tensor_clear_grad(x);
    cairn_tensor *y = cairn_checkpoint(run_layer, layer, &x, 1);
    EXPECT_OK(cairn_backward_with(y, cairn_backward_options(.grad = dy)));
    EXPECT_OK(cairn_tensor_read_grad(x, again, N));
    EXPECT(memcmp(plain, again, sizeof(plain)) == 0);
    cairn_module_destroy(&layer);
    return NULL;
}

static void a_checkpoint_exchanges_once_more_and_gives_the_same_bits(void **state) {
    (void)state;
    run_ranks(3, checkpoint_a_layer, NULL);
}

/* ---- blocks of ranks ---- */

static char *make_blocks(cairn_env *env, void *ctx) {
    (void)ctx;
    cairn_group *all = cairn_env_group(env), *block = NULL;
    const int rank = cairn_env_rank(env);
    for (int size = 0; size <= 4; size++) {
        const int want = size ? size : 4;
        if (size == 3) continue;
        EXPECT_OK(ddp_create_syncbn_process_group(all, size, &block));
        EXPECT(cairn_group_size(block) == want && cairn_group_rank(block) == rank % want);
        EXPECT(cairn_group_env_rank(block, 0) == rank / want * want);
        cairn_module *layer = ddp_sync_batch_norm(env, 2, 0, 0, block);
        cairn_group_destroy(&block); /* a layer does not need it */
        EXPECT(cairn_module_forward(layer, cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(2, 2))) != NULL);
        cairn_module_destroy(&layer);
    }
    static const int bad[] = {3, -1, 5};
    for (int i = 0; i < 3; i++) {
        EXPECT(ddp_create_syncbn_process_group(all, bad[i], &block) == CAIRN_EINVAL && !block);
        EXPECT(strstr(cairn_last_error(), "but there are 4 ranks; it must divide their number, or be 0"));
    }
    EXPECT(ddp_create_syncbn_process_group(all, rank == 3 ? 4 : 2, &block) == CAIRN_EPEER && !block);
    EXPECT(strstr(cairn_last_error(), "rank 0 passes a size of 2, but rank 3 one of 4; pass the same on every rank"));
    EXPECT(ddp_create_syncbn_process_group(NULL, 2, &block) == CAIRN_EINVAL);
    EXPECT(ddp_create_syncbn_process_group(all, 2, NULL) == CAIRN_EINVAL);
    return NULL;
}

static void every_rank_gets_its_own_block(void **state) {
    (void)state;
    run_ranks(4, make_blocks, NULL);
}

/* ---- what goes wrong ---- */

static char *refuse_arguments(cairn_env *env, void *ctx) {
    (void)ctx;
    const int rank = cairn_env_rank(env);
    cairn_group *half = NULL;
    EXPECT(ddp_sync_batch_norm(NULL, 3, 0, 0, NULL) == NULL);
    EXPECT(strstr(cairn_last_error(), "env is NULL"));
    EXPECT(ddp_sync_batch_norm(env, 0, 0, 0, NULL) == NULL);
    EXPECT(strstr(cairn_last_error(), "batch_norm: size 0; it must be positive"));
    EXPECT(ddp_sync_batch_norm(env, rank == 1 ? 0 : 3, 0, 0, NULL) == NULL);
    EXPECT(strstr(cairn_last_error(), rank == 1 ? "size 0" : "rank 1 failed, so no layer is converted: batch_norm"));
    EXPECT(ddp_sync_batch_norm(env, 3 + rank, 0, 0, NULL) == NULL);
    EXPECT(strstr(cairn_last_error(), "'running_mean' has 3 channels on rank 0 and 4 on rank 1"));
    EXPECT(ddp_convert_sync_batchnorm(NULL, NULL, NULL) == CAIRN_EINVAL);
    EXPECT(ddp_sync_batch_norm_forward(NULL, NULL, NULL, NULL, NULL, 1, 0, 0, NULL) == NULL);
    EXPECT(strstr(cairn_last_error(), "the channel is NULL; make one with cairn_group_new"));

    cairn_module *model = rank == 1 ? cairn_batch_norm(env, 4, 0, 0) : make_conv_net(env);
    EXPECT(ddp_convert_sync_batchnorm(model, NULL, NULL) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "rank 0 has 2 batch normalisations, rank 1 has 1"));
    cairn_module_destroy(&model);

    model = make_conv_net(env);
    if (rank == 1) fail_in = 1;
    EXPECT(ddp_convert_sync_batchnorm(model, NULL, NULL) == (rank == 1 ? CAIRN_ENOMEM : CAIRN_EPEER));
    EXPECT(env->places[CAIRN__PLACE_OF_DDP].at == NULL);
    EXPECT_OK(ddp_convert_sync_batchnorm(model, NULL, NULL)); /* nothing was lost */
    EXPECT_OK(ddp_create_syncbn_process_group(cairn_env_group(env), 2, &half));
    EXPECT(ddp_convert_sync_batchnorm(model, half, NULL) == (cairn_group_size(half) == 2 ? CAIRN_ESTATE : CAIRN_OK));
    EXPECT(strstr(cairn_last_error(), "the layer of '1.running_mean' is synchronised over 4 ranks already"));
    cairn_module_destroy(&model);
    cairn_group_destroy(&half);
    return NULL;
}

static void wrong_group_sizes_fail_on_every_rank(void **state) {
    (void)state;
    run_ranks(4, refuse_arguments, NULL);
}

static char *normalise_one_value(cairn_env *env, void *ctx) {
    (void)ctx;
    const int64_t shape[] = {cairn_env_rank(env) == 1, 2};
    cairn_module *layer = ddp_sync_batch_norm(env, 2, 0, 0, NULL);
    EXPECT(cairn_module_forward(layer, cairn_zeros(env, CAIRN_F32, 2, shape)) == NULL);
    EXPECT(strstr(cairn_last_error(), "training needs more than one value for each channel, but the 3 ranks have 1"));
    EXPECT(cairn_module_forward(layer, cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(1, 2))) != NULL); /* they have 3 */
    float var[2];
    EXPECT_OK(cairn_tensor_read(cairn_module_get(layer, "running_var"), var, 2));
    EXPECT(cairn_module_forward(layer, cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(0, 2))) != NULL); /* they have none */
    float kept[2];
    EXPECT_OK(cairn_tensor_read(cairn_module_get(layer, "running_var"), kept, 2));
    EXPECT(memcmp(var, kept, sizeof(var)) == 0);
    cairn_module_destroy(&layer);
    return NULL;
}

static void one_value_of_all_ranks_is_an_error_and_none_changes_nothing(void **state) {
    (void)state;
    run_ranks(3, normalise_one_value, NULL);
}

static char *normalise_other_channels(cairn_env *env, void *ctx) {
    (void)ctx;
    cairn_group *channel = NULL;
    const int64_t shape[] = {4, 2 + cairn_env_rank(env)};
    EXPECT_OK(cairn_group_new(cairn_env_group(env), NULL, 0, NULL, &channel));
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, 2, shape);
    EXPECT(ddp_sync_batch_norm_forward(x, NULL, NULL, NULL, NULL, 1, 0.1, 1e-5, channel) == NULL);
    EXPECT(strstr(cairn_last_error(), "rank 0 issues 5 f64, rank 1 issues 7 f64"));
    cairn_group_destroy(&channel);
    return NULL;
}

static void inputs_of_other_channels_fail_on_every_rank(void **state) {
    (void)state;
    NOT_ON_A_GPU("collectives are queued, and fail later");
    run_ranks(2, normalise_other_channels, NULL);
}

struct leaving {
    bool in_backward;
};

/* Rank 1 leaves where the others exchange. */
static char *leave_early(cairn_env *env, void *ctx) {
    const struct leaving *leaving = ctx;
    const bool leaves = cairn_env_rank(env) == 1;
    cairn_module *layer = ddp_sync_batch_norm(env, 2, 0, 0, NULL);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(4, 2));
    EXPECT_OK(cairn_tensor_require_grad(x));
    cairn_tensor *y = NULL;
    if (leaving->in_backward || !leaves) y = cairn_module_forward(layer, x);
    if (!leaves) {
        EXPECT((y != NULL) == leaving->in_backward);
        if (leaving->in_backward) EXPECT(cairn_backward(cairn_sum(y)) == CAIRN_EPEER);
        EXPECT(strstr(cairn_last_error(), leaving->in_backward ? "waited in all-reduce" : "waited in all-gather"));
        EXPECT(cairn_module_forward(layer, x) == NULL); /* and so it stays */
        EXPECT(strstr(cairn_last_error(), "the group is dead"));
    }
    cairn_module_destroy(&layer);
    return NULL;
}

static void a_rank_that_leaves_fails_the_others(void **state) {
    (void)state;
    NOT_ON_A_GPU("collectives are queued, and fail later");
    for (int in_backward = 0; in_backward <= 1; in_backward++) {
        struct leaving leaving = {.in_backward = in_backward != 0};
        run_ranks(3, leave_early, &leaving);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_of_any_size_equal_one_big_batch),
        cmocka_unit_test(shares_of_many_channels_equal_one_big_batch),
        cmocka_unit_test(groups_of_two_normalise_independently),
        cmocka_unit_test(exact_shares_give_the_bits_of_one_big_batch),
        cmocka_unit_test(running_statistics_have_the_same_bits_on_every_rank),
        cmocka_unit_test(a_group_of_one_rank_is_plain_batch_norm_to_the_bit),
        cmocka_unit_test(evaluation_and_gradients_of_weights_only_send_nothing),
        cmocka_unit_test(converting_keeps_all_but_the_name_and_shares_one_channel),
        cmocka_unit_test(ranks_stay_equal_in_training_at_every_level),
        cmocka_unit_test(shares_train_as_the_whole_batch_does),
        cmocka_unit_test(a_checkpoint_exchanges_once_more_and_gives_the_same_bits),
        cmocka_unit_test(every_rank_gets_its_own_block),
        cmocka_unit_test(wrong_group_sizes_fail_on_every_rank),
        cmocka_unit_test(one_value_of_all_ranks_is_an_error_and_none_changes_nothing),
        cmocka_unit_test(inputs_of_other_channels_fail_on_every_rank),
        cmocka_unit_test(a_rank_that_leaves_fails_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
