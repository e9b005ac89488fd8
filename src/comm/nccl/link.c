#include "comm/nccl/link.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/status.h"
#include "core/trace.h"

enum { POLL_MS = 100, SPINS = 200, SHORT_PAUSE_US = 20, LONG_PAUSE_US = 500 };
enum { STANDS_MS = 2000 };                 /* a call that takes this long is stuck in a full queue of the device */
enum { LEAVE_MS = 2000, DRAIN_MS = 5000 }; /* the longest waits of an ending link: for the library, for the device */
static const double LONGEST_GAP = 1.0;     /* s; longer gaps do not count as waiting: the process was stopped */

static bool is_recording(const struct cairn__link *link) {
    return link->group->device->capturing;
}

static int mark_of(uint64_t number) {
    return (int)(number % CAIRN__LINK_DEPTH);
}

static int recorded_mark(uint64_t number) {
    return (int)(CAIRN__LINK_DEPTH + number % CAIRN__LINK_DEPTH);
}

/* ---- the end of a link, under the mutex ---- */

/* Only the watching thread aborts: an abort returns only when no graph is left that has recorded the communicator. */
static void request_abort(struct cairn__link *link) {
    link->gone = true;
    pthread_cond_signal(&link->wake);
    pthread_cond_broadcast(&link->idle);
}

/* The last error becomes the link's failure, unless the link has failed or was aborted before. */
static void fail_link(struct cairn__link *link, cairn_status status) {
    if (link->failed == CAIRN_OK && !link->gone) {
        link->failed = status;
        snprintf(link->failure, sizeof(link->failure), "%s", cairn_last_error());
    }
    request_abort(link);
}

static cairn_status check_failure(struct cairn__link *link) {
    if (link->failed != CAIRN_OK) return cairn__fail(link->failed, "%s", link->failure);
    REQUIRE(!link->gone, CAIRN_ESTATE, "the group was aborted by cairn_group_abort and can only be destroyed");
    return CAIRN_OK;
}

/* ---- calls of the library, without the mutex ---- */

/* One call at a time. Fails if the link has failed. doing must stay valid until the end of the call. */
static cairn_status begin_call(struct cairn__link *link, const char *doing) {
    pthread_mutex_lock(&link->mutex);
    while ((link->calling || link->looks) && !link->gone) pthread_cond_wait(&link->idle, &link->mutex);
    const cairn_status st = check_failure(link);
    if (st == CAIRN_OK) {
        link->calling = true;
        link->doing = doing;
        link->stood_ms = 0;
    }
    pthread_mutex_unlock(&link->mutex);
    return st;
}

static bool stands(const struct cairn__link *link) {
    return link->calling && link->stood_ms >= STANDS_MS;
}

/* st: the call's status; a failure ends the link. */
static cairn_status end_call(struct cairn__link *link, cairn_status st) {
    pthread_mutex_lock(&link->mutex);
    link->calling = false;
    pthread_cond_broadcast(&link->idle);
    if (st != CAIRN_OK) fail_link(link, st);
    st = check_failure(link); /* the cause, if the call failed only because the link had */
    pthread_mutex_unlock(&link->mutex);
    return st;
}

/* To be called with the mutex held, which it releases during the abort. A call that is stuck in a full queue of the
 * device returns only once the abort has ended the queued work; any other call gets the time to return first. */
static void abort_comm(struct cairn__link *link) {
    const struct timespec end = cairn__clock_in(stands(link) ? 0 : 1e-3 * (STANDS_MS - link->stood_ms));
    int waited = 0;
    while (link->looks) pthread_cond_wait(&link->idle, &link->mutex); /* another thread's; ends at once */
    while (link->calling && waited == 0) waited = pthread_cond_timedwait(&link->idle, &link->mutex, &end);
    struct cairn__comm *const comm = link->comm;
    pthread_mutex_unlock(&link->mutex);
    if (comm) link->ops->abort(comm);
    pthread_mutex_lock(&link->mutex);
}

/* ---- polling, under the mutex ---- */

static void reset_stall(struct cairn__link *link) {
    cairn__stall_reset(&link->stall);
    link->stood_ms = 0;
}

static cairn_status fail_late(const struct cairn__link *link, const char *what) {
    char rank[80];
    cairn__group_name_rank(link->group, link->group->rank, rank, sizeof(rank));
    return cairn__fail(CAIRN_ETIMEOUT,
                       "%s waited %g s in %s, and nothing moved; raise %s if the other ranks are only slow", rank,
                       link->timeout, what, link->group->timeout_name);
}

/* Checks the oldest launch in flight, or, if there is none, a call that is stuck behind replays or the user's own
 * work. */
static cairn_status check_time(struct cairn__link *link) {
    char what[128];
    if (link->launched != link->passed) {
        if (cairn__stall_poll(&link->stall, LONGEST_GAP) <= link->timeout) return CAIRN_OK;
        cairn__call_describe(&link->calls[mark_of(link->passed + 1)], what, sizeof(what));
        return fail_late(link, what);
    }
    return link->calling && link->stood_ms > link->timeout * 1000 ? fail_late(link, link->doing) : CAIRN_OK;
}

/* Releases the mutex during each query, so another thread may have advanced further meanwhile. */
static cairn_status advance(struct cairn__link *link) {
    cairn_status st = CAIRN_OK;
    while (!link->gone && link->passed < link->launched) {
        const uint64_t number = link->passed + 1;
        bool passed = false;
        pthread_mutex_unlock(&link->mutex);
        st = link->ops->passed(link->comm, mark_of(number), &passed);
        pthread_mutex_lock(&link->mutex);
        TRY(st);
        if (link->passed >= number) continue;
        if (!passed) break;
        link->passed = number;
        reset_stall(link);
    }
out:
    return st;
}

/* Reads the communicator's state, also without the mutex. While another thread is in a call, only the watching thread,
 * which also aborts, reads it, and only once that call is stuck: any other call ends soon. No further call begins
 * meanwhile. */
static cairn_status look(struct cairn__link *link, bool watches) {
    bool busy = false;
    if (link->looks || (link->calling && !(watches && stands(link)))) return CAIRN_OK;
    link->looks = true;
    pthread_mutex_unlock(&link->mutex);
    const cairn_status st = link->ops->state(link->comm, &busy);
    pthread_mutex_lock(&link->mutex);
    link->looks = false;
    pthread_cond_broadcast(&link->idle);
    return st;
}

/* For replays the host sees no marks, only the library's errors. */
static void poll_link(struct cairn__link *link, bool watches) {
    cairn_status st = CAIRN_OK;
    if (link->gone || !link->ready) return;
    if (watches && link->calling) link->stood_ms += POLL_MS;
    st = advance(link);
    if (st == CAIRN_OK && !link->gone && (link->launched != link->passed || link->recorded > 0 || stands(link)))
        st = look(link, watches);
    if (st == CAIRN_OK) st = check_time(link);
    if (st != CAIRN_OK) fail_link(link, st);
}

/* ---- the thread ---- */

static void *watch(void *argument) {
    struct cairn__link *link = argument;
    pthread_mutex_lock(&link->mutex);
    while (!link->stops && !link->gone) {
        const struct timespec at = cairn__clock_in(1e-3 * POLL_MS);
        if (pthread_cond_timedwait(&link->wake, &link->mutex, &at) == ETIMEDOUT) poll_link(link, true);
    }
    if (link->gone) abort_comm(link);
    pthread_mutex_unlock(&link->mutex);
    return NULL;
}

/* The thread blocks all signals, which are for the program's own threads. */
static cairn_status begin_watch(struct cairn__link *link) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&link->thread, NULL, watch, link);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    REQUIRE(failed == 0, CAIRN_ESYSTEM, "the thread that watches the group cannot be started: %s", strerror(failed));
    link->watched = true;
#ifdef __linux__
    (void)pthread_setname_np(link->thread, "cairn-nccl");
#endif
    return CAIRN_OK;
}

/* Stops and joins the watching thread, which first completes a requested abort. */
static void end_watch(struct cairn__link *link) {
    if (!link->watched) return;
    pthread_mutex_lock(&link->mutex);
    link->stops = true;
    pthread_cond_signal(&link->wake);
    pthread_mutex_unlock(&link->mutex);
    pthread_join(link->thread, NULL);
    link->watched = false;
}

/* ---- waiting ---- */

static void pause_after(int idle) {
    if (idle < SPINS) {
        sched_yield();
    } else {
        const long us = idle < 2 * SPINS ? SHORT_PAUSE_US : LONG_PAUSE_US;
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
    }
}

/* Whether the library's last call is still running. */
static cairn_status is_busy(struct cairn__link *link, bool *busy) {
    cairn_status st = CAIRN_OK;
    TRY(begin_call(link, "a look at the communicator"));
    TRY(end_call(link, link->ops->state(link->comm, busy)));
out:
    return st;
}

static cairn_status give_up(struct cairn__link *link, const char *what, double timeout) {
    char rank[80];
    cairn__group_name_rank(link->group, link->group->rank, rank, sizeof(rank));
    const cairn_status late =
        cairn__fail(CAIRN_ETIMEOUT, "%s waited %g s for %s; raise %s if the other ranks are only slow", rank, timeout,
                    what, timeout == link->group->timeout ? link->group->timeout_name : "CAIRN_MEETING_TIMEOUT");
    pthread_mutex_lock(&link->mutex);
    fail_link(link, late);
    const cairn_status st = check_failure(link);
    pthread_mutex_unlock(&link->mutex);
    return st;
}

/* Waits until the library's last call is done. */
static cairn_status until_ready(struct cairn__link *link, const char *what, double timeout) {
    const uint64_t end = cairn__now_ns() + (uint64_t)(timeout * 1e9);
    for (int idle = 0;; idle++) {
        bool busy = false;
        cairn_status st = is_busy(link, &busy);
        if (st == CAIRN_OK && busy) st = cairn__group_was_aborted(link->group);
        if (st != CAIRN_OK || !busy) return st;
        if (cairn__now_ns() > end) return give_up(link, what, timeout);
        pause_after(idle);
    }
}

cairn_status cairn__link_poll(struct cairn__link *link, uint64_t *passed) {
    pthread_mutex_lock(&link->mutex);
    if (!is_recording(link)) poll_link(link, false);
    const cairn_status st = check_failure(link);
    *passed = link->passed;
    pthread_mutex_unlock(&link->mutex);
    return st;
}

cairn_status cairn__link_wait(struct cairn__link *link, uint64_t number) {
    cairn_status st = CAIRN_OK;
    for (int idle = 0;; idle++) {
        uint64_t passed = 0;
        TRY(cairn__link_poll(link, &passed));
        if (passed >= number) break;
        TRY(cairn__group_was_aborted(link->group));
        cairn__family_progress_others(link->group);
        pause_after(idle);
    }
out:
    return st;
}

/* Blocks here if the device's stream is the host, or the device's queue is full. */
cairn_status cairn__link_join(struct cairn__link *link, uint64_t number) {
    uint64_t passed = 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__link_poll(link, &passed));
    if (is_recording(link)) return link->ops->await(link->comm, recorded_mark(number));
    if (number <= passed) return CAIRN_OK;
    TRY(link->ops->await(link->comm, mark_of(number)));
    TRY(cairn__link_poll(link, &passed));
out:
    return st;
}

/* ---- launching ---- */

/* Makes two calls, since only the first can be stuck, and no other thread reads the communicator's state during the
 * second. */
static cairn_status queue_behind(struct cairn__link *link, const char *what, cairn__link_queue queue, void *ctx) {
    cairn_status st = CAIRN_OK;
    TRY(begin_call(link, what));
    TRY(end_call(link, link->ops->follow(link->comm)));
    TRY(begin_call(link, what));
    TRY(end_call(link, queue(link, ctx)));
out:
    return st;
}

static cairn_status mark(struct cairn__link *link, const char *what, const struct cairn__call *call, uint64_t *number) {
    const bool records = is_recording(link);
    cairn_status st = CAIRN_OK;
    TRY(begin_call(link, what));
    *number = records ? link->recorded + 1 : link->launched + 1;
    TRY(end_call(link, link->ops->mark(link->comm, records ? recorded_mark(*number) : mark_of(*number))));
    pthread_mutex_lock(&link->mutex);
    if (records) {
        link->recorded = *number;
    } else {
        if (link->launched == link->passed) reset_stall(link);
        link->calls[mark_of(*number)] = *call;
        link->launched = *number;
    }
    pthread_mutex_unlock(&link->mutex);
out:
    return st;
}

/* Only the caller changes launched and recorded. */
cairn_status cairn__link_launch(struct cairn__link *link, const struct cairn__call *call, cairn__link_queue queue,
                                void *ctx, uint64_t *number) {
    cairn_status st = CAIRN_OK;
    char what[128];
    cairn__call_describe(call, what, sizeof(what));
    if (!is_recording(link) && link->launched >= CAIRN__LINK_DEPTH - 1)
        TRY(cairn__link_wait(link, link->launched - (CAIRN__LINK_DEPTH - 2)));
    TRY(queue_behind(link, what, queue, ctx));
    TRY(until_ready(link, what, link->timeout));
    TRY(mark(link, what, call, number));
out:
    return st;
}

/* ---- memory ---- */

cairn_status cairn__link_alloc(struct cairn__link *link, size_t nbytes, void **out) {
    cairn_status st = CAIRN_OK;
    TRY(begin_call(link, "cairn_group_alloc"));
    st = link->ops->alloc(link->comm, nbytes, out);
    link->has_memory = link->has_memory || st == CAIRN_OK;
    (void)end_call(link, CAIRN_OK); /* running out of memory does not end the link */
out:
    return st;
}

void cairn__link_free(struct cairn__link *link, void *memory) {
    if (begin_call(link, "cairn_group_free") != CAIRN_OK) return; /* the communicator's end frees the memory */
    link->ops->free(link->comm, memory);
    (void)end_call(link, CAIRN_OK);
}

/* ---- life ---- */

static void begin_cond(pthread_cond_t *cond) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void cairn__link_begin(struct cairn__link *link, cairn_group *group, const struct cairn__comm_ops *ops) {
    link->group = group;
    link->ops = ops;
    link->timeout = group->timeout;
    pthread_mutex_init(&link->mutex, NULL);
    begin_cond(&link->wake);
    begin_cond(&link->idle);
}

cairn_status cairn__link_open(struct cairn__link *link, const struct cairn__comm_id *id, double timeout) {
    const cairn_group *group = link->group;
    struct cairn__comm *comm = NULL;
    cairn_status st = CAIRN_OK;
    TRY(begin_watch(link)); /* first, so that whatever follows can be aborted */
    TRY(begin_call(link, "connecting"));
    st = link->ops->init(group->device, id, group->rank, group->size, &comm);
    pthread_mutex_lock(&link->mutex);
    link->comm = comm;
    pthread_mutex_unlock(&link->mutex);
    TRY(end_call(link, st));
    TRY(until_ready(link, "all ranks to connect", timeout));
    pthread_mutex_lock(&link->mutex);
    link->ready = true;
    pthread_mutex_unlock(&link->mutex);
out:
    return st;
}

void cairn__link_abort(struct cairn__link *link) {
    pthread_mutex_lock(&link->mutex);
    request_abort(link);
    pthread_mutex_unlock(&link->mutex);
}

static cairn_status queue_nothing(struct cairn__link *link, void *ctx) {
    (void)link, (void)ctx;
    return CAIRN_OK;
}

/* Whether all launches have run, all replays of destroyed graphs, and all uses of the group's memory. The timeout is
 * short, because the device may wait for another group's rank, which waits until this rank has left. */
static bool is_through(struct cairn__link *link) {
    static const struct cairn__call leaving = {.kind = CAIRN__BARRIER};
    uint64_t passed = 0, number = 0;
    if (is_recording(link) || cairn__link_poll(link, &passed) != CAIRN_OK || passed != link->launched) return false;
    if (link->recorded == 0 && !link->has_memory) return true;
    pthread_mutex_lock(&link->mutex);
    if (link->timeout > DRAIN_MS * 1e-3) link->timeout = DRAIN_MS * 1e-3;
    pthread_mutex_unlock(&link->mutex);
    return cairn__link_launch(link, &leaving, queue_nothing, NULL, &number) == CAIRN_OK &&
           cairn__link_wait(link, number) == CAIRN_OK;
}

/* Finalizes the communicator if nothing is in flight, so that other ranks lose no data that they still receive. */
static bool leave(struct cairn__link *link) {
    bool busy = true;
    if (!is_through(link) || begin_call(link, "cairn_group_destroy") != CAIRN_OK) return false;
    link->ops->finalize(link->comm);
    (void)end_call(link, CAIRN_OK);
    for (int ms = 0; ms < LEAVE_MS && is_busy(link, &busy) == CAIRN_OK && busy; ms++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return !busy;
}

void cairn__link_end(struct cairn__link *link) {
    if (link->comm && !(link->ready && leave(link))) cairn__link_abort(link);
    end_watch(link);
    if (link->comm) link->ops->close(&link->comm);
    pthread_cond_destroy(&link->idle);
    pthread_cond_destroy(&link->wake);
    pthread_mutex_destroy(&link->mutex);
}
