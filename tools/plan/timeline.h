/* A step of a pipeline as a picture: a row for each rank, and below it the measured one where there is a trace. */
#ifndef PLAN_TIMELINE_H
#define PLAN_TIMELINE_H

#include "trace.h"

/* False after a message, if the file cannot be written. trace: NULL = none. */
bool timeline_write(const char *file, const struct pipe *pipe, const struct flow *flow, const struct trace *trace);

/* "GPipe", "1F1B", "interleaved 1F1B". */
const char *schedule_name(cairn_pipeline_schedule schedule);

#endif
