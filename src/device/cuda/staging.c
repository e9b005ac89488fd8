/* Uploads through pinned memory: host memory is copied to a slot of a ring, and the stream copies from there. So the
 * caller may reuse its memory at once, pinned or not, and an upload waits only for the copy out of the next slot.
 * Uploads are refused while a graph is being recorded, so no recording uses the ring. */
#include <cuda_runtime_api.h>

#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "device/cuda/cuda.h"

enum { SLOTS = 4, SLOT_NBYTES = 1 << 20, TICKETS = 64 };

struct cairn__staging {
    char *slots;              /* SLOTS * SLOT_NBYTES, pinned */
    cudaEvent_t taken[SLOTS]; /* marks the last copy out of each slot */
    unsigned next;
    cudaEvent_t read[TICKETS]; /* copies out of others' pinned memory: ticket t's is read[t % TICKETS] */
    uint64_t tickets;          /* so far; the first is 1 */
};

static cairn_status create(struct cairn__cuda *c) {
    cairn_status st = CAIRN_OK;
    struct cairn__staging *s = NULL;
    TRY(cairn__calloc(1, sizeof(*s), (void **)&s));
    TRY_CUDA(c, "pinning memory for uploads",
             cudaHostAlloc((void **)&s->slots, SLOTS * SLOT_NBYTES, cudaHostAllocPortable));
    for (int i = 0; i < SLOTS; i++) {
        TRY_CUDA(c, "making an event", cudaEventCreateWithFlags(&s->taken[i], cudaEventDisableTiming));
    }
    for (int i = 0; i < TICKETS; i++) {
        TRY_CUDA(c, "making an event", cudaEventCreateWithFlags(&s->read[i], cudaEventDisableTiming));
    }
    c->staging = s;
    return CAIRN_OK;
out:
    cairn__staging_destroy(&s);
    return st;
}

void cairn__staging_destroy(struct cairn__staging **staging) {
    struct cairn__staging *s = *staging;
    if (!s) return;
    for (int i = 0; i < SLOTS; i++) {
        if (s->taken[i]) (void)cudaEventDestroy(s->taken[i]);
    }
    for (int i = 0; i < TICKETS; i++) {
        if (s->read[i]) (void)cudaEventDestroy(s->read[i]);
    }
    if (s->slots) (void)cudaFreeHost(s->slots);
    cairn__free(s);
    *staging = NULL;
}

/* Queries first, so that only calls that wait are counted as such. */
static cudaError_t wait_for(cudaEvent_t event) {
    const cudaError_t error = cudaEventQuery(event);
    if (error != cudaErrorNotReady) return error;
    (void)cudaGetLastError();
    return cudaEventSynchronize(event);
}

cairn_status cairn__cuda_stage(struct cairn__cuda *c, void *dst, const void *host, size_t nbytes) {
    static const char doing[] = "copying from the host";
    cairn_status st = CAIRN_OK;
    if (!c->staging) TRY(create(c));
    for (size_t done = 0, piece = 0; done < nbytes; done += piece) {
        const unsigned i = c->staging->next;
        char *slot = c->staging->slots + (size_t)i * SLOT_NBYTES;
        piece = nbytes - done < SLOT_NBYTES ? nbytes - done : SLOT_NBYTES;
        TRY_CUDA(c, doing, wait_for(c->staging->taken[i]));
        memcpy(slot, (const char *)host + done, piece);
        TRY_CUDA(c, doing, cudaMemcpyAsync((char *)dst + done, slot, piece, cudaMemcpyHostToDevice, c->stream));
        TRY_CUDA(c, doing, cudaEventRecord(c->staging->taken[i], c->stream));
        c->staging->next = (i + 1) % SLOTS;
    }
out:
    return st;
}

cairn_status cairn__cuda_stage_pinned(struct cairn__cuda *c, void *dst, const void *host, size_t nbytes,
                                      uint64_t *ticket) {
    static const char doing[] = "copying from pinned memory";
    cairn_status st = CAIRN_OK;
    if (!c->staging) TRY(create(c));
    TRY_CUDA(c, doing, cudaMemcpyAsync(dst, host, nbytes, cudaMemcpyHostToDevice, c->stream));
    const uint64_t mine = ++c->staging->tickets;
    TRY_CUDA(c, doing, cudaEventRecord(c->staging->read[mine % TICKETS], c->stream));
    *ticket = mine;
out:
    return st;
}

/* The event may be that of a later ticket by now, which the stream reaches after this one. */
cairn_status cairn__cuda_await_pinned(struct cairn__cuda *c, uint64_t ticket) {
    cairn_status st = CAIRN_OK;
    TRY_CUDA(c, "waiting for a copy from pinned memory", wait_for(c->staging->read[ticket % TICKETS]));
out:
    return st;
}
