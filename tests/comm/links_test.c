/* Connections between the ranks of a group, established through its store, and strangers that speak the protocol. */
#include <arpa/inet.h>
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
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../kept_log.h"
#include "core/trace.h"
#include "engine_options.h"
#include "rendezvous/store/proof.h"

enum { SKIP = 77, MAX_RANKS = 4, RECORD_KEY = 68, RECORD_NBYTES = 100 };

struct rank {
    struct cairn__engine_options options;
    int fds[MAX_RANKS];
    cairn_status status;
    char error[512];
    pthread_t thread;
};

/* ---- helpers ---- */

static cairn_store *new_store(void) {
    cairn_store *store = NULL;
    assert_int_equal(cairn_hash_store_create(60, &store), CAIRN_OK);
    return store;
}

static void *join(void *arg) {
    struct rank *r = arg;
    r->status = cairn__links_make(&r->options, r->fds);
    snprintf(r->error, sizeof(r->error), "%s", r->status == CAIRN_OK ? "" : cairn_last_error());
    return NULL;
}

static void start(struct rank *r, int rank, int size, cairn_store *store, double timeout) {
    r->options = engine_options(rank, size, store, timeout);
    assert_int_equal(pthread_create(&r->thread, NULL, join, r), 0);
}

static void end(struct rank *r) {
    pthread_join(r->thread, NULL);
}

static void hang_up(struct rank *r) {
    for (int i = 0; i < r->options.size; i++) {
        if (r->fds[i] >= 0) close(r->fds[i]);
    }
}

/* What a rank has left in the store. */
static void read_record(cairn_store *store, const char *rank, uint8_t record[RECORD_NBYTES]) {
    char key[64];
    void *value = NULL;
    size_t nbytes = 0;
    snprintf(key, sizeof(key), "test/gloo/%s", rank);
    assert_int_equal(cairn_store_get(store, key, &value, &nbytes), CAIRN_OK);
    assert_int_equal(nbytes, RECORD_NBYTES);
    memcpy(record, value, nbytes);
    cairn_store_free(value);
}

static unsigned port_in(const uint8_t *record) {
    uint32_t port;
    memcpy(&port, record, sizeof(port));
    return port;
}

static int connect_to(unsigned port) {
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* So few bytes come at once. */
static bool read_whole(int fd, void *bytes, size_t nbytes) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 20000) == 1 && recv(fd, bytes, nbytes, MSG_DONTWAIT) == (ssize_t)nbytes;
}

static bool is_closed(int fd) {
    char byte;
    return recv(fd, &byte, 1, 0) <= 0;
}

static struct cairn__secret *secret_of(const uint8_t *key) {
    struct cairn__secret *secret = NULL;
    assert_int_equal(cairn__secret_from(key, CAIRN__SECRET_NBYTES, "a group's key", &secret), CAIRN_OK);
    return secret;
}

static void must_meet_still(struct rank *first, cairn_store *store) {
    struct rank second;
    start(&second, 1, 2, store, 20);
    end(first);
    end(&second);
    assert_string_equal(first->error, "");
    assert_string_equal(second.error, "");
    assert_int_equal(send(first->fds[1], "all's well", 10, 0), 10);
    char text[11] = "";
    assert_true(read_whole(second.fds[0], text, 10));
    assert_string_equal(text, "all's well");
    hang_up(first);
    hang_up(&second);
    cairn_store_destroy(&store);
}

/* ---- tests ---- */

static void every_two_ranks_are_connected(void **state) {
    (void)state;
    struct rank ranks[MAX_RANKS];
    cairn_store *store = new_store();
    for (int r = 0; r < MAX_RANKS; r++) start(&ranks[r], r, MAX_RANKS, store, 20);
    for (int r = 0; r < MAX_RANKS; r++) end(&ranks[r]);
    for (int a = 0; a < MAX_RANKS; a++) {
        assert_string_equal(ranks[a].error, "");
        assert_int_equal(ranks[a].fds[a], -1);
        for (int b = 0; b < MAX_RANKS; b++) {
            const int sent = 10 * a + b;
            int got = 0;
            if (a == b) continue;
            assert_int_equal(send(ranks[a].fds[b], &sent, sizeof(sent), 0), sizeof(sent));
            assert_true(read_whole(ranks[b].fds[a], &got, sizeof(got)));
            assert_int_equal(got, sent);
        }
    }
    for (int r = 0; r < MAX_RANKS; r++) hang_up(&ranks[r]);
    cairn_store_destroy(&store);
}

static void what_goes_into_the_store_has_no_byte_of_chance_but_the_key(void **state) {
    (void)state;
    struct rank first;
    cairn_store *store = new_store();
    uint8_t record[RECORD_NBYTES], want[RECORD_KEY] = {0};
    start(&first, 0, 2, store, 20);
    read_record(store, "0", record);
    memcpy(want, record, sizeof(uint32_t));
    memcpy(want + sizeof(uint32_t), "127.0.0.1", 9);
    assert_memory_equal(record, want, RECORD_KEY);
    must_meet_still(&first, store);
}

static void stranger_with_another_key_is_named_and_sent_away(void **state) {
    (void)state;
    struct rank first;
    cairn_store *store = new_store();
    uint8_t record[RECORD_NBYTES], other[CAIRN__SECRET_NBYTES] = {1}, bytes[CAIRN__PROOF_FIRST];
    uint8_t second[CAIRN__PROOF_SECOND], third[CAIRN__PROOF_THIRD];
    struct cairn__secret *secret = secret_of(other);
    struct cairn__proof proof;
    log_text[0] = '\0';
    cairn_set_log(keep_log, NULL); /* before the rank's thread begins */
    start(&first, 0, 2, store, 20);
    read_record(store, "0", record);
    const int fd = connect_to(port_in(record));
    assert_int_equal(cairn__proof_begin(&proof, (int)port_in(record), bytes), CAIRN_OK);
    assert_int_equal(send(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
    assert_true(read_whole(fd, second, sizeof(second)));
    assert_false(cairn__proof_answer(&proof, secret, second, third));
    memset(third, 7, sizeof(third));
    assert_int_equal(send(fd, third, sizeof(third), 0), sizeof(third));
    assert_true(is_closed(fd));
    close(fd);
    cairn__secret_destroy(&secret);
    must_meet_still(&first, store);
    cairn_set_log(NULL, NULL);
    assert_non_null(strstr(log_text, "where a gloo group meets, and did not prove that it belongs to it"));
}

/* As one that dies then. */
static void rank_that_ends_within_its_handshake_is_no_stranger(void **state) {
    (void)state;
    struct rank first;
    cairn_store *store = new_store();
    uint8_t record[RECORD_NBYTES], bytes[CAIRN__PROOF_FIRST], second[CAIRN__PROOF_SECOND];
    struct cairn__proof proof;
    log_text[0] = '\0';
    cairn_set_log(keep_log, NULL); /* before the rank's thread begins */
    start(&first, 0, 2, store, 20);
    read_record(store, "0", record);
    for (int i = 0; i < 3; i++) {
        const int fd = connect_to(port_in(record));
        if (i > 0) {
            assert_int_equal(cairn__proof_begin(&proof, (int)port_in(record), bytes), CAIRN_OK);
            assert_int_equal(send(fd, bytes, sizeof(bytes) / (size_t)(3 - i), 0), sizeof(bytes) / (size_t)(3 - i));
        }
        if (i == 2) assert_true(read_whole(fd, second, sizeof(second)));
        close(fd);
    }
    must_meet_still(&first, store);
    cairn_set_log(NULL, NULL);
    assert_string_equal(log_text, "");
}

/* As only a rank can that has gone wrong. */
static void unexpected_rank_is_rejected(void **state) {
    (void)state;
    static const uint32_t wrong[] = {0, 2, UINT32_MAX};
    struct rank first;
    cairn_store *store = new_store();
    uint8_t record[RECORD_NBYTES], bytes[CAIRN__PROOF_FIRST], second[CAIRN__PROOF_SECOND];
    uint8_t last[CAIRN__PROOF_THIRD + 4 + CAIRN__SECRET_NBYTES] = {0};
    struct cairn__proof proof;
    start(&first, 0, 2, store, 20);
    read_record(store, "0", record);
    struct cairn__secret *secret = secret_of(record + RECORD_KEY);
    for (size_t i = 0; i < 3; i++) {
        const int fd = connect_to(port_in(record));
        assert_int_equal(cairn__proof_begin(&proof, (int)port_in(record), bytes), CAIRN_OK);
        assert_int_equal(send(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
        assert_true(read_whole(fd, second, sizeof(second)));
        assert_true(cairn__proof_answer(&proof, secret, second, last));
        memcpy(last + CAIRN__PROOF_THIRD, &wrong[i], sizeof(wrong[i]));
        assert_int_equal(send(fd, last, sizeof(last), 0), sizeof(last));
        assert_true(is_closed(fd));
        close(fd);
    }
    cairn__secret_destroy(&secret);
    must_meet_still(&first, store);
}

static int listen_somewhere(unsigned *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t nbytes = sizeof(at);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(fd, 9), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &nbytes), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

/* Who listens in a rank's place, and sends back what it is sent, hears a first message and no more. */
static void stranger_in_a_ranks_place_gets_no_number_and_no_data(void **state) {
    (void)state;
    struct rank second;
    cairn_store *store = new_store();
    uint32_t port = 0;
    uint8_t record[RECORD_NBYTES] = {0}, first[CAIRN__PROOF_FIRST], answer[CAIRN__PROOF_SECOND] = {0};
    unsigned at = 0;
    const int listener = listen_somewhere(&at);
    port = at;
    memcpy(record, &port, sizeof(port));
    memcpy(record + sizeof(port), "127.0.0.1", 9);
    memset(record + RECORD_KEY, 5, CAIRN__SECRET_NBYTES);
    assert_int_equal(cairn_store_set(store, "test/gloo/0", record, sizeof(record)), CAIRN_OK);
    start(&second, 1, 2, store, 1);
    for (int i = 0; i < 3; i++) {
        const int fd = accept(listener, NULL, NULL);
        assert_true(read_whole(fd, first, sizeof(first)));
        memcpy(answer, first + CAIRN__HELLO_NBYTES, CAIRN__NONCE_NBYTES);
        assert_int_equal(send(fd, answer, sizeof(answer), 0), sizeof(answer));
        assert_true(is_closed(fd));
        close(fd);
    }
    end(&second);
    close(listener);
    cairn_store_destroy(&store);
    assert_int_equal(second.status, CAIRN_ETIMEOUT);
    assert_non_null(strstr(second.error, "rank 1 cannot connect to rank 0 at 127.0.0.1 port "));
    assert_non_null(strstr(second.error, "(gloo: what answers there does not know the group's key)"));
}

static void silent_strangers_cost_no_time_however_many(void **state) {
    (void)state;
    enum { MANY = 300 };
    struct rank first;
    int fds[MANY];
    cairn_store *store = new_store();
    uint8_t record[RECORD_NBYTES];
    start(&first, 0, 2, store, 20);
    read_record(store, "0", record);
    for (int i = 0; i < MANY; i++) fds[i] = connect_to(port_in(record));
    const uint64_t begin = cairn__now_ns();
    must_meet_still(&first, store);
    assert_true(cairn__now_ns() - begin < UINT64_C(9000000000)); /* each may take 10 s for its proof */
    for (int i = 0; i < MANY; i++) close(fds[i]);
}

static void rank_whose_port_is_shut_has_ended(void **state) {
    (void)state;
    struct rank second;
    cairn_store *store = new_store();
    uint8_t record[RECORD_NBYTES] = {0};
    unsigned port = 0;
    close(listen_somewhere(&port));
    memcpy(record, &port, sizeof(port));
    memcpy(record + sizeof(port), "127.0.0.1", 9);
    assert_int_equal(cairn_store_set(store, "test/gloo/0", record, sizeof(record)), CAIRN_OK);
    start(&second, 1, 2, store, 20);
    end(&second);
    cairn_store_destroy(&store);
    assert_int_equal(second.status, CAIRN_EPEER);
    assert_non_null(strstr(second.error, "(gloo: Connection refused); that rank has ended"));
}

int main(void) {
    if (!cairn__secret_is_built()) {
        puts("this build has no libsodium");
        return SKIP;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_two_ranks_are_connected),
        cmocka_unit_test(what_goes_into_the_store_has_no_byte_of_chance_but_the_key),
        cmocka_unit_test(stranger_with_another_key_is_named_and_sent_away),
        cmocka_unit_test(rank_that_ends_within_its_handshake_is_no_stranger),
        cmocka_unit_test(unexpected_rank_is_rejected),
        cmocka_unit_test(stranger_in_a_ranks_place_gets_no_number_and_no_data),
        cmocka_unit_test(silent_strangers_cost_no_time_however_many),
        cmocka_unit_test(rank_whose_port_is_shut_has_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
