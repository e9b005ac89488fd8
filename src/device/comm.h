/* What a device's communication library does for groups whose ranks compute on such devices, a rank a device: NCCL for
 * GPUs. It is a module of its own (libcairn_nccl.so, device/cuda/nccl.c), opened when several ranks with GPUs meet: one
 * rank alone never loads NCCL. The rules of use, and what happens on failure, are comm/nccl's.
 *
 * A communicator has a stream of its own on the device, of higher priority than the device's. Its work runs in order,
 * concurrently with the device's stream; follow and await make one wait for the other, and the host waits for neither.
 * But calls that queue (follow, mark, await, the collectives) stand still while a queue of the device is full. */
#ifndef CAIRN__DEVICE_COMM_H
#define CAIRN__DEVICE_COMM_H

#include <stdbool.h>

#include "cairn/core.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cairn_device;
struct cairn__comm; /* one rank's end of a communicator */

/* Equal on all ranks of a communicator; plain bytes, which ranks exchange. */
struct cairn__comm_id {
    char bytes[128];
};

enum cairn__comm_op {
    CAIRN__COMM_SUM = 1,
    CAIRN__COMM_AVG, /* of integers the sum, wrapped, then divided and truncated; of floats as the library rounds */
    CAIRN__COMM_MIN,
    CAIRN__COMM_MAX,
    CAIRN__COMM_PROD,
};

struct cairn__comm_reduction {
    enum cairn__comm_op op;
    int halvings; /* of sums of f16 and bf16: each term is multiplied by 2^-halvings, exactly but for subnormals */
};

/* Marks of a communicator, by number: each is an event in its stream. */
enum { CAIRN__COMM_MARKS = 128 };

/* One thread at a time calls the functions of a communicator; await and passed: beside any other; state and abort: also
 * beside a call that stands in a full queue, as one does that has taken 2 s; the one of them not beside the other.
 * Errors, whose messages name the library's error and what to do: CAIRN_EINVAL usage; CAIRN_EPEER another rank failed,
 * or its connection; CAIRN_EDEVICE; CAIRN_ENOMEM; CAIRN_EINTERNAL. After one the communicator can be aborted and
 * closed. */
struct cairn__comm_ops {
    size_t size;                                /* sizeof(struct cairn__comm_ops) as built */
    const char *name;                           /* "nccl" */
    void (*version)(char *text, size_t nbytes); /* "NCCL 2.28.9" */
    /* Identifies device d on its machine: ranks of a machine with equal texts share a device. "0000:3b:00.0" */
    cairn_status (*place)(struct cairn_device *d, char *text, size_t nbytes);
    cairn_status (*unique_id)(struct cairn__comm_id *out);

    /* Begins to connect the ranks; ready once state is no longer busy. The caller closes *out unless it is NULL, also
     * after a failure. */
    cairn_status (*init)(struct cairn_device *d, const struct cairn__comm_id *id, int rank, int size,
                         struct cairn__comm **out);
    /* Without waiting: the first failure of a call or of running work. *busy: a call is still in progress in the
     * background, and only state and abort may be called. */
    cairn_status (*state)(struct cairn__comm *c, bool *busy);
    /* Begins an orderly shutdown; busy until all ranks are done, and no graph lives that recorded the communicator's
     * work. Nothing that is queued uses its memory any more, which is no longer registered. */
    void (*finalize)(struct cairn__comm *c);
    /* Ends running work at once, of graphs too; returns when no graph lives that recorded such. Other calls fail from
     * then on, but await, passed, free and close stay valid. */
    void (*abort)(struct cairn__comm *c);
    void (*close)(struct cairn__comm **c); /* finalized and not busy, or aborted, which it does itself otherwise */

    /* Memory of the device that is registered with the communicator, undefined, of a multiple of 4 bytes. CAIRN_ENOMEM
     * leaves the communicator as it is. free waits for what is queued. */
    cairn_status (*alloc)(struct cairn__comm *c, size_t nbytes, void **out);
    void (*free)(struct cairn__comm *c, void *memory);

    /* Calls between the two are launched as one; may be nested. */
    cairn_status (*group_begin)(struct cairn__comm *c);
    cairn_status (*group_end)(struct cairn__comm *c);

    /* As the collectives of cairn/dist.h: n elements of dtype a rank, n > 0. In place as there. */
    cairn_status (*all_reduce)(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype,
                               const struct cairn__comm_reduction *how);
    cairn_status (*reduce)(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype,
                           const struct cairn__comm_reduction *how, int root);
    cairn_status (*broadcast)(struct cairn__comm *c, void *x, size_t n, cairn_dtype dtype, int root);
    cairn_status (*all_gather)(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype);
    cairn_status (*reduce_scatter)(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype,
                                   const struct cairn__comm_reduction *how);
    cairn_status (*all_to_all)(struct cairn__comm *c, void *dst, const void *src, size_t n, cairn_dtype dtype);
    cairn_status (*send)(struct cairn__comm *c, const void *x, size_t n, cairn_dtype dtype, int to);
    cairn_status (*recv)(struct cairn__comm *c, void *x, size_t n, cairn_dtype dtype, int from);

    cairn_status (*follow)(struct cairn__comm *c); /* later work waits for what is queued on the device's stream */
    cairn_status (*mark)(struct cairn__comm *c, int mark);  /* here; not between group_begin and group_end */
    cairn_status (*await)(struct cairn__comm *c, int mark); /* the device's stream waits for the mark */
    cairn_status (*passed)(struct cairn__comm *c, int mark, bool *passed); /* it has run; not for a recorded mark */
};

/* Opens the module libcairn_<name>.so once. Errors: CAIRN_ENOTBUILT names the meson option; CAIRN_ESYSTEM;
 * CAIRN_EINTERNAL. */
cairn_status cairn__comm_find(const char *name, const struct cairn__comm_ops **out);

#ifdef __cplusplus
}
#endif

#endif
