/* Passes over lists of arrays, for programs that update their weights themselves: apex's amp_C, on the CPU and a GPU.
 *
 * Everything is queued on the environment's device and nothing waits; numbers that are read or written beside the
 * arrays (factor, norm, found) are in the device's memory, so that a step can be recorded (graph.h). On the CPU that is
 * memory of the program's. A list is cut into few launches, each over many arrays.
 *
 * Threads: as the environment. */
#ifndef CAIRN_MULTI_TENSOR_H
#define CAIRN_MULTI_TENSOR_H

#include "core.h"
#include "env.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One array of a list, in memory of the environment's device; a pass says which of them it uses. Types are the call's.
 * It has no struct_size: the calls hand its size over (core.h). */
typedef struct cairn_array {
    size_t n; /* elements; 0 is passed over */
    void *dst;
    const void *x;
    const float *y;
} cairn_array;

/* dst[i] = x[i] * factor, formed in f32 and rounded once.
 *
 *   arrays   [count], read during the call; dst may be x where the types are equal
 *   to, from f32, f16, bf16: the types of dst and x
 *   factor   1 element; NULL = 1
 *   found    |= 1 if a result is infinite or NaN; NULL = not wanted
 *
 * Errors: CAIRN_EINVAL NULL, a type, memory that is not aligned or not the device's, with the array's number;
 * CAIRN_ENOMEM; CAIRN_EDEVICE. Cost: one read of x, one write of dst. apex: amp_C.multi_tensor_scale */
CAIRN_API cairn_status cairn_multi_tensor_scale(cairn_env *env, const cairn_array *arrays, size_t count, cairn_dtype to,
                                                cairn_dtype from, const float *factor, uint32_t *found);

/* dst[i] = factor * x[i] + b * y[i]; y is f32, and may be dst. As scale otherwise. amp_C.multi_tensor_axpby */
CAIRN_API cairn_status cairn_multi_tensor_axpby(cairn_env *env, const cairn_array *arrays, size_t count, cairn_dtype to,
                                                cairn_dtype from, const float *factor, float b, uint32_t *found);

/* *norm = the L2 norm of x * factor over the whole list, f64 sums, within 6e-7 of it for half types and 1e-12 for f32;
 * norms[i] = that of array i. dst and y are not used.
 *
 *   norm     1 element
 *   norms    [count]; NULL = not wanted
 *   found    |= 1 if an x is infinite or NaN: norms are not finite then
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
