/* Fused passes over lists of arrays, as apex's amp_C, for programs that update their weights themselves; on the CPU and
 * on GPUs.
 *
 * Calls queue work on the environment's device and do not wait. Scalars that they read or write (factor, norm, found)
 * are in device memory, so that a step can be recorded (graph.h); on the CPU that is the program's memory. A list is
 * processed in few launches, each over many arrays.
 *
 * Threads: as the environment. */
#ifndef CAIRN_MULTI_TENSOR_H
#define CAIRN_MULTI_TENSOR_H

#include "core.h"
#include "env.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One array of a list, in memory of the environment's device; each call says which pointers it uses. Types are
 * arguments of the call. It has no struct_size: the calls pass its size (core.h). */
typedef struct cairn_array {
    size_t n; /* elements; 0 is skipped */
    void *dst;
    const void *x;
    const float *y;
} cairn_array;

/* dst[i] = x[i] * factor, computed in f32 and rounded once.
 *
 *   arrays   [count], read during the call; dst may equal x if the types are equal
 *   to, from f32, f16, bf16: the types of dst and x
 *   factor   1 element; NULL = 1
 *   found    |= 1 if a result is infinite or NaN, otherwise unchanged; NULL = not wanted
 *
 * Errors: CAIRN_EINVAL NULL, a type, memory that is not aligned or not the device's, with the array's number;
 * CAIRN_ENOMEM; CAIRN_EDEVICE. Cost: one read of x, one write of dst. apex: amp_C.multi_tensor_scale */
CAIRN_API cairn_status cairn_multi_tensor_scale(cairn_env *env, const cairn_array *arrays, size_t count, cairn_dtype to,
                                                cairn_dtype from, const float *factor, uint32_t *found);

/* dst[i] = factor * x[i] + b * y[i]; y is f32 and may equal dst. Otherwise as scale. amp_C.multi_tensor_axpby */
CAIRN_API cairn_status cairn_multi_tensor_axpby(cairn_env *env, const cairn_array *arrays, size_t count, cairn_dtype to,
                                                cairn_dtype from, const float *factor, float b, uint32_t *found);

/* *norm = the L2 norm of x * factor over the whole list, from f64 sums, within 6e-7 of the exact one for half types and
 * 1e-12 for f32; norms[i] = that of array i. dst and y are not used.
 *
 *   norm     1 element
 *   norms    [count]; NULL = not wanted
 *   found    |= 1 if an x is infinite or NaN, and norms are then not finite; otherwise unchanged; NULL = not wanted
 *
 * Errors as scale. Cost: one read. amp_C.multi_tensor_l2norm; with a factor, multi_tensor_unscale_l2norm */
CAIRN_API cairn_status cairn_multi_tensor_l2norm(cairn_env *env, const cairn_array *arrays, size_t count,
                                                 cairn_dtype dtype, const float *factor, double *norm, double *norms,
                                                 uint32_t *found);

CAIRN_API cairn_status cairn_multi_tensor_scale_sized(size_t array_nbytes, cairn_env *env, const cairn_array *arrays,
                                                      size_t count, cairn_dtype to, cairn_dtype from,
                                                      const float *factor, uint32_t *found);
CAIRN_API cairn_status cairn_multi_tensor_axpby_sized(size_t array_nbytes, cairn_env *env, const cairn_array *arrays,
                                                      size_t count, cairn_dtype to, cairn_dtype from,
                                                      const float *factor, float b, uint32_t *found);
CAIRN_API cairn_status cairn_multi_tensor_l2norm_sized(size_t array_nbytes, cairn_env *env, const cairn_array *arrays,
                                                       size_t count, cairn_dtype dtype, const float *factor,
                                                       double *norm, double *norms, uint32_t *found);
#define cairn_multi_tensor_scale(...)  cairn_multi_tensor_scale_sized(sizeof(cairn_array), __VA_ARGS__)
#define cairn_multi_tensor_axpby(...)  cairn_multi_tensor_axpby_sized(sizeof(cairn_array), __VA_ARGS__)
#define cairn_multi_tensor_l2norm(...) cairn_multi_tensor_l2norm_sized(sizeof(cairn_array), __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
