/* Norms of gradients for the user: each parameter's, and that of all. Changes nothing that a step reads. */
#include <math.h>

#include "core/alloc.h"
#include "core/status.h"
#include "optim/optim.h"

/* Adds the norms of other ranks' shards. */
static cairn_status unite_shards(const struct cairn_optimizer *o, double *norms) {
    const struct cairn__sharers *sharers = cairn__optimizer_sharers(o);
    double *all = NULL;
    cairn_status st = CAIRN_OK;
    if (!sharers) return CAIRN_OK;
    TRY(cairn__calloc((size_t)sharers->size * o->count + 1, sizeof(all[0]), (void **)&all));
    TRY(sharers->gather(sharers->ctx, all, norms, o->count * sizeof(norms[0])));
    for (size_t i = 0; i < o->count; i++) {
        double squares = 0;
        if (!o->arrays.params[i]->is_sharded) continue;
        for (size_t r = 0; r < (size_t)sharers->size; r++) squares += all[r * o->count + i] * all[r * o->count + i];
        norms[i] = sqrt(squares);
    }
out:
    cairn__free(all);
    return st;
}

/* Checks that this rank makes by itself. */
static cairn_status check(const struct cairn_optimizer *o, const double *norms, size_t count) {
    REQUIRE(!norms || count == o->count, CAIRN_EINVAL,
            "cairn_grad_norms: count is %zu, but the optimizer has %zu parameters (cairn_optimizer_num_params)", count,
            o->count);
    return cairn__params_check_settled("cairn_grad_norms", o->arrays.params, o->count);
}

cairn_status cairn_grad_norms(cairn_optimizer *optimizer, double *norms, size_t count, double *total) {
    REQUIRE(optimizer, CAIRN_EINVAL, "cairn_grad_norms: optimizer is NULL");
    cairn_status st = CAIRN_OK;
    struct cairn_optimizer *o = optimizer;
    struct cairn_device *d = o->env->device;
    double *all = NULL, *listed, squares = 0;
    size_t done = 0;
    float clip = 1;
    st = cairn__device_refuse_recording(d, "norms are not known yet; call cairn_grad_norms between replays");
    if (st == CAIRN_OK) st = cairn__optimizer_check_sharers(o, "cairn_grad_norms");
    if (st == CAIRN_OK) st = cairn__optimizer_agree(o, "cairn_grad_norms", check(o, norms, count));
    if (st != CAIRN_OK) return st;
    TRY(cairn__calloc(2 * o->count + 1, sizeof(all[0]), (void **)&all));
    listed = all + o->count;
    TRY(cairn__params_use_unsynced(o->arrays.params, o->count));
    TRY(cairn__env_resolve(o->env));
    cairn__optimizer_forget_stale(o);
    TRY(cairn__optimizer_read_grads(o));
    for (size_t i = 0; i < o->count; i++) {
        if (o->arrays.keys[i] >= 0) done = cairn__optimizer_norm_list(o, i, done, &o->norms[o->count], NULL);
    }
    TRY(cairn__device_download(d, listed, o->norms, done * sizeof(listed[0])));
    TRY(cairn__device_download(d, &clip, &o->state->clip, sizeof(clip)));
    for (size_t i = 0; i < o->count; i++) { /* a parameter without a gradient has the norm 0 */
        const int key = o->arrays.keys[i];
        all[i] = key > -2 ? 0 : listed[-2 - key];
        if (cairn__grad_is_clipped(o->arrays.params[i]->gradient)) all[i] *= (double)clip;
    }
    TRY(unite_shards(o, all));
    for (size_t i = 0; i < o->count; i++) squares += all[i] * all[i];
    for (size_t i = 0; norms && i < o->count; i++) norms[i] = all[i];
    if (total) *total = sqrt(squares);
out:
    cairn__free(all);
    return cairn__optimizer_end_sharers(o, st);
}
