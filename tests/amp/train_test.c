/* Training in one process: levels, casts, masters, and overflow, which leaves everything unchanged. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cairn/cairn.h"
#include "core/alloc.h"
#include "training.h"

static float step(struct training *t) {
    cairn_zero_grad(t->sgd);
    cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(t->model, t->x), t->y);
    assert_int_equal(amp_backward(t->amp, loss, t->sgd), CAIRN_OK);
    assert_int_equal(cairn_step(t->sgd), CAIRN_OK);
    return cairn_tensor_item(loss);
}

static const struct amp_options *const every_level[] = {
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O0},
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1},
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1, .half_type = CAIRN_BF16},
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2},
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_BF16},
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O3},
    &(struct amp_options){.struct_size = sizeof(struct amp_options), .opt_level = AMP_O3, .half_type = CAIRN_BF16},
};
enum { NUM_LEVELS = sizeof(every_level) / sizeof(every_level[0]) };

static void loss_falls_at_every_level(void **state) {
    for (int l = 0; l < NUM_LEVELS; l++) {
        struct training t;
        begin(&t, *state, every_level[l]);
        float first = step(&t), last = first;
        for (int i = 0; i < 100; i++) last = step(&t);
        if (!(last < 0.2f * first)) fail_msg("level %d: loss went from %g to %g", l, first, last);
        end(&t);
    }
}

static void levels_give_parameters_their_types(void **state) {
    static const cairn_dtype data[NUM_LEVELS] = {CAIRN_F32,  CAIRN_F32, CAIRN_F32, CAIRN_F16,
                                                 CAIRN_BF16, CAIRN_F16, CAIRN_BF16};
    static const bool masters[NUM_LEVELS] = {true, true, true, true, true, false, false};
    for (int l = 0; l < NUM_LEVELS; l++) {
        struct training t;
        cairn_param p;
        begin(&t, *state, every_level[l]);
        step(&t);
        assert_int_equal(cairn_param_set_get(cairn_module_params(t.model), 0, &p), CAIRN_OK);
        assert_int_equal(p.dtype, data[l]);
        assert_int_equal(cairn_param_master(cairn_module_params(t.model), 0) != NULL, masters[l]);
        end(&t);
    }
}

static void masters_are_the_original_f32_bits(void **state) {
    struct training o0, o2;
    begin(&o0, *state, every_level[0]);
    begin(&o2, *state, every_level[3]);
    for (size_t i = 0; i < 4; i++) {
        const struct cairn__param *p = cairn_module_params(o0.model)->params[i];
        assert_memory_equal(p->data, cairn_param_master(cairn_module_params(o2.model), i), p->n * sizeof(float));
    }
    end(&o2);
    end(&o0);
}

static void weights_stay_the_rounded_masters(void **state) {
    for (int l = 3; l <= 4; l++) {
        struct training t;
        begin(&t, *state, every_level[l]);
        for (int i = 0; i < 20; i++) {
            step(&t);
            for (size_t k = 0; k < 4; k++) {
                const struct cairn__param *p = cairn_module_params(t.model)->params[k];
                for (size_t e = 0; e < p->n; e++) {
                    uint16_t want;
                    cairn__dtype(p->dtype)->from_f32(&want, p->master[e]);
                    assert_int_equal(((uint16_t *)p->data)[e], want);
                }
            }
        }
        end(&t);
    }
}

/* What a step must not touch when it is skipped. */
struct bits {
    unsigned char weights[4][512], masters[4][512];
};

static void take_bits(struct bits *bits, struct cairn_param_set *set) {
    memset(bits, 0, sizeof(*bits));
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        memcpy(bits->weights[i], p->data, p->n * cairn_dtype_nbytes(p->dtype));
        if (p->master) memcpy(bits->masters[i], p->master, p->n * sizeof(float));
    }
}

/* Training with step 3 poisoned must end where training that leaves step 3 out ends, which shows momentum untouched. */
static void assert_poisoned_step_leaves_no_trace(cairn_env *env, const struct amp_options *options, int target,
                                                 float poison) {
    static struct bits before, after, clean;
    struct training t;
    begin(&t, env, options);
    double scale = amp_next_scale(t.amp);
    for (int i = 0; i < 6; i++) {
        t.plant.target = i == 3 ? target : -1;
        t.plant.value = poison;
        if (i == 3) take_bits(&before, cairn_module_params(t.model));
        step(&t);
        if (i == 3) {
            take_bits(&after, cairn_module_params(t.model));
            assert_int_equal(cairn_optimizer_step_skipped(t.sgd), 1);
            assert_memory_equal(&before, &after, sizeof(before));
            bool dynamic = options->loss_scale == 0 && options->half_type != CAIRN_BF16;
            assert_true(amp_next_scale(t.amp) == (dynamic ? scale / 2 : scale));
        }
    }
    assert_int_equal(cairn_optimizer_skipped(t.sgd), 1);
    take_bits(&after, cairn_module_params(t.model));
    end(&t);
    if (options->loss_scale == 0 && options->half_type != CAIRN_BF16)
        return; /* its later scales differ, so do its bits */

    begin(&t, env, options);
    for (int i = 0; i < 5; i++) step(&t);
    take_bits(&clean, cairn_module_params(t.model));
    assert_memory_equal(&clean, &after, sizeof(clean));
    end(&t);
}

static void poisoned_step_leaves_no_trace_at_any_level(void **state) {
    static const cairn_dtype halves[] = {CAIRN_F16, CAIRN_BF16};
    for (int h = 0; h < 2; h++) {
        for (int target = 0; target < 4; target++) {
            assert_poisoned_step_leaves_no_trace(*state, amp_options(.opt_level = AMP_O1, .half_type = halves[h]),
                                                 target, INFINITY);
            assert_poisoned_step_leaves_no_trace(*state, amp_options(.opt_level = AMP_O2, .half_type = halves[h]),
                                                 target, NAN);
            assert_poisoned_step_leaves_no_trace(
                *state, amp_options(.opt_level = AMP_O2, .half_type = halves[h], .loss_scale = 64), target, -INFINITY);
            assert_poisoned_step_leaves_no_trace(
                *state, amp_options(.opt_level = AMP_O0, .half_type = halves[h], .loss_scale = 64), target, INFINITY);
        }
    }
}

static void skipped_step_is_reported_once_with_the_name(void **state) {
    struct training t;
    begin(&t, *state, amp_options(.opt_level = AMP_O2, .verbosity = -1));
    assert_string_equal(log_text, "");
    t.plant.target = 2;
    t.plant.value = INFINITY;
    step(&t);
    t.plant.target = -1;
    step(&t);
    assert_string_equal(log_text, "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768: "
                                  "non-finite gradient in 2.weight (1 inf of 40)\n");
    end(&t);
}

static void overflow_at_the_floor_is_an_error_that_names_the_parameter(void **state) {
    static struct bits before, after;
    struct training t;
    begin(&t, *state, amp_options(.opt_level = AMP_O2, .min_loss_scale = 16384));
    t.plant.target = 1;
    t.plant.value = NAN;
    step(&t); /* 65536 -> 32768 */
    step(&t); /* -> 16384, the floor: a warning */
    assert_non_null(strstr(log_text, "to its floor of 16384"));
    take_bits(&before, cairn_module_params(t.model));
    cairn_zero_grad(t.sgd);
    cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(t.model, t.x), t.y);
    assert_int_equal(amp_backward(t.amp, loss, t.sgd), CAIRN_OK);
    assert_int_equal(cairn_step(t.sgd), CAIRN_ENUMERIC);
    assert_non_null(strstr(cairn_last_error(), "non-finite gradient in 0.bias"));
    take_bits(&after, cairn_module_params(t.model));
    assert_memory_equal(&before, &after, sizeof(before));
    end(&t);
}

/* A loss whose scaled gradient passes 65504 overflows in f16 and not in f32 or bf16. */
static void scale_that_is_too_large_falls_until_steps_are_taken(void **state) {
    struct training t;
    begin(&t, *state, amp_options(.opt_level = AMP_O2, .max_loss_scale = 0x1p24, .min_loss_scale = 0x1p-10));
    cairn_zero_grad(t.sgd);
    int skipped = 0;
    for (int i = 0; i < 40; i++) {
        cairn_zero_grad(t.sgd);
        cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(t.model, t.x), t.y);
        loss = cairn_mul_scalar(loss, 1000);
        assert_int_equal(amp_backward(t.amp, loss, t.sgd), CAIRN_OK);
        assert_int_equal(cairn_optimizer_set_lr(t.sgd, 1e-5), CAIRN_OK);
        assert_int_equal(cairn_step(t.sgd), CAIRN_OK);
        skipped += cairn_optimizer_step_skipped(t.sgd);
    }
    assert_in_range(skipped, 1, 20);
    assert_true(amp_next_scale(t.amp) == ldexp(65536.0, -skipped));
    end(&t);
}

static void scale_loss_and_its_end_equal_amp_backward(void **state) {
    static struct bits short_form, long_form;
    struct training t;
    begin(&t, *state, every_level[3]);
    for (int i = 0; i < 5; i++) step(&t);
    take_bits(&short_form, cairn_module_params(t.model));
    end(&t);
    begin(&t, *state, every_level[3]);
    for (int i = 0; i < 5; i++) {
        cairn_tensor *scaled = NULL, *loss = NULL;
        cairn_zero_grad(t.sgd);
        loss = cairn_mse_loss(cairn_module_forward(t.model, t.x), t.y);
        assert_int_equal(amp_scale_loss(t.amp, loss, t.sgd, &scaled), CAIRN_OK);
        assert_true(cairn_tensor_item(scaled) == 65536.0f * cairn_tensor_item(loss));
        assert_int_equal(cairn_backward(scaled), CAIRN_OK);
        assert_int_equal(amp_scale_loss_end(t.amp), CAIRN_OK);
        assert_int_equal(cairn_step(t.sgd), CAIRN_OK);
    }
    take_bits(&long_form, cairn_module_params(t.model));
    assert_memory_equal(&short_form, &long_form, sizeof(short_form));
    end(&t);
}

static void begin_without_end_is_reported(void **state) {
    struct training t;
    cairn_tensor *scaled = NULL;
    begin(&t, *state, every_level[1]);
    cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(t.model, t.x), t.y);
    assert_int_equal(amp_scale_loss_end(t.amp), CAIRN_ESTATE);
    assert_int_equal(amp_scale_loss(t.amp, loss, t.sgd, &scaled), CAIRN_OK);
    assert_int_equal(amp_scale_loss(t.amp, loss, t.sgd, &scaled), CAIRN_ESTATE);
    assert_non_null(strstr(cairn_last_error(), "was not ended"));
    assert_int_equal(cairn_step(t.sgd), CAIRN_ESTATE);
    assert_int_equal(cairn_backward(scaled), CAIRN_OK);
    assert_int_equal(amp_scale_loss_end(t.amp), CAIRN_OK);
    assert_int_equal(cairn_step(t.sgd), CAIRN_OK);
    end(&t);
}

static void null_loss_returns_its_cause(void **state) {
    struct training t;
    begin(&t, *state, every_level[1]);
    cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(t.model, t.y), t.y); /* wrong width */
    assert_null(loss);
    assert_int_equal(amp_backward(t.amp, loss, t.sgd), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "inner sizes"));
    end(&t);
}

static void initialising_twice_is_refused_until_destroyed(void **state) {
    struct training t;
    amp_context *again = NULL;
    begin(&t, *state, every_level[0]);
    assert_int_equal(amp_initialize(*state, t.model, t.sgd, NULL, &again), CAIRN_ESTATE);
    amp_destroy(&t.amp);
    assert_int_equal(amp_initialize(*state, t.model, t.sgd, every_level[0], &t.amp), CAIRN_OK);
    step(&t);
    end(&t);
}

static void plain_backward_after_a_scaled_one_has_scale_1(void **state) {
    struct training t;
    begin(&t, *state, every_level[3]);
    step(&t);
    cairn_zero_grad(t.sgd);
    cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(t.model, t.x), t.y);
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    const struct cairn__param *p = cairn_module_params(t.model)->params[0];
    assert_true(cairn__grad_is_written(p->gradient) && !cairn__grad_is_scaled(p->gradient));
    end(&t);
}

static void second_o1_context_of_an_environment_is_refused(void **state) {
    struct training first, other;
    amp_context *amp = NULL;
    begin(&first, *state, every_level[1]);
    begin(&other, *state, every_level[0]);
    amp_destroy(&other.amp); /* takes nothing of the first away */
    assert_int_equal(amp_initialize(*state, other.model, other.sgd, every_level[1], &amp), CAIRN_ESTATE);
    assert_int_equal(amp_initialize(*state, other.model, other.sgd, every_level[0], &other.amp), CAIRN_OK);
    step(&first);
    end(&other);
    end(&first);
}

/* A loss of its own for each half of the batch, both made before the first backward. */
static void two_losses_made_before_the_first_backward_both_count(void **state) {
    for (int l = 0; l < NUM_LEVELS; l++) {
        struct training t;
        begin(&t, *state, every_level[l]);
        cairn_zero_grad(t.sgd);
        cairn_tensor *a = cairn_mse_loss(cairn_module_forward(t.model, t.x), t.y);
        cairn_tensor *b = cairn_mse_loss(cairn_module_forward(t.model, t.x), t.y);
        assert_int_equal(amp_backward(t.amp, a, t.sgd), CAIRN_OK);
        assert_int_equal(amp_backward(t.amp, b, t.sgd), CAIRN_OK);
        assert_int_equal(cairn_step(t.sgd), CAIRN_OK);
        assert_int_equal(cairn_optimizer_step_skipped(t.sgd), 0);
        end(&t);
    }
}

static void two_backwards_add_up(void **state) {
    struct training once, twice;
    begin(&once, *state, amp_options(.opt_level = AMP_O2, .loss_scale = 1024));
    begin(&twice, *state, amp_options(.opt_level = AMP_O2, .loss_scale = 1024));
    cairn_zero_grad(once.sgd);
    cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(once.model, once.x), once.y);
    assert_int_equal(amp_backward(once.amp, loss, once.sgd), CAIRN_OK);
    cairn_zero_grad(twice.sgd);
    for (int i = 0; i < 2; i++) { /* half a loss, twice: powers of two, so the sum is exact */
        loss = cairn_mse_loss(cairn_module_forward(twice.model, twice.x), twice.y);
        assert_int_equal(amp_backward(twice.amp, cairn_mul_scalar(loss, 0.5), twice.sgd), CAIRN_OK);
    }
    assert_int_equal(cairn_step(once.sgd), CAIRN_OK);
    assert_int_equal(cairn_step(twice.sgd), CAIRN_OK);
    assert_int_equal(cairn_optimizer_steps(once.sgd) + cairn_optimizer_steps(twice.sgd), 2);
    static struct bits a, b;
    take_bits(&a, cairn_module_params(once.model));
    take_bits(&b, cairn_module_params(twice.model));
    assert_memory_equal(&a, &b, sizeof(a));
    end(&twice);
    end(&once);
}

static void steady_state_step_allocates_nothing_at_any_level(void **state) {
    for (int l = 0; l < NUM_LEVELS; l++) {
        struct training t;
        begin(&t, *state, every_level[l]);
        for (int i = 0; i < 5; i++) step(&t);
        uint64_t before = cairn__alloc_counters().allocations;
        for (int i = 0; i < 10; i++) step(&t);
        assert_int_equal(cairn__alloc_counters().allocations, before);
        end(&t);
    }
}

static void destroying_out_of_order_is_logged_and_does_nothing(void **state) {
    struct training t;
    begin(&t, *state, every_level[3]);
    cairn_env *env = *state;
    log_text[0] = '\0';
    cairn_optimizer_destroy(&t.sgd);
    cairn_module_destroy(&t.model);
    cairn_env_destroy(&env);
    assert_true(t.sgd && t.model && env);
    assert_non_null(strstr(log_text, "cairn_optimizer_destroy: an amp context uses the optimizer"));
    assert_non_null(strstr(log_text, "cairn_module_destroy: 2 optimizers"));
    assert_non_null(strstr(log_text, "cairn_env_destroy: 0 graphs and 1 modules"));
    step(&t);
    end(&t);
    assert_null(t.model);
}

static void disabled_amp_trains_as_if_it_were_not_there(void **state) {
    static struct bits off, o0;
    struct training t;
    begin(&t, *state, amp_options(.enabled = CAIRN_OFF));
    for (int i = 0; i < 5; i++) step(&t);
    take_bits(&off, cairn_module_params(t.model));
    end(&t);
    begin(&t, *state, every_level[0]);
    for (int i = 0; i < 5; i++) step(&t);
    take_bits(&o0, cairn_module_params(t.model));
    end(&t);
    assert_memory_equal(&off, &o0, sizeof(off));
}

static cairn_tensor *loss_of(const struct training *t) {
    return cairn_mse_loss(cairn_module_forward(t->model, t->x), t->y);
}

/* Whichever way it ends. */
static void release_is_refused_while_a_scaled_loss_is_open(void **state) {
    struct training t;
    cairn_tensor *scaled = NULL;
    begin(&t, *state, every_level[1]);
    cairn_env *env = *state;
    assert_int_equal(amp_scale_loss(t.amp, loss_of(&t), t.sgd, &scaled), CAIRN_OK);
    assert_int_equal(cairn_release_results(env), CAIRN_ESTATE);
    assert_string_equal(
        cairn_last_error(),
        "release_results: called between amp_scale_loss and amp_scale_loss_end; call amp_scale_loss_end first");
    assert_int_equal(cairn_backward(scaled), CAIRN_OK);
    assert_int_equal(amp_scale_loss_end(t.amp), CAIRN_OK);
    assert_int_equal(cairn_release_results(env), CAIRN_OK);
    assert_int_equal(amp_backward(t.amp, cairn_tensor_keep(scaled), t.sgd), CAIRN_ESTATE); /* released */
    assert_int_equal(cairn_release_results(env), CAIRN_OK);
    assert_int_equal(amp_scale_loss(t.amp, loss_of(&t), t.sgd, &scaled), CAIRN_OK);
    amp_destroy(&t.amp);
    assert_int_equal(cairn_release_results(env), CAIRN_OK);
    end(&t);
}

/* Two backwards, the first of which overflows: accumulated sums are checked before every step. */
static void overflow_in_an_accumulator_is_never_applied(void **state) {
    struct training t;
    struct bits before, after;
    begin(&t, *state, amp_options(.opt_level = AMP_O2, .loss_scale = 64));
    step(&t);
    take_bits(&before, cairn_module_params(t.model));
    cairn_zero_grad(t.sgd);
    t.plant.target = 1, t.plant.value = INFINITY;
    assert_int_equal(amp_backward(t.amp, loss_of(&t), t.sgd), CAIRN_OK);
    t.plant.target = -1;
    assert_int_equal(amp_backward(t.amp, loss_of(&t), t.sgd), CAIRN_OK);
    for (int again = 0; again < 3; again++) {
        assert_int_equal(cairn_step(t.sgd), CAIRN_OK);
        assert_int_equal(cairn_optimizer_step_skipped(t.sgd), 1);
        assert_non_null(strstr(log_text, "non-finite gradient in 0.bias (1 inf of 10)\n"));
        log_text[0] = '\0';
    }
    take_bits(&after, cairn_module_params(t.model));
    assert_memory_equal(&before, &after, sizeof(before));
    end(&t);
}

static void reports_of_every_one_of_many_scalers_are_read(void **state) {
    enum { LOSSES = 12 };
    struct training t;
    begin(&t, *state,
          amp_options(.opt_level = AMP_O0, .loss_scale = AMP_DYNAMIC, .num_losses = LOSSES, .verbosity = -1,
                      .scaler = amp_scaler_options(.init_scale = 128, .min_scale = 64)));
    for (int again = 0; again < 2; again++) {
        cairn_zero_grad(t.sgd);
        for (int id = 0; id < LOSSES; id++) {
            t.plant.target = id == LOSSES - 1 ? 0 : -1, t.plant.value = INFINITY;
            assert_int_equal(amp_backward_with(t.amp, loss_of(&t), amp_loss_options(.loss_id = id)), CAIRN_OK);
        }
        const cairn_status st = cairn_step(t.sgd);
        assert_int_equal(st, again ? CAIRN_ENUMERIC : CAIRN_OK);
        assert_int_equal(cairn_optimizer_step_skipped(t.sgd), 1);
        assert_true(amp_scaler_get_scale(amp_scaler_of(t.amp, LOSSES - 1)) == 64);
        assert_true(amp_scaler_get_scale(amp_scaler_of(t.amp, 0)) == 128);
    }
    assert_non_null(strstr(cairn_last_error(), "loss scale at its floor of 64"));
    assert_non_null(strstr(log_text, "loss scaler 11 reducing loss scale to its floor of 64"));
    end(&t);
}

/* The context goes, the gradients stay what they are worth. */
static void gradients_outlive_the_context_they_were_scaled_in(void **state) {
    struct training kept, ended;
    struct bits a, b;
    struct training *trainings[] = {&kept, &ended};
    for (int i = 0; i < 2; i++) {
        begin(trainings[i], *state, amp_options(.opt_level = AMP_O2, .loss_scale = 64));
        cairn_zero_grad(trainings[i]->sgd);
        assert_int_equal(amp_backward(trainings[i]->amp, loss_of(trainings[i]), trainings[i]->sgd), CAIRN_OK);
        if (i == 1) amp_destroy(&ended.amp);
        assert_int_equal(cairn_step(trainings[i]->sgd), CAIRN_OK);
    }
    take_bits(&a, cairn_module_params(kept.model));
    take_bits(&b, cairn_module_params(ended.model));
    assert_memory_equal(&a, &b, sizeof(a));
    end(&ended), end(&kept);

    cairn_tensor *scaled = NULL;
    begin(&ended, *state, amp_options(.opt_level = AMP_O2, .loss_scale = 64));
    assert_int_equal(amp_scale_loss(ended.amp, loss_of(&ended), ended.sgd, &scaled), CAIRN_OK);
    amp_destroy(&ended.amp);
    assert_int_equal(cairn_backward(scaled), CAIRN_ESTATE);
    end(&ended);
}

/* The second model's gradient waits while the first's scale falls and its places are used again. */
static void gradient_of_another_model_keeps_its_scale_over_many_losses(void **state) {
    struct training first, second;
    begin(&first, *state, amp_options(.opt_level = AMP_O2));
    begin(&second, *state, amp_options(.opt_level = AMP_O0));
    cairn_zero_grad(second.sgd);
    cairn_zero_grad(first.sgd);
    assert_int_equal(amp_backward(first.amp, cairn_add(loss_of(&first), loss_of(&second)), first.sgd), CAIRN_OK);
    assert_int_equal(cairn_step(first.sgd), CAIRN_OK);
    const struct cairn__param *p = cairn_module_params(second.model)->params[0];
    const double before =
        *(const float *)cairn__grad_memory(p->gradient) * (double)*cairn__grad_peek(p->gradient).factor;
    for (int i = 0; i < 70; i++) {
        first.plant.target = i == 5 ? 0 : -1, first.plant.value = INFINITY;
        step(&first);
    }
    struct cairn__grad_view grad;
    assert_int_equal(cairn__grad_prepare_read(cairn_module_params(second.model)->params[0]->gradient, &grad), CAIRN_OK);
    assert_true(*(const float *)grad.x * (double)(grad.factor ? *grad.factor : 1) == before);
    end(&second), end(&first);
}

static cairn_status step_of(void *user) {
    struct training *t = user;
    cairn_zero_grad(t->sgd);
    t->loss = loss_of(t);
    cairn_status st = amp_backward(t->amp, t->loss, t->sgd);
    return st == CAIRN_OK ? cairn_step(t->sgd) : st;
}

/* Evaluation beside a graph, with and without zero_grad: neither disturbs the other, and nothing grows. */
static void graph_and_steps_outside_of_it_do_not_disturb_each_other(void **state) {
    struct training alone, beside;
    cairn_graph *graph = NULL;
    begin(&alone, *state, every_level[3]);
    begin(&beside, *state, every_level[3]);
    assert_int_equal(cairn_graph_capture(*state, step_of, &beside, &graph), CAIRN_OK);
    uint64_t allocations = 0;
    for (int i = 0; i < 30; i++) {
        const float want = step(&alone);
        assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
        assert_true(cairn_tensor_item(beside.loss) == want);
        if (i % 3 == 1) cairn_zero_grad(beside.sgd);
        cairn_tensor *evaluated = loss_of(&beside);
        const float before = cairn_tensor_item(evaluated);
        assert_true(before == cairn_tensor_item(loss_of(&alone)));
        assert_true(cairn_tensor_item(beside.loss) == want);
        if (i % 3 == 2) {
            assert_null(cairn_add(evaluated, beside.loss));
            assert_non_null(strstr(cairn_last_error(), "made on another tape"));
            assert_int_equal(cairn_backward(beside.loss), CAIRN_ESTATE);
            assert_int_equal(cairn_graph_replay(graph), CAIRN_OK);
            assert_int_equal(cairn_tensor_ndim(evaluated), -1); /* a replay begins a step */
            step(&alone);
        }
        if (i == 10) allocations = cairn__alloc_counters().allocations;
    }
    assert_int_equal(cairn__alloc_counters().allocations, allocations);
    cairn_graph_destroy(&graph);
    assert_int_equal(cairn_tensor_ndim(beside.loss), -1);
    end(&beside), end(&alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overflow_in_an_accumulator_is_never_applied),
        cmocka_unit_test(reports_of_every_one_of_many_scalers_are_read),
        cmocka_unit_test(gradients_outlive_the_context_they_were_scaled_in),
        cmocka_unit_test(gradient_of_another_model_keeps_its_scale_over_many_losses),
        cmocka_unit_test(graph_and_steps_outside_of_it_do_not_disturb_each_other),
        cmocka_unit_test(loss_falls_at_every_level),
        cmocka_unit_test(levels_give_parameters_their_types),
        cmocka_unit_test(masters_are_the_original_f32_bits),
        cmocka_unit_test(weights_stay_the_rounded_masters),
        cmocka_unit_test(poisoned_step_leaves_no_trace_at_any_level),
        cmocka_unit_test(skipped_step_is_reported_once_with_the_name),
        cmocka_unit_test(overflow_at_the_floor_is_an_error_that_names_the_parameter),
        cmocka_unit_test(scale_that_is_too_large_falls_until_steps_are_taken),
        cmocka_unit_test(scale_loss_and_its_end_equal_amp_backward),
        cmocka_unit_test(begin_without_end_is_reported),
        cmocka_unit_test(release_is_refused_while_a_scaled_loss_is_open),
        cmocka_unit_test(null_loss_returns_its_cause),
        cmocka_unit_test(initialising_twice_is_refused_until_destroyed),
        cmocka_unit_test(plain_backward_after_a_scaled_one_has_scale_1),
        cmocka_unit_test(second_o1_context_of_an_environment_is_refused),
        cmocka_unit_test(two_losses_made_before_the_first_backward_both_count),
        cmocka_unit_test(two_backwards_add_up),
        cmocka_unit_test(steady_state_step_allocates_nothing_at_any_level),
        cmocka_unit_test(destroying_out_of_order_is_logged_and_does_nothing),
        cmocka_unit_test(disabled_amp_trains_as_if_it_were_not_there),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
