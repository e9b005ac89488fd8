/* Losses over rows of scores with a class a row. */
#include "device/cuda/losses.h"

#include <cuda_runtime_api.h>

#include "device/cuda/math_table.h"

/* The sum of the weights of classes, which smoothing needs; *sum = NULL if nothing needs it. Returns false if there is
 * no memory for it. */
static bool sum_weights(struct cairn_device *d, const char *pass, const struct cairn__class_loss *loss, double **sum) {
    *sum = NULL;
    if (!loss->weight || !loss->from_logits || !(loss->smoothing > 0)) return true;
    *sum = cairn__cuda_room(d, CAIRN__ROOM_B, sizeof(**sum));
    if (!*sum) return false;
    cairn__cuda_queued(d, pass, cairn__launch_sum_weights(cairn__cuda_enter(d)->stream, loss, *sum));
    return true;
}

void cairn__cuda_class_loss(struct cairn_device *d, const struct cairn__class_loss *loss) {
    const size_t n = (size_t)loss->rows * (size_t)loss->inner;
    struct cairn__cuda *c = cairn__cuda_enter(d);
    struct cairn__class_loss own = *loss;
    double *all_weights = NULL;
    void *losses = NULL;
    int error = 0;
    if (!own.bad_target) own.bad_target = &c->faults->target;
    if (n > 0) {
        if (!loss->each) losses = cairn__cuda_room(d, CAIRN__ROOM_A, n * (loss->dtype == CAIRN_F64 ? 8 : 4));
        if ((!loss->each && !losses) || !sum_weights(d, "class_loss", loss, &all_weights)) return;
        error = cairn__launch_class_losses(c->stream, &own, losses, all_weights);
    }
    if (error == 0) error = cairn__launch_sum_losses(c->stream, c->partials, &own, losses);
    cairn__cuda_queued(d, "class_loss", error);
}

void cairn__cuda_class_loss_backward(struct cairn_device *d, const struct cairn__class_loss *loss) {
    const size_t n = (size_t)loss->rows * (size_t)loss->inner, elements = n * (size_t)loss->classes;
    double *all_weights = NULL;
    int error = 0;
    if (elements == 0 || !sum_weights(d, "class_loss_backward", loss, &all_weights)) return;
    struct cairn__cuda *c = cairn__cuda_enter(d);
    if (!loss->from_logits)
        error = (int)cudaMemsetAsync(loss->dx, 0, elements * cairn_dtype_nbytes(loss->dtype), c->stream);
    if (error == 0) error = cairn__launch_class_losses_backward(c->stream, loss, all_weights);
    cairn__cuda_queued(d, "class_loss_backward", error);
}
