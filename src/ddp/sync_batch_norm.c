/* Batch normalisation over ranks: combines the statistics that nn's batch_norm computes of each rank's share.
 *
 * Layers over the same ranks share a channel, which the last of them destroys. Before anything changes, ranks agree on
 * what the layers are, and on whether they have a channel already: all ranks convert, or none. A rank that fails sends
 * its failure in the same message, so no rank waits for it. */
#include "cairn/sync_batch_norm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/status.h"
#include "core/trace.h"
#include "device/env.h"
#include "kernels/kernels.h"
#include "nn/hooks.h"

struct cairn__sync_channel {
    cairn_env *env;
    cairn_group *group;
    int64_t number; /* the same on all its ranks, and no other channel's of theirs */
    int layers;     /* that send through it */
    struct cairn__sync_channel *next;
};

/* ---- numbers ---- */

/* A single value over all ranks has no variance. The counts are on the device, so a rank reads them only if its own
 * share has at most one value. If the total is one, this holds on every rank, and all of them return the error. */
static cairn_status check_total(cairn_group *group, const double *all, size_t stride, double values) {
    struct cairn_device *d = cairn__group_device(group);
    const int p = cairn_group_size(group);
    cairn_status st = CAIRN_OK;
    double total = 0;
    if (values > 1) return CAIRN_OK;
    for (int r = 0; r < p; r++) {
        double one = 0;
        TRY(cairn__device_download(d, &one, all + (size_t)r * stride, sizeof(one)));
        total += one;
    }
    REQUIRE(total != 1, CAIRN_EINVAL,
            "SyncBatchNorm: training needs more than one value for each channel, but the %d ranks have 1 together", p);
out:
    return st;
}

static cairn_status merge(void *ctx, double *own, double *all, size_t channels, double values) {
    cairn_group *group = ctx;
    struct cairn_device *d = cairn__group_device(group);
    const size_t n = 1 + 2 * channels;
    const uint64_t begin = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn_allgather(group, all, own, n, CAIRN_F64, NULL));
    cairn__trace("ddp", "sync_batch_norm_forward", (int64_t)channels, (int64_t)(n * sizeof(*own)), begin);
    TRY(check_total(group, all, n, values));
    d->math->merge_moments(d, own, all, (size_t)cairn_group_size(group), channels);
out:
    return st;
}

static cairn_status add_up(void *ctx, double *own, size_t n) {
    const uint64_t begin = cairn__trace_on() ? cairn__now_ns() : 0;
    cairn_status st = cairn_allreduce(ctx, own, n, CAIRN_F64, CAIRN_SUM, NULL);
    cairn__trace("ddp", "sync_batch_norm_backward", (int64_t)(n / 2), (int64_t)(n * sizeof(*own)), begin);
    return st;
}

static struct cairn__stats_exchange exchange_over(cairn_group *channel) {
    return (struct cairn__stats_exchange){.ctx = channel,
                                          .shares = cairn_group_size(channel),
                                          .merge = merge,
                                          .sum = add_up};
}

cairn_tensor *ddp_sync_batch_norm_forward(cairn_tensor *x, cairn_tensor *running_mean, cairn_tensor *running_var,
                                          cairn_tensor *weight, cairn_tensor *bias, int training, double momentum,
                                          double eps, cairn_group *channel) {
    if (!channel) {
        (void)cairn__fail(CAIRN_EINVAL, "sync_batch_norm_forward: the channel is NULL; make one with cairn_group_new, "
                                        "or call cairn_batch_norm_forward");
        return NULL;
    }
    const struct cairn__stats_exchange exchange = exchange_over(channel);
    return cairn__batch_norm_over(x, running_mean, running_var, weight, bias, training, momentum, eps, &exchange);
}

/* ---- channels ---- */

static bool same_ranks(const cairn_group *a, const cairn_group *b) {
    if (cairn_group_size(a) != cairn_group_size(b)) return false;
    for (int r = 0; r < cairn_group_size(a); r++) {
        if (cairn_group_env_rank(a, r) != cairn_group_env_rank(b, r)) return false;
    }
    return true;
}

static void let_go(void *owner) {
    struct cairn__sync_channel *channel = owner;
    struct cairn__place *const place = &channel->env->places[CAIRN__PLACE_OF_DDP];
    struct cairn__sync_channel *newer = place->at;
    if (--channel->layers > 0) return;
    if (newer == channel) {
        place->at = channel->next;
    } else {
        while (newer && newer->next != channel) newer = newer->next;
        if (newer) newer->next = channel->next;
    }
    cairn_group_destroy(&channel->group);
    cairn__free(channel);
}

/* ---- agreeing ---- */

struct layers {
    cairn_module *model;
    cairn_module **list;
    size_t count;
    struct cairn__sync_channel *channel; /* to these ranks; NULL = none yet */
};

/* What ranks exchange before anything changes. */
struct wish {
    int32_t status, layers;
    int64_t channel,
        made;         /* the number of the channel it has, 0 = none; of the last one it made, with whichever ranks */
    char reason[160]; /* where status is not CAIRN_OK */
};

static const cairn_tensor *mean_of(cairn_module *batch_norm) {
    return cairn_module_buffer(batch_norm, 0, NULL);
}

/* "1.running_mean" */
static const char *name_of(const struct layers *l, size_t i) {
    const char *name = "";
    for (size_t b = 0; b < cairn_module_num_buffers(l->model); b++) {
        if (cairn_module_buffer(l->model, b, &name) == mean_of(l->list[i])) break;
    }
    return name;
}

static cairn_status check_owners(const struct layers *l) {
    for (size_t i = 0; i < l->count; i++) {
        const struct cairn__sync_channel *owner = cairn__batch_norm_owner(l->list[i]);
        REQUIRE(!owner || owner == l->channel, CAIRN_ESTATE,
                "SyncBatchNorm: the layer of '%s' is synchronised over %d ranks already, and cannot be over others",
                name_of(l, i), cairn_group_size(owner->group));
    }
    return CAIRN_OK;
}

/* A rank's own failure comes first; its sentence is the last error. */
static cairn_status compare_wishes(cairn_group *group, const struct wish *all, cairn_status own) {
    if (own != CAIRN_OK) return own;
    for (int r = 0; r < cairn_group_size(group); r++) {
        REQUIRE(all[r].status == CAIRN_OK, CAIRN_EPEER,
                "SyncBatchNorm: rank %d failed, so no layer is converted: %.159s", cairn_group_env_rank(group, r),
                all[r].reason);
    }
    for (int r = 1; r < cairn_group_size(group); r++) {
        REQUIRE(all[r].layers == all[0].layers, CAIRN_EPEER,
                "SyncBatchNorm: rank %d has %d batch normalisations, rank %d has %d; every rank must build the same "
                "model",
                cairn_group_env_rank(group, 0), (int)all[0].layers, cairn_group_env_rank(group, r), (int)all[r].layers);
    }
    return CAIRN_OK;
}

enum { AT_A_TIME = 16 };

/* A few layers at a time, on the stack: a rank that ran out of memory would leave the others waiting. */
static cairn_status compare_channels(cairn_group *group, const struct layers *l) {
    int64_t all[CAIRN__MAX_RANKS * AT_A_TIME];
    cairn_status st = CAIRN_OK;
    for (size_t first = 0; first < l->count; first += AT_A_TIME) {
        int64_t mine[AT_A_TIME] = {0};
        for (size_t i = first; i < l->count && i < first + AT_A_TIME; i++)
            mine[i - first] = cairn_tensor_size(mean_of(l->list[i]), 0);
        TRY(cairn__group_exchange(group, all, mine, sizeof(mine)));
        for (int k = 0; k < cairn_group_size(group) * AT_A_TIME; k++) {
            const int i = k % AT_A_TIME, r = k / AT_A_TIME;
            REQUIRE(all[k] == all[i], CAIRN_EPEER,
                    "SyncBatchNorm: '%s' has %" PRId64 " channels on rank %d and %" PRId64
                    " on rank %d; every rank must build the same model",
                    name_of(l, first + (size_t)i), all[i], cairn_group_env_rank(group, 0), all[k],
                    cairn_group_env_rank(group, r));
        }
    }
out:
    return st;
}

/* ---- layers ---- */

/* Takes *spare, which is set to NULL. */
static cairn_status open_channel(cairn_env *env, cairn_group *group, int64_t number, struct cairn__sync_channel **spare,
                                 struct cairn__sync_channel **out) {
    struct cairn__sync_channel *channel = *spare;
    cairn_status st = CAIRN_OK;
    TRY(cairn_group_new(group, NULL, 0, NULL, &channel->group));
    channel->env = env;
    struct cairn__place *const place = &env->places[CAIRN__PLACE_OF_DDP];
    channel->number = place->number = number;
    channel->next = place->at;
    place->at = *out = channel;
    *spare = NULL;
out:
    return st;
}

/* Layers that have a channel keep it. */
static void share(const struct layers *l) {
    const struct cairn__stats_exchange alone = {.shares = 1};
    for (size_t i = 0; i < l->count; i++) {
        if (cairn__batch_norm_owner(l->list[i])) continue;
        if (l->channel) {
            const struct cairn__stats_exchange exchange = exchange_over(l->channel->group);
            cairn__batch_norm_share(l->list[i], &exchange, l->channel, let_go);
            l->channel->layers++;
        } else {
            cairn__batch_norm_share(l->list[i], &alone, NULL, NULL);
        }
    }
}

/* All ranks' layers, or none. own: this rank's status; if it is an error the other ranks fail with it. */
static cairn_status synchronise(cairn_env *env, cairn_group *group, struct layers *l, cairn_status own) {
    struct cairn__sync_channel *spare = NULL;
    int64_t number = 0;
    cairn_status st = CAIRN_OK;
    if (cairn_group_size(group) > 1) {
        l->channel = env->places[CAIRN__PLACE_OF_DDP].at;
        while (l->channel && !same_ranks(l->channel->group, group)) l->channel = l->channel->next;
        if (own == CAIRN_OK) own = check_owners(l);
        if (own == CAIRN_OK) own = cairn__calloc(1, sizeof(*spare), (void **)&spare);
        /* l->channel becomes one that all have, or NULL; number is new to all. */
        struct wish all[CAIRN__MAX_RANKS];
        struct wish mine = {.status = (int32_t)own,
                            .layers = (int32_t)l->count,
                            .made = env->places[CAIRN__PLACE_OF_DDP].number};
        if (l->channel) mine.channel = l->channel->number;
        if (own != CAIRN_OK) snprintf(mine.reason, sizeof(mine.reason), "%s", cairn_last_error());
        TRY(cairn__group_exchange(group, all, &mine, sizeof(mine)));
        TRY(compare_wishes(group, all, own));
        TRY(compare_channels(group, l));
        for (int r = 0; r < cairn_group_size(group); r++) {
            if (all[r].channel != mine.channel) l->channel = NULL;
            if (all[r].made >= number) number = all[r].made + 1;
        }
        if (!l->channel && l->count > 0) TRY(open_channel(env, group, number, &spare, &l->channel));
    }
    TRY(own);
    share(l);
out:
    cairn__free(spare);
    return st;
}

static cairn_status choose_group(cairn_env *env, cairn_group **group) {
    if (!*group) *group = cairn_env_group(env);
    const struct cairn_device *reduced = cairn__group_device(*group);
    REQUIRE(!reduced || reduced == env->device, CAIRN_EINVAL,
            "SyncBatchNorm: the group belongs to another environment; use one of the model's");
    return CAIRN_OK;
}

cairn_module *ddp_sync_batch_norm(cairn_env *env, int64_t channels, double eps, double momentum, cairn_group *group) {
    cairn_module *m = cairn_batch_norm(env, channels, eps, momentum);
    struct layers l = {.model = m, .list = &m, .count = m ? 1 : 0};
    if (!env || choose_group(env, &group) != CAIRN_OK ||
        synchronise(env, group, &l, m ? CAIRN_OK : cairn__last_status()) != CAIRN_OK)
        cairn_module_destroy(&m);
    return m;
}

cairn_status ddp_convert_sync_batchnorm(cairn_module *model, cairn_group *group, int *found) {
    REQUIRE(model, CAIRN_EINVAL, "convert_sync_batchnorm: the model is NULL");
    cairn_env *env = cairn__module_env(model);
    struct layers l = {.model = model};
    const size_t count = cairn__batch_norms(model, NULL, 0);
    cairn_status st = CAIRN_OK;
    TRY(choose_group(env, &group));
    st = cairn__calloc(count, sizeof(l.list[0]), (void **)&l.list);
    if (st == CAIRN_OK) l.count = cairn__batch_norms(model, l.list, count);
    TRY(synchronise(env, group, &l, st));
    if (found) *found = (int)l.count;
out:
    cairn__free(l.list);
    return st;
}

/* ---- blocks of ranks ---- */

cairn_status ddp_create_syncbn_process_group(cairn_group *group, int group_size, cairn_group **out) {
    REQUIRE(group, CAIRN_EINVAL, "create_syncbn_process_group: the group is NULL");
    int32_t sizes[CAIRN__MAX_RANKS];
    const int32_t mine = group_size;
    const int p = cairn_group_size(group);
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_exchange(group, sizes, &mine, sizeof(mine)));
    for (int r = 1; r < p; r++) {
        REQUIRE(sizes[r] == sizes[0], CAIRN_EPEER,
                "create_syncbn_process_group: rank %d passes a size of %d, but rank %d one of %d; pass the same on "
                "every rank",
                cairn_group_env_rank(group, 0), (int)sizes[0], cairn_group_env_rank(group, r), (int)sizes[r]);
    }
    REQUIRE(group_size >= 0 && group_size <= p && (group_size == 0 || p % group_size == 0), CAIRN_EINVAL,
            "create_syncbn_process_group: the size is %d, but there are %d ranks; it must divide their number, or be 0 "
            "for all of them",
            group_size, p);
    TRY(cairn_group_split(group, group_size ? cairn_group_rank(group) / group_size : 0, 0, NULL, out));
out:
    return st;
}
