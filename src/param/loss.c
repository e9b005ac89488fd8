/* Losses that are infinite or NaN themselves. Their gradients may be finite (those of the mean of an infinity are), so
 * each rank records its bad losses before backward. The record is treated as the gradients are: kept while they are
 * unsynced, shared when they are reduced, taken by the optimizers, or forgotten. */
#include "core/status.h"
#include "param/param.h"

static size_t num_words(const struct cairn_param_set *set) {
    return (size_t)set->env->size;
}

cairn_status cairn__param_set_watch_losses(struct cairn_param_set *set) {
    struct cairn_device *d = set->env->device;
    if (set->bad_losses) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, (num_words(set) + 1) * sizeof(*set->bad_losses),
                            (void **)&set->bad_losses));
    d->passes->clear_flags(d, set->bad_losses, num_words(set) + 1);
out:
    return st;
}

void cairn__param_set_unwatch_losses(struct cairn_param_set *set) {
    cairn__device_free(set->env->device, set->bad_losses);
    set->bad_losses = NULL;
    set->losses_touched = false;
}

void cairn__param_set_forget_losses(struct cairn_param_set *set) {
    struct cairn_device *d = set->env->device;
    if (set->losses_touched) d->passes->clear_flags(d, set->bad_losses, num_words(set));
    set->losses_touched = false;
}

uint32_t *cairn__param_set_begin_loss(struct cairn_param_set *set) {
    if (!set->bad_losses) return NULL;
    set->losses_touched = set->loss_comes = true;
    return &set->bad_losses[set->env->rank];
}

void cairn__param_set_end_loss(struct cairn_param_set *set) {
    set->loss_comes = false;
}

cairn_status cairn__param_set_read_losses(const struct cairn_param_set *set, uint32_t *words) {
    return cairn__device_copy(set->env->device, words, set->bad_losses, num_words(set) * sizeof(*words));
}

cairn_status cairn__param_set_write_losses(struct cairn_param_set *set, const uint32_t *words) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_copy(set->env->device, set->bad_losses, words, num_words(set) * sizeof(*words)));
    set->losses_touched = true;
out:
    return st;
}

bool cairn__param_set_take_losses(struct cairn_param_set *set) {
    if (!set->losses_touched || set->only_unsynced) return false;
    set->losses_touched = cairn__param_set_keeps_loss(set);
    return true;
}

bool cairn__param_set_keeps_loss(const struct cairn_param_set *set) {
    if (!set->losses_touched || set->only_unsynced) return false;
    for (size_t i = 0; i < set->count; i++) {
        if (cairn__grad_is_unsynced(set->params[i]->gradient)) return true;
    }
    return false;
}

static void copy_word(const struct cairn_param_set *set, size_t to, size_t from) {
    (void)cairn__device_copy(set->env->device, &set->bad_losses[to], &set->bad_losses[from],
                             sizeof(*set->bad_losses)); /* as a pass */
}

void cairn__param_set_save_loss(const struct cairn_param_set *set) {
    copy_word(set, num_words(set), (size_t)set->env->rank);
}

void cairn__param_set_restore_loss(const struct cairn_param_set *set) {
    copy_word(set, (size_t)set->env->rank, num_words(set));
}
