/* Broadcasts rank 0's buffers. They are packed, so a forward needs one collective for them, or none if the model has
 * no buffers. */
#include <stdint.h>

#include "ddp/context.h"
#include "core/log.h"
#include "core/status.h"
#include "device/device.h"

/* A buffer of the model that is sent. */
struct part {
    void *data;
    size_t offset, nbytes; /* in the packed memory */
};

/* Places the i-th buffer at *end, which is advanced; false if the buffer is not sent. */
static bool place(const struct ddp_context *d, size_t i, size_t *end, struct part *out) {
    enum { LINE = 64 };
    const char *name = NULL;
    cairn_tensor *b = cairn_module_buffer(d->model, i, &name);
    if (cairn__ddp_ignores(d, name) || cairn_tensor_numel(b) == 0) return false;
    out->data = cairn__tensor_memory(b);
    out->nbytes = (size_t)cairn_tensor_numel(b) * cairn_dtype_nbytes(cairn_tensor_dtype(b));
    out->offset = *end;
    *end += (out->nbytes + LINE - 1) / LINE * LINE;
    return true;
}

static size_t num_buffers(const struct ddp_context *d) {
    return d->model ? cairn_module_num_buffers(d->model) : 0;
}

static size_t packed_nbytes(const struct ddp_context *d) {
    size_t end = 0;
    struct part part;
    for (size_t i = 0; i < num_buffers(d); i++) (void)place(d, i, &end, &part);
    return end;
}

static cairn_status copy_all(const struct ddp_context *d, bool in) {
    cairn_status st = CAIRN_OK;
    size_t end = 0;
    struct part part;
    for (size_t i = 0; i < num_buffers(d); i++) {
        if (!place(d, i, &end, &part)) continue;
        char *packed = (char *)d->buffers + part.offset;
        TRY(cairn__device_copy(d->set->env->device, in ? packed : part.data, in ? part.data : packed, part.nbytes));
    }
out:
    return st;
}

cairn_status cairn__ddp_broadcast_buffers(struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    const size_t nbytes = packed_nbytes(d);
    const bool is_root = cairn_group_rank(d->channel) == d->buffers_root;
    if (nbytes == 0) return CAIRN_OK;
    if (!d->buffers) TRY(cairn_group_alloc(d->channel, nbytes, &d->buffers));
    if (is_root) TRY(copy_all(d, true));
    TRY(cairn_broadcast(d->channel, d->buffers, nbytes, CAIRN_U8, d->buffers_root, NULL));
    if (!is_root) TRY(copy_all(d, false));
out:
    return st;
}

/* Source: torch/nn/parallel/distributed.py, DistributedDataParallel.forward: require_forward_param_sync. Torch also
 * sends buffers once under no_grad, and then hangs if a rank has no batch to evaluate. */
cairn_status cairn__ddp_buffers_forward(struct ddp_context *d) {
    const bool due =
        !d->set->keeps_buffers && d->options.broadcast_buffers == CAIRN_ON && cairn_group_size(d->channel) > 1;
    if (cairn__records(d->set->env)) {
        d->set->keeps_buffers = d->no_sync;
        return due ? cairn__ddp_broadcast_buffers(d) : CAIRN_OK;
    }
    if (due && !d->warned_of_buffers && packed_nbytes(d) > 0) {
        d->warned_of_buffers = true;
        cairn__log(CAIRN_LOG_NOTICE,
                   "ddp_forward: under no_grad each rank uses its own buffers, which a training forward has changed; "
                   "call ddp_broadcast_buffers before an evaluation to give all ranks those of rank 0");
    }
    return CAIRN_OK;
}

cairn_status ddp_broadcast_buffers(ddp_context *ddp) {
    REQUIRE(ddp, CAIRN_EINVAL, "ddp_broadcast_buffers: ddp is NULL");
    if (cairn_group_size(ddp->channel) == 1) return CAIRN_OK;
    ddp->warned_of_buffers = true; /* the program knows */
    return cairn__ddp_broadcast_buffers(ddp);
}

void cairn__ddp_buffers_end(struct ddp_context *d) {
    if (d->buffers) (void)cairn_group_free(d->channel, &d->buffers); /* a dead group frees it when it ends */
}
