/* The training of the fault tests: an MLP at O2 with Adam; each test creates its ddp context. */
#ifndef TESTS_DDP_FAULTS_H
#define TESTS_DDP_FAULTS_H

#include "../mlp.h"
#include "../ranks.h"
#include "core/status.h"

enum { IN = 96, HIDDEN = 160, OUT = 8, ROWS = 4 };

struct training {
    cairn_env *env;
    cairn_group *subgroup; /* NULL = none */
    cairn_module *model;
    cairn_optimizer *optimizer;
    amp_context *amp;
    ddp_context *net;
};

/* Creates the training without its ddp context. */
static inline cairn_status begin_training(struct training *t, cairn_env *env) {
    cairn_status st = CAIRN_OK;
    *t = (struct training){.env = env, .model = make_mlp(env, IN, HIDDEN, OUT)};
    TRY(cairn_adam_create(cairn_module_params(t->model), NULL, &t->optimizer));
    TRY(amp_initialize(env, t->model, t->optimizer,
                       amp_options(.opt_level = AMP_O2, .half_type = CAIRN_BF16, .verbosity = -1), &t->amp));
out:
    return st;
}

static inline cairn_status backward(struct training *t) {
    cairn_zero_grad(t->optimizer);
    cairn_tensor *x = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN));
    return amp_backward(t->amp, cairn_mean(ddp_forward(t->net, x)), t->optimizer);
}

/* The environment belongs to the caller. */
static inline void end_training(struct training *t) {
    ddp_destroy(&t->net);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
    cairn_group_destroy(&t->subgroup);
}

#endif
