#include "description.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "core/alloc.h"
#include "core/status.h"

static const char FORMAT[] = "cairn-lab-result";
enum { VERSION = 1 };

/* Names in the file, indexed by enum value. */
static const char *const verdicts[] = {[LAB_SAYS] = "says", [LAB_HOLDS] = "holds", [LAB_FAILS] = "fails"};
static const char *const forms[] = {
    [LAB_LINES] = "lines", [LAB_POINTS] = "points", [LAB_BARS] = "bars", [LAB_HEAT] = "heat"};

/* ---- writing ---- */

/* A text, or null. Bytes that are not UTF-8 give a failed json_t, which json_pack reports. */
static json_t *text_or_null(const char *text) {
    return text ? json_string(text) : json_null();
}

static json_t *make_table(const struct lab_table *t) {
    json_t *columns = json_array();
    for (size_t c = 0; c < t->num_columns; c++) {
        json_array_append_new(columns, json_pack("{s:s, s:o}", "name", t->columns[c].name, "unit",
                                                 text_or_null(t->columns[c].unit)));
    }
    return json_pack("{s:s, s:s, s:o}", "name", t->name, "title", t->title, "columns", columns);
}

static json_t *make_picture(const struct lab_picture *p) {
    json_t *marks = json_array();
    for (size_t m = 0; m < LAB_MAX_MARKS && p->marks[m].label; m++) {
        json_array_append_new(marks, json_pack("{s:s, s:f, s:b}", "label", p->marks[m].label, "at", p->marks[m].at,
                                               "of_y", p->marks[m].of_y));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:i, s:i, s:i, s:b, s:b, s:o}", "name", p->name,
                     "title", p->title, "table", p->table, "form", forms[p->form], "x", p->x, "y", p->y, "by",
                     text_or_null(p->by), "value", text_or_null(p->value), "panel", text_or_null(p->panel), "x_log",
                     p->x_log, "y_log", p->y_log, "value_log", p->value_log, "x_power", p->x_power, "y_power",
                     p->y_power, "marks", marks);
}

cairn_status description_make(const struct lab_result *r, char **text) {
    json_t *settings = json_object(), *tables = json_array(), *pictures = json_array(), *findings = json_array();
    for (size_t i = 0; i < r->num_settings; i++)
        json_object_set_new(settings, r->settings[i].name, json_string(r->settings[i].value));
    for (size_t i = 0; i < r->num_tables; i++) json_array_append_new(tables, make_table(r->tables[i]));
    for (size_t i = 0; i < r->num_pictures; i++) json_array_append_new(pictures, make_picture(&r->pictures[i]));
    for (size_t i = 0; i < r->num_findings; i++) {
        const struct lab_sentence *f = &r->findings[i];
        json_array_append_new(findings, json_pack("{s:s, s:s}", "text", f->text, "verdict", verdicts[f->verdict]));
    }
    const bool is_complete = json_object_size(settings) == r->num_settings &&
                             json_array_size(tables) == r->num_tables && json_array_size(pictures) == r->num_pictures &&
                             json_array_size(findings) == r->num_findings;
    json_t *root = json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "format", FORMAT,
                             "version", VERSION, "cairn", r->cairn, "name", r->name, "question", r->question, "method",
                             r->method, "expected", r->expected, "source", r->source, "settings", settings, "findings",
                             findings, "tables", tables, "pictures", pictures);
    *text = is_complete && root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    REQUIRE(*text, CAIRN_EINVAL, "%s: its description cannot be written: a text is not UTF-8, or memory ran out",
            r->name);
    return CAIRN_OK;
}

/* ---- reading ---- */

/* json_unpack_ex with the file and the position in the error message. */
#define UNPACK(file, place, value, ...)                                                                              \
    do {                                                                                                             \
        json_error_t why;                                                                                            \
        if (json_unpack_ex((value), &why, 0, __VA_ARGS__) != 0)                                                      \
            return cairn__fail(CAIRN_EINVAL, "%s: %s is not as cairn-lab writes it: %s", (file), (place), why.text); \
    } while (0)

/* Returns the index of word in words, or count. */
static size_t find_word(const char *const *words, size_t count, const char *word) {
    size_t i = 0;
    while (i < count && !(words[i] && strcmp(words[i], word) == 0)) i++;
    return i;
}

static cairn_status read_table(const char *file, json_t *value, struct lab_result *out) {
    enum { MOST = 64 };
    const char *name, *title;
    json_t *list, *column;
    size_t i;
    struct lab_column columns[MOST] = {{0}};
    UNPACK(file, "a table", value, "{s:s, s:s, s:o}", "name", &name, "title", &title, "columns", &list);
    REQUIRE(json_is_array(list) && json_array_size(list) <= MOST, CAIRN_EINVAL,
            "%s: the columns of table '%s' are no array of at most %d", file, name, MOST);
    json_array_foreach(list, i, column) {
        json_t *unit;
        UNPACK(file, "a column", column, "{s:s, s:o}", "name", &columns[i].name, "unit", &unit);
        columns[i].unit = json_string_value(unit);
    }
    result_add_table(out, name, title, columns, json_array_size(list));
    return out->failed;
}

static cairn_status read_marks(const char *file, json_t *list, struct lab_picture *p) {
    json_t *mark;
    size_t i;
    REQUIRE(json_is_array(list) && json_array_size(list) <= LAB_MAX_MARKS, CAIRN_EINVAL,
            "%s: the marks of picture '%s' are no array of at most %d", file, p->name, LAB_MAX_MARKS);
    json_array_foreach(list, i, mark) {
        int of_y;
        UNPACK(file, "a mark", mark, "{s:s, s:F, s:b}", "label", &p->marks[i].label, "at", &p->marks[i].at, "of_y",
               &of_y);
        p->marks[i].of_y = of_y != 0;
    }
    return CAIRN_OK;
}

static cairn_status read_picture(const char *file, json_t *value, struct lab_result *out) {
    struct lab_picture p = {0};
    const char *form;
    json_t *by, *val, *panel, *marks;
    int x_power, y_power;
    cairn_status st = CAIRN_OK;
    UNPACK(file, "a picture", value, "{s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:i, s:i, s:i, s:b, s:b, s:o}",
           "name", &p.name, "title", &p.title, "table", &p.table, "form", &form, "x", &p.x, "y", &p.y, "by", &by,
           "value", &val, "panel", &panel, "x_log", &p.x_log, "y_log", &p.y_log, "value_log", &p.value_log, "x_power",
           &x_power, "y_power", &y_power, "marks", &marks);
    const size_t count = sizeof(forms) / sizeof(forms[0]), found = find_word(forms, count, form);
    REQUIRE(found < count, CAIRN_EINVAL, "%s: picture '%s' has the unknown form '%s'", file, p.name, form);
    p.form = (enum lab_form)found;
    p.by = json_string_value(by);
    p.value = json_string_value(val);
    p.panel = json_string_value(panel);
    p.x_power = x_power != 0;
    p.y_power = y_power != 0;
    TRY(read_marks(file, marks, &p));
    result_add_picture(out, &p);
    st = out->failed;
out:
    return st;
}

static cairn_status read_finding(const char *file, json_t *value, struct lab_result *out) {
    const char *text, *verdict;
    UNPACK(file, "a finding", value, "{s:s, s:s}", "text", &text, "verdict", &verdict);
    const size_t count = sizeof(verdicts) / sizeof(verdicts[0]), found = find_word(verdicts, count, verdict);
    REQUIRE(found < count, CAIRN_EINVAL, "%s: a finding has the unknown verdict '%s'", file, verdict);
    result_add_finding(out, (enum lab_verdict)found, text);
    return out->failed;
}

static cairn_status read_list(const char *file, const char *what, json_t *list, struct lab_result *out,
                              cairn_status (*read)(const char *file, json_t *value, struct lab_result *out)) {
    json_t *value;
    size_t i;
    cairn_status st = CAIRN_OK;
    REQUIRE(json_is_array(list), CAIRN_EINVAL, "%s: %s is no array", file, what);
    json_array_foreach(list, i, value) TRY(read(file, value, out));
out:
    return st;
}

static cairn_status read_root(const char *file, json_t *root, struct lab_result *out) {
    const char *format, *name, *question, *method, *expected, *source, *key, *cairn = "";
    json_t *settings, *tables, *pictures, *findings, *value;
    int version;
    cairn_status st = CAIRN_OK;
    UNPACK(file, "the file", root, "{s:s, s:i, s?:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "format", &format,
           "version", &version, "cairn", &cairn, "name", &name, "question", &question, "method", &method, "expected",
           &expected, "source", &source, "settings", &settings, "findings", &findings, "tables", &tables, "pictures",
           &pictures);
    REQUIRE(strcmp(format, FORMAT) == 0 && version == VERSION, CAIRN_EINVAL,
            "%s is '%s' of version %d; this cairn-lab reads '%s' of version %d: run the experiment with --again", file,
            format, version, FORMAT, VERSION);
    TRY(result_init(out, name, question, method, expected, source));
    cairn__free(out->cairn);
    out->cairn = NULL;
    TRY(cairn__strdup(cairn, &out->cairn));
    json_object_foreach(settings, key, value) {
        REQUIRE(json_is_string(value), CAIRN_EINVAL, "%s: the setting '%s' is no text", file, key);
        result_add_setting(out, key, json_string_value(value));
    }
    TRY(out->failed);
    TRY(read_list(file, "tables", tables, out, read_table));
    TRY(read_list(file, "pictures", pictures, out, read_picture));
    TRY(read_list(file, "findings", findings, out, read_finding));
out:
    return st;
}

cairn_status description_read(const char *file, const char *text, struct lab_result *out) {
    json_error_t why;
    *out = (struct lab_result){0};
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    REQUIRE(root, CAIRN_EINVAL, "%s: not JSON, at line %d, column %d: %s", file, why.line, why.column, why.text);
    const cairn_status st = read_root(file, root, out);
    json_decref(root);
    return st;
}
