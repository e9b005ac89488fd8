/* Pooling over planes, [N, C, H, W] or [C, H, W]. Sizes, as torch has them:
 *     out = (in + 2 padding - dilation (kernel - 1) - 1) / stride + 1, rounded up with ceil_mode, but the last window
 *     starts inside the input or the padding before it
 * Source: pooling_output_shape_pad_lr in aten/src/ATen/native/Pool.h, PyTorch 1.13. */
#include "core/options.h"
#include "core/status.h"
#include "nn/ops_planes.h"

/* Of pools with windows; an adaptive pool uses `out` only. */
struct attrs {
    int64_t kernel[2], stride[2], padding[2], dilation[2], out[2];
    bool up, count_padding;
};

/* ---- sizes ---- */

static cairn_status check_x(const struct cairn__node *node) {
    const cairn_tensor *x = node->inputs[0];
    char text[CAIRN__SHAPE_TEXT];
    cairn__shape_text(x, text);
    REQUIRE(cairn__is_float(cairn__tensor_dtype(x)), CAIRN_EINVAL, "%s: x is %s; expected a float type",
            cairn__op_name(node->op), cairn_dtype_name(cairn__tensor_dtype(x)));
    REQUIRE(x->ndim == 3 || x->ndim == 4, CAIRN_EINVAL, "%s: x is %s; expected [N, C, H, W] or [C, H, W]",
            cairn__op_name(node->op), text);
    const int64_t h = x->shape[x->ndim - 2], w = x->shape[x->ndim - 1];
    REQUIRE(h > 0 && w > 0 && h <= CAIRN__MAX_PIXELS / w, CAIRN_EINVAL, "%s: x is %s: a plane must have 1 to %d pixels",
            cairn__op_name(node->op), text, (int)CAIRN__MAX_PIXELS);
    return CAIRN_OK;
}

static cairn_status size_along(const struct cairn__node *node, const struct attrs *a, int axis, int64_t *out) {
    const cairn_tensor *x = node->inputs[0];
    const int64_t in = x->shape[x->ndim - 2 + axis], stride = a->stride[axis], padding = a->padding[axis];
    char text[CAIRN__SHAPE_TEXT];
    cairn_status st = CAIRN_OK;
    TRY(cairn__check_option(node->op, "kernel", a->kernel[axis], 1));
    TRY(cairn__check_option(node->op, "stride", stride, 1));
    TRY(cairn__check_option(node->op, "padding", padding, 0));
    TRY(cairn__check_option(node->op, "dilation", a->dilation[axis], 1));
    REQUIRE(padding <= a->kernel[axis] / 2, CAIRN_EINVAL, "%s: padding %lld is more than half of the kernel, %lld",
            cairn__op_name(node->op), (long long)padding, (long long)a->kernel[axis]);
    const int64_t reach = a->dilation[axis] * (a->kernel[axis] - 1) + 1, room = in + 2 * padding - reach;
    REQUIRE(room >= 0, CAIRN_EINVAL, "%s: x %s: the window spans %lld, but the padded input has %lld in dimension %d",
            cairn__op_name(node->op), cairn__shape_text(x, text), (long long)reach, (long long)(in + 2 * padding),
            axis - 2);
    *out = (room + (a->up ? stride - 1 : 0)) / stride + 1;
    if (a->up && (*out - 1) * stride >= in + padding) --*out;
out:
    return st;
}

static cairn_status take_size(const struct cairn__node *node, const int64_t out[2]) {
    cairn_tensor *y = node->result;
    cairn_status st = CAIRN_OK;
    TRY(cairn__infer_like_first(node));
    y->shape[y->ndim - 2] = out[0];
    y->shape[y->ndim - 1] = out[1];
out:
    return st;
}

static cairn_status infer_windows(const struct cairn__node *node) {
    const struct attrs *a = node->attrs;
    cairn_status st = CAIRN_OK;
    int64_t out[2];
    TRY(check_x(node));
    for (int axis = 0; axis < 2; axis++) TRY(size_along(node, a, axis, &out[axis]));
    TRY(take_size(node, out));
out:
    return st;
}

static cairn_status infer_adaptive(const struct cairn__node *node) {
    const struct attrs *a = node->attrs;
    cairn_status st = CAIRN_OK;
    TRY(check_x(node));
    for (int axis = 0; axis < 2; axis++) TRY(cairn__check_option(node->op, "output size", a->out[axis], 0));
    TRY(take_size(node, a->out));
out:
    return st;
}

/* ---- computing ---- */

static struct cairn__pool pool_of(const struct cairn__node *node) {
    static const enum cairn__pool_kind kinds[] = {
        [CAIRN__OP_MAX_POOL2D] = CAIRN__POOL_MAX,
        [CAIRN__OP_AVG_POOL2D] = CAIRN__POOL_AVERAGE,
        [CAIRN__OP_ADAPTIVE_AVG_POOL2D] = CAIRN__POOL_ADAPTIVE_AVERAGE,
    };
    const struct attrs *a = node->attrs;
    const cairn_tensor *x = node->inputs[0], *y = node->result;
    struct cairn__pool v = {.kind = kinds[node->op],
                            .dtype = y->dtype,
                            .planes = x->ndim == 4 ? x->shape[0] * x->shape[1] : x->shape[0],
                            .h = x->shape[x->ndim - 2],
                            .w = x->shape[x->ndim - 1],
                            .p = y->shape[y->ndim - 2],
                            .q = y->shape[y->ndim - 1],
                            .count_padding = a->count_padding,
                            .x = cairn__tensor_data(x),
                            .y = y->data,
                            .index = node->saved};
    memcpy(v.kernel, a->kernel, sizeof(v.kernel));
    memcpy(v.stride, a->stride, sizeof(v.stride));
    memcpy(v.padding, a->padding, sizeof(v.padding));
    memcpy(v.dilation, a->dilation, sizeof(v.dilation));
    return v;
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    if (node->op == CAIRN__OP_MAX_POOL2D) {
        TRY(cairn__save(tape, node, node->result->n * sizeof(int32_t)));
    }
    const struct cairn__pool v = pool_of(node);
    cairn__math_of(tape)->pool(tape->env->device, &v);
out:
    return st;
}

static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    struct cairn__pool v = pool_of(node);
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, node->inputs[0], &v.dx));
    v.dy = dy;
    cairn__math_of(tape)->pool_backward(tape->env->device, &v);
    TRY(cairn__tensor_grad_end(tape, node->inputs[0], v.dx));
out:
    return st;
}

static const struct cairn__op_row windows_row = {.needs_math = true,
                                                 .infer = infer_windows,
                                                 .forward = forward,
                                                 .backward = backward,
                                                 .reads = cairn__reads_nothing};
static const struct cairn__op_row adaptive_row = {.needs_math = true,
                                                  .infer = infer_adaptive,
                                                  .forward = forward,
                                                  .backward = backward,
                                                  .reads = cairn__reads_nothing};

/* ---- calls ---- */

static cairn_tensor *pool_windows(enum cairn__op op, cairn_tensor *x, int64_t kernel_h, int64_t kernel_w,
                                  const struct cairn_pool_options *options) {
    static const int64_t ones[2] = {1, 1};
    struct cairn_pool_options o = {.struct_size = sizeof(o)};
    if (cairn__options_read(&o, sizeof(o), options, "cairn_pool_options") != CAIRN_OK) return NULL;
    struct attrs a = {.kernel = {kernel_h, kernel_w},
                      .up = o.ceil_mode == CAIRN_ON,
                      .count_padding = o.count_include_pad != CAIRN_OFF};
    cairn__option_pair(a.stride, o.stride, a.kernel);
    cairn__option_padding(a.padding, o.padding);
    cairn__option_pair(a.dilation, o.dilation, ones);
    if (op == CAIRN__OP_AVG_POOL2D && (a.dilation[0] != 1 || a.dilation[1] != 1)) {
        cairn__fail(CAIRN_EINVAL, "avg_pool2d: dilation is for max_pool2d");
        return NULL;
    }
    return cairn__apply(op, &windows_row, CAIRN__INPUTS(x), &a, sizeof(a));
}

cairn_tensor *cairn_max_pool2d(cairn_tensor *x, int64_t kernel_h, int64_t kernel_w,
                               const struct cairn_pool_options *options) {
    return pool_windows(CAIRN__OP_MAX_POOL2D, x, kernel_h, kernel_w, options);
}

cairn_tensor *cairn_avg_pool2d(cairn_tensor *x, int64_t kernel_h, int64_t kernel_w,
                               const struct cairn_pool_options *options) {
    return pool_windows(CAIRN__OP_AVG_POOL2D, x, kernel_h, kernel_w, options);
}

cairn_tensor *cairn_adaptive_avg_pool2d(cairn_tensor *x, int64_t out_h, int64_t out_w) {
    const struct attrs a = {.out = {out_h, out_w}};
    return cairn__apply(CAIRN__OP_ADAPTIVE_AVG_POOL2D, &adaptive_row, CAIRN__INPUTS(x), &a, sizeof(a));
}
