#include "run.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../common/say.h"
#include "core/clock.h"
#include "core/nearest.h"
#include "core/status.h"

const struct lab_option *run_options(const struct lab_experiment *e, size_t *count) {
    *count = 0;
    while (e->options && e->options[*count].name) ++*count;
    return e->options;
}

/* ---- values ---- */

/* Reads "0.5" or "64K"; false if the text is not a number. */
static bool read_number(const char *text, double *number) {
    static const char units[] = "KMG";
    char *end = NULL;
    *number = strtod(text, &end);
    if (end == text || text[strspn(text, "0123456789.e+-KMG")] != '\0') return false;
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (unit) *number = ldexp(*number, 10 * (int)(unit - units + 1)), end++;
    return *end == '\0';
}

static bool has_word(const char *words, const char *word) {
    const size_t n = strlen(word);
    for (const char *w = words; n > 0 && (w = strstr(w, word)); w++) {
        if ((w == words || w[-1] == ' ') && (w[n] == ' ' || w[n] == '\0')) return true;
    }
    return false;
}

static bool set_text(const struct lab_option *o, const char *text, char out[64]) {
    if (o->choices && !has_word(o->choices, text))
        return refuse("--%s takes one of %s, not '%s'", o->name, o->choices, text);
    if (strlen(text) >= 64) return refuse("--%s takes at most 63 letters, not '%s'", o->name, text);
    memcpy(out, text, strlen(text) + 1);
    return true;
}

static bool set_number(const struct lab_option *o, const char *text, char out[64]) {
    double number;
    const bool is_whole = o->kind == LAB_WHOLE;
    if (!read_number(text, &number) || !(number >= o->least && number <= o->most) ||
        (is_whole && floor(number) != number))
        return refuse("--%s takes a %snumber from %.15g to %.15g, not '%s'", o->name, is_whole ? "whole " : "",
                      o->least, o->most, text);
    number_text(number, out);
    return true;
}

static bool set_seed(struct lab_run *run, const char *text) {
    char *end = NULL;
    errno = 0;
    run->seed = strtoull(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0) return true;
    return refuse("--seed takes a whole number from 0 to 2^64 - 1, not '%s'", text);
}

static bool set_value(struct lab_run *run, size_t i, const char *text) {
    const struct lab_option *o = &run->experiment->options[i];
    return (o->kind == LAB_TEXT ? set_text : set_number)(o, text, run->values[i]);
}

bool run_set(struct lab_run *run, const char *option, const char *value) {
    struct cairn__nearest nearest = {.written = option};
    size_t count;
    const struct lab_option *options = run_options(run->experiment, &count);
    if (strcmp(option, "seed") == 0) return set_seed(run, value);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(options[i].name, option) == 0) return set_value(run, i, value);
        cairn__nearest_try(&nearest, options[i].name);
    }
    cairn__nearest_try(&nearest, "seed");
    cairn__nearest_try(&nearest, "again");
    cairn__nearest_try(&nearest, "out");
    if (nearest.name)
        return refuse("%s has no option --%s; did you mean --%s?", run->experiment->name, option, nearest.name);
    return refuse("%s has no option --%s; cairn-lab list %s shows those it has", run->experiment->name, option,
                  run->experiment->name);
}

void run_init(struct lab_run *run, const struct lab_experiment *experiment) {
    size_t count;
    const struct lab_option *options = run_options(experiment, &count);
    *run = (struct lab_run){.experiment = experiment, .seed = 1};
    bool is_good = count <= LAB_MAX_OPTIONS;
    for (size_t i = 0; i < count && is_good; i++) is_good = set_value(run, i, options[i].usual);
    if (is_good) return;
    refuse("experiment %s has options whose usual values it does not take, or more than %d", experiment->name,
           LAB_MAX_OPTIONS);
    abort();
}

/* ---- what an experiment calls ---- */

static const char *value_of(const struct lab_run *run, const char *option, enum lab_kind kind) {
    size_t count;
    const struct lab_option *options = run_options(run->experiment, &count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(options[i].name, option) == 0 && options[i].kind == kind) return run->values[i];
    }
    refuse("experiment %s asks for its option '%s', which it does not list as one of that kind", run->experiment->name,
           option);
    abort();
}

const char *lab_text(const struct lab_run *run, const char *option) {
    return value_of(run, option, LAB_TEXT);
}

int64_t lab_whole(const struct lab_run *run, const char *option) {
    return (int64_t)strtod(value_of(run, option, LAB_WHOLE), NULL);
}

double lab_number(const struct lab_run *run, const char *option) {
    return strtod(value_of(run, option, LAB_NUMBER), NULL);
}

uint64_t lab_seed(const struct lab_run *run) {
    return run->seed;
}

struct lab_table *lab_table(struct lab_run *run, const char *name, const char *title, const struct lab_column *columns,
                            size_t count) {
    return result_add_table(&run->result, name, title, columns, count);
}

void lab_picture(struct lab_run *run, const struct lab_picture *picture) {
    result_add_picture(&run->result, picture);
}

/* Formats a sentence and adds it as a finding. */
static void add_sentence(struct lab_run *run, enum lab_verdict verdict, const char *format, va_list args) {
    char *text = NULL;
    if (vasprintf(&text, format, args) < 0) must(NULL);
    result_add_finding(&run->result, verdict, text);
    free(text);
}

void lab_finding(struct lab_run *run, const char *format, ...) {
    va_list args;
    va_start(args, format);
    add_sentence(run, LAB_SAYS, format, args);
    va_end(args);
}

void lab_check(struct lab_run *run, bool holds, const char *format, ...) {
    va_list args;
    va_start(args, format);
    add_sentence(run, holds ? LAB_HOLDS : LAB_FAILS, format, args);
    va_end(args);
}

void lab_progress(struct lab_run *run, double part, const char *format, ...) {
    const double now = cairn__clock_seconds();
    const bool is_terminal = isatty(STDERR_FILENO);
    va_list args;
    if (now - run->shown < (is_terminal ? 0.5 : 5)) return;
    run->shown = now;
    run->is_shown = is_terminal;
    fprintf(stderr, "%s%s: %3.0f %%, ", is_terminal ? "\r\033[K" : "", run->experiment->name, 100 * part);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    if (!is_terminal) fputc('\n', stderr);
}

/* ---- the run ---- */

cairn_status run_start(struct lab_run *run) {
    const struct lab_experiment *e = run->experiment;
    char seed[32];
    size_t count;
    cairn_status st = CAIRN_OK;
    const struct lab_option *options = run_options(e, &count);
    TRY(result_init(&run->result, e->name, e->question, e->method, e->expected, e->source));
    for (size_t i = 0; i < count; i++) result_add_setting(&run->result, options[i].name, run->values[i]);
    snprintf(seed, sizeof(seed), "%" PRIu64, run->seed);
    result_add_setting(&run->result, "seed", seed);
    run->shown = cairn__clock_seconds();
    st = e->run(run);
    if (run->is_shown) fputs("\r\033[K", stderr);
    TRY(st);
    TRY(result_check(&run->result));
out:
    return st;
}

bool run_is_of(const struct lab_run *run, const struct lab_result *result) {
    char seed[32];
    size_t count;
    const struct lab_option *options = run_options(run->experiment, &count);
    snprintf(seed, sizeof(seed), "%" PRIu64, run->seed);
    const char *stored = result_setting(result, "seed");
    bool is_same = stored && strcmp(stored, seed) == 0 && result->num_settings == count + 1;
    for (size_t i = 0; i < count && is_same; i++) {
        stored = result_setting(result, options[i].name);
        is_same = stored && strcmp(stored, run->values[i]) == 0;
    }
    return is_same;
}
