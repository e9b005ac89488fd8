/* Forked children of ranks: forbidden calls fail at once with a message, and the parents are not affected.
 *
 * usage: fork_test BACKEND [rank]    (rank: run as one of two ranks of a launcher) */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cairn/cairn.h"
#include "core/trace.h"

static const char *backend;

/* What the parent's group has in memory stays with it, as the connections do. */
#if defined(__SANITIZE_ADDRESS__) /* gcc's */
#define LEAVE _exit
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LEAVE _exit
#endif
#endif
#ifndef LEAVE
#define LEAVE exit
#endif

#define CHILD(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, cairn_last_error()); \
            _exit(1);                                                                       \
        }                                                                                   \
    } while (0)

static bool says(const char *words) {
    return strstr(cairn_last_error(), words) != NULL;
}

/* In the child of a rank that has one message under way. */
static _Noreturn void be_child(cairn_env *env, cairn_group *made, cairn_work *work) {
    cairn_group *group = cairn_env_group(env);
    int32_t one = 1;
    int done = 0;
    void *memory = NULL;
    cairn_env *second = NULL;
    const uint64_t begin = cairn__now_ns();
    CHILD(cairn_allreduce(group, &one, 1, CAIRN_I32, CAIRN_SUM, NULL) == CAIRN_ESTATE);
    CHILD(says("this process was forked from rank") && says("call exec"));
    CHILD(cairn_barrier(made) == CAIRN_ESTATE);
    CHILD(cairn_group_alloc(group, 64, &memory) == CAIRN_ESTATE);
    CHILD(cairn_work_test(work, &done) == CAIRN_ESTATE || done);
    cairn_group_abort(group);
    CHILD(cairn_env_create(NULL, NULL, NULL, &second) == CAIRN_ESTATE && says("would take its place"));
    cairn_group_destroy(&made);
    cairn_env_destroy(&env);
    CHILD(!env && !made);
    CHILD(cairn_env_create(NULL, NULL, NULL, &second) == CAIRN_ESTATE);
    CHILD(cairn__now_ns() - begin < 20 * UINT64_C(1000000000));
    LEAVE(0); /* through the functions of atexit */
}

static int be_rank(int rank, void *unused) {
    cairn_env *env = NULL;
    cairn_group *made = NULL;
    cairn_work *work = NULL;
    int32_t sum = 0, before = 1;
    int status = 0;
    (void)rank;
    (void)unused;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.backend = backend, .timeout = 20), &env) != CAIRN_OK) return 2;
    cairn_group *group = cairn_env_group(env);
    sum = cairn_env_rank(env);
    if (cairn_group_new(group, NULL, 0, NULL, &made) != CAIRN_OK) return 3;
    if (cairn_allreduce(group, &before, 1, CAIRN_I32, CAIRN_SUM, &work) != CAIRN_OK) return 4;
    const pid_t pid = fork();
    if (pid == 0) be_child(env, made, work);
    if (waitpid(pid, &status, 0) != pid || status != 0) return 5;
    if (cairn_work_wait(&work) != CAIRN_OK || before != 2) return 6;
    if (cairn_allreduce(made, &sum, 1, CAIRN_I32, CAIRN_SUM, NULL) != CAIRN_OK || sum != 1) return 7;
    cairn_group_destroy(&made);
    cairn_env_destroy(&env);
    return cairn_env_create(NULL, NULL, cairn_env_options(.backend = backend, .timeout = 20), &env) == CAIRN_OK ? 0 : 8;
}

static void the_child_of_a_rank_is_no_rank_and_disturbs_none(void **state) {
    (void)state;
    if (cairn_spawn(be_rank, NULL, 2, NULL) != CAIRN_OK) fail_msg("%s", cairn_last_error());
}

static void the_child_of_a_process_alone_goes_on_with_its_copy(void **state) {
    (void)state;
    cairn_env *env = NULL;
    int32_t one = 1;
    int status = 0;
    assert_int_equal(cairn_env_create(NULL, NULL, NULL, &env), CAIRN_OK);
    const pid_t pid = fork();
    if (pid == 0) {
        CHILD(cairn_allreduce(cairn_env_group(env), &one, 1, CAIRN_I32, CAIRN_SUM, NULL) == CAIRN_OK && one == 1);
        cairn_env_destroy(&env);
        CHILD(cairn_env_create(NULL, NULL, NULL, &env) == CAIRN_OK);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    cairn_env_destroy(&env);
}

static void a_connection_to_a_store_stays_with_the_process_that_made_it(void **state) {
    (void)state;
    cairn_store *server = NULL;
    int status = 0;
    assert_int_equal(cairn_tcp_store_create("127.0.0.1", 0,
                                            cairn_tcp_store_options(.is_server = CAIRN_ON, .timeout = 5), &server),
                     CAIRN_OK);
    const pid_t pid = fork();
    if (pid == 0) {
        CHILD(cairn_store_set(server, "key", "child", 5) == CAIRN_ESTATE && says("connect in the child, or call exec"));
        cairn_store_destroy(&server);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(cairn_store_set(server, "key", "parent", 6), CAIRN_OK);
    cairn_store_destroy(&server);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_child_of_a_rank_is_no_rank_and_disturbs_none),
        cmocka_unit_test(the_child_of_a_process_alone_goes_on_with_its_copy),
        cmocka_unit_test(a_connection_to_a_store_stays_with_the_process_that_made_it),
    };
    backend = argc > 1 ? argv[1] : "shm";
    if (argc > 2) return be_rank(0, NULL);
#if defined(__SANITIZE_THREAD__)
    printf("ThreadSanitizer has a thread of its own, with which cairn_spawn refuses to fork\n");
    return 77;
#endif
    return cmocka_run_group_tests_name("fork", tests, NULL, NULL);
}
