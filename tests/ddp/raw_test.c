/* Gradients in the user's memory: ddp averages them in place for any kind of step, and calls that would touch them
 * earlier are refused. Data is exact: gradients are multiples of 1/4 and scales powers of two, so that every sum,
 * average and product is representable. */
#include <math.h>

#include "../failing_alloc.h"
#include "../kept_log.h"
#include "../ranks.h"
#include "core/alloc.h"
#include "core/convert.h"
#include "optim/optim.h"

/* ---- a trainer: one stacked array of weights and one of gradients, cut into parameters ---- */

enum { PARAMS = 3, N = 60 };
static const size_t first_of[PARAMS + 1] = {0, 33, 40, N};
static const char *const names[PARAMS] = {"wte", "wpe", "head"};
static const double LR = 0.25;

struct trainer {
    cairn_env *env;
    cairn_dtype storage;
    union {
        float f32[N];
        uint16_t half[N];
    } w, g;
    cairn_param_set *set;
    cairn_optimizer *sgd;
    amp_context *amp;
    ddp_context *net;
};

struct how {
    cairn_dtype storage;
    bool by_user;    /* who updates; or an optimizer of Cairn's */
    bool grads_late; /* gradients get their memory by cairn_param_bind */
    struct amp_options amp;
    struct ddp_options ddp;
};

static void *at(void *array, cairn_dtype storage, size_t i) {
    return (char *)array + i * cairn_dtype_nbytes(storage);
}

static float first_weight(size_t i) {
    return (float)(i % 16) / 8 - 0.5f;
}

/* Of step t on a rank, not multiplied by a scale. */
static float gradient(int t, size_t i, int rank) {
    return (float)(((size_t)t * 7 + i * 3) % 5) / 4 - 0.5f + (float)rank;
}

static float average(int t, size_t i, int p) {
    return gradient(t, i, 0) + (float)(p - 1) / 2;
}

static float read(const void *array, cairn_dtype storage, size_t i) {
    float x;
    cairn__convert(&x, CAIRN_F32, at((void *)(uintptr_t)array, storage, i), storage, 1);
    return x;
}

static void write(void *array, cairn_dtype storage, size_t i, float x) {
    cairn__convert(at(array, storage, i), storage, &x, CAIRN_F32, 1);
}

/* Weights of ranks above 0 begin elsewhere: ddp_create_params makes them equal. */
static char *begin(struct trainer *t, cairn_env *env, const struct how *how) {
    cairn_param params[PARAMS] = {{0}};
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    struct amp_options amp = how->amp;
    struct ddp_options ddp = how->ddp;
    memset(t, 0, sizeof(*t));
    t->env = env;
    t->storage = how->storage ? how->storage : CAIRN_F32;
    for (size_t p = 0; p < PARAMS; p++) {
        params[p] = (cairn_param){.name = names[p],
                                  .data = at(&t->w, t->storage, first_of[p]),
                                  .grad = how->grads_late ? NULL : at(&t->g, t->storage, first_of[p]),
                                  .dtype = t->storage,
                                  .ndim = 1,
                                  .shape = {(int64_t)(first_of[p + 1] - first_of[p])}};
    }
    for (size_t i = 0; i < N; i++) write(&t->w, t->storage, i, first_weight(i) + (float)cairn_env_rank(env));
    EXPECT_OK(cairn_param_set_create(env, params, PARAMS, &t->set));
    h.lr = LR;
    if (!how->by_user) EXPECT_OK(cairn_sgd_create(t->set, &h, &t->sgd));
    amp.struct_size = sizeof(amp);
    amp.verbosity = -1;
    if (!amp.opt_level) amp.opt_level = AMP_O0;
    ddp.struct_size = sizeof(ddp);
    EXPECT_OK(amp_initialize_params(env, t->set, t->sgd, &amp, &t->amp));
    EXPECT_OK(ddp_create_params(t->set, cairn_env_group(env), &ddp, &t->net));
    return NULL;
}

static void end(struct trainer *t) {
    ddp_destroy(&t->net);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->sgd);
    cairn_param_set_destroy(&t->set);
}

static void write_gradients(struct trainer *t, int step) {
    const double scale = amp_next_scale(t->amp);
    for (size_t i = 0; i < N; i++)
        write(&t->g, t->storage, i, (float)scale * gradient(step, i, cairn_env_rank(t->env)));
}

/* In an order that depends on the step. */
static char *declare(struct trainer *t, int step) {
    if (step % 3 == 2) {
        EXPECT_OK(ddp_grads_ready(t->net, 0, PARAMS));
        return NULL;
    }
    for (size_t p = 0; p < PARAMS; p++) EXPECT_OK(ddp_grads_ready(t->net, step % 3 ? PARAMS - 1 - p : p, 1));
    return NULL;
}

static char *expect_averages(struct trainer *t, int step) {
    cairn_env *env = t->env;
    const float scale = (float)amp_scaler_get_scale(amp_scaler_of(t->amp, 0));
    for (size_t p = 0; p < PARAMS; p++) {
        const struct cairn__shard shard = cairn__param_shard(t->set->params[p]); /* whole, but for shard_optimizer */
        const size_t first = first_of[p] + shard.first;
        for (size_t i = first; i < first + shard.n; i++)
            EXPECT(read(&t->g, t->storage, i) == scale * average(step, i, cairn_env_size(env)));
    }
    return NULL;
}

static cairn_status update(struct trainer *t) {
    cairn_param shown[PARAMS];
    int skip = 0;
    cairn_status st = amp_begin_step(t->amp, &skip);
    if (st == CAIRN_OK) st = amp_master_params(t->amp, NULL, shown, PARAMS);
    for (size_t p = 0; st == CAIRN_OK && !skip && p < PARAMS; p++) {
        float *const w = shown[p].data;
        const float *const g = shown[p].grad;
        for (size_t i = 0; i < first_of[p + 1] - first_of[p]; i++) w[i] -= (float)LR * g[i];
    }
    return st == CAIRN_OK ? amp_end_step(t->amp) : st;
}

static cairn_status step_with(struct trainer *t) {
    return t->sgd ? cairn_step(t->sgd) : update(t);
}

/* What weights are after steps from 0 on; exact in f16. */
static float expected_weight(size_t i, int steps, int p) {
    float w = first_weight(i);
    for (int s = 0; s < steps; s++) w -= (float)LR * average(s, i, p);
    return w;
}

static char *expect_weights(struct trainer *t, int steps) {
    cairn_env *env = t->env;
    for (size_t i = 0; i < N; i++) EXPECT(read(&t->w, t->storage, i) == expected_weight(i, steps, cairn_env_size(env)));
    return NULL;
}

/* ---- averages ---- */

enum { STEPS = 4 };

static char *train(cairn_env *env, void *ctx) {
    struct trainer t;
    PASS(begin(&t, env, ctx));
    for (int s = 0; s < STEPS; s++) {
        write_gradients(&t, s);
        PASS(declare(&t, s));
        EXPECT_OK(ddp_wait(t.net));
        PASS(expect_averages(&t, s));
        EXPECT_OK(step_with(&t));
        PASS(expect_weights(&t, s + 1));
    }
    end(&t);
    return NULL;
}

static const struct how every_way[] = {
    {.amp = {.opt_level = AMP_O0}},
    {.amp = {.opt_level = AMP_O0}, .ddp = {.message_size = 1}},
    {.amp = {.opt_level = AMP_O0}, .ddp = {.delay_allreduce = CAIRN_ON}},
    {.amp = {.opt_level = AMP_O0}, .by_user = true},
    {.amp = {.opt_level = AMP_O1, .loss_scale = 1024}},
    {.amp = {.opt_level = AMP_O2, .max_loss_scale = 1024}, .ddp = {.message_size = 1}},
    {.amp = {.opt_level = AMP_O2, .max_loss_scale = 1024}, .by_user = true},
    {.amp = {.opt_level = AMP_O2, .max_loss_scale = 1024}, .ddp = {.allreduce_always_fp32 = CAIRN_ON}},
    {.amp = {.opt_level = AMP_O3, .loss_scale = 128}},
    {.storage = CAIRN_F16, .amp = {.opt_level = AMP_O2, .max_loss_scale = 1024}},
    {.storage = CAIRN_F16,
     .amp = {.opt_level = AMP_O2, .max_loss_scale = 1024},
     .by_user = true,
     .ddp = {.message_size = 40}},
    {.amp = {.opt_level = AMP_O0}, .ddp = {.shard_optimizer = CAIRN_ON}},
    {.amp = {.opt_level = AMP_O2, .max_loss_scale = 1024}, .ddp = {.shard_optimizer = CAIRN_ON, .message_size = 1}},
    {.amp = {.opt_level = AMP_O3, .loss_scale = 128}, .ddp = {.shard_optimizer = CAIRN_ON}},
    {.storage = CAIRN_F16,
     .amp = {.opt_level = AMP_O2, .max_loss_scale = 1024},
     .ddp = {.shard_optimizer = CAIRN_ON, .message_size = 40}},
};

static void averages_are_in_the_users_memory_for_every_way_of_training(void **state) {
    static const int sizes[] = {1, 2, 4};
    (void)state;
    for (size_t h = 0; h < sizeof(every_way) / sizeof(every_way[0]); h++) {
        for (int s = 0; s < 3; s++) run_ranks(sizes[s], train, (void *)(uintptr_t)&every_way[h]);
    }
}

/* All memory stands in to from now on, and what stood in from is gone. */
static char *move(struct trainer *to, struct trainer *from) {
    memcpy(&to->w, &from->w, sizeof(to->w));
    memset(&from->w, 0xff, sizeof(from->w));
    memset(&from->g, 0xff, sizeof(from->g));
    for (size_t p = 0; p < PARAMS; p++) {
        void *const data = at(&to->w, to->storage, first_of[p]), *const grad = at(&to->g, to->storage, first_of[p]);
        EXPECT_OK(cairn_param_bind(to->set, p, data, grad));
    }
    return NULL;
}

/* As llm.c does, which allocates gradients in its first backward. */
static char *train_in_moving_memory(cairn_env *env, void *ctx) {
    struct how how = *(const struct how *)ctx;
    struct trainer t[2];
    how.grads_late = true;
    PASS(begin(&t[0], env, &how));
    t[1] = t[0];
    for (int s = 0; s < STEPS; s++) {
        struct trainer *now = &t[(s + 1) % 2];
        PASS(move(now, &t[s % 2]));
        write_gradients(now, s);
        EXPECT_OK(ddp_grads_ready(now->net, 0, 1));
        EXPECT_REFUSED(cairn_param_bind(now->set, 2, NULL, &now->g), CAIRN_ESTATE,
                       "are being averaged; call ddp_wait first");
        EXPECT_OK(ddp_grads_ready(now->net, 1, 2));
        EXPECT_OK(ddp_wait(now->net));
        PASS(expect_averages(now, s));
        EXPECT_OK(step_with(now));
        PASS(expect_weights(now, s + 1));
    }
    end(&t[0]);
    return NULL;
}

static void memory_that_is_set_late_or_moves_is_averaged_in_place(void **state) {
    (void)state;
    for (size_t h = 0; h < sizeof(every_way) / sizeof(every_way[0]); h++)
        run_ranks(2, train_in_moving_memory, (void *)(uintptr_t)&every_way[h]);
}

/* From the second backward on a bucket leaves as early as it can: they come in rank 0's order of the first. */
static char *look_at_order(cairn_env *env, void *ctx) {
    static const size_t order[PARAMS] = {1, 0, 2};
    struct trainer t;
    struct ddp_bucket bucket = {.struct_size = sizeof(bucket)};
    PASS(begin(&t, env, ctx));
    for (int s = 0; s < 2; s++) {
        write_gradients(&t, s);
        for (size_t k = 0; k < PARAMS; k++) {
            const size_t turned = cairn_env_rank(env) ? PARAMS - 1 - k : k;
            EXPECT_OK(ddp_grads_ready(t.net, order[turned], 1));
        }
        EXPECT_OK(ddp_wait(t.net));
        PASS(expect_averages(&t, s));
        EXPECT_OK(step_with(&t));
    }
    for (int b = 0; b < PARAMS; b++) {
        EXPECT_OK(ddp_bucket_get(t.net, b, &bucket));
        EXPECT(bucket.num_params == 1 && bucket.params[0] == order[b]);
    }
    end(&t);
    return NULL;
}

static void buckets_are_rebuilt_in_rank_0s_order_of_declaration(void **state) {
    (void)state;
    run_ranks(2, look_at_order, (void *)(uintptr_t)&every_way[1]);
}

/* f32 memory with f16 values: what travels is packed half, and the average is one of them. */
static char *average_large_halves(cairn_env *env, void *ctx) {
    struct trainer t;
    struct ddp_bucket bucket = DDP_BUCKET_INIT;
    (void)ctx;
    PASS(begin(&t, env, &(struct how){.amp = {.opt_level = AMP_O2, .loss_scale = 1}}));
    EXPECT_OK(ddp_bucket_get(t.net, 0, &bucket));
    EXPECT(bucket.dtype == CAIRN_F16);
    for (size_t i = 0; i < N; i++) t.g.f32[i] = i % 2 ? 40000 : (float)cairn_env_rank(env) / 4096 + 1;
    EXPECT_OK(ddp_grads_ready(t.net, 0, PARAMS));
    EXPECT_OK(ddp_wait(t.net));
    for (size_t i = 0; i < N; i++) EXPECT(t.g.f32[i] == (i % 2 ? 40000 : 1)); /* 1/4096 of 1 is less than f16 tells */
    EXPECT_OK(cairn_step(t.sgd));
    EXPECT(!cairn_optimizer_step_skipped(t.sgd));
    end(&t);
    return NULL;
}

static void four_gradients_of_40000_average_to_40000_in_f32_memory_with_half_values(void **state) {
    (void)state;
    run_ranks(4, average_large_halves, NULL);
}

/* ---- overflow ---- */

static char *overflow_on_one_rank(cairn_env *env, void *ctx) {
    struct trainer t;
    PASS(begin(&t, env, ctx));
    const double scale = amp_next_scale(t.amp);
    for (int s = 0; s < 3; s++) {
        write_gradients(&t, s == 2 ? 1 : 0);
        if (s == 1 && cairn_env_rank(env) == 1) write(&t.g, t.storage, first_of[1] + 2, INFINITY);
        PASS(declare(&t, s));
        EXPECT_OK(ddp_wait(t.net));
        EXPECT_OK(step_with(&t));
        PASS(expect_weights(&t, s == 2 ? 2 : 1));
    }
    EXPECT(amp_next_scale(t.amp) == scale / 2);
    end(&t);
    return NULL;
}

static void overflow_on_one_rank_skips_the_step_on_all_and_is_named(void **state) {
    (void)state;
    cairn_set_log(keep_log, NULL);
    for (size_t h = 0; h < sizeof(every_way) / sizeof(every_way[0]); h++) {
        if (every_way[h].amp.opt_level != AMP_O2) continue;
        log_text[0] = '\0';
        run_ranks(3, overflow_on_one_rank, (void *)(uintptr_t)&every_way[h]);
        assert_non_null(strstr(log_text, "non-finite gradient in wpe (1 inf of 7)"));
        assert_null(strstr(log_text, "wte"));
        assert_null(strstr(log_text, "head"));
    }
    cairn_set_log(NULL, NULL);
}

/* ---- several backwards a step ---- */

static char *accumulate(cairn_env *env, void *ctx) {
    const struct how how = {.amp = {.opt_level = AMP_O2, .loss_scale = 128}};
    const bool without_sync = *(bool *)ctx;
    struct trainer t;
    PASS(begin(&t, env, &how));
    for (int s = 0; s < 3; s++) {
        if (without_sync) EXPECT_OK(ddp_no_sync(t.net, s < 2));
        write_gradients(&t, s);
        PASS(declare(&t, s));
        EXPECT_OK(ddp_wait(t.net));
        if (!without_sync) EXPECT_OK(cairn_grads_taken(t.set, 0, PARAMS));
    }
    EXPECT_OK(cairn_step(t.sgd));
    PASS(expect_weights(&t, 3)); /* with this learning rate as three steps */
    end(&t);
    return NULL;
}

static void several_backwards_add_up_with_and_without_synchronising_each(void **state) {
    bool without_sync = false;
    (void)state;
    run_ranks(2, accumulate, &without_sync);
    without_sync = true;
    run_ranks(2, accumulate, &without_sync);
}

/* ---- parameters without a gradient ---- */

static char *leave_one_out(cairn_env *env, void *ctx) {
    struct trainer t;
    (void)ctx;
    PASS(begin(&t, env, &every_way[0]));
    write_gradients(&t, 0);
    EXPECT_OK(ddp_grads_ready(t.net, 0, cairn_env_rank(env) == 1 ? 2 : PARAMS));
    const cairn_status want = cairn_env_rank(env) == 1 ? CAIRN_ESTATE : CAIRN_EPEER;
    EXPECT_REFUSED(ddp_wait(t.net), want, "the gradient of 'head' has not been declared since the last ddp_wait");
    EXPECT(strstr(cairn_last_error(), "find_unused_parameters"));
    EXPECT_REFUSED(cairn_step(t.sgd), CAIRN_ESTATE, "incomplete");
    end(&t);
    return NULL;
}

static void undeclared_parameter_fails_on_every_rank_with_name_and_advice(void **state) {
    (void)state;
    run_ranks(3, leave_one_out, NULL);
}

/* Rank 0 has wte alone, rank 1 wpe alone, no rank head. */
static char *declare_one_each(cairn_env *env, void *ctx) {
    struct trainer t;
    const size_t mine = (size_t)cairn_env_rank(env);
    PASS(begin(&t, env, ctx));
    write_gradients(&t, 0);
    EXPECT_OK(ddp_grads_ready(t.net, mine, 1));
    EXPECT_OK(ddp_wait(t.net));
    EXPECT(cairn__grad_is_written(t.set->params[1]->gradient) &&
           !cairn__grad_is_written(t.set->params[2]->gradient)); /* no rank's: no step reads it */
    EXPECT_OK(step_with(&t));
    for (size_t i = 0; i < N; i++) {
        const int owner = i >= first_of[1];
        const float g = i < first_of[2] ? gradient(0, i, owner) / 2 : 0;
        EXPECT(read(&t.w, t.storage, i) == first_weight(i) - (float)LR * g);
    }
    end(&t);
    return NULL;
}

static void undeclared_parameters_count_as_zero_where_they_may_be_unused(void **state) {
    static const struct how f32 = {.ddp = {.find_unused_parameters = CAIRN_ON}};
    static const struct how half = {.storage = CAIRN_F16,
                                    .amp = {.opt_level = AMP_O2, .max_loss_scale = 1024},
                                    .ddp = {.find_unused_parameters = CAIRN_ON, .message_size = 1}};
    (void)state;
    run_ranks(2, declare_one_each, (void *)(uintptr_t)&f32);
    run_ranks(2, declare_one_each, (void *)(uintptr_t)&half);
}

/* Rank 1 has input in every other step, and asks for the scale in these alone; it grows after every step. */
static char *keep_out_of_some_steps(cairn_env *env, void *ctx) {
    static const struct amp_scaler_options grows = {.struct_size = sizeof(grows),
                                                    .init_scale = 4,
                                                    .growth_interval = 1};
    const struct how how = {.amp = {.opt_level = AMP_O0, .loss_scale = AMP_DYNAMIC, .scaler = &grows},
                            .ddp = {.find_unused_parameters = CAIRN_ON}};
    struct trainer t;
    float want[N];
    (void)ctx;
    PASS(begin(&t, env, &how));
    for (size_t i = 0; i < N; i++) want[i] = first_weight(i);
    for (int s = 0; s < 4; s++) {
        if (cairn_env_rank(env) == 0 || s % 2 == 1) {
            write_gradients(&t, s);
            EXPECT_OK(ddp_grads_ready(t.net, 0, PARAMS));
        }
        EXPECT_OK(ddp_wait(t.net));
        EXPECT_OK(cairn_step(t.sgd));
        for (size_t i = 0; i < N; i++) {
            want[i] -= (float)LR * (s % 2 == 1 ? average(s, i, 2) : gradient(s, i, 0) / 2);
            EXPECT(t.w.f32[i] == want[i]);
        }
    }
    end(&t);
    return NULL;
}

static void ranks_that_declare_nothing_take_the_scale_of_the_others(void **state) {
    (void)state;
    run_ranks(2, keep_out_of_some_steps, NULL);
}

/* Twice before a step: of wte rank 0 has a second gradient, which takes the first one's place everywhere; of wpe
 * nobody. */
static char *declare_again_on_one_rank(cairn_env *env, void *ctx) {
    struct trainer t;
    (void)ctx;
    PASS(begin(&t, env, &(struct how){.ddp = {.find_unused_parameters = CAIRN_ON}}));
    write_gradients(&t, 0);
    EXPECT_OK(ddp_grads_ready(t.net, 0, 2));
    EXPECT_OK(ddp_wait(t.net));
    if (cairn_env_rank(env) == 0) {
        for (size_t i = 0; i < first_of[1]; i++) t.g.f32[i] = gradient(1, i, 0);
        EXPECT_OK(ddp_grads_ready(t.net, 0, 1));
    }
    EXPECT_OK(ddp_wait(t.net));
    EXPECT_OK(cairn_step(t.sgd));
    for (size_t i = 0; i < first_of[2]; i++) {
        const float g = i < first_of[1] ? gradient(1, i, 0) / 2 : average(0, i, 2);
        EXPECT(t.w.f32[i] == first_weight(i) - (float)LR * g);
    }
    end(&t);
    return NULL;
}

static void gradient_that_one_rank_declares_again_replaces_the_average_on_all(void **state) {
    (void)state;
    run_ranks(2, declare_again_on_one_rank, NULL);
}

/* The same ones each time where the graph is static: in the third, rank 1 has one more or one fewer. */
static char *declare_other_ones(cairn_env *env, void *ctx) {
    const bool more = *(bool *)ctx, is_odd = cairn_env_rank(env) == 1;
    struct trainer t;
    PASS(begin(&t, env, &(struct how){.ddp = {.static_graph = CAIRN_ON}}));
    for (int s = 0; s < 2; s++) {
        write_gradients(&t, s);
        EXPECT_OK(ddp_grads_ready(t.net, 0, 2));
        EXPECT_OK(ddp_wait(t.net));
        EXPECT(cairn__grad_is_written(t.set->params[1]->gradient) &&
               !cairn__grad_is_written(t.set->params[2]->gradient));
        EXPECT_OK(step_with(&t));
    }
    const cairn_status st = ddp_grads_ready(t.net, 0, !is_odd ? 2 : more ? 3 : 1);
    EXPECT(st == (is_odd && more ? CAIRN_ESTATE : CAIRN_OK));
    if (st == CAIRN_OK) EXPECT(ddp_wait(t.net) == (is_odd ? CAIRN_ESTATE : CAIRN_EPEER));
    EXPECT(strstr(cairn_last_error(),
                  more ? "of 'head' was declared, but not before" : "of 'wpe' was not declared, but was before"));
    EXPECT(strstr(cairn_last_error(), "on rank 1") && strstr(cairn_last_error(), "find_unused_parameters"));
    end(&t);
    return NULL;
}

/* The first cause, whatever is called; alone a rank begins anew behind ddp_wait. */
static char *go_on_after_a_failure(cairn_env *env, void *ctx) {
    static const char cause[] = "of 'head' was declared, but not before";
    const int ranks = cairn_env_size(env);
    struct trainer t;
    (void)ctx;
    PASS(begin(&t, env, &(struct how){.ddp = {.static_graph = CAIRN_ON}}));
    write_gradients(&t, 0);
    EXPECT_OK(ddp_grads_ready(t.net, 0, 2));
    EXPECT_OK(ddp_wait(t.net));
    EXPECT_OK(step_with(&t));
    write_gradients(&t, 1);
    if (cairn_env_rank(env) == ranks - 1) {
        EXPECT_REFUSED(ddp_grads_ready(t.net, 2, 1), CAIRN_ESTATE, cause);
        EXPECT_REFUSED(ddp_grads_ready(t.net, 0, 2), CAIRN_ESTATE, cause);
        EXPECT_REFUSED(ddp_wait(t.net), CAIRN_ESTATE, cause);
    } else {
        EXPECT(ddp_grads_ready(t.net, 0, 2) == CAIRN_OK || strstr(cairn_last_error(), cause));
        EXPECT_REFUSED(ddp_wait(t.net), CAIRN_EPEER, cause);
    }
    cairn_param_set_zero_grad(t.set);
    for (int i = 0; i < 2 && ranks > 1; i++) {
        EXPECT(ddp_wait(t.net) != CAIRN_OK && strstr(cairn_last_error(), cause));
        EXPECT(ddp_grads_ready(t.net, 2, 1) != CAIRN_OK && strstr(cairn_last_error(), cause));
        EXPECT(ddp_grads_ready(t.net, 0, 2) != CAIRN_OK && strstr(cairn_last_error(), cause));
    }
    for (int s = 1; s < 3 && ranks == 1; s++) {
        write_gradients(&t, s);
        EXPECT_OK(ddp_grads_ready(t.net, 0, 2));
        EXPECT_OK(ddp_wait(t.net));
        EXPECT_OK(step_with(&t));
    }
    end(&t);
    return NULL;
}

static void calls_after_a_failure_return_its_cause(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) run_ranks(ranks, go_on_after_a_failure, NULL);
}

static void changed_parameters_fail_where_the_graph_is_static(void **state) {
    (void)state;
    bool more = true;
    run_ranks(2, declare_other_ones, &more);
    more = false;
    run_ranks(2, declare_other_ones, &more);
}

/* ---- while they travel ---- */

static char *meddle(cairn_env *env, void *ctx) {
    static const char wait[] = "are being averaged; call ddp_wait first";
    struct trainer t;
    double norm = 0;
    cairn_param shown[PARAMS];
    int skip = 0;
    PASS(begin(&t, env, ctx));
    write_gradients(&t, 0);
    EXPECT_OK(ddp_grads_ready(t.net, 1, 1));
    if (t.sgd) {
        EXPECT_REFUSED(cairn_step(t.sgd), CAIRN_ESTATE, wait);
        EXPECT_REFUSED(cairn_clip_grad_norm(t.sgd, 1, &norm), CAIRN_ESTATE, wait);
        EXPECT_REFUSED(cairn_clip_grad_value(t.sgd, 1), CAIRN_ESTATE, wait);
        EXPECT_REFUSED(cairn_optimizer_masters(t.sgd, shown, PARAMS), CAIRN_ESTATE, wait);
        cairn_zero_grad(t.sgd); /* these say so in the log */
        cairn_optimizer_clear_grads(t.sgd);
    } else {
        EXPECT_REFUSED(amp_begin_step(t.amp, &skip), CAIRN_ESTATE, wait);
        EXPECT_REFUSED(amp_master_params(t.amp, NULL, shown, PARAMS), CAIRN_ESTATE, wait);
    }
    EXPECT_REFUSED(cairn_grads_taken(t.set, 0, 1), CAIRN_ESTATE, wait);
    cairn_param_set_zero_grad(t.set);
    EXPECT(isnan(amp_next_scale(t.amp)) && strstr(cairn_last_error(), wait));
    EXPECT_REFUSED(ddp_grads_ready(t.net, 0, PARAMS), CAIRN_ESTATE,
                   "ddp_grads_ready: parameter 'wpe' was declared ready already");
    EXPECT_OK(ddp_grads_ready(t.net, 0, 1));
    EXPECT_OK(ddp_grads_ready(t.net, 2, 1));
    EXPECT_OK(ddp_wait(t.net));
    PASS(expect_averages(&t, 0));
    EXPECT_OK(step_with(&t));
    PASS(expect_weights(&t, 1));
    end(&t);
    return NULL;
}

static void gradients_being_averaged_are_neither_read_nor_forgotten(void **state) {
    (void)state;
    cairn_set_log(keep_log, NULL);
    log_text[0] = '\0';
    run_ranks(2, meddle, (void *)(uintptr_t)&every_way[5]);
    assert_non_null(strstr(log_text, "cairn_zero_grad: gradients of parameter 'wte' and its set are being averaged"));
    assert_non_null(strstr(log_text, "cairn_optimizer_clear_grads: gradients"));
    assert_non_null(strstr(log_text, "cairn_param_set_zero_grad: gradients"));
    run_ranks(2, meddle, (void *)(uintptr_t)&every_way[6]);
    cairn_set_log(NULL, NULL);
}

/* Nobody will have the averages: a step says so, and what comes after zero_grad is the user's own again. */
static char *end_in_between(cairn_env *env, void *ctx) {
    struct trainer t;
    PASS(begin(&t, env, ctx));
    write_gradients(&t, 0);
    EXPECT_OK(ddp_grads_ready(t.net, 0, 2));
    ddp_destroy(&t.net);
    EXPECT_REFUSED(cairn_step(t.sgd), CAIRN_ESTATE, "incomplete");
    cairn_zero_grad(t.sgd);
    for (size_t i = 0; i < N; i++) t.g.f32[i] = average(0, i, cairn_env_size(env));
    EXPECT_OK(cairn_grads_ready(t.set, 0, PARAMS));
    EXPECT_OK(cairn_step(t.sgd));
    PASS(expect_weights(&t, 1));
    end(&t);
    return NULL;
}

static void context_destroyed_between_declaring_and_wait_leaves_its_set_usable(void **state) {
    (void)state;
    run_ranks(2, end_in_between, (void *)(uintptr_t)&every_way[0]);
    run_ranks(2, end_in_between, (void *)(uintptr_t)&every_way[1]);
}

static char *misuse(cairn_env *env, void *ctx) {
    struct trainer t;
    ddp_context *other = NULL;
    cairn_module *model = cairn_linear(env, 4, 4);
    (void)ctx;
    PASS(begin(&t, env, &every_way[0]));
    EXPECT_REFUSED(ddp_create_params(NULL, cairn_env_group(env), NULL, &other), CAIRN_EINVAL, "must be set");
    EXPECT_REFUSED(ddp_create_params(t.set, cairn_env_group(env), NULL, &other), CAIRN_ESTATE, "ddp_destroy it first");
    EXPECT_REFUSED(ddp_create_params(cairn_module_params(model), cairn_env_group(env), NULL, &other), CAIRN_EINVAL,
                   "give the module to ddp_create");
    EXPECT_REFUSED(ddp_grads_ready(NULL, 0, 1), CAIRN_EINVAL, "ddp is NULL");
    EXPECT_REFUSED(ddp_grads_ready(t.net, 2, 2), CAIRN_EINVAL,
                   "ddp_grads_ready: 2 parameters from index 2 on, but the set has 3");
    EXPECT_REFUSED(ddp_wait(NULL), CAIRN_EINVAL, "ddp is NULL");
    EXPECT(!ddp_forward(t.net, NULL) && strstr(cairn_last_error(), "in your own memory"));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &other));
    EXPECT_REFUSED(ddp_grads_ready(other, 0, 1), CAIRN_EINVAL, "cairn_backward declares");
    EXPECT_REFUSED(ddp_wait(other), CAIRN_EINVAL, "cairn_backward declares");
    ddp_destroy(&other);
    cairn_module_destroy(&model);
    end(&t);
    return NULL;
}

static void misplaced_calls_are_refused(void **state) {
    (void)state;
    run_ranks(2, misuse, NULL);
}

static char *count_allocations(cairn_env *env, void *ctx) {
    struct trainer t;
    uint64_t before = 0;
    PASS(begin(&t, env, ctx));
    for (int s = 0; s < 16; s++) {
        if (s == 6) {
            EXPECT_OK(cairn_barrier(cairn_env_group(env)));
            before = cairn__alloc_counters().allocations;
            EXPECT_OK(cairn_barrier(cairn_env_group(env)));
        }
        write_gradients(&t, s);
        PASS(declare(&t, s));
        EXPECT_OK(ddp_wait(t.net));
        EXPECT_OK(step_with(&t));
    }
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    EXPECT(cairn__alloc_counters().allocations == before);
    EXPECT_OK(cairn_barrier(cairn_env_group(env)));
    end(&t);
    return NULL;
}

static void steady_steps_allocate_nothing(void **state) {
    (void)state;
    run_ranks(2, count_allocations, (void *)(uintptr_t)&every_way[5]);
    run_ranks(2, count_allocations, (void *)(uintptr_t)&every_way[10]);
}

/* Wherever memory fails while a hook is registered: all ranks fail, and go on without it. */
static char *fail_to_register(cairn_env *env, void *ctx) {
    const int last = cairn_env_size(env) - 1;
    struct trainer t;
    cairn_status st = CAIRN_ENOMEM;
    (void)ctx;
    PASS(begin(&t, env, &(struct how){.ddp = {.message_size = 1}}));
    for (int at = 1; st != CAIRN_OK; at++) {
        struct ddp_bucket bucket = DDP_BUCKET_INIT;
        if (cairn_env_rank(env) == last) fail_in = at;
        st = ddp_register_comm_hook(t.net, ddp_fp16_compress_hook());
        fail_in = 0;
        EXPECT(st == CAIRN_OK || strstr(cairn_last_error(), "memory"));
        EXPECT_OK(ddp_bucket_get(t.net, 0, &bucket));
        EXPECT(bucket.dtype == (st == CAIRN_OK ? CAIRN_F16 : CAIRN_F32));
    }
    for (int s = 0; s < 3; s++) {
        write_gradients(&t, s);
        EXPECT_OK(ddp_grads_ready(t.net, 0, PARAMS));
        EXPECT_OK(ddp_wait(t.net));
        for (size_t i = 0; i < N; i++) EXPECT(t.g.f32[i] == average(s, i, last + 1));
        EXPECT_OK(step_with(&t));
    }
    end(&t);
    return NULL;
}

static void hook_that_runs_out_of_memory_leaves_nothing_half_done(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) run_ranks(ranks, fail_to_register, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(averages_are_in_the_users_memory_for_every_way_of_training),
        cmocka_unit_test(memory_that_is_set_late_or_moves_is_averaged_in_place),
        cmocka_unit_test(buckets_are_rebuilt_in_rank_0s_order_of_declaration),
        cmocka_unit_test(four_gradients_of_40000_average_to_40000_in_f32_memory_with_half_values),
        cmocka_unit_test(overflow_on_one_rank_skips_the_step_on_all_and_is_named),
        cmocka_unit_test(several_backwards_add_up_with_and_without_synchronising_each),
        cmocka_unit_test(undeclared_parameter_fails_on_every_rank_with_name_and_advice),
        cmocka_unit_test(undeclared_parameters_count_as_zero_where_they_may_be_unused),
        cmocka_unit_test(ranks_that_declare_nothing_take_the_scale_of_the_others),
        cmocka_unit_test(gradient_that_one_rank_declares_again_replaces_the_average_on_all),
        cmocka_unit_test(changed_parameters_fail_where_the_graph_is_static),
        cmocka_unit_test(calls_after_a_failure_return_its_cause),
        cmocka_unit_test(gradients_being_averaged_are_neither_read_nor_forgotten),
        cmocka_unit_test(context_destroyed_between_declaring_and_wait_leaves_its_set_usable),
        cmocka_unit_test(misplaced_calls_are_refused),
        cmocka_unit_test(hook_that_runs_out_of_memory_leaves_nothing_half_done),
        cmocka_unit_test(steady_steps_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
