/* A TCP store that behaves like PyTorch 1.13's, including its flaws, as seen in the transcripts: one thread, which
 * blocks until a request is complete before it serves other clients; numbers without VALIDATE; it hangs up without an
 * error message on an unknown op, on GET of a missing key, on ADD to a text, and on an impossible string length. Only
 * SET and ADD wake waiting clients. Replies are sent in pieces. Requests that a client must not send to such a store
 * are counted. */
#ifndef TESTS_DIST_OLD_STORE_H
#define TESTS_DIST_OLD_STORE_H

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/store/table.h"

enum { OLD_MOST = 64, OLD_STRING = 9 << 20 };

struct old_waiter {
    int fd;
    char *keys[8];
    size_t lengths[8], n;
};

struct old_store {
    int port, listener, stop[2];
    pthread_t thread;
    struct cairn__table table;
    int fds[OLD_MOST], num_fds;
    struct old_waiter waiters[OLD_MOST];
    int num_waiters;
    atomic_int torn;  /* requests that arrived in several pieces */
    atomic_int vast;  /* lengths that would have crashed PyTorch's server by an allocation */
    atomic_int stale; /* connections with a request during an open WAIT */
};

/* ---- reading; false = hang up ---- */

static inline bool old_read(struct old_store *o, int fd, void *data, size_t nbytes) {
    int there = 0;
    ioctl(fd, FIONREAD, &there);
    if ((size_t)there < nbytes && nbytes < 4096) o->torn++;
    return nbytes == 0 || recv(fd, data, nbytes, MSG_WAITALL) == (ssize_t)nbytes;
}

static inline bool old_string(struct old_store *o, int fd, char **text, size_t *length) {
    uint64_t n = 0;
    *text = NULL;
    if (!old_read(o, fd, &n, sizeof(n)) || n >> 47) return false; /* std::length_error, std::bad_alloc */
    if (n > OLD_STRING) o->vast++;
    if (n > OLD_STRING) return false;
    *text = malloc(n + 1);
    *length = n;
    if (!old_read(o, fd, *text, n)) return false;
    (*text)[n] = '\0';
    return true;
}

/* ---- replies, sent in pieces ---- */

static inline void old_say(int fd, const void *data, size_t nbytes) {
    const size_t first = nbytes > 1 ? nbytes / 2 : nbytes;
    send(fd, data, first, MSG_NOSIGNAL);
    if (nbytes > first) send(fd, (const char *)data + first, nbytes - first, MSG_NOSIGNAL);
}

static inline void old_say_vector(int fd, const void *data, size_t nbytes) {
    uint64_t n = nbytes;
    old_say(fd, &n, sizeof(n));
    for (size_t done = 0; done < nbytes;) {
        ssize_t sent = send(fd, (const char *)data + done, nbytes - done, MSG_NOSIGNAL);
        if (sent <= 0) return;
        done += (size_t)sent;
    }
}

static inline struct cairn__blob old_blob(const char *text, size_t n) {
    return (struct cairn__blob){(const uint8_t *)text, n};
}

static inline bool old_has_all(const struct old_store *o, const struct old_waiter *w) {
    struct cairn__blob ignored;
    for (size_t i = 0; i < w->n; i++) {
        if (!cairn__table_get(&o->table, old_blob(w->keys[i], w->lengths[i]), &ignored)) return false;
    }
    return true;
}

static inline void old_drop_waiter(struct old_store *o, int i) {
    for (size_t k = 0; k < o->waiters[i].n; k++) free(o->waiters[i].keys[k]);
    o->waiters[i] = o->waiters[--o->num_waiters];
}

static inline void old_wake(struct old_store *o) {
    for (int i = 0; i < o->num_waiters; i++) {
        if (!old_has_all(o, &o->waiters[i])) continue;
        old_say(o->waiters[i].fd, "", 1);
        old_drop_waiter(o, i--);
    }
}

/* ---- requests ---- */

static inline bool old_check_or_wait(struct old_store *o, int fd, bool wait) {
    struct old_waiter w = {.fd = fd};
    uint64_t n = 0;
    bool ok = old_read(o, fd, &n, sizeof(n)) && n <= 8;
    for (; ok && w.n < n; w.n++) ok = old_string(o, fd, &w.keys[w.n], &w.lengths[w.n]);
    const bool present = ok && old_has_all(o, &w);
    if (ok && (present || !wait)) old_say(fd, present ? "\0" : "\1", 1);
    if (ok && wait && !present && o->num_waiters < OLD_MOST) {
        o->waiters[o->num_waiters++] = w;
        return true;
    }
    for (size_t i = 0; i < w.n; i++) free(w.keys[i]);
    return ok;
}

static inline bool old_compare_set(struct old_store *o, int fd, const char *key, size_t nkey) {
    char *expected = NULL, *desired = NULL;
    size_t nexpected = 0, ndesired = 0;
    struct cairn__blob now;
    bool ok = old_string(o, fd, &expected, &nexpected) && old_string(o, fd, &desired, &ndesired) &&
              cairn__table_compare_set(&o->table, old_blob(key, nkey), old_blob(expected, nexpected),
                                       old_blob(desired, ndesired), &now) == CAIRN_OK;
    if (ok) old_say_vector(fd, now.data, now.nbytes);
    free(expected);
    free(desired);
    return ok;
}

static inline bool old_set(struct old_store *o, int fd, const char *key, size_t nkey) {
    char *value = NULL;
    size_t nvalue = 0;
    bool ok = old_string(o, fd, &value, &nvalue) &&
              cairn__table_set(&o->table, old_blob(key, nkey), old_blob(value, nvalue)) == CAIRN_OK;
    if (ok) old_wake(o);
    free(value);
    return ok;
}

static inline bool old_add(struct old_store *o, int fd, const char *key, size_t nkey) {
    int64_t delta = 0, sum = 0;
    if (!old_read(o, fd, &delta, sizeof(delta))) return false;
    if (cairn__table_add(&o->table, old_blob(key, nkey), delta, &sum) != CAIRN_OK) return false;
    old_say(fd, &sum, sizeof(sum));
    old_wake(o);
    return true;
}

static inline bool old_run(struct old_store *o, int fd) {
    char *key = NULL;
    size_t nkey = 0;
    uint8_t op = 0;
    if (recv(fd, &op, 1, 0) != 1) return false;
    for (int i = 0; i < o->num_waiters; i++) o->stale += o->waiters[i].fd == fd;
    if (op == 4 || op == 5) return old_check_or_wait(o, fd, op == 5);
    if (op == 6) {
        int64_t count = (int64_t)o->table.num_keys;
        old_say(fd, &count, sizeof(count));
        return true;
    }
    bool ok = op <= 8 && old_string(o, fd, &key, &nkey);
    struct cairn__blob held = {NULL, 0};
    if (ok && op == 0) ok = old_set(o, fd, key, nkey);
    if (ok && op == 1) ok = old_compare_set(o, fd, key, nkey);
    if (ok && op == 2) ok = cairn__table_get(&o->table, old_blob(key, nkey), &held);
    if (ok && op == 2) old_say_vector(fd, held.data, held.nbytes);
    if (ok && op == 3) ok = old_add(o, fd, key, nkey);
    if (ok && op == 7) old_say(fd, "\3", 1);
    if (ok && op == 8) {
        int64_t deleted = cairn__table_delete(&o->table, old_blob(key, nkey));
        old_say(fd, &deleted, sizeof(deleted));
    }
    free(key);
    return ok;
}

static inline void old_hang_up(struct old_store *o, int i) {
    for (int w = 0; w < o->num_waiters; w++) {
        if (o->waiters[w].fd == o->fds[i]) old_drop_waiter(o, w--);
    }
    close(o->fds[i]);
    o->fds[i] = o->fds[--o->num_fds];
}

static inline void old_accept(struct old_store *o) {
    int fd = accept4(o->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 20}, sizeof(struct timeval));
    if (o->num_fds == OLD_MOST) {
        close(fd);
    } else {
        o->fds[o->num_fds++] = fd;
    }
}

static inline void *old_main(void *argument) {
    struct old_store *o = argument;
    for (;;) {
        struct pollfd p[OLD_MOST + 2] = {{.fd = o->stop[0], .events = POLLIN}, {.fd = o->listener, .events = POLLIN}};
        const int n = o->num_fds;
        for (int i = 0; i < n; i++) p[i + 2] = (struct pollfd){.fd = o->fds[i], .events = POLLIN};
        if (poll(p, (nfds_t)n + 2, -1) < 0) continue;
        if (p[0].revents) return NULL;
        for (int i = n - 1; i >= 0; i--) {
            if (p[i + 2].revents && !old_run(o, o->fds[i])) old_hang_up(o, i);
        }
        if (p[1].revents) old_accept(o);
    }
}

static inline int old_listen(int *port) {
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t length = sizeof(a);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(fd, 64) != 0) return -1;
    getsockname(fd, (struct sockaddr *)&a, &length);
    *port = ntohs(a.sin_port);
    return fd;
}

static inline struct old_store *old_start(void) {
    struct old_store *o = calloc(1, sizeof(*o));
    o->listener = old_listen(&o->port);
    if (o->listener < 0 || pipe(o->stop) != 0 || pthread_create(&o->thread, NULL, old_main, o) != 0) abort();
    return o;
}

static inline void old_end(struct old_store *o) {
    if (!o) return;
    close(o->stop[1]);
    pthread_join(o->thread, NULL);
    while (o->num_fds) old_hang_up(o, 0);
    close(o->listener);
    close(o->stop[0]);
    cairn__table_clear(&o->table);
    free(o);
}

#endif
