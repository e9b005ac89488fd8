/* The TCP store's client, internal.
 *
 *   tcp_stream.c   one connection: a request is built and sent whole, a reply is read to the byte, all before one
 *                  deadline
 *   tcp_client.c   the calls, in all dialects
 *   tcp_connect.c  where the server is, which dialect it speaks, whether it is the right one */
#ifndef CAIRN__RENDEZVOUS_STORE_TCP_H
#define CAIRN__RENDEZVOUS_STORE_TCP_H

#include <stdbool.h>

#include "rendezvous/store/server.h"
#include "rendezvous/store/store.h"
#include "rendezvous/store/wire.h"

enum cairn__store_dialect {
    CAIRN__STORE_2_2,  /* of 2.2 and later: as in wire.h, after VALIDATE */
    CAIRN__STORE_2_1,  /* no VALIDATE, and all numbers one lower */
    CAIRN__STORE_1_13, /* of 1.13 and 2.0: as 2.1, but WATCH_KEY is 7, DELETE_KEY 8, and there are no others */
};

/* op's number in the dialect. */
static inline uint8_t cairn__store_number(enum cairn__store_dialect dialect, enum store_op op) {
    const bool lower = dialect == CAIRN__STORE_2_1 || (dialect == CAIRN__STORE_1_13 && op <= STORE_GETNUMKEYS);
    return (uint8_t)(lower ? op - 1 : op);
}

struct cairn__stream {
    int fd;            /* -1 = broken */
    unsigned forks;    /* cairn__forks() of the process that connected */
    uint64_t deadline; /* of the call in progress, ns of CLOCK_MONOTONIC */
    double allowance;  /* the seconds until it, for messages */
    char name[300];    /* host:port */
    const char *key;   /* the first key of the request in progress, for messages; owned by the caller */
    uint8_t *request;
    size_t nbytes, capacity;
};

struct cairn__tcp_store {
    cairn_store base;
    struct cairn__stream stream;
    enum cairn__store_dialect dialect;
    uint8_t nonce[16];                  /* a random value, which no other client stores */
    int cancelling;                     /* awaited answers to a CANCEL_WAIT (tcp_client.c) */
    struct cairn__store_server *server; /* NULL = another process serves */
    struct cairn__secret *secret;       /* of the server, owned; NULL = none, or owned by the caller */
};

/* ---- tcp_stream.c ---- */

void cairn__stream_set_deadline(struct cairn__stream *s, double seconds);

/* Milliseconds until a deadline for poll, rounded up, at most an hour. */
int cairn__ms_left(uint64_t deadline);

/* Closes the connection and returns status. To be called for every error in the order of bytes: replies have no header
 * from which the stream could resume. */
cairn_status cairn__stream_break(struct cairn__stream *s, cairn_status status);
void cairn__stream_free(struct cairn__stream *s);

/* A request begins with its op; the fields follow, then it is sent. Errors: CAIRN_EPEER the stream is broken. */
cairn_status cairn__put_op(struct cairn__stream *s, uint8_t op);
cairn_status cairn__put(struct cairn__stream *s, const void *data, size_t nbytes);
cairn_status cairn__put_vector(struct cairn__stream *s, const void *data, size_t nbytes);
cairn_status cairn__put_key(struct cairn__stream *s, const char *key); /* with torch's "/" in front */

/* Errors of the following, after which the stream is broken: CAIRN_EPEER the server went away, CAIRN_ETIMEOUT. */
cairn_status cairn__stream_send(struct cairn__stream *s);
cairn_status cairn__stream_receive(struct cairn__stream *s, void *data, size_t nbytes);
/* *value as cairn_store_get's. */
cairn_status cairn__stream_receive_vector(struct cairn__stream *s, void **value, size_t *nbytes);
/* *readable = false at the deadline; the stream is intact then. */
cairn_status cairn__stream_await(struct cairn__stream *s, bool *readable);

/* ---- tcp_client.c ---- */

/* Makes a store that is not connected yet. */
cairn_status cairn__tcp_store_make(double timeout, struct cairn__tcp_store **out);

/* Makes a store on a connected socket, which it owns from then on (also after a failure), without a greeting; tests and
 * fuzzers use it, too. name: the server's, for messages. */
cairn_status cairn__tcp_store_on(int fd, enum cairn__store_dialect dialect, const char *name, double timeout,
                                 cairn_store **out);

#endif
