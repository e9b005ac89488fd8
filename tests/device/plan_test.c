/* How lists of tensors are divided among blocks and launches on a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/cuda/plan.h"

struct tensor {
    size_t n;
    char other[24];
};

enum { MAX_TENSORS = 200, MAX_ELEMENTS = 300 };

static struct cairn__plan plan_of(const struct tensor *t, size_t count, size_t chunk) {
    return (struct cairn__plan){
        .items = t, .stride = sizeof(*t), .count = count, .chunk = chunk, .max_blocks = CAIRN__CUDA_MAX_BLOCKS};
}

/* What the blocks of one launch do, found as they find it: the first tensor t with b < ends[t]. */
static void run_launch(const struct cairn__part *part, const struct tensor *tensors,
                       unsigned char (*touched)[MAX_ELEMENTS]) {
    const struct cairn__span *s = &part->span;
    for (uint32_t b = 0; b < s->blocks; b++) {
        uint32_t t = 0;
        while (b >= s->ends[t]) t++;
        assert_true(t < s->count);
        const size_t number = b - (t ? s->ends[t - 1] : 0) + (t ? 0 : s->done);
        const size_t from = number * s->chunk, n = tensors[part->index[t]].n;
        assert_true(from < n);
        for (size_t i = from; i < n && i < from + s->chunk; i++) touched[part->index[t]][i]++;
    }
}

static size_t run_plan(struct cairn__plan plan, const struct tensor *tensors, unsigned char (*touched)[MAX_ELEMENTS]) {
    struct cairn__part part;
    size_t launches = 0;
    memset(touched, 0, MAX_TENSORS * sizeof(touched[0]));
    for (; cairn__plan_next(&plan, &part); launches++) {
        assert_true(part.span.count >= 1 && part.span.count <= CAIRN__CUDA_LIST);
        assert_true(part.span.blocks <= plan.max_blocks);
        assert_true(part.span.blocks > 0 || plan.keep_empty);
        run_launch(&part, tensors, touched);
    }
    for (size_t t = 0; t < plan.count; t++) {
        for (size_t i = 0; i < MAX_ELEMENTS; i++) assert_int_equal(touched[t][i], i < tensors[t].n);
    }
    return launches;
}

static unsigned char touched[MAX_TENSORS][MAX_ELEMENTS];

static void no_tensors_are_no_launch(void **state) {
    (void)state;
    assert_int_equal(run_plan(plan_of(NULL, 0, 16), NULL, touched), 0);
}

static void empty_tensors_may_be_anywhere_in_a_list(void **state) {
    (void)state;
    const size_t lists[][6] = {
        {0, 0, 5, 16, 17, 1}, {5, 0, 0, 16, 0, 3}, {33, 16, 1, 2, 0, 0}, {0, 7, 0, 0, 9, 0}, {0, 0, 0, 0, 0, 100},
    };
    for (size_t l = 0; l < sizeof(lists) / sizeof(lists[0]); l++) {
        struct tensor t[6] = {{0}};
        for (size_t i = 0; i < 6; i++) t[i].n = lists[l][i];
        assert_int_equal(run_plan(plan_of(t, 6, 16), t, touched), 1);
    }
}

static void only_empty_tensors_are_no_launch_unless_they_are_kept(void **state) {
    (void)state;
    const struct tensor t[MAX_TENSORS] = {{0}};
    struct cairn__plan plan = plan_of(t, 2 * CAIRN__CUDA_LIST, 16);
    assert_int_equal(run_plan(plan, t, touched), 0);
    plan.keep_empty = true;
    assert_int_equal(run_plan(plan, t, touched), 2);
}

static void a_kept_empty_tensor_has_its_place_and_no_block(void **state) {
    (void)state;
    const struct tensor t[] = {{.n = 0}, {.n = 40}, {.n = 0}, {.n = 1}, {.n = 0}};
    struct cairn__plan plan = plan_of(t, 5, 16);
    struct cairn__part part;
    plan.keep_empty = true;
    assert_true(cairn__plan_next(&plan, &part));
    const uint32_t ends[] = {0, 3, 3, 4, 4};
    assert_int_equal(part.span.count, 5);
    assert_memory_equal(part.span.ends, ends, sizeof(ends));
    for (size_t i = 0; i < 5; i++) assert_int_equal(part.index[i], i);
    assert_false(cairn__plan_next(&plan, &part));
}

static void a_long_list_takes_several_launches(void **state) {
    (void)state;
    struct tensor t[MAX_TENSORS];
    for (size_t i = 0; i < MAX_TENSORS; i++) t[i] = (struct tensor){.n = i % 7};
    struct cairn__plan plan = plan_of(t, MAX_TENSORS, 4);
    const size_t full = MAX_TENSORS - (MAX_TENSORS + 6) / 7;
    assert_int_equal(run_plan(plan, t, touched), (full + CAIRN__CUDA_LIST - 1) / CAIRN__CUDA_LIST);
}

static void a_tensor_of_more_than_2_31_elements_is_one_launch(void **state) {
    (void)state;
    const struct tensor t[] = {{.n = 3}, {.n = ((size_t)1 << 31) + 5}, {.n = 1}};
    struct cairn__plan plan = plan_of(t, 3, 4096);
    struct cairn__part part;
    assert_true(cairn__plan_next(&plan, &part));
    assert_int_equal(part.span.count, 3);
    assert_int_equal(part.span.ends[0], 1);
    assert_int_equal(part.span.ends[1], 1 + (1 << 19) + 1);
    assert_int_equal(part.span.blocks, part.span.ends[1] + 1);
    assert_false(cairn__plan_next(&plan, &part));
}

static void a_tensor_of_more_than_2_31_blocks_is_split_and_goes_on_where_it_stopped(void **state) {
    (void)state;
    const size_t most = CAIRN__CUDA_MAX_BLOCKS;
    const struct tensor t[] = {{.n = 10}, {.n = (2 * most + 3) * 4}, {.n = 9}};
    struct cairn__plan plan = plan_of(t, 3, 4);
    const struct {
        uint32_t count, blocks, first_end;
        size_t done, first;
    } want[] = {
        {2, CAIRN__CUDA_MAX_BLOCKS, 3, 0, 0},
        {1, CAIRN__CUDA_MAX_BLOCKS, CAIRN__CUDA_MAX_BLOCKS, most - 3, 1},
        {2, 6 + 3, 6, 2 * most - 3, 1},
    };
    struct cairn__part part;
    for (size_t l = 0; l < sizeof(want) / sizeof(want[0]); l++) {
        assert_true(cairn__plan_next(&plan, &part));
        assert_int_equal(part.span.count, want[l].count);
        assert_int_equal(part.span.blocks, want[l].blocks);
        assert_int_equal(part.span.ends[0], want[l].first_end);
        assert_int_equal(part.span.done, want[l].done);
        assert_int_equal(part.index[0], want[l].first);
    }
    assert_false(cairn__plan_next(&plan, &part));
}

static void a_whole_tensor_waits_for_a_launch_that_has_room_for_it(void **state) {
    (void)state;
    const struct tensor t[] = {{.n = 40}, {.n = 60}, {.n = 0}, {.n = 100}, {.n = 1}};
    struct cairn__plan plan = plan_of(t, 5, 10);
    struct cairn__part part;
    plan.whole = plan.keep_empty = true;
    plan.max_blocks = 10;
    const uint32_t want[] = {3, 1, 1}, blocks[] = {10, 10, 1};
    for (int l = 0; l < 3; l++) {
        assert_true(cairn__plan_next(&plan, &part));
        assert_int_equal(part.span.count, want[l]);
        assert_int_equal(part.span.blocks, blocks[l]);
        assert_int_equal(part.span.done, 0);
    }
    assert_false(cairn__plan_next(&plan, &part));
}

static void every_element_of_random_lists_is_covered_once(void **state) {
    (void)state;
    srand(3);
    for (int round = 0; round < 2000; round++) {
        struct tensor t[MAX_TENSORS];
        const size_t count = (size_t)rand() % MAX_TENSORS, most = 1 + (size_t)rand() % MAX_ELEMENTS;
        for (size_t i = 0; i < count; i++) t[i] = (struct tensor){.n = rand() % 3 ? (size_t)rand() % most : 0};
        struct cairn__plan plan = plan_of(t, count, 1 + (size_t)rand() % 40);
        plan.keep_empty = rand() % 2;
        if (rand() % 2) plan.max_blocks = 1 + (uint32_t)rand() % 50;
        run_plan(plan, t, touched);
        plan.whole = true;
        plan.max_blocks = MAX_ELEMENTS;
        run_plan(plan, t, touched);
    }
}

static void a_chunk_grows_with_the_list_and_stays_within_its_bounds(void **state) {
    (void)state;
    const struct tensor t[] = {{.n = 1000}, {.n = 1 << 20}, {.n = (size_t)1 << 40}, {.n = SIZE_MAX}};
    const struct { size_t count, want; } cases[] = {{0, 64}, {1, 64}, {2, 8192}, {3, 1 << 20}, {4, 1 << 20}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn__plan plan = plan_of(t, cases[i].count, 0);
        assert_int_equal(cairn__plan_chunk(&plan, 64, 1 << 20, 128), cases[i].want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_tensors_are_no_launch),
        cmocka_unit_test(empty_tensors_may_be_anywhere_in_a_list),
        cmocka_unit_test(only_empty_tensors_are_no_launch_unless_they_are_kept),
        cmocka_unit_test(a_kept_empty_tensor_has_its_place_and_no_block),
        cmocka_unit_test(a_long_list_takes_several_launches),
        cmocka_unit_test(a_tensor_of_more_than_2_31_elements_is_one_launch),
        cmocka_unit_test(a_tensor_of_more_than_2_31_blocks_is_split_and_goes_on_where_it_stopped),
        cmocka_unit_test(a_whole_tensor_waits_for_a_launch_that_has_room_for_it),
        cmocka_unit_test(every_element_of_random_lists_is_covered_once),
        cmocka_unit_test(a_chunk_grows_with_the_list_and_stays_within_its_bounds),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
