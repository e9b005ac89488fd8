/* The GPU as a device, from inside: what its files share. No CUDA type is named here, so that any C file may read
 * it. */
#ifndef CAIRN__DEVICE_CUDA_CUDA_H
#define CAIRN__DEVICE_CUDA_CUDA_H

#include "device/cuda/launch.h"
#include "device/device.h"

struct CUstream_st; /* *cudaStream_t */
struct CUevent_st;  /* *cudaEvent_t */
struct cairn__cache;
struct cairn__products;
struct cairn__staging;

struct cairn__cuda {
    struct CUstream_st *stream;
    int ordinal;
    int arch;      /* compute capability: 90 */
    char name[16]; /* "cuda:0" */
    char text[400];
    struct CUstream_st *own;      /* stream, until the user gives another */
    struct CUevent_st *hand_over; /* the last of the old stream's work, when streams change */
    struct cairn__cache *cache;
    struct cairn__products *products;
    struct cairn__staging *staging;   /* NULL until something is uploaded */
    struct cairn__partials *partials; /* in device memory, CAIRN__CUDA_PARTIALS bytes, zeroed when it was made */

    /* The first failure of what was queued, until cairn__device_check tells it. */
    cairn_status failed;
    char failure[256];
};

static inline struct cairn__cuda *cairn__cuda_of(struct cairn_device *d) {
    return (struct cairn__cuda *)d->state;
}

/* The same, and the GPU is the thread's current one from then on: programs with several GPUs change it. Whatever calls
 * CUDA begins with this. */
struct cairn__cuda *cairn__cuda_enter(struct cairn_device *d);

/* Tells error (a cudaError_t, not 0) as the last error, with what to do about it. doing: "copying 40 bytes". */
cairn_status cairn__cuda_told(const struct cairn__cuda *c, const char *doing, int error);

/* TRY for a call of CUDA's. */
#define TRY_CUDA(c, doing, call)                                      \
    do {                                                              \
        const int error_ = (int)(call);                               \
        if (error_ != 0) TRY(cairn__cuda_told((c), (doing), error_)); \
    } while (0)

/* Keeps error (a cudaError_t, not 0) as the device's failure, unless there is one already. what: "scale". */
void cairn__cuda_fail(struct cairn__cuda *c, const char *what, int error);

extern const struct cairn__device_ops cairn__cuda_ops;

/* ---- product.c ---- */

cairn_status cairn__products_create(struct cairn_device *d, struct cairn__products **out);
void cairn__products_destroy(struct cairn__products **products);
cairn_status cairn__cuda_matmul(struct cairn_device *d, const struct cairn__matmul *product);
/* 130100 for 13.1 */
size_t cairn__products_version(void);

/* ---- staging.c ---- */

/* Copies from the host, whose memory may be reused at once. */
cairn_status cairn__cuda_stage(struct cairn__cuda *c, void *dst, const void *host, size_t nbytes);
/* Nothing is queued any more. */
void cairn__staging_destroy(struct cairn__staging **staging);

/* ---- passes.c ---- */

/* Every pass, as kernels on the device's stream. */
extern const struct cairn__passes cairn__cuda_passes;

#endif
