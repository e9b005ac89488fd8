/* The CPU's table of math_passes.h. */
#include "device/cpu/cpu_math.h"
#include "device/cpu/rows.h"

const struct cairn__math cairn__cpu_math = {
    /* element.c */
    .map = cairn__cpu_map,
    .map_sum = cairn__cpu_map_sum,
    /* reduce.c */
    .fold = cairn__cpu_fold,
    .variance = cairn__cpu_variance,
    .arg_max = cairn__cpu_arg_max,
    .cumulate = cairn__cpu_cumulate,
    /* product.c */
    .product = cairn__cpu_product,
    /* rows.c, norm.c, loss.c */
    .softmax = cairn__cpu_softmax,
    .softmax_backward = cairn__cpu_softmax_backward,
    .norm = cairn__cpu_norm,
    .norm_backward = cairn__cpu_norm_backward,
    .batch_stats = cairn__cpu_batch_stats,
    .merge_moments = cairn__cpu_merge_moments,
    .gather_rows = cairn__cpu_gather_rows,
    .scatter_rows = cairn__cpu_scatter_rows,
    .dropout = cairn__cpu_dropout,
    .class_loss = cairn__cpu_class_loss,
    .class_loss_backward = cairn__cpu_class_loss_backward,
    /* conv.c, pool.c */
    .conv = cairn__cpu_conv,
    .conv_backward = cairn__cpu_conv_backward,
    .pool = cairn__cpu_pool,
    .pool_backward = cairn__cpu_pool_backward,
    /* attention.c */
    .attention = cairn__cpu_attention,
    .attention_backward = cairn__cpu_attention_backward,
};
