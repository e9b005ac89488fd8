/* Devices from inside: a table of functions that a backend implements, and the front that the rooms call.
 *
 * The CPU is always available; any other device is one more table. The front validates arguments, so backends do not. A
 * device has one stream: queued work runs in order, and only download, synchronize and free_pinned wait for it. */
#ifndef CAIRN__DEVICE_H
#define CAIRN__DEVICE_H

#include "cairn/device.h"
#include "device/math_passes.h"
#include "device/passes.h"

/* C[m, n] = op(A)[m, k] * op(B)[k, n] (+ bias[n] on every row), row-major and dense: A is [m, k], or [k, m] when
 * trans_a; B is [k, n], or [n, k] when trans_b. Products and their sums are f32, C is rounded once. Where
 * C is empty nothing is computed, not even row_sums. */
struct cairn__matmul {
    int64_t m, n, k;
    bool trans_a, trans_b;
    bool relu;            /* C = relu(C) before the rounding; a NaN stays NaN on the CPU, on a GPU it may become 0 */
    cairn_dtype in_type;  /* of A and B: f32, f16 or bf16 */
    cairn_dtype out_type; /* of C, bias and row_sums: f32, or in_type */
    const void *a, *b;
    const void *bias; /* NULL = none */
    void *c;
    void *row_sums; /* [m] = sum over k of op(A): a bias gradient; NULL = not wanted. On the CPU these are sums of
                       kernels.h: down A's columns if trans_a, else along its rows. Not written if C is empty */
};

/* What memory is used for, as an out-of-memory message lists it. */
#define CAIRN__HOLDER_LIST(X)                      \
    X(CAIRN__HOLDS_PARAMS, "parameters")           \
    X(CAIRN__HOLDS_GRADS, "gradients")             \
    X(CAIRN__HOLDS_OPTIM, "optimizer state")       \
    X(CAIRN__HOLDS_TENSORS, "tensors")             \
    X(CAIRN__HOLDS_TAPE, "results of the step")    \
    X(CAIRN__HOLDS_CASTS, "cast weights")          \
    X(CAIRN__HOLDS_SCRATCH, "scratch of products") \
    X(CAIRN__HOLDS_STATE, "flags and scalars")

enum cairn__holder {
#define CAIRN__X(holder, name) holder,
    CAIRN__HOLDER_LIST(CAIRN__X)
#undef CAIRN__X
        CAIRN__NUM_HOLDERS
};

/* "parameters" */
const char *cairn__holder_name(enum cairn__holder holder);

struct cairn__device_ops {
    size_t size;                                               /* sizeof(struct cairn__device_ops) as built */
    const char *name;                                          /* "cpu": in options and logs */
    cairn_status (*open)(struct cairn_device *d, int ordinal); /* fills d->passes and d->state */
    void (*close)(struct cairn_device *d);                     /* never fails; closes what a failed open made, too */
    cairn_status (*alloc)(struct cairn_device *d, enum cairn__holder holder, size_t nbytes, void **out);
    void (*free)(struct cairn_device *d, void *p); /* queued work may still use it */
    cairn_status (*alloc_pinned)(struct cairn_device *d, size_t nbytes,
                                 void **out);             /* zeroed; device and host read and write it */
    void (*free_pinned)(struct cairn_device *d, void *p); /* waits for queued work */
    cairn_status (*copy)(struct cairn_device *d, void *dst, const void *src,
                         size_t nbytes); /* device to device, queued */
    cairn_status (*upload)(struct cairn_device *d, void *dst, const void *host,
                           size_t nbytes); /* host may be reused at once */
    cairn_status (*download)(struct cairn_device *d, void *host, const void *src, size_t nbytes); /* waits */
    cairn_status (*synchronize)(struct cairn_device *d);
    cairn_status (*check)(
        struct cairn_device *d); /* returns and forgets the first failure of queued work; does not wait */
    cairn_status (*matmul)(struct cairn_device *d, const struct cairn__matmul *product);
    const char *(*describe)(const struct cairn_device *d); /* "avx512_bf16, oneDNN 2.6.2, 1 thread" */

    /* (optional, all or none: without them a graph's replay runs the step without recording it) */
    cairn_status (*capture_begin)(struct cairn_device *d);
    cairn_status (*capture_end)(struct cairn_device *d, void **graph); /* on failure *graph = NULL */
    cairn_status (*graph_launch)(struct cairn_device *d, void *graph);
    void (*graph_free)(struct cairn_device *d, void *graph);

    /* (optional, both or none: callers use upload) Queues a copy from host, which is memory of alloc_pinned. The caller
     * may write to host again after wait_upload of the ticket has returned. */
    cairn_status (*upload_pinned)(struct cairn_device *d, void *dst, const void *host, size_t nbytes, uint64_t *ticket);
    cairn_status (*wait_upload)(struct cairn_device *d, uint64_t ticket);

    /* (optional: NULL = passes can use any memory) Whether passes can use memory at p. */
    bool (*reaches)(struct cairn_device *d, const void *p);

    /* (optional, both or none: the device computes synchronously, in host memory) For cairn/interop_cuda.h. */
    void *(*stream)(struct cairn_device *d);                          /* also makes d the thread's current device */
    cairn_status (*set_stream)(struct cairn_device *d, void *stream); /* it waits for work queued on the old stream */

    /* (optional, all or none: a process has one such device) Several devices of this table. copy reaches the memory of
     * all of them. */
    int (*count)(struct cairn_device *d); /* that this process sees */
    /* Enables direct copies between the two devices if the machine supports them. Reads only other's ordinal. */
    void (*connect)(struct cairn_device *d, const struct cairn_device *other);
    /* Makes work queued on d later run after all work queued on other so far. */
    cairn_status (*wait_for)(struct cairn_device *d, struct cairn_device *other);
};

/* A resource besides memory that recorded work needs, such as the communicator of a group. It outlives the graphs that
 * recorded it, and is checked before each of their launches. */
struct cairn__recorded {
    int graphs;                                              /* number of live graphs that recorded it */
    cairn_status (*check)(struct cairn__recorded *recorded); /* an error fails the replay */
};

/* All such resources of one graph, each once. */
struct cairn__recorded_list {
    struct cairn__recorded **all;
    size_t count, capacity;
};

struct cairn_device {
    const struct cairn__device_ops *ops;
    const struct cairn__passes *passes;
    const struct cairn__math *math; /* NULL = the device has only the passes of passes.h */
    int ordinal;
    bool tf32;      /* f32 products may round their operands to 10 bits of fraction, where the device supports it */
    bool capturing; /* a graph is being recorded: queued work is recorded and does not run */
    size_t recorded_nodes; /* of the last graph: kernels, copies and clears */
    char refusal[256];     /* the first call that this recording refused, as an error message; "" = none */
    struct cairn__recorded_list *recorded; /* of the graph being recorded; NULL = none is */
    /* Of the graph being recorded, in device memory: the random stream that a launch begins with. Passes record the
     * distance of their stream from first_stream, the one that the recording began with. */
    const struct cairn__random_base *random_base;
    uint64_t first_stream;
    void *state; /* the backend's own */
};

/* Whether the device's memory is the host's, which reads and writes it in place. */
static inline bool cairn__is_on_host(const struct cairn_device *d) {
    return !d->ops->stream;
}

/* name: "cpu", "cuda", "cuda:1" (without a number, local_rank is it), or "auto": the GPU with number local_rank if
 * there is one, else the CPU, with the reason logged in one line.
 * Errors: CAIRN_EINVAL unknown name; CAIRN_ENOTBUILT names the meson option; CAIRN_ENOMEM; what open reports. */
cairn_status cairn__device_open(const char *name, int local_rank, struct cairn_device **out);
void cairn__device_close(struct cairn_device **device);

/* Whether this process has ever opened a GPU: its fork children cannot use a GPU then. */
bool cairn__device_gpu_was_open(void);

/* Called by operations that cannot be recorded. While a graph is being recorded, returns CAIRN_ESTATE with `advice` and
 * makes the recording fail, even if the step ignores the status. Otherwise returns CAIRN_OK. */
cairn_status cairn__device_refuse_recording(struct cairn_device *d, const char *advice);

/* Adds a resource to the graph being recorded; does nothing if none is. Errors: CAIRN_ENOMEM, which fails the
 * recording. */
cairn_status cairn__device_note_recorded(struct cairn_device *d, struct cairn__recorded *recorded);

/* 64-byte aligned, undefined memory. Errors: CAIRN_ESTATE while a graph is being recorded; CAIRN_ENOMEM, whose message
 * lists what memory is used for. */
cairn_status cairn__device_alloc(struct cairn_device *d, enum cairn__holder holder, size_t nbytes, void **out);
void cairn__device_free(struct cairn_device *d, void *p); /* NULL is fine */
cairn_status cairn__device_alloc_pinned(struct cairn_device *d, size_t nbytes, void **out);
/* While a graph is being recorded, logs an error and does not free p, because the graph may use it. */
void cairn__device_free_pinned(struct cairn_device *d, void *p);
cairn_status cairn__device_copy(struct cairn_device *d, void *dst, const void *src, size_t nbytes);
/* Upload and download return CAIRN_ESTATE while a graph is being recorded: replays would not repeat the copy. */
cairn_status cairn__device_upload(struct cairn_device *d, void *dst, const void *host, size_t nbytes);
/* As upload, but host is pinned memory that the device may read until cairn__device_wait_upload of *ticket has
 * returned. A ticket of 0 means that the copy is complete; waiting for it returns at once. */
cairn_status cairn__device_upload_pinned(struct cairn_device *d, void *dst, const void *host, size_t nbytes,
                                         uint64_t *ticket);
cairn_status cairn__device_wait_upload(struct cairn_device *d, uint64_t ticket);
cairn_status cairn__device_download(struct cairn_device *d, void *host, const void *src, size_t nbytes);
cairn_status cairn__device_synchronize(struct cairn_device *d);

/* For several devices of one kind in a process. count: how many of d's kind the process sees, at least 1. connect and
 * wait_for take two devices of one kind that no other thread is using; they do nothing on devices that compute in host
 * memory. */
int cairn__device_count(struct cairn_device *d);
void cairn__device_connect(struct cairn_device *d, const struct cairn_device *other);
cairn_status cairn__device_wait_for(struct cairn_device *d, struct cairn_device *other);

cairn_status cairn__device_check(struct cairn_device *d);
bool cairn__device_reaches(struct cairn_device *d, const void *p);
cairn_status cairn__device_matmul(struct cairn_device *d, const struct cairn__matmul *product);

#endif
