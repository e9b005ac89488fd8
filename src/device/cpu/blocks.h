/* Blocks of elements on their way into arithmetic and out of it: any type to R (f32 or f64) and back. */
#ifndef CAIRN__CPU_BLOCKS_H
#define CAIRN__CPU_BLOCKS_H

#include "device/cpu/state.h"

/* Elements of a block; a few of them as f64 stay in the first cache. */
enum { CAIRN__BLOCK = 1024 };

/* Room for one block of R. */
struct cairn__block {
    _Alignas(64) double room[CAIRN__BLOCK];
};

/* n <= CAIRN__BLOCK elements of x, of type t, as r: x itself where the types are equal, else converted into block. */
const void *cairn__block_load(const struct cairn__cpu *cpu, cairn_dtype r, cairn_dtype t, const void *x, size_t n,
                              struct cairn__block *block);

/* Where r elements for dst are to be made: dst itself where the types are equal, else the block; then */
static inline void *cairn__block_for(cairn_dtype r, cairn_dtype t, void *dst, struct cairn__block *block) {
    return r == t ? dst : block->room;
}
/* brings them there, rounded. values is what cairn__block_for gave, or any R. */
void cairn__block_store(const struct cairn__cpu *cpu, cairn_dtype r, cairn_dtype t, void *dst, const void *values,
                        size_t n);

/* One element. */
double cairn__block_get(cairn_dtype t, const void *x);
void cairn__block_put(cairn_dtype t, void *dst, double value); /* rounded once */

#endif
