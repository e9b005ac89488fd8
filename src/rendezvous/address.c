#include "rendezvous/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/status.h"

enum { MOST = 64 };

/* Writes the scope of a link-local address, too; "" if the address cannot be written. */
static void write_address(const struct sockaddr *a, char *address, size_t nbytes) {
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)a;
    struct sockaddr_in four = {.sin_family = AF_INET};
    if (a->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
        memcpy(&four.sin_addr, six->sin6_addr.s6_addr + 12, sizeof(four.sin_addr));
        a = (const struct sockaddr *)&four;
    }
    if (getnameinfo(a, a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in), address,
                    (socklen_t)nbytes, NULL, 0, NI_NUMERICHOST) != 0)
        address[0] = '\0';
}

void cairn__address_write(const struct sockaddr_storage *socket, char *address, size_t nbytes) {
    write_address((const struct sockaddr *)socket, address, nbytes);
}

int cairn__address_port(const struct sockaddr *socket) {
    return ntohs(socket->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)socket)->sin6_port
                                               : ((const struct sockaddr_in *)socket)->sin_port);
}

bool cairn__address_is_loopback(const char *address) {
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

/* NULL if `address` is not numeric. Free it with freeaddrinfo. */
static struct addrinfo *parse(const char *address, int flags) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM, .ai_flags = flags}, *list = NULL;
    return getaddrinfo(address, NULL, &hints, &list) == 0 ? list : NULL;
}

bool cairn__address_is_own(const char *address) {
    struct ifaddrs *list = NULL;
    char one[MOST];
    bool is = cairn__address_is_loopback(address);
    if (is || getifaddrs(&list) != 0) return true;
    for (const struct ifaddrs *i = list; i && !is; i = i->ifa_next) {
        if (!i->ifa_addr || (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)) continue;
        write_address(i->ifa_addr, one, sizeof(one));
        is = strcmp(one, address) == 0;
    }
    freeifaddrs(list);
    return is;
}

void cairn__address_to_listen(const char *host, bool others_come, char *address, size_t nbytes) {
    struct addrinfo *list = parse(host, 0);
    char one[MOST];
    bool several = false;
    if (strcmp(host, "localhost") == 0 || cairn__address_is_loopback(host)) others_come = false; /* they are here */
    address[0] = '\0';
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        write_address(a->ai_addr, one, sizeof(one));
        const bool is_loopback = cairn__address_is_loopback(one);
        /* "localhost" stands for 127.0.0.1 and ::1: clients that try both always reach the first. */
        if (!cairn__address_is_own(one) || (is_loopback && (others_come || strcmp(address, "127.0.0.1") == 0)))
            continue;
        several = several || (address[0] && !cairn__address_is_loopback(address));
        snprintf(address, nbytes, "%s", one);
    }
    if (several) address[0] = '\0';
    if (list) freeaddrinfo(list);
}

/* ---- interfaces ---- */

/* The highest is used first; 0 = unusable. */
static int preference(const struct ifaddrs *i) {
    const struct sockaddr *a = i->ifa_addr;
    if (!a || !(i->ifa_flags & IFF_UP)) return 0;
    if (a->sa_family == AF_INET) return 3;
    if (a->sa_family != AF_INET6) return 0;
    return IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)a)->sin6_addr) ? 1 : 2;
}

/* "lo (127.0.0.1), eth0 (10.1.0.1)" */
static void list_interfaces(const struct ifaddrs *list, char *text, size_t nbytes) {
    size_t used = 0;
    snprintf(text, nbytes, "none");
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        char address[MOST];
        if (preference(i) < 2 || used + MOST + IFNAMSIZ + 8 > nbytes) continue;
        write_address(i->ifa_addr, address, sizeof(address));
        used += (size_t)snprintf(text + used, nbytes - used, "%s%s (%s)", used ? ", " : "", i->ifa_name, address);
    }
}

/* bind succeeds for these addresses on any machine. */
static bool is_wildcard(const char *address) {
    return strcmp(address, "0.0.0.0") == 0 || strcmp(address, "::") == 0;
}

static bool is_own(const char *address) {
    struct addrinfo *a = parse(address, AI_NUMERICHOST);
    const int fd = a ? socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    const bool is = fd >= 0 && !is_wildcard(address) && bind(fd, a->ai_addr, a->ai_addrlen) == 0;
    if (fd >= 0) close(fd);
    if (a) freeaddrinfo(a);
    return is;
}

cairn_status cairn__address_of_interface(const char *interface, char *address, size_t nbytes) {
    struct ifaddrs *list = NULL;
    char name[MOST], known[600];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(interface, ","), interface);
    if (getifaddrs(&list) != 0) list = NULL;
    int best = 0;
    address[0] = '\0';
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        if (preference(i) <= best || strcmp(i->ifa_name, name) != 0) continue;
        best = preference(i);
        write_address(i->ifa_addr, address, nbytes);
    }
    if (!address[0] && is_own(name)) snprintf(address, nbytes, "%s", name);
    list_interfaces(list, known, sizeof(known));
    if (list) freeifaddrs(list);
    REQUIRE(address[0], CAIRN_EINVAL,
            "GLOO_SOCKET_IFNAME is '%s', neither an active network interface of this machine nor one of its addresses; "
            "it has %s",
            interface, known);
    return CAIRN_OK;
}

/* ---- without a named interface ---- */

void cairn__address_towards(const char *other, char *address, size_t nbytes) {
    struct sockaddr_storage here;
    socklen_t length = sizeof(here);
    struct addrinfo *a = parse(other, AI_NUMERICHOST);
    const int fd = a ? socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    address[0] = '\0';
    if (a && a->ai_family == AF_INET6) ((struct sockaddr_in6 *)a->ai_addr)->sin6_port = htons(9);
    if (a && a->ai_family == AF_INET) ((struct sockaddr_in *)a->ai_addr)->sin_port = htons(9);
    if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&here, &length) == 0)
        cairn__address_write(&here, address, nbytes);
    if (fd >= 0) close(fd);
    if (a) freeaddrinfo(a);
}

void cairn__address_of_name(char *address, size_t nbytes) {
    char name[256] = "";
    address[0] = '\0';
    if (gethostname(name, sizeof(name) - 1) != 0 || !name[0]) return;
    struct addrinfo *list = parse(name, 0);
    for (const struct addrinfo *a = list; a && !address[0]; a = a->ai_next) {
        write_address(a->ai_addr, address, nbytes);
        if (cairn__address_is_loopback(address) || !is_own(address)) address[0] = '\0';
    }
    if (list) freeaddrinfo(list);
}
