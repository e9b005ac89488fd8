/* The log file is the buffer: a tail stores how much of the file has been shown, and reads more only when its console
 * has taken the last chunk, so a slow console costs no memory and delays no rank. Source: pytorch
 * torch/distributed/elastic/multiprocessing/{api,tail_log}.py (1.13 to 2.x). */
#include "logs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text.h"

enum {
    STREAMS = 2,
    CHUNK = 65536,   /* bytes read at once; a longer line is shown in pieces */
    BUDGET = 1 << 20 /* bytes shown in one logs_pump, so that cairn-run looks after its ranks in between */
};

static const double interval = 0.1; /* torch's, seconds */
static const double patience = 10;  /* seconds to wait at the end for a console that takes nothing */
static const double never = 1e6;

static const struct {
    int bit, console;
    const char *name;
} streams[STREAMS] = {
    {STREAM_OUT, STDOUT_FILENO, "stdout.log"},
    {STREAM_ERR, STDERR_FILENO, "stderr.log"},
};

/* cairn-run's stdout or stderr. */
struct console {
    char *bytes; /* [n] of which `done` are written */
    size_t n, done, room;
    bool closed; /* takes no more output */
    bool stuck;  /* closed because it took nothing, though it may still be read */
};

/* A teed file that is being shown. */
struct tail {
    int fd, stream;
    off_t at;
    bool after_return; /* a "\n" here belongs to the line that "\r" ended */
    char *prefix;
};

struct logs {
    const struct options *options;
    char *base;          /* cairn-run's own folder below TMPDIR, NULL = --log_dir */
    int base_lock;       /* held by cairn-run and its keeper: the folder is in use; -1 = none */
    char *run;           /* NULL = no folder */
    char **errors;       /* [ranks] */
    int (*fds)[STREAMS]; /* [ranks]; -1 = cairn-run's own */
    struct tail *tails;
    size_t n_tails;
    struct console consoles[STREAMS];
    bool more;  /* the budget was spent */
    bool holds; /* files hold output that no console has shown */
    char chunk[CHUNK];
};

/* ---- folders ---- */

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk) {
    (void)status;
    (void)kind;
    (void)walk;
    remove(path);
    return 0;
}

void remove_tree(const char *path) {
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* As mkdir -p. */
static bool make_folders(const char *path) {
    char *copy = must(strdup(path));
    bool fine = true;
    for (char *slash = copy + 1; fine && *copy; slash++) {
        char kept = *slash;
        if (kept && kept != '/') continue;
        *slash = '\0';
        fine = mkdir(copy, 0777) == 0 || errno == EEXIST;
        *slash = kept;
        if (!kept) break;
    }
    free(copy);
    return fine;
}

/* Makes base/<run_id>_<random>; NULL if that fails. */
static char *make_run_folder(const char *base, const char *run_id) {
    char *name = format_text("%.100s", run_id);
    for (char *c = name; *c; c++) *c = *c == '/' ? '_' : *c;
    char *path = format_text("%s/%s_XXXXXX", base, name);
    free(name);
    char *full = mkdtemp(path) ? realpath(path, NULL) : NULL; /* absolute, since ranks may change folders */
    free(path);
    return full;
}

static bool wants_files(const struct options *o) {
    for (int r = 0; r < o->ranks; r++) {
        if (o->redirects[r] | o->tee[r]) return true;
    }
    return false;
}

/* ---- stale folders ---- */

/* A folder that has only error files is useless after its run. The prefix marks it as such. */
static const char KEPT[] = "cairn-run_", TEMPORARY[] = "cairn-run-errors_";

/* Returns the lock's descriptor, or -1 if the folder is another user's or in use. */
static int lock_folder(int parent, const char *name) {
    struct stat s;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    if (fstat(fd, &s) == 0 && s.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    close(fd);
    return -1;
}

/* False if other users can rename this user's files in the folder: removing by name could then remove a wrong file. */
static bool is_safe(int folder) {
    struct stat s;
    return fstat(folder, &s) == 0 && ((s.st_mode & S_ISVTX) || !(s.st_mode & (S_IWGRP | S_IWOTH)));
}

/* Removes folders left by runs whose cairn-run and keeper were killed together, as by `pkill -9 cairn-run`. */
static void remove_stale(const char *tmp) {
    DIR *d = opendir(tmp);
    bool safe = d && is_safe(dirfd(d));
    for (struct dirent *e; safe && (e = readdir(d));) {
        if (strncmp(e->d_name, TEMPORARY, strlen(TEMPORARY)) != 0) continue;
        int lock = lock_folder(dirfd(d), e->d_name);
        if (lock < 0) continue;
        char *path = format_text("%s/%s", tmp, e->d_name);
        remove_tree(path);
        free(path);
        close(lock);
    }
    if (d) closedir(d);
}

/* Makes the folder and locks it. Another cairn-run's remove_stale may remove it in between; then it tries again. */
static bool make_base(struct logs *logs, const char *tmp) {
    struct stat s;
    for (int trial = 0; trial < 10; trial++) {
        free(logs->base);
        logs->base = format_text("%s/%sXXXXXX", tmp, wants_files(logs->options) ? KEPT : TEMPORARY);
        if (!mkdtemp(logs->base)) return false;
        logs->base_lock = open(logs->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (logs->base_lock >= 0) flock(logs->base_lock, LOCK_EX);
        if (stat(logs->base, &s) == 0) return true;
        if (logs->base_lock >= 0) close(logs->base_lock);
        logs->base_lock = -1;
    }
    return false;
}

/* If the user requested no files, a job without a folder runs without error files. */
static bool open_own_folder(struct logs *logs) {
    const char *named = getenv("TMPDIR"), *tmp = named && *named ? named : "/tmp";
    remove_stale(tmp);
    if (make_base(logs, tmp)) {
        logs->run = make_run_folder(logs->base, logs->options->run_id);
        if (logs->run) return true;
        rmdir(logs->base);
    }
    bool needed = wants_files(logs->options);
    say("folder %s cannot be made: %s; %s", logs->base, strerror(errno),
        needed ? "name one with --log-dir" : "ranks' error files are not collected");
    free(logs->base);
    logs->base = NULL;
    return !needed;
}

static bool open_folder(struct logs *logs) {
    const char *folder = logs->options->log_dir;
    if (!folder) return open_own_folder(logs);
    if (strcmp(folder, "/dev/null") == 0) return true;
    if (make_folders(folder)) logs->run = make_run_folder(folder, logs->options->run_id);
    if (!logs->run) say("--log-dir %s: a folder cannot be made there: %s", folder, strerror(errno));
    return logs->run != NULL;
}

/* ---- an attempt's files ---- */

static char *make_prefix(const struct options *o, int rank, int first_rank) {
    char local[16], global[16], host[256] = "";
    gethostname(host, sizeof(host) - 1);
    snprintf(local, sizeof(local), "%d", rank);
    snprintf(global, sizeof(global), "%d", first_rank + rank);
    const struct substitution names[] = {
        {"role_name", o->role}, {"local_rank", local}, {"rank", global}, {"hostname", host}, {0}};
    return substitute(o->line_prefix, names);
}

/* Returns the descriptor, or -1 after a message. */
static int open_or_say(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0666);
    if (fd < 0) say("%s: %s%s", path, strerror(errno), errno == EMFILE ? "; raise `ulimit -n`" : "");
    return fd;
}

static bool add_tail(struct logs *logs, const char *path, int stream, char *prefix) {
    struct tail t = {.fd = open_or_say(path, O_RDONLY), .stream = stream, .prefix = prefix};
    logs->tails = must(realloc(logs->tails, (logs->n_tails + 1) * sizeof(*logs->tails)));
    logs->tails[logs->n_tails++] = t;
    return t.fd >= 0;
}

static bool open_file(struct logs *logs, const char *folder, int rank, int stream, int first_rank) {
    const struct options *o = logs->options;
    bool shown = o->tee[rank] & streams[stream].bit && o->shown[rank];
    char *path = format_text("%s/%s", folder, streams[stream].name);
    int fd = open_or_say(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND);
    bool fine = fd >= 0;
    if (fine && shown) fine = add_tail(logs, path, stream, make_prefix(o, rank, first_rank));
    if (!shown) logs->holds = true;
    logs->fds[rank][stream] = fd;
    free(path);
    return fine;
}

/* folder: NULL = no files; then redirected output is discarded and teed output is shown directly. */
static bool open_stream(struct logs *logs, const char *folder, int rank, int stream, int first_rank) {
    const struct options *o = logs->options;
    int bit = streams[stream].bit;
    bool teed = o->tee[rank] & bit, redirected = o->redirects[rank] & bit;
    if (folder && (teed || redirected)) return open_file(logs, folder, rank, stream, first_rank);
    if (o->shown[rank] && !(redirected && !teed)) return true;
    logs->fds[rank][stream] = open_or_say("/dev/null", O_WRONLY);
    return logs->fds[rank][stream] >= 0;
}

static bool open_rank(struct logs *logs, const char *attempt, int rank, int first_rank) {
    char *folder = attempt ? format_text("%s/%d", attempt, rank) : NULL;
    bool fine = !folder || mkdir(folder, 0777) == 0;
    if (!fine) say("%s: %s", folder, strerror(errno));
    logs->errors[rank] = folder ? format_text("%s/error.json", folder) : must(strdup(""));
    for (int s = 0; fine && s < STREAMS; s++) fine = open_stream(logs, folder, rank, s, first_rank);
    free(folder);
    return fine;
}

/* Shows the rest of the ranks' output first. */
static void close_attempt(struct logs *logs) {
    logs_pump(logs, true);
    for (size_t i = 0; i < logs->n_tails; i++) {
        if (logs->tails[i].fd >= 0) close(logs->tails[i].fd);
        free(logs->tails[i].prefix);
    }
    logs->n_tails = 0;
    for (int r = 0; r < logs->options->ranks; r++) {
        for (int s = 0; s < STREAMS; s++) {
            if (logs->fds[r][s] >= 0) close(logs->fds[r][s]);
            logs->fds[r][s] = -1;
        }
        free(logs->errors[r]);
        logs->errors[r] = NULL;
    }
}

/* ---- showing ---- */

static void add_bytes(struct console *c, const char *bytes, size_t n) {
    if (c->n + n > c->room) {
        c->room = 2 * (c->n + n);
        c->bytes = must(realloc(c->bytes, c->room));
    }
    memcpy(c->bytes + c->n, bytes, n);
    c->n += n;
}

static void add_line(struct console *c, const char *prefix, const char *line, size_t n) {
    add_bytes(c, prefix, strlen(prefix));
    add_bytes(c, line, n);
    add_bytes(c, "\n", 1);
}

/* Writes a console's pending output; true if none is left. */
static bool flush_console(struct console *c, int fd, double seconds) {
    while (!c->closed && c->done < c->n) {
        long written = write_some(fd, c->bytes + c->done, c->n - c->done, seconds);
        c->stuck = written == 0 && seconds > 0;
        c->closed = written < 0 || c->stuck;
        if (written <= 0) break;
        c->done += (size_t)written;
    }
    if (!c->closed && c->done < c->n) return false;
    c->n = c->done = 0;
    return true;
}

/* Adds the lines at bytes to the tail's console, with `last` also an unfinished one. "\r" ends a line too, as it
 * does for torch: progress bars. Returns how many bytes were taken. */
static size_t add_lines(struct tail *t, struct console *c, const char *bytes, size_t n, bool last) {
    size_t at = 0;
    while (at < n) {
        const char *line = bytes + at;
        size_t length = 0;
        while (at + length < n && line[length] != '\n' && line[length] != '\r') length++;
        bool ended = at + length < n, feed = ended && line[length] == '\n';
        if (!ended && !last) break;
        if (length > 0 || (feed && !t->after_return)) add_line(c, t->prefix, line, length);
        t->after_return = ended && !feed;
        at += length + ended;
    }
    return at;
}

/* Reads on in a tail; returns how many bytes it took. */
static size_t advance(struct logs *logs, struct tail *t, bool rest) {
    ssize_t n = pread(t->fd, logs->chunk, CHUNK, t->at);
    if (n <= 0) return 0;
    bool last = n == CHUNK ? !memchr(logs->chunk, '\n', CHUNK) && !memchr(logs->chunk, '\r', CHUNK) : rest;
    size_t taken = add_lines(t, &logs->consoles[t->stream], logs->chunk, (size_t)n, last);
    t->at += (off_t)taken;
    return taken;
}

/* Shows one chunk of every tail whose console has taken the previous one. */
static size_t pump_once(struct logs *logs, bool rest) {
    double seconds = rest ? patience : 0;
    size_t taken = 0;
    for (size_t i = 0; i < logs->n_tails; i++) {
        struct tail *t = &logs->tails[i];
        struct console *c = &logs->consoles[t->stream];
        if (!flush_console(c, streams[t->stream].console, seconds)) continue;
        if (!c->closed) taken += advance(logs, t, rest);
    }
    for (int s = 0; s < STREAMS; s++) flush_console(&logs->consoles[s], streams[s].console, seconds);
    return taken;
}

void logs_pump(struct logs *logs, bool rest) {
    size_t taken, total = 0;
    if (logs->n_tails == 0) return;
    do {
        taken = pump_once(logs, rest);
        total += taken;
    } while (taken > 0 && (rest || total < BUDGET));
    logs->more = taken > 0;
}

double logs_interval(const struct logs *logs) {
    if (logs->n_tails == 0) return never;
    return logs->more ? 0 : interval;
}

/* ---- interface ---- */

bool logs_open(const struct options *o, struct logs **out) {
    struct logs *logs = must(calloc(1, sizeof(*logs)));
    logs->options = o;
    logs->base_lock = -1;
    logs->errors = must(calloc((size_t)o->ranks, sizeof(*logs->errors)));
    logs->fds = must(calloc((size_t)o->ranks, sizeof(*logs->fds)));
    memset(logs->fds, -1, (size_t)o->ranks * sizeof(*logs->fds));
    *out = logs;
    if (open_folder(logs)) return true;
    logs_close(out);
    return false;
}

const char *logs_temporary(const struct logs *logs) {
    return wants_files(logs->options) ? NULL : logs->base;
}

bool logs_begin(struct logs *logs, int attempt, int first_rank) {
    close_attempt(logs);
    char *folder = logs->run ? format_text("%s/attempt_%d", logs->run, attempt) : NULL;
    if (folder) remove_tree(folder);
    bool fine = !folder || mkdir(folder, 0777) == 0;
    if (!fine) say("%s: %s", folder, strerror(errno));
    for (int r = 0; fine && r < logs->options->ranks; r++) fine = open_rank(logs, folder, r, first_rank);
    free(folder);
    return fine;
}

int logs_fd(const struct logs *logs, int local_rank, int stream) {
    return logs->fds[local_rank][stream == STREAM_ERR];
}

const char *logs_error_file(const struct logs *logs, int local_rank) {
    return logs->errors[local_rank] ? logs->errors[local_rank] : "";
}

bool logs_stay(const struct logs *logs) {
    return !logs->base || logs->holds;
}

static void close_folder(struct logs *logs) {
    for (int i = 0; i < STREAMS; i++) logs->holds |= logs->consoles[i].stuck;
    if (logs->base && logs->holds) say("the ranks' output is in %s", logs->run);
    if (!logs_stay(logs)) remove_tree(logs->base);
    if (logs->base_lock >= 0) close(logs->base_lock);
    free(logs->run);
    free(logs->base);
}

void logs_close(struct logs **logs) {
    struct logs *l = *logs;
    if (!l) return;
    close_attempt(l);
    close_folder(l);
    for (int s = 0; s < STREAMS; s++) free(l->consoles[s].bytes);
    free(l->tails);
    free(l->errors);
    free(l->fds);
    free(l);
    *logs = NULL;
}
