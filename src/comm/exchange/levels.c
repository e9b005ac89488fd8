#include "comm/exchange/levels.h"

#include <stdalign.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "core/status.h"

enum { CHUNK = 2048 /* elements: as f32, a quarter of a first-level cache */ };

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* ---- layout ---- */

cairn_status cairn__layout_make(const int *keys, int size, struct exchange_layout *out) {
    cairn_status st = CAIRN_OK;
    *out = (struct exchange_layout){0};
    TRY(cairn__calloc((size_t)size, sizeof(int), (void **)&out->of));
    TRY(cairn__calloc((size_t)size, sizeof(int), (void **)&out->ranks));
    TRY(cairn__calloc((size_t)size + 1, sizeof(int), (void **)&out->begin));
    int listed = 0;
    for (int first = 0; first < size; first++) {
        int before = 0;
        while (keys[before] != keys[first]) before++;
        if (before < first) continue;
        for (int r = first; r < size; r++) {
            if (keys[r] != keys[first]) continue;
            out->of[r] = out->machines;
            out->ranks[listed++] = r;
        }
        out->begin[++out->machines] = listed;
    }
out:
    return st;
}

void cairn__layout_end(struct exchange_layout *layout) {
    cairn__free(layout->of);
    cairn__free(layout->ranks);
    cairn__free(layout->begin);
    *layout = (struct exchange_layout){0};
}

/* ---- sums ---- */

static void add(const struct cairn__kernels *kernels, float *dst, const float *x, size_t n) {
    uint32_t ignored = 0;
    kernels->reduce[CAIRN__REDUCE_SUM][CAIRN_F32]((void *[]){dst}, 1, (const void *const[]){dst, x}, 2, n, 1, &ignored);
}

static void sum_chunk(const struct cairn__kernels *kernels, cairn_dtype dtype, float *dst, const void *const *srcs,
                      int count, size_t n) {
    alignas(64) float widened[CHUNK];
    uint32_t ignored = 0;
    if (dtype == CAIRN_F32) {
        kernels->reduce[CAIRN__REDUCE_SUM][CAIRN_F32]((void *[]){dst}, 1, srcs, count, n, 1, &ignored);
        return;
    }
    kernels->cast[dtype][CAIRN_F32](dst, srcs[0], n);
    for (int i = 1; i < count; i++) {
        kernels->cast[dtype][CAIRN_F32](widened, srcs[i], n);
        add(kernels, dst, widened, n);
    }
}

void cairn__sum_of_machine(const struct cairn__kernels *kernels, cairn_dtype dtype, float *dst, const void *const *srcs,
                           const int *ranks, int count, size_t n, struct cairn__nonfinite *nonfinite) {
    const void *from[CAIRN__MAX_RANKS];
    for (size_t i = 0; i < n; i += CHUNK) {
        const size_t m = smaller(CHUNK, n - i);
        uint32_t found = 0;
        for (int r = 0; r < count; r++) from[r] = (const char *)srcs[r] + i * cairn_dtype_nbytes(dtype);
        sum_chunk(kernels, dtype, dst + i, from, count, m);
        if (nonfinite) kernels->check[CAIRN_F32](dst + i, m, &found);
        for (int r = 0; r < count && found; r++) {
            uint32_t here = 0;
            kernels->check[dtype](from[r], m, &here);
            if (here) cairn__ranks_add(&nonfinite->ranks, ranks[r]);
        }
    }
}

void cairn__sum_of_machines(const struct cairn__kernels *kernels, cairn_dtype dtype, void *dst,
                            const float *const *partials, int machines, size_t n, float divisor,
                            struct cairn__nonfinite *nonfinite) {
    alignas(64) float sum[CHUNK];
    const void *from[CAIRN__MAX_RANKS];
    for (size_t i = 0; i < n; i += CHUNK) {
        const size_t m = smaller(CHUNK, n - i);
        void *const to = (char *)dst + i * cairn_dtype_nbytes(dtype);
        uint32_t found = 0;
        for (int k = 0; k < machines; k++) from[k] = partials[k] + i;
        kernels->reduce[CAIRN__REDUCE_SUM][CAIRN_F32]((void *[]){dtype == CAIRN_F32 ? to : sum}, 1, from, machines, m,
                                                      divisor, &found);
        if (dtype != CAIRN_F32) kernels->cast[CAIRN_F32][dtype](to, sum, m);
        if (nonfinite) kernels->check[dtype](to, m, &nonfinite->found);
    }
}

void cairn__sum_in_levels(const struct cairn__kernels *kernels, const struct exchange_layout *l, cairn_dtype dtype,
                          void *dst, const void *const *srcs, size_t n, float divisor,
                          struct cairn__nonfinite *nonfinite) {
    alignas(64) float total[CHUNK], partial[CHUNK];
    const void *from[CAIRN__MAX_RANKS];
    const float *const totals[] = {total};
    const size_t width = cairn_dtype_nbytes(dtype);
    for (size_t i = 0; i < n; i += CHUNK) {
        const size_t m = smaller(CHUNK, n - i);
        for (int k = 0; k < l->machines; k++) {
            const int *ranks = l->ranks + l->begin[k], count = cairn__layout_ranks_on(l, k);
            for (int r = 0; r < count; r++) from[r] = (const char *)srcs[ranks[r]] + i * width;
            cairn__sum_of_machine(kernels, dtype, k ? partial : total, from, ranks, count, m, nonfinite);
            if (k) add(kernels, total, partial, m);
        }
        cairn__sum_of_machines(kernels, dtype, (char *)dst + i * width, totals, 1, m, divisor, nonfinite);
    }
}
