/* Modules from inside: a tree whose root holds the parameter set of the whole tree.
 *
 * A module is built as a root: parameters, buffers and children are added to it. Adding a child moves the child's
 * parameters into the set of its new root, under longer names. After that only the root can be extended. */
#ifndef CAIRN__NN_MODULE_H
#define CAIRN__NN_MODULE_H

#include "nn/hooks.h"
#include "param/param.h"

struct cairn__module_kind {
    const char *name; /* as torch calls the class: "Linear" */
    cairn_tensor *(*forward)(cairn_module *module, void *context, cairn_tensor *const *inputs, int count);
    int max_inputs; /* 0 = 1 */
    /* (optional: NULL = no text) As torch's extra_repr: "in_features=4, out_features=2, bias=True". */
    void (*describe)(const void *context, char *text, size_t nbytes);
};

/* A module's own buffer and its path from the root. */
struct cairn__module_buffer {
    char *path;
    char *next_path; /* the path after an add_child that is in progress */
    cairn_tensor *tensor;
    void *half; /* memory for its half values (cairn__module_make_half_buffers) */
};

struct cairn_module {
    cairn_env *env;
    struct cairn__module_kind kind;
    void *context;
    void (*end_context)(void *context); /* NULL = nothing to do */
    bool training;
    cairn_dtype input, output; /* the types that forward casts to; 0 = no cast */

    cairn_module *parent; /* NULL: a root */
    char *name;           /* among the parent's children */
    cairn_module **children;
    size_t num_children, children_capacity;

    struct cairn_param_set *params; /* the whole tree's, in the root; NULL in children */
    cairn_tensor **handles;         /* of the module's own parameters */
    size_t num_handles, handles_capacity;
    struct cairn__module_buffer *buffers; /* the module's own */
    size_t num_buffers, buffers_capacity;
};

/* Writes the module's path, "encoder.0", truncated to text; "" for a root. */
enum { CAIRN__MODULE_PATH = 512 };
void cairn__module_put_path(const cairn_module *m, char text[CAIRN__MODULE_PATH]);

/* A module with an empty parameter set. kind is copied; the context is context_nbytes of zeroed memory. */
cairn_status cairn__module_create(cairn_env *env, const struct cairn__module_kind *kind, size_t context_nbytes,
                                  cairn_module **out);
static inline void *cairn__module_context(cairn_module *module) {
    return module->context;
}

/* Adds an f32 parameter. *tensor (may be NULL) is its handle for operations, owned by the module; it always shows the
 * parameter's current data and type. */
cairn_status cairn__module_add_param(cairn_module *module, const char *name, int ndim, const int64_t *shape,
                                     bool is_norm, cairn_tensor **tensor);

/* As cairn_module_add_child; *out (may be NULL) is the child. */
cairn_status cairn__module_add_child(cairn_module *module, const char *name, cairn_module *child, cairn_module **out);

/* Destroys a child that add_child did not take, as cairn_module_destroy does. Does nothing if it has a parent. */
void cairn__module_drop(cairn_module *child);

/* Fills a parameter with uniforms in [-bound, bound) from the environment's next stream. */
void cairn__param_init_uniform(struct cairn__param *p, float bound);

/* The length of the prefix "encoder.0." by which paths from m's root are longer than paths from m. */
size_t cairn__module_prefix(const cairn_module *m);

#endif
