/* The data that collectives are timed with, and the check of their results, which must detect any single wrong bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/dtype.h"
#include "tools/bench/calls.h"

enum { MAX_RANKS = 5, MAX_ELEMENTS = 2500, ROUND = 3 };
static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
static const int sizes[] = {1, 2, MAX_RANKS};
static const size_t counts[] = {1, 3, 1021, MAX_ELEMENTS};

/* All ranks of one call. */
struct world {
    struct bench_call calls[MAX_RANKS];
    void *blocks[MAX_RANKS][2];
    void *sources[MAX_RANKS], *destinations[MAX_RANKS];
};

static void begin(struct world *w, enum bench_collective collective, cairn_dtype dtype, size_t n, int size,
                  bool in_place) {
    for (int r = 0; r < size; r++) {
        struct bench_call *c = &w->calls[r];
        *c = (struct bench_call){collective, dtype, n, in_place, r, size, 1};
        for (int i = 0; i < 2; i++) w->blocks[r][i] = malloc(n * (size_t)size * sizeof(float));
        bench_place(c, w->blocks[r][0], w->blocks[r][1], &w->sources[r], &w->destinations[r]);
        bench_prepare(c, ROUND, w->sources[r], w->destinations[r]);
    }
}

static void end(struct world *w) {
    for (int r = 0; r < w->calls[0].size; r++) {
        for (int i = 0; i < 2; i++) free(w->blocks[r][i]);
    }
}

static size_t count_all(const struct world *w) {
    size_t wrong = 0;
    for (int r = 0; r < w->calls[0].size; r++)
        wrong += bench_count_wrong(&w->calls[r], ROUND, w->sources[r], w->destinations[r]);
    return wrong;
}

/* ---- the collectives, as they are defined ---- */

/* Of element i of all ranks' copies of what was sent. */
static float add(char *const sent[], int size, size_t i, const struct cairn__dtype *t) {
    float sum = 0;
    for (int r = 0; r < size; r++) sum += t->to_f32(sent[r] + i * t->nbytes);
    return sum;
}

/* What rank r gets of element i of its destination. */
static void deliver(const struct world *w, char *const sent[], int r, size_t i) {
    const struct bench_call *c = &w->calls[r];
    const struct cairn__dtype *t = cairn__dtype(c->dtype);
    const size_t at = (size_t)r * c->n, part = i / c->n, within = i % c->n;
    char *to = (char *)w->destinations[r] + i * t->nbytes;
    const char *from = NULL;
    switch (c->collective) {
    case BENCH_BROADCAST:
        from = sent[0] + i * t->nbytes;
        break;
    case BENCH_ALLGATHER:
        from = sent[part] + within * t->nbytes;
        break;
    case BENCH_ALLTOALL:
        from = sent[part] + (at + within) * t->nbytes;
        break;
    case BENCH_SENDRECV:
        from = sent[(r + c->size - 1) % c->size] + i * t->nbytes;
        break;
    case BENCH_REDUCE_SCATTER:
        t->from_f32(to, add(sent, c->size, at + i, t));
        break;
    default:
        t->from_f32(to, add(sent, c->size, i, t));
        break;
    }
    if (from) memcpy(to, from, t->nbytes);
}

static void do_collective(const struct world *w) {
    char *sent[MAX_RANKS];
    const int size = w->calls[0].size;
    for (int r = 0; r < size; r++) {
        const size_t nbytes = bench_source_elements(&w->calls[r]) * cairn_dtype_nbytes(w->calls[r].dtype);
        sent[r] = malloc(nbytes);
        memcpy(sent[r], w->sources[r], nbytes);
    }
    for (int r = 0; r < size; r++) {
        if (w->calls[r].collective == BENCH_REDUCE && r > 0) continue;
        for (size_t i = 0; i < bench_destination_elements(&w->calls[r]); i++) deliver(w, sent, r, i);
    }
    for (int r = 0; r < size; r++) free(sent[r]);
}

/* Walks all calls there are. */
static void for_each(void (*look)(struct world *w)) {
    struct world w;
    for (int c = 0; c < BENCH_BARRIER; c++) {
        for (int k = 0; k < 3 * 3 * 4 * 2; k++) {
            const bool in_place = k % 2;
            if (!bench_has_place((enum bench_collective)c, in_place)) continue;
            begin(&w, (enum bench_collective)c, types[k / 2 % 3], counts[k / 18], sizes[k / 6 % 3], in_place);
            look(&w);
            end(&w);
        }
    }
}

/* ---- tests ---- */

static void expect_right(struct world *w) {
    do_collective(w);
    assert_int_equal(count_all(w), 0);
}

static void results_of_collectives_are_right(void **state) {
    (void)state;
    for_each(expect_right);
}

/* In place sums add up. */
static void results_of_calls_in_a_row_are_known(void **state) {
    (void)state;
    struct world w;
    for (int c = 0; c < BENCH_BARRIER; c++) {
        for (int k = 0; k < 3 * 2; k++) {
            if (!bench_has_place((enum bench_collective)c, k % 2)) continue;
            begin(&w, (enum bench_collective)c, CAIRN_F32, 1500, sizes[k / 2], k % 2);
            for (int r = 0; r < sizes[k / 2]; r++) w.calls[r].calls = 4;
            for (int call = 0; call < 4; call++) do_collective(&w);
            assert_int_equal(count_all(&w), 0);
            end(&w);
        }
    }
}

static void expect_flips_to_show(struct world *w) {
    const int last = w->calls[0].collective == BENCH_REDUCE ? 0 : w->calls[0].size - 1;
    const struct bench_call *c = &w->calls[last];
    const size_t n = bench_destination_elements(c), width = cairn_dtype_nbytes(c->dtype);
    do_collective(w);
    for (size_t i = 0; i < n; i += n / 7 + 1) {
        uint8_t *byte = (uint8_t *)w->destinations[last] + i * width + i % width;
        *byte ^= (uint8_t)(1 << i % 8);
        assert_int_equal(count_all(w), 1);
        *byte ^= (uint8_t)(1 << i % 8);
    }
    ((uint8_t *)w->destinations[last])[n * width - 1] ^= 0x80;
    assert_int_equal(count_all(w), 1);
}

static void one_wrong_bit_is_one_wrong_element(void **state) {
    (void)state;
    for_each(expect_flips_to_show);
}

static void expect_idleness_to_show(struct world *w) {
    const struct bench_call *c = &w->calls[0];
    const bool moves = c->size > 1 || !c->in_place;
    const size_t least = c->collective == BENCH_REDUCE || c->n < 3 ? 1 : c->n / 4;
    if (moves && (c->n > 3 || !c->in_place)) assert_true(count_all(w) >= least);
}

static void collective_that_did_nothing_is_found(void **state) {
    (void)state;
    for_each(expect_idleness_to_show);
}

static void expect_last_round_to_show(struct world *w) {
    do_collective(w);
    size_t wrong = 0;
    for (int r = 0; r < w->calls[0].size; r++)
        wrong += bench_count_wrong(&w->calls[r], ROUND + 1, w->sources[r], w->destinations[r]);
    if (w->calls[0].n > 3) assert_true(wrong >= w->calls[0].n / 4);
}

static void results_of_the_last_round_are_found(void **state) {
    (void)state;
    for_each(expect_last_round_to_show);
}

/* Blocks that backends move are powers of two; a period of 1021 elements tells them apart. */
static void swapped_blocks_are_found(void **state) {
    (void)state;
    struct world w;
    begin(&w, BENCH_ALLGATHER, CAIRN_F16, 2048, 2, false);
    do_collective(&w);
    for (size_t block = 16; block <= 1024; block *= 2) {
        uint16_t *x = w.destinations[1], before[1024];
        memcpy(before, x, sizeof(before));
        memmove(x, x + block, block * sizeof(*x));
        assert_true(count_all(&w) > 0);
        memcpy(x, before, sizeof(before));
    }
    end(&w);
}

static void changed_source_is_found(void **state) {
    (void)state;
    struct world w;
    for (int c = 0; c < BENCH_BARRIER; c++) {
        if (!bench_has_place((enum bench_collective)c, false)) continue;
        begin(&w, (enum bench_collective)c, CAIRN_F32, 9, 2, false);
        do_collective(&w);
        ((float *)w.sources[1])[8] += 1;
        assert_int_equal(count_all(&w), 1);
        end(&w);
    }
}

/* 64 ranks have sums up to 256, which bf16 just holds. */
static void sums_of_most_ranks_are_exact_in_bf16(void **state) {
    (void)state;
    uint16_t x[1021];
    float most = 0;
    for (unsigned round = 0; round < 5; round++) {
        float sums[1021] = {0};
        for (int r = 0; r < BENCH_MOST_RANKS; r++) {
            const struct bench_call c = {BENCH_ALLREDUCE, CAIRN_BF16, 1021, true, r, BENCH_MOST_RANKS, 1};
            bench_prepare(&c, round, x, x);
            for (int i = 0; i < 1021; i++) sums[i] += cairn__dtype(CAIRN_BF16)->to_f32(&x[i]);
        }
        for (int i = 0; i < 1021; i++) {
            cairn__dtype(CAIRN_BF16)->from_f32(&x[i], sums[i]);
            assert_true(cairn__dtype(CAIRN_BF16)->to_f32(&x[i]) == sums[i]);
            most = sums[i] > most ? sums[i] : most;
        }
    }
    assert_true(most <= 256);
}

static void names_find_their_collectives(void **state) {
    (void)state;
    for (int c = 0; c < BENCH_COLLECTIVES; c++) assert_int_equal(bench_find(bench_name((enum bench_collective)c)), c);
    assert_int_equal(bench_find("all-reduce"), BENCH_COLLECTIVES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_of_collectives_are_right),
        cmocka_unit_test(results_of_calls_in_a_row_are_known),
        cmocka_unit_test(one_wrong_bit_is_one_wrong_element),
        cmocka_unit_test(collective_that_did_nothing_is_found),
        cmocka_unit_test(results_of_the_last_round_are_found),
        cmocka_unit_test(swapped_blocks_are_found),
        cmocka_unit_test(changed_source_is_found),
        cmocka_unit_test(sums_of_most_ranks_are_exact_in_bf16),
        cmocka_unit_test(names_find_their_collectives),
    };
    return cmocka_run_group_tests_name("bench calls", tests, NULL, NULL);
}
