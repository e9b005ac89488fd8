/* One thread around epoll moves bytes from sockets into sessions and back. When connections or descriptors run out, it
 * reads once more from the oldest connection that never sent a request, and closes it; if there is none, new
 * connections stay in the kernel's queue, which is checked again a little later. */
#include "rendezvous/store/server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/descriptors.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/printable.h"
#include "core/status.h"
#include "core/trace.h"
#include "rendezvous/address.h"
#include "rendezvous/owner.h"
#include "rendezvous/store/session.h"
#include "rendezvous/store/wire.h"

enum {
    CHUNK = 64 << 10,
    BACKLOG = 4096,
    BUSY_RETRY_MS = 100,
    BATCH = 64,
    ACCEPTS = 256, /* accepted before other connections are served */
    NAMED = 64,    /* different warnings about strangers that are logged; further ones are not */
    PROOF_PATIENCE_S = 10,
    SWEEP_MS = 1000, /* at most, between two searches for connections whose proof is late */
    LISTEN_TRIES = 20,
    LISTEN_PAUSE_MS = 8 /* at most, between two attempts */
};

struct connection {
    struct cairn__session session; /* must be the first member */
    struct connection *next, **link;
    int fd;
    bool known; /* it is in the list `known`: it has sent a request */
    bool is_guest;
    uint32_t events;
    uint64_t deadline_ns;         /* for its proof; 0 = none is needed */
    struct sockaddr_storage peer; /* as accepted: the kernel forgets it when the peer resets the connection */
    socklen_t peer_length;
};

/* Oldest first. */
struct list {
    struct connection *first, **end;
};

struct cairn__store_server {
    int listener, wake, epoll;
    int kernel; /* for cairn__owner_of_peer */
    bool started, paused /* accepting */, logged_lack;
    pid_t process; /* the one that called cairn__store_start */
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the fields below, except while the thread sleeps */
    struct cairn__sessions sessions;
    bool has_guests, is_open; /* as the door's */
    struct list strangers, known;
    size_t num_connections, num_guests;
    uint64_t patience_ns;  /* time from a connection to its proof */
    uint64_t swept_ns;     /* when connections were last searched; 0 = none has a deadline for its proof */
    uint64_t named[NAMED]; /* hashes of warnings that were written */
    size_t num_named;
    bool (*may_end)(void *ctx); /* set if the server is detached */
    void *ctx;
    uint8_t chunk[CHUNK];
};

/* ---- lists ---- */

static void enlist(struct list *l, struct connection *c) {
    c->next = NULL;
    c->link = l->end;
    *l->end = c;
    l->end = &c->next;
}

static void unlist(struct list *l, struct connection *c) {
    *c->link = c->next;
    if (c->next) {
        c->next->link = c->link;
    } else {
        l->end = c->link;
    }
}

/* ---- one connection ---- */

/* Whether to log this warning: each reason of each address is logged once, so that strangers cannot fill a log. */
static bool is_news(struct cairn__store_server *s, const char *host, const char *why) {
    const uint64_t hash = cairn__hash_text(cairn__hash_text(CAIRN__HASH_START, host), why);
    for (size_t i = 0; i < s->num_named; i++) {
        if (s->named[i] == hash) return false;
    }
    if (s->num_named == NAMED) return false;
    s->named[s->num_named++] = hash;
    if (s->num_named == NAMED) {
        cairn__log(CAIRN_LOG_WARNING, "the store closed connections for %d reasons by now; further ones are not named",
                   NAMED);
    }
    return true;
}

/* Warns only of programs that have sent a valid request, or were refused, not of a port scan. */
static void tell_why(struct cairn__store_server *s, struct connection *c) {
    char host[64] = "an unknown address", port[16] = "?";
    if (!c->session.why[0]) return;
    (void)getnameinfo((const struct sockaddr *)&c->peer, c->peer_length, host, sizeof(host), port, sizeof(port),
                      NI_NUMERICHOST | NI_NUMERICSERV);
    char why[2 * sizeof(c->session.why)]; /* it may quote a key */
    cairn__write_printable(why, sizeof(why), c->session.why, false);
    const bool is_warning = (c->known || c->session.refused) && is_news(s, host, c->known ? "" : why);
    cairn__log(is_warning ? CAIRN_LOG_WARNING : CAIRN_LOG_DEBUG, "the store closed the connection from %s port %s: %s",
               host, port, why);
}

/* Shuts the connection down before closing it: a child process may hold the socket, too, so closing alone would neither
 * notify the peer nor remove the socket from epoll. */
static void end_connection(struct cairn__store_server *s, struct connection *c) {
    tell_why(s, c);
    cairn__session_close(&s->sessions, &c->session);
    unlist(c->known ? &s->known : &s->strangers, c);
    (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    (void)shutdown(c->fd, SHUT_RDWR);
    close(c->fd);
    s->num_guests -= c->is_guest;
    s->num_connections--;
    cairn__free(c);
}

static void receive(struct cairn__store_server *s, struct connection *c) {
    const ssize_t got = recv(c->fd, s->chunk, sizeof(s->chunk), 0);
    if (got > 0) cairn__session_feed(&s->sessions, &c->session, s->chunk, (size_t)got);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) c->session.ended = true;
}

static void flush(struct cairn__store_server *s, struct connection *c) {
    for (;;) {
        const struct cairn__blob out = cairn__session_output(&c->session);
        if (out.nbytes == 0) return;
        const ssize_t sent = send(c->fd, out.data, out.nbytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN) c->session.ended = true;
        if (sent <= 0) return;
        cairn__session_sent(&s->sessions, &c->session, (size_t)sent);
    }
}

/* Sends pending output. Frees c if its session has ended. */
static void tend(struct cairn__store_server *s, struct connection *c) {
    flush(s, c);
    if (c->session.trust != CAIRN__TRUST_NONE) c->deadline_ns = 0;
    if (c->is_guest && c->session.trust != CAIRN__TRUST_GUEST) {
        c->is_guest = false;
        s->num_guests--;
    }
    if (c->session.proven && !c->known) {
        unlist(&s->strangers, c);
        enlist(&s->known, c);
        c->known = true;
    }
    if (c->session.ended) {
        end_connection(s, c);
        return;
    }
    const uint32_t events = (cairn__session_takes_input(&s->sessions, &c->session) ? EPOLLIN : 0u) |
                            (cairn__session_output(&c->session).nbytes ? EPOLLOUT : 0u);
    if (events == c->events) return;
    c->events = events;
    (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &(struct epoll_event){.events = events, .data.ptr = c});
}

static void tend_active(struct cairn__store_server *s) {
    for (struct cairn__session *next; (next = cairn__sessions_next(&s->sessions));) tend(s, (struct connection *)next);
}

static void handle(struct cairn__store_server *s, struct connection *c, uint32_t events) {
    if (events & EPOLLIN) {
        receive(s, c);
    } else if (events & (EPOLLERR | EPOLLHUP)) {
        c->session.ended = true;
    }
    tend(s, c);
}

/* ---- accepting ---- */

static enum cairn__trust trust_of(const struct cairn__store_server *s, int fd, unsigned *uid) {
    const bool has_secret = s->sessions.secret != NULL;
    switch (s->is_open ? CAIRN__OWNER_SAME : cairn__owner_of_peer(s->kernel, fd, uid)) {
    case CAIRN__OWNER_SAME:
        return CAIRN__TRUST_FULL;
    case CAIRN__OWNER_AWAY:
        return !has_secret ? CAIRN__TRUST_FULL : s->has_guests ? CAIRN__TRUST_GUEST : CAIRN__TRUST_NONE;
    case CAIRN__OWNER_OTHER:
    case CAIRN__OWNER_UNKNOWN:
        break;
    }
    return CAIRN__TRUST_NONE;
}

__attribute__((format(printf, 2, 3))) static void turn_away(struct connection *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->session.why, sizeof(c->session.why), format, args);
    va_end(args);
    c->session.refused = c->session.ended = true;
}

/* Frees c. */
static void turn_stranger_away(struct cairn__store_server *s, struct connection *c, unsigned uid) {
    char who[64];
    cairn__owner_describe(uid, who, sizeof(who));
    turn_away(c, "it is %s", who);
    c->session.refused = uid != CAIRN__NO_USER;
    end_connection(s, c);
}

/* Guests may take only half of the places, so the other half is left to clients that have proven themselves. */
static void count_guest(struct cairn__store_server *s, struct connection *c) {
    c->is_guest = true;
    if (++s->num_guests <= STORE_MAX_CONNECTIONS / 2) return;
    turn_away(c, "%d connections without proof are open already", STORE_MAX_CONNECTIONS / 2);
    end_connection(s, c);
}

static cairn_status add_connection(struct cairn__store_server *s, int fd, const struct sockaddr_storage *peer,
                                   socklen_t peer_length) {
    struct connection *c = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*c), (void **)&c));
    unsigned uid = 0;
    cairn__session_open(&c->session, trust_of(s, fd, &uid));
    c->fd = fd;
    c->peer = *peer;
    c->peer_length = peer_length;
    c->events = EPOLLIN;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = c}) != 0) {
        cairn__free(c);
        return cairn__fail_errno(errno, "the store cannot watch one more connection");
    }
    enlist(&s->strangers, c);
    s->num_connections++;
    if (c->session.trust == CAIRN__TRUST_GUEST) {
        count_guest(s, c);
    } else if (c->session.trust == CAIRN__TRUST_NONE && !s->sessions.secret) {
        turn_stranger_away(s, c, uid); /* there is no secret by which it could prove itself */
    } else if (c->session.trust == CAIRN__TRUST_NONE) {
        c->deadline_ns = cairn__now_ns() + s->patience_ns;
        s->swept_ns = s->swept_ns ? s->swept_ns : cairn__now_ns();
    }
out:
    return st;
}

/* Returns true if a connection was closed. Keeps a connection with a request that is not read yet. */
static bool drop_stranger(struct cairn__store_server *s) {
    const size_t before = s->num_connections;
    for (struct connection *c; s->num_connections == before && (c = s->strangers.first);) {
        receive(s, c);
        tend_active(s);
        if (s->num_connections == before && c == s->strangers.first) end_connection(s, c);
    }
    return s->num_connections < before;
}

/* Closes connections that missed the deadline of their proof, without a warning if they sent nothing. */
static void sweep(struct cairn__store_server *s) {
    const uint64_t now = cairn__now_ns();
    if (!s->swept_ns || now < s->swept_ns + SWEEP_MS * UINT64_C(1000000)) return;
    s->swept_ns = 0;
    for (struct connection *c = s->strangers.first, *next; c; c = next) {
        next = c->next;
        if (c->deadline_ns && now > c->deadline_ns) {
            end_connection(s, c);
        } else if (c->deadline_ns) {
            s->swept_ns = now;
        }
    }
}

/* To be checked before accept4, which reports a lack of descriptors even if no connection is pending. */
static bool someone_waits(const struct cairn__store_server *s) {
    return poll(&(struct pollfd){.fd = s->listener, .events = POLLIN}, 1, 0) > 0;
}

/* False if descriptors or memory have run out. */
static bool accept_one(struct cairn__store_server *s) {
    struct sockaddr_storage peer = {0};
    socklen_t length = sizeof(peer);
    const int fd = accept4(s->listener, (struct sockaddr *)&peer, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
    if (add_connection(s, fd, &peer, length) == CAIRN_OK) return true;
    close(fd);
    return false;
}

static void accept_some(struct cairn__store_server *s) {
    bool room = true;
    for (int i = 0; i < ACCEPTS && room && someone_waits(s); i++) {
        if (s->num_connections >= STORE_MAX_CONNECTIONS && !drop_stranger(s)) {
            room = false;
        } else if (!accept_one(s)) {
            room = drop_stranger(s) && accept_one(s);
        }
    }
    const bool lacks_more = !room && s->num_connections < STORE_MAX_CONNECTIONS; /* descriptors, or memory */
    if (lacks_more && !s->logged_lack && cairn__check_descriptors(1, "a connection to the store") != CAIRN_OK) {
        s->logged_lack = true;
        cairn__log(CAIRN_LOG_WARNING, "who connects to the store waits: %s", cairn_last_error());
    }
    if (room != s->paused) return;
    s->paused = !room;
    (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener,
                    &(struct epoll_event){.events = room ? EPOLLIN : 0u, .data.ptr = &s->listener});
}

/* ---- the thread ---- */

/* Returns false if the server is to stop. */
static bool handle_events(struct cairn__store_server *s, const struct epoll_event *events, int n) {
    bool accepting = s->paused;
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == &s->wake) {
            uint64_t count = 0;
            if (!s->may_end) return false;
            const ssize_t got = read(s->wake, &count, sizeof(count)); /* else epoll would report it forever */
            (void)got;
        } else if (events[i].data.ptr == &s->listener) {
            accepting = true;
        } else {
            handle(s, events[i].data.ptr, events[i].events);
        }
    }
    tend_active(s);
    sweep(s);
    if (accepting) accept_some(s);
    return true;
}

static void release(struct cairn__store_server *s);

/* may_end runs without the mutex: it may wait for a lock whose holder calls cairn__store_let_end. Pending connections
 * are accepted first. */
static bool is_over(struct cairn__store_server *s, bool (*may_end)(void *ctx), void *ctx) {
    return may_end && s->num_connections == 0 && !someone_waits(s) && may_end(ctx);
}

static void *serve(void *argument) {
    struct cairn__store_server *s = argument;
    struct epoll_event events[BATCH];
    for (bool going_on = true; going_on;) {
        const int n = epoll_wait(s->epoll, events, BATCH, s->paused ? BUSY_RETRY_MS : s->swept_ns ? SWEEP_MS : -1);
        pthread_mutex_lock(&s->mutex);
        going_on = handle_events(s, events, n);
        bool (*const may_end)(void *ctx) = s->may_end;
        void *const ctx = s->ctx;
        pthread_mutex_unlock(&s->mutex);
        if (!going_on || !is_over(s, may_end, ctx)) continue;
        release(s);
        return NULL;
    }
    return NULL;
}

/* ---- starting and stopping ---- */

/* Returns -1 with errno. *contended: bind succeeded and listen did not. */
static int try_to_listen(const struct addrinfo *a, bool *contended) {
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (a->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
    bool bound = bind(fd, a->ai_addr, a->ai_addrlen) == 0;
    if (bound && listen(fd, BACKLOG) == 0) return fd;
    int cause = errno;
    *contended = bound && cause == EADDRINUSE;
    close(fd);
    errno = cause;
    return -1;
}

/* Tries again on contention: if two processes listen at the same moment, Linux may refuse both, because each is marked
 * as listening before it checks for others. */
static int listen_on(const char *address, int port) {
    char service[16];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *a = NULL;
    bool contended = true;
    int fd = -1;
    snprintf(service, sizeof(service), "%d", port);
    if (getaddrinfo(address, service, &hints, &a) != 0) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    for (int i = 0; contended && i < LISTEN_TRIES; i++) {
        if (i > 0) poll(NULL, 0, (int)((cairn__now_ns() / 1000 + (uint64_t)getpid()) % LISTEN_PAUSE_MS));
        contended = false;
        fd = try_to_listen(a, &contended);
    }
    const int cause = errno;
    freeaddrinfo(a);
    errno = cause;
    return fd;
}

static cairn_status open_listener(const char *where, int port, int *listener, int *bound_port) {
    if (!where) where = "127.0.0.1";
    int fd = listen_on(where[0] ? where : "::", port);
    if (fd < 0 && !where[0] && errno != EADDRINUSE) fd = listen_on("0.0.0.0", port);
    REQUIRE(fd >= 0 || errno != EADDRINUSE, CAIRN_ESYSTEM,
            "port %d is in use by another program; choose another MASTER_PORT or let cairn-run pick one", port);
    if (fd < 0)
        return cairn__fail_errno(errno, "the store cannot listen on %s%sport %d", where, where[0] ? " " : "", port);
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        int cause = errno;
        close(fd);
        return cairn__fail_errno(cause, "the store cannot read its port");
    }
    *bound_port = cairn__address_port((const struct sockaddr *)&address);
    *listener = fd;
    return CAIRN_OK;
}

static cairn_status watch(struct cairn__store_server *s, int *fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = fd};
    if (*fd >= 0 && epoll_ctl(s->epoll, EPOLL_CTL_ADD, *fd, &event) == 0) return CAIRN_OK;
    return cairn__fail_errno(errno, "the store cannot wait for events");
}

void cairn__store_close_door(struct cairn__store_server *s) {
    if (s->started) (void)shutdown(s->listener, SHUT_RDWR); /* else a parent process may own it and start it later */
    if (s->listener >= 0) close(s->listener);
    s->listener = -1;
}

static void release(struct cairn__store_server *s) {
    while (s->strangers.first) end_connection(s, s->strangers.first);
    while (s->known.first) end_connection(s, s->known.first);
    cairn__sessions_clear(&s->sessions);
    cairn__store_close_door(s);
    if (s->wake >= 0) close(s->wake);
    if (s->epoll >= 0) close(s->epoll);
    if (s->kernel >= 0) close(s->kernel);
    pthread_mutex_destroy(&s->mutex);
    cairn__free(s);
}

static cairn_status make(struct cairn__store_server **out) {
    struct cairn__store_server *s = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*s), (void **)&s));
    pthread_mutex_init(&s->mutex, NULL);
    cairn__sessions_init(&s->sessions);
    s->strangers.end = &s->strangers.first;
    s->known.end = &s->known.first;
    s->listener = -1;
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->kernel = cairn__owner_open();
    *out = s;
out:
    return st;
}

cairn_status cairn__store_listen_at(const struct cairn__store_door *door, struct cairn__store_server **out,
                                    int *bound_port) {
    const int port = door->port;
    REQUIRE(port >= 0 && port <= 65535, CAIRN_EINVAL, "%d is not a port; ports are numbers in [0, 65535]", port);
    struct cairn__store_server *s = NULL;
    int bound = 0;
    cairn_status st = CAIRN_OK;
    TRY(make(&s));
    TRY(watch(s, &s->wake));
    TRY(open_listener(door->address, port, &s->listener, &bound));
    s->sessions.secret = door->secret;
    s->sessions.port = bound;
    s->patience_ns = (uint64_t)(1e9 * (door->proof_patience > 0 ? door->proof_patience : PROOF_PATIENCE_S));
    s->has_guests = door->has_guests;
    s->is_open = door->is_open;
    TRY(watch(s, &s->listener));
    *out = s;
    if (bound_port) *bound_port = bound;
    return CAIRN_OK;
out:
    if (s) release(s);
    return st;
}

/* The thread blocks all signals, so that the program's own threads handle them. */
cairn_status cairn__store_start(struct cairn__store_server *s) {
    REQUIRE(!s->started, CAIRN_ESTATE, "the store has been started");
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&s->thread, NULL, serve, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return cairn__fail_errno(failed, "the store's thread cannot be started");
    pthread_setname_np(s->thread, "cairn-store");
    s->started = true;
    s->process = getpid();
    return CAIRN_OK;
}

cairn_status cairn__store_serve_at(const struct cairn__store_door *door, struct cairn__store_server **out,
                                   int *bound_port) {
    struct cairn__store_server *s = NULL;
    int bound = 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__store_listen_at(door, &s, &bound));
    TRY(cairn__store_start(s));
    *out = s;
    if (bound_port) *bound_port = bound;
    return CAIRN_OK;
out:
    cairn__store_stop(&s);
    return st;
}

cairn_status cairn__store_listen(int port, struct cairn__store_server **out, int *bound_port) {
    return cairn__store_listen_at(&(struct cairn__store_door){.port = port}, out, bound_port);
}

cairn_status cairn__store_serve(int port, struct cairn__store_server **out, int *bound_port) {
    return cairn__store_serve_at(&(struct cairn__store_door){.port = port}, out, bound_port);
}

void cairn__store_stop(struct cairn__store_server **server) {
    struct cairn__store_server *s = *server;
    if (!s) return;
    *server = NULL;
    if (s->started && s->process != getpid()) return; /* a parent's; its thread was in an unknown state at the fork */
    uint64_t one = 1;
    ssize_t written = s->started ? write(s->wake, &one, sizeof(one)) : 0; /* else a fork would wake its parent's */
    (void)written;                                                        /* an eventfd that was never read takes it */
    if (s->started) pthread_join(s->thread, NULL);
    release(s);
}

void cairn__store_let_end(struct cairn__store_server *s, bool (*may_end)(void *ctx), void *ctx) {
    const uint64_t one = 1;
    pthread_mutex_lock(&s->mutex);
    if (!s->may_end) (void)pthread_detach(s->thread);
    s->may_end = may_end;
    s->ctx = ctx;
    const ssize_t written = write(s->wake, &one, sizeof(one));
    (void)written; /* an eventfd takes it, or is readable anyway */
    pthread_mutex_unlock(&s->mutex);
}

void cairn__store_keep_only(struct cairn__store_server *s, const char *kept) {
    pthread_mutex_lock(&s->mutex);
    cairn__table_keep(&s->sessions.table, (struct cairn__blob){(const uint8_t *)kept, strlen(kept)});
    pthread_mutex_unlock(&s->mutex);
}
