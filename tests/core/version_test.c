/* The version at run time, with the shared and with the static library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cairn/core.h>

static void the_library_says_the_version_that_was_built(void **state) {
    (void)state;
    assert_string_equal(cairn_version_string(), PROJECT_VERSION);
    assert_int_equal(cairn_version(), CAIRN_VERSION);
}

static void a_number_of_a_later_version_is_larger(void **state) {
    (void)state;
    assert_true(CAIRN_VERSION_NUMBER(0, 8, 0) > CAIRN_VERSION_NUMBER(0, 7, 99));
    assert_true(CAIRN_VERSION_NUMBER(1, 0, 0) > CAIRN_VERSION_NUMBER(0, 99, 99));
#if CAIRN_VERSION < CAIRN_VERSION_NUMBER(0, 7, 0)
#error the preprocessor compares versions
#endif
}

/* As if this file had been compiled against other headers than those of the library. */
#undef CAIRN_VERSION_MINOR
#define CAIRN_VERSION_MINOR (HEADER_MINOR + 1)
static void a_program_of_newer_headers_sees_that_the_library_is_older(void **state) {
    (void)state;
    assert_true(cairn_version() < CAIRN_VERSION);
}

#undef CAIRN_VERSION_MINOR
#define CAIRN_VERSION_MINOR (HEADER_MINOR - 1)
static void a_program_of_older_headers_sees_that_the_library_is_sufficient(void **state) {
    (void)state;
    assert_true(cairn_version() > CAIRN_VERSION);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_library_says_the_version_that_was_built),
        cmocka_unit_test(a_number_of_a_later_version_is_larger),
        cmocka_unit_test(a_program_of_newer_headers_sees_that_the_library_is_older),
        cmocka_unit_test(a_program_of_older_headers_sees_that_the_library_is_sufficient),
    };
    return cmocka_run_group_tests_name("version", tests, NULL, NULL);
}
