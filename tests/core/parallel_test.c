/* The thread pool: it processes each item once, in pieces that do not depend on the number of threads, from any calling
 * thread. With --bench: the overhead of one call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>

#include "core/parallel.h"
#include "core/subnormals.h"
#include "core/trace.h"

enum { MAX_ITEMS = 10007 };

struct counting {
    size_t n, grain;
    atomic_int done[MAX_ITEMS];
    atomic_int bad_pieces;
};

static void count_items(void *ctx, size_t begin, size_t end) {
    struct counting *c = ctx;
    if (begin % c->grain != 0 || end <= begin || (end - begin != c->grain && end != c->n)) c->bad_pieces++;
    for (size_t i = begin; i < end; i++) c->done[i]++;
}

static void assert_each_once(size_t n, size_t grain) {
    static struct counting c;
    memset(&c, 0, sizeof(c));
    c.n = n, c.grain = grain;
    cairn__parallel_for(n, grain, count_items, &c);
    for (size_t i = 0; i < MAX_ITEMS; i++) assert_int_equal(c.done[i], i < n);
    assert_int_equal(c.bad_pieces, 0);
}

static void every_item_is_done_once_in_pieces_of_the_grain(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 8, 2};
    static const size_t sizes[] = {0, 1, 2, 63, 64, 65, 1000, MAX_ITEMS};
    for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
        assert_int_equal(cairn_set_num_threads(threads[t]), CAIRN_OK);
        assert_int_equal(cairn_num_threads(), threads[t]);
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            assert_each_once(sizes[i], 1);
            assert_each_once(sizes[i], 64);
        }
        for (int i = 0; i < 50; i++) assert_each_once(300, 10);
    }
}

static void add_item(void *ctx, size_t begin, size_t end) {
    struct counting *c = ctx;
    for (size_t i = begin; i < end; i++) c->done[i]++;
}

static void call_again(void *ctx, size_t begin, size_t end) {
    struct counting *all = ctx;
    for (size_t i = begin; i < end; i++) cairn__parallel_for(10, 1, add_item, &all[i]);
}

static void nested_call_runs_on_its_own_thread(void **state) {
    (void)state;
    enum { CALLS = 20 };
    static struct counting all[CALLS];
    cairn_set_num_threads(4);
    cairn__parallel_for(CALLS, 1, call_again, all);
    for (int i = 0; i < CALLS; i++) {
        for (int j = 0; j < 10; j++) assert_int_equal(all[i].done[j], 1);
    }
}

static void ask_for_threads(void *ctx, size_t begin, size_t end) {
    (void)begin, (void)end;
    if (cairn_set_num_threads(3) != CAIRN_ESTATE) ++*(atomic_int *)ctx;
}

static void wrong_number_of_threads_is_refused(void **state) {
    (void)state;
    atomic_int allowed = 0;
    cairn_set_num_threads(2);
    assert_int_equal(cairn_set_num_threads(0), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "cairn_set_num_threads: 0 threads; 1 to 1024 are allowed");
    assert_int_equal(cairn_set_num_threads(1025), CAIRN_EINVAL);
    cairn__parallel_for(8, 1, ask_for_threads, &allowed);
    assert_int_equal(allowed, 0);
    assert_int_equal(cairn_num_threads(), 2);
}

/* Two threads that use the pool at one time. */
static void *use_pool(void *failures) {
    enum { ROUNDS = 300, ITEMS = 50 };
    for (int i = 0; i < ROUNDS; i++) {
        struct counting *c = calloc(1, sizeof(*c));
        cairn__parallel_for(ITEMS, 1, add_item, c);
        for (int j = 0; j < ITEMS; j++) {
            if (c->done[j] != 1) ++*(atomic_int *)failures;
        }
        free(c);
    }
    return NULL;
}

static void busy_pool_leaves_the_work_to_its_caller(void **state) {
    (void)state;
    pthread_t other;
    atomic_int failures = 0;
    cairn_set_num_threads(3);
    assert_int_equal(pthread_create(&other, NULL, use_pool, &failures), 0);
    use_pool(&failures);
    pthread_join(other, NULL);
    assert_int_equal(failures, 0);
}

/* A body that returns when as many pieces have begun at once as there are threads of all pools. */
struct gathering {
    atomic_int here, failed;
    int want;
};

static void gather_here(void *ctx, size_t begin, size_t end) {
    struct gathering *g = ctx;
    (void)begin, (void)end;
    atomic_fetch_add(&g->here, 1);
    for (int i = 0; atomic_load(&g->here) < g->want; i++) {
        if (i > 20000) {
            g->failed = 1;
            return;
        }
        usleep(1000);
    }
}

static void *use_own_pool(void *ctx) {
    struct gathering *g = ctx;
    atomic_int failures = 0;
    if (cairn__parallel_enter(2) != CAIRN_OK || cairn_num_threads() != 2) g->failed = 1;
    cairn__parallel_for(2, 1, gather_here, g);
    cairn_set_num_threads(3);
    use_pool(&failures);
    if (failures || cairn_num_threads() != 3) g->failed = 1;
    cairn__parallel_leave();
    if (cairn_num_threads() != 4) g->failed = 1;
    return NULL;
}

static void pools_of_threads_work_at_the_same_time(void **state) {
    (void)state;
    pthread_t others[3];
    struct gathering g = {.want = 4 + 3 * 2};
    cairn_set_num_threads(4);
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&others[i], NULL, use_own_pool, &g), 0);
    cairn__parallel_for(4, 1, gather_here, &g);
    for (int i = 0; i < 3; i++) pthread_join(others[i], NULL);
    assert_int_equal(g.failed, 0);
    assert_int_equal(g.here, g.want);
    assert_int_equal(cairn_num_threads(), 4);
}

static int exit_code_of(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void child_of_a_fork_makes_a_pool_of_its_own(void **state) {
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message("ThreadSanitizer lets the child of a process with threads start none\n");
    skip();
#endif
    cairn_set_num_threads(3);
    assert_each_once(1000, 10);
    const pid_t child = fork();
    if (child == 0) {
        atomic_int failures = 0;
        use_pool(&failures);
        exit(failures == 0 ? 0 : 1); /* not _exit: the pool ends as in any process */
    }
    assert_int_equal(exit_code_of(child), 0);
    assert_each_once(1000, 10);
}

/* The first of all tests, before the number of threads is read. */
static void environment_sets_the_threads_until_a_call_does(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int threads;
    } cases[] = {{NULL, 1}, {"", 1}, {"4", 4}, {"3,2", 3}, {"0", 1}, {"-2", 1}, {"many", 1}, {"2x", 1}, {"99999", 1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const pid_t child = fork();
        if (child == 0) {
            if (cases[i].text) setenv("OMP_NUM_THREADS", cases[i].text, 1);
            if (!cases[i].text) unsetenv("OMP_NUM_THREADS");
            if (!freopen("/dev/null", "w", stderr)) _exit(99);
            _exit(cairn_num_threads());
        }
        assert_int_equal(exit_code_of(child), cases[i].threads);
    }
}

static int threads_called_cairn_pool(void) {
    char path[300], name[32];
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *e; (e = readdir(tasks));) {
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (!f) continue;
        if (fgets(name, sizeof(name), f) && strcmp(name, "cairn-pool\n") == 0) count++;
        fclose(f);
    }
    closedir(tasks);
    return count;
}

/* Workers name themselves as they start. */
static void assert_workers(int count) {
    for (int i = 0; i < 2000 && threads_called_cairn_pool() != count; i++) usleep(1000);
    assert_int_equal(threads_called_cairn_pool(), count);
}

static void threads_are_named_and_started_when_needed(void **state) {
    (void)state;
    cairn_set_num_threads(4);
    assert_each_once(10, 1);
    assert_workers(3);
    cairn_set_num_threads(2);
    assert_each_once(1, 1); /* one piece: no reason to touch the pool */
    assert_workers(3);
    assert_each_once(10, 1);
    assert_workers(1);
}

/* ---- subnormal numbers ---- */

struct halved {
    pthread_t by;
    float value;
};

static float half_of(float x) {
    volatile float y = x;
    return y / 2;
}

static void halve_the_smallest(void *ctx, size_t begin, size_t end) {
    struct halved *done = ctx;
    usleep(100); /* so that every thread has some */
    for (size_t i = begin; i < end; i++) done[i] = (struct halved){pthread_self(), half_of(0x1p-126f)};
}

/* As in a program that is linked with -ffast-math. */
static void threads_keep_subnormals_whatever_thread_starts_them(void **state) {
    (void)state;
#if defined(__SSE__)
    enum { ITEMS = 200, FLUSH = 0x8040 };
    static struct halved done[ITEMS];
    const unsigned modes = _mm_getcsr();
    int by_others = 0;
    cairn_set_num_threads(5); /* another number: the pool starts anew */
    _mm_setcsr(modes | FLUSH);
    cairn__parallel_for(ITEMS, 1, halve_the_smallest, done);
    assert_true(half_of(0x1p-126f) == 0);
    assert_true(cairn__keep_subnormals());
    assert_true(half_of(0x1p-126f) == 0x1p-127f);
    assert_false(cairn__keep_subnormals());
    assert_int_equal(_mm_getcsr() & ~0x3f, modes & ~0x3f); /* but for what was raised */
    for (int i = 0; i < ITEMS; i++) {
        if (pthread_equal(done[i].by, pthread_self())) continue;
        by_others++;
        assert_true(done[i].value == 0x1p-127f);
    }
    assert_true(by_others > 0);
#else
    skip();
#endif
}

/* ---- costs ---- */

static void nothing(void *ctx, size_t begin, size_t end) {
    (void)ctx, (void)begin, (void)end;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_us(int pause_us) {
    enum { ROUNDS = 501 };
    static double us[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        if (pause_us) usleep((useconds_t)pause_us);
        const uint64_t begin = cairn__now_ns();
        cairn__parallel_for(64, 1, nothing, NULL);
        us[i] = (double)(cairn__now_ns() - begin) * 1e-3;
    }
    qsort(us, ROUNDS, sizeof(us[0]), by_value);
    return us[ROUNDS / 2];
}

static int bench(void) {
    printf("one call of 64 empty pieces, medians of 501; %ld processors\n", sysconf(_SC_NPROCESSORS_ONLN));
    for (int threads = 1; threads <= 4; threads *= 2) {
        cairn_set_num_threads(threads);
        const double warm = median_us(0), asleep = median_us(2000);
        printf("  %d threads: %6.2f us one after another, %6.2f us where they sleep\n", threads, warm, asleep);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) return bench();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment_sets_the_threads_until_a_call_does),
        cmocka_unit_test(every_item_is_done_once_in_pieces_of_the_grain),
        cmocka_unit_test(nested_call_runs_on_its_own_thread),
        cmocka_unit_test(wrong_number_of_threads_is_refused),
        cmocka_unit_test(busy_pool_leaves_the_work_to_its_caller),
        cmocka_unit_test(pools_of_threads_work_at_the_same_time),
        cmocka_unit_test(child_of_a_fork_makes_a_pool_of_its_own),
        cmocka_unit_test(threads_are_named_and_started_when_needed),
        cmocka_unit_test(threads_keep_subnormals_whatever_thread_starts_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
