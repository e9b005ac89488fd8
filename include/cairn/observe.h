/* Events of a training: time spans, counters, scalars and histograms from every part of Cairn and from the program,
 * sent to any number of writers. docs/observing.md lists the names of Cairn's own events.
 *
 *     const uint64_t begin = cairn_span_begin();
 *     augment(batch);
 *     cairn_span_end("augment", step, begin);
 *     cairn_scalar_record("loss", step, cairn_tensor_item(loss));
 *
 * Without a writer each of these calls costs one load and one branch.
 * Threads: any, unless a function says otherwise. Writers copy the names that they keep. */
#ifndef CAIRN_OBSERVE_H
#define CAIRN_OBSERVE_H

#include "core.h"
#include "env.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the program's own events ---- */

/* 1 if there is a writer, otherwise 0. For programs whose values are expensive to compute. */
CAIRN_API int cairn_observe_is_on(void);

/* The current time, CLOCK_MONOTONIC in nanoseconds; 0 without a writer. */
CAIRN_API uint64_t cairn_span_begin(void);

/* Records a span of this thread from `begin` until now; does nothing if begin is 0. Spans of one thread must nest.
 *
 *   step  any number; a timeline shows it beside the span */
CAIRN_API void cairn_span_end(const char *name, int64_t step, uint64_t begin);

/* Sets a quantity that keeps this value until the next call, such as a queue's length; a timeline plots it over
 * time. */
CAIRN_API void cairn_counter_set(const char *name, double value);

/* A number that belongs to a step, such as the loss. TensorBoard and CSV files keep these. */
CAIRN_API void cairn_scalar_record(const char *name, int64_t step, double value);

struct cairn_exponents; /* exponents.h */

/* A distribution of values: counts[i] of them are above limits[i - 1] and at most limits[i]; limits are ascending. */
struct cairn_histogram {
    size_t struct_size;
    size_t num_buckets;
    const double *limits;                     /* [num_buckets] */
    const double *counts;                     /* [num_buckets] */
    double min, max, count, sum, sum_squares; /* of all values */
    /* Infinities and NaNs, which are in no bucket, and zeros, which are in the buckets too. 0 = none, or not known. */
    double num_infs, num_nans, num_zeros;
    double scale;      /* what the values were multiplied by, such as a loss scale; 0 = 1 */
    cairn_dtype dtype; /* of the values; 0 = not known */
    const struct cairn_exponents
        *exponents; /* the counts by powers of two that it was made from (exponents.h), or NULL */
};
#define cairn_histogram(...) (&(struct cairn_histogram){.struct_size = sizeof(struct cairn_histogram), __VA_ARGS__})

/* The arrays are read during the call. Errors: CAIRN_EINVAL an array is missing, more than 2048 buckets, or limits are
 * not ascending. Without a writer the call returns CAIRN_OK. */
CAIRN_API cairn_status cairn_histogram_record(const char *name, int64_t step, const struct cairn_histogram *histogram);

/* ---- writers ---- */

/* Programs must ignore kinds that they do not know: new ones may be added. */
typedef enum {
    CAIRN_EVENT_SPAN = 1,
    CAIRN_EVENT_COUNTER = 2,
    CAIRN_EVENT_SCALAR = 3,
    CAIRN_EVENT_HISTOGRAM = 4,
    CAIRN_EVENT_FACT = 5, /* a property of the run from now on: "opt_level", "half", "device" */
} cairn_event_kind;

/* Valid during the writer's call. Written by the library; new fields are added at the end, as struct_size tells. */
struct cairn_event {
    size_t struct_size;
    cairn_event_kind kind;
    int rank;          /* of the thread, where ranks are threads (cairn_spawn_threads); -1 = the process's rank */
    const char *room;  /* which part of Cairn: "nn", "ddp", "comm", "optim", "amp", "data", "parallel"; "user" */
    const char *name;  /* "backward", "bucket", ... */
    int64_t index;     /* step, bucket or call */
    int64_t nbytes;    /* bytes moved, or 0 */
    uint64_t begin_ns; /* CLOCK_MONOTONIC */
    uint64_t end_ns;   /* begin_ns, except for spans that took time */
    double value;      /* of a counter or scalar */
    const struct cairn_histogram *histogram; /* of a histogram; else NULL */
    const char *text;                        /* of a fact: "O2"; else NULL */
};

typedef struct cairn_writer cairn_writer;

/* Sends every event of this process to fn, until the writer is destroyed.
 *
 *   fn   called on the thread of the event, one call at a time; events that fn itself sends are dropped. It must not
 *        create or destroy writers
 *   ctx  passed to fn
 *
 * A child of fork has no writers. Errors: CAIRN_EINVAL; CAIRN_ENOMEM; CAIRN_ESTATE 256 writers exist. */
CAIRN_API cairn_status cairn_writer_create(void (*fn)(void *ctx, const struct cairn_event *event), void *ctx,
                                           cairn_writer **out);

/* Writes what a file's writer still buffers (half a second of events, or 64 KiB). Returns CAIRN_OK or the writer's
 * first failure: a writer that cannot write logs its error and stops, without effect on the training. */
CAIRN_API cairn_status cairn_writer_flush(cairn_writer *writer);

/* Destroys the writer: when this returns no call of fn is under way, and a file is complete. */
CAIRN_API void cairn_writer_destroy(cairn_writer **writer);

/* ---- timelines ---- */

/* Writes the spans, counters and scalars of this rank as a timeline for Perfetto and chrome://tracing, with a track for
 * each rank and thread. If CAIRN_TIMELINE=path is set, environments make one themselves.
 *
 *   path  with one rank, the file. With several, rank 3 of t.json writes the part t.rank3.json, and the last rank to
 *         end merges the parts in the same folder into t.json and removes them. A part is valid JSON at any time, even
 *         if its rank is killed
 *
 * Memory of the merging rank: about twice the parts' size. Not collective, but every rank should make one.
 * Source: the Trace Event Format, by the Chromium authors.
 * Errors: CAIRN_EINVAL; CAIRN_ENOMEM; CAIRN_ESYSTEM the file cannot be written; CAIRN_ESTATE another writer has it. */
CAIRN_API cairn_status cairn_timeline_create(cairn_env *env, const char *path, cairn_writer **out);

/* Measures how far this rank's clock is ahead of rank 0's, from the times at which both enter and leave 16 exchanges,
 * and stores the offset in the timeline for merging. Ranks of one machine share a clock and need no call. Without it,
 * ranks of several machines are merged by their wall clocks (NTP: a millisecond or so); with it, to within *seconds.
 * That bound holds at the time of the call; clocks drift apart by some microseconds a second.
 *
 *   seconds  out; may be NULL. 0 on rank 0
 *
 * Collective over the environment's ranks. Errors: CAIRN_EINVAL no timeline; those of a group. */
CAIRN_API cairn_status cairn_timeline_align(cairn_env *env, cairn_writer *timeline, double *seconds);

/* Merges the existing parts of path, for instance those of ranks that were killed, and keeps the parts. Errors:
 * CAIRN_EINVAL there are no parts; CAIRN_ENOMEM; CAIRN_ESYSTEM. */
CAIRN_API cairn_status cairn_timeline_merge(const char *path);

/* ---- files of scalars ---- */

/* Writes the scalars and histograms of this rank for TensorBoard: a new file in the folder, which is created with its
 * parents if missing. Values are rounded to float, as by TensorBoard's own writer. If CAIRN_TENSORBOARD=folder is set,
 * environments make one themselves: on rank 0 only, or with %r in the name on each rank, which TensorBoard shows as
 * separate runs.
 *
 *   folder  %r in it stands for the rank's number
 *
 * Not collective. Errors: as cairn_timeline_create. Source: TensorBoard 2.x (event.proto, summary.proto; TFRecord). */
CAIRN_API cairn_status cairn_tensorboard_create(cairn_env *env, const char *folder, cairn_writer **out);

/* Writes the scalars of this rank, one line each: step,name,value,seconds (since the writer was made). Values have 17
 * digits, so they are read back exactly; others are "inf", "-inf" and "nan". If CAIRN_CSV=path is set, environments
 * make one themselves: on rank 0 only, or with %r in the name on each rank.
 *
 *   path  of the file; %r in it stands for the rank's number. An existing file is overwritten
 *
 * Not collective. Errors: as cairn_timeline_create. */
CAIRN_API cairn_status cairn_csv_create(cairn_env *env, const char *path, cairn_writer **out);

/* ---- files for the laboratory ---- */

/* Writes the facts, scalars and histograms of this rank for cairn-lab report: folder/rank3.jsonl, one line of JSON
 * each, in the format of docs/observing.md. The folder is created with its parents if missing; an existing file is
 * overwritten. If CAIRN_LAB=folder is set, environments make one themselves, with a recorder of exponents (exponents.h)
 * every CAIRN_LAB_EVERY steps.
 *
 *   folder  %r in it stands for the rank's number
 *
 * A histogram of the program's whose line is longer than 64 KiB is dropped. Not collective. Errors: as
 * cairn_timeline_create. */
CAIRN_API cairn_status cairn_lab_create(cairn_env *env, const char *folder, cairn_writer **out);

#ifdef __cplusplus
}
#endif

#endif
