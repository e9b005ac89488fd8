/* Stages on a GPU each, on real ones or on the stand-in: three where the machine has so many, or two; with one GPU the
 * rank is alone and has two stages.
 *
 * usage: gpu_stages_test [required]    (without the word it ends with 77 where there is no GPU) */
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
};

enum fault { FAILS = 1, GROWS, LEAVES, NEVER_COMES };
struct plan {
    enum fault fault;
    int victim;
};

static cairn_tensor *mean_square(void *ctx, cairn_tensor *output, cairn_tensor *target, int micro_batch) {
    (void)ctx, (void)micro_batch;
    return cairn_mse_loss(output, target);
}

static cairn_tensor *misshape(void *ctx, cairn_module *module, cairn_tensor *input, int micro_batch) {
    const struct stage *s = ctx;
    cairn_tensor *y = cairn_module_forward(module, input);
    if (!s->is_struck || micro_batch != 1) return y;
    return cairn_matmul(y, cairn_zeros(cairn__tensor_env(y), CAIRN_F32, CAIRN_SHAPE(COLUMNS + 1, 2)));
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
static unsigned long long counted[2];

/* Calls by all ranks that wait in one step, once messages are known. */
static char *count_waits(cairn_env *env, void *ctx) {
    const int which = *(const int *)ctx;
    struct stage s = {.module = NULL};
    unsigned long long before = 0;
    EXPECT_OK(make_stage(env, which ? 16 : 4, NULL, &s));
    for (int i = 0; i < 3; i++) PASS(step_well(&s, NULL));
    pthread_barrier_wait(&all_here);
    before = waits();
    pthread_barrier_wait(&all_here);
    PASS(step_well(&s, NULL));
    pthread_barrier_wait(&all_here);
    if (cairn_env_rank(env) == 0) counted[which] = waits() - before;
    pthread_barrier_wait(&all_here);
    end_stage(&s);
    return NULL;
}

static void the_host_waits_for_no_micro_batch(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        assert_int_equal(pthread_barrier_init(&all_here, NULL, (unsigned)num_ranks), 0);
        run_ranks(num_ranks, count_waits, &which);
        pthread_barrier_destroy(&all_here);
    }
    printf("%llu calls wait in a step of 4 micro-batches, %llu of 16, on %d ranks\n", counted[0], counted[1],
           num_ranks);
    assert_true(counted[0] == counted[1]);
    assert_true(counted[0] <= 2 * (unsigned)num_ranks); /* to agree on the batch: words go up, and come down */
}

/* ---- failures ---- */

static char *fail_in_a_step(cairn_env *env, void *ctx) {
    const struct plan *plan = ctx;
    const int rank = cairn_env_rank(env);
    const bool is_victim = rank == plan->victim;
    struct stage s = {.module = NULL};
    double loss = 0;
    EXPECT_OK(make_stage(env, 4, plan->fault == GROWS ? grow : misshape, &s));
    for (int i = 0; i < 2; i++) PASS(step_well(&s, &loss));
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
    const uint64_t begin_ns = cairn__now_ns();
    const cairn_status st = cairn_pipeline_step(s.pipeline, s.x, s.y, &loss);
    EXPECT(cairn__now_ns() - begin_ns < UINT64_C(15000000000));
    const bool is_done = st == CAIRN_OK; /* has queued its part, or got what a rank between sent after its own abort */
    EXPECT(!is_done || !is_victim);
    if (!is_done) {
        if (plan->fault == FAILS) EXPECT_SAYS("matmul");
        if (plan->fault == GROWS) EXPECT_SAYS("micro-batch 1 sends has another shape or type than in the call before");
        if (is_victim && plan->fault == GROWS) EXPECT(st == CAIRN_ENOTSUP);
        if (!is_victim) EXPECT(st == CAIRN_EPEER || st == CAIRN_ETIMEOUT);
        if (plan->fault <= GROWS) EXPECT(cairn_step(s.optimizer) == CAIRN_ESTATE);
        cairn_zero_grad(s.optimizer);
    }
    EXPECT(cairn_pipeline_step(s.pipeline, s.x, s.y, NULL) != CAIRN_OK);
    end_stage(&s);
    return NULL;
}

/* Ranks are threads, as those of the stand-in for NCCL are. */
static void a_fault_of_one_rank_ends_the_others_with_a_sentence(void **state) {
    static const struct cairn_env_options options = {.struct_size = sizeof(options), .seed = 7, .timeout = 3};
    (void)state;
    if (num_ranks == 1) skip();
    for (int fault = FAILS; fault <= NEVER_COMES; fault++) {
        for (int victim = 0; victim < num_ranks; victim++) {
            struct plan plan = {(enum fault)fault, victim};
            if (fault == GROWS && victim == num_ranks - 1) continue; /* whose output goes nowhere */
            if (fault > GROWS && victim != 1) continue;
            run_ranks_with(num_ranks, &options, fail_in_a_step, &plan);
        }
    }
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
        cmocka_unit_test(a_fault_of_one_rank_ends_the_others_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
