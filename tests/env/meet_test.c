/* Rendezvous: by the program's own options (a TCP address, a file, a store), and at ports derived from the job, some of
 * which other programs occupy; the error when a rank never comes; and what an environment reports about it. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cairn/cairn.h"
#include "core/vars.h"
#include "env/env_internal.h"
#include "rendezvous/store/server.h"

enum { MAX_RANKS = 5 };
static const int sizes[] = {2, MAX_RANKS};

static int clear_vars(void **state) {
    (void)state;
    for (const struct cairn__var_info *v = cairn__vars; v->name; v++) {
        if (strncmp(v->name, "CAIRN_", 6) != 0) unsetenv(v->name);
    }
    return 0;
}

static void expect_sentence(const char *text, const char *part) {
    if (!text || !strstr(text, part)) fail_msg("'%s' lacks '%s'", text ? text : "", part);
}

static int free_port(void) {
    struct cairn__store_server *server = NULL;
    int port = 0;
    assert_int_equal(cairn__store_serve(0, &server, &port), CAIRN_OK);
    cairn__store_stop(&server);
    return port;
}

static void choose_path(char *path, size_t nbytes) {
    static int count;
    const char *tmp = getenv("TMPDIR");
    snprintf(path, nbytes, "%s/cairn_meet_test.%d.%d", tmp ? tmp : "/tmp", (int)getpid(), count++);
    unlink(path);
}

/* ---- ranks as threads and as processes ---- */

struct rank {
    pthread_t thread;
    struct cairn_env_options options;
    const struct cairn__launch *launch; /* NULL = cairn_env_create reads it */
    int rank, size;
    char met[32];      /* part of the description */
    char problem[600]; /* "" = none */
};

/* The ranks have met where their numbers add up. */
static void *run_rank(void *arg) {
    struct rank *r = arg;
    cairn_env *env = NULL;
    int32_t sum = r->rank + 1;
    const cairn_status st = r->launch ? cairn__env_create_at(r->launch, &r->options, &env)
                                      : cairn_env_create(NULL, NULL, &r->options, &env);
    if (st != CAIRN_OK || cairn_allreduce(cairn_env_group(env), &sum, 1, CAIRN_I32, CAIRN_SUM, NULL) != CAIRN_OK) {
        snprintf(r->problem, sizeof(r->problem), "%s", cairn_last_error());
    } else if (sum != r->size * (r->size + 1) / 2 || cairn_env_rank(env) != r->rank || cairn_env_size(env) != r->size) {
        snprintf(r->problem, sizeof(r->problem), "the sum is %d, the rank %d", (int)sum, cairn_env_rank(env));
    } else if (!strstr(cairn_env_describe(env), r->met)) {
        snprintf(r->problem, sizeof(r->problem), "'%.500s' lacks '%s'", cairn_env_describe(env), r->met);
    }
    cairn_env_destroy(&env);
    return NULL;
}

static void run_threads(struct rank *ranks, int p) {
    for (int i = 0; i < p; i++) assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    for (int i = 0; i < p; i++) pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < p; i++) {
        if (ranks[i].problem[0]) fail_msg("rank %d of %d: %s", i, p, ranks[i].problem);
    }
}

/* prepare, in a rank's process before anything else, is its launcher. */
static void run_processes(struct rank *ranks, int p, void (*prepare)(const struct rank *r)) {
    pid_t children[MAX_RANKS];
    int failed = 0;
    for (int i = 0; i < p; i++) {
        children[i] = fork();
        if (children[i] != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (prepare) prepare(&ranks[i]);
        run_rank(&ranks[i]);
        if (ranks[i].problem[0]) fprintf(stderr, "rank %d of %d: %s\n", i, p, ranks[i].problem);
        _exit(ranks[i].problem[0] != '\0');
    }
    for (int i = 0; i < p; i++) {
        int status = 1;
        waitpid(children[i], &status, 0);
        failed += status != 0;
    }
    assert_int_equal(failed, 0);
}

static void fill_ranks(struct rank *ranks, int p, const char *init_method, cairn_store *store) {
    for (int i = 0; i < p; i++) {
        ranks[i] = (struct rank){.rank = i, .size = p};
        ranks[i].options =
            *cairn_env_options(.world_size = p, .rank = i, .init_method = init_method, .store = store, .timeout = 60);
    }
}

/* ---- places that the program names ---- */

static void ranks_meet_at_an_address(void **state) {
    (void)state;
    static const char *const formats[] = {"tcp://127.0.0.1:%d", "tcp://localhost:%d"};
    struct rank ranks[MAX_RANKS];
    for (int i = 0; i < 2; i++) {
        char url[64];
        const int port = free_port();
        snprintf(url, sizeof(url), formats[i], port);
        fill_ranks(ranks, sizes[i], url, NULL);
        for (int r = 0; r < sizes[i]; r++)
            snprintf(ranks[r].met, sizeof(ranks[r].met), "group: shm, met at port %d\n", port);
        run_processes(ranks, sizes[i], NULL);
        run_threads(ranks, sizes[i]);
    }
}

static void ranks_meet_in_a_file_and_leave_none(void **state) {
    (void)state;
    struct rank ranks[MAX_RANKS];
    for (int i = 0; i < 4; i++) {
        const int p = sizes[i % 2];
        char path[300], url[320];
        choose_path(path, sizeof(path));
        snprintf(url, sizeof(url), "file://%s", path);
        fill_ranks(ranks, p, url, NULL);
        for (int r = 0; r < p; r++) snprintf(ranks[r].met, sizeof(ranks[r].met), "meeting: file:///");
        if (i < 2) run_processes(ranks, p, NULL);
        if (i >= 2) run_threads(ranks, p);
        assert_int_not_equal(access(path, F_OK), 0);
    }
}

static void threads_meet_in_a_store_again_and_again(void **state) {
    (void)state;
    struct rank ranks[MAX_RANKS];
    for (int i = 0; i < 2; i++) {
        cairn_store *store = NULL;
        assert_int_equal(cairn_hash_store_create(60, &store), CAIRN_OK);
        for (int k = 0; k < 3; k++) {
            fill_ranks(ranks, sizes[i], NULL, store);
            snprintf(ranks[0].met, sizeof(ranks[0].met), "meeting: in the program's store");
            run_threads(ranks, sizes[i]);
        }
        cairn_store_destroy(&store);
    }
}

static void a_single_rank_needs_no_meeting_place(void **state) {
    (void)state;
    cairn_env *env = NULL;
    assert_int_equal(cairn_env_create(NULL, NULL, cairn_env_options(.world_size = 1, .init_method = "file:///no/where"),
                                      &env),
                     CAIRN_OK);
    assert_int_equal(cairn_env_size(env), 1);
    cairn_env_destroy(&env);
}

/* ---- places that follow from the launcher ---- */

static char job[32];

static void set_number(const char *name, int number) {
    char text[16];
    snprintf(text, sizeof(text), "%d", number);
    setenv(name, text, 1);
}

static void be_mpirun(const struct rank *r) {
    set_number("OMPI_COMM_WORLD_RANK", r->rank);
    set_number("OMPI_COMM_WORLD_SIZE", r->size);
    set_number("OMPI_COMM_WORLD_LOCAL_RANK", r->rank);
    set_number("OMPI_COMM_WORLD_LOCAL_SIZE", r->size);
    setenv("PMIX_NAMESPACE", job, 1);
}

static void be_srun(const struct rank *r) {
    set_number("SLURM_PROCID", r->rank);
    set_number("SLURM_STEP_NUM_TASKS", r->size);
    set_number("SLURM_LOCALID", r->rank);
    set_number("SLURM_TASKS_PER_NODE", r->size);
    set_number("SLURM_NODEID", 0);
    setenv("SLURM_JOB_ID", job, 1);
}

static void processes_meet_where_their_job_says(void **state) {
    (void)state;
    struct rank ranks[MAX_RANKS];
    for (int i = 0; i < 4; i++) {
        const int p = sizes[i % 2];
        snprintf(job, sizeof(job), "%d.%d", (int)getpid(), i);
        for (int r = 0; r < p; r++) {
            ranks[r] = (struct rank){.rank = r, .size = p, .options = *cairn_env_options(.timeout = 60)};
        }
        run_processes(ranks, p, i < 2 ? be_mpirun : be_srun);
    }
}

/* A listener that takes connections and, with text, sends it to each; it ends with its descriptor. */
struct stranger {
    int listener, port;
    const char *text;
    pthread_t thread;
};

static void *answer(void *arg) {
    struct stranger *s = arg;
    int taken[64], n = 0;
    for (int fd; n < 64 && (fd = accept(s->listener, NULL, NULL)) >= 0; n++) {
        taken[n] = fd;
        if (s->text) (void)!send(fd, s->text, strlen(s->text), MSG_NOSIGNAL);
    }
    while (n > 0) close(taken[--n]);
    return NULL;
}

static void start_stranger(struct stranger *s, const char *text) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t length = sizeof(a);
    *s = (struct stranger){.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .text = text};
    assert_int_equal(bind(s->listener, (struct sockaddr *)&a, length), 0);
    assert_int_equal(listen(s->listener, 16), 0);
    assert_int_equal(getsockname(s->listener, (struct sockaddr *)&a, &length), 0);
    s->port = ntohs(a.sin_port);
    assert_int_equal(pthread_create(&s->thread, NULL, answer, s), 0);
}

static void end_stranger(struct stranger *s) {
    shutdown(s->listener, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->listener);
}

static struct cairn__launch launch_at(int rank, int size, const int *ports, int num_ports) {
    struct cairn__launch l = {.launcher = "mpirun",
                              .variables = "a test",
                              .rank = rank,
                              .size = size,
                              .local_rank = rank,
                              .local_size = size,
                              .key_prefix = "cairn/test/0",
                              .meeting = {.hosts = {"127.0.0.1"},
                                          .num_hosts = 1,
                                          .num_ports = num_ports,
                                          .proof = "cairn/job/test",
                                          .from = "a test"}};
    memcpy(l.meeting.ports, ports, (size_t)num_ports * sizeof(*ports));
    return l;
}

static void ports_of_other_programs_are_skipped(void **state) {
    (void)state;
    struct stranger silent, loud;
    struct cairn__store_server *other = NULL;
    struct cairn__launch launches[MAX_RANKS];
    struct rank ranks[MAX_RANKS];
    int ports[7];
    start_stranger(&silent, NULL);
    start_stranger(&loud, "220 mail.example.org ESMTP\r\n");
    ports[0] = silent.port;
    ports[1] = loud.port;
    assert_int_equal(cairn__store_serve(0, &other, &ports[2]), CAIRN_OK);
    for (int i = 3; i < 7; i++) ports[i] = free_port(); /* several: another test may take one */
    for (int r = 0; r < 3; r++) {
        launches[r] = launch_at(r, 3, ports, 7);
        ranks[r] = (struct rank){.rank = r, .size = 3, .launch = &launches[r]};
        ranks[r].options = *cairn_env_options(.timeout = 60);
    }
    run_threads(ranks, 3);
    cairn__store_stop(&other);
    end_stranger(&silent);
    end_stranger(&loud);
}

static void job_whose_ports_are_all_taken_is_an_error(void **state) {
    (void)state;
    struct stranger strangers[2];
    int ports[2];
    char want[200];
    cairn_env *env = NULL;
    for (int i = 0; i < 2; i++) {
        start_stranger(&strangers[i], NULL);
        ports[i] = strangers[i].port;
    }
    const struct cairn__launch l = launch_at(0, 2, ports, 2);
    assert_int_equal(cairn__env_create_at(&l, cairn_env_options(.timeout = 5), &env), CAIRN_ESYSTEM);
    snprintf(want, sizeof(want), "rank 0 cannot host the store at any of the job's 2 ports (%d, %d, ...)", ports[0],
             ports[1]);
    expect_sentence(cairn_last_error(), want);
    expect_sentence(cairn_last_error(), "set MASTER_PORT to a free port for every rank");
    for (int i = 0; i < 2; i++) end_stranger(&strangers[i]);
}

/* ---- who stays away, and what is wrong ---- */

static void a_rank_that_stays_away_is_named(void **state) {
    (void)state;
    char path[300], url[320];
    cairn_env *env = NULL;
    choose_path(path, sizeof(path));
    snprintf(url, sizeof(url), "file://%s", path);
    assert_int_equal(cairn_env_create(NULL, NULL,
                                      cairn_env_options(.world_size = 3, .rank = 1, .init_method = url, .timeout = 0.2),
                                      &env),
                     CAIRN_ETIMEOUT);
    expect_sentence(cairn_last_error(), "rank 1 waited 0.2 s for ranks 0, 2, which did not join");
    unlink(path);
    snprintf(url, sizeof(url), "tcp://127.0.0.1:%d", free_port());
    assert_int_equal(cairn_env_create(NULL, NULL,
                                      cairn_env_options(.world_size = 2, .init_method = url, .timeout = 0.2), &env),
                     CAIRN_ETIMEOUT);
    expect_sentence(cairn_last_error(), "rank 0 waited 0.2 s for rank 1");
    assert_null(env);
}

static void rank_0_says_where_it_waits_at_another_machines_address(void **state) {
    (void)state;
    char url[64];
    cairn_env *env = NULL;
    snprintf(url, sizeof(url), "tcp://192.0.2.1:%d", free_port());
    assert_int_equal(cairn_env_create(NULL, NULL,
                                      cairn_env_options(.world_size = 2, .init_method = url, .timeout = 0.2), &env),
                     CAIRN_ETIMEOUT);
    expect_sentence(cairn_last_error(), "rank 0 waited 0.2 s for rank 1");
    expect_sentence(cairn_last_error(),
                    "'192.0.2.1' (cairn_env_options.init_method) is not an address of rank 0's machine.");
}

static void rank_given_twice_is_suspected(void **state) {
    (void)state;
    struct rank ranks[2];
    cairn_store *store = NULL;
    cairn_env *env = NULL;
    assert_int_equal(cairn_hash_store_create(60, &store), CAIRN_OK);
    fill_ranks(ranks, 2, NULL, store);
    run_threads(ranks, 2);
    ranks[1].options.timeout = 0.2;
    assert_int_equal(cairn_env_create(NULL, NULL, &ranks[1].options, &env), CAIRN_ETIMEOUT);
    expect_sentence(cairn_last_error(), "rank 1 waited 0.2 s for rank 0, which did not join");
    expect_sentence(cairn_last_error(), "Another process with rank 1 was here before; is the rank given twice?");
    cairn_store_destroy(&store);
}

static void store_that_is_not_found_is_an_error_with_the_addresses_tried(void **state) {
    (void)state;
    const int ports[] = {free_port(), free_port()};
    const struct cairn__launch l = launch_at(1, 2, ports, 2);
    cairn_env *env = NULL;
    char place[64];
    assert_int_equal(cairn__env_create_at(&l, cairn_env_options(.timeout = 0.3), &env), CAIRN_ETIMEOUT);
    for (int i = 0; i < 2; i++) {
        snprintf(place, sizeof(place), "127.0.0.1:%d", ports[i]);
        expect_sentence(cairn_last_error(), place);
    }
    expect_sentence(cairn_last_error(), "MASTER_ADDR and MASTER_PORT");
}

static void contradicting_options_are_refused(void **state) {
    (void)state;
    cairn_store *store = NULL;
    assert_int_equal(cairn_hash_store_create(1, &store), CAIRN_OK);
    const struct {
        struct cairn_env_options options;
        const char *sentence;
    } cases[] = {
        {{.world_size = 2, .store = store, .init_method = "env://"}, "both a store and init_method 'env://'"},
        {{.world_size = 2, .init_method = "file://"}, "it needs a whole path, \"file:///path/to/file\""},
        {{.world_size = 2, .init_method = "file:///"}, "it needs a whole path"},
        {{.world_size = 2, .init_method = "file://name"}, "it needs a whole path"},
        {{.world_size = 2, .init_method = "tcp://h"}, "it can be \"env://\", \"tcp://host:port\""},
        {{.world_size = 2, .init_method = "/tmp/x"}, "it can be \"env://\""},
        {{.world_size = 2}, "MASTER_ADDR is not set"},
        {{.store = store}, "but neither it nor a launcher gives this process's rank; set world_size and rank too"},
        {{.init_method = "tcp://h:80"}, "but neither it nor a launcher gives this process's rank"},
        {{.init_method = "file:///x"}, "but neither it nor a launcher gives this process's rank"},
        {{.world_size = -2}, "world_size is -2"},
        {{.world_size = 2, .rank = 2}, "rank is 2 but world_size is 2"},
        {{.rank = 1}, "rank is 1 but world_size is 0"},
        {{.record_errors = (cairn_switch)7}, "record_errors is 7"},
        {{.world_size = 100000, .store = store}, "world_size is 100000"},
        {{.world_size = 60000, .store = store}, "a group of 60000 ranks"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn_env_options o = cases[i].options;
        cairn_env *env = NULL;
        o.struct_size = sizeof(o);
        o.timeout = 5;
        if (cairn_env_create(NULL, NULL, &o, &env) != CAIRN_EINVAL) fail_msg("'%s' passed", cases[i].sentence);
        expect_sentence(cairn_last_error(), cases[i].sentence);
    }
    cairn_store_destroy(&store);
}

static void a_file_that_cannot_be_made_is_named(void **state) {
    (void)state;
    cairn_env *env = NULL;
    assert_int_equal(cairn_env_create(NULL, NULL,
                                      cairn_env_options(.world_size = 2, .init_method = "file:///no/such/folder/x",
                                                        .timeout = 5),
                                      &env),
                     CAIRN_ESYSTEM);
    expect_sentence(cairn_last_error(), "/no/such/folder/x");
}

/* ---- in words ---- */

static char kept[8192];

static void keep(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    const size_t used = strlen(kept);
    if (level <= CAIRN_LOG_INFO) snprintf(kept + used, sizeof(kept) - used, "%s\n", message);
}

static void keep_notices(void *cookie, cairn_log_level level, const char *message) {
    if (level <= CAIRN_LOG_NOTICE) keep(cookie, level, message);
}

static void facts_are_logged_before_the_ranks_meet(void **state) {
    (void)state;
    const int port = free_port();
    struct cairn__launch l = launch_at(0, 2, &port, 1);
    cairn_env *env = NULL;
    char want[200];
    kept[0] = '\0';
    cairn_set_log(keep, NULL);
    assert_int_equal(cairn__env_create_at(&l, cairn_env_options(.timeout = 0.1), &env), CAIRN_ETIMEOUT);
    snprintf(
        want, sizeof(want),
        "launcher: mpirun; rank 0 of 2, local rank 0 of 2 (a test)\nmeeting: at 127.0.0.1 port %d (a test), served "
        "by rank 0\ndevice: cpu, ",
        port);
    expect_sentence(kept, want);
    cairn_set_log(NULL, NULL);
}

static void description_has_the_launch_facts(void **state) {
    (void)state;
    cairn_env *env = NULL;
    assert_string_equal(cairn_env_describe(NULL), "");
    assert_int_equal(cairn_env_local_size(NULL), 0);
    assert_int_equal(cairn_env_restart_count(NULL), 0);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    setenv("LOCAL_WORLD_SIZE", "1", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
    setenv("SLURM_PROCID", "3", 1);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    kept[0] = '\0';
    cairn_set_log(keep_notices, NULL);
    assert_int_equal(cairn_env_create(NULL, NULL, NULL, &env), CAIRN_OK);
    cairn_set_log(NULL, NULL);
    clear_vars(NULL);
    expect_sentence(kept, "SLURM_PROCID is '3'"); /* one of 4 that trains alone */
    assert_int_equal(cairn_env_local_size(env), 1);
    assert_int_equal(cairn_env_restart_count(env), 2);
    const char *text = cairn_env_describe(env);
    expect_sentence(
        text,
        "launcher: torch; rank 0 of 1, local rank 0 of 1 (RANK, WORLD_SIZE), restart 2\n"
        "note: SLURM_PROCID is '3' and SLURM_STEP_NUM_TASKS '4' (srun): they are another process's, and are ignored\n"
        "device: cpu, ");
    expect_sentence(text, "\ngroup: self\n");
    cairn_env_destroy(&env);
}

static void a_batch_script_outside_srun_is_noticed(void **state) {
    (void)state;
    cairn_env *env = NULL;
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "4", 1);
    setenv("SLURM_JOB_ID", "7", 1);
    kept[0] = '\0';
    cairn_set_log(keep, NULL);
    assert_int_equal(cairn_env_create(NULL, NULL, NULL, &env), CAIRN_OK);
    clear_vars(NULL);
    cairn_set_log(NULL, NULL);
    assert_int_equal(cairn_env_size(env), 1);
    expect_sentence(kept, "start the program with srun");
    expect_sentence(cairn_env_describe(env),
                    "note: SLURM_PROCID is 0 and SLURM_NTASKS 4, but this process is in no step of srun");
    cairn_env_destroy(&env);
}

int main(void) {
    setenv("CAIRN_LOG", "info", 1); /* read once */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_meet_at_an_address),
        cmocka_unit_test(ranks_meet_in_a_file_and_leave_none),
        cmocka_unit_test(threads_meet_in_a_store_again_and_again),
        cmocka_unit_test(a_single_rank_needs_no_meeting_place),
        cmocka_unit_test(processes_meet_where_their_job_says),
        cmocka_unit_test(ports_of_other_programs_are_skipped),
        cmocka_unit_test(job_whose_ports_are_all_taken_is_an_error),
        cmocka_unit_test(a_rank_that_stays_away_is_named),
        cmocka_unit_test(rank_0_says_where_it_waits_at_another_machines_address),
        cmocka_unit_test(rank_given_twice_is_suspected),
        cmocka_unit_test(store_that_is_not_found_is_an_error_with_the_addresses_tried),
        cmocka_unit_test(contradicting_options_are_refused),
        cmocka_unit_test(a_file_that_cannot_be_made_is_named),
        cmocka_unit_test(facts_are_logged_before_the_ranks_meet),
        cmocka_unit_test(description_has_the_launch_facts),
        cmocka_unit_test(a_batch_script_outside_srun_is_noticed),
    };
    return cmocka_run_group_tests_name("meet", tests, clear_vars, NULL);
}
