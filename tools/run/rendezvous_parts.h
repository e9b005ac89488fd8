/* What rendezvous.c (every agent's part) and host.c (the host's) share.
 *
 * Keys, below "cairn-run/":
 *   run            options that all agents must share, one a line; present once the host is ready
 *   agents         number of agents so far; an agent's id is its value after adding 1, the host's is 1
 *   agent/<id>     "node_rank ranks", host name, role, a line each
 *   node/<rank>    static: the agent that has this node_rank
 *   beat/<id>      a counter that its agent raises while it lives
 *   list           joins and leaves of agents, in order: "+<id>" waits to join, "-<id>" leaves
 *   call/<id>/<n>  the host's answer to the agent's n-th join
 *   news/<round>   how an attempt ended; the first report counts
 *   done/<round>   number of nodes whose ranks ended with 0 */
#ifndef RUN_RENDEZVOUS_PARTS_H
#define RUN_RENDEZVOUS_PARTS_H

#include <stdint.h>

#include "cairn/store.h"
#include "rendezvous.h"
#include "rendezvous/store/server.h"
#include "rendezvous/store/store.h"

/* An agent as the host sees it. */
struct agent_seen {
    int joins; /* number of its joins */
    bool waiting, member, gone, lost;
    bool refused;     /* its entry is not that of an agent of this run; a message was printed */
    bool place_freed; /* its node_rank is free again */
    int node_rank, ranks;
    int node; /* its node in the last world that it was a member of */
    char *host, *role;
    int64_t beat;
    double beat_at; /* when beat was last seen to change */
};

struct rendezvous {
    const struct options *options;
    cairn_store *store;
    const char *host; /* where the agents' store is, as this agent reaches it */
    int port;
    double keep_alive; /* seconds without a heartbeat after which a node is lost */
    double patience;   /* seconds for a call to the store */
    char *address;     /* MASTER_ADDR of ranks in the last world */
    int id, joins, round;
    int nodes;        /* of the last world */
    bool alone;       /* there is only one node: no messages are sent, no heartbeats watched */
    bool broken;      /* the store is gone */
    double last_beat; /* when this agent last sent a heartbeat */
    struct tidings tidings;
    char *report; /* of the tidings */
    char key[64];

    /* The host's; server NULL = this agent is not the host. */
    struct cairn__store_server *server;
    struct agent_seen *agents; /* [num_agents], agents[id - 1] */
    int num_agents;
    size_t list_read;  /* bytes of the list that have been read */
    double enough_at;  /* when min_nodes had joined, 0 = they have not */
    double watched_at; /* when heartbeats were last read */
    bool done;         /* this node's ranks ended with 0 */
    bool said_most, said_call;
};

/* A key's name, valid until the next call. */
__attribute__((format(printf, 2, 3))) const char *rendezvous_key(struct rendezvous *r, const char *format, ...);
/* True for CAIRN_OK; otherwise the host is lost. */
bool rendezvous_ok(struct rendezvous *r, cairn_status status);
/* False, with the host lost, if the store is gone. */
bool rendezvous_set(struct rendezvous *r, const char *key, const char *text);
bool rendezvous_present(struct rendezvous *r, const char *key);
/* The key's number after adding delta; -1 if the store is gone. */
int64_t rendezvous_add(struct rendezvous *r, const char *key, int64_t delta);
/* The value of an existing key; free it with cairn_store_free. NULL if the store is gone. */
char *rendezvous_get(struct rendezvous *r, const char *key);

/* Serves the store and makes this agent the first. False with cairn_last_error. */
bool host_open(struct rendezvous *r, int port);
/* Forms the next world from the waiting agents and calls them, if it is time. */
void host_form(struct rendezvous *r, int restart);
/* Reads the list and heartbeats; reports nodes that are lost or wait, and the end of all nodes. */
void host_watch(struct rendezvous *r);
/* How many members have neither left nor been lost, without the host. */
int host_others(const struct rendezvous *r);
/* The missing nodes, as the end of a sentence; made with malloc. */
char *host_missing(const struct rendezvous *r);
void host_close(struct rendezvous *r);

#endif
