/* Operations from inside: one row each, and the one way through which all of them go. */
#ifndef CAIRN__NN_OPS_H
#define CAIRN__NN_OPS_H

#include "nn/tensor.h"

struct cairn__op_row {
    bool promotes; /* inputs of different types are cast to the widest; without it different types are an error */

    /* Checks shapes and types of node->inputs and gives node->result its ndim and shape (it comes with the type of the
     * first input). */
    cairn_status (*infer)(const struct cairn__node *node);

    /* Computes node->result's data, which has room. */
    cairn_status (*forward)(struct cairn__tape *tape, const struct cairn__node *node);

    /* Hands on dy, the gradient of the result in the result's type and size, by cairn__grad_begin and cairn__grad_end for
     * each input that cairn__wants_grad. */
    cairn_status (*backward)(struct cairn__tape *tape, const struct cairn__node *node, const void *dy);
};

const struct cairn__op_row *cairn__op_row(enum cairn__op op);

static inline const struct cairn__passes *cairn__passes_of(const struct cairn__tape *tape) {
    return tape->env->device->passes;
}

struct cairn__op_args {
    int count;
    cairn_tensor *inputs[CAIRN__MAX_INPUTS];
    double scalar;
    cairn_dtype dtype;                        /* cast: of the result */
    const void *data;                         /* cast: of the result, where it is made already */
    const struct cairn__scaler_state *scaler; /* scale_loss: read when it runs */
    struct cairn__loss_scale *cell;           /* and where it leaves the scale */
};

/* The result of op; NULL where an input is NULL (the cause is kept) or on error. */
cairn_tensor *cairn__apply(enum cairn__op op, const struct cairn__op_args *args);

/* ---- for backward functions: where gradients go ---- */

static inline bool cairn__wants_grad(const cairn_tensor *t) {
    return t->wants_grad;
}

/* Memory for one contribution to t's gradient, t->n elements of t's type, undefined. */
cairn_status cairn__grad_begin(struct cairn__tape *tape, cairn_tensor *t, void **dx);

/* The contribution at dx is complete: it is added to those before it. */
cairn_status cairn__grad_end(struct cairn__tape *tape, cairn_tensor *t, void *dx);

/* ---- rows ---- */

extern const struct cairn__op_row cairn__op_linear, cairn__op_add, cairn__op_mul_scalar, cairn__op_relu, cairn__op_sum,
    cairn__op_mean, cairn__op_mse_loss, cairn__op_cast, cairn__op_scale_loss;

/* Shared by rows. */
cairn_status cairn__infer_like_first(const struct cairn__node *node);
cairn_status cairn__infer_scalar(const struct cairn__node *node);
cairn_status cairn__infer_equal_shapes(const struct cairn__node *node);

#endif
