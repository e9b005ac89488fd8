/* A training that is ended and begun anew: 40 steps, or 17, their state kept in memory or in files, other objects, and
 * 23 steps, have the same bits of state and losses. */
#ifndef TESTS_RESUME_H
#define TESTS_RESUME_H

#include <math.h>

#include "cairn/cairn.h"
#include "device/env.h"
#include "state_in_memory.h"

enum { RESUME_STEPS = 40, RESUME_AT = 17, RESUME_N = 51, RESUME_IN = 5, RESUME_OUT = 3, RESUME_BATCH = 4 };

enum resume_by { BY_SGD_ALONE, BY_SGD_MOMENTUM, BY_ADAM, BY_ADAMW };

/* What one differs in; zeros leave out. */
struct resume_case {
    const char *name;
    enum resume_by by;
    amp_opt_level level; /* 0 = no amp */
    cairn_dtype half;
    const struct amp_scaler_options *scaler;
    bool stochastic;
    bool statistics, dropout; /* layers between */
    bool groups;              /* by rule, the second with a schedule of its own */
    const struct cairn_schedule_options *schedule;
    bool plateau;
    bool clips;
    bool accumulates;              /* two backwards a step */
    bool freezes;                  /* one from the beginning to step 20, another from 6 to 25 */
    unsigned overflows;            /* bit k: at step RESUME_AT - 2 + k */
    bool is_explicit;              /* a scaler by itself, without a context */
    const struct ddp_options *ddp; /* several ranks */
    bool same_data;                /* every rank has every example */
};

struct resume_run {
    cairn_env *env;
    const struct resume_case *c;
    cairn_module *net;
    cairn_optimizer *optimizer;
    amp_context *amp;
    amp_scaler *scaler;
    ddp_context *ddp;
    cairn_sampler *sampler;
    cairn_tensor *x, *y;
    cairn_stateful parts[6];
    size_t num_parts;
};

/* ---- making ---- */

static inline cairn_module *resume_net(cairn_env *env, const struct resume_case *c) {
    cairn_module *layers[8];
    int n = 0;
    layers[n++] = cairn_linear(env, RESUME_IN, 8);
    if (c->statistics) layers[n++] = cairn_batch_norm(env, 8, 0, 0);
    layers[n++] = cairn_activation(env, cairn_relu);
    if (c->dropout) layers[n++] = cairn_dropout(env, 0.25);
    layers[n++] = cairn_linear(env, 8, 7);
    layers[n++] = cairn_activation(env, cairn_relu);
    layers[n++] = cairn_linear(env, 7, RESUME_OUT);
    return cairn_sequential(env, n, layers);
}

static inline cairn_status resume_optimizer(struct resume_run *r) {
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_adam_options adam = CAIRN_ADAM_OPTIONS_INIT;
    cairn_param_set *set = cairn_module_params(r->net);
    const bool is_sgd = r->c->by <= BY_SGD_MOMENTUM;
    sgd.lr = 0.05;
    sgd.momentum = r->c->by == BY_SGD_MOMENTUM ? 0.9 : 0;
    adam.lr = 0.01;
    sgd.weight_decay = adam.weight_decay = 0.01;
    if (r->c->groups) {
        const cairn_group_rule rules[] = {{.are = CAIRN_PARAMS_MATRICES,
                                           .sgd = is_sgd ? &sgd : NULL,
                                           .adam = is_sgd ? NULL : &adam},
                                          {.schedule = cairn_cosine_schedule(.total_steps = 50, .warmup_steps = 6)}};
        return is_sgd                ? cairn_sgd_create_grouped(set, rules, 2, &r->optimizer)
               : r->c->by == BY_ADAM ? cairn_adam_create_grouped(set, rules, 2, &r->optimizer)
                                     : cairn_adamw_create_grouped(set, rules, 2, &r->optimizer);
    }
    return is_sgd                ? cairn_sgd_create(set, &sgd, &r->optimizer)
           : r->c->by == BY_ADAM ? cairn_adam_create(set, &adam, &r->optimizer)
                                 : cairn_adamw_create(set, &adam, &r->optimizer);
}

static inline cairn_status resume_amp(struct resume_run *r) {
    const struct resume_case *c = r->c;
    if (c->is_explicit) return amp_scaler_create(r->env, c->scaler, &r->scaler);
    if (!c->level) return CAIRN_OK;
    return amp_initialize(r->env, r->net, r->optimizer,
                          amp_options(.opt_level = c->level, .half_type = c->half, .scaler = c->scaler,
                                      .stochastic_rounding = c->stochastic ? CAIRN_ON : CAIRN_OFF, .rounding_seed = 5,
                                      .verbosity = -1),
                          &r->amp);
}

static inline void resume_list_parts(struct resume_run *r) {
    r->num_parts = 0;
    r->parts[r->num_parts++] = cairn_module_stateful(r->net);
    r->parts[r->num_parts++] = cairn_optimizer_stateful(r->optimizer);
    r->parts[r->num_parts++] = cairn_sampler_stateful(r->sampler);
    if (r->amp) r->parts[r->num_parts++] = amp_stateful(r->amp);
    if (r->scaler) r->parts[r->num_parts++] = amp_scaler_stateful(r->scaler);
    r->parts[r->num_parts++] = cairn__env_stateful(r->env);
    if (r->ddp) r->parts[r->num_parts++] = ddp_stateful(r->ddp); /* the last: train_rest */
}

/* first: the step that comes next. */
static inline char *resume_begin(struct resume_run *r, cairn_env *env, const struct resume_case *c, int first) {
    *r = (struct resume_run){.env = env, .c = c};
    cairn_manual_seed(env, first ? 99 : 7); /* a load does not depend on it */
    r->net = resume_net(env, c);
    EXPECT(r->net);
    if (c->freezes && first == 0) EXPECT_OK(cairn_param_set_require_grad(cairn_module_params(r->net), "0.*", 0));
    EXPECT_OK(resume_optimizer(r));
    if (c->schedule) EXPECT_OK(cairn_optimizer_set_schedule(r->optimizer, c->schedule));
    struct cairn_plateau_options plateau = CAIRN_PLATEAU_OPTIONS_INIT;
    plateau.patience = 2;
    plateau.threshold = 0.5;
    plateau.factor = 0.5;
    if (c->plateau) EXPECT_OK(cairn_optimizer_set_plateau(r->optimizer, &plateau));
    EXPECT_OK(resume_amp(r));
    if (cairn_env_size(env) > 1 || c->ddp) EXPECT_OK(ddp_create(r->net, cairn_env_group(env), c->ddp, &r->ddp));
    EXPECT_OK(cairn_distributed_sampler_create(RESUME_N, c->same_data ? 0 : cairn_env_rank(env),
                                               c->same_data ? 1 : cairn_env_size(env),
                                               cairn_sampler_options(.seed = 21), &r->sampler));
    r->x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(RESUME_BATCH, RESUME_IN));
    r->y = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(RESUME_BATCH, RESUME_OUT));
    EXPECT(r->x && r->y);
    resume_list_parts(r);
    return NULL;
}

static inline void resume_end(struct resume_run *r) {
    ddp_destroy(&r->ddp);
    amp_destroy(&r->amp);
    cairn_optimizer_destroy(&r->optimizer);
    amp_scaler_destroy(&r->scaler);
    cairn_module_destroy(&r->net);
    cairn_sampler_destroy(&r->sampler);
    cairn_tensor_destroy(&r->x);
    cairn_tensor_destroy(&r->y);
}

/* ---- a step ---- */

static inline float resume_number(int64_t example, int64_t k) {
    return (float)((example * 37 + k * 101 + example * k) % 29 - 14) / 10;
}

/* An epoch that is over is followed by the next one. */
static inline char *resume_batch(struct resume_run *r) {
    int64_t examples[RESUME_BATCH];
    float x[RESUME_BATCH * RESUME_IN], y[RESUME_BATCH * RESUME_OUT];
    if (cairn_sampler_length(r->sampler) - cairn_sampler_position(r->sampler) < RESUME_BATCH)
        EXPECT_OK(cairn_sampler_set_epoch(r->sampler, cairn_sampler_epoch(r->sampler) + 1));
    EXPECT(cairn_sampler_next(r->sampler, examples, RESUME_BATCH) == RESUME_BATCH);
    for (int b = 0; b < RESUME_BATCH; b++) {
        for (int k = 0; k < RESUME_IN; k++) x[b * RESUME_IN + k] = resume_number(examples[b], k);
        for (int k = 0; k < RESUME_OUT; k++) y[b * RESUME_OUT + k] = resume_number(examples[b] + 3, k + 7);
    }
    EXPECT_OK(cairn_tensor_write(r->x, x, RESUME_BATCH * RESUME_IN));
    EXPECT_OK(cairn_tensor_write(r->y, y, RESUME_BATCH * RESUME_OUT));
    return NULL;
}

/* Of so large a loss the gradients overflow, in every type. */
static inline char *resume_backward(struct resume_run *r, bool overflows, float *value) {
    PASS(resume_batch(r));
    cairn_tensor *out = r->ddp ? ddp_forward(r->ddp, r->x) : cairn_module_forward(r->net, r->x);
    cairn_tensor *loss = cairn_mse_loss(out, r->y);
    *value = cairn_tensor_item(loss);
    EXPECT(isfinite(*value));
    if (overflows) loss = cairn_mul_scalar(cairn_mul_scalar(loss, 1e38), 1e3);
    if (r->amp) {
        EXPECT_OK(amp_backward(r->amp, loss, r->optimizer));
    } else {
        EXPECT_OK(cairn_backward(r->scaler ? amp_scaler_scale(r->scaler, loss) : loss));
    }
    return NULL;
}

static inline char *resume_freeze(struct resume_run *r, int step) {
    cairn_param_set *set = cairn_module_params(r->net);
    const size_t last = cairn_param_set_count(set) - 1;
    if (step == 6) EXPECT_OK(cairn_param_require_grad(set, last, 0));
    if (step == 20) EXPECT_OK(cairn_param_set_require_grad(set, "0.*", 1));
    if (step == 25) EXPECT_OK(cairn_param_require_grad(set, last, 1));
    return NULL;
}

static inline char *resume_step(struct resume_run *r, int step, float *loss) {
    const struct resume_case *c = r->c;
    const int behind = step - (RESUME_AT - 2);
    const bool overflows = behind >= 0 && behind < 8 && (c->overflows >> behind & 1);
    if (c->freezes) PASS(resume_freeze(r, step));
    cairn_zero_grad(r->optimizer);
    PASS(resume_backward(r, overflows, loss));
    if (c->accumulates) PASS(resume_backward(r, false, loss));
    if (c->clips) EXPECT_OK(cairn_clip_grad_norm(r->optimizer, 0.5, NULL));
    EXPECT_OK(r->scaler ? amp_scaler_step(r->scaler, r->optimizer, NULL) : cairn_step(r->optimizer));
    if (r->scaler) EXPECT_OK(amp_scaler_update(r->scaler));
    EXPECT_OK(cairn_env_synchronize(r->env));
    if (c->level || r->scaler) EXPECT(cairn_optimizer_step_skipped(r->optimizer) == overflows);
    if (c->plateau) EXPECT_OK(cairn_optimizer_report_metric(r->optimizer, (double)*loss, NULL));
    return NULL;
}

/* ---- comparing ---- */

/* The weights that forward reads, which a master is listed in the place of. */
static inline uint64_t resume_weights(const struct resume_run *r) {
    uint64_t hash = 14695981039346656037u;
    cairn_param_set *set = cairn_module_params(r->net);
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        size_t nbytes = 1;
        if (cairn_param_set_get(set, i, &p) != CAIRN_OK) return 0;
        for (int k = 0; k < p.ndim; k++) nbytes *= (size_t)p.shape[k];
        nbytes *= cairn_dtype_nbytes(p.dtype);
        unsigned char *bytes = malloc(nbytes);
        if (cairn__device_download(r->env->device, bytes, p.data, nbytes) != CAIRN_OK) return 0;
        for (size_t k = 0; k < nbytes; k++) hash = (hash ^ bytes[k]) * 1099511628211u;
        free(bytes);
    }
    return hash;
}

/* Where states go through files, too; NULL = they are kept in memory alone. */
static const char *resume_folder;

static inline char *open_state(const struct resume_run *r, cairn_state **out) {
    EXPECT_OK(cairn_state_create(r->env, out));
    for (size_t i = 0; i < r->num_parts; i++) {
        char name[32];
        snprintf(name, sizeof(name), "part %zu", i);
        EXPECT_OK(cairn_state_add(*out, name, r->parts[i]));
    }
    return NULL;
}

static inline char *save_to_files(const struct resume_run *r, const char *folder, int64_t step) {
    cairn_state *state;
    PASS(open_state(r, &state));
    EXPECT_OK(cairn_state_save(state, folder, step, NULL));
    cairn_state_destroy(&state);
    return NULL;
}

static inline char *load_from_files(const struct resume_run *r, const char *folder, int64_t step) {
    cairn_state *state;
    int64_t got = -1;
    PASS(open_state(r, &state));
    EXPECT_OK(cairn_state_load_latest(state, folder, NULL, &got));
    EXPECT(got == step);
    cairn_state_destroy(&state);
    return NULL;
}

struct resumed {
    struct kept_state last;
    uint64_t weights;
    float losses[RESUME_STEPS];
    double lr;
    int64_t steps, skipped;
    int was_skipped;
};

static inline char *resume_finish(struct resume_run *r, struct resumed *out) {
    out->weights = resume_weights(r);
    out->lr = cairn_optimizer_step_lr(r->optimizer, 0);
    return keep_state(&out->last, r->parts, r->num_parts);
}

static inline char *train_whole(cairn_env *env, const struct resume_case *c, struct resumed *out,
                                struct kept_state *at) {
    struct resume_run r;
    PASS(resume_begin(&r, env, c, 0));
    for (int i = 0; i < RESUME_STEPS; i++) {
        if (i == RESUME_AT) { /* what is kept changes nothing */
            PASS(keep_state(at, r.parts, r.num_parts));
            if (resume_folder) PASS(save_to_files(&r, resume_folder, i));
            out->steps = cairn_optimizer_steps(r.optimizer);
            out->skipped = cairn_optimizer_skipped(r.optimizer);
            out->was_skipped = cairn_optimizer_step_skipped(r.optimizer);
        }
        PASS(resume_step(&r, i, &out->losses[i]));
    }
    PASS(resume_finish(&r, out));
    resume_end(&r);
    return NULL;
}

/* forwards: of these, made before the load. */
static inline char *train_rest(cairn_env *env, const struct resume_case *c, const struct kept_state *at, int forwards,
                               const struct resumed *want, struct resumed *out) {
    struct resume_run r;
    float loss = 0;
    struct kept_state again = {.count = 0};
    PASS(resume_begin(&r, env, c, RESUME_AT));
    for (int i = 0; i < forwards; i++) PASS(resume_step(&r, 0, &loss));
    PASS(resume_folder ? load_from_files(&r, resume_folder, RESUME_AT) : bring_back(at, r.parts, r.num_parts));
    PASS(keep_state(&again, r.parts, r.num_parts));
    /* The next backward alone gives slots to what is frozen and thawed now, and the order is of other slots. */
    PASS(same_parts(at, &again, again.count - (r.ddp && c->freezes)));
    drop_state(&again);
    EXPECT(cairn_optimizer_steps(r.optimizer) == want->steps);
    EXPECT(cairn_optimizer_skipped(r.optimizer) == want->skipped);
    EXPECT(cairn_optimizer_step_skipped(r.optimizer) == want->was_skipped);
    for (int i = RESUME_AT; i < RESUME_STEPS; i++) PASS(resume_step(&r, i, &out->losses[i]));
    PASS(resume_finish(&r, out));
    resume_end(&r);
    return NULL;
}

static inline char *same_trainings(const struct resumed *a, const struct resumed *b) {
    PASS(same_states(&a->last, &b->last));
    EXPECT(a->weights == b->weights && a->weights != 0);
    EXPECT(memcmp(&a->lr, &b->lr, sizeof(a->lr)) == 0);
    EXPECT(memcmp(a->losses + RESUME_AT, b->losses + RESUME_AT, (RESUME_STEPS - RESUME_AT) * sizeof(float)) == 0);
    return NULL;
}

/* forwards: steps that the new objects have made before the load. */
static inline char *resumes(cairn_env *env, const struct resume_case *c, int forwards) {
    struct kept_state at = {.count = 0};
    struct resumed whole = {.weights = 0}, rest = {.weights = 0};
    check_as(c->name);
    PASS(train_whole(env, c, &whole, &at));
    PASS(train_rest(env, c, &at, forwards, &whole, &rest));
    PASS(same_trainings(&whole, &rest));
    drop_state(&at);
    drop_state(&whole.last);
    drop_state(&rest.last);
    return NULL;
}

#endif
