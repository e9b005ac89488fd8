/* What a training leaves behind for people: the curve of its loss, accuracies, confusion matrices. Curve and accuracies
 * are in fixed memory, so that they are a part of a checkpoint. */
#ifndef EXAMPLES_BERT_REPORT_H
#define EXAMPLES_BERT_REPORT_H

#include <cairn/cairn.h>

#include "config.h"
#include "options.h"

struct point {
    double step, loss, lr; /* step 0: there is none yet. loss: the mean over the examples of the step, on all ranks */
};

/* Of one file. */
struct evaluation {
    const char *path;
    double examples, loss, accuracy;
    double *confusion; /* [classes, classes]: the labels in rows */
};

struct report {
    int num_points, num_epochs, num_evals, classes;
    struct point *points;     /* [num_points] */
    double *accuracies;       /* [num_epochs, num_evals]; -1: not evaluated */
    struct evaluation *evals; /* [num_evals]: the last ones */
};

/* Empty. Errors: CAIRN_ENOMEM. */
cairn_status report_create(struct report *report, int64_t steps, int64_t epochs, const struct options *options,
                           int classes);
void report_clear(struct report *report);

/* Adds curve and accuracies to a checkpoint. */
cairn_status report_add_to(struct report *report, cairn_state *state);

/* Prints a line, and with matrix the confusion matrix. */
void report_print(const struct evaluation *eval, const struct bert_config *config, int matrix);

struct report_facts {
    int ranks;
    int64_t steps, skipped, parameters;
    double seconds; /* of training, of this run; run_steps were made in it */
    int64_t run_steps;
};

/* Writes options->report. Errors: CAIRN_ESYSTEM, CAIRN_ENOMEM. */
cairn_status report_write(const struct report *report, const struct options *options, const struct bert_config *config,
                          const struct report_facts *facts);

#endif
