/* On every rank the message about a skipped step names the ranks whose own gradients were not finite. */
#include <math.h>

#include "../kept_log.h"
#include "../mlp.h"
#include "../plant.h"
#include "../ranks.h"
#include "core/convert.h"
#include "optim/optim.h"

enum { MAX_STEPS = 16, IN = 24, HIDDEN = 17, OUT = 5, ROWS = 8, PARAMS = 4, N = 60 };
static const char *const names[PARAMS] = {"wte", "wpe", "ln", "head"};
static const size_t first_of[PARAMS + 1] = {0, 33, 40, 41, N};

/* Of a backward: bit r = rank r brings an infinity. */
struct script {
    int steps, micro_batches;
    unsigned whose[MAX_STEPS][2];
    float scaled[MAX_STEPS]; /* the loss scale is multiplied by it before that step; 0 = by 1 */
    float value;             /* on each rank, in each element of one parameter; 0: an infinity in one */
    struct amp_options amp;
    struct ddp_options ddp;
    cairn_dtype storage; /* of gradients in the user's memory; 0 = a module's */
};

static const struct amp_options o2 = {.struct_size = sizeof(o2),
                                      .opt_level = AMP_O2,
                                      .max_loss_scale = 1024,
                                      .verbosity = -1};

/* ---- trainers ---- */

struct training {
    const struct script *script;
    cairn_module *model; /* NULL: the memory is ours */
    cairn_param_set *set;
    cairn_optimizer *sgd;
    amp_context *amp;
    ddp_context *net;
    cairn_tensor *x, *y;
    struct plant plant;
    union {
        float f32[N];
        uint16_t half[N];
    } w, g;
};

static void *at(void *array, cairn_dtype dtype, size_t i) {
    return (char *)array + i * cairn_dtype_nbytes(dtype);
}

static char *begin_module(struct training *t, cairn_env *env) {
    t->model = make_mlp(env, IN, HIDDEN, OUT);
    EXPECT(t->model);
    t->set = cairn_module_params(t->model);
    t->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN));
    t->y = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(ROWS, OUT));
    EXPECT_OK(cairn_sgd_create(t->set, &(struct cairn_sgd_options)CAIRN_SGD_OPTIONS_INIT, &t->sgd));
    EXPECT_OK(amp_initialize(env, t->model, t->sgd, &t->script->amp, &t->amp));
    EXPECT_OK(ddp_create(t->model, cairn_env_group(env), &t->script->ddp, &t->net));
    plant_install(&t->plant, t->set);
    return NULL;
}

static char *begin_own(struct training *t, cairn_env *env) {
    const cairn_dtype storage = t->script->storage;
    cairn_param params[PARAMS];
    for (size_t p = 0; p < PARAMS; p++) {
        params[p] = (cairn_param){.name = names[p],
                                  .data = at(&t->w, storage, first_of[p]),
                                  .grad = at(&t->g, storage, first_of[p]),
                                  .dtype = storage,
                                  .ndim = 1,
                                  .shape = {(int64_t)(first_of[p + 1] - first_of[p])}};
    }
    EXPECT_OK(cairn_param_set_create(env, params, PARAMS, &t->set));
    EXPECT_OK(cairn_sgd_create(t->set, &(struct cairn_sgd_options)CAIRN_SGD_OPTIONS_INIT, &t->sgd));
    EXPECT_OK(amp_initialize_params(env, t->set, t->sgd, &t->script->amp, &t->amp));
    EXPECT_OK(ddp_create_params(t->set, cairn_env_group(env), &t->script->ddp, &t->net));
    return NULL;
}

static void end(struct training *t) {
    if (t->model) plant_remove(&t->plant);
    ddp_destroy(&t->net);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->sgd);
    if (!t->model) cairn_param_set_destroy(&t->set);
    cairn_module_destroy(&t->model);
    cairn_tensor_destroy(&t->x);
    cairn_tensor_destroy(&t->y);
}

/* Ranks have it in different parameters, of different buckets. */
static char *backward(struct training *t, cairn_env *env, bool bad) {
    const int rank = cairn_env_rank(env), target = t->script->value != 0 ? 1 : rank % PARAMS;
    const float value = t->script->value != 0 ? t->script->value : INFINITY;
    if (t->model) {
        t->plant.target = bad ? target : -1;
        t->plant.all = t->script->value != 0;
        t->plant.value = value;
        EXPECT_OK(amp_backward(t->amp, cairn_mse_loss(ddp_forward(t->net, t->x), t->y), t->sgd));
        return NULL;
    }
    (void)amp_next_scale(t->amp);
    for (size_t i = 0; i < N; i++) {
        const bool here = bad && i >= first_of[target] && i < first_of[target + 1];
        const bool all = t->script->value != 0;
        const float x = here && (all || i == first_of[target]) ? value : 0.25f;
        cairn__convert(at(&t->g, t->script->storage, i), t->script->storage, &x, CAIRN_F32, 1);
    }
    EXPECT_OK(ddp_grads_ready(t->net, 0, PARAMS));
    EXPECT_OK(ddp_wait(t->net));
    return NULL;
}

static char *step(struct training *t, cairn_env *env, int s) {
    const struct script *script = t->script;
    unsigned any = 0;
    cairn_zero_grad(t->sgd);
    if (script->scaled[s] != 0) {
        amp_scaler *scaler = amp_scaler_of(t->amp, 0);
        struct amp_scaler_state state = {.struct_size = sizeof(state)};
        EXPECT_OK(amp_scaler_get_state(scaler, &state));
        state.scale *= (double)script->scaled[s];
        EXPECT_OK(amp_scaler_set_state(scaler, &state));
    }
    for (int m = 0; m < script->micro_batches; m++) {
        PASS(backward(t, env, script->whose[s][m] >> cairn_env_rank(env) & 1));
        any |= script->whose[s][m];
    }
    EXPECT_OK(cairn_step(t->sgd));
    EXPECT(cairn_optimizer_step_skipped(t->sgd) == (any != 0));
    return NULL;
}

static char *train(cairn_env *env, void *ctx) {
    struct training *t = calloc(1, sizeof(*t));
    t->script = ctx;
    PASS(t->script->storage ? begin_own(t, env) : begin_module(t, env));
    for (int s = 0; s < t->script->steps; s++) PASS(step(t, env, s));
    end(t);
    free(t);
    return NULL;
}

/* ---- messages ---- */

/* The ends of the messages about skipped steps, behind the parameters: each once by every rank. */
static void expect_said(int p, const struct script *script, const char *const *sayings, int count) {
    int lines = 0, said[MAX_STEPS] = {0};
    log_text[0] = '\0';
    run_ranks(p, train, (void *)(uintptr_t)script);
    for (char *line = strtok(log_text, "\n"); line; line = strtok(NULL, "\n")) {
        if (!strstr(line, "non-finite gradient in")) continue;
        for (int k = 0; k < count; k++) said[k] += strcmp(strrchr(line, ')') + 1, sayings[k]) == 0;
        lines++;
    }
    for (int k = 0; k < count; k++) {
        if (said[k] != p) fail_msg("%d of %d ranks said '%s'", said[k], p, sayings[k]);
    }
    assert_int_equal(lines, p * count);
}

#define SAYINGS(...) \
    (const char *const[]){__VA_ARGS__}, (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

/* A module; buckets of many kinds; memory of the user's. */
static const struct script ways[] = {
    {.amp = {.opt_level = AMP_O2}},
    {.amp = {.opt_level = AMP_O1}},
    {.amp = {.opt_level = AMP_O3, .loss_scale = 128}},
    {.amp = {.opt_level = AMP_O2, .half_type = CAIRN_BF16}},
    {.amp = {.opt_level = AMP_O0, .skip_nonfinite = CAIRN_ON}},
    {.amp = {.opt_level = AMP_O2}, .ddp = {.bucket_nbytes = 512}},
    {.amp = {.opt_level = AMP_O2}, .ddp = {.message_size = 1}},
    {.amp = {.opt_level = AMP_O2}, .ddp = {.gradient_as_bucket_view = CAIRN_OFF}},
    {.amp = {.opt_level = AMP_O2}, .ddp = {.gradient_average = CAIRN_OFF}},
    {.amp = {.opt_level = AMP_O2}, .ddp = {.allreduce_always_fp32 = CAIRN_ON}},
    {.amp = {.opt_level = AMP_O2}, .storage = CAIRN_F32},
    {.amp = {.opt_level = AMP_O1}, .storage = CAIRN_F32},
    {.amp = {.opt_level = AMP_O2}, .storage = CAIRN_F16},
    {.amp = {.opt_level = AMP_O2}, .ddp = {.message_size = 40}, .storage = CAIRN_F16},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static bool is_dynamic(int way) {
    const struct amp_options *amp = &ways[way].amp;
    return amp->opt_level != AMP_O0 && amp->loss_scale == 0 && amp->half_type != CAIRN_BF16;
}

static struct script in_way(int way, struct script script) {
    script.amp = ways[way].amp;
    script.ddp = ways[way].ddp;
    script.storage = ways[way].storage;
    script.amp.struct_size = sizeof(script.amp);
    script.ddp.struct_size = sizeof(script.ddp);
    script.amp.verbosity = -1;
    if (is_dynamic(way)) script.amp.max_loss_scale = 1024; /* at which nothing else overflows */
    if (!script.micro_batches) script.micro_batches = 1;
    return script;
}

static void ranks_are_named_that_had_an_infinity(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        const struct script two = in_way(w, (struct script){.steps = 6, .whose = {{0}, {2}, {0}, {1}, {3}, {0}}});
        expect_said(2, &two, SAYINGS(", on rank 1", ", on rank 0", ", on ranks 0 and 1"));
        const struct script four = in_way(w, (struct script){.steps = 4, .whose = {{4}, {0}, {11}, {15}}});
        expect_said(4, &four, SAYINGS(", on rank 2", ", on ranks 0, 1 and 3", ", on ranks 0, 1, 2 and 3"));
    }
    const struct script three = in_way(0, (struct script){.steps = 2, .whose = {{5}, {0}}});
    expect_said(3, &three, SAYINGS(", on ranks 0 and 2"));
}

/* 40000 on each of three is infinite as a sum in f16. */
static void a_sum_that_overflows_from_finite_gradients_names_no_rank(void **state) {
    (void)state;
    struct script script = in_way(8, (struct script){.steps = 2, .whose = {{7}, {0}}, .value = 40000});
    expect_said(3, &script, SAYINGS(", only in the sum over the ranks: the gradients of each rank are finite"));
    script.storage = CAIRN_F16;
    expect_said(3, &script, SAYINGS(", only in the sum over the ranks: the gradients of each rank are finite"));
}

static void micro_batches_of_a_step_name_the_ranks_of_all(void **state) {
    (void)state;
    const struct script script =
        in_way(0, (struct script){.steps = 3, .micro_batches = 2, .whose = {{1, 4}, {0, 2}, {4, 0}}});
    expect_said(3, &script, SAYINGS(", on ranks 0 and 2", ", first in micro-batch 2, on rank 1", ", on rank 2"));
}

/* ddp looks when an overflow is likely: in the first 8 backwards, after growth, after a skipped step. */
static void an_unexpected_overflow_names_its_rank_from_the_second_time_on(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        const struct script after_skip = in_way(w, (struct script){.steps = 13, .whose = {[9] = {2}, [11] = {2}}});
        expect_said(2, &after_skip, SAYINGS("", ", on rank 1"));
        if (!is_dynamic(w)) continue;
        const struct script after_growth =
            in_way(w, (struct script){.steps = 13, .whose = {[11] = {2}}, .scaled = {[1] = 0.5f, [10] = 2}});
        expect_said(2, &after_growth, SAYINGS(", on rank 1"));
    }
}

static char *ask_for_the_last(cairn_env *env, void *ctx) {
    const struct script script = {.micro_batches = 1,
                                  .whose = {{2}, {3}},
                                  .amp = o2,
                                  .ddp = {.struct_size = sizeof(struct ddp_options)}};
    struct training *t = calloc(1, sizeof(*t));
    struct amp_overflow one = {0};
    size_t found = 0;
    (void)ctx;
    t->script = &script;
    PASS(begin_module(t, env));
    PASS(step(t, env, 0));
    EXPECT_OK(amp_last_overflow(t->amp, NULL, &one, 1, &found));
    EXPECT(found == 1 && one.rank == 1 && strcmp(one.name, "0.bias") == 0);
    PASS(step(t, env, 1));
    EXPECT_OK(amp_last_overflow(t->amp, NULL, &one, 1, &found));
    EXPECT(found == 2 && one.rank == -1);
    end(t);
    free(t);
    return NULL;
}

static void the_last_overflow_has_its_rank_where_there_is_one(void **state) {
    (void)state;
    run_ranks(2, ask_for_the_last, NULL);
}

/* Under no_sync each rank decides by itself. */
static char *step_alone(cairn_env *env, void *ctx) {
    const struct script script = {.micro_batches = 1,
                                  .whose = {{0}, {2}},
                                  .amp = o2,
                                  .ddp = {.struct_size = sizeof(struct ddp_options)}};
    struct training *t = calloc(1, sizeof(*t));
    const bool bad = cairn_env_rank(env) == 1;
    (void)ctx;
    t->script = &script;
    PASS(begin_module(t, env));
    cairn_tensor *loss = cairn_mse_loss(ddp_forward(t->net, t->x), t->y);
    EXPECT_OK(ddp_no_sync(t->net, 1));
    if (bad) loss = cairn_mul_scalar(loss, INFINITY);
    EXPECT_OK(amp_backward(t->amp, loss, t->sgd));
    EXPECT_OK(cairn_step(t->sgd));
    EXPECT(cairn_optimizer_step_skipped(t->sgd) == bad);
    EXPECT_OK(ddp_no_sync(t->net, 0));
    PASS(step(t, env, 0));
    PASS(step(t, env, 1));
    end(t);
    free(t);
    return NULL;
}

static void a_rank_that_steps_alone_waits_for_no_other(void **state) {
    (void)state;
    run_ranks(2, step_alone, NULL);
}

int main(void) {
    cairn_set_log(keep_log, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_named_that_had_an_infinity),
        cmocka_unit_test(a_sum_that_overflows_from_finite_gradients_names_no_rank),
        cmocka_unit_test(micro_batches_of_a_step_name_the_ranks_of_all),
        cmocka_unit_test(an_unexpected_overflow_names_its_rank_from_the_second_time_on),
        cmocka_unit_test(the_last_overflow_has_its_rank_where_there_is_one),
        cmocka_unit_test(a_rank_that_steps_alone_waits_for_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
