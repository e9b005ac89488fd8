/* A picture's columns, resolved once: its series, panels and common axes. */
#ifndef LAB_VIEW_H
#define LAB_VIEW_H

#include "axis.h"
#include "result.h"

/* The different values of a column, in their order of appearance. */
struct keys {
    struct lab_cell *at; /* [count]; NULL = no such column, and one key for all rows */
    size_t count, room;
    size_t *of_row; /* [rows] */
};

struct view {
    const struct lab_picture *picture;
    const struct lab_table *table;
    size_t x, y, value; /* columns; value = num_columns but of heat maps */
    struct keys series, panels;
    struct keys places; /* bars: the values of x */
    double *xs, *ys;    /* heat maps: the different values of all panels, sorted */
    size_t num_xs, num_ys;
    struct axis x_axis, y_axis; /* without pixels; of bars, x_axis is unused */
    struct axis colors;         /* heat maps: from least to most value above 0 */
};

/* Must be freed also after a failure. Errors: CAIRN_ENOMEM. */
cairn_status view_init(struct view *v, const struct lab_result *result, const struct lab_picture *picture);
void view_free(struct view *v);

/* Writes a key as text. */
const char *key_text(const struct keys *keys, size_t i, char text[32]);

/* The same with the column's name and unit for numbers: "rank 3", "scale 2^8". */
const char *key_label(const struct view *v, const struct keys *keys, size_t i, const char *column, char label[160]);

double view_number(const struct view *v, size_t row, size_t column);

/* "time, ms" */
void column_label(const struct lab_table *t, size_t column, char label[160]);

#endif
