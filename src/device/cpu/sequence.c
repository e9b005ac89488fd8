/* Views as sequences. */
#include "device/cpu/sequence.h"

#include <string.h>

struct cairn__seq cairn__seq_of_axes(const struct cairn__view *v, uint32_t axes) {
    struct cairn__seq s = {.data = v->data, .dtype = v->dtype, .width = cairn_dtype_nbytes(v->dtype), .n = 1};
    for (int d = 0; d < v->ndim; d++) {
        if (!(axes >> d & 1)) continue;
        const int64_t size = v->size[d], stride = v->stride[d];
        const int last = s.ndim - 1;
        s.n *= (size_t)size;
        if (size == 1) continue;
        if (last >= 0 && s.stride[last] == stride * size) {
            s.size[last] *= size;
            s.stride[last] = stride;
        } else {
            s.size[s.ndim] = size;
            s.stride[s.ndim++] = stride;
        }
    }
    return s;
}

struct cairn__seq cairn__seq_of(const struct cairn__view *v) {
    return cairn__seq_of_axes(v, UINT32_MAX);
}

/* ---- where elements are ---- */

struct place {
    char *at;
    int64_t index[CAIRN_MAX_DIMS];
};

static struct place place_of(const struct cairn__seq *s, size_t i) {
    struct place p = {.at = s->data};
    int64_t left = (int64_t)i;
    for (int d = s->ndim - 1; d > 0; d--) {
        p.index[d] = left % s->size[d];
        left /= s->size[d];
        p.at += p.index[d] * s->stride[d] * (int64_t)s->width;
    }
    if (s->ndim > 0) {
        p.index[0] = left;
        p.at += left * s->stride[0] * (int64_t)s->width;
    }
    return p;
}

/* On by n elements, which end at most with the row. */
static void advance(const struct cairn__seq *s, struct place *p, size_t n) {
    int d = s->ndim - 1;
    p->index[d] += (int64_t)n;
    p->at += (int64_t)n * s->stride[d] * (int64_t)s->width;
    for (; d > 0 && p->index[d] == s->size[d]; d--) {
        p->at += (s->stride[d - 1] - s->size[d] * s->stride[d]) * (int64_t)s->width;
        p->index[d] = 0;
        p->index[d - 1]++;
    }
}

void *cairn__seq_at(const struct cairn__seq *s, size_t i) {
    return place_of(s, i).at;
}

void *cairn__seq_dense(const struct cairn__seq *s, size_t start, size_t n) {
    if (n == 1) return cairn__seq_at(s, start);
    if (s->ndim == 0 || s->stride[s->ndim - 1] != 1) return NULL;
    if (s->ndim == 1) return s->data + start * s->width;
    const struct place p = place_of(s, start);
    return p.index[s->ndim - 1] + (int64_t)n <= s->size[s->ndim - 1] ? p.at : NULL;
}

/* ---- moving bits ---- */

/* One element again and again has a loop of its own, which compilers make vectors of. */
#define MOVE(T)                                                                            \
    do {                                                                                   \
        T *to = dst;                                                                       \
        const T *from = src, first = *from;                                                \
        if (dst_stride == 1 && src_stride == 0) {                                          \
            for (int64_t i = 0; i < count; i++) to[i] = first;                             \
        } else {                                                                           \
            for (int64_t i = 0; i < count; i++) to[i * dst_stride] = from[i * src_stride]; \
        }                                                                                  \
    } while (0)

void cairn__move(void *dst, int64_t dst_stride, const void *src, int64_t src_stride, size_t n, size_t width) {
    const int64_t count = (int64_t)n;
    if (n == 0) return;
    if (dst_stride == 1 && src_stride == 1) {
        memcpy(dst, src, n * width);
        return;
    }
    switch (width) {
    case 1:
        MOVE(uint8_t);
        break;
    case 2:
        MOVE(uint16_t);
        break;
    case 4:
        MOVE(uint32_t);
        break;
    default:
        MOVE(uint64_t);
        break;
    }
}

enum direction { GATHER, SCATTER };

/* Copies elements start..start+n-1 to `dense`, or from there. */
static void copy_rows(const struct cairn__seq *s, size_t start, size_t n, char *dense, enum direction direction) {
    const int last = s->ndim - 1;
    struct place p = place_of(s, start);
    while (n > 0) {
        const size_t left = (size_t)(s->size[last] - p.index[last]), run = n < left ? n : left;
        if (direction == GATHER) {
            cairn__move(dense, 1, p.at, s->stride[last], run, s->width);
        } else {
            cairn__move(p.at, s->stride[last], dense, 1, run, s->width);
        }
        dense += run * s->width;
        n -= run;
        if (n > 0) advance(s, &p, run);
    }
}

/* ---- into arithmetic and out of it ---- */

/* The one element that all of start..start+n-1 are; NULL where they are several. */
static const void *repeated(const struct cairn__seq *s, size_t start, size_t n) {
    if (s->ndim == 0 || s->stride[s->ndim - 1] != 0) return NULL;
    const struct place p = place_of(s, start);
    return p.index[s->ndim - 1] + (int64_t)n <= s->size[s->ndim - 1] ? p.at : NULL;
}

/* Filled for the whole row at once: its further blocks find it so. */
static const void *filled(cairn_dtype r, const struct cairn__seq *s, const void *element, size_t n,
                          struct cairn__seq_room *room) {
    void *wide = room->wide.room;
    if (room->filled == element && room->num_filled >= n) return wide;
    const size_t row = cairn__seq_row(s), count = row < CAIRN__BLOCK ? row : CAIRN__BLOCK;
    const double value = cairn__block_get(s->dtype, element);
    for (size_t i = 0; i < count; i++) cairn__put_r(r, wide, i, value);
    room->filled = element;
    room->num_filled = count;
    return wide;
}

const void *cairn__seq_load(const struct cairn__cpu *cpu, cairn_dtype r, const struct cairn__seq *s, size_t start,
                            size_t n, struct cairn__seq_room *room) {
    const void *x = cairn__seq_dense(s, start, n);
    if (!x) {
        const void *element = repeated(s, start, n);
        if (element) return filled(r, s, element, n, room);
        copy_rows(s, start, n, (char *)room->raw.room, GATHER);
        x = room->raw.room;
    }
    if (r != s->dtype) room->filled = NULL;
    return cairn__block_load(cpu, r, s->dtype, x, n, &room->wide);
}

void *cairn__seq_for(cairn_dtype r, const struct cairn__seq *s, size_t start, size_t n, struct cairn__seq_room *room) {
    void *dense = r == s->dtype ? cairn__seq_dense(s, start, n) : NULL;
    return dense ? dense : room->wide.room;
}

void cairn__seq_store(const struct cairn__cpu *cpu, cairn_dtype r, const struct cairn__seq *s, size_t start,
                      const void *values, size_t n, struct cairn__seq_room *room) {
    void *dense = cairn__seq_dense(s, start, n);
    if (dense == values) return;
    void *to = dense ? dense : room->raw.room;
    cairn__block_store(cpu, r, s->dtype, to, values, n);
    if (!dense) copy_rows(s, start, n, to, SCATTER);
}
