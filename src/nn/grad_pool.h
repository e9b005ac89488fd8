/* Memory for the gradients of results: allocated for the first contribution, released after the last read, and reused
 * by the gradients after it. Blocks lie in one reservoir that is kept between backwards. */
#ifndef CAIRN__NN_GRAD_POOL_H
#define CAIRN__NN_GRAD_POOL_H

#include "device/device.h"

/* Bytes in use, the most that ever were in use, and bytes held from the device. */
struct cairn__memory_use {
    size_t used, peak, held;
};

/* A block in use. Offsets count in an unbounded address space, of which the reservoir is the front. */
struct cairn__tensor_grad_block {
    void *data;
    size_t offset, nbytes;
    int holders;
    bool apart; /* beyond the reservoir: an allocation of its own */
};

struct cairn__tensor_grad_pool {
    struct cairn_device *device;
    char *reservoir;
    size_t reservoir_nbytes, wanted;         /* its size, and the largest end of a block so far */
    struct cairn__tensor_grad_block *blocks; /* in use, sorted by offset */
    size_t count, capacity;
    size_t used, peak;
};

/* Begins a backward: releases all blocks and grows the reservoir to what earlier backwards would have needed. */
void cairn__tensor_grad_pool_begin(struct cairn__tensor_grad_pool *pool);

/* 64-byte aligned device memory with one holder, undefined. Errors: CAIRN_ENOMEM; CAIRN_ESTATE if a graph is being
 * recorded and the reservoir is too small. */
cairn_status cairn__tensor_grad_pool_take(struct cairn__tensor_grad_pool *pool, size_t nbytes, void **out);

/* The number of holders of p; 0 for memory that is not the pool's. */
int cairn__tensor_grad_pool_holders(const struct cairn__tensor_grad_pool *pool, const void *p);

/* Adds or removes a holder; removing the last one releases the memory. Ignores memory that is not the pool's. */
void cairn__tensor_grad_pool_hold(struct cairn__tensor_grad_pool *pool, const void *p);
void cairn__tensor_grad_pool_drop(struct cairn__tensor_grad_pool *pool, const void *p);

struct cairn__memory_use cairn__tensor_grad_pool_use(const struct cairn__tensor_grad_pool *pool);

void cairn__tensor_grad_pool_end(struct cairn__tensor_grad_pool *pool);

#endif
