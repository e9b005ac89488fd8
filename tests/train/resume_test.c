/* Resumed trainings have the same bits as uninterrupted ones, for all combinations of features. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../kept_log.h"
#include "../one_env.h"
#include "../resume_gan.h"
#include "../state/folder.h"

static int begin_all(void **state) {
    cairn_set_log(log_nothing, NULL); /* of steps that are skipped */
    return make_env(state);
}

static void resume_all(cairn_env *env, const struct resume_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) CALM(resumes(env, &cases[i], 2, (const int[]){0, 2}));
}
#define RESUME_ALL(env, cases) resume_all(env, cases, sizeof(cases) / sizeof((cases)[0]))

static void optimizers_go_on_to_the_bit(void **state) {
    const struct resume_case cases[] = {
        {.name = "SGD", .by = BY_SGD_ALONE},
        {.name = "SGD with momentum", .by = BY_SGD_MOMENTUM, .dropout = true, .statistics = true},
        {.name = "Adam", .by = BY_ADAM, .dropout = true},
        {.name = "AdamW, clipped", .by = BY_ADAMW, .clips = true, .accumulates = true},
        {.name = "groups", .by = BY_ADAMW, .groups = true},
        {.name = "amsgrad in groups", .by = BY_AMSGRAD, .groups = true, .freezes = true},
        {.name = "amsgrad at O2", .by = BY_AMSGRAD, .level = AMP_O2, .half = CAIRN_F16, .overflows = 0x6},
        {.name = "Lion at O1", .by = BY_LION, .level = AMP_O1, .half = CAIRN_F16, .overflows = 0x6},
        {.name = "Lion at O3", .by = BY_LION, .level = AMP_O3, .half = CAIRN_BF16, .stochastic = true, .freezes = true},
        {.name = "Adagrad at O1", .by = BY_ADAGRAD, .level = AMP_O1, .half = CAIRN_BF16, .clips = true},
        {.name = "Adagrad at O2", .by = BY_ADAGRAD, .level = AMP_O2, .half = CAIRN_F16, .overflows = 0x6},
        {.name = "LAMB at O1", .by = BY_LAMB, .level = AMP_O1, .half = CAIRN_BF16, .clips = true},
        {.name = "NovoGrad at O1", .by = BY_NOVOGRAD, .level = AMP_O1, .half = CAIRN_BF16, .clips = true},
        {.name = "NovoGrad at O2", .by = BY_NOVOGRAD, .level = AMP_O2, .half = CAIRN_F16, .overflows = 0x6},
        {.name = "LAMB at O2", .by = BY_LAMB, .level = AMP_O2, .half = CAIRN_F16, .overflows = 0x6},
        {.name = "groups of SGD", .by = BY_SGD_MOMENTUM, .groups = true},
        {.name = "one-cycle", .by = BY_SGD_MOMENTUM, .schedule = cairn_one_cycle_schedule(.total_steps = 45)},
        {.name = "one-cycle of Adam", .by = BY_ADAM, .schedule = cairn_one_cycle_schedule(.total_steps = 30)},
        {.name = "plateau", .by = BY_SGD_MOMENTUM, .plateau = true},
        {.name = "plateau and cosine",
         .by = BY_ADAM,
         .plateau = true,
         .schedule = cairn_cosine_schedule(.total_steps = 60)},
    };
    RESUME_ALL(*state, cases);
}

/* Two skipped steps before the state is kept, for those that count them. */
static void schedules_go_on_to_the_bit(void **state) {
    const int64_t milestones[] = {4, 19, 30}, second[] = {15};
    const struct cairn_schedule_options *parts[] = {cairn_cosine_restarts_schedule(.cycle_steps = 6, .cycle_growth = 2,
                                                                                   .warmup_steps = 3),
                                                    cairn_multi_step_schedule(.milestones = milestones,
                                                                              .num_milestones = 3, .gamma = 0.5)};
    const struct resume_case cases[] = {
        {.name = "first_step", .by = BY_ADAM, .schedule = cairn_linear_schedule(.total_steps = 60, .first_step = 10)},
        {.name = "first_step as far as may be",
         .by = BY_SGD_ALONE,
         .schedule = cairn_inverse_sqrt_schedule(.first_step = (int64_t)1 << 53)},
        {.name = "count_skipped",
         .by = BY_SGD_MOMENTUM,
         .schedule = cairn_cosine_schedule(.total_steps = 50, .count_skipped = CAIRN_ON)},
        {.name = "first_step and count_skipped",
         .by = BY_ADAM,
         .schedule = cairn_step_schedule(.step_size = 5, .first_step = 3, .count_skipped = CAIRN_ON)},
        {.name = "multi-step",
         .by = BY_SGD_MOMENTUM,
         .schedule = cairn_multi_step_schedule(.milestones = milestones, .num_milestones = 3)},
        {.name = "restarts",
         .by = BY_ADAM,
         .schedule = cairn_cosine_restarts_schedule(.cycle_steps = 4, .cycle_growth = 2)},
        {.name = "sequence",
         .by = BY_SGD_MOMENTUM,
         .schedule = cairn_sequence_schedule(.parts = parts, .num_parts = 2, .milestones = second, .num_milestones = 1,
                                             .first_step = 2)},
        {.name = "product",
         .by = BY_ADAMW,
         .schedule = cairn_product_schedule(.parts = parts, .num_parts = 2, .count_skipped = CAIRN_ON)},
        {.name = "exponential", .by = BY_ADAM, .schedule = cairn_exponential_schedule(.gamma = 0.97)},
        {.name = "warmup-stable-decay",
         .by = BY_ADAM,
         .schedule = cairn_warmup_stable_decay_schedule(.total_steps = 45, .warmup_steps = 5, .decay_steps = 20)},
        {.name = "polynomial", .by = BY_ADAM, .schedule = cairn_polynomial_schedule(.total_steps = 45, .power = 1.5)},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct resume_case c = cases[i];
        resume_all(*state, &c, 1);
        c.level = AMP_O2;
        c.half = CAIRN_F16;
        c.overflows = 0x33;
        resume_all(*state, &c, 1);
    }
}

static void what_is_frozen_and_thawed_goes_on_to_the_bit(void **state) {
    const struct resume_case cases[] = {
        {.name = "SGD", .by = BY_SGD_ALONE, .freezes = true},
        {.name = "momentum", .by = BY_SGD_MOMENTUM, .freezes = true, .groups = true},
        {.name = "Adam", .by = BY_ADAM, .freezes = true, .statistics = true, .dropout = true},
        {.name = "Adam at O2", .by = BY_ADAM, .freezes = true, .level = AMP_O2, .overflows = 0x6},
    };
    RESUME_ALL(*state, cases);
}

static void every_level_goes_on_to_the_bit(void **state) {
    static const struct {
        const char *name;
        amp_opt_level level;
        cairn_dtype half;
    } levels[] = {{"O0", AMP_O0, 0},
                  {"O1 f16", AMP_O1, CAIRN_F16},
                  {"O1 bf16", AMP_O1, CAIRN_BF16},
                  {"O2 f16", AMP_O2, CAIRN_F16},
                  {"O2 bf16", AMP_O2, CAIRN_BF16},
                  {"O3 f16", AMP_O3, CAIRN_F16},
                  {"O3 bf16", AMP_O3, CAIRN_BF16}};
    const struct amp_scaler_options *apex =
        amp_scaler_options(.kind = AMP_SCALER_APEX, .init_scale = 64, .growth_interval = 5);
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        for (int by = BY_SGD_ALONE; by <= BY_ADAM; by++) {
            const struct resume_case c = {.name = levels[i].name,
                                          .by = by,
                                          .level = levels[i].level,
                                          .half = levels[i].half,
                                          .scaler = apex,
                                          .statistics = true,
                                          .dropout = true,
                                          .accumulates = by == BY_SGD_MOMENTUM,
                                          .clips = by == BY_ADAM,
                                          .overflows = 0x16}; /* just before, just after, and later */
            resume_all(*state, &c, 1);
        }
    }
}

static void every_kind_of_scaler_goes_on_to_the_bit(void **state) {
    for (amp_scaler_kind kind = AMP_SCALER_STATIC; kind <= AMP_SCALER_MEGATRON; kind++) {
        struct amp_scaler_options *how = amp_scaler_options(.kind = kind, .init_scale = 64);
        if (kind != AMP_SCALER_STATIC) how->growth_interval = 4;
        if (kind >= AMP_SCALER_DEEPSPEED) how->hysteresis = 3;
        const struct resume_case cases[] = {
            {.name = "in a context", .by = BY_ADAM, .level = AMP_O2, .scaler = how, .overflows = 0x56},
            {.name = "by itself", .by = BY_SGD_MOMENTUM, .is_explicit = true, .scaler = how, .overflows = 0x56},
        };
        RESUME_ALL(*state, cases);
    }
}

/* Overflows in a row move logmax's mean far up: the floor is below. */
static void scalers_that_look_at_gradients_go_on_to_the_bit(void **state) {
    const struct amp_scaler_options *const kinds[] = {
        amp_scaler_options(.kind = AMP_SCALER_LOGMAX, .log_max = 6, .beta1 = 0.8, .beta2 = 0.9, .min_scale = 0x1p-100),
        amp_scaler_options(.kind = AMP_SCALER_HISTOGRAM, .init_scale = 64, .growth_interval = 2, .saturation_log = 8,
                           .saturation_share = 0.05)};
    for (int k = 0; k < 2; k++) {
        const struct resume_case cases[] = {
            {.name = "in a context",
             .by = BY_ADAM,
             .level = AMP_O2,
             .scaler = kinds[k],
             .overflows = 0x56,
             .accumulates = true},
            {.name = "by itself", .by = BY_SGD_MOMENTUM, .is_explicit = true, .scaler = kinds[k], .overflows = 0x56},
        };
        RESUME_ALL(*state, cases);
    }
}

static void stochastic_rounding_goes_on_to_the_bit(void **state) {
    const struct resume_case cases[] = {
        {.name = "stochastic", .by = BY_SGD_MOMENTUM, .level = AMP_O3, .half = CAIRN_BF16, .stochastic = true},
        {.name = "stochastic, frozen",
         .by = BY_ADAM,
         .level = AMP_O3,
         .half = CAIRN_BF16,
         .stochastic = true,
         .freezes = true},
    };
    RESUME_ALL(*state, cases);
}

/* ---- recorded steps ---- */

struct recorded {
    struct resume_run run;
    cairn_graph *graph;
    cairn_tensor *loss;
};

static cairn_status record_step(void *user) {
    struct recorded *r = user;
    cairn_status st = CAIRN_OK;
    cairn_zero_grad(r->run.optimizer);
    for (int i = 0; st == CAIRN_OK && i < 1 + r->run.c->accumulates; i++) {
        r->loss = cairn_mse_loss(cairn_module_forward(r->run.net, r->run.x), r->run.y);
        st = amp_backward(r->run.amp, r->loss, r->run.optimizer);
    }
    return st == CAIRN_OK ? cairn_step(r->run.optimizer) : st;
}

static void replay(struct recorded *r, int step, float *loss) {
    float far[RESUME_BATCH * RESUME_OUT];
    CALM(resume_batch(&r->run));
    for (size_t i = 0; i < sizeof(far) / sizeof(far[0]); i++) far[i] = 1e30f; /* the loss is infinite */
    if (step == RESUME_AT - 1 || step == RESUME_AT) OK(cairn_tensor_write(r->run.y, far, RESUME_BATCH * RESUME_OUT));
    OK(cairn_graph_replay(r->graph));
    *loss = cairn_tensor_item(r->loss);
}

static void end_recorded(struct recorded *r) {
    cairn_graph_destroy(&r->graph);
    resume_end(&r->run);
}

static void resume_recorded(cairn_env *env, const struct resume_case *c, int replays) {
    struct recorded whole, rest;
    struct kept_state at = {.count = 0}, want = {.count = 0}, got = {.count = 0};
    float losses[2][RESUME_STEPS];
    check_as(c->name);
    CALM(resume_begin(&whole.run, env, c, 0));
    OK(cairn_graph_capture(env, record_step, &whole, &whole.graph));
    for (int i = 0; i < RESUME_STEPS; i++) {
        if (i == RESUME_AT) CALM(keep_state(&at, whole.run.parts, whole.run.num_parts));
        if (i == RESUME_AT && resume_folder) CALM(save_to_files(&whole.run, resume_folder, i));
        replay(&whole, i, &losses[0][i]);
    }
    CALM(keep_state(&want, whole.run.parts, whole.run.num_parts));
    const uint64_t weights = resume_weights(&whole.run);
    assert_int_equal(cairn_optimizer_skipped(whole.run.optimizer), 2);
    end_recorded(&whole);

    CALM(resume_begin(&rest.run, env, c, RESUME_AT));
    OK(cairn_graph_capture(env, record_step, &rest, &rest.graph));
    for (int i = 0; i < replays; i++) replay(&rest, i, &losses[1][i]);
    CALM(resume_folder ? load_from_files(&rest.run, resume_folder, RESUME_AT)
                       : bring_back(&at, rest.run.parts, rest.run.num_parts));
    for (int i = RESUME_AT; i < RESUME_STEPS; i++) replay(&rest, i, &losses[1][i]);
    if (strcmp(cairn_device_name(env->device), "cpu") != 0) assert_true(cairn_graph_is_recorded(rest.graph));
    CALM(keep_state(&got, rest.run.parts, rest.run.num_parts));
    CALM(same_states(&want, &got));
    assert_true(weights == resume_weights(&rest.run));
    assert_memory_equal(losses[0] + RESUME_AT, losses[1] + RESUME_AT, (RESUME_STEPS - RESUME_AT) * sizeof(float));
    end_recorded(&rest);
    drop_state(&at);
    drop_state(&want);
    drop_state(&got);
}

/* Loaded before the graph's first run, while it warms up, and once it is recorded. */
static void a_recorded_training_goes_on_to_the_bit(void **state) {
    const struct amp_scaler_options *apex =
        amp_scaler_options(.kind = AMP_SCALER_APEX, .init_scale = 64, .growth_interval = 5);
    const struct resume_case cases[] = {
        {.name = "recorded, O1", .by = BY_SGD_MOMENTUM, .level = AMP_O1, .scaler = apex},
        {.name = "recorded, O2", .by = BY_ADAM, .level = AMP_O2, .scaler = apex, .groups = true},
        {.name = "recorded, O3", .by = BY_ADAMW, .level = AMP_O3, .half = CAIRN_BF16, .scaler = apex},
        {.name = "recorded, O0", .by = BY_SGD_MOMENTUM, .level = AMP_O0, .scaler = apex},
        {.name = "recorded, O1 bf16", .by = BY_ADAM, .level = AMP_O1, .half = CAIRN_BF16, .scaler = apex},
        {.name = "recorded, O3 f16", .by = BY_ADAMW, .level = AMP_O3, .half = CAIRN_F16, .scaler = apex},
        {.name = "recorded, SGD",
         .by = BY_SGD_ALONE,
         .level = AMP_O2,
         .scaler = apex,
         .schedule = cairn_cosine_schedule(.total_steps = 45, .count_skipped = CAIRN_ON)},
        {.name = "recorded, dropout",
         .by = BY_SGD_MOMENTUM,
         .level = AMP_O0,
         .scaler = apex,
         .dropout = true,
         .schedule = cairn_cosine_schedule(.total_steps = 45)},
        {.name = "recorded, dropout accumulates",
         .by = BY_ADAM,
         .level = AMP_O2,
         .half = CAIRN_F16,
         .scaler = apex,
         .dropout = true,
         .accumulates = true},
        {.name = "recorded, statistics", .by = BY_ADAMW, .level = AMP_O1, .scaler = apex, .statistics = true},
        {.name = "recorded, statistics accumulate",
         .by = BY_SGD_MOMENTUM,
         .level = AMP_O2,
         .half = CAIRN_BF16,
         .scaler = apex,
         .statistics = true,
         .accumulates = true},
        {.name = "recorded, O0 accumulates", .by = BY_ADAM, .level = AMP_O0, .scaler = apex, .accumulates = true},
        {.name = "recorded, O1 accumulates",
         .by = BY_SGD_ALONE,
         .level = AMP_O1,
         .half = CAIRN_F16,
         .scaler = apex,
         .accumulates = true},
        {.name = "recorded, O2 accumulates", .by = BY_ADAM, .level = AMP_O2, .scaler = apex, .accumulates = true},
        {.name = "recorded, one-cycle",
         .by = BY_SGD_MOMENTUM,
         .level = AMP_O2,
         .half = CAIRN_BF16,
         .scaler = apex,
         .schedule = cairn_one_cycle_schedule(.total_steps = 45)},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int replays = 0; replays <= 6; replays += 2) resume_recorded(*state, &cases[i], replays);
    }
}

static int first_seed = 1, num_seeds = 40;

static void trainings_by_chance_go_on_to_the_bit(void **state) {
    for (int seed = first_seed; seed < first_seed + num_seeds; seed++) {
        struct random_case r;
        draw_case(&r, (uint64_t)seed, 1);
        CALM(resumes(*state, &r.c, 1, (const int[]){seed % 3}));
    }
}

static void trainings_of_two_models_by_chance_go_on_to_the_bit(void **state) {
    for (int seed = first_seed; seed < first_seed + num_seeds; seed++) CALM(gan_resumes_by_chance(*state, seed));
}

/* The generator's loss, which both optimizers were given, is infinite in the last step before the state: the
 * discriminator has no gradient of it, and skips its next step all the same. */
static void a_step_that_will_be_skipped_is_so_after_a_load(void **state) {
    cairn_env *env = *state;
    const struct gan_case c = {
        .level = AMP_O2, .half = CAIRN_F16, .scaler = AMP_SCALER_APEX, .bad_g = 2, .forgets = true, .at = 4};
    struct gan_run whole, rest;
    struct kept_state at = {.count = 0};
    float losses[2];
    CALM(gan_begin(&whole, env, &c, 3));
    for (int i = 0; i < c.at; i++) CALM(gan_step(&whole, i, losses));
    assert_int_equal(cairn_optimizer_skipped(whole.by_g), 1);
    assert_int_equal(cairn_optimizer_skipped(whole.by_d), 0);
    CALM(keep_state(&at, whole.parts, whole.num_parts));
    assert_non_null(cairn__entries_find(&at.objects[2].entries, "skip.micro_batch"));
    gan_end(&whole);
    CALM(gan_begin(&rest, env, &c, 4));
    CALM(bring_back(&at, rest.parts, rest.num_parts));
    cairn_set_log(keep_log, NULL);
    CALM(gan_step(&rest, c.at, losses));
    cairn_set_log(log_nothing, NULL); /* of steps that are skipped */
    assert_int_equal(cairn_optimizer_skipped(rest.by_d), 1);
    assert_int_equal(cairn_optimizer_skipped(rest.by_g), 1);
    assert_non_null(strstr(log_text, "Skipping step"));
    assert_non_null(strstr(log_text, "the loss is inf or nan"));
    cairn__entries_find(&at.objects[2].entries, "skip.micro_batch")->number.i64 = -1;
    char *said = bring_back(&at, rest.parts, rest.num_parts);
    assert_non_null(strstr(said, "micro-batch -1 of rank 0"));
    free(said);
    gan_end(&rest);
    drop_state(&at);
}

/* -Dstate=disabled leaves checkpoints out. */
static bool has_files(void) {
    return cairn_state_create(NULL, NULL) != CAIRN_ENOTBUILT;
}

static int run_by_chance(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(trainings_by_chance_go_on_to_the_bit),
                                       cmocka_unit_test(trainings_of_two_models_by_chance_go_on_to_the_bit)};
    num_seeds = atoi(argv[2]);
    if (argc > 3) first_seed = atoi(argv[3]);
    return cmocka_run_group_tests_name("trainings by chance", tests, begin_all, end_env);
}

/* usage: resume_test [files | random SEEDS [FIRST]]    files: states go through checkpoints */
int main(int argc, char **argv) {
    if (make_folder(NULL) != 0) return 1;
    if (argc > 1 && strcmp(argv[1], "files") == 0) resume_folder = folder;
    resume_folder_of_some = has_files() ? folder : NULL;
    if (argc > 2 && strcmp(argv[1], "random") == 0) {
        const int failures = run_by_chance(argc, argv);
        remove_folder(NULL);
        return failures;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers_go_on_to_the_bit),
        cmocka_unit_test(schedules_go_on_to_the_bit),
        cmocka_unit_test(what_is_frozen_and_thawed_goes_on_to_the_bit),
        cmocka_unit_test(every_level_goes_on_to_the_bit),
        cmocka_unit_test(every_kind_of_scaler_goes_on_to_the_bit),
        cmocka_unit_test(scalers_that_look_at_gradients_go_on_to_the_bit),
        cmocka_unit_test(stochastic_rounding_goes_on_to_the_bit),
        cmocka_unit_test(a_recorded_training_goes_on_to_the_bit),
        cmocka_unit_test(a_step_that_will_be_skipped_is_so_after_a_load),
        cmocka_unit_test(trainings_by_chance_go_on_to_the_bit),
        cmocka_unit_test(trainings_of_two_models_by_chance_go_on_to_the_bit),
    };
    const int failed = cmocka_run_group_tests(tests, begin_all, end_env);
    remove_folder(NULL);
    return failed;
}
