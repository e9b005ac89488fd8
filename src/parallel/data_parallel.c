/* Creates and destroys a cairn_data_parallel. */
#include <stdio.h>

#include "core/alloc.h"
#include "core/cpu.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "parallel/data_parallel.h"

/* ---- the calls ---- */

static cairn_status check_devices(struct cairn_device *d, const struct cairn_data_parallel_options *o) {
    const int visible = cairn__device_count(d);
    if (cairn__is_on_host(d)) {
        REQUIRE(!o->device_ids, CAIRN_EINVAL,
                "cairn_data_parallel_options.device_ids names GPUs, but the model is on the CPU, where its replicas "
                "are then; make it in an environment with .device = \"cuda:N\", or leave device_ids out");
        return CAIRN_OK;
    }
    REQUIRE(o->device_ids || o->num_replicas <= visible, CAIRN_EINVAL,
            "cairn_data_parallel_options.num_replicas is %d, but this process sees %d GPU%s; device_ids may name one "
            "several times",
            o->num_replicas, visible, visible == 1 ? "" : "s");
    if (!o->device_ids) return CAIRN_OK;
    REQUIRE(o->num_replicas > 0, CAIRN_EINVAL,
            "cairn_data_parallel_options.device_ids is set, and num_replicas, the number of them, is 0");
    REQUIRE(o->device_ids[0] == d->ordinal, CAIRN_EINVAL,
            "cairn_data_parallel_options.device_ids begins with %d, but the model is on %s:%d; its GPU is the first",
            o->device_ids[0], cairn_device_name(d), d->ordinal);
    for (int i = 0; i < o->num_replicas; i++) {
        REQUIRE(o->device_ids[i] >= 0 && o->device_ids[i] < visible, CAIRN_EINVAL,
                "cairn_data_parallel_options.device_ids[%d] is %d, but this process sees %d GPU%s, from 0 on", i,
                o->device_ids[i], visible, visible == 1 ? "" : "s");
    }
    return CAIRN_OK;
}

static cairn_status check(cairn_module *model, const struct cairn_data_parallel_options *o) {
    cairn_env *env = cairn__module_env(model);
    REQUIRE(model, CAIRN_EINVAL, "cairn_data_parallel_create: model is NULL");
    REQUIRE(o->make, CAIRN_EINVAL,
            "cairn_data_parallel_options.make is NULL; it is the function that makes a replica of the model");
    REQUIRE(o->num_replicas >= 0 && o->num_replicas <= CAIRN__MAX_RANKS, CAIRN_EINVAL,
            "cairn_data_parallel_options.num_replicas is %d; it can be 1 to %d, or 0", o->num_replicas,
            CAIRN__MAX_RANKS);
    REQUIRE(o->forward_returns_loss <= CAIRN_OFF, CAIRN_EINVAL,
            "cairn_data_parallel_options.forward_returns_loss is %d; it can be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF",
            (int)o->forward_returns_loss);
    REQUIRE(env->size == 1, CAIRN_ENOTSUP,
            "cairn_data_parallel_create: the environment has %d ranks; use ddp over cairn_spawn_threads, which joins "
            "threads of several processes",
            env->size);
    cairn_status st = CAIRN_OK;
    TRY(check_devices(env->device, o));
    const cairn_param_set *set = cairn_module_params(model);
    if (!set) return cairn__last_status();
    REQUIRE(!set->frozen_by, CAIRN_ESTATE, "cairn_data_parallel_create: %s was called for the model before",
            set->frozen_by);
    for (size_t i = 0; i < set->count; i++) {
        REQUIRE(!set->params[i]->grad_factor, CAIRN_ENOTSUP,
                "cairn_data_parallel_create: '%s' is in an amp_sequential, whose scales replicas do not follow; use "
                "cairn_sequential, or ddp over cairn_spawn_threads",
                set->params[i]->name);
    }
out:
    return st;
}

/* ---- GPUs ---- */

/* The GPU of replica i. Without device_ids: the model's GPU, then the others in order. */
static int ordinal_of(const struct cairn_data_parallel_options *o, int own, int i) {
    if (o->device_ids) return o->device_ids[i];
    return i == 0 ? own : i <= own ? i - 1 : i;
}

static cairn_status make(cairn_module *model, const struct cairn_data_parallel_options *o, cairn_data_parallel *dp) {
    cairn_status st = CAIRN_OK;
    pthread_mutex_init(&dp->lock, NULL);
    pthread_cond_init(&dp->changed, NULL);
    dp->model = model;
    dp->env = cairn__module_env(model);
    dp->set = cairn_module_params(model);
    dp->options = *o;
    dp->options.amp = NULL;
    dp->options.device_ids = NULL;
    dp->amp = o->amp;
    struct cairn_device *d = dp->env->device;
    const bool is_on_host = cairn__is_on_host(d);
    dp->num_replicas = o->num_replicas ? o->num_replicas
                       : is_on_host    ? cairn__num_processors()
                                       : cairn__device_count(d);
    cairn__param_set_begin_listen(dp->set, NULL, "cairn_data_parallel_create");
    TRY(cairn__calloc((size_t)dp->num_replicas, sizeof(dp->replicas[0]), (void **)&dp->replicas));
    for (int i = 0; i < dp->num_replicas; i++) {
        dp->replicas[i].dp = dp;
        dp->replicas[i].index = i;
        dp->replicas[i].ordinal = is_on_host ? d->ordinal : ordinal_of(o, d->ordinal, i);
        dp->replicas[i].is_remote = dp->replicas[i].ordinal != d->ordinal;
    }
    TRY(cairn__calloc(dp->set->count + 1, sizeof(dp->slots[0]), (void **)&dp->slots));
    TRY(cairn__calloc(dp->set->count + 1, sizeof(dp->items[0]), (void **)&dp->items));
    if (cairn__replicas_return_losses(dp))
        TRY(cairn__device_alloc(d, CAIRN__HOLDS_STATE, (size_t)(dp->num_replicas + 1) * sizeof(dp->losses[0]),
                                (void **)&dp->losses));
    TRY(cairn__team_start(dp));
    dp->amp = NULL;
out:
    return st;
}

cairn_status cairn_data_parallel_create(cairn_module *model, const struct cairn_data_parallel_options *options,
                                        cairn_data_parallel **out) {
    struct cairn_data_parallel_options o = {.struct_size = sizeof(o)};
    cairn_data_parallel *dp = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(out, CAIRN_EINVAL, "cairn_data_parallel_create: out is NULL");
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_data_parallel_options"));
    TRY(check(model, &o));
    TRY(cairn__calloc(1, sizeof(*dp), (void **)&dp));
    st = make(model, &o, dp);
    if (st == CAIRN_OK) {
        *out = dp;
    } else {
        char why[CAIRN__REPLICA_WHY];
        snprintf(why, sizeof(why), "%s", cairn_last_error());
        cairn_data_parallel_destroy(&dp);
        st = cairn__fail(st, "%s", why);
    }
out:
    return st;
}

void cairn_data_parallel_destroy(cairn_data_parallel **dp) {
    if (!dp || !*dp) return;
    struct cairn_data_parallel *d = *dp;
    if (!d->env->begin_step(d->env)) { /* a backward of old results would need the replicas */
        cairn__log(CAIRN_LOG_ERROR, "cairn_data_parallel_destroy: called within a backward; nothing was done");
        return;
    }
    cairn__scattered_end(d);
    cairn__team_stop(d);
    cairn__param_set_end_listen(d->set);
    for (int i = 0; d->replicas && i < d->num_replicas; i++)
        cairn__device_free(d->env->device, d->replicas[i].arrived.data);
    cairn__device_free(d->env->device, d->sums.data);
    cairn__device_free(d->env->device, d->losses);
    cairn__free(d->items);
    cairn__free(d->slots);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    cairn__free(d->forwards);
    cairn__free(d->replicas);
    cairn__free(d);
    *dp = NULL;
}

int cairn_data_parallel_num_replicas(const cairn_data_parallel *dp) {
    return dp ? dp->num_replicas : 0;
}
