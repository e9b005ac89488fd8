/* What a training does, as events: spans of time, counters, scalars and histograms of every part of Cairn and of the
 * program, sent to any number of writers. docs/observing.md has the names of Cairn's own.
 *
 *     const uint64_t begin = cairn_span_begin();
 *     augment(batch);
 *     cairn_span_end("augment", step, begin);
 *     cairn_scalar_record("loss", step, cairn_tensor_item(loss));
 *
 * Without a writer each of these calls costs one load and one branch.
 * Threads: any, unless a function says otherwise. Names are copied where a writer keeps them. */
#ifndef CAIRN_OBSERVE_H
#define CAIRN_OBSERVE_H

#include "core.h"
#include "env.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the program's own events ---- */

/* Whether there is a writer: 1 or 0. For programs whose values cost something to find out. */
CAIRN_API int cairn_observe_is_on(void);

/* The time now, CLOCK_MONOTONIC in nanoseconds; 0 without a writer. */
CAIRN_API uint64_t cairn_span_begin(void);

/* A span of this thread from `begin` until now; nothing where begin is 0. Spans of one thread must nest.
 *
 *   step  the number that a timeline shows beside it; any */
CAIRN_API void cairn_span_end(const char *name, int64_t step, uint64_t begin);

/* A quantity that has this value from now on, such as a queue's length; a timeline draws its course. */
CAIRN_API void cairn_counter_set(const char *name, double value);

/* A number that belongs to a step, such as the loss. TensorBoard and CSV files keep these. */
CAIRN_API void cairn_scalar_record(const char *name, int64_t step, double value);

struct cairn_exponents; /* exponents.h */

/* How values are distributed: counts[i] of them are above limits[i - 1] and at most limits[i], which grow. */
struct cairn_histogram {
    size_t struct_size;
    size_t num_buckets;
    const double *limits;                     /* [num_buckets] */
    const double *counts;                     /* [num_buckets] */
    double min, max, count, sum, sum_squares; /* of all values */
    /* Values that no bucket has, and zeros, which the buckets have too. 0 = there are none, or it is not known. */
    double num_infs, num_nans, num_zeros;
    double scale;      /* what the values had been multiplied by, such as a loss scale; 0 = 1 */
    cairn_dtype dtype; /* of the values; 0 = not known */
    const struct cairn_exponents
        *exponents; /* the counts by powers of two that it was made of (exponents.h), or NULL */
};
#define cairn_histogram(...) (&(struct cairn_histogram){.struct_size = sizeof(struct cairn_histogram), __VA_ARGS__})

/* Arrays are read during the call. Errors: CAIRN_EINVAL an array is missing, more than 2048 buckets, or limits
 * do not grow. Without a writer
 * CAIRN_OK. */
CAIRN_API cairn_status cairn_histogram_record(const char *name, int64_t step, const struct cairn_histogram *histogram);

/* ---- writers ---- */

/* Programs must expect kinds that are new to them. */
typedef enum {
    CAIRN_EVENT_SPAN = 1,
    CAIRN_EVENT_COUNTER = 2,
    CAIRN_EVENT_SCALAR = 3,
    CAIRN_EVENT_HISTOGRAM = 4,
    CAIRN_EVENT_FACT = 5, /* about the run, from now on: "opt_level", "half", "device" */
} cairn_event_kind;

/* Valid during the call of a writer. Written by the library, and may grow at its end: struct_size says how far. */
struct cairn_event {
    size_t struct_size;
    cairn_event_kind kind;
    int rank;          /* of the thread, where ranks are threads (cairn_spawn_threads); else -1: of the process */
    const char *room;  /* which part of Cairn: "nn", "ddp", "comm", "optim", "amp", "data", "parallel"; "user" */
    const char *name;  /* "backward", "bucket", ... */
    int64_t index;     /* step, bucket or call */
    int64_t nbytes;    /* bytes moved, or 0 */
    uint64_t begin_ns; /* CLOCK_MONOTONIC */
    uint64_t end_ns;   /* equal to begin_ns but for spans that took time */
    double value;      /* of a counter or scalar */
    const struct cairn_histogram *histogram; /* of a histogram; else NULL */
    const char *text;                        /* of a fact: "O2"; else NULL */
};

typedef struct cairn_writer cairn_writer;

/* Sends every event of this process to fn, until the writer is destroyed.
 *
 *   fn   is called on the event's thread, one call at a time; what it sends itself is dropped. It must not create or
 *        destroy writers
 *   ctx  handed to fn
 *
 * A child of fork has no writers. Errors: CAIRN_EINVAL; CAIRN_ENOMEM; CAIRN_ESTATE 256 writers exist. */
CAIRN_API cairn_status cairn_writer_create(void (*fn)(void *ctx, const struct cairn_event *event), void *ctx,
                                           cairn_writer **out);

/* Writes what a writer of a file holds back (half a second of events, or 64 KiB). CAIRN_OK, or the first failure of
 * this writer: one that could not write has logged its error, writes no more, and leaves the training alone. */
CAIRN_API cairn_status cairn_writer_flush(cairn_writer *writer);

/* Ends it: no call of fn is under way when this returns. A file is complete then. */
CAIRN_API void cairn_writer_destroy(cairn_writer **writer);

/* ---- timelines ---- */

/* The spans, counters and scalars of this rank as a timeline that Perfetto and chrome://tracing show, a track for each
 * rank and thread. Environments make one themselves where CAIRN_TIMELINE=path is set.
 *
 *   path  of one rank, the file. Of several, rank 3 of t.json writes t.rank3.json, and the last rank to end merges what
 *         is in the same folder into t.json; then the parts of all ranks are removed. A part is valid JSON at any time,
 *         whatever becomes of its rank
 *
 * Memory of the merging rank: about twice the parts' size. Local, but every rank should have one.
 * Source: the Trace Event Format, by the Chromium authors.
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM; CAIRN_ESYSTEM the file cannot be written; CAIRN_ESTATE another writer has it. */
CAIRN_API cairn_status cairn_timeline_create(cairn_env *env, const char *path, cairn_writer **out);

/* Finds out how far this rank's clock is ahead of rank 0's, from when both enter and leave 16 exchanges, and notes it
 * in the timeline for merging. Ranks of one machine share a clock, and need no call. Ranks of several are merged by
 * their wall clocks (NTP: a millisecond or so) without it, and with it to within *seconds, a bound that holds at the
 * time of the call; clocks drift apart by some microseconds a second.
 *
 *   seconds  may be NULL; 0 on rank 0
 *
 * Collective over the environment's ranks. Errors: CAIRN_EINVAL no timeline; those of a group. */
CAIRN_API cairn_status cairn_timeline_align(cairn_env *env, cairn_writer *timeline, double *seconds);

/* Merges the parts of path that there are, as of ranks that were killed. They stay. Errors: CAIRN_EINVAL there are
 * none; CAIRN_ENOMEM; CAIRN_ESYSTEM. */
CAIRN_API cairn_status cairn_timeline_merge(const char *path);

/* ---- files of scalars ---- */

/* The scalars and histograms of this rank as TensorBoard reads them: a new file in the folder, which is made where it
 * is missing, as are those above it. Values are rounded to float, as TensorBoard's own writer does. Environments make
 * one themselves where CAIRN_TENSORBOARD=folder is set: rank 0's, or with %r in it one for each rank, which TensorBoard
 * shows as a run each.
 *
 *   folder  with the rank's number for %r
 *
 * Local. Errors: as cairn_timeline_create. Source: TensorBoard 2.x (event.proto, summary.proto; TFRecord). */
CAIRN_API cairn_status cairn_tensorboard_create(cairn_env *env, const char *folder, cairn_writer **out);

/* The scalars of this rank, a line each: step,name,value,seconds (since the writer was made). Values have 17 digits, so
 * that they are read as they were; "inf", "-inf" and "nan" are the others. Environments make one themselves where
 * CAIRN_CSV=path is set: rank 0's, or with %r in it one for each rank.
 *
 *   path  of the file, with the rank's number for %r; a file that exists is written anew
 *
 * Local. Errors: as cairn_timeline_create. */
CAIRN_API cairn_status cairn_csv_create(cairn_env *env, const char *path, cairn_writer **out);

/* ---- files for the laboratory ---- */

/* The facts, scalars and histograms of this rank for cairn-lab report: folder/rank3.jsonl, a line of JSON each, in the
 * format of docs/observing.md. The folder is made where it is missing, as are those above it; a file that exists is
 * written anew. Environments make one themselves where CAIRN_LAB=folder is set, with a recorder of exponents
 * (exponents.h) every CAIRN_LAB_EVERY steps.
 *
 *   folder  may have %r for the rank's number
 *
 * A histogram of the program's whose line is longer than 64 KiB is left out. Local. Errors: as
 * cairn_timeline_create. */
CAIRN_API cairn_status cairn_lab_create(cairn_env *env, const char *folder, cairn_writer **out);

#ifdef __cplusplus
}
#endif

#endif
