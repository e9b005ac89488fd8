/* The suite of collectives.h, and its cases of ranks that disagree, on one backend with ranks as threads.
 *
 * usage: collectives_test shm | gloo [WORD]    (only the cases whose names contain the word)
 *
 * With CAIRN_TEST_SHORT in the environment on some numbers of ranks alone; see left_out(). With CAIRN_TEST_MACHINES=aab
 * ranks are on machines of these names. */
#include "machines.h"

#include "collectives.h"

static const char *backend = "shm";
static char *word;

static void suite_holds(void **state) {
    run_group_of(backend, *(int *)*state, 60, collectives_check, word);
}

static void rank_that_disagrees_is_named(void **state) {
    setenv("CAIRN_CHECK", "1", 1);
    for (int p = 2; p <= 3; p++) run_group_of(backend, p, 60, collectives_check_mismatch, *state);
    unsetenv("CAIRN_CHECK");
}

/* Without the check each rank waits in its own call, and the error tells where the others are. */
static char *wait_elsewhere(cairn_group *group, void *ctx) {
    float x[8] = {0};
    (void)ctx;
    EXPECT_OK(cairn_barrier(group));
    cairn_status st = cairn_group_rank(group) == 1 ? cairn_broadcast(group, x, 7, CAIRN_F32, 2, NULL)
                                                   : cairn_allreduce(group, x, 5, CAIRN_F32, CAIRN_SUM, NULL);
    EXPECT(st == CAIRN_ETIMEOUT || st == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "all-reduce number 2 of 5 f32 to sum"));
    EXPECT(strstr(cairn_last_error(), "broadcast number 2 of 7 f32 from rank 2"));
    return NULL;
}

static void ranks_that_disagree_unchecked_time_out_and_name_both_calls(void **state) {
    (void)state;
    run_group_of(backend, 3, 2, wait_elsewhere, NULL);
}

/* The numbers of ranks that a short check leaves out. Processes have 2, 3 and 8 on shm, 2 and 4 on gloo. The engine of
 * tests keeps the most; on machines there are ranks that share one and ranks that are alone. */
static const char *left_out(void) {
    if (!check_is_short()) return "";
    if (strcmp(backend, "shm") == 0) return "34678";
    if (!getenv("FAKE_ENGINE_SEED")) return "24678";
    return getenv("CAIRN_TEST_MACHINES") ? "124678" : "4567";
}

static struct CMUnitTest test_of(CMUnitTestFunction run, void *about, const char *format, const char *what) {
    char *name = malloc(200);
    snprintf(name, 200, format, what);
    return (struct CMUnitTest){.name = name, .test_func = run, .initial_state = about};
}

int main(int argc, char **argv) {
    static int ranks[MAX_RANKS] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct CMUnitTest tests[MAX_RANKS + 16];
    size_t n = 0;
    machines_from_environment();
    if (argc > 1) backend = argv[1];
    if (argc > 2) word = argv[2];
    for (int r = 0; r < MAX_RANKS; r++) {
        if (strchr(left_out(), '0' + ranks[r])) continue;
        tests[n++] = test_of(suite_holds, &ranks[r], "suite_holds_on_%s_ranks", (char[]){(char)('0' + ranks[r]), '\0'});
    }
    for (struct collectives_mismatch *m = collectives_mismatches; m->name && !word; m++) {
        tests[n++] = test_of(rank_that_disagrees_is_named, m, "rank_with_another_%s_is_named", m->name);
    }
    if (!word && strcmp(backend, "shm") != 0) { /* which always checks */
        tests[n++] = test_of(ranks_that_disagree_unchecked_time_out_and_name_both_calls, NULL, "%s",
                             "ranks_that_disagree_unchecked_time_out_and_name_both_calls");
    }
    int failed = _cmocka_run_group_tests(backend, tests, n, NULL, NULL);
    for (size_t i = 0; i < n; i++) free((void *)(uintptr_t)tests[i].name);
    return failed;
}
