/* Agreement on parameters that are frozen or thawed: ranks exchange which they change, and if they differ every rank
 * fails with the same first parameter. */
#include <string.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/hash.h"
#include "core/status.h"
#include "ddp/context.h"
#include "kernels/kernels.h"

enum change { LEAVES, FREEZES, THAWS };

static const char *const words[] = {"leaves it as it is", "freezes it", "thaws it"};

/* map [num_shared] */
static cairn_status compare(const struct ddp_context *d, const char *call, const uint8_t *map) {
    uint64_t all[CAIRN__MAX_RANKS], mine = cairn__hash_bytes(CAIRN__HASH_START, map, d->num_shared);
    uint8_t *maps = NULL;
    bool same = true;
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_exchange(d->channel, all, &mine, sizeof(mine)));
    for (int r = 1; r < cairn_group_size(d->channel); r++) same &= all[r] == all[0];
    if (same) return CAIRN_OK;
    TRY(cairn__group_make_room(d->channel, call, d->num_shared, (void **)&maps));
    TRY(cairn__group_exchange(d->channel, maps, map, d->num_shared));
    for (size_t i = 0; i < d->num_shared; i++) {
        for (int r = 1; r < cairn_group_size(d->channel); r++) {
            const uint8_t there = maps[(size_t)r * d->num_shared + i];
            if (there != maps[i])
                TRY(cairn__fail(CAIRN_EPEER,
                                "%s: parameter '%s': rank 0 %s, but rank %d %s; make the same call on every rank", call,
                                d->shared[i].param->name, words[maps[i]], r, words[there]));
        }
    }
out:
    cairn__free(maps);
    return st;
}

cairn_status cairn__ddp_agree_on_frozen(void *ctx, const char *call, struct cairn__param *const *params, size_t count,
                                        bool on, cairn_status status) {
    const struct ddp_context *d = ctx;
    cairn_status st = CAIRN_OK;
    uint8_t *map = NULL;
    if (status == CAIRN_OK && d->shards && count > 0)
        status = cairn__fail(CAIRN_ENOTSUP,
                             "%s: parameter '%s' cannot be %s while ranks share its update "
                             "(ddp_options.shard_optimizer); do it before %s",
                             call, params[0]->name, on ? "thawed" : "frozen", d->call);
    if (status == CAIRN_OK) status = cairn__calloc(d->set->count, sizeof(map[0]), (void **)&map);
    TRY(cairn__group_agree_on_status(d->channel, call, status));
    if (cairn_group_size(d->channel) > 1) {
        for (size_t i = 0; i < count; i++) map[params[i]->index] = on ? THAWS : FREEZES;
        for (size_t i = 0; i < d->num_shared; i++) map[i] = map[d->shared[i].param->index]; /* in ascending order */
        TRY(compare(d, call, map));
    }
out:
    cairn__free(map);
    return st;
}
