/* The front of process groups: how a group comes to be, how it dies, and that the first failure that kills it is kept
 * and repeated. Its works are in work.c, the collectives in collective.c, groups made from it in subgroup.c. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "comm/front.h"
#include "comm/notes.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "kernels/kernels.h"

enum { MAX_TIMEOUT = 1000000000 /* s; fits in 64 bits of ns */ };

/* ---- death ---- */

static cairn_status repeat_cause(const cairn_group *group) {
    if (group->dead == CAIRN_ESTATE) return cairn__fail(CAIRN_ESTATE, "%s", group->cause);
    return cairn__fail(group->dead, "the group is dead and can only be destroyed; its first failure was: %s",
                       group->cause);
}

cairn_status cairn__group_was_aborted(const cairn_group *group) {
    if (!atomic_load(&group->aborted)) return CAIRN_OK;
    return cairn__fail(CAIRN_ESTATE, "the group was aborted by cairn_group_abort and can only be destroyed");
}

/* The caller's thread and one that aborts may both get here. */
static void tell(cairn_group *group, const char *cause) {
    if (!atomic_exchange(&group->told, true)) group->backend->give_up(group, cause);
}

static void keep_cause(cairn_group *group) {
    snprintf(group->cause, sizeof(group->cause), "%s", cairn_last_error());
}

/* Peers are told before their last words are read: they may not know yet that there is anything to say. */
static cairn_status die(cairn_group *group, const struct cairn__call *call, cairn_status status) {
    group->dead = status;
    group->family->outstanding -= group->outstanding;
    group->outstanding = 0;
    keep_cause(group);
    tell(group, group->cause);
    const bool is_known = group->family->deadlocked || atomic_load(&group->aborted);
    if (group->backend->keeps_store && group->family->store && !is_known) {
        (void)cairn__fail(status, "%s", group->cause); /* who told the peers may have failed meanwhile */
        (void)cairn__notes_exchange(group, call, status);
        keep_cause(group);
    }
    return cairn__fail(status, "%s", group->cause);
}

cairn_status cairn__group_settle_any(cairn_group *group, const struct cairn__call *call, cairn_status status) {
    return status == CAIRN_OK || group->dead != CAIRN_OK ? status : die(group, call, status);
}

cairn_status cairn__group_settle(cairn_group *group, const struct cairn__call *call, cairn_status status) {
    const bool is_aborted = status == CAIRN_ESTATE && atomic_load(&group->aborted);
    const bool kills = status == CAIRN_EPEER || status == CAIRN_ETIMEOUT || is_aborted;
    return kills ? cairn__group_settle_any(group, call, status) : status;
}

cairn_status cairn__group_kill(cairn_group *group, cairn_status status) {
    return cairn__group_settle_any(group, &group->last, status);
}

cairn_status cairn__group_check_alive(cairn_group *group) {
    if (group->dead != CAIRN_OK) return repeat_cause(group);
    return cairn__group_settle(group, &group->last, cairn__group_was_aborted(group));
}

static void abort_once(cairn_group *group) {
    if (atomic_exchange(&group->aborted, true)) return;
    char name[80], cause[128];
    cairn__group_name_rank(group, group->rank, name, sizeof(name));
    snprintf(cause, sizeof(cause), "%s aborted the group", name);
    tell(group, cause);
}

void cairn_group_abort(cairn_group *group) {
    if (!group) return;
    atomic_fetch_add(&group->aborting, 1);
    abort_once(group);
    atomic_fetch_sub(&group->aborting, 1);
}

/* ---- creation ---- */

static cairn_status check_options(const struct cairn__group_options *o) {
    int row = -1;
    REQUIRE(o, CAIRN_EINVAL, "a group needs options");
    REQUIRE(o->size >= 1 && o->size <= CAIRN__MAX_RANKS, CAIRN_EINVAL, "a group of %d ranks; it can have 1 to %d",
            o->size, CAIRN__MAX_RANKS);
    REQUIRE(o->rank >= 0 && o->rank < o->size, CAIRN_EINVAL, "rank %d is not in a group of %d; ranks are 0 to %d",
            o->rank, o->size, o->size - 1);
    REQUIRE(o->timeout > 0, CAIRN_EINVAL, "a group's timeout is %g s; it must be positive", o->timeout);
    REQUIRE(o->meeting_timeout >= 0, CAIRN_EINVAL, "the timeout of a group's creation is %g s; it must be positive",
            o->meeting_timeout);
    cairn_status st = cairn__backend_find(o->backend, &row);
    if (st != CAIRN_OK) return st;
    REQUIRE(o->size == 1 || row != CAIRN__BACKEND_SELF, CAIRN_EINVAL,
            "the group backend 'self' is for one rank, not %d; use auto", o->size);
    REQUIRE(o->size == 1 || (o->store && o->prefix), CAIRN_EINVAL,
            "a group of %d ranks needs a store and a key prefix to find each other", o->size);
    REQUIRE(!o->prefix || strlen(o->prefix) < sizeof(((struct cairn__family *)0)->prefix), CAIRN_EINVAL,
            "the key prefix of a group has %zu bytes; it can have %zu", strlen(o->prefix),
            sizeof(((struct cairn__family *)0)->prefix) - 1);
    return CAIRN_OK;
}

cairn_status cairn__group_make(struct cairn__family *family, int size, cairn_group **out) {
    cairn_group *group = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(1, sizeof(*group), (void **)&group));
    group->family = family;
    group->size = size;
    TRY(cairn__calloc((size_t)size, sizeof(int), (void **)&group->env_ranks));
    TRY(cairn__calloc((size_t)size, sizeof(int), (void **)&group->parent_ranks));
    TRY(cairn__group_add_works(group));
    TRY(cairn__group_make_proposals(group));
    *out = group;
    return CAIRN_OK;
out:
    cairn__group_end(&group);
    return st;
}

double cairn__group_clip_timeout(double timeout) {
    return timeout < MAX_TIMEOUT ? timeout : MAX_TIMEOUT;
}

static cairn_status make_family(const struct cairn__group_options *options, cairn_group **out) {
    struct cairn__family *family = NULL;
    cairn_status st = cairn__calloc(1, sizeof(*family), (void **)&family);
    if (st != CAIRN_OK) return st;
    snprintf(family->prefix, sizeof(family->prefix), "%s", options->prefix ? options->prefix : "");
    family->store = options->store;
    st = cairn__group_make(family, options->size, &family->groups);
    if (st == CAIRN_OK) {
        *out = family->groups;
    } else {
        cairn__free(family);
    }
    return st;
}

static cairn_status create(cairn_group *group, const struct cairn__group_options *options) {
    struct cairn__peers peers = {.rank = options->rank, .size = options->size, .listener = -1};
    cairn_status st = CAIRN_OK;
    if (options->size > 1) TRY(cairn__backend_meet(options, &peers));
    TRY(cairn__backend_choose(options, &peers, &group->backend));
    TRY(group->backend->create(group, options, &peers));
    if (!group->backend->keeps_store) group->family->store = NULL;
out:
    if (peers.all) cairn__peers_end(&peers);
    return st;
}

cairn_status cairn__group_create(const struct cairn__group_options *options, cairn_group **out) {
    cairn_group *group = NULL;
    cairn_status st = CAIRN_OK;
    TRY(check_options(options));
    TRY(make_family(options, &group));
    group->rank = options->rank;
    group->timeout = cairn__group_clip_timeout(options->timeout);
    group->device = options->device;
    for (int r = 0; r < group->size; r++) group->env_ranks[r] = r;
    group->is_of_all = true;
    TRY(create(group, options));
    *out = group;
    return CAIRN_OK;
out:
    (void)cairn__group_destroy_root(&group);
    return st;
}

/* ---- the end ---- */

static void leave_family(cairn_group *group) {
    struct cairn__family *family = group->family;
    cairn_group **at = &family->groups;
    family->outstanding -= group->outstanding;
    while (*at && *at != group) at = &(*at)->next;
    if (*at) *at = group->next;
}

void cairn__group_end(cairn_group **group) {
    cairn_group *g = *group;
    if (!g) return;
    while (atomic_load(&g->aborting) > 0) sched_yield(); /* whose abort got the caller here may not be back yet */
    if (g->backend) g->backend->destroy(g);
    leave_family(g);
    cairn__group_free_works(g);
    cairn__free(g->proposals);
    cairn__free(g->env_ranks);
    cairn__free(g->parent_ranks);
    cairn__free(g->next_sent);
    cairn__free(g->next_received);
    cairn__free(g);
    *group = NULL;
}

bool cairn__group_destroy_root(cairn_group **group) {
    if (!*group) return true;
    struct cairn__family *family = (*group)->family;
    int alive = 0;
    for (const cairn_group *g = family->groups; g; g = g->next) alive += g != *group;
    if (alive > 0) {
        cairn__log(CAIRN_LOG_ERROR,
                   "%d group%s made from the environment's by cairn_group_new or cairn_group_split %s alive, so it is "
                   "kept; cairn_group_destroy them first",
                   alive, alive > 1 ? "s" : "", alive > 1 ? "are" : "is");
        return false;
    }
    cairn__group_end(group);
    cairn__free(family);
    return true;
}

void cairn_group_destroy(cairn_group **group) {
    if (!group || !*group) return;
    if ((*group)->index == 0) {
        cairn__log(CAIRN_LOG_ERROR,
                   "cairn_group_destroy: this is the environment's own group, which ends with cairn_env_destroy");
        return;
    }
    cairn__group_end(group);
}

/* ---- facts ---- */

int cairn_group_rank(const cairn_group *group) {
    return group ? group->rank : 0;
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

bool cairn__group_looks(const cairn_group *group) {
    return group->backend->looks;
}

bool cairn__group_blames(const cairn_group *group) {
    return group->backend->blames;
}

void cairn__group_name_rank(const cairn_group *group, int rank, char *text, size_t nbytes) {
    if (group->is_of_all) {
        snprintf(text, nbytes, "rank %d", rank);
    } else {
        snprintf(text, nbytes, "rank %d of group %lld (rank %d of all)", rank,
                 (long long)(group->index / CAIRN__MAX_RANKS), cairn_group_env_rank(group, rank));
    }
}

/* ---- group memory ---- */

cairn_status cairn_group_alloc(cairn_group *group, size_t nbytes, void **out) {
    REQUIRE(group && out, CAIRN_EINVAL, "cairn_group_alloc needs a group and a place for the address");
    cairn_status st = cairn__group_check_alive(group);
    if (st != CAIRN_OK) return st;
    REQUIRE(nbytes <= SIZE_MAX / 2, CAIRN_ENOMEM, "group memory of %zu bytes is more than memory can hold", nbytes);
    return cairn__group_settle(group, &group->last, group->backend->alloc(group, nbytes, out));
}

cairn_status cairn_group_free(cairn_group *group, void **memory) {
    REQUIRE(group && memory, CAIRN_EINVAL, "cairn_group_free needs a group and the address of the memory's address");
    if (!*memory) return CAIRN_OK;
    cairn_status st = cairn__group_check_alive(group);
    if (st != CAIRN_OK) return st;
    st = cairn__group_settle(group, &group->last, group->backend->free(group, *memory));
    if (st == CAIRN_OK) *memory = NULL;
    return st;
}
