/* What moves bytes between the ranks of mpi and gloo groups: a foreign library behind one table, in a module of its own
 * that is opened on demand (device/module.h), so that libcairn neither needs nor loads it.
 *
 * An engine knows bytes alone. Everything about types, sums and order is the exchange's (exchange.h), the same for all
 * engines; hence the same bits. */
#ifndef CAIRN__COMM_ENGINE_H
#define CAIRN__COMM_ENGINE_H

#include <stdbool.h>

#include "cairn/store.h"

#ifdef __cplusplus
extern "C" {
#endif

enum cairn__transfer_kind {
    CAIRN__MOVE_ALLTOALL = 1, /* src part r goes to rank r, dst part r comes from it: sizes may differ, 0 is fine */
    CAIRN__MOVE_ALLGATHER,    /* dst part r comes from rank r; this rank's own part is in place already */
    CAIRN__MOVE_BROADCAST,    /* dst [nbytes] of peer goes to all */
    CAIRN__MOVE_SEND,         /* src [nbytes] goes to peer */
    CAIRN__MOVE_RECV,         /* dst [nbytes] comes from peer */
};

/* One movement of at most CAIRN__MOVE_NBYTES sent and as many received by any rank, so that counts fit in an int.
 * Arrays stay alive and untouched until it is done. The four arrays are [size] and the engine copies them; offsets
 * count from dst and src and may be of any size. */
enum { CAIRN__MOVE_NBYTES = 256 << 20 };
struct cairn__transfer {
    enum cairn__transfer_kind kind;
    void *dst;
    const void *src;
    const size_t *dst_at, *dst_nbytes, *src_at, *src_nbytes;
    size_t nbytes;
    int peer;
};

struct cairn__peer;   /* rendezvous/peers.h */
struct cairn__engine; /* of one group */
struct cairn__moving; /* a transfer under way */

struct cairn__engine_options {
    int rank, size;
    double timeout;
    const char *timeout_name; /* what sets it, for messages */
    cairn_store *store;       /* keys under prefix; the call may be made during open and derive only */
    const char *prefix;
    const char *address;             /* numeric, this rank's, by which others reach it; "" = unknown */
    const char *interface;           /* of the options; NULL = not set */
    const struct cairn__peer *peers; /* [size], during open only */
    bool rank_0_serves;              /* the store: with it the store goes */
    /* libcairn's store calls, for a module that is not linked to it */
    cairn_status (*store_set)(cairn_store *store, const char *key, const void *value, size_t nbytes);
    cairn_status (*store_get)(cairn_store *store, const char *key, void **value, size_t *nbytes);
    cairn_status (*store_check)(cairn_store *store, const char *const *keys, size_t n, int *present);
    void (*store_free)(void *value);
    double (*store_hurry)(cairn_store *store, double timeout);
    cairn_status (*store_set_timeout)(cairn_store *store, double timeout);
    /* comm/exchange/links.h: proven connections to all other ranks */
    cairn_status (*make_links)(const struct cairn__engine_options *options, int *fds);
    /* An engine may set these for make_links where it derives: whether a rank of the parent has ended or left it. */
    bool (*has_left)(struct cairn__engine *parent, int parent_rank);
    struct cairn__engine *parent;
    const int *parent_ranks; /* [size] */
};

/* Transfers of one engine between the same ranks are started in the same order everywhere, but sends and recvs have
 * orders of their own between two ranks. At most four transfers but sends and recvs are under way at a time; they may
 * be tested, and get done, in any order. One thread at a time calls an engine. Errors: CAIRN_EPEER with the library's
 * words, CAIRN_ETIMEOUT while they meet (later the wait has the clock), CAIRN_ESYSTEM, CAIRN_ENOMEM; after one only
 * abort and close follow. */
struct cairn__engine_ops {
    size_t size;      /* sizeof(struct cairn__engine_ops) as built */
    const char *name; /* "mpi", "gloo" */
    /* Whether it can be used in this process at all (is there an MPI, was it finalized); the reason as the last error.
     * launched: an MPI launcher started this process. */
    cairn_status (*probe)(bool launched);
    cairn_status (*open)(const struct cairn__engine_options *options, struct cairn__engine **out);
    /* For some ranks of parent, members only; options has the new rank and size. */
    cairn_status (*derive)(struct cairn__engine *parent, const int *ranks, const struct cairn__engine_options *options,
                           struct cairn__engine **out);
    /* Copes with transfers under way; never fails, never waits long. Whether nothing touches their arrays any more:
     * where the library cannot take them back, memory that they go to is kept for good. Ranks that wait for this one
     * fail soon, where it can. */
    bool (*close)(struct cairn__engine **engine);
    cairn_status (*start)(struct cairn__engine *engine, const struct cairn__transfer *transfer,
                          struct cairn__moving **out);
    /* Without waiting. Once *done the handle is gone. */
    cairn_status (*test)(struct cairn__engine *engine, struct cairn__moving *moving, bool *done);
    /* Sleeps or spins until something may have moved, some ms at most; for waits with nothing to do. */
    void (*rest)(struct cairn__engine *engine, int idle);
    /* Makes others that wait for this rank fail soon, where it can. Any thread, beside any call but close. */
    void (*abort)(struct cairn__engine *engine);
    /* (optional: unknown) A rank that transfers under way wait for, -1 = none: for messages. */
    int (*awaited)(struct cairn__engine *engine);
    /* (optional: rest polls) From now on wake(ctx) is called, from a thread of the engine's, when a transfer is done or
     * has failed, and rest need not be. */
    void (*set_wake)(struct cairn__engine *engine, void (*wake)(void *ctx), void *ctx);
};

#ifdef __cplusplus
}
#endif

#endif
