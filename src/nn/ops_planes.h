/* Shared by convolutions and pooling: checks and defaults of their options. */
#ifndef CAIRN__NN_OPS_PLANES_H
#define CAIRN__NN_OPS_PLANES_H

#include "cairn/ops.h"
#include "core/status.h"
#include "nn/ops.h"

enum {
    CAIRN__MAX_PIXELS = 0x7fffffff
}; /* limit of sizes along an axis and of every option: sums of products of two fit */

/* Fills in an option of rows and columns: [1] = 0 means as [0]; both 0 means `missing`, the default. */
static inline void cairn__option_pair(int64_t out[2], const int64_t given[2], const int64_t missing[2]) {
    const bool none = given[0] == 0 && given[1] == 0;
    out[0] = none ? missing[0] : given[0];
    out[1] = none ? missing[1] : given[1] == 0 ? given[0] : given[1];
}

/* Fills in a padding of rows and columns: [1] = 0 means as [0]; CAIRN_NO_PADDING means 0. */
static inline void cairn__option_padding(int64_t out[2], const int64_t given[2]) {
    for (int i = 0; i < 2; i++) {
        const int64_t value = given[i] == 0 ? given[0] : given[i];
        out[i] = value == CAIRN_NO_PADDING ? 0 : value;
    }
}

/* CAIRN_EINVAL "conv2d: stride is 0; it must be from 1 to 2147483647". */
static inline cairn_status cairn__check_option(enum cairn__op op, const char *what, int64_t value, int64_t least) {
    REQUIRE(value >= least && value <= CAIRN__MAX_PIXELS, CAIRN_EINVAL, "%s: %s is %lld; it must be from %lld to %d",
            cairn__op_name(op), what, (long long)value, (long long)least, (int)CAIRN__MAX_PIXELS);
    return CAIRN_OK;
}

#endif
