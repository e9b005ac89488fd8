/* What a device's communication library does for groups whose ranks compute on such devices, a rank a device: NCCL for
 * GPUs. It is a module of its own (libcairn_nccl.so, device/cuda/nccl.c), opened when several ranks with GPUs form a
 * group: a single rank never loads NCCL. comm/nccl has the rules of use and the handling of failures.
 *
 * A communicator has a stream of its own on the device, of higher priority than the device's. Its work runs in order,
 * concurrently with the device's stream; follow and await make one wait for the other, and the host waits for neither.
 * However, calls that queue (follow, mark, await, the collectives) block while a queue of the device is full. */
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

/* The number of marks of a communicator, named 0 to 127: each is an event in its stream. */
enum { CAIRN__COMM_MARKS = 128 };

/* Threads: one thread at a time calls the functions of a communicator, with two exceptions. await and passed may run
 * concurrently with any other function. state and abort, though not both at once, may run concurrently with a call that
 * is blocked by a full queue; a call counts as blocked once it has taken 2 s.
 *
 * Errors: CAIRN_EINVAL usage; CAIRN_EPEER another rank or the connection to it failed; CAIRN_EDEVICE; CAIRN_ENOMEM;
 * CAIRN_EINTERNAL. Messages name the library's error and what to do. After an error the communicator can be aborted and
 * closed. */
struct cairn__comm_ops {
    size_t size;                                /* sizeof(struct cairn__comm_ops) as built */
    const char *name;                           /* "nccl" */
    void (*version)(char *text, size_t nbytes); /* "NCCL 2.28.9" */
    /* Identifies device d on its machine: ranks of a machine with equal texts share a device. "0000:3b:00.0" */
    cairn_status (*place)(struct cairn_device *d, char *text, size_t nbytes);
    cairn_status (*unique_id)(struct cairn__comm_id *out);

    /* Begins to connect the ranks; the communicator is ready once state is no longer busy. Unless *out is NULL, the
     * caller closes it, after a failure too. */
    cairn_status (*init)(struct cairn_device *d, const struct cairn__comm_id *id, int rank, int size,
                         struct cairn__comm **out);
    /* Returns the first failure of a call or of running work, without waiting. *busy: a call is still in progress in
     * the background, and only state and abort may be called. */
    cairn_status (*state)(struct cairn__comm *c, bool *busy);
    /* Begins an orderly shutdown. state is busy until all ranks are done and every graph that recorded the
     * communicator's work is destroyed. Deregisters the communicator's memory; no queued work may use it any more. */
    void (*finalize)(struct cairn__comm *c);
    /* Ends running work at once, that of graphs too. Returns when every graph that recorded the communicator's work is
     * destroyed. After that all calls fail but await, passed, free and close. */
    void (*abort)(struct cairn__comm *c);
    void (*close)(struct cairn__comm **c); /* aborts first, unless aborted or finalized and no longer busy */

    /* Undefined device memory that is registered with the communicator. nbytes: a multiple of 4. CAIRN_ENOMEM leaves
     * the communicator usable. free waits for queued work. */
    cairn_status (*alloc)(struct cairn__comm *c, size_t nbytes, void **out);
    void (*free)(struct cairn__comm *c, void *memory);

    /* Calls between the two are launched together. Pairs may be nested. */
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
    cairn_status (*mark)(struct cairn__comm *c, int mark);  /* queues it; not between group_begin and group_end */
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
