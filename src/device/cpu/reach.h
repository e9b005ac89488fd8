/* A window that steps along an axis, in convolution and pooling. */
#ifndef CAIRN__CPU_REACH_H
#define CAIRN__CPU_REACH_H

#include <stdint.h>

/* The output positions begin..end-1 at which one tap of the window lies inside the input; `at`: the input index at
 * begin. begin = end if there are none. */
struct cairn__reach {
    int64_t begin, end, at;
};

/* first: the tap's input index at output position 0, perhaps outside. size: inputs; outs: positions; stride >= 1. */
static inline struct cairn__reach cairn__reach(int64_t first, int64_t size, int64_t outs, int64_t stride) {
    struct cairn__reach r = {.begin = first >= 0 ? 0 : (-first + stride - 1) / stride,
                             .end = first >= size ? 0 : (size - 1 - first) / stride + 1};
    if (r.end > outs) r.end = outs;
    if (r.begin > r.end) r.begin = r.end;
    r.at = first + r.begin * stride;
    return r;
}

#endif
