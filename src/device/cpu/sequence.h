/* A view as one sequence: its elements, or those along some of its axes, in row-major order.
 *
 * Axes are merged where strides allow, so that dense memory is one axis, whatever its shape. Passes walk sequences in
 * blocks and need not know the memory's layout. */
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

/* The length of the last axis, along which elements are one stride apart. */
static inline size_t cairn__seq_row(const struct cairn__seq *s) {
    return s->ndim > 0 ? (size_t)s->size[s->ndim - 1] : 1;
}

/* The address of element i. */
void *cairn__seq_at(const struct cairn__seq *s, size_t i);

/* The address of elements start..start+n-1 if they are contiguous, else NULL. n >= 1. */
void *cairn__seq_dense(const struct cairn__seq *s, size_t start, size_t n);

/* Copies n elements of `width` bytes from src to dst; elements are src_stride and dst_stride elements apart. */
void cairn__move(void *dst, int64_t dst_stride, const void *src, int64_t src_stride, size_t n, size_t width);

/* Buffers for converting one block of a sequence at a time. `filled` must be NULL at first. */
struct cairn__seq_room {
    const void *filled; /* the element that fills all of wide; NULL = none */
    size_t num_filled;
    struct cairn__block raw, wide;
};

/* Elements start..start+n-1 as r, n <= CAIRN__BLOCK (any n if they are r and contiguous): in place or in the room. */
const void *cairn__seq_load(const struct cairn__cpu *cpu, cairn_dtype r, const struct cairn__seq *s, size_t start,
                            size_t n, struct cairn__seq_room *room);

/* Where to compute n elements of r for start..start+n-1: in place, or in the room. */
void *cairn__seq_for(cairn_dtype r, const struct cairn__seq *s, size_t start, size_t n, struct cairn__seq_room *room);
/* Writes them to the sequence, rounded. */
void cairn__seq_store(const struct cairn__cpu *cpu, cairn_dtype r, const struct cairn__seq *s, size_t start,
                      const void *values, size_t n, struct cairn__seq_room *room);

/* values[i] = value, where values are of type r. */
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
