/* Finds the ranks whose own gradients were infinite or NaN, for the message about a skipped step.
 *
 * A reduction in place overwrites the ranks' own gradients, and checking them before makes it a third slower. So ddp
 * checks them only when an overflow is likely: in the first backwards, after the loss scale has grown, and after a
 * skipped step. An overflow at another time has its parameter named the first time, and its ranks from the second time
 * on. All ranks decide alike, from values that are equal on all. */
#include "comm/group.h"
#include "core/status.h"
#include "ddp/context.h"

enum { CHECKS = 8 /* backwards */ };

static bool can_check(const struct ddp_context *d) {
    const bool skips = d->set->scale || d->set->amp; /* steps may be skipped */
    return skips && cairn__group_finds_nonfinite(d->channel) && cairn_group_size(d->channel) > 1 && !d->hook.begin;
}

static bool has_gradients(const struct ddp_context *d) {
    for (size_t s = 0; s < d->num_slots; s++) {
        if (cairn__grad_is_synced(d->slots[s].param->gradient)) return true;
    }
    return false;
}

void cairn__ddp_nonfinite_begin(struct ddp_context *d) {
    if (!has_gradients(d)) {
        d->nonfinite = (struct cairn__nonfinite){0};
        d->blind = false;
    }
    d->checks_sources = can_check(d);
    if (d->checks_sources) {
        const float factor = d->set->scale ? d->set->scale->factor : 1; /* in host memory, as such backends are */
        if (!d->has_reduced || factor < d->last_factor) d->checks_left = CHECKS;
        d->last_factor = factor;
        d->checks_sources = d->checks_left > 0;
        d->checks_left -= d->checks_sources;
    }
    d->blind |= !d->checks_sources;
}

struct cairn__nonfinite *cairn__ddp_nonfinite_sources(struct ddp_context *d) {
    return d->checks_sources ? &d->nonfinite : NULL;
}

/* Unsynced gradients: each rank decides on its own step then, and others may not skip theirs. */
static bool is_unsynced(const struct ddp_context *d) {
    for (size_t s = 0; s < d->num_slots; s++) {
        const struct cairn__grad_states is = cairn__grad_states(d->slots[s].param->gradient);
        const bool is_taken = is.unsynced == CAIRN__UNSYNCED_USED || is.unsynced == CAIRN__UNSYNCED_USED_KEPT;
        if (is.slot == CAIRN__SLOT_UNSYNCED || is_taken) return true;
    }
    return false;
}

cairn_status cairn__ddp_nonfinite_ranks(void *ctx, struct cairn__ranks *ranks, bool *found, bool *checked) {
    struct ddp_context *d = ctx;
    struct cairn__nonfinite all[CAIRN__MAX_RANKS];
    cairn_status st = CAIRN_OK;
    *checked = false;
    if (is_unsynced(d)) return CAIRN_OK; /* of this rank alone: the others must go on to decide alike */
    d->checks_left = CHECKS;
    if (d->blind) return CAIRN_OK;
    if (!cairn__group_checks_results(d->channel)) { /* each rank has seen the sources of what it reduced itself */
        TRY(cairn__group_exchange(d->channel, all, &d->nonfinite, sizeof(d->nonfinite)));
        for (int r = 0; r < cairn_group_size(d->channel); r++) cairn__nonfinite_unite(&d->nonfinite, &all[r]);
    }
    *checked = true;
    *found |= d->nonfinite.found != 0;
    for (int r = 0; r < cairn_group_size(d->channel); r++) {
        if (cairn__ranks_has(&d->nonfinite.ranks, r)) cairn__ranks_add(ranks, cairn_group_env_rank(d->channel, r));
    }
out:
    return st;
}
