/* Bilinear resizing with antialiasing, in the bits of Pillow's Image.resize(..., Image.BILINEAR) up to
 * Pillow 12. */
#ifndef CAIRN__DATA_PICTURES_RESIZE_H
#define CAIRN__DATA_PICTURES_RESIZE_H

#include "cairn/pictures.h"

/* in [in_h, in_w, 3], rows of in_row bytes, to out [out_h, out_w, 3], rows without gaps. Each weight of a triangle,
 * which is as wide as an output pixel where the picture gets smaller, is rounded to 2^-22; rows first, rounded to u8,
 * then columns. Sizes from 1 to 2^31 pixels. Errors: CAIRN_ENOMEM. Source: Pillow, src/libImaging/Resample.c,
 * precompute_coeffs, ImagingResampleHorizontal_8bpc and _Vertical_8bpc. */
cairn_status cairn__resize_bilinear(const uint8_t *in, int64_t in_h, int64_t in_w, size_t in_row, uint8_t *out,
                                    int64_t out_h, int64_t out_w);

#endif
