/* Broadcasts rank 0's weights. A collective costs as much for one number as for thousands, so small tensors are packed
 * into a block of group memory; large ones are sent in place. */
#include "core/status.h"
#include "ddp/context.h"
#include "device/device.h"

enum { BLOCK = 1 << 20, LARGE = BLOCK / 8 }; /* bytes; a tensor of LARGE or more is sent alone */

/* The f32 values, from which half weights are rounded. */
static void *values_of(const struct cairn__param *p) {
    return p->master ? p->master : p->data;
}

static cairn_dtype dtype_of(const struct cairn__param *p) {
    return p->master ? CAIRN_F32 : p->dtype;
}

static size_t nbytes_of(const struct cairn__param *p) {
    return p->n * cairn_dtype_nbytes(dtype_of(p));
}

/* Bytes in a block; 0 = it is sent alone. */
static size_t packed_nbytes(const struct cairn__param *p) {
    return nbytes_of(p) < LARGE ? nbytes_of(p) : 0;
}

static cairn_status copy_packed(const struct ddp_context *d, char *block, size_t first, size_t end, bool in) {
    cairn_status st = CAIRN_OK;
    for (size_t s = first; s < end; s++) {
        const struct cairn__param *p = d->shared[s].param;
        const size_t nbytes = packed_nbytes(p);
        if (nbytes == 0) continue;
        TRY(cairn__device_copy(d->set->env->device, in ? block : values_of(p), in ? values_of(p) : block, nbytes));
        block += nbytes;
    }
out:
    return st;
}

/* Sends the small tensors of the shared parameters first to end - 1. */
static cairn_status broadcast_packed(struct ddp_context *d, void *block, size_t first, size_t end, size_t nbytes) {
    cairn_status st = CAIRN_OK;
    const bool is_root = cairn_group_rank(d->channel) == 0;
    if (is_root) TRY(copy_packed(d, block, first, end, true));
    TRY(cairn_broadcast(d->channel, block, nbytes, CAIRN_U8, 0, NULL));
    if (!is_root) TRY(copy_packed(d, block, first, end, false));
out:
    return st;
}

static cairn_status broadcast_small(struct ddp_context *d, void *block) {
    cairn_status st = CAIRN_OK;
    size_t first = 0, used = 0;
    for (size_t s = 0; s < d->num_shared; s++) {
        const size_t nbytes = packed_nbytes(d->shared[s].param);
        if (used + nbytes > BLOCK) {
            TRY(broadcast_packed(d, block, first, s, used));
            first = s;
            used = 0;
        }
        used += nbytes;
    }
    if (used) TRY(broadcast_packed(d, block, first, d->num_shared, used));
out:
    return st;
}

cairn_status cairn__ddp_broadcast_params(struct ddp_context *d) {
    cairn_status st = CAIRN_OK;
    void *block = NULL;
    size_t nbytes = 0;
    for (size_t s = 0; nbytes < BLOCK && s < d->num_shared; s++) nbytes += packed_nbytes(d->shared[s].param);
    if (nbytes > BLOCK) nbytes = BLOCK;
    if (nbytes) TRY(cairn_group_alloc(d->channel, nbytes, &block));
    if (nbytes) TRY(broadcast_small(d, block));
    if (nbytes) TRY(cairn_group_free(d->channel, &block));
    for (size_t s = 0; s < d->num_shared; s++) {
        const struct cairn__param *p = d->shared[s].param;
        if (packed_nbytes(p) == 0) TRY(cairn_broadcast(d->channel, values_of(p), p->n, dtype_of(p), 0, NULL));
    }
    for (size_t s = 0; s < d->num_shared; s++) cairn__param_round_from_master(d->shared[s].param);
    cairn__param_set_weights_changed(d->set);
out:
    return st;
}
