/* Trace events. */
#include "core/trace.h"

#include <time.h>

static cairn__trace_fn sink;
static void *sink_cookie;

void cairn__trace_set_sink(cairn__trace_fn fn, void *cookie) {
    sink = fn;
    sink_cookie = cookie;
}

bool cairn__trace_on(void) {
    return sink != NULL;
}

void cairn__trace(const char *room, const char *what, int64_t index, int64_t nbytes, uint64_t begin_ns) {
    if (!sink) return;
    uint64_t now = cairn__now_ns();
    struct cairn__event event = {room, what, index, nbytes, begin_ns ? begin_ns : now, now};
    sink(sink_cookie, &event);
}

void cairn__trace_span(const char *room, const char *what, int64_t index, int64_t nbytes, uint64_t begin_ns,
                       uint64_t end_ns) {
    if (!sink) return;
    struct cairn__event event = {room, what, index, nbytes, begin_ns, end_ns};
    sink(sink_cookie, &event);
}

uint64_t cairn__now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
