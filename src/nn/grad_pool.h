/* Memory for the gradients of results: taken when the first contribution is made, given back when the last reader is
 * done, taken again by the next. It lies in one reservoir that is kept between backwards. */
#ifndef CAIRN__NN_GRAD_POOL_H
#define CAIRN__NN_GRAD_POOL_H

#include "device/device.h"

/* Bytes that are out, the most that ever were, and what is held for them. */
struct cairn__memory_use {
    size_t used, peak, held;
};

/* Memory that is out. Its place is one in an endless reservoir, of which the front is there. */
struct cairn__tensor_grad_block {
    void *data;
    size_t offset, nbytes;
    int holders;
    bool apart; /* beyond the front: an allocation of its own */
};

struct cairn__tensor_grad_pool {
    struct cairn_device *device;
    char *reservoir;
    size_t reservoir_nbytes, wanted;         /* as it is, and as large as places ever reached */
    struct cairn__tensor_grad_block *blocks; /* that are out, by offset */
    size_t count, capacity;
    size_t used, peak;
};

/* A backward begins: nothing is out, and the reservoir is made as large as the ones before would have needed it. */
void cairn__tensor_grad_pool_begin(struct cairn__tensor_grad_pool *pool);

/* 64-byte aligned device memory with one holder, undefined. Errors: CAIRN_ENOMEM; while a graph is recorded and the
 * reservoir is too small, CAIRN_ESTATE. */
cairn_status cairn__tensor_grad_pool_take(struct cairn__tensor_grad_pool *pool, size_t nbytes, void **out);

/* The holders of p; 0 for memory that is not the pool's. */
int cairn__tensor_grad_pool_holders(const struct cairn__tensor_grad_pool *pool, const void *p);

/* One holder more or fewer; the last one gives the memory back. Nothing for memory that is not the pool's. */
void cairn__tensor_grad_pool_hold(struct cairn__tensor_grad_pool *pool, const void *p);
void cairn__tensor_grad_pool_drop(struct cairn__tensor_grad_pool *pool, const void *p);

struct cairn__memory_use cairn__tensor_grad_pool_use(const struct cairn__tensor_grad_pool *pool);

void cairn__tensor_grad_pool_end(struct cairn__tensor_grad_pool *pool);

#endif
