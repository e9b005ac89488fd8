/* Ranks whose models or options differ: all ranks fail soon, with the parameter's name and both ranks' values. */
#include "../mlp.h"
#include "../ranks.h"
#include "../trainer.h"

/* ---- what they are made of ---- */

struct entry {
    const char *name;
    int64_t shape[2];
};

enum { MOST = 4, ODD = 1 };

#define LONG "encoder.layers.11.attention.projection.of.keys.and.values.after.dropout"

struct difference {
    struct entry first[MOST], odd[MOST]; /* of rank ODD */
    const char *want[3];
};

static const struct difference differences[] = {
    {{{"a", {2, 3}}, {"b", {4, 5}}},
     {{"a", {2, 3}}},
     {"parameter 1 is 'b' [4, 5] f32 on rank 0 but missing on rank 1"}},
    {{{"a", {2, 3}}},
     {{"a", {2, 3}}, {"b", {4, 5}}},
     {"parameter 1 is 'b' [4, 5] f32 on rank 1 but missing on rank 0"}},
    {{{"a", {2, 3}}, {"b", {4, 5}}, {"c", {1, 6}}},
     {{"a", {2, 3}}, {"c", {1, 6}}},
     {"parameter 1 is 'b' [4, 5] f32 on rank 0 but missing on rank 1"}},
    {{{"a", {2, 3}}, {"c", {1, 6}}},
     {{"b", {4, 5}}, {"a", {2, 3}}, {"c", {1, 6}}},
     {"parameter 0 is 'b' [4, 5] f32 on rank 1 but missing on rank 0"}},
    {{{"a", {2, 3}}, {"b", {4, 5}}},
     {{"a", {2, 3}}, {"b", {5, 4}}},
     {"parameter 1 is 'b' [4, 5] f32 on rank 0 but 'b' [5, 4] f32 on rank 1", "the same model"}},
    {{{"a", {2, 3}}, {"b", {4, 5}}, {"c", {1, 6}}},
     {{"a", {2, 3}}, {"c", {1, 6}}, {"b", {4, 5}}},
     {"parameter 1 is 'b' [4, 5] f32 on rank 0 but 'c' [1, 6] f32 on rank 1", "in the same order"}},
    {{{LONG ".weight", {2, 3}}},
     {{LONG ".bias", {2, 3}}},
     {"'" LONG ".weight' [2, 3] f32 on rank 0 but missing on rank 1"}},
};
enum { NUM_DIFFERENCES = sizeof(differences) / sizeof(differences[0]) };

static bool tells(const char *const want[3]) {
    for (int i = 0; i < 3; i++) {
        if (want[i] && !strstr(cairn_last_error(), want[i])) return false;
    }
    return true;
}

static char *make_model_of(cairn_env *env, const struct entry *entries, cairn_module **model) {
    EXPECT_OK(cairn__module_create(env, &mlp_kind, 0, model));
    for (int i = 0; i < MOST && entries[i].name; i++) {
        EXPECT_OK(cairn__module_add_param(*model, entries[i].name, 2, entries[i].shape, false, NULL));
    }
    return NULL;
}

static char *create_different_models(cairn_env *env, void *ctx) {
    const struct difference *d = ctx;
    cairn_module *model = NULL;
    ddp_context *net = NULL;
    char *failure = make_model_of(env, cairn_env_rank(env) == ODD ? d->odd : d->first, &model);
    if (failure) return failure;
    EXPECT(ddp_create(model, cairn_env_group(env), NULL, &net) == CAIRN_EPEER);
    EXPECT(strncmp(cairn_last_error(), "ddp_create: ", 12) == 0 && tells(d->want));
    EXPECT(net == NULL);
    cairn_module_destroy(&model);
    return NULL;
}

static void different_models_fail_on_every_rank_with_name_and_both_values(void **state) {
    (void)state;
    for (int i = 0; i < NUM_DIFFERENCES; i++) run_ranks(3, create_different_models, (void *)(uintptr_t)&differences[i]);
}

/* ---- buffers of the user's ---- */

static char *create_different_sets(cairn_env *env, void *ctx) {
    const struct difference *d = ctx;
    const struct entry *entries = cairn_env_rank(env) == ODD ? d->odd : d->first;
    static _Thread_local float memory[64];
    cairn_param params[MOST] = {{0}};
    cairn_param_set *set = NULL;
    ddp_context *net = NULL;
    size_t count = 0;
    for (; count < MOST && entries[count].name; count++) {
        params[count] = (cairn_param){.name = entries[count].name,
                                      .data = memory,
                                      .grad = memory + 32,
                                      .dtype = CAIRN_F32,
                                      .ndim = 2,
                                      .shape = {entries[count].shape[0], entries[count].shape[1]}};
    }
    EXPECT_OK(cairn_param_set_create(env, params, count, &set));
    EXPECT(ddp_create_params(set, cairn_env_group(env), NULL, &net) == CAIRN_EPEER);
    EXPECT(strncmp(cairn_last_error(), "ddp_create_params: ", 19) == 0 && tells(d->want));
    cairn_param_set_destroy(&set);
    return NULL;
}

static void different_sets_of_the_users_fail_on_every_rank(void **state) {
    (void)state;
    for (int i = 0; i < NUM_DIFFERENCES; i++) run_ranks(3, create_different_sets, (void *)(uintptr_t)&differences[i]);
}

static char *create_sets_of_types(cairn_env *env, void *ctx) {
    static _Thread_local float memory[16];
    const bool is_odd = cairn_env_rank(env) == ODD;
    const cairn_param param = {"w", memory, memory + 8, is_odd ? CAIRN_BF16 : CAIRN_F32, 2, {2, 3}, CAIRN_OFF};
    cairn_param_set *set = NULL;
    ddp_context *net = NULL;
    (void)ctx;
    EXPECT_OK(cairn_param_set_create(env, &param, 1, &set));
    EXPECT(ddp_create_params(set, cairn_env_group(env), NULL, &net) == CAIRN_EPEER);
    EXPECT(strstr(cairn_last_error(), "parameter 0 is 'w' [2, 3] f32 on rank 0 but 'w' [2, 3] bf16 on rank 1"));
    cairn_param_set_destroy(&set);
    return NULL;
}

static void different_types_fail_on_every_rank(void **state) {
    (void)state;
    run_ranks(3, create_sets_of_types, NULL);
}

/* ---- options ---- */

static const char *const a_bias[] = {"0.bias"}, *const another_bias[] = {"2.bias"};

static const struct option_difference {
    struct ddp_options first, odd;
    const char *want;
} option_differences[] = {
    {{.bucket_nbytes = 2 << 20},
     {.bucket_nbytes = 1 << 20},
     "bucket_nbytes is 2097152 on rank 0 but 1048576 on rank 1"},
    {{.message_size = 7}, {.message_size = 8}, "message_size is 7 on rank 0 but 8 on rank 1"},
    {{.gradient_average = CAIRN_ON},
     {.gradient_average = CAIRN_OFF},
     "gradient_average is 1 on rank 0 but 2 on rank 1"},
    {{.find_unused_parameters = CAIRN_ON}, {0}, "find_unused_parameters is 1 on rank 0 but 2 on rank 1"},
    {{0}, {.ignored = a_bias, .num_ignored = 1}, "num_ignored is 0 on rank 0 but 1 on rank 1"},
    {{.ignored = a_bias, .num_ignored = 1},
     {.ignored = another_bias, .num_ignored = 1},
     "ignored is 0.bias on rank 0 but 2.bias on rank 1"},
    {{0}, {.wire = CAIRN_I64}, "wire is i64"}, /* wrong by itself: all hear of it */
};

static char *create_with_other_options(cairn_env *env, void *ctx) {
    const struct option_difference *d = ctx;
    struct ddp_options o = cairn_env_rank(env) == ODD ? d->odd : d->first;
    cairn_module *model = make_mlp(env, 6, 5, 4);
    ddp_context *net = NULL;
    o.struct_size = sizeof(o);
    const cairn_status st = ddp_create(model, cairn_env_group(env), &o, &net);
    EXPECT(st == CAIRN_EPEER || (st == CAIRN_EINVAL && o.wire == CAIRN_I64));
    EXPECT(strstr(cairn_last_error(), d->want));
    cairn_module_destroy(&model);
    return NULL;
}

static void different_options_fail_on_every_rank(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(option_differences) / sizeof(option_differences[0]); i++)
        run_ranks(3, create_with_other_options, (void *)(uintptr_t)&option_differences[i]);
}

/* ---- what they do ---- */

static char *begin(struct trainer *t, cairn_env *env, cairn_group *group) {
    *t = (struct trainer){.model = make_mlp(env, 6, 5, 4)};
    EXPECT_OK(cairn_sgd_create(cairn_module_params(t->model), NULL, &t->optimizer));
    EXPECT_OK(ddp_create(t->model, group, NULL, &t->net));
    t->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(3, 6));
    return NULL;
}

static cairn_status step(struct trainer *t) {
    cairn_zero_grad(t->optimizer);
    const cairn_status st = cairn_backward(cairn_sum(ddp_forward(t->net, t->x)));
    return st == CAIRN_OK ? cairn_step(t->optimizer) : st;
}

enum { STEPS = 3 };

/* *ctx: how many steps rank ODD takes more. Those who take fewer have nothing to fail in. */
static char *take_steps(cairn_env *env, void *ctx) {
    const int more = *(int *)ctx, is_odd = cairn_env_rank(env) == ODD;
    struct trainer t;
    PASS(begin(&t, env, cairn_env_group(env)));
    for (int s = 0; s < STEPS; s++) EXPECT_OK(step(&t));
    if (is_odd ? more > 0 : more < 0) {
        EXPECT(step(&t) == CAIRN_EPEER);
        EXPECT(strstr(cairn_last_error(), "ddp: bucket 0 ('2.bias' to '0.weight') of backward 4: "));
        EXPECT(strstr(cairn_last_error(), is_odd ? "rank 0" : "rank 1"));
        EXPECT(cairn_step(t.optimizer) == CAIRN_ESTATE && strstr(cairn_last_error(), "incomplete"));
    }
    trainer_destroy(&t);
    return NULL;
}

static void rank_that_takes_a_step_more_or_fewer_fails_with_the_others(void **state) {
    (void)state;
    for (int more = -1; more <= 1; more += 2) run_ranks(3, take_steps, &more);
}

static char *call_another_collective(cairn_env *env, void *ctx) {
    struct trainer t;
    (void)ctx;
    PASS(begin(&t, env, cairn_env_group(env)));
    for (int s = 0; s < STEPS; s++) EXPECT_OK(step(&t));
    if (cairn_env_rank(env) == ODD) {
        EXPECT(cairn_barrier(ddp_group(t.net)) == CAIRN_EPEER);
    } else {
        EXPECT(step(&t) == CAIRN_EPEER);
        EXPECT(strstr(cairn_last_error(), "ddp: bucket 0 ('2.bias' to '0.weight') of backward 4: "));
    }
    EXPECT(strstr(cairn_last_error(), "issues barrier") && strstr(cairn_last_error(), "issues all-reduce"));
    trainer_destroy(&t);
    return NULL;
}

static void rank_that_calls_another_collective_fails_with_the_others(void **state) {
    (void)state;
    run_ranks(3, call_another_collective, NULL);
}

/* In the user's group, where no difference is seen: the rank that waits longest gives up, and then all do. */
static char *wait_elsewhere(cairn_env *env, void *ctx) {
    cairn_group *hasty = NULL;
    struct trainer t;
    (void)ctx;
    EXPECT_OK(cairn_group_new(cairn_env_group(env), NULL, 0, cairn_group_options(.timeout = 2), &hasty));
    PASS(begin(&t, env, hasty));
    for (int s = 0; s < STEPS; s++) EXPECT_OK(step(&t));
    if (cairn_env_rank(env) == ODD) {
        EXPECT(cairn_barrier(cairn_env_group(env)) == CAIRN_EPEER);
    } else {
        const cairn_status st = step(&t);
        EXPECT(st == CAIRN_ETIMEOUT || st == CAIRN_EPEER); /* who gives up first tells the other */
        EXPECT(strstr(cairn_last_error(), "ddp: bucket 0 ('2.bias' to '0.weight') of backward 4: "));
        EXPECT(strstr(cairn_last_error(), "rank 1"));
    }
    trainer_destroy(&t);
    cairn_group_destroy(&hasty);
    return NULL;
}

static void rank_that_skips_a_backward_and_waits_elsewhere_fails_all_within_the_timeout(void **state) {
    (void)state;
    run_ranks(3, wait_elsewhere, NULL);
}

/* Rank ODD's loss is a number in the second step. It fails with the cause, and so do the others; alone it goes on. */
static char *have_a_loss_of_nothing(cairn_env *env, void *ctx) {
    const int ranks = cairn_env_size(env), odd = ranks > 1 ? ODD : 0;
    const bool is_odd = cairn_env_rank(env) == odd;
    cairn_module *model = make_mlp(env, 3, 4, 2);
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(5, 3));
    ddp_context *net = NULL;
    EXPECT_OK(ddp_create(model, cairn_env_group(env), ctx, &net));
    EXPECT_OK(cairn_backward(cairn_sum(ddp_forward(net, x))));
    cairn_module_zero_grad(model);
    cairn_tensor *loss = cairn_sum(is_odd ? x : ddp_forward(net, x));
    if (is_odd) {
        EXPECT(cairn_backward(loss) == CAIRN_EINVAL);
        EXPECT(strstr(cairn_last_error(), "requires a gradient"));
    } else {
        EXPECT(!loss || cairn_backward(loss) == CAIRN_EPEER);
    }
    if (ranks > 1) {
        EXPECT(strstr(cairn_last_error(),
                      "on rank 1, nothing that the loss of backward 2 depends on requires a gradient"));
        EXPECT(strstr(cairn_last_error(), "ddp_zero_loss") && strstr(cairn_last_error(), "find_unused_parameters"));
    } else {
        EXPECT_OK(cairn_backward(cairn_sum(ddp_forward(net, x))));
    }
    ddp_destroy(&net);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
    return NULL;
}

static void loss_that_depends_on_nothing_fails_on_every_rank_at_once(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        run_ranks(ranks, have_a_loss_of_nothing, NULL);
        run_ranks(ranks, have_a_loss_of_nothing, ddp_options(.find_unused_parameters = CAIRN_ON));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(different_models_fail_on_every_rank_with_name_and_both_values),
        cmocka_unit_test(different_sets_of_the_users_fail_on_every_rank),
        cmocka_unit_test(different_types_fail_on_every_rank),
        cmocka_unit_test(different_options_fail_on_every_rank),
        cmocka_unit_test(rank_that_takes_a_step_more_or_fewer_fails_with_the_others),
        cmocka_unit_test(loss_that_depends_on_nothing_fails_on_every_rank_at_once),
        cmocka_unit_test(rank_that_calls_another_collective_fails_with_the_others),
        cmocka_unit_test(rank_that_skips_a_backward_and_waits_elsewhere_fails_all_within_the_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
