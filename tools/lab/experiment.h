/* The interface of cairn-lab's experiments. An experiment returns tables of numbers, pictures drawn from them, and
 * findings in words.
 *
 * An experiment is a file in tools/lab/experiments that defines one struct lab_experiment, and a line in the list of
 * experiments.c. Its run function gets its options by name, adds rows to tables, describes pictures over the tables'
 * columns, and returns. cairn-lab itself reads the command line, writes the files, draws, and tracks which runs are
 * complete.
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
 * After a failure (out of memory, or a row that does not fit its table) the functions without a result do nothing, and
 * the run fails with the first such error, so experiments need not check. Texts are copied. Threads: only the run's
 * thread. */
#ifndef LAB_EXPERIMENT_H
#define LAB_EXPERIMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/core.h"

struct lab_run; /* one run of an experiment */
struct lab_table;

/* ---- options ---- */

enum lab_kind {
    LAB_TEXT = 0,   /* one of `choices` if that is set; otherwise the experiment checks it */
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
    const char *method;               /* a few sentences about what the experiment does */
    const char *expected;             /* the expected result, and why */
    const char *source;               /* paper and section, or the project that the method is from */
    const struct lab_option *options; /* terminated by a NULL name; NULL = none. All experiments have --seed */
    bool has_times;                   /* measures time, so that results differ from run to run */
    cairn_status (*run)(struct lab_run *run);
};

/* Return an option's value; a name that is not in the experiment's list exits the program. */
const char *lab_text(const struct lab_run *run, const char *option);
int64_t lab_whole(const struct lab_run *run, const char *option);
double lab_number(const struct lab_run *run, const char *option);

/* The value of --seed (default 1), from which all random numbers of an experiment follow. */
uint64_t lab_seed(const struct lab_run *run);

/* ---- results ---- */

struct lab_column {
    const char *name; /* "gradient norm"; also labels a picture's axis */
    const char *unit; /* "ms", "%", "2^k" of exponents; "" = a number without one; NULL = the column holds texts */
};

/* Adds an empty table, written to NAME.csv. name: letters, digits and "-". The run owns it. Returns NULL after a
 * failure, which the functions below accept. */
struct lab_table *lab_table(struct lab_run *run, const char *name, const char *title, const struct lab_column *columns,
                            size_t count);

/* Adds the next cell, from left to right and row by row. Numbers may be NaN or infinite: pictures omit them. */
void lab_put(struct lab_table *table, double number);
void lab_put_text(struct lab_table *table, const char *text);

enum lab_form {
    LAB_LINES = 1, /* y over x, a line for each value of `by` */
    LAB_POINTS,    /* the same, as dots */
    LAB_BARS,      /* y for each x, which may be text; with `by` a bar for each of its values side by side */
    LAB_HEAT,      /* a field at (x, y) for each row, whose colour is `value` */
};

/* A line across a picture, for example a predicted limit. */
struct lab_mark {
    const char *label; /* NULL ends the marks */
    double at;
    bool of_y; /* horizontal, at a y; otherwise vertical, at an x */
};

enum { LAB_MAX_MARKS = 6 };

/* A picture refers to columns by name. Axes are labelled with a column's name and unit. */
struct lab_picture {
    const char *name, *title;
    const char *table;
    enum lab_form form;
    const char *x, *y;
    const char *by;        /* LAB_LINES, POINTS, BARS: the legend's column, of texts or numbers; NULL = one line */
    const char *value;     /* LAB_HEAT */
    const char *panel;     /* draws a panel for each value of this column, with common axes; NULL = one */
    int x_log, y_log;      /* 0, or the base of a logarithmic axis: 2 or 10, which omits values that are not above 0 */
    int value_log;         /* LAB_HEAT: the same for colours */
    bool x_power, y_power; /* the column holds exponents of two: its labels are 2^k */
    struct lab_mark marks[LAB_MAX_MARKS];
};
void lab_picture(struct lab_run *run, const struct lab_picture *picture);

/* Adds a sentence about the numbers, for example "at 2^16 every step overflows". */
void lab_finding(struct lab_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds an expectation: the report shows whether it holds, and `cairn-lab run` exits with 1 if it does not. */
void lab_check(struct lab_run *run, bool holds, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Prints a progress line on stderr: at most two per second in a terminal, else one in 5 seconds. part: fraction of the
 * run, 0 to 1. */
void lab_progress(struct lab_run *run, double part, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
