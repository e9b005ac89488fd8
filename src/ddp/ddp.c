/* The context: how it is made and ended, and forward. */
#include <string.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "ddp/context.h"

/* ---- making: each rank by itself ---- */

static bool has_param(const struct cairn_param_set *set, const char *name) {
    for (size_t i = 0; i < set->count; i++) {
        if (strcmp(set->params[i]->name, name) == 0) return true;
    }
    return false;
}

static bool has_buffer(const cairn_module *model, const char *name) {
    for (size_t i = 0; model && i < cairn_module_num_buffers(model); i++) {
        const char *buffer = NULL;
        if (cairn_module_buffer(model, i, &buffer) && strcmp(buffer, name) == 0) return true;
    }
    return false;
}

static bool is_trigger(const struct ddp_options *o, const char *name) {
    for (size_t i = 0; i < o->num_trigger_params; i++) {
        if (strcmp(o->allreduce_trigger_params[i], name) == 0) return true;
    }
    return false;
}

static cairn_status make_slots(struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    const size_t count = d->set->count;
    TRY(cairn__calloc(count, sizeof(d->shared[0]), (void **)&d->shared));
    TRY(cairn__calloc(count, sizeof(d->slots[0]), (void **)&d->slots));
    TRY(cairn__calloc(count, sizeof(d->slot_of[0]), (void **)&d->slot_of));
    TRY(cairn__calloc(count, sizeof(d->ignored[0]), (void **)&d->ignored));
    TRY(cairn__calloc(count, sizeof(d->order[0]), (void **)&d->order));
    TRY(cairn__calloc(count, sizeof(d->planned[0]), (void **)&d->planned));
    TRY(cairn__calloc(count, sizeof(d->items[0]), (void **)&d->items));
    for (size_t i = 0; i < count; i++) {
        struct cairn__param *p = d->set->params[i];
        if (cairn__ddp_ignores(d, p->name)) {
            d->ignored[d->num_ignored++] = p;
        } else {
            d->shared[d->num_shared++] = (struct cairn__ddp_shared){p, is_trigger(&d->options, p->name)};
        }
    }
    cairn__ddp_list_slots(d);
    REQUIRE(d->num_shared > 0, CAIRN_EINVAL, "%s: %s, so there is nothing to reduce", d->call,
            count ? "ddp_options.ignored names every parameter" : "the model has no parameters");
out:
    return st;
}

static cairn_status read_options(struct ddp_context *d, const struct cairn__ddp_request *r) {
    struct ddp_options o;
    cairn_status st = CAIRN_OK;
    TRY(cairn__ddp_options_read(r->options, r->group, r->model != NULL, &o));
    d->options = o;
    d->options.ignored = NULL;
    d->options.num_ignored = 0;
    char **kept = NULL;
    TRY(cairn__calloc(o.num_ignored, sizeof(kept[0]), (void **)&kept));
    d->options.ignored = (const char *const *)kept;
    for (size_t i = 0; i < o.num_ignored; i++) {
        TRY(cairn__strdup(o.ignored[i], &kept[i]));
        d->options.num_ignored++;
    }
out:
    return st;
}

/* Broadcasts and plans are of whole parameters. */
static cairn_status check_whole(const struct ddp_context *d) {
    for (size_t i = 0; i < d->set->count; i++)
        REQUIRE(!d->set->params[i]->is_sharded, CAIRN_ESTATE,
                "%s: parameter '%s' has a part of its f32 values alone since a context with "
                "ddp_options.shard_optimizer ended with a dead group or without memory for the whole; make the model "
                "anew and load a checkpoint",
                d->call, d->set->params[i]->name);
    return CAIRN_OK;
}

static cairn_status prepare(struct ddp_context *d, const struct cairn__ddp_request *r) {
    cairn_status st = CAIRN_OK;
    REQUIRE(r->set, cairn__last_status(), "%s", cairn_last_error());
    REQUIRE(!r->set->frozen_by, CAIRN_ESTATE, "%s: the %s a ddp context already; ddp_destroy it first", r->call,
            r->model ? "model has" : "parameters have");
    TRY(cairn__param_set_check_own_weights(r->call, r->set));
    struct cairn_device *reduced = cairn__group_device(r->group);
    REQUIRE(!reduced || reduced == r->set->env->device, CAIRN_EINVAL,
            "%s: the group belongs to another environment; use cairn_env_group of the %s", r->call,
            r->model ? "model's" : "parameters'");
    TRY(read_options(d, r));
    d->call = r->call;
    d->model = r->model;
    d->set = r->set;
    d->group = r->group;
    d->active = cairn_group_size(r->group);
    const struct ddp_options *o = &d->options;
    for (size_t i = 0; i < o->num_ignored; i++)
        REQUIRE(has_param(d->set, o->ignored[i]) || has_buffer(d->model, o->ignored[i]), CAIRN_EINVAL,
                "%s: ddp_options.ignored names '%s', but no parameter or buffer has that name", d->call, o->ignored[i]);
    for (size_t i = 0; i < o->num_trigger_params; i++) {
        const char *name = o->allreduce_trigger_params[i];
        REQUIRE(has_param(d->set, name) && !cairn__ddp_ignores(d, name), CAIRN_EINVAL,
                "%s: ddp_options.allreduce_trigger_params names '%s', but %s", d->call, name,
                has_param(d->set, name) ? "an ignored parameter cannot close a bucket" : "no parameter has that name");
    }
    TRY(check_whole(d));
    TRY(make_slots(d));
    d->shards = o->shard_optimizer == CAIRN_ON && cairn_group_size(r->group) > 1;
    if (o->shard_optimizer == CAIRN_ON) TRY(cairn__ddp_shards_check(d));
    TRY(cairn__ddp_plan_slots(d));
out:
    return st;
}

/* ---- making: all ranks together ---- */

static void free_context(struct ddp_context *d) {
    struct ddp_options *o = &d->options;
    cairn_group_destroy(&d->channel);
    for (size_t i = 0; o->ignored && i < o->num_ignored; i++) cairn__free((void *)(uintptr_t)o->ignored[i]);
    cairn__free((void *)(uintptr_t)o->ignored);
    cairn__ddp_times_free(&d->times);
    cairn__ddp_unused_end(d);
    cairn__ddp_plan_free(&d->plan);
    cairn__free(d->sends);
    cairn__free(d->bucket_params);
    cairn__free(d->shared);
    cairn__free(d->slots);
    cairn__free(d->slot_of);
    cairn__free(d->ignored);
    cairn__free(d->order);
    cairn__free(d->planned);
    cairn__free(d->listed);
    cairn__free(d->items);
    cairn__free(d);
}

cairn_status cairn__ddp_make(const struct cairn__ddp_request *request, ddp_context **out) {
    struct ddp_context *d = NULL;
    cairn_status st = cairn__calloc(1, sizeof(*d), (void **)&d);
    if (st == CAIRN_OK) st = prepare(d, request);
    TRY(cairn__group_agree_on_status(request->group, request->call, st));
    TRY(cairn__ddp_agree_on_options(d));
    d->options.allreduce_trigger_params = NULL; /* the caller's */
    TRY(cairn_group_new(d->group, NULL, 0, NULL, &d->channel));
    if (d->options.init_sync != CAIRN_OFF && cairn_group_size(d->channel) > 1) {
        TRY(cairn__ddp_agree_on_params(d));
        TRY(cairn__ddp_broadcast_params(d));
        TRY(cairn__ddp_broadcast_buffers(d));
    }
    TRY(cairn__ddp_attach(d));
    st = cairn__ddp_shards_begin(d);
    if (st != CAIRN_OK) cairn__ddp_detach(d);
    TRY(st);
    cairn__ddp_listen(d);
    cairn__ddp_log_made(d);
    *out = d;
    return CAIRN_OK;
out:
    if (d) free_context(d);
    return st;
}

cairn_status ddp_create(cairn_module *model, cairn_group *group, const struct ddp_options *options, ddp_context **out) {
    REQUIRE(model && group && out, CAIRN_EINVAL, "ddp_create: model, group and out must be set");
    const struct cairn__ddp_request request = {"ddp_create", model, cairn_module_params(model), group, options};
    return cairn__ddp_make(&request, out);
}

/* Why a channel died is logged here only if no call has returned it before. */
void ddp_destroy(ddp_context **ddp) {
    if (!ddp || !*ddp) return;
    struct ddp_context *d = *ddp;
    if (cairn__group_is_recorded(d->channel)) {
        cairn__log(CAIRN_LOG_ERROR,
                   "ddp_destroy: a graph is alive that has recorded its collectives, so it is kept; call "
                   "cairn_graph_destroy first");
        return;
    }
    const bool was_alive = cairn__group_progress(d->channel) == CAIRN_OK;
    if (cairn__ddp_shards_end(d) != CAIRN_OK) {
        cairn__log(CAIRN_LOG_ERROR, "ddp_destroy: the context is kept, since its weights would be lost: %s",
                   cairn_last_error());
        return;
    }
    cairn__ddp_log_end(d);
    if (d->set->in_backward) cairn__param_set_make_incomplete(d->set); /* declared, and never averaged */
    cairn__param_set_drop_unsynced(d->set);
    cairn__ddp_buffers_end(d);
    if (d->own_hook) d->own_hook->end(d);
    cairn__ddp_detach(d);
    if (was_alive && cairn__group_progress(d->channel) != CAIRN_OK)
        cairn__log(CAIRN_LOG_ERROR, "ddp_destroy: %s", cairn_last_error());
    cairn__param_set_end_listen(d->set);
    free_context(d);
    *ddp = NULL;
}

/* ---- forward ---- */

cairn_status cairn__ddp_before_forward(struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    d->zero_loss = false;
    cairn__param_set_spare_unsynced(d->set, false);
    if (cairn__records(d->set->env)) TRY(cairn__ddp_rebuild(d)); /* a forward without a graph may be one rank's alone */
    TRY(cairn__ddp_buffers_forward(d));
out:
    return st;
}

static cairn_tensor *no_forward(const char *call, const struct ddp_context *d) {
    (void)cairn__fail(CAIRN_EINVAL,
                      d ? "%s: the context has parameters in your own memory; run the forward yourself"
                        : "%s: ddp is NULL",
                      call);
    return NULL;
}

cairn_tensor *ddp_forward(ddp_context *ddp, cairn_tensor *x) {
    if (!ddp || !ddp->model) return no_forward("ddp_forward", ddp);
    cairn__ddp_times_forward_begin(&ddp->times);
    cairn_tensor *y = cairn__ddp_before_forward(ddp) == CAIRN_OK ? cairn_module_forward(ddp->model, x) : NULL;
    cairn__ddp_times_forward_end(&ddp->times);
    return y;
}

cairn_tensor *ddp_forward_n(ddp_context *ddp, cairn_tensor *const *inputs, int count) {
    if (!ddp || !ddp->model) return no_forward("ddp_forward_n", ddp);
    cairn__ddp_times_forward_begin(&ddp->times);
    cairn_tensor *y =
        cairn__ddp_before_forward(ddp) == CAIRN_OK ? cairn_module_forward_n(ddp->model, inputs, count) : NULL;
    cairn__ddp_times_forward_end(&ddp->times);
    return y;
}

/* ---- looking ---- */

int ddp_bucket_count(const ddp_context *ddp) {
    return ddp ? (int)ddp->plan.count : 0;
}

cairn_status ddp_bucket_get(const ddp_context *ddp, int i, struct ddp_bucket *out) {
    REQUIRE(ddp && out, CAIRN_EINVAL, "ddp_bucket_get: ddp and out must be set");
    REQUIRE(i >= 0 && i < ddp_bucket_count(ddp), CAIRN_EINVAL, "ddp_bucket_get: index is %d, but there are %d buckets",
            i, ddp_bucket_count(ddp));
    const size_t room = out->struct_size;
    REQUIRE(room >= sizeof(room) && room <= 65536, CAIRN_EINVAL,
            "ddp_bucket_get: struct_size is %zu; begin with DDP_BUCKET_INIT", room);
    struct ddp_bucket bucket = cairn__ddp_bucket_view(ddp, (size_t)i);
    bucket.struct_size = room < sizeof(bucket) ? room : sizeof(bucket); /* the size that the caller was compiled with */
    memcpy(out, &bucket, bucket.struct_size);
    return CAIRN_OK;
}

cairn_group *ddp_group(const ddp_context *ddp) {
    return ddp ? ddp->channel : NULL;
}
