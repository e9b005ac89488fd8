/* Merges the parts of a timeline into one, sorted by time, in the clock of the lowest rank present. Ranks on one
 * machine share a clock. For others, the part says how far its clock is ahead of rank 0's (cairn_timeline_align);
 * without that, wall clocks are compared. A part may end anywhere, since its rank may have died. */
#include "observe/merge.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <fcntl.h>

#include "cairn/observe.h"
#include "core/alloc.h"
#include "core/status.h"
#include "observe/names.h"
#include "observe/out.h"

enum { MOST_RANKS = 1 << 16 };

struct part {
    char *text;
    uint64_t clock;
    int64_t wall, ahead;
    int64_t shift; /* added to its times, ns */
    bool is_aligned;
    int size;
};

struct event {
    int64_t ns, took;
    const char *rest; /* the text after the time */
    size_t nbytes;
};

struct merge {
    struct part *parts;
    size_t num_parts, parts_room;
    struct event *events;
    size_t num_events, events_room;
};

/* ---- reading ---- */

static cairn_status read_text(const char *name, char **out) {
    cairn_status st = CAIRN_OK;
    struct stat s;
    char *text = NULL;
    FILE *f = fopen(name, "re");
    if (!f) return cairn__fail_errno(errno, "the part '%.300s' of a timeline cannot be read", name);
    if (fstat(fileno(f), &s) != 0) s.st_size = 0;
    st = cairn__alloc((size_t)s.st_size + 1, (void **)&text);
    if (st == CAIRN_OK) text[fread(text, 1, (size_t)s.st_size, f)] = '\0';
    fclose(f);
    if (st == CAIRN_OK) *out = text;
    return st;
}

/* Reads the number after key in a line; false = none. */
static bool number_of(const char *line, const char *key, int64_t *value) {
    const char *end = line + strcspn(line, "\n"), *at = strstr(line, key);
    if (!at || at >= end) return false;
    *value = strtoll(at + strlen(key), NULL, 10);
    return true;
}

/* Converts "123.456" microseconds. */
static int64_t nanoseconds(const char *text, char **end) {
    const int64_t us = strtoll(text, end, 10);
    const int64_t ns = **end == '.' ? strtoll(*end + 1, end, 10) : 0;
    return us * 1000 + ns;
}

static void read_clock(struct part *p, const char *line) {
    const char *clock = strstr(line, "\"clock\":\"");
    int64_t size = 0;
    if (clock) p->clock = strtoull(clock + 9, NULL, 16);
    (void)number_of(line, "\"wall_ns\":", &p->wall);
    if (number_of(line, "\"size\":", &size)) p->size = (int)size;
    if (number_of(line, "\"ahead_ns\":", &p->ahead)) p->is_aligned = true;
}

static cairn_status add_event(struct merge *m, const char *line, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    struct event e = {.ns = -1};
    const char *took = strstr(line, "\"dur\":");
    char *end = NULL;
    if (strncmp(line, "{\"ts\":", 6) == 0) {
        e.ns = nanoseconds(line + 6, &end);
        e.rest = end;
    } else {
        e.rest = line + 1;
    }
    e.nbytes = nbytes - (size_t)(e.rest - line);
    if (took && took < line + nbytes) e.took = nanoseconds(took + 6, &end);
    TRY(cairn__grow((void **)&m->events, &m->events_room, m->num_events + 1, sizeof(e)));
    m->events[m->num_events++] = e;
out:
    return st;
}

/* Reads complete lines. A comma may be at the end of a line or at the start of the next. */
static cairn_status read_lines(struct merge *m, struct part *p) {
    cairn_status st = CAIRN_OK;
    const size_t first = m->num_events;
    char *line = p->text;
    for (size_t n; *line; line += n + (line[n] == '\n')) {
        n = strcspn(line, "\n");
        const size_t length = n > 0 && line[n - 1] == ',' ? n - 1 : n;
        if (length < 2 || line[0] != '{' || line[length - 1] != '}' || line[n] != '\n') continue;
        const char *clock = strstr(line, "\"cairn_clock\"");
        if (clock && clock < line + n) read_clock(p, line);
        TRY(add_event(m, line, length));
    }
    const struct part *base = &m->parts[0];
    const bool can_align = p->is_aligned && base->is_aligned;
    if (p->clock != base->clock) p->shift = can_align ? base->ahead - p->ahead : p->wall - base->wall;
    for (size_t i = first; i < m->num_events; i++)
        if (m->events[i].ns >= 0) m->events[i].ns += p->shift;
out:
    return st;
}

/* ---- writing ---- */

/* Lines without a time come first. Of spans that begin together the longer one comes first, since it contains the
 * other. */
static int compare(const void *a, const void *b) {
    const struct event *x = a, *y = b;
    if (x->ns != y->ns) return x->ns < y->ns ? -1 : 1;
    if (x->took != y->took) return x->took > y->took ? -1 : 1;
    return x->rest < y->rest ? -1 : x->rest > y->rest;
}

static cairn_status write_merged(struct merge *m, const char *path) {
    char temporary[CAIRN__OBSERVE_PATH + 32];
    snprintf(temporary, sizeof(temporary), "%s.%d.tmp", path, (int)getpid());
    qsort(m->events, m->num_events, sizeof(m->events[0]), compare);
    FILE *f = fopen(temporary, "we");
    if (!f) return cairn__fail_errno(errno, "the timeline '%.300s' cannot be written", path);
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", f);
    for (size_t i = 0; i < m->num_events; i++) {
        const struct event *e = &m->events[i];
        fputs(i ? ",\n{" : "{", f);
        if (e->ns >= 0) fprintf(f, "\"ts\":%" PRId64 ".%03d", e->ns / 1000, (int)(e->ns % 1000));
        fwrite(e->rest, 1, e->nbytes, f);
    }
    fputs("\n]}\n", f);
    const bool is_written = !ferror(f);
    if (fclose(f) != 0 || !is_written || rename(temporary, path) != 0) {
        const int errnum = errno;
        unlink(temporary);
        return cairn__fail_errno(errnum, "the timeline '%.300s' cannot be written; its parts stay", path);
    }
    return CAIRN_OK;
}

/* *found: how many parts of ranks 0 to size - 1 exist. */
static cairn_status merge(const char *path, int size, size_t *found) {
    struct merge m = {.num_parts = 0};
    char name[CAIRN__OBSERVE_PATH];
    cairn_status st = CAIRN_OK;
    for (int r = 0; r < size; r++) {
        TRY(cairn__path_of_part(path, r, name));
        if (access(name, F_OK) != 0) continue;
        TRY(cairn__grow((void **)&m.parts, &m.parts_room, m.num_parts + 1, sizeof(m.parts[0])));
        m.parts[m.num_parts] = (struct part){.text = NULL};
        TRY(read_text(name, &m.parts[m.num_parts].text));
        m.num_parts++;
        TRY(read_lines(&m, &m.parts[m.num_parts - 1]));
        if (m.num_parts == 1 && m.parts[0].size > 0 && m.parts[0].size < size) size = m.parts[0].size;
    }
    REQUIRE(m.num_parts > 0, CAIRN_EINVAL, "there is no part of a timeline beside '%.300s', such as '%.300s'", path,
            name);
    TRY(write_merged(&m, path));
    *found = m.num_parts;
out:
    for (size_t i = 0; i < m.num_parts; i++) cairn__free(m.parts[i].text);
    cairn__free(m.parts);
    cairn__free(m.events);
    return st;
}

cairn_status cairn__timeline_merge_last(const char *path, int size) {
    char name[CAIRN__OBSERVE_PATH];
    size_t found = 0;
    cairn_status st = CAIRN_OK;
    for (int r = 0; r < size; r++) {
        TRY(cairn__path_of_part(path, r, name));
        if (cairn__out_is_written(name)) return CAIRN_OK;
    }
    TRY(merge(path, size, &found));
    for (int r = 0; r < size && found == (size_t)size; r++) {
        if (cairn__path_of_part(path, r, name) == CAIRN_OK) unlink(name);
    }
out:
    return st;
}

cairn_status cairn_timeline_merge(const char *path) {
    size_t found = 0;
    REQUIRE(path, CAIRN_EINVAL, "cairn_timeline_merge: path is NULL");
    return merge(path, MOST_RANKS, &found);
}
