/* An attacker between clients and servers of two jobs, which have different secrets, or the same secret at different
 * ports. The attacker sees every message and sends anything: whole messages, parts, mixtures, reflections, replays to
 * the other job. No server may trust the attacker and no client accept its proof, and an honest client must always be
 * admitted.
 *
 * Input: records of an action, its target, a message, and the part of the message. */
#include "../fuzz.h"

#include <stdbool.h>

#include "core/alloc.h"
#include "rendezvous/store/session.h"

enum { PARTIES = 4, MESSAGES = 64, JOBS = 2 };
enum action { TELL_SERVER, TELL_CLIENT, RECONNECT, HONEST, RAW, NUM_ACTIONS };

struct message {
    uint8_t bytes[CAIRN__PROOF_SECOND];
    size_t nbytes;
};

static struct cairn__secret *secrets[JOBS];
static struct cairn__sessions jobs[JOBS];
static struct cairn__session sessions[PARTIES]; /* the stranger's, at server i % JOBS */
static struct client {
    struct cairn__proof proof;
    uint8_t heard[CAIRN__PROOF_SECOND];
    size_t nheard;
} clients[PARTIES]; /* which have connected to the stranger's port */
static struct message pool[MESSAGES];
static size_t num_messages;

static void overhear(const void *bytes, size_t nbytes) {
    struct message *m = &pool[num_messages++ % MESSAGES];
    m->nbytes = nbytes < sizeof(m->bytes) ? nbytes : sizeof(m->bytes);
    memcpy(m->bytes, bytes, m->nbytes);
}

static void settle(struct cairn__sessions *all) {
    while (cairn__sessions_next(all)) continue;
}

/* ---- what the stranger does ---- */

static void connect_session(int i) {
    cairn__session_open(&sessions[i], CAIRN__TRUST_NONE);
}

static void connect_client(int i) {
    uint8_t first[CAIRN__PROOF_FIRST];
    clients[i].nheard = 0;
    FUZZ_CHECK(cairn__proof_begin(&clients[i].proof, 4000 + i % JOBS, first) == CAIRN_OK);
    overhear(first, sizeof(first));
}

static void tell_server(int i, const uint8_t *bytes, size_t nbytes) {
    struct cairn__sessions *all = &jobs[i % JOBS];
    cairn__session_feed(all, &sessions[i], bytes, nbytes);
    const struct cairn__blob out = cairn__session_output(&sessions[i]);
    FUZZ_CHECK(out.nbytes == 0 || out.nbytes == CAIRN__PROOF_SECOND); /* nothing of the table */
    if (out.nbytes) overhear(out.data, out.nbytes);
    if (out.nbytes) cairn__session_sent(all, &sessions[i], out.nbytes);
    settle(all);
    FUZZ_CHECK(sessions[i].trust == CAIRN__TRUST_NONE && !sessions[i].proven);
    FUZZ_CHECK(all->table.num_keys == 1);
}

static void tell_client(int i, const uint8_t *bytes, size_t nbytes) {
    struct client *c = &clients[i];
    uint8_t third[CAIRN__PROOF_THIRD];
    const size_t room = sizeof(c->heard) - c->nheard, n = nbytes < room ? nbytes : room;
    memcpy(c->heard + c->nheard, bytes, n);
    c->nheard += n;
    if (c->nheard < sizeof(c->heard)) return;
    FUZZ_CHECK(!cairn__proof_answer(&c->proof, secrets[i % JOBS], c->heard, third));
    connect_client(i); /* it hangs up, and tries again */
}

/* ---- beside him ---- */

static void join_honestly(int job) {
    static const uint8_t set[] = "\x00\xCE\xF7\x85\x3C\x07"; /* VALIDATE, GETNUMKEYS */
    struct cairn__session s;
    struct cairn__proof p;
    uint8_t first[CAIRN__PROOF_FIRST], third[CAIRN__PROOF_THIRD], second[CAIRN__PROOF_SECOND];
    cairn__session_open(&s, CAIRN__TRUST_NONE);
    FUZZ_CHECK(cairn__proof_begin(&p, jobs[job].port, first) == CAIRN_OK);
    overhear(first, sizeof(first));
    cairn__session_feed(&jobs[job], &s, first, sizeof(first));
    struct cairn__blob out = cairn__session_output(&s);
    FUZZ_CHECK(out.nbytes == sizeof(second));
    memcpy(second, out.data, sizeof(second));
    overhear(second, sizeof(second));
    cairn__session_sent(&jobs[job], &s, sizeof(second));
    FUZZ_CHECK(cairn__proof_answer(&p, secrets[job], second, third));
    overhear(third, sizeof(third));
    cairn__session_feed(&jobs[job], &s, third, sizeof(third));
    FUZZ_CHECK(s.trust == CAIRN__TRUST_FULL);
    cairn__session_feed(&jobs[job], &s, set, sizeof(set) - 1);
    FUZZ_CHECK(cairn__session_output(&s).nbytes == sizeof(int64_t));
    cairn__session_close(&jobs[job], &s);
    settle(&jobs[job]);
}

/* ---- a run ---- */

static void begin(bool one_secret) {
    static const uint8_t key[] = "/cairn-run/agents";
    static struct cairn__secret *first, *other;
    num_messages = 0;
    if (!first) {
        FUZZ_CHECK(cairn__secret_from("a secret of the first job", 25, "a", &first) == CAIRN_OK);
        FUZZ_CHECK(cairn__secret_from("a secret of the other job", 25, "b", &other) == CAIRN_OK);
    }
    secrets[0] = first;
    secrets[1] = one_secret ? first : other;
    for (int j = 0; j < JOBS; j++) {
        cairn__sessions_init(&jobs[j]);
        jobs[j].secret = secrets[j];
        jobs[j].port = 2000 + j;
        FUZZ_CHECK(cairn__table_set(&jobs[j].table, (struct cairn__blob){key, sizeof(key) - 1},
                                    (struct cairn__blob){key, 1}) == CAIRN_OK);
    }
    for (int i = 0; i < PARTIES; i++) connect_session(i);
    for (int i = 0; i < PARTIES; i++) connect_client(i);
}

static void end(void) {
    for (int i = 0; i < PARTIES; i++) cairn__session_close(&jobs[i % JOBS], &sessions[i]);
    for (int j = 0; j < JOBS; j++) {
        FUZZ_CHECK(jobs[j].buffered == 0);
        cairn__sessions_clear(&jobs[j]);
    }
}

static void act(enum action action, int who, const uint8_t *bytes, size_t nbytes) {
    switch (action) {
    case TELL_SERVER:
    case RAW:
        tell_server(who, bytes, nbytes);
        return;
    case TELL_CLIENT:
        tell_client(who, bytes, nbytes);
        return;
    case RECONNECT:
        cairn__session_close(&jobs[who % JOBS], &sessions[who]);
        settle(&jobs[who % JOBS]);
        connect_session(who);
        return;
    case HONEST:
        join_honestly(who % JOBS);
        return;
    case NUM_ACTIONS:
        return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    const uint64_t alive = cairn__alloc_counters().alive;
    if (nbytes < 1) return 0;
    begin(data[0] & 1);
    for (size_t at = 1; at + 4 <= nbytes; at += 4) {
        const enum action action = (enum action)(data[at] % NUM_ACTIONS);
        const size_t known = num_messages < MESSAGES ? num_messages : MESSAGES;
        const struct message *m = &pool[data[at + 2] % known];
        const size_t from = m->nbytes * (size_t)(data[at + 3] >> 4) / 16, to = m->nbytes - (data[at + 3] & 15);
        if (action == RAW) act(action, data[at + 1] % PARTIES, data + at + 2, 2);
        else act(action, data[at + 1] % PARTIES, m->bytes + from, to > from ? to - from : 0);
    }
    end();
    FUZZ_CHECK(cairn__alloc_counters().alive == alive);
    return 0;
}

/* ---- seeds ---- */

/* By turns: hello of client 0 to server 0, its answer back to the client, the client's nonce to the other server; whole
 * runs of honest ones whose messages are then told again. */
static size_t fuzz_seed(int i, uint8_t *out) {
    static const uint8_t seeds[][32] = {
        {1, TELL_SERVER, 0, 0, 0, TELL_CLIENT, 0, 4, 0, TELL_SERVER, 1, 4, 0, TELL_CLIENT, 1, 5, 0},
        {0, HONEST, 0, 0, 0, TELL_SERVER, 0, 4, 0, TELL_SERVER, 0, 6, 0, TELL_CLIENT, 0, 5, 0, TELL_SERVER, 1, 6, 0},
        {1, HONEST, 1, 0, 0, TELL_SERVER, 0, 4, 8, TELL_SERVER, 0, 4, 0x80, RECONNECT, 0, 0, 0, TELL_SERVER, 0, 6, 0},
    };
    if (i >= (int)(sizeof(seeds) / sizeof(seeds[0]))) return 0;
    memcpy(out, seeds[i], sizeof(seeds[i]));
    return sizeof(seeds[i]);
}
