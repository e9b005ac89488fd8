/* Times. Communication is busy while at least one bucket is in flight. Buckets complete in launching order, so a bucket
 * that was launched while its predecessor was in flight counts from the predecessor's completion on. */
#include "ddp/times.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "core/trace.h"

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* ns from begin to end; 0 if one of them has not happened, or end came first. */
static uint64_t between(uint64_t begin, uint64_t end) {
    return begin && end > begin ? end - begin : 0;
}

/* ---- making and ending ---- */

cairn_status cairn__ddp_times_make(struct cairn__ddp_times *t, size_t num_slots, size_t num_buckets,
                                   bool watches_polls) {
    cairn_status st = CAIRN_OK;
    struct cairn__ddp_bucket_times *buckets = NULL;
    TRY(cairn__calloc(num_buckets, sizeof(*buckets), (void **)&buckets));
    if (!t->ready) {
        TRY(cairn__calloc(num_slots, sizeof(t->ready[0]), (void **)&t->ready));
        TRY(cairn__calloc(num_slots, sizeof(t->ready_order[0]), (void **)&t->ready_order));
        TRY(cairn__calloc(num_slots * CAIRN__DDP_SAMPLES, sizeof(t->ready_samples[0]), (void **)&t->ready_samples));
        t->num_slots = num_slots;
    }
    t->watches_polls = watches_polls;
    cairn__free(t->buckets);
    t->buckets = buckets;
    t->num_buckets = num_buckets;
    return CAIRN_OK;
out:
    cairn__free(buckets);
    return st;
}

void cairn__ddp_times_free(struct cairn__ddp_times *t) {
    cairn__free(t->buckets);
    cairn__free(t->ready);
    cairn__free(t->ready_order);
    cairn__free(t->ready_samples);
    *t = (struct cairn__ddp_times){0};
}

void cairn__ddp_times_take_slots(struct cairn__ddp_times *t, struct cairn__ddp_times *from) {
    struct cairn__ddp_times taken = *t;
    taken.buckets = from->buckets;
    taken.num_buckets = from->num_buckets;
    taken.ready = from->ready;
    taken.ready_order = from->ready_order;
    taken.ready_samples = from->ready_samples;
    taken.num_slots = from->num_slots;
    taken.num_ready = 0;
    *from = (struct cairn__ddp_times){0};
    cairn__ddp_times_free(t);
    *t = taken;
}

/* ---- moments ---- */

void cairn__ddp_times_forward_begin(struct cairn__ddp_times *t) {
    const uint64_t now = cairn__now_ns();
    const uint64_t outside =
        t->now.forward_begin ? t->now.outside : between(t->last.settled, now); /* the first one's */
    t->now = (struct cairn__ddp_moments){.forward_begin = now, .outside = outside};
    t->arriving = false; /* a backward before may have failed half-way */
}

void cairn__ddp_times_forward_end(struct cairn__ddp_times *t) {
    t->now.forward_end = t->now.backward_begin = cairn__now_ns();
}

/* The first of an iteration; there may have been no forward. */
static void begin_arrivals(struct cairn__ddp_times *t, uint64_t now) {
    memset(t->ready, 0, t->num_slots * sizeof(t->ready[0]));
    t->num_ready = 0;
    for (size_t b = 0; b < t->num_buckets; b++) t->buckets[b].filling = 0; /* a backward before may have failed */
    if (t->now.backward_begin) return;
    t->now.backward_begin = now;
    t->now.outside = between(t->last.settled, now);
}

void cairn__ddp_times_ready(struct cairn__ddp_times *t, size_t slot) {
    const uint64_t now = cairn__now_ns();
    if (!t->arriving) begin_arrivals(t, now);
    t->arriving = true;
    if (t->num_ready < t->num_slots) t->ready_order[t->num_ready++] = slot;
    t->ready[slot] = later(between(t->now.backward_begin + t->now.polled, now), 1);
}

uint64_t cairn__ddp_times_poll_begin(const struct cairn__ddp_times *t) {
    return t->watches_polls ? cairn__now_ns() : 0;
}

void cairn__ddp_times_poll_end(struct cairn__ddp_times *t, uint64_t begin_ns) {
    if (begin_ns) t->now.polled += cairn__now_ns() - begin_ns;
}

void cairn__ddp_times_fill(struct cairn__ddp_times *t, size_t bucket) {
    struct cairn__ddp_bucket_times *b = &t->buckets[bucket];
    if (cairn__trace_on() && !b->filling) b->filling = cairn__now_ns();
}

void cairn__ddp_times_launch(struct cairn__ddp_times *t, size_t bucket, size_t nbytes) {
    const uint64_t now = cairn__now_ns(), filling = t->buckets[bucket].filling;
    t->buckets[bucket] = (struct cairn__ddp_bucket_times){.launched = now, .nbytes = (int64_t)nbytes};
    if (!t->now.comm_begin) t->now.comm_begin = now;
    if (filling) cairn__trace_span("ddp", "bucket_fill", (int64_t)bucket, (int64_t)nbytes, filling, now);
    cairn__trace_span("ddp", "bucket_launch", (int64_t)bucket, (int64_t)nbytes, now, now);
}

void cairn__ddp_times_compute_end(struct cairn__ddp_times *t) {
    t->now.compute_end = cairn__now_ns();
    if (!t->now.backward_begin) t->now.backward_begin = t->now.compute_end;
}

void cairn__ddp_times_complete(struct cairn__ddp_times *t, size_t bucket, uint64_t completed_ns) {
    struct cairn__ddp_bucket_times *b = &t->buckets[bucket];
    b->completed = completed_ns ? completed_ns : cairn__now_ns();
    const uint64_t alone = later(b->launched, t->now.comm_end), waited = later(alone, t->now.compute_end);
    t->now.busy += between(alone, b->completed);
    t->now.exposed += between(waited, b->completed);
    t->now.comm_end = later(t->now.comm_end, b->completed);
    cairn__trace_span("ddp", "bucket", (int64_t)bucket, b->nbytes, b->launched, b->completed);
    if (b->completed > waited)
        cairn__trace_span("ddp", "bucket_wait", (int64_t)bucket, b->nbytes, waited, b->completed);
}

/* ---- an iteration is over ---- */

static struct cairn__ddp_parts parts_of(const struct cairn__ddp_moments *m) {
    return (struct cairn__ddp_parts){.forward = between(m->forward_begin, m->forward_end),
                                     .backward = between(m->backward_begin, m->compute_end),
                                     .comm = between(m->comm_begin, m->comm_end),
                                     .overlap = between(m->comm_begin,
                                                        m->comm_end < m->compute_end ? m->comm_end : m->compute_end),
                                     .busy = m->busy,
                                     .exposed = m->exposed,
                                     .outside = m->outside};
}

static void add_up(struct cairn__ddp_parts *sum, const struct cairn__ddp_parts *parts) {
    sum->forward += parts->forward;
    sum->backward += parts->backward;
    sum->comm += parts->comm;
    sum->overlap += parts->overlap;
    sum->busy += parts->busy;
    sum->exposed += parts->exposed;
    sum->outside += parts->outside;
}

void cairn__ddp_times_settled(struct cairn__ddp_times *t) {
    t->now.settled = cairn__now_ns();
    if (!t->arriving) begin_arrivals(t, t->now.compute_end); /* no gradient came */
    const struct cairn__ddp_parts parts = parts_of(&t->now);
    add_up(&t->sum, &parts);
    const size_t column = (size_t)(t->iteration % CAIRN__DDP_SAMPLES);
    const uint64_t polled = t->now.polled < parts.backward ? t->now.polled : parts.backward;
    t->samples[column] = (struct cairn__ddp_sample){parts.forward, parts.backward - polled, parts.outside};
    for (size_t i = 0; i < t->num_slots; i++) t->ready_samples[i * CAIRN__DDP_SAMPLES + column] = t->ready[i];
    const struct cairn__ddp_moments *m = &t->now;
    if (m->forward_end) cairn__trace_span("ddp", "forward", t->iteration, 0, m->forward_begin, m->forward_end);
    cairn__trace_span("ddp", "backward", t->iteration, 0, m->backward_begin, m->compute_end);
    cairn__trace_span("ddp", "iteration", t->iteration, 0, m->forward_begin ? m->forward_begin : m->backward_begin,
                      m->settled);
    t->iteration++;
    t->last = t->now;
    t->now = (struct cairn__ddp_moments){0};
    t->arriving = false;
}

/* ---- looking ---- */

struct cairn__ddp_parts cairn__ddp_times_last(const struct cairn__ddp_times *t) {
    return parts_of(&t->last);
}

static int compare(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint64_t median(uint64_t *values, size_t count) {
    if (count == 0) return 0;
    qsort(values, count, sizeof(values[0]), compare);
    return values[count / 2];
}

static size_t num_samples(const struct cairn__ddp_times *t) {
    return t->iteration < CAIRN__DDP_SAMPLES ? (size_t)t->iteration : CAIRN__DDP_SAMPLES;
}

struct cairn__ddp_sample cairn__ddp_times_median(const struct cairn__ddp_times *t) {
    uint64_t forward[CAIRN__DDP_SAMPLES], backward[CAIRN__DDP_SAMPLES], outside[CAIRN__DDP_SAMPLES];
    const size_t n = num_samples(t);
    for (size_t i = 0; i < n; i++) {
        forward[i] = t->samples[i].forward;
        backward[i] = t->samples[i].backward;
        outside[i] = t->samples[i].outside;
    }
    return (struct cairn__ddp_sample){median(forward, n), median(backward, n), median(outside, n)};
}

uint64_t cairn__ddp_times_median_ready(const struct cairn__ddp_times *t, size_t slot) {
    uint64_t values[CAIRN__DDP_SAMPLES];
    const size_t n = num_samples(t);
    memcpy(values, t->ready_samples + slot * CAIRN__DDP_SAMPLES, n * sizeof(values[0]));
    return median(values, n);
}
