/* The deadline for what MPI cannot time out by itself: its start, and what follows until the ranks have a group. A rank
 * whose time is over asks in the store which ranks are there. Ranks that also wait look there twice a second, answer,
 * and give up as well, so that all ranks name those that did not answer. */
#include <poll.h>
#include <stdio.h>

#include "comm/mpi/module.h"
#include "core/status.h"
#include "kernels/kernels.h"
#include "rendezvous/peers.h"

enum {
    LOOK_MS = 500,
    ANSWER_MS = 1500,         /* a rank that waits answers within this time */
    HOST_MS = LOOK_MS + 1000, /* the store may end with rank 0, and ranks that looked later still read */
    PAUSE_MS = 20,
    MAX_NAMED = 4,
    KEY_NBYTES = 400
};

static const double SHORTEST = 0.5; /* s; the shortest time that the store has for an answer */
static const double LONGEST_GAP =
    0.2; /* s; longer gaps between two looks do not count as waiting: this rank was stopped */

void cairn__mpi_watch_begin(struct cairn__mpi_watch *w, const struct cairn__engine_options *options) {
    *w = (struct cairn__mpi_watch){.options = options, .next_look = LOOK_MS * 1e-3};
}

/* ---- the store ---- */

static void write_key(const struct cairn__mpi_watch *w, const char *what, int rank, char key[KEY_NBYTES]) {
    snprintf(key, KEY_NBYTES, "%s/start/%s/%d", w->options->prefix, what, rank);
}

static bool is_there(struct cairn__mpi_watch *w, const char *what, int rank) {
    char key[KEY_NBYTES];
    const char *wanted = key;
    int present = 0;
    if (w->is_deaf) return false;
    write_key(w, what, rank, key);
    w->is_deaf = w->options->store_check(w->options->store, &wanted, 1, &present) != CAIRN_OK;
    return present != 0;
}

static void put(struct cairn__mpi_watch *w, const char *what, int rank) {
    char key[KEY_NBYTES];
    if (w->is_deaf) return;
    write_key(w, what, rank, key);
    w->is_deaf = w->options->store_set(w->options->store, key, "", 0) != CAIRN_OK;
}

/* Lowers the store's timeout, because a store whose process is stopped does not answer. Returns the old one. */
static double hurry(struct cairn__mpi_watch *w, double timeout) {
    return w->options->store_hurry(w->options->store, timeout > SHORTEST ? timeout : SHORTEST);
}

static void calm(struct cairn__mpi_watch *w, double before) {
    if (before > 0) (void)w->options->store_set_timeout(w->options->store, before);
}

/* ---- giving up ---- */

/* Collects the ranks' answers; returns whether all have answered. */
static bool gather_answers(struct cairn__mpi_watch *w, bool *answered) {
    const double end = cairn__clock_seconds() + ANSWER_MS * 1e-3;
    bool all = false;
    while (!w->is_deaf && !all && cairn__clock_seconds() < end) {
        poll(NULL, 0, PAUSE_MS);
        all = true;
        for (int r = 0; r < w->options->size; r++) {
            if (!answered[r]) answered[r] = is_there(w, "here", r);
            all &= answered[r];
        }
    }
    if (w->options->rank == 0) poll(NULL, 0, HOST_MS);
    return all;
}

static cairn_status fail_deaf(const struct cairn__mpi_watch *w, const char *what) {
    const struct cairn__engine_options *o = w->options;
    REQUIRE(o->rank_0_serves && o->rank != 0, CAIRN_ETIMEOUT,
            "rank %d waited %.0f s in %s for the others, and the store does not answer; raise %s if they are "
            "only slow",
            o->rank, w->stall.seconds, what, o->timeout_name);
    return cairn__fail(
        CAIRN_ETIMEOUT,
        "rank %d waited %.0f s in %s, and rank 0 (pid %d on %s), which hosts the store, does not answer: "
        "it ended, is stopped, or its machine cannot be reached; raise %s if it is only slow",
        o->rank, w->stall.seconds, what, o->peers[0].pid, o->peers[0].name, o->timeout_name);
}

static cairn_status fail_silent(const struct cairn__mpi_watch *w, const bool *answered, const char *what) {
    const struct cairn__engine_options *o = w->options;
    char names[MAX_NAMED * 100] = "", more[32] = "";
    size_t used = 0;
    int count = 0;
    for (int r = 0; r < o->size; r++) {
        if (answered[r] || count++ >= MAX_NAMED) continue;
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%srank %d (pid %d on %s)", count > 1 ? ", " : "",
                                 r, o->peers[r].pid, o->peers[r].name);
    }
    if (count > MAX_NAMED) snprintf(more, sizeof(more), " and %d more", count - MAX_NAMED);
    return cairn__fail(CAIRN_ETIMEOUT,
                       "rank %d waited %.0f s in %s, and no answer came from %s%s: ended, stopped, or not come there; "
                       "raise %s if the ranks are only slow",
                       o->rank, w->stall.seconds, what, names, more, o->timeout_name);
}

/* All ranks may also have answered because a stopped one was continued by mpirun, which ends the job. */
static cairn_status fail_answered(const struct cairn__mpi_watch *w, const char *what) {
    const struct cairn__engine_options *o = w->options;
    REQUIRE(!w->peer_gave_up, CAIRN_ETIMEOUT,
            "rank %d was in %s when another rank gave up waiting there; raise %s if the ranks are only slow", o->rank,
            what, o->timeout_name);
    return cairn__fail(
        CAIRN_ETIMEOUT,
        "rank %d waited %.0f s in %s, where all other ranks wait too: MPI does not connect them; look at what mpirun "
        "says, at the networks that it uses (--mca btl_tcp_if_include) and at firewalls, or raise %s",
        o->rank, w->stall.seconds, what, o->timeout_name);
}

static cairn_status give_up(struct cairn__mpi_watch *w, const char *what) {
    bool answered[CAIRN__MAX_RANKS] = {false};
    const double before = hurry(w, SHORTEST);
    put(w, "here", w->options->rank);
    put(w, "gave-up", 0);
    const bool all = gather_answers(w, answered);
    calm(w, before);
    if (all) return fail_answered(w, what);
    /* Rank 0 leaves last: if it has answered and its store is gone, all other answers have arrived before. */
    const bool is_host_done = w->options->rank_0_serves && answered[0];
    return w->is_deaf && !is_host_done ? fail_deaf(w, what) : fail_silent(w, answered, what);
}

/* ---- waiting ---- */

/* Whether another rank gave up, or the store does not answer within the remaining time. */
static bool is_over(struct cairn__mpi_watch *w, double left) {
    const double before = hurry(w, left), begin = cairn__clock_seconds();
    w->peer_gave_up = is_there(w, "gave-up", 0);
    if (w->is_deaf) w->stall.seconds += cairn__clock_seconds() - begin;
    w->stall.last_poll = cairn__clock_seconds();
    calm(w, before);
    return w->peer_gave_up || w->is_deaf;
}

cairn_status cairn__mpi_watch_look(struct cairn__mpi_watch *w, const char *what) {
    const double waited = cairn__stall_poll(&w->stall, LONGEST_GAP), left = w->options->timeout - waited;
    if (left > 0 && waited < w->next_look) return CAIRN_OK;
    w->next_look = waited + LOOK_MS * 1e-3;
    return left <= 0 || is_over(w, left) ? give_up(w, what) : CAIRN_OK;
}
