/* The results of a training: loss curve, accuracies, confusion matrices. Curve and accuracies have a fixed size, so
 * that checkpoints can include them. */
#ifndef EXAMPLES_BERT_REPORT_H
#define EXAMPLES_BERT_REPORT_H

#include <cairn/cairn.h>

#include "config.h"
#include "options.h"

struct point {
    double step, loss, lr; /* step: 0 = unused point; loss: mean over the step's examples on all ranks */
};

/* The result on one evaluation file. */
struct evaluation {
    const char *path;
    double examples, loss, accuracy;
    double *confusion; /* [classes, classes]: a row per label */
};

struct report {
    int num_points, num_epochs, num_evals, classes;
    struct point *points;     /* [num_points] */
    double *accuracies;       /* [num_epochs, num_evals]; -1: not evaluated */
    struct evaluation *evals; /* [num_evals]: the latest ones */
};

/* Creates an empty report. Errors: CAIRN_ENOMEM. */
cairn_status report_create(struct report *report, int64_t steps, int64_t epochs, const struct options *options,
                           int classes);
void report_clear(struct report *report);

/* Adds curve and accuracies to the state that checkpoints save. */
cairn_status report_add_to(struct report *report, cairn_state *state);

/* Prints a summary line, and if matrix is set the confusion matrix. */
void report_print(const struct evaluation *eval, const struct bert_config *config, int matrix);

struct report_facts {
    int ranks;
    int64_t steps, skipped, parameters;
    double seconds; /* training time of this run, for run_steps steps */
    int64_t run_steps;
};

/* Writes the report to options->report. Errors: CAIRN_ESYSTEM, CAIRN_ENOMEM. */
cairn_status report_write(const struct report *report, const struct options *options, const struct bert_config *config,
                          const struct report_facts *facts);

#endif
