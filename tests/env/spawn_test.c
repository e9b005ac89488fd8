/* cairn_spawn: its ranks compute the same as ranks that are threads, each kind of failure has its error message, and
 * nothing is left behind. The linker wraps fork and pidfd_open so that they can fail. */
#include "../ranks.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/parallel.h"
#include "process.h"

static int forks_left = -1; /* before one fails; -1 = none does */
static bool no_pidfds;

pid_t __real_fork(void);
pid_t __wrap_fork(void);
pid_t __wrap_fork(void) {
    if (forks_left == 0) {
        errno = EAGAIN;
        return -1;
    }
    if (forks_left > 0) forks_left--;
    return __real_fork();
}

int __real_pidfd_open(pid_t pid, unsigned flags);
int __wrap_pidfd_open(pid_t pid, unsigned flags);
int __wrap_pidfd_open(pid_t pid, unsigned flags) {
    if (!no_pidfds) return __real_pidfd_open(pid, flags);
    errno = ENOSYS;
    return -1;
}

/* Not even a zombie. */
static void assert_no_child(void) {
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static _Noreturn void wait_for_the_end(void) {
    for (;;) pause();
}

static void *shared(size_t nbytes) {
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

/* ---- what goes well ---- */

enum { STEPS = 12, IN = 6, OUT = 3, MAX_RANKS = 5 };

struct training {
    float losses[STEPS], weight[OUT * IN];
};

static char *train(cairn_env *env, void *ctx) {
    struct training *result = (struct training *)ctx + cairn_env_rank(env);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(16, IN));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(16, OUT));
    cairn_module *model = cairn_linear(env, IN, OUT);
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 0.05;
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    ddp_context *net = NULL;
    cairn_param weight;
    EXPECT_OK(cairn_sgd_create(cairn_module_params(model), &hyper, &sgd));
    EXPECT_OK(amp_initialize(env, model, sgd, amp_options(.opt_level = AMP_O1), &amp));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    for (int t = 0; t < STEPS; t++) {
        cairn_zero_grad(sgd);
        cairn_tensor *loss = cairn_mse_loss(ddp_forward(net, x), y);
        EXPECT_OK(amp_backward(amp, loss, sgd));
        EXPECT_OK(cairn_step(sgd));
        result->losses[t] = cairn_tensor_item(loss);
    }
    EXPECT_OK(cairn_param_set_get(cairn_module_params(model), 0, &weight));
    memcpy(result->weight, weight.data, sizeof(result->weight));
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    return NULL;
}

static int train_in_a_process(int rank, void *argument) {
    cairn_env *env = NULL;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.seed = 7, .timeout = 60), &env) != CAIRN_OK) return 1;
    if (cairn_env_rank(env) != rank) return 2;
    char *failure = train(env, argument);
    cairn_env_destroy(&env);
    if (failure) fprintf(stderr, "%s\n", failure);
    return failure ? 1 : 0;
}

static void assert_trains_as_threads_do(int ranks) {
    static struct training threads[MAX_RANKS];
    struct training *processes = shared(sizeof(threads));
    memset(threads, 0, sizeof(threads));
    if (cairn_spawn(train_in_a_process, processes, ranks, NULL) != CAIRN_OK) fail_msg("%s", cairn_last_error());
    run_ranks(ranks, train, threads);
    assert_memory_equal(processes, threads, sizeof(threads));
    assert_true(threads[0].losses[STEPS - 1] < threads[0].losses[0]);
    assert_true(ranks == 1 || memcmp(&threads[0].weight, &threads[1].weight, sizeof(threads[0].weight)) == 0);
    munmap(processes, sizeof(threads));
}

static void spawned_ranks_train_as_ranks_in_threads_do(void **state) {
    (void)state;
    assert_trains_as_threads_do(1);
    assert_trains_as_threads_do(2);
    assert_trains_as_threads_do(5);
    assert_no_child();
}

static bool says(const char *name, const char *value) {
    const char *found = getenv(name);
    const bool same = found ? value && strcmp(found, value) == 0 : !value;
    if (!same) fprintf(stderr, "%s is %s\n", name, found ? found : "not set");
    return same;
}

static int look_at_variables(int rank, void *argument) {
    (void)argument;
    const char *own = rank ? "1" : "0";
    const char *run = getenv("TORCHELASTIC_RUN_ID");
    bool ok = says("RANK", own) && says("LOCAL_RANK", own) && says("ROLE_RANK", own);
    ok = ok && says("WORLD_SIZE", "2") && says("LOCAL_WORLD_SIZE", "2") && says("ROLE_WORLD_SIZE", "2");
    ok = ok && says("GROUP_RANK", "0") && says("GROUP_WORLD_SIZE", "1") && says("ROLE_NAME", "default");
    ok = ok && says("MASTER_ADDR", "127.0.0.1") && atoi(getenv("MASTER_PORT")) > 0 && atoi(getenv("MASTER_PORT")) != 1;
    ok = ok && says("TORCHELASTIC_RESTART_COUNT", "0") && says("TORCHELASTIC_MAX_RESTARTS", "0");
    ok = ok && says("TORCHELASTIC_USE_AGENT_STORE", "True") && run && strncmp(run, "spawn-", 6) == 0;
    ok = ok && says("TORCHELASTIC_ERROR_FILE", NULL) && says("HOME", "/nowhere");
    return ok ? 0 : 1;
}

static void ranks_get_torchruns_variables_in_place_of_an_outer_launchers(void **state) {
    (void)state;
    static const char *const outer[][2] = {{"RANK", "4"},
                                           {"WORLD_SIZE", "9"},
                                           {"LOCAL_RANK", "3"},
                                           {"LOCAL_WORLD_SIZE", "4"},
                                           {"GROUP_RANK", "1"},
                                           {"MASTER_ADDR", "elsewhere.example"},
                                           {"MASTER_PORT", "1"},
                                           {"TORCHELASTIC_RESTART_COUNT", "2"},
                                           {"TORCHELASTIC_RUN_ID", "outer"},
                                           {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                           {"TORCHELASTIC_ERROR_FILE", "/nowhere/error.json"},
                                           {"HOME", "/nowhere"}};
    enum { N = sizeof(outer) / sizeof(outer[0]) };
    for (int i = 0; i < N; i++) setenv(outer[i][0], outer[i][1], 1);
    const cairn_status st = cairn_spawn(look_at_variables, NULL, 2, NULL);
    for (int i = 0; i < N; i++) assert_string_equal(getenv(outer[i][0]), outer[i][1]);
    for (int i = 0; i < N; i++) unsetenv(outer[i][0]);
    if (st != CAIRN_OK) fail_msg("%s", cairn_last_error());
}

static int add_up(int rank, void *argument) {
    (void)argument;
    cairn_env *env = NULL;
    int32_t sum = 1;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.timeout = 60), &env) != CAIRN_OK) return 1;
    if (cairn_allreduce(cairn_env_group(env), &sum, 1, CAIRN_I32, CAIRN_SUM, NULL) != CAIRN_OK) return 1;
    const int size = cairn_env_size(env);
    const bool right = sum == size && cairn_env_rank(env) == rank && cairn_env_local_rank(env) == rank;
    cairn_env_destroy(&env);
    return right ? size : 100;
}

static int success_of_three(int rank, void *argument) {
    return add_up(rank, argument) == 3 ? 0 : 1;
}

static int spawn_within(int rank, void *argument) {
    if (cairn_spawn(success_of_three, argument, 3, NULL) != CAIRN_OK) return 1;
    return add_up(rank, argument) == 2 ? 0 : 1;
}

static void spawned_rank_may_spawn_ranks(void **state) {
    (void)state;
    if (cairn_spawn(spawn_within, NULL, 2, NULL) != CAIRN_OK) fail_msg("%s", cairn_last_error());
    assert_no_child();
}

static int leave_early(int rank, void *argument) {
    (void)argument;
    if (rank == 0) return 0;
    const struct timespec moment = {.tv_nsec = 30 * 1000 * 1000};
    nanosleep(&moment, NULL);
    return 0;
}

static void rank_may_leave_before_others(void **state) {
    (void)state;
    assert_int_equal(cairn_spawn(leave_early, NULL, 3, NULL), CAIRN_OK);
}

static void output_buffered_before_the_fork_is_written_once(void **state) {
    (void)state;
    FILE *out = tmpfile();
    assert_non_null(out);
    fprintf(out, "before\n");
    assert_int_equal(cairn_spawn(leave_early, NULL, 3, NULL), CAIRN_OK);
    fprintf(out, "after\n");
    fflush(out);
    assert_int_equal(ftell(out), 13);
    fclose(out);
}

static int print_a_number(int rank, void *argument) {
    fprintf(argument, "%d", rank); /* not flushed: cairn_spawn does that */
    return 0;
}

static void buffered_output_of_ranks_is_flushed(void **state) {
    (void)state;
    FILE *out = tmpfile();
    assert_int_equal(cairn_spawn(print_a_number, out, 3, NULL), CAIRN_OK);
    fseek(out, 0, SEEK_END);
    assert_int_equal(ftell(out), 3);
    fclose(out);
}

/* ---- what goes wrong ---- */

static int return_code_on_rank_1(int rank, void *argument) {
    if (rank == 1) return *(const int *)argument;
    wait_for_the_end();
}

static void first_failing_rank_is_named_with_its_exit_code_and_others_ended(void **state) {
    (void)state;
    static const struct {
        int returned;
        const char *said;
    } cases[] = {{3, "failed first: exit code 3, and no call of Cairn had failed"},
                 {-1, "failed first: exit code 255, and"},
                 {256, "failed first: exit code 1, and"}};
    for (int i = 0; i < 3; i++) {
        int code = cases[i].returned;
        assert_int_equal(cairn_spawn(return_code_on_rank_1, &code, 3, NULL), CAIRN_EPEER);
        SAYS("cairn_spawn: rank 1 of 3 (process ");
        SAYS(cases[i].said);
    }
    assert_no_child();
}

static int fail_with_a_sentence(int rank, void *argument) {
    if (rank != 2) wait_for_the_end();
    const cairn_status st = cairn_set_num_threads(-5);
    if (argument) exit(4);
    return (int)st;
}

static void last_error_reaches_the_parent_by_return_and_by_exit(void **state) {
    (void)state;
    assert_int_equal(cairn_spawn(fail_with_a_sentence, NULL, 3, NULL), CAIRN_EPEER);
    SAYS(") failed first: exit code 1: CAIRN_EINVAL: cairn_set_num_threads: -5 threads; 1 to 1024 are allowed");
    assert_int_equal(cairn_spawn(fail_with_a_sentence, "", 3, NULL), CAIRN_EPEER);
    SAYS(") failed first: exit code 4: CAIRN_EINVAL: cairn_set_num_threads: -5 threads; 1 to 1024 are allowed");
}

/* A program that a launcher started, and that makes no environment itself. */
static void last_error_reaches_the_parents_launcher(void **state) {
    (void)state;
    char path[] = "/tmp/cairn-spawn-XXXXXX", text[4096] = "";
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0 && unlink(path) == 0);
    fflush(NULL);
    const pid_t parent = fork();
    if (parent == 0) {
        setenv("TORCHELASTIC_ERROR_FILE", path, 1);
        exit(cairn_spawn(fail_with_a_sentence, NULL, 3, NULL) == CAIRN_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(parent, NULL, 0), parent);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof(text) - 1, f) > 0);
    fclose(f);
    unlink(path);
    assert_non_null(strstr(text, "CAIRN_EPEER: cairn_spawn: rank "));
    assert_non_null(strstr(text, ") failed first: exit code 1: CAIRN_EINVAL: cairn_set_num_threads: -5 threads"));
}

static int fail_at_length(int rank, void *argument) {
    (void)rank;
    cairn_env *env = NULL;
    return cairn_env_create(NULL, NULL, cairn_env_options(.device = argument), &env) == CAIRN_OK ? 0 : 1;
}

static void message_may_be_long_and_not_ascii(void **state) {
    (void)state;
    char name[3000];
    memset(name, 'x', sizeof(name));
    memcpy(name, "Gerät\"\\\n\xff", 10);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(cairn_spawn(fail_at_length, name, 2, NULL), CAIRN_EPEER);
    SAYS("Gerät\"\\\n\xffxxxx");
}

static int die_on_rank_0(int rank, void *argument) {
    const int signal = *(const int *)argument;
    if (rank != 0) wait_for_the_end();
    if (signal == SIGABRT) abort();
    int *volatile nowhere = (int *)(uintptr_t)16;
    if (signal == SIGSEGV) *nowhere = 1;
    raise(signal);
    wait_for_the_end();
}

static void signal_that_killed_a_rank_is_named(void **state) {
    (void)state;
    static const struct {
        int signal;
        const char *said;
    } cases[] = {{SIGKILL, "failed first: killed by signal 9 (SIGKILL)"},
                 {SIGTERM, "failed first: killed by signal 15 (SIGTERM)"},
                 {SIGABRT, "failed first: SIGABRT: Aborted"},
                 {SIGFPE, "failed first: SIGFPE: "},
                 {SIGSEGV, "failed first: SIGSEGV: Segmentation fault at address 0x10"}};
    void (*before[32])(int) = {NULL};
    for (int i = 2; i < 5; i++) before[cases[i].signal] = signal(cases[i].signal, SIG_DFL); /* cmocka's handlers */
    for (int i = 0; i < 5; i++) {
        int number = cases[i].signal;
        assert_int_equal(cairn_spawn(die_on_rank_0, &number, 2, NULL), CAIRN_EPEER);
        SAYS("rank 0 of 2");
        SAYS(cases[i].said);
    }
    for (int i = 2; i < 5; i++) signal(cases[i].signal, before[cases[i].signal]);
    assert_no_child();
}

static int fail_while_another_is_stopped(int rank, void *argument) {
    bool *stopped = argument;
    if (rank == 0) {
        *stopped = true;
        raise(SIGSTOP);
        wait_for_the_end();
    }
    while (!*(volatile bool *)stopped) sched_yield();
    return 7;
}

static void stopped_rank_is_ended_too(void **state) {
    (void)state;
    bool *stopped = shared(sizeof(*stopped));
    const double begin = seconds();
    assert_int_equal(cairn_spawn(fail_while_another_is_stopped, stopped, 2, NULL), CAIRN_EPEER);
    SAYS("rank 1 of 2");
    assert_true(seconds() - begin < 25); /* SIGTERM and SIGCONT were enough: 30 s have not passed */
    munmap(stopped, sizeof(*stopped));
    assert_no_child();
}

static int be_deaf(int rank, void *argument) {
    bool *deaf = argument;
    if (rank == 1) {
        while (!*(volatile bool *)deaf) sched_yield();
        return 1;
    }
    signal(SIGTERM, SIG_IGN);
    *deaf = true;
    wait_for_the_end();
}

static void rank_that_ignores_sigterm_is_killed_after_the_timeout(void **state) {
    (void)state;
    bool *deaf = shared(sizeof(*deaf));
    const double begin = seconds();
    assert_int_equal(cairn_spawn(be_deaf, deaf, 2, cairn_spawn_options(.shutdown_timeout = 0.1)), CAIRN_EPEER);
    SAYS("rank 1 of 2");
    assert_true(seconds() - begin >= 0.1);
    assert_true(seconds() - begin < 25);
    munmap(deaf, sizeof(*deaf));
    assert_no_child();
}

/* Rank 0 hears of rank 1's death and fails in its turn, often before the parent looks; the cause is said all the
 * same. */
static int die_in_training(int rank, void *argument) {
    cairn_env *env = NULL;
    int32_t sum = 1;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.timeout = 60), &env) != CAIRN_OK) return 1;
    if (rank == 1) raise(*(const int *)argument);
    return cairn_allreduce(cairn_env_group(env), &sum, 1, CAIRN_I32, CAIRN_SUM, NULL) == CAIRN_OK ? 0 : 1;
}

static void cause_is_reported_and_not_its_consequences(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        int number = i % 2 ? SIGKILL : SIGTERM; /* the latter is what others are sent */
        assert_int_equal(cairn_spawn(die_in_training, &number, 3, NULL), CAIRN_EPEER);
        SAYS("rank 1 of 3");
        SAYS(i % 2 ? "killed by signal 9 (SIGKILL)" : "killed by signal 15 (SIGTERM)");
    }
}

static int leave_others_alone(int rank, void *argument) {
    (void)argument;
    cairn_env *env = NULL;
    int32_t sum = 1;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.timeout = 60), &env) != CAIRN_OK) return 1;
    if (rank == 1) return 0;
    return cairn_allreduce(cairn_env_group(env), &sum, 1, CAIRN_I32, CAIRN_SUM, NULL) == CAIRN_OK ? 0 : 1;
}

/* There is no cause to be seen: rank 1 has succeeded. */
static void consequence_is_reported_if_there_is_no_cause(void **state) {
    (void)state;
    assert_int_equal(cairn_spawn(leave_others_alone, NULL, 2, NULL), CAIRN_EPEER);
    SAYS("rank 0 of 2");
    SAYS("exit code 1: CAIRN_EPEER: rank 1 ");
}

static void fork_that_fails_ends_those_that_run(void **state) {
    (void)state;
    const int before = open_descriptors();
    int code = 0;
    for (int left = 0; left < 3; left++) {
        forks_left = left;
        const cairn_status st = cairn_spawn(return_code_on_rank_1, &code, 3, NULL);
        forks_left = -1;
        assert_int_equal(st, CAIRN_ESYSTEM);
        char sentence[100];
        snprintf(sentence, sizeof(sentence), "the process of rank %d of 3 could not be started: Resource temp", left);
        SAYS(sentence);
        assert_no_child();
    }
    assert_int_equal(open_descriptors(), before);
}

static void spawn_leaves_no_descriptor_open(void **state) {
    (void)state;
    int code = 1;
    const int before = open_descriptors();
    assert_int_equal(cairn_spawn(leave_early, NULL, 4, NULL), CAIRN_OK);
    assert_int_equal(cairn_spawn(return_code_on_rank_1, &code, 4, NULL), CAIRN_EPEER);
    assert_int_equal(open_descriptors(), before);
    assert_no_child();
}

static void spawn_works_without_pidfds(void **state) {
    (void)state;
    int code = 6;
    no_pidfds = true;
    const cairn_status good = cairn_spawn(leave_early, NULL, 3, NULL);
    const cairn_status bad = cairn_spawn(return_code_on_rank_1, &code, 3, NULL);
    no_pidfds = false;
    assert_int_equal(good, CAIRN_OK);
    assert_int_equal(bad, CAIRN_EPEER);
    SAYS("rank 1 of 3");
    SAYS("exit code 6");
    assert_no_child();
}

/* ---- a program with habits of its own ---- */

static void other_children_are_left_to_the_program(void **state) {
    (void)state;
    const pid_t other = fork();
    if (other == 0) _exit(9);
    int status = 0;
    assert_int_equal(cairn_spawn(leave_early, NULL, 2, NULL), CAIRN_OK);
    assert_int_equal(waitpid(other, &status, 0), other);
    assert_int_equal(WEXITSTATUS(status), 9);
}

static void ignored_sigchld_hides_no_failure(void **state) {
    (void)state;
    void (*before)(int) = signal(SIGCHLD, SIG_IGN);
    int code = 5, number = SIGKILL;
    const cairn_status good = cairn_spawn(leave_early, NULL, 3, NULL);
    const cairn_status bad = cairn_spawn(return_code_on_rank_1, &code, 3, NULL);
    char sentence[1024];
    snprintf(sentence, sizeof(sentence), "%s", cairn_last_error());
    const cairn_status killed = cairn_spawn(die_on_rank_0, &number, 2, NULL);
    signal(SIGCHLD, before);
    assert_int_equal(good, CAIRN_OK);
    assert_int_equal(bad, CAIRN_EPEER);
    assert_non_null(strstr(sentence, "rank 1 of 3"));
    assert_non_null(strstr(sentence, "exit code 5"));
    assert_int_equal(killed, CAIRN_EPEER);
    SAYS("its exit status is lost: this process ignores SIGCHLD");
}

static volatile sig_atomic_t alarms;

static void count_alarm(int signal) {
    (void)signal;
    alarms++;
}

static int wait_for_alarms(int rank, void *argument) {
    (void)rank, (void)argument;
    const struct timespec moment = {.tv_nsec = 100 * 1000 * 1000};
    nanosleep(&moment, NULL);
    return 0;
}

static void signal_handlers_of_the_program_do_not_disturb(void **state) {
    (void)state;
    struct sigaction act = {.sa_handler = count_alarm}, before;
    sigaction(SIGALRM, &act, &before);
    const struct itimerval often = {{.tv_usec = 2000}, {.tv_usec = 2000}}, never = {{0}, {0}};
    setitimer(ITIMER_REAL, &often, NULL);
    const cairn_status st = cairn_spawn(wait_for_alarms, NULL, 3, NULL);
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &before, NULL);
    if (st != CAIRN_OK) fail_msg("%s", cairn_last_error());
    assert_true(alarms > 0);
}

static int look_at_mask(int rank, void *argument) {
    (void)rank, (void)argument;
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    return sigisemptyset(&blocked) ? 0 : 1;
}

static void ranks_start_with_no_signal_blocked(void **state) {
    (void)state;
    sigset_t term, before;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, &before);
    const cairn_status st = cairn_spawn(look_at_mask, NULL, 2, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(st, CAIRN_OK);
}

static void *hold_still(void *lock) {
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}

static void process_with_threads_is_refused(void **state) {
    (void)state;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread;
    pthread_mutex_lock(&lock);
    assert_int_equal(pthread_create(&thread, NULL, hold_still, &lock), 0);
    pthread_setname_np(thread, "holder");
    const cairn_status st = cairn_spawn(leave_early, NULL, 2, NULL);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    assert_int_equal(st, CAIRN_ESTATE);
    SAYS("this process has 2 threads, one of them called 'holder'");
    assert_int_equal(cairn_spawn(leave_early, NULL, 2, NULL), CAIRN_OK); /* though it was seen a moment ago */
}

static void sleep_a_little(void *ctx, size_t begin, size_t end) {
    (void)ctx, (void)begin, (void)end;
    usleep(1000);
}

static void cairns_own_threads_are_allowed(void **state) {
    (void)state;
    cairn_set_num_threads(3);
    cairn__parallel_for(30, 1, sleep_a_little, NULL);
    const cairn_status st = cairn_spawn(add_up, NULL, 1, NULL);
    cairn_set_num_threads(1);
    assert_int_equal(st, CAIRN_EPEER);
    SAYS("exit code 1, and no call of Cairn had failed"); /* add_up's size */
}

static void arguments_out_of_range_are_refused(void **state) {
    (void)state;
    assert_int_equal(cairn_spawn(NULL, NULL, 2, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_spawn(leave_early, NULL, 0, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_spawn(leave_early, NULL, -1, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_spawn(leave_early, NULL, 257, NULL), CAIRN_EINVAL);
    SAYS("cairn_spawn: 257 ranks; 1 to 256 are allowed");
    assert_int_equal(cairn_spawn(leave_early, NULL, 2, cairn_spawn_options(.shutdown_timeout = -1)), CAIRN_EINVAL);
    assert_int_equal(cairn_spawn(leave_early, NULL, 2, cairn_spawn_options(.shutdown_timeout = 0.0 / 0.0)),
                     CAIRN_EINVAL);
    assert_int_equal(cairn_spawn(leave_early, NULL, 2, &(struct cairn_spawn_options){0}), CAIRN_EINVAL);
}

static int tell_pid_and_wait(int rank, void *argument) {
    ((volatile pid_t *)argument)[rank] = getpid();
    wait_for_the_end();
}

/* This process becomes the parent of orphans, and so sees them end. */
static void ranks_die_with_their_parent(void **state) {
    (void)state;
    volatile pid_t *pids = shared(3 * sizeof(*pids));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    const pid_t parent = fork();
    if (parent == 0) _exit(cairn_spawn(tell_pid_and_wait, (void *)pids, 3, NULL) == CAIRN_OK);
    while (!pids[0] || !pids[1] || !pids[2]) sched_yield();
    kill(parent, SIGKILL);
    for (int ended = 0; ended < 4; ended++) {
        int status = 0;
        assert_true(waitpid(-1, &status, 0) > 0);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    munmap((void *)pids, 3 * sizeof(*pids));
    assert_no_child();
}

int main(void) {
#if defined(__SANITIZE_THREAD__)
    printf("ThreadSanitizer has a thread of its own, with which cairn_spawn refuses to fork\n");
    return 77;
#endif
    setenv("CAIRN_LOG", "error", 1);
    alarm(240); /* a rank that hangs ends with this process */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spawned_ranks_train_as_ranks_in_threads_do),
        cmocka_unit_test(ranks_get_torchruns_variables_in_place_of_an_outer_launchers),
        cmocka_unit_test(spawned_rank_may_spawn_ranks),
        cmocka_unit_test(rank_may_leave_before_others),
        cmocka_unit_test(output_buffered_before_the_fork_is_written_once),
        cmocka_unit_test(buffered_output_of_ranks_is_flushed),
        cmocka_unit_test(first_failing_rank_is_named_with_its_exit_code_and_others_ended),
        cmocka_unit_test(last_error_reaches_the_parent_by_return_and_by_exit),
        cmocka_unit_test(last_error_reaches_the_parents_launcher),
        cmocka_unit_test(message_may_be_long_and_not_ascii),
        cmocka_unit_test(signal_that_killed_a_rank_is_named),
        cmocka_unit_test(stopped_rank_is_ended_too),
        cmocka_unit_test(rank_that_ignores_sigterm_is_killed_after_the_timeout),
        cmocka_unit_test(cause_is_reported_and_not_its_consequences),
        cmocka_unit_test(consequence_is_reported_if_there_is_no_cause),
        cmocka_unit_test(fork_that_fails_ends_those_that_run),
        cmocka_unit_test(spawn_leaves_no_descriptor_open),
        cmocka_unit_test(spawn_works_without_pidfds),
        cmocka_unit_test(other_children_are_left_to_the_program),
        cmocka_unit_test(ignored_sigchld_hides_no_failure),
        cmocka_unit_test(signal_handlers_of_the_program_do_not_disturb),
        cmocka_unit_test(ranks_start_with_no_signal_blocked),
        cmocka_unit_test(process_with_threads_is_refused),
        cmocka_unit_test(cairns_own_threads_are_allowed),
        cmocka_unit_test(arguments_out_of_range_are_refused),
        cmocka_unit_test(ranks_die_with_their_parent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
