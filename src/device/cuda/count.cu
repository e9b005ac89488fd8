/* What tensors consist of: the census, exponents, and the elements behind raised flags. Counts are whole numbers, so
 * that the order in which blocks add them up plays no part. */
#include <limits.h>
#include <string.h>

#include "device/cuda/kernel.cuh"

/* Counts of a thread, whose part of a chunk 32 bits count. Magnitudes, the bits without the sign, are in the order of
 * what they stand for: exponents are made of two of them at the end. */
template <class T> struct census_op {
    const T *x;
    uint32_t least_normal; /* the bits */
    uint32_t zeros, subnormals, infs, nans, greatest, smallest;
    template <int V> struct in { T x[V]; };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const { cairn__read<V, CAIRN__ONCE>(a->x, x + i); }
    template <int V> CAIRN__DEVICE void use(size_t, const in<V> &a) {
        const uint32_t infinity = 0x7f800000u;
        float wide[V];
        cairn__widen<V>(a.x, wide);
#pragma unroll
        for (int k = 0; k < V; k++) {
            const uint32_t magnitude = cairn__f32_bits(wide[k]) & 0x7fffffffu;
            const bool ranks = magnitude > 0 && magnitude < infinity;
            zeros += magnitude == 0;
            subnormals += ranks && magnitude < least_normal;
            infs += magnitude == infinity;
            nans += magnitude > infinity;
            if (ranks && magnitude > greatest) greatest = magnitude;
            if (ranks && magnitude < smallest) smallest = magnitude;
        }
    }
};

template <class T> CAIRN__DEVICE census_op<T> nothing_counted(const void *x, float least_normal) {
    return {(const T *)x, cairn__f32_bits(least_normal), 0, 0, 0, 0, 0, 0xffffffffu};
}

/* Counts of 0, the usual case, are not added. */
CAIRN__DEVICE void add_to(uint64_t *total, uint32_t count) {
    if (count) atomicAdd((unsigned long long *)total, (unsigned long long)count);
}

/* ---- the census ---- */

static CAIRN__KERNEL begin_census(cairn__census *out, size_t count) {
    const size_t i = blockIdx.x * (size_t)CAIRN__CUDA_THREADS + threadIdx.x;
    if (i < count) out[i] = {0, 0, 0, 0, INT_MIN, INT_MAX, 0};
}

static CAIRN__KERNEL end_census(cairn__census *out, size_t count) {
    const size_t i = blockIdx.x * (size_t)CAIRN__CUDA_THREADS + threadIdx.x;
    if (i < count && out[i].max_exponent == INT_MIN) out[i].max_exponent = out[i].min_exponent = 0;
}

static size_t blocks_for(size_t count) {
    return (count + CAIRN__CUDA_THREADS - 1) / CAIRN__CUDA_THREADS;
}

int cairn__launch_census_begin(struct CUstream_st *stream, struct cairn__census *out, size_t count) {
    return cairn__launch(begin_census, blocks_for(count), CAIRN__CUDA_THREADS, stream, out, count);
}

int cairn__launch_census_end(struct CUstream_st *stream, struct cairn__census *out, size_t count) {
    return cairn__launch(end_census, blocks_for(count), CAIRN__CUDA_THREADS, stream, out, count);
}

/* dst of an item is where the square goes, x its census. */
static CAIRN__KERNEL greatest_squares(const cairn__multi list) {
    const uint32_t t = threadIdx.x;
    if (t >= list.span.count) return;
    const cairn__census *c = (const cairn__census *)list.items[t].x;
    const double greatest = c->nans ? (double)NAN : c->infs ? (double)INFINITY : c->largest;
    *(double *)list.items[t].dst = greatest * greatest;
}

int cairn__launch_greatest(struct CUstream_st *stream, const struct cairn__multi *list) {
    static_assert((int)CAIRN__CUDA_LIST <= (int)CAIRN__CUDA_THREADS, "a thread a tensor");
    return cairn__launch(greatest_squares, 1, CAIRN__CUDA_THREADS, stream, *list);
}

template <class T> static CAIRN__KERNEL census_list(const cairn__multi list) {
    constexpr int V = cairn__pack_of<T>;
    const cairn__where at = cairn__find(list.span, list.items);
    const cairn__item &item = list.items[at.tensor];
    census_op<T> op = nothing_counted<T>(item.x, list.b);
    cairn__walk<V, 4>(cairn__aligned<V>(op.x), at.from, at.to, op);
    const uint32_t zeros = cairn__sum_of_block(op.zeros), subnormals = cairn__sum_of_block(op.subnormals);
    const uint32_t infs = cairn__sum_of_block(op.infs), nans = cairn__sum_of_block(op.nans);
    cairn__census *out = (cairn__census *)item.dst;
    if (op.greatest) {
        atomicMax(&out->max_exponent, cairn__exponent_of(op.greatest));
        atomicMin(&out->min_exponent, cairn__exponent_of(op.smallest));
        atomicMax((unsigned long long *)&out->largest, /* bits are in the order of numbers that are not negative */
                  (unsigned long long)cairn__f64_bits(cairn__value_of(op.greatest)));
    }
    if (threadIdx.x != 0) return;
    add_to(&out->zeros, zeros), add_to(&out->subnormals, subnormals);
    add_to(&out->infs, infs), add_to(&out->nans, nans);
}

int cairn__launch_census(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype dtype) {
    return cairn__with_float(dtype, [&](auto t) {
        return cairn__launch(census_list<decltype(t)>, list->span.blocks, CAIRN__CUDA_THREADS, stream, *list);
    });
}

/* ---- exponents ---- */

CAIRN__DEVICE uint32_t field_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return cairn__field_of_f64(bits & INT64_MAX);
}

template <class T> CAIRN__DEVICE uint32_t field_of(const T &x) {
    float wide;
    cairn__widen<1>(&x, &wide);
    return cairn__field_of_f32(cairn__f32_bits(wide) & 0x7fffffffu);
}

/* Elements that follow one another in a thread and are alike are counted in its registers: many are 0. */
template <class T> struct exponents_op {
    const T *x;
    uint32_t *counts; /* [CAIRN__FIELDS_OF_F64] of the warp, shared */
    uint32_t last, alike;
    template <int V> struct in { T x[V]; };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const { cairn__read<V, CAIRN__ONCE>(a->x, x + i); }
    CAIRN__DEVICE void flush() {
        if (alike) atomicAdd(&counts[last], alike);
    }
    template <int V> CAIRN__DEVICE void use(size_t, const in<V> &a) {
#pragma unroll
        for (int k = 0; k < V; k++) {
            const uint32_t field = field_of(a.x[k]);
            if (field != last) flush(), last = field, alike = 0;
            alike++;
        }
    }
};

enum { COUNTS_OF_EXPONENTS = sizeof(cairn__exponent_counts) / sizeof(uint64_t) };

static CAIRN__KERNEL clear_exponents(uint64_t *counts, size_t n) {
    const size_t i = blockIdx.x * (size_t)CAIRN__CUDA_THREADS + threadIdx.x;
    if (i < n) counts[i] = 0;
}

int cairn__launch_clear_exponents(struct CUstream_st *stream, struct cairn__exponent_counts *out, size_t count) {
    const size_t n = count * COUNTS_OF_EXPONENTS;
    return cairn__launch(clear_exponents, blocks_for(n), CAIRN__CUDA_THREADS, stream, (uint64_t *)out, n);
}

template <class T> static CAIRN__KERNEL count_exponents(const cairn__multi list) {
    constexpr int V = cairn__pack_of<T>;
    __shared__ uint32_t counts[CAIRN__CUDA_WARPS * CAIRN__FIELDS_OF_F64];
    const cairn__where at = cairn__find(list.span, list.items);
    const cairn__item &item = list.items[at.tensor];
    for (uint32_t f = threadIdx.x; f < CAIRN__CUDA_WARPS * CAIRN__FIELDS_OF_F64; f += CAIRN__CUDA_THREADS)
        counts[f] = 0;
    __syncthreads();
    exponents_op<T> op = {(const T *)item.x, counts + threadIdx.x / CAIRN__CUDA_WARP * CAIRN__FIELDS_OF_F64, 0, 0};
    cairn__walk<V, 4>(cairn__aligned<V>(op.x), at.from, at.to, op);
    op.flush();
    __syncthreads();
    for (uint32_t f = threadIdx.x; f < CAIRN__FIELDS_OF_F64; f += CAIRN__CUDA_THREADS) {
        uint32_t all = 0;
        for (int w = 0; w < CAIRN__CUDA_WARPS; w++) all += counts[w * CAIRN__FIELDS_OF_F64 + f];
        if (all) add_to(cairn__count_of_field((cairn__exponent_counts *)item.dst, f), all);
    }
}

int cairn__launch_count_exponents(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype dtype) {
    const auto launch = [&](auto t) {
        return cairn__launch(count_exponents<decltype(t)>, list->span.blocks, CAIRN__CUDA_THREADS, stream, *list);
    };
    return dtype == CAIRN_F64 ? launch(double()) : cairn__with_float(dtype, launch);
}

/* ---- flags on their way to an optimizer ---- */

/* One block reads the whole gradient: that happens only after an overflow. */
template <class T> CAIRN__DEVICE void count_overflow(const cairn__taken &item, uint64_t *infs, uint64_t *nans) {
    constexpr int V = cairn__pack_of<T>;
    census_op<T> op = nothing_counted<T>(item.x, 0);
    cairn__walk<V, 4>(cairn__aligned<V>(op.x), 0, item.n, op);
    *infs = cairn__sum_of_block((unsigned long long)op.infs);
    *nans = cairn__sum_of_block((unsigned long long)op.nans);
}

CAIRN__DEVICE void count_overflow_of(const cairn__taken &item, uint64_t *infs, uint64_t *nans) {
    if (item.dtype == CAIRN_F16) {
        count_overflow<cairn__f16>(item, infs, nans);
    } else if (item.dtype == CAIRN_BF16) {
        count_overflow<cairn__bf16>(item, infs, nans);
    } else {
        count_overflow<float>(item, infs, nans);
    }
}

/* Threads that count meet at a barrier, so that all read the flag before it is cleared. Without x no thread counts, and
 * one that reads a cleared flag has nothing to do. */
template <class List> static CAIRN__KERNEL take_flag(const List list) {
    const cairn__taken &item = list.items[blockIdx.x];
    if (!*item.flag) return;
    uint64_t infs = 0, nans = 0;
    if (item.x) count_overflow_of(item, &infs, &nans);
    if (threadIdx.x != 0) return;
    cairn__note_overflow(item.to, list.micro_batch, item.rank, infs, nans);
    *item.flag = 0;
    for (uint32_t i = 0; i < list.num_raises; i++) atomicOr(list.raises[i], 1u);
}

static_assert(sizeof(cairn__taken_list) <= 4096, "a launch's parameters");

/* As few_multi in multi.cu. */
struct few_taken {
    uint32_t count, micro_batch, num_raises;
    uint32_t *raises[CAIRN__SHARE_MAX];
    cairn__taken items[CAIRN__CUDA_FEW];
};

int cairn__launch_take_flags(struct CUstream_st *stream, const struct cairn__taken_list *list) {
    if (list->count > CAIRN__CUDA_FEW)
        return cairn__launch(take_flag<cairn__taken_list>, list->count, CAIRN__CUDA_THREADS, stream, *list);
    few_taken few = {list->count, list->micro_batch, list->num_raises, {}, {}};
    for (uint32_t i = 0; i < list->num_raises; i++) few.raises[i] = list->raises[i];
    for (uint32_t t = 0; t < list->count; t++) few.items[t] = list->items[t];
    return cairn__launch(take_flag<few_taken>, list->count, CAIRN__CUDA_THREADS, stream, few);
}
