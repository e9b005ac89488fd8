/* Who the ranks of a group are: each publishes itself in the store and reads the others, before there is a group;
 * all choose its backend by the same facts. */
#ifndef CAIRN__RENDEZVOUS_PEERS_H
#define CAIRN__RENDEZVOUS_PEERS_H

#include <stdbool.h>
#include <stdint.h>

#include "cairn/core.h"
#include "cairn/store.h"

enum { CAIRN__PEER_HOST = 160, CAIRN__PEER_NAME = 65, CAIRN__PEER_SOCKET = 40, CAIRN__PEER_ADDRESS = 64 };

struct cairn__peer {
    int pid;
    char host[CAIRN__PEER_HOST];     /* equal = one machine: CAIRN_HOST_ID, or boot id and network namespace */
    char name[CAIRN__PEER_NAME];     /* the machine's, for people */
    char socket[CAIRN__PEER_SOCKET]; /* abstract Unix socket at which it listens while meeting */
    char address
        [CAIRN__PEER_ADDRESS]; /* numeric, by which other machines reach it; "" = it found none. Of this rank; of the
                                          others too where ranks of several machines have chosen a backend */
    char wanted[16];           /* the backend it was told to take, or "auto" */
    bool is_mpi;               /* an MPI launcher started it */
    bool on_gpu;               /* its arrays are a GPU's */
};

/* How the ranks find each other, and what this one says of itself. */
struct cairn__peers_options {
    int rank, size;
    double timeout;     /* seconds that the meeting may last; > 0 */
    cairn_store *store; /* NULL is fine where size is 1 */
    const char *prefix; /* of every key used */
    const char *wanted; /* backend; NULL = "auto" */
    bool is_mpi, on_gpu;
};

struct cairn__peers {
    int rank, size;
    cairn_store *store; /* as prefix: of the options, used as long as the meeting lasts */
    const char *prefix;
    struct cairn__peer *all; /* [size] */
    int listener;            /* of this rank's socket; -1 = closed. A refused connection means that a rank has ended */
    double patience;         /* seconds that this meeting may last */
    uint64_t deadline;       /* ns of cairn__now_ns: the end of them */
};

/* Collective through the store. *out is the caller's to end, also after a failure. Errors: CAIRN_ETIMEOUT names who
 * did not come; CAIRN_EPEER ranks of another size or version of Cairn, or a rank that ended meanwhile; CAIRN_EINVAL an
 * interface that is not there; CAIRN_ESYSTEM; CAIRN_ENOMEM. */
cairn_status cairn__peers_meet(const struct cairn__peers_options *options, struct cairn__peers *out);
void cairn__peers_end(struct cairn__peers *peers);

/* Of the ranks' machines: all the same? */
bool cairn__peers_share_host(const struct cairn__peers *peers);

/* One more round, for ranks that have met: each says a text under the same topic, of 1 to 2000 bytes, and gets
 * everybody's in rank order, its own among them. Collective. A failure of take's is one that every rank finds in the
 * same texts. */
typedef cairn_status (*cairn__peers_take)(void *ctx, int rank, const char *text);
cairn_status cairn__peers_exchange(struct cairn__peers *peers, const char *topic, const char *text,
                                   cairn__peers_take take, void *ctx);

/* Fails with status and the last error, which every rank finds for itself: rank 0, with whom the store may go, waits
 * a while until all have. */
cairn_status cairn__peers_refuse(const struct cairn__peers *peers, cairn_status status);

/* A connection to the rank's socket, non-blocking; -1 with errno, ECONNREFUSED where it has ended. */
int cairn__peers_dial(const struct cairn__peers *peers, int rank);

/* CAIRN_EPEER "rank 1 (pid 99) ended while rank 0 waited for it to join the group" */
cairn_status cairn__peers_fail_ended(const struct cairn__peers *peers, int rank);

/* CAIRN_ETIMEOUT "rank 0 waited 3 s for ranks 1, 2, which did not come; ...": those of whom is_here says no. */
cairn_status cairn__peers_fail_missing(const struct cairn__peers *peers, bool (*is_here)(const void *ctx, int rank),
                                       const void *ctx, const char *what);

#endif
