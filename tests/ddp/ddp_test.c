/* Several ranks train one model: all ranks have equal bits, the result is that of the whole batch, and all ranks make
 * the same overflow decision. */
#include <math.h>

#include "../mlp.h"
#include "../plant.h"
#include "../ranks.h"
#include "comm/group.h"
#include "core/alloc.h"
#include "core/philox.h"
#include "core/trace.h"
#include "optim/optim.h"

static const struct amp_options *const every_level[] = {
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O0, .verbosity = -1},
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1, .verbosity = -1},
    &(struct amp_options){
        .struct_size = sizeof(struct amp_options), .opt_level = AMP_O1, .half_type = CAIRN_BF16, .verbosity = -1},
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .verbosity = -1},
    &(struct amp_options){
        .struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_BF16, .verbosity = -1},
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O3, .verbosity = -1},
    &(struct amp_options){
        .struct_size = sizeof(struct amp_options), .opt_level = AMP_O3, .half_type = CAIRN_BF16, .verbosity = -1},
};
enum { NUM_LEVELS = sizeof(every_level) / sizeof(every_level[0]) };

struct training {
    cairn_module *model;
    struct cairn_param_set *set;
    cairn_optimizer *optimizer;
    amp_context *amp;
    ddp_context *net;
    struct plant plant;
};

static char *begin_in(cairn_group *group, struct training *t, cairn_env *env, cairn_module *model,
                      const struct amp_options *amp, const struct ddp_options *ddp, double lr, double momentum) {
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = lr;
    hyper.momentum = momentum;
    EXPECT(model != NULL);
    t->model = model;
    t->set = cairn_module_params(model);
    EXPECT_OK(cairn_sgd_create(t->set, &hyper, &t->optimizer));
    EXPECT_OK(amp_initialize(env, model, t->optimizer, amp, &t->amp));
    EXPECT_OK(ddp_create(model, group, ddp, &t->net));
    plant_install(&t->plant, t->set);
    return NULL;
}

static char *begin(struct training *t, cairn_env *env, cairn_module *model, const struct amp_options *amp,
                   const struct ddp_options *ddp, double lr, double momentum) {
    return begin_in(cairn_env_group(env), t, env, model, amp, ddp, lr, momentum);
}

static char *step(struct training *t, cairn_tensor *x, cairn_tensor *y) {
    cairn_zero_grad(t->optimizer);
    cairn_tensor *loss = cairn_mse_loss(ddp_forward(t->net, x), y);
    EXPECT_OK(amp_backward(t->amp, loss, t->optimizer));
    EXPECT_OK(cairn_step(t->optimizer));
    return NULL;
}

static void end(struct training *t) {
    plant_remove(&t->plant);
    ddp_destroy(&t->net);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
}

/* Every rank holds the same bits of weights and masters, and half weights with a master are its rounding. */
static char *expect_equal_bits(struct training *t, cairn_env *env) {
    enum { MOST = 4096 };
    static _Thread_local int32_t mine[MOST], all[8 * MOST];
    int p = cairn_env_size(env);
    for (size_t i = 0; i < t->set->count; i++) {
        const struct cairn__param *param = t->set->params[i];
        size_t half_words = (param->n * cairn_dtype_nbytes(param->dtype) + 3) / 4;
        size_t words = half_words + (param->master ? param->n : 0);
        EXPECT(words <= MOST && p <= 8);
        memset(mine, 0, sizeof(mine));
        memcpy(mine, param->data, param->n * cairn_dtype_nbytes(param->dtype));
        if (param->master) memcpy(mine + half_words, param->master, param->n * sizeof(float));
        EXPECT_OK(cairn__group_exchange(cairn_env_group(env), all, mine, words * sizeof(mine[0])));
        for (int r = 0; r < p; r++) EXPECT(memcmp(all + (size_t)r * words, mine, words * 4) == 0);
        for (size_t e = 0; param->master && e < param->n; e++) {
            uint16_t want;
            cairn__dtype(param->dtype)->from_f32(&want, param->master[e]);
            EXPECT(((uint16_t *)param->data)[e] == want);
        }
    }
    return NULL;
}

static char *train_from_different_seeds(cairn_env *env, void *ctx) {
    const struct amp_options *amp = ctx;
    struct training t;
    cairn_manual_seed(env, 100 + (uint64_t)cairn_env_rank(env));
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 24));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    PASS(begin(&t, env, make_mlp(env, 24, 17, 5), amp, ddp_options(.bucket_nbytes = 64), 0.05, 0.9));
    EXPECT(ddp_bucket_count(t.net) >= 2);
    PASS(expect_equal_bits(&t, env));
    for (int i = 0; i < 20; i++) {
        PASS(step(&t, x, y));
        PASS(expect_equal_bits(&t, env));
    }
    EXPECT(cairn_optimizer_steps(t.optimizer) >= 10);
    end(&t);
    return NULL;
}

static void ranks_from_different_seeds_hold_equal_bits_after_every_step(void **state) {
    (void)state;
    for (int l = 0; l < NUM_LEVELS; l++) {
        run_ranks(2, train_from_different_seeds, (void *)every_level[l]);
        run_ranks(5, train_from_different_seeds, (void *)every_level[l]);
    }
}

/* ---- p shares = the whole batch ---- */

enum { IN = 8, OUT = 4, BATCH = 8, EXACT_STEPS = 3 };

struct whole {
    float weight[OUT * IN], bias[OUT];
};

/* Small integers and halves: with lr 1/4 and BATCH * OUT = 32 every value of three steps has under 24 bits. */
static float exact_number(int stream, int i) {
    return (float)(cairn__philox(5, (uint64_t)i, (uint64_t)stream).word[0] % 5) - 2.0f;
}

static char *train_share_of_exact_batch_in(cairn_group *group, cairn_env *env, struct whole *result) {
    const int rank = cairn_group_rank(group), rows = BATCH / cairn_group_size(group);
    float x[BATCH * IN], y[BATCH * OUT];
    for (int i = 0; i < BATCH * IN; i++) x[i] = exact_number(1, i);
    for (int i = 0; i < BATCH * OUT; i++) y[i] = exact_number(2, i);
    cairn_tensor *xs = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, IN), x + rank * rows * IN);
    cairn_tensor *ys = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, OUT), y + rank * rows * OUT);
    cairn_module *model = cairn_linear(env, IN, OUT);
    struct cairn_param_set *set = cairn_module_params(model);
    for (int i = 0; i < OUT * IN; i++) ((float *)set->params[0]->data)[i] = exact_number(3, i);
    for (int i = 0; i < OUT; i++) ((float *)set->params[1]->data)[i] = exact_number(4, i);
    struct training t;
    PASS(begin_in(group, &t, env, model, every_level[0], NULL, 0.25, 0));
    for (int i = 0; i < EXACT_STEPS; i++) PASS(step(&t, xs, ys));
    if (rank == 0) {
        memcpy(result->weight, set->params[0]->data, sizeof(result->weight));
        memcpy(result->bias, set->params[1]->data, sizeof(result->bias));
    }
    end(&t);
    return NULL;
}

static char *train_share_of_exact_batch(cairn_env *env, void *ctx) {
    return train_share_of_exact_batch_in(cairn_env_group(env), env, ctx);
}

/* Odd and even ranks: two models at one time, each over a group of its own. */
static char *train_two_models(cairn_env *env, void *ctx) {
    struct whole *results = ctx;
    const int color = cairn_env_rank(env) % 2;
    cairn_group *half = NULL;
    EXPECT_OK(cairn_group_split(cairn_env_group(env), color, 0, NULL, &half));
    char *failure = train_share_of_exact_batch_in(half, env, &results[color]);
    cairn_group_destroy(&half);
    return failure;
}

/* The same training in double, where it is exact by a wide margin: shows that the data is what it claims to be. */
static void exact_model(double *weight, double *bias) {
    for (int i = 0; i < OUT * IN; i++) weight[i] = exact_number(3, i);
    for (int i = 0; i < OUT; i++) bias[i] = exact_number(4, i);
    for (int step_ = 0; step_ < EXACT_STEPS; step_++) {
        double dw[OUT * IN] = {0}, db[OUT] = {0};
        for (int b = 0; b < BATCH; b++) {
            for (int o = 0; o < OUT; o++) {
                double out = bias[o];
                for (int i = 0; i < IN; i++) out += weight[o * IN + i] * exact_number(1, b * IN + i);
                double dy = 2.0 / (BATCH * OUT) * (out - exact_number(2, b * OUT + o));
                for (int i = 0; i < IN; i++) dw[o * IN + i] += dy * exact_number(1, b * IN + i);
                db[o] += dy;
            }
        }
        for (int i = 0; i < OUT * IN; i++) weight[i] -= 0.25 * dw[i];
        for (int i = 0; i < OUT; i++) bias[i] -= 0.25 * db[i];
    }
}

static void expect_exact(const struct whole *got) {
    double weight[OUT * IN], bias[OUT];
    exact_model(weight, bias);
    for (int i = 0; i < OUT * IN; i++) assert_true((double)got->weight[i] == weight[i]);
    for (int i = 0; i < OUT; i++) assert_true((double)got->bias[i] == bias[i]);
}

static void shares_equal_the_whole_batch_bitwise_on_exact_data(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 4, 8};
    for (int s = 0; s < 4; s++) {
        struct whole got = {{0}, {0}};
        run_ranks(sizes[s], train_share_of_exact_batch, &got);
        expect_exact(&got);
    }
}

static void two_models_train_side_by_side_over_groups_of_some_ranks(void **state) {
    (void)state;
    struct whole got[2] = {{{0}, {0}}, {{0}, {0}}};
    run_ranks(4, train_two_models, got);
    expect_exact(&got[0]);
    expect_exact(&got[1]);
}

enum { N = 64, D_IN = 1024, D_OUT = 16 };

static char *train_share_of_random_batch(cairn_env *env, void *ctx) {
    float *weight = ctx;
    static _Thread_local float x[N * D_IN], y[N * D_OUT];
    int rows = N / cairn_env_size(env), rank = cairn_env_rank(env);
    for (uint64_t i = 0; i < N * D_IN / 4; i++) cairn__normal4(cairn__philox(9, i, 1), x + 4 * i);
    for (uint64_t i = 0; i < N * D_OUT / 4; i++) cairn__normal4(cairn__philox(9, i, 2), y + 4 * i);
    cairn_tensor *xs = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, D_IN), x + rank * rows * D_IN);
    cairn_tensor *ys = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, D_OUT), y + rank * rows * D_OUT);
    struct training t; /* rank 0 draws the same first weights whatever the size */
    PASS(begin(&t, env, cairn_linear(env, D_IN, D_OUT), every_level[0], NULL, 1e-3, 0));
    for (int i = 0; i < 500; i++) PASS(step(&t, xs, ys));
    if (rank == 0) memcpy(weight, t.set->params[0]->data, D_IN * D_OUT * sizeof(float));
    end(&t);
    return NULL;
}

static void two_halves_stay_within_1e_6_of_the_whole_after_500_steps(void **state) {
    (void)state;
    static float one[D_IN * D_OUT], two[D_IN * D_OUT];
    run_ranks(1, train_share_of_random_batch, one);
    run_ranks(2, train_share_of_random_batch, two);
    double difference = 0, norm = 0;
    for (int i = 0; i < D_IN * D_OUT; i++) {
        difference += ((double)one[i] - two[i]) * ((double)one[i] - two[i]);
        norm += (double)one[i] * one[i];
    }
    if (!(sqrt(difference / norm) <= 1e-6)) fail_msg("differs by %g", sqrt(difference / norm));
}

/* ---- overflow ---- */

static char report[4096];
static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_log(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    if (level > CAIRN_LOG_NOTICE || !strstr(message, "overflow")) return;
    pthread_mutex_lock(&report_lock);
    size_t used = strlen(report);
    snprintf(report + used, sizeof(report) - used, "%s\n", message);
    pthread_mutex_unlock(&report_lock);
}

struct snapshot {
    char bytes[16384];
    size_t nbytes;
};

/* Weights, masters and momentum. */
static void take(struct snapshot *s, const struct training *t, float *const *momentum) {
    s->nbytes = 0;
    for (size_t i = 0; i < t->set->count; i++) {
        const struct cairn__param *p = t->set->params[i];
        const void *parts[] = {p->data, p->master, momentum[i]};
        const size_t sizes[] = {p->n * cairn_dtype_nbytes(p->dtype), p->master ? p->n * 4 : 0, p->n * 4};
        for (int k = 0; k < 3; k++) {
            if (sizes[k]) memcpy(s->bytes + s->nbytes, parts[k], sizes[k]);
            s->nbytes += sizes[k];
        }
    }
}

struct poison {
    const struct amp_options *amp;
    int rank, target;
    float value;
};

static char *train_with_one_poisoned_gradient(cairn_env *env, void *ctx) {
    static _Thread_local struct snapshot before, after;
    const struct poison *poison = ctx;
    struct training t;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 24));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    PASS(begin(&t, env, make_mlp(env, 24, 17, 5), poison->amp, ddp_options(.bucket_nbytes = 512), 0.05, 0.9));
    double scale = amp_next_scale(t.amp);
    for (int i = 0; i < 6; i++) {
        float *momentum[4];
        for (int k = 0; k < 4; k++) momentum[k] = t.optimizer->arrays.moments[k].array[0];
        bool poisoned = i == 3;
        t.plant.target = poisoned && cairn_env_rank(env) == poison->rank ? poison->target : -1;
        t.plant.value = poison->value;
        take(&before, &t, momentum);
        PASS(step(&t, x, y));
        take(&after, &t, momentum);
        EXPECT(cairn_optimizer_step_skipped(t.optimizer) == poisoned);
        EXPECT((memcmp(&before, &after, sizeof(before)) == 0) == poisoned);
        PASS(expect_equal_bits(&t, env));
    }
    bool dynamic = poison->amp->max_loss_scale != 0;
    EXPECT(amp_next_scale(t.amp) == (dynamic ? scale / 2 : scale));
    EXPECT(cairn_optimizer_skipped(t.optimizer) == 1);
    end(&t);
    return NULL;
}

static void inf_on_one_rank_skips_the_step_on_every_rank(void **state) {
    (void)state;
    static const struct amp_options cases[] = {
        {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1, .max_loss_scale = 1024, .verbosity = -1},
        {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .max_loss_scale = 1024, .verbosity = -1},
        {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_BF16, .verbosity = -1},
        {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .loss_scale = 128, .verbosity = -1},
        {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O3, .loss_scale = 128, .verbosity = -1},
        {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O0, .skip_nonfinite = CAIRN_ON, .verbosity = -1},
    };
    static const char *const names[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
    cairn_set_log(keep_log, NULL);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        for (int target = 0; target < 4; target++) {
            struct poison poison = {.amp = &cases[c], .rank = target % 3, .target = target, .value = INFINITY};
            report[0] = '\0';
            run_ranks(3, train_with_one_poisoned_gradient, &poison);
            /* threads share one log: every rank's report is in it, and each names this parameter alone */
            assert_non_null(strstr(report, names[target]));
            for (int other = 0; other < 4; other++) {
                if (other != target) assert_null(strstr(report, names[other]));
            }
        }
    }
    cairn_set_log(NULL, NULL);
}

static char *average_gradients_of_40000(cairn_env *env, void *ctx) {
    (void)ctx;
    struct training t;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 24));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    const struct amp_options *amp = amp_options(.opt_level = AMP_O2, .verbosity = -1);
    PASS(begin(&t, env, make_mlp(env, 24, 17, 5), amp, NULL, 1e-6, 0));
    t.plant.target = -2;
    t.plant.all = true;
    t.plant.value = 40000;
    for (int i = 0; i < 3; i++) {
        PASS(step(&t, x, y));
        EXPECT(!cairn_optimizer_step_skipped(t.optimizer));
        for (size_t k = 0; k < t.set->count; k++) {
            const struct cairn__param *p = t.set->params[k];
            for (size_t e = 0; e < p->n; e++)
                EXPECT(((uint16_t *)cairn__grad_memory(p->gradient))[e] == 0x78e2); /* 40000 in f16 */
        }
    }
    end(&t);
    return NULL;
}

static void four_gradients_of_40000_average_to_40000_and_skip_nothing(void **state) {
    (void)state;
    run_ranks(4, average_gradients_of_40000, NULL);
}

/* ---- disagreement and misuse ---- */

static char *create_with_another_shape(cairn_env *env, void *ctx) {
    const char *want = ctx;
    int odd = cairn_env_rank(env) == 1;
    cairn_module *model = make_mlp(env, 24, odd ? 18 : 17, 5);
    ddp_context *net = NULL;
    EXPECT(ddp_create(model, cairn_env_group(env), NULL, &net) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), want) != NULL);
    EXPECT(net == NULL);
    cairn_module_destroy(&model);
    return NULL;
}

static void different_shapes_fail_on_every_rank_with_the_name(void **state) {
    (void)state;
    run_ranks(3, create_with_another_shape,
              "parameter 0 is '0.weight' [17, 24] f32 on rank 0 but '0.weight' [18, 24] f32 on rank 1");
}

struct disagreement {
    const struct amp_options *rank_1, *others;
    const char *want;
};

static char *create_with_other_precision(cairn_env *env, void *ctx) {
    const struct disagreement *d = ctx;
    cairn_module *model = make_mlp(env, 24, 17, 5);
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    ddp_context *net = NULL;
    EXPECT_OK(cairn_sgd_create(cairn_module_params(model), NULL, &sgd));
    EXPECT_OK(amp_initialize(env, model, sgd, cairn_env_rank(env) == 1 ? d->rank_1 : d->others, &amp));
    EXPECT(ddp_create(model, cairn_env_group(env), NULL, &net) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), d->want) != NULL);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    return NULL;
}

static void different_types_fail_on_every_rank(void **state) {
    (void)state;
    struct disagreement d = {every_level[3], every_level[0], "'0.weight' [17, 24] f16 with master on rank 1"};
    run_ranks(2, create_with_other_precision, &d);
}

static void different_settings_of_amp_fail_on_every_rank(void **state) {
    (void)state;
    struct disagreement d = {
        amp_options(.loss_scale = 128, .verbosity = -1), amp_options(.loss_scale = 1024, .verbosity = -1),
        "rank 0 runs with O1 f16, loss scale 1024, skipping, casting ops but rank 1 with O1 f16, loss scale 128"};
    run_ranks(3, create_with_other_precision, &d);
}

static char *create_with_another_count(cairn_env *env, void *ctx) {
    cairn_module *model = NULL;
    ddp_context *net = NULL;
    int64_t shape[] = {8, 8};
    EXPECT_OK(cairn__module_create(env, &mlp_kind, 0, &model));
    EXPECT_OK(cairn__module_add_param(model, "weight", 2, shape, false, NULL));
    if (cairn_env_rank(env) == 0) EXPECT_OK(cairn__module_add_param(model, "bias", 1, shape, false, NULL));
    for (size_t i = 0; i < cairn_module_params(model)->count; i++) {
        cairn__param_init_uniform(cairn_module_params(model)->params[i], 1);
    }
    EXPECT(ddp_create(model, cairn_env_group(env), NULL, &net) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), ctx) != NULL);
    cairn_module_destroy(&model);
    return NULL;
}

static void different_counts_fail_on_every_rank(void **state) {
    (void)state;
    run_ranks(2, create_with_another_count, "parameter 1 is 'bias' [8] f32 on rank 0 but missing on rank 1");
}

static cairn_module *with_buffer(cairn_env *env, int64_t size) {
    cairn_module *model = make_mlp(env, 4, 3, 2);
    cairn_tensor *b = cairn_module_add_buffer(model, "mean", CAIRN_F32, CAIRN_SHAPE(size));
    const float mine = (float)cairn_env_rank(env) + 2;
    return b && cairn_init_constant(b, mine) == CAIRN_OK ? model : NULL;
}

static char *create_with_buffers(cairn_env *env, void *ctx) {
    (void)ctx;
    cairn_module *model = with_buffer(env, 3), *parent = make_mlp(env, 4, 3, 2);
    ddp_context *net = NULL;
    float mean[3];
    EXPECT(cairn_module_add_child(parent, "child", model) == model);
    EXPECT(ddp_create(model, cairn_env_group(env), NULL, &net) == CAIRN_ESTATE);
    EXPECT_OK(ddp_create(parent, cairn_env_group(env), NULL, &net));
    EXPECT_OK(cairn_tensor_read(cairn_module_get(parent, "child.mean"), mean, 3));
    EXPECT(mean[0] == 2 && mean[2] == 2);
    ddp_destroy(&net);
    cairn_module_destroy(&parent);
    return NULL;
}

static void buffers_of_rank_0_go_to_all(void **state) {
    (void)state;
    run_ranks(3, create_with_buffers, NULL);
}

/* What a rank of O2 broadcasts is rounded. */
static char *create_with_half_buffers(cairn_env *env, void *ctx) {
    const cairn_dtype half = *(const cairn_dtype *)ctx;
    cairn_module *model = with_buffer(env, 3);
    amp_context *amp = NULL;
    ddp_context *net = NULL;
    float mean[3];
    EXPECT_OK(
        amp_initialize(env, model, NULL, amp_options(.opt_level = AMP_O2, .half_type = half, .verbosity = -1), &amp));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    cairn_tensor *b = cairn_module_get(model, "mean");
    EXPECT(cairn_tensor_dtype(b) == half);
    EXPECT_OK(cairn_tensor_read(b, mean, 3));
    EXPECT(mean[0] == 2 && mean[2] == 2);
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_module_destroy(&model);
    return NULL;
}

static void half_buffers_of_rank_0_go_to_all(void **state) {
    (void)state;
    cairn_dtype halves[] = {CAIRN_F16, CAIRN_BF16};
    for (int i = 0; i < 2; i++) run_ranks(3, create_with_half_buffers, &halves[i]);
}

static char *create_with_another_buffer(cairn_env *env, void *ctx) {
    cairn_module *model = with_buffer(env, 3 + cairn_env_rank(env));
    ddp_context *net = NULL;
    EXPECT(ddp_create(model, cairn_env_group(env), NULL, &net) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), ctx) != NULL);
    cairn_module_destroy(&model);
    return NULL;
}

static void different_buffers_fail_on_every_rank(void **state) {
    (void)state;
    run_ranks(2, create_with_another_buffer,
              "'mean' [3] f32, a buffer on rank 0 but 'mean' [4] f32, a buffer on rank 1");
}

static char *create_in_the_wrong_order(cairn_env *env, void *ctx) {
    (void)ctx;
    cairn_module *model = cairn_linear(env, 8, 8);
    cairn_optimizer *sgd = NULL;
    ddp_context *net = NULL, *second = NULL;
    amp_context *amp = NULL;
    EXPECT_OK(cairn_sgd_create(cairn_module_params(model), NULL, &sgd));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    EXPECT(amp_initialize(env, model, sgd, NULL, &amp) == CAIRN_ESTATE);
    EXPECT(strstr(cairn_last_error(), "must be called before ddp_create") != NULL);
    EXPECT(ddp_create(model, cairn_env_group(env), NULL, &second) == CAIRN_ESTATE);
    ddp_destroy(&net);
    EXPECT_OK(amp_initialize(env, model, sgd, amp_options(.verbosity = -1), &amp));
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    return NULL;
}

static void amp_after_ddp_is_refused(void **state) {
    (void)state;
    run_ranks(2, create_in_the_wrong_order, NULL);
}

/* ---- buckets ---- */

struct launches {
    int order[64], count;
};

static void watch(void *cookie, const struct cairn__event *event) {
    struct launches *l = cookie;
    if (strcmp(event->what, "bucket_launch") == 0 && l->count < 64) l->order[l->count++] = (int)event->index;
}

static char *train_with_small_buckets(cairn_env *env, void *ctx) {
    struct training t;
    (void)ctx;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 24));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    PASS(begin(&t, env, make_mlp(env, 24, 17, 5), every_level[0], ddp_options(.bucket_nbytes = 1), 0.05, 0));
    EXPECT(ddp_bucket_count(t.net) == 4);
    for (int i = 0; i < 3; i++) PASS(step(&t, x, y));
    end(&t);
    return NULL;
}

static void buckets_leave_in_reverse_order_of_registration(void **state) {
    (void)state;
    struct launches launches = {.count = 0};
    cairn__trace_set_sink(watch, &launches);
    run_ranks(1, train_with_small_buckets, NULL);
    cairn__trace_set_sink(NULL, NULL);
    assert_int_equal(launches.count, 12);
    for (int i = 0; i < 12; i++) assert_int_equal(launches.order[i], i % 4);
}

struct overlap {
    struct launches launches;
    int sent_before_last;
};

static char *send_during_backward(cairn_env *env, void *ctx) {
    struct overlap *o = ctx;
    struct training t;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 24));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    PASS(begin(&t, env, make_mlp(env, 24, 17, 5), every_level[0], ddp_options(.bucket_nbytes = 1), 0.05, 0));
    t.plant.watched = &o->launches.count;
    PASS(step(&t, x, y));
    o->sent_before_last = t.plant.seen_before_first; /* parameter 0's gradient is the last of a backward */
    end(&t);
    return NULL;
}

static void buckets_leave_before_backward_is_over(void **state) {
    (void)state;
    struct overlap overlap = {.sent_before_last = -1};
    cairn__trace_set_sink(watch, &overlap.launches);
    run_ranks(1, send_during_backward, &overlap);
    cairn__trace_set_sink(NULL, NULL);
    assert_int_equal(overlap.launches.count, 4);
    assert_in_range(overlap.sent_before_last, 2, 3);
}

struct wire_case {
    const struct amp_options *amp;
    struct ddp_options ddp;
    float weights[2][17 * 24];
};

static char *train_over_a_wire(cairn_env *env, void *ctx) {
    struct wire_case *c = ctx;
    struct training t;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 24));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    PASS(begin(&t, env, make_mlp(env, 24, 17, 5), c->amp, &c->ddp, 0.05, 0));
    for (int i = 0; i < 10; i++) PASS(step(&t, x, y));
    PASS(expect_equal_bits(&t, env));
    memcpy(c->weights[cairn_env_rank(env)], cairn_param_master(t.set, 0), sizeof(c->weights[0]));
    end(&t);
    return NULL;
}

static void gradients_can_travel_in_another_type(void **state) {
    (void)state;
    static struct wire_case plain, compressed, widened, half;
    plain.amp = compressed.amp = every_level[0];
    half.amp = widened.amp = every_level[3];
    plain.ddp = half.ddp = *ddp_options(.bucket_nbytes = 512);
    compressed.ddp = *ddp_options(.bucket_nbytes = 512, .wire = CAIRN_BF16);
    widened.ddp = *ddp_options(.bucket_nbytes = 512, .wire = CAIRN_F32);
    run_ranks(2, train_over_a_wire, &plain);
    run_ranks(2, train_over_a_wire, &compressed);
    run_ranks(2, train_over_a_wire, &half);
    run_ranks(2, train_over_a_wire, &widened);
    assert_memory_not_equal(plain.weights[0], compressed.weights[0], sizeof(plain.weights[0]));
    for (int i = 0; i < 17 * 24; i++) assert_true(fabsf(plain.weights[0][i] - compressed.weights[0][i]) < 0.01f);
    /* half gradients averaged as f32 and rounded once are what shm does with halves anyway */
    assert_memory_equal(half.weights[0], widened.weights[0], sizeof(half.weights[0]));
}

static char *count_allocations(cairn_env *env, void *ctx) {
    struct training t;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 24));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    PASS(begin(&t, env, make_mlp(env, 24, 17, 5), ctx, ddp_options(.bucket_nbytes = 512), 0.05, 0.9));
    for (int i = 0; i < 6; i++) PASS(step(&t, x, y));
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    uint64_t before = cairn__alloc_counters().allocations;
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    for (int i = 0; i < 10; i++) PASS(step(&t, x, y));
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    EXPECT(cairn__alloc_counters().allocations == before);
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    end(&t);
    return NULL;
}

static void steady_state_step_allocates_nothing_on_two_ranks(void **state) {
    (void)state;
    for (int l = 0; l < NUM_LEVELS; l++) run_ranks(2, count_allocations, (void *)every_level[l]);
}

/* Two backwards of half the loss before one step: each reduces what it produced, and their sum is one backward's. */
static char *accumulate(cairn_env *env, void *ctx) {
    float *weights = ctx;
    int halves = (int)weights[0];
    struct training t;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 24));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    const struct amp_options *amp = amp_options(.opt_level = AMP_O2, .loss_scale = 1024, .verbosity = -1);
    PASS(begin(&t, env, make_mlp(env, 24, 17, 5), amp, NULL, 0.05, 0));
    cairn_zero_grad(t.optimizer);
    for (int i = 0; i < halves; i++) {
        cairn_tensor *loss = cairn_mse_loss(ddp_forward(t.net, x), y);
        EXPECT_OK(amp_backward(t.amp, cairn_mul_scalar(loss, 1.0 / halves), t.optimizer));
    }
    EXPECT_OK(cairn_step(t.optimizer));
    EXPECT(!cairn_optimizer_step_skipped(t.optimizer));
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    if (cairn_env_rank(env) == 0) memcpy(weights, t.set->params[0]->master, 17 * 24 * sizeof(float));
    end(&t);
    return NULL;
}

/* 65504 is finite in f16 and in the sum, and 65536 once bf16 has rounded it: infinite on its way back to f16. */
static char *overflow_on_the_way_back(cairn_env *env, void *ctx) {
    struct training t;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 24));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    const struct amp_options *amp = amp_options(.opt_level = AMP_O2, .loss_scale = 1024, .verbosity = -1);
    (void)ctx;
    PASS(begin(&t, env, make_mlp(env, 24, 17, 5), amp, ddp_options(.wire = CAIRN_BF16), 0.05, 0));
    t.plant.target = 1;
    t.plant.value = 65504;
    PASS(step(&t, x, y));
    EXPECT(cairn_optimizer_step_skipped(t.optimizer));
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    end(&t);
    return NULL;
}

static void gradient_that_overflows_on_its_way_back_is_found(void **state) {
    (void)state;
    for (int p = 1; p <= 2; p++) run_ranks(p, overflow_on_the_way_back, NULL);
}

/* Other ranks may have written it: what a group that does not look has added up is unseen on every rank. */
static char *settle_what_nobody_wrote(cairn_env *env, void *ctx) {
    struct training t;
    (void)ctx;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 24));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 5));
    const struct amp_options *amp = amp_options(.opt_level = AMP_O2, .loss_scale = 1024, .verbosity = -1);
    PASS(begin(&t, env, make_mlp(env, 24, 17, 5), amp, NULL, 0.05, 0));
    EXPECT_OK(amp_backward(t.amp, cairn_mse_loss(ddp_forward(t.net, x), y), t.optimizer));
    EXPECT_OK(cairn__param_set_check(t.set));
    EXPECT_OK(cairn__param_set_settle(t.set));
    for (size_t i = 0; i < t.set->count; i++)
        EXPECT(cairn__grad_is_written(t.set->params[i]->gradient) &&
               !(cairn__grad_states(t.set->params[i]->gradient).slot == CAIRN__SLOT_CHECKED));
    end(&t);
    return NULL;
}

static void gradient_that_only_other_ranks_wrote_is_checked(void **state) {
    (void)state;
    run_ranks(1, settle_what_nobody_wrote, NULL);
}

static void accumulated_backwards_reduce_only_what_each_produced(void **state) {
    (void)state;
    static float one[17 * 24] = {1}, two[17 * 24] = {2};
    run_ranks(2, accumulate, one);
    run_ranks(2, accumulate, two);
    assert_memory_equal(one, two, sizeof(one));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_from_different_seeds_hold_equal_bits_after_every_step),
        cmocka_unit_test(shares_equal_the_whole_batch_bitwise_on_exact_data),
        cmocka_unit_test(two_models_train_side_by_side_over_groups_of_some_ranks),
        cmocka_unit_test(two_halves_stay_within_1e_6_of_the_whole_after_500_steps),
        cmocka_unit_test(inf_on_one_rank_skips_the_step_on_every_rank),
        cmocka_unit_test(four_gradients_of_40000_average_to_40000_and_skip_nothing),
        cmocka_unit_test(different_shapes_fail_on_every_rank_with_the_name),
        cmocka_unit_test(different_types_fail_on_every_rank),
        cmocka_unit_test(different_settings_of_amp_fail_on_every_rank),
        cmocka_unit_test(different_counts_fail_on_every_rank),
        cmocka_unit_test(buffers_of_rank_0_go_to_all),
        cmocka_unit_test(half_buffers_of_rank_0_go_to_all),
        cmocka_unit_test(different_buffers_fail_on_every_rank),
        cmocka_unit_test(amp_after_ddp_is_refused),
        cmocka_unit_test(buckets_leave_in_reverse_order_of_registration),
        cmocka_unit_test(buckets_leave_before_backward_is_over),
        cmocka_unit_test(gradients_can_travel_in_another_type),
        cmocka_unit_test(gradient_that_overflows_on_its_way_back_is_found),
        cmocka_unit_test(gradient_that_only_other_ranks_wrote_is_checked),
        cmocka_unit_test(accumulated_backwards_reduce_only_what_each_produced),
        cmocka_unit_test(steady_state_step_allocates_nothing_on_two_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
