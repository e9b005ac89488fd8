/* The TCP store's server: one thread (named "cairn-store"), non-blocking connections, both dialects of the wire
 * (wire.h), each connection by its own first bytes. A half-sent request, an idle connection or a foreign program costs
 * its sender alone: unknown bytes close that connection; limits are on keys, values, keys in a request, connections.
 * Where the descriptors or connections run out, those that never sent a valid request are closed first, oldest
 * first. */
#ifndef CAIRN__RENDEZVOUS_STORE_SERVER_H
#define CAIRN__RENDEZVOUS_STORE_SERVER_H

#include <stdbool.h>

#include "cairn/core.h"

struct cairn__store_server;

/* Listens on port (0 = a free one) of every local address (dual-stack, then IPv4); *bound_port gets the port. Clients
 * may connect from now on and are served once it is started. Errors: CAIRN_ESYSTEM "port 29500 is in use ..." with what
 * to do. */
cairn_status cairn__store_listen(int port, struct cairn__store_server **out, int *bound_port);
cairn_status cairn__store_start(struct cairn__store_server *server);

/* Both at once. */
cairn_status cairn__store_serve(int port, struct cairn__store_server **out, int *bound_port);

/* NULL inside is fine; one that was not started too. */
void cairn__store_stop(struct cairn__store_server **server);

/* Leaves a started server to its own thread, which asks may_end each time that it has no connection, and ends itself
 * and the server where that says so; may be called again to have it asked anew. Afterwards there is no
 * cairn__store_stop. */
void cairn__store_let_end(struct cairn__store_server *server, bool (*may_end)(void *ctx), void *ctx);

/* For may_end: listens no more, so that the port is free. */
void cairn__store_close_door(struct cairn__store_server *server);

/* Forgets every key that does not begin with kept (as on the wire, "/" in front), in one piece. For a launcher that
 * starts its ranks anew. */
void cairn__store_keep_only(struct cairn__store_server *server, const char *kept);

#endif
