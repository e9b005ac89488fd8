/* How a group fails: it keeps the first failure that kills it, reports it to the peers, and repeats it in every later
 * call. */
#include <sched.h>
#include <stdio.h>

#include "comm/front.h"
#include "comm/notes.h"
#include "core/fork.h"
#include "core/status.h"

cairn_status cairn__group_was_aborted(const cairn_group *group) {
    if (!atomic_load(&group->aborted)) return CAIRN_OK;
    return cairn__fail(CAIRN_ESTATE, "the group was aborted by cairn_group_abort and can only be destroyed");
}

/* The caller's thread and an aborting thread may both get here. */
static void give_up_once(cairn_group *group, const char *cause) {
    if (!atomic_exchange(&group->gave_up, true)) group->backend->give_up(group, cause);
}

static void keep_cause(cairn_group *group) {
    snprintf(group->cause, sizeof(group->cause), "%s", cairn_last_error());
}

bool cairn__group_was_forked(const cairn_group *group) {
    return group->size > 1 && group->forks != cairn__forks();
}

/* give_up comes before the peers' notes are read, because it makes them fail and leave notes. */
cairn_status cairn__group_kill_if_failed(cairn_group *group, const struct cairn__call *call, cairn_status status) {
    if (status == CAIRN_OK || group->dead != CAIRN_OK || cairn__group_was_forked(group)) return status;
    group->dead = status;
    group->family->outstanding -= group->outstanding;
    group->outstanding = 0;
    keep_cause(group);
    give_up_once(group, group->cause);
    while (atomic_load(&group->aborting) > 0) sched_yield(); /* until an abort in another thread has been published */
    const bool is_known = group->family->deadlocked || atomic_load(&group->aborted);
    if (group->backend->keeps_store && group->family->store && !is_known) {
        (void)cairn__fail(status, "%s", group->cause); /* give_up may have set another last error */
        (void)cairn__notes_exchange(group, call, status);
        keep_cause(group);
    }
    if (!group->family->failure[0])
        snprintf(group->family->failure, sizeof(group->family->failure), "%.447s", group->cause);
    return cairn__fail(status, "%s", group->cause);
}

cairn_status cairn__group_kill_if_deadly(cairn_group *group, const struct cairn__call *call, cairn_status status) {
    const bool is_aborted = status == CAIRN_ESTATE && atomic_load(&group->aborted);
    const bool kills = status == CAIRN_EPEER || status == CAIRN_ETIMEOUT || is_aborted;
    return kills ? cairn__group_kill_if_failed(group, call, status) : status;
}

cairn_status cairn__group_kill(cairn_group *group, cairn_status status) {
    return cairn__group_kill_if_failed(group, &group->last, status);
}

/* Every kill takes the cause from the last error, which the previous kill may have changed. */
void cairn__group_kill_family(cairn_group *root, cairn_status status) {
    char cause[sizeof(root->cause)];
    snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    for (cairn_group *g = root ? root->family->groups : NULL; g; g = g->next)
        (void)cairn__group_kill(g, cairn__fail(status, "%s", cause));
}

cairn_status cairn__group_check_alive(cairn_group *group) {
    REQUIRE(!cairn__group_was_forked(group), CAIRN_ESTATE,
            "this process was forked from rank %d, whose groups stay with it: the other ranks would take what is sent "
            "here for that rank's; let the child call exec, or leave its calls to the rank",
            group->rank);
    if (group->dead == CAIRN_ESTATE) return cairn__fail(CAIRN_ESTATE, "%s", group->cause);
    if (group->dead != CAIRN_OK) {
        return cairn__fail(group->dead, "the group is dead and can only be destroyed; its first failure was: %s",
                           group->cause);
    }
    return cairn__group_kill_if_deadly(group, &group->last, cairn__group_was_aborted(group));
}

void cairn_group_abort(cairn_group *group) {
    if (!group || cairn__group_was_forked(group)) return;
    atomic_fetch_add(&group->aborting, 1);
    if (!atomic_exchange(&group->aborted, true)) {
        char name[80], cause[128];
        cairn__group_name_rank(group, group->rank, name, sizeof(name));
        snprintf(cause, sizeof(cause), "%s aborted the group", name);
        give_up_once(group, cause);
    }
    atomic_fetch_sub(&group->aborting, 1);
}
