/* Planning: which gradients travel together, and where they lie. A pure function of sizes, order and limits, which
 * cairn-plan shares.
 *
 * All gradients that travel as one type lie in one stretch of memory, the type's arena, in the order given, each
 * beginning on a cache line; a bucket is a piece of an arena. So a tensor larger than a bucket is contiguous all the
 * same and lies in several, and an arena's size does not depend on the order. Buckets are numbered by when their last
 * gradient comes. */
#ifndef CAIRN__DDP_PLAN_H
#define CAIRN__DDP_PLAN_H

#include <stdbool.h>

#include "cairn/core.h"

/* A gradient that travels. */
struct cairn__ddp_item {
    size_t n;
    cairn_dtype dtype; /* that travels */
    bool closes;       /* the bucket that holds its end is closed behind it */
};

struct cairn__ddp_limits {
    size_t first_nbytes,
        nbytes;      /* of the first bucket of each type, of the others: a bucket is closed once it holds as much;
                                    SIZE_MAX = it is not */
    size_t elements; /* instead of both; 0 = they count */
    size_t slices;   /* above 0: a bucket has so many equal slices of whole cache lines, and no item is split */
};

struct cairn__ddp_bucket {
    cairn_dtype dtype;
    size_t begin, n; /* elements of the arena of dtype */
    size_t *items;   /* [count] those of which it holds anything, in the order they lie */
    size_t count;
};

/* Where an item lies. */
struct cairn__ddp_place {
    size_t offset;              /* elements of the arena of its type */
    size_t bucket, num_buckets; /* it lies in these, one after the other */
};

struct cairn__ddp_plan {
    struct cairn__ddp_bucket *buckets; /* [count] */
    size_t count, capacity;
    struct cairn__ddp_place *places; /* [items] */
    size_t *members;                 /* what the buckets' items point into */
    size_t arena[CAIRN_U8 + 1];      /* [dtype] elements */
};

/* order [count]: the indices of items in the order in which their gradients become ready; NULL = from the last to the
 * first. An item larger than limits->nbytes (64 KiB at least) is split into as few equal pieces as keep to it, the
 * first of which joins the bucket that is open, and the last of which closes its own; otherwise a bucket overshoots by
 * one item at most (torch's rule, reducer.cpp compute_bucket_assignment_by_size). limits->elements splits nothing.
 * Empty items take part.
 * Errors: CAIRN_ENOMEM. */
cairn_status cairn__ddp_plan_make(const struct cairn__ddp_item *items, size_t count, const size_t *order,
                                  const struct cairn__ddp_limits *limits, struct cairn__ddp_plan *out);
void cairn__ddp_plan_free(struct cairn__ddp_plan *plan);

#endif
