/* Reductions: sums, products, maxima and the like, over all elements or along dimensions.
 *
 * sum and mean of all elements are one sum as defined in kernels.h, one division and one rounding, on any device. The
 * others are folds of math_passes.h. */
#include <math.h>

#include "core/status.h"
#include "nn/ops.h"

/* ---- sum and mean of all elements ---- */

static cairn_status reduce(struct cairn__tape *tape, const struct cairn__node *node, double divisor) {
    const cairn_tensor *x = node->inputs[0], *y = node->result;
    const cairn_dtype from = cairn__tensor_dtype(x);
    if (x->is_dense && (from == CAIRN_F32 || cairn__is_half(from))) { /* passes.h computes it */
        cairn__passes_of(tape)->sum(tape->env->device, y->dtype, y->data, cairn__tensor_data(x), x->n, (float)divisor);
        return CAIRN_OK;
    }
    cairn_status st = CAIRN_OK;
    TRY(cairn__require_math(tape, node->op));
    const struct cairn__view view_x = cairn__tensor_view(x), view_y = cairn__tensor_view(y);
    cairn__math_of(tape)->map_sum(tape->env->device, CAIRN__MAP_COPY, &view_y, &view_x, NULL, divisor);
out:
    return st;
}

static cairn_status spread(struct cairn__tape *tape, const struct cairn__node *node, const void *dy, double divisor) {
    cairn_tensor *x = node->inputs[0];
    void *dx = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, x, &dx));
    if (node->result->dtype != CAIRN_F64) {
        cairn__passes_of(tape)->spread(tape->env->device, node->result->dtype, dx, x->n, dy, (float)divisor);
    } else {
        const struct cairn__view one = cairn__dy_view(node, dy), to = cairn__tensor_grad_view(x, dx);
        const struct cairn__view each = cairn__view_broadcast(&one, x->ndim, x->shape);
        cairn__math_of(tape)->map(tape->env->device, CAIRN__MAP_AFFINE, &to, &each, (const double[]){1 / divisor, 0});
    }
    TRY(cairn__tensor_grad_end(tape, x, dx));
out:
    return st;
}

/* Integers and bools are summed as i64. */
static cairn_status sum_infer(const struct cairn__node *node) {
    if (!cairn__is_float(node->result->dtype)) node->result->dtype = CAIRN_I64;
    return cairn__infer_scalar(node);
}

static cairn_status sum_forward(struct cairn__tape *tape, struct cairn__node *node) {
    return reduce(tape, node, 1);
}

static cairn_status sum_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    return spread(tape, node, dy, 1);
}

static const struct cairn__op_row sum_row = {.strided = true,
                                             .infer = sum_infer,
                                             .forward = sum_forward,
                                             .backward = sum_backward,
                                             .reads = cairn__reads_nothing};

cairn_tensor *cairn_sum(cairn_tensor *x) {
    return cairn__apply(CAIRN__OP_SUM, &sum_row, CAIRN__INPUTS(x), NULL, 0);
}

static cairn_status check_float(const struct cairn__node *node) {
    REQUIRE(cairn__is_float(node->result->dtype), CAIRN_EINVAL, "%s: the input is %s; cast it to a float first",
            cairn__op_name(node->op), cairn_dtype_name(node->result->dtype));
    return CAIRN_OK;
}

static cairn_status mean_infer(const struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    TRY(check_float(node));
    TRY(cairn__infer_scalar(node));
out:
    return st;
}

static cairn_status mean_forward(struct cairn__tape *tape, struct cairn__node *node) {
    return reduce(tape, node, (double)node->inputs[0]->n);
}

static cairn_status mean_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    return spread(tape, node, dy, (double)node->inputs[0]->n);
}

static const struct cairn__op_row mean_row = {.strided = true,
                                              .infer = mean_infer,
                                              .forward = mean_forward,
                                              .backward = mean_backward,
                                              .reads = cairn__reads_nothing};

cairn_tensor *cairn_mean(cairn_tensor *x) {
    return cairn__apply(CAIRN__OP_MEAN, &mean_row, CAIRN__INPUTS(x), NULL, 0);
}

/* ---- along dimensions ---- */

struct reduction {
    int ndims; /* 0 = all */
    int dims[CAIRN_MAX_DIMS];
    bool keepdim;
    double number; /* norm's p, var's correction */
};

/* Bit d: dimension d of the input is folded. */
static uint32_t folded_dims(const struct cairn__node *node) {
    const struct reduction *r = node->attrs;
    const int ndim = node->inputs[0]->ndim, dims = ndim > 0 ? ndim : 1;
    uint32_t folded = 0;
    if (r->ndims == 0) return UINT32_MAX;
    for (int i = 0; i < r->ndims; i++) folded |= 1u << (r->dims[i] < 0 ? r->dims[i] + dims : r->dims[i]);
    return folded;
}

/* A tensor without dimensions accepts 0 and -1, as in torch. */
static cairn_status check_dims(const struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    const struct reduction *r = node->attrs;
    const int ndim = node->inputs[0]->ndim;
    uint32_t seen = 0;
    for (int i = 0; i < r->ndims; i++) {
        int d;
        TRY(cairn__dim_of(node->op, ndim > 0 ? ndim : 1, r->dims[i], &d));
        REQUIRE(!(seen >> d & 1), CAIRN_EINVAL, "%s: dimension %d is named twice", cairn__op_name(node->op), d);
        seen |= 1u << d;
    }
out:
    return st;
}

static cairn_status reduction_infer(const struct cairn__node *node) {
    const struct reduction *r = node->attrs;
    const cairn_tensor *x = node->inputs[0];
    cairn_tensor *y = node->result;
    cairn_status st = CAIRN_OK;
    TRY(check_dims(node));
    const uint32_t folded = folded_dims(node);
    y->ndim = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (!(folded >> d & 1)) y->shape[y->ndim++] = x->shape[d];
        else if (r->keepdim) y->shape[y->ndim++] = 1;
    }
out:
    return st;
}

/* Dense values of the result's shape viewed with the input's shape: what a fold writes and its backward reads. */
static struct cairn__view spread_view(const struct cairn__node *node, const void *data, cairn_dtype t) {
    const cairn_tensor *x = node->inputs[0];
    const uint32_t folded = folded_dims(node);
    struct cairn__view v = {.data = (void *)(uintptr_t)data, .dtype = t, .ndim = x->ndim};
    int64_t stride = 1;
    for (int d = x->ndim - 1; d >= 0; d--) {
        const bool is_folded = folded >> d & 1;
        v.size[d] = x->shape[d];
        v.stride[d] = is_folded ? 0 : stride;
        if (!is_folded) stride *= x->shape[d];
    }
    return v;
}

static struct cairn__view result_view(const struct cairn__node *node) {
    return spread_view(node, node->result->data, node->result->dtype);
}

/* The number of input elements per result. */
static double folded_count(const struct cairn__node *node) {
    const uint32_t folded = folded_dims(node);
    const cairn_tensor *x = node->inputs[0];
    double n = 1;
    for (int d = 0; d < x->ndim; d++) n *= folded >> d & 1 ? (double)x->shape[d] : 1;
    return n;
}

static cairn_status check_not_empty(const struct cairn__node *node) {
    char text[CAIRN__SHAPE_TEXT];
    REQUIRE(folded_count(node) > 0, CAIRN_EINVAL, "%s: %s: a reduced dimension has size 0", cairn__op_name(node->op),
            cairn__shape_text(node->inputs[0], text));
    return CAIRN_OK;
}

static cairn_status float_infer(const struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    TRY(check_float(node));
    TRY(reduction_infer(node));
out:
    return st;
}

static cairn_status i64_infer(const struct cairn__node *node) {
    if (!cairn__is_float(node->result->dtype)) node->result->dtype = CAIRN_I64;
    return reduction_infer(node);
}

static void map(struct cairn__tape *tape, enum cairn__map_fn f, const struct cairn__view *to,
                const struct cairn__view *x, double p0) {
    cairn__math_of(tape)->map(tape->env->device, f, to, x, (const double[CAIRN__MAP_NUMBERS]){p0, 0});
}

static void fold(struct cairn__tape *tape, enum cairn__fold f, const struct cairn__node *node, double divisor,
                 bool root) {
    const struct cairn__view x = cairn__tensor_view(node->inputs[0]), y = result_view(node);
    cairn__math_of(tape)->fold(tape->env->device, f, &y, &x, divisor, root);
}

/* Scratch in the type of arithmetic, viewed with the input's shape: values of the result's shape; or of the input's. */
static cairn_status result_scratch(struct cairn__tape *tape, const struct cairn__node *node, struct cairn__view *out) {
    const cairn_dtype r = cairn__arithmetic_type(node->result->dtype);
    void *data = NULL;
    cairn_status st = cairn__scratch(tape, node->result->n * cairn_dtype_nbytes(r), &data);
    *out = spread_view(node, data, r);
    return st;
}
static cairn_status input_scratch(struct cairn__tape *tape, const struct cairn__node *node, cairn_dtype t,
                                  struct cairn__view *out) {
    const cairn_tensor *x = node->inputs[0];
    void *data = NULL;
    cairn_status st = cairn__scratch(tape, x->n * cairn_dtype_nbytes(t), &data);
    *out = cairn__view_dense(data, t, x->ndim, x->shape);
    return st;
}

/* The dense values that a spread view of the result's shape shows, each once. */
static struct cairn__view each_once(const struct cairn__node *node, const struct cairn__view *v) {
    return cairn__view_dense(v->data, v->dtype, node->result->ndim, node->result->shape);
}

/* A gradient in terms of views of the input's shape: begin, compute, end. */
typedef cairn_status (*gradient_fn)(struct cairn__tape *tape, const struct cairn__node *node,
                                    const struct cairn__view *dx, const struct cairn__view *dy);

static cairn_status give_gradient(struct cairn__tape *tape, const struct cairn__node *node, const void *dy,
                                  gradient_fn gradient) {
    cairn_tensor *x = node->inputs[0];
    void *dx = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, x, &dx));
    const struct cairn__view to = cairn__tensor_grad_view(x, dx), from = spread_view(node, dy, node->result->dtype);
    TRY(gradient(tape, node, &to, &from));
    TRY(cairn__tensor_grad_end(tape, x, dx));
out:
    return st;
}

/* Applies op. dims are copied to the node's attrs. */
static cairn_tensor *along(enum cairn__op op, const struct cairn__op_row *row, cairn_tensor *x, double number,
                           int ndims, const int *dims, int keepdim) {
    struct reduction r = {.ndims = ndims, .keepdim = keepdim != 0, .number = number};
    if (x && ndims > 0 && ndims <= CAIRN_MAX_DIMS && !dims) {
        cairn__fail(CAIRN_EINVAL, "%s: dims is NULL", cairn__op_name(op));
        return NULL;
    }
    if (x && (ndims < 0 || ndims > CAIRN_MAX_DIMS)) {
        cairn__fail(CAIRN_EINVAL, "%s: num_dims is %d; it must be from 0 (all) to %d", cairn__op_name(op), ndims,
                    CAIRN_MAX_DIMS);
        return NULL;
    }
    for (int i = 0; x && i < ndims; i++) r.dims[i] = dims[i];
    return cairn__apply(op, row, CAIRN__INPUTS(x), &r, sizeof(r));
}

/* ---- sum_dims and mean_dims ---- */

static cairn_status sum_dims_forward(struct cairn__tape *tape, struct cairn__node *node) {
    fold(tape, CAIRN__FOLD_SUM, node, 1, false);
    return CAIRN_OK;
}

static cairn_status sum_dims_gradient(struct cairn__tape *tape, const struct cairn__node *node,
                                      const struct cairn__view *dx, const struct cairn__view *dy) {
    (void)node;
    map(tape, CAIRN__MAP_COPY, dx, dy, 0);
    return CAIRN_OK;
}

static cairn_status sum_dims_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    return give_gradient(tape, node, dy, sum_dims_gradient);
}

static const struct cairn__op_row sum_dims_row = {.strided = true,
                                                  .needs_math = true,
                                                  .infer = i64_infer,
                                                  .forward = sum_dims_forward,
                                                  .backward = sum_dims_backward,
                                                  .reads = cairn__reads_nothing};

cairn_tensor *cairn_sum_dims(cairn_tensor *x, int ndims, const int *dims, int keepdim) {
    return along(CAIRN__OP_SUM_DIMS, &sum_dims_row, x, 0, ndims, dims, keepdim);
}

static cairn_status mean_dims_forward(struct cairn__tape *tape, struct cairn__node *node) {
    fold(tape, CAIRN__FOLD_SUM, node, folded_count(node), false);
    return CAIRN_OK;
}

static cairn_status mean_dims_gradient(struct cairn__tape *tape, const struct cairn__node *node,
                                       const struct cairn__view *dx, const struct cairn__view *dy) {
    map(tape, CAIRN__MAP_AFFINE, dx, dy, 1 / folded_count(node));
    return CAIRN_OK;
}

static cairn_status mean_dims_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    return give_gradient(tape, node, dy, mean_dims_gradient);
}

static const struct cairn__op_row mean_dims_row = {.strided = true,
                                                   .needs_math = true,
                                                   .infer = float_infer,
                                                   .forward = mean_dims_forward,
                                                   .backward = mean_dims_backward,
                                                   .reads = cairn__reads_nothing};

cairn_tensor *cairn_mean_dims(cairn_tensor *x, int ndims, const int *dims, int keepdim) {
    return along(CAIRN__OP_MEAN_DIMS, &mean_dims_row, x, 0, ndims, dims, keepdim);
}

/* ---- var and std ---- */

/* One element with correction 1 gives 0 / 0, as in torch. */
static double variance_divisor(const struct cairn__node *node) {
    const double n = folded_count(node) - ((const struct reduction *)node->attrs)->number;
    return n > 0 ? n : 0;
}

/* Saves the means for backward. */
static cairn_status var_forward(struct cairn__tape *tape, struct cairn__node *node) {
    const cairn_dtype r = cairn__arithmetic_type(node->result->dtype);
    cairn_status st = CAIRN_OK;
    TRY(cairn__save(tape, node, node->result->n * cairn_dtype_nbytes(r)));
    const struct cairn__view x = cairn__tensor_view(node->inputs[0]), y = result_view(node);
    cairn__math_of(tape)->variance(tape->env->device, &y, node->saved, &x, variance_divisor(node),
                                   node->op == CAIRN__OP_STD);
out:
    return st;
}

/* d var / d x = 2 (x - mean) / (n - correction) */
static void var_slope(struct cairn__tape *tape, const struct cairn__node *node, const struct cairn__view *dx,
                      const struct cairn__view *dy) {
    const struct cairn__view mean = spread_view(node, node->saved, cairn__arithmetic_type(node->result->dtype));
    const struct cairn__view of[] = {*dy, cairn__tensor_view(node->inputs[0]), mean};
    map(tape, CAIRN__MAP_SQUARED_DIFFERENCE_BACKWARD, dx, of, 1 / variance_divisor(node));
}

static cairn_status var_gradient(struct cairn__tape *tape, const struct cairn__node *node, const struct cairn__view *dx,
                                 const struct cairn__view *dy) {
    var_slope(tape, node, dx, dy);
    return CAIRN_OK;
}

/* to = slope(dy, y), but 0 where y is 0; all have the result's shape. */
static void slope_of_root(struct cairn__tape *tape, const struct cairn__node *node, enum cairn__map_fn slope,
                          const struct cairn__view *to, const struct cairn__view *dy) {
    const struct cairn__view y = cairn__tensor_view(node->result), once = each_once(node, to);
    const struct cairn__view of[] = {each_once(node, dy), y}, masked[] = {y, once};
    map(tape, slope, &once, of, 0);
    map(tape, CAIRN__MAP_MASKED, &once, masked, 0);
}

/* The deviation is not differentiable where all elements are equal; the gradient is 0 there, as in torch. */
static cairn_status std_gradient(struct cairn__tape *tape, const struct cairn__node *node, const struct cairn__view *dx,
                                 const struct cairn__view *dy) {
    struct cairn__view inner;
    cairn_status st = CAIRN_OK;
    TRY(result_scratch(tape, node, &inner));
    slope_of_root(tape, node, CAIRN__MAP_SQRT_BACKWARD, &inner, dy);
    var_slope(tape, node, dx, &inner);
out:
    return st;
}

static cairn_status var_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    return give_gradient(tape, node, dy, node->op == CAIRN__OP_STD ? std_gradient : var_gradient);
}

static const struct cairn__op_row var_row = {
    .strided = true, .needs_math = true, .infer = float_infer, .forward = var_forward, .backward = var_backward};

cairn_tensor *cairn_var(cairn_tensor *x, int ndims, const int *dims, int correction, int keepdim) {
    return along(CAIRN__OP_VAR, &var_row, x, correction, ndims, dims, keepdim);
}

cairn_tensor *cairn_std(cairn_tensor *x, int ndims, const int *dims, int correction, int keepdim) {
    return along(CAIRN__OP_STD, &var_row, x, correction, ndims, dims, keepdim);
}

/* ---- maxima: equal maxima share the gradient evenly, and so do NaNs, each of which is the result ---- */

static cairn_status extreme_infer(const struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    TRY(reduction_infer(node));
    TRY(check_not_empty(node));
out:
    return st;
}

static cairn_status extreme_forward(struct cairn__tape *tape, struct cairn__node *node) {
    fold(tape, node->op == CAIRN__OP_AMIN ? CAIRN__FOLD_MIN : CAIRN__FOLD_MAX, node, 1, false);
    return CAIRN_OK;
}

/* is_best: where x, of the input's shape, equals the result. share: the part of dy that each such element gets. */
static cairn_status share_evenly(struct cairn__tape *tape, const struct cairn__node *node, const struct cairn__view *x,
                                 const struct cairn__view *dy, struct cairn__view *is_best, struct cairn__view *share) {
    const struct cairn__view compared[] = {*x, result_view(node)};
    cairn_status st = CAIRN_OK;
    TRY(input_scratch(tape, node, CAIRN_BOOL, is_best));
    TRY(result_scratch(tape, node, share));
    map(tape, CAIRN__MAP_IS_EXTREME, is_best, compared, 0);
    cairn__math_of(tape)->fold(tape->env->device, CAIRN__FOLD_SUM, share, is_best, 1, false);
    const struct cairn__view once = each_once(node, share), divided[] = {each_once(node, dy), once};
    map(tape, CAIRN__MAP_DIV, &once, divided, 0);
out:
    return st;
}

static cairn_status extreme_gradient(struct cairn__tape *tape, const struct cairn__node *node,
                                     const struct cairn__view *dx, const struct cairn__view *dy) {
    const struct cairn__view x = cairn__tensor_view(node->inputs[0]);
    struct cairn__view of[2]; /* is_best, share */
    cairn_status st = CAIRN_OK;
    TRY(share_evenly(tape, node, &x, dy, &of[0], &of[1]));
    map(tape, CAIRN__MAP_MASKED, dx, of, 0);
out:
    return st;
}

static cairn_status extreme_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    return give_gradient(tape, node, dy, extreme_gradient);
}

static const struct cairn__op_row extreme_row = {.strided = true,
                                                 .needs_math = true,
                                                 .infer = extreme_infer,
                                                 .forward = extreme_forward,
                                                 .backward = extreme_backward};

cairn_tensor *cairn_amax(cairn_tensor *x, int ndims, const int *dims, int keepdim) {
    return along(CAIRN__OP_AMAX, &extreme_row, x, 0, ndims, dims, keepdim);
}

cairn_tensor *cairn_amin(cairn_tensor *x, int ndims, const int *dims, int keepdim) {
    return along(CAIRN__OP_AMIN, &extreme_row, x, 0, ndims, dims, keepdim);
}

cairn_tensor *cairn_max(cairn_tensor *x) {
    return cairn_amax(x, 0, NULL, 0);
}

cairn_tensor *cairn_min(cairn_tensor *x) {
    return cairn_amin(x, 0, NULL, 0);
}

/* ---- norm ---- */

static cairn_status norm_infer(const struct cairn__node *node) {
    const double p = ((const struct reduction *)node->attrs)->number;
    REQUIRE(p == 1 || p == 2 || p == (double)INFINITY, CAIRN_EINVAL, "norm: p is %g; it must be 1, 2 or INFINITY", p);
    cairn_status st = CAIRN_OK;
    TRY(float_infer(node));
    if (isinf(p)) TRY(check_not_empty(node));
out:
    return st;
}

/* The greatest |x| is the greater of max x and -min x. */
static cairn_status norm_of_infinity(struct cairn__tape *tape, const struct cairn__node *node) {
    const struct cairn__view x = cairn__tensor_view(node->inputs[0]), y = cairn__tensor_view(node->result);
    struct cairn__view least;
    cairn_status st = CAIRN_OK;
    TRY(result_scratch(tape, node, &least));
    fold(tape, CAIRN__FOLD_MAX, node, 1, false);
    cairn__math_of(tape)->fold(tape->env->device, CAIRN__FOLD_MIN, &least, &x, 1, false);
    const struct cairn__view once = each_once(node, &least), both[] = {y, once};
    map(tape, CAIRN__MAP_NEG, &once, &once, 0);
    map(tape, CAIRN__MAP_MAXIMUM, &y, both, 0);
out:
    return st;
}

static cairn_status norm_forward(struct cairn__tape *tape, struct cairn__node *node) {
    const double p = ((const struct reduction *)node->attrs)->number;
    if (isinf(p)) return norm_of_infinity(tape, node);
    fold(tape, p == 1 ? CAIRN__FOLD_SUM_ABS : CAIRN__FOLD_SUM_SQUARES, node, 1, p == 2);
    return CAIRN_OK;
}

/* dy sign(x) */
static cairn_status norm1_gradient(struct cairn__tape *tape, const struct cairn__node *node,
                                   const struct cairn__view *dx, const struct cairn__view *dy) {
    const struct cairn__view of[] = {*dy, cairn__tensor_view(node->inputs[0])};
    map(tape, CAIRN__MAP_ABS_BACKWARD, dx, of, 0);
    return CAIRN_OK;
}

/* dy x / y, but 0 where y is 0, as in torch */
static cairn_status norm2_gradient(struct cairn__tape *tape, const struct cairn__node *node,
                                   const struct cairn__view *dx, const struct cairn__view *dy) {
    struct cairn__view of[] = {cairn__tensor_view(node->inputs[0]), {.data = NULL}};
    cairn_status st = CAIRN_OK;
    TRY(result_scratch(tape, node, &of[1]));
    slope_of_root(tape, node, CAIRN__MAP_DIV, &of[1], dy);
    map(tape, CAIRN__MAP_MUL, dx, of, 0);
out:
    return st;
}

/* dy shared among the elements of greatest magnitude, with their signs */
static cairn_status norm_infinity_gradient(struct cairn__tape *tape, const struct cairn__node *node,
                                           const struct cairn__view *dx, const struct cairn__view *dy) {
    const struct cairn__view x = cairn__tensor_view(node->inputs[0]);
    struct cairn__view size, of[2], share;
    cairn_status st = CAIRN_OK;
    TRY(input_scratch(tape, node, cairn__arithmetic_type(node->result->dtype), &size));
    map(tape, CAIRN__MAP_ABS, &size, &x, 0);
    TRY(share_evenly(tape, node, &size, dy, &of[0], &share));
    const struct cairn__view signed_share[] = {share, x};
    map(tape, CAIRN__MAP_ABS_BACKWARD, &size, signed_share, 0);
    of[1] = size;
    map(tape, CAIRN__MAP_MASKED, dx, of, 0);
out:
    return st;
}

static cairn_status norm_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    const double p = ((const struct reduction *)node->attrs)->number;
    return give_gradient(tape, node, dy, p == 1 ? norm1_gradient : p == 2 ? norm2_gradient : norm_infinity_gradient);
}

static const struct cairn__op_row norm_row = {
    .strided = true, .needs_math = true, .infer = norm_infer, .forward = norm_forward, .backward = norm_backward};

cairn_tensor *cairn_norm(cairn_tensor *x, double p, int ndims, const int *dims, int keepdim) {
    return along(CAIRN__OP_NORM, &norm_row, x, p, ndims, dims, keepdim);
}

/* ---- along one dimension: products and running sums ---- */

/* The given dimension; -1 for a tensor without dimensions. */
static int axis_of(const struct cairn__node *node) {
    const int ndim = node->inputs[0]->ndim, dim = ((const struct reduction *)node->attrs)->dims[0];
    return ndim == 0 ? -1 : dim < 0 ? dim + ndim : dim;
}

static int64_t length_of(const struct cairn__node *node) {
    return axis_of(node) < 0 ? 1 : node->inputs[0]->shape[axis_of(node)];
}

/* Elements first..first+n-1 of v along the axis. */
static struct cairn__view part(const struct cairn__node *node, const struct cairn__view *v, int64_t first, int64_t n) {
    struct cairn__view p = *v;
    const int axis = axis_of(node);
    if (axis < 0) return p;
    p.data = (char *)v->data + first * v->stride[axis] * (int64_t)cairn_dtype_nbytes(v->dtype);
    p.size[axis] = n;
    return p;
}

static void multiply(struct cairn__tape *tape, struct cairn__view to, struct cairn__view a, struct cairn__view b) {
    const struct cairn__view of[] = {a, b};
    map(tape, CAIRN__MAP_MUL, &to, of, 0);
}

static cairn_status prod_forward(struct cairn__tape *tape, struct cairn__node *node) {
    fold(tape, CAIRN__FOLD_PRODUCT, node, 1, false);
    return CAIRN_OK;
}

/* dx[i] = dy * (product before i) * (product behind i): no division, so zeros need no special case. */
static cairn_status prod_gradient(struct cairn__tape *tape, const struct cairn__node *node,
                                  const struct cairn__view *dx, const struct cairn__view *dy) {
    const cairn_dtype r = cairn__arithmetic_type(node->result->dtype);
    const struct cairn__view x = cairn__tensor_view(node->inputs[0]);
    const int64_t n = length_of(node);
    struct cairn__view before, behind; /* including i */
    cairn_status st = CAIRN_OK;
    if (n == 1) map(tape, CAIRN__MAP_COPY, dx, dy, 0);
    if (n <= 1) return CAIRN_OK;
    TRY(input_scratch(tape, node, r, &before));
    TRY(input_scratch(tape, node, r, &behind));
    cairn__math_of(tape)->cumulate(tape->env->device, &before, &x, axis_of(node), true, false);
    cairn__math_of(tape)->cumulate(tape->env->device, &behind, &x, axis_of(node), true, true);
    multiply(tape, part(node, &before, 0, n - 2), part(node, &before, 0, n - 2), part(node, &behind, 2, n - 2));
    multiply(tape, part(node, dx, 1, n - 1), part(node, &before, 0, n - 1), part(node, dy, 1, n - 1));
    multiply(tape, part(node, dx, 0, 1), part(node, &behind, 1, 1), part(node, dy, 0, 1));
out:
    return st;
}

static cairn_status prod_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    return give_gradient(tape, node, dy, prod_gradient);
}

static const struct cairn__op_row prod_row = {
    .strided = true, .needs_math = true, .infer = i64_infer, .forward = prod_forward, .backward = prod_backward};

cairn_tensor *cairn_prod(cairn_tensor *x, int dim, int keepdim) {
    return along(CAIRN__OP_PROD, &prod_row, x, 0, 1, &dim, keepdim);
}

/* The result has the input's shape. */
static cairn_status running_infer(const struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    TRY(check_dims(node));
    if (!cairn__is_float(node->result->dtype)) node->result->dtype = CAIRN_I64;
    TRY(cairn__infer_like_first(node));
out:
    return st;
}

static void cumulate(struct cairn__tape *tape, const struct cairn__node *node, const struct cairn__view *to,
                     const struct cairn__view *x, bool product, bool reverse) {
    if (axis_of(node) < 0) {
        map(tape, CAIRN__MAP_COPY, to, x, 0);
    } else {
        cairn__math_of(tape)->cumulate(tape->env->device, to, x, axis_of(node), product, reverse);
    }
}

static cairn_status running_forward(struct cairn__tape *tape, struct cairn__node *node) {
    const struct cairn__view x = cairn__tensor_view(node->inputs[0]), y = cairn__tensor_view(node->result);
    cumulate(tape, node, &y, &x, node->op == CAIRN__OP_CUMPROD, false);
    return CAIRN_OK;
}

static cairn_status cumsum_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *x = node->inputs[0];
    void *dx = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, x, &dx));
    const struct cairn__view from = cairn__dy_view(node, dy), to = cairn__tensor_grad_view(x, dx);
    cumulate(tape, node, &to, &from, false, true);
    TRY(cairn__tensor_grad_end(tape, x, dx));
out:
    return st;
}

static const struct cairn__op_row cumsum_row = {.strided = true,
                                                .needs_math = true,
                                                .infer = running_infer,
                                                .forward = running_forward,
                                                .backward = cumsum_backward,
                                                .reads = cairn__reads_nothing};

cairn_tensor *cairn_cumsum(cairn_tensor *x, int dim) {
    return along(CAIRN__OP_CUMSUM, &cumsum_row, x, 0, 1, &dim, 0);
}

/* dx[i] = before[i - 1] * s[i], where s[i] = dy[i] + x[i + 1] s[i + 1] sums, over k >= i, dy[k] times what y[k] has
 * behind x[i]: no division by x, so zeros need no special case. dx first holds s. */
static cairn_status cumprod_gradient(struct cairn__tape *tape, const struct cairn__node *node,
                                     const struct cairn__view *dx, const struct cairn__view *dy) {
    const cairn_dtype r = cairn__arithmetic_type(node->result->dtype);
    const struct cairn__view x = cairn__tensor_view(node->inputs[0]);
    const int64_t n = length_of(node);
    struct cairn__view before, s;
    cairn_status st = CAIRN_OK;
    TRY(input_scratch(tape, node, r, &before));
    TRY(input_scratch(tape, node, r, &s));
    cumulate(tape, node, &before, &x, true, false);
    map(tape, CAIRN__MAP_COPY, &s, dy, 0);
    for (int64_t i = n - 2; i >= 0; i--) {
        const struct cairn__view here = part(node, &s, i, 1);
        const struct cairn__view of[] = {here, part(node, &x, i + 1, 1), part(node, &s, i + 1, 1)};
        map(tape, CAIRN__MAP_ADDCMUL, &here, of, 1);
    }
    if (n > 0) {
        const struct cairn__view first = part(node, &s, 0, 1), to = part(node, dx, 0, 1);
        map(tape, CAIRN__MAP_COPY, &to, &first, 0);
    }
    if (n > 1) multiply(tape, part(node, dx, 1, n - 1), part(node, &before, 0, n - 1), part(node, &s, 1, n - 1));
out:
    return st;
}

static cairn_status cumprod_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *x = node->inputs[0];
    void *dx = NULL;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, x, &dx));
    const struct cairn__view from = cairn__dy_view(node, dy), to = cairn__tensor_grad_view(x, dx);
    TRY(cumprod_gradient(tape, node, &to, &from));
    TRY(cairn__tensor_grad_end(tape, x, dx));
out:
    return st;
}

static const struct cairn__op_row cumprod_row = {.strided = true,
                                                 .needs_math = true,
                                                 .infer = running_infer,
                                                 .forward = running_forward,
                                                 .backward = cumprod_backward};

cairn_tensor *cairn_cumprod(cairn_tensor *x, int dim) {
    return along(CAIRN__OP_CUMPROD, &cumprod_row, x, 0, 1, &dim, 0);
}

/* ---- argmax and argmin ---- */

static cairn_status arg_infer(const struct cairn__node *node) {
    cairn_status st = extreme_infer(node);
    node->result->dtype = CAIRN_I64;
    return st;
}

/* A tensor without dimensions is treated as one dimension of size 1. */
static cairn_status arg_forward(struct cairn__tape *tape, struct cairn__node *node) {
    struct cairn__view x = cairn__tensor_view(node->inputs[0]);
    if (x.ndim == 0) x.ndim = 1, x.size[0] = 1, x.stride[0] = 1;
    const int axis = axis_of(node) < 0 ? 0 : axis_of(node);
    int64_t kept[CAIRN_MAX_DIMS];
    for (int d = 0; d < x.ndim; d++) kept[d] = d == axis ? 1 : x.size[d];
    const struct cairn__view index = cairn__view_dense(node->result->data, CAIRN_I64, x.ndim, kept);
    cairn__math_of(tape)->arg_max(tape->env->device, &index, NULL, &x, axis, node->op == CAIRN__OP_ARGMIN);
    return CAIRN_OK;
}

static const struct cairn__op_row arg_extreme_row = {.strided = true,
                                                     .needs_math = true,
                                                     .infer = arg_infer,
                                                     .forward = arg_forward};

cairn_tensor *cairn_argmax(cairn_tensor *x, int dim, int keepdim) {
    return along(CAIRN__OP_ARGMAX, &arg_extreme_row, x, 0, 1, &dim, keepdim);
}

cairn_tensor *cairn_argmin(cairn_tensor *x, int dim, int keepdim) {
    return along(CAIRN__OP_ARGMIN, &arg_extreme_row, x, 0, 1, &dim, keepdim);
}
