/* Devices from inside: a table of functions a backend fills, and the front that the rooms call.
 *
 * The CPU is always there. Another device is one more table; the front validates, backends trust. */
#ifndef CAIRN__DEVICE_H
#define CAIRN__DEVICE_H

#include "cairn/device.h"
#include "kernels/kernels.h"

/* C[m, n] = op(A)[m, k] * op(B)[k, n] (+ bias[n] on every row) (+ C), row-major and dense: A is [m, k], or [k, m] when
 * trans_a; B is [k, n], or [n, k] when trans_b. a_type = b_type is f32, f16 or bf16; products and sums are f32, C and bias
 * are f32. What a low-precision product would round is for the caller to round. */
struct cairn__matmul {
    int64_t m, n, k;
    bool trans_a, trans_b;
    bool accumulate;     /* add to C instead of overwriting it */
    cairn_dtype in_type; /* of A and B */
    const void *a, *b;
    const float *bias; /* NULL = none */
    float *c;
};

struct cairn__device_ops {
    size_t size;      /* sizeof(struct cairn__device_ops) as built */
    const char *name; /* "cpu": what users type, what logs print */
    cairn_status (*open)(struct cairn_device *d, int ordinal);
    void (*close)(struct cairn_device *d); /* never fails */
    cairn_status (*alloc)(struct cairn_device *d, size_t nbytes, void **out);
    void (*free)(struct cairn_device *d, void *p);
    cairn_status (*copy)(struct cairn_device *d, void *dst, const void *src, size_t nbytes);
    const struct cairn__kernels *(*kernels)(const struct cairn_device *d);
    cairn_status (*matmul)(struct cairn_device *d, const struct cairn__matmul *product);
    const char *(*describe)(const struct cairn_device *d); /* "avx512_bf16, oneDNN 2.6.2, 1 thread" */
};

struct cairn_device {
    const struct cairn__device_ops *ops;
    const struct cairn__kernels *kernels; /* of ops->kernels, kept because every op reads it */
    int ordinal;
    void *state; /* the backend's own */
};

/* "cpu", or a name whose backend this build lacks: CAIRN_ENOTBUILT says which meson option was off.
 * Errors: CAIRN_EINVAL unknown name; CAIRN_ENOMEM; what open reports. */
cairn_status cairn__device_open(const char *name, int ordinal, struct cairn_device **out);
void cairn__device_close(struct cairn_device **device);

cairn_status cairn__device_alloc(struct cairn_device *d, size_t nbytes, void **out); /* 64-byte aligned, undefined */
void cairn__device_free(struct cairn_device *d, void *p);                            /* NULL is fine */
cairn_status cairn__device_copy(struct cairn_device *d, void *dst, const void *src, size_t nbytes);
cairn_status cairn__device_matmul(struct cairn_device *d, const struct cairn__matmul *product);

#endif
