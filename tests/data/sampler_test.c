/* Samplers: the indices that all ranks together see, for every small dataset size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../state_in_memory.h"
#include "cairn/data.h"
#include "core/alloc.h"

enum { MAX_EXAMPLES = 40, MAX_RANKS = 9, ROOM = 128 };

static cairn_sampler *make(int64_t n, int rank, int size, const struct cairn_sampler_options *options) {
    cairn_sampler *s = NULL;
    assert_int_equal(cairn_distributed_sampler_create(n, rank, size, options, &s), CAIRN_OK);
    return s;
}

/* What a new sampler hands out in the epoch; how many. */
static size_t epoch_of(int64_t n, int rank, int size, const struct cairn_sampler_options *options, int64_t epoch,
                       int64_t indices[ROOM]) {
    cairn_sampler *s = make(n, rank, size, options);
    assert_int_equal(cairn_sampler_set_epoch(s, epoch), CAIRN_OK);
    const size_t got = cairn_sampler_next(s, indices, ROOM);
    assert_int_equal(got, cairn_sampler_length(s));
    cairn_sampler_destroy(&s);
    return got;
}

/* Puts the shares of all ranks into one order again; its length. */
static size_t together(int64_t n, int size, const struct cairn_sampler_options *options, int64_t all[ROOM]) {
    int64_t own[ROOM];
    size_t length = 0;
    for (int r = 0; r < size; r++) {
        const size_t got = epoch_of(n, r, size, options, 3, own);
        if (r > 0) assert_int_equal(got, length);
        length = got;
        for (size_t k = 0; k < got; k++) all[k * (size_t)size + (size_t)r] = own[k];
    }
    return length * (size_t)size;
}

static void check_shares(int64_t n, int size, cairn_switch shuffle, cairn_switch drop_last) {
    const struct cairn_sampler_options *o =
        cairn_sampler_options(.shuffle = shuffle, .drop_last = drop_last, .seed = 7);
    int64_t order[ROOM], all[ROOM];
    assert_int_equal(epoch_of(n, 0, 1, o, 3, order), n);
    const size_t total = together(n, size, o, all);
    const int64_t cut = n / size * size;
    assert_int_equal(total, drop_last == CAIRN_ON || cut == n ? cut : cut + size);
    for (size_t place = 0; place < total; place++) assert_int_equal(all[place], order[place % (size_t)n]);
}

static void ranks_share_the_order_repeated_or_cut(void **state) {
    (void)state;
    for (int64_t n = 0; n <= MAX_EXAMPLES; n++)
        for (int size = 1; size <= MAX_RANKS; size++)
            for (int way = 0; way < 4; way++)
                check_shares(n, size, way & 1 ? CAIRN_ON : CAIRN_OFF, way & 2 ? CAIRN_ON : CAIRN_OFF);
}

static void without_padding_ranks_share_every_example_once(void **state) {
    (void)state;
    for (int64_t n = 0; n <= MAX_EXAMPLES; n++) {
        for (int size = 1; size <= MAX_RANKS; size++) {
            const struct cairn_sampler_options *o = cairn_sampler_options(.pad = CAIRN_OFF, .seed = 7);
            int64_t order[ROOM], own[ROOM];
            assert_int_equal(epoch_of(n, 0, 1, o, 3, order), n);
            for (int r = 0; r < size; r++) {
                const size_t got = epoch_of(n, r, size, o, 3, own);
                assert_int_equal(got, (n - r + size - 1) / size);
                for (size_t k = 0; k < got; k++) assert_int_equal(own[k], order[k * (size_t)size + (size_t)r]);
            }
        }
    }
}

static void a_dataset_smaller_than_its_padding_is_repeated(void **state) {
    (void)state;
    int64_t own[ROOM];
    for (int r = 0; r < 8; r++) {
        assert_int_equal(epoch_of(3, r, 8, cairn_sampler_options(.shuffle = CAIRN_OFF), 0, own), 1);
        assert_int_equal(own[0], r % 3);
    }
}

static void every_epoch_has_every_example_once(void **state) {
    (void)state;
    int64_t order[ROOM];
    for (int64_t n = 0; n <= MAX_EXAMPLES; n++) {
        for (int64_t epoch = 0; epoch < 5; epoch++) {
            uint64_t seen = 0;
            assert_int_equal(epoch_of(n, 0, 1, NULL, epoch, order), n);
            for (int64_t i = 0; i < n; i++) seen |= (uint64_t)1 << order[i];
            assert_int_equal(seen, ((uint64_t)1 << n) - 1);
        }
    }
}

static void without_shuffling_examples_come_in_order_in_every_epoch(void **state) {
    (void)state;
    int64_t order[ROOM];
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        assert_int_equal(epoch_of(33, 0, 1, cairn_sampler_options(.shuffle = CAIRN_OFF, .seed = 5), epoch, order), 33);
        for (int64_t i = 0; i < 33; i++) assert_int_equal(order[i], i);
    }
}

/* Also on other machines, and in later versions: runs are repeated by their seeds. */
static void orders_equal_the_stored_ones(void **state) {
    (void)state;
    static const struct {
        uint64_t seed;
        int64_t epoch, order[10];
    } known[] = {
        {0, 0, {6, 0, 7, 9, 3, 2, 1, 5, 4, 8}},
        {0, 1, {8, 5, 1, 6, 3, 9, 7, 4, 0, 2}},
        {UINT64_MAX, (int64_t)1 << 40, {4, 3, 1, 6, 9, 2, 5, 0, 8, 7}},
    };
    int64_t order[ROOM];
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        assert_int_equal(epoch_of(10, 0, 1, cairn_sampler_options(.seed = known[i].seed), known[i].epoch, order), 10);
        assert_memory_equal(order, known[i].order, sizeof(known[i].order));
    }
}

/* The 24 orders of four examples over 24000 epochs: chi squared of 23 degrees stays under 63 but once in 10^5. */
static void all_orders_are_equally_likely(void **state) {
    (void)state;
    enum { EPOCHS = 24000 };
    int count[256] = {0}, kinds = 0;
    double chi = 0;
    int64_t order[4];
    cairn_sampler *s = make(4, 0, 1, NULL);
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
        assert_int_equal(cairn_sampler_set_epoch(s, epoch), CAIRN_OK);
        assert_int_equal(cairn_sampler_next(s, order, 4), 4);
        count[order[0] | order[1] << 2 | order[2] << 4 | order[3] << 6]++;
    }
    for (int i = 0; i < 256; i++) {
        if (count[i] == 0) continue;
        kinds++;
        chi += (count[i] - 1000.0) * (count[i] - 1000.0) / 1000;
    }
    assert_int_equal(kinds, 24);
    assert_true(chi < 63);
    cairn_sampler_destroy(&s);
}

static void batches_are_the_epoch_in_pieces_and_allocate_nothing(void **state) {
    (void)state;
    int64_t whole[ROOM], batch[8];
    assert_int_equal(epoch_of(61, 1, 2, NULL, 1, whole), 31);
    cairn_sampler *s = make(61, 1, 2, NULL);
    const uint64_t before = cairn__alloc_counters().allocations;
    for (int round = 0; round < 3; round++) {
        assert_int_equal(cairn_sampler_set_epoch(s, 1), CAIRN_OK);
        for (int b = 0; b < 3; b++) {
            assert_int_equal(cairn_sampler_position(s), 8 * b);
            assert_int_equal(cairn_sampler_next(s, batch, 8), 8);
            assert_memory_equal(batch, whole + 8 * b, sizeof(batch));
        }
        assert_int_equal(cairn_sampler_next(s, batch, 8), 7);
        assert_memory_equal(batch, whole + 24, 7 * sizeof(batch[0]));
        assert_int_equal(cairn_sampler_next(s, batch, 8), 0);
        assert_int_equal(cairn_sampler_next(s, NULL, 0), 0);
    }
    assert_int_equal(cairn__alloc_counters().allocations, before);
    cairn_sampler_destroy(&s);
}

static void epoch_and_position_resume_a_run(void **state) {
    (void)state;
    int64_t whole[ROOM], rest[ROOM];
    const size_t length = epoch_of(50, 2, 3, NULL, 6, whole);
    cairn_sampler *s = make(50, 2, 3, NULL);
    assert_int_equal(cairn_sampler_set_epoch(s, 6), CAIRN_OK);
    for (size_t at = 0; at <= length; at++) {
        assert_int_equal(cairn_sampler_seek(s, (int64_t)at), CAIRN_OK);
        assert_int_equal(cairn_sampler_next(s, rest, ROOM), length - at);
        assert_memory_equal(rest, whole + at, (length - at) * sizeof(rest[0]));
        assert_int_equal(cairn_sampler_epoch(s), 6);
    }
    cairn_sampler_destroy(&s);
}

/* Two ranks stop after 6 steps of 1, three go on: together they see every place of the order once. */
static void a_run_resumes_with_another_number_of_ranks(void **state) {
    (void)state;
    int64_t own[ROOM], seen[36] = {0};
    for (int r = 0; r < 2; r++) {
        cairn_sampler *s = make(36, r, 2, NULL);
        assert_int_equal(cairn_sampler_next(s, own, 6), 6);
        for (int k = 0; k < 6; k++) seen[own[k]]++;
        cairn_sampler_destroy(&s);
    }
    for (int r = 0; r < 3; r++) {
        cairn_sampler *s = make(36, r, 3, NULL);
        assert_int_equal(cairn_sampler_seek(s, 6 * 2 / 3), CAIRN_OK);
        assert_int_equal(cairn_sampler_next(s, own, ROOM), 8);
        for (int k = 0; k < 8; k++) seen[own[k]]++;
        cairn_sampler_destroy(&s);
    }
    for (int i = 0; i < 36; i++) assert_int_equal(seen[i], 1);
}

static void huge_datasets_in_order_cost_nothing(void **state) {
    (void)state;
    const int64_t most = (int64_t)1 << 62;
    int64_t index;
    cairn_sampler *s = make(most, INT32_MAX - 1, INT32_MAX, cairn_sampler_options(.shuffle = CAIRN_OFF));
    assert_int_equal(cairn_sampler_length(s), most / INT32_MAX + 1);
    assert_int_equal(cairn_sampler_seek(s, most / INT32_MAX), CAIRN_OK);
    assert_int_equal(cairn_sampler_next(s, &index, 1), 1);
    assert_int_equal(index, most / INT32_MAX * INT32_MAX + (INT32_MAX - 1) - most);
    cairn_sampler_destroy(&s);
}

static void expect_refusal(int64_t n, int rank, int size, const struct cairn_sampler_options *options,
                           const char *why) {
    cairn_sampler *s = NULL;
    assert_int_equal(cairn_distributed_sampler_create(n, rank, size, options, &s), CAIRN_EINVAL);
    assert_null(s);
    if (!strstr(cairn_last_error(), why)) fail_msg("'%s' is not in '%s'", why, cairn_last_error());
}

static void wrong_arguments_are_refused_with_their_values(void **state) {
    (void)state;
    const struct cairn_sampler_options unset = {0};
    expect_refusal(-1, 0, 1, NULL, "a dataset of -1 examples; it must have from 0 to 2^62");
    expect_refusal(INT64_MAX, 0, 1, cairn_sampler_options(.shuffle = CAIRN_OFF), "it must have from 0 to 2^62");
    expect_refusal(9, 0, 0, NULL, "size is 0; there must be at least one rank");
    expect_refusal(9, 3, 3, NULL, "rank is 3 of 3 ranks; it must be from 0 to 2");
    expect_refusal(9, -1, 3, NULL, "rank is -1 of 3 ranks");
    expect_refusal(9, 0, 1, cairn_sampler_options(.shuffle = (cairn_switch)7), "shuffle is 7");
    expect_refusal(9, 0, 1, cairn_sampler_options(.drop_last = (cairn_switch)-1), "drop_last is -1");
    expect_refusal(9, 0, 1, cairn_sampler_options(.pad = (cairn_switch)7), "pad is 7");
    expect_refusal(9, 0, 1, cairn_sampler_options(.pad = CAIRN_OFF, .drop_last = CAIRN_ON), "choose one");
    expect_refusal((int64_t)1 << 32, 0, 1, NULL, "set shuffle to CAIRN_OFF");
    expect_refusal(9, 0, 1, &unset, "cairn_sampler_options.struct_size is 0");
    assert_int_equal(cairn_sampler_create(9, NULL, NULL), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "out is NULL");
}

static void refused_calls_change_nothing(void **state) {
    (void)state;
    int64_t index;
    cairn_sampler *s = NULL;
    assert_int_equal(cairn_sampler_create(9, NULL, &s), CAIRN_OK);
    assert_int_equal(cairn_sampler_set_epoch(s, 4), CAIRN_OK);
    assert_int_equal(cairn_sampler_next(s, &index, 1), 1);
    assert_int_equal(cairn_sampler_set_epoch(s, -1), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "epoch is -1; it must not be negative");
    assert_int_equal(cairn_sampler_seek(s, 10), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "position is 10; it must be from 0 to 9");
    assert_int_equal(cairn_sampler_seek(s, -1), CAIRN_EINVAL);
    assert_int_equal(cairn_sampler_next(s, NULL, 3), 0);
    assert_string_equal(cairn_last_error(), "indices is NULL");
    assert_int_equal(cairn_sampler_position(s), 1);
    assert_int_equal(cairn_sampler_epoch(s), 4);
    cairn_sampler_destroy(&s);
    assert_null(s);
}

static void null_samplers_are_refused(void **state) {
    (void)state;
    int64_t index;
    assert_int_equal(cairn_sampler_next(NULL, &index, 1), 0);
    assert_string_equal(cairn_last_error(), "sampler is NULL");
    assert_int_equal(cairn_sampler_set_epoch(NULL, 0), CAIRN_EINVAL);
    assert_int_equal(cairn_sampler_seek(NULL, 0), CAIRN_EINVAL);
    assert_int_equal(cairn_sampler_length(NULL) + cairn_sampler_position(NULL) + cairn_sampler_epoch(NULL), 0);
    cairn_sampler_destroy(NULL);
    cairn_sampler_destroy(&(cairn_sampler *){NULL});
}

/* ---- state ---- */

/* Ends both; returns "" or the sentence of a refusal. */
static const char *move(cairn_sampler *from, cairn_sampler *to, int64_t *position) {
    static char said[512];
    struct kept_state kept = {.count = 0};
    const cairn_stateful a = cairn_sampler_stateful(from), b = cairn_sampler_stateful(to);
    CALM(keep_state(&kept, &a, 1));
    char *failure = bring_back(&kept, &b, 1);
    snprintf(said, sizeof(said), "%s", failure ? failure : "");
    free(failure);
    *position = cairn_sampler_position(to);
    cairn_sampler_destroy(&from);
    cairn_sampler_destroy(&to);
    drop_state(&kept);
    return said;
}

static void a_sampler_goes_on_with_the_order_of_its_epoch(void **state) {
    (void)state;
    int64_t want[40], got[40];
    struct kept_state kept = {.count = 0};
    const struct cairn_sampler_options *options = cairn_sampler_options(.seed = 4);
    cairn_sampler *a = make(40, 0, 1, options), *b = make(40, 0, 1, options);
    const cairn_stateful of_a = cairn_sampler_stateful(a), of_b = cairn_sampler_stateful(b);
    OK(cairn_sampler_set_epoch(a, 3));
    assert_int_equal(cairn_sampler_next(a, want, 11), 11);
    CALM(keep_state(&kept, &of_a, 1));
    CALM(bring_back(&kept, &of_b, 1));
    assert_int_equal(cairn_sampler_epoch(b), 3);
    assert_int_equal(cairn_sampler_next(a, want, 40), 29);
    assert_int_equal(cairn_sampler_next(b, got, 40), 29);
    assert_memory_equal(want, got, 29 * sizeof(want[0]));
    cairn_sampler_destroy(&a);
    cairn_sampler_destroy(&b);
    drop_state(&kept);
}

static void other_ranks_go_on_where_they_divide_the_places(void **state) {
    (void)state;
    static const struct {
        int64_t n;
        int p, q;
        int64_t before, after; /* -1: refused */
        cairn_switch drop_last, pad;
    } moves[] = {
        {60, 2, 3, 6, 4, 0, 0},         {60, 4, 1, 5, 20, 0, 0},
        {60, 2, 3, 5, -1, 0, 0},        {10, 4, 3, 3, 4, 0, 0}, /* an epoch that is over is over: 12 places */
        {10, 4, 2, 3, 5, 0, 0},                                 /* 12 places of 10 */
        {10, 4, 3, 2, 3, CAIRN_ON, 0},                          /* 8 places, and there are 9 of three ranks */
        {10, 4, 4, 3, 2, 0, CAIRN_OFF},                         /* rank 3 has 2 alone */
        {10, 2, 4, 4, 2, 0, CAIRN_OFF}, {10, 2, 4, 5, 2, 0, CAIRN_OFF},
    };
    for (size_t i = 0; i < sizeof(moves) / sizeof(moves[0]); i++) {
        int64_t position = -1;
        const struct cairn_sampler_options *options =
            cairn_sampler_options(.drop_last = moves[i].drop_last, .pad = moves[i].pad);
        cairn_sampler *from = make(moves[i].n, 0, moves[i].p, options);
        cairn_sampler *to = make(moves[i].n, moves[i].q - 1, moves[i].q, options);
        OK(cairn_sampler_seek(from, moves[i].before));
        const char *said = move(from, to, &position);
        if (moves[i].after < 0) {
            assert_non_null(strstr(said, "2 ranks had handed out 10 examples, 5 each, which 3 ranks do not divide"));
        } else {
            assert_string_equal(said, "");
            assert_int_equal(position, moves[i].after);
        }
    }
}

static void another_dataset_seed_or_option_is_refused(void **state) {
    (void)state;
    int64_t position;
    const struct cairn_sampler_options *plain = cairn_sampler_options(.seed = 4);
    assert_non_null(strstr(move(make(9, 0, 1, plain), make(8, 0, 1, plain), &position),
                           "saved of a dataset of 9 examples, and this has 8"));
    assert_non_null(
        strstr(move(make(9, 0, 1, plain), make(9, 0, 1, NULL), &position), "saved with seed 4, and has seed 0"));
    assert_non_null(strstr(move(make(9, 0, 1, plain),
                                make(9, 0, 1, cairn_sampler_options(.seed = 4, .drop_last = CAIRN_ON)), &position),
                           "drop_last 0 and pad 1, and has 1, 1 and 1"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_share_the_order_repeated_or_cut),
        cmocka_unit_test(without_padding_ranks_share_every_example_once),
        cmocka_unit_test(a_dataset_smaller_than_its_padding_is_repeated),
        cmocka_unit_test(every_epoch_has_every_example_once),
        cmocka_unit_test(without_shuffling_examples_come_in_order_in_every_epoch),
        cmocka_unit_test(orders_equal_the_stored_ones),
        cmocka_unit_test(all_orders_are_equally_likely),
        cmocka_unit_test(batches_are_the_epoch_in_pieces_and_allocate_nothing),
        cmocka_unit_test(epoch_and_position_resume_a_run),
        cmocka_unit_test(a_run_resumes_with_another_number_of_ranks),
        cmocka_unit_test(huge_datasets_in_order_cost_nothing),
        cmocka_unit_test(wrong_arguments_are_refused_with_their_values),
        cmocka_unit_test(refused_calls_change_nothing),
        cmocka_unit_test(null_samplers_are_refused),
        cmocka_unit_test(a_sampler_goes_on_with_the_order_of_its_epoch),
        cmocka_unit_test(other_ranks_go_on_where_they_divide_the_places),
        cmocka_unit_test(another_dataset_seed_or_option_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
