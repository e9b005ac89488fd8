/* The backend-independent front of process groups: arguments, subgroups, waiting in several groups at once, abort.
 * Ranks are threads on shm; a single rank is on self. */
#include "group_ranks.h"

#include <math.h>
#include <stdatomic.h>
#include <time.h>

#include "comm/front.h"
#include "core/alloc.h"
#include "core/status.h"

/* ---- arguments ---- */

enum { ANY = 8 };

static struct arrays {
    float f32[64];
    double f64[64];
} given[MAX_RANKS];

#define EXPECT_EINVAL(call, words)                                                   \
    do {                                                                             \
        EXPECT_REFUSED(call, CAIRN_EINVAL, words);                                   \
        EXPECT(cairn_group_size(group) == 1 || !strstr(cairn_last_error(), "dead")); \
    } while (0)

static char *refuse_types(cairn_group *group, float *x, float *y) {
    const cairn_dtype bad[] = {(cairn_dtype)0, CAIRN_BOOL, (cairn_dtype)99, (cairn_dtype)257};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        static const char *const sentence = "is not an element type of groups";
        EXPECT_EINVAL(cairn_allreduce(group, x, 1, bad[i], CAIRN_SUM, NULL), sentence);
        EXPECT_EINVAL(cairn_allreduce_into(group, x, y, 1, bad[i], CAIRN_SUM, NULL), sentence);
        EXPECT_EINVAL(cairn_reduce(group, x, y, 1, bad[i], CAIRN_SUM, 0, NULL), sentence);
        EXPECT_EINVAL(cairn_broadcast(group, x, 1, bad[i], 0, NULL), sentence);
        EXPECT_EINVAL(cairn_allgather(group, x, y, 1, bad[i], NULL), sentence);
        EXPECT_EINVAL(cairn_reduce_scatter(group, x, y, 1, bad[i], CAIRN_SUM, NULL), sentence);
        EXPECT_EINVAL(cairn_alltoall(group, x, y, 1, bad[i], NULL), sentence);
        EXPECT_EINVAL(cairn_send(group, x, 1, bad[i], 1 - cairn_group_rank(group), NULL), sentence);
        EXPECT_EINVAL(cairn_recv(group, x, 1, bad[i], 1 - cairn_group_rank(group), NULL), sentence);
    }
    return NULL;
}

static char *refuse_operations(cairn_group *group, float *x, float *y) {
    const cairn_redop bad[] = {(cairn_redop)0, (cairn_redop)6, (cairn_redop)-1, (cairn_redop)258};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        EXPECT_EINVAL(cairn_allreduce(group, x, 1, CAIRN_F32, bad[i], NULL), "all-reduce: ");
        EXPECT(strstr(cairn_last_error(), "is not a reduction; use CAIRN_SUM, CAIRN_AVG, "));
        EXPECT_EINVAL(cairn_allreduce_into(group, x, y, 1, CAIRN_F32, bad[i], NULL), "is not a reduction");
        EXPECT_EINVAL(cairn_reduce(group, x, y, 1, CAIRN_F32, bad[i], 0, NULL), "reduce: ");
        EXPECT_EINVAL(cairn_reduce_scatter(group, x, y, 1, CAIRN_F32, bad[i], NULL), "reduce-scatter: ");
    }
    return NULL;
}

static char *refuse_ranks(cairn_group *group, float *x, float *y) {
    const int bad[] = {-1, 2, 1 << 20};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        static const char *const sentence = "is not in a group of 2; ranks are 0 to 1";
        EXPECT_EINVAL(cairn_reduce(group, x, y, 1, CAIRN_F32, CAIRN_SUM, bad[i], NULL), sentence);
        EXPECT_EINVAL(cairn_broadcast(group, x, 1, CAIRN_F32, bad[i], NULL), sentence);
        EXPECT_EINVAL(cairn_send(group, x, 1, CAIRN_F32, bad[i], NULL), sentence);
        EXPECT(strstr(cairn_last_error(), "send: the receiving rank "));
        EXPECT_EINVAL(cairn_recv(group, x, 1, CAIRN_F32, bad[i], NULL), sentence);
        EXPECT(strstr(cairn_last_error(), "receive: the sending rank "));
    }
    const int self = cairn_group_rank(group);
    EXPECT_EINVAL(cairn_send(group, x, 1, CAIRN_F32, self, NULL), "is this rank itself; copy instead");
    EXPECT_EINVAL(cairn_recv(group, x, 1, CAIRN_F32, self, NULL), "is this rank itself; copy instead");
    return NULL;
}

static char *refuse_arrays(cairn_group *group, float *x, float *y) {
    const int rank = cairn_group_rank(group), other = 1 - rank;
    float *odd = (float *)((char *)x + 1);
    EXPECT_EINVAL(cairn_allreduce(group, NULL, 1, CAIRN_F32, CAIRN_SUM, NULL),
                  "all-reduce: the array of 1 f32 is NULL");
    EXPECT_EINVAL(cairn_allreduce(group, odd, 1, CAIRN_F32, CAIRN_SUM, NULL), "is not aligned for f32");
    EXPECT_EINVAL(cairn_allreduce(group, x, SIZE_MAX / 4, CAIRN_F32, CAIRN_SUM, NULL), "more than memory can hold");
    EXPECT_EINVAL(cairn_allreduce_into(group, NULL, x, 1, CAIRN_F32, CAIRN_SUM, NULL), "dst of 1 f32 is NULL");
    EXPECT_EINVAL(cairn_allreduce_into(group, x, NULL, 1, CAIRN_F32, CAIRN_SUM, NULL), "src of 1 f32 is NULL");
    EXPECT_EINVAL(cairn_allreduce_into(group, x, odd, 1, CAIRN_F32, CAIRN_SUM, NULL), "src at 0x");
    EXPECT_EINVAL(cairn_reduce(group, x, NULL, 1, CAIRN_F32, CAIRN_SUM, 0, NULL), "src of 1 f32 is NULL");
    EXPECT_EINVAL(cairn_reduce(group, NULL, x, 1, CAIRN_F32, CAIRN_SUM, rank, NULL), "dst of 1 f32 is NULL");
    EXPECT_EINVAL(cairn_broadcast(group, NULL, 1, CAIRN_F32, 0, NULL), "broadcast: the array of 1 f32 is NULL");
    EXPECT_EINVAL(cairn_allgather(group, NULL, x, 3, CAIRN_F32, NULL), "dst of 6 f32 is NULL");
    EXPECT_EINVAL(cairn_allgather(group, x, y, SIZE_MAX / 8, CAIRN_F32, NULL), "dst of 2 times ");
    EXPECT_EINVAL(cairn_reduce_scatter(group, x, NULL, 3, CAIRN_F32, CAIRN_SUM, NULL), "src of 6 f32 is NULL");
    EXPECT_EINVAL(cairn_reduce_scatter(group, x, y, SIZE_MAX / 8, CAIRN_F32, CAIRN_SUM, NULL), "src of 2 times ");
    EXPECT_EINVAL(cairn_alltoall(group, x, NULL, 1, CAIRN_F32, NULL), "src of 2 f32 is NULL");
    EXPECT_EINVAL(cairn_alltoall(group, x, y, SIZE_MAX / 8, CAIRN_F32, NULL), "more than memory can hold");
    EXPECT_EINVAL(cairn_send(group, NULL, 1, CAIRN_F32, other, NULL), "send: the array of 1 f32 is NULL");
    EXPECT_EINVAL(cairn_recv(group, NULL, 1, CAIRN_F32, other, NULL), "receive: the array of 1 f32 is NULL");
    EXPECT_EINVAL(cairn_recv(group, odd, 1, CAIRN_F32, other, NULL), "is not aligned for f32");
    return NULL;
}

static char *refuse_overlaps(cairn_group *group, float *x) {
    const int rank = cairn_group_rank(group);
    static const char *const sentence = "src overlaps dst";
    EXPECT_EINVAL(cairn_allreduce_into(group, x, x + 3, 4, CAIRN_F32, CAIRN_SUM, NULL), sentence);
    EXPECT_EINVAL(cairn_allreduce_into(group, x + 3, x, 4, CAIRN_F32, CAIRN_SUM, NULL), sentence);
    EXPECT_EINVAL(cairn_reduce(group, x + 1, x, 4, CAIRN_F32, CAIRN_SUM, rank, NULL), sentence);
    EXPECT_EINVAL(cairn_allgather(group, x, x + (1 - rank) * 4, 4, CAIRN_F32, NULL), "src must be dst + rank * n");
    EXPECT_EINVAL(cairn_allgather(group, x, x + 7, 4, CAIRN_F32, NULL), sentence);
    EXPECT_EINVAL(cairn_allgather(group, x + 3, x, 4, CAIRN_F32, NULL), sentence);
    EXPECT_EINVAL(cairn_reduce_scatter(group, x + (1 - rank) * 4, x, 4, CAIRN_F32, CAIRN_SUM, NULL),
                  "dst must be src + rank * n");
    EXPECT_EINVAL(cairn_alltoall(group, x, x, 4, CAIRN_F32, NULL), "they must not overlap");
    EXPECT_EINVAL(cairn_alltoall(group, x, x + 7, 4, CAIRN_F32, NULL), sentence);
    return NULL;
}

static char *refuse(cairn_group *group, void *ctx) {
    (void)ctx;
    float *x = given[cairn_group_rank(group)].f32, *y = x + 32;
    cairn_work *work = NULL;
    int done = 0;
    void *memory = NULL, *foreign = x;
    PASS(refuse_types(group, x, y));
    PASS(refuse_operations(group, x, y));
    PASS(refuse_ranks(group, x, y));
    PASS(refuse_arrays(group, x, y));
    PASS(refuse_overlaps(group, x));
    EXPECT_EINVAL(cairn_group_alloc(group, 1, NULL), "cairn_group_alloc: group or out is NULL");
    EXPECT(cairn_group_alloc(group, SIZE_MAX, &memory) == CAIRN_ENOMEM && memory == NULL);
    EXPECT_EINVAL(cairn_group_free(group, NULL), "group or memory is NULL");
    EXPECT_EINVAL(cairn_group_free(group, &foreign), "is not memory of this group");
    EXPECT_EINVAL(cairn_work_test(NULL, &done), "work or done is NULL");
    EXPECT_EINVAL(cairn_work_wait(NULL), "cairn_work_wait: work is NULL");
    EXPECT_OK(cairn_allreduce(group, x, 1, CAIRN_F32, CAIRN_SUM, &work));
    EXPECT_EINVAL(cairn_work_test(work, NULL), "work or done is NULL");
    EXPECT_OK(cairn_work_wait(&work));
    EXPECT_OK(cairn_work_wait(&work));
    return NULL;
}

static void wrong_arguments_post_nothing_and_are_named(void **state) {
    (void)state;
    run_group(2, refuse, NULL);
}

static void every_call_refuses_a_null_group(void **state) {
    (void)state;
    float x[4] = {0}, y[4] = {0};
    void *memory = NULL;
    cairn_group *none = NULL, *out = NULL;
    assert_int_equal(cairn_allreduce(NULL, x, 1, CAIRN_F32, CAIRN_SUM, NULL), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "all-reduce: the group is NULL");
    assert_int_equal(cairn_allreduce_into(NULL, x, y, 1, CAIRN_F32, CAIRN_SUM, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_reduce(NULL, x, y, 1, CAIRN_F32, CAIRN_SUM, 0, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_broadcast(NULL, x, 1, CAIRN_F32, 0, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_allgather(NULL, x, y, 1, CAIRN_F32, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_reduce_scatter(NULL, x, y, 1, CAIRN_F32, CAIRN_SUM, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_alltoall(NULL, x, y, 1, CAIRN_F32, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_send(NULL, x, 1, CAIRN_F32, 0, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_recv(NULL, x, 1, CAIRN_F32, 0, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_barrier(NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_group_alloc(NULL, 1, &memory), CAIRN_EINVAL);
    assert_int_equal(cairn_group_free(NULL, &memory), CAIRN_EINVAL);
    assert_int_equal(cairn_group_new(NULL, NULL, 0, NULL, &out), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "cairn_group_new: the parent is NULL");
    assert_int_equal(cairn_group_split(NULL, 0, 0, NULL, &out), CAIRN_EINVAL);
    cairn_group_destroy(NULL);
    cairn_group_destroy(&none);
    cairn_group_abort(NULL);
    assert_int_equal(cairn_group_rank(NULL), 0);
    assert_int_equal(cairn_group_size(NULL), 1);
    assert_int_equal(cairn_group_env_rank(NULL, 0), 0);
    assert_int_equal(cairn_group_env_rank(NULL, 1), -1);
    assert_string_equal(cairn_group_backend(NULL), "");
}

static char *exchange_nothing(cairn_group *group, void *ctx) {
    (void)ctx;
    EXPECT_OK(cairn_allreduce(group, NULL, 0, CAIRN_F32, CAIRN_AVG, NULL));
    EXPECT_OK(
        cairn_allreduce(group, (char *)given[0].f32 + 1, 0, CAIRN_F32, CAIRN_AVG, NULL)); /* aligned for nothing */
    EXPECT_OK(cairn_alltoall(group, given[0].f32, given[0].f32, 0, CAIRN_F32, NULL));
    EXPECT_OK(cairn_allreduce_into(group, NULL, NULL, 0, CAIRN_F64, CAIRN_MAX, NULL));
    EXPECT_OK(cairn_reduce(group, NULL, NULL, 0, CAIRN_F16, CAIRN_SUM, 1, NULL));
    EXPECT_OK(cairn_broadcast(group, NULL, 0, CAIRN_U8, 1, NULL));
    EXPECT_OK(cairn_allgather(group, NULL, NULL, 0, CAIRN_I32, NULL));
    EXPECT_OK(cairn_reduce_scatter(group, NULL, NULL, 0, CAIRN_I64, CAIRN_PROD, NULL));
    EXPECT_OK(cairn_alltoall(group, NULL, NULL, 0, CAIRN_BF16, NULL));
    EXPECT_OK(cairn_group_rank(group) == 0 ? cairn_send(group, NULL, 0, CAIRN_F32, 1, NULL)
                                           : cairn_recv(group, NULL, 0, CAIRN_F32, 0, NULL));
    return NULL;
}

static void empty_arrays_may_be_null(void **state) {
    (void)state;
    run_group(2, exchange_nothing, NULL);
}

/* ---- a rank alone ---- */

static cairn_group *create_alone(struct cairn_device *device) {
    cairn_group *group = NULL;
    assert_int_equal(
        cairn__group_create(&(struct cairn__group_create_options){.size = 1, .timeout = 1, .device = device}, &group),
        CAIRN_OK);
    return group;
}

static void every_collective_gives_a_rank_alone_its_own_array(void **state) {
    (void)state;
    struct cairn_device *device = NULL;
    assert_int_equal(cairn__device_open("cpu", 0, &device), CAIRN_OK);
    cairn_group *group = create_alone(device);
    const float x[3] = {1, -0.0f, INFINITY};
    float y[6][3] = {{0}};
    assert_int_equal(cairn_allreduce_into(group, y[0], x, 3, CAIRN_F32, CAIRN_AVG, NULL), CAIRN_OK);
    assert_int_equal(cairn_reduce(group, y[1], x, 3, CAIRN_F32, CAIRN_PROD, 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_allgather(group, y[2], x, 3, CAIRN_F32, NULL), CAIRN_OK);
    assert_int_equal(cairn_reduce_scatter(group, y[3], x, 3, CAIRN_F32, CAIRN_MIN, NULL), CAIRN_OK);
    assert_int_equal(cairn_alltoall(group, y[4], x, 3, CAIRN_F32, NULL), CAIRN_OK);
    assert_int_equal(cairn__group_exchange(group, y[5], x, sizeof(x)), CAIRN_OK);
    for (int i = 0; i < 6; i++) assert_memory_equal(y[i], x, sizeof(x));
    assert_int_equal(cairn_broadcast(group, y[0], 3, CAIRN_F32, 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_reduce_scatter(group, y[0], y[0], 3, CAIRN_F32, CAIRN_SUM, NULL), CAIRN_OK);
    assert_memory_equal(y[0], x, sizeof(x));
    assert_int_equal(cairn_send(group, x, 3, CAIRN_F32, 0, NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_recv(group, y[0], 3, CAIRN_F32, 0, NULL), CAIRN_EINVAL);
    assert_true(cairn__group_destroy_root(&group));
    cairn__device_close(&device);
}

static void groups_made_from_a_group_of_one_have_one_rank(void **state) {
    (void)state;
    struct cairn_device *device = NULL;
    assert_int_equal(cairn__device_open("cpu", 0, &device), CAIRN_OK);
    cairn_group *group = create_alone(device), *second = NULL, *split = NULL, *none = group;
    assert_int_equal(cairn_group_new(group, (int[]){0}, 1, NULL, &second), CAIRN_OK);
    assert_int_equal(cairn_group_split(second, 7, -3, NULL, &split), CAIRN_OK);
    assert_int_equal(cairn_group_split(group, -1, 0, NULL, &none), CAIRN_OK);
    assert_null(none);
    assert_string_equal(cairn_group_backend(split), "self");
    assert_int_equal(cairn_group_env_rank(split, 0), 0);
    assert_true(cairn__group_device(split) == device);
    assert_int_equal(cairn_barrier(split), CAIRN_OK);
    cairn_group_destroy(&second);
    assert_int_equal(cairn_barrier(split), CAIRN_OK);
    cairn_group_destroy(&split);
    assert_true(cairn__group_destroy_root(&group));
    cairn__device_close(&device);
}

/* ---- calls as the others see them ---- */

static void every_call_is_described_by_what_must_be_equal(void **state) {
    (void)state;
    static const struct {
        struct cairn__call call;
        const char *text;
    } all[] = {
        {{0, 5, {0}, CAIRN__BARRIER, 0, 0, 0}, "the group's creation"},
        {{1, 5, {0}, CAIRN__ALLREDUCE, CAIRN_F32, CAIRN_AVG, 0}, "all-reduce number 1 of 5 f32 to average"},
        {{1, 5, {3}, CAIRN__ALLREDUCE, CAIRN_F32, CAIRN_AVG, 0}, "all-reduce number 1 of 5 f32 to average over 3"},
        {{2, 0, {3}, CAIRN__REDUCE, CAIRN_F64, CAIRN_PROD, 0}, "reduce number 2 of 0 f64 to product at rank 3"},
        {{3, 9, {1}, CAIRN__BROADCAST, CAIRN_U8, 0, 0}, "broadcast number 3 of 9 u8 from rank 1"},
        {{4, 9, {0}, CAIRN__ALLGATHER, CAIRN_BF16, 0, 0}, "all-gather number 4 of 9 bf16"},
        {{5, 9, {0}, CAIRN__REDUCE_SCATTER, CAIRN_I32, CAIRN_MIN, 0}, "reduce-scatter number 5 of 9 i32 to minimum"},
        {{6, 9, {0}, CAIRN__ALLTOALL, CAIRN_I64, 0, 0}, "all-to-all number 6 of 9 i64"},
        {{7, 9, {2}, CAIRN__SEND, CAIRN_F16, 0, 0}, "send number 7 of 9 f16 to rank 2"},
        {{8, 9, {2}, CAIRN__RECV, CAIRN_F16, 0, 0}, "receive number 8 of 9 f16 from rank 2"},
        {{UINT64_MAX, 0, {0}, CAIRN__BARRIER, 0, 0, 0}, "barrier number 18446744073709551615"},
        {{9, 100, {0}, CAIRN__ALLOC, 0, 0, 0}, "group allocation number 9 of 100 bytes"},
        {{10, 2, {0}, CAIRN__FREE, 0, 0, 0}, "cairn_group_free (or ddp_destroy) number 10 of allocation 2"},
        {{11, 0, {0}, CAIRN__AGREE, 0, 0, 0}, "agreement number 11"},
        {{12, 0, {0}, 200, 99, 99, 0}, "unknown collective number 12"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char text[128], tiny[8];
        cairn__call_describe(&all[i].call, text, sizeof(text));
        assert_string_equal(text, all[i].text);
        cairn__call_describe(&all[i].call, tiny, sizeof(tiny));
        assert_memory_equal(tiny, text, sizeof(tiny) - 1);
    }
}

static void calls_agree_where_everything_but_the_memory_is_equal(void **state) {
    (void)state;
    const struct cairn__call call = {7, 5, {1}, CAIRN__REDUCE, CAIRN_F32, CAIRN_SUM, 0};
    struct cairn__call other[7] = {call, call, call, call, call, call, call};
    other[1].number++, other[2].n++, other[3].root++, other[4].kind++, other[5].dtype++, other[6].redop++;
    for (int i = 0; i < 7; i++) assert_true(cairn__calls_agree(&call, &other[i]) == (i == 0));
    struct cairn__call sent = {7, 5, {1}, CAIRN__SEND, CAIRN_F32, 0, 0},
                       received = {7, 5, {0}, CAIRN__RECV, CAIRN_F32, 0, 0};
    assert_true(cairn__calls_agree(&sent, &received) && cairn__calls_agree(&received, &sent));
    assert_false(cairn__calls_agree(&sent, &sent));
    received.n = 4;
    assert_false(cairn__calls_agree(&sent, &received));
}

/* ---- giving up ---- */

struct giving_up {
    atomic_int waiting, fallen;
    cairn_group *group; /* of the rank whose other thread aborts */
};

static void rest(void) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void *abort_from_another_thread(void *ctx) {
    struct giving_up *g = ctx;
    while (atomic_load(&g->waiting) < 2) rest();
    cairn_group_abort(g->group);
    cairn_group_abort(g->group);
    return NULL;
}

static char *expect_aborted(cairn_group *group) {
    cairn_group *made = NULL;
    int done = 1;
    EXPECT(cairn_barrier(group) == CAIRN_ESTATE);
    EXPECT(strstr(cairn_last_error(), "the group was aborted by cairn_group_abort and can only be destroyed"));
    EXPECT(cairn__group_progress(group) == CAIRN_ESTATE);
    EXPECT(cairn_group_new(group, NULL, 0, NULL, &made) == CAIRN_ESTATE && made == NULL);
    EXPECT(cairn_group_alloc(group, 8, (void **)&made) == CAIRN_ESTATE && made == NULL);
    EXPECT(cairn__group_exchange(group, &done, &done, 0) == CAIRN_ESTATE);
    return NULL;
}

static char *abort_a_wait(cairn_group *group, void *ctx) {
    struct giving_up *g = ctx;
    const int rank = cairn_group_rank(group);
    float x = 1;
    cairn_work *work = NULL;
    pthread_t helper;
    EXPECT_OK(cairn_barrier(group));
    if (rank == 2) {
        while (atomic_load(&g->fallen) < 2) rest();
        EXPECT(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_EPEER);
        return NULL;
    }
    if (rank == 1) {
        g->group = group;
        EXPECT(pthread_create(&helper, NULL, abort_from_another_thread, g) == 0);
    }
    cairn_status st = cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, &work);
    atomic_fetch_add(&g->waiting, 1);
    if (st == CAIRN_OK) st = cairn_work_wait(&work);
    if (rank == 1) pthread_join(helper, NULL);
    atomic_fetch_add(&g->fallen, 1);
    if (rank == 1) EXPECT(st == CAIRN_ESTATE);
    if (rank == 1) return expect_aborted(group);
    EXPECT(st == CAIRN_EPEER && strstr(cairn_last_error(), "rank 1 aborted the group"));
    EXPECT(cairn_barrier(group) == CAIRN_EPEER && strstr(cairn_last_error(), "rank 1 aborted the group"));
    return NULL;
}

static void abort_ends_waits_here_and_elsewhere(void **state) {
    (void)state;
    struct giving_up g = {0};
    run_group(3, abort_a_wait, &g);
}

static char *abort_before_anything(cairn_group *group, void *ctx) {
    (void)ctx;
    if (cairn_group_rank(group) == 0) {
        cairn_group_abort(group);
        return expect_aborted(group);
    }
    EXPECT(cairn_barrier(group) == CAIRN_EPEER && strstr(cairn_last_error(), "rank 0 aborted the group"));
    cairn_group_abort(group); /* of a dead group: nothing more */
    EXPECT(cairn_barrier(group) == CAIRN_EPEER && strstr(cairn_last_error(), "rank 0 aborted the group"));
    return NULL;
}

static char *kill_it(cairn_group *group, void *ctx) {
    (void)ctx;
    if (cairn_group_rank(group) == 1) {
        EXPECT(cairn__group_kill(group, cairn__fail(CAIRN_ESTATE, "something was left out")) == CAIRN_ESTATE);
        EXPECT(cairn_barrier(group) == CAIRN_ESTATE);
        EXPECT(strcmp(cairn_last_error(), "something was left out") == 0);
        EXPECT(cairn__group_kill(group, cairn__fail(CAIRN_EINVAL, "another thing")) == CAIRN_EINVAL);
        EXPECT(cairn_barrier(group) == CAIRN_ESTATE && strcmp(cairn_last_error(), "something was left out") == 0);
        return NULL;
    }
    EXPECT(cairn_barrier(group) == CAIRN_EPEER && strstr(cairn_last_error(), "something was left out"));
    return NULL;
}

static void group_that_is_killed_fails_everywhere_with_its_cause(void **state) {
    (void)state;
    run_group(3, kill_it, NULL);
}

static void abort_without_a_wait_fails_the_next_call_everywhere(void **state) {
    (void)state;
    run_group(3, abort_before_anything, NULL);
}

/* ---- what a backend's failures do ---- */

/* A scripted backend of rank 0 of 2; the other rank always brings the same. */
static struct {
    cairn_status post, progress, wait, derive;
    int given_up, progressed;
    atomic_bool slow, giving_up, given_up_after_end, ended;
    uint64_t number;
    char cause[128];
} told;

static cairn_status told_status(cairn_status status) {
    return status == CAIRN_OK ? CAIRN_OK : cairn__fail(status, "the backend says %s", cairn_status_name(status));
}

static cairn_status told_post(cairn_group *group, cairn_work *work) {
    (void)group;
    told.number = work->request.call.number;
    return told_status(told.post);
}

static cairn_status told_progress(cairn_group *group) {
    (void)group;
    told.progressed++;
    return told_status(told.progress);
}

static cairn_status told_wait(cairn_group *group, cairn_work *work) {
    cairn__family_progress_others(group);
    if (told.wait == CAIRN_OK) cairn__work_complete(work, 0);
    return told_status(told.wait);
}

static cairn_status told_derive(cairn_group *group, cairn_group *parent) {
    (void)group, (void)parent;
    return told_status(told.derive);
}

static void told_give_up(cairn_group *group, const char *cause) {
    (void)group;
    told.given_up++;
    atomic_store(&told.giving_up, true);
    for (int i = 0; i < 50 && atomic_load(&told.slow); i++) rest();
    atomic_store(&told.given_up_after_end, atomic_load(&told.ended));
    snprintf(told.cause, sizeof(told.cause), "%s", cause);
}

static cairn_status told_exchange(cairn_group *group, void *all, const void *mine, size_t nbytes) {
    for (int r = 0; r < group->size; r++) memcpy((char *)all + (size_t)r * nbytes, mine, nbytes);
    return CAIRN_OK;
}

static void told_destroy(cairn_group *group) {
    (void)group;
    atomic_store(&told.ended, true);
}

static const struct cairn__group_backend backend_told = {.name = "told",
                                                         .post = told_post,
                                                         .progress = told_progress,
                                                         .wait = told_wait,
                                                         .derive = told_derive,
                                                         .give_up = told_give_up,
                                                         .exchange = told_exchange,
                                                         .destroy = told_destroy};

static cairn_group *add_told(struct cairn__family *family) {
    cairn_group *group = NULL;
    assert_int_equal(cairn__group_make(family, 2, &group), CAIRN_OK);
    group->backend = &backend_told;
    group->next = family->groups;
    family->groups = group;
    memset(&told, 0, sizeof(told));
    return group;
}

static void post_that_fails_leaves_the_group_as_it_was(void **state) {
    (void)state;
    struct cairn__family family = {0};
    cairn_group *group = add_told(&family);
    told.post = CAIRN_ENOMEM;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cairn_barrier(group), CAIRN_ENOMEM);
        assert_string_equal(cairn_last_error(), "the backend says ENOMEM");
        assert_int_equal(told.number, 1);
    }
    told.post = CAIRN_OK;
    assert_int_equal(cairn_barrier(group), CAIRN_OK);
    assert_int_equal(cairn_barrier(group), CAIRN_OK);
    assert_int_equal(told.number, 2);
    assert_int_equal(told.given_up, 0);
    assert_int_equal(family.outstanding, 0);
    cairn__group_end(&group);
}

static void post_that_kills_its_group_hides_no_work_of_another(void **state) {
    (void)state;
    struct cairn__family family = {0};
    float x = 1;
    cairn_work *work = NULL;
    cairn_group *dying = add_told(&family), *busy = add_told(&family), *waiting = add_told(&family);
    assert_int_equal(cairn_allreduce(busy, &x, 1, CAIRN_F32, CAIRN_SUM, &work), CAIRN_OK);
    told.post = CAIRN_EPEER;
    assert_int_equal(cairn_barrier(dying), CAIRN_EPEER);
    assert_int_equal(family.outstanding, 1);
    told.post = CAIRN_OK;
    assert_int_equal(cairn_barrier(waiting), CAIRN_OK);
    assert_int_equal(told.progressed, 1);
    assert_int_equal(cairn_work_wait(&work), CAIRN_OK);
    assert_int_equal(family.outstanding, 0);
    cairn__group_end(&dying);
    cairn__group_end(&busy);
    cairn__group_end(&waiting);
}

static void wait_that_fails_kills_the_group_whatever_the_reason(void **state) {
    (void)state;
    const cairn_status reasons[] = {CAIRN_EPEER, CAIRN_ETIMEOUT, CAIRN_ESYSTEM, CAIRN_ENOMEM, CAIRN_EDEVICE};
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        struct cairn__family family = {0};
        cairn_group *group = add_told(&family);
        told.wait = reasons[i];
        assert_int_equal(cairn_barrier(group), reasons[i]);
        told.wait = CAIRN_EINTERNAL;
        assert_int_equal(cairn_barrier(group), reasons[i]);
        assert_non_null(strstr(cairn_last_error(), "its first failure was: the backend says "));
        assert_non_null(strstr(cairn_last_error(), cairn_status_name(reasons[i])));
        cairn_group_abort(group);
        assert_int_equal(cairn__group_progress(group), reasons[i]);
        assert_int_equal(told.given_up, 1);
        assert_int_equal(told.progressed, 0);
        assert_int_equal(family.outstanding, 0);
        cairn__group_end(&group);
    }
}

static void group_that_fails_while_another_waits_dies_alone(void **state) {
    (void)state;
    struct cairn__family family = {0};
    float x = 1;
    cairn_work *work = NULL;
    cairn_group *first = add_told(&family), *second = add_told(&family);
    assert_int_equal(cairn_allreduce(second, &x, 1, CAIRN_F32, CAIRN_SUM, &work), CAIRN_OK);
    told.progress = CAIRN_ETIMEOUT;
    assert_int_equal(cairn_barrier(first), CAIRN_OK);
    assert_int_equal(cairn_barrier(first), CAIRN_OK);
    assert_int_equal(told.progressed, 1);
    assert_int_equal(cairn_work_wait(&work), CAIRN_ETIMEOUT);
    assert_null(work);
    assert_non_null(strstr(cairn_last_error(), "the backend says ETIMEOUT"));
    cairn__group_end(&second);
    assert_int_equal(cairn_barrier(first), CAIRN_OK);
    cairn__group_end(&first);
}

static void group_that_cannot_be_made_leaves_its_parent_unless_a_rank_is_lost(void **state) {
    (void)state;
    const struct {
        cairn_status status;
        bool deadly;
    } cases[] = {{CAIRN_ESYSTEM, false}, {CAIRN_ENOMEM, false}, {CAIRN_EPEER, true}, {CAIRN_ETIMEOUT, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn__family family = {0};
        cairn_group *parent = add_told(&family), *made = NULL;
        const uint64_t alive = cairn__alloc_counters().alive;
        told.derive = cases[i].status;
        assert_int_equal(cairn_group_new(parent, NULL, 0, NULL, &made), cases[i].status);
        assert_null(made);
        assert_non_null(strstr(cairn_last_error(), "the backend says "));
        assert_int_equal(cairn_group_split(parent, 0, 0, NULL, &made), cases[i].status);
        assert_int_equal(cairn__alloc_counters().alive, alive);
        assert_int_equal(cairn_barrier(parent), cases[i].deadly ? cases[i].status : CAIRN_OK);
        assert_int_equal(told.given_up, cases[i].deadly);
        cairn__group_end(&parent);
    }
}

static void *abort_it(void *group) {
    cairn_group_abort(group);
    return NULL;
}

static void group_does_not_end_under_a_thread_that_aborts_it(void **state) {
    (void)state;
    struct cairn__family family = {0};
    pthread_t thread;
    cairn_group *group = add_told(&family);
    atomic_store(&told.slow, true);
    assert_int_equal(pthread_create(&thread, NULL, abort_it, group), 0);
    while (!atomic_load(&told.giving_up)) rest();
    assert_int_equal(cairn_barrier(group), CAIRN_ESTATE);
    cairn__group_end(&group);
    pthread_join(thread, NULL);
    assert_int_equal(told.given_up, 1);
    assert_false(atomic_load(&told.given_up_after_end));
    assert_true(atomic_load(&told.ended));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_arguments_post_nothing_and_are_named),
        cmocka_unit_test(every_call_refuses_a_null_group),
        cmocka_unit_test(empty_arrays_may_be_null),
        cmocka_unit_test(every_collective_gives_a_rank_alone_its_own_array),
        cmocka_unit_test(groups_made_from_a_group_of_one_have_one_rank),
        cmocka_unit_test(every_call_is_described_by_what_must_be_equal),
        cmocka_unit_test(calls_agree_where_everything_but_the_memory_is_equal),
        cmocka_unit_test(abort_ends_waits_here_and_elsewhere),
        cmocka_unit_test(abort_without_a_wait_fails_the_next_call_everywhere),
        cmocka_unit_test(group_that_is_killed_fails_everywhere_with_its_cause),
        cmocka_unit_test(post_that_fails_leaves_the_group_as_it_was),
        cmocka_unit_test(post_that_kills_its_group_hides_no_work_of_another),
        cmocka_unit_test(wait_that_fails_kills_the_group_whatever_the_reason),
        cmocka_unit_test(group_that_fails_while_another_waits_dies_alone),
        cmocka_unit_test(group_does_not_end_under_a_thread_that_aborts_it),
        cmocka_unit_test(group_that_cannot_be_made_leaves_its_parent_unless_a_rank_is_lost),
    };
    return cmocka_run_group_tests_name("front", tests, NULL, NULL);
}
