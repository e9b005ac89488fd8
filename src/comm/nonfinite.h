/* Finds the ranks whose source made a reduction's result infinite or NaN. A reduction in place overwrites the sources,
 * so they are checked before the result is stored. */
#ifndef CAIRN__COMM_NONFINITE_H
#define CAIRN__COMM_NONFINITE_H

#include "kernels/kernels.h"

/* The outcome, over one or several reductions. */
struct cairn__nonfinite {
    uint32_t found;            /* a result was infinite or NaN */
    uint32_t unused;           /* no padding: the struct is sent as bytes */
    struct cairn__ranks ranks; /* ranks whose sources were, too; empty = only the sum overflowed */
};

/* nonfinite |= others */
static inline void cairn__nonfinite_unite(struct cairn__nonfinite *nonfinite, const struct cairn__nonfinite *others) {
    nonfinite->found |= others->found;
    cairn__ranks_unite(&nonfinite->ranks, &others->ranks);
}

/* kernels->reduce of srcs [p][n] into dsts [num_dsts], bit for bit. Works on a few KiB at a time: reduces them into
 * scratch memory, checks the sources if a result is not finite, then copies the results to dsts. A rank is added if
 * its source has an infinite or NaN element within the same few KiB as such a result. f32, f16, bf16. Cost: between two
 * cores and in place a third more time than the plain kernel. */
void cairn__reduce_and_find_nonfinite(const struct cairn__kernels *kernels, enum cairn__reduction reduction,
                                      cairn_dtype dtype, void *const *dsts, int num_dsts, const void *const *srcs,
                                      int p, size_t n, float divisor, struct cairn__nonfinite *nonfinite);

#endif
