/* The GPU's table of math_passes.h. */
#include "device/cuda/math_table.h"

const struct cairn__math cairn__cuda_math = {
    .map = cairn__cuda_map,
    .map_sum = cairn__cuda_map_sum,
    .fold = cairn__cuda_fold,
    .variance = cairn__cuda_variance,
    .arg_max = cairn__cuda_arg_max,
    .cumulate = cairn__cuda_cumulate,
    .product = cairn__cuda_product,
    .softmax = cairn__cuda_softmax,
    .softmax_backward = cairn__cuda_softmax_backward,
    .gather_rows = cairn__cuda_gather_rows,
    .scatter_rows = cairn__cuda_scatter_rows,
    .dropout = cairn__cuda_dropout,
    .class_loss = cairn__cuda_class_loss,
    .class_loss_backward = cairn__cuda_class_loss_backward,
    .norm = cairn__cuda_norm,
    .norm_backward = cairn__cuda_norm_backward,
    .batch_stats = cairn__cuda_batch_stats,
    .merge_moments = cairn__cuda_merge_moments,
    .conv = cairn__cuda_conv,
    .conv_backward = cairn__cuda_conv_backward,
    .pool = cairn__cuda_pool,
    .pool_backward = cairn__cuda_pool_backward,
    .attention = cairn__cuda_attention,
    .attention_backward = cairn__cuda_attention_backward,
};
