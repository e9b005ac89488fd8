#include "fake_comm.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/cpu.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/trace.h"
#include "kernels/kernels.h"

enum { MAX_RANKS = 8, MAX_MESSAGES = 1024, MAX_BLOCKS = 64 };
enum { SHORT_NS = 1000000000 }; /* only after this time may another thread query a communicator during a call */

enum kind { ALLREDUCE = 1, REDUCE, BROADCAST, ALLGATHER, REDUCE_SCATTER, ALLTOALL, MESSAGES, MARK };

struct message {
    bool sends, done;
    int peer;
    void *x;
    size_t nbytes;
};

struct item {
    struct item *next;
    enum kind kind;
    void *dst;
    const void *src;
    size_t n;
    cairn_dtype dtype;
    struct cairn__comm_reduction how;
    int root, delay, number;
    struct message *messages;
    int num_messages;
};

struct world {
    char id[sizeof(struct cairn__comm_id)];
    int size, joined, left;
    struct cairn__comm *ranks[MAX_RANKS];
    struct fake_comm_plan plan;
    struct world *next;
};

struct cairn__comm {
    struct world *world;
    int rank, given, busy;
    unsigned random;
    bool aborted, hangs, failed, groups;
    atomic_bool in_call, in_state, stands;
    _Atomic uint64_t begun; /* start of the current call, ns */
    struct item *head, **tail;
    struct item *group;
    bool marks[CAIRN__COMM_MARKS]; /* passed */
    void *blocks[MAX_BLOCKS];
};

/* One lock for everything, which is fast enough for these small communicators. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    struct fake_comm_plan plan;
    struct world *worlds;
    int next_id, open, aborts, blocks, groups, stands;
    bool keeps_graphs, full;
} fake;

void fake_comm_set(const struct fake_comm_plan *plan) {
    pthread_mutex_lock(&lock);
    fake.plan = *plan;
    fake.aborts = fake.groups = fake.stands = 0;
    fake.full = false;
    pthread_mutex_unlock(&lock);
}

void fake_comm_keep_graphs(bool keep) {
    pthread_mutex_lock(&lock);
    fake.keeps_graphs = keep;
    pthread_mutex_unlock(&lock);
}

void fake_comm_fill_queue(void) {
    pthread_mutex_lock(&lock);
    fake.full = true;
    pthread_mutex_unlock(&lock);
}

static int read_locked(const int *value) {
    pthread_mutex_lock(&lock);
    const int read = *value;
    pthread_mutex_unlock(&lock);
    return read;
}

int fake_comm_count(void) {
    return read_locked(&fake.open);
}

int fake_comm_aborts(void) {
    return read_locked(&fake.aborts);
}

int fake_comm_blocks(void) {
    return read_locked(&fake.blocks);
}

int fake_comm_stands(void) {
    return read_locked(&fake.stands);
}

int fake_comm_groups(void) {
    return read_locked(&fake.groups);
}

static bool has_fault(const struct cairn__comm *c, enum fake_comm_fault fault) {
    const struct fake_comm_plan *p = &c->world->plan;
    return p->fault == fault && p->rank == c->rank && c->world->size > 1;
}

static void die(void) {
    fprintf(stderr, "two threads call a communicator at once\n");
    abort();
}

/* Around the calls that one thread makes at a time. */
static void begin_call(struct cairn__comm *c) {
    atomic_store(&c->begun, cairn__now_ns());
    if (atomic_exchange(&c->in_call, true) || atomic_load(&c->in_state)) die();
}

static void end_call(struct cairn__comm *c) {
    atomic_store(&c->in_call, false);
}

/* Between looks, the idle-th of which has just found nothing. */
static void rest(int idle) {
    enum { YIELDS = 50, SHORT_NAPS = 200, NAP_NS = 50000, LONG_NAP_NS = 1000000 };
    if (idle < YIELDS) {
        sched_yield();
    } else {
        nanosleep(&(struct timespec){.tv_nsec = idle < YIELDS + SHORT_NAPS ? NAP_NS : LONG_NAP_NS}, NULL);
    }
}

static void stand_until_aborted(struct cairn__comm *c) {
    pthread_mutex_lock(&lock);
    fake.stands++;
    atomic_store(&c->stands, true);
    for (int i = 0; !c->aborted; i++) {
        pthread_mutex_unlock(&lock);
        rest(i);
        pthread_mutex_lock(&lock);
    }
    atomic_store(&c->stands, false);
    pthread_mutex_unlock(&lock);
}

/* Some of a few polls. */
static int delay(struct cairn__comm *c) {
    if (!c->world->plan.seed) return 0;
    c->random = c->random * 1664525u + 1013904223u;
    return (int)(c->random >> 24) % 8;
}

/* ---- what runs ---- */

static void drop(struct item *item) {
    free(item->messages);
    free(item);
}

static void pop(struct cairn__comm *c) {
    struct item *item = c->head;
    c->head = item->next;
    if (!c->head) c->tail = &c->head;
    drop(item);
}

static float divisor_of(const struct item *item, int p) {
    if (item->how.halvings) return (float)(1 << item->how.halvings);
    return item->how.op == CAIRN__COMM_AVG ? (float)p : 1;
}

/* Joins all ranks' n elements from `first` on in one array, allocated with malloc. */
static void *reduce(const struct world *w, size_t first, size_t n) {
    static const enum cairn__reduction reductions[] = {[CAIRN__COMM_SUM] = CAIRN__REDUCE_SUM,
                                                       [CAIRN__COMM_AVG] = CAIRN__REDUCE_SUM,
                                                       [CAIRN__COMM_MIN] = CAIRN__REDUCE_MIN,
                                                       [CAIRN__COMM_MAX] = CAIRN__REDUCE_MAX,
                                                       [CAIRN__COMM_PROD] = CAIRN__REDUCE_PROD};
    const struct item *any = w->ranks[0]->head;
    const size_t each = cairn_dtype_nbytes(any->dtype);
    const void *srcs[MAX_RANKS];
    void *result = malloc(n * each);
    uint32_t found = 0;
    for (int r = 0; r < w->size; r++) srcs[r] = (const char *)w->ranks[r]->head->src + first * each;
    cairn__kernels_cpu(cairn__cpu_features())
        ->reduce[reductions[any->how.op]][any->dtype](&result, 1, srcs, w->size, n, divisor_of(any, w->size), &found);
    return result;
}

static void run_reduction(const struct world *w) {
    const struct item *any = w->ranks[0]->head;
    const size_t n = any->kind == REDUCE_SCATTER ? any->n * (size_t)w->size : any->n;
    const size_t nbytes = any->n * cairn_dtype_nbytes(any->dtype);
    char *result = reduce(w, 0, n);
    for (int r = 0; r < w->size; r++) {
        const bool wants = any->kind != REDUCE || any->root == r;
        const size_t at = any->kind == REDUCE_SCATTER ? (size_t)r * nbytes : 0;
        if (wants) memcpy(w->ranks[r]->head->dst, result + at, nbytes);
    }
    free(result);
}

static void run_movement(const struct world *w) {
    const struct item *any = w->ranks[0]->head;
    const size_t nbytes = any->n * cairn_dtype_nbytes(any->dtype);
    for (int to = 0; to < w->size; to++) {
        char *dst = w->ranks[to]->head->dst;
        for (int from = 0; from < w->size; from++) {
            const char *src = w->ranks[from]->head->src;
            const size_t part = (size_t)from * nbytes;
            if (any->kind == BROADCAST && from == any->root && from != to)
                memcpy(dst, w->ranks[from]->head->dst, nbytes);
            if (any->kind == ALLGATHER) memmove(dst + part, src, nbytes);
            if (any->kind == ALLTOALL) memcpy(dst + part, src + (size_t)to * nbytes, nbytes);
        }
    }
}

/* Whether every rank has reached the same collective and no delay is left. */
static bool can_run(const struct world *w) {
    for (int r = 0; r < w->size; r++) {
        const struct cairn__comm *c = w->ranks[r];
        if (!c || c->aborted || c->hangs || !c->head || c->head->kind != w->ranks[0]->head->kind) return false;
        if (c->head->kind == MARK || c->head->kind == MESSAGES || c->head->delay > 0) return false;
        if (c->head->n != w->ranks[0]->head->n) return false;
    }
    return true;
}

static bool run_collective(const struct world *w) {
    if (!can_run(w)) return false;
    const enum kind kind = w->ranks[0]->head->kind;
    if (kind == ALLREDUCE || kind == REDUCE || kind == REDUCE_SCATTER) {
        run_reduction(w);
    } else {
        run_movement(w);
    }
    for (int r = 0; r < w->size; r++) pop(w->ranks[r]);
    return true;
}

/* The first matching message of the peer. */
static struct message *find_match(const struct world *w, int rank, const struct message *m) {
    const struct cairn__comm *peer = w->ranks[m->peer];
    if (!peer || peer->aborted || peer->hangs || !peer->head || peer->head->kind != MESSAGES || peer->head->delay > 0)
        return NULL;
    for (int i = 0; i < peer->head->num_messages; i++) {
        struct message *theirs = &peer->head->messages[i];
        if (!theirs->done && theirs->sends != m->sends && theirs->peer == rank) return theirs;
    }
    return NULL;
}

static void run_messages(struct cairn__comm *c) {
    bool all = true;
    for (int i = 0; i < c->head->num_messages; i++) {
        struct message *m = &c->head->messages[i];
        struct message *theirs = m->done ? NULL : find_match(c->world, c->rank, m);
        if (theirs && theirs->nbytes == m->nbytes) {
            memcpy(m->sends ? theirs->x : m->x, m->sends ? m->x : theirs->x, m->nbytes);
            m->done = theirs->done = true;
        }
        all = all && m->done;
    }
    if (all) pop(c);
}

/* Runs the items of the rank's stream that need no other rank. */
static void run_own(struct cairn__comm *c) {
    while (c->head && !c->aborted && !c->hangs) {
        struct item *item = c->head;
        if (item->number == c->world->plan.operation) {
            c->hangs = has_fault(c, FAKE_COMM_HANGS) || has_fault(c, FAKE_COMM_FILLS_QUEUE);
            c->failed = has_fault(c, FAKE_COMM_ASYNC_FAILS);
            if (c->hangs || c->failed) return;
        }
        if (item->kind == MARK && fake.full && has_fault(c, FAKE_COMM_NO_MARKS)) return;
        if (item->delay > 0 && item->delay--) return;
        const enum kind kind = item->kind; /* item may be freed below */
        if (kind == MESSAGES) run_messages(c);
        if (kind == MARK) {
            c->marks[item->root] = true;
            pop(c);
        }
        if (c->head == item) return;
    }
}

static void pump(struct world *w) {
    do {
        for (int r = 0; r < w->size; r++) {
            if (w->ranks[r] && !w->ranks[r]->failed) run_own(w->ranks[r]);
        }
    } while (run_collective(w));
}

/* ---- the calls ---- */

static cairn_status give(struct cairn__comm *c, struct item given) {
    struct item *item = malloc(sizeof(*item));
    begin_call(c);
    pthread_mutex_lock(&lock);
    *item = given;
    item->delay = delay(c);
    item->number = given.kind == MARK ? 0 : ++c->given;
    const bool fails = has_fault(c, FAKE_COMM_CALL_FAILS) && item->number == c->world->plan.operation;
    if (fails || c->aborted) {
        drop(item);
    } else {
        *c->tail = item;
        c->tail = &item->next;
        c->busy = delay(c);
        pump(c->world);
    }
    pthread_mutex_unlock(&lock);
    end_call(c);
    return fails ? cairn__fail(CAIRN_EPEER, "the fake library cannot launch") : CAIRN_OK;
}

static cairn_status comm_all_reduce(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                    const struct cairn__comm_reduction *how) {
    return give(c, (struct item){.kind = ALLREDUCE, .dst = dst, .src = src, .n = n, .dtype = dtype, .how = *how});
}

static cairn_status comm_reduce(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                const struct cairn__comm_reduction *how, int root) {
    return give(
        c, (struct item){.kind = REDUCE, .dst = dst, .src = src, .n = n, .dtype = dtype, .how = *how, .root = root});
}

static cairn_status comm_broadcast(struct cairn__comm *c, void *x, size_t n, cairn_dtype dtype, int root) {
    return give(c, (struct item){.kind = BROADCAST, .dst = x, .src = x, .n = n, .dtype = dtype, .root = root});
}

static cairn_status comm_all_gather(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype) {
    return give(c, (struct item){.kind = ALLGATHER, .dst = dst, .src = src, .n = n, .dtype = dtype});
}

static cairn_status comm_reduce_scatter(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                        const struct cairn__comm_reduction *how) {
    return give(c, (struct item){.kind = REDUCE_SCATTER, .dst = dst, .src = src, .n = n, .dtype = dtype, .how = *how});
}

static cairn_status comm_all_to_all(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype) {
    return give(c, (struct item){.kind = ALLTOALL, .dst = dst, .src = src, .n = n, .dtype = dtype});
}

static cairn_status comm_group_begin(struct cairn__comm *c) {
    c->group = calloc(1, sizeof(*c->group));
    c->group->kind = MESSAGES;
    c->group->messages = calloc(MAX_MESSAGES, sizeof(*c->group->messages));
    return CAIRN_OK;
}

static cairn_status add_message(struct cairn__comm *c, struct message m) {
    REQUIRE(c->group && c->group->num_messages < MAX_MESSAGES, CAIRN_EINVAL, "no group, or it is full");
    c->group->messages[c->group->num_messages++] = m;
    return CAIRN_OK;
}

static cairn_status comm_send(struct cairn__comm *c, const void *x, size_t n, cairn_dtype dtype, int to) {
    return add_message(c, (struct message){.sends = true,
                                           .peer = to,
                                           .x = (void *)(uintptr_t)x,
                                           .nbytes = n * cairn_dtype_nbytes(dtype)});
}

static cairn_status comm_recv(struct cairn__comm *c, void *x, size_t n, cairn_dtype dtype, int from) {
    return add_message(c, (struct message){.peer = from, .x = x, .nbytes = n * cairn_dtype_nbytes(dtype)});
}

static cairn_status comm_group_end(struct cairn__comm *c) {
    const cairn_status st = give(c, *c->group);
    free(c->group);
    c->group = NULL;
    pthread_mutex_lock(&lock);
    fake.groups++;
    pthread_mutex_unlock(&lock);
    return st;
}

/* ---- order ---- */

/* The CPU has finished all queued work. */
static cairn_status comm_follow(struct cairn__comm *c) {
    begin_call(c);
    pthread_mutex_lock(&lock);
    const bool stands =
        (c->hangs && has_fault(c, FAKE_COMM_FILLS_QUEUE)) || (fake.full && has_fault(c, FAKE_COMM_QUEUE_FULL));
    pthread_mutex_unlock(&lock);
    if (stands) stand_until_aborted(c);
    end_call(c);
    return CAIRN_OK;
}

static cairn_status comm_mark(struct cairn__comm *c, int mark) {
    pthread_mutex_lock(&lock);
    c->marks[mark] = false;
    pthread_mutex_unlock(&lock);
    return give(c, (struct item){.kind = MARK, .root = mark});
}

static bool look(struct cairn__comm *c, int mark, bool *aborted) {
    pthread_mutex_lock(&lock);
    pump(c->world);
    *aborted = c->aborted;
    const bool passed = c->marks[mark];
    pthread_mutex_unlock(&lock);
    return passed;
}

static cairn_status comm_passed(struct cairn__comm *c, int mark, bool *passed) {
    bool aborted = false;
    *passed = look(c, mark, &aborted);
    return CAIRN_OK;
}

/* The CPU's stream is the host: it has waited when the call returns. */
static cairn_status comm_await(struct cairn__comm *c, int mark) {
    bool aborted = false;
    for (int i = 0; !look(c, mark, &aborted) && !aborted; i++) rest(i);
    return CAIRN_OK;
}

/* ---- life ---- */

static void comm_version(char *text, size_t nbytes) {
    snprintf(text, nbytes, "a fake");
}

static cairn_status comm_place(struct cairn_device *d, char *text, size_t nbytes) {
    pthread_mutex_lock(&lock);
    const bool same = fake.plan.fault == FAKE_COMM_SAME_PLACE;
    pthread_mutex_unlock(&lock);
    if (same) {
        snprintf(text, nbytes, "0000:01:00.0");
    } else {
        snprintf(text, nbytes, "%p", (void *)d);
    }
    return CAIRN_OK;
}

static cairn_status comm_unique_id(struct cairn__comm_id *out) {
    pthread_mutex_lock(&lock);
    const bool fails = fake.plan.fault == FAKE_COMM_NO_ID;
    memset(out, 0, sizeof(*out));
    snprintf(out->bytes, sizeof(out->bytes), "%d", ++fake.next_id);
    pthread_mutex_unlock(&lock);
    return fails ? cairn__fail(CAIRN_ESYSTEM, "the fake library has no id") : CAIRN_OK;
}

static struct world *join_world(const struct cairn__comm_id *id, int size) {
    struct world *w = fake.worlds;
    while (w && strcmp(w->id, id->bytes) != 0) w = w->next;
    if (!w) {
        w = calloc(1, sizeof(*w));
        memcpy(w->id, id->bytes, sizeof(w->id));
        w->size = size;
        w->plan = fake.plan;
        w->next = fake.worlds;
        fake.worlds = w;
    }
    return w;
}

static cairn_status comm_init(struct cairn_device *d, const struct cairn__comm_id *id, int rank, int size,
                              struct cairn__comm **out) {
    struct cairn__comm *c = calloc(1, sizeof(*c));
    (void)d;
    pthread_mutex_lock(&lock);
    c->world = join_world(id, size);
    c->rank = rank;
    c->random = c->world->plan.seed + (unsigned)rank;
    c->tail = &c->head;
    c->world->ranks[rank] = c;
    const bool fails = has_fault(c, FAKE_COMM_INIT_FAILS), hangs = has_fault(c, FAKE_COMM_INIT_HANGS);
    c->world->joined += !hangs && !fails;
    fake.open++;
    pthread_mutex_unlock(&lock);
    *out = c;
    return fails ? cairn__fail(CAIRN_EDEVICE, "the fake library cannot connect") : CAIRN_OK;
}

/* Beside a call that has taken long, too. */
static cairn_status comm_state(struct cairn__comm *c, bool *busy) {
    if (atomic_exchange(&c->in_state, true)) die();
    if (atomic_load(&c->in_call) && cairn__now_ns() - atomic_load(&c->begun) < SHORT_NS) die();
    pthread_mutex_lock(&lock);
    const bool failed = c->failed || (atomic_load(&c->stands) && c->world->plan.tells);
    *busy = c->world->joined < c->world->size || c->busy > 0;
    if (c->busy > 0) c->busy--;
    pthread_mutex_unlock(&lock);
    atomic_store(&c->in_state, false);
    return failed ? cairn__fail(CAIRN_EPEER, "the fake library has lost its way") : CAIRN_OK;
}

static void comm_finalize(struct cairn__comm *c) {
    pthread_mutex_lock(&lock);
    c->busy = delay(c);
    pthread_mutex_unlock(&lock);
}

static void comm_abort(struct cairn__comm *c) {
    if (atomic_load(&c->in_state)) die();
    pthread_mutex_lock(&lock);
    c->aborted = true;
    fake.aborts++;
    while (c->head) pop(c);
    for (int i = 0; fake.keeps_graphs; i++) {
        pthread_mutex_unlock(&lock);
        rest(i);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
}

static void leave_world(struct world *w) {
    struct world **at = &fake.worlds;
    for (int r = 0; r < w->size; r++) {
        if (w->ranks[r]) return;
    }
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    free(w);
}

static void free_block(struct cairn__comm *c, int i) {
    if (c->blocks[i]) fake.blocks--;
    free(c->blocks[i]);
    c->blocks[i] = NULL;
}

static void comm_close(struct cairn__comm **comm) {
    struct cairn__comm *c = *comm;
    pthread_mutex_lock(&lock);
    while (c->head) pop(c);
    for (int i = 0; i < MAX_BLOCKS; i++) free_block(c, i);
    c->world->ranks[c->rank] = NULL;
    leave_world(c->world);
    fake.open--;
    pthread_mutex_unlock(&lock);
    free(c);
    *comm = NULL;
}

/* ---- memory ---- */

static cairn_status comm_alloc(struct cairn__comm *c, size_t nbytes, void **out) {
    const size_t whole = (nbytes + 63) & ~(size_t)63;
    int i = 0;
    REQUIRE(nbytes < (size_t)1 << 40 && !has_fault(c, FAKE_COMM_NO_MEMORY), CAIRN_ENOMEM,
            "the fake library has no %zu bytes", nbytes);
    pthread_mutex_lock(&lock);
    while (c->blocks[i]) i++;
    *out = c->blocks[i] = aligned_alloc(64, whole);
    memset(*out, 0xff, whole);
    fake.blocks++;
    pthread_mutex_unlock(&lock);
    return CAIRN_OK;
}

static void comm_free(struct cairn__comm *c, void *memory) {
    begin_call(c);
    if (has_fault(c, FAKE_COMM_FREE_STANDS)) stand_until_aborted(c);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_BLOCKS; i++) {
        if (c->blocks[i] == memory) free_block(c, i);
    }
    pthread_mutex_unlock(&lock);
    end_call(c);
}

const struct cairn__comm_ops fake_comm_ops = {
    .size = sizeof(struct cairn__comm_ops),
    .name = "nccl",
    .version = comm_version,
    .place = comm_place,
    .unique_id = comm_unique_id,
    .init = comm_init,
    .state = comm_state,
    .finalize = comm_finalize,
    .abort = comm_abort,
    .close = comm_close,
    .alloc = comm_alloc,
    .free = comm_free,
    .group_begin = comm_group_begin,
    .group_end = comm_group_end,
    .all_reduce = comm_all_reduce,
    .reduce = comm_reduce,
    .broadcast = comm_broadcast,
    .all_gather = comm_all_gather,
    .reduce_scatter = comm_reduce_scatter,
    .all_to_all = comm_all_to_all,
    .send = comm_send,
    .recv = comm_recv,
    .follow = comm_follow,
    .mark = comm_mark,
    .await = comm_await,
    .passed = comm_passed,
};
