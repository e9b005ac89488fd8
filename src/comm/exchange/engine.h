/* What moves bytes between the ranks of mpi and gloo groups: a foreign library behind one table, in a module of its own
 * that is opened on demand (device/module.h), so that libcairn neither needs nor loads it.
 *
 * An engine knows only bytes. Types, sums and order are the exchange's part (exchange.h), which is the same for all
 * engines, so all give the same bits. */
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

/* One transfer. A rank sends at most CAIRN__MOVE_NBYTES and receives at most as many, so counts fit in an int. dst and
 * src stay alive and untouched until it is done. The four arrays are [size], and the engine copies them; offsets count
 * from dst and src and may be of any size. */
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
    cairn_store *store;       /* keys under prefix; to be called during open and derive only */
    const char *prefix;
    const char *address;             /* numeric, this rank's, by which others reach it; "" = unknown */
    const char *interface;           /* of the options; NULL = not set */
    const struct cairn__peer *peers; /* [size], during open only */
    bool rank_0_serves;              /* the store, which ends with rank 0 */
    /* libcairn's store calls, for a module that is not linked to it */
    cairn_status (*store_set)(cairn_store *store, const char *key, const void *value, size_t nbytes);
    cairn_status (*store_get)(cairn_store *store, const char *key, void **value, size_t *nbytes);
    cairn_status (*store_check)(cairn_store *store, const char *const *keys, size_t n, int *present);
    void (*store_free)(void *value);
    double (*store_hurry)(cairn_store *store, double timeout);
    cairn_status (*store_set_timeout)(cairn_store *store, double timeout);
    /* comm/exchange/links.h: proven connections to all other ranks */
    cairn_status (*make_links)(const struct cairn__engine_options *options, int *fds);
    /* An engine that derives may set these for make_links: whether a rank of the parent has ended or left it. */
    bool (*has_left)(struct cairn__engine *parent, int parent_rank);
    struct cairn__engine *parent;
    const int *parent_ranks; /* [size] */
};

/* All ranks of an engine start transfers in the same order; sends and recvs have an order of their own between two
 * ranks. At most four transfers are in flight at a time, besides sends and recvs; they may be tested, and complete, in
 * any order. One thread at a time calls an engine. Errors: CAIRN_EPEER with the library's message, CAIRN_ETIMEOUT while
 * ranks meet (later the wait measures time), CAIRN_ESYSTEM, CAIRN_ENOMEM. After an error only abort and close are
 * called. */
struct cairn__engine_ops {
    size_t size;      /* sizeof(struct cairn__engine_ops) as built */
    const char *name; /* "mpi", "gloo" */
    /* Whether the engine can be used in this process at all (is there an MPI, was it finalized); if not, the last error
     * has the reason. launched: an MPI launcher started this process. */
    cairn_status (*probe)(bool launched);
    cairn_status (*open)(const struct cairn__engine_options *options, struct cairn__engine **out);
    /* Makes an engine of some ranks of parent; called on these ranks only. options has the new rank and size. */
    cairn_status (*derive)(struct cairn__engine *parent, const int *ranks, const struct cairn__engine_options *options,
                           struct cairn__engine **out);
    /* Copes with transfers in flight; never fails, never waits long. Returns whether nothing touches their arrays any
     * more: if the library cannot cancel them, the memory that they write is never freed. Ranks that wait for this one
     * fail soon, if the engine can see to that. */
    bool (*close)(struct cairn__engine **engine);
    cairn_status (*start)(struct cairn__engine *engine, const struct cairn__transfer *transfer,
                          struct cairn__moving **out);
    /* Does not wait. Once *done is true the handle is invalid. */
    cairn_status (*test)(struct cairn__engine *engine, struct cairn__moving *moving, bool *done);
    /* Sleeps or spins until something may have moved, some ms at most; for waits with nothing to do. */
    void (*rest)(struct cairn__engine *engine, int idle);
    /* Makes ranks that wait for this one fail soon, if it can. Any thread, concurrently with any call but close. */
    void (*abort)(struct cairn__engine *engine);
    /* (optional: unknown) A rank that transfers in flight wait for, for messages; -1 = none. */
    int (*awaited)(struct cairn__engine *engine);
    /* (optional: rest polls) From now on a thread of the engine calls wake(ctx) when a transfer is done or has failed,
     * and rest need not be called. */
    void (*set_wake)(struct cairn__engine *engine, void (*wake)(void *ctx), void *ctx);
};

#ifdef __cplusplus
}
#endif

#endif
