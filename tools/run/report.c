/* Source: pytorch torch/distributed/elastic/multiprocessing/errors/__init__.py and error_handler.py (1.13 to 2.x):
 * the form of the block, what it takes from an error file, and how that file is passed on. An error file is
 * {"message": {"message": text, "extraInfo": {"py_callstack": text, "timestamp": "seconds"}}}, or {"message": text,
 * "timestamp": seconds}. An unreadable one counts as none. */
#include "report.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "place.h"
#include "text.h"

enum { WIDEST_BORDER = 60, LARGEST_FILE = 16 << 20 };

/* One rank's failure in the block. */
struct failure {
    int local_rank;
    const struct rank *rank;
    json_t *file; /* NULL = none */
    bool is_consequence;
    double time; /* whole seconds since 1970 */
    char *text;  /* its text in the block, without its number */
};

/* ---- error files ---- */

static double whole_seconds(double time) {
    return (double)(long long)time;
}

static json_t *read_error_file(const char *path) {
    struct stat facts;
    if (!path[0] || stat(path, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size > LARGEST_FILE) return NULL;
    json_t *file = json_load_file(path, JSON_ALLOW_NUL, NULL);
    json_t *message = json_object_get(file, "message");
    if (json_is_object(message) || json_is_string(message)) return file;
    json_decref(file);
    return NULL;
}

/* 0 if the file has no time. */
static double file_time(const json_t *file) {
    const json_t *message = json_object_get(file, "message");
    const json_t *time = json_is_string(message) ? json_object_get(file, "timestamp")
                                                 : json_object_get(json_object_get(message, "extraInfo"), "timestamp");
    double seconds = json_is_string(time) ? strtod(json_string_value(time), NULL) : json_number_value(time);
    return seconds > 0 && seconds < 1e11 ? whole_seconds(seconds) : 0;
}

/* The error text of a file; NULL = none. */
static const char *file_text(const json_t *file) {
    json_t *message = json_object_get(file, "message");
    if (json_is_string(message)) return json_string_value(message);
    const char *stack = json_string_value(json_object_get(json_object_get(message, "extraInfo"), "py_callstack"));
    return stack ? stack : json_string_value(json_object_get(message, "message"));
}

/* Whether the rank failed because another rank ended: Cairn's message then begins with CAIRN_EPEER. */
static bool is_consequence(const json_t *file) {
    const char *text = json_string_value(json_object_get(json_object_get(file, "message"), "message"));
    return text && strncmp(text, "CAIRN_EPEER:", strlen("CAIRN_EPEER:")) == 0;
}

/* ---- which ranks failed, and which first ---- */

/* A rank that ended after the stop counts as failed by itself only if it wrote its error before the stop. */
static bool counts(const struct failure *f, double stopped) {
    if (!f->rank->pid || f->rank->running || !rank_failed(f->rank->status)) return false;
    return !f->rank->ended_by_us || (f->file && f->time > 0 && f->time <= stopped);
}

static double stop_time(const struct ranks *ranks) {
    return ranks->first_failed < 0 ? 0 : whole_seconds(ranks->list[ranks->first_failed].ended);
}

/* Fills failures [ranks]; returns how many. Free them with free_failures. */
static int find_failures(const struct account *a, struct failure failures[]) {
    int n = 0;
    for (int r = 0; r < a->options->ranks; r++) {
        struct failure f = {.local_rank = r, .rank = &a->ranks->list[r]};
        f.file = f.rank->pid ? read_error_file(logs_error_file(a->logs, r)) : NULL;
        f.time = f.file ? file_time(f.file) : 0;
        f.is_consequence = f.file && is_consequence(f.file);
        bool counted = counts(&f, stop_time(a->ranks));
        if (f.time <= 0) f.time = whole_seconds(f.rank->ended);
        if (counted) failures[n++] = f;
        else json_decref(f.file);
    }
    return n;
}

static void free_failures(struct failure *failures, int n) {
    for (int i = 0; i < n; i++) {
        json_decref(failures[i].file);
        free(failures[i].text);
    }
    free(failures);
}

static struct failure *new_failures(const struct account *a) {
    return must(calloc((size_t)a->options->ranks, sizeof(struct failure)));
}

/* Error files have whole seconds; within one, the order in which ends were noticed decides. */
static bool is_earlier(const struct failure *f, const struct failure *g) {
    if (f->is_consequence != g->is_consequence) return g->is_consequence;
    return f->time < g->time || (f->time == g->time && f->rank->order < g->rank->order);
}

static int find_root_cause(const struct account *a, bool *is_cause) {
    struct failure *failures = new_failures(a);
    int n = find_failures(a, failures), root = 0;
    for (int i = 1; i < n; i++) {
        if (is_earlier(&failures[i], &failures[root])) root = i;
    }
    int local_rank = n > 0 ? failures[root].local_rank : -1;
    *is_cause = n == 0 || !failures[root].is_consequence;
    free_failures(failures, n);
    return local_rank;
}

int report_root_cause(const struct account *a) {
    bool is_cause;
    return find_root_cause(a, &is_cause);
}

bool report_lacks_cause(const struct account *a) {
    bool is_cause;
    return find_root_cause(a, &is_cause) >= 0 && !is_cause;
}

/* ---- sentences ---- */

static char *signal_name(int signal) {
    const char *abbreviation = sigabbrev_np(signal);
    return abbreviation ? format_text("SIG%s", abbreviation) : format_text("real-time signal");
}

static char *describe_end(int status) {
    if (!WIFSIGNALED(status)) return format_text("exit code %d", WEXITSTATUS(status));
    char *name = signal_name(WTERMSIG(status));
    char *text = format_text("killed by signal %d (%s)", WTERMSIG(status), name);
    free(name);
    return text;
}

static char *describe_rank(const struct account *a, int local_rank) {
    return format_text("rank %d (local_rank %d, pid %d) of %s", a->world->first_rank + local_rank, local_rank,
                       (int)a->ranks->list[local_rank].pid, a->options->program[0]);
}

static char *sentence(const struct account *a, int local_rank, const char *verb) {
    char *who = describe_rank(a, local_rank), *end = describe_end(a->ranks->list[local_rank].status);
    char *text = format_text("%s%s: %s", who, verb, end);
    free(who);
    free(end);
    return text;
}

char *report_sentence(const struct account *a, int local_rank) {
    return sentence(a, local_rank, "");
}

static void say_end(const struct account *a, int local_rank, const char *verb) {
    char *text = sentence(a, local_rank, verb);
    say("%s", text);
    free(text);
}

static void say_suspended(const struct account *a, int local_rank, int root_cause) {
    const struct rank *rank = &a->ranks->list[local_rank];
    char *who = describe_rank(a, local_rank), *name = signal_name(rank->suspended_by);
    say("%s was stopped (%s) when rank %d failed", who, name, a->world->first_rank + root_cause);
    free(who);
    free(name);
}

void report_ranks(const struct account *a, int root_cause, bool elsewhere) {
    if (root_cause >= 0) say_end(a, root_cause, elsewhere ? " failed too" : " failed first");
    for (int r = 0; r < a->options->ranks; r++) {
        const struct rank *rank = &a->ranks->list[r];
        if (r == root_cause || !rank->pid) continue;
        if (rank->was_suspended) say_suspended(a, r, root_cause);
        say_end(a, r, rank->ended_by_us || !rank_failed(rank->status) ? " ended" : " failed too");
    }
}

/* ---- the block ---- */

static char *without_file_text(const struct rank *rank) {
    if (!WIFSIGNALED(rank->status)) {
        return format_text("To enable traceback write JSON to $TORCHELASTIC_ERROR_FILE, as programs that call "
                           "cairn_env_create() do; see docs/launching.md");
    }
    char *name = signal_name(WTERMSIG(rank->status));
    char *text = format_text("Signal %d (%s) received by PID %d", WTERMSIG(rank->status), name, (int)rank->pid);
    free(name);
    return text;
}

/* Every line after the first is indented by two. */
static char *indented(const char *text) {
    char *out = NULL;
    size_t nbytes = 0;
    FILE *stream = must(open_memstream(&out, &nbytes));
    for (; *text; text++) fputs(*text == '\n' ? "\n  " : (char[]){*text, '\0'}, stream);
    if (fclose(stream) != 0) must(NULL);
    return out;
}

static char *traceback(const struct failure *f) {
    const char *told = f->file ? file_text(f->file) : NULL;
    if (!f->file || (told && !*told)) return without_file_text(f->rank);
    return indented(told ? told : "<N/A>");
}

static void format_failure(const struct account *a, struct failure *f) {
    char date[64] = "?";
    time_t time = (time_t)f->time;
    struct tm parts;
    if (localtime_r(&time, &parts)) strftime(date, sizeof(date), "%Y-%m-%d_%H:%M:%S", &parts);
    int status = f->rank->status;
    char *trace = traceback(f);
    const char *path = f->file ? logs_error_file(a->logs, f->local_rank) : "<N/A>";
    f->text = format_text("  time      : %s\n  host      : %s\n  rank      : %d (local_rank: %d)\n"
                          "  exitcode  : %d (pid: %d)\n  error_file: %s%s\n  traceback : %s",
                          date, place_name(), a->world->first_rank + f->local_rank, f->local_rank,
                          WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status), (int)f->rank->pid, path,
                          f->file && !logs_stay(a->logs) ? " (removed; --log-dir keeps it)" : "", trace);
    free(trace);
}

static size_t longest_line(const char *text) {
    size_t longest = 0;
    for (; *text; text += strcspn(text, "\n") + (text[strcspn(text, "\n")] != '\0')) {
        if (strcspn(text, "\n") > longest) longest = strcspn(text, "\n");
    }
    return longest;
}

static int border_width(const struct account *a, const struct failure failures[], int n) {
    size_t width = strlen(a->options->program[0]) + strlen(" FAILED");
    for (int i = 0; i < n; i++) {
        size_t line = longest_line(failures[i].text);
        if (line > width) width = line;
    }
    return width < WIDEST_BORDER ? (int)width : WIDEST_BORDER;
}

static void print_border(FILE *stream, char c, int width) {
    for (int i = 0; i < width; i++) fputc(c, stream);
    fputc('\n', stream);
}

static void print_others(FILE *stream, const struct failure failures[], int n, int root_cause) {
    if (n < 2) fputs("  <NO_OTHER_FAILURES>\n", stream);
    for (int i = 0; i < n; i++) {
        if (failures[i].local_rank != root_cause) fprintf(stream, "[%d]:\n%s\n", i, failures[i].text);
    }
}

static void print_root_cause(FILE *stream, const struct failure failures[], int n, int root_cause) {
    for (int i = 0; i < n; i++) {
        if (failures[i].local_rank == root_cause) fprintf(stream, "[%d]:\n%s\n", i, failures[i].text);
    }
}

static char *format_block(const struct account *a, const struct failure failures[], int n, int root_cause) {
    char *out = NULL;
    size_t nbytes = 0;
    FILE *stream = must(open_memstream(&out, &nbytes));
    int width = border_width(a, failures, n);
    fputs("cairn-run: report of failed ranks, the first at the end:\n", stream);
    print_border(stream, '=', width);
    fprintf(stream, "%s FAILED\n", a->options->program[0]);
    print_border(stream, '-', width);
    fputs("Failures:\n", stream);
    print_others(stream, failures, n, root_cause);
    print_border(stream, '-', width);
    fputs("Root Cause (first observed failure):\n", stream);
    print_root_cause(stream, failures, n, root_cause);
    print_border(stream, '=', width);
    if (fclose(stream) != 0) must(NULL);
    return out;
}

/* ---- cairn-run's own error file ---- */

static void pass_on(const struct failure *f) {
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    if (!path || !path[0] || !f->file) return;
    json_t *message = json_object_get(f->file, "message");
    int status = f->rank->status;
    int code = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    if (json_is_object(message)) json_object_set_new(message, "errorCode", json_integer(code));
    char *temporary = format_text("%s.%ld", path, (long)f->rank->pid);
    if (json_dump_file(f->file, temporary, 0) != 0 || rename(temporary, path) != 0) {
        say("%s, where the first failure's error file should go, cannot be written", path);
        remove(temporary);
    }
    free(temporary);
}

void report_failure(const struct account *a, int root_cause) {
    struct failure *failures = new_failures(a);
    int n = find_failures(a, failures);
    for (int i = 0; i < n; i++) format_failure(a, &failures[i]);
    char *block = format_block(a, failures, n, root_cause);
    say_text(block);
    for (int i = 0; i < n; i++) {
        if (failures[i].local_rank == root_cause) pass_on(&failures[i]);
    }
    free(block);
    free_failures(failures, n);
}
