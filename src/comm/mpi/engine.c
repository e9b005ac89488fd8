/* The engine: it moves a group's transfers as messages; every poll makes progress. */
#include <stdio.h>
#include <string.h>

#include "comm/mpi/module.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "device/module.h"

enum { LOOKS = 16 };                     /* unsuccessful tests between two looks for words of other ranks */
static const double LAST_MESSAGES = 0.2; /* s; the last messages of a rank that has left arrive within this time */

static const int words[] = {0, GAVE_UP, LEFT};

/* ---- opening ---- */

static cairn_status make(const struct cairn__engine_options *o, struct cairn__engine **out) {
    const size_t p = (size_t)o->size;
    cairn_status st = CAIRN_OK;
    struct cairn__engine *e = NULL;
    TRY(cairn__calloc(1, sizeof(*e), (void **)&e));
    e->rank = o->rank;
    e->size = o->size;
    e->timeout = o->timeout;
    e->comm = MPI_COMM_NULL;
    atomic_store(&e->caller, pthread_self());
    *out = e;
    TRY(cairn__calloc(p, sizeof(*e->peers), (void **)&e->peers));
    TRY(cairn__calloc(2 * p, sizeof(*e->statuses), (void **)&e->statuses));
out:
    return st;
}

static void free_list(struct cairn__moving *m) {
    while (m) {
        struct cairn__moving *next = m->next;
        cairn__free(m->requests);
        cairn__free(m->peers);
        cairn__free(m->nbytes);
        cairn__free(m);
        m = next;
    }
}

static void free_transfers(struct cairn__engine *e) {
    free_list(e->moving);
    free_list(e->unused);
    e->moving = e->unused = NULL;
    cairn__free(e->statuses);
    e->statuses = NULL;
}

static void end(struct cairn__engine **engine) {
    struct cairn__engine *e = *engine;
    if (!e) return;
    free_transfers(e);
    cairn__free(e->peers);
    cairn__free(e);
    *engine = NULL;
}

/* Exchanges the ranks' places in the communicator, and takes the highest of their next tags. */
static cairn_status meet_all(struct cairn__engine *e, struct cairn__mpi_watch *watch) {
    int mine[2] = {e->rank, cairn__mpi_next_tag()}, (*all)[2] = NULL;
    MPI_Request request;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc((size_t)e->size, sizeof(*all), (void **)&all));
    for (int r = 0; r < e->size; r++) e->peers[r].rank = -1;
    TRY(cairn__mpi_check(MPI_Iallgather(mine, 2, MPI_INT, all, 2, MPI_INT, e->comm, &request), "gather ranks"));
    TRY(cairn__mpi_wait_watched(&request, watch, "the first exchange over MPI"));
    for (int i = 0; i < e->size; i++) {
        const int rank = all[i][0];
        REQUIRE(rank >= 0 && rank < e->size && e->peers[rank].rank < 0, CAIRN_EPEER,
                "two processes of MPI_COMM_WORLD are rank %d; give each its own", rank);
        e->peers[rank].rank = i;
        if (all[i][1] > e->tag) e->tag = all[i][1];
    }
    TRY(cairn__mpi_take_tags(e->tag));
out:
    if (st == CAIRN_OK) cairn__free(all); /* else MPI may still write to it */
    return st;
}

static cairn_status open_engine(const struct cairn__engine_options *o, struct cairn__engine **out) {
    struct cairn__engine *e = NULL;
    struct cairn__mpi_watch watch;
    cairn_status st = CAIRN_OK;
    cairn__mpi_watch_begin(&watch, o);
    TRY(make(o, &e));
    TRY(cairn__mpi_enter(&watch, &e->comm));
    st = meet_all(e, &watch);
    if (st != CAIRN_OK) {
        cairn__mpi_mourn();
        goto out;
    }
    e->is_root = true;
    cairn__mpi_join(e);
    *out = e;
    return CAIRN_OK;
out:
    end(&e);
    return st;
}

/* The same between the members of a new group, by messages of the parent. */
static cairn_status meet_members(struct cairn__engine *e, const struct cairn__engine *parent,
                                 const struct cairn__engine_options *o) {
    const int mine = cairn__mpi_next_tag(), tag = parent->tag + TAG_NUMBER;
    int *all = NULL, count = 0;
    MPI_Request *requests = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc((size_t)e->size, sizeof(*all), (void **)&all));
    TRY(cairn__calloc(2 * (size_t)e->size, sizeof(*requests), (void **)&requests));
    for (int r = 0; r < e->size; r++) {
        const int to = e->peers[r].rank;
        all[r] = mine;
        if (r == e->rank) continue;
        TRY(cairn__mpi_check(MPI_Irecv(&all[r], 1, MPI_INT, to, tag, e->comm, &requests[count++]), "receive"));
        TRY(cairn__mpi_check(MPI_Isend(&mine, 1, MPI_INT, to, tag, e->comm, &requests[count++]), "send"));
    }
    TRY(cairn__mpi_wait(requests, count, o, "the members of a new group"));
    for (int r = 0; r < e->size; r++) e->tag = all[r] > e->tag ? all[r] : e->tag;
    TRY(cairn__mpi_take_tags(e->tag));
out:
    cairn__free(requests);
    if (st == CAIRN_OK) cairn__free(all); /* else MPI may still write to it */
    return st;
}

static cairn_status derive(struct cairn__engine *parent, const int *ranks, const struct cairn__engine_options *o,
                           struct cairn__engine **out) {
    struct cairn__engine *e = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(!cairn__mpi_is_over(), CAIRN_ESTATE, "this process has called MPI_Finalize, which ends its groups");
    TRY(make(o, &e));
    e->comm = parent->comm;
    for (int r = 0; r < e->size; r++) e->peers[r].rank = parent->peers[ranks[r]].rank;
    TRY(meet_members(e, parent, o));
    cairn__mpi_join(e);
    *out = e;
    return CAIRN_OK;
out:
    end(&e);
    return st;
}

/* ---- words to the others ---- */

static void tell(struct cairn__engine *e, enum word word) {
    if (cairn__mpi_is_over() || atomic_exchange(&e->told, true)) return;
    for (int r = 0; r < e->size; r++) {
        MPI_Request request;
        if (r == e->rank) continue;
        /* The message is so short that it is sent when the call returns. */
        if (MPI_Isend(&words[word], 1, MPI_INT, e->peers[r].rank, e->tag + TAG_CONTROL, e->comm, &request) ==
            MPI_SUCCESS)
            (void)MPI_Request_free(&request);
    }
}

static void abort_engine(struct cairn__engine *e) {
    if (pthread_equal(pthread_self(), atomic_load(&e->caller)) || cairn__mpi_any_thread()) {
        tell(e, GAVE_UP);
    } else {
        atomic_store(&e->wants_to_tell, true); /* the caller's thread does it */
    }
}

static cairn_status hear(struct cairn__engine *e) {
    int there = 1, word = 0;
    cairn_status st = CAIRN_OK;
    for (;;) {
        MPI_Status status;
        const int tag = e->tag + TAG_CONTROL;
        TRY(cairn__mpi_check(MPI_Iprobe(MPI_ANY_SOURCE, tag, e->comm, &there, &status), "look for messages"));
        if (!there) return CAIRN_OK;
        TRY(cairn__mpi_check(MPI_Recv(&word, 1, MPI_INT, status.MPI_SOURCE, tag, e->comm, MPI_STATUS_IGNORE),
                             "receive a word"));
        for (int r = 0; r < e->size; r++) {
            if (e->peers[r].rank != status.MPI_SOURCE) continue;
            e->peers[r].word = (enum word)word;
            e->peers[r].since = cairn__clock_seconds();
            e->missing = true;
        }
    }
out:
    return st;
}

/* Fails if this rank waits for a rank that gave up, or that left some time ago. */
static cairn_status look_for_missing(struct cairn__engine *e, const struct cairn__moving *m) {
    for (int i = 0; i < m->count; i++) {
        const struct mpi_peer *peer = &e->peers[m->peers[i]];
        int done = 0;
        if (!peer->word || (peer->word == LEFT && cairn__clock_seconds() - peer->since < LAST_MESSAGES)) continue;
        cairn_status st =
            cairn__mpi_check(MPI_Request_get_status(m->requests[i], &done, MPI_STATUS_IGNORE), "test a transfer");
        if (st != CAIRN_OK) return st;
        REQUIRE(done || peer->word != LEFT, CAIRN_EPEER, "rank %d left the group", m->peers[i]);
        REQUIRE(done, CAIRN_EPEER, "rank %d failed or aborted the group", m->peers[i]);
    }
    return CAIRN_OK;
}

/* ---- transfers ---- */

static cairn_status take_moving(struct cairn__engine *e, struct cairn__moving **out) {
    const size_t most = 2 * (size_t)e->size;
    struct cairn__moving *m = e->unused;
    cairn_status st = CAIRN_OK;
    if (!m) {
        TRY(cairn__calloc(1, sizeof(*m), (void **)&m));
        m->next = e->unused;
        e->unused = m;
        TRY(cairn__calloc(most, sizeof(*m->requests), (void **)&m->requests));
        TRY(cairn__calloc(most, sizeof(*m->peers), (void **)&m->peers));
        TRY(cairn__calloc(most, sizeof(*m->nbytes), (void **)&m->nbytes));
    }
    REQUIRE(m->nbytes, CAIRN_ENOMEM, "out of memory: no room for a transfer");
    e->unused = m->next;
    m->next = e->moving;
    e->moving = m;
    m->count = 0;
    m->forward = NULL;
    *out = m;
out:
    return st;
}

static MPI_Request *add_message(struct cairn__moving *m, int peer, int nbytes) {
    m->peers[m->count] = peer;
    m->nbytes[m->count] = nbytes;
    m->requests[m->count] = MPI_REQUEST_NULL;
    return &m->requests[m->count++];
}

static cairn_status send_to(struct cairn__engine *e, struct cairn__moving *m, int to, const void *data, size_t nbytes) {
    if (nbytes == 0 || to == e->rank) return CAIRN_OK;
    MPI_Request *request = add_message(m, to, -1);
    return cairn__mpi_check(MPI_Isend(data, (int)nbytes, MPI_BYTE, e->peers[to].rank, m->tag, e->comm, request),
                            "send to rank %d", to);
}

static cairn_status receive_from(struct cairn__engine *e, struct cairn__moving *m, int from, void *dst, size_t nbytes) {
    if (nbytes == 0 || from == e->rank) return CAIRN_OK;
    MPI_Request *request = add_message(m, from, (int)nbytes);
    return cairn__mpi_check(MPI_Irecv(dst, (int)nbytes, MPI_BYTE, e->peers[from].rank, m->tag, e->comm, request),
                            "receive from rank %d", from);
}

/* Receives first: a message that arrives after its receive is posted needs no copy. Each rank begins with its
 * neighbour; otherwise all would send to rank 0 at once. */
static cairn_status start_alltoall(struct cairn__engine *e, const struct cairn__transfer *t, struct cairn__moving *m) {
    cairn_status st = CAIRN_OK;
    for (int i = 1; i < e->size; i++) {
        const int r = (e->rank + e->size - i) % e->size;
        if (t->dst_nbytes[r]) TRY(receive_from(e, m, r, (char *)t->dst + t->dst_at[r], t->dst_nbytes[r]));
    }
    for (int i = 1; i < e->size; i++) {
        const int r = (e->rank + i) % e->size;
        if (t->src_nbytes[r]) TRY(send_to(e, m, r, (const char *)t->src + t->src_at[r], t->src_nbytes[r]));
    }
out:
    return st;
}

static cairn_status start_allgather(struct cairn__engine *e, const struct cairn__transfer *t, struct cairn__moving *m) {
    const char *own = (const char *)t->dst + t->dst_at[e->rank];
    cairn_status st = CAIRN_OK;
    for (int i = 1; i < e->size; i++) {
        const int r = (e->rank + e->size - i) % e->size;
        TRY(receive_from(e, m, r, (char *)t->dst + t->dst_at[r], t->dst_nbytes[r]));
    }
    for (int i = 1; i < e->size; i++) TRY(send_to(e, m, (e->rank + i) % e->size, own, t->dst_nbytes[e->rank]));
out:
    return st;
}

/* Sends to the children in the binomial tree whose root is number 0: v + 2^k for each 2^k below v's lowest bit. The
 * child with the most ranks below it comes first. */
static cairn_status send_on(struct cairn__engine *e, struct cairn__moving *m, const void *data) {
    const int number = (e->rank - m->root + e->size) % e->size;
    cairn_status st = CAIRN_OK;
    m->count = 0;
    m->forward = NULL;
    int bit = 1;
    while (bit < e->size && !(number & bit)) bit *= 2;
    while ((bit /= 2) > 0) {
        if (number + bit < e->size) TRY(send_to(e, m, (number + bit + m->root) % e->size, data, m->forward_nbytes));
    }
out:
    return st;
}

static cairn_status start_broadcast(struct cairn__engine *e, const struct cairn__transfer *t, struct cairn__moving *m) {
    const int number = (e->rank - t->peer + e->size) % e->size;
    m->root = t->peer;
    m->forward_nbytes = t->nbytes;
    if (number == 0) return send_on(e, m, t->dst);
    m->forward = t->dst;
    const int parent = number & (number - 1);
    return receive_from(e, m, (parent + t->peer) % e->size, t->dst, t->nbytes);
}

static cairn_status start_kind(struct cairn__engine *e, const struct cairn__transfer *t, struct cairn__moving *m) {
    switch (t->kind) {
    case CAIRN__MOVE_ALLTOALL:
        return start_alltoall(e, t, m);
    case CAIRN__MOVE_ALLGATHER:
        return start_allgather(e, t, m);
    case CAIRN__MOVE_BROADCAST:
        return start_broadcast(e, t, m);
    case CAIRN__MOVE_SEND:
        return send_to(e, m, t->peer, t->src, t->nbytes);
    default:
        return receive_from(e, m, t->peer, t->dst, t->nbytes);
    }
}

static cairn_status start(struct cairn__engine *e, const struct cairn__transfer *t, struct cairn__moving **out) {
    const bool is_collective = t->kind <= CAIRN__MOVE_BROADCAST;
    struct cairn__moving *m = NULL;
    cairn_status st = CAIRN_OK;
    atomic_store_explicit(&e->caller, pthread_self(), memory_order_relaxed);
    REQUIRE(!cairn__mpi_is_over(), CAIRN_EPEER, "this process has called MPI_Finalize, which ends its groups");
    TRY(take_moving(e, &m));
    m->tag = e->tag + TAG_MESSAGE;
    if (is_collective) m->tag = e->tag + TAG_COLLECTIVE + (int)(e->collectives++ % COLLECTIVE_TAGS);
    TRY(start_kind(e, t, m));
    *out = m;
out:
    return st;
}

/* ---- testing ---- */

/* Fails with the error that MPI found in one of the messages. */
static cairn_status fail_message(struct cairn__engine *e, const struct cairn__moving *m, int error) {
    int i = 0;
    if (error == MPI_ERR_IN_STATUS) {
        while (i < m->count - 1 &&
               (e->statuses[i].MPI_ERROR == MPI_SUCCESS || e->statuses[i].MPI_ERROR == MPI_ERR_PENDING))
            i++;
        error = e->statuses[i].MPI_ERROR;
    }
    return cairn__mpi_check(error, "%s rank %d", m->nbytes[i] < 0 ? "send to" : "receive from", m->peers[i]);
}

static cairn_status check_sizes(struct cairn__engine *e, const struct cairn__moving *m) {
    for (int i = 0; i < m->count; i++) {
        int came = 0;
        if (m->nbytes[i] < 0) continue;
        (void)MPI_Get_count(&e->statuses[i], MPI_BYTE, &came);
        REQUIRE(came == m->nbytes[i], CAIRN_EPEER,
                "rank %d sent %d bytes, want %d: the ranks issue different collectives; CAIRN_CHECK=1 shows which",
                m->peers[i], came, m->nbytes[i]);
    }
    return CAIRN_OK;
}

/* Called if nothing has arrived: checks whether the awaited ranks are still there. */
static cairn_status look_around(struct cairn__engine *e, const struct cairn__moving *m) {
    if (atomic_load(&e->wants_to_tell)) tell(e, GAVE_UP);
    if (++e->looks % LOOKS != 0) return CAIRN_OK;
    cairn_status st = hear(e);
    return st == CAIRN_OK && e->missing ? look_for_missing(e, m) : st;
}

static cairn_status test(struct cairn__engine *e, struct cairn__moving *m, bool *done) {
    int all = 0;
    atomic_store_explicit(&e->caller, pthread_self(), memory_order_relaxed);
    REQUIRE(!cairn__mpi_is_over(), CAIRN_EPEER, "this process has called MPI_Finalize, which ends its groups");
    const int error = MPI_Testall(m->count, m->requests, &all, e->statuses);
    if (error != MPI_SUCCESS) return fail_message(e, m, error);
    *done = false;
    if (!all) return look_around(e, m);
    cairn_status st = check_sizes(e, m);
    if (st != CAIRN_OK) return st;
    if (m->forward) return send_on(e, m, m->forward);
    struct cairn__moving **at = &e->moving;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    m->next = e->unused;
    e->unused = m;
    *done = true;
    return CAIRN_OK;
}

static void rest(struct cairn__engine *e, int idle) {
    (void)e;
    cairn__mpi_rest(idle);
}

/* Looks at receives first: a send may only wait for a rank that itself waits. */
static int awaited(struct cairn__engine *e) {
    int rank = -1;
    for (const struct cairn__moving *m = e->moving; m; m = m->next) {
        for (int i = 0; i < m->count; i++) {
            int done = 1;
            const bool is_received = m->nbytes[i] >= 0;
            if ((rank >= 0 && !is_received) || cairn__mpi_is_over() ||
                MPI_Request_get_status(m->requests[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done)
                continue;
            rank = m->peers[i];
            if (is_received) return rank;
        }
    }
    return rank;
}

/* ---- closing ---- */

bool cairn__mpi_part(struct cairn__engine *e) {
    const bool died = e->moving || atomic_load(&e->told) || atomic_load(&e->wants_to_tell);
    tell(e, died ? GAVE_UP : LEFT);
    return !died;
}

/* Cancels receives that have not begun. A message that both ranks have begun may still be in flight; MPI cannot cancel
 * it. */
static bool withdraw(struct cairn__moving *m) {
    int done = 0;
    for (int i = 0; i < m->count; i++) {
        if (m->nbytes[i] >= 0 && m->requests[i] != MPI_REQUEST_NULL) (void)MPI_Cancel(&m->requests[i]);
    }
    for (int idle = 0; idle < 100 && !done; idle++)
        (void)MPI_Testall(m->count, m->requests, &done, MPI_STATUSES_IGNORE);
    for (int i = 0; i < m->count && !done; i++) {
        if (m->requests[i] != MPI_REQUEST_NULL) (void)MPI_Request_free(&m->requests[i]);
    }
    return done != 0;
}

/* Receives the last words of ranks that leave after this engine's end: MPI would keep them, a kilobyte each, until they
 * are received. */
static bool has_heard_all(struct cairn__engine *e) {
    if (hear(e) != CAIRN_OK) return true;
    for (int r = 0; r < e->size; r++) {
        if (r != e->rank && !e->peers[r].word) return false;
    }
    return true;
}

static void end_heard(void) {
    for (struct cairn__engine **at = cairn__mpi_ended(), *e = *at; e && !cairn__mpi_is_over(); e = *at) {
        if (!has_heard_all(e)) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        end(&e);
    }
}

/* An environment that another rank has not left yet; NULL if there is none. */
static const struct cairn__engine *unfinished(void) {
    end_heard();
    const struct cairn__engine *e = *cairn__mpi_ended();
    while (e && !e->is_root) e = e->next;
    return e;
}

/* The log shows only warnings of rank 0. So if rank 0 has not left, and may be unable to log, rank 1 logs an error. */
static void warn(const struct cairn__engine *e, double waited) {
    char names[200] = "";
    size_t used = 0;
    int count = 0;
    for (int r = 0; r < e->size && used < sizeof(names) - 16; r++) {
        if (r == e->rank || e->peers[r].word) continue;
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%d", count++ ? ", " : "", r);
    }
    const bool is_first = e->rank == 1 && !e->peers[0].word;
    cairn__log(is_first ? CAIRN_LOG_ERROR : CAIRN_LOG_WARNING,
               "rank %d has waited %.0f s to end MPI, and rank%s %s %s not left the environment, but may hang or be "
               "stopped; waiting on",
               e->rank, waited, count > 1 ? "s" : "", names, count > 1 ? "have" : "has");
}

void cairn__mpi_await_others(void) {
    const double begin = cairn__clock_seconds();
    const struct cairn__engine *e = unfinished();
    bool has_warned = false;
    for (int idle = 0; e && !has_warned; e = unfinished(), idle++) {
        const double waited = cairn__clock_seconds() - begin;
        has_warned = waited >= e->timeout;
        if (has_warned) warn(e, waited);
        cairn__mpi_rest(idle);
    }
}

static bool close_engine(struct cairn__engine **engine) {
    struct cairn__engine *e = *engine, **ended = cairn__mpi_ended();
    bool withdrawn = true;
    if (!cairn__mpi_part(e)) cairn__mpi_mourn();
    for (struct cairn__moving *m = e->moving; m && !cairn__mpi_is_over(); m = m->next) withdrawn &= withdraw(m);
    if (!withdrawn)
        cairn__log(
            CAIRN_LOG_WARNING,
            "MPI could not cancel all transfers of a group that ended during them; it may still write to their arrays");
    cairn__mpi_leave(e);
    free_transfers(e);
    e->next = *ended;
    *ended = e;
    *engine = NULL;
    end_heard();
    return withdrawn;
}

static const struct cairn__engine_ops engine = {
    .size = sizeof(engine),
    .name = "mpi",
    .probe = cairn__mpi_probe,
    .open = open_engine,
    .derive = derive,
    .close = close_engine,
    .start = start,
    .test = test,
    .rest = rest,
    .abort = abort_engine,
    .awaited = awaited,
};

const struct cairn__module_tables cairn__module_tables = {"mpi", {{"group backend", &engine}}};
