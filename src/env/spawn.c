/* Ranks as processes of one program. While they are forked the process has no other thread: the store's socket listens
 * before the forks (clients can connect to it), the store's thread starts after them. The parent waits on a descriptor
 * for each process; if the system has none, it polls every few milliseconds. It has no handler for SIGCHLD and reaps no
 * other children. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cairn/env.h"
#include "comm/group.h"
#include "core/alloc.h"
#include "core/descriptors.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"
#include "core/trace.h"
#include "device/device.h"
#include "env/env_internal.h"
#include "env/error_file.h"
#include "rendezvous/store/server.h"

static const double DEFAULT_SHUTDOWN = 30; /* seconds, as all times here */
static const double CAUSE_WITHIN = 1;      /* wait for a cause: peers may notice a death before waitpid reports it */

enum { LOOK_MS = 5, SETTLE_MS = 500 };

/* How a rank ended, written by the rank into memory that it shares with the parent. */
struct outcome {
    struct cairn__error_note note;
    bool has_returned; /* fn has returned */
    int code;          /* the value that fn returned */
};

struct rank {
    pid_t pid;
    int pidfd;          /* -1 = none */
    bool running, lost; /* lost: reaped by other code of the program */
    bool was_stopped;   /* it ended after the parent stopped the ranks */
    int status;         /* as from waitpid */
};

struct job {
    int (*fn)(int rank, void *argument);
    void *argument;
    int size, started, running, port;
    double patience;
    struct rank *ranks;
    struct outcome *outcomes; /* [size] */
    struct pollfd *polls;     /* [size], for wait_for_change */
    struct cairn__store_server *server;
    double stop_at;    /* when to stop the ranks; 0 = nothing has failed */
    double stopped_at; /* when they were stopped; 0 = not yet */
    bool killed;
};

static double now(void) {
    return 1e-9 * (double)cairn__now_ns();
}

/* ---- checks ---- */

/* Counts the threads of this process except those of Cairn's pool, which handles fork; 1 if they cannot be counted. */
static int count_threads(char *name, size_t nbytes) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *d; tasks && (d = readdir(tasks));) {
        char path[300], found[64] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", d->d_name);
        FILE *comm = d->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (!comm) continue;
        if (fgets(found, sizeof(found), comm)) found[strcspn(found, "\n")] = '\0';
        (void)fclose(comm);
        if (strcmp(found, "cairn-pool") == 0) continue;
        count++;
        if (atoi(d->d_name) != getpid()) snprintf(name, nbytes, "%s", found);
    }
    if (tasks) (void)closedir(tasks);
    return count ? count : 1;
}

/* Waits a moment, because a thread that was joined may still be listed. */
static cairn_status refuse_threads(void) {
    char name[64] = "?";
    int count = count_threads(name, sizeof(name));
    const struct timespec moment = {.tv_nsec = 1000 * 1000};
    for (int i = 0; i < SETTLE_MS && count > 1; i++) {
        (void)nanosleep(&moment, NULL);
        count = count_threads(name, sizeof(name));
    }
    REQUIRE(count == 1, CAIRN_ESTATE,
            "cairn_spawn: this process has %d threads, one of them called '%s', which the forked ranks would lack, "
            "while their locks would stay locked; call it before threads are started",
            count, name);
    return CAIRN_OK;
}

static cairn_status check(const struct job *job, const struct cairn_spawn_options *o) {
    REQUIRE(job->fn, CAIRN_EINVAL, "cairn_spawn: fn is NULL");
    REQUIRE(job->size >= 1 && job->size <= CAIRN__MAX_RANKS, CAIRN_EINVAL, "cairn_spawn: %d ranks; 1 to %d are allowed",
            job->size, CAIRN__MAX_RANKS);
    REQUIRE(isfinite(o->shutdown_timeout) && o->shutdown_timeout >= 0, CAIRN_EINVAL,
            "cairn_spawn_options.shutdown_timeout is %g; it must be a number of seconds, 0 = %g", o->shutdown_timeout,
            DEFAULT_SHUTDOWN);
    REQUIRE(!cairn__device_gpu_was_open(), CAIRN_ESTATE,
            "cairn_spawn: this process has opened a GPU, which a process that it forks cannot use; call it before "
            "cairn_env_create");
    return refuse_threads();
}

/* ---- a rank ---- */

static bool set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    return setenv(name, text, 1) == 0;
}

/* Sets every variable that torchrun sets and that Cairn, or a program made for torchrun, may read, and unsets the error
 * file: an outer launcher's values describe the parent. */
static bool set_variables(const struct job *job, int rank, pid_t parent) {
    char run[32];
    snprintf(run, sizeof(run), "spawn-%d", (int)parent);
    return set_number("RANK", rank) && set_number("LOCAL_RANK", rank) && set_number("ROLE_RANK", rank) &&
           set_number("WORLD_SIZE", job->size) && set_number("LOCAL_WORLD_SIZE", job->size) &&
           set_number("ROLE_WORLD_SIZE", job->size) && set_number("GROUP_RANK", 0) &&
           set_number("GROUP_WORLD_SIZE", 1) && set_number("TORCHELASTIC_RESTART_COUNT", 0) &&
           set_number("TORCHELASTIC_MAX_RESTARTS", 0) && set_number("MASTER_PORT", job->port) &&
           setenv("MASTER_ADDR", "127.0.0.1", 1) == 0 && setenv("ROLE_NAME", "default", 1) == 0 &&
           setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1) == 0 && setenv("TORCHELASTIC_RUN_ID", run, 1) == 0 &&
           unsetenv("TORCHELASTIC_ERROR_FILE") == 0;
}

static _Noreturn void be_rank(struct job *job, int rank, pid_t parent) {
    cairn__env_is_rank_of_its_own();
    struct outcome *outcome = &job->outcomes[rank];
    sigset_t none;
    sigemptyset(&none);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* the parent died before the line above */
    cairn__forget_failures();
    cairn__error_file_install_note(&outcome->note);
    for (int r = 0; r < job->started; r++) { /* descriptors that the parent had opened */
        if (job->ranks[r].pidfd >= 0) (void)close(job->ranks[r].pidfd);
    }
    cairn__store_stop(&job->server);
    cairn__log_set_rank(rank);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    int code = 1;
    if (set_variables(job, rank, parent)) {
        code = job->fn(rank, job->argument);
    } else {
        (void)cairn__fail_errno(errno, "rank %d's environment cannot be set", rank);
    }
    if (code && (code & 0xff) == 0) code = 1; /* else exit code 256 would count as success */
    (void)fflush(NULL);
    cairn__error_file_write(code);
    outcome->code = code & 0xff;
    outcome->has_returned = true;
    _exit(code);
}

static cairn_status start_rank(struct job *job, int rank) {
    struct rank *r = &job->ranks[rank];
    const pid_t parent = getpid();
    r->pid = fork();
    if (r->pid == 0) be_rank(job, rank, parent);
    if (r->pid < 0) {
        return cairn__fail_errno(errno, "cairn_spawn: the process of rank %d of %d could not be started", rank,
                                 job->size);
    }
    r->running = true;
    r->pidfd = pidfd_open(r->pid, 0);
    job->started++;
    job->running++;
    return CAIRN_OK;
}

/* ---- the parent ---- */

/* Signals by descriptor, which identifies the process even if the program's own handler has reaped it and its number
 * belongs to another process now. */
static void signal_ranks(const struct job *job, int signal) {
    for (int i = 0; i < job->started; i++) {
        const struct rank *r = &job->ranks[i];
        if (!r->running) continue;
        if (r->pidfd >= 0) {
            (void)pidfd_send_signal(r->pidfd, signal, NULL, 0);
        } else {
            (void)kill(r->pid, signal);
        }
    }
}

static void kill_ranks(struct job *job) {
    job->killed = true;
    signal_ranks(job, SIGKILL);
}

static bool has_failed(const struct job *job, int rank) {
    const struct rank *r = &job->ranks[rank];
    const struct outcome *w = &job->outcomes[rank];
    if (r->lost) return !w->has_returned || w->code != 0;
    return !(WIFEXITED(r->status) && WEXITSTATUS(r->status) == 0);
}

/* Calls waitpid with `flags`. */
static void reap(struct job *job, int rank, int flags) {
    struct rank *r = &job->ranks[rank];
    pid_t got;
    do got = waitpid(r->pid, &r->status, flags);
    while (got < 0 && errno == EINTR);
    if (got == 0) return;
    r->lost = got < 0; /* SIGCHLD is ignored, or the program's own handler was faster */
    r->was_stopped = job->stopped_at > 0;
    r->running = false;
    job->running--;
    if (r->pidfd >= 0) (void)close(r->pidfd);
    r->pidfd = -1;
}

/* A failure stops the other ranks at once. A failure that is a consequence of another rank's stops them after
 * CAUSE_WITHIN, so that the cause can show. */
static void reap_all(struct job *job) {
    for (int r = 0; r < job->started; r++) {
        if (!job->ranks[r].running) continue;
        reap(job, r, WNOHANG);
        if (job->ranks[r].running || !has_failed(job, r)) continue;
        const double at = now() + (job->outcomes[r].note.is_consequence ? CAUSE_WITHIN : 0);
        if (job->stop_at == 0 || at < job->stop_at) job->stop_at = at;
    }
}

/* Waits until a rank may have ended, a signal arrives, or max_ms have passed; -1 = no limit. */
static void wait_for_change(struct job *job, int max_ms) {
    nfds_t n = 0;
    for (int r = 0; r < job->started; r++) {
        if (!job->ranks[r].running) continue;
        if (job->ranks[r].pidfd < 0 && (max_ms < 0 || max_ms > LOOK_MS)) max_ms = LOOK_MS;
        if (job->ranks[r].pidfd >= 0) job->polls[n++] = (struct pollfd){.fd = job->ranks[r].pidfd, .events = POLLIN};
    }
    (void)poll(job->polls, n, max_ms);
}

/* Stops or kills the ranks if that is due. Returns the milliseconds until the next time; -1 = never. */
static int stop_when_due(struct job *job) {
    if (job->stop_at == 0 || job->killed) return -1;
    if (job->stopped_at == 0 && now() >= job->stop_at) {
        job->stopped_at = now();
        signal_ranks(job, SIGTERM);
        signal_ranks(job, SIGCONT); /* a stopped process does not get SIGTERM before it continues */
    }
    const double due = job->stopped_at == 0 ? job->stop_at : job->stopped_at + job->patience;
    const double left = due - now();
    if (left > 0) return left > 3600 ? 3600 * 1000 : (int)(left * 1e3) + 1;
    if (job->stopped_at > 0) kill_ranks(job);
    return 0;
}

/* ---- the report ---- */

/* Ranks a failure as the cause: 0 the rank succeeded, or was stopped; 1 it failed because another rank had failed; 2 it
 * failed by itself. Ranks that noticed a death may be reaped before the one that died. */
static int weight(const struct job *job, int rank) {
    const struct rank *r = &job->ranks[rank];
    const struct cairn__error_note *note = &job->outcomes[rank].note;
    if (!has_failed(job, rank)) return 0;
    const bool by_signal = !r->lost && WIFSIGNALED(r->status);
    const bool by_ours =
        by_signal && (WTERMSIG(r->status) == SIGTERM || (job->killed && WTERMSIG(r->status) == SIGKILL));
    const bool before = !r->was_stopped || (note->text[0] && note->at < job->stopped_at);
    if (r->was_stopped && (by_signal ? by_ours : !before)) return 0;
    return note->is_consequence ? 1 : 2;
}

static void describe_end(const struct job *job, int rank, char *text, size_t nbytes) {
    const struct rank *r = &job->ranks[rank];
    const struct outcome *w = &job->outcomes[rank];
    if (w->note.text[0]) {
        snprintf(text, nbytes, "%s", w->note.text);
    } else if (r->lost) {
        snprintf(text, nbytes, "its exit status is lost: this process ignores SIGCHLD, or waits for all its children");
    } else if (WIFSIGNALED(r->status)) {
        const char *name = sigabbrev_np(WTERMSIG(r->status));
        snprintf(text, nbytes, "killed by signal %d (SIG%s)", WTERMSIG(r->status), name ? name : "?");
    } else {
        snprintf(text, nbytes, "exit code %d", WEXITSTATUS(r->status));
    }
}

static cairn_status report(const struct job *job) {
    if (job->stop_at == 0) return CAIRN_OK;
    int first = 0;
    for (int r = 1; r < job->started; r++) {
        const double at = job->outcomes[r].note.at, best = job->outcomes[first].note.at;
        const int more = weight(job, r) - weight(job, first);
        if (more > 0 || (more == 0 && at > 0 && best > 0 && at < best)) first = r;
    }
    char how[sizeof(job->outcomes[0].note.text)];
    describe_end(job, first, how, sizeof(how));
    return cairn__fail(CAIRN_EPEER, "cairn_spawn: rank %d of %d (process %d) failed first: %s", first, job->size,
                       (int)job->ranks[first].pid, how);
}

/* ---- the call ---- */

static cairn_status open_job(struct job *job) {
    char what[64];
    cairn_status st = CAIRN_OK;
    const size_t n = (size_t)job->size;
    TRY(cairn__calloc(n, sizeof(*job->ranks), (void **)&job->ranks));
    TRY(cairn__calloc(n, sizeof(*job->polls), (void **)&job->polls));
    void *shared = mmap(NULL, n * sizeof(*job->outcomes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) TRY(cairn__fail_errno(errno, "cairn_spawn: no memory to share with %d ranks", job->size));
    job->outcomes = shared;
    snprintf(what, sizeof(what), "cairn_spawn of %d ranks", job->size);
    TRY(cairn__check_descriptors(4 + 2 * job->size, what)); /* the store's; a process and a connection for each rank */
    TRY(cairn__store_listen(0, &job->server, &job->port));
out:
    return st;
}

static void close_job(struct job *job) {
    kill_ranks(job);
    for (int r = 0; r < job->started; r++) {
        if (job->ranks[r].running) reap(job, r, 0);
    }
    cairn__store_stop(&job->server);
    if (job->outcomes) (void)munmap(job->outcomes, (size_t)job->size * sizeof(*job->outcomes));
    cairn__free(job->polls);
    cairn__free(job->ranks);
}

cairn_status cairn_spawn(int (*fn)(int rank, void *argument), void *argument, int nprocs,
                         const struct cairn_spawn_options *options) {
    cairn_status st = CAIRN_OK;
    struct cairn_spawn_options o = {.struct_size = sizeof(o)};
    struct job job = {.fn = fn, .argument = argument, .size = nprocs};
    cairn__error_file_install(CAIRN_DEFAULT); /* this process may be a launcher's rank, and has no environment */
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_spawn_options"));
    TRY(check(&job, &o));
    job.patience = o.shutdown_timeout > 0 ? o.shutdown_timeout : DEFAULT_SHUTDOWN;
    TRY(open_job(&job));
    (void)fflush(NULL); /* else every rank would write the buffered output again */
    for (int r = 0; r < nprocs; r++) TRY(start_rank(&job, r));
    TRY(cairn__store_start(job.server));
    while (job.running > 0) {
        wait_for_change(&job, stop_when_due(&job));
        reap_all(&job);
    }
    st = report(&job);
out:
    close_job(&job);
    return st;
}
