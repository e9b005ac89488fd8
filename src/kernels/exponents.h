/* Counts of exponents, for host and GPU. */
#ifndef CAIRN__KERNELS_EXPONENTS_H
#define CAIRN__KERNELS_EXPONENTS_H

#include <stdint.h>

#include "core/half.h"

/* Finite elements other than 0 count in the binade of ilogb(x), subnormals in that of their value. f64 elements smaller
 * than 2^-149 count as below, those from 2^128 on as above. */
enum { CAIRN__LEAST_BINADE = -149, CAIRN__BINADES = 277 };
struct cairn__exponent_counts {
    uint64_t zeros, infs, nans, below, above;
    uint64_t binades[CAIRN__BINADES]; /* [b - CAIRN__LEAST_BINADE] */
};

/* An element's place among counters: 0 for 0, and an f32's exponent field as if it went on for subnormals, which an
 * integer's conversion to float finds: binade b is b + CAIRN__FIELD_OF_BINADE_0. Only f64 is below and above. */
enum {
    CAIRN__FIELD_OF_BINADE_0 = 276,
    CAIRN__FIELD_INF = 404,
    CAIRN__FIELD_NAN,
    CAIRN__FIELDS,
    CAIRN__FIELD_BELOW = CAIRN__FIELDS,
    CAIRN__FIELD_ABOVE,
    CAIRN__FIELDS_OF_F64,
};
CAIRN__HOST_DEVICE static inline uint32_t cairn__field_of_f32(uint32_t magnitude) {
    if (magnitude < 0x800000u) return cairn__f32_bits((float)(int32_t)magnitude) >> 23;
    return (magnitude >> 23) + 149 + (magnitude > 0x7f800000u);
}
CAIRN__HOST_DEVICE static inline uint32_t cairn__field_of_f64(uint64_t magnitude) {
    const int32_t binade = (int32_t)(magnitude >> 52) - 1023;
    if (magnitude == 0) return 0;
    if (binade == 1024) return CAIRN__FIELD_INF + (magnitude > UINT64_C(0x7ff0000000000000));
    if (binade < CAIRN__LEAST_BINADE) return CAIRN__FIELD_BELOW;
    return binade > 127 ? CAIRN__FIELD_ABOVE : (uint32_t)(binade + CAIRN__FIELD_OF_BINADE_0);
}

/* What a place counts. */
CAIRN__HOST_DEVICE static inline uint64_t *cairn__count_of_field(struct cairn__exponent_counts *counts,
                                                                 uint32_t field) {
    switch (field) {
    case 0:
        return &counts->zeros;
    case CAIRN__FIELD_INF:
        return &counts->infs;
    case CAIRN__FIELD_NAN:
        return &counts->nans;
    case CAIRN__FIELD_BELOW:
        return &counts->below;
    case CAIRN__FIELD_ABOVE:
        return &counts->above;
    default:
        return &counts->binades[(int32_t)field - CAIRN__FIELD_OF_BINADE_0 - CAIRN__LEAST_BINADE];
    }
}

#endif
