/* Waiting: spin, then yield, then sleep on a futex that publishers wake only while somebody sleeps.
 *
 * A sleeper counts itself in, reads the event count, looks once more and then sleeps on that count; a publisher stores
 * first and reads the number of sleepers after. Both orders are sequentially consistent, so one of them sees the other.
 * Sleeps are short all the same, because nobody wakes the ranks that wait for one that died: those learn it from its
 * socket.
 *
 * Where the ranks outnumber the processors they hardly spin: whoever waits yields to a rank that still has to post. It
 * goes on yielding for a while before it sleeps, since waking eight ranks takes as long as some calls. Yielding is of
 * use only where the system runs the ranks as one crowd: Linux gives each session a share of its own (autogroup). */
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/shm/shm.h"
#include "core/status.h"
#include "core/trace.h"

enum {
    SPINS = 2000,  /* about 50 us, the time of a bucket between two cores */
    YIELDS = 5000, /* some ms: two ranks that do the same work come apart by about as much */
    CROWDED_SPINS = 1,
    CROWDED_YIELDS = 20,
    SLEEP_NS = 10000000,
    LOOK_NS = 20000000,
    STOPPED_NS = 1000000000,
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
    const struct cairn__shm *root = s->root;
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int r = 0; r < root->size; r++) CPU_OR(&all, &all, &shm_lane(root, r)->processors);
    const int processors = CPU_COUNT(&all);
    s->crowded = processors > 0 && root->size > processors;
    s->regions = processors < SHM_REGIONS ? processors : SHM_REGIONS;
    s->spins = s->crowded ? CROWDED_SPINS : SPINS;
    s->yields = s->crowded ? CROWDED_YIELDS : YIELDS;
}

void cairn__shm_notify(struct cairn__shm *s) {
    if (atomic_load(&s->bell->sleepers) == 0) return;
    atomic_fetch_add(&s->bell->events, 1);
    syscall(SYS_futex, &s->bell->events, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void sleep_until(struct cairn__shm *s, uint32_t seen) {
    const struct timespec limit = {.tv_nsec = SLEEP_NS};
    const uint64_t begin = cairn__now_ns();
    syscall(SYS_futex, &s->bell->events, FUTEX_WAIT, seen, &limit, NULL, 0);
    const uint64_t slept = cairn__now_ns() - begin;
    if (slept > STOPPED_NS) s->root->stopped_ns += slept;
}

/* A job that is suspended as a whole, by Slurm or a shell, is not late when it goes on. */
static uint64_t awake_ns(const struct cairn__shm *s) {
    return cairn__now_ns() - s->root->stopped_ns;
}

static cairn_status nap(struct cairn__shm *s) {
    atomic_fetch_add(&s->bell->sleepers, 1);
    uint32_t seen = atomic_load(&s->bell->events);
    cairn_status st = cairn__group_was_aborted(s->group);
    if (st == CAIRN_OK) st = cairn__shm_step(s);
    if (st == CAIRN_OK) cairn__family_progress(s->group);
    if (st == CAIRN_OK && !s->moved) sleep_until(s, seen);
    atomic_fetch_sub(&s->bell->sleepers, 1);
    return st;
}

/* ---- what is waited for ---- */

const struct cairn__call *cairn__shm_awaited(struct cairn__shm *s, const struct shm_route *route) {
    return &(route ? route->works.first : shm_op(s, s->complete)->work)->request.call;
}

static bool lags(struct cairn__shm *s, const struct shm_route *route, int rank) {
    return route ? route->peer == rank : cairn__shm_lags(s, rank);
}

/* ---- peers that died, gave up or do not come ---- */

static void look_for_ends(struct cairn__shm *s) {
    for (int r = 0; r < s->size; r++) {
        if (r == s->rank || s->peers[r].dead) continue;
        struct pollfd p[] = {{.fd = s->peers[r].fd, .events = POLLRDHUP},
                             {.fd = s->peers[r].process, .events = POLLIN}};
        if (poll(p, 2, 0) > 0) s->peers[r].dead = true;
    }
}

static enum shm_gone gone(const struct cairn__shm *s, int rank) {
    return s->control ? (enum shm_gone)atomic_load(&shm_lane(s, rank)->gone) : SHM_HERE;
}

int cairn__shm_find_gone(struct cairn__shm *s) {
    int r = 0;
    look_for_ends(s);
    while (r < s->size && (r == s->rank || (!s->peers[r].dead && gone(s, r) == SHM_HERE))) r++;
    return r < s->size ? r : -1;
}

cairn_status cairn__shm_fail_gone(const struct cairn__shm *s, int rank, const char *did) {
    char who[96];
    cairn__group_name_rank(s->group, rank, who, sizeof(who));
    const int pid = s->peers[rank].pid;
    switch (gone(s, rank)) {
    case SHM_ABORTED:
        return cairn__fail(CAIRN_EPEER, "%s aborted the group while rank %d %s", who, s->rank, did);
    case SHM_GAVE_UP:
        return cairn__fail(CAIRN_EPEER, "%s gave up while rank %d %s: %.*s", who, s->rank, did, SHM_CAUSE_NBYTES,
                           shm_lane(s, rank)->cause);
    case SHM_LEFT:
        return cairn__fail(CAIRN_EPEER, "%s (pid %d) left the group while rank %d %s", who, pid, s->rank, did);
    default:
        return cairn__fail(CAIRN_EPEER, "%s (pid %d) ended while rank %d %s", who, pid, s->rank, did);
    }
}

static cairn_status fail_waiting(struct cairn__shm *s, const struct shm_route *route, int rank) {
    char what[128], did[160];
    cairn__call_describe(cairn__shm_awaited(s, route), what, sizeof(what));
    snprintf(did, sizeof(did), "waited in %s", what);
    return cairn__shm_fail_gone(s, rank, did);
}

static cairn_status look_at_peers(struct cairn__shm *s, const struct shm_route *route, bool blocked) {
    look_for_ends(s);
    /* What a rank published before it ended is there by now, and may be all that was missing. */
    cairn_status st = cairn__shm_step(s);
    if (st == CAIRN_OK && !s->moved && blocked) st = cairn__shm_find_deadlock(s, route);
    if (st != CAIRN_OK || s->moved) return st;
    for (int r = 0; r < s->size; r++) {
        const enum shm_gone how = gone(s, r);
        const bool missing = (s->peers[r].dead || how != SHM_HERE) && lags(s, route, r);
        if (r != s->rank && (missing || how == SHM_ABORTED)) return fail_waiting(s, route, r);
    }
    return CAIRN_OK;
}

static uint64_t last_ticket(const struct shm_slot *slots, int n) {
    uint64_t last = 0;
    for (int i = 0; i < n; i++) {
        uint64_t ticket = atomic_load(&slots[i].ticket);
        if (ticket > last) last = ticket;
    }
    return last;
}

/* "rank 1 (pid 99, last posted number 3)". The tickets of collectives begin with the group's creation, number 0. */
static size_t describe_late(struct cairn__shm *s, const struct shm_route *route, int rank, char *text, size_t nbytes) {
    char who[96];
    cairn__group_name_rank(s->group, rank, who, sizeof(who));
    const uint64_t wanted = route ? cairn__shm_awaited(s, route)->number : s->complete + 1;
    const uint64_t last =
        route ? last_ticket(route->theirs->slots, SHM_PAIR_SLOTS) : last_ticket(shm_lane(s, rank)->slots, SHM_SLOTS);
    int used = snprintf(text, nbytes, "%s (pid %d, ", who, s->peers[rank].pid);
    if (last >= wanted) {
        used += snprintf(text + used, nbytes - (size_t)used, "came but stopped in it)");
    } else if (last <= !route) {
        used += snprintf(text + used, nbytes - (size_t)used, "which posted nothing yet)");
    } else {
        used += snprintf(text + used, nbytes - (size_t)used, "last posted number %" PRIu64 ")", last - !route);
    }
    return (size_t)used;
}

static cairn_status fail_late(struct cairn__shm *s, const struct shm_route *route) {
    char what[128], list[400] = "";
    size_t used = 0;
    cairn__call_describe(cairn__shm_awaited(s, route), what, sizeof(what));
    for (int r = 0; r < s->size && used < sizeof(list) - 160; r++) {
        if (!lags(s, route, r)) continue;
        if (used) used += (size_t)snprintf(list + used, sizeof(list) - used, ", ");
        used += describe_late(s, route, r, list + used, sizeof(list) - used);
    }
    return cairn__fail(CAIRN_ETIMEOUT, "rank %d waited %g s in %s for %s; raise CAIRN_TIMEOUT if they are only slow",
                       s->rank, s->group->timeout, what, list);
}

/* Called when nothing moved. blocked: this rank is in a wait, and posts nothing before it ends. */
static cairn_status look_around(struct cairn__shm *s, struct shm_route *route, bool blocked) {
    struct shm_clock *clock = route ? &route->clock : &s->clock;
    uint64_t now = awake_ns(s);
    if (clock->since == 0 || clock->moves != clock->seen) {
        clock->seen = clock->moves;
        clock->since = now;
        clock->next_look = now + LOOK_NS;
    }
    if (now < clock->next_look) return CAIRN_OK;
    clock->next_look = now + LOOK_NS;
    cairn_status st = look_at_peers(s, route, blocked);
    if (st != CAIRN_OK || s->moved) return st;
    return (double)(now - clock->since) > s->group->timeout * 1e9 ? fail_late(s, route) : CAIRN_OK;
}

/* ---- the two ways to come by ---- */

static cairn_status look_around_everywhere(struct cairn__shm *s) {
    cairn_status st = s->complete < s->posted ? look_around(s, NULL, false) : CAIRN_OK;
    for (struct shm_route *r = s->active; r && st == CAIRN_OK && !s->moved; r = r->next) st = look_around(s, r, false);
    return st;
}

cairn_status cairn__shm_poll(struct cairn__shm *s) {
    if (s->complete == s->posted && !s->active) return CAIRN_OK;
    s->moved = false;
    cairn_status st = cairn__shm_step(s);
    if (st != CAIRN_OK || s->moved || ++s->stalled_polls % POLLS_PER_CLOCK != 0) return st;
    return look_around_everywhere(s);
}

static cairn_status pause_a_little(struct cairn__shm *s, struct shm_route *route, int idle) {
    if (idle >= s->spins + s->yields) {
        cairn_status st = nap(s);
        return st == CAIRN_OK && !s->moved ? look_around(s, route, true) : st;
    }
    cairn__family_progress(s->group);
    if (idle < s->spins) {
        relax();
    } else {
        sched_yield();
    }
    return CAIRN_OK;
}

cairn_status cairn__shm_wait(struct cairn__shm *s, const cairn_work *work) {
    const struct cairn__call *call = &work->request.call;
    struct shm_route *route = shm_is_message(call) ? cairn__shm_route(s, call) : NULL;
    for (int idle = 0;; idle++) {
        s->moved = false;
        cairn_status st = cairn__shm_step(s);
        if (st == CAIRN_OK && !s->moved && !work->done) st = pause_a_little(s, route, idle);
        if (s->root->stuck_in && (s->moved || st != CAIRN_OK || work->done)) cairn__shm_go_on(s);
        if (st != CAIRN_OK || work->done) return st;
        if (s->moved) idle = 0;
    }
}
