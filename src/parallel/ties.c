/* Tied parameters: one parameter of which several stages have a copy. The copies start equal, and their gradients are
 * added up over the ranks at the end of each step, unscaled and in f32, so equal optimizers keep the copies equal.
 * Gradients of earlier steps, which have been added up already, are set aside meanwhile. */
#include <string.h>

#include "core/alloc.h"
#include "param/param.h"
#include "parallel/pipeline.h"

/* ---- making ---- */

static cairn_status find(cairn_pipeline *p, int module, const char *name, struct cairn__param **out) {
    *out = NULL;
    if (!name) return CAIRN_OK;
    REQUIRE(module >= 0 && module < p->chunks, CAIRN_EINVAL,
            "cairn_pipeline_tie: module is %d, but the rank has %d modules", module, p->chunks);
    *out = cairn__param_set_find(cairn_module_params(p->modules[module]), name);
    REQUIRE(*out, CAIRN_EINVAL, "cairn_pipeline_tie: module %d has no parameter '%s'", module, name);
    if ((*out)->is_sharded) return cairn__param_check_whole("cairn_pipeline_tie", *out);
    for (const struct cairn__tie *t = p->ties; t; t = t->next)
        REQUIRE(t->param != *out, CAIRN_ESTATE, "cairn_pipeline_tie: '%s' is tied already", name);
    return CAIRN_OK;
}

/* What must be equal for parameters to be tied. */
struct kind {
    int64_t is_tied, dtype, has_master, ndim;
    int64_t shape[CAIRN_MAX_DIMS];
};

static struct kind kind_of(const struct cairn__param *param) {
    struct kind k = {0};
    if (!param) return k;
    k.is_tied = 1;
    k.dtype = (int64_t)param->dtype;
    k.has_master = param->master != NULL;
    k.ndim = param->ndim;
    for (int d = 0; d < param->ndim; d++) k.shape[d] = param->shape[d];
    return k;
}

static cairn_status compare(const struct kind *all, int ranks) {
    int first = -1, count = 0;
    for (int r = 0; r < ranks; r++) {
        if (!all[r].is_tied) continue;
        if (first < 0) first = r;
        count++;
        REQUIRE(memcmp(&all[r], &all[first], sizeof(all[r])) == 0, CAIRN_EINVAL,
                "cairn_pipeline_tie: the parameters of ranks %d and %d have different shapes or types", first, r);
    }
    REQUIRE(count > 1, CAIRN_EINVAL, "cairn_pipeline_tie: %d ranks name a parameter; two or more must", count);
    return CAIRN_OK;
}

static void end_tie(cairn_pipeline *p, struct cairn__tie *t) {
    cairn_group_destroy(&t->group);
    cairn__device_free(p->env->device, t->before);
    cairn__free(t);
}

cairn_status cairn_pipeline_tie(cairn_pipeline *pipeline, int module, const char *name) {
    REQUIRE(pipeline, CAIRN_EINVAL, "cairn_pipeline_tie: pipeline is NULL");
    cairn_pipeline *p = pipeline;
    cairn_status st = CAIRN_OK;
    struct cairn__param *param = NULL;
    struct cairn__tie *t = NULL, **at = &p->ties;
    struct kind all[CAIRN__MAX_RANKS];
    st = find(p, module, name, &param);
    if (st == CAIRN_OK) st = cairn__calloc(1, sizeof(*t), (void **)&t);
    TRY(cairn__group_agree_on_status(p->channel, "cairn_pipeline_tie", st));
    const struct kind mine = kind_of(param);
    TRY(cairn__group_exchange(p->channel, all, &mine, sizeof(mine)));
    TRY(compare(all, p->ranks));
    TRY(cairn_group_split(p->channel, param ? 0 : -1, p->rank, NULL, &t->group));
    t->param = param;
    if (param) {
        TRY(cairn_broadcast(t->group, param->data, param->n, param->dtype, 0, NULL));
        if (param->master) TRY(cairn_broadcast(t->group, param->master, param->n, CAIRN_F32, 0, NULL));
        param->version++;
        while (*at) at = &(*at)->next;
        *at = t;
        t = NULL;
    }
out:
    if (t) end_tie(p, t);
    return st;
}

void cairn__ties_end(cairn_pipeline *p) {
    while (p->ties) {
        struct cairn__tie *t = p->ties;
        p->ties = t->next;
        end_tie(p, t);
    }
}

bool cairn__ties_counts(void *ctx, const struct cairn__param *param) {
    for (const struct cairn__tie *t = ((const cairn_pipeline *)ctx)->ties; t; t = t->next) {
        if (t->param == param) return cairn_group_rank(t->group) == 0;
    }
    return true;
}

/* ---- a step ---- */

static cairn_status put_aside(cairn_pipeline *p, struct cairn__tie *t) {
    struct cairn_device *d = p->env->device;
    const size_t nbytes = t->param->n * sizeof(float);
    cairn_status st = CAIRN_OK;
    t->has_before = cairn__grad_exists(t->param->gradient);
    if (!t->has_before) return CAIRN_OK;
    TRY(cairn__env_resolve(p->env));
    TRY(cairn__grad_unscale(t->param->gradient));
    if (!t->before) TRY(cairn__device_alloc(d, CAIRN__HOLDS_GRADS, nbytes, (void **)&t->before));
    TRY(cairn__device_copy(d, t->before, cairn__grad_unscaled_memory(t->param->gradient), nbytes));
    cairn__params_forget(&t->param, 1);
out:
    return st;
}

/* A rank whose micro-batches left no gradient contributes zeros. */
static cairn_status sum(cairn_pipeline *p, struct cairn__tie *t) {
    struct cairn_device *d = p->env->device;
    struct cairn__grad *g = t->param->gradient;
    cairn_status st = CAIRN_OK;
    if (!cairn__grad_exists(g)) TRY(cairn__grad_write_unreached(g));
    TRY(cairn__grad_unscale(g));
    float *const values = cairn__grad_unscaled_memory(g);
    TRY(cairn_allreduce(t->group, values, t->param->n, CAIRN_F32, CAIRN_SUM, NULL));
    if (t->has_before) d->passes->add(d, CAIRN_F32, values, values, t->before, t->param->n);
out:
    return st;
}

cairn_status cairn__ties_begin(cairn_pipeline *p) {
    cairn_status st = CAIRN_OK;
    for (struct cairn__tie *t = p->ties; t; t = t->next) {
        if (cairn__param_requires_grad(t->param)) TRY(put_aside(p, t));
    }
out:
    return st;
}

cairn_status cairn__ties_sum(cairn_pipeline *p) {
    cairn_status st = CAIRN_OK;
    if (p->ties) TRY(cairn__env_resolve(p->env));
    for (struct cairn__tie *t = p->ties; t; t = t->next) {
        if (cairn__param_requires_grad(t->param)) TRY(sum(p, t));
    }
out:
    return st;
}
