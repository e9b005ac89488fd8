/* Communication hooks. A hook that only names a type changes the type that is sent; one with begin replaces the
 * all-reduce. */
#include <stdio.h>
#include <string.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "ddp/context.h"

/* ---- built-in ---- */

static cairn_status begin_nothing(void *ctx, const struct ddp_bucket *bucket, cairn_work **work) {
    (void)ctx, (void)bucket;
    *work = NULL;
    return CAIRN_OK;
}

static const struct ddp_comm_hook allreduce = {.struct_size = sizeof(allreduce), .name = "allreduce"},
                                  fp16_compress = {.struct_size = sizeof(fp16_compress),
                                                   .name = "fp16_compress",
                                                   .wire = CAIRN_F16},
                                  bf16_compress = {.struct_size = sizeof(bf16_compress),
                                                   .name = "bf16_compress",
                                                   .wire = CAIRN_BF16},
                                  noop = {.struct_size = sizeof(noop), .name = "noop", .begin = begin_nothing};

const struct ddp_comm_hook *ddp_allreduce_hook(void) {
    return &allreduce;
}

const struct ddp_comm_hook *ddp_fp16_compress_hook(void) {
    return &fp16_compress;
}

const struct ddp_comm_hook *ddp_bf16_compress_hook(void) {
    return &bf16_compress;
}

const struct ddp_comm_hook *ddp_noop_hook(void) {
    return &noop;
}

/* ---- registering ---- */

static bool holds_gradients(const struct ddp_context *d) {
    for (size_t s = 0; s < d->num_slots; s++) {
        if (cairn__grad_is_unsynced(d->slots[s].param->gradient)) return true;
    }
    return false;
}

cairn_status cairn__ddp_may_hook(const char *call, const struct ddp_context *d) {
    REQUIRE(!d->shards, CAIRN_ENOTSUP, "%s: a hook reduces what ddp_options.shard_optimizer scatters; give one of them",
            call);
    REQUIRE(!d->has_hook, CAIRN_ESTATE, "%s: the context has a hook already ('%s')", call,
            d->hook.name ? d->hook.name : "without a name");
    REQUIRE(!d->has_reduced && !d->running && !holds_gradients(d), CAIRN_ESTATE,
            "%s: a backward has run already; register the hook before the first one", call);
    return CAIRN_OK;
}

static cairn_status read_hook(const struct ddp_context *d, const struct ddp_comm_hook *given,
                              struct ddp_comm_hook *out) {
    cairn_status st = CAIRN_OK;
    REQUIRE(given, CAIRN_EINVAL, "ddp_register_comm_hook: hook is NULL");
    *out = (struct ddp_comm_hook){.struct_size = sizeof(*out)};
    TRY(cairn__options_read(out, sizeof(*out), given, "ddp_comm_hook"));
    REQUIRE(out->wire == 0 || out->wire == CAIRN_F32 || out->wire == CAIRN_F16 || out->wire == CAIRN_BF16, CAIRN_EINVAL,
            "ddp_register_comm_hook: wire is %s (%d); it must be f32, f16 or bf16", cairn_dtype_name(out->wire),
            (int)out->wire);
    REQUIRE(out->whole_parameters == CAIRN_DEFAULT || out->whole_parameters == CAIRN_ON ||
                out->whole_parameters == CAIRN_OFF,
            CAIRN_EINVAL,
            "ddp_register_comm_hook: whole_parameters is %d; it must be CAIRN_ON, CAIRN_OFF or 0 (the default)",
            (int)out->whole_parameters);
    TRY(cairn__ddp_may_hook("ddp_register_comm_hook", d));
out:
    return st;
}

/* ---- the same on every rank ---- */

struct hook_told {
    char name[64];
    int32_t wire, begins, finishes, whole;
};

cairn_status cairn__ddp_agree_on_hook(const struct ddp_context *d, const struct ddp_comm_hook *hook) {
    cairn_status st = CAIRN_OK;
    struct hook_told *all = NULL, mine;
    if (cairn_group_size(d->channel) == 1) return CAIRN_OK;
    TRY(cairn__group_make_room(d->channel, "ddp_register_comm_hook", sizeof(*all), (void **)&all));
    memset(&mine, 0, sizeof(mine));
    snprintf(mine.name, sizeof(mine.name), "%s", hook->name ? hook->name : "without a name");
    mine.wire = (int32_t)hook->wire;
    mine.begins = hook->begin != NULL;
    mine.finishes = hook->finish != NULL;
    mine.whole = hook->whole_parameters == CAIRN_ON;
    TRY(cairn__group_exchange(d->channel, all, &mine, sizeof(mine)));
    for (int r = 1; r < cairn_group_size(d->channel); r++) {
        if (memcmp(&all[0], &all[r], sizeof(mine)) == 0) continue;
        TRY(cairn__fail(CAIRN_EPEER,
                        "ddp_register_comm_hook: rank 0 registers the hook '%.63s' but rank %d '%.63s', or one with "
                        "other functions; register the same hook on every rank",
                        all[0].name, r, all[r].name));
    }
out:
    cairn__free(all);
    return st;
}

cairn_status ddp_register_comm_hook(ddp_context *ddp, const struct ddp_comm_hook *hook) {
    struct ddp_comm_hook own;
    cairn_status st = CAIRN_OK;
    REQUIRE(ddp, CAIRN_EINVAL, "ddp_register_comm_hook: ddp is NULL");
    st = read_hook(ddp, hook, &own);
    TRY(cairn__group_agree_on_status(ddp->channel, "ddp_register_comm_hook", st));
    TRY(cairn__ddp_agree_on_hook(ddp, &own));
    TRY(cairn__ddp_use_hook(ddp, &own));
    ddp->has_hook = true;
    ddp->reduces_nothing = own.begin == begin_nothing;
out:
    return st;
}
