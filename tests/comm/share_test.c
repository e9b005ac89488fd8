/* Sums in pieces, which ranks take over from each other when there are more ranks than processors: the pieces cover the
 * array, sums have rank order, and ranks that exit or stop while they hold others' pieces are reported. The test forces
 * the takeovers on any machine. */
#include "group_processes.h"

#include <math.h>

#include "comm/shm/shm.h"

static struct cairn__shm *inside(cairn_group *group) {
    return group->impl;
}

static void crowd(cairn_group *group, int regions) {
    inside(group)->crowded = regions > 0;
    inside(group)->regions = regions;
}

/* ---- sums ---- */

enum { MOST = 100000, ODD = 5, ROOM = MOST + ODD };

/* No two orders of addition give the same for all of them. */
static float value_of(int rank, size_t i, int salt) {
    unsigned h = (unsigned)i * 2654435761u + (unsigned)rank * 40503u + (unsigned)salt * 69069u;
    h = (h ^ h >> 15) * 2246822519u;
    return ((float)(h >> 8) - 8388608.0f) * (h & 1 ? 1e-3f : 7e2f);
}

static float sum_of(int p, size_t i, int salt) {
    float sum = value_of(0, i, salt);
    for (int r = 1; r < p; r++) sum += value_of(r, i, salt);
    return sum;
}

struct places {
    int regions;
    bool in_place;
    size_t shift;
};

/* root -1: all get it. */
static char *check(cairn_group *group, float *memory, size_t n, struct places at, int root) {
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    float *src = memory + at.shift, *dst = at.in_place ? src : memory + ROOM + at.shift;
    const bool gets = root < 0 || root == rank;
    for (size_t i = 0; i < n + ODD; i++) memory[ROOM + i] = -7;
    for (size_t i = 0; i < n; i++) src[i] = value_of(rank, i, root);
    if (root < 0) EXPECT_OK(cairn_allreduce_into(group, dst, src, n, CAIRN_F32, CAIRN_SUM, NULL));
    else EXPECT_OK(cairn_reduce(group, gets ? dst : NULL, src, n, CAIRN_F32, CAIRN_SUM, root, NULL));
    for (size_t i = 0; i < n && gets; i++) EXPECT(dst[i] == sum_of(p, i, root));
    for (size_t i = 0; i < n && !(gets && at.in_place); i++) EXPECT(src[i] == value_of(rank, i, root));
    if (!at.in_place && at.shift < ODD) EXPECT(memory[ROOM + at.shift + n] == -7);
    return NULL;
}

static char *sums(cairn_group *group, void *ctx) {
    static const size_t counts[] = {1, 15, 4096, 8191, MOST};
    const int p = cairn_group_size(group);
    struct places at = {.regions = *(int *)ctx};
    void *memory = NULL;
    crowd(group, at.regions);
    EXPECT_OK(cairn_group_alloc(group, 2 * ROOM * sizeof(float), &memory));
    for (size_t k = 0; k < 2 * sizeof(counts) / sizeof(counts[0]); k++) {
        at.in_place = k % 2;
        at.shift = k / 2 % 2 ? ODD : 0;
        PASS(check(group, memory, counts[k / 2], at, -1));
        PASS(check(group, memory, counts[k / 2], at, (int)k % p));
    }
    EXPECT_OK(cairn_group_free(group, &memory));
    return NULL;
}

static void pieces_fit_together_in_rank_order(void **state) {
    (void)state;
    static const int sizes[] = {2, 3, 8}, regions[] = {0, 1, 2, SHM_REGIONS};
    for (int k = 0; k < 12; k++) run_group(sizes[k % 3], sums, (void *)&regions[k / 3]);
}

/* More are posted than there are slots; the later ones are made while earlier ones are not complete. */
static char *many(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { WORKS = 300, N = 9000 };
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    cairn_work *works[WORKS];
    void *memory = NULL;
    crowd(group, 2);
    EXPECT_OK(cairn_group_alloc(group, WORKS * N * sizeof(int32_t), &memory));
    int32_t *x = memory;
    for (size_t i = 0; i < (size_t)WORKS * N; i++) x[i] = (int32_t)i % 1000 * (rank + 1);
    for (int w = 0; w < WORKS; w++)
        EXPECT_OK(cairn_allreduce(group, x + (size_t)w * N, N - w, CAIRN_I32, CAIRN_SUM, &works[w]));
    for (int w = WORKS - 1; w >= 0; w--) EXPECT_OK(cairn_work_wait(&works[w]));
    for (int w = 0; w < WORKS; w++) {
        const size_t first = (size_t)w * N;
        for (size_t i = first; i < first + (size_t)(N - w); i++) EXPECT(x[i] == (int32_t)i % 1000 * (p * (p + 1) / 2));
    }
    EXPECT_OK(cairn_group_free(group, &memory));
    return NULL;
}

static void many_sums_in_pieces_are_outstanding_at_once(void **state) {
    (void)state;
    for (int p = 2; p <= 8; p += 3) run_group(p, many, NULL);
}

/* All ranks find it, whichever computed the piece, and not in a later call. */
static char *flags(cairn_group *group, void *ctx) {
    (void)ctx;
    enum { N = 40000, ROUNDS = 3 * SHM_SLOTS };
    const int p = cairn_group_size(group), rank = cairn_group_rank(group);
    void *memory = NULL;
    crowd(group, 2);
    EXPECT_OK(cairn_group_alloc(group, N * sizeof(float), &memory));
    float *x = memory;
    for (int round = 0; round < ROUNDS; round++) {
        const bool planted = round % 5 == 1;
        const size_t at = (size_t)round * 4099 % N;
        uint32_t found = 0;
        cairn_work *work = NULL;
        x[at] = planted && rank == round % p ? INFINITY : 1;
        EXPECT_OK(cairn_allreduce(group, x, N, CAIRN_F32, CAIRN_MAX, &work));
        EXPECT_OK(cairn__work_finish(&work, &found));
        EXPECT(found == planted);
        x[at] = 1;
    }
    EXPECT_OK(cairn_group_free(group, &memory));
    return NULL;
}

static void nonfinite_result_in_a_piece_is_found_by_all_ranks(void **state) {
    (void)state;
    run_group(8, flags, NULL);
}

/* ---- ranks that end or stop with a piece in hand ---- */

static const double TIMEOUT = 2;
enum { LENGTH = 40000, VICTIM = 1 };

/* In memory of the test and its ranks. */
static struct board {
    atomic_int posted, struck;
    int signal;
} * board;

static const struct cairn__kernels *kernels;
static struct cairn__kernels hindered;

static void await(atomic_int *what) {
    while (!atomic_load(what)) sleep_ms(1);
}

static void strike_in_a_piece(void *const *dsts, int num_dsts, const void *const *srcs, int p, size_t n, float divisor,
                              uint32_t *found) {
    atomic_store(&board->struck, 1);
    raise(board->signal);
    kernels->reduce[CAIRN__REDUCE_SUM][CAIRN_F32](dsts, num_dsts, srcs, p, n, divisor, found);
}

/* So that a piece is left for the victim. */
static void wait_in_a_piece(void *const *dsts, int num_dsts, const void *const *srcs, int p, size_t n, float divisor,
                            uint32_t *found) {
    await(&board->struck);
    kernels->reduce[CAIRN__REDUCE_SUM][CAIRN_F32](dsts, num_dsts, srcs, p, n, divisor, found);
}

static void hinder(cairn_group *group, cairn__reduce_fn fn) {
    kernels = inside(group)->kernels;
    hindered = *kernels;
    hindered.reduce[CAIRN__REDUCE_SUM][CAIRN_F32] = fn;
    inside(group)->kernels = &hindered;
}

static int join_crowd(int rank, int size, int port, struct member *m, float **x) {
    void *memory = NULL;
    MUST(join_group("shm", rank, size, port, TIMEOUT, m) == CAIRN_OK);
    crowd(m->group, 2);
    MUST(cairn_group_alloc(m->group, LENGTH * sizeof(float), &memory) == CAIRN_OK);
    *x = memory;
    for (size_t i = 0; i < LENGTH; i++) (*x)[i] = value_of(rank, i, 0);
    return 0;
}

static int strike_or_be_told(int rank, int size, int port) {
    struct member m;
    float *x;
    MUST(join_crowd(rank, size, port, &m, &x) == 0);
    hinder(m.group, rank == VICTIM ? strike_in_a_piece : wait_in_a_piece);
    const cairn_status st = cairn_allreduce(m.group, x, LENGTH, CAIRN_F32, CAIRN_SUM, NULL);
    const bool stops = board->signal == SIGSTOP;
    MUST(st == (stops ? CAIRN_ETIMEOUT : CAIRN_EPEER));
    MUST(strstr(cairn_last_error(), "rank 1 (pid "));
    MUST(strstr(cairn_last_error(), stops ? "posted it and then stopped" : "ended while rank"));
    leave_group(&m);
    return 0;
}

static void run_processes(int signal_number, process_fn fn) {
    struct processes p;
    memset(board, 0, sizeof(*board));
    board->signal = signal_number;
    start_ranks(&p, 3, -1, fn);
    for (int r = 0; r < p.size; r++) {
        if (r == VICTIM) continue;
        const int status = end_of(&p, r);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("rank %d ended with %#x", r, (unsigned)status);
    }
    kill(p.pids[VICTIM], SIGKILL);
    (void)end_of(&p, VICTIM);
    cairn__store_stop(&p.server);
}

static void death_of_a_rank_with_a_piece_in_hand_is_reported(void **state) {
    (void)state;
    run_processes(SIGKILL, strike_or_be_told);
}

static void stop_with_a_piece_in_hand_is_a_timeout(void **state) {
    (void)state;
    run_processes(SIGSTOP, strike_or_be_told);
}

/* ---- ranks that end once they have posted ---- */

static int post_and_die(int rank, int size, int port) {
    struct member m;
    float *x;
    cairn_work *work = NULL;
    MUST(join_crowd(rank, size, port, &m, &x) == 0);
    if (rank != VICTIM) await(&board->struck);
    MUST(cairn_allreduce(m.group, x, LENGTH, CAIRN_F32, CAIRN_SUM, &work) == CAIRN_OK);
    if (rank == VICTIM) {
        atomic_store(&board->struck, 1);
        raise(SIGKILL);
    }
    MUST(cairn_work_wait(&work) == CAIRN_OK);
    for (size_t i = 0; i < LENGTH; i++) MUST(x[i] == sum_of(size, i, 0));
    MUST(cairn_barrier(m.group) == CAIRN_EPEER && strstr(cairn_last_error(), "rank 1 (pid "));
    leave_group(&m);
    return 0;
}

static void sum_is_made_without_a_rank_that_died_after_posting(void **state) {
    (void)state;
    run_processes(SIGKILL, post_and_die);
}

static int set_up(void **state) {
    (void)state;
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return board == MAP_FAILED ? -1 : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(death_of_a_rank_with_a_piece_in_hand_is_reported),
        cmocka_unit_test(stop_with_a_piece_in_hand_is_a_timeout),
        cmocka_unit_test(sum_is_made_without_a_rank_that_died_after_posting),
        cmocka_unit_test(pieces_fit_together_in_rank_order),
        cmocka_unit_test(many_sums_in_pieces_are_outstanding_at_once),
        cmocka_unit_test(nonfinite_result_in_a_piece_is_found_by_all_ranks),
    };
    return cmocka_run_group_tests_name("share", tests, set_up, NULL);
}
