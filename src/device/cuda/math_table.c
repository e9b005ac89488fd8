/* The GPU's table of math_passes.h, and what its files share. */
#include "device/cuda/math_table.h"

#include <stdio.h>

#include "core/status.h"
#include "device/cuda/cache.h"

bool cairn__cuda_refused(struct cairn_device *d, const char *pass, const char *complaint) {
    struct cairn__cuda *c = cairn__cuda_of(d);
    if (complaint && c->failed == CAIRN_OK) {
        c->failed = CAIRN_EINTERNAL;
        snprintf(c->failure, sizeof(c->failure), "%s on the GPU: %s", pass, complaint);
    }
    return complaint != NULL;
}

void cairn__cuda_queued(struct cairn_device *d, const char *pass, int error) {
    if (error) cairn__cuda_fail(cairn__cuda_of(d), pass, error);
}

void cairn__cuda_kept(struct cairn_device *d, cairn_status status) {
    struct cairn__cuda *c = cairn__cuda_of(d);
    if (status == CAIRN_OK || c->failed != CAIRN_OK) return;
    c->failed = status;
    snprintf(c->failure, sizeof(c->failure), "%s", cairn_last_error());
}

/* Doubling: outgrown scratch, which graphs may use, is less than what is in use. */
static cairn_status grow(struct cairn_device *d, enum cairn__room slot, size_t nbytes) {
    struct cairn__cuda *c = cairn__cuda_enter(d);
    void *p = NULL;
    size_t taken = nbytes > 2 * c->rooms[slot].nbytes ? nbytes : 2 * c->rooms[slot].nbytes;
    REQUIRE(!d->capturing, CAIRN_ESTATE,
            "a graph is being recorded on cuda: an operation needs scratch memory; the step must do the same in every "
            "call");
    cairn_status st = cairn__cache_alloc(c->cache, CAIRN__HOLDS_SCRATCH, taken, &p);
    if (st == CAIRN_ENOMEM && taken > nbytes) {
        taken = nbytes;
        st = cairn__cache_alloc(c->cache, CAIRN__HOLDS_SCRATCH, taken, &p);
    }
    if (st != CAIRN_OK) return st;
    c->rooms[slot].data = p;
    c->rooms[slot].nbytes = taken;
    return CAIRN_OK;
}

void *cairn__cuda_room(struct cairn_device *d, enum cairn__room slot, size_t nbytes) {
    struct cairn__cuda *c = cairn__cuda_of(d);
    if (nbytes > c->rooms[slot].nbytes || !c->rooms[slot].data) {
        const cairn_status st = grow(d, slot, nbytes);
        cairn__cuda_kept(d, st);
        if (st != CAIRN_OK) return NULL;
    }
    return c->rooms[slot].data;
}

const struct cairn__math cairn__cuda_math = {
    .map = cairn__cuda_map,
    .map_sum = cairn__cuda_map_sum,
    .fold = cairn__cuda_fold,
    .variance = cairn__cuda_variance,
    .arg_max = cairn__cuda_arg_max,
    .cumulate = cairn__cuda_cumulate,
    .product = cairn__cuda_product,
    .softmax = cairn__cuda_softmax,
    .softmax_backward = cairn__cuda_softmax_backward,
    .gather_rows = cairn__cuda_gather_rows,
    .scatter_rows = cairn__cuda_scatter_rows,
    .dropout = cairn__cuda_dropout,
    .class_loss = cairn__cuda_class_loss,
    .class_loss_backward = cairn__cuda_class_loss_backward,
    .norm = cairn__cuda_norm,
    .norm_backward = cairn__cuda_norm_backward,
    .batch_stats = cairn__cuda_batch_stats,
    .conv = cairn__cuda_conv,
    .conv_backward = cairn__cuda_conv_backward,
    .pool = cairn__cuda_pool,
    .pool_backward = cairn__cuda_pool_backward,
    .attention = cairn__cuda_attention,
    .attention_backward = cairn__cuda_attention_backward,
};
