/* Modules: layers with parameters, buffers and children, and how to write your own.
 *
 * A module is made in an environment and destroyed by cairn_module_destroy, together with its children. Calls that make
 * one return NULL on error; a NULL child gives NULL: cairn_last_error() has the first cause. Parameters are f32 when
 * made (amp may change that) and initialised as in PyTorch, from the environment's seed. Modules start in training
 * mode. Threads: as tensors. */
#ifndef CAIRN_MODULES_H
#define CAIRN_MODULES_H

#include "ops.h"
#include "param.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_module cairn_module;

/* ---- any module ---- */

/* Destroys a module that is no child of another, and its children; sets *module to NULL. A module that is a child of
 * another, or whose parameters an optimizer or context uses, is kept, and an error is logged; so is any module while a
 * backward runs. Results made with a destroyed module can still be read; a backward through its parameters, and views
 * of them, become errors. */
CAIRN_API void cairn_module_destroy(cairn_module **module);

/* y = module(x), with amp's casts of float inputs and of the output. NULL on error. */
CAIRN_API cairn_tensor *cairn_module_forward(cairn_module *module, cairn_tensor *x);

/* The same with several inputs, some of which may be NULL if the module allows it. */
CAIRN_API cairn_tensor *cairn_module_forward_n(cairn_module *module, cairn_tensor *const *inputs, int count);

/* All parameters of the module and its children, owned by the module and named by their path:
 * "encoder.0.linear1.weight". They are in the order in which they were added; those of a child were added when it
 * became one. A tree has one set: for a child of another module it returns NULL with CAIRN_ESTATE. */
CAIRN_API cairn_param_set *cairn_module_params(cairn_module *module);

/* Forgets the gradients of all parameters; results of the step stay (cairn_zero_grad of an optimizer ends them too).
 * For a child of another module it only logs an error. torch.nn.Module.zero_grad */
CAIRN_API void cairn_module_zero_grad(cairn_module *module);

/* Sets training mode (on not 0; modules start in it) or evaluation mode, for the module and its children: dropout and
 * batch_norm depend on it. torch.nn.Module.train, eval */
CAIRN_API void cairn_module_train(cairn_module *module, int on);
CAIRN_API int cairn_module_is_training(const cairn_module *module);

/* Thaws (on) or freezes (0, CAIRN_OFF) the parameters of the module and its children; the module may be a child of
 * another. Effects and errors are in param.h. torch.nn.Module.requires_grad_ */
CAIRN_API cairn_status cairn_module_require_grad(cairn_module *module, int on);

/* Buffers: state that is no parameter (running statistics), of the module and its children: first its own, then those
 * of each child, named by their path from this module. name may be NULL; the name is valid until the module becomes a
 * child. The module owns the tensor: read it with cairn_tensor_read, write it with cairn_tensor_write. NULL if i is out
 * of range. */
CAIRN_API size_t cairn_module_num_buffers(const cairn_module *module);
CAIRN_API cairn_tensor *cairn_module_buffer(const cairn_module *module, size_t i, const char **name);

/* The module's state for a checkpoint (stateful.h): its parameters, under their paths, with the rules of
 * cairn_param_set_stateful (param.h), and the buffers of the module and its children, under theirs. The training mode
 * (cairn_module_train) is not included. CAIRN_ESTATE also for a child of another module.
 *
 * With several ranks, buffers are rank 0's if ddp broadcasts them (ddp_options.broadcast_buffers); otherwise each rank
 * has its own, and on another number of ranks all load rank 0's. */
CAIRN_API cairn_stateful cairn_module_stateful(cairn_module *module);

/* The handle of a parameter or buffer by its path from this module; NULL with CAIRN_EINVAL if there is none. */
CAIRN_API cairn_tensor *cairn_module_get(const cairn_module *module, const char *path);

/* The tree of modules as text, in torch's format. Length and truncation: as cairn_tensor_format; -1 on error. */
CAIRN_API int cairn_module_format(const cairn_module *module, char *text, size_t nbytes);

/* ---- layers ---- */

/* torch.nn.Linear(in, out): weight [out, in] and bias [out], both uniform in +-1/sqrt(in) (PyTorch's default, which is
 * kaiming_uniform with a = sqrt(5)). */
CAIRN_API cairn_module *cairn_linear(cairn_env *env, int64_t in, int64_t out);
CAIRN_API cairn_module *cairn_linear_without_bias(cairn_env *env, int64_t in, int64_t out);

/* A square kernel. options may be NULL. torch.nn.Conv2d, Conv1d: uniform in +-1/sqrt(C / groups * kernel elements) */
CAIRN_API cairn_module *cairn_conv2d(cairn_env *env, int64_t in, int64_t out, int64_t kernel,
                                     const struct cairn_conv_options *options);
CAIRN_API cairn_module *cairn_conv1d(cairn_env *env, int64_t in, int64_t out, int64_t kernel,
                                     const struct cairn_conv_options *options);

/* Initialised to Normal(0, 1), with zeros in row padding_idx; -1 = none. torch.nn.Embedding */
CAIRN_API cairn_module *cairn_embedding(cairn_env *env, int64_t rows, int64_t dim, int64_t padding_idx);

/* Weights are 1 and biases 0; O2 keeps them in f32. eps 0 = 1e-5, momentum 0 = 0.1. batch_norm takes [N, C, ...] with
 * any number of dimensions (BatchNorm1d, 2d, 3d). */
CAIRN_API cairn_module *cairn_layer_norm(cairn_env *env, int ndim, const int64_t *shape, double eps);
CAIRN_API cairn_module *cairn_rms_norm(cairn_env *env, int64_t dim, double eps);
CAIRN_API cairn_module *cairn_group_norm(cairn_env *env, int64_t groups, int64_t channels, double eps);
CAIRN_API cairn_module *cairn_batch_norm(cairn_env *env, int64_t channels, double eps, double momentum);

CAIRN_API cairn_module *cairn_dropout(cairn_env *env, double p);

/* An operation of one input as a module: cairn_activation(env, cairn_relu). */
CAIRN_API cairn_module *cairn_activation(cairn_env *env, cairn_tensor *(*op)(cairn_tensor *x));
CAIRN_API cairn_module *cairn_flatten_from(cairn_env *env, int first_dim);
CAIRN_API cairn_module *cairn_max_pool(cairn_env *env, int64_t kernel, const struct cairn_pool_options *options);
CAIRN_API cairn_module *cairn_avg_pool(cairn_env *env, int64_t kernel, const struct cairn_pool_options *options);
CAIRN_API cairn_module *cairn_adaptive_avg_pool(cairn_env *env, int64_t out_h, int64_t out_w);

/* Expands modules to the arguments "count, children". */
#define CAIRN_MODULES(...)                                                                        \
    (int)(sizeof((cairn_module *[]){__VA_ARGS__}) / sizeof(cairn_module *)), (cairn_module *[]) { \
        __VA_ARGS__                                                                               \
    }

/* Applies the children in order; takes ownership of them, even on failure. They are named "0", "1", ...
 * torch.nn.Sequential */
CAIRN_API cairn_module *cairn_sequential(cairn_env *env, int count, cairn_module *const *children);

/* The same with the program's own names: name a stage's layers 4 and 5 of a model "4" and "5", so that saved state has
 * the names of the whole model. names [count], copied. torch.nn.Sequential(OrderedDict(...)) */
CAIRN_API cairn_module *cairn_sequential_named(cairn_env *env, int count, const char *const *names,
                                               cairn_module *const *children);

/* torch.nn.MultiheadAttention(batch_first=True): inputs q [B, T, D], k, v [B, S, D], mask (may be NULL, as for
 * cairn_scaled_dot_product_attention); with q alone it computes self-attention. in_proj_weight [3 D, D] is xavier
 * uniform, in_proj_bias and out_proj.bias 0, out_proj.weight as in linear. */
CAIRN_API cairn_module *cairn_multihead_attention(cairn_env *env, int64_t dim, int64_t heads, double dropout);

struct cairn_encoder_layer_options {
    size_t struct_size;
    double dropout;                               /* 0 = none (torch's default is 0.1) */
    double layer_norm_eps;                        /* 0 = 1e-5 */
    cairn_tensor *(*activation)(cairn_tensor *x); /* NULL = cairn_relu */
    cairn_switch norm_first;                      /* ON: pre-norm. Default OFF */
};
#define cairn_encoder_layer_options(...) \
    (&(struct cairn_encoder_layer_options){.struct_size = sizeof(struct cairn_encoder_layer_options), __VA_ARGS__})

/* torch.nn.TransformerEncoderLayer(batch_first=True): x [B, T, D], and a mask that may be NULL. options may be NULL. */
CAIRN_API cairn_module *cairn_transformer_encoder_layer(cairn_env *env, int64_t dim, int64_t heads, int64_t feedforward,
                                                        const struct cairn_encoder_layer_options *options);

/* ---- user-defined modules ---- */

struct cairn_module_ops {
    size_t struct_size;
    const char *name; /* "ResidualBlock"; must outlive the module */
    /* Computes the result from inputs[0..count-1], with operations and children. Its other results end before the step
     * does (tensor.h): a handle to one that is kept in context is valid until backward has consumed it or, if it
     * requires no gradient, until forward returns. */
    cairn_tensor *(*forward)(cairn_module *module, void *context, cairn_tensor *const *inputs, int count);
    void (*destroy)(void *context); /* NULL = nothing to do */
};

/* Makes an empty module. context is the user's; ops->destroy gets it when the module is destroyed, or if this call
 * fails. ops is copied. */
CAIRN_API cairn_module *cairn_module_create(cairn_env *env, const struct cairn_module_ops *ops, void *context);

/* Add to a module while it is being built: before it becomes a child, has gradients, or is used by an optimizer, amp or
 * ddp. Each returns a handle owned by the module, or NULL on error (CAIRN_EINVAL a name that is a duplicate, empty, or
 * has a dot; CAIRN_ESTATE too late; CAIRN_ENOMEM). A parameter is f32, with undefined values until an init call; a
 * buffer may have any type and starts at zero. With half weights (amp's O2 and O3) f32 buffers become half too, so that
 * they can be added to activations; others keep their type. A handle always reflects the current data and type. */
CAIRN_API cairn_tensor *cairn_module_add_param(cairn_module *module, const char *name, int ndim, const int64_t *shape,
                                               int is_norm);
CAIRN_API cairn_tensor *cairn_module_add_buffer(cairn_module *module, const char *name, cairn_dtype dtype, int ndim,
                                                const int64_t *shape);
/* Keeps a buffer in its type at every level of amp, as statistics of normalisation layers are: for sums over many
 * steps. Errors: CAIRN_EINVAL NULL, or no module's buffer; CAIRN_ESTATE it is already half. */
CAIRN_API cairn_status cairn_buffer_keep_type(cairn_tensor *buffer);
/* Takes ownership of child and returns it; on failure it destroys child and returns NULL. Only a child that belongs to
 * another module (CAIRN_ESTATE), is in use (CAIRN_ESTATE), or contains module itself is left as it is. child NULL gives
 * NULL. */
CAIRN_API cairn_module *cairn_module_add_child(cairn_module *module, const char *name, cairn_module *child);

/* ---- initialisation: sets the values of a dense f32 parameter, buffer or leaf ---- */

/* All except constant draw from the environment's next random stream: uniforms in [low, high], normals as cairn_randn
 * would draw. Errors: CAIRN_EINVAL NULL, another type, invalid numbers, no fan; CAIRN_ESTATE a result, a parameter or
 * buffer that amp has made half, a parameter that already belongs to a ddp context, or a graph is being recorded;
 * CAIRN_ENOMEM.
 * fan: for a weight [out, in, ...], in and out times the number of elements of the remaining dimensions.
 * torch.nn.init */
CAIRN_API cairn_status cairn_init_constant(cairn_tensor *t, double value);
CAIRN_API cairn_status cairn_init_uniform(cairn_tensor *t, double low, double high);
CAIRN_API cairn_status cairn_init_normal(cairn_tensor *t, double mean, double std);
/* Never draws values outside [low, high]. Uses an approximate inverse of the distribution, within 1e-6. */
CAIRN_API cairn_status cairn_init_trunc_normal(cairn_tensor *t, double mean, double std, double low, double high);
CAIRN_API cairn_status cairn_init_xavier_uniform(cairn_tensor *t, double gain);
CAIRN_API cairn_status cairn_init_xavier_normal(cairn_tensor *t, double gain);
/* gain / sqrt(fan): gain is sqrt(2) for relu, sqrt(2 / (1 + a^2)) for leaky relu with slope a. fan_out not 0: uses the
 * outputs' fan. */
CAIRN_API cairn_status cairn_init_kaiming_uniform(cairn_tensor *t, double gain, int fan_out);
CAIRN_API cairn_status cairn_init_kaiming_normal(cairn_tensor *t, double gain, int fan_out);

#ifdef __cplusplus
}
#endif

#endif
