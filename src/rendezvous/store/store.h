/* The interface between kinds of store and their front (store.c), which checks arguments; a kind may assert them. */
#ifndef CAIRN__RENDEZVOUS_STORE_STORE_H
#define CAIRN__RENDEZVOUS_STORE_STORE_H

#include "cairn/store.h"
#include "rendezvous/secret.h"

struct cairn__store_ops {
    const char *name; /* "tcp", "file", "hash", "prefix" */
    cairn_status (*set)(cairn_store *s, const char *key, const void *value, size_t nbytes);
    cairn_status (*get)(cairn_store *s, const char *key, void **value,
                        size_t *nbytes); /* waits; both outputs are non-NULL */
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
    bool (*forgets)(const cairn_store *s);                                     /* optional: true */
    void (*destroy)(cairn_store *s);
};

/* First member of every kind. */
struct cairn_store {
    const struct cairn__store_ops *ops;
    double timeout; /* seconds */
    int port;       /* of a TCP store, else 0 */
};

/* The timeout that a caller gave: 0 becomes CAIRN_TIMEOUT, or 300. Errors: CAIRN_EINVAL. */
cairn_status cairn__store_timeout(double given, double *timeout);

/* Lowers the timeout, for callers that cannot wait long. Returns the old one, for cairn_store_set_timeout. Returns 0
 * and changes nothing if threads share the store, whose calls cannot hang. */
double cairn__store_hurry(cairn_store *s, double timeout);

/* Whether deleting a key frees its memory. A file store does not: its file grows with every deletion. */
bool cairn__store_forgets(const cairn_store *s);

/* The local address of a TCP store's connection, as in address.h; "" for other stores. */
void cairn__store_local_address(const cairn_store *s, char *address, size_t nbytes);

/* cairn_tcp_store_create with several places where the server may be: clients try them in turn until they find a store
 * with the key `proof` (NULL: any store). They skip another user's server on this machine. hosts and ports are tried in
 * the order given, a host with all ports first. */
struct cairn__store_places {
    const char *const *hosts;
    int num_hosts;
    const int *ports;
    int num_ports;
    const char *proof;
    const struct cairn__secret *secret; /* client and server prove to each other that they know it; NULL = none */
};
cairn_status cairn__store_connect(const struct cairn__store_places *places, double timeout, cairn_store **out);

/* Whether CAIRN_INSECURE=1 is set: then the user of a peer is not checked. */
bool cairn__store_is_open(void);

/* Connects to the store that this process serves with that door at port. */
struct cairn__store_door;
cairn_status cairn__store_connect_here(const struct cairn__store_door *door, int port, double timeout,
                                       cairn_store **out);

/* To be called before leaving a TCP store. Returns once the server has closed this connection, or after timeout
 * seconds. If the end was seen, no later connection to the server's port can reach this server. Afterwards s can only
 * be destroyed. */
void cairn__store_wait_end(cairn_store *s, double timeout);

#endif
