/* Runs ranks as threads of one test: p environments that rendezvous through a real store on the loopback interface.
 *
 * cmocka's assertions only work on the test's own thread, so a rank checks with EXPECT, which returns a message, and
 * run_ranks fails the test with the first message. */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cairn/cairn.h"
#include "check.h"
#include "rendezvous/store/server.h"
#include "env/env_internal.h"

/* Returns NULL on success, otherwise a failure message allocated with malloc. */
typedef char *(*rank_fn)(cairn_env *env, void *ctx);

/* Launch facts of a rank whose store is on this machine. */
static inline struct cairn__launch launch_at(int rank, int size, int port) {
    return (struct cairn__launch){
        .rank = rank,
        .size = size,
        .local_rank = rank,
        .local_size = size,
        .launcher = "torch",
        .meeting = {.hosts = {"127.0.0.1"}, .num_hosts = 1, .ports = {port}, .num_ports = 1, .agent_store = true},
        .key_prefix = "test"};
}

struct rank_thread {
    pthread_t thread;
    struct cairn__launch launch;
    const struct cairn_env_options *options;
    rank_fn fn;
    void *ctx;
    char *failure;
};

/* With CAIRN_CHECK_RANKS=threads, cairn_spawn_threads starts the ranks and connects them. */
static inline int spawned_rank_main(int rank, void *arg) {
    struct rank_thread *t = (struct rank_thread *)arg + rank;
    check_as_rank(rank, t->launch.size);
    cairn_env *env = NULL;
    struct cairn_env_options options = *cairn_env_options(.seed = 7, .timeout = 60);
    if (cairn_env_create(NULL, NULL, t->options ? t->options : &options, &env) != CAIRN_OK) {
        t->failure = FAILURE("cairn_env_create");
        return 0;
    }
    t->failure = t->fn(env, t->ctx);
    cairn_env_destroy(&env);
    return 0;
}

static inline void *rank_main(void *arg) {
    struct rank_thread *t = arg;
    check_as_rank(t->launch.rank, t->launch.size);
    cairn_env *env = NULL;
    struct cairn_env_options options = *cairn_env_options(.seed = 7, .timeout = 60);
    if (cairn__env_create_at(&t->launch, t->options ? t->options : &options, &env) != CAIRN_OK) {
        t->failure = FAILURE("cairn__env_create_at");
        return NULL;
    }
    t->failure = t->fn(env, t->ctx);
    cairn_env_destroy(&env);
    return NULL;
}

/* Runs fn on p ranks and fails the test if one of them returns a message. options: for the environments; NULL =
 * defaults. */
static inline void run_ranks_with(int p, const struct cairn_env_options *options, rank_fn fn, void *ctx) {
    struct cairn__store_server *server = NULL;
    int port = 0;
    assert_int_equal(cairn__store_serve(0, &server, &port), CAIRN_OK);
    struct rank_thread *threads = calloc((size_t)p, sizeof(*threads));
    for (int r = 0; r < p; r++) {
        threads[r] = (struct rank_thread){.options = options, .fn = fn, .ctx = ctx};
        threads[r].launch = launch_at(r, p, port);
        if (check_ranks_are_threads()) continue;
        assert_int_equal(pthread_create(&threads[r].thread, NULL, rank_main, &threads[r]), 0);
    }
    if (check_ranks_are_threads() && cairn_spawn_threads(spawned_rank_main, threads, p, NULL) != CAIRN_OK)
        fail_msg("cairn_spawn_threads: %s", cairn_last_error());
    char *failure = NULL;
    for (int r = 0; r < p; r++) {
        if (!check_ranks_are_threads()) pthread_join(threads[r].thread, NULL);
        if (threads[r].failure && !failure) {
            failure = threads[r].failure;
        } else {
            free(threads[r].failure);
        }
    }
    free(threads);
    cairn__store_stop(&server);
    if (failure) {
        char text[2048];
        snprintf(text, sizeof(text), "%s", failure);
        free(failure);
        fail_msg("%s", text);
    }
}

static inline void run_ranks(int p, rank_fn fn, void *ctx) {
    run_ranks_with(p, NULL, fn, ctx);
}

#endif
