#include "rendezvous_parts.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "place.h"
#include "rendezvous/address.h"
#include "text.h"

static const double WATCH_INTERVAL = 0.5;
enum { MAX_REPLACED = 4096 /* nodes during a run; bounds the memory that entries of the store can cost */ };

bool host_open(struct rendezvous *r, int port) {
    const struct options *o = r->options;
    char address[64];
    cairn__address_to_listen(r->host, o->max_nodes > 1, address, sizeof(address));
    const struct cairn__store_door door = {.port = port,
                                           .address = address,
                                           .secret = o->secret,
                                           .has_guests = o->has_guests,
                                           .is_open = cairn__store_is_open()};
    if (cairn__store_serve_at(&door, &r->server, &r->port) != CAIRN_OK) return false;
    if (o->secret && o->has_guests && o->max_nodes > 1) {
        say("the store is open to torch's ranks on other nodes, who have no proof: whoever reaches port %d can read "
            "and "
            "change their keys, but not cairn-run's or Cairn's (--torch-store off)",
            r->port);
    }
    return cairn__store_connect_here(&door, r->port, r->patience, &r->store) == CAIRN_OK;
}

void host_close(struct rendezvous *r) {
    for (int i = 0; i < r->num_agents; i++) {
        free(r->agents[i].host);
        free(r->agents[i].role);
    }
    free(r->agents);
    cairn__store_stop(&r->server);
}

/* ---- agents ---- */

/* False, after a message, for an entry that no cairn-run of this run would write. */
static bool read_agent(struct rendezvous *r, int id) {
    struct agent_seen *a = &r->agents[id - 1];
    char *text = rendezvous_get(r, rendezvous_key(r, "agent/%d", id));
    char host[256] = "?", role[256] = "default";
    if (!text) return false;
    const int read = sscanf(text, "%9d %9d\n%255[^\n]\n%255[^\n]", &a->node_rank, &a->ranks, host, role);
    cairn_store_free(text);
    const bool is_node =
        r->options->backend != RENDEZVOUS_STATIC || (a->node_rank >= 0 && a->node_rank < r->options->max_nodes);
    if (read < 2 || !is_node || a->ranks < 1 || a->ranks > OPTIONS_MAX_RANKS) {
        if (!a->refused) say("the store has an agent %d that no cairn-run of this run is; it is ignored", id);
        a->refused = true;
        return false;
    }
    a->host = format_text("%s", host);
    a->role = format_text("%s", role);
    return true;
}

/* False for a number without an agent's entry. An agent that died before it wrote its entry leaves such a number. */
static bool know_agent(struct rendezvous *r, int id) {
    const int most = r->options->max_nodes + MAX_REPLACED;
    if (id < 1 || id > most) {
        if (id > most && !r->said_most)
            say("agent %d of this run is ignored: it can have %d, replaced ones too", id, most);
        r->said_most |= id > most;
        return false;
    }
    if (id > r->num_agents) {
        if (!rendezvous_present(r, rendezvous_key(r, "agent/%d", id))) return false;
        r->agents = must(realloc(r->agents, (size_t)id * sizeof(*r->agents)));
        while (r->num_agents < id) r->agents[r->num_agents++] = (struct agent_seen){0};
    }
    if (r->agents[id - 1].host) return true;
    return rendezvous_present(r, rendezvous_key(r, "agent/%d", id)) && read_agent(r, id);
}

static void take_entry(struct rendezvous *r, const char *entry) {
    const bool joins = *entry == '+';
    const long id = strtol(entry + 1, NULL, 10);
    if ((!joins && *entry != '-') || id > INT_MAX || !know_agent(r, (int)id)) return;
    struct agent_seen *a = &r->agents[id - 1];
    a->waiting = joins;
    a->gone = !joins;
    if (!joins) return;
    a->joins++;
    a->lost = a->place_freed = false; /* it was unreachable, not dead */
    a->beat_at = now();
}

/* Reads complete lines only: an entry is appended in one piece. */
static void read_list(struct rendezvous *r) {
    char *list = rendezvous_get(r, rendezvous_key(r, "list"));
    if (!list) return;
    if (strlen(list) < r->list_read) r->list_read = 0; /* only another program at the port shortens the list */
    const char *entry = list + r->list_read;
    for (const char *end; (end = strchr(entry, '\n')); entry = end + 1) take_entry(r, entry);
    r->list_read = (size_t)(entry - list);
    cairn_store_free(list);
}

/* An agent that is needed and sends no heartbeat for keep_alive is lost. If the host itself was held up, the time
 * starts again. */
static void read_beats(struct rendezvous *r) {
    double time = now(), limit = r->keep_alive;
    if (time < r->watched_at + WATCH_INTERVAL) return;
    bool held_up = time > r->watched_at + limit / 2;
    r->watched_at = time;
    for (int i = 0; i < r->num_agents; i++) {
        struct agent_seen *a = &r->agents[i];
        if (i + 1 == r->id || a->gone || a->lost || !(a->member || a->waiting)) continue;
        int64_t beat = rendezvous_add(r, rendezvous_key(r, "beat/%d", i + 1), 0);
        if (beat != a->beat || held_up) a->beat_at = time;
        a->beat = beat;
        a->lost = time > a->beat_at + limit;
    }
}

/* Frees a static run's node_rank once its agent is lost or gone. */
static void free_places(struct rendezvous *r) {
    for (int i = 0; i < r->num_agents; i++) {
        struct agent_seen *a = &r->agents[i];
        if (r->options->backend != RENDEZVOUS_STATIC || !(a->lost || a->gone) || a->place_freed) continue;
        rendezvous_ok(r, cairn_store_delete(r->store, rendezvous_key(r, "node/%d", a->node_rank), NULL));
        a->place_freed = true;
    }
}

int host_others(const struct rendezvous *r) {
    int others = 0;
    for (int i = 0; i < r->num_agents; i++) {
        const struct agent_seen *a = &r->agents[i];
        others += i + 1 != r->id && a->member && !a->gone && !a->lost;
    }
    return others;
}

/* ---- a world ---- */

static bool may_join(const struct agent_seen *a) {
    return a->waiting && !a->gone && !a->lost;
}

/* The last agent to join with this node_rank, -1 = none. */
static int find_node(const struct rendezvous *r, int node_rank) {
    for (int i = r->num_agents - 1; i >= 0; i--) {
        if (may_join(&r->agents[i]) && r->agents[i].node_rank == node_rank) return i;
    }
    return -1;
}

/* Fills nodes with indices into agents; returns how many, 0 = some are missing. */
static int choose_static(const struct rendezvous *r, int nodes[]) {
    int n = r->options->max_nodes;
    for (int i = 0; i < n; i++) {
        nodes[i] = find_node(r, i);
        if (nodes[i] < 0) return 0;
    }
    return n;
}

static int count(const struct rendezvous *r, bool (*is)(const struct agent_seen *a)) {
    int n = 0;
    for (int i = 0; i < r->num_agents; i++) n += is(&r->agents[i]);
    return n;
}

static bool is_expected(const struct agent_seen *a) {
    return a->member && !a->waiting && !a->gone && !a->lost;
}

/* Whether enough agents wait, including all earlier members that are alive. In the first round last_call_timeout must
 * also have passed, during which more agents may join. */
static bool is_time(struct rendezvous *r) {
    int waiting = count(r, may_join);
    bool enough = waiting >= r->options->min_nodes;
    if (!enough) r->enough_at = 0;
    else if (r->enough_at == 0) r->enough_at = now();
    if (!enough || count(r, is_expected) > 0) return false;
    return waiting >= r->options->max_nodes || r->round > 0 || now() >= r->enough_at + r->options->last_call_timeout;
}

/* Chooses agents in the order of arrival; if too many wait, earlier members have priority. */
static int choose_dynamic(struct rendezvous *r, int nodes[]) {
    if (!is_time(r)) return 0;
    int room = r->options->max_nodes, n = 0;
    for (int i = 0; i < r->num_agents; i++) room -= may_join(&r->agents[i]) && r->agents[i].member;
    for (int i = 0; i < r->num_agents; i++) {
        if (!may_join(&r->agents[i])) continue;
        if (r->agents[i].member || room-- > 0) nodes[n++] = i;
    }
    return n;
}

/* Returns the first rank of a node, or, for node = n, the number of ranks. role: count only its ranks; NULL = all. */
static int ranks_before(const struct rendezvous *r, const int nodes[], int node, const char *role) {
    int sum = 0;
    for (int i = 0; i < node; i++) {
        const struct agent_seen *a = &r->agents[nodes[i]];
        if (!role || strcmp(a->role, role) == 0) sum += a->ranks;
    }
    return sum;
}

static void call_node(struct rendezvous *r, const int nodes[], int n, int node, int restart) {
    struct agent_seen *a = &r->agents[nodes[node]];
    const char *address = r->options->local_addr ? r->options->local_addr : "-";
    char *call = format_text("%d %d %d %d %d %d %d %d %s", r->round, restart, node, n,
                             ranks_before(r, nodes, node, NULL), ranks_before(r, nodes, n, NULL),
                             ranks_before(r, nodes, node, a->role), ranks_before(r, nodes, n, a->role), address);
    rendezvous_set(r, rendezvous_key(r, "call/%d/%d", nodes[node] + 1, a->joins), call);
    free(call);
    a->node = node;
    a->waiting = false;
    a->member = true;
}

void host_form(struct rendezvous *r, int restart) {
    read_list(r);
    read_beats(r);
    free_places(r);
    int *nodes = must(calloc((size_t)r->options->max_nodes + (size_t)r->num_agents, sizeof(*nodes)));
    int n = r->options->backend == RENDEZVOUS_STATIC ? choose_static(r, nodes) : choose_dynamic(r, nodes);
    if (n > 0) {
        r->round++;
        r->done = false;
        cairn__store_keep_only(r->server, "/cairn-run/"); /* keys of the previous attempt's ranks */
        for (int i = 0; i < r->num_agents; i++) r->agents[i].member = false;
        for (int node = 0; node < n; node++) call_node(r, nodes, n, node, restart);
    }
    free(nodes);
}

char *host_missing(const struct rendezvous *r) {
    const struct options *o = r->options;
    if (o->backend == RENDEZVOUS_C10D) return format_text("%d of %d joined", count(r, may_join), o->min_nodes);
    char *text = format_text("no cairn-run joined with --node_rank");
    int missing = 0;
    for (int node = 0; node < o->max_nodes; node++) {
        if (find_node(r, node) >= 0 || ++missing > 8) continue;
        char *longer = format_text("%s%s %d", text, missing > 1 ? "," : "", node);
        free(text);
        text = longer;
    }
    return text;
}

/* ---- while an attempt runs ---- */

static void tell_lost(struct rendezvous *r) {
    for (int i = 0; i < r->num_agents; i++) {
        const struct agent_seen *a = &r->agents[i];
        if (!a->member || !a->lost) continue;
        char *report = format_text("node %d (%s) sent no heartbeat for %g s", a->node, a->host, r->keep_alive);
        rendezvous_tell(r, NEWS_LOST, false, 1, report);
        free(report);
        return;
    }
}

static bool is_newcomer(const struct agent_seen *a) {
    return may_join(a) && !a->member;
}

static void tell_newcomers(struct rendezvous *r) {
    const struct options *o = r->options;
    if (o->backend != RENDEZVOUS_C10D || r->nodes >= o->max_nodes || r->done) return;
    int newcomers = count(r, is_newcomer);
    if (newcomers == 0 || rendezvous_add(r, rendezvous_key(r, "done/%d", r->round), 0) != 0) return;
    char *report = format_text("%d more node%s to join", newcomers, newcomers > 1 ? "s wait" : " waits");
    rendezvous_tell(r, NEWS_MEMBERSHIP, false, 0, report);
    free(report);
}

static void tell_done(struct rendezvous *r) {
    if (r->done && rendezvous_add(r, rendezvous_key(r, "done/%d", r->round), 0) >= r->nodes) {
        rendezvous_tell(r, NEWS_DONE, true, 0, "");
    }
}

void host_watch(struct rendezvous *r) {
    read_list(r);
    read_beats(r);
    free_places(r);
    if (r->tidings.news) return;
    tell_lost(r);
    tell_newcomers(r);
    tell_done(r);
}
