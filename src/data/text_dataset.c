/* Text in files with one record per line, as JSON or tab-separated cells. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/datasets.h"
#include "core/alloc.h"
#include "core/hash.h"
#include "core/options.h"
#include "core/status.h"
#include "data/dataset.h"
#include "data/lines.h"
#include "data/scratch.h"
#include "state/json_scan.h"

enum { MAX_DEPTH = 64, MAX_LABELS = 1 << 16, SHOWN = 60 };

/* A column to read: text, or, for the last one, a label. */
struct column {
    char *name;
    size_t cell; /* in a table: index of the cell in a line */
};

struct texts {
    char *path;
    struct cairn__lines *lines;
    bool is_table, has_header, has_label;
    struct column columns[CAIRN_MAX_FIELDS]; /* the label's column is last */
    int count;                               /* with the label */
    char **labels;                           /* [num_labels]; if num_labels is 0, labels are numbers */
    int num_labels;
    char *dropped; /* lines with this label are not records; NULL = none */
    struct cairn__scratch scratch;
};

/* A value of a record, in the line's memory or jansson's. */
struct cell {
    const char *text; /* NULL = missing */
    size_t nbytes;
    char number[24]; /* text of a JSON integer */
};

/* ---- a line's values ---- */

/* Cell number `at` of a line; text is NULL if the line has fewer. */
static struct cell cut(const char *line, size_t nbytes, size_t at) {
    const char *end = line + nbytes;
    struct cell c = {.text = NULL};
    for (;; at--) {
        const char *tab = memchr(line, '\t', (size_t)(end - line));
        if (at == 0) {
            c.text = line;
            c.nbytes = (size_t)((tab ? tab : end) - line);
            return c;
        }
        if (!tab) return c;
        line = tab + 1;
    }
}

/* Returns NULL and writes the reason to why, if the line is not a JSON object that Cairn reads. */
static json_t *parse(const char *line, size_t nbytes, char why[SHOWN + JSON_ERROR_TEXT_LENGTH]) {
    const struct cairn__json_scan found = cairn__json_scan(line, nbytes);
    json_error_t error;
    if (found.depth > MAX_DEPTH || found.is_costly) {
        snprintf(why, SHOWN, "more values in one another than a record has");
        return NULL;
    }
    json_t *record = json_loadb(line, nbytes, JSON_ALLOW_NUL, &error);
    if (!record) snprintf(why, SHOWN + JSON_ERROR_TEXT_LENGTH, "not JSON: %s", error.text);
    if (json_is_object(record) || !record) return record;
    snprintf(why, SHOWN, "JSON, but no object");
    json_decref(record);
    return NULL;
}

/* If the value is a number, the cell points into itself, so do not copy it. */
static void look_up(struct cell *c, const json_t *record, const char *name) {
    const json_t *value = json_object_get(record, name);
    *c = (struct cell){.text = json_string_value(value), .nbytes = json_string_length(value)};
    if (!json_is_integer(value)) return;
    c->nbytes = (size_t)snprintf(c->number, sizeof(c->number), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    c->text = c->number;
}

static bool is_word(const struct cell *c, const char *word) {
    return c->text && strlen(word) == c->nbytes && memcmp(word, c->text, c->nbytes) == 0;
}

/* ---- which lines are records ---- */

/* Unreadable lines are records too, so that reading one reports why. */
static bool is_record(void *ctx, const char *line, size_t nbytes) {
    const struct texts *t = ctx;
    const struct column *label = &t->columns[t->count - 1];
    char why[SHOWN + JSON_ERROR_TEXT_LENGTH];
    struct cell c;
    if (t->is_table) {
        c = cut(line, nbytes, label->cell);
        return !is_word(&c, t->dropped);
    }
    json_t *record = parse(line, nbytes, why);
    look_up(&c, record, label->name);
    const bool is_dropped = is_word(&c, t->dropped);
    json_decref(record);
    return !is_dropped;
}

static uint64_t question_of(const struct texts *t) {
    uint64_t hash = cairn__hash_word(CAIRN__HASH_START, t->is_table);
    if (!t->dropped) return hash;
    const struct column *label = &t->columns[t->count - 1];
    hash = cairn__hash_word(cairn__hash_text(hash, t->dropped), label->cell);
    return t->is_table ? hash : cairn__hash_text(hash, label->name);
}

/* ---- reading ---- */

static cairn_status fail_at(const struct texts *t, int64_t index, const char *what, const char *name,
                            const struct cell *c) {
    const int shown = c && c->text ? (int)(c->nbytes < SHOWN ? c->nbytes : SHOWN) : 0;
    int64_t line;
    cairn_status st = CAIRN_OK;
    TRY(cairn__lines_number(t->lines, index, &line));
    return cairn__fail(CAIRN_EINVAL, "%s: line %" PRId64 ", record %" PRId64 ": %s%s%s%.*s%s", t->path, line, index,
                       what, name ? name : "", shown ? ": '" : "", shown, shown ? c->text : "", shown ? "'" : "");
out:
    return st;
}

static cairn_status add_label(const struct texts *t, const struct cell *c, int64_t index, cairn_fields *example) {
    char *end, number[24];
    for (int i = 0; i < t->num_labels; i++)
        if (is_word(c, t->labels[i])) return cairn_fields_add_i64(example, i);
    if (t->num_labels > 0) return fail_at(t, index, "none of the labels is that of ", t->columns[t->count - 1].name, c);
    if (c->nbytes == 0 || c->nbytes >= sizeof(number))
        return fail_at(t, index, "the label is no whole number", NULL, c);
    memcpy(number, c->text, c->nbytes);
    number[c->nbytes] = 0;
    errno = 0;
    const long long label = strtoll(number, &end, 10);
    if (errno != 0 || end != number + c->nbytes || isspace((unsigned char)number[0]))
        return fail_at(t, index, "the label is no whole number", NULL, c);
    return cairn_fields_add_i64(example, label);
}

static cairn_status add_record(const struct texts *t, const char *line, size_t nbytes, int64_t index,
                               cairn_fields *example) {
    char why[SHOWN + JSON_ERROR_TEXT_LENGTH];
    cairn_status st = CAIRN_OK;
    json_t *record = NULL;
    struct cell c;
    if (!t->is_table) record = parse(line, nbytes, why);
    if (!t->is_table && !record) TRY(fail_at(t, index, why, NULL, NULL));
    for (int i = 0; i < t->count; i++) {
        if (t->is_table) c = cut(line, nbytes, t->columns[i].cell);
        else look_up(&c, record, t->columns[i].name);
        if (!c.text)
            TRY(fail_at(t, index,
                        t->is_table ? "there is no cell of column " : "there is no text, and no integer, named ",
                        t->columns[i].name, NULL));
        if (t->has_label && i == t->count - 1) TRY(add_label(t, &c, index, example));
        else TRY(cairn__fields_add_text(example, c.text, c.nbytes));
    }
out:
    json_decref(record);
    return st;
}

static cairn_status read_example(void *self, int64_t index, struct cairn_random *random, cairn_fields *example) {
    struct texts *t = self;
    cairn_fields *line = NULL;
    cairn_status st = CAIRN_OK;
    (void)random;
    TRY(cairn__scratch_take(&t->scratch, &line));
    TRY(cairn__lines_read(t->lines, index, line));
    TRY(add_record(t, line->fields[0].data, line->fields[0].nbytes, index, example));
out:
    cairn__scratch_give(&t->scratch, line);
    return st;
}

/* ---- making ---- */

static void destroy(void *self) {
    struct texts *t = self;
    cairn__lines_close(&t->lines);
    cairn__scratch_end(&t->scratch);
    for (int i = 0; i < t->count; i++) cairn__free(t->columns[i].name);
    for (int i = 0; t->labels && i < t->num_labels; i++) cairn__free(t->labels[i]);
    cairn__free(t->labels);
    cairn__free(t->dropped);
    cairn__free(t->path);
    cairn__free(t);
}

static bool ends_with(const char *path, const char *end) {
    const size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

static cairn_status check(const char *path, int count, const char *const *columns, const struct cairn_text_options *o,
                          cairn_dataset **out) {
    REQUIRE(path && out && (columns || count == 0), CAIRN_EINVAL,
            "cairn_text_dataset_create: path, columns and out must be set");
    REQUIRE(count >= 0 && count + (o->label != NULL) >= 1 && count + (o->label != NULL) <= CAIRN_MAX_FIELDS,
            CAIRN_EINVAL, "cairn_text_dataset_create: %d columns; there must be from 1 to %d, with the label", count,
            CAIRN_MAX_FIELDS);
    for (int i = 0; i < count; i++)
        REQUIRE(columns[i], CAIRN_EINVAL, "cairn_text_dataset_create: the name of column %d is NULL", i);
    REQUIRE(o->format == 0 || o->format == CAIRN_TEXT_JSON_LINES || o->format == CAIRN_TEXT_TSV, CAIRN_EINVAL,
            "cairn_text_options.format is %d; it must be one of enum cairn_text_format", (int)o->format);
    REQUIRE(o->header == CAIRN_DEFAULT || o->header == CAIRN_ON || o->header == CAIRN_OFF, CAIRN_EINVAL,
            "cairn_text_options.header is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", (int)o->header);
    REQUIRE(o->num_labels >= 0 && o->num_labels <= MAX_LABELS && (o->labels || o->num_labels == 0), CAIRN_EINVAL,
            "cairn_text_options: num_labels is %d%s", o->num_labels, o->labels ? "" : ", and labels is NULL");
    REQUIRE(o->label || (o->num_labels == 0 && !o->dropped), CAIRN_EINVAL,
            "cairn_text_options has labels or dropped, but no label, which names their column");
    return CAIRN_OK;
}

static cairn_status keep(struct texts *t, const char *path, int count, const char *const *columns,
                         const struct cairn_text_options *o) {
    cairn_status st = CAIRN_OK;
    t->is_table = o->format == CAIRN_TEXT_TSV || (o->format == 0 && ends_with(path, ".tsv"));
    t->has_header = t->is_table && o->header != CAIRN_OFF;
    t->has_label = o->label != NULL;
    TRY(cairn__strdup(path, &t->path));
    for (int i = 0; i < count + t->has_label; i++) {
        TRY(cairn__strdup(i < count ? columns[i] : o->label, &t->columns[i].name));
        t->count = i + 1;
    }
    if (o->dropped) TRY(cairn__strdup(o->dropped, &t->dropped));
    if (o->num_labels > 0) TRY(cairn__calloc((size_t)o->num_labels, sizeof(t->labels[0]), (void **)&t->labels));
    for (int i = 0; i < o->num_labels; i++) {
        REQUIRE(o->labels[i], CAIRN_EINVAL, "cairn_text_options: label %d is NULL", i);
        TRY(cairn__strdup(o->labels[i], &t->labels[i]));
        t->num_labels = i + 1;
    }
out:
    return st;
}

/* Columns without names are numbers, from 0. */
static bool is_number(const char *name, size_t *number) {
    char *end;
    *number = strtoul(name, &end, 10);
    return *name >= '0' && *name <= '9' && *end == 0;
}

static bool is_in_header(const struct cairn_field *header, const char *name, size_t *at) {
    const char *begin = header->data, *end = begin + header->nbytes;
    for (*at = 0; begin <= end; ++*at) {
        const struct cell c = cut(begin, (size_t)(end - begin), 0);
        if (is_word(&c, name)) return true;
        begin += c.nbytes + 1;
    }
    return false;
}

/* Finds the columns of a table. */
static cairn_status find_columns(struct texts *t) {
    cairn_fields *header = NULL;
    cairn_status st = CAIRN_OK;
    if (t->has_header) TRY(cairn__scratch_take(&t->scratch, &header));
    if (t->has_header) TRY(cairn__lines_header(t->path, header));
    for (int i = 0; i < t->count; i++) {
        struct column *c = &t->columns[i];
        const bool is_there =
            header ? is_in_header(&header->fields[0], c->name, &c->cell) : is_number(c->name, &c->cell);
        if (!is_there)
            TRY(cairn__fail(CAIRN_EINVAL, "%s: there is no column '%s'%s", t->path, c->name,
                            header ? " in its first line" : "; without a header columns are numbers, from 0"));
    }
out:
    cairn__scratch_give(&t->scratch, header);
    return st;
}

cairn_status cairn_text_dataset_create(const char *path, int count, const char *const *columns,
                                       const struct cairn_text_options *options, cairn_dataset **out) {
    struct cairn_text_options o = *cairn_text_options(.format = 0);
    struct texts *t = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_text_options"));
    TRY(check(path, count, columns, &o, out));
    TRY(cairn__calloc(1, sizeof(*t), (void **)&t));
    cairn__scratch_begin(&t->scratch);
    TRY(keep(t, path, count, columns, &o));
    if (t->is_table) TRY(find_columns(t));
    const struct cairn__lines_options lines = {.index = o.index,
                                               .has_header = t->has_header,
                                               .is_record = t->dropped ? is_record : NULL,
                                               .ctx = t,
                                               .question = question_of(t)};
    TRY(cairn__lines_open(path, &lines, &t->lines));
    TRY(cairn_dataset_create(t, cairn__lines_count(t->lines),
                             cairn_dataset_functions(.read = read_example, .destroy = destroy), out));
    return CAIRN_OK;
out:
    if (t) destroy(t);
    return st;
}
