/* The result of a run in memory: the functions of experiment.h fill it, store.h writes and reads it, and page.h draws
 * it. A training's records are converted to a result, too (trained.h). */
#ifndef LAB_RESULT_H
#define LAB_RESULT_H

#include "experiment.h"

struct lab_cell {
    double number;
    char *text; /* for text columns; else NULL */
};

struct lab_table {
    char *name, *title;
    struct lab_column *columns; /* own texts */
    size_t num_columns;
    struct lab_cell *cells; /* row by row */
    size_t num_cells, room;
    cairn_status *failed; /* the result's */
};

enum lab_verdict { LAB_SAYS = 0, LAB_HOLDS, LAB_FAILS };

struct lab_sentence {
    char *text;
    enum lab_verdict verdict;
};

/* name, value */
struct lab_setting {
    char *name, *value;
};

struct lab_result {
    char *name, *question, *method, *expected, *source; /* "" = none */
    char *cairn;                                        /* version of Cairn that created it; "" if the file has none */
    struct lab_setting *settings;                       /* options, "seed" the last */
    struct lab_table **tables;
    struct lab_picture *pictures; /* own texts */
    struct lab_sentence *findings;
    size_t num_settings, num_tables, num_pictures, num_findings;
    size_t room_settings, room_tables, room_pictures, room_findings;
    cairn_status failed; /* first failure of a function that fills it; cairn_last_error has the message */
};

/* Starts a result of this version. NULL texts become "". Free with result_free, also after an error. Errors:
 * CAIRN_EINVAL a name with characters other than letters, digits and '-'; CAIRN_ENOMEM. */
cairn_status result_init(struct lab_result *r, const char *name, const char *question, const char *method,
                         const char *expected, const char *source);
void result_free(struct lab_result *r);

/* These store failures in r->failed. A setting may be set again. */
void result_add_setting(struct lab_result *r, const char *name, const char *value);
struct lab_table *result_add_table(struct lab_result *r, const char *name, const char *title,
                                   const struct lab_column *columns, size_t count);
void result_add_picture(struct lab_result *r, const struct lab_picture *picture);
void result_add_finding(struct lab_result *r, enum lab_verdict verdict, const char *text);

/* Returns r->failed; an incomplete last row of a table is a failure, too. */
cairn_status result_check(struct lab_result *r);

const char *result_setting(const struct lab_result *r, const char *name); /* NULL = none */
const struct lab_table *result_table(const struct lab_result *r, const char *name);
bool result_holds(const struct lab_result *r); /* no finding fails */

size_t table_rows(const struct lab_table *t);
/* Returns the index of the named column, or num_columns. */
size_t table_column(const struct lab_table *t, const char *name);
const struct lab_cell *table_cell(const struct lab_table *t, size_t row, size_t column);

/* The shortest of %g's forms that reads back as the same number; "nan", "inf", "-inf". */
const char *number_text(double number, char text[32]);

#endif
