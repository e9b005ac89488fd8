/* Ranks as processes and as threads give the same bits; if a thread fails within a step, the others' steps end with its
 * error message. */
#include "../comm/group_processes.h"

#include "chain.h"

struct job {
    struct chain c;
    struct outcome out[2]; /* of replicas */
};

static const struct chain cases[] = {
    {"1F1B", 4, 1, CAIRN_PIPELINE_1F1B, .level = AMP_O2, .half = CAIRN_BF16, .norms = true},
    {"interleaved", 2, 2, CAIRN_PIPELINE_INTERLEAVED_1F1B, .level = AMP_O1, .half = CAIRN_F16, .loss_scale = 64},
    {"GPipe, 2 replicas of 2", 2, 1, CAIRN_PIPELINE_GPIPE, .replicas = 2, .kind = CHAIN_ADAM},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

static int ranks_of(const struct chain *c) {
    return c->ranks * (c->replicas ? c->replicas : 1);
}

static const struct cairn_env_options env_options = {.struct_size = sizeof(env_options), .seed = 7, .timeout = 60};

static int run_in(cairn_env *env, struct job *job) {
    const struct chain_run run = {&job->c, job->out};
    struct chain_rank r = {.env = env};
    char *failure = chain_train(&r, env, &run);
    if (failure) fprintf(stderr, "%s\n", failure);
    chain_end(&r);
    cairn_env_destroy(&env);
    const int status = failure != NULL;
    free(failure);
    return status;
}

static int run_thread(int rank, void *argument) {
    cairn_env *env = NULL;
    (void)rank;
    return cairn_env_create(NULL, NULL, &env_options, &env) == CAIRN_OK ? run_in(env, argument) : 1;
}

static struct job *forked;

static int run_process(int rank, int size, int port) {
    const struct cairn__launch launch = launch_at(rank, size, port);
    cairn_env *env = NULL;
    return cairn__env_create_at(&launch, &env_options, &env) == CAIRN_OK ? run_in(env, forked) : 1;
}

static void run_processes(struct job *job, int size) {
    struct processes p;
    forked = job;
    start_ranks(&p, size, -1, run_process);
    for (int r = 0; r < size; r++) assert_int_equal(end_of(&p, r), 0);
    cairn__store_stop(&p.server);
}

static struct job *new_job(const struct chain *c) {
    struct job *job = mmap(NULL, sizeof(*job), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(job != MAP_FAILED);
    job->c = *c;
    job->c.rows = 16;
    job->c.n_microbatches = 4;
    job->c.steps = 3;
    return job;
}

static void processes_and_threads_give_the_same_bits(void **state) {
    struct job *processes[CASES];
    (void)state;
    for (int i = 0; i < CASES; i++) { /* first: what has threads does not fork */
        processes[i] = new_job(&cases[i]);
        run_processes(processes[i], ranks_of(&cases[i]));
    }
    for (int i = 0; i < CASES; i++) {
        struct job *threads = new_job(&cases[i]);
        OK(cairn_spawn_threads(run_thread, threads, ranks_of(&cases[i]), NULL));
        for (int r = 0; r < (cases[i].replicas ? 2 : 1); r++)
            chain_same(cases[i].name, &threads->out[r], &processes[i]->out[r]);
        assert_true(threads->out[0].losses[2] > 0 || threads->out[0].losses[1] > 0);
        munmap(threads, sizeof(*threads));
        munmap(processes[i], sizeof(*processes[i]));
    }
}

/* ---- a thread that fails ---- */

static cairn_tensor *mean_square(void *ctx, cairn_tensor *output, cairn_tensor *target, int micro_batch) {
    (void)ctx, (void)micro_batch;
    return cairn_mse_loss(output, target);
}

static cairn_tensor *fail_on_the_last(void *ctx, cairn_module *module, cairn_tensor *input, int micro_batch) {
    if (!*(const bool *)ctx || micro_batch != 2) return cairn_module_forward(module, input);
    return cairn_matmul(input, cairn_zeros(cairn__tensor_env(input), CAIRN_F32, CAIRN_SHAPE(3, 2)));
}

static char sentences[3][1024];

static int fail_in_a_step(int rank, void *argument) {
    cairn_env *env = NULL;
    cairn_pipeline *pipeline = NULL;
    bool is_last = rank == 2;
    (void)argument;
    MUST_OK(cairn_env_create(NULL, NULL, cairn_env_options(.timeout = 60), &env));
    cairn_module *module = cairn_linear(env, WIDTH, WIDTH);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, WIDTH));
    MUST_OK(cairn_pipeline_create(&module, 1, cairn_env_group(env),
                                  cairn_pipeline_options(.n_microbatches = 4, .forward = fail_on_the_last,
                                                         .ctx = &is_last, .loss = mean_square),
                                  &pipeline));
    MUST(cairn_pipeline_step(pipeline, x, x, NULL) != CAIRN_OK);
    snprintf(sentences[rank], sizeof(sentences[rank]), "%s", cairn_last_error());
    cairn_pipeline_destroy(&pipeline);
    cairn_tensor_destroy(&x);
    cairn_module_destroy(&module);
    cairn_env_destroy(&env);
    return 0;
}

static void a_failing_thread_ends_the_step_of_all(void **state) {
    (void)state;
    OK(cairn_spawn_threads(fail_in_a_step, NULL, 3, NULL));
    for (int r = 0; r < 3; r++) {
        if (!strstr(sentences[r], "matmul") || !strstr(sentences[r], "stage 2 (rank 2)"))
            fail_msg("rank %d: %s", r, sentences[r]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_and_threads_give_the_same_bits),
        cmocka_unit_test(a_failing_thread_ends_the_step_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
