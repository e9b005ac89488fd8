/* Sharded updates when memory runs out or a group fails: every other rank returns an error in time, and no later step
 * or broadcast uses the partial state. */
#include "../failing_alloc.h"
#include "comm/group.h"
#include "core/trace.h"
#include "faults.h"

enum { AT_ONCE = 15 };

static cairn_status begin(struct training *t, cairn_env *env) {
    cairn_status st = CAIRN_OK;
    TRY(begin_training(t, env));
    TRY(ddp_create(t->model, cairn_env_group(env), ddp_options(.shard_optimizer = CAIRN_ON, .bucket_nbytes = 4000),
                   &t->net));
out:
    return st;
}

/* ---- what stays in parts ---- */

static char *expect_new_contexts_refused(struct training *t) {
    ddp_context *net = NULL;
    cairn_group *group = cairn_env_group(t->env);
    EXPECT_REFUSED(ddp_create(t->model, group, NULL, &net), CAIRN_ESTATE, "a part of its f32 values alone");
    EXPECT_REFUSED(ddp_create(t->model, group, ddp_options(.shard_optimizer = CAIRN_ON), &net), CAIRN_ESTATE,
                   "a part of its f32 values alone");
    EXPECT_REFUSED(ddp_reducer_create(t->model, group, NULL, &net), CAIRN_ESTATE, "a part of its f32 values alone");
    EXPECT_REFUSED(cairn_step(t->optimizer), CAIRN_ESTATE, "anew");
    EXPECT(net == NULL);
    return NULL;
}

static char *end_with_dead_group(cairn_env *env, void *ctx) {
    struct training t;
    (void)ctx;
    EXPECT_OK(begin(&t, env));
    EXPECT_OK(backward(&t));
    EXPECT_OK(cairn_step(t.optimizer));
    EXPECT_OK(backward(&t));
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    (void)cairn__group_kill(ddp_group(t.net), cairn__fail(CAIRN_EPEER, "the test ends it"));
    EXPECT_REFUSED(cairn_step(t.optimizer), CAIRN_EPEER, "the test ends it");
    EXPECT(strncmp(cairn_last_error(), "cairn_step: ", 12) == 0 && !strstr(cairn_last_error(), "backward"));
    ddp_destroy(&t.net);
    EXPECT(t.net == NULL);
    PASS(expect_new_contexts_refused(&t));
    end_training(&t);
    return NULL;
}

static void parts_of_a_dead_group_are_refused(void **state) {
    (void)state;
    for (int p = 2; p <= 3; p++) run_ranks(p, end_with_dead_group, NULL);
}

static bool is_in_parts(const struct training *t) {
    const struct cairn_param_set *set = cairn_module_params(t->model);
    for (size_t i = 0; i < set->count; i++) {
        if (set->params[i]->is_sharded) return true;
    }
    return false;
}

/* The last rank has no memory at its at-th allocation in ddp_destroy: the context is kept on all ranks, or parameters
 * stay in parts on all. */
static char *end_without_memory(cairn_env *env, void *ctx) {
    bool was_kept = false, was_in_parts = false, runs_out = true;
    (void)ctx;
    for (int at = 1; runs_out; at++) {
        struct training t;
        int32_t failed = 0;
        EXPECT_OK(begin(&t, env));
        if (cairn_env_rank(env) == cairn_env_size(env) - 1) fail_in = at;
        ddp_destroy(&t.net);
        failed = cairn_env_rank(env) == cairn_env_size(env) - 1 && fail_in == 0;
        fail_in = 0;
        EXPECT_OK(cairn_allreduce(cairn_env_group(env), &failed, 1, CAIRN_I32, CAIRN_MAX, NULL));
        runs_out = failed;
        was_kept |= t.net != NULL;
        ddp_destroy(&t.net); /* again, where it was kept */
        EXPECT(t.net == NULL);
        if (is_in_parts(&t)) PASS(expect_new_contexts_refused(&t));
        was_in_parts |= is_in_parts(&t);
        end_training(&t);
    }
    EXPECT(was_kept && was_in_parts);
    return NULL;
}

static void parameters_left_in_parts_by_lack_of_memory_are_refused(void **state) {
    (void)state;
    run_ranks(2, end_without_memory, NULL);
}

static char *end_with_unequal_states(cairn_env *env, void *ctx) {
    struct training t;
    (void)ctx;
    EXPECT_OK(begin(&t, env));
    amp_destroy(&t.amp);
    if (cairn_env_rank(env) == 1) cairn_optimizer_destroy(&t.optimizer);
    ddp_destroy(&t.net);
    EXPECT(t.net == NULL && is_in_parts(&t));
    EXPECT_SAYS("destroyed its optimizer");
    end_training(&t);
    return NULL;
}

static void ranks_with_unequal_states_keep_parts(void **state) {
    (void)state;
    run_ranks(2, end_with_unequal_states, NULL);
}

/* ---- a rank that fails alone ---- */

enum call { CLIP, NORMS, STEP, NUM_CALLS };

static cairn_status make_call(struct training *t, enum call call) {
    double norm = 0;
    if (call == CLIP) return cairn_clip_grad_norm(t->optimizer, 1, &norm);
    return call == NORMS ? cairn_grad_norms(t->optimizer, NULL, 0, &norm) : cairn_step(t->optimizer);
}

static char *fail_alone(cairn_env *env, void *ctx) {
    const enum call call = *(const enum call *)ctx;
    const bool is_it = cairn_env_rank(env) == cairn_env_size(env) - 1;
    int32_t runs_out = 1;
    for (int at = 1; runs_out; at++) {
        struct training t;
        EXPECT_OK(begin(&t, env));
        EXPECT_OK(backward(&t));
        EXPECT_OK(cairn_barrier(cairn_env_group(env)));
        const uint64_t begin_ns = cairn__now_ns();
        if (is_it) fail_in = at;
        cairn_status st = make_call(&t, call);
        int32_t failed = is_it && st != CAIRN_OK;
        runs_out = is_it && fail_in == 0;
        fail_in = 0;
        EXPECT(!failed || (st == CAIRN_ENOMEM && strstr(cairn_last_error(), "memory")));
        if (st == CAIRN_OK) st = cairn_step(t.optimizer);
        const char *words = strstr(cairn_last_error(), "memory");
        EXPECT((double)(cairn__now_ns() - begin_ns) * 1e-9 < AT_ONCE);
        EXPECT_OK(cairn_allreduce(cairn_env_group(env), &failed, 1, CAIRN_I32, CAIRN_MAX, NULL));
        EXPECT_OK(cairn_allreduce(cairn_env_group(env), &runs_out, 1, CAIRN_I32, CAIRN_MAX, NULL));
        EXPECT((st != CAIRN_OK) == (failed != 0) && (!failed || words));
        end_training(&t);
    }
    return NULL;
}

static void rank_without_memory_ends_the_calls_of_the_others(void **state) {
    (void)state;
    for (enum call call = CLIP; call < NUM_CALLS; call++) run_ranks(2, fail_alone, &call);
}

/* ---- a rank that is refused alone ---- */

/* The last rank is refused; the same step is possible afterwards, on all. */
static char *step_where_one_is_refused(struct training *t, const char *sentence) {
    const bool is_it = cairn_env_rank(t->env) == cairn_env_size(t->env) - 1;
    const uint64_t begin_ns = cairn__now_ns();
    for (int k = 0; k < 2; k++) {
        EXPECT(cairn_step(t->optimizer) == (is_it ? CAIRN_ESTATE : CAIRN_EPEER));
        EXPECT_SAYS(sentence);
        EXPECT(is_it || strstr(cairn_last_error(),
                               cairn_env_size(t->env) == 2 ? "it failed on rank 1: " : "it failed on rank 2: "));
    }
    EXPECT((double)(cairn__now_ns() - begin_ns) * 1e-9 < AT_ONCE);
    return NULL;
}

static char *refuse_within_a_loss(cairn_env *env, void *ctx) {
    struct training t;
    cairn_tensor *scaled = NULL;
    (void)ctx;
    EXPECT_OK(begin(&t, env));
    EXPECT_OK(backward(&t));
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN));
    const bool is_it = cairn_env_rank(env) == cairn_env_size(env) - 1;
    if (is_it) EXPECT_OK(amp_scale_loss(t.amp, cairn_mean(cairn_module_forward(t.model, x)), t.optimizer, &scaled));
    PASS(step_where_one_is_refused(&t, "call amp_scale_loss_end first"));
    if (is_it) EXPECT_OK(amp_scale_loss_end(t.amp));
    EXPECT_OK(cairn_step(t.optimizer));
    EXPECT_OK(backward(&t));
    EXPECT_OK(cairn_step(t.optimizer));
    EXPECT(cairn_optimizer_steps(t.optimizer) == 2);
    end_training(&t);
    return NULL;
}

static char *refuse_with_averages(cairn_env *env, void *ctx) {
    struct training t = {.env = env, .model = make_mlp(env, IN, HIDDEN, OUT)};
    cairn_averages *averages = NULL;
    const bool is_it = cairn_env_rank(env) == cairn_env_size(env) - 1;
    (void)ctx;
    EXPECT_OK(cairn_adam_create(cairn_module_params(t.model), NULL, &t.optimizer));
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), ddp_options(.shard_optimizer = CAIRN_ON), &t.net));
    EXPECT_OK(cairn_averages_create(cairn_module_stateful(t.model), NULL, &averages));
    for (int step = 0; step < 2; step++) {
        cairn_zero_grad(t.optimizer);
        cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN));
        EXPECT_OK(cairn_backward(cairn_mean(ddp_forward(t.net, x))));
        if (step == 1 && is_it) EXPECT_OK(cairn_averages_apply(averages));
        if (step == 1) PASS(step_where_one_is_refused(&t, "cairn_averages_restore"));
        if (step == 1 && is_it) EXPECT_OK(cairn_averages_restore(averages));
        EXPECT_OK(cairn_step(t.optimizer));
        EXPECT_OK(cairn_averages_update(averages, t.optimizer));
    }
    cairn_averages_destroy(&averages);
    end_training(&t);
    return NULL;
}

static char *refuse_numbers(cairn_env *env, void *ctx) {
    const bool is_it = cairn_env_rank(env) == cairn_env_size(env) - 1;
    const cairn_status refused = is_it ? CAIRN_EINVAL : CAIRN_EPEER;
    struct training t;
    double norms[4], norm = 0;
    (void)ctx;
    EXPECT_OK(begin(&t, env));
    EXPECT_OK(backward(&t));
    const uint64_t begin_ns = cairn__now_ns();
    EXPECT_REFUSED(cairn_clip_grad_norm(t.optimizer, is_it ? 0 : 1, &norm), refused, "max_norm is 0");
    EXPECT_REFUSED(cairn_grad_norms(t.optimizer, norms, is_it ? 3 : 4, &norm), refused, "count is 3");
    EXPECT((double)(cairn__now_ns() - begin_ns) * 1e-9 < AT_ONCE);
    EXPECT_OK(cairn_clip_grad_norm(t.optimizer, 1, &norm));
    EXPECT_OK(cairn_step(t.optimizer));
    end_training(&t);
    return NULL;
}

static void step_refused_on_one_rank_fails_on_all_at_once(void **state) {
    (void)state;
    for (int p = 2; p <= 3; p++) {
        run_ranks(p, refuse_within_a_loss, NULL);
        run_ranks(p, refuse_with_averages, NULL);
        run_ranks(p, refuse_numbers, NULL);
    }
}

/* ---- an optimizer over two models ---- */

static char *step_over_two(cairn_env *env, void *ctx) {
    struct training t;
    cairn_group *half = NULL;
    cairn_module *other = make_mlp(env, IN, HIDDEN, OUT);
    ddp_context *net = NULL;
    double norm = 0;
    (void)ctx;
    EXPECT_OK(begin(&t, env));
    EXPECT_OK(cairn_group_split(cairn_env_group(env), cairn_env_rank(env) / 2, 0, NULL, &half));
    EXPECT_OK(ddp_create(other, half, ddp_options(.shard_optimizer = CAIRN_ON), &net));
    amp_destroy(&t.amp);
    EXPECT_OK(cairn_adam_add_group(t.optimizer, cairn_module_params(other), NULL, 0, NULL));
    EXPECT_REFUSED(cairn_grad_norms(t.optimizer, NULL, 0, &norm), CAIRN_ENOTSUP, "shared by another");
    EXPECT_REFUSED(cairn_clip_grad_norm(t.optimizer, 1, &norm), CAIRN_ENOTSUP, "shared by another");
    EXPECT_REFUSED(cairn_step(t.optimizer), CAIRN_ENOTSUP, "shared by another");
    ddp_destroy(&net);
    end_training(&t);
    cairn_module_destroy(&other);
    cairn_group_destroy(&half);
    return NULL;
}

static void optimizer_over_models_of_different_ranks_is_refused(void **state) {
    (void)state;
    run_ranks(4, step_over_two, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_a_dead_group_are_refused),
        cmocka_unit_test(parameters_left_in_parts_by_lack_of_memory_are_refused),
        cmocka_unit_test(ranks_with_unequal_states_keep_parts),
        cmocka_unit_test(rank_without_memory_ends_the_calls_of_the_others),
        cmocka_unit_test(step_refused_on_one_rank_fails_on_all_at_once),
        cmocka_unit_test(optimizer_over_models_of_different_ranks_is_refused),
    };
    cairn_set_log(log_nothing, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
