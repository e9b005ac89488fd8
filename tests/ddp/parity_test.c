/* Parity: p ranks on p shards of a batch end with the same bits as one rank on the whole batch, for all types, bucket
 * sizes, and orders in which gradients become ready.
 *
 * The data is exact even in the smallest type: inputs and targets are -1, 0 and 1, and the loss is linear in the
 * model's output, so that gradients are small integers over a power of two. Every bit is compared. */
#include <math.h>

#include "../mlp.h"
#include "../ranks.h"
#include "core/dtype.h"
#include "core/philox.h"
#include "nn/module.h"

/* ---- a model whose gradients come in any order ---- */

enum { BRANCHES = 4, TERMS = BRANCHES + 1, OUT = 4, ROWS = 2, STEPS = 3, MAX_RANKS = 8, MAX_WIDTH = 20 };

static const int64_t widths[BRANCHES] = {1, 3, MAX_WIDTH, 8};

/* y = sum of linear(x_k, w_k, b_k), plus a normalisation's shift, in any order of terms. */
struct branches {
    cairn_tensor *weight[BRANCHES], *bias[BRANCHES], *shift;
    int order[TERMS];
};

static cairn_tensor *term(const struct branches *b, cairn_tensor *const *inputs, int k) {
    return k < BRANCHES ? cairn_linear_forward(inputs[k], b->weight[k], b->bias[k]) : b->shift;
}

static cairn_tensor *forward_branches(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct branches *b = context;
    cairn_tensor *y = term(b, inputs, b->order[0]);
    for (int i = 1; i < TERMS; i++) y = cairn_add(y, term(b, inputs, b->order[i]));
    return y;
}

static const struct cairn__module_kind branches_kind = {.name = "Branches",
                                                        .forward = forward_branches,
                                                        .max_inputs = BRANCHES};

/* -1, 0 or 1. */
static float draw(uint64_t what, uint64_t i) {
    return (float)(cairn__philox(11, i, what).word[0] % 3) - 1.0f;
}

static void set_first_weights(struct cairn_param_set *set) {
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        for (size_t e = 0; e < p->n; e++) ((float *)p->data)[e] = draw(100 + i, e);
    }
}

static cairn_module *make_branches(cairn_env *env) {
    cairn_module *module = NULL;
    const int64_t out = OUT;
    char name[24];
    if (cairn__module_create(env, &branches_kind, sizeof(struct branches), &module) != CAIRN_OK) return NULL;
    struct branches *b = cairn__module_context(module);
    cairn_status st = CAIRN_OK;
    for (int k = 0; k < BRANCHES; k++) {
        snprintf(name, sizeof(name), "%d.weight", k);
        st |= cairn__module_add_param(module, name, 2, (int64_t[]){OUT, widths[k]}, false, &b->weight[k]);
        snprintf(name, sizeof(name), "%d.bias", k);
        st |= cairn__module_add_param(module, name, 1, &out, false, &b->bias[k]);
    }
    st |= cairn__module_add_param(module, "shift", 1, &out, true, &b->shift);
    if (st != CAIRN_OK) return NULL;
    set_first_weights(cairn_module_params(module));
    return module;
}

/* ---- a training ---- */

static const struct level {
    amp_opt_level level;
    cairn_dtype half;
} levels[] = {{AMP_O0, 0},          {AMP_O1, CAIRN_F16}, {AMP_O1, CAIRN_BF16}, {AMP_O2, CAIRN_F16},
              {AMP_O2, CAIRN_BF16}, {AMP_O3, CAIRN_F16}, {AMP_O3, CAIRN_BF16}};
enum { NUM_LEVELS = sizeof(levels) / sizeof(levels[0]) };

/* Orders in which a rank's gradients become ready. */
enum ready_order { REGISTERED, REVERSED_ON_ODD_RANKS, OTHER_IN_EVERY_STEP, NUM_ORDERS };

struct setup {
    struct level level;
    bool sum; /* a sum loss and gradient_average off; else a mean loss */
    struct ddp_options ddp;
    enum ready_order order;
};

struct training {
    cairn_module *model;
    struct cairn_param_set *set;
    cairn_optimizer *sgd;
    amp_context *amp;
    ddp_context *net;
    int rank, size;
};

static char *begin(struct training *t, cairn_env *env, cairn_group *group, const struct setup *s) {
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    struct ddp_options ddp = s->ddp;
    hyper.lr = 0.25;
    ddp.struct_size = sizeof(ddp);
    ddp.gradient_average = s->sum ? CAIRN_OFF : CAIRN_DEFAULT;
    const struct amp_options *amp = amp_options(.opt_level = s->level.level, .half_type = s->level.half,
                                                .loss_scale = s->level.half ? 128 : 0, .verbosity = -1);
    *t = (struct training){.model = make_branches(env), .rank = cairn_group_rank(group)};
    t->size = cairn_group_size(group);
    EXPECT(t->model != NULL);
    t->set = cairn_module_params(t->model);
    EXPECT_OK(cairn_sgd_create(t->set, &hyper, &t->sgd));
    EXPECT_OK(amp_initialize(env, t->model, t->sgd, amp, &t->amp));
    EXPECT_OK(ddp_create(t->model, group, &ddp, &t->net));
    return NULL;
}

static void end(struct training *t) {
    ddp_destroy(&t->net);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->sgd);
    cairn_module_destroy(&t->model);
}

static void choose_order(struct training *t, enum ready_order how, int step) {
    struct branches *b = cairn__module_context(t->model);
    for (int i = 0; i < TERMS; i++) b->order[i] = i;
    if (how == REVERSED_ON_ODD_RANKS && t->rank % 2 == 1) {
        for (int i = 0; i < TERMS; i++) b->order[i] = TERMS - 1 - i;
    }
    for (int i = TERMS; how == OTHER_IN_EVERY_STEP && i > 1; i--) {
        const int k = (int)(cairn__philox(3, (uint64_t)(step * TERMS + i), (uint64_t)t->rank).word[0] % (unsigned)i);
        const int kept = b->order[k];
        b->order[k] = b->order[i - 1];
        b->order[i - 1] = kept;
    }
}

/* Row r of the whole batch: the same whoever has it. */
static float input_at(int step, int k, int row, int64_t column) {
    return draw((uint64_t)(1000 + step * BRANCHES + k), (uint64_t)(row * MAX_WIDTH + column));
}

static float target_at(int step, int row, int o) {
    return draw((uint64_t)(2000 + step), (uint64_t)(row * OUT + o));
}

/* `rows` of the batch, from `first` on. */
static cairn_tensor *make_loss(struct training *t, cairn_env *env, const struct setup *s, int step, int first,
                               int rows) {
    float x[MAX_RANKS * ROWS * MAX_WIDTH], y[MAX_RANKS * ROWS * OUT];
    cairn_tensor *xs[BRANCHES], *ys;
    for (int k = 0; k < BRANCHES; k++) {
        for (int i = 0; i < rows * (int)widths[k]; i++)
            x[i] = input_at(step, k, first + i / (int)widths[k], i % widths[k]);
        xs[k] = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, widths[k]), x);
    }
    for (int i = 0; i < rows * OUT; i++) y[i] = target_at(step, first + i / OUT, i % OUT);
    ys = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, OUT), y);
    cairn_tensor *product = cairn_mul(ddp_forward_n(t->net, xs, BRANCHES), ys);
    for (int k = 0; k < BRANCHES; k++) cairn_tensor_destroy(&xs[k]);
    cairn_tensor_destroy(&ys);
    return s->sum ? cairn_sum(product) : cairn_mean(product);
}

/* In double, in the plainest way. */
static double gradient_of(const struct setup *s, int step, int rows, size_t param, size_t e) {
    const int k = (int)param / 2;
    const bool is_weight = k < BRANCHES && param % 2 == 0;
    double sum = 0;
    for (int r = 0; r < rows; r++) {
        const int o = is_weight ? (int)(e / (size_t)widths[k]) : (int)e;
        const double x = is_weight ? input_at(step, k, r, (int64_t)(e % (size_t)widths[k])) : 1;
        sum += x * target_at(step, r, o);
    }
    return s->sum ? sum : sum / (rows * OUT);
}

static double element(const void *values, cairn_dtype dtype, size_t e) {
    return cairn__dtype(dtype)->to_f32((const char *)values + e * cairn_dtype_nbytes(dtype));
}

static char *expect_gradients(const struct training *t, const struct setup *s, int step, int rows) {
    for (size_t i = 0; i < t->set->count; i++) {
        const struct cairn__param *p = t->set->params[i];
        const struct cairn__grad_view grad = cairn__grad_peek(p->gradient);
        const double factor = grad.factor ? *grad.factor : 1;
        for (size_t e = 0; e < p->n; e++)
            EXPECT(element(cairn__grad_memory(p->gradient), p->dtype, e) * factor == gradient_of(s, step, rows, i, e));
    }
    return NULL;
}

/* This rank's share of a batch of `rows`. */
static char *train(struct training *t, cairn_env *env, const struct setup *s, int rows) {
    const int share = rows / t->size;
    for (int step = 0; step < STEPS; step++) {
        choose_order(t, s->order, step);
        cairn_zero_grad(t->sgd);
        EXPECT_OK(amp_backward(t->amp, make_loss(t, env, s, step, t->rank * share, share), t->sgd));
        PASS(expect_gradients(t, s, step, rows));
        EXPECT_OK(cairn_step(t->sgd));
        EXPECT(!cairn_optimizer_step_skipped(t->sgd));
    }
    return NULL;
}

/* ---- the whole batch on one rank ---- */

struct whole {
    _Alignas(float) char bytes[4096];
    size_t nbytes;
};

static void take(struct whole *w, const struct training *t) {
    w->nbytes = 0;
    for (size_t i = 0; i < t->set->count; i++) {
        const struct cairn__param *p = t->set->params[i];
        memcpy(w->bytes + w->nbytes, p->data, p->n * cairn_dtype_nbytes(p->dtype));
        w->nbytes += p->n * cairn_dtype_nbytes(p->dtype);
        if (p->master) memcpy(w->bytes + w->nbytes, p->master, p->n * sizeof(float));
        w->nbytes += p->master ? p->n * sizeof(float) : 0;
    }
}

static char *train_whole(cairn_env *env, cairn_group *alone, const struct setup *s, int rows, struct whole *out) {
    struct training t;
    PASS(begin(&t, env, alone, s));
    PASS(train(&t, env, s, rows));
    take(out, &t);
    end(&t);
    return NULL;
}

static char *train_shares(cairn_env *env, const struct setup *s, const struct whole *want) {
    struct training t;
    struct whole got;
    PASS(begin(&t, env, cairn_env_group(env), s));
    PASS(train(&t, env, s, ROWS * cairn_env_size(env)));
    take(&got, &t);
    EXPECT(got.nbytes == want->nbytes && memcmp(got.bytes, want->bytes, want->nbytes) == 0);
    end(&t);
    return NULL;
}

/* ---- the matrix ---- */

static const struct ddp_options buckets[] = {
    {.bucket_nbytes = 1},
    {.bucket_nbytes = 40, .first_bucket_nbytes = 10},
    {.bucket_nbytes = 0},
    {.bucket_nbytes = 1, .gradient_as_bucket_view = CAIRN_OFF},
    {.bucket_nbytes = 100, .gradient_as_bucket_view = CAIRN_OFF},
    {.bucket_nbytes = 0, .gradient_as_bucket_view = CAIRN_OFF},
    {.bucket_nbytes = 100, .wire = CAIRN_F32},
    {.message_size = 1},
    {.message_size = 30},
    {.delay_allreduce = CAIRN_ON},
};
enum { NUM_BUCKETS = sizeof(buckets) / sizeof(buckets[0]) };

static bool whole_matrix; /* the program's argument */

struct matrix {
    bool sum;
    int stride; /* every so many-th case of a level, another one at each level */
};

static char *train_matrix(cairn_env *env, void *ctx) {
    const struct matrix *m = ctx;
    const int rank = cairn_env_rank(env), rows = ROWS * cairn_env_size(env);
    cairn_group *alone = NULL;
    EXPECT_OK(cairn_group_split(cairn_env_group(env), rank, 0, NULL, &alone));
    for (int l = 0; l < NUM_LEVELS; l++) {
        struct setup s = {.level = levels[l], .sum = m->sum};
        struct whole whole;
        PASS(train_whole(env, alone, &s, rows, &whole));
        for (int c = 0; c < NUM_BUCKETS * NUM_ORDERS; c++) {
            if (!whole_matrix && (c + l) % m->stride != 0) continue;
            s.ddp = buckets[c % NUM_BUCKETS];
            s.order = (enum ready_order)(c / NUM_BUCKETS);
            PASS(train_shares(env, &s, &whole));
        }
    }
    cairn_group_destroy(&alone);
    return NULL;
}

static void shares_equal_the_whole_with_a_mean_loss(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 4, 8}, strides[] = {1, 3, 7, 15};
    for (int i = 0; i < 4; i++) run_ranks(sizes[i], train_matrix, &(struct matrix){false, strides[i]});
}

static void shares_equal_the_whole_with_a_sum_loss(void **state) {
    (void)state;
    static const int sizes[] = {3, 5, 6, 7}, strides[] = {4, 11, 13, 17};
    for (int i = 0; i < 4; i++) run_ranks(sizes[i], train_matrix, &(struct matrix){true, strides[i]});
}

/* ---- data that does not stay exact ---- */

enum { BATCH = 60, IN = 24, HIDDEN = 17, RESULTS = 5, RANDOM_STEPS = 6 };

static char *train_mlp(cairn_env *env, cairn_group *group, const struct ddp_options *ddp, struct whole *out) {
    const int rank = cairn_group_rank(group), rows = BATCH / cairn_group_size(group);
    static _Thread_local float x[BATCH * IN], y[BATCH * RESULTS];
    for (uint64_t i = 0; i < BATCH * IN / 4; i++) cairn__normal4(cairn__philox(9, i, 1), x + 4 * i);
    for (uint64_t i = 0; i < BATCH * RESULTS / 4; i++) cairn__normal4(cairn__philox(9, i, 2), y + 4 * i);
    cairn_tensor *xs = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, IN), x + rank * rows * IN);
    cairn_tensor *ys = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(rows, RESULTS), y + rank * rows * RESULTS);
    struct training t = {.model = make_mlp(env, IN, HIDDEN, RESULTS)};
    t.set = cairn_module_params(t.model);
    for (size_t i = 0; i < t.set->count; i++) {
        for (size_t e = 0; e < t.set->params[i]->n; e++) ((float *)t.set->params[i]->data)[e] = 0.3f * draw(i, e);
    }
    EXPECT_OK(cairn_sgd_create(t.set, NULL, &t.sgd));
    EXPECT_OK(cairn_optimizer_set_lr(t.sgd, 0.05));
    EXPECT_OK(ddp_create(t.model, group, ddp, &t.net));
    for (int i = 0; i < RANDOM_STEPS; i++) {
        cairn_zero_grad(t.sgd);
        EXPECT_OK(cairn_backward(cairn_mse_loss(ddp_forward(t.net, xs), ys)));
        EXPECT_OK(cairn_step(t.sgd));
    }
    take(out, &t);
    end(&t);
    return NULL;
}

static double distance(const struct whole *a, const struct whole *b) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < a->nbytes / sizeof(float); i++) {
        const double x = ((const float *)a->bytes)[i], y = ((const float *)b->bytes)[i];
        difference += (x - y) * (x - y);
        norm += x * x;
    }
    return sqrt(difference / norm);
}

static char *train_mlp_both_ways(cairn_env *env, void *ctx) {
    cairn_group *alone = NULL;
    struct whole whole, shares;
    EXPECT_OK(cairn_group_split(cairn_env_group(env), cairn_env_rank(env), 0, NULL, &alone));
    PASS(train_mlp(env, alone, NULL, &whole));
    PASS(train_mlp(env, cairn_env_group(env), ctx, &shares));
    EXPECT(distance(&whole, &shares) <= 1e-6);
    cairn_group_destroy(&alone);
    return NULL;
}

static void shares_of_random_data_stay_within_1e_6_of_the_whole(void **state) {
    (void)state;
    static const int sizes[] = {2, 3, 5, 6};
    for (int i = 0; i < 4; i++) {
        run_ranks(sizes[i], train_mlp_both_ways, NULL);
        run_ranks(sizes[i], train_mlp_both_ways,
                  ddp_options(.bucket_nbytes = 200, .gradient_as_bucket_view = CAIRN_OFF));
    }
}

/* parity_test [whole]: every case for every number of ranks. */
int main(int argc, char **argv) {
    (void)argv;
    whole_matrix = argc > 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_equal_the_whole_with_a_mean_loss),
        cmocka_unit_test(shares_equal_the_whole_with_a_sum_loss),
        cmocka_unit_test(shares_of_random_data_stay_within_1e_6_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
