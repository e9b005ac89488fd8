/* How ranks meet: each publishes its machine, its process and the random name of an abstract socket in the store; when
 * all are known and all share a machine, rank i connects to every rank below it. Listeners stay open until the group
 * stands, so a refused connection means that the rank has ended. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/status.h"
#include "core/trace.h"
#include "core/vars.h"
#include "dist/shm/shm.h"

enum {
    FIRST_PAUSE_MS = 1,
    LAST_PAUSE_MS = 20,
    PROBE_MS = 100,
    HELLO_MS = 2000,
    REFUSAL_MS = 2000,
    NAME_NBYTES = 65,
    HOST_NBYTES = 160,
    HELLO_MAGIC = 0x6361726e
};

struct hello {
    uint32_t magic;
    int32_t rank;
};

struct meeting {
    struct cairn__shm *s;
    const struct cairn__group_options *options;
    uint64_t deadline;
    char host[HOST_NBYTES]; /* this rank's */
    char host_of_0[HOST_NBYTES];
    char name_of_0[NAME_NBYTES];
    bool refused; /* the ranks do not belong together, which each will find */
};

static bool late(const struct meeting *m) {
    return cairn__now_ns() >= m->deadline;
}

/* ---- who I am ---- */

static cairn_status read_host(char *host) {
    const char *told = cairn__var("CAIRN_HOST_ID");
    if (told) {
        snprintf(host, HOST_NBYTES, "%s", told);
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
    snprintf(host, HOST_NBYTES, "%s %s", boot, net);
    return CAIRN_OK;
}

/* For people: two machines may have one name. */
static void read_name(char name[NAME_NBYTES]) {
    snprintf(name, NAME_NBYTES, "?");
    if (gethostname(name, NAME_NBYTES) != 0 || !name[0] || strpbrk(name, " \n")) snprintf(name, NAME_NBYTES, "?");
    name[NAME_NBYTES - 1] = '\0';
}

static cairn_status choose_address(char address[40]) {
    uint64_t random[2];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return cairn__fail_errno(errno, "choosing a socket's name");
    snprintf(address, 40, "cairn-%016llx%016llx", (unsigned long long)random[0], (unsigned long long)random[1]);
    return CAIRN_OK;
}

static socklen_t fill_address(const char *name, struct sockaddr_un *a) {
    size_t length = strlen(name);
    *a = (struct sockaddr_un){.sun_family = AF_UNIX}; /* sun_path[0] = 0 makes the name abstract */
    memcpy(a->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static cairn_status open_listener(struct cairn__shm *s) {
    struct shm_peer *me = &s->peers[s->rank];
    cairn_status st = choose_address(me->address);
    if (st != CAIRN_OK) return st;
    struct sockaddr_un a;
    socklen_t length = fill_address(me->address, &a);
    s->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->listener < 0 || bind(s->listener, (struct sockaddr *)&a, length) != 0 ||
        listen(s->listener, 2 * CAIRN__MAX_RANKS) != 0)
        return cairn__fail_errno(errno, "listening for the other ranks");
    return CAIRN_OK;
}

/* ---- the store ---- */

static void write_key(const struct meeting *m, int rank, char *key, size_t nbytes) {
    snprintf(key, nbytes, "%s/shm/%d", m->options->prefix, rank);
}

static cairn_status publish(struct meeting *m) {
    struct cairn__shm *s = m->s;
    char key[512], text[512], name[NAME_NBYTES];
    write_key(m, s->rank, key, sizeof(key));
    read_name(name);
    int length = snprintf(text, sizeof(text), "%d %d %s %s %s", s->size, (int)getpid(), s->peers[s->rank].address, name,
                          m->host);
    return cairn_store_set(m->options->store, key, text, (size_t)length);
}

static cairn_status parse_peer(struct meeting *m, int rank, const char *text) {
    struct cairn__shm *s = m->s;
    struct shm_peer *peer = &s->peers[rank];
    int size = 0, pid = 0, at = 0;
    char address[40] = "", name[NAME_NBYTES] = "";
    m->refused = true;
    REQUIRE(sscanf(text, "%d %d %39s %64s %n", &size, &pid, address, name, &at) >= 4 && at > 0, CAIRN_EPEER,
            "rank %d wrote '%.80s' into the store, which this version of Cairn does not understand; run one version on "
            "every rank",
            rank, text);
    REQUIRE(size == s->size, CAIRN_EPEER, "rank %d counts %d ranks, rank %d counts %d; set WORLD_SIZE alike", rank,
            size, s->rank, s->size);
    const char *host = text + at;
    if (rank == 0) snprintf(m->host_of_0, HOST_NBYTES, "%s", host), memcpy(m->name_of_0, name, NAME_NBYTES);
    REQUIRE(strcmp(host, m->host_of_0) == 0, CAIRN_ENOTSUP,
            "rank 0 runs on %s ('%s') and rank %d on %s ('%s'); shm groups join the ranks of one machine and network "
            "namespace: start them there, or set CAIRN_HOST_ID to one text where shared memory is common",
            m->name_of_0, m->host_of_0, rank, name, host);
    m->refused = false;
    snprintf(peer->address, sizeof(peer->address), "%s", address);
    peer->pid = pid;
    peer->known = true;
    return CAIRN_OK;
}

static cairn_status look_up(struct meeting *m, int rank) {
    char key[512];
    void *text = NULL;
    size_t nbytes = 0;
    int ready = 0;
    cairn_status st = CAIRN_OK;
    const char *wanted = key;
    write_key(m, rank, key, sizeof(key));
    st = cairn_store_check(m->options->store, &wanted, 1, &ready);
    if (st != CAIRN_OK) { /* the store knows the key, not whom it stands for */
        return cairn__fail(st, "%s; rank %d was waiting for rank %d", cairn_last_error(), m->s->rank, rank);
    }
    if (!ready) return CAIRN_OK;
    TRY(cairn_store_get(m->options->store, key, &text, &nbytes));
    st = parse_peer(m, rank, text);
out:
    cairn__free(text);
    return st;
}

/* Of the ranks below end. */
static cairn_status fail_missing(struct meeting *m, int end, bool (*here)(const struct shm_peer *), const char *what) {
    struct cairn__shm *s = m->s;
    char list[200] = "";
    size_t used = 0;
    int n = 0;
    for (int r = 0; r < end && used < sizeof(list) - 8; r++) {
        if (r == s->rank || here(&s->peers[r])) continue;
        n++;
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%d", used ? ", " : "", r);
    }
    return cairn__fail(CAIRN_ETIMEOUT,
                       "rank %d waited %g s for rank%s %s, which %s; was every rank started, and with the same "
                       "MASTER_ADDR and MASTER_PORT (or init_method)?",
                       s->rank, s->group->timeout, n > 1 ? "s" : "", list, what);
}

static bool is_known(const struct shm_peer *peer) {
    return peer->known;
}

/* Time is up while rank `first` is waited for: looks once more, for the names of all that are missing. The first rank to
 * give up may take the store with it; then the ranks not looked up are unknown rather than missing. */
static cairn_status give_up_on(struct meeting *m, int first) {
    cairn_status st = CAIRN_OK;
    int end = first, missing = 0;
    for (; end < m->s->size; end++) {
        if (end == m->s->rank) continue;
        st = look_up(m, end);
        if (st != CAIRN_OK) break;
        missing += !m->s->peers[end].known;
    }
    return missing ? fail_missing(m, end, is_known, "did not come") : st;
}

/* In rank order, so that every rank compares hosts with rank 0's first; a later rank waits for the earlier ones. */
static cairn_status gather(struct meeting *m) {
    int pause_ms = FIRST_PAUSE_MS;
    for (int r = 0; r < m->s->size;) {
        cairn_status st = look_up(m, r);
        if (st != CAIRN_OK) return st;
        if (m->s->peers[r].known) {
            r++;
            continue;
        }
        if (late(m)) return give_up_on(m, r);
        poll(NULL, 0, pause_ms);
        pause_ms = pause_ms * 2 < LAST_PAUSE_MS ? pause_ms * 2 : LAST_PAUSE_MS;
    }
    return CAIRN_OK;
}

/* Where rank 0 leaves, the store may go with it: the others have a while to find the same reason first. */
static cairn_status refuse(const struct meeting *m, cairn_status st) {
    char why[1024], key[512];
    int64_t told = 0;
    snprintf(why, sizeof(why), "%s", cairn_last_error());
    snprintf(key, sizeof(key), "%s/shm/refused", m->options->prefix);
    cairn_status sent = cairn_store_add(m->options->store, key, 1, &told);
    const uint64_t end = cairn__now_ns() + REFUSAL_MS * UINT64_C(1000000);
    while (sent == CAIRN_OK && m->s->rank == 0 && told < m->s->size && cairn__now_ns() < end) {
        poll(NULL, 0, LAST_PAUSE_MS);
        sent = cairn_store_add(m->options->store, key, 0, &told);
    }
    return cairn__fail(st, "%s", why);
}

/* ---- connections ---- */

static cairn_status ended(const struct meeting *m, int rank) {
    return cairn__fail(CAIRN_EPEER, "rank %d (pid %d) ended while rank %d waited for it to join the group", rank,
                       m->s->peers[rank].pid, m->s->rank);
}

static bool same_user(int fd, int *pid) {
    struct ucred peer;
    socklen_t length = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.uid != geteuid()) return false;
    *pid = peer.pid;
    return true;
}

/* pid is as this process sees it, 0 where it is in another namespace. */
static int watch_process(int pid) {
    return pid > 0 && pid != getpid() ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

/* -1 with errno. */
static int dial(const char *address) {
    struct sockaddr_un a;
    socklen_t length = fill_address(address, &a);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, length) == 0) return fd;
    int cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

static cairn_status connect_to(struct meeting *m, int rank) {
    struct shm_peer *peer = &m->s->peers[rank];
    struct hello hello = {HELLO_MAGIC, m->s->rank};
    int pid = 0;
    int fd = dial(peer->address);
    while (fd < 0 && (errno == EAGAIN || errno == EINTR) && !late(m)) {
        poll(NULL, 0, FIRST_PAUSE_MS);
        fd = dial(peer->address);
    }
    if (fd < 0 && errno == ECONNREFUSED) return ended(m, rank);
    if (fd < 0) return cairn__fail_errno(errno, "connecting to rank %d", rank);
    peer->fd = fd;
    REQUIRE(same_user(fd, &pid), CAIRN_EPEER, "rank %d runs as another user; start all ranks as one", rank);
    if (send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != (ssize_t)sizeof(hello)) return ended(m, rank);
    peer->process = watch_process(pid);
    return CAIRN_OK;
}

/* The rank at the other end; -1 for a stranger or a probe. */
static int identify(const struct cairn__shm *s, int fd, int *pid) {
    struct hello hello;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (!same_user(fd, pid) || poll(&p, 1, HELLO_MS) <= 0) return -1;
    if (recv(fd, &hello, sizeof(hello), 0) != (ssize_t)sizeof(hello) || hello.magic != HELLO_MAGIC) return -1;
    bool expected = hello.rank > s->rank && hello.rank < s->size && s->peers[hello.rank].fd < 0;
    return expected ? hello.rank : -1;
}

static cairn_status accept_waiting(struct meeting *m) {
    struct cairn__shm *s = m->s;
    for (;;) {
        int fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0 && errno == EAGAIN) return CAIRN_OK;
        if (fd < 0) return cairn__fail_errno(errno, "accepting the other ranks");
        int pid = 0, rank = identify(s, fd, &pid);
        if (rank < 0) {
            close(fd);
        } else {
            s->peers[rank].fd = fd;
            s->peers[rank].process = watch_process(pid);
        }
    }
}

static int first_unconnected(const struct cairn__shm *s) {
    int r = s->rank + 1;
    while (r < s->size && s->peers[r].fd >= 0) r++;
    return r;
}

/* A rank that published itself and ended before it connected shows by refusing a connection. */
static cairn_status probe(struct meeting *m) {
    for (int r = m->s->rank + 1; r < m->s->size; r++) {
        if (m->s->peers[r].fd >= 0) continue;
        int fd = dial(m->s->peers[r].address);
        if (fd >= 0) close(fd);
        if (fd < 0 && errno == ECONNREFUSED) return ended(m, r);
    }
    return CAIRN_OK;
}

static bool is_connected(const struct shm_peer *peer) {
    return peer->fd >= 0;
}

static cairn_status accept_all(struct meeting *m) {
    cairn_status st = CAIRN_OK;
    TRY(accept_waiting(m));
    while (first_unconnected(m->s) < m->s->size) {
        if (late(m)) return fail_missing(m, m->s->size, is_connected, "did not connect");
        struct pollfd p = {.fd = m->s->listener, .events = POLLIN};
        int got = poll(&p, 1, PROBE_MS);
        TRY(accept_waiting(m));
        if (got == 0) TRY(probe(m));
    }
out:
    return st;
}

cairn_status cairn__shm_meet(struct cairn__shm *s, const struct cairn__group_options *options) {
    struct meeting m = {.s = s, .options = options};
    m.deadline = cairn__now_ns() + (uint64_t)(s->group->timeout * 1e9);
    cairn_status st = CAIRN_OK;
    TRY(read_host(m.host));
    TRY(open_listener(s));
    TRY(publish(&m));
    st = gather(&m);
    if (m.refused) st = refuse(&m, st);
    if (st != CAIRN_OK) goto out;
    for (int r = 0; r < s->rank; r++) TRY(connect_to(&m, r));
    TRY(accept_all(&m));
out:
    return st;
}
