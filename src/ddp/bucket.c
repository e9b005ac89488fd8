/* Planning buckets. */
#include "ddp/bucket.h"

#include "core/alloc.h"
#include "core/status.h"

/* Every slot begins on a cache line, so that backward's stores into one never touch another's. */
static size_t padded(size_t n, cairn_dtype dtype) {
    size_t line = CAIRN__ALIGN / cairn_dtype_nbytes(dtype);
    return (n + line - 1) / line * line;
}

/* The bucket of this type that is still open, or a new one. Members of one bucket must lie together in plan->members, so
 * only the last bucket is ever open: a change of type closes it. */
static cairn_status open_bucket(struct ddp__plan *plan, cairn_dtype dtype, size_t cap, size_t filled,
                                struct ddp__bucket **out) {
    struct ddp__bucket *last = plan->count ? &plan->buckets[plan->count - 1] : NULL;
    if (!last || last->dtype != dtype || last->n * cairn_dtype_nbytes(dtype) >= cap) {
        cairn_status st =
            cairn__grow((void **)&plan->buckets, &plan->capacity, plan->count + 1, sizeof(plan->buckets[0]));
        if (st != CAIRN_OK) return st;
        last = &plan->buckets[plan->count++];
        *last = (struct ddp__bucket){.dtype = dtype, .members = plan->members + filled};
    }
    *out = last;
    return CAIRN_OK;
}

cairn_status ddp__plan_make(const struct cairn_param_set *set, size_t cap, cairn_dtype wire, struct ddp__plan *out) {
    cairn_status st = CAIRN_OK;
    struct ddp__plan plan = {0};
    TRY(cairn__calloc(set->count, sizeof(plan.places[0]), (void **)&plan.places));
    TRY(cairn__calloc(set->count, sizeof(plan.members[0]), (void **)&plan.members));
    for (size_t filled = 0; filled < set->count; filled++) {
        size_t i = set->count - 1 - filled;
        struct ddp__bucket *bucket = NULL;
        TRY(open_bucket(&plan, set->params[i]->dtype, cap, filled, &bucket));
        plan.places[i] = (struct ddp__place){.bucket = (size_t)(bucket - plan.buckets), .offset = bucket->n};
        bucket->wire_dtype = wire ? wire : bucket->dtype;
        bucket->members[bucket->count++] = i;
        bucket->n += padded(set->params[i]->n, bucket->dtype);
    }
    *out = plan;
    return CAIRN_OK;
out:
    ddp__plan_free(&plan);
    return st;
}

void ddp__plan_free(struct ddp__plan *plan) {
    cairn__free(plan->buckets);
    cairn__free(plan->places);
    cairn__free(plan->members);
    *plan = (struct ddp__plan){0};
}
