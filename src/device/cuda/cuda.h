/* Shared by the files of the GPU device. Uses no CUDA type, so that any C file can include it. */
#ifndef CAIRN__DEVICE_CUDA_CUDA_H
#define CAIRN__DEVICE_CUDA_CUDA_H

#include "device/cuda/launch.h"
#include "device/device.h"

struct CUstream_st; /* *cudaStream_t */
struct CUevent_st;  /* *cudaEvent_t */
struct cairn__cache;
struct cairn__convs;
struct cairn__products;
struct cairn__staging;

/* Slots of scratch in device memory. Products (product.c) have slots of their own, because passes that use a slot call
 * them. */
enum cairn__room {
    CAIRN__ROOM_A,
    CAIRN__ROOM_B,
    CAIRN__ROOM_C,
    CAIRN__ROOM_D,
    CAIRN__ROOM_PRODUCT, /* f32, before its rounding */
    CAIRN__ROOM_OPERAND, /* widened for row sums */
    CAIRN__ROOMS,
};

struct cairn__scratch_room {
    void *data; /* NULL = none yet */
    size_t nbytes;
};

/* Flags of wrong values in operands, which kernels set to 1 by plain stores. They are in pinned host memory, so that
 * the host needs no extra wait: a call that has waited for the GPU anyway reads, reports and clears them. */
struct cairn__cuda_faults {
    uint32_t index;  /* an embedding's index is outside the table */
    uint32_t target; /* a class loss's target is neither a class nor ignore_index */
};

struct cairn__cuda {
    struct CUstream_st *stream;
    int ordinal;
    int arch;      /* compute capability: 90 */
    char name[16]; /* "cuda:0" */
    char text[400];
    struct CUstream_st *own;      /* our own stream, used until the user sets another */
    struct CUevent_st *hand_over; /* marks the end of the old stream's work when the stream changes */
    struct cairn__cache *cache;
    struct cairn__products *products;
    struct cairn__convs *convs;       /* NULL until the first convolution */
    struct cairn__staging *staging;   /* NULL until the first upload */
    struct cairn__partials *partials; /* in device memory, CAIRN__CUDA_PARTIALS bytes, zeroed on open */

    struct cairn__scratch_room rooms[CAIRN__ROOMS];
    struct cairn__cuda_faults *faults; /* pinned */

    /* The first failure of queued work, until cairn__device_check returns it. */
    cairn_status failed;
    char failure[256];
};

static inline struct cairn__cuda *cairn__cuda_of(struct cairn_device *d) {
    return (struct cairn__cuda *)d->state;
}

/* The same, and makes the GPU the thread's current one, which programs with several GPUs change. Must be called before
 * any CUDA call. */
struct cairn__cuda *cairn__cuda_enter(struct cairn_device *d);

/* Sets the last error from error (a cudaError_t, not 0), with advice. doing: "copying 40 bytes". */
cairn_status cairn__cuda_call_failed(const struct cairn__cuda *c, const char *doing, int error);

/* TRY for a CUDA call. */
#define TRY_CUDA(c, doing, call)                                             \
    do {                                                                     \
        const int error_ = (int)(call);                                      \
        if (error_ != 0) TRY(cairn__cuda_call_failed((c), (doing), error_)); \
    } while (0)

/* Keeps error (a cudaError_t, not 0) as the device's failure, unless it has one. what: "scale". */
void cairn__cuda_fail(struct cairn__cuda *c, const char *what, int error);

/* Keeps a wrong argument as the device's failure. complaint says what is wrong; NULL = nothing. Returns whether
 * something is. */
bool cairn__cuda_refused(struct cairn_device *d, const char *pass, const char *complaint);
/* Keeps a launcher's error, a cudaError_t, unless it is 0. */
void cairn__cuda_queued(struct cairn_device *d, const char *pass, int error);
/* Keeps the last error (cairn__fail's) unless status is CAIRN_OK. */
void cairn__cuda_kept(struct cairn_device *d, cairn_status status);

extern const struct cairn__device_ops cairn__cuda_ops;

/* ---- product.c ---- */

cairn_status cairn__products_create(struct cairn_device *d, struct cairn__products **out);
void cairn__products_destroy(struct cairn__products **products);
cairn_status cairn__cuda_matmul(struct cairn_device *d, const struct cairn__matmul *product);
/* 130100 for 13.1 */
size_t cairn__products_version(void);

/* ---- room.c ---- */

/* Scratch for one pass, at least nbytes, 512-byte aligned. Its contents last until the slot is taken again. Scratch
 * grows and is never freed, since recorded graphs write to it. Errors: CAIRN_ENOMEM; CAIRN_ESTATE it would have to grow
 * while a graph is being recorded. */
cairn_status cairn__cuda_take_room(struct cairn_device *d, enum cairn__room slot, size_t nbytes, void **out);
/* The same for passes, which have no status: on failure returns NULL, and the device keeps the failure. */
void *cairn__cuda_room(struct cairn_device *d, enum cairn__room slot, size_t nbytes);

/* ---- staging.c ---- */

/* Queues a copy from the host, whose memory may be reused at once. */
cairn_status cairn__cuda_stage(struct cairn__cuda *c, void *dst, const void *host, size_t nbytes);
/* Queues a copy from pinned memory, which may be reused once cairn__cuda_await_pinned of the ticket has returned. */
cairn_status cairn__cuda_stage_pinned(struct cairn__cuda *c, void *dst, const void *host, size_t nbytes,
                                      uint64_t *ticket);
cairn_status cairn__cuda_await_pinned(struct cairn__cuda *c, uint64_t ticket);
/* Precondition: no work is queued. */
void cairn__staging_destroy(struct cairn__staging **staging);

/* ---- passes.c ---- */

/* Every pass, as kernels on the device's stream. */
extern const struct cairn__passes cairn__cuda_passes;

#endif
