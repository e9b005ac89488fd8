/* Detecting who other than the user can write a file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/trust.h"

enum { US = 1234567, OTHER = 1234568 }; /* users that no machine has */

static const char *fault(mode_t mode, uid_t owner, gid_t group) {
    static char why[CAIRN__WHY_NBYTES];
    const struct stat s = {.st_mode = mode, .st_uid = owner, .st_gid = group};
    return cairn__is_trusted(&s, US, why) ? "" : why;
}

static void own_and_roots_files_are_trusted(void **state) {
    (void)state;
    assert_string_equal(fault(S_IFREG | 0600, US, US), "");
    assert_string_equal(fault(S_IFREG | 0644, 0, US), "");
    assert_string_equal(fault(S_IFDIR | 0755, US, OTHER), "");
    assert_string_equal(fault(S_IFDIR | 0775, 0, 0), ""); /* root's group */
}

static void files_of_others_are_not(void **state) {
    (void)state;
    assert_string_equal(fault(S_IFREG | 0600, OTHER, OTHER), "belongs to user 1234568");
    assert_string_equal(fault(S_IFDIR | S_ISVTX | 0777, OTHER, OTHER), "belongs to user 1234568");
}

static void files_that_others_can_write_are_not(void **state) {
    (void)state;
    assert_string_equal(fault(S_IFREG | 0602, US, US), "can be written by other users (mode 0602)");
    assert_string_equal(fault(S_IFREG | 0620, US, OTHER), "can be written by other users (mode 0620)");
    assert_string_equal(fault(S_IFDIR | 0777, US, US), "can be written by other users (mode 0777)");
    assert_string_equal(fault(S_IFREG | S_ISVTX | 0666, US, US), "can be written by other users (mode 1666)");
}

static void sticky_folders_are_trusted(void **state) {
    (void)state;
    assert_string_equal(fault(S_IFDIR | S_ISVTX | 0777, 0, 0), "");
    assert_string_equal(fault(S_IFDIR | S_ISVTX | 0777, US, OTHER), "");
}

static void path_is_trusted_with_all_folders_above_it(void **state) {
    (void)state;
    char folder[] = "/tmp/cairn-trust-XXXXXX", inner[64], file[64], why[512];
    assert_non_null(mkdtemp(folder));
    snprintf(inner, sizeof(inner), "%s/a", folder);
    snprintf(file, sizeof(file), "%s/a/b", folder);
    assert_int_equal(mkdir(inner, 0755), 0);
    fclose(fopen(file, "we"));
    const uid_t us = geteuid();
    assert_true(cairn__is_trusted_path(file, us, why, sizeof(why)));
    chmod(inner, 01777); /* who can make files there can put another beside it, and rename it over ours: not sticky */
    assert_false(cairn__is_trusted_path(file, us, why, sizeof(why)));
    chmod(inner, 0755);
    chmod(folder, 0777);
    assert_false(cairn__is_trusted_path(file, us, why, sizeof(why)));
    assert_non_null(strstr(why, " can be written by other users (mode 0777)"));
    chmod(folder, 01777);
    assert_true(cairn__is_trusted_path(file, us, why, sizeof(why)));
    remove(file);
    assert_false(cairn__is_trusted_path(file, us, why, sizeof(why)));
    assert_non_null(strstr(why, "/a/b: No such file or directory"));
    remove(inner);
    remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_and_roots_files_are_trusted),           cmocka_unit_test(files_of_others_are_not),
        cmocka_unit_test(files_that_others_can_write_are_not),       cmocka_unit_test(sticky_folders_are_trusted),
        cmocka_unit_test(path_is_trusted_with_all_folders_above_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
