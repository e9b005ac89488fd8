/* How a client and a server prove to each other that they know the job's secret, before any request:
 *
 *   client  HELLO, nonce c
 *   server  nonce s, H("server", port, c, s)
 *   client  H("client", port, c, s)
 *
 * H is the keyed hash (secret.h), both nonces are 32 fresh random bytes, and the port is the one that the client has
 * connected to, and the server listens on. A message that is replayed, cut, crossed or sent back fails, because each
 * hash covers both nonces and its sender's role. A program at another port that relays messages between the two fails,
 * too, because the two ends then name different ports. What follows is not encrypted. Bytes only: no sockets. */
#ifndef CAIRN__RENDEZVOUS_STORE_PROOF_H
#define CAIRN__RENDEZVOUS_STORE_PROOF_H

#include <stddef.h>

#include "rendezvous/secret.h"

enum { CAIRN__NONCE_NBYTES = 32, CAIRN__HELLO_NBYTES = 8 };

/* Its first byte is no request of either dialect. */
#define CAIRN__HELLO \
    "\xC3"           \
    "airn-1\n"

enum {
    CAIRN__PROOF_FIRST = CAIRN__HELLO_NBYTES + CAIRN__NONCE_NBYTES,  /* client's */
    CAIRN__PROOF_SECOND = CAIRN__NONCE_NBYTES + CAIRN__KEYED_NBYTES, /* server's */
    CAIRN__PROOF_THIRD = CAIRN__KEYED_NBYTES,                        /* client's */
};

/* One side's part. */
struct cairn__proof {
    enum { CAIRN__PROOF_BEGINS, CAIRN__PROOF_ANSWERED, CAIRN__PROOF_DONE } state;
    int port;
    uint8_t nonces[2][CAIRN__NONCE_NBYTES]; /* client's, server's */
    uint8_t bytes[CAIRN__PROOF_FIRST];      /* of the message that arrives */
    size_t nbytes;
};

/* ---- client ---- */

cairn_status cairn__proof_begin(struct cairn__proof *p, int port, uint8_t first[CAIRN__PROOF_FIRST]);
/* False if the server does not know the secret, or its port is another. */
bool cairn__proof_answer(struct cairn__proof *p, const struct cairn__secret *secret,
                         const uint8_t second[CAIRN__PROOF_SECOND], uint8_t third[CAIRN__PROOF_THIRD]);

/* ---- server ---- */

enum cairn__proof_verdict { CAIRN__PROOF_MORE, CAIRN__PROOF_REPLY, CAIRN__PROOF_PROVEN, CAIRN__PROOF_REFUSED };

/* p begins as all zero, with its port. Takes what belongs to the proof from the front of *data. REPLY:
 * `second` is to be sent, and then the rest to be taken. REFUSED: no hello, or a wrong hash. */
enum cairn__proof_verdict cairn__proof_take(struct cairn__proof *p, const struct cairn__secret *secret,
                                            const uint8_t **data, size_t *nbytes, uint8_t second[CAIRN__PROOF_SECOND]);

#endif
