/* Operations on tensors. Each names its torch counterpart and has its formula, shapes and defaults, unless stated
 * otherwise.
 *
 * Rules for all operations:
 *   - They return a new tensor, or NULL on error with the cause in cairn_last_error(); a NULL input gives NULL.
 *   - Storage is f32, f16 or bf16 (f64 for verification); arithmetic is f32 (f64); results are rounded once to the
 *     storage type.
 *   - Inputs of different float types are cast to the widest, f32 if f16 meets bf16; linear and the convolutions refuse
 *     them instead, as torch does. Inputs may have any strides.
 *   - Element-wise operations and reductions also take integers and bool. If an input is a float the result has its
 *     type; otherwise it has the widest type among them, f32 for functions with fractional results (div, exp), i64 for
 *     sums and products. Integers are computed in f64: exact up to 2^53.
 *   - Shapes of element-wise operations broadcast by NumPy's rules. A negative dimension counts from the end.
 *   - Every float input that requires a gradient gets one, unless stated otherwise.
 *   - Shape and type errors name the operation, the shapes and the rule, with CAIRN_EINVAL:
 *     "matmul: [64, 1024] x [512, 16]: inner sizes 1024 and 512 differ". */
#ifndef CAIRN_OPS_H
#define CAIRN_OPS_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- views: they share the memory of x ---- */

/* One size may be -1: it is inferred. Copies if x's strides do not allow a view. torch.reshape */
CAIRN_API cairn_tensor *cairn_reshape(cairn_tensor *x, int ndim, const int64_t *shape);
CAIRN_API cairn_tensor *cairn_flatten(cairn_tensor *x, int first_dim, int last_dim);
CAIRN_API cairn_tensor *cairn_squeeze(cairn_tensor *x, int dim); /* of size 1 */
CAIRN_API cairn_tensor *cairn_unsqueeze(cairn_tensor *x, int dim);
CAIRN_API cairn_tensor *cairn_transpose(cairn_tensor *x, int dim0, int dim1);
CAIRN_API cairn_tensor *cairn_permute(cairn_tensor *x, int ndim, const int *dims);
/* Elements start, start + step, ... below end along a dimension. Negative start and end count from the end; both are
 * clipped to the dimension; INT64_MAX = to the end. step >= 1. x[..., start:end:step, ...] */
CAIRN_API cairn_tensor *cairn_slice(cairn_tensor *x, int dim, int64_t start, int64_t end, int64_t step);
CAIRN_API cairn_tensor *cairn_select(cairn_tensor *x, int dim, int64_t index); /* one index; removes the dimension */
CAIRN_API cairn_tensor *cairn_expand(cairn_tensor *x, int ndim, const int64_t *shape); /* -1 = unchanged */

/* x itself if it is dense, otherwise a dense copy. torch.Tensor.contiguous */
CAIRN_API cairn_tensor *cairn_contiguous(cairn_tensor *x);

/* ---- joining and splitting ---- */

CAIRN_API cairn_tensor *cairn_cat(int count, cairn_tensor *const *tensors, int dim);
CAIRN_API cairn_tensor *cairn_stack(int count, cairn_tensor *const *tensors, int dim);
/* Views of `size` along dim, the last one smaller if it does not divide evenly; writes parts[0..count-1]; count must be
 * ceil(size of dim / size). torch.split */
CAIRN_API cairn_status cairn_split(cairn_tensor *x, int64_t size, int dim, cairn_tensor **parts, int count);

/* ---- element-wise, two inputs ---- */

CAIRN_API cairn_tensor *cairn_add(cairn_tensor *a, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_sub(cairn_tensor *a, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_mul(cairn_tensor *a, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_div(cairn_tensor *a, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_pow(cairn_tensor *a, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_maximum(cairn_tensor *a, cairn_tensor *b); /* NaN if either is; ties share the gradient */
CAIRN_API cairn_tensor *cairn_minimum(cairn_tensor *a, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_atan2(cairn_tensor *a, cairn_tensor *b);
/* bool results, no gradient. */
CAIRN_API cairn_tensor *cairn_eq(cairn_tensor *a, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_ne(cairn_tensor *a, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_lt(cairn_tensor *a, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_le(cairn_tensor *a, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_gt(cairn_tensor *a, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_ge(cairn_tensor *a, cairn_tensor *b);

/* condition (bool) ? a : b. torch.where */
CAIRN_API cairn_tensor *cairn_where(cairn_tensor *condition, cairn_tensor *a, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_addcmul(cairn_tensor *x, cairn_tensor *a, cairn_tensor *b, double value); /* x + v a b */
CAIRN_API cairn_tensor *cairn_addcdiv(cairn_tensor *x, cairn_tensor *a, cairn_tensor *b,
                                      double value); /* x + v a / b */

/* ---- with a scalar ---- */

CAIRN_API cairn_tensor *cairn_add_scalar(cairn_tensor *x, double s);
CAIRN_API cairn_tensor *cairn_mul_scalar(cairn_tensor *x, double s);
CAIRN_API cairn_tensor *cairn_pow_scalar(cairn_tensor *x, double exponent); /* x^s; for integers s >= 0 */
CAIRN_API cairn_tensor *cairn_scalar_pow(double base, cairn_tensor *x);     /* s^x */
/* NaN stays NaN; -INFINITY and INFINITY = no bound; with a NaN bound everything is NaN. The gradient passes where low
 * <= x <= high. torch.clamp */
CAIRN_API cairn_tensor *cairn_clamp(cairn_tensor *x, double low, double high);

/* ---- element-wise, one input ---- */

CAIRN_API cairn_tensor *cairn_neg(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_abs(cairn_tensor *x); /* slope 0 at 0, as torch */
CAIRN_API cairn_tensor *cairn_square(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_sqrt(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_rsqrt(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_reciprocal(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_exp(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_expm1(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_log(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_log1p(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_log2(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_log10(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_sin(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_cos(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_tan(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_asin(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_acos(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_atan(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_sinh(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_cosh(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_tanh(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_erf(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_erfinv(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_sigmoid(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_softplus(cairn_tensor *x, double beta, double threshold); /* torch: 1, 20 */
CAIRN_API cairn_tensor *cairn_relu(cairn_tensor *x);      /* NaN stays, relu(0) has gradient 0 */
CAIRN_API cairn_tensor *cairn_gelu(cairn_tensor *x);      /* exact, with erf */
CAIRN_API cairn_tensor *cairn_gelu_tanh(cairn_tensor *x); /* gelu(approximate='tanh') */
CAIRN_API cairn_tensor *cairn_silu(cairn_tensor *x);
/* x > 0 ? x : weight * x; weight has one element, or one per channel (dimension 1). torch.prelu */
CAIRN_API cairn_tensor *cairn_prelu(cairn_tensor *x, cairn_tensor *weight);

/* Converts between floats, integers and bool; the gradient is converted back. torch.Tensor.to(dtype) */
CAIRN_API cairn_tensor *cairn_cast(cairn_tensor *x, cairn_dtype dtype);

/* ---- in place ---- */

/* Write to x and return it; on error they return NULL and x is unchanged. For leaves, buffers and parameters, whose
 * memory no graph records: a result is refused, and a tensor that requires a gradient can be written only between
 * cairn_no_grad_begin and cairn_no_grad_end (torch: "a leaf Variable that requires grad is being used in an in-place
 * operation"). A graph that has not run its backward sees the new values, as with cairn_tensor_write. A parameter's
 * caches are dropped, as by cairn_param_changed; if it has a master, the operation works on the master in f32 (other
 * parameters contribute their half values), and the parameter is rounded from it.
 * The other tensor broadcasts to x's shape. The result is converted to x's type; converting floats to an integer type
 * is an error, except in copy_. Under O1 and autocast other inputs are first cast to x's type, and operations that are
 * f32 there (pow, exp) are refused if x is half.
 * Errors: CAIRN_ESTATE, CAIRN_EINVAL; those of the operation. torch.Tensor.add_ and so on */
CAIRN_API cairn_tensor *cairn_add_(cairn_tensor *x, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_sub_(cairn_tensor *x, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_mul_(cairn_tensor *x, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_div_(cairn_tensor *x, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_add_scalar_(cairn_tensor *x, double s);
CAIRN_API cairn_tensor *cairn_mul_scalar_(cairn_tensor *x, double s);
CAIRN_API cairn_tensor *cairn_pow_scalar_(cairn_tensor *x, double exponent);
CAIRN_API cairn_tensor *cairn_exp_(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_sqrt_(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_clamp_(cairn_tensor *x, double low, double high);
CAIRN_API cairn_tensor *cairn_copy_(cairn_tensor *x, cairn_tensor *from);

/* ---- reductions ---- */

/* Over all elements, to one element. */
CAIRN_API cairn_tensor *cairn_sum(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_mean(cairn_tensor *x); /* sum / n */

/* Over some dimensions, which stay with size 1 if keepdim is not 0, and are removed otherwise. ndims 0 = all
 * dimensions. Sums of f32 and half types are in f32 within blocks, and blocks are added in f64; sums of f64 are in f64.
 * The order of summation depends only on the shape. */
CAIRN_API cairn_tensor *cairn_sum_dims(cairn_tensor *x, int ndims, const int *dims, int keepdim);
CAIRN_API cairn_tensor *cairn_mean_dims(cairn_tensor *x, int ndims, const int *dims, int keepdim);
/* correction 1: divides by n - 1 (torch's default); 0: by n. Two passes: the mean, then squared deviations from it. */
CAIRN_API cairn_tensor *cairn_var(cairn_tensor *x, int ndims, const int *dims, int correction, int keepdim);
CAIRN_API cairn_tensor *cairn_std(cairn_tensor *x, int ndims, const int *dims, int correction, int keepdim);
/* (sum |x|^p)^(1/p); p 1, 2 or INFINITY; for INFINITY ties share the gradient evenly. torch.linalg.vector_norm */
CAIRN_API cairn_tensor *cairn_norm(cairn_tensor *x, double p, int ndims, const int *dims, int keepdim);
/* Gradients of products are correct even with zeros, since nothing is divided. Running sums and products are in f64. */
CAIRN_API cairn_tensor *cairn_prod(cairn_tensor *x, int dim, int keepdim);
CAIRN_API cairn_tensor *cairn_cumsum(cairn_tensor *x, int dim);
CAIRN_API cairn_tensor *cairn_cumprod(cairn_tensor *x, int dim);

/* Over all elements (torch.max(x)), or some dimensions (torch.amax): ties share the gradient evenly. A reduced
 * dimension must not have size 0. */
CAIRN_API cairn_tensor *cairn_max(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_min(cairn_tensor *x);
CAIRN_API cairn_tensor *cairn_amax(cairn_tensor *x, int ndims, const int *dims, int keepdim);
CAIRN_API cairn_tensor *cairn_amin(cairn_tensor *x, int ndims, const int *dims, int keepdim);
/* i64 index of the first maximum, with NaN above all numbers; no gradient. */
CAIRN_API cairn_tensor *cairn_argmax(cairn_tensor *x, int dim, int keepdim);
CAIRN_API cairn_tensor *cairn_argmin(cairn_tensor *x, int dim, int keepdim);

/* ---- products ---- */

/* torch.matmul: [..., m, k] x [..., k, n], batch dimensions broadcast; a vector counts as a row on the left and as a
 * column on the right, and that dimension is removed. Also for torch.mm, mv, bmm, dot and chain_matmul. */
CAIRN_API cairn_tensor *cairn_matmul(cairn_tensor *a, cairn_tensor *b);
CAIRN_API cairn_tensor *cairn_bmm(cairn_tensor *a, cairn_tensor *b); /* [B, m, k] x [B, k, n] */
/* beta * x + alpha * (a b), x broadcast. torch.addmm; with vectors addmv and addr; with batches baddbmm */
CAIRN_API cairn_tensor *cairn_addmm(cairn_tensor *x, cairn_tensor *a, cairn_tensor *b, double beta, double alpha);
CAIRN_API cairn_tensor *cairn_baddbmm(cairn_tensor *x, cairn_tensor *a, cairn_tensor *b, double beta, double alpha);

/* y[..., out] = x[..., in] weight[out, in]^T + bias[out], bias added before the single rounding. bias NULL = none.
 * torch.nn.functional.linear */
CAIRN_API cairn_tensor *cairn_linear_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias);

struct cairn_attention_options {
    size_t struct_size;
    /* Bool (true = may attend), or added to the scores: a float, cast to q's type; broadcast to [B, H, T, S]. NULL =
     * none */
    cairn_tensor *mask;
    cairn_switch causal; /* ON: position t attends to 0..t. Default OFF */
    double dropout;      /* probability, for attention weights; 0 */
    double scale;        /* 0 = 1 / sqrt(D) */
};
#define cairn_attention_options(...) \
    (&(struct cairn_attention_options){.struct_size = sizeof(struct cairn_attention_options), __VA_ARGS__})

/* softmax(scale q k^T + mask) v over [B, H, T, D], [B, H, S, D], [B, H, S, E], without storing the T x S matrix: by
 * blocks with a running maximum (Dao et al., "FlashAttention", 2022, algorithm 1). A mask gets no gradient. A row that
 * may attend to nothing gives zeros, where torch gives NaN. options may be NULL.
 * torch.nn.functional.scaled_dot_product_attention */
CAIRN_API cairn_tensor *cairn_scaled_dot_product_attention(cairn_tensor *q, cairn_tensor *k, cairn_tensor *v,
                                                           const struct cairn_attention_options *options);

/* ---- convolution and pooling ---- */

/* For a padding's [1], where 0 means the same as [0]: {1, CAIRN_NO_PADDING} pads rows only. */
#define CAIRN_NO_PADDING (-1)

struct cairn_conv_options {
    size_t struct_size;
    int64_t stride[2];         /* rows, columns; [1] 0 = as [0]; both 0 = 1 */
    int64_t padding[2];        /* zeros on each side; [1] 0 = as [0]; CAIRN_NO_PADDING = none; both 0 = none */
    int64_t dilation[2];       /* as stride */
    int64_t groups;            /* 0 = 1 */
    int64_t output_padding[2]; /* transposed only; as padding */
    cairn_switch bias;         /* for modules: OFF = no bias. Default ON */
};
#define cairn_conv_options(...) \
    (&(struct cairn_conv_options){.struct_size = sizeof(struct cairn_conv_options), __VA_ARGS__})

/* x [N, C, H, W] (or [C, H, W]), weight [K, C / groups, R, S], bias [K] or NULL. options may be NULL. 1-D: [N, C, L]
 * and [K, C / groups, S], with the first element of each option. The size of the result along an axis is
 *     (in + 2 padding - dilation (kernel - 1) - 1) / stride + 1
 * Sums are f32 (f64), rounded once with the bias included. Sizes along an axis and options are at most 2^31 - 1.
 * torch.nn.functional.conv2d, conv1d */
CAIRN_API cairn_tensor *cairn_conv2d_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias,
                                             const struct cairn_conv_options *options);
CAIRN_API cairn_tensor *cairn_conv1d_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias,
                                             const struct cairn_conv_options *options);
/* weight [C, K / groups, R, S]. The size of the result along an axis is
 *     (in - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1
 * output_padding must be smaller than stride or dilation. torch.nn.functional.conv_transpose2d, conv_transpose1d */
CAIRN_API cairn_tensor *cairn_conv_transpose2d_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias,
                                                       const struct cairn_conv_options *options);
CAIRN_API cairn_tensor *cairn_conv_transpose1d_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias,
                                                       const struct cairn_conv_options *options);

struct cairn_pool_options {
    size_t struct_size;
    int64_t stride[2];              /* [1] 0 = as [0]; both 0 = the kernel */
    int64_t padding[2];             /* as for a convolution, at most half of the kernel */
    int64_t dilation[2];            /* max only; 0 = 1 */
    cairn_switch ceil_mode;         /* ON: windows may start inside and end outside. Default OFF */
    cairn_switch count_include_pad; /* average only. Default ON */
};
#define cairn_pool_options(...) \
    (&(struct cairn_pool_options){.struct_size = sizeof(struct cairn_pool_options), __VA_ARGS__})

/* x [N, C, H, W] or [C, H, W]. options may be NULL. A maximum is NaN if any value is; the first of equal values gets
 * the gradient. With ceil_mode windows start inside the input or the padding before it. Window p of an adaptive average
 * is [floor(p in / out), ceil((p + 1) in / out)). torch.nn.functional.max_pool2d, avg_pool2d, adaptive_avg_pool2d */
CAIRN_API cairn_tensor *cairn_max_pool2d(cairn_tensor *x, int64_t kernel_h, int64_t kernel_w,
                                         const struct cairn_pool_options *options);
CAIRN_API cairn_tensor *cairn_avg_pool2d(cairn_tensor *x, int64_t kernel_h, int64_t kernel_w,
                                         const struct cairn_pool_options *options);
CAIRN_API cairn_tensor *cairn_adaptive_avg_pool2d(cairn_tensor *x, int64_t out_h, int64_t out_w);

/* ---- normalisation ---- */

/* Over the last `ndims` dimensions; weight and bias have these sizes (either may be NULL). eps: torch's default is
 * 1e-5. Statistics and, for half x, the arithmetic are f32; weight and bias may be f32 if x is half.
 * torch.nn.functional.layer_norm */
CAIRN_API cairn_tensor *cairn_layer_norm_forward(cairn_tensor *x, cairn_tensor *weight, cairn_tensor *bias, int ndims,
                                                 double eps);
/* x / sqrt(mean(x^2) + eps) * weight (may be NULL), over the last `ndims` dimensions. torch.nn.functional.rms_norm;
 * Zhang and Sennrich, 2019 */
CAIRN_API cairn_tensor *cairn_rms_norm_forward(cairn_tensor *x, cairn_tensor *weight, int ndims, double eps);
/* x [N, C, ...], weight and bias [C] or NULL. torch.nn.functional.group_norm */
CAIRN_API cairn_tensor *cairn_group_norm_forward(cairn_tensor *x, int64_t groups, cairn_tensor *weight,
                                                 cairn_tensor *bias, double eps);
/* x [N, C, ...]. training not 0: uses the statistics of the batch, and moves running_mean and running_var, f32 [C]
 * (NULL, NULL = none), towards them by momentum, the variance with n / (n - 1): in place, outside the graph. training
 * 0: uses the running statistics. weight and bias [C] or NULL, f32 if x is half, or x's type.
 * torch.nn.functional.batch_norm */
CAIRN_API cairn_tensor *cairn_batch_norm_forward(cairn_tensor *x, cairn_tensor *running_mean, cairn_tensor *running_var,
                                                 cairn_tensor *weight, cairn_tensor *bias, int training,
                                                 double momentum, double eps);
/* x / max(norm_p(x, dim), eps). torch.nn.functional.normalize (p 2, dim 1, eps 1e-12) */
CAIRN_API cairn_tensor *cairn_normalize(cairn_tensor *x, double p, int dim, double eps);
/* torch.nn.functional.cosine_similarity (eps 1e-8) */
CAIRN_API cairn_tensor *cairn_cosine_similarity(cairn_tensor *a, cairn_tensor *b, int dim, double eps);

CAIRN_API cairn_tensor *cairn_softmax(cairn_tensor *x, int dim);
CAIRN_API cairn_tensor *cairn_log_softmax(cairn_tensor *x, int dim);
CAIRN_API cairn_tensor *cairn_softmin(cairn_tensor *x, int dim);

/* ---- indexing and dropout ---- */

/* rows[i] = table[indices[i]]; indices i32 or i64 of any shape, table [rows, n]. Row padding_idx gets no gradient; -1 =
 * none. An index out of range gives a row of zeros, and the next cairn_backward or read returns CAIRN_EINVAL.
 * torch.nn.functional.embedding */
CAIRN_API cairn_tensor *cairn_embedding_forward(cairn_tensor *indices, cairn_tensor *table, int64_t padding_idx);

/* Each element is 0 with probability p and x / (1 - p) otherwise; training 0: x itself. The mask is not stored:
 * backward draws it again from the same random numbers (cairn_manual_seed). torch.nn.functional.dropout */
CAIRN_API cairn_tensor *cairn_dropout_forward(cairn_tensor *x, double p, int training);

/* ---- losses ---- */

typedef enum cairn_reduction {
    CAIRN_MEAN = 1, /* the default in options */
    CAIRN_SUM_ALL = 2,
    CAIRN_NONE = 3, /* one loss per element, or per row */
} cairn_reduction;

/* Mean of (x - y)^2. Different shapes are allowed, but often a mistake: [N, 1] and [N] broadcast to [N, N], which torch
 * warns about. */
CAIRN_API cairn_tensor *cairn_mse_loss(cairn_tensor *x, cairn_tensor *y);

struct cairn_loss_options {
    size_t struct_size;
    cairn_reduction reduction; /* 0 = mean */
    double beta;               /* smooth_l1: where it changes from quadratic to linear; 0 = 1 */
    cairn_tensor *weight;      /* bce: per element, broadcast; class losses: per class [C]; NULL = ones. No gradient */
    cairn_tensor *pos_weight;  /* bce_with_logits: of positive targets, broadcast; NULL = ones. No gradient */
    double label_smoothing;    /* cross_entropy: 0 to 1; 0 */
    int64_t ignore_index; /* cross_entropy, nll: rows with this target are not counted, nor in the mean; 0 = -100 */
    cairn_switch ignores_zero; /* ON: rows with target class 0, which ignore_index cannot name, are not counted */
    cairn_switch log_target;   /* kl_div: the target is in logarithms too. OFF */
    cairn_switch batch_mean;   /* kl_div: divides the sum by the size of dimension 0, torch's 'batchmean'. OFF */
};
#define cairn_loss_options(...) \
    (&(struct cairn_loss_options){.struct_size = sizeof(struct cairn_loss_options), __VA_ARGS__})

/* options may be NULL everywhere. Shapes must be equal or broadcast. */
CAIRN_API cairn_tensor *cairn_mse_loss_with(cairn_tensor *x, cairn_tensor *y, const struct cairn_loss_options *options);
CAIRN_API cairn_tensor *cairn_l1_loss(cairn_tensor *x, cairn_tensor *y, const struct cairn_loss_options *options);
CAIRN_API cairn_tensor *cairn_smooth_l1_loss(cairn_tensor *x, cairn_tensor *y,
                                             const struct cairn_loss_options *options);
/* x scores [N, C, ...], target i64 or i32 [N, ...]; also [C] with a target of one element. If a target is no class, the
 * next cairn_backward or read returns CAIRN_EINVAL. torch.nn.functional.cross_entropy */
CAIRN_API cairn_tensor *cairn_cross_entropy(cairn_tensor *x, cairn_tensor *target,
                                            const struct cairn_loss_options *options);
CAIRN_API cairn_tensor *cairn_nll_loss(cairn_tensor *x, cairn_tensor *target, const struct cairn_loss_options *options);
CAIRN_API cairn_tensor *cairn_bce_with_logits(cairn_tensor *x, cairn_tensor *target,
                                              const struct cairn_loss_options *options);
/* x are probabilities. Half types round them to 0 and 1: cairn_bce_with_logits on the scores is accurate where this is
 * not. Under O1 and autocast a half input is an error (autocast.h). torch.nn.functional.binary_cross_entropy */
CAIRN_API cairn_tensor *cairn_bce(cairn_tensor *x, cairn_tensor *target, const struct cairn_loss_options *options);
CAIRN_API cairn_tensor *cairn_kl_div(cairn_tensor *x, cairn_tensor *target, const struct cairn_loss_options *options);
CAIRN_API cairn_tensor *cairn_soft_margin_loss(cairn_tensor *x, cairn_tensor *target,
                                               const struct cairn_loss_options *options);
CAIRN_API cairn_tensor *cairn_poisson_nll_loss(cairn_tensor *x, cairn_tensor *target,
                                               const struct cairn_loss_options *options); /* log_input */

#ifdef __cplusplus
}
#endif

#endif
