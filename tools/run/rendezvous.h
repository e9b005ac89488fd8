/* How the agents (one cairn-run on each node) find each other, number their ranks, and tell one another of failures.
 * All of it goes through one TCP store, hosted by one agent, under keys of its own ("/cairn-run/..."), since
 * torchrun's agents keep pickled Python in theirs. The ranks use the same store; before every attempt the host
 * clears it of their keys.
 *
 * Where the host is lost the run is over; any other node may be lost, and its place be taken by one that comes
 * later. */
#ifndef RUN_RENDEZVOUS_H
#define RUN_RENDEZVOUS_H

#include "options.h"

struct rendezvous;

/* The world of one attempt, as all agents agreed on it. */
struct world {
    int node, nodes;      /* group rank and size; the host is node 0 */
    int first_rank, size; /* rank of local rank 0; ranks of all nodes */
    int first_role_rank, role_size;
    int restart;             /* how many failures were restarted after, as the host counts */
    const char *master_addr; /* owned by the rendezvous */
    int master_port;
};

/* What became of the attempt: the first that happened, on whichever node. */
enum news {
    NEWS_NONE = 0,
    NEWS_DONE,       /* every node is through */
    NEWS_FAILED,     /* a rank */
    NEWS_LEFT,       /* a node was told to stop */
    NEWS_LOST,       /* a node gave no sign of life */
    NEWS_MEMBERSHIP, /* nodes wait to join */
    NEWS_HOST_LOST,  /* the store is gone */
};

struct tidings {
    enum news news;
    bool own;           /* it failed or left on this node */
    bool final;         /* no attempt can follow */
    int code;           /* for cairn-run to exit with */
    const char *report; /* a sentence; owned by the rendezvous, until the next join */
};

/* Hosts the store, or connects to it. 0, or the exit code after a sentence: 1, or 128 + the signal that `signals`, a
 * signalfd, carried. SIGCHLD does not count, here and below. */
int rendezvous_open(const struct options *o, int signals, struct rendezvous **out);

/* Waits until the nodes have come. restart: how many failures this node has seen restarted. 0, or the exit code. */
int rendezvous_join(struct rendezvous *r, int restart, int signals, struct world *out);

/* Tells the others that this attempt is over; only the first on all nodes is heard. `report` is a sentence. */
void rendezvous_tell(struct rendezvous *r, enum news news, bool final, int code, const char *report);
/* All ranks of this node ended well. */
void rendezvous_tell_done(struct rendezvous *r);

/* Shows the others that this node lives, and what became of the attempt as far as is known; the same until the next
 * join. */
const struct tidings *rendezvous_look(struct rendezvous *r);
/* Seconds between two looks: --monitor-interval, but often enough to show life; large where there are no others. */
double rendezvous_interval(const struct rendezvous *r);

/* Leaves; after an attempt the host waits until the others have left, close_timeout at most, so that it leaves last. */
void rendezvous_leave(struct rendezvous *r, int signals);

void rendezvous_close(struct rendezvous **r);

#endif
