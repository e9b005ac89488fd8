/* Uploads through pinned memory: host memory is copied into a slot of a ring, and from there by the stream. So the
 * caller may reuse its memory at once, pinned or not, and an upload waits for nothing but the copy out of the next
 * slot. Uploads are refused while a graph is recorded, so no recording uses the ring. */
#include <cuda_runtime_api.h>

#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "device/cuda/cuda.h"

enum { SLOTS = 4, SLOT_NBYTES = 1 << 20 };

struct cairn__staging {
    char *slots;              /* SLOTS * SLOT_NBYTES, pinned */
    cudaEvent_t taken[SLOTS]; /* the last copy out of each */
    unsigned next;
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
