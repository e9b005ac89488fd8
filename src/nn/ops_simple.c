/* add, mul_scalar, relu, cast, scale_loss: element by element, in f32, rounded once on the way out. */
#include "core/status.h"
#include "nn/ops.h"

/* dx = dy, converted to x's type. */
static cairn_status hand_on(struct cairn__tape *tape, cairn_tensor *x, const void *dy, cairn_dtype from) {
    if (!cairn__wants_grad(x)) return CAIRN_OK;
    void *dx = NULL;
    cairn_status st = cairn__grad_begin(tape, x, &dx);
    if (st != CAIRN_OK) return st;
    cairn__pass_cast(cairn__passes_of(tape), tape->env->device, dx, cairn__tensor_dtype(x), dy, from, x->n);
    return cairn__grad_end(tape, x, dx);
}

/* ---- add ---- */

static cairn_status add_forward(struct cairn__tape *tape, const struct cairn__node *node) {
    const cairn_tensor *y = node->result;
    cairn__passes_of(tape)->add(tape->env->device, y->dtype, y->data, cairn__tensor_data(node->inputs[0]),
                                cairn__tensor_data(node->inputs[1]), y->n);
    return CAIRN_OK;
}

static cairn_status add_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_status st = hand_on(tape, node->inputs[0], dy, node->result->dtype);
    return st == CAIRN_OK ? hand_on(tape, node->inputs[1], dy, node->result->dtype) : st;
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
    const cairn_tensor *y = node->result;
    cairn__passes_of(tape)->mul_scalar(tape->env->device, y->dtype, y->data, cairn__tensor_data(node->inputs[0]), y->n,
                                       node->scalar);
    return CAIRN_OK;
}

static cairn_status mul_scalar_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *x = node->inputs[0];
    void *dx = NULL;
    cairn_status st = cairn__grad_begin(tape, x, &dx);
    if (st != CAIRN_OK) return st;
    cairn__passes_of(tape)->mul_scalar(tape->env->device, node->result->dtype, dx, dy, x->n, node->scalar);
    return cairn__grad_end(tape, x, dx);
}

const struct cairn__op_row cairn__op_mul_scalar = {.infer = cairn__infer_like_first,
                                                   .forward = mul_scalar_forward,
                                                   .backward = mul_scalar_backward};

cairn_tensor *cairn_mul_scalar(cairn_tensor *x, double s) {
    return cairn__apply(CAIRN__OP_MUL_SCALAR, &(struct cairn__op_args){.count = 1, .inputs = {x}, .scalar = s});
}

/* ---- relu ---- */

static cairn_status relu_forward(struct cairn__tape *tape, const struct cairn__node *node) {
    const cairn_tensor *y = node->result;
    cairn__passes_of(tape)->relu(tape->env->device, y->dtype, y->data, cairn__tensor_data(node->inputs[0]), y->n);
    return CAIRN_OK;
}

static cairn_status relu_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *x = node->inputs[0];
    void *dx = NULL;
    cairn_status st = cairn__grad_begin(tape, x, &dx);
    if (st != CAIRN_OK) return st;
    cairn__passes_of(tape)->relu_backward(tape->env->device, node->result->dtype, dx, dy, cairn__tensor_data(x), x->n);
    return cairn__grad_end(tape, x, dx);
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
    cairn__pass_cast(cairn__passes_of(tape), tape->env->device, y->data, y->dtype, cairn__tensor_data(x),
                     cairn__tensor_dtype(x), y->n);
    return CAIRN_OK;
}

static cairn_status cast_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    return hand_on(tape, node->inputs[0], dy, node->result->dtype);
}

const struct cairn__op_row cairn__op_cast = {.infer = cast_infer, .forward = cast_forward, .backward = cast_backward};

cairn_tensor *cairn_cast(cairn_tensor *x, cairn_dtype dtype) {
    return cairn__apply(CAIRN__OP_CAST, &(struct cairn__op_args){.count = 1, .inputs = {x}, .dtype = dtype});
}

/* ---- scale_loss ---- */

static cairn_status scale_loss_infer(const struct cairn__node *node) {
    const cairn_tensor *loss = node->inputs[0];
    char shape[CAIRN__SHAPE_TEXT];
    REQUIRE(loss->n == 1, CAIRN_EINVAL, "scale_loss: the loss must be one element, not %s",
            cairn__shape_text(loss, shape));
    REQUIRE(!loss->loss_scale, CAIRN_ESTATE, "scale_loss: this loss is scaled already");
    node->result->loss_scale = node->cell;
    return cairn__infer_like_first(node);
}

static cairn_status scale_loss_forward(struct cairn__tape *tape, const struct cairn__node *node) {
    cairn__passes_of(tape)->scale_loss(tape->env->device, node->result->data, cairn__tensor_data(node->inputs[0]),
                                       node->scaler, node->cell);
    return CAIRN_OK;
}

/* Where backward starts here, the gradient is the scale itself: it is read where it stands, by the one node that made the
 * loss. With a second use there would be a sum to write. */
static cairn_status scale_loss_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *loss = node->inputs[0];
    void *dx = NULL;
    if (dy == cairn__tape_one(tape, CAIRN_F32) && loss->kind == CAIRN__RESULT && loss->uses == 1)
        return cairn__grad_end(tape, loss, &node->cell->scale);
    cairn_status st = cairn__grad_begin(tape, loss, &dx);
    if (st != CAIRN_OK) return st;
    const struct cairn__item item = {.n = 1, .dst = dx, .x = dy};
    cairn__passes_of(tape)->scale(tape->env->device, &item, 1, CAIRN_F32, CAIRN_F32, &node->cell->scale, NULL);
    return cairn__grad_end(tape, loss, dx);
}

const struct cairn__op_row cairn__op_scale_loss = {.infer = scale_loss_infer,
                                                   .forward = scale_loss_forward,
                                                   .backward = scale_loss_backward};

/* A scale of 65536 is no f16 value: the loss goes to f32 first. */
cairn_tensor *cairn__scale_loss(cairn_tensor *loss, const struct cairn__scaler_state *scaler,
                                struct cairn__loss_scale *cell) {
    if (loss && cairn__tensor_dtype(loss) != CAIRN_F32) loss = cairn_cast(loss, CAIRN_F32);
    return cairn__apply(CAIRN__OP_SCALE_LOSS,
                        &(struct cairn__op_args){.count = 1, .inputs = {loss}, .scaler = scaler, .cell = cell});
}
