/* The gradient statistics that some scaler rules use: at every level, on several ranks, and in whole trainings. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../kept_log.h"
#include "../mlp.h"
#include "../on_gpu.h"
#include "../one_env.h"
#include "../plant.h"
#include "../ranks.h"
#include "cairn/cairn.h"
#include "scaler.h"

enum { SEEN = 64 };

/* A rule that leaves the scale alone and remembers what it was shown. */
struct seen {
    struct amp_scaler_statistics list[SEEN];
    int found[SEEN];
    int count;
};

static void remember(void *ctx, struct amp_scaler_state *state, int found,
                     const struct amp_scaler_statistics *statistics) {
    struct seen *seen = ctx;
    (void)state;
    if (seen->count == SEEN) return;
    seen->found[seen->count] = found;
    seen->list[seen->count++] = *statistics;
}

static struct amp_scaler_options watching(struct seen *seen, double scale) {
    *seen = (struct seen){.count = 0};
    return (struct amp_scaler_options){.struct_size = sizeof(struct amp_scaler_options),
                                       .kind = AMP_SCALER_USER,
                                       .init_scale = scale,
                                       .update_by_statistics = remember,
                                       .ctx = seen};
}

static bool is(const struct amp_scaler_statistics *s, double largest, int64_t elements, int64_t zeros, int64_t infs,
               int64_t nans) {
    return s->struct_size == sizeof(*s) && s->largest == largest && s->elements == elements && s->zeros == zeros &&
           s->infs == infs && s->nans == nans;
}

/* ---- buffers of the program's own: every element is known ---- */

enum { N = 8 };

struct own {
    float w[N], g[N];
    cairn_param_set *set;
    cairn_optimizer *sgd;
    amp_context *amp;
};

static void begin_own(struct own *t, cairn_env *env, amp_opt_level level, bool fused,
                      const struct amp_scaler_options *scaler) {
    memset(t, 0, sizeof(*t));
    const cairn_param params[] = {
        {.name = "a", .data = t->w, .grad = t->g, .dtype = CAIRN_F32, .ndim = 1, .shape = {N / 2}},
        {.name = "b", .data = t->w + N / 2, .grad = t->g + N / 2, .dtype = CAIRN_F32, .ndim = 1, .shape = {N / 2}}};
    OK(cairn_param_set_create(env, params, 2, &t->set));
    if (fused) OK(cairn_sgd_create(t->set, NULL, &t->sgd));
    OK(amp_initialize_params(env, t->set, t->sgd, amp_options(.opt_level = level, .scaler = scaler, .verbosity = -1),
                             &t->amp));
}

static void end_own(struct own *t) {
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->sgd);
    cairn_param_set_destroy(&t->set);
}

static void step_own(struct own *t, const float *g) {
    int skip = 0;
    const float scale = (float)amp_next_scale(t->amp);
    for (int i = 0; i < N; i++) t->g[i] = g[i] * scale;
    OK(cairn_grads_ready(t->set, 0, 2));
    if (t->sgd) {
        OK(cairn_step(t->sgd));
        return;
    }
    OK(amp_begin_step(t->amp, &skip));
    OK(amp_end_step(t->amp));
}

static void a_rule_sees_unscaled_gradients_at_every_level(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    static const float steps[][N] = {{0.5f, -0.25f, 0, -0.0f, 0.125f, 1, -3, 2},
                                     {0},
                                     {0.5f, INFINITY, 0, -0.75f, NAN, 0.25f, NAN, 0},
                                     {0, 0, 0, 0, 0, 0, 0, -0x1p-20f}};
    static const amp_opt_level levels[] = {AMP_O0, AMP_O1, AMP_O2, AMP_O3};
    for (int way = 0; way < 8; way++) {
        struct own t;
        struct seen seen;
        const struct amp_scaler_options options = watching(&seen, 1024);
        begin_own(&t, *state, levels[way / 2], way % 2, &options);
        for (int i = 0; i < 4; i++) step_own(&t, steps[i]);
        assert_int_equal(seen.count, 4);
        assert_true(is(&seen.list[0], 3, N, 2, 0, 0));
        assert_true(is(&seen.list[1], 0, N, N, 0, 0));
        assert_true(is(&seen.list[2], 0.75, N, 2, 1, 2));
        assert_true(is(&seen.list[3], 0x1p-20, N, N - 1, 0, 0));
        for (int i = 0; i < 4; i++) assert_int_equal(seen.found[i], i == 2);
        assert_int_equal(cairn_optimizer_skipped(t.sgd ? t.sgd : NULL), t.sgd ? 1 : 0);
        end_own(&t);
    }
}

/* The step's gradient is the sum of both: 1/2 + 1/4, 0 - 0. */
static void gradients_of_two_losses_are_seen_as_their_sum(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    static const float first[N] = {0.5f, -1, 1}, second[N] = {0.25f, 1, 1.5f};
    struct own t;
    struct seen seen;
    const struct amp_scaler_options options = watching(&seen, 64);
    begin_own(&t, *state, AMP_O2, true, &options);
    OK(cairn__param_set_keep_unsynced(t.set, true));
    for (int i = 0; i < N; i++) t.g[i] = first[i] * (float)amp_next_scale(t.amp);
    OK(cairn_grads_ready(t.set, 0, 2));
    OK(cairn__param_set_settle(t.set));
    OK(cairn__param_set_keep_unsynced(t.set, false));
    step_own(&t, second);
    assert_int_equal(seen.count, 1);
    assert_true(is(&seen.list[0], 2.5, N, N - 2, 0, 0));
    end_own(&t);
}

/* At 1024, 2^14 / 1024 is 16: of 8, 16, 17 and those that are not finite; grown, 8 is one more. */
static void what_saturates_is_counted_at_the_scale_and_at_the_grown_one(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    static const float g[N] = {8, -16, 17, 7.9f, 0, 1, INFINITY, NAN};
    static const amp_opt_level levels[] = {AMP_O0, AMP_O2};
    for (int l = 0; l < 2; l++) {
        struct own t;
        struct seen seen;
        struct amp_scaler_options options = watching(&seen, 1024);
        options.saturation_log = 14;
        begin_own(&t, *state, levels[l], true, &options);
        step_own(&t, g);
        assert_int_equal(seen.count, 1);
        assert_int_equal(seen.list[0].saturating, 4);
        assert_int_equal(seen.list[0].saturating_if_grown, 5);
        end_own(&t);
    }
}

/* At S = 2^13 a 4 saturates, and grown a 2: 1/8 of what is not 0 may, but not 2/8. */
static void histogram_keeps_a_share_below_its_bound(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    static const float steps[][N] = {{4, 2, 1, 1, 1, 1, 1, 1}, {4, 4, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 0}};
    static const double want[] = {0x1p13, 0x1p12, 0x1p13};
    struct own t;
    begin_own(&t, *state, AMP_O2, true,
              amp_scaler_options(.kind = AMP_SCALER_HISTOGRAM, .init_scale = 0x1p13, .saturation_share = 0.125,
                                 .growth_interval = 1));
    for (int i = 0; i < 3; i++) {
        step_own(&t, steps[i]);
        assert_true(amp_scaler_get_scale(amp_scaler_of(t.amp, 0)) == want[i]);
    }
    assert_int_equal(cairn_optimizer_skipped(t.sgd), 0);
    end_own(&t);
}

static void a_rule_that_only_counts_overflows_needs_no_extra_pass(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    struct own t;
    const float g[N] = {1};
    begin_own(&t, *state, AMP_O2, true, amp_scaler_options(.kind = AMP_SCALER_APEX));
    step_own(&t, g);
    const amp_scaler *s = amp_scaler_of(t.amp, 0);
    assert_int_equal(s->seen[1].elements, 0);
    end_own(&t);
}

/* ---- explicit scaling ---- */

struct pair {
    cairn_module *net;
    cairn_optimizer *o[2];
    amp_scaler *scaler;
    cairn_tensor *x;
};

static void begin_pair(struct pair *t, cairn_env *env, const struct amp_scaler_options *options) {
    static const size_t first[] = {0, 1}, second[] = {2, 3};
    cairn_manual_seed(env, 5);
    t->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(4, 3));
    t->net = make_mlp(env, 3, 5, 2);
    OK(cairn_sgd_create_over(cairn_module_params(t->net), first, 2, NULL, &t->o[0]));
    OK(cairn_sgd_create_over(cairn_module_params(t->net), second, 2, NULL, &t->o[1]));
    OK(amp_scaler_create(env, options, &t->scaler));
}

static void end_pair(struct pair *t) {
    amp_scaler_destroy(&t->scaler);
    for (int i = 0; i < 2; i++) cairn_optimizer_destroy(&t->o[i]);
    cairn_module_destroy(&t->net);
    cairn_tensor_destroy(&t->x);
}

/* As they stand, at the scale of their loss. */
static double largest_of(const cairn_module *net, double scale) {
    double largest = 0;
    const struct cairn_param_set *set = cairn_module_params((cairn_module *)(uintptr_t)net);
    for (size_t i = 0; i < set->count; i++) {
        const float *g = cairn__grad_memory(set->params[i]->gradient);
        for (size_t k = 0; k < set->params[i]->n; k++) largest = fmax(largest, fabs((double)g[k]) / scale);
    }
    return largest;
}

static void all_optimizers_of_an_explicit_step_are_seen_once(void **state) {
    NOT_ON_A_GPU("the test reads gradients on the host");
    struct pair t;
    struct seen seen;
    const struct amp_scaler_options options = watching(&seen, 256);
    begin_pair(&t, *state, &options);
    for (int unscales = 0; unscales < 2; unscales++) {
        for (int i = 0; i < 2; i++) cairn_zero_grad(t.o[i]);
        cairn_tensor *loss = cairn_mean(cairn_module_forward(t.net, t.x));
        OK(cairn_backward(amp_scaler_scale(t.scaler, loss)));
        const double largest = largest_of(t.net, 256);
        for (int i = 0; unscales && i < 2; i++) OK(amp_scaler_unscale(t.scaler, t.o[i]));
        for (int i = 0; i < 2; i++) OK(amp_scaler_step(t.scaler, t.o[i], NULL));
        OK(amp_scaler_update(t.scaler));
        assert_int_equal(seen.count, 1 + unscales);
        const struct amp_scaler_statistics *s = &seen.list[unscales];
        assert_true(s->largest == largest && s->elements == 3 * 5 + 5 + 5 * 2 + 2 && s->infs == 0);
    }
    end_pair(&t);
}

static void a_scale_that_is_set_drops_what_was_seen(void **state) {
    struct pair t;
    struct seen seen;
    const struct amp_scaler_options options = watching(&seen, 256);
    begin_pair(&t, *state, &options);
    OK(cairn_backward(amp_scaler_scale(t.scaler, cairn_mean(cairn_module_forward(t.net, t.x)))));
    OK(amp_scaler_unscale(t.scaler, t.o[0]));
    OK(amp_scaler_set_scale(t.scaler, 8));
    for (int i = 0; i < 2; i++) cairn_zero_grad(t.o[i]);
    OK(cairn_backward(amp_scaler_scale(t.scaler, cairn_mean(cairn_module_forward(t.net, t.x)))));
    OK(amp_scaler_step(t.scaler, t.o[1], NULL));
    OK(amp_scaler_update(t.scaler));
    OK(cairn_env_synchronize(*state));
    assert_int_equal(seen.count, 1);
    assert_int_equal(seen.list[0].elements, 5 * 2 + 2);
    end_pair(&t);
}

/* ---- ranks ---- */

enum { RANKS = 3, STEPS = 30 };

struct over_ranks {
    struct amp_scaler_options scaler;
    struct amp_scaler_update_record trace[RANKS][STEPS];
    struct amp_scaler_state end[RANKS];
};

/* Each rank has examples of its own; step 9 overflows on one of them. */
static char *train_on_a_rank(cairn_env *env, void *ctx) {
    struct over_ranks *all = ctx;
    const int rank = cairn_env_rank(env), size = cairn_env_size(env);
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    ddp_context *ddp = NULL;
    struct plant plant;
    cairn_manual_seed(env, 7);
    cairn_module *net = make_mlp(env, 6, 5, 3);
    EXPECT(net);
    hyper.lr = 0.1;
    EXPECT_OK(cairn_sgd_create(cairn_module_params(net), &hyper, &sgd));
    EXPECT_OK(
        amp_initialize(env, net, sgd, amp_options(.opt_level = AMP_O2, .verbosity = -1, .scaler = &all->scaler), &amp));
    EXPECT_OK(ddp_create(net, cairn_env_group(env), NULL, &ddp));
    plant_install(&plant, cairn_module_params(net));
    cairn_manual_seed(env, 100 + (uint64_t)rank);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(4, 6)),
                 *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(4, 3));
    amp_scaler *scaler = amp_scaler_of(amp, 0);
    EXPECT_OK(amp_scaler_record(scaler, all->trace[rank], STEPS));
    for (int i = 0; i < STEPS; i++) {
        plant.target = i == 9 && rank == size - 1 ? 1 : -1;
        plant.value = INFINITY;
        cairn_zero_grad(sgd);
        EXPECT_OK(amp_backward(amp, cairn_mse_loss(cairn_module_forward(net, x), y), sgd));
        EXPECT_OK(cairn_step(sgd));
    }
    EXPECT_OK(cairn_env_synchronize(env)); /* on a GPU records come late */
    EXPECT(amp_scaler_recorded(scaler) == STEPS);
    all->end[rank] = (struct amp_scaler_state)AMP_SCALER_STATE_INIT;
    EXPECT_OK(amp_scaler_get_state(scaler, &all->end[rank]));
    plant_remove(&plant);
    ddp_destroy(&ddp);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&net);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&y);
    return NULL;
}

/* By field: their padding is whatever it was. */
static bool same_record(const struct amp_scaler_update_record *a, const struct amp_scaler_update_record *b) {
    return a->step == b->step && a->scale == b->scale && a->growth_tracker == b->growth_tracker && a->found == b->found;
}

static bool same_end(const struct amp_scaler_state *a, const struct amp_scaler_state *b) {
    return a->scale == b->scale && a->growth_tracker == b->growth_tracker && a->updates == b->updates &&
           a->last_overflow == b->last_overflow && a->x_hat == b->x_hat && a->slow_x_hat == b->slow_x_hat &&
           a->xsquared_hat == b->xsquared_hat && a->b1_correction == b->b1_correction &&
           a->b2_correction == b->b2_correction;
}

static void train_on_ranks(struct over_ranks *all, const struct amp_scaler_options *scaler, int size) {
    memset(all, 0, sizeof(*all));
    all->scaler = *scaler;
    run_ranks(size, train_on_a_rank, all);
    for (int r = 1; r < size; r++) {
        for (int i = 0; i < STEPS; i++) assert_true(same_record(&all->trace[r][i], &all->trace[0][i]));
        assert_true(same_end(&all->end[r], &all->end[0]));
    }
    for (int i = 0; i < STEPS; i++) assert_int_equal(all->trace[0][i].found, i == 9);
    assert_true(all->trace[0][9].scale < all->trace[0][8].scale);
    assert_int_equal(all->end[0].last_overflow, 9);
}

static void ranks_of_ddp_decide_alike(void **state) {
    static struct over_ranks all;
    (void)state;
    for (int size = 2; size <= RANKS; size++) {
        train_on_ranks(&all, amp_scaler_options(.kind = AMP_SCALER_LOGMAX, .log_max = 12), size);
        assert_true(all.trace[0][0].scale > 1 && all.end[0].b1_correction < pow(0.99, STEPS - 0.5));
        train_on_ranks(&all,
                       amp_scaler_options(.kind = AMP_SCALER_HISTOGRAM, .init_scale = 4, .growth_interval = 1,
                                          .saturation_share = 0.05, .saturation_log = 8),
                       size);
        assert_true(all.trace[0][0].scale == 8);
    }
}

/* Rank r has gradients of r + 1, but for zeros. */
static char *step_of_its_own(cairn_env *env, void *ctx) {
    struct seen *seen = (struct seen *)ctx + cairn_env_rank(env);
    const int rank = cairn_env_rank(env);
    const struct amp_scaler_options options = watching(seen, 128);
    float w[N] = {0}, g[N] = {0};
    const cairn_param param = {.name = "a", .data = w, .grad = g, .dtype = CAIRN_F32, .ndim = 1, .shape = {N}};
    cairn_param_set *set = NULL;
    amp_context *amp = NULL;
    EXPECT_OK(cairn_param_set_create(env, &param, 1, &set));
    EXPECT_OK(amp_initialize_params(env, set, NULL,
                                    amp_options(.opt_level = AMP_O2, .scaler = &options, .verbosity = -1), &amp));
    for (int step = 0; step < 2; step++) {
        int skip = 0;
        const float scale = (float)amp_next_scale(amp);
        for (int i = 0; i <= rank; i++) g[i] = (float)(rank + 1) * scale;
        if (step == 1 && rank == 0) g[5] = INFINITY;
        EXPECT_OK(cairn_grads_ready(set, 0, 1));
        EXPECT_OK(amp_begin_step(amp, &skip));
        EXPECT(skip == step);
        EXPECT_OK(amp_end_step(amp));
    }
    amp_destroy(&amp);
    cairn_param_set_destroy(&set);
    return NULL;
}

static void ranks_that_reduce_later_see_the_sum_of_their_counts(void **state) {
    (void)state;
    NOT_ON_A_GPU("these buffers are the host's");
    struct seen seen[RANKS];
    run_ranks(RANKS, step_of_its_own, seen);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(seen[r].count, 2);
        assert_true(is(&seen[r].list[0], 3, 3 * N, 3 * N - 6, 0, 0));
        assert_true(is(&seen[r].list[1], 3, 3 * N, 3 * N - 7, 1, 0));
        assert_int_equal(seen[r].found[1], 1);
    }
}

/* ---- trainings ---- */

/* 40 steps of more examples than the net can hold. */
static float train(cairn_env *env, const struct amp_scaler_options *scaler, int64_t *skipped, double *scale) {
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    float last = 0;
    cairn_manual_seed(env, 3);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(64, 12)),
                 *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(64, 4));
    cairn_module *net = make_mlp(env, 12, 10, 4);
    hyper.lr = 0.05, hyper.momentum = 0.9;
    OK(cairn_sgd_create(cairn_module_params(net), &hyper, &sgd));
    OK(amp_initialize(env, net, sgd, amp_options(.opt_level = AMP_O2, .verbosity = -1, .scaler = scaler), &amp));
    for (int i = 0; i < 300; i++) {
        cairn_zero_grad(sgd);
        cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(net, x), y);
        OK(amp_backward(amp, loss, sgd));
        OK(cairn_step(sgd));
        last = cairn_tensor_item(loss);
    }
    OK(cairn_env_synchronize(env));
    *skipped = cairn_optimizer_skipped(sgd);
    *scale = amp_scaler_get_scale(amp_scaler_of(amp, 0));
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&net);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&y);
    return last;
}

static void a_training_with_logmax_reaches_the_loss_of_the_dynamic_scale(void **state) {
    static const double log_max[] = {0, 12}; /* 0: the source's 16 */
    int64_t skipped = 0;
    double scale = 0;
    const float dynamic = train(*state, amp_scaler_options(.kind = AMP_SCALER_APEX), &skipped, &scale);
    for (int i = 0; i < 2; i++) {
        const float logmax =
            train(*state, amp_scaler_options(.kind = AMP_SCALER_LOGMAX, .log_max = log_max[i]), &skipped, &scale);
        if (!(fabsf(logmax - dynamic) < 0.02f * dynamic)) fail_msg("loss %g by logmax, %g by apex's", logmax, dynamic);
        assert_true(scale > 1 && skipped <= (i ? 0 : 3));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rule_sees_unscaled_gradients_at_every_level),
        cmocka_unit_test(gradients_of_two_losses_are_seen_as_their_sum),
        cmocka_unit_test(what_saturates_is_counted_at_the_scale_and_at_the_grown_one),
        cmocka_unit_test(histogram_keeps_a_share_below_its_bound),
        cmocka_unit_test(a_rule_that_only_counts_overflows_needs_no_extra_pass),
        cmocka_unit_test(all_optimizers_of_an_explicit_step_are_seen_once),
        cmocka_unit_test(a_scale_that_is_set_drops_what_was_seen),
        cmocka_unit_test(ranks_of_ddp_decide_alike),
        cmocka_unit_test(ranks_that_reduce_later_see_the_sum_of_their_counts),
        cmocka_unit_test(a_training_with_logmax_reaches_the_loss_of_the_dynamic_scale),
    };
    cairn_set_log(keep_log, NULL);
    return cmocka_run_group_tests(tests, make_env, end_env);
}
