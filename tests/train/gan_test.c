/* A GAN whose discriminator is frozen during the generator's step has the same bits as one without freezing, at every
 * level, on one rank and on two, and the generator's step neither computes nor reduces gradients of the
 * discriminator. */
#include "../mlp.h"
#include "../ranks.h"
#include "ddp/context.h"

enum { STEPS = 4, NOISE = 3, DATA = 4, HIDDEN = 6, ROWS = 8, MOST = 4096 };

struct gan {
    cairn_module *d, *g;
    cairn_optimizer *opt_d, *opt_g;
    amp_context *amp;
    ddp_context *net_d, *net_g;
    cairn_tensor *real, *noise, *ones, *zeros;
};

struct job {
    struct amp_options amp;
    bool freezes;
    unsigned char bits[2][MOST]; /* of ranks' weights and masters */
    size_t nbytes;
};

static char *begin(struct gan *n, cairn_env *env, const struct job *j) {
    cairn_group *group = cairn_env_group(env);
    struct cairn_adam_options hyper = CAIRN_ADAM_OPTIONS_INIT;
    hyper.lr = 0.05;
    *n = (struct gan){.d = make_mlp(env, DATA, HIDDEN, 1), .g = make_mlp(env, NOISE, HIDDEN, DATA)};
    EXPECT(n->d && n->g);
    EXPECT_OK(cairn_adam_create(cairn_module_params(n->d), &hyper, &n->opt_d));
    EXPECT_OK(cairn_adam_create(cairn_module_params(n->g), &hyper, &n->opt_g));
    EXPECT_OK(
        amp_initialize_all(env, CAIRN_MODULES(n->d, n->g), CAIRN_OPTIMIZERS(n->opt_d, n->opt_g), &j->amp, &n->amp));
    EXPECT_OK(ddp_create(n->d, group, NULL, &n->net_d));
    EXPECT_OK(ddp_create(n->g, group, NULL, &n->net_g));
    cairn_manual_seed(env, 100 + (uint64_t)cairn_env_rank(env));
    n->real = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, DATA));
    n->noise = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, NOISE));
    n->ones = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(ROWS, 1), 1);
    n->zeros = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(ROWS, 1));
    return NULL;
}

static void end(struct gan *n) {
    ddp_destroy(&n->net_g);
    ddp_destroy(&n->net_d);
    amp_destroy(&n->amp);
    cairn_optimizer_destroy(&n->opt_g);
    cairn_optimizer_destroy(&n->opt_d);
    cairn_module_destroy(&n->g);
    cairn_module_destroy(&n->d);
    cairn_tensor_destroy(&n->real);
    cairn_tensor_destroy(&n->noise);
    cairn_tensor_destroy(&n->ones);
    cairn_tensor_destroy(&n->zeros);
}

#define LOSS(id, opt) amp_loss_options(.loss_id = id, .num_optimizers = 1, .optimizers = &(opt))

static cairn_status train(struct gan *n, bool freezes) {
    cairn_status st = CAIRN_OK;
    cairn_zero_grad(n->opt_d);
    cairn_tensor *loss = cairn_bce_with_logits(ddp_forward(n->net_d, n->real), n->ones, NULL);
    if (st == CAIRN_OK) st = amp_backward_with(n->amp, loss, LOSS(0, n->opt_d));
    cairn_tensor *fake = ddp_forward(n->net_g, n->noise);
    loss = cairn_bce_with_logits(ddp_forward(n->net_d, cairn_detach(fake)), n->zeros, NULL);
    if (st == CAIRN_OK) st = amp_backward_with(n->amp, loss, LOSS(1, n->opt_d));
    if (st == CAIRN_OK) st = cairn_step(n->opt_d);
    cairn_optimizer_clear_grads(n->opt_g);
    if (st == CAIRN_OK && freezes) st = cairn_module_require_grad(n->d, CAIRN_OFF);
    loss = cairn_bce_with_logits(ddp_forward(n->net_d, fake), n->ones, NULL);
    if (st == CAIRN_OK) st = amp_backward_with(n->amp, loss, LOSS(2, n->opt_g));
    if (st == CAIRN_OK && freezes) st = cairn_module_require_grad(n->d, CAIRN_ON);
    return st == CAIRN_OK ? cairn_step(n->opt_g) : st;
}

static void take(const cairn_param_set *set, unsigned char *bits, size_t *used) {
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        const size_t nbytes = p->n * cairn_dtype_nbytes(p->dtype), masters = p->master ? p->n * sizeof(float) : 0;
        memcpy(bits + *used, p->data, nbytes);
        if (masters) memcpy(bits + *used + nbytes, p->master, masters);
        *used += nbytes + masters;
    }
}

static char *run(cairn_env *env, void *ctx) {
    struct job *j = ctx;
    struct gan n;
    size_t used = 0;
    PASS(begin(&n, env, j));
    for (int s = 0; s < STEPS; s++) {
        EXPECT_OK(train(&n, j->freezes));
        EXPECT(!cairn_optimizer_step_skipped(n.opt_d) && !cairn_optimizer_step_skipped(n.opt_g));
        EXPECT(n.net_g->backwards == s + 1 && n.net_d->backwards == (j->freezes ? 2 : 3) * (s + 1));
    }
    take(cairn_module_params(n.d), j->bits[cairn_env_rank(env)], &used);
    take(cairn_module_params(n.g), j->bits[cairn_env_rank(env)], &used);
    if (cairn_env_rank(env) == 0) j->nbytes = used;
    end(&n);
    return NULL;
}

static void freezing_the_discriminator_in_the_generators_step_changes_no_bit(void **state) {
    static const struct {
        amp_opt_level level;
        cairn_dtype half;
    } levels[] = {{AMP_O0, CAIRN_F16},  {AMP_O1, CAIRN_F16}, {AMP_O1, CAIRN_BF16}, {AMP_O2, CAIRN_F16},
                  {AMP_O2, CAIRN_BF16}, {AMP_O3, CAIRN_F16}, {AMP_O3, CAIRN_BF16}};
    static struct job jobs[2];
    (void)state;
    for (size_t l = 0; l < sizeof(levels) / sizeof(levels[0]); l++) {
        for (int ranks = 1; ranks <= 2; ranks++) {
            for (int f = 0; f < 2; f++) {
                memset(&jobs[f], 0, sizeof(jobs[f]));
                jobs[f].freezes = f;
                jobs[f].amp = *amp_options(.opt_level = levels[l].level, .half_type = levels[l].half, .num_losses = 3,
                                           .loss_scale = 128, .verbosity = -1);
                run_ranks(ranks, run, &jobs[f]);
            }
            assert_true(jobs[0].nbytes > 0 && jobs[0].nbytes <= MOST);
            assert_int_equal(jobs[0].nbytes, jobs[1].nbytes);
            for (int r = 0; r < ranks; r++) assert_memory_equal(jobs[0].bits[r], jobs[1].bits[r], jobs[0].nbytes);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(freezing_the_discriminator_in_the_generators_step_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
