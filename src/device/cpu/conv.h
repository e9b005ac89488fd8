/* Convolution inside the CPU backend. A pass computes one of three products: a convolution or one of its two gradients.
 * A transposed convolution uses the same three with exchanged roles; conv.c exchanges them. */
#ifndef CAIRN__CPU_CONV_H
#define CAIRN__CPU_CONV_H

#include "device/cpu/engine.h"
#include "device/cpu/reach.h"
#include "device/cpu/state.h"

/* src [n, c, h, w], weights [k, c / groups, r, s], dst [n, k, p, q], dense. No size is 0. Padding is that to the left
 * and above; that to the right and below follows from p and q. Hashed and compared byte by byte. */
struct cairn__conv_shape {
    int64_t n, c, h, w, k, r, s, p, q, groups;
    int64_t stride[2], padding[2], dilation[2];
};

enum cairn__conv_what {
    CAIRN__CONV_DST = 1, /* dst = src * weights, the convolution */
    CAIRN__CONV_SRC,     /* the gradient of src from that of dst */
    CAIRN__CONV_WEIGHTS, /* the gradient of weights */
};

struct cairn__conv_pass {
    enum cairn__conv_what what; /* the operand written, f32 (f64 where in_type is); the others are read, of in_type */
    cairn_dtype in_type;
    bool rounds; /* the operand written is of in_type: only if cairn__engine_conv_rounds returned true */
    struct cairn__conv_shape shape;
    void *src, *weights, *dst;
};

/* Plain loops, f32 or f64. */
void cairn__conv_loops(const struct cairn__conv_pass *pass);

/* Runs a pass the way that is fastest on the engine. in_type is f32 or a type that the engine takes. */
cairn_status cairn__engine_conv(struct cairn__engine *engine, const struct cairn__conv_pass *pass);

/* Whether the engine itself rounds this pass's result to in_type, once, from f32 sums (subnormals become 0); otherwise
 * the caller rounds. An error in preparing the pass is returned when the pass runs. */
bool cairn__engine_conv_rounds(struct cairn__engine *engine, const struct cairn__conv_pass *pass);

/* Convolution by columns (im2col): each output's inputs are copied into a matrix that is multiplied by the weights.
 * Types as the engine takes them; the matrix is in kept scratch. */
struct cairn__conv_columns {
    struct cairn__scratch columns, dst, weights, places;
};
cairn_status cairn__conv_by_columns(struct cairn__engine *engine, struct cairn__conv_columns *kept,
                                    const struct cairn__conv_pass *pass);
void cairn__conv_columns_end(struct cairn__conv_columns *kept);

/* Where the tap of a kernel along an axis (0 rows, 1 columns) lies over src. */
static inline struct cairn__reach cairn__conv_reach(const struct cairn__conv_shape *g, int axis, int64_t tap) {
    return cairn__reach(tap * g->dilation[axis] - g->padding[axis], axis ? g->w : g->h, axis ? g->q : g->p,
                        g->stride[axis]);
}

#endif
