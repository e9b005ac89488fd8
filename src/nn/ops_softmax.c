/* softmax and log_softmax over the last dimension; another dimension is transposed there and back. */
#include "core/status.h"
#include "nn/ops.h"
#include "nn/ops_rows.h"

static cairn_status infer(const struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_is_float(node, 0, "input"));
    TRY(cairn__infer_like_first(node));
out:
    return st;
}

/* A tensor without dimensions is a row of one. */
static size_t row_length(const cairn_tensor *x) {
    return x->ndim ? (size_t)x->shape[x->ndim - 1] : 1;
}

static size_t num_rows(const cairn_tensor *x) {
    return x->n ? x->n / row_length(x) : 0;
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    const cairn_tensor *x = node->inputs[0], *y = node->result;
    cairn__math_of(tape)->softmax(tape->env->device, y->dtype, y->data, cairn__tensor_data(x), num_rows(x),
                                  row_length(x), node->op == CAIRN__OP_LOG_SOFTMAX);
    return CAIRN_OK;
}

/* Both gradients need only the result. */
static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *x = node->inputs[0];
    const cairn_tensor *y = node->result;
    void *dx = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, x, &dx));
    cairn__math_of(tape)->softmax_backward(tape->env->device, y->dtype, dx, dy, y->data, num_rows(x), row_length(x),
                                           node->op == CAIRN__OP_LOG_SOFTMAX);
    TRY(cairn__tensor_grad_end(tape, x, dx));
out:
    return st;
}

static const struct cairn__op_row row = {
    .needs_math = true, .infer = infer, .forward = forward, .backward = backward, .reads = cairn__reads_result};

static cairn_tensor *along(enum cairn__op op, cairn_tensor *x, int dim) {
    if (!x) return cairn__apply(op, &row, CAIRN__INPUTS(x), NULL, 0);
    if (cairn__dim_of(op, x->ndim ? x->ndim : 1, dim, &dim) != CAIRN_OK) return NULL;
    if (dim >= x->ndim - 1) return cairn__apply(op, &row, CAIRN__INPUTS(x), NULL, 0);
    cairn_tensor *moved = cairn_transpose(x, dim, -1);
    return cairn_transpose(cairn__apply(op, &row, CAIRN__INPUTS(moved), NULL, 0), dim, -1);
}

cairn_tensor *cairn_softmax(cairn_tensor *x, int dim) {
    return along(CAIRN__OP_SOFTMAX, x, dim);
}

cairn_tensor *cairn_log_softmax(cairn_tensor *x, int dim) {
    return along(CAIRN__OP_LOG_SOFTMAX, x, dim);
}
