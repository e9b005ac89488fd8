/* A chain of layers with one scale each (cairn/layer_scales.h), internal interface. */
#ifndef CAIRN__AMP_LAYER_CHAIN_H
#define CAIRN__AMP_LAYER_CHAIN_H

#include "cairn/layer_scales.h"
#include "device/env.h"
#include "layer_rule.h"

struct cairn__chain;

/* A link is an operation between children: link i < count follows child i, link count precedes child 0. */
struct cairn__link {
    struct cairn__chain *chain;
    size_t index;
};

struct cairn__chain {
    cairn_env *env;
    size_t count;
    cairn_module **children;
    struct cairn__layer_rule rule;
    cairn_tensor *buffer;      /* f32 [2][count]: the scales a_i, then 1 / P_i */
    struct cairn__link *links; /* [count + 1] */

    /* [count], of the gradient of child i's input: */
    struct cairn__census *census; /* device memory */
    double *norms;                /* device memory */
    cairn_dtype *types;           /* 0 = no gradient yet */
    int64_t *elements;

    int32_t *said; /* [ranks][2], exchanged by an update */
};

/* Forward of the chain's module; context is the chain. */
cairn_tensor *cairn__chain_run(cairn_module *module, void *context, cairn_tensor *const *inputs, int count);

#endif
