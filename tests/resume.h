/* Resumed trainings: 40 steps give the same bits of state and losses as 17 steps, saving the state in memory or in
 * files, loading it into new objects, and 23 more steps. */
#ifndef TESTS_RESUME_H
#define TESTS_RESUME_H

#include <math.h>

#include "cairn/cairn.h"
#include "device/env.h"
#include "state_in_memory.h"

enum { RESUME_STEPS = 40, RESUME_AT = 17, RESUME_N = 51, RESUME_IN = 5, RESUME_OUT = 3, RESUME_BATCH = 4 };

enum resume_by {
    BY_SGD_ALONE,
    BY_SGD_MOMENTUM,
    BY_ADAM,
    BY_ADAMW,
    BY_AMSGRAD,
    BY_LION,
    BY_ADAGRAD,
    BY_LAMB,
    BY_NOVOGRAD
};

/* A training's features; zero = without the feature. */
struct resume_case {
    const char *name;
    enum resume_by by;
    amp_opt_level level; /* 0 = no amp */
    cairn_dtype half;
    const struct amp_scaler_options *scaler;
    bool stochastic;
    bool statistics, dropout; /* layers: batch norm, dropout */
    bool groups;              /* parameter groups by rule; the second has its own schedule */
    const struct cairn_schedule_options *schedule;
    bool plateau;
    bool clips;
    bool accumulates;   /* two backwards per step */
    bool no_sync;       /* with accumulates: the first backward is under ddp_no_sync */
    bool delays;        /* with accumulates: one overflow check, with the second backward */
    bool freezes;       /* freezes one parameter in steps 0 to 20, another in 6 to 25; a smaller `at` shifts both */
    unsigned overflows; /* bit k: step resume_at - 2 + k overflows */
    bool is_explicit;   /* explicit scaling: the context's scaler, or one without a context */
    const struct ddp_options *ddp;    /* several ranks */
    const struct ddp_comm_hook *hook; /* a resumed training registers it before or after the load */
    bool is_local;                    /* two of three steps apply each rank's local gradients */
    bool sync_batch_norm;
    bool is_reducer; /* as apex's Reducer: gradients stay local until ddp_reduce, before the step */
    bool same_data;  /* every rank has all examples */
    bool in_files;   /* if there is a folder: state in files instead of memory */
    bool has_others; /* the folder also has other cases' states, possibly of later steps */
    int at, steps;   /* at most RESUME_AT and RESUME_STEPS, which are the defaults for 0 */
};

static inline int resume_at(const struct resume_case *c) {
    return c->at ? c->at : RESUME_AT;
}

static inline int resume_steps(const struct resume_case *c) {
    return c->steps ? c->steps : RESUME_STEPS;
}

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
    if (r->c->by == BY_LION) return cairn_lion_create(set, NULL, &r->optimizer);
    if (r->c->by == BY_ADAGRAD) return cairn_adagrad_create(set, NULL, &r->optimizer);
    if (r->c->by == BY_LAMB) return cairn_lamb_create(set, NULL, &r->optimizer);
    if (r->c->by == BY_NOVOGRAD) return cairn_novograd_create(set, NULL, &r->optimizer);
    adam.amsgrad = r->c->by == BY_AMSGRAD ? CAIRN_ON : CAIRN_OFF;
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
    if (c->is_explicit && !c->level) return amp_scaler_create(r->env, c->scaler, &r->scaler);
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

static inline char *resume_register_hook(const struct resume_run *r) {
    if (r->ddp && r->c->hook) EXPECT_OK(ddp_register_comm_hook(r->ddp, r->c->hook));
    return NULL;
}

/* first: number of the next step. */
static inline char *resume_begin(struct resume_run *r, cairn_env *env, const struct resume_case *c, int first) {
    *r = (struct resume_run){.env = env, .c = c};
    cairn_manual_seed(env, first ? 99 : 7); /* the result of a load must not depend on the seed */
    r->net = resume_net(env, c);
    EXPECT(r->net);
    if (c->sync_batch_norm) EXPECT_OK(ddp_convert_sync_batchnorm(r->net, cairn_env_group(env), NULL));
    if (c->freezes && first == 0) EXPECT_OK(cairn_param_set_require_grad(cairn_module_params(r->net), "0.*", 0));
    EXPECT_OK(resume_optimizer(r));
    if (c->schedule) EXPECT_OK(cairn_optimizer_set_schedule(r->optimizer, c->schedule));
    struct cairn_plateau_options plateau = CAIRN_PLATEAU_OPTIONS_INIT;
    plateau.patience = 2;
    plateau.threshold = 0.5;
    plateau.factor = 0.5;
    if (c->plateau) EXPECT_OK(cairn_optimizer_set_plateau(r->optimizer, &plateau));
    EXPECT_OK(resume_amp(r));
    if (cairn_env_size(env) > 1 || c->ddp)
        EXPECT_OK((c->is_reducer ? ddp_reducer_create : ddp_create)(r->net, cairn_env_group(env), c->ddp, &r->ddp));
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

/* Starts the next epoch at the end of one. */
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

/* A loss this large makes gradients overflow in every type. */
static inline char *resume_backward(struct resume_run *r, bool overflows, bool is_synced, bool is_first, float *value) {
    PASS(resume_batch(r));
    if (r->ddp && !r->c->is_reducer) EXPECT_OK(ddp_no_sync(r->ddp, !is_synced));
    cairn_tensor *out = r->ddp ? ddp_forward(r->ddp, r->x) : cairn_module_forward(r->net, r->x);
    cairn_tensor *loss = cairn_mse_loss(out, r->y);
    *value = cairn_tensor_item(loss);
    EXPECT(isfinite(*value));
    if (overflows) loss = cairn_mul_scalar(cairn_mul_scalar(loss, 1e38), 1e3);
    if (r->amp && r->c->is_explicit) {
        EXPECT_OK(cairn_backward(amp_scaler_scale(amp_scaler_of(r->amp, 0), loss)));
    } else if (r->amp) {
        const bool delays = r->c->delays && is_first;
        EXPECT_OK(amp_backward_with(r->amp, loss,
                                    amp_loss_options(.num_optimizers = 1, .optimizers = &r->optimizer,
                                                     .delay_unscale = delays ? CAIRN_ON : CAIRN_OFF)));
    } else {
        EXPECT_OK(cairn_backward(r->scaler ? amp_scaler_scale(r->scaler, loss) : loss));
    }
    return NULL;
}

static inline char *resume_freeze(struct resume_run *r, int step) {
    cairn_param_set *set = cairn_module_params(r->net);
    const size_t last = cairn_param_set_count(set) - 1;
    const int at = resume_at(r->c);
    if (step == at * 6 / RESUME_AT) EXPECT_OK(cairn_param_require_grad(set, last, 0));
    if (step == at + 3) EXPECT_OK(cairn_param_set_require_grad(set, "0.*", 1));
    if (step == at + 8) EXPECT_OK(cairn_param_require_grad(set, last, 1));
    return NULL;
}

static inline char *resume_step(struct resume_run *r, int step, float *loss) {
    const struct resume_case *c = r->c;
    const int behind = step - (resume_at(c) - 2);
    const bool is_synced = !c->is_local || step % 3 == 2;
    amp_scaler *scaler = r->amp && c->is_explicit ? amp_scaler_of(r->amp, 0) : r->scaler;
    const bool overflows = behind >= 0 && behind < 8 && (c->overflows >> behind & 1);
    if (c->freezes) PASS(resume_freeze(r, step));
    cairn_zero_grad(r->optimizer);
    PASS(resume_backward(r, overflows, is_synced && !(c->accumulates && c->no_sync), c->accumulates, loss));
    if (c->accumulates) PASS(resume_backward(r, false, is_synced, false, loss));
    if (r->ddp && c->is_reducer && is_synced) EXPECT_OK(ddp_reduce(r->ddp));
    if (c->clips) EXPECT_OK(cairn_clip_grad_norm(r->optimizer, 0.5, NULL));
    EXPECT_OK(scaler ? amp_scaler_step(scaler, r->optimizer, NULL) : cairn_step(r->optimizer));
    if (scaler) EXPECT_OK(amp_scaler_update(scaler));
    EXPECT_OK(cairn_env_synchronize(r->env));
    if (c->level || scaler) EXPECT(cairn_optimizer_step_skipped(r->optimizer) == overflows);
    if (c->plateau) EXPECT_OK(cairn_optimizer_report_metric(r->optimizer, (double)*loss, NULL));
    return NULL;
}

/* ---- comparing ---- */

/* Hash of the weights that forward reads; states list the master weights instead. */
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

/* Folder for states of all cases; NULL = states are kept in memory only. */
static const char *resume_folder;

/* Folder for the states of cases with in_files. */
static const char *resume_folder_of_some;

static inline const char *resume_folder_of(const struct resume_case *c) {
    return c->in_files ? resume_folder_of_some : resume_folder;
}

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
    if (r->c->has_others) {
        char path[256];
        snprintf(path, sizeof(path), "%s/step-%08d", folder, (int)step);
        EXPECT_OK(cairn_state_load(state, path, NULL, &got));
    } else {
        EXPECT_OK(cairn_state_load_latest(state, folder, NULL, &got));
    }
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
    bool has_order; /* ddp's state is the last part */
};

static inline char *resume_finish(struct resume_run *r, struct resumed *out) {
    out->weights = resume_weights(r);
    out->has_order = r->ddp != NULL;
    out->lr = cairn_optimizer_step_lr(r->optimizer, 0);
    return keep_state(&out->last, r->parts, r->num_parts);
}

static inline char *train_whole(cairn_env *env, const struct resume_case *c, struct resumed *out,
                                struct kept_state *at) {
    struct resume_run r;
    PASS(resume_begin(&r, env, c, 0));
    PASS(resume_register_hook(&r));
    for (int i = 0; i < resume_steps(c); i++) {
        if (i == resume_at(c)) { /* saving must not change the training */
            PASS(keep_state(at, r.parts, r.num_parts));
            if (resume_folder_of(c)) PASS(save_to_files(&r, resume_folder_of(c), i));
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

/* forwards: number of steps that the new objects take before the load. */
static inline char *train_rest(cairn_env *env, const struct resume_case *c, const struct kept_state *at, int forwards,
                               const struct resumed *want, struct resumed *out) {
    struct resume_run r;
    float loss = 0;
    struct kept_state again = {.count = 0};
    PASS(resume_begin(&r, env, c, resume_at(c)));
    if (forwards) PASS(resume_register_hook(&r));
    for (int i = 0; i < forwards; i++) PASS(resume_step(&r, 0, &loss));
    PASS(resume_folder_of(c) ? load_from_files(&r, resume_folder_of(c), resume_at(c))
                             : bring_back(at, r.parts, r.num_parts));
    if (!forwards) PASS(resume_register_hook(&r)); /* loading runs no backward, so a hook may still be registered */
    PASS(keep_state(&again, r.parts, r.num_parts));
    /* With frozen parameters ddp's state (bucket order) may differ until the next backward, which assigns their
     * slots. */
    PASS(same_parts(at, &again, again.count - (r.ddp && c->freezes)));
    drop_state(&again);
    EXPECT(cairn_optimizer_steps(r.optimizer) == want->steps);
    EXPECT(cairn_optimizer_skipped(r.optimizer) == want->skipped);
    EXPECT(cairn_optimizer_step_skipped(r.optimizer) == want->was_skipped);
    for (int i = resume_at(c); i < resume_steps(c); i++) PASS(resume_step(&r, i, &out->losses[i]));
    PASS(resume_finish(&r, out));
    resume_end(&r);
    return NULL;
}

/* If other parameters are frozen, the order of buckets is not restored; it does not affect any result. */
static inline char *same_trainings(const struct resume_case *c, const struct resumed *a, const struct resumed *b) {
    const int at = resume_at(c), steps = resume_steps(c);
    EXPECT(a->last.count == b->last.count);
    PASS(same_parts(&a->last, &b->last, a->last.count - (a->has_order && c->freezes)));
    EXPECT(a->weights == b->weights && a->weights != 0);
    EXPECT(memcmp(&a->lr, &b->lr, sizeof(a->lr)) == 0);
    EXPECT(memcmp(a->losses + at, b->losses + at, (size_t)(steps - at) * sizeof(float)) == 0);
    return NULL;
}

/* Resumes count times; forwards[i]: number of steps that the new objects take before the i-th load. */
static inline char *resumes(cairn_env *env, const struct resume_case *c, int count, const int forwards[]) {
    struct kept_state at = {.count = 0};
    struct resumed whole = {.weights = 0};
    if (cairn_env_size(env) == 1) check_as(c->name);
    if (cairn_env_size(env) > 1) check_as_rank_of(c->name, cairn_env_rank(env));
    PASS(train_whole(env, c, &whole, &at));
    for (int i = 0; i < count; i++) {
        struct resumed rest = {.weights = 0};
        PASS(train_rest(env, c, &at, forwards[i], &whole, &rest));
        PASS(same_trainings(c, &whole, &rest));
        drop_state(&rest.last);
    }
    drop_state(&at);
    drop_state(&whole.last);
    return NULL;
}

/* ---- random cases ---- */

/* A case and what it points to. */
struct random_case {
    struct resume_case c;
    struct amp_scaler_options scaler;
    struct cairn_schedule_options schedule, parts[2];
    const struct cairn_schedule_options *listed[2];
    int64_t milestones[2], begins[1];
    struct ddp_options ddp;
    char name[512];
    uint64_t random;
};

/* A random number in [0, n): SplitMix64. */
static inline int draw(struct random_case *r, int n) {
    uint64_t z = r->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (int)((z ^ (z >> 31)) % (uint64_t)n);
}

static inline bool one_in(struct random_case *r, int n) {
    return draw(r, n) == 0;
}

/* A schedule without parts. */
static inline struct cairn_schedule_options draw_part(struct random_case *r) {
    const bool may_cycle = r->c.by >= BY_ADAM || (r->c.by == BY_SGD_MOMENTUM && !r->c.groups);
    const int warmup = draw(r, 4);
    switch (draw(r, 10)) {
    case 0:
        return *cairn_linear_schedule(.total_steps = 30, .warmup_steps = warmup);
    case 1:
        return *cairn_cosine_schedule(.total_steps = 25, .warmup_steps = warmup, .end_factor = 0.1);
    case 2:
        return *cairn_cosine_restarts_schedule(.cycle_steps = 3, .cycle_growth = 1 + draw(r, 2));
    case 3:
        return *cairn_polynomial_schedule(.total_steps = 30, .power = 1.5);
    case 4:
        return *cairn_step_schedule(.step_size = 3, .gamma = 0.7);
    case 5:
        return *cairn_multi_step_schedule(.milestones = r->milestones, .num_milestones = 2, .gamma = 0.5);
    case 6:
        return *cairn_exponential_schedule(.gamma = 0.95);
    case 7:
        return *cairn_one_cycle_schedule(.total_steps = 25, .cycle_momentum = may_cycle ? CAIRN_ON : CAIRN_OFF);
    case 8:
        return *cairn_inverse_sqrt_schedule(.warmup_steps = 1 + warmup);
    default:
        return *cairn_warmup_stable_decay_schedule(.total_steps = 25, .warmup_steps = warmup, .decay_steps = 10);
    }
}

static inline void draw_schedule(struct random_case *r) {
    r->milestones[0] = 1 + draw(r, 8);
    r->milestones[1] = r->milestones[0] + draw(r, 8);
    r->begins[0] = 1 + draw(r, 10);
    for (int i = 0; i < 2; i++) {
        r->parts[i] = draw_part(r);
        r->listed[i] = &r->parts[i];
    }
    const int kind = draw(r, 6);
    r->schedule = draw_part(r);
    if (kind == 0) {
        r->schedule =
            *cairn_sequence_schedule(.parts = r->listed, .num_parts = 2, .milestones = r->begins, .num_milestones = 1);
    } else if (kind == 1) {
        r->schedule = *cairn_product_schedule(.parts = r->listed, .num_parts = 2);
    }
    if (one_in(r, 2)) r->schedule.first_step = draw(r, 12);
    if (one_in(r, 2)) r->schedule.count_skipped = CAIRN_ON;
    r->c.schedule = &r->schedule;
}

static inline void draw_scaler(struct random_case *r) {
    const amp_scaler_kind kind = (amp_scaler_kind)(AMP_SCALER_STATIC + draw(r, AMP_SCALER_MEGATRON));
    r->scaler = *amp_scaler_options(.kind = kind, .init_scale = 64);
    if (kind != AMP_SCALER_STATIC) r->scaler.growth_interval = 2 + draw(r, 4);
    if (kind >= AMP_SCALER_DEEPSPEED) r->scaler.hysteresis = 1 + draw(r, 3);
    r->c.scaler = &r->scaler;
}

/* ddp options: several ranks, or one rank with a ddp context. */
static inline void draw_ddp(struct random_case *r) {
    static const char *const ignored[] = {"0.weight", "1.running_mean"};
    struct resume_case *c = &r->c;
    r->ddp = *ddp_options(.bucket_nbytes = 128, .first_bucket_nbytes = 64);
    c->no_sync = one_in(r, 2);
    c->is_local = one_in(r, 5);
    if (one_in(r, 5)) r->ddp.broadcast_buffers = CAIRN_OFF;
    if (one_in(r, 6)) r->ddp.gradient_as_bucket_view = CAIRN_OFF;
    if (one_in(r, 6)) r->ddp.find_unused_parameters = CAIRN_ON;
    if (one_in(r, 6)) r->ddp.delay_allreduce = CAIRN_ON;
    if (one_in(r, 6)) r->ddp.gradient_predivide_factor = 2;
    if (one_in(r, 6)) r->ddp.wire = CAIRN_BF16;
    if (one_in(r, 8) && c->statistics) r->ddp.ignored = ignored, r->ddp.num_ignored = 2;
    if (one_in(r, 4)) c->hook = one_in(r, 2) ? ddp_noop_hook() : ddp_bf16_compress_hook();
    c->sync_batch_norm = c->statistics && one_in(r, 3);
    c->is_reducer = one_in(r, 8);
    if (c->is_reducer) c->no_sync = false;
    c->ddp = &r->ddp;
}

static inline const char *name_of_scaler(const struct random_case *r) {
    static const char *const names[] = {"", "static", "apex", "torch", "deepspeed", "megatron"};
    return r->c.scaler ? names[r->scaler.kind] : "no";
}

static inline void name_case(struct random_case *r, uint64_t seed, int ranks) {
    static const char *const by[] = {"SGD", "momentum", "Adam", "AdamW"};
    const struct resume_case *c = &r->c;
    snprintf(r->name, sizeof(r->name),
             "seed %llu, %d ranks, %s, %s %s, %s scaler%s, %d of %d steps, overflows "
             "0x%x%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s",
             (unsigned long long)seed, ranks, by[c->by],
             !c->level ? "no amp" : (const char *const[]){"O0", "O1", "O2", "O3"}[c->level - AMP_O0],
             c->half ? cairn_dtype_name(c->half) : "", name_of_scaler(r), c->is_explicit ? " (explicit)" : "", c->at,
             c->steps, c->overflows, c->stochastic ? ", stochastic" : "", c->statistics ? ", statistics" : "",
             c->sync_batch_norm ? " over ranks" : "", c->dropout ? ", dropout" : "", c->groups ? ", groups" : "",
             c->plateau ? ", plateau" : "", c->clips ? ", clips" : "", c->accumulates ? ", accumulates" : "",
             c->no_sync ? " without synchronising" : "", c->freezes ? ", freezes" : "", c->ddp ? ", ddp" : "",
             c->delays ? ", delays" : "", c->is_local ? ", local" : "", c->is_reducer ? ", reducer" : "",
             c->hook ? c->hook->begin ? ", noop hook" : ", bf16 hook" : "",
             r->ddp.broadcast_buffers == CAIRN_OFF ? ", own buffers" : "", r->ddp.num_ignored ? ", ignored" : "",
             c->in_files ? ", in files" : "");
    if (c->schedule)
        snprintf(r->name + strlen(r->name), sizeof(r->name) - strlen(r->name), ", schedule %d from %d%s",
                 (int)c->schedule->kind, (int)c->schedule->first_step,
                 c->schedule->count_skipped ? " with skipped" : "");
    r->c.name = r->name;
}

/* At most five overflows, so that no scale reaches its floor. */
static inline unsigned draw_overflows(struct random_case *r) {
    unsigned bits = 0;
    for (int i = draw(r, 6); i > 0; i--) bits |= 1u << draw(r, 8);
    return bits;
}

/* Draws from the product of all features. Combinations that are not allowed are excluded here and nowhere else. */
static inline void draw_case(struct random_case *r, uint64_t seed, int ranks) {
    *r = (struct random_case){.random = seed * 8 + (uint64_t)ranks};
    struct resume_case *c = &r->c;
    c->by = (enum resume_by)draw(r, BY_ADAMW + 1);
    c->level = one_in(r, 6) ? 0 : AMP_O0 + draw(r, 4);
    if (c->level > AMP_O0) c->half = one_in(r, 2) ? CAIRN_F16 : CAIRN_BF16;
    c->is_explicit = one_in(r, 5);
    if (c->level || c->is_explicit) draw_scaler(r);
    if (c->level || c->is_explicit) c->overflows = draw_overflows(r);
    c->stochastic = c->level == AMP_O3 && c->half == CAIRN_BF16 && one_in(r, 2);
    c->statistics = one_in(r, 2);
    c->dropout = one_in(r, 2);
    c->groups = one_in(r, 3);
    c->plateau = one_in(r, 5);
    c->clips = one_in(r, 3);
    c->accumulates = one_in(r, 2);
    c->delays = c->accumulates && one_in(r, 3);
    c->freezes = one_in(r, 4);
    if (one_in(r, 2)) draw_schedule(r);
    if (ranks > 1 || one_in(r, 3)) draw_ddp(r);
    c->in_files = resume_folder_of_some && one_in(r, 4);
    c->has_others = true;
    c->at = 3 + draw(r, 8);
    c->steps = c->at + 4 + draw(r, 9);
    name_case(r, seed, ranks);
}

#endif
