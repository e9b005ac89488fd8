/* The gradient of one parameter: grad.h has its states. */
#include "param/grad.h"

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "param/param.h"

struct cairn__grad {
    struct cairn__param *param;

    void *memory;     /* of the slot; NULL until it is needed */
    bool owns_memory; /* neither the user's nor a bucket's */
    float *sum;       /* accumulated; allocated on first need, as unsynced_sum is */
    float *unsynced_sum;

    enum cairn__slot_state slot;
    enum cairn__accumulated_state accumulated;
    enum cairn__unsynced_state unsynced;

    const struct cairn__loss_scale *scale; /* of the slot, in device memory; NULL = 1 */
    const float *clip;                     /* clipping coefficient still to be applied, in device memory; NULL = 1 */

    bool flag_touched, sum_flag_touched; /* they may be raised */
    bool agreed;                         /* ranks have agreed on the flags of a gradient that is each rank's own */
    bool incomplete;                     /* the backward failed half-way */
    bool noted;                          /* by the optimizer: for overflow, or to clip it */
    bool pending;                        /* written since a step last used the gradient */
};

static struct cairn_device *device_of(const struct cairn__grad *g) {
    return g->param->set->env->device;
}

static bool is_written(const struct cairn__grad *g) {
    return g->slot != CAIRN__SLOT_EMPTY;
}

static bool is_accumulated(const struct cairn__grad *g) {
    return g->accumulated != CAIRN__ACCUMULATED_ABSENT;
}

static bool has_unsynced_sum(const struct cairn__grad *g) {
    return g->unsynced == CAIRN__UNSYNCED_KEPT || g->unsynced == CAIRN__UNSYNCED_USED_KEPT;
}

static bool was_used(const struct cairn__grad *g) {
    return g->unsynced == CAIRN__UNSYNCED_USED || g->unsynced == CAIRN__UNSYNCED_USED_KEPT;
}

static const float *factor_of(const struct cairn__grad *g) {
    return g->scale ? &g->scale->factor : NULL;
}

/* The elements of the slot that are this rank's after a reduction. */
static size_t shard_n(const struct cairn__grad *g) {
    return cairn__param_shard(g->param).n;
}

static void *shard_slot(const struct cairn__grad *g) {
    const struct cairn__param *p = g->param;
    return g->memory ? (char *)g->memory + cairn__param_shard(p).first * cairn_dtype_nbytes(p->dtype) : NULL;
}

/* ---- looking ---- */

struct cairn__grad_states cairn__grad_states(const struct cairn__grad *g) {
    return (struct cairn__grad_states){g->slot, g->accumulated, g->unsynced};
}

bool cairn__grad_is_written(const struct cairn__grad *g) {
    return is_written(g);
}

bool cairn__grad_is_accumulated(const struct cairn__grad *g) {
    return is_accumulated(g);
}

bool cairn__grad_exists(const struct cairn__grad *g) {
    return is_written(g) || is_accumulated(g);
}

bool cairn__grad_is_synced(const struct cairn__grad *g) {
    return (is_written(g) && g->slot != CAIRN__SLOT_UNSYNCED) || is_accumulated(g);
}

bool cairn__grad_is_unsynced(const struct cairn__grad *g) {
    return g->slot == CAIRN__SLOT_UNSYNCED || g->unsynced != CAIRN__UNSYNCED_NONE;
}

bool cairn__grad_is_scaled(const struct cairn__grad *g) {
    return is_written(g) && g->scale;
}

bool cairn__grad_is_at_other_scale(const struct cairn__grad *g) {
    return is_written(g) && g->scale != g->param->set->scale;
}

bool cairn__grad_is_clipped(const struct cairn__grad *g) {
    return g->clip;
}

bool cairn__grad_is_noted(const struct cairn__grad *g) {
    return g->noted;
}

bool cairn__grad_is_incomplete(const struct cairn__grad *g) {
    return g->incomplete;
}

bool cairn__grad_is_pending(const struct cairn__grad *g) {
    return g->pending && (cairn__grad_exists(g) || cairn__grad_is_unsynced(g));
}

struct cairn__grad_view cairn__grad_peek(const struct cairn__grad *g) {
    const struct cairn__param *p = g->param;
    const cairn_dtype values = p->value_type ? p->value_type : p->dtype;
    if (g->slot == CAIRN__SLOT_UNSYNCED)
        return (struct cairn__grad_view){g->memory, p->n, p->dtype, values, factor_of(g)};
    if (is_written(g)) return (struct cairn__grad_view){shard_slot(g), shard_n(g), p->dtype, values, factor_of(g)};
    if (is_accumulated(g)) return (struct cairn__grad_view){g->sum, shard_n(g), CAIRN_F32, CAIRN_F32, NULL};
    return (struct cairn__grad_view){has_unsynced_sum(g) ? g->unsynced_sum : NULL, p->n, CAIRN_F32, CAIRN_F32, NULL};
}

void *cairn__grad_memory(const struct cairn__grad *g) {
    return g->memory;
}

bool cairn__grad_owns_memory(const struct cairn__grad *g) {
    return g->owns_memory;
}

/* ---- memory ---- */

cairn_status cairn__grad_new(struct cairn__param *param, void *slot, struct cairn__grad **out) {
    struct cairn__grad *g = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*g), (void **)&g));
    g->param = param;
    g->memory = slot;
    *out = g;
out:
    return st;
}

static void free_memory(struct cairn__grad *g) {
    if (g->owns_memory) cairn__device_free(device_of(g), g->memory);
    g->memory = NULL;
    g->owns_memory = false;
}

void cairn__grad_free_memory(struct cairn__grad *g) {
    if (g->owns_memory) free_memory(g);
    cairn__device_free(device_of(g), g->sum);
    cairn__device_free(device_of(g), g->unsynced_sum);
    g->sum = g->unsynced_sum = NULL;
}

void cairn__grad_free_sum(struct cairn__grad *g) {
    cairn__device_free(device_of(g), g->sum);
    g->sum = NULL;
}

void cairn__grad_free(struct cairn__grad *g) {
    if (!g) return;
    cairn__grad_free_memory(g);
    cairn__free(g);
}

cairn_status cairn__grad_make_memory(struct cairn__grad *g) {
    if (g->memory) return CAIRN_OK;
    const size_t nbytes = g->param->n * cairn_dtype_nbytes(g->param->dtype);
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_alloc(device_of(g), CAIRN__HOLDS_GRADS, nbytes, &g->memory));
    g->owns_memory = true;
out:
    return st;
}

/* does: how the parameter accumulates, for the log. */
static cairn_status make_sum(struct cairn__grad *g, float **sum, size_t n, const char *does) {
    if (*sum) return CAIRN_OK;
    const size_t nbytes = n * sizeof(float);
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_alloc(device_of(g), CAIRN__HOLDS_GRADS, nbytes, (void **)sum));
    cairn__log(CAIRN_LOG_INFO, "'%s' accumulates %s: %zu bytes more", g->param->name, does, nbytes);
out:
    return st;
}

void cairn__grad_place(struct cairn__grad *g, void *slot) {
    free_memory(g);
    g->memory = slot;
    g->slot = CAIRN__SLOT_EMPTY;
    if (!is_accumulated(g)) g->clip = NULL; /* no gradient is left to apply it to */
}

cairn_status cairn__grad_bind(struct cairn__grad *g, void *slot) {
    cairn_status st = CAIRN_OK;
    if (g->owns_memory) TRY(cairn__grad_accumulate(g));
    free_memory(g);
    g->memory = slot;
out:
    return st;
}

void cairn__grad_change_type(struct cairn__grad *g) {
    g->accumulated = CAIRN__ACCUMULATED_ABSENT;
    g->unsynced = CAIRN__UNSYNCED_NONE;
    cairn__grad_place(g, NULL);
}

/* ---- accumulating ---- */

static uint32_t *flag_of(const struct cairn__grad *g) {
    return &g->param->set->flags[g->param->index];
}

static uint32_t *sum_flag_of(const struct cairn__grad *g) {
    return &g->param->set->flags[g->param->set->flags_count + g->param->index];
}

/* dst = factor * x + y, all f32 but x. */
static void add(const struct cairn__grad *g, size_t n, float *dst, const void *x, cairn_dtype from, const float *factor,
                const float *y, uint32_t *found) {
    struct cairn_device *d = device_of(g);
    const struct cairn__item item = {.n = n, .dst = dst, .x = x, .y = y, .found = found};
    d->passes->axpby(d, &item, 1, CAIRN_F32, from, factor, 1.0f, NULL);
}

static void multiply(const struct cairn__grad *g, float *x, const float *by) {
    struct cairn_device *d = device_of(g);
    const struct cairn__item item = {.n = shard_n(g), .dst = x, .x = x};
    if (by) d->passes->scale(d, &item, 1, CAIRN_F32, CAIRN_F32, by, NULL);
}

/* sum (+)= n elements of the slot, unscaled. */
static void add_slot(const struct cairn__grad *g, size_t n, float *sum, const void *slot, bool is_there,
                     uint32_t *found) {
    struct cairn_device *d = device_of(g);
    const struct cairn__item item = {.n = n, .dst = sum, .x = slot, .found = found};
    if (is_there) {
        add(g, n, sum, slot, g->param->dtype, factor_of(g), sum, found);
    } else {
        d->passes->scale(d, &item, 1, CAIRN_F32, g->param->dtype, factor_of(g), NULL);
    }
}

/* Raises no flag, since unsynced gradients are not checked. An infinity remains one, and is found after the
 * reduction. */
static cairn_status add_to_unsynced(struct cairn__grad *g) {
    cairn_status st = CAIRN_OK;
    const size_t n = g->param->n;
    TRY(make_sum(g, &g->unsynced_sum, n, "without synchronising"));
    add_slot(g, n, g->unsynced_sum, g->memory, has_unsynced_sum(g), NULL);
    g->unsynced = was_used(g) ? CAIRN__UNSYNCED_USED_KEPT : CAIRN__UNSYNCED_KEPT;
    g->slot = CAIRN__SLOT_EMPTY;
out:
    return st;
}

/* An overflow found by the addition raises the slot's flag, or the sum's if the slot was checked before, so that one
 * overflow is not counted twice for the last backward. */
cairn_status cairn__grad_accumulate(struct cairn__grad *g) {
    cairn_status st = CAIRN_OK;
    if (!is_written(g)) return CAIRN_OK;
    if (g->slot == CAIRN__SLOT_UNSYNCED) return add_to_unsynced(g);
    TRY(cairn__param_set_make_flags(g->param->set));
    TRY(make_sum(g, &g->sum, shard_n(g), "over several backwards"));
    const bool is_checked = g->slot == CAIRN__SLOT_CHECKED || g->param->is_sharded;
    add_slot(g, shard_n(g), g->sum, shard_slot(g), is_accumulated(g), is_checked ? sum_flag_of(g) : flag_of(g));
    *(is_checked ? &g->sum_flag_touched : &g->flag_touched) = true;
    g->accumulated = CAIRN__ACCUMULATED_CHECKED;
    g->slot = CAIRN__SLOT_EMPTY;
out:
    return st;
}

cairn_status cairn__grad_accumulate_at(struct cairn__grad *g, const struct cairn__loss_scale *scale) {
    return g->scale == scale ? cairn__grad_accumulate(g) : CAIRN_OK;
}

static void swap_sums(struct cairn__grad *g) {
    float *sum = g->sum;
    g->sum = g->unsynced_sum;
    g->unsynced_sum = sum;
}

/* Undoes cairn__grad_use_unsynced before a reduction: moves the used gradient from the accumulated sum back to the
 * unsynced sum. */
static void give_back_used(struct cairn__grad *g) {
    if (!was_used(g)) return;
    const bool kept = has_unsynced_sum(g), summed = is_accumulated(g);
    if (summed && kept) add(g, g->param->n, g->unsynced_sum, g->sum, CAIRN_F32, NULL, g->unsynced_sum, NULL);
    if (summed && !kept) swap_sums(g);
    g->accumulated = CAIRN__ACCUMULATED_ABSENT;
    g->unsynced = kept || summed ? CAIRN__UNSYNCED_KEPT : CAIRN__UNSYNCED_NONE;
}

/* slot = round(unsynced * scale + slot). axpby adds f32 to any type, with a half slot as its x, so the sum is scaled in
 * place first, which rounds as axpby does. */
static void add_unsynced(struct cairn__grad *g) {
    struct cairn_device *d = device_of(g);
    const struct cairn__param *p = g->param;
    const float *scale = g->scale ? &g->scale->scale : NULL;
    give_back_used(g);
    if (!has_unsynced_sum(g)) return;
    if (p->dtype == CAIRN_F32) {
        add(g, p->n, g->memory, g->unsynced_sum, CAIRN_F32, scale, g->memory, NULL);
    } else {
        const struct cairn__item scaled = {.n = p->n, .dst = g->unsynced_sum, .x = g->unsynced_sum};
        const struct cairn__item sum = {.n = p->n, .dst = g->memory, .x = g->memory, .y = g->unsynced_sum};
        if (scale) d->passes->scale(d, &scaled, 1, CAIRN_F32, CAIRN_F32, scale, NULL);
        d->passes->axpby(d, &sum, 1, p->dtype, p->dtype, NULL, 1.0f, NULL);
    }
    if (p->value_type) d->passes->round(d, p->value_type, g->memory, g->memory, p->n);
    g->unsynced = CAIRN__UNSYNCED_NONE;
}

/* ---- backward ---- */

cairn_status cairn__grad_begin_write(struct cairn__grad *g, void **slot) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__grad_make_memory(g));
    if (g->clip) TRY(cairn__grad_unscale(g)); /* the coefficient must not apply to the next gradient */
    TRY(cairn__grad_accumulate(g));
    *slot = g->memory;
out:
    return st;
}

/* A clipping coefficient was computed from the accumulated sum, so it is applied to the sum and not to the new slot. */
static void set_written(struct cairn__grad *g) {
    if (is_accumulated(g)) multiply(g, g->sum, g->clip);
    g->slot = CAIRN__SLOT_WRITTEN;
    g->scale = g->param->set->scale;
    g->clip = NULL;
    g->pending = true;
}

void cairn__grad_mark_written(struct cairn__grad *g) {
    const struct cairn_param_set *set = g->param->set;
    const bool was_pending = g->pending;
    set_written(g);
    if (set->unsynced && set->spares_unsynced) {
        g->slot = CAIRN__SLOT_EMPTY;
        g->pending = was_pending;
    } else if (set->unsynced) {
        g->slot = CAIRN__SLOT_UNSYNCED;
    } else {
        add_unsynced(g);
    }
}

cairn_status cairn__grad_write_unreached(struct cairn__grad *g) {
    cairn_status st = CAIRN_OK;
    void *slot = NULL;
    if (g->slot == CAIRN__SLOT_UNSYNCED && g->unsynced == CAIRN__UNSYNCED_NONE && g->scale == g->param->set->scale) {
        /* The slot already holds the gradient. */
        g->slot = CAIRN__SLOT_WRITTEN;
        return CAIRN_OK;
    }
    TRY(cairn__grad_begin_write(g, &slot));
    device_of(g)->passes->fill(device_of(g), g->param->dtype, slot, g->param->n, 0.0f);
    set_written(g);
    add_unsynced(g);
out:
    return st;
}

void cairn__grad_join_reduction(struct cairn__grad *g) {
    set_written(g);
}

void cairn__grad_drop(struct cairn__grad *g) {
    g->slot = CAIRN__SLOT_EMPTY;
}

void cairn__grad_fail(struct cairn__grad *g) {
    g->incomplete = true;
}

/* ---- overflow ---- */

bool cairn__grad_list_slot(struct cairn__grad *g, cairn_dtype dtype, struct cairn__item *item) {
    const struct cairn__param *p = g->param;
    if (g->slot != CAIRN__SLOT_WRITTEN || p->dtype != dtype) return false;
    if (p->set->only_unsynced || cairn__param_is_in_flight(p)) return false;
    *item = (struct cairn__item){.n = shard_n(g), .x = shard_slot(g), .found = flag_of(g)};
    g->slot = CAIRN__SLOT_CHECKED;
    g->flag_touched = true;
    return true;
}

bool cairn__grad_list_accumulated(struct cairn__grad *g, struct cairn__item *item) {
    if (g->accumulated != CAIRN__ACCUMULATED_UNCHECKED || g->param->set->only_unsynced) return false;
    *item = (struct cairn__item){.n = shard_n(g), .x = g->sum, .found = sum_flag_of(g)};
    g->accumulated = CAIRN__ACCUMULATED_CHECKED;
    g->sum_flag_touched = true;
    return true;
}

void cairn__grad_set_checked(struct cairn__grad *g) {
    if (g->slot == CAIRN__SLOT_WRITTEN) g->slot = CAIRN__SLOT_CHECKED;
}

bool cairn__grad_note(struct cairn__grad *g) {
    if (g->param->set->only_unsynced || !cairn__grad_is_synced(g)) return false;
    g->noted = true;
    return true;
}

/* If the slot has been accumulated since its flag was raised, x is the accumulated sum. For a sharded gradient each
 * rank counts its shard, and the host adds up (amp/guard.h), which would have to wait for a GPU. */
static bool is_countable(const struct cairn__grad *g) {
    return !g->param->is_sharded || cairn__is_on_host(device_of(g));
}

bool cairn__grad_take_flag(struct cairn__grad *g, struct cairn__taken *taken) {
    if (g->param->set->only_unsynced || !g->flag_touched) return false;
    const void *x = is_written(g) ? shard_slot(g) : is_accumulated(g) ? g->sum : NULL;
    *taken = (struct cairn__taken){.n = shard_n(g),
                                   .x = is_countable(g) ? x : NULL,
                                   .dtype = is_written(g) ? g->param->dtype : CAIRN_F32,
                                   .flag = flag_of(g)};
    g->flag_touched = false;
    return true;
}

bool cairn__grad_take_accumulated_flag(struct cairn__grad *g, struct cairn__taken *taken) {
    if (!g->sum_flag_touched) return false;
    *taken = (struct cairn__taken){.n = shard_n(g),
                                   .x = is_accumulated(g) && is_countable(g) ? g->sum : NULL,
                                   .dtype = CAIRN_F32,
                                   .flag = sum_flag_of(g)};
    g->sum_flag_touched = false;
    return true;
}

void cairn__grad_touch_flags(struct cairn__grad *g) {
    g->flag_touched = g->sum_flag_touched = true;
}

void cairn__grad_touch_sum_flag(struct cairn__grad *g) {
    g->sum_flag_touched = true;
}

void cairn__grad_drop_agreed_flags(struct cairn__grad *g) {
    g->agreed = false;
}

bool cairn__grad_has_touched_flags(const struct cairn__grad *g) {
    return g->flag_touched || g->sum_flag_touched;
}

/* While a graph is recorded both are lowered in any case: they may be raised in a replay. */
void cairn__grad_lower_flags(struct cairn__grad *g) {
    struct cairn_device *d = device_of(g);
    if (!g->param->set->flags) return;
    if (g->flag_touched || d->capturing) d->passes->clear_flags(d, flag_of(g), 1);
    if (g->sum_flag_touched || d->capturing) d->passes->clear_flags(d, sum_flag_of(g), 1);
}

static void copy_flag(const struct cairn__grad *g, size_t to, size_t from) {
    uint32_t *const flags = g->param->set->flags + g->param->index;
    (void)cairn__device_copy(device_of(g), flags + to, flags + from, sizeof(*flags)); /* as a pass */
}

void cairn__grad_save_agreed_flags(struct cairn__grad *g) {
    const size_t n = g->param->set->flags_count;
    copy_flag(g, 2 * n, 0);
    copy_flag(g, 3 * n, n);
    g->agreed = true;
}

/* ---- step ---- */

/* Steps and clipping then find an overflow through the flag of the last backward, so that the scaler of that loss is
 * updated. */
cairn_status cairn__grad_use_unsynced(struct cairn__grad *g) {
    cairn_status st = CAIRN_OK;
    struct cairn_device *d = device_of(g);
    const bool kept = has_unsynced_sum(g);
    struct cairn_param_set *const set = g->param->set;
    if (g->param->is_sharded && (kept || g->slot == CAIRN__SLOT_UNSYNCED))
        return cairn__fail(
            CAIRN_ESTATE,
            "the gradient of '%s' is unsynced, and ranks share its update (ddp_options.shard_optimizer): "
            "run a synchronised backward before a call that uses gradients",
            g->param->name);
    set->used_unsynced |= set->only_unsynced || kept || g->slot == CAIRN__SLOT_UNSYNCED;
    set->only_unsynced = false;
    if (kept) TRY(cairn__param_set_make_flags(g->param->set));
    if (kept || g->slot == CAIRN__SLOT_UNSYNCED) g->unsynced = CAIRN__UNSYNCED_USED;
    if (g->slot == CAIRN__SLOT_UNSYNCED) g->slot = CAIRN__SLOT_WRITTEN;
    if (!kept) return CAIRN_OK;
    if (is_accumulated(g)) {
        add(g, g->param->n, g->sum, g->unsynced_sum, CAIRN_F32, NULL, g->sum, flag_of(g));
    } else {
        const struct cairn__item item = {.n = g->param->n, .x = g->unsynced_sum, .found = flag_of(g)};
        d->passes->check(d, &item, 1, CAIRN_F32, NULL);
        swap_sums(g);
    }
    g->accumulated = CAIRN__ACCUMULATED_CHECKED;
    g->flag_touched = true;
out:
    return st;
}

cairn_status cairn__grad_prepare_read(struct cairn__grad *g, struct cairn__grad_view *view) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__grad_use_unsynced(g));
    if (is_accumulated(g)) TRY(cairn__grad_accumulate(g));
    *view = cairn__grad_peek(g);
out:
    return st;
}

uint32_t *cairn__grad_set_clip(struct cairn__grad *g, const float *coefficient) {
    const bool is_sum = is_accumulated(g) || g->param->is_sharded;
    if (g->slot == CAIRN__SLOT_WRITTEN) g->slot = CAIRN__SLOT_CHECKED;
    if (is_accumulated(g)) g->accumulated = CAIRN__ACCUMULATED_CHECKED;
    *(is_sum ? &g->sum_flag_touched : &g->flag_touched) = true;
    g->noted = true;
    g->clip = coefficient;
    return is_sum ? sum_flag_of(g) : flag_of(g);
}

cairn_status cairn__grad_unscale(struct cairn__grad *g) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__grad_use_unsynced(g));
    if (is_accumulated(g) || g->param->dtype != CAIRN_F32) TRY(cairn__grad_accumulate(g));
    if (is_written(g)) {
        multiply(g, shard_slot(g), factor_of(g));
        multiply(g, shard_slot(g), g->clip);
        g->scale = NULL;
        g->clip = NULL;
    } else if (is_accumulated(g)) {
        multiply(g, g->sum, g->clip);
        g->clip = NULL;
    }
out:
    return st;
}

float *cairn__grad_unscaled_memory(const struct cairn__grad *g) {
    return is_accumulated(g) ? g->sum : is_written(g) ? shard_slot(g) : NULL;
}

void cairn__grad_consume(struct cairn__grad *g) {
    if (g->slot == CAIRN__SLOT_CHECKED && !g->param->is_sharded) g->slot = CAIRN__SLOT_WRITTEN;
    if (is_accumulated(g)) g->accumulated = CAIRN__ACCUMULATED_UNCHECKED;
    g->noted = g->pending = false;
    g->clip = NULL;
    if (!g->agreed) return;
    const size_t n = g->param->set->flags_count;
    copy_flag(g, 0, 2 * n);
    copy_flag(g, n, 3 * n);
    cairn__grad_touch_flags(g);
}

void cairn__grad_release(struct cairn__grad *g) {
    if (g->clip && cairn__grad_unscale(g) != CAIRN_OK)
        cairn__log(CAIRN_LOG_ERROR, "the gradient of '%s' is no longer clipped: %s", g->param->name,
                   cairn_last_error());
    g->clip = NULL;
    g->noted = false;
}

void cairn__grad_forget(struct cairn__grad *g) {
    g->slot = CAIRN__SLOT_EMPTY;
    g->accumulated = CAIRN__ACCUMULATED_ABSENT;
    g->unsynced = CAIRN__UNSYNCED_NONE;
    g->clip = NULL;
    g->flag_touched = g->sum_flag_touched = g->agreed = g->incomplete = g->noted = g->pending = false;
}

void cairn__grad_forget_unsynced(struct cairn__grad *g) {
    if (g->slot == CAIRN__SLOT_UNSYNCED) g->slot = CAIRN__SLOT_EMPTY;
    g->unsynced = CAIRN__UNSYNCED_NONE;
}
