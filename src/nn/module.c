/* Modules: a parameter set, the handles of its parameters, and a forward between two casts. */
#include "nn/module.h"

#include "core/alloc.h"
#include "core/status.h"
#include "nn/tensor.h"

struct cairn_module {
    cairn_env *env;
    const struct cairn__module_ops *ops;
    struct cairn_param_set *params;
    cairn_tensor **handles; /* of the parameters, in their order */
    size_t count, capacity;
    cairn_dtype input, output; /* 0 = left as they are */
    void *context;
};

cairn_status cairn__module_create(cairn_env *env, const struct cairn__module_ops *ops, size_t context_nbytes,
                                  cairn_module **out) {
    REQUIRE(env, CAIRN_EINVAL, "%s: env is NULL", ops->name);
    cairn_status st = CAIRN_OK;
    cairn_module *m = NULL;
    TRY(cairn__calloc(1, sizeof(*m), (void **)&m));
    m->env = env;
    m->ops = ops;
    TRY(cairn__calloc(1, context_nbytes, &m->context));
    TRY(cairn__param_set_new(env, &m->params));
    *out = m;
    return CAIRN_OK;
out:
    cairn_module_destroy(&m);
    return st;
}

void cairn_module_destroy(cairn_module **module) {
    if (!module || !*module) return;
    cairn_module *m = *module;
    if (m->params && cairn__param_set_in_use(m->params, "cairn_module_destroy")) return;
    for (size_t i = 0; i < m->count; i++) cairn__tensor_of_param_destroy(&m->handles[i]);
    cairn__free(m->handles);
    cairn_param_set_destroy(&m->params);
    cairn__free(m->context);
    cairn__free(m);
    *module = NULL;
}

void *cairn__module_context(cairn_module *module) {
    return module->context;
}

cairn_status cairn__module_add_param(cairn_module *m, const char *name, int ndim, const int64_t *shape, bool is_norm,
                                     cairn_tensor **tensor) {
    cairn_status st = CAIRN_OK;
    struct cairn__param *p = NULL;
    TRY(cairn__grow((void **)&m->handles, &m->capacity, m->count + 1, sizeof(m->handles[0])));
    TRY(cairn__param_set_add(m->params, name, ndim, shape, is_norm, &p));
    TRY(cairn__tensor_of_param(p, &m->handles[m->count]));
    if (tensor) *tensor = m->handles[m->count];
    m->count++;
out:
    return st;
}

void cairn__param_init_uniform(struct cairn__param *p, float bound) {
    cairn_env *env = p->set->env;
    env->device->passes->uniform(env->device, p->dtype, p->data, p->n, bound, env->seed, cairn__env_next_stream(env));
}

void cairn__module_set_io_types(cairn_module *module, cairn_dtype input, cairn_dtype output) {
    module->input = input;
    module->output = output;
}

cairn_env *cairn__module_env(const cairn_module *module) {
    return module ? module->env : NULL;
}

cairn_param_set *cairn_module_params(cairn_module *module) {
    return module ? module->params : NULL;
}

static cairn_tensor *in_type(cairn_tensor *t, cairn_dtype dtype) {
    if (!t || !dtype || cairn__tensor_dtype(t) == dtype) return t;
    return cairn_cast(t, dtype);
}

cairn_tensor *cairn_module_forward(cairn_module *m, cairn_tensor *x) {
    if (!m || !x) return NULL;
    return in_type(m->ops->forward(m, in_type(x, m->input)), m->output);
}
