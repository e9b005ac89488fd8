/* torch.nn.LayerNorm, RMSNorm, GroupNorm, BatchNorm. Their parameters are registered as a normalisation's, so O2 keeps
 * them in f32. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/status.h"
#include "nn/module.h"
#include "nn/tensor.h"

struct norm {
    cairn_tensor *weight, *bias;
    double eps, momentum;
    int64_t groups;
    cairn_tensor *mean, *var, *batches; /* of a batch norm: buffers, */
    struct cairn__stats_exchange exchange;
    void *owner; /* of the exchange; NULL = there is none */
    void (*let_go)(void *owner);
};

static cairn_status check_size(const char *what, int64_t n, double eps) {
    REQUIRE(n > 0, CAIRN_EINVAL, "%s: size %" PRId64 "; it must be positive", what, n);
    REQUIRE(eps >= 0 && isfinite(eps), CAIRN_EINVAL, "%s: eps %g", what, eps);
    return CAIRN_OK;
}

/* A module with weight 1 and, where wanted, bias 0. */
static cairn_status create_norm(cairn_env *env, const struct cairn__module_kind *kind, int ndim, const int64_t *shape,
                                double eps, bool bias, cairn_module **out) {
    cairn_status st = CAIRN_OK;
    cairn_module *m = NULL;
    TRY(cairn__module_create(env, kind, sizeof(struct norm), &m));
    struct norm *n = m->context;
    n->eps = eps == 0 ? 1e-5 : eps;
    TRY(cairn__module_add_param(m, "weight", ndim, shape, true, &n->weight));
    if (bias) TRY(cairn__module_add_param(m, "bias", ndim, shape, true, &n->bias));
    TRY(cairn_init_constant(n->weight, 1));
    if (bias) TRY(cairn_init_constant(n->bias, 0));
    *out = m;
    return CAIRN_OK;
out:
    cairn_module_destroy(&m);
    return st;
}

/* ---- layer, RMS ---- */

static cairn_tensor *layer_norm(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct norm *n = context;
    return cairn_layer_norm_forward(inputs[0], n->weight, n->bias, n->weight->ndim, n->eps);
}

static cairn_tensor *rms_norm(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct norm *n = context;
    return cairn_rms_norm_forward(inputs[0], n->weight, n->weight->ndim, n->eps);
}

static void describe_rows(const void *context, char *text, size_t nbytes) {
    const struct norm *n = context;
    const cairn_tensor *w = n->weight;
    size_t used = (size_t)snprintf(text, nbytes, "(");
    for (int d = 0; d < w->ndim && used < nbytes; d++) {
        used += (size_t)snprintf(text + used, nbytes - used, d ? ", %" PRId64 : "%" PRId64, w->shape[d]);
    }
    if (used < nbytes) {
        snprintf(text + used, nbytes - used, "%s), eps=%g, elementwise_affine=True", w->ndim == 1 ? "," : "", n->eps);
    }
}

static const struct cairn__module_kind layer_kind = {.name = "LayerNorm",
                                                     .forward = layer_norm,
                                                     .describe = describe_rows};
static const struct cairn__module_kind rms_kind = {.name = "RMSNorm", .forward = rms_norm, .describe = describe_rows};

static cairn_status create_rows(cairn_env *env, const struct cairn__module_kind *kind, int ndim, const int64_t *shape,
                                double eps, cairn_module **out) {
    const char *what = kind == &layer_kind ? "layer_norm" : "rms_norm";
    REQUIRE(shape || ndim < 1, CAIRN_EINVAL, "%s: shape is NULL", what);
    REQUIRE(ndim > 0 && ndim <= CAIRN_MAX_DIMS, CAIRN_EINVAL, "%s: %d dimensions; 1 to %d are allowed", what, ndim,
            CAIRN_MAX_DIMS);
    cairn_status st = CAIRN_OK;
    for (int d = 0; d < ndim; d++) TRY(check_size(what, shape[d], eps));
    TRY(create_norm(env, kind, ndim, shape, eps, kind == &layer_kind, out));
out:
    return st;
}

cairn_module *cairn_layer_norm(cairn_env *env, int ndim, const int64_t *shape, double eps) {
    cairn_module *m = NULL;
    return create_rows(env, &layer_kind, ndim, shape, eps, &m) == CAIRN_OK ? m : NULL;
}

cairn_module *cairn_rms_norm(cairn_env *env, int64_t dim, double eps) {
    cairn_module *m = NULL;
    return create_rows(env, &rms_kind, 1, &dim, eps, &m) == CAIRN_OK ? m : NULL;
}

/* ---- group ---- */

static cairn_tensor *group_norm(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct norm *n = context;
    return cairn_group_norm_forward(inputs[0], n->groups, n->weight, n->bias, n->eps);
}

static void describe_group(const void *context, char *text, size_t nbytes) {
    const struct norm *n = context;
    snprintf(text, nbytes, "%" PRId64 ", %" PRId64 ", eps=%g, affine=True", n->groups, n->weight->shape[0], n->eps);
}

static const struct cairn__module_kind group_kind = {.name = "GroupNorm",
                                                     .forward = group_norm,
                                                     .describe = describe_group};

static cairn_status create_group(cairn_env *env, int64_t groups, int64_t channels, double eps, cairn_module **out) {
    cairn_status st = CAIRN_OK;
    TRY(check_size("group_norm", channels, eps));
    REQUIRE(groups > 0 && channels % groups == 0, CAIRN_EINVAL,
            "group_norm: %" PRId64 " groups do not divide %" PRId64 " channels", groups, channels);
    TRY(create_norm(env, &group_kind, 1, &channels, eps, true, out));
    ((struct norm *)(*out)->context)->groups = groups;
out:
    return st;
}

cairn_module *cairn_group_norm(cairn_env *env, int64_t groups, int64_t channels, double eps) {
    cairn_module *m = NULL;
    return create_group(env, groups, channels, eps, &m) == CAIRN_OK ? m : NULL;
}

/* ---- batch ---- */

static cairn_tensor *batch_norm(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)count;
    const struct norm *n = context;
    cairn_tensor *y = cairn__batch_norm_over(inputs[0], n->mean, n->var, n->weight, n->bias, module->training,
                                             n->momentum, n->eps, &n->exchange);
    /* Nothing is computed from the count; it is part of the state, as in torch. The device counts, so that no step
     * waits for the number and a recorded step counts too. */
    if (y && module->training) module->env->device->passes->count_up(module->env->device, n->batches->data, NULL);
    return y;
}

static void describe_batch(const void *context, char *text, size_t nbytes) {
    const struct norm *n = context;
    snprintf(text, nbytes, "%" PRId64 ", eps=%g, momentum=%g, affine=True, track_running_stats=True",
             n->weight->shape[0], n->eps, n->momentum);
}

static const struct cairn__module_kind batch_kind = {.name = "BatchNorm",
                                                     .forward = batch_norm,
                                                     .describe = describe_batch};

static cairn_status add_statistics(cairn_module *m, int64_t channels) {
    struct norm *n = m->context;
    n->mean = cairn_module_add_buffer(m, "running_mean", CAIRN_F32, 1, &channels);
    n->var = cairn_module_add_buffer(m, "running_var", CAIRN_F32, 1, &channels);
    n->batches = cairn_module_add_buffer(m, "num_batches_tracked", CAIRN_I64, 0, NULL);
    if (!n->mean || !n->var || !n->batches) return cairn__last_status();
    n->mean->keeps_type = n->var->keeps_type = true;
    return cairn_init_constant(n->var, 1);
}

static void end_batch(void *context) {
    struct norm *n = context;
    if (n && n->owner) n->let_go(n->owner);
    cairn__free(n);
}

static cairn_status create_batch(cairn_env *env, int64_t channels, double eps, double momentum, cairn_module **out) {
    cairn_status st = CAIRN_OK;
    cairn_module *m = NULL;
    TRY(check_size("batch_norm", channels, eps));
    REQUIRE(momentum >= 0 && momentum <= 1, CAIRN_EINVAL, "batch_norm: momentum %g; it must be from 0 to 1", momentum);
    TRY(create_norm(env, &batch_kind, 1, &channels, eps, true, &m));
    m->end_context = end_batch;
    ((struct norm *)m->context)->momentum = momentum == 0 ? 0.1 : momentum;
    TRY(add_statistics(m, channels));
    *out = m;
    return CAIRN_OK;
out:
    cairn_module_destroy(&m);
    return st;
}

cairn_module *cairn_batch_norm(cairn_env *env, int64_t channels, double eps, double momentum) {
    cairn_module *m = NULL;
    return create_batch(env, channels, eps, momentum, &m) == CAIRN_OK ? m : NULL;
}

/* ---- batches split into shares ---- */

static size_t list_batch_norms(cairn_module *m, cairn_module **list, size_t room, size_t count) {
    if (m->kind.forward == batch_norm) {
        if (count < room) list[count] = m;
        count++;
    }
    for (size_t i = 0; i < m->num_children; i++) count = list_batch_norms(m->children[i], list, room, count);
    return count;
}

size_t cairn__batch_norms(cairn_module *module, cairn_module **list, size_t room) {
    return list_batch_norms(module, list, room, 0);
}

void cairn__batch_norm_share(cairn_module *layer, const struct cairn__stats_exchange *exchange, void *owner,
                             void (*let_go)(void *owner)) {
    struct norm *n = layer->context;
    n->exchange = *exchange;
    n->owner = owner;
    n->let_go = let_go;
    layer->kind.name = "SyncBatchNorm";
}

void *cairn__batch_norm_owner(const cairn_module *layer) {
    return ((const struct norm *)layer->context)->owner;
}
