/* Ranks as threads at the level of a group: what the tests of src/dist share. A rank reports by EXPECT, which returns a
 * sentence; run_group fails the test with the first. */
#ifndef TESTS_DIST_GROUP_RANKS_H
#define TESTS_DIST_GROUP_RANKS_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/cpu.h"
#include "core/dtype.h"
#include "dist/group.h"
#include "dist/store/server.h"
#include "dist/store/store.h"

enum { MOST_RANKS = 8 };

/* NULL when all went well; otherwise a sentence, made with malloc. */
typedef char *(*group_fn)(cairn_group *group, void *ctx);

static inline char *group_failure(const char *file, int line, const char *what, const cairn_group *group) {
    char *text = malloc(2048);
    snprintf(text, 2048, "%s:%d: rank %d of %d: %s (last error: %s)", file, line, cairn_group_rank(group),
             cairn_group_size(group), what, cairn_last_error());
    return text;
}

#define EXPECT(condition)                                                              \
    do {                                                                               \
        if (!(condition)) return group_failure(__FILE__, __LINE__, #condition, group); \
    } while (0)
#define EXPECT_OK(call) EXPECT((call) == CAIRN_OK)
/* For helpers that return such a sentence themselves. */
#define EXPECT_FINE(call)              \
    do {                               \
        char *sentence = (call);       \
        if (sentence) return sentence; \
    } while (0)

static inline cairn_status join_group(int rank, int size, int port, double timeout, cairn_group **out) {
    cairn_store *store = NULL;
    cairn_status st =
        size > 1 ? cairn_tcp_store_create("127.0.0.1", port, cairn_tcp_store_options(.timeout = timeout), &store)
                 : CAIRN_OK;
    if (st != CAIRN_OK) return st;
    struct cairn__group_options options = {
        .rank = rank, .size = size, .timeout = timeout, .store = store, .prefix = "test", .backend = "shm"};
    st = cairn__group_create(&options, out);
    cairn_store_destroy(&store);
    return st;
}

struct group_thread {
    pthread_t thread;
    int rank, size, port;
    double timeout;
    group_fn fn;
    void *ctx;
    char *failure;
};

static inline void *group_main(void *argument) {
    struct group_thread *t = argument;
    cairn_group *group = NULL;
    if (join_group(t->rank, t->size, t->port, t->timeout, &group) != CAIRN_OK) {
        t->failure = group_failure(__FILE__, __LINE__, "join_group", NULL);
        return NULL;
    }
    t->failure = t->fn(group, t->ctx);
    cairn__group_destroy(&group);
    return NULL;
}

static inline void run_group_within(int p, double timeout, group_fn fn, void *ctx) {
    struct cairn__store_server *server = NULL;
    struct group_thread threads[MOST_RANKS];
    int port = 0;
    char failure[2048] = "";
    assert_int_equal(cairn__store_serve(0, &server, &port), CAIRN_OK);
    for (int r = 0; r < p; r++) {
        threads[r] =
            (struct group_thread){.rank = r, .size = p, .port = port, .timeout = timeout, .fn = fn, .ctx = ctx};
        assert_int_equal(pthread_create(&threads[r].thread, NULL, group_main, &threads[r]), 0);
    }
    for (int r = 0; r < p; r++) {
        pthread_join(threads[r].thread, NULL);
        if (threads[r].failure && !failure[0]) snprintf(failure, sizeof(failure), "%s", threads[r].failure);
        free(threads[r].failure);
    }
    cairn__store_stop(&server);
    if (failure[0]) fail_msg("%s", failure);
}

static inline void run_group(int p, group_fn fn, void *ctx) {
    run_group_within(p, 60, fn, ctx);
}

#endif
