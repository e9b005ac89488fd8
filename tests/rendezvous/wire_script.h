/* Transcripts of the TCP store as text, and functions that send and expect them: "01 | 02*8 '/k'" means hex bytes, XX*8
 * a little-endian u64, 'text'; '|' and spaces are ignored. The functions that send and expect need cmocka.h to be
 * included first. */
#ifndef CAIRN_TESTS_WIRE_SCRIPT_H
#define CAIRN_TESTS_WIRE_SCRIPT_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* VALIDATE: the first bytes of torch 2.2 and later. */
#define HELLO "00 ce f7 85 3c"

static inline size_t bytes_of(const char *script, uint8_t *out) {
    size_t n = 0;
    for (const char *at = script; *at;) {
        if (*at == ' ' || *at == '|') {
            at++;
        } else if (*at == '\'') {
            for (at++; *at != '\''; at++) out[n++] = (uint8_t)*at;
            at++;
        } else {
            char hex[3] = {at[0], at[1], '\0'};
            out[n++] = (uint8_t)strtol(hex, NULL, 16);
            at += 2;
            if (strncmp(at, "*8", 2) != 0) continue;
            memset(out + n, 0, 7);
            n += 7;
            at += 2;
        }
    }
    return n;
}

/* Connects to a port of this machine, with a read timeout of 20 s; returns -1 on error. */
static inline int connect_here(int port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0) return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 20}, sizeof(struct timeval));
    if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0) return fd;
    close(fd);
    return -1;
}

#ifdef assert_memory_equal

static inline void say(int fd, const char *script) {
    uint8_t bytes[512];
    const size_t n = bytes_of(script, bytes);
    assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
}

static inline void hear(int fd, const char *script) {
    uint8_t wanted[512], got[512];
    const size_t n = bytes_of(script, wanted);
    assert_int_equal(recv(fd, got, n, MSG_WAITALL), n);
    assert_memory_equal(got, wanted, n);
}

static inline bool is_silent(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 50) == 0;
}

#endif

/* Expects the peer to close the connection within 20 s; ignores bytes that it sends before. */
static inline bool is_closed(int fd) {
    char bytes[512];
    ssize_t got;
    while ((got = recv(fd, bytes, sizeof(bytes), 0)) > 0) continue;
    return got == 0 || errno == ECONNRESET;
}

#endif
