/* Trace events reach the sink, and cost nothing without one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/trace.h"

static int heard;
static struct cairn__event last;

static void hear(void *cookie, const struct cairn__event *event) {
    heard += *(int *)cookie;
    last = *event;
}

static void events_reach_the_sink_with_their_span(void **state) {
    (void)state;
    int step = 1;
    cairn__trace_set_sink(hear, &step);
    assert_true(cairn__trace_on());
    uint64_t begin = cairn__now_ns();
    cairn__trace("ddp", "bucket_launch", 3, 4096, begin);
    assert_int_equal(heard, 1);
    assert_string_equal(last.room, "ddp");
    assert_string_equal(last.what, "bucket_launch");
    assert_int_equal(last.index, 3);
    assert_int_equal(last.nbytes, 4096);
    assert_true(last.begin_ns == begin && last.end_ns >= begin);
    cairn__trace_set_sink(NULL, NULL);
}

static void an_instant_begins_when_it_ends(void **state) {
    (void)state;
    int step = 1;
    cairn__trace_set_sink(hear, &step);
    cairn__trace("amp", "step_skipped", 7, 0, 0);
    assert_true(last.begin_ns == last.end_ns && last.begin_ns > 0);
    cairn__trace_set_sink(NULL, NULL);
}

static void events_without_a_sink_are_dropped(void **state) {
    (void)state;
    int before = heard;
    assert_false(cairn__trace_on());
    cairn__trace("nn", "backward", 0, 0, 0);
    assert_int_equal(heard, before);
}

static void the_clock_does_not_go_back(void **state) {
    (void)state;
    uint64_t now = cairn__now_ns();
    for (int i = 0; i < 1000; i++) {
        uint64_t later = cairn__now_ns();
        assert_true(later >= now);
        now = later;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_reach_the_sink_with_their_span),
        cmocka_unit_test(an_instant_begins_when_it_ends),
        cmocka_unit_test(events_without_a_sink_are_dropped),
        cmocka_unit_test(the_clock_does_not_go_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
