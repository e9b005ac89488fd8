/* What nn lets others fill in: amp's choice of types, and how ddp's ranks bring the statistics of a batch together. nn
 * knows nothing of them; without hooks every op computes in its inputs' type, over its own input. */
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

/* An operation that is about to be applied. */
struct cairn__op_question {
    enum cairn__op op;
    const char *name;          /* "linear"; of CAIRN__OP_CUSTOM and CAIRN__OP_GUEST their own */
    const cairn_dtype *inputs; /* [count] types of the inputs that are floats; others are never cast */
    int count;
    bool in_place; /* the result goes into inputs[0], whose type it must have; false where that is no float */
};

/* *out: the type op computes in and returns; 0, which it is set to, = nn's own rule (equal types, or the widest).
 * Inputs of another float type are cast first, and their gradients cast back; a parameter's cast is kept until its
 * weights change (struct cairn__param's version, and the environment's replays). Never called for CAIRN__OP_CAST,
 * operations that keep their types, and views. A status other than CAIRN_OK, whose sentence is written, fails the
 * operation. */
struct cairn__op_hook {
    void *ctx;
    cairn_status (*compute_type)(void *ctx, const struct cairn__op_question *question, cairn_dtype *out);

    /* (optional) What is made of op in its place, of other operations: *out, which is NULL; where it stays so op is
     * applied as usual. Called before compute_type, never for views and operations that keep their types. inputs are
     * the caller's, checked to be usable; NULL where an optional one was left out. Operations that it applies come here
     * too. */
    cairn_status (*replace)(void *ctx, enum cairn__op op, int count, cairn_tensor *const *inputs, cairn_tensor **out);

    /* (optional: all or none) What compute_type and replace decide by, as a number. A checkpoint stores it and runs its
     * function again between resume and leave, where it holds again. leave gets the scope that resume gave. */
    uint64_t (*policy)(void *ctx);
    cairn_status (*resume)(void *ctx, uint64_t policy, int *scope);
    void (*leave)(void *ctx, int scope);

    void (*end)(void *ctx); /* the environment ends */
};

/* hook is copied; it is called for every operation of the environment, inside modules and outside, until the
 * environment ends. There is one; amp's casts.c installs it. */
void cairn__set_op_hook(cairn_env *env, const struct cairn__op_hook *hook);
void *cairn__op_hook_ctx(const cairn_env *env); /* NULL where there is none */

/* batch_norm in training over a batch of which its input is one of several shares. Both calls wait for all shares; a
 * status other than CAIRN_OK, whose sentence is written, fails the operation, or the backward. The arrays are f64 in
 * device memory: how many values a channel has in the share, which may be 0, and then two numbers of each channel. */
struct cairn__stats_exchange {
    void *ctx;  /* alive as long as a backward may come */
    int shares; /* 0 or 1: the input is the whole batch, and nothing is exchanged */

    /* own [1 + 2 * channels]: each channel's mean and biased variance. It becomes those of the whole batch, the same
     * bits for every share. all: room for `shares` of it. values: the count that own begins with, for the host. */
    cairn_status (*merge)(void *ctx, double *own, double *all, size_t channels, double values);

    /* own [n] becomes the sum over all shares. In backward, where dx is wanted. */
    cairn_status (*sum)(void *ctx, double *own, size_t n);
};

/* cairn_batch_norm_forward with an exchange, which is copied. Weight and bias get the gradients of this share. */
cairn_tensor *cairn__batch_norm_over(cairn_tensor *x, cairn_tensor *running_mean, cairn_tensor *running_var,
                                     cairn_tensor *weight, cairn_tensor *bias, int training, double momentum,
                                     double eps, const struct cairn__stats_exchange *exchange);

/* The batch normalisations of a tree in the order of its buffers: the first `room` go to list, and how many there are
 * is returned. */
size_t cairn__batch_norms(cairn_module *module, cairn_module **list, size_t room);

/* The layer exchanges its statistics from now on and is called SyncBatchNorm; its graphs so far stay as they are. owner
 * goes to let_go when the layer ends. A layer that has an owner is not given another. */
void cairn__batch_norm_share(cairn_module *layer, const struct cairn__stats_exchange *exchange, void *owner,
                             void (*let_go)(void *owner));
void *cairn__batch_norm_owner(const cairn_module *layer); /* NULL: none */

/* cairn_module_forward casts a float input to `input` and the result to `output`; 0 = leaves it. O2, O3 and O0 do. */
void cairn__module_set_io_types(cairn_module *module, cairn_dtype input, cairn_dtype output);

/* The f32 buffers of the module and its children become half, but for those that keep their type. First all that can
 * fail, which changes nothing: their memory (CAIRN_ENOMEM: none was made). Then they use it, and a step begins, as
 * results may show memory that is gone; or it is dropped. */
cairn_status cairn__module_make_half_buffers(cairn_module *module, cairn_dtype half);
void cairn__module_use_half_buffers(cairn_module *module, cairn_dtype half);
void cairn__module_drop_half_buffers(cairn_module *module);

/* Anomaly mode without an error: every value is checked as it is computed, and the message about the first that is
 * infinite or NaN is kept until it is forgotten; "" = there was none. Calls with on nest: the last off ends it. What is
 * recorded for a graph is not checked. Errors: CAIRN_ENOMEM. */
enum { CAIRN__ANOMALY_TEXT = 1024 };
cairn_status cairn__note_anomalies(cairn_env *env, bool on);
const char *cairn__noted_anomaly(const cairn_env *env);
void cairn__forget_anomaly(cairn_env *env);

/* A leaf whose values are undefined, for what fills it at once. Errors: CAIRN_EINVAL, CAIRN_ENOMEM. */
cairn_status cairn__tensor_empty(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape, cairn_tensor **out);

/* The values of a buffer or a leaf, in device memory. */
void *cairn__tensor_memory(cairn_tensor *leaf);

/* The same of a tensor that `call` is to write or to read as dense rows. Errors: CAIRN_ESTATE not a leaf;
 * CAIRN_EINVAL over memory that is not dense. */
cairn_status cairn__tensor_open(cairn_tensor *leaf, const char *call, void **data);

/* The environment a tensor was made in. */
cairn_env *cairn__tensor_env(const cairn_tensor *t);

/* The same check alone; one that is not f32 or half is checked as f32. A loss of several elements, or a stale one, is
 * backward's to refuse. Errors: CAIRN_ENOMEM. */
cairn_status cairn__loss_check(cairn_tensor *loss, uint32_t *found);

/* The parameter that t is, or whose values, or a cast's of them, it shows: a slice, a transposed one. NULL: none. */
const struct cairn__param *cairn__tensor_param(const cairn_tensor *t);

/* Whether operations are recorded now: not between cairn_no_grad_begin and its end. */
bool cairn__records(const cairn_env *env);

/* Between the two a module's forward runs, or an operation that is made of others: what it makes is its own, but for y
 * (NULL will do), which it returns: it ends with its graph's backward, or where no graph holds it with the call. begin
 * gives a mark; env NULL does nothing. */
size_t cairn__inside_begin(const cairn_env *env);
cairn_tensor *cairn__inside_end(const cairn_env *env, size_t mark, cairn_tensor *y);

/* The values of t, which a module made (cairn__inside_begin), are read no more: where no backward does either, their
 * memory goes to the next results. t stays what a backward may begin with. Of others: nothing happens. */
void cairn__tensor_spare(cairn_tensor *t);

/* cairn_backward_with from t, of which grad is the gradient of a loss that was multiplied by *scale (device memory;
 * NULL = 1), elsewhere; retain: as retain_graph. Errors: its; CAIRN_ESTATE a scaled loss is in t. */
cairn_status cairn__backward_scaled(cairn_tensor *t, cairn_tensor *grad, bool retain,
                                    const struct cairn__loss_scale *scale);

/* *backward: the number that is the `reached` of every parameter to which a backward from t would bring a gradient.
 * Changes no gradient. Errors: CAIRN_ESTATE a consumed graph; CAIRN_ENOMEM. */
cairn_status cairn__backward_reaches(cairn_tensor *t, uint64_t *backward);

/* Changes whenever results of the step that runs end, by a new step or cairn_release_results. */
uint64_t cairn__results_number(const cairn_env *env);

/* The context of a module of cairn_module_create whose forward is this one; NULL: it is another. */
void *cairn__module_context_by(const cairn_module *module,
                               cairn_tensor *(*forward)(cairn_module *module, void *context,
                                                        cairn_tensor *const *inputs, int count));

/* The environment a module was made in; NULL for NULL. */
cairn_env *cairn__module_env(const cairn_module *module);

/* ---- operations that other rooms bring ---- */

struct cairn__tape;
struct cairn__node; /* one application of an operation */

/* Such an operation: a row as nn's own have (ops.h), seen from outside. All of them are CAIRN__OP_GUEST to the op hook
 * and in tables. */
struct cairn__guest_op {
    const char *name;   /* "scale_loss": what sentences begin with */
    bool keeps_types;   /* the op hook is not called for it */
    bool reads_nothing; /* backward reads neither inputs nor result, which may be forgotten before */

    /* Checks the inputs and gives the result its shape, by one of cairn__infer_... below. */
    cairn_status (*infer)(const struct cairn__node *node);
    /* Computes the result. */
    cairn_status (*forward)(struct cairn__tape *tape, struct cairn__node *node);
    /* dy: the gradient of the result, dense, in device memory, as all. Every input that wants a gradient gets it, by
     * cairn__tensor_grad_begin and cairn__tensor_grad_end. */
    cairn_status (*backward)(struct cairn__tape *tape, const struct cairn__node *node, const void *dy);
};

/* The first field of the attrs of such an operation. */
struct cairn__guest {
    const struct cairn__guest_op *op; /* lives as long as the graph */
};

/* The result; NULL where an input is NULL (the cause is kept) or on error. attrs, of nbytes, is copied. */
cairn_tensor *cairn__apply_guest(const struct cairn__guest *attrs, size_t nbytes, int count,
                                 cairn_tensor *const *inputs);

/* Of a node: its attrs (the copy), its inputs as they were cast and made dense, its result, its device. */
const void *cairn__node_attrs(const struct cairn__node *node);
int cairn__node_count(const struct cairn__node *node);
cairn_tensor *cairn__node_input(const struct cairn__node *node, int i);
cairn_tensor *cairn__node_result(const struct cairn__node *node);
struct cairn_device *cairn__node_device(const struct cairn__node *node);

/* For infer: a result of the first input's shape, in its type; a scalar of a type; any shape and type. */
cairn_status cairn__infer_like_first(const struct cairn__node *node);
cairn_status cairn__infer_scalar_of(const struct cairn__node *node, cairn_dtype dtype);
cairn_status cairn__infer_as(const struct cairn__node *node, cairn_dtype dtype, int ndim, const int64_t *shape);

/* "[64, 1024]", in text. */
enum { CAIRN__SHAPE_TEXT = CAIRN_MAX_DIMS * 22 + 3 };
const char *cairn__shape_text(const cairn_tensor *t, char text[CAIRN__SHAPE_TEXT]);

/* What a loss in t was multiplied by; NULL = none was. A result has its inputs', which must be one, until infer gives
 * it another: backward gives it to every parameter set it reaches. */
const struct cairn__loss_scale *cairn__tensor_loss_scale(const cairn_tensor *t);
void cairn__node_set_loss_scale(const struct cairn__node *node, const struct cairn__loss_scale *cell);

/* Of any tensor: its values in device memory, dense in forward and backward. */
void *cairn__tensor_values(const cairn_tensor *t);
bool cairn__tensor_wants_grad(const cairn_tensor *t);

/* Memory for one contribution to t's gradient, t's number of elements of t's type, dense, undefined. */
cairn_status cairn__tensor_grad_begin(struct cairn__tape *tape, cairn_tensor *t, void **dx);

/* The contribution at dx is complete: it is added to those before it. */
cairn_status cairn__tensor_grad_end(struct cairn__tape *tape, cairn_tensor *t, void *dx);

/* dy is the 1 with which backward starts, in f32, and the first input is a result that nothing else uses: its gradient
 * may be any memory that lives until the backward is over, given to cairn__tensor_grad_end alone. */
bool cairn__backward_starts_at(const struct cairn__tape *tape, const struct cairn__node *node, const void *dy);

/* The backward that runs leaves its graph as it is. */
bool cairn__backward_retains(const struct cairn__tape *tape);

/* Every module of the tree becomes training or evaluating as its counterpart of another tree is. Errors: CAIRN_EINVAL
 * the trees differ, with the name of a module. */
cairn_status cairn__module_follow_mode(cairn_module *module, const cairn_module *other);

/* The gradient of a leaf in device memory, f32, or f64 as the leaf is; NULL = none. */
const void *cairn__leaf_grad(const cairn_tensor *leaf);

/* The parameters of a root as tensors, from the last registered to the first, the order in which gradients of most
 * models become ready; in memory of the step. Errors: CAIRN_ENOMEM. */
cairn_status cairn__module_handles(const cairn_module *root, cairn_tensor ***out, size_t *count);

#endif
