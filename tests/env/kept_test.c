/* Stores that stay open while a group needs them, and environments that share a store, for any order in which ranks
 * create and destroy them. The test makes all groups of shm need the store. Ranks are processes. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "cairn/cairn.h"
#include "comm/group_backend.h"
#include "core/status.h"
#include "core/trace.h"
#include "env/env_internal.h"
#include "rendezvous/store/server.h"
#include "rendezvous/store/store.h"

enum { MAX_RANKS = 4, MAX_ENVS = 8, PORTS = 4 };

/* ---- what the test stands in for ---- */

static bool keeps; /* the next group */

bool __wrap_cairn__group_keeps_store(const cairn_group *group);
bool __wrap_cairn__group_keeps_store(const cairn_group *group) {
    (void)group;
    return keeps;
}

/* ---- ranks as processes, which follow a script ---- */

static void choose_ports(int ports[PORTS]) {
    struct cairn__store_server *servers[PORTS];
    for (int i = 0; i < PORTS; i++) assert_int_equal(cairn__store_serve(0, &servers[i], &ports[i]), CAIRN_OK);
    for (int i = 0; i < PORTS; i++) cairn__store_stop(&servers[i]);
}

static char proof[64]; /* key in the stores of this process and no other */

/* Several, since another program may take one. */
static struct cairn__launch launch_at(int rank, int size, const int ports[PORTS]) {
    struct cairn__launch l = {
        .launcher = "mpirun",
        .rank = rank,
        .size = size,
        .local_rank = rank,
        .local_size = size,
        .key_prefix = "cairn/test/0",
        .meeting = {.hosts = {"127.0.0.1"}, .num_hosts = 1, .num_ports = PORTS, .from = "a test"}};
    memcpy(l.meeting.ports, ports, PORTS * sizeof(ports[0]));
    snprintf(l.meeting.proof, sizeof(l.meeting.proof), "%s", proof);
    return l;
}

static void dawdle(void) {
    nanosleep(&(struct timespec){.tv_nsec = rand() % 3 * 1000000}, NULL);
}

static bool adds_up(cairn_env *env, int size) {
    int32_t one = 1;
    return cairn_allreduce(cairn_env_group(env), &one, 1, CAIRN_I32, CAIRN_SUM, NULL) == CAIRN_OK && one == size;
}

/* "k1" makes environment 1, whose group keeps its store, "m2" makes 2, whose group does not; "e1" ends 1; "u1" uses
 * it. */
static int follow(const char *script, const struct cairn__launch *launch) {
    cairn_env *envs[MAX_ENVS] = {NULL};
    for (const char *s = script; *s; s += s[2] ? 3 : 2) {
        cairn_env **env = &envs[s[1] - '0'];
        dawdle();
        keeps = s[0] == 'k';
        if (s[0] == 'k' || s[0] == 'm') {
            if (cairn__env_create_at(launch, cairn_env_options(.timeout = 30), env) != CAIRN_OK) {
                fprintf(stderr, "rank %d, '%s': %s\n", launch->rank, s, cairn_last_error());
                return 1;
            }
        } else if (s[0] == 'e') {
            cairn_env_destroy(env);
            continue;
        }
        if (!adds_up(*env, launch->size)) {
            fprintf(stderr, "rank %d, '%s': %s\n", launch->rank, s, cairn_last_error());
            return 1;
        }
    }
    return 0;
}

static int run_scripts(const char *const *scripts, int p, unsigned seed) {
    pid_t children[MAX_RANKS];
    int ports[PORTS], failed = 0;
    choose_ports(ports);
    for (int r = 0; r < p; r++) {
        const struct cairn__launch launch = launch_at(r, p, ports);
        children[r] = fork();
        if (children[r] != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        srand(seed + (unsigned)r);
        _exit(follow(scripts[r], &launch));
    }
    for (int r = 0; r < p; r++) {
        int status = 1;
        waitpid(children[r], &status, 0);
        failed += status != 0;
    }
    return failed;
}

static void environments_meet_in_whatever_order_ranks_end_them(void **state) {
    (void)state;
    static const char *const jobs[][MAX_RANKS] = {
        {"k1 e1", "k1 e1"},
        {"k1 u1 e1 k2 e2 k3 e3", "k1 u1 e1 k2 e2 k3 e3", "k1 u1 e1 k2 e2 k3 e3"},
        {"k1 k2 u1 u2 e1 e2", "k1 k2 u1 u2 e2 e1", "k1 k2 u1 u2 e1 e2"},
        {"k1 k2 e1 k3 e2 e3", "k1 e1 k2 k3 e2 e3", "k1 k2 k3 e3 e2 e1"},
        {"k1 e1 k2 e2 k3 e3", "k1 k2 k3 e1 e2 e3"},
        {"k1 k2 k3 e1 e2 e3", "k1 e1 k2 e2 k3 e3"},
        {"m1 e1 m2 e2", "m1 m2 e1 e2", "m1 e1 m2 e2"},
        {"m1 k2 m3 e1 e2 k4 e3 e4", "m1 e1 k2 e2 m3 e3 k4 e4", "m1 k2 m3 k4 e1 e2 e3 e4"},
        {"k1 m2 e1 m3 e2 e3", "k1 e1 m2 e2 m3 e3", "k1 m2 m3 e1 e2 e3", "k1 e1 m2 m3 e2 e3"},
        {"k1 e1 m2 e2 m3 e3", "k1 e1 m2 m3 e2 e3", "k1 m2 m3 e1 e2 e3"},
        {"k1 e1 m2 e2 m3 e3 k4 e4 m5 e5", "k1 e1 m2 e2 m3 e3 k4 e4 m5 e5", "k1 e1 m2 e2 m3 e3 k4 e4 m5 e5"},
    };
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        int p = 0;
        while (p < MAX_RANKS && jobs[i][p]) p++;
        for (unsigned round = 0; round < 3; round++) {
            if (run_scripts(jobs[i], p, round * 100) != 0) fail_msg("'%s', round %u", jobs[i][0], round);
        }
    }
}

/* ---- how long they stay ---- */

static int count_threads(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static int await_threads(int n) {
    for (int ms = 0; count_threads() != n && ms < 20000; ms += 5)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    return count_threads();
}

/* One of this process. */
static bool answers(int port) {
    static const char *const here[] = {"127.0.0.1"};
    cairn_store *store = NULL;
    const struct cairn__store_places places = {
        .hosts = here, .num_hosts = 1, .ports = &port, .num_ports = 1, .proof = proof};
    const cairn_status st = cairn__store_connect(&places, 0.3, &store);
    cairn_store_destroy(&store);
    return st == CAIRN_OK;
}

/* Rank 1 of two; it leaves when the pipe says so. */
static pid_t start_other(const struct cairn__launch *launch, const int leave_pipe[2]) {
    const pid_t child = fork();
    if (child != 0) return child;
    cairn_env *env = NULL;
    char byte;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (cairn__env_create_at(launch, cairn_env_options(.timeout = 30), &env) != CAIRN_OK) _exit(1);
    const bool may_leave = read(leave_pipe[0], &byte, 1) == 1;
    cairn_env_destroy(&env);
    _exit(!may_leave);
}

static void the_store_stays_until_the_last_rank_has_left(void **state) {
    (void)state;
    int ports[PORTS], leave_pipe[2], port = 0, status = 1;
    cairn_env *env = NULL;
    choose_ports(ports);
    const struct cairn__launch launches[] = {launch_at(0, 2, ports), launch_at(1, 2, ports)};
    assert_int_equal(pipe(leave_pipe), 0);
    keeps = true;
    const pid_t child = start_other(&launches[1], leave_pipe);
    const int threads = count_threads();
    assert_int_equal(cairn__env_create_at(&launches[0], cairn_env_options(.timeout = 30), &env), CAIRN_OK);
    const char *line = strstr(cairn_env_describe(env), "group: shm, met at port ");
    assert_non_null(line);
    assert_int_equal(sscanf(line, "group: shm, met at port %d, where the store stays", &port), 1);
    assert_non_null(strstr(line, ", where the store stays\n"));
    assert_int_equal(count_threads(), threads + 1);
    assert_true(answers(port));
    cairn_env_destroy(&env);
    assert_null(env);
    assert_true(answers(port)); /* rank 1 is there */
    assert_int_equal(write(leave_pipe[1], "x", 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(await_threads(threads), threads);
    assert_false(answers(port));
    close(leave_pipe[0]);
    close(leave_pipe[1]);
}

static void store_without_a_keeping_backend_ends_with_the_meeting(void **state) {
    (void)state;
    int ports[PORTS], leave_pipe[2], status = 1;
    cairn_env *env = NULL;
    choose_ports(ports);
    const struct cairn__launch launches[] = {launch_at(0, 2, ports), launch_at(1, 2, ports)};
    assert_int_equal(pipe(leave_pipe), 0);
    keeps = false;
    const pid_t child = start_other(&launches[1], leave_pipe);
    const int threads = count_threads();
    assert_int_equal(cairn__env_create_at(&launches[0], cairn_env_options(.timeout = 30), &env), CAIRN_OK);
    assert_int_equal(count_threads(), threads);
    assert_null(strstr(cairn_env_describe(env), "where the store stays"));
    for (int i = 0; i < PORTS; i++) assert_false(answers(ports[i]));
    cairn_env_destroy(&env);
    assert_int_equal(write(leave_pipe[1], "x", 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(leave_pipe[0]);
    close(leave_pipe[1]);
}

static void a_meeting_that_fails_leaves_no_store(void **state) {
    (void)state;
    int ports[PORTS];
    cairn_env *env = NULL;
    const int threads = count_threads();
    choose_ports(ports);
    const struct cairn__launch launch = launch_at(0, 2, ports);
    keeps = true;
    assert_int_equal(cairn__env_create_at(&launch, cairn_env_options(.timeout = 60, .meeting_timeout = 0.2), &env),
                     CAIRN_ETIMEOUT);
    assert_non_null(strstr(cairn_last_error(), "rank 0 waited 0.2 s for rank 1, which did not join"));
    assert_int_equal(count_threads(), threads);
    for (int i = 0; i < PORTS; i++) assert_false(answers(ports[i]));
}

static void file_store_stays_as_long_as_its_environments(void **state) {
    (void)state;
    char path[300], url[320];
    const char *tmp = getenv("TMPDIR");
    cairn_env *env = NULL;
    int status = 1;
    snprintf(path, sizeof(path), "%s/cairn_kept_test.%d", tmp ? tmp : "/tmp", (int)getpid());
    snprintf(url, sizeof(url), "file://%s", path);
    keeps = true;
    const pid_t child = fork();
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    const cairn_status st =
        cairn_env_create(NULL, NULL,
                         cairn_env_options(.world_size = 2, .rank = child == 0, .init_method = url, .timeout = 30),
                         &env);
    const bool was_there = access(path, F_OK) == 0;
    if (child == 0) {
        cairn_env_destroy(&env);
        _exit(st != CAIRN_OK || !was_there);
    }
    assert_int_equal(st, CAIRN_OK);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(access(path, F_OK), 0);
    cairn_env_destroy(&env);
    assert_int_equal(access(path, F_OK), -1);
}

/* ---- options and variables ---- */

static void the_backend_and_the_times_come_from_options_and_variables(void **state) {
    (void)state;
    cairn_env *env = NULL;
    keeps = false;
    setenv("CAIRN_BACKEND", "shm", 1);
    assert_int_equal(cairn_env_create(NULL, NULL, NULL, &env), CAIRN_OK);
    assert_string_equal(cairn_group_backend(cairn_env_group(env)), "shm");
    cairn_env_destroy(&env);
    assert_int_equal(cairn_env_create(NULL, NULL, cairn_env_options(.backend = "self"), &env), CAIRN_OK);
    assert_string_equal(cairn_group_backend(cairn_env_group(env)), "self");
    cairn_env_destroy(&env);
    setenv("CAIRN_BACKEND", "tcp", 1);
    assert_int_equal(cairn_env_create(NULL, NULL, NULL, &env), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "there is no group backend 'tcp'; choose auto, self, shm, mpi"));
    unsetenv("CAIRN_BACKEND");
    assert_int_equal(cairn_env_create(NULL, NULL, cairn_env_options(.meeting_timeout = -1), &env), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "cairn_env_options.meeting_timeout is -1"));
    setenv("CAIRN_MEETING_TIMEOUT", "soon", 1);
    assert_int_equal(cairn_env_create(NULL, NULL, NULL, &env), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "CAIRN_MEETING_TIMEOUT='soon'"));
    setenv("CAIRN_MEETING_TIMEOUT", "0.2", 1);
    cairn_store *store = NULL;
    assert_int_equal(cairn_hash_store_create(20, &store), CAIRN_OK);
    assert_int_equal(cairn_env_create(NULL, NULL, cairn_env_options(.world_size = 2, .store = store, .timeout = 60),
                                      &env),
                     CAIRN_ETIMEOUT);
    assert_non_null(strstr(cairn_last_error(), "rank 0 waited 0.2 s for rank 1"));
    unsetenv("CAIRN_MEETING_TIMEOUT");
    cairn_store_destroy(&store);
}

static void environment_is_not_destroyed_before_its_groups(void **state) {
    (void)state;
    cairn_env *env = NULL;
    cairn_group *group = NULL;
    keeps = false;
    assert_int_equal(cairn_env_create(NULL, NULL, NULL, &env), CAIRN_OK);
    assert_int_equal(cairn_group_new(cairn_env_group(env), NULL, 0, NULL, &group), CAIRN_OK);
    cairn_env_destroy(&env);
    assert_non_null(env);
    assert_true(adds_up(env, 1));
    cairn_group_destroy(&group);
    cairn_env_destroy(&env);
    assert_null(env);
}

int main(void) {
    snprintf(proof, sizeof(proof), "cairn/job/test %d", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environments_meet_in_whatever_order_ranks_end_them),
        cmocka_unit_test(the_store_stays_until_the_last_rank_has_left),
        cmocka_unit_test(store_without_a_keeping_backend_ends_with_the_meeting),
        cmocka_unit_test(a_meeting_that_fails_leaves_no_store),
        cmocka_unit_test(file_store_stays_as_long_as_its_environments),
        cmocka_unit_test(the_backend_and_the_times_come_from_options_and_variables),
        cmocka_unit_test(environment_is_not_destroyed_before_its_groups),
    };
    return cmocka_run_group_tests_name("kept", tests, NULL, NULL);
}
