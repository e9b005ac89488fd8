/* The store, through its client and as raw bytes on the wire. Transcripts are those of PyTorch's TCPStore from 2.2 on;
 * numbers are little endian. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "core/trace.h"
#include "dist/store.h"
#include "dist/store_wire.h"

static struct cairn__store_server *server;
static struct cairn__store *store;
static int port;

static int begin(void **state) {
    (void)state;
    if (cairn__store_serve(0, &server, &port) != CAIRN_OK) return -1;
    return cairn__store_connect("127.0.0.1", port, 5, &store) == CAIRN_OK ? 0 : -1;
}

static int end(void **state) {
    (void)state;
    cairn__store_close(&store);
    cairn__store_stop(&server);
    return 0;
}

/* ---- through the client ---- */

static void expect_stored(const char *key, const char *value) {
    void *got = NULL;
    size_t nbytes = 0;
    assert_int_equal(cairn__store_get(store, key, &got, &nbytes), CAIRN_OK);
    assert_int_equal(nbytes, strlen(value));
    assert_string_equal(got, value);
    cairn__free(got);
}

static void set_get_check_and_delete_agree(void **state) {
    (void)state;
    int flag = -1;
    assert_int_equal(cairn__store_check(store, "k", &flag), CAIRN_OK);
    assert_int_equal(flag, 0);
    assert_int_equal(cairn__store_set(store, "k", "value", 5), CAIRN_OK);
    expect_stored("k", "value");
    assert_int_equal(cairn__store_set(store, "k", "v", 1), CAIRN_OK);
    expect_stored("k", "v");
    assert_int_equal(cairn__store_set(store, "empty", NULL, 0), CAIRN_OK);
    expect_stored("empty", "");
    assert_int_equal(cairn__store_check(store, "k", &flag), CAIRN_OK);
    assert_int_equal(flag, 1);
    assert_int_equal(cairn__store_delete(store, "k", &flag), CAIRN_OK);
    assert_int_equal(flag, 1);
    assert_int_equal(cairn__store_delete(store, "k", &flag), CAIRN_OK);
    assert_int_equal(flag, 0);
    assert_int_equal(cairn__store_check(store, "k", &flag), CAIRN_OK);
    assert_int_equal(flag, 0);
}

static void add_counts_in_decimal_text(void **state) {
    (void)state;
    int64_t sum = 0;
    assert_int_equal(cairn__store_add(store, "c", 5, &sum), CAIRN_OK);
    assert_int_equal(sum, 5);
    assert_int_equal(cairn__store_add(store, "c", -7, &sum), CAIRN_OK);
    assert_int_equal(sum, -2);
    expect_stored("c", "-2");
}

static void expect_compare_set(const char *key, const char *expected, const char *desired, const char *answer) {
    void *got = NULL;
    size_t nbytes = 0;
    assert_int_equal(cairn__store_compare_set(store, key, expected, strlen(expected), desired, strlen(desired), &got,
                                              &nbytes),
                     CAIRN_OK);
    assert_string_equal(got, answer);
    cairn__free(got);
}

static void compare_set_swaps_creates_and_reports(void **state) {
    (void)state;
    int ready = -1;
    expect_compare_set("s", "old", "new", "old"); /* no key: what was expected comes back, nothing is stored */
    assert_int_equal(cairn__store_check(store, "s", &ready), CAIRN_OK);
    assert_int_equal(ready, 0);
    expect_compare_set("s", "", "one", "one");
    expect_compare_set("s", "other", "two", "one");
    expect_compare_set("s", "one", "two", "two");
    expect_stored("s", "two");
}

static void values_of_8_mib_pass_and_larger_ones_are_refused(void **state) {
    (void)state;
    size_t most = STORE_MAX_VALUE, nbytes = 0;
    char *value = malloc(most + 1);
    void *got = NULL;
    for (size_t i = 0; i < most; i++) value[i] = (char)(i * 31 >> 3);
    assert_int_equal(cairn__store_set(store, "big", value, most), CAIRN_OK);
    assert_int_equal(cairn__store_get(store, "big", &got, &nbytes), CAIRN_OK);
    assert_int_equal(nbytes, most);
    assert_memory_equal(got, value, most);
    assert_int_equal(cairn__store_set(store, "big", value, most + 1), CAIRN_EINVAL);
    memset(value, 'k', 9000);
    value[9000] = '\0';
    assert_int_equal(cairn__store_set(store, value, "", 0), CAIRN_EINVAL);
    expect_compare_set("still", "", "here", "here");
    cairn__free(got);
    free(value);
}

struct later {
    pthread_t thread;
    const char *key;
};

static void *set_later(void *argument) {
    struct later *l = argument;
    struct cairn__store *other = NULL;
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    if (cairn__store_connect("localhost", port, 5, &other) == CAIRN_OK) cairn__store_set(other, l->key, "late", 4);
    cairn__store_close(&other);
    return NULL;
}

static void get_waits_for_the_key(void **state) {
    (void)state;
    struct later l = {.key = "later"};
    pthread_create(&l.thread, NULL, set_later, &l);
    expect_stored("later", "late");
    pthread_join(l.thread, NULL);
}

static void wait_that_times_out_is_cancelled_and_names_the_key(void **state) {
    (void)state;
    struct cairn__store *hasty = NULL;
    int64_t sum = 0;
    assert_int_equal(cairn__store_connect("127.0.0.1", port, 0.1, &hasty), CAIRN_OK);
    assert_int_equal(cairn__store_wait(hasty, "never"), CAIRN_ETIMEOUT);
    assert_non_null(strstr(cairn_last_error(), "key 'never' did not appear"));
    assert_int_equal(cairn__store_set(store, "never", "", 0), CAIRN_OK);
    assert_int_equal(cairn__store_add(hasty, "n", 3, &sum), CAIRN_OK); /* the stream is where it should be */
    assert_int_equal(sum, 3);
    assert_int_equal(cairn__store_wait(hasty, "never"), CAIRN_OK);
    cairn__store_close(&hasty);
}

static void server_that_went_away_is_a_dead_peer(void **state) {
    (void)state;
    cairn__store_stop(&server);
    assert_int_equal(cairn__store_wait(store, "k"), CAIRN_EPEER);
    assert_non_null(strstr(cairn_last_error(), "went away"));
    assert_int_equal(cairn__store_wait(store, "k"), CAIRN_EPEER);
    assert_non_null(strstr(cairn_last_error(), "broke earlier"));
}

static void nobody_answering_is_a_timeout_that_names_the_address(void **state) {
    (void)state;
    struct cairn__store *none = NULL;
    int closed = port;
    cairn__store_close(&store);
    cairn__store_stop(&server);
    assert_int_equal(cairn__store_connect("127.0.0.1", closed, 0.2, &none), CAIRN_ETIMEOUT);
    assert_null(none);
    assert_non_null(strstr(cairn_last_error(), "no store answered at 127.0.0.1:"));
    if (!strstr(cairn_last_error(), "refused")) fail_msg("%s", cairn_last_error());
    assert_int_equal(cairn__store_connect("no.such.host.invalid", 1, 0.2, &none) == CAIRN_OK, 0);
    assert_int_equal(cairn__store_connect("", 1, 0.2, &none), CAIRN_EINVAL);
    assert_int_equal(cairn__store_connect("localhost", 0, 0.2, &none), CAIRN_EINVAL);
    assert_int_equal(cairn__store_connect("localhost", 1, 0, &none), CAIRN_EINVAL);
}

static void *connect_early(void *argument) {
    return (void *)(intptr_t)cairn__store_connect("127.0.0.1", port, 5, argument);
}

static void connecting_retries_until_the_server_is_there(void **state) {
    (void)state;
    pthread_t thread;
    void *st = NULL;
    int bound = 0;
    cairn__store_close(&store);
    cairn__store_stop(&server);
    pthread_create(&thread, NULL, connect_early, &store);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    assert_int_equal(cairn__store_serve(port, &server, &bound), CAIRN_OK); /* the port is free again at once */
    pthread_join(thread, &st);
    assert_int_equal((intptr_t)st, CAIRN_OK);
}

static double seconds_since(uint64_t begin) {
    return (double)(cairn__now_ns() - begin) * 1e-9;
}

static void *stop_soon(void *unused) {
    (void)unused;
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    cairn__store_stop(&server);
    return NULL;
}

static void waiting_for_the_end_lasts_until_the_server_closes(void **state) {
    (void)state;
    pthread_t thread;
    const uint64_t begin = cairn__now_ns();
    pthread_create(&thread, NULL, stop_soon, NULL);
    cairn__store_wait_end(store, 20);
    const double took = seconds_since(begin);
    pthread_join(thread, NULL);
    if (took < 0.1 || took > 10) fail_msg("it took %g s", took);
    struct cairn__store *none = NULL;
    assert_int_equal(cairn__store_connect("127.0.0.1", port, 0.1, &none), CAIRN_ETIMEOUT);
    assert_int_equal(cairn__store_set(store, "k", "v", 1), CAIRN_EPEER);
    cairn__store_wait_end(store, 20); /* it has ended: at once */
}

static void waiting_for_the_end_is_bounded_and_harmless(void **state) {
    (void)state;
    const uint64_t begin = cairn__now_ns();
    cairn__store_wait_end(store, 0.1);
    const double took = seconds_since(begin);
    if (took < 0.1 || took > 10) fail_msg("it took %g s", took);
    assert_int_equal(cairn__store_set(store, "k", "v", 1), CAIRN_OK);
    expect_stored("k", "v");
}

static void port_in_use_says_what_to_do(void **state) {
    (void)state;
    struct cairn__store_server *second = NULL;
    char sentence[128];
    int bound = 0;
    snprintf(sentence, sizeof(sentence),
             "port %d is in use by another program; choose another MASTER_PORT or let cairn-run pick one", port);
    assert_int_equal(cairn__store_serve(port, &second, &bound), CAIRN_ESYSTEM);
    assert_string_equal(cairn_last_error(), sentence);
    assert_int_equal(cairn__store_serve(70000, &second, &bound), CAIRN_EINVAL);
    assert_null(second);
}

/* ---- raw bytes ---- */

/* "01 | 02*8 '/k'": hex bytes, XX*8 for a little-endian u64, 'text'; '|' and spaces are for the reader. */
static size_t bytes_of(const char *script, uint8_t *out) {
    size_t n = 0;
    for (const char *at = script; *at;) {
        if (*at == ' ' || *at == '|') {
            at++;
        } else if (*at == '\'') {
            for (at++; *at != '\''; at++) out[n++] = (uint8_t)*at;
            at++;
        } else {
            char hex[3] = {at[0], at[1], '\0'};
            out[n++] = (uint8_t)strtol(hex, NULL, 16);
            at += 2;
            if (strncmp(at, "*8", 2) != 0) continue;
            memset(out + n, 0, 7);
            n += 7;
            at += 2;
        }
    }
    return n;
}

static int dial(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 5}, sizeof(struct timeval));
    return fd;
}

static void say(int fd, const char *script) {
    uint8_t bytes[512];
    size_t n = bytes_of(script, bytes);
    assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
}

static void hear(int fd, const char *script) {
    uint8_t wanted[512], got[512];
    size_t n = bytes_of(script, wanted);
    assert_int_equal(recv(fd, got, n, MSG_WAITALL), n);
    assert_memory_equal(got, wanted, n);
}

static bool is_silent(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 50) == 0;
}

static bool is_closed(int fd) {
    char byte;
    ssize_t got = recv(fd, &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

#define HELLO "00 ce f7 85 3c"

static int dial_validated(void) {
    int fd = dial();
    say(fd, HELLO);
    return fd;
}

static void wire_has_the_bytes_of_torch_2_2_and_later(void **state) {
    (void)state;
    int fd = dial();
    say(fd, HELLO "| 0d 78 56 34 12"); /* VALIDATE and PING in one piece */
    hear(fd, "78 56 34 12");
    say(fd, "04 | 05*8 'init/' | 01*8"); /* ADD; the test's own client counted itself before */
    hear(fd, "02*8");
    say(fd, "01 | 02*8 '/k' | 01*8 'v'"); /* SET */
    say(fd, "06 | 01*8 | 02*8 '/k'");     /* WAIT */
    hear(fd, "00");
    say(fd, "03 | 02*8 '/k'"); /* GET */
    hear(fd, "01*8 'v'");
    say(fd, "04 | 02*8 '/c' | 05*8"); /* ADD */
    hear(fd, "05*8");
    say(fd, "04 | 02*8 '/c' | f9 ff ff ff ff ff ff ff");
    hear(fd, "fe ff ff ff ff ff ff ff");
    say(fd, "03 | 02*8 '/c'");
    hear(fd, "02*8 '-2'");
    say(fd, "02 | 02*8 '/k' | 01*8 'v' | 01*8 'w'"); /* COMPARE_SET */
    hear(fd, "01*8 'w'");
    say(fd, "02 | 02*8 '/k' | 01*8 'v' | 01*8 'x'");
    hear(fd, "01*8 'w'");
    say(fd, "02 | 02*8 '/n' | 01*8 'v' | 01*8 'x'");
    hear(fd, "01*8 'v'");
    say(fd, "05 | 02*8 | 02*8 '/k' | 02*8 '/c'"); /* CHECK */
    hear(fd, "00");
    say(fd, "05 | 02*8 | 02*8 '/k' | 02*8 '/n'");
    hear(fd, "01");
    say(fd, "07"); /* GETNUMKEYS: init/, /k, /c */
    hear(fd, "03*8");
    say(fd, "09 | 02*8 '/k' | 02*8 'yz' | 09 | 02*8 '/a' | 01*8 'b'"); /* APPEND */
    say(fd, "0a | 03*8 | 02*8 '/k' | 02*8 '/n' | 02*8 '/a'");          /* MULTI_GET */
    hear(fd, "03*8 'wyz' | 00*8 | 01*8 'b'");
    say(fd, "0b | 02*8 | 02*8 '/p' | 01*8 '1' | 02*8 '/q' | 00*8"); /* MULTI_SET */
    say(fd, "0a | 02*8 | 02*8 '/p' | 02*8 '/q'");
    hear(fd, "01*8 '1' | 00*8");
    say(fd, "03 | 02*8 '/n'"); /* GET of what is not there: empty, as the libuv server answers */
    hear(fd, "00*8");
    say(fd, "08 | 02*8 '/k'"); /* DELETE_KEY */
    hear(fd, "01*8");
    say(fd, "08 | 02*8 '/k'");
    hear(fd, "00*8");
    close(fd);
}

static void every_write_wakes_those_who_wait(void **state) {
    (void)state;
    static const char *const writes[] = {"01 | 02*8 '/0' | 00*8", "04 | 02*8 '/1' | 01*8", "09 | 02*8 '/2' | 01*8 'x'",
                                         "0b | 01*8 | 02*8 '/3' | 00*8", "02 | 02*8 '/4' | 00*8 | 01*8 'x'"};
    int writer = dial_validated();
    for (int i = 0; i < 5; i++) {
        int waiter = dial_validated();
        char script[64];
        snprintf(script, sizeof(script), "06 | 01*8 | 02*8 '/%d'", i);
        say(waiter, script);
        assert_true(is_silent(waiter));
        say(writer, writes[i]);
        hear(waiter, "00");
        close(waiter);
    }
    close(writer);
}

static void wait_needs_all_its_keys_and_holds_what_follows(void **state) {
    (void)state;
    int waiter = dial_validated(), writer = dial_validated();
    say(waiter, "06 | 02*8 | 02*8 '/a' | 02*8 '/b' | 03 | 02*8 '/b'");
    say(writer, "01 | 02*8 '/a' | 00*8");
    assert_true(is_silent(waiter));
    say(writer, "01 | 02*8 '/b' | 01*8 'v'");
    hear(waiter, "00 | 01*8 'v'");
    close(waiter);
    close(writer);
}

static void cancelled_wait_answers_1_and_never_0(void **state) {
    (void)state;
    int fd = dial_validated();
    say(fd, "06 | 01*8 | 02*8 '/z'");
    assert_true(is_silent(fd));
    say(fd, "0c");
    hear(fd, "01");
    say(fd, "01 | 02*8 '/z' | 00*8");
    assert_true(is_silent(fd));
    say(fd, "06 | 01*8 | 02*8 '/z' | 0c"); /* answered before the cancellation came: both are */
    hear(fd, "00 | 01");
    close(fd);
}

static void half_sent_request_holds_nobody_up(void **state) {
    (void)state;
    int slow = dial_validated(), idle = dial(), torn = dial();
    say(slow, "01 | 02*8 '/s' | 05*8 'ab'");
    say(torn, "00 ce"); /* the mark in two pieces */
    (void)idle;
    for (int i = 0; i < 100; i++) {
        int64_t sum = 0;
        assert_int_equal(cairn__store_add(store, "others", 1, &sum), CAIRN_OK);
        assert_int_equal(sum, i + 1);
    }
    say(slow, "'cde' | 03 | 02*8 '/s'");
    hear(slow, "05*8 'abcde'");
    say(torn, "f7 85 3c | 07");
    hear(torn, "03*8");
    close(slow);
    close(idle);
    close(torn);
}

static void broken_protocol_closes_only_its_connection(void **state) {
    (void)state;
    static const char *const broken[] = {
        HELLO "| 63",                                                  /* no such op */
        HELLO "| 0e | 02*8 '/q' | 00*8",                               /* queues are not ours */
        HELLO "| 00 ce f7 85 3c",                                      /* validated twice */
        "00 ce f7 85 3d",                                              /* another magic */
        "04 | 05*8 'init/' | 01*8",                                    /* no mark: a client older than 2.2 */
        "'GET / HTTP/1.1'",                                            /* a browser */
        HELLO "| 01 | 01 20 00 00 00 00 00 00",                        /* a key of 8193 bytes */
        HELLO "| 01 | 01*8 'k' | 01 00 80 00 00 00 00 00",             /* a value of 8 MiB + 1 */
        HELLO "| 05 | 01 00 02 00 00 00 00 00",                        /* 131073 keys */
        HELLO "| 01 | 02*8 '/t' | 03*8 'abc' | 04 | 02*8 '/t' | 01*8", /* adding to what is no number */
        HELLO "| 01 | ff ff ff ff ff ff ff ff",                        /* a length that overflows */
    };
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        int fd = dial();
        say(fd, broken[i]);
        if (!is_closed(fd)) fail_msg("script %zu was taken", i);
        close(fd);
        int64_t sum = 0;
        assert_int_equal(cairn__store_add(store, "alive", 1, &sum), CAIRN_OK);
    }
}

static void thousand_pipelined_requests_are_answered_in_order(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    int fd = dial_validated();
    uint8_t one[64], *all = malloc(COUNT * sizeof(one));
    size_t n = bytes_of("04 | 02*8 '/p' | 01*8", one);
    for (size_t i = 0; i < COUNT; i++) memcpy(all + i * n, one, n);
    assert_int_equal(send(fd, all, COUNT * n, MSG_NOSIGNAL), COUNT * n);
    for (int64_t i = 1; i <= COUNT; i++) {
        int64_t sum = 0;
        assert_int_equal(recv(fd, &sum, sizeof(sum), MSG_WAITALL), sizeof(sum));
        assert_int_equal(sum, i);
    }
    free(all);
    close(fd);
}

/* Replies pile up to the limit, the server stops reading, and goes on when they are read. */
static void unread_replies_throttle_their_sender_alone(void **state) {
    (void)state;
    enum { REPLIES = 12, NBYTES = STORE_MAX_VALUE };
    char *value = calloc(1, NBYTES);
    int64_t sum = 0;
    assert_int_equal(cairn__store_set(store, "big", value, NBYTES), CAIRN_OK);
    assert_int_equal(cairn__store_wait(store, "big"), CAIRN_OK); /* SET has no reply: now it is there */
    int fd = dial_validated();
    for (int i = 0; i < REPLIES; i++) say(fd, "03 | 04*8 '/big'");
    assert_int_equal(cairn__store_add(store, "others", 1, &sum), CAIRN_OK);
    for (int i = 0; i < REPLIES; i++) {
        uint64_t length = 0;
        assert_int_equal(recv(fd, &length, sizeof(length), MSG_WAITALL), sizeof(length));
        assert_int_equal(length, NBYTES);
        assert_int_equal(recv(fd, value, NBYTES, MSG_WAITALL), NBYTES);
    }
    free(value);
    close(fd);
}

/* ---- the client's own bytes ---- */

static void *answer_as_torch(void *argument) {
    int listener = *(int *)argument;
    uint8_t got[64] = {0};
    int64_t joined = 1;
    int fd = accept(listener, NULL, NULL);
    ssize_t first = recv(fd, got, sizeof(got), 0); /* one piece, or torch's server hangs up */
    if (first == 10) send(fd, got + 6, 4, MSG_NOSIGNAL);
    recv(fd, got + 10, 22, MSG_WAITALL);
    send(fd, &joined, sizeof(joined), MSG_NOSIGNAL);
    uint8_t *copy = malloc(sizeof(got));
    memcpy(copy, got, sizeof(got));
    recv(fd, got, 1, 0);
    close(fd);
    return copy;
}

static void client_greets_in_one_piece_and_counts_itself(void **state) {
    (void)state;
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t length = sizeof(a);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &length), 0);
    pthread_t thread;
    pthread_create(&thread, NULL, answer_as_torch, &listener);
    struct cairn__store *client = NULL;
    assert_int_equal(cairn__store_connect("127.0.0.1", ntohs(a.sin_port), 5, &client), CAIRN_OK);
    cairn__store_close(&client);
    void *got = NULL;
    pthread_join(thread, &got);
    uint8_t wanted[64] = {0};
    size_t n = bytes_of(HELLO "| 0d 00 00 00 00 | 04 | 05*8 'init/' | 01*8", wanted);
    memcpy(wanted + 6, (uint8_t *)got + 6, 4); /* the nonce is the client's to choose */
    assert_memory_equal(got, wanted, n);
    free(got);
    close(listener);
}

int main(void) {
#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        STORE_TEST(set_get_check_and_delete_agree),
        STORE_TEST(add_counts_in_decimal_text),
        STORE_TEST(compare_set_swaps_creates_and_reports),
        STORE_TEST(values_of_8_mib_pass_and_larger_ones_are_refused),
        STORE_TEST(get_waits_for_the_key),
        STORE_TEST(wait_that_times_out_is_cancelled_and_names_the_key),
        STORE_TEST(server_that_went_away_is_a_dead_peer),
        STORE_TEST(nobody_answering_is_a_timeout_that_names_the_address),
        STORE_TEST(connecting_retries_until_the_server_is_there),
        STORE_TEST(waiting_for_the_end_lasts_until_the_server_closes),
        STORE_TEST(waiting_for_the_end_is_bounded_and_harmless),
        STORE_TEST(port_in_use_says_what_to_do),
        STORE_TEST(wire_has_the_bytes_of_torch_2_2_and_later),
        STORE_TEST(every_write_wakes_those_who_wait),
        STORE_TEST(wait_needs_all_its_keys_and_holds_what_follows),
        STORE_TEST(cancelled_wait_answers_1_and_never_0),
        STORE_TEST(half_sent_request_holds_nobody_up),
        STORE_TEST(broken_protocol_closes_only_its_connection),
        STORE_TEST(thousand_pipelined_requests_are_answered_in_order),
        STORE_TEST(unread_replies_throttle_their_sender_alone),
        cmocka_unit_test(client_greets_in_one_piece_and_counts_itself),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
