/* Convolutions by NVIDIA's cuDNN, which conv.c tries before im2col. cuDNN is optional and takes half a gigabyte, so it
 * is in a module of its own (libcairn_cudnn.so), which the first convolution on a device opens.
 *
 * A problem is one of the three products between src [n, c, h, w], weights [k, c / groups, r, s] and dst [n, k, p, q]
 * in conv.c: one array is computed from the other two. Sums are f32, rounded once, and results are deterministic. */
#ifndef CAIRN__DEVICE_CUDA_CONVS_H
#define CAIRN__DEVICE_CUDA_CONVS_H

#include <stddef.h>
#include <stdint.h>

#include "cairn/core.h"

struct CUstream_st;
struct cairn_device;
struct cairn__convs;

enum cairn__conv_part { CAIRN__CONV_SRC = 1, CAIRN__CONV_WEIGHTS, CAIRN__CONV_DST };

/* Everything an algorithm depends on. Compared as bytes: no padding. */
struct cairn__conv_key {
    int64_t n, c, h, w, k, r, s, p, q, groups; /* all > 0 */
    int64_t stride[2], padding[2], dilation[2];
    uint8_t part; /* enum cairn__conv_part: the array that is written */
    uint8_t type; /* cairn_dtype: f32, f16, bf16 */
    uint8_t tf32; /* f32 operands may be rounded to 10 bits of fraction */
    uint8_t bias; /* dst = round(sum + bias[k]) */
    uint8_t unused[4];
};

struct cairn__conv_arrays {
    void *src, *weights, *dst;
    const void *bias; /* NULL = none */
};

/* Runs the convolution that the key describes. Errors: CAIRN_ENOTSUP nothing is queued and the caller must use im2col
 * (counted, and logged the first time for each reason); CAIRN_ESTATE it has not run before and a graph is being
 * recorded; CAIRN_EDEVICE the library failed. */
cairn_status cairn__convs_write(struct cairn_device *d, const struct cairn__conv_key *key,
                                const struct cairn__conv_arrays *arrays);
void cairn__convs_destroy(struct cairn__convs **convs);

/* ---- the module's table ---- */

#define CAIRN__CONV_LIBRARY "convolution library" /* its kind (device/module.h) */

struct cairn__conv_handle;
struct cairn__conv_plan;

struct cairn__conv_library {
    size_t size; /* sizeof(struct cairn__conv_library) as built */
    /* Opens the library on the current GPU; may allocate and wait. *version: "cuDNN 9.19". Errors: CAIRN_ENOTSUP the
     * library is too old; CAIRN_EDEVICE. */
    cairn_status (*open)(struct cairn__conv_handle **out, char *version, size_t nbytes);
    void (*close)(struct cairn__conv_handle **handle);
    /* *workspace: bytes that run needs. Errors: CAIRN_ENOTSUP the library does not support it; CAIRN_EDEVICE. */
    cairn_status (*plan)(struct cairn__conv_handle *handle, const struct cairn__conv_key *key,
                         struct cairn__conv_plan **out, size_t *workspace);
    void (*drop)(struct cairn__conv_plan **plan);
    /* Queues it, without allocating or waiting. Arrays are aligned to CAIRN__CONV_ALIGN bytes. Errors: as plan. */
    cairn_status (*run)(struct cairn__conv_handle *handle, const struct cairn__conv_plan *plan,
                        struct CUstream_st *stream, const struct cairn__conv_arrays *arrays, void *workspace,
                        size_t nbytes);
};

/* Bytes: cuDNN documents no alignment of these calls' arrays, and its kernels read 16 bytes at a time. */
enum { CAIRN__CONV_ALIGN = 16 };

#endif
