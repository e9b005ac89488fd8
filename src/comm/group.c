/* The front of process groups: creates and destroys groups; their facts and memory. Collectives are in collective.c,
 * groups made from others in subgroup.c. */
#include <string.h>

#include "comm/deadlock.h"
#include "comm/front.h"
#include "core/log.h"
#include "core/status.h"
#include "kernels/kernels.h"

/* ---- creation ---- */

static cairn_status check_options(const struct cairn__group_create_options *o) {
    int row = -1;
    cairn_status st = CAIRN_OK;
    REQUIRE(o, CAIRN_EINVAL, "a group needs options");
    REQUIRE(o->size >= 1 && o->size <= CAIRN__MAX_RANKS, CAIRN_EINVAL, "a group of %d ranks; it can have 1 to %d",
            o->size, CAIRN__MAX_RANKS);
    REQUIRE(o->rank >= 0 && o->rank < o->size, CAIRN_EINVAL, "rank %d is not in a group of %d; ranks are 0 to %d",
            o->rank, o->size, o->size - 1);
    REQUIRE(o->timeout > 0, CAIRN_EINVAL, "a group's timeout is %g s; it must be positive", o->timeout);
    REQUIRE(o->meeting_timeout >= 0, CAIRN_EINVAL, "the timeout of a group's creation is %g s; it must be positive",
            o->meeting_timeout);
    TRY(cairn__backend_find(o->backend, &row));
    REQUIRE(o->size == 1 || row != CAIRN__BACKEND_SELF, CAIRN_EINVAL,
            "the group backend 'self' is for one rank, not %d; use auto", o->size);
    REQUIRE(o->size == 1 || (o->store && o->prefix), CAIRN_EINVAL,
            "a group of %d ranks needs a store and a key prefix to find each other", o->size);
    REQUIRE(!o->prefix || strlen(o->prefix) < sizeof(((struct cairn__family *)0)->prefix), CAIRN_EINVAL,
            "the key prefix of a group has %zu bytes; it can have %zu", strlen(o->prefix),
            sizeof(((struct cairn__family *)0)->prefix) - 1);
out:
    return st;
}

static cairn_status create(cairn_group *group, const struct cairn__group_create_options *options) {
    struct cairn__peers peers = {.rank = options->rank, .size = options->size, .listener = -1};
    cairn_status st = CAIRN_OK;
    if (options->size > 1) TRY(cairn__backend_meet(options, &peers));
    TRY(cairn__backend_choose(options, &peers, &group->backend));
    TRY(group->backend->create(group, options, &peers));
    if (group->backend->keeps_store || !options->rank_0_serves) cairn__peers_forget(&peers);
    if (!group->backend->keeps_store) group->family->store = NULL;
out:
    if (peers.all) cairn__peers_end(&peers);
    return st;
}

cairn_status cairn__group_create(const struct cairn__group_create_options *options, cairn_group **out) {
    cairn_group *group = NULL;
    cairn_status st = CAIRN_OK;
    TRY(check_options(options));
    TRY(cairn__family_make(options, &group));
    TRY(create(group, options));
    *out = group;
    return CAIRN_OK;
out:
    (void)cairn__group_destroy_root(&group);
    return st;
}

/* ---- the end ---- */

bool cairn__group_destroy_root(cairn_group **group) {
    if (!*group) return true;
    struct cairn__family *family = (*group)->family;
    int alive = 0;
    for (const cairn_group *g = family->groups; g; g = g->next) alive += g != *group;
    if (alive > 0) {
        cairn__log(CAIRN_LOG_ERROR,
                   "%d group%s made from the environment's by cairn_group_new or cairn_group_split %s alive, so it is "
                   "kept; destroy them first with cairn_group_destroy",
                   alive, alive > 1 ? "s" : "", alive > 1 ? "are" : "is");
        return false;
    }
    if (!cairn__group_was_forked(*group)) cairn__forget_stuck(*group);
    cairn__family_end(group);
    return true;
}

/* NCCL destroys a communicator only once no graph that recorded it is left. */
static cairn_status refuse_recorded(const cairn_group *group, const char *call) {
    const int graphs = group->recorded.graphs;
    REQUIRE(graphs == 0, CAIRN_ESTATE,
            "%s: %d graph%s alive in which collectives of the group are recorded; call cairn_graph_destroy first", call,
            graphs, graphs > 1 ? "s are" : " is");
    return CAIRN_OK;
}

void cairn_group_destroy(cairn_group **group) {
    if (!group || !*group) return;
    if ((*group)->index == 0) {
        cairn__log(CAIRN_LOG_ERROR,
                   "cairn_group_destroy: this is the environment's own group, which ends with cairn_env_destroy");
        return;
    }
    if (refuse_recorded(*group, "cairn_group_destroy") != CAIRN_OK) {
        cairn__log(CAIRN_LOG_ERROR, "%s. The group is kept", cairn_last_error());
        return;
    }
    cairn__group_end(group);
}

/* ---- facts ---- */

int cairn_group_rank(const cairn_group *group) {
    return group ? group->rank : 0;
}

double cairn__group_timeout(const cairn_group *group) {
    return group->timeout;
}

int cairn_group_size(const cairn_group *group) {
    return group ? group->size : 1;
}

const char *cairn_group_backend(const cairn_group *group) {
    return group ? group->backend->name : "";
}

int cairn_group_env_rank(const cairn_group *group, int rank) {
    if (rank < 0 || rank >= cairn_group_size(group)) return -1;
    return group ? group->env_ranks[rank] : rank;
}

bool cairn__group_keeps_store(const cairn_group *group) {
    return group->backend->keeps_store;
}

struct cairn_device *cairn__group_device(const cairn_group *group) {
    return group->device;
}

bool cairn__group_is_recorded(const cairn_group *group) {
    return group->recorded.graphs > 0;
}

bool cairn__group_shares_memory(const cairn_group *group) {
    return group->backend->shares_memory;
}

bool cairn__group_checks_results(const cairn_group *group) {
    return group->backend->checks_results;
}

bool cairn__group_finds_nonfinite(const cairn_group *group) {
    return group->backend->finds_nonfinite;
}

/* ---- group memory ---- */

cairn_status cairn_group_alloc(cairn_group *group, size_t nbytes, void **out) {
    REQUIRE(group && out, CAIRN_EINVAL, "cairn_group_alloc: group or out is NULL");
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_check_alive(group));
    REQUIRE(nbytes <= SIZE_MAX / 2, CAIRN_ENOMEM, "group memory of %zu bytes is more than memory can hold", nbytes);
    TRY(cairn__group_kill_if_deadly(group, &group->last, group->backend->alloc(group, nbytes, out)));
out:
    return st;
}

cairn_status cairn_group_free(cairn_group *group, void **memory) {
    REQUIRE(group && memory, CAIRN_EINVAL, "cairn_group_free: group or memory is NULL");
    if (!*memory) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    TRY(refuse_recorded(group, "cairn_group_free"));
    TRY(cairn__group_check_alive(group));
    TRY(cairn__group_kill_if_deadly(group, &group->last, group->backend->free(group, *memory)));
    *memory = NULL;
out:
    return st;
}
