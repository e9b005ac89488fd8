/* LARC: scales each parameter's gradient by the ratio of the norms of weights and gradient, before the update of any
 * kind that takes it (You, Gitman and Ginsburg, 2017). The ratio is computed with the scalars of the update. */
#include "core/options.h"
#include "core/status.h"
#include "optim/optim.h"

#define GROUPS "cairn_optimizer_set_larc"

cairn_status cairn__check_larc(const char *call, const struct cairn__larc *larc) {
    cairn_status st = CAIRN_OK;
    if (!larc->is_on) return CAIRN_OK;
    TRY(cairn__check_rate(call, "trust_coefficient", larc->trust));
    TRY(cairn__check_rate(call, "eps", larc->eps));
    REQUIRE(larc->trust > 0, CAIRN_EINVAL,
            "%s: trust_coefficient is 0, so nothing would move; start from "
            "CAIRN_LARC_OPTIONS_INIT",
            call);
out:
    return st;
}

/* Groups [first, end). */
static cairn_status set_groups(cairn_optimizer *o, size_t first, size_t end, const struct cairn_larc_options *options) {
    cairn_status st = CAIRN_OK;
    struct cairn_larc_options h = CAIRN_LARC_OPTIONS_INIT;
    struct cairn__larc larc = {.is_on = false};
    for (size_t g = first; g < end; g++) {
        REQUIRE(o->groups[g].kind->takes_larc, CAIRN_EINVAL,
                GROUPS
                ": %s does not follow the size of its gradients, or has a rate by norms of its own; LARC is for SGD, "
                "Adam, AdamW and Adagrad",
                o->groups[g].kind->name);
    }
    REQUIRE(o->env->graphs == 0, CAIRN_ESTATE,
            GROUPS ": a captured graph has recorded the update; destroy the graph first");
    TRY(cairn__device_refuse_recording(o->env->device, "set LARC before the graph is captured"));
    if (options) {
        TRY(cairn__options_read(&h, sizeof(h), options, "cairn_larc_options"));
        larc = (struct cairn__larc){.trust = h.trust_coefficient,
                                    .eps = h.eps,
                                    .is_on = true,
                                    .scales = h.clip == CAIRN_OFF};
        TRY(cairn__check_larc(GROUPS, &larc));
    }
    for (size_t g = first; g < end; g++) o->groups[g].rule.larc = larc;
out:
    return st;
}

cairn_status cairn_optimizer_set_larc(cairn_optimizer *optimizer, const struct cairn_larc_options *options) {
    REQUIRE(optimizer, CAIRN_EINVAL, GROUPS ": optimizer is NULL");
    return set_groups(optimizer, 0, optimizer->num_groups, options);
}

cairn_status cairn_optimizer_set_group_larc(cairn_optimizer *optimizer, int group,
                                            const struct cairn_larc_options *options) {
    REQUIRE(optimizer, CAIRN_EINVAL, "cairn_optimizer_set_group_larc: optimizer is NULL");
    REQUIRE(group >= 0 && (size_t)group < optimizer->num_groups, CAIRN_EINVAL,
            "cairn_optimizer_set_group_larc: group is %d; it must be from 0 to %zu", group, optimizer->num_groups - 1);
    return set_groups(optimizer, (size_t)group, (size_t)group + 1, options);
}
