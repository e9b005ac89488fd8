/* The reducer: gradients are written into buckets by backward and averaged over the ranks while it goes on.
 *
 * Buckets go out strictly in order 0, 1, 2, ... on every rank, whatever the order in which they fill, so that all ranks
 * issue the same sequence; a full bucket waits for its predecessors. What is not full when backward ends goes out then,
 * with zeros in the slots that nobody wrote. A failure inside backward is kept and handed out when backward settles. */
#include "cairn/ddp.h"

#include <string.h>

#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "core/trace.h"
#include "ddp/agree.h"
#include "ddp/bucket.h"
#include "dist/group.h"
#include "param/param.h"

enum { DEFAULT_BUCKET_NBYTES = 25 << 20 }; /* torch: bucket_cap_mb=25 */

struct ddp_context {
    cairn_module *model;
    struct cairn_param_set *set;
    cairn_group *group;
    struct cairn__ddp_plan plan;
    struct cairn__grad_listener listener;
    size_t next;         /* bucket to go out next */
    cairn_status status; /* first failure of this backward */
    bool broken;         /* a backward failed half-way on this rank: the ranks no longer agree on what was sent */
};

/* ---- one backward ---- */

static struct cairn_device *device_of(const struct ddp_context *d) {
    return d->set->env->device;
}

static void begin_round(struct ddp_context *d) {
    for (size_t b = 0; b < d->plan.count; b++) {
        d->plan.buckets[b].pending = d->plan.buckets[b].count;
        d->plan.buckets[b].launched = false;
    }
    for (size_t i = 0; i < d->set->count; i++) d->plan.places[i].arrived = false;
    d->next = 0;
    d->status = CAIRN_OK;
}

static cairn_status launch(struct ddp_context *d, struct cairn__ddp_bucket *bucket) {
    cairn_dtype wire = bucket->wire_dtype;
    if (bucket->wire != bucket->grads) {
        cairn__pass_cast(device_of(d)->passes, device_of(d), bucket->wire, wire, bucket->grads, bucket->dtype,
                         bucket->n);
    }
    bucket->launched = true;
    cairn__trace("ddp", "bucket_launch", bucket - d->plan.buckets, (int64_t)(bucket->n * cairn_dtype_nbytes(wire)), 0);
    return cairn_allreduce(d->group, bucket->wire, bucket->n, wire, CAIRN_AVG, &bucket->work);
}

static void launch_full(struct ddp_context *d) {
    while (!d->broken && d->status == CAIRN_OK && d->next < d->plan.count && d->plan.buckets[d->next].pending == 0) {
        d->status = launch(d, &d->plan.buckets[d->next++]);
    }
}

static void grad_ready(void *ctx, size_t index) {
    struct ddp_context *d = ctx;
    struct cairn__ddp_bucket *bucket = &d->plan.buckets[d->plan.places[index].bucket];
    d->plan.places[index].arrived = true;
    bucket->pending--;
    launch_full(d);
}

static cairn_status progress(void *ctx) {
    struct ddp_context *d = ctx;
    if (d->status == CAIRN_OK) d->status = cairn__group_progress(d->group);
    return d->status;
}

/* A slot that nobody wrote in this backward counts as a gradient of zero: other ranks may have one. What an earlier
 * backward left there is folded away by asking for the slot. */
static cairn_status complete_with_zeros(struct ddp_context *d, struct cairn__ddp_bucket *bucket) {
    for (size_t m = 0; m < bucket->count && bucket->pending; m++) {
        struct cairn__param *p = d->set->params[bucket->members[m]];
        if (d->plan.places[p->index].arrived) continue;
        void *slot = NULL;
        cairn_status st = cairn__param_grad_slot(p, &slot);
        if (st != CAIRN_OK) return st;
        device_of(d)->passes->fill(device_of(d), p->dtype, slot, p->n, 0.0f);
        p->written = true;
        p->checked = false;
        p->factor = d->set->factor;
        bucket->pending--;
    }
    return CAIRN_OK;
}

static cairn_status finish(struct ddp_context *d, struct cairn__ddp_bucket *bucket, uint32_t *found) {
    uint64_t begin = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn_status st = cairn__work_finish(&bucket->work, found);
    if (st == CAIRN_OK && bucket->wire != bucket->grads) {
        cairn__pass_cast(device_of(d)->passes, device_of(d), bucket->grads, bucket->dtype, bucket->wire,
                         bucket->wire_dtype, bucket->n);
    }
    cairn__trace("ddp", "bucket_wait", bucket - d->plan.buckets, 0, begin);
    return st;
}

/* Buckets that were not sent here will be waited for elsewhere, so there is no way back but out. */
static void failed(void *ctx) {
    struct ddp_context *d = ctx;
    d->broken = true;
}

static cairn_status check_whole(struct ddp_context *d) {
    cairn_status st = cairn__group_progress(d->group);
    if (st != CAIRN_OK) return st;
    REQUIRE(
        !d->broken, CAIRN_ESTATE,
        "ddp: an earlier backward failed half-way on this rank, so that the ranks no longer agree; end the program");
    return CAIRN_OK;
}

static cairn_status finish_all(struct ddp_context *d, uint32_t *found) {
    for (size_t b = 0; b < d->plan.count && d->plan.buckets[b].launched; b++) {
        cairn_status st = finish(d, &d->plan.buckets[b], found);
        if (d->status == CAIRN_OK) d->status = st;
    }
    return d->status;
}

/* What a reduction says of infinite and NaN results holds for the gradients where they themselves are what travels: a bf16
 * sum may be finite where an f16 gradient is not. */
static bool speaks_of_gradients(const struct ddp_context *d) {
    for (size_t b = 0; b < d->plan.count; b++) {
        if (d->plan.buckets[b].wire != d->plan.buckets[b].grads) return false;
    }
    return cairn__group_looks(d->group);
}

static cairn_status settle(void *ctx) {
    struct ddp_context *d = ctx;
    uint32_t found = 0;
    cairn_status st = check_whole(d);
    if (st != CAIRN_OK) return st;
    for (size_t b = d->next; d->status == CAIRN_OK && b < d->plan.count; b++) {
        d->status = complete_with_zeros(d, &d->plan.buckets[b]);
    }
    launch_full(d);
    st = finish_all(d, &found);
    if (st == CAIRN_OK && (found || speaks_of_gradients(d))) st = cairn__param_set_report(d->set, found);
    begin_round(d);
    return st;
}

/* ---- making and ending ---- */

/* Group memory holds what travels; where that is another type, the gradients have memory of their own. */
static cairn_status allocate(struct ddp_context *d, struct cairn__ddp_bucket *bucket) {
    cairn_status st = cairn_group_alloc(d->group, bucket->n * cairn_dtype_nbytes(bucket->wire_dtype), &bucket->wire);
    if (st != CAIRN_OK) return st;
    if (bucket->wire_dtype == bucket->dtype) {
        bucket->grads = bucket->wire;
        return CAIRN_OK;
    }
    size_t nbytes = bucket->n * cairn_dtype_nbytes(bucket->dtype);
    st = cairn__device_alloc(device_of(d), CAIRN__HOLDS_GRADS, nbytes, &bucket->grads);
    if (st != CAIRN_OK) return st;
    device_of(d)->passes->fill(device_of(d), bucket->dtype, bucket->grads, bucket->n, 0.0f); /* padding travels too */
    return CAIRN_OK;
}

static void move_gradients(struct ddp_context *d) {
    for (size_t i = 0; i < d->set->count; i++) {
        struct cairn__param *p = d->set->params[i];
        const struct cairn__ddp_place *place = &d->plan.places[i];
        char *grads = d->plan.buckets[place->bucket].grads;
        if (p->owns_grad) cairn__device_free(device_of(d), p->grad);
        p->grad = grads + place->offset * cairn_dtype_nbytes(p->dtype);
        p->owns_grad = p->written = false;
    }
}

static void install(struct ddp_context *d) {
    d->listener = (struct cairn__grad_listener){
        .ctx = d, .ready = grad_ready, .progress = progress, .settle = settle, .failed = failed};
    d->set->listener = &d->listener;
    d->set->frozen_by = "ddp_create";
    d->set->users++;
    begin_round(d);
}

static cairn_status read_options(const struct ddp_options *given, struct ddp_options *out) {
    *out = (struct ddp_options){.struct_size = sizeof(*out)};
    cairn_status st = cairn__options_read(out, sizeof(*out), given, "ddp_options");
    if (st != CAIRN_OK) return st;
    if (out->bucket_nbytes == 0) out->bucket_nbytes = DEFAULT_BUCKET_NBYTES;
    REQUIRE(out->wire == 0 || out->wire == CAIRN_F32 || cairn__is_half(out->wire), CAIRN_EINVAL,
            "ddp_options.wire is %s (%d); gradients travel as f32, f16 or bf16", cairn_dtype_name(out->wire),
            (int)out->wire);
    return CAIRN_OK;
}

cairn_status ddp_create(cairn_module *model, cairn_group *group, const struct ddp_options *options, ddp_context **out) {
    REQUIRE(model && group && out, CAIRN_EINVAL, "ddp_create: model, group and out must be set");
    struct cairn_param_set *set = cairn_module_params(model);
    if (!set) return cairn__last_status();
    REQUIRE(!set->frozen_by, CAIRN_ESTATE, "ddp_create: the model has a ddp context; ddp_destroy it first");
    struct cairn_device *reduced = cairn__group_device(group);
    REQUIRE(!reduced || reduced == set->env->device, CAIRN_EINVAL,
            "ddp_create: the group belongs to another environment; use cairn_env_group of the model's");
    REQUIRE(set->count > 0, CAIRN_EINVAL, "ddp_create: the model has no parameters, so there is nothing to reduce");
    cairn_status st = CAIRN_OK;
    struct ddp_context *d = NULL;
    struct ddp_options o;
    TRY(read_options(options, &o));
    TRY(cairn__calloc(1, sizeof(*d), (void **)&d));
    d->model = model;
    d->set = set;
    d->group = group;
    TRY(cairn__ddp_agree(model, set, group));
    TRY(cairn__ddp_broadcast_params(set, group));
    TRY(cairn__ddp_broadcast_buffers(model, group));
    TRY(cairn__ddp_plan_make(set, o.bucket_nbytes, o.wire, &d->plan));
    for (size_t b = 0; b < d->plan.count; b++) TRY(allocate(d, &d->plan.buckets[b]));
    move_gradients(d);
    install(d);
    *out = d;
    return CAIRN_OK;
out:
    ddp_destroy(&d);
    return st;
}

static void take_gradients_away(struct ddp_context *d) {
    for (size_t i = 0; i < d->set->count; i++) {
        struct cairn__param *p = d->set->params[i];
        p->grad = NULL; /* the next backward makes one of the model's own */
        p->written = false;
    }
    d->set->listener = NULL;
    d->set->frozen_by = NULL;
    d->set->users--;
}

void ddp_destroy(ddp_context **ddp) {
    if (!ddp || !*ddp) return;
    struct ddp_context *d = *ddp;
    if (d->set->listener == &d->listener) take_gradients_away(d);
    for (size_t b = 0; b < d->plan.count; b++) {
        struct cairn__ddp_bucket *bucket = &d->plan.buckets[b];
        if (bucket->grads != bucket->wire) cairn__device_free(device_of(d), bucket->grads);
        (void)cairn_group_free(d->group, &bucket->wire); /* a dead group frees it when it ends */
    }
    cairn__ddp_plan_free(&d->plan);
    cairn__free(d);
    *ddp = NULL;
}

cairn_tensor *ddp_forward(ddp_context *ddp, cairn_tensor *x) {
    if (!ddp) {
        (void)cairn__fail(CAIRN_EINVAL, "ddp_forward: ddp is NULL");
        return NULL;
    }
    return cairn_module_forward(ddp->model, x);
}

int ddp_bucket_count(const ddp_context *ddp) {
    return ddp ? (int)ddp->plan.count : 0;
}
