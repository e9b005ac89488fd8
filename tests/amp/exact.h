/* Linear models whose scaled gradients are small integers times a power of two, which every level computes exactly; and
 * a reference SGD over the same numbers, in plain loops without amp. */
#ifndef TESTS_EXACT_H
#define TESTS_EXACT_H

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
#include "core/dtype.h"
#include "../check.h"
#include "../plant.h"

enum { IN = 4, OUT = 3, BATCH = 2, MODELS = 3, LOSSES = 3, PARTS = 2 * MODELS, MOST = IN * OUT };

struct exact_level {
    const char *name;
    amp_opt_level level;
    cairn_dtype half;
    cairn_dtype weights; /* type that updated weights are rounded to; f32 with masters */
};
static const struct exact_level exact_levels[] = {
    {"O0", AMP_O0, CAIRN_F16, CAIRN_F32},        {"O1 f16", AMP_O1, CAIRN_F16, CAIRN_F32},
    {"O1 bf16", AMP_O1, CAIRN_BF16, CAIRN_F32},  {"O2 f16", AMP_O2, CAIRN_F16, CAIRN_F32},
    {"O2 bf16", AMP_O2, CAIRN_BF16, CAIRN_F32},  {"O3 f16", AMP_O3, CAIRN_F16, CAIRN_F16},
    {"O3 bf16", AMP_O3, CAIRN_BF16, CAIRN_BF16},
};
enum { EXACT_LEVELS = sizeof(exact_levels) / sizeof(exact_levels[0]) };

static inline float exact_round(cairn_dtype to, float x) {
    unsigned char bits[8];
    cairn__dtype(to)->from_f32(bits, x);
    return cairn__dtype(to)->to_f32(bits);
}

/* ---- the numbers ---- */

static inline float exact_input(int loss, int model, int step, int row, int i) {
    return (float)((7 * loss + 3 * model + 5 * step + 2 * row + i) % 5 - 2);
}

static inline float exact_weight_of_output(int loss, int o) {
    static const float c[] = {1, -1, 2};
    return c[(loss + o) % 3];
}

/* Needs more bits than bf16, and more than f16. */
static inline float exact_start(int part, int i) {
    return (float)((part * 5 + i * 3) % 9 - 4) / 4 + 0x1p-12f;
}

static inline size_t part_size(int part) {
    return part % 2 ? OUT : IN * OUT;
}

/* d(loss)/d(element i of a part): part 2m is model m's weight, 2m + 1 its bias. */
static inline float exact_gradient(int loss, int part, int step, int i) {
    const int o = part % 2 ? i : i / IN;
    float sum = 0;
    for (int row = 0; row < BATCH; row++) sum += part % 2 ? 1 : exact_input(loss, part / 2, step, row, i % IN);
    return sum * exact_weight_of_output(loss, o);
}

/* ---- plain SGD ---- */

struct plain {
    float w[PARTS][MOST], buffer[PARTS][MOST], grad[PARTS][MOST];
    bool started[PARTS];
    double lr[PARTS], momentum;
    cairn_dtype weights;
};

static inline void plain_begin(struct plain *p, cairn_dtype weights, double momentum) {
    memset(p, 0, sizeof(*p));
    p->weights = weights;
    p->momentum = momentum;
    for (int part = 0; part < PARTS; part++) {
        p->lr[part] = 0.125;
        for (size_t i = 0; i < part_size(part); i++) p->w[part][i] = exact_round(weights, exact_start(part, (int)i));
    }
}

static inline void plain_add(struct plain *p, int loss, unsigned models, int step) {
    for (int part = 0; part < PARTS; part++) {
        for (size_t i = 0; i < part_size(part) && models >> part / 2 & 1; i++)
            p->grad[part][i] += exact_gradient(loss, part, step, (int)i);
    }
}

static inline void plain_step(struct plain *p, unsigned parts) {
    for (int part = 0; part < PARTS; part++) {
        if (!(parts >> part & 1)) continue;
        for (size_t i = 0; i < part_size(part); i++) {
            float *b = &p->buffer[part][i];
            *b = p->started[part] ? (float)p->momentum * *b + p->grad[part][i] : p->grad[part][i];
            p->w[part][i] = exact_round(p->weights, p->w[part][i] - (float)p->lr[part] * *b);
        }
        p->started[part] = true;
    }
}

/* ---- models ---- */

static inline cairn_module *exact_model(cairn_env *env, int m) {
    cairn_module *model = cairn_linear(env, IN, OUT);
    assert_non_null(model);
    for (int k = 0; k < 2; k++) {
        cairn_param p;
        OK(cairn_param_set_get(cairn_module_params(model), (size_t)k, &p));
        for (size_t i = 0; i < part_size(k); i++) ((float *)p.data)[i] = exact_start(2 * m + k, (int)i);
        OK(cairn_param_changed(cairn_module_params(model), (size_t)k, 0));
    }
    return model;
}

/* One model's part of a loss; x and c are separate leaves. */
static inline cairn_tensor *exact_loss(cairn_module *model, cairn_tensor *x, cairn_tensor *c) {
    return cairn_sum(cairn_mul(cairn_module_forward(model, x), c));
}

static inline void exact_write_input(cairn_tensor *x, int loss, int model, int step) {
    float values[BATCH * IN];
    for (int i = 0; i < BATCH * IN; i++) values[i] = exact_input(loss, model, step, i / IN, i % IN);
    OK(cairn_tensor_write(x, values, BATCH * IN));
}

static inline void exact_write_outputs(cairn_tensor *c, int loss) {
    float values[OUT];
    for (int o = 0; o < OUT; o++) values[o] = exact_weight_of_output(loss, o);
    OK(cairn_tensor_write(c, values, OUT));
}

/* Checks that masters (or weights without masters) equal want, and that half weights are want rounded. */
static inline void assert_exact_part(const char *where, cairn_param_set *set, int k, const float *want) {
    const struct cairn__param *p = set->params[k];
    const float *master = cairn_param_master(set, (size_t)k);
    for (size_t i = 0; i < p->n; i++) {
        const float value = cairn__dtype(p->dtype)->to_f32((const char *)p->data + i * cairn_dtype_nbytes(p->dtype));
        if (master && memcmp(&master[i], &want[i], sizeof(float)))
            fail_msg("%s: master %s[%zu] is %.9g, not %.9g", where, p->name, i, (double)master[i], (double)want[i]);
        if (value != exact_round(p->dtype, want[i]))
            fail_msg("%s: weight %s[%zu] is %.9g for %.9g", where, p->name, i, (double)value, (double)want[i]);
    }
}

#endif
