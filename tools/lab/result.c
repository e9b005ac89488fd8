#include "result.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"

/* Returns a copy; NULL if text is NULL or memory has run out. */
static char *copy_text(cairn_status *failed, const char *text) {
    char *copy = NULL;
    if (text && *failed == CAIRN_OK) *failed = cairn__strdup(text, &copy);
    return copy;
}

/* Makes room for one more element; false after a failure. */
static bool grow(cairn_status *failed, void *array, size_t *room, size_t count, size_t nbytes) {
    void **at = array;
    if (*failed == CAIRN_OK) *failed = cairn__grow(at, room, count + 1, nbytes);
    return *failed == CAIRN_OK;
}

/* Names become file names and anchors in a page. */
static bool is_plain(const char *name) {
    for (const char *c = name; *c; c++) {
        if (!isalnum((unsigned char)*c) && *c != '-') return false;
    }
    return name[0] != '\0' && name[0] != '-';
}

cairn_status result_init(struct lab_result *r, const char *name, const char *question, const char *method,
                         const char *expected, const char *source) {
    *r = (struct lab_result){0};
    REQUIRE(is_plain(name), CAIRN_EINVAL, "a result is called '%s'; names are of letters, digits and '-'", name);
    r->name = copy_text(&r->failed, name);
    r->question = copy_text(&r->failed, question ? question : "");
    r->method = copy_text(&r->failed, method ? method : "");
    r->expected = copy_text(&r->failed, expected ? expected : "");
    r->source = copy_text(&r->failed, source ? source : "");
    r->cairn = copy_text(&r->failed, cairn_version_string());
    return r->failed;
}

static void free_table(struct lab_table *t) {
    for (size_t i = 0; i < t->num_cells; i++) cairn__free(t->cells[i].text);
    for (size_t c = 0; c < t->num_columns; c++) {
        cairn__free((char *)t->columns[c].name);
        cairn__free((char *)t->columns[c].unit);
    }
    cairn__free(t->cells);
    cairn__free(t->columns);
    cairn__free(t->name);
    cairn__free(t->title);
    cairn__free(t);
}

static void free_picture(struct lab_picture *p) {
    const char *const texts[] = {p->name, p->title, p->table, p->x, p->y, p->by, p->value, p->panel};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) cairn__free((char *)texts[i]);
    for (size_t m = 0; m < LAB_MAX_MARKS; m++) cairn__free((char *)p->marks[m].label);
}

void result_free(struct lab_result *r) {
    for (size_t i = 0; i < r->num_tables; i++) free_table(r->tables[i]);
    for (size_t i = 0; i < r->num_pictures; i++) free_picture(&r->pictures[i]);
    for (size_t i = 0; i < r->num_findings; i++) cairn__free(r->findings[i].text);
    for (size_t i = 0; i < r->num_settings; i++) {
        cairn__free(r->settings[i].name);
        cairn__free(r->settings[i].value);
    }
    char *const texts[] = {r->name, r->question, r->method, r->expected, r->source, r->cairn};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) cairn__free(texts[i]);
    cairn__free(r->tables);
    cairn__free(r->pictures);
    cairn__free(r->findings);
    cairn__free(r->settings);
    *r = (struct lab_result){0};
}

/* ---- filling ---- */

void result_add_setting(struct lab_result *r, const char *name, const char *value) {
    if (!grow(&r->failed, &r->settings, &r->room_settings, r->num_settings, sizeof(*r->settings))) return;
    struct lab_setting *s = &r->settings[r->num_settings++];
    s->name = copy_text(&r->failed, name);
    s->value = copy_text(&r->failed, value);
}

static cairn_status check_table(const struct lab_result *r, const char *name, size_t count) {
    REQUIRE(is_plain(name), CAIRN_EINVAL, "a table is called '%s'; names are of letters, digits and '-'", name);
    REQUIRE(!result_table(r, name), CAIRN_EINVAL, "%s has two tables '%s'", r->name, name);
    REQUIRE(count > 0, CAIRN_EINVAL, "table '%s' has no columns", name);
    return CAIRN_OK;
}

struct lab_table *result_add_table(struct lab_result *r, const char *name, const char *title,
                                   const struct lab_column *columns, size_t count) {
    void *memory = NULL;
    if (r->failed == CAIRN_OK) r->failed = check_table(r, name, count);
    if (r->failed == CAIRN_OK) r->failed = cairn__calloc(1, sizeof(struct lab_table), &memory);
    if (!memory) return NULL;
    struct lab_table *t = memory;
    t->failed = &r->failed;
    t->name = copy_text(&r->failed, name);
    t->title = copy_text(&r->failed, title);
    if (r->failed == CAIRN_OK) r->failed = cairn__calloc(count, sizeof(*t->columns), (void **)&t->columns);
    t->num_columns = t->columns ? count : 0;
    for (size_t c = 0; c < t->num_columns; c++) {
        t->columns[c].name = copy_text(&r->failed, columns[c].name);
        t->columns[c].unit = copy_text(&r->failed, columns[c].unit);
    }
    if (!grow(&r->failed, &r->tables, &r->room_tables, r->num_tables, sizeof(*r->tables))) {
        free_table(t);
        return NULL;
    }
    r->tables[r->num_tables++] = t;
    return t;
}

/* Appends a cell, whose column must be of this kind. */
static struct lab_cell *next_cell(struct lab_table *t, bool is_text) {
    if (!t || *t->failed != CAIRN_OK) return NULL;
    const struct lab_column *column = &t->columns[t->num_cells % t->num_columns];
    if (is_text == (column->unit != NULL)) {
        *t->failed = cairn__fail(CAIRN_EINVAL, "column '%s' of table '%s' holds %s", column->name, t->name,
                                 column->unit ? "numbers" : "texts");
        return NULL;
    }
    if (!grow(t->failed, &t->cells, &t->room, t->num_cells, sizeof(*t->cells))) return NULL;
    struct lab_cell *cell = &t->cells[t->num_cells++];
    *cell = (struct lab_cell){NAN, NULL};
    return cell;
}

void lab_put(struct lab_table *table, double number) {
    struct lab_cell *cell = next_cell(table, false);
    if (cell) cell->number = number;
}

void lab_put_text(struct lab_table *table, const char *text) {
    struct lab_cell *cell = next_cell(table, true);
    if (cell) cell->text = copy_text(table->failed, text);
}

static cairn_status check_column(const struct lab_picture *p, const struct lab_table *t, const char *what,
                                 const char *name, bool is_number) {
    const size_t c = name ? table_column(t, name) : t->num_columns;
    if (!name) return cairn__fail(CAIRN_EINVAL, "picture '%s' has no %s", p->name, what);
    if (c == t->num_columns)
        return cairn__fail(CAIRN_EINVAL, "picture '%s': table '%s' has no column '%s'", p->name, t->name, name);
    if (is_number && !t->columns[c].unit)
        return cairn__fail(CAIRN_EINVAL, "picture '%s': its %s, column '%s', holds texts", p->name, what, name);
    return CAIRN_OK;
}

static cairn_status check_picture(const struct lab_result *r, const struct lab_picture *p) {
    cairn_status st = CAIRN_OK;
    const struct lab_table *t = p->table ? result_table(r, p->table) : NULL;
    REQUIRE(p->name && is_plain(p->name), CAIRN_EINVAL,
            "a picture is called '%s'; names are of letters, digits and '-'", p->name ? p->name : "");
    REQUIRE(t, CAIRN_EINVAL, "picture '%s' is of table '%s', which there is not", p->name, p->table ? p->table : "");
    REQUIRE(p->form >= LAB_LINES && p->form <= LAB_HEAT, CAIRN_EINVAL, "picture '%s' has no form", p->name);
    TRY(check_column(p, t, "x", p->x, p->form != LAB_BARS));
    TRY(check_column(p, t, "y", p->y, true));
    if (p->form == LAB_HEAT) TRY(check_column(p, t, "value", p->value, true));
    if (p->by) TRY(check_column(p, t, "by", p->by, false));
    if (p->panel) TRY(check_column(p, t, "panel", p->panel, false));
    for (size_t m = 0; m < LAB_MAX_MARKS && p->marks[m].label; m++) {
        REQUIRE(isfinite(p->marks[m].at), CAIRN_EINVAL, "picture '%s': the mark '%s' is at no finite number", p->name,
                p->marks[m].label);
    }
out:
    return st;
}

void result_add_picture(struct lab_result *r, const struct lab_picture *picture) {
    if (r->failed == CAIRN_OK) r->failed = check_picture(r, picture);
    if (!grow(&r->failed, &r->pictures, &r->room_pictures, r->num_pictures, sizeof(*r->pictures))) return;
    struct lab_picture *p = &r->pictures[r->num_pictures++];
    *p = *picture;
    p->name = copy_text(&r->failed, picture->name);
    p->title = copy_text(&r->failed, picture->title);
    p->table = copy_text(&r->failed, picture->table);
    p->x = copy_text(&r->failed, picture->x);
    p->y = copy_text(&r->failed, picture->y);
    p->by = copy_text(&r->failed, picture->by);
    p->value = copy_text(&r->failed, picture->value);
    p->panel = copy_text(&r->failed, picture->panel);
    for (size_t m = 0; m < LAB_MAX_MARKS; m++) p->marks[m].label = copy_text(&r->failed, picture->marks[m].label);
}

void result_add_finding(struct lab_result *r, enum lab_verdict verdict, const char *text) {
    if (!grow(&r->failed, &r->findings, &r->room_findings, r->num_findings, sizeof(*r->findings))) return;
    r->findings[r->num_findings++] = (struct lab_sentence){copy_text(&r->failed, text), verdict};
}

/* ---- looking ---- */

cairn_status result_check(struct lab_result *r) {
    for (size_t i = 0; i < r->num_tables && r->failed == CAIRN_OK; i++) {
        const struct lab_table *t = r->tables[i];
        if (t->num_cells % t->num_columns == 0) continue;
        r->failed = cairn__fail(CAIRN_EINVAL, "the last row of table '%s' has %zu of %zu cells", t->name,
                                t->num_cells % t->num_columns, t->num_columns);
    }
    return r->failed;
}

const char *result_setting(const struct lab_result *r, const char *name) {
    for (size_t i = 0; i < r->num_settings; i++) {
        if (strcmp(r->settings[i].name, name) == 0) return r->settings[i].value;
    }
    return NULL;
}

const struct lab_table *result_table(const struct lab_result *r, const char *name) {
    for (size_t i = 0; i < r->num_tables; i++) {
        if (strcmp(r->tables[i]->name, name) == 0) return r->tables[i];
    }
    return NULL;
}

bool result_holds(const struct lab_result *r) {
    for (size_t i = 0; i < r->num_findings; i++) {
        if (r->findings[i].verdict == LAB_FAILS) return false;
    }
    return true;
}

size_t table_rows(const struct lab_table *t) {
    return t->num_cells / t->num_columns;
}

size_t table_column(const struct lab_table *t, const char *name) {
    size_t c = 0;
    while (c < t->num_columns && strcmp(t->columns[c].name, name) != 0) c++;
    return c;
}

const struct lab_cell *table_cell(const struct lab_table *t, size_t row, size_t column) {
    return &t->cells[row * t->num_columns + column];
}

const char *number_text(double number, char text[32]) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, number);
        if (isnan(number) || strtod(text, NULL) == number) break;
    }
    return isnan(number) ? "nan" : text;
}
