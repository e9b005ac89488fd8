/* Ranks that share updates where something fails: memory runs out, a group dies, a rank is killed or stopped at any
 * moment of its training. Every other rank returns an error in time, and nothing steps or broadcasts what is in parts.
 *
 * usage: shards_faults_test [MOMENTS [SEED]] */
#include "../comm/group_processes.h"

#include "../failing_alloc.h"
#include "../mlp.h"
#include "../ranks.h"
#include "comm/group.h"
#include "core/status.h"

enum { IN = 96, HIDDEN = 160, OUT = 8, ROWS = 4, TIMEOUT = 3, AT_ONCE = 15, PATIENCE = 60 };

static int moments = 3;
static unsigned seed = 1;

struct training {
    cairn_env *env;
    cairn_module *model;
    cairn_optimizer *optimizer;
    amp_context *amp;
    ddp_context *net;
};

static void be_quiet(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie, (void)level, (void)message;
}

static cairn_status begin(struct training *t, cairn_env *env) {
    cairn_status st = CAIRN_OK;
    *t = (struct training){.env = env, .model = make_mlp(env, IN, HIDDEN, OUT)};
    TRY(cairn_adam_create(cairn_module_params(t->model), NULL, &t->optimizer));
    TRY(amp_initialize(env, t->model, t->optimizer,
                       amp_options(.opt_level = AMP_O2, .half_type = CAIRN_BF16, .verbosity = -1), &t->amp));
    TRY(ddp_create(t->model, cairn_env_group(env), ddp_options(.shard_optimizer = CAIRN_ON, .bucket_nbytes = 4000),
                   &t->net));
out:
    return st;
}

static void end(struct training *t) {
    ddp_destroy(&t->net);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
}

static cairn_status backward(struct training *t) {
    cairn_zero_grad(t->optimizer);
    cairn_tensor *x = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN));
    return amp_backward(t->amp, cairn_mean(ddp_forward(t->net, x)), t->optimizer);
}

/* ---- what stays in parts ---- */

static char *expect_new_contexts_refused(struct training *t) {
    ddp_context *net = NULL;
    cairn_group *group = cairn_env_group(t->env);
    EXPECT_REFUSED(ddp_create(t->model, group, NULL, &net), CAIRN_ESTATE, "a part of its f32 values alone");
    EXPECT_REFUSED(ddp_create(t->model, group, ddp_options(.shard_optimizer = CAIRN_ON), &net), CAIRN_ESTATE,
                   "a part of its f32 values alone");
    EXPECT_REFUSED(ddp_reducer_create(t->model, group, NULL, &net), CAIRN_ESTATE, "a part of its f32 values alone");
    EXPECT_REFUSED(cairn_step(t->optimizer), CAIRN_ESTATE, "anew");
    EXPECT(net == NULL);
    return NULL;
}

static char *end_with_dead_group(cairn_env *env, void *ctx) {
    struct training t;
    (void)ctx;
    EXPECT_OK(begin(&t, env));
    EXPECT_OK(backward(&t));
    EXPECT_OK(cairn_step(t.optimizer));
    EXPECT_OK(backward(&t));
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    (void)cairn__group_kill(ddp_group(t.net), cairn__fail(CAIRN_EPEER, "the test ends it"));
    EXPECT_REFUSED(cairn_step(t.optimizer), CAIRN_EPEER, "the test ends it");
    EXPECT(strncmp(cairn_last_error(), "cairn_step: ", 12) == 0 && !strstr(cairn_last_error(), "backward"));
    ddp_destroy(&t.net);
    EXPECT(t.net == NULL);
    PASS(expect_new_contexts_refused(&t));
    end(&t);
    return NULL;
}

static void parts_of_a_dead_group_are_refused(void **state) {
    (void)state;
    for (int p = 2; p <= 3; p++) run_ranks(p, end_with_dead_group, NULL);
}

static bool is_in_parts(const struct training *t) {
    const struct cairn_param_set *set = cairn_module_params(t->model);
    for (size_t i = 0; i < set->count; i++) {
        if (set->params[i]->is_sharded) return true;
    }
    return false;
}

/* The last rank has no memory at its at-th allocation in ddp_destroy: the context is kept on all ranks, or parameters
 * stay in parts on all. */
static char *end_without_memory(cairn_env *env, void *ctx) {
    bool was_kept = false, was_in_parts = false, runs_out = true;
    (void)ctx;
    for (int at = 1; runs_out; at++) {
        struct training t;
        int32_t failed = 0;
        EXPECT_OK(begin(&t, env));
        if (cairn_env_rank(env) == cairn_env_size(env) - 1) fail_in = at;
        ddp_destroy(&t.net);
        failed = cairn_env_rank(env) == cairn_env_size(env) - 1 && fail_in == 0;
        fail_in = 0;
        EXPECT_OK(cairn_allreduce(cairn_env_group(env), &failed, 1, CAIRN_I32, CAIRN_MAX, NULL));
        runs_out = failed;
        was_kept |= t.net != NULL;
        ddp_destroy(&t.net); /* again, where it was kept */
        EXPECT(t.net == NULL);
        if (is_in_parts(&t)) PASS(expect_new_contexts_refused(&t));
        was_in_parts |= is_in_parts(&t);
        end(&t);
    }
    EXPECT(was_kept && was_in_parts);
    return NULL;
}

static void parts_for_want_of_memory_are_refused(void **state) {
    (void)state;
    run_ranks(2, end_without_memory, NULL);
}

static char *end_with_unequal_states(cairn_env *env, void *ctx) {
    struct training t;
    (void)ctx;
    EXPECT_OK(begin(&t, env));
    amp_destroy(&t.amp);
    if (cairn_env_rank(env) == 1) cairn_optimizer_destroy(&t.optimizer);
    ddp_destroy(&t.net);
    EXPECT(t.net == NULL && is_in_parts(&t));
    EXPECT_SAYS("destroyed its optimizer");
    end(&t);
    return NULL;
}

static void ranks_with_unequal_states_keep_parts(void **state) {
    (void)state;
    run_ranks(2, end_with_unequal_states, NULL);
}

/* ---- a rank that fails alone ---- */

enum call { CLIP, NORMS, STEP, NUM_CALLS };

static cairn_status make_call(struct training *t, enum call call) {
    double norm = 0;
    if (call == CLIP) return cairn_clip_grad_norm(t->optimizer, 1, &norm);
    return call == NORMS ? cairn_grad_norms(t->optimizer, NULL, 0, &norm) : cairn_step(t->optimizer);
}

static char *fail_alone(cairn_env *env, void *ctx) {
    const enum call call = *(const enum call *)ctx;
    const bool is_it = cairn_env_rank(env) == cairn_env_size(env) - 1;
    int32_t runs_out = 1;
    for (int at = 1; runs_out; at++) {
        struct training t;
        EXPECT_OK(begin(&t, env));
        EXPECT_OK(backward(&t));
        EXPECT_OK(cairn_barrier(cairn_env_group(env)));
        const uint64_t begin_ns = cairn__now_ns();
        if (is_it) fail_in = at;
        cairn_status st = make_call(&t, call);
        int32_t failed = is_it && st != CAIRN_OK;
        runs_out = is_it && fail_in == 0;
        fail_in = 0;
        EXPECT(!failed || (st == CAIRN_ENOMEM && strstr(cairn_last_error(), "memory")));
        if (st == CAIRN_OK) st = cairn_step(t.optimizer);
        const char *words = strstr(cairn_last_error(), "memory");
        EXPECT((double)(cairn__now_ns() - begin_ns) * 1e-9 < AT_ONCE);
        EXPECT_OK(cairn_allreduce(cairn_env_group(env), &failed, 1, CAIRN_I32, CAIRN_MAX, NULL));
        EXPECT_OK(cairn_allreduce(cairn_env_group(env), &runs_out, 1, CAIRN_I32, CAIRN_MAX, NULL));
        EXPECT((st != CAIRN_OK) == (failed != 0) && (!failed || words));
        end(&t);
    }
    return NULL;
}

static void rank_without_memory_ends_the_calls_of_the_others(void **state) {
    (void)state;
    for (enum call call = CLIP; call < NUM_CALLS; call++) run_ranks(2, fail_alone, &call);
}

/* ---- an optimizer over two models ---- */

static char *step_over_two(cairn_env *env, void *ctx) {
    struct training t;
    cairn_group *half = NULL;
    cairn_module *other = make_mlp(env, IN, HIDDEN, OUT);
    ddp_context *net = NULL;
    double norm = 0;
    (void)ctx;
    EXPECT_OK(begin(&t, env));
    EXPECT_OK(cairn_group_split(cairn_env_group(env), cairn_env_rank(env) / 2, 0, NULL, &half));
    EXPECT_OK(ddp_create(other, half, ddp_options(.shard_optimizer = CAIRN_ON), &net));
    amp_destroy(&t.amp);
    EXPECT_OK(cairn_adam_add_group(t.optimizer, cairn_module_params(other), NULL, 0, NULL));
    EXPECT_REFUSED(cairn_grad_norms(t.optimizer, NULL, 0, &norm), CAIRN_ENOTSUP, "shared by another");
    EXPECT_REFUSED(cairn_clip_grad_norm(t.optimizer, 1, &norm), CAIRN_ENOTSUP, "shared by another");
    EXPECT_REFUSED(cairn_step(t.optimizer), CAIRN_ENOTSUP, "shared by another");
    ddp_destroy(&net);
    end(&t);
    cairn_module_destroy(&other);
    cairn_group_destroy(&half);
    return NULL;
}

static void optimizer_over_models_of_different_ranks_is_refused(void **state) {
    (void)state;
    run_ranks(4, step_over_two, NULL);
}

/* ---- random moments ---- */

struct moment {
    int number, size, victim;
    bool stops; /* it is stopped, and not killed */
    long wait_us;
};

/* What parent and children share. */
static struct board {
    struct moment moment;
    atomic_int ready;
    atomic_ullong struck_ns;
    struct told {
        cairn_status status;
        uint64_t at_ns;
        char text[1024];
    } told[MAX_RANKS];
} * board;

static cairn_status train_until_failure(struct training *t) {
    cairn_status st = CAIRN_OK;
    for (int step = 0; st == CAIRN_OK; step++) {
        TRY(backward(t));
        if (step % 3 == 1) TRY(cairn_clip_grad_norm(t->optimizer, 1, NULL));
        TRY(cairn_step(t->optimizer));
        if (step == 0) atomic_fetch_add(&board->ready, 1);
        if (step % 5 != 4) continue;
        ddp_destroy(&t->net); /* gathers all states */
        TRY(ddp_create(t->model, cairn_env_group(t->env),
                       ddp_options(.shard_optimizer = CAIRN_ON, .bucket_nbytes = 4000), &t->net));
    }
out:
    return st;
}

static int run_rank(int rank, int size, int port) {
    struct told *told = &board->told[rank];
    struct training t;
    cairn_env *env = NULL;
    const struct cairn__launch launch = launch_at(rank, size, port);
    MUST_OK(cairn__env_create_at(&launch, cairn_env_options(.seed = 7, .timeout = TIMEOUT), &env));
    MUST_OK(begin(&t, env));
    told->status = train_until_failure(&t);
    told->at_ns = cairn__now_ns();
    snprintf(told->text, sizeof(told->text), "%s", cairn_last_error());
    end(&t);
    cairn_env_destroy(&env);
    return t.net || env ? 1 : 0;
}

static struct moment make_moment(int number) {
    unsigned random = seed * 7919u + (unsigned)number * 104729u;
    struct moment m = {.number = number, .stops = number % 2 == 1};
    for (int i = 0; i < 4; i++) random = random * 1103515245u + 12345u;
    m.size = 2 + (int)(random >> 16) % 3;
    m.victim = (int)(random >> 8 & 0xffff) % m.size;
    m.wait_us = (long)(random >> 4) % 60000;
    return m;
}

static void strike(struct processes *p, const struct moment *m) {
    const uint64_t deadline = cairn__now_ns() + PATIENCE * 1000000000ull;
    while (atomic_load(&board->ready) < m->size && cairn__now_ns() < deadline) sleep_ms(1);
    nanosleep(&(struct timespec){.tv_nsec = m->wait_us * 1000}, NULL);
    kill(p->pids[m->victim], m->stops ? SIGSTOP : SIGKILL);
    atomic_store(&board->struck_ns, cairn__now_ns());
}

/* Ends what does not end by itself. */
static bool survivors_end(struct processes *p, const struct moment *m) {
    const uint64_t deadline = cairn__now_ns() + PATIENCE * 1000000000ull;
    bool all = true;
    for (int r = 0; r < p->size; r++) {
        int status = 0;
        if (r == m->victim) continue;
        while (waitpid(p->pids[r], &status, WNOHANG) == 0 && cairn__now_ns() < deadline) sleep_ms(1);
        if (cairn__now_ns() >= deadline) {
            kill(p->pids[r], SIGKILL);
            status = end_of(p, r);
        }
        all = all && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    kill(p->pids[m->victim], SIGKILL);
    (void)end_of(p, m->victim);
    return all;
}

static const char *judge(const struct moment *m, const struct told *told) {
    const double took = ((double)told->at_ns - (double)atomic_load(&board->struck_ns)) * 1e-9;
    if (told->status != CAIRN_EPEER && !(m->stops && told->status == CAIRN_ETIMEOUT))
        return m->stops ? "neither CAIRN_EPEER nor CAIRN_ETIMEOUT" : "not CAIRN_EPEER";
    if (took > (m->stops ? 2 * TIMEOUT : 0) + AT_ONCE) return "it came too late";
    return strlen(told->text) > 20 ? NULL : "no sentence";
}

static void run_moment(const struct moment *m) {
    struct processes p;
    memset(board, 0, sizeof(*board));
    board->moment = *m;
    start_ranks(&p, m->size, -1, run_rank);
    strike(&p, m);
    const bool all = survivors_end(&p, m);
    cairn__store_stop(&p.server);
    for (int r = 0; r < m->size; r++) {
        const struct told *told = &board->told[r];
        const char *wrong = r == m->victim ? NULL : all ? judge(m, told) : "not all others ended well in time";
        if (!wrong) continue;
        fail_msg("moment %d of seed %u: rank %d of %d is %s %ld us after a step; rank %d: %s: CAIRN_%s: %s", m->number,
                 seed, m->victim, m->size, m->stops ? "stopped" : "killed", m->wait_us, r, wrong,
                 cairn_status_name(told->status), told->text);
    }
}

static void other_ranks_report_one_that_fails_at_any_moment(void **state) {
    (void)state;
    for (int number = 0; number < moments; number++) {
        const struct moment m = make_moment(number);
        run_moment(&m);
    }
    assert_int_equal(count_files_in_dev_shm(), 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_ranks_report_one_that_fails_at_any_moment), /* before there are threads */
        cmocka_unit_test(parts_of_a_dead_group_are_refused),
        cmocka_unit_test(parts_for_want_of_memory_are_refused),
        cmocka_unit_test(ranks_with_unequal_states_keep_parts),
        cmocka_unit_test(rank_without_memory_ends_the_calls_of_the_others),
        cmocka_unit_test(optimizer_over_models_of_different_ranks_is_refused),
    };
    if (argc > 1) moments = atoi(argv[1]);
    if (argc > 2) seed = (unsigned)atoi(argv[2]);
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) return 1;
    cairn_set_log(be_quiet, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
