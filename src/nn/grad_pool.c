/* Gradients of results.
 *
 * Offsets are chosen by best fit among the gaps of an unbounded address space. A block within the reservoir needs no
 * allocation. A block beyond it is allocated apart, and the next backward begins with a reservoir that covers its
 * offset. Each backward begins with an empty pool, so equal backwards choose equal offsets: from the second or third on
 * nothing is allocated and nothing can fragment. The pool holds the extent of the blocks that live at one time, not the
 * sum of all. */
#include "nn/grad_pool.h"

#include <string.h>

#include "core/alloc.h"
#include "core/status.h"

static void free_apart(struct cairn__tensor_grad_pool *pool, const struct cairn__tensor_grad_block *block) {
    if (block->apart) cairn__device_free(pool->device, block->data);
}

void cairn__tensor_grad_pool_begin(struct cairn__tensor_grad_pool *pool) {
    for (size_t i = 0; i < pool->count; i++) free_apart(pool, &pool->blocks[i]); /* left by a failed backward */
    pool->count = 0;
    pool->used = 0;
    if (pool->wanted <= pool->reservoir_nbytes || pool->device->capturing) return;
    void *data = NULL;
    cairn__device_free(pool->device, pool->reservoir);
    pool->reservoir = NULL;
    pool->reservoir_nbytes = 0;
    /* If one large allocation fails, separate smaller ones may still succeed. */
    if (cairn__device_alloc(pool->device, CAIRN__HOLDS_TAPE, pool->wanted, &data) != CAIRN_OK) return;
    pool->reservoir = data;
    pool->reservoir_nbytes = pool->wanted;
}

/* The offset of a new block and, in *at, its index. */
static size_t best_gap(const struct cairn__tensor_grad_pool *pool, size_t nbytes, size_t *at) {
    size_t least = SIZE_MAX, offset = 0, end = 0;
    for (size_t i = 0; i < pool->count; i++) {
        const struct cairn__tensor_grad_block *b = &pool->blocks[i];
        const size_t gap = b->offset - end;
        if (gap >= nbytes && gap < least) {
            least = gap;
            offset = end;
            *at = i;
        }
        end = b->offset + b->nbytes;
    }
    if (least < SIZE_MAX) return offset;
    *at = pool->count;
    return end;
}

cairn_status cairn__tensor_grad_pool_take(struct cairn__tensor_grad_pool *pool, size_t nbytes, void **out) {
    REQUIRE(nbytes <= SIZE_MAX / 4, CAIRN_ENOMEM, "out of memory: a gradient of %zu bytes", nbytes);
    cairn_status st = CAIRN_OK;
    struct cairn__tensor_grad_block b = {.nbytes = (nbytes + CAIRN__ALIGN - 1) / CAIRN__ALIGN * CAIRN__ALIGN,
                                         .holders = 1};
    if (b.nbytes == 0) b.nbytes = CAIRN__ALIGN;
    size_t at = 0;
    TRY(cairn__grow((void **)&pool->blocks, &pool->capacity, pool->count + 1, sizeof(pool->blocks[0])));
    b.offset = best_gap(pool, b.nbytes, &at);
    b.apart = b.offset + b.nbytes > pool->reservoir_nbytes;
    if (b.apart) {
        TRY(cairn__device_alloc(pool->device, CAIRN__HOLDS_TAPE, b.nbytes, &b.data));
    } else {
        b.data = pool->reservoir + b.offset;
    }
    memmove(&pool->blocks[at + 1], &pool->blocks[at], (pool->count - at) * sizeof(b));
    pool->blocks[at] = b;
    pool->count++;
    pool->used += b.nbytes;
    if (pool->used > pool->peak) pool->peak = pool->used;
    if (b.offset + b.nbytes > pool->wanted) pool->wanted = b.offset + b.nbytes;
    *out = b.data;
out:
    return st;
}

/* A linear search: few gradients live at one time. */
static struct cairn__tensor_grad_block *find(const struct cairn__tensor_grad_pool *pool, const void *p) {
    for (size_t i = pool->count; i > 0; i--) {
        if (pool->blocks[i - 1].data == p) return &pool->blocks[i - 1];
    }
    return NULL;
}

int cairn__tensor_grad_pool_holders(const struct cairn__tensor_grad_pool *pool, const void *p) {
    const struct cairn__tensor_grad_block *b = find(pool, p);
    return b ? b->holders : 0;
}

void cairn__tensor_grad_pool_hold(struct cairn__tensor_grad_pool *pool, const void *p) {
    struct cairn__tensor_grad_block *b = find(pool, p);
    if (b) b->holders++;
}

void cairn__tensor_grad_pool_drop(struct cairn__tensor_grad_pool *pool, const void *p) {
    struct cairn__tensor_grad_block *b = find(pool, p);
    if (!b || --b->holders > 0) return;
    free_apart(pool, b);
    pool->used -= b->nbytes;
    const size_t after = pool->count - 1 - (size_t)(b - pool->blocks);
    memmove(b, b + 1, after * sizeof(*b));
    pool->count--;
}

struct cairn__memory_use cairn__tensor_grad_pool_use(const struct cairn__tensor_grad_pool *pool) {
    size_t held = pool->reservoir_nbytes;
    for (size_t i = 0; i < pool->count; i++) held += pool->blocks[i].apart ? pool->blocks[i].nbytes : 0;
    return (struct cairn__memory_use){pool->used, pool->peak, held};
}

void cairn__tensor_grad_pool_end(struct cairn__tensor_grad_pool *pool) {
    for (size_t i = 0; i < pool->count; i++) free_apart(pool, &pool->blocks[i]);
    cairn__device_free(pool->device, pool->reservoir);
    cairn__free(pool->blocks);
}
