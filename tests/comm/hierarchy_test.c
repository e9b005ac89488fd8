/* Two-level sums: ranks are threads with made-up machine names, over the fake engine. With CAIRN_TEST_SHORT in the
 * environment each layout and each length but the first has one type, not all, by turns. */
#include "machines.h"

#include <poll.h>
#include <stdatomic.h>

#include "comm/exchange/machine.h"
#include "comm/exchange/parts.h"
#include "core/alloc.h"
#include "core/half.h"
#include "device/module.h"
#include "fake/engine.h"

/* s; the notes take 1.5 of those beside the timeout */
static const double MAKING_TIMEOUT = 5, NOTES_AND_SLACK = 4.5;

static const struct fake_control *control;

static void run_on(const char *on, unsigned seed, group_fn fn, void *ctx) {
    control->set(&(struct fake_faults){.seed = seed, .late_sends = seed % 2});
    machines = on;
    run_group_of("gloo", (int)strlen(on), 60, fn, ctx);
    machines = NULL;
    assert_int_equal(control->engines(), 0);
}

static bool in_levels(const cairn_group *group) {
    return ((const struct exchange *)group->impl)->in_levels;
}

/* ---- the model ---- */

enum { LONG = 1200007 /* three blocks */, SHORT = 301 };
static const cairn_dtype float_types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
enum { NUM_TYPES = sizeof(float_types) / sizeof(float_types[0]) };

static float get(cairn_dtype type, const void *x, size_t i) {
    return type == CAIRN_F32   ? ((const float *)x)[i]
           : type == CAIRN_F16 ? cairn__f16_to_f32(((const uint16_t *)x)[i])
                               : cairn__bf16_to_f32(((const uint16_t *)x)[i]);
}

static void put(cairn_dtype type, void *x, size_t i, float value) {
    if (type == CAIRN_F32) ((float *)x)[i] = value;
    else ((uint16_t *)x)[i] = type == CAIRN_F16 ? cairn__f32_to_f16(value) : cairn__f32_to_bf16(value);
}

/* Of rank's element i; sums of them are rounded in every type, and hold a cancellation now and then. */
static float element(int rank, size_t i) {
    const uint32_t random = ((uint32_t)i * 8u + (uint32_t)rank) * 2654435761u;
    const float value = (float)(random >> 8) / (float)(1 << 24) - 0.5f;
    return i % 7 == 0 && rank < 2 ? (rank ? -3000.0f : 3000.0f) + value : value;
}

static void fill(cairn_dtype type, void *x, size_t n, int rank, size_t first) {
    for (size_t i = 0; i < n; i++) put(type, x, i, element(rank, first + i));
}

/* The definition: ranks within a machine, machines, one division, one rounding. */
static float expected(const char *on, cairn_dtype type, size_t i, float divisor) {
    float total = 0;
    bool is_first = true;
    for (const char *m = on; *m; m++) {
        float partial = 0;
        if (strchr(on, *m) != m) continue; /* not its machine's first rank */
        for (const char *r = m; *r; r++) {
            float x[1];
            if (*r != *m) continue;
            put(type, x, 0, element((int)(r - on), i));
            partial = r == m ? get(type, x, 0) : partial + get(type, x, 0);
        }
        total = is_first ? partial : total + partial;
        is_first = false;
    }
    return divisor == 1 ? total : total / divisor;
}

struct wanted {
    const char *on;
    cairn_dtype type;
    size_t n;
};

/* Of long arrays all elements at both ends, and each 61st. */
static bool equals(const struct wanted *w, const void *x, size_t n, size_t first, int divisor) {
    enum { AT_ENDS = 4000, STEP = 61 };
    float bits[1];
    for (size_t i = 0; i < n; i += i < AT_ENDS || i + AT_ENDS > n ? 1 : STEP) {
        put(w->type, bits, 0, expected(w->on, w->type, first + i, (float)divisor));
        if (memcmp((const char *)x + i * cairn_dtype_nbytes(w->type), bits, cairn_dtype_nbytes(w->type)) != 0)
            return false;
    }
    return true;
}

/* ---- bits ---- */

static char *reduce_in_every_way(cairn_group *group, void *ctx) {
    const struct wanted *w = ctx;
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    const size_t n = w->n, nbytes = n * cairn_dtype_nbytes(w->type);
    void *x = malloc(nbytes), *y = malloc(nbytes), *shared = NULL;
    EXPECT(in_levels(group));
    fill(w->type, x, n, rank, 0);
    EXPECT_OK(cairn_allreduce_into(group, y, x, n, w->type, CAIRN_SUM, NULL));
    EXPECT(equals(w, y, n, 0, 1));
    EXPECT_OK(cairn_allreduce(group, x, n, w->type, CAIRN_AVG, NULL));
    EXPECT(equals(w, x, n, 0, p));
    EXPECT_OK(cairn_group_alloc(group, nbytes, &shared));
    fill(w->type, shared, n, rank, 0);
    EXPECT_OK(cairn__group_average(group, shared, n, w->type, p - 1, NULL, NULL));
    EXPECT(equals(w, shared, n, 0, p - 1));
    /* some in group memory, some not, and one after the other */
    void *const mixed = rank % 2 ? shared : x;
    fill(w->type, mixed, n, rank, 0);
    fill(w->type, y, n, rank, 0);
    cairn_work *works[2] = {NULL};
    EXPECT_OK(cairn_allreduce(group, mixed, n, w->type, CAIRN_SUM, &works[0]));
    EXPECT_OK(cairn_allreduce(group, y, n, w->type, CAIRN_AVG, &works[1]));
    EXPECT_OK(cairn_work_wait(&works[1]));
    EXPECT_OK(cairn_work_wait(&works[0]));
    EXPECT(equals(w, mixed, n, 0, 1) && equals(w, y, n, 0, p));
    EXPECT_OK(cairn_group_free(group, &shared));
    free(x);
    free(y);
    return NULL;
}

/* Whether type t is left out of case k. The first has all: its long arrays go in several blocks. By these turns f32
 * and a half meet the shortest length each that goes in two levels, 1025 and 2049. */
static bool is_left_out(size_t k, int t) {
    return k > 0 && check_is_short() && (k + 1) % NUM_TYPES != (size_t)t;
}

static void long_sums_have_the_bits_of_the_model(void **state) {
    (void)state;
    static const char *const all[] = {"aabb", "aab", "abab", "abbacc"};
    for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
        for (int t = 0; t < NUM_TYPES; t++) {
            if (is_left_out(k, t)) continue;
            struct wanted w = {all[k], float_types[t], k ? LONG / 10 : LONG};
            run_on(w.on, (unsigned)k + 1, reduce_in_every_way, &w);
        }
    }
}

static void sums_of_any_length_have_the_bits_of_the_model(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 2, 63, 65, SHORT, 1025, 2049, 4097, 5003};
    for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
        for (int t = 0; t < NUM_TYPES; t++) {
            if (is_left_out(k, t)) continue;
            struct wanted w = {"aabbcab", float_types[t], lengths[k]};
            run_on(w.on, (unsigned)k, reduce_in_every_way, &w);
        }
    }
}

static char *reduce_on_each_side_of_short_staging(cairn_group *group, void *ctx) {
    const struct exchange *x = group->impl;
    struct wanted w = {ctx, CAIRN_F32, 1}, longer = w;
    while (cairn__machine_staged_nbytes(w.n + 1, cairn_group_size(group)) <= EXCHANGE_SHORT_NBYTES) w.n++;
    longer.n = w.n + 1;
    PASS(reduce_in_every_way(group, &w));
    EXPECT(x->short_staging && !x->staging);
    PASS(reduce_in_every_way(group, &longer));
    EXPECT(x->staging);
    PASS(reduce_in_every_way(group, &w));
    return reduce_in_every_way(group, &longer);
}

static void short_and_long_sums_by_turns_have_the_bits_of_the_model(void **state) {
    char three[] = "aab", eight[] = "aabbccab";
    (void)state;
    run_on(three, 1, reduce_on_each_side_of_short_staging, three);
    run_on(eight, 2, reduce_on_each_side_of_short_staging, eight);
}

static char *reduce_and_scatter(cairn_group *group, void *ctx) {
    const struct wanted *w = ctx;
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    const size_t n = w->n, width = cairn_dtype_nbytes(w->type);
    char *x = malloc((size_t)p * n * width), *y = malloc(n * width);
    fill(w->type, x, (size_t)p * n, rank, 0);
    EXPECT_OK(cairn_reduce_scatter(group, y, x, n, w->type, CAIRN_AVG, NULL));
    EXPECT(equals(w, y, n, (size_t)rank * n, p));
    EXPECT_OK(cairn_reduce(group, y, x, n, w->type, CAIRN_SUM, 1, NULL));
    EXPECT(rank != 1 || equals(w, y, n, 0, 1));
    free(x);
    free(y);
    return NULL;
}

static void other_reductions_have_the_same_bits(void **state) {
    (void)state;
    for (int t = 0; t < NUM_TYPES; t++) {
        struct wanted w = {"abab", float_types[t], 20011};
        run_on(w.on, 3, reduce_and_scatter, &w);
    }
}

/* ---- the choice ---- */

static char *expect_levels(cairn_group *group, void *ctx) {
    float x[3000] = {0};
    EXPECT(in_levels(group) == *(bool *)ctx);
    EXPECT_OK(cairn_allreduce(group, x, 3000, CAIRN_F32, CAIRN_SUM, NULL));
    return NULL;
}

static void levels_need_several_machines_and_one_with_several_ranks(void **state) {
    (void)state;
    bool yes = true, no = false;
    run_on("aaa", 0, expect_levels, &no);
    run_on("abc", 0, expect_levels, &no);
    run_on("aabc", 0, expect_levels, &yes);
    run_on("abca", 0, expect_levels, &yes);
}

static void flat_on_one_rank_is_flat_on_all(void **state) {
    (void)state;
    bool no = false;
    flat_rank = 2;
    run_on("aabb", 0, expect_levels, &no);
    flat_rank = -1;
}

static void another_hierarchy_is_refused(void **state) {
    (void)state;
    struct member m;
    hierarchy = "tall";
    assert_int_equal(join_group("gloo", 0, 1, 0, 60, &m), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "CAIRN_HIERARCHY is 'tall'; it can be auto or flat");
    hierarchy = NULL;
}

static char *derive_groups(cairn_group *group, void *ctx) {
    static const int pairs[] = {5, 0, 2, 4};
    (void)ctx;
    const int rank = cairn_group_rank(group);
    cairn_group *some = NULL, *channel = NULL, *half = NULL;
    struct wanted w = {"aabbcc", CAIRN_F16, 5000};
    EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &channel));
    EXPECT_OK(cairn_group_split(group, rank < 3, rank, NULL, &half));
    EXPECT_OK(cairn_group_new(group, pairs, 4, NULL, &some)); /* machines c, a, b, c */
    PASS(reduce_in_every_way(channel, &w));
    PASS(reduce_in_every_way(group, &w));
    EXPECT(in_levels(half));
    w.on = rank < 3 ? "aab" : "bcc";
    if (rank < 3) PASS(reduce_in_every_way(half, &w));
    w.on = "cabc";
    if (some) PASS(reduce_in_every_way(some, &w));
    cairn_group_destroy(&some);
    EXPECT_OK(cairn_barrier(group));
    cairn_group_destroy(&half);
    cairn_group_destroy(&channel);
    return NULL;
}

static void groups_of_some_ranks_have_levels_by_their_own(void **state) {
    (void)state;
    run_on("aabbcc", 2, derive_groups, NULL);
}

/* ---- infinities and NaNs ---- */

static char *find_sources(cairn_group *group, void *ctx) {
    const size_t n = *(size_t *)ctx;
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    float *x = calloc(n, sizeof(*x));
    struct cairn__nonfinite mine = {0}, all[MAX_RANKS];
    if (rank == 1) x[n - 1] = HUGE_VALF;
    if (rank == 3) x[n / 2] = nanf("");
    EXPECT_OK(cairn__group_average(group, x, n, CAIRN_F32, p, &mine, NULL));
    EXPECT_OK(cairn__group_exchange(group, all, &mine, sizeof(mine)));
    for (int r = 0; r < p; r++) cairn__nonfinite_unite(&mine, &all[r]);
    EXPECT(mine.found && x[n - 1] == HUGE_VALF && x[n / 2] != x[n / 2]);
    for (int r = 0; r < p; r++) EXPECT(cairn__ranks_has(&mine.ranks, r) == (r == 1 || r == 3));
    free(x);
    return NULL;
}

static void ranks_with_infinities_are_found_on_other_machines_too(void **state) {
    (void)state;
    size_t few = 900, many = 700001;
    run_on("aabb", 1, find_sources, &few);
    run_on("aabb", 1, find_sources, &many);
    run_on("abbab", 1, find_sources, &many);
}

static char *overflow(cairn_group *group, void *ctx) {
    (void)ctx;
    uint16_t x[5000];
    struct cairn__nonfinite mine = {0}, all[MAX_RANKS];
    for (int i = 0; i < 5000; i++) x[i] = cairn__f32_to_f16(i == 77 ? 40000 : 1);
    EXPECT_OK(cairn__group_average(group, x, 5000, CAIRN_F16, 0, &mine, NULL));
    EXPECT_OK(cairn__group_exchange(group, all, &mine, sizeof(mine)));
    for (int r = 0; r < cairn_group_size(group); r++) cairn__nonfinite_unite(&mine, &all[r]);
    EXPECT(mine.found && cairn__f16_to_f32(x[77]) == HUGE_VALF);
    for (int r = 0; r < MAX_RANKS; r++) EXPECT(!cairn__ranks_has(&mine.ranks, r));
    for (int i = 0; i < 5000; i++) x[i] = cairn__f32_to_f16(40000);
    EXPECT_OK(cairn_allreduce(group, x, 5000, CAIRN_F16, CAIRN_AVG, NULL)); /* of f32 sums */
    for (int i = 0; i < 5000; i++) EXPECT(cairn__f16_to_f32(x[i]) == 40000);
    return NULL;
}

static void an_overflow_of_the_sum_alone_names_no_ranks(void **state) {
    (void)state;
    run_on("aabb", 1, overflow, NULL);
}

/* ---- what goes wrong ---- */

static char *disagree(cairn_group *group, void *ctx) {
    const int rank = cairn_group_rank(group);
    (void)ctx;
    float *x = calloc(9000, sizeof(*x));
    const cairn_status st = cairn_allreduce(group, x, rank == 1 ? 8000 : 9000, CAIRN_F32, CAIRN_SUM, NULL);
    EXPECT(st == CAIRN_EPEER);
    if (rank < 2) EXPECT_SAYS("all-reduce number 1: rank 0 issues 9000 f32 to sum, rank 1 issues 8000 f32 to sum");
    free(x);
    return NULL;
}

static void calls_that_differ_within_a_machine_are_named(void **state) {
    (void)state;
    run_on("aabb", 0, disagree, NULL);
}

static char *alloc_too_much(cairn_group *group, void *ctx) {
    (void)ctx;
    void *p = NULL;
    EXPECT(cairn_group_alloc(group, SIZE_MAX / 4, &p) == CAIRN_ENOMEM && !p);
    EXPECT_SAYS("is more than this machine's memory");
    EXPECT_OK(cairn_group_alloc(group, 1000, &p));
    EXPECT((uintptr_t)p % 64 == 0 && ((char *)p)[999] == 0);
    EXPECT(cairn_group_free(group, &(void *){(char *)p + 1}) == CAIRN_EINVAL);
    EXPECT_OK(cairn_group_free(group, &p));
    return NULL;
}

static void memory_that_cannot_be_allocated_leaves_the_group_alive(void **state) {
    (void)state;
    run_on("aab", 0, alloc_too_much, NULL);
}

static char *steady(cairn_group *group, void *ctx) {
    float *x = calloc(3000, sizeof(*x));
    (void)ctx;
    group->family->store_fails = true; /* or a rank that waits for long looks there for a deadlock, and allocates */
    for (int round = 0; round < 20; round++) {
        EXPECT_OK(cairn_barrier(group));
        const uint64_t before = cairn__alloc_counters().allocations;
        EXPECT_OK(cairn_barrier(group));
        EXPECT_OK(cairn_allreduce(group, x, 3000, CAIRN_F32, CAIRN_AVG, NULL));
        EXPECT_OK(cairn_barrier(group));
        EXPECT(round < 10 || cairn__alloc_counters().allocations == before);
    }
    free(x);
    return NULL;
}

static void steady_state_allocates_nothing(void **state) {
    (void)state;
    run_on("aabb", 3, steady, NULL);
}

static char *leave_others(cairn_group *group, void *ctx) {
    const int rank = cairn_group_rank(group);
    (void)ctx;
    float *x = calloc(9000, sizeof(*x));
    EXPECT_OK(cairn_barrier(group));
    if (rank == 1) {
        cairn_group_abort(group);
    } else {
        EXPECT(cairn_allreduce(group, x, 9000, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_EPEER);
    }
    if (rank == 0) EXPECT_SAYS("rank 1 aborted the group while rank 0 was in all-reduce number 2 of 9000 f32 to sum");
    free(x);
    return NULL;
}

static void a_rank_that_aborts_ends_the_wait_on_both_machines(void **state) {
    (void)state;
    run_on("aabb", 0, leave_others, NULL);
}

static atomic_int awaiting; /* ranks */

static cairn_status stop(cairn_group *group, cairn_group *parent) {
    while (atomic_load(&awaiting) > 0) poll(NULL, 0, 1);
    return cairn__group_gloo.derive(group, parent);
}

/* Those of its machine wait for its memory, the others for what they exchange. */
static char *make_with_a_stopped_rank(cairn_group *group, void *ctx) {
    const int rank = cairn_group_rank(group), stopped = *(const int *)ctx;
    const uint64_t begin = cairn__now_ns();
    struct cairn__group_backend backend = *group->backend;
    cairn_group *made = NULL;
    backend.derive = stop;
    if (rank == stopped) group->backend = &backend;
    const cairn_status st = cairn_group_new(group, NULL, 0, NULL, &made);
    group->backend = &cairn__group_gloo;
    const double seconds = (double)(cairn__now_ns() - begin) * 1e-9;
    if (rank != stopped) atomic_fetch_sub(&awaiting, 1);
    EXPECT((st == CAIRN_EPEER || st == CAIRN_ETIMEOUT) && made == NULL);
    char name[40], took[100];
    snprintf(name, sizeof(name), "rank %d", stopped);
    if (rank != stopped) EXPECT_SAYS(name);
    snprintf(took, sizeof(took), "it took %.1f s with a timeout of %g s", seconds, group->timeout);
    if (rank != stopped && seconds > MAKING_TIMEOUT + NOTES_AND_SLACK) return FAILURE(took);
    return NULL;
}

static void a_group_that_a_stopped_rank_is_to_make_fails_within_one_timeout(void **state) {
    (void)state;
    control->set(&(struct fake_faults){.seed = 0});
    machines = "aabb";
    atomic_store(&awaiting, 3);
    run_group_of("gloo", 4, MAKING_TIMEOUT, make_with_a_stopped_rank, &(int){0});
    machines = NULL;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_sums_have_the_bits_of_the_model),
        cmocka_unit_test(sums_of_any_length_have_the_bits_of_the_model),
        cmocka_unit_test(short_and_long_sums_by_turns_have_the_bits_of_the_model),
        cmocka_unit_test(other_reductions_have_the_same_bits),
        cmocka_unit_test(levels_need_several_machines_and_one_with_several_ranks),
        cmocka_unit_test(flat_on_one_rank_is_flat_on_all),
        cmocka_unit_test(another_hierarchy_is_refused),
        cmocka_unit_test(groups_of_some_ranks_have_levels_by_their_own),
        cmocka_unit_test(ranks_with_infinities_are_found_on_other_machines_too),
        cmocka_unit_test(an_overflow_of_the_sum_alone_names_no_ranks),
        cmocka_unit_test(calls_that_differ_within_a_machine_are_named),
        cmocka_unit_test(memory_that_cannot_be_allocated_leaves_the_group_alive),
        cmocka_unit_test(steady_state_allocates_nothing),
        cmocka_unit_test(a_rank_that_aborts_ends_the_wait_on_both_machines),
        cmocka_unit_test(a_group_that_a_stopped_rank_is_to_make_fails_within_one_timeout),
    };
    const void *table = NULL;
    static const struct cairn__module_use use = {"fake engine", "none", sizeof(struct fake_control)};
    if (cairn__module_open(&use, "gloo", &table) != CAIRN_OK) return 1;
    control = table;
    return cmocka_run_group_tests_name("hierarchy", tests, NULL, NULL);
}
