/* What changes the graph and no value: scale_loss, zero_loss, detach. */
#include <string.h>

#include "core/status.h"
#include "nn/module.h"
#include "nn/ops.h"

/* ---- scale_loss ---- */

struct scaling {
    const struct cairn__scaler_state *scaler; /* in device memory, as all */
    struct cairn__loss_scale *cell;
    uint32_t *found;
};

static const struct scaling *scaling_of(const struct cairn__node *node) {
    return node->attrs;
}

static cairn_status scale_loss_infer(const struct cairn__node *node) {
    const cairn_tensor *loss = node->inputs[0];
    char shape[CAIRN__SHAPE_TEXT];
    REQUIRE(loss->n == 1, CAIRN_EINVAL, "scale_loss: the loss must be one element, not %s",
            cairn__shape_text(loss, shape));
    REQUIRE(!loss->loss_scale, CAIRN_ESTATE, "scale_loss: this loss is scaled already");
    node->result->loss_scale = scaling_of(node)->cell;
    return cairn__infer_like_first(node);
}

static cairn_status scale_loss_forward(struct cairn__tape *tape, struct cairn__node *node) {
    cairn__passes_of(tape)->scale_loss(tape->env->device, node->result->data, cairn__tensor_data(node->inputs[0]),
                                       scaling_of(node)->scaler, scaling_of(node)->cell, scaling_of(node)->found);
    return CAIRN_OK;
}

/* Where backward starts here, the gradient is the scale itself: it is read where it stands, by the one node that made
 * the loss. With a second use there would be a sum to write. */
static cairn_status scale_loss_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *loss = node->inputs[0];
    void *dx = NULL;
    if (dy == cairn__tape_one(tape, CAIRN_F32) && loss->kind == CAIRN__RESULT && loss->uses == 1)
        return cairn__tensor_grad_end(tape, loss, &scaling_of(node)->cell->scale);
    cairn_status st = cairn__tensor_grad_begin(tape, loss, &dx);
    if (st != CAIRN_OK) return st;
    const struct cairn__item item = {.n = 1, .dst = dx, .x = dy};
    cairn__passes_of(tape)->scale(tape->env->device, &item, 1, CAIRN_F32, CAIRN_F32, &scaling_of(node)->cell->scale,
                                  NULL);
    return cairn__tensor_grad_end(tape, loss, dx);
}

const struct cairn__op_row cairn__op_scale_loss = {.infer = scale_loss_infer,
                                                   .forward = scale_loss_forward,
                                                   .backward = scale_loss_backward};

/* A scale of 65536 is no f16 value: the loss goes to f32 first. */
cairn_tensor *cairn__scale_loss(cairn_tensor *loss, const struct cairn__scaler_state *scaler,
                                struct cairn__loss_scale *cell, uint32_t *found) {
    if (loss && cairn__tensor_dtype(loss) != CAIRN_F32) loss = cairn_cast(loss, CAIRN_F32);
    const struct scaling attrs = {scaler, cell, found};
    return cairn__apply(CAIRN__OP_SCALE_LOSS, CAIRN__INPUTS(loss), &attrs, sizeof(attrs));
}

/* ---- looking ---- */

cairn_status cairn__loss_look(cairn_tensor *loss, uint32_t *found) {
    const cairn_dtype dtype = cairn__tensor_dtype(loss);
    const bool is_looked_at = dtype == CAIRN_F32 || cairn__is_half(dtype);
    if (loss->n != 1 || cairn__tensor_check(loss, "backward") != CAIRN_OK) return CAIRN_OK;
    if (!is_looked_at && !(loss = cairn_cast(loss, CAIRN_F32))) return cairn__last_status();
    const struct cairn__item item = {.n = 1, .x = cairn__tensor_data(loss), .found = found};
    cairn__passes_of(cairn__tape_of(loss->env))->check(loss->env->device, &item, 1, cairn__tensor_dtype(loss), NULL);
    return CAIRN_OK;
}

/* ---- zero_loss ---- */

static cairn_status zero_loss_infer(const struct cairn__node *node) {
    node->result->dtype = CAIRN_F32;
    return cairn__infer_scalar(node);
}

static cairn_status zero_loss_forward(struct cairn__tape *tape, struct cairn__node *node) {
    cairn__passes_of(tape)->fill(tape->env->device, CAIRN_F32, node->result->data, 1, 0.0f);
    return CAIRN_OK;
}

/* Zeros whatever dy is: an infinite scale does not make NaNs of them. */
static cairn_status zero_loss_backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_status st = CAIRN_OK;
    (void)dy;
    for (int i = 0; st == CAIRN_OK && i < node->count; i++) {
        cairn_tensor *t = node->inputs[i];
        void *dx = NULL;
        if (!cairn__wants_grad(t)) continue;
        TRY(cairn__tensor_grad_begin(tape, t, &dx));
        cairn__passes_of(tape)->fill(tape->env->device, cairn__tensor_dtype(t), dx, t->n, 0.0f);
        TRY(cairn__tensor_grad_end(tape, t, dx));
    }
out:
    return st;
}

const struct cairn__op_row cairn__op_zero_loss = {.infer = zero_loss_infer,
                                                  .forward = zero_loss_forward,
                                                  .backward = zero_loss_backward,
                                                  .reads = cairn__reads_nothing};

/* From the last registered to the first, the order in which gradients of most models become ready. */
static void list_params(const cairn_module *m, cairn_tensor **inputs, size_t count) {
    for (size_t i = 0; i < m->num_handles; i++) inputs[count - 1 - m->handles[i]->param->index] = m->handles[i];
    for (size_t i = 0; i < m->num_children; i++) list_params(m->children[i], inputs, count);
}

cairn_tensor *cairn__zero_loss(const cairn_module *root) {
    const size_t count = root->params->count;
    cairn_tensor **inputs = NULL;
    if (cairn__tape_room(cairn__tape_of(root->env), count * sizeof(*inputs), (void **)&inputs) != CAIRN_OK) return NULL;
    list_params(root, inputs, count);
    return cairn__apply(CAIRN__OP_ZERO_LOSS, (int)count, inputs, NULL, 0);
}

/* ---- detach ---- */

static cairn_status detach_infer(const struct cairn__node *node) {
    const cairn_tensor *x = node->inputs[0];
    cairn_tensor *y = node->result;
    memcpy(y->stride, x->stride, sizeof(y->stride));
    y->n = x->n;
    y->is_dense = x->is_dense;
    y->data = cairn__tensor_data(x);
    y->loss_scale = NULL;
    return cairn__infer_like_first(node);
}

const struct cairn__op_row cairn__op_detach = {.strided = true, .view = true, .infer = detach_infer};

cairn_tensor *cairn_detach(cairn_tensor *x) {
    return cairn__apply(CAIRN__OP_DETACH, CAIRN__INPUTS(x), NULL, 0);
}
