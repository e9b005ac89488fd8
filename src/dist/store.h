/* The TCP store: a small key-value server where ranks meet, in the bytes of PyTorch's TCPStore 2.2 and later.
 *
 * Server: cairn__store_serve runs one thread (named "cairn-store") with non-blocking connections: a half-sent request
 * never holds up another client. Keys up to 8 KiB, values up to 8 MiB; unknown bytes close only that connection.
 * Client: one connection, one caller at a time; every call has the store's timeout.
 * Source: PyTorch's TCPStore protocol (TCPStoreLibUvBackend.cpp, v2.2 and later): VALIDATE 0, SET 1, COMPARE_SET 2, GET 3,
 * ADD 4, CHECK 5, WAIT 6, GETNUMKEYS 7, DELETE_KEY 8, APPEND 9, MULTI_GET 10, MULTI_SET 11, CANCEL_WAIT 12, PING 13. */
#ifndef CAIRN__DIST_STORE_H
#define CAIRN__DIST_STORE_H

#include "cairn/core.h"

struct cairn__store_server;
struct cairn__store;

/* Listens on port (0 = a free one) of every local address (dual-stack, then IPv4) and serves until stopped.
 * *bound_port gets the port. Errors: CAIRN_ESYSTEM "port 29500 is in use ..." with what to do. */
cairn_status cairn__store_serve(int port, struct cairn__store_server **out, int *bound_port);
void cairn__store_stop(struct cairn__store_server **server);

/* Connects, retrying until timeout (seconds) has passed. Errors: CAIRN_EINVAL host; CAIRN_ETIMEOUT "no store answered at
 * host:port within ... s: ..."; CAIRN_ESYSTEM. */
cairn_status cairn__store_connect(const char *host, int port, double timeout, struct cairn__store **out);
void cairn__store_close(struct cairn__store **store);

/* For leaving: returns once the server has closed this connection, or after timeout seconds. Whoever connects to its port
 * after an end that was seen does not meet this server any more. Calls on s then fail; what is left is to close it. */
void cairn__store_wait_end(struct cairn__store *s, double timeout);

/* Keys are C strings; the "/" that torch clients put in front is added here. */
cairn_status cairn__store_set(struct cairn__store *s, const char *key, const void *value, size_t nbytes);
/* Waits for the key. *value is made with cairn__alloc, NUL-terminated beyond *nbytes; free with cairn__free.
 * Errors: CAIRN_ETIMEOUT names the key; CAIRN_EPEER the server went away. */
cairn_status cairn__store_get(struct cairn__store *s, const char *key, void **value, size_t *nbytes);
cairn_status cairn__store_add(struct cairn__store *s, const char *key, int64_t delta, int64_t *sum);
/* *ready = 1 where the key is there now. */
cairn_status cairn__store_check(struct cairn__store *s, const char *key, int *ready);
cairn_status cairn__store_wait(struct cairn__store *s, const char *key);
cairn_status cairn__store_compare_set(struct cairn__store *s, const char *key, const void *expected, size_t nexpected,
                                      const void *desired, size_t ndesired, void **value, size_t *nbytes);
cairn_status cairn__store_delete(struct cairn__store *s, const char *key, int *deleted);

#endif
