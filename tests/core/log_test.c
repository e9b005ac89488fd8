/* The log's filter and its two sinks. CAIRN_LOG is read once, so each case runs in its own child process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"

static void one_of_each(void) {
    cairn__log(CAIRN_LOG_ERROR, "e%d", 1);
    cairn__log(CAIRN_LOG_WARNING, "w%d", 2);
    cairn__log(CAIRN_LOG_NOTICE, "n%d", 3);
    cairn__log(CAIRN_LOG_INFO, "i%d", 4);
    cairn__log(CAIRN_LOG_DEBUG, "d%d", 5);
}

static int nothing(void) {
    return 0;
}

/* What a fresh process with CAIRN_LOG=level writes to stderr as that rank, after prepare. */
static void stderr_after(int (*prepare)(void), const char *level, int rank, char *text, size_t nbytes) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        if (level) setenv("CAIRN_LOG", level, 1);
        else unsetenv("CAIRN_LOG");
        cairn__log_set_rank(rank);
        const int failed = prepare();
        one_of_each();
        _exit(failed);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got = 1; got > 0 && used<nbytes - 1; used += got> 0 ? (size_t)got : 0) {
        got = read(ends[0], text + used, nbytes - 1 - used);
    }
    text[used] = 0;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
}

static void stderr_of(const char *level, int rank, char *text, size_t nbytes) {
    stderr_after(nothing, level, rank, text, nbytes);
}

static void the_level_in_the_environment_is_the_highest_shown(void **state) {
    (void)state;
    static const struct {
        const char *level, *shown;
    } cases[] = {
        {"error", "cairn: error: e1\n"},
        {"warning", "cairn: error: e1\ncairn: warning: w2\n"},
        {NULL, "cairn: error: e1\ncairn: warning: w2\ncairn: n3\n"},
        {"notice", "cairn: error: e1\ncairn: warning: w2\ncairn: n3\n"},
        {"info", "cairn: error: e1\ncairn: warning: w2\ncairn: n3\ncairn: info: i4\n"},
        {"debug", "cairn: error: e1\ncairn: warning: w2\ncairn: n3\ncairn: info: i4\ncairn: debug: d5\n"},
        {"nonsense",
         "cairn: warning: CAIRN_LOG='nonsense' is none of error, warning, notice, info, debug and is ignored\n"
         "cairn: error: e1\ncairn: warning: w2\ncairn: n3\n"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        stderr_of(cases[i].level, 0, text, sizeof(text));
        assert_string_equal(text, cases[i].shown);
    }
}

static void other_ranks_print_errors_only(void **state) {
    (void)state;
    char text[512];
    stderr_of("debug", 3, text, sizeof(text));
    assert_string_equal(text, "cairn: [rank 3] error: e1\n");
}

/* Rank 0 is in a grid, rank 3 too, and rank 4 was; a place that another grid has given since stays. */
static int give_places(void) {
    cairn__log_enter_place(0, 0, 0);
    cairn__log_enter_place(3, 0, 3);
    cairn__log_enter_place(3, 1, 2);
    cairn__log_leave_place(3, 0, 3);
    cairn__log_enter_place(4, 2, 0);
    cairn__log_leave_place(4, 2, 0);
    cairn__log_enter_place(CAIRN__LOG_PLACES, 1, 1);
    cairn__log_enter_place(-1, 1, 1);
    return 0;
}

static void a_rank_in_a_grid_says_its_place(void **state) {
    static const struct {
        int rank;
        const char *shown;
    } cases[] = {
        {0, "cairn: [rank 0, replica 0, stage 0] error: e1\ncairn: [rank 0, replica 0, stage 0] warning: w2\n"
            "cairn: [rank 0, replica 0, stage 0] n3\n"},
        {3, "cairn: [rank 3, replica 1, stage 2] error: e1\n"},
        {4, "cairn: [rank 4] error: e1\n"},
        {CAIRN__LOG_PLACES, "cairn: [rank 256] error: e1\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        stderr_after(give_places, "notice", cases[i].rank, text, sizeof(text));
        assert_string_equal(text, cases[i].shown);
    }
}

static char heard[256];

static void hear(void *cookie, cairn_log_level level, const char *message) {
    size_t used = strlen(heard);
    snprintf(heard + used, sizeof(heard) - used, "%s%d=%s ", (const char *)cookie, (int)level, message);
}

static void a_sink_gets_level_and_message_on_every_rank(void **state) {
    (void)state;
    unsetenv("CAIRN_LOG");
    cairn__log_set_rank(5);
    cairn_set_log(hear, "#");
    one_of_each();
    cairn_set_log(NULL, NULL);
    cairn__log_set_rank(0);
    assert_string_equal(heard, "#1=e1 #2=w2 #3=n3 ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_level_in_the_environment_is_the_highest_shown),
        cmocka_unit_test(other_ranks_print_errors_only), cmocka_unit_test(a_rank_in_a_grid_says_its_place),
        cmocka_unit_test(a_sink_gets_level_and_message_on_every_rank), /* last: it reads CAIRN_LOG in this process */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
