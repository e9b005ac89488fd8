/* Launchers for the parts of convolutions that are not products: columns of patches, and planes. Conventions as in
 * launch.h. R is f32, or f64 for f64. Sizes are > 0 unless said otherwise. */
#ifndef CAIRN__DEVICE_CUDA_CONV_H
#define CAIRN__DEVICE_CUDA_CONV_H

#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Columns hold, for every pixel of dst [images, k, p, q], the element of src [images, c, h, w] under each tap of the
 * kernel:
 *     columns[((channel * r + y) * s + x) * row_step + image * image_step + pixel]
 * They are written in whole packs of 16 bytes: either both steps are multiples of a pack, or the images form one row,
 * which may be written up to the end of its last pack.
 */
struct cairn__columns {
    int64_t images, c, h, w, r, s, p, q;
    int64_t stride[2], padding[2], dilation[2];
    int64_t row_step, image_step;
};

int cairn__launch_columns(struct CUstream_st *stream, cairn_dtype t, void *columns, const void *src,
                          const struct cairn__columns *shape);
/* src[i] = round(its channel's bias + the sum of its elements of columns), taps in order. Columns are R; bias may be
 * NULL. Every element of src gathers its terms, so no two threads add to the same one. */
int cairn__launch_fold_columns(struct CUstream_st *stream, cairn_dtype t, void *src, const void *columns,
                               const void *bias, const struct cairn__columns *shape);

/* y [images, channels, pixels] = round(x + bias[channel]), x at channel * row_step + image * image_step + pixel. */
struct cairn__planes {
    int64_t images, channels, pixels;
    int64_t row_step, image_step;
};
/* x is of type `from`, R or t, NULL = zeros; bias may be NULL. y may be x. */
int cairn__launch_planes(struct CUstream_st *stream, cairn_dtype t, void *y, cairn_dtype from, const void *x,
                         const void *bias, const struct cairn__planes *shape);

/* dst[i] = round(sum of x[slice * n + i] over slices), x R, in order, in f64. */
int cairn__launch_sum_slices(struct CUstream_st *stream, cairn_dtype t, void *dst, const void *x, size_t slices,
                             size_t n);

/* dbias[channel] = round(sum of dy [images, channels, pixels]): planes first, a warp each, then images in order; all in
 * f64. planes is room for images * channels. images or pixels may be 0. */
int cairn__launch_channel_sums(struct CUstream_st *stream, cairn_dtype t, void *dbias, const void *dy, double *planes,
                               int64_t images, int64_t channels, int64_t pixels);

#ifdef __cplusplus
}
#endif

#endif
