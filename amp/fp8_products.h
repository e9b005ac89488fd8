/* One product whose operands, and the gradient of whose result, are cast through fp8. */
#ifndef CAIRN__AMP_FP8_PRODUCTS_H
#define CAIRN__AMP_FP8_PRODUCTS_H

#include "fp8_scale.h"
#include "nn/hooks.h"

struct cairn__fp8_operation {
    enum cairn__op op;                                /* linear, matmul, bmm */
    const struct cairn__fp8_recipe *recipe;           /* lives as long as the graph, as the scales do */
    cairn_dtype half;                                 /* the result's type */
    cairn_tensor *operands[2], *bias;                 /* bias: linear only; NULL = none */
    struct cairn__fp8_scale *scales[2], *of_gradient; /* NULL = scaled by the current amax */
};

/* Whether all inputs are f32 or a half type. */
bool cairn__fp8_can_cast(const struct cairn__fp8_operation *operation);

/* NULL on error. */
cairn_tensor *cairn__fp8_apply(const struct cairn__fp8_operation *operation);

#endif
