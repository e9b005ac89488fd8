/* Timelines in Chrome's trace format, which Perfetto reads. Each rank writes a part, and the rank that ends last merges
 * them.
 *
 * A part's lines are events, of which the first names the clock. Spans that begin and end on one thread nest, and are
 * complete events ("X") of that thread. Spans of ddp and comm overlap each other and the thread's computation, so each
 * is a pair of asynchronous events ("b", "e"). Source: the Trace Event Format, by the Chromium authors. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/fork.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/vars.h"
#include "device/env.h"
#include "observe/json.h"
#include "observe/merge.h"
#include "observe/names.h"
#include "observe/out.h"
#include "observe/timeline.h"
#include "observe/writer.h"

enum { LINE = 2048, NAME = 600, THREADS = 256 };

struct timeline {
    struct cairn_writer base;
    struct cairn__out out;
    char *merged; /* path of the merged timeline; NULL = one rank, whose file is the timeline */
    int size;
    int rank;
    uint64_t next_id;
    int64_t threads[THREADS]; /* threads named so far */
    int num_threads;
};

/* ---- lines ---- */

static int64_t this_thread(void) {
    static _Thread_local int64_t id;
    static _Thread_local unsigned forks;
    if (!id || forks != cairn__forks()) id = (int64_t)syscall(SYS_gettid);
    forks = cairn__forks();
    return id;
}

static void put_line(struct timeline *t, const char *line, int n, uint64_t now) {
    if (n > 0 && n < LINE) cairn__out_put(&t->out, line, (size_t)n, now);
}

static void name_thread(struct timeline *t, int64_t tid) {
    char line[LINE], raw[16] = "", name[64];
    for (int i = 0; i < t->num_threads; i++)
        if (t->threads[i] == tid) return;
    t->threads[t->num_threads < THREADS ? t->num_threads++ : THREADS - 1] = tid;
    (void)pthread_getname_np(pthread_self(), raw, sizeof(raw));
    cairn__json_escape(raw, name, sizeof(name));
    put_line(t, line,
             snprintf(line, sizeof(line),
                      ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%" PRId64
                      ",\"args\":{\"name\":\"%s\"}}",
                      t->rank, tid, name),
             0);
}

static void put_span(struct timeline *t, const struct cairn__event *e, const char *name) {
    const uint64_t took = e->end_ns > e->begin_ns ? e->end_ns - e->begin_ns : 0;
    const int64_t tid = this_thread();
    char line[LINE], bytes[48] = "";
    name_thread(t, tid);
    if (e->nbytes > 0) snprintf(bytes, sizeof(bytes), ",\"nbytes\":%" PRId64, e->nbytes);
    const bool overlaps = strcmp(e->room, "ddp") == 0 || strcmp(e->room, "comm") == 0;
    const char *phase = took == 0 ? "i" : overlaps ? "b" : "X";
    int n = snprintf(line, sizeof(line),
                     ",\n{\"ts\":%" PRIu64 ".%03u,\"ph\":\"%s\",\"pid\":%d,\"tid\":%" PRId64
                     ",\"cat\":\"%s\",\"name\":\"%s\"",
                     e->begin_ns / 1000, (unsigned)(e->begin_ns % 1000), phase, t->rank, tid, e->room, name);
    if (n <= 0 || n >= LINE) return;
    if (*phase == 'X')
        n += snprintf(line + n, (size_t)(LINE - n), ",\"dur\":%" PRIu64 ".%03u", took / 1000, (unsigned)(took % 1000));
    if (*phase == 'i') n += snprintf(line + n, (size_t)(LINE - n), ",\"s\":\"t\"");
    if (*phase == 'b') n += snprintf(line + n, (size_t)(LINE - n), ",\"id\":\"%d.%" PRIu64 "\"", t->rank, ++t->next_id);
    n += snprintf(line + n, (size_t)(LINE - n), ",\"args\":{\"index\":%" PRId64 "%s}}", e->index, bytes);
    if (*phase == 'b')
        n += snprintf(line + n, (size_t)(LINE - n),
                      ",\n{\"ts\":%" PRIu64 ".%03u,\"ph\":\"e\",\"pid\":%d,\"tid\":%" PRId64
                      ",\"cat\":\"%s\",\"name\":\"%s\",\"id\":\"%d.%" PRIu64 "\"}",
                      e->end_ns / 1000, (unsigned)(e->end_ns % 1000), t->rank, tid, e->room, name, t->rank, t->next_id);
    put_line(t, line, n, e->end_ns);
}

/* JSON has neither infinities nor NaN. */
static void put_value(struct timeline *t, const struct cairn__event *e, const char *name) {
    char line[LINE];
    if (!isfinite(e->value)) return;
    put_line(t, line,
             snprintf(line, sizeof(line),
                      ",\n{\"ts\":%" PRIu64 ".%03u,\"ph\":\"C\",\"pid\":%d,\"tid\":0,\"name\":\"%s\",\"args\":{"
                      "\"value\":%.17g}}",
                      e->end_ns / 1000, (unsigned)(e->end_ns % 1000), t->rank, name, e->value),
             e->end_ns);
}

static void hear(struct cairn_writer *writer, const struct cairn__event *e) {
    struct timeline *t = (struct timeline *)writer;
    char name[NAME];
    cairn__json_escape(e->what, name, sizeof(name));
    if (e->kind == CAIRN__SPAN) put_span(t, e, name);
    if (e->kind == CAIRN__COUNTER || e->kind == CAIRN__SCALAR) put_value(t, e, name);
}

/* ---- clocks ---- */

/* An identifier of the machine's clock: ranks with equal ones share CLOCK_MONOTONIC. */
static uint64_t clock_name(void) {
    char text[100] = "";
    const char *given = cairn__var("CAIRN_HOST_ID");
    FILE *f = given ? NULL : fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f && !fgets(text, sizeof(text), f)) text[0] = '\0';
    if (f) fclose(f);
    if (!given && !text[0]) (void)gethostname(text, sizeof(text) - 1);
    return cairn__hash_text(CAIRN__HASH_START, given ? given : text);
}

/* How far CLOCK_REALTIME is ahead of CLOCK_MONOTONIC. */
static int64_t wall_offset(void) {
    struct timespec wall;
    const uint64_t before = cairn__now_ns();
    clock_gettime(CLOCK_REALTIME, &wall);
    const uint64_t after = cairn__now_ns();
    return (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - (int64_t)(before + (after - before) / 2);
}

static void put_clock(struct timeline *t, const char *before, int64_t ahead_ns, int64_t within_ns) {
    char line[LINE];
    int n =
        snprintf(line, sizeof(line),
                 "%s\n{\"ph\":\"M\",\"name\":\"cairn_clock\",\"pid\":%d,\"tid\":0,\"args\":{\"rank\":%d,\"size\":%d,"
                 "\"clock\":\"%016" PRIx64 "\",\"wall_ns\":%" PRId64,
                 before, t->rank, t->rank, t->size, clock_name(), wall_offset());
    if (within_ns >= 0)
        n += snprintf(line + n, (size_t)(LINE - n), ",\"ahead_ns\":%" PRId64 ",\"within_ns\":%" PRId64, ahead_ns,
                      within_ns);
    n += snprintf(line + n, (size_t)(LINE - n), "}}");
    put_line(t, line, n, 0);
}

/* ---- making and ending ---- */

static cairn_status flush(struct cairn_writer *writer) {
    return cairn__out_flush_loudly(&((struct timeline *)writer)->out);
}

static void end(struct cairn_writer *writer, bool is_own) {
    struct timeline *t = (struct timeline *)writer;
    cairn__out_close(&t->out, is_own);
    if (is_own && t->merged && cairn__timeline_merge_last(t->merged, t->size) != CAIRN_OK)
        cairn__log(CAIRN_LOG_ERROR, "the parts of the timeline stay as they are: %s", cairn_last_error());
    cairn__free(t->merged);
    cairn__free(t);
}

static const struct cairn__writer_kind timeline_kind = {.hear = hear, .flush = flush, .end = end};

cairn_status cairn__timeline_open(int rank, int size, const char *path, cairn_writer **out) {
    struct timeline *t = NULL;
    char name[CAIRN__OBSERVE_PATH], line[LINE];
    cairn_status st = CAIRN_OK;
    TRY(size > 1 ? cairn__path_of_part(path, rank, name) : cairn__path_of_rank(path, rank, name));
    TRY(cairn__calloc(1, sizeof(*t), (void **)&t));
    *t = (struct timeline){.base = {.kind = &timeline_kind, .rank = rank}, .out.fd = -1, .rank = rank, .size = size};
    if (size > 1) TRY(cairn__strdup(path, &t->merged));
    TRY(cairn__out_open(&t->out, "timeline", name, "\n]}\n"));
    put_line(t, line, snprintf(line, sizeof(line), "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["), 0);
    put_clock(t, "", 0, rank == 0 ? 0 : -1);
    put_line(t, line,
             snprintf(line, sizeof(line),
                      ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"rank %d\"}}"
                      ",\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,\"tid\":0,\"args\":{"
                      "\"sort_index\":%d}}",
                      rank, rank, rank, rank),
             0);
    TRY(cairn__out_flush_loudly(&t->out));
    TRY(cairn__writer_begin(&t->base));
    *out = &t->base;
    return CAIRN_OK;
out:
    if (t) cairn__out_close(&t->out, false);
    if (t) cairn__free(t->merged);
    cairn__free(t);
    return st;
}

cairn_status cairn_timeline_create(cairn_env *env, const char *path, cairn_writer **out) {
    REQUIRE(env && path && out, CAIRN_EINVAL, "cairn_timeline_create: env, path and out must be set");
    return cairn__timeline_open(env->rank, env->size, path, out);
}

/* ---- aligning clocks ---- */

enum { ROUNDS = 16 };

/* No rank leaves a gather before all have entered it, so rank 0 leaves after this rank has entered, and the other way
 * round. Every round therefore bounds how far this rank's clock is ahead. */
static cairn_status bound(struct cairn_env *env, int64_t *least, int64_t *most) {
    struct moments {
        uint64_t entered[ROUNDS], left[ROUNDS];
    } mine, *all = NULL;
    const size_t words = sizeof(mine) / sizeof(int32_t);
    cairn_status st = CAIRN_OK;
    TRY(cairn__calloc((size_t)env->size, sizeof(mine), (void **)&all));
    for (int i = 0; i < ROUNDS; i++) {
        const int32_t word = i;
        mine.entered[i] = cairn__now_ns();
        TRY(env->gather(env, (int32_t *)all, &word, 1));
        mine.left[i] = cairn__now_ns();
    }
    TRY(env->gather(env, (int32_t *)all, (const int32_t *)&mine, words));
    *least = INT64_MIN;
    *most = INT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        const int64_t low = (int64_t)(mine.entered[i] - all[0].left[i]),
                      high = (int64_t)(mine.left[i] - all[0].entered[i]);
        *least = low > *least ? low : *least;
        *most = high < *most ? high : *most;
    }
out:
    cairn__free(all);
    return st;
}

cairn_status cairn_timeline_align(cairn_env *env, cairn_writer *writer, double *seconds) {
    int64_t least = 0, most = 0;
    cairn_status st = CAIRN_OK;
    REQUIRE(env && writer, CAIRN_EINVAL, "cairn_timeline_align: env and writer must be set");
    REQUIRE(writer->kind == &timeline_kind, CAIRN_EINVAL, "cairn_timeline_align: the writer is not a timeline");
    struct timeline *t = (struct timeline *)writer;
    if (env->size > 1 && env->rank >= 0) TRY(bound(env, &least, &most));
    const int64_t ahead = env->rank == 0 ? 0 : least + (most - least) / 2;
    const int64_t within = env->rank == 0 ? 0 : (most - least + 1) / 2;
    cairn__trace_lock();
    put_clock(t, ",", ahead, within);
    cairn__trace_unlock();
    if (seconds) *seconds = (double)within * 1e-9;
out:
    return st;
}
