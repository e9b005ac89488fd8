/* Stores from inside: what a kind of store fills. The front (store.c) checks arguments; a kind may assert them. */
#ifndef CAIRN__RENDEZVOUS_STORE_STORE_H
#define CAIRN__RENDEZVOUS_STORE_STORE_H

#include "cairn/store.h"

struct cairn__store_ops {
    const char *name; /* "tcp", "file", "hash", "prefix" */
    cairn_status (*set)(cairn_store *s, const char *key, const void *value, size_t nbytes);
    cairn_status (*get)(cairn_store *s, const char *key, void **value,
                        size_t *nbytes); /* waits; both outputs are there */
    cairn_status (*add)(cairn_store *s, const char *key, int64_t delta, int64_t *sum);
    cairn_status (*wait)(cairn_store *s, const char *const *keys, size_t n);
    cairn_status (*check)(cairn_store *s, const char *const *keys, size_t n, int *present);
    cairn_status (*compare_set)(cairn_store *s, const char *key, const void *expected, size_t nexpected,
                                const void *desired, size_t ndesired, void **value, size_t *nbytes);
    cairn_status (*append)(cairn_store *s, const char *key, const void *value, size_t nbytes);
    cairn_status (*delete)(cairn_store *s, const char *key, int *deleted);
    cairn_status (*num_keys)(cairn_store *s, int64_t *count);
    cairn_status (*set_timeout)(cairn_store *s, double timeout); /* optional: the front sets s->timeout */
    double (*hurry)(cairn_store *s, double timeout);             /* optional: the front lowers s->timeout */
    void (*local_address)(const cairn_store *s, char *address, size_t nbytes); /* optional: there is none */
    void (*destroy)(cairn_store *s);
};

/* First member of every kind. */
struct cairn_store {
    const struct cairn__store_ops *ops;
    double timeout; /* seconds */
    int port;       /* of a TCP store, else 0 */
};

/* What a caller gave as timeout: 0 becomes CAIRN_TIMEOUT, or 300. Errors: CAIRN_EINVAL. */
cairn_status cairn__store_timeout(double given, double *timeout);

/* For a few calls whose caller cannot wait long: lowers the timeout. Returns what it was, for cairn_store_set_timeout;
 * 0 = it was let alone, since threads share the store and these calls cannot hang. */
double cairn__store_hurry(cairn_store *s, double timeout);

/* This end of a TCP store's connection, as address.h has addresses; "" for other stores. */
void cairn__store_local_address(const cairn_store *s, char *address, size_t nbytes);

/* cairn_tcp_store_create with several places where the server may be: clients try all of them in turn until one has the
 * key `proof` (NULL: whoever speaks the protocol will do). hosts and ports are tried in the order given, a host with
 * all ports first. */
struct cairn__store_places {
    const char *const *hosts;
    int num_hosts;
    const int *ports;
    int num_ports;
    const char *proof;
};
cairn_status cairn__store_connect(const struct cairn__store_places *places, double timeout, cairn_store **out);

/* For leaving a TCP store: returns once the server has closed this connection, or after timeout seconds. Whoever
 * connects to its port after an end that was seen does not meet this server any more. What is left is to destroy s. */
void cairn__store_wait_end(cairn_store *s, double timeout);

#endif
