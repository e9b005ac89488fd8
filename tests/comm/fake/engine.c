/* Ranks are threads; a message is a block of memory in a list, under one lock. Transfers are split into messages
 * between ranks, and a random generator decides when each arrives. */
#include "engine.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/exchange/engine.h"
#include "core/alloc.h"
#include "core/status.h"
#include "device/module.h"

enum { MOST = 8, COLLECTIVE = -1 };

struct message {
    struct message *next;
    int from, to;
    int64_t order; /* number of the collective transfer, or of the message between these two ranks */
    bool collective, taken, owned;
    unsigned delay; /* number of receiver polls until it arrives */
    const void *data;
    size_t nbytes;
};

/* One group, found by its name while any rank has it open. */
struct hub {
    struct hub *next;
    char name[320];
    int size, users;
    struct message *messages;
    bool gone[MOST];
    struct fake_faults faults;
};

struct cairn__engine {
    struct hub *hub;
    struct cairn__moving *moving; /* in flight */
    int rank;
    int starts;
    unsigned random;
    int64_t collectives, sent[MOST], received[MOST];
};

/* A message that this rank waits for, or that waits to be received. */
struct leg {
    struct message *message; /* a sent message; NULL = to be received */
    int from;
    int64_t order;
    bool collective, done;
    void *dst;
    size_t nbytes;
};

struct cairn__moving {
    struct cairn__moving *next;
    int count;
    struct leg legs[2 * MOST];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of everything below and all hubs */
static struct hub *hubs;
static struct fake_faults faults;
static bool faults_set;
static int engines;
static size_t most_nbytes;

static unsigned draw(struct cairn__engine *e, unsigned below) {
    e->random = e->random * 1664525u + 1013904223u;
    return (e->random >> 16) % below;
}

/* ---- life ---- */

static cairn_status probe(bool launched) {
    (void)launched;
    return CAIRN_OK;
}

static struct hub *find_hub(const char *name, int size) {
    for (struct hub *h = hubs; h; h = h->next) {
        if (strcmp(h->name, name) == 0) return h;
    }
    struct hub *h = calloc(1, sizeof(*h));
    snprintf(h->name, sizeof(h->name), "%s", name);
    h->size = size;
    if (!faults_set && getenv("FAKE_ENGINE_SEED")) {
        faults.seed = (unsigned)atoi(getenv("FAKE_ENGINE_SEED"));
        faults.late_sends = faults.seed % 2;
    }
    h->faults = faults;
    h->next = hubs;
    return hubs = h;
}

static cairn_status open_engine(const struct cairn__engine_options *o, struct cairn__engine **out) {
    REQUIRE(o->size <= MOST, CAIRN_ENOTSUP, "the fake engine has %d ranks at most", MOST);
    struct cairn__engine *e = NULL;
    cairn_status st = cairn__calloc(1, sizeof(*e), (void **)&e);
    if (st != CAIRN_OK) return st;
    pthread_mutex_lock(&lock);
    e->hub = find_hub(o->prefix, o->size);
    e->rank = o->rank;
    e->random = e->hub->faults.seed * 31 + (unsigned)o->rank;
    e->hub->users++;
    engines++;
    pthread_mutex_unlock(&lock);
    *out = e;
    return CAIRN_OK;
}

static cairn_status derive(struct cairn__engine *parent, const int *ranks, const struct cairn__engine_options *o,
                           struct cairn__engine **out) {
    (void)parent, (void)ranks;
    return open_engine(o, out);
}

static void remove_message(struct hub *h, struct message *m) {
    struct message **at = &h->messages;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    if (m->owned) free((void *)(uintptr_t)m->data);
    free(m);
}

/* From here on nothing is read from this rank's arrays. */
static void withdraw(struct cairn__engine *e) {
    for (struct message *m = e->hub->messages, *next; m; m = next) {
        next = m->next;
        if (m->from == e->rank && !m->owned) remove_message(e->hub, m);
    }
}

static void free_hub(struct hub *h) {
    struct hub **at = &hubs;
    while (*at != h) at = &(*at)->next;
    *at = h->next;
    while (h->messages) remove_message(h, h->messages);
    free(h);
}

static bool close_engine(struct cairn__engine **engine) {
    struct cairn__engine *e = *engine;
    pthread_mutex_lock(&lock);
    const bool over = !e->moving || !e->hub->faults.clings;
    e->hub->gone[e->rank] = true;
    withdraw(e);
    if (--e->hub->users == 0) free_hub(e->hub);
    engines--;
    pthread_mutex_unlock(&lock);
    while (e->moving) {
        struct cairn__moving *next = e->moving->next;
        free(e->moving);
        e->moving = next;
    }
    cairn__free(e);
    *engine = NULL;
    return over;
}

static void abort_engine(struct cairn__engine *e) {
    pthread_mutex_lock(&lock);
    e->hub->gone[e->rank] = true;
    pthread_mutex_unlock(&lock);
}

/* ---- starting ---- */

static bool is_silent(const struct cairn__engine *e) {
    const struct fake_faults *f = &e->hub->faults;
    return f->silent_start && f->silent_rank == e->rank && e->starts >= f->silent_start;
}

static void send_to(struct cairn__engine *e, struct cairn__moving *moving, int to, bool collective, const void *data,
                    size_t nbytes) {
    if (to == e->rank || nbytes == 0) return;
    struct message *m = calloc(1, sizeof(*m)), **at = &e->hub->messages;
    *m = (struct message){.from = e->rank, .to = to, .collective = collective, .data = data, .nbytes = nbytes};
    m->order = collective ? e->collectives : e->sent[to]++;
    m->delay = e->hub->faults.seed ? draw(e, 6) : 0;
    if (!e->hub->faults.late_sends) {
        m->owned = true;
        m->data = memcpy(malloc(nbytes), data, nbytes);
    }
    if (is_silent(e)) m->to = -1;
    while (*at) at = &(*at)->next;
    *at = m;
    moving->legs[moving->count++] = (struct leg){.message = m, .done = m->owned};
}

static void receive_from(struct cairn__engine *e, struct cairn__moving *moving, int from, bool collective, void *dst,
                         size_t nbytes) {
    if (from == e->rank || nbytes == 0) return;
    moving->legs[moving->count++] = (struct leg){.from = from,
                                                 .order = collective ? e->collectives : e->received[from]++,
                                                 .collective = collective,
                                                 .dst = dst,
                                                 .nbytes = nbytes};
}

/* The data sent to rank r and received from it. */
static void start_with(struct cairn__engine *e, const struct cairn__transfer *t, struct cairn__moving *moving, int r) {
    char *dst = t->dst;
    const char *src = t->src;
    switch (t->kind) {
    case CAIRN__MOVE_ALLTOALL:
        if (t->src_nbytes[r]) send_to(e, moving, r, true, src + t->src_at[r], t->src_nbytes[r]);
        if (t->dst_nbytes[r]) receive_from(e, moving, r, true, dst + t->dst_at[r], t->dst_nbytes[r]);
        break;
    case CAIRN__MOVE_ALLGATHER:
        send_to(e, moving, r, true, dst + t->dst_at[e->rank], t->dst_nbytes[e->rank]);
        receive_from(e, moving, r, true, dst + t->dst_at[r], t->dst_nbytes[r]);
        break;
    case CAIRN__MOVE_BROADCAST:
        if (t->peer == e->rank) send_to(e, moving, r, true, dst, t->nbytes);
        if (t->peer == r) receive_from(e, moving, r, true, dst, t->nbytes);
        break;
    case CAIRN__MOVE_SEND:
        if (t->peer == r) send_to(e, moving, r, false, src, t->nbytes);
        break;
    case CAIRN__MOVE_RECV:
        if (t->peer == r) receive_from(e, moving, r, false, dst, t->nbytes);
        break;
    }
}

static size_t transfer_nbytes(const struct cairn__transfer *t, int size) {
    size_t sent = t->nbytes, received = t->nbytes;
    for (int r = 0; r < size && t->kind <= CAIRN__MOVE_ALLGATHER; r++) {
        sent += t->src_nbytes[r];
        received += t->dst_nbytes[r];
    }
    return sent > received ? sent : received;
}

static cairn_status start(struct cairn__engine *e, const struct cairn__transfer *t, struct cairn__moving **out) {
    const struct fake_faults *f = &e->hub->faults;
    e->starts++;
    REQUIRE(!f->failing_start || f->failing_rank != e->rank || e->starts < f->failing_start, CAIRN_EPEER,
            "the fake engine was told to fail");
    struct cairn__moving *moving = calloc(1, sizeof(*moving)); /* not counted: steady steps allocate nothing else */
    pthread_mutex_lock(&lock);
    for (int r = 0; r < e->hub->size; r++) start_with(e, t, moving, r);
    e->collectives += t->kind <= CAIRN__MOVE_BROADCAST;
    const size_t nbytes = transfer_nbytes(t, e->hub->size);
    if (nbytes > most_nbytes) most_nbytes = nbytes;
    pthread_mutex_unlock(&lock);
    moving->next = e->moving;
    *out = e->moving = moving;
    return CAIRN_OK;
}

/* ---- moving ---- */

static struct message *find_message(const struct cairn__engine *e, const struct leg *leg) {
    for (struct message *m = e->hub->messages; m; m = m->next) {
        if (m->to == e->rank && m->from == leg->from && m->collective == leg->collective && m->order == leg->order)
            return m;
    }
    return NULL;
}

static cairn_status receive(struct cairn__engine *e, struct leg *leg) {
    struct message *m = find_message(e, leg);
    if (!m || m->taken) {
        REQUIRE(!e->hub->gone[leg->from], CAIRN_EPEER, "rank %d of the fake engine is gone", leg->from);
        return CAIRN_OK;
    }
    if (m->delay > 0) {
        m->delay--;
        return CAIRN_OK;
    }
    REQUIRE(m->nbytes == leg->nbytes, CAIRN_EPEER, "rank %d of the fake engine sent %zu bytes, want %zu", leg->from,
            m->nbytes, leg->nbytes);
    memcpy(leg->dst, m->data, m->nbytes);
    m->taken = leg->done = true;
    if (m->owned) remove_message(e->hub, m);
    return CAIRN_OK;
}

static cairn_status look_after_sent(struct cairn__engine *e, struct leg *leg) {
    const struct message *m = leg->message;
    if (m->taken) {
        remove_message(e->hub, leg->message);
        leg->done = true;
        return CAIRN_OK;
    }
    REQUIRE(m->to < 0 || !e->hub->gone[m->to], CAIRN_EPEER, "rank %d of the fake engine is gone", m->to);
    return CAIRN_OK;
}

static void end(struct cairn__engine *e, struct cairn__moving *moving) {
    struct cairn__moving **at = &e->moving;
    while (*at != moving) at = &(*at)->next;
    *at = moving->next;
    free(moving);
}

static cairn_status test(struct cairn__engine *e, struct cairn__moving *moving, bool *done) {
    cairn_status st = CAIRN_OK;
    *done = true;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < moving->count && st == CAIRN_OK; i++) {
        struct leg *leg = &moving->legs[i];
        if (leg->done) continue;
        st = leg->message ? look_after_sent(e, leg) : receive(e, leg);
        *done = *done && leg->done;
    }
    pthread_mutex_unlock(&lock);
    if (st == CAIRN_OK && *done) end(e, moving);
    return st;
}

static void rest(struct cairn__engine *e, int idle) {
    enum { YIELDS = 50, SHORT_NAPS = 200, NAP_NS = 50000, LONG_NAP_NS = 1000000 };
    (void)e;
    if (idle < YIELDS) {
        sched_yield();
    } else {
        nanosleep(&(struct timespec){.tv_nsec = idle < YIELDS + SHORT_NAPS ? NAP_NS : LONG_NAP_NS}, NULL);
    }
}

/* ---- tables ---- */

static const struct cairn__engine_ops engine = {.size = sizeof(engine),
                                                .name = "fake",
                                                .probe = probe,
                                                .open = open_engine,
                                                .derive = derive,
                                                .close = close_engine,
                                                .start = start,
                                                .test = test,
                                                .rest = rest,
                                                .abort = abort_engine};

static void set_faults(const struct fake_faults *given) {
    pthread_mutex_lock(&lock);
    faults = *given;
    faults_set = true;
    most_nbytes = 0;
    pthread_mutex_unlock(&lock);
}

static int count_engines(void) {
    pthread_mutex_lock(&lock);
    const int count = engines;
    pthread_mutex_unlock(&lock);
    return count;
}

static size_t largest(void) {
    pthread_mutex_lock(&lock);
    const size_t nbytes = most_nbytes;
    pthread_mutex_unlock(&lock);
    return nbytes;
}

static const struct fake_control control = {sizeof(control), set_faults, count_engines, largest};

const struct cairn__module_tables cairn__module_tables = {
    .name = "gloo",
    .all = {{"group backend", &engine}, {"fake engine", &control}},
};
