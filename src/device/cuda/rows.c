/* Passes over rows: softmax, dropout, rows by index. */
#include "device/cuda/rows.h"

#include <cuda_runtime_api.h>

#include <math.h>

#include "device/cuda/math_table.h"

void cairn__cuda_softmax(struct cairn_device *d, cairn_dtype t, void *y, const void *x, size_t rows, size_t n,
                         bool log) {
    if (rows == 0 || n == 0) return;
    cairn__cuda_queued(d, "softmax", cairn__launch_softmax(cairn__cuda_enter(d)->stream, t, y, x, rows, n, log));
}

void cairn__cuda_softmax_backward(struct cairn_device *d, cairn_dtype t, void *dx, const void *dy, const void *y,
                                  size_t rows, size_t n, bool log) {
    if (rows == 0 || n == 0) return;
    cairn__cuda_queued(d, "softmax_backward",
                       cairn__launch_softmax_backward(cairn__cuda_enter(d)->stream, t, dx, dy, y, rows, n, log));
}

/* A uniform is a multiple of 2^-24, so it is below p exactly if its integer is below p * 2^24, rounded up. */
void cairn__cuda_dropout(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n, double p,
                         uint64_t seed, uint64_t stream) {
    const struct cairn__random_stream random = cairn__cuda_random(d, seed, stream);
    if (n == 0) return;
    cairn__cuda_queued(d, "dropout",
                       cairn__launch_dropout(cairn__cuda_enter(d)->stream, t, dst, x, n, (uint32_t)ceil(p * 0x1p24),
                                             p < 1 ? 1 / (1 - p) : 0, &random));
}

void cairn__cuda_gather_rows(struct cairn_device *d, cairn_dtype t, void *y, const void *table, const void *index,
                             cairn_dtype index_dtype, size_t count, size_t table_rows, size_t n, uint32_t *bad_index) {
    if (count == 0 || n == 0) return;
    const struct cairn__cuda *c = cairn__cuda_enter(d);
    cairn__cuda_queued(d, "gather_rows",
                       cairn__launch_gather_rows(c->stream, y, table, index, index_dtype == CAIRN_I64, count,
                                                 table_rows, n * cairn_dtype_nbytes(t),
                                                 bad_index ? bad_index : &c->faults->index));
}

/* A stable sort of the indices, and its scratch: each pass swaps keys and order with their copies. */
struct sorting {
    uint32_t *keys[2], *order[2], *counts;
    size_t tile;
    double *left;
};

static size_t divided(size_t n, size_t by) {
    return n / by + (n % by != 0);
}

static bool take_room(struct cairn_device *d, size_t count, size_t n, struct sorting *s) {
    s->tile = divided(divided(count, CAIRN__SORT_MOST_TILES), CAIRN__CUDA_THREADS) * CAIRN__CUDA_THREADS;
    if (s->tile < CAIRN__SORT_LEAST_TILE) s->tile = CAIRN__SORT_LEAST_TILE;
    const size_t counts = CAIRN__SORT_DIGITS * divided(count, s->tile);
    uint32_t *words = cairn__cuda_room(d, CAIRN__ROOM_A, (4 * count + counts) * sizeof(uint32_t));
    s->left = cairn__cuda_room(d, CAIRN__ROOM_B, 2 * divided(count, CAIRN__SCATTER_SEGMENT) * n * sizeof(double));
    if (!words || !s->left) return false;
    s->keys[0] = words, s->keys[1] = words + count;
    s->order[0] = words + 2 * count, s->order[1] = words + 3 * count;
    s->counts = words + 4 * count;
    return true;
}

void cairn__cuda_scatter_rows(struct cairn_device *d, cairn_dtype t, void *dtable, const void *dy, const void *index,
                              cairn_dtype index_dtype, size_t count, size_t table_rows, size_t n, int64_t skip) {
    struct sorting s;
    if (table_rows == 0 || n == 0) return;
    if (cairn__cuda_refused(d, "scatter_rows",
                            count >> 32 || table_rows >= UINT32_MAX ? "2^32 rows or more are not sorted" : NULL))
        return;
    struct CUstream_st *stream = cairn__cuda_enter(d)->stream;
    int error = (int)cudaMemsetAsync(dtable, 0, table_rows * n * cairn_dtype_nbytes(t), stream);
    if (error == 0 && count > 0) {
        if (!take_room(d, count, n, &s)) return;
        int now = 0;
        /* Keys go up to table_rows, which is that of indices that add nothing. */
        error =
            cairn__launch_keys(stream, s.keys[0], s.order[0], index, index_dtype == CAIRN_I64, count, table_rows, skip);
        for (int shift = 0; shift < 32 && table_rows >> shift > 0 && error == 0; shift += 8, now = !now) {
            error = cairn__launch_sort_pass(stream, s.keys[!now], s.order[!now], s.keys[now], s.order[now], count,
                                            s.tile, s.counts, shift);
        }
        if (error == 0)
            error = cairn__launch_add_sorted(stream, t, dtable, dy, s.keys[now], s.order[now], count, table_rows, n,
                                             s.left);
    }
    cairn__cuda_queued(d, "scatter_rows", error);
}
