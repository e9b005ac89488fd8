/* Gradients that stay on this rank for a while: no_sync, and apex's Reducer. Parameters keep them unsynced
 * (src/param/grad.h). */
#include "comm/group.h"
#include "core/options.h"
#include "core/status.h"
#include "ddp/context.h"
#include "kernels/kernels.h"

#define REDUCTION UINT64_MAX /* a number that nn gives to no backward */

cairn_status cairn__ddp_check_between(const char *call, const struct ddp_context *d) {
    REQUIRE(!d->set->in_backward, CAIRN_ESTATE,
            d->model ? "%s: called within a backward; it holds for the next forward and backward"
                     : "%s: gradients were declared since the last ddp_wait; call ddp_wait first",
            call);
    return CAIRN_OK;
}

static cairn_status keep_unsynced(struct ddp_context *d, bool on) {
    d->no_sync = on;
    return cairn__param_set_keep_unsynced(d->set, on);
}

cairn_status ddp_no_sync(ddp_context *ddp, int on) {
    REQUIRE(ddp, CAIRN_EINVAL, "ddp_no_sync: ddp is NULL");
    REQUIRE(!ddp->reducer, CAIRN_EINVAL,
            "ddp_no_sync: a context of ddp_reducer_create keeps gradients on this rank until ddp_reduce; leave "
            "ddp_no_sync out");
    cairn_status st = CAIRN_OK;
    TRY(cairn__ddp_check_between("ddp_no_sync", ddp));
    TRY(keep_unsynced(ddp, cairn__is_on(on)));
out:
    return st;
}

/* ---- apex's Reducer ---- */

/* Source: apex/parallel/distributed.py, class Reducer. */
cairn_status ddp_reducer_create(cairn_module *model, cairn_group *group, const struct ddp_options *options,
                                ddp_context **out) {
    REQUIRE(model && group && out, CAIRN_EINVAL, "ddp_reducer_create: model, group and out must be set");
    const struct cairn__ddp_request request = {"ddp_reducer_create", model, cairn_module_params(model), group, options};
    cairn_status st = CAIRN_OK;
    REQUIRE(!options || options->struct_size < CAIRN__SIZE_THROUGH(struct ddp_options, shard_optimizer) ||
                options->shard_optimizer != CAIRN_ON,
            CAIRN_ENOTSUP, "ddp_reducer_create: ddp_options.shard_optimizer is for ddp_create; leave it out");
    TRY(cairn__ddp_make(&request, out));
    (*out)->reducer = (*out)->rebuilt = true; /* gradients do not arrive one by one */
    (*out)->set->backward = REDUCTION;
    TRY(keep_unsynced(*out, true));
out:
    return st;
}

/* All ranks send their gradients at one loss scale, which a rank knows from its last loss. */
static cairn_status check_had_backward(const struct ddp_context *d) {
    uint8_t all[CAIRN__MAX_RANKS], mine = d->set->backward != REDUCTION;
    int with = -1, without = -1;
    if (d->set->env->device->capturing) return CAIRN_OK; /* known from runs before the recording */
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_exchange(d->channel, all, &mine, sizeof(mine)));
    for (int r = cairn_group_size(d->channel); r-- > 0;) *(all[r] ? &with : &without) = r;
    REQUIRE(with < 0 || without < 0, CAIRN_ESTATE,
            "ddp_reduce: rank %d has had no backward since the last ddp_reduce, but rank %d has; give a rank without "
            "input the loss of ddp_zero_loss",
            without, with);
out:
    return st;
}

/* Runs a backward that reaches nothing, in which only the unsynced gradients take part. */
static cairn_status run_backward_of_unsynced(struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    struct cairn_param_set *set = d->set;
    TRY(cairn__param_set_begin_backward(set, REDUCTION, set->scale));
    TRY(cairn__param_set_settle(set));
out:
    if (st != CAIRN_OK) cairn__param_set_abort(set);
    return st;
}

cairn_status ddp_reduce(ddp_context *ddp) {
    REQUIRE(ddp, CAIRN_EINVAL, "ddp_reduce: ddp is NULL");
    REQUIRE(ddp->reducer, CAIRN_EINVAL,
            "ddp_reduce: the context was not made by ddp_reducer_create; its gradients are reduced by %s",
            ddp->model ? "cairn_backward" : "ddp_wait");
    cairn_status st = cairn__ddp_check_between("ddp_reduce", ddp);
    if (st == CAIRN_OK) st = check_had_backward(ddp);
    if (st == CAIRN_OK) st = keep_unsynced(ddp, false);
    if (st == CAIRN_OK) st = run_backward_of_unsynced(ddp);
    const cairn_status kept = keep_unsynced(ddp, true);
    return st == CAIRN_OK ? kept : st;
}
