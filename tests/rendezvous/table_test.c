/* The in-memory table of keys and values that all stores use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "rendezvous/store/table.h"
#include "rendezvous/store/wire.h"

static struct cairn__table table;

static struct cairn__blob blob(const char *text) {
    return (struct cairn__blob){(const uint8_t *)text, strlen(text)};
}

static int begin(void **state) {
    (void)state;
    memset(&table, 0, sizeof(table));
    return 0;
}

static int end(void **state) {
    (void)state;
    cairn__table_clear(&table);
    return table.num_keys == 0 && table.nbytes == 0 && table.root == NULL && table.first == NULL ? 0 : -1;
}

static void expect(const char *key, const char *value) {
    struct cairn__blob got;
    if (!cairn__table_get(&table, blob(key), &got)) fail_msg("%s is not there", key);
    assert_int_equal(got.nbytes, strlen(value));
    if (got.nbytes) assert_memory_equal(got.data, value, got.nbytes);
}

static void set(const char *key, const char *value) {
    assert_int_equal(cairn__table_set(&table, blob(key), blob(value)), CAIRN_OK);
}

static void set_append_and_delete_agree(void **state) {
    (void)state;
    struct cairn__blob got;
    set("k", "value");
    expect("k", "value");
    set("k", "");
    expect("k", "");
    set("", "no key is a key");
    expect("", "no key is a key");
    assert_int_equal(cairn__table_append(&table, blob("k"), blob("a")), CAIRN_OK);
    assert_int_equal(cairn__table_append(&table, blob("k"), blob("bc")), CAIRN_OK);
    assert_int_equal(cairn__table_append(&table, blob("new"), blob("de")), CAIRN_OK);
    expect("k", "abc");
    expect("new", "de");
    assert_int_equal(table.num_keys, 3);
    assert_int_equal(table.changes, 6);
    assert_true(cairn__table_delete(&table, blob("k")));
    assert_false(cairn__table_delete(&table, blob("k")));
    assert_false(cairn__table_get(&table, blob("k"), &got));
    assert_int_equal(table.deletions, 1);
    assert_int_equal(table.num_keys, 2);
}

static void add_counts_in_decimal_text_and_wraps(void **state) {
    (void)state;
    int64_t sum = 0;
    assert_int_equal(cairn__table_add(&table, blob("c"), 5, &sum), CAIRN_OK);
    assert_int_equal(cairn__table_add(&table, blob("c"), -7, &sum), CAIRN_OK);
    assert_int_equal(sum, -2);
    expect("c", "-2");
    assert_int_equal(cairn__table_add(&table, blob("c"), INT64_MIN, &sum), CAIRN_OK);
    assert_int_equal(sum, INT64_MAX - 1);
    expect("c", "9223372036854775806");
}

static void add_to_a_text_fails_and_changes_nothing(void **state) {
    (void)state;
    static const char *const none[] = {
        "", "abc", "1 ", " 1", "+1", "-", "0x10", "1e3", "9223372036854775808", "000000000000000000000000001"};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        int64_t sum = 77;
        set("t", none[i]);
        if (cairn__table_add(&table, blob("t"), 1, &sum) != CAIRN_EINVAL) fail_msg("'%s' was added to", none[i]);
        assert_string_equal(cairn_last_error(), "key 't' does not hold a whole number, so nothing can be added to it");
        assert_int_equal(sum, 77);
        expect("t", none[i]);
    }
}

static void expect_compare_set(const char *expected, const char *desired, const char *answer) {
    struct cairn__blob now = blob("");
    assert_int_equal(cairn__table_compare_set(&table, blob("s"), blob(expected), blob(desired), &now), CAIRN_OK);
    assert_int_equal(now.nbytes, strlen(answer));
    assert_memory_equal(now.data, answer, now.nbytes);
}

static void compare_set_swaps_creates_and_reports(void **state) {
    (void)state;
    struct cairn__blob got;
    expect_compare_set("old", "new", "old"); /* no key: what was expected comes back, nothing is stored */
    assert_false(cairn__table_get(&table, blob("s"), &got));
    expect_compare_set("", "one", "one");
    expect_compare_set("other", "two", "one");
    expect_compare_set("one", "two", "two");
    expect("s", "two");
}

static void limits_refuse_and_leave_the_table_as_it_was(void **state) {
    (void)state;
    const size_t most = STORE_MAX_VALUE;
    uint8_t *bytes = calloc(1, most + 1);
    struct cairn__blob whole = {bytes, most}, more = {bytes, most + 1}, half = {bytes, most / 2};
    struct cairn__blob longest = {bytes, STORE_MAX_KEY}, longer = {bytes, STORE_MAX_KEY + 1};
    assert_int_equal(cairn__table_set(&table, blob("big"), more), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "a value of 8388609 bytes; a store takes up to 8388608");
    assert_int_equal(cairn__table_set(&table, longer, blob("v")), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "a key of 8193 bytes; a store takes up to 8192");
    assert_int_equal(table.num_keys, 0);
    assert_int_equal(cairn__table_set(&table, longest, blob("v")), CAIRN_OK);
    assert_int_equal(cairn__table_set(&table, blob("big"), whole), CAIRN_OK);
    assert_int_equal(cairn__table_append(&table, blob("big"), blob("x")), CAIRN_EINVAL);
    assert_int_equal(cairn__table_append(&table, blob("halves"), half), CAIRN_OK);
    assert_int_equal(cairn__table_append(&table, blob("halves"), half), CAIRN_OK);
    assert_int_equal(cairn__table_append(&table, blob("halves"), blob("x")), CAIRN_EINVAL);
    struct cairn__blob got;
    assert_true(cairn__table_get(&table, blob("halves"), &got));
    assert_int_equal(got.nbytes, most);
    free(bytes);
}

static void full_table_refuses_until_a_key_is_deleted(void **state) {
    (void)state;
    static uint8_t zeros[STORE_MAX_VALUE];
    const struct cairn__blob value = {zeros, sizeof(zeros)};
    const size_t filled = STORE_MAX_TABLE - (size_t)3 * STORE_MAX_VALUE / 2;
    set("first", "x");
    table.nbytes += filled; /* as if they were there */
    assert_int_equal(cairn__table_set(&table, blob("fits"), value), CAIRN_OK);
    assert_int_equal(cairn__table_set(&table, blob("no more"), value), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "the store is full"));
    assert_int_equal(cairn__table_set(&table, blob("first"), value), CAIRN_EINVAL);
    expect("first", "x");
    set("small", "fits");
    assert_true(cairn__table_delete(&table, blob("fits")));
    assert_int_equal(cairn__table_set(&table, blob("no more"), value), CAIRN_OK);
    table.nbytes -= filled;
}

static void large_value_that_becomes_small_gives_its_memory_back(void **state) {
    (void)state;
    static uint8_t zeros[1 << 20];
    assert_int_equal(cairn__table_set(&table, blob("k"), (struct cairn__blob){zeros, sizeof(zeros)}), CAIRN_OK);
    const size_t large = table.nbytes;
    set("k", "tiny");
    assert_true(table.nbytes < large - sizeof(zeros) / 2);
    expect("k", "tiny");
}

static void keep_deletes_keys_without_the_prefix(void **state) {
    (void)state;
    set("/agent/a", "1");
    set("/agent/", "2");
    set("/agent", "3");
    set("/rank/0", "4");
    set("", "5");
    cairn__table_keep(&table, blob("/agent/"));
    assert_int_equal(table.num_keys, 2);
    assert_int_equal(table.deletions, 3);
    expect("/agent/a", "1");
    expect("/agent/", "2");
    cairn__table_keep(&table, blob(""));
    assert_int_equal(table.num_keys, 2);
}

static void sum_lengths(void *cookie, struct cairn__blob key, struct cairn__blob value) {
    *(size_t *)cookie += key.nbytes * 1000 + value.nbytes;
}

static void thousand_keys_are_found_walked_and_freed(void **state) {
    (void)state;
    const uint64_t alive = cairn__alloc_counters().alive;
    char key[16];
    size_t lengths = 0;
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof(key), "%04d", i * 7919 % 10000);
        set(key, key + 1);
    }
    assert_int_equal(table.num_keys, 1000);
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof(key), "%04d", i * 7919 % 10000);
        expect(key, key + 1);
    }
    cairn__table_walk(&table, sum_lengths, &lengths);
    assert_int_equal(lengths, 1000 * (4 * 1000 + 3));
    cairn__table_clear(&table);
    assert_int_equal(cairn__alloc_counters().alive, alive);
}

int main(void) {
#define TABLE_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TABLE_TEST(set_append_and_delete_agree),
        TABLE_TEST(add_counts_in_decimal_text_and_wraps),
        TABLE_TEST(add_to_a_text_fails_and_changes_nothing),
        TABLE_TEST(compare_set_swaps_creates_and_reports),
        TABLE_TEST(limits_refuse_and_leave_the_table_as_it_was),
        TABLE_TEST(full_table_refuses_until_a_key_is_deleted),
        TABLE_TEST(large_value_that_becomes_small_gives_its_memory_back),
        TABLE_TEST(keep_deletes_keys_without_the_prefix),
        TABLE_TEST(thousand_keys_are_found_walked_and_freed),
    };
    return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}
