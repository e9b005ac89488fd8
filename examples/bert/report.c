#include "report.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cairn_status report_create(struct report *r, int64_t steps, int64_t epochs, const struct options *options,
                           int classes) {
    const int evals = options->num_evals;
    *r = (struct report){.num_points = (int)(steps / options->log_every), .num_epochs = (int)epochs};
    r->num_evals = evals, r->classes = classes;
    r->points = calloc((size_t)r->num_points + 1, sizeof(r->points[0]));
    r->accuracies = calloc((size_t)(epochs * evals) + 1, sizeof(r->accuracies[0]));
    r->evals = calloc((size_t)evals + 1, sizeof(r->evals[0]));
    int complete = r->points && r->accuracies && r->evals;
    for (int i = 0; complete && i < evals; i++) {
        r->evals[i].path = options->evals[i];
        r->evals[i].confusion = calloc((size_t)(classes * classes), sizeof(double));
        complete = r->evals[i].confusion != NULL;
    }
    for (int64_t i = 0; complete && i < epochs * evals; i++) r->accuracies[i] = -1;
    return complete ? CAIRN_OK : cairn_dataset_fail(CAIRN_ENOMEM, "there is no memory for the report");
}

void report_clear(struct report *r) {
    for (int i = 0; r->evals && i < r->num_evals; i++) free(r->evals[i].confusion);
    free(r->evals);
    free(r->accuracies);
    free(r->points);
    *r = (struct report){0};
}

cairn_status report_add_to(struct report *r, cairn_state *state) {
    cairn_status st = CAIRN_OK;
    if (r->num_points > 0)
        st = cairn_state_add_bytes(state, "curve", r->points, (size_t)r->num_points * sizeof(r->points[0]));
    const size_t n = (size_t)r->num_epochs * (size_t)r->num_evals;
    if (st == CAIRN_OK && n > 0) st = cairn_state_add_bytes(state, "accuracies", r->accuracies, n * sizeof(double));
    return st;
}

void report_print(const struct evaluation *e, const struct bert_config *config, int matrix) {
    const int n = config->num_labels;
    printf("%s: accuracy = %.2f %% of %.0f, loss %.4f\n", e->path, 100 * e->accuracy, e->examples, e->loss);
    for (int i = 0; matrix && i < n; i++) {
        printf("  %-14s", config->labels[i]);
        for (int j = 0; j < n; j++) printf(" %8.0f", e->confusion[i * n + j]);
        printf("%s\n", i == 0 ? "   the labels in rows, the model's answers in columns, in the same order" : "");
    }
    fflush(stdout);
}

/* ---- the file ---- */

/* JSON has no infinities, and no NaN. */
static json_t *number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *curve(const struct report *r) {
    json_t *all = json_array();
    for (int i = 0; i < r->num_points; i++) {
        const struct point *p = &r->points[i];
        if (p->step > 0)
            json_array_append_new(all, json_pack("{sI, so, so}", "step", (json_int_t)p->step, "loss", number(p->loss),
                                                 "lr", number(p->lr)));
    }
    return all;
}

static json_t *accuracies(const struct report *r) {
    json_t *all = json_array();
    for (int e = 0; e < r->num_epochs; e++) {
        json_t *row = json_array();
        for (int i = 0; i < r->num_evals; i++) {
            const double x = r->accuracies[e * r->num_evals + i];
            json_array_append_new(row, x < 0 ? json_null() : json_real(x));
        }
        json_array_append_new(all, row);
    }
    return all;
}

static json_t *evaluation(const struct evaluation *e, const struct bert_config *config) {
    json_t *labels = json_array(), *rows = json_array();
    for (int i = 0; i < config->num_labels; i++) {
        json_t *row = json_array();
        json_array_append_new(labels, json_string(config->labels[i]));
        for (int j = 0; j < config->num_labels; j++)
            json_array_append_new(row, json_integer((json_int_t)e->confusion[i * config->num_labels + j]));
        json_array_append_new(rows, row);
    }
    return json_pack("{ss, sI, so, so, so, so}", "file", e->path, "examples", (json_int_t)e->examples, "accuracy",
                     number(e->accuracy), "loss", number(e->loss), "labels", labels, "confusion", rows);
}

static json_t *evaluations(const struct report *r, const struct bert_config *config) {
    json_t *all = json_array();
    for (int i = 0; i < r->num_evals; i++) json_array_append_new(all, evaluation(&r->evals[i], config));
    return all;
}

static json_t *settings(const struct options *o, const struct report_facts *f) {
    return json_pack("{ss, ss*, sI, si, sI, sI, ss, ss, sf, sf, sf, sI, sI, sI}", "model", o->model, "train", o->train,
                     "parameters", (json_int_t)f->parameters, "ranks", f->ranks, "batch_size",
                     (json_int_t)o->batch_size, "accumulate", (json_int_t)o->accumulate, "opt_level",
                     o->opt_level ? o->opt_level : "O0", "half", o->half_type ? o->half_type : "f16", "lr", o->lr,
                     "weight_decay", o->weight_decay, "clip", o->clip, "warmup_steps", (json_int_t)o->warmup_steps,
                     "max_length", (json_int_t)o->max_length, "seed", (json_int_t)o->seed);
}

cairn_status report_write(const struct report *r, const struct options *o, const struct bert_config *config,
                          const struct report_facts *f) {
    json_t *all = json_pack("{so, sI, sI, sf, sf, so, so, so}", "settings", settings(o, f), "steps",
                            (json_int_t)f->steps, "skipped", (json_int_t)f->skipped, "seconds", f->seconds,
                            "steps_per_second", f->seconds > 0 ? (double)f->run_steps / f->seconds : 0.0, "curve",
                            curve(r), "accuracies", accuracies(r), "evaluations", evaluations(r, config));
    if (!all)
        return cairn_dataset_fail(CAIRN_ENOMEM, "%s: there is no memory to write it, or a path is not UTF-8",
                                  o->report);
    errno = 0;
    const int failed = json_dump_file(all, o->report, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    const int cause = errno;
    json_decref(all);
    if (!failed) return CAIRN_OK;
    return cairn_dataset_fail(CAIRN_ESYSTEM, "%s: cannot be written: %s", o->report, strerror(cause));
}
