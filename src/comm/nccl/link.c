#include "comm/nccl/link.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/status.h"
#include "core/trace.h"

enum { POLL_MS = 100, SPINS = 200, SHORT_PAUSE_US = 20, LONG_PAUSE_US = 500, LEAVE_MS = 2000 };
static const double LONGEST_GAP = 1.0; /* s between two polls that count as waiting: a stopped process does not wait */

static bool is_recording(const struct cairn__link *link) {
    return link->group->device->capturing;
}

/* ---- the end of a link, under the mutex ---- */

static void abort_comm(struct cairn__link *link) {
    if (!link->gone && link->comm) link->ops->abort(link->comm);
    link->gone = true;
}

/* The last error is the cause. */
static void fail_link(struct cairn__link *link, cairn_status status) {
    if (link->failed == CAIRN_OK && !link->gone) {
        link->failed = status;
        snprintf(link->failure, sizeof(link->failure), "%s", cairn_last_error());
    }
    abort_comm(link);
}

static cairn_status check_failure(struct cairn__link *link) {
    if (link->failed != CAIRN_OK) return cairn__fail(link->failed, "%s", link->failure);
    REQUIRE(!link->gone, CAIRN_ESTATE, "the group was aborted by cairn_group_abort and can only be destroyed");
    return CAIRN_OK;
}

/* ---- polling, under the mutex ---- */

static void forget_wait(struct cairn__link *link) {
    link->last_look = 0;
    link->stalled = 0;
}

static bool is_late(struct cairn__link *link, double timeout) {
    const uint64_t now = cairn__now_ns();
    const double since = link->last_look ? (double)(now - link->last_look) * 1e-9 : 0;
    link->last_look = now;
    link->stalled += since < LONGEST_GAP ? since : LONGEST_GAP;
    return link->stalled > timeout;
}

static cairn_status fail_late(const struct cairn__link *link) {
    const struct cairn__call *call = &link->calls[(link->passed + 1) % CAIRN__LINK_DEPTH];
    char rank[80], what[128];
    cairn__group_name_rank(link->group, link->group->rank, rank, sizeof(rank));
    cairn__call_describe(call, what, sizeof(what));
    return cairn__fail(CAIRN_ETIMEOUT,
                       "%s waited %g s in %s, and nothing moved; raise CAIRN_TIMEOUT if the other ranks are only slow",
                       rank, link->group->timeout, what);
}

static cairn_status advance(struct cairn__link *link) {
    cairn_status st = CAIRN_OK;
    while (link->passed < link->launched) {
        bool passed = false;
        TRY(link->ops->passed(link->comm, (int)((link->passed + 1) % CAIRN__LINK_DEPTH), &passed));
        if (!passed) break;
        link->passed++;
        forget_wait(link);
    }
out:
    return st;
}

static void poll_marks(struct cairn__link *link) {
    bool busy = false;
    if (link->gone || link->launched == link->passed) return;
    cairn_status st = advance(link);
    if (st == CAIRN_OK && link->launched == link->passed) return;
    if (st == CAIRN_OK) st = link->ops->state(link->comm, &busy);
    if (st == CAIRN_OK && is_late(link, link->group->timeout)) st = fail_late(link);
    if (st != CAIRN_OK) fail_link(link, st);
}

/* ---- the thread ---- */

static struct timespec next_poll(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += POLL_MS * 1000000L;
    at.tv_sec += at.tv_nsec / 1000000000L;
    at.tv_nsec %= 1000000000L;
    return at;
}

static void *watch(void *argument) {
    struct cairn__link *link = argument;
    pthread_mutex_lock(&link->mutex);
    while (!link->stops) {
        const struct timespec at = next_poll();
        if (pthread_cond_timedwait(&link->stop, &link->mutex, &at) == ETIMEDOUT) poll_marks(link);
    }
    pthread_mutex_unlock(&link->mutex);
    return NULL;
}

/* Signals are for the program's own threads. */
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

static void end_watch(struct cairn__link *link) {
    if (!link->watched) return;
    pthread_mutex_lock(&link->mutex);
    link->stops = true;
    pthread_cond_signal(&link->stop);
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

/* Whether the library's last call still runs. */
static cairn_status is_busy(struct cairn__link *link, bool *busy) {
    pthread_mutex_lock(&link->mutex);
    cairn_status st = check_failure(link);
    if (st == CAIRN_OK) {
        st = link->ops->state(link->comm, busy);
        if (st != CAIRN_OK) fail_link(link, st);
    }
    pthread_mutex_unlock(&link->mutex);
    return st;
}

static cairn_status give_up(struct cairn__link *link, const char *what, double timeout) {
    char rank[80];
    cairn__group_name_rank(link->group, link->group->rank, rank, sizeof(rank));
    const cairn_status st =
        cairn__fail(CAIRN_ETIMEOUT, "%s waited %g s for %s; raise CAIRN_TIMEOUT if the other ranks are only slow", rank,
                    timeout, what);
    pthread_mutex_lock(&link->mutex);
    fail_link(link, st);
    pthread_mutex_unlock(&link->mutex);
    return cairn__fail(st, "%s", link->failure);
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
    if (!is_recording(link)) poll_marks(link);
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
        cairn__family_progress(link->group);
        pause_after(idle);
    }
out:
    return st;
}

static int recorded_mark(uint64_t number) {
    return (int)(CAIRN__LINK_DEPTH + number % CAIRN__LINK_DEPTH);
}

/* Beside the mutex, since a device whose stream is the host waits here. */
cairn_status cairn__link_join(struct cairn__link *link, uint64_t number) {
    uint64_t passed = 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__link_poll(link, &passed));
    if (is_recording(link)) return link->ops->await(link->comm, recorded_mark(number));
    if (number <= passed) return CAIRN_OK;
    TRY(link->ops->await(link->comm, (int)(number % CAIRN__LINK_DEPTH)));
    TRY(cairn__link_poll(link, &passed));
out:
    return st;
}

/* ---- launching ---- */

static cairn_status queue_behind(struct cairn__link *link, cairn__link_queue queue, void *ctx) {
    pthread_mutex_lock(&link->mutex);
    cairn_status st = check_failure(link);
    if (st == CAIRN_OK) {
        st = link->ops->follow(link->comm);
        if (st == CAIRN_OK) st = queue(link, ctx);
        if (st != CAIRN_OK) fail_link(link, st);
    }
    pthread_mutex_unlock(&link->mutex);
    return st;
}

static cairn_status mark(struct cairn__link *link, const struct cairn__call *call, uint64_t *number) {
    pthread_mutex_lock(&link->mutex);
    const bool records = is_recording(link);
    cairn_status st = check_failure(link);
    if (st == CAIRN_OK) {
        *number = records ? ++link->recorded : link->launched + 1;
        st = link->ops->mark(link->comm, records ? recorded_mark(*number) : (int)(*number % CAIRN__LINK_DEPTH));
        if (st != CAIRN_OK) fail_link(link, st);
    }
    if (st == CAIRN_OK && !records) {
        if (link->launched == link->passed) forget_wait(link);
        link->calls[*number % CAIRN__LINK_DEPTH] = *call;
        link->launched = *number;
    }
    pthread_mutex_unlock(&link->mutex);
    return st;
}

/* launched is the caller's alone to change. */
cairn_status cairn__link_launch(struct cairn__link *link, const struct cairn__call *call, cairn__link_queue queue,
                                void *ctx, uint64_t *number) {
    cairn_status st = CAIRN_OK;
    char what[128];
    cairn__call_describe(call, what, sizeof(what));
    if (!is_recording(link) && link->launched >= CAIRN__LINK_DEPTH - 1)
        TRY(cairn__link_wait(link, link->launched - (CAIRN__LINK_DEPTH - 2)));
    TRY(queue_behind(link, queue, ctx));
    TRY(until_ready(link, what, link->group->timeout));
    TRY(mark(link, call, number));
out:
    return st;
}

/* ---- life ---- */

void cairn__link_begin(struct cairn__link *link, cairn_group *group, const struct cairn__comm_ops *ops) {
    pthread_condattr_t monotonic;
    link->group = group;
    link->ops = ops;
    pthread_mutex_init(&link->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&link->stop, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

cairn_status cairn__link_open(struct cairn__link *link, const struct cairn__comm_id *id, double timeout) {
    cairn_group *group = link->group;
    cairn_status st = CAIRN_OK;
    pthread_mutex_lock(&link->mutex);
    st = link->ops->init(group->device, id, group->rank, group->size, &link->comm);
    if (st != CAIRN_OK) fail_link(link, st);
    pthread_mutex_unlock(&link->mutex);
    TRY(st);
    TRY(until_ready(link, "all ranks to connect", timeout));
    link->ready = true;
    TRY(begin_watch(link));
out:
    return st;
}

void cairn__link_abort(struct cairn__link *link) {
    pthread_mutex_lock(&link->mutex);
    abort_comm(link);
    pthread_mutex_unlock(&link->mutex);
}

/* Finalizes where all launches have run, so that nothing that others still receive is lost. */
static void leave(struct cairn__link *link) {
    bool busy = true;
    if (advance(link) != CAIRN_OK || link->launched != link->passed) return;
    link->ops->finalize(link->comm);
    for (int ms = 0; ms < LEAVE_MS && link->ops->state(link->comm, &busy) == CAIRN_OK && busy; ms++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (!busy) return;
    abort_comm(link);
}

void cairn__link_end(struct cairn__link *link) {
    end_watch(link);
    if (link->comm && link->ready && !link->gone) leave(link);
    if (link->comm && (!link->ready || link->launched != link->passed)) abort_comm(link);
    if (link->comm) link->ops->close(&link->comm);
    pthread_cond_destroy(&link->stop);
    pthread_mutex_destroy(&link->mutex);
}
