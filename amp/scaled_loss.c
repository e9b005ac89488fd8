/* The operation that scales a loss, added by amp to nn's operations. */
#include "core/status.h"
#include "nn/hooks.h"
#include "scaler.h"

struct scaling {
    struct cairn__guest guest;
    const struct cairn__scaler_state *scaler; /* in device memory, as cell and found are */
    struct cairn__loss_scale *cell;
    uint32_t *found;
};

static const struct scaling *scaling_of(const struct cairn__node *node) {
    return cairn__node_attrs(node);
}

static cairn_status infer(const struct cairn__node *node) {
    const cairn_tensor *loss = cairn__node_input(node, 0);
    char shape[CAIRN__SHAPE_TEXT];
    REQUIRE(cairn_tensor_numel(loss) == 1, CAIRN_EINVAL,
            "scale_loss: the loss must have one element, but its shape is %s", cairn__shape_text(loss, shape));
    REQUIRE(!cairn__tensor_loss_scale(loss), CAIRN_ESTATE, "scale_loss: the loss is scaled already");
    cairn__node_set_loss_scale(node, scaling_of(node)->cell);
    return cairn__infer_like_first(node);
}

static cairn_status forward(struct cairn__tape *tape, struct cairn__node *node) {
    struct cairn_device *d = cairn__node_device(node);
    (void)tape;
    d->passes->scale_loss(d, cairn__tensor_values(cairn__node_result(node)),
                          cairn__tensor_values(cairn__node_input(node, 0)), scaling_of(node)->scaler,
                          scaling_of(node)->cell, scaling_of(node)->found);
    return CAIRN_OK;
}

/* If backward starts here, the loss's gradient is the scale itself, which the node that made the loss reads from the
 * cell. If the loss has a second use, the sum of both gradients needs memory. */
static cairn_status backward(struct cairn__tape *tape, const struct cairn__node *node, const void *dy) {
    cairn_tensor *loss = cairn__node_input(node, 0);
    struct cairn_device *d = cairn__node_device(node);
    float *const scale = &scaling_of(node)->cell->scale;
    void *dx = NULL;
    if (cairn__backward_starts_at(tape, node, dy)) return cairn__tensor_grad_end(tape, loss, scale);
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_grad_begin(tape, loss, &dx));
    const struct cairn__item item = {.n = 1, .dst = dx, .x = dy};
    d->passes->scale(d, &item, 1, CAIRN_F32, CAIRN_F32, scale, NULL);
    TRY(cairn__tensor_grad_end(tape, loss, dx));
out:
    return st;
}

/* f16 cannot represent a scale of 65536, so the loss is cast to f32 first, and the result is f32 whatever the op hook
 * would choose. */
static const struct cairn__guest_op scale_loss = {
    .name = "scale_loss", .keeps_types = true, .infer = infer, .forward = forward, .backward = backward};

cairn_tensor *cairn__scale_loss(cairn_tensor *loss, const struct cairn__scaler_state *scaler,
                                struct cairn__loss_scale *cell, uint32_t *found) {
    const cairn_dtype dtype = cairn_tensor_dtype(loss); /* 0 for NULL or a stale result, which apply refuses */
    if (dtype && dtype != CAIRN_F32) loss = cairn_cast(loss, CAIRN_F32);
    const struct scaling asked = {{&scale_loss}, scaler, cell, found};
    return cairn__apply_guest(&asked.guest, sizeof(asked), 1, &loss);
}
