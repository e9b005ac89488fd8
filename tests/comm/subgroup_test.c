/* Subgroups, with ranks as threads on shm: members, results, creation that fails equally on every rank, and waiting in
 * several groups at once. */
#include "group_ranks.h"
#include "../failing_alloc.h"

#include <math.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>

#include "core/alloc.h"

/* Every member's number in the environment, added up over the group: what tells that the right ranks met. */
static char *expect_members(cairn_group *group, const int *env_ranks, int n, int rank) {
    int32_t sum = 0, mine = env_ranks[rank];
    EXPECT(cairn_group_size(group) == n && cairn_group_rank(group) == rank);
    int32_t all[MAX_RANKS] = {0};
    EXPECT_OK(cairn_allgather(group, all, &mine, 1, CAIRN_I32, NULL));
    for (int i = 0; i < n; i++) {
        EXPECT(cairn_group_env_rank(group, i) == env_ranks[i]);
        EXPECT(all[i] == env_ranks[i]);
        sum += env_ranks[i];
    }
    EXPECT(cairn_group_env_rank(group, -1) == -1 && cairn_group_env_rank(group, n) == -1);
    EXPECT_OK(cairn_allreduce(group, &mine, 1, CAIRN_I32, CAIRN_SUM, NULL));
    EXPECT(mine == sum);
    return NULL;
}

static int index_of(int rank, const int *ranks, int n) {
    for (int i = 0; i < n; i++) {
        if (ranks[i] == rank) return i;
    }
    return -1;
}

/* ---- cairn_group_new ---- */

static char *make_one(cairn_group *group, const int *ranks, int n) {
    const int at = index_of(cairn_group_rank(group), ranks, n);
    cairn_group *made = group;
    EXPECT_OK(cairn_group_new(group, ranks, n, NULL, &made));
    if (at < 0) {
        EXPECT(made == NULL);
        return NULL;
    }
    EXPECT(made && strcmp(cairn_group_backend(made), cairn_group_backend(group)) == 0);
    PASS(expect_members(made, ranks, n, at));
    cairn_group_destroy(&made);
    EXPECT(made == NULL);
    return NULL;
}

static char *make_several(cairn_group *group, void *ctx) {
    (void)ctx;
    const int p = cairn_group_size(group);
    int reversed[MAX_RANKS];
    for (int r = 0; r < p; r++) reversed[r] = p - 1 - r;
    for (int n = 1; n <= p; n++) {
        PASS(make_one(group, reversed, n));
        PASS(make_one(group, &reversed[p - n], n));
    }
    return expect_members(group, (int[]){0, 1, 2, 3, 4, 5, 6, 7}, p, cairn_group_rank(group));
}

static void new_groups_have_the_ranks_named_in_their_order(void **state) {
    (void)state;
    for (int p = 1; p <= 5; p++) run_group(p, make_several, NULL);
}

static char *make_of_all(cairn_group *group, void *ctx) {
    (void)ctx;
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    const int all_ranks[] = {0, 1, 2, 3, 4, 5, 6, 7};
    cairn_group *channels[6] = {NULL};
    for (int i = 0; i < 6; i++) EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &channels[i]));
    for (int i = 5; i >= 0; i--) PASS(expect_members(channels[i], all_ranks, p, rank));
    for (int i = 0; i < 6; i++) cairn_group_destroy(&channels[(i * 5) % 6]);
    return NULL;
}

static void no_list_makes_another_channel_between_all_ranks(void **state) {
    (void)state;
    for (int p = 1; p <= 4; p++) run_group(p, make_of_all, NULL);
}

/* {3, 2, 1, 0} of the environment, {2, 3, 0} of that, {1, 0} of that: numbers in the environment go through. */
static char *make_nested(cairn_group *group, void *ctx) {
    (void)ctx;
    const int rank = cairn_group_rank(group);
    const int first[] = {3, 2, 1, 0}, second[] = {1, 0, 3}, third[] = {0, 1};
    cairn_group *a = NULL, *b = NULL, *c = NULL;
    EXPECT_OK(cairn_group_new(group, first, 4, NULL, &a));
    PASS(expect_members(a, first, 4, 3 - rank));
    EXPECT_OK(cairn_group_new(a, (int[]){2, 3, 0}, 3, NULL, &b));
    EXPECT((b == NULL) == (rank == 2));
    if (!b) goto out;
    PASS(expect_members(b, second, 3, index_of(rank, second, 3)));
    EXPECT_OK(cairn_group_new(b, (int[]){1, 0}, 2, NULL, &c));
    EXPECT((c == NULL) == (rank == 3));
    cairn_group_destroy(&b); /* ends on its own: c does not need it */
    if (c) PASS(expect_members(c, third, 2, rank));
out:
    cairn_group_destroy(&a);
    cairn_group_destroy(&c);
    return NULL;
}

static void groups_of_groups_of_groups_know_their_ranks_in_the_environment(void **state) {
    (void)state;
    run_group(4, make_nested, NULL);
}

/* ---- cairn_group_split ---- */

static char *split(cairn_group *group, void *ctx) {
    (void)ctx;
    const int rank = cairn_group_rank(group);
    cairn_group *half = NULL, *turned = NULL, *tied = NULL, *some = group;
    const int odd[] = {1, 3, 5}, even[] = {0, 2, 4}, backwards[] = {5, 4, 3, 2, 1, 0}, all[] = {0, 1, 2, 3, 4, 5};
    EXPECT_OK(cairn_group_split(group, rank % 2 ? 1 << 30 : 0, 0, NULL, &half));
    PASS(expect_members(half, rank % 2 ? odd : even, 3, rank / 2));
    EXPECT_OK(cairn_group_split(group, 5, -rank, NULL, &turned));
    PASS(expect_members(turned, backwards, 6, 5 - rank));
    EXPECT_OK(cairn_group_split(turned, 0, rank / 6, NULL, &tied)); /* equal keys: by rank in the parent */
    PASS(expect_members(tied, backwards, 6, 5 - rank));
    EXPECT_OK(cairn_group_split(group, rank < 2 ? -1 - rank : 3, INT32_MAX - rank, NULL, &some));
    EXPECT((some == NULL) == (rank < 2));
    if (some) PASS(expect_members(some, (int[]){5, 4, 3, 2}, 4, 5 - rank));
    PASS(expect_members(group, all, 6, rank));
    cairn_group_destroy(&half);
    cairn_group_destroy(&turned);
    cairn_group_destroy(&tied);
    cairn_group_destroy(&some);
    return NULL;
}

static void split_groups_by_color_and_orders_them_by_key(void **state) {
    (void)state;
    run_group(6, split, NULL);
}

/* ---- failures ---- */

static char *refuse_on_every_rank(cairn_group *group, void *ctx) {
    (void)ctx;
    const struct {
        const int *ranks;
        int n;
        const char *sentence;
    } bad[] = {
        {(const int[]){0, 0}, 2, "cairn_group_new: rank 0 is named twice, the second time at ranks[1]"},
        {(const int[]){0, 3}, 2, "ranks[1] is 3, which is not in a group of 3; its ranks are 0 to 2"},
        {(const int[]){-1}, 1, "ranks[0] is -1"},
        {(const int[]){0}, 0, "a group of 0 ranks; give at least one, or NULL and 0 for all ranks"},
        {(const int[]){0}, -1, "a group of -1 ranks"},
        {NULL, 2, "ranks is NULL, and n is 2; give NULL and 0 for all ranks"},
        {(const int[]){0, 1, 2, 0}, 4, "4 ranks of a group that has 3"},
    };
    cairn_group *made = NULL;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        EXPECT(cairn_group_new(group, bad[i].ranks, bad[i].n, NULL, &made) == CAIRN_EINVAL && made == NULL);
        EXPECT(strstr(cairn_last_error(), bad[i].sentence));
    }
    const double timeouts[] = {-1, -INFINITY, NAN};
    for (size_t i = 0; i < 3; i++) {
        const struct cairn_group_options *o = cairn_group_options(.timeout = timeouts[i]);
        EXPECT(cairn_group_new(group, NULL, 0, o, &made) == CAIRN_EINVAL && made == NULL);
        EXPECT(strstr(cairn_last_error(), "cairn_group_options.timeout is "));
        EXPECT(cairn_group_split(group, 0, 0, o, &made) == CAIRN_EINVAL && made == NULL);
    }
    struct {
        struct cairn_group_options known;
        int unknown;
    } future = {{.struct_size = sizeof(future)}, 1};
    EXPECT(cairn_group_new(group, NULL, 0, &future.known, &made) == CAIRN_EINVAL && made == NULL);
    EXPECT(strstr(cairn_last_error(), "cairn_group_options has a field that this version of Cairn does not know"));
    EXPECT(cairn_group_split(group, 0, 0, &(struct cairn_group_options){0}, &made) == CAIRN_EINVAL);
    EXPECT(strstr(cairn_last_error(), "cairn_group_options.struct_size is 0"));
    EXPECT(cairn_group_new(group, NULL, 0, NULL, NULL) == CAIRN_EINVAL);
    EXPECT(strstr(cairn_last_error(), "out is NULL"));
    EXPECT(cairn_group_split(group, 0, 0, NULL, NULL) == CAIRN_EINVAL);
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void wrong_arguments_make_no_group_and_the_parent_lives(void **state) {
    (void)state;
    run_group(3, refuse_on_every_rank, NULL);
}

/* Rank 1 alone is wrong; no other rank waits for it. */
static char *refuse_on_one_rank(cairn_group *group, void *ctx) {
    (void)ctx;
    const bool wrong = cairn_group_rank(group) == 1;
    cairn_group *made = NULL;
    EXPECT(cairn_group_new(group, (int[]){0, wrong ? 0 : 1}, 2, NULL, &made) == CAIRN_EINVAL && made == NULL);
    EXPECT(strstr(cairn_last_error(), "rank 0 is named twice"));
    EXPECT(wrong || strstr(cairn_last_error(), "cairn_group_new made no group, because it failed on rank 1: "));
    EXPECT(cairn_group_split(group, 0, 0, wrong ? cairn_group_options(.timeout = -1) : NULL, &made) == CAIRN_EINVAL);
    EXPECT(made == NULL && strstr(cairn_last_error(), "cairn_group_options.timeout is -1 s"));
    EXPECT(wrong || strstr(cairn_last_error(), "cairn_group_split made no group, because it failed on rank 1: "));
    EXPECT(cairn_group_split(group, 0, 0, NULL, wrong ? NULL : &made) == CAIRN_EINVAL);
    EXPECT(made == NULL && strstr(cairn_last_error(), "out is NULL"));
    EXPECT_OK(cairn_barrier(group));
    EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &made));
    EXPECT_OK(cairn_barrier(made));
    cairn_group_destroy(&made);
    return NULL;
}

static void wrong_arguments_on_one_rank_fail_creation_everywhere(void **state) {
    (void)state;
    run_group(3, refuse_on_one_rank, NULL);
}

static void name_other_ranks(cairn_group *group, cairn_group **made, cairn_status *st) {
    const int rank = cairn_group_rank(group);
    *st = cairn_group_new(group, rank == 1 ? (int[]){2, 0} : (int[]){0, 2}, 2, NULL, made);
}

static void name_fewer_ranks(cairn_group *group, cairn_group **made, cairn_status *st) {
    *st = cairn_group_new(group, (int[]){0, 1, 2}, cairn_group_rank(group) == 1 ? 2 : 3, NULL, made);
}

static void split_on_one_rank(cairn_group *group, cairn_group **made, cairn_status *st) {
    *st = cairn_group_rank(group) == 1 ? cairn_group_split(group, 0, 0, NULL, made)
                                       : cairn_group_new(group, NULL, 0, NULL, made);
}

struct disagreement {
    void (*make)(cairn_group *group, cairn_group **made, cairn_status *st);
    const char *sentence;
};

static char *disagree(cairn_group *group, void *ctx) {
    const struct disagreement *d = ctx;
    cairn_group *made = NULL;
    cairn_status st = CAIRN_OK;
    d->make(group, &made, &st);
    EXPECT(st == CAIRN_EPEER && made == NULL);
    EXPECT(strstr(cairn_last_error(), d->sentence));
    EXPECT(cairn_barrier(group) == CAIRN_EPEER && strstr(cairn_last_error(), d->sentence));
    return NULL;
}

static void ranks_that_name_different_lists_all_see_both(void **state) {
    (void)state;
    static struct disagreement all[] = {
        {name_other_ranks, "cairn_group_new: rank 0 names ranks 0, 2; rank 1 names ranks 2, 0; every rank must name"},
        {name_fewer_ranks, "rank 0 names ranks 0, 1, 2; rank 1 names ranks 0, 1;"},
        {split_on_one_rank, "rank 0 calls cairn_group_new, rank 1 calls cairn_group_split;"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) run_group(3, disagree, &all[i]);
}

static char *leave_instead(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *made = NULL;
    if (cairn_group_rank(group) == 1) return NULL;
    EXPECT(cairn_group_new(group, (int[]){0, 2}, 2, NULL, &made) == CAIRN_EPEER && made == NULL);
    EXPECT(strstr(cairn_last_error(), "rank 1 (pid ") && strstr(cairn_last_error(), "left the group"));
    EXPECT(cairn_group_split(group, 0, 0, NULL, &made) == CAIRN_EPEER && made == NULL);
    EXPECT(strstr(cairn_last_error(), "the group is dead and can only be destroyed"));
    return NULL;
}

static void ranks_that_left_fail_creation_even_if_they_are_not_members(void **state) {
    (void)state;
    run_group(3, leave_instead, NULL);
}

/* Rank 1 gets every memory but the fail_in-th, until it needs no more. */
static char *run_out_of_memory(cairn_group *group, void *ctx) {
    int *tries = ctx;
    cairn_status st = CAIRN_ENOMEM;
    for (int i = 1; st == CAIRN_ENOMEM; i++) {
        cairn_group *made = NULL;
        const bool is_short = cairn_group_rank(group) == 1;
        fail_in = is_short ? i : 0;
        st = cairn_group_new(group, (int[]){2, 1}, 2, NULL, &made);
        fail_in = 0;
        EXPECT((made != NULL) == (st == CAIRN_OK && cairn_group_rank(group) > 0));
        if (st == CAIRN_ENOMEM && !is_short) EXPECT(strstr(cairn_last_error(), "failed on rank 1: "));
        if (made) EXPECT_OK(cairn_barrier(made));
        cairn_group_destroy(&made);
        EXPECT_OK(cairn_barrier(group));
        if (is_short) *tries = i;
    }
    EXPECT_OK(st);
    return NULL;
}

static void group_for_which_a_rank_has_no_memory_is_made_nowhere(void **state) {
    (void)state;
    int tries = 0;
    run_group(3, run_out_of_memory, &tries);
    assert_true(tries > 4);
}

/* No rank has a number left for a descriptor, so that there is no shared memory to be had; threads need none. */
static char *run_out_of_descriptors(cairn_group *group, void *ctx) {
    struct rlimit *was = ctx;
    cairn_group *made = NULL;
    EXPECT_OK(cairn_barrier(group));
    if (cairn_group_rank(group) == 0) EXPECT(setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, was->rlim_max}) == 0);
    EXPECT_OK(cairn_barrier(group));
    const cairn_status st = cairn_group_new(group, (int[]){2, 0}, 2, NULL, &made);
    EXPECT_OK(cairn_barrier(group));
    if (cairn_group_rank(group) == 0) EXPECT(setrlimit(RLIMIT_NOFILE, was) == 0);
    if (check_ranks_are_threads()) {
        EXPECT_OK(st);
        cairn_group_destroy(&made);
    } else {
        EXPECT(st == CAIRN_ESYSTEM && made == NULL);
        EXPECT(strstr(cairn_last_error(), "Too many open files"));
    }
    EXPECT_OK(cairn_barrier(group));
    return make_one(group, (int[]){2, 0}, 2);
}

static void group_for_which_the_system_has_no_room_is_made_nowhere(void **state) {
    (void)state;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    run_group(3, run_out_of_descriptors, &limit);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* ---- the end ---- */

static atomic_int errors_logged;

static void count_errors(void *cookie, cairn_log_level level, const char *message) {
    const char *wanted = cookie;
    if (level == CAIRN_LOG_ERROR && strstr(message, wanted)) atomic_fetch_add(&errors_logged, 1);
}

static char *end_in_the_wrong_order(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *made = NULL, *root = group;
    EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &made));
    EXPECT(!cairn__group_destroy_root(&root) && root == group);
    EXPECT_OK(cairn_barrier(made));
    EXPECT_OK(cairn_barrier(group));
    cairn_group_destroy(&made);
    return NULL;
}

static void environments_group_is_kept_while_groups_made_from_it_live(void **state) {
    (void)state;
    atomic_store(&errors_logged, 0);
    cairn_set_log(count_errors, "1 group made from the environment's");
    run_group(2, end_in_the_wrong_order, NULL);
    cairn_set_log(NULL, NULL);
    assert_int_equal(atomic_load(&errors_logged), 2);
}

static char *destroy_the_environments(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *own = group;
    cairn_group_destroy(&own);
    EXPECT(own == group);
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void environments_own_group_cannot_be_destroyed(void **state) {
    (void)state;
    atomic_store(&errors_logged, 0);
    cairn_set_log(count_errors, "the environment's own group, which ends with cairn_env_destroy");
    run_group(2, destroy_the_environments, NULL);
    cairn_set_log(NULL, NULL);
    assert_int_equal(atomic_load(&errors_logged), 2);
}

/* Rank 1 leaves a group that the others wait in; the parent and other groups go on. */
static char *leave_one_group(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *left = NULL, *kept = NULL;
    EXPECT_OK(cairn_group_new(group, (int[]){2, 1, 0}, 3, NULL, &left));
    EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &kept));
    if (cairn_group_rank(group) != 1) {
        EXPECT(cairn_barrier(left) == CAIRN_EPEER);
        EXPECT(strstr(cairn_last_error(), "rank 1") && strstr(cairn_last_error(), "left the group"));
    }
    cairn_group_destroy(&left);
    EXPECT_OK(cairn_barrier(kept));
    EXPECT_OK(cairn_barrier(group));
    EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &left));
    EXPECT_OK(cairn_barrier(left));
    cairn_group_destroy(&left);
    cairn_group_destroy(&kept);
    return NULL;
}

static void group_that_a_rank_left_dies_without_the_others(void **state) {
    (void)state;
    run_group(3, leave_one_group, NULL);
}

static char *abort_one_group(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *made = NULL;
    EXPECT_OK(cairn_group_new(group, (int[]){1, 0}, 2, NULL, &made));
    if (cairn_group_rank(group) == 0) {
        cairn_group_abort(made);
        EXPECT(cairn_barrier(made) == CAIRN_ESTATE);
    } else {
        EXPECT(cairn_barrier(made) == CAIRN_EPEER);
        EXPECT(strstr(cairn_last_error(), "rank 1 of group 1 (rank 0 of all) aborted the group"));
    }
    EXPECT_OK(cairn_barrier(group));
    cairn_group_destroy(&made);
    return NULL;
}

/* Rank 0 is the first of the new group, for whose memory the others wait. */
static struct stuck {
    atomic_int left; /* ranks that still wait for rank 0 */
    atomic_bool is_stuck;
    cairn_group *group; /* of rank 1 */
} stuck;

static void stay(const struct timespec *pause) {
    for (int i = 0; i < 20000 && atomic_load(&stuck.left) > 0; i++) nanosleep(pause, NULL);
}

static cairn_status get_stuck(cairn_group *group, cairn_group *parent) {
    (void)group, (void)parent;
    atomic_store(&stuck.is_stuck, true);
    stay(&(struct timespec){.tv_nsec = 1000000});
    return CAIRN_ESYSTEM;
}

static void *abort_the_parent(void *argument) {
    struct stuck *s = argument;
    while (!atomic_load(&s->is_stuck)) sched_yield();
    cairn_group_abort(s->group);
    return NULL;
}

static char *abort_while_a_group_is_made(cairn_group *group, void *ctx) {
    (void)ctx;
    const int rank = cairn_group_rank(group);
    struct cairn__group_backend backend = *group->backend;
    cairn_group *made = NULL;
    pthread_t thread;
    backend.derive = get_stuck;
    if (rank == 0) group->backend = &backend;
    if (rank == 1) {
        stuck.group = group;
        EXPECT(pthread_create(&thread, NULL, abort_the_parent, &stuck) == 0);
    }
    const uint64_t begin = cairn__now_ns();
    const cairn_status st = cairn_group_new(group, NULL, 0, NULL, &made);
    EXPECT((double)(cairn__now_ns() - begin) < 20e9); /* the timeout is 60 s */
    if (rank > 0) atomic_fetch_sub(&stuck.left, 1);
    if (rank == 1) pthread_join(thread, NULL);
    if (rank == 0) group->backend = &cairn__group_shm;
    EXPECT(made == NULL && st == (rank == 1 ? CAIRN_ESTATE : CAIRN_EPEER));
    EXPECT(strstr(cairn_last_error(), rank == 1 ? "was aborted by cairn_group_abort" : "rank 1 aborted the group"));
    return NULL;
}

static void abort_ends_the_making_of_groups(void **state) {
    (void)state;
    atomic_store(&stuck.left, 2);
    atomic_store(&stuck.is_stuck, false);
    run_group_within(3, 60, abort_while_a_group_is_made, NULL);
}

/* Rank 1 ends both its groups since one died of rank 2, with which rank 0 has none but the parent. */
static char *leave_after_a_failure(cairn_group *group, void *ctx) {
    const int rank = cairn_group_rank(group);
    cairn_group *first = NULL, *last = NULL;
    (void)ctx;
    EXPECT_OK(cairn_group_new(group, (int[]){0, 1}, 2, NULL, &first));
    EXPECT_OK(cairn_group_new(group, (int[]){1, 2}, 2, NULL, &last));
    if (rank == 2) cairn_group_abort(last);
    if (rank == 1) EXPECT(cairn_barrier(last) == CAIRN_EPEER);
    if (rank == 1) cairn_group_destroy(&last);
    if (rank == 0) {
        EXPECT(cairn_barrier(first) == CAIRN_EPEER);
        EXPECT_SAYS("rank 1 of group 1 (rank 1 of all) (pid ");
        EXPECT_SAYS(" left the group while rank 0 waited in ");
        EXPECT_SAYS("; a group of it had failed before: rank 1 of group 2 (rank 2 of all) aborted the group while");
    }
    cairn_group_destroy(&last);
    cairn_group_destroy(&first);
    return NULL;
}

static void a_rank_that_leaves_after_a_failure_names_its_cause(void **state) {
    (void)state;
    run_group(3, leave_after_a_failure, NULL);
}

/* Rank 1 asks for memory as the others do, and then passes none on. */
static char *pass_no_memory(cairn_group *group, void *ctx) {
    void *memory = NULL;
    if (cairn_group_rank(group) == 1) {
        EXPECT_OK(cairn__group_run(group, &(struct cairn__request){.call = {.kind = CAIRN__ALLOC, .n = 5000}}, NULL));
        if (ctx) cairn_group_abort(group);
        return NULL;
    }
    EXPECT(cairn_group_alloc(group, 5000, &memory) == CAIRN_EPEER && memory == NULL);
    EXPECT(strstr(cairn_last_error(), "rank 1 (pid ") || strstr(cairn_last_error(), "rank 1 aborted"));
    EXPECT(strstr(cairn_last_error(), ctx ? "aborted the group while" : "left the group while"));
    EXPECT(cairn_barrier(group) == CAIRN_EPEER);
    return NULL;
}

static char *pass_no_memory_on(cairn_group *group, void *ctx) {
    cairn_group *made = NULL;
    EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &made));
    char *failure = pass_no_memory(made, ctx);
    cairn_group_destroy(&made);
    if (!failure) EXPECT_OK(cairn_barrier(group));
    return failure;
}

static void memory_that_a_rank_does_not_pass_on_is_not_waited_for(void **state) {
    (void)state;
    int aborts = 1;
    run_group_within(3, 10, pass_no_memory_on, NULL);
    run_group_within(3, 10, pass_no_memory_on, &aborts);
}

static void aborted_group_is_named_and_its_parent_lives(void **state) {
    (void)state;
    run_group(2, abort_one_group, NULL);
}

static char *disagree_in_one_group(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *made = NULL;
    EXPECT_OK(cairn_group_new(group, (int[]){2, 0}, 2, NULL, &made));
    if (made) {
        float x[6] = {0};
        EXPECT(cairn_allreduce(made, x, cairn_group_rank(made) ? 5 : 6, CAIRN_F32, CAIRN_MAX, NULL) == CAIRN_EPEER);
        EXPECT(strstr(cairn_last_error(), "all-reduce number 1: rank 0 of group 1 (rank 2 of all) issues 6 f32 to "
                                          "maximum, rank 1 of group 1 (rank 0 of all) issues 5 f32 to maximum; "));
    }
    cairn_group_destroy(&made);
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void ranks_that_disagree_in_a_made_group_are_named_with_it(void **state) {
    (void)state;
    run_group(3, disagree_in_one_group, NULL);
}

static char *stay_away(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *made = NULL;
    const struct cairn_group_options *o = cairn_group_options(.timeout = 2);
    EXPECT_OK(cairn_group_new(group, NULL, 0, o, &made));
    if (cairn_group_rank(group) == 0) {
        EXPECT(cairn_barrier(made) == CAIRN_ETIMEOUT);
        EXPECT(strstr(cairn_last_error(), "; raise cairn_group_options.timeout if "));
    }
    EXPECT_OK(cairn_barrier(group));
    cairn_group_destroy(&made);
    return NULL;
}

static void group_has_a_timeout_of_its_own(void **state) {
    (void)state;
    run_group_within(2, 60, stay_away, NULL);
}

/* ---- several at once ---- */

enum { LONG = 300000 /* elements: several blocks of memory that is not the group's */ };

/* Each rank waits in another group first, and only waits make progress. */
static char *wait_in_opposite_orders(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *channels[2] = {group, NULL};
    cairn_work *works[2];
    const int rank = cairn_group_rank(group);
    EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &channels[1]));
    float *x = malloc(2 * LONG * sizeof(float));
    for (int round = 0; round < 5; round++) {
        for (size_t i = 0; i < 2 * LONG; i++) x[i] = (float)(i % 7) + (float)rank;
        for (int c = 0; c < 2; c++) {
            const int at = (c + rank) % 2; /* posted in opposite orders, too */
            EXPECT_OK(cairn_allreduce(channels[at], x + at * LONG, LONG, CAIRN_F32, CAIRN_SUM, &works[at]));
        }
        for (int c = 0; c < 2; c++) EXPECT_OK(cairn_work_wait(&works[(c + rank) % 2]));
        for (size_t i = 0; i < 2 * LONG; i++) EXPECT(x[i] == (float)(2 * (i % 7) + 1));
    }
    free(x);
    cairn_group_destroy(&channels[1]);
    return NULL;
}

static void ranks_that_wait_in_different_groups_do_not_deadlock(void **state) {
    (void)state;
    run_group(2, wait_in_opposite_orders, NULL);
}

/* Rank 0 sits in the second group's barrier, which rank 1 enters only when the first group's work has been done by
 * both. */
static char *wait_elsewhere(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *second = NULL;
    cairn_work *work = NULL;
    EXPECT_OK(cairn_group_split(group, 0, -cairn_group_rank(group), NULL, &second));
    float *x = malloc(LONG * sizeof(float));
    for (int round = 0; round < 5; round++) {
        for (size_t i = 0; i < LONG; i++) x[i] = 1.0f;
        EXPECT_OK(cairn_allreduce(group, x, LONG, CAIRN_F32, CAIRN_SUM, &work));
        if (cairn_group_rank(group) == 1) EXPECT_OK(cairn_work_wait(&work));
        EXPECT_OK(cairn_barrier(second));
        EXPECT_OK(cairn_work_wait(&work));
        for (size_t i = 0; i < LONG; i++) EXPECT(x[i] == 2.0f);
    }
    free(x);
    cairn_group_destroy(&second);
    return NULL;
}

static void wait_in_one_group_moves_the_others_on(void **state) {
    (void)state;
    run_group(2, wait_elsewhere, NULL);
}

/* ---- many works of many groups ---- */

enum { GROUPS = 4, ROUNDS = 40, N = 900 };

struct posted {
    cairn_work *work;
    int32_t x[N];
    int32_t wanted;
};

static void collect(struct posted *p, int *bad) {
    if (cairn_work_wait(&p->work) != CAIRN_OK) *bad = 1;
    for (int i = 0; i < N; i++) *bad |= p->x[i] != p->wanted + i;
}

static char *interleave(cairn_group *group, void *ctx) {
    (void)ctx;
    static const int members[GROUPS][3] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}, {0, 2, 1}};
    cairn_group *groups[GROUPS] = {NULL};
    struct posted *posted = calloc(GROUPS * ROUNDS, sizeof(*posted));
    const int rank = cairn_group_rank(group);
    int bad = 0;
    for (int g = 0; g < GROUPS; g++) EXPECT_OK(cairn_group_new(group, members[g], 3, NULL, &groups[g]));
    for (int k = 0; k < ROUNDS; k++) {
        for (int i = 0; i < GROUPS; i++) {
            const int g = (i + rank) % GROUPS;
            struct posted *p = &posted[g * ROUNDS + k];
            for (int e = 0; e < N; e++) p->x[e] = rank == 0 ? k + e : 7 * g;
            p->wanted = k + 14 * g;
            EXPECT_OK(cairn_allreduce(groups[g], p->x, N, CAIRN_I32, CAIRN_SUM, &p->work));
        }
        if (k % 3 == rank) EXPECT_OK(cairn__group_progress(groups[rank]));
    }
    for (int i = 0; i < GROUPS * ROUNDS; i++) {
        const int at = (i * (rank % 2 ? 7 : 11) + rank * 13) % (GROUPS * ROUNDS);
        collect(&posted[at], &bad);
    }
    EXPECT(bad == 0);
    for (int g = 0; g < GROUPS; g++) cairn_group_destroy(&groups[g]);
    free(posted);
    return NULL;
}

static void works_of_several_groups_complete_in_any_order_of_waiting(void **state) {
    (void)state;
    run_group(3, interleave, NULL);
}

static char *make_and_end_many(cairn_group *group, void *ctx) {
    (void)ctx;
    uint64_t alive = 0;
    for (int round = 0; round < 12; round++) {
        cairn_group *made = NULL;
        EXPECT_OK(cairn_group_new(group, (int[]){1, 0}, 2, NULL, &made));
        EXPECT_OK(cairn_barrier(made));
        cairn_group_destroy(&made);
        EXPECT_OK(cairn_barrier(group));
        if (round == 1) alive = cairn__alloc_counters().alive;
        EXPECT_OK(cairn_barrier(group));
    }
    EXPECT(cairn__alloc_counters().alive <=
           alive); /* less where the store's server has forgotten its clients meanwhile */
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void groups_that_ended_leave_no_memory_or_files(void **state) {
    (void)state;
    run_group(2, make_and_end_many, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_groups_have_the_ranks_named_in_their_order),
        cmocka_unit_test(no_list_makes_another_channel_between_all_ranks),
        cmocka_unit_test(groups_of_groups_of_groups_know_their_ranks_in_the_environment),
        cmocka_unit_test(split_groups_by_color_and_orders_them_by_key),
        cmocka_unit_test(wrong_arguments_make_no_group_and_the_parent_lives),
        cmocka_unit_test(wrong_arguments_on_one_rank_fail_creation_everywhere),
        cmocka_unit_test(ranks_that_name_different_lists_all_see_both),
        cmocka_unit_test(ranks_that_left_fail_creation_even_if_they_are_not_members),
        cmocka_unit_test(group_for_which_a_rank_has_no_memory_is_made_nowhere),
        cmocka_unit_test(group_for_which_the_system_has_no_room_is_made_nowhere),
        cmocka_unit_test(environments_group_is_kept_while_groups_made_from_it_live),
        cmocka_unit_test(environments_own_group_cannot_be_destroyed),
        cmocka_unit_test(group_that_a_rank_left_dies_without_the_others),
        cmocka_unit_test(aborted_group_is_named_and_its_parent_lives),
        cmocka_unit_test(abort_ends_the_making_of_groups),
        cmocka_unit_test(a_rank_that_leaves_after_a_failure_names_its_cause),
        cmocka_unit_test(memory_that_a_rank_does_not_pass_on_is_not_waited_for),
        cmocka_unit_test(ranks_that_disagree_in_a_made_group_are_named_with_it),
        cmocka_unit_test(group_has_a_timeout_of_its_own),
        cmocka_unit_test(ranks_that_wait_in_different_groups_do_not_deadlock),
        cmocka_unit_test(wait_in_one_group_moves_the_others_on),
        cmocka_unit_test(works_of_several_groups_complete_in_any_order_of_waiting),
        cmocka_unit_test(groups_that_ended_leave_no_memory_or_files),
    };
    return cmocka_run_group_tests_name("subgroup", tests, NULL, NULL);
}
