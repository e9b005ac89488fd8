/* The gloo engine by itself: ranks are threads that exchange bytes over the loopback interface. A rank checks with
 * EXPECT, which returns a message; run_ranks fails the test with the first one. With CAIRN_TEST_SHORT in the
 * environment a group meets among strangers of a kind 5 times instead of 20, a thread of gloo's throws 8 times instead
 * of 30, and 8 ranks exchange no megabytes. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../check.h"
#include "comm/exchange/exchange.h"
#include "core/trace.h"
#include "engine_options.h"
#include "rendezvous/store/proof.h"

enum { SKIP = 77, MAX_RANKS = 8 };

/* gloo forgets what it has looked up where it cannot listen. */
const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void) {
    return "leak:libgloo";
}

/* A search for leaks at exit does not bear threads that go on. */
#ifdef __SANITIZE_ADDRESS__
#define LEAVE _exit
#else
#define LEAVE exit
#endif

static const struct cairn__engine_ops *ops;

struct rank {
    int rank, size;
    struct cairn__engine_options options;
    struct cairn__engine *engine; /* opened before the test's function runs */
    pthread_t thread;
    char *(*fn)(struct rank *r);
    char *failure;
    struct rank *all;
    pthread_barrier_t *barrier;
};
typedef char *(*rank_fn)(struct rank *r);

/* ---- helpers ---- */

static void *rank_main(void *arg) {
    struct rank *r = arg;
    check_as_rank(r->rank, r->size);
    r->failure = r->fn(r);
    if (r->engine) ops->close(&r->engine);
    return NULL;
}

static char *first_failure(struct rank *ranks, int size) {
    char *failure = NULL;
    for (int i = 0; i < size; i++) {
        pthread_join(ranks[i].thread, NULL);
        if (failure) free(ranks[i].failure);
        else failure = ranks[i].failure;
    }
    return failure;
}

static void run_ranks_for(int size, rank_fn fn, double timeout) {
    struct rank ranks[MAX_RANKS] = {{0}};
    pthread_barrier_t barrier;
    cairn_store *store = NULL;
    assert_int_equal(cairn_hash_store_create(60, &store), CAIRN_OK);
    pthread_barrier_init(&barrier, NULL, (unsigned)size);
    for (int i = 0; i < size; i++) {
        ranks[i] = (struct rank){.rank = i, .size = size, .fn = fn, .all = ranks, .barrier = &barrier};
        ranks[i].options = engine_options(i, size, store, timeout);
    }
    for (int i = 0; i < size; i++) {
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    }
    char *failure = first_failure(ranks, size);
    pthread_barrier_destroy(&barrier);
    cairn_store_destroy(&store);
    if (failure) fail_msg("%s", failure);
}

static void run_ranks(int size, rank_fn fn) {
    run_ranks_for(size, fn, 60);
}

static cairn_status join(struct rank *r) {
    return ops->open(&r->options, &r->engine);
}

static void meet(struct rank *r) {
    pthread_barrier_wait(r->barrier);
}

/* A rank that leaves while another still connects fails that one; groups exchange something before ranks leave. */
static cairn_status join_together(struct rank *r) {
    const cairn_status st = join(r);
    meet(r);
    return st;
}

static cairn_status start(struct rank *r, struct cairn__transfer t, struct cairn__moving **moving) {
    return ops->start(r->engine, &t, moving);
}

static cairn_status finish(struct rank *r, struct cairn__moving *moving) {
    bool done = false;
    for (int idle = 0;; idle++) {
        const cairn_status st = ops->test(r->engine, moving, &done);
        if (st != CAIRN_OK || done) return st;
        ops->rest(r->engine, idle);
    }
}

static cairn_status move(struct rank *r, struct cairn__transfer t) {
    struct cairn__moving *moving = NULL;
    const cairn_status st = start(r, t, &moving);
    return st == CAIRN_OK ? finish(r, moving) : st;
}

static struct cairn__transfer broadcast(void *dst, size_t nbytes, int root) {
    return (struct cairn__transfer){.kind = CAIRN__MOVE_BROADCAST, .dst = dst, .nbytes = nbytes, .peer = root};
}

static struct cairn__transfer message_to(const void *src, size_t nbytes, int to) {
    return (struct cairn__transfer){.kind = CAIRN__MOVE_SEND, .src = src, .nbytes = nbytes, .peer = to};
}

static struct cairn__transfer message_from(void *dst, size_t nbytes, int from) {
    return (struct cairn__transfer){.kind = CAIRN__MOVE_RECV, .dst = dst, .nbytes = nbytes, .peer = from};
}

/* Waits for all ranks, as no barrier of this process does. */
static cairn_status all_meet(struct rank *r) {
    char all[MAX_RANKS] = {0};
    size_t at[MAX_RANKS], ones[MAX_RANKS];
    for (size_t i = 0; i < MAX_RANKS; i++) {
        at[i] = i;
        ones[i] = 1;
    }
    return move(r,
                (struct cairn__transfer){.kind = CAIRN__MOVE_ALLGATHER, .dst = all, .dst_at = at, .dst_nbytes = ones});
}

static uint8_t byte_of(int from, int to, size_t i) {
    return (uint8_t)(37 * from + 101 * to + 7 * (int)(i % 251) + (int)(i >> 16));
}

/* How much `from` gives `to`: nothing, a little, several pieces. */
static size_t part(int from, int to, size_t scale) {
    return (size_t)((from * 5 + to * 3) % 7) * scale;
}

struct uneven {
    size_t dst_at[MAX_RANKS], dst_nbytes[MAX_RANKS], src_at[MAX_RANKS], src_nbytes[MAX_RANKS];
    size_t dst_total, src_total;
    uint8_t *dst, *src;
};

static void uneven_init(struct uneven *u, int rank, int size, size_t scale) {
    *u = (struct uneven){.dst_total = 0};
    for (int i = 0; i < size; i++) {
        u->dst_at[i] = u->dst_total + 3;
        u->dst_nbytes[i] = part(i, rank, scale);
        u->dst_total = u->dst_at[i] + u->dst_nbytes[i];
        u->src_at[i] = u->src_total;
        u->src_nbytes[i] = part(rank, i, scale);
        u->src_total += u->src_nbytes[i];
    }
    u->dst = calloc(1, u->dst_total + 1);
    u->src = calloc(1, u->src_total + 1);
    for (int i = 0; i < size; i++) {
        for (size_t j = 0; j < u->src_nbytes[i]; j++) u->src[u->src_at[i] + j] = byte_of(rank, i, j);
    }
}

static struct cairn__transfer uneven_alltoall(const struct uneven *u) {
    return (struct cairn__transfer){.kind = CAIRN__MOVE_ALLTOALL,
                                    .dst = u->dst,
                                    .src = u->src,
                                    .dst_at = u->dst_at,
                                    .dst_nbytes = u->dst_nbytes,
                                    .src_at = u->src_at,
                                    .src_nbytes = u->src_nbytes};
}

/* The number of wrong bytes, those between the parts included. */
static size_t uneven_end(struct uneven *u, int rank, int size) {
    uint8_t *want = calloc(1, u->dst_total + 1);
    for (int i = 0; i < size; i++) {
        for (size_t j = 0; j < u->dst_nbytes[i]; j++) want[u->dst_at[i] + j] = byte_of(i, rank, j);
    }
    size_t wrong = 0;
    for (size_t j = 0; j < u->dst_total; j++) wrong += want[j] != u->dst[j];
    free(want);
    free(u->dst);
    free(u->src);
    return wrong;
}

/* ---- moving ---- */

static char *exchange_uneven_parts(struct rank *r) {
    static const size_t scales[] = {1, 1000, 1 << 20};
    EXPECT_OK(join(r));
    for (size_t i = 0; i < (check_is_short() && r->size == MAX_RANKS ? 2 : 3); i++) {
        struct uneven u;
        uneven_init(&u, r->rank, r->size, scales[i]);
        const cairn_status st = move(r, uneven_alltoall(&u));
        const size_t wrong = uneven_end(&u, r->rank, r->size);
        EXPECT_OK(st);
        EXPECT(wrong == 0);
    }
    return NULL;
}

static void an_all_to_all_moves_uneven_and_empty_parts(void **state) {
    (void)state;
    for (int size = 2; size <= MAX_RANKS; size *= 2) run_ranks(size, exchange_uneven_parts);
    run_ranks(3, exchange_uneven_parts);
}

static char *gather_uneven_parts(struct rank *r) {
    EXPECT_OK(join(r));
    for (size_t scale = 1; scale <= 1000; scale *= 1000) {
        struct uneven u;
        uneven_init(&u, 0, r->size, scale);
        memset(u.dst, 0, u.dst_total);
        for (size_t j = 0; j < u.dst_nbytes[r->rank]; j++) u.dst[u.dst_at[r->rank] + j] = byte_of(r->rank, 0, j);
        const cairn_status st = move(r, (struct cairn__transfer){.kind = CAIRN__MOVE_ALLGATHER,
                                                                 .dst = u.dst,
                                                                 .dst_at = u.dst_at,
                                                                 .dst_nbytes = u.dst_nbytes});
        const size_t wrong = uneven_end(&u, 0, r->size);
        EXPECT_OK(st);
        EXPECT(wrong == 0);
    }
    return NULL;
}

static void an_all_gather_moves_uneven_and_empty_parts(void **state) {
    (void)state;
    for (int size = 2; size <= 5; size++) run_ranks(size, gather_uneven_parts);
}

static char *broadcast_from_everyone(struct rank *r) {
    const size_t nbytes = (9 << 20) + 5;
    uint8_t *x = malloc(nbytes);
    EXPECT_OK(join(r));
    for (int root = 0; root < r->size; root++) {
        for (size_t n = nbytes; n > 0; n = n == 1 ? 0 : n / 100000 + 1) {
            for (size_t i = 0; i < n; i++) x[i] = r->rank == root ? byte_of(root, 0, i) : 0;
            EXPECT_OK(move(r, broadcast(x, n, root)));
            for (size_t i = 0; i < n; i++) EXPECT(x[i] == byte_of(root, 0, i));
        }
    }
    EXPECT_OK(move(r, broadcast(NULL, 0, 0)));
    free(x);
    return NULL;
}

static void broadcast_reaches_all_ranks_from_any_root(void **state) {
    (void)state;
    run_ranks(3, broadcast_from_everyone);
}

enum { MANY = 50 };

static char *keep_many_under_way(struct rank *r) {
    uint32_t x[MANY];
    struct cairn__moving *moving[MANY];
    EXPECT_OK(join(r));
    for (int i = 0; i < MANY; i++) {
        x[i] = r->rank == i % r->size ? 1000u + (unsigned)i : 0;
        EXPECT_OK(start(r, broadcast(&x[i], sizeof(x[i]), i % r->size), &moving[i]));
    }
    for (int i = MANY - 1; i >= 0; i--) EXPECT_OK(finish(r, moving[i]));
    for (int i = 0; i < MANY; i++) EXPECT(x[i] == 1000u + (unsigned)i);
    return NULL;
}

static void transfers_under_way_may_be_tested_in_any_order(void **state) {
    (void)state;
    run_ranks(3, keep_many_under_way);
}

/* Rank 0 receives from 1 and 2 what they send only once it has sent, beside a broadcast that waits for rank 2's
 * message. */
static char *pass_messages(struct rank *r) {
    uint32_t got[4] = {0}, mine[2] = {10u + (unsigned)r->rank, 20u + (unsigned)r->rank}, shared = r->rank == 2 ? 99 : 0;
    struct cairn__moving *all = NULL, *moving[6] = {NULL};
    EXPECT_OK(join(r));
    if (r->rank != 2) EXPECT_OK(start(r, broadcast(&shared, 4, 2), &all));
    if (r->rank == 0) {
        for (int i = 0; i < 4; i++) EXPECT_OK(start(r, message_from(&got[i], 4, 1 + i / 2), &moving[i]));
        EXPECT_OK(start(r, message_to(&mine[0], 4, 2), &moving[4]));
        EXPECT_OK(start(r, message_to(&mine[0], 4, 1), &moving[5]));
        for (int i = 5; i >= 0; i--) EXPECT_OK(finish(r, moving[i]));
        EXPECT(got[0] == 11 && got[1] == 21 && got[2] == 12 && got[3] == 22);
    } else {
        EXPECT_OK(move(r, message_from(&got[0], 4, 0)));
        EXPECT(got[0] == 10);
        for (int i = 0; i < 2; i++) EXPECT_OK(move(r, message_to(&mine[i], 4, 0)));
    }
    if (r->rank == 2) EXPECT_OK(start(r, broadcast(&shared, 4, 2), &all));
    EXPECT_OK(finish(r, all));
    EXPECT(shared == 99);
    return NULL;
}

static void messages_keep_their_order_and_go_past_collectives_and_each_other(void **state) {
    (void)state;
    run_ranks(3, pass_messages);
}

static char *move_in_two_groups(struct rank *r) {
    EXPECT_OK(join_together(r));
    const int odd = r->rank % 2, ranks[] = {odd, odd + 2};
    struct cairn__engine_options options = r->options;
    options.rank = r->rank / 2;
    options.size = 2;
    options.prefix = odd ? "test/odd" : "test/even";
    struct rank half = *r;
    half.engine = NULL;
    const cairn_status st = ops->derive(r->engine, ranks, &options, &half.engine);
    meet(r);
    EXPECT_OK(st);
    uint32_t x = r->rank == 3 ? 33 : 0, y = r->rank < 2 ? 70u + (unsigned)r->rank : 0;
    struct cairn__moving *in_all = NULL, *in_half = NULL;
    EXPECT_OK(start(r, broadcast(&x, 4, 3), &in_all));
    EXPECT_OK(start(&half, broadcast(&y, 4, 0), &in_half));
    EXPECT_OK(finish(&half, in_half));
    if (odd) ops->close(&half.engine); /* before or after its parent */
    EXPECT_OK(finish(r, in_all));
    EXPECT(x == 33 && y == 70u + (unsigned)odd);
    ops->close(&r->engine);
    if (!odd) ops->close(&half.engine);
    return NULL;
}

static void a_group_of_some_ranks_moves_beside_its_parent(void **state) {
    (void)state;
    run_ranks(4, move_in_two_groups);
}

/* ---- ending ---- */

static double seconds_since(uint64_t begin_ns) {
    return (double)(cairn__now_ns() - begin_ns) * 1e-9;
}

static char *leave_after_the_last_transfer(struct rank *r) {
    const size_t nbytes = 6 << 20;
    uint8_t *x = malloc(nbytes);
    memset(x, r->rank == 0 ? 7 : 0, nbytes);
    EXPECT_OK(join_together(r));
    EXPECT_OK(move(r, broadcast(x, nbytes, 0))); /* its sender closes as soon as gloo has taken it all */
    EXPECT(x[0] == 7 && x[nbytes - 1] == 7);
    free(x);
    return NULL;
}

static void rank_may_leave_before_others_are_done(void **state) {
    (void)state;
    for (int i = 0; i < 10; i++) run_ranks(3, leave_after_the_last_transfer);
}

/* Rank 1 has got its part before rank 2 asks for its own. */
static char *begin_late(struct rank *r) {
    uint32_t x = r->rank == 0 ? 17 : 0;
    struct cairn__moving *moving = NULL;
    EXPECT_OK(join_together(r));
    if (r->rank < 2) EXPECT_OK(start(r, broadcast(&x, 4, 0), &moving));
    if (r->rank == 1) {
        EXPECT_OK(finish(r, moving));
        ops->close(&r->engine);
    }
    meet(r);
    if (r->rank == 2) {
        usleep(20000); /* so that gloo has noticed, as it may or may not have */
        EXPECT_OK(start(r, broadcast(&x, 4, 0), &moving));
    }
    if (r->rank != 1) EXPECT_OK(finish(r, moving));
    EXPECT(x == 17);
    return NULL;
}

static void rank_may_leave_before_another_begins(void **state) {
    (void)state;
    run_ranks(3, begin_late);
}

static char *close_while_moving(struct rank *r) {
    const size_t nbytes = 16 << 20;
    uint8_t *x = calloc(1, nbytes);
    struct cairn__moving *moving[2];
    EXPECT_OK(join(r));
    const int other = 1 - r->rank;
    EXPECT_OK(start(r, message_from(x, nbytes, other), &moving[0])); /* which is never sent */
    if (r->rank == 0) EXPECT_OK(start(r, broadcast(x, nbytes, 0), &moving[1]));
    meet(r);
    const uint64_t begin = cairn__now_ns();
    ops->close(&r->engine);
    EXPECT(seconds_since(begin) < 20);
    free(x); /* a sanitizer sees who still writes */
    return NULL;
}

static void closing_with_transfers_under_way_does_not_wait_for_them(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) run_ranks(2, close_while_moving);
}

static char *lose_a_rank(struct rank *r) {
    const size_t nbytes = 16 << 20;
    EXPECT_OK(join(r));
    EXPECT_OK(all_meet(r));
    if (r->rank == 2) return NULL;
    uint8_t *x = calloc(1, nbytes);
    const cairn_status st = move(r, broadcast(x, nbytes, 2));
    ops->close(&r->engine);
    free(x);
    EXPECT(st == CAIRN_EPEER);
    EXPECT_SAYS("rank 2 ended, left the group or cannot be reached (gloo: ");
    return NULL;
}

static void waiting_for_a_rank_that_left_names_it(void **state) {
    (void)state;
    run_ranks(4, lose_a_rank);
}

/* Rank 1 leaves with half of a long message written to it, and half of one written by it. */
static char *lose_a_rank_in_the_middle(struct rank *r) {
    const size_t nbytes = 64 << 20;
    uint8_t *x = calloc(1, nbytes), *y = calloc(1, nbytes);
    struct cairn__moving *in = NULL, *out = NULL;
    EXPECT_OK(join(r));
    EXPECT_OK(all_meet(r));
    cairn_status st = start(r, message_from(x, nbytes, 1 - r->rank), &in);
    if (st == CAIRN_OK) st = start(r, message_to(y, nbytes, 1 - r->rank), &out);
    if (r->rank == 0 && st == CAIRN_OK) st = finish(r, in);
    if (r->rank == 0 && st == CAIRN_OK) st = finish(r, out);
    ops->close(&r->engine);
    free(x);
    free(y);
    EXPECT(st == (r->rank == 0 ? CAIRN_EPEER : CAIRN_OK));
    return NULL;
}

static void a_rank_that_leaves_in_the_middle_of_a_message_is_noticed(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) run_ranks(2, lose_a_rank_in_the_middle);
}

/* false: it came. */
static bool waits_in_vain(struct rank *r, struct cairn__moving *moving, double seconds) {
    const uint64_t begin = cairn__now_ns();
    bool done = false;
    while (!done && seconds_since(begin) < seconds) {
        if (ops->test(r->engine, moving, &done) != CAIRN_OK) return false;
        ops->rest(r->engine, 9);
    }
    return !done;
}

static char *wait_for_rank_1(struct rank *r) {
    uint32_t x = r->rank == 1 ? 5 : 0;
    struct cairn__moving *moving = NULL;
    EXPECT_OK(join(r));
    if (r->rank != 1) EXPECT_OK(start(r, broadcast(&x, 4, 1), &moving));
    if (r->rank != 1) EXPECT(waits_in_vain(r, moving, 0.2));
    EXPECT(ops->awaited(r->engine) == (r->rank == 1 ? -1 : 1));
    meet(r);
    if (r->rank == 1) EXPECT_OK(start(r, broadcast(&x, 4, 1), &moving));
    EXPECT_OK(finish(r, moving));
    EXPECT(x == 5);
    return NULL;
}

static void engine_names_the_rank_that_is_awaited(void **state) {
    (void)state;
    run_ranks(3, wait_for_rank_1);
}

static char *bring_different_sizes(struct rank *r) {
    uint8_t x[64] = {0};
    EXPECT_OK(join(r));
    struct cairn__moving *moving = NULL;
    EXPECT_OK(start(r, broadcast(x, r->rank == 0 ? 64 : 8, 0), &moving));
    EXPECT(waits_in_vain(r, moving, 0.3));
    meet(r);
    EXPECT(x[8] == 0);
    return NULL;
}

static void different_sizes_end_in_a_timeout_and_do_no_harm(void **state) {
    (void)state;
    run_ranks(2, bring_different_sizes);
}

static void *abort_later(void *arg) {
    struct rank *r = arg;
    meet(r);
    ops->abort(r->engine);
    return NULL;
}

static char *abort_a_wait(struct rank *r) {
    uint32_t x = 0;
    EXPECT_OK(join(r));
    EXPECT_OK(all_meet(r));
    pthread_t thread;
    if (r->rank == 0) EXPECT(pthread_create(&thread, NULL, abort_later, r) == 0);
    if (r->rank == 1) meet(r);
    const cairn_status st = move(r, broadcast(&x, 4, 2)); /* rank 2 does not */
    if (r->rank == 0) pthread_join(thread, NULL);
    EXPECT(st == (r->rank == 0 ? CAIRN_ESTATE : CAIRN_EPEER));
    return NULL;
}

static char *abort_among_three(struct rank *r) {
    static pthread_barrier_t end;
    if (r->rank == 0) pthread_barrier_init(&end, NULL, 2);
    meet(r);
    if (r->rank == 2) {
        EXPECT_OK(join(r));
        EXPECT_OK(all_meet(r));
        uint32_t x;
        const cairn_status st = move(r, message_from(&x, 4, 0));
        EXPECT(st == CAIRN_EPEER);
        return NULL;
    }
    struct rank pair = *r;
    pair.barrier = &end;
    char *failure = abort_a_wait(&pair);
    r->engine = pair.engine;
    return failure;
}

static void an_abort_ends_waits_here_and_there(void **state) {
    (void)state;
    run_ranks(3, abort_among_three);
}

/* ---- meeting ---- */

static char *stay_away(struct rank *r) {
    if (r->rank == 1) return NULL;
    EXPECT(join(r) == CAIRN_ETIMEOUT);
    EXPECT(!r->engine);
    EXPECT_SAYS("rank 1 did not join the gloo group of 3 ranks within 0.5 s");
    return NULL;
}

static char *derive_a_group_without_rank_2(struct rank *r) {
    static const int ranks[] = {2, 1, 0};
    struct cairn__engine_options options = r->options;
    struct cairn__engine *next = NULL;
    options.rank = 2 - r->rank;
    options.prefix = "test/next";
    EXPECT_OK(join_together(r));
    const uint64_t begin = cairn__now_ns();
    if (r->rank == 2) {
        ops->close(&r->engine);
        return NULL;
    }
    EXPECT(ops->derive(r->engine, ranks, &options, &next) == CAIRN_EPEER);
    EXPECT_SAYS("rank 0 ended, or left, before it had joined the gloo group of 3 ranks");
    EXPECT(seconds_since(begin) < 20);
    return NULL;
}

static void a_rank_that_ends_while_others_derive_a_group_is_noticed_at_once(void **state) {
    (void)state;
    run_ranks_for(3, derive_a_group_without_rank_2, 60);
}

static void a_rank_that_does_not_join_is_named(void **state) {
    (void)state;
    run_ranks_for(3, stay_away, 0.5);
}

static char *listen_nowhere(struct rank *r) {
    if (r->rank == 1) r->options.address = "203.0.113.77"; /* of documentation */
    const uint64_t begin = cairn__now_ns();
    EXPECT(join(r) == (r->rank == 1 ? CAIRN_ESYSTEM : CAIRN_EPEER));
    EXPECT_SAYS("rank 1: gloo cannot listen on 203.0.113.77");
    EXPECT(seconds_since(begin) < 20);
    return NULL;
}

static void rank_that_cannot_listen_fails_all_ranks_with_its_error(void **state) {
    (void)state;
    run_ranks(3, listen_nowhere);
}

static char *have_no_address(struct rank *r) {
    r->options.address = "";
    EXPECT(join(r) != CAIRN_OK);
    EXPECT_SAYS("GLOO_SOCKET_IFNAME");
    r->options.interface = "no-such-interface";
    r->options.prefix = "second";
    EXPECT(join(r) != CAIRN_OK);
    EXPECT_SAYS("no-such-interface");
    r->options.interface = "lo";
    r->options.prefix = "third";
    EXPECT_OK(join(r));
    EXPECT_OK(all_meet(r));
    return NULL;
}

static void interface_may_be_given_by_name(void **state) {
    (void)state;
    run_ranks(2, have_no_address);
}

/* ---- strangers ---- */

enum stray { CLOSES, SENDS_GARBAGE, STAYS_SILENT, SAYS_HELLO, NUM_STRAYS };

enum { MAX_HELD = 256 };

/* Whether a process has a socket open, by its number in /proc. */
static bool has_socket(pid_t process, unsigned long inode) {
    char path[64], want[64], link[64];
    snprintf(want, sizeof(want), "socket:[%lu]", inode);
    for (int fd = 3; fd < 200; fd++) {
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)process, fd);
        const ssize_t n = readlink(path, link, sizeof(link) - 1);
        link[n > 0 ? n : 0] = '\0';
        if (strcmp(link, want) == 0) return true;
    }
    return false;
}

static void bother(unsigned port, enum stray how) {
    static int held[MAX_HELD];
    static unsigned next;
    static const char garbage[300] = "GET / HTTP/1.1\r\n", hello[41] = CAIRN__HELLO;
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (connect(fd, (const struct sockaddr *)&to, sizeof(to)) != 0 && errno != EINPROGRESS) how = CLOSES;
    if (how == SENDS_GARBAGE) (void)!send(fd, garbage, sizeof(garbage), MSG_NOSIGNAL);
    if (how == SAYS_HELLO) (void)!send(fd, hello, sizeof(hello) - 1, MSG_NOSIGNAL);
    if (how == CLOSES) {
        close(fd);
        return;
    }
    if (held[next % MAX_HELD]) close(held[next % MAX_HELD]);
    held[next++ % MAX_HELD] = fd;
}

/* Connects to whatever a process listens on, again and again. */
static void bother_all(pid_t process, enum stray how) {
    char line[256];
    FILE *const all = fopen("/proc/net/tcp", "r");
    while (all && fgets(line, sizeof(line), all)) {
        unsigned port, state;
        unsigned long inode;
        if (sscanf(line, "%*s %*8x:%x %*8x:%*x %x %*x:%*x %*x:%*x %*x %*u %*u %lu", &port, &state, &inode) != 3)
            continue;
        if (state == 10 && has_socket(process, inode)) bother(port, how);
    }
    if (all) fclose(all);
}

static pid_t start_stray(enum stray how) {
    const pid_t parent = getpid(), child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) bother_all(parent, how);
}

static void stop_stray(pid_t stray) {
    kill(stray, SIGKILL);
    waitpid(stray, NULL, 0);
}

static char *gather_among_strangers(struct rank *r) {
    if (r->rank == r->size - 1) usleep(20000); /* strangers have time */
    const uint64_t begin = cairn__now_ns();
    EXPECT_OK(join(r));
    EXPECT(seconds_since(begin) < 20);
    struct uneven u;
    uneven_init(&u, r->rank, r->size, 1000);
    const cairn_status st = move(r, uneven_alltoall(&u));
    const size_t wrong = uneven_end(&u, r->rank, r->size);
    EXPECT_OK(st);
    EXPECT(wrong == 0);
    return NULL;
}

static void strangers_at_every_port_do_not_spoil_a_group(void **state) {
    (void)state;
    for (enum stray how = CLOSES; how < NUM_STRAYS; how++) {
        const pid_t stray = start_stray(how);
        for (int i = 0; i < (check_is_short() ? 5 : 20); i++) {
            run_ranks(2, gather_among_strangers);
            run_ranks(4, gather_among_strangers);
        }
        stop_stray(stray);
    }
}

/* ---- the process ---- */

static char *wait_while_the_process_exits(struct rank *r) {
    uint32_t x = 0;
    struct cairn__moving *moving = NULL;
    EXPECT_OK(join(r));
    EXPECT_OK(start(r, broadcast(&x, 4, 1 - r->rank), &moving));
    meet(r);
    if (r->rank == 0) LEAVE(0);
    for (;;) pause();
}

static void a_process_may_exit_while_its_ranks_wait(void **state) {
    (void)state;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60);
        run_ranks(2, wait_while_the_process_exits);
        _exit(3);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* A second descriptor of rank 1's connection to rank 0. */
static int spare = -1;

static cairn_status make_links_and_keep_one(const struct cairn__engine_options *options, int *fds) {
    const cairn_status st = cairn__links_make(options, fds);
    if (st == CAIRN_OK && options->rank == 1) spare = dup(fds[0]);
    return st;
}

/* As a connection is that its other end has reset. */
static cairn_status make_links_and_lose_one(const struct cairn__engine_options *options, int *fds) {
    const cairn_status st = cairn__links_make(options, fds);
    if (st == CAIRN_OK && options->rank == 0) {
        close(fds[1]);
        fds[1] = socket(AF_INET, SOCK_STREAM, 0);
    }
    return st;
}

static char *lose_a_connection(struct rank *r) {
    r->options.make_links = make_links_and_lose_one;
    const cairn_status st = join(r);
    if (r->rank == 0) EXPECT(st == CAIRN_EPEER);
    if (r->rank == 0) EXPECT_SAYS("rank 1 ended, left the group or cannot be reached (gloo: ");
    return NULL;
}

static void a_connection_that_is_lost_before_gloo_has_it_is_an_error(void **state) {
    (void)state;
    run_ranks(2, lose_a_connection);
}

/* gloo throws on its own thread then. */
static char *send_what_gloo_does_not_know(struct rank *r) {
    static const size_t preamble[6] = {64, 1, 12345, 0, 16, 0}; /* for a slot without a receive */
    uint32_t x = 0;
    r->options.make_links = make_links_and_keep_one;
    EXPECT_OK(join(r));
    EXPECT_OK(all_meet(r));
    meet(r); /* the other is done with it, too */
    if (r->rank == 1) EXPECT(write(spare, preamble, sizeof(preamble)) == sizeof(preamble));
    if (r->rank == 0) {
        const uint64_t begin = cairn__now_ns();
        EXPECT(move(r, broadcast(&x, 4, 1)) == CAIRN_EPEER);
        EXPECT_SAYS("rank 1 ended, left the group or cannot be reached (gloo: ");
        EXPECT(seconds_since(begin) < 20);
    }
    meet(r);
    if (r->rank == 1) close(spare);
    return NULL;
}

static void exception_in_gloos_thread_ends_the_group_and_not_the_process(void **state) {
    (void)state;
    for (int i = 0; i < (check_is_short() ? 8 : 30); i++) run_ranks(2, send_what_gloo_does_not_know);
}

int main(void) {
    if (cairn__engine_find("gloo", &ops) != CAIRN_OK) {
        puts(cairn_last_error());
        return SKIP;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_may_exit_while_its_ranks_wait), /* before this process has threads */
        cmocka_unit_test(an_all_to_all_moves_uneven_and_empty_parts),
        cmocka_unit_test(an_all_gather_moves_uneven_and_empty_parts),
        cmocka_unit_test(broadcast_reaches_all_ranks_from_any_root),
        cmocka_unit_test(transfers_under_way_may_be_tested_in_any_order),
        cmocka_unit_test(messages_keep_their_order_and_go_past_collectives_and_each_other),
        cmocka_unit_test(a_group_of_some_ranks_moves_beside_its_parent),
        cmocka_unit_test(rank_may_leave_before_others_are_done),
        cmocka_unit_test(rank_may_leave_before_another_begins),
        cmocka_unit_test(closing_with_transfers_under_way_does_not_wait_for_them),
        cmocka_unit_test(waiting_for_a_rank_that_left_names_it),
        cmocka_unit_test(a_rank_that_leaves_in_the_middle_of_a_message_is_noticed),
        cmocka_unit_test(engine_names_the_rank_that_is_awaited),
        cmocka_unit_test(different_sizes_end_in_a_timeout_and_do_no_harm),
        cmocka_unit_test(an_abort_ends_waits_here_and_there),
        cmocka_unit_test(a_rank_that_does_not_join_is_named),
        cmocka_unit_test(a_rank_that_ends_while_others_derive_a_group_is_noticed_at_once),
        cmocka_unit_test(rank_that_cannot_listen_fails_all_ranks_with_its_error),
        cmocka_unit_test(interface_may_be_given_by_name),
        cmocka_unit_test(a_connection_that_is_lost_before_gloo_has_it_is_an_error),
        cmocka_unit_test(exception_in_gloos_thread_ends_the_group_and_not_the_process),
        cmocka_unit_test(strangers_at_every_port_do_not_spoil_a_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
