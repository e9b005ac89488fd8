/* The store's server: one thread around poll(), every connection with buffers of its own.
 *
 * A request is run only when all of it has arrived, straight out of the connection's input, so a half-sent one costs its
 * sender alone. A WAIT that cannot be answered yet stays at the front of its input and is looked at again whenever a key
 * was written; what the client sent behind it keeps its order, except that CANCEL_WAIT ends it. Whatever breaks the
 * protocol or a limit closes the connection it came on. */
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <search.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/status.h"
#include "dist/store.h"
#include "dist/store_wire.h"

enum { CHUNK = 64 << 10, BACKLOG = 1024, BUSY_RETRY_MS = 100 };

struct blob {
    const uint8_t *data;
    size_t nbytes;
};

struct pair {
    struct blob key;
    uint8_t *value;
    size_t nbytes, capacity;
};

struct buffer {
    uint8_t *data;
    size_t begin, end, capacity;
};

struct connection {
    int fd;
    bool validated, waiting, broken;
    bool throttled; /* requests are left because too many replies are unread */
    struct buffer in, out;
};

struct cairn__store_server {
    int listener, wake;
    pthread_t thread;
    void *pairs; /* tsearch tree of struct pair */
    size_t num_pairs;
    bool changed; /* since waiting connections were last looked at */
    struct connection **connections;
    size_t num_connections, connections_capacity;
    struct pollfd *polls; /* wake, listener, connections */
    size_t polls_capacity;
};

/* ---- buffers ---- */

static size_t pending(const struct buffer *b) {
    return b->end - b->begin;
}

static cairn_status reserve(struct buffer *b, size_t room) {
    if (b->capacity - b->end >= room) return CAIRN_OK;
    if (b->begin) {
        memmove(b->data, b->data + b->begin, pending(b));
        b->end -= b->begin;
        b->begin = 0;
    }
    return cairn__grow((void **)&b->data, &b->capacity, b->end + room, 1);
}

static void reply(struct connection *c, const void *data, size_t nbytes) {
    if (c->broken || reserve(&c->out, nbytes) != CAIRN_OK) {
        c->broken = true;
        return;
    }
    if (nbytes) memcpy(c->out.data + c->out.end, data, nbytes);
    c->out.end += nbytes;
}

static void reply_u8(struct connection *c, uint8_t value) {
    reply(c, &value, sizeof(value));
}

static void reply_i64(struct connection *c, int64_t value) {
    reply(c, &value, sizeof(value));
}

static void reply_blob(struct connection *c, struct blob b) {
    uint64_t nbytes = b.nbytes;
    reply(c, &nbytes, sizeof(nbytes));
    reply(c, b.data, b.nbytes);
}

/* ---- requests as they lie in the input ---- */

enum verdict { COMPLETE, PARTIAL, BAD, UNANSWERED /* a WAIT for later */ };

struct reader {
    const uint8_t *at, *end;
    enum verdict verdict;
};

static void take(struct reader *r, void *value, size_t nbytes) {
    memset(value, 0, nbytes);
    if (r->verdict == COMPLETE && (size_t)(r->end - r->at) < nbytes) r->verdict = PARTIAL;
    if (r->verdict != COMPLETE) return;
    memcpy(value, r->at, nbytes);
    r->at += nbytes;
}

static struct blob take_blob(struct reader *r, size_t limit) {
    uint64_t nbytes = 0;
    take(r, &nbytes, sizeof(nbytes));
    if (r->verdict == COMPLETE && nbytes > limit) r->verdict = BAD;
    if (r->verdict == COMPLETE && (uint64_t)(r->end - r->at) < nbytes) r->verdict = PARTIAL;
    if (r->verdict != COMPLETE) return (struct blob){NULL, 0};
    struct blob b = {r->at, (size_t)nbytes};
    r->at += nbytes;
    return b;
}

static struct blob take_key(struct reader *r) {
    return take_blob(r, STORE_MAX_KEY);
}

static struct blob take_value(struct reader *r) {
    return take_blob(r, STORE_MAX_VALUE);
}

static uint64_t take_count(struct reader *r) {
    uint64_t count = 0;
    take(r, &count, sizeof(count));
    if (count > STORE_MAX_KEYS) r->verdict = BAD;
    return r->verdict == COMPLETE ? count : 0;
}

/* ---- keys and values ---- */

static int compare_pairs(const void *a, const void *b) {
    const struct blob *x = &((const struct pair *)a)->key, *y = &((const struct pair *)b)->key;
    if (x->nbytes != y->nbytes) return x->nbytes < y->nbytes ? -1 : 1;
    return x->nbytes ? memcmp(x->data, y->data, x->nbytes) : 0;
}

static struct pair *find(const struct cairn__store_server *s, struct blob key) {
    struct pair wanted = {.key = key};
    struct pair **found = tfind(&wanted, &s->pairs, compare_pairs);
    return found ? *found : NULL;
}

static void free_pair(void *entry) {
    cairn__free(((struct pair *)entry)->value);
    cairn__free(entry);
}

static struct blob value_of(const struct pair *e) {
    return e ? (struct blob){e->value, e->nbytes} : (struct blob){NULL, 0};
}

static struct pair *insert(struct cairn__store_server *s, struct blob key) {
    struct pair *e = NULL;
    if (cairn__calloc(1, sizeof(*e) + key.nbytes, (void **)&e) != CAIRN_OK) return NULL;
    memcpy(e + 1, key.data, key.nbytes);
    e->key = (struct blob){(uint8_t *)(e + 1), key.nbytes};
    if (!tsearch(e, &s->pairs, compare_pairs)) {
        cairn__free(e);
        return NULL;
    }
    s->num_pairs++;
    return e;
}

static enum verdict append(struct cairn__store_server *s, struct blob key, struct blob value, bool truncate) {
    struct pair *e = find(s, key);
    if (!e) e = insert(s, key);
    if (!e) return BAD;
    size_t kept = truncate ? 0 : e->nbytes;
    if (kept + value.nbytes > STORE_MAX_VALUE) return BAD;
    if (cairn__grow((void **)&e->value, &e->capacity, kept + value.nbytes, 1) != CAIRN_OK) return BAD;
    if (value.nbytes) memcpy(e->value + kept, value.data, value.nbytes);
    e->nbytes = kept + value.nbytes;
    s->changed = true;
    return COMPLETE;
}

static enum verdict assign(struct cairn__store_server *s, struct blob key, struct blob value) {
    return append(s, key, value, true);
}

/* ---- one function per op ---- */

static enum verdict on_validate(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    (void)s;
    uint32_t magic = 0;
    take(r, &magic, sizeof(magic));
    if (r->verdict == COMPLETE && magic != STORE_MAGIC) return BAD;
    c->validated = r->verdict == COMPLETE;
    return r->verdict;
}

static enum verdict on_set(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    (void)c;
    struct blob key = take_key(r), value = take_value(r);
    return r->verdict == COMPLETE ? assign(s, key, value) : r->verdict;
}

static enum verdict on_compare_set(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    struct blob key = take_key(r), expected = take_value(r), desired = take_value(r);
    if (r->verdict != COMPLETE) return r->verdict;
    struct pair *e = find(s, key);
    bool equal = e ? e->nbytes == expected.nbytes && (!e->nbytes || !memcmp(e->value, expected.data, e->nbytes))
                   : expected.nbytes == 0;
    if (equal && assign(s, key, desired) != COMPLETE) return BAD;
    reply_blob(c, equal ? desired : e ? value_of(e) : expected);
    return COMPLETE;
}

static enum verdict on_get(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    struct blob key = take_key(r);
    if (r->verdict == COMPLETE) reply_blob(c, value_of(find(s, key)));
    return r->verdict;
}

static bool parse_i64(struct blob text, int64_t *value) {
    char digits[24] = "";
    if (text.nbytes == 0 || text.nbytes >= sizeof(digits)) return false;
    memcpy(digits, text.data, text.nbytes);
    char *end = NULL;
    *value = strtoll(digits, &end, 10);
    return end == digits + text.nbytes;
}

static enum verdict on_add(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    struct blob key = take_key(r);
    int64_t delta = 0, old = 0;
    take(r, &delta, sizeof(delta));
    if (r->verdict != COMPLETE) return r->verdict;
    const struct pair *e = find(s, key);
    if (e && !parse_i64(value_of(e), &old)) return BAD;
    int64_t sum = (int64_t)((uint64_t)old + (uint64_t)delta);
    char text[24];
    int length = snprintf(text, sizeof(text), "%" PRId64, sum);
    if (assign(s, key, (struct blob){(const uint8_t *)text, (size_t)length}) != COMPLETE) return BAD;
    reply_i64(c, sum);
    return COMPLETE;
}

static bool all_present(struct cairn__store_server *s, struct reader *r) {
    bool present = true;
    for (uint64_t n = take_count(r); n > 0 && r->verdict == COMPLETE; n--) {
        struct blob key = take_key(r);
        present = r->verdict == COMPLETE && present && find(s, key);
    }
    return present;
}

static enum verdict on_check(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    bool present = all_present(s, r);
    if (r->verdict == COMPLETE) reply_u8(c, present ? STORE_READY : STORE_NOT_READY);
    return r->verdict;
}

static enum verdict on_wait(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    bool present = all_present(s, r);
    if (r->verdict != COMPLETE) return r->verdict;
    if (!present) return UNANSWERED;
    reply_u8(c, STORE_STOP_WAITING);
    return COMPLETE;
}

static enum verdict on_getnumkeys(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    reply_i64(c, (int64_t)s->num_pairs);
    return r->verdict;
}

static enum verdict on_delete(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    struct blob key = take_key(r);
    if (r->verdict != COMPLETE) return r->verdict;
    struct pair *e = find(s, key);
    if (e) {
        tdelete(e, &s->pairs, compare_pairs);
        free_pair(e);
        s->num_pairs--;
    }
    reply_i64(c, e ? 1 : 0);
    return COMPLETE;
}

static enum verdict on_append(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    (void)c;
    struct blob key = take_key(r), value = take_value(r);
    return r->verdict == COMPLETE ? append(s, key, value, false) : r->verdict;
}

static enum verdict on_multi_get(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    struct reader again = *r;
    uint64_t count = take_count(r);
    size_t total = 0;
    for (uint64_t i = 0; i < count && r->verdict == COMPLETE; i++) {
        struct blob key = take_key(r);
        if (r->verdict == COMPLETE) total += value_of(find(s, key)).nbytes;
        if (total > STORE_MAX_REQUEST) return BAD;
    }
    if (r->verdict != COMPLETE) return r->verdict;
    take_count(&again);
    for (uint64_t i = 0; i < count; i++) reply_blob(c, value_of(find(s, take_key(&again))));
    return COMPLETE;
}

static enum verdict on_multi_set(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    (void)c;
    struct reader again = *r;
    uint64_t count = take_count(r);
    for (uint64_t i = 0; i < count && r->verdict == COMPLETE; i++) {
        take_key(r);
        take_value(r);
    }
    if (r->verdict != COMPLETE) return r->verdict;
    take_count(&again);
    enum verdict verdict = COMPLETE;
    for (uint64_t i = 0; i < count && verdict == COMPLETE; i++) {
        struct blob key = take_key(&again);
        verdict = assign(s, key, take_value(&again));
    }
    return verdict;
}

/* Reached only without a WAIT before it: torch's server answers that too. */
static enum verdict on_cancel_wait(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    (void)s;
    reply_u8(c, STORE_WAIT_CANCELED);
    return r->verdict;
}

static enum verdict on_ping(struct cairn__store_server *s, struct connection *c, struct reader *r) {
    (void)s;
    uint32_t nonce = 0;
    take(r, &nonce, sizeof(nonce));
    if (r->verdict == COMPLETE) reply(c, &nonce, sizeof(nonce));
    return r->verdict;
}

typedef enum verdict (*op_fn)(struct cairn__store_server *s, struct connection *c, struct reader *r);

static const op_fn ops[] = {
    [STORE_VALIDATE] = on_validate,
    [STORE_SET] = on_set,
    [STORE_COMPARE_SET] = on_compare_set,
    [STORE_GET] = on_get,
    [STORE_ADD] = on_add,
    [STORE_CHECK] = on_check,
    [STORE_WAIT] = on_wait,
    [STORE_GETNUMKEYS] = on_getnumkeys,
    [STORE_DELETE_KEY] = on_delete,
    [STORE_APPEND] = on_append,
    [STORE_MULTI_GET] = on_multi_get,
    [STORE_MULTI_SET] = on_multi_set,
    [STORE_CANCEL_WAIT] = on_cancel_wait,
    [STORE_PING] = on_ping,
};

/* ---- connections ---- */

static enum verdict run_one(struct cairn__store_server *s, struct connection *c) {
    const uint8_t *begin = c->in.data + c->in.begin;
    struct reader r = {begin + 1, c->in.data + c->in.end, COMPLETE};
    uint8_t op = *begin;
    if (op >= sizeof(ops) / sizeof(ops[0]) || (op == STORE_VALIDATE) == c->validated) return BAD;
    enum verdict verdict = ops[op](s, c, &r);
    if (verdict == UNANSWERED && r.at < r.end && *r.at == STORE_CANCEL_WAIT) {
        r.at++;
        reply_u8(c, STORE_WAIT_CANCELED);
        verdict = COMPLETE;
    }
    if (verdict == COMPLETE) c->in.begin += (size_t)(r.at - begin);
    return verdict;
}

static void run(struct cairn__store_server *s, struct connection *c) {
    enum verdict verdict = COMPLETE;
    while (verdict == COMPLETE && !c->broken && pending(&c->in) && pending(&c->out) < STORE_MAX_REQUEST)
        verdict = run_one(s, c);
    c->waiting = verdict == UNANSWERED;
    c->throttled = verdict == COMPLETE && pending(&c->in);
    if (verdict == BAD || (verdict == PARTIAL && pending(&c->in) > STORE_MAX_REQUEST)) c->broken = true;
    if (!pending(&c->in)) c->in.begin = c->in.end = 0;
}

static void receive(struct connection *c) {
    if (reserve(&c->in, CHUNK) != CAIRN_OK) {
        c->broken = true;
        return;
    }
    ssize_t got = recv(c->fd, c->in.data + c->in.end, c->in.capacity - c->in.end, 0);
    if (got > 0) c->in.end += (size_t)got;
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) c->broken = true;
}

static void flush(struct connection *c) {
    while (pending(&c->out) && !c->broken) {
        ssize_t sent = send(c->fd, c->out.data + c->out.begin, pending(&c->out), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) return;
        if (sent < 0) c->broken = true;
        if (sent > 0) c->out.begin += (size_t)sent;
    }
    if (!pending(&c->out)) c->out.begin = c->out.end = 0;
}

static void deliver(struct cairn__store_server *s, struct connection *c) {
    flush(c);
    while (c->throttled && !c->broken && pending(&c->out) < STORE_MAX_REQUEST) {
        run(s, c);
        flush(c);
    }
}

static void end_connection(struct connection *c) {
    close(c->fd);
    cairn__free(c->in.data);
    cairn__free(c->out.data);
    cairn__free(c);
}

static cairn_status add_connection(struct cairn__store_server *s, int fd) {
    struct connection *c = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&s->connections, &s->connections_capacity, s->num_connections + 1, sizeof(void *)));
    TRY(cairn__calloc(1, sizeof(*c), (void **)&c));
    c->fd = fd;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    s->connections[s->num_connections++] = c;
    return CAIRN_OK;
out:
    close(fd);
    return st;
}

/* False where the process has no descriptor left: the caller then pauses instead of spinning on the listener. */
static bool accept_all(struct cairn__store_server *s) {
    while (s->num_connections < STORE_MAX_CONNECTIONS) {
        int fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
        if (add_connection(s, fd) != CAIRN_OK) return false;
    }
    return true;
}

static void drop_broken(struct cairn__store_server *s) {
    size_t kept = 0;
    for (size_t i = 0; i < s->num_connections; i++) {
        struct connection *c = s->connections[i];
        if (c->broken) {
            end_connection(c);
        } else {
            s->connections[kept++] = c;
        }
    }
    s->num_connections = kept;
}

/* A request behind an unread reply, or behind a WAIT, stays with its sender once it fills the input. */
static short wanted_events(const struct connection *c) {
    bool full = pending(&c->in) > STORE_MAX_REQUEST || pending(&c->out) >= STORE_MAX_REQUEST;
    return (short)((full ? 0 : POLLIN) | (pending(&c->out) ? POLLOUT : 0));
}

static cairn_status fill_polls(struct cairn__store_server *s, bool accepting) {
    cairn_status st =
        cairn__grow((void **)&s->polls, &s->polls_capacity, s->num_connections + 2, sizeof(struct pollfd));
    if (st != CAIRN_OK) return st;
    accepting = accepting && s->num_connections < STORE_MAX_CONNECTIONS;
    s->polls[0] = (struct pollfd){.fd = s->wake, .events = POLLIN};
    s->polls[1] = (struct pollfd){.fd = s->listener, .events = accepting ? POLLIN : 0};
    for (size_t i = 0; i < s->num_connections; i++) {
        const struct connection *c = s->connections[i];
        s->polls[i + 2] = (struct pollfd){.fd = c->fd, .events = wanted_events(c)};
    }
    return CAIRN_OK;
}

static void wake_waiting(struct cairn__store_server *s) {
    while (s->changed) {
        s->changed = false;
        for (size_t i = 0; i < s->num_connections; i++) {
            if (s->connections[i]->waiting) run(s, s->connections[i]);
        }
    }
}

static void handle_events(struct cairn__store_server *s) {
    for (size_t i = 0; i < s->num_connections; i++) {
        struct connection *c = s->connections[i];
        short events = s->polls[i + 2].revents;
        if (events & POLLIN) {
            receive(c);
        } else if (events & (POLLERR | POLLHUP | POLLNVAL)) {
            c->broken = true;
        }
        if (events) run(s, c);
    }
    do {
        wake_waiting(s);
        for (size_t i = 0; i < s->num_connections; i++) deliver(s, s->connections[i]);
    } while (s->changed);
    drop_broken(s);
}

static void *serve(void *argument) {
    struct cairn__store_server *s = argument;
    bool accepting = true;
    for (;;) {
        bool polled = fill_polls(s, accepting) == CAIRN_OK;
        int events = polled ? poll(s->polls, s->num_connections + 2, accepting ? -1 : BUSY_RETRY_MS) : 0;
        if (!polled) usleep(BUSY_RETRY_MS * 1000);
        if (events < 0 || !polled) continue;
        if (s->polls[0].revents) return NULL;
        handle_events(s);
        accepting = s->polls[1].revents || !accepting ? accept_all(s) : true;
    }
}

/* ---- starting and stopping ---- */

static int listen_on(int family, int port) {
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_any};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    bool is_six = family == AF_INET6;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (is_six) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
    struct sockaddr *address = is_six ? (struct sockaddr *)&six : (struct sockaddr *)&four;
    if (bind(fd, address, is_six ? sizeof(six) : sizeof(four)) == 0 && listen(fd, BACKLOG) == 0) return fd;
    int cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

static cairn_status open_listener(int port, int *listener, int *bound_port) {
    int fd = listen_on(AF_INET6, port);
    if (fd < 0 && errno != EADDRINUSE) fd = listen_on(AF_INET, port);
    REQUIRE(fd >= 0 || errno != EADDRINUSE, CAIRN_ESYSTEM,
            "port %d is in use by another program; choose another MASTER_PORT or let cairn-run pick one", port);
    if (fd < 0) return cairn__fail_errno(errno, "the store cannot listen on port %d", port);
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        int cause = errno;
        close(fd);
        return cairn__fail_errno(cause, "the store cannot tell its port");
    }
    *bound_port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                      : ((struct sockaddr_in *)&address)->sin_port);
    *listener = fd;
    return CAIRN_OK;
}

/* Signals belong to the program's own threads. */
static cairn_status start_thread(struct cairn__store_server *s) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&s->thread, NULL, serve, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return cairn__fail_errno(failed, "the store's thread cannot be started");
    pthread_setname_np(s->thread, "cairn-store");
    return CAIRN_OK;
}

static void release(struct cairn__store_server *s) {
    for (size_t i = 0; i < s->num_connections; i++) end_connection(s->connections[i]);
    tdestroy(s->pairs, free_pair);
    if (s->listener >= 0) close(s->listener);
    if (s->wake >= 0) close(s->wake);
    cairn__free(s->connections);
    cairn__free(s->polls);
    cairn__free(s);
}

cairn_status cairn__store_serve(int port, struct cairn__store_server **out, int *bound_port) {
    REQUIRE(port >= 0 && port <= 65535, CAIRN_EINVAL, "%d is no port; ports are numbers in [0, 65535]", port);
    struct cairn__store_server *s = NULL;
    cairn_status st = cairn__calloc(1, sizeof(*s), (void **)&s);
    if (st != CAIRN_OK) return st;
    int bound = 0;
    s->listener = -1;
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake < 0) TRY(cairn__fail_errno(errno, "the store cannot make an event descriptor"));
    TRY(open_listener(port, &s->listener, &bound));
    TRY(start_thread(s));
    *out = s;
    if (bound_port) *bound_port = bound;
    return CAIRN_OK;
out:
    release(s);
    return st;
}

void cairn__store_stop(struct cairn__store_server **server) {
    struct cairn__store_server *s = *server;
    if (!s) return;
    uint64_t one = 1;
    ssize_t written = write(s->wake, &one, sizeof(one));
    (void)written; /* an eventfd that was never read has room */
    pthread_join(s->thread, NULL);
    release(s);
    *server = NULL;
}
