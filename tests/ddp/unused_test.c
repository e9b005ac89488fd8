/* Parameters that a backward does not use: on one rank, on all ranks, in one step but not in the next; and the error
 * messages if unused parameters are not allowed. */
#include <math.h>

#include "../on_gpu.h"
#include "core/trace.h"
#include "parts.h"

enum { STEPS = 6, MAX_RANKS = 4 };

/* Which parts a rank's loss has; rank r's are those of r % 2. */
static const unsigned masks[STEPS][2] = {
    {ALL_PARTS, ALL_PARTS}, {0x5, 0x7}, {0x1, 0x1}, {0x8, 0x6}, {0xf, 0x1}, {0x2, 0x3}};
static const unsigned first_of_static[2] = {0x5, 0x4};

struct job {
    const struct amp_options *level;
    enum parts_kind_of_step kind;
    const struct ddp_options *options;
    int ranks;
    int micros;     /* under no_sync, but for the last */
    int zero_loss;  /* the step in which rank 1 has none; -1 */
    bool is_static; /* every step is the first */
    bool reducer;
    struct remembered want[STEPS];
};

static unsigned mask_of(const struct job *j, int rank, int step, int micro) {
    if (j->zero_loss == step && rank == 1) return 0;
    return j->is_static ? first_of_static[rank % 2] : masks[(step + 2 * micro) % STEPS][rank % 2];
}

/* The average over the ranks of what each has used; returns the parts that any has. */
static unsigned whole(const struct job *j, int step, float *gradient) {
    unsigned used = 0;
    memset(gradient, 0, PARTS * PART * sizeof(float));
    for (int r = 0; r < j->ranks; r++) {
        for (int m = 0; m < j->micros; m++) {
            const unsigned mask = mask_of(j, r, step, m);
            used |= mask;
            for (int i = 0; i < PARTS * PART; i++)
                gradient[i] += mask >> i / PART & 1 ? parts_number(r, step, m, i) : 0;
        }
    }
    for (int i = 0; i < PARTS * PART; i++) gradient[i] /= (float)j->ranks;
    return used;
}

static bool is_untouched(const struct remembered *a, const struct remembered *b, int k) {
    bool same = memcmp(a->value[k], b->value[k], sizeof(a->value[k])) == 0;
    same &= memcmp(a->master[k], b->master[k], sizeof(a->master[k])) == 0;
    for (int m = 0; m < 2; m++) same &= memcmp(a->moment[m][k], b->moment[m][k], sizeof(a->moment[m][k])) == 0;
    return same;
}

static char *train_alone(cairn_env *env, void *ctx) {
    struct job *j = ctx;
    struct trained t;
    struct remembered before;
    float gradient[PARTS * PART];
    PASS(parts_begin(&t, env, j->level, j->kind));
    for (int s = 0; s < STEPS; s++) {
        const unsigned used = whole(j, s, gradient);
        remember(&t, &before);
        cairn_zero_grad(t.optimizer);
        EXPECT_OK(parts_backward(&t, gradient, used));
        EXPECT_OK(cairn_step(t.optimizer));
        remember(&t, &j->want[s]);
        for (int k = 0; k < PARTS; k++) EXPECT(is_untouched(&before, &j->want[s], k) == !(used >> k & 1));
    }
    parts_end(&t);
    return NULL;
}

static char *backwards_of_step(struct trained *t, cairn_env *env, const struct job *j, int s) {
    float gradient[PARTS * PART];
    const int rank = cairn_env_rank(env);
    for (int m = 0; m < j->micros; m++) {
        const unsigned mask = mask_of(j, rank, s, m);
        parts_numbers(rank, s, m, gradient);
        if (!j->reducer) EXPECT_OK(ddp_no_sync(t->net, m + 1 < j->micros));
        if (mask) {
            EXPECT_OK(parts_backward(t, gradient, mask));
        } else {
            EXPECT_OK(amp_backward(t->amp, ddp_zero_loss(t->net), t->optimizer));
        }
    }
    return NULL;
}

static char *train_together(cairn_env *env, void *ctx) {
    const struct job *j = ctx;
    struct trained t;
    PASS(parts_begin(&t, env, j->level, j->kind));
    EXPECT_OK((j->reducer ? ddp_reducer_create : ddp_create)(t.model, cairn_env_group(env), j->options, &t.net));
    for (int s = 0; s < STEPS; s++) {
        cairn_zero_grad(t.optimizer);
        PASS(backwards_of_step(&t, env, j, s));
        if (j->reducer) EXPECT_OK(ddp_reduce(t.net));
        EXPECT_OK(cairn_step(t.optimizer));
        EXPECT(is_as_remembered(&t, &j->want[s]));
    }
    parts_end(&t);
    return NULL;
}

static void train(struct job *j) {
    run_ranks(1, train_alone, j);
    run_ranks(j->ranks, train_together, j);
}

#define OPTIONS(...)                                           \
    &(const struct ddp_options) {                              \
        .struct_size = sizeof(struct ddp_options), __VA_ARGS__ \
    }
static const struct ddp_options *const every_way[] = {
    OPTIONS(.find_unused_parameters = CAIRN_ON),
    OPTIONS(.find_unused_parameters = CAIRN_ON, .message_size = 1),
    OPTIONS(.find_unused_parameters = CAIRN_ON, .gradient_as_bucket_view = CAIRN_OFF),
    OPTIONS(.find_unused_parameters = CAIRN_ON, .skip_all_reduce_unused_params = CAIRN_ON, .message_size = 1),
    OPTIONS(.find_unused_parameters = CAIRN_ON, .wire = CAIRN_F32, .message_size = 1),
    OPTIONS(.delay_allreduce = CAIRN_ON),
};
enum { WAYS = sizeof(every_way) / sizeof(every_way[0]) };

static void parameters_that_no_rank_used_keep_every_bit_and_zeros_stand_in_for_the_others(void **state) {
    (void)state;
    for (int l = 0; l < PARTS_LEVELS; l++) {
        for (int k = 0; k < KINDS_OF_STEP; k++) {
            struct job j = {.level = &parts_levels[l],
                            .kind = (enum parts_kind_of_step)k,
                            .options = every_way[(l + k * 3) % WAYS],
                            .ranks = l % 2 ? MAX_RANKS : 2,
                            .micros = 1,
                            .zero_loss = -1};
            train(&j);
        }
    }
}

static void what_was_used_under_no_sync_counts_as_used(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        struct job j = {.level = &parts_levels[w],
                        .kind = w % 2 ? BY_SGD : BY_ADAMW,
                        .options = every_way[w],
                        .ranks = 2,
                        .micros = 2,
                        .zero_loss = -1};
        train(&j);
    }
}

static void reducer_does_not_change_gradients_that_no_rank_used(void **state) {
    (void)state;
    for (int l = 0; l < PARTS_LEVELS; l += 3) {
        for (int micros = 1; micros <= 2; micros++) {
            struct job j = {.level = &parts_levels[l],
                            .kind = BY_ADAMW,
                            .ranks = 2,
                            .micros = micros,
                            .zero_loss = -1,
                            .reducer = true};
            train(&j);
        }
    }
}

static void loss_of_zero_uses_nothing(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        struct job j = {.level = &parts_levels[w],
                        .kind = w % 2 ? BY_SGD : BY_ADAMW,
                        .options = every_way[w],
                        .ranks = 2,
                        .micros = 1,
                        .zero_loss = 3};
        train(&j);
        j.micros = 2;
        train(&j);
    }
}

static void static_graph_finds_unused_parameters_once(void **state) {
    (void)state;
    const struct ddp_options *const ways[] = {OPTIONS(.static_graph = CAIRN_ON),
                                              OPTIONS(.static_graph = CAIRN_ON, .message_size = 1),
                                              OPTIONS(.static_graph = CAIRN_ON, .find_unused_parameters = CAIRN_ON,
                                                      .gradient_as_bucket_view = CAIRN_OFF)};
    for (int l = 0; l < PARTS_LEVELS; l++) {
        struct job j = {.level = &parts_levels[l],
                        .kind = l % 2 ? BY_SGD : BY_ADAMW,
                        .options = ways[l % 3],
                        .ranks = l % 2 ? MAX_RANKS : 2,
                        .micros = 1 + l % 2,
                        .zero_loss = -1,
                        .is_static = true};
        train(&j);
    }
}

/* Rank 1 has no input in the first backward, and reaches more than rank 0 in the second. */
static char *know_the_graph_late(cairn_env *env, void *ctx) {
    struct trained t;
    float gradient[PARTS * PART];
    const int rank = cairn_env_rank(env);
    (void)ctx;
    PASS(parts_begin(&t, env, &parts_levels[0], BY_SGD));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), OPTIONS(.static_graph = CAIRN_ON), &t.net));
    for (int s = 0; s < 3; s++) {
        cairn_zero_grad(t.optimizer);
        parts_numbers(rank, s, 0, gradient);
        if (s == 0 && rank == 1) EXPECT_OK(amp_backward(t.amp, ddp_zero_loss(t.net), t.optimizer));
        else EXPECT_OK(parts_backward(&t, gradient, rank == 1 ? 0x7 : 0x3));
        for (int k = 0; k < PARTS; k++)
            EXPECT(cairn__grad_is_written(t.set->params[k]->gradient) == (k < (s == 0 ? 2 : 3)));
    }
    EXPECT(((const float *)cairn__grad_memory(t.set->params[2]->gradient))[0] ==
           64 * parts_number(1, 2, 0, 2 * PART) / 2);
    parts_end(&t);
    return NULL;
}

static void static_graph_of_a_rank_is_found_at_its_first_input(void **state) {
    (void)state;
    run_ranks(2, know_the_graph_late, NULL);
}

/* Two contexts that one backward reaches, over graphs that were built in different orders. */
static char *reach_two_in_some_order(cairn_env *env, void *ctx) {
    struct trained t[2];
    float gradient[PARTS * PART];
    const int rank = cairn_env_rank(env);
    parts_numbers(rank, 0, 0, gradient);
    for (int i = 0; i < 2; i++) {
        PASS(parts_begin(&t[i], env, &parts_levels[0], BY_SGD));
        EXPECT_OK(ddp_create(t[i].model, cairn_env_group(env), ctx, &t[i].net));
        EXPECT_OK(cairn_tensor_write(t[i].x, gradient, PARTS * PART));
        use_parts(t[i].model, 0x7);
    }
    cairn_tensor *first = ddp_forward(t[rank].net, t[rank].x);
    EXPECT_OK(cairn_backward(cairn_add(first, ddp_forward(t[1 - rank].net, t[1 - rank].x))));
    for (int i = 0; i < 2 * PART; i++) {
        const float want = (parts_number(0, 0, 0, i % PART) + parts_number(1, 0, 0, i % PART)) / 2;
        EXPECT(((const float *)cairn__grad_memory(t[i / PART].set->params[0]->gradient))[i % PART] == want);
    }
    for (int i = 0; i < 2; i++) parts_end(&t[i]);
    return NULL;
}

static void ranks_may_use_their_models_in_different_orders(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) run_ranks(2, reach_two_in_some_order, (void *)(uintptr_t)every_way[w]);
}

/* ---- what is not sent ---- */

struct counted {
    int launches[MAX_RANKS];
};

static char *count_what_is_sent(cairn_env *env, void *ctx) {
    struct trained t;
    float gradient[PARTS * PART] = {0};
    struct ddp_options o = *every_way[3];
    const unsigned mask = 1u << 2;
    o.skip_all_reduce_unused_params = *(const bool *)ctx ? CAIRN_ON : CAIRN_OFF;
    PASS(parts_begin(&t, env, &parts_levels[0], BY_SGD));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), &o, &t.net));
    EXPECT(ddp_bucket_count(t.net) == PARTS);
    EXPECT_OK(parts_backward(&t, gradient, mask)); /* the first one makes room */
    cairn_zero_grad(t.optimizer);
    const uint64_t before = ddp_group(t.net)->next_number;
    EXPECT_OK(parts_backward(&t, gradient, mask));
    /* buckets, and two words: which ranks' losses were infinite or NaN, which parameters they used */
    EXPECT(ddp_group(t.net)->next_number - before == (*(const bool *)ctx ? 1 + 2 : PARTS + 2));
    parts_end(&t);
    return NULL;
}

static void bucket_that_no_rank_uses_may_stay_unreduced(void **state) {
    (void)state;
    bool skips = false;
    run_ranks(2, count_what_is_sent, &skips);
    skips = true;
    run_ranks(2, count_what_is_sent, &skips);
}

/* ---- where it was not meant ---- */

struct wrong {
    const struct ddp_options *options;
    unsigned masks[3][3]; /* of the backwards of each rank; 0 = no more */
    int culprit;          /* -1: each is wrong by itself */
    const char *says;
};

static char *expect_failure(cairn_env *env, const struct wrong *w, struct trained *t, cairn_status st) {
    const bool is_mine = w->culprit < 0 || cairn_env_rank(env) == w->culprit;
    EXPECT(st == (is_mine ? CAIRN_ESTATE : CAIRN_EPEER));
    EXPECT(is_mine ? strcmp(cairn_last_error(), w->says) == 0 : strstr(cairn_last_error(), w->says) != NULL);
    EXPECT(cairn_step(t->optimizer) == CAIRN_ESTATE);
    EXPECT(strstr(cairn_last_error(), "the last backward failed"));
    const float gradient[PARTS * PART] = {0};
    cairn_zero_grad(t->optimizer);
    EXPECT(parts_backward(t, gradient, ALL_PARTS) != CAIRN_OK && strstr(cairn_last_error(), w->says));
    return NULL;
}

static char *be_wrong(cairn_env *env, void *ctx) {
    const struct wrong *w = ctx;
    struct trained t;
    float gradient[PARTS * PART];
    const int rank = cairn_env_rank(env);
    cairn_status st = CAIRN_OK;
    PASS(parts_begin(&t, env, &parts_levels[3], BY_SGD));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), w->options, &t.net));
    for (int b = 0; b < 3 && w->masks[rank][b]; b++) {
        cairn_zero_grad(t.optimizer);
        EXPECT(st == CAIRN_OK);
        parts_numbers(rank, b, 0, gradient);
        st = parts_backward(&t, gradient, w->masks[rank][b]);
    }
    PASS(expect_failure(env, w, &t, st));
    parts_end(&t);
    return NULL;
}

static void unused_parameter_of_one_rank_fails_all_with_name_and_advice(void **state) {
    (void)state;
    NOT_ON_A_GPU("on nccl other ranks learn of it by their timeout");
    const struct wrong cases[] = {
        {NULL,
         {{ALL_PARTS}, {0xd}, {ALL_PARTS}},
         1,
         "ddp: on rank 1, backward 1 does not reach 'part1', for which the other ranks wait. If that is intended, set "
         "ddp_options.find_unused_parameters, or name it in ddp_options.ignored"},
        {NULL,
         {{ALL_PARTS, ALL_PARTS, 0x2}, {ALL_PARTS, ALL_PARTS, ALL_PARTS}, {ALL_PARTS, ALL_PARTS, ALL_PARTS}},
         0,
         "ddp: on rank 0, backward 3 does not reach 'part0', 'part2', 'part3', for which the other ranks wait. If that "
         "is intended, set ddp_options.find_unused_parameters, or name them in ddp_options.ignored"},
        {OPTIONS(.static_graph = CAIRN_ON),
         {{0x3, 0x3}, {0x1, 0x1}, {0x1, 0x3}},
         2,
         "ddp: on rank 2, backward 2 reaches 'part1', unlike the first one, with ddp_options.static_graph; where the "
         "graph changes, set find_unused_parameters instead"},
        {OPTIONS(.static_graph = CAIRN_ON, .message_size = 1),
         {{0x3, 0x3, 0x3}, {0xd, 0xd, 0x5}, {0x1, 0x1, 0x1}},
         1,
         "ddp: on rank 1, backward 3 does not reach 'part3', unlike the first one, with ddp_options.static_graph; "
         "where the graph changes, set find_unused_parameters instead"},
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        const uint64_t begin = cairn__now_ns();
        run_ranks(3, be_wrong, (void *)(uintptr_t)&cases[c]);
        assert_true(cairn__now_ns() - begin < UINT64_C(20000000000)); /* the timeout is 60 s */
    }
}

static char *all_leave_one_out(cairn_env *env, void *ctx) {
    const int rank = cairn_env_rank(env);
    char says[200];
    snprintf(says, sizeof(says), "does not reach 'part3', for which the other ranks wait");
    struct trained t;
    const float gradient[PARTS * PART] = {0};
    (void)ctx, (void)rank;
    PASS(parts_begin(&t, env, &parts_levels[0], BY_SGD));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), NULL, &t.net));
    EXPECT(parts_backward(&t, gradient, 0x7) != CAIRN_OK && strstr(cairn_last_error(), says));
    parts_end(&t);
    return NULL;
}

static void unused_parameter_of_all_ranks_fails_all(void **state) {
    (void)state;
    run_ranks(2, all_leave_one_out, NULL);
}

/* Nobody waits. */
static char *go_on_alone(cairn_env *env, void *ctx) {
    struct trained t;
    float gradient[PARTS * PART];
    (void)ctx;
    parts_numbers(0, 0, 0, gradient);
    PASS(parts_begin(&t, env, &parts_levels[0], BY_SGD));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), NULL, &t.net));
    EXPECT(parts_backward(&t, gradient, 0x7) == CAIRN_ESTATE && strstr(cairn_last_error(), "does not reach 'part3'"));
    cairn_zero_grad(t.optimizer);
    EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
    EXPECT_OK(cairn_step(t.optimizer));
    parts_end(&t);
    return NULL;
}

static void unused_parameter_fails_a_single_rank_which_may_go_on(void **state) {
    (void)state;
    run_ranks(1, go_on_alone, NULL);
}

/* Ignored parameters are each rank's own. */
static char *ignore_one(cairn_env *env, void *ctx) {
    struct trained t;
    float gradient[PARTS * PART];
    const int rank = cairn_env_rank(env);
    static const char *const names[] = {"part3"};
    (void)ctx;
    PASS(parts_begin(&t, env, &parts_levels[0], BY_SGD));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), ddp_options(.ignored = names, .num_ignored = 1), &t.net));
    for (int held = 0; held < 2; held++) {
        cairn_zero_grad(t.optimizer);
        parts_numbers(rank, 0, 0, gradient);
        EXPECT_OK(ddp_no_sync(t.net, held));
        if (held) EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
        EXPECT_OK(ddp_no_sync(t.net, 0));
        EXPECT_OK(parts_backward(&t, gradient, 0x7));
        const struct cairn__param *p = t.set->params[3];
        EXPECT(cairn__grad_is_written(p->gradient) == held && !cairn__grad_is_unsynced(p->gradient));
        for (int i = 0; i < PART && held; i++)
            EXPECT(((const float *)cairn__grad_memory(p->gradient))[i] == 64 * parts_number(rank, 0, 0, 3 * PART + i));
    }
    parts_end(&t);
    return NULL;
}

static void ignored_parameters_may_be_left_out(void **state) {
    (void)state;
    run_ranks(2, ignore_one, NULL);
}

/* What has overflowed on one rank stays there without zero_grad, and makes all skip, reached once more or not. */
static char *keep_an_overflow(cairn_env *env, void *ctx) {
    static const char *const own[] = {"part3"};
    struct trained t;
    float gradient[PARTS * PART];
    const int rank = cairn_env_rank(env);
    (void)ctx;
    PASS(parts_begin(&t, env, &parts_levels[3], BY_SGD));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), OPTIONS(.ignored = own, .num_ignored = 1), &t.net));
    for (int s = 0; s < 3; s++) {
        for (int b = 0; b < 2; b++) {
            parts_numbers(rank, s, b, gradient);
            if (s == 0 && rank == 1) gradient[3 * PART] = INFINITY;
            EXPECT_OK(parts_backward(&t, gradient, s == 0 ? ALL_PARTS : 0x7));
        }
        EXPECT_OK(cairn_step(t.optimizer));
        EXPECT(cairn_optimizer_skipped(t.optimizer) == s + 1 && cairn_optimizer_steps(t.optimizer) == 0);
    }
    parts_end(&t);
    return NULL;
}

static void overflow_of_an_ignored_parameter_that_stays_is_every_ranks(void **state) {
    (void)state;
    run_ranks(2, keep_an_overflow, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_that_no_rank_used_keep_every_bit_and_zeros_stand_in_for_the_others),
        cmocka_unit_test(what_was_used_under_no_sync_counts_as_used),
        cmocka_unit_test(reducer_does_not_change_gradients_that_no_rank_used),
        cmocka_unit_test(loss_of_zero_uses_nothing),
        cmocka_unit_test(static_graph_finds_unused_parameters_once),
        cmocka_unit_test(static_graph_of_a_rank_is_found_at_its_first_input),
        cmocka_unit_test(ranks_may_use_their_models_in_different_orders),
        cmocka_unit_test(bucket_that_no_rank_uses_may_stay_unreduced),
        cmocka_unit_test(unused_parameter_of_one_rank_fails_all_with_name_and_advice),
        cmocka_unit_test(unused_parameter_of_all_ranks_fails_all),
        cmocka_unit_test(unused_parameter_fails_a_single_rank_which_may_go_on),
        cmocka_unit_test(ignored_parameters_may_be_left_out),
        cmocka_unit_test(overflow_of_an_ignored_parameter_that_stays_is_every_ranks),
    };
    return cmocka_run_group_tests(tests, parts_be_quiet, NULL);
}
