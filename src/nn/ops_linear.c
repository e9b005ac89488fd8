/* y[..., out] = x[..., in] W[out, in]^T + bias[out], and the three products of its gradients:
 *     dW = dy^T x     db = column sums of dy, rows in order     dx = dy W
 * All dimensions of x but the last are one batch. Operands are multiplied as they are stored, sums are f32, each result
 * is rounded once. f64, for checks, goes through the passes for views. */
#include <string.h>

#include "core/status.h"
#include "nn/ops.h"

enum { X, WEIGHT, BIAS }; /* inputs; BIAS may be missing */

static cairn_status infer(const struct cairn__node *node) {
    const cairn_tensor *x = node->inputs[X], *w = node->inputs[WEIGHT], *bias = node->inputs[BIAS];
    static const char *const parts[] = {[WEIGHT] = "weight", [BIAS] = "bias"};
    for (int i = WEIGHT; i <= BIAS; i++) {
        if (!node->inputs[i]) continue;
        REQUIRE(cairn__tensor_dtype(node->inputs[i]) == cairn__tensor_dtype(x), CAIRN_EINVAL,
                "linear: input is %s but %s is %s; cast one of them or let amp do it",
                cairn_dtype_name(cairn__tensor_dtype(x)), parts[i],
                cairn_dtype_name(cairn__tensor_dtype(node->inputs[i])));
    }
    char a[CAIRN__SHAPE_TEXT], b[CAIRN__SHAPE_TEXT];
    REQUIRE(x->ndim > 0 && w->ndim == 2, CAIRN_EINVAL,
            "linear: %s x %s: weight must have two dimensions, and input at least one", cairn__shape_text(x, a),
            cairn__shape_text(w, b));
    const int64_t in = x->shape[x->ndim - 1];
    REQUIRE(in == w->shape[1], CAIRN_EINVAL, "linear: %s x %s: inner sizes %lld and %lld differ",
            cairn__shape_text(x, a), cairn__shape_text(w, b), (long long)in, (long long)w->shape[1]);
    REQUIRE(!bias || (bias->ndim == 1 && bias->shape[0] == w->shape[0]), CAIRN_EINVAL,
            "linear: bias is %s, but weight is %s; expected [%lld]", cairn__shape_text(bias, a),
            cairn__shape_text(w, b), (long long)w->shape[0]);
    node->result->ndim = x->ndim;
    memcpy(node->result->shape, x->shape, sizeof(x->shape));
    node->result->shape[x->ndim - 1] = w->shape[0];
    return CAIRN_OK;
}

static int64_t batch_of(const cairn_tensor *x) {
    int64_t batch = 1;
    for (int d = 0; d < x->ndim - 1; d++) batch *= x->shape[d];
    return batch;
}

/* ---- f64 ---- */

static struct cairn__view matrix(const void *data, int64_t rows, int64_t cols) {
    return cairn__view_dense((void *)(uintptr_t)data, CAIRN_F64, 2, (const int64_t[]){rows, cols});
}

/* f64 without relu. */
static cairn_status multiply(struct cairn__tape *tape, const struct cairn__matmul *p) {
    const struct cairn__math *math = cairn__math_of(tape);
    if (p->in_type != CAIRN_F64) return cairn__device_matmul(tape->env->device, p);
    REQUIRE(math, CAIRN_ENOTSUP, "linear: '%s' does not compute f64; use device \"cpu\"",
            cairn_device_name(tape->env->device));
    const struct cairn__view c = matrix(p->c, p->m, p->n);
    const struct cairn__view a = {
        (void *)(uintptr_t)p->a, CAIRN_F64, 2, {p->m, p->k}, {p->trans_a ? 1 : p->k, p->trans_a ? p->m : 1}};
    const struct cairn__view b = {
        (void *)(uintptr_t)p->b, CAIRN_F64, 2, {p->k, p->n}, {p->trans_b ? 1 : p->n, p->trans_b ? p->k : 1}};
    math->product(tape->env->device, &c, &a, &b);
    if (p->bias) {
        struct cairn__view bias = matrix(p->bias, p->m, p->n);
        bias.stride[0] = 0;
        math->map(tape->env->device, CAIRN__MAP_ADD, &c, (const struct cairn__view[]){c, bias}, (const double[]){1, 0});
    }
    if (p->row_sums) {
        struct cairn__view sums = matrix(p->row_sums, p->m, p->k);
        sums.stride[0] = 1, sums.stride[1] = 0;
        math->fold(tape->env->device, CAIRN__FOLD_SUM, &sums, &a, 1, false);
    }
    return CAIRN_OK;
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    const cairn_tensor *x = node->inputs[X], *w = node->inputs[WEIGHT], *bias = node->inputs[BIAS], *y = node->result;
    const struct cairn__matmul p = {.m = batch_of(x),
                                    .n = w->shape[0],
                                    .k = w->shape[1],
                                    .trans_b = true,
                                    .in_type = y->dtype,
                                    .out_type = y->dtype,
                                    .a = cairn__tensor_data(x),
                                    .b = cairn__tensor_data(w),
                                    .bias = bias ? cairn__tensor_data(bias) : NULL,
                                    .c = y->data};
    return multiply(tape, &p);
}

/* ---- gradients ---- */

static cairn_status column_sums_into(struct cairn__tape *tape, cairn_tensor *bias, const void *dy, int64_t rows) {
    void *db = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, bias, &db));
    if (cairn__tensor_dtype(bias) == CAIRN_F64) {
        const struct cairn__view x = matrix(dy, rows, (int64_t)bias->n);
        struct cairn__view sums = matrix(db, rows, (int64_t)bias->n);
        sums.stride[0] = 0;
        cairn__math_of(tape)->fold(tape->env->device, CAIRN__FOLD_SUM, &sums, &x, 1, false);
    } else {
        cairn__passes_of(tape)->col_sum(tape->env->device, cairn__tensor_dtype(bias), db, dy, (size_t)rows, bias->n);
    }
    TRY(cairn__tensor_grad_end(tape, bias, db));
out:
    return st;
}

/* The gradient of t, a product, and of bias (may be NULL), a sum over an operand that the product reads anyway. */
static cairn_status product_into(struct cairn__tape *tape, cairn_tensor *t, cairn_tensor *bias,
                                 struct cairn__matmul p) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, t, &p.c));
    if (bias) TRY(cairn__tensor_grad_begin(tape, bias, &p.row_sums));
    TRY(multiply(tape, &p));
    if (bias) TRY(cairn__tensor_grad_end(tape, bias, p.row_sums));
    TRY(cairn__tensor_grad_end(tape, t, p.c));
out:
    return st;
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *x = node->inputs[X], *w = node->inputs[WEIGHT], *bias = node->inputs[BIAS];
    const int64_t batch = batch_of(x), in = w->shape[1], outs = w->shape[0];
    const bool sums = cairn__wants_grad(bias), with_product = cairn__wants_grad(w) && w->n > 0;
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

static const struct cairn__op_row row = {
    .optional = 1u << BIAS, .infer = infer, .forward = forward, .backward = backward, .reads = cairn__reads_inputs};

cairn_tensor *cairn_linear_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias) {
    return cairn__apply(CAIRN__OP_LINEAR, &row, CAIRN__INPUTS(x, weight, bias), NULL, 0);
}
