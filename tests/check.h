/* Check macros for tests, by where they may be used. OK, SAYS, REFUSED: on the test's own thread, where cmocka's
 * assertions work. EXPECT*: in functions that ranks run; on failure they return a message, and the caller that started
 * the ranks fails the test with it. MUST*: in programs and forked ranks; on failure they exit. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/core.h"

/* Prefix of this thread's failure messages: its rank, or the current row of a table of cases. */
static _Thread_local char check_who[640];

static inline void check_as(const char *name) {
    snprintf(check_who, sizeof(check_who), "%s: ", name);
}

static inline void check_as_rank(int rank, int size) {
    snprintf(check_who, sizeof(check_who), "rank %d of %d: ", rank, size);
}

static inline void check_as_rank_of(const char *name, int rank) {
    snprintf(check_who, sizeof(check_who), "%s, rank %d: ", name, rank);
}

/* Whether tests that run ranks as threads create them with cairn_spawn_threads, instead of giving each thread the
 * environment of a separate process. */
static inline bool check_ranks_are_threads(void) {
    const char *ranks = getenv("CAIRN_CHECK_RANKS");
    return ranks && strcmp(ranks, "threads") == 0;
}

/* Whether tests leave out repetitions, as under tools/check without --all; CONTRIBUTING.md lists what is left out. */
static inline bool check_is_short(void) {
    return getenv("CAIRN_TEST_SHORT") != NULL;
}

/* For cairn_set_log, in tests that provoke many messages. */
static inline void log_nothing(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie, (void)level, (void)message;
}

/* Whether CAIRN_DEVICE puts environments on GPUs that the test does not choose itself. */
static inline bool check_ranks_have_gpus(void) {
    const char *device = getenv("CAIRN_DEVICE");
    return device && strncmp(device, "cuda", 4) == 0;
}

/* ---- on the test's own thread ---- */

#define OK(call)                                                                                                     \
    do {                                                                                                             \
        const cairn_status ok_ = (call);                                                                             \
        if (ok_ != CAIRN_OK) fail_msg("%s%s: %s: %s", check_who, #call, cairn_status_name(ok_), cairn_last_error()); \
    } while (0)

/* Checks that words occur in the last error message. */
#define SAYS(words)                                                                              \
    do {                                                                                         \
        const char *words_ = (words), *said_ = cairn_last_error();                               \
        if (!strstr(said_, words_)) fail_msg("%s'%s' is not in '%s'", check_who, words_, said_); \
    } while (0)

/* Ends the test, and says why it cannot run here. */
#define SKIP(why)                \
    do {                         \
        print_message(why "\n"); \
        skip();                  \
    } while (0)

#define REFUSED(call, status, words)        \
    do {                                    \
        assert_int_equal((call), (status)); \
        SAYS(words);                        \
    } while (0)

/* The call returns NULL, and sentence is the whole error message. */
#define NO_TENSOR(call, sentence)                          \
    do {                                                   \
        assert_null(call);                                 \
        assert_string_equal(cairn_last_error(), sentence); \
    } while (0)

/* ---- in functions that ranks run ---- */

/* Returns a failure message, allocated with malloc. */
static inline char *check_failure(const char *file, int line, const char *what) {
    char *text = malloc(2048);
    snprintf(text, 2048, "%s:%d: %s%s (last error: %s)", file, line, check_who, what, cairn_last_error());
    return text;
}

#define FAILURE(what) check_failure(__FILE__, __LINE__, what)

#define EXPECT(condition)                             \
    do {                                              \
        if (!(condition)) return FAILURE(#condition); \
    } while (0)
#define EXPECT_OK(call)    EXPECT((call) == CAIRN_OK)
#define EXPECT_SAYS(words) EXPECT(strstr(cairn_last_error(), words) != NULL)
#define EXPECT_REFUSED(call, status, words) \
    do {                                    \
        EXPECT((call) == (status));         \
        EXPECT_SAYS(words);                 \
    } while (0)

/* Calls a function that returns a failure message or NULL, and returns its message on failure. */
#define PASS(call)                     \
    do {                               \
        char *failure_ = (call);       \
        if (failure_) return failure_; \
    } while (0)

/* ---- in programs ---- */

#define MUST(condition)                           \
    do {                                          \
        if (!(condition)) {                       \
            char *failure_ = FAILURE(#condition); \
            fprintf(stderr, "%s\n", failure_);    \
            free(failure_);                       \
            exit(1);                              \
        }                                         \
    } while (0)
#define MUST_OK(call) MUST((call) == CAIRN_OK)

#endif
