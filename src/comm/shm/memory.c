/* Memory files: created without a name, filled with pages at once (so that a lack of memory is a status here, not a
 * SIGBUS later), and passed to other ranks as descriptors. Whole blocks become huge pages as soon as they have their
 * first page: the backward that writes this memory, the collective that adds it up and the optimizer that reads it are
 * bound by memory, and most systems give shared memory no huge pages by themselves. A system that refuses them only
 * costs speed. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/shm/shm.h"
#include "core/status.h"
#include "core/trace.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { HUGE_PAGE = 2 << 20, PATIENCE_MS = 20, END_MS = 200 };

struct parcel {
    int64_t group; /* the group's index: ranks that failed halfway may leave parcels behind */
    int32_t status;
    void *address; /* if both ranks are threads of one process; NULL: a descriptor comes with the parcel */
    char reason[500];
};

/* ---- memory ---- */

static size_t page_nbytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* The kernel does not collapse an empty block, hence the first page. Before Linux 6.1 it collapses no block, and gives
 * huge pages only if MADV_HUGEPAGE comes before the first page. */
static void collapse(char *memory, size_t nbytes) {
    if (nbytes >= HUGE_PAGE) (void)madvise(memory, nbytes, MADV_HUGEPAGE);
    for (size_t i = 0; i + HUGE_PAGE <= nbytes; i += HUGE_PAGE) {
        if (madvise(memory + i, page_nbytes(), MADV_POPULATE_WRITE) != 0) return;
        if (madvise(memory + i, HUGE_PAGE, MADV_COLLAPSE) != 0) return;
    }
}

cairn_status cairn__shm_fill(void *memory, size_t nbytes) {
    if (madvise(memory, nbytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL /* Linux before 5.14 */) return CAIRN_OK;
    return cairn__fail_errno(ENOMEM, "%zu bytes of shared memory for messages", nbytes);
}

/* Reserves address space that begins at a multiple of a huge page; only there can a huge page of a file be mapped as
 * one. */
static void *reserve(size_t nbytes) {
    const size_t page = page_nbytes(), whole = (nbytes + page - 1) / page * page;
    char *const room = mmap(NULL, whole + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return NULL;
    const size_t before = (HUGE_PAGE - (uintptr_t)room % HUGE_PAGE) % HUGE_PAGE;
    if (before) munmap(room, before);
    munmap(room + before + whole, HUGE_PAGE - before);
    return room + before;
}

cairn_status cairn__shm_map_memory(int fd, size_t nbytes, void **out) {
    void *const at = nbytes >= HUGE_PAGE ? reserve(nbytes) : NULL;
    void *const p = mmap(at, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
    if (p == MAP_FAILED) {
        const int cause = errno;
        if (at) munmap(at, nbytes);
        return cairn__fail_errno(cause, "mapping %zu bytes of shared memory", nbytes);
    }
    *out = p;
    return CAIRN_OK;
}

static cairn_status fill_file(int fd, size_t nbytes, size_t filled, void **out) {
    struct rlimit limit = {0};
    void *p = NULL;
    cairn_status st = CAIRN_OK;
    /* ulimit -f also limits memory files; beyond it the process gets a SIGXFSZ. */
    const bool is_limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    REQUIRE(!is_limited || nbytes <= limit.rlim_cur, CAIRN_ENOMEM,
            "%zu bytes of shared memory are more than the %llu that a file may have here; raise ulimit -f", nbytes,
            (unsigned long long)limit.rlim_cur);
    if (ftruncate(fd, (off_t)nbytes) != 0)
        return cairn__fail_errno(errno, "making room for %zu bytes of shared memory", nbytes);
    TRY(cairn__shm_map_memory(fd, nbytes, &p));
    collapse(p, filled);
    (void)madvise(p, filled, MADV_POPULATE_WRITE);
    if (fallocate(fd, 0, 0, (off_t)filled) == 0) {
        *out = p;
        return CAIRN_OK;
    }
    int cause = errno;
    munmap(p, nbytes);
    if (cause == ENOSPC) cause = ENOMEM;
    st = cairn__fail_errno(cause, "%zu bytes of shared memory", filled);
out:
    return st;
}

cairn_status cairn__shm_create_memory(size_t nbytes, size_t filled, int *fd, void **out) {
    int file = memfd_create("cairn", MFD_CLOEXEC);
    if (file < 0) return cairn__fail_errno(errno, "creating shared memory");
    cairn_status st = fill_file(file, nbytes, filled, out);
    if (st == CAIRN_OK) {
        *fd = file;
    } else {
        close(file);
    }
    return st;
}

cairn_status cairn__shm_private_memory(size_t nbytes, size_t filled, void **out) {
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return cairn__fail_errno(errno, "%zu bytes of group memory", nbytes);
    if (nbytes >= HUGE_PAGE) (void)madvise(p, nbytes, MADV_HUGEPAGE);
    (void)madvise(p, filled, MADV_POPULATE_WRITE);
    *out = p;
    return CAIRN_OK;
}

void cairn__shm_unmap(void *memory, size_t nbytes) {
    if (memory) munmap(memory, nbytes);
}

/* ---- parcels ---- */

static const char DID[] = "exchanged memory with the others";

/* The rank that ended first. A rank that notices an end while a group is made closes its own connections, so of several
 * ranks with closed connections, the one whose process is gone was first. The system reports the end of a process a
 * moment after that of its connections. */
static int first_ended(const struct cairn__shm *s, int peer) {
    struct pollfd processes[CAIRN__MAX_RANKS];
    bool any = false;
    for (int r = 0; r < s->size; r++) {
        processes[r] = (struct pollfd){.fd = r == s->rank ? -1 : s->peers[r].process, .events = POLLIN};
        any = any || processes[r].fd >= 0;
    }
    if (!any || poll(processes, (nfds_t)s->size, END_MS) <= 0 || processes[peer].revents) return peer;
    while (!processes[peer].revents) peer = (peer + 1) % s->size;
    return peer;
}

static cairn_status ended(struct cairn__shm *s, int peer) {
    s->peers[peer].dead = true;
    return cairn__shm_fail_gone(s, first_ended(s, peer), DID);
}

/* Fails if any rank is gone: the rank for which this one waits may itself wait for a rank that ended or gave up,
 * because a group that is being made ends with its parent. */
static cairn_status check_others(struct cairn__shm *s) {
    struct cairn__shm *all = s->parent ? s->parent : s;
    cairn_status st = CAIRN_OK;
    TRY(cairn__group_was_aborted(all->group));
    const int rank = cairn__shm_find_gone(all);
    if (rank >= 0) st = all->peers[rank].dead ? ended(all, rank) : cairn__shm_fail_gone(all, rank, DID);
out:
    return st;
}

static cairn_status await(struct cairn__shm *s, int peer, short events) {
    struct pollfd p = {.fd = s->peers[peer].fd, .events = events};
    uint64_t deadline = cairn__now_ns() + (uint64_t)(s->group->timeout * 1e9);
    cairn_status st = CAIRN_OK;
    char name[96];
    int got;
    do {
        got = poll(&p, 1, PATIENCE_MS);
        if (got > 0) return CAIRN_OK;
        if (got < 0 && errno != EINTR) return cairn__fail_errno(errno, "waiting for rank %d", peer);
        TRY(check_others(s));
    } while (cairn__now_ns() < deadline);
    cairn__group_name_rank(s->group, peer, name, sizeof(name));
    st = cairn__fail(CAIRN_ETIMEOUT, "%s (pid %d) did not share its memory with rank %d within %g s", name,
                     s->peers[peer].pid, s->rank, s->group->timeout);
out:
    return st;
}

/* Room for one descriptor beside a message, with the alignment that the kernel requires. */
union fd_control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

cairn_status cairn__shm_send_memory(struct cairn__shm *s, int peer, int64_t index, cairn_status status, int fd,
                                    void *address) {
    struct parcel parcel = {.group = index, .status = (int32_t)status, .address = address};
    cairn_status st = CAIRN_OK;
    if (status != CAIRN_OK) strncpy(parcel.reason, cairn_last_error(), sizeof(parcel.reason) - 1);
    union fd_control control = {
        .header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
    struct iovec io = {&parcel, sizeof(parcel)};
    struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};
    if (status == CAIRN_OK && !address) message.msg_control = &control, message.msg_controllen = sizeof(control);
    for (;;) {
        /* A stream socket takes a message this small whole or not at all. */
        ssize_t sent = sendmsg(s->peers[peer].fd, &message, MSG_NOSIGNAL);
        if (sent >= 0) return CAIRN_OK;
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return ended(s, peer);
        TRY(await(s, peer, POLLOUT));
    }
out:
    return st;
}

static cairn_status receive_parcel(struct cairn__shm *s, int peer, struct parcel *parcel, int *fd) {
    size_t done = 0;
    cairn_status st = CAIRN_OK;
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
        TRY(await(s, peer, POLLIN));
    }
out:
    return st;
}

cairn_status cairn__shm_receive_memory(struct cairn__shm *s, int peer, cairn_status *status, int *fd, void **address) {
    struct parcel parcel;
    int received = -1;
    cairn_status st = receive_parcel(s, peer, &parcel, &received);
    while (st == CAIRN_OK && parcel.group != s->group->index) {
        if (received >= 0) close(received);
        st = receive_parcel(s, peer, &parcel, &received);
    }
    if (st != CAIRN_OK) {
        if (received >= 0) close(received);
        return st;
    }
    *status = (cairn_status)parcel.status;
    *fd = received;
    *address = parcel.address;
    if (*status != CAIRN_OK) {
        cairn__fail(*status, "rank %d: %.499s", peer, parcel.reason);
    } else if (received < 0 &&
               !parcel.address) { /* the kernel drops a descriptor for which the receiver has no number left */
        *status = cairn__fail_errno(EMFILE, "rank %d cannot receive the memory of rank %d", s->rank, peer);
    }
    return CAIRN_OK;
}
