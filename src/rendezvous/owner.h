/* Finds the user who owns the other end of a TCP connection within this machine. The kernel tells every process
 * (sock_diag(7)), so processes of one user on one machine recognise each other without a secret. RFC 1413 asks a daemon
 * the same question. */
#ifndef CAIRN__RENDEZVOUS_OWNER_H
#define CAIRN__RENDEZVOUS_OWNER_H

#include <stddef.h>

enum cairn__owner {
    CAIRN__OWNER_SAME,    /* a process of this process's effective user, on this machine */
    CAIRN__OWNER_OTHER,   /* another user's process on this machine, or one that has closed its end already */
    CAIRN__OWNER_AWAY,    /* the address is another machine's, or another network namespace's */
    CAIRN__OWNER_UNKNOWN, /* the kernel does not say */
};

#define CAIRN__NO_USER ((unsigned)-1)

/* Opens a descriptor for many queries, which then do not fail for lack of descriptors; -1 with errno. */
int cairn__owner_open(void);

/* kernel: from cairn__owner_open, or -1. fd is a connected TCP socket whose other end has been accepted: for a server's
 * end that is certain once it has answered. *uid is written for CAIRN__OWNER_OTHER, and is CAIRN__NO_USER if the other
 * end is closed. */
enum cairn__owner cairn__owner_of_peer(int kernel, int fd, unsigned *uid);

/* "user 1001 of this machine", for messages. */
void cairn__owner_describe(unsigned uid, char *text, size_t nbytes);

#endif
