/* Trace events. One lock is held while sinks run, so that a removed sink is never called again and writers need no
 * locks of their own. fork waits for the lock. */
#include "core/trace.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "core/status.h"

struct sink {
    cairn__trace_fn fn;
    void *cookie;
};

static struct sink sinks[CAIRN__SINKS], single; /* single: set by cairn__trace_set_sink */
static atomic_int count;                        /* number of sinks, single included; read without the lock */
static int num_sinks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local bool is_sending;

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void after_fork(void) {
    pthread_mutex_unlock(&lock);
}

/* Drops all sinks: their files belong to the parent. */
static void after_fork_in_child(void) {
    num_sinks = 0;
    atomic_store(&count, single.fn != NULL);
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void) {
    (void)pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

static void recount(void) {
    atomic_store(&count, num_sinks + (single.fn != NULL));
}

void cairn__trace_set_sink(cairn__trace_fn fn, void *cookie) {
    pthread_mutex_lock(&lock);
    single = (struct sink){fn, cookie};
    recount();
    pthread_mutex_unlock(&lock);
}

cairn_status cairn__trace_add_sink(cairn__trace_fn fn, void *cookie) {
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    const bool fits = num_sinks < CAIRN__SINKS;
    if (fits) sinks[num_sinks++] = (struct sink){fn, cookie};
    recount();
    pthread_mutex_unlock(&lock);
    REQUIRE(fits, CAIRN_ESTATE,
            "there are %d writers of events in this process, and no room for one more; destroy some", CAIRN__SINKS);
    return CAIRN_OK;
}

void cairn__trace_remove_sink(cairn__trace_fn fn, void *cookie) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < num_sinks; i++) {
        if (sinks[i].fn != fn || sinks[i].cookie != cookie) continue;
        memmove(sinks + i, sinks + i + 1, (size_t)(num_sinks - i - 1) * sizeof(sinks[0]));
        num_sinks--;
        break;
    }
    recount();
    pthread_mutex_unlock(&lock);
}

void cairn__trace_lock(void) {
    pthread_mutex_lock(&lock);
    is_sending = true;
}

void cairn__trace_unlock(void) {
    is_sending = false;
    pthread_mutex_unlock(&lock);
}

bool cairn__trace_on(void) {
    return atomic_load_explicit(&count, memory_order_relaxed) != 0;
}

static void send(const struct cairn__event *event) {
    if (is_sending) return; /* a sink's own event: its log line may come back through the user's callback */
    is_sending = true;
    pthread_mutex_lock(&lock);
    if (single.fn) single.fn(single.cookie, event);
    for (int i = 0; i < num_sinks; i++) sinks[i].fn(sinks[i].cookie, event);
    pthread_mutex_unlock(&lock);
    is_sending = false;
}

void cairn__trace(const char *room, const char *what, int64_t index, int64_t nbytes, uint64_t begin_ns) {
    if (!cairn__trace_on()) return;
    const uint64_t now = cairn__now_ns();
    cairn__trace_span(room, what, index, nbytes, begin_ns ? begin_ns : now, now);
}

void cairn__trace_span(const char *room, const char *what, int64_t index, int64_t nbytes, uint64_t begin_ns,
                       uint64_t end_ns) {
    if (!cairn__trace_on()) return;
    const struct cairn__event event = {
        .room = room, .what = what, .index = index, .nbytes = nbytes, .begin_ns = begin_ns, .end_ns = end_ns};
    send(&event);
}

void cairn__trace_scalar(const char *room, const char *what, int64_t index, double value) {
    if (!cairn__trace_on()) return;
    cairn__trace_send(
        &(struct cairn__event){.room = room, .what = what, .index = index, .kind = CAIRN__SCALAR, .value = value});
}

void cairn__trace_fact(const char *room, const char *what, const char *text) {
    if (!cairn__trace_on()) return;
    cairn__trace_send(&(struct cairn__event){.room = room, .what = what, .kind = CAIRN__FACT, .text = text});
}

void cairn__trace_send(const struct cairn__event *event) {
    if (!cairn__trace_on()) return;
    struct cairn__event e = *event;
    if (e.end_ns == 0) e.begin_ns = e.end_ns = cairn__now_ns();
    send(&e);
}

uint64_t cairn__now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static _Thread_local bool is_replica;

void cairn__trace_set_replica(bool is_set) {
    is_replica = is_set;
}

bool cairn__trace_is_of_a_replica(void) {
    return is_replica;
}
