/* The logic of nccl groups, over the fake library of fake_comm.h with ranks as threads. With CAIRN_TEST_SHORT in the
 * environment the suite runs on 1, 2 and 3 ranks, without it on 4 and 8 as well. */
#include "group_ranks.h"

#include <sched.h>
#include <stdatomic.h>

#include "collectives.h"
#include "fake_comm.h"

cairn_status __wrap_cairn__comm_find(const char *name, const struct cairn__comm_ops **out);

cairn_status __wrap_cairn__comm_find(const char *name, const struct cairn__comm_ops **out) {
    (void)name;
    *out = &fake_comm_ops;
    return CAIRN_OK;
}

/* ---- ranks ---- */

/* A device with another name than the CPU's, and the host's memory. */
static cairn_status open_device(struct cairn_device **out) {
    static struct cairn__device_ops ops;
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    cairn_status st = cairn__device_open("cpu", 0, out);
    if (st != CAIRN_OK) return st;
    pthread_mutex_lock(&once);
    if (!ops.name) {
        ops = *(*out)->ops;
        ops.name = "fake";
    }
    pthread_mutex_unlock(&once);
    (*out)->ops = &ops;
    return CAIRN_OK;
}

struct rank {
    pthread_t thread;
    int rank, size, port;
    double timeout;
    group_fn fn;
    void *ctx;
    cairn_status created;
    char *failure, sentence[1500];
};

static cairn_status join(struct rank *t, struct cairn_device *device, struct member *m) {
    cairn_status st = cairn_tcp_store_create("127.0.0.1", t->port, cairn_tcp_store_options(.timeout = 60), &m->store);
    if (st != CAIRN_OK) return st;
    struct cairn__group_create_options options = {.rank = t->rank,
                                                  .size = t->size,
                                                  .timeout = t->timeout,
                                                  .store = m->store,
                                                  .prefix = "test",
                                                  .backend = "nccl",
                                                  .device = device};
    return cairn__group_create(&options, &m->group);
}

static void *rank_main(void *argument) {
    struct rank *t = argument;
    struct member m = {NULL, NULL};
    struct cairn_device *device = NULL;
    t->created = open_device(&device);
    if (t->created == CAIRN_OK) t->created = join(t, device, &m);
    snprintf(t->sentence, sizeof(t->sentence), "%s", t->created == CAIRN_OK ? "" : cairn_last_error());
    if (t->created == CAIRN_OK && t->fn) t->failure = t->fn(m.group, t->ctx);
    (void)leave_group(&m);
    cairn__device_close(&device);
    return NULL;
}

/* p threads, whose statuses and sentences stay in ranks. */
static void run_ranks(const struct fake_comm_plan *plan, int p, double timeout, group_fn fn, void *ctx,
                      struct rank *ranks) {
    struct cairn__store_server *server = NULL;
    int port = 0;
    fake_comm_set(plan);
    assert_int_equal(cairn__store_serve(0, &server, &port), CAIRN_OK);
    for (int r = 0; r < p; r++) {
        ranks[r] = (struct rank){.rank = r, .size = p, .port = port, .timeout = timeout, .fn = fn, .ctx = ctx};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < p; r++) pthread_join(ranks[r].thread, NULL);
    cairn__store_stop(&server);
    assert_int_equal(fake_comm_count(), 0);
    assert_int_equal(fake_comm_blocks(), 0);
}

static void run(struct fake_comm_plan plan, int p, double timeout, group_fn fn, void *ctx) {
    struct rank ranks[MAX_RANKS];
    char failure[2048] = "";
    run_ranks(&plan, p, timeout, fn, ctx, ranks);
    for (int r = 0; r < p; r++) {
        const char *text = ranks[r].created == CAIRN_OK ? ranks[r].failure : ranks[r].sentence;
        if (text && !failure[0]) snprintf(failure, sizeof(failure), "%s", text);
        free(ranks[r].failure);
    }
    if (failure[0]) fail_msg("%s", failure);
}

/* ---- what every backend does ---- */

/* All cases but one: averages of halves over 3 ranks are rounded twice, which dist.h says. */
static char *hold_to_suite(cairn_group *group, void *ctx) {
    const bool exact = (cairn_group_size(group) & (cairn_group_size(group) - 1)) == 0;
    (void)ctx;
    EXPECT(strcmp(cairn_group_backend(group), "nccl") == 0);
    for (const struct collectives_case *c = collectives_cases; c->name; c++) {
        if (exact || strcmp(c->name, "reductions_go_in_rank_order") != 0) PASS(c->check(group, NULL));
    }
    return NULL;
}

static void suite_holds(void **state) {
    const int p = *(int *)*state;
    if (p > 3 && check_is_short()) {
        printf("skipped: CAIRN_TEST_SHORT is set\n");
        skip();
    }
    run((struct fake_comm_plan){.seed = (unsigned)p % 2}, p, 60, hold_to_suite, NULL);
    assert_int_equal(fake_comm_aborts(), 0);
}

static void rank_that_disagrees_is_named_if_any_rank_checks_calls(void **state) {
    (void)state;
    setenv("CAIRN_CHECK", "1", 1);
    for (struct collectives_mismatch *m = collectives_mismatches; m->name; m++) {
        if (strcmp(m->name, "message") != 0) run((struct fake_comm_plan){0}, 3, 60, collectives_check_mismatch, m);
    }
    unsetenv("CAIRN_CHECK");
}

static char *make_a_group_and_count_keys(cairn_group *group, void *ctx) {
    cairn_group *made = NULL;
    int64_t keys = -1;
    (void)ctx;
    EXPECT(cairn_group_new(group, NULL, 0, NULL, &made) == CAIRN_OK);
    EXPECT(cairn_barrier(group) == CAIRN_OK); /* each rank deletes its own */
    EXPECT(cairn_store_num_keys(group->family->store, &keys) == CAIRN_OK);
    cairn_group_destroy(&made);
    EXPECT(keys == 1); /* the store's own, which counts its clients */
    return NULL;
}

static void groups_leave_no_key_in_the_store(void **state) {
    (void)state;
    run((struct fake_comm_plan){0}, 3, 60, make_a_group_and_count_keys, NULL);
}

/* ---- averages of halves ---- */

static char *average_halves(cairn_group *group, void *ctx) {
    const int p = cairn_group_size(group);
    uint16_t x[3] = {0x78e2, 0x3c00, 0x7bff}; /* 40000, 1 and 65504 in f16 */
    (void)ctx;
    EXPECT_OK(cairn_allreduce(group, x, 3, CAIRN_F16, CAIRN_AVG, NULL));
    EXPECT(x[0] == 0x78e2 && x[1] == 0x3c00);
    EXPECT(x[2] == 0x7bff || ((p & (p - 1)) != 0 && x[2] == 0x7bfe)); /* two roundings */
    uint16_t y[8] = {0}, mine = 0;
    for (int i = 0; i < p; i++) y[i] = 0x4780; /* 65536 in bf16 */
    EXPECT_OK(cairn_reduce_scatter(group, &mine, y, 1, CAIRN_BF16, CAIRN_AVG, NULL));
    EXPECT(mine == 0x4780);
    return NULL;
}

static void halves_are_averaged_without_overflow(void **state) {
    (void)state;
    for (int p = 1; p <= 8; p++) run((struct fake_comm_plan){0}, p, 60, average_halves, NULL);
}

/* ---- waiting ---- */

static char *send_to_each_other(cairn_group *group, void *ctx) {
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    int32_t mine = rank, theirs = -1;
    cairn_work *works[2] = {NULL, NULL};
    (void)ctx;
    EXPECT_OK(cairn_send(group, &mine, 1, CAIRN_I32, (rank + 1) % p, &works[0]));
    EXPECT_OK(cairn_recv(group, &theirs, 1, CAIRN_I32, (rank + p - 1) % p, &works[1]));
    EXPECT_OK(cairn_work_wait(&works[0]));
    EXPECT_OK(cairn_work_wait(&works[1]));
    EXPECT(theirs == (rank + p - 1) % p);
    return NULL;
}

static void messages_of_a_batch_are_launched_as_one(void **state) {
    (void)state;
    run((struct fake_comm_plan){0}, 3, 60, send_to_each_other, NULL);
    assert_int_equal(fake_comm_groups(), 3);
}

static char *post_many(cairn_group *group, void *ctx) {
    enum { MANY = 1000 };
    static _Thread_local int32_t x[MANY];
    static _Thread_local cairn_work *works[MANY];
    (void)ctx;
    for (int i = 0; i < MANY; i++) {
        x[i] = i;
        EXPECT_OK(cairn_allreduce(group, &x[i], 1, CAIRN_I32, CAIRN_SUM, &works[i]));
    }
    for (int i = MANY - 1; i >= 0; i--) EXPECT_OK(cairn_work_wait(&works[i]));
    for (int i = 0; i < MANY; i++) EXPECT(x[i] == i * cairn_group_size(group));
    return NULL;
}

static void more_works_than_marks_wait_for_the_oldest(void **state) {
    (void)state;
    for (unsigned seed = 0; seed < 2; seed++) run((struct fake_comm_plan){.seed = seed}, 2, 60, post_many, NULL);
}

static char *poll_until_done(cairn_group *group, void *ctx) {
    float x = 3;
    int done = 0;
    cairn_work *work = NULL;
    (void)ctx;
    EXPECT_OK(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_AVG, &work));
    while (!done) EXPECT_OK(cairn_work_test(work, &done));
    EXPECT(x == 3);
    return cairn_work_wait(&work) == CAIRN_OK && !work ? NULL : FAILURE("wait");
}

static void works_that_are_polled_complete(void **state) {
    (void)state;
    run((struct fake_comm_plan){.seed = 5}, 3, 60, poll_until_done, NULL);
}

static char *exchange_words(cairn_group *group, void *ctx) {
    const int p = cairn_group_size(group);
    int32_t all[MAX_RANKS][300], mine[300];
    (void)ctx;
    for (size_t n = 0; n <= 300; n += 100) {
        for (size_t i = 0; i < n; i++) mine[i] = cairn_group_rank(group) * 1000 + (int32_t)i;
        EXPECT_OK(cairn__group_exchange(group, all, mine, n * sizeof(mine[0])));
        const int32_t *words = &all[0][0];
        for (size_t i = 0; i < n * (size_t)p; i++) EXPECT(words[i] == (int32_t)(i / n * 1000 + i % n));
    }
    return NULL;
}

static void host_data_is_exchanged(void **state) {
    (void)state;
    for (int p = 1; p <= 4; p++) run((struct fake_comm_plan){0}, p, 60, exchange_words, NULL);
}

/* ---- what goes wrong ---- */

static void expect_refusal(struct fake_comm_plan plan, double timeout, cairn_status here, const char *words_here,
                           cairn_status there, const char *words_there) {
    struct rank ranks[3];
    run_ranks(&plan, 3, timeout, NULL, NULL, ranks);
    for (int r = 0; r < 3; r++) {
        const bool mine = plan.rank < 0 || r == plan.rank;
        if (ranks[r].created != (mine ? here : there) || !strstr(ranks[r].sentence, mine ? words_here : words_there))
            fail_msg("rank %d: %d %s", r, (int)ranks[r].created, ranks[r].sentence);
    }
}

static void ranks_on_one_gpu_are_named(void **state) {
    (void)state;
    expect_refusal((struct fake_comm_plan){.fault = FAKE_COMM_SAME_PLACE, .rank = -1}, 60, CAIRN_EINVAL,
                   "ranks 0 and 1 compute on one GPU, 0000:01:00.0 of ", CAIRN_OK, "");
}

static void all_ranks_fail_if_rank_0_makes_no_id(void **state) {
    (void)state;
    expect_refusal((struct fake_comm_plan){.fault = FAKE_COMM_NO_ID}, 60, CAIRN_ESYSTEM, "the fake library has no id",
                   CAIRN_EPEER, "rank 0 of the group failed: the fake library has no id");
}

static void connection_that_fails_is_an_error_and_others_time_out(void **state) {
    (void)state;
    expect_refusal((struct fake_comm_plan){.fault = FAKE_COMM_INIT_FAILS, .rank = 1}, 0.5, CAIRN_EDEVICE,
                   "the fake library cannot connect", CAIRN_ETIMEOUT, "waited 0.5 s for all ranks to connect");
}

static void connection_that_hangs_times_out(void **state) {
    (void)state;
    expect_refusal((struct fake_comm_plan){.fault = FAKE_COMM_INIT_HANGS, .rank = 2}, 0.5, CAIRN_ETIMEOUT,
                   "rank 2 waited 0.5 s for all ranks to connect", CAIRN_ETIMEOUT, "s for all ranks to connect");
}

/* Rank 2's collective fails; the others wait for it in vain. Operation 1 is the greeting. */
struct failure {
    cairn_status here, there;
    const char *words_here, *words_there;
};

static char *fail_in_collective(cairn_group *group, void *ctx) {
    const struct failure *f = ctx;
    const bool here = cairn_group_rank(group) == 2;
    float x[5] = {1};
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < 10 && st == CAIRN_OK; i++) st = cairn_allreduce(group, x, 5, CAIRN_F32, CAIRN_SUM, NULL);
    EXPECT(st == (here ? f->here : f->there));
    EXPECT(strstr(cairn_last_error(), here ? f->words_here : f->words_there));
    EXPECT(cairn_barrier(group) == st);
    return NULL;
}

static void collective_that_hangs_times_out_with_the_notes_of_all(void **state) {
    (void)state;
    const char *words = "s in all-reduce number 3 of 5 f32 to sum, and nothing moved; raise CAIRN_TIMEOUT";
    struct failure f = {CAIRN_ETIMEOUT, CAIRN_ETIMEOUT, words, words};
    run((struct fake_comm_plan){.fault = FAKE_COMM_HANGS, .rank = 2, .operation = 4}, 3, 0.5, fail_in_collective, &f);
    assert_int_equal(fake_comm_aborts(), 3);
}

static void failure_while_it_runs_becomes_a_status(void **state) {
    (void)state;
    struct failure f = {CAIRN_EPEER, CAIRN_ETIMEOUT, "the fake library has lost its way",
                        "first failure, on rank 2: the fake library has lost its way"};
    run((struct fake_comm_plan){.fault = FAKE_COMM_ASYNC_FAILS, .rank = 2, .operation = 4}, 3, 0.8, fail_in_collective,
        &f);
    assert_int_equal(fake_comm_aborts(), 3);
}

static void launch_that_fails_becomes_a_status(void **state) {
    (void)state;
    struct failure f = {CAIRN_EPEER, CAIRN_ETIMEOUT, "the fake library cannot launch",
                        "first failure, on rank 2: the fake library cannot launch"};
    run((struct fake_comm_plan){.fault = FAKE_COMM_CALL_FAILS, .rank = 2, .operation = 4}, 3, 0.8, fail_in_collective,
        &f);
    assert_int_equal(fake_comm_aborts(), 3);
}

/* Rank 0 neither waits nor polls, and its communicator is aborted all the same. */
static char *look_elsewhere(cairn_group *group, void *ctx) {
    float x = 1;
    cairn_work *work = NULL;
    (void)ctx;
    EXPECT_OK(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, &work));
    while (fake_comm_aborts() < cairn_group_size(group)) sched_yield();
    EXPECT(cairn__group_progress(group) == CAIRN_ETIMEOUT);
    return NULL;
}

static void rank_that_neither_waits_nor_polls_is_aborted_too(void **state) {
    (void)state;
    run((struct fake_comm_plan){.fault = FAKE_COMM_HANGS, .rank = 1, .operation = 2}, 2, 0.5, look_elsewhere, NULL);
}

static void *abort_group(void *group) {
    cairn_group_abort(group);
    return NULL;
}

static char *abort_from_elsewhere(cairn_group *group, void *ctx) {
    float x = 1;
    pthread_t thread;
    cairn_work *work = NULL;
    (void)ctx;
    EXPECT_OK(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, &work));
    EXPECT(pthread_create(&thread, NULL, abort_group, group) == 0);
    const cairn_status st = cairn_work_wait(&work);
    pthread_join(thread, NULL);
    EXPECT(st == CAIRN_ESTATE && strstr(cairn_last_error(), "aborted by cairn_group_abort"));
    return NULL;
}

static void abort_ends_a_wait_in_another_thread(void **state) {
    (void)state;
    run((struct fake_comm_plan){.fault = FAKE_COMM_HANGS, .rank = 1, .operation = 2}, 2, 60, abort_from_elsewhere,
        NULL);
}

/* ---- an abort takes time, and so may calls ---- */

static atomic_int failed_ranks;

/* The last rank lets the aborts return. */
static char *fail_twice(cairn_group *group, void *ctx) {
    float x = 1;
    (void)ctx;
    EXPECT(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_ETIMEOUT);
    EXPECT(strstr(cairn_last_error(), "and nothing moved"));
    EXPECT(cairn_barrier(group) == CAIRN_ETIMEOUT);
    cairn_group_abort(group);
    if (atomic_fetch_add(&failed_ranks, 1) + 1 == cairn_group_size(group)) fake_comm_keep_graphs(false);
    return NULL;
}

static void abort_that_does_not_return_holds_up_no_other_call(void **state) {
    (void)state;
    atomic_store(&failed_ranks, 0);
    fake_comm_keep_graphs(true);
    run((struct fake_comm_plan){.fault = FAKE_COMM_HANGS, .rank = 1, .operation = 2}, 2, 0.5, fail_twice, NULL);
    assert_int_equal(fake_comm_aborts(), 2);
}

static char *post_into_full_queue(cairn_group *group, void *ctx) {
    float x = 1, y = 1;
    cairn_work *works[2] = {NULL, NULL};
    (void)ctx;
    EXPECT_OK(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, &works[0]));
    cairn_status st = cairn_allreduce(group, &y, 1, CAIRN_F32, CAIRN_SUM, &works[1]);
    for (int i = 0; i < 2; i++) {
        const cairn_status waited = cairn_work_wait(&works[i]);
        if (st == CAIRN_OK) st = waited;
    }
    EXPECT(st == CAIRN_ETIMEOUT && strstr(cairn_last_error(), "s in all-reduce number 1 of 1 f32 to sum, and nothing"));
    return NULL;
}

static void call_blocked_by_a_full_queue_ends_by_the_timeout(void **state) {
    (void)state;
    run((struct fake_comm_plan){.fault = FAKE_COMM_FILLS_QUEUE, .rank = 1, .operation = 2}, 2, 0.5,
        post_into_full_queue, NULL);
    assert_int_equal(fake_comm_aborts(), 2);
}

/* Nothing of the group is under way, as where replays wait for a rank that has died. Rank 1 alone calls. */
static char *post_behind_other_work(cairn_group *group, void *ctx) {
    const struct failure *f = ctx;
    float x = 1;
    if (cairn_group_rank(group) == 0) return NULL;
    fake_comm_fill_queue();
    EXPECT(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, NULL) == f->here);
    EXPECT(strstr(cairn_last_error(), f->words_here));
    return NULL;
}

static void call_blocked_by_earlier_work_ends_by_the_timeout(void **state) {
    (void)state;
    struct failure f = {.here = CAIRN_ETIMEOUT,
                        .words_here = "rank 1 waited 0.5 s in all-reduce number 1 of 1 f32 to sum, and nothing moved"};
    run((struct fake_comm_plan){.fault = FAKE_COMM_QUEUE_FULL, .rank = 1}, 2, 0.5, post_behind_other_work, &f);
}

static void call_blocked_by_earlier_work_ends_by_a_failure(void **state) {
    (void)state;
    struct failure f = {.here = CAIRN_EPEER, .words_here = "the fake library has lost its way"};
    run((struct fake_comm_plan){.fault = FAKE_COMM_QUEUE_FULL, .rank = 1, .tells = true}, 2, 600,
        post_behind_other_work, &f);
}

/* Long before the timeout. */
static char *learn_in_full_queue(cairn_group *group, void *ctx) {
    float x = 1, y = 1;
    cairn_work *works[2] = {NULL, NULL};
    (void)ctx;
    if (cairn_group_rank(group) == 0) return NULL;
    EXPECT_OK(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, &works[0]));
    EXPECT(cairn_allreduce(group, &y, 1, CAIRN_F32, CAIRN_SUM, &works[1]) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "the fake library has lost its way"));
    EXPECT(cairn_work_wait(&works[0]) == CAIRN_EPEER);
    return NULL;
}

static void call_blocked_by_a_full_queue_ends_by_a_failure(void **state) {
    (void)state;
    run((struct fake_comm_plan){.fault = FAKE_COMM_FILLS_QUEUE, .rank = 1, .operation = 2, .tells = true}, 2, 600,
        learn_in_full_queue, NULL);
}

/* Its device waits, perhaps for a rank that waits until this one has left. */
static char *leave_a_full_queue(cairn_group *group, void *ctx) {
    void *p = NULL;
    (void)ctx;
    EXPECT_OK(cairn_group_alloc(group, 1000, &p));
    EXPECT_OK(cairn_barrier(group));
    if (cairn_group_rank(group) == 1) fake_comm_fill_queue(); /* its own, and so after its barrier */
    return NULL;
}

static void group_with_memory_leaves_a_device_that_does_not_move(void **state) {
    static const enum fake_comm_fault faults[] = {FAKE_COMM_QUEUE_FULL, FAKE_COMM_NO_MARKS};
    (void)state;
    for (int i = 0; i < 2; i++) {
        run((struct fake_comm_plan){.fault = faults[i], .rank = 1}, 2, 600, leave_a_full_queue, NULL);
        assert_int_equal(fake_comm_aborts(), 1);
    }
}

static void *abort_standing_group(void *group) {
    while (fake_comm_stands() == 0) sched_yield();
    return abort_group(group);
}

static char *abort_a_free(cairn_group *group, void *ctx) {
    pthread_t thread;
    void *p = NULL;
    float x = 1;
    (void)ctx;
    EXPECT_OK(cairn_group_alloc(group, 1000, &p));
    if (cairn_group_rank(group) == 0) return cairn_group_free(group, &p) == CAIRN_OK ? NULL : FAILURE("free");
    EXPECT(pthread_create(&thread, NULL, abort_standing_group, group) == 0);
    EXPECT_OK(cairn_group_free(group, &p));
    pthread_join(thread, NULL);
    EXPECT(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, NULL) == CAIRN_ESTATE);
    return NULL;
}

static void abort_ends_a_free_that_waits_for_the_device(void **state) {
    (void)state;
    run((struct fake_comm_plan){.fault = FAKE_COMM_FREE_STANDS, .rank = 1}, 2, 60, abort_a_free, NULL);
}

/* ---- memory and graphs ---- */

static char *alloc_in_vain(cairn_group *group, void *ctx) {
    void *p = NULL;
    float x = 1;
    (void)ctx;
    EXPECT(cairn_group_alloc(group, 1000, &p) == CAIRN_ENOMEM && !p);
    EXPECT(strstr(cairn_last_error(), cairn_group_rank(group) == 1 ? "the fake library has no"
                                                                   : "another rank could not allocate 1000 bytes"));
    EXPECT_OK(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, NULL));
    EXPECT(x == 2);
    return NULL;
}

static void memory_that_one_rank_lacks_is_made_nowhere(void **state) {
    (void)state;
    run((struct fake_comm_plan){.fault = FAKE_COMM_NO_MEMORY, .rank = 1}, 2, 60, alloc_in_vain, NULL);
}

static char *record(cairn_group *group, void *ctx) {
    float x = 1, y = 1;
    void *p = NULL;
    cairn_work *works[2] = {NULL, NULL};
    (void)ctx;
    group->device->capturing = true;
    EXPECT_OK(cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, &works[0]));
    EXPECT_OK(cairn_allreduce(group, &y, 1, CAIRN_F32, CAIRN_SUM, &works[1]));
    EXPECT_OK(cairn__group_progress(group));
    for (int i = 0; i < 2; i++) EXPECT_OK(cairn_work_wait(&works[i]));
    EXPECT(x == 2 && y == 2);
    EXPECT(cairn_barrier(group) == CAIRN_ESTATE && cairn_group_alloc(group, 8, &p) == CAIRN_ESTATE);
    EXPECT(strstr(cairn_last_error(), "a graph is being recorded on fake"));
    group->device->capturing = false;
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void graphs_record_collectives_and_refuse_what_waits(void **state) {
    (void)state;
    run((struct fake_comm_plan){.seed = 1}, 2, 60, record, NULL);
}

int main(void) {
    static int ranks[] = {1, 2, 3, 4, 8};
    const struct CMUnitTest tests[] = {
        {"suite_holds_on_1_rank", suite_holds, NULL, NULL, &ranks[0]},
        {"suite_holds_on_2_ranks", suite_holds, NULL, NULL, &ranks[1]},
        {"suite_holds_on_3_ranks", suite_holds, NULL, NULL, &ranks[2]},
        {"suite_holds_on_4_ranks", suite_holds, NULL, NULL, &ranks[3]},
        {"suite_holds_on_8_ranks", suite_holds, NULL, NULL, &ranks[4]},
        cmocka_unit_test(rank_that_disagrees_is_named_if_any_rank_checks_calls),
        cmocka_unit_test(groups_leave_no_key_in_the_store),
        cmocka_unit_test(halves_are_averaged_without_overflow),
        cmocka_unit_test(messages_of_a_batch_are_launched_as_one),
        cmocka_unit_test(more_works_than_marks_wait_for_the_oldest),
        cmocka_unit_test(works_that_are_polled_complete),
        cmocka_unit_test(host_data_is_exchanged),
        cmocka_unit_test(ranks_on_one_gpu_are_named),
        cmocka_unit_test(all_ranks_fail_if_rank_0_makes_no_id),
        cmocka_unit_test(connection_that_fails_is_an_error_and_others_time_out),
        cmocka_unit_test(connection_that_hangs_times_out),
        cmocka_unit_test(collective_that_hangs_times_out_with_the_notes_of_all),
        cmocka_unit_test(failure_while_it_runs_becomes_a_status),
        cmocka_unit_test(launch_that_fails_becomes_a_status),
        cmocka_unit_test(rank_that_neither_waits_nor_polls_is_aborted_too),
        cmocka_unit_test(abort_ends_a_wait_in_another_thread),
        cmocka_unit_test(abort_that_does_not_return_holds_up_no_other_call),
        cmocka_unit_test(call_blocked_by_a_full_queue_ends_by_the_timeout),
        cmocka_unit_test(call_blocked_by_a_full_queue_ends_by_a_failure),
        cmocka_unit_test(call_blocked_by_earlier_work_ends_by_the_timeout),
        cmocka_unit_test(call_blocked_by_earlier_work_ends_by_a_failure),
        cmocka_unit_test(group_with_memory_leaves_a_device_that_does_not_move),
        cmocka_unit_test(abort_ends_a_free_that_waits_for_the_device),
        cmocka_unit_test(memory_that_one_rank_lacks_is_made_nowhere),
        cmocka_unit_test(graphs_record_collectives_and_refuse_what_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
