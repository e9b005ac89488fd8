#include "rendezvous/store/proof.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "core/status.h"

enum { CLIENT, SERVER, ROLE_NBYTES = 16 };

static const char roles[2][ROLE_NBYTES] = {"store client", "store server"};

static void hash(const struct cairn__proof *p, const struct cairn__secret *secret, int role,
                 uint8_t out[CAIRN__KEYED_NBYTES]) {
    uint8_t text[ROLE_NBYTES + 2 + sizeof(p->nonces)];
    memcpy(text, roles[role], ROLE_NBYTES);
    text[ROLE_NBYTES] = (uint8_t)(p->port >> 8);
    text[ROLE_NBYTES + 1] = (uint8_t)p->port;
    memcpy(text + ROLE_NBYTES + 2, p->nonces, sizeof(p->nonces));
    cairn__keyed_hash(secret, text, sizeof(text), out);
}

static bool is_random(uint8_t nonce[CAIRN__NONCE_NBYTES]) {
    return getrandom(nonce, CAIRN__NONCE_NBYTES, 0) == CAIRN__NONCE_NBYTES;
}

/* ---- client ---- */

cairn_status cairn__proof_begin(struct cairn__proof *p, int port, uint8_t first[CAIRN__PROOF_FIRST]) {
    *p = (struct cairn__proof){.port = port};
    if (!is_random(p->nonces[CLIENT])) return cairn__fail_errno(errno, "no random numbers");
    memcpy(first, CAIRN__HELLO, CAIRN__HELLO_NBYTES);
    memcpy(first + CAIRN__HELLO_NBYTES, p->nonces[CLIENT], CAIRN__NONCE_NBYTES);
    return CAIRN_OK;
}

bool cairn__proof_answer(struct cairn__proof *p, const struct cairn__secret *secret,
                         const uint8_t second[CAIRN__PROOF_SECOND], uint8_t third[CAIRN__PROOF_THIRD]) {
    uint8_t expected[CAIRN__KEYED_NBYTES];
    memcpy(p->nonces[SERVER], second, CAIRN__NONCE_NBYTES);
    hash(p, secret, SERVER, expected);
    if (!cairn__keyed_equal(expected, second + CAIRN__NONCE_NBYTES)) return false;
    hash(p, secret, CLIENT, third);
    return true;
}

/* ---- server ---- */

static bool collect(struct cairn__proof *p, size_t want, const uint8_t **data, size_t *nbytes) {
    const size_t lack = want - p->nbytes, n = *nbytes < lack ? *nbytes : lack;
    if (n) memcpy(p->bytes + p->nbytes, *data, n);
    p->nbytes += n;
    *data += n;
    *nbytes -= n;
    return p->nbytes == want;
}

/* Refuses a stranger at its first wrong byte. */
static bool is_hello(const struct cairn__proof *p) {
    return memcmp(p->bytes, CAIRN__HELLO, p->nbytes < CAIRN__HELLO_NBYTES ? p->nbytes : CAIRN__HELLO_NBYTES) == 0;
}

static enum cairn__proof_verdict greet(struct cairn__proof *p, const struct cairn__secret *secret,
                                       uint8_t second[CAIRN__PROOF_SECOND]) {
    memcpy(p->nonces[CLIENT], p->bytes + CAIRN__HELLO_NBYTES, CAIRN__NONCE_NBYTES);
    if (!is_random(p->nonces[SERVER])) return CAIRN__PROOF_REFUSED;
    memcpy(second, p->nonces[SERVER], CAIRN__NONCE_NBYTES);
    hash(p, secret, SERVER, second + CAIRN__NONCE_NBYTES);
    p->state = CAIRN__PROOF_ANSWERED;
    p->nbytes = 0;
    return CAIRN__PROOF_REPLY;
}

enum cairn__proof_verdict cairn__proof_take(struct cairn__proof *p, const struct cairn__secret *secret,
                                            const uint8_t **data, size_t *nbytes, uint8_t second[CAIRN__PROOF_SECOND]) {
    uint8_t expected[CAIRN__KEYED_NBYTES];
    if (p->state == CAIRN__PROOF_DONE) return CAIRN__PROOF_PROVEN;
    if (p->state == CAIRN__PROOF_BEGINS) {
        const bool is_whole = collect(p, CAIRN__PROOF_FIRST, data, nbytes);
        if (!is_hello(p)) return CAIRN__PROOF_REFUSED;
        return is_whole ? greet(p, secret, second) : CAIRN__PROOF_MORE;
    }
    if (!collect(p, CAIRN__PROOF_THIRD, data, nbytes)) return CAIRN__PROOF_MORE;
    hash(p, secret, CLIENT, expected);
    if (!cairn__keyed_equal(expected, p->bytes)) return CAIRN__PROOF_REFUSED;
    p->state = CAIRN__PROOF_DONE;
    p->nbytes = 0;
    return CAIRN__PROOF_PROVEN;
}
