/* Updates shared among the ranks (ZeRO, stage 1; Rajbhandari et al. 2020, section 5.1).
 *
 * Every bucket has as many equal slices as there are ranks, and rank r updates what is in slice r: at most one piece of
 * each parameter, its shard. A rank has only its own shards of masters and moments. After an update every rank gets all
 * weights, in the type in which they are stored. A module's weights are in group memory, laid out like the buckets, so
 * a bucket's weights are gathered in place; the user's weights are sent as copies. Buckets are planned once, because
 * slices must not move. */
#include "comm/group.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "ddp/context.h"

static struct cairn_device *device_of(const struct ddp_context *d) {
    return d->set->env->device;
}

static int ranks_of(const struct ddp_context *d) {
    return cairn_group_size(d->channel);
}

static void *weights_at(const struct ddp_context *d, cairn_dtype dtype, size_t element) {
    char *weights = d->weights[dtype];
    return weights ? weights + element * cairn_dtype_nbytes(dtype) : NULL;
}

/* ---- who updates what ---- */

static struct cairn__shard shard_of(const struct ddp_context *d, size_t s, int rank) {
    const struct cairn__ddp_place *place = &d->plan.places[s];
    const struct cairn__ddp_bucket *bucket = &d->plan.buckets[place->bucket];
    const size_t n = d->slots[s].param->n, slice = bucket->n / (size_t)ranks_of(d);
    const size_t begin = bucket->begin + (size_t)rank * slice, end = begin + slice, last = place->offset + n;
    const size_t from = begin < place->offset ? place->offset : begin > last ? last : begin;
    const size_t to = end < place->offset ? place->offset : end > last ? last : end;
    return (struct cairn__shard){from - place->offset, to - from};
}

/* ---- begin ---- */

cairn_status cairn__ddp_shards_check(const struct ddp_context *d) {
    const struct ddp_options *o = &d->options;
    REQUIRE(o->wire == 0, CAIRN_ENOTSUP,
            "%s: ddp_options give shard_optimizer and wire = %s; gradients travel as they are then: give one of them",
            d->call, cairn_dtype_name(o->wire));
    REQUIRE(d->set->env->graphs == 0, CAIRN_ESTATE,
            "%s: with ddp_options.shard_optimizer the weights move, and a captured graph has recorded where they are; "
            "destroy the graph first",
            d->call);
    return CAIRN_OK;
}

static void free_arrays(const struct ddp_context *d, struct cairn__param_arrays *arrays) {
    for (size_t s = 0; arrays && s < d->num_slots; s++) cairn__param_arrays_free(d->slots[s].param, &arrays[s]);
    cairn__free(arrays);
}

/* Room for the shard of each slot's arrays. */
static cairn_status make_arrays(const struct ddp_context *d, struct cairn__param_arrays **out) {
    struct cairn__param_arrays *arrays = NULL;
    const int rank = cairn_group_rank(d->channel);
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(d->num_slots, sizeof(arrays[0]), (void **)&arrays));
    for (size_t s = 0; s < d->num_slots; s++) {
        TRY(cairn__param_arrays_make(d->slots[s].param, shard_of(d, s, rank).n, &arrays[s]));
    }
    *out = arrays;
    return CAIRN_OK;
out:
    free_arrays(d, arrays);
    return st;
}

static void free_weights(struct ddp_context *d) {
    for (cairn_dtype t = CAIRN_F32; t <= CAIRN_U8; t++) {
        (void)cairn_group_free(d->channel, &d->weights[t]); /* a dead group frees it when it is destroyed */
        d->weights[t] = NULL;
    }
    cairn__free(d->gathers);
    d->gathers = NULL;
}

static void recycle_results(const struct ddp_context *d) {
    struct cairn_env *env = d->set->env;
    if (env->begin_step) (void)env->begin_step(env); /* results may be views of the weights' former memory */
}

cairn_status cairn__ddp_shards_begin(struct ddp_context *d) {
    struct cairn__param_arrays *arrays = NULL;
    cairn_status st = CAIRN_OK;
    if (!d->shards) return CAIRN_OK;
    st = make_arrays(d, &arrays);
    if (st == CAIRN_OK) st = cairn__calloc(d->plan.count, sizeof(d->gathers[0]), (void **)&d->gathers);
    TRY(cairn__group_agree_on_status(d->channel, d->call, st));
    for (cairn_dtype t = CAIRN_F32; t <= CAIRN_U8; t++) {
        if (d->plan.arena[t])
            TRY(cairn_group_alloc(d->channel, d->plan.arena[t] * cairn_dtype_nbytes(t), &d->weights[t]));
    }
    /* From here on only a lost device can fail. */
    for (size_t s = 0; s < d->num_slots; s++) {
        const struct cairn__shard shard = shard_of(d, s, cairn_group_rank(d->channel));
        TRY(cairn__param_arrays_use(d->slots[s].param, &shard, &arrays[s]));
    }
    d->owns_weights = d->model != NULL;
    for (size_t s = 0; d->owns_weights && s < d->num_slots; s++) {
        void *const place = weights_at(d, d->slots[s].wire, d->plan.places[s].offset);
        if (place) TRY(cairn__param_move(d->slots[s].param, place, false));
    }
    if (d->owns_weights) recycle_results(d);
    d->rebuilt = true;
out:
    free_arrays(d, arrays);
    if (st != CAIRN_OK) free_weights(d);
    return st;
}

/* ---- after an update ---- */

/* Copies elements [first, first + n) of a slot's weights between the user's memory and the copy that is sent; f32
 * memory with half values is sent in the half type. */
static void copy_part(const struct ddp_context *d, size_t s, size_t first, size_t n, bool out) {
    struct cairn_device *device = device_of(d);
    const struct cairn__param *p = d->slots[s].param;
    const cairn_dtype wire = d->slots[s].wire;
    void *const at = cairn__param_weights_at(p, first);
    void *const copy = weights_at(d, wire, d->plan.places[s].offset + first);
    if (n == 0) return;
    if (out) {
        cairn__pass_cast(device->passes, device, copy, wire, at, p->dtype, n);
    } else {
        cairn__pass_cast(device->passes, device, at, p->dtype, copy, wire, n);
    }
}

static void copy_others(const struct ddp_context *d, const struct cairn__ddp_bucket *bucket) {
    for (size_t k = 0; k < bucket->count; k++) {
        const struct cairn__param *p = d->slots[bucket->items[k]].param;
        const struct cairn__shard shard = cairn__param_shard(p);
        copy_part(d, bucket->items[k], 0, shard.first, false);
        copy_part(d, bucket->items[k], shard.first + shard.n, p->n - shard.first - shard.n, false);
    }
}

static cairn_status launch(struct ddp_context *d, size_t b) {
    const struct cairn__ddp_bucket *bucket = &d->plan.buckets[b];
    const size_t slice = bucket->n / (size_t)ranks_of(d);
    cairn_status st = CAIRN_OK;
    for (size_t k = 0; !d->owns_weights && k < bucket->count; k++) {
        const struct cairn__shard shard = cairn__param_shard(d->slots[bucket->items[k]].param);
        copy_part(d, bucket->items[k], shard.first, shard.n, true);
    }
    void *const weights = weights_at(d, bucket->dtype, bucket->begin);
    const void *const own = weights_at(d, bucket->dtype, bucket->begin + (size_t)cairn_group_rank(d->channel) * slice);
    TRY(cairn_allgather(d->channel, weights, own, slice, bucket->dtype, &d->gathers[b].work));
out:
    return st;
}

static cairn_status updated(void *ctx, struct cairn__param *const *params, size_t count) {
    struct ddp_context *d = ctx;
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < count; i++) {
        const size_t s = params[i]->set == d->set ? d->slot_of[params[i]->index] : SIZE_MAX;
        if (s != SIZE_MAX && params[i]->n > 0) d->gathers[d->plan.places[s].bucket].due = true;
    }
    for (size_t b = 0; b < d->plan.count; b++) {
        if (d->gathers[b].due) TRY(launch(d, b));
    }
    for (size_t b = 0; b < d->plan.count; b++) {
        if (!d->gathers[b].due) continue;
        TRY(cairn__work_finish(&d->gathers[b].work, NULL));
        if (!d->owns_weights) copy_others(d, &d->plan.buckets[b]);
    }
out:
    for (size_t b = 0; b < d->plan.count; b++) {
        if (st != CAIRN_OK && d->gathers[b].work) (void)cairn__work_finish(&d->gathers[b].work, NULL);
        d->gathers[b].due = false;
    }
    return st;
}

/* ---- before an update ---- */

static cairn_status progress(void *ctx) {
    const struct ddp_context *d = ctx;
    return cairn__group_progress(d->channel);
}

static void failed(void *ctx, cairn_status status) {
    const struct ddp_context *d = ctx;
    (void)cairn__group_kill(d->channel, status);
}

static int env_rank(void *ctx, int rank) {
    const struct ddp_context *d = ctx;
    return cairn_group_env_rank(d->channel, rank);
}

static cairn_status share_sum_flags(void *ctx) {
    const struct ddp_context *d = ctx;
    const size_t n = d->set->flags_count;
    cairn_status st = CAIRN_OK;
    TRY(cairn__param_set_make_flags(d->set));
    for (size_t s = 0; s < d->num_slots; s++) cairn__grad_touch_sum_flag(d->slots[s].param->gradient);
    TRY(cairn_allreduce(d->channel, d->set->flags + n, n, CAIRN_I32, CAIRN_MAX, NULL));
out:
    if (st != CAIRN_OK) failed(ctx, st); /* what the caller does next asks whether the group lives */
    return st;
}

/* If the backend does not check results, each rank checks its shards. */
cairn_status cairn__ddp_shards_reduced(struct ddp_context *d, uint32_t found) {
    const bool knows = d->speaks && cairn__group_checks_results(d->channel);
    cairn_status st = CAIRN_OK;
    TRY(cairn__param_set_on_reduced(d->set, found || !knows));
    if (knows && !found) {
        for (size_t s = 0; s < d->num_slots; s++) cairn__grad_drop_agreed_flags(d->slots[s].param->gradient);
        return CAIRN_OK;
    }
    for (size_t s = 0; s < d->num_slots; s++) cairn__grad_touch_flags(d->slots[s].param->gradient);
    TRY(cairn_allreduce(d->channel, d->set->flags, 2 * d->set->flags_count, CAIRN_I32, CAIRN_MAX, NULL));
    for (size_t s = 0; s < d->num_slots; s++) cairn__grad_save_agreed_flags(d->slots[s].param->gradient);
out:
    return st;
}

static cairn_status gather(void *ctx, void *all, const void *mine, size_t nbytes) {
    const struct ddp_context *d = ctx;
    return cairn__group_exchange(d->channel, all, mine, nbytes);
}

static cairn_status agree(void *ctx, const char *call, cairn_status status) {
    const struct ddp_context *d = ctx;
    return cairn__group_agree_on_status(d->channel, call, status);
}

const struct cairn__sharers *cairn__ddp_sharers(struct ddp_context *d) {
    d->sharers = (struct cairn__sharers){.ctx = d,
                                         .size = cairn_group_size(d->channel),
                                         .updated = updated,
                                         .share_sum_flags = share_sum_flags,
                                         .gather = gather,
                                         .agree = agree,
                                         .progress = progress,
                                         .failed = failed,
                                         .env_rank = env_rank};
    return d->shards ? &d->sharers : NULL;
}

/* ---- end ---- */

static cairn_status make_homes(const struct ddp_context *d, void **homes) {
    cairn_status st = CAIRN_OK;
    for (size_t s = 0; d->owns_weights && s < d->num_slots; s++) {
        const struct cairn__param *p = d->slots[s].param;
        if (p->n == 0) continue;
        TRY(cairn__device_alloc(device_of(d), CAIRN__HOLDS_PARAMS, p->n * cairn_dtype_nbytes(p->dtype), &homes[s]));
    }
out:
    return st;
}

/* Every rank sends its shard of each array. */
static cairn_status complete(struct ddp_context *d, size_t s, struct cairn__param_arrays *arrays) {
    const struct cairn__param *p = d->slots[s].param;
    const struct cairn__shard own = cairn__param_shard(p);
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < CAIRN__PARAM_ARRAYS; i++) {
        float *const array = arrays->at[i];
        if (array && own.n > 0)
            TRY(cairn__device_copy(device_of(d), array + own.first, cairn__param_array(p, i), own.n * sizeof(float)));
        for (int r = 0; array && r < ranks_of(d); r++) {
            const struct cairn__shard shard = shard_of(d, s, r);
            if (shard.n > 0) TRY(cairn_broadcast(d->channel, array + shard.first, shard.n, CAIRN_F32, r, NULL));
        }
    }
out:
    return st;
}

/* A rank that has destroyed an optimizer has fewer arrays to send than one that has not. */
static cairn_status agree_on_arrays(const struct ddp_context *d) {
    const size_t n = d->num_slots;
    uint32_t *all = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_make_room(d->channel, "ddp_destroy", 2 * n * sizeof(all[0]), (void **)&all));
    uint32_t *const mine = all + (size_t)ranks_of(d) * n;
    for (size_t s = 0; s < n; s++) {
        for (int i = 0; i < CAIRN__PARAM_ARRAYS; i++)
            mine[s] |= (uint32_t)(cairn__param_array(d->slots[s].param, i) != NULL) << i;
    }
    TRY(cairn__group_exchange(d->channel, all, mine, n * sizeof(all[0])));
    for (size_t k = n; k < (size_t)ranks_of(d) * n; k++) {
        if (all[k] == all[k % n]) continue;
        st = cairn__fail(CAIRN_EPEER,
                         "of parameter '%s' ranks 0 and %zu do not have the same states: one of them has destroyed its "
                         "optimizer before; do so on every rank or on none",
                         d->slots[k % n].param->name, k / n);
        break;
    }
out:
    cairn__free(all);
    return st;
}

/* One parameter after the other, so that no more memory is needed than for all of them. */
static cairn_status make_whole(struct ddp_context *d) {
    struct cairn__param_arrays arrays = {{NULL}};
    cairn_status st = CAIRN_OK;
    TRY(agree_on_arrays(d));
    for (size_t s = 0; s < d->num_slots; s++) {
        struct cairn__param *p = d->slots[s].param;
        st = cairn__param_arrays_make(p, p->n, &arrays);
        TRY(cairn__group_agree_on_status(d->channel, "ddp_destroy", st));
        TRY(complete(d, s, &arrays));
        TRY(cairn__param_arrays_use(p, NULL, &arrays));
    }
out:
    if (st != CAIRN_OK) cairn__param_arrays_free(d->slots[0].param, &arrays);
    return st;
}

cairn_status cairn__ddp_shards_end(struct ddp_context *d) {
    void **homes = NULL;
    cairn_status st = CAIRN_OK;
    if (!d->shards) return CAIRN_OK;
    const bool is_alive = cairn__group_progress(d->channel) == CAIRN_OK;
    st = cairn__calloc(d->num_slots, sizeof(homes[0]), (void **)&homes);
    if (st == CAIRN_OK) st = make_homes(d, homes);
    if (is_alive) {
        const cairn_status all = cairn__group_agree_on_status(d->channel, "ddp_destroy", st);
        if (st == CAIRN_OK && cairn__group_progress(d->channel) == CAIRN_OK) st = all;
    }
    TRY(st);
    if (cairn__group_progress(d->channel) != CAIRN_OK || make_whole(d) != CAIRN_OK)
        cairn__log(CAIRN_LOG_WARNING,
                   "ddp_destroy: f32 values that ranks share stay in parts, and their optimizers cannot step: %s",
                   cairn_last_error());
    for (size_t s = 0; s < d->num_slots; s++) {
        if (homes[s]) (void)cairn__param_move(d->slots[s].param, homes[s], true);
        homes[s] = NULL;
    }
    if (d->owns_weights) recycle_results(d);
    free_weights(d);
out:
    for (size_t s = 0; homes && s < d->num_slots; s++) cairn__device_free(device_of(d), homes[s]);
    cairn__free(homes);
    return st;
}
