#include "rendezvous/owner.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/address.h"

union address {
    struct sockaddr_storage any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
};

/* Turns an IPv4-mapped IPv6 address into an IPv4 address: the other end may be a socket of either family. */
static void unmap(union address *a) {
    if (a->any.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a->six.sin6_addr)) return;
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = a->six.sin6_port};
    memcpy(&four.sin_addr, a->six.sin6_addr.s6_addr + 12, sizeof(four.sin_addr));
    a->four = four;
}

static in_port_t put_address(const union address *a, __be32 out[4]) {
    if (a->any.ss_family == AF_INET6) {
        memcpy(out, &a->six.sin6_addr, sizeof(a->six.sin6_addr));
        return a->six.sin6_port;
    }
    memcpy(out, &a->four.sin_addr, sizeof(a->four.sin_addr));
    return a->four.sin_port;
}

/* A socket without an inode is not accepted yet, or closed; the kernel then reports root as its owner. */
static bool is_held(const struct inet_diag_msg *m) {
    const bool is_open = m->idiag_state == TCP_ESTABLISHED || m->idiag_state == TCP_CLOSE_WAIT ||
                         m->idiag_state == TCP_FIN_WAIT1 || m->idiag_state == TCP_FIN_WAIT2;
    return is_open && m->idiag_inode != 0;
}

/* Returns 0 or an errno. *uid is CAIRN__NO_USER if no process holds the socket from `local` to `remote`. */
static int ask_kernel(int kernel, const union address *local, const union address *remote, unsigned *uid) {
    static _Atomic uint32_t number;
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 want;
    } request = {.head = {.nlmsg_len = sizeof(request),
                          .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                          .nlmsg_flags = NLM_F_REQUEST},
                 .want = {.sdiag_family = (__u8)local->any.ss_family,
                          .sdiag_protocol = IPPROTO_TCP,
                          .idiag_states = ~0u,
                          .id.idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}};
    union {
        struct nlmsghdr head;
        char bytes[4096];
    } answer;
    request.want.id.idiag_sport = put_address(local, request.want.id.idiag_src);
    request.want.id.idiag_dport = put_address(remote, request.want.id.idiag_dst);
    *uid = CAIRN__NO_USER;
    request.head.nlmsg_seq = ++number;
    ssize_t got = send(kernel, &request, sizeof(request), 0);
    if (got != (ssize_t)sizeof(request)) return got < 0 ? errno : EPROTO;
    do { /* skips answers to earlier requests */
        got = recv(kernel, &answer, sizeof(answer), 0);
        if (got < 0 && errno != EINTR) return errno;
        if (got >= 0 && !NLMSG_OK(&answer.head, (unsigned)got)) return EPROTO;
    } while (got < 0 || answer.head.nlmsg_seq != request.head.nlmsg_seq);
    if (answer.head.nlmsg_type == NLMSG_ERROR) return -((const struct nlmsgerr *)NLMSG_DATA(&answer.head))->error;
    const struct inet_diag_msg *found = NLMSG_DATA(&answer.head);
    if (answer.head.nlmsg_type == SOCK_DIAG_BY_FAMILY && is_held(found)) *uid = found->idiag_uid;
    return 0;
}

/* Kernels and sandboxes without sock_diag have the same table as text. Returns false if that is missing, too. */
static bool read_table(const union address *local, const union address *remote, unsigned *uid) {
    char line[512];
    __be32 want[2][4] = {{0}};
    const in_port_t ports[2] = {put_address(local, want[0]), put_address(remote, want[1])};
    const int words = local->any.ss_family == AF_INET6 ? 4 : 1;
    FILE *f = fopen(words == 4 ? "/proc/self/net/tcp6" : "/proc/self/net/tcp", "re");
    if (!f) return false;
    *uid = CAIRN__NO_USER;
    while (*uid == CAIRN__NO_USER && fgets(line, sizeof(line), f)) {
        char hex[2][33], expected[2][33] = {"", ""};
        unsigned port[2], state = 0, owner = 0;
        unsigned long inode = 0;
        if (sscanf(line, "%*d: %32[0-9A-F]:%x %32[0-9A-F]:%x %x %*s %*s %*s %u %*u %lu", hex[0], &port[0], hex[1],
                   &port[1], &state, &owner, &inode) != 7)
            continue;
        for (int side = 0; side < 2; side++) {
            for (int w = 0; w < words; w++) snprintf(expected[side] + 8 * w, 9, "%08X", want[side][w]);
        }
        const struct inet_diag_msg found = {.idiag_state = (__u8)state, .idiag_inode = (__u32)inode};
        if (strcmp(hex[0], expected[0]) == 0 && strcmp(hex[1], expected[1]) == 0 && port[0] == ntohs(ports[0]) &&
            port[1] == ntohs(ports[1]) && is_held(&found))
            *uid = owner;
    }
    fclose(f);
    return true;
}

int cairn__owner_open(void) {
    return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
}

enum cairn__owner cairn__owner_of_peer(int kernel, int fd, unsigned *uid) {
    union address mine = {.any = {.ss_family = AF_UNSPEC}}, theirs = mine;
    socklen_t nmine = sizeof(mine), ntheirs = sizeof(theirs);
    char address[64];
    *uid = CAIRN__NO_USER;
    if (getsockname(fd, (struct sockaddr *)&mine, &nmine) != 0 ||
        getpeername(fd, (struct sockaddr *)&theirs, &ntheirs) != 0)
        return CAIRN__OWNER_OTHER;
    if (theirs.any.ss_family != AF_INET && theirs.any.ss_family != AF_INET6) return CAIRN__OWNER_UNKNOWN;
    unmap(&mine);
    unmap(&theirs);
    const int own = kernel < 0 ? cairn__owner_open() : -1;
    const int error = kernel < 0 && own < 0 ? errno : ask_kernel(own < 0 ? kernel : own, &theirs, &mine, uid);
    if (own >= 0) close(own);
    const bool is_told = !error || error == ENOENT || read_table(&theirs, &mine, uid);
    if (*uid != CAIRN__NO_USER) return *uid == geteuid() ? CAIRN__OWNER_SAME : CAIRN__OWNER_OTHER;
    /* No process here holds the other end: it is closed, or elsewhere. */
    cairn__address_write(&theirs.any, address, sizeof(address));
    if (!cairn__address_is_own(address)) return CAIRN__OWNER_AWAY;
    return is_told ? CAIRN__OWNER_OTHER : CAIRN__OWNER_UNKNOWN;
}

void cairn__owner_describe(unsigned uid, char *text, size_t nbytes) {
    if (uid == CAIRN__NO_USER) {
        snprintf(text, nbytes, "a process of this machine that has closed its end");
    } else {
        snprintf(text, nbytes, "user %u of this machine", uid);
    }
}
