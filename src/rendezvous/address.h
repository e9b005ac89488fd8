/* By which address other machines reach this one. Numeric, IPv4 or IPv6, never one mapped into the other; "" = none. */
#ifndef CAIRN__RENDEZVOUS_ADDRESS_H
#define CAIRN__RENDEZVOUS_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

struct sockaddr_storage;

#include "cairn/core.h"

bool cairn__address_is_loopback(const char *address);

/* A socket's, in digits. */
void cairn__address_write(const struct sockaddr_storage *socket, char *address, size_t nbytes);

/* What `interface` says: a network interface's name, or the first of "eth0,eth1", or an address of this machine.
 * IPv4 is preferred. CAIRN_EINVAL, with the interfaces there are. */
cairn_status cairn__address_of_interface(const char *interface, char *address, size_t nbytes);

/* The one that the kernel would use towards `other`, which hears nothing of it. */
void cairn__address_towards(const char *other, char *address, size_t nbytes);

/* The one that this machine's name stands for, where that is not loopback. May ask a name server. */
void cairn__address_of_name(char *address, size_t nbytes);

#endif
