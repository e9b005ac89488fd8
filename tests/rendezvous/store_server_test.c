/* The store's server, tested with raw bytes on the wire. Transcripts are from PyTorch's TCPStore; numbers are
 * little-endian. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../processor_time.h"
#include "core/alloc.h"
#include "rendezvous/store/server.h"
#include "rendezvous/store/wire.h"
#include "transcripts.h"
#include "wire_script.h"

static struct cairn__store_server *server;
static int port;

/* How often listen still does what Linux may do to two who call it at one moment. */
static int refusals;

int listen(int fd, int backlog) {
    if (refusals == 0) return (int)syscall(SYS_listen, fd, backlog);
    refusals--;
    errno = EADDRINUSE;
    return -1;
}

static int begin(void **state) {
    (void)state;
    return cairn__store_serve(0, &server, &port) == CAIRN_OK ? 0 : -1;
}

static int end(void **state) {
    (void)state;
    cairn__store_stop(&server);
    return 0;
}

static int dial(void) {
    const int fd = connect_here(port);
    assert_true(fd >= 0);
    return fd;
}

static int dial_validated(void) {
    const int fd = dial();
    say(fd, HELLO);
    return fd;
}

/* The n-th beat of another job, on its own connection. */
static void expect_beat(int fd, int64_t n) {
    int64_t sum = 0;
    say(fd, "04 | 05*8 '/beat' | 01*8");
    assert_int_equal(recv(fd, &sum, sizeof(sum), MSG_WAITALL), sizeof(sum));
    assert_int_equal(sum, n);
}

/* ---- the dialect of 2.2 and later ---- */

static void converse(int fd, const char *const *lines) {
    for (; *lines; lines++) {
        if (**lines == '>') {
            say(fd, *lines + 1);
        } else {
            hear(fd, *lines + 1);
        }
    }
}

static void wire_has_the_bytes_of_torch_2_2_and_later(void **state) {
    (void)state;
    const int fd = dial();
    converse(fd, torch_2_2);
    close(fd);
}

static void wire_has_the_bytes_of_the_newest_torch(void **state) {
    (void)state;
    const int fd = dial();
    converse(fd, torch_newest);
    close(fd);
}

static void wire_has_the_bytes_of_torch_1_13(void **state) {
    (void)state;
    const int fd = dial(), callbacks = dial(); /* the second one stays silent */
    converse(fd, torch_1_13);
    assert_true(is_silent(callbacks));
    close(fd);
    close(callbacks);
}

/* Every request of a transcript, a byte at a time, the mark too. */
static void bytes_may_come_one_by_one(void **state) {
    (void)state;
    static const char *const *const transcripts[] = {torch_2_2, torch_newest, torch_1_13};
    for (size_t t = 0; t < 3; t++) {
        void *unused = NULL;
        begin(&unused);
        const int fd = dial();
        for (const char *const *line = transcripts[t]; *line; line++) {
            uint8_t bytes[512];
            const size_t n = bytes_of(*line + 1, bytes);
            if (**line == '<') hear(fd, *line + 1);
            for (size_t i = 0; **line == '>' && i < n; i++) assert_int_equal(send(fd, bytes + i, 1, MSG_NOSIGNAL), 1);
        }
        close(fd);
        end(&unused);
    }
}

static void both_dialects_share_the_keys(void **state) {
    (void)state;
    const int new = dial_validated(), old = dial();
    say(old, "05 | 01*8 | 02*8 '/k'");
    assert_true(is_silent(old));
    say(new, "01 | 02*8 '/k' | 01*8 'n'");
    hear(old, "00");
    say(new, "06 | 01*8 | 02*8 '/l' | 03 | 02*8 '/l'");
    assert_true(is_silent(new));
    say(old, "00 | 02*8 '/l' | 01*8 'o'");
    hear(new, "00");
    hear(new, "01*8 'o'");
    say(old, "02 | 02*8 '/k'");
    hear(old, "01*8 'n'");
    close(new);
    close(old);
}

/* ---- waiting ---- */

static void every_kind_of_write_wakes_waiting_clients(void **state) {
    (void)state;
    static const char *const writes[] = {"01 | 02*8 '/0' | 00*8", "04 | 02*8 '/1' | 01*8", "09 | 02*8 '/2' | 01*8 'x'",
                                         "0b | 01*8 | 02*8 '/3' | 00*8", "02 | 02*8 '/4' | 00*8 | 01*8 'x'"};
    const int writer = dial_validated();
    for (int i = 0; i < 5; i++) {
        const int waiter = dial_validated();
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
    const int waiter = dial_validated(), writer = dial_validated();
    say(waiter, "06 | 02*8 | 02*8 '/a' | 02*8 '/b' | 03 | 02*8 '/b'");
    say(writer, "01 | 02*8 '/a' | 00*8");
    assert_true(is_silent(waiter));
    say(writer, "01 | 02*8 '/b' | 01*8 'v'");
    hear(waiter, "00 | 01*8 'v'");
    close(waiter);
    close(writer);
}

static void wait_needs_its_keys_at_one_time(void **state) {
    (void)state;
    const int waiter = dial_validated(), writer = dial_validated();
    say(waiter, "06 | 02*8 | 02*8 '/a' | 02*8 '/b'");
    say(writer, "01 | 02*8 '/a' | 00*8 | 08 | 02*8 '/a' | 01 | 02*8 '/b' | 00*8");
    hear(writer, "01*8");
    assert_true(is_silent(waiter));
    say(writer, "01 | 02*8 '/a' | 00*8");
    hear(waiter, "00");
    close(waiter);
    close(writer);
}

static void compare_set_that_stores_nothing_wakes_no_client(void **state) {
    (void)state;
    const int waiter = dial_validated(), writer = dial_validated();
    say(waiter, "06 | 01*8 | 02*8 '/a'");
    assert_true(is_silent(waiter));
    say(writer, "02 | 02*8 '/a' | 01*8 'x' | 01*8 'y'");
    hear(writer, "01*8 'x'");
    assert_true(is_silent(waiter));
    close(waiter);
    close(writer);
}

static void cancelled_wait_answers_1_and_never_0(void **state) {
    (void)state;
    const int fd = dial_validated();
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

/* Whichever comes first, the client reads 1, or 0 and then 1. */
static void cancellation_that_races_with_the_key_leaves_the_stream_whole(void **state) {
    (void)state;
    const int waiter = dial_validated(), writer = dial_validated();
    int answered = 0;
    for (int i = 0; i < 300; i++) {
        uint8_t byte = 9;
        say(waiter, "06 | 01*8 | 02*8 '/r'");
        if (i % 3 == 0) usleep(100);
        say(writer, "01 | 02*8 '/r' | 00*8");
        say(waiter, "0c");
        assert_int_equal(recv(waiter, &byte, 1, MSG_WAITALL), 1);
        if (byte == 0) answered++;
        if (byte == 0) hear(waiter, "01");
        if (byte != 0) assert_int_equal(byte, 1);
        say(writer, "08 | 02*8 '/r'");
        hear(writer, "01*8");
        expect_beat(waiter, i + 1);
    }
    assert_true(answered > 0);
    close(waiter);
    close(writer);
}

/* It cannot cancel: had its WAIT been answered later, it would take the 0 for the answer to something else. */
static void client_of_1_13_that_gave_up_waiting_gets_no_late_answer(void **state) {
    (void)state;
    const int fd = dial(), writer = dial_validated();
    say(fd, "05 | 01*8 | 02*8 '/z'");
    assert_true(is_silent(fd));
    say(fd, "03 | 02*8 '/c' | 05*8");
    hear(fd, "05*8");
    say(writer, "01 | 02*8 '/z' | 00*8 | 07");
    hear(writer, "02*8");
    assert_true(is_silent(fd));
    say(fd, "05 | 01*8 | 02*8 '/z'");
    hear(fd, "00");
    close(fd);
    close(writer);
}

static void barrier_releases_all_with_the_last(void **state) {
    (void)state;
    const int a = dial_validated(), b = dial_validated(), c = dial_validated(), other = dial_validated();
    say(other, "06 | 01*8 | 02*8 '/b'");
    assert_true(is_silent(other));
    say(a, "12 | 02*8 '/b' | 03*8");
    say(b, "12 | 02*8 '/b' | 03*8");
    assert_true(is_silent(a));
    assert_true(is_silent(b));
    hear(other, "00"); /* a WAIT sees its number */
    say(c, "12 | 02*8 '/b' | 03*8");
    hear(a, "00");
    hear(b, "00");
    hear(c, "00");
    say(a, "12 | 02*8 '/d' | 02*8");
    assert_true(is_silent(a));
    say(a, "0c | 03 | 02*8 '/d'"); /* a time limit: what was counted stays */
    hear(a, "01 | 01*8 '1'");
    close(other);
    close(a);
    close(b);
    close(c);
}

/* ---- whom it does not hold up ---- */

static void half_sent_request_delays_no_other_client(void **state) {
    (void)state;
    const int slow = dial_validated(), idle = dial(), torn = dial(), job = dial_validated();
    say(slow, "01 | 02*8 '/s' | 05*8 'ab'");
    say(torn, "00 ce"); /* the mark in two pieces */
    for (int i = 0; i < 100; i++) expect_beat(job, i + 1);
    say(slow, "'cde' | 03 | 02*8 '/s'");
    hear(slow, "05*8 'abcde'");
    say(torn, "f7 85 3c | 07");
    hear(torn, "02*8");
    close(slow);
    close(idle);
    close(torn);
    close(job);
}

static void broken_protocol_closes_only_its_connection(void **state) {
    (void)state;
    static const char *const broken[] = {
        HELLO "| 63",                                                  /* no such op */
        HELLO "| 13",                                                  /* nor this one, so far */
        HELLO "| 00 ce f7 85 3c",                                      /* validated twice */
        "00 ce f7 85 3d 00 00 00 00",                                  /* another magic: a key of 1031 million bytes */
        "0d 00 00 00 00",                                              /* 1.13 has no PING */
        "'GET / HTTP/1.1'",                                            /* a browser */
        "16 03 01 02 00 01 00 01 fc 03 03",                            /* TLS */
        "'SSH-2.0-OpenSSH_9.2'",                                       /* ssh */
        "ff ff ff ff ff ff ff ff",                                     /* noise */
        "02 | 02*8 '/n'",                                              /* GET, 1.13: no such key */
        "09 | 01*8 | 02*8 '/n'",                                       /* MULTI_GET, 2.1: no such key */
        HELLO "| 01 | 01 20 00 00 00 00 00 00",                        /* a key of 8193 bytes */
        HELLO "| 01 | 01*8 'k' | 01 00 80 00 00 00 00 00",             /* a value of 8 MiB + 1 */
        HELLO "| 05 | 01 00 02 00 00 00 00 00",                        /* 131073 keys */
        HELLO "| 01 | 02*8 '/t' | 03*8 'abc' | 04 | 02*8 '/t' | 01*8", /* adding to what is no number */
        HELLO "| 01 | ff ff ff ff ff ff ff ff",                        /* a length that overflows */
        HELLO "| 0b | 02*8 | 01*8 'k' | 00*8 | ff ff ff ff ff ff ff ff", /* and inside a list */
    };
    const int job = dial_validated();
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        const int fd = dial();
        say(fd, broken[i]);
        if (!is_closed(fd)) fail_msg("script %zu was taken", i);
        close(fd);
        expect_beat(job, (int64_t)i + 1);
    }
    say(job, "05 | 01*8 | 01*8 'k'"); /* of a list with a fault nothing is stored */
    hear(job, "01");
    close(job);
}

static void thousand_pipelined_requests_are_answered_in_order(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    const int fd = dial_validated();
    uint8_t one[64], *all = malloc(COUNT * sizeof(one));
    const size_t n = bytes_of("04 | 02*8 '/p' | 01*8", one);
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
    uint8_t *value = calloc(1, NBYTES), head[32];
    const size_t n = bytes_of("01 | 04*8 '/big' | 00 00 80 00 00 00 00 00", head);
    const int job = dial_validated(), fd = dial_validated();
    assert_int_equal(send(job, head, n, MSG_NOSIGNAL), n);
    for (size_t sent = 0; sent < NBYTES;) {
        const ssize_t more = send(job, value + sent, NBYTES - sent, MSG_NOSIGNAL);
        assert_true(more > 0);
        sent += (size_t)more;
    }
    expect_beat(job, 1); /* SET has no reply: now it is there */
    for (int i = 0; i < REPLIES; i++) say(fd, "03 | 04*8 '/big'");
    for (int i = 0; i < 100; i++) expect_beat(job, i + 2);
    for (int i = 0; i < REPLIES; i++) {
        uint64_t length = 0;
        assert_int_equal(recv(fd, &length, sizeof(length), MSG_WAITALL), sizeof(length));
        assert_int_equal(length, NBYTES);
        assert_int_equal(recv(fd, value, NBYTES, MSG_WAITALL), NBYTES);
    }
    free(value);
    close(fd);
    close(job);
}

/* ---- many, and unwelcome ones ---- */

/* Room for n descriptors; false where the machine does not allow that. */
static bool raise_descriptors(rlim_t n) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
    if (limit.rlim_cur >= n) return true;
    limit.rlim_cur = n;
    if (limit.rlim_max < n) limit.rlim_max = n;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

static void close_all(int *fds, size_t n) {
    for (size_t i = 0; i < n; i++) close(fds[i]);
}

enum { MANY = 1000 };
static int many[MANY];

static void thousand_idle_connections_do_not_stop_a_job(void **state) {
    (void)state;
    if (!raise_descriptors(2 * MANY + 64)) {
        print_message("cannot have %d descriptors\n", 2 * MANY + 64);
        skip();
    }
    const int job = dial_validated();
    int64_t beats = 0;
    for (int i = 0; i < MANY; i++) {
        many[i] = dial();
        if (i % 2) say(many[i], i % 4 == 1 ? HELLO : "00 ce"); /* or a beginning of something */
        if (i % 10 == 0) expect_beat(job, ++beats);
    }
    const int newcomer = dial_validated();
    for (int i = 0; i < 100; i++) {
        expect_beat(job, ++beats);
        expect_beat(newcomer, ++beats);
    }
    close_all(many, MANY);
    expect_beat(job, ++beats);
    close(newcomer);
    close(job);
}

/* Each waits for the keys of all, which come one by one: each key is looked at once by each, and not at all with each
 * write. */
static void thousand_ranks_that_wait_for_each_other_meet_soon(void **state) {
    (void)state;
    enum { LENGTH = 8 + 6 };
    if (!raise_descriptors(2 * MANY + 64)) {
        print_message("cannot have %d descriptors\n", 2 * MANY + 64);
        skip();
    }
    static uint8_t wait[9 + MANY * LENGTH];
    memcpy(wait, (uint8_t[]){STORE_WAIT, MANY & 255, MANY >> 8}, 3);
    for (int i = 0; i < MANY; i++) {
        char name[8];
        snprintf(name, sizeof(name), "/r%04d", i);
        memcpy(wait + 9 + i * LENGTH, (uint8_t[8]){6}, 8);
        memcpy(wait + 9 + i * LENGTH + 8, name, 6);
    }
    const int job = dial_validated();
    const double begin = processor_seconds();
    for (int i = 0; i < MANY; i++) {
        many[i] = dial_validated();
        say(many[i], "04 | 05*8 'init/' | 01*8");
        assert_int_equal(send(many[i], wait, sizeof(wait), MSG_NOSIGNAL), sizeof(wait));
    }
    for (int i = 0; i < MANY; i++) {
        char script[64];
        snprintf(script, sizeof(script), "01 | 06*8 '/r%04d' | 00*8", i);
        say(job, script);
        expect_beat(job, i + 1);
    }
    for (int i = 0; i < MANY; i++) {
        uint8_t got[9];
        assert_int_equal(recv(many[i], got, sizeof(got), MSG_WAITALL), sizeof(got));
        assert_int_equal(got[8], 0);
    }
    const double seconds = processor_seconds() - begin;
    print_message("%d ranks met in %.3f s of the processors'\n", MANY, seconds);
    if (seconds > 20) fail_msg("that is too long");
    close_all(many, MANY);
    close(job);
}

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void port_scan_does_not_stop_a_job(void **state) {
    (void)state;
    static const char *const greetings[] = {"",
                                            "'GET / HTTP/1.0' 0d 0a 0d 0a",
                                            "16 03 01 02 00 01 00 01 fc 03 03",
                                            "ff ff ff ff ff ff ff ff ff",
                                            "00 00 00 00 00 00 00 00 00",
                                            "00",
                                            "0d 0a 0d 0a",
                                            "03 00 00 0b 06 e0 00 00 00 00 00" /* remote desktop */};
    const int job = dial_validated();
    uint32_t seed = 1;
    for (int i = 0; i < 400; i++) {
        const int fd = dial();
        if (i % 2) {
            say(fd, greetings[(size_t)i / 2 % (sizeof(greetings) / sizeof(greetings[0]))]);
        } else {
            uint8_t noise[64];
            const size_t n = 1 + next_random(&seed) % sizeof(noise);
            for (size_t k = 0; k < n; k++) noise[k] = (uint8_t)next_random(&seed);
            noise[0] |= 0x10; /* no request of 1.13: those could be about anything */
            assert_int_equal(send(fd, noise, n, MSG_NOSIGNAL), n);
        }
        if (i % 3 == 0) shutdown(fd, SHUT_WR);
        if (i % 5 == 0) setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
        close(fd);
        expect_beat(job, i + 1);
    }
    close(job);
}

/* A server in a process of its own that may have 64 descriptors; it serves once something comes down `start`. */
struct small_server {
    pid_t pid;
    int start, told;
};

static void serve_with_few_descriptors(int start, int told) {
    struct cairn__store_server *small = NULL;
    int at = 0;
    char byte;
    const struct rlimit limit = {.rlim_cur = 64, .rlim_max = 64};
    for (int fd = 3; fd < 1024; fd++) {
        if (fd != start && fd != told) close(fd);
    }
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || cairn__store_listen(0, &small, &at) != CAIRN_OK) _exit(1);
    if (write(told, &at, sizeof(at)) != sizeof(at) || read(start, &byte, 1) != 1) _exit(1);
    if (cairn__store_start(small) != CAIRN_OK) _exit(1);
    if (read(start, &byte, 1) != 0) _exit(1); /* the parent is done, or gone */
    cairn__store_stop(&small);
    _exit(0);
}

static struct small_server begin_small(void) {
    int start[2], told[2];
    assert_int_equal(pipe(start), 0);
    assert_int_equal(pipe(told), 0);
    struct small_server s = {.pid = fork(), .start = start[1], .told = told[0]};
    assert_true(s.pid >= 0);
    if (s.pid == 0) serve_with_few_descriptors(start[0], told[1]);
    close(start[0]);
    close(told[1]);
    assert_int_equal(read(s.told, &port, sizeof(port)), sizeof(port));
    return s;
}

static void start_small(const struct small_server *s) {
    assert_int_equal(write(s->start, "", 1), 1);
}

static void end_small(struct small_server *s) {
    int status = 0;
    close(s->start);
    close(s->told);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    assert_int_equal(status, 0);
}

static void strangers_are_closed_when_descriptors_run_out(void **state) {
    (void)state;
    enum { IDLE = 300 };
    struct small_server small = begin_small();
    const int early = dial_validated();
    say(early, "04 | 05*8 '/beat' | 01*8"); /* not read before the server has to choose who goes */
    for (int i = 0; i < IDLE; i++) many[i] = dial();
    start_small(&small);
    hear(early, "01*8");
    const int late = dial_validated();
    expect_beat(late, 2);
    for (int i = 0; i < 20; i++) {
        expect_beat(early, 2 * i + 3);
        expect_beat(late, 2 * i + 4);
    }
    assert_true(is_closed(many[0]));
    assert_true(is_silent(many[IDLE - 1])); /* the youngest has its chance still */
    close_all(many, IDLE);
    close(early);
    close(late);
    end_small(&small);
}

static void new_connections_wait_if_all_others_belong_to_jobs(void **state) {
    (void)state;
    enum { JOBS = 100 };
    struct small_server small = begin_small();
    start_small(&small);
    for (int i = 0; i < JOBS; i++) {
        many[i] = dial_validated();
        say(many[i], "0d 01 02 03 04");
    }
    hear(many[0], "01 02 03 04");
    assert_true(is_silent(many[JOBS - 1]));
    expect_beat(many[0], 1);
    for (int i = 1; i < 60; i++) close(many[i]);
    for (int i = 60; i < JOBS; i++) hear(many[i], "01 02 03 04");
    expect_beat(many[0], 2);
    for (int i = 60; i < JOBS; i++) close(many[i]);
    close(many[0]);
    end_small(&small);
}

/* ---- from inside the process ---- */

static void client_of_a_server_that_has_not_started_waits_for_it(void **state) {
    (void)state;
    struct cairn__store_server *later = NULL;
    assert_int_equal(cairn__store_listen(0, &later, &port), CAIRN_OK);
    const int fd = dial_validated();
    say(fd, "07");
    assert_true(is_silent(fd));
    assert_int_equal(cairn__store_start(later), CAIRN_OK);
    hear(fd, "00*8");
    assert_int_equal(cairn__store_start(later), CAIRN_ESTATE);
    cairn__store_stop(&later);
    assert_null(later);
    assert_true(is_closed(fd));
    close(fd);
    assert_int_equal(cairn__store_listen(0, &later, &port), CAIRN_OK);
    cairn__store_stop(&later); /* without a start */
    cairn__store_stop(&later);
}

static void contended_port_is_tried_again(void **state) {
    (void)state;
    struct cairn__store_server *one = NULL, *other = NULL;
    refusals = 3;
    assert_int_equal(cairn__store_listen(0, &one, &port), CAIRN_OK);
    assert_int_equal(refusals, 0);
    assert_int_equal(cairn__store_listen(port, &other, NULL), CAIRN_ESYSTEM);
    assert_non_null(strstr(cairn_last_error(), "is in use"));
    refusals = INT_MAX; /* a port that is always refused */
    assert_int_equal(cairn__store_listen(0, &other, NULL), CAIRN_ESYSTEM);
    assert_non_null(strstr(cairn_last_error(), "is in use"));
    refusals = 0;
    cairn__store_stop(&one);
}

static void keep_only_deletes_the_other_keys(void **state) {
    (void)state;
    const int fd = dial_validated(), waiter = dial_validated();
    say(fd, "01 | 06*8 '/agent' | 00*8 | 01 | 08*8 '/agent/a' | 01*8 'a' | 01 | 05*8 '/rank' | 00*8");
    say(fd, "07");
    hear(fd, "03*8");
    say(waiter, "06 | 02*8 | 05*8 '/rank' | 03*8 '/wz'");
    assert_true(is_silent(waiter));
    cairn__store_keep_only(server, "/agent/");
    say(fd, "07 | 03 | 08*8 '/agent/a'");
    hear(fd, "01*8 | 01*8 'a'");
    say(fd, "01 | 03*8 '/wz' | 00*8 | 07");
    hear(fd, "02*8");
    assert_true(is_silent(waiter)); /* /rank is gone again */
    say(fd, "01 | 05*8 '/rank' | 00*8");
    hear(waiter, "00");
    close(fd);
    close(waiter);
}

static void *keep_and_keep(void *argument) {
    for (int i = 0; i < 2000; i++) cairn__store_keep_only(server, "/beat");
    return argument;
}

static void keep_only_may_come_from_any_thread(void **state) {
    (void)state;
    pthread_t thread;
    const int fd = dial_validated();
    assert_int_equal(pthread_create(&thread, NULL, keep_and_keep, NULL), 0);
    for (int i = 0; i < 500; i++) {
        say(fd, "01 | 02*8 '/k' | 01*8 'v'");
        expect_beat(fd, i + 1);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    cairn__store_keep_only(server, "/beat");
    say(fd, "07");
    hear(fd, "01*8");
    close(fd);
}

int main(void) {
#define SERVER_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        SERVER_TEST(wire_has_the_bytes_of_torch_2_2_and_later),
        SERVER_TEST(wire_has_the_bytes_of_the_newest_torch),
        SERVER_TEST(wire_has_the_bytes_of_torch_1_13),
        cmocka_unit_test(bytes_may_come_one_by_one),
        SERVER_TEST(both_dialects_share_the_keys),
        SERVER_TEST(every_kind_of_write_wakes_waiting_clients),
        SERVER_TEST(wait_needs_all_its_keys_and_holds_what_follows),
        SERVER_TEST(wait_needs_its_keys_at_one_time),
        SERVER_TEST(compare_set_that_stores_nothing_wakes_no_client),
        SERVER_TEST(cancelled_wait_answers_1_and_never_0),
        SERVER_TEST(cancellation_that_races_with_the_key_leaves_the_stream_whole),
        SERVER_TEST(client_of_1_13_that_gave_up_waiting_gets_no_late_answer),
        SERVER_TEST(barrier_releases_all_with_the_last),
        SERVER_TEST(half_sent_request_delays_no_other_client),
        SERVER_TEST(broken_protocol_closes_only_its_connection),
        SERVER_TEST(thousand_pipelined_requests_are_answered_in_order),
        SERVER_TEST(unread_replies_throttle_their_sender_alone),
        SERVER_TEST(thousand_idle_connections_do_not_stop_a_job),
        SERVER_TEST(thousand_ranks_that_wait_for_each_other_meet_soon),
        SERVER_TEST(port_scan_does_not_stop_a_job),
        cmocka_unit_test(strangers_are_closed_when_descriptors_run_out),
        cmocka_unit_test(new_connections_wait_if_all_others_belong_to_jobs),
        cmocka_unit_test(client_of_a_server_that_has_not_started_waits_for_it),
        cmocka_unit_test(contended_port_is_tried_again),
        SERVER_TEST(keep_only_deletes_the_other_keys),
        SERVER_TEST(keep_only_may_come_from_any_thread),
    };
    return cmocka_run_group_tests_name("store server", tests, NULL, NULL);
}
