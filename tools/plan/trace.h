/* A measured step of a pipeline: JSON.
 *
 *     {
 *       "format": "cairn-timeline", "version": 1, "split_size": 12,
 *       "ranks": [[{"turn": "forward", "micro_batch": 0, "begin_ns": 0, "end_ns": 48100000}, ...], ...]
 *     }
 *
 * Times count from the start of the step and exclude a turn's waits. A turn's "stage" is optional and defaults to the
 * rank. */
#ifndef PLAN_TRACE_H
#define PLAN_TRACE_H

#include "flow.h"

struct trace {
    struct turn *turns; /* [count]; of rank i from first[i] to before first[i + 1] */
    size_t count, *first;
    int ranks;
    double end, split;
};

/* False after a message. */
bool trace_read(const char *file, struct trace *out);
void trace_free(struct trace *t);

#endif
