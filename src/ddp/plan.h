/* Plans buckets: which gradients are sent together, and where they are in memory. A pure function of sizes, order and
 * limits, which cairn-plan shares.
 *
 * All gradients that are sent in one type are in one block of memory, the type's arena, in the given order; each begins
 * on a cache line. A bucket is a piece of an arena. So a tensor larger than a bucket is still contiguous and spans
 * several, and an arena's size does not depend on the order. Buckets are numbered in the order in which their last
 * gradient becomes ready. */
#ifndef CAIRN__DDP_PLAN_H
#define CAIRN__DDP_PLAN_H

#include <stdbool.h>

#include "cairn/core.h"

/* A gradient to send. */
struct cairn__ddp_item {
    size_t n;
    cairn_dtype dtype; /* the type that is sent */
    bool closes;       /* the bucket that holds its end is closed after it */
};

struct cairn__ddp_limits {
    /* A bucket is closed once it holds this many bytes: the first bucket of each type, the others. SIZE_MAX = never. */
    size_t first_nbytes, nbytes;
    size_t elements; /* closes buckets by elements instead; 0 = by bytes */
    size_t slices;   /* above 0: a bucket has this many equal slices of whole cache lines, and no item is split */
};

struct cairn__ddp_bucket {
    cairn_dtype dtype;
    size_t begin, n; /* elements of the arena of dtype */
    size_t *items;   /* [count] the items of which it holds anything, in memory order */
    size_t count;
};

/* Where an item is. */
struct cairn__ddp_place {
    size_t offset;              /* elements of the arena of its type */
    size_t bucket, num_buckets; /* it spans num_buckets buckets, from this one on */
};

struct cairn__ddp_plan {
    struct cairn__ddp_bucket *buckets; /* [count] */
    size_t count, capacity;
    struct cairn__ddp_place *places; /* [items] */
    size_t *members;                 /* the array that the buckets' items point into */
    size_t arena[CAIRN_U8 + 1];      /* [dtype] elements */
};

/* order [count]: the indices of items in the order in which their gradients become ready; NULL = from the last to the
 * first. An item larger than limits->nbytes (64 KiB at least) is split into as few equal pieces as fit the limit. The
 * first piece joins the open bucket, and the last one closes its own. Otherwise a bucket exceeds the limit by one item
 * at most (torch's rule, reducer.cpp compute_bucket_assignment_by_size). limits->elements splits nothing. Empty items
 * take part.
 * Errors: CAIRN_ENOMEM. */
cairn_status cairn__ddp_plan_make(const struct cairn__ddp_item *items, size_t count, const size_t *order,
                                  const struct cairn__ddp_limits *limits, struct cairn__ddp_plan *out);
void cairn__ddp_plan_free(struct cairn__ddp_plan *plan);

#endif
