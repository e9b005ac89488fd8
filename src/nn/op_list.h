/* Every operation: its id (CAIRN__OP_...), its name in errors and tables, its row (ops.h). One list a family, in the
 * order of the files that hold the rows; the order says nothing else. amp has a class and a reason for each. */
#ifndef CAIRN__NN_OP_LIST_H
#define CAIRN__NN_OP_LIST_H

/* clang-format off */

/* ops_linear.c, ops_matmul.c, ops_attention.c */
#define CAIRN__OPS_PRODUCT(X)                     \
    X(LINEAR, "linear", linear)                   \
    X(MATMUL, "matmul", matmul)                   \
    X(BMM, "bmm", bmm)                            \
    X(ADDMM, "addmm", addmm)                      \
    X(BADDBMM, "baddbmm", baddbmm)                \
    X(SDPA, "scaled_dot_product_attention", sdpa)

/* ops_element.c */
#define CAIRN__OPS_ELEMENT(X)                    \
    X(ADD, "add", element_on_passes)             \
    X(SUB, "sub", element)                       \
    X(MUL, "mul", element)                       \
    X(DIV, "div", element)                       \
    X(POW, "pow", element)                       \
    X(MAXIMUM, "maximum", element)               \
    X(MINIMUM, "minimum", element)               \
    X(ATAN2, "atan2", element)                   \
    X(EQ, "eq", comparison)                      \
    X(NE, "ne", comparison)                      \
    X(LT, "lt", comparison)                      \
    X(LE, "le", comparison)                      \
    X(GT, "gt", comparison)                      \
    X(GE, "ge", comparison)                      \
    X(WHERE, "where", where)                     \
    X(ADDCMUL, "addcmul", element)               \
    X(ADDCDIV, "addcdiv", element)               \
    X(ADD_SCALAR, "add_scalar", element)         \
    X(MUL_SCALAR, "mul_scalar", element_on_passes) \
    X(POW_SCALAR, "pow_scalar", element)         \
    X(SCALAR_POW, "scalar_pow", element)         \
    X(CLAMP, "clamp", element)                   \
    X(NEG, "neg", element)                       \
    X(ABS, "abs", element)                       \
    X(SQUARE, "square", element)                 \
    X(SQRT, "sqrt", element)                     \
    X(RSQRT, "rsqrt", element)                   \
    X(RECIPROCAL, "reciprocal", element)         \
    X(EXP, "exp", element)                       \
    X(EXPM1, "expm1", element)                   \
    X(LOG, "log", element)                       \
    X(LOG1P, "log1p", element)                   \
    X(LOG2, "log2", element)                     \
    X(LOG10, "log10", element)                   \
    X(SIN, "sin", element)                       \
    X(COS, "cos", element)                       \
    X(TAN, "tan", element)                       \
    X(ASIN, "asin", element)                     \
    X(ACOS, "acos", element)                     \
    X(ATAN, "atan", element)                     \
    X(SINH, "sinh", element)                     \
    X(COSH, "cosh", element)                     \
    X(TANH, "tanh", element)                     \
    X(ERF, "erf", element)                       \
    X(ERFINV, "erfinv", element)                 \
    X(SIGMOID, "sigmoid", element)               \
    X(SOFTPLUS, "softplus", element)             \
    X(RELU, "relu", element_on_passes)           \
    X(GELU, "gelu", element)                     \
    X(GELU_TANH, "gelu_tanh", element)           \
    X(SILU, "silu", element)                     \
    X(PRELU, "prelu", prelu)                     \
    X(CAST, "cast", cast)

/* ops_reduce.c */
#define CAIRN__OPS_REDUCE(X)                     \
    X(SUM, "sum", sum)                           \
    X(MEAN, "mean", mean)                        \
    X(SUM_DIMS, "sum_dims", sum_dims)            \
    X(MEAN_DIMS, "mean_dims", mean_dims)         \
    X(VAR, "var", var)                           \
    X(STD, "std", var)                           \
    X(NORM, "norm", norm)                        \
    X(PROD, "prod", prod)                        \
    X(CUMSUM, "cumsum", cumsum)                  \
    X(CUMPROD, "cumprod", cumprod)               \
    X(AMAX, "amax", extreme)                     \
    X(AMIN, "amin", extreme)                     \
    X(ARGMAX, "argmax", arg_extreme)             \
    X(ARGMIN, "argmin", arg_extreme)

/* ops_view.c: views, copies, joining and splitting */
#define CAIRN__OPS_VIEW(X)                        \
    X(CONTIGUOUS, "contiguous", contiguous)       \
    X(RESHAPE, "reshape", reshape)                \
    X(PERMUTE, "permute", permute)                \
    X(SLICE, "slice", slice)                      \
    X(EXPAND, "expand", expand)                   \
    X(CAT, "cat", cat)                            \
    X(STACK, "stack", stack)

/* ops_norm.c, ops_softmax.c, ops_embedding.c, ops_dropout.c */
#define CAIRN__OPS_ROWS(X)                        \
    X(LAYER_NORM, "layer_norm", layer_norm)       \
    X(RMS_NORM, "rms_norm", rms_norm)             \
    X(GROUP_NORM, "group_norm", group_norm)       \
    X(BATCH_NORM, "batch_norm", batch_norm)       \
    X(SOFTMAX, "softmax", softmax)                \
    X(LOG_SOFTMAX, "log_softmax", log_softmax)    \
    X(EMBEDDING, "embedding", embedding)          \
    X(DROPOUT, "dropout", dropout)

/* ops_loss.c, ops_class_loss.c */
#define CAIRN__OPS_LOSS(X)                                     \
    X(MSE_LOSS, "mse_loss", mse_loss)                          \
    X(L1_LOSS, "l1_loss", l1_loss)                             \
    X(SMOOTH_L1_LOSS, "smooth_l1_loss", smooth_l1_loss)        \
    X(BCE, "bce", bce)                                         \
    X(BCE_WITH_LOGITS, "bce_with_logits", bce_with_logits)     \
    X(KL_DIV, "kl_div", kl_div)                                \
    X(SOFT_MARGIN_LOSS, "soft_margin_loss", soft_margin_loss)  \
    X(POISSON_NLL_LOSS, "poisson_nll_loss", poisson_nll_loss)  \
    X(CROSS_ENTROPY, "cross_entropy", cross_entropy)           \
    X(NLL_LOSS, "nll_loss", nll_loss)

/* ops_conv.c, ops_pool.c */
#define CAIRN__OPS_CONV(X)                                             \
    X(CONV1D, "conv1d", conv1d)                                        \
    X(CONV2D, "conv2d", conv2d)                                        \
    X(CONV_TRANSPOSE1D, "conv_transpose1d", conv_transpose1d)          \
    X(CONV_TRANSPOSE2D, "conv_transpose2d", conv_transpose2d)          \
    X(MAX_POOL2D, "max_pool2d", max_pool2d)                            \
    X(AVG_POOL2D, "avg_pool2d", avg_pool2d)                            \
    X(ADAPTIVE_AVG_POOL2D, "adaptive_avg_pool2d", adaptive_avg_pool2d)

/* ops_autograd.c, checkpoint.c, custom.c, guest.c: what changes the graph and no value, and what others bring */
#define CAIRN__OPS_AUTOGRAD(X)                    \
    X(DETACH, "detach", detach)                   \
    X(CHECKPOINT, "checkpoint", checkpoint)       \
    X(CUSTOM, "custom", custom)                   \
    X(GUEST, "guest", guest)

#define CAIRN__OP_LIST(X)                                                                            \
    CAIRN__OPS_PRODUCT(X) CAIRN__OPS_ELEMENT(X) CAIRN__OPS_REDUCE(X) CAIRN__OPS_VIEW(X)              \
    CAIRN__OPS_ROWS(X) CAIRN__OPS_LOSS(X) CAIRN__OPS_CONV(X) CAIRN__OPS_AUTOGRAD(X)
/* clang-format on */

#endif
