/* A loss that is infinite or NaN on one rank, with finite gradients: every rank skips the step and reports whose loss
 * it was. */
#include <math.h>

#include "../kept_log.h"
#include "parts.h"

enum { STEPS = 3, MICRO = 3, BAD_STEP = 1 };

static const struct ddp_options *const every_way[] = {
    NULL,
    &(struct ddp_options){.struct_size = sizeof(struct ddp_options), .message_size = 1},
    &(struct ddp_options){.struct_size = sizeof(struct ddp_options), .wire = CAIRN_F32},
    &(struct ddp_options){.struct_size = sizeof(struct ddp_options), .delay_allreduce = CAIRN_ON},
    &(struct ddp_options){.struct_size = sizeof(struct ddp_options), .find_unused_parameters = CAIRN_ON},
};
enum { WAYS = sizeof(every_way) / sizeof(every_way[0]) };

struct job {
    const struct amp_options *level;
    const struct ddp_options *options;
    int ranks, bad_rank, bad_micro;
    float badness;
    bool reducer;
    struct remembered want[STEPS];
};

/* The gradients stay what they are. */
static cairn_status backward(struct trained *t, cairn_env *env, const float *gradient, float added) {
    cairn_status st = cairn_tensor_write(t->x, gradient, PARTS * PART);
    if (st != CAIRN_OK) return st;
    cairn_tensor *loss = t->net ? ddp_forward(t->net, t->x) : cairn_module_forward(t->model, t->x);
    return amp_backward(t->amp, cairn_add(loss, cairn_full(env, CAIRN_F32, 0, NULL, added)), t->optimizer);
}

static float added_by(const struct job *j, int rank, int step, int micro) {
    return step == BAD_STEP && rank == j->bad_rank && micro == j->bad_micro ? j->badness : 1;
}

static char *train_alone(cairn_env *env, void *ctx) {
    struct job *j = ctx;
    struct trained t;
    float gradient[PARTS * PART];
    PASS(parts_begin(&t, env, j->level, BY_SGD));
    for (int s = 0; s < STEPS; s++) {
        cairn_zero_grad(t.optimizer);
        for (int i = 0; i < PARTS * PART; i++) {
            float sum = 0;
            for (int r = 0; r < j->ranks; r++) {
                for (int m = 0; m < MICRO; m++) sum += parts_number(r, s, m, i);
            }
            gradient[i] = sum / (float)j->ranks;
        }
        EXPECT_OK(backward(&t, env, gradient, s == BAD_STEP ? j->badness : 1));
        EXPECT_OK(cairn_step(t.optimizer));
        EXPECT(cairn_optimizer_step_skipped(t.optimizer) == (s == BAD_STEP));
        remember(&t, &j->want[s]);
    }
    EXPECT(j->want[BAD_STEP].scale == 32 && j->want[BAD_STEP].skipped == 1 && j->want[STEPS - 1].steps == STEPS - 1);
    EXPECT(memcmp(j->want[BAD_STEP].value, j->want[BAD_STEP - 1].value, sizeof(j->want[0].value)) == 0);
    parts_end(&t);
    return NULL;
}

static char *train_in_micro_batches(cairn_env *env, void *ctx) {
    const struct job *j = ctx;
    const int rank = cairn_env_rank(env);
    struct trained t;
    float gradient[PARTS * PART];
    PASS(parts_begin(&t, env, j->level, BY_SGD));
    EXPECT_OK((j->reducer ? ddp_reducer_create : ddp_create)(t.model, cairn_env_group(env), j->options, &t.net));
    for (int s = 0; s < STEPS; s++) {
        cairn_zero_grad(t.optimizer);
        for (int m = 0; m < MICRO; m++) {
            parts_numbers(rank, s, m, gradient);
            if (!j->reducer) EXPECT_OK(ddp_no_sync(t.net, m + 1 < MICRO));
            EXPECT_OK(backward(&t, env, gradient, added_by(j, rank, s, m)));
        }
        if (j->reducer) EXPECT_OK(ddp_reduce(t.net));
        EXPECT_OK(cairn_step(t.optimizer));
        EXPECT(is_as_remembered(&t, &j->want[s]));
    }
    struct amp_overflow found;
    size_t count = 0;
    EXPECT_OK(amp_last_overflow(t.amp, NULL, &found, 1, &count));
    EXPECT(count == 1 && strcmp(found.name, "(loss)") == 0 && found.rank == j->bad_rank);
    parts_end(&t);
    return NULL;
}

static void run_job(struct job *j) {
    run_ranks(1, train_alone, j);
    log_text[0] = '\0';
    run_ranks(j->ranks, train_in_micro_batches, j);
}

static void bad_loss_on_one_rank_skips_the_step_on_all(void **state) {
    (void)state;
    static const float badness[] = {INFINITY, -INFINITY, NAN};
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        for (int level = 1; level < PARTS_LEVELS; level++) {
            struct job j = {.level = &parts_levels[level],
                            .options = every_way[level % WAYS],
                            .ranks = ranks,
                            .bad_rank = level % ranks,
                            .bad_micro = level % MICRO,
                            .badness = badness[level % 3]};
            run_job(&j);
        }
    }
}

static void bad_loss_reaches_all_ranks_in_every_way_of_reducing(void **state) {
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        for (int micro = 0; micro < MICRO; micro++) {
            struct job j = {.level = &parts_levels[3],
                            .options = every_way[way],
                            .ranks = 2,
                            .bad_rank = 1,
                            .bad_micro = micro,
                            .badness = NAN};
            run_job(&j);
        }
    }
}

static void bad_loss_of_any_micro_batch_reaches_all_ranks(void **state) {
    (void)state;
    for (int micro = 0; micro < MICRO; micro++) {
        struct job j = {.level = &parts_levels[3],
                        .ranks = 2,
                        .bad_rank = 1,
                        .bad_micro = micro,
                        .badness = INFINITY,
                        .reducer = true};
        run_job(&j);
    }
}

/* As threads all speak; of processes rank 0. */
static void bad_loss_is_logged_with_its_rank(void **state) {
    (void)state;
#define SENTENCE \
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32: the loss is inf or nan on rank 2\n"
    struct job j = {.level = &parts_levels[1], .ranks = 3, .bad_rank = 2, .bad_micro = MICRO - 1, .badness = NAN};
    run_job(&j);
    assert_string_equal(log_text, SENTENCE SENTENCE SENTENCE);
}

/* ---- forgotten ---- */

static char *forget_a_bad_micro_batch(cairn_env *env, void *ctx) {
    struct trained t;
    float gradient[PARTS * PART];
    (void)ctx;
    PASS(parts_begin(&t, env, &parts_levels[3], BY_SGD));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), NULL, &t.net));
    parts_numbers(cairn_env_rank(env), 0, 0, gradient);
    EXPECT_OK(ddp_no_sync(t.net, 1));
    EXPECT_OK(backward(&t, env, gradient, cairn_env_rank(env) == 1 ? NAN : 1));
    cairn_zero_grad(t.optimizer);
    EXPECT_OK(ddp_no_sync(t.net, 0));
    EXPECT_OK(backward(&t, env, gradient, 1));
    EXPECT_OK(cairn_step(t.optimizer));
    EXPECT(cairn_optimizer_steps(t.optimizer) == 1 && cairn_optimizer_skipped(t.optimizer) == 0);
    parts_end(&t);
    return NULL;
}

static void unsynced_bad_loss_that_is_zeroed_skips_nothing(void **state) {
    (void)state;
    run_ranks(2, forget_a_bad_micro_batch, NULL);
}

/* ---- checked in between ---- */

/* Rank 1 notes its own bad loss when it clips, the other with the reduction; both skip the step. */
static char *clip_before_the_reduction(cairn_env *env, void *ctx) {
    struct trained t;
    float gradient[PARTS * PART];
    (void)ctx;
    PASS(parts_begin(&t, env, &parts_levels[3], BY_SGD));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), NULL, &t.net));
    for (int step = 0; step < 2; step++) {
        cairn_zero_grad(t.optimizer);
        parts_numbers(cairn_env_rank(env), step, 0, gradient);
        EXPECT_OK(ddp_no_sync(t.net, 1));
        EXPECT_OK(backward(&t, env, gradient, cairn_env_rank(env) == 1 && step == 0 ? NAN : 1));
        EXPECT_OK(cairn_clip_grad_norm(t.optimizer, 1e6, NULL));
        EXPECT_OK(ddp_no_sync(t.net, 0));
        EXPECT_OK(backward(&t, env, gradient, 1));
        EXPECT_OK(cairn_step(t.optimizer));
        EXPECT(cairn_optimizer_step_skipped(t.optimizer) == (step == 0));
        EXPECT(amp_scaler_get_scale(amp_scaler_of(t.amp, 0)) == 32);
    }
    parts_end(&t);
    return NULL;
}

static void bad_loss_reaches_all_ranks_where_one_clips_unsynced_gradients(void **state) {
    (void)state;
    run_ranks(2, clip_before_the_reduction, NULL);
}

/* ---- a hook ---- */

static cairn_status average(void *ctx, const struct ddp_bucket *bucket, cairn_work **work) {
    (void)ctx;
    return cairn_allreduce(bucket->group, bucket->buffer, bucket->n, bucket->dtype, CAIRN_AVG, work);
}

static char *train_under_a_hook(cairn_env *env, void *ctx) {
    struct trained t;
    float gradient[PARTS * PART];
    (void)ctx;
    PASS(parts_begin(&t, env, &parts_levels[3], BY_SGD));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), NULL, &t.net));
    EXPECT_OK(ddp_register_comm_hook(t.net, &(struct ddp_comm_hook){.struct_size = sizeof(struct ddp_comm_hook),
                                                                    .begin = average}));
    parts_numbers(cairn_env_rank(env), 0, 0, gradient);
    EXPECT_OK(backward(&t, env, gradient, cairn_env_rank(env) == 0 ? INFINITY : 1));
    EXPECT_OK(cairn_step(t.optimizer));
    EXPECT(cairn_optimizer_skipped(t.optimizer) == 1);
    parts_end(&t);
    return NULL;
}

static void bad_loss_reaches_all_ranks_with_a_users_hook(void **state) {
    (void)state;
    run_ranks(2, train_under_a_hook, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_loss_on_one_rank_skips_the_step_on_all),
        cmocka_unit_test(bad_loss_reaches_all_ranks_in_every_way_of_reducing),
        cmocka_unit_test(bad_loss_of_any_micro_batch_reaches_all_ranks),
        cmocka_unit_test(bad_loss_is_logged_with_its_rank),
        cmocka_unit_test(unsynced_bad_loss_that_is_zeroed_skips_nothing),
        cmocka_unit_test(bad_loss_reaches_all_ranks_where_one_clips_unsynced_gradients),
        cmocka_unit_test(bad_loss_reaches_all_ranks_with_a_users_hook),
    };
    cairn_set_log(keep_log, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
