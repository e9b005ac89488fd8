/* The job's secret: its sources, the mutual proof between a store's client and server, and the clients that a store
 * trusts without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../check.h"
#include "../kept_log.h"
#include "cairn/store.h"
#include "core/trace.h"
#include "rendezvous/owner.h"
#include "rendezvous/store/server.h"
#include "rendezvous/store/session.h"
#include "rendezvous/store/store.h"

enum { NOBODY = 65534 };

static const char SECRET[] = "0123456789abcdef0123456789abcdef";
static char folder[64];

static void path_of(const char *name, char path[128]) {
    snprintf(path, 128, "%s/%s", folder, name);
}

static void write_file(const char *name, const char *text, mode_t mode, char path[128]) {
    path_of(name, path);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void hash_with(struct cairn__secret *secret, uint8_t out[CAIRN__KEYED_NBYTES]) {
    cairn__keyed_hash(secret, "text", 4, out);
    cairn__secret_destroy(&secret);
}

static bool are_equal(struct cairn__secret *a, struct cairn__secret *b) {
    uint8_t x[CAIRN__KEYED_NBYTES], y[CAIRN__KEYED_NBYTES];
    hash_with(a, x);
    hash_with(b, y);
    return cairn__keyed_equal(x, y);
}

/* ---- files ---- */

static void a_secret_is_its_file_without_the_line_end(void **state) {
    (void)state;
    char one[128], other[128];
    struct cairn__secret *a = NULL, *b = NULL;
    write_file("line", "0123456789abcdef0123456789abcdef\n", 0600, one);
    write_file("bare", SECRET, 0400, other);
    OK(cairn__secret_from_file(one, &a));
    OK(cairn__secret_from_file(other, &b));
    assert_true(are_equal(a, b));
}

static void new_secrets_are_random_private_and_never_overwrite(void **state) {
    (void)state;
    char one[128], other[128];
    struct stat s;
    struct cairn__secret *a = NULL, *b = NULL;
    path_of("new", one);
    path_of("newer", other);
    umask(0);
    OK(cairn__secret_write_new(one));
    OK(cairn__secret_write_new(other));
    assert_int_equal(stat(one, &s), 0);
    assert_int_equal(s.st_mode & 07777, 0600);
    REFUSED(cairn__secret_write_new(one), CAIRN_ESYSTEM, "cannot be made: File exists");
    OK(cairn__secret_from_file(one, &a));
    OK(cairn__secret_from_file(other, &b));
    assert_false(are_equal(a, b));
}

static void files_that_others_can_read_or_have_given_are_refused(void **state) {
    (void)state;
    char path[128], link[128];
    struct cairn__secret *secret = NULL;
    write_file("wide", SECRET, 0640, path);
    REFUSED(cairn__secret_from_file(path, &secret), CAIRN_EINVAL,
            "has mode 0640, so others may have read or changed it");
    write_file("shut", SECRET, 0600, path);
    path_of("link", link);
    assert_int_equal(symlink(path, link), 0);
    REFUSED(cairn__secret_from_file(link, &secret), CAIRN_EINVAL, "is a symbolic link; name the file itself");
    REFUSED(cairn__secret_from_file(folder, &secret), CAIRN_EINVAL, "is not a regular file");
    path_of("missing", path);
    REFUSED(cairn__secret_from_file(path, &secret), CAIRN_ESYSTEM, "cannot be opened: No such file or directory");
    write_file("short", "0123456789abcde", 0600, path);
    REFUSED(cairn__secret_from_file(path, &secret), CAIRN_EINVAL, "has 15 bytes; a job's secret has 16 to 4096");
    if (geteuid() == 0) {
        write_file("given", SECRET, 0600, path);
        assert_int_equal(chown(path, NOBODY, NOBODY), 0);
        REFUSED(cairn__secret_from_file(path, &secret), CAIRN_EINVAL, "belongs to user 65534");
    }
    assert_null(secret);
}

static void a_secret_that_is_inherited_is_the_one_that_was_shared(void **state) {
    (void)state;
    struct cairn__secret *a = NULL, *b = NULL, *c = NULL;
    int fd = -1;
    OK(cairn__secret_random(&a));
    OK(cairn__secret_share(a, &fd));
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    assert_int_equal(write(fd, "x", 1), -1); /* sealed */
    OK(cairn__secret_from_descriptor(fd, &b));
    OK(cairn__secret_from_descriptor(fd, &c)); /* for a second environment */
    close(fd);
    REFUSED(cairn__secret_from_descriptor(fd, &a), CAIRN_ESYSTEM, "is not open");
    uint8_t x[CAIRN__KEYED_NBYTES], y[CAIRN__KEYED_NBYTES];
    cairn__keyed_hash(a, "text", 4, x);
    cairn__keyed_hash(b, "text", 4, y);
    assert_memory_equal(x, y, sizeof(x));
    cairn__secret_destroy(&a);
    assert_true(are_equal(b, c));
}

static void a_secret_comes_through_a_pipe_too(void **state) {
    (void)state;
    int ends[2];
    struct cairn__secret *a = NULL, *b = NULL;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], SECRET, strlen(SECRET)), (ssize_t)strlen(SECRET));
    close(ends[1]);
    OK(cairn__secret_from_descriptor(ends[0], &a));
    close(ends[0]);
    OK(cairn__secret_from(SECRET, strlen(SECRET), "it", &b));
    assert_true(are_equal(a, b));
}

/* The kernel leaves memory out of a core dump whose flags have "dd". */
static void a_secret_is_in_no_core_dump(void **state) {
    (void)state;
    struct cairn__secret *secret = NULL;
    char line[512];
    unsigned long from = 0, to = 0;
    bool is_inside = false, found = false;
    OK(cairn__secret_random(&secret));
    FILE *f = fopen("/proc/self/smaps", "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) is_inside = (uintptr_t)secret >= from && (uintptr_t)secret < to;
        if (is_inside && strncmp(line, "VmFlags:", 8) == 0) found = strstr(line, " dd") != NULL;
    }
    fclose(f);
    assert_true(found);
    cairn__secret_destroy(&secret);
}

/* ---- stores ---- */

static cairn_status join(int port, const char *secret, cairn_store **out) {
    return cairn_tcp_store_create("127.0.0.1", port,
                                  cairn_tcp_store_options(.timeout = 0.5, .secret = secret,
                                                          .secret_nbytes = secret ? strlen(secret) : 0),
                                  out);
}

static void clients_with_the_secret_get_in_and_others_do_not(void **state) {
    (void)state;
    cairn_store *server = NULL, *client = NULL;
    void *value = NULL;
    OK(cairn_tcp_store_create("127.0.0.1", 0,
                              cairn_tcp_store_options(.is_server = CAIRN_ON, .timeout = 5, .secret = SECRET,
                                                      .secret_nbytes = sizeof(SECRET) - 1),
                              &server));
    OK(cairn_store_set(server, "key", "value", 5));
    OK(join(cairn_store_port(server), SECRET, &client));
    OK(cairn_store_get(client, "key", &value, NULL));
    assert_string_equal(value, "value");
    cairn_store_free(value);
    cairn_store_destroy(&client);
    REFUSED(join(cairn_store_port(server), "another secret than that one", &client), CAIRN_ETIMEOUT,
            "a store that does not know the job's secret");
    if (strstr(cairn_last_error(), "another secret")) fail_msg("%s", cairn_last_error());
    cairn_store_destroy(&server);
}

static void a_client_with_a_secret_believes_no_store_without(void **state) {
    (void)state;
    cairn_store *server = NULL, *client = NULL;
    OK(cairn_tcp_store_create("127.0.0.1", 0, cairn_tcp_store_options(.is_server = CAIRN_ON, .timeout = 5), &server));
    REFUSED(join(cairn_store_port(server), SECRET, &client), CAIRN_ETIMEOUT,
            "a program that closes the connection when it is to prove the job's secret");
    REFUSED(join(cairn_store_port(server), "too short", &client), CAIRN_EINVAL,
            "cairn_tcp_store_options.secret has 9 bytes; a job's secret has 16 to 4096");
    cairn_store_destroy(&server);
}

/* ---- sessions ---- */

struct dialogue {
    struct cairn__sessions all;
    struct cairn__session session;
    struct cairn__secret *secret;
};

static void open_dialogue(struct dialogue *d, enum cairn__trust trust) {
    OK(cairn__secret_from(SECRET, strlen(SECRET), "it", &d->secret));
    cairn__sessions_init(&d->all);
    d->all.secret = d->secret;
    d->all.port = 29500;
    cairn__session_open(&d->session, trust);
}

static void close_dialogue(struct dialogue *d) {
    cairn__session_close(&d->all, &d->session);
    cairn__sessions_clear(&d->all);
    cairn__secret_destroy(&d->secret);
}

/* The client's part, from what it believes the port to be; false if the server's answer does not convince it. */
static bool prove(struct dialogue *d, int port) {
    struct cairn__proof p;
    uint8_t first[CAIRN__PROOF_FIRST], second[CAIRN__PROOF_SECOND], third[CAIRN__PROOF_THIRD];
    OK(cairn__proof_begin(&p, port, first));
    cairn__session_feed(&d->all, &d->session, first, sizeof(first));
    const struct cairn__blob out = cairn__session_output(&d->session);
    assert_int_equal(out.nbytes, sizeof(second));
    memcpy(second, out.data, sizeof(second));
    cairn__session_sent(&d->all, &d->session, out.nbytes);
    if (!cairn__proof_answer(&p, d->secret, second, third)) return false;
    for (size_t i = 0; i < sizeof(third); i++) {
        assert_int_not_equal(d->session.trust, CAIRN__TRUST_FULL);
        cairn__session_feed(&d->all, &d->session, third + i, 1);
    }
    return d->session.trust == CAIRN__TRUST_FULL;
}

static void a_program_at_another_port_cannot_hand_a_proof_on(void **state) {
    (void)state;
    struct dialogue d;
    open_dialogue(&d, CAIRN__TRUST_NONE);
    assert_true(prove(&d, 29500));
    close_dialogue(&d);
    open_dialogue(&d, CAIRN__TRUST_NONE);
    assert_false(prove(&d, 29501));
    close_dialogue(&d);
}

static void every_wrong_bit_of_a_proof_is_refused(void **state) {
    (void)state;
    for (int bit = 0; bit < 8 * CAIRN__PROOF_THIRD; bit++) {
        struct dialogue d;
        struct cairn__proof p;
        uint8_t first[CAIRN__PROOF_FIRST], third[CAIRN__PROOF_THIRD];
        open_dialogue(&d, CAIRN__TRUST_NONE);
        OK(cairn__proof_begin(&p, 29500, first));
        cairn__session_feed(&d.all, &d.session, first, sizeof(first));
        assert_true(cairn__proof_answer(&p, d.secret, cairn__session_output(&d.session).data, third));
        third[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cairn__session_feed(&d.all, &d.session, third, sizeof(third));
        assert_true(d.session.ended && d.session.refused && d.session.trust == CAIRN__TRUST_NONE);
        assert_string_equal(d.session.why, "it did not prove that it knows the job's secret");
        close_dialogue(&d);
    }
}

static void a_guest_has_all_keys_but_cairns(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t nbytes;
        bool is_refused;
    } requests[] = {
#define REQUEST(text, refused) {text, sizeof(text) - 1, refused}
        REQUEST("\x01\x06\0\0\0\0\0\0\0/torch\x01\0\0\0\0\0\0\0v", false),
        REQUEST("\x01\x0a\0\0\0\0\0\0\0/cairn-run\x01\0\0\0\0\0\0\0v", true),
        REQUEST("\x03\x0a\0\0\0\0\0\0\0/cairn/1/x", true),
        REQUEST("\x06\x02\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0/torch\x06\0\0\0\0\0\0\0/cairn", true),
        REQUEST("\x0b\x01\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0/cair\x06\0\0\0\0\0\0\0/cairn", false), /* a value */
        REQUEST("\x11", true),                                                                   /* LIST_KEYS */
        REQUEST("\x07", false),
#undef REQUEST
    };
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        struct dialogue d;
        open_dialogue(&d, CAIRN__TRUST_GUEST);
        cairn__session_feed(&d.all, &d.session, "\x00\xCE\xF7\x85\x3C", 5);
        cairn__session_feed(&d.all, &d.session, requests[i].bytes, requests[i].nbytes);
        assert_int_equal(d.session.refused, requests[i].is_refused);
        assert_int_equal(d.session.proven, !requests[i].is_refused);
        close_dialogue(&d);
    }
}

static void a_guest_that_proves_itself_has_all_keys(void **state) {
    (void)state;
    struct dialogue d;
    open_dialogue(&d, CAIRN__TRUST_GUEST);
    assert_true(prove(&d, 29500));
    close_dialogue(&d);
}

/* ---- users ---- */

static int dial(int port) {
    const struct sockaddr_in a = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&a, sizeof(a)) != 0) return -1;
    return fd;
}

/* Runs body as `nobody`, who is a stranger to a store of this machine, and returns its exit code. */
static int as_nobody(int (*body)(int port), int port) {
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        if (setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0) _exit(99);
        _exit(body(port));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int join_without_a_secret(int port) {
    cairn_store *store = NULL;
    return (int)join(port, NULL, &store);
}

static void another_users_process_is_turned_away_and_named(void **state) {
    (void)state;
    struct cairn__store_server *server = NULL;
    int port = 0;
    char said[64];
    if (geteuid() != 0) SKIP("needs root, to be another user");
    cairn_set_log(keep_log, NULL); /* before the server's thread, which reads it */
    OK(cairn__store_serve(0, &server, &port));
    assert_int_equal(as_nobody(join_without_a_secret, port), CAIRN_ETIMEOUT);
    cairn__store_stop(&server);
    snprintf(said, sizeof(said), "it is user %d of this machine", NOBODY);
    cairn_set_log(NULL, NULL);
    assert_non_null(strstr(log_text, said));
}

/* Seconds until the server has closed a connection that said `hello`, 99 for never. */
static int seconds_held(int port, const char *hello, size_t nbytes) {
    char byte;
    const int fd = dial(port);
    if (fd < 0 || write(fd, hello, nbytes) != (ssize_t)nbytes) return 98;
    const uint64_t begin = cairn__now_ns();
    if (poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 20000) != 1) return 99;
    (void)!read(fd, &byte, 1);
    close(fd);
    return (int)((cairn__now_ns() - begin) / 1000000000);
}

static int say_nothing(int port) {
    return seconds_held(port, "", 0);
}

static int say_half_a_hello(int port) {
    return seconds_held(port, CAIRN__HELLO, CAIRN__HELLO_NBYTES);
}

static struct cairn__store_server *serve_with_secret(struct cairn__secret **secret, double patience, int *port) {
    struct cairn__store_server *server = NULL;
    OK(cairn__secret_random(secret));
    OK(cairn__store_serve_at(&(struct cairn__store_door){.secret = *secret, .proof_patience = patience}, &server,
                             port));
    return server;
}

static void connections_that_prove_nothing_end_in_time(void **state) {
    (void)state;
    struct cairn__secret *secret = NULL;
    int port = 0;
    if (geteuid() != 0) SKIP("needs root, to be another user");
    struct cairn__store_server *server = serve_with_secret(&secret, 0.5, &port);
    assert_in_range(as_nobody(say_nothing, port), 0, 3);
    assert_in_range(as_nobody(say_half_a_hello, port), 0, 3);
    cairn__store_stop(&server);
    cairn__secret_destroy(&secret);
}

static int lie_often(int port) {
    static const char lie[CAIRN__PROOF_FIRST] = "GET / HTTP/1.0";
    int closed = 0;
    for (int i = 0; i < 100; i++) closed += seconds_held(port, lie, sizeof(lie)) == 0;
    return closed;
}

static void a_stranger_is_named_once(void **state) {
    (void)state;
    struct cairn__secret *secret = NULL;
    int port = 0;
    if (geteuid() != 0) SKIP("needs root, to be another user");
    log_text[0] = '\0';
    cairn_set_log(keep_log, NULL);
    struct cairn__store_server *server = serve_with_secret(&secret, 0, &port);
    assert_int_equal(as_nobody(lie_often, port), 100);
    cairn__store_stop(&server);
    cairn_set_log(NULL, NULL);
    const char *named = strstr(log_text, "it did not prove that it knows the job's secret");
    assert_non_null(named);
    assert_null(strstr(named + 1, "it did not prove"));
    cairn__secret_destroy(&secret);
}

/* More than the server keeps, and the one that proves itself gets in. */
static int hold_all_places(int port) {
    cairn_store *store = NULL;
    for (int i = 0; i < 1100; i++) {
        if (dial(port) < 0) return 97;
    }
    return (int)join(port, SECRET, &store);
}

static void strangers_hold_no_place_of_those_who_prove_themselves(void **state) {
    (void)state;
    struct rlimit before, few, many;
    cairn_store *server = NULL;
    if (geteuid() != 0) SKIP("needs root, to be another user");
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = many = before;
    few.rlim_cur = 256;
    many.rlim_cur = 2048;
    if (before.rlim_max < 2048) SKIP("needs 2048 descriptors");
    setrlimit(RLIMIT_NOFILE, &few); /* the server's: it runs out */
    OK(cairn_tcp_store_create("127.0.0.1", 0,
                              cairn_tcp_store_options(.is_server = CAIRN_ON, .timeout = 5, .secret = SECRET,
                                                      .secret_nbytes = sizeof(SECRET) - 1),
                              &server));
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_NOFILE, &many);
        if (setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0) _exit(99);
        _exit(hold_all_places(cairn_store_port(server)));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, CAIRN_OK);
    cairn_store_destroy(&server);
    setrlimit(RLIMIT_NOFILE, &before);
}

static void another_users_store_is_not_believed(void **state) {
    (void)state;
    int told[2], port = 0, status = 0;
    cairn_store *store = NULL;
    if (geteuid() != 0) SKIP("needs root, to be another user");
    assert_int_equal(pipe(told), 0);
    const pid_t pid = fork();
    if (pid == 0) { /* trusts everybody, as a hostile store would */
        struct cairn__store_server *server = NULL;
        if (setresuid(NOBODY, NOBODY, NOBODY) != 0) _exit(99);
        if (cairn__store_serve_at(&(struct cairn__store_door){.is_open = true}, &server, &port) != CAIRN_OK) _exit(98);
        if (write(told[1], &port, sizeof(port)) != sizeof(port)) _exit(97);
        pause();
    }
    assert_int_equal(read(told[0], &port, sizeof(port)), sizeof(port));
    REFUSED(join(port, NULL, &store), CAIRN_ETIMEOUT, "user 65534 of this machine");
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    close(told[0]);
    close(told[1]);
}

static void owner_of_a_closed_connection_is_unknown(void **state) {
    (void)state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(a);
    unsigned uid = 0;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &length), 0);
    const int out = dial(ntohs(a.sin_port));
    assert_int_equal(cairn__owner_of_peer(-1, out, &uid), CAIRN__OWNER_OTHER); /* not accepted yet */
    assert_int_equal(uid, CAIRN__NO_USER);
    const int in = accept(listener, NULL, NULL);
    assert_int_equal(cairn__owner_of_peer(-1, out, &uid), CAIRN__OWNER_SAME);
    assert_int_equal(cairn__owner_of_peer(-1, in, &uid), CAIRN__OWNER_SAME);
    close(out);
    assert_int_equal(cairn__owner_of_peer(-1, in, &uid), CAIRN__OWNER_OTHER);
    assert_int_equal(uid, CAIRN__NO_USER);
    close(in);
    close(listener);
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/cairn-proof-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_secret_is_its_file_without_the_line_end),
        cmocka_unit_test(new_secrets_are_random_private_and_never_overwrite),
        cmocka_unit_test(files_that_others_can_read_or_have_given_are_refused),
        cmocka_unit_test(a_secret_that_is_inherited_is_the_one_that_was_shared),
        cmocka_unit_test(a_secret_comes_through_a_pipe_too),
        cmocka_unit_test(a_secret_is_in_no_core_dump),
        cmocka_unit_test(clients_with_the_secret_get_in_and_others_do_not),
        cmocka_unit_test(a_client_with_a_secret_believes_no_store_without),
        cmocka_unit_test(a_program_at_another_port_cannot_hand_a_proof_on),
        cmocka_unit_test(every_wrong_bit_of_a_proof_is_refused),
        cmocka_unit_test(a_guest_has_all_keys_but_cairns),
        cmocka_unit_test(a_guest_that_proves_itself_has_all_keys),
        cmocka_unit_test(another_users_process_is_turned_away_and_named),
        cmocka_unit_test(connections_that_prove_nothing_end_in_time),
        cmocka_unit_test(a_stranger_is_named_once),
        cmocka_unit_test(strangers_hold_no_place_of_those_who_prove_themselves),
        cmocka_unit_test(another_users_store_is_not_believed),
        cmocka_unit_test(owner_of_a_closed_connection_is_unknown),
    };
    return cmocka_run_group_tests_name("proof", tests, make_folder, remove_folder);
}
