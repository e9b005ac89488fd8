/* Post-local SGD (cairn/local_sgd.h): the hook that ends global averages, and averages of weights. */
#include <stdio.h>

#include "cairn/local_sgd.h"
#include "comm/group.h"
#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "ddp/context.h"
#include "param/stateful.h"

#define CALL "ddp_post_local_sgd_register"

struct cairn__local_sgd {
    int64_t start, iterations; /* backwards: averaged by all; that have settled */
    cairn_group *channel;      /* of the subgroup; NULL = there is none */
};

static bool is_local(const struct cairn__local_sgd *l) {
    return l->iterations >= l->start;
}

/* ---- the hook ---- */

static cairn_status begin(void *ctx, const struct ddp_bucket *bucket, cairn_work **work) {
    struct ddp_context *d = ctx;
    const struct cairn__local_sgd *l = d->local_sgd;
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_refuse_recording(d->set->env->device,
                                       "with post-local SGD backwards differ, so that none can be recorded; run the "
                                       "step without a graph"));
    if (!is_local(l)) return cairn__ddp_reduce(d, bucket, work);
    *work = NULL;
    if (!l->channel) return CAIRN_OK;
    cairn__ddp_weigh(d, bucket);
    TRY(cairn__group_average(l->channel, bucket->buffer, bucket->n, bucket->dtype,
                             d->options.gradient_average == CAIRN_OFF ? 0 : cairn_group_size(l->channel), NULL, work));
out:
    return st;
}

static cairn_status settle(struct ddp_context *d) {
    struct cairn__local_sgd *l = d->local_sgd;
    d->set->ranks_differ |= is_local(l);
    l->iterations++;
    return CAIRN_OK;
}

/* ---- state ---- */

#define ENTRY "local_sgd.iterations"

static cairn_status list(struct ddp_context *d, struct cairn__entries *entries) {
    const bool spans_all = cairn_group_size(d->channel) == d->set->env->size;
    if (cairn__entries_is_load(entries) && !cairn__entries_has(entries, ENTRY)) return CAIRN_OK;
    return cairn__entries_add_i64(entries, spans_all ? CAIRN__ENTRY_SHARED : CAIRN__ENTRY_RANK,
                                  d->local_sgd->iterations, ENTRY);
}

static cairn_status check(const struct ddp_context *d, const struct cairn__entries *entries) {
    (void)d;
    if (!cairn__entries_find(entries, ENTRY)) return CAIRN_OK;
    const int64_t iterations = cairn__entries_i64(entries, ENTRY);
    REQUIRE(iterations >= 0 && iterations < (int64_t)1 << 62, CAIRN_EINVAL, "ddp: " ENTRY " is %lld",
            (long long)iterations);
    return CAIRN_OK;
}

static void loaded(struct ddp_context *d, const struct cairn__entries *entries) {
    d->local_sgd->iterations = cairn__entries_find(entries, ENTRY) ? cairn__entries_i64(entries, ENTRY) : 0;
}

/* ---- made and ended ---- */

static cairn_status read_options(const struct ddp_context *d, const struct ddp_post_local_sgd_options *given,
                                 struct ddp_post_local_sgd_options *out) {
    struct ddp_post_local_sgd_options o = {.struct_size = sizeof(o)};
    cairn_status st = CAIRN_OK;
    TRY(cairn__ddp_may_hook(CALL, d));
    TRY(cairn__options_read(&o, sizeof(o), given, "ddp_post_local_sgd_options"));
    REQUIRE(o.start_localSGD_iter >= 0, CAIRN_EINVAL,
            "ddp_post_local_sgd_options.start_localSGD_iter is %lld; it must be positive, or 0 for 100",
            (long long)o.start_localSGD_iter);
    REQUIRE(!o.subgroup || cairn__group_device(o.subgroup) == cairn__group_device(d->group), CAIRN_EINVAL,
            "ddp_post_local_sgd_options.subgroup belongs to another environment; make it of the context's group by "
            "cairn_group_split");
    if (o.start_localSGD_iter == 0) o.start_localSGD_iter = 100;
    *out = o;
out:
    return st;
}

/* The same on every rank: each has its own subgroup, or none has one. */
static cairn_status agree_on_options(const struct ddp_context *d, const struct ddp_post_local_sgd_options *o) {
    int64_t *all = NULL;
    const int64_t mine[2] = {o->start_localSGD_iter, o->subgroup != NULL};
    cairn_status st = CAIRN_OK;
    if (cairn_group_size(d->channel) == 1) return CAIRN_OK;
    TRY(cairn__group_make_room(d->channel, CALL, sizeof(mine), (void **)&all));
    TRY(cairn__group_exchange(d->channel, all, mine, sizeof(mine)));
    for (int r = 1; r < cairn_group_size(d->channel); r++) {
        const int64_t *other = all + 2 * r;
        if (all[0] != other[0])
            TRY(cairn__fail(CAIRN_EPEER,
                            CALL ": ddp_post_local_sgd_options.start_localSGD_iter is %lld on rank 0 but %lld on rank "
                                 "%d; give every rank the same options",
                            (long long)all[0], (long long)other[0], r));
        if (all[1] != other[1])
            TRY(cairn__fail(CAIRN_EPEER,
                            CALL ": ddp_post_local_sgd_options.subgroup is %s on rank 0 but %s on rank %d; give every "
                                 "rank the subgroup that it is in, or none",
                            all[1] ? "set" : "NULL", other[1] ? "set" : "NULL", r));
    }
out:
    cairn__free(all);
    return st;
}

static void end(struct ddp_context *d) {
    cairn_group_destroy(&d->local_sgd->channel);
    cairn__free(d->local_sgd);
    d->local_sgd = NULL;
}

static const struct cairn__own_hook own_hook = {
    .settle = settle, .list = list, .check = check, .loaded = loaded, .end = end};

cairn_status ddp_post_local_sgd_register(ddp_context *ddp, const struct ddp_post_local_sgd_options *options) {
    struct ddp_post_local_sgd_options o = {.struct_size = sizeof(o)};
    cairn_status st = CAIRN_OK;
    REQUIRE(ddp, CAIRN_EINVAL, CALL ": ddp is NULL");
    const struct ddp_comm_hook hook = {.struct_size = sizeof(hook),
                                       .name = "post_local_sgd",
                                       .ctx = ddp,
                                       .begin = begin};
    struct cairn__local_sgd *own = NULL;
    st = read_options(ddp, options, &o);
    if (st == CAIRN_OK) st = cairn__calloc(1, sizeof(*own), (void **)&own);
    TRY(cairn__group_agree_on_status(ddp->channel, CALL, st));
    TRY(cairn__ddp_agree_on_hook(ddp, &hook));
    TRY(agree_on_options(ddp, &o));
    own->start = o.start_localSGD_iter;
    if (o.subgroup) st = cairn_group_new(o.subgroup, NULL, 0, NULL, &own->channel);
    TRY(cairn__group_agree_on_status(ddp->channel, CALL, st));
    TRY(cairn__ddp_use_hook(ddp, &hook));
    ddp->local_sgd = own;
    ddp->has_hook = true;
    ddp->own_hook = &own_hook;
    return CAIRN_OK;
out:
    if (own) cairn_group_destroy(&own->channel);
    cairn__free(own);
    return st;
}

/* ---- averages of weights ---- */

/* Checks what does not depend on whether weights are averaged in this step. *out is set even if the call is refused. */
static cairn_status read_average(const struct ddp_context *d, int64_t step,
                                 const struct ddp_weights_average_options *given,
                                 struct ddp_weights_average_options *out) {
    struct ddp_weights_average_options o = {.struct_size = sizeof(o)};
    cairn_status st = CAIRN_OK;
    *out = (struct ddp_weights_average_options){.struct_size = sizeof(o), .period = 1, .group = d->channel};
    TRY(cairn__options_read(&o, sizeof(o), given, "ddp_weights_average_options"));
    if (o.group) out->group = o.group;
    REQUIRE(step >= 0, CAIRN_EINVAL, "ddp_weights_average: step is %lld; count steps from 0", (long long)step);
    REQUIRE(o.period >= 0 && o.warmup_steps >= 0, CAIRN_EINVAL,
            "ddp_weights_average_options give period = %lld and warmup_steps = %lld; they must not be negative",
            (long long)o.period, (long long)o.warmup_steps);
    out->warmup_steps = o.warmup_steps;
    if (o.period > 0) out->period = o.period;
out:
    return st;
}

static cairn_status check_average(const struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    REQUIRE(!d->shards, CAIRN_ESTATE,
            "ddp_weights_average: with ddp_options.shard_optimizer weights are equal on all ranks; leave it out");
    TRY(cairn__ddp_check_between("ddp_weights_average", d));
    TRY(cairn__param_set_check_own_weights("ddp_weights_average", d->set));
out:
    return st;
}

static cairn_status average(struct ddp_context *d, cairn_group *group, cairn_work **works) {
    char cause[1024];
    cairn_status st = CAIRN_OK;
    for (size_t s = 0; s < d->num_shared; s++) {
        const struct cairn__param *p = d->shared[s].param;
        if (!cairn__param_requires_grad(p)) continue;
        TRY(cairn_allreduce(group, p->master ? p->master : p->data, p->n, p->master ? CAIRN_F32 : p->dtype, CAIRN_AVG,
                            &works[s]));
    }
    for (size_t s = 0; s < d->num_shared; s++) TRY(cairn_work_wait(&works[s]));
    for (size_t s = 0; s < d->num_shared; s++) cairn__param_round_from_master(d->shared[s].param);
    cairn__param_set_weights_changed(d->set);
    return CAIRN_OK;
out:
    /* Other ranks wait for what this one did not send; works that were posted still write weights. */
    snprintf(cause, sizeof(cause), "%s", cairn_last_error());
    if (cairn_group_size(group) > 1) (void)cairn__group_kill(group, st);
    for (size_t s = 0; s < d->num_shared; s++) (void)cairn_work_wait(&works[s]);
    return cairn__fail(st, "%s", cause);
}

cairn_status ddp_weights_average(ddp_context *ddp, int64_t step, const struct ddp_weights_average_options *options) {
    struct ddp_weights_average_options o = {.struct_size = sizeof(o)};
    cairn_work **works = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(ddp, CAIRN_EINVAL, "ddp_weights_average: ddp is NULL");
    TRY(cairn__device_refuse_recording(ddp->set->env->device, "average weights between replays"));
    st = read_average(ddp, step, options, &o);
    if (st == CAIRN_OK && (step < o.warmup_steps || (step - o.warmup_steps) % o.period != 0)) return CAIRN_OK;
    if (st == CAIRN_OK) st = check_average(ddp);
    if (st == CAIRN_OK) st = cairn__calloc(ddp->num_shared, sizeof(works[0]), (void **)&works);
    TRY(cairn__group_agree_on_status(o.group, "ddp_weights_average", st));
    TRY(average(ddp, o.group, works));
out:
    cairn__free(works);
    return st;
}
