/* Collectives against their definition, bit by bit, with ranks as threads.
 *
 * Inputs are integers in [-5, 5]: sums over 8 ranks stay within [-40, 40], which f16 and bf16 hold exactly; an average
 * is one division and one rounding, and is asked for exactly that. */
#include "group_ranks.h"

#include <math.h>

#include "core/alloc.h"

static const cairn_dtype every_dtype[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_I32, CAIRN_I64};
enum { NUM_DTYPES = sizeof(every_dtype) / sizeof(every_dtype[0]), MARGIN = 64 };

static int value_of(int rank, size_t i, int salt) {
    return (int)((i * 7 + (size_t)rank * 3 + (size_t)salt) % 11) - 5;
}

static void put(void *x, size_t i, cairn_dtype dtype, float value) {
    char *at = (char *)x + i * cairn_dtype_nbytes(dtype);
    if (dtype == CAIRN_I32) {
        memcpy(at, &(int32_t){(int32_t)value}, sizeof(int32_t));
    } else if (dtype == CAIRN_I64) {
        memcpy(at, &(int64_t){(int64_t)value}, sizeof(int64_t));
    } else {
        cairn__dtype(dtype)->from_f32(at, value);
    }
}

static bool is_at(const void *x, size_t i, cairn_dtype dtype, float value) {
    uint64_t wanted = 0;
    put(&wanted, 0, dtype, value);
    size_t nbytes = cairn_dtype_nbytes(dtype);
    return memcmp((const char *)x + i * nbytes, &wanted, nbytes) == 0;
}

static float combined(int p, size_t i, int salt, cairn_redop op, cairn_dtype dtype) {
    int sum = 0;
    for (int r = 0; r < p; r++) sum += value_of(r, i, salt);
    if (op == CAIRN_SUM) return (float)sum;
    return dtype == CAIRN_I32 || dtype == CAIRN_I64 ? (float)(sum / p) : (float)sum / (float)p;
}

/* ---- memory of every kind ---- */

enum placement { REGISTERED, REGISTERED_ODD, ORDINARY, MIXED, NUM_PLACEMENTS };

struct memory {
    void *registered;
    char *ordinary;
    char *x;
    size_t nbytes;
};

/* n elements at x with MARGIN canary bytes on both sides; an odd placement begins off every cache line. */
static void place(struct memory *m, enum placement placement, int rank, size_t nbytes, cairn_dtype dtype) {
    bool registered = placement == REGISTERED || placement == REGISTERED_ODD || (placement == MIXED && rank % 2 == 0);
    size_t shift = placement == REGISTERED_ODD || placement == ORDINARY ? 3 * cairn_dtype_nbytes(dtype) : 0;
    m->x = (registered ? (char *)m->registered : m->ordinary) + MARGIN + shift;
    m->nbytes = nbytes;
    memset(m->x - MARGIN, 0xa5, nbytes + 2 * (size_t)MARGIN);
}

static bool canaries_live(const struct memory *m) {
    for (size_t i = 0; i < MARGIN; i++) {
        if ((uint8_t)m->x[-1 - (long)i] != 0xa5 || (uint8_t)m->x[m->nbytes + i] != 0xa5) return false;
    }
    return true;
}

static char *get_memory(cairn_group *group, struct memory *m, size_t nbytes) {
    EXPECT_OK(cairn_group_alloc(group, nbytes + 4 * (size_t)MARGIN, &m->registered));
    EXPECT((uintptr_t)m->registered % 64 == 0);
    for (size_t i = 0; i < nbytes; i++) EXPECT(((char *)m->registered)[i] == 0);
    m->ordinary = malloc(nbytes + 4 * (size_t)MARGIN);
    return NULL;
}

static char *give_memory(cairn_group *group, struct memory *m) {
    free(m->ordinary);
    EXPECT_OK(cairn_group_free(group, &m->registered));
    EXPECT(m->registered == NULL);
    return NULL;
}

/* ---- one collective, checked ---- */

static char *check_allreduce(cairn_group *group, struct memory *m, enum placement where, size_t n, cairn_dtype dtype,
                             cairn_redop op, int salt) {
    int rank = cairn_group_rank(group), p = cairn_group_size(group);
    place(m, where, rank, n * cairn_dtype_nbytes(dtype), dtype);
    for (size_t i = 0; i < n; i++) put(m->x, i, dtype, (float)value_of(rank, i, salt));
    cairn_work *work = NULL;
    uint32_t found = 0;
    EXPECT_OK(cairn_allreduce(group, m->x, n, dtype, op, &work));
    EXPECT_OK(cairn__work_finish(&work, &found));
    EXPECT(work == NULL && found == 0);
    for (size_t i = 0; i < n; i++) EXPECT(is_at(m->x, i, dtype, combined(p, i, salt, op, dtype)));
    EXPECT(canaries_live(m));
    return NULL;
}

static char *check_broadcast(cairn_group *group, struct memory *m, enum placement where, size_t n, cairn_dtype dtype,
                             int root) {
    int rank = cairn_group_rank(group);
    place(m, where, rank, n * cairn_dtype_nbytes(dtype), dtype);
    for (size_t i = 0; i < n; i++) put(m->x, i, dtype, (float)value_of(rank, i, root));
    EXPECT_OK(cairn_broadcast(group, m->x, n, dtype, root, NULL));
    for (size_t i = 0; i < n; i++) EXPECT(is_at(m->x, i, dtype, (float)value_of(root, i, root)));
    EXPECT(canaries_live(m));
    return NULL;
}

/* In place where the source is the destination's own part, otherwise from memory of its own. */
static char *check_allgather(cairn_group *group, struct memory *m, enum placement where, size_t n, cairn_dtype dtype,
                             bool in_place) {
    int rank = cairn_group_rank(group), p = cairn_group_size(group);
    size_t nbytes = cairn_dtype_nbytes(dtype);
    place(m, where, rank, n * (size_t)p * nbytes, dtype);
    void *apart = malloc(n * nbytes + 1);
    void *src = in_place ? m->x + (size_t)rank * n * nbytes : apart;
    for (size_t i = 0; i < n; i++) put(src, i, dtype, (float)value_of(rank, i, 5));
    EXPECT_OK(cairn_allgather(group, m->x, src, n, dtype, NULL));
    free(apart);
    for (size_t i = 0; i < n * (size_t)p; i++) EXPECT(is_at(m->x, i, dtype, (float)value_of((int)(i / n), i % n, 5)));
    EXPECT(canaries_live(m));
    return NULL;
}

/* ---- every collective ---- */

enum { LARGE = 100003 };

static char *walk(cairn_group *group, void *ctx) {
    (void)ctx;
    size_t p = (size_t)cairn_group_size(group);
    const size_t counts[] = {0, 1, p > 1 ? p - 1 : 2, 67, 1023, LARGE};
    struct memory m;
    EXPECT_FINE(get_memory(group, &m, LARGE * p * sizeof(int64_t)));
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        for (int d = 0; d < NUM_DTYPES; d++) {
            for (int where = 0; where < NUM_PLACEMENTS; where++) {
                if (counts[c] == LARGE && p > 2 && (d + where) % 2) continue; /* time */
                EXPECT_FINE(check_allreduce(group, &m, (enum placement)where, counts[c], every_dtype[d], CAIRN_SUM, d));
                EXPECT_FINE(check_allreduce(group, &m, (enum placement)where, counts[c], every_dtype[d], CAIRN_AVG, 3));
                EXPECT_FINE(
                    check_broadcast(group, &m, (enum placement)where, counts[c], every_dtype[d], (d + where) % (int)p));
                if (counts[c] == LARGE && p > 4) continue;
                EXPECT_FINE(check_allgather(group, &m, (enum placement)where, counts[c], every_dtype[d], where % 2));
            }
        }
        EXPECT_OK(cairn_barrier(group));
    }
    return give_memory(group, &m);
}

static void every_collective_gives_its_definition_on_1_to_8_ranks(void **state) {
    (void)state;
    for (int p = 1; p <= MOST_RANKS; p++) run_group(p, walk, NULL);
}

static char *random_rounds(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { ROUNDS = 200, MOST = 70000 };
    struct memory m;
    uint32_t random = 12345; /* the same on every rank */
    int p = cairn_group_size(group);
    EXPECT_FINE(get_memory(group, &m, (size_t)MOST * (size_t)p * sizeof(int64_t)));
    for (int i = 0; i < ROUNDS; i++) {
        random = random * 1664525u + 1013904223u;
        enum placement where = (enum placement)((random >> 8) % NUM_PLACEMENTS);
        cairn_dtype dtype = every_dtype[(random >> 12) % NUM_DTYPES];
        size_t n = (random >> 16) % ((random >> 9) % 4 ? 3000 : MOST);
        switch ((random >> 20) % 3) {
        case 0:
            EXPECT_FINE(check_allreduce(group, &m, where, n, dtype, random >> 31 ? CAIRN_SUM : CAIRN_AVG, i));
            break;
        case 1:
            EXPECT_FINE(check_broadcast(group, &m, where, n, dtype, (int)(random >> 5) % p));
            break;
        default:
            EXPECT_FINE(check_allgather(group, &m, where, n, dtype, random >> 31));
        }
    }
    return give_memory(group, &m);
}

static void random_rounds_of_mixed_collectives_agree(void **state) {
    (void)state;
    run_group(2, random_rounds, NULL);
    run_group(3, random_rounds, NULL);
}

/* ---- numerics ---- */

static char *average_large_halves(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { N = 1000 };
    void *x = NULL;
    EXPECT_OK(cairn_group_alloc(group, N * 2, &x));
    for (size_t i = 0; i < N; i++) put(x, i, CAIRN_F16, 40000.0f);
    cairn_work *work = NULL;
    uint32_t found = 0;
    EXPECT_OK(cairn_allreduce(group, x, N, CAIRN_F16, CAIRN_AVG, &work));
    EXPECT_OK(cairn__work_finish(&work, &found));
    EXPECT(found == 0);
    for (size_t i = 0; i < N; i++) EXPECT(is_at(x, i, CAIRN_F16, 40000.0f));
    EXPECT_OK(cairn_allreduce(group, x, N, CAIRN_F16, CAIRN_SUM, &work));
    EXPECT_OK(cairn__work_finish(&work, &found));
    EXPECT(found == 1); /* 160000 is infinite in f16 */
    return NULL;
}

static void average_of_large_halves_does_not_overflow(void **state) {
    (void)state;
    run_group(4, average_large_halves, NULL);
}

static char *plant_infinity(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { N = 5000 };
    static const cairn_dtype floats[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    int p = cairn_group_size(group), rank = cairn_group_rank(group);
    struct memory m;
    EXPECT_FINE(get_memory(group, &m, N * sizeof(float)));
    for (int round = 0; round < 24; round++) {
        cairn_dtype dtype = floats[round % 3];
        place(&m, (enum placement)(round % NUM_PLACEMENTS), rank, N * cairn_dtype_nbytes(dtype), dtype);
        for (size_t i = 0; i < N; i++) put(m.x, i, dtype, 1.0f);
        bool planted = round % 2;
        if (planted && rank == round % p) put(m.x, (size_t)round * 217 % N, dtype, round % 4 == 1 ? INFINITY : NAN);
        cairn_work *work = NULL;
        int done = 0;
        EXPECT_OK(cairn_allreduce(group, m.x, N, dtype, CAIRN_AVG, &work));
        while (!done) EXPECT_OK(cairn_work_test(work, &done));
        uint32_t found = 0;
        EXPECT_OK(cairn__work_finish(&work, &found));
        EXPECT(found == planted);
    }
    return give_memory(group, &m);
}

static void every_rank_learns_of_one_ranks_infinity(void **state) {
    (void)state;
    for (int p = 1; p <= 5; p++) run_group(p, plant_infinity, NULL);
}

/* ---- several at once ---- */

enum { MANY = 150, MANY_N = 300 };

static char *many_outstanding(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_work *works[MANY];
    void *x = NULL;
    int rank = cairn_group_rank(group), p = cairn_group_size(group);
    float *ordinary = malloc(MANY * MANY_N * sizeof(float));
    EXPECT_OK(cairn_group_alloc(group, MANY * MANY_N * sizeof(float), &x));
    for (int round = 0; round < 3; round++) {
        for (int w = 0; w < MANY; w++) {
            float *at = (w % 7 == round ? ordinary : (float *)x) + w * MANY_N;
            for (size_t i = 0; i < MANY_N; i++) put(at, i, CAIRN_F32, (float)value_of(rank, i, w));
            EXPECT_OK(cairn_allreduce(group, at, MANY_N, CAIRN_F32, CAIRN_SUM, &works[w]));
            if (w % 3 == rank % 3) EXPECT_OK(cairn__group_progress(group));
        }
        for (int w = MANY - 1; w >= 0; w--) EXPECT_OK(cairn_work_wait(&works[w]));
        for (int w = 0; w < MANY; w++) {
            float *at = (w % 7 == round ? ordinary : (float *)x) + w * MANY_N;
            for (size_t i = 0; i < MANY_N; i++)
                EXPECT(is_at(at, i, CAIRN_F32, combined(p, i, w, CAIRN_SUM, CAIRN_F32)));
        }
    }
    free(ordinary);
    return NULL;
}

static void more_works_than_the_ring_holds_complete_in_any_order_of_waiting(void **state) {
    (void)state;
    for (int p = 1; p <= 4; p++) run_group(p, many_outstanding, NULL);
}

static char *steady_state(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { N = 2000 };
    void *x = NULL;
    float ordinary[16] = {0};
    cairn_work *works[8];
    struct cairn__alloc_counters before = {0};
    EXPECT_OK(cairn_group_alloc(group, 8 * N * 2, &x));
    for (int round = 0; round < 20; round++) {
        EXPECT_OK(cairn_barrier(group));
        if (round == 2) before = cairn__alloc_counters();
        for (int w = 0; w < 8; w++) {
            EXPECT_OK(cairn_allreduce(group, (char *)x + w * N * 2, N, CAIRN_F16, CAIRN_AVG, &works[w]));
        }
        for (int w = 0; w < 8; w++) EXPECT_OK(cairn_work_wait(&works[w]));
        EXPECT_OK(cairn_allreduce(group, ordinary, 16, CAIRN_F32, CAIRN_SUM, NULL));
        EXPECT_OK(cairn_broadcast(group, ordinary, 16, CAIRN_F32, 0, NULL));
    }
    EXPECT_OK(cairn_barrier(group));
    EXPECT(cairn__alloc_counters().allocations == before.allocations);
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void steady_state_allocates_nothing(void **state) {
    (void)state;
    run_group(2, steady_state, NULL);
}

static char *alloc_and_free(cairn_group *group, void *ctx) {
    (void)ctx;
    void *blocks[6] = {NULL};
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 6; i++) {
            if (blocks[i]) continue;
            EXPECT_OK(cairn_group_alloc(group, (size_t)i * 5000, &blocks[i]));
            int32_t *x = blocks[i];
            if (i) x[0] = 1;
            EXPECT_OK(cairn_allreduce(group, x, i > 0, CAIRN_I32, CAIRN_SUM, NULL));
            EXPECT(i == 0 || x[0] == cairn_group_size(group));
        }
        for (int i = round % 2; i < 6; i += 2) EXPECT_OK(cairn_group_free(group, &blocks[i]));
    }
    void *none = NULL, *huge = NULL;
    EXPECT_OK(cairn_group_free(group, &none));
    EXPECT(cairn_group_alloc(group, (size_t)1 << 50, &huge) == CAIRN_ENOMEM && huge == NULL);
    EXPECT(strstr(cairn_last_error(), "more than this machine's memory"));
    return NULL;
}

static void group_memory_comes_and_goes_and_refuses_the_impossible(void **state) {
    (void)state;
    for (int p = 1; p <= 4; p++) run_group(p, alloc_and_free, NULL);
}

/* ---- disagreement ---- */

struct disagreement {
    void (*issue)(cairn_group *group, cairn_status *st);
    const char *sentence;
};

static float scratch[MOST_RANKS][64];

static void differ_in_n(cairn_group *group, cairn_status *st) {
    int rank = cairn_group_rank(group);
    *st = cairn_allreduce(group, scratch[rank], rank == 1 ? 4 : 5, CAIRN_F32, CAIRN_SUM, NULL);
}

static void differ_in_dtype(cairn_group *group, cairn_status *st) {
    int rank = cairn_group_rank(group);
    *st = cairn_allreduce(group, scratch[rank], 5, rank == 1 ? CAIRN_I32 : CAIRN_F32, CAIRN_SUM, NULL);
}

static void differ_in_op(cairn_group *group, cairn_status *st) {
    int rank = cairn_group_rank(group);
    *st = cairn_allreduce(group, scratch[rank], 5, CAIRN_F32, rank == 1 ? CAIRN_AVG : CAIRN_SUM, NULL);
}

static void differ_in_root(cairn_group *group, cairn_status *st) {
    int rank = cairn_group_rank(group);
    *st = cairn_broadcast(group, scratch[rank], 5, CAIRN_F32, rank == 1, NULL);
}

static void differ_in_kind(cairn_group *group, cairn_status *st) {
    int rank = cairn_group_rank(group);
    *st = rank == 1 ? cairn_barrier(group) : cairn_allreduce(group, scratch[rank], 5, CAIRN_F32, CAIRN_SUM, NULL);
}

static void differ_in_allocation(cairn_group *group, cairn_status *st) {
    void *x = NULL;
    *st = cairn_group_alloc(group, cairn_group_rank(group) == 1 ? 100 : 200, &x);
}

static char *disagree(cairn_group *group, void *ctx) {
    const struct disagreement *d = ctx;
    cairn_status st = CAIRN_OK;
    EXPECT_OK(cairn_barrier(group));
    d->issue(group, &st);
    EXPECT(st == CAIRN_EPEER);
    EXPECT(cairn_group_rank(group) > 1 || strstr(cairn_last_error(), d->sentence));
    EXPECT(strstr(cairn_last_error(), "number 2: "));
    char first[256];
    snprintf(first, sizeof(first), "%.200s", cairn_last_error());
    EXPECT(cairn_barrier(group) == CAIRN_EPEER && strstr(cairn_last_error(), first));
    EXPECT(cairn__group_progress(group) == CAIRN_EPEER && strstr(cairn_last_error(), first));
    return NULL;
}

static void ranks_that_disagree_all_fail_with_both_values(void **state) {
    (void)state;
    static struct disagreement all[] = {
        {differ_in_n, "all-reduce number 2: rank 0 brings 5 f32 to sum, rank 1 brings 4 f32 to sum"},
        {differ_in_dtype, "rank 0 brings 5 f32 to sum, rank 1 brings 5 i32 to sum"},
        {differ_in_op, "rank 0 brings 5 f32 to sum, rank 1 brings 5 f32 to average"},
        {differ_in_root, "broadcast number 2: rank 0 brings 5 f32 from rank 0, rank 1 brings 5 f32 from rank 1"},
        {differ_in_kind, "collective number 2: rank 0 brings all-reduce of 5 f32 to sum, rank 1 brings barrier"},
        {differ_in_allocation, "rank 0 brings 200 bytes, rank 1 brings 100 bytes"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        run_group(2, disagree, &all[i]);
        run_group(3, disagree, &all[i]);
    }
}

static char *leave_early(cairn_group *group, void *ctx) {
    (void)ctx;
    float x = 1;
    if (cairn_group_rank(group) == 1) return NULL;
    EXPECT(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "rank 1 (pid ") && strstr(cairn_last_error(), "left the group while rank"));
    EXPECT(strstr(cairn_last_error(), "waited in all-reduce number 1 of 1 f32"));
    return NULL;
}

static void rank_that_left_is_named(void **state) {
    (void)state;
    run_group(3, leave_early, NULL);
}

static char *stay_away(cairn_group *group, void *ctx) {
    (void)ctx;
    float x = 1;
    cairn_work *work = NULL;
    EXPECT_OK(cairn_barrier(group));
    if (cairn_group_rank(group) == 1) {
        for (int i = 0; i < 300 && cairn__group_progress(group) == CAIRN_OK; i++)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        return NULL;
    }
    EXPECT_OK(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, &work));
    EXPECT(cairn_work_wait(&work) == CAIRN_ETIMEOUT && work == NULL);
    EXPECT(strstr(cairn_last_error(), "waited 1.5 s in all-reduce number 2 of 1 f32 for rank 1 (pid "));
    EXPECT(strstr(cairn_last_error(), "last posted number 1)"));
    return NULL;
}

static void rank_that_stays_away_is_named_after_the_timeout(void **state) {
    (void)state;
    run_group_within(2, 1.5, stay_away, NULL);
}

/* ---- arguments ---- */

static char *refuse(cairn_group *group, void *ctx) {
    (void)ctx;
    float x[8] = {0};
    cairn_work *none = NULL;
    int done = 0;
    void *p = x;
    EXPECT(cairn_allreduce(NULL, x, 1, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_allreduce(group, NULL, 1, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_allreduce(group, x, 1, (cairn_dtype)9, CAIRN_SUM, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_allreduce(group, x, 1, CAIRN_F32, (cairn_redop)0, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_allreduce(group, x, SIZE_MAX / 2, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_allreduce(group, (char *)x + 1, 1, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_broadcast(group, x, 1, CAIRN_F32, 1, NULL) == CAIRN_EINVAL);
    EXPECT(strstr(cairn_last_error(), "root 1 is not in a group of 1"));
    EXPECT(cairn_broadcast(group, x, 1, CAIRN_F32, -1, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_allgather(group, x, x + 1, 4, CAIRN_F32, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_group_alloc(group, 1, NULL) == CAIRN_EINVAL);
    EXPECT(cairn_group_free(group, &p) == CAIRN_EINVAL);
    EXPECT(cairn_work_test(NULL, &done) == CAIRN_EINVAL);
    EXPECT(cairn_barrier(NULL) == CAIRN_EINVAL);
    EXPECT_OK(cairn_work_wait(&none));
    EXPECT_OK(cairn_barrier(group));
    EXPECT(strcmp(cairn_group_backend(group), "shm") == 0);
    return NULL;
}

static char *meet_only(cairn_group *group, void *ctx) {
    (void)ctx;
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void waiting_almost_for_ever_is_allowed(void **state) {
    (void)state;
    static const double timeouts[] = {1e9, 1e11, 1e300, INFINITY};
    for (size_t i = 0; i < sizeof(timeouts) / sizeof(timeouts[0]); i++) {
        run_group_within(3, timeouts[i], meet_only, NULL);
    }
}

static void bad_arguments_post_nothing(void **state) {
    (void)state;
    run_group(1, refuse, NULL);
}

static void expect_refusal(struct cairn__group_options o, cairn_status status, const char *sentence) {
    cairn_group *group = NULL;
    assert_int_equal(cairn__group_create(&o, &group), status);
    assert_null(group);
    assert_non_null(strstr(cairn_last_error(), sentence));
}

static void creation_refuses_what_cannot_be(void **state) {
    (void)state;
    struct cairn__group_options good = {.size = 1, .timeout = 1}, o = good;
    o.backend = "nccl";
    expect_refusal(o, CAIRN_ENOTBUILT, "meson option 'cuda'");
    o.backend = "gloo";
    expect_refusal(o, CAIRN_ENOTBUILT, "meson option 'gloo'");
    o.backend = "mpi";
    expect_refusal(o, CAIRN_ENOTBUILT, "meson option 'mpi'");
    o.backend = "tcp";
    expect_refusal(o, CAIRN_EINVAL, "no group backend 'tcp'");
    o = good, o.rank = 1;
    expect_refusal(o, CAIRN_EINVAL, "rank 1 is not in a group of 1");
    o = good, o.size = 2;
    expect_refusal(o, CAIRN_EINVAL, "needs a store");
    o = good, o.size = 2, o.backend = "self";
    expect_refusal(o, CAIRN_EINVAL, "'self' is for one rank, not 2");
    o = good, o.size = 1000;
    expect_refusal(o, CAIRN_EINVAL, "1 to 256");
    o = good, o.timeout = 0;
    expect_refusal(o, CAIRN_EINVAL, "must be positive");
    expect_refusal(good, CAIRN_EINVAL, "one rank needs a device");
    cairn_group *none = NULL;
    cairn__group_destroy(&none);
}

static void group_of_one_exchanges_nothing_and_owns_its_memory(void **state) {
    (void)state;
    struct cairn_device *device = NULL;
    cairn_group *group = NULL;
    assert_int_equal(cairn__device_open("cpu", 0, &device), CAIRN_OK);
    const uint64_t alive = cairn__alloc_counters().alive;
    assert_int_equal(cairn__group_create(&(struct cairn__group_options){.size = 1, .timeout = 1, .device = device},
                                         &group),
                     CAIRN_OK);
    assert_string_equal(cairn_group_backend(group), "self");
    assert_false(cairn__group_looks(group));
    float x[] = {INFINITY, 2}, all[2] = {0};
    uint32_t found = 0;
    cairn_work *work = NULL;
    assert_int_equal(cairn_allreduce(group, x, 2, CAIRN_F32, CAIRN_AVG, &work), CAIRN_OK);
    assert_int_equal(cairn__work_finish(&work, &found), CAIRN_OK);
    assert_true(x[0] == INFINITY && x[1] == 2 && found == 0);
    assert_int_equal(cairn_allgather(group, all, x, 2, CAIRN_F32, NULL), CAIRN_OK);
    assert_memory_equal(all, x, sizeof(x));
    assert_int_equal(cairn_broadcast(group, x, 2, CAIRN_F32, 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_barrier(group), CAIRN_OK);
    void *a = NULL, *b = NULL;
    assert_int_equal(cairn_group_alloc(group, 10, &a), CAIRN_OK);
    assert_int_equal(cairn_group_alloc(group, 10, &b), CAIRN_OK);
    assert_memory_equal(a, ((char[10]){0}), 10);
    assert_int_equal(cairn_group_free(group, &a), CAIRN_OK);
    void *foreign = x;
    assert_int_equal(cairn_group_free(group, &foreign), CAIRN_EINVAL);
    cairn__group_destroy(&group); /* b goes with it */
    assert_int_equal(cairn__alloc_counters().alive, alive);
    cairn__device_close(&device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(group_of_one_exchanges_nothing_and_owns_its_memory),
        cmocka_unit_test(every_collective_gives_its_definition_on_1_to_8_ranks),
        cmocka_unit_test(random_rounds_of_mixed_collectives_agree),
        cmocka_unit_test(average_of_large_halves_does_not_overflow),
        cmocka_unit_test(every_rank_learns_of_one_ranks_infinity),
        cmocka_unit_test(more_works_than_the_ring_holds_complete_in_any_order_of_waiting),
        cmocka_unit_test(steady_state_allocates_nothing),
        cmocka_unit_test(group_memory_comes_and_goes_and_refuses_the_impossible),
        cmocka_unit_test(ranks_that_disagree_all_fail_with_both_values),
        cmocka_unit_test(rank_that_left_is_named),
        cmocka_unit_test(rank_that_stays_away_is_named_after_the_timeout),
        cmocka_unit_test(waiting_almost_for_ever_is_allowed),
        cmocka_unit_test(bad_arguments_post_nothing),
        cmocka_unit_test(creation_refuses_what_cannot_be),
    };
    return cmocka_run_group_tests_name("group", tests, NULL, NULL);
}
