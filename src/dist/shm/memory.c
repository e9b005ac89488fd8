/* Memory files and how they travel: created unlinked, filled with pages at once (so that running out is a status here and
 * not a SIGBUS later), passed as descriptors. Huge pages are asked for before the pages come; a system that keeps them
 * from shared memory only costs speed. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/status.h"
#include "core/trace.h"
#include "dist/shm/shm.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { HUGE_PAGE = 2 << 20 };

struct parcel {
    int32_t status;
    char reason[508];
};

/* ---- memory ---- */

static void populate(void *memory, size_t nbytes) {
    if (nbytes >= HUGE_PAGE) (void)madvise(memory, nbytes, MADV_HUGEPAGE);
    (void)madvise(memory, nbytes, MADV_POPULATE_WRITE);
}

cairn_status cairn__shm_map_memory(int fd, size_t nbytes, void **out) {
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return cairn__fail_errno(errno, "mapping %zu bytes of shared memory", nbytes);
    if (nbytes >= HUGE_PAGE) (void)madvise(p, nbytes, MADV_HUGEPAGE);
    *out = p;
    return CAIRN_OK;
}

static cairn_status fill_file(int fd, size_t nbytes, void **out) {
    void *p = NULL;
    cairn_status st = CAIRN_OK;
    if (ftruncate(fd, (off_t)nbytes) != 0)
        return cairn__fail_errno(errno, "making room for %zu bytes of shared memory", nbytes);
    TRY(cairn__shm_map_memory(fd, nbytes, &p));
    populate(p, nbytes);
    if (fallocate(fd, 0, 0, (off_t)nbytes) == 0) {
        *out = p;
        return CAIRN_OK;
    }
    int cause = errno;
    munmap(p, nbytes);
    if (cause == ENOSPC) cause = ENOMEM;
    st = cairn__fail_errno(cause, "%zu bytes of shared memory", nbytes);
out:
    return st;
}

cairn_status cairn__shm_create_memory(size_t nbytes, int *fd, void **out) {
    int file = memfd_create("cairn", MFD_CLOEXEC);
    if (file < 0) return cairn__fail_errno(errno, "creating shared memory");
    cairn_status st = fill_file(file, nbytes, out);
    if (st == CAIRN_OK) {
        *fd = file;
    } else {
        close(file);
    }
    return st;
}

cairn_status cairn__shm_private_memory(size_t nbytes, void **out) {
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return cairn__fail_errno(errno, "%zu bytes of group memory", nbytes);
    populate(p, nbytes);
    *out = p;
    return CAIRN_OK;
}

void cairn__shm_unmap(void *memory, size_t nbytes) {
    if (memory) munmap(memory, nbytes);
}

/* ---- parcels ---- */

static cairn_status await(struct cairn__shm *s, int peer, short events) {
    struct pollfd p = {.fd = s->peers[peer].fd, .events = events};
    uint64_t deadline = cairn__now_ns() + (uint64_t)(s->group->timeout * 1e9);
    int got;
    do {
        got = poll(&p, 1, 100);
    } while ((got < 0 && errno == EINTR) || (got == 0 && cairn__now_ns() < deadline));
    if (got < 0) return cairn__fail_errno(errno, "waiting for rank %d", peer);
    REQUIRE(got > 0, CAIRN_ETIMEOUT, "rank %d (pid %d) did not pass its memory on to rank %d within %g s", peer,
            s->peers[peer].pid, s->rank, s->group->timeout);
    return CAIRN_OK;
}

static cairn_status ended(struct cairn__shm *s, int peer) {
    s->peers[peer].dead = true;
    return cairn__fail(CAIRN_EPEER, "rank %d (pid %d) ended while rank %d exchanged memory with it", peer,
                       s->peers[peer].pid, s->rank);
}

/* Room for one descriptor beside a message, aligned as the kernel wants it. */
union fd_control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

cairn_status cairn__shm_send_memory(struct cairn__shm *s, int peer, cairn_status status, int fd) {
    struct parcel parcel = {.status = (int32_t)status};
    if (status != CAIRN_OK) strncpy(parcel.reason, cairn_last_error(), sizeof(parcel.reason) - 1);
    union fd_control control = {
        .header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
    struct iovec io = {&parcel, sizeof(parcel)};
    struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};
    if (status == CAIRN_OK) message.msg_control = &control, message.msg_controllen = sizeof(control);
    for (;;) {
        /* A stream socket takes so small a message whole or not at all. */
        ssize_t sent = sendmsg(s->peers[peer].fd, &message, MSG_NOSIGNAL);
        if (sent >= 0) return CAIRN_OK;
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return ended(s, peer);
        cairn_status st = await(s, peer, POLLOUT);
        if (st != CAIRN_OK) return st;
    }
}

static cairn_status receive_parcel(struct cairn__shm *s, int peer, struct parcel *parcel, int *fd) {
    size_t done = 0;
    *fd = -1;
    while (done < sizeof(*parcel)) {
        union fd_control control;
        struct iovec io = {(char *)parcel + done, sizeof(*parcel) - done};
        struct msghdr message = {.msg_iov = &io,
                                 .msg_iovlen = 1,
                                 .msg_control = &control,
                                 .msg_controllen = sizeof(control)};
        ssize_t got = recvmsg(s->peers[peer].fd, &message, MSG_CMSG_CLOEXEC);
        if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return ended(s, peer);
        struct cmsghdr *extra = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
        if (extra && extra->cmsg_type == SCM_RIGHTS) memcpy(fd, CMSG_DATA(extra), sizeof(*fd));
        if (got > 0) done += (size_t)got;
        if (got > 0 || errno == EINTR) continue;
        cairn_status st = await(s, peer, POLLIN);
        if (st != CAIRN_OK) return st;
    }
    return CAIRN_OK;
}

cairn_status cairn__shm_receive_memory(struct cairn__shm *s, int peer, cairn_status *status, int *fd) {
    struct parcel parcel;
    int received = -1;
    cairn_status st = receive_parcel(s, peer, &parcel, &received);
    if (st != CAIRN_OK) {
        if (received >= 0) close(received);
        return st;
    }
    *status = (cairn_status)parcel.status;
    *fd = received;
    if (*status != CAIRN_OK) {
        cairn__fail(*status, "rank %d: %.500s", peer, parcel.reason);
    } else if (received < 0) { /* the kernel drops a descriptor for which the receiver has no number left */
        *status = cairn__fail_errno(EMFILE, "rank %d cannot take in the memory of rank %d", s->rank, peer);
    }
    return CAIRN_OK;
}
