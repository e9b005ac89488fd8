#include "comm/nonfinite.h"

#include <stdalign.h>
#include <string.h>

#include "core/dtype.h"

enum { CHUNK_NBYTES = 8 << 10 /* with two sources, in half a first-level cache */ };

static void look_at(const struct cairn__kernels *kernels, cairn_dtype dtype, const void *const *srcs, int p, size_t n,
                    struct cairn__ranks *ranks) {
    for (int r = 0; r < p; r++) {
        uint32_t found = 0;
        kernels->check[dtype](srcs[r], n, &found);
        if (found) cairn__ranks_add(ranks, r);
    }
}

void cairn__reduce_and_find_nonfinite(const struct cairn__kernels *kernels, enum cairn__reduction reduction,
                                      cairn_dtype dtype, void *const *dsts, int num_dsts, const void *const *srcs,
                                      int p, size_t n, float divisor, struct cairn__nonfinite *nonfinite) {
    const cairn__reduce_fn reduce = kernels->reduce[reduction][dtype];
    const size_t width = cairn_dtype_nbytes(dtype), most = CHUNK_NBYTES / width;
    alignas(64) char result[CHUNK_NBYTES];
    const void *from[CAIRN__MAX_RANKS];
    for (size_t i = 0; i < n; i += most) {
        const size_t count = n - i < most ? n - i : most;
        uint32_t here = 0;
        for (int r = 0; r < p; r++) from[r] = (const char *)srcs[r] + i * width;
        reduce((void *const[1]){result}, 1, from, p, count, divisor, &here);
        if (here) look_at(kernels, dtype, from, p, count, &nonfinite->ranks);
        for (int j = 0; j < num_dsts; j++) memcpy((char *)dsts[j] + i * width, result, count * width);
        nonfinite->found |= here;
    }
}
