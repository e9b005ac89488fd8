/* y[B, out] = x[B, in] W[out, in]^T + bias[out], and the three products' worth of its gradients:
 *     dW = dy^T x     db = column sums of dy, rows in order     dx = dy W
 * Operands are multiplied as they are stored, sums are f32, each result is rounded once. */
#include "core/status.h"
#include "nn/ops.h"

enum { X, WEIGHT, BIAS }; /* inputs; the last may be missing */

static cairn_status check_shapes(const cairn_tensor *x, const cairn_tensor *w, const cairn_tensor *bias) {
    char a[CAIRN__SHAPE_TEXT], b[CAIRN__SHAPE_TEXT];
    REQUIRE(x->ndim == 2 && w->ndim == 2, CAIRN_EINVAL, "linear: %s x %s: input and weight must have two dimensions",
            cairn__shape_text(x, a), cairn__shape_text(w, b));
    REQUIRE(x->shape[1] == w->shape[1], CAIRN_EINVAL, "linear: %s x %s: inner sizes %lld and %lld differ",
            cairn__shape_text(x, a), cairn__shape_text(w, b), (long long)x->shape[1], (long long)w->shape[1]);
    REQUIRE(!bias || (bias->ndim == 1 && bias->shape[0] == w->shape[0]), CAIRN_EINVAL,
            "linear: bias is %s, but weight is %s: want [%lld]", cairn__shape_text(bias, a), cairn__shape_text(w, b),
            (long long)w->shape[0]);
    return CAIRN_OK;
}

static cairn_status infer(const struct cairn__node *node) {
    const cairn_tensor *x = node->inputs[X], *w = node->inputs[WEIGHT], *bias = node->inputs[BIAS];
    static const char *const parts[] = {[WEIGHT] = "weight", [BIAS] = "bias"};
    for (int i = WEIGHT; i < node->count; i++) {
        REQUIRE(cairn__tensor_dtype(node->inputs[i]) == cairn__tensor_dtype(x), CAIRN_EINVAL,
                "linear: input is %s but %s is %s; cast one of them or let amp do it",
                cairn_dtype_name(cairn__tensor_dtype(x)), parts[i],
                cairn_dtype_name(cairn__tensor_dtype(node->inputs[i])));
    }
    cairn_status st = check_shapes(x, w, bias);
    if (st != CAIRN_OK) return st;
    node->result->ndim = 2;
    node->result->shape[0] = x->shape[0];
    node->result->shape[1] = w->shape[0];
    return CAIRN_OK;
}

static cairn_status forward(struct cairn__tape *tape, const struct cairn__node *node) {
    const cairn_tensor *x = node->inputs[X], *w = node->inputs[WEIGHT], *bias = node->inputs[BIAS], *y = node->result;
    const struct cairn__matmul p = {.m = x->shape[0],
                                    .n = w->shape[0],
                                    .k = x->shape[1],
                                    .trans_b = true,
                                    .in_type = y->dtype,
                                    .out_type = y->dtype,
                                    .a = cairn__tensor_data(x),
                                    .b = cairn__tensor_data(w),
                                    .bias = bias ? cairn__tensor_data(bias) : NULL,
                                    .c = y->data};
    return cairn__device_matmul(tape->env->device, &p);
}

/* ---- gradients ---- */

static cairn_status column_sums_into(struct cairn__tape *tape, cairn_tensor *bias, const void *dy, int64_t rows) {
    void *db = NULL;
    cairn_status st = cairn__grad_begin(tape, bias, &db);
    if (st != CAIRN_OK) return st;
    cairn__passes_of(tape)->col_sum(tape->env->device, cairn__tensor_dtype(bias), db, dy, (size_t)rows, bias->n);
    return cairn__grad_end(tape, bias, db);
}

/* The bias may be NULL: its gradient is a sum over what the product reads. */
static cairn_status product_into(struct cairn__tape *tape, cairn_tensor *t, cairn_tensor *bias,
                                 struct cairn__matmul p) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__grad_begin(tape, t, &p.c));
    if (bias) TRY(cairn__grad_begin(tape, bias, &p.row_sums));
    TRY(cairn__device_matmul(tape->env->device, &p));
    if (bias) TRY(cairn__grad_end(tape, bias, p.row_sums));
    TRY(cairn__grad_end(tape, t, p.c));
out:
    return st;
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *x = node->inputs[X], *w = node->inputs[WEIGHT], *bias = node->inputs[BIAS];
    const int64_t batch = x->shape[0], in = x->shape[1], outs = w->shape[0];
    const bool sums = bias && cairn__wants_grad(bias), with_product = cairn__wants_grad(w) && w->n > 0;
    cairn_status st = CAIRN_OK;
    struct cairn__matmul p = {.in_type = node->result->dtype, .out_type = node->result->dtype, .a = dy};
    if (sums && !with_product) TRY(column_sums_into(tape, bias, dy, batch));
    if (cairn__wants_grad(w)) {
        p.m = outs, p.k = batch, p.n = in, p.trans_a = true, p.b = cairn__tensor_data(x);
        TRY(product_into(tape, w, sums && with_product ? bias : NULL, p));
    }
    if (cairn__wants_grad(x)) {
        p.m = batch, p.k = outs, p.n = in, p.trans_a = false, p.b = cairn__tensor_data(w);
        TRY(product_into(tape, x, NULL, p));
    }
out:
    return st;
}

const struct cairn__op_row cairn__op_linear = {.infer = infer, .forward = forward, .backward = backward};

cairn_tensor *cairn_linear_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias) {
    return cairn__apply(CAIRN__OP_LINEAR, &(struct cairn__op_args){.count = bias ? 3 : 2, .inputs = {x, weight, bias}});
}
