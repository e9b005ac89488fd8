/* A note has three lines: its place in the order in which the ranks left notes, with the status; the call; the rank's
 * error. */
#include "comm/notes.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "core/trace.h"
#include "rendezvous/store/store.h"

enum {
    PATIENCE_MS = 1000,
    HOST_PATIENCE_MS = 1500 /* the store may end with rank 0 while others still read */,
    FIRST_PAUSE_MS = 1,
    LAST_PAUSE_MS = 20,
    CALL_NBYTES = 160,
    SEEN_NBYTES = 300,
    MAX_OTHERS = 4
};

struct note {
    bool is_there;
    int order; /* 1 = it noticed first */
    int status;
    char call[CALL_NBYTES], seen[SEEN_NBYTES];
};

struct notes {
    cairn_group *group;
    cairn_store *store;
    struct note *all; /* [size], this rank's too */
    bool complete;    /* no request failed, so a missing note was not written */
};

static void write_key(const struct notes *n, const char *what, char *key, size_t nbytes) {
    snprintf(key, nbytes, "%s/notes/%lld/%s", n->group->family->prefix, (long long)n->group->index, what);
}

static void write_rank_key(const struct notes *n, int rank, char *key, size_t nbytes) {
    char text[16];
    snprintf(text, sizeof(text), "%d", rank);
    write_key(n, text, key, nbytes);
}

/* ---- leaving and reading ---- */

static cairn_status leave(struct notes *n, const struct cairn__call *call, cairn_status status, const char *seen) {
    struct note *mine = &n->all[n->group->rank];
    char key[300], text[CALL_NBYTES + SEEN_NBYTES + 32];
    int64_t order = 0;
    cairn_status st = CAIRN_OK;
    cairn__call_describe(call, mine->call, sizeof(mine->call));
    snprintf(mine->seen, sizeof(mine->seen), "%.*s", SEEN_NBYTES - 1, seen);
    mine->is_there = true;
    mine->status = (int)status;
    write_key(n, "count", key, sizeof(key));
    TRY(cairn_store_add(n->store, key, 1, &order));
    mine->order = (int)order;
    write_rank_key(n, n->group->rank, key, sizeof(key));
    const int length = snprintf(text, sizeof(text), "%d %d\n%s\n%s", mine->order, mine->status, mine->call, mine->seen);
    TRY(cairn_store_set(n->store, key, text, (size_t)length));
out:
    return st;
}

static cairn_status read_note(struct notes *n, int rank) {
    struct note *note = &n->all[rank];
    char key[300];
    const char *wanted = key;
    void *text = NULL;
    int present = 0;
    cairn_status st = CAIRN_OK;
    write_rank_key(n, rank, key, sizeof(key));
    TRY(cairn_store_check(n->store, &wanted, 1, &present));
    if (!present) goto out;
    TRY(cairn_store_get(n->store, key, &text, NULL));
    note->is_there =
        sscanf(text, "%d %d\n%159[^\n]\n%299[^\n]", &note->order, &note->status, note->call, note->seen) >= 3;
out:
    cairn_store_free(text);
    return st;
}

static cairn_status read_all(struct notes *n) {
    const int patience_ms = n->group->env_ranks[n->group->rank] == 0 ? HOST_PATIENCE_MS : PATIENCE_MS;
    const uint64_t end = cairn__now_ns() + (uint64_t)patience_ms * UINT64_C(1000000);
    cairn_status st = CAIRN_OK;
    for (int pause = FIRST_PAUSE_MS;; pause = pause * 2 < LAST_PAUSE_MS ? pause * 2 : LAST_PAUSE_MS) {
        bool all = true;
        for (int r = 0; r < n->group->size; r++) {
            if (!n->all[r].is_there) TRY(read_note(n, r));
            all = all && n->all[r].is_there;
        }
        if (all || cairn__now_ns() >= end) break;
        poll(NULL, 0, pause);
    }
out:
    return st;
}

/* ---- in words ---- */

struct text {
    size_t used;
    char room[1000];
};

static void put(struct text *t, const char *words) {
    t->used += (size_t)snprintf(t->room + t->used, sizeof(t->room) - t->used, "%s", words);
    if (t->used >= sizeof(t->room)) t->used = sizeof(t->room) - 1;
}

static void put_rank(struct text *t, const cairn_group *group, int rank) {
    char name[80];
    cairn__group_name_rank(group, rank, name, sizeof(name));
    put(t, name);
}

/* "; rank 1 was in broadcast number 5 of 3 f32 from rank 0" */
static void put_others(struct text *t, const struct notes *n) {
    const struct note *mine = &n->all[n->group->rank];
    int listed = 0;
    for (int r = 0; r < n->group->size; r++) {
        if (!n->all[r].is_there || strcmp(n->all[r].call, mine->call) == 0 || listed++ >= MAX_OTHERS) continue;
        put(t, "; ");
        put_rank(t, n->group, r);
        put(t, " was in ");
        put(t, n->all[r].call);
    }
    char more[40];
    snprintf(more, sizeof(more), ", and %d more in other calls", listed - MAX_OTHERS);
    if (listed > MAX_OTHERS) put(t, more);
}

/* "; rank 2 reported nothing: it ended, ..." */
static void put_silent(struct text *t, const struct notes *n) {
    int silent = 0;
    for (int r = 0; r < n->group->size; r++) {
        if (n->all[r].is_there || silent++ >= MAX_OTHERS) continue;
        put(t, silent == 1 ? "; " : ", ");
        put_rank(t, n->group, r);
    }
    char more[40];
    snprintf(more, sizeof(more), " and %d more", silent - MAX_OTHERS);
    if (silent > MAX_OTHERS) put(t, more);
    if (silent == 1) put(t, " reported nothing: it ended, is stopped, or is not in a call of this group");
    if (silent > 1) put(t, " reported nothing: they ended, are stopped, or are not in a call of this group");
}

/* The first note is closest to the cause, unless it only reports that another rank left, whose note may come later. */
static const struct note *find_cause(const struct notes *n) {
    const struct note *mine = &n->all[n->group->rank], *cause = NULL;
    for (int r = 0; r < n->group->size; r++) {
        const struct note *note = &n->all[r];
        const bool has_own = note->status != CAIRN_EPEER;
        if (!note->is_there || note->status == mine->status || !note->seen[0] || (!has_own && note->order != 1))
            continue;
        if (!cause || (has_own && (cause->status == CAIRN_EPEER || note->order < cause->order))) cause = note;
    }
    return cause;
}

/* Names the one rank that is known to be missing: the host of the store. */
static cairn_status fail_without_notes(const struct notes *n, const char *seen, cairn_status status) {
    const cairn_group *g = n->group;
    if (!g->family->rank_0_serves || g->env_ranks[g->rank] == 0) return cairn__fail(status, "%s", seen);
    return cairn__fail(status,
                       "%s; the store does not answer: rank 0%s, which hosts it, ended, is stopped, or its machine "
                       "cannot be reached",
                       seen, g->is_of_all ? "" : " of all");
}

static cairn_status fail_with_notes(const struct notes *n, const char *seen, cairn_status status) {
    const struct note *cause = find_cause(n);
    struct text t = {.used = 0};
    put(&t, seen);
    put_others(&t, n);
    if (n->complete) put_silent(&t, n);
    if (cause) {
        put(&t, "; first failure, on ");
        put_rank(&t, n->group, (int)(cause - n->all));
        put(&t, ": ");
        put(&t, cause->seen);
    }
    return cairn__fail(status, "%s", t.room);
}

cairn_status cairn__notes_exchange(cairn_group *group, const struct cairn__call *call, cairn_status status) {
    struct notes n = {.group = group, .store = group->family->store};
    char seen[512];
    snprintf(seen, sizeof(seen), "%s", cairn_last_error());
    if (!n.store || cairn__calloc((size_t)group->size, sizeof(*n.all), (void **)&n.all) != CAIRN_OK)
        return cairn__fail(status, "%s", seen);
    const double timeout = cairn__store_hurry(n.store, PATIENCE_MS * 1e-3); /* its server may hang */
    cairn_status st = leave(&n, call, status, seen);
    n.complete = st == CAIRN_OK && read_all(&n) == CAIRN_OK;
    if (timeout > 0) (void)cairn_store_set_timeout(n.store, timeout);
    status = st == CAIRN_OK ? fail_with_notes(&n, seen, status) : fail_without_notes(&n, seen, status);
    cairn__free(n.all);
    return status;
}
