/* Executes schedules on simulated ranks: every schedule terminates, never has more messages in flight than slots, and
 * delivers messages in the order in which they are needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/plan.h"

enum { MAX_RANKS = 8, MAX_CHUNKS = 4, MAX_MICRO_BATCHES = 32, MOST = 2 * MAX_CHUNKS * MAX_MICRO_BATCHES };

struct key {
    int chunk, micro_batch;
};

struct queue {
    struct key keys[MOST];
    int first, count;
};

struct player {
    struct cairn__action actions[MOST];
    int count, at;
    bool has_input;
    struct queue forwards, backwards; /* what has been sent to it */
};

struct game {
    cairn_pipeline_schedule schedule;
    int ranks, chunks, micro_batches, slots;
    bool trains;
    struct player players[MAX_RANKS];
};

static void complain(const struct game *g, int rank, const char *what) {
    fail_msg("schedule %d, %d ranks, %d chunks, %d micro-batches: rank %d %s", (int)g->schedule, g->ranks, g->chunks,
             g->micro_batches, rank, what);
}

static bool take(struct game *g, int rank, struct queue *q, const struct cairn__action *a) {
    if (q->count == 0) return false;
    const struct key k = q->keys[q->first++];
    q->count--;
    if (k.chunk != a->chunk || k.micro_batch != a->micro_batch) complain(g, rank, "gets messages in another order");
    return true;
}

static bool put(const struct game *g, struct queue *q, int chunk, int micro_batch) {
    if (q->count == g->slots) return false;
    q->keys[q->first + q->count++] = (struct key){chunk, micro_batch};
    return true;
}

/* Whether the rank's next action could begin, or end. */
static bool play(struct game *g, int rank) {
    struct player *p = &g->players[rank];
    const struct cairn__action *a = &p->actions[p->at];
    const int last = g->ranks - 1;
    const bool is_first = rank == 0 && a->chunk == 0, is_last = rank == last && a->chunk == g->chunks - 1;
    if (!p->has_input) {
        if (!a->is_backward && !is_first && !take(g, rank, &p->forwards, a)) return false;
        if (a->is_backward && !is_last && !take(g, rank, &p->backwards, a)) return false;
        p->has_input = true;
    }
    if (!a->is_backward && !is_last) {
        const int to = (rank + 1) % g->ranks;
        if (!put(g, &g->players[to].forwards, a->chunk + (rank == last), a->micro_batch)) return false;
    }
    if (a->is_backward && !is_first) {
        const int to = (rank + last) % g->ranks;
        if (!put(g, &g->players[to].backwards, a->chunk - (rank == 0), a->micro_batch)) return false;
    }
    p->has_input = false;
    p->at++;
    return true;
}

static void run(struct game *g) {
    for (int r = 0; r < g->ranks; r++) {
        struct player *p = &g->players[r];
        memset(p, 0, sizeof(*p));
        cairn__pipeline_plan(g->schedule, r, g->ranks, g->chunks, g->micro_batches, p->actions);
        for (int i = 0; i < 2 * g->chunks * g->micro_batches; i++) {
            if (g->trains || !p->actions[i].is_backward) p->actions[p->count++] = p->actions[i];
        }
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < g->ranks; r++) {
            while (g->players[r].at < g->players[r].count && play(g, r)) moved = true;
        }
    }
    for (int r = 0; r < g->ranks; r++) {
        if (g->players[r].at < g->players[r].count) complain(g, r, "waits for ever");
    }
}

static const cairn_pipeline_schedule schedules[] = {CAIRN_PIPELINE_GPIPE, CAIRN_PIPELINE_1F1B,
                                                    CAIRN_PIPELINE_INTERLEAVED_1F1B};

static void every_schedule_ends(void **state) {
    static struct game g;
    (void)state;
    for (size_t s = 0; s < 3; s++) {
        for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
            for (int chunks = 1; chunks <= (s == 2 ? MAX_CHUNKS : 1); chunks++) {
                for (int m = 1; m <= MAX_MICRO_BATCHES; m++) {
                    g = (struct game){schedules[s],  ranks, chunks, m, cairn__pipeline_slots(schedules[s], ranks), true,
                                      {{.count = 0}}};
                    run(&g);
                    g.trains = false;
                    run(&g);
                }
            }
        }
    }
}

static void each_has_every_micro_batch_once_and_in_order(void **state) {
    (void)state;
    for (size_t s = 0; s < 3; s++) {
        for (int ranks = 1; ranks <= 4; ranks++) {
            for (int m = 1; m <= MAX_MICRO_BATCHES; m++) {
                const int chunks = s == 2 ? 3 : 1;
                for (int r = 0; r < ranks; r++) {
                    struct cairn__action actions[MOST];
                    int next[2][MAX_CHUNKS] = {{0}};
                    cairn__pipeline_plan(schedules[s], r, ranks, chunks, m, actions);
                    for (int i = 0; i < 2 * chunks * m; i++) {
                        const struct cairn__action *a = &actions[i];
                        assert_in_range(a->chunk, 0, chunks - 1);
                        assert_int_equal(a->micro_batch, next[a->is_backward][a->chunk]++);
                        if (a->is_backward) assert_true(next[0][a->chunk] > a->micro_batch);
                    }
                    for (int c = 0; c < chunks; c++) {
                        assert_int_equal(next[0][c], m);
                        assert_int_equal(next[1][c], m);
                    }
                }
            }
        }
    }
}

static void one_forward_one_backward_holds_as_many_as_there_are_stages_from_there_on(void **state) {
    struct cairn__action actions[MOST];
    (void)state;
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
        for (int r = 0; r < ranks; r++) {
            cairn__pipeline_plan(CAIRN_PIPELINE_1F1B, r, ranks, 1, 16, actions);
            assert_int_equal(cairn__pipeline_plan_in_flight(actions, 32), ranks - r);
            cairn__pipeline_plan(CAIRN_PIPELINE_GPIPE, r, ranks, 1, 16, actions);
            assert_int_equal(cairn__pipeline_plan_in_flight(actions, 32), 16);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_ends),
        cmocka_unit_test(each_has_every_micro_batch_once_and_in_order),
        cmocka_unit_test(one_forward_one_backward_holds_as_many_as_there_are_stages_from_there_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
