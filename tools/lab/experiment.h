/* What an experiment of cairn-lab is, and how it hands back what it has found: tables of numbers, pictures drawn from
 * them, and findings in words.
 *
 * An experiment is a file in tools/lab/experiments that defines one struct lab_experiment, and a line in the list of
 * experiments.c. Its run function gets its options by name, adds rows to tables, describes pictures over the tables'
 * columns, and returns. The frame reads the command line, writes the files, draws, and knows which runs are complete.
 *
 *     static cairn_status run(struct lab_run *run) {
 *         const int64_t terms = lab_whole(run, "terms");
 *         struct lab_table *sums = lab_table(run, "sums", "Running sums",
 *             (struct lab_column[]){{"terms", ""}, {"sum", ""}, {"type", NULL}}, 3);
 *         for (...) lab_put(sums, i), lab_put(sums, sum), lab_put_text(sums, "f16");
 *         lab_picture(run, &(struct lab_picture){.name = "sums", .title = "A running sum stops growing",
 *             .table = "sums", .form = LAB_LINES, .x = "terms", .y = "sum", .by = "type"});
 *         lab_check(run, sum == 2048, "%lld ones added in f16 are %g", (long long)terms, sum);
 *         return CAIRN_OK;
 *     }
 *
 * Functions without a result do nothing once one has failed (memory ran out, or a row does not fit its table): the run
 * then fails with the first such error, and experiments need not look. Texts are copied. Threads: the run's own. */
#ifndef LAB_EXPERIMENT_H
#define LAB_EXPERIMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/core.h"

struct lab_run; /* one run of an experiment */
struct lab_table;

/* ---- what is asked ---- */

enum lab_kind {
    LAB_TEXT = 0,   /* one of `choices`, where there are some; else the experiment checks it */
    LAB_WHOLE = 1,  /* a whole number in [least, most]; "64K" is 65536 */
    LAB_NUMBER = 2, /* any number in [least, most] */
};

struct lab_option {
    const char *name, *usual, *meaning; /* "terms", "5000", "how many numbers are added" */
    enum lab_kind kind;
    double least, most;  /* of numbers */
    const char *choices; /* "f16 bf16", or NULL */
};

struct lab_experiment {
    const char *name;                 /* "running-sum": letters, digits and "-" */
    const char *question;             /* a sentence that ends in "?" */
    const char *method;               /* what is done, in some sentences */
    const char *expected;             /* what should come out, and why */
    const char *source;               /* paper and section, or the project that has the form */
    const struct lab_option *options; /* ends with one whose name is NULL; NULL = none. all have --seed */
    bool has_times;                   /* measures seconds, so that its numbers differ from run to run */
    cairn_status (*run)(struct lab_run *run);
};

/* An option's value; asking for a name that the experiment has not listed ends the program. */
const char *lab_text(const struct lab_run *run, const char *option);
int64_t lab_whole(const struct lab_run *run, const char *option);
double lab_number(const struct lab_run *run, const char *option);

/* --seed, 1 without: all numbers that an experiment draws follow from it. */
uint64_t lab_seed(const struct lab_run *run);

/* ---- what is found ---- */

struct lab_column {
    const char *name; /* "gradient norm"; of a picture's axis, too */
    const char *unit; /* "ms", "%", "2^k" of exponents; "" = a number without one; NULL = the column holds texts */
};

/* A table without rows; it becomes NAME.csv. name: letters, digits and "-". Owned by the run; NULL after a failure,
 * which the functions below take. */
struct lab_table *lab_table(struct lab_run *run, const char *name, const char *title, const struct lab_column *columns,
                            size_t count);

/* The next cell, from left to right and row by row. Numbers may be NaN and infinite: pictures leave them out. */
void lab_put(struct lab_table *table, double number);
void lab_put_text(struct lab_table *table, const char *text);

enum lab_form {
    LAB_LINES = 1, /* y over x, a line for each value of `by` */
    LAB_POINTS,    /* the same, as dots */
    LAB_BARS,      /* y for each x, which may be text; bars for each value of `by` beside one another */
    LAB_HEAT,      /* a field at (x, y) for each row, whose colour is `value` */
};

/* A line across a picture, such as a predicted limit. */
struct lab_mark {
    const char *label; /* NULL ends the marks */
    double at;
    bool of_y; /* at a y, from left to right; else at an x */
};

enum { LAB_MAX_MARKS = 6 };

/* Columns are named. Axes are labelled with a column's name and unit. */
struct lab_picture {
    const char *name, *title;
    const char *table;
    enum lab_form form;
    const char *x, *y;
    const char *by;        /* LAB_LINES, POINTS, BARS: the legend's column, of texts or numbers; NULL = one line */
    const char *value;     /* LAB_HEAT */
    const char *panel;     /* draws a panel for each value of this column, with common axes; NULL = one */
    int x_log, y_log;      /* 0, or the base of a logarithmic axis: 2 or 10; what is not above 0 is left out */
    int value_log;         /* LAB_HEAT: the same of colours */
    bool x_power, y_power; /* the column holds exponents of two: its labels are 2^k */
    struct lab_mark marks[LAB_MAX_MARKS];
};
void lab_picture(struct lab_run *run, const struct lab_picture *picture);

/* A sentence about the numbers, such as "at 2^16 every step overflows". */
void lab_finding(struct lab_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same about what was expected: the report says whether it holds, and `cairn-lab run` exits with 1 if not. */
void lab_check(struct lab_run *run, bool holds, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A progress line on stderr: two a second at most in a terminal, else one in 5 seconds. part: of the run, 0 to 1. */
void lab_progress(struct lab_run *run, double part, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
