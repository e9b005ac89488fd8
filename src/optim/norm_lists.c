/* Lists of gradients of one type and factor, and their norms, for clipping and for the user. */
#include "core/status.h"
#include "optim/optim.h"

cairn_status cairn__optimizer_read_grads(cairn_optimizer *o) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < o->count; i++) {
        struct cairn__grad_view grad;
        TRY(cairn__grad_prepare_read(o->arrays.params[i]->gradient, &grad));
        o->arrays.items[i].n = grad.n;
        o->arrays.items[i].grad = grad.x;
        o->arrays.items[i].factor = grad.factor;
        o->arrays.keys[i] = grad.x ? (int)grad.dtype : -1;
    }
out:
    return st;
}

size_t cairn__optimizer_norm_list(cairn_optimizer *o, size_t first, size_t done, double *norm, const float *clip) {
    struct cairn_device *d = o->env->device;
    const struct cairn__optim_arrays *a = &o->arrays;
    const float *const factor = a->items[first].factor;
    const int key = a->keys[first];
    const bool is_sharded = a->params[first]->is_sharded;
    size_t listed = 0;
    for (size_t i = first; i < o->count; i++) {
        const struct cairn__param *p = a->params[i];
        if (a->keys[i] != key || a->items[i].factor != factor || p->is_sharded != is_sharded) continue;
        uint32_t *const flag = clip ? cairn__grad_set_clip(p->gradient, clip) : NULL;
        a->keys[i] = -2 - (int)(done + listed);
        a->plain[listed++] = (struct cairn__item){.n = a->items[i].n, .x = a->items[i].grad, .found = flag};
    }
    d->passes->l2norm(d, a->plain, listed, (cairn_dtype)key, factor, norm, clip ? NULL : &o->norms[done], NULL);
    return done + listed;
}
