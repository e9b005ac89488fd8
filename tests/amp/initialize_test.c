/* amp_initialize_all, amp_scaler and its guards leave nothing behind when memory runs out: each allocation fails
 * once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cairn/cairn.h"
#include "core/alloc.h"
#include "optim/hooks.h"
#include "../check.h"
#include "../failing_alloc.h"
#include "../on_gpu.h"

enum { N = 4, MODELS = 2, PARAMS = 4, MAX_ALLOCATIONS = 1000 };

static void keep_quiet(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie, (void)level, (void)message;
}

/* ---- models with a norm and a buffer ---- */

struct shifted {
    cairn_module *linear, *norm;
    cairn_tensor *shift;
};

static cairn_tensor *shifted_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct shifted *s = context;
    (void)module, (void)count;
    return cairn_add(cairn_module_forward(s->norm, cairn_module_forward(s->linear, inputs[0])), s->shift);
}

static const struct cairn_module_ops shifted_ops = {.struct_size = sizeof(struct cairn_module_ops),
                                                    .name = "Shifted",
                                                    .forward = shifted_forward};

static cairn_module *make_shifted(cairn_env *env, struct shifted *s) {
    cairn_module *m = cairn_module_create(env, &shifted_ops, s);
    s->shift = cairn_module_add_buffer(m, "shift", CAIRN_F32, CAIRN_SHAPE(N));
    s->linear = cairn_module_add_child(m, "linear", cairn_linear(env, N, N));
    s->norm = cairn_module_add_child(m, "norm", cairn_layer_norm(env, CAIRN_SHAPE(N), 0));
    assert_non_null(s->norm);
    return m;
}

struct world {
    cairn_env *env;
    struct shifted parts[MODELS];
    cairn_module *models[MODELS];
    cairn_optimizer *optimizers[MODELS];
    cairn_tensor *x;
    amp_context *amp;
    amp_scaler *scaler;
};

static void make_world(struct world *w) {
    *w = (struct world){.env = NULL};
    cairn_set_log(keep_quiet, NULL);
    OK(cairn_env_create(NULL, NULL, cairn_env_options(.seed = 3), &w->env));
    for (int i = 0; i < MODELS; i++) {
        struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
        hyper.momentum = 0.5;
        w->models[i] = make_shifted(w->env, &w->parts[i]);
        OK(cairn_sgd_create(cairn_module_params(w->models[i]), &hyper, &w->optimizers[i]));
    }
    w->x = cairn_randn(w->env, CAIRN_F32, CAIRN_SHAPE(2, N));
    assert_non_null(w->x);
}

static void end_world(struct world *w) {
    amp_scaler_destroy(&w->scaler);
    amp_destroy(&w->amp);
    for (int i = 0; i < MODELS; i++) {
        cairn_optimizer_destroy(&w->optimizers[i]);
        cairn_module_destroy(&w->models[i]);
    }
    cairn_tensor_destroy(&w->x);
    cairn_env_destroy(&w->env);
    assert_null(w->env);
}

/* ---- what is compared ---- */

struct look {
    cairn_param params[MODELS][PARAMS];
    float values[MODELS][PARAMS][N * N];
    cairn_dtype buffers[MODELS];
    const void *amps[MODELS];
    char precisions[MODELS][256];
    int users[MODELS];
    bool hooks[MODELS];
    cairn_dtype casts;
    int readers;
};

static int count_readers(const struct cairn_env *env) {
    int count = 0;
    for (const struct cairn__report_reader *r = env->readers; r; r = r->next) count++;
    return count;
}

static void look_at(const struct world *w, struct look *out) {
    memset(out, 0, sizeof(*out));
    for (int m = 0; m < MODELS; m++) {
        struct cairn_param_set *set = cairn_module_params(w->models[m]);
        assert_int_equal(cairn_param_set_count(set), PARAMS);
        for (size_t i = 0; i < PARAMS; i++) {
            cairn_param *p = &out->params[m][i];
            OK(cairn_param_set_get(set, i, p));
            memcpy(out->values[m][i], p->data, set->params[i]->n * cairn_dtype_nbytes(p->dtype));
        }
        out->buffers[m] = cairn_tensor_dtype(w->parts[m].shift);
        out->amps[m] = set->amp;
        memcpy(out->precisions[m], set->precision, sizeof(set->precision));
        out->users[m] = set->users;
        out->hooks[m] = cairn__step_guard_of(w->optimizers[m]) != NULL;
    }
    out->casts = amp_autocast_type(w->env);
    out->readers = count_readers(w->env);
}

/* ---- attempts ---- */

static cairn_status initialize(struct world *w, const struct amp_options *options) {
    return amp_initialize_all(w->env, MODELS, w->models, MODELS, w->optimizers, options, &w->amp);
}

static cairn_status train(struct world *w) {
    cairn_status st = CAIRN_OK;
    cairn_zero_grad(w->optimizers[0]);
    cairn_optimizer_clear_grads(w->optimizers[1]);
    cairn_tensor *y = cairn_module_forward(w->models[1], cairn_module_forward(w->models[0], w->x));
    cairn_tensor *loss = cairn_mse_loss(y, w->x);
    st = w->amp ? amp_backward(w->amp, loss, NULL) : cairn_backward(amp_scaler_scale(w->scaler, loss));
    for (int i = 0; st == CAIRN_OK && i < MODELS; i++)
        st = w->amp ? cairn_step(w->optimizers[i]) : amp_scaler_step(w->scaler, w->optimizers[i], NULL);
    return st == CAIRN_OK && w->scaler ? amp_scaler_update(w->scaler) : st;
}

static void assert_no_trace(const struct world *w, const struct look *before, uint64_t alive, int n) {
    static struct look after;
    look_at(w, &after);
    assert_null(w->amp);
    if (memcmp(before, &after, sizeof(after)) != 0) fail_msg("allocation %d failed, and something changed", n);
    if (cairn__alloc_counters().alive != alive)
        fail_msg("allocation %d failed, and %d stayed", n, (int)(cairn__alloc_counters().alive - alive));
}

/* What an environment makes once and keeps is made by a context that has come and gone. */
static void warm_up(struct world *w) {
    OK(initialize(w, amp_options(.opt_level = AMP_O1)));
    OK(train(w));
    amp_destroy(&w->amp);
    cairn_zero_grad(w->optimizers[0]);
    cairn_zero_grad(w->optimizers[1]);
}

static void assert_all_or_nothing(const struct amp_options *options) {
    static struct look before;
    struct world w;
    int n = 1;
    make_world(&w);
    warm_up(&w);
    look_at(&w, &before);
    const uint64_t alive = cairn__alloc_counters().alive;
    for (;; n++) {
        assert_in_range(n, 1, MAX_ALLOCATIONS);
        fail_in = n;
        const cairn_status st = initialize(&w, options);
        const bool failed = fail_in == 0;
        fail_in = 0;
        if (!failed) {
            OK(st);
            break;
        }
        assert_int_equal(st, CAIRN_ENOMEM);
        assert_non_null(strstr(cairn_last_error(), "out of memory"));
        assert_no_trace(&w, &before, alive, n);
    }
    assert_in_range(n, 10, MAX_ALLOCATIONS);
    OK(train(&w));
    end_world(&w);
}

static const struct amp_options rows[] = {
    {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O0},
    {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1, .num_losses = 3},
    {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1, .explain_overflow = CAIRN_ON},
    {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .num_losses = 3},
    {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_BF16},
    {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O3},
    {.struct_size = sizeof(struct amp_options), .enabled = CAIRN_OFF},
};

static void initialising_is_all_or_nothing_whatever_allocation_fails(void **state) {
    (void)state;
    NOT_ON_A_GPU("the device's cache allocates for itself, and keeps that");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) assert_all_or_nothing(&rows[i]);
}

static void what_is_refused_changes_nothing(void **state) {
    NOT_ON_A_GPU("the device's cache allocates for itself, and keeps that");
    static struct look before, after;
    struct world w, other;
    (void)state;
    make_world(&w), make_world(&other);
    warm_up(&w);
    look_at(&w, &before);
    const uint64_t alive = cairn__alloc_counters().alive;
    cairn_module *const m[] = {w.models[0], w.models[1], NULL, other.models[0]};
    cairn_optimizer *const o[] = {w.optimizers[0], w.optimizers[1], NULL, other.optimizers[0]};
    const struct {
        int num_models, models[3], num_optimizers, optimizers[3];
        const char *sentence;
    } refused[] = {
        {2, {0, 0}, 1, {0}, "a model is given twice"},
        {2, {0, 2}, 1, {0}, "a model is NULL"},
        {2, {0, 3}, 1, {0}, "another environment"},
        {2, {0, 1}, 3, {0, 1, 0}, "given twice"},
        {2, {0, 1}, 2, {0, 2}, "an optimizer is NULL"},
        {1, {0}, 2, {0, 1}, "updates parameters that are not given here"},
        {1, {0}, 2, {0, 3}, "updates parameters that are not given here"},
        {0, {0}, 1, {0}, "at least one model must be given"},
        {1, {0}, -1, {0}, "num_optimizers is -1"},
    };
    for (size_t r = 0; r < sizeof(refused) / sizeof(refused[0]); r++) {
        for (size_t level = 0; level < 6; level++) {
            cairn_module *models[3];
            cairn_optimizer *optimizers[3];
            for (int i = 0; i < 3; i++) {
                models[i] = m[refused[r].models[i]];
                optimizers[i] = o[refused[r].optimizers[i]];
            }
            const cairn_status st = amp_initialize_all(w.env, refused[r].num_models, models, refused[r].num_optimizers,
                                                       optimizers, &rows[level], &w.amp);
            assert_true(st == CAIRN_EINVAL || st == CAIRN_ESTATE);
            if (!strstr(cairn_last_error(), refused[r].sentence)) fail_msg("row %zu: %s", r, cairn_last_error());
            look_at(&w, &after);
            assert_null(w.amp);
            assert_memory_equal(&before, &after, sizeof(after));
            assert_int_equal(cairn__alloc_counters().alive, alive);
        }
    }
    end_world(&other), end_world(&w);
}

/* ---- training on ---- */

/* Nothing leaks either. */
static void step_that_runs_out_of_memory_fails_and_the_next_one_works(void **state) {
    (void)state;
    for (size_t i = 0; i <= sizeof(rows) / sizeof(rows[0]); i++) {
        for (int n = 1, failed = 1; failed; n++) {
            struct world w;
            const uint64_t alive = cairn__alloc_counters().alive;
            assert_in_range(n, 1, MAX_ALLOCATIONS);
            make_world(&w);
            if (i < sizeof(rows) / sizeof(rows[0])) {
                OK(initialize(&w, &rows[i]));
            } else {
                OK(amp_scaler_create(w.env, NULL, &w.scaler));
            }
            fail_in = n;
            const cairn_status st = train(&w);
            failed = fail_in == 0;
            fail_in = 0;
            if (!failed) OK(st);
            if (st != CAIRN_OK) assert_non_null(strstr(cairn_last_error(), "out of memory"));
            const cairn_status next = train(&w);
            if (next != CAIRN_OK) { /* a scaler whose first optimizer had stepped */
                assert_non_null(w.scaler);
                assert_non_null(strstr(cairn_last_error(), "since the last update"));
                OK(amp_scaler_update(w.scaler));
                OK(train(&w));
            }
            end_world(&w);
            assert_int_equal(cairn__alloc_counters().alive, alive);
        }
    }
}

static void scaler_is_made_whole_or_not_at_all(void **state) {
    NOT_ON_A_GPU("the device's cache allocates for itself, and keeps that");
    struct world w;
    (void)state;
    make_world(&w);
    const uint64_t alive = cairn__alloc_counters().alive;
    const int readers = count_readers(w.env);
    for (int n = 1, failed = 1; failed; n++) {
        fail_in = n;
        const cairn_status st = amp_scaler_create(w.env, NULL, &w.scaler);
        failed = fail_in == 0;
        fail_in = 0;
        assert_int_equal(st, failed ? CAIRN_ENOMEM : CAIRN_OK);
        if (!failed) break;
        assert_null(w.scaler);
        assert_int_equal(cairn__alloc_counters().alive, alive);
        assert_int_equal(count_readers(w.env), readers);
    }
    OK(train(&w));
    end_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(initialising_is_all_or_nothing_whatever_allocation_fails),
        cmocka_unit_test(what_is_refused_changes_nothing),
        cmocka_unit_test(step_that_runs_out_of_memory_fails_and_the_next_one_works),
        cmocka_unit_test(scaler_is_made_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
