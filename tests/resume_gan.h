/* Resumed GAN trainings, compared bit for bit: two models with two optimizers in one amp context. Some losses belong to
 * one optimizer, some to both; an overflow of a shared loss makes both skip their next step. */
#ifndef TESTS_RESUME_GAN_H
#define TESTS_RESUME_GAN_H

#include "resume.h"

enum { GAN_STEPS = 14, GAN_ROWS = 4, GAN_NOISE = 3, GAN_DATA = 5 };

struct gan_case {
    amp_opt_level level;
    cairn_dtype half;
    amp_scaler_kind scaler;
    bool one_loss; /* one scaler for all losses instead of three */
    bool through;  /* the generator's loss goes through the discriminator, whose gradients are then cleared */
    bool freezes;  /* or the discriminator is frozen meanwhile */
    bool forgets;  /* clears the discriminator's gradients after its step, before the generator's loss */
    bool statistics;
    unsigned bad_d, bad_g; /* bit k: at step at - 2 + k the loss of that model overflows */
    bool is_gradient;      /* the f16 gradients overflow, not the loss */
    int at;
};

struct gan_run {
    cairn_env *env;
    const struct gan_case *c;
    cairn_module *d, *g;
    cairn_optimizer *by_d, *by_g;
    amp_context *amp;
    ddp_context *ddp_d, *ddp_g;
    cairn_stateful parts[8];
    size_t num_parts;
};

static inline cairn_module *gan_net(const struct gan_run *r, int in, int out) {
    cairn_module *layers[4];
    int n = 0;
    layers[n++] = cairn_linear(r->env, in, 6);
    if (r->c->statistics) layers[n++] = cairn_batch_norm(r->env, 6, 0, 0);
    layers[n++] = cairn_activation(r->env, cairn_relu);
    layers[n++] = cairn_linear(r->env, 6, out);
    return cairn_sequential(r->env, n, layers);
}

static inline char *gan_begin(struct gan_run *r, cairn_env *env, const struct gan_case *c, int seed) {
    struct cairn_adam_options adam = CAIRN_ADAM_OPTIONS_INIT;
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    adam.lr = 0.02;
    sgd.lr = 0.05;
    sgd.momentum = 0.9;
    *r = (struct gan_run){.env = env, .c = c};
    cairn_manual_seed(env, (uint64_t)seed);
    r->d = gan_net(r, GAN_DATA, 1);
    r->g = gan_net(r, GAN_NOISE, GAN_DATA);
    EXPECT(r->d && r->g);
    EXPECT_OK(cairn_adam_create(cairn_module_params(r->d), &adam, &r->by_d));
    EXPECT_OK(cairn_sgd_create(cairn_module_params(r->g), &sgd, &r->by_g));
    EXPECT_OK(amp_initialize_all(env, CAIRN_MODULES(r->d, r->g), CAIRN_OPTIMIZERS(r->by_d, r->by_g),
                                 amp_options(.opt_level = c->level, .half_type = c->half, .verbosity = -1,
                                             .num_losses = c->one_loss ? 1 : 3,
                                             .scaler = amp_scaler_options(.kind = c->scaler, .init_scale = 1024)),
                                 &r->amp));
    if (cairn_env_size(env) > 1) {
        EXPECT_OK(ddp_create(r->d, cairn_env_group(env), ddp_options(.bucket_nbytes = 64), &r->ddp_d));
        EXPECT_OK(ddp_create(r->g, cairn_env_group(env), NULL, &r->ddp_g));
    }
    r->parts[r->num_parts++] = cairn_module_stateful(r->d);
    r->parts[r->num_parts++] = cairn_module_stateful(r->g);
    r->parts[r->num_parts++] = cairn_optimizer_stateful(r->by_d);
    r->parts[r->num_parts++] = cairn_optimizer_stateful(r->by_g);
    r->parts[r->num_parts++] = amp_stateful(r->amp);
    r->parts[r->num_parts++] = cairn__env_stateful(env);
    return NULL;
}

static inline void gan_end(struct gan_run *r) {
    ddp_destroy(&r->ddp_g);
    ddp_destroy(&r->ddp_d);
    amp_destroy(&r->amp);
    cairn_optimizer_destroy(&r->by_g);
    cairn_optimizer_destroy(&r->by_d);
    cairn_module_destroy(&r->g);
    cairn_module_destroy(&r->d);
}

/* Makes the loss infinite, or so large that its gradients overflow. */
static inline cairn_tensor *gan_spoil(const struct gan_run *r, cairn_tensor *loss, unsigned bad, int step) {
    const int k = step - (r->c->at - 2);
    if (k < 0 || k > 7 || !(bad >> k & 1)) return loss;
    if (r->c->is_gradient) return cairn_mul_scalar(loss, 1e30);
    return cairn_mul_scalar(cairn_mul_scalar(loss, 1e38), 1e3);
}

static inline cairn_tensor *gan_forward(cairn_module *net, ddp_context *ddp, cairn_tensor *x) {
    return ddp ? ddp_forward(ddp, x) : cairn_module_forward(net, x);
}

static inline char *gan_inputs(const struct gan_run *r, int step, cairn_tensor **noise, cairn_tensor **real) {
    float z[GAN_ROWS * GAN_NOISE], x[GAN_ROWS * GAN_DATA];
    const int64_t example = step * 3 + cairn_env_rank(r->env);
    for (int i = 0; i < GAN_ROWS * GAN_NOISE; i++) z[i] = resume_number(example, i);
    for (int i = 0; i < GAN_ROWS * GAN_DATA; i++) x[i] = resume_number(example + 100, i);
    *noise = cairn_zeros(r->env, CAIRN_F32, CAIRN_SHAPE(GAN_ROWS, GAN_NOISE));
    *real = cairn_zeros(r->env, CAIRN_F32, CAIRN_SHAPE(GAN_ROWS, GAN_DATA));
    EXPECT_OK(cairn_tensor_write(*noise, z, GAN_ROWS * GAN_NOISE));
    EXPECT_OK(cairn_tensor_write(*real, x, GAN_ROWS * GAN_DATA));
    return NULL;
}

static inline char *gan_step(struct gan_run *r, int step, float losses[2]) {
    const struct gan_case *c = r->c;
    const int ids[] = {0, c->one_loss ? 0 : 1};
    cairn_tensor *noise, *real;
    PASS(gan_inputs(r, step, &noise, &real));
    cairn_zero_grad(r->by_d);
    cairn_tensor *fake = gan_forward(r->g, r->ddp_g, noise);
    cairn_tensor *loss = cairn_mean(cairn_square(cairn_add_scalar(gan_forward(r->d, r->ddp_d, real), -1)));
    loss = cairn_add(loss, cairn_mean(cairn_square(cairn_module_forward(r->d, cairn_detach(fake)))));
    losses[0] = cairn_tensor_item(loss);
    EXPECT_OK(amp_backward_with(r->amp, gan_spoil(r, loss, c->bad_d, step),
                                amp_loss_options(.loss_id = ids[0], .num_optimizers = 1, .optimizers = &r->by_d)));
    EXPECT_OK(cairn_step(r->by_d));
    cairn_optimizer_clear_grads(r->by_g);
    if (c->forgets) cairn_optimizer_clear_grads(r->by_d);
    if (c->freezes) EXPECT_OK(cairn_module_require_grad(r->d, CAIRN_OFF));
    loss = c->through ? cairn_mean(cairn_square(cairn_add_scalar(gan_forward(r->d, r->ddp_d, fake), -1)))
                      : cairn_mse_loss(fake, real);
    losses[1] = cairn_tensor_item(loss);
    EXPECT_OK(amp_backward_with(r->amp, gan_spoil(r, loss, c->bad_g, step), amp_loss_options(.loss_id = ids[1])));
    if (c->freezes) EXPECT_OK(cairn_module_require_grad(r->d, CAIRN_ON));
    EXPECT_OK(cairn_step(r->by_g));
    if (c->through) cairn_optimizer_clear_grads(r->by_d);
    EXPECT_OK(cairn_env_synchronize(r->env));
    cairn_tensor_destroy(&noise);
    cairn_tensor_destroy(&real);
    return NULL;
}

static inline char *gan_resumes(cairn_env *env, const struct gan_case *c) {
    struct gan_run whole, rest;
    struct kept_state at = {.count = 0}, again = {.count = 0}, want = {.count = 0}, got = {.count = 0};
    float losses[2][GAN_STEPS][2] = {{{0}}};
    PASS(gan_begin(&whole, env, c, 3));
    for (int i = 0; i < GAN_STEPS; i++) {
        if (i == c->at) PASS(keep_state(&at, whole.parts, whole.num_parts));
        PASS(gan_step(&whole, i, losses[0][i]));
    }
    PASS(keep_state(&want, whole.parts, whole.num_parts));
    gan_end(&whole);
    PASS(gan_begin(&rest, env, c, 4));
    PASS(gan_step(&rest, 0, losses[1][0]));
    PASS(bring_back(&at, rest.parts, rest.num_parts));
    PASS(keep_state(&again, rest.parts, rest.num_parts));
    PASS(same_states(&at, &again));
    for (int i = c->at; i < GAN_STEPS; i++) PASS(gan_step(&rest, i, losses[1][i]));
    PASS(keep_state(&got, rest.parts, rest.num_parts));
    PASS(same_states(&want, &got));
    EXPECT(memcmp(losses[0][c->at], losses[1][c->at], (size_t)(GAN_STEPS - c->at) * sizeof(losses[0][0])) == 0);
    gan_end(&rest);
    drop_state(&at);
    drop_state(&again);
    drop_state(&want);
    drop_state(&got);
    return NULL;
}

/* As in draw_case. */
static inline char *gan_resumes_by_chance(cairn_env *env, int seed) {
    struct random_case r = {.random = (uint64_t)seed};
    struct gan_case c = {.level = AMP_O0 + draw(&r, 4), .half = one_in(&r, 2) ? CAIRN_F16 : CAIRN_BF16};
    if (c.level == AMP_O0) c.half = 0;
    c.scaler = (amp_scaler_kind)(AMP_SCALER_STATIC + draw(&r, AMP_SCALER_MEGATRON));
    c.one_loss = one_in(&r, 2);
    c.through = one_in(&r, 2);
    c.freezes = c.through && one_in(&r, 3);
    c.forgets = one_in(&r, 2);
    c.statistics = one_in(&r, 3);
    c.bad_d = draw_overflows(&r) & 7;
    c.bad_g = draw_overflows(&r);
    c.is_gradient = c.half == CAIRN_F16 && one_in(&r, 2);
    c.at = 3 + draw(&r, 6);
    snprintf(r.name, sizeof(r.name), "seed %d, two models, O%d %s, scaler %d, %s, at %d, bad 0x%x and 0x%x%s%s%s%s%s",
             seed, (int)(c.level - AMP_O0), c.half ? cairn_dtype_name(c.half) : "", (int)c.scaler,
             c.one_loss ? "one loss" : "three losses", c.at, c.bad_d, c.bad_g, c.is_gradient ? " in gradients" : "",
             c.through ? ", through" : "", c.freezes ? ", freezes" : "", c.forgets ? ", forgets" : "",
             c.statistics ? ", statistics" : "");
    check_as_rank_of(r.name, cairn_env_rank(env));
    return gan_resumes(env, &c);
}

#endif
