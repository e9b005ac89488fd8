/* One connection of the TCP store's server without its socket: input comes in pieces of any size, and replies are
 * left in an output buffer. Sessions share struct cairn__sessions: the keys, and the list of waiting sessions. No
 * call blocks; one caller at a time. A session's first bytes choose its dialect of the wire (wire.h). */
#ifndef CAIRN__RENDEZVOUS_STORE_SESSION_H
#define CAIRN__RENDEZVOUS_STORE_SESSION_H

#include "rendezvous/store/proof.h"
#include "rendezvous/store/table.h"

/* What a session may do. */
enum cairn__trust {
    CAIRN__TRUST_NONE,  /* nothing until the client has proven that it knows the job's secret */
    CAIRN__TRUST_GUEST, /* torch's ranks, whose dialect has no proof: all keys except Cairn's, unless they prove more */
    CAIRN__TRUST_FULL,
};

/* A link of a ring; the ring's head is one too. */
struct cairn__link {
    struct cairn__link *next, *prev;
};

struct cairn__buffer {
    uint8_t *data;
    size_t begin, end, capacity;
};

enum { CAIRN__WAIT_BUCKETS = 1024 };

/* Limit on unsent replies to one connection, and on requests queued behind a WAIT; beyond it no input is taken. */
enum { CAIRN__ENOUGH = 1 << 20 };

struct cairn__sessions {
    size_t enough;                      /* CAIRN__ENOUGH; tests may lower it */
    const struct cairn__secret *secret; /* NULL = there is none; owned by the caller */
    int port;                           /* to which clients connect; part of the proof */
    struct cairn__table table;
    size_t buffered;                                  /* capacity of all buffers; STORE_MAX_BUFFERS at most */
    struct cairn__link awaiting[CAIRN__WAIT_BUCKETS]; /* sessions by the hash of the key they await, oldest first */
    struct cairn__link active;                        /* sessions with output, room for input, or an end to handle */
};

struct cairn__session {
    struct cairn__link active;            /* alone, or in the ring of active sessions */
    const struct cairn__dialect *dialect; /* NULL until the first bytes have chosen it */
    struct cairn__buffer in;              /* input that is not a complete request yet */
    struct cairn__buffer out;
    enum cairn__trust trust;
    struct cairn__proof proof;
    bool proven;   /* it has sent a complete request */
    bool refused;  /* it ended because it requested what it is not allowed to do */
    bool ended;    /* no more input is read; output may still be sent */
    char why[160]; /* why it ended, "" if its peer just closed the connection */

    /* How much of the request at the front of the input is measured already. */
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
        struct cairn__buffer keys; /* the request's keys, as received */
        size_t at;                 /* the position of the awaited key; those before it are present */
        uint64_t deletions;        /* the table's counter when that was checked */
        struct cairn__blob key;
    } wait;
};

void cairn__sessions_init(struct cairn__sessions *all);
/* Call it once all sessions are closed. */
void cairn__sessions_clear(struct cairn__sessions *all);

void cairn__session_open(struct cairn__session *s, enum cairn__trust trust);
void cairn__session_close(struct cairn__sessions *all, struct cairn__session *s);

/* Takes input, runs the complete requests, and makes s active. Does nothing once s has ended. */
void cairn__session_feed(struct cairn__sessions *all, struct cairn__session *s, const void *data, size_t nbytes);
/* False if so much input or output is queued that more input would only be queued. */
bool cairn__session_takes_input(const struct cairn__sessions *all, const struct cairn__session *s);

struct cairn__blob cairn__session_output(const struct cairn__session *s);
/* Removes the first nbytes, which are sent, from the output; requests that waited for room continue. */
void cairn__session_sent(struct cairn__sessions *all, struct cairn__session *s, size_t nbytes);

/* Returns the next session whose output, readiness for input, or end has changed. Call it after each of the calls above
 * until it returns NULL. */
struct cairn__session *cairn__sessions_next(struct cairn__sessions *all);

#endif
