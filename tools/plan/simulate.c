#include "simulate.h"

#include <math.h>
#include <stdlib.h>

#include "ddp/plan.h"
#include "../common/say.h"

enum { FIRST_CAP = 1 << 20, LEAST_CAP = 64 << 10, SEARCHED_PIECES = 4096 };

/* ---- buckets ---- */

struct arrival {
    double ns;
    size_t index;
};

/* Gradients that are ready at the same time are ordered as in the reducer's initial plan: from the last to the
 * first. */
static int by_arrival(const void *a, const void *b) {
    const struct arrival *x = a, *y = b;
    if (x->ns != y->ns) return x->ns < y->ns ? -1 : 1;
    return (x->index < y->index) - (x->index > y->index);
}

static size_t *order_of_arrival(const struct profile *profile) {
    struct arrival *arrivals = must(calloc(profile->count, sizeof(*arrivals)));
    size_t *order = must(calloc(profile->count, sizeof(*order)));
    for (size_t i = 0; i < profile->count; i++) arrivals[i] = (struct arrival){profile->params[i].ready_ns, i};
    qsort(arrivals, profile->count, sizeof(*arrivals), by_arrival);
    for (size_t i = 0; i < profile->count; i++) order[i] = arrivals[i].index;
    free(arrivals);
    return order;
}

static void plan_buckets(const struct profile *profile, const struct step *s, struct cairn__ddp_plan *plan) {
    const struct cairn__ddp_limits limits = {.first_nbytes = s->first_cap, .nbytes = s->cap};
    struct cairn__ddp_item *items = must(calloc(profile->count, sizeof(*items)));
    size_t *order = order_of_arrival(profile);
    for (size_t i = 0; i < profile->count; i++) {
        items[i] = (struct cairn__ddp_item){.n = profile->params[i].n, .dtype = profile->params[i].wire};
    }
    if (cairn__ddp_plan_make(items, profile->count, order, &limits, plan) != CAIRN_OK) must(NULL);
    free(items);
    free(order);
}

static void describe(const struct profile *profile, const struct cairn__ddp_bucket *bucket, struct span *span) {
    *span = (struct span){.nbytes = (double)bucket->n * (double)cairn_dtype_nbytes(bucket->dtype),
                          .width = cairn_dtype_nbytes(bucket->dtype),
                          .items = bucket->count};
    for (size_t i = 0; i < bucket->count; i++) {
        span->ready = fmax(span->ready, profile->params[bucket->items[i]].ready_ns);
    }
    span->ready += profile->forward_ns;
}

/* ---- time ---- */

/* Backward's progress: `done` of its own work at time `now`. */
struct clock {
    double now, done;
};

/* Runs backward, without communication, until it has done `until`. */
static void compute(struct clock *c, double until) {
    if (until <= c->done) return;
    c->now += until - c->done;
    c->done = until;
}

/* A bucket is in flight for T ns; meanwhile backward, with `work` in total, continues at its reduced rate. */
static void communicate(struct clock *c, struct span *span, double T, double work, double *backward_end) {
    const double left = work - c->done, rate = 1 - span->share;
    span->begin = c->now;
    span->end = c->now + T;
    if (left <= 0) {
        span->exposed = T;
    } else if (left < rate * T) { /* backward ends while the bucket is in flight */
        *backward_end = c->now + left / rate;
        c->done = work;
        span->exposed = T - left;
    } else {
        c->done += rate * T;
        span->exposed = span->share * T;
        if (c->done == work) *backward_end = span->end;
    }
    c->now = span->end;
}

static void run(const struct profile *profile, const struct network *net, struct step *s) {
    struct clock c = {profile->forward_ns, 0};
    const double work = profile->backward_ns;
    s->forward_end = profile->forward_ns;
    s->backward_end = work > 0 ? -1 : s->forward_end;
    for (size_t b = 0; b < s->count; b++) {
        struct span *span = &s->buckets[b];
        const double T = network_allreduce_ns(net, span->nbytes, span->width, s->ranks);
        span->share = network_share(net, span->nbytes, span->width, s->ranks);
        compute(&c, span->ready - profile->forward_ns);
        if (c.done >= work && s->backward_end < 0) s->backward_end = c.now;
        communicate(&c, span, T, work, &s->backward_end);
        s->communication += T;
        s->exposed += span->exposed;
    }
    compute(&c, work);
    if (s->backward_end < 0) s->backward_end = c.now;
    s->settled = c.now;
    s->end = s->settled + profile->optimizer_ns;
}

void simulate(const struct profile *profile, const struct network *net, int ranks, size_t cap, size_t first_cap,
              struct step *out) {
    struct cairn__ddp_plan plan;
    *out = (struct step){.cap = cap, .first_cap = first_cap, .ranks = ranks};
    if (first_cap == 0) out->first_cap = cap < FIRST_CAP ? cap : FIRST_CAP;
    plan_buckets(profile, out, &plan);
    out->count = plan.count;
    out->buckets = must(calloc(plan.count, sizeof(*out->buckets)));
    for (size_t b = 0; b < plan.count; b++) describe(profile, &plan.buckets[b], &out->buckets[b]);
    cairn__ddp_plan_free(&plan);
    run(profile, net, out);
}

void step_free(struct step *s) {
    free(s->buckets);
    *s = (struct step){0};
}

double step_efficiency(const struct step *s, const struct profile *profile) {
    const double alone = profile->forward_ns + profile->backward_ns + profile->optimizer_ns;
    return s->end > 0 ? alone / s->end : 1;
}

/* ---- search ---- */

bool same_buckets(const struct step *a, const struct step *b) {
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++) {
        if (a->buckets[i].nbytes != b->buckets[i].nbytes || a->buckets[i].items != b->buckets[i].items) return false;
    }
    return true;
}

double pieces_of(const struct profile *profile, size_t cap) {
    return profile_nbytes(profile) / (double)(cap > LEAST_CAP ? cap : LEAST_CAP);
}

static size_t least_cap(const struct profile *profile) {
    size_t cap = LEAST_CAP;
    while (pieces_of(profile, cap) > SEARCHED_PIECES) cap *= 2;
    return cap;
}

size_t search_caps(const struct profile *profile, const struct network *net, int ranks, size_t first_cap,
                   struct step **steps) {
    size_t count = 0;
    struct step *list = NULL;
    for (size_t cap = least_cap(profile), k = 0;; cap = k++ % 2 ? cap / 3 * 4 : cap / 2 * 3) {
        list = must(realloc(list, (count + 1) * sizeof(*list)));
        simulate(profile, net, ranks, cap, first_cap, &list[count]);
        if (count > 0 && same_buckets(&list[count], &list[count - 1])) step_free(&list[count]);
        else count++;
        if ((double)cap >= profile_nbytes(profile)) break;
    }
    *steps = list;
    return count;
}

size_t best_step(const struct step *steps, size_t count) {
    size_t best = 0;
    for (size_t i = 1; i < count; i++) {
        if (steps[i].end < steps[best].end || (steps[i].end == steps[best].end && steps[i].count < steps[best].count))
            best = i;
    }
    return best;
}
