/* What the files of the GPU device share. No CUDA type is used here, so that any C file can include it. */
#ifndef CAIRN__DEVICE_CUDA_CUDA_H
#define CAIRN__DEVICE_CUDA_CUDA_H

#include "device/cuda/launch.h"
#include "device/device.h"

struct CUstream_st; /* *cudaStream_t */
struct CUevent_st;  /* *cudaEvent_t */
struct cairn__cache;
struct cairn__products;
struct cairn__staging;

/* What kernels find in the values that they are given. In memory of the host that they reach, so that nobody waits to
 * learn of it: a call that has waited for the GPU anyway looks there, reports and lowers. Set to 1 by plain stores. */
struct cairn__cuda_faults {
    uint32_t index;  /* of an embedding: outside of the table */
    uint32_t target; /* of a class loss: neither a class nor to be ignored */
};

struct cairn__cuda {
    struct CUstream_st *stream;
    int ordinal;
    int arch;      /* compute capability: 90 */
    char name[16]; /* "cuda:0" */
    char text[400];
    struct CUstream_st *own;      /* stream, until the user sets another */
    struct CUevent_st *hand_over; /* after the old stream's work, when streams change */
    struct cairn__cache *cache;
    struct cairn__products *products;
    struct cairn__staging *staging;   /* NULL until the first upload */
    struct cairn__partials *partials; /* in device memory, CAIRN__CUDA_PARTIALS bytes, zeroed on open */

    struct {
        void *data;
        size_t nbytes;
    } rooms[4]; /* scratch of operations, by slot; math.h */

    struct cairn__cuda_faults *faults; /* pinned */

    /* The first failure of queued work, until cairn__device_check returns it. */
    cairn_status failed;
    char failure[256];
};

static inline struct cairn__cuda *cairn__cuda_of(struct cairn_device *d) {
    return (struct cairn__cuda *)d->state;
}

/* The same, and makes the GPU the thread's current one, which programs with several GPUs change. To be called before
 * any call of CUDA. */
struct cairn__cuda *cairn__cuda_enter(struct cairn_device *d);

/* Sets the last error from error (a cudaError_t, not 0), with advice. doing: "copying 40 bytes". */
cairn_status cairn__cuda_call_failed(const struct cairn__cuda *c, const char *doing, int error);

/* TRY for a call of CUDA's. */
#define TRY_CUDA(c, doing, call)                                             \
    do {                                                                     \
        const int error_ = (int)(call);                                      \
        if (error_ != 0) TRY(cairn__cuda_call_failed((c), (doing), error_)); \
    } while (0)

/* Keeps error (a cudaError_t, not 0) as the device's failure, unless it has one. what: "scale". */
void cairn__cuda_fail(struct cairn__cuda *c, const char *what, int error);

extern const struct cairn__device_ops cairn__cuda_ops;

/* ---- product.c ---- */

cairn_status cairn__products_create(struct cairn_device *d, struct cairn__products **out);
void cairn__products_destroy(struct cairn__products **products);
/* Products, so far, that took a pass more than they had to, and why. The first of each kind is logged for debugging. */
enum cairn__fallback {
    CAIRN__FALLBACK_BIAS,     /* the bias is not aligned (CAIRN__PRODUCT_EXTRA_ALIGN) */
    CAIRN__FALLBACK_ROW_SUMS, /* nor are the row sums */
    CAIRN__FALLBACK_EPILOGUE, /* cuBLASLt has no algorithm with the epilogue */
    CAIRN__FALLBACKS,
};
uint64_t cairn__products_fallbacks(const struct cairn__products *products, enum cairn__fallback kind);
cairn_status cairn__cuda_matmul(struct cairn_device *d, const struct cairn__matmul *product);
/* 130100 for 13.1 */
size_t cairn__products_version(void);

/* ---- staging.c ---- */

/* Copies from the host, whose memory may be reused at once. */
cairn_status cairn__cuda_stage(struct cairn__cuda *c, void *dst, const void *host, size_t nbytes);
/* No work may be queued. */
void cairn__staging_destroy(struct cairn__staging **staging);

/* ---- passes.c ---- */

/* Every pass, as kernels on the device's stream. */
extern const struct cairn__passes cairn__cuda_passes;

#endif
