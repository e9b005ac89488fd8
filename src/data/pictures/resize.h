/* Bilinear resizing with antialiasing, in the bits of Pillow's Image.resize(..., Image.BILINEAR) up to
 * Pillow 12. */
#ifndef CAIRN__DATA_PICTURES_RESIZE_H
#define CAIRN__DATA_PICTURES_RESIZE_H

#include "cairn/pictures.h"

/* A part of a resized picture, which alone is computed: [height, width] of [out_h, out_w] from (top, left) on. */
struct cairn__resized_part {
    int64_t out_h, out_w;
    struct cairn_picture_box box;
};

/* in [in_h, in_w, 3], rows of in_row bytes, to out [part.box.height, part.box.width, 3], rows without gaps. Each weight
 * of a triangle, which is as wide as an output pixel where the picture gets smaller, is rounded to 2^-22; rows first,
 * rounded to u8, then columns. Sizes from 1; those of in and of the part's box to 2^31 pixels. Errors: CAIRN_ENOMEM.
 * Source: Pillow, src/libImaging/Resample.c, precompute_coeffs, ImagingResampleHorizontal_8bpc and _Vertical_8bpc. */
cairn_status cairn__resize_bilinear(const uint8_t *in, int64_t in_h, int64_t in_w, size_t in_row,
                                    const struct cairn__resized_part *part, uint8_t *out);

#endif
