/* Tensors, and the graph that their operations record.
 *
 * Results belong to the environment's tape. A result that the program made itself, or got from a module, lives until
 * the next cairn_zero_grad of an optimizer of that environment or cairn_release_results; one made between
 * cairn_no_grad_begin and cairn_no_grad_end lives until the latter. A result that a module's forward (the user's too)
 * made and did not return to the program ends earlier: if it requires a gradient, when backward has consumed it (unless
 * backward retains the graph); otherwise, and under no_grad always, when that forward returns. cairn_tensor_keep keeps
 * a value longer. Using a result in the three steps after its own is an error, not a crash; after that its handle may
 * refer to another result. Leaf tensors (cairn_randn, cairn_tensor_from) live until cairn_tensor_destroy or the
 * environment's end.
 * Operations return NULL on error, and also if an input is NULL: cairn_last_error() keeps the first cause, and
 * cairn_backward(NULL) returns its status.
 * Threads: one thread per environment at a time.
 * Types: f32, f16, bf16; f64 for verification; i32, i64 for indices; bool for masks. */
#ifndef CAIRN_TENSOR_H
#define CAIRN_TENSOR_H

#include "core.h"
#include "env.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_tensor cairn_tensor;

/* Expands to a shape as arguments: CAIRN_SHAPE(64, 1024) is "2, (int64_t[]){64, 1024}". C only, like all macros that
 * make arrays or options, since C++ has no such literals; there name an array:
 * const int64_t shape[] = {64, 1024}; f(2, shape). */
#define CAIRN_SHAPE(...)                                                           \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { \
        __VA_ARGS__                                                                \
    }

/* Expands to dimensions as arguments: CAIRN_DIMS(0, -1) is "2, (int[]){0, -1}". Negative ones count from the end. */
#define CAIRN_DIMS(...)                                                \
    (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]) { \
        __VA_ARGS__                                                    \
    }

/* ---- leaf tensors ---- */

/* Standard normal numbers of a float type, from the environment's seed: the n-th call on a rank gives the same bits on
 * every device and in every run. torch.randn */
CAIRN_API cairn_tensor *cairn_randn(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape);

/* Filled with one value, converted. torch.full; torch.zeros and torch.ones */
CAIRN_API cairn_tensor *cairn_full(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape, double value);
CAIRN_API cairn_tensor *cairn_zeros(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape);

/* start, start + step, ... below end (above it for a negative step), n = ceil((end - start) / step); each is computed
 * in f64 and converted. torch.arange */
CAIRN_API cairn_tensor *cairn_arange(cairn_env *env, cairn_dtype dtype, double start, double end, double step);

/* A copy of data, elements of dtype in row-major order; may be NULL if there are no elements. */
CAIRN_API cairn_tensor *cairn_tensor_from(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                                          const void *data);

/* A leaf over the user's memory, without a copy. data is on the environment's device, aligned for dtype, and outlives
 * the tensor. stride: in elements, not negative; NULL = contiguous. Writes to data are visible in the tensor at once,
 * and to a graph that has not run its backward. torch.from_numpy */
CAIRN_API cairn_tensor *cairn_tensor_over(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                                          const int64_t *stride, void *data);

/* Writes new values to a leaf in place, such as the next batch: n elements of its dtype in row-major order. values may
 * be reused at once. A graph that has not run its backward sees the new values. A module's buffer that amp made half is
 * written in the type it was added with, so modules need not know the level.
 * Errors: CAIRN_EINVAL n is not the tensor's, or the leaf is over memory that is not dense; CAIRN_ESTATE not a leaf, or
 * a graph is being recorded; CAIRN_EDEVICE. torch.Tensor.copy_ */
CAIRN_API cairn_status cairn_tensor_write(cairn_tensor *leaf, const void *values, size_t n);

/* Makes a leaf require a gradient. Errors: CAIRN_EINVAL NULL, or no float; CAIRN_ESTATE not a leaf, or a parameter. */
CAIRN_API cairn_status cairn_tensor_require_grad(cairn_tensor *leaf);

/* The gradient of a leaf that requires one: f32, dense, owned by the leaf, in memory of the environment's device, so
 * the host can read it only if that is the CPU. NULL before a backward has reached the leaf, and for an f64 leaf. It
 * belongs to the loss that cairn_backward was given: after amp_backward it is multiplied by the loss scale. Further
 * backwards add to it; cairn_tensor_clear_grad resets it. */
CAIRN_API const float *cairn_tensor_grad(const cairn_tensor *leaf);
CAIRN_API void cairn_tensor_clear_grad(cairn_tensor *leaf);

/* Copies the gradient of a leaf to values, n elements, converted to f64; waits for the device. Zeros if no backward has
 * reached the leaf. Errors: CAIRN_EINVAL n is not the tensor's; CAIRN_ESTATE not a leaf that requires a gradient. */
CAIRN_API cairn_status cairn_tensor_read_grad(const cairn_tensor *leaf, double *values, size_t n);

/* Destroys a leaf or a kept result. The current step may still use it (in its graph, or as a view): its memory is freed
 * when that step is over, with the next cairn_zero_grad, or with its no_grad; memory given to cairn_tensor_over must
 * live as long. For a result, a parameter or a buffer it only sets *tensor to NULL. */
CAIRN_API void cairn_tensor_destroy(cairn_tensor **tensor);

/* Copies a result to a new leaf, without its graph; the caller destroys it. NULL on error. */
CAIRN_API cairn_tensor *cairn_tensor_keep(const cairn_tensor *tensor);

/* ---- properties and values ---- */

CAIRN_API cairn_dtype cairn_tensor_dtype(const cairn_tensor *t);     /* (cairn_dtype)0 for NULL or a stale result */
CAIRN_API int cairn_tensor_ndim(const cairn_tensor *t);              /* -1 likewise */
CAIRN_API int64_t cairn_tensor_size(const cairn_tensor *t, int dim); /* a negative dim counts from the end; -1: none */
CAIRN_API int64_t cairn_tensor_stride(const cairn_tensor *t, int dim); /* in elements; likewise */
CAIRN_API size_t cairn_tensor_numel(const cairn_tensor *t);

/* Copies the values: n elements in row-major order, converted to f32; waits for the device. Errors: CAIRN_EINVAL n is
 * not the tensor's; CAIRN_ESTATE stale, or a graph is being recorded; CAIRN_EDEVICE. */
CAIRN_API cairn_status cairn_tensor_read(const cairn_tensor *t, float *values, size_t n);

/* The same, converted to dtype: CAIRN_I64 for indices, CAIRN_F64, or the tensor's own type for its exact bits. Floats
 * are truncated towards 0 to integers; a value outside the integer type's range becomes the nearest one in it, and NaN
 * 0. */
CAIRN_API cairn_status cairn_tensor_read_as(const cairn_tensor *t, cairn_dtype dtype, void *values, size_t n);

/* The value of a tensor of one element; NaN on error (see cairn_last_error). Waits for the device, as read does. */
CAIRN_API float cairn_tensor_item(const cairn_tensor *t);

/* Formats the tensor as torch prints it: nested brackets, with more than a thousand elements at most three of the first
 * and last of each dimension, then shape and type: "tensor([[1., 2.]], shape=[1, 2], dtype=f32)". Truncates as snprintf
 * does, and returns the length of the whole text without its final 0 (NULL, 0 = only the length); -1 on error. Waits
 * for the device, as read does. */
CAIRN_API int cairn_tensor_format(const cairn_tensor *t, char *text, size_t nbytes);

/* Prints the same to stdout, with a newline. */
CAIRN_API cairn_status cairn_tensor_print(const cairn_tensor *t);

/* ---- the graph ---- */

/* Runs backward from loss (one element) and stores every required gradient. Weight gradients are computed before input
 * gradients. Returns after listeners to gradients (ddp) have settled. The graph is consumed.
 * Errors: the cause of a NULL loss; CAIRN_EINVAL more than one element, or nothing in the graph requires a gradient;
 * CAIRN_ESTATE stale, consumed, or a module whose parameters are in the graph has been destroyed; CAIRN_ENOMEM; errors
 * of a listener (CAIRN_EPEER, CAIRN_ETIMEOUT); errors on the device in this step, such as a target that is no class
 * (CAIRN_EINVAL): every backward of the step and every read of a result returns them, until the next step begins. Does
 * not wait for the device. */
CAIRN_API cairn_status cairn_backward(cairn_tensor *loss);

struct cairn_backward_options {
    size_t struct_size;
    /* ON: the graph can be walked again before the weights change. It holds no copies of weights, so after an
     * optimizer's step a second walk would silently mix old values with new ones. Default OFF */
    cairn_switch retain_graph;
    cairn_tensor *grad; /* the gradient of the tensor, of its shape; NULL = one, for a single element only */
};
#define cairn_backward_options(...) \
    (&(struct cairn_backward_options){.struct_size = sizeof(struct cairn_backward_options), __VA_ARGS__})

/* cairn_backward with options, which may be NULL: torch.Tensor.backward(gradient, retain_graph). */
CAIRN_API cairn_status cairn_backward_with(cairn_tensor *tensor, const struct cairn_backward_options *options);

/* Ends all results, as cairn_zero_grad does, but keeps gradients: the next micro-batch reuses the memory, so
 * accumulation needs the memory of one micro-batch.
 *
 *     cairn_zero_grad(optimizer);
 *     for (int m = 0; m < micro_batches; m++) {
 *         cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(model, x[m]), y[m]);
 *         CAIRN_CHECK(amp_backward(amp, cairn_mul_scalar(loss, 1.0 / micro_batches), optimizer));
 *         CAIRN_CHECK(cairn_release_results(env));
 *     }
 *     CAIRN_CHECK(cairn_step(optimizer));
 *
 * It also ends graphs that were retained or that no backward has walked; read losses before. It does not start a step:
 * errors on the device in this step stay. It may be called under ddp_no_sync. It counts as one of the three steps
 * above. Does not wait for the device. In a recorded graph's step it is recorded too, and results made after the last
 * call stay readable until the next replay; called outside a graph it ends no result of the graph.
 * Errors: CAIRN_EINVAL env is NULL; CAIRN_ESTATE within a module's forward, a checkpoint or a backward, or between
 * amp_scale_loss and amp_scale_loss_end. PyTorch does this when the last reference to the loss goes. */
CAIRN_API cairn_status cairn_release_results(cairn_env *env);

/* Between these calls operations record nothing and their results require no gradient, as for evaluation. They nest;
 * results made inside end with the outermost. Errors of end: CAIRN_ESTATE there was no begin. torch.no_grad */
CAIRN_API void cairn_no_grad_begin(cairn_env *env);
CAIRN_API cairn_status cairn_no_grad_end(cairn_env *env);

/* The value without its graph: gradients stop here. Shares memory. torch.Tensor.detach */
CAIRN_API cairn_tensor *cairn_detach(cairn_tensor *x);

/* Anomaly mode: checks every operation's result and every gradient when it is made. The first infinity or NaN ends the
 * forward or backward with CAIRN_ENUMERIC and a message with the operation, its inputs' shapes, the number of bad
 * values, and the input that already had some, if any. Unlike PyTorch's it checks for infinities too, including those
 * that a dynamic loss scale causes until it has fallen, so start with a small scale (the message says that a loss is
 * scaled). Values from outside are not checked, and an infinity is not reported if an input of the operation, or its
 * incoming gradient, already has one: scores plus a mask of -inf are no anomaly; a NaN always is. Slow, for debugging:
 * on a GPU every operation waits for it, and a step cannot be recorded (CAIRN_ESTATE).
 * torch.autograd.set_detect_anomaly */
CAIRN_API void cairn_detect_anomaly(cairn_env *env, int on);

/* Activation checkpointing: drops intermediate results of fn and computes them again in backward, which saves memory at
 * the cost of time. fn(ctx, inputs, count) computes the result from inputs with operations and modules. It runs now,
 * without a graph, and once more in backward, with the same random numbers and the casts in effect now (autocast.h). It
 * must do the same both times (its side effects, such as updates of batch_norm's running statistics, happen twice), and
 * must not begin a step (cairn_zero_grad). Results from outside must be among the inputs; these, and every leaf and
 * parameter that fn uses, get the same gradients as without the checkpoint, in the same order. One exception: under O1,
 * a parameter that is also used outside is cast once more, so its gradient from there is added in f32 and not in half.
 * Results of fn end when it returns, except the returned one. Returns NULL with CAIRN_ESTATE if fn breaks these rules;
 * backward returns CAIRN_ESTATE if the operations, the shapes of their results, or the outside tensors that they use
 * differ from the first run.
 * torch.utils.checkpoint.checkpoint(use_reentrant=True), after Chen et al., "Training Deep Nets with Sublinear Memory
 * Cost", 2016. */
typedef cairn_tensor *(*cairn_checkpoint_fn)(void *ctx, cairn_tensor *const *inputs, int count);
CAIRN_API cairn_tensor *cairn_checkpoint(cairn_checkpoint_fn fn, void *ctx, cairn_tensor *const *inputs, int count);

/* ---- user-defined operations ---- */

/* An input or output array of an operation with its own backward: dense, of the given type and shape, and aligned for
 * its elements. */
struct cairn_custom_array {
    void *data; /* host memory; for functions whose name ends with _cuda, memory of the environment's GPU */
    cairn_dtype dtype;
    int ndim;
    const int64_t *shape;
    size_t n;
};
struct cairn_custom_op {
    size_t struct_size;
    const char *name; /* in errors; outlives the environment's step */
    /* Computes y, whose shape and type were passed to cairn_custom, from x[0..count-1]. */
    cairn_status (*forward)(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count);
    /* Writes every element of each dx[i].data that is not NULL. NULL = the result requires no gradient. */
    cairn_status (*backward)(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                             const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count);

    /* The same on a GPU (since 0.9.0); NULL = the operation works on the CPU only. They queue kernels on stream, the
     * cudaStream_t that cairn_cuda_stream returns (interop_cuda.h), and return without waiting. The GPU is the thread's
     * current one. Only `data` points to GPU memory: neither the host nor kernels in other streams may read or write
     * it, since Cairn reuses it in the order of this stream. Allocate any other memory before the step and keep it in
     * ctx. While a graph is recorded (graph.h) Cairn calls them once; replays launch what they queued, with the
     * arguments of that call. */
    cairn_status (*forward_cuda)(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count,
                                 void *stream);
    cairn_status (*backward_cuda)(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                  const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count,
                                  void *stream);
};

/* y = op(inputs), with the functions for the environment's device; ctx must live until backward has run. If a user's
 * function returns a status other than CAIRN_OK, this call or backward returns it; for a failed launch, for instance,
 * return CAIRN_EDEVICE. Under O1 inputs are not cast, unless amp_op_set_cast has set a class for op's name; y keeps the
 * given type. NULL with CAIRN_ENOTSUP if op has no forward for the device, or if an input requires a gradient and op
 * has a backward only for the other device. torch.autograd.Function */
CAIRN_API cairn_tensor *cairn_custom(const struct cairn_custom_op *op, void *ctx, cairn_dtype dtype, int ndim,
                                     const int64_t *shape, cairn_tensor *const *inputs, int count);
CAIRN_API cairn_tensor *cairn_custom_sized(size_t array_nbytes, const struct cairn_custom_op *op, void *ctx,
                                           cairn_dtype dtype, int ndim, const int64_t *shape,
                                           cairn_tensor *const *inputs, int count);
#define cairn_custom(...) cairn_custom_sized(sizeof(struct cairn_custom_array), __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
