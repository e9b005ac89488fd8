/* Buckets: which gradients travel together, and where they live. */
#ifndef CAIRN__DDP_BUCKET_H
#define CAIRN__DDP_BUCKET_H

#include <stdbool.h>

#include "cairn/dist.h"
#include "param/param.h"

struct cairn__ddp_bucket {
    size_t *members; /* indices of parameters, in the order they lie in memory */
    size_t count;
    cairn_dtype dtype; /* of the gradients */
    cairn_dtype wire_dtype;
    size_t n;       /* elements, padding included */
    void *grads;    /* [n] the members' slots, one after the other */
    void *wire;     /* [n] what travels; grads itself where the types are equal */
    size_t pending; /* members without a gradient in this backward */
    bool launched;
    cairn_work *work;
};

/* Which bucket a parameter is in, and where. */
struct cairn__ddp_place {
    size_t bucket, offset;
    bool arrived; /* its gradient of this backward is in the slot */
};

struct cairn__ddp_plan {
    struct cairn__ddp_bucket *buckets;
    size_t count, capacity;
    struct cairn__ddp_place *places; /* one a parameter */
    size_t *members;                 /* what the buckets' members point into */
};

/* Reverse registration order, since backward tends to finish the last layer first; one open bucket a type; closed once it holds
 * cap bytes, so that it overshoots by at most a tensor (torch's rule, reducer.cpp compute_bucket_assignment_by_size). wire: the type
 * that travels, 0 = the gradients'. Memory is the caller's. */
cairn_status cairn__ddp_plan_make(const struct cairn_param_set *set, size_t cap, cairn_dtype wire,
                                  struct cairn__ddp_plan *out);
void cairn__ddp_plan_free(struct cairn__ddp_plan *plan);

#endif
