/* How ranks meet: each publishes its facts in the store, with the random name of an abstract socket on which it
 * listens, and reads those of the others in rank order. Listeners stay open until the group is created, so a refused
 * connection means that the rank has ended. If the facts do not fit together, every rank finds that in the same texts,
 * and rank 0 leaves last. */
#include "rendezvous/peers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/status.h"
#include "core/trace.h"
#include "core/vars.h"
#include "rendezvous/address.h"
#include "rendezvous/store/store.h"

enum {
    FIRST_PAUSE_MS = 1,
    LAST_PAUSE_MS = 20,
    FIRST_PROBE_MS = 100,
    LAST_PROBE_MS = 2000,
    REFUSAL_MS = 2000,
    KEY_NBYTES = 300,
    BACKLOG = 512,           /* every rank of the largest group may connect twice */
    MAX_TIMEOUT = 1000000000 /* s; fits in 64 bits of ns */
};

static const char FORMAT[] = "cairn-peer-1";

/* A round in which every rank publishes a text. */
struct exchange {
    struct cairn__peers *p;
    const char *topic; /* NULL: the rank's own facts */
    const char *text;  /* this rank's */
    cairn__peers_take take;
    void *ctx;
    bool *told;   /* [size] take has got the rank's text */
    bool refused; /* take failed, as it does on every rank */
};

/* ---- this rank's facts ---- */

static socklen_t fill_address(const char *name, struct sockaddr_un *a) {
    size_t length = strlen(name);
    *a = (struct sockaddr_un){.sun_family = AF_UNIX}; /* sun_path[0] = 0 makes the name abstract */
    memcpy(a->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static cairn_status open_listener(struct cairn__peers *p) {
    struct cairn__peer *me = &p->all[p->rank];
    uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return cairn__fail_errno(errno, "choosing a socket's name");
    snprintf(me->socket, CAIRN__PEER_SOCKET, "cairn-%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    struct sockaddr_un a;
    socklen_t length = fill_address(me->socket, &a);
    p->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->listener < 0 || bind(p->listener, (struct sockaddr *)&a, length) != 0 || listen(p->listener, BACKLOG) != 0)
        return cairn__fail_errno(errno, "listening for the other ranks");
    return CAIRN_OK;
}

static cairn_status know_myself(struct cairn__peers *p, const struct cairn__peers_options *o) {
    struct cairn__peer *me = &p->all[p->rank];
    me->pid = (int)getpid();
    me->is_mpi = o->is_mpi;
    me->on_gpu = o->on_gpu;
    snprintf(me->wanted, sizeof(me->wanted), "%s", o->wanted ? o->wanted : "auto");
    /* For messages: two machines may have one name. */
    snprintf(me->name, CAIRN__PEER_NAME, "?");
    if (gethostname(me->name, CAIRN__PEER_NAME) != 0 || !me->name[0] || strpbrk(me->name, " \n"))
        snprintf(me->name, CAIRN__PEER_NAME, "?");
    me->name[CAIRN__PEER_NAME - 1] = '\0';
    /* The address by which this rank reached the store is one that others can reach, unless the store is on the same
     * machine. */
    me->address[0] = '\0';
    if (p->store) cairn__store_local_address(p->store, me->address, CAIRN__PEER_ADDRESS);
    if (cairn__address_is_loopback(me->address)) me->address[0] = '\0';
    const char *told = cairn__var("CAIRN_HOST_ID");
    if (told) {
        snprintf(me->host, CAIRN__PEER_HOST, "%s", told);
        return CAIRN_OK;
    }
    char boot[64] = "", net[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, boot, sizeof(boot) - 1) : -1;
    if (fd >= 0) close(fd);
    REQUIRE(got > 0, CAIRN_ESYSTEM,
            "this machine's boot id cannot be read from /proc; set CAIRN_HOST_ID to the same text on every rank of one "
            "machine");
    boot[strcspn(boot, "\n")] = '\0';
    if (readlink("/proc/self/ns/net", net, sizeof(net) - 1) < 0) snprintf(net, sizeof(net), "net:?");
    snprintf(me->host, CAIRN__PEER_HOST, "%s %s", boot, net);
    return CAIRN_OK;
}

/* ---- as text ---- */

static void write_peer(const struct cairn__peers *p, char *text, size_t nbytes) {
    const struct cairn__peer *me = &p->all[p->rank];
    snprintf(text, nbytes, "%s %d %d %d %d %s %s %s %s %s", FORMAT, p->size, me->pid, me->is_mpi, me->on_gpu,
             me->wanted, me->address[0] ? me->address : "-", me->socket, me->name, me->host);
}

static cairn_status take_peer(void *ctx, int rank, const char *text) {
    struct cairn__peers *p = ctx;
    struct cairn__peer *peer = &p->all[rank];
    char format[20] = "";
    int size = 0, is_mpi = 0, on_gpu = 0, at = 0;
    if (rank == p->rank) return CAIRN_OK;
    const int read = sscanf(text, "%19s %d %d %d %d %15s %63s %39s %64s%n", format, &size, &peer->pid, &is_mpi, &on_gpu,
                            peer->wanted, peer->address, peer->socket, peer->name, &at);
    REQUIRE(read == 9 && at > 0 && text[at] == ' ' && strcmp(format, FORMAT) == 0, CAIRN_EPEER,
            "rank %d wrote '%.80s' into the store, which this version of Cairn does not understand; run one version on "
            "every rank",
            rank, text);
    REQUIRE(size == p->size, CAIRN_EPEER,
            "rank %d has a world size of %d, rank %d of %d; set WORLD_SIZE to the same number on every rank", rank,
            size, p->rank, p->size);
    peer->is_mpi = is_mpi != 0;
    peer->on_gpu = on_gpu != 0;
    if (strcmp(peer->address, "-") == 0) peer->address[0] = '\0';
    snprintf(peer->host, sizeof(peer->host), "%s", text + at + 1);
    return CAIRN_OK;
}

/* ---- the store ---- */

static void write_key(const struct exchange *x, int rank, char key[KEY_NBYTES]) {
    snprintf(key, KEY_NBYTES, "%s/peers/%s%s%d", x->p->prefix, x->topic ? x->topic : "", x->topic ? "/" : "", rank);
}

/* Names the ranks, which the store's message does not: that names only the key. */
static cairn_status store_failed(const struct exchange *x, cairn_status st, const char *doing) {
    char where[100] = "";
    const struct cairn__peer *host = &x->p->all[0];
    if (st == CAIRN_OK) return st;
    if (!x->p->rank_0_serves || x->p->rank == 0)
        return cairn__fail(st, "%s; rank %d was %s", cairn_last_error(), x->p->rank, doing);
    if (host->pid > 0) snprintf(where, sizeof(where), " (pid %d on %s)", host->pid, host->name);
    return cairn__fail(st,
                       "%s; rank 0%s hosts it: it ended, is stopped, or its machine cannot be reached, while "
                       "rank %d was %s",
                       cairn_last_error(), where, x->p->rank, doing);
}

static cairn_status publish(const struct exchange *x) {
    char key[KEY_NBYTES];
    if (x->p->num_topics < CAIRN__PEER_TOPICS) x->p->topics[x->p->num_topics++] = x->topic;
    write_key(x, x->p->rank, key);
    return store_failed(x, cairn_store_set(x->p->store, key, x->text, strlen(x->text)), "publishing who it is");
}

static cairn_status take(struct exchange *x, int rank, const char *text) {
    const cairn_status st = x->take(x->ctx, rank, text);
    x->refused = st != CAIRN_OK;
    x->told[rank] = st == CAIRN_OK;
    return st;
}

static cairn_status look_up(struct exchange *x, int rank) {
    char key[KEY_NBYTES], doing[40];
    void *text = NULL;
    int ready = 0;
    cairn_status st = CAIRN_OK;
    const char *wanted = key;
    if (rank == x->p->rank) return take(x, rank, x->text);
    write_key(x, rank, key);
    snprintf(doing, sizeof(doing), "waiting for rank %d", rank);
    TRY(store_failed(x, cairn_store_check(x->p->store, &wanted, 1, &ready), doing));
    if (!ready) return CAIRN_OK;
    TRY(store_failed(x, cairn_store_get(x->p->store, key, &text, NULL), doing));
    st = take(x, rank, text);
out:
    cairn_store_free(text);
    return st;
}

static bool has_told(const void *ctx, int rank) {
    return ((const struct exchange *)ctx)->told[rank];
}

/* Looks up all missing ranks once more. The store may end with the first rank that gives up; ranks that can no longer
 * be looked up are unknown rather than missing, and count as present. */
static cairn_status look_again(struct exchange *x, int *missing) {
    int r = 0;
    cairn_status st = CAIRN_OK;
    for (*missing = 0; r < x->p->size && st == CAIRN_OK; r++) {
        if (x->told[r]) continue;
        st = look_up(x, r);
        *missing += st == CAIRN_OK && !x->told[r];
    }
    for (r--; st != CAIRN_OK && r < x->p->size; r++) x->told[r] = true;
    return st;
}

static cairn_status give_up(struct exchange *x) {
    int missing = 0;
    const cairn_status st = look_again(x, &missing);
    if (x->refused || missing == 0) return st;
    return cairn__peers_fail_missing(x->p, has_told, x, "did not join");
}

static bool is_neighbour(const struct cairn__peers *p, int rank) {
    return rank != p->rank && p->all[rank].host[0] && strcmp(p->all[rank].host, p->all[p->rank].host) == 0;
}

/* Fails if a known rank has ended. If that rank had found all others before it ended, this rank finds them, too. */
static cairn_status probe(struct exchange *x) {
    for (int r = 0; r < x->p->size; r++) {
        if (!is_neighbour(x->p, r)) continue;
        int missing = 0;
        const int fd = cairn__peers_dial(x->p, r);
        if (fd >= 0) close(fd);
        if (fd >= 0 || errno != ECONNREFUSED) continue;
        const cairn_status st = look_again(x, &missing);
        return st == CAIRN_OK && missing ? cairn__peers_fail_ended(x->p, r) : st;
    }
    return CAIRN_OK;
}

/* Takes the texts in rank order, so that every rank finds the same error first; a later rank waits for the earlier
 * ones. */
static cairn_status gather(struct exchange *x) {
    cairn_status st = CAIRN_OK;
    int pause_ms = FIRST_PAUSE_MS, probe_ms = FIRST_PROBE_MS;
    uint64_t next_probe = cairn__now_ns() + FIRST_PROBE_MS * UINT64_C(1000000);
    for (int r = 0; r < x->p->size;) {
        if (!x->told[r]) TRY(look_up(x, r));
        if (x->told[r]) {
            r++;
            continue;
        }
        if (x->p->check) TRY(x->p->check());
        const uint64_t now = cairn__now_ns();
        if (now >= x->p->deadline) return give_up(x);
        if (now >= next_probe) {
            TRY(probe(x));
            probe_ms = probe_ms * 2 < LAST_PROBE_MS ? probe_ms * 2 : LAST_PROBE_MS;
            next_probe = now + (uint64_t)probe_ms * UINT64_C(1000000);
        }
        poll(NULL, 0, pause_ms);
        pause_ms = pause_ms * 2 < LAST_PAUSE_MS ? pause_ms * 2 : LAST_PAUSE_MS;
    }
out:
    return st;
}

static cairn_status run(struct exchange *x) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc((size_t)x->p->size, sizeof(*x->told), (void **)&x->told));
    if (x->p->size > 1) TRY(publish(x));
    TRY(gather(x));
out:
    cairn__free(x->told);
    return x->refused ? cairn__peers_refuse(x->p, st) : st;
}

/* ---- interface ---- */

cairn_status cairn__peers_meet(const struct cairn__peers_options *options, struct cairn__peers *out) {
    char text[600];
    cairn_status st = CAIRN_OK;
    *out = (struct cairn__peers){.rank = options->rank,
                                 .size = options->size,
                                 .store = options->store,
                                 .prefix = options->prefix,
                                 .rank_0_serves = options->rank_0_serves,
                                 .check = options->check,
                                 .listener = -1};
    out->patience = options->timeout < MAX_TIMEOUT ? options->timeout : MAX_TIMEOUT;
    out->deadline = cairn__now_ns() + (uint64_t)(out->patience * 1e9);
    TRY(cairn__calloc((size_t)out->size, sizeof(*out->all), (void **)&out->all));
    TRY(know_myself(out, options));
    if (out->size > 1) TRY(open_listener(out));
    write_peer(out, text, sizeof(text));
    st = run(&(struct exchange){.p = out, .text = text, .take = take_peer, .ctx = out});
out:
    return st;
}

void cairn__peers_end(struct cairn__peers *p) {
    if (p->listener >= 0) close(p->listener);
    p->listener = -1;
    cairn__free(p->all);
    p->all = NULL;
}

void cairn__peers_forget(const struct cairn__peers *p) {
    struct cairn__peers whose = *p;
    char key[KEY_NBYTES];
    if (p->size == 1 || !cairn__store_forgets(p->store)) return;
    for (int i = 0; i < p->num_topics; i++) {
        write_key(&(struct exchange){.p = &whose, .topic = p->topics[i]}, p->rank, key);
        if (cairn_store_delete(p->store, key, NULL) != CAIRN_OK) return;
    }
}

bool cairn__peers_share_host(const struct cairn__peers *p) {
    for (int r = 1; r < p->size; r++) {
        if (strcmp(p->all[r].host, p->all[0].host) != 0) return false;
    }
    return true;
}

cairn_status cairn__peers_exchange(struct cairn__peers *peers, const char *topic, const char *text,
                                   cairn__peers_take taker, void *ctx) {
    return run(&(struct exchange){.p = peers, .topic = topic, .text = text, .take = taker, .ctx = ctx});
}

cairn_status cairn__peers_refuse(const struct cairn__peers *p, cairn_status status) {
    char why[1024], key[KEY_NBYTES];
    int64_t told = 0;
    if (p->size == 1) return status;
    snprintf(why, sizeof(why), "%s", cairn_last_error());
    snprintf(key, sizeof(key), "%s/peers/refused", p->prefix);
    cairn_status sent = cairn_store_add(p->store, key, 1, &told);
    const uint64_t end = cairn__now_ns() + REFUSAL_MS * UINT64_C(1000000);
    while (sent == CAIRN_OK && p->rank == 0 && told < p->size && cairn__now_ns() < end) {
        poll(NULL, 0, LAST_PAUSE_MS);
        sent = cairn_store_add(p->store, key, 0, &told);
    }
    return cairn__fail(status, "%s", why);
}

int cairn__peers_dial(const struct cairn__peers *p, int rank) {
    struct sockaddr_un a;
    socklen_t length = fill_address(p->all[rank].socket, &a);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, length) == 0) return fd;
    int cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

cairn_status cairn__peers_fail_ended(const struct cairn__peers *p, int rank) {
    return cairn__fail(CAIRN_EPEER, "rank %d (pid %d) ended while rank %d waited for it to join the group", rank,
                       p->all[rank].pid, p->rank);
}

cairn_status cairn__peers_fail_missing(const struct cairn__peers *p, bool (*is_here)(const void *ctx, int rank),
                                       const void *ctx, const char *what) {
    char list[200] = "";
    size_t used = 0;
    int n = 0;
    for (int r = 0; r < p->size && used < sizeof(list) - 8; r++) {
        if (r == p->rank || is_here(ctx, r)) continue;
        n++;
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%d", used ? ", " : "", r);
    }
    return cairn__fail(CAIRN_ETIMEOUT,
                       "rank %d waited %g s for rank%s %s, which %s; was every rank started, and with the same "
                       "MASTER_ADDR and MASTER_PORT (or init_method)?",
                       p->rank, p->patience, n > 1 ? "s" : "", list, what);
}
