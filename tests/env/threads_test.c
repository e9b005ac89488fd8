/* cairn_spawn_threads: its ranks, each with its own thread pool, compute the same as ranks that are processes, and a
 * failure of one rank ends the others with an error message. */
#include "../ranks.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comm/group_backend.h"
#include "core/parallel.h"
#include "process.h"

static int threads_called(const char *name) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *d; tasks && (d = readdir(tasks));) {
        char path[300], found[64] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", d->d_name);
        FILE *comm = d->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (comm && fgets(found, sizeof(found), comm)) found[strcspn(found, "\n")] = '\0';
        if (comm) fclose(comm);
        count += strcmp(found, name) == 0;
    }
    if (tasks) closedir(tasks);
    return count;
}

/* ---- what goes well ---- */

/* Where processes are forked: the thread sanitizer has a thread of its own. */
static void skip_under_sanitizer(void) {
#if defined(__SANITIZE_THREAD__)
    print_message("ThreadSanitizer has a thread of its own, with which cairn_spawn refuses to fork\n");
    skip();
#endif
}

enum { STEPS = 12, IN = 300, OUT = 200, MAX = 5 };

struct training {
    int32_t failed;
    float losses[STEPS], weight[OUT * IN];
};

static int train(int rank, void *argument) {
    struct training *result = (struct training *)argument + rank;
    cairn_env *env = NULL;
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    ddp_context *net = NULL;
    cairn_param weight;
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 0.05;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.seed = 7, .timeout = 60), &env) != CAIRN_OK) return 1;
    if (cairn_env_rank(env) != rank) return 2;
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(16, IN));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(16, OUT));
    cairn_module *model = cairn_linear(env, IN, OUT);
    bool good = cairn_sgd_create(cairn_module_params(model), &hyper, &sgd) == CAIRN_OK &&
                amp_initialize(env, model, sgd, amp_options(.opt_level = AMP_O2), &amp) == CAIRN_OK &&
                ddp_create(model, cairn_env_group(env), NULL, &net) == CAIRN_OK;
    for (int t = 0; t < STEPS && good; t++) {
        cairn_zero_grad(sgd);
        cairn_tensor *loss = cairn_mse_loss(ddp_forward(net, x), y);
        good = amp_backward(amp, loss, sgd) == CAIRN_OK && cairn_step(sgd) == CAIRN_OK;
        result->losses[t] = cairn_tensor_item(loss);
    }
    good = good && cairn_param_set_get(cairn_module_params(model), 0, &weight) == CAIRN_OK;
    if (good) memcpy(result->weight, weight.data, cairn_dtype_nbytes(weight.dtype) * IN * OUT);
    result->failed = !good;
    if (!good) fprintf(stderr, "%s\n", cairn_last_error());
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    cairn_env_destroy(&env);
    return good ? 0 : 3;
}

static void *shared(size_t nbytes) {
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

static void assert_trains_as_processes_do(int ranks, int threads_each) {
    const size_t nbytes = MAX * sizeof(struct training);
    struct training *processes = shared(nbytes), *threads = shared(nbytes);
    if (cairn_spawn(train, processes, ranks, NULL) != CAIRN_OK) fail_msg("%s", cairn_last_error());
    if (cairn_spawn_threads(train, threads, ranks, cairn_spawn_threads_options(.num_threads = threads_each)) !=
        CAIRN_OK)
        fail_msg("%s", cairn_last_error());
    assert_memory_equal(processes, threads, nbytes);
    assert_true(threads[0].losses[STEPS - 1] < threads[0].losses[0]);
    munmap(processes, nbytes);
    munmap(threads, nbytes);
}

static void threads_train_to_the_bits_of_processes(void **state) {
    (void)state;
    skip_under_sanitizer();
    assert_trains_as_processes_do(1, 1);
    assert_trains_as_processes_do(2, 1);
    assert_trains_as_processes_do(2, 2);
    assert_trains_as_processes_do(5, 3);
}

static int make_three_environments(int rank, void *argument) {
    atomic_int *sums = argument;
    for (int i = 0; i < 3; i++) {
        cairn_env *env = NULL;
        int32_t sum = 1 << rank;
        if (cairn_env_create(NULL, NULL, cairn_env_options(.timeout = 60), &env) != CAIRN_OK) return 1;
        const bool is_here = cairn_env_local_size(env) == 4 && cairn_env_local_rank(env) == rank &&
                             strcmp(cairn_group_backend(cairn_env_group(env)), "threads") == 0 &&
                             strstr(cairn_env_describe(env), "launcher: threads; rank");
        if (cairn_allreduce(cairn_env_group(env), &sum, 1, CAIRN_I32, CAIRN_SUM, NULL) != CAIRN_OK) return 2;
        if (is_here) *sums += sum;
        cairn_env_destroy(&env);
    }
    return 0;
}

static void ranks_meet_as_often_as_they_like_and_leave_nothing(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        atomic_int sums = 0;
        const int before = open_descriptors();
        if (cairn_spawn_threads(make_three_environments, &sums, 4, NULL) != CAIRN_OK)
            fail_msg("%s", cairn_last_error());
        assert_int_equal(sums, 3 * 4 * 15);
        assert_int_equal(open_descriptors(), before);
        assert_int_equal(threads_called("cairn-pool") + threads_called("cairn-rank"), 0);
    }
}

/* Every kind of call, from memory of all kinds, beside each other. */
static int exchange_arrays(int rank, void *argument) {
    enum { N = 10007, SIZE = 4 };
    atomic_int *wrong = argument;
    cairn_env *env = NULL;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.timeout = 60), &env) != CAIRN_OK) return 1;
    cairn_group *group = cairn_env_group(env), *half = NULL;
    int32_t *mine = calloc(SIZE * N, sizeof(*mine)), *all = calloc(SIZE * N, sizeof(*all)), *shared_part = NULL;
    cairn_work *works[2] = {NULL, NULL};
    bool good = cairn_group_alloc(group, N * sizeof(*mine), (void **)&shared_part) == CAIRN_OK &&
                cairn_group_split(group, rank % 2, 0, NULL, &half) == CAIRN_OK;
    if (good && strcmp(cairn_group_backend(half), "threads") != 0) ++*wrong;
    for (int round = 0; round < 20 && good; round++) {
        for (int i = 0; i < SIZE * N; i++) mine[i] = rank * 3 + i + round;
        for (int i = 0; i < N; i++) shared_part[i] = rank - i;
        good = cairn_allgather(group, all, mine, N, CAIRN_I32, NULL) == CAIRN_OK;
        for (int i = 0; i < SIZE * N; i++) *wrong += all[i] != i / N * 3 + i % N + round;
        good = good && cairn_alltoall(group, all, mine, N, CAIRN_I32, NULL) == CAIRN_OK;
        for (int i = 0; i < SIZE * N; i++) *wrong += all[i] != i / N * 3 + rank * N + i % N + round;
        good = good && cairn_allreduce(group, shared_part, N, CAIRN_I32, CAIRN_SUM, NULL) == CAIRN_OK;
        for (int i = 0; i < N; i++) *wrong += shared_part[i] != 6 - 4 * i;
        good = good && cairn_allreduce(half, mine, N, CAIRN_I32, CAIRN_MAX, NULL) == CAIRN_OK;
        for (int i = 0; i < N; i++) *wrong += mine[i] != (2 + rank % 2) * 3 + i + round;
        const int next = (rank + 1) % SIZE, last = (rank + SIZE - 1) % SIZE;
        for (int i = 0; i < N; i++) mine[i] = rank * 7 + i;
        good = good && cairn_send(group, mine, N, CAIRN_I32, next, &works[0]) == CAIRN_OK &&
               cairn_recv(group, all, N, CAIRN_I32, last, &works[1]) == CAIRN_OK &&
               cairn_work_wait(&works[1]) == CAIRN_OK && cairn_work_wait(&works[0]) == CAIRN_OK;
        for (int i = 0; i < N; i++) *wrong += all[i] != last * 7 + i;
    }
    if (!good) fprintf(stderr, "%s\n", cairn_last_error());
    free(mine);
    free(all);
    cairn_group_destroy(&half);
    cairn_env_destroy(&env);
    return good ? 0 : 2;
}

static void arrays_go_from_where_they_are_to_where_they_belong(void **state) {
    (void)state;
    atomic_int wrong = 0;
    if (cairn_spawn_threads(exchange_arrays, &wrong, 4, NULL) != CAIRN_OK) fail_msg("%s", cairn_last_error());
    assert_int_equal(wrong, 0);
}

struct giving_up {
    atomic_int posted;
    int wait_us;
};

/* A rank that gives up frees its arrays at once, while others are at the call that it has posted. */
static int give_up_in_a_call(int rank, void *argument) {
    enum { N = 1 << 20 };
    struct giving_up *g = argument;
    cairn_env *env = NULL;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.timeout = 60), &env) != CAIRN_OK) return 1;
    float *x = shared(N * sizeof(*x)); /* unmapped, it ends whoever touches it; malloc keeps what is freed */
    cairn_work *work = NULL;
    while (rank != 0 && atomic_load(&g->posted) == 0) sched_yield();
    cairn_status st = cairn_allreduce(cairn_env_group(env), x, N, CAIRN_F32, CAIRN_SUM, &work);
    if (rank == 0) {
        g->posted = 1;
        for (const double until = seconds() + 1e-6 * g->wait_us; seconds() < until;) {}
        cairn_group_abort(cairn_env_group(env));
    }
    if (st == CAIRN_OK) st = cairn_work_wait(&work);
    munmap(x, N * sizeof(*x));
    cairn_env_destroy(&env);
    return st == CAIRN_OK ? 0 : 1;
}

static void no_rank_touches_arrays_of_one_that_has_given_up(void **state) {
    (void)state;
    for (int round = 0; round < 100; round++) {
        struct giving_up g = {.wait_us = round * 20};
        (void)cairn_spawn_threads(give_up_in_a_call, &g, round % 2 ? 3 : 2, NULL);
    }
}

/* ---- processes of threads ---- */

struct mixed {
    atomic_int seen; /* a bit for each rank */
    atomic_int wrong;
};

static int be_mixed(int rank, void *argument) {
    struct mixed *m = argument;
    cairn_env *env = NULL;
    int32_t sum = 1 << rank;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.timeout = 60), &env) != CAIRN_OK) return 1;
    if (cairn_env_rank(env) != rank || cairn_env_size(env) != 6 || cairn_env_local_size(env) != 6 ||
        cairn_env_local_rank(env) != rank || !strstr(cairn_env_describe(env), "2 threads a process"))
        m->wrong++;
    if (cairn_allreduce(cairn_env_group(env), &sum, 1, CAIRN_I32, CAIRN_SUM, NULL) != CAIRN_OK) return 2;
    if (sum != 63) m->wrong++;
    atomic_fetch_or(&m->seen, 1 << rank);
    cairn_env_destroy(&env);
    return 0;
}

static int be_process_of_two(int rank, void *argument) {
    (void)rank;
    if (cairn_spawn_threads(be_mixed, argument, 2, NULL) != CAIRN_OK) return 1;
    return cairn_spawn_threads(be_mixed, argument, 2, NULL) == CAIRN_OK ? 0 : 2;
}

static void three_processes_of_two_threads_are_six_ranks(void **state) {
    (void)state;
    skip_under_sanitizer();
    struct mixed *m = shared(sizeof(*m));
    if (cairn_spawn(be_process_of_two, m, 3, NULL) != CAIRN_OK) fail_msg("%s", cairn_last_error());
    assert_int_equal(m->seen, 63);
    assert_int_equal(m->wrong, 0);
    munmap(m, sizeof(*m));
}

static int fail_in_one_thread(int rank, void *argument) {
    (void)argument;
    cairn_env *env = NULL;
    int32_t sum = 1;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.timeout = 60), &env) != CAIRN_OK) return 1;
    if (rank == 3) {
        (void)cairn_set_num_threads(-1);
        return 9;
    }
    const cairn_status st = cairn_allreduce(cairn_env_group(env), &sum, 1, CAIRN_I32, CAIRN_SUM, NULL);
    return st == CAIRN_OK ? 0 : 1;
}

static int fail_in_a_process(int rank, void *argument) {
    (void)rank;
    return cairn_spawn_threads(fail_in_one_thread, argument, 2, NULL) == CAIRN_OK ? 0 : 1;
}

static void failing_thread_ends_ranks_of_other_processes(void **state) {
    (void)state;
    skip_under_sanitizer();
    const double begin = seconds();
    assert_int_equal(cairn_spawn(fail_in_a_process, NULL, 2, NULL), CAIRN_EPEER);
    SAYS("returned 9: CAIRN_EINVAL: cairn_set_num_threads: -1 threads");
    assert_true(seconds() - begin < 20);
}

/* ---- pools ---- */

struct crowd {
    atomic_int here, most;
    atomic_bool failed;
    int want;
};

/* Each piece waits until all of them have begun: more than one rank's threads can have at a time. */
static void meet_others(void *ctx, size_t begin, size_t end) {
    struct crowd *c = ctx;
    (void)begin, (void)end;
    atomic_fetch_add(&c->here, 1);
    for (double until = seconds() + 20; atomic_load(&c->here) < c->want && !c->failed; sched_yield()) {
        if (seconds() > until) c->failed = true;
    }
}

static int compute_in_two_threads(int rank, void *argument) {
    struct crowd *c = argument;
    if (rank == 1) (void)cairn_set_num_threads(3);
    if (cairn_num_threads() != (rank == 1 ? 3 : 2)) return 1;
    cairn__parallel_for(rank == 1 ? 3 : 2, 1, meet_others, c);
    return 0;
}

static void ranks_use_their_own_threads_at_the_same_time(void **state) {
    (void)state;
    const int before = cairn_num_threads();
    struct crowd c = {.want = 2 + 3 + 2};
    if (cairn_spawn_threads(compute_in_two_threads, &c, 3, cairn_spawn_threads_options(.num_threads = 2)) != CAIRN_OK)
        fail_msg("%s", cairn_last_error());
    assert_false(c.failed);
    assert_int_equal(c.here, c.want);
    assert_int_equal(cairn_num_threads(), before);
}

static int note_num_threads(int rank, void *argument) {
    ((int *)argument)[rank] = cairn_num_threads();
    return 0;
}

static void number_of_threads_is_the_share_or_the_environments(void **state) {
    (void)state;
    cpu_set_t mine;
    assert_int_equal(sched_getaffinity(0, sizeof(mine), &mine), 0);
    int got[2];
    const int share = CPU_COUNT(&mine) / 2;
    unsetenv("OMP_NUM_THREADS");
    assert_int_equal(cairn_spawn_threads(note_num_threads, got, 2, NULL), CAIRN_OK);
    assert_int_equal(got[0], share < 1 ? 1 : share);
    assert_int_equal(got[1], got[0]);
    setenv("OMP_NUM_THREADS", "7", 1);
    assert_int_equal(cairn_spawn_threads(note_num_threads, got, 2, NULL), CAIRN_OK);
    unsetenv("OMP_NUM_THREADS");
    assert_int_equal(got[0], 7);
    assert_int_equal(cairn_spawn_threads(note_num_threads, got, 2, cairn_spawn_threads_options(.num_threads = 3)),
                     CAIRN_OK);
    assert_int_equal(got[1], 3);
}

/* ---- what goes wrong ---- */

static int never(int rank, void *argument) {
    (void)rank, (void)argument;
    return 0;
}

static int spawn_again(int rank, void *argument) {
    (void)rank, (void)argument;
    return cairn_spawn_threads(never, NULL, 2, NULL) == CAIRN_ESTATE ? 0 : 1;
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    assert_int_equal(cairn_spawn_threads(NULL, NULL, 2, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_spawn_threads(never, NULL, 0, NULL), CAIRN_EINVAL);
    SAYS("0 ranks; 1 to ");
    assert_int_equal(cairn_spawn_threads(never, NULL, 1 << 20, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_spawn_threads(never, NULL, 2, cairn_spawn_threads_options(.num_threads = -1)), CAIRN_EINVAL);
    SAYS("num_threads is -1");
    assert_int_equal(cairn_spawn_threads(spawn_again, NULL, 2, NULL), CAIRN_OK);
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "2", 1);
    assert_int_equal(cairn_spawn_threads(never, NULL, 2, NULL), CAIRN_EINVAL);
    SAYS("RANK is 3 but WORLD_SIZE is 2");
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

static int ask_for_mpi(int rank, void *argument) {
    (void)rank;
    cairn_env *env = NULL;
    const cairn_status st = cairn_env_create(NULL, NULL, cairn_env_options(.timeout = 60, .backend = "mpi"), &env);
    if (st == CAIRN_ENOTSUP && strstr(cairn_last_error(), "several ranks (cairn_spawn_threads), and MPI one"))
        atomic_fetch_add((atomic_int *)argument, 1);
    cairn_env_destroy(&env);
    return 0;
}

static void mpi_refuses_ranks_that_are_threads(void **state) {
    (void)state;
    atomic_int refused = 0;
    assert_int_equal(cairn_spawn_threads(ask_for_mpi, &refused, 3, NULL), CAIRN_OK);
    assert_int_equal(refused, 3);
}

static int ask_for_tcp(int rank, void *argument) {
    (void)rank, (void)argument;
    cairn_env *env = NULL;
    const cairn_status st = cairn_env_create(NULL, NULL, cairn_env_options(.init_method = "tcp://127.0.0.1:1"), &env);
    cairn_env_destroy(&env);
    return st == CAIRN_EINVAL && strstr(cairn_last_error(), "this rank is a thread") ? 0 : 1;
}

static int meet_in_own_options(int rank, void *argument) {
    cairn_env *env = NULL;
    int32_t sum = 1 + rank;
    const struct cairn_env_options *options =
        cairn_env_options(.timeout = 60, .rank = 1 - rank, .world_size = 2, .store = argument);
    if (cairn_env_create(NULL, NULL, options, &env) != CAIRN_OK) return 1;
    const bool good = cairn_env_rank(env) == 1 - rank &&
                      cairn_allreduce(cairn_env_group(env), &sum, 1, CAIRN_I32, CAIRN_SUM, NULL) == CAIRN_OK;
    cairn_env_destroy(&env);
    return good && sum == 3 ? 0 : 2;
}

static void options_of_the_program_come_first(void **state) {
    (void)state;
    cairn_store *store = NULL;
    assert_int_equal(cairn_hash_store_create(60, &store), CAIRN_OK);
    assert_int_equal(cairn_spawn_threads(meet_in_own_options, store, 2, NULL), CAIRN_OK);
    assert_int_equal(cairn_spawn_threads(ask_for_tcp, NULL, 2, NULL), CAIRN_OK);
    cairn_store_destroy(&store);
}

enum way { FAILS, FAILS_BEFORE_MEETING, RETURNS_EARLY, EXITS, LEAVES, NEVER_COMES, NUM_WAYS };

struct fault {
    enum way way;
    int rank, size, after; /* calls that go well before */
    double timeout;
    cairn_env *envs[MAX];
    atomic_int ended_by_a_sentence;
};

static cairn_status call(cairn_env *env, cairn_group *half, int i, float *x, size_t n) {
    switch (i % 3) {
    case 0:
        return cairn_allreduce(cairn_env_group(env), x, n, CAIRN_F32, CAIRN_AVG, NULL);
    case 1:
        return cairn_barrier(half);
    default:
        return cairn_broadcast(half, x, n, CAIRN_F32, 0, NULL);
    }
}

/* Until the others have given up. How long that takes is the system's affair: time in which it does not run a rank does
 * not count as waiting. */
static void stay_away(const struct fault *f) {
    const double begin = seconds();
    while (atomic_load(&f->ended_by_a_sentence) < f->size - 1 && seconds() - begin < 60)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static int fault_rank(int rank, void *argument) {
    struct fault *f = argument;
    const bool is_it = rank == f->rank;
    const int way = (int)f->way;
    enum { N = 70000 };
    cairn_group *half = NULL;
    if (is_it && f->way == FAILS_BEFORE_MEETING) {
        (void)cairn_set_num_threads(-1);
        return 5;
    }
    if (is_it && f->way == NEVER_COMES && f->after % 2) return 0;
    float *x = shared(N * sizeof(*x));
    cairn_status st = cairn_env_create(NULL, NULL, cairn_env_options(.timeout = f->timeout), &f->envs[rank]);
    if (st == CAIRN_OK) st = cairn_group_new(cairn_env_group(f->envs[rank]), NULL, 0, NULL, &half);
    for (int i = 0; st == CAIRN_OK && i < 60; i++) {
        const bool now = is_it && i == f->after;
        if (now && (way == FAILS || way == RETURNS_EARLY || way == EXITS || way == LEAVES)) break;
        if (now && way == NEVER_COMES) stay_away(f);
        st = call(f->envs[rank], half, i, x, i % 7 ? 100 : N);
    }
    munmap(x, N * sizeof(*x));
    if (is_it && way == EXITS) pthread_exit(NULL);
    if (is_it && way == RETURNS_EARLY) return 0;
    if (is_it && way == FAILS) {
        (void)cairn_set_num_threads(-1);
        return 5;
    }
    if (!is_it && (st == CAIRN_EPEER || st == CAIRN_ETIMEOUT) && strlen(cairn_last_error()) > 20)
        f->ended_by_a_sentence++;
    cairn_group_destroy(&half);
    cairn_env_destroy(&f->envs[rank]);
    return st == CAIRN_OK ? 0 : 1;
}

/* The cause is said where there is one: a rank that leaves in good order, or never comes, has none. */
static void assert_fault_ends(struct fault *f) {
    static const char *const sentences[NUM_WAYS] = {[FAILS] = "returned 5: CAIRN_EINVAL: cairn_set_num_threads: -1",
                                                    [FAILS_BEFORE_MEETING] =
                                                        "returned 5: CAIRN_EINVAL: cairn_set_num_threads: -1",
                                                    [RETURNS_EARLY] =
                                                        "its function returned while its environment was alive",
                                                    [EXITS] = "its thread ended before its function returned",
                                                    [LEAVES] = "left the group",
                                                    [NEVER_COMES] = "waited"};
    char who[40];
    const double begin = seconds();
    assert_int_equal(cairn_spawn_threads(fault_rank, f, f->size, NULL), CAIRN_EPEER);
    const bool has_cause = f->way != LEAVES && f->way != NEVER_COMES;
    if (seconds() - begin > 20 + (f->way == NEVER_COMES ? 4 * f->timeout : 0)) fail_msg("%g s", seconds() - begin);
    SAYS(sentences[f->way]);
    snprintf(who, sizeof(who), "rank %d of %d (thread) failed first: ", f->rank, f->size);
    if (has_cause) SAYS(who);
    assert_int_equal(f->ended_by_a_sentence, f->size - 1);
    for (int r = 0; r < f->size; r++) {
        cairn_group *group = cairn_env_group(f->envs[r]);
        while (group && group->family->groups != group) {
            cairn_group *half = group->family->groups;
            cairn_group_destroy(&half);
        }
        cairn_env_destroy(&f->envs[r]);
    }
}

static void fault_of_each_kind_ends_the_others_with_a_message(void **state) {
    (void)state;
    const int before = open_descriptors();
    for (int way = 0; way < NUM_WAYS; way++) {
        struct fault f = {
            .way = (enum way)way, .rank = 1, .size = 3, .after = 4, .timeout = way == NEVER_COMES ? 2 : 60};
        assert_fault_ends(&f);
    }
    assert_int_equal(open_descriptors(), before);
}

/* With --faults: sixty of them, at random moments. */
static void sixty_random_faults_end_with_messages(void **state) {
    (void)state;
    const unsigned seed = (unsigned)time(NULL);
    unsigned random = seed;
    printf("seed %u\n", seed);
    const int before = open_descriptors();
    for (int i = 0; i < 60; i++) {
        random = random * 1103515245u + 12345u;
        const enum way way = (enum way)(i % NUM_WAYS);
        const int size = 2 + (int)(random >> 16) % (MAX - 1);
        struct fault f = {.way = way,
                          .size = size,
                          .rank = (int)(random >> 8) % size,
                          .after = (int)(random >> 20) % 60,
                          .timeout = way == NEVER_COMES ? 2 : 60};
        assert_fault_ends(&f);
    }
    assert_int_equal(open_descriptors(), before);
}

/* ---- the log ---- */

static int log_an_error(int rank, void *argument) {
    (void)argument;
    cairn_env *env = NULL;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.timeout = 60), &env) != CAIRN_OK) return 1;
    cairn_group *own = cairn_env_group(env);
    if (rank == 1) cairn_group_destroy(&own); /* an error in the log */
    cairn_env_destroy(&env);
    return 0;
}

static void ranks_log_under_their_own_numbers(void **state) {
    (void)state;
    char text[4000] = "";
    FILE *file = tmpfile();
    const int before = dup(2);
    assert_true(file && before >= 0);
    fflush(stderr);
    dup2(fileno(file), 2);
    const cairn_status st = cairn_spawn_threads(log_an_error, NULL, 3, NULL);
    fflush(stderr);
    dup2(before, 2);
    close(before);
    rewind(file);
    (void)!fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    assert_int_equal(st, CAIRN_OK);
    if (!strstr(text, "cairn: [rank 1] error: ")) fail_msg("'%s'", text);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        /* before there are other threads */
        cmocka_unit_test(threads_train_to_the_bits_of_processes),
        cmocka_unit_test(three_processes_of_two_threads_are_six_ranks),
        cmocka_unit_test(failing_thread_ends_ranks_of_other_processes),
        cmocka_unit_test(ranks_meet_as_often_as_they_like_and_leave_nothing),
        cmocka_unit_test(arrays_go_from_where_they_are_to_where_they_belong),
        cmocka_unit_test(no_rank_touches_arrays_of_one_that_has_given_up),
        cmocka_unit_test(ranks_use_their_own_threads_at_the_same_time),
        cmocka_unit_test(number_of_threads_is_the_share_or_the_environments),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(mpi_refuses_ranks_that_are_threads),
        cmocka_unit_test(options_of_the_program_come_first),
        cmocka_unit_test(fault_of_each_kind_ends_the_others_with_a_message),
        cmocka_unit_test(ranks_log_under_their_own_numbers),
    };
    const struct CMUnitTest faults[] = {cmocka_unit_test(sixty_random_faults_end_with_messages)};
    const bool is_short = argc < 2 || strcmp(argv[1], "--faults") != 0;
    return is_short ? cmocka_run_group_tests(tests, NULL, NULL) : cmocka_run_group_tests(faults, NULL, NULL);
}
