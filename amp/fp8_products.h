/* One product whose operands, and the gradient of its result, go through fp8. */
#ifndef CAIRN__AMP_FP8_PRODUCTS_H
#define CAIRN__AMP_FP8_PRODUCTS_H

#include "fp8_scale.h"
#include "nn/hooks.h"

struct cairn__fp8_operation {
    enum cairn__op op;                                /* linear, matmul, bmm */
    const struct cairn__fp8_recipe *recipe;           /* lives as long as the graph, as scales do */
    cairn_dtype half;                                 /* of the result */
    cairn_tensor *operands[2], *bias;                 /* bias: of linear; NULL = none */
    struct cairn__fp8_scale *scales[2], *of_gradient; /* NULL: the current amax decides */
};

/* Whether all inputs are f32 or halves. */
bool cairn__fp8_can_cast(const struct cairn__fp8_operation *operation);

/* NULL on error. */
cairn_tensor *cairn__fp8_apply(const struct cairn__fp8_operation *operation);

#endif
