#include "view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"

static bool is_same(const struct lab_cell *a, const struct lab_cell *b) {
    if (a->text || b->text) return a->text && b->text && strcmp(a->text, b->text) == 0;
    return a->number == b->number || (isnan(a->number) && isnan(b->number));
}

static size_t find_key(const struct keys *keys, const struct lab_cell *cell) {
    size_t i = 0;
    while (i < keys->count && !is_same(&keys->at[i], cell)) i++;
    return i;
}

const char *key_text(const struct keys *keys, size_t i, char text[32]) {
    return keys->at[i].text ? keys->at[i].text : number_text(keys->at[i].number, text);
}

const char *key_label(const struct view *v, const struct keys *keys, size_t i, const char *column, char label[160]) {
    char number[32];
    if (keys->at[i].text) return keys->at[i].text;
    const char *unit = v->table->columns[table_column(v->table, column)].unit;
    number_text(keys->at[i].number, number);
    if (strcmp(unit, "2^k") == 0) snprintf(label, 160, "%s 2^%s", column, number);
    else snprintf(label, 160, unit[0] ? "%s %s %s" : "%s %s", column, number, unit);
    return label;
}

double view_number(const struct view *v, size_t row, size_t column) {
    return table_cell(v->table, row, column)->number;
}

void column_label(const struct lab_table *t, size_t column, char label[160]) {
    const struct lab_column *c = &t->columns[column];
    snprintf(label, 160, c->unit && c->unit[0] ? "%s, %s" : "%s", c->name, c->unit);
}

/* The keys refer to the table's cells and do not copy their texts. column: NULL = one key for all rows. */
static cairn_status collect(struct keys *keys, const struct lab_table *t, const char *column) {
    const size_t rows = table_rows(t), c = column ? table_column(t, column) : 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc(rows, sizeof(*keys->of_row), (void **)&keys->of_row));
    keys->count = column ? 0 : 1;
    for (size_t row = 0; column && row < rows; row++) {
        const struct lab_cell *cell = table_cell(t, row, c);
        const size_t key = find_key(keys, cell);
        keys->of_row[row] = key;
        if (key < keys->count) continue;
        TRY(cairn__grow((void **)&keys->at, &keys->room, keys->count + 1, sizeof(*keys->at)));
        keys->at[keys->count++] = *cell;
    }
out:
    return st;
}

static int compare_numbers(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The distinct values of a column that the axis can show, sorted; for exponents, all from the first to the last. */
static cairn_status sort_values(const struct view *v, size_t column, const struct axis *axis, double **out,
                                size_t *count) {
    const size_t rows = table_rows(v->table);
    double *at = NULL;
    cairn_status st = CAIRN_OK;
    size_t n = 0;
    TRY(cairn__calloc(rows, sizeof(*at), (void **)&at));
    for (size_t row = 0; row < rows; row++) {
        if (axis_has(axis, view_number(v, row, column))) at[n++] = view_number(v, row, column);
    }
    if (n > 1) qsort(at, n, sizeof(*at), compare_numbers);
    for (size_t i = 0; i < n; i++) {
        if (*count == 0 || at[*count - 1] != at[i]) at[(*count)++] = at[i];
    }
    *out = at;
    const size_t exponents = *count && axis->is_power ? (size_t)(at[*count - 1] - at[0]) + 1 : 0;
    if (exponents <= *count || exponents > 4096) return st;
    TRY(cairn__calloc(exponents, sizeof(*at), (void **)out));
    for (size_t i = 0; i < exponents; i++) (*out)[i] = at[0] + (double)i;
    *count = exponents;
    cairn__free(at);
out:
    return st;
}

static void widen_axes(struct view *v) {
    const struct lab_picture *p = v->picture;
    const bool is_bars = p->form == LAB_BARS;
    for (size_t row = 0; row < table_rows(v->table); row++) {
        const double y = view_number(v, row, v->y), x = is_bars ? 0 : view_number(v, row, v->x);
        if (!axis_has(&v->y_axis, y) || !axis_has(&v->x_axis, x)) continue;
        axis_widen(&v->y_axis, y);
        axis_widen(&v->x_axis, x);
        if (p->form != LAB_HEAT) continue;
        const double value = view_number(v, row, v->value);
        if (value > 0) axis_widen(&v->colors, value);
    }
    for (size_t m = 0; m < LAB_MAX_MARKS && p->marks[m].label; m++)
        axis_widen(p->marks[m].of_y ? &v->y_axis : &v->x_axis, p->marks[m].at);
    if (is_bars && !v->y_axis.log) axis_widen(&v->y_axis, 0);
}

cairn_status view_init(struct view *v, const struct lab_result *result, const struct lab_picture *picture) {
    const struct lab_table *t = result_table(result, picture->table);
    const struct axis none = {.least = 1, .most = 0};
    cairn_status st = CAIRN_OK;
    *v = (struct view){.picture = picture, .table = t, .x_axis = none, .y_axis = none, .colors = none};
    v->x = table_column(t, picture->x);
    v->y = table_column(t, picture->y);
    v->value = picture->form == LAB_HEAT ? table_column(t, picture->value) : t->num_columns;
    v->x_axis.log = picture->form == LAB_BARS ? 0 : picture->x_log;
    v->y_axis.log = picture->y_log;
    v->x_axis.is_power = picture->x_power;
    v->y_axis.is_power = picture->y_power;
    v->colors.log = picture->value_log;
    widen_axes(v);
    TRY(collect(&v->series, t, picture->form == LAB_HEAT ? NULL : picture->by));
    TRY(collect(&v->panels, t, picture->panel));
    if (picture->form == LAB_BARS) TRY(collect(&v->places, t, picture->x));
    if (picture->form == LAB_HEAT) {
        TRY(sort_values(v, v->x, &v->x_axis, &v->xs, &v->num_xs));
        TRY(sort_values(v, v->y, &v->y_axis, &v->ys, &v->num_ys));
    }
out:
    return st;
}

void view_free(struct view *v) {
    struct keys *const keys[] = {&v->series, &v->panels, &v->places};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        cairn__free(keys[i]->at);
        cairn__free(keys[i]->of_row);
    }
    cairn__free(v->xs);
    cairn__free(v->ys);
    *v = (struct view){0};
}
