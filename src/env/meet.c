/* How the ranks of an environment meet: in a TCP store that the launcher or rank 0 serves, in a file, or in the
 * program's own store. Unless the group keeps the store, the store ends once the group is created. */
#include <stdio.h>
#include <string.h>

#include "comm/group.h"
#include "core/alloc.h"
#include "core/descriptors.h"
#include "core/log.h"
#include "core/status.h"
#include "core/vars.h"
#include "device/env.h"
#include "env/env_internal.h"
#include "env/served.h"
#include "env/threads.h"
#include "rendezvous/store/store.h"

struct cairn__kept_store {
    cairn_store *store;           /* NULL = the program's own store is used */
    struct cairn__served *served; /* NULL = another process serves it */
};

/* One environment's meeting. */
struct meeting {
    struct cairn_env *env;
    const struct cairn__launch *launch;
    const struct cairn_env_options *options;
    struct cairn__kept_store *met; /* owned by the environment */
    int64_t number;                /* of this environment, among those of this rank that met in this store */
};

/* Several environments of one launch meet under different keys: the n-th environments of all ranks belong together. */
static cairn_status join(struct meeting *m, cairn_store *store) {
    const struct cairn__launch *launch = m->launch;
    cairn_status st = CAIRN_OK;
    cairn_group *group = NULL;
    char prefix[192], key[192];
    snprintf(key, sizeof(key), "%s/envs/%d", launch->key_prefix, launch->rank);
    if (store) TRY(cairn_store_add(store, key, 1, &m->number));
    snprintf(prefix, sizeof(prefix), "%s/%lld", launch->key_prefix, (long long)m->number);
    const struct cairn__group_create_options options = {.rank = launch->rank,
                                                        .size = launch->size,
                                                        .timeout = m->options->timeout,
                                                        .meeting_timeout = m->options->meeting_timeout,
                                                        .store = store,
                                                        .rank_0_serves = m->met->store && m->met->store == store &&
                                                                         cairn_store_port(store) > 0 &&
                                                                         !launch->meeting.agent_store,
                                                        .prefix = prefix,
                                                        .backend = m->options->backend,
                                                        .interface = cairn__var("GLOO_SOCKET_IFNAME"),
                                                        .is_mpi = launch->is_mpi,
                                                        .is_thread = launch->is_thread,
                                                        .check = launch->is_thread ? cairn__thread_check : NULL,
                                                        .device = m->env->device};
    TRY(cairn__group_create(&options, &group));
    m->env->places[CAIRN__PLACE_OF_COMM].at = group;
out:
    if (st == CAIRN_ETIMEOUT && m->number > 1) {
        return cairn__fail(st, "%s Another process with rank %d was here before; is the rank given twice?",
                           cairn_last_error(), launch->rank);
    }
    return st;
}

/* ---- a TCP store ---- */

/* Adds to the error of a timeout that the given host is not an address of rank 0's machine. That alone is no error: a
 * proxy may forward connections. */
static cairn_status doubt_host(const struct cairn__meeting *m, cairn_status st) {
    if (st != CAIRN_ETIMEOUT || m->guessed_host || m->num_hosts != 1 || cairn__host_is_here(m->hosts[0])) return st;
    return cairn__fail(st, "%s '%s' (%s) is not an address of rank 0's machine.", cairn_last_error(), m->hosts[0],
                       m->from);
}

/* Finds the secret by which ranks on other machines prove themselves: from a file, or from the launcher. Stores of
 * torch's launchers know no secret. */
static cairn_status find_secret(const struct cairn__launch *launch, double timeout, struct cairn__secret **secret) {
    const bool is_torchs = launch->meeting.agent_store && !cairn__var("CAIRN_STORE_HAS_SECRET");
    const bool is_needed = !is_torchs && cairn__launch_has_others(launch) && !cairn__store_is_open();
    cairn_status st = CAIRN_OK;
    *secret = NULL;
    if (!is_torchs) TRY(cairn__secret_from_environment(secret));
    if (!is_needed || *secret) return CAIRN_OK;
    REQUIRE(cairn__secret_is_built(), CAIRN_ENOTBUILT,
            "this build of Cairn has no libsodium, so ranks on several machines cannot prove themselves; install "
            "libsodium-dev and build again, or set CAIRN_INSECURE=1 on every rank to trust whoever reaches the store "
            "(docs/security.md)");
    if (!is_torchs) TRY(cairn__launch_secret(launch, timeout, secret));
    if (!*secret && launch->rank == 0 && !launch->meeting.agent_store) {
        cairn__log(CAIRN_LOG_WARNING,
                   "ranks of other machines are trusted without proof: whoever reaches port %d can join this run; give "
                   "it a secret (CAIRN_JOB_SECRET_FILE), or set CAIRN_INSECURE=1 if that is meant (docs/security.md)",
                   launch->meeting.ports[0]);
    }
out:
    return st;
}

static cairn_status find_store(struct meeting *m, int *port) {
    const struct cairn__meeting *place = &m->launch->meeting;
    const double timeout = m->options->meeting_timeout;
    struct cairn__secret *secret = NULL;
    cairn_status st = CAIRN_OK;
    TRY(find_secret(m->launch, timeout, &secret));
    if (m->launch->rank == 0 && !place->agent_store) {
        TRY(cairn__served_share(m->launch, &secret, &m->met->served));
        TRY(cairn__served_connect(m->met->served, timeout, &m->met->store));
        if (place->proof[0]) TRY(cairn_store_set(m->met->store, place->proof, "", 0)); /* how others recognise it */
    } else {
        const char *hosts[CAIRN__MAX_HOSTS];
        for (int i = 0; i < place->num_hosts; i++) hosts[i] = place->hosts[i];
        const struct cairn__store_places places = {.hosts = hosts,
                                                   .num_hosts = place->num_hosts,
                                                   .ports = place->ports,
                                                   .num_ports = place->num_ports,
                                                   .proof = place->proof[0] ? place->proof : NULL,
                                                   .secret = secret};
        TRY(cairn__store_connect(&places, timeout, &m->met->store));
    }
    *port = cairn_store_port(m->met->store);
out:
    cairn__secret_destroy(&secret);
    return st;
}

/* The rank that serves the store ends it; the other ranks wait for that, because otherwise their next environment would
 * meet in this one's store. They do not wait if another environment met in this store before and keeps it. */
static cairn_status meet_by_tcp(struct meeting *m, int *port) {
    cairn_status st = CAIRN_OK;
    TRY(find_store(m, port));
    st = join(m, m->met->store);
    if (m->met->served) st = doubt_host(&m->launch->meeting, st);
    if (st == CAIRN_OK && !cairn__group_keeps_store(cairn_env_group(m->env)) && !m->met->served &&
        !m->launch->meeting.agent_store && m->number == 1)
        cairn__store_wait_end(m->met->store, m->options->meeting_timeout);
out:
    return st;
}

/* ---- a file ---- */

cairn_status cairn__env_file_path(const char *init_method, const char **path) {
    static const char scheme[] = "file://";
    *path = NULL;
    if (!init_method || strncmp(init_method, scheme, strlen(scheme)) != 0) return CAIRN_OK;
    const char *rest = init_method + strlen(scheme);
    REQUIRE(
        rest[0] == '/' && rest[1], CAIRN_EINVAL,
        "cairn_env_options.init_method is '%.300s'; it needs a whole path, \"file:///path/to/file\", a new one each "
        "run",
        init_method);
    *path = rest;
    return CAIRN_OK;
}

/* ---- the call ---- */

enum { MAX_RANKS = 1000 /* larger numbers are refused when the group is created */ };

/* Every backend needs descriptors for: the store, a socket at which ranks find each other, a temporary one, and a
 * connection to each rank. Rank 0 also needs the store's own, and a connection from each rank. */
static cairn_status check_descriptors(const struct meeting *m, bool is_tcp) {
    const int size = m->launch->size, others = size <= MAX_RANKS ? size - 1 : 0;
    const bool serves = is_tcp && m->launch->rank == 0 && !m->launch->meeting.agent_store;
    char what[64];
    snprintf(what, sizeof(what), "rank %d of %d", m->launch->rank, m->launch->size);
    return cairn__check_descriptors(4 + others + (serves ? 5 + others : 0), what);
}

static cairn_status meet(struct meeting *m, int *port) {
    const char *path = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__env_file_path(m->options->init_method, &path));
    if (m->launch->size > 1) TRY(check_descriptors(m, !m->options->store && !path));
    if (m->launch->size == 1) {
        TRY(join(m, NULL));
    } else if (m->options->store) {
        TRY(join(m, m->options->store));
    } else if (path) {
        TRY(cairn_file_store_create(path, m->launch->size, m->options->meeting_timeout, &m->met->store));
        TRY(join(m, m->met->store));
    } else {
        TRY(meet_by_tcp(m, port));
    }
out:
    return st;
}

static void leave(struct cairn_env *env, enum cairn__served_end how) {
    struct cairn__kept_store *met = env->places[CAIRN__PLACE_OF_ENV].at;
    if (!met) return;
    cairn_store_destroy(&met->store);
    cairn__served_leave(&met->served, how);
    cairn__free(met);
    env->places[CAIRN__PLACE_OF_ENV].at = NULL;
}

cairn_status cairn__env_meet(struct cairn_env *env, const struct cairn__launch *launch,
                             const struct cairn_env_options *options, int *port) {
    struct meeting m = {.env = env, .launch = launch, .options = options};
    cairn_status st = CAIRN_OK;
    *port = 0;
    TRY(cairn__calloc(1, sizeof(*m.met), (void **)&m.met));
    env->places[CAIRN__PLACE_OF_ENV].at = m.met;
    st = meet(&m, port);
    if (st != CAIRN_OK || !cairn__group_keeps_store(cairn_env_group(env))) leave(env, CAIRN__SERVED_ENDS);
out:
    return st;
}

void cairn__env_part(struct cairn_env *env) {
    leave(env, CAIRN__SERVED_STAYS);
}
