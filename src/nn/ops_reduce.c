/* sum, mean, mse_loss: one f32 sum over 16 lanes and a tree (kernels.h), one division, one rounding. */
#include "core/status.h"
#include "nn/ops.h"

static const struct cairn__kernels *kernels(const struct cairn__tape *tape) {
    return tape->env->device->kernels;
}

static cairn_status store(const struct cairn__tape *tape, const cairn_tensor *y, float value) {
    kernels(tape)->cast[CAIRN_F32][y->dtype](y->data, &value, 1);
    return CAIRN_OK;
}

/* ---- sum and mean ---- */

static cairn_status reduce(struct cairn__tape *tape, const struct cairn__node *node, float divisor) {
    const float *x = NULL;
    cairn_status st = cairn__tensor_f32(node->inputs[0], &tape->values, &x);
    if (st != CAIRN_OK) return st;
    return store(tape, node->result, kernels(tape)->sum(x, node->inputs[0]->n) / divisor);
}

static cairn_status spread(struct cairn__tape *tape, const struct cairn__node *node, float value) {
    cairn_tensor *x = node->inputs[0];
    float *dx = NULL;
    cairn_status st = cairn__grad_begin(tape, x, &dx);
    if (st != CAIRN_OK) return st;
    kernels(tape)->fill[CAIRN_F32](dx, x->n, value);
    return cairn__grad_end(tape, x, dx);
}

static cairn_status sum_forward(struct cairn__tape *tape, const struct cairn__node *node) {
    return reduce(tape, node, 1.0f);
}

static cairn_status sum_backward(struct cairn__tape *tape, const struct cairn__node *node, const float *dy) {
    return spread(tape, node, dy[0]);
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

static cairn_status mean_backward(struct cairn__tape *tape, const struct cairn__node *node, const float *dy) {
    return spread(tape, node, dy[0] / (float)node->inputs[0]->n);
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
    cairn_status st = CAIRN_OK;
    const float *x = NULL, *y = NULL;
    const size_t n = node->inputs[0]->n;
    TRY(cairn__tensor_f32(node->inputs[0], &tape->values, &x));
    TRY(cairn__tensor_f32(node->inputs[1], &tape->values, &y));
    TRY(store(tape, node->result, kernels(tape)->mse_sum(x, y, n) / (float)n));
out:
    return st;
}

/* d/dx mean((x-y)^2) = 2/n (x-y), and the opposite for y. The factors are joined first: (2/n * dy) * (x-y). */
static cairn_status mse_side(struct cairn__tape *tape, cairn_tensor *side, const float *x, const float *y, float s) {
    if (!cairn__wants_grad(side)) return CAIRN_OK;
    float *dx = NULL;
    cairn_status st = cairn__grad_begin(tape, side, &dx);
    if (st != CAIRN_OK) return st;
    kernels(tape)->mse_backward(dx, x, y, side->n, s);
    return cairn__grad_end(tape, side, dx);
}

static cairn_status mse_backward(struct cairn__tape *tape, const struct cairn__node *node, const float *dy) {
    cairn_status st = CAIRN_OK;
    const float *x = NULL, *y = NULL;
    const float s = 2.0f / (float)node->inputs[0]->n * dy[0];
    TRY(cairn__tensor_f32(node->inputs[0], &tape->grads, &x));
    TRY(cairn__tensor_f32(node->inputs[1], &tape->grads, &y));
    TRY(mse_side(tape, node->inputs[0], x, y, s));
    TRY(mse_side(tape, node->inputs[1], x, y, -s));
out:
    return st;
}

const struct cairn__op_row cairn__op_mse_loss = {.promotes = true,
                                                 .infer = mse_infer,
                                                 .forward = mse_forward,
                                                 .backward = mse_backward};

cairn_tensor *cairn_mse_loss(cairn_tensor *x, cairn_tensor *y) {
    return cairn__apply(CAIRN__OP_MSE_LOSS, &(struct cairn__op_args){.count = 2, .inputs = {x, y}});
}
