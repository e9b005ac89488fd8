/* Rings of reports that a device writes and the host reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/reports.h"
#include "kernels/step.h"

struct report {
    uint64_t number, payload;
};

static struct report ring[CAIRN__REPORTS];

static void leave(uint64_t first, uint64_t last) {
    for (uint64_t n = first; n <= last; n++) ring[n % CAIRN__REPORTS] = (struct report){n, 10 * n};
}

/* Reads on until nothing is new, in order from `first` to `last`. */
static void expect(uint64_t *seen, uint64_t first, uint64_t last) {
    struct report r;
    for (uint64_t n = first; n <= last; n++) {
        assert_true(cairn__reports_next(ring, sizeof(ring[0]), seen, &r));
        assert_int_equal(r.number, n);
        assert_int_equal(r.payload, 10 * n);
        assert_int_equal(*seen, n);
    }
    assert_false(cairn__reports_next(ring, sizeof(ring[0]), seen, &r));
}

static int empty_ring(void **state) {
    (void)state;
    for (int i = 0; i < CAIRN__REPORTS; i++) ring[i] = (struct report){0, 0};
    return 0;
}

static void every_report_is_read_once_in_order(void **state) {
    (void)state;
    uint64_t seen = 0;
    expect(&seen, 1, 0);
    leave(1, 1);
    expect(&seen, 1, 1);
    leave(2, 9);
    expect(&seen, 2, 9);
}

static void late_host_misses_the_oldest_reports_only(void **state) {
    (void)state;
    uint64_t seen = 3;
    leave(1, 100);
    expect(&seen, 100 - CAIRN__REPORTS + 2, 100);
    assert_false(cairn__reports_is_whole(ring, sizeof(ring[0]), 100 - CAIRN__REPORTS + 1));
    assert_true(cairn__reports_is_whole(ring, sizeof(ring[0]), 100 - CAIRN__REPORTS + 2));
}

static void report_that_is_being_overwritten_is_not_read(void **state) {
    (void)state;
    uint64_t seen = 4;
    leave(1, 20);
    ring[21 % CAIRN__REPORTS].payload = 1; /* 21 goes over 5, whose number still stands there */
    expect(&seen, 6, 20);
}

static void the_last_report_is_found_and_zeros_before_any(void **state) {
    (void)state;
    struct report r = {7, 7};
    cairn__reports_last(ring, sizeof(ring[0]), &r);
    assert_int_equal(r.number, 0);
    assert_int_equal(r.payload, 0);
    leave(1, 37);
    cairn__reports_last(ring, sizeof(ring[0]), &r);
    assert_int_equal(r.number, 37);
    assert_int_equal(r.payload, 370);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_report_is_read_once_in_order, empty_ring),
        cmocka_unit_test_setup(late_host_misses_the_oldest_reports_only, empty_ring),
        cmocka_unit_test_setup(report_that_is_being_overwritten_is_not_read, empty_ring),
        cmocka_unit_test_setup(the_last_report_is_found_and_zeros_before_any, empty_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
