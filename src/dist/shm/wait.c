/* Waiting: spin, then yield, then sleep on a futex that publishers wake only while somebody sleeps.
 *
 * A sleeper counts itself in, reads the event count, looks once more and then sleeps on that count; a publisher stores
 * first and reads the number of sleepers after. Both orders are sequentially consistent, so one of them sees the other.
 * Sleeps are short all the same, because nobody wakes the ranks that wait for one that died: those learn it from its
 * socket. */
#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/status.h"
#include "core/trace.h"
#include "dist/shm/shm.h"

enum {
    SPINS = 2000, /* about 50 us, the time of a bucket between two cores */
    YIELDS = 50,
    CROWDED_SPINS = 20,
    CROWDED_YIELDS = 20,
    SLEEP_NS = 10000000,
    LOOK_NS = 20000000,
    POLLS_PER_CLOCK = 64,
};

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void cairn__shm_set_patience(struct cairn__shm *s) {
    cpu_set_t set;
    CPU_ZERO(&set);
    bool crowded = sched_getaffinity(0, sizeof(set), &set) == 0 && s->size > CPU_COUNT(&set);
    s->spins = crowded ? CROWDED_SPINS : SPINS;
    s->yields = crowded ? CROWDED_YIELDS : YIELDS;
}

void cairn__shm_notify(struct cairn__shm *s) {
    if (atomic_load(&s->control->sleepers) == 0) return;
    atomic_fetch_add(&s->control->events, 1);
    syscall(SYS_futex, &s->control->events, FUTEX_WAKE, s->size, NULL, NULL, 0);
}

static cairn_status nap(struct cairn__shm *s) {
    atomic_fetch_add(&s->control->sleepers, 1);
    uint32_t seen = atomic_load(&s->control->events);
    cairn_status st = cairn__shm_step(s);
    struct timespec limit = {.tv_nsec = SLEEP_NS};
    if (st == CAIRN_OK && !s->moved) syscall(SYS_futex, &s->control->events, FUTEX_WAIT, seen, &limit, NULL, 0);
    atomic_fetch_sub(&s->control->sleepers, 1);
    return st;
}

/* ---- peers that died, gave up or do not come ---- */

static void describe_wait(struct cairn__shm *s, char *text, size_t nbytes) {
    cairn__shm_describe(shm_op(s, s->complete)->work, text, nbytes);
}

static void look_for_ends(struct cairn__shm *s) {
    for (int r = 0; r < s->size; r++) {
        if (r == s->rank || s->peers[r].dead) continue;
        struct pollfd p[] = {{.fd = s->peers[r].fd, .events = POLLRDHUP},
                             {.fd = s->peers[r].process, .events = POLLIN}};
        if (poll(p, 2, 0) > 0) s->peers[r].dead = true;
    }
}

static cairn_status fail_gone(struct cairn__shm *s, int rank) {
    char what[96];
    describe_wait(s, what, sizeof(what));
    const struct shm_peer *peer = &s->peers[rank];
    struct shm_lane *lane = shm_lane(s, rank);
    switch ((enum shm_gone)atomic_load(&lane->gone)) {
    case SHM_GAVE_UP:
        return cairn__fail(CAIRN_EPEER, "rank %d gave up while rank %d waited in %s: %.*s", rank, s->rank, what,
                           SHM_CAUSE_NBYTES, lane->cause);
    case SHM_LEFT:
        return cairn__fail(CAIRN_EPEER, "rank %d (pid %d) left the group while rank %d waited in %s", rank, peer->pid,
                           s->rank, what);
    default:
        return cairn__fail(CAIRN_EPEER, "rank %d (pid %d) ended while rank %d waited in %s", rank, peer->pid, s->rank,
                           what);
    }
}

static cairn_status look_at_peers(struct cairn__shm *s) {
    look_for_ends(s);
    /* What a rank published before it ended is there by now, and may be all that was missing. */
    cairn_status st = cairn__shm_step(s);
    if (st != CAIRN_OK || s->moved) return st;
    for (int r = 0; r < s->size; r++) {
        bool gone = s->peers[r].dead || atomic_load(&shm_lane(s, r)->gone) != SHM_HERE;
        if (gone && cairn__shm_lags(s, r)) return fail_gone(s, r);
    }
    return CAIRN_OK;
}

static uint64_t last_posted(const struct cairn__shm *s, int rank) {
    uint64_t last = 0;
    for (int i = 0; i < SHM_SLOTS; i++) {
        uint64_t ticket = atomic_load(&shm_lane(s, rank)->slots[i].ticket);
        if (ticket > last) last = ticket;
    }
    return last;
}

static cairn_status fail_late(struct cairn__shm *s) {
    char what[96], list[300] = "";
    size_t used = 0;
    describe_wait(s, what, sizeof(what));
    for (int r = 0; r < s->size && used < sizeof(list) - 80; r++) {
        if (!cairn__shm_lags(s, r)) continue;
        uint64_t last = last_posted(s, r);
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%srank %d (pid %d, ", used ? ", " : "", r,
                                 s->peers[r].pid);
        if (last > s->complete) {
            used += (size_t)snprintf(list + used, sizeof(list) - used, "came but stopped in it)");
        } else if (last <= 1) {
            used += (size_t)snprintf(list + used, sizeof(list) - used, "which posted nothing yet)");
        } else {
            used += (size_t)snprintf(list + used, sizeof(list) - used, "last posted number %" PRIu64 ")", last - 1);
        }
    }
    return cairn__fail(CAIRN_ETIMEOUT, "rank %d waited %g s in %s for %s; raise CAIRN_TIMEOUT if they are only slow",
                       s->rank, s->group->timeout, what, list);
}

/* Called when nothing moved. */
static cairn_status look_around(struct cairn__shm *s) {
    uint64_t now = cairn__now_ns();
    if (s->stalled_since == 0) {
        s->stalled_since = now;
        s->next_look = now + LOOK_NS;
    }
    if (now < s->next_look) return CAIRN_OK;
    s->next_look = now + LOOK_NS;
    cairn_status st = look_at_peers(s);
    if (st != CAIRN_OK || s->moved) return st;
    return (double)(now - s->stalled_since) > s->group->timeout * 1e9 ? fail_late(s) : CAIRN_OK;
}

/* ---- the two ways to come by ---- */

cairn_status cairn__shm_poll(struct cairn__shm *s) {
    if (s->complete == s->posted) return CAIRN_OK;
    s->moved = false;
    cairn_status st = cairn__shm_step(s);
    if (st != CAIRN_OK) return st;
    if (s->moved) s->stalled_since = 0;
    if (s->moved || ++s->stalled_polls % POLLS_PER_CLOCK != 0) return CAIRN_OK;
    return look_around(s);
}

static cairn_status pause_a_little(struct cairn__shm *s, int idle) {
    if (idle < s->spins) {
        relax();
        return CAIRN_OK;
    }
    if (idle < s->spins + s->yields) {
        sched_yield();
        return CAIRN_OK;
    }
    cairn_status st = nap(s);
    return st == CAIRN_OK && !s->moved ? look_around(s) : st;
}

cairn_status cairn__shm_wait(struct cairn__shm *s, const cairn_work *work) {
    for (int idle = 0;; idle++) {
        s->moved = false;
        cairn_status st = cairn__shm_step(s);
        if (st != CAIRN_OK) return st;
        if (!s->moved && !work->done) st = pause_a_little(s, idle);
        if (st != CAIRN_OK) return st;
        if (s->moved) s->stalled_since = 0;
        if (s->moved) idle = 0;
        if (work->done) return CAIRN_OK;
    }
}
