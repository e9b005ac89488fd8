/* Compares a training with captured steps to the same training with called steps. Needs cmocka. */
#ifndef TESTS_OPTIM_RECORDED_H
#define TESTS_OPTIM_RECORDED_H

#include <math.h>

#include "../check.h"
#include "../state_in_memory.h"
#include "cairn/cairn.h"
#include "cairn/interop_cuda.h"

enum { RECORDED_IN = 20, RECORDED_OUT = 30, RECORDED_ROWS = 4, RECORDED_STEPS = 10, RECORDED_OVERFLOW = 7 };

typedef cairn_status (*recorded_optimizer)(cairn_param_set *set, cairn_optimizer **out);

struct recorded {
    cairn_module *net;
    cairn_optimizer *optimizer;
    amp_context *amp;
    cairn_averages *averages;
    cairn_tensor *x;
    cairn_graph *graph;
};

static inline cairn_status recorded_step(void *user) {
    struct recorded *r = user;
    cairn_zero_grad(r->optimizer);
    cairn_tensor *y = cairn_module_forward(r->net, r->x);
    cairn_status st = amp_backward(r->amp, cairn_mean(cairn_mul(y, y)), r->optimizer);
    if (st == CAIRN_OK) st = cairn_clip_grad_norm(r->optimizer, 0.5, NULL);
    if (st == CAIRN_OK) st = cairn_step(r->optimizer);
    return st == CAIRN_OK ? cairn_averages_update(r->averages, r->optimizer) : st;
}

static inline void recorded_write(struct recorded *r, bool overflows) {
    float x[RECORDED_ROWS * RECORDED_IN];
    for (int i = 0; i < RECORDED_ROWS * RECORDED_IN; i++) x[i] = (float)(i * 29 % 97 - 48) / 32;
    if (overflows) x[3] = INFINITY;
    OK(cairn_tensor_write(r->x, x, RECORDED_ROWS * RECORDED_IN));
}

static inline void recorded_run(cairn_env *env, recorded_optimizer make, bool by_graph, struct kept_state *kept) {
    static const float zeros[RECORDED_ROWS * RECORDED_IN];
    struct recorded r = {.net = NULL};
    cairn_manual_seed(env, 3);
    r.net = cairn_linear(env, RECORDED_IN, RECORDED_OUT);
    OK(make(cairn_module_params(r.net), &r.optimizer));
    OK(cairn_averages_create(cairn_module_stateful(r.net), NULL, &r.averages));
    OK(amp_initialize(env, r.net, r.optimizer,
                      amp_options(.opt_level = AMP_O2, .half_type = CAIRN_F16, .verbosity = -1, .loss_scale = 128,
                                  .skip_nonfinite = CAIRN_ON),
                      &r.amp));
    r.x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(RECORDED_ROWS, RECORDED_IN), zeros);
    if (by_graph) OK(cairn_graph_capture(env, recorded_step, &r, &r.graph));
    for (int k = 1; k <= RECORDED_STEPS; k++) {
        recorded_write(&r, k == RECORDED_OVERFLOW);
        OK(by_graph ? cairn_graph_replay(r.graph) : recorded_step(&r));
    }
    OK(cairn_env_synchronize(env));
    if (by_graph) assert_int_equal(cairn_graph_is_recorded(r.graph), cairn_cuda_ordinal(env) >= 0);
    assert_int_equal(cairn_optimizer_skipped(r.optimizer), 1);
    const cairn_stateful of[] = {cairn_module_stateful(r.net), cairn_optimizer_stateful(r.optimizer),
                                 amp_stateful(r.amp), cairn_averages_stateful(r.averages)};
    cairn_graph_destroy(&r.graph);
    CALM(keep_state(kept, of, 4));
    cairn_averages_destroy(&r.averages);
    amp_destroy(&r.amp);
    cairn_optimizer_destroy(&r.optimizer);
    cairn_tensor_destroy(&r.x);
    cairn_module_destroy(&r.net);
}

static inline void assert_recorded_as_called(cairn_env *env, recorded_optimizer make) {
    struct kept_state called = {.count = 0}, recorded = {.count = 0};
    recorded_run(env, make, false, &called);
    recorded_run(env, make, true, &recorded);
    CALM(same_states(&called, &recorded));
    drop_state(&called), drop_state(&recorded);
}

#endif
