/* Scratch that grows and stays: see cuda.h. */
#include "core/status.h"
#include "device/cuda/cache.h"
#include "device/cuda/cuda.h"

cairn_status cairn__cuda_take_room(struct cairn_device *d, enum cairn__room slot, size_t nbytes, void **out) {
    struct cairn__scratch_room *room = &cairn__cuda_of(d)->rooms[slot];
    if (nbytes <= room->nbytes && room->data) {
        *out = room->data;
        return CAIRN_OK;
    }
    REQUIRE(!d->capturing, CAIRN_ESTATE,
            "a graph is being recorded on cuda: an operation needs scratch memory; the step must do the same in every "
            "call");
    /* Doubling: outgrown scratch, which graphs may use, is less than what is in use. */
    struct cairn__cache *cache = cairn__cuda_enter(d)->cache;
    size_t taken = nbytes > 2 * room->nbytes ? nbytes : 2 * room->nbytes;
    void *p = NULL;
    cairn_status st = cairn__cache_alloc(cache, CAIRN__HOLDS_SCRATCH, taken, &p);
    if (st == CAIRN_ENOMEM && taken > nbytes) {
        taken = nbytes;
        st = cairn__cache_alloc(cache, CAIRN__HOLDS_SCRATCH, taken, &p);
    }
    if (st != CAIRN_OK) return st;
    *room = (struct cairn__scratch_room){p, taken};
    *out = p;
    return CAIRN_OK;
}

void *cairn__cuda_room(struct cairn_device *d, enum cairn__room slot, size_t nbytes) {
    void *data = NULL;
    cairn__cuda_kept(d, cairn__cuda_take_room(d, slot, nbytes, &data));
    return data;
}
