/* Random numbers: each thread makes the four of a Philox block, the CPU's bits. */
#include "core/philox.h"
#include "device/cuda/kernel.cuh"

enum { BLOCK = 4, BLOCKS_OF_A_THREAD = 2 };

/* What a block of Philox gives. */
struct normals {
    CAIRN__DEVICE void operator()(cairn__philox_block block, float (&values)[BLOCK]) const {
        cairn__normal4(block, values);
    }
};

struct uniforms {
    float bound;
    CAIRN__DEVICE void operator()(cairn__philox_block block, float (&values)[BLOCK]) const {
#pragma unroll
        for (int k = 0; k < BLOCK; k++) values[k] = bound * (2.0f * cairn__uniform(block.word[k]) - 1.0f);
    }
};

template <class T, class F> struct random_op {
    T *dst;
    uint64_t seed, number;
    F f;
    template <int V> struct in {};
    template <int V> CAIRN__DEVICE void read(size_t, in<V> *) const {}
    /* V is the whole block, or one element of it. */
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &) const {
        float values[BLOCK];
        f(cairn__philox(seed, i / BLOCK, number), values);
        T y[BLOCK];
        cairn__narrow<BLOCK>(values, y);
        if constexpr (V == BLOCK) {
            cairn__write<BLOCK>(dst + i, y);
        } else {
#pragma unroll
            for (int k = 0; k < BLOCK; k++) {
                if (i % BLOCK == (unsigned)k) dst[i] = y[k];
            }
        }
    }
};

template <class T, class F> static CAIRN__KERNEL random_tensor(T *dst, size_t n, uint64_t seed, uint64_t number, F f) {
    random_op<T, F> op = {dst, seed, number, f};
    cairn__walk_tensor<BLOCK, BLOCKS_OF_A_THREAD>(cairn__aligned<BLOCK>(dst), n, op);
}

template <class F>
static int launch_random(struct CUstream_st *stream, cairn_dtype t, void *dst, size_t n, uint64_t seed, uint64_t number,
                         F f) {
    return cairn__with_float(t, [&](auto e) {
        typedef decltype(e) T;
        return cairn__launch(random_tensor<T, F>, cairn__tensor_blocks<BLOCK, BLOCKS_OF_A_THREAD>(n),
                             CAIRN__CUDA_THREADS, stream, (T *)dst, n, seed, number, f);
    });
}

int cairn__launch_normal(struct CUstream_st *stream, cairn_dtype t, void *dst, size_t n, uint64_t seed,
                         uint64_t number) {
    return launch_random(stream, t, dst, n, seed, number, normals{});
}

int cairn__launch_uniform(struct CUstream_st *stream, cairn_dtype t, void *dst, size_t n, float bound, uint64_t seed,
                          uint64_t number) {
    return launch_random(stream, t, dst, n, seed, number, uniforms{bound});
}
