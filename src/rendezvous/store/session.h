/* One connection of the TCP store's server without its socket: bytes go in as they come, in any pieces, and replies lie
 * ready to be sent. Sessions meet in struct cairn__sessions: the keys, and who waits for what. No call blocks; one
 * caller at a time. Which of the wire's two dialects (wire.h) a session speaks its first bytes tell. */
#ifndef CAIRN__RENDEZVOUS_STORE_SESSION_H
#define CAIRN__RENDEZVOUS_STORE_SESSION_H

#include "rendezvous/store/table.h"

/* A place in a ring; the ring's head is one too. */
struct cairn__link {
    struct cairn__link *next, *prev;
};

struct cairn__buffer {
    uint8_t *data;
    size_t begin, end, capacity;
};

enum { CAIRN__WAIT_BUCKETS = 1024 };

/* Of replies to one connection, or of requests kept back behind a WAIT: more has to wait. */
enum { CAIRN__ENOUGH = 1 << 20 };

struct cairn__sessions {
    size_t enough; /* CAIRN__ENOUGH; a test may have less */
    struct cairn__table table;
    size_t buffered;                                  /* capacity of all buffers; STORE_MAX_BUFFERS at most */
    struct cairn__link awaiting[CAIRN__WAIT_BUCKETS]; /* sessions by the hash of the key they await, oldest first */
    struct cairn__link active;                        /* sessions that have something to do */
};

struct cairn__session {
    struct cairn__link active;            /* alone, or in that ring */
    const struct cairn__dialect *dialect; /* NULL until the first bytes have told */
    struct cairn__buffer in;              /* what no request could be run from yet */
    struct cairn__buffer out;
    bool proven;   /* a whole request has come */
    bool ended;    /* nothing is read any more; what is in out may still be sent */
    char why[160]; /* it ended, "" where its peer just left */

    /* How far the request at the front of the input is measured. */
    struct {
        const char *field; /* NULL: not begun */
        const char *repeat;
        uint64_t rounds;
        size_t nbytes;
    } measured;

    /* The WAIT or BARRIER that is not answered yet. */
    struct {
        bool on, barrier;
        struct cairn__link link;   /* while on: in the ring of key's bucket */
        struct cairn__buffer keys; /* as they came */
        size_t at;                 /* of the awaited one; those before it are there */
        uint64_t deletions;        /* of the table, when that was so */
        struct cairn__blob key;
    } wait;
};

void cairn__sessions_init(struct cairn__sessions *all);
/* The sessions have been closed before. */
void cairn__sessions_clear(struct cairn__sessions *all);

void cairn__session_open(struct cairn__session *s);
void cairn__session_close(struct cairn__sessions *all, struct cairn__session *s);

/* Takes bytes, runs the requests that are whole, and makes s active. Nothing happens once s has ended. */
void cairn__session_feed(struct cairn__sessions *all, struct cairn__session *s, const void *data, size_t nbytes);
/* False where so much is left to do or to send that more input would only pile up. */
bool cairn__session_takes_input(const struct cairn__sessions *all, const struct cairn__session *s);

struct cairn__blob cairn__session_output(const struct cairn__session *s);
/* The first nbytes of the output are sent; requests that had to wait for that go on. */
void cairn__session_sent(struct cairn__sessions *all, struct cairn__session *s, size_t nbytes);

/* After any of these calls, until NULL: a session whose output, wish for input or end wants to be looked at. */
struct cairn__session *cairn__sessions_next(struct cairn__sessions *all);

#endif
