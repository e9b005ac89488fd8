/* Progress and waiting: spin, then yield, then sleep (bell.c).
 *
 * If the ranks outnumber the processors they hardly spin: a waiting rank yields to one that still has to post. It keeps
 * yielding for a while before it sleeps, since waking eight ranks takes as long as some calls. Yielding helps only if
 * the system schedules the ranks together: Linux gives each session a share of its own (autogroup). */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>

#include "comm/shm/shm.h"
#include "core/cpu.h"
#include "core/status.h"
#include "core/trace.h"

enum {
    SPINS = 2000,        /* about 50 us, the time of a bucket between two cores */
    YIELDS = 5000,       /* some ms: two ranks that do the same work come apart by about as much */
    YIELD_NS = 10000000, /* at most: beside other programs one may take a ms */
    CROWDED_SPINS = 1,
    CROWDED_YIELDS = 20,
    LOOK_NS = 20000000,
    STOPPED_NS = 1000000000,
    POLLS_PER_CLOCK = 64,
};

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

cairn_status cairn__shm_step(struct cairn__shm *s) {
    cairn_status st = cairn__shm_step_collectives(s);
    return st == CAIRN_OK && s->active ? cairn__shm_step_messages(s) : st;
}

static cairn_status nap(struct cairn__shm *s) {
    atomic_fetch_add(&s->bell->sleepers, 1);
    uint32_t seen = atomic_load(&s->bell->events);
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_was_aborted(s->group));
    TRY(cairn__shm_step(s));
    cairn__family_progress_others(s->group);
    if (!s->moved) cairn__shm_sleep(s, seen);
out:
    atomic_fetch_sub(&s->bell->sleepers, 1);
    return st;
}

/* ---- what is waited for ---- */

/* The oldest message of a route, or where that is NULL the oldest collective. */
static const struct cairn__call *awaited(struct cairn__shm *s, const struct shm_route *route) {
    return &(route ? route->works.first : shm_op(s, s->complete)->work)->request.call;
}

static bool lags(struct cairn__shm *s, const struct shm_route *route, int rank) {
    return route ? route->peer == rank : cairn__shm_lags(s, rank);
}

/* ---- peers that died, gave up or do not come ---- */

static cairn_status check_peers(struct cairn__shm *s, const struct shm_route *route, bool blocked) {
    cairn_status st = CAIRN_OK;
    cairn__shm_mark_ended(s);
    /* What a rank published before it ended is there by now, and may be all that was missing. */
    TRY(cairn__shm_step(s));
    if (!s->moved && blocked) TRY(cairn__shm_find_deadlock(s, route, awaited(s, route)));
    for (int r = 0; r < s->size && !s->moved; r++) {
        const enum shm_gone how = cairn__shm_gone(s, r);
        const bool missing = (s->peers[r].dead || how != SHM_HERE) && lags(s, route, r);
        if (r == s->rank || !(missing || how == SHM_ABORTED)) continue;
        char what[128], did[160];
        cairn__call_describe(awaited(s, route), what, sizeof(what));
        snprintf(did, sizeof(did), "waited in %s", what);
        return cairn__shm_fail_gone(s, r, did);
    }
out:
    return st;
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
    const uint64_t wanted = route ? awaited(s, route)->number : s->complete + 1;
    const uint64_t last =
        route ? last_ticket(route->theirs->slots, SHM_PAIR_SLOTS) : last_ticket(shm_lane(s, rank)->slots, SHM_SLOTS);
    int used = snprintf(text, nbytes, "%s (pid %d, ", who, s->peers[rank].pid);
    if (last >= wanted) {
        used += snprintf(text + used, nbytes - (size_t)used, "posted it and then stopped)");
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
    cairn__call_describe(awaited(s, route), what, sizeof(what));
    for (int r = 0; r < s->size && used < sizeof(list) - 160; r++) {
        if (!lags(s, route, r)) continue;
        if (used) used += (size_t)snprintf(list + used, sizeof(list) - used, ", ");
        used += describe_late(s, route, r, list + used, sizeof(list) - used);
    }
    return cairn__fail(CAIRN_ETIMEOUT, "rank %d waited %g s in %s for %s; raise %s if they are only slow", s->rank,
                       s->group->timeout, what, list, s->group->timeout_name);
}

/* A job that is suspended as a whole, by Slurm or a shell, is not late when it goes on. A wait that stalls comes here
 * every few ms, unless its process is stopped. */
static uint64_t unstopped_ns(struct cairn__shm *root, bool blocked) {
    const uint64_t now = cairn__now_ns();
    if (blocked && root->checked_ns && now - root->checked_ns > STOPPED_NS) root->stopped_ns += now - root->checked_ns;
    if (blocked) root->checked_ns = now;
    return now - root->stopped_ns;
}

/* Called when nothing moved. blocked: this rank is in a wait, and posts nothing before it ends. */
static cairn_status check_stall(struct cairn__shm *s, struct shm_route *route, bool blocked) {
    struct shm_clock *clock = route ? &route->clock : &s->clock;
    const uint64_t now = unstopped_ns(s->root, blocked);
    cairn_status st = CAIRN_OK;
    if (clock->since == 0 || clock->moves != clock->seen) {
        clock->seen = clock->moves;
        clock->since = now;
        clock->next_look = now + LOOK_NS;
    }
    if (now < clock->next_look) return CAIRN_OK;
    clock->next_look = now + LOOK_NS;
    TRY(check_peers(s, route, blocked));
    if (!s->moved && (double)(now - clock->since) > s->group->timeout * 1e9) st = fail_late(s, route);
out:
    return st;
}

/* ---- the two ways to come by ---- */

cairn_status cairn__shm_poll(struct cairn__shm *s) {
    cairn_status st = CAIRN_OK;
    if (s->complete == s->posted && !s->active) return CAIRN_OK;
    s->moved = false;
    TRY(cairn__shm_step(s));
    if (s->moved || ++s->stalled_polls % POLLS_PER_CLOCK != 0) return CAIRN_OK;
    if (s->complete < s->posted) TRY(check_stall(s, NULL, false));
    for (struct shm_route *r = s->active; r && !s->moved; r = r->next) TRY(check_stall(s, r, false));
out:
    return st;
}

/* Only naps look at the peers, and whether the group was aborted. */
static bool is_tired(struct cairn__shm *s, int idle) {
    if (idle < s->spins) return false;
    if (idle == s->spins) s->tired_ns = cairn__now_ns() + YIELD_NS;
    return idle >= s->spins + s->yields || cairn__now_ns() >= s->tired_ns;
}

static cairn_status pause_a_little(struct cairn__shm *s, struct shm_route *route, int idle) {
    if (is_tired(s, idle)) {
        cairn_status st = nap(s);
        return st == CAIRN_OK && !s->moved ? check_stall(s, route, true) : st;
    }
    cairn__family_progress_others(s->group);
    if (idle < s->spins) {
        cairn__pause();
    } else {
        sched_yield();
    }
    return CAIRN_OK;
}

cairn_status cairn__shm_wait(struct cairn__shm *s, const cairn_work *work) {
    const struct cairn__call *call = &work->request.call;
    struct shm_route *route = cairn__call_is_message(call) ? cairn__shm_route(s, call) : NULL;
    for (int idle = 0;; idle++) {
        s->moved = false;
        if (idle == 0) s->root->checked_ns = 0;
        cairn_status st = cairn__shm_step(s);
        if (st == CAIRN_OK && !s->moved && !work->done) st = pause_a_little(s, route, idle);
        if (s->root->stuck_in && (s->moved || st != CAIRN_OK || work->done)) cairn__shm_go_on(s);
        if (st != CAIRN_OK || work->done) return st;
        if (s->moved) idle = 0;
    }
}
