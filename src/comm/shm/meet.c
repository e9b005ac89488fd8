/* Connects ranks that know each other: rank i connects to every rank below it. Listeners stay open until the group is
 * created, so a refused connection means that the rank has ended. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "comm/shm/shm.h"
#include "core/status.h"
#include "core/trace.h"

enum { PAUSE_MS = 1, PROBE_MS = 100, HELLO_MS = 2000, HELLO_MAGIC = 0x6361726e };

struct hello {
    uint32_t magic;
    int32_t rank;
};

struct meeting {
    struct cairn__shm *s;
    const struct cairn__peers *peers;
};

static bool late(const struct meeting *m) {
    return cairn__now_ns() >= m->peers->deadline;
}

static bool same_user(int fd, int *pid) {
    struct ucred peer;
    socklen_t length = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.uid != geteuid()) return false;
    *pid = peer.pid;
    return true;
}

/* pid is the number that this process sees; 0 if the other process is in another namespace. */
static int watch_process(int pid) {
    return pid > 0 && pid != getpid() ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static cairn_status connect_to(struct meeting *m, int rank) {
    struct shm_peer *peer = &m->s->peers[rank];
    struct hello hello = {HELLO_MAGIC, m->s->rank};
    int pid = 0;
    int fd = cairn__peers_dial(m->peers, rank);
    while (fd < 0 && (errno == EAGAIN || errno == EINTR) && !late(m)) {
        poll(NULL, 0, PAUSE_MS);
        fd = cairn__peers_dial(m->peers, rank);
    }
    if (fd < 0 && errno == ECONNREFUSED) return cairn__peers_fail_ended(m->peers, rank);
    if (fd < 0) return cairn__fail_errno(errno, "connecting to rank %d", rank);
    peer->fd = fd;
    REQUIRE(same_user(fd, &pid), CAIRN_EPEER, "rank %d runs as another user; start all ranks as one", rank);
    if (send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != (ssize_t)sizeof(hello))
        return cairn__peers_fail_ended(m->peers, rank);
    peer->process = watch_process(pid);
    peer->is_thread = pid == getpid();
    return CAIRN_OK;
}

/* Returns the rank at the other end; -1 for a stranger or a probe. */
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
        int fd = accept4(m->peers->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0 && errno == EAGAIN) return CAIRN_OK;
        if (fd < 0) return cairn__fail_errno(errno, "accepting the other ranks");
        int pid = 0, rank = identify(s, fd, &pid);
        if (rank < 0) {
            close(fd);
        } else {
            s->peers[rank].fd = fd;
            s->peers[rank].process = watch_process(pid);
            s->peers[rank].is_thread = pid == getpid();
        }
    }
}

static int first_unconnected(const struct cairn__shm *s) {
    int r = s->rank + 1;
    while (r < s->size && s->peers[r].fd >= 0) r++;
    return r;
}

/* Fails for a rank that published itself but ended before it connected: it refuses a connection. */
static cairn_status probe(struct meeting *m) {
    for (int r = m->s->rank + 1; r < m->s->size; r++) {
        if (m->s->peers[r].fd >= 0) continue;
        int fd = cairn__peers_dial(m->peers, r);
        if (fd >= 0) close(fd);
        if (fd < 0 && errno == ECONNREFUSED) return cairn__peers_fail_ended(m->peers, r);
    }
    return CAIRN_OK;
}

static bool is_connected(const void *ctx, int rank) {
    return ((const struct cairn__shm *)ctx)->peers[rank].fd >= 0;
}

static cairn_status accept_all(struct meeting *m) {
    cairn_status st = CAIRN_OK;
    TRY(accept_waiting(m));
    while (first_unconnected(m->s) < m->s->size) {
        if (late(m)) return cairn__peers_fail_missing(m->peers, is_connected, m->s, "did not connect");
        struct pollfd p = {.fd = m->peers->listener, .events = POLLIN};
        int got = poll(&p, 1, PROBE_MS);
        TRY(accept_waiting(m));
        if (got == 0) TRY(probe(m));
    }
out:
    return st;
}

cairn_status cairn__shm_meet(struct cairn__shm *s, const struct cairn__peers *peers) {
    struct meeting m = {.s = s, .peers = peers};
    cairn_status st = CAIRN_OK;
    for (int r = 0; r < s->size; r++) s->peers[r].pid = peers->all[r].pid;
    for (int r = 0; r < s->rank; r++) TRY(connect_to(&m, r));
    TRY(accept_all(&m));
out:
    return st;
}
