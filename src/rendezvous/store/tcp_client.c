/* The TCP store's calls in all dialects, and what differs between PyTorch's servers:
 *
 * - GET of a missing key closes the connection on some servers (1.13, and USE_LIBUV=0) and gets no answer from others.
 *   A key can vanish between WAIT and GET, so values are read with a COMPARE_SET that expects a random text: for a
 *   missing key that text comes back, and nothing is ever stored.
 * - WAIT cannot be cancelled on 1.13, so its late answer would be taken for that of another request; CHECK is repeated
 *   there instead.
 * - Some servers do not wake clients that wait for a key made by COMPARE_SET, so a WAIT is cancelled and renewed now
 *   and then.
 * - 1.13 has no APPEND: the value is read and written back under a key that serves as a lock. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "core/status.h"
#include "core/trace.h"
#include "rendezvous/address.h"
#include "rendezvous/store/tcp.h"

enum { WAIT_SLICE_MS = 1000, GRACE_MS = 500, FIRST_PAUSE_MS = 1, LAST_PAUSE_MS = 50 };

/* Awaited answers to a CANCEL_WAIT. */
enum { NO_ANSWER, FIRST_ANSWER, SECOND_ANSWER };

static const char APPEND_LOCK[] = "cairn/append";

static struct cairn__tcp_store *tcp(cairn_store *s) {
    return (struct cairn__tcp_store *)s;
}

static bool is_old(const struct cairn__tcp_store *s) {
    return s->dialect == CAIRN__STORE_1_13;
}

/* ---- answers of one byte ---- */

/* Replies of one byte have two possible values; any other means that the stream is out of order. */
static cairn_status receive_flag(struct cairn__tcp_store *s, uint8_t *flag) {
    cairn_status st = cairn__stream_receive(&s->stream, flag, 1);
    if (st != CAIRN_OK || *flag <= 1) return st;
    cairn__fail(CAIRN_EPEER, "the store at %s answered %d where 0 or 1 was expected; is this port another program's?",
                s->stream.name, *flag);
    return cairn__stream_break(&s->stream, CAIRN_EPEER);
}

/* Reads the answers to a CANCEL_WAIT that arrive before the deadline. *woken: the server had answered the WAIT before
 * it read the cancellation, so a STOP_WAITING comes first, and counts. */
static cairn_status settle(struct cairn__tcp_store *s, bool *woken) {
    cairn_status st = CAIRN_OK;
    *woken = false;
    while (s->cancelling) {
        uint8_t answer = STORE_WAIT_CANCELED;
        bool readable = false;
        TRY(cairn__stream_await(&s->stream, &readable));
        if (!readable) return CAIRN_OK;
        TRY(receive_flag(s, &answer));
        *woken = *woken || answer == STORE_STOP_WAITING;
        s->cancelling = s->cancelling == FIRST_ANSWER && answer == STORE_STOP_WAITING ? SECOND_ANSWER : NO_ANSWER;
    }
out:
    return st;
}

/* The caller of the cancelled wait has returned; its answers are read only so that they are not taken for those of the
 * next request. */
static cairn_status settle_before_asking(struct cairn__tcp_store *s) {
    bool ignored = false;
    cairn_status st = CAIRN_OK;
    TRY(settle(s, &ignored));
    REQUIRE(!s->cancelling, CAIRN_ETIMEOUT, "the store at %s has not answered for %g s; is its process stopped?",
            s->stream.name, s->stream.allowance);
out:
    return st;
}

/* ---- requests ---- */

static cairn_status begin(struct cairn__tcp_store *s, enum store_op op, const char *key) {
    cairn_status st = CAIRN_OK;
    REQUIRE(s->stream.forks == cairn__forks(), CAIRN_ESTATE,
            "this process was forked from the one that connected to the store at %s, which would read the answers; "
            "connect in the child, or call exec",
            s->stream.name);
    if (s->cancelling && s->stream.fd >= 0) TRY(settle_before_asking(s));
    TRY(cairn__put_op(&s->stream, cairn__store_number(s->dialect, op)));
    if (key) TRY(cairn__put_key(&s->stream, key));
out:
    return st;
}

static cairn_status begin_many(struct cairn__tcp_store *s, enum store_op op, const char *const *keys, size_t n) {
    uint64_t count = n;
    cairn_status st = CAIRN_OK;
    TRY(begin(s, op, NULL));
    TRY(cairn__put(&s->stream, &count, sizeof(count)));
    for (size_t i = 0; i < n; i++) TRY(cairn__put_key(&s->stream, keys[i]));
out:
    return st;
}

static cairn_status ask(struct cairn__tcp_store *s, void *reply, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__stream_send(&s->stream));
    TRY(cairn__stream_receive(&s->stream, reply, nbytes));
out:
    return st;
}

static void start_clock(struct cairn__tcp_store *s) {
    cairn__stream_set_deadline(&s->stream, s->base.timeout);
}

/* ---- set, add, delete, count ---- */

static cairn_status tcp_set(cairn_store *store, const char *key, const void *value, size_t nbytes) {
    struct cairn__tcp_store *s = tcp(store);
    cairn_status st = CAIRN_OK;
    start_clock(s);
    TRY(begin(s, STORE_SET, key));
    TRY(cairn__put_vector(&s->stream, value, nbytes));
    TRY(cairn__stream_send(&s->stream));
out:
    return st;
}

static cairn_status tcp_add(cairn_store *store, const char *key, int64_t delta, int64_t *sum) {
    struct cairn__tcp_store *s = tcp(store);
    cairn_status st = CAIRN_OK;
    start_clock(s);
    TRY(begin(s, STORE_ADD, key));
    TRY(cairn__put(&s->stream, &delta, sizeof(delta)));
    st = ask(s, sum, sizeof(*sum));
    if (st == CAIRN_EPEER)
        st = cairn__fail(st, "%s (a server also hangs up if key '%.80s' does not hold a number)", cairn_last_error(),
                         key);
out:
    return st;
}

static cairn_status tcp_delete(cairn_store *store, const char *key, int *deleted) {
    struct cairn__tcp_store *s = tcp(store);
    int64_t count = 0;
    cairn_status st = CAIRN_OK;
    start_clock(s);
    TRY(begin(s, STORE_DELETE_KEY, key));
    TRY(ask(s, &count, sizeof(count)));
    *deleted = count != 0;
out:
    return st;
}

static cairn_status tcp_num_keys(cairn_store *store, int64_t *count) {
    struct cairn__tcp_store *s = tcp(store);
    cairn_status st = CAIRN_OK;
    start_clock(s);
    TRY(begin(s, STORE_GETNUMKEYS, NULL));
    TRY(ask(s, count, sizeof(*count)));
out:
    return st;
}

/* ---- compare_set, and what is made of it ---- */

static cairn_status swap(struct cairn__tcp_store *s, const char *key, const void *expected, size_t nexpected,
                         const void *desired, size_t ndesired, void **value, size_t *nbytes) {
    cairn_status st = CAIRN_OK;
    TRY(begin(s, STORE_COMPARE_SET, key));
    TRY(cairn__put_vector(&s->stream, expected, nexpected));
    TRY(cairn__put_vector(&s->stream, desired, ndesired));
    TRY(cairn__stream_send(&s->stream));
    TRY(cairn__stream_receive_vector(&s->stream, value, nbytes));
out:
    return st;
}

static cairn_status tcp_compare_set(cairn_store *store, const char *key, const void *expected, size_t nexpected,
                                    const void *desired, size_t ndesired, void **value, size_t *nbytes) {
    start_clock(tcp(store));
    return swap(tcp(store), key, expected, nexpected, desired, ndesired, value, nbytes);
}

static bool is_nonce(const struct cairn__tcp_store *s, const void *value, size_t nbytes) {
    return nbytes == sizeof(s->nonce) && memcmp(value, s->nonce, nbytes) == 0;
}

/* *value = NULL where the key is not there. */
static cairn_status fetch(struct cairn__tcp_store *s, const char *key, void **value, size_t *nbytes) {
    void *got = NULL;
    size_t length = 0;
    *value = NULL;
    *nbytes = 0;
    cairn_status st = CAIRN_OK;
    TRY(swap(s, key, s->nonce, sizeof(s->nonce), s->nonce, sizeof(s->nonce), &got, &length));
    if (is_nonce(s, got, length)) {
        cairn__free(got);
        return CAIRN_OK;
    }
    *value = got;
    *nbytes = length;
out:
    return st;
}

/* ---- waiting ---- */

/* The requests at the end of a wait share this much time beyond the wait's deadline. */
static void grant(struct cairn__tcp_store *s, uint64_t deadline) {
    s->stream.deadline = deadline + GRACE_MS * UINT64_C(1000000);
}

static cairn_status check(struct cairn__tcp_store *s, const char *const *keys, size_t n, bool *present) {
    uint8_t answer = STORE_NOT_READY;
    cairn_status st = CAIRN_OK;
    TRY(begin_many(s, STORE_CHECK, keys, n));
    TRY(cairn__stream_send(&s->stream));
    TRY(receive_flag(s, &answer));
    *present = answer == STORE_READY;
out:
    return st;
}

static cairn_status tcp_check(cairn_store *store, const char *const *keys, size_t n, int *present) {
    bool all = true;
    start_clock(tcp(store));
    cairn_status st = CAIRN_OK;
    if (n) TRY(check(tcp(store), keys, n, &all));
    *present = all;
out:
    return st;
}

static cairn_status poll_keys(struct cairn__tcp_store *s, const char *const *keys, size_t n, uint64_t deadline,
                              bool *present) {
    for (int pause = FIRST_PAUSE_MS;; pause = pause * 2 < LAST_PAUSE_MS ? pause * 2 : LAST_PAUSE_MS) {
        grant(s, deadline);
        cairn_status st = check(s, keys, n, present);
        const int left = cairn__ms_left(deadline);
        if (st != CAIRN_OK || *present || left == 0) return st;
        poll(NULL, 0, pause < left ? pause : left);
    }
}

/* Sends one WAIT, at most until the deadline or the end of the slice; then CHECK, because some servers do not wake
 * clients. */
static cairn_status wait_a_slice(struct cairn__tcp_store *s, const char *const *keys, size_t n, uint64_t deadline,
                                 bool *present) {
    uint8_t answer = 0;
    cairn_status st = CAIRN_OK;
    TRY(begin_many(s, STORE_WAIT, keys, n));
    TRY(cairn__stream_send(&s->stream));
    const uint64_t slice_end = cairn__now_ns() + WAIT_SLICE_MS * UINT64_C(1000000);
    s->stream.deadline = slice_end < deadline ? slice_end : deadline;
    TRY(cairn__stream_await(&s->stream, present));
    grant(s, deadline);
    if (*present) {
        TRY(receive_flag(s, &answer));
        *present = answer == STORE_STOP_WAITING;
        return CAIRN_OK;
    }
    /* A slow server keeps its connection: the next request reads its answer first. */
    TRY(begin(s, STORE_CANCEL_WAIT, NULL));
    TRY(cairn__stream_send(&s->stream));
    s->cancelling = FIRST_ANSWER;
    TRY(settle(s, present));
    if (!*present && !s->cancelling) TRY(check(s, keys, n, present));
out:
    return st;
}

/* Names the first missing key, which is in [there, n): the first `there` keys are present, the first `n` are not
 * all. */
static cairn_status fail_missing(struct cairn__tcp_store *s, const char *const *keys, size_t n) {
    size_t there = 0;
    bool answered = true;
    while (n - there > 1 && answered) {
        const size_t half = there + (n - there) / 2;
        bool present = false;
        answered = check(s, keys, half, &present) == CAIRN_OK;
        if (present) {
            there = half;
        } else if (answered) {
            n = half;
        }
    }
    return cairn__fail(CAIRN_ETIMEOUT, "key '%s'%s did not appear in the store at %s within %g s", keys[there],
                       answered ? "" : ", or one after it,", s->stream.name, s->base.timeout);
}

static cairn_status wait_for(struct cairn__tcp_store *s, const char *const *keys, size_t n, uint64_t deadline) {
    bool present = false;
    cairn_status st = CAIRN_OK;
    while (!present) {
        grant(s, deadline);
        TRY(is_old(s) ? poll_keys(s, keys, n, deadline, &present) : wait_a_slice(s, keys, n, deadline, &present));
        if (!present && cairn__ms_left(deadline) == 0) return fail_missing(s, keys, n);
    }
out:
    return st;
}

static cairn_status tcp_wait(cairn_store *store, const char *const *keys, size_t n) {
    struct cairn__tcp_store *s = tcp(store);
    start_clock(s);
    return n ? wait_for(s, keys, n, s->stream.deadline) : CAIRN_OK;
}

static cairn_status tcp_get(cairn_store *store, const char *key, void **value, size_t *nbytes) {
    struct cairn__tcp_store *s = tcp(store);
    cairn_status st = CAIRN_OK;
    start_clock(s);
    const uint64_t deadline = s->stream.deadline;
    do {
        TRY(wait_for(s, &key, 1, deadline));
        grant(s, deadline);
        TRY(fetch(s, key, value, nbytes));
    } while (!*value);
out:
    return st;
}

/* ---- append ---- */

static cairn_status lock(struct cairn__tcp_store *s) {
    cairn_status st = CAIRN_OK;
    const uint64_t deadline = s->stream.deadline;
    for (int pause = FIRST_PAUSE_MS;; pause = pause * 2 < LAST_PAUSE_MS ? pause * 2 : LAST_PAUSE_MS) {
        void *holder = NULL;
        size_t nbytes = 0;
        TRY(swap(s, APPEND_LOCK, "", 0, s->nonce, sizeof(s->nonce), &holder, &nbytes));
        const bool mine = is_nonce(s, holder, nbytes);
        cairn__free(holder);
        if (mine) return CAIRN_OK;
        REQUIRE(cairn__ms_left(deadline) > 0, CAIRN_ETIMEOUT,
                "another process has been appending in the store at %s for %g s, or died while it did; if it died, "
                "delete key '%s'",
                s->stream.name, s->base.timeout, APPEND_LOCK);
        poll(NULL, 0, pause);
    }
out:
    return st;
}

static cairn_status unlock(struct cairn__tcp_store *s) {
    int64_t deleted = 0;
    cairn_status st = CAIRN_OK;
    TRY(begin(s, STORE_DELETE_KEY, APPEND_LOCK));
    TRY(ask(s, &deleted, sizeof(deleted)));
out:
    return st;
}

/* *done = false if another client wrote the key in between. */
static cairn_status try_append(struct cairn__tcp_store *s, const char *key, const void *value, size_t nbytes,
                               bool *done) {
    void *old = NULL, *joined = NULL, *now = NULL;
    size_t nold = 0, nnow = 0;
    cairn_status st = CAIRN_OK;
    TRY(fetch(s, key, &old, &nold));
    if (nold + nbytes > STORE_MAX_VALUE) {
        TRY(cairn__fail(CAIRN_EINVAL, "key '%s' would hold %zu bytes, more than a store holds (%d)", key, nold + nbytes,
                        STORE_MAX_VALUE));
    }
    TRY(cairn__alloc(nold + nbytes, &joined));
    if (nold) memcpy(joined, old, nold);
    if (nbytes) memcpy((char *)joined + nold, value, nbytes);
    TRY(swap(s, key, old, nold, joined, nold + nbytes, &now, &nnow));
    *done = nnow == nold + nbytes && memcmp(now, joined, nnow) == 0;
out:
    cairn__free(old);
    cairn__free(joined);
    cairn__free(now);
    return st;
}

/* COMPARE_SET cannot tell which client's equal bytes it found, so clients take a lock to append. */
static cairn_status append_by_turns(struct cairn__tcp_store *s, const char *key, const void *value, size_t nbytes) {
    bool done = false;
    const uint64_t deadline = s->stream.deadline;
    cairn_status st = lock(s);
    if (st != CAIRN_OK) return st;
    grant(s, deadline); /* for unlock */
    while (st == CAIRN_OK && !done) st = try_append(s, key, value, nbytes, &done);
    const cairn_status unlocked = s->stream.fd >= 0 ? unlock(s) : CAIRN_OK;
    return st == CAIRN_OK ? unlocked : st;
}

static cairn_status tcp_append(cairn_store *store, const char *key, const void *value, size_t nbytes) {
    struct cairn__tcp_store *s = tcp(store);
    cairn_status st = CAIRN_OK;
    start_clock(s);
    if (is_old(s)) return append_by_turns(s, key, value, nbytes);
    TRY(begin(s, STORE_APPEND, key));
    TRY(cairn__put_vector(&s->stream, value, nbytes));
    TRY(cairn__stream_send(&s->stream));
out:
    return st;
}

/* ---- life ---- */

static void tcp_destroy(cairn_store *store) {
    struct cairn__tcp_store *s = tcp(store);
    cairn__stream_free(&s->stream);
    cairn__store_stop(&s->server);
    cairn__secret_destroy(&s->secret);
    cairn__free(s);
}

static void tcp_local_address(const cairn_store *store, char *address, size_t nbytes) {
    const struct cairn__tcp_store *s = (const struct cairn__tcp_store *)store;
    struct sockaddr_storage here;
    socklen_t length = sizeof(here);
    if (s->stream.fd < 0 || getsockname(s->stream.fd, (struct sockaddr *)&here, &length) != 0) return;
    cairn__address_write(&here, address, nbytes);
}

static const struct cairn__store_ops tcp_ops = {
    .name = "tcp",
    .set = tcp_set,
    .get = tcp_get,
    .add = tcp_add,
    .wait = tcp_wait,
    .check = tcp_check,
    .compare_set = tcp_compare_set,
    .append = tcp_append,
    .delete = tcp_delete,
    .num_keys = tcp_num_keys,
    .local_address = tcp_local_address,
    .destroy = tcp_destroy,
};

cairn_status cairn__tcp_store_make(double timeout, struct cairn__tcp_store **out) {
    struct cairn__tcp_store *s = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*s), (void **)&s));
    s->base = (cairn_store){.ops = &tcp_ops, .timeout = timeout};
    s->stream.fd = -1;
    s->stream.forks = cairn__forks();
    if (getrandom(s->nonce, sizeof(s->nonce), 0) != sizeof(s->nonce)) {
        st = cairn__fail_errno(errno, "no random numbers");
        cairn__free(s);
        return st;
    }
    *out = s;
out:
    return st;
}

cairn_status cairn__tcp_store_on(int fd, enum cairn__store_dialect dialect, const char *name, double timeout,
                                 cairn_store **out) {
    struct cairn__tcp_store *s = NULL;
    cairn_status st = cairn__tcp_store_make(timeout, &s);
    if (st == CAIRN_OK && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) {
        st = cairn__fail_errno(errno, "descriptor %d", fd);
    }
    if (st != CAIRN_OK) {
        close(fd);
        cairn__free(s);
        return st;
    }
    s->dialect = dialect;
    s->stream.fd = fd;
    snprintf(s->stream.name, sizeof(s->stream.name), "%s", name);
    *out = &s->base;
    return CAIRN_OK;
}

void cairn__store_wait_end(cairn_store *store, double timeout) {
    struct cairn__stream *s = &tcp(store)->stream;
    char rest[256];
    if (store->ops != &tcp_ops) return;
    cairn__stream_set_deadline(s, timeout);
    while (s->fd >= 0 && cairn__ms_left(s->deadline) > 0) {
        struct pollfd p = {.fd = s->fd, .events = POLLIN};
        if (poll(&p, 1, cairn__ms_left(s->deadline)) <= 0) continue;
        ssize_t got = recv(s->fd, rest, sizeof(rest), 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) cairn__stream_break(s, CAIRN_OK);
    }
}
