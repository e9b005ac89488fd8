/* What ddp saves (its hooks add their own), and which entries of parameters and buffers all ranks share. */
#include <string.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/status.h"
#include "ddp/context.h"
#include "param/stateful.h"

/* ---- which entries all ranks share ---- */

static bool spans_all(const struct ddp_context *d) {
    return cairn_group_size(d->channel) == d->set->env->size;
}

bool cairn__ddp_shares_param(void *ctx, size_t index) {
    const struct ddp_context *d = ctx;
    return spans_all(d) && !cairn__ddp_ignores(d, d->set->params[index]->name);
}

/* A reducer's gradients are never synchronised by a forward, and so its buffers are not either. */
bool cairn__ddp_shares_buffer(void *ctx, const char *path) {
    const struct ddp_context *d = ctx;
    return spans_all(d) && d->options.broadcast_buffers == CAIRN_ON && !d->reducer && !cairn__ddp_ignores(d, path);
}

/* ---- the order of arrival ---- */

static struct cairn_env *env_of(const void *object) {
    return ((const ddp_context *)object)->set->env;
}

static cairn_status list(void *object, struct cairn__entries *entries) {
    struct ddp_context *d = object;
    const int64_t shape[] = {(int64_t)d->set->count};
    cairn_status st = CAIRN_OK;
    REQUIRE(!d->set->in_backward, CAIRN_ESTATE,
            d->model ? "a backward is running: save and load after the step that follows it"
                     : "gradients are being averaged: call ddp_wait, and then cairn_step");
    if (!d->listed) TRY(cairn__calloc(d->set->count, sizeof(d->listed[0]), (void **)&d->listed));
    /* The order that buckets were planned in, or will be before the next backward; padded with -1. */
    const bool comes = !d->rebuilt && d->backwards > 0 && d->num_arrived == d->num_slots;
    const size_t *order = comes ? d->order : d->planned;
    const size_t known = comes ? d->num_arrived : d->num_planned;
    for (size_t i = 0; i < d->set->count; i++) d->listed[i] = i < known ? (int64_t)d->slots[order[i]].param->index : -1;
    const enum cairn__entry_owner owner = spans_all(d) ? CAIRN__ENTRY_SHARED : CAIRN__ENTRY_RANK;
    TRY(cairn__entries_add_host_array(entries, owner, CAIRN_I64, 1, shape, d->listed, "order"));
    TRY(cairn__entries_add_i64(entries, owner, d->backwards, "backwards"));
    if (d->own_hook) TRY(d->own_hook->list(d, entries));
out:
    return st;
}

/* Fills d->order with the slots, each once. false: other parameters take part now, or no order was known. */
static bool take_order(struct ddp_context *d, bool *seen) {
    for (size_t i = 0; i < d->num_slots; i++) {
        const int64_t index = d->listed[i];
        const bool is_param = index >= 0 && index < (int64_t)d->set->count;
        const size_t s = is_param ? d->slot_of[index] : SIZE_MAX;
        if (s == SIZE_MAX || seen[s]) return false;
        seen[s] = true;
        d->order[i] = s;
    }
    return d->num_slots == d->set->count || d->listed[d->num_slots] == -1;
}

static cairn_status check(const void *object, const struct cairn__entries *entries) {
    const int64_t backwards = cairn__entries_i64(entries, "backwards");
    REQUIRE(backwards >= 0 && backwards < (int64_t)1 << 62, CAIRN_EINVAL, "ddp: backwards is %lld",
            (long long)backwards);
    const struct ddp_context *d = object;
    return d->own_hook ? d->own_hook->check(d, entries) : CAIRN_OK;
}

/* The next forward plans buckets in rank 0's order, as it does after the first backward. */
static cairn_status loaded(void *object, const struct cairn__entries *entries) {
    struct ddp_context *d = object;
    bool *seen = NULL;
    cairn_status st = CAIRN_OK;
    TRY(check(d, entries));
    TRY(cairn__calloc(d->num_slots, sizeof(seen[0]), (void **)&seen));
    d->num_arrived = 0;
    d->backwards = cairn__entries_i64(entries, "backwards");
    if (take_order(d, seen)) d->num_arrived = d->num_slots;
    if (!d->reducer && !d->shards) d->rebuilt = false;
    if (d->own_hook) d->own_hook->loaded(d, entries);
out:
    cairn__free(seen);
    return st;
}

static const struct cairn__stateful_ops ops = {
    .kind = "ddp context", .env = env_of, .list = list, .check = check, .loaded = loaded};

cairn_stateful ddp_stateful(ddp_context *ddp) {
    return (cairn_stateful){&ops, ddp};
}
