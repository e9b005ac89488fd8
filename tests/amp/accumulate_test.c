/* Gradient accumulation under amp, and what a program may do between the last backward and the step: read unscaled
 * gradients, clip, change gradients and weights. */
#include "logged_env.h"
#include "optim/hooks.h"
#include "probe.h"

static void assert_in_log(const char *text) {
    if (!strstr(log_text, text)) fail_msg("'%s' is not in the log: %s", text, log_text);
}

static const struct amp_options *dynamic(int num_losses) {
    static struct amp_scaler_options scaler;
    static struct amp_options options;
    scaler = *amp_scaler_options(.init_scale = 64, .growth_interval = 1000, .min_scale = 16);
    options = *amp_options(.loss_scale = AMP_DYNAMIC, .num_losses = num_losses, .scaler = &scaler);
    return &options;
}

/* The c-th of the batches of a sum, and what they are together. */
static const float micro[4][PROBE] = {{1, -2, 3, 0, 1, 2},
                                      {4, 1, -1, 2, 0, 1},
                                      {-3, 2, 2, 2, 1, -1},
                                      {2, 2, 0, -1, 3, 3}};

static void sum_of_micro(int count, float *sum) {
    memset(sum, 0, PROBE * sizeof(float));
    for (int m = 0; m < count; m++) {
        for (int i = 0; i < PROBE; i++) sum[i] += micro[m][i];
    }
}

/* ---- sums ---- */

static void micro_batches_equal_one_large_batch_at_every_level(void **state) {
    float sum[PROBE];
    sum_of_micro(4, sum);
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct probe many, one;
        probe_begin(&one, *state, &exact_levels[l], dynamic(1));
        probe_backward(&one, sum, NULL);
        OK(cairn_step(one.sgd));
        assert_probe_stepped_by(&one, sum);
        probe_end(&one);
        probe_begin(&many, *state, &exact_levels[l], dynamic(1));
        for (int m = 0; m < 4; m++) probe_backward(&many, micro[m], NULL);
        assert_probe_gradients_are(&many, sum);
        OK(cairn_step(many.sgd));
        assert_probe_stepped_by(&many, sum);
        assert_int_equal(probe_scaler(&many, 0).updates, 1);
        probe_end(&many);
    }
}

static void gradients_of_1_in_512_micro_batches_add_up_to_512(void **state) {
    static const float ones[PROBE] = {1, 1, 1, 1, 1, 1};
    const float want[PROBE] = {512, 512, 512, 512, 512, 512};
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct probe p;
        probe_begin(&p, *state, &exact_levels[l], dynamic(1));
        for (int m = 0; m < 512; m++) probe_backward(&p, ones, amp_loss_options(.delay_unscale = m % 2 ? 0 : CAIRN_ON));
        assert_probe_gradients_are(&p, want);
        OK(cairn_step(p.sgd));
        assert_probe_stepped_by(&p, want);
        probe_end(&p);
    }
}

static void set_scale(struct probe *p, int loss_id, double scale) {
    struct amp_scaler_state state = probe_scaler(p, loss_id);
    state.scale = scale;
    OK(amp_scaler_set_state(amp_scaler_of(p->amp, loss_id), &state));
}

static void scale_may_differ_from_one_micro_batch_to_the_next(void **state) {
    float sum[PROBE];
    sum_of_micro(4, sum);
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct probe p;
        probe_begin(&p, *state, &exact_levels[l], dynamic(3));
        set_scale(&p, 1, 1024);
        set_scale(&p, 2, 16);
        for (int m = 0; m < 4; m++) probe_backward(&p, micro[m], amp_loss_options(.loss_id = m % 3));
        struct amp_scaler_state changed = probe_scaler(&p, 0);
        assert_int_equal(amp_scaler_set_state(amp_scaler_of(p.amp, 0), &changed), CAIRN_ESTATE);
        assert_non_null(strstr(cairn_last_error(), "losses that loss scaler 0 has scaled were not stepped yet"));
        OK(cairn_step(p.sgd));
        assert_probe_stepped_by(&p, sum);
        for (int id = 0; id < 3; id++) assert_int_equal(probe_scaler(&p, id).updates, 1);
        OK(amp_scaler_set_state(amp_scaler_of(p.amp, 0), &changed));
        probe_end(&p);
    }
}

/* apex loses a stash there: its O2 with a static scale of 1 does not unscale. */
static void static_scale_of_1_sums_at_O2_with_its_norms(void **state) {
    float sum[PROBE];
    sum_of_micro(3, sum);
    for (int l = 3; l <= 4; l++) {
        struct probe p;
        cairn_param norm;
        probe_begin(&p, *state, &exact_levels[l], amp_options(.loss_scale = 1));
        OK(cairn_param_set_get(cairn_module_params(p.model), 1, &norm));
        assert_int_equal(norm.dtype, CAIRN_F32);
        for (int m = 0; m < 3; m++) probe_backward(&p, micro[m], NULL);
        OK(cairn_step(p.sgd));
        assert_probe_stepped_by(&p, sum);
        cairn_zero_grad(p.sgd);
        probe_overflow(&p, micro[0], NULL);
        probe_backward(&p, micro[1], NULL);
        OK(cairn_step(p.sgd));
        assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 1);
        assert_probe_stepped_by(&p, sum);
        probe_end(&p);
    }
}

/* ---- overflow ---- */

static void assert_one_overflow(struct probe *p, int micro_batch) {
    static const float untouched[PROBE] = {0};
    struct amp_overflow told[2];
    size_t found = 0;
    OK(cairn_step(p->sgd));
    assert_int_equal(cairn_optimizer_step_skipped(p->sgd), 1);
    assert_probe_stepped_by(p, untouched);
    OK(amp_last_overflow(p->amp, p->sgd, told, 2, &found));
    assert_int_equal(found, 1);
    assert_string_equal(told[0].name, "weight");
    assert_int_equal(told[0].micro_batch, micro_batch);
    assert_int_equal(told[0].infs, 1);
    assert_int_equal(told[0].nans, 0);
}

static void overflow_of_a_micro_batch_is_one_skipped_step(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        for (int bad = 0; bad < 4; bad++) {
            struct probe p;
            probe_begin(&p, *state, &exact_levels[l], dynamic(1));
            log_text[0] = '\0';
            for (int m = 0; m < 4; m++) (m == bad ? probe_overflow : probe_backward)(&p, micro[m], NULL);
            assert_one_overflow(&p, bad + 1);
            if (bad > 0) {
                char where[32];
                snprintf(where, sizeof(where), "first in micro-batch %d", bad + 1);
                assert_in_log(where);
            }
            assert_in_log("loss scaler 0 reducing loss scale to 32: non-finite gradient in weight (1 inf of 4)");
            assert_true(probe_scale(&p, 0) == 32 && probe_scaler(&p, 0).updates == 1);
            cairn_zero_grad(p.sgd);
            probe_backward(&p, micro[0], NULL);
            OK(cairn_step(p.sgd));
            assert_probe_stepped_by(&p, micro[0]);
            probe_end(&p);
        }
    }
}

/* They are checked together with the next loss of the same kind; another loss's scaler is not updated for them. */
static void overflow_checked_late_lowers_its_own_scaler(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        for (int delay = 0; delay < 6; delay++) {
            struct probe p;
            const cairn_switch unscale = delay % 2 ? CAIRN_OFF : CAIRN_ON, check = delay % 2 ? CAIRN_ON : CAIRN_OFF;
            const int next = delay / 2; /* the same again; another loss; a step */
            probe_begin(&p, *state, &exact_levels[l], dynamic(2));
            probe_backward(&p, micro[1], amp_loss_options(.loss_id = 1));
            probe_overflow(&p, micro[0], amp_loss_options(.delay_unscale = unscale, .delay_overflow_check = check));
            if (next == 0) probe_backward(&p, micro[1], amp_loss_options(.delay_overflow_check = CAIRN_OFF));
            if (next == 1) probe_backward(&p, micro[1], amp_loss_options(.loss_id = 1));
            log_text[0] = '\0';
            assert_one_overflow(&p, next == 0 ? 3 : 2);
            assert_in_log(next == 0 ? "first in micro-batch 3 or before it\n" : "first in micro-batch 2\n");
            assert_true(probe_scale(&p, 0) == 32 && probe_scale(&p, 1) == 64);
            assert_true(probe_scaler(&p, 0).updates == 1 && probe_scaler(&p, 1).updates == 1);
            probe_end(&p);
        }
    }
}

/* Gradients that are each finite, and whose sum is not: the scale is none of its reasons. */
static void sum_that_overflows_from_finite_gradients_skips_the_step(void **state) {
    static const float large[PROBE] = {0x1.8p127f, 1, 1, 1, 1, 1}, untouched[PROBE] = {0};
    for (int backwards = 2; backwards <= 3; backwards++) {
        struct probe p;
        probe_begin(&p, *state, &exact_levels[0], amp_options(.loss_scale = 1, .skip_nonfinite = CAIRN_ON));
        for (int m = 0; m < backwards; m++) probe_backward(&p, large, NULL);
        OK(cairn_step(p.sgd));
        assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 1);
        assert_probe_stepped_by(&p, untouched);
        cairn_zero_grad(p.sgd);
        probe_backward(&p, micro[0], NULL);
        OK(cairn_step(p.sgd));
        assert_probe_stepped_by(&p, micro[0]);
        probe_end(&p);
    }
}

/* ---- gradients that are held: ddp's no_sync ---- */

static void hold(struct probe *p, bool on) {
    OK(cairn__param_set_keep_unsynced(cairn_module_params(p->model), on));
}

static void unsynced_micro_batches_count_as_one_loss(void **state) {
    float sum[PROBE];
    sum_of_micro(4, sum);
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct probe p;
        probe_begin(&p, *state, &exact_levels[l], dynamic(1));
        hold(&p, true);
        for (int m = 0; m < 3; m++) probe_backward(&p, micro[m], NULL);
        hold(&p, false);
        probe_backward(&p, micro[3], NULL);
        for (size_t k = 0; k < 2; k++)
            assert_false(cairn__grad_is_accumulated(cairn_module_params(p.model)->params[k]->gradient));
        OK(cairn_step(p.sgd));
        assert_probe_stepped_by(&p, sum);
        assert_int_equal(probe_scaler(&p, 0).updates, 1);
        probe_end(&p);
    }
}

/* Until they are added to a synchronised gradient they are not checked: neither flag nor scaler changes. */
static void unsynced_overflow_is_found_by_the_next_synchronised_loss(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        for (int bad = 0; bad < 4; bad++) {
            struct probe p;
            probe_begin(&p, *state, &exact_levels[l], dynamic(1));
            for (int m = 0; m < 4; m++) {
                hold(&p, m < 3);
                probe_backward(&p, micro[m], NULL);
                struct cairn__param *const weight = cairn_module_params(p.model)->params[0];
                if (m == bad) cairn__dtype(weight->dtype)->from_f32(cairn__grad_memory(weight->gradient), INFINITY);
                if (m < 3) OK(cairn__env_resolve(*state));
                if (m < 3) assert_int_equal(*cairn__optimizer_skip(p.sgd), 0);
            }
            assert_one_overflow(&p, 1);
            assert_true(probe_scale(&p, 0) == 32 && probe_scaler(&p, 0).updates == 1);
            cairn_zero_grad(p.sgd);
            hold(&p, true);
            probe_backward(&p, micro[1], NULL);
            hold(&p, false);
            probe_backward(&p, micro[0], NULL);
            OK(cairn_step(p.sgd));
            float two[PROBE];
            sum_of_micro(2, two);
            assert_probe_stepped_by(&p, two);
            probe_end(&p);
        }
    }
}

static void step_on_unsynced_gradients_applies_them(void **state) {
    static const float untouched[PROBE] = {0};
    float sum[PROBE];
    sum_of_micro(3, sum);
    for (int l = 0; l < EXACT_LEVELS; l++) {
        for (int bad = -1; bad < 3; bad++) {
            struct probe p;
            probe_begin(&p, *state, &exact_levels[l], dynamic(1));
            hold(&p, true);
            for (int m = 0; m < 3; m++) {
                probe_backward(&p, micro[m], NULL);
                struct cairn__param *const weight = cairn_module_params(p.model)->params[0];
                if (m == bad) cairn__dtype(weight->dtype)->from_f32(cairn__grad_memory(weight->gradient), INFINITY);
            }
            OK(cairn_step(p.sgd));
            assert_int_equal(cairn_optimizer_step_skipped(p.sgd), bad >= 0);
            assert_probe_stepped_by(&p, bad >= 0 ? untouched : sum);
            assert_true(probe_scale(&p, 0) == (bad >= 0 ? 32 : 64) && probe_scaler(&p, 0).updates == 1);
            probe_end(&p);
        }
    }
}

/* Gradients that are read in between are this rank's; later ones are added to them. */
static void unsynced_gradients_can_be_read_between_losses(void **state) {
    float sum[PROBE];
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct probe p;
        double norm = 0, square = 0;
        probe_begin(&p, *state, &exact_levels[l], dynamic(1));
        hold(&p, true);
        for (int m = 0; m < 2; m++) probe_backward(&p, micro[m], NULL);
        sum_of_micro(2, sum);
        for (int i = 0; i < PROBE; i++) square += (double)sum[i] * (double)sum[i];
        OK(cairn_clip_grad_norm(p.sgd, 1e6, &norm));
        assert_true(norm == sqrt(square));
        assert_probe_gradients_are(&p, sum);
        probe_backward(&p, micro[2], NULL);
        hold(&p, false);
        probe_backward(&p, micro[3], NULL);
        for (size_t k = 0; k < 2; k++)
            assert_false(cairn__grad_is_accumulated(cairn_module_params(p.model)->params[k]->gradient));
        sum_of_micro(4, sum);
        OK(cairn_step(p.sgd));
        assert_probe_stepped_by(&p, sum);
        probe_end(&p);
    }
}

/* A step with the gradients of the last one: their overflow skips it again, and updates no scaler again. */
static void step_without_a_loss_updates_no_scaler(void **state) {
    struct probe p;
    probe_begin(&p, *state, &exact_levels[3], dynamic(1));
    for (int i = 0; i < 2; i++) { /* down to the floor of 16 */
        cairn_zero_grad(p.sgd);
        probe_overflow(&p, micro[0], NULL);
        OK(cairn_step(p.sgd));
    }
    for (int again = 0; again < 2; again++) {
        log_text[0] = '\0';
        OK(cairn_step(p.sgd));
        assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 1);
        assert_in_log("loss scale stays 16: non-finite gradient in weight (1 inf of 4)");
    }
    assert_int_equal(probe_scaler(&p, 0).updates, 2);
    cairn_zero_grad(p.sgd);
    probe_overflow(&p, micro[0], NULL);
    assert_int_equal(cairn_step(p.sgd), CAIRN_ENUMERIC);
    probe_end(&p);
}

static void the_twelfth_loss_is_blamed_like_the_first(void **state) {
    struct probe p;
    probe_begin(&p, *state, &exact_levels[3], dynamic(12));
    for (int bad = 0; bad < 3; bad++) {
        cairn_zero_grad(p.sgd);
        log_text[0] = '\0';
        for (int id = 0; id < 12; id++)
            (id == 11 ? probe_overflow : probe_backward)(&p, micro[0], amp_loss_options(.loss_id = id));
        assert_int_equal(cairn_step(p.sgd), bad < 2 ? CAIRN_OK : CAIRN_ENUMERIC);
        if (bad == 0) assert_in_log("loss scaler 11 reducing loss scale to 32");
        if (bad == 1) assert_in_log("loss scaler 11 reducing loss scale to its floor of 16");
    }
    for (int id = 0; id < 11; id++) assert_true(probe_scale(&p, id) == 64);
    probe_end(&p);
}

/* ---- what the user sees and changes ---- */

static void master_params_are_what_is_updated_in_the_order_given(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct probe p;
        cairn_param got[2];
        probe_begin(&p, *state, &exact_levels[l], dynamic(1));
        assert_int_equal(amp_master_params(p.amp, p.sgd, got, 1), CAIRN_EINVAL);
        OK(amp_master_params(p.amp, NULL, got, 2));
        assert_true(!got[0].grad && !got[1].grad);
        probe_backward(&p, micro[0], NULL);
        assert_probe_gradients_are(&p, micro[0]);
        assert_probe_gradients_are(&p, micro[0]); /* unscaled once */
        OK(amp_master_params(p.amp, p.sgd, got, 2));
        assert_string_equal(got[0].name, "weight");
        assert_string_equal(got[1].name, "norm");
        for (size_t k = 0; k < 2; k++) {
            float *master = cairn_param_master(cairn_module_params(p.model), k);
            const bool is_f32 = got[k].dtype == CAIRN_F32;
            assert_true(is_f32 ? got[k].data == master : !master);
        }
        OK(cairn_step(p.sgd));
        assert_probe_stepped_by(&p, micro[0]);
        probe_end(&p);
    }
}

static void gradients_changed_through_master_params_are_applied(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct probe p;
        cairn_param got[2];
        float want[PROBE];
        probe_begin(&p, *state, &exact_levels[l], dynamic(1));
        for (int m = 0; m < 2; m++) probe_backward(&p, micro[m], NULL);
        sum_of_micro(2, want);
        for (int i = 0; i < PROBE; i++) want[i] = fminf(fmaxf(want[i], -1), 1);
        OK(amp_master_params(p.amp, p.sgd, got, 2));
        for (int i = 0; i < PROBE_WEIGHT; i++) ((float *)got[0].grad)[i] = want[i];
        for (int i = 0; i < PROBE_NORM; i++) ((float *)got[1].grad)[i] = want[PROBE_WEIGHT + i];
        OK(cairn_step(p.sgd));
        assert_probe_stepped_by(&p, want);
        probe_end(&p);
    }
}

static void weights_changed_through_master_params_are_rounded(void **state) {
    const float want[PROBE] = {1 + 0x1p-12f, -2, 3, 4, 5 + 0x1p-12f, 6};
    for (int l = 0; l <= 4; l++) {
        struct probe p;
        cairn_param got[2];
        probe_begin(&p, *state, &exact_levels[l], dynamic(1));
        OK(amp_master_params(p.amp, p.sgd, got, 2));
        memcpy(got[0].data, want, PROBE_WEIGHT * sizeof(float));
        memcpy(got[1].data, want + PROBE_WEIGHT, PROBE_NORM * sizeof(float));
        for (size_t k = 0; k < 2; k++) OK(cairn_param_changed(cairn_module_params(p.model), k, 1));
        assert_probe_is(&p, want);
        probe_end(&p);
    }
}

/* ---- clipping ---- */

static const float of_norm_5[PROBE] = {3, 0, 0, 0, 4, 0}; /* in two types at O2 */

static float factor_of(double max_norm, double norm) {
    return (float)(max_norm / (norm + 1e-6));
}

static void times(float *out, const float *gradient, float factor) {
    for (int i = 0; i < PROBE; i++) out[i] = gradient[i] * factor;
}

static void norm_is_clipped_between_backward_and_step(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        for (int want_norm = 0; want_norm < 2; want_norm++) {
            struct probe p;
            float want[PROBE];
            double norm = 0;
            probe_begin(&p, *state, &exact_levels[l], dynamic(1));
            probe_backward(&p, of_norm_5, NULL);
            OK(cairn_clip_grad_norm(p.sgd, 2.5, want_norm ? &norm : NULL));
            if (want_norm) assert_true(norm == 5);
            OK(cairn_step(p.sgd));
            times(want, of_norm_5, factor_of(2.5, 5));
            assert_probe_stepped_by(&p, want);
            probe_end(&p);
        }
    }
}

static void norm_below_the_limit_is_left_alone(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct probe p;
        double norm = 0;
        probe_begin(&p, *state, &exact_levels[l], dynamic(1));
        probe_backward(&p, of_norm_5, NULL);
        OK(cairn_clip_grad_norm(p.sgd, 6, &norm));
        assert_true(norm == 5);
        assert_probe_gradients_are(&p, of_norm_5);
        OK(cairn_step(p.sgd));
        assert_probe_stepped_by(&p, of_norm_5);
        probe_end(&p);
    }
}

static void norm_is_that_of_the_sum_of_micro_batches(void **state) {
    static const float parts[2][PROBE] = {{2, 0, 0, 0, 5, 0}, {1, 0, 0, 0, -1, 0}};
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct probe p;
        float want[PROBE];
        double norm = 0;
        probe_begin(&p, *state, &exact_levels[l], dynamic(2));
        for (int m = 0; m < 2; m++) probe_backward(&p, parts[m], amp_loss_options(.loss_id = m));
        OK(cairn_clip_grad_norm(p.sgd, 2.5, &norm));
        assert_true(norm == 5);
        times(want, of_norm_5, factor_of(2.5, 5));
        OK(cairn_step(p.sgd));
        assert_probe_stepped_by(&p, want);
        probe_end(&p);
    }
}

static void second_clipping_clips_the_clipped_gradients(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct probe p;
        float want[PROBE];
        double norm = 0;
        probe_begin(&p, *state, &exact_levels[l], dynamic(1));
        probe_backward(&p, of_norm_5, NULL);
        OK(cairn_clip_grad_norm(p.sgd, 2.5, NULL));
        OK(cairn_clip_grad_norm(p.sgd, 1, &norm));
        const float once = factor_of(2.5, 5);
        assert_true(norm == 5 * (double)once);
        times(want, of_norm_5, (float)((double)once * (1 / (norm + 1e-6))));
        assert_probe_gradients_are(&p, want); /* clipped when they are seen, */
        assert_probe_gradients_are(&p, want);
        OK(cairn_step(p.sgd)); /* and then no more */
        assert_probe_stepped_by(&p, want);
        probe_end(&p);
    }
}

static void norm_of_an_overflow_is_infinite_and_changes_nothing(void **state) {
    static const float untouched[PROBE] = {0};
    for (int l = 0; l < EXACT_LEVELS; l++) {
        for (int sums = 0; sums < 2; sums++) {
            struct probe p;
            double norm = 0;
            probe_begin(&p, *state, &exact_levels[l], dynamic(2));
            if (sums) probe_overflow(&p, micro[0], NULL);
            (sums ? probe_backward : probe_overflow)(&p, micro[1], amp_loss_options(.loss_id = sums));
            OK(cairn_clip_grad_norm(p.sgd, 2.5, &norm));
            assert_true(isinf(norm));
            OK(cairn_step(p.sgd));
            assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 1);
            assert_probe_stepped_by(&p, untouched);
            assert_true(probe_scale(&p, 0) == 32 && probe_scale(&p, 1) == 64);
            cairn_zero_grad(p.sgd);
            probe_backward(&p, of_norm_5, NULL);
            OK(cairn_step(p.sgd));
            assert_probe_stepped_by(&p, of_norm_5);
            probe_end(&p);
        }
    }
}

static void forget(struct probe *p, int way) {
    if (way == 0) cairn_zero_grad(p->sgd);
    if (way == 1) cairn_optimizer_clear_grads(p->sgd);
    if (way == 2) cairn_module_zero_grad(p->model);
    if (way == 3) cairn_param_set_zero_grad(cairn_module_params(p->model));
}

static void clipping_ends_with_its_gradients(void **state) {
    for (int way = 0; way < 4; way++) {
        struct probe p;
        probe_begin(&p, *state, &exact_levels[3], dynamic(1));
        probe_backward(&p, of_norm_5, NULL);
        OK(cairn_clip_grad_norm(p.sgd, 1, NULL));
        forget(&p, way);
        probe_backward(&p, of_norm_5, NULL);
        OK(cairn_step(p.sgd));
        assert_probe_stepped_by(&p, of_norm_5);
        probe_end(&p);
    }
}

static void assert_gradients_are_near(struct probe *p, const float *want) {
    cairn_param got[2];
    OK(amp_master_params(p->amp, p->sgd, got, 2));
    for (int i = 0; i < PROBE; i++) {
        const float *grad = i < PROBE_WEIGHT ? got[0].grad : got[1].grad;
        assert_float_equal(grad[i < PROBE_WEIGHT ? i : i - PROBE_WEIGHT], want[i], 1e-6);
    }
}

/* As torch, which clips in place. 2: clipped once more, by half of what is left. */
static void gradients_made_after_clipping_are_not_clipped(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        for (int more = 1; more < 4; more++) {
            struct probe p;
            float want[PROBE];
            double norm = 0;
            probe_begin(&p, *state, &exact_levels[l], dynamic(1));
            probe_backward(&p, of_norm_5, NULL);
            OK(cairn_clip_grad_norm(p.sgd, 1, NULL));
            for (int m = 0; m < more; m++) probe_backward(&p, micro[m], NULL);
            sum_of_micro(more, want);
            for (int i = 0; i < PROBE; i++) want[i] += of_norm_5[i] / 5;
            if (more == 2) {
                double squares = 0;
                for (int i = 0; i < PROBE; i++) squares += (double)want[i] * (double)want[i];
                OK(cairn_clip_grad_norm(p.sgd, sqrt(squares) / 2, &norm));
                assert_true(fabs(norm - sqrt(squares)) < 1e-6);
                for (int i = 0; i < PROBE; i++) want[i] /= 2;
            }
            assert_gradients_are_near(&p, want);
            probe_end(&p);
        }
    }
}

static void forgetting_some_gradients_keeps_the_others_clipped(void **state) {
    static const float want[PROBE] = {1, 1, 1, 1, 0.8f, 0};
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct probe p;
        probe_begin(&p, *state, &exact_levels[l], dynamic(1));
        const struct cairn_param_set *set = cairn_module_params(p.model);
        const struct probe_context *own = cairn__module_context(p.model);
        probe_backward(&p, of_norm_5, NULL);
        OK(cairn_clip_grad_norm(p.sgd, 1, NULL));
        cairn__params_forget(set->params, 1);
        OK(cairn_backward(cairn_sum(own->weight)));
        if (l == 0) { /* f32 */
            OK(cairn_step(p.sgd));
            for (int i = 0; i < PROBE; i++) {
                const float *w = cairn_param_master(set, i < PROBE_WEIGHT ? 0 : 1);
                assert_float_equal(w[i < PROBE_WEIGHT ? i : i - PROBE_WEIGHT], 1 - 0x1p-4f * want[i], 1e-6);
            }
        } else {
            assert_gradients_are_near(&p, want);
        }
        probe_end(&p);
    }
}

/* ---- who looks ---- */

static void scaled_gradients_without_a_guard_are_warned_of(void **state) {
    cairn_module *model = make_probe(*state);
    cairn_optimizer *late = NULL;
    amp_context *amp = NULL;
    cairn_tensor *x = cairn_zeros(*state, CAIRN_F32, CAIRN_SHAPE(PROBE));
    OK(cairn_tensor_write(x, micro[0], PROBE));
    OK(amp_initialize(*state, model, NULL, amp_options(.opt_level = AMP_O2, .verbosity = -1), &amp));
    OK(cairn_sgd_create(cairn_module_params(model), NULL, &late));
    for (int i = 0; i < 2; i++) {
        log_text[0] = '\0';
        cairn_zero_grad(late);
        OK(amp_backward(amp, cairn_module_forward(model, x), NULL));
        OK(cairn_step(late));
        if (i == 0) assert_in_log("so an overflow does not skip the step; give it to amp_initialize");
    }
    assert_string_equal(log_text, "");
    amp_destroy(&amp);
    cairn_optimizer_destroy(&late);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
}

static cairn_tensor *zeroes(void *ctx, cairn_tensor *const *inputs, int count) {
    struct probe *p = ctx;
    (void)count;
    cairn_zero_grad(p->sgd);
    return cairn_mul_scalar(inputs[0], 1);
}

/* Within a checkpoint, as within a backward: gradients may be half there. */
static void refused_zero_grad_checks_no_gradients(void **state) {
    struct probe p;
    probe_begin(&p, *state, &exact_levels[3], dynamic(1));
    probe_backward(&p, micro[0], NULL);
    assert_null(cairn_checkpoint(zeroes, &p, &p.x, 1));
    assert_false((cairn__grad_states(cairn_module_params(p.model)->params[0]->gradient).slot == CAIRN__SLOT_CHECKED));
    probe_end(&p);
}

/* The scaler remembers that its scale was too large; the step that follows is of other gradients. */
static void forgotten_overflow_skips_no_later_step(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        for (int way = 0; way < 4; way++) {
            struct probe p;
            probe_begin(&p, *state, &exact_levels[l], dynamic(1));
            probe_overflow(&p, micro[0], NULL);
            if (way % 2) probe_backward(&p, micro[0], NULL);
            forget(&p, way);
            for (int m = 0; m < 2; m++) probe_backward(&p, micro[m], NULL);
            OK(cairn_step(p.sgd));
            assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 0);
            float sum[PROBE];
            sum_of_micro(2, sum);
            assert_probe_stepped_by(&p, sum);
            assert_true(probe_scale(&p, 0) == 32 && probe_scaler(&p, 0).updates == 1);
            probe_end(&p);
        }
    }
}

static void values_are_clipped_and_overflow_is_not_hidden(void **state) {
    static const float given[PROBE] = {3, -4, 0.5, 1, 2, -0.25}, want[PROBE] = {1, -1, 0.5, 1, 1, -0.25};
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct probe p;
        probe_begin(&p, *state, &exact_levels[l], dynamic(1));
        assert_int_equal(cairn_clip_grad_value(p.sgd, 0), CAIRN_EINVAL);
        probe_backward(&p, given, NULL);
        OK(cairn_clip_grad_value(p.sgd, 1));
        assert_probe_gradients_are(&p, want);
        OK(cairn_step(p.sgd));
        assert_probe_stepped_by(&p, want);
        for (int scaled = 0; scaled < 2; scaled++) { /* also of a backward without amp */
            cairn_zero_grad(p.sgd);
            p.plant.target = 1, p.plant.value = scaled ? INFINITY : NAN;
            if (scaled) probe_backward(&p, given, NULL);
            if (!scaled) OK(cairn_backward(probe_loss(&p, given)));
            p.plant.target = -1;
            OK(cairn_clip_grad_value(p.sgd, 1));
            OK(cairn_step(p.sgd));
            assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 1);
            assert_probe_stepped_by(&p, want);
            assert_true(probe_scale(&p, 0) == (scaled ? 32 : 64));
        }
        probe_end(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(micro_batches_equal_one_large_batch_at_every_level),
        cmocka_unit_test(gradients_of_1_in_512_micro_batches_add_up_to_512),
        cmocka_unit_test(scale_may_differ_from_one_micro_batch_to_the_next),
        cmocka_unit_test(static_scale_of_1_sums_at_O2_with_its_norms),
        cmocka_unit_test(overflow_of_a_micro_batch_is_one_skipped_step),
        cmocka_unit_test(overflow_checked_late_lowers_its_own_scaler),
        cmocka_unit_test(sum_that_overflows_from_finite_gradients_skips_the_step),
        cmocka_unit_test(unsynced_micro_batches_count_as_one_loss),
        cmocka_unit_test(unsynced_overflow_is_found_by_the_next_synchronised_loss),
        cmocka_unit_test(step_on_unsynced_gradients_applies_them),
        cmocka_unit_test(unsynced_gradients_can_be_read_between_losses),
        cmocka_unit_test(step_without_a_loss_updates_no_scaler),
        cmocka_unit_test(the_twelfth_loss_is_blamed_like_the_first),
        cmocka_unit_test(master_params_are_what_is_updated_in_the_order_given),
        cmocka_unit_test(gradients_changed_through_master_params_are_applied),
        cmocka_unit_test(weights_changed_through_master_params_are_rounded),
        cmocka_unit_test(norm_is_clipped_between_backward_and_step),
        cmocka_unit_test(norm_below_the_limit_is_left_alone),
        cmocka_unit_test(norm_is_that_of_the_sum_of_micro_batches),
        cmocka_unit_test(second_clipping_clips_the_clipped_gradients),
        cmocka_unit_test(norm_of_an_overflow_is_infinite_and_changes_nothing),
        cmocka_unit_test(clipping_ends_with_its_gradients),
        cmocka_unit_test(gradients_made_after_clipping_are_not_clipped),
        cmocka_unit_test(forgetting_some_gradients_keeps_the_others_clipped),
        cmocka_unit_test(scaled_gradients_without_a_guard_are_warned_of),
        cmocka_unit_test(refused_zero_grad_checks_no_gradients),
        cmocka_unit_test(forgotten_overflow_skips_no_later_step),
        cmocka_unit_test(values_are_clipped_and_overflow_is_not_hidden),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
