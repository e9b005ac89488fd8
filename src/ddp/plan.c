/* Plans buckets. Items are laid out one after the other. The open bucket of a type takes items until it holds enough;
 * its number is known at the end, from the item that completed it. */
#include "ddp/plan.h"

#include <stdlib.h>

#include "core/alloc.h"
#include "core/status.h"

enum { LEAST_PIECE = 64 << 10 };

/* A bucket under construction. */
struct draft {
    struct cairn__ddp_bucket bucket;
    size_t held;     /* elements without padding */
    size_t last;     /* when its last item comes */
    size_t opened;   /* its index among the drafts */
    size_t numbered; /* [opened]: its number */
};

struct drafting {
    const struct cairn__ddp_limits *limits;
    struct draft *drafts;
    size_t count, capacity;
    size_t open[CAIRN_U8 + 1]; /* [dtype] index + 1 of the open draft; 0 = none */
    bool began[CAIRN_U8 + 1];  /* [dtype] the first draft has been closed */
};

/* Every item begins on a cache line, so that backward's stores into one never touch another's. */
static size_t line_of(cairn_dtype dtype) {
    return CAIRN__ALIGN / cairn_dtype_nbytes(dtype);
}

static size_t padded(size_t n, cairn_dtype dtype) {
    const size_t line = line_of(dtype);
    return (n + line - 1) / line * line;
}

/* ---- one item ---- */

static void close_draft(struct drafting *d, struct cairn__ddp_plan *plan, cairn_dtype dtype) {
    if (d->limits->slices && d->open[dtype]) {
        struct cairn__ddp_bucket *bucket = &d->drafts[d->open[dtype] - 1].bucket;
        const size_t least = d->limits->slices * line_of(dtype), n = (bucket->n + least - 1) / least * least;
        plan->arena[dtype] += n - bucket->n;
        bucket->n = n;
    }
    d->open[dtype] = 0;
    d->began[dtype] = true;
}

static bool is_full(const struct drafting *d, const struct draft *draft) {
    const struct cairn__ddp_limits *limits = d->limits;
    const cairn_dtype dtype = draft->bucket.dtype;
    if (limits->elements) return draft->held >= limits->elements;
    return draft->held * cairn_dtype_nbytes(dtype) >= (d->began[dtype] ? limits->nbytes : limits->first_nbytes);
}

/* Elements of a piece; item->n if the item is not split. */
static size_t piece_of(const struct cairn__ddp_limits *limits, const struct cairn__ddp_item *item) {
    const size_t most = limits->nbytes > LEAST_PIECE ? limits->nbytes : LEAST_PIECE;
    const size_t fits = most / cairn_dtype_nbytes(item->dtype);
    if (limits->elements || limits->slices || item->n <= fits) return item->n;
    const size_t pieces = (item->n + fits - 1) / fits;
    return padded((item->n + pieces - 1) / pieces, item->dtype);
}

static cairn_status add_item(struct drafting *d, struct cairn__ddp_plan *plan, const struct cairn__ddp_item *item,
                             size_t when, struct cairn__ddp_place *place) {
    cairn_status st = CAIRN_OK;
    const size_t piece = piece_of(d->limits, item);
    const cairn_dtype dtype = item->dtype;
    size_t left = item->n;
    *place = (struct cairn__ddp_place){.offset = plan->arena[dtype]};
    do {
        const size_t n = left < piece ? left : piece;
        if (d->open[dtype] == 0) {
            TRY(cairn__grow((void **)&d->drafts, &d->capacity, d->count + 1, sizeof(d->drafts[0])));
            d->drafts[d->count] =
                (struct draft){.bucket = {.dtype = dtype, .begin = plan->arena[dtype]}, .opened = d->count};
            d->open[dtype] = ++d->count;
        }
        struct draft *const draft = &d->drafts[d->open[dtype] - 1];
        if (place->num_buckets++ == 0) place->bucket = draft->opened;
        draft->bucket.count++;
        draft->bucket.n += padded(n, dtype);
        draft->held += n;
        draft->last = when;
        plan->arena[dtype] += padded(n, dtype);
        left -= n;
        if (piece < item->n || item->closes || is_full(d, draft)) close_draft(d, plan, dtype);
    } while (left > 0);
out:
    return st;
}

/* ---- the plan of all ---- */

static int by_completion(const void *a, const void *b) {
    const struct draft *x = a, *y = b;
    if (x->last != y->last) return x->last < y->last ? -1 : 1;
    return x->opened < y->opened ? -1 : 1;
}

static size_t nth(const size_t *order, size_t count, size_t k) {
    return order ? order[k] : count - 1 - k;
}

cairn_status cairn__ddp_plan_make(const struct cairn__ddp_item *items, size_t count, const size_t *order,
                                  const struct cairn__ddp_limits *limits, struct cairn__ddp_plan *out) {
    cairn_status st = CAIRN_OK;
    struct cairn__ddp_plan plan = {0};
    struct drafting d = {.limits = limits};
    TRY(cairn__calloc(count, sizeof(plan.places[0]), (void **)&plan.places));
    for (size_t k = 0; k < count; k++) {
        const size_t i = nth(order, count, k);
        TRY(add_item(&d, &plan, &items[i], k, &plan.places[i]));
    }
    for (cairn_dtype t = CAIRN_F32; t <= CAIRN_U8; t++) close_draft(&d, &plan, t);
    /* The buckets of an item's pieces are all completed by that item, so they stay consecutive. */
    TRY(cairn__calloc(d.count, sizeof(plan.buckets[0]), (void **)&plan.buckets));
    if (d.count) qsort(d.drafts, d.count, sizeof(d.drafts[0]), by_completion);
    for (size_t b = 0; b < d.count; b++) {
        plan.buckets[b] = d.drafts[b].bucket;
        d.drafts[d.drafts[b].opened].numbered = b;
    }
    for (size_t i = 0; i < count; i++) plan.places[i].bucket = d.drafts[plan.places[i].bucket].numbered;
    plan.count = plan.capacity = d.count;
    size_t total = 0;
    for (size_t b = 0; b < plan.count; b++) total += plan.buckets[b].count;
    TRY(cairn__calloc(total, sizeof(plan.members[0]), (void **)&plan.members));
    size_t *next = plan.members;
    for (size_t b = 0; b < plan.count; b++) {
        plan.buckets[b].items = next;
        next += plan.buckets[b].count;
        plan.buckets[b].count = 0;
    }
    for (size_t k = 0; k < count; k++) {
        const size_t i = nth(order, count, k);
        struct cairn__ddp_bucket *first = &plan.buckets[plan.places[i].bucket];
        for (size_t b = 0; b < plan.places[i].num_buckets; b++) first[b].items[first[b].count++] = i;
    }
    *out = plan;
    plan = (struct cairn__ddp_plan){0};
out:
    cairn__free(d.drafts);
    cairn__ddp_plan_free(&plan);
    return st;
}

void cairn__ddp_plan_free(struct cairn__ddp_plan *plan) {
    cairn__free(plan->buckets);
    cairn__free(plan->places);
    cairn__free(plan->members);
    *plan = (struct cairn__ddp_plan){0};
}
