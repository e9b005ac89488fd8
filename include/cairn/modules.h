/* Modules: layers with parameters, buffers and children, and the way to write one.
 *
 * A module is made in an environment and ended by cairn_module_destroy, which ends its children too. Calls that make
 * one return NULL on error, and NULL among children gives NULL: cairn_last_error() has the first cause. Parameters are
 * f32 when made (amp may change them), initialised as PyTorch does from the environment's seed. Modules begin in
 * training mode. Threads: as tensors. */
#ifndef CAIRN_MODULES_H
#define CAIRN_MODULES_H

#include "ops.h"
#include "param.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_module cairn_module;

/* ---- any module ---- */

/* Ends a module that belongs to no other, with its children; NULL is left. A module that belongs to another, or whose
 * parameters an optimizer or a context uses, is kept, with a line in the log. Results that were made with it may still
 * be read; a backward through its parameters, and their views, are errors from here on. */
CAIRN_API void cairn_module_destroy(cairn_module **module);

/* y = module(x), with the casts of float inputs and of the output that amp has set. NULL on error. */
CAIRN_API cairn_tensor *cairn_module_forward(cairn_module *module, cairn_tensor *x);

/* The same with several inputs, some of which may be NULL where the module says so. */
CAIRN_API cairn_tensor *cairn_module_forward_n(cairn_module *module, cairn_tensor *const *inputs, int count);

/* All parameters of the module and its children, owned by it; named by their path: "encoder.0.linear1.weight". They
 * come in the order in which they were added, those of a child when it became one. A tree has one set: NULL with
 * CAIRN_ESTATE for a module that belongs to another. */
CAIRN_API cairn_param_set *cairn_module_params(cairn_module *module);

/* Forgets the gradients of all parameters; results of the step stay (cairn_zero_grad of an optimizer ends them too). Of
 * a module that belongs to another: nothing, with a line in the log. torch.nn.Module.zero_grad */
CAIRN_API void cairn_module_zero_grad(cairn_module *module);

/* Training (on not 0, as modules begin) or evaluation, for the module and its children: dropout and batch_norm differ.
 * torch.nn.Module.train, eval */
CAIRN_API void cairn_module_train(cairn_module *module, int on);
CAIRN_API int cairn_module_is_training(const cairn_module *module);

/* Thaws (on) or freezes (0, CAIRN_OFF) the parameters of the module and its children, a child of another module too:
 * what that means, and errors, stand in param.h. torch.nn.Module.requires_grad_ */
CAIRN_API cairn_status cairn_module_require_grad(cairn_module *module, int on);

/* Buffers: state that is no parameter (running statistics), of the module and its children: its own first, then those
 * of each child, named by their path from the module asked. name may be NULL; it stays valid until the module becomes a
 * child. The tensor is owned by the module: read by cairn_tensor_read, written by cairn_tensor_write. NULL where i is
 * out of range. */
CAIRN_API size_t cairn_module_num_buffers(const cairn_module *module);
CAIRN_API cairn_tensor *cairn_module_buffer(const cairn_module *module, size_t i, const char **name);

/* The module as a part of a training's state (stateful.h): what cairn_param_set_stateful (param.h) says of its
 * parameters, under their paths, and the buffers of it and its children, under theirs. Whether it is in training mode
 * (cairn_module_train) is no part of it. CAIRN_ESTATE also for a module that belongs to another.
 *
 * Over several ranks buffers are rank 0's where ddp sends them to all (ddp_options.broadcast_buffers); elsewhere each
 * rank has its own, and on another number of ranks all take rank 0's. */
CAIRN_API cairn_stateful cairn_module_stateful(cairn_module *module);

/* The handle of a parameter or buffer by its path from the module asked; NULL with CAIRN_EINVAL where there is none. */
CAIRN_API cairn_tensor *cairn_module_get(const cairn_module *module, const char *path);

/* The tree of modules as text, as torch prints it. Length and room: as cairn_tensor_format; -1 on error. */
CAIRN_API int cairn_module_format(const cairn_module *module, char *text, size_t nbytes);

/* ---- layers ---- */

/* torch.nn.Linear(in, out): weight [out, in] and bias [out], both uniform in +-1/sqrt(in) (PyTorch's default, which is
 * kaiming_uniform with a = sqrt(5)). */
CAIRN_API cairn_module *cairn_linear(cairn_env *env, int64_t in, int64_t out);
CAIRN_API cairn_module *cairn_linear_without_bias(cairn_env *env, int64_t in, int64_t out);

/* Square kernel. options may be NULL. torch.nn.Conv2d, Conv1d: uniform in +-1/sqrt(C / groups * kernel elements) */
CAIRN_API cairn_module *cairn_conv2d(cairn_env *env, int64_t in, int64_t out, int64_t kernel,
                                     const struct cairn_conv_options *options);
CAIRN_API cairn_module *cairn_conv1d(cairn_env *env, int64_t in, int64_t out, int64_t kernel,
                                     const struct cairn_conv_options *options);

/* Normal(0, 1), row padding_idx zeros; -1 = none. torch.nn.Embedding */
CAIRN_API cairn_module *cairn_embedding(cairn_env *env, int64_t rows, int64_t dim, int64_t padding_idx);

/* Weights 1, biases 0; O2 keeps them in f32. eps 0 = 1e-5, momentum 0 = 0.1. batch_norm takes [N, C, ...] of any number
 * of dimensions (BatchNorm1d, 2d, 3d). */
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

/* Modules as the arguments "count, children". */
#define CAIRN_MODULES(...)                                                                        \
    (int)(sizeof((cairn_module *[]){__VA_ARGS__}) / sizeof(cairn_module *)), (cairn_module *[]) { \
        __VA_ARGS__                                                                               \
    }

/* One after another; takes the children over, also where it fails. They are called "0", "1", ... torch.nn.Sequential */
CAIRN_API cairn_module *cairn_sequential(cairn_env *env, int count, cairn_module *const *children);

/* The same with names of the program's: of a stage that has layers 4 and 5 of a model, "4" and "5", so that what it
 * saves has the names of the whole model. names [count], copied. torch.nn.Sequential(OrderedDict(...)) */
CAIRN_API cairn_module *cairn_sequential_named(cairn_env *env, int count, const char *const *names,
                                               cairn_module *const *children);

/* torch.nn.MultiheadAttention(batch_first=True): inputs q [B, T, D], k, v [B, S, D], mask (may be NULL, as for
 * cairn_scaled_dot_product_attention); with q alone it attends to itself. in_proj_weight [3 D, D] xavier uniform,
 * in_proj_bias and out_proj.bias 0, out_proj.weight as linear. */
CAIRN_API cairn_module *cairn_multihead_attention(cairn_env *env, int64_t dim, int64_t heads, double dropout);

struct cairn_encoder_layer_options {
    size_t struct_size;
    double dropout;                               /* 0 = none (torch's default is 0.1) */
    double layer_norm_eps;                        /* 0 = 1e-5 */
    cairn_tensor *(*activation)(cairn_tensor *x); /* NULL = cairn_relu */
    cairn_switch norm_first;                      /* ON: pre-norm. OFF */
};
#define cairn_encoder_layer_options(...) \
    (&(struct cairn_encoder_layer_options){.struct_size = sizeof(struct cairn_encoder_layer_options), __VA_ARGS__})

/* torch.nn.TransformerEncoderLayer(batch_first=True): x [B, T, D], and a mask that may be NULL. options may be NULL. */
CAIRN_API cairn_module *cairn_transformer_encoder_layer(cairn_env *env, int64_t dim, int64_t heads, int64_t feedforward,
                                                        const struct cairn_encoder_layer_options *options);

/* ---- modules of the user's own ---- */

struct cairn_module_ops {
    size_t struct_size;
    const char *name; /* "ResidualBlock"; outlives the module */
    /* inputs[0..count-1] to the result, by operations and children. What else it makes ends before the step does
     * (tensor.h): a handle of it that is kept in context is good until backward has consumed it, or, where it wants no
     * gradient, until forward returns. */
    cairn_tensor *(*forward)(cairn_module *module, void *context, cairn_tensor *const *inputs, int count);
    void (*destroy)(void *context); /* NULL = nothing to do */
};

/* An empty module with the user's context, which the module's end hands to ops->destroy, also where this call fails.
 * ops is copied. */
CAIRN_API cairn_module *cairn_module_create(cairn_env *env, const struct cairn_module_ops *ops, void *context);

/* While a module is built: before it becomes a child, has gradients, or meets an optimizer, amp or ddp. Each returns a
 * handle owned by the module, NULL on error (CAIRN_EINVAL a name twice, none, or with a dot; CAIRN_ESTATE too late;
 * CAIRN_ENOMEM). A parameter is f32, its values undefined until an init call; a buffer is of any type, zeros. With half
 * weights (amp's O2 and O3) f32 buffers become half too, so that they can be added to what flows; others stay as they
 * are. A handle always shows the present data and type. */
CAIRN_API cairn_tensor *cairn_module_add_param(cairn_module *module, const char *name, int ndim, const int64_t *shape,
                                               int is_norm);
CAIRN_API cairn_tensor *cairn_module_add_buffer(cairn_module *module, const char *name, cairn_dtype dtype, int ndim,
                                                const int64_t *shape);
/* A buffer that stays in its type at every level of amp, as statistics of normalisation layers do: what is summed up
 * over many steps. Errors: CAIRN_EINVAL NULL, or no module's buffer; CAIRN_ESTATE it is half already. */
CAIRN_API cairn_status cairn_buffer_keep_type(cairn_tensor *buffer);
/* Takes the child over, also where it fails (then it is ended, and NULL returned); returns it. child NULL gives NULL.
 * What belongs to another module (CAIRN_ESTATE), is in use (CAIRN_ESTATE), or holds the module itself stays as it
 * is. */
CAIRN_API cairn_module *cairn_module_add_child(cairn_module *module, const char *name, cairn_module *child);

/* ---- initialisation: new values for a parameter, a buffer or a leaf, f32, dense ---- */

/* Each but constant draws from the environment's next random stream: uniforms in [low, high], the normals that
 * cairn_randn would have given. Errors: CAIRN_EINVAL NULL, another type, numbers that make no sense, no fan;
 * CAIRN_ESTATE a result, a parameter or buffer that amp has made half, a parameter that belongs to a ddp context
 * already, or a graph is being recorded; CAIRN_ENOMEM.
 * fan: of weight [out, in, ...], in and out times the elements behind. torch.nn.init */
CAIRN_API cairn_status cairn_init_constant(cairn_tensor *t, double value);
CAIRN_API cairn_status cairn_init_uniform(cairn_tensor *t, double low, double high);
CAIRN_API cairn_status cairn_init_normal(cairn_tensor *t, double mean, double std);
/* Values outside [low, high] are not drawn. The inverse of the distribution is an approximation, within 1e-6 of it. */
CAIRN_API cairn_status cairn_init_trunc_normal(cairn_tensor *t, double mean, double std, double low, double high);
CAIRN_API cairn_status cairn_init_xavier_uniform(cairn_tensor *t, double gain);
CAIRN_API cairn_status cairn_init_xavier_normal(cairn_tensor *t, double gain);
/* gain / sqrt(fan): gain is sqrt(2) for relu, sqrt(2 / (1 + a^2)) for a leaky slope a. fan_out not 0: of the
 * outputs. */
CAIRN_API cairn_status cairn_init_kaiming_uniform(cairn_tensor *t, double gain, int fan_out);
CAIRN_API cairn_status cairn_init_kaiming_normal(cairn_tensor *t, double gain, int fan_out);

#ifdef __cplusplus
}
#endif

#endif
