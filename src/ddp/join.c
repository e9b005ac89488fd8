/* Uneven inputs: a rank without input takes the same steps as the others, with gradients of zero. All ranks run the
 * same calls in a step and cannot diverge. */
#include "comm/group.h"
#include "core/status.h"
#include "ddp/context.h"

cairn_status ddp_join(ddp_context *ddp, int have_input, int *active) {
    REQUIRE(ddp && active, CAIRN_EINVAL, "ddp_join: ddp and active must be set");
    uint8_t mine = have_input != 0, all[CAIRN__MAX_RANKS];
    int num_active = 0, first = -1, first_without = -1; /* the lowest ranks with input, and without; -1 = none */
    cairn_status st = CAIRN_OK;
    TRY(cairn__ddp_check_between("ddp_join", ddp)); /* buckets in flight have their divisor already */
    TRY(cairn__group_exchange(ddp->channel, all, &mine, sizeof(mine)));
    const int p = cairn_group_size(ddp->channel);
    for (int r = p; r-- > 0;) {
        num_active += all[r];
        *(all[r] ? &first : &first_without) = r;
    }
    REQUIRE(ddp->options.join_throw_on_early_termination != CAIRN_ON || num_active == 0 || num_active == p,
            CAIRN_ESTATE,
            "ddp_join: rank %d has no input left, %d of %d ranks have some, and "
            "ddp_options.join_throw_on_early_termination is on",
            first_without, num_active, p);
    ddp->active = num_active;
    ddp->buffers_root = num_active > 0 ? first : 0;
    *active = num_active;
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
