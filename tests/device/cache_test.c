/* The caching allocator over fake addresses: reuse, splitting, merging, out of memory, and a long random run against a
 * model in which blocks in use must not overlap. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "device/cuda/cache.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* ---- a GPU's memory: each segment has 64 GiB of addresses of its own ---- */

enum { MAX_SEGMENTS = 4096 };

static struct memory {
    size_t total, taken;
    size_t segments[MAX_SEGMENTS]; /* bytes; 0 = given back */
    int takes, returns;
    cairn_status broken;
} memory;

static cairn_status take(void *cookie, size_t nbytes, void **out) {
    assert_ptr_equal(cookie, &memory);
    if (memory.broken != CAIRN_OK) return cairn__fail(memory.broken, "the driver broke");
    if (nbytes > memory.total - memory.taken) return CAIRN_ENOMEM;
    assert_in_range(memory.takes, 0, MAX_SEGMENTS - 1);
    assert_int_equal(nbytes % (2 * MIB), 0);
    memory.segments[memory.takes] = nbytes;
    memory.taken += nbytes;
    *out = (void *)(uintptr_t)((size_t)(memory.takes + 1) * 64 * GIB);
    memory.takes++;
    return CAIRN_OK;
}

static size_t *segment_of(const void *p) {
    return &memory.segments[(uintptr_t)p / (64 * GIB) - 1];
}

static void give_back(void *cookie, void *p) {
    assert_ptr_equal(cookie, &memory);
    assert_int_equal((uintptr_t)p % (64 * GIB), 0);
    assert_int_not_equal(*segment_of(p), 0);
    memory.taken -= *segment_of(p);
    *segment_of(p) = 0;
    memory.returns++;
}

static void ask(void *cookie, size_t *available, size_t *total) {
    assert_ptr_equal(cookie, &memory);
    *available = memory.total - memory.taken;
    *total = memory.total;
}

static struct cairn__cache *cache;
static uint64_t alive;

static int setup(void **state) {
    (void)state;
    const struct cairn__cache_source source = {"cuda:0", &memory, take, give_back, ask};
    alive = cairn__alloc_counters().alive;
    memory = (struct memory){.total = 16 * GIB};
    return cairn__cache_create(&source, &cache) == CAIRN_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    cairn__cache_destroy(&cache);
    return !cache && memory.taken == 0 && memory.returns == memory.takes && cairn__alloc_counters().alive == alive ? 0
                                                                                                                   : -1;
}

static char *get(size_t nbytes) {
    void *p = NULL;
    assert_int_equal(cairn__cache_alloc(cache, CAIRN__HOLDS_TENSORS, nbytes, &p), CAIRN_OK);
    assert_int_equal((uintptr_t)p % 512, 0);
    assert_true((uintptr_t)p % (64 * GIB) + nbytes <= *segment_of(p));
    return p;
}

/* ---- reuse ---- */

static void freed_block_is_handed_out_again(void **state) {
    (void)state;
    char *small = get(1000), *large = get(5 * MIB);
    cairn__cache_free(cache, small);
    cairn__cache_free(cache, large);
    assert_ptr_equal(get(1024), small);
    assert_ptr_equal(get(6 * MIB), large);
    assert_int_equal(memory.takes, 2);
}

static void steady_state_allocates_from_neither_driver_nor_host(void **state) {
    (void)state;
    int takes = 0;
    uint64_t allocations = 0;
    for (int step = 0; step < 5; step++) {
        char *a = get(3 * MIB), *b = get(700), *c = get(40 * MIB), *d = get(4);
        cairn__cache_free(cache, c);
        cairn__cache_free(cache, b);
        cairn__cache_free(cache, a);
        cairn__cache_free(cache, d);
        if (step > 0) continue;
        takes = memory.takes;
        allocations = cairn__alloc_counters().allocations;
    }
    assert_int_equal(memory.takes, takes);
    assert_int_equal(memory.returns, 0);
    assert_int_equal(cairn__alloc_counters().allocations, allocations);
}

static void small_blocks_share_a_segment_of_two_mib(void **state) {
    (void)state;
    char *first = get(1);
    for (size_t i = 1; i < 2 * MIB / 512; i++) assert_ptr_equal(get(512), first + i * 512);
    assert_int_equal(memory.takes, 1);
    get(1);
    assert_int_equal(memory.takes, 2);
    assert_int_equal(memory.taken, 4 * MIB);
}

static void small_and_large_blocks_do_not_mix(void **state) {
    (void)state;
    cairn__cache_free(cache, get(100 * MIB));
    get(1 * MIB);
    assert_int_equal(memory.takes, 2);
    get(1 * MIB + 1);
    assert_int_equal(memory.takes, 2);
}

static void allocation_of_0_bytes_gives_a_pointer(void **state) {
    (void)state;
    char *a = get(0), *b = get(0);
    assert_non_null(a);
    assert_ptr_not_equal(a, b);
}

/* ---- splitting and merging ---- */

static void large_block_is_split_and_merged_again(void **state) {
    (void)state;
    char *whole = get(64 * MIB);
    cairn__cache_free(cache, whole);
    char *a = get(10 * MIB), *b = get(20 * MIB), *c = get(34 * MIB);
    assert_ptr_equal(a, whole);
    assert_ptr_equal(b, whole + 10 * MIB);
    assert_ptr_equal(c, whole + 30 * MIB);
    cairn__cache_free(cache, a);
    cairn__cache_free(cache, c);
    assert_ptr_not_equal(get(40 * MIB), whole); /* the middle is still in use */
    cairn__cache_free(cache, b);
    assert_ptr_equal(get(64 * MIB), whole);
    assert_int_equal(memory.takes, 2);
}

static void neighbours_merge_in_every_order(void **state) {
    (void)state;
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    char *whole = get(6 * MIB);
    cairn__cache_free(cache, whole);
    for (int i = 0; i < 6; i++) {
        char *parts[3] = {get(2 * MIB), get(2 * MIB), get(2 * MIB)};
        for (int j = 0; j < 3; j++) cairn__cache_free(cache, parts[orders[i][j]]);
        assert_ptr_equal(get(6 * MIB), whole);
        cairn__cache_free(cache, whole);
    }
    assert_int_equal(memory.takes, 1);
}

static void smallest_block_that_fits_is_taken(void **state) {
    (void)state;
    char *large = get(50 * MIB), *fitting = get(12 * MIB), *larger = get(80 * MIB), *too_small = get(8 * MIB);
    cairn__cache_free(cache, large);
    cairn__cache_free(cache, fitting);
    cairn__cache_free(cache, larger);
    cairn__cache_free(cache, too_small);
    assert_ptr_equal(get(10 * MIB), fitting);
    assert_ptr_equal(get(30 * MIB), large);
}

/* ---- running out ---- */

static void cached_memory_is_freed_before_running_out(void **state) {
    (void)state;
    cairn__cache_free(cache, get(10 * GIB));
    get(12 * GIB);
    assert_int_equal(memory.returns, 1);
    assert_int_equal(memory.taken, 12 * GIB);
}

static void only_wholly_free_segments_are_given_back(void **state) {
    (void)state;
    char *kept = get(2 * MIB);
    char *free_one = get(6 * GIB);
    char *free_two = get(8 * GIB);
    cairn__cache_free(cache, free_one);
    cairn__cache_free(cache, free_two);
    get(15 * GIB);
    assert_int_equal(memory.returns, 2);
    assert_int_equal(*segment_of(kept), 2 * MIB);
}

static void out_of_memory_lists_what_is_held(void **state) {
    (void)state;
    void *p = NULL;
    assert_int_equal(cairn__cache_alloc(cache, CAIRN__HOLDS_PARAMS, 2 * GIB, &p), CAIRN_OK);
    assert_int_equal(cairn__cache_alloc(cache, CAIRN__HOLDS_OPTIM, 8 * GIB + 300 * MIB, &p), CAIRN_OK);
    assert_int_equal(cairn__cache_alloc(cache, CAIRN__HOLDS_STATE, 100, &p), CAIRN_OK);
    p = NULL;
    assert_int_equal(cairn__cache_alloc(cache, CAIRN__HOLDS_TAPE, 7 * GIB, &p), CAIRN_ENOMEM);
    assert_null(p);
    assert_string_equal(cairn_last_error(),
                        "cuda:0 is out of memory: 7.0 GiB wanted; 16.0 GiB in all, 5.7 GiB free, held here: parameters "
                        "2.0 GiB, optimizer state 8.3 GiB, flags and scalars 0.5 KiB; cached 2.0 MiB");
    get(5 * GIB); /* what there is can still be had */
}

static void out_of_memory_with_nothing_held_says_so(void **state) {
    (void)state;
    void *p = NULL;
    assert_int_equal(cairn__cache_alloc(cache, CAIRN__HOLDS_TAPE, 17 * GIB, &p), CAIRN_ENOMEM);
    assert_string_equal(cairn_last_error(), "cuda:0 is out of memory: 17.0 GiB wanted; 16.0 GiB in all, 16.0 GiB free, "
                                            "held here: nothing; cached 0.0 KiB");
    assert_int_equal(cairn__cache_alloc(cache, CAIRN__HOLDS_TAPE, SIZE_MAX, &p), CAIRN_ENOMEM);
}

static void failure_that_is_not_about_memory_is_passed_on(void **state) {
    (void)state;
    void *p = NULL;
    cairn__cache_free(cache, get(4 * MIB));
    memory.broken = CAIRN_EDEVICE;
    assert_int_equal(cairn__cache_alloc(cache, CAIRN__HOLDS_TAPE, 100 * MIB, &p), CAIRN_EDEVICE);
    assert_string_equal(cairn_last_error(), "the driver broke");
    assert_int_equal(memory.returns, 0);
    memory.broken = CAIRN_OK;
}

static void holders_are_counted_apart(void **state) {
    (void)state;
    void *a = NULL, *b = NULL;
    assert_int_equal(cairn__cache_alloc(cache, CAIRN__HOLDS_PARAMS, 3 * MIB, &a), CAIRN_OK);
    assert_int_equal(cairn__cache_alloc(cache, CAIRN__HOLDS_GRADS, 600, &b), CAIRN_OK);
    assert_int_equal(cairn__cache_held(cache, CAIRN__HOLDS_PARAMS), 4 * MIB);
    assert_int_equal(cairn__cache_held(cache, CAIRN__HOLDS_GRADS), 1024);
    assert_int_equal(cairn__cache_unused(cache), 2 * MIB - 1024);
    cairn__cache_free(cache, a);
    assert_int_equal(cairn__cache_held(cache, CAIRN__HOLDS_PARAMS), 0);
    assert_int_equal(cairn__cache_unused(cache), 6 * MIB - 1024);
}

/* ---- against a model ---- */

enum { LIVE = 300, ROUNDS = 60000 };

struct live {
    char *p;
    size_t nbytes;
    enum cairn__holder holder;
};

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static size_t random_size(uint32_t *seed) {
    static const size_t limits[] = {2 * KIB, 100 * KIB, 2 * MIB, 40 * MIB, 700 * MIB};
    return next_random(seed) * (size_t)next_random(seed) % limits[next_random(seed) % 5];
}

static void assert_touches_none(const struct live *live, const char *p, size_t nbytes) {
    for (int i = 0; i < LIVE; i++) {
        if (live[i].p && p < live[i].p + live[i].nbytes && live[i].p < p + nbytes) {
            fail_msg("[%p, +%zu) touches [%p, +%zu)", (void *)p, nbytes, (void *)live[i].p, live[i].nbytes);
        }
    }
}

static size_t rounded(size_t nbytes) {
    const size_t grain = nbytes <= MIB ? 512 : 2 * MIB;
    return nbytes ? (nbytes + grain - 1) / grain * grain : 512;
}

static void assert_counted(const struct live *live) {
    size_t held[CAIRN__NUM_HOLDERS] = {0}, sum = 0;
    for (int i = 0; i < LIVE; i++) {
        if (live[i].p) held[live[i].holder] += rounded(live[i].nbytes);
    }
    for (int h = 0; h < CAIRN__NUM_HOLDERS; h++) {
        assert_int_equal(cairn__cache_held(cache, (enum cairn__holder)h), held[h]);
        sum += held[h];
    }
    assert_int_equal(sum + cairn__cache_unused(cache), memory.taken);
}

static void random_blocks_never_overlap(void **state) {
    (void)state;
    static struct live live[LIVE];
    uint32_t seed = 20250;
    int refused = 0;
    memset(live, 0, sizeof(live));
    for (int round = 0; round < ROUNDS; round++) {
        struct live *l = &live[next_random(&seed) % LIVE];
        if (l->p) {
            cairn__cache_free(cache, l->p);
            l->p = NULL;
            continue;
        }
        void *p = NULL;
        const size_t nbytes = random_size(&seed);
        const enum cairn__holder holder = (enum cairn__holder)(next_random(&seed) % CAIRN__NUM_HOLDERS);
        if (cairn__cache_alloc(cache, holder, nbytes, &p) != CAIRN_OK) {
            refused++;
            continue;
        }
        assert_true((uintptr_t)p % (64 * GIB) + nbytes <= *segment_of(p));
        assert_touches_none(live, p, nbytes ? nbytes : 1);
        *l = (struct live){p, nbytes, holder};
        if (round % 500 == 0) assert_counted(live);
    }
    assert_counted(live);
    assert_true(refused > 0 && memory.returns > 0); /* memory was scarce, or little was tried */
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(freed_block_is_handed_out_again),
        TEST(steady_state_allocates_from_neither_driver_nor_host),
        TEST(small_blocks_share_a_segment_of_two_mib),
        TEST(small_and_large_blocks_do_not_mix),
        TEST(allocation_of_0_bytes_gives_a_pointer),
        TEST(large_block_is_split_and_merged_again),
        TEST(neighbours_merge_in_every_order),
        TEST(smallest_block_that_fits_is_taken),
        TEST(cached_memory_is_freed_before_running_out),
        TEST(only_wholly_free_segments_are_given_back),
        TEST(out_of_memory_lists_what_is_held),
        TEST(out_of_memory_with_nothing_held_says_so),
        TEST(failure_that_is_not_about_memory_is_passed_on),
        TEST(holders_are_counted_apart),
        TEST(random_blocks_never_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
