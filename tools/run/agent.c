/* An attempt: rendezvous, then the ranks start. It is done when all ranks end with 0 on every node. It stops at the
 * first failure on any node, a signal, a lost node, or a node that wants to join. To stop, the agent sends that signal
 * or SIGTERM to every group, and SIGKILL after the grace; it reaps every rank and ends the processes that ranks left in
 * their groups. Then it reports, and starts the next attempt with a new rendezvous, or ends the run.
 *
 * One loop in one thread does this: poll on a signalfd, which also carries SIGCHLD, with timeouts for the checks of
 * other nodes, the printing of teed output, and the end of the grace. */
#include "agent.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "logs.h"
#include "place.h"
#include "ranks.h"
#include "rendezvous.h"
#include "report.h"
#include "text.h"

enum { EXIT_SIGNAL = 128 };

static const int ENDING[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1};

static const double ASKED_TWICE = 1;  /* timeout(1) sends a signal twice in a row, which counts as one */
static const double REMIND_AFTER = 2; /* after a signal, while ranks still run */
static const double CAUSE_WITHIN = 1; /* a rank's end may be noticed after the ends that it caused */
static const double SOON = 0.01;      /* between the first checks when only other nodes still run */

struct agent {
    const struct options *options;
    int signals; /* a signalfd */
    struct rendezvous *rendezvous;
    struct ranks ranks;
    struct logs *logs;
    struct world world;
    int restarts;
    int start_code; /* exit code if ranks could not be started, 0 = they were */
    bool told_done; /* this node has reported that its ranks ended with 0 */
    int told_by;    /* the signal that stops this run, 0 = none */
    double told_at;
    bool reminded;           /* the reminder has been printed */
    double failed_at;        /* when a rank's failure was first noticed; 0 = none */
    double next_look, pause; /* pause: seconds from next_look to the one after */
    const struct tidings *tidings;
};

static struct account account_of(const struct agent *a) {
    return (struct account){a->options, &a->world, &a->ranks, a->logs};
}

static bool is_host(const struct agent *a) {
    return a->world.node == 0;
}

/* "node 1 (name): what happened" if there are several nodes; made with malloc. */
static char *on_this_node(const struct agent *a, const char *what) {
    if (a->world.nodes == 1) return format_text("%s", what);
    return format_text("node %d (%s): %s", a->world.node, place_name(), what);
}

static void tell(struct agent *a, enum news news, bool final, int code, const char *what) {
    char *report = on_this_node(a, what);
    rendezvous_tell(a->rendezvous, news, final, code, report);
    free(report);
}

/* ---- events while ranks run ---- */

/* The ranks are stopped first: calls on a lost store may block. */
static void tell_failure(struct agent *a) {
    struct account account = account_of(a);
    ranks_stop(&a->ranks, SIGTERM);
    int root = report_root_cause(&account);
    if (root < 0) root = a->ranks.first_failed;
    char *sentence = report_sentence(&account, root);
    tell(a, NEWS_FAILED, false, rank_exit_code(a->ranks.list[root].status), sentence);
    free(sentence);
}

static void tell_not_started(struct agent *a) {
    char *what = format_text("%s cannot be started", a->options->program[0]);
    tell(a, NEWS_FAILED, true, a->start_code, what);
    free(what);
}

static void obey(struct agent *a, int signal, bool typed) {
    if (a->told_by) { /* a second signal: the grace is over */
        if (typed || now() > a->told_at + ASKED_TWICE) ranks_hurry(&a->ranks);
        return;
    }
    a->told_by = signal;
    a->told_at = now();
    ranks_stop(&a->ranks, signal);
    char *what = format_text("cairn-run received SIG%s", sigabbrev_np(signal) ? sigabbrev_np(signal) : "?");
    tell(a, NEWS_LEFT, is_host(a), EXIT_SIGNAL + signal, what);
    free(what);
}

/* Ends the other ranks at once, or, if the failure was a consequence of another, after some time to see its cause. */
static void take_failure(struct agent *a) {
    if (a->ranks.first_failed < 0 || a->ranks.stop_signal) return;
    if (a->failed_at == 0) a->failed_at = now();
    struct account account = account_of(a);
    bool is_late = a->ranks.running == 0 || now() >= a->failed_at + CAUSE_WITHIN;
    if (is_late || !report_lacks_cause(&account)) tell_failure(a);
}

static void take_signals(struct agent *a) {
    struct signalfd_siginfo info;
    while (read(a->signals, &info, sizeof(info)) == sizeof(info)) {
        const int signal = (int)info.ssi_signo;
        if (signal == SIGUSR1 && sigismember(&a->options->signals, SIGUSR1) != 1) ranks_pass_on(&a->ranks, signal);
        else if (signal != SIGCHLD) obey(a, signal, info.ssi_code == SI_KERNEL);
    }
    ranks_reap(&a->ranks);
    take_failure(a);
}

static double least(double a, double b) {
    return a < b ? a : b;
}

static void look_around(struct agent *a) {
    a->tidings = rendezvous_look(a->rendezvous);
    a->next_look = now() + a->pause;
    a->pause = least(2 * a->pause, rendezvous_interval(a->rendezvous));
    bool stops = a->tidings->news > NEWS_DONE && !a->tidings->own;
    if (stops && !a->ranks.stop_signal && !a->ranks.over) ranks_stop(&a->ranks, SIGTERM);
}

/* After the ranks have ended: whether the attempt is over for this node. */
static bool attempt_is_over(struct agent *a) {
    if (a->ranks.stop_signal || a->tidings->news) return true;
    if (!a->told_done) {
        rendezvous_tell_done(a->rendezvous);
        a->told_done = true;
        a->pause = SOON;
        look_around(a);
    }
    return a->tidings->news != NEWS_NONE;
}

static bool may_remind(const struct agent *a) {
    return a->told_by && !a->reminded && !a->ranks.killed && a->ranks.running > 0;
}

static void remind(struct agent *a) {
    if (!may_remind(a) || now() < a->told_at + REMIND_AFTER) return;
    a->reminded = true;
    say("%d of %d ranks still run; cairn-run kills them %g s after the signal, or at once if it is sent again",
        a->ranks.running, a->options->ranks, a->options->shutdown_timeout);
}

static void wait_for_more(struct agent *a) {
    double pause = least(a->next_look - now(), ranks_delay(&a->ranks));
    pause = least(pause, logs_interval(a->logs));
    if (a->failed_at > 0 && !a->ranks.stop_signal) pause = least(pause, a->failed_at + CAUSE_WITHIN - now());
    if (may_remind(a)) pause = least(pause, a->told_at + REMIND_AFTER - now());
    struct pollfd ready = {.fd = a->signals, .events = POLLIN};
    poll(&ready, 1, pause > 0 ? (int)(pause * 1e3) + 1 : 0);
}

static void watch(struct agent *a) {
    take_signals(a);
    while (!ranks_tick(&a->ranks) || !attempt_is_over(a)) {
        wait_for_more(a);
        take_signals(a);
        remind(a);
        if (now() >= a->next_look) look_around(a);
        logs_pump(a->logs, false);
    }
    logs_pump(a->logs, true);
    look_around(a); /* to learn which node failed first */
}

/* ---- attempts ---- */

static int start(struct agent *a) {
    if (!logs_begin(a->logs, a->restarts, a->world.first_rank)) return 1;
    return ranks_start(&a->ranks, &a->world, a->logs);
}

/* Joins the other nodes and runs an attempt's ranks to their end; 0, or the exit code if there was no attempt. */
static int attempt(struct agent *a) {
    int code = rendezvous_join(a->rendezvous, a->restarts, a->signals, &a->world);
    if (code != 0) return code;
    a->restarts = a->world.restart;
    a->told_done = false;
    a->pause = rendezvous_interval(a->rendezvous);
    a->failed_at = 0;
    a->start_code = start(a);
    if (a->start_code) tell_not_started(a);
    look_around(a);
    watch(a);
    return 0;
}

/* Reports this node's ranks in a sentence each, and its first failure in full if no attempt follows. */
static void report(const struct agent *a, bool last) {
    struct account account = account_of(a);
    int root = report_root_cause(&account);
    if (!a->tidings->own && a->tidings->news > NEWS_DONE) say("%s", a->tidings->report);
    if (a->start_code) return;
    report_ranks(&account, root, !a->tidings->own);
    if (root >= 0 && last) report_failure(&account, root);
}

static int exit_code(const struct agent *a) {
    struct account account = account_of(a);
    int root = a->tidings->own && !a->start_code ? report_root_cause(&account) : -1;
    return root >= 0 ? rank_exit_code(a->ranks.list[root].status) : a->tidings->code;
}

static int end_by_signal(const struct agent *a) {
    say("SIG%s: stopped all %d ranks of %s", sigabbrev_np(a->told_by) ? sigabbrev_np(a->told_by) : "?",
        a->options->ranks, a->options->program[0]);
    return EXIT_SIGNAL + a->told_by;
}

/* After an attempt: -1 = another one follows, else the exit code. */
static int conclude(struct agent *a) {
    const struct options *o = a->options;
    if (a->told_by) return end_by_signal(a);
    if (a->tidings->news == NEWS_DONE) return 0;
    if (a->tidings->news == NEWS_MEMBERSHIP) {
        say("%s: starting all ranks again", a->tidings->report);
        return -1;
    }
    bool last = a->tidings->final || a->restarts >= o->max_restarts;
    report(a, last);
    if (last) return exit_code(a);
    say("starting all ranks again: restart %d of %d", ++a->restarts, o->max_restarts);
    return -1;
}

static int run(struct agent *a) {
    int code = rendezvous_open(a->options, a->signals, &a->rendezvous);
    if (code != 0) return code;
    do code = attempt(a);
    while (code == 0 && (code = conclude(a)) < 0);
    return code;
}

/* ---- beginning and end ---- */

void agent_hold_signals(sigset_t *old_mask) {
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(ENDING) / sizeof(ENDING[0]); i++) sigaddset(&set, ENDING[i]);
    sigprocmask(SIG_BLOCK, &set, old_mask);
}

/* Blocks the signals that the loop reads, before the store's thread inherits the mask, and no others. Signals that
 * cairn-run's parent ignores (SIGHUP under nohup) stay ignored. Returns the signalfd. */
static int open_signals(const struct options *o, const sigset_t *old_mask) {
    sigset_t set = o->signals, blocked = *old_mask;
    for (int s = 1; s <= SIGRTMAX; s++) {
        struct sigaction action;
        if (sigismember(&set, s) == 1 && sigaction(s, NULL, &action) == 0 && action.sa_handler == SIG_IGN) {
            sigdelset(&set, s);
        }
    }
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGUSR1); /* asks the ranks for a checkpoint */
    signal(SIGCHLD, SIG_DFL); /* if ignored, the kernel would reap the ranks */
    signal(SIGPIPE, SIG_IGN); /* a closed stderr must not leave ranks behind */
    sigorset(&blocked, &blocked, &set);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0) say("no signalfd: %s", strerror(errno));
    return fd;
}

int agent_run(const struct options *o, const sigset_t *old_mask) {
    struct agent a = {.options = o};
    int code = 1;
    a.signals = open_signals(o, old_mask);
    if (a.signals < 0) return 1;
    if (logs_open(o, &a.logs)) {
        if (ranks_open(&a.ranks, o, old_mask, logs_temporary(a.logs))) code = run(&a);
        rendezvous_leave(a.rendezvous, a.signals);
        rendezvous_close(&a.rendezvous);
        logs_close(&a.logs);
        ranks_close(&a.ranks);
    }
    close(a.signals);
    return code;
}
