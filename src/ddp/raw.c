/* Parameters in the user's memory: the user declares gradients ready, and waits for their averages. To the reducer the
 * first declaration begins a backward, and ddp_wait ends it. */
#include "comm/group.h"
#include "core/status.h"
#include "ddp/context.h"

cairn_status ddp_create_params(cairn_param_set *set, cairn_group *group, const struct ddp_options *options,
                               ddp_context **out) {
    REQUIRE(set && group && out, CAIRN_EINVAL, "ddp_create_params: set, group and out must be set");
    REQUIRE(set->is_users, CAIRN_EINVAL,
            "ddp_create_params: the set belongs to a module; give the module to ddp_create");
    const struct cairn__ddp_request request = {"ddp_create_params", NULL, set, group, options};
    return cairn__ddp_make(&request, out);
}

static cairn_status check_context(const char *call, const ddp_context *d) {
    REQUIRE(d, CAIRN_EINVAL, "%s: ddp is NULL", call);
    REQUIRE(!d->model, CAIRN_EINVAL,
            "%s: the context was made for a module; cairn_backward declares and averages its gradients", call);
    return CAIRN_OK;
}

/* Before anything is sent, so that all ranks fail with it. */
static cairn_status check_in_graph(const struct ddp_context *d, size_t first, size_t count) {
    for (size_t i = first; i < d->set->count && i - first < count; i++) {
        const size_t s = d->slot_of[i];
        REQUIRE(s == SIZE_MAX || d->slots[s].in_graph, CAIRN_ESTATE,
                "ddp_grads_ready: on rank %d, the gradient of '%s' was declared, but not before the first ddp_wait, "
                "with ddp_options.static_graph; where the graph changes, set find_unused_parameters instead",
                cairn_group_rank(d->channel), d->set->params[i]->name);
    }
    return CAIRN_OK;
}

/* After a failure declarations are ignored until ddp_wait, which returns the first failure. */
static cairn_status repeat_cause(const struct ddp_context *d) {
    return d->failed == CAIRN_OK ? CAIRN_OK : cairn__fail(d->failed, "%s", d->cause);
}

cairn_status ddp_grads_ready(ddp_context *ddp, size_t first, size_t count) {
    cairn_status st = CAIRN_OK;
    TRY(check_context("ddp_grads_ready", ddp));
    TRY(repeat_cause(ddp));
    if (ddp->knows_graph) st = check_in_graph(ddp, first, count);
    if (st != CAIRN_OK && cairn__group_progress(ddp->channel) != CAIRN_OK)
        st = cairn__last_status(); /* the failure that killed the channel comes first */
    if (st == CAIRN_OK) return cairn__grads_ready("ddp_grads_ready", ddp->set, first, count);
    cairn__param_set_abort(ddp->set);
out:
    return st;
}

/* ---- waiting ---- */

/* Unsynced gradients count as well. */
static bool has_come(const struct ddp_context *d, size_t s) {
    return d->slots[s].arrived || cairn__grad_is_unsynced(d->slots[s].param->gradient);
}

static bool is_missing(const struct ddp_context *d, size_t s) {
    return !has_come(d, s);
}

static bool is_lacking(const struct ddp_context *d, size_t s) {
    return !has_come(d, s) && d->slots[s].in_graph;
}

static cairn_status check_declared(struct ddp_context *d) {
    char names[CAIRN__DDP_NAMES_NBYTES];
    if (d->options.static_graph == CAIRN_ON) {
        for (size_t s = 0; !d->knows_graph && s < d->num_slots; s++) d->slots[s].in_graph = has_come(d, s);
        d->knows_graph = true;
        REQUIRE(cairn__ddp_name_slots(d, is_lacking, names, sizeof(names)) == 0, CAIRN_ESTATE,
                "ddp_wait: on rank %d, the gradient of %s was not declared, but was before the first ddp_wait, with "
                "ddp_options.static_graph; where the graph changes, set find_unused_parameters instead",
                cairn_group_rank(d->channel), names);
        return CAIRN_OK;
    }
    if (d->options.find_unused_parameters == CAIRN_ON) return CAIRN_OK;
    const size_t count = cairn__ddp_name_slots(d, is_missing, names, sizeof(names));
    REQUIRE(count == 0, CAIRN_ESTATE,
            "ddp_wait: on rank %d, the gradient%s of %s %s not been declared since the last ddp_wait; declare every "
            "parameter's, or set ddp_options.find_unused_parameters where some have none",
            cairn_group_rank(d->channel), count > 1 ? "s" : "", names, count > 1 ? "have" : "has");
    return CAIRN_OK;
}

/* A backward that has failed already keeps its first error. */
static cairn_status settle(struct ddp_context *d) {
    struct cairn_param_set *set = d->set;
    cairn_status st = CAIRN_OK;
    if (set->unsynced) return cairn__param_set_settle(set);
    if (d->status == CAIRN_OK && cairn__group_progress(d->channel) == CAIRN_OK) {
        TRY(check_declared(d));
        if (!set->in_backward) {
            /* A rank may have no gradient at all, and so not have called amp_next_scale for the scale of the others. */
            if (set->losses) TRY(set->losses->take_scale(set->losses));
            TRY(cairn__param_set_begin_backward(set, set->backward + 1, set->scale));
        }
    } else if (!set->in_backward) {
        return cairn__last_status();
    }
    TRY(cairn__param_set_settle(set));
out:
    return st;
}

cairn_status ddp_wait(ddp_context *ddp) {
    cairn_status st = CAIRN_OK;
    TRY(check_context("ddp_wait", ddp));
    st = repeat_cause(ddp);
    if (st == CAIRN_OK) {
        st = settle(ddp);
        if (st != CAIRN_OK)
            cairn__param_set_abort(ddp->set); /* the other ranks wait for gradients that will not come */
    }
    ddp->failed = CAIRN_OK;
out:
    return st;
}
