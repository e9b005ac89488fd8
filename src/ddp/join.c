/* Uneven inputs: a rank that has none takes the same steps as the others, with gradients of zero, so that there is one
 * way through a step, in which ranks cannot diverge. */
#include "comm/group.h"
#include "core/status.h"
#include "ddp/context.h"

/* How many ranks have input, and the lowest of those that have, and of those that have none; -1 = none. */
struct census {
    int active, first, first_without;
};

static cairn_status count_ranks(const struct ddp_context *d, bool have_input, struct census *out) {
    uint8_t mine = have_input, all[CAIRN__MAX_RANKS];
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_exchange(d->channel, all, &mine, sizeof(mine)));
    *out = (struct census){0, -1, -1};
    for (int r = cairn_group_size(d->channel); r-- > 0;) {
        out->active += all[r];
        *(all[r] ? &out->first : &out->first_without) = r;
    }
out:
    return st;
}

cairn_status ddp_join(ddp_context *ddp, int have_input, int *active) {
    REQUIRE(ddp && active, CAIRN_EINVAL, "ddp_join: ddp and active must be set");
    struct census c;
    cairn_status st = CAIRN_OK;
    TRY(cairn__ddp_check_between("ddp_join", ddp)); /* buckets under way have their divisor */
    TRY(count_ranks(ddp, have_input != 0, &c));
    const int p = cairn_group_size(ddp->channel);
    REQUIRE(ddp->options.join_throw_on_early_termination != CAIRN_ON || c.active == 0 || c.active == p, CAIRN_ESTATE,
            "ddp_join: rank %d has no input left, %d of %d ranks have some, and "
            "ddp_options.join_throw_on_early_termination is on",
            c.first_without, c.active, p);
    ddp->active = c.active;
    ddp->buffers_root = c.active > 0 ? c.first : 0;
    *active = c.active;
out:
    return st;
}

cairn_tensor *ddp_zero_loss(ddp_context *ddp) {
    if (!ddp || !ddp->model) {
        (void)cairn__fail(CAIRN_EINVAL, ddp ? "ddp_zero_loss: the parameters are in your own memory: write zeros to "
                                              "their gradients and declare them (ddp_grads_ready)"
                                            : "ddp_zero_loss: ddp is NULL");
        return NULL;
    }
    cairn__ddp_times_forward_begin(&ddp->times);
    cairn_tensor *loss = cairn__ddp_before_forward(ddp) == CAIRN_OK ? cairn__ddp_zero_loss(ddp->model) : NULL;
    cairn__ddp_times_forward_end(&ddp->times);
    if (!loss) return NULL;
    ddp->zero_loss = true;
    cairn__param_set_spare_unsynced(ddp->set, true);
    return loss;
}
