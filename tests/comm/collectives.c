#include "collectives.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "comm/group.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/trace.h"
#include "trial.h"

enum { MAX_RANKS = 8 };

static bool in_a_hurry(void) {
    return getenv("CAIRN_TEST_SEEDS") != NULL;
}

/* Whether to run fewer cases: in short runs, or if many ranks share few processors with a library's own threads. */
static bool is_slow(const cairn_group *group) {
    return in_a_hurry() || (cairn_group_size(group) > 3 && strcmp(cairn_group_backend(group), "shm") != 0);
}

static void nap(long us) {
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

/* ---- every collective, type, operation and count ---- */

enum { LONG = 100003, TEN_MILLION = 10000000 };

/* Arrays of p parts have the same total number of elements as others. */
static size_t elements_of(enum trial_kind kind, size_t total, int p) {
    const bool has_parts = kind == ALLGATHER || kind == ALLTOALL || kind == REDUCE_SCATTER;
    return has_parts && total >= LONG ? total / (size_t)p | 1 : total;
}

/* Runs the kind in place and out of place with every operation (slow groups: with a different one each time), each on a
 * different kind of memory. */
static char *walk_kind(cairn_group *group, const struct room *room, struct trial t, unsigned *turn) {
    for (int in_place = 0; in_place <= trial_has_choice(t.kind); in_place++) {
        for (int o = 0; o < (trial_combines(t.kind) && !is_slow(group) ? NUM_OPS : 1); o++) {
            t.in_place = in_place;
            t.op = trial_ops[is_slow(group) ? *turn % NUM_OPS : (unsigned)o];
            t.placement = (int)(*turn % NUM_PLACEMENTS);
            t.salt = (*turn)++;
            PASS(trial_run(group, t, room));
        }
    }
    return NULL;
}

static char *walk_counts(cairn_group *group, const struct room *room, const size_t *counts, size_t num_counts) {
    const int p = cairn_group_size(group);
    unsigned turn = (unsigned)p;
    for (size_t c = 0; c < num_counts; c++) {
        for (int d = 0; d < NUM_TYPES; d++) {
            for (int k = 0; k < NUM_KINDS; k++) {
                if (k == MESSAGE && p == 1) continue;
                const int root = (int)(turn % (unsigned)p);
                struct trial t = {.kind = (enum trial_kind)k,
                                  .dtype = trial_types[d],
                                  .root = root,
                                  .to = (root + 1) % p,
                                  .n = elements_of((enum trial_kind)k, counts[c], p)};
                PASS(walk_kind(group, room, t, &turn));
            }
        }
    }
    return NULL;
}

static char *every_collective(cairn_group *group, void *ctx) {
    (void)ctx;
    const size_t p = (size_t)cairn_group_size(group), counts[] = {0, 1, p > 1 ? p - 1 : 2, 67, 1023, LONG};
    const size_t num_counts = sizeof(counts) / sizeof(counts[0]) - (in_a_hurry() && p > 2);
    struct room room;
    PASS(room_open(group, &room, 1, (num_counts < 6 ? 1023 * p : LONG + 16) * sizeof(int64_t)));
    PASS(walk_counts(group, &room, counts, num_counts));
    return room_close(group, &room);
}

static char *ten_million_elements(cairn_group *group, void *ctx) {
    (void)ctx;
    static const struct trial trials[] = {
        {.kind = ALLREDUCE, .dtype = CAIRN_F16, .op = CAIRN_AVG},
        {.kind = ALLREDUCE, .dtype = CAIRN_F32, .op = CAIRN_SUM, .placement = 2},
        {.kind = ALLREDUCE_INTO, .dtype = CAIRN_BF16, .op = CAIRN_SUM, .placement = 1},
        {.kind = REDUCE, .dtype = CAIRN_F16, .op = CAIRN_MAX, .root = 1, .placement = 3},
        {.kind = BROADCAST, .dtype = CAIRN_F32, .root = 1, .placement = 3},
        {.kind = ALLGATHER, .dtype = CAIRN_U8, .in_place = true},
        {.kind = REDUCE_SCATTER, .dtype = CAIRN_BF16, .op = CAIRN_AVG, .placement = 3},
        {.kind = ALLTOALL, .dtype = CAIRN_F16, .placement = 2},
        {.kind = MESSAGE, .dtype = CAIRN_F32, .root = 0, .to = 1, .placement = 1},
    };
    const int p = cairn_group_size(group);
    const size_t n = in_a_hurry() ? TEN_MILLION / 10 : TEN_MILLION;
    struct room room;
    if (p != 2) return NULL; /* once is enough: it takes seconds */
    PASS(room_open(group, &room, 1, n * sizeof(int16_t) + 64));
    for (size_t i = 0; i < sizeof(trials) / sizeof(trials[0]); i++) {
        struct trial t = trials[i];
        t.n = elements_of(t.kind, n, p);
        PASS(trial_run(group, t, &room));
    }
    return room_close(group, &room);
}

/* Enough for backends that move arrays in blocks of megabytes to use every buffer twice, and then a shorter block. */
static char *several_blocks(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { N = 1300003 };
    const int p = cairn_group_size(group);
    struct room room;
    if (p != 3) return NULL; /* once, as above */
    PASS(room_open(group, &room, 1, (N + 3) * sizeof(double)));
    for (int k = 0; k < NUM_KINDS; k++) {
        struct trial t = {.kind = (enum trial_kind)k, .dtype = CAIRN_F64, .op = CAIRN_SUM, .root = 1, .to = 2};
        t.n = elements_of(t.kind, N, p);
        t.placement = k % NUM_PLACEMENTS;
        PASS(trial_run(group, t, &room));
    }
    return room_close(group, &room);
}

static char *nothing_at_all(cairn_group *group, void *ctx) {
    (void)ctx;
    const int next = (cairn_group_rank(group) + 1) % cairn_group_size(group);
    EXPECT_OK(cairn_allreduce(group, NULL, 0, CAIRN_F16, CAIRN_AVG, NULL));
    EXPECT_OK(cairn_allreduce_into(group, NULL, NULL, 0, CAIRN_F32, CAIRN_MAX, NULL));
    EXPECT_OK(cairn_reduce(group, NULL, NULL, 0, CAIRN_I64, CAIRN_SUM, 0, NULL));
    EXPECT_OK(cairn_broadcast(group, NULL, 0, CAIRN_U8, 0, NULL));
    EXPECT_OK(cairn_allgather(group, NULL, NULL, 0, CAIRN_F64, NULL));
    EXPECT_OK(cairn_reduce_scatter(group, NULL, NULL, 0, CAIRN_BF16, CAIRN_PROD, NULL));
    EXPECT_OK(cairn_alltoall(group, NULL, NULL, 0, CAIRN_I32, NULL));
    if (cairn_group_size(group) == 1) return NULL;
    cairn_work *sent = NULL;
    const int before = (next + cairn_group_size(group) - 2) % cairn_group_size(group);
    EXPECT_OK(cairn_send(group, NULL, 0, CAIRN_F32, next, &sent));
    EXPECT_OK(cairn_recv(group, NULL, 0, CAIRN_F32, before, NULL));
    EXPECT_OK(cairn_work_wait(&sent));
    return NULL;
}

/* ---- numbers that show how they were combined ---- */

enum { NUMBERS = 840 /* divisible by every number of ranks */ };

/* A rank's input at an index; every rank can compute the others' inputs. */
typedef double (*number_fn)(int rank, size_t i);

static double load(const void *x, size_t i, cairn_dtype dtype) {
    double value = 0;
    if (dtype == CAIRN_F64) {
        memcpy(&value, (const char *)x + i * sizeof(value), sizeof(value));
        return value;
    }
    return (double)cairn__dtype(dtype)->to_f32((const char *)x + i * cairn_dtype_nbytes(dtype));
}

/* Combines two values in double: for f32 operands these operations give the same bits as in f32 after rounding. */
static double combine_two(double a, double b, cairn_redop op) {
    if (op == CAIRN_PROD) return a * b;
    if (op != CAIRN_MIN && op != CAIRN_MAX) return a + b;
    if (isnan(a) || isnan(b)) return (double)NAN;
    if (a == b) return (op == CAIRN_MIN) == (signbit(a) != 0) ? a : b; /* zeros of both signs */
    return (op == CAIRN_MIN) == (a < b) ? a : b;
}

/* The definition: in rank order in the accumulation type, divided once; put_value rounds it once. */
static double combine_all(number_fn number, int p, size_t i, cairn_dtype dtype, cairn_redop op) {
    const bool wide = dtype == CAIRN_F64;
    double acc = 0, x = 0;
    for (int r = 0; r < p; r++) {
        put_value(&x, 0, dtype, number(r, i));
        const double v = load(&x, 0, dtype);
        acc = r ? combine_two(acc, v, op) : v;
        if (!wide) acc = (double)(float)acc;
    }
    if (op == CAIRN_AVG) acc = acc / p;
    return wide ? acc : (double)(float)acc;
}

/* Computes the combination into dst [NUMBERS] on every rank by a collective of the kind. */
static cairn_status combine(cairn_group *group, enum trial_kind kind, char *dst, char *src, cairn_dtype dtype,
                            cairn_redop op) {
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    const size_t nbytes = NUMBERS * cairn_dtype_nbytes(dtype), n = NUMBERS / (size_t)p;
    char *part = dst + (size_t)rank * (nbytes / (size_t)p);
    cairn_status st = CAIRN_OK;
    switch (kind) {
    case ALLREDUCE:
        memcpy(dst, src, nbytes);
        return cairn_allreduce(group, dst, NUMBERS, dtype, op, NULL);
    case ALLREDUCE_INTO:
        return cairn_allreduce_into(group, dst, src, NUMBERS, dtype, op, NULL);
    case REDUCE:
        st = cairn_reduce(group, dst, src, NUMBERS, dtype, op, p - 1, NULL);
        return st == CAIRN_OK ? cairn_broadcast(group, dst, NUMBERS, dtype, p - 1, NULL) : st;
    default:
        st = cairn_reduce_scatter(group, part, src, n, dtype, op, NULL);
        return st == CAIRN_OK ? cairn_allgather(group, dst, part, n, dtype, NULL) : st;
    }
}

static char *check_numbers(cairn_group *group, const struct room *room, number_fn number, cairn_dtype dtype,
                           cairn_redop op) {
    static const enum trial_kind kinds[] = {ALLREDUCE, ALLREDUCE_INTO, REDUCE, REDUCE_SCATTER};
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    char *dst = room->registered, *src = room->ordinary;
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        for (size_t i = 0; i < NUMBERS; i++) put_value(src, i, dtype, number(rank, i));
        EXPECT_OK(combine(group, kinds[k], dst, src, dtype, op));
        for (size_t i = 0; i < NUMBERS; i++) {
            const double wanted = combine_all(number, p, i, dtype, op);
            EXPECT(isnan(wanted) ? isnan(load(dst, i, dtype)) : is_value(dst, i, dtype, wanted));
        }
    }
    return NULL;
}

static char *check_equal_on_all_ranks(cairn_group *group, const void *x, size_t nbytes) {
    const size_t p = (size_t)cairn_group_size(group);
    char *all = malloc(p * nbytes);
    cairn_status st = cairn_allgather(group, all, x, nbytes, CAIRN_U8, NULL);
    bool equal = st == CAIRN_OK;
    for (size_t r = 0; r < p && equal; r++) equal = memcmp(all, all + r * nbytes, nbytes) == 0;
    free(all);
    EXPECT(equal);
    return NULL;
}

static double forty_thousand(int rank, size_t i) {
    (void)rank, (void)i;
    return 40000;
}

static char *averages_that_would_overflow(cairn_group *group, void *ctx) {
    (void)ctx;
    struct room room;
    PASS(room_open(group, &room, 1, NUMBERS * sizeof(double)));
    PASS(check_numbers(group, &room, forty_thousand, CAIRN_F16, CAIRN_AVG));
    for (size_t i = 0; i < NUMBERS; i++) EXPECT(is_value(room.registered, i, CAIRN_F16, 40000));
    return room_close(group, &room);
}

/* The last ranks contribute a value, the others zeros; the average is over the contributing ranks. */
static char *check_average_over_some(cairn_group *group, void *x, cairn_dtype dtype, double value) {
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    for (int some = 1; some <= p; some++) {
        for (size_t i = 0; i < NUMBERS; i++) put_value(x, i, dtype, rank >= p - some ? value : 0);
        EXPECT_OK(cairn__group_average(group, x, NUMBERS, dtype, some, NULL, NULL));
        for (size_t i = 0; i < NUMBERS; i++) EXPECT(is_value(x, i, dtype, value));
    }
    return NULL;
}

static char *averages_over_some(cairn_group *group, void *ctx) {
    (void)ctx;
    struct room room;
    PASS(room_open(group, &room, 1, NUMBERS * sizeof(double)));
    PASS(check_average_over_some(group, room.registered, CAIRN_F16, 40000));
    PASS(check_average_over_some(group, room.ordinary, CAIRN_BF16, 40960));
    PASS(check_average_over_some(group, room.ordinary, CAIRN_F32, 40000));
    return room_close(group, &room);
}

/* x, plain [p * n]; whose: bit mask of ranks with an infinity. */
static char *check_slices(cairn_group *group, void *x, void *plain, size_t n, cairn_dtype dtype, int divisor,
                          unsigned whose) {
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    const size_t width = cairn_dtype_nbytes(dtype), at = (size_t)rank * n * width;
    uint32_t found[2] = {0, 0};
    cairn_work *work = NULL;
    struct cairn__nonfinite nonfinite = {.found = 0};
    for (size_t i = 0; i < (size_t)p * n; i++) put_value(x, i, dtype, (double)((int)(i * 7 % 1001) - 500 + rank) / 8);
    if (whose >> rank & 1) put_value(x, (size_t)rank * 7919 % ((size_t)p * n), dtype, (double)INFINITY);
    memcpy(plain, x, (size_t)p * n * width);
    EXPECT_OK(cairn__group_average(group, plain, (size_t)p * n, dtype, divisor, NULL, &work));
    EXPECT_OK(cairn__work_finish(&work, &found[0]));
    EXPECT_OK(cairn__group_average_slice(group, x, n, dtype, divisor, whose ? &nonfinite : NULL, &work));
    EXPECT_OK(cairn__work_finish(&work, &found[1]));
    EXPECT(memcmp((char *)x + at, (char *)plain + at, n * width) == 0);
    EXPECT(found[0] == found[1]);
    if (!whose || !cairn__group_checks_results(group)) return NULL;
    EXPECT(nonfinite.found == 1 && nonfinite.ranks.bits[0] == whose);
    return NULL;
}

static char *slices_of_averages(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { MOST = 20000 };
    static const cairn_dtype floats[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    static const size_t sizes[] = {1, 64, 4099, MOST};
    const int p = cairn_group_size(group);
    struct room room;
    PASS(room_open(group, &room, 1, (size_t)p * MOST * 2 * sizeof(float)));
    for (int t = 0; t < 3; t++) {
        for (int s = 0; s < 4; s++) {
            void *const memory = s % 2 ? room.registered : room.ordinary;
            char *const plain = (char *)memory + (size_t)p * MOST * sizeof(float);
            for (int divisor = 0; divisor <= p; divisor++)
                PASS(check_slices(group, memory, plain, sizes[s], floats[t], divisor, 0));
            if (cairn__group_finds_nonfinite(group))
                PASS(check_slices(group, memory, plain, sizes[s], floats[t], p, p > 1 ? 2 : 1));
        }
    }
    return room_close(group, &room);
}

/* 256 + 1 in bf16 is 256: only a sum that is rounded once counts the ones, for any rank and position of the large
 * number. */
static double one_is_large(int rank, size_t i) {
    return i % MAX_RANKS == (size_t)rank ? 256 : 1;
}

static double first_is_large(int rank, size_t i) {
    (void)i;
    return rank == 0 ? 256 : 1;
}

static char *one_rounding(cairn_group *group, void *ctx) {
    (void)ctx;
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    struct room room;
    PASS(room_open(group, &room, 1, NUMBERS * sizeof(double)));
    PASS(check_numbers(group, &room, one_is_large, CAIRN_BF16, CAIRN_SUM));
    PASS(check_numbers(group, &room, first_is_large, CAIRN_BF16, CAIRN_SUM));
    for (size_t n = 1; n < 300; n = n * 2 + 1) { /* at every position of blocks of every length */
        char *x = (n % 4 == 1 ? room.ordinary : (char *)room.registered) + n % 3 * 2;
        for (size_t i = 0; i < n; i++) put_value(x, i, CAIRN_BF16, first_is_large(rank, i));
        EXPECT_OK(cairn_allreduce(group, x, n, CAIRN_BF16, CAIRN_SUM, NULL));
        for (size_t i = 0; i < n; i++) EXPECT(is_value(x, i, CAIRN_BF16, 256 + p - 1));
    }
    return room_close(group, &room);
}

/* Values of both signs and many sizes: a different order gives different bits. */
static double wild(int rank, size_t i) {
    unsigned random = (unsigned)i * 8 + (unsigned)rank;
    for (int k = 0; k < 3; k++) (void)random_below(&random, 2);
    const double fraction = 1 + random_below(&random, 1 << 24) / (double)(1 << 24);
    return ldexp(random_below(&random, 2) ? fraction : -fraction, (int)random_below(&random, 24) - 12);
}

/* Whether sums are added in two levels, over machines with several ranks; hierarchy_test.c tests that order. */
static bool adds_in_levels(cairn_dtype dtype, cairn_redop op) {
    return getenv("CAIRN_TEST_MACHINES") && dtype != CAIRN_F64 && (op == CAIRN_SUM || op == CAIRN_AVG);
}

static char *rank_order(cairn_group *group, void *ctx) {
    (void)ctx;
    static const cairn_dtype floats[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_F64};
    struct room room;
    PASS(room_open(group, &room, 1, NUMBERS * sizeof(double)));
    for (int d = 0; d < 4; d++) {
        for (int o = 0; o < NUM_OPS; o++) {
            if (adds_in_levels(floats[d], trial_ops[o])) continue;
            PASS(check_numbers(group, &room, wild, floats[d], trial_ops[o]));
            PASS(check_equal_on_all_ranks(group, room.registered, NUMBERS * cairn_dtype_nbytes(floats[d])));
        }
    }
    return room_close(group, &room);
}

/* NaN, infinities and zeros of both signs meet every other kind of number. */
static double odd_ones(int rank, size_t i) {
    static const double odd[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 0.0, -0.0, 1.5, -2};
    const size_t kinds = sizeof(odd) / sizeof(odd[0]);
    return odd[rank % 2 ? i / kinds % kinds : i % kinds];
}

static char *least_and_greatest(cairn_group *group, void *ctx) {
    (void)ctx;
    static const cairn_dtype floats[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_F64};
    struct room room;
    PASS(room_open(group, &room, 1, NUMBERS * sizeof(double)));
    for (int d = 0; d < 4; d++) {
        for (int o = 2; o < 4; o++) {
            PASS(check_numbers(group, &room, odd_ones, floats[d], trial_ops[o]));
            PASS(check_equal_on_all_ranks(group, room.registered, NUMBERS * cairn_dtype_nbytes(floats[d])));
        }
    }
    return room_close(group, &room);
}

/* Sums and products of integers modulo 2^bits. */
static char *check_wrap(cairn_group *group, cairn_dtype dtype, uint64_t first, cairn_redop op) {
    enum { N = 100 };
    const int p = cairn_group_size(group);
    const size_t size = cairn_dtype_nbytes(dtype);
    uint64_t x[N];
    for (size_t i = 0; i < N; i++) {
        uint64_t mine = first + i + (uint64_t)cairn_group_rank(group);
        memcpy((char *)x + i * size, &mine, size); /* little-endian: the lower bytes */
    }
    EXPECT_OK(cairn_allreduce(group, x, N, dtype, op, NULL));
    for (size_t i = 0; i < N; i++) {
        uint64_t wanted = first + i;
        for (int r = 1; r < p; r++)
            wanted = op == CAIRN_SUM ? wanted + first + i + (uint64_t)r : wanted * (first + i + (uint64_t)r);
        EXPECT(memcmp((char *)x + i * size, &wanted, size) == 0);
    }
    return NULL;
}

static char *integers_wrap_around(cairn_group *group, void *ctx) {
    (void)ctx;
    PASS(check_wrap(group, CAIRN_U8, 200, CAIRN_SUM));
    PASS(check_wrap(group, CAIRN_U8, 200, CAIRN_PROD));
    PASS(check_wrap(group, CAIRN_I32, INT32_MAX - 50, CAIRN_SUM));
    PASS(check_wrap(group, CAIRN_I32, 65537, CAIRN_PROD));
    PASS(check_wrap(group, CAIRN_I64, INT64_MAX - 50, CAIRN_SUM));
    PASS(check_wrap(group, CAIRN_I64, 4294967297, CAIRN_PROD));
    return NULL;
}

static char *found_by_all(cairn_group *group, void *ctx) {
    (void)ctx;
    static const cairn_dtype floats[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    float x[1000];
    for (int round = 0; round < 24; round++) {
        const cairn_dtype dtype = floats[round % 3];
        const bool planted = round % 2;
        for (size_t i = 0; i < 1000; i++) put_value(x, i, dtype, 1);
        if (planted && rank == round % p)
            put_value(x, (size_t)round * 217 % 1000, dtype, (double)(round % 4 == 1 ? INFINITY : NAN));
        cairn_work *work = NULL;
        uint32_t found = 0;
        EXPECT_OK(cairn_allreduce(group, x, 1000, dtype, CAIRN_AVG, &work));
        EXPECT_OK(cairn__work_finish(&work, &found));
        EXPECT(found == (planted && cairn__group_checks_results(group)));
    }
    return NULL;
}

/* Ranks r with bit r of whose set have an infinity at any position of an averaged x [n]. */
static char *check_nonfinite(cairn_group *group, void *x, void *plain, size_t n, cairn_dtype dtype, unsigned whose) {
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    struct cairn__nonfinite nonfinite = {.found = 0}, all[MAX_RANKS];
    for (size_t i = 0; i < n; i++) put_value(x, i, dtype, (double)((int)(i * 7 % 1001) - 500 + rank) / 8);
    if (whose >> rank & 1) put_value(x, (size_t)rank * 7919 % n, dtype, (double)(rank % 2 ? INFINITY : NAN));
    memcpy(plain, x, n * cairn_dtype_nbytes(dtype));
    EXPECT_OK(cairn__group_average(group, plain, n, dtype, p, NULL, NULL));
    EXPECT_OK(cairn__group_average(group, x, n, dtype, p, &nonfinite, NULL));
    EXPECT(memcmp(x, plain, n * cairn_dtype_nbytes(dtype)) == 0);
    EXPECT_OK(cairn__group_exchange(group, all, &nonfinite, sizeof(nonfinite)));
    for (int r = 0; r < p; r++) {
        if (cairn__group_checks_results(group)) EXPECT(memcmp(&all[r], &nonfinite, sizeof(nonfinite)) == 0);
        cairn__nonfinite_unite(&nonfinite, &all[r]);
    }
    EXPECT(nonfinite.found == (whose != 0) && nonfinite.ranks.bits[0] == whose);
    return NULL;
}

static char *nonfinite_ranks_are_told(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { MOST = 70001 };
    static const cairn_dtype floats[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    static const size_t sizes[] = {1, 2100, 33000, MOST};
    static const unsigned masks[] = {0, 2, 5, ~0u};
    const unsigned all_ranks = (1u << cairn_group_size(group)) - 1;
    struct room room;
    if (!cairn__group_finds_nonfinite(group)) return NULL;
    PASS(room_open(group, &room, 1, MOST * sizeof(double)));
    for (int t = 0; t < 3; t++) {
        for (int s = 0; s < 4; s++) {
            void *const x = s % 2 ? room.registered : room.ordinary, *const other =
                                                                         s % 2 ? room.ordinary : room.registered;
            for (int w = 0; w < 4; w++)
                PASS(check_nonfinite(group, x, other, sizes[s], floats[t], masks[w] & all_ranks));
        }
    }
    return room_close(group, &room);
}

/* ---- several at once ---- */

struct channel {
    cairn_group *group;
    unsigned random; /* the same on every rank of it */
    int waiting;     /* trials of a round that are not posted yet */
};

enum { MAX_CHANNELS = 2 };

struct mixture {
    struct channel channels[MAX_CHANNELS];
    int num_channels;
    int rounds, depth; /* depth: most trials per channel and round */
    size_t most;       /* elements, in all parts together */
    unsigned own;      /* this rank's random numbers, for its order of posting and waiting */
    struct room room;
    struct trial *trials; /* [num_channels][depth] */
    int counts[MAX_CHANNELS];
};

static struct trial *trial_of(const struct mixture *m, int channel, int k) {
    return &m->trials[channel * m->depth + k];
}

static void begin_round(struct mixture *m) {
    const int desks = m->num_channels * m->depth;
    for (int c = 0; c < m->num_channels; c++) {
        struct channel *channel = &m->channels[c];
        const int p = cairn_group_size(channel->group);
        m->counts[c] = 1 + (int)random_below(&channel->random, (unsigned)m->depth);
        channel->waiting = m->counts[c];
        for (int k = 0; k < m->counts[c]; k++) {
            struct trial *t = trial_of(m, c, k);
            *t = trial_random(&channel->random, p, m->most / (size_t)p);
            trial_begin(channel->group, t, &m->room, c * m->depth + k, desks);
        }
    }
}

/* Posts in order on each channel; each rank interleaves the channels differently. A single trial is synchronous. */
static char *post_round(cairn_group *group, struct mixture *m) {
    int waiting = 0;
    for (int c = 0; c < m->num_channels; c++) waiting += m->counts[c];
    const bool alone = m->num_channels == 1 && waiting == 1;
    while (waiting > 0) {
        const int c = (int)random_below(&m->own, (unsigned)m->num_channels);
        struct channel *channel = &m->channels[c];
        if (channel->waiting == 0) continue;
        struct trial *t = trial_of(m, c, m->counts[c] - channel->waiting);
        EXPECT_OK(trial_post(channel->group, t, alone ? NULL : &t->work));
        if (random_below(&m->own, 8) == 0) EXPECT_OK(cairn__group_progress(group));
        channel->waiting--;
        waiting--;
    }
    return NULL;
}

static char *wait_for(struct mixture *m, struct trial *t) {
    int done = 0;
    for (unsigned looks = random_below(&m->own, 3); t->work && looks > 0 && !done; looks--) {
        EXPECT_OK(cairn_work_test(t->work, &done));
    }
    EXPECT_OK(cairn_work_wait(&t->work));
    EXPECT(t->work == NULL);
    return NULL;
}

/* Each rank waits in a different order. */
static char *wait_round(struct mixture *m) {
    struct trial *left[2 * 150];
    unsigned num_left = 0;
    for (int c = 0; c < m->num_channels; c++) {
        for (int k = 0; k < m->counts[c]; k++) left[num_left++] = trial_of(m, c, k);
    }
    while (num_left > 0) {
        const unsigned next = random_below(&m->own, num_left);
        PASS(wait_for(m, left[next]));
        left[next] = left[--num_left];
    }
    for (int c = 0; c < m->num_channels; c++) {
        for (int k = 0; k < m->counts[c]; k++) PASS(trial_check(m->channels[c].group, trial_of(m, c, k)));
    }
    return NULL;
}

static char *run_rounds(cairn_group *group, struct mixture *m) {
    for (int round = 0; round < m->rounds; round++) {
        begin_round(m);
        PASS(post_round(group, m));
        PASS(wait_round(m));
    }
    return NULL;
}

/* group: all ranks of the channels; provides the memory. */
static char *mix(cairn_group *group, struct mixture m) {
    m.own += 77u * (unsigned)cairn_group_rank(group);
    m.trials = calloc((size_t)(m.num_channels * m.depth), sizeof(*m.trials));
    PASS(room_open(group, &m.room, m.num_channels * m.depth, m.most * sizeof(int64_t)));
    PASS(run_rounds(group, &m)); /* a dead group may still write to the room, so it is not freed then */
    free(m.trials);
    return room_close(group, &m.room);
}

static char *mixtures_on_two_channels(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *second = NULL;
    EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &second));
    EXPECT(cairn_group_rank(second) == cairn_group_rank(group) && cairn_group_size(second) == cairn_group_size(group));
    EXPECT(strcmp(cairn_group_backend(second), cairn_group_backend(group)) == 0);
    char *sentence =
        mix(group, (struct mixture){.channels = {{.group = group, .random = 1}, {.group = second, .random = 2}},
                                    .num_channels = 2,
                                    .rounds = is_slow(group) ? 30 : 200,
                                    .depth = 4,
                                    .most = 40000});
    if (!sentence && cairn_barrier(second) != CAIRN_OK) sentence = FAILURE("barrier");
    cairn_group_destroy(&second);
    return sentence;
}

static char *one_after_the_other(cairn_group *group, void *ctx) {
    (void)ctx;
    return mix(group, (struct mixture){.channels = {{.group = group, .random = 3}},
                                       .num_channels = 1,
                                       .rounds = is_slow(group) ? 30 : 200,
                                       .depth = 1,
                                       .most = 40000});
}

static char *many_outstanding(cairn_group *group, void *ctx) {
    (void)ctx;
    return mix(group, (struct mixture){.channels = {{.group = group, .random = 4}},
                                       .num_channels = 1,
                                       .rounds = is_slow(group) ? 1 : 6,
                                       .depth = 150,
                                       .most = 400});
}

/* ---- messages ---- */

enum { PER_PAIR = 5 };

struct messages {
    struct room room;
    struct trial trials[PER_PAIR * 2 * (MAX_RANKS - 1)];
    int count;
};

static struct trial *message_begin(cairn_group *group, struct messages *m, int from, int to, int k) {
    static const size_t counts[PER_PAIR] = {3, 0, 2000, 1, 67};
    struct trial *t = &m->trials[m->count];
    *t = (struct trial){.kind = MESSAGE,
                        .dtype = trial_types[(from + k) % NUM_TYPES],
                        .n = counts[k],
                        .root = from,
                        .to = to,
                        .salt = (unsigned)(k * 64 + from * 8 + to),
                        .placement = (from + k) % NUM_PLACEMENTS};
    trial_begin(group, t, &m->room, m->count++, PER_PAIR * 2 * (MAX_RANKS - 1));
    return t;
}

/* Each rank posts its sends and receives in a different order. */
static char *post_messages(cairn_group *group, struct messages *m) {
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    for (int i = 0; i < PER_PAIR * p * 2; i++) {
        const int k = i / (2 * p), peer = (i / 2 + rank * 3) % p;
        const bool sends = (i + rank) % 2;
        if (peer == rank) continue;
        struct trial *t = message_begin(group, m, sends ? rank : peer, sends ? peer : rank, k);
        EXPECT_OK(trial_post(group, t, &t->work));
    }
    return NULL;
}

static char *exchange_messages(cairn_group *group, struct messages *m) {
    int32_t sum = 1;
    PASS(post_messages(group, m));
    EXPECT_OK(cairn_allreduce(group, &sum, 1, CAIRN_I32, CAIRN_SUM, NULL)); /* must not wait for the messages */
    EXPECT(sum == cairn_group_size(group));
    for (int i = 0; i < m->count; i++) { /* wait in a different order than posted */
        EXPECT_OK(cairn_work_wait(&m->trials[m->count % 11 ? i * 11 % m->count : i].work));
    }
    for (int i = 0; i < m->count; i++) PASS(trial_check(group, &m->trials[i]));
    return NULL;
}

static char *messages_between_all(cairn_group *group, void *ctx) {
    (void)ctx;
    struct messages m;
    PASS(room_open(group, &m.room, PER_PAIR * 2 * (MAX_RANKS - 1), 2000 * sizeof(int64_t)));
    for (int round = 0; round < (is_slow(group) ? 1 : 3); round++) {
        m.count = 0;
        PASS(exchange_messages(group, &m));
    }
    return room_close(group, &m.room);
}

/* Long messages in both directions at once, and short ones back and forth; a rank without a partner takes no part. */
static char *messages_to_and_fro(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { N = 300001 };
    const int p = cairn_group_size(group), rank = cairn_group_rank(group), peer = rank ^ 1;
    struct room room;
    PASS(room_open(group, &room, 2, N * sizeof(float)));
    if (peer < p) {
        struct trial sent = {.kind = MESSAGE, .dtype = CAIRN_F32, .n = N, .root = rank, .to = peer, .salt = 1},
                     got = sent;
        got.root = peer, got.to = rank, got.placement = 1;
        trial_begin(group, &sent, &room, 0, 2);
        trial_begin(group, &got, &room, 1, 2);
        EXPECT_OK(trial_post(group, &sent, &sent.work));
        EXPECT_OK(trial_post(group, &got, &got.work));
        EXPECT_OK(cairn_work_wait(&sent.work));
        EXPECT_OK(cairn_work_wait(&got.work));
        PASS(trial_check(group, &sent));
        PASS(trial_check(group, &got));
    }
    for (int i = 0; peer < p && i < 40; i++) {
        struct trial t = {
            .kind = MESSAGE, .dtype = CAIRN_I32, .n = (size_t)i, .salt = (unsigned)i, .placement = i % NUM_PLACEMENTS};
        t.root = (rank & ~1) + i % 2, t.to = t.root ^ 1;
        PASS(trial_run(group, t, &room));
    }
    return room_close(group, &room);
}

/* ---- groups of some ranks ---- */

/* Ranks of the parent with this parity, in reverse order. */
static int list_ranks(int p, int parity, int *ranks) {
    int n = 0;
    for (int r = p - 1; r >= 0; r--) {
        if (r % 2 == parity) ranks[n++] = r;
    }
    return n;
}

static char *check_members(cairn_group *group, cairn_group *mine, const int *ranks, int n) {
    EXPECT(cairn_group_size(mine) == n);
    EXPECT(ranks[cairn_group_rank(mine)] == cairn_group_rank(group));
    for (int i = 0; i < n; i++) EXPECT(cairn_group_env_rank(mine, i) == cairn_group_env_rank(group, ranks[i]));
    EXPECT(cairn_group_env_rank(mine, n) == -1 && cairn_group_env_rank(mine, -1) == -1);
    return NULL;
}

static char *mix_alone(cairn_group *mine, unsigned salt) {
    return mix(mine, (struct mixture){.channels = {{.group = mine, .random = salt}},
                                      .num_channels = 1,
                                      .rounds = is_slow(mine) ? 5 : 20,
                                      .depth = 3,
                                      .most = 5000});
}

static char *mix_with_parent(cairn_group *group, cairn_group *mine, unsigned salt) {
    return mix(group, (struct mixture){.channels = {{.group = group, .random = 9}, {.group = mine, .random = salt}},
                                       .num_channels = 2,
                                       .rounds = is_slow(group) ? 5 : 20,
                                       .depth = 3,
                                       .most = 5000});
}

/* A rank that is done leaves at once. */
static char *use_and_leave(cairn_group *parent, cairn_group **mine, unsigned salt) {
    char *sentence = mix_alone(*mine, salt);
    if (!sentence && parent) sentence = mix_with_parent(parent, *mine, salt);
    if (!sentence && cairn_barrier(*mine) != CAIRN_OK) sentence = FAILURE("barrier");
    cairn_group_destroy(mine);
    return sentence;
}

static char *groups_of_odd_and_even_ranks(cairn_group *group, void *ctx) {
    (void)ctx;
    const int p = cairn_group_size(group), parity = cairn_group_rank(group) % 2;
    cairn_group *both[2] = {NULL, NULL};
    int ranks[2][MAX_RANKS], n[2];
    for (int i = 0; i < 2; i++) {
        n[i] = list_ranks(p, i, ranks[i]);
        if (n[i]) EXPECT_OK(cairn_group_new(group, ranks[i], n[i], NULL, &both[i]));
        EXPECT((both[i] != NULL) == (i == parity));
    }
    PASS(check_members(group, both[parity], ranks[parity], n[parity]));
    return use_and_leave(group, &both[parity], 10 + (unsigned)parity);
}

static char *groups_by_color_and_key(cairn_group *group, void *ctx) {
    (void)ctx;
    const int p = cairn_group_size(group), rank = cairn_group_rank(group), parity = rank % 2;
    cairn_group *mine = NULL, *none = NULL;
    int ranks[MAX_RANKS];
    EXPECT_OK(cairn_group_split(group, parity, -rank, NULL, &mine));
    PASS(check_members(group, mine, ranks, list_ranks(p, parity, ranks)));
    PASS(use_and_leave(group, &mine, 20 + (unsigned)parity));
    EXPECT_OK(cairn_group_split(group, rank == p - 1 ? 3 : -1, 0, NULL, &none));
    EXPECT((none != NULL) == (rank == p - 1));
    EXPECT(rank != p - 1 ||
           (cairn_group_size(none) == 1 && cairn_group_env_rank(none, 0) == cairn_group_env_rank(group, rank)));
    cairn_group_destroy(&none);
    EXPECT(none == NULL);
    return NULL;
}

/* A group of all ranks but the last, and a subgroup of it without its last rank. */
static char *groups_of_groups(cairn_group *group, void *ctx) {
    (void)ctx;
    const int p = cairn_group_size(group);
    const int ranks[MAX_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    cairn_group *outer = NULL, *inner = NULL;
    char *sentence = NULL;
    if (p < 3) return NULL;
    EXPECT_OK(cairn_group_new(group, ranks + 1, p - 1, NULL, &outer));
    if (!outer) return NULL;
    EXPECT_OK(cairn_group_new(outer, ranks + 1, p - 2, NULL, &inner));
    if (inner) {
        EXPECT(cairn_group_env_rank(inner, 0) == cairn_group_env_rank(group, 2));
        sentence = use_and_leave(NULL, &inner, 30);
    }
    cairn_group_destroy(&outer);
    return sentence;
}

/* ---- memory and barriers ---- */

static char *group_memory(cairn_group *group, void *ctx) {
    (void)ctx;
    void *blocks[6] = {NULL}, *none = NULL;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 6; i++) {
            if (blocks[i]) continue;
            EXPECT_OK(cairn_group_alloc(group, (size_t)i * 5000, &blocks[i]));
            int32_t *x = blocks[i];
            if (i) x[0] = 1;
            EXPECT_OK(cairn_allreduce(group, x, i > 0, CAIRN_I32, CAIRN_SUM, NULL));
            EXPECT(i == 0 || (x[0] == cairn_group_size(group) && x[1] == 0));
        }
        for (int i = round % 2; i < 6; i += 2) EXPECT_OK(cairn_group_free(group, &blocks[i]));
    }
    for (int i = 0; i < 6; i++) EXPECT_OK(cairn_group_free(group, &blocks[i]));
    EXPECT_OK(cairn_group_free(group, &none));
    EXPECT(cairn_group_alloc(group, (size_t)1 << 50, &none) == CAIRN_ENOMEM && none == NULL);
    return NULL;
}

/* Clocks of one machine agree. */
static char *barriers(cairn_group *group, void *ctx) {
    (void)ctx;
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    for (int round = 0; round < 2 * p; round++) {
        if (rank == round % p) nap(2000);
        int64_t came = (int64_t)cairn__now_ns(), last = 0;
        EXPECT_OK(cairn_barrier(group));
        const int64_t left = (int64_t)cairn__now_ns();
        EXPECT_OK(cairn_allreduce_into(group, &last, &came, 1, CAIRN_I64, CAIRN_MAX, NULL));
        EXPECT(left >= last);
    }
    return NULL;
}

const struct collectives_case collectives_cases[] = {
    {"every_collective_of_every_type_gives_its_definition", every_collective},
    {"ten_million_elements_come_through", ten_million_elements},
    {"arrays_of_several_blocks_fit_together", several_blocks},
    {"nothing_is_a_valid_count", nothing_at_all},
    {"averages_of_large_halves_do_not_overflow", averages_that_would_overflow},
    {"averages_may_be_over_fewer_ranks_than_there_are", averages_over_some},
    {"slices_of_averages_have_the_bits_of_the_whole", slices_of_averages},
    {"sums_of_halves_are_rounded_once_at_every_position", one_rounding},
    {"reductions_go_in_rank_order", rank_order},
    {"least_and_greatest_of_odd_numbers_are_defined", least_and_greatest},
    {"integers_wrap_around", integers_wrap_around},
    {"infinities_are_found_by_backends_that_look", found_by_all},
    {"averages_tell_whose_numbers_were_infinite", nonfinite_ranks_are_told},
    {"mixed_collectives_one_after_the_other_agree", one_after_the_other},
    {"mixed_collectives_on_two_channels_agree", mixtures_on_two_channels},
    {"many_works_complete_in_any_order_of_waiting", many_outstanding},
    {"messages_between_all_ranks_arrive_in_order", messages_between_all},
    {"messages_to_and_fro_arrive", messages_to_and_fro},
    {"groups_of_odd_and_even_ranks_work_beside_their_parent", groups_of_odd_and_even_ranks},
    {"groups_are_split_by_color_and_ordered_by_key", groups_by_color_and_key},
    {"groups_of_groups_work", groups_of_groups},
    {"group_memory_comes_and_goes", group_memory},
    {"barriers_wait_for_the_last", barriers},
    {NULL, NULL},
};

char *collectives_check(cairn_group *group, void *word) {
    int ran = 0;
    for (const struct collectives_case *c = collectives_cases; c->name; c++) {
        if (word && !strstr(c->name, word)) continue;
        ran++;
        char *sentence = c->check(group, NULL);
        if (!sentence) continue;
        char *text = malloc(4096);
        snprintf(text, 4096, "%s: %s", c->name, sentence);
        free(sentence);
        return text;
    }
    EXPECT(ran > 0); /* the word is in a case's name */
    return NULL;
}

/* ---- ranks that disagree ---- */

static _Thread_local float scratch[MAX_RANKS][64];

static bool differs(cairn_group *group) {
    return cairn_group_rank(group) == 1;
}

static cairn_status differ_in_n(cairn_group *group) {
    return cairn_allreduce(group, scratch, differs(group) ? 4 : 5, CAIRN_F32, CAIRN_SUM, NULL);
}

static cairn_status differ_in_dtype(cairn_group *group) {
    return cairn_allreduce(group, scratch, 5, differs(group) ? CAIRN_I32 : CAIRN_F32, CAIRN_SUM, NULL);
}

static cairn_status differ_in_op(cairn_group *group) {
    return cairn_reduce_scatter(group, scratch[0], scratch[1], 5, CAIRN_F32, differs(group) ? CAIRN_AVG : CAIRN_SUM,
                                NULL);
}

static cairn_status differ_in_divisor(cairn_group *group) {
    return cairn__group_average(group, scratch[0], 5, CAIRN_F32, differs(group) ? 1 : 2, NULL, NULL);
}

static cairn_status differ_in_root(cairn_group *group) {
    return cairn_broadcast(group, scratch, 5, CAIRN_F32, differs(group), NULL);
}

static cairn_status differ_in_kind(cairn_group *group) {
    return differs(group) ? cairn_barrier(group) : cairn_allgather(group, scratch[1], scratch[0], 5, CAIRN_F32, NULL);
}

static cairn_status post_either(cairn_group *group, bool reduces, cairn_work **work) {
    return reduces ? cairn_allreduce(group, scratch[2], 6, CAIRN_F32, CAIRN_MIN, work)
                   : cairn_alltoall(group, scratch[1], scratch[0], 7, CAIRN_U8, work);
}

static cairn_status differ_in_order(cairn_group *group) {
    cairn_work *works[2] = {NULL, NULL};
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < 2 && st == CAIRN_OK; i++) st = post_either(group, differs(group) == (i == 1), &works[i]);
    for (int i = 0; i < 2; i++) {
        cairn_status waited = cairn_work_wait(&works[i]);
        if (st == CAIRN_OK) st = waited;
    }
    return st;
}

static cairn_status differ_in_allocation(cairn_group *group) {
    void *x = NULL;
    return cairn_group_alloc(group, differs(group) ? 100 : 200, &x);
}

static cairn_status differ_in_message(cairn_group *group) {
    return differs(group) ? cairn_recv(group, scratch, 4, CAIRN_F32, 0, NULL)
                          : cairn_send(group, scratch, 5, CAIRN_F32, 1, NULL);
}

struct collectives_mismatch collectives_mismatches[] = {
    {"count", differ_in_n, "5 f32 to sum", "rank 1 issues 4 f32 to sum", 0},
    {"type", differ_in_dtype, "5 f32 to sum", "rank 1 issues 5 i32 to sum", 0},
    {"operation", differ_in_op, "5 f32 to sum", "rank 1 issues 5 f32 to average", 0},
    {"divisor", differ_in_divisor, "5 f32 to average", "rank 1 issues 5 f32 to average over 1", 0},
    {"root", differ_in_root, "5 f32 from rank 0", "rank 1 issues 5 f32 from rank 1", 0},
    {"kind", differ_in_kind, "all-gather of 5 f32", "rank 1 issues barrier", 0},
    {"order", differ_in_order, "all-reduce of 6 f32", "rank 1 issues all-to-all of 7 u8", 0},
    {"allocation", differ_in_allocation, "200 bytes", "rank 1 issues 100 bytes", 0},
    {"message", differ_in_message, "5 f32", "4 f32", 2},
    {NULL, NULL, NULL, NULL, 0},
};

char *collectives_check_mismatch(cairn_group *group, void *mismatch) {
    const struct collectives_mismatch *m = mismatch;
    EXPECT_OK(cairn_barrier(group));
    if (m->parties && cairn_group_rank(group) >= m->parties) return NULL;
    EXPECT(m->issue(group) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), m->ours) && strstr(cairn_last_error(), m->theirs));
    EXPECT(m->parties || strstr(cairn_last_error(), "number 2: "));
    char first[256];
    snprintf(first, sizeof(first), "%.200s", cairn_last_error());
    EXPECT(cairn_barrier(group) == CAIRN_EPEER && strstr(cairn_last_error(), first));
    EXPECT(cairn__group_progress(group) == CAIRN_EPEER && strstr(cairn_last_error(), first));
    return NULL;
}

/* ---- until something fails ---- */

static char *loop_rounds(cairn_group *group, cairn_group *second, unsigned *seed) {
    const unsigned own = *seed = *seed * 31 + 7;
    PASS(
        mix(group, (struct mixture){.channels = {{.group = group, .random = own}, {.group = second, .random = own + 1}},
                                    .num_channels = 2,
                                    .rounds = 6,
                                    .depth = 3,
                                    .most = own % 3 ? 3000 : 300000}));
    EXPECT_OK(cairn_barrier(second));
    return NULL;
}

/* Recreates the second channel from time to time. */
static char *loop(cairn_group *group, cairn_group **second, unsigned seed) {
    for (;;) {
        EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, second));
        for (int i = 0; i < 4; i++) PASS(loop_rounds(group, *second, &seed));
        cairn_group_destroy(second);
    }
}

cairn_status collectives_loop(cairn_group *group, unsigned seed, char *text, size_t nbytes) {
    cairn_group *second = NULL;
    cairn__forget_failures();
    char *sentence = loop(group, &second, seed);
    cairn_status st = cairn__last_status();
    snprintf(text, nbytes, "%s", st == CAIRN_OK ? sentence : cairn_last_error());
    free(sentence);
    cairn_group_destroy(&second);
    return st == CAIRN_OK ? CAIRN_EINTERNAL : st;
}
