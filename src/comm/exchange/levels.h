/* Sums in two levels, for groups whose ranks share machines: first over the ranks of each machine, then over the
 * machines. All in f32, in the order of ranks within a machine, and of machines by their first ranks; one division and
 * one rounding at the end. Such a group computes every sum of f32, f16 and bf16 this way, whatever moves the bytes: an
 * element's bits depend neither on the call nor on its position. */
#ifndef CAIRN__COMM_LEVELS_H
#define CAIRN__COMM_LEVELS_H

#include "comm/nonfinite.h"

/* Which ranks are on one machine. */
struct exchange_layout {
    int machines;
    int *of;    /* [size] each rank's machine; numbered by their first ranks */
    int *ranks; /* [size] by machine, then in order */
    int *begin; /* [machines + 1] each machine's in ranks */
};

/* Equal keys are one machine. Errors: CAIRN_ENOMEM. */
cairn_status cairn__layout_make(const int *keys, int size, struct exchange_layout *out);
void cairn__layout_end(struct exchange_layout *layout);

static inline int cairn__layout_ranks_on(const struct exchange_layout *l, int machine) {
    return l->begin[machine + 1] - l->begin[machine];
}

/* dst [n] = the sum of srcs [count][n]. nonfinite (or NULL) gets those of ranks [count] whose source made it infinite
 * or NaN. */
void cairn__sum_of_machine(const struct cairn__kernels *kernels, cairn_dtype dtype, float *dst, const void *const *srcs,
                           const int *ranks, int count, size_t n, struct cairn__nonfinite *nonfinite);

/* dst [n] = the sum of partials [machines][n] / divisor, rounded to dtype. */
void cairn__sum_of_machines(const struct cairn__kernels *kernels, cairn_dtype dtype, void *dst,
                            const float *const *partials, int machines, size_t n, float divisor,
                            struct cairn__nonfinite *nonfinite);

/* Both at once, of every rank's array: srcs [size][n], one of which dst may be. */
void cairn__sum_in_levels(const struct cairn__kernels *kernels, const struct exchange_layout *layout, cairn_dtype dtype,
                          void *dst, const void *const *srcs, size_t n, float divisor,
                          struct cairn__nonfinite *nonfinite);

#endif
