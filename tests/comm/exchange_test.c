/* The exchange that mpi and gloo share, over an engine whose ranks are threads and that fails on demand
 * (fake/engine.h). */
#include "group_ranks.h"

#include <stdatomic.h>
#include <time.h>

#include "comm/exchange/parts.h"
#include "core/alloc.h"
#include "device/module.h"
#include "fake/engine.h"

static const struct fake_control *control;

struct call {
    group_fn fn;
    void *ctx;
    double timeout;
};

static char *call_with_timeout(cairn_group *group, void *ctx) {
    const struct call *call = ctx;
    group->timeout = call->timeout;
    return call->fn(group, call->ctx);
}

/* Making the group may take longer than the timeout: ranks come to it as late as the system runs them. */
static void run_with(struct fake_faults faults, int p, double timeout, group_fn fn, void *ctx) {
    struct call call = {fn, ctx, timeout};
    control->set(&faults);
    run_group_of("gloo", p, 60, call_with_timeout, &call);
    assert_int_equal(control->engines(), 0);
}

/* ---- the bits of shm ---- */

enum { BITS = 3001, MAX_BYTES = BITS * 8, BIT_RANKS = 3 };

struct bits {
    cairn_dtype dtype;
    cairn_redop op;
    unsigned char of[BIT_RANKS][MAX_BYTES];
};

/* Any pattern of bits but for infinities and NaNs, whose payload may differ. */
static void fill(void *x, cairn_dtype dtype, int rank) {
    unsigned random = 12345u + (unsigned)rank;
    unsigned char *bytes = x;
    const size_t each = cairn_dtype_nbytes(dtype);
    for (size_t i = 0; i < BITS * each; i++) {
        random = random * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(random >> 24);
        if (i % each == each - 1) bytes[i] &= 0xbb; /* exponents of half the size: sums and products stay finite */
    }
}

static char *reduce_bits(cairn_group *group, void *ctx) {
    struct bits *b = ctx;
    unsigned char *x = b->of[cairn_group_rank(group)];
    fill(x, b->dtype, cairn_group_rank(group));
    EXPECT_OK(cairn_allreduce(group, x, BITS, b->dtype, b->op, NULL));
    return NULL;
}

static void reductions_have_the_bits_of_shm(void **state) {
    (void)state;
    static const cairn_dtype types[] = {CAIRN_F64, CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_I64, CAIRN_I32, CAIRN_U8};
    static struct bits shm, exchange;
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        for (int op = CAIRN_SUM; op <= CAIRN_PROD; op++) {
            const size_t nbytes = BITS * cairn_dtype_nbytes(types[t]);
            shm.dtype = exchange.dtype = types[t];
            shm.op = exchange.op = (cairn_redop)op;
            run_group_of("shm", BIT_RANKS, 60, reduce_bits, &shm);
            run_with((struct fake_faults){.seed = 1}, BIT_RANKS, 60, reduce_bits, &exchange);
            for (int r = 0; r < BIT_RANKS; r++) assert_memory_equal(shm.of[0], exchange.of[r], nbytes);
        }
    }
}

/* ---- blocks ---- */

static char *reduce_long(cairn_group *group, void *ctx) {
    const size_t n = *(size_t *)ctx;
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    float *x = malloc(n * sizeof(*x));
    cairn_work *works[2];
    float y[5] = {0};
    for (size_t i = 0; i < n; i++) x[i] = (float)(i % 1000) * (float)(rank + 1);
    EXPECT_OK(cairn_allreduce(group, x, n, CAIRN_F32, CAIRN_SUM, &works[0]));
    EXPECT_OK(cairn_allreduce(group, y, 5, CAIRN_F32, CAIRN_SUM, &works[1]));
    EXPECT_OK(cairn_work_wait(&works[1]));
    EXPECT_OK(cairn_work_wait(&works[0]));
    for (size_t i = 0; i < n; i++) EXPECT(x[i] == (float)(i % 1000) * (float)(p * (p + 1) / 2));
    free(x);
    return NULL;
}

static void long_arrays_go_in_blocks_on_late_engines(void **state) {
    (void)state;
    size_t n = 5000003;
    run_with((struct fake_faults){.seed = 5, .late_sends = true}, 3, 60, reduce_long, &n);
    assert_true(control->most_nbytes() > 0 && control->most_nbytes() <= 8 << 20);
}

static char *steady(cairn_group *group, void *ctx) {
    (void)ctx;
    float x[3000] = {0}, y[4] = {0};
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    group->family->store_fails = true; /* or a rank that waits for long looks there for a deadlock, and allocates */
    for (int round = 0; round < 20; round++) {
        cairn_work *works[3];
        EXPECT_OK(cairn_barrier(group));
        const uint64_t before = cairn__alloc_counters().allocations;
        EXPECT_OK(cairn_barrier(group));
        EXPECT_OK(cairn_send(group, y, 4, CAIRN_F32, (rank + 1) % p, &works[0]));
        EXPECT_OK(cairn_allreduce(group, x, 3000, CAIRN_F32, CAIRN_AVG, &works[1]));
        EXPECT_OK(cairn_recv(group, x, 4, CAIRN_F32, (rank + p - 1) % p, &works[2]));
        for (int i = 0; i < 3; i++) EXPECT_OK(cairn_work_wait(&works[i]));
        EXPECT_OK(cairn_barrier(group));
        EXPECT(round < 10 || cairn__alloc_counters().allocations == before);
    }
    return NULL;
}

static void steady_state_allocates_nothing(void **state) {
    (void)state;
    run_with((struct fake_faults){.seed = 3}, 3, 60, steady, NULL);
}

/* ---- staging ---- */

enum seam_kind { WHOLE, SLICES, SLICES_FOR_ROOT, PARTS, NUM_SEAMS };

/* n f32 are the most that go whole, or that short calls stage. */
struct seam {
    enum seam_kind kind;
    size_t n;
};

static struct seam seam_of(enum seam_kind kind, size_t p) {
    const size_t most = EXCHANGE_SHORT_NBYTES - p * 64;
    const size_t n[] = {[WHOLE] = 1024, [SLICES] = most / 4, [SLICES_FOR_ROOT] = most / 4, [PARTS] = most / 4 / p};
    return (struct seam){kind, n[kind]};
}

static char *queue(cairn_group *group, enum seam_kind kind, float *y, const float *x, size_t n, cairn_work **work) {
    if (kind == PARTS) EXPECT_OK(cairn_reduce_scatter(group, y, x, n, CAIRN_F32, CAIRN_SUM, work));
    else if (kind == SLICES_FOR_ROOT) EXPECT_OK(cairn_reduce(group, y, x, n, CAIRN_F32, CAIRN_SUM, 1, work));
    else EXPECT_OK(cairn_allreduce_into(group, y, x, n, CAIRN_F32, CAIRN_SUM, work));
    return NULL;
}

/* Works one after the other of n elements, n + 1, n, n + 1. */
static char *reduce_by_turns(cairn_group *group, const struct seam *s, int num_works) {
    enum { WORKS = 4 };
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    const size_t room = (s->n + 1) * (s->kind == PARTS ? (size_t)p : 1);
    const size_t first = s->kind == PARTS ? (size_t)rank : 0; /* times n: where the result lies in x */
    const bool gets = s->kind != SLICES_FOR_ROOT || rank == 1;
    float *x[WORKS], *y[WORKS];
    cairn_work *works[WORKS];
    for (int w = 0; w < num_works; w++) {
        x[w] = malloc(room * sizeof(**x));
        y[w] = malloc(room * sizeof(**y));
        for (size_t i = 0; i < room; i++) x[w][i] = (float)((i + (size_t)w) % 1000) * (float)(rank + 1);
        PASS(queue(group, s->kind, y[w], x[w], s->n + (size_t)w % 2, &works[w]));
    }
    for (int w = 0; w < num_works; w++) {
        const size_t n = s->n + (size_t)w % 2;
        EXPECT_OK(cairn_work_wait(&works[w]));
        for (size_t i = 0; i < n && gets; i++)
            EXPECT(y[w][i] == (float)((first * n + i + (size_t)w) % 1000) * (float)(p * (p + 1) / 2));
        free(x[w]);
        free(y[w]);
    }
    return NULL;
}

static char *stage_at_the_seam(cairn_group *group, void *ctx) {
    const struct seam *s = ctx;
    const struct exchange *x = group->impl;
    EXPECT(!x->short_staging && !x->staging);
    PASS(reduce_by_turns(group, s, 1));
    EXPECT(x->short_staging && !x->staging); /* 128 KiB */
    PASS(reduce_by_turns(group, s, 4));
    EXPECT(s->kind == WHOLE || x->staging);
    return NULL;
}

static void calls_on_each_side_of_short_staging_are_exact_by_turns(void **state) {
    static const int sizes[] = {2, 3, 8};
    (void)state;
    for (int i = 0; i < 3; i++) {
        for (enum seam_kind kind = WHOLE; kind < NUM_SEAMS; kind++) {
            struct seam s = seam_of(kind, (size_t)sizes[i]);
            run_with((struct fake_faults){.seed = (unsigned)kind, .late_sends = i % 2}, sizes[i], 60, stage_at_the_seam,
                     &s);
        }
    }
}

/* ---- memory ---- */

static char *alloc_too_much(cairn_group *group, void *ctx) {
    (void)ctx;
    void *p = NULL;
    EXPECT(cairn_group_alloc(group, SIZE_MAX / 4, &p) == CAIRN_ENOMEM && !p);
    EXPECT(strstr(cairn_last_error(), "is more than this machine's memory"));
    EXPECT_OK(cairn_group_alloc(group, 1000, &p));
    EXPECT((uintptr_t)p % 64 == 0 && ((char *)p)[999] == 0);
    EXPECT(cairn_group_free(group, &(void *){(char *)p + 1}) == CAIRN_EINVAL);
    EXPECT_OK(cairn_group_free(group, &p));
    EXPECT(!p);
    return NULL;
}

static void group_memory_that_cannot_be_allocated_leaves_the_group_alive(void **state) {
    (void)state;
    run_with((struct fake_faults){0}, 2, 60, alloc_too_much, NULL);
}

/* Memory that a transfer which cannot be cancelled may write to. */
struct targets {
    void *all[4];
};

static char *leave_in_the_midst(cairn_group *group, void *ctx) {
    struct targets *targets = ctx;
    const struct exchange *x = group->impl;
    static float numbers[20000];
    cairn_work *work = NULL;
    void *memory = NULL;
    EXPECT_OK(cairn_group_alloc(group, 1000, &memory));
    if (cairn_group_rank(group) == 1) return NULL;
    EXPECT_OK(cairn_allreduce(group, numbers, 20000, CAIRN_F32, CAIRN_SUM, &work));
    *targets = (struct targets){{memory, x->words, x->staging, x->collectives.head}};
    return NULL;
}

static void memory_that_an_engine_may_still_write_to_is_kept(void **state) {
    (void)state;
    struct targets targets;
    for (int clings = 0; clings < 2; clings++) {
        const uint64_t before = cairn__alloc_counters().alive;
        run_with((struct fake_faults){.clings = clings}, 2, 60, leave_in_the_midst, &targets);
        assert_int_equal(cairn__alloc_counters().alive - before, clings ? 4 : 0);
    }
    for (int i = 0; i < 4; i++) cairn__free(targets.all[i]);
}

/* ---- what goes wrong ---- */

/* Collectives and messages, until something fails. */
static char *until_it_fails(cairn_group *group, void *ctx) {
    const char *sentence = ctx;
    static _Thread_local float x[20000];
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < 1000 && st == CAIRN_OK; i++) {
        st = i % 3 ? cairn_allreduce(group, x, i % 2 ? 20000 : 7, CAIRN_F32, CAIRN_SUM, NULL)
                   : cairn_broadcast(group, x, 9, CAIRN_F32, i % cairn_group_size(group), NULL);
    }
    EXPECT(st == CAIRN_EPEER || st == CAIRN_ETIMEOUT);
    EXPECT(!sentence || strstr(cairn_last_error(), sentence));
    EXPECT(cairn_barrier(group) == st);
    return NULL;
}

static void engine_that_fails_anywhere_ends_every_rank(void **state) {
    (void)state;
    for (int start = 3; start < 30; start++) {
        const struct fake_faults faults = {.seed = (unsigned)start,
                                           .late_sends = start % 2,
                                           .failing_rank = start % 3,
                                           .failing_start = start};
        run_with(faults, 3, 60, until_it_fails, NULL);
    }
}

static void timeout_without_progress_names_the_call(void **state) {
    (void)state;
    run_with((struct fake_faults){.silent_rank = 0, .silent_start = 3}, 2, 0.2, until_it_fails, NULL);
}

/* Rank 1 stays away until rank 0 is through. */
struct absence {
    atomic_bool over;
    bool polls; /* rank 0 does, instead of waiting */
};

static char *wait_in_vain(cairn_group *group, void *ctx) {
    struct absence *absence = ctx;
    float x[3] = {0};
    cairn_status st = CAIRN_OK;
    cairn_work *work = NULL;
    int done = 0;
    while (cairn_group_rank(group) == 1 && !atomic_load(&absence->over))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (cairn_group_rank(group) == 1) return NULL;
    EXPECT_OK(cairn_allreduce(group, x, 3, CAIRN_F32, CAIRN_SUM, &work));
    while (absence->polls && st == CAIRN_OK) st = cairn_work_test(work, &done);
    if (!absence->polls) st = cairn_work_wait(&work);
    atomic_store(&absence->over, true);
    EXPECT(st == CAIRN_ETIMEOUT && !done);
    EXPECT(strstr(cairn_last_error(), "rank 0 waited 0.2 s in all-reduce number 1 of 3 f32 to sum, and nothing moved; "
                                      "raise CAIRN_TIMEOUT if the other ranks are only slow"));
    return NULL;
}

static void rank_that_stays_away_is_waited_for_until_the_timeout(void **state) {
    (void)state;
    for (int polls = 0; polls < 2; polls++) {
        struct absence absence = {.polls = polls};
        run_with((struct fake_faults){0}, 2, 0.2, wait_in_vain, &absence);
    }
}

static char *compute_between_polls(cairn_group *group, void *ctx) {
    (void)ctx;
    float x[3] = {0};
    int done = 0;
    cairn_work *work = NULL;
    EXPECT_OK(cairn_allreduce(group, x, 3, CAIRN_F32, CAIRN_SUM, &work));
    for (int i = 0; i < 3; i++) {
        EXPECT_OK(cairn_work_test(work, &done));
        nanosleep(&(struct timespec){.tv_nsec = 800000000}, NULL);
    }
    EXPECT_OK(cairn_work_wait(&work));
    return NULL;
}

static void time_between_polls_is_not_waiting(void **state) {
    (void)state;
    run_with((struct fake_faults){.seed = 7}, 2, 2, compute_between_polls, NULL);
}

static char *leave(cairn_group *group, void *ctx) {
    (void)ctx;
    float x[3] = {0};
    if (cairn_group_rank(group) == 1) return NULL;
    EXPECT(cairn_recv(group, x, 3, CAIRN_F32, 1, NULL) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "rank 1 of the fake engine is gone"));
    return NULL;
}

static void rank_that_leaves_ends_those_that_wait_for_it(void **state) {
    (void)state;
    run_with((struct fake_faults){0}, 2, 60, leave, NULL);
}

static char *issue_the_same(cairn_group *group, void *ctx) {
    (void)ctx;
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    float x[3] = {(float)rank}, y[3] = {0};
    cairn_work *work = NULL;
    EXPECT_OK(cairn_send(group, x, 3, CAIRN_F32, (rank + 1) % p, &work));
    EXPECT_OK(cairn_recv(group, y, 3, CAIRN_F32, (rank + p - 1) % p, NULL));
    EXPECT(y[0] == (float)((rank + p - 1) % p));
    EXPECT_OK(cairn_work_wait(&work));
    EXPECT_OK(cairn_allreduce(group, x, 3, CAIRN_F32, CAIRN_MAX, NULL));
    EXPECT(x[0] == (float)(p - 1));
    return NULL;
}

static void calls_that_agree_pass_the_check(void **state) {
    (void)state;
    setenv("CAIRN_CHECK", "1", 1);
    run_with((struct fake_faults){.seed = 9}, 3, 60, issue_the_same, NULL);
    unsetenv("CAIRN_CHECK");
}

static void wrong_value_of_cairn_check_is_refused(void **state) {
    (void)state;
    struct cairn__group_create_options options = {.rank = 0, .size = 1, .timeout = 1, .backend = "gloo"};
    cairn_group *group = NULL;
    setenv("CAIRN_CHECK", "yes", 1);
    assert_int_equal(cairn__group_create(&options, &group), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "CAIRN_CHECK='yes' in the environment is not a whole number"));
    unsetenv("CAIRN_CHECK");
}

static void group_of_one_needs_no_engine(void **state) {
    (void)state;
    struct cairn__group_create_options options = {.rank = 0, .size = 1, .timeout = 1, .backend = "gloo"};
    cairn_group *group = NULL;
    assert_int_equal(cairn__group_create(&options, &group), CAIRN_OK);
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    assert_int_equal(cairn_allreduce_into(group, y, x, 4, CAIRN_F32, CAIRN_AVG, NULL), CAIRN_OK);
    assert_memory_equal(x, y, sizeof(x));
    assert_int_equal(cairn_barrier(group), CAIRN_OK);
    assert_string_equal(cairn_group_backend(group), "gloo");
    assert_false(cairn__group_checks_results(group));
    assert_true(cairn__group_destroy_root(&group));
    assert_int_equal(control->engines(), 0);
}

static void engine_that_was_not_built_names_its_option(void **state) {
    (void)state;
    char *path = strdup(getenv("CAIRN_MODULE_PATH"));
    struct cairn__group_create_options options = {.rank = 0, .size = 1, .timeout = 1, .backend = "mpi"};
    cairn_group *group = NULL;
    setenv("CAIRN_MODULE_PATH", "/nowhere", 1);
    assert_int_equal(cairn__group_create(&options, &group), CAIRN_ENOTBUILT);
    assert_string_equal(cairn_last_error(),
                        "group backend 'mpi' needs libcairn_mpi.so, which is not in CAIRN_MODULE_PATH, /nowhere");
    setenv("CAIRN_MODULE_PATH", path, 1);
    free(path);
}

int main(void) {
    static const struct cairn__module_use use = {"fake engine", "it", sizeof(struct fake_control)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions_have_the_bits_of_shm),
        cmocka_unit_test(long_arrays_go_in_blocks_on_late_engines),
        cmocka_unit_test(steady_state_allocates_nothing),
        cmocka_unit_test(calls_on_each_side_of_short_staging_are_exact_by_turns),
        cmocka_unit_test(group_memory_that_cannot_be_allocated_leaves_the_group_alive),
        cmocka_unit_test(memory_that_an_engine_may_still_write_to_is_kept),
        cmocka_unit_test(engine_that_fails_anywhere_ends_every_rank),
        cmocka_unit_test(timeout_without_progress_names_the_call),
        cmocka_unit_test(rank_that_stays_away_is_waited_for_until_the_timeout),
        cmocka_unit_test(time_between_polls_is_not_waiting),
        cmocka_unit_test(rank_that_leaves_ends_those_that_wait_for_it),
        cmocka_unit_test(calls_that_agree_pass_the_check),
        cmocka_unit_test(wrong_value_of_cairn_check_is_refused),
        cmocka_unit_test(group_of_one_needs_no_engine),
        cmocka_unit_test(engine_that_was_not_built_names_its_option),
    };
    const void *table = NULL;
    if (cairn__module_open(&use, "gloo", &table) != CAIRN_OK) {
        printf("%s\n", cairn_last_error());
        return 1;
    }
    control = table;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
