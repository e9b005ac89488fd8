/* A request is measured field by field as it arrives, by the pattern of its op, and never again from its beginning; a
 * request beyond a limit ends the session before all its bytes have arrived. A complete request is run directly from
 * the piece in which it arrived; only the rest of a piece is copied.
 *
 * A session awaits one key at a time, the first missing one of its WAIT. Writing a key wakes only the sessions that
 * await it, so n ranks that wait for n keys cause n * n lookups in all, not that many for every write. (After a
 * deletion a WAIT looks up all of its keys again.)
 *
 * Requests behind a WAIT are queued until it is answered, except CANCEL_WAIT. In the old dialect a request cancels the
 * WAIT before it: clients of that dialect have no other way to cancel, and would take the late answer for that of
 * another request. */
#include "rendezvous/store/session.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/status.h"
#include "rendezvous/store/wire.h"

enum {
    SMALL = 4 << 10, /* buffers of up to this size are kept when empty */
    PAIR_COST = 256, /* memory of an entry beyond its bytes */
    NO_OP = UINT8_MAX,
};

/* A complete request, ready to run: reading its fields cannot fail. */
struct call {
    struct cairn__sessions *all;
    struct cairn__session *s;
    const uint8_t *at, *end;
};

/* fields: k key, v value, 4 and 8 bytes, n how often the fields after it repeat. run returns false if the session has
 * to end, with the reason in cairn_last_error. */
struct op {
    const char *fields;
    bool (*run)(struct call *c);
};

struct cairn__dialect {
    const struct op *ops;
    size_t num_ops;
    uint8_t cancel;
    bool missing_ends;   /* GET of a missing key ends the session */
    bool asking_cancels; /* a request cancels the WAIT before it */
};

/* ---- rings ---- */

static void ring_init(struct cairn__link *l) {
    l->next = l->prev = l;
}

static bool is_alone(const struct cairn__link *l) {
    return l->next == l;
}

static void leave(struct cairn__link *l) {
    l->next->prev = l->prev;
    l->prev->next = l->next;
    ring_init(l);
}

static void join(struct cairn__link *head, struct cairn__link *l) {
    l->prev = head->prev;
    l->next = head;
    l->prev->next = l;
    head->prev = l;
}

#define SESSION_OF(link, member) ((struct cairn__session *)((char *)(link)-offsetof(struct cairn__session, member)))

static void activate(struct cairn__sessions *all, struct cairn__session *s) {
    if (is_alone(&s->active)) join(&all->active, &s->active);
}

/* ---- buffers ---- */

static size_t pending(const struct cairn__buffer *b) {
    return b->end - b->begin;
}

static void release(struct cairn__sessions *all, struct cairn__buffer *b) {
    all->buffered -= b->capacity;
    cairn__free(b->data);
    *b = (struct cairn__buffer){0};
}

static cairn_status put(struct cairn__sessions *all, struct cairn__buffer *b, const void *data, size_t nbytes) {
    if (nbytes == 0) return CAIRN_OK;
    if (b->begin && b->capacity - b->end < nbytes) {
        memmove(b->data, b->data + b->begin, pending(b));
        b->end -= b->begin;
        b->begin = 0;
    }
    const size_t before = b->capacity;
    REQUIRE(b->end + nbytes <= before || all->buffered + 2 * (b->end + nbytes) <= STORE_MAX_BUFFERS, CAIRN_ENOMEM,
            "unfinished requests and unread replies of all connections take more than %d bytes", STORE_MAX_BUFFERS);
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow((void **)&b->data, &b->capacity, b->end + nbytes, 1));
    all->buffered += b->capacity - before;
    memcpy(b->data + b->end, data, nbytes);
    b->end += nbytes;
out:
    return st;
}

static void take(struct cairn__sessions *all, struct cairn__buffer *b, size_t nbytes) {
    b->begin += nbytes;
    if (b->begin < b->end) return;
    b->begin = b->end = 0;
    if (b->capacity > SMALL) release(all, b);
}

/* ---- ends and replies ---- */

static void end_session(struct cairn__session *s, const char *why) {
    if (s->ended) return;
    s->ended = true;
    snprintf(s->why, sizeof(s->why), "%s", why);
}

static void reply(struct call *c, const void *data, size_t nbytes) {
    if (c->s->ended) return;
    if (put(c->all, &c->s->out, data, nbytes) != CAIRN_OK) end_session(c->s, cairn_last_error());
}

static void reply_u8(struct call *c, uint8_t value) {
    reply(c, &value, sizeof(value));
}

static void reply_i64(struct call *c, int64_t value) {
    reply(c, &value, sizeof(value));
}

static void reply_blob(struct call *c, struct cairn__blob b) {
    const uint64_t nbytes = b.nbytes;
    reply(c, &nbytes, sizeof(nbytes));
    reply(c, b.data, b.nbytes);
}

/* ---- fields ---- */

static uint64_t u64_at(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return value;
}

static uint64_t next_u64(struct call *c) {
    c->at += sizeof(uint64_t);
    return u64_at(c->at - sizeof(uint64_t));
}

static struct cairn__blob next_blob(struct call *c) {
    const size_t nbytes = (size_t)next_u64(c);
    c->at += nbytes;
    return (struct cairn__blob){c->at - nbytes, nbytes};
}

/* ---- waiting ---- */

static struct cairn__link *bucket_of(struct cairn__sessions *all, struct cairn__blob key) {
    const uint32_t hash = cairn__hash32_bytes(CAIRN__HASH32_START, key.data, key.nbytes);
    return &all->awaiting[(hash ^ hash >> 16) % CAIRN__WAIT_BUCKETS];
}

static bool is_present(struct cairn__sessions *all, struct cairn__blob key) {
    struct cairn__blob value;
    return cairn__table_get(&all->table, key, &value);
}

static void stop_waiting(struct cairn__sessions *all, struct cairn__session *s) {
    if (!s->wait.on) return;
    leave(&s->wait.link);
    release(all, &s->wait.keys);
    s->wait.on = s->wait.barrier = false;
}

static void await(struct cairn__sessions *all, struct cairn__session *s, struct cairn__blob key) {
    s->wait.key = key;
    join(bucket_of(all, key), &s->wait.link);
}

/* True if no key is missing; otherwise the session awaits the next missing one. */
static bool look_further(struct cairn__sessions *all, struct cairn__session *s) {
    if (s->wait.deletions != all->table.deletions) s->wait.at = 0;
    s->wait.deletions = all->table.deletions;
    while (s->wait.at < s->wait.keys.end) {
        const uint8_t *at = s->wait.keys.data + s->wait.at;
        const struct cairn__blob key = {at + sizeof(uint64_t), (size_t)u64_at(at)};
        if (!is_present(all, key)) {
            await(all, s, key);
            return false;
        }
        s->wait.at += sizeof(uint64_t) + key.nbytes;
    }
    return true;
}

enum whom { ALL, ALL_BUT_BARRIERS };

/* Wakes the sessions that await key, if it is present. */
static void wake(struct cairn__sessions *all, struct cairn__blob key, enum whom whom) {
    struct cairn__link *head = bucket_of(all, key);
    if (is_alone(head) || !is_present(all, key)) return;
    for (struct cairn__link *l = head->next, *next; l != head; l = next) {
        next = l->next;
        struct cairn__session *s = SESSION_OF(l, wait.link);
        if (s->wait.key.nbytes != key.nbytes || memcmp(s->wait.key.data, key.data, key.nbytes) != 0) continue;
        if (s->wait.barrier && whom == ALL_BUT_BARRIERS) continue;
        leave(l);
        if (!s->wait.barrier && !look_further(all, s)) continue;
        struct call c = {.all = all, .s = s};
        stop_waiting(all, s);
        reply_u8(&c, STORE_STOP_WAITING);
        activate(all, s);
    }
}

/* Copies the rest of the call, which is its keys, for the wait. */
static bool begin_waiting(struct call *c, bool barrier) {
    struct cairn__session *s = c->s;
    if (put(c->all, &s->wait.keys, c->at, (size_t)(c->end - c->at)) != CAIRN_OK) return false;
    s->wait.on = true;
    s->wait.barrier = barrier;
    s->wait.at = 0;
    s->wait.deletions = c->all->table.deletions;
    return true;
}

/* ---- one function per op ---- */

static bool on_set(struct call *c) {
    const struct cairn__blob key = next_blob(c), value = next_blob(c);
    if (cairn__table_set(&c->all->table, key, value) != CAIRN_OK) return false;
    wake(c->all, key, ALL);
    return true;
}

static bool on_append(struct call *c) {
    const struct cairn__blob key = next_blob(c), value = next_blob(c);
    if (cairn__table_append(&c->all->table, key, value) != CAIRN_OK) return false;
    wake(c->all, key, ALL);
    return true;
}

static bool on_compare_set(struct call *c) {
    const struct cairn__blob key = next_blob(c), expected = next_blob(c), desired = next_blob(c);
    struct cairn__blob now;
    if (cairn__table_compare_set(&c->all->table, key, expected, desired, &now) != CAIRN_OK) return false;
    reply_blob(c, now);
    wake(c->all, key, ALL);
    return true;
}

static bool on_add(struct call *c) {
    const struct cairn__blob key = next_blob(c);
    int64_t sum = 0;
    if (cairn__table_add(&c->all->table, key, (int64_t)next_u64(c), &sum) != CAIRN_OK) return false;
    reply_i64(c, sum);
    wake(c->all, key, ALL);
    return true;
}

/* False for a missing key if the dialect has no answer for that. */
static bool look_up(struct call *c, struct cairn__blob key, struct cairn__blob *value) {
    *value = (struct cairn__blob){NULL, 0};
    if (cairn__table_get(&c->all->table, key, value) || !c->s->dialect->missing_ends) return true;
    cairn__fail(CAIRN_EINVAL, "it requested key '%.*s', which does not exist", (int)(key.nbytes < 64 ? key.nbytes : 64),
                (const char *)key.data);
    return false;
}

static bool on_get(struct call *c) {
    struct cairn__blob value;
    if (!look_up(c, next_blob(c), &value)) return false;
    reply_blob(c, value);
    return true;
}

static bool on_check(struct call *c) {
    bool present = true;
    for (uint64_t n = next_u64(c); n > 0 && present; n--) present = is_present(c->all, next_blob(c));
    reply_u8(c, present ? STORE_READY : STORE_NOT_READY);
    return true;
}

static bool on_wait(struct call *c) {
    if (next_u64(c) > 0) {
        if (!begin_waiting(c, false)) return false;
        if (!look_further(c->all, c->s)) return true;
        stop_waiting(c->all, c->s);
    }
    reply_u8(c, STORE_STOP_WAITING);
    return true;
}

/* The first n - 1 callers wait for the n-th; as in torch, ADD on the same key counts, too. */
static bool on_barrier(struct call *c) {
    const uint8_t *begin = c->at;
    const struct cairn__blob key = next_blob(c);
    const int64_t n = (int64_t)next_u64(c);
    int64_t sum = 0;
    if (cairn__table_add(&c->all->table, key, 1, &sum) != CAIRN_OK) return false;
    if (sum >= n) {
        reply_u8(c, STORE_STOP_WAITING);
        wake(c->all, key, ALL);
        return true;
    }
    if (sum == 1) wake(c->all, key, ALL_BUT_BARRIERS);
    c->at = begin;
    if (!begin_waiting(c, true)) return false;
    await(c->all, c->s, (struct cairn__blob){c->s->wait.keys.data + sizeof(uint64_t), key.nbytes});
    return true;
}

/* Answers even if there is no WAIT before it, as torch's server does. */
static bool on_cancel_wait(struct call *c) {
    stop_waiting(c->all, c->s);
    reply_u8(c, STORE_WAIT_CANCELED);
    return true;
}

static bool on_getnumkeys(struct call *c) {
    reply_i64(c, (int64_t)c->all->table.num_keys);
    return true;
}

static bool on_delete(struct call *c) {
    reply_i64(c, cairn__table_delete(&c->all->table, next_blob(c)));
    return true;
}

static bool is_too_long(uint64_t nbytes) {
    if (nbytes <= STORE_MAX_REQUEST) return false;
    cairn__fail(CAIRN_EINVAL, "a reply of more than %d bytes", STORE_MAX_REQUEST);
    return true;
}

/* All or nothing: first adds up the memory that the reply needs. */
static bool on_multi_get(struct call *c) {
    struct call again = *c;
    const uint64_t count = next_u64(c);
    uint64_t total = 0;
    for (uint64_t i = 0; i < count; i++) {
        struct cairn__blob value;
        if (!look_up(c, next_blob(c), &value)) return false;
        total += sizeof(uint64_t) + value.nbytes;
        if (is_too_long(total)) return false;
    }
    next_u64(&again);
    for (uint64_t i = 0; i < count; i++) {
        struct cairn__blob value;
        (void)look_up(&again, next_blob(&again), &value);
        reply_blob(c, value);
    }
    return true;
}

static bool on_multi_set(struct call *c) {
    const uint64_t count = next_u64(c);
    const size_t most = (size_t)(c->end - c->at) + (size_t)count * PAIR_COST;
    if (c->all->table.nbytes + most > STORE_MAX_TABLE) {
        cairn__fail(CAIRN_EINVAL, "the store is full: its keys and values would take more than %d bytes",
                    STORE_MAX_TABLE);
        return false;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (!on_set(c)) return false;
    }
    return true;
}

static bool on_ping(struct call *c) {
    reply(c, c->at, sizeof(uint32_t));
    return true;
}

static void add_length(void *total, struct cairn__blob key, struct cairn__blob value) {
    (void)value;
    *(uint64_t *)total += sizeof(uint64_t) + key.nbytes;
}

static void reply_key(void *call, struct cairn__blob key, struct cairn__blob value) {
    (void)value;
    reply_blob(call, key);
}

static bool on_list_keys(struct call *c) {
    uint64_t total = sizeof(uint64_t);
    cairn__table_walk(&c->all->table, add_length, &total);
    if (is_too_long(total)) return false;
    reply_i64(c, (int64_t)c->all->table.num_keys);
    cairn__table_walk(&c->all->table, reply_key, c);
    return true;
}

static const struct op new_ops[] = {
    [STORE_SET] = {"kv", on_set},
    [STORE_COMPARE_SET] = {"kvv", on_compare_set},
    [STORE_GET] = {"k", on_get},
    [STORE_ADD] = {"k8", on_add},
    [STORE_CHECK] = {"nk", on_check},
    [STORE_WAIT] = {"nk", on_wait},
    [STORE_GETNUMKEYS] = {"", on_getnumkeys},
    [STORE_DELETE_KEY] = {"k", on_delete},
    [STORE_APPEND] = {"kv", on_append},
    [STORE_MULTI_GET] = {"nk", on_multi_get},
    [STORE_MULTI_SET] = {"nkv", on_multi_set},
    [STORE_CANCEL_WAIT] = {"", on_cancel_wait},
    [STORE_PING] = {"4", on_ping},
    [STORE_LIST_KEYS] = {"", on_list_keys},
    [STORE_BARRIER] = {"k8", on_barrier},
};

#define OLD_OPS                                                                                              \
    [STORE_OLD_SET] = {"kv", on_set}, [STORE_OLD_COMPARE_SET] = {"kvv", on_compare_set},                     \
    [STORE_OLD_GET] = {"k", on_get}, [STORE_OLD_ADD] = {"k8", on_add}, [STORE_OLD_CHECK] = {"nk", on_check}, \
    [STORE_OLD_WAIT] = {"nk", on_wait}, [STORE_OLD_GETNUMKEYS] = {"", on_getnumkeys}

static const struct op old_ops[] = {
    OLD_OPS,
    [STORE_OLD_DELETE_KEY] = {"k", on_delete},
};
static const struct op ops_of_2_1[] = {
    OLD_OPS,
    [STORE_2_1_DELETE_KEY] = {"k", on_delete},
    [STORE_2_1_APPEND] = {"kv", on_append},
    [STORE_2_1_MULTI_GET] = {"nk", on_multi_get},
    [STORE_2_1_MULTI_SET] = {"nkv", on_multi_set},
    [STORE_2_1_CANCEL_WAIT] = {"", on_cancel_wait},
};

#define OPS(table) .ops = (table), .num_ops = sizeof(table) / sizeof((table)[0])

static const struct cairn__dialect new_dialect = {OPS(new_ops), .cancel = STORE_CANCEL_WAIT};
static const struct cairn__dialect old_dialect = {OPS(old_ops), .cancel = NO_OP, .missing_ends = true,
                                                  .asking_cancels = true};
static const struct cairn__dialect dialect_of_2_1 = {OPS(ops_of_2_1), .cancel = STORE_2_1_CANCEL_WAIT,
                                                     .missing_ends = true, .asking_cancels = true};

/* ---- input ---- */

/* The input of a session: its buffer, or the piece that has just arrived. */
struct view {
    const uint8_t *at, *end;
};

static size_t left(const struct view *v) {
    return (size_t)(v->end - v->at);
}

/* False while there are too few bytes to decide. */
static bool find_dialect(struct cairn__session *s, struct view *v) {
    static const uint32_t magic = STORE_MAGIC;
    uint8_t mark[1 + sizeof(magic)] = {STORE_VALIDATE};
    memcpy(mark + 1, &magic, sizeof(magic));
    const size_t n = left(v) < sizeof(mark) ? left(v) : sizeof(mark);
    if (memcmp(v->at, mark, n) != 0) {
        s->dialect = &old_dialect;
    } else if (n == sizeof(mark)) {
        s->dialect = &new_dialect;
        v->at += sizeof(mark);
    }
    return s->dialect != NULL;
}

/* Whether only 2.1 has this op number. APPEND of 2.1 has the number of DELETE_KEY in older versions, so a session is of
 * 2.1 once it has used another such number. */
static bool is_of_2_1(uint8_t number) {
    return number >= STORE_2_1_DELETE_KEY && number <= STORE_2_1_CANCEL_WAIT && number != STORE_OLD_DELETE_KEY;
}

enum verdict { WHOLE, PARTIAL, BAD };

/* The size of the field at the measured position, once its length has arrived. */
static enum verdict measure_field(struct cairn__session *s, const struct view *v, size_t *nbytes) {
    const char field = *s->measured.field;
    const uint8_t *at = v->at + s->measured.nbytes;
    *nbytes = field == '4' ? sizeof(uint32_t) : sizeof(uint64_t);
    if ((size_t)(v->end - at) < *nbytes) return PARTIAL;
    if (field == '4' || field == '8') return WHOLE;
    const uint64_t number = u64_at(at);
    const uint64_t most = field == 'k' ? STORE_MAX_KEY : field == 'v' ? STORE_MAX_VALUE : STORE_MAX_KEYS;
    if (number > most) {
        cairn__fail(CAIRN_EINVAL, "a request with %s %llu; a store takes up to %llu",
                    field == 'k'   ? "a key's length of"
                    : field == 'v' ? "a value's length of"
                                   : "a number of keys of",
                    (unsigned long long)number, (unsigned long long)most);
        return BAD;
    }
    if (field == 'n') {
        s->measured.rounds = number;
        s->measured.repeat = s->measured.field + 1;
    } else {
        *nbytes += (size_t)number;
    }
    return (size_t)(v->end - at) < *nbytes ? PARTIAL : WHOLE;
}

/* Continues where the last call stopped. WHOLE: measured.nbytes is the request's size. */
static enum verdict measure(struct cairn__session *s, const struct view *v, const struct op *op) {
    if (!s->measured.field) {
        s->measured.field = op->fields;
        s->measured.repeat = NULL;
        s->measured.nbytes = 1;
    }
    while (*s->measured.field) {
        size_t nbytes = 0;
        const enum verdict verdict = measure_field(s, v, &nbytes);
        if (verdict == BAD) return BAD;
        if (s->measured.nbytes + nbytes > STORE_MAX_REQUEST) {
            cairn__fail(CAIRN_EINVAL, "a request of more than %d bytes", STORE_MAX_REQUEST);
            return BAD;
        }
        if (verdict == PARTIAL) return PARTIAL;
        s->measured.nbytes += nbytes;
        if (s->measured.repeat == ++s->measured.field && s->measured.rounds == 0) break; /* a count of 0 */
        if (!*s->measured.field && s->measured.repeat && --s->measured.rounds > 0)
            s->measured.field = s->measured.repeat;
    }
    s->measured.field = NULL;
    return WHOLE;
}

/* ---- what a guest may not do ---- */

/* Keys are as on the wire, with torch's "/" in front. */
static bool is_cairns(const uint8_t *key, uint64_t nbytes) {
    static const char prefix[] = "/cairn";
    return nbytes >= sizeof(prefix) - 1 && memcmp(key, prefix, sizeof(prefix) - 1) == 0;
}

/* Whether a complete request, starting after its number, names a key of Cairn's. */
static bool names_cairns(const uint8_t *at, const char *fields) {
    uint64_t rounds = 1;
    if (*fields == 'n') {
        rounds = u64_at(at);
        at += sizeof(uint64_t);
        fields++;
    }
    for (; rounds > 0; rounds--) {
        for (const char *f = fields; *f; f++) {
            const uint64_t nbytes = *f == 'k' || *f == 'v' ? u64_at(at) : 0;
            if (*f == 'k' && is_cairns(at + sizeof(uint64_t), nbytes)) return true;
            at += *f == '4' ? sizeof(uint32_t) : sizeof(uint64_t) + nbytes;
        }
    }
    return false;
}

static bool is_refused(struct cairn__session *s, const struct op *op, const uint8_t *at) {
    if (s->trust == CAIRN__TRUST_FULL || (op->run != on_list_keys && !names_cairns(at, op->fields))) return false;
    cairn__fail(CAIRN_EINVAL, "it asked for a key of Cairn's without proving that it knows the job's secret");
    return s->refused = true;
}

/* ---- running ---- */

static bool may_run(const struct cairn__sessions *all, const struct cairn__session *s) {
    return !s->ended && pending(&s->out) < all->enough;
}

/* False if v holds nothing more that can be run now. */
static bool run_one(struct cairn__sessions *all, struct cairn__session *s, struct view *v) {
    if (!s->dialect && !find_dialect(s, v)) return false;
    if (left(v) == 0) return false;
    const uint8_t number = *v->at;
    if (s->dialect == &old_dialect && is_of_2_1(number)) s->dialect = &dialect_of_2_1;
    const struct op *op = number < s->dialect->num_ops ? &s->dialect->ops[number] : NULL;
    if (s->wait.on && number != s->dialect->cancel) {
        if (!s->dialect->asking_cancels) return false;
        stop_waiting(all, s);
    }
    if (!op || !op->run) {
        cairn__fail(CAIRN_EINVAL, "a request with the unknown number %d", number);
        end_session(s, cairn_last_error());
        return false;
    }
    const enum verdict verdict = measure(s, v, op);
    if (verdict == PARTIAL) return false;
    struct call c = {all, s, v->at + 1, v->at + s->measured.nbytes};
    if (verdict == BAD || is_refused(s, op, c.at) || !op->run(&c)) {
        end_session(s, cairn_last_error());
        return false;
    }
    v->at += s->measured.nbytes;
    s->proven = true;
    return true;
}

/* A client that already has full trust may prove itself, too, by beginning with a proof. */
static bool is_proving(const struct cairn__sessions *all, const struct cairn__session *s, const struct view *v) {
    const bool is_begun = s->proof.nbytes > 0 || s->proof.state == CAIRN__PROOF_ANSWERED;
    const bool is_first = !s->dialect && pending(&s->in) == 0 && s->proof.state == CAIRN__PROOF_BEGINS;
    if (s->trust == CAIRN__TRUST_NONE || is_begun) return true;
    return all->secret && is_first && left(v) && *v->at == (uint8_t)CAIRN__HELLO[0];
}

static void refuse(struct cairn__session *s, const char *why) {
    s->refused = true;
    end_session(s, why);
}

/* Takes the proof from the front of v. False if nothing may be run yet. */
static bool prove(struct cairn__sessions *all, struct cairn__session *s, struct view *v) {
    uint8_t second[CAIRN__PROOF_SECOND];
    size_t nbytes = left(v);
    if (nbytes == 0 || !is_proving(all, s, v)) return s->trust != CAIRN__TRUST_NONE;
    if (!all->secret) {
        refuse(s, "it is not trusted, and there is no secret by which it could prove itself");
        return false;
    }
    s->proof.port = all->port;
    for (;;) {
        switch (cairn__proof_take(&s->proof, all->secret, &v->at, &nbytes, second)) {
        case CAIRN__PROOF_MORE:
            return false;
        case CAIRN__PROOF_REPLY:
            if (put(all, &s->out, second, sizeof(second)) != CAIRN_OK) end_session(s, cairn_last_error());
            break;
        case CAIRN__PROOF_PROVEN:
            s->trust = CAIRN__TRUST_FULL;
            return true;
        case CAIRN__PROOF_REFUSED:
            refuse(s, "it did not prove that it knows the job's secret");
            return false;
        }
    }
}

static void run(struct cairn__sessions *all, struct cairn__session *s, struct view *v) {
    while (left(v) && may_run(all, s) && run_one(all, s, v)) continue;
}

static void run_kept(struct cairn__sessions *all, struct cairn__session *s) {
    const size_t before = pending(&s->in);
    if (before == 0 || !may_run(all, s)) return;
    struct view v = {s->in.data + s->in.begin, s->in.data + s->in.end};
    run(all, s, &v);
    take(all, &s->in, before - left(&v));
}

/* ---- sessions ---- */

void cairn__sessions_init(struct cairn__sessions *all) {
    memset(all, 0, sizeof(*all));
    all->enough = CAIRN__ENOUGH;
    ring_init(&all->active);
    for (size_t i = 0; i < CAIRN__WAIT_BUCKETS; i++) ring_init(&all->awaiting[i]);
}

void cairn__sessions_clear(struct cairn__sessions *all) {
    cairn__table_clear(&all->table);
}

void cairn__session_open(struct cairn__session *s, enum cairn__trust trust) {
    memset(s, 0, sizeof(*s));
    s->trust = trust;
    ring_init(&s->active);
    ring_init(&s->wait.link);
}

void cairn__session_close(struct cairn__sessions *all, struct cairn__session *s) {
    stop_waiting(all, s);
    leave(&s->active);
    release(all, &s->in);
    release(all, &s->out);
    s->ended = true;
}

void cairn__session_feed(struct cairn__sessions *all, struct cairn__session *s, const void *data, size_t nbytes) {
    if (s->ended) return;
    if (nbytes == 0) data = ""; /* data may be any pointer then */
    struct view v = {data, (const uint8_t *)data + nbytes};
    activate(all, s); /* before the sessions that it wakes, in however many pieces a request arrives */
    if (!prove(all, s, &v)) return;
    if (pending(&s->in) == 0) run(all, s, &v);
    if (!s->ended && put(all, &s->in, v.at, left(&v)) != CAIRN_OK) end_session(s, cairn_last_error());
    run_kept(all, s);
}

bool cairn__session_takes_input(const struct cairn__sessions *all, const struct cairn__session *s) {
    const bool kept_back = s->wait.on || pending(&s->out) >= all->enough;
    return !s->ended && !(kept_back && pending(&s->in) >= all->enough);
}

struct cairn__blob cairn__session_output(const struct cairn__session *s) {
    const size_t nbytes = pending(&s->out);
    return (struct cairn__blob){nbytes ? s->out.data + s->out.begin : NULL, nbytes};
}

void cairn__session_sent(struct cairn__sessions *all, struct cairn__session *s, size_t nbytes) {
    const bool throttled = !may_run(all, s);
    take(all, &s->out, nbytes);
    if (throttled && may_run(all, s)) activate(all, s);
}

struct cairn__session *cairn__sessions_next(struct cairn__sessions *all) {
    if (is_alone(&all->active)) return NULL;
    struct cairn__session *s = SESSION_OF(all->active.next, active);
    leave(&s->active);
    run_kept(all, s);
    return s;
}
