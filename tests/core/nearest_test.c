/* "Did you mean": the nearest name to a misspelt one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/nearest.h"

static const char *nearest(const char *written) {
    static const char *const names[] = {"loss-scale", "running-sum", "seed", "terms", "all"};
    struct cairn__nearest n = {.written = written};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) cairn__nearest_try(&n, names[i]);
    return n.name ? n.name : "none";
}

static void a_letter_too_few_too_many_wrong_or_swapped_is_near(void **state) {
    (void)state;
    assert_string_equal(nearest("runing-sum"), "running-sum");
    assert_string_equal(nearest("running-summ"), "running-sum");
    assert_string_equal(nearest("lossyscale"), "loss-scale");
    assert_string_equal(nearest("lsos-scale"), "loss-scale");
    assert_string_equal(nearest("terms"), "terms");
}

static void short_names_may_differ_by_less_than_long_ones(void **state) {
    (void)state;
    assert_string_equal(nearest("unning-summ"), "running-sum");
    assert_string_equal(nearest("unning-sumed"), "none");
    assert_string_equal(nearest("sead"), "seed");
    assert_string_equal(nearest("aead"), "none");
    assert_string_equal(nearest("al"), "none");
    assert_string_equal(nearest(""), "none");
}

static void a_name_longer_than_the_table_is_like_no_other(void **state) {
    (void)state;
    char name[CAIRN__NEAREST_MAX + 2];
    memset(name, 'a', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    struct cairn__nearest n = {.written = name};
    cairn__nearest_try(&n, name);
    assert_null(n.name);
    name[CAIRN__NEAREST_MAX] = '\0';
    cairn__nearest_try(&n, name);
    assert_ptr_equal(n.name, name);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_letter_too_few_too_many_wrong_or_swapped_is_near),
        cmocka_unit_test(short_names_may_differ_by_less_than_long_ones),
        cmocka_unit_test(a_name_longer_than_the_table_is_like_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
