/* Whichever allocation fails on one rank, all ranks return an error and keep their previous state. */
#include "../failing_alloc.h"
#include "parts.h"

static char *fail_to_create(cairn_env *env, void *ctx) {
    const int last = cairn_env_size(env) - 1;
    cairn_status st = CAIRN_ENOMEM;
    (void)ctx;
    for (int at = 1; st != CAIRN_OK; at++) {
        ddp_context *net = NULL;
        cairn_module *model = make_parts(env);
        EXPECT(model);
        if (cairn_env_rank(env) == last) fail_in = at;
        st = ddp_create(model, cairn_env_group(env), NULL, &net);
        fail_in = 0;
        EXPECT((st == CAIRN_OK) == (net != NULL));
        EXPECT(st == CAIRN_OK || strstr(cairn_last_error(), "memory"));
        ddp_destroy(&net);
        cairn_module_destroy(&model);
    }
    return NULL;
}

static void context_that_runs_out_of_memory_is_made_on_no_rank(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) run_ranks(ranks, fail_to_create, NULL);
}

/* ---- hooks ---- */

static char *expect_averages(struct trained *t, cairn_env *env, int step) {
    float mine[PARTS * PART];
    const float scale = (float)amp_scaler_get_scale(amp_scaler_of(t->amp, 0));
    parts_numbers(cairn_env_rank(env), step, 0, mine);
    cairn_zero_grad(t->optimizer);
    EXPECT_OK(parts_backward(t, mine, ALL_PARTS));
    for (int i = 0; i < PARTS * PART; i++) {
        const float sum = parts_number(0, step, 0, i) + parts_number(1, step, 0, i);
        EXPECT(((const float *)cairn__grad_memory(t->set->params[i / PART]->gradient))[i % PART] == scale * sum / 2);
    }
    EXPECT_OK(cairn_step(t->optimizer));
    return NULL;
}

static char *fail_to_register(cairn_env *env, void *ctx) {
    cairn_status st = CAIRN_ENOMEM;
    for (int at = 1; st != CAIRN_OK; at++) {
        struct trained t;
        struct ddp_bucket bucket = DDP_BUCKET_INIT;
        PASS(parts_begin(&t, env, &parts_levels[0], BY_SGD));
        EXPECT_OK(ddp_create(t.model, cairn_env_group(env), ctx, &t.net));
        if (cairn_env_rank(env) == 1) fail_in = at;
        st = ddp_register_comm_hook(t.net, ddp_bf16_compress_hook());
        fail_in = 0;
        EXPECT(st == CAIRN_OK || strstr(cairn_last_error(), "memory"));
        EXPECT_OK(ddp_bucket_get(t.net, 0, &bucket));
        EXPECT(bucket.dtype == (st == CAIRN_OK ? CAIRN_BF16 : CAIRN_F32));
        for (int s = 0; s < 2; s++) PASS(expect_averages(&t, env, s));
        parts_end(&t);
    }
    return NULL;
}

static void hook_that_runs_out_of_memory_changes_no_context(void **state) {
    (void)state;
    run_ranks(2, fail_to_register, NULL);
    run_ranks(2, fail_to_register, ddp_options(.message_size = 1, .gradient_as_bucket_view = CAIRN_OFF));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context_that_runs_out_of_memory_is_made_on_no_rank),
        cmocka_unit_test(hook_that_runs_out_of_memory_changes_no_context),
    };
    return cmocka_run_group_tests(tests, parts_be_quiet, NULL);
}
