#include "comm/deadlock.h"

#include <stdio.h>
#include <string.h>

#include "comm/group.h"
#include "core/status.h"
#include "rendezvous/store/store.h"

/* Whether a call of rank waits for this rank, which has not posted its own part. */
static bool waits_for_this_rank(const cairn_group *group, int rank, const struct cairn__call *theirs) {
    if (!cairn__call_is_message(theirs)) return group->next_number < theirs->number;
    const uint64_t *numbers = theirs->kind == CAIRN__SEND ? group->next_received : group->next_sent;
    return theirs->peer == group->rank && (!numbers || numbers[rank] < theirs->number);
}

bool cairn__group_detects_deadlock(const cairn_group *group) {
    const cairn_group *root = group;
    while (root->next) root = root->next;
    return group->timeout >= root->timeout;
}

/* ---- in words ---- */

static void describe(const cairn_group *group, const struct cairn__call *call, char *text, size_t nbytes) {
    char what[128];
    cairn__call_describe(call, what, sizeof(what));
    if (group->index == 0) {
        snprintf(text, nbytes, "%s of the environment's group", what);
    } else {
        snprintf(text, nbytes, "%s of group %lld", what, (long long)(group->index / CAIRN__MAX_RANKS));
    }
}

struct waiter {
    const cairn_group *group;
    const struct cairn__call *call;
    int rank; /* of the environment */
};

static cairn_status fail(const struct waiter *low, const struct waiter *high) {
    char of_low[200], of_high[200], advice[160];
    const bool low_ends = low->call->kind == CAIRN__FREE, high_ends = high->call->kind == CAIRN__FREE;
    describe(low->group, low->call, of_low, sizeof(of_low));
    describe(high->group, high->call, of_high, sizeof(of_high));
    if (low_ends != high_ends) {
        snprintf(advice, sizeof(advice),
                 "rank %d ended early: every rank must take the same number of steps (uneven inputs: ddp_join)",
                 low_ends ? low->rank : high->rank);
    } else {
        snprintf(advice, sizeof(advice), "every rank must wait for its calls of all groups in the same order");
    }
    return cairn__fail(CAIRN_EPEER, "rank %d waits in %s, rank %d in %s: neither can go on; %s", low->rank, of_low,
                       high->rank, of_high, advice);
}

cairn_status cairn__check_deadlock(cairn_group *mine, const struct cairn__call *call, const struct cairn__stuck *theirs,
                                   cairn_group **out) {
    cairn_group *other = mine->family->groups;
    int rank = 0;
    while (other && other->index != theirs->group) other = other->next;
    while (other && rank < other->size && other->env_ranks[rank] != theirs->rank) rank++;
    if (!other || rank == other->size) return CAIRN_OK;
    const bool died = !theirs->is_dead && (other->dead != CAIRN_OK || atomic_load(&other->gave_up));
    if (died || !waits_for_this_rank(other, rank, &theirs->call)) return CAIRN_OK;
    mine->family->deadlocked = true;
    const struct waiter here = {mine, call, mine->env_ranks[mine->rank]}, there = {other, &theirs->call, theirs->rank};
    *out = other;
    return here.rank < there.rank ? fail(&here, &there) : fail(&there, &here);
}

/* ---- through the store ---- */

enum { MAX_GROUPS = 32 };
static const double PATIENCE = 1; /* s, for a store whose server may hang */

/* What a rank publishes; group is -1 once its wait is over. */
struct record {
    struct cairn__call call;
    int64_t group, is_dead, num_groups;
    struct {
        int64_t index;
        uint64_t calls; /* collectives that the rank has posted */
    } groups[MAX_GROUPS];
};

static void write_key(const struct cairn__family *family, int rank, char *key, size_t nbytes) {
    snprintf(key, nbytes, "%s/stuck/%d", family->prefix, rank);
}

static cairn_status publish(struct cairn__family *family, int rank, const struct record *record) {
    char key[300];
    write_key(family, rank, key, sizeof(key));
    return cairn_store_set(family->store, key, record, sizeof(*record));
}

/* group is -1 too if the rank has published nothing. */
static cairn_status read_record(const struct cairn__family *family, int rank, struct record *out) {
    char key[300];
    const char *wanted = key;
    void *value = NULL;
    size_t nbytes = 0;
    int present = 0;
    cairn_status st = CAIRN_OK;
    *out = (struct record){.group = -1};
    write_key(family, rank, key, sizeof(key));
    TRY(cairn_store_check(family->store, &wanted, 1, &present));
    if (present) TRY(cairn_store_get(family->store, key, &value, &nbytes));
    if (nbytes == sizeof(*out)) memcpy(out, value, nbytes);
out:
    cairn_store_free(value);
    return st;
}

/* Whether the rank that published it has not posted `call` of group. */
static bool lacks_call(const struct record *record, const cairn_group *group, const struct cairn__call *call) {
    if (record->group < 0 || cairn__call_is_message(call)) return false;
    for (int64_t i = 0; i < record->num_groups && i < MAX_GROUPS; i++) {
        if (record->groups[i].index == group->index) return record->groups[i].calls < call->number;
    }
    return false;
}

/* *found: CAIRN_EPEER, with its message; *other: the group in which the other rank waits. */
static cairn_status check_members(cairn_group *group, const struct cairn__call *call, cairn_status *found,
                                  cairn_group **other) {
    cairn_status st = CAIRN_OK;
    for (int r = 0; r < group->size && *found == CAIRN_OK; r++) {
        struct record record;
        if (r == group->rank) continue;
        TRY(read_record(group->family, group->env_ranks[r], &record));
        const struct cairn__stuck theirs = {.rank = group->env_ranks[r],
                                            .is_dead = record.is_dead,
                                            .group = record.group,
                                            .call = record.call};
        if (lacks_call(&record, group, call)) *found = cairn__check_deadlock(group, call, &theirs, other);
    }
out:
    return st;
}

cairn_status cairn__find_deadlock(cairn_group *group, const struct cairn__call *call) {
    struct cairn__family *family = group->family;
    const int rank = group->env_ranks[group->rank];
    struct record record = {.call = *call, .group = group->index};
    cairn_group *other = NULL;
    cairn_status found = CAIRN_OK;
    if (!family->store || family->store_fails || !cairn__group_detects_deadlock(group)) return CAIRN_OK;
    for (const cairn_group *g = family->groups; g && record.num_groups < MAX_GROUPS; g = g->next) {
        record.groups[record.num_groups].index = g->index;
        record.groups[record.num_groups++].calls = g->next_number;
    }
    const double timeout = cairn__store_hurry(family->store, PATIENCE);
    const cairn_status st = publish(family, rank, &record);
    family->published = st == CAIRN_OK;
    family->has_record |= family->published;
    family->store_fails = st != CAIRN_OK || check_members(group, call, &found, &other) != CAIRN_OK;
    if (found != CAIRN_OK) {
        /* The record comes first and stays, so that the other rank finds the same when its group dies. */
        char cause[sizeof(group->cause)];
        snprintf(cause, sizeof(cause), "%s", cairn_last_error());
        family->published = false;
        record.is_dead = true;
        (void)publish(family, rank, &record);
        (void)cairn__fail(found, "%s", cause);
        if (other != group) found = cairn__group_kill(other, found);
    }
    if (timeout > 0) (void)cairn_store_set_timeout(family->store, timeout);
    return found;
}

void cairn__clear_stuck(const cairn_group *group) {
    struct cairn__family *family = group->family;
    const struct record record = {.group = -1};
    if (!family->published) return;
    family->published = false;
    const double timeout = cairn__store_hurry(family->store, PATIENCE);
    family->store_fails |= publish(family, group->env_ranks[group->rank], &record) != CAIRN_OK;
    if (timeout > 0) (void)cairn_store_set_timeout(family->store, timeout);
}

void cairn__forget_stuck(const cairn_group *root) {
    const struct cairn__family *family = root->family;
    char key[300];
    if (!family->store || !family->has_record || family->store_fails || root->dead != CAIRN_OK) return;
    const double timeout = cairn__store_hurry(family->store, PATIENCE);
    write_key(family, root->rank, key, sizeof(key));
    (void)cairn_store_delete(family->store, key, NULL);
    if (timeout > 0) (void)cairn_store_set_timeout(family->store, timeout);
}
