/* Parts of a whole that ranks hold together, such as stages of a model, each on one rank or on several replicas. Names
 * identify parts, whichever rank has them. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/hash.h"
#include "core/status.h"
#include "state/state_internal.h"

#define CALL "cairn_state_save"

/* What ranks exchange about a part. */
struct fact {
    uint64_t name, value; /* hashes; value 0 = not compared */
    uint64_t item;        /* index in the rank's list */
};

static int compare_names(const void *a, const void *b) {
    const uint64_t x = ((const struct fact *)a)->name, y = ((const struct fact *)b)->name;
    return (x > y) - (x < y);
}

static uint64_t hash_value(const struct cairn__entry *e, const void *data) {
    if (e->owner != CAIRN__ENTRY_PART || !data) return 0;
    uint64_t h = cairn__hash_word(XXH3_64bits(data, e->nbytes), (uint64_t)e->dtype);
    for (int d = 0; d < e->ndim; d++) h = cairn__hash_word(h, (uint64_t)e->shape[d]);
    return h ? h : 1;
}

static void put_facts(const struct cairn__state_list *list, const void *const *data, struct fact *facts) {
    size_t k = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct cairn__entry *e = list->at[i].entry;
        if (!cairn__entry_is_part(e)) continue;
        facts[k++] = (struct fact){cairn__hash_text(CAIRN__HASH_START, list->at[i].name),
                                   hash_value(e, data ? data[i] : NULL), i};
    }
    qsort(facts, k, sizeof(facts[0]), compare_names);
}

/* If two ranks have a part, the lower one, `other`, writes it. */
static cairn_status compare_with(int rank, int other, const struct fact *mine, size_t count, const struct fact *theirs,
                                 size_t their_count, struct cairn__state_list *list) {
    size_t odd = list->count; /* index of the first part that differs */
    for (size_t i = 0; i < count; i++) {
        const struct fact *same = bsearch(&mine[i], theirs, their_count, sizeof(theirs[0]), compare_names);
        const size_t item = (size_t)mine[i].item;
        if (!same || list->at[item].is_others) continue;
        list->at[item].is_others = true;
        const bool is_equal = same->value == mine[i].value || same->value == 0 || mine[i].value == 0;
        if (!is_equal && item < odd) odd = item;
    }
    REQUIRE(odd == list->count, CAIRN_EINVAL,
            CALL ": ranks %d and %d have a part '%s' each, and not the same; name modules by their place in the whole "
                 "model (cairn_sequential_named), and let ddp keep replicas equal",
            other, rank, list->at[odd].name);
    return CAIRN_OK;
}

cairn_status cairn__parts_share(cairn_group *group, struct cairn__state_list *list, const void *const *data) {
    const int ranks = cairn_group_size(group), rank = cairn_group_rank(group);
    int64_t counts[CAIRN__MAX_RANKS], mine = 0;
    struct fact *own = NULL, *all = NULL;
    size_t most = 0;
    cairn_status st = CAIRN_OK;
    if (ranks == 1) return CAIRN_OK;
    for (size_t i = 0; i < list->count; i++) mine += cairn__entry_is_part(list->at[i].entry);
    TRY(cairn__group_exchange(group, counts, &mine, sizeof(mine)));
    for (int r = 0; r < ranks; r++) most = (size_t)counts[r] > most ? (size_t)counts[r] : most;
    if (most == 0) return CAIRN_OK;
    st = cairn__calloc(most, sizeof(own[0]), (void **)&own);
    TRY(cairn__group_agree_on_status(group, CALL, st));
    TRY(cairn__group_make_room(group, CALL, most * sizeof(own[0]), (void **)&all));
    put_facts(list, data, own);
    TRY(cairn__group_exchange(group, all, own, most * sizeof(own[0])));
    for (int r = 0; st == CAIRN_OK && r < rank; r++)
        st = compare_with(rank, r, all + (size_t)rank * most, (size_t)counts[rank], all + (size_t)r * most,
                          (size_t)counts[r], list);
    TRY(cairn__group_agree_on_status(group, CALL, st));
out:
    cairn__free(own);
    cairn__free(all);
    return st;
}

cairn_status cairn__parts_unite(cairn_group *group, uint8_t *taken, size_t count) {
    const int ranks = cairn_group_size(group);
    uint8_t *all = NULL;
    cairn_status st = CAIRN_OK;
    if (ranks == 1 || count == 0) return CAIRN_OK;
    TRY(cairn__group_make_room(group, "cairn_state_load", count, (void **)&all));
    TRY(cairn__group_exchange(group, all, taken, count));
    for (size_t i = 0; i < (size_t)ranks * count; i++) taken[i % count] |= all[i];
out:
    cairn__free(all);
    return st;
}
