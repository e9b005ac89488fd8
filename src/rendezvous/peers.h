/* The ranks of a group, before the group exists: each publishes its facts in the store and reads those of the others,
 * so all choose the backend from the same facts. */
#ifndef CAIRN__RENDEZVOUS_PEERS_H
#define CAIRN__RENDEZVOUS_PEERS_H

#include <stdbool.h>
#include <stdint.h>

#include "cairn/core.h"
#include "cairn/store.h"

enum {
    CAIRN__PEER_HOST = 160,
    CAIRN__PEER_NAME = 65,
    CAIRN__PEER_SOCKET = 40,
    CAIRN__PEER_ADDRESS = 64,
    CAIRN__PEER_TOPICS = 4
};

struct cairn__peer {
    int pid;
    char host[CAIRN__PEER_HOST];       /* equal = one machine: CAIRN_HOST_ID, or boot id and network namespace */
    char name[CAIRN__PEER_NAME];       /* the machine's name, for messages */
    char socket[CAIRN__PEER_SOCKET];   /* abstract Unix socket at which the rank listens while meeting */
    char address[CAIRN__PEER_ADDRESS]; /* numeric, by which other machines reach it; "" = none found. Known of
                                  this rank; of the others where ranks of several machines choose a backend */
    char wanted[16];                   /* the backend that it requests, or "auto" */
    bool is_mpi;                       /* an MPI launcher started it */
    bool on_gpu;                       /* its arrays are in a GPU's memory */
};

/* How the ranks find each other, and the facts of this one. */
struct cairn__peers_options {
    int rank, size;
    double timeout;     /* seconds that the meeting may last; > 0 */
    cairn_store *store; /* may be NULL if size is 1 */
    const char *prefix; /* prefix of every key used */
    const char *wanted; /* backend; NULL = "auto" */
    bool is_mpi, on_gpu;
    bool rank_0_serves;          /* the store */
    cairn_status (*check)(void); /* (optional) called while this rank waits for others; a failure ends the wait */
};

struct cairn__peers {
    int rank, size;
    cairn_store *store; /* like prefix, the options': used until the meeting ends */
    const char *prefix;
    bool rank_0_serves;
    const char *topics[CAIRN__PEER_TOPICS]; /* topics under which this rank published; NULL: its facts */
    int num_topics;
    struct cairn__peer *all;     /* [size] */
    int listener;                /* this rank's socket; -1 = closed. A refused connection means that a rank has ended */
    cairn_status (*check)(void); /* the options' */
    double patience;             /* seconds that this meeting may last */
    uint64_t deadline;           /* end of the patience, ns of cairn__now_ns */
};

/* Collective through the store. The caller ends *out, also after a failure. Errors: CAIRN_ETIMEOUT names the ranks that
 * did not join; CAIRN_EPEER for ranks of another size or version of Cairn, or a rank that ended meanwhile; CAIRN_EINVAL
 * for an interface that does not exist; CAIRN_ESYSTEM; CAIRN_ENOMEM. */
cairn_status cairn__peers_meet(const struct cairn__peers_options *options, struct cairn__peers *out);
void cairn__peers_end(struct cairn__peers *peers);

/* Deletes what this rank published, if that frees the store's memory. Call it once every rank has certainly read it. */
void cairn__peers_forget(const struct cairn__peers *peers);

/* Whether all ranks are on one machine. */
bool cairn__peers_share_host(const struct cairn__peers *peers);

/* One more exchange between ranks that have met: each publishes a text of 1 to 2000 bytes under the same topic, and
 * take gets the texts of all ranks, its own included, in rank order. Collective. take may fail only for reasons that
 * every rank finds in the same texts. The topic string must outlive peers; there are at most CAIRN__PEER_TOPICS topics,
 * the meeting included. */
typedef cairn_status (*cairn__peers_take)(void *ctx, int rank, const char *text);
cairn_status cairn__peers_exchange(struct cairn__peers *peers, const char *topic, const char *text,
                                   cairn__peers_take take, void *ctx);

/* Fails with status and the last error, for a reason that every rank finds by itself. Rank 0 first waits up to two
 * seconds until all ranks have found it, because the store may end with rank 0. */
cairn_status cairn__peers_refuse(const struct cairn__peers *peers, cairn_status status);

/* A connection to the rank's socket, non-blocking; -1 with errno, which is ECONNREFUSED if the rank has ended. */
int cairn__peers_dial(const struct cairn__peers *peers, int rank);

/* CAIRN_EPEER "rank 1 (pid 99) ended while rank 0 waited for it to join the group" */
cairn_status cairn__peers_fail_ended(const struct cairn__peers *peers, int rank);

/* CAIRN_ETIMEOUT "rank 0 waited 3 s for ranks 1, 2, which did not join; ...": the ranks for which is_here returns
 * false. */
cairn_status cairn__peers_fail_missing(const struct cairn__peers *peers, bool (*is_here)(const void *ctx, int rank),
                                       const void *ctx, const char *what);

#endif
