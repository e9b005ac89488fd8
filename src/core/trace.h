/* Trace events, from which a timeline, a progress line or a test learns what Cairn does. Without a sink an event costs
 * one load and one branch. */
#ifndef CAIRN__CORE_TRACE_H
#define CAIRN__CORE_TRACE_H

#include <stdbool.h>

#include "cairn/core.h"

struct cairn__event {
    const char *room;  /* "nn", "ddp", "comm", "optim", "amp" */
    const char *what;  /* "backward", "bucket_launch", "step_skipped", ... */
    int64_t index;     /* bucket, step or parameter; meaning depends on what */
    int64_t nbytes;    /* bytes moved, 0 where none are */
    uint64_t begin_ns; /* CLOCK_MONOTONIC */
    uint64_t end_ns;   /* equal to begin_ns for an instant */
};

typedef void (*cairn__trace_fn)(void *cookie, const struct cairn__event *event);

/* Sends every event of the process to fn; NULL ends it. Set it before other threads use Cairn. */
void cairn__trace_set_sink(cairn__trace_fn fn, void *cookie);

bool cairn__trace_on(void);

/* An event that began at begin_ns (cairn__now_ns) and ends now; begin_ns 0 makes it an instant. */
void cairn__trace(const char *room, const char *what, int64_t index, int64_t nbytes, uint64_t begin_ns);

/* The same with the end given. */
void cairn__trace_span(const char *room, const char *what, int64_t index, int64_t nbytes, uint64_t begin_ns,
                       uint64_t end_ns);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t cairn__now_ns(void);

#endif
