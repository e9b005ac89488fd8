/* Feeds bytes of several connections to sessions, in arbitrary pieces. The same input goes to two servers, to one of
 * them split at random positions; both must end in the same state, and the invariants of sessions must hold after every
 * piece.
 *
 * Input: records of a byte (session and action), a number, and for most actions that many bytes. */
#include "../fuzz.h"

#include <stdbool.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "rendezvous/store/session.h"
#include "rendezvous/store/wire.h"
#include "transcripts.h"

enum { SESSIONS = 4, BIG = 3000, ENOUGH = 8 << 10 };
enum action { FEED, FEED_TOO, FEED_STILL, FEED_AND_LEAVE, DRAIN_SOME, REOPEN, SET_BIG, KEEP };

struct world {
    struct cairn__sessions all;
    struct cairn__session sessions[SESSIONS];
    struct {
        uint64_t hash, nbytes;
    } heard[SESSIONS];
};

static struct world worlds[2];
static uint32_t chop_state;

/* ---- doing ---- */

static void settle(struct world *w) {
    while (cairn__sessions_next(&w->all)) continue;
}

static void hear_from(struct world *w, int i, size_t most) {
    struct cairn__session *s = &w->sessions[i];
    for (struct cairn__blob out; most > 0 && (out = cairn__session_output(s)).nbytes > 0;) {
        const size_t n = out.nbytes < most ? out.nbytes : most;
        for (size_t k = 0; k < n; k += k < 4096 ? 1 : 61) {
            w->heard[i].hash = cairn__hash_word(w->heard[i].hash, out.data[k]);
        }
        w->heard[i].nbytes += n;
        most -= n;
        cairn__session_sent(&w->all, s, n);
        settle(w);
    }
}

/* Nothing is settled between the pieces: a whole one cannot be interrupted either. */
static void feed(struct world *w, int i, const uint8_t *data, size_t nbytes) {
    while (nbytes > 0) {
        size_t n = nbytes;
        chop_state = chop_state * 1664525u + 1013904223u;
        if (w == &worlds[1]) n = 1 + (chop_state >> 8) % (chop_state >> 28 ? 9 : nbytes);
        if (n > nbytes) n = nbytes;
        cairn__session_feed(&w->all, &w->sessions[i], data, n);
        data += n;
        nbytes -= n;
    }
    settle(w);
}

static void set_big(struct world *w, int i) {
    static uint8_t request[1 + 8 + 2 + 8 + BIG];
    const uint64_t length = BIG;
    const bool old = w->sessions[i].dialect && w->sessions[i].proven && w->heard[i].nbytes % 2;
    request[0] = old ? STORE_OLD_SET : STORE_SET;
    request[1] = 2;
    memcpy(request + 9, "/k", 2);
    memcpy(request + 11, &length, sizeof(length));
    cairn__session_feed(&w->all, &w->sessions[i], request, sizeof(request));
    settle(w);
}

static void act(struct world *w, int i, enum action action, const uint8_t *data, size_t nbytes) {
    static const uint8_t kept[] = "/k";
    switch (action) {
    case DRAIN_SOME:
        hear_from(w, i, nbytes * 41);
        break;
    case REOPEN:
        cairn__session_close(&w->all, &w->sessions[i]);
        cairn__session_open(&w->sessions[i], CAIRN__TRUST_FULL);
        break;
    case SET_BIG:
        set_big(w, i);
        break;
    case KEEP:
        cairn__table_keep(&w->all.table, (struct cairn__blob){kept, nbytes % 3});
        break;
    default:
        feed(w, i, data, nbytes);
        for (int k = 0; k < SESSIONS && action != FEED_AND_LEAVE; k++) hear_from(w, k, SIZE_MAX);
    }
}

/* ---- what must hold ---- */

static void check_session(struct world *w, struct cairn__session *s) {
    struct cairn__blob value;
    const size_t unsent = cairn__session_output(s).nbytes;
    FUZZ_CHECK(unsent <= (size_t)ENOUGH + STORE_MAX_REQUEST + 16);
    FUZZ_CHECK(!s->ended || s->why[0]);
    FUZZ_CHECK(!s->proven || s->dialect);
    FUZZ_CHECK(s->wait.on == (s->wait.link.next != &s->wait.link));
    FUZZ_CHECK(s->wait.on || s->wait.keys.capacity == 0);
    FUZZ_CHECK(!s->wait.on || s->wait.barrier || !cairn__table_get(&w->all.table, s->wait.key, &value));
    cairn__session_feed(&w->all, s, "", 0); /* no request that could run is left lying */
    settle(w);
    FUZZ_CHECK(cairn__session_output(s).nbytes == unsent);
}

static void check_world(struct world *w) {
    size_t buffered = 0;
    for (int i = 0; i < SESSIONS; i++) {
        check_session(w, &w->sessions[i]);
        buffered += w->sessions[i].in.capacity + w->sessions[i].out.capacity + w->sessions[i].wait.keys.capacity;
    }
    FUZZ_CHECK(buffered == w->all.buffered);
    FUZZ_CHECK(w->all.active.next == &w->all.active);
    FUZZ_CHECK(w->all.table.nbytes <= STORE_MAX_TABLE);
}

struct comparison {
    const struct cairn__table *other;
    size_t num_keys;
};

static void compare_pair(void *cookie, struct cairn__blob key, struct cairn__blob value) {
    struct comparison *c = cookie;
    struct cairn__blob same;
    FUZZ_CHECK(key.nbytes <= STORE_MAX_KEY && value.nbytes <= STORE_MAX_VALUE);
    FUZZ_CHECK(cairn__table_get(c->other, key, &same) && same.nbytes == value.nbytes);
    FUZZ_CHECK(!same.nbytes || memcmp(same.data, value.data, same.nbytes) == 0);
    c->num_keys++;
}

static void compare_tables(const struct cairn__table *a, const struct cairn__table *b) {
    struct comparison c = {b, 0};
    cairn__table_walk(a, compare_pair, &c);
    FUZZ_CHECK(c.num_keys == a->num_keys && a->num_keys == b->num_keys && a->nbytes == b->nbytes);
    FUZZ_CHECK(a->changes == b->changes && a->deletions == b->deletions);
}

static void compare_worlds(void) {
    for (int i = 0; i < SESSIONS; i++) {
        const struct cairn__session *a = &worlds[0].sessions[i], *b = &worlds[1].sessions[i];
        FUZZ_CHECK(a->ended == b->ended && strcmp(a->why, b->why) == 0);
        FUZZ_CHECK(a->proven == b->proven && a->dialect == b->dialect && a->wait.on == b->wait.on);
        FUZZ_CHECK(a->in.end - a->in.begin == b->in.end - b->in.begin || a->ended);
        FUZZ_CHECK(cairn__session_output(a).nbytes == cairn__session_output(b).nbytes);
        FUZZ_CHECK(worlds[0].heard[i].nbytes == worlds[1].heard[i].nbytes);
        FUZZ_CHECK(worlds[0].heard[i].nbytes > 4096 || worlds[0].heard[i].hash == worlds[1].heard[i].hash);
    }
    compare_tables(&worlds[0].all.table, &worlds[1].all.table);
}

/* ---- a run ---- */

static void begin(struct world *w) {
    memset(w, 0, sizeof(*w));
    cairn__sessions_init(&w->all);
    w->all.enough = ENOUGH;
    for (int i = 0; i < SESSIONS; i++) cairn__session_open(&w->sessions[i], CAIRN__TRUST_FULL);
}

static void end(struct world *w) {
    for (int i = 0; i < SESSIONS; i++) cairn__session_close(&w->all, &w->sessions[i]);
    for (int i = 0; i < CAIRN__WAIT_BUCKETS; i++) FUZZ_CHECK(w->all.awaiting[i].next == &w->all.awaiting[i]);
    FUZZ_CHECK(w->all.buffered == 0);
    cairn__sessions_clear(&w->all);
    FUZZ_CHECK(w->all.table.nbytes == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    const uint64_t alive = cairn__alloc_counters().alive;
    const uint8_t *const last = data + nbytes;
    chop_state = (uint32_t)nbytes;
    begin(&worlds[0]);
    begin(&worlds[1]);
    while (last - data >= 2) {
        const int who = data[0] % SESSIONS;
        const enum action action = (enum action)(data[0] / SESSIONS % 8);
        size_t n = data[1];
        const bool feeds = action <= FEED_AND_LEAVE;
        data += 2;
        if (feeds && n > (size_t)(last - data)) n = (size_t)(last - data);
        for (int w = 0; w < 2; w++) {
            act(&worlds[w], who, action, data, n);
            check_world(&worlds[w]);
        }
        compare_worlds();
        if (feeds) data += n;
    }
    end(&worlds[0]);
    end(&worlds[1]);
    FUZZ_CHECK(cairn__alloc_counters().alive == alive);
    return 0;
}

/* ---- seeds ---- */

/* Sessions and what they say, by turns. */
static const char *const dialogues[][12] = {
    {"0" HELLO, "1" HELLO, "0 06 | 02*8 | 02*8 '/a' | 02*8 '/b' | 03 | 02*8 '/b'", "1 01 | 02*8 '/a' | 00*8",
     "1 01 | 02*8 '/b' | 01*8 'v'"},
    {"0 05 | 01*8 | 02*8 '/k'", "1 00 | 02*8 '/k' | 01*8 'v'", "0 02 | 02*8 '/k'", "0 05 | 01*8 | 02*8 '/z'",
     "0 06 | 0c"},
    {"0" HELLO, "1" HELLO, "2" HELLO, "0 06 | 01*8 | 02*8 '/q' | 0f | 02*8 '/q'",
     "1 06 | 01*8 | 02*8 '/q' | 0f | 02*8 '/q'", "2 0e | 02*8 '/q' | 01*8 'a' | 0e | 02*8 '/q' | 01*8 'b'"},
    {"0" HELLO, "1" HELLO, "2" HELLO, "0 12 | 02*8 '/b' | 03*8 | 07", "1 12 | 02*8 '/b' | 03*8",
     "2 12 | 02*8 '/b' | 03*8", "0 0c", "3 'GET / HTTP/1.0'"},
    {"0" HELLO, "1" HELLO, "2" HELLO, "0 06 | 01*8 | 01*8 'a' | 01 | 01*8 'b' | 00*8",
     "1 06 | 01*8 | 01*8 'b' | 01 | 01*8 'c' | 00*8", "2 01 | 01*8 'a' | 00*8 | 06 | 01*8 | 01*8 'c' | 08 | 01*8 'a'",
     "0 11"},
    {"0" HELLO, "1" HELLO, "0 06 | 01*8 | 02*8 '/b'", "1 12 | 02*8 '/b' | 02*8"}, /* a WAIT for a barrier's number */
};

static size_t put_record(uint8_t *out, int who, enum action action, const char *script) {
    out[0] = (uint8_t)(action * SESSIONS + who);
    const size_t n = bytes_of(script, out + 2);
    out[1] = (uint8_t)n;
    return 2 + n;
}

static size_t transcript_seed(const char *const *lines, uint8_t *out) {
    size_t n = 0;
    for (; *lines; lines++) {
        if (**lines == '>') n += put_record(out + n, 0, FEED, *lines + 1);
    }
    return n;
}

/* Many large replies, read slowly. */
static size_t crowded_seed(uint8_t *out) {
    size_t n = put_record(out, 0, FEED, HELLO);
    n += put_record(out + n, 0, SET_BIG, "");
    for (int i = 0; i < 6; i++) n += put_record(out + n, 0, FEED_AND_LEAVE, "03 | 02*8 '/k' | 07");
    for (int i = 0; i < 3; i++) {
        n += put_record(out + n, 0, DRAIN_SOME, "");
        out[n - 1] = 255;
    }
    n += put_record(out + n, 1, FEED, HELLO "| 0a | 02*8 | 02*8 '/k' | 02*8 '/k' | 06 | 01*8 | 02*8 '/n'");
    n += put_record(out + n, 0, KEEP, "");
    return n + put_record(out + n, 1, REOPEN, "");
}

static size_t fuzz_seed(int i, uint8_t *out) {
    enum { DIALOGUES = sizeof(dialogues) / sizeof(dialogues[0]) };
    size_t n = 0;
    if (i == 0) return transcript_seed(torch_2_2, out);
    if (i == 1) return transcript_seed(torch_newest, out);
    if (i == 2) return transcript_seed(torch_1_13, out);
    if (i == 3) return crowded_seed(out);
    if (i - 4 >= DIALOGUES) return 0;
    for (const char *const *line = dialogues[i - 4]; *line; line++)
        n += put_record(out + n, **line - '0', FEED, *line + 1);
    return n;
}
