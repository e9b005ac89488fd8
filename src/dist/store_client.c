/* The store's client: one non-blocking connection; a call builds its whole request, sends it at once and reads exactly
 * the reply's bytes, all before one deadline. A reply that did not come in full leaves the stream without a known
 * position, so the connection is closed and every later call says so. A WAIT that runs out of time is cancelled and
 * keeps the connection. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/status.h"
#include "core/trace.h"
#include "dist/store.h"
#include "dist/store_wire.h"

enum { FIRST_RETRY_MS = 10, LAST_RETRY_MS = 1000, CANCEL_MS = 5000 };

struct cairn__store {
    int fd; /* -1 once the connection broke */
    double timeout;
    uint64_t deadline; /* of the call in progress, ns */
    char name[300];    /* host:port */
    uint8_t *request;
    size_t nbytes, capacity;
};

/* ---- bytes before a deadline ---- */

static uint64_t after(double seconds) {
    return cairn__now_ns() + (uint64_t)(seconds < 1e9 ? seconds * 1e9 : 1e18);
}

static int ms_left(uint64_t deadline) {
    uint64_t now = cairn__now_ns();
    if (now >= deadline) return 0;
    uint64_t ms = (deadline - now + 999999) / 1000000;
    return ms < 3600000 ? (int)ms : 3600000;
}

static cairn_status broke(struct cairn__store *s, cairn_status status) {
    close(s->fd);
    s->fd = -1;
    return status;
}

static cairn_status lost(struct cairn__store *s, int cause) {
    if (cause) {
        cairn__fail_errno(cause, "the store at %s went away; did rank 0 or the launcher end?", s->name);
    } else {
        cairn__fail(CAIRN_EPEER, "the store at %s went away: it closed the connection; did rank 0 or the launcher end?",
                    s->name);
    }
    return broke(s, CAIRN_EPEER);
}

/* *ready = 0 at the deadline. */
static cairn_status await(struct cairn__store *s, short events, bool *ready) {
    struct pollfd p = {.fd = s->fd, .events = events};
    int got;
    do {
        got = poll(&p, 1, ms_left(s->deadline));
    } while ((got < 0 && errno == EINTR) || (got == 0 && ms_left(s->deadline) > 0));
    if (got < 0) return lost(s, errno);
    *ready = got > 0;
    return CAIRN_OK;
}

static cairn_status await_or_break(struct cairn__store *s, short events) {
    bool ready = false;
    cairn_status st = await(s, events, &ready);
    if (st != CAIRN_OK || ready) return st;
    return broke(s, cairn__fail(CAIRN_ETIMEOUT, "the store at %s did not answer within %g s", s->name, s->timeout));
}

static cairn_status send_all(struct cairn__store *s) {
    for (size_t done = 0; done < s->nbytes;) {
        ssize_t sent = send(s->fd, s->request + done, s->nbytes - done, MSG_NOSIGNAL);
        if (sent > 0) done += (size_t)sent;
        if (sent >= 0 || errno == EINTR) continue;
        if (errno != EAGAIN) return lost(s, errno);
        cairn_status st = await_or_break(s, POLLOUT);
        if (st != CAIRN_OK) return st;
    }
    return CAIRN_OK;
}

static cairn_status receive(struct cairn__store *s, void *data, size_t nbytes) {
    for (size_t done = 0; done < nbytes;) {
        ssize_t got = recv(s->fd, (char *)data + done, nbytes - done, 0);
        if (got > 0) done += (size_t)got;
        if (got == 0) return lost(s, 0);
        if (got > 0 || errno == EINTR) continue;
        if (errno != EAGAIN) return lost(s, errno);
        cairn_status st = await_or_break(s, POLLIN);
        if (st != CAIRN_OK) return st;
    }
    return CAIRN_OK;
}

static cairn_status receive_vector(struct cairn__store *s, void **value, size_t *nbytes) {
    uint64_t length = 0;
    void *data = NULL;
    cairn_status st = CAIRN_OK;
    TRY(receive(s, &length, sizeof(length)));
    if (length > STORE_MAX_VALUE) {
        return broke(s, cairn__fail(CAIRN_EPEER,
                                    "the store at %s sends a value of %" PRIu64 " bytes, more than a store holds; is "
                                    "MASTER_PORT another program's?",
                                    s->name, length));
    }
    st = cairn__alloc((size_t)length + 1, &data);
    if (st != CAIRN_OK) return broke(s, st);
    TRY(receive(s, data, (size_t)length));
    ((char *)data)[length] = '\0';
    *value = data;
    *nbytes = (size_t)length;
    return CAIRN_OK;
out:
    cairn__free(data);
    return st;
}

/* ---- requests ---- */

static cairn_status put(struct cairn__store *s, const void *data, size_t nbytes) {
    cairn_status st = cairn__grow((void **)&s->request, &s->capacity, s->nbytes + nbytes, 1);
    if (st != CAIRN_OK) return st;
    if (nbytes) memcpy(s->request + s->nbytes, data, nbytes);
    s->nbytes += nbytes;
    return CAIRN_OK;
}

static cairn_status put_op(struct cairn__store *s, uint8_t op) {
    return put(s, &op, sizeof(op));
}

static cairn_status put_vector(struct cairn__store *s, const void *data, size_t nbytes) {
    REQUIRE(nbytes <= STORE_MAX_VALUE, CAIRN_EINVAL, "a value of %zu bytes is more than a store holds (%d)", nbytes,
            STORE_MAX_VALUE);
    uint64_t length = nbytes;
    cairn_status st = put(s, &length, sizeof(length));
    return st == CAIRN_OK ? put(s, data, nbytes) : st;
}

static cairn_status put_key(struct cairn__store *s, const char *key) {
    uint64_t length = strlen(key) + 1;
    REQUIRE(length <= STORE_MAX_KEY, CAIRN_EINVAL, "a key of %zu bytes is more than a store holds (%d)", (size_t)length,
            STORE_MAX_KEY);
    cairn_status st = CAIRN_OK;
    TRY(put(s, &length, sizeof(length)));
    TRY(put(s, "/", 1));
    TRY(put(s, key, (size_t)length - 1));
out:
    return st;
}

static cairn_status put_count(struct cairn__store *s, uint64_t count) {
    return put(s, &count, sizeof(count));
}

static cairn_status begin(struct cairn__store *s, uint8_t op) {
    REQUIRE(s->fd >= 0, CAIRN_EPEER, "the connection to the store at %s broke earlier; connect anew", s->name);
    s->nbytes = 0;
    s->deadline = after(s->timeout);
    return put_op(s, op);
}

static cairn_status begin_key(struct cairn__store *s, uint8_t op, const char *key) {
    cairn_status st = begin(s, op);
    return st == CAIRN_OK ? put_key(s, key) : st;
}

static cairn_status begin_one_of(struct cairn__store *s, uint8_t op, const char *key) {
    cairn_status st = CAIRN_OK;
    TRY(begin(s, op));
    TRY(put_count(s, 1));
    TRY(put_key(s, key));
out:
    return st;
}

/* ---- connecting ---- */

/* One address; -1 with errno. */
static int dial(const struct addrinfo *a, uint64_t deadline) {
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) return -1;
    int cause = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (cause == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        socklen_t length = sizeof(cause);
        int got = poll(&p, 1, ms_left(deadline));
        if (got == 0) cause = ETIMEDOUT;
        if (got < 0) cause = errno;
        if (got > 0) getsockopt(fd, SOL_SOCKET, SO_ERROR, &cause, &length);
    }
    if (cause == 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        return fd;
    }
    close(fd);
    errno = cause;
    return -1;
}

static int dial_any(const struct addrinfo *list, uint64_t deadline) {
    int fd = -1;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) fd = dial(a, deadline);
    return fd;
}

/* The mark and its first question in one send: torch's server parses the mark only when it arrives in one piece. Servers
 * of 2.2 to 2.4 know no PING and hang up, so every second attempt asks for the number of keys instead. */
static cairn_status greet(struct cairn__store *s, bool ping) {
    uint32_t magic = STORE_MAGIC, nonce = (uint32_t)getpid(), echo = 0;
    int64_t keys = 0, joined = 0;
    uint64_t length = 5;
    cairn_status st = CAIRN_OK;
    s->nbytes = 0;
    TRY(put_op(s, STORE_VALIDATE));
    TRY(put(s, &magic, sizeof(magic)));
    TRY(put_op(s, ping ? STORE_PING : STORE_GETNUMKEYS));
    if (ping) TRY(put(s, &nonce, sizeof(nonce)));
    TRY(send_all(s));
    TRY(receive(s, ping ? (void *)&echo : (void *)&keys, ping ? sizeof(echo) : sizeof(keys)));
    if (ping && echo != nonce)
        return broke(s, cairn__fail(CAIRN_EPEER, "what answers at %s is no store of PyTorch 2.2 or later", s->name));
    s->nbytes = 0; /* a rank 0 of torch that hosts the store counts its clients under this key, which has no "/" */
    TRY(put_op(s, STORE_ADD));
    TRY(put(s, &length, sizeof(length)));
    TRY(put(s, "init/", length));
    TRY(put(s, &(int64_t){1}, sizeof(int64_t)));
    TRY(send_all(s));
    TRY(receive(s, &joined, sizeof(joined)));
out:
    return st;
}

/* CAIRN_OK with *list NULL where a name server asks to be asked again. */
static cairn_status resolve(const char *host, int port, struct addrinfo **list) {
    char service[16];
    snprintf(service, sizeof(service), "%d", port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    int failed = getaddrinfo(host, service, &hints, list);
    if (failed) *list = NULL;
    if (!failed || failed == EAI_AGAIN) return CAIRN_OK;
    return cairn__fail(CAIRN_EINVAL, "the store's host '%s' has no address (%s); check MASTER_ADDR", host,
                       gai_strerror(failed));
}

/* Leaves s->fd at -1 and the reason in the last error where this attempt failed but another may not. */
static cairn_status attempt(struct cairn__store *s, const char *host, int port, bool ping) {
    struct addrinfo *list = NULL;
    cairn_status st = resolve(host, port, &list);
    if (st != CAIRN_OK) return st;
    if (!list) {
        cairn__fail(CAIRN_ETIMEOUT, "the name server does not know '%s' yet", host);
        return CAIRN_OK;
    }
    s->fd = dial_any(list, s->deadline);
    if (s->fd < 0) cairn__fail_errno(errno, "connecting");
    freeaddrinfo(list);
    if (s->fd >= 0 && greet(s, ping) != CAIRN_OK && s->fd >= 0) broke(s, CAIRN_EPEER);
    return CAIRN_OK;
}

static cairn_status keep_dialing(struct cairn__store *s, const char *host, int port) {
    int pause_ms = FIRST_RETRY_MS;
    for (bool ping = true;; ping = !ping) {
        cairn_status st = attempt(s, host, port, ping);
        if (st != CAIRN_OK || s->fd >= 0) return st;
        int left = ms_left(s->deadline);
        poll(NULL, 0, pause_ms < left ? pause_ms : left);
        if (ms_left(s->deadline) == 0) break;
        pause_ms = pause_ms * 2 < LAST_RETRY_MS ? pause_ms * 2 : LAST_RETRY_MS;
    }
    return cairn__fail(CAIRN_ETIMEOUT,
                       "no store answered at %s within %g s: %s; is rank 0 running, and are MASTER_ADDR and "
                       "MASTER_PORT the same for every rank?",
                       s->name, s->timeout, cairn_last_error());
}

cairn_status cairn__store_connect(const char *host, int port, double timeout, struct cairn__store **out) {
    REQUIRE(host && host[0], CAIRN_EINVAL, "the store has no host; set MASTER_ADDR");
    REQUIRE(port > 0 && port <= 65535, CAIRN_EINVAL, "%d is no port of a store; set MASTER_PORT to one in [1, 65535]",
            port);
    REQUIRE(timeout > 0, CAIRN_EINVAL, "the store's timeout is %g s; it must be positive", timeout);
    struct cairn__store *s = NULL;
    cairn_status st = cairn__calloc(1, sizeof(*s), (void **)&s);
    if (st != CAIRN_OK) return st;
    s->fd = -1;
    s->timeout = timeout;
    s->deadline = after(timeout);
    snprintf(s->name, sizeof(s->name), strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
    st = keep_dialing(s, host, port);
    if (st == CAIRN_OK) {
        *out = s;
    } else {
        cairn__store_close(&s);
    }
    return st;
}

void cairn__store_close(struct cairn__store **store) {
    struct cairn__store *s = *store;
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    cairn__free(s->request);
    cairn__free(s);
    *store = NULL;
}

void cairn__store_wait_end(struct cairn__store *s, double timeout) {
    const uint64_t deadline = after(timeout);
    char rest[256];
    while (s->fd >= 0 && ms_left(deadline) > 0) {
        struct pollfd p = {.fd = s->fd, .events = POLLIN};
        if (poll(&p, 1, ms_left(deadline)) <= 0) continue;
        ssize_t got = recv(s->fd, rest, sizeof(rest), 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) broke(s, CAIRN_OK);
    }
}

/* ---- calls ---- */

cairn_status cairn__store_set(struct cairn__store *s, const char *key, const void *value, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    TRY(begin_key(s, STORE_SET, key));
    TRY(put_vector(s, value, nbytes));
    TRY(send_all(s));
out:
    return st;
}

/* The server may have answered just before it read the cancellation: then that answer comes first, and counts. */
static cairn_status cancel_wait(struct cairn__store *s, const char *key) {
    uint8_t answer = 0;
    cairn_status st = CAIRN_OK;
    s->nbytes = 0;
    s->deadline = cairn__now_ns() + (uint64_t)CANCEL_MS * 1000000;
    TRY(put_op(s, STORE_CANCEL_WAIT));
    TRY(send_all(s));
    TRY(receive(s, &answer, sizeof(answer)));
    if (answer == STORE_STOP_WAITING) return receive(s, &answer, sizeof(answer));
    return cairn__fail(CAIRN_ETIMEOUT, "key '%s' did not appear in the store at %s within %g s", key, s->name,
                       s->timeout);
out:
    return st;
}

cairn_status cairn__store_wait(struct cairn__store *s, const char *key) {
    bool ready = false;
    uint8_t answer = 0;
    cairn_status st = CAIRN_OK;
    TRY(begin_one_of(s, STORE_WAIT, key));
    TRY(send_all(s));
    TRY(await(s, POLLIN, &ready));
    if (!ready) return cancel_wait(s, key);
    TRY(receive(s, &answer, sizeof(answer)));
out:
    return st;
}

cairn_status cairn__store_get(struct cairn__store *s, const char *key, void **value, size_t *nbytes) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__store_wait(s, key));
    TRY(begin_key(s, STORE_GET, key));
    TRY(send_all(s));
    TRY(receive_vector(s, value, nbytes));
out:
    return st;
}

cairn_status cairn__store_add(struct cairn__store *s, const char *key, int64_t delta, int64_t *sum) {
    int64_t total = 0;
    cairn_status st = CAIRN_OK;
    TRY(begin_key(s, STORE_ADD, key));
    TRY(put(s, &delta, sizeof(delta)));
    TRY(send_all(s));
    TRY(receive(s, &total, sizeof(total)));
    if (sum) *sum = total;
out:
    return st;
}

cairn_status cairn__store_check(struct cairn__store *s, const char *key, int *ready) {
    uint8_t answer = 0;
    cairn_status st = CAIRN_OK;
    TRY(begin_one_of(s, STORE_CHECK, key));
    TRY(send_all(s));
    TRY(receive(s, &answer, sizeof(answer)));
    *ready = answer == STORE_READY;
out:
    return st;
}

cairn_status cairn__store_compare_set(struct cairn__store *s, const char *key, const void *expected, size_t nexpected,
                                      const void *desired, size_t ndesired, void **value, size_t *nbytes) {
    cairn_status st = CAIRN_OK;
    TRY(begin_key(s, STORE_COMPARE_SET, key));
    TRY(put_vector(s, expected, nexpected));
    TRY(put_vector(s, desired, ndesired));
    TRY(send_all(s));
    TRY(receive_vector(s, value, nbytes));
out:
    return st;
}

cairn_status cairn__store_delete(struct cairn__store *s, const char *key, int *deleted) {
    int64_t count = 0;
    cairn_status st = CAIRN_OK;
    TRY(begin_key(s, STORE_DELETE_KEY, key));
    TRY(send_all(s));
    TRY(receive(s, &count, sizeof(count)));
    *deleted = count != 0;
out:
    return st;
}
