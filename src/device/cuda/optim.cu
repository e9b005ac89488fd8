/* The optimizers' updates, and the other kernels of a step. */
#include "core/philox.h"
#include "device/cuda/kernel.cuh"

/* ---- how a weight mode stores its parameter, and the copy that it writes besides ---- */

struct no_copy {};

/* Stochastic rounding has this in place of a copy, in shared memory: the block's random stream. */
struct rounding {
    uint64_t seed, stream, eighth;
};

template <class Half> CAIRN__DEVICE Half *copy_of(const cairn__optim_item &item, rounding *) {
    return (Half *)item.half;
}
template <> CAIRN__DEVICE rounding *copy_of<rounding>(const cairn__optim_item &, rounding *shared) {
    return shared;
}

template <int MODE> struct storage;
template <> struct storage<CAIRN__W_F32> {
    typedef float param;
    typedef no_copy half;
};
template <> struct storage<CAIRN__W_F32_F16> {
    typedef float param;
    typedef cairn__f16 half;
};
template <> struct storage<CAIRN__W_F32_BF16> {
    typedef float param;
    typedef cairn__bf16 half;
};
template <> struct storage<CAIRN__W_F16> {
    typedef cairn__f16 param;
    typedef no_copy half;
};
template <> struct storage<CAIRN__W_BF16> {
    typedef cairn__bf16 param;
    typedef no_copy half;
};

template <> struct storage<CAIRN__W_BF16_STOCHASTIC> {
    typedef cairn__bf16 param;
    typedef rounding half;
};

/* Half weights are what the next forward reads first: they stay in the cache if they can. */
template <int V> CAIRN__DEVICE void write_copy(no_copy *, const float *) {}
template <int V, class T> CAIRN__DEVICE void write_copy(T *half, const float *w) {
    T y[V];
    cairn__narrow<V>(w, y);
    cairn__write<V>(half, y);
}
template <int V> CAIRN__DEVICE bool aligned_copy(const no_copy *) {
    return true;
}
template <int V> CAIRN__DEVICE bool aligned_copy(const rounding *) {
    return true;
}
template <int V, class T> CAIRN__DEVICE bool aligned_copy(const T *half) {
    return cairn__aligned<V>(half);
}
CAIRN__DEVICE no_copy *advance(no_copy *half, size_t) {
    return half;
}
template <class T> CAIRN__DEVICE T *advance(T *half, size_t i) {
    return half + i;
}

template <int V, class Param, class Half>
CAIRN__DEVICE void write_weights(Param *param, Half *half, size_t i, const float *w) {
    Param y[V];
    cairn__narrow<V>(w, y);
    cairn__write<V, CAIRN__ONCE>(param + i, y);
    write_copy<V>(advance(half, i), w);
}

/* A pack lies within the 8 elements of one block of numbers. */
template <int V> CAIRN__DEVICE void write_weights(cairn__bf16 *param, rounding *stream, size_t i, const float *w) {
    static_assert(8 % V == 0, "a pack has one block of random numbers");
    const cairn__philox_block block = cairn__philox(stream->seed, stream->eighth + i / 8, stream->stream);
    cairn__bf16 y[V];
#pragma unroll
    for (int k = 0; k < V; k++) y[k].bits = cairn__round_stochastic(w[k], cairn__random_16(&block, i + k));
    cairn__write<V, CAIRN__ONCE>(param + i, y);
}

enum { PACK = cairn__pack_of<float> }; /* the state is f32 */

/* Thread 0 reads this for its block: the factor of the tensor's gradient, and the stream of its rounding. */
CAIRN__DEVICE float factor_of(const cairn__optim_item &item, const cairn__optim_state *state) {
    return (item.factor ? *item.factor : 1.0f) * state->clip;
}
template <class Half>
CAIRN__DEVICE void begin_rounding(Half *, const cairn__optim_item &, const cairn__optim_state *, int64_t) {}
CAIRN__DEVICE void begin_rounding(rounding *shared, const cairn__optim_item &item, const cairn__optim_state *state,
                                  int64_t update) {
    shared->seed = state->rounding_seed;
    shared->stream = cairn__rounding_stream(item.parameter, update);
    shared->eighth = item.eighth;
}

/* ---- updates ---- */

/* What a kind has: its arrays at most, how many packs a thread has under way, and one element's update. */
template <int KIND> struct optim;
template <> struct optim<CAIRN__OPTIM_SGD> {
    enum { STATES = 1, PACKS = 2 };
    CAIRN__DEVICE static float next(const cairn__update *h, float w, float g, float *s) {
        return cairn__sgd_element(&h->sgd, w, g, s);
    }
};
template <> struct optim<CAIRN__OPTIM_ADAM> {
    enum { STATES = 3, PACKS = 1 };
    CAIRN__DEVICE static float next(const cairn__update *h, float w, float g, float *s) {
        return cairn__adam_element(&h->adam, w, g, &s[0], &s[1], &s[2]);
    }
};
template <> struct optim<CAIRN__OPTIM_LION> {
    enum { STATES = 1, PACKS = 2 };
    CAIRN__DEVICE static float next(const cairn__update *h, float w, float g, float *s) {
        return cairn__lion_element(&h->lion, w, g, s);
    }
};
template <> struct optim<CAIRN__OPTIM_ADAGRAD> {
    enum { STATES = 1, PACKS = 2 };
    CAIRN__DEVICE static float next(const cairn__update *h, float w, float g, float *s) {
        return cairn__adagrad_element(&h->adagrad, w, g, s);
    }
};

/* LAMB's kernel leaves its direction where another writes weights. */
template <> struct optim<CAIRN__OPTIM_LAMB> {
    enum { STATES = 2, PACKS = 1 };
    CAIRN__DEVICE static float next(const cairn__update *h, float w, float g, float *s) {
        float none = 0;
        return cairn__adam_direction(&h->lamb, w, g, &s[0], &s[1], &none);
    }
};

/* The arrays that the rule has are there to be read; h, which says what counts of them, is not known at the first
 * read. */
template <int KIND, class Grad, class Param, class Half> struct update_op {
    enum { STATES = optim<KIND>::STATES };
    static constexpr bool DIRECTS = KIND == CAIRN__OPTIM_LAMB;
    const cairn__update *h;
    float *direction;
    Param *param;
    Half *half;
    float *state[STATES];
    const Grad *grad;
    int num_states;
    template <int V> struct in {
        Param w[V];
        Grad g[V];
        float s[STATES][V];
    };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const {
        cairn__read<V, CAIRN__ONCE>(a->g, grad + i);
#pragma unroll
        for (int j = 0; j < STATES; j++) {
            if (j < num_states) cairn__read<V, CAIRN__ONCE>(a->s[j], state[j] + i);
        }
        cairn__read<V, CAIRN__ONCE>(a->w, param + i);
    }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &a) const {
        float w[V], g[V], s[STATES][V];
        cairn__widen<V>(a.w, w);
        cairn__widen<V>(a.g, g);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float of[STATES];
#pragma unroll
            for (int j = 0; j < STATES; j++) of[j] = j < num_states ? a.s[j][k] : 0;
            w[k] = optim<KIND>::next(h, w[k], g[k], of);
#pragma unroll
            for (int j = 0; j < STATES; j++) s[j][k] = of[j];
        }
#pragma unroll
        for (int j = 0; j < STATES; j++) {
            if (j < num_states) cairn__write<V, CAIRN__ONCE>(state[j] + i, s[j]);
        }
        if (DIRECTS) cairn__write<V, CAIRN__ONCE>(direction + i, w);
        else write_weights<V>(param, half, i, w);
    }
    CAIRN__DEVICE bool aligned() const {
        bool all = cairn__aligned<PACK>(param) && aligned_copy<PACK>(half) && cairn__aligned<PACK>(grad);
#pragma unroll
        for (int j = 0; j < STATES; j++) all = all && (j >= num_states || cairn__aligned<PACK>(state[j]));
        return all && (!DIRECTS || cairn__aligned<PACK>(direction));
    }
};

/* Thread 0 forms the scalars of the block's tensor, as the CPU does. */
template <int KIND, class Grad, int MODE, class List> static CAIRN__KERNEL update_list(const List list) {
    typedef typename storage<MODE>::param param;
    typedef typename storage<MODE>::half half;
    const cairn__where at = cairn__find(list.span, list.items);
    const cairn__optim_item &item = list.items[at.tensor];
    __shared__ cairn__update h;
    __shared__ rounding stream;
    __shared__ bool skipped;
    update_op<KIND, Grad, param, half> op;
    op.h = &h;
    op.param = (param *)item.weights;
    op.half = copy_of<half>(item, &stream);
#pragma unroll
    for (int j = 0; j < optim<KIND>::STATES; j++) op.state[j] = item.state[j];
    op.grad = (const Grad *)item.grad;
    op.direction = item.state[2];
    op.num_states = op.DIRECTS ? (int)optim<KIND>::STATES : cairn__update_arrays(&list.rule);
    cairn__walk_prepared<PACK, optim<KIND>::PACKS>(op.aligned(), at.from, at.to, op, &skipped, [&] {
        if (threadIdx.x != 0) return;
        const int64_t update = cairn__update_number(list.state, item.missed);
        skipped = list.state->skip;
        const float factor = factor_of(item, list.state);
        h = op.DIRECTS ? cairn__direction_of(&list.rule, list.rates, update, factor)
                       : cairn__update_of(&list.rule, list.rates, update, factor, item.squares, item.state[1]);
        begin_rounding(op.half, item, list.state, update);
    });
}

/* ---- launchers: [kind][grad][mode] ---- */

static_assert(sizeof(cairn__optim_item) == 80, "an item has grown: see CAIRN__CUDA_LIST");
static_assert(sizeof(cairn__optim_list) <= 4096, "a launch's parameters");

struct few_updates {
    cairn__few_span span;
    cairn__optim_item items[CAIRN__CUDA_FEW];
    cairn__optim_rule rule;
    const cairn__rates *rates;
    const cairn__optim_state *state;
};

/* Calls use with the list, in the type that is long enough. */
template <class Use> static int with_list(const cairn__optim_list &list, Use use) {
    if (list.span.count > CAIRN__CUDA_FEW) return use(list);
    few_updates few = {};
    cairn__shorten(&few, list);
    few.rule = list.rule, few.rates = list.rates, few.state = list.state;
    return use(few);
}

template <int MODE> struct mode_tag { static constexpr int mode = MODE; };

template <class Use> static int with_mode(enum cairn__weight_mode mode, Use use) {
    switch (mode) {
    case CAIRN__W_F32_F16:
        return use(mode_tag<CAIRN__W_F32_F16>());
    case CAIRN__W_F32_BF16:
        return use(mode_tag<CAIRN__W_F32_BF16>());
    case CAIRN__W_F16:
        return use(mode_tag<CAIRN__W_F16>());
    case CAIRN__W_BF16:
        return use(mode_tag<CAIRN__W_BF16>());
    case CAIRN__W_BF16_STOCHASTIC:
        return use(mode_tag<CAIRN__W_BF16_STOCHASTIC>());
    default:
        return use(mode_tag<CAIRN__W_F32>());
    }
}

template <int KIND>
static int launch_kind(struct CUstream_st *stream, const struct cairn__optim_list *list, cairn_dtype grad,
                       enum cairn__weight_mode mode) {
    return cairn__with_float(grad, [&](auto g) {
        return with_mode(mode, [&](auto m) {
            return with_list(*list, [&](auto l) {
                return cairn__launch(update_list<KIND, decltype(g), decltype(m)::mode, decltype(l)>, l.span.blocks,
                                     CAIRN__CUDA_THREADS, stream, l);
            });
        });
    });
}

template <class Use> static int with_read_mode(enum cairn__weight_mode mode, Use use) {
    switch (mode) {
    case CAIRN__W_F16:
        return use(mode_tag<CAIRN__W_F16>());
    case CAIRN__W_BF16:
    case CAIRN__W_BF16_STOCHASTIC:
        return use(mode_tag<CAIRN__W_BF16>());
    default:
        return use(mode_tag<CAIRN__W_F32>());
    }
}

int cairn__launch_direction(struct CUstream_st *stream, const struct cairn__optim_list *list, cairn_dtype grad,
                            enum cairn__weight_mode mode) {
    return cairn__with_float(grad, [&](auto g) {
        return with_read_mode(mode, [&](auto m) {
            return with_list(*list, [&](auto l) {
                return cairn__launch(update_list<CAIRN__OPTIM_LAMB, decltype(g), decltype(m)::mode, decltype(l)>,
                                     l.span.blocks, CAIRN__CUDA_THREADS, stream, l);
            });
        });
    });
}

/* Before any block of the update reads them. */
template <class List> static CAIRN__KERNEL advance_seconds(const List list) {
    const uint32_t t = threadIdx.x;
    if (t >= list.span.count || list.state->skip) return;
    const cairn__optim_item &item = list.items[t];
    *item.state[1] = cairn__novograd_second(&list.rule.novograd, cairn__update_number(list.state, item.missed),
                                            factor_of(item, list.state), item.squares, *item.state[1]);
}

int cairn__launch_seconds(struct CUstream_st *stream, const struct cairn__optim_list *list) {
    static_assert((int)CAIRN__CUDA_LIST <= (int)CAIRN__CUDA_THREADS, "a thread a tensor");
    return with_list(*list, [&](auto l) {
        return cairn__launch(advance_seconds<decltype(l)>, 1, CAIRN__CUDA_THREADS, stream, l);
    });
}

int cairn__launch_update(struct CUstream_st *stream, const struct cairn__optim_list *list, cairn_dtype grad,
                         enum cairn__weight_mode mode) {
    switch (cairn__update_kernel(&list->rule)) {
    case CAIRN__OPTIM_ADAM:
        return launch_kind<CAIRN__OPTIM_ADAM>(stream, list, grad, mode);
    case CAIRN__OPTIM_LION:
        return launch_kind<CAIRN__OPTIM_LION>(stream, list, grad, mode);
    case CAIRN__OPTIM_ADAGRAD:
        return launch_kind<CAIRN__OPTIM_ADAGRAD>(stream, list, grad, mode);
    default:
        return launch_kind<CAIRN__OPTIM_SGD>(stream, list, grad, mode);
    }
}

/* ---- around an update that is a function of the user's ---- */

static CAIRN__KERNEL flat_scalars(cairn__flat_scalars *out, const cairn__rates *rates, const cairn__optim_state *state,
                                  const int64_t *missed, const float *factor) {
    if (threadIdx.x == 0) *out = cairn__flat_scalars_of(rates, state, missed, factor);
}

int cairn__launch_flat_scalars(struct CUstream_st *stream, struct cairn__flat_scalars *out,
                               const struct cairn__rates *rates, const struct cairn__optim_state *state,
                               const struct cairn__optim_item *item) {
    return cairn__launch(flat_scalars, 1, 1, stream, out, rates, state, item->missed, item->factor);
}

struct round_op {
    cairn__bf16 *param;
    const float *w;
    rounding *stream;
    size_t first;
    template <int V> struct in { float w[V]; };
    template <int V> CAIRN__DEVICE void read(size_t i, in<V> *a) const { cairn__read<V, CAIRN__ONCE>(a->w, w + i); }
    template <int V> CAIRN__DEVICE void use(size_t i, const in<V> &a) const {
        write_weights<V>(param, stream, first + i, a.w);
    }
};

static CAIRN__KERNEL round_tensor(cairn__bf16 *param, const float *w, size_t first, size_t n,
                                  const cairn__optim_item item, const cairn__optim_state *state) {
    __shared__ rounding stream;
    if (threadIdx.x == 0) begin_rounding(&stream, item, state, cairn__update_number(state, item.missed));
    __syncthreads();
    if (state->skip) return;
    round_op op = {param, w, &stream, first};
    cairn__walk_tensor<PACK, 2>(cairn__aligned<PACK>(param) && cairn__aligned<PACK>(w), n, op);
}

int cairn__launch_round_stochastic(struct CUstream_st *stream, const struct cairn__optim_item *item, size_t first,
                                   size_t n, const float *w, const struct cairn__optim_state *state) {
    return cairn__launch(round_tensor, cairn__tensor_blocks<PACK, 2>(n), CAIRN__CUDA_THREADS, stream,
                         (cairn__bf16 *)item->weights, w, first, n, *item, state);
}

/* ---- around the update ---- */

static CAIRN__KERNEL count_one(int64_t *counter, const cairn__optim_state *state) {
    if (threadIdx.x == 0 && !(state && state->skip)) ++*counter;
}

int cairn__launch_count_up(struct CUstream_st *stream, int64_t *counter, const struct cairn__optim_state *state) {
    return cairn__launch(count_one, 1, 1, stream, counter, state);
}

/* The host may see a report's number at its end, and with it everything that was written before. */
CAIRN__DEVICE void publish(uint64_t *number, uint64_t value) {
    __threadfence_system();
    *(volatile uint64_t *)number = value;
}

CAIRN__DEVICE void update_one_scaler(cairn__scaler_state *scaler, cairn__scaler_report *reports) {
    cairn__scaler_report *report = cairn__scaler_update_scalars(scaler, reports);
    publish(&report->number, (uint64_t)scaler->updates);
}

/* Thread 0's fence covers what the others have written too, since the barrier has ordered that before it. */
static CAIRN__KERNEL end_step(const cairn__step_end end) {
    for (size_t i = threadIdx.x; i < end.count; i += CAIRN__CUDA_THREADS) cairn__step_end_overflow(&end, i);
    for (size_t g = threadIdx.x; g < end.table.groups; g += CAIRN__CUDA_THREADS) cairn__step_end_rates(&end, g);
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 0; i < end.num_scalers; i++) {
        if (end.scaler_reports[i]) update_one_scaler(end.scalers[i], end.scaler_reports[i]);
    }
    cairn__step_report *report = cairn__step_end_scalars(&end);
    publish(&report->number, end.optim->ends);
}

int cairn__launch_step_end(struct CUstream_st *stream, const struct cairn__step_end *end) {
    return cairn__launch(end_step, 1, CAIRN__CUDA_THREADS, stream, *end);
}

static CAIRN__KERNEL renew_rates(const cairn__rate_table table, const cairn__optim_state *state) {
    for (size_t g = threadIdx.x; g < table.groups; g += CAIRN__CUDA_THREADS)
        table.rates[g] = cairn__group_rates(&table.schedules[g], state->steps, state->skipped);
}

int cairn__launch_renew_rates(struct CUstream_st *stream, const struct cairn__rate_table *table,
                              const struct cairn__optim_state *state) {
    return cairn__launch(renew_rates, 1, CAIRN__CUDA_THREADS, stream, *table, state);
}

struct flags {
    uint32_t *p[CAIRN__SHARE_MAX];
};

/* Each at a place that the compiler knows, as in store_value. */
static CAIRN__KERNEL share_one_flag(uint32_t *any, const flags into, uint32_t count) {
    if (threadIdx.x != 0 || !*any) return;
#pragma unroll
    for (unsigned i = 0; i < CAIRN__SHARE_MAX; i++) {
        if (i < count) *into.p[i] |= 1;
    }
    *any = 0;
}

int cairn__launch_share_flag(struct CUstream_st *stream, uint32_t *any, uint32_t *const *into, size_t count) {
    flags list = {};
    for (size_t i = 0; i < count; i++) list.p[i] = into[i];
    return cairn__launch(share_one_flag, 1, 1, stream, any, list, (uint32_t)count);
}

static CAIRN__KERNEL update_scaler(cairn__scaler_state *scaler, cairn__scaler_report *reports) {
    if (threadIdx.x == 0) update_one_scaler(scaler, reports);
}

int cairn__launch_scaler_update(struct CUstream_st *stream, struct cairn__scaler_state *scaler,
                                struct cairn__scaler_report *reports) {
    return cairn__launch(update_scaler, 1, 1, stream, scaler, reports);
}

/* One thread, since the order of a sum is part of its bits: an optimizer has few norms. */
static CAIRN__KERNEL clip_by_norms(const double *norms, size_t count, double max_norm, cairn__optim_state *state,
                                   double *total) {
    if (threadIdx.x != 0) return;
    double squares = 0;
    for (size_t i = 0; i < count; i++) squares += norms[i] * norms[i];
    *total = cairn__clip_to(state, squares, max_norm);
}

int cairn__launch_clip(struct CUstream_st *stream, const double *norms, size_t count, double max_norm,
                       struct cairn__optim_state *state, double *total) {
    return cairn__launch(clip_by_norms, 1, 1, stream, norms, count, max_norm, state, total);
}

static CAIRN__KERNEL scale_one_loss(float *dst, const float *x, const cairn__scaler_state *scaler,
                                    cairn__loss_scale *cell, uint32_t *found) {
    if (threadIdx.x != 0) return;
    if (found && cairn__f32_nonfinite(*x)) *found = 1;
    *cell = cairn__loss_scale_of(scaler);
    *dst = *x * cell->scale;
}

int cairn__launch_scale_loss(struct CUstream_st *stream, float *dst, const float *x,
                             const struct cairn__scaler_state *scaler, struct cairn__loss_scale *cell,
                             uint32_t *found) {
    return cairn__launch(scale_one_loss, 1, 1, stream, dst, x, scaler, cell, found);
}

static CAIRN__KERNEL clear_all_flags(uint32_t *flags, size_t n) {
    for (size_t i = threadIdx.x; i < n; i += CAIRN__CUDA_THREADS) flags[i] = 0;
}

int cairn__launch_clear_flags(struct CUstream_st *stream, uint32_t *flags, size_t n) {
    return cairn__launch(clear_all_flags, 1, CAIRN__CUDA_THREADS, stream, flags, n);
}

struct value {
    unsigned char bytes[CAIRN__STORE_MAX];
};

/* One thread, one byte after the other, each at a place that the compiler knows: with an index of the thread's own the
 * parameters would be copied to local memory first. A value is a number or two. */
static CAIRN__KERNEL store_value(unsigned char *dst, const value v, size_t nbytes) {
    if (threadIdx.x != 0) return;
#pragma unroll
    for (unsigned i = 0; i < CAIRN__STORE_MAX; i++) {
        if (i < nbytes) dst[i] = v.bytes[i];
    }
}

int cairn__launch_store(struct CUstream_st *stream, void *dst, const void *from, size_t nbytes) {
    struct value v = {{0}};
    memcpy(v.bytes, from, nbytes);
    return cairn__launch(store_value, 1, 1, stream, (unsigned char *)dst, v, nbytes);
}
