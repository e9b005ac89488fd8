/* What rendezvous.c (every agent's part) and host.c (the host's) share.
 *
 * Keys, below "cairn-run/":
 *   run            what all agents must have been told alike, one fact a line; there once the host is ready
 *   agents         how many agents have come; an agent's number, from 1, the host's
 *   agent/<id>     "node_rank ranks", host name, role, a line each
 *   node/<rank>    static: the agent that has this node_rank
 *   beat/<id>      a counter that its agent raises while it lives
 *   list           what agents did, in order: "+<id>" waits to join, "-<id>" leaves
 *   call/<id>/<n>  the host's answer to the agent's n-th wish to join
 *   news/<round>   what became of an attempt; first come
 *   done/<round>   how many nodes are through */
#ifndef RUN_RENDEZVOUS_PARTS_H
#define RUN_RENDEZVOUS_PARTS_H

#include <stdint.h>

#include "cairn/store.h"
#include "rendezvous.h"
#include "rendezvous/store/server.h"

/* An agent as the host sees it. */
struct agent_seen {
    int joins; /* how often it wished to join */
    bool waiting, member, gone, lost;
    bool place_freed; /* its node_rank is another's to take */
    int node_rank, ranks;
    int node; /* in the last world it was a member of */
    char *host, *role;
    int64_t beat;
    double beat_at; /* when it was last seen to change */
};

struct rendezvous {
    const struct options *options;
    cairn_store *store;
    const char *host; /* where the agents' store is, as this agent reaches it */
    int port;
    double keep_alive; /* seconds without a sign of life after which a node is lost */
    double patience;   /* for a call to the store */
    char *address;     /* what ranks are told, of the last world */
    int id, joins, round;
    int nodes;        /* of the last world */
    bool alone;       /* one node is all there can be: nobody is told and nobody is looked for */
    bool broken;      /* the store is gone */
    double last_beat; /* when this agent gave one */
    struct tidings tidings;
    char *report; /* of the tidings */
    char key[64];

    /* The host's own; server NULL = this agent is none. */
    struct cairn__store_server *server;
    struct agent_seen *agents; /* [num_agents], agents[id - 1] */
    int num_agents;
    size_t list_read;  /* bytes of the list that have been looked at */
    double enough_at;  /* when min_nodes had come, 0 = they have not */
    double watched_at; /* when beats were last looked at */
    bool done;         /* this node is through */
};

/* A key's name, until the next one. */
__attribute__((format(printf, 2, 3))) const char *rendezvous_key(struct rendezvous *r, const char *format, ...);
/* True for CAIRN_OK; otherwise the host counts as lost. */
bool rendezvous_ok(struct rendezvous *r, cairn_status status);
/* False, and the host is lost, where the store is gone. */
bool rendezvous_set(struct rendezvous *r, const char *key, const char *text);
bool rendezvous_present(struct rendezvous *r, const char *key);
/* What the key's number is, plus delta; -1 where the store is gone. */
int64_t rendezvous_add(struct rendezvous *r, const char *key, int64_t delta);
/* The value of a key that is there; free it with cairn_store_free. NULL where the store is gone. */
char *rendezvous_get(struct rendezvous *r, const char *key);

/* Serves the store and makes this agent the first. False: a sentence is in cairn_last_error. */
bool host_open(struct rendezvous *r, int port);
/* Forms the next world from the agents that wait and calls them, if it is time. */
void host_form(struct rendezvous *r, int restart);
/* Reads the list, watches beats; tells of nodes that are lost, that wait, and when all are through. */
void host_watch(struct rendezvous *r);
/* How many members have neither left nor been lost, without the host. */
int host_others(const struct rendezvous *r);
/* Who has not come, as a sentence's end; made with malloc. */
char *host_missing(const struct rendezvous *r);
void host_close(struct rendezvous *r);

#endif
