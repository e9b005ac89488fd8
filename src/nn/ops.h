/* Operations from inside: one row each, and the one way through which all of them go. */
#ifndef CAIRN__NN_OPS_H
#define CAIRN__NN_OPS_H

#include "nn/tensor.h"

struct cairn__op_row {
    bool promotes; /* inputs of different types are cast to the widest; without it different types are an error */

    /* Checks shapes and types of node->inputs and gives node->result its ndim and shape (it comes with the type of the
     * first input). */
    cairn_status (*infer)(const struct cairn__node *node);

    /* Computes node->result's data, which has room. Scratch from tape->values is released by the caller. */
    cairn_status (*forward)(struct cairn__tape *tape, const struct cairn__node *node);

    /* Hands on dy [result's n], the gradient of the result, by cairn__grad_begin and cairn__grad_end for each input
     * that cairn__wants_grad. Scratch from tape->grads. */
    cairn_status (*backward)(struct cairn__tape *tape, const struct cairn__node *node, const float *dy);
};

const struct cairn__op_row *cairn__op_row(enum cairn__op op);

struct cairn__op_args {
    int count;
    cairn_tensor *inputs[CAIRN__MAX_INPUTS];
    double scalar;
    cairn_dtype dtype; /* cast: of the result */
    const void *data;  /* cast: of the result, where it is made already */
    bool without_hook;
};

/* The result of op; NULL where an input is NULL (the cause is kept) or on error. */
cairn_tensor *cairn__apply(enum cairn__op op, const struct cairn__op_args *args);

/* ---- for backward functions: where gradients go ---- */

static inline bool cairn__wants_grad(const cairn_tensor *t) {
    return t->wants_grad;
}

/* Memory for one contribution to t's gradient, t->n floats, undefined. */
cairn_status cairn__grad_begin(struct cairn__tape *tape, cairn_tensor *t, float **dx);

/* The contribution at dx is complete: it is rounded to t's type and added to those before it. */
cairn_status cairn__grad_end(struct cairn__tape *tape, cairn_tensor *t, float *dx);

/* ---- rows ---- */

extern const struct cairn__op_row cairn__op_linear, cairn__op_add, cairn__op_mul_scalar, cairn__op_relu, cairn__op_sum,
    cairn__op_mean, cairn__op_mse_loss, cairn__op_cast;

/* Shared by rows. */
cairn_status cairn__infer_like_first(const struct cairn__node *node);
cairn_status cairn__infer_scalar(const struct cairn__node *node);
cairn_status cairn__infer_equal_shapes(const struct cairn__node *node);

#endif
