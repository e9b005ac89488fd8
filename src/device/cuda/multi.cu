/* Lists of tensors, and the element kernels of one type to another: copy, cast, scale, axpby, clamp, check, l2norm. */
#include "device/cuda/kernel.cuh"

struct few_multi {
    cairn__few_span span;
    cairn__item items[CAIRN__CUDA_FEW];
    const float *factor;
    float b;
    uint32_t *found;
};

/* Calls use with the list, in the type that is long enough. */
template <class Use> static int with_list(const cairn__multi &list, Use use) {
    if (list.span.count > CAIRN__CUDA_FEW) return use(list);
    few_multi few = {};
    cairn__shorten(&few, list);
    few.factor = list.factor, few.b = list.b, few.found = list.found;
    return use(few);
}

/* ---- copies and casts ---- */

template <class T> struct copy_op {
    T *dst;
    const T *x;
    template <int V> struct in { T x[V]; };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const { cairn__read<V, CAIRN__ONCE>(a->x, x + i); }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &a) { cairn__write<V>(dst + i, a.x); }
};

template <class T, class List> static CAIRN__KERNEL copy_list(const List list) {
    constexpr int V = cairn__pack_of<T>;
    const cairn__where at = cairn__find(list.span, list.items);
    copy_op<T> op = {(T *)list.items[at.tensor].dst, (const T *)list.items[at.tensor].x};
    cairn__walk<V, 4>(cairn__aligned<V>(op.dst) && cairn__aligned<V>(op.x), at.from, at.to, op);
}

int cairn__launch_copy(struct CUstream_st *stream, const struct cairn__multi *list, size_t element_nbytes) {
    return with_list(*list, [&](auto l) {
        typedef decltype(l) List;
        void (*const kernel)(List) = element_nbytes == 2   ? copy_list<uint16_t, List>
                                     : element_nbytes == 4 ? copy_list<uint32_t, List>
                                                           : copy_list<uint64_t, List>;
        return cairn__launch(kernel, l.span.blocks, CAIRN__CUDA_THREADS, stream, l);
    });
}

template <class To, class From> struct cast_op {
    To *dst;
    const From *x;
    template <int V> struct in { From x[V]; };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const { cairn__read<V, CAIRN__ONCE>(a->x, x + i); }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &a) {
        float wide[V];
        To y[V];
        cairn__widen<V>(a.x, wide);
        cairn__narrow<V>(wide, y);
        cairn__write<V>(dst + i, y);
    }
};

template <class To, class From, class List> static CAIRN__KERNEL cast_list(const List list) {
    constexpr int V = cairn__pack_of<To, From>;
    const cairn__where at = cairn__find(list.span, list.items);
    cast_op<To, From> op = {(To *)list.items[at.tensor].dst, (const From *)list.items[at.tensor].x};
    cairn__walk<V, 4>(cairn__aligned<V>(op.dst) && cairn__aligned<V>(op.x), at.from, at.to, op);
}

int cairn__launch_cast(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype to, cairn_dtype from) {
    return cairn__with_float(to, [&](auto t) {
        return cairn__with_float(from, [&](auto f) {
            return with_list(*list, [&](auto l) {
                return cairn__launch(cast_list<decltype(t), decltype(f), decltype(l)>, l.span.blocks,
                                     CAIRN__CUDA_THREADS, stream, l);
            });
        });
    });
}

/* ---- scale and axpby ---- */

template <class To, class From> struct scale_op {
    To *dst;
    const From *x;
    float factor;
    bool found;
    template <int V> struct in { From x[V]; };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const { cairn__read<V, CAIRN__ONCE>(a->x, x + i); }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &a) {
        float wide[V];
        To y[V];
        cairn__widen<V>(a.x, wide);
#pragma unroll
        for (int k = 0; k < V; k++) wide[k] = wide[k] * factor;
        cairn__narrow<V>(wide, y);
#pragma unroll
        for (int k = 0; k < V; k++) found |= cairn__nonfinite(y[k]);
        cairn__write<V>(dst + i, y);
    }
};

template <class To, class From, class List> static CAIRN__KERNEL scale_list(const List list) {
    constexpr int V = cairn__pack_of<To, From>;
    const cairn__where at = cairn__find(list.span, list.items);
    const cairn__item &item = list.items[at.tensor];
    scale_op<To, From> op = {(To *)item.dst, (const From *)item.x, list.factor ? *list.factor : 1.0f, false};
    cairn__walk<V, 4>(cairn__aligned<V>(op.dst) && cairn__aligned<V>(op.x), at.from, at.to, op);
    cairn__raise(op.found, list.found, item.found);
}

int cairn__launch_scale(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype to, cairn_dtype from) {
    return cairn__with_float(to, [&](auto t) {
        return cairn__with_float(from, [&](auto f) {
            return with_list(*list, [&](auto l) {
                return cairn__launch(scale_list<decltype(t), decltype(f), decltype(l)>, l.span.blocks,
                                     CAIRN__CUDA_THREADS, stream, l);
            });
        });
    });
}

template <class To, class From> struct axpby_op {
    To *dst;
    const From *x;
    const float *y;
    float a, b;
    bool found;
    template <int V> struct in {
        From x[V];
        float y[V];
    };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *e) const {
        cairn__read<V, CAIRN__ONCE>(e->x, x + i);
        cairn__read<V, CAIRN__ONCE>(e->y, y + i);
    }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &e) {
        float wide[V];
        To result[V];
        cairn__widen<V>(e.x, wide);
#pragma unroll
        for (int k = 0; k < V; k++) wide[k] = cairn__axpby(a, wide[k], b, e.y[k]);
        cairn__narrow<V>(wide, result);
#pragma unroll
        for (int k = 0; k < V; k++) found |= cairn__nonfinite(result[k]);
        cairn__write<V>(dst + i, result);
    }
};

template <class To, class From, class List> static CAIRN__KERNEL axpby_list(const List list) {
    constexpr int V = cairn__pack_of<float>;
    const cairn__where at = cairn__find(list.span, list.items);
    const cairn__item &item = list.items[at.tensor];
    axpby_op<To, From> op = {(To *)item.dst, (const From *)item.x, item.y, list.factor ? *list.factor : 1.0f, list.b,
                             false};
    const bool aligned = cairn__aligned<V>(op.dst) && cairn__aligned<V>(op.x) && cairn__aligned<V>(op.y);
    cairn__walk<V, 4>(aligned, at.from, at.to, op);
    cairn__raise(op.found, list.found, item.found);
}

int cairn__launch_axpby(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype to, cairn_dtype from) {
    return cairn__with_float(to, [&](auto t) {
        return cairn__with_float(from, [&](auto f) {
            return with_list(*list, [&](auto l) {
                return cairn__launch(axpby_list<decltype(t), decltype(f), decltype(l)>, l.span.blocks,
                                     CAIRN__CUDA_THREADS, stream, l);
            });
        });
    });
}

/* ---- clamp ---- */

struct clamp_op {
    float *dst;
    const float *x;
    float least, most;
    template <int V> struct in { float x[V]; };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const { cairn__read<V, CAIRN__ONCE>(a->x, x + i); }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &a) {
        float y[V];
#pragma unroll
        for (int k = 0; k < V; k++) y[k] = a.x[k] > most ? most : a.x[k] < least ? least : a.x[k];
        cairn__write<V>(dst + i, y);
    }
};

template <class List> static CAIRN__KERNEL clamp_list(const List list) {
    constexpr int V = cairn__pack_of<float>;
    const cairn__where at = cairn__find(list.span, list.items);
    const float least = cairn__f32_from_bits(cairn__f32_bits(list.b) ^ 0x80000000u); /* no arithmetic: sass.py */
    clamp_op op = {(float *)list.items[at.tensor].dst, (const float *)list.items[at.tensor].x, least, list.b};
    cairn__walk<V, 4>(cairn__aligned<V>(op.dst) && cairn__aligned<V>(op.x), at.from, at.to, op);
}

int cairn__launch_clamp(struct CUstream_st *stream, const struct cairn__multi *list) {
    return with_list(*list, [&](auto l) {
        return cairn__launch(clamp_list<decltype(l)>, l.span.blocks, CAIRN__CUDA_THREADS, stream, l);
    });
}

/* ---- average ---- */

template <class From> struct average_op {
    float *dst;
    const From *x;
    float share;
    template <int V> struct in {
        From x[V];
        float y[V];
    };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *e) const {
        cairn__read<V, CAIRN__ONCE>(e->x, x + i);
        cairn__read<V, CAIRN__ONCE>(e->y, dst + i);
    }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &e) {
        float wide[V];
        cairn__widen<V>(e.x, wide);
#pragma unroll
        for (int k = 0; k < V; k++) wide[k] = cairn__lerp(e.y[k], wide[k], share);
        cairn__write<V, CAIRN__ONCE>(dst + i, wide);
    }
};

template <class From, class List>
static CAIRN__KERNEL average_list(const List list, const struct cairn__average *average) {
    constexpr int V = cairn__pack_of<float>;
    if (!average->is_due) return;
    const cairn__where at = cairn__find(list.span, list.items);
    average_op<From> op = {(float *)list.items[at.tensor].dst, (const From *)list.items[at.tensor].x, average->share};
    cairn__walk<V, 4>(cairn__aligned<V>(op.dst) && cairn__aligned<V>(op.x), at.from, at.to, op);
}

int cairn__launch_average(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype from,
                          const struct cairn__average *average) {
    return cairn__with_float(from, [&](auto f) {
        return with_list(*list, [&](auto l) {
            return cairn__launch(average_list<decltype(f), decltype(l)>, l.span.blocks, CAIRN__CUDA_THREADS, stream, l,
                                 average);
        });
    });
}

static CAIRN__KERNEL begin_average(cairn__average *average, const cairn__optim_state *state) {
    if (threadIdx.x == 0) cairn__average_begin(average, state);
}

int cairn__launch_average_begin(struct CUstream_st *stream, struct cairn__average *average,
                                const struct cairn__optim_state *state) {
    return cairn__launch(begin_average, 1, 1, stream, average, state);
}

/* ---- check ---- */

template <class T> struct check_op {
    const T *x;
    bool found;
    template <int V> struct in { T x[V]; };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const { cairn__read<V>(a->x, x + i); }
    template <int V> CAIRN__DEVICE void use(size_t, const in<V> &a) {
#pragma unroll
        for (int k = 0; k < V; k++) found |= cairn__nonfinite(a.x[k]);
    }
};

template <class T, class List> static CAIRN__KERNEL check_list(const List list) {
    constexpr int V = cairn__pack_of<T>;
    const cairn__where at = cairn__find(list.span, list.items);
    check_op<T> op = {(const T *)list.items[at.tensor].x, false};
    cairn__walk<V, 4>(cairn__aligned<V>(op.x), at.from, at.to, op);
    cairn__raise(op.found, list.found, list.items[at.tensor].found);
}

int cairn__launch_check(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype dtype) {
    return cairn__with_float(dtype, [&](auto t) {
        return with_list(*list, [&](auto l) {
            return cairn__launch(check_list<decltype(t), decltype(l)>, l.span.blocks, CAIRN__CUDA_THREADS, stream, l);
        });
    });
}

/* ---- l2norm ---- */

template <class T> struct norm_op {
    static constexpr int V = cairn__pack_of<T>;
    const T *x;
    double lane[V];
    struct in {
        T x[V];
    };
    struct wide {
        float x[V];
    };
    template <int N> CAIRN__DEVICE void read(size_t i, int k, in *a) const { cairn__read<N>(a->x + k, x + i); }
    CAIRN__DEVICE void widen(const in &a, wide *w) const { cairn__widen_for_sum<V>(a.x, w->x); }
    /* The square is exact in f64, so that fused or not there is one rounding. */
    CAIRN__DEVICE void add(const wide &w, int k) { lane[k] = fma((double)w.x[k], (double)w.x[k], lane[k]); }
};

enum { CHUNKS_OF_A_WARP = 256 };

/* The last block's: each tensor's sum from its chunks', by one warp where they are few and by the block where they are
 * many; then the list's. */
template <class List> CAIRN__DEVICE void finish_norm(const List &list, const cairn__norm_part &part) {
    __shared__ double of_tensor[CAIRN__CUDA_LIST];
    const uint32_t warp = threadIdx.x / CAIRN__CUDA_WARP;
    for (uint32_t t = 0; t < list.span.count; t++) {
        const uint32_t begin = t ? list.span.ends[t - 1] : 0, end = list.span.ends[t];
        const bool few = end - begin <= CHUNKS_OF_A_WARP;
        if (few && t % CAIRN__CUDA_WARPS != warp) continue;
        const double sum =
            cairn__sum_of_left(part.partials->sums, begin, end, few ? CAIRN__CUDA_WARP : CAIRN__CUDA_THREADS);
        if (threadIdx.x % CAIRN__CUDA_WARP != 0 || t % CAIRN__CUDA_WARPS != warp) continue;
        of_tensor[t] = sum;
        if (list.items[t].dst) *(double *)list.items[t].dst = part.squares ? sum : sqrt(sum);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    double total = part.first ? 0 : part.partials->total;
    for (uint32_t t = 0; t < list.span.count; t++) total += of_tensor[t];
    part.partials->total = total;
    if (part.last && part.norm) *part.norm = sqrt(total);
}

/* No sum of squares of f32 values overflows f64: that of a block is finite exactly where all its x are. */
template <class T, class List> static CAIRN__KERNEL norm_list(const List list, const cairn__norm_part part) {
    const cairn__where at = cairn__find(list.span, list.items);
    const cairn__item &item = list.items[at.tensor];
    norm_op<T> op = {(const T *)item.x, {0}};
    cairn__walk_sum<op.V, 4>(cairn__aligned<op.V>(op.x), at.from, at.to, op);
    const double sum = cairn__sum_of_block(cairn__sum_of(op.lane)), factor = list.factor ? *list.factor : 1.0f;
    if (threadIdx.x == 0) part.partials->sums[blockIdx.x] = sum * (factor * factor);
    if (threadIdx.x == 0 && !(sum < HUGE_VAL)) {
        if (list.found) atomicOr(list.found, 1u);
        if (item.found) atomicOr(item.found, 1u);
    }
    if (cairn__last_of(&part.partials->arrived[0], gridDim.x)) finish_norm(list, part);
}

/* Where all tensors are empty there is one block all the same: it writes zeros. */
int cairn__launch_l2norm(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype dtype,
                         const struct cairn__norm_part *part) {
    return cairn__with_float(dtype, [&](auto t) {
        const size_t blocks = list->span.blocks ? list->span.blocks : 1;
        return with_list(*list, [&](auto l) {
            return cairn__launch(norm_list<decltype(t), decltype(l)>, blocks, CAIRN__CUDA_THREADS, stream, l, *part);
        });
    });
}
