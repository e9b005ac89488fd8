/* Optimizers that use norms of whole parameters, against models of their formulas in double precision: several
 * parameters, one of them empty, in two groups, on the device of CAIRN_DEVICE. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "core/philox.h"
#include "optim/optim.h"
#include "param/param.h"

enum { PARAMS = 6, MOST = 1003, STEPS = 100, IN_GROUP_0 = 4 };
static const size_t sizes[PARAMS] = {MOST, 0, 17, 300, 1, 64};
static const cairn_dtype halves[] = {(cairn_dtype)0, CAIRN_F16, CAIRN_BF16};
static const struct cairn__loss_scale SCALE = {128, 1.0f / 128};

/* The stand-in for a GPU takes a hundred times as long. */
static int steps_on(const cairn_env *env) {
    return strcmp(env->device->ops->name, "cpu") == 0 ? STEPS : STEPS / 10;
}

static float number(int t, size_t p, size_t i) {
    return 2.0f * cairn__uniform(cairn__philox(4321, i, (uint64_t)(t * PARAMS) + p).word[0]) - 1.0f;
}

/* ---- a training, beside its model ---- */

struct model {
    double w[PARAMS][MOST], g[PARAMS][MOST], m[PARAMS][MOST], v[PARAMS][MOST];
};

struct run {
    struct model m;
    cairn_env *env;
    cairn_param_set *set;
    cairn_optimizer *o;
    struct cairn__param *p[PARAMS];
    bool scaled;
};

static struct run *begin(cairn_env *env, cairn_dtype half) {
    static struct run r;
    memset(&r, 0, sizeof(r));
    r.env = env;
    r.scaled = half != 0;
    OK(cairn__param_set_new(env, &r.set));
    for (size_t p = 0; p < PARAMS; p++) {
        float w[MOST];
        char name[8];
        snprintf(name, sizeof(name), "p%zu", p);
        OK(cairn__param_set_add(r.set, name, 1, (int64_t[]){(int64_t)sizes[p]}, false, &r.p[p]));
        for (size_t i = 0; i < sizes[p]; i++) r.m.w[p][i] = w[i] = number(0, p, i);
        OK(cairn__device_upload(env->device, r.p[p]->data, w, sizes[p] * sizeof(w[0])));
    }
    if (half) OK(cairn__param_set_to_half(r.set, half, true, false));
    struct cairn__loss_scale *scale = NULL;
    OK(cairn__device_alloc(env->device, CAIRN__HOLDS_STATE, sizeof(SCALE), (void **)&scale));
    OK(cairn__device_upload(env->device, scale, &SCALE, sizeof(SCALE)));
    if (r.scaled) r.set->scale = scale;
    else cairn__device_free(env->device, scale);
    return &r;
}

static void end(struct run *r) {
    void *scale = (void *)(uintptr_t)r->set->scale;
    cairn_optimizer_destroy(&r->o);
    cairn_param_set_destroy(&r->set);
    cairn__device_free(r->env->device, scale);
}

/* Step t's gradient of parameter p, by its scale and in its type; g gets what it stands for. */
static void write_gradient(struct run *r, int t, size_t p, float times) {
    const struct cairn__dtype *type = cairn__dtype(r->p[p]->dtype);
    const float scale = r->scaled ? SCALE.scale : 1;
    char stored[MOST * 4];
    void *slot = NULL;
    for (size_t i = 0; i < sizes[p]; i++) {
        type->from_f32(stored + i * type->nbytes, times * number(t, p, i) * scale);
        r->m.g[p][i] = (double)type->to_f32(stored + i * type->nbytes) / (double)scale;
    }
    OK(cairn__grad_begin_write(r->p[p]->gradient, &slot));
    OK(cairn__device_upload(r->env->device, slot, stored, sizes[p] * type->nbytes));
    cairn__param_grad_ready(r->p[p]);
}

static void step(struct run *r, int t, float times) {
    cairn_zero_grad(r->o);
    for (size_t p = 0; p < PARAMS; p++) write_gradient(r, t, p, times);
    OK(cairn_step(r->o));
}

static double norm_of(const double *x, size_t n) {
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += x[i] * x[i];
    return sqrt(squares);
}

/* In the norm of all and in the greatest of them. */
static void assert_within(struct run *r, size_t p, const void *from, const double *want, double bound) {
    float got[MOST];
    double difference[MOST], most = 0, greatest = 0;
    if (sizes[p] == 0) return;
    OK(cairn__device_download(r->env->device, got, from, sizes[p] * sizeof(got[0])));
    for (size_t i = 0; i < sizes[p]; i++) {
        difference[i] = got[i] - want[i];
        most = fmax(most, fabs(difference[i]));
        greatest = fmax(greatest, fabs(want[i]));
    }
    if (!(most <= bound * greatest) || !(norm_of(difference, sizes[p]) <= bound * norm_of(want, sizes[p])))
        fail_msg("parameter %zu differs by %g of the greatest", p, most / greatest);
}

static void assert_follows(struct run *r) {
    for (size_t p = 0; p < PARAMS; p++) {
        const void *w = r->p[p]->master ? (const void *)r->p[p]->master : r->p[p]->data;
        uint16_t half[MOST], want;
        float master[MOST];
        assert_within(r, p, w, r->m.w[p], 1e-6);
        if (!r->p[p]->master) continue;
        OK(cairn__device_download(r->env->device, half, r->p[p]->data, sizes[p] * sizeof(half[0])));
        OK(cairn__device_download(r->env->device, master, w, sizes[p] * sizeof(master[0])));
        for (size_t i = 0; i < sizes[p]; i++) {
            cairn__dtype(r->p[p]->dtype)->from_f32(&want, master[i]);
            assert_int_equal(half[i], want);
        }
    }
}

static const size_t group_0[] = {0, 1, 2, 3}, group_1[] = {4, 5};

/* ---- LAMB ---- */

/* Group 1 has no weight decay. */
static void lamb_model(struct model *m, const struct cairn_lamb_options *h, int t) {
    const bool averages = h->grad_averaging != CAIRN_OFF, corrects = h->bias_correction != CAIRN_OFF;
    const double c1 = corrects ? 1 - pow(h->beta1, t) : 1, c2 = corrects ? 1 - pow(h->beta2, t) : 1;
    double squares = 0;
    for (size_t p = 0; p < PARAMS; p++) squares += pow(norm_of(m->g[p], sizes[p]), 2);
    const double clip = h->max_grad_norm > 0 ? fmin(1, h->max_grad_norm / (sqrt(squares) + 1e-6)) : 1;
    for (size_t p = 0; p < PARAMS; p++) {
        const double decay = p < IN_GROUP_0 ? h->weight_decay : 0;
        double u[MOST];
        for (size_t i = 0; i < sizes[p]; i++) {
            double g = (h->maximize == CAIRN_ON ? -1 : 1) * m->g[p][i] * clip;
            if (h->decoupled == CAIRN_OFF) g += decay * m->w[p][i];
            m->m[p][i] = h->beta1 * m->m[p][i] + (averages ? 1 - h->beta1 : 1) * g;
            m->v[p][i] = h->beta2 * m->v[p][i] + (1 - h->beta2) * g * g;
            u[i] = m->m[p][i] / c1 / (sqrt(m->v[p][i] / c2) + h->eps);
            if (h->decoupled != CAIRN_OFF) u[i] += decay * m->w[p][i];
        }
        const double weights = norm_of(m->w[p], sizes[p]), direction = norm_of(u, sizes[p]);
        const bool trusts = (decay != 0 || h->nvlamb == CAIRN_ON) && weights != 0 && direction != 0;
        for (size_t i = 0; i < sizes[p]; i++) m->w[p][i] -= h->lr * (trusts ? weights / direction : 1) * u[i];
    }
}

static void lamb_follows_its_double_model(void **state) {
    for (int variant = 0; variant < 6; variant++) {
        for (int d = 0; d < 3; d++) {
            struct cairn_lamb_options h = CAIRN_LAMB_OPTIONS_INIT, plain;
            struct run *r = begin(*state, halves[d]);
            if (variant == 1) h.nvlamb = CAIRN_ON, h.max_grad_norm = 0;
            if (variant == 2) h.decoupled = CAIRN_OFF;
            if (variant == 3) h.grad_averaging = CAIRN_OFF, h.max_grad_norm = 3;
            if (variant == 4) h.bias_correction = CAIRN_OFF;
            if (variant == 5) h.maximize = CAIRN_ON, h.lr = 1e-2;
            plain = h, plain.weight_decay = 0;
            OK(cairn_lamb_create_over(r->set, group_0, 4, &h, &r->o));
            OK(cairn_lamb_add_group(r->o, r->set, group_1, 2, &plain));
            for (int t = 1; t <= steps_on(r->env); t++) {
                step(r, t, 1);
                lamb_model(&r->m, &h, t);
            }
            assert_follows(r);
            for (size_t p = 0; p < PARAMS; p++) assert_within(r, p, r->o->arrays.moments[p].array[1], r->m.v[p], 3e-6);
            end(r);
        }
    }
}

/* The definition of its rate: a step is as long as lr times the weights. */
static void lamb_moves_each_parameter_by_lr_times_its_norm(void **state) {
    struct cairn_lamb_options h = CAIRN_LAMB_OPTIONS_INIT;
    struct run *r = begin(*state, (cairn_dtype)0);
    h.lr = 0.125;
    OK(cairn_lamb_create(r->set, &h, &r->o));
    for (int t = 1; t <= 2; t++) {
        double before[PARAMS];
        for (size_t p = 0; p < PARAMS; p++) before[p] = norm_of(r->m.w[p], sizes[p]);
        step(r, t, 1);
        for (size_t p = 0; p < PARAMS; p++) {
            float w[MOST];
            double moved = 0;
            OK(cairn__device_download(r->env->device, w, r->p[p]->data, sizes[p] * sizeof(w[0])));
            for (size_t i = 0; i < sizes[p]; i++) {
                moved += pow(w[i] - r->m.w[p][i], 2);
                r->m.w[p][i] = w[i];
            }
            assert_true(fabs(sqrt(moved) - 0.125 * before[p]) <= 1e-6 * before[p]);
        }
    }
    end(r);
}

/* Weights of 0 take steps of lr, gradients of 0 none but decay; both without NaN. */
static void lamb_steps_by_lr_where_a_norm_is_0(void **state) {
    struct cairn_lamb_options h = CAIRN_LAMB_OPTIONS_INIT;
    struct run *r = begin(*state, (cairn_dtype)0);
    static const float zeros[MOST];
    float w[MOST];
    h.nvlamb = CAIRN_ON;
    h.weight_decay = 0;
    OK(cairn_lamb_create(r->set, &h, &r->o));
    OK(cairn__device_upload(r->env->device, r->p[0]->data, zeros, sizeof(zeros)));
    cairn_zero_grad(r->o);
    write_gradient(r, 1, 0, 1);
    write_gradient(r, 1, 2, 0);
    OK(cairn_step(r->o));
    OK(cairn__device_download(r->env->device, w, r->p[0]->data, sizeof(w)));
    for (size_t i = 0; i < MOST; i++) {
        const double g = r->m.g[0][i];
        assert_true(fabs(w[i] + 1e-3 * g / (fabs(g) + 2e-5)) <= 1e-5); /* eps beside clipped gradients */
    }
    OK(cairn__device_download(r->env->device, w, r->p[2]->data, sizes[2] * sizeof(w[0])));
    for (size_t i = 0; i < sizes[2]; i++) assert_true(w[i] == number(0, 2, i));
    end(r);
}

/* A direction so small that its inverse is no f32. */
static void lamb_moves_by_directions_that_are_subnormal(void **state) {
    struct cairn_lamb_options h = CAIRN_LAMB_OPTIONS_INIT;
    struct run *r = begin(*state, (cairn_dtype)0);
    h.nvlamb = CAIRN_ON;
    h.weight_decay = h.max_grad_norm = 0;
    h.lr = 0.5;
    h.eps = 1;
    OK(cairn_lamb_create(r->set, &h, &r->o));
    step(r, 1, 0x1p-140f);
    float w[MOST];
    double moved = 0;
    OK(cairn__device_download(r->env->device, w, r->p[0]->data, sizeof(w)));
    for (size_t i = 0; i < MOST; i++) moved += pow(w[i] - r->m.w[0][i], 2);
    assert_true(fabs(sqrt(moved) - 0.5 * norm_of(r->m.w[0], MOST)) <= 1e-6 * norm_of(r->m.w[0], MOST));
    end(r);
}

static void lamb_clips_all_groups_by_one_norm(void **state) {
    struct cairn_lamb_options h = CAIRN_LAMB_OPTIONS_INIT;
    struct run *r = begin(*state, (cairn_dtype)0);
    const size_t one[] = {0}, two[] = {2};
    OK(cairn_lamb_create_over(r->set, one, 1, &h, &r->o));
    h.max_grad_norm = 2;
    REFUSED(cairn_lamb_add_group(r->o, r->set, two, 1, &h), CAIRN_EINVAL, "max_grad_norm is 2, and 1 in group 0");
    assert_int_equal(cairn_optimizer_num_groups(r->o), 1);
    end(r);
}

static void lamb_names_what_is_out_of_range(void **state) {
    struct cairn_lamb_options h = CAIRN_LAMB_OPTIONS_INIT;
    struct run *r = begin(*state, (cairn_dtype)0);
    h.max_grad_norm = -1;
    REFUSED(cairn_lamb_create(r->set, &h, &r->o), CAIRN_EINVAL, "LAMB: max_grad_norm is -1");
    h.max_grad_norm = 1, h.eps = 0;
    REFUSED(cairn_lamb_create(r->set, &h, &r->o), CAIRN_EINVAL, "LAMB: eps is 0; it must be above 0");
    h.eps = 1e-6, h.beta1 = 1;
    REFUSED(cairn_lamb_create(r->set, &h, &r->o), CAIRN_EINVAL, "LAMB: beta1 is 1");
    end(r);
}

/* Steps are of weights that a bf16 can hold, and decided alike for every rounding. */
static void lamb_rounds_at_random_what_its_f32_weights_would_be(void **state) {
    struct cairn_lamb_options h = CAIRN_LAMB_OPTIONS_INIT;
    struct run *r = begin(*state, (cairn_dtype)0);
    OK(cairn__param_set_to_half(r->set, CAIRN_BF16, false, false));
    for (size_t p = 0; p < PARAMS; p++) r->p[p]->stochastic = true;
    uint16_t before[MOST], after[MOST];
    OK(cairn__device_download(r->env->device, before, r->p[0]->data, sizeof(before)));
    OK(cairn_lamb_create(r->set, &h, &r->o));
    cairn__optimizer_set_rounding(r->o, 7);
    for (int t = 1; t <= 20; t++) step(r, t, 1);
    OK(cairn__device_download(r->env->device, after, r->p[0]->data, sizeof(after)));
    size_t moved = 0;
    for (size_t i = 0; i < MOST; i++) moved += before[i] != after[i];
    assert_true(moved > MOST / 2); /* to nearest, steps of a thousandth move almost none */
    end(r);
}

/* ---- NovoGrad ---- */

static void novograd_model(struct model *m, const struct cairn_novograd_options *h, int t) {
    const bool averages = h->grad_averaging != CAIRN_OFF, corrects = h->bias_correction != CAIRN_OFF;
    const double c1 = corrects ? 1 - pow(h->beta1, t) : 1, c2 = corrects ? 1 - pow(h->beta2, t) : 1;
    for (size_t p = 0; p < PARAMS; p++) {
        const double decay = p < IN_GROUP_0 ? h->weight_decay : 0;
        double norm = norm_of(m->g[p], sizes[p]), *mean = &m->v[p][0];
        for (size_t i = 0; h->max_norm == CAIRN_ON && i < sizes[p]; i++) norm = fmax(i ? norm : 0, fabs(m->g[p][i]));
        if (t == 1) *mean = h->init_zero == CAIRN_ON ? 0 : norm;
        *mean = h->max_norm == CAIRN_ON ? h->beta2 * *mean + (1 - h->beta2) * norm
                                        : sqrt(h->beta2 * *mean * *mean + (1 - h->beta2) * norm * norm);
        const double d = *mean / sqrt(c2) + h->eps;
        for (size_t i = 0; i < sizes[p]; i++) {
            double g = (h->maximize == CAIRN_ON ? -1 : 1) * m->g[p][i];
            const bool inside = h->reg_inside_moment == CAIRN_ON;
            if (inside) g = g / d + decay * m->w[p][i];
            m->m[p][i] = h->beta1 * m->m[p][i] + (averages ? 1 - h->beta1 : 1) * g;
            m->w[p][i] -= h->lr * (inside ? m->m[p][i] / c1 : m->m[p][i] / c1 / d + decay * m->w[p][i]);
        }
    }
}

static void novograd_follows_its_double_model(void **state) {
    for (int variant = 0; variant < 6; variant++) {
        for (int d = 0; d < 3; d++) {
            struct cairn_novograd_options h = CAIRN_NOVOGRAD_OPTIONS_INIT, plain;
            struct run *r = begin(*state, halves[d]);
            h.weight_decay = 0.01;
            if (variant == 1) h.reg_inside_moment = CAIRN_ON, h.grad_averaging = CAIRN_OFF;
            if (variant == 2) h.init_zero = CAIRN_ON, h.beta2 = 0.98;
            if (variant == 3) h.bias_correction = CAIRN_OFF, h.lr = 1e-2;
            if (variant == 4) h.max_norm = CAIRN_ON, h.beta2 = 0.9;
            if (variant == 5) h.maximize = CAIRN_ON;
            plain = h, plain.weight_decay = 0;
            OK(cairn_novograd_create_over(r->set, group_0, 4, &h, &r->o));
            OK(cairn_novograd_add_group(r->o, r->set, group_1, 2, &plain));
            for (int t = 1; t <= steps_on(r->env); t++) {
                step(r, t, 1);
                novograd_model(&r->m, &h, t);
            }
            assert_follows(r);
            for (size_t p = 0; p < PARAMS; p++) {
                float mean;
                OK(cairn__device_download(r->env->device, &mean, r->o->arrays.moments[p].array[1], sizeof(mean)));
                assert_true(fabs((double)mean - r->m.v[p][0]) <= 3e-6 * r->m.v[p][0]);
            }
            end(r);
        }
    }
}

/* The mean is taken up by a group that comes later, and by a parameter that had no gradient. */
static void novograd_begins_with_the_first_gradient_there_is(void **state) {
    struct cairn_novograd_options h = CAIRN_NOVOGRAD_OPTIONS_INIT;
    struct run *r = begin(*state, (cairn_dtype)0);
    float mean;
    OK(cairn_novograd_create(r->set, &h, &r->o));
    for (int t = 1; t <= 3; t++) {
        cairn_zero_grad(r->o);
        write_gradient(r, t, 0, 1);
        if (t == 3) write_gradient(r, t, 2, 2);
        OK(cairn_step(r->o));
    }
    OK(cairn__device_download(r->env->device, &mean, r->o->arrays.moments[2].array[1], sizeof(mean)));
    const double norm = norm_of(r->m.g[2], sizes[2]);
    assert_true(fabs((double)mean - norm) <= 1e-6 * norm);
    end(r);
}

/* A gradient of 0 moves nothing, also where all norms so far are 0. */
static void novograd_stays_where_gradients_are_0(void **state) {
    struct cairn_novograd_options h = CAIRN_NOVOGRAD_OPTIONS_INIT;
    struct run *r = begin(*state, (cairn_dtype)0);
    float w[MOST];
    OK(cairn_novograd_create(r->set, &h, &r->o));
    for (int t = 1; t <= 3; t++) step(r, t, 0);
    OK(cairn__device_download(r->env->device, w, r->p[0]->data, sizeof(w)));
    for (size_t i = 0; i < MOST; i++) assert_true(w[i] == number(0, 0, i));
    end(r);
}

static void novograd_names_what_is_out_of_range(void **state) {
    struct cairn_novograd_options h = CAIRN_NOVOGRAD_OPTIONS_INIT;
    struct run *r = begin(*state, (cairn_dtype)0);
    h.eps = 0;
    REFUSED(cairn_novograd_create(r->set, &h, &r->o), CAIRN_EINVAL, "NovoGrad: eps is 0; it must be above 0");
    h.eps = 1e-8, h.beta2 = -1;
    REFUSED(cairn_novograd_create(r->set, &h, &r->o), CAIRN_EINVAL, "NovoGrad: beta2 is -1");
    end(r);
}

/* ---- LARC ---- */

static void larc_model(struct model *m, const struct cairn_larc_options *larc, const struct cairn_sgd_options *h,
                       int t) {
    for (size_t p = 0; p < PARAMS; p++) {
        const double w = norm_of(m->w[p], sizes[p]), g = norm_of(m->g[p], sizes[p]);
        const double r = larc->trust_coefficient * w / (g + h->weight_decay * w + larc->eps);
        const double a = larc->clip == CAIRN_OFF ? r : fmin(r / h->lr, 1);
        for (size_t i = 0; i < sizes[p]; i++) {
            double x = h->maximize == CAIRN_ON ? -m->g[p][i] : m->g[p][i];
            if (w != 0 && g != 0) x = (x + h->weight_decay * m->w[p][i]) * a;
            m->m[p][i] = t == 1 ? x : h->momentum * m->m[p][i] + (1 - h->dampening) * x;
            m->w[p][i] -= h->lr * (h->nesterov == CAIRN_ON ? x + h->momentum * m->m[p][i] : m->m[p][i]);
        }
    }
}

static void larc_on_sgd_follows_its_double_model(void **state) {
    for (int variant = 0; variant < 5; variant++) {
        for (int d = 0; d < 3; d++) {
            struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
            struct cairn_larc_options larc = CAIRN_LARC_OPTIONS_INIT;
            struct run *r = begin(*state, halves[d]);
            h.lr = 0.1, h.momentum = 0.9, h.weight_decay = 0.01;
            if (variant == 1) larc.clip = CAIRN_OFF;
            if (variant == 2) h.nesterov = CAIRN_ON, larc.trust_coefficient = 0.001;
            if (variant == 3) h.dampening = 0.5, h.maximize = CAIRN_ON, larc.trust_coefficient = 1; /* some are at 1 */
            if (variant == 4) h.decay_after_momentum = CAIRN_ON, h.weight_decay = 0.1;
            OK(cairn_sgd_create(r->set, &h, &r->o));
            OK(cairn_optimizer_set_larc(r->o, &larc));
            for (int t = 1; t <= steps_on(r->env); t++) {
                step(r, t, 1);
                larc_model(&r->m, &larc, &h, t);
            }
            assert_follows(r);
            end(r);
        }
    }
}

/* apex's clip mode with a local rate above lr is the optimizer as it is, but for weight decay, which every kind adds to
 * the gradient. */
static void larc_that_brings_nothing_down_leaves_the_update(void **state) {
    struct cairn_adam_options l2 = CAIRN_ADAM_OPTIONS_INIT, decoupled = CAIRN_ADAMW_OPTIONS_INIT;
    struct cairn_larc_options larc = CAIRN_LARC_OPTIONS_INIT;
    float want[MOST], got[MOST];
    larc.trust_coefficient = 1e6;
    l2.weight_decay = 0.125, decoupled.weight_decay = 0.125;
    for (int turn = 0; turn < 2; turn++) {
        struct run *r = begin(*state, (cairn_dtype)0);
        if (turn == 0) OK(cairn_adam_create(r->set, &l2, &r->o));
        else OK(cairn_adamw_create(r->set, &decoupled, &r->o));
        if (turn == 1) OK(cairn_optimizer_set_larc(r->o, &larc));
        for (int t = 1; t <= 5; t++) step(r, t, 1);
        OK(cairn__device_download(r->env->device, turn ? got : want, r->p[0]->data, sizeof(got)));
        end(r);
    }
    assert_memory_equal(got, want, sizeof(got));
}

static void larc_leaves_gradients_beside_a_norm_of_0(void **state) {
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    struct run *r = begin(*state, (cairn_dtype)0);
    static const float zeros[MOST];
    float w[MOST];
    h.lr = 0.5, h.weight_decay = 0.25;
    OK(cairn_sgd_create(r->set, &h, &r->o));
    OK(cairn_optimizer_set_larc(r->o, &(struct cairn_larc_options)CAIRN_LARC_OPTIONS_INIT));
    OK(cairn__device_upload(r->env->device, r->p[0]->data, zeros, sizeof(zeros)));
    cairn_zero_grad(r->o);
    write_gradient(r, 1, 0, 1);
    write_gradient(r, 1, 2, 0);
    OK(cairn_step(r->o));
    OK(cairn__device_download(r->env->device, w, r->p[0]->data, sizeof(w)));
    for (size_t i = 0; i < MOST; i++) assert_true(w[i] == -0.5f * number(1, 0, i));
    OK(cairn__device_download(r->env->device, w, r->p[2]->data, sizes[2] * sizeof(w[0])));
    for (size_t i = 0; i < sizes[2]; i++) assert_true(w[i] == number(0, 2, i)); /* not even decay */
    end(r);
}

static void larc_is_for_a_group_and_ends_with_null(void **state) {
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    struct run *r = begin(*state, (cairn_dtype)0);
    float w[MOST];
    h.lr = 0.5;
    OK(cairn_sgd_create_over(r->set, group_0, 4, &h, &r->o));
    OK(cairn_sgd_add_group(r->o, r->set, group_1, 2, &h));
    OK(cairn_optimizer_set_larc(r->o, &(struct cairn_larc_options)CAIRN_LARC_OPTIONS_INIT));
    OK(cairn_optimizer_set_group_larc(r->o, 1, NULL));
    step(r, 1, 1);
    OK(cairn__device_download(r->env->device, w, r->p[5]->data, sizes[5] * sizeof(w[0])));
    for (size_t i = 0; i < sizes[5]; i++) assert_true(w[i] == number(0, 5, i) - 0.5f * number(1, 5, i));
    OK(cairn__device_download(r->env->device, w, r->p[0]->data, sizeof(w)));
    assert_true(fabsf(w[0] - number(0, 0, 0)) < 0.1f * fabsf(number(1, 0, 0)));
    end(r);
}

static void larc_refuses_what_it_does_not_fit(void **state) {
    struct cairn_larc_options larc = CAIRN_LARC_OPTIONS_INIT;
    struct run *r = begin(*state, (cairn_dtype)0);
    OK(cairn_lamb_create(r->set, NULL, &r->o));
    REFUSED(cairn_optimizer_set_larc(r->o, &larc), CAIRN_EINVAL, "LAMB does not follow the size of its gradients");
    cairn_optimizer_destroy(&r->o);
    OK(cairn_sgd_create(r->set, NULL, &r->o));
    REFUSED(cairn_optimizer_set_group_larc(r->o, 1, &larc), CAIRN_EINVAL, "group is 1; it must be from 0 to 0");
    larc.trust_coefficient = 0;
    REFUSED(cairn_optimizer_set_larc(r->o, &larc), CAIRN_EINVAL, "trust_coefficient is 0");
    larc.trust_coefficient = 1, larc.eps = -1;
    REFUSED(cairn_optimizer_set_larc(r->o, &larc), CAIRN_EINVAL, "eps is -1");
    REFUSED(cairn_optimizer_set_larc(NULL, &larc), CAIRN_EINVAL, "optimizer is NULL");
    end(r);
}

/* ---- apex's ---- */

enum by { LAMB, NOVOGRAD, LARC };

/* Weights of 2 and -1 after each of two steps at a rate of 0.01 with gradients of (0.5, -0.25) and (-0.25, 1) and a
 * decay of 0.1, by the formulas of apex/optimizers/fused_{lamb,novograd}.py and apex/parallel/LARC.py at cb65b8ed^ (SGD
 * with a momentum of 0.9 below it), computed apart from Cairn. */
static const struct apex_case {
    enum by by;
    bool plain;      /* LAMB without decay; LARC that scales */
    bool other;      /* NVLAMB; NovoGrad with init_zero; LARC with nesterov and a trust of 0.001 */
    bool inside;     /* LAMB without adam_w_mode; NovoGrad with reg_inside_moment */
    bool unaveraged; /* and without bias correction */
    bool greatest;   /* NovoGrad's norm_type 0 */
    double weights[2][2];
} of_apex[] = {
    {LAMB, .weights = {{1.9835167175, -0.984890354138}, {1.9675038128, -1.00018812001}}},
    {LAMB, .plain = true, .other = true,
     .weights = {{1.98418859589, -0.984188627511}, {1.97424985448, -1.00398217654}}},
    {LAMB, .plain = true, .weights = {{1.99000002, -0.99000004}, {1.98722084504, -0.99553491948}}},
    {LAMB, .inside = true, .weights = {{1.98418860041, -0.984188622993}, {1.96612213135, -0.997001345596}}},
    {LAMB, .unaveraged = true, .weights = {{1.98416325019, -0.984214013955}, {1.97405854581, -1.00392322633}}},
    {NOVOGRAD, .weights = {{1.99771715729, -0.998858578644}, {1.99563535151, -0.998185563487}}},
    {NOVOGRAD, .inside = true, .unaveraged = true,
     .weights = {{1.98905572825, -0.994527864125}, {1.9816836069, -1.00647552978}}},
    {NOVOGRAD, .other = true, .weights = {{1.98905572825, -0.994527864125}, {1.98579732425, -0.998452060799}}},
    {NOVOGRAD, .greatest = true, .weights = {{1.99768377223, -0.998841886117}, {1.9955920558, -0.998207420778}}},
    {LARC, .weights = {{1.993, -0.9965}, {1.987207, -1.0023535}}},
    {LARC, .plain = true, .weights = {{1.99960000001, -0.999800000003}, {1.99925783737, -0.999940823038}}},
    {LARC, .other = true, .weights = {{1.99620000005, -0.998100000024}, {1.99475036794, -1.00033413376}}},
};

static cairn_switch on_if(bool on) {
    return on ? CAIRN_ON : CAIRN_OFF;
}

static cairn_status create_as_apex(const struct apex_case *c, cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_lamb_options lamb = CAIRN_LAMB_OPTIONS_INIT;
    struct cairn_novograd_options novograd = CAIRN_NOVOGRAD_OPTIONS_INIT;
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_larc_options larc = CAIRN_LARC_OPTIONS_INIT;
    lamb.lr = novograd.lr = sgd.lr = 0.01;
    novograd.weight_decay = sgd.weight_decay = 0.1;
    lamb.weight_decay = c->plain ? 0 : 0.1;
    lamb.nvlamb = on_if(c->other), lamb.decoupled = on_if(!c->inside);
    lamb.grad_averaging = lamb.bias_correction = on_if(!c->unaveraged);
    novograd.grad_averaging = novograd.bias_correction = on_if(!c->unaveraged);
    novograd.reg_inside_moment = on_if(c->inside), novograd.init_zero = on_if(c->other);
    novograd.max_norm = on_if(c->greatest);
    sgd.momentum = 0.9, sgd.nesterov = on_if(c->other);
    larc.clip = on_if(!c->plain);
    if (c->other) larc.trust_coefficient = 0.001;
    if (c->by == LAMB) return cairn_lamb_create(set, &lamb, out);
    if (c->by == NOVOGRAD) return cairn_novograd_create(set, &novograd, out);
    const cairn_status st = cairn_sgd_create(set, &sgd, out);
    return st == CAIRN_OK ? cairn_optimizer_set_larc(*out, &larc) : st;
}

static void two_steps_are_those_of_apex(void **state) {
    static const float begin[] = {2, -1}, gradients[2][2] = {{0.5f, -0.25f}, {-0.25f, 1}};
    cairn_env *env = *state;
    for (size_t i = 0; i < sizeof(of_apex) / sizeof(of_apex[0]); i++) {
        cairn_param_set *set = NULL;
        cairn_optimizer *o = NULL;
        struct cairn__param *p = NULL;
        OK(cairn__param_set_new(env, &set));
        OK(cairn__param_set_add(set, "w", 1, (int64_t[]){2}, false, &p));
        OK(cairn__device_upload(env->device, p->data, begin, sizeof(begin)));
        OK(create_as_apex(&of_apex[i], set, &o));
        for (int t = 0; t < 2; t++) {
            void *slot = NULL;
            float w[2];
            cairn_zero_grad(o);
            OK(cairn__grad_begin_write(p->gradient, &slot));
            OK(cairn__device_upload(env->device, slot, gradients[t], sizeof(gradients[t])));
            cairn__param_grad_ready(p);
            OK(cairn_step(o));
            OK(cairn__device_download(env->device, w, p->data, sizeof(w)));
            for (int k = 0; k < 2; k++) {
                if (fabs((double)w[k] - of_apex[i].weights[t][k]) > 0x1p-22)
                    fail_msg("case %zu, step %d: %.9g", i, t + 1, (double)w[k]);
            }
        }
        cairn_optimizer_destroy(&o);
        cairn_param_set_destroy(&set);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lamb_follows_its_double_model),
        cmocka_unit_test(lamb_moves_each_parameter_by_lr_times_its_norm),
        cmocka_unit_test(lamb_steps_by_lr_where_a_norm_is_0),
        cmocka_unit_test(lamb_moves_by_directions_that_are_subnormal),
        cmocka_unit_test(lamb_clips_all_groups_by_one_norm),
        cmocka_unit_test(lamb_names_what_is_out_of_range),
        cmocka_unit_test(lamb_rounds_at_random_what_its_f32_weights_would_be),
        cmocka_unit_test(novograd_follows_its_double_model),
        cmocka_unit_test(novograd_begins_with_the_first_gradient_there_is),
        cmocka_unit_test(novograd_stays_where_gradients_are_0),
        cmocka_unit_test(novograd_names_what_is_out_of_range),
        cmocka_unit_test(larc_on_sgd_follows_its_double_model),
        cmocka_unit_test(larc_that_brings_nothing_down_leaves_the_update),
        cmocka_unit_test(larc_leaves_gradients_beside_a_norm_of_0),
        cmocka_unit_test(larc_is_for_a_group_and_ends_with_null),
        cmocka_unit_test(larc_refuses_what_it_does_not_fit),
        cmocka_unit_test(two_steps_are_those_of_apex),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
