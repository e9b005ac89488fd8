/* Planning buckets. */
#include "ddp/bucket.h"

#include "core/alloc.h"
#include "core/status.h"

/* Every slot begins on a cache line, so that backward's stores into one never touch another's. */
static size_t padded(size_t n, cairn_dtype dtype) {
    size_t line = CAIRN__ALIGN / cairn_dtype_nbytes(dtype);
    return (n + line - 1) / line * line;
}

/* The bucket of this type that is still open, or a new one. open holds one a type, as index + 1. */
static cairn_status open_bucket(struct cairn__ddp_plan *plan, size_t *open, cairn_dtype dtype, size_t cap,
                                struct cairn__ddp_bucket **out) {
    struct cairn__ddp_bucket *bucket = *open ? &plan->buckets[*open - 1] : NULL;
    if (!bucket || bucket->n * cairn_dtype_nbytes(dtype) >= cap) {
        cairn_status st =
            cairn__grow((void **)&plan->buckets, &plan->capacity, plan->count + 1, sizeof(plan->buckets[0]));
        if (st != CAIRN_OK) return st;
        bucket = &plan->buckets[plan->count++];
        *bucket = (struct cairn__ddp_bucket){.dtype = dtype};
        *open = plan->count;
    }
    *out = bucket;
    return CAIRN_OK;
}

/* Members of one bucket lie together, in the order of their memory; counts are known by now. */
static void list_members(struct cairn__ddp_plan *plan, size_t count) {
    size_t *next = plan->members;
    for (size_t b = 0; b < plan->count; b++) {
        plan->buckets[b].members = next;
        next += plan->buckets[b].count;
        plan->buckets[b].count = 0;
    }
    for (size_t i = count; i-- > 0;) {
        struct cairn__ddp_bucket *bucket = &plan->buckets[plan->places[i].bucket];
        bucket->members[bucket->count++] = i;
    }
}

cairn_status cairn__ddp_plan_make(const struct cairn_param_set *set, size_t cap, cairn_dtype wire,
                                  struct cairn__ddp_plan *out) {
    cairn_status st = CAIRN_OK;
    struct cairn__ddp_plan plan = {0};
    size_t open[CAIRN__DTYPE_END] = {0};
    TRY(cairn__calloc(set->count, sizeof(plan.places[0]), (void **)&plan.places));
    TRY(cairn__calloc(set->count, sizeof(plan.members[0]), (void **)&plan.members));
    for (size_t i = set->count; i-- > 0;) {
        const struct cairn__param *p = set->params[i];
        struct cairn__ddp_bucket *bucket = NULL;
        TRY(open_bucket(&plan, &open[p->dtype], p->dtype, cap, &bucket));
        bucket->wire_dtype = wire ? wire : bucket->dtype;
        plan.places[i] = (struct cairn__ddp_place){.bucket = (size_t)(bucket - plan.buckets), .offset = bucket->n};
        bucket->count++;
        bucket->n += padded(p->n, bucket->dtype);
    }
    list_members(&plan, set->count);
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
