/* Groups made from others. All ranks of the parent exchange proposals, the members of the new group create it, and all
 * ranks exchange the outcome: if it failed on one rank, no rank gets a group.
 *
 * A proposal has a fixed size, and the parent has had memory for all of them since its creation. So a rank with wrong
 * arguments or without memory can still report that, and the others do not wait for it. */
#include <stdio.h>
#include <string.h>

#include "comm/front.h"
#include "core/alloc.h"
#include "core/descriptors.h"
#include "core/options.h"
#include "core/status.h"
#include "kernels/kernels.h"

enum proposal_kind { NEW = 1, SPLIT, OUTCOME };

static const char *call_name(enum proposal_kind kind) {
    return kind == SPLIT ? "cairn_group_split" : "cairn_group_new";
}

static bool is_deadly(cairn_status status) {
    return status == CAIRN_EPEER || status == CAIRN_ETIMEOUT;
}

/* ---- exchanging proposals ---- */

/* With the last error as the reason. */
static void put_status(struct cairn__proposal *mine, cairn_status status) {
    mine->status = (int32_t)status;
    if (status != CAIRN_OK) snprintf(mine->reason, sizeof(mine->reason), "%s", cairn_last_error());
}

/* This rank's own failure takes precedence; a failure that kills the group on one rank kills it on all. */
static cairn_status outcome(cairn_group *parent, const struct cairn__proposal *mine, enum proposal_kind kind) {
    int worst = -1;
    for (int r = 0; r < parent->size; r++) {
        const cairn_status status = (cairn_status)parent->proposals[r].status;
        if (status == CAIRN_OK) continue;
        if (worst < 0 || (is_deadly(status) && !is_deadly((cairn_status)parent->proposals[worst].status))) worst = r;
    }
    if (worst < 0) return CAIRN_OK;
    const struct cairn__proposal *theirs = &parent->proposals[worst];
    const cairn_status status = (cairn_status)theirs->status, own = (cairn_status)mine->status;
    if (own != CAIRN_OK && is_deadly(own) == is_deadly(status)) return cairn__fail(own, "%.399s", mine->reason);
    char name[80];
    cairn__group_name_rank(parent, worst, name, sizeof(name));
    return cairn__fail(status, "%s made no group, because it failed on %s: %.399s", call_name(kind), name,
                       theirs->reason);
}

static void list_ranks(const struct cairn__proposal *p, char *text, size_t nbytes) {
    size_t used = 0;
    for (int i = 0; i < p->n && used < nbytes - 16; i++) {
        used += (size_t)snprintf(text + used, nbytes - used, "%s%d", i ? ", " : "", p->ranks[i]);
    }
    if (used >= nbytes - 16) snprintf(text + used, nbytes - used, ", ...");
}

static bool same_proposal(const struct cairn__proposal *a, const struct cairn__proposal *b) {
    if (a->kind != b->kind) return false;
    return a->kind == SPLIT || (a->n == b->n && memcmp(a->ranks, b->ranks, (size_t)a->n) == 0);
}

/* Every rank compares all proposals with rank 0's, so all report the same rank. */
static cairn_status check_proposals(cairn_group *parent) {
    const struct cairn__proposal *first = &parent->proposals[0], *other = first;
    for (int r = 1; r < parent->size && other == first; r++) {
        if (!same_proposal(first, &parent->proposals[r])) other = &parent->proposals[r];
    }
    if (other == first) return CAIRN_OK;
    char a[80], b[80], of_a[160], of_b[160];
    cairn__group_name_rank(parent, 0, a, sizeof(a));
    cairn__group_name_rank(parent, (int)(other - first), b, sizeof(b));
    if (first->kind != other->kind) {
        return cairn__fail(CAIRN_EPEER,
                           "%s calls %s, %s calls %s; every rank must make the groups of one parent in the same order",
                           a, call_name((enum proposal_kind)first->kind), b,
                           call_name((enum proposal_kind)other->kind));
    }
    list_ranks(first, of_a, sizeof(of_a));
    list_ranks(other, of_b, sizeof(of_b));
    return cairn__fail(
        CAIRN_EPEER,
        "cairn_group_new: %s names ranks %s; %s names ranks %s; every rank must name the same ones in the "
        "same order, whether it is among them or not",
        a, of_a, b, of_b);
}

static cairn_status exchange(cairn_group *parent, const struct cairn__proposal *mine) {
    return cairn__group_exchange(parent, parent->proposals, mine, sizeof(*mine));
}

static cairn_status exchange_proposals(cairn_group *parent, const struct cairn__proposal *mine) {
    cairn_status st = CAIRN_OK;
    TRY(exchange(parent, mine));
    TRY(outcome(parent, mine, (enum proposal_kind)mine->kind));
    TRY(check_proposals(parent));
    for (int r = 0; r < parent->size; r++) {
        if (parent->proposals[r].made > parent->family->made) parent->family->made = parent->proposals[r].made;
    }
    parent->family->made++;
out:
    return cairn__group_kill_if_deadly(parent, &parent->last, st);
}

static cairn_status exchange_outcomes(cairn_group *parent, cairn_status status, enum proposal_kind kind) {
    struct cairn__proposal mine = {.kind = OUTCOME};
    put_status(&mine, status);
    cairn_status st = CAIRN_OK;
    TRY(exchange(parent, &mine));
    TRY(outcome(parent, &mine, kind));
out:
    return cairn__group_kill_if_deadly(parent, &parent->last, st);
}

/* ---- members ---- */

/* Ranks of this rank's color, by key and then by rank. */
static int choose_by_color(const cairn_group *parent, const struct cairn__proposal *mine, int *members) {
    int n = 0;
    for (int r = 0; r < parent->size && mine->color >= 0; r++) {
        const struct cairn__proposal *p = &parent->proposals[r];
        if (p->color != mine->color) continue;
        int at = n++;
        for (; at > 0 && parent->proposals[members[at - 1]].key > p->key; at--) members[at] = members[at - 1];
        members[at] = r;
    }
    return n;
}

/* Writes the members as ranks of the parent and returns their number; 0 if this rank is in no new group. */
static int choose_members(const cairn_group *parent, const struct cairn__proposal *mine, int *members) {
    if (mine->kind == SPLIT) return choose_by_color(parent, mine, members);
    bool is_member = false;
    for (int i = 0; i < mine->n; i++) {
        members[i] = mine->ranks[i];
        is_member = is_member || members[i] == parent->rank;
    }
    return is_member ? mine->n : 0;
}

/* The group's index is unique: groups that share a rank have different counts (`made`), groups of one split have
 * different first ranks. */
static cairn_status derive(cairn_group *group, cairn_group *parent, int size) {
    group->size = size;
    group->is_of_all = parent->is_of_all && size == parent->size;
    for (int r = 0; r < size; r++) {
        group->env_ranks[r] = parent->env_ranks[group->parent_ranks[r]];
        group->is_of_all &= group->env_ranks[r] == r;
        if (group->parent_ranks[r] == parent->rank) group->rank = r;
    }
    group->index = group->family->made * CAIRN__MAX_RANKS + group->env_ranks[0];
    group->device = parent->device;
    group->backend = parent->backend;
    return parent->backend->derive(group, parent);
}

/* st: the check of this rank's arguments, with its last error. */
static cairn_status make(cairn_group *parent, cairn_status st, struct cairn__proposal *mine, double timeout,
                         cairn_group **out) {
    const int files = parent->backend->files, members = mine->kind == NEW ? mine->n : 2; /* or more, of a color */
    cairn_group *made = NULL;
    int size = 0;
    if (st == CAIRN_OK) st = cairn__group_make(parent->family, parent->size, &made);
    /* If one rank lacked descriptors, the others would wait for it to connect. */
    if (st == CAIRN_OK && files) st = cairn__check_descriptors(files + members, "the group");
    put_status(mine, st);
    mine->made = parent->family->made;
    TRY(exchange_proposals(parent, mine));
    made->timeout = timeout;
    made->timeout_name = timeout == parent->timeout ? parent->timeout_name : "cairn_group_options.timeout";
    size = choose_members(parent, mine, made->parent_ranks);
    if (size > 0) st = derive(made, parent, size);
    /* The parent dies, too: an exchange of outcomes would wait for the same rank a second time. */
    if (is_deadly(st)) TRY(cairn__group_kill(parent, st));
    TRY(exchange_outcomes(parent, st, (enum proposal_kind)mine->kind));
    if (size > 0) {
        made->next = made->family->groups;
        made->family->groups = made;
        cairn__free(made->parent_ranks);
        made->parent_ranks = NULL;
        *out = made;
        return CAIRN_OK;
    }
    *out = NULL;
out:
    cairn__group_end(&made);
    return st;
}

/* ---- arguments ---- */

static cairn_status read_options(const cairn_group *parent, const struct cairn_group_options *given, double *timeout) {
    struct cairn_group_options o = {.struct_size = sizeof(o)};
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&o, sizeof(o), given, "cairn_group_options"));
    REQUIRE(o.timeout >= 0, CAIRN_EINVAL,
            "cairn_group_options.timeout is %g s; it must be positive, or 0 for the parent's", o.timeout);
    *timeout = o.timeout > 0 ? cairn__group_clamp_timeout(o.timeout) : parent->timeout;
out:
    return st;
}

static cairn_status read_ranks(const cairn_group *parent, const int *ranks, int n, struct cairn__proposal *mine) {
    bool named[CAIRN__MAX_RANKS] = {false};
    REQUIRE(ranks ? n >= 1 : n == 0, CAIRN_EINVAL,
            ranks ? "cairn_group_new: a group of %d ranks; give at least one, or NULL and 0 for all ranks"
                  : "cairn_group_new: ranks is NULL, and n is %d; give NULL and 0 for all ranks",
            n);
    REQUIRE(n <= parent->size, CAIRN_EINVAL, "cairn_group_new: %d ranks of a group that has %d", n, parent->size);
    mine->n = ranks ? n : parent->size;
    for (int i = 0; i < mine->n; i++) {
        const int r = ranks ? ranks[i] : i;
        REQUIRE(r >= 0 && r < parent->size, CAIRN_EINVAL,
                "cairn_group_new: ranks[%d] is %d, which is not in a group of %d; its ranks are 0 to %d", i, r,
                parent->size, parent->size - 1);
        REQUIRE(!named[r], CAIRN_EINVAL, "cairn_group_new: rank %d is named twice, the second time at ranks[%d]", r, i);
        named[r] = true;
        mine->ranks[i] = (uint8_t)r;
    }
    return CAIRN_OK;
}

cairn_status cairn_group_new(cairn_group *parent, const int *ranks, int n, const struct cairn_group_options *options,
                             cairn_group **out) {
    REQUIRE(parent, CAIRN_EINVAL, "cairn_group_new: the parent is NULL");
    struct cairn__proposal mine = {.kind = NEW};
    double timeout = 0;
    cairn_status st = out ? CAIRN_OK : cairn__fail(CAIRN_EINVAL, "cairn_group_new: out is NULL");
    if (st == CAIRN_OK) st = read_ranks(parent, ranks, n, &mine);
    if (st == CAIRN_OK) st = read_options(parent, options, &timeout);
    return make(parent, st, &mine, timeout, out);
}

cairn_status cairn_group_split(cairn_group *parent, int color, int key, const struct cairn_group_options *options,
                               cairn_group **out) {
    REQUIRE(parent, CAIRN_EINVAL, "cairn_group_split: the parent is NULL");
    struct cairn__proposal mine = {.kind = SPLIT, .color = color, .key = key};
    double timeout = 0;
    cairn_status st = out ? CAIRN_OK : cairn__fail(CAIRN_EINVAL, "cairn_group_split: out is NULL");
    if (st == CAIRN_OK) st = read_options(parent, options, &timeout);
    return make(parent, st, &mine, timeout, out);
}
