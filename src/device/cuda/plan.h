/* Divides a list of tensors among blocks, and among several launches if it is too long for one.
 *
 * Every tensor is cut into chunks of equal size, of which the last may be shorter; a block works on one chunk. A launch
 * covers consecutive tensors of the list, and may begin within a tensor, at the chunk where the launch before
 * stopped. */
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
    size_t done;                     /* chunks of tensor 0 that earlier launches covered */
    uint32_t ends[CAIRN__CUDA_LIST]; /* blocks of tensors 0..t: block b works on the first t with b < ends[t] */
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

    size_t next, done; /* where the next launch begins: a tensor and a chunk of it; 0 at first */
};

/* *out: the next launch; returns false if there is none. Only with keep_empty may a launch have no blocks. */
bool cairn__plan_next(struct cairn__plan *plan, struct cairn__part *out);

/* A chunk size for the list: a power of two in [least, most], such that about `blocks` chunks cover the list. */
size_t cairn__plan_chunk(const struct cairn__plan *plan, size_t least, size_t most, size_t blocks);

#endif
