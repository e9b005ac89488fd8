/* Runs ranks as threads that have a group but no environment; shared by the tests of src/comm. A rank checks with
 * EXPECT, which returns a message; run_group fails the test with the first one. */
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

#include "comm/group_backend.h"
#include "core/cpu.h"
#include "core/dtype.h"
#include "core/trace.h"
#include "rendezvous/store/server.h"
#include "rendezvous/store/store.h"
#include "group_fn.h"

enum { MAX_RANKS = 8 };

/* A rank's group, and the store that some backends keep open. */
struct member {
    cairn_store *store;
    cairn_group *group;
};

/* Destroys the group and any subgroups that are left; returns whether there were none. */
static inline bool leave_group(struct member *m) {
    int left = 0;
    for (; m->group && m->group->family->groups != m->group; left++) {
        cairn_group *made = m->group->family->groups;
        cairn_group_destroy(&made);
    }
    if (m->group) (void)cairn__group_destroy_root(&m->group);
    cairn_store_destroy(&m->store);
    return left == 0;
}

static _Thread_local int joining; /* this thread's rank */

/* Leaves nothing behind on failure. */
static inline cairn_status join_group(const char *backend, int rank, int size, int port, double timeout,
                                      struct member *m) {
    *m = (struct member){NULL, NULL};
    joining = rank;
    cairn_status st =
        size > 1 ? cairn_tcp_store_create("127.0.0.1", port, cairn_tcp_store_options(.timeout = timeout), &m->store)
                 : CAIRN_OK;
    if (st != CAIRN_OK) return st;
    struct cairn__group_create_options options = {.rank = rank,
                                                  .size = size,
                                                  .timeout = timeout,
                                                  .store = m->store,
                                                  .prefix = "test",
                                                  .backend = backend,
                                                  .is_thread = check_ranks_are_threads()};
    st = cairn__group_create(&options, &m->group);
    if (st != CAIRN_OK || !cairn__group_keeps_store(m->group)) cairn_store_destroy(&m->store);
    return st;
}

struct group_thread {
    pthread_t thread;
    const char *backend;
    int rank, size, port;
    double timeout;
    group_fn fn;
    void *ctx;
    char *failure;
    uint64_t failed_ns;
};

static inline void *group_main(void *argument) {
    struct group_thread *t = argument;
    struct member m;
    check_as_rank(t->rank, t->size);
    if (join_group(t->backend, t->rank, t->size, t->port, t->timeout, &m) != CAIRN_OK) {
        t->failure = FAILURE("join_group");
        t->failed_ns = cairn__now_ns();
        return NULL;
    }
    t->failure = t->fn(m.group, t->ctx);
    t->failed_ns = cairn__now_ns();
    if (!leave_group(&m) && !t->failure) t->failure = FAILURE("leave_group");
    return NULL;
}

/* Reports the failure that came first, since it caused the others. */
static inline void fail_with_first(struct group_thread *threads, int p) {
    struct group_thread *first = NULL;
    char failure[4096];
    for (int r = 0; r < p; r++) {
        if (threads[r].failure && (!first || threads[r].failed_ns < first->failed_ns)) first = &threads[r];
    }
    if (!first) return;
    snprintf(failure, sizeof(failure), "%s", first->failure);
    for (int r = 0; r < p; r++) free(threads[r].failure);
    fail_msg("%s", failure);
}

/* Runs p threads, each a rank of one group of the backend. timeout: the group's, in seconds. */
static inline void run_group_of(const char *backend, int p, double timeout, group_fn fn, void *ctx) {
    struct cairn__store_server *server = NULL;
    struct group_thread threads[MAX_RANKS];
    int port = 0;
    assert_int_equal(cairn__store_serve(0, &server, &port), CAIRN_OK);
    for (int r = 0; r < p; r++) {
        threads[r] = (struct group_thread){
            .backend = backend, .rank = r, .size = p, .port = port, .timeout = timeout, .fn = fn, .ctx = ctx};
        assert_int_equal(pthread_create(&threads[r].thread, NULL, group_main, &threads[r]), 0);
    }
    for (int r = 0; r < p; r++) pthread_join(threads[r].thread, NULL);
    cairn__store_stop(&server);
    fail_with_first(threads, p);
}

static inline void run_group_within(int p, double timeout, group_fn fn, void *ctx) {
    run_group_of("shm", p, timeout, fn, ctx);
}

static inline void run_group(int p, group_fn fn, void *ctx) {
    run_group_of("shm", p, 60, fn, ctx);
}

#endif
