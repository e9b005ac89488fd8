/* How a list of tensors is divided among blocks, and among launches where it is longer than one launch takes.
 *
 * Every tensor is cut into chunks of equal size, its last one shorter; a block works on one chunk. A launch takes some
 * tensors one after the other, the first perhaps from the chunk where the launch before it stopped. */
#ifndef CAIRN__DEVICE_CUDA_PLAN_H
#define CAIRN__DEVICE_CUDA_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN__CUDA_LIST = 47, /* tensors in one launch: as many as fit 4 KB of arguments in an optimizer's list */
    CAIRN__CUDA_MAX_BLOCKS = 0x7fffffff, /* in one launch: a limit of CUDA */
};

/* One launch, as its blocks see it. */
struct cairn__span {
    uint32_t count, blocks;
    size_t chunk;                    /* elements */
    size_t done;                     /* chunks of tensor 0 that launches before took */
    uint32_t ends[CAIRN__CUDA_LIST]; /* blocks of tensors 0..t: block b belongs to the first t with b < ends[t] */
};

struct cairn__part {
    struct cairn__span span;
    size_t index[CAIRN__CUDA_LIST]; /* tensor t of the launch is index[t] of the list */
};

/* Set the first part, then call cairn__plan_next until it returns false. */
struct cairn__plan {
    const void *items; /* structs whose first member is size_t n */
    size_t stride;     /* bytes from one to the next */
    size_t count;
    size_t chunk;
    uint32_t max_blocks; /* of one launch */
    bool whole;          /* a tensor is never split among launches; each has at most max_blocks chunks */
    bool keep_empty;     /* empty tensors are listed too, with no block */

    size_t next, done; /* where the next launch begins: a tensor, and chunks of it; begin at 0 */
};

/* The next launch; false = there is none. Only keep_empty gives one without blocks. */
bool cairn__plan_next(struct cairn__plan *plan, struct cairn__part *out);

/* A chunk for the list: a power of two in [least, most], such that about `blocks` of them cover it. */
size_t cairn__plan_chunk(const struct cairn__plan *plan, size_t least, size_t most, size_t blocks);

#endif
