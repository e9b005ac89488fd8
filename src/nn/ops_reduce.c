/* sum, mean, mse_loss: one f32 sum over 16 lanes and a tree (kernels.h), one division, one rounding. */
#include "core/status.h"
#include "nn/ops.h"

/* ---- sum and mean ---- */

static cairn_status reduce(struct cairn__tape *tape, const struct cairn__node *node, float divisor) {
    const cairn_tensor *x = node->inputs[0];
    cairn__passes_of(tape)->sum(tape->env->device, node->result->dtype, node->result->data, cairn__tensor_data(x), x->n,
                                divisor);
    return CAIRN_OK;
}

static cairn_status spread(struct cairn__tape *tape, const struct cairn__node *node, const void *dy, float divisor) {
    cairn_tensor *x = node->inputs[0];
    void *dx = NULL;
    cairn_status st = cairn__grad_begin(tape, x, &dx);
    if (st != CAIRN_OK) return st;
    cairn__passes_of(tape)->spread(tape->env->device, node->result->dtype, dx, x->n, dy, divisor);
    return cairn__grad_end(tape, x, dx);
}

static cairn_status sum_forward(struct cairn__tape *tape, const struct cairn__node *node) {
    return reduce(tape, node, 1.0f);
}

static cairn_status sum_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    return spread(tape, node, dy, 1.0f);
}

const struct cairn__op_row cairn__op_sum = {.infer = cairn__infer_scalar,
                                            .forward = sum_forward,
                                            .backward = sum_backward};

cairn_tensor *cairn_sum(cairn_tensor *x) {
    return cairn__apply(CAIRN__OP_SUM, &(struct cairn__op_args){.count = 1, .inputs = {x}});
}

static cairn_status mean_forward(struct cairn__tape *tape, const struct cairn__node *node) {
    return reduce(tape, node, (float)node->inputs[0]->n);
}

static cairn_status mean_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    return spread(tape, node, dy, (float)node->inputs[0]->n);
}

const struct cairn__op_row cairn__op_mean = {.infer = cairn__infer_scalar,
                                             .forward = mean_forward,
                                             .backward = mean_backward};

cairn_tensor *cairn_mean(cairn_tensor *x) {
    return cairn__apply(CAIRN__OP_MEAN, &(struct cairn__op_args){.count = 1, .inputs = {x}});
}

/* ---- mse_loss ---- */

static cairn_status mse_infer(const struct cairn__node *node) {
    cairn_status st = cairn__infer_equal_shapes(node);
    return st == CAIRN_OK ? cairn__infer_scalar(node) : st;
}

static cairn_status mse_forward(struct cairn__tape *tape, const struct cairn__node *node) {
    const cairn_tensor *x = node->inputs[0], *y = node->inputs[1];
    cairn__passes_of(tape)->mse(tape->env->device, node->result->dtype, node->result->data, cairn__tensor_data(x),
                                cairn__tensor_data(y), x->n);
    return CAIRN_OK;
}

/* d/dx mean((x-y)^2) = 2/n (x-y), and the opposite for y. The factors are joined first: (2/n * dy) * (x-y). */
static cairn_status mse_side(struct cairn__tape *tape, const struct cairn__node *node, int side, const void *dy) {
    cairn_tensor *t = node->inputs[side];
    if (!cairn__wants_grad(t)) return CAIRN_OK;
    const float s = 2.0f / (float)t->n;
    void *dx = NULL;
    cairn_status st = cairn__grad_begin(tape, t, &dx);
    if (st != CAIRN_OK) return st;
    cairn__passes_of(tape)->mse_backward(tape->env->device, node->result->dtype, dx,
                                         cairn__tensor_data(node->inputs[0]), cairn__tensor_data(node->inputs[1]), t->n,
                                         side == 0 ? s : -s, dy);
    return cairn__grad_end(tape, t, dx);
}

static cairn_status mse_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_status st = mse_side(tape, node, 0, dy);
    return st == CAIRN_OK ? mse_side(tape, node, 1, dy) : st;
}

const struct cairn__op_row cairn__op_mse_loss = {.promotes = true,
                                                 .infer = mse_infer,
                                                 .forward = mse_forward,
                                                 .backward = mse_backward};

cairn_tensor *cairn_mse_loss(cairn_tensor *x, cairn_tensor *y) {
    return cairn__apply(CAIRN__OP_MSE_LOSS, &(struct cairn__op_args){.count = 2, .inputs = {x, y}});
}
