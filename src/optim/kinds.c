/* The calls that all kinds of optimizers have. */
#include "core/status.h"
#include "optim/optim.h"

cairn_status cairn__kind_create(const struct cairn__optimizer_kind *kind, cairn_param_set *set, const void *options,
                                cairn_optimizer **out) {
    struct cairn__param_group group;
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_set(kind->name, set, out));
    TRY(kind->group_of(kind, options, &group));
    TRY(cairn__optimizer_create(kind, set, NULL, 0, &group, out));
out:
    return st;
}

cairn_status cairn__kind_create_over(const struct cairn__optimizer_kind *kind, cairn_param_set *set,
                                     const size_t *indices, size_t count, const void *options, cairn_optimizer **out) {
    struct cairn__param_group group;
    cairn_status st = CAIRN_OK;
    REQUIRE(indices, CAIRN_EINVAL, "%s: indices is NULL; the call without _over takes all parameters of a set",
            kind->name);
    TRY(cairn__check_set(kind->name, set, out));
    TRY(kind->group_of(kind, options, &group));
    TRY(cairn__optimizer_create(kind, set, indices, count, &group, out));
out:
    return st;
}

cairn_status cairn__kind_add_group(const struct cairn__optimizer_kind *kind, cairn_optimizer *optimizer,
                                   cairn_param_set *set, const size_t *indices, size_t count, const void *options) {
    struct cairn__param_group group;
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_set(kind->name, set, optimizer));
    TRY(kind->group_of(kind, options, &group));
    if (optimizer->kind->other == kind) group.kind = kind;
    TRY(cairn__optimizer_add_group(optimizer, group.kind ? optimizer->kind : kind, set, indices, count, &group));
out:
    return st;
}
