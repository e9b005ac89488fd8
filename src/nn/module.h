/* Modules from inside: a tree whose root holds the parameter set of all.
 *
 * A module is built alone: parameters, buffers and children are added, and with a child come its parameters, which move
 * into the set of its new root under longer names. From then on only the root may be built further. */
#ifndef CAIRN__NN_MODULE_H
#define CAIRN__NN_MODULE_H

#include "nn/hooks.h"
#include "param/param.h"

struct cairn__module_kind {
    const char *name; /* as torch calls the class: "Linear" */
    cairn_tensor *(*forward)(cairn_module *module, void *context, cairn_tensor *const *inputs, int count);
    int max_inputs; /* 0 = 1 */
    /* (optional: nothing) What torch's extra_repr says: "in_features=4, out_features=2, bias=True". */
    void (*describe)(const void *context, char *text, size_t nbytes);
};

/* A tensor of a module, and where it is: the path from the root. */
struct cairn__module_buffer {
    char *path;
    char *next_path; /* while the module becomes a child */
    cairn_tensor *tensor;
    void *half; /* the memory it is about to have */
};

struct cairn_module {
    cairn_env *env;
    struct cairn__module_kind kind;
    void *context;
    void (*end_context)(void *context); /* NULL = nothing to do */
    bool training;
    cairn_dtype input, output; /* what forward casts to; 0 = left as they are */

    cairn_module *parent; /* NULL: a root */
    char *name;           /* in it */
    cairn_module **children;
    size_t num_children, children_capacity;

    struct cairn_param_set *params; /* of a root, for the whole tree; NULL in children */
    cairn_tensor **handles;         /* of the module's own parameters */
    size_t num_handles, handles_capacity;
    struct cairn__module_buffer *buffers; /* its own */
    size_t num_buffers, buffers_capacity;
};

/* "encoder.0", as much as there is room for; "" for a root. */
enum { CAIRN__MODULE_PATH = 512 };
void cairn__module_put_path(const cairn_module *m, char text[CAIRN__MODULE_PATH]);

/* A module with an empty parameter set. kind is copied; context_nbytes of zeroed memory come with it. */
cairn_status cairn__module_create(cairn_env *env, const struct cairn__module_kind *kind, size_t context_nbytes,
                                  cairn_module **out);
static inline void *cairn__module_context(cairn_module *module) {
    return module->context;
}

/* Adds an f32 parameter; *tensor (may be NULL) is its handle for operations: it always shows the parameter's present
 * data and type. Owned by the module. */
cairn_status cairn__module_add_param(cairn_module *module, const char *name, int ndim, const int64_t *shape,
                                     bool is_norm, cairn_tensor **tensor);

/* As cairn_module_add_child; *out (may be NULL) is the child. */
cairn_status cairn__module_add_child(cairn_module *module, const char *name, cairn_module *child, cairn_module **out);

/* Ends a child that add_child was given and did not take, as cairn_module_destroy does; not one that has a parent. */
void cairn__module_drop(cairn_module *child);

/* Fills a parameter with uniforms in [-bound, bound) from the environment's next stream. */
void cairn__param_init_uniform(struct cairn__param *p, float bound);

/* How many characters of a path of m's root come before what m itself would call it: those of "encoder.0.". */
size_t cairn__module_prefix(const cairn_module *m);

#endif
