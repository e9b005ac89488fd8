/* A model whose gradients equal its inputs: the loss sums the products of each parameter and an input of the same
 * shape. All weights are 0, and so is the loss. */
#ifndef TESTS_DDP_GIVEN_GRADS_H
#define TESTS_DDP_GIVEN_GRADS_H

#include <math.h>

#include "../ranks.h"
#include "core/dtype.h"
#include "core/philox.h"
#include "nn/module.h"

enum { GIVEN = 5, GIVEN_MOST = 24 * 20 };

struct given_shape {
    const char *name;
    int ndim;
    int64_t shape[3], rows, cols;
};

/* PowerSGD never compresses the last two. */
static const struct given_shape given_shapes[GIVEN] = {{"wide", 2, {12, 30, 0}, 12, 30},
                                                       {"tall", 2, {24, 20, 0}, 24, 20},
                                                       {"cube", 3, {16, 3, 6}, 16, 18},
                                                       {"bias", 1, {30, 0, 0}, 30, 1},
                                                       {"small", 2, {2, 3, 0}, 2, 3}};

struct given {
    cairn_tensor *param[GIVEN];
    unsigned used; /* bit k: the loss has parameter k */
};

static inline size_t given_n(int k) {
    return (size_t)(given_shapes[k].rows * given_shapes[k].cols);
}

static inline cairn_tensor *given_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module;
    const struct given *g = context;
    cairn_tensor *loss = NULL;
    for (int k = 0; k < count; k++) {
        if (!(g->used >> k & 1)) continue;
        cairn_tensor *one = cairn_sum(cairn_mul(inputs[k], g->param[k]));
        loss = loss ? cairn_add(loss, one) : one;
    }
    return loss;
}

static const struct cairn__module_kind given_kind = {.name = "Given", .forward = given_forward, .max_inputs = GIVEN};

/* Returns NULL on error. */
static inline cairn_module *make_given(cairn_env *env) {
    cairn_module *module = NULL;
    if (cairn__module_create(env, &given_kind, sizeof(struct given), &module) != CAIRN_OK) return NULL;
    struct given *g = cairn__module_context(module);
    g->used = (1u << GIVEN) - 1;
    for (int k = 0; k < GIVEN; k++) {
        const struct given_shape *s = &given_shapes[k];
        if (cairn__module_add_param(module, s->name, s->ndim, s->shape, false, &g->param[k]) != CAIRN_OK) return NULL;
        struct cairn__param *p = cairn_module_params(module)->params[k];
        env->device->passes->fill(env->device, p->dtype, p->data, p->n, 0.0f);
    }
    return module;
}

struct given_inputs {
    cairn_tensor *of[GIVEN];
};

static inline char *make_given_inputs(cairn_env *env, struct given_inputs *x) {
    for (int k = 0; k < GIVEN; k++) {
        x->of[k] = cairn_zeros(env, CAIRN_F32, given_shapes[k].ndim, given_shapes[k].shape);
        EXPECT(x->of[k]);
    }
    return NULL;
}

static inline void end_given_inputs(struct given_inputs *x) {
    for (int k = 0; k < GIVEN; k++) cairn_tensor_destroy(&x->of[k]);
}

/* Fills the gradients of one rank. */
struct given_values {
    float of[GIVEN][GIVEN_MOST];
};

static inline char *read_given(cairn_env *env, cairn_module *model, int k, float *out) {
    const struct cairn__param *p = cairn_module_params(model)->params[k];
    char raw[GIVEN_MOST * sizeof(float)];
    EXPECT_OK(
        cairn__device_download(env->device, raw, cairn__grad_memory(p->gradient), p->n * cairn_dtype_nbytes(p->dtype)));
    for (size_t i = 0; i < p->n; i++) out[i] = cairn__dtype(p->dtype)->to_f32(raw + i * cairn_dtype_nbytes(p->dtype));
    return NULL;
}

/* A few directions with halving lengths, which vary by rank and step, plus noise. */
static inline float given_number(int directions, int rank, int step, int k, int64_t i, int64_t j) {
    const struct given_shape *s = &given_shapes[k];
    const int64_t at = i * s->cols + j;
    double x = cairn__philox(5, (uint64_t)at, (uint64_t)(rank * 1000 + step * 10 + k)).word[0] * 0x1p-32 - 0.5;
    x *= 0.125;
    for (int d = 0; d < directions; d++) {
        const double length = 8 * exp2(-d) * (1 + 0.25 * sin(step + rank + 2 * d + k));
        x += length * cos(M_PI * ((double)i + 0.5) * d / (double)s->rows) *
             cos(M_PI * ((double)j + 0.5) * (d + 1) / (double)s->cols);
    }
    return (float)x;
}

static inline void given_gradients(int directions, int rank, int step, struct given_values *g) {
    for (int k = 0; k < GIVEN; k++) {
        const int64_t cols = given_shapes[k].cols;
        for (int64_t at = 0; at < (int64_t)given_n(k); at++)
            g->of[k][at] = given_number(directions, rank, step, k, at / cols, at % cols);
    }
}

#endif
