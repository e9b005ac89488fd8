/* Tensors with gradients, the operations of the quick start, and modules.
 *
 * Results belong to the environment's tape and live until the next cairn_zero_grad of an optimizer of that environment;
 * cairn_tensor_keep holds one longer. Use of a result in the three steps after its own is an error, not a crash; later its
 * place may hold another result. Leaf tensors (cairn_randn,
 * cairn_tensor_from) live until cairn_tensor_destroy or the environment's end.
 * Graph-building calls return NULL on error, and NULL in gives NULL out: the first cause stays in cairn_last_error() and
 * cairn_backward(NULL) returns its status.
 * Threads: one thread per environment at a time.
 * Numerics: storage is f32, f16 or bf16; arithmetic is f32; results are rounded once to the storage type. */
#ifndef CAIRN_NN_H
#define CAIRN_NN_H

#include "core.h"
#include "env.h"
#include "param.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_tensor cairn_tensor;
typedef struct cairn_module cairn_module;

/* A shape as an argument: CAIRN_SHAPE(64, 1024) is "2, (int64_t[]){64, 1024}". */
#define CAIRN_SHAPE(...)                                                           \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { \
        __VA_ARGS__                                                                \
    }

/* ---- leaf tensors ---- */

/* Standard normals from the environment's seed: the n-th call on a rank gives the same bits on every device and run. */
CAIRN_API cairn_tensor *cairn_randn(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape);

/* A copy of data, which holds elements of dtype in row-major order. */
CAIRN_API cairn_tensor *cairn_tensor_from(cairn_env *env, cairn_dtype dtype, int ndim, const int64_t *shape,
                                          const void *data);

/* New values for a leaf in its old memory, n elements of its dtype in row-major order: the next batch. values may be used
 * again at once. A graph that still waits for its backward sees the new ones.
 * Errors: CAIRN_EINVAL n is not the tensor's; CAIRN_ESTATE not a leaf, or a graph is being recorded; CAIRN_EDEVICE.
 * torch.Tensor.copy_ */
CAIRN_API cairn_status cairn_tensor_write(cairn_tensor *leaf, const void *values, size_t n);

/* Makes a leaf's gradient wanted. Errors: CAIRN_EINVAL NULL; CAIRN_ESTATE not a leaf, or a parameter. */
CAIRN_API cairn_status cairn_tensor_require_grad(cairn_tensor *leaf);

/* The gradient of a leaf that wants one, f32, owned by the leaf, in memory of the environment's device: the host may read
 * it on the CPU alone. NULL before a backward reached it. It is of the loss that cairn_backward was given: after
 * amp_backward it is multiplied by the loss scale. Further backwards add to it; cairn_tensor_clear_grad starts again. */
CAIRN_API const float *cairn_tensor_grad(const cairn_tensor *leaf);
CAIRN_API void cairn_tensor_clear_grad(cairn_tensor *leaf);

/* Ends a leaf or a kept result. Must not be part of a graph that still waits for its backward. */
CAIRN_API void cairn_tensor_destroy(cairn_tensor **tensor);

/* A leaf with the value of a result, without its graph; the caller ends it. NULL on error. */
CAIRN_API cairn_tensor *cairn_tensor_keep(const cairn_tensor *tensor);

/* ---- facts and values ---- */

CAIRN_API cairn_dtype cairn_tensor_dtype(const cairn_tensor *t); /* (cairn_dtype)0 for NULL or a stale result */
CAIRN_API int cairn_tensor_ndim(const cairn_tensor *t);          /* -1 likewise */
CAIRN_API int64_t cairn_tensor_size(const cairn_tensor *t, int dim);
CAIRN_API size_t cairn_tensor_numel(const cairn_tensor *t);

/* Copies the values out: n elements, converted to f32; waits for the device. Errors: CAIRN_EINVAL n is not the tensor's;
 * CAIRN_ESTATE stale, or a graph is being recorded; CAIRN_EDEVICE. */
CAIRN_API cairn_status cairn_tensor_read(const cairn_tensor *t, float *values, size_t n);

/* The value of a tensor of one element; NaN on error (then cairn_last_error tells). Waits for the device, as read does. */
CAIRN_API float cairn_tensor_item(const cairn_tensor *t);

/* ---- operations; each names its torch counterpart ---- */

/* y[B, out] = x[B, in] weight[out, in]^T + bias[out], bias added before the one rounding. bias may be NULL: none, the one
 * argument of an operation where NULL is no error. torch.nn.functional.linear */
CAIRN_API cairn_tensor *cairn_linear_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias);

CAIRN_API cairn_tensor *cairn_add(cairn_tensor *a, cairn_tensor *b); /* equal shapes; torch.add */
CAIRN_API cairn_tensor *cairn_mul_scalar(cairn_tensor *x, double s); /* torch.mul by a number */
CAIRN_API cairn_tensor *cairn_relu(cairn_tensor *x);                 /* torch.relu: NaN stays, relu(0) has gradient 0 */
CAIRN_API cairn_tensor *cairn_sum(cairn_tensor *x);                  /* over everything, one element; torch.sum */
CAIRN_API cairn_tensor *cairn_mean(cairn_tensor *x);                 /* sum / n; torch.mean */
CAIRN_API cairn_tensor *cairn_mse_loss(cairn_tensor *x,
                                       cairn_tensor *y); /* mean of (x-y)^2; torch.nn.functional.mse_loss */

/* Converts; the gradient is converted back. torch.Tensor.to(dtype) */
CAIRN_API cairn_tensor *cairn_cast(cairn_tensor *x, cairn_dtype dtype);

/* Walks the tape back from loss (one element) and leaves every wanted gradient in its place. Weight gradients come before
 * input gradients. Returns after what listens to gradients (ddp) has settled. The graph is consumed.
 * Errors: the cause of a NULL loss; CAIRN_EINVAL more than one element, or nothing in it wants a gradient; CAIRN_ESTATE
 * stale or consumed; CAIRN_ENOMEM; what a listener reports (CAIRN_EPEER, CAIRN_ETIMEOUT); CAIRN_EDEVICE what went wrong
 * on the device since it was last asked. Nothing waits for the device. */
CAIRN_API cairn_status cairn_backward(cairn_tensor *loss);

/* ---- modules ---- */

/* torch.nn.Linear(in, out): weight [out, in] and bias [out], both uniform in +-1/sqrt(in) (PyTorch's default, which is
 * kaiming_uniform with a = sqrt(5)), drawn from the environment's seed. NULL on error. */
CAIRN_API cairn_module *cairn_linear(cairn_env *env, int64_t in, int64_t out);

CAIRN_API void cairn_module_destroy(cairn_module **module);

/* y = module(x), with the casts of inputs and outputs that amp asked for. */
CAIRN_API cairn_tensor *cairn_module_forward(cairn_module *module, cairn_tensor *x);

/* The module's parameters, owned by it. */
CAIRN_API cairn_param_set *cairn_module_params(cairn_module *module);

#ifdef __cplusplus
}
#endif

#endif
