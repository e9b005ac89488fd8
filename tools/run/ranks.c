#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "text.h"
#include "worker.h"

enum {
    EXIT_NOT_EXECUTABLE = 126, /* the code that shells use */
    EXIT_NOT_FOUND = 127,
    EXIT_SIGNAL = 128,
};

static const double SWEEP_INTERVAL = 0.005, TELL_AGAIN = 1, GIVE_UP = 5, FAR = 3600;

/* A program that could not be started, as a rank reports it through a pipe that a successful exec closes. */
struct exec_failure {
    int rank, errnum;
};

bool rank_failed(int status) {
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int rank_exit_code(int status) {
    return WIFSIGNALED(status) ? EXIT_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

static double wall_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the keeper ---- */

/* Tries repeatedly: ranks that are being killed may still write files in the folder. */
static void remove_temporary(const char *folder) {
    for (int i = 0; folder && i < 100 && access(folder, F_OK) == 0; i++) {
        remove_tree(folder);
        poll(NULL, 0, 10);
    }
}

/* Tracks the living groups until the pipe ends, which means that cairn-run died, and kills them. */
static void keep(const int ends[2], pid_t groups[], int room, const char *temporary) {
    int n = 0;
    pid_t told;
    setpgid(0, 0); /* a terminal's signals are for cairn-run alone */
    close(ends[1]);
    while (read(ends[0], &told, sizeof(told)) == sizeof(told)) {
        if (told > 0 && n < room) groups[n++] = told;
        for (int i = 0; i < n; i++) {
            if (groups[i] == -told) groups[i] = groups[--n];
        }
    }
    for (int i = 0; i < n; i++) kill(-groups[i], SIGKILL);
    remove_temporary(temporary);
    _exit(0);
}

static bool start_keeper(struct ranks *ranks, const char *temporary) {
    int ends[2];
    pid_t *groups = must(calloc((size_t)ranks->options->ranks, sizeof(*groups)));
    bool piped = pipe2(ends, O_CLOEXEC) == 0;
    ranks->keeper = piped ? fork() : -1;
    if (ranks->keeper == 0) keep(ends, groups, ranks->options->ranks, temporary);
    if (ranks->keeper < 0) say("the process that cleans up after cairn-run could not be started: %s", strerror(errno));
    free(groups);
    if (piped) close(ends[0]);
    ranks->to_keeper = piped ? ends[1] : -1;
    return ranks->keeper > 0;
}

static void tell_keeper(const struct ranks *ranks, pid_t group) {
    ssize_t ignored = write(ranks->to_keeper, &group, sizeof(group));
    (void)ignored;
}

bool ranks_open(struct ranks *ranks, const struct options *o, const sigset_t *mask, const char *temporary) {
    *ranks = (struct ranks){.options = o, .first_failed = -1, .mask = *mask, .over = true};
    ranks->list = must(calloc((size_t)o->ranks, sizeof(*ranks->list)));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    return start_keeper(ranks, temporary);
}

/* The keeper is killed before the pipe is closed, so that it does not act on its end. */
void ranks_close(struct ranks *ranks) {
    if (ranks->keeper > 0) {
        kill(ranks->keeper, SIGKILL);
        waitpid(ranks->keeper, NULL, 0);
    }
    if (ranks->to_keeper >= 0) close(ranks->to_keeper);
    free(ranks->list);
    ranks->list = NULL;
}

/* ---- starting ---- */

/* A rank's arguments, environment and descriptors, prepared before the fork. */
struct birth {
    char **arguments, **environment;
    bool reads_input;
    int out, err; /* descriptors, -1 = cairn-run's own */
    int failures;
    pid_t launcher;
};

static void take_descriptor(int from, int to) {
    if (from >= 0) dup2(from, to);
}

/* The second half of a rank's start, between fork and exec: async-signal-safe calls only, the store has a thread. */
static void become_rank(const struct ranks *ranks, int local_rank, const struct birth *b) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != b->launcher) _exit(1); /* cairn-run died before PR_SET_PDEATHSIG was set */
    tell_keeper(ranks, getpid());           /* before the rank forks any process */
    if (!b->reads_input) take_descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    take_descriptor(b->out, STDOUT_FILENO);
    take_descriptor(b->err, STDERR_FILENO);
    sigprocmask(SIG_SETMASK, &ranks->mask, NULL);
    signal(SIGPIPE, SIG_DFL);
    execvpe(b->arguments[0], b->arguments, b->environment);
    struct exec_failure failure = {local_rank, errno};
    ssize_t ignored = write(b->failures, &failure, sizeof(failure));
    (void)ignored;
    _exit(EXIT_NOT_FOUND);
}

static struct place place_of(const struct options *o, const struct world *w, const struct logs *logs, int local_rank) {
    return (struct place){
        .local_rank = local_rank,
        .local_size = o->ranks,
        .rank = w->first_rank + local_rank,
        .size = w->size,
        .group_rank = w->node,
        .group_size = w->nodes,
        .role_rank = w->first_role_rank + local_rank,
        .role_size = w->role_size,
        .restart = w->restart,
        .master_addr = w->master_addr,
        .master_port = w->master_port,
        .run_id = o->run_id,
        .error_file = logs_error_file(logs, local_rank),
    };
}

static bool start_rank(struct ranks *ranks, int local_rank, const struct world *w, const struct logs *logs,
                       int failures) {
    struct place place = place_of(ranks->options, w, logs, local_rank);
    struct birth birth = {
        .arguments = worker_arguments(ranks->options, local_rank),
        .environment = worker_environment(ranks->options, &place),
        .reads_input = local_rank == 0 && !isatty(STDIN_FILENO),
        .out = logs_fd(logs, local_rank, STREAM_OUT),
        .err = logs_fd(logs, local_rank, STREAM_ERR),
        .failures = failures,
        .launcher = getpid(),
    };
    pid_t pid = fork();
    if (pid == 0) become_rank(ranks, local_rank, &birth);
    free_texts(birth.arguments);
    free_texts(birth.environment);
    if (pid < 0) {
        say("rank %d could not be started: %s", place.rank, strerror(errno));
        return false;
    }
    setpgid(pid, pid); /* in the child too: the first call counts */
    ranks->list[local_rank] = (struct rank){.pid = pid, .running = true, .has_group = true};
    ranks->running++;
    return true;
}

static void signal_groups(const struct ranks *ranks, int signal) {
    for (int r = 0; r < ranks->options->ranks; r++) {
        if (ranks->list[r].running) kill(-ranks->list[r].pid, signal);
    }
}

/* What is missing after execvpe's "No such file or directory". */
static const char *what_is_missing(const char *program) {
    bool is_there = access(program, F_OK) == 0;
    if (strchr(program, '/'))
        return is_there ? " (the file exists; the interpreter or loader that it names does not)" : "";
    return is_there ? " in PATH; write ./ before it for the one in this folder" : " in PATH";
}

/* Waits until no rank has `failures` open: each has exec'ed, or written its error to it. */
static int await_exec(int failures, const char *program) {
    struct exec_failure failure;
    ssize_t got;
    do got = read(failures, &failure, sizeof(failure));
    while (got < 0 && errno == EINTR);
    if (got != sizeof(failure)) return 0;
    say("%s cannot be started: %s%s", program, strerror(failure.errnum),
        failure.errnum == ENOENT ? what_is_missing(program) : "");
    return failure.errnum == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
}

/* The name of the executable: the program, or python if that runs it. */
static char *executable(const struct options *o) {
    char **arguments = worker_arguments(o, 0);
    char *name = format_text("%s", arguments[0]);
    free_texts(arguments);
    return name;
}

static void begin_attempt(struct ranks *ranks) {
    memset(ranks->list, 0, (size_t)ranks->options->ranks * sizeof(*ranks->list));
    ranks->running = ranks->ends = ranks->stop_signal = 0;
    ranks->first_failed = -1;
    ranks->swept_since = 0;
    ranks->killed = ranks->over = false;
}

int ranks_start(struct ranks *ranks, const struct world *world, const struct logs *logs) {
    int failures[2];
    begin_attempt(ranks);
    if (pipe2(failures, O_CLOEXEC) < 0) {
        say("no pipe: %s", strerror(errno));
        return 1;
    }
    bool started = true;
    for (int r = 0; started && r < ranks->options->ranks; r++) {
        started = start_rank(ranks, r, world, logs, failures[1]);
    }
    close(failures[1]);
    char *name = executable(ranks->options);
    int code = await_exec(failures[0], name);
    free(name);
    close(failures[0]);
    if (code == 0 && !started) code = 1;
    if (code != 0) {
        ranks->stop_signal = SIGKILL;
        ranks->kill_at = now();
        ranks->killed = true;
        signal_groups(ranks, SIGKILL);
    }
    return code;
}

/* ---- stopping, reaping ---- */

/* Sends SIGCONT too, since a suspended rank does not handle the signal. */
void ranks_stop(struct ranks *ranks, int signal) {
    ranks->stop_signal = signal;
    ranks->kill_at = now() + ranks->options->shutdown_timeout;
    signal_groups(ranks, signal);
    signal_groups(ranks, SIGCONT);
}

void ranks_pass_on(const struct ranks *ranks, int signal) {
    for (int r = 0; r < ranks->options->ranks; r++) {
        if (ranks->list[r].running) kill(ranks->list[r].pid, signal);
    }
}

void ranks_hurry(struct ranks *ranks) {
    ranks->kill_at = now();
}

static void kill_ranks(struct ranks *ranks) {
    if (ranks->killed || ranks->running == 0) return;
    say("%d of %d ranks still run; sending SIGKILL", ranks->running, ranks->options->ranks);
    ranks->killed = true;
    signal_groups(ranks, SIGKILL);
}

static struct rank *find_rank(const struct ranks *ranks, pid_t pid) {
    for (int r = 0; r < ranks->options->ranks; r++) {
        if (ranks->list[r].pid == pid && ranks->list[r].running) return &ranks->list[r];
    }
    return NULL;
}

static void note_end(struct ranks *ranks, struct rank *rank, int status) {
    rank->running = rank->suspended = false;
    rank->status = status;
    rank->ended = wall_clock();
    rank->order = ++ranks->ends;
    rank->ended_by_us = ranks->stop_signal != 0;
    ranks->running--;
}

/* Ranks are in the terminal's background: one that reads it would be stopped silently. */
static void note_suspension(const struct ranks *ranks, struct rank *rank, int status) {
    rank->suspended = WIFSTOPPED(status);
    if (!rank->suspended) return;
    int by = rank->suspended_by = WSTOPSIG(status);
    if (by != SIGTTIN && by != SIGTTOU) return;
    say("local rank %d (pid %d) tried to %s the terminal, which ranks cannot, and was stopped (SIG%s)",
        (int)(rank - ranks->list), (int)rank->pid, by == SIGTTIN ? "read" : "set or write to", sigabbrev_np(by));
}

static void note_first_failure(struct ranks *ranks, struct rank *culprit) {
    ranks->first_failed = (int)(culprit - ranks->list);
    culprit->order = 0;
    for (int r = 0; r < ranks->options->ranks; r++) ranks->list[r].was_suspended = ranks->list[r].suspended;
}

static void forget_group(const struct ranks *ranks, struct rank *rank) {
    if (rank->has_group) tell_keeper(ranks, -rank->pid);
    rank->has_group = false;
}

/* Sends signal (0: only checks) to processes left in the groups of ranks that have ended; returns how many groups
 * are not empty. */
static int signal_leftovers(const struct ranks *ranks, int signal) {
    int groups = 0;
    for (int r = 0; r < ranks->options->ranks; r++) {
        struct rank *rank = &ranks->list[r];
        if (!rank->has_group || rank->running) continue;
        if (kill(-rank->pid, signal) == 0) groups++;
        else forget_group(ranks, rank);
    }
    return groups;
}

/* Of several failures since the last check, one killed by a signal counts as the first: the others more likely
 * noticed its end than caused it. */
void ranks_reap(struct ranks *ranks) {
    struct rank *culprit = NULL;
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;) {
        struct rank *rank = find_rank(ranks, pid);
        if (pid == ranks->keeper) ranks->keeper = 0;
        if (!rank) continue; /* a rank's orphan, ours as the subreaper */
        if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
            note_suspension(ranks, rank, status);
            continue;
        }
        note_end(ranks, rank, status);
        bool stronger = !culprit || (WIFSIGNALED(status) && !WIFSIGNALED(culprit->status));
        if (rank_failed(status) && stronger) culprit = rank;
    }
    signal_leftovers(ranks, 0);
    if (culprit && !ranks->stop_signal && ranks->first_failed < 0) note_first_failure(ranks, culprit);
}

/* ---- leftover processes ---- */

static void end_attempt(struct ranks *ranks) {
    for (int r = 0; r < ranks->options->ranks; r++) forget_group(ranks, &ranks->list[r]);
    ranks->over = true;
}

/* Leftover processes of a stopped attempt are signalled twice more, now and in a second, since a child that a shell
 * forks while it takes the signal misses it. They have the rest of the grace. Then, or at once if nothing was
 * stopped, they are killed; a process that survives SIGKILL (it waits for a device) is left to the system. */
static void sweep(struct ranks *ranks) {
    double time = now();
    bool patient = ranks->stop_signal && !ranks->killed && time < ranks->kill_at;
    bool first = ranks->swept_since == 0;
    bool tell = first || (ranks->told_again_at > 0 && time >= ranks->told_again_at);
    if (first) {
        ranks->swept_since = time;
        ranks->told_again_at = time + TELL_AGAIN;
    } else if (tell) {
        ranks->told_again_at = 0;
    }
    int signal = !patient ? SIGKILL : tell ? ranks->stop_signal : 0;
    double since = ranks->stop_signal && ranks->kill_at > ranks->swept_since ? ranks->kill_at : ranks->swept_since;
    ranks_reap(ranks); /* orphans that ended, ours as the subreaper */
    if (signal_leftovers(ranks, signal) == 0 || (!patient && time > since + GIVE_UP)) end_attempt(ranks);
}

/* When cairn-run gives up ranks that survive SIGKILL (they wait for a device, or belong to another user by now):
 * after a second grace, since freeing much memory takes time. */
static double abandon_at(const struct ranks *ranks) {
    double grace = ranks->options->shutdown_timeout;
    return ranks->kill_at + (grace > GIVE_UP ? grace : GIVE_UP);
}

static void abandon_ranks(struct ranks *ranks) {
    for (int r = 0; r < ranks->options->ranks; r++) {
        struct rank *rank = &ranks->list[r];
        if (!rank->running) continue;
        say("local rank %d (pid %d) did not end after SIGKILL; cairn-run leaves it running", r, (int)rank->pid);
        note_end(ranks, rank, SIGKILL); /* as waitpid would report it */
    }
}

bool ranks_tick(struct ranks *ranks) {
    if (ranks->over) return true;
    if (ranks->stop_signal && now() >= ranks->kill_at) kill_ranks(ranks);
    if (ranks->killed && now() >= abandon_at(ranks)) abandon_ranks(ranks);
    if (ranks->running > 0) return false;
    sweep(ranks);
    return ranks->over;
}

double ranks_delay(const struct ranks *ranks) {
    if (ranks->over) return FAR;
    if (ranks->running == 0) return SWEEP_INTERVAL;
    if (!ranks->stop_signal) return FAR;
    double left = (ranks->killed ? abandon_at(ranks) : ranks->kill_at) - now();
    return left > 0 ? left : 0;
}
