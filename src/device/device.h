/* Devices from inside: a table of functions that a backend implements, and the front that the rooms call.
 *
 * The CPU is always available; each other device is one more table. The front validates arguments, backends do not. A
 * device has one stream: what is queued runs in order, and only download, synchronize and free_pinned wait for it. */
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
    bool relu;            /* C = relu(C) before the rounding; of a NaN the CPU makes a NaN, a GPU a NaN or 0 */
    cairn_dtype in_type;  /* of A and B: f32, f16 or bf16 */
    cairn_dtype out_type; /* of C, bias and row_sums: f32, or in_type */
    const void *a, *b;
    const void *bias; /* NULL = none */
    void *c;
    void *row_sums; /* [m] = sum over k of op(A): a bias gradient; NULL = not wanted. On the CPU sums of kernels.h:
                       down columns of A where trans_a, else along its rows. Where C is empty they are left alone */
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

    /* (optional, both or none: upload is all there is) Queued: host, which alloc_pinned gave, is read later, and may be
     * written again when wait_upload of the ticket has returned. */
    cairn_status (*upload_pinned)(struct cairn_device *d, void *dst, const void *host, size_t nbytes, uint64_t *ticket);
    cairn_status (*wait_upload)(struct cairn_device *d, uint64_t ticket);

    /* (optional: NULL = all memory can be used) Whether passes can use memory at p. */
    bool (*reaches)(struct cairn_device *d, const void *p);

    /* (optional, both or none: the device computes at once, in the host's memory) For cairn/interop_cuda.h. */
    void *(*stream)(struct cairn_device *d);                          /* the device is the thread's current one then */
    cairn_status (*set_stream)(struct cairn_device *d, void *stream); /* after the work queued on the old one */

    /* (optional, all or none: a process has one such device) Several devices of this table. copy reaches the memory of
     * all of them. */
    int (*count)(struct cairn_device *d); /* that this process sees */
    /* Copies between the two go directly from now on, where the machine has a way. Uses nothing of other but its
     * number. */
    void (*connect)(struct cairn_device *d, const struct cairn_device *other);
    /* What is queued on d from now on runs after what is queued on other now. */
    cairn_status (*wait_for)(struct cairn_device *d, struct cairn_device *other);
};

/* What recorded work needs beside memory, such as the communicator of a group. It outlives the graphs that have
 * recorded it, and is checked before each of their launches. */
struct cairn__recorded {
    int graphs;                                              /* alive that have */
    cairn_status (*check)(struct cairn__recorded *recorded); /* an error fails the replay */
};

/* All that one graph has recorded, each once. */
struct cairn__recorded_list {
    struct cairn__recorded **all;
    size_t count, capacity;
};

struct cairn_device {
    const struct cairn__device_ops *ops;
    const struct cairn__passes *passes;
    const struct cairn__math *math; /* NULL = the training step of passes.h alone */
    int ordinal;
    bool tf32;      /* f32 products may round their operands to 10 bits of fraction, where the device supports it */
    bool capturing; /* a graph is being recorded: queued work is recorded and does not run */
    size_t recorded_nodes; /* of the last graph: kernels, copies and clears */
    char refusal[256];     /* the first call that this recording refused, as an error message; "" = none */
    struct cairn__recorded_list *recorded; /* of the graph that is being recorded; NULL = there is none */
    /* Likewise, in device memory: where its launches find the streams that they begin with. Passes record how far their
     * stream is behind first_stream, which is that of the recording itself. */
    const struct cairn__random_base *random_base;
    uint64_t first_stream;
    void *state; /* the backend's own */
};

/* Whether the device's memory is the host's, which reads and writes it in place. */
static inline bool cairn__is_on_host(const struct cairn_device *d) {
    return !d->ops->stream;
}

/* "cpu", "cuda", "cuda:1" (without a number: that of local_rank), or "auto": the GPU of local_rank where there is one,
 * else the CPU with one line in the log that says why.
 * Errors: CAIRN_EINVAL unknown name; CAIRN_ENOTBUILT names the meson option; CAIRN_ENOMEM; what open reports. */
cairn_status cairn__device_open(const char *name, int local_rank, struct cairn_device **out);
void cairn__device_close(struct cairn_device **device);

/* Whether this process has ever opened a GPU, which a child of fork cannot use then. */
bool cairn__device_gpu_was_open(void);

/* Called by what cannot be recorded. While a graph is being recorded it returns CAIRN_ESTATE with `advice`, and the
 * recording fails whatever the step does with the status. CAIRN_OK otherwise. */
cairn_status cairn__device_refuse_recording(struct cairn_device *d, const char *advice);

/* Called by what is recorded while a graph is, and does nothing otherwise. Errors: CAIRN_ENOMEM, which fails the
 * recording. */
cairn_status cairn__device_note_recorded(struct cairn_device *d, struct cairn__recorded *recorded);

/* 64-byte aligned, undefined. While a graph is recorded: CAIRN_ESTATE. CAIRN_ENOMEM lists what memory is used for. */
cairn_status cairn__device_alloc(struct cairn_device *d, enum cairn__holder holder, size_t nbytes, void **out);
void cairn__device_free(struct cairn_device *d, void *p); /* NULL is fine */
cairn_status cairn__device_alloc_pinned(struct cairn_device *d, size_t nbytes, void **out);
/* While a graph is recorded, which may use p, this logs an error and keeps p. */
void cairn__device_free_pinned(struct cairn_device *d, void *p);
cairn_status cairn__device_copy(struct cairn_device *d, void *dst, const void *src, size_t nbytes);
/* While a graph is recorded, CAIRN_ESTATE: replays would not repeat a copy to or from the host. */
cairn_status cairn__device_upload(struct cairn_device *d, void *dst, const void *host, size_t nbytes);
/* The same from pinned memory, which the device may read until cairn__device_wait_upload of *ticket has returned: at
 * once for a ticket of 0, where the copy is over. */
cairn_status cairn__device_upload_pinned(struct cairn_device *d, void *dst, const void *host, size_t nbytes,
                                         uint64_t *ticket);
cairn_status cairn__device_wait_upload(struct cairn_device *d, uint64_t ticket);
cairn_status cairn__device_download(struct cairn_device *d, void *host, const void *src, size_t nbytes);
cairn_status cairn__device_synchronize(struct cairn_device *d);

/* Several devices of one kind in a process: how many of d's it sees, 1 at least. The others take two devices of a kind,
 * each in the hands of the calling thread; where they are the host's memory there is nothing to do. */
int cairn__device_count(struct cairn_device *d);
void cairn__device_connect(struct cairn_device *d, const struct cairn_device *other);
cairn_status cairn__device_wait_for(struct cairn_device *d, struct cairn_device *other);

cairn_status cairn__device_check(struct cairn_device *d);
bool cairn__device_reaches(struct cairn_device *d, const void *p);
cairn_status cairn__device_matmul(struct cairn_device *d, const struct cairn__matmul *product);

#endif
