/* add, mul_scalar, relu, cast: element by element, in f32, rounded once on the way out. */
#include "core/status.h"
#include "nn/ops.h"

static const struct cairn__kernels *kernels(const struct cairn__tape *tape) {
    return tape->env->device->kernels;
}

/* Where forward computes in f32: the result itself, or scratch that finish() rounds into it. */
static cairn_status begin(struct cairn__tape *tape, const cairn_tensor *y, float **out) {
    if (y->dtype != CAIRN_F32) return cairn__arena_alloc(&tape->values, y->n * sizeof(float), (void **)out);
    *out = y->data;
    return CAIRN_OK;
}

static cairn_status finish(const struct cairn__tape *tape, const cairn_tensor *y, const float *wide) {
    if (wide != y->data) kernels(tape)->cast[CAIRN_F32][y->dtype](y->data, wide, y->n);
    return CAIRN_OK;
}

/* dx = dy * s for one input; what most of these hand on. */
static cairn_status hand_on(struct cairn__tape *tape, cairn_tensor *x, const float *dy, float s) {
    if (!cairn__wants_grad(x)) return CAIRN_OK;
    float *dx = NULL;
    cairn_status st = cairn__grad_begin(tape, x, &dx);
    if (st != CAIRN_OK) return st;
    if (s != 1.0f) {
        kernels(tape)->mul_scalar(dx, dy, x->n, s);
    } else if (dx != dy) {
        kernels(tape)->cast[CAIRN_F32][CAIRN_F32](dx, dy, x->n);
    }
    return cairn__grad_end(tape, x, dx);
}

/* ---- add ---- */

static cairn_status add_forward(struct cairn__tape *tape, const struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    const float *a = NULL, *b = NULL;
    float *y = NULL;
    TRY(cairn__tensor_f32(node->inputs[0], &tape->values, &a));
    TRY(cairn__tensor_f32(node->inputs[1], &tape->values, &b));
    TRY(begin(tape, node->result, &y));
    kernels(tape)->add(y, a, b, node->result->n);
    TRY(finish(tape, node->result, y));
out:
    return st;
}

static cairn_status add_backward(struct cairn__tape *tape, const struct cairn__node *node, const float *dy) {
    cairn_status st = hand_on(tape, node->inputs[0], dy, 1.0f);
    return st == CAIRN_OK ? hand_on(tape, node->inputs[1], dy, 1.0f) : st;
}

const struct cairn__op_row cairn__op_add = {.promotes = true,
                                            .infer = cairn__infer_equal_shapes,
                                            .forward = add_forward,
                                            .backward = add_backward};

cairn_tensor *cairn_add(cairn_tensor *a, cairn_tensor *b) {
    return cairn__apply(CAIRN__OP_ADD, &(struct cairn__op_args){.count = 2, .inputs = {a, b}});
}

/* ---- mul_scalar ---- */

static cairn_status mul_scalar_forward(struct cairn__tape *tape, const struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    const float *x = NULL;
    float *y = NULL;
    TRY(cairn__tensor_f32(node->inputs[0], &tape->values, &x));
    TRY(begin(tape, node->result, &y));
    kernels(tape)->mul_scalar(y, x, node->result->n, node->scalar);
    TRY(finish(tape, node->result, y));
out:
    return st;
}

static cairn_status mul_scalar_backward(struct cairn__tape *tape, const struct cairn__node *node, const float *dy) {
    return hand_on(tape, node->inputs[0], dy, node->scalar);
}

const struct cairn__op_row cairn__op_mul_scalar = {.infer = cairn__infer_like_first,
                                                   .forward = mul_scalar_forward,
                                                   .backward = mul_scalar_backward};

cairn_tensor *cairn_mul_scalar(cairn_tensor *x, double s) {
    return cairn__apply(CAIRN__OP_MUL_SCALAR, &(struct cairn__op_args){.count = 1, .inputs = {x}, .scalar = s});
}

/* A scale of 65536 is no f16 value: the loss goes to f32 first, whatever the hook would say. */
cairn_tensor *cairn__scale_loss(cairn_tensor *loss, double scale) {
    if (!loss) return NULL;
    cairn_tensor *wide = cairn__tensor_dtype(loss) == CAIRN_F32 ? loss : cairn_cast(loss, CAIRN_F32);
    cairn_tensor *scaled =
        cairn__apply(CAIRN__OP_MUL_SCALAR,
                     &(struct cairn__op_args){.count = 1, .inputs = {wide}, .scalar = scale, .without_hook = true});
    if (scaled) scaled->loss_scale = (wide->loss_scale ? wide->loss_scale : 1) * scale;
    return scaled;
}

/* ---- relu ---- */

static cairn_status relu_forward(struct cairn__tape *tape, const struct cairn__node *node) {
    cairn_status st = CAIRN_OK;
    const float *x = NULL;
    float *y = NULL;
    TRY(cairn__tensor_f32(node->inputs[0], &tape->values, &x));
    TRY(begin(tape, node->result, &y));
    kernels(tape)->relu(y, x, node->result->n);
    TRY(finish(tape, node->result, y));
out:
    return st;
}

static cairn_status relu_backward(struct cairn__tape *tape, const struct cairn__node *node, const float *dy) {
    cairn_status st = CAIRN_OK;
    const float *x = NULL;
    float *dx = NULL;
    TRY(cairn__tensor_f32(node->inputs[0], &tape->grads, &x));
    TRY(cairn__grad_begin(tape, node->inputs[0], &dx));
    kernels(tape)->relu_backward(dx, dy, x, node->result->n);
    TRY(cairn__grad_end(tape, node->inputs[0], dx));
out:
    return st;
}

const struct cairn__op_row cairn__op_relu = {.infer = cairn__infer_like_first,
                                             .forward = relu_forward,
                                             .backward = relu_backward};

cairn_tensor *cairn_relu(cairn_tensor *x) {
    return cairn__apply(CAIRN__OP_RELU, &(struct cairn__op_args){.count = 1, .inputs = {x}});
}

/* ---- cast ---- */

static cairn_status cast_infer(const struct cairn__node *node) {
    const cairn_dtype to = node->result->dtype;
    REQUIRE(to == CAIRN_F32 || cairn__is_half(to), CAIRN_EINVAL, "cast: to %d (%s); f32, f16 and bf16 are allowed",
            (int)to, cairn_dtype_name(to));
    return cairn__infer_like_first(node);
}

static cairn_status cast_forward(struct cairn__tape *tape, const struct cairn__node *node) {
    const cairn_tensor *x = node->inputs[0], *y = node->result;
    kernels(tape)->cast[cairn__tensor_dtype(x)][y->dtype](y->data, cairn__tensor_data(x), y->n);
    return CAIRN_OK;
}

/* dy is already rounded to the result's type; grad_end rounds it to the input's. */
static cairn_status cast_backward(struct cairn__tape *tape, const struct cairn__node *node, const float *dy) {
    return hand_on(tape, node->inputs[0], dy, 1.0f);
}

const struct cairn__op_row cairn__op_cast = {.infer = cast_infer, .forward = cast_forward, .backward = cast_backward};

cairn_tensor *cairn_cast(cairn_tensor *x, cairn_dtype dtype) {
    return cairn__apply(CAIRN__OP_CAST, &(struct cairn__op_args){.count = 1, .inputs = {x}, .dtype = dtype});
}
