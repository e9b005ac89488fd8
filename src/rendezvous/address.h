/* Addresses by which other machines reach this one. Numeric, IPv4 or IPv6, never one mapped into the other; "" =
 * none. */
#ifndef CAIRN__RENDEZVOUS_ADDRESS_H
#define CAIRN__RENDEZVOUS_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

struct sockaddr;
struct sockaddr_storage;

#include "cairn/core.h"

bool cairn__address_is_loopback(const char *address);

/* Whether an interface of this machine has the address; true if the system does not say. */
bool cairn__address_is_own(const char *address);

/* Finds the address at which a server listens if others reach it by the name or address `host`: the one address of this
 * machine that host stands for. "" = listen at every address, because host stands for several, or for none (a proxy's,
 * another machine's). If others_come, a loopback address counts only if host itself is one: /etc/hosts often gives one
 * to this machine's own name. */
void cairn__address_to_listen(const char *host, bool others_come, char *address, size_t nbytes);

/* Writes a socket's address in digits. */
void cairn__address_write(const struct sockaddr_storage *socket, char *address, size_t nbytes);

/* The port of a socket's address. */
int cairn__address_port(const struct sockaddr *socket);

/* The address that `interface` names: a network interface, the first of "eth0,eth1", or an address of this machine
 * itself. IPv4 is preferred. Errors: CAIRN_EINVAL, with a list of this machine's interfaces. */
cairn_status cairn__address_of_interface(const char *interface, char *address, size_t nbytes);

/* The address from which the kernel would send to `other`; nothing is sent. */
void cairn__address_towards(const char *other, char *address, size_t nbytes);

/* The address that this machine's name resolves to, unless that is loopback. May query a name server. */
void cairn__address_of_name(char *address, size_t nbytes);

#endif
