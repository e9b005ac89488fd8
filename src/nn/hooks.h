/* What other rooms install in nn or call of it: amp's choice of types, the exchange of batch statistics between ranks,
 * and operations of other rooms. nn does not depend on those rooms: without hooks every op computes in its inputs'
 * type, over its own input. */
#ifndef CAIRN__NN_HOOKS_H
#define CAIRN__NN_HOOKS_H

#include <stdbool.h>

#include "cairn/nn.h"
#include "nn/op_list.h"

struct cairn__loss_scale; /* kernels/step.h */
struct cairn__param;      /* param/param.h */

enum cairn__op {
#define CAIRN__X(op, name) CAIRN__OP_##op,
    CAIRN__OP_LIST(CAIRN__X)
#undef CAIRN__X
        CAIRN__NUM_OPS
};

/* "linear" */
const char *cairn__op_name(enum cairn__op op);

/* An operation about to be applied, as the op hook sees it. */
struct cairn__op_question {
    enum cairn__op op;
    const char *name;          /* "linear"; a CAIRN__OP_CUSTOM or CAIRN__OP_GUEST has a name of its own */
    const cairn_dtype *inputs; /* [count] types of the float inputs; other inputs are never cast */
    int count;
    bool in_place; /* the result is written to inputs[0] and must have its type; false if inputs[0] is not a float */
};

/* Chooses the types that operations compute in. A callback that fails sets the last error and returns its status, which
 * fails the operation. */
struct cairn__op_hook {
    void *ctx;

    /* *out: the type the op computes in and returns. It comes in as 0, which selects nn's own rule (equal types, or
     * the widest). Inputs of another float type are cast to it, and their gradients cast back; a parameter's cast is
     * kept until the weights change (struct cairn__param's version, and the environment's replays). Never called for
     * CAIRN__OP_CAST, views, and operations that keep their types. */
    cairn_status (*compute_type)(void *ctx, const struct cairn__op_question *question, cairn_dtype *out);

    /* (optional) Replaces op by other operations: *out is their result. *out comes in as NULL; if it stays NULL, op is
     * applied as usual. Called before compute_type, never for views and operations that keep their types. inputs are
     * the caller's, checked to be usable; an omitted optional input is NULL. The operations that replace applies call
     * the hook too. */
    cairn_status (*replace)(void *ctx, enum cairn__op op, int count, cairn_tensor *const *inputs, cairn_tensor **out);

    /* (optional: all or none) The state that compute_type and replace decide by, as a number. A checkpoint stores it.
     * When it reruns its function, resume restores that policy until leave, which gets the scope that resume
     * returned. */
    uint64_t (*policy)(void *ctx);
    cairn_status (*resume)(void *ctx, uint64_t policy, int *scope);
    void (*leave)(void *ctx, int scope);

    void (*end)(void *ctx); /* the environment ends */
};

/* Copies hook and calls it for every operation of the environment, inside modules and outside, until the environment
 * ends. An environment has one hook; amp's casts.c installs it. */
void cairn__set_op_hook(cairn_env *env, const struct cairn__op_hook *hook);
void *cairn__op_hook_ctx(const cairn_env *env); /* NULL where there is none */

/* Exchanges the statistics of a training batch_norm whose batch is split into shares, of which its input is one. Both
 * callbacks wait for all shares. A callback that fails sets the last error and returns its status, which fails the
 * operation or the backward. Arrays are f64 in device memory: the number of values that a channel has in the share
 * (may be 0), then two numbers for each channel. */
struct cairn__stats_exchange {
    void *ctx;  /* must outlive the backward */
    int shares; /* 0 or 1: the input is the whole batch, and nothing is exchanged */

    /* Replaces own [1 + 2 * channels], the count and each channel's mean and biased variance, by the numbers of the
     * whole batch, bit for bit the same in every share. all: room for `shares` arrays like own. values: the count at
     * the front of own, for the host. */
    cairn_status (*merge)(void *ctx, double *own, double *all, size_t channels, double values);

    /* Replaces own [n] by its sum over all shares. Called in backward if dx is wanted. */
    cairn_status (*sum)(void *ctx, double *own, size_t n);
};

/* cairn_batch_norm_forward with an exchange, which is copied. Weight and bias get this share's gradients only. */
cairn_tensor *cairn__batch_norm_over(cairn_tensor *x, cairn_tensor *running_mean, cairn_tensor *running_var,
                                     cairn_tensor *weight, cairn_tensor *bias, int training, double momentum,
                                     double eps, const struct cairn__stats_exchange *exchange);

/* Writes the first `room` batch normalisations of a tree to list, in the order of the tree's buffers. Returns how many
 * the tree has. */
size_t cairn__batch_norms(cairn_module *module, cairn_module **list, size_t room);

/* From now on the layer exchanges its statistics and is called SyncBatchNorm; graphs made before stay as they are.
 * exchange is copied. let_go(owner) is called when the layer is destroyed. Precondition: the layer has no owner. */
void cairn__batch_norm_share(cairn_module *layer, const struct cairn__stats_exchange *exchange, void *owner,
                             void (*let_go)(void *owner));
void *cairn__batch_norm_owner(const cairn_module *layer); /* NULL: none */

/* Makes cairn_module_forward cast float inputs to `input` and the result to `output`; 0 = no cast. Used by O0, O2 and
 * O3. */
void cairn__module_set_io_types(cairn_module *module, cairn_dtype input, cairn_dtype output);

/* Converts the f32 buffers of the module and its children to a half type, except those that keep their type, in two
 * phases. make allocates the memory and changes nothing else (CAIRN_ENOMEM: it has freed all of it again). Then either
 * use converts the buffers and begins a step, because results may show the memory it frees, or drop frees the new
 * memory. */
cairn_status cairn__module_make_half_buffers(cairn_module *module, cairn_dtype half);
void cairn__module_use_half_buffers(cairn_module *module, cairn_dtype half);
void cairn__module_drop_half_buffers(cairn_module *module);

/* Anomaly mode without an error: checks every value as it is computed and keeps the message about the first infinite or
 * NaN one until cairn__forget_anomaly; "" = none so far. Calls nest: as many with on = false as with true end it. Work
 * recorded for a graph is not checked. Errors: CAIRN_ENOMEM. */
enum { CAIRN__ANOMALY_TEXT = 1024 };
cairn_status cairn__note_anomalies(cairn_env *env, bool on);
const char *cairn__noted_anomaly(const cairn_env *env);
void cairn__forget_anomaly(cairn_env *env);

/* A leaf with undefined values, for callers that fill it at once. Errors: CAIRN_EINVAL, CAIRN_ENOMEM. */
cairn_status cairn__tensor_empty(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape, cairn_tensor **out);

/* The values of a buffer or a leaf, in device memory. */
void *cairn__tensor_memory(cairn_tensor *leaf);

/* As cairn__tensor_memory, for a leaf whose values `call` (named in errors) reads or writes as dense rows. Errors:
 * CAIRN_ESTATE not a leaf; CAIRN_EINVAL over memory that is not dense. */
cairn_status cairn__tensor_open(cairn_tensor *leaf, const char *call, void **data);

/* The environment a tensor was made in. */
cairn_env *cairn__tensor_env(const cairn_tensor *t);

/* Raises *found if the loss is infinite or NaN; a loss that is not f32 or half is cast to f32 first. Does nothing for a
 * loss of several elements or of an ended step, which backward refuses. Errors: CAIRN_ENOMEM. */
cairn_status cairn__loss_check(cairn_tensor *loss, uint32_t *found);

/* The parameter that t is or shows: a view (slice, transpose) of a parameter or of its cast shows it. NULL: none. */
const struct cairn__param *cairn__tensor_param(const cairn_tensor *t);

/* Whether operations are recorded now: not between cairn_no_grad_begin and its end. */
bool cairn__records(const cairn_env *env);

/* Brackets a module's forward, or an operation composed of others. Every result made inside, except the returned y (may
 * be NULL), is internal: it ends with the backward of its graph, or with cairn__inside_end if no graph holds it. begin
 * returns the mark that end takes; both do nothing if env is NULL. */
size_t cairn__inside_begin(const cairn_env *env);
cairn_tensor *cairn__inside_end(const cairn_env *env, size_t mark, cairn_tensor *y);

/* Says that the program does not read the values of t again. If t is internal (cairn__inside_begin) and no backward
 * reads its values, the next results reuse their memory; a backward may still begin from t. Otherwise does nothing. */
void cairn__tensor_spare(cairn_tensor *t);

/* cairn_backward_with for a loss that was computed elsewhere: grad is t's gradient of that loss, multiplied by *scale
 * (device memory; NULL = 1). retain: as retain_graph. Errors: those of cairn_backward_with; CAIRN_ESTATE t was made
 * from a scaled loss. */
cairn_status cairn__backward_scaled(cairn_tensor *t, cairn_tensor *grad, bool retain,
                                    const struct cairn__loss_scale *scale);

/* Marks the parameters that a backward from t would reach: their `reached` becomes *backward. Changes no gradient.
 * Errors: CAIRN_ESTATE a consumed graph; CAIRN_ENOMEM. */
cairn_status cairn__backward_reaches(cairn_tensor *t, uint64_t *backward);

/* Changes whenever the current step's results end, by a new step or cairn_release_results. */
uint64_t cairn__results_number(const cairn_env *env);

/* The context of a module that cairn_module_create made with this forward; NULL for any other module. */
void *cairn__module_context_by(const cairn_module *module,
                               cairn_tensor *(*forward)(cairn_module *module, void *context,
                                                        cairn_tensor *const *inputs, int count));

/* The environment a module was made in; NULL for NULL. */
cairn_env *cairn__module_env(const cairn_module *module);

/* ---- operations of other rooms ---- */

struct cairn__tape;
struct cairn__node; /* one application of an operation */

/* The counterpart of nn's own rows (ops.h) for other rooms. Every such operation is CAIRN__OP_GUEST to the op hook and
 * in tables. */
struct cairn__guest_op {
    const char *name;   /* "scale_loss": the prefix of error messages */
    bool keeps_types;   /* the op hook is not called for it */
    bool reads_nothing; /* backward reads neither inputs nor result, so their values may be forgotten before it */

    /* Checks the inputs and sets the result's shape, by one of cairn__infer_... below. */
    cairn_status (*infer)(const struct cairn__node *node);
    /* Computes the result. */
    cairn_status (*forward)(struct cairn__tape *tape, struct cairn__node *node);
    /* dy: the gradient of the result, dense, in device memory. Must write the gradient of every input that wants one,
     * by cairn__tensor_grad_begin and cairn__tensor_grad_end. */
    cairn_status (*backward)(struct cairn__tape *tape, const struct cairn__node *node, const void *dy);
};

/* The first field of such an operation's attrs. */
struct cairn__guest {
    const struct cairn__guest_op *op; /* must outlive the graph */
};

/* Applies the operation. Returns NULL on error, or if an input is NULL (the last error stays). Copies the nbytes of
 * attrs. */
cairn_tensor *cairn__apply_guest(const struct cairn__guest *attrs, size_t nbytes, int count,
                                 cairn_tensor *const *inputs);

/* A node's attrs (the copy), its inputs after casts and made dense, its result, its device. */
const void *cairn__node_attrs(const struct cairn__node *node);
int cairn__node_count(const struct cairn__node *node);
cairn_tensor *cairn__node_input(const struct cairn__node *node, int i);
cairn_tensor *cairn__node_result(const struct cairn__node *node);
struct cairn_device *cairn__node_device(const struct cairn__node *node);

/* For infer: a result of the first input's shape, in its type; a scalar of a type; any shape and type. */
cairn_status cairn__infer_like_first(const struct cairn__node *node);
cairn_status cairn__infer_scalar_of(const struct cairn__node *node, cairn_dtype dtype);
cairn_status cairn__infer_as(const struct cairn__node *node, cairn_dtype dtype, int ndim, const int64_t *shape);

/* Writes "[64, 1024]" to text and returns it. */
enum { CAIRN__SHAPE_TEXT = CAIRN_MAX_DIMS * 22 + 3 };
const char *cairn__shape_text(const cairn_tensor *t, char text[CAIRN__SHAPE_TEXT]);

/* The loss scale of the scaled loss that t depends on; NULL = none. A result inherits it from its inputs, which must
 * not have different ones, unless infer sets another. backward passes it to every parameter set it reaches. */
const struct cairn__loss_scale *cairn__tensor_loss_scale(const cairn_tensor *t);
void cairn__node_set_loss_scale(const struct cairn__node *node, const struct cairn__loss_scale *cell);

/* The values of any tensor, in device memory; dense within an operation's forward and backward. */
void *cairn__tensor_values(const cairn_tensor *t);
bool cairn__tensor_wants_grad(const cairn_tensor *t);

/* Memory for one contribution to t's gradient: t->n elements of t's type, dense, undefined. */
cairn_status cairn__tensor_grad_begin(struct cairn__tape *tape, cairn_tensor *t, void **dx);

/* Ends a contribution: adds the one at dx to those before it. */
cairn_status cairn__tensor_grad_end(struct cairn__tape *tape, cairn_tensor *t, void *dx);

/* Whether dy is the f32 1 that backward starts with and the node's first input is a result with no other use. That
 * input's gradient may then be any memory that lives until the backward ends, passed to cairn__tensor_grad_end without
 * cairn__tensor_grad_begin. */
bool cairn__backward_starts_at(const struct cairn__tape *tape, const struct cairn__node *node, const void *dy);

/* Whether the running backward retains its graph. */
bool cairn__backward_retains(const struct cairn__tape *tape);

/* Copies the training mode of every module of another tree to its counterpart in this one. Errors: CAIRN_EINVAL the
 * trees differ; names a module. */
cairn_status cairn__module_follow_mode(cairn_module *module, const cairn_module *other);

/* The gradient of a leaf, in device memory: f64 if the leaf is f64, else f32; NULL = none. */
const void *cairn__leaf_grad(const cairn_tensor *leaf);

/* The parameters of a root as tensors, last registered first: the order in which most models' gradients become ready.
 * *out is an array in the step's memory. Errors: CAIRN_ENOMEM. */
cairn_status cairn__module_handles(const cairn_module *root, cairn_tensor ***out, size_t *count);

#endif
