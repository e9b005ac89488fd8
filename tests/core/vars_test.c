/* Environment variables: strict parsing, and the table of variables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/vars.h"

static void unset_and_empty_are_the_same(void **state) {
    (void)state;
    bool present = true;
    long value = 7;
    unsetenv("RANK");
    assert_null(cairn__var("RANK"));
    assert_int_equal(cairn__var_int("RANK", 0, 10, &present, &value), CAIRN_OK);
    assert_false(present);
    setenv("RANK", "", 1);
    assert_null(cairn__var("RANK"));
    assert_int_equal(cairn__var_int("RANK", 0, 10, &present, &value), CAIRN_OK);
    assert_false(present);
    assert_int_equal(value, 7);
}

static void whole_numbers_in_range_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        long value;
    } good[] = {{"0", 0}, {"10", 10}, {"-5", -5}, {"007", 7}};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        bool present = false;
        long value = 99;
        setenv("RANK", good[i].text, 1);
        assert_int_equal(cairn__var_int("RANK", -5, 10, &present, &value), CAIRN_OK);
        assert_true(present);
        assert_int_equal(value, good[i].value);
    }
}

static void anything_else_is_refused_with_its_text(void **state) {
    (void)state;
    static const char *const bad[] = {"two", "1.0", "1x",  " 1", "1 ", "+1",
                                      "0x1", "-",   "--1", "11", "-6", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        bool present = false;
        long value = 99;
        setenv("RANK", bad[i], 1);
        assert_int_equal(cairn__var_int("RANK", -5, 10, &present, &value), CAIRN_EINVAL);
        assert_int_equal(value, 99);
        assert_non_null(strstr(cairn_last_error(), bad[i]));
        assert_non_null(strstr(cairn_last_error(), "RANK"));
        assert_non_null(strstr(cairn_last_error(), "[-5, 10]"));
    }
}

static void seconds_are_positive_and_finite(void **state) {
    (void)state;
    static const char *const bad[] = {"0", "-1", "nan", "inf", "1s", " 1", "0x10", "1e999", "e", "."};
    double value = 300;
    unsetenv("CAIRN_TIMEOUT");
    assert_int_equal(cairn__var_seconds("CAIRN_TIMEOUT", &value), CAIRN_OK);
    assert_true(value == 300);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        setenv("CAIRN_TIMEOUT", bad[i], 1);
        assert_int_equal(cairn__var_seconds("CAIRN_TIMEOUT", &value), CAIRN_EINVAL);
        assert_true(value == 300);
    }
    setenv("CAIRN_TIMEOUT", "0.25", 1);
    assert_int_equal(cairn__var_seconds("CAIRN_TIMEOUT", &value), CAIRN_OK);
    assert_true(value == 0.25);
    unsetenv("CAIRN_TIMEOUT");
}

static void every_variable_is_listed_once_with_a_meaning(void **state) {
    (void)state;
    size_t count = 0;
    for (const struct cairn__var_info *v = cairn__vars; v->name; v++, count++) {
        assert_true(v->name[0] && v->meaning && v->meaning[0]);
        for (const struct cairn__var_info *w = cairn__vars; w != v; w++) assert_string_not_equal(v->name, w->name);
    }
    assert_true(count > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unset_and_empty_are_the_same),
        cmocka_unit_test(whole_numbers_in_range_are_read),
        cmocka_unit_test(anything_else_is_refused_with_its_text),
        cmocka_unit_test(seconds_are_positive_and_finite),
        cmocka_unit_test(every_variable_is_listed_once_with_a_meaning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
