/* cairn-run: starts the ranks of a program on this machine, hosts the store where they meet, and ends them together.
 *
 * It stands in for `torchrun --no-python` and `python -m torch.distributed.launch --use_env --no_python` with one node.
 * Each rank leads a process group of its own, which is what signals go to, so what a rank started ends with it. Where
 * cairn-run itself is killed, PR_SET_PDEATHSIG ends the ranks and the keeper, a process that waits for that, their groups.
 *
 * Life of a job: start -> run -> (one failed, or a signal came: stop = that signal to every group, then SIGKILL once the
 * grace is over) -> every rank reaped -> what the ranks left in their groups is swept -> report. One loop does it: poll on
 * a signalfd that carries SIGCHLD too, with the end of the grace as its timeout.
 *
 * Standard input: rank 0 has cairn-run's own unless that is a terminal (a process group in the background would be
 * stopped by reading it); the other ranks, and rank 0 then, have /dev/null.
 * Source: pytorch torch/distributed/run.py and elastic/agent/server/local_elastic_agent.py (1.13 to 2.x). */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dist/store/server.h"

enum {
    EXIT_USAGE = 2,
    EXIT_NOT_EXECUTABLE = 126, /* as shells say it */
    EXIT_NOT_FOUND = 127,
    EXIT_SIGNAL = 128,
    MAX_RANKS = 4096,
};

extern char **environ;

/* ---- options ---- */

struct options {
    int ranks;
    int port;
    const char *address;
    double grace; /* seconds between the stop and SIGKILL */
    char **program;
};

static const char usage[] =
    "usage: cairn-run [options] program [arguments]\n"
    "\n"
    "Starts program once per rank on this machine, hosts the store where the ranks meet, forwards signals, and ends\n"
    "all ranks when one fails. Takes the place of `torchrun --no-python` for programs that need no Python.\n"
    "\n"
    "  --nproc-per-node N       ranks to start (1), or `cpu`: one for each processor\n"
    "  --master-addr ADDRESS    what ranks are told to connect to (127.0.0.1)\n"
    "  --master-port PORT       where the store listens (0: a free port)\n"
    "  --shutdown-timeout S     seconds between a stop and SIGKILL (30)\n"
    "  --nnodes 1, --node-rank 0, --max-restarts 0, --standalone, --no-python, --use-env\n"
    "                           accepted, for they say what cairn-run does anyway\n"
    "  --help\n"
    "\n"
    "Dashes and underscores are the same in an option's name; a value follows as --name=value or --name value.\n"
    "${local_rank} in an argument of program becomes the rank's own number, $$ becomes $.\n"
    "OMP_NUM_THREADS is set to 1 for two ranks or more, unless you set it.\n"
    "Rank 0 reads cairn-run's standard input unless it is a terminal; the other ranks read /dev/null.\n"
    "Exit code: 0; the code of the rank that failed first, 128 + its signal if one killed it; 126 or 127 where the\n"
    "program could not be started; 2 for a wrong option; 128 + the signal that told cairn-run to stop; 1 otherwise.\n";

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    fprintf(stderr, "cairn-run: %s\n", line);
}

static bool parse_whole(const char *text, long least, long most, int *value) {
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (errno || end == text || *end || n < least || n > most) return false;
    *value = (int)n;
    return true;
}

static bool set_ranks(struct options *o, const char *value) {
    if (strcmp(value, "cpu") == 0 || strcmp(value, "auto") == 0) {
        o->ranks = (int)sysconf(_SC_NPROCESSORS_ONLN);
        return true;
    }
    if (parse_whole(value, 1, MAX_RANKS, &o->ranks)) return true;
    say("--nproc-per-node takes a number from 1 to %d or `cpu`, not '%s'", MAX_RANKS, value);
    return false;
}

static bool set_port(struct options *o, const char *value) {
    if (parse_whole(value, 0, 65535, &o->port)) return true;
    say("--master-port takes a number from 0 to 65535, not '%s'", value);
    return false;
}

static bool set_address(struct options *o, const char *value) {
    o->address = value;
    return true;
}

static bool set_grace(struct options *o, const char *value) {
    char *end;
    double seconds = strtod(value, &end);
    if (end == value || *end || !(seconds >= 0 && seconds <= 1e6)) {
        say("--shutdown-timeout takes a number of seconds, not '%s'", value);
        return false;
    }
    o->grace = seconds;
    return true;
}

static bool only_one_node(struct options *o, const char *value) {
    (void)o;
    if (strcmp(value, "1") == 0 || strcmp(value, "1:1") == 0) return true;
    say("--nnodes %s: cairn-run starts ranks on this machine only; use torchrun, mpirun or srun for more", value);
    return false;
}

static bool only_node_zero(struct options *o, const char *value) {
    (void)o;
    if (strcmp(value, "0") == 0) return true;
    say("--node-rank %s: there is one node, number 0", value);
    return false;
}

static bool only_no_restart(struct options *o, const char *value) {
    (void)o;
    if (strcmp(value, "0") == 0) return true;
    say("--max-restarts %s: cairn-run does not restart ranks", value);
    return false;
}

static const struct option_row {
    const char *name;                                  /* with dashes; underscores match too */
    bool (*set)(struct options *o, const char *value); /* NULL: a flag that changes nothing */
} option_rows[] = {
    {"nproc-per-node", set_ranks},
    {"master-addr", set_address},
    {"master-port", set_port},
    {"shutdown-timeout", set_grace},
    {"nnodes", only_one_node},
    {"node-rank", only_node_zero},
    {"max-restarts", only_no_restart},
    {"standalone", NULL},
    {"no-python", NULL},
    {"use-env", NULL},
};

static bool same_name(const char *row, const char *given, size_t length) {
    if (strlen(row) != length) return false;
    for (size_t i = 0; i < length; i++) {
        if (row[i] != given[i] && !(row[i] == '-' && given[i] == '_')) return false;
    }
    return true;
}

static const struct option_row *find_option(const char *given, size_t length) {
    for (size_t i = 0; i < sizeof(option_rows) / sizeof(option_rows[0]); i++) {
        if (same_name(option_rows[i].name, given, length)) return &option_rows[i];
    }
    return NULL;
}

/* Takes the option at argv[*i] and moves *i past it. */
static bool take_option(struct options *o, char **argv, int *i) {
    const char *arg = argv[(*i)++];
    const char *name = arg + strspn(arg, "-");
    size_t length = strcspn(name, "=");
    const struct option_row *row = name - arg == 2 ? find_option(name, length) : NULL;
    if (!row) {
        say("there is no option %s; see cairn-run --help", arg);
        return false;
    }
    const char *value = name[length] ? name + length + 1 : NULL;
    if (!row->set) {
        if (value) say("--%s takes no value", row->name);
        return !value;
    }
    if (!value && argv[*i]) value = argv[(*i)++];
    if (!value) {
        say("--%s needs a value", row->name);
        return false;
    }
    return row->set(o, value);
}

/* Everything from the first argument that is no option on is the program's. */
static bool parse_options(struct options *o, char **argv) {
    int i = 1;
    while (argv[i] && argv[i][0] == '-') {
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            exit(0);
        }
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        if (!take_option(o, argv, &i)) return false;
    }
    o->program = argv + i;
    if (!o->program[0]) say("which program? See cairn-run --help");
    return o->program[0] != NULL;
}

/* ---- what each rank is told ---- */

static void *must(void *p) {
    if (p) return p;
    say("memory ran out");
    exit(1);
}

__attribute__((format(printf, 1, 2))) static char *format_text(const char *format, ...) {
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0) text = NULL;
    va_end(args);
    return must(text);
}

/* Frees an array of texts that NULL ends, and the texts. */
static void free_texts(char **texts) {
    for (char **t = texts; *t; t++) free(*t);
    free(texts);
}

/* The "NAME=value" texts of one rank, NULL at the end. */
struct variables {
    char **items;
    size_t n;
};

/* Keeps assignment, in the place of an earlier one of the same name. */
static void set_variable(struct variables *v, char *assignment) {
    size_t name = strcspn(assignment, "=") + 1;
    for (size_t i = 0; i < v->n; i++) {
        if (strncmp(v->items[i], assignment, name) == 0) {
            free(v->items[i]);
            v->items[i] = assignment;
            return;
        }
    }
    v->items = must(realloc(v->items, (v->n + 2) * sizeof(*v->items)));
    v->items[v->n++] = assignment;
    v->items[v->n] = NULL;
}

/* cairn-run's own environment and the launch facts. */
static char **rank_environment(const struct options *o, int rank, int port, const char *run_id) {
    struct variables v = {NULL, 0};
    for (char **e = environ; *e; e++) set_variable(&v, format_text("%s", *e));
    set_variable(&v, format_text("RANK=%d", rank));
    set_variable(&v, format_text("LOCAL_RANK=%d", rank));
    set_variable(&v, format_text("ROLE_RANK=%d", rank));
    set_variable(&v, format_text("WORLD_SIZE=%d", o->ranks));
    set_variable(&v, format_text("LOCAL_WORLD_SIZE=%d", o->ranks));
    set_variable(&v, format_text("ROLE_WORLD_SIZE=%d", o->ranks));
    set_variable(&v, format_text("GROUP_RANK=0"));
    set_variable(&v, format_text("GROUP_WORLD_SIZE=1"));
    set_variable(&v, format_text("ROLE_NAME=default"));
    set_variable(&v, format_text("MASTER_ADDR=%s", o->address));
    set_variable(&v, format_text("MASTER_PORT=%d", port));
    set_variable(&v, format_text("TORCHELASTIC_RESTART_COUNT=0"));
    set_variable(&v, format_text("TORCHELASTIC_MAX_RESTARTS=0"));
    set_variable(&v, format_text("TORCHELASTIC_RUN_ID=%s", run_id));
    set_variable(&v, format_text("TORCHELASTIC_USE_AGENT_STORE=True"));
    if (o->ranks > 1 && !getenv("OMP_NUM_THREADS")) set_variable(&v, format_text("OMP_NUM_THREADS=1"));
    return v.items;
}

/* The length of "${local_rank}" or "$local_rank" at text, else 0. */
static size_t local_rank_mark(const char *text) {
    static const char braced[] = "${local_rank}", bare[] = "$local_rank";
    if (strncmp(text, braced, sizeof(braced) - 1) == 0) return sizeof(braced) - 1;
    if (strncmp(text, bare, sizeof(bare) - 1) != 0) return 0;
    char next = text[sizeof(bare) - 1];
    bool longer_name = next == '_' || (next >= '0' && next <= '9') || ((next | 32) >= 'a' && (next | 32) <= 'z');
    return longer_name ? 0 : sizeof(bare) - 1;
}

/* As Python's string.Template(text).safe_substitute(local_rank=rank), which torchrun applies to every argument. */
static char *substitute(const char *text, int rank) {
    char *out = format_text("%s", "");
    while (*text) {
        size_t mark = local_rank_mark(text);
        char *longer;
        if (mark > 0) {
            longer = format_text("%s%d", out, rank);
            text += mark;
        } else if (strncmp(text, "$$", 2) == 0) {
            longer = format_text("%s$", out);
            text += 2;
        } else {
            size_t plain = 1 + strcspn(text + 1, "$");
            longer = format_text("%s%.*s", out, (int)plain, text);
            text += plain;
        }
        free(out);
        out = longer;
    }
    return out;
}

static char **rank_arguments(char **program, int rank) {
    size_t n = 0;
    while (program[n]) n++;
    char **argv = must(calloc(n + 1, sizeof(*argv)));
    for (size_t i = 0; i < n; i++) argv[i] = i > 0 ? substitute(program[i], rank) : format_text("%s", program[i]);
    return argv;
}

static char *new_run_id(void) {
    unsigned long long bits = 0;
    if (getrandom(&bits, sizeof(bits), 0) != sizeof(bits)) bits = (unsigned long long)getpid();
    return format_text("cairn-%016llx", bits);
}

/* ---- the job ---- */

struct rank {
    pid_t pid; /* of the rank and of its process group; 0 = never started */
    bool running;
    int status; /* as waitpid gives it, once it no longer runs */
};

struct job {
    const struct options *options;
    struct rank *ranks; /* [options->ranks] */
    int running;
    pid_t keeper;
    int to_keeper;    /* a pipe: +pid of a group that began, -pid of one that ended */
    int first_failed; /* -1 = none */
    int stop_signal;  /* what the ranks were sent, 0 = nothing */
    int told_by;      /* the signal that told cairn-run to stop, 0 = none */
    double told_at;   /* in seconds of the monotonic clock, as kill_at */
    double kill_at;
    bool killed;
    sigset_t old_mask;
};

/* A program that could not be started, as a rank reports it through a pipe that a successful exec closes. */
struct exec_failure {
    int rank, errnum;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void signal_groups(const struct job *job, int signal) {
    for (int r = 0; r < job->options->ranks; r++) {
        if (job->ranks[r].running) kill(-job->ranks[r].pid, signal);
    }
}

/* A stopped rank would not see the signal before it goes on, hence SIGCONT. */
static void begin_stop(struct job *job, int signal) {
    job->stop_signal = signal;
    job->kill_at = now() + job->options->grace;
    signal_groups(job, signal);
    signal_groups(job, SIGCONT);
}

static void kill_ranks(struct job *job) {
    if (job->killed || job->running == 0) return;
    say("%d of %d ranks still run; sending SIGKILL", job->running, job->options->ranks);
    job->killed = true;
    signal_groups(job, SIGKILL);
}

/* ---- the keeper ---- */

/* Reads the groups that are alive until the pipe ends, which is when cairn-run died, and ends them. */
static void keep(const int pipe[2], pid_t groups[], int room) {
    int n = 0;
    pid_t told;
    setpgid(0, 0); /* signals of a terminal are for cairn-run */
    close(pipe[1]);
    while (read(pipe[0], &told, sizeof(told)) == sizeof(told)) {
        if (told > 0 && n < room) groups[n++] = told;
        for (int i = 0; i < n; i++) {
            if (groups[i] == -told) groups[i] = groups[--n];
        }
    }
    for (int i = 0; i < n; i++) kill(-groups[i], SIGKILL);
    _exit(0);
}

/* Before the store's thread begins: a fork of one thread is an ordinary process. */
static bool start_keeper(struct job *job) {
    int ends[2];
    pid_t *groups = must(calloc((size_t)job->options->ranks, sizeof(*groups)));
    bool piped = pipe2(ends, O_CLOEXEC) == 0;
    job->keeper = piped ? fork() : -1;
    if (job->keeper == 0) keep(ends, groups, job->options->ranks);
    if (job->keeper < 0) say("the keeper could not be started: %s", strerror(errno));
    free(groups);
    if (piped) close(ends[0]);
    job->to_keeper = piped ? ends[1] : -1;
    return job->keeper > 0;
}

static void tell_keeper(const struct job *job, pid_t group) {
    ssize_t ignored = write(job->to_keeper, &group, sizeof(group));
    (void)ignored;
}

/* Killed before the pipe is closed, so that it ends without a last deed. */
static void stop_keeper(struct job *job) {
    kill(job->keeper, SIGKILL);
    waitpid(job->keeper, NULL, 0);
    close(job->to_keeper);
}

/* ---- starting, stopping, reaping ---- */

/* The second half of a rank's start, between fork and exec: async-signal-safe calls only, the store has a thread. */
static void become_rank(const struct job *job, int rank, pid_t launcher, char **argv, char **envp, int failures) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(1); /* it died before the line above */
    if (rank > 0 || isatty(STDIN_FILENO)) {
        int null = open("/dev/null", O_RDONLY);
        if (null >= 0) dup2(null, STDIN_FILENO);
        if (null > STDIN_FILENO) close(null);
    }
    sigprocmask(SIG_SETMASK, &job->old_mask, NULL);
    signal(SIGPIPE, SIG_DFL);
    execvpe(argv[0], argv, envp);
    struct exec_failure failure = {rank, errno};
    ssize_t ignored = write(failures, &failure, sizeof(failure));
    (void)ignored;
    _exit(EXIT_NOT_FOUND);
}

static bool start_rank(struct job *job, int rank, int port, const char *run_id, int failures) {
    char **argv = rank_arguments(job->options->program, rank);
    char **envp = rank_environment(job->options, rank, port, run_id);
    pid_t launcher = getpid();
    pid_t pid = fork();
    if (pid == 0) become_rank(job, rank, launcher, argv, envp, failures);
    free_texts(argv);
    free_texts(envp);
    if (pid < 0) {
        say("rank %d could not be started: %s", rank, strerror(errno));
        return false;
    }
    setpgid(pid, pid); /* here too: whoever comes first */
    job->ranks[rank].pid = pid;
    job->ranks[rank].running = true;
    job->running++;
    tell_keeper(job, pid);
    return true;
}

/* Returns once every rank has exec'ed or failed to; 0, or the exit code for what went wrong. */
static int start_ranks(struct job *job, int port) {
    int failures[2];
    if (pipe2(failures, O_CLOEXEC) < 0) {
        say("no pipe: %s", strerror(errno));
        return 1;
    }
    char *run_id = new_run_id();
    bool started = true;
    for (int r = 0; started && r < job->options->ranks; r++) started = start_rank(job, r, port, run_id, failures[1]);
    free(run_id);
    close(failures[1]);
    struct exec_failure failure;
    ssize_t got;
    do got = read(failures[0], &failure, sizeof(failure));
    while (got < 0 && errno == EINTR);
    close(failures[0]);
    if (got == sizeof(failure)) {
        say("%s cannot be started: %s%s", job->options->program[0], strerror(failure.errnum),
            failure.errnum == ENOENT && !strchr(job->options->program[0], '/') ? " in PATH" : "");
        return failure.errnum == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
    }
    return started ? 0 : 1;
}

static bool failed(int status) {
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int find_rank(const struct job *job, pid_t pid) {
    for (int r = 0; r < job->options->ranks; r++) {
        if (job->ranks[r].pid == pid && job->ranks[r].running) return r;
    }
    return -1;
}

/* Reaps what has ended; the first failure stops the rest. Of several that failed since the last look one that a signal
 * killed counts as the first: the others more likely noticed that than caused it. */
static void reap(struct job *job) {
    int culprit = -1;
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        int r = find_rank(job, pid);
        if (r < 0) continue; /* a rank's orphan, ours as the subreaper */
        job->ranks[r].running = false;
        job->ranks[r].status = status;
        job->running--;
        if (kill(-pid, 0) != 0) tell_keeper(job, -pid); /* an empty group: its number may be another's soon */
        bool stronger = culprit < 0 || (WIFSIGNALED(status) && !WIFSIGNALED(job->ranks[culprit].status));
        if (failed(status) && stronger) culprit = r;
    }
    if (culprit < 0 || job->stop_signal) return;
    job->first_failed = culprit;
    begin_stop(job, SIGTERM);
}

static void take_signal(struct job *job, int signal) {
    if (signal == SIGCHLD) {
        reap(job);
    } else if (job->told_by) { /* asked again: no more patience; timeout(1) sends each signal twice at once */
        if (now() > job->told_at + 1) job->kill_at = now();
    } else {
        job->told_by = signal;
        job->told_at = now();
        begin_stop(job, signal);
    }
}

static void run_job(struct job *job, int signals) {
    reap(job);
    while (job->running > 0) {
        double left = job->stop_signal && !job->killed ? job->kill_at - now() : 3600;
        if (left <= 0) kill_ranks(job);
        struct pollfd ready = {.fd = signals, .events = POLLIN};
        if (poll(&ready, 1, left > 0 ? (int)(left * 1e3) + 1 : 0) <= 0) continue;
        struct signalfd_siginfo info;
        if (read(signals, &info, sizeof(info)) == sizeof(info)) take_signal(job, (int)info.ssi_signo);
    }
}

/* Signals what ranks left behind in their groups (0 only looks); how many groups are not empty. */
static int signal_leftovers(const struct job *job, int signal) {
    int groups = 0;
    while (waitpid(-1, NULL, WNOHANG) > 0) continue; /* orphans that ended, ours as the subreaper */
    for (int r = 0; r < job->options->ranks; r++) {
        if (job->ranks[r].pid && kill(-job->ranks[r].pid, signal) == 0) groups++;
    }
    return groups;
}

/* Leftovers of a stopped job are told twice more, now and in a second: a shell takes a signal that comes while it forks,
 * and what it forked does not see it. They have the rest of the grace. Then, or at once where nothing was stopped, they
 * are killed; a process that not even that ends (waiting for a device) is left to the system. */
static void sweep_groups(const struct job *job) {
    const struct timespec pause = {.tv_nsec = 5000000};
    bool patient = job->stop_signal && !job->killed;
    for (int tick = 0; patient && now() < job->kill_at; tick++) {
        bool tell = tick == 0 || tick == 200;
        if (signal_leftovers(job, tell ? job->stop_signal : 0) == 0) return;
        nanosleep(&pause, NULL);
    }
    double give_up = now() + 5;
    while (signal_leftovers(job, SIGKILL) > 0 && now() < give_up) nanosleep(&pause, NULL);
}

/* ---- the report ---- */

static const char *signal_name(int signal) {
    static char text[32];
    const char *abbreviation = sigabbrev_np(signal);
    snprintf(text, sizeof(text), "%s%s", abbreviation ? "SIG" : "?", abbreviation ? abbreviation : "");
    return text;
}

static void describe_end(char *text, size_t nbytes, int status) {
    if (WIFSIGNALED(status)) {
        snprintf(text, nbytes, "killed by signal %d (%s)", WTERMSIG(status), signal_name(WTERMSIG(status)));
    } else {
        snprintf(text, nbytes, "exit code %d", WEXITSTATUS(status));
    }
}

static int exit_code(int status) {
    return WIFSIGNALED(status) ? EXIT_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
}

static void report_rank(const struct job *job, int r, const char *verb) {
    char end[64];
    describe_end(end, sizeof(end), job->ranks[r].status);
    say("rank %d (local_rank %d, pid %d) of %s %s: %s", r, r, (int)job->ranks[r].pid, job->options->program[0], verb,
        end);
}

static int report(const struct job *job) {
    if (job->first_failed >= 0) {
        report_rank(job, job->first_failed, "failed first");
        for (int r = 0; r < job->options->ranks; r++) {
            if (r != job->first_failed) report_rank(job, r, "ended");
        }
        return exit_code(job->ranks[job->first_failed].status);
    }
    if (!job->told_by) return 0;
    say("%s: stopped all %d ranks of %s", signal_name(job->told_by), job->options->ranks, job->options->program[0]);
    return EXIT_SIGNAL + job->told_by;
}

/* ---- main ---- */

/* Blocks what the loop wants to read, before the store's thread inherits the mask. Returns the signalfd. */
static int open_signals(sigset_t *old_mask) {
    static const int wanted[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) sigaddset(&set, wanted[i]);
    signal(SIGCHLD, SIG_DFL); /* ignored, it would reap the ranks for us */
    signal(SIGPIPE, SIG_IGN); /* a closed stderr must not leave ranks behind */
    sigprocmask(SIG_BLOCK, &set, old_mask);
    int fd = signalfd(-1, &set, SFD_CLOEXEC);
    if (fd < 0) say("no signalfd: %s", strerror(errno));
    return fd;
}

static int start_and_run(struct job *job, int port, int signals) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    job->ranks = must(calloc((size_t)job->options->ranks, sizeof(*job->ranks)));
    int code = start_ranks(job, port);
    bool started = code == 0;
    if (!started) {
        job->killed = true;
        job->stop_signal = SIGKILL;
        signal_groups(job, SIGKILL);
    }
    run_job(job, signals);
    sweep_groups(job);
    if (started) code = report(job);
    free(job->ranks);
    return code;
}

static int launch(const struct options *o) {
    struct job job = {.options = o, .first_failed = -1};
    int signals = open_signals(&job.old_mask);
    if (signals < 0) return 1;
    if (!start_keeper(&job)) return 1;
    struct cairn__store_server *store = NULL;
    int port = 0, code = 1;
    if (cairn__store_serve(o->port, &store, &port) == CAIRN_OK) {
        code = start_and_run(&job, port, signals);
    } else {
        say("the store cannot be opened: %s", cairn_last_error());
    }
    cairn__store_stop(&store);
    stop_keeper(&job);
    return code;
}

int main(int argc, char **argv) {
    struct options o = {.ranks = 1, .address = "127.0.0.1", .grace = 30};
    if (argc < 1 || !parse_options(&o, argv)) return EXIT_USAGE;
    return launch(&o);
}
