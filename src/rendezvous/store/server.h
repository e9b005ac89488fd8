/* The TCP store's server: one thread (named "cairn-store"), non-blocking connections, both dialects of the wire
 * (wire.h), chosen for each connection by its first bytes. A half-sent request, an idle connection or a foreign
 * program affects only its own connection: unknown bytes close it; keys, values, keys in a request and connections
 * are limited. When descriptors or connections run out, the server first closes connections that have never sent a
 * valid request, oldest first. */
#ifndef CAIRN__RENDEZVOUS_STORE_SERVER_H
#define CAIRN__RENDEZVOUS_STORE_SERVER_H

#include <stdbool.h>

#include "cairn/core.h"
#include "rendezvous/secret.h"

struct cairn__store_server;

/* Where a store listens, and whom it serves. A process of this machine is served only if it runs as this user, which
 * the kernel tells (owner.h), or proves itself. A process of another machine has to prove itself if there is a secret,
 * and is trusted if there is none. */
struct cairn__store_door {
    int port;            /* 0 = a free one */
    const char *address; /* numeric, of this machine; "" = every one (dual-stack, or else IPv4); NULL = 127.0.0.1 */
    const struct cairn__secret *secret; /* NULL = none; owned by the caller, and outlives the server */
    bool has_guests;       /* torch's ranks on other machines, which have no proof, may use keys that are not Cairn's */
    double proof_patience; /* seconds from a connection to its proof; 0 = 10 */
    bool is_open;          /* all clients are trusted, as the user has set (CAIRN_INSECURE) */
};

/* Afterwards clients may connect; cairn__store_start begins to serve them. *bound_port gets the port. Errors:
 * CAIRN_ESYSTEM "port 29500 is in use ..." with what to do. */
cairn_status cairn__store_listen_at(const struct cairn__store_door *door, struct cairn__store_server **out,
                                    int *bound_port);
cairn_status cairn__store_start(struct cairn__store_server *server);

/* Listens and starts. */
cairn_status cairn__store_serve_at(const struct cairn__store_door *door, struct cairn__store_server **out,
                                   int *bound_port);

/* Listens for this user's processes on this machine. */
cairn_status cairn__store_listen(int port, struct cairn__store_server **out, int *bound_port);
cairn_status cairn__store_serve(int port, struct cairn__store_server **out, int *bound_port);

/* *server may be NULL, or not started. */
void cairn__store_stop(struct cairn__store_server **server);

/* Detaches a started server: whenever it has no connection, its thread calls may_end, and ends itself and the server if
 * that returns true. A further call replaces may_end and makes the thread call it again. cairn__store_stop must not be
 * called afterwards. */
void cairn__store_let_end(struct cairn__store_server *server, bool (*may_end)(void *ctx), void *ctx);

/* For may_end: stops listening, so that the port is free. */
void cairn__store_close_door(struct cairn__store_server *server);

/* Deletes every key that does not begin with kept (as on the wire, with "/" in front), in one step. A launcher that
 * restarts its ranks uses it. */
void cairn__store_keep_only(struct cairn__store_server *server, const char *kept);

#endif
