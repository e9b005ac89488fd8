/* Messages: for each rank and direction a queue of its own, beside the collectives.
 *
 * The two ends of a pair publish their calls in slots, as collectives do, and compare them. The receiver copies from
 * group memory in place. Other bytes go through the pair's ring, one message after the other. The sender may fill the
 * ring before the receiver comes, but a message is not done before its two calls have been compared.
 *
 * An end reuses a slot when both have finished the message that was in it. */
#include <string.h>

#include "comm/shm/shm.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "core/status.h"

enum { CHUNK = 16 << 10, HEAD_NBYTES = 4096 };
_Static_assert(2 * sizeof(struct shm_end) <= HEAD_NBYTES && sizeof(struct shm_pair) == SHM_PAIR_NBYTES, "pages");

static size_t size_of(const struct cairn__call *call) {
    return (size_t)call->n * cairn_dtype_nbytes((cairn_dtype)call->dtype);
}

/* ---- routes ---- */

static void set_up(struct cairn__shm *s, struct shm_route *route, int peer, bool sends) {
    const size_t from = (size_t)(sends ? s->rank : peer), to = (size_t)(sends ? peer : s->rank);
    struct shm_pair *pair = &s->pairs[from * (size_t)s->size + to];
    *route = (struct shm_route){.pair = pair, .peer = peer, .sends = sends};
    route->mine = sends ? &pair->sender : &pair->receiver;
    route->theirs = sends ? &pair->receiver : &pair->sender;
}

struct shm_route *cairn__shm_route(const struct cairn__shm *s, const struct cairn__call *call) {
    return &s->routes[2 * call->peer + (call->kind == CAIRN__SEND)];
}

static cairn_status make_routes(struct cairn__shm *s) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(2 * (size_t)s->size, sizeof(*s->routes), (void **)&s->routes));
    for (int r = 0; r < s->size; r++) {
        set_up(s, &s->routes[2 * r], r, false);
        set_up(s, &s->routes[2 * r + 1], r, true);
    }
out:
    return st;
}

/* Small messages go through the ring even if the receiver could copy them, so that the sender may leave. */
static struct shm_place place_of(const struct cairn__shm *s, const struct cairn__request *r) {
    const struct shm_place place = cairn__shm_locate(s, r->src, size_of(&r->call));
    const bool is_small = place.segment == SHM_BY_ADDRESS && size_of(&r->call) <= CHUNK;
    return is_small ? (struct shm_place){0} : place;
}

cairn_status cairn__shm_post_message(struct cairn__shm *s, cairn_work *work) {
    const struct cairn__request *r = &work->request;
    cairn_status st = CAIRN_OK;
    if (!s->routes) TRY(make_routes(s));
    struct shm_route *route = cairn__shm_route(s, &r->call);
    const bool rings = route->sends && !place_of(s, r).segment && r->call.n > 0;
    const size_t needed = rings ? sizeof(*route->pair) : HEAD_NBYTES;
    if (route->filled < needed) { /* running out of memory later would kill the process */
        TRY(cairn__shm_fill(route->pair, needed));
        route->filled = needed;
    }
    shm_enqueue(&route->works, work);
    if (!route->unpublished) route->unpublished = work;
    if (!route->moving) route->moving = work;
    if (route->works.first == work) route->clock.since = 0;
    route->posted++;
    if (!route->active) {
        route->active = true;
        route->next = s->active;
        s->active = route;
    }
out:
    return st;
}

/* ---- publishing ---- */

static struct shm_slot *slot_of(struct shm_end *end, uint64_t number) {
    return &end->slots[number % SHM_PAIR_SLOTS];
}

static void publish(struct cairn__shm *s, struct shm_route *route) {
    while (route->unpublished) {
        const uint64_t mine = atomic_load(&route->mine->finished), theirs = atomic_load(&route->theirs->finished);
        if (route->published >= (mine < theirs ? mine : theirs) + SHM_PAIR_SLOTS) return;
        const struct cairn__request *r = &route->unpublished->request;
        struct shm_slot *slot = slot_of(route->mine, route->published);
        slot->call = r->call;
        slot->src = route->sends ? place_of(s, r) : (struct shm_place){0};
        route->unpublished = route->unpublished->state;
        atomic_store(&slot->ticket, ++route->published);
        cairn__shm_notify(s);
        shm_move(s, &route->clock);
    }
}

/* ---- bytes ---- */

static size_t least(size_t a, size_t b, size_t c) {
    const size_t least = a < b ? a : b;
    return least < c ? least : c;
}

static void count_moved(struct cairn__shm *s, struct shm_route *route, size_t n) {
    route->at += n;
    atomic_fetch_add(&route->mine->moved, n);
    cairn__shm_notify(s);
    shm_move(s, &route->clock);
}

/* Whether all of the message has been. */
static bool put(struct cairn__shm *s, struct shm_route *route, const char *src, size_t nbytes) {
    while (route->at < nbytes) {
        const uint64_t done = atomic_load(&route->mine->moved);
        const size_t space = SHM_RING_NBYTES - (size_t)(done - atomic_load(&route->theirs->moved));
        const size_t at = (size_t)(done % SHM_RING_NBYTES);
        const size_t n = least(least(nbytes - route->at, space, CHUNK), SHM_RING_NBYTES - at, CHUNK);
        if (n == 0) return false;
        cairn__shm_copy_across(route->pair->ring + at, src + route->at, n);
        count_moved(s, route, n);
    }
    return true;
}

static bool take(struct cairn__shm *s, struct shm_route *route, char *dst, size_t nbytes) {
    while (route->at < nbytes) {
        const uint64_t done = atomic_load(&route->mine->moved);
        const size_t there = (size_t)(atomic_load(&route->theirs->moved) - done);
        const size_t at = (size_t)(done % SHM_RING_NBYTES);
        const size_t n = least(least(nbytes - route->at, there, CHUNK), SHM_RING_NBYTES - at, CHUNK);
        if (n == 0) return false;
        memcpy(dst + route->at, route->pair->ring + at, n);
        count_moved(s, route, n);
    }
    return true;
}

static cairn_status copy_placed(struct cairn__shm *s, struct shm_route *route, const struct shm_place *src) {
    const struct cairn__request *r = &route->moving->request;
    cairn_status st = CAIRN_OK;
    if (r->call.n == 0) return CAIRN_OK;
    const bool may_go = src->segment == SHM_BY_ADDRESS;
    if (may_go) TRY(cairn__shm_begin_touching(s, route->peer));
    memcpy(r->dst, shm_at(s, route->peer, src), size_of(&r->call));
    if (may_go) cairn__shm_end_touching(s);
out:
    return st;
}

/* Of the message whose turn it is; *moved when the next one's has come. */
static cairn_status move_bytes(struct cairn__shm *s, struct shm_route *route, bool *moved) {
    cairn_status st = CAIRN_OK;
    *moved = false;
    const struct cairn__request *r = &route->moving->request;
    const struct shm_slot *sent = slot_of(&route->pair->sender, route->moved);
    const size_t nbytes = size_of(&r->call);
    if (route->sends) {
        if (!sent->src.segment && !put(s, route, r->src, nbytes)) return CAIRN_OK;
    } else if (sent->src.segment) {
        TRY(copy_placed(s, route, &sent->src));
    } else if (!take(s, route, r->dst, nbytes)) {
        return CAIRN_OK;
    }
    route->moving = route->moving->state;
    route->moved++;
    route->at = 0;
    *moved = true;
out:
    return st;
}

/* ---- the ends ---- */

/* *matched: the other end's call is there and belongs to this one. */
static cairn_status match(struct cairn__shm *s, struct shm_route *route, uint64_t number, bool *matched) {
    const struct shm_slot *mine = slot_of(route->mine, number), *theirs = slot_of(route->theirs, number);
    *matched = number < route->published && atomic_load(&theirs->ticket) == number + 1;
    if (!*matched || cairn__calls_agree(&mine->call, &theirs->call)) return CAIRN_OK;
    return cairn__fail_mismatch(s->group, s->rank, &mine->call, route->peer, &theirs->call);
}

/* A sender's bytes may go ahead; a message in group memory is done when the receiver has finished it. */
static cairn_status step_sender(struct cairn__shm *s, struct shm_route *route, bool *through) {
    const uint64_t number = atomic_load(&route->mine->finished);
    bool moved = true;
    cairn_status st = CAIRN_OK;
    while (route->moved < route->published && moved) TRY(move_bytes(s, route, &moved));
    st = match(s, route, number, through);
    if (route->moved <= number) *through = false;
    if (*through && slot_of(route->mine, number)->src.segment)
        *through = atomic_load(&route->theirs->finished) > number;
out:
    return st;
}

static cairn_status step_receiver(struct cairn__shm *s, struct shm_route *route, bool *through) {
    cairn_status st = match(s, route, route->moved, through);
    if (st == CAIRN_OK && *through) st = move_bytes(s, route, through);
    return st;
}

static cairn_status step_route(struct cairn__shm *s, struct shm_route *route) {
    cairn_status st = CAIRN_OK;
    while (route->works.first) {
        bool through = false;
        publish(s, route);
        TRY(route->sends ? step_sender(s, route, &through) : step_receiver(s, route, &through));
        if (!through) return CAIRN_OK;
        cairn__work_complete(shm_dequeue(&route->works), 0);
        atomic_fetch_add(&route->mine->finished, 1);
        cairn__shm_notify(s);
        shm_move(s, &route->clock);
    }
out:
    return st;
}

cairn_status cairn__shm_step_messages(struct cairn__shm *s) {
    struct shm_route **at = &s->active;
    cairn_status st = CAIRN_OK;
    while (*at) {
        struct shm_route *route = *at;
        TRY(step_route(s, route));
        if (route->works.first) {
            at = &route->next;
        } else {
            route->active = false;
            *at = route->next;
        }
    }
out:
    return st;
}
