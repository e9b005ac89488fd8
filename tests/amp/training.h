/* A small net under amp, with SGD and momentum, whose gradients can be changed. */
#ifndef TESTS_AMP_TRAINING_H
#define TESTS_AMP_TRAINING_H

#include "logged_env.h"
#include "../mlp.h"
#include "../plant.h"

struct training {
    cairn_tensor *x, *y;
    cairn_module *model;
    cairn_optimizer *sgd;
    amp_context *amp;
    struct plant plant;
    cairn_tensor *loss; /* of the last step, if a test keeps it */
};

static inline void begin(struct training *t, cairn_env *env, const struct amp_options *options) {
    log_text[0] = '\0';
    cairn_manual_seed(env, 3);
    t->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 12));
    t->y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 4));
    t->model = make_mlp(env, 12, 10, 4);
    assert_non_null(t->model);
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 0.1;
    hyper.momentum = 0.9;
    assert_int_equal(cairn_sgd_create(cairn_module_params(t->model), &hyper, &t->sgd), CAIRN_OK);
    assert_int_equal(amp_initialize(env, t->model, t->sgd, options, &t->amp), CAIRN_OK);
    plant_install(&t->plant, cairn_module_params(t->model));
}

static inline void end(struct training *t) {
    plant_remove(&t->plant);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->sgd);
    cairn_module_destroy(&t->model);
    cairn_tensor_destroy(&t->x);
    cairn_tensor_destroy(&t->y);
}

#endif
