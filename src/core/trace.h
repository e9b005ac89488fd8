/* Trace events: spans, counters, scalars, histograms and facts of every room and of the program. They are sent to any
 * number of sinks, such as writers (src/observe) and tests. Without a sink an event costs one load and one branch. */
#ifndef CAIRN__CORE_TRACE_H
#define CAIRN__CORE_TRACE_H

#include <stdbool.h>

#include "cairn/core.h"

enum cairn__event_kind { CAIRN__SPAN, CAIRN__COUNTER, CAIRN__SCALAR, CAIRN__HISTOGRAM, CAIRN__FACT };

struct cairn__event {
    const char *room;  /* "nn", "ddp", "comm", "optim", "amp", "data", "parallel"; "user" for the program's own */
    const char *what;  /* "backward", "bucket_launch", "step_skipped", ... */
    int64_t index;     /* bucket, step or parameter; meaning depends on what */
    int64_t nbytes;    /* bytes moved; 0 = none */
    uint64_t begin_ns; /* CLOCK_MONOTONIC */
    uint64_t end_ns;   /* a span's; equal to begin_ns for an instant and for all other events */
    enum cairn__event_kind kind;
    double value;          /* of a counter or scalar */
    const void *histogram; /* struct cairn_histogram of cairn/observe.h; valid during the call */
    const char *text;      /* of a fact */
};

typedef void (*cairn__trace_fn)(void *cookie, const struct cairn__event *event);

/* Sends every event of the process to fn, in addition to the added sinks; NULL ends it. For tests. */
void cairn__trace_set_sink(cairn__trace_fn fn, void *cookie);

/* Adds a sink: sends every event of the process to fn until it is removed. Any thread. Sinks are called one at a time,
 * under a lock, on the thread of the event. Events that fn itself sends are dropped. A fork child has no sinks.
 * Errors: CAIRN_ESTATE there are CAIRN__SINKS sinks already. */
enum { CAIRN__SINKS = 256 };
cairn_status cairn__trace_add_sink(cairn__trace_fn fn, void *cookie);

/* Removes a sink. When it returns, fn is not running and will not be called again. Must not be called from a sink. */
void cairn__trace_remove_sink(cairn__trace_fn fn, void *cookie);

/* Takes and releases the lock that sinks are called under, so that a sink can flush what it has buffered. Events that
 * the holding thread sends meanwhile are dropped. */
void cairn__trace_lock(void);
void cairn__trace_unlock(void);

bool cairn__trace_on(void);

/* Sends a span that began at begin_ns (cairn__now_ns) and ends now; begin_ns 0 makes it an instant. */
void cairn__trace(const char *room, const char *what, int64_t index, int64_t nbytes, uint64_t begin_ns);

/* Sends a span with a given end. */
void cairn__trace_span(const char *room, const char *what, int64_t index, int64_t nbytes, uint64_t begin_ns,
                       uint64_t end_ns);

/* Sends a scalar, a number that belongs to step `index`. */
void cairn__trace_scalar(const char *room, const char *what, int64_t index, double value);

/* Sends a fact about the run that holds from now on, such as opt_level O2. */
void cairn__trace_fact(const char *room, const char *what, const char *text);

/* Sends a complete event; if end_ns is 0, its time is set to now. */
void cairn__trace_send(const struct cairn__event *event);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t cairn__now_ns(void);

/* While set, environments that this thread creates belong to a model's replicas. They start no writers of their own:
 * the writers of their rank get their events. */
void cairn__trace_set_replica(bool is_set);
bool cairn__trace_is_of_a_replica(void);

#endif
