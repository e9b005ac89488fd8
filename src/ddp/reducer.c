/* The reducer: backward writes gradients into buckets, which are reduced over the ranks while backward continues.
 *
 * Every rank launches buckets strictly in order 0, 1, 2, ..., whatever the order in which they fill, so all ranks issue
 * the same sequence; a full bucket waits for its predecessors. A bucket that is not full when backward ends is launched
 * then, with zeros for the gradients that were not written. A failure inside backward is kept, and returned when
 * backward settles. */
#include <stdio.h>
#include <string.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/status.h"
#include "ddp/context.h"

static struct cairn_device *device_of(const struct ddp_context *d) {
    return d->set->env->device;
}

/* NULL if all gradients of the type are empty. */
static void *arena_at(const struct ddp_context *d, cairn_dtype dtype, size_t element) {
    char *arena = d->arenas[dtype];
    return arena ? arena + element * cairn_dtype_nbytes(dtype) : NULL;
}

static void *place_of(const struct ddp_context *d, size_t s) {
    return arena_at(d, d->slots[s].wire, d->plan.places[s].offset);
}

/* ---- slots and arenas ---- */

void cairn__ddp_list_slots(struct ddp_context *d) {
    d->num_slots = 0;
    for (size_t i = 0; i < d->set->count; i++) d->slot_of[i] = SIZE_MAX;
    for (size_t i = 0; i < d->num_shared; i++) {
        const struct cairn__ddp_shared *shared = &d->shared[i];
        if (!cairn__param_requires_grad(shared->param)) continue;
        d->slot_of[shared->param->index] = d->num_slots;
        d->slots[d->num_slots++] = (struct cairn__ddp_slot){.param = shared->param, .closes = shared->closes};
    }
}

/* f32 memory that holds rounded half values is sent in the half type. */
static cairn_dtype wire_of(const struct ddp_context *d, const struct cairn__param *p) {
    if (d->hook.wire) return d->hook.wire;
    if (d->options.wire) return d->options.wire;
    return p->value_type ? p->value_type : p->dtype;
}

static bool is_rounded_on_return(const struct cairn__param *p, cairn_dtype wire) {
    return p->value_type && p->value_type != wire;
}

static void choose_wires(struct ddp_context *d) {
    d->copies = false;
    d->speaks = d->hook.begin == NULL && d->hook.finish == NULL;
    for (size_t s = 0; s < d->num_slots; s++) {
        struct cairn__ddp_slot *slot = &d->slots[s];
        const struct cairn__param *p = slot->param;
        slot->wire = wire_of(d, p);
        slot->in_place = d->options.gradient_as_bucket_view == CAIRN_ON && slot->wire == p->dtype;
        d->copies |= !slot->in_place;
        /* The gradient is inf or NaN exactly where the reduced value in the bucket is. */
        d->speaks &= p->dtype == slot->wire || (p->dtype == CAIRN_F32 && !is_rounded_on_return(p, slot->wire));
    }
}

static struct cairn__ddp_limits limits_of(const struct ddp_context *d) {
    const struct ddp_options *o = &d->options;
    /* One slice: no parameter is split. */
    const size_t whole = d->hook.whole_parameters == CAIRN_ON;
    const size_t slices = d->shards ? (size_t)cairn_group_size(d->group) : whole;
    struct cairn__ddp_limits limits = {o->first_bucket_nbytes, o->bucket_nbytes, (size_t)o->message_size, slices};
    if (o->delay_allreduce == CAIRN_ON || o->num_trigger_params > 0)
        limits = (struct cairn__ddp_limits){SIZE_MAX, SIZE_MAX, 0, slices};
    return limits;
}

/* Everything whose size depends on the plan. */
struct layout {
    struct cairn__ddp_plan plan;
    struct cairn__ddp_send *sends;
    size_t *bucket_params;
};

static void free_layout(struct layout *l) {
    cairn__ddp_plan_free(&l->plan);
    cairn__free(l->sends);
    cairn__free(l->bucket_params);
    *l = (struct layout){0};
}

static cairn_status make_layout(const struct ddp_context *d, const size_t *order, struct layout *out) {
    cairn_status st = CAIRN_OK;
    struct layout l = {{0}, NULL, NULL};
    struct cairn__ddp_item *items = NULL;
    const struct cairn__ddp_limits limits = limits_of(d);
    TRY(cairn__calloc(d->num_slots, sizeof(items[0]), (void **)&items));
    for (size_t s = 0; s < d->num_slots; s++) {
        const struct cairn__ddp_slot *slot = &d->slots[s];
        items[s] = (struct cairn__ddp_item){slot->param->n, wire_of(d, slot->param), slot->closes};
    }
    TRY(cairn__ddp_plan_make(items, d->num_slots, order, &limits, &l.plan));
    const struct cairn__ddp_plan *plan = &l.plan;
    size_t members = 0;
    for (size_t b = 0; b < plan->count; b++) members += plan->buckets[b].count;
    TRY(cairn__calloc(plan->count, sizeof(l.sends[0]), (void **)&l.sends));
    TRY(cairn__calloc(members, sizeof(l.bucket_params[0]), (void **)&l.bucket_params));
    for (size_t b = 0; b < plan->count; b++) {
        size_t *params = l.bucket_params + (plan->buckets[b].items - plan->members);
        for (size_t k = 0; k < plan->buckets[b].count; k++)
            params[k] = d->slots[plan->buckets[b].items[k]].param->index;
    }
    *out = l;
    l = (struct layout){{0}, NULL, NULL};
out:
    cairn__free(items);
    free_layout(&l);
    return st;
}

static void begin_round(struct ddp_context *d) {
    for (size_t b = 0; b < d->plan.count; b++) {
        d->sends[b] = (struct cairn__ddp_send){.pending = d->plan.buckets[b].count};
    }
    for (size_t s = 0; s < d->num_slots; s++) d->slots[s].arrived = d->slots[s].zero = false;
    d->next = 0;
    d->running = d->settling = false;
    d->status = CAIRN_OK;
}

static void use_layout(struct ddp_context *d, struct layout *l) {
    cairn__ddp_plan_free(&d->plan);
    cairn__free(d->sends);
    cairn__free(d->bucket_params);
    d->plan = l->plan;
    d->sends = l->sends;
    d->bucket_params = l->bucket_params;
    d->times.num_buckets = d->plan.count;
    begin_round(d);
}

/* Times get room for the larger of both plans, because another rank may decide which one is used. */
static cairn_status make_plan(struct ddp_context *d, const size_t *order, struct layout *out) {
    cairn_status st = CAIRN_OK;
    TRY(make_layout(d, order, out));
    if (out->plan.count > d->plan.count)
        TRY(cairn__ddp_times_make(&d->times, d->num_slots, out->plan.count, cairn__ddp_log_wants_file()));
out:
    return st;
}

cairn_status cairn__ddp_plan_slots(struct ddp_context *d) {
    struct layout l = {{0}, NULL, NULL};
    choose_wires(d);
    cairn_status st = CAIRN_OK;
    TRY(make_plan(d, NULL, &l));
    use_layout(d, &l);
    return CAIRN_OK;
out:
    free_layout(&l);
    return st;
}

static void free_arenas(struct ddp_context *d, void **arenas) {
    for (cairn_dtype t = CAIRN_F32; t <= CAIRN_U8; t++) {
        (void)cairn_group_free(d->channel, &arenas[t]); /* a dead group frees it when it is destroyed */
        arenas[t] = NULL;
    }
}

/* Succeeds on every rank or on none. */
static cairn_status alloc_arenas(struct ddp_context *d, const struct cairn__ddp_plan *plan, void **arenas) {
    cairn_status st = CAIRN_OK;
    for (cairn_dtype t = CAIRN_F32; t <= CAIRN_U8; t++) {
        if (plan->arena[t]) TRY(cairn_group_alloc(d->channel, plan->arena[t] * cairn_dtype_nbytes(t), &arenas[t]));
    }
    return CAIRN_OK;
out:
    free_arenas(d, arenas);
    return st;
}

static void point_into_arenas(struct ddp_context *d) {
    for (size_t s = 0; s < d->num_slots; s++) {
        if (d->slots[s].in_place) cairn__grad_place(d->slots[s].param->gradient, place_of(d, s));
    }
}

/* Forgets earlier gradients, which are this rank's alone and outside the arenas. */
static void enter_arenas(struct ddp_context *d) {
    for (size_t s = 0; s < d->num_slots; s++) cairn__params_forget(&d->slots[s].param, 1);
    point_into_arenas(d);
}

static void leave_arenas(struct ddp_context *d) {
    for (size_t s = 0; s < d->num_slots; s++) {
        struct cairn__param *p = d->slots[s].param;
        if (!d->slots[s].in_place) continue;
        cairn__grad_place(p->gradient, NULL); /* the next backward allocates memory of the model's */
        cairn__params_forget(&p, 1);
    }
    free_arenas(d, d->arenas);
    (void)cairn_group_free(d->channel, &d->losses);
    d->losses = NULL;
}

cairn_status cairn__ddp_attach(struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    TRY(alloc_arenas(d, &d->plan, d->arenas));
    enter_arenas(d);
out:
    return st;
}

void cairn__ddp_detach(struct ddp_context *d) {
    leave_arenas(d);
}

/* ---- gradients copied into and out of buckets ---- */

/* Lists the part of a slot that is in the bucket and whose average this rank has. */
static void list_part(const struct ddp_context *d, const struct cairn__ddp_bucket *bucket, size_t s,
                      struct cairn__item *item) {
    const struct cairn__param *p = d->slots[s].param;
    const struct cairn__shard shard = cairn__param_shard(p);
    const size_t offset = d->plan.places[s].offset, slot_begin = offset + shard.first;
    const size_t begin = slot_begin > bucket->begin ? slot_begin : bucket->begin;
    const size_t slot_end = slot_begin + shard.n, bucket_end = bucket->begin + bucket->n;
    const size_t end = slot_end < bucket_end ? slot_end : bucket_end;
    *item = (struct cairn__item){.n = end - begin,
                                 .dst = (char *)cairn__grad_memory(p->gradient) +
                                        (begin - offset) * cairn_dtype_nbytes(p->dtype),
                                 .x = arena_at(d, bucket->dtype, begin)};
}

static void copy_back(struct ddp_context *d, const struct cairn__ddp_bucket *bucket) {
    for (cairn_dtype to = CAIRN_F32; d->copies && to <= CAIRN_BF16; to++) {
        size_t listed = 0;
        for (size_t k = 0; k < bucket->count; k++) {
            const struct cairn__ddp_slot *slot = &d->slots[bucket->items[k]];
            if (slot->in_place || !slot->used || slot->param->dtype != to) continue;
            list_part(d, bucket, bucket->items[k], &d->items[listed++]);
        }
        if (listed) device_of(d)->passes->cast(device_of(d), d->items, listed, to, bucket->dtype);
    }
    for (size_t k = 0; d->copies && k < bucket->count; k++) {
        const struct cairn__param *p = d->slots[bucket->items[k]].param;
        struct cairn__item part;
        if (!d->slots[bucket->items[k]].used || !is_rounded_on_return(p, bucket->dtype)) continue;
        list_part(d, bucket, bucket->items[k], &part);
        device_of(d)->passes->round(device_of(d), p->value_type, part.dst, part.dst, part.n);
    }
}

/* A slot that this rank did not write in this backward is sent as zeros: other ranks may have written theirs. */
static cairn_status write_zeros(struct ddp_context *d, size_t s) {
    struct cairn__param *p = d->slots[s].param;
    void *slot = NULL;
    const bool waits_on =
        p->set->is_users &&
        cairn__grad_is_written(p->gradient); /* unless another rank has one: cairn__ddp_unused_settle */
    cairn_status st = CAIRN_OK;
    if (!waits_on) TRY(cairn__grad_begin_write(p->gradient, &slot));
    device_of(d)->passes->fill(device_of(d), d->slots[s].wire, place_of(d, s), p->n, 0.0f);
    d->slots[s].zero = false;
    if (!p->set->is_users) cairn__grad_join_reduction(p->gradient);
out:
    return st;
}

/* ---- buckets ---- */

struct ddp_bucket cairn__ddp_bucket_view(const struct ddp_context *d, size_t b) {
    const struct cairn__ddp_bucket *bucket = &d->plan.buckets[b];
    return (struct ddp_bucket){.struct_size = sizeof(struct ddp_bucket),
                               .index = (int)b,
                               .is_last = b + 1 == d->plan.count,
                               .dtype = bucket->dtype,
                               .n = bucket->n,
                               .buffer = arena_at(d, bucket->dtype, bucket->begin),
                               .params = d->bucket_params + (bucket->items - d->plan.members),
                               .num_params = bucket->count,
                               .group = d->channel};
}

static cairn_status fail_bucket(const struct ddp_context *d, size_t b, cairn_status status) {
    const struct cairn__ddp_bucket *bucket = &d->plan.buckets[b];
    const char *first = d->slots[bucket->items[0]].param->name;
    const char *last = d->slots[bucket->items[bucket->count - 1]].param->name;
    char cause[800];
    snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    return cairn__fail(status, "ddp: bucket %zu ('%.64s' to '%.64s') of backward %lld: %s", b, first, last,
                       (long long)d->backwards + 1, cause);
}

void cairn__ddp_weigh(const struct ddp_context *d, const struct ddp_bucket *bucket) {
    const float weight = (float)(1 / d->options.gradient_predivide_factor);
    if (d->options.gradient_average == CAIRN_OFF && weight != 1)
        device_of(d)->passes->mul_scalar(device_of(d), bucket->dtype, bucket->buffer, bucket->buffer, bucket->n,
                                         weight);
}

int cairn__ddp_divisor(const struct ddp_context *d) {
    const bool all = d->options.join_divide_by_initial_world_size != CAIRN_OFF || d->active < 1;
    if (d->options.gradient_average == CAIRN_OFF) return 0;
    return all ? cairn_group_size(d->channel) : d->active;
}

/* If ranks share updates, each gets only its slice of the bucket. */
cairn_status cairn__ddp_reduce(struct ddp_context *d, const struct ddp_bucket *bucket, cairn_work **work) {
    struct cairn__nonfinite *const sources = cairn__ddp_nonfinite_sources(d);
    const int divisor = cairn__ddp_divisor(d);
    const size_t slice = bucket->n / (size_t)cairn_group_size(d->channel);
    cairn__ddp_weigh(d, bucket);
    if (!d->shards)
        return cairn__group_average(d->channel, bucket->buffer, bucket->n, bucket->dtype, divisor, sources, work);
    return cairn__group_average_slice(d->channel, bucket->buffer, slice, bucket->dtype, divisor, sources, work);
}

static cairn_status launch(struct ddp_context *d, size_t b) {
    const struct cairn__ddp_bucket *bucket = &d->plan.buckets[b];
    cairn_status st = CAIRN_OK;
    for (size_t k = 0; k < bucket->count; k++) {
        if (d->slots[bucket->items[k]].zero) TRY(write_zeros(d, bucket->items[k]));
    }
    d->sends[b].skipped = cairn__ddp_unused_skips(d, b);
    if (d->sends[b].skipped) return CAIRN_OK;
    const struct ddp_bucket view = cairn__ddp_bucket_view(d, b);
    cairn__ddp_times_launch(&d->times, b, view.n * cairn_dtype_nbytes(view.dtype));
    st = d->hook.begin ? d->hook.begin(d->hook.ctx, &view, &d->sends[b].work)
                       : cairn__ddp_reduce(d, &view, &d->sends[b].work);
    d->sends[b].launched = st == CAIRN_OK;
    if (st != CAIRN_OK) st = fail_bucket(d, b, st);
out:
    return st;
}

static void launch_full(struct ddp_context *d) {
    if (d->options.delay_allreduce == CAIRN_ON && !d->settling) return;
    while (d->status == CAIRN_OK && d->next < d->plan.count && d->sends[d->next].pending == 0) {
        d->status = launch(d, d->next++);
    }
}

static cairn_status finish(struct ddp_context *d, size_t b, uint32_t *found) {
    uint64_t completed_ns = 0;
    if (d->sends[b].skipped) return CAIRN_OK;
    cairn_status st = cairn__work_finish_timed(&d->sends[b].work, d->hook.begin ? NULL : found, &completed_ns);
    if (st == CAIRN_OK && d->hook.finish) {
        const struct ddp_bucket view = cairn__ddp_bucket_view(d, b);
        st = d->hook.finish(d->hook.ctx, &view);
    }
    if (st != CAIRN_OK) return fail_bucket(d, b, st);
    copy_back(d, &d->plan.buckets[b]);
    cairn__ddp_times_complete(&d->times, b, completed_ns);
    return CAIRN_OK;
}

/* ---- losses that are infinite or NaN themselves ---- */

/* The gradients need not show it, so each rank sends one word about its loss. It is sent before the buckets, so that it
 * is reduced by the time they are. It is in group memory, like the buckets: there, with more ranks than processors, a
 * reduction need not wait until every rank gets its turn. */
static cairn_status send_losses(struct ddp_context *d) {
    const struct cairn_param_set *set = d->set;
    const size_t n = (size_t)set->env->size;
    cairn_status st = CAIRN_OK;
    if (!set->bad_losses || cairn_group_size(d->channel) == 1) return CAIRN_OK;
    if (!d->losses) TRY(cairn_group_alloc(d->channel, n * sizeof(*set->bad_losses), &d->losses));
    TRY(cairn__param_set_read_losses(set, d->losses));
    TRY(cairn_allreduce(d->channel, d->losses, n, CAIRN_I32, CAIRN_MAX, &d->losses_sent));
out:
    return st;
}

static cairn_status receive_losses(struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    if (!d->losses_sent) return CAIRN_OK;
    TRY(cairn__work_finish(&d->losses_sent, NULL));
    TRY(cairn__param_set_write_losses(d->set, d->losses));
out:
    return st;
}

/* ---- parameters that were frozen or thawed ---- */

static bool has_slots_of_now(const struct ddp_context *d) {
    for (size_t i = 0; i < d->num_shared; i++) {
        const struct cairn__param *p = d->shared[i].param;
        if (cairn__param_requires_grad(p) != (d->slot_of[p->index] != SIZE_MAX)) return false;
    }
    return true;
}

/* Accumulates written gradients, as the next backward would, because another plan is about to use their memory. */
static cairn_status accumulate_written(struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    for (size_t s = 0; s < d->num_slots; s++) {
        void *slot = NULL;
        struct cairn__grad *g = d->slots[s].param->gradient;
        if (d->slots[s].in_place && cairn__grad_is_written(g)) TRY(cairn__grad_begin_write(g, &slot));
    }
out:
    return st;
}

/* Makes in next the slots of the parameters that are not frozen now, and everything sized by their number. A new slot
 * may have been written by a backward under no_sync. */
static cairn_status make_slots_of_now(struct ddp_context *d, struct ddp_context *next, struct layout *l) {
    cairn_status st = CAIRN_OK;
    const size_t count = d->set->count;
    *next = *d;
    next->slots = NULL;
    next->slot_of = NULL;
    next->times = (struct cairn__ddp_times){0};
    TRY(cairn__calloc(count, sizeof(next->slots[0]), (void **)&next->slots));
    TRY(cairn__calloc(count, sizeof(next->slot_of[0]), (void **)&next->slot_of));
    cairn__ddp_list_slots(next);
    choose_wires(next);
    TRY(make_layout(next, NULL, l));
    TRY(cairn__ddp_times_make(&next->times, next->num_slots, l->plan.count, d->times.watches_polls));
    TRY(accumulate_written(d));
    TRY(accumulate_written(next));
out:
    return st;
}

static void use_slots(struct ddp_context *d, struct ddp_context *next) {
    cairn__ddp_times_take_slots(&d->times, &next->times);
    cairn__free(d->slots);
    cairn__free(d->slot_of);
    d->slots = next->slots;
    d->slot_of = next->slot_of;
    d->num_slots = next->num_slots;
    d->copies = next->copies;
    d->speaks = next->speaks;
    d->num_arrived = d->num_planned = 0;
    d->rebuilt = d->reducer;
    cairn__ddp_unused_end(d);
}

/* Collective: checks that all ranks have frozen and thawed the same parameters. */
static cairn_status change_slots(struct ddp_context *d) {
    struct ddp_context next;
    struct layout l = {{0}, NULL, NULL};
    void *arenas[CAIRN_U8 + 1] = {NULL};
    cairn_status st = make_slots_of_now(d, &next, &l);
    TRY(cairn__group_agree_on_status(d->channel, d->model ? "cairn_backward" : "ddp_grads_ready", st));
    TRY(alloc_arenas(d, &l.plan, arenas));
    for (size_t s = 0; s < d->num_slots; s++) {
        if (d->slots[s].in_place) cairn__grad_place(d->slots[s].param->gradient, NULL);
    }
    free_arenas(d, d->arenas);
    use_slots(d, &next);
    use_layout(d, &l);
    memcpy(d->arenas, arenas, sizeof(arenas));
    point_into_arenas(d);
    return CAIRN_OK;
out:
    cairn__free(next.slots);
    cairn__free(next.slot_of);
    cairn__ddp_times_free(&next.times);
    free_layout(&l);
    return st;
}

/* ---- one backward ---- */

cairn_status cairn__ddp_begin(struct ddp_context *d) {
    if (d->running) return CAIRN_OK;
    cairn_status st = cairn__group_progress(d->channel); /* a context that failed to be made has no arenas */
    if (st == CAIRN_OK && !has_slots_of_now(d)) st = change_slots(d);
    if (st == CAIRN_OK && !d->model) st = cairn__ddp_rebuild(d);
    d->running = true;
    d->num_arrived = 0;
    cairn__ddp_nonfinite_begin(d);
    if (st == CAIRN_OK) st = send_losses(d);
    return st == CAIRN_OK ? cairn__ddp_unused_begin(d) : st;
}

static void count_arrival(struct ddp_context *d, size_t s) {
    const struct cairn__ddp_place *place = &d->plan.places[s];
    d->slots[s].arrived = true;
    d->order[d->num_arrived++] = s;
    for (size_t b = 0; b < place->num_buckets; b++) {
        d->sends[place->bucket + b].pending--;
        cairn__ddp_times_fill(&d->times, place->bucket + b);
    }
    launch_full(d);
}

void cairn__ddp_arrive(struct ddp_context *d, size_t s) {
    const struct cairn__param *p = d->slots[s].param;
    cairn__ddp_times_ready(&d->times, s);
    if (!d->slots[s].in_place)
        cairn__pass_cast(device_of(d)->passes, device_of(d), place_of(d, s), d->slots[s].wire,
                         cairn__grad_memory(p->gradient), p->dtype, p->n);
    count_arrival(d, s);
}

void cairn__ddp_arrive_empty(struct ddp_context *d, size_t s) {
    d->slots[s].zero = true;
    count_arrival(d, s);
}

static cairn_status begin(void *ctx) {
    return cairn__ddp_begin(ctx);
}

static void grad_ready(void *ctx, size_t index) {
    struct ddp_context *d = ctx;
    const size_t s = d->slot_of[index];
    if (s == SIZE_MAX || d->status != CAIRN_OK) return;
    d->status = cairn__ddp_begin(d);
    if (d->status == CAIRN_OK && d->slots[s].arrived)
        d->status = cairn__fail(CAIRN_ESTATE, "ddp: the gradient of '%s' came twice in one backward",
                                d->set->params[index]->name);
    if (d->status == CAIRN_OK) cairn__ddp_arrive(d, s);
}

/* Any call may find the channel dead. The message names the oldest bucket in flight as the one in which it died. */
static cairn_status say_where(const struct ddp_context *d, cairn_status status) {
    char cause[800];
    size_t b = 0;
    if (status == CAIRN_OK || strncmp(cairn_last_error(), "ddp", 3) == 0) return status;
    while (b < d->next && !d->sends[b].work) b++;
    if (b < d->next) return fail_bucket(d, b, status);
    snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    return cairn__fail(status, "ddp: backward %lld: %s", (long long)d->backwards + 1, cause);
}

static cairn_status progress(void *ctx) {
    struct ddp_context *d = ctx;
    const uint64_t begin_ns = cairn__ddp_times_poll_begin(&d->times);
    if (d->status == CAIRN_OK) d->status = say_where(d, cairn__group_progress(d->channel));
    cairn__ddp_times_poll_end(&d->times, begin_ns);
    return d->status;
}

/* ---- the end of a backward ---- */

/* Ignored gradients are not reduced, but an overflow in one must skip the step on all ranks. */
static cairn_status agree_on_ignored(struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__param_set_make_flags(d->set));
    cairn__params_check(device_of(d), d->ignored, d->num_ignored, d->set->items);
    for (size_t i = 0; i < d->set->count; i++)
        cairn__grad_touch_flags(d->set->params[i]->gradient); /* by other ranks */
    TRY(cairn_allreduce(d->channel, d->set->flags, 2 * d->set->flags_count, CAIRN_I32, CAIRN_MAX, NULL));
    for (size_t i = 0; i < d->num_ignored; i++) cairn__grad_save_agreed_flags(d->ignored[i]->gradient);
out:
    return st;
}

static cairn_status settle(struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    uint32_t found = 0;
    TRY(cairn__group_progress(d->channel));
    TRY(cairn__ddp_begin(d));
    TRY(d->status);
    cairn__ddp_times_compute_end(&d->times);
    d->settling = true;
    TRY(cairn__ddp_unused_rest(d));
    launch_full(d);
    TRY(d->status);
    TRY(cairn__ddp_unused_settle(d));
    for (size_t b = 0; d->status == CAIRN_OK && b < d->plan.count; b++) d->status = finish(d, b, &found);
    TRY(d->status);
    TRY(receive_losses(d));
    if (d->num_ignored > 0) TRY(agree_on_ignored(d)); /* their overflow is in no bucket */
    if (d->shards) {
        TRY(cairn__ddp_shards_reduced(d, found));
    } else if (found || (d->speaks && cairn__group_checks_results(d->channel))) {
        TRY(cairn__param_set_on_reduced(d->set, found));
    }
    if (d->own_hook) TRY(d->own_hook->settle(d));
    d->backwards++;
    d->has_reduced = true;
    d->set->ranks_differ |= d->reduces_nothing;
    cairn__ddp_times_settled(&d->times);
    cairn__ddp_log_settled(d);
out:
    return st;
}

cairn_status cairn__ddp_settle(struct ddp_context *d) {
    const cairn_status st = settle(d);
    if (st == CAIRN_OK) begin_round(d);
    return say_where(d, st);
}

static cairn_status settle_listener(void *ctx) {
    return cairn__ddp_settle(ctx);
}

/* Other ranks wait for the buckets that this one did not send, so the group cannot be used any more; a group of one
 * rank can. */
static void failed(void *ctx) {
    struct ddp_context *d = ctx;
    const cairn_status status = d->failed = cairn__last_status();
    snprintf(d->cause, sizeof(d->cause), "%s", cairn_last_error());
    if (cairn_group_size(d->channel) > 1) (void)cairn__group_kill(d->channel, status);
    (void)cairn__work_finish(&d->losses_sent, NULL);
    for (size_t b = 0; b < d->plan.count; b++) {
        cairn_work *work = d->sends[b].work;
        uint64_t completed_ns = 0;
        if (work) (void)cairn__work_finish_timed(&work, NULL, &completed_ns);
    }
    begin_round(d);
    (void)cairn__fail(status, "%s", d->cause); /* for the user's next cairn_last_error */
}

/* Which of several models the loss should have reached is unknown, so every one fails that other ranks may wait for. */
static cairn_status no_gradient(void *ctx) {
    struct ddp_context *d = ctx;
    cairn_status st = CAIRN_OK;
    if (!d->model || cairn_group_size(d->channel) == 1 || !cairn__param_set_any_requires_grad(d->set)) return CAIRN_OK;
    TRY(cairn__group_progress(d->channel));
    TRY(cairn__fail(CAIRN_EINVAL,
                    "ddp: on rank %d, nothing that the loss of backward %lld depends on requires a gradient, while the "
                    "other ranks wait for its gradients; give a rank without input the loss of ddp_zero_loss, which "
                    "uses no parameter for find_unused_parameters",
                    cairn_group_rank(d->channel), (long long)d->backwards + 1));
out:
    return st;
}

void cairn__ddp_listen(struct ddp_context *d) {
    d->listener = (struct cairn__grad_listener){.ctx = d,
                                                .is_alone = cairn_group_size(d->channel) == 1,
                                                .begin = begin,
                                                .ready = grad_ready,
                                                .progress = progress,
                                                .settle = settle_listener,
                                                .failed = failed,
                                                .no_gradient = no_gradient,
                                                .nonfinite_ranks = cairn__ddp_nonfinite_ranks,
                                                .agree_on_frozen = cairn__ddp_agree_on_frozen,
                                                .shares_param = cairn__ddp_shares_param,
                                                .shares_buffer = cairn__ddp_shares_buffer,
                                                .sharers = cairn__ddp_sharers(d)};
    cairn__param_set_begin_listen(d->set, &d->listener, d->call);
}

/* ---- rebuilding buckets ---- */

/* Buckets are not rebuilt if there is one per type, where order changes nothing; with unused parameters, which would
 * count as ready first; or once a graph was recorded, which contains the gradients' addresses. */
static bool may_rebuild(const struct ddp_context *d) {
    const struct ddp_options *o = &d->options;
    const bool guesses = o->find_unused_parameters == CAIRN_ON && o->static_graph != CAIRN_ON;
    return !guesses && o->delay_allreduce != CAIRN_ON && d->set->env->replays == 0;
}

/* For messages. */
static const char *plans_in(const struct ddp_context *d) {
    return d->model ? "ddp_forward" : "ddp_grads_ready";
}

static bool is_same_plan(const struct cairn__ddp_plan *a, const struct cairn__ddp_plan *b, size_t num_slots) {
    bool same = a->count == b->count;
    for (size_t s = 0; same && s < num_slots; s++) {
        same = a->places[s].offset == b->places[s].offset && a->places[s].bucket == b->places[s].bucket;
    }
    return same;
}

static cairn_status rebuild(struct ddp_context *d) {
    const size_t p = (size_t)cairn_group_size(d->channel), nbytes = d->num_slots * sizeof(d->order[0]);
    size_t *orders = NULL;
    struct layout l = {{0}, NULL, NULL};
    cairn_status st = cairn__alloc(p * nbytes, (void **)&orders);
    TRY(cairn__group_agree_on_status(d->channel, plans_in(d), st));
    TRY(cairn__group_exchange(d->channel, orders, d->order, nbytes));
    memcpy(d->order, orders, nbytes); /* rank 0's */
    st = make_plan(d, d->order, &l);
    if (st == CAIRN_OK) st = accumulate_written(d);
    TRY(cairn__group_agree_on_status(d->channel, plans_in(d), st));
    d->num_planned = d->num_slots;
    memcpy(d->planned, d->order, nbytes);
    if (!is_same_plan(&l.plan, &d->plan, d->num_slots)) {
        /* One slot's memory may be another's padding now, and padding is reduced too. */
        for (cairn_dtype t = CAIRN_F32; t <= CAIRN_U8; t++) {
            if (d->arenas[t]) device_of(d)->passes->fill(device_of(d), t, d->arenas[t], d->plan.arena[t], 0.0f);
        }
        use_layout(d, &l);
        point_into_arenas(d);
        l = (struct layout){{0}, NULL, NULL};
    }
out:
    cairn__free(orders);
    free_layout(&l);
    return st;
}

cairn_status cairn__ddp_rebuild(struct ddp_context *d) {
    if (d->rebuilt || d->backwards == 0 || d->running || d->num_arrived < d->num_slots) return CAIRN_OK;
    if (d->num_slots == 0 || !has_slots_of_now(d)) return CAIRN_OK;
    d->rebuilt = true;
    return may_rebuild(d) ? say_where(d, rebuild(d)) : CAIRN_OK;
}

/* ---- hooks ---- */

static bool changes_plan(const struct ddp_context *d) {
    for (size_t s = 0; s < d->num_slots; s++) {
        if (wire_of(d, d->slots[s].param) != d->slots[s].wire) return true;
        if (d->hook.whole_parameters == CAIRN_ON && d->plan.places[s].num_buckets > 1) return true;
    }
    return false;
}

cairn_status cairn__ddp_use_hook(struct ddp_context *d, const struct ddp_comm_hook *hook) {
    const struct ddp_comm_hook before = d->hook;
    struct layout l = {{0}, NULL, NULL};
    void *arenas[CAIRN_U8 + 1] = {NULL};
    cairn_status st = CAIRN_OK;
    d->hook = *hook;
    if (changes_plan(d)) {
        st = make_plan(d, NULL, &l);
        TRY(cairn__group_agree_on_status(d->channel, "ddp_register_comm_hook", st));
        TRY(alloc_arenas(d, &l.plan, arenas));
        leave_arenas(d); /* from here on nothing can fail */
        use_layout(d, &l);
        memcpy(d->arenas, arenas, sizeof(arenas));
    }
    choose_wires(d);
    enter_arenas(d);
    return CAIRN_OK;
out:
    free_layout(&l);
    d->times.num_buckets = d->plan.count;
    d->hook = before;
    return st;
}
