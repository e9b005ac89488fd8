/* detach, and the check of a loss for inf and NaN. */
#include <string.h>

#include "core/status.h"
#include "nn/ops.h"

/* ---- the check of a loss ---- */

cairn_status cairn__loss_check(cairn_tensor *loss, uint32_t *found) {
    const cairn_dtype dtype = cairn__tensor_dtype(loss);
    const bool is_looked_at = dtype == CAIRN_F32 || cairn__is_half(dtype);
    if (loss->n != 1 || cairn__tensor_check(loss, "backward") != CAIRN_OK) return CAIRN_OK;
    if (!is_looked_at && !(loss = cairn_cast(loss, CAIRN_F32))) return cairn__last_status();
    const struct cairn__item item = {.n = 1, .x = cairn__tensor_data(loss), .found = found};
    cairn__passes_of(cairn__tape_of(loss->env))->check(loss->env->device, &item, 1, cairn__tensor_dtype(loss), NULL);
    return CAIRN_OK;
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

static const struct cairn__op_row detach_row = {.strided = true, .view = true, .infer = detach_infer};

cairn_tensor *cairn_detach(cairn_tensor *x) {
    return cairn__apply(CAIRN__OP_DETACH, &detach_row, CAIRN__INPUTS(x), NULL, 0);
}
