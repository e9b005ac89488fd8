/* Parameters that are frozen and thawed while ranks train: result bits, bytes sent, memory, and ranks that freeze
 * different parameters. */
#include "../on_gpu.h"
#include "device/device.h"
#include "parts.h"

enum { STEPS = 8 };

/* Parts that are frozen in a step. Some steps freeze what was thawed a step ago, and one freezes all but one. */
static const unsigned frozen[STEPS] = {0x1, 0x1, 0x0, 0x6, 0xe, 0x6, 0x1, 0x0};

struct job {
    const struct amp_options *level;
    enum parts_kind_of_step kind;
    const struct ddp_options *options;
    int ranks, micros; /* under no_sync, but for the last */
    bool reducer;
    struct remembered want[STEPS];
};

static cairn_status freeze(cairn_param_set *set, unsigned mask) {
    cairn_status st = CAIRN_OK;
    char name[16];
    for (int k = 0; st == CAIRN_OK && k < PARTS; k++) {
        snprintf(name, sizeof(name), "part%d", k);
        st = cairn_param_set_require_grad(set, name, mask >> k & 1 ? CAIRN_OFF : CAIRN_ON);
    }
    return st;
}

static bool has_moments(const struct trained *t, int k) {
    return t->optimizer->arrays.moments[k].array[0] != NULL;
}

/* The first step's are frozen before the optimizer is made. */
static char *begin(struct trained *t, cairn_env *env, const struct job *j) {
    *t = (struct trained){.model = make_parts(env)};
    EXPECT(t->model);
    t->set = cairn_module_params(t->model);
    t->x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(PARTS * PART));
    EXPECT_OK(freeze(t->set, frozen[0]));
    EXPECT_OK(parts_optimizer(t, j->kind));
    EXPECT_OK(amp_initialize(env, t->model, t->optimizer, j->level, &t->amp));
    return NULL;
}

static char *train_alone(cairn_env *env, void *ctx) {
    struct job *j = ctx;
    struct trained t;
    float gradient[PARTS * PART];
    unsigned trained = 0;
    PASS(begin(&t, env, j));
    for (int s = 0; s < STEPS; s++) {
        memset(gradient, 0, sizeof(gradient));
        for (int r = 0; r < j->ranks; r++) {
            for (int m = 0; m < j->micros; m++) {
                for (int i = 0; i < PARTS * PART; i++) gradient[i] += parts_number(r, s, m, i);
            }
        }
        for (int i = 0; i < PARTS * PART; i++) gradient[i] /= (float)j->ranks;
        cairn_zero_grad(t.optimizer);
        EXPECT_OK(freeze(t.set, frozen[s]));
        EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
        EXPECT_OK(cairn_step(t.optimizer));
        remember(&t, &j->want[s]);
        trained |= ~frozen[s];
        for (int k = 0; k < PARTS; k++) EXPECT(has_moments(&t, k) == (trained >> k & 1));
    }
    parts_end(&t);
    return NULL;
}

/* What travels holds the parts that are not frozen and no others, and so do slots. */
static char *expect_plan(const struct trained *t, unsigned mask) {
    size_t members = 0, elements = 0, held = 0;
    for (int k = 0; k < PARTS; k++) {
        held += mask >> k & 1 ? 0 : 1;
        EXPECT(!(mask >> k & 1) || !cairn__grad_memory(t->set->params[k]->gradient));
    }
    for (int b = 0; b < ddp_bucket_count(t->net); b++) {
        struct ddp_bucket bucket = DDP_BUCKET_INIT;
        EXPECT_OK(ddp_bucket_get(t->net, b, &bucket));
        members += bucket.num_params;
        elements += bucket.n;
        for (size_t i = 0; i < bucket.num_params; i++) EXPECT(!(mask >> bucket.params[i] & 1));
    }
    EXPECT(members == held && elements <= held * 2 * PART);
    return NULL;
}

static char *train_together(cairn_env *env, void *ctx) {
    const struct job *j = ctx;
    struct trained t;
    float gradient[PARTS * PART];
    PASS(begin(&t, env, j));
    EXPECT_OK((j->reducer ? ddp_reducer_create : ddp_create)(t.model, cairn_env_group(env), j->options, &t.net));
    PASS(expect_plan(&t, frozen[0]));
    for (int s = 0; s < STEPS; s++) {
        cairn_zero_grad(t.optimizer);
        EXPECT_OK(freeze(t.set, frozen[s]));
        for (int m = 0; m < j->micros; m++) {
            parts_numbers(cairn_env_rank(env), s, m, gradient);
            if (!j->reducer) EXPECT_OK(ddp_no_sync(t.net, m + 1 < j->micros));
            EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
        }
        if (j->reducer) EXPECT_OK(ddp_reduce(t.net));
        PASS(expect_plan(&t, frozen[s]));
        EXPECT_OK(cairn_step(t.optimizer));
        EXPECT(is_as_remembered(&t, &j->want[s]));
    }
    parts_end(&t);
    return NULL;
}

#define OPTIONS(...)                                           \
    &(const struct ddp_options) {                              \
        .struct_size = sizeof(struct ddp_options), __VA_ARGS__ \
    }
static const struct ddp_options *const every_way[] = {
    NULL,
    OPTIONS(.message_size = 1),
    OPTIONS(.gradient_as_bucket_view = CAIRN_OFF),
    OPTIONS(.wire = CAIRN_F32, .message_size = 1),
    OPTIONS(.find_unused_parameters = CAIRN_ON, .message_size = 1),
    OPTIONS(.static_graph = CAIRN_ON),
    OPTIONS(.delay_allreduce = CAIRN_ON),
};
enum { WAYS = sizeof(every_way) / sizeof(every_way[0]) };

static void freezing_and_thawing_over_ranks_gives_the_bits_of_one(void **state) {
    (void)state;
    for (int l = 0; l < PARTS_LEVELS; l++) {
        for (int w = 0; w < WAYS; w++) {
            struct job j = {.level = &parts_levels[l],
                            .kind = (enum parts_kind_of_step)((l + w) % KINDS_OF_STEP),
                            .options = every_way[w],
                            .ranks = 2,
                            .micros = 1 + w % 2};
            run_ranks(1, train_alone, &j);
            run_ranks(j.ranks, train_together, &j);
        }
    }
}

static void a_reducer_follows_freezing(void **state) {
    (void)state;
    struct job j = {.level = &parts_levels[3], .kind = BY_ADAMW, .ranks = 2, .micros = 2, .reducer = true};
    run_ranks(1, train_alone, &j);
    run_ranks(j.ranks, train_together, &j);
}

/* ---- gradients that wait while buckets are planned anew ---- */

struct accumulation {
    const struct ddp_options *options;
    struct remembered want;
};

/* Part 0 is frozen, and part 3 thawed, after the first of three backwards that ranks reduce for one step. */
static char *accumulate(cairn_env *env, void *ctx) {
    struct accumulation *a = ctx;
    const struct job j = {.level = &parts_levels[0], .kind = BY_SGD};
    const bool alone = cairn_env_size(env) == 1;
    struct trained t;
    float gradient[PARTS * PART];
    PASS(begin(&t, env, &j));
    if (!alone) EXPECT_OK(ddp_create(t.model, cairn_env_group(env), a->options, &t.net));
    EXPECT_OK(freeze(t.set, 0x8));
    for (int m = 0; m < 3; m++) {
        if (m == 1) EXPECT_OK(freeze(t.set, 0x1));
        parts_numbers(cairn_env_rank(env), 0, m, gradient);
        for (int i = 0; alone && i < PARTS * PART; i++) gradient[i] = (gradient[i] + parts_number(1, 0, m, i)) / 2;
        EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
    }
    EXPECT_OK(cairn_step(t.optimizer));
    if (alone) remember(&t, &a->want);
    EXPECT(is_as_remembered(&t, &a->want));
    parts_end(&t);
    return NULL;
}

static void gradients_that_wait_are_in_the_step_though_other_parameters_are_frozen_meanwhile(void **state) {
    struct accumulation a = {.options = NULL};
    (void)state;
    run_ranks(1, accumulate, &a);
    for (int w = 0; w < WAYS; w++) {
        a.options = every_way[w];
        run_ranks(2, accumulate, &a);
    }
}

/* ---- memory ---- */

static char *count_memory(cairn_env *env, void *ctx) {
    const struct job j = {.level = &parts_levels[0], .kind = BY_ADAMW};
    struct trained t;
    float gradient[PARTS * PART];
    (void)ctx;
    *(&t) = (struct trained){.model = make_parts(env)};
    t.set = cairn_module_params(t.model);
    t.x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(PARTS * PART));
    EXPECT_OK(cairn_param_set_require_grad(t.set, "*", CAIRN_OFF));
    EXPECT_OK(parts_optimizer(&t, j.kind));
    EXPECT_OK(amp_initialize(env, t.model, t.optimizer, j.level, &t.amp));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), NULL, &t.net));
    EXPECT(ddp_bucket_count(t.net) == 0);
    for (int k = 0; k < PARTS; k++) EXPECT(!has_moments(&t, k));
    parts_numbers(0, 0, 0, gradient);
    EXPECT(parts_backward(&t, gradient, ALL_PARTS) == CAIRN_EINVAL);
    EXPECT_OK(cairn_param_set_require_grad(t.set, "*", CAIRN_ON)); /* no rank has waited: the group is as it was */
    EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
    EXPECT(ddp_bucket_count(t.net) > 0);
    parts_end(&t);
    return NULL;
}

static void a_wholly_frozen_model_has_no_bucket_and_no_moment_until_it_is_thawed(void **state) {
    (void)state;
    run_ranks(2, count_memory, NULL);
}

/* ---- ranks that differ ---- */

static char *differ(cairn_env *env, void *ctx) {
    const struct job j = {.level = &parts_levels[0], .kind = BY_SGD};
    struct trained t;
    float gradient[PARTS * PART];
    const int rank = cairn_env_rank(env);
    (void)ctx;
    PASS(begin(&t, env, &j));
    EXPECT_OK(freeze(t.set, 0));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), NULL, &t.net));
    EXPECT_REFUSED(cairn_param_set_require_grad(t.set, rank ? "part[12]" : "part2", CAIRN_OFF), CAIRN_EPEER,
                   "parameter 'part1': rank 0 leaves it as it is, but rank 1 freezes it");
    EXPECT_REFUSED(cairn_param_require_grad(t.set, 3, rank ? CAIRN_ON : CAIRN_OFF), CAIRN_EPEER,
                   "parameter 'part3': rank 0 freezes it, but rank 1 thaws it");
    EXPECT_REFUSED(cairn_param_set_require_grad(t.set, rank ? "part7" : "part*", CAIRN_OFF),
                   rank ? CAIRN_EINVAL : CAIRN_EPEER, "no parameter's name matches 'part7'");
    for (size_t k = 0; k < PARTS; k++) EXPECT(cairn_param_requires_grad(t.set, k)); /* nothing has changed */
    parts_numbers(rank, 0, 0, gradient);
    EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
    EXPECT_OK(cairn_module_require_grad(t.model, CAIRN_OFF));
    for (size_t k = 0; k < PARTS; k++) EXPECT(!cairn_param_requires_grad(t.set, k));
    parts_end(&t);
    return NULL;
}

static char *differ_at_first(cairn_env *env, void *ctx) {
    const struct job j = {.level = &parts_levels[0], .kind = BY_SGD};
    struct trained t;
    (void)ctx;
    PASS(begin(&t, env, &j));
    EXPECT_OK(freeze(t.set, cairn_env_rank(env) ? 0x4 : 0));
    EXPECT_REFUSED(ddp_create(t.model, cairn_env_group(env), NULL, &t.net), CAIRN_EPEER, "'part2' [19] f32");
    EXPECT_SAYS("frozen on rank 1");
    parts_end(&t);
    return NULL;
}

static void ranks_that_freeze_different_parameters_fail_with_the_name(void **state) {
    (void)state;
    run_ranks(2, differ, NULL);
    run_ranks(3, differ, NULL);
    run_ranks(2, differ_at_first, NULL);
}

/* ---- a loss of which nothing is left ---- */

/* Rank 1's loss has part 0 alone, which all ranks freeze before backward. */
static char *lose_all(cairn_env *env, void *ctx) {
    const struct job j = {.level = &parts_levels[0], .kind = BY_SGD};
    const int rank = cairn_env_rank(env), ranks = cairn_env_size(env);
    struct trained t;
    float gradient[PARTS * PART];
    cairn_group *hasty = NULL;
    PASS(begin(&t, env, &j));
    EXPECT_OK(freeze(t.set, 0));
    EXPECT_OK(cairn_group_new(cairn_env_group(env), NULL, 0, cairn_group_options(.timeout = 5), &hasty));
    EXPECT_OK(ddp_create(t.model, hasty, ctx, &t.net));
    use_parts(t.model, rank == 1 ? 0x1 : ALL_PARTS);
    for (int i = 0; i < PARTS * PART; i++) gradient[i] = (float)ranks;
    EXPECT_OK(cairn_tensor_write(t.x, gradient, PARTS * PART));
    cairn_tensor *loss = ddp_forward(t.net, t.x);
    EXPECT(loss);
    EXPECT_OK(freeze(t.set, 0x1));
    if (ctx) { /* rank 1 counts as zero */
        EXPECT_OK(cairn_backward(loss));
        EXPECT(!cairn__grad_exists(t.set->params[0]->gradient));
        const float *average = cairn__grad_peek(t.set->params[3]->gradient).x;
        for (int i = 0; i < PART; i++) EXPECT(average[i] == (float)(ranks - 1));
    } else {
        EXPECT_REFUSED(cairn_backward(loss), rank == 1 ? CAIRN_ESTATE : CAIRN_EPEER,
                       "on rank 1, backward 1 does not reach 'part1', 'part2', 'part3', for which");
    }
    parts_end(&t);
    cairn_group_destroy(&hasty);
    return NULL;
}

static void rank_whose_loss_only_reaches_frozen_parameters_leaves_no_rank_waiting(void **state) {
    (void)state;
    NOT_ON_A_GPU("nccl does not compare the calls of ranks");
    for (int ranks = 2; ranks <= 3; ranks++) {
        run_ranks(ranks, lose_all, NULL);
        run_ranks(ranks, lose_all, ddp_options(.find_unused_parameters = CAIRN_ON));
    }
}

/* ---- a rank that calls too early ---- */

static cairn_status copy_forward(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int n) {
    (void)ctx, (void)n;
    memcpy(y->data, x->data, x->n * sizeof(float));
    return CAIRN_OK;
}

/* ctx: the set, which it tries to freeze; NULL = it does not. */
static cairn_status meddle(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                           const struct cairn_custom_array *y, const struct cairn_custom_array *x, int n) {
    (void)y, (void)x, (void)n;
    memcpy(dx->data, dy->data, dy->n * sizeof(float));
    if (!ctx) return CAIRN_OK;
    const bool refused = cairn_param_set_require_grad(ctx, "part[12]", CAIRN_OFF) == CAIRN_ESTATE &&
                         cairn_param_require_grad(ctx, 3, CAIRN_OFF) == CAIRN_ESTATE;
    return refused ? CAIRN_OK : CAIRN_EINTERNAL;
}

/* Rank 1 makes the calls within its backward, the others after theirs. */
static char *call_early(cairn_env *env, void *ctx) {
    const struct job j = {.level = &parts_levels[0], .kind = BY_SGD};
    const bool early = cairn_env_rank(env) == 1;
    struct trained t;
    float gradient[PARTS * PART];
    cairn_group *hasty = NULL;
    PASS(begin(&t, env, &j));
    EXPECT_OK(freeze(t.set, 0));
    EXPECT_OK(cairn_group_new(cairn_env_group(env), NULL, 0, cairn_group_options(.timeout = 5), &hasty));
    EXPECT_OK(ddp_create(t.model, hasty, ctx, &t.net));
    const struct cairn_custom_op op = {.struct_size = sizeof(op),
                                       .name = "meddle",
                                       .forward = copy_forward,
                                       .backward = meddle};
    parts_numbers(cairn_env_rank(env), 0, 0, gradient);
    EXPECT_OK(cairn_tensor_write(t.x, gradient, PARTS * PART));
    for (int s = 0; s < STEPS; s++) {
        cairn_module_zero_grad(t.model);
        cairn_tensor *loss = ddp_forward(t.net, t.x);
        EXPECT(loss);
        loss = cairn_custom(&op, early ? t.set : NULL, CAIRN_F32, 0, NULL, &loss, 1);
        EXPECT_OK(cairn_backward(loss));
        if (early) continue;
        EXPECT_REFUSED(cairn_param_set_require_grad(t.set, "part[12]", CAIRN_OFF), CAIRN_EPEER,
                       "cairn_param_set_require_grad: it failed on rank 1: ");
        EXPECT_SAYS("called within a backward");
        EXPECT_REFUSED(cairn_param_require_grad(t.set, 3, CAIRN_OFF), CAIRN_EPEER, "called within a backward");
    }
    for (size_t k = 0; k < PARTS; k++) EXPECT(cairn_param_requires_grad(t.set, k));
    EXPECT_OK(freeze(t.set, 0x2));
    parts_end(&t);
    cairn_group_destroy(&hasty);
    return NULL;
}

static void rank_that_calls_within_its_backward_makes_all_fail_and_training_goes_on(void **state) {
    (void)state;
    NOT_ON_A_GPU("the operation is for the CPU");
    for (int ranks = 2; ranks <= 3; ranks++) {
        run_ranks(ranks, call_early, NULL);
        run_ranks(ranks, call_early, ddp_options(.find_unused_parameters = CAIRN_ON));
    }
}

/* ---- gradients in the user's memory ---- */

enum { ARRAYS = 3, LENGTH = 5 };

static char *train_arrays(cairn_env *env, void *ctx) {
    float w[ARRAYS][LENGTH], g[ARRAYS][LENGTH], want[ARRAYS];
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    cairn_param_set *set = NULL;
    cairn_optimizer *sgd = NULL;
    ddp_context *net = NULL;
    const int rank = cairn_env_rank(env);
    (void)ctx;
    hyper.lr = 1;
    EXPECT_OK(cairn_param_set_create(env, NULL, 0, &set));
    for (int a = 0; a < ARRAYS; a++) {
        for (int i = 0; i < LENGTH; i++) w[a][i] = want[a] = (float)a;
        const cairn_param one = {.name = (const char *[]){"a", "b", "c"}[a],
                                 .data = w[a],
                                 .grad = g[a],
                                 .dtype = CAIRN_F32,
                                 .ndim = 1,
                                 .shape = {LENGTH}};
        EXPECT_OK(cairn_param_set_add(set, &one, 1, 0));
    }
    EXPECT_OK(cairn_sgd_create(set, &hyper, &sgd));
    EXPECT_OK(ddp_create_params(set, cairn_env_group(env), NULL, &net));
    for (int s = 0; s < STEPS; s++) {
        const unsigned mask = frozen[s];
        for (int a = 0; a < ARRAYS; a++)
            EXPECT_OK(cairn_param_require_grad(set, (size_t)a, mask >> a & 1 ? CAIRN_OFF : CAIRN_ON));
        for (int a = 0; a < ARRAYS; a++) {
            for (int i = 0; i < LENGTH; i++) g[a][i] = (float)(s + a + 2 * rank);
        }
        EXPECT_OK(ddp_grads_ready(net, 0, ARRAYS)); /* of all: frozen ones are passed over */
        if (s == 3) EXPECT_REFUSED(cairn_param_require_grad(set, 0, CAIRN_OFF), CAIRN_ESTATE, "call ddp_wait first");
        EXPECT_OK(ddp_wait(net));
        EXPECT_OK(cairn_step(sgd));
        for (int a = 0; a < ARRAYS; a++) {
            if (!(mask >> a & 1)) want[a] -= (float)(s + a + 1);
            for (int i = 0; i < LENGTH; i++) EXPECT(w[a][i] == want[a]);
            EXPECT(g[a][0] == (float)(s + a + (mask >> a & 1 ? 2 * rank : 1)));
        }
    }
    ddp_destroy(&net);
    cairn_optimizer_destroy(&sgd);
    cairn_param_set_destroy(&set);
    return NULL;
}

/* Array 1 waits while array 2 is frozen, and is not declared again. */
static char *keep_array(cairn_env *env, void *ctx) {
    float w[ARRAYS][LENGTH] = {{0}}, g[ARRAYS][LENGTH];
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    cairn_param_set *set = NULL;
    cairn_optimizer *sgd = NULL;
    ddp_context *net = NULL;
    (void)ctx;
    hyper.lr = 1;
    EXPECT_OK(cairn_param_set_create(env, NULL, 0, &set));
    for (int a = 0; a < ARRAYS; a++) {
        const cairn_param one = {.name = (const char *[]){"a", "b", "c"}[a],
                                 .data = w[a],
                                 .grad = g[a],
                                 .dtype = CAIRN_F32,
                                 .ndim = 1,
                                 .shape = {LENGTH}};
        for (int i = 0; i < LENGTH; i++) g[a][i] = (float)(2 * cairn_env_rank(env) + a);
        EXPECT_OK(cairn_param_set_add(set, &one, 1, 0));
    }
    EXPECT_OK(cairn_sgd_create(set, &hyper, &sgd));
    EXPECT_REFUSED(ddp_create_params(set, cairn_env_group(env), ddp_options(.gradient_as_bucket_view = CAIRN_ON), &net),
                   CAIRN_EINVAL,
                   "gradient_as_bucket_view, but parameters are in your own memory, which stays where it is");
    EXPECT_OK(ddp_create_params(set, cairn_env_group(env), ddp_options(.find_unused_parameters = CAIRN_ON), &net));
    EXPECT_OK(ddp_grads_ready(net, 0, ARRAYS));
    EXPECT_OK(ddp_wait(net));
    EXPECT_OK(cairn_param_require_grad(set, 2, CAIRN_OFF));
    EXPECT_OK(cairn_grads_taken(set, 0, 1));
    EXPECT_OK(ddp_grads_ready(net, 0, 1));
    EXPECT_OK(ddp_wait(net));
    EXPECT_OK(cairn_step(sgd));
    for (int i = 0; i < LENGTH; i++) EXPECT(w[0][i] == -2 && w[1][i] == -2 && w[2][i] == 0);
    ddp_destroy(&net);
    cairn_optimizer_destroy(&sgd);
    cairn_param_set_destroy(&set);
    return NULL;
}

static void array_that_waits_is_in_the_step_though_another_is_frozen_meanwhile(void **state) {
    (void)state;
    NOT_ON_A_GPU("these buffers are the host's");
    run_ranks(2, keep_array, NULL);
}

/* Rank 1 freezes before ddp_wait, the others after it. */
static char *freeze_arrays_early(cairn_env *env, void *ctx) {
    float w[LENGTH] = {0}, g[LENGTH] = {0};
    const bool early = cairn_env_rank(env) == 1;
    cairn_group *hasty = NULL;
    cairn_param_set *set = NULL;
    ddp_context *net = NULL;
    const cairn_param one = {.name = "w", .data = w, .grad = g, .dtype = CAIRN_F32, .ndim = 1, .shape = {LENGTH}};
    EXPECT_OK(cairn_param_set_create(env, &one, 1, &set));
    EXPECT_OK(cairn_group_new(cairn_env_group(env), NULL, 0, cairn_group_options(.timeout = 5), &hasty));
    EXPECT_OK(ddp_create_params(set, hasty, ctx, &net));
    for (int s = 0; s < STEPS; s++) {
        EXPECT_OK(ddp_grads_ready(net, 0, 1));
        if (early)
            EXPECT_REFUSED(cairn_param_set_require_grad(set, "*", CAIRN_OFF), CAIRN_ESTATE, "call ddp_wait first");
        EXPECT_OK(ddp_wait(net));
        if (!early)
            EXPECT_REFUSED(cairn_param_set_require_grad(set, "*", CAIRN_OFF), CAIRN_EPEER, "call ddp_wait first");
        EXPECT(cairn_param_requires_grad(set, 0));
        cairn_param_set_zero_grad(set);
    }
    EXPECT_OK(cairn_param_set_require_grad(set, "*", CAIRN_OFF));
    ddp_destroy(&net);
    cairn_param_set_destroy(&set);
    cairn_group_destroy(&hasty);
    return NULL;
}

static void rank_that_freezes_arrays_before_ddp_wait_makes_all_fail_and_training_goes_on(void **state) {
    (void)state;
    NOT_ON_A_GPU("these buffers are the host's");
    for (int ranks = 2; ranks <= 3; ranks++) {
        run_ranks(ranks, freeze_arrays_early, NULL);
        run_ranks(ranks, freeze_arrays_early, ddp_options(.find_unused_parameters = CAIRN_ON));
    }
}

static void frozen_arrays_of_the_user_are_not_reduced(void **state) {
    (void)state;
    NOT_ON_A_GPU("these buffers are the host's");
    run_ranks(2, train_arrays, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(freezing_and_thawing_over_ranks_gives_the_bits_of_one),
        cmocka_unit_test(a_reducer_follows_freezing),
        cmocka_unit_test(gradients_that_wait_are_in_the_step_though_other_parameters_are_frozen_meanwhile),
        cmocka_unit_test(a_wholly_frozen_model_has_no_bucket_and_no_moment_until_it_is_thawed),
        cmocka_unit_test(ranks_that_freeze_different_parameters_fail_with_the_name),
        cmocka_unit_test(rank_whose_loss_only_reaches_frozen_parameters_leaves_no_rank_waiting),
        cmocka_unit_test(rank_that_calls_within_its_backward_makes_all_fail_and_training_goes_on),
        cmocka_unit_test(rank_that_freezes_arrays_before_ddp_wait_makes_all_fail_and_training_goes_on),
        cmocka_unit_test(array_that_waits_is_in_the_step_though_another_is_frozen_meanwhile),
        cmocka_unit_test(frozen_arrays_of_the_user_are_not_reduced),
    };
    return cmocka_run_group_tests(tests, parts_be_quiet, NULL);
}
