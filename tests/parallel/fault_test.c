/* Pipelines that fail: every rank soon returns an error message. Ranks are processes in cases in which one exits. */
#include "../comm/group_processes.h"

#include "chain.h"

enum { RANKS = 3, MICRO_BATCHES = 4, COLUMNS = 6 };

/* ---- what is found before a step leaves the pipeline as it is ---- */

static cairn_tensor *mean_square(void *ctx, cairn_tensor *output, cairn_tensor *target, int micro_batch) {
    (void)ctx, (void)micro_batch;
    return cairn_mse_loss(output, target);
}

struct stage {
    cairn_module *module;
    cairn_optimizer *optimizer;
    cairn_pipeline *pipeline;
    cairn_tensor *x, *y;
};

static void end_stage(struct stage *s) {
    cairn_pipeline_destroy(&s->pipeline);
    cairn_optimizer_destroy(&s->optimizer);
    cairn_module_destroy(&s->module);
    cairn_tensor_destroy(&s->x);
    cairn_tensor_destroy(&s->y);
}

static cairn_status make_stage(cairn_env *env, cairn_pipeline_forward_fn forward, void *ctx, struct stage *s) {
    s->module = cairn_linear(env, COLUMNS, COLUMNS);
    s->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, COLUMNS));
    s->y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, COLUMNS));
    cairn_status st = cairn_sgd_create(cairn_module_params(s->module), NULL, &s->optimizer);
    if (st != CAIRN_OK) return st;
    return cairn_pipeline_create(&s->module, 1, cairn_env_group(env),
                                 cairn_pipeline_options(.n_microbatches = MICRO_BATCHES, .loss = mean_square,
                                                        .forward = forward, .ctx = ctx, .optimizer = s->optimizer),
                                 &s->pipeline);
}

static char *step_well(struct stage *s) {
    cairn_zero_grad(s->optimizer);
    EXPECT_OK(cairn_pipeline_step(s->pipeline, s->x, s->y, NULL));
    EXPECT_OK(cairn_step(s->optimizer));
    return NULL;
}

static char *give_wrong_batches(cairn_env *env, void *ctx) {
    struct stage s = {.module = NULL};
    const int rank = cairn_env_rank(env);
    cairn_tensor *short_y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(7, COLUMNS));
    (void)ctx;
    EXPECT_OK(make_stage(env, NULL, NULL, &s));
    PASS(step_well(&s));
    const cairn_status own = cairn_pipeline_step(s.pipeline, NULL, s.y, NULL);
    EXPECT(own == (rank == 0 ? CAIRN_EINVAL : CAIRN_EPEER));
    EXPECT_SAYS("the rank with the first stage gives the input, which is NULL here");
    EXPECT(cairn_pipeline_step(s.pipeline, s.x, NULL, NULL) == (rank == RANKS - 1 ? CAIRN_EINVAL : CAIRN_EPEER));
    EXPECT_SAYS("the rank with the last stage gives the target, which is NULL here");
    PASS(step_well(&s));
    EXPECT_REFUSED(cairn_pipeline_step(s.pipeline, s.x, short_y, NULL), CAIRN_EINVAL,
                   "the input has 8 rows and the target 7");
    PASS(step_well(&s));
    EXPECT_REFUSED(rank == 1 ? cairn_pipeline_eval(s.pipeline, s.x, s.y, NULL, NULL)
                             : cairn_pipeline_step(s.pipeline, s.x, s.y, NULL),
                   CAIRN_EINVAL, "rank 0 called cairn_pipeline_step and rank 1 cairn_pipeline_eval");
    PASS(step_well(&s));
    cairn_tensor_destroy(&short_y);
    end_stage(&s);
    return NULL;
}

static void wrong_batches_fail_on_all_ranks_and_the_next_step_goes_on(void **state) {
    (void)state;
    run_ranks(RANKS, give_wrong_batches, NULL);
}

static char *create_with(cairn_env *env, int modules, const struct cairn_pipeline_options *options, const char *words) {
    cairn_module *list[2] = {cairn_linear(env, 4, 4), cairn_linear(env, 4, 4)};
    cairn_pipeline *pipeline = NULL;
    EXPECT(cairn_pipeline_create(list, modules, cairn_env_group(env), options, &pipeline) != CAIRN_OK);
    EXPECT(!pipeline);
    EXPECT_SAYS(words);
    for (int i = 0; i < 2; i++) cairn_module_destroy(&list[i]);
    return NULL;
}

static char *create_wrongly(cairn_env *env, void *ctx) {
    const bool is_1 = cairn_env_rank(env) == 1;
    (void)ctx;
    PASS(create_with(env, is_1 ? 2 : 1,
                     cairn_pipeline_options(.n_microbatches = 2, .schedule = CAIRN_PIPELINE_INTERLEAVED_1F1B),
                     "rank 0 has 1 modules and rank 1 has 2"));
    PASS(create_with(env, 1, cairn_pipeline_options(.n_microbatches = is_1 ? 3 : 2), "rank 1 3 and 0"));
    PASS(create_with(env, 1,
                     cairn_pipeline_options(.n_microbatches = 2,
                                            .schedule = is_1 ? CAIRN_PIPELINE_GPIPE : CAIRN_PIPELINE_1F1B),
                     "rank 1 has another schedule than rank 0"));
    PASS(create_with(env, is_1 ? 2 : 1, cairn_pipeline_options(.n_microbatches = 2, .schedule = CAIRN_PIPELINE_GPIPE),
                     "2 modules are given, but this schedule has one a rank"));
    PASS(create_with(env, is_1 ? 0 : 1, cairn_pipeline_options(.n_microbatches = 2), "at least one module"));
    PASS(create_with(env, 1, cairn_pipeline_options(.n_microbatches = 2, .split_size = is_1 ? 2 : 0),
                     "n_microbatches is 2 and split_size is 2; one of them must be above 0"));
    PASS(create_with(env, 1, cairn_pipeline_options(.n_microbatches = 2, .schedule = (cairn_pipeline_schedule)9),
                     "schedule is 9, which is none"));
    /* The group is alive after all that. */
    struct stage s = {.module = NULL};
    EXPECT_OK(make_stage(env, NULL, NULL, &s));
    PASS(step_well(&s));
    end_stage(&s);
    return NULL;
}

static void wrong_pipelines_are_made_on_no_rank(void **state) {
    (void)state;
    run_ranks(2, create_wrongly, NULL);
}

/* ---- a rank that is done may leave ---- */

static cairn_status copy(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)ctx, (void)count;
    memcpy(y->data, x->data, x->n * sizeof(float));
    return CAIRN_OK;
}

static cairn_status take_long(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                              const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)ctx, (void)y, (void)x, (void)count;
    sleep_ms(50);
    memcpy(dx[0].data, dy->data, dy->n * sizeof(float));
    return CAIRN_OK;
}

static cairn_tensor *forward_slowly(void *ctx, cairn_module *module, cairn_tensor *input, int micro_batch) {
    static const struct cairn_custom_op op = {.struct_size = sizeof(op),
                                              .name = "slow",
                                              .forward = copy,
                                              .backward = take_long};
    cairn_tensor *y = cairn_module_forward(module, input);
    (void)micro_batch;
    if (!*(const bool *)ctx) return y;
    return cairn_custom(&op, NULL, CAIRN_F32, CAIRN_SHAPE(cairn_tensor_size(y, 0), COLUMNS), &y, 1);
}

/* The first stage is still in its backward when the last one has sent all gradients. */
static char *leave_early(cairn_env *env, void *ctx) {
    struct stage s = {.module = NULL};
    bool is_slow = cairn_env_rank(env) == 0;
    (void)ctx;
    EXPECT_OK(make_stage(env, forward_slowly, &is_slow, &s));
    PASS(step_well(&s));
    PASS(step_well(&s));
    end_stage(&s);
    return NULL;
}

static void a_rank_that_is_done_may_leave(void **state) {
    (void)state;
    run_ranks(2, leave_early, NULL);
}

/* ---- what fails within a step ends the pipeline ---- */

enum fault { FAILS = 1, IS_KILLED, ENDS, NEVER_COMES };

struct plan {
    int victim, micro_batch;
    bool in_backward;
    enum fault fault;
};
static struct plan plan;

static void strike(void) {
    if (plan.fault == IS_KILLED) kill(getpid(), SIGKILL);
    if (plan.fault == ENDS) _exit(0);
    while (plan.fault == NEVER_COMES) sleep_ms(100);
}

static cairn_status fail_backward(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                  const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)ctx, (void)dx, (void)dy, (void)y, (void)x, (void)count;
    strike();
    return CAIRN_EDEVICE;
}

/* ctx: whether this rank is the victim, in this step. */
static cairn_tensor *forward_until(void *ctx, cairn_module *module, cairn_tensor *input, int micro_batch) {
    static const struct cairn_custom_op op = {.struct_size = sizeof(op),
                                              .name = "fault",
                                              .forward = copy,
                                              .backward = fail_backward};
    cairn_tensor *y = cairn_module_forward(module, input);
    if (!*(const bool *)ctx || micro_batch != plan.micro_batch) return y;
    if (plan.in_backward)
        return cairn_custom(&op, NULL, CAIRN_F32, CAIRN_SHAPE(cairn_tensor_size(y, 0), COLUMNS), &y, 1);
    strike();
    return cairn_matmul(y, cairn_zeros(cairn__tensor_env(y), CAIRN_F32, CAIRN_SHAPE(COLUMNS + 1, 2)));
}

static const char *sentence(bool is_own) {
    if (plan.fault == FAILS && plan.in_backward) return is_own ? "" : "in stage";
    return plan.fault == FAILS ? "matmul" : plan.fault == NEVER_COMES ? "" : "rank";
}

/* Two steps go well, or one; then the victim's fault. */
static int run_stage(int rank, int size, int port) {
    const struct cairn__launch launch = launch_at(rank, size, port);
    const struct cairn_env_options options = {.struct_size = sizeof(options),
                                              .seed = 7,
                                              .timeout = plan.fault == NEVER_COMES ? 5 : 60};
    cairn_env *env = NULL;
    struct stage s = {.module = NULL};
    bool is_struck = false;
    MUST_OK(cairn__env_create_at(&launch, &options, &env));
    MUST_OK(make_stage(env, forward_until, &is_struck, &s));
    for (int i = 0; i < 1 + plan.micro_batch % 2; i++) { /* with and without group memory */
        char *failure = step_well(&s);
        MUST(!failure);
    }
    is_struck = rank == plan.victim;
    cairn_zero_grad(s.optimizer);
    const uint64_t begin_ns = cairn__now_ns();
    const cairn_status st = cairn_pipeline_step(s.pipeline, s.x, s.y, NULL);
    MUST(cairn__now_ns() - begin_ns < UINT64_C(20000000000));
    /* A rank before the victim may have finished its part with a fault in the last backward of the first stage. */
    if (st != CAIRN_OK) {
        MUST(rank == plan.victim || st == CAIRN_EPEER || st == CAIRN_ETIMEOUT);
        MUST(strstr(cairn_last_error(), sentence(rank == plan.victim)));
        MUST(cairn_step(s.optimizer) == CAIRN_ESTATE);
        cairn_zero_grad(s.optimizer);
        MUST(cairn_pipeline_step(s.pipeline, s.x, s.y, NULL) != CAIRN_OK); /* it stays so */
    } else {
        MUST(rank > plan.victim && plan.in_backward);
        MUST(cairn_clip_grad_norm(s.optimizer, 1, NULL) != CAIRN_OK); /* which waits for the others */
        MUST(cairn_pipeline_step(s.pipeline, s.x, s.y, NULL) != CAIRN_OK);
    }
    end_stage(&s);
    cairn_env_destroy(&env);
    return 0;
}

static void run_plan(void) {
    struct processes p;
    start_ranks(&p, RANKS, -1, run_stage);
    for (int r = 0; r < RANKS; r++) {
        if (r == plan.victim && plan.fault == NEVER_COMES) continue;
        const int end = end_of(&p, r);
        const bool is_killed = r == plan.victim && plan.fault == IS_KILLED;
        if (is_killed ? !WIFSIGNALED(end) : end != 0)
            fail_msg("victim %d, fault %d in %s of micro-batch %d: rank %d ended with %x", plan.victim, (int)plan.fault,
                     plan.in_backward ? "backward" : "forward", plan.micro_batch, r, (unsigned)end);
    }
    if (plan.fault == NEVER_COMES) {
        kill(p.pids[plan.victim], SIGKILL);
        (void)end_of(&p, plan.victim);
    }
    cairn__store_stop(&p.server);
}

enum { PLANS = RANKS * MICRO_BATCHES * 2 * 3 };
static int plans_to_run = 12;

/* Every rank, micro-batch, direction and fault; some of them spread over all. */
static void a_fault_at_any_call_ends_every_rank_with_a_message(void **state) {
    (void)state;
    for (int i = 0; i < plans_to_run; i++) {
        const int k = i * 31 % PLANS;
        plan = (struct plan){.victim = k % RANKS,
                             .micro_batch = k / RANKS % MICRO_BATCHES,
                             .in_backward = k / (RANKS * MICRO_BATCHES) % 2 == 1,
                             .fault = (enum fault)(1 + k / (2 * RANKS * MICRO_BATCHES))};
        run_plan();
    }
}

static void a_rank_that_never_comes_ends_the_others_after_the_timeout(void **state) {
    (void)state;
    plan = (struct plan){.victim = 1, .micro_batch = 1, .fault = NEVER_COMES};
    run_plan();
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "all") == 0) plans_to_run = PLANS;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_at_any_call_ends_every_rank_with_a_message), /* forks, so before any thread */
        cmocka_unit_test(a_rank_that_never_comes_ends_the_others_after_the_timeout),
        cmocka_unit_test(wrong_batches_fail_on_all_ranks_and_the_next_step_goes_on),
        cmocka_unit_test(wrong_pipelines_are_made_on_no_rank),
        cmocka_unit_test(a_rank_that_is_done_may_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
