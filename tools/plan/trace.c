#include "trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fields.h"
#include "../common/say.h"

static bool read_turn(struct node at, int rank, struct turn *t) {
    const char *what = NULL;
    double micro_batch = 0, stage = rank;
    if (!fields_text(at, "turn", REQUIRED, &what)) return false;
    t->is_backward = strcmp(what, "backward") == 0;
    if (!t->is_backward && strcmp(what, "forward") != 0)
        return fields_refuse(at, "turn", "\"forward\" or \"backward\"");
    if (!fields_whole(at, "micro_batch", 0, REQUIRED, &micro_batch)) return false;
    if (micro_batch >= MAX_MICRO_BATCHES) return fields_refuse(at, "micro_batch", "below 4096");
    if (!fields_whole(at, "stage", 0, OPTIONAL, &stage)) return false;
    if (stage >= MAX_STAGES) return fields_refuse(at, "stage", "below 256");
    if (!fields_number(at, "begin_ns", 0, REQUIRED, &t->begin)) return false;
    if (!fields_number(at, "end_ns", t->begin, REQUIRED, &t->end)) return false;
    t->micro_batch = (int)micro_batch;
    t->stage = (int)stage;
    return true;
}

static bool read_rank(const char *file, int rank, json_t *list, struct trace *t) {
    char path[64];
    snprintf(path, sizeof(path), "ranks[%d]", rank);
    if (!json_is_array(list)) return refuse("%s: %s must be an array of turns", file, path);
    const size_t more = json_array_size(list);
    t->turns = must(realloc(t->turns, (t->count + more + 1) * sizeof(*t->turns)));
    for (size_t i = 0; i < more; i++) {
        snprintf(path, sizeof(path), "ranks[%d][%zu]", rank, i);
        json_t *value = json_array_get(list, i);
        if (!json_is_object(value)) return refuse("%s: %s must be an object", file, path);
        if (!read_turn((struct node){file, path, value}, rank, &t->turns[t->count])) return false;
        t->end = fmax(t->end, t->turns[t->count++].end);
    }
    t->first[rank + 1] = t->count;
    return true;
}

static bool read_all(const char *file, json_t *root, struct trace *t) {
    const struct node top = {file, "", root};
    const char *format = NULL;
    double version = 0;
    json_t *ranks = NULL;
    if (!fields_text(top, "format", REQUIRED, &format)) return false;
    if (strcmp(format, "cairn-timeline") != 0) return fields_refuse(top, "format", "\"cairn-timeline\"");
    if (!fields_whole(top, "version", 1, REQUIRED, &version)) return false;
    if (version != 1) return fields_refuse(top, "version", "1, which is what this cairn-plan reads");
    if (!fields_whole(top, "split_size", 1, REQUIRED, &t->split)) return false;
    if (!fields_array(top, "ranks", REQUIRED, &ranks)) return false;
    if (json_array_size(ranks) > MAX_STAGES) return fields_refuse(top, "ranks", "256 ranks at most");
    t->ranks = (int)json_array_size(ranks);
    t->first = must(calloc((size_t)t->ranks + 1, sizeof(*t->first)));
    for (int r = 0; r < t->ranks; r++) {
        if (!read_rank(file, r, json_array_get(ranks, (size_t)r), t)) return false;
    }
    return true;
}

bool trace_read(const char *file, struct trace *out) {
    json_t *root = NULL;
    *out = (struct trace){0};
    if (!fields_open(file, &root)) return false;
    const bool good = read_all(file, root, out);
    json_decref(root);
    if (!good) trace_free(out);
    return good;
}

void trace_free(struct trace *t) {
    free(t->turns);
    free(t->first);
    *t = (struct trace){0};
}
