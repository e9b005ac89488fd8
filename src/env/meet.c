/* Where the ranks of an environment meet: in a TCP store that the launcher or rank 0 serves, in a file, or in a store that
 * the program brought. Once the group stands nobody needs the store any more, so it lives only here. */
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "device/env.h"
#include "dist/group.h"
#include "dist/store/server.h"
#include "dist/store/store.h"
#include "env/env_internal.h"

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
    TRY(cairn__group_create(&options, &env->group));
out:
    if (st == CAIRN_ETIMEOUT && number > 1) {
        return cairn__fail(st, "%s A rank %d was here before; is there a second process with this number?",
                           cairn_last_error(), launch->rank);
    }
    return st;
}

/* ---- a TCP store ---- */

/* At the first port that is free. */
static cairn_status serve(const struct cairn__launch *launch, struct cairn__store_server **server, int *port) {
    const struct cairn__meeting *m = &launch->meeting;
    cairn_status st = cairn__meeting_is_here(launch);
    if (st != CAIRN_OK) return st;
    for (int i = 0; i < m->num_ports; i++) {
        st = cairn__store_serve(m->ports[i], server, port);
        if (st != CAIRN_ESYSTEM || m->num_ports == 1) return st;
    }
    return cairn__fail(
        st,
        "rank 0 can serve at none of the %d ports that follow from the job (%d, %d, ...): %s; set MASTER_PORT "
        "to a free port for every rank",
        m->num_ports, m->ports[0], m->ports[1], cairn_last_error());
}

/* The rank that serves: over whatever reaches this machine. Its proof tells the others that they have found it. */
static cairn_status connect_to_own(const struct cairn__meeting *m, int port, double timeout, cairn_store **store) {
    const char *hosts[CAIRN__MAX_HOSTS + 2] = {"127.0.0.1", "::1"};
    for (int i = 0; i < m->num_hosts; i++) hosts[2 + i] = m->hosts[i];
    const struct cairn__store_places places = {.hosts = hosts,
                                               .num_hosts = 2 + m->num_hosts,
                                               .ports = &port,
                                               .num_ports = 1};
    const cairn_status st = cairn__store_connect(&places, timeout, store);
    if (st != CAIRN_OK || !m->proof[0]) return st;
    return cairn_store_set(*store, m->proof, "", 0);
}

static cairn_status connect_to_meeting(const struct cairn__meeting *m, double timeout, cairn_store **store) {
    const char *hosts[CAIRN__MAX_HOSTS];
    for (int i = 0; i < m->num_hosts; i++) hosts[i] = m->hosts[i];
    const struct cairn__store_places places = {.hosts = hosts,
                                               .num_hosts = m->num_hosts,
                                               .ports = m->ports,
                                               .num_ports = m->num_ports,
                                               .proof = m->proof[0] ? m->proof : NULL};
    return cairn__store_connect(&places, timeout, store);
}

/* Rank 0 serves wherever it is, but only a host of its machine leads there; unless something forwards, so that it is
 * said late and no error by itself. */
static cairn_status doubt_host(const struct cairn__meeting *m, cairn_status st) {
    if (st != CAIRN_ETIMEOUT || m->guessed_host || m->num_hosts != 1 || cairn__host_is_here(m->hosts[0])) return st;
    return cairn__fail(st, "%s '%s' (%s) is no address of rank 0's machine.", cairn_last_error(), m->hosts[0], m->from);
}

static cairn_status meet_by_tcp(struct cairn_env *env, const struct cairn__launch *launch, double timeout, int *port) {
    const struct cairn__meeting *m = &launch->meeting;
    cairn_status st = CAIRN_OK;
    struct cairn__store_server *server = NULL;
    cairn_store *store = NULL;
    if (launch->rank == 0 && !m->agent_store) {
        TRY(serve(launch, &server, port));
        TRY(connect_to_own(m, *port, timeout, &store));
    } else {
        TRY(connect_to_meeting(m, timeout, &store));
    }
    *port = cairn_store_port(store);
    st = join(env, launch, store, timeout);
    if (server) st = doubt_host(m, st);
    if (st != CAIRN_OK) goto out;
    if (server) {
        cairn__store_stop(&server);
    } else if (!m->agent_store) { /* or this rank's next environment would meet the store of this one */
        cairn__store_wait_end(store, timeout);
    }
out:
    cairn_store_destroy(&store);
    cairn__store_stop(&server);
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

static cairn_status meet_in_file(struct cairn_env *env, const struct cairn__launch *launch, const char *path,
                                 double timeout) {
    cairn_store *store = NULL;
    cairn_status st = cairn_file_store_create(path, launch->size, timeout, &store);
    if (st == CAIRN_OK) st = join(env, launch, store, timeout);
    cairn_store_destroy(&store);
    return st;
}

cairn_status cairn__env_meet(struct cairn_env *env, const struct cairn__launch *launch,
                             const struct cairn_env_options *options, int *port) {
    const char *path = NULL;
    *port = 0;
    const cairn_status st = cairn__env_file_path(options->init_method, &path);
    if (st != CAIRN_OK) return st;
    if (launch->size == 1) return join(env, launch, NULL, options->timeout);
    if (options->store) return join(env, launch, options->store, options->timeout);
    if (path) return meet_in_file(env, launch, path, options->timeout);
    return meet_by_tcp(env, launch, options->timeout, port);
}
