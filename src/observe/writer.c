/* The program's events, and writers of any kind. */
#include "observe/writer.h"

#include "core/alloc.h"
#include "core/fork.h"
#include "core/log.h"
#include "core/options.h"
#include "core/status.h"

enum { MOST_BUCKETS = 2048 };

/* ---- events ---- */

int cairn_observe_is_on(void) {
    return cairn__trace_on();
}

uint64_t cairn_span_begin(void) {
    return cairn__trace_on() ? cairn__now_ns() : 0;
}

void cairn_span_end(const char *name, int64_t step, uint64_t begin) {
    if (begin && name) cairn__trace("user", name, step, 0, begin);
}

void cairn_counter_set(const char *name, double value) {
    if (!cairn__trace_on() || !name) return;
    cairn__trace_send(&(struct cairn__event){.room = "user", .what = name, .kind = CAIRN__COUNTER, .value = value});
}

void cairn_scalar_record(const char *name, int64_t step, double value) {
    if (cairn__trace_on() && name) cairn__trace_scalar("user", name, step, value);
}

cairn_status cairn_histogram_record(const char *name, int64_t step, const struct cairn_histogram *histogram) {
    if (!cairn__trace_on()) return CAIRN_OK;
    struct cairn_histogram h = *cairn_histogram(.num_buckets = 0);
    cairn_status st = CAIRN_OK;
    REQUIRE(name && histogram, CAIRN_EINVAL, "cairn_histogram_record: name and histogram must be set");
    TRY(cairn__options_read(&h, sizeof(h), histogram, "cairn_histogram"));
    REQUIRE(h.num_buckets == 0 || (h.limits && h.counts), CAIRN_EINVAL,
            "cairn_histogram_record: '%.200s' has %zu buckets, and no limits or no counts", name, h.num_buckets);
    REQUIRE(h.num_buckets <= MOST_BUCKETS, CAIRN_EINVAL,
            "cairn_histogram_record: '%.200s' has %zu buckets; it can have %d", name, h.num_buckets, MOST_BUCKETS);
    for (size_t i = 1; i < h.num_buckets; i++)
        REQUIRE(h.limits[i] > h.limits[i - 1], CAIRN_EINVAL,
                "cairn_histogram_record: limits of '%.200s' must grow, but [%zu] is %g behind %g", name, i, h.limits[i],
                h.limits[i - 1]);
    cairn__trace_send(
        &(struct cairn__event){.room = "user", .what = name, .index = step, .kind = CAIRN__HISTOGRAM, .histogram = &h});
out:
    return st;
}

/* ---- writers ---- */

static void hear(void *cookie, const struct cairn__event *event) {
    struct cairn_writer *w = cookie;
    const int rank = cairn__log_thread_rank();
    if (w->rank < 0 || rank == CAIRN__LOG_RANK_OF_PROCESS || rank == w->rank) w->kind->hear(w, event);
}

cairn_status cairn__writer_begin(struct cairn_writer *writer) {
    writer->forks = cairn__forks();
    /* A process's replicas are threads too. */
    if (cairn__log_thread_rank() == CAIRN__LOG_RANK_OF_PROCESS) writer->rank = -1;
    return cairn__trace_add_sink(hear, writer);
}

cairn_status cairn_writer_flush(cairn_writer *writer) {
    REQUIRE(writer, CAIRN_EINVAL, "cairn_writer_flush: writer is NULL");
    if (!writer->kind->flush || writer->forks != cairn__forks()) return CAIRN_OK;
    cairn__trace_lock();
    const cairn_status st = writer->kind->flush(writer);
    cairn__trace_unlock();
    return st;
}

void cairn_writer_destroy(cairn_writer **writer) {
    if (!writer || !*writer) return;
    cairn__trace_remove_sink(hear, *writer);
    (*writer)->kind->end(*writer, (*writer)->forks == cairn__forks());
    *writer = NULL;
}

/* ---- the program's own ---- */

struct user_writer {
    struct cairn_writer base;
    void (*fn)(void *ctx, const struct cairn_event *event);
    void *ctx;
};

static void user_hear(struct cairn_writer *writer, const struct cairn__event *e) {
    static const cairn_event_kind kinds[] = {[CAIRN__SPAN] = CAIRN_EVENT_SPAN,
                                             [CAIRN__COUNTER] = CAIRN_EVENT_COUNTER,
                                             [CAIRN__SCALAR] = CAIRN_EVENT_SCALAR,
                                             [CAIRN__HISTOGRAM] = CAIRN_EVENT_HISTOGRAM,
                                             [CAIRN__FACT] = CAIRN_EVENT_FACT};
    const struct user_writer *w = (const struct user_writer *)writer;
    const struct cairn_event shown = {.struct_size = sizeof(shown),
                                      .kind = kinds[e->kind],
                                      .rank = cairn__log_thread_rank(),
                                      .room = e->room,
                                      .name = e->what,
                                      .index = e->index,
                                      .nbytes = e->nbytes,
                                      .begin_ns = e->begin_ns,
                                      .end_ns = e->end_ns,
                                      .value = e->value,
                                      .histogram = e->histogram,
                                      .text = e->text};
    w->fn(w->ctx, &shown);
}

static void user_end(struct cairn_writer *writer, bool is_own) {
    (void)is_own;
    cairn__free(writer);
}

cairn_status cairn_writer_create(void (*fn)(void *ctx, const struct cairn_event *event), void *ctx,
                                 cairn_writer **out) {
    static const struct cairn__writer_kind kind = {.hear = user_hear, .end = user_end};
    struct user_writer *w = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(fn && out, CAIRN_EINVAL, "cairn_writer_create: fn and out must be set");
    TRY(cairn__calloc(1, sizeof(*w), (void **)&w));
    *w = (struct user_writer){.base = {.kind = &kind, .rank = -1}, .fn = fn, .ctx = ctx};
    TRY(cairn__writer_begin(&w->base));
    *out = &w->base;
    return CAIRN_OK;
out:
    cairn__free(w);
    return st;
}
