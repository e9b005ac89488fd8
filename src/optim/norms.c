/* Norms of gradients, to look at: each parameter's and that of all. Changes nothing that a step reads. */
#include <math.h>

#include "core/alloc.h"
#include "core/status.h"
#include "optim/optim.h"

/* Queues the norm of gradient i as it is stored, to norms[i]. */
static cairn_status queue_norm(struct cairn_optimizer *o, size_t i) {
    struct cairn_device *d = o->env->device;
    const struct cairn__param *p = o->arrays.params[i];
    struct cairn__grad_view grad;
    cairn_status st = cairn__grad_read(p->gradient, &grad);
    if (st != CAIRN_OK || !grad.x) return st;
    const struct cairn__item item = {.n = p->n, .x = grad.x};
    d->passes->l2norm(d, &item, 1, grad.dtype, grad.factor, &o->norms[i], NULL, NULL);
    return CAIRN_OK;
}

/* Of what the device has left in norms. A parameter without a gradient has the norm 0. */
static void finish_norms(const struct cairn_optimizer *o, double *norms, float clip) {
    for (size_t i = 0; i < o->count; i++) {
        const struct cairn__grad *g = o->arrays.params[i]->gradient;
        if (!cairn__grad_exists(g)) {
            norms[i] = 0;
        } else if (cairn__grad_is_clipped(g)) {
            norms[i] *= (double)clip;
        }
    }
}

cairn_status cairn_grad_norms(cairn_optimizer *optimizer, double *norms, size_t count, double *total) {
    REQUIRE(optimizer, CAIRN_EINVAL, "cairn_grad_norms: optimizer is NULL");
    REQUIRE(!norms || count == optimizer->count, CAIRN_EINVAL,
            "cairn_grad_norms: count is %zu, but the optimizer has %zu parameters (cairn_optimizer_num_params)", count,
            optimizer->count);
    cairn_status st = CAIRN_OK;
    struct cairn_optimizer *o = optimizer;
    struct cairn_device *d = o->env->device;
    double *all = NULL, squares = 0;
    float clip = 1;
    TRY(cairn__device_refuse_recording(d, "norms would have to be waited for; ask between replays"));
    TRY(cairn__params_check_arrived("cairn_grad_norms", o->arrays.params, o->count));
    TRY(cairn__calloc(o->count + 1, sizeof(all[0]), (void **)&all));
    TRY(cairn__params_take_unsynced(o->arrays.params, o->count));
    TRY(cairn__env_resolve(o->env));
    cairn__optimizer_forget_stale(o);
    for (size_t i = 0; i < o->count; i++) TRY(queue_norm(o, i));
    TRY(cairn__device_download(d, all, o->norms, o->count * sizeof(all[0])));
    TRY(cairn__device_download(d, &clip, &o->state->clip, sizeof(clip)));
    finish_norms(o, all, clip);
    for (size_t i = 0; i < o->count; i++) squares += all[i] * all[i];
    for (size_t i = 0; norms && i < o->count; i++) norms[i] = all[i];
    if (total) *total = sqrt(squares);
out:
    cairn__free(all);
    return st;
}
