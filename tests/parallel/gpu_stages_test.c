/* Stages with one GPU each, on real GPUs or on the stand-in: three or two, as the machine has; with a single GPU one
 * rank runs two stages.
 *
 * usage: gpu_stages_test [required]    (without the word: exits with 77 if there is no GPU) */
#include "chain.h"

#include <poll.h>

#include "../waits.h"
#include "core/trace.h"

enum { COLUMNS = 6, MOST_RANKS = 3 };

static int num_ranks;

static bool has_gpu(int ordinal) {
    struct cairn_device *device = NULL;
    const bool has = cairn__device_open("cuda", ordinal, &device) == CAIRN_OK;
    cairn__device_close(&device);
    return has;
}

/* ---- bits ---- */

static void same_as_alone(const struct chain *c) {
    static struct outcome alone_out, out;
    struct chain alone = *c;
    alone.ranks = 0;
    chain_run(&alone, &alone_out);
    chain_run(c, &out);
    chain_same(c->name, &out, &alone_out);
    assert_true(isfinite(out.losses[c->steps - 1]) && out.losses[c->steps - 1] != out.losses[0]);
}

#define BASE .n_microbatches = 4, .rows = 16, .steps = 4

static void stages_give_the_bits_of_one_rank(void **state) {
    const int n = num_ranks, chunks = 2;
    const struct chain cases[] = {
        {"interleaved", n, chunks, CAIRN_PIPELINE_INTERLEAVED_1F1B, BASE},
        {"interleaved, O2", n, chunks, CAIRN_PIPELINE_INTERLEAVED_1F1B, BASE, .level = AMP_O2, .half = CAIRN_F16},
        {"GPipe", n, 1, CAIRN_PIPELINE_GPIPE, BASE},
        {"1F1B", n, 1, CAIRN_PIPELINE_1F1B, BASE},
        {"1F1B, rows that do not come out even", n, 1, CAIRN_PIPELINE_1F1B, .split_size = 3, .rows = 16, .steps = 4},
        {"1F1B, O1", n, 1, CAIRN_PIPELINE_1F1B, BASE, .level = AMP_O1, .half = CAIRN_BF16},
        {"1F1B, O2", n, 1, CAIRN_PIPELINE_1F1B, BASE, .level = AMP_O2, .half = CAIRN_F16},
        {"1F1B, O3", n, 1, CAIRN_PIPELINE_1F1B, BASE, .level = AMP_O3, .half = CAIRN_BF16},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) same_as_alone(&cases[i]);
}

/* ---- a stage by hand ---- */

struct stage {
    cairn_module *module;
    cairn_optimizer *optimizer;
    cairn_pipeline *pipeline;
    cairn_tensor *x, *y;
    bool is_struck; /* the next forward does what the plan says */
    int runs;       /* of what is checkpointed */
};

enum fault { FAILS = 1, FAILS_IN_BACKWARD, GROWS, LEAVES, NEVER_COMES };
enum call { STEP, STEP_WITHOUT_LOSS, EVAL, EVAL_WITH_LOSS };
struct plan {
    enum fault fault;
    int victim;
    enum call call;
};

static cairn_tensor *mean_square(void *ctx, cairn_tensor *output, cairn_tensor *target, int micro_batch) {
    (void)ctx, (void)micro_batch;
    return cairn_mse_loss(output, target);
}

static cairn_tensor *misfit(cairn_tensor *y) {
    return cairn_matmul(y, cairn_zeros(cairn__tensor_env(y), CAIRN_F32, CAIRN_SHAPE(COLUMNS + 1, 2)));
}

static cairn_tensor *misshape(void *ctx, cairn_module *module, cairn_tensor *input, int micro_batch) {
    const struct stage *s = ctx;
    cairn_tensor *y = cairn_module_forward(module, input);
    return s->is_struck && micro_batch == 1 ? misfit(y) : y;
}

static cairn_tensor *misshape_again(void *ctx, cairn_tensor *const *inputs, int count) {
    struct stage *s = ctx;
    (void)count;
    cairn_tensor *y = cairn_module_forward(s->module, inputs[0]);
    return s->runs++ > 0 ? misfit(y) : y;
}

/* In the backward of the last micro-batch, when all stages have computed their forwards. */
static cairn_tensor *misshape_late(void *ctx, cairn_module *module, cairn_tensor *input, int micro_batch) {
    struct stage *s = ctx;
    return s->is_struck && micro_batch == 3 ? cairn_checkpoint(misshape_again, s, &input, 1)
                                            : cairn_module_forward(module, input);
}

static cairn_tensor *grow(void *ctx, cairn_module *module, cairn_tensor *input, int micro_batch) {
    const struct stage *s = ctx;
    cairn_tensor *y = cairn_module_forward(module, input);
    const bool is_struck = s->is_struck && micro_batch == 1;
    return is_struck ? cairn_cat(2, (cairn_tensor *[]){y, y}, 0) : y;
}

static cairn_status make_stage(cairn_env *env, int n_microbatches, cairn_pipeline_forward_fn forward, struct stage *s) {
    const int64_t rows = 2 * (int64_t)n_microbatches;
    s->module = cairn_linear(env, COLUMNS, COLUMNS);
    s->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(rows, COLUMNS));
    s->y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(rows, COLUMNS));
    const cairn_status st = cairn_sgd_create(cairn_module_params(s->module), NULL, &s->optimizer);
    if (st != CAIRN_OK) return st;
    return cairn_pipeline_create(&s->module, 1, cairn_env_group(env),
                                 cairn_pipeline_options(.n_microbatches = n_microbatches, .loss = mean_square,
                                                        .forward = forward, .ctx = s, .optimizer = s->optimizer),
                                 &s->pipeline);
}

static void end_stage(struct stage *s) {
    cairn_pipeline_destroy(&s->pipeline);
    cairn_optimizer_destroy(&s->optimizer);
    cairn_module_destroy(&s->module);
    cairn_tensor_destroy(&s->x);
    cairn_tensor_destroy(&s->y);
}

static char *step_well(struct stage *s, double *loss) {
    cairn_zero_grad(s->optimizer);
    EXPECT_OK(cairn_pipeline_step(s->pipeline, s->x, s->y, loss));
    EXPECT_OK(cairn_step(s->optimizer));
    return NULL;
}

/* ---- waiting ---- */

static pthread_barrier_t all_here;

struct counting {
    int n_microbatches;
    bool has_loss;
    unsigned long long waits; /* out: calls by all ranks that wait in one step, once messages are known */
};

static char *count_waits(cairn_env *env, void *ctx) {
    struct counting *c = ctx;
    struct stage s = {.module = NULL};
    unsigned long long before = 0;
    double loss = 0;
    EXPECT_OK(make_stage(env, c->n_microbatches, NULL, &s));
    for (int i = 0; i < 3; i++) PASS(step_well(&s, NULL));
    pthread_barrier_wait(&all_here);
    before = waits();
    pthread_barrier_wait(&all_here);
    PASS(step_well(&s, c->has_loss ? &loss : NULL));
    pthread_barrier_wait(&all_here);
    if (cairn_env_rank(env) == 0) c->waits = waits() - before;
    pthread_barrier_wait(&all_here);
    end_stage(&s);
    return NULL;
}

static unsigned long long waits_of(int n_microbatches, bool has_loss) {
    struct counting c = {n_microbatches, has_loss, 0};
    assert_int_equal(pthread_barrier_init(&all_here, NULL, (unsigned)num_ranks), 0);
    run_ranks(num_ranks, count_waits, &c);
    pthread_barrier_destroy(&all_here);
    printf("%llu calls wait in a step of %d micro-batches %s its loss, on %d ranks\n", c.waits, n_microbatches,
           has_loss ? "with" : "without", num_ranks);
    return c.waits;
}

/* To agree on the batch words go up, and come down; with a loss each rank waits for its GPU, and the last one
 * reads, by two calls. */
static void the_host_waits_for_no_micro_batch(void **state) {
    const unsigned long long ranks = (unsigned)num_ranks;
    (void)state;
    const unsigned long long without_loss = waits_of(4, false);
    assert_true(without_loss <= 2 * ranks && waits_of(16, false) == without_loss);
    assert_true(waits_of(4, true) <= 3 * ranks + 2 && waits_of(16, true) <= 3 * ranks + 2);
}

/* ---- failures ---- */

static cairn_status call(struct stage *s, enum call call, double *loss, cairn_tensor **output) {
    return call >= EVAL ? cairn_pipeline_eval(s->pipeline, s->x, s->y, call == EVAL ? NULL : loss, output)
                        : cairn_pipeline_step(s->pipeline, s->x, s->y, call == STEP ? loss : NULL);
}

static char *expect_failed(const struct plan *plan, struct stage *s, cairn_status st, bool is_victim) {
    if (plan->fault <= FAILS_IN_BACKWARD) EXPECT_SAYS("matmul");
    if (plan->fault == GROWS) EXPECT_SAYS("micro-batch 1 sends has another shape or type than in the call before");
    if (is_victim && plan->fault == GROWS) EXPECT(st == CAIRN_ENOTSUP);
    if (!is_victim) EXPECT(st == CAIRN_EPEER || st == CAIRN_ETIMEOUT);
    if (plan->fault <= GROWS && plan->call < EVAL) EXPECT(cairn_step(s->optimizer) == CAIRN_ESTATE);
    cairn_zero_grad(s->optimizer);
    return NULL;
}

static char *fail_in_a_call(cairn_env *env, void *ctx) {
    static const cairn_pipeline_forward_fn forwards[] = {
        [FAILS] = misshape, [FAILS_IN_BACKWARD] = misshape_late, [GROWS] = grow, [NEVER_COMES] = NULL};
    const struct plan *plan = ctx;
    const bool is_victim = cairn_env_rank(env) == plan->victim;
    struct stage s = {.module = NULL};
    cairn_tensor *output = NULL;
    double loss = 0;
    EXPECT_OK(make_stage(env, 4, forwards[plan->fault], &s));
    for (int i = 0; i < 2; i++) {
        cairn_zero_grad(s.optimizer);
        EXPECT_OK(call(&s, plan->call, &loss, &output));
        cairn_tensor_destroy(&output);
    }
    if (is_victim && plan->fault == LEAVES) {
        end_stage(&s);
        return NULL;
    }
    if (is_victim && plan->fault == NEVER_COMES) {
        poll(NULL, 0, 9000);
        end_stage(&s);
        return NULL;
    }
    s.is_struck = is_victim;
    cairn_zero_grad(s.optimizer);
    loss = -1;
    const uint64_t begin_ns = cairn__now_ns();
    const cairn_status st = call(&s, plan->call, &loss, &output);
    EXPECT(cairn__now_ns() - begin_ns < UINT64_C(15000000000));
    EXPECT(loss == -1 && !output);
    EXPECT(st != CAIRN_OK || (plan->call == STEP_WITHOUT_LOSS && !is_victim)); /* which has queued its part */
    if (st != CAIRN_OK) PASS(expect_failed(plan, &s, st, is_victim));
    EXPECT(cairn_pipeline_step(s.pipeline, s.x, s.y, NULL) != CAIRN_OK);
    end_stage(&s);
    return NULL;
}

/* Ranks are threads, as those of the stand-in for NCCL are. */
static void strike(enum fault fault, int victim, enum call call) {
    static const struct cairn_env_options options = {.struct_size = sizeof(options), .seed = 7, .timeout = 3};
    struct plan plan = {fault, victim, call};
    if (num_ranks == 1) SKIP("one rank has no neighbours");
    run_ranks_with(num_ranks, &options, fail_in_a_call, &plan);
}

static void no_rank_has_the_loss_of_a_step_that_failed_on_one(void **state) {
    (void)state;
    for (int victim = 0; victim < num_ranks; victim++) {
        strike(FAILS, victim, STEP);
        if (victim < num_ranks - 1) strike(GROWS, victim, STEP); /* the last one's output goes nowhere */
    }
}

static void no_rank_has_the_loss_of_a_step_whose_last_backward_failed(void **state) {
    (void)state;
    strike(FAILS_IN_BACKWARD, 0, STEP);
}

static void no_rank_has_a_result_of_an_evaluation_that_failed_on_one(void **state) {
    (void)state;
    strike(FAILS, 0, EVAL);
    strike(FAILS, 1, EVAL_WITH_LOSS);
}

static void a_step_without_loss_may_fail_with_the_next_call(void **state) {
    (void)state;
    strike(FAILS, 0, STEP_WITHOUT_LOSS);
}

static void a_missing_rank_fails_the_others_with_a_message(void **state) {
    (void)state;
    strike(LEAVES, 1, STEP);
    strike(NEVER_COMES, 1, STEP);
}

/* ---- what may change ---- */

/* Numbers of rows, other sizes and frozen parameters: what is sent is told again. */
static char *change(cairn_env *env, void *ctx) {
    struct stage s = {.module = NULL};
    static const int rows[] = {8, 8, 3, 3, 8, 16};
    double loss = 0;
    (void)ctx;
    EXPECT_OK(make_stage(env, 4, NULL, &s));
    for (int i = 0; i < 6; i++) {
        cairn_tensor_destroy(&s.x);
        cairn_tensor_destroy(&s.y);
        s.x = cairn_randn(env, CAIRN_F32, 3, (int64_t[]){rows[i], 1 + i % 2, COLUMNS});
        s.y = cairn_randn(env, CAIRN_F32, 3, (int64_t[]){rows[i], 1 + i % 2, COLUMNS});
        if (i == 4 && num_ranks > 1 && cairn_env_rank(env) == 0) EXPECT_OK(cairn_module_require_grad(s.module, 0));
        EXPECT(s.x && s.y);
        PASS(step_well(&s, &loss));
        PASS(step_well(&s, &loss));
        EXPECT_OK(cairn_pipeline_eval(s.pipeline, s.x, s.y, &loss, NULL));
        EXPECT_OK(cairn_pipeline_eval(s.pipeline, s.x, s.y, &loss, NULL));
        EXPECT(cairn_env_rank(env) != num_ranks - 1 || (loss > 0 && isfinite(loss)));
    }
    end_stage(&s);
    return NULL;
}

static void batches_may_differ_from_step_to_step(void **state) {
    (void)state;
    run_ranks(num_ranks, change, NULL);
}

int main(int argc, char **argv) {
    const bool required = argc > 1 && strcmp(argv[1], "required") == 0;
    while (num_ranks < MOST_RANKS && has_gpu(num_ranks)) num_ranks++;
    if (num_ranks == 0) {
        fprintf(stderr, "skipped: %s\n", cairn_last_error());
        return required ? 1 : 77;
    }
    setenv("CAIRN_DEVICE", "cuda", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_give_the_bits_of_one_rank),
        cmocka_unit_test(the_host_waits_for_no_micro_batch),
        cmocka_unit_test(batches_may_differ_from_step_to_step),
        cmocka_unit_test(no_rank_has_the_loss_of_a_step_that_failed_on_one),
        cmocka_unit_test(no_rank_has_the_loss_of_a_step_whose_last_backward_failed),
        cmocka_unit_test(no_rank_has_a_result_of_an_evaluation_that_failed_on_one),
        cmocka_unit_test(a_step_without_loss_may_fail_with_the_next_call),
        cmocka_unit_test(a_missing_rank_fails_the_others_with_a_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
