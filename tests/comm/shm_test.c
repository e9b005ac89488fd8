/* Specific to shm: bounce buffers and their seams, rings, families of groups, abort, and no leftovers.
 * collectives_test.c tests what every backend must do. With CAIRN_TEST_SHORT in the environment arrays lie at the seams
 * of blocks on 1, 2, 3 and 5 ranks instead of 1 to 5, and there in a quarter of the places. */
#include "group_processes.h"
#include "group_ranks.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/shm/shm.h"
#include "core/alloc.h"
#include "core/trace.h"

/* Small whole numbers: their sums, products of few and averages by a power of two are exact. */
static int value_of(int rank, size_t i, int salt) {
    return (int)((i * 7 + (size_t)rank * 3 + (size_t)salt) % 11) - 5;
}

static struct cairn__shm *inside(cairn_group *group) {
    return group->impl;
}

/* ---- arrays here and there ---- */

enum { MOST = 3 * SHM_BOUNCE_NBYTES / 4 + 40, ROOM = 2 * (MOST + 64) };

struct arrays {
    void *registered;
    int32_t *ordinary, *src, *dst;
};

static char *get_arrays(cairn_group *group, struct arrays *a) {
    const size_t p = (size_t)cairn_group_size(group);
    EXPECT_OK(cairn_group_alloc(group, ROOM * p * sizeof(int32_t), &a->registered));
    a->ordinary = malloc(ROOM * p * sizeof(int32_t));
    return NULL;
}

static char *give_arrays(cairn_group *group, struct arrays *a) {
    free(a->ordinary);
    EXPECT_OK(cairn_group_free(group, &a->registered));
    return NULL;
}

/* Bits of where: the source is group memory, so is the destination, they are one, they begin off a cache line. */
enum { SRC_REGISTERED = 1, DST_REGISTERED = 2, IN_PLACE = 4, ODD = 8, NUM_PLACES = 16 };

static void place(struct arrays *a, int where, size_t most) {
    int32_t *registered = a->registered;
    const size_t shift = where & ODD ? 5 : 0;
    a->src = (where & SRC_REGISTERED ? registered : a->ordinary) + shift;
    a->dst = (where & DST_REGISTERED ? registered : a->ordinary) + most + 64 + shift;
}

static int sum_of(int p, size_t i, int salt) {
    int sum = 0;
    for (int r = 0; r < p; r++) sum += value_of(r, i, salt);
    return sum;
}

static char *check_sum(cairn_group *group, struct arrays *a, int where, size_t n, int root) {
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    place(a, where, n);
    if (where & IN_PLACE) a->dst = a->src;
    for (size_t i = 0; i < n; i++) a->dst[i] = -7;
    for (size_t i = 0; i < n; i++) a->src[i] = value_of(rank, i, root);
    if (root < 0) {
        EXPECT_OK(cairn_allreduce_into(group, a->dst, a->src, n, CAIRN_I32, CAIRN_SUM, NULL));
    } else {
        EXPECT_OK(cairn_reduce(group, rank == root ? a->dst : NULL, a->src, n, CAIRN_I32, CAIRN_SUM, root, NULL));
    }
    const bool gets = root < 0 || root == rank;
    for (size_t i = 0; i < n && gets; i++) EXPECT(a->dst[i] == sum_of(p, i, root));
    for (size_t i = 0; i < n && a->src != a->dst; i++) EXPECT(a->src[i] == value_of(rank, i, root));
    for (size_t i = 0; i < n && !gets && a->src != a->dst; i++) EXPECT(a->dst[i] == -7);
    return NULL;
}

static char *check_parts(cairn_group *group, struct arrays *a, int where, size_t n) {
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    const size_t all = n * (size_t)p, mine = n * (size_t)rank;
    place(a, where, all);
    for (size_t i = 0; i < all; i++) a->src[i] = value_of(rank, i, 1);
    EXPECT_OK(cairn_alltoall(group, a->dst, a->src, n, CAIRN_I32, NULL));
    for (size_t i = 0; i < all; i++) EXPECT(a->dst[i] == value_of((int)(i / n), mine + i % n, 1));
    int32_t *part = where & IN_PLACE ? a->src + mine : a->dst;
    EXPECT_OK(cairn_reduce_scatter(group, part, a->src, n, CAIRN_I32, CAIRN_SUM, NULL));
    for (size_t i = 0; i < n; i++) EXPECT(part[i] == sum_of(p, mine + i, 1));
    int32_t *own = where & IN_PLACE ? a->dst + mine : a->src;
    for (size_t i = 0; i < n; i++) own[i] = value_of(rank, i, 2);
    EXPECT_OK(cairn_allgather(group, a->dst, own, n, CAIRN_I32, NULL));
    for (size_t i = 0; i < all; i++) EXPECT(a->dst[i] == value_of((int)(i / n), i % n, 2));
    return NULL;
}

/* Every rank's arrays are somewhere else, and all counts lie at the seams of blocks. */
static char *seams(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { BLOCK = SHM_BOUNCE_NBYTES / 4 };
    static const size_t counts[] = {1, 17, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, MOST - 1};
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    unsigned turn = 0;
    struct arrays a;
    PASS(get_arrays(group, &a));
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        for (int place = 0; place < NUM_PLACES; place++, turn += 5) {
            const int where = (int)((unsigned)(place + rank * 7) + turn) % NUM_PLACES; /* in place on some ranks */
            if (check_is_short() && counts[c] > 17 && (size_t)place / 4 != c % 4) continue;
            PASS(check_sum(group, &a, where, counts[c], -1));
            PASS(check_sum(group, &a, where, counts[c], (int)turn % p));
            PASS(check_parts(group, &a, where, counts[c] / (size_t)p + 1));
        }
    }
    return give_arrays(group, &a);
}

static void blocks_fit_together_wherever_each_rank_has_its_arrays(void **state) {
    (void)state;
    for (int p = 1; p <= 5; p++) {
        if (p != 4 || !check_is_short()) run_group(p, seams, NULL);
    }
}

/* Bounces are used in turn by one collective after the other: of one block, of many, staged by some ranks only. */
static char *turns(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { WORKS = 100, N = SHM_BOUNCE_NBYTES / 4 };
    static const size_t counts[] = {3, N + 1, 40, N / 2, 2 * N + 5};
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    cairn_work *works[WORKS];
    int32_t *x[WORKS];
    for (int w = 0; w < WORKS; w++) {
        const size_t n = counts[w % 5];
        x[w] = malloc(n * sizeof(int32_t));
        for (size_t i = 0; i < n; i++) x[w][i] = value_of(w % 3 ? rank : w % p, i, w);
        EXPECT_OK(w % 3 ? cairn_allreduce(group, x[w], n, CAIRN_I32, CAIRN_SUM, &works[w])
                        : cairn_broadcast(group, x[w], n, CAIRN_I32, w % p, &works[w]));
    }
    for (int w = 0; w < WORKS; w++) {
        EXPECT_OK(cairn_work_wait(&works[w]));
        for (size_t i = 0; i < counts[w % 5]; i++) EXPECT(x[w][i] == (w % 3 ? sum_of(p, i, w) : value_of(w % p, i, w)));
        free(x[w]);
    }
    return NULL;
}

static void overlapping_collectives_share_the_bounce_buffers(void **state) {
    (void)state;
    for (int p = 2; p <= 5; p += check_is_short() ? 3 : 1) run_group(p, turns, NULL);
}

/* ---- the flag ---- */

static char *flag_of_every_type(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { N = 3 * SHM_BOUNCE_NBYTES / 8 };
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    double *x = malloc(N * sizeof(double));
    for (int round = 0; round < 12; round++) {
        const bool planted = round % 3 == 1;
        for (size_t i = 0; i < N; i++) x[i] = rank;
        if (planted && rank == round % p) x[(size_t)round * 4099 % N] = round % 2 ? (double)INFINITY : (double)NAN;
        cairn_work *work = NULL;
        uint32_t found = 0;
        EXPECT_OK(cairn_allreduce(group, x, N, CAIRN_F64, round % 2 ? CAIRN_SUM : CAIRN_MAX, &work));
        EXPECT_OK(cairn__work_finish(&work, &found));
        EXPECT(found == planted);
    }
    free(x);
    return NULL;
}

static void doubles_and_maxima_are_checked_too(void **state) {
    (void)state;
    for (int p = 1; p <= 4; p++) run_group(p, flag_of_every_type, NULL);
}

/* ---- messages ---- */

static char *fill_message(cairn_group *group, int32_t *x, size_t n, int from, int number) {
    (void)group;
    for (size_t i = 0; i < n; i++) x[i] = value_of(from, i, number);
    return NULL;
}

static char *check_message(const int32_t *x, size_t n, int from, int number) {
    for (size_t i = 0; i < n; i++) EXPECT(x[i] == value_of(from, i, number));
    return NULL;
}

enum { LONG_MESSAGE = 5 * SHM_RING_NBYTES / 4 + 3, MESSAGES = 40 /* more than a pair has slots */ };

static size_t length_of(int number) {
    static const size_t lengths[] = {0, 1, 1000, LONG_MESSAGE, 17, SHM_RING_NBYTES / 4, 3000};
    return lengths[number % 7];
}

/* Round and round: every rank sends to the next, all posted before anything is received, from memory of either kind. */
static char *ring_of_ranks(cairn_group *group, void *ctx) {
    (void)ctx;
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    const int to = (rank + 1) % p, from = (rank + p - 1) % p;
    cairn_work *sent[MESSAGES];
    int32_t *out[MESSAGES], *in = malloc(LONG_MESSAGE * sizeof(int32_t));
    void *registered = NULL;
    EXPECT_OK(cairn_group_alloc(group, MESSAGES * LONG_MESSAGE * sizeof(int32_t), &registered));
    for (int m = 0; m < MESSAGES; m++) {
        const bool direct = (m + rank) % 3 == 0;
        out[m] = direct ? (int32_t *)registered + m * LONG_MESSAGE : malloc(LONG_MESSAGE * sizeof(int32_t));
        PASS(fill_message(group, out[m], length_of(m), rank, m));
        EXPECT_OK(cairn_send(group, out[m], length_of(m), CAIRN_I32, to, &sent[m]));
    }
    for (int m = 0; m < MESSAGES; m++) {
        EXPECT_OK(cairn_recv(group, in, length_of(m), CAIRN_I32, from, NULL));
        PASS(check_message(in, length_of(m), from, m));
    }
    for (int m = MESSAGES - 1; m >= 0; m--) {
        EXPECT_OK(cairn_work_wait(&sent[m]));
        if ((m + rank) % 3) free(out[m]);
    }
    free(in);
    return NULL;
}

static void messages_come_in_order_from_memory_of_either_kind(void **state) {
    (void)state;
    for (int p = 2; p <= 5; p++) run_group(p, ring_of_ranks, NULL);
}

/* Rank 0 sends before and after a collective that no rank has posted yet, and nothing waits for anything else. */
static char *past_each_other(cairn_group *group, void *ctx) {
    (void)ctx;
    const int rank = cairn_group_rank(group);
    int32_t a = 1, b = 2, sum = 1, in = 0;
    cairn_work *works[4] = {NULL};
    if (rank == 0) {
        int32_t *large = calloc(LONG_MESSAGE, sizeof(int32_t));
        EXPECT_OK(cairn_send(group, large, LONG_MESSAGE, CAIRN_I32, 1, &works[0])); /* taken last of all */
        EXPECT_OK(cairn_allreduce(group, &sum, 1, CAIRN_I32, CAIRN_SUM, &works[1]));
        EXPECT_OK(cairn_send(group, &a, 1, CAIRN_I32, 2, &works[2]));
        EXPECT_OK(cairn_recv(group, &in, 1, CAIRN_I32, 2, NULL));
        EXPECT(in == 2);
        for (int w = 3; w >= 0; w--) EXPECT_OK(cairn_work_wait(&works[w]));
        EXPECT(sum == 3);
        free(large);
    } else if (rank == 1) {
        int32_t *large = malloc(LONG_MESSAGE * sizeof(int32_t));
        EXPECT_OK(cairn_allreduce(group, &sum, 1, CAIRN_I32, CAIRN_SUM, NULL));
        EXPECT_OK(cairn_recv(group, large, LONG_MESSAGE, CAIRN_I32, 0, NULL));
        free(large);
    } else {
        EXPECT_OK(cairn_recv(group, &in, 1, CAIRN_I32, 0, NULL)); /* before the collective that rank 0 posted first */
        EXPECT(in == 1);
        EXPECT_OK(cairn_send(group, &b, 1, CAIRN_I32, 0, NULL));
        EXPECT_OK(cairn_allreduce(group, &sum, 1, CAIRN_I32, CAIRN_SUM, NULL));
    }
    return NULL;
}

static void messages_go_past_collectives_and_other_pairs(void **state) {
    (void)state;
    run_group(3, past_each_other, NULL);
}

static size_t resident(const void *memory, size_t nbytes) {
    enum { PAGE = 4096 };
    unsigned char *present = calloc(nbytes / PAGE + 1, 1);
    size_t pages = 0;
    if (mincore((void *)(uintptr_t)memory, nbytes, present) != 0) abort();
    for (size_t i = 0; i < nbytes / PAGE; i++) pages += present[i] & 1;
    free(present);
    return pages;
}

static char *only_what_is_used(cairn_group *group, void *ctx) {
    (void)ctx;
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    const struct shm_pair *pairs = inside(group)->pairs;
    const size_t all = (size_t)p * (size_t)p * sizeof(*pairs);
    int32_t x[100] = {0};
    EXPECT(resident(pairs, all) == 0);
    EXPECT_OK(cairn_barrier(group));
    if (rank == 0) EXPECT_OK(cairn_send(group, x, 100, CAIRN_I32, 1, NULL));
    if (rank == 1) EXPECT_OK(cairn_recv(group, x, 100, CAIRN_I32, 0, NULL));
    EXPECT_OK(cairn_barrier(group));
    EXPECT(resident(&pairs[1], sizeof(*pairs)) == sizeof(*pairs) / 4096);
    EXPECT(resident(pairs, all) == sizeof(*pairs) / 4096);
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void pairs_that_send_nothing_have_no_memory(void **state) {
    (void)state;
    run_group(4, only_what_is_used, NULL);
}

struct mismatch {
    size_t n;
    cairn_dtype dtype;
    const char *sentence;
};

static char *mismatched(cairn_group *group, void *ctx) {
    const struct mismatch *m = ctx;
    const int rank = cairn_group_rank(group);
    float x[8] = {0};
    cairn_work *work = NULL;
    if (rank < 2)
        EXPECT_OK(rank ? cairn_recv(group, x, 1, CAIRN_F32, 0, NULL) : cairn_send(group, x, 1, CAIRN_F32, 1, NULL));
    EXPECT_OK(cairn_barrier(group));
    if (rank == 0) EXPECT_OK(cairn_send(group, x, 5, CAIRN_F32, 1, &work));
    if (rank == 1) sleep_ms(50); /* the bytes are in the ring by now */
    cairn_status st = rank == 0   ? cairn_work_wait(&work)
                      : rank == 1 ? cairn_recv(group, x, m->n, m->dtype, 0, NULL)
                                  : cairn_barrier(group);
    EXPECT(st == CAIRN_EPEER && strstr(cairn_last_error(), m->sentence));
    EXPECT(cairn_barrier(group) == CAIRN_EPEER && strstr(cairn_last_error(), m->sentence));
    return NULL;
}

static void messages_that_differ_fail_on_both_with_both_values(void **state) {
    (void)state;
    static struct mismatch all[] = {
        {4, CAIRN_F32, "message number 2 from rank 0 to rank 1: rank 0 sends 5 f32, rank 1 receives 4 f32"},
        {5, CAIRN_I32, "message number 2 from rank 0 to rank 1: rank 0 sends 5 f32, rank 1 receives 5 i32"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        run_group(2, mismatched, &all[i]);
        run_group(3, mismatched, &all[i]); /* the third learns why it waits in vain */
    }
}

static char *nobody_sends(cairn_group *group, void *ctx) {
    const int rank = cairn_group_rank(group), p = cairn_group_size(group);
    atomic_int *late = ctx;
    float x[2] = {0};
    if (rank == 1) {
        for (int i = 0; i < 3000 && atomic_load(late) < p - 1; i++) sleep_ms(10);
        return NULL;
    }
    const bool sends = rank == 2;
    cairn_status st = sends ? cairn_send(group, x, 2, CAIRN_F32, 1, NULL) : cairn_recv(group, x, 2, CAIRN_F32, 1, NULL);
    atomic_fetch_add(late, 1);
    EXPECT(st == CAIRN_ETIMEOUT);
    EXPECT(strstr(cairn_last_error(), sends ? "waited 1 s in send number 1 of 2 f32 to rank 1 for rank 1 (pid "
                                            : "waited 1 s in receive number 1 of 2 f32 from rank 1 for rank 1 (pid "));
    EXPECT(strstr(cairn_last_error(), "which posted nothing yet)"));
    return NULL;
}

static void message_without_a_partner_times_out(void **state) {
    (void)state;
    atomic_int late = 0;
    run_group_within(2, 1, nobody_sends, &late);
    atomic_store(&late, 0);
    run_group_within(3, 1, nobody_sends, &late);
}

static char *leave_without_receiving(cairn_group *group, void *ctx) {
    (void)ctx;
    float *x = calloc(LONG_MESSAGE, sizeof(float));
    cairn_status st = CAIRN_EPEER;
    if (cairn_group_rank(group) == 0) st = cairn_send(group, x, LONG_MESSAGE, CAIRN_F32, 1, NULL);
    free(x);
    EXPECT(st == CAIRN_EPEER);
    EXPECT(cairn_group_rank(group) == 1 || strstr(cairn_last_error(), "left the group while rank 0 waited in send"));
    return NULL;
}

static void receiver_that_left_is_an_error_at_the_sender(void **state) {
    (void)state;
    run_group(2, leave_without_receiving, NULL);
}

/* ---- families ---- */

static char *in_any_order(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { GROUPS = 3, EACH = 100 /* more than a group has slots */, N = 300 };
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    cairn_group *groups[GROUPS] = {group, NULL, NULL};
    static _Thread_local cairn_work *works[GROUPS][EACH];
    static _Thread_local int32_t x[GROUPS][EACH][N];
    for (int g = 1; g < GROUPS; g++) EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &groups[g]));
    for (int k = 0; k < GROUPS; k++) {
        const int g = (k + rank) % GROUPS;
        for (int w = 0; w < EACH; w++) {
            for (size_t i = 0; i < N; i++) x[g][w][i] = value_of(rank, i, g + w);
            EXPECT_OK(cairn_allreduce(groups[g], x[g][w], N, CAIRN_I32, CAIRN_SUM, &works[g][w]));
        }
    }
    for (int k = 0; k < GROUPS; k++) { /* each rank waits in another group first, and for the last work first */
        const int g = (k + 2 * rank) % GROUPS;
        for (int w = EACH - 1; w >= 0; w--) EXPECT_OK(cairn_work_wait(&works[g][w]));
        for (int w = 0; w < EACH; w++)
            for (size_t i = 0; i < N; i++) EXPECT(x[g][w][i] == sum_of(p, i, g + w));
    }
    const int first = rank % 2;
    cairn_group_destroy(&groups[1 + first]);
    cairn_group_destroy(&groups[2 - first]);
    return NULL;
}

static void groups_of_a_family_may_be_waited_for_in_any_order(void **state) {
    (void)state;
    for (int p = 2; p <= 4; p++) run_group(p, in_any_order, NULL);
}

/* Rank 0 sleeps in the pair's group; what it is waiting for needs it in the first group. */
static char *woken_for_another(cairn_group *group, void *ctx) {
    (void)ctx;
    const int rank = cairn_group_rank(group);
    static const int pair[] = {0, 1};
    cairn_group *two = NULL;
    cairn_work *work = NULL;
    float sum = 1, x = 1;
    EXPECT_OK(cairn_group_new(group, pair, 2, NULL, &two));
    EXPECT((two != NULL) == (rank < 2));
    EXPECT_OK(cairn_allreduce(group, &sum, 1, CAIRN_F32, CAIRN_SUM, rank == 0 ? &work : NULL));
    if (rank == 0) EXPECT_OK(cairn_allreduce(two, &x, 1, CAIRN_F32, CAIRN_SUM, NULL));
    if (rank == 1) sleep_ms(100);
    if (rank == 1) EXPECT_OK(cairn_allreduce(two, &x, 1, CAIRN_F32, CAIRN_SUM, NULL));
    EXPECT_OK(cairn_work_wait(&work));
    EXPECT(sum == 3 && (rank == 2 || x == 2));
    cairn_group_destroy(&two);
    return NULL;
}

static void rank_asleep_in_one_group_serves_another(void **state) {
    (void)state;
    run_group(3, woken_for_another, NULL);
}

static char *halves_and_their_halves(cairn_group *group, void *ctx) {
    (void)ctx;
    const int rank = cairn_group_rank(group);
    cairn_group *half = NULL, *quarter = NULL;
    void *x = NULL;
    EXPECT_OK(cairn_group_split(group, rank % 2, -rank, NULL, &half)); /* backwards */
    const int place = cairn_group_rank(half), n = cairn_group_size(half);
    EXPECT_OK(cairn_group_alloc(half, 5000 * sizeof(int32_t), &x));
    int32_t *values = x, in[3] = {0};
    for (size_t i = 0; i < 5000; i++) values[i] = value_of(place, i, 9);
    EXPECT_OK(cairn_allreduce(half, values, 5000, CAIRN_I32, CAIRN_SUM, NULL));
    for (size_t i = 0; i < 5000; i++) EXPECT(values[i] == sum_of(n, i, 9));
    EXPECT_OK(cairn_group_split(half, place / 2, 0, NULL, &quarter));
    if (cairn_group_size(quarter) == 2) { /* group memory of another group is memory like any other */
        cairn_work *sent = NULL;
        const int other = 1 - cairn_group_rank(quarter);
        EXPECT_OK(cairn_send(quarter, values, 3, CAIRN_I32, other, &sent));
        EXPECT_OK(cairn_recv(quarter, in, 3, CAIRN_I32, other, NULL));
        EXPECT_OK(cairn_work_wait(&sent));
        EXPECT(memcmp(in, values, sizeof(in)) == 0);
    }
    EXPECT_OK(cairn_allreduce(quarter, values, 5000, CAIRN_I32, CAIRN_SUM, NULL));
    for (size_t i = 0; i < 5000; i++) EXPECT(values[i] == sum_of(n, i, 9) * cairn_group_size(quarter));
    cairn_group_destroy(rank % 3 ? &half : &quarter);
    cairn_group_destroy(rank % 3 ? &quarter : &half);
    return NULL;
}

static void groups_are_made_from_groups(void **state) {
    (void)state;
    for (int p = 1; p <= 7; p++) run_group(p, halves_and_their_halves, NULL);
}

static char *leave_one_group(cairn_group *group, void *ctx) {
    (void)ctx;
    const int rank = cairn_group_rank(group);
    static const int ranks[] = {2, 0};
    cairn_group *two = NULL;
    EXPECT_OK(cairn_group_new(group, ranks, 2, NULL, &two));
    if (rank == 0) EXPECT(cairn_barrier(two) == CAIRN_EPEER);
    if (rank == 0)
        EXPECT(strstr(cairn_last_error(), "rank 0 of group ") && strstr(cairn_last_error(), "(rank 2 of all)"));
    if (rank == 0) EXPECT(strstr(cairn_last_error(), "left the group"));
    cairn_group_destroy(&two);
    EXPECT_OK(cairn_barrier(group));
    return NULL;
}

static void group_that_a_rank_left_is_dead_and_its_family_lives(void **state) {
    (void)state;
    run_group(3, leave_one_group, NULL);
}

/* A child of fork, a data loader say, that ends what it finds in its memory. */
static char *end_it_in_a_child(cairn_group *group, void *ctx) {
    (void)ctx;
    cairn_group *made = NULL;
    int status = 0;
    EXPECT_OK(cairn_group_new(group, NULL, 0, NULL, &made));
    EXPECT_OK(cairn_barrier(made));
    const pid_t child = cairn_group_rank(group) == 0 ? fork() : 1;
    if (child == 0) {
        cairn_group_abort(group);
        cairn_group_destroy(&made);
        (void)cairn__group_destroy_root(&group);
        _exit(0);
    }
    if (cairn_group_rank(group) == 0) EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT_OK(cairn_barrier(made));
    EXPECT_OK(cairn_barrier(group));
    cairn_group_destroy(&made);
    return NULL;
}

static void groups_that_a_child_process_ends_live_on(void **state) {
    (void)state;
    run_group_within(2, 20, end_it_in_a_child, NULL);
}

/* ---- abort ---- */

struct aborting {
    cairn_group *group;
    uint64_t *when;
};

static void *abort_soon(void *argument) {
    struct aborting *a = argument;
    sleep_ms(60); /* the wait sleeps by then */
    *a->when = cairn__now_ns();
    cairn_group_abort(a->group);
    return NULL;
}

static char *wait_in_vain(cairn_group *group, void *ctx) {
    const int rank = cairn_group_rank(group), p = cairn_group_size(group);
    const bool by_message = ctx != NULL;
    float x = 1;
    uint64_t when = 0;
    pthread_t thread;
    struct aborting a = {group, &when};
    EXPECT_OK(cairn_barrier(group));
    if (rank == p - 1) { /* never comes, and learns of it by polling */
        cairn_status st = CAIRN_OK;
        cairn_work *work = NULL;
        EXPECT_OK(cairn_recv(group, &x, 1, CAIRN_F32, 0, &work));
        for (int i = 0; i < 20000 && st == CAIRN_OK; i++) {
            st = cairn__group_progress(group);
            sleep_ms(1);
        }
        EXPECT(st == CAIRN_EPEER && strstr(cairn_last_error(), "rank 0 aborted the group"));
        return NULL;
    }
    if (rank == 0) pthread_create(&thread, NULL, abort_soon, &a);
    cairn_status st = by_message ? cairn_recv(group, &x, 1, CAIRN_F32, p - 1, NULL)
                                 : cairn_allreduce(group, &x, 1, CAIRN_F32, CAIRN_SUM, NULL);
    const uint64_t now = cairn__now_ns();
    if (rank == 0) pthread_join(thread, NULL);
    EXPECT(st == (rank == 0 ? CAIRN_ESTATE : CAIRN_EPEER));
    EXPECT(strstr(cairn_last_error(), rank == 0 ? "aborted" : "rank 0 aborted the group"));
    EXPECT(rank != 0 || (double)(now - when) < 20e9); /* 20 ms, and as long again as a busy machine takes */
    return NULL;
}

static void abort_from_another_thread_ends_waits_here_and_there(void **state) {
    (void)state;
    for (int p = 2; p <= 3; p++) {
        run_group(p, wait_in_vain, NULL);
        run_group(p, wait_in_vain, &p);
    }
}

/* ---- processes ---- */

static int count_maps(void) {
    int count = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof(line), maps)) count += strstr(line, "memfd:cairn") != NULL;
    if (maps) fclose(maps);
    return count;
}

/* Groups made, used and destroyed in another order on every rank. */
static char *come_and_go(cairn_group *group, void *ctx) {
    (void)ctx;
    const int rank = cairn_group_rank(group), p = cairn_group_size(group);
    cairn_group *groups[4] = {NULL};
    void *memory[4] = {NULL};
    float x[3] = {1, 1, 1};
    for (int g = 0; g < 4; g++) {
        EXPECT_OK(cairn_group_split(group, g < 2 ? 0 : rank % 2, g % 2 ? -rank : rank, NULL, &groups[g]));
        EXPECT_OK(cairn_group_alloc(groups[g], 100000, &memory[g]));
        EXPECT_OK(cairn_allreduce(groups[g], x, 3, CAIRN_F32, CAIRN_MAX, NULL));
    }
    EXPECT_OK(cairn_group_free(groups[1], &memory[1]));
    for (int g = 0; g < 4; g++) EXPECT_OK(cairn_barrier(groups[g]));
    for (int k = 0; k < 4; k++) cairn_group_destroy(&groups[(k + rank) % 4]);
    EXPECT_OK(cairn_allreduce(group, x, 3, CAIRN_F32, CAIRN_SUM, NULL));
    EXPECT((int)x[0] == p);
    return NULL;
}

static void nothing_is_left_of_a_family(void **state) {
    (void)state;
    run_group(2, come_and_go, NULL);
    const uint64_t alive = cairn__alloc_counters().alive;
    const int descriptors = count_entries("/proc/self/fd"), files = count_files_in_dev_shm();
    for (int p = 2; p <= 5; p++) run_group(p, come_and_go, NULL);
    assert_int_equal(cairn__alloc_counters().alive, alive);
    assert_int_equal(count_entries("/proc/self/fd"), descriptors);
    assert_int_equal(count_files_in_dev_shm(), files);
    assert_int_equal(count_maps(), 0);
}

enum { DEATHS = 3 };

static int alive[2]; /* a pipe that ends with rank 1 */

static int die_in(int rank, int size, int port, int scene) {
    struct member m;
    cairn_group *all = NULL;
    float *x = calloc(LONG_MESSAGE, sizeof(float));
    cairn_status st = join_group("shm", rank, size, port, 60, &m);
    if (st != CAIRN_OK || cairn_group_new(m.group, NULL, 0, NULL, &all) != CAIRN_OK) return 2;
    if (cairn_barrier(all) != CAIRN_OK) return 3;
    if (rank == 1) {
        if (scene == 1) (void)cairn_send(all, x, LONG_MESSAGE, CAIRN_F32, 0, &(cairn_work *){NULL}); /* fills a ring */
        raise(SIGKILL);
    }
    /* A receiver beside the sender might make room for the whole message. */
    if (scene == 1 && read(alive[0], &(char){0}, 1) != 0) return 5;
    st = scene == 0   ? cairn_barrier(all)
         : scene == 1 ? cairn_recv(all, x, LONG_MESSAGE, CAIRN_F32, 1, NULL)
                      : cairn_send(all, x, LONG_MESSAGE, CAIRN_F32, 1, NULL);
    const bool told = strstr(cairn_last_error(), "rank 1 (pid ") != NULL;
    if (st != CAIRN_EPEER || !told || !strstr(cairn_last_error(), "ended while rank 0")) {
        fprintf(stderr, "scene %d: %s\n", scene, cairn_last_error());
        return 4;
    }
    cairn_group_destroy(&all);
    leave_group(&m);
    return 0;
}

static void death_is_noticed_in_groups_and_messages(void **state) {
    (void)state;
    for (int scene = 0; scene < DEATHS; scene++) {
        struct cairn__store_server *server = NULL;
        int told[2][2], port = 0, status = 0;
        pid_t pids[2];
        assert_int_equal(pipe(alive), 0);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(pipe(told[r]), 0);
            pids[r] = fork(); /* before there is a thread */
            if (pids[r] > 0) continue;
            alarm(60);
            if (r == 0) close(alive[1]);
            if (read(told[r][0], &port, sizeof(port)) != (ssize_t)sizeof(port)) _exit(1);
            _exit(die_in(r, 2, port, scene));
        }
        close(alive[0]);
        close(alive[1]);
        assert_int_equal(cairn__store_serve(0, &server, &port), CAIRN_OK);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(write(told[r][1], &port, sizeof(port)), sizeof(port));
            close(told[r][0]);
            close(told[r][1]);
        }
        uint64_t begin = cairn__now_ns();
        while (waitpid(pids[0], &status, 0) < 0 && errno == EINTR) {}
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_true((double)(cairn__now_ns() - begin) < 20e9); /* the timeout is 60 s */
        while (waitpid(pids[1], &status, 0) < 0 && errno == EINTR) {}
        cairn__store_stop(&server);
    }
}

/* ---- patience ---- */

struct bound {
    pthread_t thread;
    int rank, port, processor, spins;
};

static void *join_bound(void *argument) {
    struct bound *b = argument;
    struct member m;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)b->processor, &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0) return NULL;
    if (join_group("shm", b->rank, 2, b->port, 60, &m) != CAIRN_OK) return NULL;
    b->spins = inside(m.group)->spins;
    leave_group(&m);
    return NULL;
}

static int spins_of_two(int processor, int other) {
    struct cairn__store_server *server = NULL;
    struct bound ranks[2] = {{.processor = processor}, {.processor = other}};
    int port = 0;
    assert_int_equal(cairn__store_serve(0, &server, &port), CAIRN_OK);
    for (int r = 0; r < 2; r++) {
        ranks[r].rank = r;
        ranks[r].port = port;
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, join_bound, &ranks[r]), 0);
    }
    for (int r = 0; r < 2; r++) pthread_join(ranks[r].thread, NULL);
    cairn__store_stop(&server);
    assert_true(ranks[0].spins > 0);
    assert_int_equal(ranks[0].spins, ranks[1].spins);
    return ranks[0].spins;
}

static void ranks_with_a_processor_each_spin_longer(void **state) {
    (void)state;
    cpu_set_t set;
    int processors[2], n = 0;
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    for (int c = 0; c < CPU_SETSIZE && n < 2; c++) {
        if (CPU_ISSET((size_t)c, &set)) processors[n++] = c;
    }
    if (n < 2) SKIP("needs two processors");
    assert_true(spins_of_two(processors[0], processors[1]) > spins_of_two(processors[0], processors[0]));
}

/* Rank 1 comes to the barrier when a byte arrives. */
static int come_when_told(int rank, int told) {
    struct member m;
    int port = 0;
    char go;
    if (read(told, &port, sizeof(port)) != (ssize_t)sizeof(port)) return 1;
    if (join_group("shm", rank, 2, port, 3, &m) != CAIRN_OK) return 2;
    if (rank == 1 && read(told, &go, 1) != 1) return 3;
    const cairn_status st = cairn_barrier(m.group);
    if (st != CAIRN_OK) fprintf(stderr, "%s\n", cairn_last_error());
    leave_group(&m);
    return st == CAIRN_OK ? 0 : 4;
}

static void job_that_is_suspended_for_longer_than_the_timeout_goes_on(void **state) {
    (void)state;
    struct cairn__store_server *server = NULL;
    int told[2][2], port = 0;
    pid_t pids[2];
    for (int r = 0; r < 2; r++) {
        assert_int_equal(pipe(told[r]), 0);
        pids[r] = fork(); /* before there is a thread */
        if (pids[r] > 0) continue;
        alarm(60);
        _exit(come_when_told(r, told[r][0]));
    }
    assert_int_equal(cairn__store_serve(0, &server, &port), CAIRN_OK);
    for (int r = 0; r < 2; r++) assert_int_equal(write(told[r][1], &port, sizeof(port)), sizeof(port));
    sleep_ms(500); /* most likely in the barrier by then */
    for (int r = 0; r < 2; r++) kill(pids[r], SIGSTOP);
    sleep_ms(4000);
    for (int r = 0; r < 2; r++) kill(pids[r], SIGCONT);
    sleep_ms(200);
    assert_int_equal(write(told[1][1], "!", 1), 1);
    for (int r = 0; r < 2; r++) {
        int status = 0;
        while (waitpid(pids[r], &status, 0) < 0 && errno == EINTR) {}
        assert_int_equal(status, 0);
        close(told[r][0]);
        close(told[r][1]);
    }
    cairn__store_stop(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(death_is_noticed_in_groups_and_messages),
        cmocka_unit_test(job_that_is_suspended_for_longer_than_the_timeout_goes_on),
        cmocka_unit_test(blocks_fit_together_wherever_each_rank_has_its_arrays),
        cmocka_unit_test(overlapping_collectives_share_the_bounce_buffers),
        cmocka_unit_test(doubles_and_maxima_are_checked_too),
        cmocka_unit_test(messages_come_in_order_from_memory_of_either_kind),
        cmocka_unit_test(messages_go_past_collectives_and_other_pairs),
        cmocka_unit_test(pairs_that_send_nothing_have_no_memory),
        cmocka_unit_test(messages_that_differ_fail_on_both_with_both_values),
        cmocka_unit_test(message_without_a_partner_times_out),
        cmocka_unit_test(receiver_that_left_is_an_error_at_the_sender),
        cmocka_unit_test(groups_of_a_family_may_be_waited_for_in_any_order),
        cmocka_unit_test(rank_asleep_in_one_group_serves_another),
        cmocka_unit_test(groups_are_made_from_groups),
        cmocka_unit_test(group_that_a_rank_left_is_dead_and_its_family_lives),
        cmocka_unit_test(groups_that_a_child_process_ends_live_on),
        cmocka_unit_test(abort_from_another_thread_ends_waits_here_and_there),
        cmocka_unit_test(nothing_is_left_of_a_family),
        cmocka_unit_test(ranks_with_a_processor_each_spin_longer),
    };
    return cmocka_run_group_tests_name("shm", tests, NULL, NULL);
}
