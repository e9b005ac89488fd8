/* A training of one weight with gradient 1 at every step, for tests of schedules: each step lowers the weight by the
 * learning rate. Runs on the environment's device; steps may be replays of a graph. */
#ifndef TESTS_OPTIM_SCHEDULED_H
#define TESTS_OPTIM_SCHEDULED_H

#include <stdbool.h>

#include "cairn/cairn.h"
#include "device/env.h"
#include "optim/optim.h"

enum { MAX_GROUPS = 3 };

struct scheduled {
    cairn_env *env;
    float *memory; /* weights, then gradients, of MAX_GROUPS groups */
    cairn_param_set *set;
    cairn_optimizer *optimizer;
    cairn_graph *graph; /* NULL = steps are called */
    uint64_t drawn;
};

static inline cairn_status scheduled_make_set(struct scheduled *s, cairn_env *env) {
    static const char *const names[MAX_GROUPS] = {"a", "b", "c"};
    const float start[2 * MAX_GROUPS] = {0, 0, 0, 1, 1, 1};
    cairn_param params[MAX_GROUPS];
    *s = (struct scheduled){.env = env, .drawn = 1};
    cairn_status st = cairn__device_alloc(env->device, CAIRN__HOLDS_PARAMS, sizeof(start), (void **)&s->memory);
    if (st == CAIRN_OK) st = cairn__device_upload(env->device, s->memory, start, sizeof(start));
    for (int i = 0; i < MAX_GROUPS; i++)
        params[i] = (cairn_param){.name = names[i],
                                  .data = s->memory + i,
                                  .grad = s->memory + MAX_GROUPS + i,
                                  .dtype = CAIRN_F32,
                                  .ndim = 1,
                                  .shape = {1}};
    return st == CAIRN_OK ? cairn_param_set_create(env, params, MAX_GROUPS, &s->set) : st;
}

static inline void scheduled_end(struct scheduled *s) {
    cairn_graph_destroy(&s->graph);
    cairn_optimizer_destroy(&s->optimizer);
    cairn_param_set_destroy(&s->set);
    cairn__device_free(s->env->device, s->memory);
}

static inline cairn_status scheduled_step_of(void *user) {
    struct scheduled *s = user;
    cairn_zero_grad(s->optimizer);
    const cairn_status st = cairn_grads_ready(s->set, 0, MAX_GROUPS);
    return st == CAIRN_OK ? cairn_step(s->optimizer) : st;
}

/* Takes a step. skip: as amp does after an overflow. The step's report has arrived when the function returns. */
static inline cairn_status scheduled_step(struct scheduled *s, bool skip) {
    const uint32_t raised = 1;
    struct cairn_device *d = s->env->device;
    if (skip) d->passes->store(d, &s->optimizer->state->skip, &raised, sizeof(raised));
    const cairn_status st = s->graph ? cairn_graph_replay(s->graph) : scheduled_step_of(s);
    return st == CAIRN_OK ? cairn_env_synchronize(s->env) : st;
}

/* Whether to skip: one random step in seven. */
static inline bool scheduled_draws_skip(struct scheduled *s) {
    s->drawn = s->drawn * 6364136223846793005u + 1442695040888963407u;
    return (s->drawn >> 33) % 7 == 0;
}

#endif
