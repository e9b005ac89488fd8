/* One connection to a store's server. After an incomplete reply the position in the stream is unknown, so the
 * connection is closed and every later call fails. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/status.h"
#include "core/trace.h"
#include "rendezvous/store/tcp.h"

/* ---- time ---- */

void cairn__stream_set_deadline(struct cairn__stream *s, double seconds) {
    s->allowance = seconds;
    s->deadline = cairn__now_ns() + (uint64_t)(seconds < 1e9 ? seconds * 1e9 : 1e18);
}

int cairn__ms_left(uint64_t deadline) {
    uint64_t now = cairn__now_ns();
    if (now >= deadline) return 0;
    uint64_t ms = (deadline - now + 999999) / 1000000;
    return ms < 3600000 ? (int)ms : 3600000;
}

/* ---- ends ---- */

cairn_status cairn__stream_break(struct cairn__stream *s, cairn_status status) {
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
    return status;
}

void cairn__stream_free(struct cairn__stream *s) {
    cairn__stream_break(s, CAIRN_OK);
    cairn__free(s->request);
    s->request = NULL;
    s->nbytes = s->capacity = 0;
}

static cairn_status lost(struct cairn__stream *s, int cause) {
    char room[128];
    cairn__fail(CAIRN_EPEER, "the store at %s went away: %s; did rank 0 or the launcher end?", s->name,
                cause ? strerror_r(cause, room, sizeof(room)) : "it closed the connection");
    return cairn__stream_break(s, CAIRN_EPEER);
}

/* ---- requests ---- */

cairn_status cairn__put(struct cairn__stream *s, const void *data, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&s->request, &s->capacity, s->nbytes + nbytes, 1));
    if (nbytes) memcpy(s->request + s->nbytes, data, nbytes);
    s->nbytes += nbytes;
out:
    return st;
}

cairn_status cairn__put_op(struct cairn__stream *s, uint8_t op) {
    REQUIRE(s->fd >= 0, CAIRN_EPEER, "the connection to the store at %s broke earlier; connect again", s->name);
    s->nbytes = 0;
    s->key = NULL;
    return cairn__put(s, &op, sizeof(op));
}

cairn_status cairn__put_vector(struct cairn__stream *s, const void *data, size_t nbytes) {
    uint64_t length = nbytes;
    cairn_status st = CAIRN_OK;
    TRY(cairn__put(s, &length, sizeof(length)));
    TRY(cairn__put(s, data, nbytes));
out:
    return st;
}

cairn_status cairn__put_key(struct cairn__stream *s, const char *key) {
    uint64_t length = strlen(key) + 1;
    cairn_status st = CAIRN_OK;
    TRY(cairn__put(s, &length, sizeof(length)));
    TRY(cairn__put(s, "/", 1));
    TRY(cairn__put(s, key, (size_t)length - 1));
    if (!s->key) s->key = key;
out:
    return st;
}

/* ---- bytes before the deadline ---- */

static cairn_status await(struct cairn__stream *s, short events, bool *ready) {
    struct pollfd p = {.fd = s->fd, .events = events};
    int got;
    do {
        got = poll(&p, 1, cairn__ms_left(s->deadline));
    } while ((got < 0 && errno == EINTR) || (got == 0 && cairn__ms_left(s->deadline) > 0));
    if (got < 0) return lost(s, errno);
    *ready = got > 0;
    return CAIRN_OK;
}

cairn_status cairn__stream_await(struct cairn__stream *s, bool *readable) {
    return await(s, POLLIN, readable);
}

static cairn_status await_or_break(struct cairn__stream *s, short events) {
    bool ready = false;
    cairn_status st = await(s, events, &ready);
    if (st != CAIRN_OK || ready) return st;
    cairn__fail(CAIRN_ETIMEOUT, "the store at %s did not answer within %g s%s%s%s", s->name, s->allowance,
                s->key ? "; the request was for key '" : "", s->key ? s->key : "", s->key ? "'" : "");
    return cairn__stream_break(s, CAIRN_ETIMEOUT);
}

cairn_status cairn__stream_send(struct cairn__stream *s) {
    cairn_status st = CAIRN_OK;
    for (size_t done = 0; done < s->nbytes;) {
        ssize_t sent = send(s->fd, s->request + done, s->nbytes - done, MSG_NOSIGNAL);
        if (sent > 0) done += (size_t)sent;
        if (sent >= 0 || errno == EINTR) continue;
        if (errno != EAGAIN) return lost(s, errno);
        TRY(await_or_break(s, POLLOUT));
    }
out:
    return st;
}

cairn_status cairn__stream_receive(struct cairn__stream *s, void *data, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    for (size_t done = 0; done < nbytes;) {
        ssize_t got = recv(s->fd, (char *)data + done, nbytes - done, 0);
        if (got > 0) done += (size_t)got;
        if (got == 0) return lost(s, 0);
        if (got > 0 || errno == EINTR) continue;
        if (errno != EAGAIN) return lost(s, errno);
        TRY(await_or_break(s, POLLIN));
    }
out:
    return st;
}

cairn_status cairn__stream_receive_vector(struct cairn__stream *s, void **value, size_t *nbytes) {
    uint64_t length = 0;
    void *data = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__stream_receive(s, &length, sizeof(length)));
    if (length > STORE_MAX_VALUE) {
        cairn__fail(CAIRN_EPEER,
                    "the store at %s sends a value of %" PRIu64 " bytes, more than a store holds (%d); is this port "
                    "another program's?",
                    s->name, length, STORE_MAX_VALUE);
        return cairn__stream_break(s, CAIRN_EPEER);
    }
    st = cairn__alloc((size_t)length + 1, &data);
    if (st != CAIRN_OK) return cairn__stream_break(s, st);
    TRY(cairn__stream_receive(s, data, (size_t)length));
    ((char *)data)[length] = '\0';
    *value = data;
    *nbytes = (size_t)length;
    return CAIRN_OK;
out:
    cairn__free(data);
    return st;
}
