/* Conversion of blocks of elements before and after arithmetic: any type to R (f32 or f64) and back. */
#ifndef CAIRN__CPU_BLOCKS_H
#define CAIRN__CPU_BLOCKS_H

#include "device/cpu/state.h"

/* Elements of a block; a few blocks of f64 fit in the L1 cache. */
enum { CAIRN__BLOCK = 1024 };

/* Room for one block of R. */
struct cairn__block {
    _Alignas(64) double room[CAIRN__BLOCK];
};

/* n <= CAIRN__BLOCK elements of x, of type t, as r: x itself if the types are equal, else converted into block. */
const void *cairn__block_load(const struct cairn__cpu *cpu, cairn_dtype r, cairn_dtype t, const void *x, size_t n,
                              struct cairn__block *block);

/* Where to compute r elements for dst: dst itself if the types are equal, else the block. */
static inline void *cairn__block_for(cairn_dtype r, cairn_dtype t, void *dst, struct cairn__block *block) {
    return r == t ? dst : block->room;
}
/* Writes values, of r, to dst, rounded. values: from cairn__block_for, or any R elements. */
void cairn__block_store(const struct cairn__cpu *cpu, cairn_dtype r, cairn_dtype t, void *dst, const void *values,
                        size_t n);

/* One element. */
double cairn__block_get(cairn_dtype t, const void *x);
void cairn__block_put(cairn_dtype t, void *dst, double value); /* rounded once */

#endif
