/* Chooses the backend of a group. Every rank decides from the same facts, so all choose the same. A backend is probed
 * only if the choice depends on it, because probing opens modules: ranks of one machine use shm and open none. */
#include <stdio.h>
#include <string.h>

#include "comm/group_backend.h"
#include "core/status.h"
#include "rendezvous/address.h"
#include "rendezvous/store/store.h"

enum { MAX_CANDIDATES = 2, REASON_NBYTES = 500, TEXT_NBYTES = 1500 };

struct candidate {
    int row;
    int failed_rank; /* the first that cannot use it; -1 = all can */
    cairn_status status;
    char reason[REASON_NBYTES];
};

struct choice {
    const struct cairn__group_create_options *options;
    struct cairn__peers *peers;
    struct candidate candidates[MAX_CANDIDATES]; /* best first */
    int num_candidates;
};

static const char *name_of(int row) {
    return cairn__backends[row]->name;
}

static void add_candidate(struct choice *c, int row) {
    c->candidates[c->num_candidates++] = (struct candidate){.row = row, .failed_rank = -1};
}

static bool is_on_gpu(const struct cairn__group_create_options *o) {
    return o->device && strcmp(o->device->ops->name, "cpu") != 0;
}

cairn_status cairn__backend_meet(const struct cairn__group_create_options *o, struct cairn__peers *out) {
    return cairn__peers_meet(&(struct cairn__peers_options){.rank = o->rank,
                                                            .size = o->size,
                                                            .timeout = o->meeting_timeout > 0 ? o->meeting_timeout
                                                                                              : o->timeout,
                                                            .store = o->store,
                                                            .prefix = o->prefix,
                                                            .wanted = o->backend,
                                                            .is_mpi = o->is_mpi,
                                                            .on_gpu = is_on_gpu(o),
                                                            .check = o->check,
                                                            .rank_0_serves = o->rank_0_serves},
                             out);
}

/* ---- what must be equal ---- */

static const char *device_of(const struct cairn__peer *peer) {
    return peer->on_gpu ? "a GPU" : "the CPU";
}

/* A backend that was named. */
static cairn_status check_memory(int row, bool on_gpu) {
    REQUIRE(row != CAIRN__BACKEND_NCCL || on_gpu, CAIRN_EINVAL,
            "the group backend 'nccl' needs ranks on GPUs, and these compute on the CPU; use auto");
    REQUIRE(row == CAIRN__BACKEND_NCCL || row == CAIRN__BACKEND_SELF || !on_gpu, CAIRN_EINVAL,
            "the group backend '%s' needs ranks on the CPU, and these compute on GPUs; use nccl or auto", name_of(row));
    return CAIRN_OK;
}

/* ---- hosts and addresses ---- */

/* Rank 0 and the first rank on another machine. */
static void name_two_hosts(const struct cairn__peers *p, char *text, size_t nbytes) {
    int other = 1;
    while (other < p->size && strcmp(p->all[other].host, p->all[0].host) == 0) other++;
    const struct cairn__peer *a = &p->all[0], *b = &p->all[other];
    snprintf(text, nbytes, "rank 0 runs on %s ('%s') and rank %d on %s ('%s')", a->name, a->host, other, b->name,
             b->host);
}

/* A rank that reached the store over loopback is on the store's machine. It finds its address by the route to a rank of
 * another machine that has an address. If all ranks reached the store over loopback, they share a network, whatever
 * their machines are called. */
static cairn_status find_address(const struct choice *c, char *address, size_t nbytes) {
    const struct cairn__peers *p = c->peers;
    const struct cairn__peer *me = &p->all[p->rank];
    if (c->options->interface) return cairn__address_of_interface(c->options->interface, address, nbytes);
    address[0] = '\0';
    if (cairn__peers_share_host(p)) {
        snprintf(address, nbytes, "127.0.0.1");
    } else if (me->address[0]) {
        snprintf(address, nbytes, "%s", me->address);
    } else {
        int far = 0;
        while (far < p->size && (strcmp(p->all[far].host, me->host) == 0 || !p->all[far].address[0])) far++;
        if (far < p->size) {
            cairn__address_towards(p->all[far].address, address, nbytes);
        } else {
            if (c->options->store) cairn__store_local_address(c->options->store, address, nbytes);
            if (!address[0]) cairn__address_of_name(address, nbytes);
        }
    }
    REQUIRE(address[0], CAIRN_EINVAL,
            "no address is known by which other machines reach this one; set GLOO_SOCKET_IFNAME to the name of a "
            "network interface, or to an address of it");
    return CAIRN_OK;
}

/* ---- what every rank supports ---- */

/* This rank's address, then a line for each candidate: a status and a reason. */
static void write_probes(struct choice *c, char *text, size_t nbytes) {
    struct cairn__peer *me = &c->peers->all[c->peers->rank];
    char lines[TEXT_NBYTES - CAIRN__PEER_ADDRESS] = "";
    size_t used = 0;
    for (int i = 0; i < c->num_candidates; i++) {
        char reason[REASON_NBYTES] = "", address[CAIRN__PEER_ADDRESS];
        const bool is_gloo = c->candidates[i].row == CAIRN__BACKEND_GLOO;
        cairn_status st = cairn__backend_probe(c->candidates[i].row, c->options);
        if (st == CAIRN_OK && is_gloo) st = find_address(c, address, sizeof(address));
        if (st == CAIRN_OK && is_gloo) memcpy(me->address, address, sizeof(address));
        if (st != CAIRN_OK) snprintf(reason, sizeof(reason), "%s", cairn_last_error());
        for (char *newline; (newline = strchr(reason, '\n'));) *newline = ' ';
        used += (size_t)snprintf(lines + used, sizeof(lines) - used, "\n%d %s", (int)st, reason);
    }
    snprintf(text, nbytes, "%s%s", me->address, lines);
}

static cairn_status read_probes(void *ctx, int rank, const char *text) {
    struct choice *c = ctx;
    struct cairn__peer *peer = &c->peers->all[rank];
    if (rank != c->peers->rank) snprintf(peer->address, sizeof(peer->address), "%.*s", (int)strcspn(text, "\n"), text);
    for (int i = 0; i < c->num_candidates; i++) {
        struct candidate *candidate = &c->candidates[i];
        int status = CAIRN_EPEER, at = 0;
        text += strcspn(text, "\n");
        if (sscanf(text, "\n%d%n", &status, &at) != 1) status = CAIRN_EPEER;
        text += at;
        if (status == CAIRN_OK || candidate->failed_rank >= 0) continue;
        candidate->failed_rank = rank;
        candidate->status = (cairn_status)status;
        text += *text == ' ';
        snprintf(candidate->reason, sizeof(candidate->reason), "%.*s", (int)strcspn(text, "\n"), text);
    }
    return CAIRN_OK;
}

static void describe_failure(const struct choice *c, const struct candidate *candidate, char *text, size_t nbytes) {
    snprintf(text, nbytes, "%s cannot be used by rank %d on %s: %s", name_of(candidate->row), candidate->failed_rank,
             c->peers->all[candidate->failed_rank].name, candidate->reason);
}

static cairn_status fail_all(const struct choice *c, bool was_named) {
    const struct candidate *last = &c->candidates[c->num_candidates - 1];
    char hosts[600], why[2][700] = {"mpi needs every rank started by an MPI launcher", ""};
    describe_failure(c, last, why[1], sizeof(why[1]));
    if (was_named || cairn__peers_share_host(c->peers))
        return cairn__fail(last->status, "the group backend %s", why[1]);
    if (c->num_candidates > 1) describe_failure(c, &c->candidates[0], why[0], sizeof(why[0]));
    name_two_hosts(c->peers, hosts, sizeof(hosts));
    return cairn__fail(last->status, "%s, and no backend joins them: %s; %s", hosts, why[0], why[1]);
}

static cairn_status probe_everywhere(struct choice *c, bool was_named, int *row) {
    char text[TEXT_NBYTES];
    cairn_status st = CAIRN_OK;
    write_probes(c, text, sizeof(text));
    TRY(cairn__peers_exchange(c->peers, "can", text, read_probes, c));
    for (int i = 0; i < c->num_candidates; i++) {
        *row = c->candidates[i].row;
        if (c->candidates[i].failed_rank < 0) return CAIRN_OK;
    }
    st = cairn__peers_refuse(c->peers, fail_all(c, was_named));
out:
    return st;
}

/* ---- the choice ---- */

/* Errors that follow from the facts alone, so they are the same on all ranks. */
static cairn_status check_facts(const struct cairn__peers *p, int named) {
    cairn_status st = CAIRN_OK;
    for (int r = 1; r < p->size; r++) {
        REQUIRE(strcmp(p->all[r].wanted, p->all[0].wanted) == 0, CAIRN_EINVAL,
                "rank 0 has the group backend '%s' and rank %d '%s'; set CAIRN_BACKEND (or cairn_env_options.backend) "
                "alike on every rank",
                p->all[0].wanted, r, p->all[r].wanted);
    }
    for (int r = 1; r < p->size; r++) {
        REQUIRE(p->all[r].on_gpu == p->all[0].on_gpu, CAIRN_EINVAL,
                "rank 0 computes on %s and rank %d on %s; give every rank of a group the same kind of device",
                device_of(&p->all[0]), r, device_of(&p->all[r]));
    }
    if (named >= 0) TRY(check_memory(named, p->all[0].on_gpu));
    if (named == CAIRN__BACKEND_SHM && !cairn__peers_share_host(p)) {
        char hosts[600];
        name_two_hosts(p, hosts, sizeof(hosts));
        return cairn__fail(CAIRN_ENOTSUP,
                           "%s; shm groups join the ranks of one machine and network namespace: start them there, or "
                           "set CAIRN_HOST_ID to one text where shared memory is common",
                           hosts);
    }
out:
    return st;
}

static cairn_status choose_together(const struct cairn__group_create_options *o, struct cairn__peers *p, int named,
                                    int *row) {
    struct choice c = {.options = o, .peers = p};
    const cairn_status st = check_facts(p, named);
    if (st != CAIRN_OK) return cairn__peers_refuse(p, st);
    if (named >= 0) {
        add_candidate(&c, named);
    } else if (p->all[0].on_gpu) {
        add_candidate(&c, CAIRN__BACKEND_NCCL);
    } else if (cairn__peers_share_host(p)) {
        add_candidate(&c, CAIRN__BACKEND_SHM);
    } else {
        bool all_are_mpi = true;
        for (int r = 0; r < p->size; r++) all_are_mpi = all_are_mpi && p->all[r].is_mpi;
        if (all_are_mpi) add_candidate(&c, CAIRN__BACKEND_MPI);
        add_candidate(&c, CAIRN__BACKEND_GLOO);
    }
    *row = c.candidates[0].row;
    return *row == CAIRN__BACKEND_SHM ? CAIRN_OK : probe_everywhere(&c, named >= 0, row);
}

cairn_status cairn__backend_choose(const struct cairn__group_create_options *options, struct cairn__peers *peers,
                                   const struct cairn__group_backend **out) {
    int named = -1, row = -1;
    cairn_status st = CAIRN_OK;
    TRY(cairn__backend_find(options->backend, &named));
    if (options->size > 1) {
        TRY(choose_together(options, peers, named, &row));
    } else {
        row = named >= 0 ? named : CAIRN__BACKEND_SELF;
        TRY(cairn__backend_probe(row, options));
        TRY(check_memory(row, is_on_gpu(options)));
    }
    *out = cairn__backends[row];
out:
    return st;
}
