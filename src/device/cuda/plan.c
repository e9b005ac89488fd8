#include "device/cuda/plan.h"

#include <string.h>

static size_t elements(const struct cairn__plan *plan, size_t tensor) {
    size_t n;
    memcpy(&n, (const char *)plan->items + tensor * plan->stride, sizeof(n));
    return n;
}

bool cairn__plan_next(struct cairn__plan *plan, struct cairn__part *out) {
    struct cairn__span *span = &out->span;
    *span = (struct cairn__span){.chunk = plan->chunk, .done = plan->done};
    while (plan->next < plan->count && span->count < CAIRN__CUDA_LIST) {
        const size_t n = elements(plan, plan->next), all = n / plan->chunk + (n % plan->chunk != 0);
        const size_t left = all - plan->done, room = plan->max_blocks - span->blocks;
        const size_t taken = left <= room ? left : plan->whole ? 0 : room;
        if (all > 0 && taken == 0) break;
        if (all > 0 || plan->keep_empty) {
            span->blocks += (uint32_t)taken;
            span->ends[span->count] = span->blocks;
            out->index[span->count++] = plan->next;
        }
        plan->done += taken;
        if (plan->done < all) break;
        plan->next++;
        plan->done = 0;
    }
    return span->count > 0;
}

size_t cairn__plan_chunk(const struct cairn__plan *plan, size_t least, size_t most, size_t blocks) {
    size_t total = 0, chunk = least;
    for (size_t i = 0; i < plan->count; i++) {
        const size_t n = elements(plan, i);
        total = n > SIZE_MAX - total ? SIZE_MAX : total + n;
    }
    while (chunk < most && total / chunk > blocks) chunk *= 2;
    return chunk;
}
