/* shm groups through their public calls: steady states, ranks that leave or never come, arguments. The suite of
 * collectives.h tests the results of collectives. */
#include "group_ranks.h"

#include <math.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/alloc.h"

static char *steady_state(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { N = 2000 };
    void *x = NULL;
    float ordinary[16] = {0};
    cairn_work *works[8];
    struct cairn__alloc_counters before = {0};
    EXPECT_OK(cairn_group_alloc(group, 8 * N * 2, &x));
    for (int round = 0; round < 20; round++) {
        EXPECT_OK(cairn_barrier(group));
        if (round == 2) before = cairn__alloc_counters();
        for (int w = 0; w < 8; w++) {
            EXPECT_OK(cairn_allreduce(group, (char *)x + w * N * 2, N, CAIRN_F16, CAIRN_AVG, &works[w]));
        }
        for (int w = 0; w < 8; w++) EXPECT_OK(cairn_work_wait(&works[w]));
        EXPECT_OK(cairn_allreduce(group, ordinary, 16, CAIRN_F32, CAIRN_SUM, NULL));
        EXPECT_OK(cairn_broadcast(group, ordinary, 16, CAIRN_F32, 0, NULL));
    }
    EXPECT_OK(cairn_barrier(group));
    EXPECT(cairn__alloc_counters().allocations == before.allocations);
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void steady_state_allocates_nothing(void **state) {
    (void)state;
    run_group(2, steady_state, NULL);
}

static char *allocate_too_much(cairn_group *group, void *ctx) {
    (void)ctx;
    void *huge = NULL;
    EXPECT(cairn_group_alloc(group, (size_t)1 << 50, &huge) == CAIRN_ENOMEM && huge == NULL);
    EXPECT(strstr(cairn_last_error(), "more than this machine's memory"));
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void group_memory_larger_than_the_machines_is_refused(void **state) {
    (void)state;
    for (int p = 1; p <= 4; p++) run_group(p, allocate_too_much, NULL);
}

static char *allocate_beyond_the_file_limit(cairn_group *group, void *ctx) {
    const struct rlimit *before = ctx;
    const struct rlimit narrow = {.rlim_cur = 8192, .rlim_max = before->rlim_max};
    void *memory = NULL;
    EXPECT_OK(cairn_barrier(group));
    EXPECT(setrlimit(RLIMIT_FSIZE, &narrow) == 0); /* of the process, which is all ranks */
    EXPECT_OK(cairn_barrier(group));
    const cairn_status st = cairn_group_alloc(group, 1 << 20, &memory);
    if (check_ranks_are_threads()) { /* memory of their process is no file */
        EXPECT_OK(st);
        EXPECT_OK(cairn_group_free(group, &memory));
    } else {
        EXPECT(st == CAIRN_ENOMEM && memory == NULL);
        EXPECT(
            strstr(cairn_last_error(), "1048576 bytes of shared memory are more than the 8192 that a file may have"));
    }
    EXPECT_OK(cairn_group_alloc(group, 4096, &memory));
    EXPECT_OK(cairn_group_free(group, &memory));
    EXPECT(setrlimit(RLIMIT_FSIZE, before) == 0);
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void limit_on_file_size_is_an_error_and_not_a_signal(void **state) {
    struct rlimit before;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    run_group(2, allocate_beyond_the_file_limit, &before);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
}

/* ---- huge pages ---- */

enum { HUGE_PAGE = 2 << 20 };

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* A system may be older, have larger pages, or forbid it. */
static bool system_collapses_shared_memory(void) {
    const int fd = memfd_create("cairn-test", MFD_CLOEXEC);
    char *const room = mmap(NULL, 2 * HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fd < 0 || ftruncate(fd, HUGE_PAGE) != 0 || room == MAP_FAILED) return false;
    char *const at = room + (HUGE_PAGE - (uintptr_t)room % HUGE_PAGE) % HUGE_PAGE;
    char *const p = mmap(at, HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    bool collapses = p != MAP_FAILED;
    if (collapses) {
        *p = 1;
        collapses = madvise(p, HUGE_PAGE, MADV_COLLAPSE) == 0;
    }
    munmap(room, 2 * HUGE_PAGE);
    close(fd);
    return collapses;
}

/* Of the mapping that begins there; -1 where none does. */
static long huge_kib(const void *begin) {
    char line[512], wanted[32];
    long kib = -1;
    bool here = false;
    FILE *const maps = fopen("/proc/self/smaps", "r");
    snprintf(wanted, sizeof(wanted), "%llx-", (unsigned long long)(uintptr_t)begin);
    while (maps && kib < 0 && fgets(line, sizeof(line), maps)) {
        if (strncmp(line, wanted, strlen(wanted)) == 0) here = true;
        if (here) (void)sscanf(line, "ShmemPmdMapped: %ld kB", &kib);
    }
    if (maps) fclose(maps);
    return kib;
}

static char *allocate_three_mib(cairn_group *group, void *ctx) {
    enum { N = 3 << 18 };
    void *memory = NULL;
    EXPECT_OK(cairn_group_alloc(group, N * sizeof(float), &memory));
    float *const x = memory;
    for (size_t i = 0; i < N; i++) x[i] = (float)cairn_group_rank(group);
    EXPECT_OK(cairn_allreduce(group, x, N, CAIRN_F32, CAIRN_SUM, NULL));
    for (size_t i = 0; i < N; i++) EXPECT(x[i] == 1);
    EXPECT((uintptr_t)x % HUGE_PAGE == 0);
    /* The system may run out of them at any time: then it refuses the test as well. */
    EXPECT(!*(bool *)ctx || huge_kib(x) == HUGE_PAGE >> 10 || madvise(memory, HUGE_PAGE, MADV_COLLAPSE) != 0);
    EXPECT_OK(cairn_barrier(group));
    EXPECT_OK(cairn_group_free(group, &memory));
    return NULL;
}

static void group_memory_lies_in_huge_pages_where_the_system_has_them(void **state) {
    (void)state;
    bool collapses = system_collapses_shared_memory();
    if (check_ranks_are_threads()) {
        print_message("threads share memory of their process, not of this kind\n");
        skip();
    }
    if (!collapses) print_message("this system collapses no shared memory: its pages stay small\n");
    run_group(2, allocate_three_mib, &collapses);
}

static char *leave_early(cairn_group *group, void *ctx) {
    (void)ctx;
    float x = 1;
    if (cairn_group_rank(group) == 1) return NULL;
    EXPECT(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "rank 1 (pid ") && strstr(cairn_last_error(), "left the group while rank"));
    EXPECT(strstr(cairn_last_error(), "waited in all-reduce number 1 of 1 f32"));
    return NULL;
}

static void rank_that_left_is_named(void **state) {
    (void)state;
    run_group(3, leave_early, NULL);
}

/* ctx: whether rank 0 is through, which rank 1 waits for. */
static char *stay_away(cairn_group *group, void *ctx) {
    atomic_bool *is_through = ctx;
    float x = 1;
    cairn_work *work = NULL;
    EXPECT_OK(cairn_barrier(group));
    if (cairn_group_rank(group) == 1) {
        for (int i = 0; i < 6000 && !atomic_load(is_through) && cairn__group_progress(group) == CAIRN_OK; i++)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        return NULL;
    }
    EXPECT_OK(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, &work));
    const cairn_status st = cairn_work_wait(&work);
    atomic_store(is_through, true);
    EXPECT(st == CAIRN_ETIMEOUT && work == NULL);
    EXPECT(strstr(cairn_last_error(), "waited 1.5 s in all-reduce number 2 of 1 f32 to sum for rank 1 (pid "));
    EXPECT(strstr(cairn_last_error(), "last posted number 1)"));
    return NULL;
}

static void rank_that_stays_away_is_named_after_the_timeout(void **state) {
    (void)state;
    atomic_bool is_through = false;
    run_group_within(2, 1.5, stay_away, &is_through);
}

/* ---- arguments ---- */

static char *refuse(cairn_group *group, void *ctx) {
    (void)ctx;
    float x[8] = {0};
    cairn_work *none = NULL;
    int done = 0;
    void *p = x;
    EXPECT(cairn_allreduce(NULL, x, 1, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_allreduce(group, NULL, 1, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_allreduce(group, x, 1, (cairn_dtype)9, CAIRN_SUM, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_allreduce(group, x, 1, CAIRN_F32, (cairn_redop)0, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_allreduce(group, x, SIZE_MAX / 2, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_allreduce(group, (char *)x + 1, 1, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_broadcast(group, x, 1, CAIRN_F32, 1, NULL) == CAIRN_EINVAL);
    EXPECT(strstr(cairn_last_error(), "root 1 is not in a group of 1"));
    EXPECT(cairn_broadcast(group, x, 1, CAIRN_F32, -1, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_allgather(group, x, x + 1, 4, CAIRN_F32, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_group_alloc(group, 1, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_group_free(group, &p) == CAIRN_EINVAL);
    EXPECT(cairn_work_test(NULL, &done) == CAIRN_EINVAL);
    EXPECT(cairn_barrier(NULL) == CAIRN_EINVAL);
    EXPECT_OK(cairn_work_wait(&none));
    EXPECT_OK(cairn_barrier(group));
    EXPECT(strcmp(cairn_group_backend(group), check_ranks_are_threads() ? "threads" : "shm") == 0);
    return NULL;
}

static char *meet_only(cairn_group *group, void *ctx) {
    (void)ctx;
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void timeout_of_many_years_is_allowed(void **state) {
    (void)state;
    static const double timeouts[] = {1e9, 1e11, 1e300, INFINITY};
    for (size_t i = 0; i < sizeof(timeouts) / sizeof(timeouts[0]); i++) {
        run_group_within(3, timeouts[i], meet_only, NULL);
    }
}

static void bad_arguments_post_nothing(void **state) {
    (void)state;
    run_group(1, refuse, NULL);
}

static void expect_refusal(struct cairn__group_create_options o, cairn_status status, const char *sentence) {
    cairn_group *group = NULL;
    assert_int_equal(cairn__group_create(&o, &group), status);
    assert_null(group);
    assert_non_null(strstr(cairn_last_error(), sentence));
}

static void creation_refuses_wrong_options(void **state) {
    (void)state;
    struct cairn__group_create_options good = {.size = 1, .timeout = 1}, o = good;
    o.backend = "nccl";
    setenv("CAIRN_MODULE_PATH", "/nowhere", 1); /* in every build alike */
    expect_refusal(o, CAIRN_ENOTBUILT, "group backend 'nccl' needs libcairn_nccl.so");
    unsetenv("CAIRN_MODULE_PATH");
    o.backend = "tcp";
    expect_refusal(o, CAIRN_EINVAL, "no group backend 'tcp'");
    o = good, o.rank = 1;
    expect_refusal(o, CAIRN_EINVAL, "rank 1 is not in a group of 1");
    o = good, o.size = 2;
    expect_refusal(o, CAIRN_EINVAL, "needs a store");
    o = good, o.size = 2, o.backend = "self";
    expect_refusal(o, CAIRN_EINVAL, "'self' is for one rank, not 2");
    o = good, o.size = 1000;
    expect_refusal(o, CAIRN_EINVAL, "1 to 256");
    o = good, o.timeout = 0;
    expect_refusal(o, CAIRN_EINVAL, "must be positive");
    expect_refusal(good, CAIRN_EINVAL, "one rank needs a device");
    cairn_group *none = NULL;
    (void)cairn__group_destroy_root(&none);
}

static void group_of_one_exchanges_nothing_and_owns_its_memory(void **state) {
    (void)state;
    struct cairn_device *device = NULL;
    cairn_group *group = NULL;
    assert_int_equal(cairn__device_open("cpu", 0, &device), CAIRN_OK);
    const uint64_t alive = cairn__alloc_counters().alive;
    assert_int_equal(
        cairn__group_create(&(struct cairn__group_create_options){.size = 1, .timeout = 1, .device = device}, &group),
        CAIRN_OK);
    assert_string_equal(cairn_group_backend(group), "self");
    assert_false(cairn__group_checks_results(group));
    float x[] = {INFINITY, 2}, all[2] = {0};
    uint32_t found = 0;
    cairn_work *work = NULL;
    assert_int_equal(cairn_allreduce(group, x, 2, CAIRN_F32, CAIRN_AVG, &work), CAIRN_OK);
    assert_int_equal(cairn__work_finish(&work, &found), CAIRN_OK);
    assert_true(x[0] == INFINITY && x[1] == 2 && found == 0);
    assert_int_equal(cairn_allgather(group, all, x, 2, CAIRN_F32, NULL), CAIRN_OK);
    assert_memory_equal(all, x, sizeof(x));
    assert_int_equal(cairn_broadcast(group, x, 2, CAIRN_F32, 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_barrier(group), CAIRN_OK);
    void *a = NULL, *b = NULL;
    assert_int_equal(cairn_group_alloc(group, 10, &a), CAIRN_OK);
    assert_int_equal(cairn_group_alloc(group, 10, &b), CAIRN_OK);
    assert_memory_equal(a, ((char[10]){0}), 10);
    assert_int_equal(cairn_group_free(group, &a), CAIRN_OK);
    void *foreign = x;
    assert_int_equal(cairn_group_free(group, &foreign), CAIRN_EINVAL);
    (void)cairn__group_destroy_root(&group); /* b goes with it */
    assert_int_equal(cairn__alloc_counters().alive, alive);
    cairn__device_close(&device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_of_one_exchanges_nothing_and_owns_its_memory),
        cmocka_unit_test(steady_state_allocates_nothing),
        cmocka_unit_test(group_memory_larger_than_the_machines_is_refused),
        cmocka_unit_test(limit_on_file_size_is_an_error_and_not_a_signal),
        cmocka_unit_test(group_memory_lies_in_huge_pages_where_the_system_has_them),
        cmocka_unit_test(rank_that_left_is_named),
        cmocka_unit_test(rank_that_stays_away_is_named_after_the_timeout),
        cmocka_unit_test(timeout_of_many_years_is_allowed),
        cmocka_unit_test(bad_arguments_post_nothing),
        cmocka_unit_test(creation_refuses_wrong_options),
    };
    return cmocka_run_group_tests_name("group", tests, NULL, NULL);
}
