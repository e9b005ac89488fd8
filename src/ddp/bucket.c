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
static cairn_status open_bucket(struct cairn__ddp_plan *plan, cairn_dtype dtype, size_t cap, size_t filled,
                                struct cairn__ddp_bucket **out) {
    struct cairn__ddp_bucket *last = plan->count ? &plan->buckets[plan->count - 1] : NULL;
    if (!last || last->dtype != dtype || last->n * cairn_dtype_nbytes(dtype) >= cap) {
        cairn_status st =
            cairn__grow((void **)&plan->buckets, &plan->capacity, plan->count + 1, sizeof(plan->buckets[0]));
        if (st != CAIRN_OK) return st;
        last = &plan->buckets[plan->count++];
        *last = (struct cairn__ddp_bucket){.dtype = dtype, .members = plan->members + filled};
    }
    *out = last;
    return CAIRN_OK;
}

cairn_status cairn__ddp_plan_make(const struct cairn_param_set *set, size_t cap, cairn_dtype wire,
                                  struct cairn__ddp_plan *out) {
    cairn_status st = CAIRN_OK;
    struct cairn__ddp_plan plan = {0};
    TRY(cairn__calloc(set->count, sizeof(plan.places[0]), (void **)&plan.places));
    TRY(cairn__calloc(set->count, sizeof(plan.members[0]), (void **)&plan.members));
    for (size_t filled = 0; filled < set->count; filled++) {
        size_t i = set->count - 1 - filled;
        struct cairn__ddp_bucket *bucket = NULL;
        TRY(open_bucket(&plan, set->params[i]->dtype, cap, filled, &bucket));
        plan.places[i] = (struct cairn__ddp_place){.bucket = (size_t)(bucket - plan.buckets), .offset = bucket->n};
        bucket->wire_dtype = wire ? wire : bucket->dtype;
        bucket->members[bucket->count++] = i;
        bucket->n += padded(set->params[i]->n, bucket->dtype);
    }
    *out = plan;
    return CAIRN_OK;
out:
    cairn__ddp_plan_free(&plan);
    return st;
}

void cairn__ddp_plan_free(struct cairn__ddp_plan *plan) {
    cairn__free(plan->buckets);
    cairn__free(plan->places);
    cairn__free(plan->members);
    *plan = (struct cairn__ddp_plan){0};
}
