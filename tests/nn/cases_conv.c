/* Cases of operations: convolution, pooling. */
#include "op_cases.h"

/* ---- convolution ---- */

static cairn_tensor *conv2d(cairn_tensor *const *in) {
    return cairn_conv2d_forward(in[0], in[1], in[2], NULL);
}
static cairn_tensor *conv2d_padded(cairn_tensor *const *in) {
    return cairn_conv2d_forward(in[0], in[1], in[2], cairn_conv_options(.padding = {1, 1}));
}
static cairn_tensor *conv2d_strided(cairn_tensor *const *in) {
    return cairn_conv2d_forward(in[0], in[1], in[2], cairn_conv_options(.stride = {2}, .padding = {1, 1}));
}
static cairn_tensor *conv2d_strided_dense(cairn_tensor *const *in) {
    return cairn_conv2d_forward(in[0], in[1], in[2], cairn_conv_options(.stride = {2}));
}
static cairn_tensor *conv2d_uneven(cairn_tensor *const *in) {
    return cairn_conv2d_forward(in[0], in[1], in[2],
                                cairn_conv_options(.stride = {2, 3}, .padding = {0, 2}, .dilation = {2, 1}));
}
static cairn_tensor *conv2d_first_layer(cairn_tensor *const *in) {
    return cairn_conv2d_forward(in[0], in[1], in[2], cairn_conv_options(.stride = {2}, .padding = {3, 3}));
}
static cairn_tensor *conv2d_groups(cairn_tensor *const *in) {
    return cairn_conv2d_forward(in[0], in[1], in[2], cairn_conv_options(.padding = {1, 1}, .groups = 2));
}
static cairn_tensor *conv2d_depthwise(cairn_tensor *const *in) {
    return cairn_conv2d_forward(in[0], in[1], in[2], cairn_conv_options(.padding = {1, 1}, .groups = 6));
}
static cairn_tensor *conv1d(cairn_tensor *const *in) {
    return cairn_conv1d_forward(in[0], in[1], in[2], NULL);
}
static cairn_tensor *conv1d_options(cairn_tensor *const *in) {
    return cairn_conv1d_forward(in[0], in[1], in[2],
                                cairn_conv_options(.stride = {2}, .padding = {3}, .dilation = {2}, .groups = 2));
}
static cairn_tensor *conv_transpose2d(cairn_tensor *const *in) {
    return cairn_conv_transpose2d_forward(in[0], in[1], in[2], NULL);
}
static cairn_tensor *conv_transpose2d_options(cairn_tensor *const *in) {
    return cairn_conv_transpose2d_forward(in[0], in[1], in[2],
                                          cairn_conv_options(.stride = {2, 3}, .padding = {1, CAIRN_NO_PADDING},
                                                             .output_padding = {1, 2}, .groups = 2));
}
static cairn_tensor *conv_transpose2d_dilated(cairn_tensor *const *in) {
    return cairn_conv_transpose2d_forward(in[0], in[1], in[2],
                                          cairn_conv_options(.dilation = {3, 2}, .output_padding = {2, 1}));
}
static cairn_tensor *conv_transpose1d(cairn_tensor *const *in) {
    return cairn_conv_transpose1d_forward(in[0], in[1], in[2], NULL);
}
static cairn_tensor *conv_transpose1d_options(cairn_tensor *const *in) {
    return cairn_conv_transpose1d_forward(in[0], in[1], in[2],
                                          cairn_conv_options(.stride = {3}, .padding = {2}, .output_padding = {1}));
}

/* ---- pooling ---- */

static cairn_tensor *max_pool2(cairn_tensor *const *in) {
    return cairn_max_pool2d(in[0], 2, 2, NULL);
}
static cairn_tensor *max_pool3(cairn_tensor *const *in) {
    return cairn_max_pool2d(in[0], 3, 3, cairn_pool_options(.stride = {2}, .padding = {1, 1}));
}
static cairn_tensor *max_pool_ceil(cairn_tensor *const *in) {
    return cairn_max_pool2d(in[0], 3, 2,
                            cairn_pool_options(.stride = {2, 3}, .padding = {1, 1}, .ceil_mode = CAIRN_ON));
}
static cairn_tensor *max_pool_dilated(cairn_tensor *const *in) {
    return cairn_max_pool2d(in[0], 2, 3, cairn_pool_options(.stride = {1}, .padding = {1, 1}, .dilation = {3, 2}));
}
static cairn_tensor *avg_pool2(cairn_tensor *const *in) {
    return cairn_avg_pool2d(in[0], 2, 2, NULL);
}
static cairn_tensor *avg_pool3(cairn_tensor *const *in) {
    return cairn_avg_pool2d(in[0], 3, 3, cairn_pool_options(.stride = {2}, .padding = {1, 1}));
}
static cairn_tensor *avg_pool_inside(cairn_tensor *const *in) {
    return cairn_avg_pool2d(in[0], 3, 2,
                            cairn_pool_options(.stride = {2, 1}, .padding = {1, 1}, .count_include_pad = CAIRN_OFF));
}
static cairn_tensor *avg_pool_ceil(cairn_tensor *const *in) {
    return cairn_avg_pool2d(in[0], 3, 4,
                            cairn_pool_options(.stride = {2, 3}, .padding = {1, 2}, .ceil_mode = CAIRN_ON));
}
static cairn_tensor *avg_pool_ceil_inside(cairn_tensor *const *in) {
    return cairn_avg_pool2d(in[0], 3, 4,
                            cairn_pool_options(.stride = {2, 3}, .padding = {1, 2}, .ceil_mode = CAIRN_ON,
                                               .count_include_pad = CAIRN_OFF));
}
static cairn_tensor *adaptive_to_one(cairn_tensor *const *in) {
    return cairn_adaptive_avg_pool2d(in[0], 1, 1);
}
static cairn_tensor *adaptive_even(cairn_tensor *const *in) {
    return cairn_adaptive_avg_pool2d(in[0], 2, 3);
}
static cairn_tensor *adaptive_uneven(cairn_tensor *const *in) {
    return cairn_adaptive_avg_pool2d(in[0], 4, 3);
}
static cairn_tensor *adaptive_larger(cairn_tensor *const *in) {
    return cairn_adaptive_avg_pool2d(in[0], 5, 7);
}
static cairn_tensor *adaptive_column(cairn_tensor *const *in) {
    return cairn_adaptive_avg_pool2d(in[0], 3, 1);
}

static const struct op_case cases[] = {
    CASE("conv2d", CONV2D, conv2d, "F.conv2d(a, b, c)", IN("2 3 5 6"), IN("4 3 3 2"), IN("4")),
    CASE("conv2d without bias", CONV2D, conv2d, "F.conv2d(a, b)", IN("2 3 5 5"), IN("4 3 3 3")),
    CASE("conv2d of one image", CONV2D, conv2d_padded, "F.conv2d(a, b, c, padding=1)", IN("3 5 4"), IN("4 3 3 3"),
         IN("4")),
    CASE("conv2d of one pixel", CONV2D, conv2d, "F.conv2d(a, b, c)", IN("1 1 1 1"), IN("1 1 1 1"), IN("1")),
    CASE("conv2d of no image", CONV2D, conv2d, "F.conv2d(a, b, c)", IN("0 3 4 4"), IN("2 3 3 3"), IN("2")),
    CASE("conv2d with stride", CONV2D, conv2d_strided, "F.conv2d(a, b, c, 2, 1)", IN("2 3 7 8"), IN("5 3 3 3"),
         IN("5")),
    CASE("conv2d leaves rows over", CONV2D, conv2d_strided_dense, "F.conv2d(a, b, c, 2)", IN("2 3 8 6"), IN("4 3 3 3"),
         IN("4")),
    CASE("conv2d uneven", CONV2D, conv2d_uneven, "F.conv2d(a, b, c, (2, 3), (0, 2), (2, 1))", IN("2 2 9 8"),
         IN("3 2 3 4"), IN("3")),
    CASE("conv2d 7 x 7", CONV2D, conv2d_first_layer, "F.conv2d(a, b, None, 2, 3)", IN("2 3 12 12"), IN("16 3 7 7")),
    CASE("conv2d 1 x 1", CONV2D, conv2d, "F.conv2d(a, b, c)", IN("2 17 4 4"), IN("6 17 1 1"), IN("6")),
    CASE("conv2d 1 x 1, padded", CONV2D, conv2d_padded, "F.conv2d(a, b, c, padding=1)", IN("2 3 3 3"), IN("4 3 1 1"),
         IN("4")),
    CASE("conv2d 1 x 1 with stride", CONV2D, conv2d_strided_dense, "F.conv2d(a, b, c, 2)", IN("2 16 6 5"),
         IN("8 16 1 1"), IN("8")),
    CASE("conv2d in groups", CONV2D, conv2d_groups, "F.conv2d(a, b, c, padding=1, groups=2)", IN("2 6 4 5"),
         IN("8 3 3 3"), IN("8")),
    CASE("conv2d in groups of blocks", CONV2D, conv2d_groups, "F.conv2d(a, b, c, padding=1, groups=2)", IN("1 32 4 4"),
         IN("32 16 3 3"), IN("32")),
    CASE("conv2d depthwise", CONV2D, conv2d_depthwise, "F.conv2d(a, b, c, padding=1, groups=6)", IN("2 6 5 5"),
         IN("12 1 3 3"), IN("12")),
    CASE("conv2d of few pixels", CONV2D, conv2d_padded, "F.conv2d(a, b, c, padding=1)", IN("2 24 2 2"), IN("32 24 3 3"),
         IN("32")),
    CASE("conv1d", CONV1D, conv1d, "F.conv1d(a, b, c)", IN("3 4 9"), IN("5 4 3"), IN("5")),
    CASE("conv1d of one row", CONV1D, conv1d, "F.conv1d(a, b)", IN("4 9"), IN("5 4 2")),
    CASE("conv1d with options", CONV1D, conv1d_options, "F.conv1d(a, b, c, 2, 3, 2, 2)", IN("2 4 11"), IN("6 2 3"),
         IN("6")),
    CASE("conv_transpose2d", CONV_TRANSPOSE2D, conv_transpose2d, "F.conv_transpose2d(a, b, c)", IN("2 3 4 3"),
         IN("3 4 3 2"), IN("4")),
    CASE("conv_transpose2d of one image", CONV_TRANSPOSE2D, conv_transpose2d, "F.conv_transpose2d(a, b)", IN("3 4 3"),
         IN("3 4 2 2")),
    CASE("conv_transpose2d with options", CONV_TRANSPOSE2D, conv_transpose2d_options,
         "F.conv_transpose2d(a, b, c, (2, 3), (1, 0), (1, 2), 2)", IN("2 4 3 4"), IN("4 3 3 4"), IN("6")),
    CASE("conv_transpose2d dilated", CONV_TRANSPOSE2D, conv_transpose2d_dilated,
         "F.conv_transpose2d(a, b, c, 1, 0, (2, 1), 1, (3, 2))", IN("2 3 3 4"), IN("3 2 2 3"), IN("2")),
    CASE("conv_transpose2d of no image", CONV_TRANSPOSE2D, conv_transpose2d, "F.conv_transpose2d(a, b, c)",
         IN("0 3 4 3"), IN("3 4 3 2"), IN("4")),
    CASE("conv_transpose1d", CONV_TRANSPOSE1D, conv_transpose1d, "F.conv_transpose1d(a, b, c)", IN("2 3 5"),
         IN("3 4 3"), IN("4")),
    CASE("conv_transpose1d with options", CONV_TRANSPOSE1D, conv_transpose1d_options,
         "F.conv_transpose1d(a, b, c, 3, 2, 1)", IN("2 3 5"), IN("3 4 4"), IN("4")),

    CASE("max_pool2d", MAX_POOL2D, max_pool2, "F.max_pool2d(a, 2)", IN_AS("2 3 4 6", DISTINCT)),
    CASE("max_pool2d of odd sizes", MAX_POOL2D, max_pool2, "F.max_pool2d(a, 2)", IN_AS("3 5 7", DISTINCT)),
    CASE("max_pool2d 3 x 3", MAX_POOL2D, max_pool3, "F.max_pool2d(a, 3, 2, 1)", IN_AS("1 2 7 8", DISTINCT)),
    CASE("max_pool2d of long rows", MAX_POOL2D, max_pool3, "F.max_pool2d(a, 3, 2, 1)", IN_AS("1 1 3 67", DISTINCT)),
    CASE("max_pool2d with ceil_mode", MAX_POOL2D, max_pool_ceil, "F.max_pool2d(a, (3, 2), (2, 3), 1, ceil_mode=True)",
         IN_AS("1 2 6 8", DISTINCT)),
    CASE("max_pool2d dilated", MAX_POOL2D, max_pool_dilated, "F.max_pool2d(a, (2, 3), 1, 1, (3, 2))",
         IN_AS("1 2 5 6", DISTINCT)),
    CASE("max_pool2d of no image", MAX_POOL2D, max_pool2, "F.max_pool2d(a, 2)", IN_AS("0 3 4 6", DISTINCT)),
    CASE("avg_pool2d", AVG_POOL2D, avg_pool2, "F.avg_pool2d(a, 2)", IN("2 3 4 6")),
    CASE("avg_pool2d 3 x 3", AVG_POOL2D, avg_pool3, "F.avg_pool2d(a, 3, 2, 1)", IN("2 7 8")),
    CASE("avg_pool2d without padding's share", AVG_POOL2D, avg_pool_inside,
         "F.avg_pool2d(a, (3, 2), (2, 1), 1, count_include_pad=False)", IN("1 2 6 5")),
    CASE("avg_pool2d with ceil_mode", AVG_POOL2D, avg_pool_ceil,
         "F.avg_pool2d(a, (3, 4), (2, 3), (1, 2), ceil_mode=True)", IN("1 2 6 9")),
    CASE("avg_pool2d with ceil_mode, without padding's share", AVG_POOL2D, avg_pool_ceil_inside,
         "F.avg_pool2d(a, (3, 4), (2, 3), (1, 2), True, False)", IN("1 2 6 9")),
    CASE("adaptive_avg_pool2d to one", ADAPTIVE_AVG_POOL2D, adaptive_to_one, "F.adaptive_avg_pool2d(a, 1)",
         IN("2 3 5 7")),
    CASE("adaptive_avg_pool2d evenly", ADAPTIVE_AVG_POOL2D, adaptive_even, "F.adaptive_avg_pool2d(a, (2, 3))",
         IN("2 3 4 6")),
    CASE("adaptive_avg_pool2d unevenly", ADAPTIVE_AVG_POOL2D, adaptive_uneven, "F.adaptive_avg_pool2d(a, (4, 3))",
         IN("3 7 8")),
    CASE("adaptive_avg_pool2d to more", ADAPTIVE_AVG_POOL2D, adaptive_larger, "F.adaptive_avg_pool2d(a, (5, 7))",
         IN("1 2 3 4")),
    CASE("adaptive_avg_pool2d to a column", ADAPTIVE_AVG_POOL2D, adaptive_column, "F.adaptive_avg_pool2d(a, (3, 1))",
         IN("1 2 5 19")),
};

const struct op_cases cases_conv = OP_CASES(cases);
