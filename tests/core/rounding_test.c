/* With the flags of the build, the compiler omits no rounding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static double held(int narrow, double x) {
    return narrow ? (float)x : x;
}

__attribute__((noinline)) static void hold_two(double *y, const double *x, int narrow) {
    const double a = held(narrow, x[0]), b = held(narrow, x[1]);
    y[0] = a;
    y[1] = b;
}

/* gcc 12 leaves it out where it vectorizes the two: meson.build turns that off. */
static void neighbours_are_rounded_only_if_narrowed(void **state) {
    const double x[2] = {1.1, 5.3};
    double y[2];
    (void)state;
    hold_two(y, x, 1);
    assert_true(y[0] == (double)1.1f && y[1] == (double)5.3f);
    hold_two(y, x, 0);
    assert_true(y[0] == 1.1 && y[1] == 5.3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_are_rounded_only_if_narrowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
