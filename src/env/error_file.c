/* The error file. A process writes it once: the first of exit() and signals takes `state` and keeps it. From then on
 * all code is async-signal-safe: the path is formed and backtrace(3) loads its library at installation, text goes
 * through a small buffer to write(2), and the complete file is renamed into place.
 *
 * The text is plain ASCII, because torch's agent fails on a file that it cannot decode or parse. */
#include "env/error_file.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/log.h"
#include "core/status.h"
#include "core/trace.h"
#include "core/utf8.h"
#include "core/vars.h"

enum { STACK_NBYTES = 64 << 10, MAX_FRAMES = 64 };

enum { FREE, WRITING, DONE };

static struct {
    atomic_int state;
    atomic_bool handles_exit;
    atomic_int process; /* 0 = nothing is installed; written last */
    pid_t thread;
    const char *last_error;         /* the thread's own; a handler must not be the first to access a thread_local */
    struct cairn__error_note *note; /* NULL: the failure is written to path */
    char path[PATH_MAX], temporary[PATH_MAX];
} record;

static char stack[STACK_NBYTES]; /* signal stack, for a stack that has overflowed */

/* ---- text ---- */

struct text {
    int fd;
    char *memory; /* used if there is no fd: filled up to its last byte, which stays NUL */
    size_t memory_left;
    bool json, failed;
    size_t used;
    char room[512];
};

static void flush(struct text *t) {
    if (t->memory) {
        const size_t n = t->used < t->memory_left ? t->used : t->memory_left;
        memcpy(t->memory, t->room, n);
        t->memory += n;
        t->memory_left -= n;
    }
    for (size_t done = 0; !t->memory && done < t->used && !t->failed;) {
        const ssize_t n = write(t->fd, t->room + done, t->used - done);
        if (n < 0 && errno == EINTR) continue;
        t->failed = n < 0;
        if (n > 0) done += (size_t)n;
    }
    t->used = 0;
}

static void put_bytes(struct text *t, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (t->used == sizeof(t->room)) flush(t);
        t->room[t->used++] = bytes[i];
    }
}

static void put_raw(struct text *t, const char *s) {
    put_bytes(t, s, strlen(s));
}

static void put_number(struct text *t, uint64_t n, unsigned base) {
    char digits[24];
    size_t at = sizeof(digits);
    do {
        digits[--at] = "0123456789abcdef"[n % base];
        n /= base;
    } while (n);
    put_bytes(t, digits + at, sizeof(digits) - at);
}

static void put_unit(struct text *t, uint32_t unit) {
    put_raw(t, "\\u");
    for (int shift = 12; shift >= 0; shift -= 4) put_bytes(t, &"0123456789abcdef"[unit >> shift & 15], 1);
}

static void put_escaped(struct text *t, uint32_t c) {
    const char byte = (char)c;
    if (c == '"' || c == '\\') {
        put_raw(t, "\\");
        put_bytes(t, &byte, 1);
    } else if (c >= 0x20 && c < 0x7f) {
        put_bytes(t, &byte, 1);
    } else if (c < 0x10000) {
        put_unit(t, c);
    } else {
        put_unit(t, 0xd800 + ((c - 0x10000) >> 10));
        put_unit(t, 0xdc00 + ((c - 0x10000) & 0x3ff));
    }
}

/* Writes a string, escaped if the text is JSON. */
static void put(struct text *t, const char *s) {
    if (!t->json) {
        put_raw(t, s);
        return;
    }
    for (size_t length; *s; s += length) put_escaped(t, cairn__utf8_decode(s, &length));
}

/* ---- the message ---- */

struct failure {
    int status, signal;      /* one of them is 0 */
    const char *kind, *what; /* "EINVAL" and the last error; "" if there was none */
    const void *address;     /* of a fault; else NULL */
    bool is_consequence;     /* the failure follows from another rank's end */
};

static void put_code(struct text *t, const struct failure *f) {
    put(t, "exit code ");
    put_number(t, (uint64_t)f->status, 10);
}

static void put_last_error(struct text *t, const struct failure *f) {
    put(t, "CAIRN_");
    put(t, f->kind);
    put(t, ": ");
    put(t, f->what);
}

/* Writes the failure in one line. */
static void put_message(struct text *t, const struct failure *f) {
    if (f->signal) {
        const char *name = sigabbrev_np(f->signal), *meaning = sigdescr_np(f->signal);
        put(t, "SIG");
        put(t, name ? name : "?");
        put(t, ": ");
        put(t, meaning ? meaning : "?");
        if (f->address) {
            put(t, " at address 0x");
            put_number(t, (uintptr_t)f->address, 16);
        }
    } else if (f->what[0]) {
        put_last_error(t, f);
    } else {
        put_code(t, f);
        put(t, ", and no call of Cairn had failed");
    }
}

static void put_backtrace(struct text *t) {
    void *frames[MAX_FRAMES];
    const int n = backtrace(frames, MAX_FRAMES);
    put(t, "\nBacktrace:");
    for (int i = 0; i < n; i++) {
        Dl_info at;
        put(t, "\n  ");
        if (dladdr(frames[i], &at) == 0 || !at.dli_fname) at = (Dl_info){.dli_fname = "?"};
        put(t, at.dli_fname);
        put(t, "(");
        if (at.dli_sname) put(t, at.dli_sname);
        put(t, "+0x");
        put_number(t, (uintptr_t)frames[i] - (uintptr_t)(at.dli_sname ? at.dli_saddr : at.dli_fbase), 16);
        put(t, ")");
    }
}

/* Writes what the launcher shows in place of a call stack. */
static void put_details(struct text *t, const struct failure *f) {
    put_message(t, f);
    if (!f->signal && f->what[0]) {
        put(t, "\n(");
        put_code(t, f);
        put(t, ")");
    }
    if (f->signal && f->what[0]) {
        put(t, "\nCairn's last error before: ");
        put_last_error(t, f);
    }
    if (f->signal) put_backtrace(t);
}

/* torch's agent finds the first failure by timestamps in whole seconds. The timestamp of a failure that is a
 * consequence of another rank's is rounded up, so that the other failure is first within the same second, too. */
static void put_json(struct text *t, const struct failure *f) {
    put_raw(t, "{\"message\": {\"message\": \"");
    put_message(t, f);
    put_raw(t, "\", \"extraInfo\": {\"py_callstack\": \"");
    put_details(t, f);
    put_raw(t, "\", \"timestamp\": \"");
    put_number(t, (uint64_t)time(NULL) + f->is_consequence, 10);
    put_raw(t, "\"}}}\n");
}

/* ---- writing ---- */

/* Keeps a file that the program wrote itself. Returns false with errno on failure. */
static bool move_into_place(void) {
    if (renameat2(AT_FDCWD, record.temporary, AT_FDCWD, record.path, RENAME_NOREPLACE) == 0 || errno == EEXIST) {
        (void)unlink(record.temporary);
        return true;
    }
    if (errno != EINVAL && errno != ENOSYS) return false;
    if (faccessat(AT_FDCWD, record.path, F_OK, 0) == 0) return unlink(record.temporary) == 0; /* NFS and others */
    return rename(record.temporary, record.path) == 0;
}

static bool write_file(const struct failure *f) {
    struct text t = {.json = true};
    (void)unlink(record.temporary); /* left by a killed process with this number, or placed by another user */
    t.fd = open(record.temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (t.fd < 0) return false;
    put_json(&t, f);
    flush(&t);
    const int reason = errno;
    (void)close(t.fd);
    if (!t.failed && move_into_place()) return true;
    const int reason_of_move = errno;
    (void)unlink(record.temporary);
    errno = t.failed ? reason : reason_of_move;
    return false;
}

/* Writes to the parent's memory, or to the file. */
static bool write_failure(const struct failure *f) {
    struct cairn__error_note *note = record.note;
    if (!note) return write_file(f);
    struct text t = {.memory = note->text, .memory_left = sizeof(note->text) - 1};
    note->at = 1e-9 * (double)cairn__now_ns();
    note->is_consequence = f->is_consequence;
    if (!f->signal && f->what[0]) {
        put_code(&t, f);
        put(&t, ": ");
    }
    put_message(&t, f);
    flush(&t);
    return true;
}

static bool is_mine(void) {
    return atomic_load(&record.process) == getpid();
}

static bool take(void) {
    int is_free = FREE;
    return is_mine() && atomic_compare_exchange_strong(&record.state, &is_free, WRITING);
}

void cairn__error_file_write(int status) {
    if (status == 0 || !take()) return;
    const cairn_status last = cairn__last_status();
    const struct failure f = {.status = status & 0xff,
                              .kind = cairn_status_name(last),
                              .what = cairn_last_error(),
                              .is_consequence = last == CAIRN_EPEER};
    if (!write_failure(&f)) {
        cairn__log(CAIRN_LOG_WARNING, "the error file '%s' (TORCHELASTIC_ERROR_FILE) could not be written: %s",
                   record.path, strerror(errno));
    }
    atomic_store(&record.state, DONE);
}

static void at_exit(int status, void *unused) {
    (void)unused;
    cairn__error_file_write(status);
}

/* ---- signals ---- */

/* If two threads fault at once, the second would end the process while the first still writes; so it waits. */
static void wait_for_writer(void) {
    const struct timespec moment = {.tv_nsec = 10 * 1000 * 1000};
    for (int i = 0; i < 200 && is_mine() && atomic_load(&record.state) == WRITING; i++) (void)nanosleep(&moment, NULL);
}

/* Restores the default action, which follows when this returns. */
static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)context;
    static const char nothing[] = "";
    if (take()) {
        const bool of_hardware = info->si_code > 0 && signal != SIGABRT;
        const bool known = record.thread == gettid();
        const struct failure f = {.signal = signal,
                                  .kind = known ? cairn_status_name(cairn__last_status()) : nothing,
                                  .what = known ? record.last_error : nothing,
                                  .address = of_hardware ? info->si_addr : NULL};
        (void)write_failure(&f);
        atomic_store(&record.state, DONE);
    } else {
        wait_for_writer();
    }
    struct sigaction usual = {.sa_handler = SIG_DFL};
    (void)sigaction(signal, &usual, NULL);
    (void)raise(signal); /* a signal that was sent does not recur by itself */
}

static void handle_signals(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    struct sigaction now, ours = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    void *frame;
    stack_t stack_now;
    (void)backtrace(&frame, 1); /* loads libgcc_s */
    if (sigaltstack(NULL, &stack_now) == 0 && (stack_now.ss_flags & SS_DISABLE)) {
        (void)sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof(stack)}, NULL);
    }
    sigemptyset(&ours.sa_mask);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            (void)sigaction(signals[i], &ours, NULL);
    }
}

/* ---- installing ---- */

/* A relative path is relative to the working folder at installation. The temporary file has a short name of its own,
 * because the file's name may have the maximum length. */
static bool set_path(const char *path) {
    char folder[PATH_MAX] = "";
    if (path[0] != '/' && !getcwd(folder, sizeof(folder))) return false;
    const int n = snprintf(record.path, sizeof(record.path), "%s%s%s", folder, folder[0] ? "/" : "", path);
    if (n < 0 || (size_t)n >= sizeof(record.path)) return false;
    const int until_name = (int)(strrchr(record.path, '/') + 1 - record.path);
    const int m = snprintf(record.temporary, sizeof(record.temporary), "%.*s.cairn-error-%d", until_name, record.path,
                           (int)getpid());
    return m > 0 && (size_t)m < sizeof(record.temporary);
}

static void install(struct cairn__error_note *note) {
    record.note = note;
    record.thread = gettid();
    record.last_error = cairn_last_error();
    atomic_store(&record.state, FREE);
    atomic_store(&record.process, getpid());
    if (!atomic_exchange(&record.handles_exit, true)) (void)on_exit(at_exit, NULL);
    handle_signals();
}

void cairn__error_file_install(cairn_switch wanted) {
    static atomic_flag busy = ATOMIC_FLAG_INIT; /* ranks may be threads; the first installs */
    const char *path = cairn__var("TORCHELASTIC_ERROR_FILE");
    if (wanted == CAIRN_OFF || !path || is_mine() || atomic_flag_test_and_set(&busy)) return;
    if (set_path(path)) {
        install(NULL);
    } else {
        cairn__log(CAIRN_LOG_WARNING, "TORCHELASTIC_ERROR_FILE='%.100s...' is no path that can be written to", path);
    }
    atomic_flag_clear(&busy);
}

void cairn__error_file_install_note(struct cairn__error_note *note) {
    install(note);
}
