/* An optimizer's record of overflow before a step. It takes note of the flags of its gradients, and keeps the record
 * until the step, or until all gradients in it have been forgotten. */
#include "core/status.h"
#include "core/trace.h"
#include "optim/optim.h"

static struct cairn_device *device_of(const struct cairn_optimizer *o) {
    return o->env->device;
}

cairn_status cairn__optimizer_prepare(cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__params_use_unsynced(o->arrays.params, o->count));
    TRY(cairn__env_resolve(o->env));
    cairn__optimizer_forget_stale(o);
    TRY(cairn__optimizer_part_clip(o));
    for (size_t i = 0; i < o->count; i++) {
        struct cairn__grad *g = o->arrays.params[i]->gradient;
        if (cairn__grad_is_accumulated(g)) TRY(cairn__grad_accumulate(g));
    }
out:
    return st;
}

void cairn__optimizer_check(cairn_optimizer *o) {
    const uint64_t begin_ns = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn__params_check(device_of(o), o->arrays.params, o->count, o->arrays.plain);
    if (begin_ns) cairn__trace("optim", "overflow_check", (int64_t)o->last_read + 1, 0, begin_ns);
}

/* Sets the rank of an overflow: unknown (-1) once a listener has reduced the gradient over several ranks. */
static void address(const struct cairn_optimizer *o, size_t i, struct cairn__taken *taken) {
    const struct cairn__grad_listener *l = o->arrays.params[i]->set->listener;
    const bool is_sum = l && !l->is_alone && o->env->size > 1;
    taken->rank = is_sum ? -1 : o->env->rank;
    taken->to = &o->arrays.overflows[i];
}

static bool take(struct cairn_optimizer *o, size_t listed, uint32_t micro_batch, uint32_t *const *raises,
                 size_t num_raises) {
    struct cairn_device *d = device_of(o);
    if (listed) d->passes->take_flags(d, o->arrays.taken, listed, micro_batch, raises, num_raises);
    return listed > 0;
}

/* If no ranks add up gradients, only this rank's word can be raised. */
static size_t list_losses(struct cairn_optimizer *o, struct cairn_param_set *set, struct cairn__taken *taken) {
    if (!cairn__param_set_take_losses(set)) return 0;
    for (int r = 0; r < o->env->size; r++)
        taken[r] = (struct cairn__taken){.dtype = CAIRN_F32,
                                         .rank = r,
                                         .flag = &set->bad_losses[r],
                                         .to = &o->arrays.overflows[o->count]};
    return (size_t)o->env->size;
}

bool cairn__optimizer_take_flags(cairn_optimizer *o, uint32_t micro_batch, uint32_t *const *raises, size_t num_raises) {
    cairn__optimizer_forget_stale(o);
    size_t listed = 0;
    for (size_t i = 0; i < o->count; i++) {
        struct cairn__grad *g = o->arrays.params[i]->gradient;
        o->noted |= cairn__grad_note(g);
        if (cairn__grad_take_flag(g, &o->arrays.taken[listed])) address(o, i, &o->arrays.taken[listed++]);
    }
    for (size_t i = 0; i < o->num_sets; i++) {
        if (cairn__param_set_keeps_loss(o->sets[i])) cairn__param_set_save_loss(o->sets[i]);
        listed += list_losses(o, o->sets[i], &o->arrays.taken[listed]);
    }
    const bool taken = take(o, listed, micro_batch, raises, num_raises);
    for (size_t i = 0; i < o->num_sets; i++) {
        if (cairn__param_set_keeps_loss(o->sets[i])) cairn__param_set_restore_loss(o->sets[i]);
    }
    return taken;
}

bool cairn__optimizer_take_sums(cairn_optimizer *o, uint32_t micro_batch, uint32_t *const *raises, size_t num_raises) {
    size_t listed = 0;
    /* Ranks that share updates have each checked only their shards. If this fails, the group has failed and no step
     * follows. */
    for (size_t s = 0; s < o->num_sets; s++) {
        const struct cairn__sharers *sharers = cairn__param_set_sharers(o->sets[s]);
        if (sharers) (void)sharers->share_sum_flags(sharers->ctx);
    }
    for (size_t i = 0; i < o->count; i++) {
        struct cairn__taken *taken = &o->arrays.taken[listed];
        if (cairn__grad_take_accumulated_flag(o->arrays.params[i]->gradient, taken))
            address(o, i, &o->arrays.taken[listed++]);
    }
    return take(o, listed, micro_batch, raises, num_raises);
}

void cairn__optimizer_lower_skip(cairn_optimizer *o) {
    struct cairn_device *d = device_of(o);
    d->passes->clear_flags(d, &o->state->skip, 1);
    d->passes->clear_flags(d, (uint32_t *)o->arrays.overflows,
                           (o->count + 1) * (sizeof(o->arrays.overflows[0]) / sizeof(uint32_t)));
    o->noted = false;
}

void cairn__optimizer_forget_found(cairn_optimizer *o) {
    cairn__optimizer_lower_skip(o);
    cairn__params_consume(o->arrays.params, o->count);
}
