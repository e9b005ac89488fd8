/* What tests check by. OK and REFUSED stand on the test's own thread, where cmocka's assertions work. EXPECT and its
 * relatives stand in functions of ranks: they return a sentence, which the starter of the ranks reports. MUST is for
 * programs and forked ranks, which it ends. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/core.h"

/* Stands in front of what this thread reports: its rank, or the case that a table walks. */
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

/* Whether ranks are to be threads of one process for Cairn, too, where a test has threads for ranks. */
static inline bool check_ranks_are_threads(void) {
    const char *ranks = getenv("CAIRN_CHECK_RANKS");
    return ranks && strcmp(ranks, "threads") == 0;
}

/* Whether what proves little twice is left out, as by tools/check without --all: CONTRIBUTING.md lists what. */
static inline bool check_is_short(void) {
    return getenv("CAIRN_TEST_SHORT") != NULL;
}

/* For cairn_set_log, where messages are many and meant. */
static inline void log_nothing(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie, (void)level, (void)message;
}

/* Whether environments are on GPUs that the test does not name. */
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

/* The words are a part of the sentence of the last error. */
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

/* No tensor, and the sentence is all of it. */
#define NO_TENSOR(call, sentence)                          \
    do {                                                   \
        assert_null(call);                                 \
        assert_string_equal(cairn_last_error(), sentence); \
    } while (0)

/* ---- in functions of ranks ---- */

/* A sentence, made with malloc. */
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

/* Hands on the sentence of a function that returns one itself. */
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
