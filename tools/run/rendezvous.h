/* How the agents (one cairn-run on each node) find each other, number their ranks, and report failures to each other.
 * They use one TCP store, hosted by one agent, with separate keys ("/cairn-run/..."), since the keys of torchrun's
 * agents hold pickled Python. The ranks use the same store; before every attempt the host deletes their keys
 * from it.
 *
 * If the host is lost the run is over; any other node may be lost and be replaced by one that joins later. */
#ifndef RUN_RENDEZVOUS_H
#define RUN_RENDEZVOUS_H

#include "options.h"

struct rendezvous;

/* The nodes and ranks of one attempt, the same on all agents. */
struct world {
    int node, nodes;      /* group rank and size; the host is node 0 */
    int first_rank, size; /* rank of local rank 0; ranks of all nodes */
    int first_role_rank, role_size;
    int restart;             /* number of restarts after failures, as the host counts */
    const char *master_addr; /* owned by the rendezvous */
    int master_port;
};

/* How the attempt ended: the first event, on any node. */
enum news {
    NEWS_NONE = 0,
    NEWS_DONE,       /* the ranks of every node ended with 0 */
    NEWS_FAILED,     /* a rank failed */
    NEWS_LEFT,       /* a node received a signal to stop */
    NEWS_LOST,       /* a node sent no heartbeat */
    NEWS_MEMBERSHIP, /* nodes wait to join */
    NEWS_HOST_LOST,  /* the store is gone */
};

struct tidings {
    enum news news;
    bool own;           /* it happened on this node */
    bool final;         /* no attempt can follow */
    int code;           /* cairn-run's exit code */
    const char *report; /* a sentence; owned by the rendezvous, until the next join */
};

/* Hosts the store, or connects to it. Returns 0, or the exit code after a message: 1, or 128 + a signal read from
 * `signals`, a signalfd. SIGCHLD is ignored, here and below. */
int rendezvous_open(const struct options *o, int signals, struct rendezvous **out);

/* Waits until the nodes have joined. restart: the number of restarts after failures that this node has seen. Returns
 * 0, or the exit code. */
int rendezvous_join(struct rendezvous *r, int restart, int signals, struct world *out);

/* Reports to the other nodes that this attempt is over; only the first report of all nodes counts. `report` is a
 * sentence. */
void rendezvous_tell(struct rendezvous *r, enum news news, bool final, int code, const char *report);
/* Reports that all ranks of this node ended with 0. */
void rendezvous_tell_done(struct rendezvous *r);

/* Sends a heartbeat, and returns how the attempt ended as far as is known; unchanged until the next join. */
const struct tidings *rendezvous_look(struct rendezvous *r);
/* Seconds between calls of rendezvous_look: --monitor-interval, but often enough for heartbeats; large if there are
 * no other nodes. */
double rendezvous_interval(const struct rendezvous *r);

/* Leaves; after an attempt the host waits until the others have left, close_timeout at most, so that it leaves last. */
void rendezvous_leave(struct rendezvous *r, int signals);

void rendezvous_close(struct rendezvous **r);

#endif
