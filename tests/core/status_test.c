/* Status names, and the last error of each thread. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/status.h"

static void every_status_has_a_name_and_a_sentence(void **state) {
    (void)state;
    int number = 0;
#define CAIRN__X(code, name, sentence)                        \
    assert_int_equal(code, number++);                         \
    assert_string_equal(cairn_status_name(code), name);       \
    assert_string_equal(cairn_status_string(code), sentence); \
    assert_string_equal(#code, "CAIRN_" name);
    CAIRN_STATUS_LIST(CAIRN__X)
#undef CAIRN__X
    assert_int_equal(CAIRN_OK, 0);
}

static void unknown_status_has_a_name_that_says_so(void **state) {
    (void)state;
    assert_string_equal(cairn_status_name((cairn_status)(CAIRN_EINTERNAL + 1)), "?");
    assert_string_equal(cairn_status_name((cairn_status)-1), "?");
    assert_string_equal(cairn_status_string((cairn_status)1000), "not a Cairn status");
}

static void *fail_elsewhere(void *seen) {
    strcpy(seen, cairn_last_error());
    cairn__fail(CAIRN_EINVAL, "another thread's %d", 2);
    return NULL;
}

static void last_error_belongs_to_its_thread(void **state) {
    (void)state;
    char seen[64] = "?";
    pthread_t thread;
    assert_int_equal(cairn__fail(CAIRN_ESTATE, "this thread's %d", 1), CAIRN_ESTATE);
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, seen), 0);
    pthread_join(thread, NULL);
    assert_string_equal(seen, "");
    assert_string_equal(cairn_last_error(), "this thread's 1");
}

static void a_message_moves_no_cursor(void **state) {
    (void)state;
    cairn__fail(CAIRN_EPEER, "key '%s'", "\033[2J\r\007\x7f\xc2\x9b caf\xc3\xa9\n\tend");
    assert_string_equal(cairn_last_error(), "key '\\x1b[2J\\x0d\\x07\\x7f\\x9b caf\xc3\xa9\n\tend'");
    cairn__fail(CAIRN_EPEER, "%s", cairn_last_error());
    assert_string_equal(cairn_last_error(), "key '\\x1b[2J\\x0d\\x07\\x7f\\x9b caf\xc3\xa9\n\tend'");
}

static void a_message_may_quote_the_one_before(void **state) {
    (void)state;
    cairn__fail(CAIRN_EINVAL, "cause");
    cairn__fail(CAIRN_EINVAL, "param 3: %s", cairn_last_error());
    assert_string_equal(cairn_last_error(), "param 3: cause");
}

static void a_long_message_is_cut_and_ends(void **state) {
    (void)state;
    char text[5000];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    cairn__fail(CAIRN_EINVAL, "%s", text);
    assert_true(strlen(cairn_last_error()) > 500 && strlen(cairn_last_error()) < sizeof(text));
    assert_int_equal(cairn__fail_errno(EIO, "%s", text), CAIRN_ESYSTEM);
    assert_true(strlen(cairn_last_error()) < sizeof(text));
}

static void a_system_error_ends_with_its_reason(void **state) {
    (void)state;
    assert_int_equal(cairn__fail_errno(ENOENT, "opening '%s'", "x.bin"), CAIRN_ESYSTEM);
    assert_string_equal(cairn_last_error(), "opening 'x.bin': No such file or directory");
    assert_int_equal(cairn__fail_errno(ENOMEM, "mapping"), CAIRN_ENOMEM);
}

static cairn_status three_steps(int fail_at, int *done) {
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < 3; i++) {
        TRY(i == fail_at ? cairn__fail(CAIRN_EPEER, "step %d", i) : CAIRN_OK);
        (*done)++;
    }
out:
    return st;
}

static cairn_status wants_positive(int x) {
    REQUIRE(x > 0, CAIRN_EINVAL, "x is %d, want more than 0", x);
    return CAIRN_OK;
}

static void checks_pass_the_first_cause_on(void **state) {
    (void)state;
    int done = 0;
    assert_int_equal(three_steps(-1, &done), CAIRN_OK);
    assert_int_equal(three_steps(1, &done), CAIRN_EPEER);
    assert_int_equal(done, 4);
    assert_string_equal(cairn_last_error(), "step 1");
    assert_int_equal(wants_positive(-3), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "x is -3, want more than 0");
}

static int calls;

static cairn_status call_it(cairn_status st) {
    calls++;
    return st;
}

static void else_after_check_belongs_to_the_outer_if(void **state) {
    (void)state;
    int others = 0;
    calls = 0;
    for (int i = 0; i < 3; i++)
        if (i == 0) CAIRN_CHECK(call_it(CAIRN_OK));
        else others++;
    assert_int_equal(calls, 1);
    assert_int_equal(others, 2);
}

enum { CHECK_LINE = __LINE__ + 5 };

static int fail_by_check(const char *file) {
    cairn__fail(CAIRN_EINVAL, "x is %d%%", 3);
    if (!freopen(file, "w", stderr)) return 2;
    CAIRN_CHECK(call_it(CAIRN_EINVAL));
    return 3;
}

static void check_prints_place_and_cause_and_exits_with_1(void **state) {
    (void)state;
    char file[] = "/tmp/cairn-check-XXXXXX", said[512] = "", want[512];
    const int fd = mkstemp(file);
    int how;
    assert_true(fd >= 0);
    const pid_t child = fork();
    if (child == 0) _exit(fail_by_check(file));
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(read(fd, said, sizeof(said) - 1) > 0);
    unlink(file);
    close(fd);
    snprintf(want, sizeof(want), "%s:%d: x is 3%%\n", __FILE__, CHECK_LINE);
    assert_string_equal(said, want);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_name_and_a_sentence),
        cmocka_unit_test(unknown_status_has_a_name_that_says_so),
        cmocka_unit_test(last_error_belongs_to_its_thread),
        cmocka_unit_test(a_message_moves_no_cursor),
        cmocka_unit_test(a_message_may_quote_the_one_before),
        cmocka_unit_test(a_long_message_is_cut_and_ends),
        cmocka_unit_test(a_system_error_ends_with_its_reason),
        cmocka_unit_test(checks_pass_the_first_cause_on),
        cmocka_unit_test(else_after_check_belongs_to_the_outer_if),
        cmocka_unit_test(check_prints_place_and_cause_and_exits_with_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
