#include "place.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

const char *place_name(void) {
    static char name[256];
    if (!name[0] && gethostname(name, sizeof(name) - 1) != 0) strcpy(name, "localhost");
    return name;
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b) {
    if (a->sa_family != b->sa_family) return false;
    if (a->sa_family == AF_INET) {
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    }
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr,
                  sizeof(struct in6_addr)) == 0;
}

/* All of 127.0.0.0/8 is local, though interfaces list only one of its addresses. */
static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static bool is_own(const struct sockaddr *address) {
    struct ifaddrs *all = NULL;
    bool own = is_loopback(address);
    if (own || getifaddrs(&all) != 0) return own;
    for (const struct ifaddrs *i = all; i && !own; i = i->ifa_next) {
        own = i->ifa_addr && same_address(i->ifa_addr, address);
    }
    freeifaddrs(all);
    return own;
}

bool place_is_here(const char *host) {
    if (!host[0] || strcasecmp(host, "localhost") == 0 || strcasecmp(host, place_name()) == 0) return true;
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    if (getaddrinfo(host, NULL, &hints, &found) != 0) return false;
    bool here = false;
    for (const struct addrinfo *a = found; a && !here; a = a->ai_next) here = is_own(a->ai_addr);
    freeaddrinfo(found);
    return here;
}
