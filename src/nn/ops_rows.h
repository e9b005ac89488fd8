/* Shared by norms, softmax, losses, dropout and embedding: checks and conversions of inputs. */
#ifndef CAIRN__NN_OPS_ROWS_H
#define CAIRN__NN_OPS_ROWS_H

#include "core/status.h"
#include "nn/ops.h"

/* CAIRN_EINVAL, naming `what`, if input i is present and not a float. */
static inline cairn_status cairn__check_is_float(const struct cairn__node *node, int i, const char *what) {
    const cairn_tensor *x = node->inputs[i];
    REQUIRE(!x || cairn__is_float(cairn__tensor_dtype(x)), CAIRN_EINVAL,
            "%s: %s is %s; f32, f16, bf16 and f64 are allowed", cairn__op_name(node->op), what,
            cairn_dtype_name(cairn__tensor_dtype(x)));
    return CAIRN_OK;
}

/* t, detached if it wants a gradient: for inputs that the operation gives none. */
static inline cairn_tensor *cairn__constant(cairn_tensor *t) {
    return cairn__wants_grad(t) ? cairn_detach(t) : t;
}

/* *out: options of losses with the defaults filled in, except ignore_index. Errors: CAIRN_EINVAL. */
cairn_status cairn__loss_options_read(enum cairn__op op, const struct cairn_loss_options *given,
                                      struct cairn_loss_options *out);

/* Product of sizes [from, to). */
static inline int64_t cairn__sizes(const cairn_tensor *x, int from, int to) {
    int64_t n = 1;
    for (int d = from; d < to; d++) n *= x->shape[d];
    return n;
}

#endif
