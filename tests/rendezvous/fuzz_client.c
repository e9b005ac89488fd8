/* Feeds replies of a hostile or broken server to the TCP store's client, which must never crash, hang, leak, or report
 * success against the bytes. The client's own output must be valid requests.
 *
 * The input controls time and network: the linker's --wrap replaces poll and the clock. When the client waits, it gets
 * the next piece of the replies, or silence until its timeout; after the last piece the server hangs up.
 *
 * Input: a byte for the dialect, the number of calls, so many bytes for the calls, then pieces: a length (0 = silence)
 * and so many bytes. */
#include "../fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "cairn/store.h"
#include "core/alloc.h"
#include "core/trace.h"
#include "rendezvous/store/session.h"
#include "rendezvous/store/tcp.h"
#include "rendezvous/store/wire.h"
#include "wire_script.h"

int __wrap_poll(struct pollfd *fds, nfds_t n, int ms);
int __real_poll(struct pollfd *fds, nfds_t n, int ms);
uint64_t __wrap_cairn__now_ns(void);

enum call { SET, GET, ADD, WAIT_ONE, WAIT_THREE, CHECK_TWO, COMPARE_SET, APPEND, DELETE, NUM_KEYS, NUM_CALLS };
enum { MAX_CALLS = 16 };

static uint64_t now_ns;
static const uint8_t *script, *script_end;
static int client_fd, server_fd;
static uint8_t delivered[2 * FUZZ_MAX];
static size_t num_delivered;
static struct cairn__sessions taken; /* a server that reads along what the client asks */
static struct cairn__session asked;

/* ---- time and network ---- */

uint64_t __wrap_cairn__now_ns(void) {
    return now_ns += 1000;
}

static void read_along(void) {
    static uint8_t bytes[64 << 10];
    ssize_t got;
    while ((got = recv(server_fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
        cairn__session_feed(&taken, &asked, bytes, (size_t)got);
        while (cairn__sessions_next(&taken)) cairn__session_sent(&taken, &asked, cairn__session_output(&asked).nbytes);
        FUZZ_CHECK(!asked.ended || strncmp(asked.why, "a request", 9) != 0);
    }
}

/* False: silence. */
static bool deliver(void) {
    if (script == script_end) {
        shutdown(server_fd, SHUT_WR);
        return true;
    }
    size_t n = *script++;
    if (n == 0) return false;
    if (n > (size_t)(script_end - script)) n = (size_t)(script_end - script);
    if (n == 0) return deliver();
    FUZZ_CHECK(send(server_fd, script, n, MSG_NOSIGNAL) == (ssize_t)n);
    memcpy(delivered + num_delivered, script, n);
    num_delivered += n;
    script += n;
    return true;
}

int __wrap_poll(struct pollfd *fds, nfds_t n, int ms) {
    FUZZ_CHECK(ms >= 0); /* a client that waits for ever */
    read_along();
    const int ready = n ? __real_poll(fds, n, 0) : 0;
    if (ready != 0) return ready;
    if (n && deliver()) return __real_poll(fds, n, 0);
    now_ns += (uint64_t)ms * 1000000;
    return 0;
}

/* ---- what the replies said ---- */

static size_t consumed(void) {
    int unread = 0;
    FUZZ_CHECK(ioctl(client_fd, FIONREAD, &unread) == 0);
    return num_delivered - (size_t)unread;
}

static void expect_last(const void *bytes, size_t n) {
    const size_t at = consumed();
    FUZZ_CHECK(at >= n && (!n || memcmp(delivered + at - n, bytes, n) == 0));
}

static void expect_value(const char *value, uint64_t nbytes) {
    uint64_t length;
    FUZZ_CHECK(value && nbytes <= STORE_MAX_VALUE && value[nbytes] == '\0');
    expect_last(value, (size_t)nbytes);
    FUZZ_CHECK(consumed() >= nbytes + 8);
    memcpy(&length, delivered + consumed() - nbytes - 8, 8);
    FUZZ_CHECK(length == nbytes);
}

/* There now, or there just before the cancellation. */
static void expect_came(void) {
    const size_t at = consumed();
    FUZZ_CHECK(at >= 1 && (delivered[at - 1] == 0 || (delivered[at - 1] == 1 && at >= 2 && delivered[at - 2] == 0)));
}

/* ---- calls ---- */

static cairn_status call_for_value(cairn_store *s, enum call call) {
    void *value = NULL;
    size_t nbytes = 0;
    const cairn_status st = call == GET ? cairn_store_get(s, "k", &value, &nbytes)
                                        : cairn_store_compare_set(s, "k", "old", 3, "new", 3, &value, &nbytes);
    if (st == CAIRN_OK) expect_value(value, nbytes);
    FUZZ_CHECK(st == CAIRN_OK || !value);
    cairn_store_free(value);
    return st;
}

static cairn_status call_for_number(cairn_store *s, enum call call) {
    int64_t number = 0;
    const cairn_status st = call == ADD ? cairn_store_add(s, "n", 1, &number) : cairn_store_num_keys(s, &number);
    if (st == CAIRN_OK) expect_last(&number, sizeof(number));
    return st;
}

static cairn_status call_for_flag(cairn_store *s, enum call call) {
    static const char *const keys[] = {"a", "b"};
    int flag = -1;
    const cairn_status st = call == DELETE ? cairn_store_delete(s, "k", &flag) : cairn_store_check(s, keys, 2, &flag);
    const uint8_t answer = !flag;
    if (st == CAIRN_OK) FUZZ_CHECK(flag == 0 || flag == 1);
    if (st == CAIRN_OK && call != DELETE) expect_last(&answer, 1);
    return st;
}

static cairn_status make_call(cairn_store *s, enum call call) {
    static const char *const keys[] = {"a", "b", "c"};
    cairn_status st;
    switch (call) {
    case SET:
        return cairn_store_set(s, "k", "v", 1);
    case APPEND:
        return cairn_store_append(s, "k", "more", 4);
    case GET:
    case COMPARE_SET:
        return call_for_value(s, call);
    case ADD:
    case NUM_KEYS:
        return call_for_number(s, call);
    case WAIT_ONE:
    case WAIT_THREE:
        st = cairn_store_wait(s, keys, call == WAIT_ONE ? 1 : 3);
        if (st == CAIRN_OK) expect_came();
        return st;
    default:
        return call_for_flag(s, call);
    }
}

static void open_pair(const uint8_t *first, size_t nbytes, enum cairn__store_dialect dialect) {
    int fds[2];
    static const uint8_t hello[] = {0, 0xce, 0xf7, 0x85, 0x3c};
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    client_fd = fds[0];
    server_fd = fds[1];
    script = first;
    script_end = first + nbytes;
    num_delivered = 0;
    now_ns = 1000000000;
    cairn__sessions_init(&taken);
    cairn__session_open(&asked, CAIRN__TRUST_FULL);
    if (dialect == CAIRN__STORE_2_2) cairn__session_feed(&taken, &asked, hello, sizeof(hello));
}

static void close_pair(void) {
    read_along();
    close(server_fd);
    cairn__session_close(&taken, &asked);
    cairn__sessions_clear(&taken);
    FUZZ_CHECK(fcntl(client_fd, F_GETFD) == -1 && errno == EBADF);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    if (nbytes < 2 || nbytes > FUZZ_MAX) return 0;
    const uint64_t alive = cairn__alloc_counters().alive;
    const enum cairn__store_dialect dialect = data[0] % 2 ? CAIRN__STORE_1_13 : CAIRN__STORE_2_2;
    size_t num_calls = data[1] % (MAX_CALLS + 1);
    if (num_calls > nbytes - 2) num_calls = nbytes - 2;
    cairn_store *s = NULL;
    bool lost = false;
    open_pair(data + 2 + num_calls, nbytes - 2 - num_calls, dialect);
    FUZZ_CHECK(cairn__tcp_store_on(client_fd, dialect, "fuzz", 3, &s) == CAIRN_OK);
    for (size_t i = 0; i < num_calls; i++) {
        const cairn_status st = make_call(s, (enum call)(data[2 + i] % NUM_CALLS));
        FUZZ_CHECK(st == CAIRN_OK || st == CAIRN_EPEER || st == CAIRN_ETIMEOUT || st == CAIRN_EINVAL);
        FUZZ_CHECK(!lost || st == CAIRN_EPEER);
        lost = lost || st == CAIRN_EPEER;
    }
    cairn_store_destroy(&s);
    close_pair();
    FUZZ_CHECK(cairn__alloc_counters().alive == alive);
    return 0;
}

/* ---- seeds ---- */

static const struct {
    int dialect;
    const char *calls, *pieces[8];
} talks[] = {
    {0, "01 02 03 05 06 07 08 09 00", {"00", "01*8 'v'", "05*8", "00", "01", "01*8 'w'", "01*8 04*8"}},
    {0, "02 09 08 05 05", {"f9 ff ff ff ff ff ff ff 03", "00 00 00 00 00 00 00 | 01*8", "01 00"}},
    {0, "03 03 04", {"-", "01", "01", "-", "00 01", "00"}}, /* silence, cancelled, CHECK; then answers that cross */
    {0, "01 01", {"00 03*8 'abc' 00 00*8", "00 02*8 'd'", "'e'"}},
    {0, "01", {"00", "01 00 80 00 00 00 00 00 'too long'"}},
    {0, "01 01", {"'HTTP/1.1 400 Bad Request' 0d 0a"}},
    {1, "01 02 03 05 06 08 09 00", {"00", "01*8 'v'", "05*8", "01", "00 00", "01*8 'w'", "01*8 04*8"}},
    {1, "07 01", {"01*8 'v' 05*8 'vmore' 01*8", "00 05*8 'vmore'"}},
    {1, "03 04 05", {"01", "01 01", "01 00 01 01 01 01 01", "00"}},
};

static size_t fuzz_seed(int i, uint8_t *out) {
    if (i >= (int)(sizeof(talks) / sizeof(talks[0]))) return 0;
    out[0] = (uint8_t)talks[i].dialect;
    out[1] = (uint8_t)bytes_of(talks[i].calls, out + 2);
    size_t n = 2u + out[1];
    for (int k = 0; k < 8 && talks[i].pieces[k]; k++) {
        const bool silence = talks[i].pieces[k][0] == '-';
        out[n] = (uint8_t)(silence ? 0 : bytes_of(talks[i].pieces[k], out + n + 1));
        n += 1u + out[n];
    }
    return n;
}
