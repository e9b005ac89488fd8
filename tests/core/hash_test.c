/* The hash function against its authors' test values. Source: http://www.isthe.com/chongo/src/fnv/test_fnv.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/hash.h"

static const struct {
    const char *text;
    uint64_t hash;
    uint32_t hash32;
} known[] = {
    {"", UINT64_C(0xcbf29ce484222325), 0x811c9dc5},
    {"a", UINT64_C(0xaf63dc4c8601ec8c), 0xe40c292c},
    {"foobar", UINT64_C(0x85944171f73967e8), 0xbf9cf968},
};

static void hashes_of_texts_are_the_published_ones(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const char *text = known[i].text;
        assert_true(cairn__hash_text(CAIRN__HASH_START, text) == known[i].hash);
        assert_true(cairn__hash_bytes(CAIRN__HASH_START, text, strlen(text)) == known[i].hash);
        assert_int_equal(cairn__hash32_bytes(CAIRN__HASH32_START, text, strlen(text)), known[i].hash32);
    }
}

static void a_hash_goes_on_from_the_one_before(void **state) {
    (void)state;
    const uint64_t foo = cairn__hash_bytes(CAIRN__HASH_START, "foo", 3);
    assert_true(cairn__hash_text(foo, "bar") == known[2].hash);
    assert_true(cairn__hash_word(foo, 'b') == cairn__hash_text(foo, "b"));
    assert_int_equal(cairn__hash32_bytes(cairn__hash32_bytes(CAIRN__HASH32_START, "foo", 3), "bar", 3),
                     known[2].hash32);
}

/* Above 127, where a char may be negative. */
static void bytes_are_unsigned(void **state) {
    (void)state;
    const char text[] = "\xff";
    const uint64_t want = (CAIRN__HASH_START ^ 0xff) * UINT64_C(0x100000001b3);
    assert_true(cairn__hash_text(CAIRN__HASH_START, text) == want);
    assert_true(cairn__hash_bytes(CAIRN__HASH_START, text, 1) == want);
    assert_int_equal(cairn__hash32_bytes(CAIRN__HASH32_START, text, 1), (CAIRN__HASH32_START ^ 0xff) * 16777619u);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_of_texts_are_the_published_ones),
        cmocka_unit_test(a_hash_goes_on_from_the_one_before),
        cmocka_unit_test(bytes_are_unsigned),
    };
    return cmocka_run_group_tests_name("hash", tests, NULL, NULL);
}
