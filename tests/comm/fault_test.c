/* Ranks as processes that die, stop, never start, or are on other machines: the other ranks must report it soon and
 * name the rank, and nothing may be left behind. */
#include "group_processes.h"

#include <sys/resource.h>

/* The store is not needed any more once the group stands. */
static cairn_status join_shm(int rank, int size, int port, double timeout, cairn_group **out) {
    struct member m;
    const cairn_status st = join_group("shm", rank, size, port, timeout, &m);
    *out = m.group;
    return st;
}

/* Ranks that have joined and got their memory; in memory that parent and children share. */
static atomic_int *ready;

static void start(struct processes *p, int size, int skipped, process_fn fn) {
    atomic_store(ready, 0);
    start_ranks(p, size, skipped, fn);
}

enum { SOON = 20 /* s, on a busy machine; ranks that were not told would wait for a minute */ };

/* Every rank but one ends well, and soon. */
static void expect_survivors(struct processes *p, int victim) {
    uint64_t begin = cairn__now_ns();
    for (int r = 0; r < p->size; r++) {
        if (r == victim) continue;
        int status = end_of(p, r);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("rank %d ended with %#x", r, (unsigned)status);
    }
    double took = (double)(cairn__now_ns() - begin) * 1e-9;
    if (took > SOON) fail_msg("it took %.1f s", took);
}

static void await_ready(const struct processes *p) {
    for (int ms = 0; atomic_load(ready) < p->size && ms < 30000; ms++) sleep_ms(1);
    assert_int_equal(atomic_load(ready), p->size);
}

/* ---- death in the middle ---- */

static int train_until_failure(int rank, int size, int port) {
    enum { N = 200000 };
    cairn_group *group = NULL;
    void *x = NULL;
    cairn_status st = CAIRN_OK;
    MUST(join_shm(rank, size, port, 60, &group) == CAIRN_OK);
    MUST(cairn_group_alloc(group, N * sizeof(float), &x) == CAIRN_OK);
    atomic_fetch_add(ready, 1);
    static float ordinary[N];
    for (int i = 0; st == CAIRN_OK; i++) {
        st = i % 5 == 4 ? cairn_barrier(group)
                        : cairn_allreduce(group, i % 2 ? x : ordinary, i % 3 ? N : 100, CAIRN_F32, CAIRN_AVG, NULL);
    }
    MUST(st == CAIRN_EPEER);
    MUST(strstr(cairn_last_error(), "rank 1 (pid ") && strstr(cairn_last_error(), ") ended while rank"));
    MUST(cairn_barrier(group) == CAIRN_EPEER && strstr(cairn_last_error(), "rank 1"));
    (void)cairn__group_destroy_root(&group);
    return 0;
}

static void killed_rank_is_named_by_all_others_soon(void **state) {
    (void)state;
    srand(1);
    const int before = count_files_in_dev_shm();
    for (int round = 0; round < 6; round++) {
        struct processes p;
        start(&p, 2 + round % 3, -1, train_until_failure);
        await_ready(&p);
        sleep_ms(rand() % 100);
        kill(p.pids[1], SIGKILL);
        expect_survivors(&p, 1);
        assert_true(WIFSIGNALED(end_of(&p, 1)));
        cairn__store_stop(&p.server);
    }
    assert_int_equal(count_files_in_dev_shm(), before);
}

static int exit_in_the_middle(int rank, int size, int port) {
    if (rank != 1) return train_until_failure(rank, size, port);
    enum { N = 200000 };
    cairn_group *group = NULL;
    void *x = NULL;
    cairn_work *work = NULL;
    MUST(join_shm(rank, size, port, 60, &group) == CAIRN_OK);
    MUST(cairn_group_alloc(group, N * sizeof(float), &x) == CAIRN_OK);
    static float ordinary[N];
    for (int i = 0; i < 3; i++) {
        MUST(cairn_allreduce(group, i % 2 ? x : ordinary, i % 3 ? N : 100, CAIRN_F32, CAIRN_AVG, &work) == CAIRN_OK);
        if (i < 2) MUST(cairn_work_wait(&work) == CAIRN_OK);
    }
    _exit(0);
}

static void rank_that_exits_with_work_outstanding_is_named(void **state) {
    (void)state;
    for (int size = 2; size <= 4; size++) {
        struct processes p;
        start(&p, size, -1, exit_in_the_middle);
        expect_survivors(&p, 1);
        end_of(&p, 1);
        cairn__store_stop(&p.server);
    }
}

/* A loader of data, say, that outlives its rank with a copy of every descriptor. */
static int die_with_a_child(int rank, int size, int port) {
    cairn_group *group = NULL;
    MUST(join_shm(rank, size, port, 60, &group) == CAIRN_OK);
    if (rank != 1) {
        MUST(cairn_barrier(group) == CAIRN_EPEER && strstr(cairn_last_error(), "rank 1 (pid "));
        (void)cairn__group_destroy_root(&group);
        return 0;
    }
    if (fork() == 0) {
        for (int ms = 0; atomic_load(ready) == 0 && ms < 60000; ms += 10) sleep_ms(10);
        _exit(0);
    }
    raise(SIGKILL);
    return 0;
}

static void death_is_noticed_although_a_child_keeps_the_sockets(void **state) {
    (void)state;
    struct processes p;
    start(&p, 2, -1, die_with_a_child);
    expect_survivors(&p, 1);
    atomic_store(ready, 1);
    end_of(&p, 1);
    cairn__store_stop(&p.server);
}

static int poll_until_failure(int rank, int size, int port) {
    float x = 1;
    int done = 0;
    cairn_group *group = NULL;
    cairn_work *work = NULL;
    cairn_status st = CAIRN_OK;
    MUST(join_shm(rank, size, port, 60, &group) == CAIRN_OK);
    if (rank == 1) raise(SIGKILL);
    MUST(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, &work) == CAIRN_OK);
    while (st == CAIRN_OK && !done) st = cairn_work_test(work, &done);
    MUST(st == CAIRN_EPEER && strstr(cairn_last_error(), "rank 1 (pid "));
    MUST(cairn_work_wait(&work) == CAIRN_EPEER && work == NULL);
    (void)cairn__group_destroy_root(&group);
    return 0;
}

static void polling_detects_a_death_by_itself(void **state) {
    (void)state;
    struct processes p;
    start(&p, 2, -1, poll_until_failure);
    expect_survivors(&p, 1);
    end_of(&p, 1);
    cairn__store_stop(&p.server);
}

/* ---- a rank that stops ---- */

static int wait_for_the_stopped(int rank, int size, int port) {
    enum { N = 50000 };
    cairn_group *group = NULL;
    void *x = NULL;
    cairn_status st = CAIRN_OK;
    MUST(join_shm(rank, size, port, 2, &group) == CAIRN_OK);
    MUST(cairn_group_alloc(group, N * 2, &x) == CAIRN_OK);
    atomic_fetch_add(ready, 1);
    while (st == CAIRN_OK) st = cairn_allreduce(group, x, N, CAIRN_F16, CAIRN_SUM, NULL);
    MUST(st == CAIRN_ETIMEOUT);
    MUST(strstr(cairn_last_error(), "rank 1 (pid ") && strstr(cairn_last_error(), "waited 2 s in all-reduce number "));
    (void)cairn__group_destroy_root(&group);
    return 0;
}

static void stopped_rank_is_named_after_the_timeout(void **state) {
    (void)state;
    for (int size = 2; size <= 3; size++) {
        struct processes p;
        start(&p, size, -1, wait_for_the_stopped);
        await_ready(&p);
        sleep_ms(50);
        kill(p.pids[1], SIGSTOP);
        expect_survivors(&p, 1);
        kill(p.pids[1], SIGKILL);
        end_of(&p, 1);
        cairn__store_stop(&p.server);
    }
}

/* ---- meeting ---- */

static int wait_for_the_missing(int rank, int size, int port) {
    cairn_group *group = NULL;
    MUST(join_shm(rank, size, port, 2, &group) == CAIRN_ETIMEOUT && group == NULL);
    MUST(strstr(cairn_last_error(), "waited 2 s for rank 2, which did not join"));
    return 0;
}

static void rank_that_never_comes_is_named(void **state) {
    (void)state;
    struct processes p;
    start(&p, 3, 2, wait_for_the_missing);
    expect_survivors(&p, 2);
    cairn__store_stop(&p.server);
}

/* Publishes itself, with the name of a socket that is closed. */
static int die_while_meeting(int rank, int size, int port) {
    if (rank != 1) {
        cairn_group *group = NULL;
        MUST(join_shm(rank, size, port, 60, &group) == CAIRN_EPEER && group == NULL);
        MUST(strstr(cairn_last_error(), "rank 1 (pid 99) ended while rank"));
        return 0;
    }
    cairn_store *store = NULL;
    void *text = NULL;
    size_t nbytes = 0;
    char mine[600], name[65] = "", host[300] = "";
    MUST(cairn_tcp_store_create("127.0.0.1", port, cairn_tcp_store_options(.timeout = 10), &store) == CAIRN_OK);
    MUST(cairn_store_get(store, "test/peers/0", &text, &nbytes) == CAIRN_OK);
    MUST(sscanf(text, "cairn-peer-1 %*d %*d 0 0 shm - %*s %64s %299[^\n]", name, host) == 2);
    int length =
        snprintf(mine, sizeof(mine), "cairn-peer-1 %d 99 0 0 shm - cairn-nobody-is-here %s %s", size, name, host);
    MUST(cairn_store_set(store, "test/peers/1", mine, (size_t)length) == CAIRN_OK);
    cairn_store_destroy(&store);
    return 0;
}

static void rank_that_dies_while_meeting_is_named_soon(void **state) {
    (void)state;
    for (int size = 2; size <= 3; size++) {
        struct processes p;
        start(&p, size, -1, die_while_meeting);
        expect_survivors(&p, 1);
        end_of(&p, 1);
        cairn__store_stop(&p.server);
    }
}

static int live_elsewhere(int rank, int size, int port) {
    cairn_group *group = NULL;
    char name[65], expected[300];
    MUST(gethostname(name, sizeof(name)) == 0);
    snprintf(expected, sizeof(expected), "rank 0 runs on %s ('machine A') and rank 1 on %s ('machine B')", name, name);
    setenv("CAIRN_HOST_ID", rank == 1 ? "machine B" : "machine A", 1);
    MUST(join_shm(rank, size, port, 20, &group) == CAIRN_ENOTSUP && group == NULL);
    MUST(strstr(cairn_last_error(), expected));
    return 0;
}

static void shm_on_two_machines_names_both(void **state) {
    (void)state;
    struct processes p;
    start(&p, 3, -1, live_elsewhere);
    expect_survivors(&p, -1);
    cairn__store_stop(&p.server);
}

/* ---- descriptors ---- */

/* No number is left for a new descriptor, be it this rank's own or one that arrives. */
static int allow_no_descriptors(struct rlimit *before) {
    struct rlimit none;
    int lowest = dup(0);
    MUST(lowest >= 0 && close(lowest) == 0 && getrlimit(RLIMIT_NOFILE, before) == 0);
    none = *before;
    none.rlim_cur = (rlim_t)lowest;
    MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
    return 0;
}

static int allocate_without_descriptors(int rank, int size, int port) {
    cairn_group *group = NULL;
    struct rlimit before;
    void *x = NULL;
    MUST(join_shm(rank, size, port, 20, &group) == CAIRN_OK);
    if (rank == 1) MUST(allow_no_descriptors(&before) == 0);
    MUST(cairn_group_alloc(group, 5000, &x) == CAIRN_ESYSTEM && x == NULL);
    MUST(strstr(cairn_last_error(), "Too many open files"));
    if (rank == 1) MUST(setrlimit(RLIMIT_NOFILE, &before) == 0);
    MUST(cairn_group_alloc(group, 5000, &x) == CAIRN_OK); /* no rank kept anything, and the group goes on */
    MUST(cairn_allreduce(group, x, 1250, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_OK);
    MUST(cairn_group_free(group, &x) == CAIRN_OK);
    (void)cairn__group_destroy_root(&group);
    return 0;
}

static void memory_that_one_rank_has_no_descriptor_for_is_made_nowhere(void **state) {
    (void)state;
    for (int size = 2; size <= 4; size++) {
        struct processes p;
        start(&p, size, -1, allocate_without_descriptors);
        expect_survivors(&p, -1);
        cairn__store_stop(&p.server);
    }
}

/* ---- crowds ---- */

static int reduce_in_a_crowd(int rank, int size, int port) {
    enum { N = 100000, ROUNDS = 50 };
    cairn_group *group = NULL;
    void *x = NULL;
    MUST(join_shm(rank, size, port, 60, &group) == CAIRN_OK);
    MUST(cairn_group_alloc(group, N * sizeof(int32_t), &x) == CAIRN_OK);
    int32_t *values = x;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++) values[i] = rank + i + round;
        MUST(cairn_allreduce(group, x, N, CAIRN_I32, CAIRN_SUM, NULL) == CAIRN_OK);
        for (int i = 0; i < N; i++) MUST(values[i] == size * (i + round) + size * (size - 1) / 2);
    }
    MUST(cairn_group_free(group, &x) == CAIRN_OK);
    (void)cairn__group_destroy_root(&group);
    return 0;
}

static void eight_processes_on_few_processors_complete(void **state) {
    (void)state;
    struct processes p;
    start(&p, 8, -1, reduce_in_a_crowd);
    expect_survivors(&p, -1);
    cairn__store_stop(&p.server);
}

static int share_ready(void **state) {
    (void)state;
    ready = mmap(NULL, sizeof(*ready), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return ready == MAP_FAILED;
}

static int unshare_ready(void **state) {
    (void)state;
    return munmap((void *)ready, sizeof(*ready));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_rank_is_named_by_all_others_soon),
        cmocka_unit_test(rank_that_exits_with_work_outstanding_is_named),
        cmocka_unit_test(death_is_noticed_although_a_child_keeps_the_sockets),
        cmocka_unit_test(polling_detects_a_death_by_itself),
        cmocka_unit_test(stopped_rank_is_named_after_the_timeout),
        cmocka_unit_test(rank_that_never_comes_is_named),
        cmocka_unit_test(rank_that_dies_while_meeting_is_named_soon),
        cmocka_unit_test(shm_on_two_machines_names_both),
        cmocka_unit_test(memory_that_one_rank_has_no_descriptor_for_is_made_nowhere),
        cmocka_unit_test(eight_processes_on_few_processors_complete),
    };
    return cmocka_run_group_tests_name("fault", tests, share_ready, unshare_ready);
}
