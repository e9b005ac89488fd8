/* Convolutions: one row for 1-D, 2-D, and transposed. 1-D is 2-D with one row of pixels; an input without a batch is a
 * batch of one.
 *
 * Sizes, with every option at most 2^31 - 1, so that nothing overflows on the way:
 *     out = (in + 2 padding - dilation (kernel - 1) - 1) / stride + 1
 *     transposed: out = (in - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1 */
#include "core/options.h"
#include "core/status.h"
#include "nn/ops_planes.h"

enum { X, WEIGHT, BIAS }; /* inputs; BIAS may be missing */

struct attrs {
    int axes; /* 1 or 2 */
    bool transposed;
    int64_t stride[2], padding[2], dilation[2], output_padding[2], groups; /* of rows and columns; 1-D: [0] alone */
};

/* ---- checks ---- */

static cairn_status check_options(enum cairn__op op, const struct attrs *a) {
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_option(op, "groups", a->groups, 1));
    for (int i = 0; i < a->axes; i++) {
        TRY(cairn__check_option(op, "stride", a->stride[i], 1));
        TRY(cairn__check_option(op, "padding", a->padding[i], 0));
        TRY(cairn__check_option(op, "dilation", a->dilation[i], 1));
        TRY(cairn__check_option(op, "output_padding", a->output_padding[i], 0));
        REQUIRE(a->transposed || a->output_padding[i] == 0, CAIRN_EINVAL,
                "%s: output_padding is for transposed convolutions", cairn__op_name(op));
        REQUIRE(a->output_padding[i] == 0 || a->output_padding[i] < a->stride[i] ||
                    a->output_padding[i] < a->dilation[i],
                CAIRN_EINVAL, "%s: output_padding %lld must be smaller than stride %lld or dilation %lld",
                cairn__op_name(op), (long long)a->output_padding[i], (long long)a->stride[i],
                (long long)a->dilation[i]);
    }
out:
    return st;
}

/* For error messages. */
struct texts {
    char x[CAIRN__SHAPE_TEXT], weight[CAIRN__SHAPE_TEXT], bias[CAIRN__SHAPE_TEXT];
};

static struct texts texts_of(const struct cairn__node *node) {
    struct texts t = {"", "", ""};
    cairn__shape_text(node->inputs[X], t.x);
    cairn__shape_text(node->inputs[WEIGHT], t.weight);
    if (node->inputs[BIAS]) cairn__shape_text(node->inputs[BIAS], t.bias);
    return t;
}

static cairn_status check_types(const struct cairn__node *node) {
    static const char *const names[] = {"x", "weight", "bias"};
    const cairn_dtype t = cairn__tensor_dtype(node->inputs[X]);
    REQUIRE(cairn__is_float(t), CAIRN_EINVAL, "%s: x is %s; expected a float type", cairn__op_name(node->op),
            cairn_dtype_name(t));
    for (int i = WEIGHT; i <= BIAS; i++) {
        if (!node->inputs[i]) continue;
        const cairn_dtype other = cairn__tensor_dtype(node->inputs[i]);
        REQUIRE(other == t, CAIRN_EINVAL, "%s: x is %s but %s is %s; cast one of them or let amp do it",
                cairn__op_name(node->op), cairn_dtype_name(t), names[i], cairn_dtype_name(other));
    }
    return CAIRN_OK;
}

static int64_t channels_out(const struct cairn__node *node) {
    const struct attrs *a = node->attrs;
    const cairn_tensor *w = node->inputs[WEIGHT];
    return a->transposed ? w->shape[1] * a->groups : w->shape[0];
}

static cairn_status check_ranks(const struct cairn__node *node, const struct attrs *a) {
    const cairn_tensor *x = node->inputs[X], *w = node->inputs[WEIGHT];
    const struct texts t = texts_of(node);
    REQUIRE(x->ndim == a->axes + 1 || x->ndim == a->axes + 2, CAIRN_EINVAL, "%s: x is %s; expected %s",
            cairn__op_name(node->op), t.x, a->axes == 1 ? "[N, C, L] or [C, L]" : "[N, C, H, W] or [C, H, W]");
    REQUIRE(w->ndim == a->axes + 2, CAIRN_EINVAL, "%s: weight is %s; expected %d dimensions", cairn__op_name(node->op),
            t.weight, a->axes + 2);
    for (int d = 0; d < w->ndim; d++)
        REQUIRE(w->shape[d] > 0 && w->shape[d] <= CAIRN__MAX_PIXELS, CAIRN_EINVAL,
                "%s: weight is %s: sizes must be 1 to %d", cairn__op_name(node->op), t.weight, (int)CAIRN__MAX_PIXELS);
    return CAIRN_OK;
}

static cairn_status check_channels(const struct cairn__node *node, const struct attrs *a) {
    const cairn_tensor *x = node->inputs[X], *w = node->inputs[WEIGHT], *bias = node->inputs[BIAS];
    const int64_t c = x->shape[x->ndim - a->axes - 1];
    const struct texts t = texts_of(node);
    REQUIRE(w->shape[0] % a->groups == 0, CAIRN_EINVAL, "%s: x %s, weight %s: %lld groups do not divide %lld channels",
            cairn__op_name(node->op), t.x, t.weight, (long long)a->groups, (long long)w->shape[0]);
    if (a->transposed) {
        REQUIRE(c == w->shape[0], CAIRN_EINVAL, "%s: x %s, weight %s: %lld input channels, but weight expects %lld",
                cairn__op_name(node->op), t.x, t.weight, (long long)c, (long long)w->shape[0]);
    } else {
        REQUIRE(c == w->shape[1] * a->groups, CAIRN_EINVAL,
                "%s: x %s, weight %s: %lld input channels, but weight expects %lld x %lld groups",
                cairn__op_name(node->op), t.x, t.weight, (long long)c, (long long)w->shape[1], (long long)a->groups);
    }
    REQUIRE(!bias || (bias->ndim == 1 && bias->shape[0] == channels_out(node)), CAIRN_EINVAL,
            "%s: bias is %s, but weight is %s; expected [%lld]", cairn__op_name(node->op), t.bias, t.weight,
            (long long)channels_out(node));
    return CAIRN_OK;
}

/* ---- sizes ---- */

static cairn_status size_along(const struct cairn__node *node, const struct attrs *a, int axis, int64_t *out) {
    const cairn_tensor *x = node->inputs[X], *w = node->inputs[WEIGHT];
    const int64_t in = x->shape[x->ndim - a->axes + axis], kernel = w->shape[2 + axis];
    const int64_t reach = a->dilation[axis] * (kernel - 1) + 1, padded = in + 2 * a->padding[axis];
    const struct texts t = texts_of(node);
    REQUIRE(in > 0 && in <= CAIRN__MAX_PIXELS, CAIRN_EINVAL, "%s: x %s: sizes of planes must be 1 to %d",
            cairn__op_name(node->op), t.x, (int)CAIRN__MAX_PIXELS);
    if (a->transposed) {
        *out = (in - 1) * a->stride[axis] - 2 * a->padding[axis] + reach - 1 + a->output_padding[axis] + 1;
    } else {
        REQUIRE(reach <= padded, CAIRN_EINVAL,
                "%s: x %s, weight %s: the kernel spans %lld, but the padded input has %lld in dimension %d",
                cairn__op_name(node->op), t.x, t.weight, (long long)reach, (long long)padded, axis - a->axes);
        *out = (padded - reach) / a->stride[axis] + 1;
    }
    REQUIRE(*out > 0 && *out <= CAIRN__MAX_PIXELS, CAIRN_EINVAL,
            "%s: x %s, weight %s: the result's dimension %d would be %lld", cairn__op_name(node->op), t.x, t.weight,
            axis - a->axes, (long long)*out);
    return CAIRN_OK;
}

static cairn_status infer(const struct cairn__node *node) {
    const struct attrs *a = node->attrs;
    const cairn_tensor *x = node->inputs[X];
    cairn_tensor *y = node->result;
    cairn_status st = CAIRN_OK;
    TRY(check_types(node));
    TRY(check_options(node->op, a));
    TRY(check_ranks(node, a));
    TRY(check_channels(node, a));
    y->ndim = x->ndim;
    y->shape[0] = x->shape[0];
    y->shape[y->ndim - a->axes - 1] = channels_out(node);
    for (int axis = 0; axis < a->axes; axis++) TRY(size_along(node, a, axis, &y->shape[y->ndim - a->axes + axis]));
out:
    return st;
}

/* ---- computing ---- */

/* Sizes of t's plane: [0] rows, [1] columns. */
static void plane_of(const cairn_tensor *t, int axes, int64_t size[2]) {
    size[0] = axes == 1 ? 1 : t->shape[t->ndim - 2];
    size[1] = t->shape[t->ndim - 1];
}

/* *out: an option of rows and columns. 1-D has it for columns only; its one row gets `rows`. */
static void option_of(const int64_t value[2], int axes, int64_t rows, int64_t out[2]) {
    out[0] = axes == 1 ? rows : value[0];
    out[1] = axes == 1 ? value[0] : value[1];
}

static struct cairn__conv conv_of(const struct cairn__node *node) {
    const struct attrs *a = node->attrs;
    const cairn_tensor *x = node->inputs[X], *w = node->inputs[WEIGHT], *bias = node->inputs[BIAS], *y = node->result;
    int64_t in[2], taps[2], out[2];
    plane_of(x, a->axes, in), plane_of(w, a->axes, taps), plane_of(y, a->axes, out);
    struct cairn__conv v = {.dtype = y->dtype,
                            .n = x->ndim == a->axes + 2 ? x->shape[0] : 1,
                            .c = x->shape[x->ndim - a->axes - 1],
                            .h = in[0],
                            .w = in[1],
                            .k = channels_out(node),
                            .r = taps[0],
                            .s = taps[1],
                            .p = out[0],
                            .q = out[1],
                            .groups = a->groups,
                            .transposed = a->transposed,
                            .x = cairn__tensor_data(x),
                            .weight = cairn__tensor_data(w),
                            .bias = bias ? cairn__tensor_data(bias) : NULL,
                            .y = y->data};
    option_of(a->stride, a->axes, 1, v.stride);
    option_of(a->padding, a->axes, 0, v.padding);
    option_of(a->dilation, a->axes, 1, v.dilation);
    return v;
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    const struct cairn__conv v = conv_of(node);
    cairn__math_of(tape)->conv(tape->env->device, &v);
    return CAIRN_OK;
}

/* The gradients of weight and bias are computed before dx, so that their reduction overlaps dx. */
static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *x = node->inputs[X], *w = node->inputs[WEIGHT], *bias = node->inputs[BIAS];
    struct cairn__conv v = conv_of(node);
    cairn_status st = CAIRN_OK;
    v.dy = dy;
    if (cairn__wants_grad(w)) TRY(cairn__tensor_grad_begin(tape, w, &v.dweight));
    if (cairn__wants_grad(bias)) TRY(cairn__tensor_grad_begin(tape, bias, &v.dbias));
    if (v.dweight || v.dbias) cairn__math_of(tape)->conv_backward(tape->env->device, &v);
    if (v.dbias) TRY(cairn__tensor_grad_end(tape, bias, v.dbias));
    if (v.dweight) TRY(cairn__tensor_grad_end(tape, w, v.dweight));
    if (!cairn__wants_grad(x)) return CAIRN_OK;
    v.dweight = v.dbias = NULL;
    TRY(cairn__tensor_grad_begin(tape, x, &v.dx));
    cairn__math_of(tape)->conv_backward(tape->env->device, &v);
    TRY(cairn__tensor_grad_end(tape, x, v.dx));
out:
    return st;
}

static const struct cairn__op_row row = {.needs_math = true,
                                         .optional = 1u << BIAS,
                                         .infer = infer,
                                         .forward = forward,
                                         .backward = backward,
                                         .reads = cairn__reads_inputs};

/* ---- calls ---- */

static cairn_tensor *apply(enum cairn__op op, struct attrs a, const struct cairn_conv_options *options, cairn_tensor *x,
                           cairn_tensor *weight, cairn_tensor *bias) {
    static const int64_t ones[2] = {1, 1};
    struct cairn_conv_options o = {.struct_size = sizeof(o)};
    if (cairn__options_read(&o, sizeof(o), options, "cairn_conv_options") != CAIRN_OK) return NULL;
    cairn__option_pair(a.stride, o.stride, ones);
    cairn__option_pair(a.dilation, o.dilation, ones);
    cairn__option_padding(a.padding, o.padding);
    cairn__option_padding(a.output_padding, o.output_padding);
    a.groups = o.groups ? o.groups : 1;
    return cairn__apply(op, &row, CAIRN__INPUTS(x, weight, bias), &a, sizeof(a));
}

cairn_tensor *cairn_conv1d_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias,
                                   const struct cairn_conv_options *options) {
    return apply(CAIRN__OP_CONV1D, (struct attrs){.axes = 1}, options, x, weight, bias);
}

cairn_tensor *cairn_conv2d_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias,
                                   const struct cairn_conv_options *options) {
    return apply(CAIRN__OP_CONV2D, (struct attrs){.axes = 2}, options, x, weight, bias);
}

cairn_tensor *cairn_conv_transpose1d_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias,
                                             const struct cairn_conv_options *options) {
    return apply(CAIRN__OP_CONV_TRANSPOSE1D, (struct attrs){.axes = 1, .transposed = true}, options, x, weight, bias);
}

cairn_tensor *cairn_conv_transpose2d_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias,
                                             const struct cairn_conv_options *options) {
    return apply(CAIRN__OP_CONV_TRANSPOSE2D, (struct attrs){.axes = 2, .transposed = true}, options, x, weight, bias);
}
