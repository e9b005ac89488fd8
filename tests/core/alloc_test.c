/* Allocation: alignment, counters, and sizes that overflow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/alloc.h"

static void memory_is_aligned_and_writable_to_its_end(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4097, 9 << 20};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        void *p = NULL;
        assert_int_equal(cairn__alloc(sizes[i], &p), CAIRN_OK);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % CAIRN__ALIGN, 0);
        memset(p, 1, sizes[i]);
        cairn__free(p);
    }
}

static void counters_have_allocations_and_live_ones(void **state) {
    (void)state;
    struct cairn__alloc_counters before = cairn__alloc_counters();
    void *p = NULL, *q = NULL;
    assert_int_equal(cairn__alloc(10, &p), CAIRN_OK);
    assert_int_equal(cairn__calloc(3, 4, &q), CAIRN_OK);
    struct cairn__alloc_counters during = cairn__alloc_counters();
    assert_int_equal(during.allocations - before.allocations, 2);
    assert_int_equal(during.alive - before.alive, 2);
    cairn__free(p);
    cairn__free(q);
    cairn__free(NULL);
    struct cairn__alloc_counters after = cairn__alloc_counters();
    assert_int_equal(after.allocations, during.allocations);
    assert_int_equal(after.alive, before.alive);
}

static void zeroed_memory_is_zero(void **state) {
    (void)state;
    static const unsigned char zeros[999];
    void *p = NULL;
    assert_int_equal(cairn__calloc(333, 3, &p), CAIRN_OK);
    assert_memory_equal(p, zeros, sizeof(zeros));
    cairn__free(p);
}

static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    struct cairn__alloc_counters before = cairn__alloc_counters();
    void *p = &before;
    size_t capacity = 0;
    void *array = NULL;
    assert_int_equal(cairn__alloc(SIZE_MAX, &p), CAIRN_ENOMEM);
    assert_int_equal(cairn__alloc(SIZE_MAX - 63, &p), CAIRN_ENOMEM);
    assert_int_equal(cairn__calloc(SIZE_MAX / 2, 3, &p), CAIRN_ENOMEM);
    assert_int_equal(cairn__grow(&array, &capacity, SIZE_MAX, 1), CAIRN_ENOMEM);
    assert_int_equal(cairn__grow(&array, &capacity, SIZE_MAX / 2, 8), CAIRN_ENOMEM);
    assert_ptr_equal(p, &before);
    assert_null(array);
    assert_int_equal(capacity, 0);
    assert_int_equal(cairn__alloc_counters().alive, before.alive);
    assert_true(strlen(cairn_last_error()) > 0);
}

static void growing_keeps_what_was_there(void **state) {
    (void)state;
    int *array = NULL;
    size_t capacity = 0;
    for (size_t i = 0; i < 1000; i++) {
        assert_int_equal(cairn__grow((void **)(void *)&array, &capacity, i + 1, sizeof(int)), CAIRN_OK);
        assert_true(capacity > i);
        array[i] = (int)i;
    }
    uint64_t before = cairn__alloc_counters().allocations;
    assert_int_equal(cairn__grow((void **)(void *)&array, &capacity, 1000, sizeof(int)), CAIRN_OK);
    assert_int_equal(cairn__alloc_counters().allocations, before);
    for (int i = 0; i < 1000; i++) assert_int_equal(array[i], i);
    cairn__free(array);
}

static void a_string_is_copied_whole(void **state) {
    (void)state;
    char *copy = NULL;
    assert_int_equal(cairn__strdup("fc1.weight", &copy), CAIRN_OK);
    assert_string_equal(copy, "fc1.weight");
    cairn__free(copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_aligned_and_writable_to_its_end),
        cmocka_unit_test(counters_have_allocations_and_live_ones),
        cmocka_unit_test(zeroed_memory_is_zero),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(growing_keeps_what_was_there),
        cmocka_unit_test(a_string_is_copied_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
