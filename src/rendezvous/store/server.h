/* The TCP store's server: one thread (named "cairn-store"), non-blocking connections, both dialects of the wire
 * (wire.h), chosen for each connection by its first bytes. A half-sent request, an idle connection or a foreign
 * program affects only its own connection: unknown bytes close it; keys, values, keys in a request and connections
 * are limited. When descriptors or connections run out, the server first closes connections that have never sent a
 * valid request, oldest first. */
#ifndef CAIRN__RENDEZVOUS_STORE_SERVER_H
#define CAIRN__RENDEZVOUS_STORE_SERVER_H

#include <stdbool.h>

#include "cairn/core.h"

struct cairn__store_server;

/* Listens on port (0 = a free one) of every local address (dual-stack, or else IPv4); *bound_port gets the port.
 * Clients may connect from then on and are served after cairn__store_start. Errors: CAIRN_ESYSTEM "port 29500 is in
 * use ..." with what to do. */
cairn_status cairn__store_listen(int port, struct cairn__store_server **out, int *bound_port);
cairn_status cairn__store_start(struct cairn__store_server *server);

/* Both at once. */
cairn_status cairn__store_serve(int port, struct cairn__store_server **out, int *bound_port);

/* *server may be NULL, or not started. */
void cairn__store_stop(struct cairn__store_server **server);

/* Detaches a started server: its thread calls may_end each time that it has no connection, and ends itself and the
 * server if that returns true. A further call replaces may_end and makes the thread call it again. cairn__store_stop
 * must not be called afterwards. */
void cairn__store_let_end(struct cairn__store_server *server, bool (*may_end)(void *ctx), void *ctx);

/* For may_end: stops listening, so that the port is free. */
void cairn__store_close_door(struct cairn__store_server *server);

/* Deletes every key that does not begin with kept (as on the wire, with "/" in front), in one step. For a launcher
 * that restarts its ranks. */
void cairn__store_keep_only(struct cairn__store_server *server, const char *kept);

#endif
