/* Models with several parameters, of which a loss uses some: at every level the gradient of part k is exactly the k-th
 * piece of the input. Tests compare several ranks with one rank that is given the average. */
#ifndef TESTS_DDP_PARTS_H
#define TESTS_DDP_PARTS_H

#include "../ranks.h"
#include "comm/group_backend.h"
#include "core/dtype.h"
#include "core/philox.h"
#include "nn/module.h"
#include "optim/optim.h"

enum { PARTS = 4, PART = 19, ALL_PARTS = (1 << PARTS) - 1 };

struct parts {
    unsigned used; /* bit k: the loss has part k */
    cairn_tensor *part[PARTS];
};

static inline cairn_tensor *parts_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct parts *p = context;
    cairn_tensor *loss = NULL;
    for (int k = 0; k < PARTS; k++) {
        if (!(p->used >> k & 1)) continue;
        cairn_tensor *one = cairn_sum(cairn_mul(cairn_slice(inputs[0], 0, k * PART, (k + 1) * PART, 1), p->part[k]));
        loss = loss ? cairn_add(loss, one) : one;
    }
    return loss;
}

static const struct cairn__module_kind parts_kind = {.name = "Parts", .forward = parts_forward};

/* NULL on error. Part 1 belongs to a normalisation layer. */
static inline cairn_module *make_parts(cairn_env *env) {
    cairn_module *module = NULL;
    if (cairn__module_create(env, &parts_kind, sizeof(struct parts), &module) != CAIRN_OK) return NULL;
    struct parts *p = cairn__module_context(module);
    p->used = ALL_PARTS;
    for (int k = 0; k < PARTS; k++) {
        char name[16];
        snprintf(name, sizeof(name), "part%d", k);
        if (cairn__module_add_param(module, name, 1, (int64_t[]){PART}, k == 1, &p->part[k]) != CAIRN_OK) return NULL;
        float *data = cairn_module_params(module)->params[k]->data;
        for (int i = 0; i < PART; i++) data[i] = (float)((k * 5 + i * 3) % 9 - 4) / 4 + 0x1p-12f;
    }
    return module;
}

static inline void use_parts(cairn_module *module, unsigned used) {
    ((struct parts *)cairn__module_context(module))->used = used;
}

/* ---- trainings ---- */

enum parts_kind_of_step { BY_SGD, BY_ADAMW, KINDS_OF_STEP };

struct trained {
    cairn_module *model;
    struct cairn_param_set *set;
    cairn_optimizer *optimizer;
    amp_context *amp;
    ddp_context *net; /* NULL = no ddp */
    cairn_tensor *x;
};

static inline cairn_status parts_optimizer(struct trained *t, enum parts_kind_of_step kind) {
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_adam_options adam = CAIRN_ADAM_OPTIONS_INIT;
    sgd.lr = 0x1p-4;
    sgd.momentum = 0.75;
    sgd.weight_decay = adam.weight_decay = 0.125;
    adam.lr = 0x1p-6;
    return kind == BY_SGD ? cairn_sgd_create(t->set, &sgd, &t->optimizer)
                          : cairn_adamw_create(t->set, &adam, &t->optimizer);
}

/* Creates the training without its ddp context. */
static inline char *parts_begin(struct trained *t, cairn_env *env, const struct amp_options *amp,
                                enum parts_kind_of_step kind) {
    *t = (struct trained){.model = make_parts(env)};
    EXPECT(t->model);
    t->set = cairn_module_params(t->model);
    t->x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(PARTS * PART));
    EXPECT_OK(parts_optimizer(t, kind));
    EXPECT_OK(amp_initialize(env, t->model, t->optimizer, amp, &t->amp));
    return NULL;
}

static inline void parts_end(struct trained *t) {
    ddp_destroy(&t->net);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
    cairn_tensor_destroy(&t->x);
}

static inline cairn_status parts_backward(struct trained *t, const float *gradient, unsigned used) {
    use_parts(t->model, used);
    cairn_status st = cairn_tensor_write(t->x, gradient, PARTS * PART);
    if (st != CAIRN_OK) return st;
    return amp_backward(t->amp, t->net ? ddp_forward(t->net, t->x) : cairn_module_forward(t->model, t->x),
                        t->optimizer);
}

/* ---- numbers ---- */

/* Small integers: sums over micro-batches and averages over up to 8 ranks are exact in f16, and in bf16 over up to
 * 4. */
static inline float parts_number(int rank, int step, int micro, int i) {
    return (float)(cairn__philox(11, (uint64_t)i, (uint64_t)(rank * 1000 + step * 10 + micro)).word[0] % 5) - 2;
}

static inline void parts_numbers(int rank, int step, int micro, float *gradient) {
    for (int i = 0; i < PARTS * PART; i++) gradient[i] = parts_number(rank, step, micro, i);
}

/* ---- all state that training changes ---- */

struct remembered {
    float value[PARTS][PART], master[PARTS][PART], moment[2][PARTS][PART];
    double scale;
    int64_t steps, skipped;
};

static inline void remember(const struct trained *t, struct remembered *r) {
    memset(r, 0, sizeof(*r));
    for (size_t k = 0; k < PARTS; k++) {
        const struct cairn__param *p = t->set->params[k];
        for (size_t i = 0; i < PART; i++) {
            const char *at = (const char *)p->data + i * cairn_dtype_nbytes(p->dtype);
            r->value[k][i] = cairn__dtype(p->dtype)->to_f32(at);
        }
        const struct cairn__shard shard = cairn__param_shard(p); /* zeros outside the rank's shard */
        if (p->master) memcpy(r->master[k] + shard.first, p->master, shard.n * sizeof(float));
        for (int m = 0; m < 2; m++) {
            const float *moment = t->optimizer->arrays.moments[k].array[m];
            if (moment) memcpy(r->moment[m][k] + shard.first, moment, shard.n * sizeof(float));
        }
    }
    r->scale = amp_scaler_get_scale(amp_scaler_of(t->amp, 0));
    r->steps = cairn_optimizer_steps(t->optimizer);
    r->skipped = cairn_optimizer_skipped(t->optimizer);
}

static inline bool is_as_remembered(const struct trained *t, const struct remembered *want) {
    struct remembered now;
    remember(t, &now);
    return memcmp(&now, want, sizeof(now)) == 0;
}

/* ---- levels ---- */

#define PARTS_LEVEL(level, half)                                                                                     \
    {                                                                                                                \
        .struct_size = sizeof(struct amp_options), .opt_level = level, .half_type = half, .loss_scale = AMP_DYNAMIC, \
        .scaler = &parts_scaler, .verbosity = -1                                                                     \
    }
static const struct amp_scaler_options parts_scaler = {.struct_size = sizeof(struct amp_scaler_options),
                                                       .init_scale = 64,
                                                       .min_scale = 1,
                                                       .growth_interval = 1000};
static const struct amp_options parts_levels[] = {PARTS_LEVEL(AMP_O0, CAIRN_F16),  PARTS_LEVEL(AMP_O1, CAIRN_F16),
                                                  PARTS_LEVEL(AMP_O1, CAIRN_BF16), PARTS_LEVEL(AMP_O2, CAIRN_F16),
                                                  PARTS_LEVEL(AMP_O2, CAIRN_BF16), PARTS_LEVEL(AMP_O3, CAIRN_F16),
                                                  PARTS_LEVEL(AMP_O3, CAIRN_BF16)};
enum { PARTS_LEVELS = sizeof(parts_levels) / sizeof(parts_levels[0]) };

static inline int parts_be_quiet(void **state) {
    (void)state;
    cairn_set_log(log_nothing, NULL); /* the tests overflow often on purpose */
    return 0;
}

#endif
