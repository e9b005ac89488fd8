#include "record.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "store.h"
#include "core/alloc.h"
#include "core/status.h"

/* The position of a line, and the rank that wrote it. */
struct place {
    const char *file;
    size_t line;
    int rank;
    bool is_first; /* the first of the files */
};

static cairn_status refuse_line(const struct place *p, const char *why) {
    return cairn__fail(CAIRN_EINVAL, "%s, line %zu: %s; docs/observing.md describes these files", p->file, p->line,
                       why);
}

/* ---- finding and making entries ---- */

/* Every step lists the tensors in the same order, so the search starts after the last one found. */
static cairn_status find_tensor(struct record *r, enum tensor_kind kind, const char *name, struct tensor_record **out) {
    cairn_status st = CAIRN_OK;
    for (size_t k = 0; k < r->num_tensors; k++) {
        const size_t i = (r->next_tensor + k) % r->num_tensors;
        *out = &r->tensors[i];
        if ((*out)->kind != kind || strcmp((*out)->name, name) != 0) continue;
        r->next_tensor = i + 1;
        return CAIRN_OK;
    }
    TRY(cairn__grow((void **)&r->tensors, &r->tensors_room, r->num_tensors + 1, sizeof(*r->tensors)));
    *out = &r->tensors[r->num_tensors];
    **out = (struct tensor_record){.kind = kind};
    TRY(cairn__strdup(name, &(*out)->name));
    r->next_tensor = ++r->num_tensors;
out:
    return st;
}

static cairn_status find_scalar(struct record *r, const char *room, const char *name, struct scalar_record **out) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < r->num_scalars; i++) {
        *out = &r->scalars[i];
        if (strcmp((*out)->room, room) == 0 && strcmp((*out)->name, name) == 0) return CAIRN_OK;
    }
    TRY(cairn__grow((void **)&r->scalars, &r->scalars_room, r->num_scalars + 1, sizeof(*r->scalars)));
    *out = &r->scalars[r->num_scalars++];
    **out = (struct scalar_record){0};
    TRY(cairn__strdup(room, &(*out)->room));
    TRY(cairn__strdup(name, &(*out)->name));
out:
    return st;
}

static cairn_status set_fact(struct record *r, const char *name, const char *value) {
    struct fact *f = NULL;
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < r->num_facts && !f; i++) {
        if (strcmp(r->facts[i].name, name) == 0) f = &r->facts[i];
    }
    if (!f) {
        TRY(cairn__grow((void **)&r->facts, &r->facts_room, r->num_facts + 1, sizeof(*r->facts)));
        f = &r->facts[r->num_facts++];
        *f = (struct fact){0};
        TRY(cairn__strdup(name, &f->name));
    }
    cairn__free(f->value);
    f->value = NULL;
    TRY(cairn__strdup(value, &f->value));
out:
    return st;
}

/* ---- lines ---- */

/* A number, or a text such as "inf" in place of a number that JSON cannot represent. */
static double number_of(const json_t *value) {
    const char *text = json_string_value(value);
    if (!text) return json_is_number(value) ? json_number_value(value) : NAN;
    return strcmp(text, "inf") == 0 ? HUGE_VAL : strcmp(text, "-inf") == 0 ? -HUGE_VAL : NAN;
}

static cairn_status read_run(struct record *r, struct place *p, json_t *line) {
    int format = 0, rank = 0, ranks = 0, every = 0;
    char text[32];
    cairn_status st = CAIRN_OK;
    if (json_unpack(line, "{s:i, s:i, s:i, s?i}", "format", &format, "rank", &rank, "ranks", &ranks, "every", &every))
        return refuse_line(p, "a run without format, rank and ranks");
    if (format != 1) return refuse_line(p, "its format is not 1, which this cairn-lab reads");
    p->rank = rank;
    if (p->is_first) r->ranks = ranks;
    if (ranks != r->ranks || rank < 0 || rank >= ranks)
        return cairn__fail(
            CAIRN_EINVAL,
            "%s is of rank %d of %d, and the run in this folder has %d ranks; remove what another run has "
            "left",
            p->file, rank, ranks, r->ranks);
    if (!p->is_first) return CAIRN_OK;
    snprintf(text, sizeof(text), "%d", ranks);
    TRY(set_fact(r, "ranks", text));
    snprintf(text, sizeof(text), "%d", every);
    TRY(set_fact(r, "every", text));
out:
    return st;
}

static cairn_status read_fact(struct record *r, const struct place *p, json_t *line) {
    const char *name, *value;
    if (json_unpack(line, "{s:s, s:s}", "name", &name, "value", &value))
        return refuse_line(p, "a fact without name and value");
    return p->is_first ? set_fact(r, name, value) : CAIRN_OK;
}

static cairn_status read_scalar(struct record *r, const struct place *p, json_t *line) {
    const char *room, *name;
    json_int_t step;
    json_t *value;
    struct scalar_record *s;
    cairn_status st = CAIRN_OK;
    if (json_unpack(line, "{s:s, s:s, s:I, s:o}", "room", &room, "name", &name, "step", &step, "value", &value))
        return refuse_line(p, "a scalar without room, name, step and value");
    if (!p->is_first) return CAIRN_OK;
    TRY(find_scalar(r, room, name, &s));
    TRY(cairn__grow((void **)&s->steps, &s->steps_room, s->count + 1, sizeof(*s->steps)));
    TRY(cairn__grow((void **)&s->values, &s->values_room, s->count + 1, sizeof(*s->values)));
    s->steps[s->count] = step;
    s->values[s->count++] = number_of(value);
out:
    return st;
}

/* "grad/0.weight" gives GRAD and "0.weight", "grad@1/0.weight" GRAD and "0.weight @1". False for unknown kinds. */
static bool read_name(const char *text, enum tensor_kind *kind, char name[512]) {
    static const char *const words[NUM_KINDS] = {[GRAD] = "grad",
                                                 [GRAD_BEFORE] = "grad_before",
                                                 [ACTIVATION] = "activation",
                                                 [ACTIVATION_GRAD] = "activation_grad"};
    const size_t n = strcspn(text, "@/");
    const char *slash = strchr(text + n, '/');
    if (!slash) return false;
    for (int k = 0; k < NUM_KINDS; k++) {
        if (strlen(words[k]) != n || strncmp(words[k], text, n) != 0) continue;
        *kind = (enum tensor_kind)k;
        snprintf(name, 512, text[n] == '@' ? "%s %.*s" : "%s", slash + 1, (int)(slash - text - (ptrdiff_t)n), text + n);
        return true;
    }
    return false;
}

static cairn_status read_counts(const struct place *p, json_t *counts, struct exponents *e) {
    json_t *value;
    size_t i;
    cairn_status st = CAIRN_OK;
    e->num_binades = json_array_size(counts);
    TRY(cairn__calloc(e->num_binades, sizeof(*e->counts), (void **)&e->counts));
    json_array_foreach(counts, i, value) {
        e->counts[i] = json_number_value(value);
        if (!json_is_number(value) || e->counts[i] < 0) TRY(refuse_line(p, "a count is no number from 0"));
    }
out:
    return st;
}

static cairn_status read_histogram(struct record *r, const struct place *p, json_t *line) {
    const char *name, *type = "";
    char of[512];
    json_int_t step;
    json_t *counts, *scale = NULL;
    struct exponents e = {.rank = p->rank};
    struct tensor_record *t;
    enum tensor_kind kind;
    cairn_status st = CAIRN_OK;
    if (json_unpack(line, "{s:s, s:I, s:o}", "name", &name, "step", &step, "counts", &counts) || !json_is_array(counts))
        return refuse_line(p, "a histogram without name, step and counts");
    if (!read_name(name, &kind, of) || json_object_get(line, "limits")) return CAIRN_OK; /* the program's own */
    if (json_unpack(line, "{s:i, s:F, s:F, s:F, s:F, s:o, s?s}", "first", &e.first, "count", &e.count, "zero", &e.zero,
                    "inf", &e.inf, "nan", &e.nan, "scale", &scale, "type", &type))
        return refuse_line(p, "exponents without first, count, zero, inf, nan and scale");
    e.scale = number_of(scale);
    if (!(e.scale > 0) || !isfinite(e.scale)) return refuse_line(p, "a scale is not above 0 and finite");
    e.step = step;
    e.shift = ilogb(e.scale);
    TRY(find_tensor(r, kind, of, &t));
    TRY(cairn__grow((void **)&t->at, &t->room, t->count + 1, sizeof(*t->at)));
    cairn__free(t->type);
    t->type = NULL;
    TRY(cairn__strdup(type, &t->type));
    TRY(read_counts(p, counts, &e));
    t->at[t->count++] = e;
    return CAIRN_OK;
out:
    cairn__free(e.counts);
    return st;
}

static cairn_status read_line(struct record *r, struct place *p, const char *text, size_t nbytes) {
    const char *kind = NULL;
    json_t *line = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, NULL);
    cairn_status st = CAIRN_OK;
    if (!line || json_unpack(line, "{s:s}", "kind", &kind)) st = refuse_line(p, "no JSON object with a kind");
    else if (strcmp(kind, "run") == 0) st = read_run(r, p, line);
    else if (strcmp(kind, "fact") == 0) st = read_fact(r, p, line);
    else if (strcmp(kind, "scalar") == 0) st = read_scalar(r, p, line);
    else if (strcmp(kind, "histogram") == 0) st = read_histogram(r, p, line);
    json_decref(line);
    return st;
}

static cairn_status read_file(struct record *r, const char *file, bool is_first) {
    struct place p = {.file = file, .line = 1, .is_first = is_first};
    char *text = NULL;
    size_t room = 0;
    cairn_status st = CAIRN_OK;
    FILE *in = fopen(file, "re");
    if (!in) return cairn__fail_errno(errno, "%s", file);
    for (ssize_t n; (n = getline(&text, &room, in)) > 0 && text[n - 1] == '\n'; p.line++)
        TRY(read_line(r, &p, text, (size_t)n));
    if (ferror(in)) st = cairn__fail_errno(errno, "%s", file);
out:
    free(text);
    fclose(in);
    return st;
}

/* ---- the folder ---- */

static int is_of_rank(const struct dirent *e) {
    size_t n = strlen("rank");
    if (strncmp(e->d_name, "rank", n) != 0) return 0;
    const size_t digits = strspn(e->d_name + n, "0123456789");
    return digits > 0 && strcmp(e->d_name + n + digits, ".jsonl") == 0;
}

/* Sorts by rank: a number with fewer digits is smaller. */
static int compare_files(const struct dirent **a, const struct dirent **b) {
    const size_t m = strlen((*a)->d_name), n = strlen((*b)->d_name);
    return m != n ? (m > n) - (m < n) : strcmp((*a)->d_name, (*b)->d_name);
}

static void free_files(struct dirent **files, int count) {
    for (int i = 0; i < count; i++) free(files[i]);
    free(files);
}

bool record_is_in(const char *folder) {
    struct dirent **files = NULL;
    const int count = scandir(folder, &files, is_of_rank, compare_files);
    free_files(files, count);
    return count > 0;
}

cairn_status record_read(const char *folder, struct record *out) {
    struct dirent **files = NULL;
    cairn_status st = CAIRN_OK;
    *out = (struct record){0};
    const int count = scandir(folder, &files, is_of_rank, compare_files);
    if (count < 0) st = cairn__fail_errno(errno, "%s", folder);
    else if (count == 0) st = cairn__fail(CAIRN_EINVAL, "%s has no rank0.jsonl", folder);
    for (int i = 0; st == CAIRN_OK && i < count; i++) {
        char path[STORE_PATH_NBYTES];
        st = store_path(path, folder, files[i]->d_name);
        if (st == CAIRN_OK) st = read_file(out, path, i == 0);
    }
    free_files(files, count);
    return st;
}

void record_free(struct record *r) {
    for (size_t i = 0; i < r->num_tensors; i++) {
        for (size_t e = 0; e < r->tensors[i].count; e++) cairn__free(r->tensors[i].at[e].counts);
        cairn__free(r->tensors[i].at);
        cairn__free(r->tensors[i].name);
        cairn__free(r->tensors[i].type);
    }
    for (size_t i = 0; i < r->num_scalars; i++) {
        cairn__free(r->scalars[i].room);
        cairn__free(r->scalars[i].name);
        cairn__free(r->scalars[i].steps);
        cairn__free(r->scalars[i].values);
    }
    for (size_t i = 0; i < r->num_facts; i++) {
        cairn__free(r->facts[i].name);
        cairn__free(r->facts[i].value);
    }
    cairn__free(r->tensors);
    cairn__free(r->scalars);
    cairn__free(r->facts);
    *r = (struct record){0};
}

const struct scalar_record *record_scalar(const struct record *r, const char *room, const char *name) {
    for (size_t i = 0; i < r->num_scalars; i++) {
        if (strcmp(r->scalars[i].room, room) == 0 && strcmp(r->scalars[i].name, name) == 0) return &r->scalars[i];
    }
    return NULL;
}

const char *record_fact(const struct record *r, const char *name) {
    for (size_t i = 0; i < r->num_facts; i++) {
        if (strcmp(r->facts[i].name, name) == 0) return r->facts[i].value;
    }
    return NULL;
}
