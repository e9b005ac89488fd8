#include "rendezvous_parts.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "core/descriptors.h"
#include "place.h"
#include "text.h"

enum { EXIT_SIGNAL = 128 };

static const double FIRST_PAUSE = 0.001, LAST_PAUSE = 0.05; /* seconds between two checks while waiting */
static const double CONNECT_SLICE = 2;                      /* between two checks for a signal */
static const double FOREIGN_AFTER = 10;                     /* a cairn-run writes its key at once */
static const double SILENT = 5;                             /* seconds until a message names what is waited for */
static const double LEAST_KEEP_ALIVE = 1;
static const double LEAST_INTERVAL = 0.01; /* between checks, whatever --monitor-interval is: each costs a request */
static const double FAR = 3600;

/* ---- the store ---- */

const char *rendezvous_key(struct rendezvous *r, const char *format, ...) {
    size_t prefix = (size_t)snprintf(r->key, sizeof(r->key), "cairn-run/");
    va_list args;
    va_start(args, format);
    vsnprintf(r->key + prefix, sizeof(r->key) - prefix, format, args);
    va_end(args);
    return r->key;
}

static void set_tidings(struct rendezvous *r, struct tidings tidings, const char *report) {
    free(r->report);
    r->report = format_text("%s", report);
    r->tidings = tidings;
    r->tidings.report = r->report;
}

bool rendezvous_ok(struct rendezvous *r, cairn_status status) {
    if (status == CAIRN_OK || r->broken) return status == CAIRN_OK;
    r->broken = true;
    r->tidings.final = true;
    if (r->tidings.news) return false;
    char *report = format_text("node 0, which hosts the run, is lost: %s", cairn_last_error());
    set_tidings(r, (struct tidings){.news = NEWS_HOST_LOST, .final = true, .code = 1}, report);
    free(report);
    return false;
}

bool rendezvous_set(struct rendezvous *r, const char *key, const char *text) {
    return !r->broken && rendezvous_ok(r, cairn_store_set(r->store, key, text, strlen(text)));
}

bool rendezvous_present(struct rendezvous *r, const char *key) {
    int present = 0;
    return !r->broken && rendezvous_ok(r, cairn_store_check(r->store, &key, 1, &present)) && present;
}

int64_t rendezvous_add(struct rendezvous *r, const char *key, int64_t delta) {
    int64_t sum = -1;
    return !r->broken && rendezvous_ok(r, cairn_store_add(r->store, key, delta, &sum)) ? sum : -1;
}

char *rendezvous_get(struct rendezvous *r, const char *key) {
    void *value = NULL;
    if (r->broken || !rendezvous_ok(r, cairn_store_get(r->store, key, &value, NULL))) return NULL;
    return value;
}

static void append_to_list(struct rendezvous *r, char what) {
    if (r->broken) return;
    char entry[16];
    int n = snprintf(entry, sizeof(entry), "%c%d\n", what, r->id);
    rendezvous_ok(r, cairn_store_append(r->store, rendezvous_key(r, "list"), entry, (size_t)n));
}

static double beat_interval(const struct rendezvous *r) {
    return r->keep_alive / 8 < 1 ? r->keep_alive / 8 : 1;
}

static void beat(struct rendezvous *r) {
    if (r->alone || now() < r->last_beat + beat_interval(r)) return;
    r->last_beat = now();
    rendezvous_add(r, rendezvous_key(r, "beat/%d", r->id), 1);
}

/* A signal that arrives within `seconds`, 0 = none. */
static int signal_within(int signals, double seconds) {
    struct pollfd ready = {.fd = signals, .events = POLLIN};
    struct signalfd_siginfo info;
    if (poll(&ready, 1, (int)(seconds * 1e3)) <= 0 || read(signals, &info, sizeof(info)) != sizeof(info)) return 0;
    return info.ssi_signo == SIGCHLD ? 0 : (int)info.ssi_signo;
}

/* ---- opening ---- */

/* Options that all agents must share. */
static char *facts(const struct options *o) {
    return format_text("cairn-run 1\n--rdzv_backend %s\n--rdzv_id %s\n--nnodes %d:%d\n--max_restarts %d\n",
                       o->backend == RENDEZVOUS_STATIC ? "static" : "c10d", o->run_id, o->min_nodes, o->max_nodes,
                       o->max_restarts);
}

/* Prints the first line that differs. */
static bool same_facts(const struct rendezvous *r, const char *own, const char *hosts) {
    if (strcmp(own, hosts) == 0) return true;
    while (*own && strcspn(own, "\n") == strcspn(hosts, "\n") && memcmp(own, hosts, strcspn(own, "\n")) == 0) {
        own += strcspn(own, "\n") + 1;
        hosts += strcspn(hosts, "\n") + (hosts[strcspn(hosts, "\n")] != 0);
    }
    say("this node has %.*s, the node that hosts the store at %s:%d has %.*s; all nodes of a run need the same",
        (int)strcspn(own, "\n"), own, r->host, r->port, (int)strcspn(hosts, "\n"), hosts);
    return false;
}

/* Each node_rank of a static run belongs to one agent. */
static bool claim_node_rank(struct rendezvous *r) {
    const struct options *o = r->options;
    if (o->backend != RENDEZVOUS_STATIC) return true;
    char *own = format_text("%d (%s, pid %d)", r->id, place_name(), (int)getpid());
    void *holder = NULL;
    bool asked = rendezvous_ok(r, cairn_store_compare_set(r->store, rendezvous_key(r, "node/%d", o->node_rank), "", 0,
                                                          own, strlen(own), &holder, NULL));
    bool mine = asked && strcmp(holder, own) == 0;
    if (!asked) say("%s", r->report);
    if (asked && !mine) {
        say("--node_rank %d is taken by cairn-run %s; give each node its own number (that of a killed node is free "
            "after %g s)",
            o->node_rank, strchr(holder, ' ') ? strchr(holder, ' ') + 1 : "", r->keep_alive);
    }
    cairn_store_free(holder);
    free(own);
    return mine;
}

static bool introduce(struct rendezvous *r) {
    const struct options *o = r->options;
    r->id = (int)rendezvous_add(r, rendezvous_key(r, "agents"), 1);
    char *text = format_text("%d %d\n%s\n%s", o->node_rank, o->ranks, place_name(), o->role);
    rendezvous_set(r, rendezvous_key(r, "agent/%d", r->id), text);
    free(text);
    if (!r->broken) return true;
    say("%s", r->report);
    return false;
}

static cairn_status connect_within(const struct rendezvous *r, double timeout, cairn_store **store) {
    const struct cairn__store_places places = {
        .hosts = &r->host, .num_hosts = 1, .ports = &r->port, .num_ports = 1, .secret = r->options->secret};
    return cairn__store_connect(&places, timeout, store);
}

static bool is_cairn_run(const struct rendezvous *r) {
    cairn_store *store = NULL;
    static const char *const key = "cairn-run/run";
    if (connect_within(r, CONNECT_SLICE, &store) != CAIRN_OK) return false;
    const bool has_run = cairn_store_wait(store, &key, 1) == CAIRN_OK; /* waits, as the store may just have started */
    cairn_store_destroy(&store);
    return has_run;
}

static int refuse_port(const struct rendezvous *r, const char *why) {
    const struct options *o = r->options;
    if (o->max_nodes > 1 && o->backend == RENDEZVOUS_STATIC && is_cairn_run(r)) {
        say("another cairn-run hosts a run at port %d already; is --node_rank %d given twice?", o->endpoint_port,
            o->node_rank);
    } else {
        say("the store cannot be opened: %s", why);
    }
    return 1;
}

static int begin_hosting(struct rendezvous *r) {
    r->alone = r->options->max_nodes == 1;
    if (!introduce(r) || !claim_node_rank(r)) return 1;
    char *own = facts(r->options);
    rendezvous_set(r, rendezvous_key(r, "list"), "");
    rendezvous_set(r, rendezvous_key(r, "run"), own); /* last: agents that see it introduce themselves */
    free(own);
    if (r->broken) say("%s", r->report);
    return r->broken ? 1 : 0;
}

static int no_host(const struct rendezvous *r, const char *instead_of) {
    say("no cairn-run hosts the run at %s:%d: %s%s%s", r->host, r->port, cairn_last_error(),
        instead_of ? "; hosting it here failed before: " : "", instead_of ? instead_of : "");
    return 1;
}

static void say_no_host(const struct rendezvous *r) {
    say("waiting for the cairn-run that hosts the run at %s:%d, %g s at most: %s", r->host, r->port,
        r->options->join_timeout, cairn_last_error());
}

static cairn_status dial(struct rendezvous *r, double left) {
    double slice = left < CONNECT_SLICE ? left : CONNECT_SLICE;
    cairn_status st = connect_within(r, slice > 0.01 ? slice : 0.01, &r->store);
    return st == CAIRN_OK ? cairn_store_set_timeout(r->store, r->patience) : st;
}

/* Connects until the endpoint answers; in slices, to notice signals. If hosting failed, instead_of says why: the
 * program that held the port may have ended without hosting this run, so hosting is tried again, and r->server is
 * set on success. */
static int connect_to_host(struct rendezvous *r, int signals, const char *instead_of) {
    double begin = now(), end = begin + r->options->join_timeout;
    for (bool said = false;;) {
        cairn_status st = dial(r, end - now());
        if (st == CAIRN_OK) return 0;
        if ((st != CAIRN_ETIMEOUT && st != CAIRN_EPEER) || now() >= end) return no_host(r, instead_of);
        if (!said && now() > begin + SILENT) {
            say_no_host(r);
            said = true;
        }
        if (instead_of && host_open(r, r->port)) return begin_hosting(r);
        if (r->server) return refuse_port(r, cairn_last_error());
        int signal = signal_within(signals, 0.02);
        if (signal) {
            say("SIG%s while waiting for a cairn-run at %s:%d", sigabbrev_np(signal), r->host, r->port);
            return EXIT_SIGNAL + signal;
        }
    }
}

static int meet_host(struct rendezvous *r, int signals) {
    double end = now() + FOREIGN_AFTER;
    for (double pause = FIRST_PAUSE; !rendezvous_present(r, rendezvous_key(r, "run")); pause *= 2) {
        int signal = signal_within(signals, pause < LAST_PAUSE ? pause : LAST_PAUSE);
        if (signal) {
            say("SIG%s before the store at %s:%d said which run it is of", sigabbrev_np(signal), r->host, r->port);
            return EXIT_SIGNAL + signal;
        }
        if (r->broken || now() > end) {
            say("the store at %s:%d is not a cairn-run's%s%s; is another program at this port?", r->host, r->port,
                r->broken ? ": " : "", r->broken ? r->report : "");
            return 1;
        }
    }
    char *own = facts(r->options), *hosts = rendezvous_get(r, rendezvous_key(r, "run"));
    bool same = hosts && same_facts(r, own, hosts);
    if (!hosts) say("%s", r->report);
    free(own);
    cairn_store_free(hosts);
    return same && introduce(r) ? 0 : 1;
}

static bool shall_host(const struct options *o) {
    if (o->backend == RENDEZVOUS_STATIC) return o->node_rank == 0;
    return o->is_host >= 0 ? o->is_host : place_is_here(o->endpoint_host);
}

static int join_host(struct rendezvous *r, int signals, const char *instead_of) {
    if (r->port == 0) {
        say("node_rank %d needs the port of node 0's store: give all nodes the same --master_port or --rdzv_endpoint",
            r->options->node_rank);
        return 1;
    }
    int code = connect_to_host(r, signals, instead_of);
    if (code == 0 && !r->server) code = meet_host(r, signals);
    return code;
}

/* To host the run and start ranks: the store's own, both ends of this process's connection, a pipe while a rank starts,
 * and a connection of every rank and of every other agent. */
static bool can_open_enough(const struct options *o) {
    char what[64];
    snprintf(what, sizeof(what), "cairn-run with %d ranks", o->ranks * o->min_nodes);
    return cairn__check_descriptors(8 + o->ranks * o->min_nodes + o->min_nodes - 1, what) == CAIRN_OK;
}

/* Two agents on one machine may both be meant to host a c10d run: the second connects to the first. */
static int open_any(struct rendezvous *r, int signals) {
    const struct options *o = r->options;
    if (!shall_host(o)) return join_host(r, signals, NULL);
    if (!can_open_enough(o)) {
        say("%s", cairn_last_error());
        return 1;
    }
    if (host_open(r, r->port)) return begin_hosting(r);
    char *why = format_text("%s", cairn_last_error());
    bool second = o->backend == RENDEZVOUS_C10D && o->max_nodes > 1 && r->port > 0 && !r->server;
    int code = second ? join_host(r, signals, why) : refuse_port(r, why);
    free(why);
    return code;
}

int rendezvous_open(const struct options *o, int signals, struct rendezvous **out) {
    struct rendezvous *r = must(calloc(1, sizeof(*r)));
    *out = r;
    r->options = o;
    r->host = o->endpoint_host[0] ? o->endpoint_host : "localhost";
    r->port = o->endpoint_port;
    r->keep_alive = o->keep_alive_interval * o->keep_alive_attempts;
    if (r->keep_alive < LEAST_KEEP_ALIVE) r->keep_alive = LEAST_KEEP_ALIVE;
    r->patience = o->read_timeout > 0 && o->read_timeout < r->keep_alive ? o->read_timeout : r->keep_alive;
    return open_any(r, signals);
}

void rendezvous_close(struct rendezvous **rendezvous) {
    struct rendezvous *r = *rendezvous;
    if (!r) return;
    cairn_store_destroy(&r->store);
    if (r->server) host_close(r);
    free(r->report);
    free(r->address);
    free(r);
    *rendezvous = NULL;
}

/* ---- joining ---- */

static bool are_ranks(int first, int ranks, int size) {
    return first >= 0 && ranks > 0 && size > 0 && first <= size - ranks;
}

/* Whether the host of this run could have written this call. */
static bool is_world(const struct rendezvous *r, const struct world *w, int round) {
    const struct options *o = r->options;
    const bool is_next = r->server ? round == r->round : round > r->round; /* the host counts when it calls */
    return is_next && w->restart >= 0 && w->restart <= o->max_restarts && w->nodes >= 1 && w->nodes <= o->max_nodes &&
           w->node >= 0 && w->node < w->nodes && are_ranks(w->first_rank, o->ranks, w->size) &&
           w->size <= w->nodes * OPTIONS_MAX_RANKS && are_ranks(w->first_role_rank, o->ranks, w->role_size) &&
           w->role_size <= w->size;
}

/* False if the store is gone, or, after a message, if no host wrote this call; the host's call may still come. */
static bool take_world(struct rendezvous *r, struct world *out) {
    char *call = rendezvous_get(r, rendezvous_key(r, "call/%d/%d", r->id, r->joins));
    char address[256] = "-";
    struct world w = {.master_port = r->port};
    int round = 0, read = 0;
    if (call) {
        read = sscanf(call, "%9d %9d %9d %9d %9d %9d %9d %9d %255s", &round, &w.restart, &w.node, &w.nodes,
                      &w.first_rank, &w.size, &w.first_role_rank, &w.role_size, address);
    }
    const bool is_call = read == 9 && is_world(r, &w, round);
    if (call && !is_call && !r->said_call) {
        r->said_call = true;
        say("the store at %s:%d calls this node with '%.80s', which no cairn-run of this run does; it is ignored",
            r->host, r->port, call);
    }
    cairn_store_free(call);
    if (!is_call) return false;
    r->round = round;
    free(r->address);
    r->address = format_text("%s", strcmp(address, "-") != 0 ? address : r->host);
    r->nodes = w.nodes;
    w.master_addr = r->address;
    *out = w;
    return true;
}

static char *who_is_missing(const struct rendezvous *r) {
    return r->server ? host_missing(r)
                     : format_text("the cairn-run at %s:%d names the missing nodes", r->host, r->port);
}

static int gave_up(const struct rendezvous *r) {
    char *missing = who_is_missing(r);
    if (r->broken) say("%s", r->report);
    else say("the nodes of this run did not meet within %g s: %s", r->options->join_timeout, missing);
    free(missing);
    return 1;
}

static void say_waiting(const struct rendezvous *r) {
    char *missing = who_is_missing(r);
    say("waiting for other nodes, %g s at most: %s", r->options->join_timeout, missing);
    free(missing);
}

/* One check of an agent that waits to join; true once the host has called it. */
static bool is_called(struct rendezvous *r, int restart, struct world *out) {
    if (r->server) host_form(r, restart);
    beat(r);
    return rendezvous_present(r, rendezvous_key(r, "call/%d/%d", r->id, r->joins)) && take_world(r, out);
}

int rendezvous_join(struct rendezvous *r, int restart, int signals, struct world *out) {
    double begin = now(), pause = FIRST_PAUSE;
    bool said = false;
    if (r->broken) return gave_up(r);
    r->joins++;
    set_tidings(r, (struct tidings){0}, "");
    if (!claim_node_rank(r)) return 1;
    append_to_list(r, '+');
    while (!is_called(r, restart, out)) {
        if (r->broken || now() > begin + r->options->join_timeout) return gave_up(r);
        int signal = signal_within(signals, pause);
        if (signal) {
            say("SIG%s while waiting for other nodes", sigabbrev_np(signal));
            return EXIT_SIGNAL + signal;
        }
        if (!said && now() > begin + SILENT) {
            say_waiting(r);
            said = true;
        }
        pause = pause * 2 < LAST_PAUSE ? pause * 2 : LAST_PAUSE;
    }
    return 0;
}

/* ---- news ---- */

static void take_news(struct rendezvous *r, const char *text) {
    int news = 0, teller = 0, final = 0, code = 1, report = 0;
    if (sscanf(text, "%9d %9d %9d %9d%n", &news, &teller, &final, &code, &report) < 4) return;
    if (news <= NEWS_NONE || news >= NEWS_HOST_LOST || code < 0 || code > 255) return; /* no cairn-run reports these */
    struct tidings t = {.news = (enum news)news, .own = teller == r->id, .final = final != 0, .code = code};
    set_tidings(r, t, text[report] ? text + report + 1 : "");
}

void rendezvous_tell(struct rendezvous *r, enum news news, bool final, int code, const char *report) {
    if (r->tidings.news) return;
    int teller = news == NEWS_FAILED || news == NEWS_LEFT ? r->id : 0; /* the rest is reported for the host */
    char *text = format_text("%d %d %d %d\n%s", (int)news, teller, final, code, report);
    if (r->alone) {
        take_news(r, text);
    } else {
        void *first = NULL;
        if (rendezvous_ok(r, cairn_store_compare_set(r->store, rendezvous_key(r, "news/%d", r->round), "", 0, text,
                                                     strlen(text), &first, NULL))) {
            take_news(r, first);
        }
        if (first && !r->tidings.news && !r->broken) { /* the stored report is not a cairn-run's */
            take_news(r, text);
            rendezvous_set(r, rendezvous_key(r, "news/%d", r->round), text);
        }
        cairn_store_free(first);
    }
    free(text);
}

void rendezvous_tell_done(struct rendezvous *r) {
    if (r->alone) {
        rendezvous_tell(r, NEWS_DONE, true, 0, "");
        return;
    }
    rendezvous_add(r, rendezvous_key(r, "done/%d", r->round), 1);
    r->done = true;
    if (r->server) host_watch(r);
}

const struct tidings *rendezvous_look(struct rendezvous *r) {
    if (r->alone) return &r->tidings;
    beat(r);
    if (r->server) host_watch(r);
    if (r->tidings.news || !rendezvous_present(r, rendezvous_key(r, "news/%d", r->round))) return &r->tidings;
    char *text = rendezvous_get(r, rendezvous_key(r, "news/%d", r->round));
    if (text) take_news(r, text);
    cairn_store_free(text);
    return &r->tidings;
}

double rendezvous_interval(const struct rendezvous *r) {
    double asked = r->options->monitor_interval, most = beat_interval(r);
    if (r->alone) return FAR;
    if (asked < LEAST_INTERVAL) return LEAST_INTERVAL;
    return asked < most ? asked : most;
}

/* ---- leaving ---- */

void rendezvous_leave(struct rendezvous *r, int signals) {
    if (!r || r->alone || r->broken || r->id == 0) return;
    if (!r->server) {
        append_to_list(r, '-');
        rendezvous_add(r, rendezvous_key(r, "beat/%d", r->id), 1); /* its reply: the line above has arrived, too */
        return;
    }
    if (!r->tidings.news) return; /* the others wait to join, until the store ends */
    double end = now() + r->options->close_timeout;
    for (host_watch(r); host_others(r) > 0 && now() < end && !r->broken; host_watch(r)) {
        if (signal_within(signals, 0.01)) return;
    }
}
