/* Ranks that wait for each other in different groups of a family fail at once if neither can progress, and never fail
 * if they can. */
#include "group_ranks.h"

#include <unistd.h>

#include "comm/group.h"

static const char *backend = "shm";

/* Longer than a rank waits before it looks at what others wait in. */
static void be_late(void) {
    usleep(strcmp(backend, "shm") == 0 ? 100000 : 800000);
}

/* With a timeout that is longer than any test may take. */
static void run(int p, group_fn fn, void *ctx) {
    const uint64_t begin = cairn__now_ns();
    run_group_of(backend, p, 100, fn, ctx);
    if (cairn__now_ns() - begin > UINT64_C(60000000000)) fail_msg("it took longer than a minute");
}

/* ---- ranks that end early ---- */

/* What ddp_destroy does, on rank 1, while the others add up their losses, say. */
static char *rank_1_ends_early(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *channel = NULL;
    void *memory = NULL;
    float loss = 1;
    cairn_status st;
    const int rank = cairn_group_rank(group);
    EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &channel));
    EXPECT_OK(cairn_group_alloc(channel, 4096, &memory));
    for (int step = 0; step < 3; step++) EXPECT_OK(cairn_allreduce(group, &loss, 1, CAIRN_F32, CAIRN_SUM, NULL));
    if (rank == 1) {
        st = cairn_group_free(channel, &memory);
    } else {
        if (rank == 2) be_late();
        st = cairn_allreduce(group, &loss, 1, CAIRN_F32, CAIRN_SUM, NULL);
    }
    EXPECT(st == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "in all-reduce number"));
    EXPECT(strstr(cairn_last_error(), "of 1 f32 to sum of the environment's group"));
    EXPECT(strstr(cairn_last_error(), "cairn_group_free (or ddp_destroy) number"));
    EXPECT(strstr(cairn_last_error(), "neither can go on; rank 1 ended early: every rank must take the same number"));
    EXPECT(cairn_barrier(group) == CAIRN_EPEER && strstr(cairn_last_error(), "rank 1 ended early"));
    cairn_group_destroy(&channel);
    return NULL;
}

static void rank_that_ends_early_ends_all_with_its_name(void **state) {
    (void)state;
    for (int p = 2; p <= 4; p++) run(p, rank_1_ends_early, NULL);
}

static char *wait_in_opposite_orders(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *other = NULL;
    const int rank = cairn_group_rank(group);
    EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &other));
    EXPECT(cairn_barrier(rank ? group : other) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "every rank must wait for its calls of all groups in the same order"));
    EXPECT(strstr(cairn_last_error(), rank ? "" : "rank 0 waits in barrier number 1 of group 1"));
    EXPECT(cairn_barrier(group) == CAIRN_EPEER && cairn_barrier(other) == CAIRN_EPEER);
    cairn_group_destroy(&other);
    return NULL;
}

static void opposite_orders_of_two_groups_end_both(void **state) {
    (void)state;
    run(2, wait_in_opposite_orders, NULL);
    run(3, wait_in_opposite_orders, NULL);
}

/* ---- messages ---- */

static char *both_receive(cairn_group *group, void *ctx) {
    (void)ctx;
    float x;
    const int other = 1 - cairn_group_rank(group);
    for (int i = 0; i < 40; i++) { /* more than a pair has slots */
        cairn_work *sent = NULL;
        EXPECT_OK(cairn_send(group, &(float){1}, 1, CAIRN_F32, other, &sent));
        EXPECT_OK(cairn_recv(group, &x, 1, CAIRN_F32, other, NULL));
        EXPECT_OK(cairn_work_wait(&sent));
    }
    EXPECT(cairn_recv(group, &x, 1, CAIRN_F32, other, NULL) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "rank 0 waits in receive number 41 of 1 f32 from rank 1 of the environment's "
                                      "group, rank 1 in receive number 41 of 1 f32 from rank 0"));
    return NULL;
}

static char *receive_from_who_is_in_a_barrier(cairn_group *group, void *ctx) {
    (void)ctx;
    float x;
    const int rank = cairn_group_rank(group);
    const cairn_status st = rank ? cairn_barrier(group) : cairn_recv(group, &x, 1, CAIRN_F32, 1, NULL);
    EXPECT(st == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "rank 0 waits in receive number 1 of 1 f32 from rank 1 of the environment's "
                                      "group, rank 1 in barrier number"));
    return NULL;
}

static void messages_that_wait_for_each_other_end_both(void **state) {
    (void)state;
    if (strcmp(backend, "shm") != 0) return; /* others do not detect this */
    run(2, both_receive, NULL);
    run(2, receive_from_who_is_in_a_barrier, NULL);
}

/* ---- what is no deadlock ---- */

/* Every rank waits first for what others have posted and not waited for, long enough to be looked at. */
static char *wait_for_what_was_posted(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { GROUPS = 3, EACH = 80 /* more than shm keeps under way */ };
    cairn_group *groups[GROUPS] = {group, NULL, NULL};
    static _Thread_local cairn_work *works[GROUPS][EACH];
    static _Thread_local int32_t x[GROUPS][EACH];
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    for (int g = 1; g < GROUPS; g++) EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &groups[g]));
    for (int late = 0; late < p; late++) {
        if (rank == late) be_late();
        for (int k = 0; k < GROUPS; k++) {
            const int g = (k + rank) % GROUPS;
            if (k == 1 && rank == (late + 1) % p) be_late();
            for (int w = 0; w < EACH; w++) {
                x[g][w] = 1;
                EXPECT_OK(cairn_allreduce(groups[g], &x[g][w], 1, CAIRN_I32, CAIRN_SUM, &works[g][w]));
            }
        }
        for (int k = 0; k < GROUPS; k++) {
            const int g = (k + 2 * rank) % GROUPS;
            if (k == 2 && rank == (late + 2) % p) be_late();
            for (int w = EACH - 1; w >= 0; w--) EXPECT_OK(cairn_work_wait(&works[g][w]));
            for (int w = 0; w < EACH; w++) EXPECT(x[g][w] == p);
        }
    }
    for (int g = 1; g < GROUPS; g++) cairn_group_destroy(&groups[g]);
    return NULL;
}

/* Rank 1 has called what rank 0 waits in, and waits in another group until rank 2 has come. */
static char *wait_for_a_third(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *other = NULL;
    cairn_work *work = NULL;
    int32_t x = 1;
    const int rank = cairn_group_rank(group);
    EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &other));
    if (rank == 2) be_late();
    if (rank != 0) EXPECT_OK(cairn_allreduce(other, &x, 1, CAIRN_I32, CAIRN_SUM, &work));
    if (rank == 0) EXPECT_OK(cairn_allreduce(other, &x, 1, CAIRN_I32, CAIRN_SUM, NULL));
    EXPECT_OK(cairn_barrier(group));
    EXPECT_OK(cairn_work_wait(&work));
    EXPECT(x == 3);
    cairn_group_destroy(&other);
    return NULL;
}

/* The parent of a group that died of its timeout lives on. */
static char *outlive_a_timeout(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *other = NULL;
    EXPECT_OK(cairn_group_new(group, NULL, 0, cairn_group_options(.timeout = 2), &other));
    if (cairn_group_rank(group) == 0) EXPECT(cairn_barrier(other) == CAIRN_ETIMEOUT);
    EXPECT_OK(cairn_barrier(group));
    cairn_group_destroy(&other);
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void ranks_that_are_late_or_out_of_order_are_waited_for(void **state) {
    (void)state;
    for (int p = 2; p <= (strcmp(backend, "shm") == 0 ? 4 : 2); p++) run(p, wait_for_what_was_posted, NULL);
    run(3, wait_for_a_third, NULL);
    run(2, outlive_a_timeout, NULL);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_that_ends_early_ends_all_with_its_name),
        cmocka_unit_test(opposite_orders_of_two_groups_end_both),
        cmocka_unit_test(messages_that_wait_for_each_other_end_both),
        cmocka_unit_test(ranks_that_are_late_or_out_of_order_are_waited_for),
    };
    if (argc > 1) backend = argv[1];
    return cmocka_run_group_tests_name("deadlock", tests, NULL, NULL);
}
