/* Progress lines. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cairn/progress.h"
#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "core/trace.h"

enum { LINE = 512, STDERR = 2 };

struct cairn_progress {
    char *title;
    int64_t total, before, done; /* before: done in an earlier run, or before the clock started */
    uint64_t began_ns, shown_ns, interval_ns;
    int fd;
    bool is_writer, is_terminal, was_shown;
};

/* Whether fd is a terminal on which a line can overwrite the previous one. `script`, `ssh -tt` and containers that log
 * to a file provide a terminal without a size, whose output is kept and would become a single line of megabytes. */
static bool overwrites_lines(int fd) {
    struct winsize w;
    return isatty(fd) && ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0;
}

cairn_status cairn_progress_create(cairn_env *env, int64_t total, const struct cairn_progress_options *options,
                                   cairn_progress **out) {
    struct cairn_progress_options o = *cairn_progress_options(.terminal = CAIRN_DEFAULT);
    cairn_progress *p = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(env && out, CAIRN_EINVAL, "cairn_progress_create: env and out must be set");
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_progress_options"));
    REQUIRE(total >= 0, CAIRN_EINVAL,
            "cairn_progress_create: total is %" PRId64 "; it must not be negative, and 0 if not known", total);
    REQUIRE(o.done >= 0 && (total == 0 || o.done <= total), CAIRN_EINVAL,
            "cairn_progress_options.done is %" PRId64 "; it must be from 0 to the total of %" PRId64 " steps", o.done,
            total);
    REQUIRE(o.interval >= 0 && isfinite(o.interval) && o.interval < 1e9, CAIRN_EINVAL,
            "cairn_progress_options.interval is %g; it must be from 0 to 1e9 seconds", o.interval);
    REQUIRE(o.fd >= 0, CAIRN_EINVAL, "cairn_progress_options.fd is %d; it must not be negative", o.fd);
    TRY(cairn__calloc(1, sizeof(*p), (void **)&p));
    *p = (cairn_progress){.total = total, .before = o.done, .done = o.done, .fd = o.fd ? o.fd : STDERR};
    if (o.title) TRY(cairn__strdup(o.title, &p->title));
    p->is_writer = cairn_env_rank(env) == 0;
    p->is_terminal = o.terminal == CAIRN_DEFAULT ? p->is_writer && overwrites_lines(p->fd) : o.terminal == CAIRN_ON;
    p->interval_ns = (uint64_t)((o.interval > 0 ? o.interval : p->is_terminal ? 0.1 : 10) * 1e9);
    cairn_progress_start(p);
    *out = p;
    return CAIRN_OK;
out:
    cairn_progress_destroy(&p);
    return st;
}

void cairn_progress_start(cairn_progress *progress) {
    if (!progress) return;
    progress->before = progress->done;
    progress->began_ns = progress->shown_ns = cairn__now_ns();
}

int cairn_progress_step(cairn_progress *progress) {
    if (!progress) return 0;
    progress->done++;
    if (!progress->is_writer) return 0;
    return progress->done == progress->total || cairn__now_ns() - progress->shown_ns >= progress->interval_ns;
}

/* ---- a line ---- */

struct line {
    char text[LINE];
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void put(struct line *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(l->text + l->used, sizeof(l->text) - l->used, format, args);
    va_end(args);
    l->used = n < 0 ? l->used : l->used + (size_t)n < sizeof(l->text) ? l->used + (size_t)n : sizeof(l->text) - 1;
}

/* "0:07", "1:02:03", "2 days 03:04:05" */
static void put_time(struct line *l, double seconds) {
    if (!(seconds < 1e9)) return;
    const int64_t s = (int64_t)(seconds + 0.5), days = s / 86400, hours = s / 3600 % 24;
    if (days > 0) put(l, "%" PRId64 " day%s ", days, days == 1 ? "" : "s");
    if (days > 0) put(l, "%02d:", (int)hours);
    if (days == 0 && hours > 0) put(l, "%d:", (int)hours);
    put(l, days > 0 || hours > 0 ? "%02d:%02d" : "%d:%02d", (int)(s / 60 % 60), (int)(s % 60));
}

static void put_steps(struct line *l, const cairn_progress *p, uint64_t now) {
    const double seconds = (double)(now - p->began_ns) * 1e-9, steps = (double)(p->done - p->before);
    const double rate = seconds > 0 ? steps / seconds : 0;
    if (p->title) put(l, "%s ", p->title);
    if (p->total > 0) put(l, "%3d%% ", (int)((double)p->done * 100 / (double)p->total));
    put(l, "%" PRId64, p->done);
    if (p->total > 0) put(l, "/%" PRId64, p->total);
    if (!(rate > 0)) return;
    if (rate >= 1) put(l, ", %.*f steps/s", rate < 100 ? 1 : 0, rate);
    if (rate < 1) put(l, ", %.1f s/step", 1 / rate);
    if (p->total <= 0) return;
    put(l, ", ");
    put_time(l, p->done < p->total ? (double)(p->total - p->done) / rate : seconds);
    put(l, p->done < p->total ? " left" : " in all");
}

static void put_values(struct line *l, const struct cairn_progress_values *v) {
    if (v->loss != 0 || v->has_loss) put(l, ", loss %.4g", v->loss);
    if (v->lr != 0) put(l, ", lr %.3g", v->lr);
    if (v->scale != 0) put(l, ", scale %.6g", v->scale);
    if (v->skipped != 0) put(l, ", %" PRId64 " skipped", v->skipped);
    if (v->more) put(l, ", %s", v->more);
}

/* A closed pipe must not end a training: consumes SIGPIPE, unless it was pending before. */
static void write_all(int fd, const char *text, size_t n) {
    sigset_t pipe_only, before, pending;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    ssize_t got = 0;
    while (n > 0 && ((got = write(fd, text, n)) > 0 || (got < 0 && errno == EINTR))) {
        if (got < 0) continue;
        text += got;
        n -= (size_t)got;
    }
    if (got < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
        (void)sigtimedwait(&pipe_only, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void cairn_progress_show(cairn_progress *progress, const struct cairn_progress_values *values) {
    struct cairn_progress_values v = *cairn_progress_values(.loss = 0);
    if (!progress || !progress->is_writer) return;
    if (cairn__options_read(&v, sizeof(v), values, "cairn_progress_values") != CAIRN_OK)
        v = *cairn_progress_values(.loss = 0);
    struct line line = {.used = 0}, whole = {.used = 0};
    struct winsize w;
    progress->shown_ns = cairn__now_ns();
    put_steps(&line, progress, progress->shown_ns);
    put_values(&line, &v);
    /* A line wider than the terminal could not be overwritten. */
    if (progress->is_terminal && ioctl(progress->fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 1 && line.used >= w.ws_col)
        line.used = w.ws_col - 1;
    put(&whole, progress->is_terminal ? "\r%.*s\033[K" : "%.*s\n", (int)(line.used < LINE - 8 ? line.used : LINE - 8),
        line.text);
    write_all(progress->fd, whole.text, whole.used);
    progress->was_shown = true;
    if (v.loss != 0 || v.has_loss) cairn__trace_scalar("observe", "loss", progress->done, v.loss);
}

void cairn_progress_destroy(cairn_progress **progress) {
    if (!progress || !*progress) return;
    if ((*progress)->is_terminal && (*progress)->was_shown) write_all((*progress)->fd, "\n", 1);
    cairn__free((*progress)->title);
    cairn__free(*progress);
    *progress = NULL;
}
