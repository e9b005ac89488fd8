/* Pooling. */
#include "device/cuda/pool.h"

#include "device/cuda/math_table.h"

static const char *complaint_about(const struct cairn__pool *pool) {
    const cairn_dtype t = pool->dtype;
    if (t != CAIRN_F32 && t != CAIRN_F16 && t != CAIRN_BF16 && t != CAIRN_F64) return "the type is not a float";
    return NULL;
}

static size_t inputs_of(const struct cairn__pool *pool) {
    return (size_t)(pool->planes * pool->h * pool->w);
}

static size_t outputs_of(const struct cairn__pool *pool) {
    return (size_t)(pool->planes * pool->p * pool->q);
}

void cairn__cuda_pool(struct cairn_device *d, const struct cairn__pool *pool) {
    if (cairn__cuda_refused(d, "pool", complaint_about(pool))) return;
    if (inputs_of(pool) == 0 || outputs_of(pool) == 0) return;
    cairn__cuda_queued(d, "pool", cairn__launch_pool(cairn__cuda_enter(d)->stream, pool));
}

/* If there are no outputs, no input has a gradient. */
void cairn__cuda_pool_backward(struct cairn_device *d, const struct cairn__pool *pool) {
    if (cairn__cuda_refused(d, "pool_backward", complaint_about(pool))) return;
    if (inputs_of(pool) == 0) return;
    cairn__cuda_queued(d, "pool_backward", cairn__launch_pool_backward(cairn__cuda_enter(d)->stream, pool));
}
