/* A view as one sequence: its elements, or those along some of its axes, in row-major order.
 *
 * Axes are merged where strides allow, so that dense memory is one axis whatever its shape. Passes walk sequences in
 * blocks and need not know how memory lies. */
#ifndef CAIRN__CPU_SEQUENCE_H
#define CAIRN__CPU_SEQUENCE_H

#include "device/cpu/blocks.h"
#include "device/view.h"

struct cairn__seq {
    char *data;
    cairn_dtype dtype;
    size_t width; /* bytes of an element */
    size_t n;     /* elements */
    int ndim;     /* axes that did not merge, none of size 1 */
    int64_t size[CAIRN_MAX_DIMS], stride[CAIRN_MAX_DIMS];
};

/* Bit d of axes: axis d belongs to the sequence. The others stay at their first element. */
struct cairn__seq cairn__seq_of_axes(const struct cairn__view *v, uint32_t axes);
struct cairn__seq cairn__seq_of(const struct cairn__view *v);

/* Elements of the last axis: within them, the next is one stride further. */
static inline size_t cairn__seq_row(const struct cairn__seq *s) {
    return s->ndim > 0 ? (size_t)s->size[s->ndim - 1] : 1;
}

/* Where element i is. */
void *cairn__seq_at(const struct cairn__seq *s, size_t i);

/* Elements start..start+n-1 where they lie one after another; NULL where they do not. n >= 1. */
void *cairn__seq_dense(const struct cairn__seq *s, size_t start, size_t n);

/* Element i of dst, dst_stride elements apart, = element i of src; bits of `width` bytes. */
void cairn__move(void *dst, int64_t dst_stride, const void *src, int64_t src_stride, size_t n, size_t width);

/* What a sequence needs on its way into arithmetic, for one block at a time. Begins zeroed in `filled`. */
struct cairn__seq_room {
    const void *filled; /* the one element that wide is full of; NULL = none */
    size_t num_filled;
    struct cairn__block raw, wide;
};

/* Elements start..start+n-1 as r, n <= CAIRN__BLOCK (any n where they are r and dense): in place or in the room. */
const void *cairn__seq_load(const struct cairn__cpu *cpu, cairn_dtype r, const struct cairn__seq *s, size_t start,
                            size_t n, struct cairn__seq_room *room);

/* Where n elements of r for start..start+n-1 are to be made: in place, or in the room; then */
void *cairn__seq_for(cairn_dtype r, const struct cairn__seq *s, size_t start, size_t n, struct cairn__seq_room *room);
/* brings them there, rounded. */
void cairn__seq_store(const struct cairn__cpu *cpu, cairn_dtype r, const struct cairn__seq *s, size_t start,
                      const void *values, size_t n, struct cairn__seq_room *room);

/* value, of R, at values[i]. */
static inline void cairn__put_r(cairn_dtype r, void *values, size_t i, double value) {
    if (r == CAIRN_F64) {
        ((double *)values)[i] = value;
    } else {
        ((float *)values)[i] = (float)value;
    }
}
static inline double cairn__get_r(cairn_dtype r, const void *values, size_t i) {
    return r == CAIRN_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

#endif
