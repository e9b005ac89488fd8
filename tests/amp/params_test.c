/* Trainers that own their buffers: parameters in the user's memory, the scale as a number, the user's own update, ranks
 * that agree to skip. Data is exact: gradients are multiples of 1/4 and the scale is a power of two, so that every sum
 * and product is representable. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../failing_alloc.h"
#include "../kept_log.h"
#include "../ranks.h"
#include "cairn/cairn.h"
#include "core/alloc.h"
#include "core/convert.h"
#include "core/status.h"
#include "param/param.h"

static int make_env(void **state) {
    cairn_env *env = NULL;
    cairn_set_log(keep_log, NULL);
    log_text[0] = '\0';
    OK(cairn_env_create(NULL, NULL, NULL, &env));
    *state = env;
    return 0;
}

static int end_env(void **state) {
    cairn_env *env = *state;
    cairn_env_destroy(&env);
    assert_null(env);
    return 0;
}

/* ---- a trainer: one stacked array of weights and one of gradients, cut into three parameters ---- */

enum { N = 11, PARAMS = 3 };
static const size_t first_of[PARAMS + 1] = {0, 6, 9, N};
static const char *const names[PARAMS] = {"wte", "wpe", "ln.weight"};
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
};

static void *at(void *array, cairn_dtype storage, size_t i) {
    return (char *)array + i * cairn_dtype_nbytes(storage);
}

static float first_weight(size_t i) {
    return (float)i / 8 - 0.5f;
}

/* Of step t, and not of its scale. */
static float gradient(int t, size_t i) {
    return (float)(((size_t)t * 7 + i * 3) % 5) / 4 - 0.5f;
}

static void make_set(struct trainer *t, cairn_env *env, cairn_dtype storage) {
    memset(t, 0, sizeof(*t));
    t->env = env;
    t->storage = storage;
    cairn_param params[PARAMS] = {{0}};
    for (size_t p = 0; p < PARAMS; p++) {
        params[p] = (cairn_param){.name = names[p],
                                  .data = at(&t->w, storage, first_of[p]),
                                  .grad = at(&t->g, storage, first_of[p]),
                                  .dtype = storage,
                                  .ndim = 1,
                                  .shape = {(int64_t)(first_of[p + 1] - first_of[p])},
                                  .is_norm = p == 2 ? CAIRN_ON : CAIRN_OFF};
    }
    for (size_t i = 0; i < N; i++) {
        const float w = first_weight(i);
        cairn__convert(at(&t->w, storage, i), storage, &w, CAIRN_F32, 1);
    }
    if (cairn_param_set_create(env, params, PARAMS, &t->set) != CAIRN_OK) t->set = NULL;
}

static void make_sgd(struct trainer *t) {
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    h.lr = LR;
    if (cairn_sgd_create(t->set, &h, &t->sgd) != CAIRN_OK) t->sgd = NULL;
}

/* Dynamic from 128, so that any level scales. */
static void begin_from(struct trainer *t, cairn_env *env, cairn_dtype storage, bool fused, struct amp_options o) {
    make_set(t, env, storage);
    if (fused) make_sgd(t);
    o.struct_size = sizeof(o);
    o.verbosity = -1;
    if (!o.loss_scale) o.loss_scale = AMP_DYNAMIC;
    const struct amp_scaler_options scaler = {.struct_size = sizeof(scaler), .init_scale = 128};
    if (isinf(o.loss_scale)) o.scaler = &scaler;
    if (amp_initialize_params(env, t->set, t->sgd, &o, &t->amp) != CAIRN_OK) t->amp = NULL;
}

static void begin(struct trainer *t, cairn_env *env, cairn_dtype storage, bool fused, amp_opt_level level,
                  cairn_dtype half) {
    begin_from(t, env, storage, fused, (struct amp_options){.opt_level = level, .half_type = half});
    assert_non_null(t->amp);
}

static void end(struct trainer *t) {
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->sgd);
    cairn_param_set_destroy(&t->set);
}

static void put(struct trainer *t, size_t i, float g) {
    cairn__convert(at(&t->g, t->storage, i), t->storage, &g, CAIRN_F32, 1);
}

static void write_grads(struct trainer *t, int step, double scale) {
    for (size_t i = 0; i < N; i++) put(t, i, gradient(step, i) * (float)scale);
}

static float weight(const struct trainer *t, size_t i) {
    float w;
    cairn__convert(&w, CAIRN_F32, at((void *)(uintptr_t)&t->w, t->storage, i), t->storage, 1);
    return w;
}

static float rounded(float x, cairn_dtype half) {
    uint16_t h;
    cairn__convert(&h, half, &x, CAIRN_F32, 1);
    cairn__convert(&x, CAIRN_F32, &h, half, 1);
    return x;
}

/* The update that the user makes where there is no optimizer. */
static cairn_status step_own(struct trainer *t, int *skip) {
    cairn_param m[PARAMS];
    cairn_status st = amp_begin_step(t->amp, skip);
    if (st == CAIRN_OK && !*skip) st = amp_master_params(t->amp, NULL, m, PARAMS);
    for (size_t p = 0; st == CAIRN_OK && !*skip && p < PARAMS; p++) {
        for (int64_t i = 0; m[p].grad && i < m[p].shape[0]; i++) {
            float w;
            cairn__convert(&w, CAIRN_F32, at(m[p].data, m[p].dtype, (size_t)i), m[p].dtype, 1);
            w -= (float)LR * ((const float *)m[p].grad)[i];
            cairn__convert(at(m[p].data, m[p].dtype, (size_t)i), m[p].dtype, &w, CAIRN_F32, 1);
        }
    }
    return st == CAIRN_OK ? amp_end_step(t->amp) : st;
}

static void step(struct trainer *t, bool is_skipped) {
    int skip = 0;
    if (t->sgd) {
        OK(cairn_step(t->sgd));
        skip = cairn_optimizer_step_skipped(t->sgd);
    } else {
        OK(step_own(t, &skip));
    }
    assert_int_equal(skip, is_skipped);
}

/* ---- levels ---- */

static const struct {
    amp_opt_level level;
    cairn_dtype half, storage;
} kinds[] = {{AMP_O0, CAIRN_F16, CAIRN_F32},   {AMP_O1, CAIRN_F16, CAIRN_F32},  {AMP_O1, CAIRN_BF16, CAIRN_F32},
             {AMP_O2, CAIRN_F16, CAIRN_F32},   {AMP_O2, CAIRN_BF16, CAIRN_F32}, {AMP_O2, CAIRN_F16, CAIRN_F16},
             {AMP_O2, CAIRN_BF16, CAIRN_BF16}, {AMP_O3, CAIRN_F16, CAIRN_F32},  {AMP_O3, CAIRN_BF16, CAIRN_F32},
             {AMP_O3, CAIRN_F16, CAIRN_F16},   {AMP_O3, CAIRN_BF16, CAIRN_BF16}};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static void trains(cairn_env *env, size_t kind, bool fused, int overflows_at) {
    struct trainer t;
    float expected[N];
    begin(&t, env, kinds[kind].storage, fused, kinds[kind].level, kinds[kind].half);
    for (size_t i = 0; i < N; i++) expected[i] = first_weight(i);
    for (int s = 0; s < 6; s++) {
        assert_true(amp_next_scale(t.amp) == (s > overflows_at ? 64 : 128));
        write_grads(&t, s, amp_next_scale(t.amp));
        if (s == overflows_at) put(&t, 7, s % 2 ? INFINITY : -NAN);
        OK(cairn_grads_ready(t.set, 0, PARAMS));
        step(&t, s == overflows_at);
        for (size_t i = 0; i < N; i++) {
            if (s != overflows_at) expected[i] -= (float)LR * gradient(s, i);
            assert_true(weight(&t, i) == expected[i]);
        }
    }
    end(&t);
}

static void every_level_equals_plain_sgd_without_the_skipped_step(void **state) {
    for (size_t kind = 0; kind < KINDS; kind++) {
        for (int overflows_at = 0; overflows_at < 7; overflows_at++) {
            trains(*state, kind, true, overflows_at);
            trains(*state, kind, false, overflows_at);
        }
    }
}

/* ---- gradients that are held: ddp's no_sync ---- */

static void trains_held(cairn_env *env, size_t kind, bool fused, bool synchronises, int overflows_at) {
    enum { MICRO = 3 };
    struct trainer t;
    begin(&t, env, kinds[kind].storage, fused, kinds[kind].level, kinds[kind].half);
    for (int m = 0; m < MICRO; m++) {
        OK(cairn__param_set_keep_unsynced(t.set, !synchronises || m + 1 < MICRO));
        assert_true(amp_next_scale(t.amp) == 128);
        write_grads(&t, m, amp_next_scale(t.amp));
        if (m == overflows_at) put(&t, 7, INFINITY);
        OK(cairn_grads_ready(t.set, 0, PARAMS));
        OK(cairn__param_set_settle(t.set));
    }
    step(&t, overflows_at < MICRO);
    assert_true(amp_next_scale(t.amp) == (overflows_at < MICRO ? 64 : 128));
    for (size_t i = 0; i < N; i++) {
        const float sum = gradient(0, i) + gradient(1, i) + gradient(2, i);
        assert_true(weight(&t, i) == first_weight(i) - (overflows_at < MICRO ? 0 : (float)LR * sum));
    }
    end(&t);
}

static void unsynced_gradients_are_one_loss_with_the_next_synchronised_ones_or_the_step(void **state) {
    for (size_t kind = 0; kind < KINDS; kind++) {
        for (int overflows_at = 0; overflows_at < 4; overflows_at++) {
            for (int way = 0; way < 4; way++) trains_held(*state, kind, way % 2, way / 2, overflows_at);
        }
    }
}

static void weights_are_rounded_where_they_stand_and_masters_have_the_original_bits(void **state) {
    static const cairn_dtype halves[] = {CAIRN_F16, CAIRN_BF16};
    for (int h = 0; h < 2; h++) {
        struct trainer t;
        make_set(&t, *state, CAIRN_F32);
        for (size_t i = 0; i < N; i++) t.w.f32[i] = 1 + (float)i * 0x1p-20f;
        OK(amp_initialize_params(t.env, t.set, NULL,
                                 amp_options(.opt_level = AMP_O2, .half_type = halves[h], .verbosity = -1), &t.amp));
        for (size_t i = 0; i < 9; i++) {
            const float *master = cairn_param_master(t.set, i < 6 ? 0 : 1);
            assert_true(t.w.f32[i] == rounded(1 + (float)i * 0x1p-20f, halves[h]));
            assert_true(master[i < 6 ? i : i - 6] == 1 + (float)i * 0x1p-20f);
        }
        for (size_t i = 9; i < N; i++) assert_true(t.w.f32[i] == 1 + (float)i * 0x1p-20f); /* a norm's */
        assert_ptr_equal(cairn_param_master(t.set, 2), &t.w.f32[9]);
        end(&t);
    }
}

static void weights_that_the_user_writes_are_rounded_and_masters_take_them_as_they_are(void **state) {
    for (int has_masters = 0; has_masters < 2; has_masters++) {
        struct trainer t;
        begin(&t, *state, CAIRN_F32, true, has_masters ? AMP_O2 : AMP_O3, CAIRN_F16);
        t.w.f32[6] = 1 + 0x1p-20f;
        OK(cairn_param_changed(t.set, 1, 0));
        assert_true(t.w.f32[6] == 1);
        assert_true(cairn_param_master(t.set, 1)[0] == (has_masters ? 1 + 0x1p-20f : 1));
        cairn_param_master(t.set, 1)[0] = 2 + 0x1p-20f;
        OK(cairn_param_changed(t.set, 1, 1));
        assert_true(t.w.f32[6] == 2);
        end(&t);
    }
}

/* An update below the weight's last place is kept by the master, and lost at O3. */
static void small_updates_add_up_in_masters_and_are_lost_without(void **state) {
    for (int has_masters = 0; has_masters < 2; has_masters++) {
        for (int fused = 0; fused < 2; fused++) {
            struct trainer t;
            begin(&t, *state, CAIRN_F32, fused, has_masters ? AMP_O2 : AMP_O3, CAIRN_BF16);
            for (size_t i = 0; i < N; i++) t.w.f32[i] = 1;
            for (size_t p = 0; p < PARAMS; p++) OK(cairn_param_changed(t.set, p, 0));
            for (int s = 0; s < 32; s++) {
                const float g = -0x1p-10f * (float)amp_next_scale(t.amp); /* 2^-12 a step, 2^-7 in all: one place */
                for (size_t i = 0; i < N; i++) put(&t, i, g);
                OK(cairn_grads_ready(t.set, 0, PARAMS));
                step(&t, false);
            }
            for (size_t i = 0; i < 9; i++) assert_true(t.w.f32[i] == (has_masters ? 1 + 0x1p-7f : 1));
            end(&t);
        }
    }
}

static void gradients_are_rounded_where_they_stand_when_they_are_declared(void **state) {
    struct trainer t;
    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    for (size_t i = 0; i < N; i++) t.g.f32[i] = 1 + 0x1p-20f;
    OK(cairn_grads_ready(t.set, 1, 2));
    assert_true(t.g.f32[5] == 1 + 0x1p-20f); /* not declared */
    assert_true(t.g.f32[6] == 1.0f);
    assert_true(t.g.f32[9] == 1 + 0x1p-20f); /* a norm's */
    end(&t);
}

static void a_gradient_too_large_for_f16_is_an_overflow_although_its_memory_is_f32(void **state) {
    for (int fused = 0; fused < 2; fused++) {
        struct trainer t;
        struct amp_overflow found;
        size_t count = 0;
        begin(&t, *state, CAIRN_F32, fused, AMP_O2, CAIRN_F16);
        write_grads(&t, 0, amp_next_scale(t.amp));
        t.g.f32[8] = 65520; /* the smallest that rounds to infinity */
        OK(cairn_grads_ready(t.set, 0, PARAMS));
        step(&t, true);
        assert_true(amp_next_scale(t.amp) == 64);
        write_grads(&t, 0, 64);
        t.g.f32[8] = 65519;
        t.g.f32[9] = 1e30f; /* a norm's is f32 */
        OK(cairn_grads_ready(t.set, 0, PARAMS));
        step(&t, false);
        if (fused && amp_last_overflow(t.amp, t.sgd, &found, 1, &count) == CAIRN_OK) {
            assert_int_equal(count, 1);
            assert_string_equal(found.name, "wpe");
            assert_int_equal(found.infs, 1);
        }
        end(&t);
    }
}

/* Masters follow the bits that an optimizer makes of f32 parameters, whatever the weights are rounded to. */
static void fused_optimizers_make_the_same_masters_as_at_o0(void **state) {
    for (int kind = 0; kind < 3; kind++) {
        float masters[2][N];
        for (int level = 0; level < 2; level++) {
            struct trainer t;
            struct cairn_adam_options h = CAIRN_ADAM_OPTIONS_INIT;
            make_set(&t, *state, CAIRN_F32);
            if (kind == 0) make_sgd(&t);
            if (kind == 1) OK(cairn_adam_create(t.set, &h, &t.sgd));
            if (kind == 2) OK(cairn_adamw_create(t.set, &h, &t.sgd));
            OK(amp_initialize_params(t.env, t.set, t.sgd,
                                     amp_options(.opt_level = level ? AMP_O2 : AMP_O0, .loss_scale = 64,
                                                 .verbosity = -1),
                                     &t.amp));
            for (int s = 0; s < 5; s++) {
                write_grads(&t, s, amp_next_scale(t.amp));
                OK(cairn_grads_ready(t.set, 0, PARAMS));
                OK(cairn_step(t.sgd));
            }
            for (size_t p = 0; p < PARAMS; p++)
                memcpy(masters[level] + first_of[p], cairn_param_master(t.set, p),
                       (first_of[p + 1] - first_of[p]) * sizeof(float));
            for (size_t i = 0; level && i < 9; i++) assert_true(t.w.f32[i] == rounded(masters[1][i], CAIRN_F16));
            end(&t);
        }
        assert_memory_equal(masters[0], masters[1], sizeof(masters[0]));
    }
}

static void stochastic_rounding_moves_bf16_weights_that_nearest_would_leave(void **state) {
    struct trainer t;
    int moved = 0;
    make_set(&t, *state, CAIRN_BF16);
    make_sgd(&t);
    for (size_t i = 0; i < N; i++) t.w.half[i] = 0x3f80;
    OK(amp_initialize_params(t.env, t.set, t.sgd,
                             amp_options(.opt_level = AMP_O3, .half_type = CAIRN_BF16, .stochastic_rounding = CAIRN_ON,
                                         .verbosity = -1),
                             &t.amp));
    for (size_t i = 0; i < N; i++) put(&t, i, -0x1p-8f);
    for (int s = 0; s < 16; s++) {
        OK(cairn_grads_ready(t.set, 0, PARAMS));
        OK(cairn_step(t.sgd)); /* an eighth of a place each */
    }
    for (size_t i = 0; i < N; i++) moved += t.w.half[i] != 0x3f80;
    assert_true(moved > 0);
    end(&t);
    make_set(&t, *state, CAIRN_F32);
    REFUSED(amp_initialize_params(t.env, t.set, NULL,
                                  amp_options(.opt_level = AMP_O3, .half_type = CAIRN_BF16,
                                              .stochastic_rounding = CAIRN_ON, .verbosity = -1),
                                  &t.amp),
            CAIRN_EINVAL, "but parameter 'wte' is in f32 memory");
    end(&t);
}

/* ---- the scale as a number ---- */

static void next_scale_counts_a_loss_only_if_gradients_follow(void **state) {
    struct trainer t;
    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    for (int s = 0; s < 3; s++) {
        for (int again = 0; again < 3; again++) assert_true(amp_next_scale(t.amp) == 128);
        write_grads(&t, s, 128);
        OK(cairn_grads_ready(t.set, 0, 1)); /* as backward goes on */
        assert_true(amp_next_scale(t.amp) == 128);
        OK(cairn_grads_ready(t.set, 1, 2));
        OK(cairn_step(t.sgd));
        assert_int_equal(amp_unskipped_steps(t.amp), s + 1);
    }
    for (int again = 0; again < 3; again++) assert_true(amp_next_scale(t.amp) == 128);
    OK(cairn_step(t.sgd)); /* without a gradient: updates no scaler */
    assert_int_equal(amp_unskipped_steps(t.amp), 3);
    end(&t);
}

static void gradients_have_the_scale_returned_last_and_not_the_current_one(void **state) {
    struct trainer t;
    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    const double told = amp_next_scale(t.amp);
    write_grads(&t, 0, told);
    t.g.f32[0] = INFINITY;
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    OK(cairn_step(t.sgd)); /* the scale is 64 now, and the user does not ask */
    write_grads(&t, 1, told);
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    OK(cairn_step(t.sgd));
    for (size_t i = 0; i < N; i++) assert_true(weight(&t, i) == first_weight(i) - (float)LR * gradient(1, i));
    assert_int_equal(amp_unskipped_steps(t.amp), 1);
    assert_true(amp_next_scale(t.amp) == 64);
    end(&t);
}

static void gradients_before_the_first_next_scale_count_as_unscaled(void **state) {
    struct trainer t;
    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    write_grads(&t, 0, 1);
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    OK(cairn_step(t.sgd));
    for (size_t i = 0; i < N; i++) assert_true(weight(&t, i) == first_weight(i) - (float)LR * gradient(0, i));
    end(&t);
}

static void a_static_scale_of_1_costs_nothing(void **state) {
    struct trainer t;
    begin_from(&t, *state, CAIRN_F32, true, (struct amp_options){.opt_level = AMP_O2, .loss_scale = 1});
    assert_true(amp_next_scale(t.amp) == 1);
    assert_null(t.set->scale);
    end(&t);
}

static void next_scale_is_nan_for_no_such_loss_and_1_where_amp_is_off(void **state) {
    struct trainer t;
    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    assert_true(isnan(amp_next_scale(NULL)) && isnan(amp_next_scale_of(t.amp, 1)) &&
                isnan(amp_next_scale_of(t.amp, -1)));
    end(&t);
    begin_from(&t, *state, CAIRN_F32, false, (struct amp_options){.opt_level = AMP_O2, .enabled = CAIRN_OFF});
    assert_true(amp_next_scale(t.amp) == 1);
    write_grads(&t, 0, 1);
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    step(&t, false);
    for (size_t i = 0; i < N; i++) assert_true(weight(&t, i) == first_weight(i) - (float)LR * gradient(0, i));
    end(&t);
}

static void assert_no_device_scale(amp_context *amp, int loss_id, cairn_status status, const char *sentence) {
    assert_null(amp_next_scale_device_of(amp, loss_id));
    assert_int_equal(cairn__last_status(), status);
    SAYS(sentence);
}

static void scale_on_the_device_is_null_for_no_such_loss_and_1_where_amp_is_off(void **state) {
    struct trainer t;
    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    assert_true(*amp_next_scale_device(t.amp) == 128);
    assert_no_device_scale(NULL, 0, CAIRN_EINVAL, "amp_next_scale_device: amp is NULL");
    assert_no_device_scale(t.amp, 1, CAIRN_EINVAL, "amp_next_scale_device: loss_id is 1; it must be from 0 to 0");
    end(&t);
    begin_from(&t, *state, CAIRN_F32, false, (struct amp_options){.opt_level = AMP_O2, .enabled = CAIRN_OFF});
    assert_true(*amp_next_scale_device(t.amp) == 1);
    write_grads(&t, 0, 1);
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    step(&t, false);
    for (size_t i = 0; i < N; i++) assert_true(weight(&t, i) == first_weight(i) - (float)LR * gradient(0, i));
    end(&t);
}

static void each_loss_has_its_scale_on_the_device(void **state) {
    struct trainer t;
    begin_from(&t, *state, CAIRN_F32, true, (struct amp_options){.opt_level = AMP_O2, .num_losses = 2});
    for (int id = 0; id < 2; id++) {
        write_grads(&t, 0, (double)*amp_next_scale_device_of(t.amp, id));
        if (id == 1) put(&t, 3, INFINITY);
        OK(cairn_grads_ready(t.set, 0, PARAMS));
        OK(cairn_grads_taken(t.set, 0, PARAMS));
    }
    OK(cairn_step(t.sgd));
    assert_int_equal(cairn_optimizer_skipped(t.sgd), 1);
    assert_true(*amp_next_scale_device_of(t.amp, 0) == 128 && *amp_next_scale_device_of(t.amp, 1) == 64);
    end(&t);
}

static void scale_on_the_device_is_for_own_buffers(void **state) {
    cairn_module *model = cairn_linear(*state, 2, 1);
    amp_context *amp = NULL;
    OK(amp_initialize(*state, model, NULL, amp_options(.opt_level = AMP_O2, .verbosity = -1), &amp));
    assert_no_device_scale(amp, 0, CAIRN_ESTATE, "amp_next_scale_device: this context has models, whose losses");
    amp_destroy(&amp);
    cairn_module_destroy(&model);
}

static void scale_on_the_device_is_refused_while_gradients_are_averaged(void **state) {
    struct trainer t;
    ddp_context *net = NULL;
    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    OK(ddp_create_params(t.set, cairn_env_group(*state), NULL, &net));
    const float *scale = amp_next_scale_device(t.amp);
    assert_true(*scale == 128);
    write_grads(&t, 0, 128);
    OK(ddp_grads_ready(net, 0, PARAMS));
    assert_no_device_scale(t.amp, 0, CAIRN_ESTATE, "call ddp_wait first");
    OK(ddp_wait(net));
    assert_ptr_equal(amp_next_scale_device(t.amp), scale);
    OK(cairn_step(t.sgd));
    for (size_t i = 0; i < N; i++) assert_true(weight(&t, i) == first_weight(i) - (float)LR * gradient(0, i));
    ddp_destroy(&net);
    end(&t);
}

/* ---- accumulation ---- */

static void adding_in_place_is_one_gradient_however_often_it_is_declared(void **state) {
    for (int declared = 0; declared < 2; declared++) {
        for (int fused = 0; fused < 2; fused++) {
            struct trainer t;
            begin(&t, *state, CAIRN_F32, fused, AMP_O2, CAIRN_F16);
            for (int s = 0; s < 2; s++) {
                memset(&t.g, 0, sizeof(t.g));
                for (int micro = 0; micro < 4; micro++) {
                    const float scale = (float)amp_next_scale(t.amp);
                    for (size_t i = 0; i < N; i++) t.g.f32[i] += gradient(micro, i) * scale;
                    if (declared || micro == 3) OK(cairn_grads_ready(t.set, 0, PARAMS));
                }
                step(&t, false);
                assert_int_equal(amp_unskipped_steps(t.amp), s + 1);
            }
            for (size_t i = 0; i < N; i++) {
                float sum = 0;
                for (int micro = 0; micro < 4; micro++) sum += gradient(micro, i);
                assert_true(weight(&t, i) == first_weight(i) - 2 * (float)LR * sum);
            }
            end(&t);
        }
    }
}

/* In bf16 a sum in place would stop at 256; in an accumulator it does not. */
static void taken_gradients_add_up_in_f32(void **state) {
    static const cairn_dtype storages[] = {CAIRN_F32, CAIRN_BF16};
    for (int k = 0; k < 4; k++) {
        struct trainer t;
        begin(&t, *state, storages[k / 2], k % 2, AMP_O2, CAIRN_BF16);
        for (int s = 0; s < 2; s++) {
            for (int micro = 0; micro < 512; micro++) {
                for (size_t i = 0; i < N; i++) put(&t, i, (float)amp_next_scale(t.amp));
                OK(cairn_grads_ready(t.set, 0, PARAMS));
                if (micro != 300) OK(cairn_grads_taken(t.set, 0, PARAMS)); /* overwritten: that one is lost */
            }
            step(&t, false);
            assert_int_equal(amp_unskipped_steps(t.amp), s + 1);
        }
        for (size_t p = 0; p < PARAMS; p++)
            assert_true(cairn_param_master(t.set, p)
                            ? cairn_param_master(t.set, p)[0] == first_weight(first_of[p]) - 2 * 511 * (float)LR
                            : true);
        end(&t);
    }
}

static void gradients_at_another_scale_are_accumulated_or_refused(void **state) {
    struct trainer t;
    struct amp_scaler_state second = AMP_SCALER_STATE_INIT;
    begin_from(&t, *state, CAIRN_F32, true, (struct amp_options){.opt_level = AMP_O2, .num_losses = 2});
    OK(amp_scaler_get_state(amp_scaler_of(t.amp, 1), &second));
    second.scale = 1024;
    OK(amp_scaler_set_state(amp_scaler_of(t.amp, 1), &second));

    write_grads(&t, 0, amp_next_scale_of(t.amp, 0));
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    assert_true(amp_next_scale_of(t.amp, 1) == 1024);
    REFUSED(cairn_grads_ready(t.set, 0, 1), CAIRN_ESTATE,
            "the gradient of parameter 'wte' was not stepped yet and has another loss scale; before writing its memory "
            "again call cairn_grads_taken");
    OK(cairn_grads_taken(t.set, 0, PARAMS));
    write_grads(&t, 1, 1024);
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    OK(cairn_step(t.sgd));
    for (size_t i = 0; i < N; i++)
        assert_true(weight(&t, i) == first_weight(i) - (float)LR * (gradient(0, i) + gradient(1, i)));

    /* the second overflows: its scaler alone is lowered */
    write_grads(&t, 0, amp_next_scale_of(t.amp, 0));
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    OK(cairn_grads_taken(t.set, 0, PARAMS));
    write_grads(&t, 1, amp_next_scale_of(t.amp, 1));
    t.g.f32[3] = NAN;
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    OK(cairn_step(t.sgd));
    assert_int_equal(cairn_optimizer_step_skipped(t.sgd), 1);
    assert_true(amp_next_scale_of(t.amp, 0) == 128 && amp_next_scale_of(t.amp, 1) == 512);
    assert_non_null(strstr(log_text,
                           "loss scaler 1 reducing loss scale to 512: non-finite gradient in wte (1 nan of 6), "
                           "first in micro-batch 2"));
    end(&t);
}

static void forgotten_gradients_are_never_applied_and_their_overflow_counts(void **state) {
    struct trainer t;
    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    write_grads(&t, 0, amp_next_scale(t.amp));
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    OK(cairn_grads_taken(t.set, 0, 1));
    cairn_param_set_zero_grad(t.set);
    cairn_param_set_zero_grad(NULL);
    OK(cairn_step(t.sgd));
    for (size_t i = 0; i < N; i++) assert_true(weight(&t, i) == first_weight(i));
    write_grads(&t, 0, amp_next_scale(t.amp));
    t.g.f32[10] = INFINITY;
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    cairn_zero_grad(t.sgd);
    OK(cairn_step(t.sgd));
    assert_int_equal(cairn_optimizer_step_skipped(t.sgd),
                     0); /* there was nothing left to leave out; the scaler remembers */
    assert_true(amp_next_scale(t.amp) == 64);
    end(&t);
}

static void a_step_uses_gradients_up(void **state) {
    for (int fused = 0; fused < 2; fused++) {
        struct trainer t;
        begin(&t, *state, CAIRN_F16, fused, AMP_O2, CAIRN_F16);
        for (int s = 0; s < 3; s++) {
            write_grads(&t, s, amp_next_scale(t.amp));
            OK(cairn_grads_ready(t.set, 0, PARAMS));
            step(&t, false);
            step(&t, false); /* nothing waits */
        }
        for (size_t i = 0; i < N; i++) {
            float w = first_weight(i);
            for (int s = 0; s < 3; s++) w -= (float)LR * gradient(s, i);
            assert_true(weight(&t, i) == w);
        }
        end(&t);
    }
}

/* ---- memory that comes and moves ---- */

static void gradients_may_get_their_memory_at_the_first_backward(void **state) {
    float w[4] = {1, 2, 3, 4}, late[4] = {1, 1, 1, 1};
    const cairn_param param = {.name = "w", .data = w, .dtype = CAIRN_F32, .ndim = 1, .shape = {4}};
    cairn_param_set *set = NULL;
    cairn_optimizer *sgd = NULL;
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    h.lr = 1;
    OK(cairn_param_set_create(*state, &param, 1, &set));
    assert_null(cairn__grad_memory(set->params[0]->gradient)); /* made on request only */
    OK(cairn_sgd_create(set, &h, &sgd));
    OK(cairn_step(sgd));
    assert_null(cairn__grad_memory(set->params[0]->gradient));
    REFUSED(cairn_grads_ready(set, 0, 1), CAIRN_EINVAL, "parameter 'w' has no gradient memory; bind some with");
    OK(cairn_param_bind(set, 0, NULL, late));
    OK(cairn_grads_ready(set, 0, 1));
    OK(cairn_step(sgd));
    assert_true(w[0] == 0 && w[3] == 3);
    cairn_optimizer_destroy(&sgd);
    cairn_param_set_destroy(&set);
}

static void gradients_without_memory_have_cairns_until_they_are_bound(void **state) {
    float w[2] = {1, 2}, mine[2] = {1, 1};
    const cairn_param param = {.name = "w", .data = w, .dtype = CAIRN_F32, .ndim = 1, .shape = {2}};
    cairn_param_set *set = NULL;
    cairn_optimizer *sgd = NULL;
    cairn_param got;
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    h.lr = 1;
    OK(cairn_param_set_create(*state, &param, 1, &set));
    OK(cairn_sgd_create(set, &h, &sgd));
    OK(cairn_param_set_get(set, 0, &got));
    ((float *)got.grad)[0] = ((float *)got.grad)[1] = 4;
    OK(cairn_grads_ready(set, 0, 1));
    OK(cairn_param_bind(set, 0, NULL, mine)); /* what waits in Cairn's memory is kept */
    OK(cairn_grads_ready(set, 0, 1));
    OK(cairn_step(sgd));
    assert_true(w[0] == -4 && w[1] == -3);
    cairn_optimizer_destroy(&sgd);
    cairn_param_set_destroy(&set);
}

static void memory_may_move_at_any_time(void **state) {
    struct trainer t, moved;
    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    for (int s = 0; s < 2; s++) {
        write_grads(&t, s, amp_next_scale(t.amp));
        OK(cairn_grads_ready(t.set, 0, PARAMS));
        moved = t; /* as realloc, with a gradient that waits */
        memset(&t.w, 0xff, sizeof(t.w));
        memset(&t.g, 0xff, sizeof(t.g));
        for (size_t p = 0; p < PARAMS; p++)
            OK(cairn_param_bind(t.set, p, &moved.w.f32[first_of[p]], &moved.g.f32[first_of[p]]));
        OK(cairn_step(t.sgd));
        t.w = moved.w;
        for (size_t p = 0; p < PARAMS; p++)
            OK(cairn_param_bind(t.set, p, &t.w.f32[first_of[p]], &t.g.f32[first_of[p]]));
        OK(cairn_param_bind(t.set, 0, NULL, NULL)); /* as it is */
    }
    for (size_t i = 0; i < N; i++)
        assert_true(weight(&t, i) == first_weight(i) - (float)LR * gradient(0, i) - (float)LR * gradient(1, i));
    end(&t);
}

static void bind_refuses_nonsense_arguments(void **state) {
    struct trainer t;
    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    char *odd = (char *)&t.w + 1;
    REFUSED(cairn_param_bind(NULL, 0, NULL, NULL), CAIRN_EINVAL, "set is NULL");
    REFUSED(cairn_param_bind(t.set, 3, &t.w, NULL), CAIRN_EINVAL, "parameter index is 3, but the set has 3 parameters");
    REFUSED(cairn_param_bind(t.set, 1, odd, NULL), CAIRN_EINVAL, "parameter 'wpe': data at ");
    REFUSED(cairn_param_bind(t.set, 1, NULL, odd), CAIRN_EINVAL, "parameter 'wpe': grad at ");
    cairn_module *model = cairn_linear(*state, 2, 2);
    REFUSED(cairn_param_bind(cairn_module_params(model), 0, &t.w, NULL), CAIRN_ESTATE, "belongs to a module");
    REFUSED(cairn_grads_ready(cairn_module_params(model), 0, 1), CAIRN_EINVAL, "a module's gradients are written by");
    REFUSED(cairn_grads_taken(cairn_module_params(model), 0, 1), CAIRN_EINVAL, "a module's gradients are written by");
    REFUSED(cairn_grads_ready(t.set, 2, 2), CAIRN_EINVAL, "2 parameters from index 2 on, but the set has 3");
    REFUSED(cairn_grads_taken(t.set, (size_t)-1, 2), CAIRN_EINVAL, "but the set has 3");
    REFUSED(cairn_grads_ready(NULL, 0, 0), CAIRN_EINVAL, "set is NULL");
    OK(cairn_grads_ready(t.set, 3, 0));
    REFUSED(amp_initialize_params(*state, cairn_module_params(model), NULL, NULL, &t.amp), CAIRN_EINVAL,
            "give the module to amp_initialize");
    cairn_module_destroy(&model);
    end(&t);
}

static cairn_status step_of_graph(void *user) {
    (void)user;
    return CAIRN_OK;
}

static void memory_that_a_graph_has_captured_cannot_move(void **state) {
    struct trainer t;
    cairn_graph *graph = NULL;
    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    OK(cairn_graph_capture(*state, step_of_graph, NULL, &graph));
    REFUSED(cairn_param_bind(t.set, 0, &t.w, NULL), CAIRN_ESTATE, "destroy the graph first");
    cairn_graph_destroy(&graph);
    OK(cairn_param_bind(t.set, 0, &t.w, NULL));
    end(&t);
}

static void empty_sets_and_parameters_work(void **state) {
    float w = 1, g = 1;
    const cairn_param params[] = {
        {.name = "none", .dtype = CAIRN_F32, .ndim = 1, .shape = {0}},
        {.name = "w", .data = &w, .grad = &g, .dtype = CAIRN_F32},
    };
    for (size_t count = 0; count < 3; count++) {
        for (int level = AMP_O0; level <= AMP_O3; level++) {
            cairn_param_set *set = NULL;
            amp_context *amp = NULL;
            cairn_param masters[2];
            int skip = 1;
            w = 1;
            OK(cairn_param_set_create(*state, params, count, &set));
            OK(amp_initialize_params(*state, set, NULL,
                                     amp_options(.opt_level = (amp_opt_level)level, .loss_scale = 1, .verbosity = -1),
                                     &amp));
            for (int s = 0; s < 2; s++) {
                assert_true(amp_next_scale(amp) == 1);
                OK(cairn_grads_ready(set, 0, count));
                if (s) OK(cairn_grads_taken(set, 0, count));
                OK(amp_begin_step(amp, &skip));
                assert_int_equal(skip, 0);
                OK(amp_master_params(amp, NULL, masters, count));
                if (count == 2) *(float *)masters[1].data -= *(float *)masters[1].grad;
                OK(amp_end_step(amp));
            }
            if (count == 2) assert_true(w == -1);
            amp_destroy(&amp);
            cairn_param_set_destroy(&set);
        }
    }
}

/* ---- the user's step ---- */

static void begin_unscales_f32_gradients_where_they_are(void **state) {
    struct trainer t;
    int skip = 1;
    begin(&t, *state, CAIRN_F32, false, AMP_O2, CAIRN_F16);
    write_grads(&t, 0, amp_next_scale(t.amp));
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    OK(amp_begin_step(t.amp, &skip));
    for (size_t i = 0; i < N; i++) assert_true(t.g.f32[i] == gradient(0, i));
    OK(amp_end_step(t.amp));
    end(&t);
}

static void begin_step_and_end_step_alternate(void **state) {
    struct trainer t;
    int skip = 7;
    begin(&t, *state, CAIRN_F32, false, AMP_O2, CAIRN_F16);
    REFUSED(amp_end_step(t.amp), CAIRN_ESTATE, "amp_end_step: call amp_begin_step first");
    OK(amp_begin_step(t.amp, &skip));
    assert_int_equal(skip, 0);
    REFUSED(amp_begin_step(t.amp, &skip), CAIRN_ESTATE, "the last step was not ended; call amp_end_step first");
    OK(amp_end_step(t.amp));
    REFUSED(amp_end_step(t.amp), CAIRN_ESTATE, "amp_end_step: call amp_begin_step first");
    REFUSED(amp_begin_step(t.amp, NULL), CAIRN_EINVAL, "amp and skip must be set");
    REFUSED(amp_begin_step(NULL, &skip), CAIRN_EINVAL, "amp and skip must be set");
    REFUSED(amp_end_step(NULL), CAIRN_EINVAL, "amp is NULL");
    cairn_param out[PARAMS];
    REFUSED(amp_master_params(t.amp, NULL, out, 2), CAIRN_EINVAL, "count is 2, but the optimizer has 3 parameters");
    OK(amp_begin_step(t.amp, &skip));
    end(&t); /* within a step */

    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    REFUSED(amp_begin_step(t.amp, &skip), CAIRN_ESTATE, "this context has an optimizer; call cairn_step");
    end(&t);
}

static void an_overflow_at_the_floor_is_an_error_of_end_step(void **state) {
    struct trainer t;
    int skip = 0;
    const struct amp_scaler_options scaler = {.struct_size = sizeof(scaler), .init_scale = 2};
    make_set(&t, *state, CAIRN_F32);
    OK(amp_initialize_params(t.env, t.set, NULL, amp_options(.opt_level = AMP_O2, .scaler = &scaler, .verbosity = -1),
                             &t.amp));
    for (int s = 0; s < 3; s++) {
        write_grads(&t, s, amp_next_scale(t.amp));
        t.g.f32[6] = NAN;
        OK(cairn_grads_ready(t.set, 0, PARAMS));
        OK(amp_begin_step(t.amp, &skip));
        assert_int_equal(skip, 1);
        if (s == 0) OK(amp_end_step(t.amp));
        if (s > 0) REFUSED(amp_end_step(t.amp), CAIRN_ENUMERIC, "non-finite gradient in wpe (1 nan of 3)");
    }
    for (size_t i = 0; i < N; i++) assert_true(weight(&t, i) == first_weight(i));
    end(&t);
}

static void what_cannot_be_initialised_is_refused_and_unchanged(void **state) {
    struct trainer t, other;
    amp_context *second = NULL;
    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    REFUSED(amp_initialize_params(t.env, t.set, t.sgd, NULL, &second), CAIRN_ESTATE,
            "belong to an amp context already");
    REFUSED(amp_initialize_params(t.env, NULL, t.sgd, NULL, &second), CAIRN_EINVAL, "set is NULL");
    REFUSED(amp_initialize_params(NULL, t.set, t.sgd, NULL, &second), CAIRN_EINVAL, "another environment");
    make_set(&other, *state, CAIRN_BF16);
    REFUSED(amp_initialize_params(other.env, other.set, NULL, amp_options(.opt_level = AMP_O2, .verbosity = -1),
                                  &second),
            CAIRN_EINVAL, "parameter 'wte' is bf16, but half_type is f16; use one of them");
    make_sgd(&other);
    REFUSED(amp_initialize_params(other.env, other.set, NULL, amp_options(.half_type = CAIRN_BF16, .verbosity = -1),
                                  &second),
            CAIRN_EINVAL, "belongs to an optimizer already");
    REFUSED(amp_initialize_params(t.env, other.set, t.sgd, NULL, &second), CAIRN_ESTATE,
            "belongs to another amp context");
    assert_null(second);
    for (size_t i = 0; i < N; i++) assert_true(weight(&other, i) == first_weight(i));
    end(&other);
    end(&t);
}

static void a_second_context_follows_the_first(void **state) {
    struct trainer t;
    begin(&t, *state, CAIRN_F32, false, AMP_O1, CAIRN_F16);
    write_grads(&t, 0, amp_next_scale(t.amp));
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    step(&t, false);
    amp_destroy(&t.amp);
    assert_null(t.set->scale);
    OK(amp_initialize_params(t.env, t.set, NULL, amp_options(.opt_level = AMP_O1, .verbosity = -1), &t.amp));
    assert_true(amp_next_scale(t.amp) == 65536);
    end(&t);
}

/* The bits that a master has beyond its half weight stay, and its memory is not made twice. */
static void masters_outlive_their_context(void **state) {
    struct trainer t;
    make_set(&t, *state, CAIRN_F32);
    for (size_t i = 0; i < N; i++) t.w.f32[i] = 1 + 0x1p-20f;
    OK(amp_initialize_params(t.env, t.set, NULL, amp_options(.opt_level = AMP_O2, .verbosity = -1), &t.amp));
    amp_destroy(&t.amp);
    OK(amp_initialize_params(t.env, t.set, NULL, amp_options(.opt_level = AMP_O2, .verbosity = -1), &t.amp));
    assert_true(cairn_param_master(t.set, 0)[0] == 1 + 0x1p-20f && t.w.f32[0] == 1);
    amp_destroy(&t.amp);
    OK(amp_initialize_params(t.env, t.set, NULL, amp_options(.opt_level = AMP_O3, .verbosity = -1), &t.amp));
    assert_ptr_equal(cairn_param_master(t.set, 0), t.w.f32);
    assert_true(t.w.f32[0] == 1);
    end(&t);
}

/* At a level without half values. */
static void f32_level_gives_back_the_bits_that_a_half_one_kept(void **state) {
    for (int level = AMP_O0; level <= AMP_O1; level++) {
        struct trainer t;
        make_set(&t, *state, CAIRN_F32);
        t.w.f32[0] = 1 + 0x1p-20f;
        OK(amp_initialize_params(t.env, t.set, NULL, amp_options(.opt_level = AMP_O2, .verbosity = -1), &t.amp));
        amp_destroy(&t.amp);
        assert_true(t.w.f32[0] == 1);
        OK(amp_initialize_params(t.env, t.set, NULL,
                                 amp_options(.opt_level = (amp_opt_level)level, .loss_scale = 1, .verbosity = -1),
                                 &t.amp));
        assert_true(t.w.f32[0] == 1 + 0x1p-20f);
        assert_ptr_equal(cairn_param_master(t.set, 0), t.w.f32);
        t.g.f32[0] = 1 + 0x1p-20f;
        OK(cairn_grads_ready(t.set, 0, PARAMS));
        assert_true(t.g.f32[0] == 1 + 0x1p-20f);
        end(&t);
    }
}

static void begin_step_that_ran_out_of_memory_may_be_repeated(void **state) {
    struct trainer t;
    int skip = 7;
    begin(&t, *state, CAIRN_F16, false, AMP_O2, CAIRN_F16);
    write_grads(&t, 0, amp_next_scale(t.amp));
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    fail_in = 1;
    const cairn_status st = amp_begin_step(t.amp, &skip);
    fail_in = 0;
    REFUSED(st, CAIRN_ENOMEM, "out of memory");
    assert_int_equal(skip, 7);
    REFUSED(amp_end_step(t.amp), CAIRN_ESTATE, "amp_end_step: call amp_begin_step first");
    step(&t, false);
    for (size_t i = 0; i < N; i++) assert_true(weight(&t, i) == first_weight(i) - (float)LR * gradient(0, i));
    end(&t);
}

static void kept_half_types_have_masters_at_o2(void **state) {
    struct trainer t;
    make_set(&t, *state, CAIRN_BF16);
    OK(amp_initialize_params(t.env, t.set, NULL,
                             amp_options(.opt_level = AMP_O2, .cast_model_type = AMP_KEEP_TYPES,
                                         .half_type = CAIRN_BF16, .verbosity = -1),
                             &t.amp));
    for (size_t p = 0; p < PARAMS; p++) assert_non_null(cairn_param_master(t.set, p));
    end(&t);
    make_set(&t, *state, CAIRN_F32);
    t.w.f32[0] = 1 + 0x1p-20f;
    OK(amp_initialize_params(t.env, t.set, NULL,
                             amp_options(.opt_level = AMP_O2, .cast_model_type = AMP_KEEP_TYPES, .verbosity = -1),
                             &t.amp));
    assert_ptr_equal(cairn_param_master(t.set, 0), t.w.f32);
    assert_true(t.w.f32[0] == 1 + 0x1p-20f);
    end(&t);
}

/* Frozen ones are declared with the others; no step ever uses their gradients. */
static void parameters_that_no_optimizer_updates_are_left_alone(void **state) {
    struct trainer t;
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    const struct amp_scaler_options scaler = {.struct_size = sizeof(scaler), .init_scale = 128, .growth_interval = 2};
    h.lr = LR;
    make_set(&t, *state, CAIRN_F32);
    OK(cairn_sgd_create_over(t.set, (const size_t[]){2, 0}, 2, &h, &t.sgd));
    OK(amp_initialize_params(t.env, t.set, t.sgd, amp_options(.opt_level = AMP_O2, .scaler = &scaler, .verbosity = -1),
                             &t.amp));
    for (int s = 0; s < 6; s++) {
        write_grads(&t, s, amp_next_scale(t.amp));
        t.g.f32[7] = INFINITY;
        OK(cairn_grads_ready(t.set, 0, PARAMS));
        if (s % 2) OK(cairn_grads_taken(t.set, 0, PARAMS));
        step(&t, false);
    }
    assert_true(amp_next_scale(t.amp) == 1024);
    for (size_t i = 0; i < N; i++) {
        float w = first_weight(i);
        for (int s = 0; s < 6 && (i < 6 || i >= 9); s++) w -= (float)LR * gradient(s, i);
        assert_true(weight(&t, i) == w);
    }
    end(&t);
}

static void gradients_are_clipped_by_their_true_norm(void **state) {
    struct trainer t;
    double norm = 0;
    begin(&t, *state, CAIRN_F32, true, AMP_O2, CAIRN_F16);
    (void)amp_next_scale(t.amp);
    memset(&t.g, 0, sizeof(t.g));
    t.g.f32[1] = 3 * 128;
    t.g.f32[8] = 4 * 128;
    OK(cairn_grads_ready(t.set, 0, PARAMS));
    OK(cairn_clip_grad_norm(t.sgd, 100, &norm));
    assert_true(norm == 5);
    step(&t, false);
    assert_true(weight(&t, 1) == first_weight(1) - 3 * (float)LR);
    assert_true(weight(&t, 8) == first_weight(8) - 4 * (float)LR);
    end(&t);
}

static void contexts_over_two_sets_do_not_disturb_each_other(void **state) {
    struct trainer t[2];
    for (int k = 0; k < 2; k++) begin(&t[k], *state, k ? CAIRN_F16 : CAIRN_F32, k == 0, AMP_O2, CAIRN_F16);
    for (int s = 0; s < 4; s++) {
        for (int k = 0; k < 2; k++) {
            write_grads(&t[k], s + k, amp_next_scale(t[k].amp));
            if (k == 0 && s == 2) put(&t[k], 0, INFINITY);
            OK(cairn_grads_ready(t[k].set, 0, PARAMS));
        }
        for (int k = 0; k < 2; k++) step(&t[k], k == 0 && s == 2);
    }
    assert_true(amp_next_scale(t[0].amp) == 64 && amp_next_scale(t[1].amp) == 128);
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < N; i++) {
            float w = first_weight(i);
            for (int s = 0; s < 4; s++) w -= k == 0 && s == 2 ? 0 : (float)LR * gradient(s + k, i);
            assert_true(weight(&t[k], i) == w);
        }
        end(&t[k]);
    }
}

static void steady_steps_allocate_nothing(void **state) {
    for (size_t kind = 0; kind < KINDS; kind++) {
        for (int fused = 0; fused < 2; fused++) {
            struct trainer t;
            uint64_t before = 0;
            begin(&t, *state, kinds[kind].storage, fused, kinds[kind].level, kinds[kind].half);
            for (int s = 0; s < 80; s++) {
                if (s == 4) before = cairn__alloc_counters().allocations;
                for (int micro = 0; micro < 2; micro++) {
                    write_grads(&t, s, amp_next_scale(t.amp));
                    OK(cairn_grads_ready(t.set, 0, PARAMS));
                    OK(cairn_grads_taken(t.set, 0, 2));
                }
                step(&t, false);
            }
            assert_int_equal(cairn__alloc_counters().allocations, before);
            end(&t);
        }
    }
}

/* ---- ranks ---- */

enum { RANKS = 3 };

/* Rank 1 overflows in step 2 and rank 2 in step 4; each adds its own gradients up before it declares them, or averages
 * between begin and end: the ranks need not be told of. */
static char *ranks_skip_together(cairn_env *env, void *ctx) {
    const bool f32 = *(bool *)ctx;
    const int rank = cairn_env_rank(env);
    struct trainer t;
    begin_from(&t, env, f32 ? CAIRN_F32 : CAIRN_F16, false, (struct amp_options){.opt_level = AMP_O2});
    EXPECT(t.amp);
    for (int s = 0; s < 6; s++) {
        const double scale = amp_next_scale(t.amp);
        int skip = 0;
        EXPECT(scale == (s < 3 ? 128 : s < 5 ? 64 : 32));
        write_grads(&t, s, scale);
        if (s == 2 && rank == 1) put(&t, 7, INFINITY);
        if (s == 4 && rank == 2) put(&t, 0, NAN);
        if (s == 5 && rank != 1) put(&t, rank == 0 ? 10 : 6, NAN);
        if (s != 1 || rank == 0) EXPECT_OK(cairn_grads_ready(t.set, 0, PARAMS)); /* in step 1 only rank 0 has any */
        EXPECT_OK(step_own(&t, &skip));
        EXPECT(skip == (s == 2 || s > 3));
        struct amp_overflow one = {0};
        size_t found = 0;
        EXPECT_OK(amp_last_overflow(t.amp, NULL, &one, 1, &found));
        if (s == 2) EXPECT(found == 1 && strcmp(one.name, "wpe") == 0 && one.rank == 1 && one.infs == 1);
        EXPECT(amp_unskipped_steps(t.amp) == (s < 2 ? s + 1 : s == 3));
    }
    end(&t);
    EXPECT(!t.set);
    return NULL;
}

static void ranks_skip_a_step_together_and_name_the_overflow(void **state) {
    (void)state;
    for (int f32 = 0; f32 < 2; f32++) {
        bool ctx = f32;
        log_text[0] = '\0';
        run_ranks(RANKS, ranks_skip_together, &ctx);
        assert_non_null(
            strstr(log_text, "reducing loss scale to 64: non-finite gradient in wpe (1 inf of 3), on rank 1"));
        assert_non_null(
            strstr(log_text, "reducing loss scale to 32: non-finite gradient in wte (1 nan of 6), on rank 2"));
        assert_non_null(
            strstr(log_text, "non-finite gradient in wpe (1 nan of 3), ln.weight (1 nan of 2), on ranks 0 and 2"));
        assert_null(strstr(log_text, "on rank 0"));
    }
}

/* Averaged between begin and end: every rank takes the same step. */
static char *ranks_average_in_their_step(cairn_env *env, void *ctx) {
    struct trainer t;
    int skip = 1;
    (void)ctx;
    begin_from(&t, env, CAIRN_F32, false, (struct amp_options){.opt_level = AMP_O2});
    EXPECT(t.amp);
    for (size_t i = 0; i < N; i++) put(&t, i, (float)(cairn_env_rank(env) + 1) * (float)amp_next_scale(t.amp));
    EXPECT_OK(cairn_grads_ready(t.set, 0, PARAMS));
    EXPECT_OK(amp_begin_step(t.amp, &skip));
    EXPECT_OK(cairn_allreduce(cairn_env_group(env), t.g.f32, N, CAIRN_F32, CAIRN_AVG, NULL));
    for (size_t p = 0; p < PARAMS && !skip; p++) {
        for (size_t i = first_of[p]; i < first_of[p + 1]; i++)
            cairn_param_master(t.set, p)[i - first_of[p]] -= (float)LR * t.g.f32[i];
    }
    EXPECT_OK(amp_end_step(t.amp));
    for (size_t i = 0; i < N; i++) EXPECT(weight(&t, i) == first_weight(i) - (float)LR * 2);
    end(&t);
    return NULL;
}

static void gradients_may_be_averaged_between_begin_and_end(void **state) {
    (void)state;
    run_ranks(RANKS, ranks_average_in_their_step, NULL);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_env, end_env)
    const struct CMUnitTest tests[] = {
        TEST(every_level_equals_plain_sgd_without_the_skipped_step),
        TEST(unsynced_gradients_are_one_loss_with_the_next_synchronised_ones_or_the_step),
        TEST(weights_are_rounded_where_they_stand_and_masters_have_the_original_bits),
        TEST(weights_that_the_user_writes_are_rounded_and_masters_take_them_as_they_are),
        TEST(small_updates_add_up_in_masters_and_are_lost_without),
        TEST(gradients_are_rounded_where_they_stand_when_they_are_declared),
        TEST(a_gradient_too_large_for_f16_is_an_overflow_although_its_memory_is_f32),
        TEST(fused_optimizers_make_the_same_masters_as_at_o0),
        TEST(stochastic_rounding_moves_bf16_weights_that_nearest_would_leave),
        TEST(next_scale_counts_a_loss_only_if_gradients_follow),
        TEST(gradients_have_the_scale_returned_last_and_not_the_current_one),
        TEST(gradients_before_the_first_next_scale_count_as_unscaled),
        TEST(a_static_scale_of_1_costs_nothing),
        TEST(next_scale_is_nan_for_no_such_loss_and_1_where_amp_is_off),
        TEST(scale_on_the_device_is_null_for_no_such_loss_and_1_where_amp_is_off),
        TEST(each_loss_has_its_scale_on_the_device),
        TEST(scale_on_the_device_is_for_own_buffers),
        TEST(scale_on_the_device_is_refused_while_gradients_are_averaged),
        TEST(adding_in_place_is_one_gradient_however_often_it_is_declared),
        TEST(taken_gradients_add_up_in_f32),
        TEST(gradients_at_another_scale_are_accumulated_or_refused),
        TEST(forgotten_gradients_are_never_applied_and_their_overflow_counts),
        TEST(a_step_uses_gradients_up),
        TEST(gradients_may_get_their_memory_at_the_first_backward),
        TEST(gradients_without_memory_have_cairns_until_they_are_bound),
        TEST(memory_may_move_at_any_time),
        TEST(bind_refuses_nonsense_arguments),
        TEST(memory_that_a_graph_has_captured_cannot_move),
        TEST(empty_sets_and_parameters_work),
        TEST(begin_unscales_f32_gradients_where_they_are),
        TEST(begin_step_and_end_step_alternate),
        TEST(an_overflow_at_the_floor_is_an_error_of_end_step),
        TEST(what_cannot_be_initialised_is_refused_and_unchanged),
        TEST(a_second_context_follows_the_first),
        TEST(masters_outlive_their_context),
        TEST(f32_level_gives_back_the_bits_that_a_half_one_kept),
        TEST(begin_step_that_ran_out_of_memory_may_be_repeated),
        TEST(kept_half_types_have_masters_at_o2),
        TEST(parameters_that_no_optimizer_updates_are_left_alone),
        TEST(gradients_are_clipped_by_their_true_norm),
        TEST(contexts_over_two_sets_do_not_disturb_each_other),
        TEST(steady_steps_allocate_nothing),
        TEST(ranks_skip_a_step_together_and_name_the_overflow),
        TEST(gradients_may_be_averaged_between_begin_and_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
