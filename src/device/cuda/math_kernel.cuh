/* The basis of the kernels of math_passes.h, in addition to kernel.cuh: f64 elements, the type R of arithmetic, and
 * elements of views. */
#ifndef CAIRN__DEVICE_CUDA_MATH_KERNEL_CUH
#define CAIRN__DEVICE_CUDA_MATH_KERNEL_CUH

#include "device/cuda/axes.h"
#include "device/cuda/kernel.cuh"

/* A device function that is never inlined. */
#ifdef __CUDACC__
#define CAIRN__CALLED __device__ __noinline__
#else
#define CAIRN__CALLED
#endif

/* ---- f64 ---- */

/* R of an element type: what its arithmetic is in. */
template <class T> struct cairn__r_of { typedef float type; };
template <> struct cairn__r_of<double> { typedef double type; };

/* Calls use with a value of the element type: f32, f16, bf16 or f64. */
template <class Use> int cairn__with_math(cairn_dtype type, Use use) {
    return type == CAIRN_F64 ? use(double()) : cairn__with_float(type, use);
}

template <int V> CAIRN__DEVICE void cairn__widen(const double *x, double *y) {
#pragma unroll
    for (int k = 0; k < V; k++) y[k] = x[k];
}
template <int V> CAIRN__DEVICE void cairn__narrow(const double *x, double *y) {
#pragma unroll
    for (int k = 0; k < V; k++) y[k] = x[k];
}

/* One element as R, and back with one rounding. */
template <class T> CAIRN__DEVICE typename cairn__r_of<T>::type cairn__load(const T *x) {
    typename cairn__r_of<T>::type y;
    cairn__widen<1>(x, &y);
    return y;
}
template <class T> CAIRN__DEVICE void cairn__store(T *to, typename cairn__r_of<T>::type x) {
    cairn__narrow<1>(&x, to);
}

/* ---- elements of any type, told when the kernel runs ---- */

/* Integers, bytes and f64 are exact in double; where R is float, its types are the three float types and u8. */
template <class R> CAIRN__DEVICE R cairn__load_any(const void *x, cairn_dtype type, int64_t i) {
    switch (type) {
    case CAIRN_F32:
        return (R)((const float *)x)[i];
    case CAIRN_F16:
        return (R)cairn__load((const cairn__f16 *)x + i);
    case CAIRN_BF16:
        return (R)cairn__load((const cairn__bf16 *)x + i);
    case CAIRN_F64:
        return (R)((const double *)x)[i];
    case CAIRN_I64:
        return (R)((const long long *)x)[i];
    case CAIRN_I32:
        return (R)((const int *)x)[i];
    default:
        return (R)((const unsigned char *)x)[i];
    }
}

/* x rounded to an f32 that has its last bit set where bits were lost: rounding that to a half is rounding x
 * (core/convert.c). */
CAIRN__DEVICE float cairn__rounded_to_odd(double x) {
    const float y = (float)x;
    const uint32_t u = cairn__f32_bits(y);
    if ((double)y == x || y != y || u & 1) return y;
    return cairn__f32_from_bits(fabs((double)y) > fabs(x) ? u - 1 : u + 1);
}
CAIRN__DEVICE float cairn__rounded_to_odd(float x) {
    return x;
}

/* A sum, rounded once. */
template <class T> CAIRN__DEVICE void cairn__store_sum(T *to, double sum) {
    typedef typename cairn__r_of<T>::type R;
    cairn__store(to, sizeof(T) < sizeof(float) ? (R)cairn__rounded_to_odd(sum) : (R)sum);
}

/* As core/convert.h has it: one rounding, and integers cut towards zero that stop at their ends. */
template <class R> CAIRN__DEVICE void cairn__store_any(void *to, cairn_dtype type, int64_t i, R x) {
    const double exact = (double)x;
    switch (type) {
    case CAIRN_F32:
        ((float *)to)[i] = (float)x;
        break;
    case CAIRN_F16:
        cairn__store((cairn__f16 *)to + i, cairn__rounded_to_odd(x));
        break;
    case CAIRN_BF16:
        cairn__store((cairn__bf16 *)to + i, cairn__rounded_to_odd(x));
        break;
    case CAIRN_F64:
        ((double *)to)[i] = exact;
        break;
    case CAIRN_I64:
        ((long long *)to)[i] = x != x            ? 0
                               : exact >= 0x1p63 ? INT64_MAX
                               : exact < -0x1p63 ? INT64_MIN
                                                 : (long long)exact;
        break;
    case CAIRN_I32:
        ((int *)to)[i] = x != x ? 0 : exact >= 0x1p31 ? INT32_MAX : exact < -0x1p31 ? INT32_MIN : (int)exact;
        break;
    default:
        ((unsigned char *)to)[i] = x != 0;
    }
}

/* ---- places ---- */

/* Where element i of the axes lies in an operand, in elements. The loops are not written out for every number of axes,
 * which was most of the module: what takes the time is the division of each step, which waits for the last one. STEPS:
 * that are written out, where it saves registers. */
template <int STEPS = 1> CAIRN__DEVICE int64_t cairn__place(const cairn__axes &axes, int operand, size_t i) {
    int64_t at = 0;
    if (axes.n >> 32) {
#pragma unroll STEPS
        for (int d = axes.ndim - 1; d > 0; d--) {
            at += (int64_t)(i % (size_t)axes.size[d]) * axes.stride[operand][d];
            i /= (size_t)axes.size[d];
        }
    } else {
        uint32_t rest = (uint32_t)i;
#pragma unroll STEPS
        for (int d = axes.ndim - 1; d > 0; d--) {
            const uint32_t size = (uint32_t)axes.size[d], above = rest / size;
            at += (int64_t)(rest - above * size) * axes.stride[operand][d];
            rest = above;
        }
        i = rest;
    }
    return axes.ndim ? at + (int64_t)i * axes.stride[operand][0] : 0;
}

#endif
