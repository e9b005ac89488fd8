/* Assembling an environment: launch facts, then the device, the tape, and last the group, where ranks wait for one
 * another. The store is where they find each other; once the group stands it is not needed, so it lives only here. */
#include "device/env.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "core/vars.h"
#include "dist/group.h"
#include "dist/store/server.h"
#include "dist/store/store.h"
#include "env/env_internal.h"
#include "nn/tape.h"

static const double DEFAULT_TIMEOUT = 300.0; /* seconds */

static cairn_status read_options(const struct cairn_env_options *given, struct cairn_env_options *out) {
    *out = (struct cairn_env_options){.struct_size = sizeof(*out)};
    cairn_status st = cairn__options_read(out, sizeof(*out), given, "cairn_env_options");
    if (st != CAIRN_OK) return st;
    REQUIRE(isfinite(out->timeout) && out->timeout >= 0, CAIRN_EINVAL,
            "cairn_env_options.timeout is %g; it must be a number of seconds, 0 = CAIRN_TIMEOUT", out->timeout);
    if (!out->device) out->device = cairn__var("CAIRN_DEVICE");
    if (!out->device) out->device = "cpu";
    if (out->timeout > 0) return CAIRN_OK;
    out->timeout = DEFAULT_TIMEOUT;
    return cairn__var_seconds("CAIRN_TIMEOUT", &out->timeout);
}

/* Several environments of one launch meet under different keys: the n-th of each rank belong together. */
static cairn_status number_of_env(cairn_store *store, const struct cairn__launch *launch, int64_t *number) {
    char key[192];
    snprintf(key, sizeof(key), "%s/envs/%d", launch->key_prefix, launch->rank);
    return cairn_store_add(store, key, 1, number);
}

static cairn_status join(struct cairn_env *env, const struct cairn__launch *launch, cairn_store *store,
                         double timeout) {
    cairn_status st = CAIRN_OK;
    char prefix[192] = "";
    int64_t number = 0;
    if (store) TRY(number_of_env(store, launch, &number));
    snprintf(prefix, sizeof(prefix), "%s/%lld", launch->key_prefix, (long long)number);
    const struct cairn__group_options options = {.rank = launch->rank,
                                                 .size = launch->size,
                                                 .timeout = timeout,
                                                 .store = store,
                                                 .prefix = prefix,
                                                 .device = env->device};
    TRY(cairn__group_create(&options, &env->group)); /* all have joined: nobody needs the store any more */
out:
    return st;
}

static cairn_status meet(struct cairn_env *env, const struct cairn__launch *launch, double timeout) {
    if (launch->size == 1) return join(env, launch, NULL, timeout);
    cairn_status st = CAIRN_OK;
    struct cairn__store_server *server = NULL;
    cairn_store *store = NULL;
    int port = launch->master_port;
    if (launch->rank == 0 && !launch->agent_store) TRY(cairn__store_serve(port, &server, &port));
    TRY(cairn_tcp_store_create(launch->master_addr, port, cairn_tcp_store_options(.timeout = timeout), &store));
    TRY(join(env, launch, store, timeout));
    if (server) {
        cairn__store_stop(&server);
    } else if (!launch->agent_store) { /* or this rank's next environment would meet the store of this one */
        cairn__store_wait_end(store, timeout);
    }
out:
    cairn_store_destroy(&store);
    cairn__store_stop(&server);
    return st;
}

static const char *const RANKS_NEED_NCCL = "ranks on GPUs need NCCL, which is not part of this version";

static cairn_status open_device(struct cairn_env *env, const struct cairn_env_options *o) {
    const char *name = o->device;
    if (env->size > 1 && strcmp(name, "auto") == 0) {
        cairn__log(CAIRN_LOG_NOTICE, "computing on the CPU: %s", RANKS_NEED_NCCL);
        name = "cpu";
    }
    REQUIRE(env->size == 1 || strncmp(name, "cuda", 4) != 0, CAIRN_ENOTSUP, "%s; start one rank, or use device \"cpu\"",
            RANKS_NEED_NCCL);
    const cairn_status st = cairn__device_open(name, env->local_rank, &env->device);
    if (st == CAIRN_OK) env->device->tf32 = o->tf32 == CAIRN_ON;
    return st;
}

static cairn_status gather(struct cairn_env *env, int32_t *all, const int32_t *words, size_t n) {
    return cairn_allgather(env->group, all, words, n, CAIRN_I32, NULL);
}

cairn_status cairn__env_create_at(const struct cairn__launch *launch, const struct cairn_env_options *options,
                                  cairn_env **out) {
    cairn_status st = CAIRN_OK;
    struct cairn_env *env = NULL;
    struct cairn_env_options o;
    TRY(read_options(options, &o));
    TRY(cairn__calloc(1, sizeof(*env), (void **)&env));
    env->rank = launch->rank;
    env->size = launch->size;
    env->local_rank = launch->local_rank;
    env->seed = o.seed;
    env->gather = gather;
    TRY(open_device(env, &o));
    TRY(cairn__tape_create(env));
    TRY(meet(env, launch, o.timeout));
    *out = env;
    return CAIRN_OK;
out:
    cairn_env_destroy(&env);
    return st;
}

cairn_status cairn_env_create(int *argc, char ***argv, const struct cairn_env_options *options, cairn_env **out) {
    REQUIRE(out, CAIRN_EINVAL, "cairn_env_create: out is NULL");
    cairn_status st = CAIRN_OK;
    struct cairn__launch launch;
    TRY(cairn__launch_read(argc, argv, &launch));
    cairn__log_set_rank(launch.rank);
    TRY(cairn__env_create_at(&launch, options, out));
    cairn__log(CAIRN_LOG_INFO, "rank %d of %d (from %s) on %s: %s", launch.rank, launch.size, launch.source,
               cairn_device_name((*out)->device), cairn_device_describe((*out)->device));
out:
    return st;
}

void cairn_env_destroy(cairn_env **env) {
    if (!env || !*env) return;
    struct cairn_env *e = *env;
    if (e->sets > 0 || e->graphs > 0 || e->scalers > 0) {
        cairn__log(
            CAIRN_LOG_ERROR,
            "cairn_env_destroy: %d graphs and %d modules or parameter sets made in it are alive, and %d scalers, so it "
            "is kept; destroy them first",
            e->graphs, e->sets, e->scalers);
        return;
    }
    cairn__group_destroy(&e->group);
    cairn__tape_destroy(e);
    cairn__device_close(&e->device);
    cairn__free(e);
    *env = NULL;
}

void cairn_manual_seed(cairn_env *env, uint64_t seed) {
    if (!env) return;
    env->seed = seed;
    env->next_stream = 0;
}

cairn_status cairn_env_synchronize(cairn_env *env) {
    REQUIRE(env, CAIRN_EINVAL, "cairn_env_synchronize: env is NULL");
    const cairn_status st = cairn__device_synchronize(env->device);
    return st == CAIRN_OK ? cairn__env_read_reports(env) : st;
}

int cairn_env_rank(const cairn_env *env) {
    return env ? env->rank : 0;
}

int cairn_env_size(const cairn_env *env) {
    return env ? env->size : 1;
}

int cairn_env_local_rank(const cairn_env *env) {
    return env ? env->local_rank : 0;
}

cairn_group *cairn_env_group(cairn_env *env) {
    return env ? env->group : NULL;
}

cairn_device *cairn_env_device(cairn_env *env) {
    return env ? env->device : NULL;
}
