/* Options of cairn-plan pipeline. */
#ifndef PLAN_PIPELINE_OPTIONS_H
#define PLAN_PIPELINE_OPTIONS_H

#include "cairn/pipeline.h"
#include "stages.h"
#include "../common/values.h"

struct pipeline_options {
    const char *file, *link, *trace, *svg; /* NULL = none; link: shm */
    cairn_pipeline_schedule schedule;
    size_t splits[MAX_VALUES]; /* rows, or numbers of micro-batches */
    size_t num_splits;         /* 0 = all are tried */
    bool counts_micro_batches, json;
    size_t rows, stages, modules; /* rows 0 = the file's */
    struct stage equal;           /* with stages > 0: each of them */
};

/* False for a wrong option, after a message. --help prints and exits. */
bool pipeline_options_parse(struct pipeline_options *o, int argc, char **argv);

#endif
