/* Modules from inside: a parameter set and a forward. */
#ifndef CAIRN__NN_MODULE_H
#define CAIRN__NN_MODULE_H

#include "nn/hooks.h"
#include "param/param.h"

struct cairn__module_ops {
    const char *name;
    cairn_tensor *(*forward)(cairn_module *module, cairn_tensor *x);
};

/* A module with an empty parameter set. context_nbytes of zeroed memory come with it (cairn__module_context). */
cairn_status cairn__module_create(cairn_env *env, const struct cairn__module_ops *ops, size_t context_nbytes,
                                  cairn_module **out);
void *cairn__module_context(cairn_module *module);

/* Adds an f32 parameter; *tensor (may be NULL) is its handle for operations: it always shows the parameter's present data
 * and type. Owned by the module. */
cairn_status cairn__module_add_param(cairn_module *module, const char *name, int ndim, const int64_t *shape,
                                     bool is_norm, cairn_tensor **tensor);

/* Fills a parameter with uniforms in [-bound, bound) from the environment's next stream. */
void cairn__param_init_uniform(struct cairn__param *p, float bound);

#endif
