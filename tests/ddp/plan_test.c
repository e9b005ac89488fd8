/* Bucket plans: which gradients share a bucket, and their offsets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "ddp/plan.h"

enum { KIB = 1 << 10, MIB = 1 << 20, MOST = 24 };

/* ---- what holds for every plan ---- */

static size_t padded(size_t n, cairn_dtype dtype) {
    const size_t line = CAIRN__ALIGN / cairn_dtype_nbytes(dtype);
    return (n + line - 1) / line * line;
}

static size_t when(const size_t *order, size_t count, size_t item) {
    size_t k = 0;
    while ((order ? order[k] : count - 1 - k) != item) k++;
    return k;
}

/* Buckets of a type follow each other without gaps, and so do items. */
static void expect_whole_arenas(const struct cairn__ddp_plan *plan, const struct cairn__ddp_item *items, size_t count) {
    size_t bucket_end[CAIRN_U8 + 1] = {0}, wanted[CAIRN_U8 + 1] = {0};
    for (size_t i = 0; i < count; i++) wanted[items[i].dtype] += padded(items[i].n, items[i].dtype);
    for (size_t b = 0; b < plan->count; b++) {
        const struct cairn__ddp_bucket *bucket = &plan->buckets[b];
        assert_int_equal(bucket->begin, bucket_end[bucket->dtype]);
        bucket_end[bucket->dtype] += bucket->n;
    }
    assert_memory_equal(bucket_end, wanted, sizeof(wanted));
    assert_memory_equal(plan->arena, wanted, sizeof(wanted));
}

static void expect_lists_match_places(const struct cairn__ddp_plan *plan, const struct cairn__ddp_item *items,
                                      size_t count) {
    size_t listed = 0, wanted = 0;
    for (size_t i = 0; i < count; i++) wanted += plan->places[i].num_buckets;
    for (size_t b = 0; b < plan->count; b++) {
        const struct cairn__ddp_bucket *bucket = &plan->buckets[b];
        listed += bucket->count;
        assert_true(bucket->count > 0);
        for (size_t k = 0; k < bucket->count; k++) {
            const size_t i = bucket->items[k];
            const struct cairn__ddp_place *place = &plan->places[i];
            const size_t end = place->offset + padded(items[i].n, items[i].dtype);
            assert_true(items[i].dtype == bucket->dtype);
            assert_true(b >= place->bucket && b < place->bucket + place->num_buckets);
            assert_true(place->offset <= bucket->begin + bucket->n && end >= bucket->begin);
            assert_true(k == 0 || plan->places[bucket->items[k - 1]].offset <= place->offset);
        }
    }
    assert_int_equal(listed, wanted);
}

static void expect_numbered_by_completion(const struct cairn__ddp_plan *plan, size_t count, const size_t *order) {
    size_t before = 0;
    for (size_t b = 0; b < plan->count; b++) {
        size_t last = 0;
        for (size_t k = 0; k < plan->buckets[b].count; k++) {
            const size_t came = when(order, count, plan->buckets[b].items[k]);
            last = came > last ? came : last;
        }
        assert_true(last >= before);
        before = last;
    }
}

static void expect_sound(const struct cairn__ddp_plan *plan, const struct cairn__ddp_item *items, size_t count,
                         const size_t *order) {
    expect_whole_arenas(plan, items, count);
    expect_lists_match_places(plan, items, count);
    expect_numbered_by_completion(plan, count, order);
}

static struct cairn__ddp_plan plan_of(const struct cairn__ddp_item *items, size_t count, const size_t *order,
                                      struct cairn__ddp_limits limits) {
    struct cairn__ddp_plan plan;
    assert_int_equal(cairn__ddp_plan_make(items, count, order, &limits, &plan), CAIRN_OK);
    expect_sound(&plan, items, count, order);
    return plan;
}

static void expect_bucket(const struct cairn__ddp_plan *plan, size_t b, size_t count, const size_t *items) {
    assert_true(b < plan->count);
    assert_int_equal(plan->buckets[b].count, count);
    assert_memory_equal(plan->buckets[b].items, items, count * sizeof(items[0]));
}
#define EXPECT_BUCKET(plan, b, ...) \
    expect_bucket(plan, b, sizeof((size_t[]){__VA_ARGS__}) / sizeof(size_t), (size_t[]){__VA_ARGS__})

/* ---- limits ---- */

/* torch 1.13.1, bucket_cap_mb = 2: Linear(512, 1024), (1024, 1024), (1024, 8) were rebuilt as "5 4 3 2" and "1 0". */
static void buckets_equal_torchs(void **state) {
    (void)state;
    const struct cairn__ddp_item items[] = {{512 * 1024, CAIRN_F32, false},  {1024, CAIRN_F32, false},
                                            {1024 * 1024, CAIRN_F32, false}, {1024, CAIRN_F32, false},
                                            {8 * 1024, CAIRN_F32, false},    {8, CAIRN_F32, false}};
    struct cairn__ddp_plan plan = plan_of(items, 6, NULL, (struct cairn__ddp_limits){MIB, 5 * MIB, 0, 0});
    assert_int_equal(plan.count, 2);
    EXPECT_BUCKET(&plan, 0, 5, 4, 3, 2);
    EXPECT_BUCKET(&plan, 1, 1, 0);
    cairn__ddp_plan_free(&plan);
}

static void limit_of_1_byte_gives_each_a_bucket_and_no_limit_gives_one(void **state) {
    (void)state;
    const struct cairn__ddp_item items[] = {{7, CAIRN_F16, false},
                                            {1, CAIRN_F16, false},
                                            {300, CAIRN_F16, false},
                                            {16, CAIRN_F16, false}};
    struct cairn__ddp_plan plan = plan_of(items, 4, NULL, (struct cairn__ddp_limits){1, 1, 0, 0});
    assert_int_equal(plan.count, 4);
    for (size_t b = 0; b < 4; b++) EXPECT_BUCKET(&plan, b, 3 - b);
    cairn__ddp_plan_free(&plan);
    plan = plan_of(items, 4, NULL, (struct cairn__ddp_limits){SIZE_MAX, SIZE_MAX, 0, 0});
    assert_int_equal(plan.count, 1);
    EXPECT_BUCKET(&plan, 0, 3, 2, 1, 0);
    cairn__ddp_plan_free(&plan);
}

static void limit_closes_a_bucket_that_holds_just_as_much(void **state) {
    (void)state;
    const struct cairn__ddp_item items[] = {{25, CAIRN_F32, false},
                                            {25, CAIRN_F32, false},
                                            {25, CAIRN_F32, false},
                                            {25, CAIRN_F32, false}};
    struct cairn__ddp_plan plan = plan_of(items, 4, NULL, (struct cairn__ddp_limits){100, 200, 0, 0});
    assert_int_equal(plan.count, 3);
    EXPECT_BUCKET(&plan, 0, 3);
    EXPECT_BUCKET(&plan, 1, 2, 1);
    EXPECT_BUCKET(&plan, 2, 0);
    cairn__ddp_plan_free(&plan);
}

/* apex: message_size. */
static void elements_count_instead_of_bytes_and_split_nothing(void **state) {
    (void)state;
    const struct cairn__ddp_item items[] = {{MIB, CAIRN_F16, false},
                                            {60, CAIRN_F16, false},
                                            {39, CAIRN_F16, false},
                                            {1, CAIRN_F16, false}};
    struct cairn__ddp_plan plan = plan_of(items, 4, NULL, (struct cairn__ddp_limits){1, 1, 100, 0});
    assert_int_equal(plan.count, 2);
    EXPECT_BUCKET(&plan, 0, 3, 2, 1);
    EXPECT_BUCKET(&plan, 1, 0);
    cairn__ddp_plan_free(&plan);
}

static void triggers_close_their_bucket(void **state) {
    (void)state;
    const struct cairn__ddp_item items[] = {{10, CAIRN_F32, false},
                                            {10, CAIRN_F32, true},
                                            {10, CAIRN_BF16, false},
                                            {10, CAIRN_F32, true}};
    struct cairn__ddp_plan plan = plan_of(items, 4, NULL, (struct cairn__ddp_limits){SIZE_MAX, SIZE_MAX, 0, 0});
    assert_int_equal(plan.count, 4);
    EXPECT_BUCKET(&plan, 0, 3);
    EXPECT_BUCKET(&plan, 1, 2);
    EXPECT_BUCKET(&plan, 2, 1);
    EXPECT_BUCKET(&plan, 3, 0);
    cairn__ddp_plan_free(&plan);
}

/* ---- splitting ---- */

static void large_item_lies_in_several_buckets_in_one_piece(void **state) {
    (void)state;
    const struct cairn__ddp_item items[] = {{100, CAIRN_F32, false},
                                            {100 * KIB, CAIRN_F32, false},
                                            {100, CAIRN_F32, false}};
    struct cairn__ddp_plan plan = plan_of(items, 3, NULL, (struct cairn__ddp_limits){64 * KIB, 128 * KIB, 0, 0});
    assert_int_equal(plan.count, 5);
    EXPECT_BUCKET(&plan, 0, 2, 1); /* the first piece joins what is open */
    for (size_t b = 1; b < 4; b++) EXPECT_BUCKET(&plan, b, 1);
    EXPECT_BUCKET(&plan, 4, 0);
    assert_int_equal(plan.places[1].bucket, 0);
    assert_int_equal(plan.places[1].num_buckets, 4);
    for (size_t b = 1; b < 4; b++) assert_int_equal(plan.buckets[b].n, 25 * KIB);
    cairn__ddp_plan_free(&plan);
}

static void large_item_stays_in_one_bucket_of_one_slice(void **state) {
    (void)state;
    const struct cairn__ddp_item items[] = {{100, CAIRN_F32, false},
                                            {300 * KIB / 4, CAIRN_F32, false},
                                            {100, CAIRN_F32, false}};
    struct cairn__ddp_plan plan = plan_of(items, 3, NULL, (struct cairn__ddp_limits){64 * KIB, 64 * KIB, 0, 1});
    assert_int_equal(plan.count, 2); /* the last item and the large one; the first */
    assert_int_equal(plan.places[1].num_buckets, 1);
    assert_int_equal(plan.places[2].bucket, plan.places[1].bucket);
    cairn__ddp_plan_free(&plan);
}

static void nothing_below_64_kib_is_split(void **state) {
    (void)state;
    const struct cairn__ddp_item items[] = {{32 * KIB, CAIRN_F16, false}, {32 * KIB + 1, CAIRN_F16, false}};
    struct cairn__ddp_plan plan = plan_of(items, 2, NULL, (struct cairn__ddp_limits){1, 1, 0, 0});
    assert_int_equal(plan.count, 3);
    assert_int_equal(plan.places[1].num_buckets, 2);
    assert_int_equal(plan.places[0].num_buckets, 1);
    cairn__ddp_plan_free(&plan);
}

/* Another type's bucket must not come between the pieces: they become ready at one time. */
static void pieces_keep_together_whatever_other_types_do(void **state) {
    (void)state;
    const struct cairn__ddp_item items[] = {{50 * KIB, CAIRN_F32, false},
                                            {9, CAIRN_F16, false},
                                            {50 * KIB, CAIRN_F32, false},
                                            {9, CAIRN_F16, false}};
    struct cairn__ddp_plan plan = plan_of(items, 4, NULL, (struct cairn__ddp_limits){64 * KIB, 64 * KIB, 0, 0});
    assert_int_equal(plan.places[2].num_buckets, 4);
    assert_int_equal(plan.places[2].bucket, 0);
    assert_int_equal(plan.places[1].bucket, 4); /* f16 comes before the f32 of the first parameter */
    assert_int_equal(plan.places[0].bucket, 5);
    cairn__ddp_plan_free(&plan);
}

/* ---- types and order ---- */

static void types_share_no_bucket_and_close_none(void **state) {
    (void)state;
    struct cairn__ddp_item items[6];
    for (int i = 0; i < 6; i++) items[i] = (struct cairn__ddp_item){40, i % 2 ? CAIRN_F32 : CAIRN_F16, false};
    struct cairn__ddp_plan plan = plan_of(items, 6, NULL, (struct cairn__ddp_limits){MIB, MIB, 0, 0});
    assert_int_equal(plan.count, 2);
    EXPECT_BUCKET(&plan, 0, 5, 3, 1);
    EXPECT_BUCKET(&plan, 1, 4, 2, 0);
    cairn__ddp_plan_free(&plan);
}

static void bucket_that_never_fills_is_numbered_by_its_last_gradient(void **state) {
    (void)state;
    const struct cairn__ddp_item items[] = {{100, CAIRN_F32, false},
                                            {100, CAIRN_F32, false},
                                            {1, CAIRN_BF16, false},
                                            {100, CAIRN_F32, false}};
    struct cairn__ddp_plan plan = plan_of(items, 4, NULL, (struct cairn__ddp_limits){400, 400, 0, 0});
    assert_int_equal(plan.count, 4);
    EXPECT_BUCKET(&plan, 1, 2);
    cairn__ddp_plan_free(&plan);
}

static void empty_items_take_part(void **state) {
    (void)state;
    const struct cairn__ddp_item items[] = {{0, CAIRN_F16, false}, {0, CAIRN_F32, false}, {5, CAIRN_F32, false}};
    struct cairn__ddp_plan plan = plan_of(items, 3, NULL, (struct cairn__ddp_limits){MIB, MIB, 0, 0});
    assert_int_equal(plan.count, 2);
    EXPECT_BUCKET(&plan, 0, 2, 1);
    EXPECT_BUCKET(&plan, 1, 0);
    assert_int_equal(plan.buckets[1].n, 0);
    cairn__ddp_plan_free(&plan);
    plan = plan_of(items, 0, NULL, (struct cairn__ddp_limits){MIB, MIB, 0, 0});
    assert_int_equal(plan.count, 0);
    cairn__ddp_plan_free(&plan);
}

static uint32_t draw(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void shuffle(size_t *order, size_t count, uint32_t *seed) {
    for (size_t i = 0; i < count; i++) order[i] = i;
    for (size_t i = count; i > 1; i--) {
        const size_t k = draw(seed) % i, kept = order[k];
        order[k] = order[i - 1];
        order[i - 1] = kept;
    }
}

static void make_items(struct cairn__ddp_item *items, size_t count, uint32_t *seed) {
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    static const size_t sizes[] = {0, 1, 63, 64, 1000, 40 * KIB, 200 * KIB};
    for (size_t i = 0; i < count; i++) {
        items[i] = (struct cairn__ddp_item){sizes[draw(seed) % 7], types[draw(seed) % 3], draw(seed) % 8 == 0};
    }
}

/* expect_sound asks that the arenas are the same whatever the order. */
static void any_order_of_any_items_under_any_limit_gives_a_sound_plan(void **state) {
    (void)state;
    static const struct cairn__ddp_limits limits[] = {
        {1, 1, 0, 0},           {100, 4000, 0, 0},     {64 * KIB, 64 * KIB, 0, 0},
        {KIB, 300 * KIB, 0, 0}, {25 << 20, MIB, 0, 0}, {SIZE_MAX, SIZE_MAX, 0, 0},
        {1, 1, 1, 0},           {1, 1, 5000, 0}};
    struct cairn__ddp_item items[MOST];
    size_t order[MOST];
    uint32_t seed = 1;
    for (int round = 0; round < 400; round++) {
        const size_t count = draw(&seed) % (MOST + 1);
        make_items(items, count, &seed);
        shuffle(order, count, &seed);
        struct cairn__ddp_plan plan = plan_of(items, count, round % 4 ? order : NULL, limits[round % 8]);
        cairn__ddp_plan_free(&plan);
    }
}

static void slices_are_equal_whole_lines_and_split_no_item(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 17, 5000, 40000, 3, 64};
    for (size_t slices = 2; slices <= 5; slices++) {
        struct cairn__ddp_item items[6];
        for (size_t i = 0; i < 6; i++) items[i] = (struct cairn__ddp_item){sizes[i], CAIRN_F16, false};
        struct cairn__ddp_plan plan;
        const struct cairn__ddp_limits limits = {.first_nbytes = KIB, .nbytes = 70 * KIB, .slices = slices};
        assert_int_equal(cairn__ddp_plan_make(items, 6, NULL, &limits, &plan), CAIRN_OK);
        size_t end = 0;
        for (size_t b = 0; b < plan.count; b++) {
            assert_int_equal(plan.buckets[b].begin, end);
            assert_int_equal(plan.buckets[b].n % (slices * 32), 0);
            end += plan.buckets[b].n;
        }
        assert_int_equal(plan.arena[CAIRN_F16], end);
        for (size_t i = 0; i < 6; i++) {
            const struct cairn__ddp_bucket *bucket = &plan.buckets[plan.places[i].bucket];
            assert_int_equal(plan.places[i].num_buckets, 1);
            assert_true(plan.places[i].offset >= bucket->begin);
            assert_true(plan.places[i].offset + sizes[i] <= bucket->begin + bucket->n);
        }
        cairn__ddp_plan_free(&plan);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_equal_torchs),
        cmocka_unit_test(limit_of_1_byte_gives_each_a_bucket_and_no_limit_gives_one),
        cmocka_unit_test(limit_closes_a_bucket_that_holds_just_as_much),
        cmocka_unit_test(elements_count_instead_of_bytes_and_split_nothing),
        cmocka_unit_test(triggers_close_their_bucket),
        cmocka_unit_test(large_item_lies_in_several_buckets_in_one_piece),
        cmocka_unit_test(large_item_stays_in_one_bucket_of_one_slice),
        cmocka_unit_test(nothing_below_64_kib_is_split),
        cmocka_unit_test(pieces_keep_together_whatever_other_types_do),
        cmocka_unit_test(types_share_no_bucket_and_close_none),
        cmocka_unit_test(bucket_that_never_fills_is_numbered_by_its_last_gradient),
        cmocka_unit_test(empty_items_take_part),
        cmocka_unit_test(slices_are_equal_whole_lines_and_split_no_item),
        cmocka_unit_test(any_order_of_any_items_under_any_limit_gives_a_sound_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
