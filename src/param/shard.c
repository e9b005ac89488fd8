/* Shards: the arrays of a parameter of which several ranks update a piece each. */
#include "core/status.h"
#include "param/param.h"

static float **array_at(const struct cairn__param *p, int i) {
    return i == 0 ? (float **)(uintptr_t)&p->master : i <= p->num_arrays ? &p->arrays[i - 1] : NULL;
}

float *cairn__param_array(const struct cairn__param *p, int i) {
    float **const at = array_at(p, i);
    return at ? *at : NULL;
}

void cairn__param_arrays_free(const struct cairn__param *p, struct cairn__param_arrays *arrays) {
    for (int i = 0; i < CAIRN__PARAM_ARRAYS; i++) cairn__device_free(p->set->env->device, arrays->at[i]);
    *arrays = (struct cairn__param_arrays){{NULL}};
}

cairn_status cairn__param_arrays_make(const struct cairn__param *p, size_t n, struct cairn__param_arrays *out) {
    struct cairn__param_arrays arrays = {{NULL}};
    struct cairn_device *d = p->set->env->device;
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < CAIRN__PARAM_ARRAYS; i++) {
        const enum cairn__holder holder = i == 0 ? CAIRN__HOLDS_PARAMS : CAIRN__HOLDS_OPTIM;
        if (!cairn__param_array(p, i)) continue;
        TRY(cairn__device_alloc(d, holder, n * sizeof(float), (void **)&arrays.at[i]));
    }
    *out = arrays;
    return CAIRN_OK;
out:
    cairn__param_arrays_free(p, &arrays);
    return st;
}

cairn_status cairn__param_arrays_use(struct cairn__param *p, const struct cairn__shard *shard,
                                     struct cairn__param_arrays *arrays) {
    const struct cairn__shard was = cairn__param_shard(p), is = shard ? *shard : (struct cairn__shard){0, p->n};
    const size_t begin = was.first > is.first ? was.first : is.first;
    const size_t was_end = was.first + was.n, is_end = is.first + is.n, end = was_end < is_end ? was_end : is_end;
    cairn_status st = CAIRN_OK;
    for (int i = 0; i < CAIRN__PARAM_ARRAYS; i++) {
        if (!arrays->at[i]) continue;
        if (begin < end)
            TRY(cairn__device_copy(p->set->env->device, arrays->at[i] + (begin - is.first),
                                   cairn__param_array(p, i) + (begin - was.first), (end - begin) * sizeof(float)));
    }
    for (int i = 0; i < CAIRN__PARAM_ARRAYS; i++) {
        if (!arrays->at[i]) continue;
        float **const at = array_at(p, i);
        if (i > 0 || p->owns_master) cairn__device_free(p->set->env->device, *at);
        if (i == 0) p->owns_master = true;
        *at = arrays->at[i];
    }
    *arrays = (struct cairn__param_arrays){{NULL}};
    cairn__params_forget(&p, 1); /* reduced gradients are those of the old shard */
    cairn__grad_free_sum(p->gradient);
    p->is_sharded = shard != NULL;
    p->shard = is;
out:
    return st;
}

cairn_status cairn__param_check_whole(const char *call, const struct cairn__param *p) {
    REQUIRE(
        !p->is_sharded, CAIRN_ENOTSUP,
        "%s: ranks share the update of parameter '%s' (ddp_options.shard_optimizer), and this one has a part of its "
        "f32 values alone; leave shard_optimizer out",
        call, p->name);
    return CAIRN_OK;
}

cairn_status cairn__params_check_whole(const char *call, struct cairn__param *const *params, size_t count) {
    cairn_status st = CAIRN_OK;
    for (size_t i = 0; i < count; i++) TRY(cairn__param_check_whole(call, params[i]));
out:
    return st;
}

/* ---- memory of the weights ---- */

cairn_status cairn__param_move(struct cairn__param *p, void *to, bool owned) {
    struct cairn_device *d = p->set->env->device;
    cairn_status st = CAIRN_OK;
    if (p->n > 0) TRY(cairn__device_copy(d, to, p->data, p->n * cairn_dtype_nbytes(p->dtype)));
    if (p->owns_data) cairn__device_free(d, p->data);
    p->data = to;
    p->owns_data = owned;
    p->version++;
out:
    return st;
}
