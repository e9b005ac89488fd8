/* Every operation: its id (CAIRN__OP_...) and its name in errors and tables. One list per family, in the order of the
 * files that hold the rows (ops.h); the order says nothing else. amp has a class and a reason for each. */
#ifndef CAIRN__NN_OP_LIST_H
#define CAIRN__NN_OP_LIST_H

/* clang-format off */

/* ops_linear.c, ops_matmul.c, ops_attention.c */
#define CAIRN__OPS_PRODUCT(X)                       \
    X(LINEAR, "linear")                             \
    X(MATMUL, "matmul")                             \
    X(BMM, "bmm")                                   \
    X(ADDMM, "addmm")                               \
    X(BADDBMM, "baddbmm")                           \
    X(SDPA, "scaled_dot_product_attention")

/* ops_element.c; cast is in ops_convert.c */
#define CAIRN__OPS_ELEMENT(X)                       \
    X(ADD, "add")                                   \
    X(SUB, "sub")                                   \
    X(MUL, "mul")                                   \
    X(DIV, "div")                                   \
    X(POW, "pow")                                   \
    X(MAXIMUM, "maximum")                           \
    X(MINIMUM, "minimum")                           \
    X(ATAN2, "atan2")                               \
    X(EQ, "eq")                                     \
    X(NE, "ne")                                     \
    X(LT, "lt")                                     \
    X(LE, "le")                                     \
    X(GT, "gt")                                     \
    X(GE, "ge")                                     \
    X(WHERE, "where")                               \
    X(ADDCMUL, "addcmul")                           \
    X(ADDCDIV, "addcdiv")                           \
    X(ADD_SCALAR, "add_scalar")                     \
    X(MUL_SCALAR, "mul_scalar")                     \
    X(POW_SCALAR, "pow_scalar")                     \
    X(SCALAR_POW, "scalar_pow")                     \
    X(CLAMP, "clamp")                               \
    X(NEG, "neg")                                   \
    X(ABS, "abs")                                   \
    X(SQUARE, "square")                             \
    X(SQRT, "sqrt")                                 \
    X(RSQRT, "rsqrt")                               \
    X(RECIPROCAL, "reciprocal")                     \
    X(EXP, "exp")                                   \
    X(EXPM1, "expm1")                               \
    X(LOG, "log")                                   \
    X(LOG1P, "log1p")                               \
    X(LOG2, "log2")                                 \
    X(LOG10, "log10")                               \
    X(SIN, "sin")                                   \
    X(COS, "cos")                                   \
    X(TAN, "tan")                                   \
    X(ASIN, "asin")                                 \
    X(ACOS, "acos")                                 \
    X(ATAN, "atan")                                 \
    X(SINH, "sinh")                                 \
    X(COSH, "cosh")                                 \
    X(TANH, "tanh")                                 \
    X(ERF, "erf")                                   \
    X(ERFINV, "erfinv")                             \
    X(SIGMOID, "sigmoid")                           \
    X(SOFTPLUS, "softplus")                         \
    X(RELU, "relu")                                 \
    X(GELU, "gelu")                                 \
    X(GELU_TANH, "gelu_tanh")                       \
    X(SILU, "silu")                                 \
    X(PRELU, "prelu")                               \
    X(CAST, "cast")

/* ops_reduce.c */
#define CAIRN__OPS_REDUCE(X)                        \
    X(SUM, "sum")                                   \
    X(MEAN, "mean")                                 \
    X(SUM_DIMS, "sum_dims")                         \
    X(MEAN_DIMS, "mean_dims")                       \
    X(VAR, "var")                                   \
    X(STD, "std")                                   \
    X(NORM, "norm")                                 \
    X(PROD, "prod")                                 \
    X(CUMSUM, "cumsum")                             \
    X(CUMPROD, "cumprod")                           \
    X(AMAX, "amax")                                 \
    X(AMIN, "amin")                                 \
    X(ARGMAX, "argmax")                             \
    X(ARGMIN, "argmin")

/* ops_convert.c: contiguous; ops_view.c: views, joining and splitting */
#define CAIRN__OPS_VIEW(X)                          \
    X(CONTIGUOUS, "contiguous")                     \
    X(RESHAPE, "reshape")                           \
    X(PERMUTE, "permute")                           \
    X(SLICE, "slice")                               \
    X(EXPAND, "expand")                             \
    X(CAT, "cat")                                   \
    X(STACK, "stack")

/* ops_norm.c, ops_softmax.c, ops_embedding.c, ops_dropout.c */
#define CAIRN__OPS_ROWS(X)                          \
    X(LAYER_NORM, "layer_norm")                     \
    X(RMS_NORM, "rms_norm")                         \
    X(GROUP_NORM, "group_norm")                     \
    X(BATCH_NORM, "batch_norm")                     \
    X(SOFTMAX, "softmax")                           \
    X(LOG_SOFTMAX, "log_softmax")                   \
    X(EMBEDDING, "embedding")                       \
    X(DROPOUT, "dropout")

/* ops_loss.c, ops_class_loss.c */
#define CAIRN__OPS_LOSS(X)                          \
    X(MSE_LOSS, "mse_loss")                         \
    X(L1_LOSS, "l1_loss")                           \
    X(SMOOTH_L1_LOSS, "smooth_l1_loss")             \
    X(BCE, "bce")                                   \
    X(BCE_WITH_LOGITS, "bce_with_logits")           \
    X(KL_DIV, "kl_div")                             \
    X(SOFT_MARGIN_LOSS, "soft_margin_loss")         \
    X(POISSON_NLL_LOSS, "poisson_nll_loss")         \
    X(CROSS_ENTROPY, "cross_entropy")               \
    X(NLL_LOSS, "nll_loss")

/* ops_conv.c, ops_pool.c */
#define CAIRN__OPS_CONV(X)                          \
    X(CONV1D, "conv1d")                             \
    X(CONV2D, "conv2d")                             \
    X(CONV_TRANSPOSE1D, "conv_transpose1d")         \
    X(CONV_TRANSPOSE2D, "conv_transpose2d")         \
    X(MAX_POOL2D, "max_pool2d")                     \
    X(AVG_POOL2D, "avg_pool2d")                     \
    X(ADAPTIVE_AVG_POOL2D, "adaptive_avg_pool2d")

/* ops_convert.c, checkpoint.c, custom.c, guest.c: changes of the graph, and operations of the user and other rooms */
#define CAIRN__OPS_AUTOGRAD(X)                      \
    X(DETACH, "detach")                             \
    X(CHECKPOINT, "checkpoint")                     \
    X(CUSTOM, "custom")                             \
    X(GUEST, "guest")

#define CAIRN__OP_LIST(X)                                                                            \
    CAIRN__OPS_PRODUCT(X) CAIRN__OPS_ELEMENT(X) CAIRN__OPS_REDUCE(X) CAIRN__OPS_VIEW(X)              \
    CAIRN__OPS_ROWS(X) CAIRN__OPS_LOSS(X) CAIRN__OPS_CONV(X) CAIRN__OPS_AUTOGRAD(X)
/* clang-format on */

#endif
