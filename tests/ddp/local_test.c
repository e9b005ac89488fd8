/* no_sync and apex's Reducer: unsynced gradients are added to the next reduced one, as if there had been a single
 * backward. */
#include <math.h>

#include "../plant.h"
#include "parts.h"

enum { STEPS = 3, MICRO = 3 };

static const int micros[STEPS] = {3, 1, 4};

static const struct ddp_options *const every_way[] = {
    NULL,
    &(struct ddp_options){.struct_size = sizeof(struct ddp_options), .message_size = 1},
    &(struct ddp_options){.struct_size = sizeof(struct ddp_options), .gradient_as_bucket_view = CAIRN_OFF},
    &(struct ddp_options){.struct_size = sizeof(struct ddp_options), .wire = CAIRN_F32},
    &(struct ddp_options){.struct_size = sizeof(struct ddp_options), .delay_allreduce = CAIRN_ON},
};
enum { WAYS = sizeof(every_way) / sizeof(every_way[0]) };

struct job {
    const struct amp_options *level;
    enum parts_kind_of_step kind;
    const struct ddp_options *options;
    int ranks, bad;         /* micro-batch */
    bool reducer, releases; /* results after each micro-batch */
    struct remembered want[STEPS];
};

static char *begin(struct trained *t, cairn_env *env, const struct job *j) {
    PASS(parts_begin(t, env, j->level, j->kind));
    EXPECT_OK((j->reducer ? ddp_reducer_create : ddp_create)(t->model, cairn_env_group(env), j->options, &t->net));
    return NULL;
}

/* The average over the ranks of the sums over a step's micro-batches. */
static void whole(int ranks, int step, int count, float *gradient) {
    for (int i = 0; i < PARTS * PART; i++) {
        float sum = 0;
        for (int r = 0; r < ranks; r++) {
            for (int m = 0; m < count; m++) sum += parts_number(r, step, m, i);
        }
        gradient[i] = sum / (float)ranks;
    }
}

static char *train_alone(cairn_env *env, void *ctx) {
    struct job *j = ctx;
    struct trained t;
    float gradient[PARTS * PART];
    PASS(parts_begin(&t, env, j->level, j->kind));
    for (int s = 0; s < STEPS; s++) {
        cairn_zero_grad(t.optimizer);
        whole(j->ranks, s, micros[s], gradient);
        EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
        EXPECT_OK(cairn_step(t.optimizer));
        remember(&t, &j->want[s]);
    }
    parts_end(&t);
    return NULL;
}

static char *train_in_micro_batches(cairn_env *env, void *ctx) {
    const struct job *j = ctx;
    struct trained t;
    float gradient[PARTS * PART];
    PASS(begin(&t, env, j));
    for (int s = 0; s < STEPS; s++) {
        cairn_zero_grad(t.optimizer);
        for (int m = 0; m < micros[s]; m++) {
            parts_numbers(cairn_env_rank(env), s, m, gradient);
            if (!j->reducer) EXPECT_OK(ddp_no_sync(t.net, m + 1 < micros[s]));
            EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
            if (j->releases) EXPECT_OK(cairn_release_results(env));
        }
        if (j->reducer) EXPECT_OK(ddp_reduce(t.net));
        EXPECT_OK(cairn_step(t.optimizer));
        EXPECT(is_as_remembered(&t, &j->want[s]));
    }
    parts_end(&t);
    return NULL;
}

static void micro_batches_of_all_ranks_are_one_backward_on_the_whole(void **state) {
    (void)state;
    for (int l = 0; l < PARTS_LEVELS; l++) {
        for (int k = 0; k < KINDS_OF_STEP; k++) {
            struct job j = {.level = &parts_levels[l],
                            .kind = (enum parts_kind_of_step)k,
                            .options = every_way[(l + 3 * k) % WAYS],
                            .ranks = (l + k) % 2 ? 4 : 2,
                            .releases = k % 2 == 0};
            run_ranks(1, train_alone, &j);
            run_ranks(j.ranks, train_in_micro_batches, &j);
        }
    }
}

static void reducer_with_micro_batches_equals_one_process(void **state) {
    (void)state;
    for (int l = 0; l < PARTS_LEVELS; l++) {
        struct job j = {.level = &parts_levels[l],
                        .kind = BY_ADAMW,
                        .options = every_way[l % WAYS],
                        .ranks = l % 2 ? 4 : 2,
                        .reducer = true,
                        .releases = true};
        run_ranks(1, train_alone, &j);
        run_ranks(j.ranks, train_in_micro_batches, &j);
    }
}

/* A rank knows the scale by its last loss: one that had none since the last reduction is an error. */
static char *reduce_without_a_backward(cairn_env *env, void *ctx) {
    struct trained t;
    float gradient[PARTS * PART];
    const int rank = cairn_env_rank(env);
    PASS(begin(&t, env, ctx));
    EXPECT_OK(ddp_reduce(t.net)); /* no rank has a gradient */
    parts_numbers(rank, 0, 0, gradient);
    if (rank == 0) EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
    EXPECT(ddp_reduce(t.net) == CAIRN_ESTATE);
    EXPECT(strcmp(cairn_last_error(),
                  "ddp_reduce: rank 1 has had no backward since the last ddp_reduce, but rank 0 has; give "
                  "a rank without input the loss of ddp_zero_loss") == 0);
    if (rank == 1) EXPECT_OK(amp_backward(t.amp, ddp_zero_loss(t.net), t.optimizer));
    EXPECT_OK(ddp_reduce(t.net));
    for (int k = 0; k < PARTS; k++) EXPECT(!cairn__grad_is_unsynced(t.set->params[k]->gradient));
    for (int i = 0; i < PART; i++) {
        const float want = 64 * parts_number(0, 0, 0, i) / 2;
        EXPECT(((const float *)cairn__grad_memory(t.set->params[0]->gradient))[i] == want);
    }
    parts_end(&t);
    return NULL;
}

static void reduce_without_a_backward_on_one_rank_fails_on_all(void **state) {
    (void)state;
    struct job j = {.level = &parts_levels[0], .reducer = true};
    run_ranks(2, reduce_without_a_backward, &j);
}

/* Gradients that a rank had before are its own, and no part of an average. */
static char *create_with_gradients(cairn_env *env, void *ctx) {
    struct trained t;
    float gradient[PARTS * PART];
    const int rank = cairn_env_rank(env);
    (void)ctx;
    PASS(parts_begin(&t, env, &parts_levels[0], BY_SGD));
    parts_numbers(rank, 0, 0, gradient);
    for (int b = 0; b < 2; b++) EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), NULL, &t.net));
    for (int b = 0; b < 2; b++) {
        EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
        for (int k = 0; k < PARTS; k++)
            EXPECT(cairn__grad_is_written(t.set->params[k]->gradient) &&
                   cairn__grad_is_accumulated(t.set->params[k]->gradient) == (b > 0));
    }
    ddp_destroy(&t.net);
    for (int k = 0; k < PARTS; k++)
        EXPECT(!cairn__grad_is_written(t.set->params[k]->gradient) &&
               !cairn__grad_is_accumulated(t.set->params[k]->gradient));
    parts_end(&t);
    return NULL;
}

static void creating_a_context_forgets_earlier_gradients(void **state) {
    (void)state;
    run_ranks(2, create_with_gradients, NULL);
}

/* ---- where sums are not exact ---- */

static float rounded(cairn_dtype dtype, float x) {
    unsigned char bits[8];
    cairn__dtype(dtype)->from_f32(bits, x);
    return cairn__dtype(dtype)->to_f32(bits);
}

static float inexact(int rank, int micro, int i) {
    return sinf((float)(rank * 411 + micro * 97 + i));
}

static char *round_once(cairn_env *env, void *ctx) {
    const struct job *j = ctx;
    struct trained t;
    float gradient[PARTS * PART];
    const cairn_dtype flows = j->level->opt_level >= AMP_O2 ? j->level->half_type : CAIRN_F32;
    PASS(begin(&t, env, j));
    for (int m = 0; m < MICRO; m++) {
        for (int i = 0; i < PARTS * PART; i++) gradient[i] = inexact(cairn_env_rank(env), m, i);
        EXPECT_OK(ddp_no_sync(t.net, m + 1 < MICRO ? CAIRN_ON : CAIRN_OFF));
        EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
    }
    for (int i = 0; i < PARTS * PART; i++) {
        const struct cairn__param *p = t.set->params[i / PART];
        float sum = 0;
        for (int r = 0; r < 2; r++) {
            float local = 0;
            for (int m = 0; m + 1 < MICRO; m++) local += rounded(flows, inexact(r, m, i));
            sum += rounded(p->dtype, 64 * local + 64 * rounded(flows, inexact(r, MICRO - 1, i)));
        }
        const char *at =
            (const char *)cairn__grad_memory(p->gradient) + (size_t)(i % PART) * cairn_dtype_nbytes(p->dtype);
        EXPECT(cairn__dtype(p->dtype)->to_f32(at) == rounded(p->dtype, sum / 2));
    }
    parts_end(&t);
    return NULL;
}

static void sums_that_are_not_exact_are_rounded_once_before_they_travel(void **state) {
    (void)state;
    const int levels[] = {0, 3, 4, 5};
    for (int l = 0; l < 4; l++) {
        struct job j = {.level = &parts_levels[levels[l]], .ranks = 2};
        run_ranks(2, round_once, &j);
    }
}

/* ---- overflow ---- */

static void spoil(struct cairn__param *p) {
    cairn__dtype(p->dtype)->from_f32(cairn__grad_memory(p->gradient), INFINITY);
}

/* The first step overflows. */
static char *overflow_alone(cairn_env *env, void *ctx) {
    struct job *j = ctx;
    struct trained t;
    float gradient[PARTS * PART];
    PASS(parts_begin(&t, env, j->level, j->kind));
    for (int s = 0; s < STEPS; s++) {
        cairn_zero_grad(t.optimizer);
        whole(j->ranks, s, MICRO, gradient);
        EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
        if (s == 0) spoil(t.set->params[2]);
        EXPECT_OK(cairn_step(t.optimizer));
        remember(&t, &j->want[s]);
        EXPECT(j->want[s].skipped == 1 && j->want[s].scale == 32 && j->want[s].steps == s);
    }
    parts_end(&t);
    return NULL;
}

static char *overflow_on_the_last_rank(cairn_env *env, void *ctx) {
    const struct job *j = ctx;
    struct trained t;
    struct plant plant;
    float gradient[PARTS * PART];
    const int rank = cairn_env_rank(env);
    PASS(begin(&t, env, j));
    plant_install(&plant, t.set);
    plant.value = INFINITY;
    for (int s = 0; s < STEPS; s++) {
        cairn_zero_grad(t.optimizer);
        for (int m = 0; m < MICRO; m++) {
            const bool bad = s == 0 && m == j->bad && rank == j->ranks - 1;
            parts_numbers(rank, s, m, gradient);
            EXPECT_OK(ddp_no_sync(t.net, m + 1 < MICRO));
            plant.target = bad ? 2 : -1;
            EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
            if (bad && m + 1 < MICRO) spoil(t.set->params[2]);
        }
        EXPECT_OK(cairn_step(t.optimizer));
        EXPECT(is_as_remembered(&t, &j->want[s]));
    }
    plant_remove(&plant);
    parts_end(&t);
    return NULL;
}

static void overflow_of_one_ranks_micro_batch_is_one_skipped_step_on_all(void **state) {
    (void)state;
    for (int l = 0; l < PARTS_LEVELS; l++) {
        struct job j = {.level = &parts_levels[l],
                        .kind = l % 2 ? BY_SGD : BY_ADAMW,
                        .options = every_way[l % WAYS],
                        .ranks = l % 2 ? 4 : 2};
        run_ranks(1, overflow_alone, &j);
        for (j.bad = 0; j.bad < MICRO; j.bad++) run_ranks(j.ranks, overflow_on_the_last_rank, &j);
    }
}

/* ---- an infinity in what each rank has of its own ---- */

static char *backwards_of_own(struct trained *t, int held, float of_part3) {
    float gradient[PARTS * PART];
    parts_numbers(0, 0, 0, gradient);
    for (int m = 0; m <= held; m++) {
        gradient[3 * PART] = of_part3;
        EXPECT_OK(ddp_no_sync(t->net, m < held));
        EXPECT_OK(parts_backward(t, gradient, m < held ? 1 : ALL_PARTS));
    }
    return NULL;
}

/* Rank 1 alone has it, keeps it, and reads its gradients more often than rank 0. */
static char *keep_an_infinity(cairn_env *env, void *ctx) {
    static const char *const ignored[] = {"part3"};
    const bool has = cairn_env_rank(env) == 1;
    struct trained t;
    struct remembered r;
    (void)ctx;
    PASS(parts_begin(&t, env, &parts_levels[0], BY_SGD));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), ddp_options(.ignored = ignored, .num_ignored = 1), &t.net));
    PASS(backwards_of_own(&t, 0, has ? INFINITY : 1));
    EXPECT_OK(cairn_step(t.optimizer));
    EXPECT(cairn_optimizer_skipped(t.optimizer) == 1);
    EXPECT_OK(cairn_step(t.optimizer)); /* with the same gradients */
    EXPECT(cairn_optimizer_skipped(t.optimizer) == 2);
    PASS(backwards_of_own(&t, has ? 3 : 0, 1));
    EXPECT_OK(cairn_step(t.optimizer));
    remember(&t, &r);
    EXPECT(r.skipped == 3 && r.scale == 16);
    cairn_zero_grad(t.optimizer);
    PASS(backwards_of_own(&t, has ? 3 : 0, 1));
    EXPECT_OK(cairn_step(t.optimizer));
    remember(&t, &r);
    EXPECT(r.skipped == 3 && r.steps == 1 && r.scale == 16);
    parts_end(&t);
    return NULL;
}

static void unsynced_infinity_of_one_rank_skips_the_step_on_all(void **state) {
    (void)state;
    run_ranks(2, keep_an_infinity, NULL);
}

/* ---- who never synchronises ---- */

static char *step_alone_together(cairn_env *env, void *ctx) {
    const struct job *j = ctx;
    struct trained t;
    float gradient[PARTS * PART];
    PASS(begin(&t, env, j));
    EXPECT_OK(ddp_no_sync(t.net, 1));
    for (int s = 0; s < STEPS; s++) {
        cairn_zero_grad(t.optimizer);
        for (int m = 0; m < micros[s]; m++) {
            parts_numbers(0, s, m, gradient); /* equal on all ranks */
            EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
        }
        EXPECT_OK(cairn_step(t.optimizer));
        EXPECT(is_as_remembered(&t, &j->want[s]));
    }
    parts_end(&t);
    return NULL;
}

static void step_on_unsynced_gradients_applies_this_ranks_own(void **state) {
    (void)state;
    for (int l = 0; l < PARTS_LEVELS; l += 3) {
        struct job j = {.level = &parts_levels[l], .ranks = 1};
        run_ranks(1, train_alone, &j);
        run_ranks(2, step_alone_together, &j);
    }
}

/* Forgotten with the context: another one begins anew. */
static char *leave_in_the_middle(cairn_env *env, void *ctx) {
    const struct job *j = ctx;
    struct trained t;
    float gradient[PARTS * PART];
    PASS(begin(&t, env, j));
    for (int m = 0; m < 2; m++) {
        EXPECT_OK(ddp_no_sync(t.net, 1));
        parts_numbers(0, 7, m, gradient);
        EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
    }
    ddp_destroy(&t.net);
    for (size_t k = 0; k < PARTS; k++)
        EXPECT(!cairn__grad_is_unsynced(t.set->params[k]->gradient) &&
               !cairn__grad_is_written(t.set->params[k]->gradient));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), j->options, &t.net));
    cairn_zero_grad(t.optimizer);
    parts_numbers(cairn_env_rank(env), 0, 0, gradient);
    EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
    for (int i = 0; i < PART; i++) {
        const float want = 64 * (parts_number(0, 0, 0, i) + parts_number(1, 0, 0, i)) / 2;
        EXPECT(((const float *)cairn__grad_memory(t.set->params[0]->gradient))[i] == want);
    }
    parts_end(&t);
    return NULL;
}

static void unsynced_gradients_end_with_their_context(void **state) {
    (void)state;
    struct job j = {.level = &parts_levels[0]};
    run_ranks(2, leave_in_the_middle, &j);
}

/* ---- refusals ---- */

struct meddler {
    struct cairn__grad_listener front;
    const struct cairn__grad_listener *behind;
    ddp_context *net;
    cairn_status st;
    char said[200];
};

static cairn_status meddle_begin(void *ctx) {
    struct meddler *m = ctx;
    return m->behind->begin(m->behind->ctx);
}
static void meddle_ready(void *ctx, size_t index) {
    struct meddler *m = ctx;
    m->st = ddp_no_sync(m->net, 1);
    snprintf(m->said, sizeof(m->said), "%s", cairn_last_error());
    m->behind->ready(m->behind->ctx, index);
}
static cairn_status meddle_progress(void *ctx) {
    struct meddler *m = ctx;
    return m->behind->progress(m->behind->ctx);
}
static cairn_status meddle_settle(void *ctx) {
    struct meddler *m = ctx;
    return m->behind->settle(m->behind->ctx);
}
static void meddle_failed(void *ctx) {
    (void)ctx;
}

static char *refuse_within_backward(cairn_env *env, void *ctx) {
    const struct job *j = ctx;
    struct trained t;
    float gradient[PARTS * PART] = {0};
    PASS(begin(&t, env, j));
    struct meddler m = {.front = {.ctx = &m,
                                  .begin = meddle_begin,
                                  .ready = meddle_ready,
                                  .progress = meddle_progress,
                                  .settle = meddle_settle,
                                  .failed = meddle_failed},
                        .behind = t.set->listener,
                        .net = t.net};
    t.set->listener = &m.front;
    EXPECT_OK(parts_backward(&t, gradient, ALL_PARTS));
    t.set->listener = m.behind;
    EXPECT(m.st == CAIRN_ESTATE);
    EXPECT(strcmp(m.said, "ddp_no_sync: called within a backward; it holds for the next forward and backward") == 0);
    EXPECT_OK(ddp_no_sync(t.net, 1));
    EXPECT_OK(ddp_no_sync(t.net, 0));
    parts_end(&t);
    return NULL;
}

static void no_sync_is_refused_within_a_backward(void **state) {
    (void)state;
    struct job j = {.level = &parts_levels[0]};
    run_ranks(2, refuse_within_backward, &j);
}

static char *refuse_the_wrong_context(cairn_env *env, void *ctx) {
    struct job j = {.level = &parts_levels[0]};
    struct trained t;
    (void)ctx;
    EXPECT(ddp_no_sync(NULL, 1) == CAIRN_EINVAL && strcmp(cairn_last_error(), "ddp_no_sync: ddp is NULL") == 0);
    EXPECT(ddp_reduce(NULL) == CAIRN_EINVAL && strcmp(cairn_last_error(), "ddp_reduce: ddp is NULL") == 0);
    EXPECT(ddp_reducer_create(NULL, cairn_env_group(env), NULL, &t.net) == CAIRN_EINVAL);
    EXPECT(strcmp(cairn_last_error(), "ddp_reducer_create: model, group and out must be set") == 0);
    PASS(begin(&t, env, &j));
    EXPECT(ddp_reduce(t.net) == CAIRN_EINVAL);
    EXPECT(strcmp(cairn_last_error(), "ddp_reduce: the context was not made by ddp_reducer_create; its gradients are "
                                      "reduced by cairn_backward") == 0);
    parts_end(&t);
    j.reducer = true;
    PASS(begin(&t, env, &j));
    EXPECT(ddp_no_sync(t.net, 0) == CAIRN_EINVAL);
    EXPECT(strcmp(cairn_last_error(), "ddp_no_sync: a context of ddp_reducer_create keeps gradients on this rank until "
                                      "ddp_reduce; leave ddp_no_sync out") == 0);
    parts_end(&t);
    return NULL;
}

static void calls_of_another_kind_of_context_are_refused(void **state) {
    (void)state;
    run_ranks(1, refuse_the_wrong_context, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(micro_batches_of_all_ranks_are_one_backward_on_the_whole),
        cmocka_unit_test(reducer_with_micro_batches_equals_one_process),
        cmocka_unit_test(reduce_without_a_backward_on_one_rank_fails_on_all),
        cmocka_unit_test(creating_a_context_forgets_earlier_gradients),
        cmocka_unit_test(sums_that_are_not_exact_are_rounded_once_before_they_travel),
        cmocka_unit_test(overflow_of_one_ranks_micro_batch_is_one_skipped_step_on_all),
        cmocka_unit_test(unsynced_infinity_of_one_rank_skips_the_step_on_all),
        cmocka_unit_test(step_on_unsynced_gradients_applies_this_ranks_own),
        cmocka_unit_test(unsynced_gradients_end_with_their_context),
        cmocka_unit_test(no_sync_is_refused_within_a_backward),
        cmocka_unit_test(calls_of_another_kind_of_context_are_refused),
    };
    return cmocka_run_group_tests(tests, parts_be_quiet, NULL);
}
