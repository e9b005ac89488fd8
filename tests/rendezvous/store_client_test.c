/* The TCP store's client: finding a server, detecting its dialect, the bytes that it sends, and its handling of
 * impossible replies. */
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
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "../check.h"
#include "core/trace.h"
#include "old_store.h"
#include "rendezvous/store/tcp.h"
#include "wire_script.h"

/* In one send; an old server would have to allocate more than it can. */
#define PROBE     HELLO " 07 07 07 07"
#define COUNTS    "00*8 00*8 00*8 00*8"
#define WHICH     "07 0e*8 '/cairn/dialect'"
#define COUNT_OLD "03 05*8 'init/' 01*8"
#define COUNT_NEW "04 05*8 'init/' 01*8"

static cairn_status connect_to(const char *host, int port, double timeout, cairn_store **out) {
    return cairn_tcp_store_create(host, port, cairn_tcp_store_options(.timeout = timeout), out);
}

static double seconds_since(uint64_t begin) {
    return (double)(cairn__now_ns() - begin) * 1e-9;
}

/* ---- servers that follow a script ---- */

/* Lines: "< bytes" must come, "> bytes" go out, "|" ends a connection and takes the next; at the end the last one stays
 * open until the other side closes it. */
struct actor {
    const char *const *lines;
    int listener, port;
    pthread_t thread;
    char complaint[200];
};

static bool act(struct actor *a, int fd, const char *line) {
    uint8_t wanted[256], got[256];
    const size_t n = bytes_of(line + 1, wanted);
    if (line[0] == '>') return send(fd, wanted, n, MSG_NOSIGNAL) == (ssize_t)n;
    const ssize_t heard = recv(fd, got, n, MSG_WAITALL);
    if (heard == (ssize_t)n && memcmp(got, wanted, n) == 0) return true;
    size_t used = (size_t)snprintf(a->complaint, sizeof(a->complaint), "for '%.60s' came", line);
    for (ssize_t i = 0; i < heard && used < sizeof(a->complaint) - 4; i++) {
        used += (size_t)snprintf(a->complaint + used, sizeof(a->complaint) - used, " %02x", got[i]);
    }
    return false;
}

static int take_next(struct actor *a) {
    const int fd = accept(a->listener, NULL, NULL);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 20}, sizeof(struct timeval));
    return fd;
}

static void *play(void *argument) {
    struct actor *a = argument;
    int fd = take_next(a);
    for (const char *const *line = a->lines; *line; line++) {
        if (**line == '|') {
            close(fd);
            fd = take_next(a);
        } else if (!act(a, fd, *line)) {
            break;
        }
    }
    char rest;
    while (recv(fd, &rest, 1, 0) > 0) continue;
    close(fd);
    return NULL;
}

static void start_actor(struct actor *a, const char *const *lines) {
    *a = (struct actor){.lines = lines};
    a->listener = old_listen(&a->port);
    assert_int_equal(pthread_create(&a->thread, NULL, play, a), 0);
}

static void end_actor(struct actor *a) {
    shutdown(a->listener, SHUT_RDWR);
    pthread_join(a->thread, NULL);
    close(a->listener);
    if (a->complaint[0]) fail_msg("%s", a->complaint);
}

/* ---- dialects ---- */

/* The calls whose bytes are known; both servers answer as in PyTorch's transcripts. */
static void call_them_all(cairn_store *store) {
    int64_t number = 0;
    int flag = -1;
    void *value = NULL;
    OK(cairn_store_set(store, "k", "v", 1));
    OK(cairn_store_add(store, "c", -7, &number));
    assert_int_equal(number, -2);
    OK(cairn_store_compare_set(store, "k", "v", 1, "w", 1, &value, NULL));
    assert_string_equal(value, "w");
    cairn_store_free(value);
    OK(cairn_store_num_keys(store, &number));
    assert_int_equal(number, 4);
    OK(cairn_store_delete(store, "k", &flag));
    assert_int_equal(flag, 1);
    OK(cairn_store_check(store, (const char *const[]){"k", "c"}, 2, &flag));
    assert_int_equal(flag, 0);
}

static void play_against(const char *const *lines) {
    struct actor a;
    cairn_store *store = NULL;
    start_actor(&a, lines);
    OK(connect_to("127.0.0.1", a.port, 20, &store));
    assert_int_equal(cairn_store_port(store), a.port);
    call_them_all(store);
    cairn_store_destroy(&store);
    end_actor(&a);
}

static const char *const calls_of_2_2[] = {
    "< " PROBE,
    "> " COUNTS,
    "< " COUNT_NEW,
    "> 01*8",
    "< 01 02*8 '/k' 01*8 'v'",
    "< 04 02*8 '/c' f9 ff ff ff ff ff ff ff",
    "> fe ff ff ff ff ff ff ff",
    "< 02 02*8 '/k' 01*8 'v' 01*8 'w'",
    "> 01*8 'w'",
    "< 07",
    "> 04*8",
    "< 08 02*8 '/k'",
    "> 01*8",
    "< 05 02*8 02*8 '/k' 02*8 '/c'",
    "> 01",
    NULL,
};

static void servers_of_2_2_and_later_answer_the_first_greeting(void **state) {
    (void)state;
    play_against(calls_of_2_2);
}

static void servers_of_2_1_are_distinguished_from_older_ones(void **state) {
    (void)state;
    static const char *const lines[] = {
        "< " PROBE,
        "|",
        "< 06",
        "> 00*8",
        "< " WHICH,
        "> 00*8",
        "< " COUNT_OLD,
        "> 01*8",
        "< 00 02*8 '/k' 01*8 'v'",
        "< 03 02*8 '/c' f9 ff ff ff ff ff ff ff",
        "> fe ff ff ff ff ff ff ff",
        "< 01 02*8 '/k' 01*8 'v' 01*8 'w'",
        "> 01*8 'w'",
        "< 06",
        "> 04*8",
        "< 07 02*8 '/k'",
        "> 01*8",
        "< 04 02*8 02*8 '/k' 02*8 '/c'",
        "> 01",
        NULL,
    };
    play_against(lines);
}

static void servers_of_1_13_get_requests_in_their_dialect(void **state) {
    (void)state;
    static const char *const lines[] = {
        "< " PROBE,
        "|",
        "< 06",
        "> 00*8",
        "< " WHICH,
        "> 03",
        "< " COUNT_OLD,
        "> 01*8",
        "< 00 02*8 '/k' 01*8 'v'",
        "< 03 02*8 '/c' f9 ff ff ff ff ff ff ff",
        "> fe ff ff ff ff ff ff ff",
        "< 01 02*8 '/k' 01*8 'v' 01*8 'w'",
        "> 01*8 'w'",
        "< 06",
        "> 04*8",
        "< 08 02*8 '/k'",
        "> 01*8",
        "< 04 02*8 02*8 '/k' 02*8 '/c'",
        "> 01",
        NULL,
    };
    play_against(lines);
}

static void dialect_can_be_set_by_the_environment(void **state) {
    (void)state;
    static const char *const old_lines[] = {"< 06", "> 00*8", "< " COUNT_OLD, "> 01*8", NULL};
    static const char *const new_lines[] = {"< " PROBE, "> " COUNTS, "< " COUNT_NEW, "> 01*8", NULL};
    cairn_store *store = NULL;
    for (int old = 0; old < 2; old++) {
        struct actor a;
        start_actor(&a, old ? old_lines : new_lines);
        setenv("CAIRN_STORE_DIALECT", old ? "1.13" : "2.2", 1);
        const cairn_status st = connect_to("127.0.0.1", a.port, 20, &store);
        unsetenv("CAIRN_STORE_DIALECT");
        OK(st);
        cairn_store_destroy(&store);
        end_actor(&a);
    }
    setenv("CAIRN_STORE_DIALECT", "2.0", 1);
    const cairn_status st = connect_to("127.0.0.1", 1, 20, &store);
    unsetenv("CAIRN_STORE_DIALECT");
    assert_int_equal(st, CAIRN_EINVAL);
    SAYS("CAIRN_STORE_DIALECT='2.0' in the environment is none of 1.13, 2.1 and 2.2");
}

static void old_server_never_gets_a_request_that_kills_it(void **state) {
    (void)state;
    struct old_store *old = old_start();
    cairn_store *stores[20];
    for (int i = 0; i < 20; i++) OK(connect_to("127.0.0.1", old->port, 20, &stores[i]));
    for (int i = 0; i < 20; i++) cairn_store_destroy(&stores[i]);
    const int torn = old->torn, vast = old->vast;
    old_end(old);
    assert_int_equal(torn, 0);
    assert_int_equal(vast, 0);
}

/* ---- answers ---- */

/* A store whose server has said this, and no more. */
static cairn_store *answered(enum cairn__store_dialect dialect, const char *script, int *peer) {
    cairn_store *store = NULL;
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    say(fds[1], script);
    OK(cairn__tcp_store_on(fds[0], dialect, "here:1", 20, &store));
    *peer = fds[1];
    return store;
}

static cairn_status call_number(int call, cairn_store *store) {
    const char *const keys[] = {"k"};
    void *value = NULL;
    int64_t number;
    int flag;
    cairn_status st = CAIRN_EINTERNAL;
    if (call == 0) st = cairn_store_get(store, "k", &value, NULL);
    if (call == 1) st = cairn_store_compare_set(store, "k", "", 0, "v", 1, &value, NULL);
    if (call == 2) st = cairn_store_add(store, "k", 1, &number);
    if (call == 3) st = cairn_store_wait(store, keys, 1);
    if (call == 4) st = cairn_store_check(store, keys, 1, &flag);
    if (call == 5) st = cairn_store_num_keys(store, &number);
    if (call == 6) st = cairn_store_delete(store, "k", &flag);
    cairn_store_free(value);
    return st;
}

static void malformed_answers_end_in_an_error(void **state) {
    (void)state;
    static const struct {
        int call;
        const char *answer, *sentence;
    } rows[] = {
        {0, "", "went away"},
        {0, "00 05*8 'four'", "went away"},
        {0, "00 01 00 80 00 00 00 00 00", "sends a value of 8388609 bytes, more than a store holds (8388608)"},
        {0, "07", "answered 7 where 0 or 1 was expected; is this port another program's?"},
        {1, "ff ff ff ff ff ff ff ff", "sends a value of 18446744073709551615 bytes"},
        {1, "ff ff ff", "went away"},
        {2, "00 00", "went away"},
        {3, "41", "answered 65"},
        {4, "02", "answered 2"},
        {5, "", "went away"},
        {6, "00", "went away"},
    };
    for (int dialect = 0; dialect < 3; dialect++) {
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            int peer = -1;
            cairn_store *store = answered((enum cairn__store_dialect)dialect, rows[i].answer, &peer);
            shutdown(peer, SHUT_WR);
            assert_int_equal(call_number(rows[i].call, store), CAIRN_EPEER);
            SAYS(rows[i].sentence);
            assert_int_equal(call_number(rows[i].call, store), CAIRN_EPEER);
            SAYS("the connection to the store at here:1 broke earlier; connect again");
            cairn_store_destroy(&store);
            close(peer);
        }
    }
}

/* The server's poll backend does not wake who waits for a key that COMPARE_SET made. */
static void wait_checks_again_if_the_server_does_not_wake_it(void **state) {
    (void)state;
    static const char *const lines[] = {"< " PROBE, "> " COUNTS, "< " COUNT_NEW,        "> 01*8", "< 06 01*8 02*8 '/k'",
                                        "< 0c",     "> 01",      "< 05 01*8 02*8 '/k'", "> 00",   NULL};
    struct actor a;
    cairn_store *store = NULL;
    start_actor(&a, lines);
    OK(connect_to("127.0.0.1", a.port, 20, &store));
    OK(cairn_store_wait(store, &(const char *){"k"}, 1));
    cairn_store_destroy(&store);
    end_actor(&a);
}

static void answer_that_crosses_its_cancellation_counts(void **state) {
    (void)state;
    static const char *const lines[] = {"< " PROBE, "> " COUNTS, "< " COUNT_NEW, "> 01*8", "< 06 01*8 02*8 '/k' 0c",
                                        "> 00 01",  "< 07",      "> 09*8",       NULL};
    struct actor a;
    cairn_store *store = NULL;
    int64_t count = 0;
    start_actor(&a, lines);
    OK(connect_to("127.0.0.1", a.port, 20, &store));
    OK(cairn_store_set_timeout(store, 0.1));
    OK(cairn_store_wait(store, &(const char *){"k"}, 1));
    OK(cairn_store_set_timeout(store, 20));
    OK(cairn_store_num_keys(store, &count));
    assert_int_equal(count, 9);
    cairn_store_destroy(&store);
    end_actor(&a);
}

static void silent_server_is_a_timeout_that_names_the_key(void **state) {
    (void)state;
    int peer = -1;
    cairn_store *store = answered(CAIRN__STORE_2_2, "", &peer);
    OK(cairn_store_set_timeout(store, 0.1));
    assert_int_equal(cairn_store_add(store, "counter", 1, NULL), CAIRN_ETIMEOUT);
    SAYS("the store at here:1 did not answer within 0.1 s; the request was for key 'counter'");
    assert_int_equal(cairn_store_set(store, "k", "", 0), CAIRN_EPEER);
    SAYS("broke earlier");
    cairn_store_destroy(&store);
    close(peer);
}

static const char *const three[] = {"a", "b", "c"};

static double time_out_waiting(cairn_store *store, size_t n) {
    const uint64_t begin = cairn__now_ns();
    assert_int_equal(cairn_store_wait(store, three, n), CAIRN_ETIMEOUT);
    return seconds_since(begin);
}

/* As of a process that is stopped and goes on. */
static void wait_at_a_stopped_server_ends_in_time_and_the_store_lives_on(void **state) {
    (void)state;
    static const char *const late[] = {"01 09*8", "00 01 09*8"};
    for (size_t i = 0; i < 2; i++) {
        int peer = -1;
        int64_t count = 0;
        cairn_store *store = answered(CAIRN__STORE_2_2, "", &peer);
        OK(cairn_store_set_timeout(store, 0.1));
        assert_true(time_out_waiting(store, 1) < 4);
        SAYS("key 'a' did not appear in the store at here:1 within 0.1 s");
        assert_true(time_out_waiting(store, 3) < 4);
        SAYS("the store at here:1 has not answered for 0.1 s; is its process stopped?");
        OK(cairn_store_set_timeout(store, 20));
        say(peer, late[i]);
        OK(cairn_store_num_keys(store, &count));
        assert_int_equal(count, 9);
        cairn_store_destroy(&store);
        close(peer);
    }
}

static void key_that_a_stopped_server_did_not_check_is_not_called_missing(void **state) {
    (void)state;
    int peer = -1;
    cairn_store *store = answered(CAIRN__STORE_2_2, "", &peer);
    OK(cairn_store_set_timeout(store, 0.1));
    assert_true(time_out_waiting(store, 3) < 4);
    SAYS("key 'a', or one after it, did not appear in the store at here:1 within 0.1 s");
    cairn_store_destroy(&store);
    close(peer);
    store = answered(CAIRN__STORE_1_13, "", &peer);
    OK(cairn_store_set_timeout(store, 0.1));
    assert_true(time_out_waiting(store, 3) < 4);
    SAYS("did not answer within 0.1 s; the request was for key 'a'");
    cairn_store_destroy(&store);
    close(peer);
}

static void expect_lost(cairn_store **store) {
    assert_int_equal(cairn_store_wait(*store, &(const char *){"k"}, 1), CAIRN_EPEER);
    SAYS("went away");
    assert_int_equal(cairn_store_wait(*store, &(const char *){"k"}, 1), CAIRN_EPEER);
    SAYS("broke earlier");
    cairn_store_destroy(store);
}

static void server_that_went_away_is_epeer(void **state) {
    (void)state;
    struct cairn__store_server *server = NULL;
    struct old_store *old = old_start();
    cairn_store *store = NULL;
    int port = 0;
    OK(cairn__store_serve(0, &server, &port));
    OK(connect_to("127.0.0.1", port, 20, &store));
    cairn__store_stop(&server);
    expect_lost(&store);
    OK(connect_to("127.0.0.1", old->port, 20, &store));
    old_end(old);
    expect_lost(&store);
}

static void forked_child_keeps_no_server_alive(void **state) {
    (void)state;
    struct cairn__store_server *server = NULL;
    cairn_store *store = NULL;
    int port = 0;
    OK(cairn__store_serve(0, &server, &port));
    OK(connect_to("127.0.0.1", port, 20, &store));
    OK(cairn_store_add(store, "n", 1, NULL));
    const pid_t child = fork(); /* it has every descriptor of the server's */
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    cairn__store_stop(&server);
    expect_lost(&store);
    const cairn_status st = cairn__store_serve(port, &server, NULL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    OK(st);
    cairn__store_stop(&server);
}

/* As exit handlers of a child's do. */
static void forked_child_that_destroys_its_store_leaves_the_server_alone(void **state) {
    (void)state;
    cairn_store *store = NULL;
    int status = -1;
    OK(cairn_tcp_store_create("localhost", 0, cairn_tcp_store_options(.is_server = CAIRN_ON, .timeout = 20), &store));
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(60);
        cairn_store_destroy(&store);
        _exit(store != NULL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    OK(cairn_store_add(store, "n", 1, NULL));
    cairn_store_destroy(&store);
}

/* ---- finding it ---- */

static void connection_refused_is_a_timeout_that_names_the_address(void **state) {
    (void)state;
    cairn_store *none = NULL;
    int port = 0, fd = old_listen(&port);
    close(fd);
    assert_int_equal(connect_to("127.0.0.1", port, 0.2, &none), CAIRN_ETIMEOUT);
    assert_null(none);
    SAYS("no store answered at 127.0.0.1:");
    SAYS("within 0.2 s: Connection refused; is rank 0 running, and are MASTER_ADDR and MASTER_PORT the same");
    assert_int_equal(connect_to("no.such.host.invalid", 1, 0.2, &none) == CAIRN_OK, 0);
    assert_int_equal(connect_to("", 1, 0.2, &none), CAIRN_EINVAL);
    assert_int_equal(connect_to(NULL, 1, 0.2, &none), CAIRN_EINVAL);
    assert_int_equal(connect_to("localhost", 0, 0.2, &none), CAIRN_EINVAL);
    assert_int_equal(connect_to("localhost", 70000, 0.2, &none), CAIRN_EINVAL);
    assert_int_equal(connect_to("localhost", 1, -1, &none), CAIRN_EINVAL);
    assert_int_equal(connect_to("localhost", 1, 0.2, NULL), CAIRN_EINVAL);
    assert_null(none);
}

struct early {
    pthread_t thread;
    int port;
    cairn_store *store;
    cairn_status st;
};

static void *connect_early(void *argument) {
    struct early *e = argument;
    e->st = connect_to("127.0.0.1", e->port, 60, &e->store);
    return NULL;
}

static void connecting_retries_until_the_server_is_there(void **state) {
    (void)state;
    struct early e = {.st = CAIRN_EINTERNAL};
    struct cairn__store_server *server = NULL;
    OK(cairn__store_serve(0, &server, &e.port));
    cairn__store_stop(&server);
    pthread_create(&e.thread, NULL, connect_early, &e);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    OK(cairn__store_serve(e.port, &server, NULL)); /* the port is free again at once */
    pthread_join(e.thread, NULL);
    OK(e.st);
    cairn_store_destroy(&e.store);
    cairn__store_stop(&server);
}

/* What is no store: takes connections and says text, or nothing, or hangs up. */
struct stranger {
    const char *text; /* NULL: hangs up at once; "": says nothing */
    int listener, port;
    pthread_t thread;
};

static void *be_strange(void *argument) {
    struct stranger *s = argument;
    int kept[64], n = 0;
    for (int fd; n < 64 && (fd = accept(s->listener, NULL, NULL)) >= 0;) {
        if (s->text) send(fd, s->text, strlen(s->text), MSG_NOSIGNAL);
        kept[n++] = fd;
        if (!s->text) close(kept[--n]);
    }
    while (n) close(kept[--n]);
    return NULL;
}

static void start_stranger(struct stranger *s, const char *text) {
    *s = (struct stranger){.text = text};
    s->listener = old_listen(&s->port);
    assert_int_equal(pthread_create(&s->thread, NULL, be_strange, s), 0);
}

static void end_stranger(struct stranger *s) {
    shutdown(s->listener, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->listener);
}

static void program_that_is_not_a_store_is_described(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"SSH-2.0-OpenSSH_9.2\r\n", "a program that is not a store and answers 'SSH-2.0-OpenSSH_9.2..'"},
        {"no", "a program that is not a store and answers 'no'"},
        {"", "a program that accepts the connection and sends nothing"},
        {NULL, "a program that closes the connection after every request of a store's client"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct stranger s;
        cairn_store *none = NULL;
        start_stranger(&s, rows[i][0]);
        assert_int_equal(connect_to("127.0.0.1", s.port, 0.3, &none), CAIRN_ETIMEOUT);
        SAYS(rows[i][1]);
        end_stranger(&s);
    }
}

static const char *const here[] = {"127.0.0.1"};

static void place_with_the_proof_is_found_among_others(void **state) {
    (void)state;
    struct cairn__store_server *mine = NULL, *theirs = NULL;
    struct stranger mute;
    cairn_store *first = NULL, *store = NULL;
    int ports[4] = {0}, fd = old_listen(&ports[0]);
    close(fd);
    start_stranger(&mute, "HTTP/1.1 400 Bad Request\r\n");
    ports[1] = mute.port;
    OK(cairn__store_serve(0, &theirs, &ports[2]));
    OK(cairn__store_serve(0, &mine, &ports[3]));
    OK(connect_to("127.0.0.1", ports[3], 20, &first));
    const struct cairn__store_places places = {
        .hosts = here, .num_hosts = 1, .ports = ports, .num_ports = 4, .proof = "job/7"};
    assert_int_equal(cairn__store_connect(&places, 0.5, &store), CAIRN_ETIMEOUT);
    SAYS("the job's store was found at none of 4 places within 0.5 s: Connection refused at 127.0.0.1:");
    SAYS("; a program that is not a store and answers 'HTTP/1.1 400 Bad Request..' at 127.0.0.1:");
    SAYS("; another job's store (it has no key 'job/7') at 127.0.0.1:");
    OK(cairn_store_set(first, "job/7", "", 0));
    OK(cairn__store_connect(&places, 20, &store));
    assert_int_equal(cairn_store_port(store), ports[3]);
    cairn_store_destroy(&store);
    cairn_store_destroy(&first);
    cairn__store_stop(&mine);
    cairn__store_stop(&theirs);
    end_stranger(&mute);
}

/* Ports that say nothing come first: each may take only its share of the time. */
static void silent_places_leave_time_for_the_right_one(void **state) {
    (void)state;
    enum { SILENT = 7 };
    struct cairn__store_server *server = NULL;
    struct stranger mute[SILENT];
    cairn_store *first = NULL, *store = NULL;
    int ports[SILENT + 1] = {0};
    for (int i = 0; i < SILENT; i++) {
        start_stranger(&mute[i], "");
        ports[i] = mute[i].port;
    }
    OK(cairn__store_serve(0, &server, &ports[SILENT]));
    OK(connect_to("127.0.0.1", ports[SILENT], 20, &first));
    OK(cairn_store_set(first, "job/7", "", 0));
    const struct cairn__store_places places = {
        .hosts = here, .num_hosts = 1, .ports = ports, .num_ports = SILENT + 1, .proof = "job/7"};
    OK(cairn__store_connect(&places, 10, &store));
    cairn_store_destroy(&store);
    cairn_store_destroy(&first);
    cairn__store_stop(&server);
    for (int i = 0; i < SILENT; i++) end_stranger(&mute[i]);
}

struct searcher {
    pthread_t thread;
    const struct cairn__store_places *places;
    cairn_store *store;
    cairn_status st;
};

static void *find_it(void *argument) {
    struct searcher *s = argument;
    s->st = cairn__store_connect(s->places, 60, &s->store);
    return NULL;
}

static void proof_may_come_after_its_store(void **state) {
    (void)state;
    struct cairn__store_server *server = NULL;
    cairn_store *first = NULL;
    int64_t clients = 0;
    int port = 0;
    OK(cairn__store_serve(0, &server, &port));
    const struct cairn__store_places places = {
        .hosts = here, .num_hosts = 1, .ports = &port, .num_ports = 1, .proof = "proof"};
    struct searcher s = {.places = &places, .st = CAIRN_EINTERNAL};
    pthread_create(&s.thread, NULL, find_it, &s);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    OK(connect_to("127.0.0.1", port, 20, &first));
    OK(cairn_store_set(first, "proof", "", 0));
    pthread_join(s.thread, NULL);
    OK(s.st);
    OK(cairn_store_num_keys(s.store, &clients)); /* init/ and the proof: clients that only looked were not counted */
    assert_int_equal(clients, 2);
    cairn_store_destroy(&s.store);
    cairn_store_destroy(&first);
    cairn__store_stop(&server);
}

static void wrong_places_are_refused(void **state) {
    (void)state;
    const int port = 0, good = 1;
    cairn_store *none = NULL;
    assert_int_equal(cairn__store_connect(
                         &(struct cairn__store_places){.hosts = here, .num_hosts = 1, .ports = &port, .num_ports = 1},
                         1, &none),
                     CAIRN_EINVAL);
    assert_int_equal(cairn__store_connect(
                         &(struct cairn__store_places){.hosts = here, .num_hosts = 0, .ports = &good, .num_ports = 1},
                         1, &none),
                     CAIRN_EINVAL);
    assert_int_equal(cairn__store_connect(
                         &(struct cairn__store_places){.hosts = here, .num_hosts = 1, .ports = &good, .num_ports = 0},
                         1, &none),
                     CAIRN_EINVAL);
    assert_int_equal(cairn__store_connect(
                         &(struct cairn__store_places){.hosts = here, .num_hosts = 1, .ports = &good, .num_ports = 1},
                         0, &none),
                     CAIRN_EINVAL);
    assert_null(none);
}

/* ---- serving it ---- */

static void server_waits_for_its_clients(void **state) {
    (void)state;
    struct early e = {.st = CAIRN_EINTERNAL};
    struct cairn__store_server *server = NULL;
    cairn_store *store = NULL;
    OK(cairn__store_serve(0, &server, &e.port)); /* a port that is free */
    cairn__store_stop(&server);
    assert_int_equal(
        cairn_tcp_store_create("127.0.0.1", e.port,
                               cairn_tcp_store_options(.is_server = CAIRN_ON, .world_size = 2, .timeout = 0.2), &store),
        CAIRN_ETIMEOUT);
    SAYS("1 of 2 clients joined the store at port ");
    assert_null(store);
    pthread_create(&e.thread, NULL, connect_early, &e);
    OK(cairn_tcp_store_create("127.0.0.1", e.port,
                              cairn_tcp_store_options(.is_server = CAIRN_ON, .world_size = 2, .timeout = 60), &store));
    pthread_join(e.thread, NULL);
    OK(e.st);
    OK(cairn_store_set(e.store, "k", "v", 1));
    OK(cairn_store_wait(store, &(const char *){"k"}, 1));
    assert_int_equal(cairn_store_port(store), e.port);
    cairn_store_destroy(&store);
    expect_lost(&e.store);
}

static void free_port_is_returned(void **state) {
    (void)state;
    cairn_store *store = NULL, *second = NULL;
    OK(cairn_tcp_store_create("localhost", 0, cairn_tcp_store_options(.is_server = CAIRN_ON), &store));
    const int port = cairn_store_port(store);
    assert_true(port > 0);
    assert_int_equal(cairn_tcp_store_create("localhost", port, cairn_tcp_store_options(.is_server = CAIRN_ON), &second),
                     CAIRN_ESYSTEM);
    SAYS("is in use by another program");
    assert_int_equal(cairn_tcp_store_create("localhost", port, cairn_tcp_store_options(.is_server = 3), &second),
                     CAIRN_EINVAL);
    assert_int_equal(cairn_tcp_store_create("localhost", port, cairn_tcp_store_options(.world_size = -1), &second),
                     CAIRN_EINVAL);
    OK(connect_to("localhost", port, 20, &second));
    cairn_store_destroy(&second);
    cairn_store_destroy(&store);
}

/* ---- leaving ---- */

static void *stop_soon(void *server) {
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    cairn__store_stop(server);
    return NULL;
}

static void waiting_for_the_end_lasts_until_the_server_closes(void **state) {
    (void)state;
    struct cairn__store_server *server = NULL;
    cairn_store *store = NULL, *none = NULL;
    pthread_t thread;
    int port = 0;
    OK(cairn__store_serve(0, &server, &port));
    OK(connect_to("127.0.0.1", port, 20, &store));
    const uint64_t begin = cairn__now_ns();
    pthread_create(&thread, NULL, stop_soon, &server);
    cairn__store_wait_end(store, 60);
    const double took = seconds_since(begin);
    pthread_join(thread, NULL);
    if (took < 0.1 || took > 30) fail_msg("it took %g s", took);
    assert_int_equal(connect_to("127.0.0.1", port, 0.1, &none), CAIRN_ETIMEOUT);
    assert_int_equal(cairn_store_set(store, "k", "v", 1), CAIRN_EPEER);
    cairn__store_wait_end(store, 60); /* it has ended: at once */
    cairn_store_destroy(&store);
}

static void waiting_for_the_end_is_bounded_and_harmless(void **state) {
    (void)state;
    struct cairn__store_server *server = NULL;
    cairn_store *store = NULL, *hash = NULL;
    int port = 0;
    OK(cairn__store_serve(0, &server, &port));
    OK(connect_to("127.0.0.1", port, 20, &store));
    const uint64_t begin = cairn__now_ns();
    cairn__store_wait_end(store, 0.1);
    const double took = seconds_since(begin);
    if (took < 0.1 || took > 30) fail_msg("it took %g s", took);
    OK(cairn_store_set(store, "k", "v", 1));
    OK(cairn_store_wait(store, &(const char *){"k"}, 1));
    OK(cairn_hash_store_create(1, &hash));
    cairn__store_wait_end(hash, 60); /* it has no server */
    cairn_store_destroy(&hash);
    cairn_store_destroy(&store);
    cairn__store_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_of_2_2_and_later_answer_the_first_greeting),
        cmocka_unit_test(servers_of_2_1_are_distinguished_from_older_ones),
        cmocka_unit_test(servers_of_1_13_get_requests_in_their_dialect),
        cmocka_unit_test(dialect_can_be_set_by_the_environment),
        cmocka_unit_test(old_server_never_gets_a_request_that_kills_it),
        cmocka_unit_test(malformed_answers_end_in_an_error),
        cmocka_unit_test(wait_checks_again_if_the_server_does_not_wake_it),
        cmocka_unit_test(answer_that_crosses_its_cancellation_counts),
        cmocka_unit_test(silent_server_is_a_timeout_that_names_the_key),
        cmocka_unit_test(wait_at_a_stopped_server_ends_in_time_and_the_store_lives_on),
        cmocka_unit_test(key_that_a_stopped_server_did_not_check_is_not_called_missing),
        cmocka_unit_test(server_that_went_away_is_epeer),
        cmocka_unit_test(forked_child_keeps_no_server_alive),
        cmocka_unit_test(forked_child_that_destroys_its_store_leaves_the_server_alone),
        cmocka_unit_test(connection_refused_is_a_timeout_that_names_the_address),
        cmocka_unit_test(connecting_retries_until_the_server_is_there),
        cmocka_unit_test(program_that_is_not_a_store_is_described),
        cmocka_unit_test(place_with_the_proof_is_found_among_others),
        cmocka_unit_test(silent_places_leave_time_for_the_right_one),
        cmocka_unit_test(proof_may_come_after_its_store),
        cmocka_unit_test(wrong_places_are_refused),
        cmocka_unit_test(server_waits_for_its_clients),
        cmocka_unit_test(free_port_is_returned),
        cmocka_unit_test(waiting_for_the_end_lasts_until_the_server_closes),
        cmocka_unit_test(waiting_for_the_end_is_bounded_and_harmless),
    };
    return cmocka_run_group_tests_name("store client", tests, NULL, NULL);
}
