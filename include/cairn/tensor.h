/* Tensors, and the graph that their operations leave behind.
 *
 * Results belong to the environment's tape. What the program itself made, or got from a module, lives until the next
 * cairn_zero_grad of an optimizer of that environment or cairn_release_results, or, made between cairn_no_grad_begin
 * and cairn_no_grad_end, until the latter. What a module's forward made and did not return to the program ends before,
 * also where the forward is the user's: what requires a gradient when backward has consumed it (a backward that retains
 * the graph does not), and the rest (all, under no_grad) when that forward returns. cairn_tensor_keep holds a value
 * longer. Use of a result in the three steps after its own is an error, not a crash; later its place may hold another
 * result. Leaf tensors (cairn_randn, cairn_tensor_from) live until cairn_tensor_destroy or the environment's end.
 * Graph-building calls return NULL on error, and NULL in gives NULL out: the first cause stays in cairn_last_error()
 * and cairn_backward(NULL) returns its status.
 * Threads: one thread per environment at a time.
 * Types: f32, f16, bf16; f64 to check by; i32, i64 for indices; bool for masks. */
#ifndef CAIRN_TENSOR_H
#define CAIRN_TENSOR_H

#include "core.h"
#include "env.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_tensor cairn_tensor;

/* A shape as an argument: CAIRN_SHAPE(64, 1024) is "2, (int64_t[]){64, 1024}". C only, as all macros that make arrays
 * or options: C++ has no such literals, so there name an array: const int64_t shape[] = {64, 1024}; f(2, shape). */
#define CAIRN_SHAPE(...)                                                           \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { \
        __VA_ARGS__                                                                \
    }

/* Dimensions as an argument: CAIRN_DIMS(0, -1) is "2, (int[]){0, -1}". A negative one counts from the end. */
#define CAIRN_DIMS(...)                                                \
    (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (const int[]) { \
        __VA_ARGS__                                                    \
    }

/* ---- leaf tensors ---- */

/* Standard normals from the environment's seed, of a float type: the n-th call on a rank gives the same bits on every
 * device and run. torch.randn */
CAIRN_API cairn_tensor *cairn_randn(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape);

/* Filled with one value, converted. torch.full; torch.zeros and torch.ones */
CAIRN_API cairn_tensor *cairn_full(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape, double value);
CAIRN_API cairn_tensor *cairn_zeros(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape);

/* start, start + step, ... below end (above it for a negative step), n = ceil((end - start) / step), each formed in f64
 * and converted. torch.arange */
CAIRN_API cairn_tensor *cairn_arange(cairn_env *env, cairn_dtype dtype, double start, double end, double step);

/* A copy of data, which holds elements of dtype in row-major order; NULL will do where there are none. */
CAIRN_API cairn_tensor *cairn_tensor_from(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                                          const void *data);

/* A leaf over the user's memory, without a copy: data is of the environment's device, aligned for dtype, and outlives
 * the tensor. stride: in elements, not negative; NULL = dense rows. Writing to data shows in the tensor at once, and a
 * graph that still waits for its backward sees it. torch.from_numpy */
CAIRN_API cairn_tensor *cairn_tensor_over(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                                          const int64_t *stride, void *data);

/* New values for a leaf in its old memory, n elements of its dtype in row-major order: the next batch. values may be
 * used again at once. A graph that still waits for its backward sees the new ones. A module's buffer that amp made half
 * is written in the type that it was added with, so that modules need not know the level.
 * Errors: CAIRN_EINVAL n is not the tensor's, or the leaf is over memory that is not dense; CAIRN_ESTATE not a leaf, or
 * a graph is being recorded; CAIRN_EDEVICE. torch.Tensor.copy_ */
CAIRN_API cairn_status cairn_tensor_write(cairn_tensor *leaf, const void *values, size_t n);

/* Makes a leaf's gradient wanted. Errors: CAIRN_EINVAL NULL, or no float; CAIRN_ESTATE not a leaf, or a parameter. */
CAIRN_API cairn_status cairn_tensor_require_grad(cairn_tensor *leaf);

/* The gradient of a leaf that wants one, f32, dense, owned by the leaf, in memory of the environment's device: the host
 * may read it on the CPU alone. NULL before a backward reached it, and for an f64 leaf. It is of the loss that
 * cairn_backward was given: after amp_backward it is multiplied by the loss scale. Further backwards add to it;
 * cairn_tensor_clear_grad starts again. */
CAIRN_API const float *cairn_tensor_grad(const cairn_tensor *leaf);
CAIRN_API void cairn_tensor_clear_grad(cairn_tensor *leaf);

/* Copies the gradient of a leaf out, n elements, converted to f64; waits for the device. Zeros where no backward
 * reached the leaf. Errors: CAIRN_EINVAL n is not the tensor's; CAIRN_ESTATE not a leaf that requires one. */
CAIRN_API cairn_status cairn_tensor_read_grad(const cairn_tensor *leaf, double *values, size_t n);

/* Ends a leaf or a kept result. A step that uses it (its graph, a view) goes on doing so: the memory is freed when that
 * step is over, with the next cairn_zero_grad, or with its no_grad. What cairn_tensor_over was given must stay as long.
 * Of a result, a parameter or a buffer: nothing happens but *tensor = NULL. */
CAIRN_API void cairn_tensor_destroy(cairn_tensor **tensor);

/* A leaf with the value of a result, without its graph; the caller ends it. NULL on error. */
CAIRN_API cairn_tensor *cairn_tensor_keep(const cairn_tensor *tensor);

/* ---- facts and values ---- */

CAIRN_API cairn_dtype cairn_tensor_dtype(const cairn_tensor *t);     /* (cairn_dtype)0 for NULL or a stale result */
CAIRN_API int cairn_tensor_ndim(const cairn_tensor *t);              /* -1 likewise */
CAIRN_API int64_t cairn_tensor_size(const cairn_tensor *t, int dim); /* a negative dim counts from the end; -1: none */
CAIRN_API int64_t cairn_tensor_stride(const cairn_tensor *t, int dim); /* in elements; likewise */
CAIRN_API size_t cairn_tensor_numel(const cairn_tensor *t);

/* Copies the values out: n elements in row-major order, converted to f32; waits for the device. Errors: CAIRN_EINVAL n
 * is not the tensor's; CAIRN_ESTATE stale, or a graph is being recorded; CAIRN_EDEVICE. */
CAIRN_API cairn_status cairn_tensor_read(const cairn_tensor *t, float *values, size_t n);

/* The same, converted to dtype: read_as(t, CAIRN_I64, ...) for indices, CAIRN_F64, or the tensor's own for its bits.
 * Floats are cut towards 0 to be integers; what an integer type cannot hold becomes its nearest value, and NaN 0. */
CAIRN_API cairn_status cairn_tensor_read_as(const cairn_tensor *t, cairn_dtype dtype, void *values, size_t n);

/* The value of a tensor of one element; NaN on error (see cairn_last_error). Waits for the device, as read does. */
CAIRN_API float cairn_tensor_item(const cairn_tensor *t);

/* The tensor for people, as torch prints it: nested brackets, at most three of the first and last of each dimension
 * where there are over a thousand elements, then shape and type: "tensor([[1., 2.]], shape=[1, 2], dtype=f32)". Returns
 * the length of the whole text without its final 0, of which as much as fits is in text (NULL, 0 = only the length), as
 * snprintf does; -1 on error. Waits for the device, as read does. */
CAIRN_API int cairn_tensor_format(const cairn_tensor *t, char *text, size_t nbytes);

/* The same to stdout, with a newline. */
CAIRN_API cairn_status cairn_tensor_print(const cairn_tensor *t);

/* ---- the graph ---- */

/* Walks the tape back from loss (one element) and leaves every wanted gradient in its place. Weight gradients come
 * before input gradients. Returns after what listens to gradients (ddp) has settled. The graph is consumed.
 * Errors: the cause of a NULL loss; CAIRN_EINVAL more than one element, or nothing in it requires a gradient;
 * CAIRN_ESTATE stale, consumed, or a module whose parameters are in the graph has been destroyed; CAIRN_ENOMEM; what a
 * listener reports (CAIRN_EPEER, CAIRN_ETIMEOUT); what went wrong on the device in this step, as a target that is no
 * class (CAIRN_EINVAL): every backward of the step returns it, and every read of a result, until the next step begins.
 * Nothing waits for the device. */
CAIRN_API cairn_status cairn_backward(cairn_tensor *loss);

struct cairn_backward_options {
    size_t struct_size;
    /* ON: the graph may be walked again, before the weights change: it holds no copies of them, so after an optimizer's
     * step a second walk would mix old values with new ones unnoticed. OFF */
    cairn_switch retain_graph;
    cairn_tensor *grad; /* the gradient of the tensor, of its shape; NULL = ones, for one element only */
};
#define cairn_backward_options(...) \
    (&(struct cairn_backward_options){.struct_size = sizeof(struct cairn_backward_options), __VA_ARGS__})

/* cairn_backward with more to say: torch.Tensor.backward(gradient, retain_graph). options may be NULL. */
CAIRN_API cairn_status cairn_backward_with(cairn_tensor *tensor, const struct cairn_backward_options *options);

/* Ends all results, as cairn_zero_grad does, and keeps gradients: the next micro-batch uses their memory, so that
 * accumulation takes the memory of one.
 *
 *     cairn_zero_grad(optimizer);
 *     for (int m = 0; m < micro_batches; m++) {
 *         cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(model, x[m]), y[m]);
 *         CAIRN_CHECK(amp_backward(amp, cairn_mul_scalar(loss, 1.0 / micro_batches), optimizer));
 *         CAIRN_CHECK(cairn_release_results(env));
 *     }
 *     CAIRN_CHECK(cairn_step(optimizer));
 *
 * Graphs that were retained or that no backward has walked end too; a loss is read before. It begins no step: what went
 * wrong on the device in this one stays. It may be called under ddp_no_sync. Counts as one of the three steps above.
 * Does not wait for the device. Called by a recorded graph's step it is part of the recording, and what came after the
 * last call stays readable until the next replay; called beside a graph it ends no result of the graph.
 * Errors: CAIRN_EINVAL env is NULL; CAIRN_ESTATE called within a module's forward, a checkpoint or a backward, or
 * between amp_scale_loss and amp_scale_loss_end. PyTorch: the last reference to the loss goes. */
CAIRN_API cairn_status cairn_release_results(cairn_env *env);

/* Between the two, operations record nothing and their results want no gradient: evaluation. They nest; what was made
 * inside dies at the end of the outermost. Errors of end: CAIRN_ESTATE there was no begin. torch.no_grad */
CAIRN_API void cairn_no_grad_begin(cairn_env *env);
CAIRN_API cairn_status cairn_no_grad_end(cairn_env *env);

/* The value without its graph: gradients stop here. Shares memory. torch.Tensor.detach */
CAIRN_API cairn_tensor *cairn_detach(cairn_tensor *x);

/* Anomaly mode: every operation's result, and every gradient, is checked as it is made, and the first infinity or NaN
 * ends the forward or the backward with CAIRN_ENUMERIC and a sentence that names the operation, its inputs' shapes and
 * the number of bad values, and the input that had some before, if one did. It checks for infinities too, which
 * PyTorch's does not, also for those that a dynamic loss scale causes while it falls, so begin with a small one (the
 * message says that a loss is scaled). Values from outside are not checked, and an infinity is none of an operation's
 * doing where an input of it, or the gradient that comes to it, holds one already: scores plus a mask of -inf are no
 * anomaly; a NaN always is. Slow, for finding bugs: on a GPU every operation waits for it, and a step cannot be
 * recorded (CAIRN_ESTATE). torch.autograd.set_detect_anomaly */
CAIRN_API void cairn_detect_anomaly(cairn_env *env, int on);

/* Forgets what fn computes in between and computes it again in backward: memory for time. fn(ctx, inputs, count) builds
 * the result from inputs by operations and modules; it runs now, without a graph, and once more in backward, with the
 * same random numbers and under the casts that hold now (autocast.h), so it must do the same both times (what it
 * changes beside, as the running statistics of batch_norm, it changes twice), and must not begin a step
 * (cairn_zero_grad). Results from outside must be among the inputs; gradients reach these, and every leaf and parameter
 * that fn uses, as they would without the checkpoint, in the same order; but under O1 a parameter that is used outside
 * too is cast once more, so that what it gets from there is added in f32 and not in half. What fn makes is gone when it
 * returns, but for its result. NULL with CAIRN_ESTATE where fn breaks these rules; backward returns CAIRN_ESTATE where
 * the operations, the shapes of their results, or the tensors outside that they reach were others there than before.
 * torch.utils.checkpoint.checkpoint(use_reentrant=True), after Chen et al., "Training Deep Nets with Sublinear Memory
 * Cost", 2016. */
typedef cairn_tensor *(*cairn_checkpoint_fn)(void *ctx, cairn_tensor *const *inputs, int count);
CAIRN_API cairn_tensor *cairn_checkpoint(cairn_checkpoint_fn fn, void *ctx, cairn_tensor *const *inputs, int count);

/* ---- operations of the user's own ---- */

/* An operation with its own backward. Arrays are dense, of the types and shapes said, and aligned as their elements. */
struct cairn_custom_array {
    void *data; /* the CPU's memory; for functions whose name ends with _cuda that of the environment's GPU */
    cairn_dtype dtype;
    int ndim;
    const int64_t *shape;
    size_t n;
};
struct cairn_custom_op {
    size_t struct_size;
    const char *name; /* in errors; outlives the environment's step */
    /* Computes y, whose shape and type cairn_custom was given, from x[0..count-1]. */
    cairn_status (*forward)(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count);
    /* Writes dx[i].data, whole, where it is not NULL. NULL = the result requires no gradient. */
    cairn_status (*backward)(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                             const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count);

    /* The same on a GPU (since 0.9.0); NULL = the operation works on the CPU alone. They queue kernels on stream, the
     * cudaStream_t that cairn_cuda_stream returns (interop_cuda.h), and return without waiting. The GPU is the thread's
     * current one. Only what `data` points to is the GPU's memory: the host must not read or write it, nor kernels of
     * other streams, since Cairn uses it again in the order of this one. What an operation needs beside its arrays it
     * allocates before the step and keeps in ctx. While a graph is recorded (graph.h) Cairn calls them once; replays
     * launch what they queued then, with the arguments of that call. */
    cairn_status (*forward_cuda)(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count,
                                 void *stream);
    cairn_status (*backward_cuda)(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                  const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count,
                                  void *stream);
};

/* y = op(inputs), by the functions for the environment's device; ctx must live until the backward is over. A status
 * other than CAIRN_OK of the user's functions becomes the call's, or backward's: for a launch that failed, say,
 * CAIRN_EDEVICE. Under O1 inputs come as they are, unless amp_op_set_cast has set a class for op's name; y's type stays
 * the given one. NULL with CAIRN_ENOTSUP where op has no forward for the device, or a backward for the other one alone
 * and an input requires a gradient. torch.autograd.Function */
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
